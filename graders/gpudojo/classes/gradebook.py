"""Everything that is known of a class between runs, and the results made of it.

`.dojo/class.json` holds each student's submissions with the keys of their records. Results are made from these, the
course file, the roster and the overrides, without running student code.
"""

from __future__ import annotations

import array
import contextlib
import csv
import datetime
import functools
import hashlib
import io
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from gpudojo.classes.course_rules import CourseRules, Worth, weigh_exercise
from gpudojo.classes.judging import NO_FUNCTIONS
from gpudojo.classes.names import name_key
from gpudojo.classes.roster import Roster
from gpudojo.classes.store import EVERYONE, FOLDER, Overrides, applied, write
from gpudojo.classes.verdict_store import VerdictStore
from gpudojo.model.catalogue import day as exercises_of
from gpudojo.model.errors import BadClass, BadEvidence, printable, suggestion
from gpudojo.model.evidence import decoded
from gpudojo.model.results import (
    Attempt,
    AttemptRule,
    ClassResults,
    ExerciseRow,
    Outcome,
    RosterRow,
    RunLimits,
    SubmissionRow,
    SubmissionStatus,
    both_names,
    total,
)
from gpudojo.model.results_file import encoded, number, replacing, safe, whole, write_csv, writing
from gpudojo.submissions.entries import Naming, SubmissionEntry, Submitter, folded, natural
from gpudojo.submissions.reading import WRITTEN

# A class has these by the hundred thousand, and to look one up in an enumeration takes as long as the rest.
PASSED = Outcome.PASSED
FAILED = Outcome.FAILED
TODO = Outcome.TODO
ERROR = Outcome.ERROR


@dataclass
class CheckStatistics:
    """The outcomes of one check. Those who did not hand in its function, or only the stub, are absent."""

    id: str
    claim: str
    max_points: float
    outcomes: Counter[Outcome] = field(default_factory=Counter)  # of those who attempted it
    absent: int = 0
    # Sums over those who attempted it, of the points they have in everything else: all, squared, of those who passed.
    _sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def add(self, outcome: Outcome, rest: float) -> None:
        """Counts one who attempted it; `rest` is the score without this check."""
        self.outcomes[outcome] += 1
        sums = self._sums
        if outcome is not ERROR:
            sums[0] += rest
            sums[1] += rest * rest
            if outcome is PASSED:
                sums[2] += rest

    @property
    def attempted(self) -> int:
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        return self.outcomes[Outcome.FAILED]

    @property
    def missed(self) -> int:
        """How many do not have its points, for whatever reason."""
        return self.absent + self.failed + self.outcomes[Outcome.BLOCKED]

    @property
    def _judged(self) -> int:
        return self.attempted - self.outcomes[Outcome.ERROR]

    @property
    def difficulty(self) -> float | None:
        """The share that passed of those who attempted it: 1 is easy. None where nobody did."""
        return self.outcomes[Outcome.PASSED] / self._judged if self._judged else None

    @property
    def discrimination(self) -> float | None:
        """The point-biserial correlation of passing it with the score in everything else; None where there is none."""
        count = self._judged
        passed = self.outcomes[Outcome.PASSED]
        whole, squares, of_passed = self._sums
        if not 0 < passed < count:
            return None
        spread = squares / count - (whole / count) ** 2
        if spread <= 1e-9:  # everybody has the same score
            return None
        apart = of_passed / passed - (whole - of_passed) / (count - passed)
        found = apart * math.sqrt(passed * (count - passed)) / count / math.sqrt(spread)
        return max(-1.0, min(found, 1.0))


def absent_functions(exercise: ExerciseRow) -> set[str]:
    """The functions of an exercise that were not handed in, or only as the stub."""
    return {
        check.function
        for check in exercise.checks
        if (outcome := check.outcome) is TODO or (outcome is FAILED and check.absent)
    }


class ClassStatistics:
    """The statistics of every check; `add` counts one submission."""

    def __init__(self, rows: Iterable[SubmissionRow] = ()) -> None:
        self.checks: dict[str, CheckStatistics] = {}
        self.nobody = 0  # on the roster, who handed in nothing: absent in every check
        self.unread = 0  # submissions that could not be read: all of their checks failed, but not for their code
        for row in rows:
            self.add(row)

    def add(self, row: SubmissionRow) -> None:
        if row.status is SubmissionStatus.UNREADABLE:
            self.unread += 1
            return
        if row.status is SubmissionStatus.ABSENT:
            self.nobody += 1
            for known in self.checks.values():
                known.absent += 1
            return
        checks = self.checks
        score = row.score
        for exercise in row.exercises:
            absent = absent_functions(exercise)
            for check in exercise.checks:
                own = checks.get(check.id)
                if own is None:
                    own = checks[check.id] = CheckStatistics(
                        check.id, check.claim, check.max_points, absent=self.nobody
                    )
                if check.function in absent:
                    own.absent += 1
                else:
                    own.add(check.outcome, score - check.points)

    @property
    def hardest(self) -> list[CheckStatistics]:
        """Checks whose points somebody does not have, most missed first.

        Of the checks of a function that are missed for nothing but its absence, one stands for all."""
        missed = [check for check in self.checks.values() if check.missed]
        found: dict[str, CheckStatistics] = {}
        functions: set[str] = set()
        for check in sorted(missed, key=lambda check: (-check.missed, -check.failed, check.id)):
            function = check.id.rpartition("::")[0]
            if check.missed > check.absent or function not in functions:
                found[check.id] = check
            functions.add(function)
        return list(found.values())


