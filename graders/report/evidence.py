"""What is known of a submission beyond its points? Timelines, times and peaks, where the records of the run are there.

A report needs none of it: what is missing is said on the page. Records hold what came out of a process in which
student code ran, so every number is looked at before it is drawn.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from graders.batch.records import Record
from graders.batch.store import Store
from graders.bench.ledger.timeline import Timeline
from graders.report.charts import Bar
from graders.report.texts import duration, size
from graders.results import CheckRow

RACERS: Final = (("the loop", "loop", "other"), ("yours", "student", "mine"), ("the reference", "reference", "theirs"))


@dataclass(frozen=True)
class Known:
    """One submission's record, or None, and the reference's of the same run."""

    record: Record | None
    reference: Record | None

    def timelines(self, exercise: str, function: str) -> tuple[Timeline | None, Timeline | None]:
        """What the student's call did, and the reference's."""
        return _timeline(self.record, exercise, function), _timeline(self.reference, exercise, function)

    def race(self, exercise: str, function: str) -> list[Bar]:
        """How long the loop, the student and the reference took, where the three were timed."""
        mine, theirs = (_facts(record, exercise, function) for record in (self.record, self.reference))
        found = next((facts for facts in mine.values() if _number(facts, "loop") and _number(facts, "student")), None)
        if found is None:
            return []
        times = {key: _number(found, key) for _, key, _ in RACERS}
        if not times["reference"]:
            # The reference did not run beside the student: its own speedup over the loop stands for it.
            own = next((f for f in theirs.values() if _number(f, "loop") and _number(f, "student")), None)
            if own is not None and times["loop"]:
                times["reference"] = times["loop"] * own["student"] / own["loop"]
        return [Bar(label, took, duration(took), kind) for label, key, kind in RACERS if (took := times[key])]

    def peaks(self, exercise: str, function: str) -> list[Bar]:
        """What the plain loop, the student and the reference took at most, where activations could be kept or not."""
        mine, theirs = (_facts(record, exercise, function) for record in (self.record, self.reference))
        for facts in mine.values():
            plain = _number(facts, "stored")
            for name, case in facts.items():
                peak = _number(case, "peak")
                if not peak or not plain:
                    continue
                bars = [Bar("plain", plain, size(plain), "other"), Bar("yours", peak, size(peak), "mine")]
                right = next((_number(found.get(name), "peak") for found in theirs.values() if name in found), None)
                return [*bars, Bar("the reference", right, size(right), "theirs")] if right else bars
        return []

    def code(self, check: CheckRow) -> list[tuple[int, str, bool]]:
        """The student's lines around the one a check names, as far as they are known: number, text, if it is it."""
        exercise = check.id.partition("::")[0]
        timeline = _timeline(self.record, exercise, check.function)
        if timeline is None or check.line is None or self.record is None:
            return []
        shift = 0
        ran = self.record.files.get(check.file or "")
        if check.cell is not None:
            # A timeline counts the lines of a notebook through; the check counts in its cell.
            if ran is None or not check.cell <= len(ran.cells):
                return []
            shift = ran.cells[check.cell - 1] - 1
        wanted = check.line + shift
        if wanted not in timeline.lines:
            return []
        near = [number for number in sorted(timeline.lines) if wanted - 3 <= number <= wanted + 3 and number > shift]
        # Deep in a loop the indentation takes more room than the code; what one line has more than another stays.
        texts = textwrap.dedent("\n".join(timeline.lines[number].expandtabs(4) for number in near)).split("\n")
        if len(texts) != len(near):  # a stranger's line with a line break in it
            return []
        return [(number - shift, text, number == wanted) for number, text in zip(near, texts, strict=True)]


class Archive:
    """The records that lie beside a file of results."""

    def __init__(self, results: Path, reference: str) -> None:
        self._store = Store(results.parent)
        self.reference = self._store.record(reference) if reference else None

    def known(self, key: str) -> Known:
        return Known(self._store.record(key) if key else None, self.reference)


def _timeline(record: Record | None, exercise: str, function: str) -> Timeline | None:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return getattr(seen, "timeline", None)


def _facts(record: Record | None, exercise: str, function: str) -> Mapping[str, Mapping[str, Any]]:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return {name: each.facts for name, each in seen.evidence.observations.items()} if seen is not None else {}


def _number(facts: Any, key: str) -> float | None:
    """A number that can be drawn, larger than 0."""
    value = facts.get(key) if isinstance(facts, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < 1e15 else None
