"""What students read about a submission on other platforms: points, lateness, causes, messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpudojo.model import errors
from gpudojo.model.results import (
    CheckRow,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    Timing,
)
from gpudojo.model.results_file import count_and_noun, format_points
from gpudojo.platforms import Options
from gpudojo.platforms._rows import (
    SUBMISSION,
    chosen_rows,
    describe_rubric,
    exercise_of,
    in_millionths,
    points_of,
    rows_of_submission,
    status_reason,
)

LONGEST_LINE: Final = 300  # characters of a line of feedback
BARS: Final = frozenset("█▏░")  # what bars are drawn with
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


def printable_lines(text: str) -> str:
    """Return the text without characters that neither XML nor a terminal should get.

    Its lines stay.
    """
    return errors.printable_text(text, keep="\t\n\r", instead="\N{REPLACEMENT CHARACTER}")


def one_line(text: str) -> str:
    """Return a name or message on one line, as it may be printed anywhere.

    Lines of several that are bars of a chart are left out: they say nothing beside each other.
    """
    lines = text.splitlines()
    if len(lines) > 1:
        text = " ".join(line for line in lines if BARS.isdisjoint(line))
    return printable_lines(" ".join(text.split()))


def join_texts(separator: str, *texts: str) -> str:
    """Join the texts that are not empty."""
    return separator.join(text for text in texts if text)


def points_of_maximum(points: float, maximum: float) -> str:
    """Return "2.5 of 5"."""
    return f"{format_points(points)} of {format_points(maximum)}"


def points_and_reason(row: SubmissionRow) -> str:
    """Return the points of a submission, and the reason where it was not graded.

    It is for the student: nothing that only a teacher should read is in it.
    """
    text = f"{points_of_maximum(row.final.points, row.final.max_points)} points"
    if row.scaled and row.status is not SubmissionStatus.ABSENT:
        text += f" ({points_of_maximum(row.score, row.max_score)} in the exercises)"
    if row.status is SubmissionStatus.GRADED:
        return text
    return f"{text}: {status_reason(row)}"


def describe_lateness(row: SubmissionRow) -> str:
    """Say how late a submission was and what that costs, or that a person counts it as in time.

    The person's comment is there, too. Empty where it was in time and nobody decided that.
    """
    timing = row.timing
    if timing is None:
        return ""
    if timing.late:
        text = "submitted late"
        delay = describe_delay(timing)
        if delay:
            text += f" by {delay}"
        if timing.penalty:
            text += f": {count_and_noun(timing.penalty, 'point')} off"
    elif timing.decided_by_hand:
        text = "counted as in time"
    else:
        return ""
    if timing.comment:
        text += f" ({timing.comment})"
    return text


def describe_output(row: SubmissionRow) -> str:
    """Return what a student may read of what the code printed; empty where it printed nothing."""
    if row.output and row.public_scenarios:
        return f"What the code printed:\n{row.output}"
    return row.output_for_student


def describe_delay(timing: Timing) -> str:
    """Return how late it was, such as "3.5 days"; empty where it is not known."""
    return describe_seconds(timing.late_seconds or 0)


def describe_seconds(seconds: int) -> str:
    """Return "3.5 days", "7.0 hours", "16 minutes" or "1 second"; empty for none."""
    if not seconds:
        return ""
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    if seconds >= HOUR:
        return f"{seconds / HOUR:.1f} hours"
    if seconds >= MINUTE:
        return count_and_noun(seconds // MINUTE, "minute")
    return count_and_noun(seconds, "second")


def points_left_out(row: SubmissionRow) -> str:
    """Return what a format that has only the points of the exercises leaves out.

    That is the scale of the course and lateness; empty where neither changes the points.
    """
    lateness = describe_lateness(row)
    if not lateness and not row.scaled:
        return ""
    return join_texts("; ", points_and_reason(row), lateness)


def say_how_many_have_other_points(rows: Iterable[SubmissionRow], options: Options) -> None:
    """Tell the teacher, by `options.say`, how many have other points in the course.

    It is for formats that have only the points of the exercises.
    """
    handed_in = 0
    differing = 0
    for row in chosen_rows(rows, options):
        if row.status is not SubmissionStatus.ABSENT:
            handed_in += 1
            differing += row.scaled
    if differing:
        options.say(
            f"{differing} of {handed_in} students have other points in the course, "
            "for its scale or a penalty; this format has the points of the exercises."
        )


def lines_for_student(row: SubmissionRow, exercises_of_day: Iterable[ExerciseRow]) -> list[str]:
    """Return what a student should read, in few lines.

    First the points, then one line for each cause of points that are missing.
    """
    lines = [points_and_reason(row)]
    lateness = describe_lateness(row)
    if lateness:
        lines.append(f"{lateness[0].upper()}{lateness[1:]}.")
    if row.to_grade:
        lines.append(f"Still to be graded by hand: {', '.join(row.to_grade)}.")
    checks = rows_of_submission(row, exercises_of_day)
    if not row.was_judged:
        # The first line has the one reason why all of them failed.
        checks = [check for check in checks if check.override or check.remark]
    return lines + _lines_of_rubrics(row) + root_causes(checks)


def _lines_of_rubrics(row: SubmissionRow) -> list[str]:
    """Return one line for each item that a person graded by the lines of its rubric.

    Each line of the rubric is there with its points and the person's comment.
    """
    lines = []
    for exercise in row.exercises:
        rubric = describe_rubric(exercise)
        if exercise.override is None and rubric:
            maximum = 0.0 if exercise.extra else exercise.max_score
            points = _points_by_hand(exercise.score, maximum)
            lines.append(one_line(f"{exercise.heading}: {points}. {rubric}"))
    return lines


def root_causes(checks: Iterable[CheckRow]) -> list[str]:
    """Return one line for each thing to fix, not one for each check that it fails or blocks."""
    causes = _Causes()
    for check in checks:
        causes.add_check(check)
    return [one_line(line) for line in causes.make_lines()]


class _Causes:
    """Checks of a submission, grouped by what a student has to fix."""

    def __init__(self) -> None:
        """Begin without checks."""
        self.overridden: list[CheckRow] = []  # a person has graded them
        self.remarked: list[CheckRow] = []  # a person says something about them
        self.failed: dict[tuple[str, str], list[CheckRow]] = {}  # by function and cause
        self.blocked: list[CheckRow] = []  # they wait for one that failed
        # Blocked checks by function, where no check of it failed.
        self.unjudged: dict[str, list[CheckRow]] = {}
        self.absent: dict[str, None] = {}  # functions that were not handed in, in order
        self.to_do: dict[str, None] = {}  # functions that are still stubs, in order
        self.not_judged: dict[str, None] = {}  # those whose checks themselves failed, in order
        self.waiting: dict[str, None] = {}  # such checks that earn nothing before a person looks

    def add_check(self, check: CheckRow) -> None:
        """Put a check into its group; one that passed, or waits for a person, is in none."""
        name = check.function or check.claim or check.id
        waits_for_a_person = not check.function and bool(check.claim)
        if check.remark and check.override is None:
            self.remarked.append(check)
        if check.override is not None:
            self.overridden.append(check)
        elif check.absent:
            self.absent[_absent_name(check)] = None
        elif check.outcome is Outcome.FAILED and check.function:
            cause = check.misconception or describe_line(check) or check.message
            key = (_function_id(check), cause)
            self.failed.setdefault(key, []).append(check)
        elif check.outcome is Outcome.BLOCKED:
            self.blocked.append(check)
        elif check.outcome is Outcome.TODO and not waits_for_a_person:
            self.to_do[name] = None
        elif check.outcome is Outcome.ERROR and not waits_for_a_person:
            if check.points < check.max_points:
                self.waiting[name] = None
            else:
                self.not_judged[name] = None

    def make_lines(self) -> list[str]:
        """Return the lines of all groups. Blocked checks join the failed ones for good."""
        self._count_blocked_checks_with_their_cause()
        lines = [_line_of_override(check) for check in self.overridden]
        lines += [_line_of_failure(checks) for checks in self.failed.values()]
        lines += [_line_of_unjudged(checks) for checks in self.unjudged.values()]
        for check in self.remarked:
            lines.append(f"{describe_check(check).rstrip('.')}: {check.remark}")
        if self.absent:
            lines.append(f"Not handed in: {', '.join(self.absent)}.")
        if self.to_do:
            lines.append(f"To do: {', '.join(self.to_do)}.")
        if self.not_judged:
            names = ", ".join(self.not_judged)
            lines.append(f"Not judged, without loss of points: {names}. Please report it.")
        if self.waiting:
            names = ", ".join(self.waiting)
            lines.append(
                f"Not judged, without points until somebody has looked: {names}. Please report it."
            )
        return lines

    def _count_blocked_checks_with_their_cause(self) -> None:
        """Put each blocked check to the failed ones that it waits for.

        Where the one it waits for is not among them, it goes to the first of its function. Where
        none of these failed, as a person gave points, it joins the unjudged.
        """
        for check in self.blocked:
            groups = []
            for (function, _), group in self.failed.items():
                if function == _function_id(check):
                    groups.append(group)
            causes = [group for group in groups if _has_name(group, check.blocked_by)]
            if groups:
                if causes:
                    cause = causes[0]
                else:
                    cause = groups[0]
                cause.append(check)
            elif check.waits_in_vain and _has_name(self.overridden, check.blocked_by):
                self.unjudged.setdefault(_function_id(check), []).append(check)


def _has_name(checks: Iterable[CheckRow], name: str | None) -> bool:
    """True if one of the checks has this name, without its exercise and function."""
    return any(check.id.endswith(f"::{name}") for check in checks)


def _function_id(check: CheckRow) -> str:
    """Return the exercise and function of a check: "04_x::train_epoch"."""
    return check.id.rpartition("::")[0]


def _absent_name(check: CheckRow) -> str:
    """Return the function's name, with the other name that may be meant for it."""
    guess = check.happened.partition("; ")[2]
    if guess:
        return f"{check.function} ({guess})"
    return check.function