STATE: Final = f"{FOLDER}/class.json"
RULES: Final = f"{FOLDER}/rules"
HISTORY: Final = "history.csv"
SETTLED: Final = "Changed by the course file, the roster or the choice of attempts"
MOST: Final = 60  # changes of checks that are kept of one grading


class StoredSubmission(msgspec.Struct, omit_defaults=True):
    """One submission of a student, and its last grading."""

    name: str
    origin: str
    digest: str
    content: str  # tells whether two are the same work, whatever their files are called
    at: str  # when it ran
    record: str = ""  # its key; empty where it could not be read: then there is a problem
    reference: str = ""
    measure: str = ""
    only: list[str] = []
    problem: str = ""
    notes: list[str] = []
    submitted: str = ""
    late: bool = False  # says the platform
    score: float = 0.0
    max_score: float = 0.0
    changes: list[str] = []  # against the submission before


class Student(msgspec.Struct, omit_defaults=True):
    """Who handed in, as the names of files tell, and what; the latest is the last."""

    name: str
    student: str
    naming: str
    identifier: str | None = None
    people: list[Submitter] = []
    sent: list[StoredSubmission] = []

    @property
    def listed(self) -> RosterRow | None:
        """As on a roster, what the platform's own list says; None where there is none."""
        if self.naming != Naming.GRADESCOPE or not self.people:
            return None
        id_ = self.people[0].sid if len(self.people) == 1 else ""
        return RosterRow(
            id_, self.student, ", ".join(person.email for person in self.people if person.email)
        )


class ClassState(msgspec.Struct, omit_defaults=True):
    """What is kept of a class."""

    day: str = ""
    bench: str = "virtual"
    seed: str = ""  # its name: the seed itself is in a file that only its owner reads
    limits: RunLimits | None = None
    course: str = ""  # the path of its file
    roster: str = ""
    attempt: AttemptRule | None = None
    reference: str = ""
    layers: dict[str, str] = {}
    torch: str = ""
    gpudojo: str = ""
    python: str = ""
    only: list[str] = []
    students: dict[str, Student] = {}
    version: int = 1


def load_state(out: Path) -> ClassState:
    """What is known of a class: nothing in a new folder; raises BadClass where it cannot be read."""
    path = out / STATE
    try:
        return decoded(msgspec.json.Decoder(ClassState).decode, path.read_bytes())
    except FileNotFoundError:
        return ClassState()
    except (OSError, BadEvidence) as error:
        why = error.reason if isinstance(error, BadEvidence) else error.strerror
        raise BadClass(
            f"{path} cannot be read ({why}); move it away, and grade the whole class again"
        ) from None


def stamp(out: Path) -> tuple[int, ...]:
    """Tells whether what is known of a class was written again; empty where nothing is known."""
    try:
        found = (out / STATE).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def save_state(out: Path, state: ClassState) -> None:
    """Write what is known of a class, one student after another: as a whole it may take megabytes."""
    start = encoded(replace(state, students={})).removesuffix(b"}")
    with replacing(out / STATE) as file:
        file.write(start + (b"," if start != b"{" else b"") + b'"students":{')
        for number_, (who, student) in enumerate(state.students.items()):
            file.write(b",\n" * (number_ > 0) + encoded(who) + b":" + encoded(student))
        file.write(b"}}")


def key_of_student(entry: SubmissionEntry) -> str:
    """By what a student is known from one run to the next."""
    if entry.naming is Naming.GRADESCOPE and entry.people:  # its number is that of the submission
        return f"gradescope:{'&'.join(name_key(who.sid or who.email or who.name) for who in entry.people)}"
    if entry.identifier and entry.naming is not Naming.GRADESCOPE:
        return f"{entry.naming}:{folded(entry.identifier)}"
    return f"plain:{folded(entry.name)}"


def now(timespec: str = "seconds") -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec=timespec)


class ScoreChange(NamedTuple):
    """What a new grading changed."""

    submission: str
    student: str
    before: float
    after: float
    new_attempt: bool
    checks: list[str]
    called: str  # the submission, with the name on the roster

    def __str__(self) -> str:
        shown = "; ".join(check.partition("::")[2] for check in self.checks[:3])
        more = f"; and {len(self.checks) - 3} more checks" * (len(self.checks) > 3)
        return (
            f"{self.called}: {number(self.before)} → {number(self.after)}"
            + f" ({shown}{more})" * bool(shown)
        )


