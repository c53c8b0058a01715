"""12: self-assessment, with the experiments behind its questions."""

from __future__ import annotations

import functools
from typing import Any, Final

import virtual_cuda

from gpudojo.grading.call import nn, torch
from gpudojo.grading.differences import tell_apart, unusual_character
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

# ---- experiments -------------------------------------------------------------------------------


def portable() -> str:
    """What `is_available()` and `is_built()` say with and without a GPU, in words.

    Opens a virtual machine for each, and closes it. Raises AlreadyOpen within another one.
    """
    from gpudojo.grading.probing import open_machine

    chosen = {}
    built = False
    for machine in ("one gpu", "laptop"):
        with open_machine(machine, "virtual"):
            chosen[machine] = "cuda" if torch.cuda.is_available() else "cpu"
            built = torch.backends.cuda.is_built()
    with_gpu = f"is_available() chose {chosen['one gpu']} on a machine with a GPU"
    without = f"{chosen['laptop']} on one without, where is_built() said {built}"
    return f"{with_gpu} and {without}."


def different_devices() -> str:
    """What torch does with a model on the GPU and a batch on the CPU, in words.

    Tried on a virtual GPU. Raises AlreadyOpen within another one.
    """
    with virtual_cuda.virtual_cuda():
        model = nn.Linear(4, 2, device="cuda")
        try:
            model(torch.zeros(3, 4))
        except RuntimeError as error:
            return f"torch raised RuntimeError: {str(error).partition(' (when')[0]}."
    return "it ran."


def no_grad() -> str:
    """What memory eight layers take with and without a graph, and which mode they are in, in words.

    Measured on a virtual GPU. Raises AlreadyOpen within another one.
    """
    with virtual_cuda.virtual_cuda():
        # Wide layers with little to compute: the question is about what is kept for backward.
        others = [nn.ReLU() for _ in range(7)]
        model = nn.Sequential(nn.Linear(4, 256), *others).to("cuda")
        batch = torch.zeros(512, 4, device="cuda")
        model(batch)  # libraries allocate workspaces at their first call
        peaks = []
        graphs = []
        for enabled in (True, False):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with torch.set_grad_enabled(enabled):
                out = model(batch)
            peak = torch.cuda.max_memory_allocated() - before
            peaks.append(peak / MIB)
            graphs.append(out.grad_fn is not None)
            del out
        mode = "evaluation"
        if model.training:
            mode = "training"
    with_graph, without = peaks
    took = (
        f"eight layers took {with_graph:.1f} MiB with a graph and {without:.1f} MiB under no_grad"
    )
    built = "none"
    if graphs[1]:
        built = "one"
    return f"{took}, which built {built}; the model was still in {mode} mode."


def out_of_memory() -> str:
    """Whether a batch fits: one that is too large, again with an empty cache, and half of it.

    In words, tried on a virtual GPU. Raises AlreadyOpen within another one.
    """
    with virtual_cuda.virtual_cuda(memory=32 * MIB):
        first = _outcome_of_allocating(48)
        torch.cuda.empty_cache()
        emptied = _outcome_of_allocating(48)
        half = _outcome_of_allocating(24)
    large = f"on a card of 32 MiB a batch of 48 MiB {first}, after empty_cache() it {emptied}"
    return f"{large}, and half of it {half}."


