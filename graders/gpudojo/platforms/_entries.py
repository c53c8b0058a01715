"""What exporters share: rows, their texts, file names, tables."""

from __future__ import annotations

import csv
import difflib
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from gpudojo.classes.names import name_key
from gpudojo.classes.store import write
from gpudojo.model import errors
from gpudojo.model.errors import CannotExport
from gpudojo.model.results import (
    CheckRow,
    ClassResults,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    Timing,
    When,
)
from gpudojo.model.results_file import encode_json, format_points
from gpudojo.platforms import Options

MILLION: Final = 1_000_000
LONGEST_LINE: Final = 300  # characters of a line of feedback
SUBMISSION: Final = "submission"  # the name of a row that stands for the whole submission


def parts(points: float) -> int:
    return round(points * MILLION)


def points(parts: int) -> float:
    return parts / MILLION


def published(header: ClassResults) -> float:
    """What a class is worth on the platform."""
    return header.max_score if header.scale is None else header.scale


@dataclass(frozen=True)
class VisibleRows:
    """Rows as students may see them at a time: without hints where the course does not show them yet.

    A student with an extension has a deadline of their own."""

    header: ClassResults
    rows: Iterable[SubmissionRow]
    now: datetime
    early: bool = True  # with the rows of students who should not see their results yet

    def __iter__(self) -> Iterator[SubmissionRow]:
        hints = self.header.visibility.hints
        for row in self.rows:
            if self.early or self.shown(row):
                yield row if self._shows(hints, row) else _without_hints(row)

    def shown(self, row: SubmissionRow) -> bool:
        """Whether the student may see the results."""
        return self._shows(self.header.visibility.results, row)

    def _shows(self, what: When, row: SubmissionRow) -> bool:
        own = (row.timing.deadline if row.timing else "") or self.header.deadline
        return self.header.visibility.shows(what, own, self.now)

    def held_back(self) -> str:
        """Whose results the course does not show yet, in a sentence; empty where it shows all."""
        counts = Counter(map(self.shown, self.rows))
        when = "never" if self.header.visibility.results == "never" else "after the deadline"
        whose = (
            f"; {counts[False]} of {counts.total()} students still have time"
            if counts[True]
            else ""
        )
        return f"the course shows results {when}{whose}" if counts[False] else ""


def _without_hints(row: SubmissionRow) -> SubmissionRow:
    replace = msgspec.structs.replace
    exercises = [
        replace(each, checks=[replace(check, hint="") for check in each.checks])
        for each in row.exercises
    ]
    return replace(row, exercises=exercises)


def chosen(rows: Iterable[SubmissionRow], options: Options) -> Iterator[SubmissionRow]:
    """The submissions to export."""
    return (row for row in rows if options.submission in (None, row.submission))


def whole(row: SubmissionRow, known: Iterable[ExerciseRow]) -> list[ExerciseRow]:
    """Its exercises, with those of the day that were not reached where their points are what is missing."""
    have = {exercise.exercise for exercise in row.exercises}
    missing = [each for each in known if each.exercise not in have]
    left = parts(row.max_score) - sum(
        parts(exercise.max_score) for exercise in row.exercises if not exercise.extra
    )
    if sum(parts(exercise.max_score) for exercise in missing) != left:
        return list(row.exercises)
    return sorted([*row.exercises, *missing], key=lambda exercise: exercise.exercise)


def of_exercise(exercise: ExerciseRow, row: SubmissionRow) -> list[CheckRow]:
    """The checks of an exercise, and one row more for points that no check accounts for.

    What a person graded is one row, and so is extra credit, whose maximum does not count."""
    if exercise.override or exercise.by_hand or exercise.extra:
        return [_by_hand(exercise)]
    left = parts(exercise.max_score) - sum(parts(check.max_points) for check in exercise.checks)
    more = [_left(exercise.exercise, row, left)] if left or not exercise.checks else []
    return [*exercise.checks, *more]


def of_submission(row: SubmissionRow, known: Iterable[ExerciseRow]) -> list[CheckRow]:
    """All rows of a submission, in the order of its exercises."""
    checks = [check for exercise in whole(row, known) for check in of_exercise(exercise, row)]
    left = parts(row.max_score) - sum(parts(check.max_points) for check in checks)
    told = any(kind(check, row) == row.status for check in checks)
    if left or not checks or (row.status is not SubmissionStatus.GRADED and not told):
        checks.append(_left(SUBMISSION, row, left))
    return checks