@dataclass(eq=False, slots=True)
class Unit:
    """One row to be: a student, or a person on the roster."""

    name: str
    keys: list[str]
    who: Student | None = None
    sent: list[StoredSubmission] = field(default_factory=list)
    roster: RosterRow | None = None
    submitted: str = ""  # says the roster
    dates: dict[str, str] | None = (
        None  # of a group: by digest, what the roster says of who handed it in
    )
    group: str = ""
    sender: Student | None = None  # the member of the group who handed in, or the group itself
    review: list[str] = field(default_factory=list)

    _names: frozenset[str] | None = None

    @property
    def shown(self) -> str:
        """The name on the roster; without one, that of the submission."""
        return (self.roster.name if self.roster else "") or self.name

    @property
    def sorted_as(self) -> str:
        """By what it stands in lists: the family name, where the roster tells it."""
        return (self.roster.sorted_as if self.roster else "") or self.name

    @property
    def called(self) -> str:
        """The name on the roster, with that of the submission."""
        return both_names(self.roster.name if self.roster else "", self.name)

    def when(self, sent: StoredSubmission) -> str:
        """When it was handed in, as the platform says, or the roster; empty where nobody does."""
        return sent.submitted or (self.dates or {}).get(sent.digest, "") or self.submitted

    @property
    def names(self) -> frozenset[str]:
        """Everything by which the student may be called, as it is compared."""
        if self._names is not None:
            return self._names
        found = [self.name, *self.keys]
        if self.who:
            found += [self.who.name, self.who.student, self.who.identifier or ""]
            found += [
                part for person in self.who.people for part in person if len(self.who.people) == 1
            ]
        if self.roster:
            found += [
                self.roster.id,
                self.roster.name,
                self.roster.email,
                self.roster.github,
                self.roster.login,
            ]
        self._names = frozenset(name_key(name) for name in found if name)
        return self._names


