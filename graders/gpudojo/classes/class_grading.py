"""Grades a class, with progress and a summary in the terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import platform
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gpudojo import __version__
from gpudojo.classes import fingerprints, judge_pool, judging, store
from gpudojo.classes.class_state import (
    STATE,
    ClassState,
    StoredSubmission,
    key_of_student,
    load_state,
    save_state,
    utc_now,
    version_on_disk,
)
from gpudojo.classes.class_tally import ClassTally
from gpudojo.classes.course_file import find_course_file, load_course
from gpudojo.classes.course_rules import CourseRules
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.grading_options import GradingOptions, name_of, recorded
from gpudojo.classes.judge_pool import POOL_ERRORS, JudgePool
from gpudojo.classes.local_runner import GradingTask, LocalRunner, Progress, Runner
from gpudojo.classes.names import name_key
from gpudojo.classes.result_writing import RULES_CHANGED, write_results
from gpudojo.classes.roster import read_roster
from gpudojo.classes.score_changes import GradedEntry, ScoreChange, add_to_class
from gpudojo.classes.store import Record, UnreadRecord
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.classes.verdict_store import VerdictStore, VerdictSummary
from gpudojo.grading.references import PUBLIC_SEEDS
from gpudojo.model.catalogue import exercises_of, torch_version, wrong_points
from gpudojo.model.errors import BadClass, printable_text
from gpudojo.model.results import AttemptRule, RunLimits, SubmissionStatus
from gpudojo.sandbox import protocol
from gpudojo.sandbox.layers import describe_layers, missing_layers
from gpudojo.sandbox.protocol import RunOptions
from gpudojo.submissions.entries import (
    IgnoredPath,
    Kind,
    Listing,
    ReadSubmission,
    SourceFile,
    SubmissionEntry,
    digest,
)
from gpudojo.submissions.listing import is_submission, list_one, list_submissions, unpacked
from gpudojo.submissions.reading import read

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


REFERENCE: Final = "the reference solutions"
FEW: Final = 5  # submissions whose scores are listed when they are graded again
BUSY: Final = 8  # children for which a process that judges is worth its start


@dataclass
class GradedClass:
    """What came of a run."""

    path: Path
    count: int
    ran: int
    seconds: float
    layers: dict[str, str]
    tally: ClassTally
    changes: list[ScoreChange]
    notices: list[str]
    unmatched: list[str]


@dataclass(frozen=True)
class Terms:
    """What a submission runs with and is judged by: the same for all, unless each student has a seed."""

    conditions: tuple[str, ...]
    run_options: RunOptions
    verdicts: VerdictStore

    def key(self, content: str) -> str:
        return store.key_of(content, *self.conditions)


def course_of(options: GradingOptions, state: ClassState) -> CourseRules:
    """The rules of the course: of the file given, of the one of the last run, or of the one beside the submissions."""
    if options.alone:
        return CourseRules()
    if options.course is not None:
        return load_course(options.course)
    with contextlib.suppress(BadClass):
        if (known := course_at(options.out, state)).path is not None:
            return known
    path = find_course_file(options.submissions)
    return load_course(path) if path is not None else course_at(options.out, state)


def course_at(out: Path, state: ClassState) -> CourseRules:
    """The rules in the file of the last run; raises BadClass where it is gone."""
    if not state.course:
        return CourseRules()
    path = Path(os.path.normpath(out / state.course))
    if not path.is_file():
        said = "give another one, which may be empty: dojo grade --course FILE"
        raise BadClass(f"the course file of this class is gone: {path}; {said}")
    return load_course(path)


def open_gradebook(
    out: Path,
    state: ClassState,
    rules: CourseRules,
    roster: Path | None = None,
    attempt: AttemptRule | None = None,
) -> Gradebook:
    """The class in a folder, with its course, roster and overrides."""
    path = roster or rules.roster or (out / state.roster if state.roster else None)
    people = read_roster(path, rules.zone) if path is not None else None
    return Gradebook(
        out, state, rules, people, attempt or rules.attempt or state.attempt or "latest"
    )


class _BeingJudged(NamedTuple):
    """A record that is judged: by another process, or by this one when it is its turn."""

    future: Future[VerdictSummary] | None
    entries: list[SubmissionEntry]  # that handed in the same
    ran: bool  # the first of them, in this run

    @property
    def is_done(self) -> bool:
        return self.future is None or self.future.done()


class ClassGrading:
    """Grades a class: one run of `dojo grade`, on this machine unless another runner is given."""

    def __init__(
        self, options: GradingOptions, progress: Progress, runner: Runner | None = None
    ) -> None:
        self._version_on_disk = version_on_disk(options.out)
        self.state = ClassState() if options.alone else load_state(options.out)
        self.course = course_of(options, self.state)
        options = _settled(options, self.state, self.course)
        self.exercises = exercises_of(options.day)
        self.options = options = dataclasses.replace(
            options, only=options.chosen(options.only, self.exercises)
        )
        self.progress = progress
        self.runner = runner or LocalRunner(options.jobs)
        self.recorded = (
            None if options.reference else recorded(options.day, options.bench, options.evidence)
        )
        if self.recorded and self.course.seed == "per-student":
            raise self.course.bad_setting(
                "seeds per student need the reference solutions, not recorded evidence", "seed"
            )
        self.store = store.Store(options.out)
        self.layers: dict[str, str] = {}
        self.sent: dict[str, StoredSubmission] = {}  # by the name of its entry
        self.ran = 0
        self.judges: JudgePool | None = None
        self._held: list[tuple[SubmissionEntry, bool]] | None = None
        self._judged: deque[_BeingJudged] = deque()

    def run(self) -> GradedClass:
        options = self.options
        began = time.monotonic()
        found = list_one(options.submissions[0]) if options.alone else self._listed()
        if not found.entries:
            where = ", ".join(str(path) for path in options.submissions)
            raise BadClass(f"there is nothing to grade in {where}")
        options.functions(self.exercises)  # before anything is made
        if not options.only and (problem := wrong_points(options.day)):
            raise BadClass(f"{problem}; see: dojo lint --day {options.day}")
        entries = found.entries
        self._refuse_mixing(entries)
        self.store.open()
        try:
            if version_on_disk(options.out) != self._version_on_disk:  # what it added would be lost
                raise BadClass(
                    f"another `dojo grade` has just written to {options.out}; run the same command again"
                )
            self.gradebook = open_gradebook(
                options.out, self.state, self.course, options.roster, options.attempt
            )
            self.secret = (
                "" if self.recorded else self.store.secret(options.secret, keep=not options.alone)
            )
            self.reference = self._reference_files()
            self._terms_of = functools.lru_cache(4)(self._make_terms)
            self._note_settings()
            if self.recorded:
                self.store.keep(
                    self.state.reference, self.recorded.record(self.exercises, self.options.bench)
                )
            if options.rejudge and self.course.seed == "per-class":
                verdicts = self._terms_of(self.secret).verdicts
                judging.prepare_judging(self.exercises, options.only)
                self.judges = JudgePool(verdicts, len(entries), options.jobs)
            ready = {} if options.fresh else self._ready(entries)
            ours = [
                path.resolve()
                for path in (self.course.path, self.course.roster, options.roster)
                if path
            ]
            ignored = [one for one in found.ignored if one.path.resolve() not in ours]
            if self.course.path is not None:
                self.progress.prepares(f"course file: {self.course.path}")
            self.progress.begins(len(entries), len(ready), ignored)
            self._all_run(entries, ready)
            if self.reference:
                self._keep_sources(self.state.reference, self.reference)
            self.state.layers = self.layers or dict(
                self._terms(entries[0]).verdicts.reference.layers
            )
            graded = [GradedEntry(entry, self.sent.pop(entry.name)) for entry in entries]
            changes = add_to_class(self.gradebook, graded)
            count = len(entries)
            few = {entry.name for entry in entries} if count <= FEW else set()
            del found, entries, ready  # of a large class they take many megabytes
            save_state(options.out, self.state)
            path, tally = write_results(
                self.gradebook, few, {change.submission for change in changes}
            )
            seconds = time.monotonic() - began
            book = self.gradebook
            told = (tally, changes, book.notices, book.unmatched)
            return GradedClass(path, count, self.ran, seconds, self.state.layers, *told)
        finally:
            if self.judges is not None:
                self.judges.close()
            self.store.close()

    def _listed(self) -> Listing:
        """The submissions; the zip of a class, as a platform packs it, is unpacked first.

        One that lies among submissions may be a student's, and is opened if it was given by itself before."""
        options = self.options
        folder = self.store.folder / "unpacked"
        for path in options.submissions:
            if _graded(path) and path.resolve() != options.out.resolve():
                raise BadClass(
                    f"{path} holds results of `dojo grade`; give the folder of submissions"
                )
        try:
            opened = {
                Path(os.path.abspath(path)): unpacked(path, folder) for path in options.submissions
            }
            found = list_submissions(list(opened.values()))
            if folder.is_dir():
                packed = [entry.origin for entry in found.entries if entry.kind is Kind.ZIP]
                known = {
                    path: inside
                    for path in packed
                    if (inside := unpacked(path, folder, known=True)) != path
                }
                opened |= known
                found = list_submissions(list(opened.values())) if known else found
        except OSError as error:
            raise BadClass(f"cannot write {error.filename}: {error.strerror}") from None
        classes = {path for path, inside in opened.items() if path != inside and path.is_file()}
        for who, student in list(self.state.students.items()):
            if student.sent and all(
                sent.problem and Path(sent.origin) in classes for sent in student.sent
            ):
                del self.state.students[who]  # it is known by now whose work it holds
        aside = {*classes, Path(os.path.abspath(options.out)) / "report"}
        kept = [
            entry
            for entry in found.entries
            if entry.origin not in aside and not _graded(entry.origin)
        ]
        return Listing(tuple(kept), found.ignored)

    def _refuse_mixing(self, entries: Sequence[SubmissionEntry]) -> None:
        """Rows of other functions or days cannot stand in one table."""
        others = set(self.state.students) - {key_of_student(entry) for entry in entries}
        before, after = (
            (self.state.day, self.state.only),
            (self.options.day, sorted(self.options.only)),
        )
        if others and before != after:
            what = f"{before[0]}, {', '.join(before[1]) or 'all functions'}"
            given = " ".join(f"--only {name}" for name in before[1][:4]) + " …" * (
                len(before[1]) > 4
            )
            same = (
                f"give --day {before[0]}"
                if before[0] != after[0]
                else f"give {given}"
                if given
                else "leave out --only"
            )
            more = "1 more submission" if len(others) == 1 else f"{len(others)} more submissions"
            raise BadClass(
                f"{self.options.out} has {more}, graded for {what}; {same}, "
                "grade all of them again, or use another --out"
            )

    def _note_settings(self) -> None:
        """Puts the settings into the state: later runs use them again."""
        options = self.options
        state = self.state
        state.day, state.bench, state.only = options.day, options.bench, sorted(options.only)
        state.seed = self.recorded.name if self.recorded else name_of(self.secret)
        if self.course.seed == "per-student":
            state.seed = f"per student: {state.seed}"
        state.limits = RunLimits(options.seconds, options.memory, options.gpu_memory)
        # Relative to the folder of the class, which may be moved together with them.
        state.course = os.path.relpath(self.course.path, options.out) if self.course.path else ""
        state.roster = (
            os.path.relpath(options.roster, options.out) if options.roster else state.roster
        )
        state.attempt = options.attempt or state.attempt
        state.torch = torch_version()
        state.gpudojo = __version__
        state.python = platform.python_version()
        state.reference = self._terms_of(self.secret).verdicts.reference_key

    def _terms(self, entry: SubmissionEntry) -> Terms:
        if self.course.seed == "per-class":
            return self._terms_of(self.secret)
        who = key_of_student(entry)
        if (roster := self.gradebook.roster) is not None:
            rows, _ = roster.people(entry.identifier, (entry.student, entry.name), entry.people)
            who = f"roster:{name_key(roster.rows[rows[0]].id)}" if len(rows) == 1 else who
        return self._terms_of(f"{self.secret}\0{who}")

    def _make_terms(self, secret: str) -> Terms:
        options = self.options
        day = self.options.day
        conditions = options.conditions(secret, self.recorded)
        files = tuple(SourceFile(name, data) for name, data in self.reference.items())
        reference = store.key_of(digest(files) if files else "evidence", "reference", *conditions)
        measure = store.key_of(reference, fingerprints.fingerprint_of_judging(day))
        verdicts = VerdictStore(options.out, day, options.only, reference, measure)
        return Terms(
            conditions, options.run_options(self.exercises, secret, self.recorded), verdicts
        )

    def _reference_files(self) -> dict[str, bytes]:
        folder = self.options.reference
        if folder is None:
            return {}
        files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
        if not files:
            raise BadClass(f"there are no reference solutions in {folder}")
        return files

    def _ready(self, entries: Sequence[SubmissionEntry]) -> dict[str, str]:
        """The names of submissions that need not run, each with its record's key."""
        ready: dict[str, str] = {}
        if not self.recorded and not self.store.used:
            return ready  # nothing has run: each submission is read when it is its turn
        for entry in entries:
            submission = self._read(entry)
            terms = self._terms(entry)
            if submission is None:
                continue
            key = terms.key(submission.digest)
            # What is judged again is read then: here it is enough that the record is there.
            known = self.store.has(key) if self.options.rejudge else terms.verdicts.can_answer(key)
            if known:
                ready[entry.name] = key
                self.sent[entry.name].at = self.store.kept_at(
                    key
                )  # by a run that was ended early, perhaps
                self._keep_sources(submission.digest, submission.contents)
        return ready

    def _read(self, entry: SubmissionEntry) -> ReadSubmission | None:
        """A submission, or None where nothing of it can be graded; what is kept of it is in `sent`."""
        submission = read(entry)
        terms = self._terms(entry)
        late = [f"Submitted late (says {entry.naming.title()})."] if entry.late else []
        self.sent[entry.name] = StoredSubmission(
            entry.name,
            str(entry.origin),
            submission.digest,
            _content(submission.files),
            sys.intern(utc_now()),
            record="" if submission.problem is not None else terms.key(submission.digest),
            reference=terms.verdicts.reference_key,
            measure=terms.verdicts.measure,
            only=self.state.only,
            problem=submission.problem or "",
            notes=[*late, *submission.notes],
            submitted=entry.submitted,
            late=entry.late,
        )
        return submission if submission.problem is None else None

    def _keep_sources(self, digest: str, files: Mapping[str, bytes]) -> None:
        """For pages and comparisons; only of what runs or has run, so that a run that is refused leaves nothing."""
        if not self.options.alone:
            self.store.keep_sources(digest, files)

    # Running

    def _all_run(self, entries: Sequence[SubmissionEntry], ready: dict[str, str]) -> None:
        """Run what has not been run."""
        left = [entry for entry in entries if entry.name not in ready]
        references = [] if self.recorded else self._without_reference(entries)
        if self.options.rejudge:
            unknown = [entry.name for entry in left if self._read(entry) is not None]
            if unknown or references:
                what = (
                    f"{len(unknown)} submissions (first: {unknown[0]})"
                    if unknown
                    else "the reference"
                )
                said = f"--rejudge runs nothing, but has no record of {what} with these options and this gpudojo"
                raise BadClass(f"{said}; leave it out")
            self._tell_ready(entries, ready)
            for entry in left:
                self._tell(entry, ran=False)
            return
        first = self._terms(entries[0])
        if not references and all(
            (sent := self.sent.get(entry.name)) and sent.problem for entry in left
        ):
            self._begin(first, entries, ready)
            for entry in left:  # what cannot be read need not run
                self._tell(entry, ran=False)
            return
        processes = judge_pool.count_of_processes(len(left), self._others)
        if self.course.seed != "per-class" or not processes:
            # While the process that runs submissions starts.
            judging.prepare_judging(self.exercises, self.options.only)
        try:
            self.layers = self.runner.start(first.run_options, self.progress)
            drawing = self._drawing_task(entries)
            if references:
                every = f" for {len(references)} students" * (len(references) > 1)
                self.progress.prepares(f"running {REFERENCE}{every}")
            if len(references) == 1 and not self.options.require_isolation:
                # Submissions run beside it; what they did is judged once it is done.
                self._held = []
                begin, tasks = (
                    functools.partial(self._begin, first, entries, ready),
                    self._tasks(left),
                )
                one = itertools.islice(tasks, 1)
                self.runner.run(
                    itertools.chain(self._reference_tasks(references, begin), one, drawing, tasks)
                )
            else:
                self.runner.run(self._reference_tasks(references))
                self._begin(first, entries, ready)
                self.runner.run(itertools.chain(drawing, self._tasks(left)))
            self._tell_judged(wait=True)
            self.store.sources_kept()
        finally:
            self.runner.close()

    def _begin(
        self, first: Terms, entries: Sequence[SubmissionEntry], ready: dict[str, str]
    ) -> None:
        """Begin to judge; raises BadClass where the reference cannot be used, or isolation is missing."""
        judging.require_usable_reference(
            first.verdicts.reference, self.exercises, self.options.only
        )
        self.layers = self.layers or dict(first.verdicts.reference.layers)
        self.progress.isolated(self.layers)
        if self.options.require_isolation and missing_layers(self.layers):
            raise BadClass(f"--require-isolation: {'; '.join(missing_layers(self.layers))}")
        if (
            not self.options.alone
        ):  # before students' code is judged, for a run may be stopped; not if it is refused
            save_state(self.options.out, self.state)
        held = self._held or []
        self._held = None
        self._tell_ready(entries, ready)
        if (
            self.course.seed == "per-class"
        ):  # this process has to keep children busy, and must not grow
            self.judges = JudgePool(first.verdicts, len(entries) - len(ready), self._others)
        for entry, ran in held:
            if ran:
                self._judge([entry])
            else:
                self._tell(entry, ran)

    @property
    def _others(self) -> int:
        """How many other processes may judge while children run."""
        return max(1, self.options.jobs // BUSY)

    def _every_term(self, entries: Sequence[SubmissionEntry]) -> dict[str, Terms]:
        """The terms by key of the reference's record: one, or one for each student."""
        some = entries if self.course.seed == "per-student" else entries[:1]
        return {terms.verdicts.reference_key: terms for terms in map(self._terms, some)}

    def _without_reference(self, entries: Sequence[SubmissionEntry]) -> list[Terms]:
        """The terms for which the references have to run."""
        every = self._every_term(entries).items()
        if len(every) == 1 and not self.options.fresh:  # it is read for good
            return [terms for _, terms in every if not terms.verdicts.has_reference]
        return [
            terms for key, terms in every if self.options.fresh or self.store.record(key) is None
        ]

    def _reference_tasks(
        self, every: Sequence[Terms], then: Callable[[], None] = lambda: None
    ) -> Iterator[GradingTask]:
        for terms in every:

            def done(sent: UnreadRecord, key: str = terms.verdicts.reference_key) -> None:
                judging.require_usable_reference(
                    record := sent.whole(), self.exercises, self.options.only
                )
                self.store.keep(key, _with_timelines(record, self.store.record(self._drawn_key)))
                then()

            options = msgspec.structs.replace(terms.run_options, drawn=protocol.NONE)
            yield GradingTask(
                REFERENCE,
                SubmissionRun("reference", self.reference, options),
                done,
                time.monotonic(),
            )

    @property
    def _drawn_key(self) -> str:
        """Of the record with the timelines of the reference; the seed is public, since pictures are for everybody."""
        return store.key_of(self._terms_of(self.secret).verdicts.reference_key, protocol.EVERY)

    def _drawing_task(self, entries: Sequence[SubmissionEntry]) -> Iterator[GradingTask]:
        """The task that draws the calls of the reference, if that is to do; nothing waits for it."""
        if (
            self.recorded
            or self.options.alone
            or (self.store.has(self._drawn_key) and not self.options.fresh)
        ):
            return

        def done(sent: UnreadRecord) -> None:
            self.store.keep(self._drawn_key, drawn := sent.whole())
            for key in self._every_term(entries):
                if (
                    record := self.store.record(key)
                ) is not None:  # a reference that still runs adds them itself
                    self.store.keep(key, _with_timelines(record, drawn))

        options = self._terms(entries[0]).run_options
        seeds = dict.fromkeys(options.seeds, PUBLIC_SEEDS[0])
        options = msgspec.structs.replace(options, drawn=protocol.EVERY, seeds=seeds)
        run = SubmissionRun("reference", self.reference, options)
        yield GradingTask(f"timelines of {REFERENCE}", run, done, time.monotonic())

    def _tell_ready(self, entries: Sequence[SubmissionEntry], ready: dict[str, str]) -> None:
        known = [entry for entry in entries if entry.name in ready]
        if not self.options.rejudge:
            for entry in known:
                self._tell(entry, ran=False)
            return
        by_key: dict[str, list[SubmissionEntry]] = {}
        for entry in known:
            by_key.setdefault(ready[entry.name], []).append(entry)
        for same in by_key.values():
            self._judge(same, ran=False)
        self._tell_judged(wait=True)

    def _tasks(self, entries: Sequence[SubmissionEntry]) -> Iterator[GradingTask]:
        """One task after another; a submission is read when it is its turn."""
        busy: dict[str, list[SubmissionEntry]] = {}  # of submissions with equal content one is run
        for entry in entries:
            submission = self._read(entry)
            terms = self._terms(entry)
            if submission is None:
                self._tell(entry, ran=False)
                continue
            key = terms.key(submission.digest)
            files = submission.contents
            if not self.options.alone:
                self.store.keep_sources_soon(submission.digest, files)
            if key in busy:
                busy[key].append(entry)
                continue
            if terms.verdicts.can_answer(key) and not self.options.fresh:
                self._tell(entry, ran=False)
                continue
            busy[key] = [entry]
            run = SubmissionRun(submission.digest, files, terms.run_options)

            def done(record: UnreadRecord, key: str = key) -> None:
                self.store.keep(key, record)
                self.ran += 1
                self._judge(busy.pop(key))

            yield GradingTask(entry.name, run, done, time.monotonic())

    def _judge(self, entries: list[SubmissionEntry], ran: bool = True) -> None:
        """Judge what was handed in by these, which is the same; `ran`: for the first of them, now."""
        if self._held is not None:  # there is no reference yet to judge by
            self._held += [(entry, ran and entry is entries[0]) for entry in entries]
            return
        key = self.sent[entries[0].name].record
        future = self.judges.submit(key) if self.judges else None
        self._judged.append(_BeingJudged(future, entries, ran))
        self._tell_judged(wait=False)

    def _tell_judged(self, wait: bool) -> None:
        """Report what other processes have judged; what they could not judge is judged here."""
        while self._judged and (wait or self._judged[0].is_done):
            future, entries, ran = self._judged.popleft()
            summary = None
            if future is not None:
                # Its process was killed: whatever it was, it is judged here.
                with contextlib.suppress(*POOL_ERRORS):
                    summary = future.result()
            if summary is None:
                key = self.sent[entries[0].name].record
                summary = VerdictSummary.of(self._terms(entries[0]).verdicts.judge(key))
            for number, entry in enumerate(entries):
                self._tell(entry, ran and number == 0, summary)

    def _tell(self, entry: SubmissionEntry, ran: bool, known: VerdictSummary | None = None) -> None:
        """Report one more result, which is on disk; without a reference it is held back."""
        if self._held is not None:
            self._held.append((entry, ran))
            return
        sent = self.sent[entry.name]
        verdicts = self._terms(entry).verdicts
        if known is None and sent.record:
            known = verdicts.summary(sent.record)
        elif known is None:
            known = VerdictSummary.of(verdicts.judge_unreadable(sent.problem))
        sent.score, sent.max_score = known.score, known.max_score
        self.progress.graded(entry.name, known.status, ran)


def _settled(options: GradingOptions, state: ClassState, rules: CourseRules) -> GradingOptions:
    """The options with those of the last run, or of the course, where the user did not ask for others."""
    asked = options.asked
    limits = state.limits
    changed: dict[str, Any] = {}
    if asked is not None:
        if "day" not in asked and (known := rules.day or state.day):
            changed["day"] = known
        if "bench" not in asked and state.day:
            changed["bench"] = state.bench
        if limits is not None:
            same = {"seconds", "memory", "gpu_memory"} - asked
            changed |= {name: getattr(limits, name) for name in same}
    day = changed.get("day", options.day)
    if options.reference is None and options.references is not None:
        changed["reference"] = options.references / day
    if rules.worths and not options.only:
        exercises = exercises_of(day)
        chosen = rules.worth_by_exercise(exercises)
        if len(chosen) < len(exercises):
            functions = [
                function.name
                for each in exercises
                if each.stem in chosen
                for function in each.functions
            ]
            changed["only"] = frozenset(functions)
    return dataclasses.replace(options, **changed)


def _with_timelines(record: Record, drawn: Record | None) -> Record:
    """The record of a reference with timelines of another run of it."""
    known = {} if drawn is None else drawn.seen
    seen = {
        k: msgspec.structs.replace(f, timelines=known[k].timelines)
        for k, f in record.seen.items()
        if k in known
    }
    return msgspec.structs.replace(record, seen=record.seen | seen)


def _graded(folder: Path) -> bool:
    """Whether a folder holds results of `dojo grade` and nobody's work."""
    return (folder / STATE).is_file() and not is_submission(folder)


def _content(files: Sequence[SourceFile]) -> str:
    """Tells whether two submissions are the same work, whatever their files, folders and line ends are."""
    parts = sorted(
        hashlib.sha256(file.data.replace(b"\r\n", b"\n").strip()).digest() for file in files
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


EVERY: Final = 5.0  # seconds between two lines where there is no terminal
SHOWN: Final = 3  # of the submissions under way, the slowest
BAR: Final = 30
MOST: Final = 20  # lines of a list


class PlainConsole:
    """Prints where there is no terminal, and so neither colours nor a moving picture, without importing Rich."""

    def print(self, text: str, **style: object) -> None:
        print(text)


# With one of these, Rich takes any output for a terminal.
FORCED: Final = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"})


def console_here() -> Console | PlainConsole:
    """What prints to the standard output."""
    if not (sys.stdout.isatty() or FORCED & os.environ.keys()):
        return PlainConsole()
    from rich.console import Console

    return Console(highlight=False)


class Display:
    """Shows progress in the terminal, and a summary at the end; without a console, nothing."""

    def __init__(self, console: Console | PlainConsole | None) -> None:
        self.console = console
        self.count = self.done = self.known = 0
        self.doing = "looking for submissions"
        self.tasks: Sequence[GradingTask] = ()
        self.statuses: Counter[str] = Counter()
        self._began = time.monotonic()
        self._running = 0.0
        self._ran = 0
        self._live: Live | None = None
        self._spoken = 0.0

    # told by the grading

    def begins(self, count: int, known: int, ignored: Sequence[IgnoredPath]) -> None:
        self.count = count
        self.known = known
        kept = f", {known} already run" if known else ""
        self._say(f"{count} submission{'s' * (count != 1)}{kept}")
        for one in ignored[:10]:
            self._say(f"ignored: {one.path.name}: {one.reason}")
        if len(ignored) > 10:
            self._say(f"ignored: {len(ignored) - 10} more")

    def prepares(self, what: str) -> None:
        self.doing = what
        self._say(what)

    def isolated(self, layers: dict[str, str]) -> None:
        self.doing = "grading"
        self._running = time.monotonic()
        self._say(describe_layers(layers), style="yellow" if missing_layers(layers) else "")

    def under_way(self, tasks: Sequence[GradingTask]) -> None:
        self.tasks = tasks
        self._refresh()

    def graded(self, submission: str, status: SubmissionStatus, ran: bool) -> None:
        self.done += 1
        self._ran += ran
        self.statuses[str(status)] += 1
        self._refresh()

    # while it runs

    def __enter__(self) -> Display:
        if (
            self.console is not None
            and not isinstance(self.console, PlainConsole)
            and self.console.is_terminal
        ):
            from rich.live import Live

            self._live = Live(
                console=self.console,
                refresh_per_second=8,
                transient=True,
                get_renderable=self._picture,
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, text: str, style: str = "") -> None:
        if self.console is not None:
            text = printable_text(text, keep="\n")
            self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live is not None or self.console is None:
            return
        now = time.monotonic()
        if now - self._spoken >= EVERY and self.done < self.count and self._running:
            self._spoken = now
            self._say(self._line())

    def _line(self) -> str:
        slowest = self._slowest()
        now = f"; running: {', '.join(slowest)}" if slowest else ""
        return f"{self.done}/{self.count} graded{self._speed()}{now}"

    def _speed(self) -> str:
        took = time.monotonic() - self._running
        if self._ran < 3 or took <= 0:
            return ""
        rate = self._ran / took
        left = (self.count - self.done) / rate
        return f", {rate:.1f}/s, {_time(left)} left"

    def _slowest(self) -> list[str]:
        now = time.monotonic()
        slow = sorted(self.tasks, key=lambda task: task.began)[:SHOWN]
        return [
            f"{printable_text(task.name)} ({now - task.began:.0f} s)"
            for task in slow
            if now - task.began >= 1.0
        ]

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        counts = ", ".join(f"{count} {status}" for status, count in self.statuses.most_common())
        table.add_row(
            Text(f"{self.done}/{self.count}", style="bold"),
            ProgressBar(total=max(self.count, 1), completed=self.done, width=BAR),
            Text(f"{_time(time.monotonic() - self._began)}{self._speed()}"),
        )
        lines: list[RenderableType] = [table, Text(counts or self.doing, style="dim")]
        slowest = self._slowest()
        if slowest:
            lines.append(Text(f"running: {', '.join(slowest)}", style="dim"))
        return Group(*lines)

    # at the end

    def summary(self, outcome: GradedClass) -> None:
        """Print the scores, the most-failed checks and misconceptions, what changed, and what needs review.

        All that is known of the class is counted, and not only what was graded now.
        """
        if self.console is None:
            return
        from gpudojo.model.catalogue import misconceptions

        tally = outcome.tally
        seconds = outcome.seconds
        ran = outcome.ran
        count = sum(tally.statuses.values())
        counts = ", ".join(f"{count} {status}" for status, count in tally.statuses.most_common())
        rate = f" ({ran / seconds:.1f}/s)" if ran > 1 and seconds > 0 else ""
        who = "student" if tally.shared or "absent" in tally.statuses else "submission"
        whole = f"{count} {who}{'s' * (count != 1)}"
        self._say(f"\n{whole}: {counts}. {ran} graded in {_time(seconds)}{rate}.", style="bold")
        marked = {
            "late": tally.late,
            "with overrides": tally.overridden,
            "still to grade by hand (0 points until then)": tally.to_grade,
        }
        if said := ", ".join(f"{number} {what}" for what, number in marked.items() if number):
            self._say(f"{said}.")
        self._distribution(tally)
        if hardest := tally.statistics.hardest[:5]:
            head = f"{'failed':>8} {'absent':>7} {'attempted':>10}"
            lines = [
                f"{each.failed:>8} {each.absent:>7} {each.attempted:>10}  {each.id}"
                for each in hardest
            ]
            self._list("Most-missed checks", [head, *lines])
        mistakes = [
            (misconceptions().get(name), name, count)
            for name, count in tally.mistakes.most_common(5)
        ]
        named = [f"{count:>5}  {known.name if known else name}" for known, name, count in mistakes]
        self._list("Most common misconceptions", named)
        wide = " " * 7
        if outcome.count < count:
            self._list("Graded now", [f"{wide}{line}" for line in tally.now])
        self._list("Changed", [f"{wide}{change}" for change in outcome.changes])
        self._list(RULES_CHANGED, [wide + line for line in tally.settled])
        self._list(
            "Gone: the files are no longer there, the results are kept",
            [wide + name for name in tally.gone],
        )
        self._list("Not on the roster", [wide + name for name in outcome.unmatched])
        self._list("Settings and files to look at", [wide + notice for notice in outcome.notices])
        more = tally.reviews - len(tally.review)
        self._list("Needs review", [f"{wide}{name}: {why}" for name, why in tally.review], more)

    def _list(self, title: str, lines: Sequence[str], more: int = 0) -> None:
        if not lines:
            return
        self._say(f"\n{title}", style="bold")
        for line in lines[:MOST]:
            self._say(line)
        if more := more + max(0, len(lines) - MOST):
            self._say(f"       … and {more} more: see results.csv")

    def _distribution(self, tally: ClassTally) -> None:
        if not (shares := tally.shares):
            return
        bins = Counter(min(int(share // 10), 9) for share in shares)
        most = max(bins.values())
        what = (
            "Published points in percent, of those who handed in"
            if tally.scaled
            else "Scores in percent"
        )
        self._say(f"\n{what}: mean {sum(shares) / len(shares):.1f}", style="bold")
        for tenth in range(10):
            count = bins[tenth]
            name = f"{tenth * 10:>3}–{tenth * 10 + 10 if tenth == 9 else tenth * 10 + 9}"
            self._say(f"{name:>8}  {'█' * round(BAR * count / most)} {count or ''}".rstrip())


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if seconds >= 60 else f"{seconds:.1f} s"