def _by_hand(exercise: ExerciseRow) -> CheckRow:
    worth = 0.0 if exercise.extra else exercise.max_score
    given = exercise.override
    said = (
        given.comment or "graded by hand."
        if given
        else "a person still has to grade this." * exercise.by_hand
    )
    good = exercise.score >= exercise.max_score
    outcome = Outcome.TODO if exercise.to_grade else Outcome.PASSED if good else Outcome.FAILED
    return CheckRow(
        exercise.exercise,
        "",
        outcome,
        exercise.score,
        worth,
        said,
        claim=exercise.heading,
        override=given,
    )


def exercise_of(check: CheckRow) -> str:
    """The exercise a row belongs to; empty where it stands for the whole submission."""
    return "" if check.id == SUBMISSION else check.id.partition("::")[0]


def kind(check: CheckRow, row: SubmissionRow) -> str:
    """The outcome of a check; of a row that stands for what was not graded, the submission's status."""
    graded = check.function or check.claim or row.status is SubmissionStatus.GRADED
    return check.outcome.value if graded else row.status.value


def good(check: CheckRow) -> bool:
    """Whether it costs the student nothing."""
    return check.outcome in (Outcome.PASSED, Outcome.ERROR)


def sentence(row: SubmissionRow) -> str:
    """Points and reason of a submission, for its student: never what only a teacher should read."""
    got = f"{format_points(row.final.points)} of {format_points(row.final.max_points)} points"
    if row.scaled and row.status is not SubmissionStatus.ABSENT:
        got += f" ({format_points(row.score)} of {format_points(row.max_score)} in the exercises)"
    return got if row.status is SubmissionStatus.GRADED else f"{got}: {_reason(row)}"


def lateness(row: SubmissionRow) -> str:
    """That a submission was late, by how much, and what that costs; empty where it was not."""
    timing = row.timing
    if timing is None or not timing.late:
        return ""
    span = late_by(timing)
    off = (
        f": {format_points(timing.penalty)} point{'s' * (timing.penalty != 1)} off"
        if timing.penalty
        else ""
    )
    return f"submitted late{span and ' by '}{span}{off}"


