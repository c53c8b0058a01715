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
from graders.bench.ledger.timeline import Timeline, same_call
from graders.report.charts import Bar
from graders.report.curves import Curve, curve
from graders.report.texts import duration, size
from graders.results import CheckRow

RACERS: Final = (("the loop", "loop", "other"), ("yours", "student", "mine"), ("the reference", "reference", "theirs"))
NO_PICTURES: Final = "There is no picture of the reference's run on the public seed in this evidence."
UNKNOWN_CALL: Final = (
    "The record of this run does not say which call this is; only the same call of the reference could stand beside it."
)
NOTHING_THERE: Final = (
    "Of the reference there is nothing to draw in the same call: it did next to nothing on a device, or never made it."
)
WITHOUT: Final = "every activation kept"


@dataclass(frozen=True)
class Beside:
    """What a student's call did, the same call of the reference on the public seed, and why that is missing."""

    mine: Timeline | None
    theirs: Timeline | None = None
    missing: str = ""


@dataclass(frozen=True)
class Known:
    """One submission's record, or None, and the reference's of the same run."""

    record: Record | None
    reference: Record | None

    def timelines(self, exercise: str, function: str) -> Beside:
        """What the student's call did, and the same call of the reference."""
        mine = _timeline(self.record, exercise, function)
        if mine is None:
            return Beside(None)
        every = self.reference.seen if self.reference is not None else {}
        seen = every.get(f"{exercise}::{function}")
        theirs = same_call(mine, seen.timelines) if seen is not None else None
        if theirs is not None:
            return Beside(mine, theirs)
        if not any(each.timelines for each in every.values()):
            return Beside(mine, missing=NO_PICTURES)
        return Beside(mine, missing=UNKNOWN_CALL if mine.place is None else NOTHING_THERE)

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

    def curves(self, exercise: str, function: str) -> list[Curve]:
        """How memory rose and fell in the plain loop, the student's and the reference's; older records have none."""
        mine, theirs = (_facts(record, exercise, function) for record in (self.record, self.reference))
        for facts in mine.values():
            plain = curve(WITHOUT, facts.get("stored_curve"), "other")
            for name, case in facts.items():
                yours = curve("yours", _within(case, "curve"), "mine")
                if plain is None or yours is None:
                    continue
                others = (_within(found.get(name), "curve") for found in theirs.values())
                right = next((made for each in others if (made := curve("the reference", each, "theirs"))), None)
                return [plain, yours, *([right] if right else [])]
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


def _within(facts: Any, key: str) -> Any:
    return facts.get(key) if isinstance(facts, Mapping) else None


def _number(facts: Any, key: str) -> float | None:
    """A number that can be drawn, larger than 0."""
    value = _within(facts, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < 1e15 else None