class ClassTally:
    """Counts of a class for the summary: of the rows that count."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.shares = array.array(
            "d"
        )  # of the points, in percent: a list would take ten times the memory
        self.scaled = False  # whether points to publish are others than those of the exercises
        self.shared = False  # whether several students have one submission
        self.statistics = ClassStatistics()
        self.mistakes: Counter[str] = Counter()
        self.review: list[tuple[str, str]] = []
        self.reviews = self.late = self.overridden = self.to_grade = 0
        self.gone: list[str] = []
        self.now: list[str] = []
        self.settled: list[
            str
        ] = []  # whose points are others although nothing was graded anew: see SETTLED

    def add(self, row: SubmissionRow, now: bool = False) -> None:
        """Count a row; `now`: it is one of a few that were asked for, and its points are shown."""
        if now:
            reason = "" if row.status is SubmissionStatus.GRADED else f" ({row.status.value})"
            points = f"{number(row.final.points)} of {number(row.final.max_points)}"
            self.now.append(f"{row.called}: {points}{reason}")
        self.statuses[str(row.status)] += 1
        self.statistics.add(row)
        if row.status is not SubmissionStatus.ABSENT:
            worth = row.final.max_points
            self.scaled |= row.scaled
            self.shares.append(100 * row.final.points / worth if worth else 0.0)
        if (
            row.status is not SubmissionStatus.UNREADABLE
        ):  # of these all checks failed, whatever the code is
            failed = [check for e in row.exercises for check in e.checks if check.outcome is FAILED]
            self.mistakes.update({check.misconception for check in failed if check.misconception})
        if reasons := row.review:
            self.reviews += 1
            if len(self.review) < 20:
                self.review.append((row.called, reasons[0]))
        self.shared |= bool(row.group)
        self.late += row.late
        self.overridden += bool(row.overrides)
        self.to_grade += bool(row.to_grade) and row.status is not SubmissionStatus.ABSENT
        if row.gone:
            self.gone.append(row.called)


class Gradebook:
    """A class, its rules, and its results."""

    def __init__(
        self,
        out: Path,
        state: ClassState,
        course: CourseRules,
        roster: Roster | None,
        attempt: AttemptRule,
    ) -> None:
        self.out = out
        self.state = state
        self.course = course
        self.roster = roster
        self.attempt = attempt
        self.overrides = Overrides(out)
        self.notices: list[str] = list(roster.notes if roster else ())
        self.unmatched: list[str] = []
        self._verdicts = functools.lru_cache(4)(self._verdicts_of)

    # What was handed in

    def add(self, done: Sequence[tuple[SubmissionEntry, StoredSubmission]]) -> list[ScoreChange]:
        """Add what was graded in this run; returns what it changed of what was known before."""
        by_student: dict[str, list[tuple[SubmissionEntry, StoredSubmission]]] = defaultdict(list)
        for entry, sent in done:
            by_student[key_of_student(entry)].append((entry, sent))
        changes = []
        for who, handed_in in by_student.items():
            handed_in.sort(key=lambda each: (each[1].submitted, each[0].attempt))
            entry = handed_in[-1][0]
            known = self.state.students.get(who)
            before = self.pick(self._unit_of(who, known)) if known else None
            before = msgspec.structs.replace(before) if before else None
            kept = {sent.digest: sent for sent in known.sent} if known else {}
            # A submission that is found again, as when the same download is graded twice, stays an earlier attempt;
            # it is a later one where files in the same place have changed back, or the platform says so.
            last_from = {sent.origin: sent.digest for sent in known.sent} if known else {}
            for _, sent in handed_in:
                old = kept.get(sent.digest)
                if old is not None and old.record == sent.record:
                    sent.at = old.at
                if old is not None:
                    sent.changes = old.changes
                    if (
                        last_from.get(sent.origin, sent.digest) != sent.digest
                        or sent.submitted > old.submitted > ""
                    ):
                        del kept[sent.digest]
                kept[sent.digest] = sent
            people = list(entry.people)
            student = Student(
                entry.name, entry.student, str(entry.naming), entry.identifier, people
            )
            student.sent = list(kept.values())
            self.state.students[who] = student
            unit = self._unit_of(who, student)
            after = self.pick(unit)
            if (
                before is not None
                and after is not None
                and (change := self._change(unit, student, before, after))
            ):
                changes.append(change)
                if change.new_attempt:
                    after.changes = change.checks[:MOST]
        if changes:
            self._log(changes)
        return changes

    def _change(
        self, unit: Unit, student: Student, before: StoredSubmission, after: StoredSubmission
    ) -> ScoreChange | None:
        same = ("record", "reference", "measure", "problem")
        if all(getattr(before, name) == getattr(after, name) for name in same):
            return None
        new = self._verdict(after)
        # Never judged again: the checks of that time may be gone, and without its verdict only the score is known.
        old = self._kept(before)
        outcomes = (
            {check.id: check.outcome for exercise in old.exercises for check in exercise.checks}
            if old
            else {}
        )
        checks = [
            f"{check.id}: {outcomes[check.id]} → {check.outcome}"
            for exercise in new.exercises
            for check in exercise.checks
            if outcomes.get(check.id, check.outcome) is not check.outcome
        ]
        was = self._graded(unit, before, old).score if old else before.score
        score = self._graded(unit, after, new).score
        if not checks and was == score:
            return None
        new_attempt = before.digest != after.digest
        people, _ = self._people(student)
        listed = " & ".join(map(self._called, people)) or (
            student.listed.name if student.listed else ""
        )
        called = both_names(listed, student.name)
        return ScoreChange(
            student.name, listed or student.student, was, score, new_attempt, checks, called
        )

    def _log(self, changes: Iterable[ScoreChange]) -> None:
        self._write_history(
            (
                *(one.submission, one.student, number(one.before), number(one.after)),
                *("new attempt" if one.new_attempt else "regraded", "\n".join(one.checks)),
            )
            for one in changes
        )

    def _write_history(self, lines: Iterable[Sequence[str]]) -> None:
        path = self.out / HISTORY
        old = (
            path.read_text(encoding="utf-8")
            if path.exists()
            else "at,submission,student,before,after,why,checks\n"
        )
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        at = now()
        for cells in lines:
            writer.writerow([safe(cell) for cell in (at, *cells)])
        write(path, (old + text.getvalue()).encode("utf-8", "backslashreplace"))

    def pick(self, unit: Unit) -> StoredSubmission | None:
        """The submission that counts. The best has the most points to publish; of several, it is the latest."""
        sent = unit.sent
        if not sent:
            return None
        if self.attempt == "best" and len(sent) > 1:
            return max(reversed(sent), key=lambda each: self._graded(unit, each).final.points)
        return sent[0] if self.attempt == "first" else sent[-1]

    # Rows

    def units(self) -> list[Unit]:
        """Who has a row, in the order of names."""
        self.unmatched = []
        found: list[Unit] = []
        by_row: dict[int, Unit] = {}
        taken: set[int] = set()
        for who, student in sorted(
            self.state.students.items(), key=lambda item: natural(item[1].name)
        ):
            rows, said = self._people(student)
            if self.roster is not None and not rows:
                self.unmatched.append(
                    both_names(student.listed.name if student.listed else "", student.name)
                )
            for number_ in rows:
                if number_ in by_row:
                    self._join(by_row[number_], who, student)
                else:
                    # Of several people with one submission, each has a row.
                    name = student.name if len(rows) == 1 else self._called(number_)
                    unit = self._on_roster(number_, name)
                    unit.keys, unit.who, unit.sent = [*unit.keys, who], student, list(student.sent)
                    unit.group = (
                        " & ".join(person.name for person in student.people)
                        if len(rows) > 1
                        else ""
                    )
                    by_row[number_] = unit
                    found.append(unit)
                taken.add(number_)
            if not rows:
                review = [f"{said}."] if said else []
                found.append(
                    Unit(
                        student.name,
                        [who],
                        student,
                        list(student.sent),
                        student.listed,
                        review=review,
                    )
                )
        if self.roster is not None:
            found += [
                self._on_roster(n, self._called(n))
                for n in range(len(self.roster.rows))
                if n not in taken
            ]
        self._share(found)
        for name, keys in self._former.items():
            matching = [unit for unit in found if name in unit.names]
            if len(matching) == 1:
                matching[0].keys += keys
        return _with_unique_names(found)

    @functools.cached_property
    def _former(self) -> dict[str, list[str]]:
        """By a student's name, the keys of overrides by which nobody is known now: an address has changed, say."""
        rows = self.roster.rows if self.roster else ()
        members = [member for group in self.course.groups.values() for member in group]
        known = {EVERYONE, *self.state.students, *(f"roster:{name_key(row.id)}" for row in rows)}
        known |= {f"plain:{folded(member)}" for member in members}
        found: dict[str, list[str]] = {}
        for entry in self.overrides.current().values():
            if entry.key not in known:
                same = found.setdefault(name_key(entry.student), [])
                same += [entry.key] * (entry.key not in same)
        return found

    def _people(self, student: Student) -> tuple[list[int], str]:
        if self.roster is None:
            return [], ""
        return self.roster.people(
            student.identifier, (student.student, student.name), student.people
        )

    def _unit_of(self, who: str, student: Student) -> Unit:
        """The row of one student, without what others handed in for the same person."""
        rows, _ = self._people(student)
        alone = Unit(student.name, [], roster=student.listed)
        unit = self._on_roster(rows[0], student.name) if len(rows) == 1 else alone
        unit.keys, unit.who, unit.sent = [*unit.keys, who], student, list(student.sent)
        unit.keys += self._former.get(name_key(unit.name), ())
        return unit

    def _called(self, number_: int) -> str:
        assert self.roster is not None
        return self.roster.rows[number_].name or self.roster.rows[number_].id

    def _on_roster(self, number_: int, name: str) -> Unit:
        assert self.roster is not None
        row = self.roster.rows[number_]
        return Unit(
            name,
            [f"roster:{name_key(row.id)}"],
            roster=row,
            submitted=self.roster.submitted.get(number_, ""),
        )

    def _join(self, unit: Unit, who: str, student: Student) -> None:
        """Another submission of somebody on the roster."""
        unit.keys.append(who)
        unit.sent += student.sent
        if all(sent.submitted for sent in unit.sent):
            unit.sent.sort(key=lambda sent: datetime.datetime.fromisoformat(sent.submitted))
        else:
            names = ", ".join(dict.fromkeys(sent.name for sent in unit.sent))
            unit.review = [
                f"several submissions match {unit.name}: {names}; when each was handed in is not known."
            ]
        last = self.pick(unit)
        if last is not None and any(last is sent for sent in student.sent):
            unit.who, unit.name = student, student.name

    def _notice(self, said: str, *path: str) -> None:
        """Tell the teacher of a setting of the course that is not used as it is written."""
        self.notices.append(str(self.course.bad_setting(said, *path)))

    def _share(self, units: list[Unit]) -> None:
        """What one member of a group handed in counts for all."""
        member_of: dict[int, str] = {}
        for group, members in self.course.groups.items():
            own: list[Unit] = []
            for member in members:
                matching = [unit for unit in units if name_key(member) in unit.names]
                if not matching and self.roster is not None:
                    self._notice(f"nobody is called {member!r}", "groups", group)
                if len(matching) > 1:
                    self._notice(
                        f"{_several(member, matching)}; nobody of them is in the group",
                        "groups",
                        group,
                    )
                elif other := member_of.get(id(matching[0])) if matching else None:
                    self._notice(
                        f"{member!r} is in the group {other} by another name, and stays there",
                        "groups",
                        group,
                    )
                else:
                    own += matching or [Unit(member, [f"plain:{folded(member)}"])]
                    member_of[id(own[-1])] = group
            units += [unit for unit in own if unit not in units]
            joint = [unit for unit in units if name_key(group) in unit.names and unit not in own]
            senders = {each.digest: unit for unit in (*joint, *own) for each in unit.sent}
            if not senders:
                continue
            for unit in joint:
                units.remove(unit)
                self.unmatched = [name for name in self.unmatched if name != unit.called]
            shared = [
                each
                for unit in (*joint, *own)
                for each in unit.sent
                if senders[each.digest] is unit
            ]
            dates = {
                each.digest: each.submitted or senders[each.digest].submitted for each in shared
            }
            if not all(dates.values()):
                shared.sort(key=lambda each: each.at)
            else:
                shared.sort(key=lambda each: datetime.datetime.fromisoformat(dates[each.digest]))
            sender = senders[shared[-1].digest].who
            for unit in own:
                unit.sent = shared
                unit.group = group
                unit.dates = dates
                unit.sender = sender

    def rows(self) -> Iterator[SubmissionRow]:
        """All rows, finished; one after another, for there may be many."""
        units = self.units()
        picked = [self.pick(unit) for unit in units]
        same: dict[str, list[Unit]] = defaultdict(list)
        for unit, sent in zip(units, picked, strict=True):
            if sent is not None:
                same[sent.content].append(unit)
        known = {name for unit in units for name in unit.names} if self.course.extensions else set()
        first: dict[int, str] = {}
        for who in self.course.extensions:
            if name_key(who) not in known:
                near = suggestion(
                    who, [one for unit in units for one in (unit.name, unit.shown)], ""
                )
                self._notice(f"nobody is called {who!r}{near}", "extensions", who)
                continue
            matching = [unit for unit in units if name_key(who) in unit.names]
            if len(matching) > 1:
                self._notice(
                    f"{_several(who, matching)}; all of them have the extension", "extensions", who
                )
            for unit in matching:
                if (other := first.setdefault(id(unit), who)) != who:
                    self._notice(
                        f"{who!r} is {other!r}, whose extension is used", "extensions", who
                    )
        for who, said in self.course.useless_extensions():
            self._notice(said, "extensions", who)
        self.notices += [f"{self.overrides.path}: {said}" for said in self._unused(units)]
        return (
            self._row(unit, sent, _twins(unit, sent, same))
            for unit, sent in zip(units, picked, strict=True)
        )

    def _unused(self, units: Iterable[Unit]) -> list[str]:
        """Which overrides are unused, or are known by the student's name alone, in sentences."""
        if not self.overrides.log:
            return []
        checks = {
            f"{exercise.stem}::{function.name}::{check.name}"
            for exercise in exercises_of(self.state.day)
            for function in exercise.functions
            for check in function.checks
            if exercise.stem in self.parts
        }
        items = {*self.parts, *checks, *(item.name for item in self.course.by_hand)}
        owners = {one: unit for unit in units for one in unit.keys}
        said = []
        for entry in self.overrides.current().values():
            unit = owners.get(entry.key)
            if entry.item not in items:
                said.append(
                    f"{entry.item} is not graded any more; points of {entry.student} for it are unused"
                )
            elif unit is None and entry.key != EVERYONE:
                said.append(f"nobody is {entry.student!r} any more; an override is unused")
            elif unit is not None and entry.key in self._former.get(name_key(entry.student), ()):
                # The name of what was handed in is the student's own; a name on the roster may be another's.
                own = unit.who is not None and unit.who.name == entry.student
                before = f"had another id on the roster before, {entry.key.partition(':')[2]!r}"
                said += [f"{unit.shown!r} {before}, and keeps the points given by hand"] * (not own)
        return list(dict.fromkeys(said))

    def row(self, unit: Unit) -> SubmissionRow:
        """The row of a unit."""
        return self._row(unit, self.pick(unit))

    def _row(
        self, unit: Unit, sent: StoredSubmission | None, twins: Sequence[str] = ()
    ) -> SubmissionRow:
        """The row of a unit, of whose submissions one counts; `twins` handed in the same."""
        row = self._graded(unit, sent, twins=twins)
        return replace(row, attempts=self._attempts(unit, sent, row)) if len(unit.sent) > 1 else row

    def _graded(
        self,
        unit: Unit,
        sent: StoredSubmission | None,
        base: SubmissionRow | None = None,
        twins: Sequence[str] = (),
    ) -> SubmissionRow:
        """The row of a unit if this submission counts; `base` is the grader's verdict on it."""
        review = list(unit.review)
        if sent is None:
            base = SubmissionRow(
                unit.name, SubmissionStatus.ABSENT, 0.0, 0.0, [], reason="Nothing was handed in."
            )
        elif base is None:
            base = self._verdict(sent)
        exercises = self._weighed(base)
        if twins and _tried(base) and sent is not None and not sent.problem:
            shown = ", ".join(twins[:3]) + f" and {len(twins) - 3} more" * (len(twins) > 3)
            review.append(f"the same files as {shown}")
        exercises += [
            ExerciseRow(item.name, item.title, 0.0, item.points, extra=item.extra, by_hand=True)
            for item in self.course.by_hand
        ]
        exercises, said = applied(
            exercises, self.overrides.of(unit.keys, everyone=sent is not None)
        )
        submitted = unit.when(sent) if sent else ""
        names = (
            unit.names if self.course.extensions else frozenset[str]()
        )  # they take more memory than all the rest
        timing = self.course.timing_of(
            submitted, self._told_by(unit, sent), bool(sent and sent.late), names
        )
        if sent and sent.late and not submitted and self.course.late.penalty:
            if timing is not None and timing.late:
                review.append("late, and by how much is not known: one day was counted")
            elif timing is not None and timing.extended:
                review.append(
                    "the platform says late, and does not know of the extension; no penalty was taken"
                )
        row = replace(
            base,
            submission=unit.name,
            score=total(exercise.score for exercise in exercises),
            max_score=total(exercise.max_score for exercise in exercises if not exercise.extra),
            exercises=exercises,
            student=(unit.roster.name if unit.roster else "")
            or (unit.who.student if unit.who else unit.name),
            identifier=unit.who.identifier if unit.who else unit.roster.id if unit.roster else None,
            naming=unit.who.naming if unit.who else None,
            notes=[*(sent.notes if sent else ()), *base.notes],
            needs_human=[*_explained(base.needs_human, sent), *review, *said],
            record=sent.record if sent else "",
            reference=sent.reference if sent and sent.reference != self.state.reference else "",
            graded_at=sent.at if sent else "",
            roster=unit.roster,
            group=unit.group,
            gone=sent is not None and _gone(Path(sent.origin)),
        )
        return self.course.with_published_points(row, timing)

    def _told_by(self, unit: Unit, sent: StoredSubmission | None) -> str:
        if sent is None or not (sent.late or unit.when(sent)):
            return ""
        who = unit.sender or unit.who
        naming = who.naming if who else ""
        return (
            naming
            if naming not in ("plain", "classroom", "")
            else "commit"
            if sent.submitted
            else "roster"
        )

    def _attempts(
        self, unit: Unit, counts: StoredSubmission | None, row: SubmissionRow
    ) -> list[Attempt]:
        """All submissions with the points that each has in the course; `row` is that of the one that counts."""
        found = []
        for sent in unit.sent:
            score = sent.score
            worth = sent.max_score
            if sent is counts:
                score = row.score
                worth = row.max_score
            elif kept := self._kept(sent) if sent.record else self._verdict(sent):
                own = self._graded(unit, sent, kept)
                score = own.score
                worth = own.max_score
            one = Attempt(
                sent.name, sent.digest, score, worth, sent.at, sent.submitted, sent is counts
            )
            found.append(replace(one, changes=sent.changes))
        return found

    @functools.cached_property
    def parts(self) -> dict[str, tuple[str, Worth, float, float]]:
        """By exercise that is graded: its title, what it counts, what all its checks are worth, and those graded."""
        exercises = exercises_of(self.state.day)
        found = {}
        only = set(self.state.only)
        for exercise in exercises:
            worth = self.course.worth_by_exercise(exercises).get(exercise.stem)
            own = [(f.name, check.points) for f in exercise.functions for check in f.checks]
            graded = [points for name, points in own if not only or name in only]
            if worth is not None and graded:
                found[exercise.stem] = (
                    exercise.title,
                    worth,
                    total(points for _, points in own),
                    total(graded),
                )
        return found

    def _weighed(self, base: SubmissionRow) -> list[ExerciseRow]:
        if base.status is SubmissionStatus.ABSENT:
            base_rows = [
                ExerciseRow(stem, title, 0.0, graded)
                for stem, (title, _, _, graded) in self.parts.items()
            ]
        else:
            base_rows = base.exercises
        known = {exercise.exercise: exercise for exercise in base_rows}
        return [
            weigh_exercise(known[stem], part[1], part[2])
            for stem, part in self.parts.items()
            if stem in known
        ]

    @property
    def max_score(self) -> float:
        """What the whole is worth, without extra credit."""
        of_day = [
            exercise.max_score
            for exercise in self._weighed(SubmissionRow("", SubmissionStatus.ABSENT, 0.0, 0.0))
            if not exercise.extra
        ]
        return total([*of_day, *(item.points for item in self.course.by_hand if not item.extra)])

    # Results

    @functools.cached_property
    def _rules(self) -> str:
        """Tells whether points may have changed, of submissions that have not."""
        listed = (self.roster.rows, list(self.roster.submitted.items())) if self.roster else ()
        return hashlib.sha256(encoded((self.course.text, self.attempt, listed))).hexdigest()

    def _published(self) -> dict[str, tuple[str, str]]:
        """By the name in results.csv, points and maximum of what was graded, where other rules held then.

        Students who handed in under several names are found by their own, unless others have it, too."""
        with contextlib.suppress(OSError, UnicodeDecodeError, csv.Error, KeyError):
            if (self.out / RULES).read_text(encoding="utf-8") != self._rules:
                with (self.out / "results.csv").open(encoding="utf-8", newline="") as file:
                    graded = [
                        line
                        for line in csv.DictReader(file)
                        if line["status"] != SubmissionStatus.ABSENT
                    ]
                called = Counter(line["student"] for line in graded)
                own = {line["student"]: line for line in graded if called[line["student"]] == 1}
                own |= {line["submission"]: line for line in graded}
                return {name: (line["points"], line["out_of"]) for name, line in own.items()}
        return {}

    def write_results(
        self, few: Collection[str] = (), changed: Collection[str] = ()
    ) -> tuple[Path, ClassTally]:
        """Write results.json and results.csv; raises BadClass where that is not possible.

        `few` are names of submissions whose points are to be shown, `changed` those whose changes are known."""
        state = self.state
        course = self.course
        tally = ClassTally()
        rows = self.rows()
        sections = (
            {row.section for row in self.roster.rows if row.section} if self.roster else set()
        )
        header = ClassResults(
            day=state.day,
            bench=state.bench,
            torch=state.torch,
            gpudojo=state.gpudojo,
            max_score=self.max_score,
            layers=state.layers,
            reference=state.reference,
            title=course.title,
            graded_at=max(
                (sent.at for student in state.students.values() for sent in student.sent),
                default="",
            ),
            python=state.python,
            seed=state.seed,
            limits=state.limits,
            only=state.only,
            scale=course.points,
            deadline=course.deadline.isoformat() if course.deadline else "",
            attempt=self.attempt,
            visibility=course.visibility,
            by_hand=list(course.by_hand),
            sections=sorted(sections, key=natural),
            unmatched=self.unmatched,
        )

        before = self._published()
        settled = list[tuple[str, ...]]()

        def counted(rows: Iterable[SubmissionRow]) -> Iterator[SubmissionRow]:
            for row in rows:
                tally.add(row, row.submission in few)
                if before and row.submission not in changed:
                    after = number(row.final.points), number(row.final.max_points)
                    names = [
                        safe(printable(whole(name))) for name in (row.submission, row.student or "")
                    ]
                    old = next((before[name] for name in names if name in before), after)
                    if old != after:
                        most = f" of {old[1]}" * (old[1] != after[1])
                        tally.settled.append(
                            f"{row.called}: {old[0]}{most} → {after[0]} of {after[1]}"
                        )
                        settled.append(
                            (row.submission, row.student or "", old[0], after[0], "settings", "")
                        )
                yield row

        path = self.out / "results.json"
        columns = [*self.parts, *(item.name for item in course.by_hand)]
        try:
            write_csv(self.out / "results.csv", counted(writing(path, header, rows)), columns)
            if settled:
                self._write_history(settled)
            if before or not (self.out / RULES).exists():
                write(self.out / RULES, self._rules.encode(), lasting=False)
        except OSError as error:
            raise BadClass(
                f"cannot write {path}: {error.strerror}; what has been run is kept"
            ) from None
        return path, tally

    # Verdicts

    def _verdicts_of(self, reference: str, measure: str, only: tuple[str, ...]) -> VerdictStore:
        return VerdictStore(self.out, self.state.day, frozenset(only), reference, measure)

    def _kept(self, sent: StoredSubmission) -> SubmissionRow | None:
        """The verdict as it was made when the submission ran, if it is still there."""
        return (
            self._verdicts(sent.reference, sent.measure, tuple(sent.only)).kept_row(sent.record)
            if sent.record
            else None
        )

    def _verdict(self, sent: StoredSubmission) -> SubmissionRow:
        verdicts = self._verdicts(sent.reference, sent.measure, tuple(sent.only))
        if sent.record:
            return verdicts.row(sent.record)
        return verdicts.judge_unreadable(sent.problem)