def late_by(timing: Timing) -> str:
    """3.5 days, 7.0 hours, 16 minutes, 1 second; empty where it is not known."""
    seconds = timing.late_seconds or 0
    hours = seconds / 3600
    if hours >= 1:
        return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
    count, unit = (seconds // 60, "minute") if seconds >= 60 else (seconds, "second")
    return f"{count} {unit}{'s' * (count != 1)}" if seconds else ""


def apart(row: SubmissionRow) -> str:
    """What a format that has only the points of the exercises leaves out: scale and lateness; empty where it is all."""
    late = lateness(row)
    return "; ".join(filter(None, [sentence(row), late])) if late or row.scaled else ""


def say_apart(rows: Iterable[SubmissionRow], options: Options) -> None:
    """Says how many have other points than those that such a format has."""
    every = other = 0
    for row in chosen(rows, options):
        if row.status is not SubmissionStatus.ABSENT:
            every += 1
            other += row.scaled
    if other:
        options.say(
            f"{other} of {every} submissions have other points in the course, for its scale or a penalty; "
            "this format has the points of the exercises."
        )


def told(row: SubmissionRow, known: Iterable[ExerciseRow]) -> list[str]:
    """What a student should read, in few lines: the points, and one line for each cause of points that are missing."""
    lines = [sentence(row)]
    if late := lateness(row):
        lines.append(f"{late[0].upper()}{late[1:]}.")
    if row.to_grade:
        lines.append(f"Still to be graded by hand: {', '.join(row.to_grade)}.")
    return [*lines, *root_causes(of_submission(row, known))]


def root_causes(checks: Iterable[CheckRow]) -> list[str]:
    """One line for each thing to fix: not one for each check that it fails or blocks."""
    failed: dict[tuple[str, str], list[CheckRow]] = {}
    blocked: list[CheckRow] = []
    other: dict[Outcome | None, dict[str, None]] = {}  # None: not handed in
    said = []
    for check in checks:
        function = check.id.rpartition("::")[0]
        if check.override is not None:
            most = (
                f" of {format_points(check.max_points)}" if check.max_points else ""
            )  # extra credit has no maximum
            given = f"{format_points(check.points)}{most} points, by hand. {check.override.comment}".rstrip()
            said.append(f"{name_of(check).rstrip('.')}: {given}")
        elif check.absent:
            guess = check.happened.partition("; ")[2]  # which other name may be meant
            other.setdefault(None, {})[
                f"{check.function} ({guess})" if guess else check.function
            ] = None
        elif check.outcome is Outcome.FAILED and check.function:
            cause = check.misconception or placed(check) or check.message
            failed.setdefault((function, cause), []).append(check)
        elif check.outcome is Outcome.BLOCKED:
            blocked.append(check)
        elif check.outcome in (Outcome.TODO, Outcome.ERROR) and (
            check.function or not check.claim
        ):  # not by hand
            other.setdefault(check.outcome, {})[check.function or check.claim or check.id] = None
    for check in blocked:  # costs what the check costs that it waits for, or the first that failed
        own = [
            same
            for (function, _), same in failed.items()
            if function == check.id.rpartition("::")[0]
        ]
        wanted = (
            same for same in own if any(each.id.endswith(f"::{check.blocked_by}") for each in same)
        )
        if cause_of := next(wanted, next(iter(own), None)):
            cause_of.append(check)
    for same in failed.values():
        first = next(
            (check for check in same if check.line and check.outcome is Outcome.FAILED), same[0]
        )
        missing = points(sum(parts(check.max_points) - parts(check.points) for check in same))
        place = f" ({placed(first)})" if placed(first) else ""
        lost = f"[-{format_points(missing)} point{'s' * (missing != 1)}]"
        said.append(f"{_where(first)}: {_short(first.message or first.claim)}{place} {lost}")
    if None in other:
        said.append(f"Not handed in: {', '.join(other[None])}.")
    if Outcome.TODO in other:
        said.append(f"To do: {', '.join(other[Outcome.TODO])}.")
    if Outcome.ERROR in other:
        said.append(
            f"Not judged, without loss of points: {', '.join(other[Outcome.ERROR])}. Please report it."
        )
    return [one_line(line) for line in said]


def _short(text: str) -> str:
    first = one_line(text)
    return first if len(first) <= LONGEST_LINE else f"{first[: LONGEST_LINE - 1]}…"


def _where(check: CheckRow) -> str:
    """04 train_epoch."""
    number_ = exercise_of(check).partition("_")[0]
    shown = number_ if number_.isdigit() else exercise_of(check)
    return " ".join(part for part in (shown, check.function) if part)


def name_of(check: CheckRow) -> str:
    """What a check claims, for people: "04 train_epoch: The loss falls."; its id where it claims nothing."""
    claim = check.claim.replace("`", "")
    where = _where(check) if check.function else ""
    return (
        one_line(f"{where}: {claim}" if where else claim)
        if claim
        else one_line(check.id) or SUBMISSION
    )


def verdict(row: SubmissionRow, checks: list[CheckRow]) -> str:
    """pass, fail or error (gpudojo's), as several formats call them."""
    if row.status is not SubmissionStatus.GRADED or not all(map(good, checks)):
        return "fail"
    return "error" if any(check.outcome is Outcome.ERROR for check in checks) else "pass"


def printable(text: str) -> str:
    """The text without characters that neither XML nor a terminal should get; its lines stay."""
    return errors.printable_text(text, keep="\t\n\r", instead="\N{REPLACEMENT CHARACTER}")


def one_line(text: str) -> str:
    """A name or message on one line, as it may be printed anywhere."""
    return printable(" ".join(text.split()))


def _reason(row: SubmissionRow) -> str:
    if row.status is SubmissionStatus.ABSENT and not row.reason:
        return "nothing was handed in."
    return row.reason or f"this submission was not graded: {row.status.value}."


def _left(name: str, row: SubmissionRow, left: int) -> CheckRow:
    """Stands for points that no check of a submission accounts for; it has no function."""
    if row.status is not SubmissionStatus.GRADED:
        outcome = Outcome.FAILED
        reason = _reason(row)
    elif left:
        outcome = Outcome.TODO
        reason = "nothing that earns these points was graded."
    else:
        outcome = Outcome.PASSED
        reason = ""
    return CheckRow(name, "", outcome, 0.0, points(left), reason)


def placed(check: CheckRow) -> str:
    """Which line a check points to; empty where it is not known."""
    cell = f"code cell {check.cell}, " if check.cell else ""
    return f"{cell}line {check.line}" if check.line else ""


def text_of(check: CheckRow) -> str:
    """All there is to say of a row, on several lines, printable."""
    if check.override is not None:
        return printable(f"graded by hand. {check.override.comment}".strip())
    if check.outcome is not Outcome.FAILED or not check.function:
        return printable(check.message)
    labelled = {
        "happened": check.happened or check.message,
        "expected": check.expected,
        "where": ", ".join(part for part in (check.file, placed(check)) if part),
        "mistake": check.why,
        "hint": check.hint,
    }
    return printable("\n".join(f"{label}: {text}" for label, text in labelled.items() if text))


FORBIDDEN: Final = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
RESERVED: Final = re.compile(
    r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE
)
LONGEST: Final = 120  # bytes; a name may have 255 with its endings


def safe_name(name: str) -> str:
    """A file name as close to the given one as Linux, macOS and Windows allow."""
    text = FORBIDDEN.sub("_", unicodedata.normalize("NFC", name)).strip()
    text = text.encode("utf-8")[:LONGEST].decode("utf-8", "ignore").rstrip(". ")
    if not text or text.startswith((".", "-", "~")) or RESERVED.fullmatch(text):
        text = f"_{text}"
    return text


def new_name(wanted: str, taken: set[str]) -> str:
    """A safe name like none in `taken`, even where upper and lower case are one; it is in `taken` then."""
    first = name = safe_name(wanted)
    number = 1
    while (folded := unicodedata.normalize("NFC", name.casefold())) in taken:
        number += 1
        name = f"{first}-{number}"
    taken.add(folded)
    return name


def names(rows: Iterable[SubmissionRow]) -> list[str]:
    """A name for each submission of a class."""
    taken: set[str] = set()
    return [new_name(row.submission, taken) for row in rows]


@dataclass(frozen=True)
class Entry:
    """A submission to export."""

    row: SubmissionRow
    checks: list[CheckRow]  # all of its rows, which add up to its points
    name: str  # for a file
    folder: Path  # its own; the target itself when it was asked for alone, because there programs look for it


def entries(rows: Iterable[SubmissionRow], target: Path, options: Options) -> Iterator[Entry]:
    """The submissions to export; a name does not depend on what is chosen."""
    for name, row in zip(names(rows), rows, strict=True):
        if options.submission in (None, row.submission):
            folder = target / name if options.submission is None else target
            yield Entry(row, of_submission(row, options.exercises), name, folder)


def submission_named(name: str, rows: Iterable[SubmissionRow], file: Path) -> str:
    """The submission of this name, or of the one student with this name, id or address; raises BadClass."""
    called = {row.submission: _called(row) for row in rows}
    if name in called:
        return name
    wanted = name_key(name)
    found = [one for one, names in called.items() if wanted in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise errors.BadClass(f"{len(found)} students are called {name!r}: {', '.join(found)}")
    near = [one for one, names in called.items() if any(wanted in each for each in names)][:3]
    near = near or difflib.get_close_matches(name, list(called), 3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise errors.BadClass(f"{file} has no submission {name!r}{hint}")


def _called(row: SubmissionRow) -> set[str]:
    listed = row.roster
    own = (listed.id, listed.name, listed.email, listed.github, listed.login) if listed else ()
    return {
        name_key(each) for each in (row.submission, row.student or "", row.identifier or "", *own)
    } - {""}


def save(path: Path, text: str) -> Path:
    write(path, text.encode("utf-8", "backslashreplace"), lasting=False)
    return path


def save_json(path: Path, value: Any) -> Path:
    return save(path, msgspec.json.format(encode_json(value), indent=1).decode() + "\n")


def save_csv(
    path: Path, rows: Iterable[Sequence[str]], delimiter: str = ",", mark: str = ""
) -> Path:
    """A table; `mark` is a byte order mark that stood in the file it was made from."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return save(path, mark + text.getvalue())


MARK: Final = "\ufeff"
DELIMITERS: Final = (",", ";", "\t")


@dataclass(frozen=True)
class Table:
    """A CSV file: what it holds, and how it was written."""

    headings: list[str]
    rows: list[list[str]]
    delimiter: str
    mark: str  # a byte order mark, or nothing


def read_table(path: Path, format_: str) -> Table:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CannotExport(format_, f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CannotExport(
            format_, f"{path} is not UTF-8 text; download it as CSV and do not edit it"
        ) from error
    mark = MARK if text.startswith(MARK) else ""
    text = text.removeprefix(MARK)
    if "\0" in text:
        raise CannotExport(format_, f"{path} is not a table; download it as CSV, not as a workbook")
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=lambda each: len(next(csv.reader([first], delimiter=each), [])))
    try:
        lines = [
            line
            for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            if any(line)
        ]
    except csv.Error as error:
        raise CannotExport(format_, f"{path} is not a table: {error}") from error
    if not lines:
        raise CannotExport(format_, f"{path} is empty")
    width = max(len(line) for line in lines)
    padded = [line + [""] * (width - len(line)) for line in lines]
    return Table(padded[0], padded[1:], delimiter, mark)


def worksheet(path: Path) -> tuple[Table, dict[int, tuple[str, str]]]:
    """A grading worksheet of Moodle, and the id and name in each of its lines."""
    table = read_table(path, "moodle")
    # The number at the end of `Participant 1234567`, in whatever language.
    ids = [found[1] for line in table.rows if (found := re.search(r"([0-9]+)\s*$", line[0]))]
    if not ids or len(ids) != len(table.rows):
        said = f"the first column of {path} does not hold Moodle's identifiers, such as Participant 1234; "
        raise CannotExport(
            "moodle", f'{said}download the assignment\'s "grading worksheet" from Moodle'
        )
    return table, {
        place: (id_, line[1]) for place, (id_, line) in enumerate(zip(ids, table.rows, strict=True))
    }


def plain(name: str) -> str:
    """A name without accents, case, spaces and punctuation, which platforms change in names of files."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in letters if letter.isalnum())


def spellings(name: str) -> set[str]:
    """The ways in which files name a person: `Lovelace, Ada`, `Ada Lovelace`, `lovelaceada`."""
    words = name.replace(",", " ").split()
    turns = [words[turn:] + words[:turn] for turn in range(len(words))]
    return {plain(name), *(plain("".join(turn)) for turn in turns)} - {""}


def identified(row: SubmissionRow, platform: str) -> str | None:
    """The platform's own id of the student; another platform's number would be somebody else there."""
    return row.identifier if row.identifier and platform in (row.naming or "").lower() else None


def ids_on(platform: str, rows: Iterable[SubmissionRow]) -> Callable[[SubmissionRow], str]:
    """Gives the platform's own id of a student; empty where it is not known.

    It is in the names of files, and on the roster where those ids are the same ones."""
    on_roster = any(row.roster and row.roster.id == identified(row, platform) for row in rows)
    return lambda row: (
        identified(row, platform) or (row.roster.id if on_roster and row.roster else "")
    )


def people(
    rows: Mapping[int, tuple[str, str]],
    submissions: Iterable[SubmissionRow],
    platform: str,
    say: Callable[[str], None],
) -> Iterator[tuple[int, SubmissionRow]]:
    """Which line of the table each submission belongs to: by the platform's id, without one by the name.

    `rows` gives a line's id and name. A submission that matches no line, or several, is left out with a message.
    """
    by_id: dict[str, set[int]] = {}
    by_name: dict[str, set[int]] = {}
    for place, (id_, name) in rows.items():
        by_id.setdefault(id_, set()).add(place)
        for spelling in spellings(name):
            by_name.setdefault(spelling, set()).add(place)
    found: dict[int, str] = {}
    absent = 0
    for submission in submissions:
        if submission.status is SubmissionStatus.ABSENT and not submission.overrides:
            absent += 1
            continue
        own = identified(submission, platform)
        listed = submission.roster.name if submission.roster else ""
        wanted = {plain(submission.student or ""), plain(submission.submission), plain(listed)} - {
            ""
        }
        lines = (
            by_id.get(own, set())
            if own
            else set().union(*(by_name.get(name, set()) for name in wanted))
        )
        if (
            len(lines) > 1 and submission.roster
        ):  # the roster may be the same table, and tell two of one name apart
            lines = lines & by_id.get(submission.roster.id, set()) or lines
        if len(lines) != 1:
            fits = "nobody" if not lines else f"{len(lines)} people"
            say(f"{submission.submission!r} matches {fits} in the table and is left out.")
            continue
        (line,) = lines
        if line in found:
            say(
                f"{submission.submission!r} is from the same person as {found[line]!r} and is left out."
            )
            continue
        found[line] = submission.submission
        yield line, submission
    if absent:
        say(
            f"{absent} on the roster handed in nothing; what the table has for them is left as it is."
        )


def value(cell: str) -> float | None:
    """A number as the platform wrote it, with a decimal point or comma."""
    try:
        return float(cell.strip().replace(",", "."))
    except ValueError:
        return None
