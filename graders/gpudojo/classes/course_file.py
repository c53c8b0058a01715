"""The course file, `course.toml`: where it is, what it may say, and one to begin with."""

from __future__ import annotations

import datetime
import math
import zoneinfo
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpudojo.classes.course_rules import CourseRules, SeedRule, Worth
from gpudojo.classes.lateness import LateRule
from gpudojo.classes.names import name_key
from gpudojo.model.catalogue import day_names
from gpudojo.model.errors import suggest_name
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import (
    AttemptRule,
    HandItem,
    RubricLine,
    Visibility,
    name_of_rubric_line,
    sum_points,
)
from gpudojo.model.results_csv import HEADINGS
from gpudojo.model.results_file import format_points, replacing_file
from gpudojo.model.toml_mistakes import convert_setting, parse_toml
from gpudojo.submissions.listing import COURSE_FILE, is_submission

FILE_NAME: Final = COURSE_FILE
TEMPLATE: Final = Path(__file__).with_name("course_template.toml")
YEARS: Final = range(2000, 3000)
MOST_DAYS: Final = 1000  # of an extension
_Kind = TypeVar("_Kind")
LEAST_POINTS: Final = 0.01
MOST_POINTS: Final = 1_000_000


class _HandItemInFile(HandItem, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An entry of `[[by_hand]]`: a setting that is not known is a mistake."""


class _VisibilityInFile(Visibility, frozen=True, forbid_unknown_fields=True):
    """The table `[visibility]`: a setting that is not known is a mistake."""


class _CourseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it is written. Tables with free names are checked entry by entry."""

    title: str = ""
    day: str | None = None
    points: float | None = None
    deadline: datetime.datetime | None = None
    time_zone: str = ""
    attempt: AttemptRule | None = None
    seed: SeedRule = "per-submission"
    roster: str | list[str] = ""  # or several, which complete each other
    exercises: dict[str, Any] = {}
    late: LateRule = LateRule()
    extensions: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    visibility: _VisibilityInFile = _VisibilityInFile()
    by_hand: list[_HandItemInFile] = []
    hand_in: str = ""


def find_course_file(submissions: Sequence[Path]) -> Path | None:
    """The course file beside submissions: in the folder of the class, or in one of two above.

    Returns None where there is none. One in a student's own folder is never used.
    """
    for path in submissions:
        given = path.absolute()
        folders = [given, given.parent, given.parent.parent]
        if given.is_file():
            folders.remove(given)
        for folder in folders:
            course_file = folder / FILE_NAME
            # The folder above a student's may be a checkout that holds it: then it is the
            # student's, too.
            if course_file.is_file() and not is_submission(folder):
                return course_file
    return None


def load_course(path: Path) -> CourseRules:
    """The rules in a course file. Raises BadFile with the line and a suggestion."""
    tables, text = parse_toml(path)
    settings = convert_setting(path, text, tables, _CourseSettings)
    return _CourseReader(path, text, settings).make_rules()


class _CourseReader:
    """Makes rules of the settings in a file. Every step raises BadFile for a bad setting.

    `zone` and `deadline` are set by `make_rules`, before the steps that need them.
    """

    def __init__(self, path: Path, text: str, settings: _CourseSettings) -> None:
        self.path = path
        self.text = text
        self.settings = settings
        self.bad_setting = CourseRules(path, text=text).bad_setting

    def _convert_value(self, value: Any, kind: type[_Kind], *setting: str) -> _Kind:
        """The value of a setting as `kind`. Raises BadFile with its line."""
        return convert_setting(self.path, self.text, value, kind, *setting)

    def make_rules(self) -> CourseRules:
        """The rules of the course. Raises BadFile for the first bad setting.

        Sets `zone` and `deadline` first, which other steps need.
        """
        settings = self.settings
        visibility = settings.visibility
        self._check_day()
        # The zone first: dates without one are in it.
        self.zone = self._read_zone()
        self.deadline = self._read_deadline()
        worths = self._read_worths()
        extensions = self._read_extensions()
        groups = self._read_groups()
        if settings.points is not None:
            self._check_points(settings.points, f", not {settings.points:g}", "points")
        self._check_visibility()
        self._check_late_rule()
        by_hand = self._read_items_by_hand()
        return CourseRules(
            path=self.path,
            title=settings.title,
            day=settings.day,
            points=settings.points,
            deadline=self.deadline,
            zone=self.zone,
            attempt=settings.attempt,
            seed=settings.seed,
            rosters=self._read_roster_paths(),
            worths=worths,
            late=settings.late,
            extensions=extensions,
            groups=groups,
            visibility=Visibility(visibility.results, visibility.hints),
            by_hand=by_hand,
            hand_in=settings.hand_in.strip(),
            text=self.text,
        )

    def _check_day(self) -> None:
        """Raises BadFile for a day that is not installed."""
        day = self.settings.day
        if day is not None and day not in day_names():
            hint = suggest_name(day, day_names())
            raise self.bad_setting(f"there is no day {day!r}{hint}", "day")

    def _read_zone(self) -> datetime.tzinfo:
        """The time zone: the one that is named, that of the deadline, or UTC. Raises BadFile."""
        name = self.settings.time_zone
        if name:
            try:
                return zoneinfo.ZoneInfo(name)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
                hint = suggest_name(name, zoneinfo.available_timezones())
                reason = f"there is no time zone {name!r}{hint}"
                raise self.bad_setting(reason, "time_zone") from None
        deadline = self.settings.deadline
        if deadline is None or deadline.tzinfo is None:
            return datetime.UTC
        return deadline.tzinfo

    def _read_deadline(self) -> datetime.datetime | None:
        """The deadline with its time zone, or None. Raises BadFile for a bad time."""
        if self.settings.deadline is None:
            return None
        return self._with_zone(self.settings.deadline, "deadline")

    def _with_zone(self, date: datetime.datetime, *setting: str) -> datetime.datetime:
        """The date of a setting, with a time zone.

        Raises BadFile where the year is out of range, no zone is named, or clocks in the zone show
        this time never or twice.
        """
        zone_name = self.settings.time_zone
        if date.year not in YEARS:
            reason = f"the year must be from {YEARS[0]} to {YEARS[-1]}, not {date.year}"
            raise self.bad_setting(reason, *setting)
        if date.tzinfo is not None:
            if not zone_name:
                return date
            # In the zone that is named: days of an extension may include a change of clocks.
            return date.astimezone(self.zone)
        if not zone_name:
            raise self.bad_setting(
                f"a time zone is missing: write {date.isoformat()}+01:00, "
                'or set time_zone = "Europe/Berlin"',
                *setting,
            )
        local = date.replace(tzinfo=self.zone)
        reason = self._doubt_about_time(local)
        if reason:
            raise self.bad_setting(reason, *setting)
        return local

    def _doubt_about_time(self, local: datetime.datetime) -> str:
        """Why a time in the zone is not one time: clocks are changed then. Empty for most.

        The hour that is left out in spring is no time, and the hour in autumn is two.
        """
        zone_name = self.settings.time_zone
        in_utc = local.astimezone(datetime.UTC)
        there_and_back = in_utc.astimezone(self.zone)
        shown = there_and_back.replace(tzinfo=None)
        written = local.replace(tzinfo=None)
        if shown != written:
            return f"there is no such time in {zone_name}: clocks are set forward then"
        second = local.replace(fold=1)
        if local.utcoffset() == second.utcoffset():
            return ""
        return (
            f"this time comes twice in {zone_name}: "
            f"write {local.isoformat()} or {second.isoformat()}"
        )

    def _read_worths(self) -> dict[str, Worth]:
        """What exercises count, by name: `true`, points, or a table. Raises BadFile."""
        worths = {}
        for name, value in self.settings.exercises.items():
            worths[name] = self._read_worth(name, value)
        if worths and not self._something_counts(worths):
            raise self.bad_setting("all of it is extra credit; something has to count", "exercises")
        return worths

    def _something_counts(self, worths: Mapping[str, Worth]) -> bool:
        """True if an exercise, or an item with points that people grade, is no extra credit.

        `worths` are those of the exercises, by name.
        """
        for worth in worths.values():
            if not worth.extra:
                return True
        return any(item.points and not item.extra for item in self.settings.by_hand)

    def _read_worth(self, name: str, value: Any) -> Worth:
        """What one exercise counts.

        `true` stands for the points of the exercise itself, a number for other points. Raises
        BadFile for another value, and for points that are out of range.
        """
        setting = ("exercises", name)
        if value is True:
            value = {}
        elif isinstance(value, int | float):
            value = {"points": value}
        worth = self._convert_value(value, Worth, *setting)
        if worth.points is not None:
            hint = "; leave an exercise out that does not count"
            self._check_points(worth.points, hint, *setting)
        return worth

    def _check_points(self, points: float, hint: str, *setting: str) -> None:
        """Raise BadFile for points that are out of range. `hint` is for 0 and less."""
        if not points > 0:
            raise self.bad_setting(f"points must be more than 0{hint}", *setting)
        if not LEAST_POINTS <= points <= MOST_POINTS:
            reason = f"points must be from {LEAST_POINTS:g} to {MOST_POINTS:,}, not {points:g}"
            raise self.bad_setting(reason, *setting)

    def _read_extensions(self) -> dict[str, datetime.datetime]:
        """When extensions end, by student, as the file writes the name.

        Two spellings of one name are the same name. Raises BadFile for a name that is missing or
        used twice, and for a bad value.
        """
        ends: dict[str, datetime.datetime] = {}
        listed = set()
        for who, value in self.settings.extensions.items():
            key = name_key(who)
            if not key:
                raise self.bad_setting("a name is missing", "extensions", who)
            if key in listed:
                raise self.bad_setting(f"{who!r} is listed twice", "extensions", who)
            listed.add(key)
            ends[who] = self._read_extension(who, value)
        return ends

    def _read_extension(self, who: str, value: Any) -> datetime.datetime:
        """When the extension of one student ends: days after the deadline, or a date.

        Raises BadFile for another value, and for days without a deadline.
        """
        setting = ("extensions", who)
        in_days = isinstance(value, int | float) and not isinstance(value, bool)
        if not in_days:
            date = self._convert_value(value, datetime.datetime, *setting)
            return self._with_zone(date, *setting)
        if self.deadline is None:
            raise self.bad_setting("an extension in days needs a deadline", *setting)
        if not 0 <= value <= MOST_DAYS:
            reason = f"an extension is from 0 to {MOST_DAYS} days, not {value:g}"
            raise self.bad_setting(reason, *setting)
        return self.deadline + datetime.timedelta(days=value)

    def _read_groups(self) -> dict[str, tuple[str, ...]]:
        """The members of groups, by the name of the group.

        Raises BadFile where somebody is in two, or twice in one, or a name is missing.
        """
        groups: dict[str, tuple[str, ...]] = {}
        group_of: dict[str, str] = {}
        for group, value in self.settings.groups.items():
            members = self._convert_value(value, list[str], "groups", group)
            for member in members:
                key = name_key(member)
                reason = _doubt_about_member(member, group, group_of.get(key))
                if reason:
                    raise self.bad_setting(reason, "groups", group)
                group_of[key] = group
            groups[group] = tuple(members)
        return groups

    def _check_visibility(self) -> None:
        """Raises BadFile for "after deadline" without a deadline."""
        visibility = self.settings.visibility
        settings = {"results": visibility.results, "hints": visibility.hints}
        for name, when in settings.items():
            if when == "after deadline" and self.deadline is None:
                reason = '"after deadline" needs a deadline'
                raise self.bad_setting(reason, "visibility", name)

    def _check_late_rule(self) -> None:
        """Raises BadFile for percents and minutes that are out of range.

        Penalty and cap are percents of the points; grace may be as long as one likes.
        """
        late = self.settings.late
        for name, value in msgspec.structs.asdict(late).items():
            if isinstance(value, float) and not 0 <= value < math.inf:
                reason = f"{name} must be 0 or more, not {value:g}"
                raise self.bad_setting(reason, "late", name)
        for name in ("penalty", "cap"):
            percent = getattr(late, name)
            if percent > 100:
                reason = f"{name} is in percent, at most 100, not {percent:g}"
                raise self.bad_setting(reason, "late", name)

    def _read_items_by_hand(self) -> tuple[HandItem, ...]:
        """What people grade; without a title, by its name.

        A name must be there, be new, and be no column of results.csv. Raises BadFile for another
        name, for points that are out of range, and for a rubric whose points do not add up.
        """
        items = []
        names: set[str] = set()
        for number, item in enumerate(self.settings.by_hand):
            setting = ("by_hand", str(number))
            reason = _doubt_about_name(item.name, names)
            if reason:
                raise self.bad_setting(reason, *setting, "name")
            names.add(name_key(item.name))
            if item.points:
                self._check_points(item.points, "", *setting, "points")
            if isinstance(item.rubric, list):
                self._check_rubric(item, setting)
            item_with_title = HandItem(
                name=item.name,
                points=item.points,
                title=item.title or item.name,
                rubric=item.rubric,
                extra=item.extra,
            )
            items.append(item_with_title)
        return tuple(items)

    def _check_rubric(self, item: HandItem, setting: tuple[str, str]) -> None:
        """Raises BadFile unless lines of a rubric have their own texts, and points that add up."""
        points = [line.points for line in item.rubric if isinstance(line, RubricLine)]
        together = sum_points(points)
        if not all(points) or together != item.points:
            reason = (
                f"the lines of the rubric are worth {format_points(together)} points together, and "
                f"the item {format_points(item.points)}; each line needs points, and together they "
                "must be those of the item"
            )
            raise self.bad_setting(reason, *setting, "rubric")
        names: set[str] = set()
        for line in item.rubric_rows:
            name = name_of_rubric_line("", line.text)
            if name in names or name.strip(":0123456789") == "":
                reason = (
                    "points belong to the text of a line of the rubric, and the text "
                    f"{line.text!r} does not tell one line; give each a text of its own, in words"
                )
                raise self.bad_setting(reason, *setting, "rubric")
            names.add(name)

    def _read_roster_paths(self) -> tuple[Path, ...]:
        """The paths of the roster's files, which are relative to the course file; none without one.

        Raises BadFile where there is no such file.
        """
        names = self.settings.roster
        if isinstance(names, str):
            names = [names]
        paths = []
        for name in names:
            if not name:
                continue
            path = self.path.parent / name
            if not path.is_file():
                near = [table.name for table in self.path.parent.glob("*.csv")]
                hint = suggest_name(name, near)
                raise self.bad_setting(f"there is no file {path}{hint}", "roster")
            paths.append(path)
        return tuple(paths)


def _doubt_about_member(member: str, group: str, other: str | None) -> str:
    """Why somebody cannot be in a group. Empty where they can.

    `other` is the group that has the name already; None if no group has it.
    """
    if not name_key(member):
        return "a name is missing"
    if other is None:
        return ""
    if other == group:
        return f"{member!r} is listed twice"
    return f"{member!r} is in the group {other}, too"


def _doubt_about_name(name: str, used: Collection[str]) -> str:
    """Why an item that people grade cannot have a name. Empty where it can.

    `used` are the keys of names that others have.
    """
    key = name_key(name)
    if not key or "::" in name:
        return "an item needs a name without ::, such as report"
    if key in HEADINGS:
        return f"{name!r} is a column of results.csv; choose another name"
    if key in used:
        return f"two items have the name {name!r}"
    return ""


def write_template(path: Path, day: str, exercises: Sequence[Exercise]) -> None:
    """Write a course file in which nothing is set yet. Raises OSError."""
    with replacing_file(path) as file:
        file.write(template_text(day, exercises).encode())


def template_text(day: str, exercises: Sequence[Exercise]) -> str:
    """A course file in which nothing is set yet, and every setting is shown.

    Each exercise is listed with its points, as a comment. Raises OSError if the template of this
    package cannot be read.
    """
    points_by_stem = {}
    for exercise in exercises:
        points = [function.points for function in exercise.functions]
        points_by_stem[exercise.stem] = sum_points(points)
    longest = max(map(len, points_by_stem), default=0)
    width = longest + len('""')
    lines = []
    for stem, worth in points_by_stem.items():
        quoted = f'"{stem}"'.ljust(width)
        lines.append(f"# {quoted} = {worth:g}")
    total = sum_points(points_by_stem.values())
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.format(day=day, total=total, exercises="\n".join(lines))