def _twins(unit: Unit, sent: StoredSubmission | None, same: dict[str, list[Unit]]) -> list[str]:
    """Those outside of the student's group who handed in the same, as they are called."""
    others = [] if sent is None else [other for other in same[sent.content] if other is not unit]
    return [other.called for other in others if not unit.group or other.group != unit.group]


def _explained(reasons: Sequence[str], sent: StoredSubmission | None) -> list[str]:
    """Reasons to review; where no function was found, with what the files say about it."""
    why = (
        [f"{note[:1].lower()}{note[1:]}" for note in sent.notes if note.endswith(WRITTEN)]
        if sent
        else []
    )
    return [f"{one}: {' '.join(why)}" if why and one == NO_FUNCTIONS else one for one in reasons]


def _several(name: str, units: Sequence[Unit]) -> str:
    called = ", ".join((unit.roster.id if unit.roster else "") or unit.name for unit in units)
    return f"{len(units)} students are called {name!r}: write {called}"


def _tried(row: SubmissionRow) -> bool:
    return any(
        check.outcome in (PASSED, FAILED) for exercise in row.exercises for check in exercise.checks
    )


def _gone(origin: Path) -> bool:
    """Whether a submission was taken away; where its whole folder is elsewhere, nothing is known."""
    return not origin.exists() and origin.parent.is_dir()


def _with_unique_names(units: list[Unit]) -> list[Unit]:
    taken: set[str] = set()
    for unit in units:
        name = unit.name
        count = 1
        if folded(name) in taken and unit.roster is not None:
            name = f"{unit.name} ({unit.roster.id})"
        while folded(name) in taken:
            count += 1
            name = f"{unit.name} ({count})"
        unit.name = name
        taken.add(folded(name))
    return sorted(units, key=lambda unit: natural(unit.sorted_as))
