"""Is each answer the right one? If not, what we saw when we tried it."""

from __future__ import annotations

from graders.curriculum import Failed, Todo
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.self_assessment.functions import LETTERS, SHOWS, answers
from graders.evidence import Status


@answers.check(points=0, needs=())
def is_a_dict(seen: Seen, wanted: Seen) -> None:
    """`ANSWERS` is a dict from question to letter."""
    observation = seen["letters"]
    if observation.status is not Status.RETURNED:
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
