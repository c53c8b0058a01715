"""Compares a run with the real GPU's record, aspect by aspect.

========  =========================================================================================
outcome   both returned, or both raised the same type of exception result    the same structure,
devices, dtypes, shapes and grad flags, and values within the tolerance message   the same first
line of the exception's text, whatever the numbers in it syncs     the same number of times the host
waited for the device memory    the same number of bytes still allocated once the snippet's names
are gone ========
=========================================================================================

An aspect counts only where the record can answer it: a message where the GPU raised, memory where
it returned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.virtual_cuda.conformance.corpus import DEFAULT_TOLERANCE, Record

ASPECTS = ("outcome", "result", "message", "syncs", "memory")
NOT_RUN: Record = {"outcome": "missing", "error_type": None, "message": None, "result": None}

# The class is the virtual tensor's own; the statistics of large tensors depend on the order of
# summation.
NOT_COMPARED = frozenset({"class", "stats"})
# Everything from here on is CUDA's advice on debugging, or a C++ backtrace.
TAIL = re.compile(r"\n.*", re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Difference:
    id: str
    aspect: str
    golden: Record
    tried: Record


@dataclass(frozen=True)
class Tally:
    agree: int
    of: int

    @property
    def percent(self) -> float:
        return 100 * self.agree / self.of if self.of else 100.0


def verdicts(golden: Record, tried: Record) -> dict[str, bool]:
    """Aspect by aspect, whether ``tried`` agrees with ``golden``; only the aspects that apply."""
    returned = golden["outcome"] == "ok"
    found = {
        "outcome": (golden["outcome"], golden["error_type"])
        == (tried["outcome"], tried["error_type"])
    }
    if returned and not golden["random"]:
        tolerance = max(golden["tol"], DEFAULT_TOLERANCE)
        found["result"] = tried["outcome"] == "ok" and equal(
            golden["result"], tried["result"], tolerance
        )
    if golden["outcome"] == "raise":
        found["message"] = tried["outcome"] == "raise" and folded(golden["message"]) == folded(
            tried["message"]
        )
    if golden["syncs"] is not None:
        found["syncs"] = golden["syncs"] == tried.get("syncs")
    if returned and golden["mem_delta"] is not None:
        found["memory"] = golden["mem_delta"] == tried.get("mem_delta")
    return found


def folded(message: str | None) -> str:
    """The first line of a message, every number in it replaced by ``#``."""
    return NUMBER.sub("#", TAIL.sub("", message or "")).strip()


def equal(left: Any, right: Any, tolerance: float) -> bool:
    match left, right:
        case dict(), dict():
            keys = (left.keys() | right.keys()) - NOT_COMPARED
            return all(equal(left.get(key), right.get(key), tolerance) for key in keys)
        case list(), list():
            return len(left) == len(right) and all(
                equal(a, b, tolerance) for a, b in zip(left, right, strict=True)
            )
        case (bool(), _) | (_, bool()):
            return left is right
        case ((int() | float()), (int() | float())):
            return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)
    return bool(left == right)


def differences(golden: dict[str, Record], tried: dict[str, Record]) -> Iterator[Difference]:
    for id_, record in golden.items():
        attempt = tried.get(id_, NOT_RUN)
        for aspect, agrees in verdicts(record, attempt).items():
            if not agrees:
                yield Difference(id_, aspect, record, attempt)


def tallies(golden: dict[str, Record], tried: dict[str, Record]) -> dict[str, Tally]:
    """How many snippets agree in each aspect, of how many it applies to."""
    judged = [verdicts(record, tried.get(id_, NOT_RUN)) for id_, record in golden.items()]
    found = {aspect: [row[aspect] for row in judged if aspect in row] for aspect in ASPECTS}
    return {
        aspect: Tally(sum(answers), len(answers)) for aspect, answers in found.items() if answers
    }
