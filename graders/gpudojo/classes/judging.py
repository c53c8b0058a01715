"""Judges records: verdicts, status, notes; in several processes where there are many."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gpudojo.classes import store
from gpudojo.classes.store import FunctionRecord, IncidentKind, Record, Store, UnreadRecord
from gpudojo.classes.submission_run import BEFORE
from gpudojo.grading.engine import UNJUDGED, judge_function
from gpudojo.grading.references import refuse_failing
from gpudojo.model.catalogue import day as exercises_of
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.errors import BadClass, BadEvidence, ReferenceFails, described
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised, decoded
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import (
    CheckResult,
    CheckRow,
    Definition,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    rows_of,
    total,
)
from gpudojo.model.results_file import encoded
from gpudojo.submissions.entries import SubmissionEntry

STATUSES: Final = {
    IncidentKind.TIMED_OUT: SubmissionStatus.TIMED_OUT,
    IncidentKind.CRASHED: SubmissionStatus.CRASHED,
    IncidentKind.OUT_OF_MEMORY: SubmissionStatus.OUT_OF_MEMORY,
}
INVALID: Final = ("SyntaxError", "IndentationError", "TabError")
UNEXPLAINED: Final = (Outcome.PASSED, Outcome.TODO)
MOST_KNOWN: Final = 4000  # results of a function that are kept in memory
ENDED: Final = {
    IncidentKind.TIMED_OUT: "TimedOut",
    IncidentKind.CRASHED: "Crashed",
    IncidentKind.OUT_OF_MEMORY: "OutOfMemory",
}


AnyRecord = Record | UnreadRecord
# By function and digest of what was observed of it: the results, where none of them depends on the student's lines.
SameResults = dict[tuple[str, bytes], list[CheckResult]]


def judged(
    record: AnyRecord,
    reference: Record,
    exercises: Iterable[Exercise],
    only: frozenset[str] = frozenset(),
    same: SameResults | None = None,
) -> SubmissionRow:
    """The verdict on a submission that could be read; `same` is filled, for others with the same reference."""
    exercises = tuple(exercises)
    tampered = next((i for i in record.incidents if i.what is IncidentKind.TAMPERED), None)
    results: list[CheckResult] = []
    for exercise, function in _graded(exercises, only):
        if tampered is not None:
            wanted = "a submission that leaves the grader alone"
            results += _failed(exercise, function, f"not graded: {tampered.detail}", wanted)
        else:
            results += _results(exercise, function, record, reference, {} if same is None else same)
    definitions = [Definition(p.function, p.file, p.line, p.cell, p.note) for p in record.places if p.file is not None]
    files = record.files.items()
    rows = rows_of(results, exercises, misconceptions=misconceptions(), definitions=definitions)
    return _row(
        next((STATUSES[i.what] for i in record.incidents if i.what in STATUSES), SubmissionStatus.GRADED),
        [replace(row, checks=[_in_cell(check, record) for check in row.checks]) for row in rows],
        reason=_reason(record),
        definitions=definitions,
        notes=[f"{name}: {ran.broken.type}: {ran.broken.message}" for name, ran in files if ran.broken][:20],
        needs_human=_needs_review(record, results),
        seconds=round(record.seconds, 3),
        peak_bytes=record.peak_bytes,
        digest=record.digest,
        output=record.output,
        layers=[name for name, why in record.layers.items() if not why],
    )


def _row(status: SubmissionStatus, exercises: list[ExerciseRow], **more: Any) -> SubmissionRow:
    """A row that says nothing yet of whose it is: see `row_of`."""
    score, worth = total(row.score for row in exercises), total(row.max_score for row in exercises)
    return SubmissionRow("", status, score, worth, exercises, **more)


def unreadable(problem: str, exercises: Iterable[Exercise], only: frozenset[str] = frozenset()) -> SubmissionRow:
    """The verdict on a submission that could not."""
    exercises = tuple(exercises)
    results = [
        result
        for exercise, function in _graded(exercises, only)
        for result in _failed(exercise, function, f"not graded: {problem}", "a submission that can be read")
    ]
    return _row(SubmissionStatus.UNREADABLE, rows_of(results, exercises), reason=problem, needs_human=[problem])


def complete(reference: Record, exercises: Iterable[Exercise], only: frozenset[str] = frozenset()) -> None:
    """Raises BadClass where the reference does not run, or a probe cannot use what it did."""
    for exercise, function in _graded(exercises, only):
        seen = reference.seen.get(f"{exercise.stem}::{function.name}")
        if seen is None:
            why = "; ".join(dict.fromkeys(i.detail for i in reference.incidents)) or "there is no evidence"
            raise BadClass(f"the reference solution of `{function.name}` cannot be run: {why}")
        try:
            refuse_failing(seen.evidence)
        except ReferenceFails as error:
            raise BadClass(str(error)) from None


def _graded(exercises: Iterable[Exercise], only: frozenset[str]) -> Iterator[tuple[Exercise, Function]]:
    """The functions that are graded: these, or all."""
    every = ((exercise, function) for exercise in exercises for function in exercise.functions)
    return ((exercise, function) for exercise, function in every if not only or function.name in only)


def _results(
    exercise: Exercise, function: Function, record: AnyRecord, reference: Record, same: SameResults
) -> list[CheckResult]:
    key = f"{exercise.stem}::{function.name}"
    digest = record.observed(key) if isinstance(record, UnreadRecord) else None
    if digest is not None and (known := same.get((key, digest))) is not None:
        return known
    wanted = reference.seen[key]
    seen = record.function(key)
    if seen is None or set(seen.evidence.observations) != {probe.name for probe in function.probes}:
        seen, digest = _late(function, seen) or _ended(exercise, function, record), None
    file = _file(record, exercise, function)
    lines = record.files[file].lines if file in record.files else {}
    found = judge_function(exercise, function, seen.evidence, wanted.evidence, lines, wanted.signature)
    if digest is not None and len(same) < MOST_KNOWN and all(r.outcome in UNEXPLAINED for r in found):
        same[key, digest] = found
    return found


def _late(function: Function, seen: FunctionRecord | None) -> FunctionRecord | None:
    """With the time-out in place of what, after one on a real GPU, no other child has been asked; None without one."""
    found = {} if seen is None else seen.evidence.observations
    late = next((each for each in found.values() if each.timed_out), None)
    if seen is None or late is None or not set(found) < {probe.name for probe in function.probes}:
        return None
    whole = {probe.name: found.get(probe.name, late) for probe in function.probes}
    return replace(seen, evidence=replace(seen.evidence, observations=whole))


def _ended(exercise: Exercise, function: Function, record: AnyRecord) -> FunctionRecord:
    """What stands for a function whose process ended before it could say anything."""
    key = f"{exercise.stem}::{function.name}"
    steps = (key, f"file {_file(record, exercise, function)}", BEFORE)
    incident = next((i for i in record.incidents if i.step in steps and i.what in ENDED), None)
    if incident is None:
        raised = Raised("NotRun", "it was not run, because the submission had used up its time", None)
    else:
        raised = Raised(ENDED[incident.what], incident.detail, None)
    status = CallStatus.BROKEN if incident is not None and incident.step.startswith("file ") else CallStatus.RAISED
    found = {probe.name: Observation(status, raised=raised) for probe in function.probes}
    return FunctionRecord(Evidence(exercise.stem, function.name, "", 0, found), 0.0)


def _file(record: AnyRecord, exercise: Exercise, function: Function) -> str:
    """The file whose definition of a function was graded; empty where there is none."""
    key = (exercise.stem, function.name)
    return next((p.file or "" for p in record.places if (p.exercise, p.function) == key), "")


def _failed(exercise: Exercise, function: Function, happened: str, expected: str) -> list[CheckResult]:
    """All checks of a function, failed for the same reason."""
    stem, name = exercise.stem, function.name
    return [
        CheckResult(stem, name, check.name, check.claim, Outcome.FAILED, check.points, happened, expected)
        for check in function.checks
    ]


def _in_cell(check: CheckRow, record: AnyRecord) -> CheckRow:
    """With the line of a notebook, which are counted through, as a line in a cell."""
    ran = record.files.get(check.file or "")
    if ran is None or not ran.cells or check.line is None:
        return check
    cell = bisect.bisect_right(ran.cells, check.line)
    if cell == 0:
        return check
    return replace(check, cell=cell, line=check.line - ran.cells[cell - 1] + 1)


def _reason(record: AnyRecord) -> str:
    said = [f"{i.what} in {_where(i.step)}: {i.detail}" for i in record.incidents if i.what in STATUSES]
    said += [i.detail for i in record.incidents if i.what is IncidentKind.NOT_RUN]
    return "; ".join(said)


def _where(step: str) -> str:
    return step if step.startswith("file ") else f"`{step.rpartition('::')[2]}`"


def _needs_review(record: AnyRecord, results: list[CheckResult]) -> list[str]:
    """What an instructor should review before grades are published."""
    found = []
    for incident in record.incidents:
        if incident.what is IncidentKind.TAMPERED:
            found.append(f"not graded: {incident.detail}")
        elif incident.what is IncidentKind.REACHED:
            found.append(incident.detail)
        elif incident.what in (IncidentKind.CRASHED, IncidentKind.OUT_OF_MEMORY):
            found.append(f"{incident.what} in {_where(incident.step)}: {incident.detail}")
    invalid = [(name, ran.broken) for name, ran in record.files.items() if ran.broken and ran.broken.type in INVALID]
    found += [f"{name} is not valid Python: {broken.type}: {broken.message}" for name, broken in invalid[:3]]
    if record.places and not (found or record.incidents) and all(place.line is None for place in record.places):
        found.append("none of the functions is in it")
    for graded, others in {place.file: place.versions for place in record.places if place.versions}.items():
        found.append(f"there are several versions of a file: {graded} was graded, and not {', '.join(others)}")
    for result in results:
        if result.outcome is Outcome.ERROR:
            found.append(f"an error in the check {result.id}, not in the submission: {result.happened}")
        elif result.happened.startswith(UNJUDGED):
            why = result.happened.removeprefix(UNJUDGED).strip(" ()")
            found.append(f"the check {result.id} could not judge it: {why}")
        elif "too good to be true" in result.happened:
            found.append(f"{result.id}: {result.happened.splitlines()[0]}")
    return found


def row_of(entry: SubmissionEntry, found: SubmissionRow, record: str, notes: Sequence[str] = ()) -> SubmissionRow:
    """The row of an entry; `notes` are about the entry itself, and come before those about its content."""
    return replace(
        found,
        submission=entry.name,
        student=entry.student,
        identifier=entry.identifier,
        naming=str(entry.naming),
        notes=[*notes, *found.notes],
        record=record,
    )


_ROW: Final = msgspec.json.Decoder(SubmissionRow)


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of one output folder; another process can make them, too."""

    out: Path
    day: str
    only: frozenset[str]
    reference_key: str
    measure: str  # by which the checks and the reference are known

    @functools.cached_property
    def store(self) -> Store:
        return Store(self.out)

    @functools.cached_property
    def _same(self) -> SameResults:
        return {}

    @functools.cached_property
    def reference(self) -> Record:
        """The record of the reference; raises BadClass where it cannot be read."""
        record = self.store.record(self.reference_key)
        if record is None:
            path = self.store.path_of(self.reference_key)
            raise BadClass(f"the record {path} cannot be read; run again with --fresh")
        return record

    def of(self, key: str, anew: bool = False) -> SubmissionRow:
        """The verdict on a record; `anew` judges it again, whatever is kept."""
        path = self.store.row_path(key, self.measure)
        kept, known = self._kept(path)
        if known is not None and not anew:
            return known
        try:
            if (record := self.store.unread(key)) is None:
                raise BadEvidence("it cannot be read")
            found = judged(record, self.reference, exercises_of(self.day), self.only, self._same)
        except BadEvidence:
            return self.unreadable(f"the record {self.store.path_of(key)} is damaged; run again without --rejudge")
        except Exception as error:  # of ours: it costs this submission a review, and not the class its results
            path.unlink(missing_ok=True)
            return self.unreadable(f"the grader could not judge it ({': '.join(described(error))})")
        text = encoded(found)
        if kept != text:  # to replace a file by its equal takes milliseconds, and is most of judging again
            store.write(path, text, lasting=False)  # it can be made again
        return found

    def has(self, key: str, anew: bool = False) -> bool:
        """Whether there is a verdict on a record, or a record that can be judged; `anew` takes a record as it is."""
        if anew or not self.store.has(key):
            return self.store.has(key)
        return self.kept(key) is not None or self.store.record(key) is not None

    def kept(self, key: str) -> SubmissionRow | None:
        """The verdict on a record, if it has been judged."""
        return self._kept(self.store.row_path(key, self.measure))[1]

    def _kept(self, path: Path) -> tuple[bytes, SubmissionRow | None]:
        """What is kept of a verdict, and the verdict, if that can be used."""
        data = b""
        with contextlib.suppress(OSError, BadEvidence):
            data = path.read_bytes()
            return data, decoded(_ROW.decode, data)
        return data, None

    def unreadable(self, problem: str) -> SubmissionRow:
        return unreadable(problem, exercises_of(self.day), self.only)


