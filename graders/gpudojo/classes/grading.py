"""Grades a class."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpudojo import __version__
from gpudojo.classes import judging, options, store
from gpudojo.classes.attempt import Attempt
from gpudojo.classes.judging import Verdicts, record_of, row_of
from gpudojo.classes.options import Asked, recorded
from gpudojo.classes.scheduler import Here, Runner, Watcher, Work
from gpudojo.classes.store import Record
from gpudojo.grading.references import PUBLIC_SEEDS
from gpudojo.model.catalogue import day as exercises_of
from gpudojo.model.catalogue import wrong_points
from gpudojo.model.errors import BadClass
from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.model.results_file import iterate, write, write_csv
from gpudojo.sandbox.isolation import missing
from gpudojo.submissions.entries import Entry, SourceFile, Submission, digest
from gpudojo.submissions.listing import alone, survey
from gpudojo.submissions.reading import read

REFERENCE: Final = "the reference solutions"


@dataclass
class Outcome:
    """What came of it all."""

    path: Path
    count: int = 0
    ran: int = 0
    seconds: float = 0.0
    layers: dict[str, str] = field(default_factory=dict)


class ClassGrading:
    """One run of the command; on this machine, where no other runner is given."""

    def __init__(self, asked: Asked, watcher: Watcher, runner: Runner | None = None) -> None:
        self.asked, self.watcher = asked, watcher
        self.runner = runner or Here(asked.jobs)
        self.exercises = exercises_of(asked.day)
        self.recorded = None if asked.reference else recorded(asked.day, asked.bench, asked.evidence)
        self.store = store.Store(asked.out)
        self.layers: dict[str, str] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.problems: dict[str, str] = {}
        self.ran = 0

    def run(self) -> Outcome:
        asked, began = self.asked, time.monotonic()
        found = alone(asked.submissions[0]) if asked.alone else survey(asked.submissions)
        if not found.entries:
            where = ", ".join(str(path) for path in asked.submissions)
            raise BadClass(f"there is nothing to grade in {where}")
        asked.functions(self.exercises)  # before anything is made
        if not asked.only and (problem := wrong_points(asked.day)):
            raise BadClass(f"{problem}; see: dojo lint --day {asked.day}")
        self.store.open()
        try:
            secret = "" if self.recorded else self.store.secret(asked.secret)
            self.terms = asked.terms(self.exercises, secret, self.recorded)
            self.conditions = asked.conditions(secret, self.recorded)
            entries = found.entries
            ready = {} if asked.fresh else self._ready(entries)
            self.watcher.begins(len(entries), len(ready), found.left_out)
            keys = self._all_run(entries, ready)
            path = self._put_together(entries, keys)
            return Outcome(path, len(entries), self.ran, time.monotonic() - began, self.layers)
        finally:
            self.store.close()

    def _ready(self, entries: Sequence[Entry]) -> dict[str, str]:
        """The names of submissions that need not run, each with its record's key; "" where it cannot be read."""
        ready = {}
        for entry in entries:
            submission = self._read(entry)
            if submission is None:
                continue
            key = store.key_of(submission.digest, *self.conditions)
            if self.store.has(key):
                ready[entry.name] = key
        return ready

    def _read(self, entry: Entry) -> Submission | None:
        """A submission, or None where nothing of it can be graded; what is worth knowing of it is kept."""
        submission = read(entry)
        late = ("The platform marks it as late.",) if entry.late else ()
        self.notes[entry.name] = (*late, *submission.notes)
        if submission.problem is not None:
            self.problems[entry.name] = submission.problem
            return None
        return submission

    # Running

    def _all_run(self, entries: Sequence[Entry], ready: dict[str, str]) -> dict[str, str | None]:
        """Every submission's key, None where it cannot be read; a record for each key is on disk then."""
        keys: dict[str, str | None] = dict(ready)
        reference_key, reference_files = self._reference()
        self.reference_key = reference_key
        left = [entry for entry in entries if entry.name not in ready]
        if self.recorded:
            self.store.keep(reference_key, self.recorded.record(self.exercises, self.asked.bench))
        needs_reference = not self.recorded and (self.asked.fresh or not self.store.has(reference_key))
        if self.asked.rejudge:
            self._only_known(left, needs_reference)
            self._measured_by(reference_key)
            self._tell_ready(entries, ready)
            for entry in left:
                keys[entry.name] = None
                self._tell(entry, None, ran=False)
            return keys
        with contextlib.ExitStack() as stack:
            if left or needs_reference:
                stack.callback(self.runner.close)
                self.layers = self.runner.start(self.terms, self.watcher)
                if needs_reference:
                    self.watcher.prepares(f"running {REFERENCE}")
                    self._run_reference(reference_key, reference_files)
            self._measured_by(reference_key)
            judging.complete(self.reference, self.exercises, self.asked.only)
            self.layers = self.layers or dict(self.reference.layers)
            self.watcher.fenced(self.layers)
            if self.asked.require_isolation and missing(self.layers):
                raise BadClass(f"--require-isolation: {'; '.join(missing(self.layers))}")
            self._tell_ready(entries, ready)
            if left:
                self.runner.run(self._works(left, keys))
        return keys

    def _reference(self) -> tuple[str, dict[str, bytes]]:
        folder = self.asked.reference
        if folder is None:
            return store.key_of("evidence", "reference", *self.conditions), {}
        files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
        if not files:
            raise BadClass(f"there are no reference solutions in {folder}")
        sources = tuple(SourceFile(name, data) for name, data in files.items())
        return store.key_of(digest(sources), "reference", *self.conditions), files

    def _run_reference(self, key: str, files: dict[str, bytes]) -> None:
        done: list[Record] = []
        terms = dataclasses.replace(self.terms, drawn_with=PUBLIC_SEEDS[0])
        work = Work(REFERENCE, Attempt("reference", files, terms), done.append, time.monotonic())
        self.runner.run(iter([work]))
        judging.complete(done[0], self.exercises, self.asked.only)
        self.store.keep(key, done[0])

    def _tell_ready(self, entries: Sequence[Entry], ready: dict[str, str]) -> None:
        known = [entry for entry in entries if entry.name in ready]
        if self.asked.rejudge:
            measure = judging.Measure(
                self.asked.out, self.asked.day, self.asked.only, self.reference_key, self.verdicts.measure
            )
            made: Iterable[str] = judging.judged_in_parallel(
                measure, [ready[entry.name] for entry in known], self.asked.jobs
            )
        else:
            made = (ready[entry.name] for entry in known)
        for entry, key in zip(known, made, strict=True):
            self._tell(entry, key, ran=False)

    def _only_known(self, left: Sequence[Entry], needs_reference: bool) -> None:
        unknown = [entry.name for entry in left if self._read(entry) is not None]
        if unknown or needs_reference:
            said = f"{len(unknown)} submissions have not been run" if unknown else "the reference has not been run"
            more = f" (the first is {unknown[0]})" if unknown else ""
            raise BadClass(f"--rejudge runs nothing, and {said} under these conditions{more}; leave --rejudge out")

    def _works(self, entries: Sequence[Entry], keys: dict[str, str | None]) -> Iterator[Work]:
        """One after another, read when its turn has come."""
        busy: dict[str, list[Entry]] = {}  # of equal content, one is run and the others wait for it
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
            if self.store.has(key) and not self.asked.fresh:
                self._tell(entry, key, ran=False)
                continue
            busy[key] = [entry]
            files = {file.path: file.data for file in submission.files}
            attempt = Attempt(submission.digest, files, self.terms)

            def done(record: Record, key: str = key) -> None:
                self.store.keep(key, record)
                self.ran += 1
                for number, waiting in enumerate(busy.pop(key)):
                    self._tell(waiting, key, ran=number == 0)

            yield Work(entry.name, attempt, done, time.monotonic())

    # Judging

    def _measured_by(self, reference_key: str) -> None:
        """From now on, verdicts are made against this record of the reference."""
        self.reference = record_of(self.store, reference_key)
        measure = store.key_of(reference_key, options.of_checks(self.asked.day))
        self.verdicts = Verdicts(self.store, self.exercises, self.asked.only, self.reference, measure)

    def _row(self, entry: Entry, key: str | None, anew: bool) -> SubmissionRow:
        known = self.verdicts.unreadable(self.problems[entry.name]) if key is None else self.verdicts.of(key, anew)
        return row_of(entry, known, key or "", self.notes.get(entry.name, ()))

    def _tell(self, entry: Entry, key: str | None, ran: bool) -> None:
        """One more is done: its row is on disk, and goes to whoever watches."""
        self.watcher.graded(self._row(entry, key, anew=self.asked.fresh), ran)

    def _rows(self, entries: Sequence[Entry], keys: dict[str, str | None]) -> Iterator[SubmissionRow]:
        for entry in entries:
            yield self._row(entry, keys[entry.name], anew=False)

    def _put_together(self, entries: Sequence[Entry], keys: dict[str, str | None]) -> Path:
        header = ClassResults(
            day=self.asked.day,
            bench=self.asked.bench,
            torch=importlib.metadata.version("torch"),
            gpudojo=__version__,
            max_score=self.asked.worth(self.exercises),
            layers=self.layers or dict(self.reference.layers),
            reference=self.reference_key,
        )
        path = self.asked.out / "results.json"
        try:
            write(path, header, self._rows(entries, keys))
            write_csv(self.asked.out / "results.csv", iterate(path), [e.stem for e in self.exercises])
        except OSError as error:
            raise BadClass(f"cannot write {path}: {error.strerror}; what has been run is kept") from None
        return path