def _outcome_of_allocating(mebibytes: int) -> str:
    """Whether so much memory could be allocated, in words."""
    try:
        torch.empty(mebibytes * MIB // 4, device="cuda")
    except torch.OutOfMemoryError:
        return "ran out of memory"
    return "fitted"


def another_process() -> str:
    """What this process knows of the GPU's memory, and what it can give back, in words.

    Tried on a virtual GPU. Raises AlreadyOpen within another one.
    """
    with virtual_cuda.virtual_cuda():
        kept = torch.empty(MIB, device="cuda")
        torch.cuda.empty_cache()
        mine = torch.cuda.memory_allocated() / MIB
        del kept
    return (
        f"torch.cuda.memory_allocated() said {mine:g} MiB, this process's own tensors, "
        "and empty_cache() gives back only what this process holds; "
        "another process keeps its memory until it ends, and both can run side by side."
    )


EXPERIMENTS: Final = (portable, different_devices, no_grad, out_of_memory, another_process)


@functools.cache
def run_experiments() -> dict[str, str]:
    """The result of every experiment, in a sentence; cached, as they always give the same."""
    return {experiment.__name__: experiment() for experiment in EXPERIMENTS}


# ---- answers -----------------------------------------------------------------------------------


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
    # By dict's own method: a class of the student's may have another.
    kind = type(value).__name__
    found: dict[str, Any] = {}
    if isinstance(value, dict):
        kind = "dict"
        for key, answer in dict.items(value):
            if type(key) is str:
                found[key] = answer
    others = sorted(name[:40] for name in found if name not in SHOWS)
    return Letters(
        kind=kind,
        answers={name: _text_of(found.get(name)) for name in SHOWS},
        missing=[name for name in SHOWS if name not in found],
        others=others[:10],
    )


def _text_of(answer: Any) -> str | None:
    """An answer as text: the beginning of a text, KIND and its kind of anything else.

    None stays None.
    """
    if answer is None:
        return None
    if isinstance(answer, str):
        return str.__getitem__(answer, slice(80))  # which a class of the student's may replace
    return KIND + with_article(type(answer).__name__)


@answers.probe(machine="reference")
def tried_out(value: Any) -> dict[str, str]:
    """What really happens, in a sentence for each question, whatever the answers."""
    return dict(run_experiments())


@answers.check(points=0, needs=())
def is_a_dict(seen: Seen, wanted: Seen) -> None:
    """`ANSWERS` is a dict from question to letter."""
    status, raised = seen.ends["letters"]
    if status is not CallStatus.RETURNED:
        if raised is None:
            raise Failed(f"{not_handed_in('ANSWERS')}, or is None", "ANSWERS = {...}")
        happened = f"the file could not be run: {raised.short}"
        raise Failed(happened, "ANSWERS = {...}", raised.line)
    if seen[letters].kind != "dict":
        happened = f"ANSWERS is {with_article(seen[letters].kind)}"
        raise Failed(happened, "a dict, as in the original file", at=("",))


def _judge_answer(question: str, seen: Seen, wanted: Seen) -> None:
    """Raises Failed for a wrong answer to a question, and Todo where there is none yet.

    Raises ScenarioRaised where the student's code raised.
    """
    found = seen[letters]
    if question in found.missing:
        raise _question_missing(question, found)
    answer = found.answers[question]
    if answer is None:
        raise _answer_missing(question, found)
    letter = answer.strip(" ().").lower()  # "b", "B" and " b) " are the same
    if letter == wanted[letters].answers[question]:
        return
    at = (f'["{question}"]', "")
    if letter not in tuple(LETTERS):
        if answer.startswith(KIND):
            shown = answer[len(KIND) :]
        else:
            shown = repr(answer)
        expected = f"one of the letters {', '.join(LETTERS)}, in quotes"
        happened = f'ANSWERS["{question}"] is {shown}'
        if unusual_character(answer) and not answer.startswith(KIND):
            happened = f"{happened}, with the character {unusual_character(answer)}"
        raise Failed(happened, expected, at=at, about="is_a_dict")
    happened = f'"{letter}" is not the answer to "{question}"'
    truth = wanted[tried_out].get(question)
    if truth:
        happened = f"{happened}. When we tried it out, {truth}"
    raise Failed(happened, "one of the other letters", None, SHOWS[question].get(letter), at)


def _question_missing(question: str, found: Letters) -> Failed:
    """The failure of answers without this question; perhaps it is misspelt.

    Returned, not raised.
    """
    happened = f'ANSWERS has no "{question}"'
    at = [""]
    if found.others:
        other = found.others[0]
        happened = tell_apart(f'{happened}, but "{other}"', other, question)
        at = [f'["{other}"]', ""]
    expected = f"the questions {', '.join(SHOWS)}"
    return Failed(happened, expected, at=tuple(at), about="is_a_dict")


def _answer_missing(question: str, found: Letters) -> Todo:
    """What is still to do: this question, and others. It is returned, not raised."""
    message = f'ANSWERS["{question}"] has no answer yet'
    others = [name for name in SHOWS if found.answers[name] is None and name != question]
    if others:
        message = f"{message}; neither have: {', '.join(others)}"
    return Todo(message)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_the_portable_line(seen: Seen, wanted: Seen) -> None:
    """The line that makes a script run with and without a GPU."""
    _judge_answer("portable", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_what_two_devices_do(seen: Seen, wanted: Seen) -> None:
    """What happens if model and data are on different devices."""
    _judge_answer("different_devices", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_what_no_grad_is_for(seen: Seen, wanted: Seen) -> None:
    """The two benefits of `no_grad`."""
    _judge_answer("no_grad", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_what_to_do_when_memory_is_full(seen: Seen, wanted: Seen) -> None:
    """The first thing to try if memory runs out."""
    _judge_answer("out_of_memory", seen, wanted)


@answers.check(points=0.4, needs=("is_a_dict",))
def knows_whose_memory_it_is(seen: Seen, wanted: Seen) -> None:
    """What another process in `nvidia-smi` means for you."""
    _judge_answer("another_process", seen, wanted)