CHUNK: Final = 8  # records sent to a process at a time
AHEAD: Final = 2  # times that many wait for each process
IN_PARALLEL: Final = 50  # records; a process takes as long to start as it takes to judge some thirty of them


class Judges:
    """Judges records in this process and in up to so many others, where there are many of them."""

    def __init__(self, verdicts: Verdicts, count: int, others: int) -> None:
        """Start the others."""
        self.verdicts = verdicts
        self._others = {process.pid for process in multiprocessing.active_children()}
        self._pool: ProcessPoolExecutor | None = None
        self._count = min(others, count // IN_PARALLEL)
        if self._count > 0:
            # A copy has not read the reference yet, which each process does for itself.
            given = (dataclasses.replace(verdicts),)
            self._pool = ProcessPoolExecutor(self._count, _context(), _begin_judging, given)
            with contextlib.suppress(BrokenProcessPool, OSError, ValueError):  # killed while it started: see `again`
                for _ in range(self._count):
                    self._pool.submit(_warm_up)

    def begin(self, key: str) -> Future[None] | None:
        """Let another process judge a record, if there is one; what it cannot do is left to this one."""
        with contextlib.suppress(BrokenProcessPool, OSError, ValueError):
            return self._pool.submit(_judge_again, [key]) if self._pool else None
        return None

    def again(self, keys: Sequence[str]) -> Iterator[SubmissionRow]:
        """Yields a new verdict on every record, in order; it is on disk, too.

        Raises BadClass where the reference's record cannot be read, or a process was killed.
        """
        parts = [keys[start : start + CHUNK] for start in range(0, len(keys), CHUNK)]
        beside, busy = list[Future[None]](), list[Future[None]]()  # the others begin at the end
        try:
            for number, part in enumerate(parts):
                busy = [future for future in busy if not future.done()]
                while self._pool and len(busy) < AHEAD * self._count and number + 1 + len(beside) < len(parts):
                    busy.append(self._pool.submit(_judge_again, parts[-1 - len(beside)]))
                    beside.append(busy[-1])
                here = number < len(parts) - len(beside)
                if not here:
                    beside[len(parts) - 1 - number].result()
                yield from (self.verdicts.of(key, anew=here) for key in part)
        except (BrokenProcessPool, OSError, ValueError) as error:
            if self._pool is None or not (isinstance(error, BrokenProcessPool) or _is_broken(self._pool)):
                raise
            raise BadClass("a process that judges was killed; run the same command again") from None

    def close(self) -> None:
        if self._pool is None:
            return
        if _is_broken(self._pool):
            # One that started while another was killed is not ended by the pool, which would wait for it for ever.
            for process in multiprocessing.active_children():
                if process.pid not in self._others:
                    process.kill()
        self._pool.shutdown(cancel_futures=True)


def _context() -> multiprocessing.context.BaseContext:
    """A fork has imported everything already, but a process with threads cannot be forked safely."""
    alone = sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    return multiprocessing.get_context("fork" if alone else "spawn")


def _is_broken(pool: ProcessPoolExecutor) -> bool:
    """Whether a process was killed. If that happens while another one starts, its start fails in other ways, too."""
    try:
        pool.submit(int)
    except (BrokenProcessPool, OSError, ValueError):
        return True
    return False


_verdicts: Verdicts | None = None  # in a process of the pool


def _begin_judging(verdicts: Verdicts) -> None:
    global _verdicts
    _verdicts = verdicts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader handles Ctrl-C and ends the pool
    threading.Thread(target=_end_with_grader, daemon=True).start()


def _end_with_grader() -> None:
    """A pool's process would outlive a grader that was killed: it holds both ends of its queue."""
    grader = multiprocessing.parent_process()
    assert grader is not None
    grader.join()
    os._exit(1)


def _warm_up() -> None:
    """Judge the reference, which imports and prepares what is needed, while the grader reads submissions."""
    assert _verdicts is not None
    if (record := _verdicts.store.unread(_verdicts.reference_key)) is not None:
        judged(record, _verdicts.reference, exercises_of(_verdicts.day), _verdicts.only)


def _judge_again(keys: Sequence[str]) -> None:
    assert _verdicts is not None
    for key in keys:
        _verdicts.of(key, anew=True)