def _line_of_override(check: CheckRow) -> str:
    """Return the line of a check that a person graded, with the person's comment."""
    points = _points_by_hand(check.points, check.max_points)
    comment = ""
    if check.override:
        comment = check.override.comment
    claim = describe_check(check).rstrip(".")
    return f"{claim}: {points}. {comment}".rstrip()


def _points_by_hand(points: float, maximum: float) -> str:
    """Return "8 of 10 points, by hand"; extra credit has no maximum."""
    text = format_points(points)
    if maximum:
        text = points_of_maximum(points, maximum)
    return f"{text} points, by hand"


def _line_of_failure(checks: list[CheckRow]) -> str:
    """Return the line of checks that failed for one cause, with the points that it costs."""
    shown = checks[0]
    for check in checks:
        if check.line and check.outcome is Outcome.FAILED:
            shown = check
            break
    lost = 0
    for check in checks:
        lost += in_millionths(check.max_points) - in_millionths(check.points)
    message = _short_line(shown.message or shown.claim)
    text = f"{_exercise_and_function(shown)}: {message}"
    line = describe_line(shown)
    if line:
        text += f" ({line})"
    return f"{text} [-{count_and_noun(points_of(lost), 'point')}]"


def _line_of_unjudged(checks: list[CheckRow]) -> str:
    """Return the line of checks of one function that wait for one which a person decided."""
    lost = sum(in_millionths(check.max_points) - in_millionths(check.points) for check in checks)
    count = count_and_noun(len(checks), "check")
    what = f"{count} not judged, waiting for `{checks[0].blocked_by}`, which a person decided"
    points = count_and_noun(points_of(lost), "point")
    return f"{_exercise_and_function(checks[0])}: {what} [-{points}]"


