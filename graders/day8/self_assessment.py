"""12: does the student know what happens? Five answers, each explained by what really happened when we tried it."""

from __future__ import annotations

from typing import Any, Final

from graders.curriculum import Exercise, Failed, Todo
from graders.curriculum.exercise import Seen
from graders.evidence import Status
from graders.probes.experiments import EXPERIMENTS

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


@answers.probe(machine="value")
def letters(value: Any) -> dict[str, Any]:
    """The letter for every question, however it is written: "b", "B", " b) "."""
    found = value if isinstance(value, dict) else {}
    return {"class": type(value).__name__, "answers": {name: _letter(found.get(name)) for name in SHOWS}}


def _letter(answer: Any) -> str | None:
    if answer is None:
        return None
    return answer.strip(" ().").lower() if isinstance(answer, str) else repr(answer)[:40]


@answers.probe(machine="value")
def tried_out(value: Any) -> dict[str, Any]:
    """What really happens, in a sentence for each question; it has nothing to do with the answers."""
    return {name: experiment() for name, experiment in EXPERIMENTS.items()}


@answers.check(points=0, needs=())
def is_a_dict(seen: Seen, wanted: Seen) -> None:
    """`ANSWERS` is a dict from question to letter."""
    observation = seen["letters"]
    if observation.status is not Status.RETURNED:
        raised = observation.raised
        said = f"the file could not be run: {raised.type}: {raised.message}" if raised else "the file has no ANSWERS"
        raise Failed(said, "ANSWERS = {...}", raised.line if raised else None)
    if observation.facts["class"] != "dict":
        raise Failed(f"ANSWERS is a {observation.facts['class']}", "a dict, as it was")


def _judge(question: str, seen: Seen, wanted: Seen) -> None:
    answer = seen["letters"].facts["answers"][question]
    if answer is None:
        raise Todo()
    if answer == wanted["letters"].facts["answers"][question]:
        return
    truth = wanted["tried_out"].facts[question]
    if answer not in tuple(LETTERS):
        raise Failed(f'ANSWERS["{question}"] is {answer}', f"one of the letters {', '.join(LETTERS)}, in quotes")
    raise Failed(
        f'the answer to "{question}" is not {answer!r}', f"what we saw: {truth}", None, SHOWS[question].get(answer)
    )


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
