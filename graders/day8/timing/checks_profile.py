"""Are the operators in the order of their time, and nvidia-smi's lines read as they are?"""

from __future__ import annotations

from typing import Any

from graders.checks.common import runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.timing.functions import TEXTS, smi, top

runs(top, points=0.25)
PLACES = {"work_on_the_cpu": ("the CPU", 3), "work_on_the_gpu": ("the GPU", 2)}


@top.check(points=0.25)
def gives_as_many_names_as_asked(seen: Seen, wanted: Seen) -> None:
    """It returns a list of `count` names such as "aten::mm"."""
    for name, (_, count) in PLACES.items():
        answer = seen[name].facts["some"]
        if answer["class"] != "list":
            raise Failed(f"it returned {called(answer['class'])}", "a list of strings")
        if not answer["texts"]:
            raise Failed(f"it returned a list of other things: {answer['names'][:1]}", "a list of strings")
        if len(answer["names"]) != count:
            raise Failed(f"count={count} gave {len(answer['names'])} names", f"{count}")
        strange = [operator for operator in answer["names"] if "::" not in operator]
        if strange:
            raise Failed(f"one of the names is {strange[0]!r}", "an operator's name as the profiler has it: aten::mm")
    unasked = seen["work_on_the_cpu"].facts["default"]["names"]
    if not 3 <= len(unasked) <= 5:
        raise Failed(f"without `count` it gave {len(unasked)} names", "at most 5, and all there are")


@top.check(points=0.25, needs=("runs", "gives_as_many_names_as_asked"))
def puts_the_longest_first(seen: Seen, wanted: Seen) -> None:
    """The operator that took most time in all comes first."""
    for name, (place, _) in PLACES.items():
        facts, right = seen[name].facts, wanted[name].facts["some"]["names"]
        if right not in (facts["some"]["names"], facts.get("really")):
            raise Failed(
                f"20 short `add`, one long `mm` and 9 `exp` on {place} gave {', '.join(facts['some']['names'])}",
                f"{', '.join(right)}: by the time of all calls together",
            )


runs(smi)


def _same_gpus(seen: Seen, wanted: Seen, *names: str) -> None:
    for name in names:
        facts, right = seen[f"text_{name}"].facts, wanted[f"text_{name}"].facts
        if "raised" in facts:
            raise Failed(f"{TEXTS[name]!r} raised {facts['raised']}: {facts['text']}", "no error", facts["line"])
        if facts["class"] != "list":
            raise Failed(f"it returned {called(facts['class'])}", "a list of dicts")
        if len(facts["gpus"]) != len(right["gpus"]):
            count = len(facts["gpus"])
            raise Failed(f"{TEXTS[name]!r} gave {count} dict{'s' * (count != 1)}", f"{len(right['gpus'])}")
        for found, wished in zip(facts["gpus"], right["gpus"], strict=True):
            if found != wished:
                raise Failed(f"{TEXTS[name]!r} gave {_shown(found)}", _shown(wished))


def _shown(row: dict[str, Any]) -> str:
    if "a" in row:
        return called(row["a"])
    return "{" + ", ".join(f"{key}: {_value(kind, text)}" for key, (kind, text) in row.items()) + "}"


def _value(kind: str, text: Any) -> str:
    if kind == "NoneType":
        return "None"
    return f"{repr(text) if kind == 'str' else text} ({kind})"


@smi.check(points=0.25)
def reads_every_gpu(seen: Seen, wanted: Seen) -> None:
    """One dict per GPU, in the order of the lines, with its name as it is and its numbers as ints."""
    _same_gpus(seen, wanted, "one", "several")


@smi.check(points=0.25)
def knows_what_is_not_known(seen: Seen, wanted: Seen) -> None:
    """`[N/A]` becomes None."""
    _same_gpus(seen, wanted, "unknown")


@smi.check(points=0.25)
def skips_blank_lines(seen: Seen, wanted: Seen) -> None:
    """Empty lines are skipped; an empty text gives an empty list."""
    _same_gpus(seen, wanted, "blank", "nothing")
