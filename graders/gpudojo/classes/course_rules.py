"""The rules of a course: what counts, when it is due, who works together."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from gpudojo.classes import lateness
from gpudojo.classes.lateness import NO_PENALTY, LateRule
from gpudojo.classes.names import name_key
from gpudojo.model.errors import BadFile, suggest_name
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import (
    AttemptRule,
    ExerciseRow,
    HandItem,
    SubmissionRow,
    Timing,
    Visibility,
    round_points,
    sum_points,
)
from gpudojo.model.toml_mistakes import line_of_setting

SeedRule = Literal["per-submission", "per-class", "per-student"]
ALL_VISIBLE: Final = Visibility()


class Worth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an exercise counts."""

    points: float | None = None  # None: those of its checks
    extra: bool = False


class UselessExtension(NamedTuple):
    """An extension that ends before the deadline: for whom, and a sentence about it."""

    who: str
    sentence: str


@dataclass(frozen=True)
class CourseRules:
    """The rules of a course; without a file, those that change nothing."""

    path: Path | None = None
    title: str = ""
    day: str | None = None
    points: float | None = None
    deadline: datetime.datetime | None = None
    zone: datetime.tzinfo = datetime.UTC
    attempt: AttemptRule | None = None
    seed: SeedRule = "per-submission"
    rosters: tuple[Path, ...] = ()  # files that complete each other
    # By what the file calls the exercise; empty if all exercises count.
    worths: Mapping[str, Worth] = field(default_factory=dict)
    late: LateRule = NO_PENALTY
    extensions: Mapping[str, datetime.datetime] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    visibility: Visibility = ALL_VISIBLE
    by_hand: tuple[HandItem, ...] = ()
    hand_in: str = ""  # how, for students
    text: str = ""

    def bad_setting(self, reason: str, *setting: str) -> BadFile:
        """The error to raise for a setting, such as `"late", "cap"`, with its line.

        Raises nothing.
        """
        return BadFile(str(self.path), line_of_setting(self.text, setting), reason)

    def worth_by_exercise(self, exercises: Sequence[Exercise]) -> dict[str, Worth]:
        """By stem, what each exercise counts that is graded.

        Raises BadFile for a name that is no exercise or is used twice, and for an item graded by
        hand that has the name of an exercise.
        """
        stems = [exercise.stem for exercise in exercises]
        worth_by_stem: dict[str, Worth] = {}
        for name, worth in self.worths.items():
            stem = find_exercise(name, stems)
            if stem is None:
                hint = suggest_name(name, stems)
                raise self.bad_setting(f"there is no exercise {name!r}{hint}", "exercises", name)
            if stem in worth_by_stem:
                raise self.bad_setting(f"the exercise {stem} is listed twice", "exercises", name)
            worth_by_stem[stem] = worth
        for number, item in enumerate(self.by_hand):
            if find_exercise(item.name, stems):
                raise self.bad_setting(
                    f"{item.name!r} is the name of an exercise", "by_hand", str(number), "name"
                )
        return worth_by_stem or dict.fromkeys(stems, Worth())

    @property
    def rows_by_hand(self) -> list[ExerciseRow]:
        """What people grade, without any points yet."""
        rows = []
        for item in self.by_hand:
            row = ExerciseRow(
                item.name,
                item.title,
                0.0,
                item.points,
                extra=item.extra,
                by_hand=True,
                rubric=item.rubric_rows,
            )
            rows.append(row)
        return rows

    def useless_extensions(self) -> list[UselessExtension]:
        """The extensions that end before the deadline."""
        if self.deadline is None:
            return []
        useless = []
        for who, end in self.extensions.items():
            if end < self.deadline:
                sentence = (
                    f"the extension of {who!r} ends {end:%Y-%m-%d %H:%M %Z}, before the deadline, "
                    f"{self.deadline:%Y-%m-%d %H:%M %Z}, which holds"
                )
                useless.append(UselessExtension(who, sentence))
        return useless

    def timing_of(
        self, submitted: str, told_by: str, marked_late: bool, names: Collection[str]
    ) -> Timing | None:
        """When a student with these names handed in, and whether that was late; None if unknown.

        `submitted` is the time in ISO 8601, or empty; `told_by` is who says so. Where time or
        deadline is not known, `marked_late`, what the platform says, decides, unless there is an
        extension. The first one for one of the names is used, which are as `name_key` makes them.
        """
        extension = None
        for who, end in self.extensions.items():
            if name_key(who) in names:
                extension = end
                break
        return lateness.timing_of(
            self.late, self.deadline, extension, submitted, told_by, marked_late
        )

    def with_published_points(self, row: SubmissionRow, timing: Timing | None) -> SubmissionRow:
        """The row with its timing and grade; see `lateness.with_published_points`."""
        return lateness.with_published_points(row, timing, self.points, self.late)


def find_exercise(name: str, stems: Iterable[str]) -> str | None:
    """The exercise of a stem, or of a number: `04_…` for 04, 4 or 04_….

    Returns None for no exercise.
    """
    number = name.lstrip("0") or "0"
    for stem in stems:
        number_of_stem = stem.partition("_")[0].lstrip("0") or "0"
        if name == stem or number == number_of_stem:
            return stem
    return None


def weigh_exercise(exercise: ExerciseRow, worth: Worth, points_of_checks: float) -> ExerciseRow:
    """A new row of the exercise, with its points as they count in the course.

    `points_of_checks` is what all checks of the exercise are worth, graded or not. The points of
    checks are rounded together. Extra credit is marked.
    """
    if worth.points is None or not points_of_checks:
        if worth.extra:
            return replace(exercise, extra=True)
        return exercise
    factor = worth.points / points_of_checks
    max_points = round_points([check.max_points * factor for check in exercise.checks])
    checks = []
    for check, most in zip(exercise.checks, max_points, strict=True):
        points = 0.0
        if check.points == check.max_points:
            points = most
        checks.append(replace(check, max_points=most, points=points))
    if checks:
        max_score = sum_points(max_points)
    else:
        max_score = sum_points([exercise.max_score * factor])
    score = sum_points(check.points for check in checks)
    return replace(exercise, checks=checks, score=score, max_score=max_score, extra=worth.extra)
