"""Grades a class: one run of `dojo grade`.

Submissions are listed; those without a record run, each in a child; every record is judged, here or
in other processes, and the verdict is kept in a file. When all have a verdict, the files are read
once more for the rows of the results. So a class of thousands needs little memory, and a run that
was stopped goes on where it ended.

Words: a *record* is what a run left behind, a *verdict* the judgement on it, a *row* what stands in
the results. The *status* of a submission says how it went as a whole ("graded", "timed out"), the
*outcome* of a check whether it passed. What the display is told of a verdict is its *summary*.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from gpudojo import __version__
from gpudojo.classes import judge_pool, judging, store
from gpudojo.classes.class_listing import ClassListing, KeptEntry, list_kept, refuse_mixing
from gpudojo.classes.class_opening import complete_options, find_course, open_gradebook
from gpudojo.classes.class_state import (
    ClassState,
    StoredSubmission,
    key_of_student,
    load_state,
    save_state,
    utc_now,
    version_on_disk,
)
from gpudojo.classes.class_tally import ClassTally
from gpudojo.classes.grading_options import (
    ChosenRecording,
    GradingOptions,
    name_of_secret,
    read_recorded_reference,
)
from gpudojo.classes.local_runner import LocalRunner
from gpudojo.classes.records import Record
from gpudojo.classes.reference_runs import REFERENCE, ReferenceRuns
from gpudojo.classes.result_writing import Cause, write_results
from gpudojo.classes.run_settings import ClassSettings, RunSettings, options_for_rest
from gpudojo.classes.runners import GradingTask, Progress, Runner
from gpudojo.classes.score_changes import GradedEntry, ScoreChange, add_to_class
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.classes.verdict_reporting import EqualEntries, VerdictReporter
from gpudojo.classes.verdict_store import VerdictStore
from gpudojo.model.catalogue import exercises_of, torch_version, wrong_points
from gpudojo.model.errors import BadClass
from gpudojo.model.results import RunLimits
from gpudojo.sandbox import protocol
from gpudojo.sandbox.layers import missing_layers
from gpudojo.submissions.entries import (
    IgnoredPath,
    Listing,
    ReadSubmission,
    SourceFile,
    SubmissionEntry,
)
from gpudojo.submissions.listing import list_one
from gpudojo.submissions.reading import read_submission

MOST_SHOWN: Final = 5  # submissions whose scores are listed when they are graded again
IGNORED_SHOWN: Final = 4  # paths, with the reason, where there is nothing to grade
JOBS_PER_JUDGE: Final = 8  # children for which a process that judges is worth its start


@dataclass
class GradedClass:
    """What came of a run."""

    path: Path  # of results.json
    count: int  # of submissions that were given
    ran: int  # of these, how many were run
    seconds: float
    layers: dict[str, str]  # of isolation, each with the reason why it is missing, or ""
    tally: ClassTally  # of all that is known of the class
    changes: list[ScoreChange]
    notices: list[str]  # for the teacher, about settings and files
    unmatched: list[str]  # names of those who handed in and are not on the roster
    stale: list[str]  # sentences about pages that show earlier results
    unusual_rules: list[str]  # sentences about what counts, where that is not the usual


class ClassGrading:
    """Grades a class: on this machine, unless another runner is given."""

    def __init__(
        self, options: GradingOptions, progress: Progress, runner: Runner | None = None
    ) -> None:
        """Read what is known of the class: its state, its course file, the exercises of the day.

        Nothing is run or written yet. Raises BadClass, BadFile for the course file, BadDay for the
        day's files, and BadEvidence, NoSuchSeed or NotRecorded for recorded evidence that cannot be
        used.
        """
        self._version_on_disk = version_on_disk(options.out)
        self.state = ClassState() if options.alone else load_state(options.out)
        self.course = find_course(options, self.state)
        self.options = complete_options(options, self.state, self.course)
        self.exercises = exercises_of(self.options.day)
        self.progress = progress
        self.runner = runner or LocalRunner(self.options.jobs)
        self.recorded = self._read_recorded_reference()
        self.store = store.Store(self.options.out)
        self.layers: dict[str, str] = {}
        self.ran = 0
        self._stored: dict[str, StoredSubmission] = {}  # by the name of the entry
        # The same, of those whose files are not given: as they are known.
        self._kept: dict[str, KeptEntry] = {}
        # By key of its record, the entries of equal content of which one is under way.
        self._under_way: dict[str, list[SubmissionEntry]] = {}
        self._has_begun_judging = False
        self._reporter = VerdictReporter(self._stored, self._settings_for, progress)

    def run(self) -> GradedClass:
        """Grade the class and write its results.

        The folder of the class is locked meanwhile. Raises BadClass and other DojoErrors where that
        is not possible, and OSError for files that cannot be read or written; what has run is kept.
        """
        start = time.monotonic()
        listing = self._list_submissions()
        self._refuse_unusable_options(listing)
        self.store.open()
        try:
            self._open_class()
            # Entries of a large class take many megabytes: nothing holds them after this.
            graded = self._grade_entries(listing)
            del listing
            changes = add_to_class(self.gradebook, graded)
            count = len(graded)
            few = []
            if count <= MOST_SHOWN:
                few = [each.entry.name for each in graded]
            del graded
            save_state(self.options.out, self.state)
            causes = {}
            for change in changes:
                causes[change.submission] = Cause(change.why, "\n".join(change.checks))
            written = write_results(self.gradebook, few, causes)
            return GradedClass(
                path=written.path,
                count=count,
                ran=self.ran,
                seconds=time.monotonic() - start,
                layers=self.state.layers,
                tally=written.tally,
                changes=[
                    change
                    for change in changes
                    if change.before is not None or change.submission in written.tally.were_absent
                ],
                notices=written.notices,
                unmatched=written.unmatched,
                stale=written.stale,
                unusual_rules=written.unusual_rules,
            )
        finally:
            self._reporter.close()
            self.store.close()

    def _read_recorded_reference(self) -> ChosenRecording | None:
        """The evidence that is used instead of solutions. Returns None where there are solutions.

        Raises BadClass without such evidence, and BadFile where the course needs solutions.
        BadEvidence, NoSuchSeed and NotRecorded say why the evidence cannot be used.
        """
        options = self.options
        if options.reference is not None:
            return None
        recorded = read_recorded_reference(options.day, options.bench, options.evidence)
        if self.course.seed == "per-student":
            raise self.course.bad_setting(
                "seeds per student need the reference solutions, not recorded evidence", "seed"
            )
        return recorded

    # Before anything runs

    def _list_submissions(self) -> Listing:
        """The submissions that are given, and what is graded again of those before.

        Zips of whole classes are unpacked to a folder of the store, and students of whom nothing
        but such a zip is known are taken out of the state. What is graded again is noted in
        `_kept`. Raises BadClass where they cannot be listed.
        """
        if self.options.alone:
            return list_one(self.options.submissions[0])
        folder = self.store.folder / "unpacked"
        listing = Listing((), ())
        if self.options.submissions:
            listing = ClassListing(self.options, self.state, folder).list_class()
        # What was handed in before, where it is to be graded again.
        kept = list_kept(self.options, self.state, listing.entries)
        self._kept = {each.entry.name: each for each in kept}
        entries = [*listing.entries, *(each.entry for each in kept)]
        return Listing(tuple(entries), listing.ignored)

    def _refuse_unusable_options(self, listing: Listing) -> None:
        """Raises BadClass for what cannot be graded so, before anything is written.

        That is: no submission, an unknown function, wrong points of the day, or others in the class
        that were graded in another way. Raises BadDay where the day's checks cannot be read.
        """
        options = self.options
        if not listing.entries and not options.submissions:
            raise BadClass(
                f"there is nothing to grade: {options.out} has no class yet; give SUBMISSIONS"
            )
        if not listing.entries:
            where = ", ".join(str(path) for path in options.submissions)
            reasons = [f"{each.path.name}: {each.reason}" for each in self._strange_paths(listing)]
            text = "; ".join(["", *reasons[:IGNORED_SHOWN]])
            raise BadClass(f"there is nothing to grade in {where}{text}")
        self._refuse_results_among_work(listing)
        options.graded_functions(self.exercises)  # raises for an unknown name
        if not options.only:
            problem = wrong_points(options.day)
            if problem:
                raise BadClass(f"{problem}; see: dojo lint --day {options.day}")
        refuse_mixing(options, self.state, listing.entries)

    def _refuse_results_among_work(self, listing: Listing) -> None:
        """Raises BadClass where a new class would be written into submissions, or one of them."""
        if self.options.alone or self.state.students:
            return
        out = self.options.out.resolve()
        works = [path.resolve() for path in self.options.submissions]
        is_inside = out in works
        for entry in listing.entries:
            for _, path in entry.members:
                is_inside = is_inside or path.resolve() in (out, *out.parents)
        if is_inside:
            raise BadClass(
                f"--out {self.options.out} is a folder of submissions, among which results would "
                "be lost; give another folder, such as --out graded"
            )

    def _open_class(self) -> None:
        """Read the roster, the secret and the reference, and put the settings into the state.

        A new secret is kept in a file. Raises BadClass where another run has written meanwhile or
        there are no solutions, and BadFile. OSError says that a file cannot be read or written.
        """
        options = self.options
        if version_on_disk(options.out) != self._version_on_disk:
            # What it added would be lost.
            raise BadClass(
                f"another `dojo grade` has just written to {options.out}; "
                "run the same command again"
            )
        self.gradebook = open_gradebook(
            options.out, self.state, self.course, options.roster, options.attempt
        )
        self.secret = ""
        if self.recorded is None:
            self._refuse_lost_secret()
            keep = not options.alone
            self.secret = self.store.find_or_make_secret(options.secret, keep=keep)
        self.reference_files = self._read_reference_files()
        self._settings = ClassSettings(
            options,
            self.course.seed,
            self.gradebook.roster,
            self.secret,
            self.recorded,
            self.reference_files,
            graded_before=self.state.only,
        )
        self._put_settings_into_state()
        verdicts = self._settings.settings_of_class().verdicts
        self._references = ReferenceRuns(
            self.store,
            self.reference_files,
            self.exercises,
            options.only,
            timelines_key=store.record_key(verdicts.reference_key, protocol.EVERY),
        )

    def _refuse_lost_secret(self) -> None:
        """Raises BadClass where scenarios were drawn from a secret that is no longer there.

        With a new one all would run again, on other numbers.
        """
        options = self.options
        if options.secret is not None or options.fresh or options.alone:
            return
        if self.state.students and not self.store.has_secret:
            raise BadClass(
                f"{self.store.secret_path} is gone, from which the scenarios of this class are "
                "drawn; put it back, give it with --seed, or run everything again with other "
                "scenarios: --fresh"
            )

    def _read_reference_files(self) -> dict[str, bytes]:
        """The bytes of the solutions in the folder that is given, by file name; empty without a
        folder.

        Raises BadClass where there are none in it, and OSError for one that cannot be read.
        """
        folder = self.options.reference
        if folder is None:
            return {}
        files = {}
        for path in sorted(folder.glob("*.py")):
            files[path.name] = path.read_bytes()
        if not files:
            raise BadClass(f"there are no reference solutions in {folder}")
        return files

    def _put_settings_into_state(self) -> None:
        """Put what this run uses into the state: later runs use it again.

        Seeds, limits, paths, versions and the like replace what the state had. It is not written to
        its file here.
        """
        options = self.options
        state = self.state
        state.day = options.day
        state.bench = options.bench
        state.only = sorted(options.only)
        state.chosen = sorted(options.chosen)
        if self.recorded:
            state.seed = self.recorded.name
        else:
            state.seed = name_of_secret(self.secret)
        if self.course.seed == "per-student":
            state.seed = f"per student: {state.seed}"
        state.limits = RunLimits(options.seconds, options.memory, options.gpu_memory)
        # Relative to the folder of the class, which may be moved together with them.
        state.course = ""
        if self.course.path is not None:
            state.course = os.path.relpath(self.course.path, options.out)
        if options.roster is not None:
            state.roster = os.path.relpath(options.roster, options.out)
        state.attempt = options.attempt or state.attempt
        state.torch = torch_version()
        state.gpudojo = __version__
        state.python = platform.python_version()

    def _settings_for(self, entry: SubmissionEntry) -> RunSettings:
        """What an entry runs with; only after `_open_class`."""
        return self._settings.settings_for(entry)

    # Reading

    def _grade_entries(self, listing: Listing) -> list[GradedEntry]:
        """Give every entry a verdict, and return what is kept of it, in the order of the listing.

        The layers of isolation and the key of a reference are put into the state, and the
        reference's sources are kept. What is kept of entries is taken out of `_stored`. Raises
        BadClass where they cannot be graded so, BadEvidence for recorded evidence that is damaged,
        OSError for files that cannot be read or written, and what the runner raises. Raises BadDay
        where the day cannot be imported.
        """
        entries: Sequence[SubmissionEntry] = listing.entries
        if self.options.rejudge:
            self._prepare_judging_again(entries)
        ready = self._read_and_find_ready(entries)
        entries = self._without_given_again(entries)
        self._keep_recorded_references(entries)
        self._choose_reference_of_header(entries)
        if self.course.path is not None:
            self.progress.report_preparation(f"course file: {self.course.path}")
        if self.options.named and not self.options.chosen:
            self.progress.report_preparation(self._explain_only())
        strange = self._strange_paths(listing)
        self.progress.report_submissions(len(entries), len(ready), strange)
        self._run_and_judge(entries, ready)
        if self.reference_files:
            self._keep_sources(self.state.reference, self.reference_files)
        self.state.layers = self.layers or self._layers_of_reference(entries)
        graded = []
        for entry in entries:
            submission = self._stored.pop(entry.name)
            if entry.kept:
                entry = replace(entry, name=self._kept[entry.name].student)
            graded.append(GradedEntry(entry, submission))
        return graded

    def _explain_only(self) -> str:
        """What --only does in a class that was graded for more: it takes nothing away."""
        names = ", ".join(sorted(self.options.named))
        if self.options.fresh:
            return f"--only: to run again: {names}; all else counts as before"
        return f"--only: all else counts as before; to run {names} again: --fresh"

    def _prepare_judging_again(self, entries: Sequence[SubmissionEntry]) -> None:
        """Start other processes that judge, before submissions are read: so they are small.

        The checks of the day are imported first. Raises BadDay if that fails, and OSError if a
        process cannot be started.
        """
        judging.prepare_judging(self.exercises, self.options.only)
        verdicts = self._settings.settings_of_class().verdicts
        self._reporter.start_processes(verdicts, len(entries), self.options.jobs)

    def _without_given_again(self, entries: Sequence[SubmissionEntry]) -> list[SubmissionEntry]:
        """The entries that were read, without those from the store whose files are given, too."""
        given = set()
        for entry in entries:
            if not entry.kept:
                given.add((key_of_student(entry), self._stored[entry.name].digest))
        left = []
        for entry in entries:
            if entry.kept:
                named = replace(entry, name=self._kept[entry.name].student)
                if (key_of_student(named), entry.kept) in given:
                    continue
            left.append(entry)
        return left

    def _strange_paths(self, listing: Listing) -> list[IgnoredPath]:
        """What lies among the submissions and is none, but for the course file and the roster.

        They are listed with the reason why each is ignored.
        """
        own_files = set()
        for path in (self.course.path, *self.course.rosters, self.options.roster):
            if path is not None:
                own_files.add(path.resolve())
        strange = []
        for ignored in listing.ignored:
            if ignored.path.resolve() not in own_files:
                strange.append(ignored)
        return strange

    def _layers_of_reference(self, entries: Sequence[SubmissionEntry]) -> dict[str, str]:
        """The isolation that the first reference of these entries had; empty without one.

        Each layer has the reason why it was missing, or "".
        """
        for settings in self._settings.settings_by_reference(entries).values():
            return dict(settings.verdicts.reference.layers)
        return {}

    def _choose_reference_of_header(self, entries: Sequence[SubmissionEntry]) -> None:
        """Put the key of one reference into the state: the one that is there, if it is still used.

        It is used if a submission in the state was compared with it; else the first one of these
        entries is taken. The row of a submission that is compared with another one says so.
        """
        used: set[str] = set()
        for student in self.state.students.values():
            used.update(submission.reference for submission in student.sent)
        if self.state.reference not in used:
            by_reference = self._settings.settings_by_reference(entries)
            self.state.reference = next(iter(by_reference))

    def _keep_recorded_references(self, entries: Sequence[SubmissionEntry]) -> None:
        """Keep a record of recorded evidence in the store, if it is used, for each of the entries'
        seeds.

        Raises OSError if it cannot be written, and BadEvidence for evidence that is damaged.
        """
        for key, settings in self._settings.settings_by_reference(entries).items():
            if settings.recorded is not None:
                record = settings.recorded.make_record(self.exercises, self.options.bench)
                self.store.keep_record(key, record)

    def _read_and_find_ready(self, entries: Sequence[SubmissionEntry]) -> dict[str, str]:
        """Read every entry, choose its seeds, and put what is kept of it into `_stored`.

        Returns the names of entries that need not run, each with its record's key; their sources
        are kept. What runs is read once more when it is its turn: together, the files of a class
        take too much memory. Raises OSError if sources cannot be written.
        """
        ready: dict[str, str] = {}
        for entry in entries:
            submission = self._read_submission(entry)
            if submission is None or self.options.fresh:
                continue
            settings = self._settings_for(entry)
            key = settings.record_key(submission.digest)
            if self.options.rejudge:
                is_ready = self.store.has_record_of(key, settings.run_options.known)
            else:
                is_ready = settings.verdicts.can_answer(key, settings.run_options.known)
            if is_ready:
                ready[entry.name] = key
                # Perhaps it ran in a run that was ended early.
                self._stored[entry.name].at = self.store.kept_at(key)
                if not entry.kept:
                    self._keep_sources(submission.digest, submission.contents)
        return ready

    def _read_submission(self, entry: SubmissionEntry) -> ReadSubmission | None:
        """Read a submission, choose its seeds, and put what is kept of it into `_stored`.

        Seeds that were chosen before stay. Returns None where nothing of it can be graded: then
        `problem` of what is kept says why.
        """
        if entry.kept:
            return self._read_kept_submission(entry)
        submission = read_submission(entry)
        readable = submission.problem is None
        if readable:
            self._settings.choose_seeds(entry, submission.digest)
        settings = self._settings_for(entry)
        # What is kept of it.
        record_key = ""
        if readable:
            record_key = settings.record_key(submission.digest)
        notes = list(submission.notes)
        if entry.late:
            notes.insert(0, f"Submitted late (says {entry.naming.title()}).")
        self._stored[entry.name] = StoredSubmission(
            name=entry.name,
            origin=str(entry.origin),
            digest=submission.digest,
            content=_digest_of_content(submission.files),
            at=sys.intern(utc_now()),
            record=record_key,
            reference=settings.verdicts.reference_key,
            judging_key=settings.verdicts.judging_key,
            only=self.state.only,
            problem=submission.problem or "",
            notes=notes,
            submitted=entry.submitted,
            late=entry.late,
            public_scenarios=settings.public_scenarios,
        )
        if readable:
            return submission
        return None

    def _read_kept_submission(self, entry: SubmissionEntry) -> ReadSubmission | None:
        """Read an entry whose files are in the store, and choose its seeds if it has none.

        What is kept of it in `_stored` is that of the last run, with the keys of this one. Returns
        None where that run found nothing to grade; without files, where the store has lost them.
        """
        known = self._kept[entry.name].submission
        record_key = ""
        if not known.problem:
            self._settings.choose_seeds(entry, known.digest)
        settings = self._settings_for(entry)
        if not known.problem:
            record_key = settings.record_key(known.digest)
        self._stored[entry.name] = replace(
            known,
            at=sys.intern(utc_now()),
            record=record_key,
            reference=settings.verdicts.reference_key,
            judging_key=settings.verdicts.judging_key,
            only=self.state.only,
            public_scenarios=settings.public_scenarios,
        )
        if known.problem:
            return None
        files = []
        for path, data in self.store.load_sources(known.digest).items():
            files.append(SourceFile(path, data))
        return ReadSubmission(entry, tuple(files), digest=known.digest)

    def _keep_sources(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Keep sources, by their digest, for pages and comparisons; not for a single submission.

        Only for what runs or has run, so that a run that is refused leaves nothing. Raises OSError
        if they cannot be written.
        """
        if not self.options.alone:
            self.store.keep_sources(digest, files)

    # Running

    def _run_and_judge(self, entries: Sequence[SubmissionEntry], ready: Mapping[str, str]) -> None:
        """Run and judge what has no record; with --rejudge, only judge.

        `ready` has the keys of the records there are, by the name of the entry. Verdicts are
        written and reported as they come, known ones too; before the first of them isolation is
        reported and the class's state is written. Keeps sources and records in the store, and
        scores in `_stored`. If anything has to run, sets `layers` and `ran`, and closes the runner.
        Raises BadClass without a record for --rejudge, a usable reference or the isolation that was
        asked for, OSError for files that cannot be written, and what the runner raises. Raises
        BadDay where the day cannot be imported.
        """
        # What there is to run.
        entries_ready = []
        entries_left = []
        for entry in entries:
            if entry.name in ready:
                entries_ready.append(entry)
            else:
                entries_left.append(entry)
        by_reference = self._settings.settings_by_reference(entries)
        references = self._references_to_run(by_reference)
        some_settings = next(iter(by_reference.values()))
        nothing_runs = all(self._is_known_unreadable(entry) for entry in entries_left)
        # Judge only, report only, or run.
        if self.options.rejudge:
            self._refuse_missing_records(entries_left, bool(references))
            self._judge_again(entries_ready, ready)
            self._reporter.report_known_verdicts(entries_left)
        elif nothing_runs and not references:
            self._begin_judging(some_settings, len(entries_left))
            self._reporter.report_known_verdicts(entries_ready)
            self._reporter.report_known_verdicts(entries_left)
        else:
            self._run_and_judge_rest(entries_ready, entries_left, references, some_settings)

    def _references_to_run(self, by_reference: Mapping[str, RunSettings]) -> dict[str, RunSettings]:
        """The settings for which the reference has to run, by key of its record."""
        if self.recorded is not None:
            return {}
        missing = {}
        for key, settings in by_reference.items():
            known = settings.run_options.known
            if self.options.fresh or not self.store.has_record_of(key, known):
                missing[key] = settings
        return missing

    def _refuse_missing_records(
        self, entries_left: Sequence[SubmissionEntry], lacks_reference: bool
    ) -> None:
        """Raises BadClass if --rejudge finds entries, or a reference, that have no record.

        The entries are read, which puts them into `_stored`; unreadable ones need no record.
        """
        names = []
        for entry in entries_left:
            if self._read_submission(entry) is not None:
                names.append(entry.name)
        if names:
            what = f"{len(names)} submissions (first: {names[0]})"
        elif lacks_reference:
            what = "the reference"
        else:
            return
        raise BadClass(
            f"--rejudge runs nothing, but has no record of {what} with these options and "
            "this gpudojo; leave it out"
        )

    def _is_known_unreadable(self, entry: SubmissionEntry) -> bool:
        """True if an entry was read and there is nothing in it to run."""
        stored = self._stored.get(entry.name)
        return stored is not None and bool(stored.problem)

    def _run_and_judge_rest(
        self,
        entries_ready: Sequence[SubmissionEntry],
        entries_left: Sequence[SubmissionEntry],
        references: Mapping[str, RunSettings],
        some_settings: RunSettings,
    ) -> None:
        """Run the references that are needed and the entries that are left, and judge all.

        Verdicts on those that are ready are reported first; before that, isolation is reported and
        the class's state is written. `some_settings` are those of any reference: the runner starts
        with them. Sets `layers` and `ran`, keeps records and sources in the store and scores in
        `_stored`, and closes the runner. Raises BadClass, OSError for files that cannot be written,
        and what the runner raises; what has run by then is kept. Raises BadDay where the day cannot
        be imported.
        """
        options = some_settings.run_options
        if not self._uses_judges(len(entries_left)):
            # While the process that runs submissions starts.
            judging.prepare_judging(self.exercises, self.options.only)
        try:
            self.layers = self.runner.start(options, self.progress)
            self._reporter.begin_holding(references)
            self._reporter.report_known_verdicts(entries_ready)
            tasks = self._tasks_for(entries_left, references)
            if references:
                self.progress.report_preparation(f"running {REFERENCE}")
                if self.options.require_isolation:
                    # No submission runs before it is known.
                    self.runner.run(itertools.islice(tasks, 1))
            else:
                self._begin_judging(some_settings, len(entries_left))
            # A reference, the first submission, and then what nobody waits for.
            first = itertools.islice(tasks, 2)
            timelines = self._timelines_tasks(options, [*entries_ready, *entries_left])
            self.runner.run(itertools.chain(first, timelines, tasks))
            self._reporter.wait_for_verdicts()
            self.store.wait_for_sources()
        finally:
            self.runner.close()

    def _timelines_tasks(
        self, options: protocol.RunOptions, entries: Sequence[SubmissionEntry]
    ) -> Iterator[GradingTask]:
        """The task that draws the calls of the reference, if that is to do.

        There is none for recorded evidence or a single submission, and where it was done before.
        Yields one task or none.
        """
        if self.recorded is not None or self.options.alone:
            return
        key = self._references.timelines_key
        has_timelines = self.store.has_record_of(key, options.known)
        if has_timelines and not self.options.fresh:
            return
        reference_keys = functools.partial(self._settings.settings_by_reference, entries)
        yield self._references.timelines_task(options, reference_keys)

    def _tasks_for(
        self, entries: Sequence[SubmissionEntry], references: Mapping[str, RunSettings]
    ) -> Iterator[GradingTask]:
        """Yield a task for each entry that has to run, and for each of these references, by key.

        A reference comes before the entries that are compared with it. An entry is read, and its
        sources are kept, when it is its turn; one that need not run is reported then. That raises
        OSError if a file cannot be written, and BadClass where kept files are gone or the
        reference's record cannot be read. The task of a reference raises BadClass at its end where
        that cannot be used. Raises BadDay where the day cannot be imported.
        """
        references_left = dict(references)
        for entry in self._settings.sort_by_seeds(entries):
            key = self._settings_for(entry).verdicts.reference_key
            if key in references_left:
                yield self._reference_task(references_left.pop(key), len(entries))
            task = self._begin_entry(entry)
            if task is not None:
                yield task
        # Of entries that have run before.
        for settings in references_left.values():
            yield self._reference_task(settings, len(entries))

    def _reference_task(self, settings: RunSettings, records: int) -> GradingTask:
        """The task that runs a reference, keeps its record, and then judges what waits for it.

        `records` is how many entries are to be judged. What it does at its end raises BadClass
        where the reference cannot be used or isolation is missing, and OSError or BadDay.
        """
        begin_judging = functools.partial(self._begin_judging, settings, records)
        return self._references.reference_task(settings, self.options.fresh, then=begin_judging)

    def _begin_entry(self, entry: SubmissionEntry) -> GradingTask | None:
        """Read an entry, keep its sources, and return the task that runs it.

        Returns None where another entry with equal content is under way, and, after its verdict is
        reported, for one that need not run or cannot be read. What is kept of it is put into
        `_stored`. An entry that returns a task is noted in `_under_way`, and so is one of equal
        content. Raises OSError if a file cannot be written, BadClass where its kept files are gone
        or the reference's record cannot be read, and BadDay where the day cannot be imported.
        """
        submission = self._read_submission(entry)
        if submission is None:
            self._reporter.report_known_verdicts([entry])
            return None
        settings = self._settings_for(entry)
        key = settings.record_key(submission.digest)
        if not self.options.alone and not entry.kept:
            self.store.keep_sources_soon(submission.digest, submission.contents)
        if key in self._under_way:
            self._under_way[key].append(entry)
            return None
        # It was run before, and need not run again.
        run_options = settings.run_options
        if settings.verdicts.can_answer(key, run_options.known) and not self.options.fresh:
            self._reporter.report_known_verdicts([entry])
            return None
        if not submission.files:
            raise BadClass(
                f"the files of {entry.name} are not in {self.store.folder}; "
                "give them, too: dojo grade SUBMISSIONS"
            )
        # What is known of some functions need not run again.
        known = self._record_to_complete(key)
        if known is not None:
            run_options = options_for_rest(run_options, known.asked)
        self._under_way[key] = [entry]
        run = SubmissionRun(submission.digest, submission.contents, run_options)
        done = functools.partial(self._keep_and_judge, key, known)
        return GradingTask(entry.name, run, done, time.monotonic())

    def _record_to_complete(self, key: str) -> Record | None:
        """The record with that key, to which what runs now is added; None to run everything.

        With --fresh, it is without the functions that --only names.
        """
        if not self.options.fresh:
            return self.store.load_record(key)
        if not self.options.named:
            return None
        known = self.store.load_record(key)
        if known is None:
            return None
        return known.without(self.options.named)

    def _keep_and_judge(self, key: str, known: Record | None, record: Record) -> None:
        """Keep the record of what has run, and have it judged for all entries that are equal.

        It is added to the one that is known of other functions, if there is one. The entries are no
        longer under way, and one more counts as run. While their reference is missing, they wait to
        be judged. Raises OSError if a file cannot be written, BadClass where the reference's record
        cannot be read, and BadDay where the day cannot be imported.
        """
        if known is not None:
            record = known.join_with(record)
        self.store.keep_record(key, record)
        self.ran += 1
        entries = self._under_way.pop(key)
        self._reporter.judge_or_hold(EqualEntries(entries, ran=True, has_new_record=True))

    # Judging

    def _begin_judging(self, settings: RunSettings, records: int) -> None:
        """Judge and report what has waited for the reference of these settings.

        The first time, isolation is reported, the state is written, and other processes start that
        judge so many records. Raises BadClass where the reference cannot be used, or isolation is
        missing. Raises OSError where a file cannot be written or a process not started. Raises
        BadDay where the day cannot be imported.
        """
        if not self._has_begun_judging:
            self._has_begun_judging = True
            self._begin_first_judging(settings.verdicts, records)
        self._reporter.stop_holding(settings.verdicts.reference_key)

    def _begin_first_judging(self, verdicts: VerdictStore, records: int) -> None:
        """Report isolation, write the state, and start the processes that judge so many records.

        Raises BadClass where the reference cannot be used, or isolation is missing that was asked
        for, and OSError where the state cannot be written or a process not started.
        """
        judging.require_usable_reference(verdicts.reference, self.exercises, self.options.only)
        self.layers = self.layers or dict(verdicts.reference.layers)
        self.progress.report_isolation(self.layers)
        if self.options.require_isolation:
            missing = missing_layers(self.layers)
            if missing:
                raise BadClass(f"--require-isolation: {'; '.join(missing)}")
        if not self.options.alone:
            # Before students' code is judged, for a run may be stopped; but not if it is refused.
            save_state(self.options.out, self.state)
        # This process has to keep children busy, and must not grow.
        self._reporter.start_processes(verdicts, records, self._most_judges)

    @property
    def _most_judges(self) -> int:
        """How many other processes may judge while children run."""
        return max(1, self.options.jobs // JOBS_PER_JUDGE)

    def _uses_judges(self, count: int) -> bool:
        """True if other processes judge so many records."""
        return judge_pool.count_of_processes(count, self._most_judges) > 0

    def _judge_again(self, entries: Sequence[SubmissionEntry], ready: Mapping[str, str]) -> None:
        """Judge the records of these entries, and report the verdicts.

        `ready` has the key of each record, by the name of the entry. Equal entries are judged once,
        and verdicts are written. Raises OSError if one cannot be written, BadClass where the
        reference's record cannot be read, and BadDay where the day cannot be imported.
        """
        equal_by_key: dict[str, list[SubmissionEntry]] = {}
        for entry in entries:
            key = ready[entry.name]
            equal_by_key.setdefault(key, []).append(entry)
        for equal in equal_by_key.values():
            self._reporter.judge_or_hold(EqualEntries(equal, ran=False, has_new_record=True))
        self._reporter.wait_for_verdicts()


def _digest_of_content(files: Sequence[SourceFile]) -> str:
    """A digest that is equal for the same work, whatever its files, folders and line ends are."""
    digests = []
    for file in files:
        text = file.data.replace(b"\r\n", b"\n").strip()
        digests.append(hashlib.sha256(text).digest())
    digests.sort()
    whole = hashlib.sha256(b"".join(digests))
    return whole.hexdigest()[:32]