def _short_line(text: str) -> str:
    """Return a text on one line, cut where it is too long."""
    line = one_line(text)
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[: LONGEST_LINE - 1]}…"


def _exercise_and_function(check: CheckRow) -> str:
    """Return "04 train_epoch"."""
    exercise = exercise_of(check)
    number = exercise.partition("_")[0]
    if number.isdigit():
        exercise = number
    return join_texts(" ", exercise, check.function)


def describe_check(check: CheckRow) -> str:
    """Return what a check claims, such as "04 train_epoch: The loss falls.".

    Where it claims nothing, that is its id.
    """
    claim = check.claim.replace("`", "")
    if not claim:
        return one_line(check.id) or SUBMISSION
    if not check.function:
        return one_line(claim)
    return one_line(f"{_exercise_and_function(check)}: {claim}")


def describe_line(check: CheckRow) -> str:
    """Return "line 7", "returned in line 7" or "code cell 2, line 7"; empty without a line."""
    if not check.line:
        return ""
    place = f"line {check.line}"
    if check.cell:
        place = f"code cell {check.cell}, {place}"
    return f"{check.line_role.before}{place}"


def full_text(check: CheckRow) -> str:
    """Return all there is to say about a check, on several lines, printable."""
    if check.override is not None:
        return printable_lines(f"graded by hand. {check.override.comment}".strip())
    if check.outcome is not Outcome.FAILED or not check.function:
        return printable_lines(join_texts("\n", check.remark, check.message))
    labelled = {
        "comment": check.remark,
        "happened": check.happened or check.message,
        "expected": check.expected,
        "where": join_texts(", ", check.file or "", describe_line(check)),
        "mistake": check.why,
        "hint": check.hint,
    }
    lines = [f"{label}: {text}" for label, text in labelled.items() if text]
    return printable_lines("\n".join(lines))
