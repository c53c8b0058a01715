"""What being late costs: when a submission counts as late, and the points that are published then.

The course file sets it in `[late]`, with a deadline and extensions.
"""

from __future__ import annotations

import datetime
import math
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from gpudojo.model.results import (
    A_PERSON,
    Grade,
    SubmissionRow,
    SubmissionStatus,
    Timing,
    round_half_up,
    sum_points,
)
from gpudojo.submissions.entries import Naming

SECONDS_OF_A_DAY: Final = 86_400
PenaltyBase = Literal["maximum", "earned"]


class LateRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What being late costs. The fields are the settings in `[late]`."""

    penalty: float = 0.0  # percent for each day that has begun
    grace: float = 0.0  # minutes
    cap: float = 100.0  # percent
    of: PenaltyBase = "maximum"

    @property
    def costs_points(self) -> bool:
        """True if being late costs points."""
        return self.penalty > 0

    def describe(self) -> str:
        """What being late costs, in words. Empty where it costs nothing."""
        if not self.costs_points:
            return ""
        base = "what was earned"
        if self.of == "maximum":
            base = "the maximum"
        text = f"{self.penalty:g} % of {base} off for each day late"
        if self.cap < 100:
            text += f", at most {self.cap:g} %"
        if self.grace:
            text += f", after {self.grace:g} minutes of grace"
        return text

    def points_lost(self, points: float, max_points: float, late_seconds: int | None) -> float:
        """The points that are lost for being late.

        `late_seconds` is None if nobody knows by how much: one day is counted then. No more is lost
        than was earned.
        """
        days = math.ceil((late_seconds or 1) / SECONDS_OF_A_DAY)
        share = min(self.penalty * days, self.cap) / 100
        if self.of == "maximum":
            base = max_points
        else:
            base = points
        return min(points, share * base)


NO_PENALTY: Final = LateRule()


def timing_of(
    rule: LateRule,
    deadline: datetime.datetime | None,
    extension: datetime.datetime | None,
    submitted: str,
    told_by: str,
    marked_late: bool,
) -> Timing | None:
    """When a submission was handed in, and whether that was late.

    `submitted` is in ISO 8601, or empty where nobody knows when it was; then `marked_late`, a
    platform's own word, counts, unless the student has an extension, of which the platform does not
    know. `told_by` is who told the time. Returns None where there is neither a date nor a deadline,
    and nobody says late. Raises ValueError for a date that is none.
    """
    due = deadline
    # An extension that ends before the deadline changes nothing.
    if extension is not None and (deadline is None or extension >= deadline):
        due = extension
    extended = extension is not None and due == extension
    timing = Timing(submitted, told_by, due.isoformat() if due else "", extended)
    if submitted and due:
        late_by = datetime.datetime.fromisoformat(submitted) - due
        seconds = math.ceil(late_by.total_seconds())
        if seconds > rule.grace * 60:
            return replace(timing, late=True, late_seconds=seconds)
        return timing
    if marked_late and not extended:
        return replace(timing, late=True)
    if timing == Timing():
        return None
    return timing


def late_by(timing: Timing | None, rule: LateRule, seconds: int, comment: str) -> Timing:
    """The timing of a submission of which a person says that it was so many seconds late.

    `timing` is what is known otherwise. The grace of the rule holds, and 0 is in time.
    """
    known = timing or Timing()
    is_late = seconds > rule.grace * 60
    return replace(
        known,
        told_by=A_PERSON,
        late=is_late,
        late_seconds=seconds if is_late else None,
        comment=comment,
    )


def is_undated(row: SubmissionRow) -> bool:
    """True if there is a deadline, and nobody knows whether the submission was late.

    Canvas says of every submission whether it was, though not when.
    """
    timing = row.timing
    if row.status is SubmissionStatus.ABSENT or timing is None or not timing.deadline:
        return False
    if timing.late or timing.submitted or timing.decided_by_hand:
        return False
    return row.naming != Naming.CANVAS


def with_published_points(
    row: SubmissionRow, timing: Timing | None, scale: float | None, rule: LateRule
) -> SubmissionRow:
    """A new row with its timing and grade: points on the scale of the course, less the penalty.

    `scale` is what the assignment is worth on the platform, None for what its exercises are worth.
    Where neither a scale nor a penalty changes the points, the row gets no grade.
    """
    penalized = timing is not None and timing.late and rule.costs_points
    if scale is None and not penalized:
        return replace(row, timing=timing)
    if scale is None:
        max_points = row.max_score
    else:
        max_points = scale
    points = 0.0
    if row.max_score:
        points = row.score * (max_points / row.max_score)
    if timing is not None and timing.late:
        lost = rule.points_lost(points, max_points, timing.late_seconds)
        points -= lost
        timing = replace(timing, penalty=round_half_up(lost))
    grade = Grade(round_half_up(points), sum_points([max_points]))
    return replace(row, timing=timing, grade=grade)
