"""12: self-assessment, with the experiments behind its questions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from gpudojo.grading.call import nn, torch
from gpudojo.model.evidence import CallStatus
from gpudojo.model.exercise import Exercise, Failed, Seen, Todo, called

exercise = Exercise(
    "12_self_assessment",
    "Do you know what happens?",
    points=2,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "torch_cuda_memory.html"),
)
answers = exercise.function(
    "ANSWERS",
    "Try it: every question can be answered by running two or three lines of the exercises before this one.",
    "Rule out what cannot be: which of the answers would you have noticed in your own training loop?",
)
LETTERS: Final = "abcd"
# Which misconception a wrong letter shows; a letter that is not here shows none that has a name.
SHOWS: Final[dict[str, dict[str, str]]] = {
    "portable": {"a": "hard-coded-cuda", "c": "built-is-not-available", "d": "never-the-gpu"},
    "different_devices": {"a": "moved-by-itself", "b": "moved-by-itself"},
    "no_grad": {"a": "no-grad-without-eval"},
    "out_of_memory": {"b": "empty-cache-first", "d": "out-of-memory-skipped"},
    "another_process": {"a": "memory-of-another-process", "b": "memory-of-another-process"},
}


MIB: Final = 1 << 20


def portable() -> str:
    from gpudojo.grading.observe import open_machine

    chosen, built = {}, False
    for machine in ("one gpu", "laptop"):
        with open_machine(machine, "virtual"):
            chosen[machine] = "cuda" if torch.cuda.is_available() else "cpu"
            built = torch.backends.cuda.is_built()
    found = f"is_available() chose {chosen['one gpu']} on a machine with a GPU and {chosen['laptop']} on one without"
    return f"{found}, where is_built() said {built}."


def different_devices() -> str:
    from virtual_cuda import virtual_cuda

    with virtual_cuda():
        model = nn.Linear(4, 2, device="cuda")
        try:
            model(torch.zeros(3, 4))
        except RuntimeError as error:
            return f"RuntimeError: {str(error).partition(' (when')[0]}."
    return "it ran."


def no_grad() -> str:
    from virtual_cuda import virtual_cuda

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
    from virtual_cuda import virtual_cuda

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
    from virtual_cuda import virtual_cuda

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
def run_experiments() -> dict[str, str]:
    """What every experiment tells; once in a process, as it does not depend on anything."""
    return {name: experiment() for name, experiment in EXPERIMENTS.items()}


@answers.probe(machine="value")
def letters(value: Any) -> dict[str, Any]:
    """The letter for every question, however it is written: "b", "B", " b) "."""
    # By dict's and str's own methods: a class of the student's may have others.
    found = {k: v for k, v in dict.items(value) if type(k) is str} if isinstance(value, dict) else {}
    return {
        "class": "dict" if isinstance(value, dict) else type(value).__name__,
        "answers": {name: _letter(found.get(name)) for name in SHOWS},
        "missing": [name for name in SHOWS if name not in found],
        "others": sorted(name[:40] for name in found if name not in SHOWS)[:10],
    }


def _letter(answer: Any) -> str | None:
    if answer is None:
        return None
    if isinstance(answer, str):
        return str.lower(str.strip(answer, " ()."))[:80]
    return called(type(answer).__name__)


@answers.probe(machine="reference")
def tried_out(value: Any) -> dict[str, Any]:
    """What really happens, in a sentence for each question; it has nothing to do with the student's answers."""
    return dict(run_experiments())


@answers.check(points=0, needs=())
def is_a_dict(seen: Seen, wanted: Seen) -> None:
    """`ANSWERS` is a dict from question to letter."""
    observation = seen["letters"]
    if observation.status is not CallStatus.RETURNED:
        raised = observation.raised
        said = f"the file could not be run: {raised.type}: {raised.message}" if raised else "the file has no ANSWERS"
        raise Failed(said, "ANSWERS = {...}", raised.line if raised else None)
    if observation.facts["class"] != "dict":
        raise Failed(f"ANSWERS is {called(observation.facts['class'])}", "a dict, as it was")


def _judge(question: str, seen: Seen, wanted: Seen) -> None:
    facts, at = seen["letters"].facts, (f'["{question}"]',)
    if question in facts["missing"]:
        others = "".join(f', but "{name}"' for name in facts["others"][:1])
        misspelt = tuple(f'["{name}"]' for name in facts["others"][:1])
        raise Failed(f'ANSWERS has no "{question}"{others}', f"the questions {', '.join(SHOWS)}", at=misspelt)
    answer = facts["answers"][question]
    if answer is None:
        raise Todo(_open(question, [name for name in SHOWS if facts["answers"][name] is None]))
    if answer == wanted["letters"].facts["answers"][question]:
        return
    if answer not in tuple(LETTERS):
        shown = answer if answer.startswith(("a ", "an ")) else repr(answer)
        raise Failed(f'ANSWERS["{question}"] is {shown}', f"one of the letters {', '.join(LETTERS)}, in quotes", at=at)
    truth = wanted["tried_out"].facts.get(question)
    raise Failed(
        f'the answer to "{question}" is not {answer!r}',
        f"what we saw: {truth}" if truth else "another letter",
        None,
        SHOWS[question].get(answer),
        at,
    )


def _open(question: str, every: list[str]) -> str:
    others = [name for name in every if name != question]
    return f'ANSWERS["{question}"] is still open' + (f"; open as well: {', '.join(others)}" if others else "")


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_the_portable_line(seen: Seen, wanted: Seen) -> None:
    """The line that makes a script run with and without a GPU."""
    _judge("portable", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_what_two_devices_do(seen: Seen, wanted: Seen) -> None:
    """What happens when model and data are on different devices."""
    _judge("different_devices", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_what_no_grad_is_for(seen: Seen, wanted: Seen) -> None:
    """The two benefits of `no_grad`."""
    _judge("no_grad", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_what_to_do_when_memory_is_full(seen: Seen, wanted: Seen) -> None:
    """The first thing to try when memory runs out."""
    _judge("out_of_memory", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_whose_memory_it_is(seen: Seen, wanted: Seen) -> None:
    """What another process in `nvidia-smi` means for you."""
    _judge("another_process", seen, wanted)
