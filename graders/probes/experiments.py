"""What really happens? The questions of the self-assessment, tried out on the bench and told in a sentence each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from graders.probes.late import nn, torch

MIB: Final = 1 << 20


def portable() -> str:
    from graders.probes.machines import open_machine

    chosen, built = {}, False
    for machine in ("one gpu", "laptop"):
        with open_machine(machine, "virtual"):
            chosen[machine] = "cuda" if torch.cuda.is_available() else "cpu"
            built = torch.backends.cuda.is_built()
    found = f"is_available() chose {chosen['one gpu']} on a machine with a GPU and {chosen['laptop']} on one without"
    return f"{found}, where is_built() said {built}."


def different_devices() -> str:
    from graders.bench import virtual_cuda

    with virtual_cuda():
        model = nn.Linear(4, 2, device="cuda")
        try:
            model(torch.zeros(3, 4))
        except RuntimeError as error:
            return f"RuntimeError: {str(error).partition(' (when')[0]}."
    return "it ran."


def no_grad() -> str:
    from graders.bench import virtual_cuda

    with virtual_cuda():
        # Wide, and next to nothing to compute: what is kept for backward is what the question is about.
        model = nn.Sequential(nn.Linear(4, 256), *(nn.ReLU() for _ in range(7))).to("cuda")
        batch = torch.zeros(512, 4, device="cuda")
        peaks, graphs = [], []
        for enabled in (True, False):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with torch.set_grad_enabled(enabled):
                out = model(batch)
            peaks.append((torch.cuda.max_memory_allocated() - before) / MIB)
            graphs.append(out.grad_fn is not None)
            del out
        mode = "training" if model.training else "evaluation"
    return (
        f"eight layers took {peaks[0]:.1f} MiB with a graph and {peaks[1]:.1f} MiB under no_grad, which built "
        f"{'one' if graphs[1] else 'none'}; the model was still in {mode} mode."
    )


def out_of_memory() -> str:
    from graders.bench import virtual_cuda

    with virtual_cuda(memory=32 * MIB):
        first, emptied, half = _fits(48), _emptied(48), _fits(24)
    return (
        f"on a card of 32 MiB a batch of 48 MiB {_word(first)}, after empty_cache() it {_word(emptied)}, "
        f"and half of it {_word(half)}."
    )


def _fits(mebibytes: int) -> bool:
    try:
        torch.empty(mebibytes * MIB // 4, device="cuda")
    except torch.OutOfMemoryError:
        return False
    return True


def _emptied(mebibytes: int) -> bool:
    torch.cuda.empty_cache()
    return _fits(mebibytes)


def _word(fitted: bool) -> str:
    return "fitted" if fitted else "ran out of memory"


def another_process() -> str:
    from graders.bench import virtual_cuda

    with virtual_cuda():
        kept = torch.empty(MIB, device="cuda")
        torch.cuda.empty_cache()
        mine = torch.cuda.memory_allocated() / MIB
        del kept
    return (
        f"torch.cuda.memory_allocated() said {mine:g} MiB, this process's own tensors, and empty_cache() gives back "
        "only what this process holds; another process keeps its memory until it ends, and both can run side by side."
    )


EXPERIMENTS: Final[dict[str, Callable[[], str]]] = {
    "portable": portable,
    "different_devices": different_devices,
    "no_grad": no_grad,
    "out_of_memory": out_of_memory,
    "another_process": another_process,
}


@functools.cache
def tried_out() -> dict[str, str]:
    """What every experiment tells; once in a process, as it does not depend on anything."""
    return {name: experiment() for name, experiment in EXPERIMENTS.items()}
