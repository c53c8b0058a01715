"""Which letters did the student write, and what really happens?"""

from __future__ import annotations

from typing import Any

from graders.curriculum.wording import called
from graders.day8.self_assessment.functions import SHOWS, answers
from graders.probes import experiments


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
    return dict(experiments.tried_out())
