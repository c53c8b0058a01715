"""How often student code did something, and where first, as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpudojo.grading.call import Call
from gpudojo.model.evidence import Case


class Occurrences(Case, frozen=True):
    """How often something was done."""

    count: int
    line: int | None  # of the student's file, that did it first


def count_occurrences(call: Call, records: Sequence[Any]) -> Occurrences:
    """The number of these records of the ledger, and the line that caused the first."""
    return Occurrences(len(records), call.first_line(records))
