"""Grades a class."""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gpudojo import __version__
from gpudojo.classes import grading_options, judging, store
from gpudojo.classes.grading_options import GradingOptions, recorded
from gpudojo.classes.judging import Verdicts, row_of
from gpudojo.classes.local_runner import GradingTask, LocalRunner, Progress, Runner
from gpudojo.classes.store import Record
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.grading.references import PUBLIC_SEEDS
from gpudojo.model.catalogue import day as exercises_of
from gpudojo.model.catalogue import wrong_points
from gpudojo.model.errors import BadClass
from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.model.results_file import iterate, write, write_csv
from gpudojo.sandbox.layers import missing
from gpudojo.submissions.entries import ReadSubmission, SourceFile, SubmissionEntry, digest
from gpudojo.submissions.listing import list_one, list_submissions
from gpudojo.submissions.reading import read

REFERENCE: Final = "the reference solutions"


@dataclass
class GradedClass:
    """What came of a run."""

    path: Path
    count: int
    ran: int
    seconds: float
    layers: dict[str, str]


class ClassGrading:
    """Grades a class: one run of `dojo grade`, on this machine unless another runner is given."""

    def __init__(self, options: GradingOptions, progress: Progress, runner: Runner | None = None) -> None:
        self.options, self.progress = options, progress
        self.runner = runner or LocalRunner(options.jobs)
        self.exercises = exercises_of(options.day)
        self.recorded = None if options.reference else recorded(options.day, options.bench, options.evidence)
        self.store = store.Store(options.out)
        self.layers: dict[str, str] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.problems: dict[str, str] = {}
        self.ran = 0

    def run(self) -> GradedClass:
        options, began = self.options, time.monotonic()
        found = list_one(options.submissions[0]) if options.alone else list_submissions(options.submissions)
        if not found.entries:
            where = ", ".join(str(path) for path in options.submissions)
            raise BadClass(f"there is nothing to grade in {where}")
        options.functions(self.exercises)  # before anything is made
        if not options.only and (problem := wrong_points(options.day)):
            raise BadClass(f"{problem}; see: dojo lint --day {options.day}")
        self.store.open()
        try:
            secret = "" if self.recorded else self.store.secret(options.secret)
            self.run_options = options.run_options(self.exercises, secret, self.recorded)
            self.conditions = options.conditions(secret, self.recorded)
            entries = found.entries
            reference_key, self.reference_files = self._reference()
            if self.reference_files:
                self.store.keep_sources(reference_key, self.reference_files)
            measure = store.key_of(reference_key, grading_options.of_checks(options.day))
            self.verdicts = Verdicts(options.out, options.day, options.only, reference_key, measure)
            ready = {} if options.fresh else self._ready(entries)
            self.progress.begins(len(entries), len(ready), found.ignored)
            keys = self._all_run(entries, ready)
            path = self._put_together(entries, keys)
            return GradedClass(path, len(entries), self.ran, time.monotonic() - began, self.layers)
        finally:
            self.store.close()

    def _ready(self, entries: Sequence[SubmissionEntry]) -> dict[str, str]:
        """The names of submissions that need not run, each with its record's key; "" where it cannot be read."""
        ready = {}
        for entry in entries:
            submission = self._read(entry)
            if submission and self.verdicts.has(key := store.key_of(submission.digest, *self.conditions)):
                ready[entry.name] = key
        return ready

    def _read(self, entry: SubmissionEntry) -> ReadSubmission | None:
        """A submission, or None where nothing of it can be graded; notes and the problem are kept."""
        submission = read(entry)
        late = (f"Submitted late (says {entry.naming.title()}).",) if entry.late else ()
        self.notes[entry.name] = (*late, *submission.notes)
        if submission.problem is not None:
            self.problems[entry.name] = submission.problem
            return None
        if not self.options.alone:
            self.store.keep_sources(submission.digest, {file.path: file.data for file in submission.files})
        return submission

    # Running

    def _all_run(self, entries: Sequence[SubmissionEntry], ready: dict[str, str]) -> dict[str, str | None]:
        """Run what has not been run. Returns every submission's key, None where it cannot be read."""
        keys: dict[str, str | None] = dict(ready)
        reference_key = self.verdicts.reference_key
        left = [entry for entry in entries if entry.name not in ready]
        if self.recorded:
            self.store.keep(reference_key, self.recorded.record(self.exercises, self.options.bench))
        kept = None if self.options.fresh else self.store.record(reference_key)
        needs_reference = not self.recorded and kept is None
        if self.options.rejudge:
            unknown = [entry.name for entry in left if self._read(entry) is not None]
            if unknown or needs_reference:
                what = f"{len(unknown)} submissions (first: {unknown[0]})" if unknown else "the reference"
                raise BadClass(f"--rejudge runs nothing, but has no record of {what} with these options; leave it out")
            self._tell_ready(entries, ready)
            for entry in left:
                keys[entry.name] = None
                self._tell(entry, None, ran=False)
            return keys
        with contextlib.ExitStack() as stack:
            if left or needs_reference:
                stack.callback(self.runner.close)
                self.layers = self.runner.start(self.run_options, self.progress)
                if needs_reference:
                    self._run_reference(reference_key)
            judging.complete(self.verdicts.reference, self.exercises, self.options.only)
            self.layers = self.layers or dict(self.verdicts.reference.layers)
            self.progress.isolated(self.layers)
            if self.options.require_isolation and missing(self.layers):
                raise BadClass(f"--require-isolation: {'; '.join(missing(self.layers))}")
            self._tell_ready(entries, ready)
            if left:
                self.runner.run(self._tasks(left, keys))
        return keys

    def _reference(self) -> tuple[str, dict[str, bytes]]:
        folder = self.options.reference
        if folder is None:
            return store.key_of("evidence", "reference", *self.conditions), {}
        files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
        if not files:
            raise BadClass(f"there are no reference solutions in {folder}")
        sources = tuple(SourceFile(name, data) for name, data in files.items())
        return store.key_of(digest(sources), "reference", *self.conditions), files

    def _run_reference(self, key: str) -> None:
        self.progress.prepares(f"running {REFERENCE}")
        done: list[Record] = []
        run_options = msgspec.structs.replace(self.run_options, drawn_with=PUBLIC_SEEDS[0])
        run = SubmissionRun("reference", self.reference_files, run_options)
        self.runner.run(iter([GradingTask(REFERENCE, run, done.append, time.monotonic())]))
        judging.complete(done[0], self.exercises, self.options.only)
        self.store.keep(key, done[0])

    def _tell_ready(self, entries: Sequence[SubmissionEntry], ready: dict[str, str]) -> None:
        known = [entry for entry in entries if entry.name in ready]
        keys: Iterable[str] = [ready[entry.name] for entry in known]
        if self.options.rejudge:
            keys = judging.judged_in_parallel(self.verdicts, list(keys), self.options.jobs)
        for entry, key in zip(known, keys, strict=True):
            self._tell(entry, key, ran=False)

    def _tasks(self, entries: Sequence[SubmissionEntry], keys: dict[str, str | None]) -> Iterator[GradingTask]:
        """One task after another; a submission is read when it is its turn."""
        busy: dict[str, list[SubmissionEntry]] = {}  # of submissions with equal content one is run
        for entry in entries:
            submission = self._read(entry)
            if submission is None:
                keys[entry.name] = None
                self._tell(entry, None, ran=False)
                continue
            key = store.key_of(submission.digest, *self.conditions)
            keys[entry.name] = key
            if key in busy:
                busy[key].append(entry)
                continue
            if self.verdicts.has(key) and not self.options.fresh:
                self._tell(entry, key, ran=False)
                continue
            busy[key] = [entry]
            files = {file.path: file.data for file in submission.files}
            run = SubmissionRun(submission.digest, files, self.run_options)

            def done(record: Record, key: str = key) -> None:
                self.store.keep(key, record)
                self.ran += 1
                for number, waiting in enumerate(busy.pop(key)):
                    self._tell(waiting, key, ran=number == 0)

            yield GradingTask(entry.name, run, done, time.monotonic())

    # Judging

    def _row(self, entry: SubmissionEntry, key: str | None, anew: bool) -> SubmissionRow:
        known = self.verdicts.unreadable(self.problems[entry.name]) if key is None else self.verdicts.of(key, anew)
        return row_of(entry, known, key or "", self.notes.get(entry.name, ()))

    def _tell(self, entry: SubmissionEntry, key: str | None, ran: bool) -> None:
        """Report one more result; it is on disk."""
        self.progress.graded(self._row(entry, key, anew=self.options.fresh), ran)

    def _put_together(self, entries: Sequence[SubmissionEntry], keys: dict[str, str | None]) -> Path:
        header = ClassResults(
            day=self.options.day,
            bench=self.options.bench,
            torch=importlib.metadata.version("torch"),
            gpudojo=__version__,
            max_score=self.options.worth(self.exercises),
            layers=self.layers or dict(self.verdicts.reference.layers),
            reference=self.verdicts.reference_key,
        )
        path = self.options.out / "results.json"
        try:
            write(path, header, (self._row(entry, keys[entry.name], anew=False) for entry in entries))
            write_csv(self.options.out / "results.csv", iterate(path), [e.stem for e in self.exercises])
        except OSError as error:
            raise BadClass(f"cannot write {path}: {error.strerror}; what has been run is kept") from None
        return path
