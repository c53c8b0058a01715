"""Results of checks, submissions and classes."""

from __future__ import annotations

import datetime
import enum
import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from gpudojo.model.exercise import Exercise, Function, LineRole, Misconception


class Outcome(enum.StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TODO = "to do"  # the stub is still a stub
    BLOCKED = "blocked"  # another check has to pass first
    ERROR = "error"  # in the exercise or in gpudojo: costs the student nothing


class CheckResult(msgspec.Struct, frozen=True):
    """One claim about one function of one submission."""

    exercise: str
    function: str
    check: str
    claim: str
    outcome: Outcome
    max_points: float
    happened: str = ""
    expected: str = ""
    line: int | None = None
    misconception: str | None = None
    blocked_by: str | None = None  # a check of the same function, or `function::check`
    at: tuple[str, ...] = ()  # patterns in the source to show, where no line is known
    ran: tuple[tuple[int, int], ...] | None = None  # lines that the failing call executed
    about: str = ""  # the check whose hints are shown, where that is another one
    source: str = ""  # file:line of the author's code that broke off
    called_at: str = ""  # file:line of the probe's call, where no line of the student's ran
    unpaid: bool = False  # of an ERROR: it shows with this submission alone
    line_role: LineRole = LineRole.LINE  # what `line` is: the mistake, or what came of it

    @property
    def id(self) -> str:
        """Its full name: "04_modifying_training_loop_gpu::train_epoch::runs"."""
        return f"{self.exercise}::{self.function}::{self.check}"

    @property
    def points(self) -> float:
        """What it earns: all or nothing."""
        if self.earns_points:
            return self.max_points
        return 0.0

    @property
    def earns_points(self) -> bool:
        """True if it passed, or an error of ours shows with the reference, too."""
        if self.outcome is Outcome.ERROR:
            return not self.unpaid
        return self.outcome is Outcome.PASSED


RESULTS_VERSION: Final = 1

BY_HAND: Final = "by hand"  # the outcome of a check for which a person gave points
A_PERSON: Final = "a person"  # who decided how late a submission was

Points = Annotated[float, msgspec.Meta(ge=0, description="Points, rounded to 6 places.")]
Line = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class SubmissionStatus(enum.StrEnum):
    """What became of a submission as a whole."""

    GRADED = "graded"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    UNREADABLE = "unreadable"
    NOT_GRADED = "not graded"  # it forged a message to the grader: a person decides
    ABSENT = "absent"  # on the roster, and nothing was handed in


# How serious findings of the watch over student code are; a reason to review begins with one.
FINDING_CLASSES: Final = ("forged", "could not be measured", "reported")


class Override(msgspec.Struct, frozen=True, omit_defaults=True):
    """Points that a person gave; shown to the student."""

    points: Points
    graded: Points | None = None  # what the grader gave; None for an item that only people grade
    comment: str = ""
    by: str = ""
    at: str = ""  # ISO 8601, UTC


class Reviewed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person has looked at what needed review."""

    by: str
    at: str  # ISO 8601, UTC
    comment: str = ""


class CheckRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One claim about one function, and what a student should read about it."""

    id: str  # "04_modifying_training_loop_gpu::train_epoch::runs"
    function: str
    outcome: Outcome
    points: Points
    max_points: Points
    message: str = ""  # the one line to show where there is room for one; empty when passed
    line: Line | None = None
    misconception: str | None = None  # its key in misconceptions.toml
    claim: str = ""
    happened: str = ""
    expected: str = ""
    why: str = ""  # the misconception's name and sentences
    hint: str = ""
    blocked_by: str | None = None  # a check of the same function
    file: str | None = None
    cell: Line | None = None  # in a notebook: which code cell; `line` then counts in that cell
    override: Override | None = None  # `points` are already these
    remark: str = ""  # what a person says about it, and the points stay
    line_role: LineRole = LineRole.LINE  # what `line` is: the mistake, or what came of it

    @property
    def shown_outcome(self) -> str:
        """The outcome, as people see it: what a person gave comes before the grader's verdict."""
        if self.override is not None:
            return BY_HAND
        return self.outcome.value

    @property
    def to_fix(self) -> bool:
        """Whether it failed, and no person gave points for it."""
        return self.outcome is Outcome.FAILED and self.override is None

    @property
    def waits_in_vain(self) -> bool:
        """Whether it was not judged, for another check, and has not all points."""
        is_blocked = self.outcome is Outcome.BLOCKED and self.override is None
        return is_blocked and self.points < self.max_points

    @property
    def absent(self) -> bool:
        """Whether it failed because the function was not handed in."""
        return self.outcome is Outcome.FAILED and self.happened.startswith(
            not_handed_in(self.function)
        )


class RubricLine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line of the rubric of an item that people grade, and its points in the course file."""

    text: str
    points: Points


def name_of_rubric_line(item: str, text: str) -> str:
    """The name of a line of a rubric: it has its points by its text, wherever it stands."""
    return f"{item}::{' '.join(text.split())}"


class RubricRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a student reads of a rubric: one of its lines, or all of it where it has no lines."""

    text: str
    max_points: Points = 0.0  # 0 where it has no points of its own
    override: Override | None = None  # the points that a person gave


class ExerciseRow(msgspec.Struct, frozen=True):
    """One exercise of one submission, or an item that a person grades."""

    exercise: str
    title: str
    score: Points
    max_score: Points
    checks: list[CheckRow] = []
    extra: bool = False  # extra credit: its points count, and its maximum does not
    by_hand: bool = False  # graded by a person: to do as long as there is no override
    # Of the whole exercise; `score` is already this, whatever the checks have.
    override: Override | None = None
    rubric: list[RubricRow] = []  # by which a person grades it
    remark: str = ""  # what a person says about it, and the points stay

    @property
    def rubric_lines(self) -> dict[str, RubricRow]:
        """The lines of the rubric that have points, by their names, in their order."""
        lines = [line for line in self.rubric if line.max_points]
        return {name_of_rubric_line(self.exercise, line.text): line for line in lines}

    @property
    def rubric_numbers(self) -> dict[str, str]:
        """The names of the lines of the rubric, by what people type: "report::1"."""
        names = enumerate(self.rubric_lines, 1)
        return {f"{self.exercise}::{number}": name for number, name in names}

    def blocked_by(self, check_id: str) -> list[CheckRow]:
        """The checks that were not judged because a check waits for this one, or for those.

        What a person has given is not among them.
        """
        function, _, name = check_id.rpartition("::")
        waited_for = {name}
        blocked = []
        for check in self.checks:  # a check stands behind those that it needs
            is_of_function = check.id.rpartition("::")[0] == function
            if is_of_function and check.blocked_by in waited_for:
                waited_for.add(check.id.rpartition("::")[2])
                if check.override is None:
                    blocked.append(check)
        return blocked

    @property
    def heading(self) -> str:
        """The title, and whether it is extra credit."""
        if self.extra:
            return f"{self.title} (extra credit)"
        return self.title

    @property
    def has_points_by_hand(self) -> bool:
        """Whether a person gave points for it, for one of its checks or for a line of its rubric.

        These may be 0.
        """
        overrides = [self.override]
        overrides += [check.override for check in self.checks]
        overrides += [line.override for line in self.rubric]
        return any(overrides)

    @property
    def to_grade(self) -> bool:
        """Whether a person still has to grade it."""
        if not self.by_hand or self.override is not None:
            return False
        lines = self.rubric_lines.values()
        return not lines or any(line.override is None for line in lines)


class Definition(msgspec.Struct, frozen=True):
    """Which definition of a function was graded."""

    function: str
    file: str
    line: Line | None = None
    cell: Line | None = None
    note: str = ""  # for example that it is the last of three


_JOINED_SECTIONS: Final = re.compile(r",? and |, ")


class RosterRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A student on the roster."""

    id: str
    name: str = ""
    email: str = ""
    section: str = ""
    github: str = ""
    login: str = ""  # of the platform, where it is not the id
    family: str = ""  # the family name, where the roster tells it apart
    more_ids: list[str] = []  # other ids of the same person, such as the SIS user id
    participant: str = ""  # the number in Moodle's worksheet, which is one of the ids
    is_namesake: bool = False  # somebody else on the roster has the name, too

    @property
    def all_ids(self) -> list[str]:
        """Everything but the name by which the roster knows the student; nothing of it is empty."""
        ids = [self.id, self.email, self.github, self.login, *self.more_ids]
        return [id_ for id_ in ids if id_]

    @property
    def shown_name(self) -> str:
        """The name for lists; of somebody whom another one is called like, with the id."""
        if self.is_namesake and self.id != self.name:
            return f"{self.name} ({self.id})"
        return self.name

    @property
    def id_and_details(self) -> str:
        """The id, and what tells people of one name apart: "17 (Monday, ada@example.org)"."""
        details = ", ".join(text for text in (self.section, self.email) if text)
        if details and self.id:
            return f"{self.id} ({details})"
        return self.id

    @property
    def all_names(self) -> list[str]:
        """Everything by which the roster knows the student; nothing of it is empty."""
        names = self.all_ids
        if self.name:
            names.insert(1, self.name)
        return names

    @property
    def sorted_as(self) -> str:
        """The name with the family name first, where that is known: Bauer, Fay."""
        given_name = self.name.removesuffix(self.family).strip()
        return ", ".join(filter(None, (self.family, given_name)))


def split_sections(texts: Iterable[str]) -> dict[str, list[str]]:
    """By what a roster has as section, the sections that are meant by it.

    Who is in several has "Mon and Tue" or "Lab, Mon, and Tue", as Canvas writes it. That is split
    where each part stands alone somewhere, or among others.
    """
    known = {text for text in texts if text}
    parts_of = {text: _JOINED_SECTIONS.split(text) for text in known}
    places: dict[str, int] = {}
    for parts in parts_of.values():
        for part in parts:
            places[part] = places.get(part, 0) + 1
    sections = {}
    for text, parts in parts_of.items():
        is_list = all(places[part] > 1 for part in parts)
        sections[text] = parts if is_list else [text]
    return sections


def both_names(name: str, submission: str) -> str:
    """A student's name and that of the submission, "Fay Bauer (bauerfay)".

    Only one of them if they are equal, or if the student's name is empty.
    """
    if not name:
        return submission
    if name.casefold() == submission.casefold():
        return name
    return f"{name} ({submission})"


def name_in_lists(roster: RosterRow | None, submission: str) -> str:
    """What lists call a student: the name on the roster, with that of the submission.

    Of somebody whom another one is called like, the id is there; it says more than a submission
    that begins with the name.
    """
    if roster is None:
        return submission
    if roster.is_namesake and submission.startswith(roster.name):
        return roster.shown_name
    return both_names(roster.shown_name, submission)


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a submission was handed in, against its student's deadline. Times are ISO 8601."""

    submitted: str = ""  # empty where it is not known
    told_by: str = ""  # canvas, gradescope, moodle, commit, a person
    deadline: str = ""  # with the student's extension
    extended: bool = False
    late: bool = False
    late_seconds: Count | None = None  # None where a platform says late, and not by how much
    penalty: Points = 0.0  # taken from the scaled points
    comment: str = ""  # of the person who said how late it was
    # The command to decide it again, where a person had decided it of another hand-in; else empty.
    decide_again: str = ""

    @property
    def decided_by_hand(self) -> bool:
        """True if a person decided how late it was, or that it was in time."""
        return self.told_by == A_PERSON


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One submission of a student who handed in several, the oldest first.

    One of them counts: the row is about it.
    """

    submission: str  # the name of the file or folder
    digest: str
    score: Points
    max_score: Points
    graded_at: str = ""
    submitted: str = ""
    counts: bool = False
    changes: list[str] = []  # against the one before: "04_…::train_epoch::runs: failed → passed"


class Grade(msgspec.Struct, frozen=True):
    """What is published: the score on the scale of the course, less the penalty for being late."""

    points: Points
    max_points: Points


OUTPUT_HELD_BACK: Final = (
    "What your code printed is not shown, because these scenarios are secret. "
    "`pytest` shows what it prints in the public ones."
)


class SubmissionRow(msgspec.Struct, frozen=True):
    """One submission.

    A status that is not graded has a reason; it may still have exercises that were graded before.
    `score` and `max_score` are in the points of the exercises, overrides and weights included;
    `final` is published.
    """

    submission: str
    status: SubmissionStatus
    score: Points
    max_score: Points
    exercises: list[ExerciseRow] = []
    reason: str = ""
    student: str | None = None
    identifier: str | None = None  # the id by which the platform it came from knows the student
    naming: str | None = None  # which platform's naming of files was recognised
    canvas_file: str = ""  # a file of the student as Canvas named it: of what counts, if it can be
    definitions: list[Definition] = []
    notes: list[str] = []
    needs_human: list[str] = []
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    peak_bytes: Count = 0
    digest: str = ""
    # What the student's code printed, cut off where it was too much. It is for the instructor:
    # students are shown `output_for_student`.
    output: str = ""
    public_scenarios: bool = False  # it ran on scenarios that students have, too
    layers: list[str] = []  # the layers of isolation that held for it
    record: str = ""  # the key of what is kept of its run, beside the results
    # The key of the reference it was judged against, where it is not the header's.
    reference: str = ""
    graded_at: str = ""  # ISO 8601, UTC
    timing: Timing | None = None  # None where nothing is known of deadlines and dates
    attempts: list[Attempt] = []  # where there is more than one grading
    # Of Gradescope's list where there is none, or nobody on it matches; else None.
    roster: RosterRow | None = None
    group: str = ""
    gone: bool = False  # its files are no longer where they were; what was graded is kept
    grade: Grade | None = None  # None where it is the score
    reviewed: Reviewed | None = None  # None where nobody did, or it has changed since

    @property
    def final(self) -> Grade:
        """The points to publish, and what they are out of."""
        return self.grade or Grade(self.score, self.max_score)

    @property
    def output_for_student(self) -> str:
        """What the student may read of the output.

        All of it after public scenarios. After secret ones it is a sentence instead, because code
        can print what it was called with. Empty where nothing was printed.
        """
        if self.output and not self.public_scenarios:
            return OUTPUT_HELD_BACK
        return self.output

    @property
    def scaled(self) -> bool:
        """True if the points to publish are others than those of the exercises."""
        return self.final != Grade(self.score, self.max_score)

    @property
    def called(self) -> str:
        """The name on the roster, with that of the submission.

        Without a roster, the name of the submission alone.
        """
        return name_in_lists(self.roster, self.submission)

    @property
    def called_with_group(self) -> str:
        """The name, and that of the group, for lists that have a group once."""
        if not self.group:
            return self.called
        return f"{self.called}, {self.group}"

    @property
    def late(self) -> bool:
        """True if it was handed in after the deadline."""
        return self.timing is not None and self.timing.late

    @property
    def id(self) -> str:
        """The student's id on the roster, or else on the platform; empty where it is not known.

        Gradescope's number of a submission is no student's id.
        """
        if self.roster and self.roster.id:
            return self.roster.id
        if self.naming == "gradescope":
            return ""
        return self.identifier or ""

    @property
    def email(self) -> str:
        """The student's address on the roster; empty where it is not known."""
        if self.roster:
            return self.roster.email
        return ""

    @property
    def section(self) -> str:
        """The student's section of the course; empty where it is not known."""
        if self.roster:
            return self.roster.section
        return ""

    @property
    def to_grade(self) -> list[str]:
        """The titles of items that a person still has to grade.

        Of who handed in nothing, those for which a part has points already.
        """
        titles = []
        for exercise in self.exercises:
            has_begun = self.status is not SubmissionStatus.ABSENT or exercise.has_points_by_hand
            if exercise.to_grade and has_begun:
                titles.append(exercise.title)
        return titles

    @property
    def reasons_to_review(self) -> list[str]:
        """Why a person should look at it before grades go out, or has."""
        if self.needs_human:
            return self.needs_human
        if self.status in (SubmissionStatus.GRADED, SubmissionStatus.ABSENT):
            return []
        return [self.reason]

    @property
    def review(self) -> list[str]:
        """Why a person should still look at it; empty where somebody has."""
        if self.reviewed is not None:
            return []
        return self.reasons_to_review

    @property
    def review_rank(self) -> int:
        """Where it belongs among those to review: the most serious reason is 0."""
        if not self.review:
            return len(FINDING_CLASSES)
        first_class = self.review[0].partition(":")[0]
        if first_class not in FINDING_CLASSES:
            return len(FINDING_CLASSES)
        return FINDING_CLASSES.index(first_class)

    @property
    def was_judged(self) -> bool:
        """False if all checks failed for one reason, which is not the code they are about."""
        return self.status not in (
            SubmissionStatus.UNREADABLE,
            SubmissionStatus.NOT_GRADED,
            SubmissionStatus.ABSENT,
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing was handed in, and no points were given by hand either."""
        return self.status is SubmissionStatus.ABSENT and not self.overrides

    @property
    def counts_in_means(self) -> bool:
        """False if its points stand for no work: nothing was handed in, or a person decides."""
        return self.status not in (SubmissionStatus.NOT_GRADED, SubmissionStatus.ABSENT)

    @property
    def overrides(self) -> list[tuple[str, Override]]:
        """What a person changed, each with the name of its check, exercise or item."""
        found: list[tuple[str, Override]] = []
        for exercise in self.exercises:
            if exercise.override is not None:
                found.append((exercise.exercise, exercise.override))
            for name, line in exercise.rubric_lines.items():
                if line.override is not None:
                    found.append((name, line.override))
            for check in exercise.checks:
                if check.override is not None:
                    found.append((check.id, check.override))
        return found

    @property
    def graded_otherwise(self) -> bool:
        """True if a person gave points for what the grader judges, too; not for items by hand."""
        by_hand = {exercise.exercise for exercise in self.exercises if exercise.by_hand}
        return any(name.partition("::")[0] not in by_hand for name, _ in self.overrides)


class GroupFilter:
    """Finds the rows of a class that stand for work of their own: one for each group."""

    def __init__(self) -> None:
        """Know no group yet."""
        self._seen: set[tuple[str, str]] = set()

    def is_new_work(self, row: SubmissionRow) -> bool:
        """False for a group whose work was seen in an earlier row, which is remembered."""
        if not row.group or not row.digest:
            return True
        work = (row.group, row.digest)
        if work in self._seen:
            return False
        self._seen.add(work)
        return True


class RunLimits(msgspec.Struct, frozen=True):
    """What a function or submission could use."""

    seconds: float
    memory: int
    gpu_memory: int = 0


class HandItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that a person grades, such as a question with a rubric."""

    name: str
    points: Points
    title: str = ""
    rubric: str | list[RubricLine] = ""  # a text, or lines with points
    extra: bool = False

    @property
    def rubric_rows(self) -> list[RubricRow]:
        """The rubric, as students read it, without any points given yet."""
        if isinstance(self.rubric, str):
            return [RubricRow(self.rubric)] if self.rubric else []
        return [RubricRow(line.text, line.points) for line in self.rubric]


MOST_CHOSEN: Final = 4  # exercises that are named in a sentence
AttemptRule = Literal["latest", "best", "first"]
When = Literal["always", "after deadline", "never"]


class Visibility(msgspec.Struct, frozen=True):
    """When students see what."""

    results: When = "always"
    hints: When = "always"

    def shows(self, what: When, deadline: str, now: datetime.datetime) -> bool:
        """True if something with this visibility is shown at a time.

        Without a deadline, "after deadline" is at once.
        """
        if what == "after deadline" and deadline:
            return now >= datetime.datetime.fromisoformat(deadline)
        return what != "never"


class ClassResults(msgspec.Struct, frozen=True):
    """One run of the grader over a class. Without submissions it is the header of a file."""

    day: str
    bench: str
    torch: str
    gpudojo: str
    max_score: Points
    # By layer of isolation: "" if it held, otherwise the reason why not.
    layers: dict[str, str] = {}
    reference: str = ""  # the key of what is kept of the reference's run
    title: str = ""  # of the course
    graded_at: str = ""  # when results last changed; ISO 8601, UTC
    python: str = ""
    # Tells seeds apart and does not reveal them; "per student: …" where each has another.
    seed: str = ""
    limits: RunLimits | None = None
    only: list[str] = []  # the functions graded; empty: all
    # Exercises and functions that --only chose to count; empty: all that the course counts.
    chosen: list[str] = []
    scale: Points | None = None  # what `max_score` is worth on the platform; None: `max_score`
    deadline: str = ""  # ISO 8601, without extensions
    attempt: AttemptRule = "latest"
    visibility: Visibility = Visibility()
    by_hand: list[HandItem] = []
    sections: list[str] = []
    unmatched: list[str] = []  # submissions that match nobody on the roster
    version: Literal[1] = RESULTS_VERSION
    submissions: list[SubmissionRow] = []

    @property
    def unusual_rules(self) -> list[str]:
        """Sentences about what counts, where that is not everything or not the latest attempt."""
        sentences = []
        if self.chosen:
            names = ", ".join(self.chosen[:MOST_CHOSEN])
            verb = "counts"
            if len(self.chosen) > MOST_CHOSEN:
                names += f" and {len(self.chosen) - MOST_CHOSEN} more"
            if len(self.chosen) > 1:
                verb = "count"
            sentences.append(
                f"Of the exercises, only {names} {verb}, as --only chose; "
                "`dojo grade` without --only lets all count."
            )
        if self.attempt != "latest":
            sentences.append(f"Of several attempts of a student, the {self.attempt} counts.")
        return sentences


POINT_PLACES: Final = 6
SHOWN_PLACES: Final = 2  # as platforms show points
NOT_YOUR_ERROR: Final = (
    "This is an error in the exercise, not in your code. It costs you no points. Please report it."
)

UNPAID_ERROR: Final = (
    "This is an error in the exercise: its check could not judge what your function did. "
    "It earns no points until somebody has looked. Please report it."
)


def describe_error_of_ours(result: CheckResult) -> str:
    """The sentence that tells a student of an ERROR, and what it costs."""
    if result.unpaid:
        return UNPAID_ERROR
    return NOT_YOUR_ERROR


def sum_points(numbers: Iterable[float]) -> float:
    """A sum of points as people add them: 0.1 and 0.2 are 0.3."""
    return round(math.fsum(numbers), POINT_PLACES)


def round_half_up(points: float) -> float:
    """Points with two decimals, rounded as people round: 4.825 is 4.83, also as 7.125 - 2.3."""
    factor = 10**SHOWN_PLACES
    exact = sum_points([points * factor])
    return math.floor(exact + 0.5) / factor


def rows_of(
    results: Sequence[CheckResult],
    exercises: Iterable[Exercise],
    hints: int = 1,
    *,
    misconceptions: Mapping[str, Misconception] | None = None,
    definitions: Iterable[Definition] = (),
) -> list[ExerciseRow]:
    """A row for each of the exercises that has results, in the order of `exercises`.

    Results keep their order. `hints` is how many of a function's hints are shown where a check
    failed. A check's file and cell are those of the graded definition of its function, where
    `definitions` names one. Raises ValueError for results of other exercises, and BadDay for an
    author's mistake in a file of hints.
    """
    places = {definition.function: definition for definition in definitions}
    by_exercise: dict[str, list[CheckResult]] = {}
    for result in results:
        by_exercise.setdefault(result.exercise, []).append(result)
    rows = []
    for exercise in exercises:
        own = by_exercise.pop(exercise.stem, [])
        if not own:
            continue
        functions = {function.name: function for function in exercise.functions}
        points_of_checks = round_points([result.max_points for result in own])
        checks = []
        for result, points in zip(own, points_of_checks, strict=True):
            function = functions.get(result.function)
            place = places.get(result.function)
            row = row_of_check(result, points, function, misconceptions or {}, place, hints)
            checks.append(row)
        rows.append(row_of_exercise(exercise, checks))
    if by_exercise:
        # A result that belongs nowhere would be lost from the score without a word.
        raise ValueError(
            f"results of exercises that were not given: {', '.join(sorted(by_exercise))}"
        )
    return rows


def row_of_exercise(exercise: Exercise, checks: list[CheckRow]) -> ExerciseRow:
    """The row of an exercise with the rows of its checks; its points are their sums."""
    score = sum_points(check.points for check in checks)
    max_score = sum_points(check.max_points for check in checks)
    return ExerciseRow(exercise.stem, exercise.title, score, max_score, checks)


def row_of_check(
    result: CheckResult,
    points: float,
    function: Function | None,
    misconceptions: Mapping[str, Misconception],
    place: Definition | None,
    hints: int = 1,
) -> CheckRow:
    """The row of one check that is worth so many points, rounded.

    `place` is where its function is defined, if known. `hints` is how many of a function's hints
    are shown where a check failed. Raises BadDay for an author's mistake in the file of hints.
    """
    # What helps: hints, and why the mistake matters.
    mistake = misconceptions.get(result.misconception or "")
    shown_hints: tuple[str, ...] = ()
    if function is not None and result.outcome is Outcome.FAILED:
        shown_hints = hints_for_result(result, function, mistake)[: max(hints, 0)]
    why = ""
    if mistake is not None:
        why = f"{mistake.name}: {' '.join(mistake.why.split())}"
    file = None
    cell = None
    if place:
        file = place.file
        cell = place.cell
    return CheckRow(
        id=result.id,
        function=result.function,
        outcome=result.outcome,
        points=points if result.earns_points else 0.0,
        max_points=points,
        message=_message_of(result),
        line=result.line,
        line_role=result.line_role,
        misconception=result.misconception,
        claim=result.claim,
        happened=result.happened,
        expected=result.expected,
        why=why,
        hint="\n".join(shown_hints),
        blocked_by=result.blocked_by,
        file=file,
        cell=cell,
    )


ERROR_HINTS: Final = (
    "What does the error say, and what did the line get that raised it?",
    "Print the type, shape, dtype and device of each value on this line, just before it. "
    "Which one is a surprise?",
    "Look the call up in its documentation, compare what it takes with what you printed, "
    "and change one of them.",
)
DEVICE_HINTS: Final = (
    "Which tensors does this line use, and on which device is each of them?",
    "A tensor that is made without a device is on the CPU, wherever the others are.",
    "Make it where it is needed, with `device=` and the `.device` of a tensor "
    "that it is used with.",
)
# A call with other arguments than it takes, whatever the function was to do.
ARGUMENTS: Final = re.compile(
    r"raised: TypeError: .*(combination of|keyword|positional|function) argument"
)


def hints_for_result(
    result: CheckResult, function: Function, mistake: Misconception | None
) -> tuple[str, ...]:
    """The hints about one failure, and no others.

    There are none where nothing could run, for example because the function is missing. Raises
    BadDay for an author's mistake in the file of hints.
    """
    # The hints of a mistake are about code that makes it, not about an answer.
    if function.is_value:
        return function.hints_for(result.about or result.check)
    if mistake is None and result.ran == ():
        return ()
    if mistake is None and result.check == "runs":
        if "tensors to be on the same device" in result.happened:
            return DEVICE_HINTS
        if not function.has_advice_on("runs") or ARGUMENTS.search(result.happened):
            return ERROR_HINTS
    about = result.about or result.check
    return function.hints_for(result.misconception, about, mistake=mistake)


def round_points(points: Sequence[float]) -> list[float]:
    """The points, rounded so that they add up to the rounded sum. Three thirds stay a whole."""
    return list(_round_points(tuple(points)))


@functools.lru_cache(256)  # they are the same for every submission
def _round_points(points: tuple[float, ...]) -> tuple[float, ...]:
    """The points, each as the difference between two rounded sums; remembered."""
    sums = [sum_points(points[:count]) for count in range(len(points) + 1)]
    pairs = itertools.pairwise(sums)
    return tuple(round(after - before, POINT_PLACES) for before, after in pairs)


def not_handed_in(function: str) -> str:
    """How the message begins where a submission does not define a function."""
    return f"`{function}` was not handed in"


def describe_blocking(result: CheckResult) -> str:
    """The sentence that says which check has to pass first, or what else keeps it from being
    judged.

    In `result.blocked_by` a check of another function is named as `function::check`.
    """
    if result.blocked_by is None:
        return f"not judged: {result.happened}."
    function, _, check = result.blocked_by.rpartition("::")
    return f"blocked: the check `{check}` of `{function or result.function}` has to pass first."


def _message_of(result: CheckResult) -> str:
    """What came of a check in one line, for places that have room for one; "" if it passed."""
    match result.outcome:
        case Outcome.PASSED:
            return ""
        case Outcome.TODO:
            what = result.happened or f"`{result.function}` is still a stub"
            return f"to do: {what}."
        case Outcome.BLOCKED:
            return describe_blocking(result)
        case Outcome.ERROR:
            return describe_error_of_ours(result)
        case Outcome.FAILED:
            if not result.expected:
                return result.happened
            return f"{result.happened}; expected {result.expected}"
