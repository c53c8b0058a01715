"""12: self-assessment, with the experiments behind its questions."""

from __future__ import annotations

import functools
from typing import Any, Final

from gpudojo.grading.call import nn, torch
from gpudojo.model.evidence import CallStatus, Case
from gpudojo.model.exercise import Exercise, Failed, Seen, Todo, with_article
from gpudojo.model.results import not_handed_in

exercise = Exercise(
    "12_self_assessment",
    "Do you know what happens?",
    points=2,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "torch_cuda_memory.html"),
)
answers = exercise.function("ANSWERS")
LETTERS: Final = "abcd"
# The misconception that a wrong letter shows, where it has a name.
SHOWS: Final[dict[str, dict[str, str]]] = {
    "portable": {"a": "hard-coded-cuda", "c": "built-is-not-available", "d": "never-the-gpu"},
    "different_devices": {"a": "moved-by-itself", "b": "moved-by-itself"},
    "no_grad": {"a": "no-grad-without-eval"},
    "out_of_memory": {"b": "empty-cache-first", "d": "out-of-memory-skipped"},
    "another_process": {"a": "memory-of-another-process", "b": "memory-of-another-process"},
}


MIB: Final = 1 << 20


def portable() -> str:
    """What `is_available()` and `is_built()` say with and without a GPU."""
    from gpudojo.grading.probing import open_machine

    chosen = {}
    built = False
    for machine in ("one gpu", "laptop"):
        with open_machine(machine, "virtual"):
            chosen[machine] = "cuda" if torch.cuda.is_available() else "cpu"
            built = torch.backends.cuda.is_built()
    found = f"is_available() chose {chosen['one gpu']} on a machine with a GPU and {chosen['laptop']} on one without"
    return f"{found}, where is_built() said {built}."


def different_devices() -> str:
    """What torch does with a model on the GPU and a batch on the CPU."""
    from virtual_cuda import virtual_cuda

    with virtual_cuda():
        model = nn.Linear(4, 2, device="cuda")
        try:
            model(torch.zeros(3, 4))
        except RuntimeError as error:
            return f"torch raised RuntimeError: {str(error).partition(' (when')[0]}."
    return "it ran."


def no_grad() -> str:
    """What memory eight layers take with and without a graph, and which mode they are in."""
    from virtual_cuda import virtual_cuda

    with virtual_cuda():
        # Wide layers with little to compute: the question is about what is kept for backward.
        model = nn.Sequential(nn.Linear(4, 256), *(nn.ReLU() for _ in range(7))).to("cuda")
        batch = torch.zeros(512, 4, device="cuda")
        peaks = []
        graphs = []
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
    """Whether a batch fits: one that is too large, again with an empty cache, and half of it."""
    from virtual_cuda import virtual_cuda

    with virtual_cuda(memory=32 * MIB):
        first = _fits(48)
        torch.cuda.empty_cache()
        emptied = _fits(48)
        half = _fits(24)
    return f"on a card of 32 MiB a batch of 48 MiB {first}, after empty_cache() it {emptied}, and half of it {half}."


def _fits(mebibytes: int) -> str:
    try:
        torch.empty(mebibytes * MIB // 4, device="cuda")
    except torch.OutOfMemoryError:
        return "ran out of memory"
    return "fitted"


def another_process() -> str:
    """What this process knows of the GPU's memory, and what it can give back."""
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


EXPERIMENTS: Final = (portable, different_devices, no_grad, out_of_memory, another_process)


@functools.cache
def run_experiments() -> dict[str, str]:
    """The result of every experiment, in a sentence; cached, as they always give the same."""
    return {experiment.__name__: experiment() for experiment in EXPERIMENTS}


class Letters(Case, frozen=True):
    """The answers that a student gave."""

    kind: str
    answers: dict[str, str | None]
    missing: list[str]
    others: list[str]  # keys that are no questions


KIND: Final = "\0"  # before the kind of an answer that is no text


@answers.probe(machine="value")
def letters(value: Any) -> Letters:
    """The answer to every question, as it is written."""

    # By dict's and str's own methods: a class of the student's may have others.
    def text(answer: Any) -> str | None:
        if isinstance(answer, str):
            return str.__getitem__(answer, slice(80))
        return None if answer is None else KIND + with_article(type(answer).__name__)

    found = (
        {k: v for k, v in dict.items(value) if type(k) is str} if isinstance(value, dict) else {}
    )
    return Letters(
        kind="dict" if isinstance(value, dict) else type(value).__name__,
        answers={name: text(found.get(name)) for name in SHOWS},
        missing=[name for name in SHOWS if name not in found],
        others=sorted(name[:40] for name in found if name not in SHOWS)[:10],
    )


@answers.probe(machine="reference")
def tried_out(value: Any) -> dict[str, str]:
    """What really happens, in a sentence for each question.

    It does not depend on the student's answers.
    """
    return dict(run_experiments())


@answers.check(points=0, needs=())
def is_a_dict(seen: Seen, wanted: Seen) -> None:
    """`ANSWERS` is a dict from question to letter."""
    status, raised = seen.ends["letters"]
    if status is not CallStatus.RETURNED:
        said = (
            f"the file could not be run: {raised.short}"
            if raised
            else f"{not_handed_in('ANSWERS')}, or is None"
        )
        raise Failed(said, "ANSWERS = {...}", raised.line if raised else None)
    if seen[letters].kind != "dict":
        raise Failed(
            f"ANSWERS is {with_article(seen[letters].kind)}",
            "a dict, as in the original file",
            at=("",),
        )


def _judge(question: str, seen: Seen, wanted: Seen) -> None:
    """Raises Failed for a wrong answer to a question, and Todo where there is none yet."""
    found, at = seen[letters], (f'["{question}"]', "")
    # No such key: perhaps it is misspelt.
    if question in found.missing:
        others = "".join(f', but "{name}"' for name in found.others[:1])
        misspelt = tuple(f'["{name}"]' for name in found.others[:1])
        expected = f"the questions {', '.join(SHOWS)}"
        raise Failed(
            f'ANSWERS has no "{question}"{others}', expected, at=(*misspelt, ""), about="is_a_dict"
        )
    answer = found.answers[question]
    if answer is None:
        others = ", ".join(
            name for name in SHOWS if found.answers[name] is None and name != question
        )
        raise Todo(
            f'ANSWERS["{question}"] has no answer yet'
            + (f"; neither have: {others}" if others else "")
        )
    letter = answer.strip(" ().").lower()  # "b", "B" and " b) " are the same
    if letter == wanted[letters].answers[question]:
        return
    # No letter, or a wrong one
    if letter not in tuple(LETTERS):
        shown = answer.removeprefix(KIND) if answer.startswith(KIND) else repr(answer)
        expected = f"one of the letters {', '.join(LETTERS)}, in quotes"
        raise Failed(f'ANSWERS["{question}"] is {shown}', expected, at=at, about="is_a_dict")
    truth = wanted[tried_out].get(question)
    happened = f'"{letter}" is not the answer to "{question}"' + (
        f". When we tried it out, {truth}" if truth else ""
    )
    raise Failed(happened, "one of the other letters", None, SHOWS[question].get(letter), at)


CLAIMS: Final = {
    "portable": (
        "knows_the_portable_line",
        "The line that makes a script run with and without a GPU.",
    ),
    "different_devices": (
        "knows_what_two_devices_do",
        "What happens if model and data are on different devices.",
    ),
    "no_grad": ("knows_what_no_grad_is_for", "The two benefits of `no_grad`."),
    "out_of_memory": (
        "knows_what_to_do_when_memory_is_full",
        "The first thing to try if memory runs out.",
    ),
    "another_process": (
        "knows_whose_memory_it_is",
        "What another process in `nvidia-smi` means for you.",
    ),
}
for _question, (_name, _doc) in CLAIMS.items():
    _check: Any = functools.partial(_judge, _question)
    _check.__name__ = _name
    _check.__doc__ = _doc
    answers.check(points=0.4, needs=("is_a_dict",))(_check)
