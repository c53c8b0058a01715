"""Judges records: verdicts, status, notes; in several processes where there are many."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from gpudojo.classes import grading_options, store
from gpudojo.classes.store import IncidentKind, Record, Store, UnreadRecord
from gpudojo.classes.submission_run import BEFORE
from gpudojo.grading.engine import UNJUDGED, KnownOutcomes, judge_function
from gpudojo.grading.references import refuse_failing
from gpudojo.model import evidence
from gpudojo.model.catalogue import day as exercises_of
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.errors import BadClass, BadEvidence, ReferenceFails, described
from gpudojo.model.evidence import (
    AnyEvidence,
    CallStatus,
    Digests,
    Evidence,
    Observation,
    Raised,
    decoded,
)
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import (
    CheckResult,
    CheckRow,
    Definition,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    rounded,
    row_of_check,
    row_of_exercise,
    rows_of,
    total,
)
from gpudojo.model.results_file import encoded

STATUSES: Final = {
    IncidentKind.TIMED_OUT: SubmissionStatus.TIMED_OUT,
    IncidentKind.CRASHED: SubmissionStatus.CRASHED,
    IncidentKind.OUT_OF_MEMORY: SubmissionStatus.OUT_OF_MEMORY,
}
NO_FUNCTIONS: Final = "none of the functions is in it"
INVALID: Final = ("SyntaxError", "IndentationError", "TabError")
UNEXPLAINED: Final = (Outcome.PASSED, Outcome.TODO)
MOST_KNOWN: Final = 4000  # verdicts on a function that are kept in memory
MOST_OUTCOMES: Final = 50  # of one check, the same
THREADS: Final = "OPENBLAS_NUM_THREADS"  # is read when NumPy is imported
MOST_PLACES: Final = 4  # for which the rows of one are kept
ENDED: Final = {
    IncidentKind.TIMED_OUT: "TimedOut",
    IncidentKind.CRASHED: "Crashed",
    IncidentKind.OUT_OF_MEMORY: "OutOfMemory",
}

T = TypeVar("T")
AnyRecord = Record | UnreadRecord


class FunctionVerdict:
    """The results of one function, what to review of them, and its rows by where it is defined."""

    def __init__(self, results: list[CheckResult]) -> None:
        self.results = results
        self.review = _to_review(results)
        self.rows: dict[tuple[str | None, int | None], list[CheckRow]] = {}


class SameResults:
    """What is known of functions by what was observed of them, for submissions with the same reference."""

    def __init__(self) -> None:
        # By function and digests: verdicts of which nothing depends on the student's lines.
        self.verdicts: dict[tuple[str, Digests], FunctionVerdict] = {}
        self.outcomes: defaultdict[str, KnownOutcomes] = defaultdict(
            partial(KnownOutcomes, MOST_OUTCOMES)
        )


class KnownExercises:
    """The rows of exercises that need not be judged again, and what to review of each; `judged` adds the others."""

    def __init__(
        self, rows: Iterable[ExerciseRow] = (), review: Mapping[str, list[str]] = {}
    ) -> None:
        self.rows = {row.exercise: row for row in rows}
        self.review = {stem: review.get(stem, []) for stem in self.rows}


def judged(
    record: AnyRecord,
    reference: Record,
    exercises: Iterable[Exercise],
    only: frozenset[str] = frozenset(),
    same: SameResults | None = None,
    known: KnownExercises | None = None,
) -> SubmissionRow:
    """The verdict on a submission that could be read; `same` is filled, for others with the same reference."""
    same = SameResults() if same is None else same
    tampered = next((i for i in record.incidents if i.what is IncidentKind.TAMPERED), None)
    definitions = [
        Definition(p.function, p.file, p.line, p.cell, p.note)
        for p in record.places
        if p.file is not None
    ]
    places = {definition.function: definition for definition in definitions}
    rows = list[ExerciseRow]()
    review = _needs_review(record)
    known = KnownExercises() if known is None else known
    for exercise in exercises:
        if exercise.stem not in known.rows:
            functions = [
                function for function in exercise.functions if not only or function.name in only
            ]
            points = iter(
                rounded([check.points for function in functions for check in function.checks])
            )
            checks = list[CheckRow]()
            to_review = list[str]()
            for function in functions:
                if tampered is not None:
                    wanted = "a submission that leaves the grader alone"
                    found = FunctionVerdict(
                        _failed(exercise, function, f"not graded: {tampered.detail}", wanted)
                    )
                else:
                    found = _verdict(exercise, function, record, reference, same)
                worth = list(itertools.islice(points, len(function.checks)))
                checks += _rows(found, function, worth, places.get(function.name), record)
                to_review += found.review
            if not checks:
                continue
            known.rows[exercise.stem] = row_of_exercise(exercise, checks)
            known.review[exercise.stem] = to_review
        rows.append(known.rows[exercise.stem])
        review += known.review[exercise.stem]
    files = record.files.items()
    return _row(
        next(
            (STATUSES[i.what] for i in record.incidents if i.what in STATUSES),
            SubmissionStatus.GRADED,
        ),
        rows,
        reason=_reason(record),
        definitions=definitions,
        notes=[
            f"{name}: {ran.broken.type}: {ran.broken.message}" for name, ran in files if ran.broken
        ][:20],
        needs_human=review,
        seconds=round(record.seconds, 3),
        peak_bytes=record.peak_bytes,
        digest=record.digest,
        output=record.output,
        layers=[name for name, why in record.layers.items() if not why],
    )


def _row(status: SubmissionStatus, exercises: list[ExerciseRow], **more: Any) -> SubmissionRow:
    """A row that says nothing yet of whose it is: see `row_of`."""
    score = total(row.score for row in exercises)
    worth = total(row.max_score for row in exercises)
    return SubmissionRow("", status, score, worth, exercises, **more)


def unreadable(
    problem: str, exercises: Iterable[Exercise], only: frozenset[str] = frozenset()
) -> SubmissionRow:
    """The verdict on a submission that could not."""
    exercises = tuple(exercises)
    results = [
        result
        for exercise, function in _graded(exercises, only)
        for result in _failed(
            exercise, function, f"not graded: {problem}", "a submission that can be read"
        )
    ]
    return _row(
        SubmissionStatus.UNREADABLE,
        rows_of(results, exercises),
        reason=problem,
        needs_human=[problem],
    )


def complete(
    reference: Record, exercises: Iterable[Exercise], only: frozenset[str] = frozenset()
) -> None:
    """Raises BadClass where the reference does not run, or a probe cannot use what it did."""
    for exercise, function in _graded(exercises, only):
        seen = reference.seen.get(f"{exercise.stem}::{function.name}")
        if seen is None:
            why = (
                "; ".join(dict.fromkeys(i.detail for i in reference.incidents))
                or "there is no evidence"
            )
            raise BadClass(f"the reference solution of `{function.name}` cannot be run: {why}")
        try:
            refuse_failing(seen.evidence)
        except ReferenceFails as error:
            raise BadClass(str(error)) from None


def prepare(exercises: Iterable[Exercise], only: frozenset[str] = frozenset()) -> None:
    """Import and make what judging needs, while there is nothing else to do or before this process is forked."""
    known = os.environ.get(THREADS)
    os.environ[THREADS] = (
        "1"  # a process with threads is not forked, and nothing here is large enough for them
    )
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[THREADS]
        if known is not None:
            os.environ[THREADS] = known
    misconceptions()
    for _, function in _graded(exercises, only):
        for probe in function.probes:
            evidence.prepare(probe.returns)


def _graded(
    exercises: Iterable[Exercise], only: frozenset[str]
) -> Iterator[tuple[Exercise, Function]]:
    """The functions that are graded: these, or all."""
    every = ((exercise, function) for exercise in exercises for function in exercise.functions)
    return (
        (exercise, function) for exercise, function in every if not only or function.name in only
    )


def _verdict(
    exercise: Exercise, function: Function, record: AnyRecord, reference: Record, same: SameResults
) -> FunctionVerdict:
    key = f"{exercise.stem}::{function.name}"
    digests = record.observed(key) if isinstance(record, UnreadRecord) else None
    if digests is not None and (known := same.verdicts.get((key, digests))) is not None:
        return known
    wanted = reference.seen[key]
    seen = record.evidence(key)
    if seen is None or set(seen.observations) != {probe.name for probe in function.probes}:
        seen = _late(function, seen) or _ended(exercise, function, record)
        digests = None
    lines = partial(_lines, record, exercise, function)
    given = exercise, function, seen, wanted.evidence, lines, wanted.signature
    if digests is None:
        return FunctionVerdict(judge_function(*given))
    by_probe = dict(zip(seen.observations, digests.facts, strict=True)) | {"": digests.ends}
    found = FunctionVerdict(judge_function(*given, same.outcomes[key], by_probe))
    if len(same.verdicts) < MOST_KNOWN and all(r.outcome in UNEXPLAINED for r in found.results):
        same.verdicts[key, digests] = found
    return found


def _rows(
    found: FunctionVerdict,
    function: Function,
    points: Iterable[float],
    place: Definition | None,
    record: AnyRecord,
) -> list[CheckRow]:
    """The rows of a function's checks; those of results that have no lines are made once for each place."""
    at = (place.file, place.cell) if place else (None, None)
    known = found.rows.get(at)
    if known is None:
        mistakes = misconceptions()
        known = [
            _passed(result.exercise, result.function, result.check, result.claim, worth, *at)
            if result.outcome is Outcome.PASSED
            else _in_cell(row_of_check(result, worth, function, mistakes, place), record)
            for result, worth in zip(found.results, points, strict=True)
        ]
        if len(found.rows) < MOST_PLACES and all(result.line is None for result in found.results):
            found.rows[at] = known
    return known


@functools.lru_cache(2048)
def _passed(
    exercise: str,
    function: str,
    check: str,
    claim: str,
    points: float,
    file: str | None,
    cell: int | None,
) -> CheckRow:
    """The row of a check that passed: whoever passed it, it says the same."""
    return CheckRow(
        f"{exercise}::{function}::{check}",
        function,
        Outcome.PASSED,
        points,
        points,
        claim=claim,
        file=file,
        cell=cell,
    )


def _late(function: Function, seen: AnyEvidence | None) -> AnyEvidence | None:
    """With the time-out in place of what, after one on a real GPU, no other child has been asked; None without one."""
    found = {} if seen is None else seen.observations
    late = next((each for each in found.values() if each.timed_out), None)
    if seen is None or late is None or not set(found) < {probe.name for probe in function.probes}:
        return None
    whole = {probe.name: found.get(probe.name, late) for probe in function.probes}
    return replace(seen, observations=whole)


def _ended(exercise: Exercise, function: Function, record: AnyRecord) -> Evidence:
    """What stands for a function whose process ended before it could say anything."""
    key = f"{exercise.stem}::{function.name}"
    steps = (key, f"file {_file(record, exercise, function)}", BEFORE)
    incident = next((i for i in record.incidents if i.step in steps and i.what in ENDED), None)
    if incident is None:
        raised = Raised(
            "NotRun", "it was not run, because the submission had used up its time", None
        )
    else:
        raised = Raised(ENDED[incident.what], incident.detail, None)
    status = (
        CallStatus.BROKEN
        if incident is not None and incident.step.startswith("file ")
        else CallStatus.RAISED
    )
    found = {probe.name: Observation(status, raised=raised) for probe in function.probes}
    return Evidence(exercise.stem, function.name, "", 0, found)


def _file(record: AnyRecord, exercise: Exercise, function: Function) -> str:
    """The file whose definition of a function was graded; empty where there is none."""
    key = (exercise.stem, function.name)
    return next((p.file or "" for p in record.places if (p.exercise, p.function) == key), "")


def _lines(record: AnyRecord, exercise: Exercise, function: Function) -> Mapping[str, int]:
    """The lines of names in that file; raises BadEvidence."""
    file = _file(record, exercise, function)
    return record.files[file].lines if file in record.files else {}


def _failed(
    exercise: Exercise, function: Function, happened: str, expected: str
) -> list[CheckResult]:
    """All checks of a function, failed for the same reason."""
    stem = exercise.stem
    name = function.name
    return [
        CheckResult(
            stem, name, check.name, check.claim, Outcome.FAILED, check.points, happened, expected
        )
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
    said = [
        f"{i.what} in {_where(i.step)}: {i.detail}" for i in record.incidents if i.what in STATUSES
    ]
    said += [i.detail for i in record.incidents if i.what is IncidentKind.NOT_RUN]
    return "; ".join(said)


def _where(step: str) -> str:
    return step if step.startswith("file ") else f"`{step.rpartition('::')[2]}`"


def _needs_review(record: AnyRecord) -> list[str]:
    """What an instructor should review before grades are published, whatever the results are."""
    found = []
    for incident in record.incidents:
        if incident.what is IncidentKind.TAMPERED:
            found.append(f"not graded: {incident.detail}")
        elif incident.what is IncidentKind.REACHED:
            found.append(incident.detail)
        elif incident.what in (IncidentKind.CRASHED, IncidentKind.OUT_OF_MEMORY):
            found.append(f"{incident.what} in {_where(incident.step)}: {incident.detail}")
    invalid = [
        (name, ran.broken)
        for name, ran in record.files.items()
        if ran.broken and ran.broken.type in INVALID
    ]
    found += [
        f"{name} is not valid Python: {broken.type}: {broken.message}"
        for name, broken in invalid[:3]
    ]
    if (
        record.places
        and not (found or record.incidents)
        and all(place.line is None for place in record.places)
    ):
        found.append(NO_FUNCTIONS)
    for graded, others in {
        place.file: place.versions for place in record.places if place.versions
    }.items():
        found.append(
            f"there are several versions of a file: {graded} was graded, and not {', '.join(others)}"
        )
    return found


def _to_review(results: Iterable[CheckResult]) -> list[str]:
    """The same of results."""
    found = []
    for result in results:
        if result.outcome is Outcome.ERROR:
            found.append(
                f"an error in the check {result.id}, not in the submission: {result.happened}"
            )
        elif result.happened.startswith(UNJUDGED):
            why = result.happened.removeprefix(UNJUDGED).strip(" ()")
            found.append(f"the check {result.id} could not judge it: {why}")
        elif "too good to be true" in result.happened:
            found.append(f"{result.id}: {result.happened.splitlines()[0]}")
    return found


class Standing(msgspec.Struct, frozen=True):
    """What is told of a verdict while a class is graded."""

    status: SubmissionStatus
    score: float
    max_score: float


class Origin(msgspec.Struct, frozen=True):
    """What the last verdict on a record was made from."""

    measure: str
    record: bytes  # the digest of it
    row: bytes  # the same of the verdict
    exercises: int
    made_from: dict[str, str]  # by exercise, see `Verdicts`
    review: dict[str, list[str]]  # by exercise

    def all_made_from(self, made_from: Mapping[str, str]) -> bool:
        """Whether this holds for every exercise."""
        return self.made_from == made_from and 0 < len(made_from) == self.exercises


_ROW: Final = msgspec.json.Decoder(SubmissionRow)
_STANDING: Final = msgspec.json.Decoder(Standing)
_ORIGIN: Final = msgspec.msgpack.Decoder(Origin)


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
        return SameResults()

    @functools.cached_property
    def _damaged(self) -> dict[Path, None]:
        return {}

    def notices(self) -> list[str]:
        """Which files with earlier verdicts, or with what they were made from, could not be used by this process."""
        first = [f"{path} is damaged: this submission was judged again" for path in self._damaged][
            :3
        ]
        more = len(self._damaged) - len(first)
        return [*first, f"{more} more such files"] if more else first

    @property
    def reference(self) -> Record:
        """The record of the reference; raises BadClass where it cannot be read."""
        return self._reference[0]

    @functools.cached_property
    def _reference(self) -> tuple[Record, dict[str, bytes]]:
        """The same, and by function what tells apart that of it which verdicts depend on."""
        path = self.store.path_of(self.reference_key)
        try:
            record, unread = store.decode(data := path.read_bytes()), store.decode_unread(data)
            return record, {key: unread.wanted(key) for key in unread.seen}
        except (OSError, BadEvidence):
            raise BadClass(f"the record {path} cannot be read; run again with --fresh") from None

    @property
    def has_reference(self) -> bool:
        """Whether the record of the reference is there and can be read."""
        with contextlib.suppress(BadClass):
            return isinstance(self.reference, Record)
        return False

    @functools.cached_property
    def _made_from(self) -> dict[str, str]:
        """By exercise, the fingerprint of all that a verdict is made from beside the record; where that is certain."""
        found: dict[str, str] = {}
        if not self.has_reference:
            return found
        code, (_, wanted) = grading_options.of_exercises(self.day), self._reference
        for exercise in exercises_of(self.day):
            keys = [
                f"{each.stem}::{function.name}" for each, function in _graded([exercise], self.only)
            ]
            if keys and exercise.stem in code and wanted.keys() >= set(keys):
                parts = [
                    code[exercise.stem].encode(),
                    *(part for key in keys for part in (key.encode(), wanted[key])),
                ]
                found[exercise.stem] = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
        return found

    def of(self, key: str, anew: bool = False) -> SubmissionRow:
        """The verdict on a record; `anew` makes it again from the record, whatever is kept.

        Exercises for which everything that their verdicts are made from is the same as the last time have the same
        verdicts, and are not judged.
        """
        path = self.store.row_path(key, self.measure)
        kept = _read(path)
        if not anew and (known := _in(kept, _ROW)) is not None:
            return known
        data = _read(self.store.path_of(key))
        try:
            exercises = self._known(key, digest := _digest(data))
            found = judged(
                store.decode_unread(data),
                self.reference,
                exercises_of(self.day),
                self.only,
                self._same,
                exercises,
            )
        except BadEvidence:
            return self.unreadable(
                f"the record {self.store.path_of(key)} is damaged; run again without --rejudge"
            )
        except (
            Exception
        ) as error:  # of ours: it costs this submission a review, and not the class its results
            path.unlink(missing_ok=True)
            return self.unreadable(f"the grader could not judge it ({': '.join(described(error))})")
        text = encoded(found)
        if (
            kept != text
        ):  # to replace a file by its equal takes milliseconds, and is most of judging again
            store.write(path, text, lasting=False)  # it can be made again
        self._keep_origin(key, digest, text, exercises)
        return found

    def standing(self, key: str, anew: bool = False) -> Standing:
        """What is told of the verdict on a record; `anew` makes it again from the record, whatever is kept."""
        if anew:
            return self.unchanged(key) or standing_of(self.of(key, anew))
        known = _in(_read(self.store.row_path(key, self.measure)), _STANDING)
        return known if known is not None else standing_of(self.of(key))

    def unchanged(self, key: str) -> Standing | None:
        """What is told of the verdict that is kept, if all that it was made from is still the same."""
        origin = self._origin(key)
        if (
            origin is None
            or origin.measure != self.measure
            or not origin.all_made_from(self._made_from)
        ):
            return None
        row = self._row_of(key, origin, _digest(_read(self.store.path_of(key))))
        return None if row is None else _in(row, _STANDING)

    def _origin(self, key: str) -> Origin | None:
        data = _read(path := self.store.verdict_path(key))
        found = _in(data, _ORIGIN)
        if data and found is None:
            self._damaged[path] = None
        return found

    def _row_of(self, key: str, origin: Origin, record: bytes) -> bytes | None:
        """The verdict, if it was made from the record with that digest and is as it was written; else None."""
        if origin.record != record or not (
            row := _read(path := self.store.row_path(key, origin.measure))
        ):
            return None
        if origin.row != _digest(row):
            self._damaged[path] = None
            return None
        return row

    def _known(self, key: str, record: bytes) -> KnownExercises:
        """The exercises whose verdicts on the record with that digest are still the same."""
        if (origin := self._origin(key)) is None:
            return KnownExercises()
        same = {
            stem
            for stem, made_from in self._made_from.items()
            if origin.made_from.get(stem) == made_from
        }
        row = _in(self._row_of(key, origin, record) or b"", _ROW) if same else None
        return KnownExercises(
            [e for e in row.exercises if e.exercise in same] if row else (), origin.review
        )

    def _keep_origin(self, key: str, record: bytes, row: bytes, exercises: KnownExercises) -> None:
        """Keep what a verdict was made from; not of exercises with an error of ours, which may not happen again."""
        rows = exercises.rows
        review = {stem: said for stem, said in exercises.review.items() if said}
        failing = {
            stem
            for stem, each in rows.items()
            if any(c.outcome is Outcome.ERROR for c in each.checks)
        }
        made_from = {
            stem: found
            for stem, found in self._made_from.items()
            if stem in rows and stem not in failing
        }
        origin = Origin(self.measure, record, _digest(row), len(rows), made_from, review)
        data = msgspec.msgpack.encode(origin)
        if data != _read(path := self.store.verdict_path(key)):
            store.write(path, data, lasting=False, mode=0o600)

    def has(self, key: str, anew: bool = False) -> bool:
        """Whether there is a verdict on a record, or a record that can be judged; `anew` takes a record as it is."""
        if anew or not self.store.has(key):
            return self.store.has(key)
        kept = _in(_read(self.store.row_path(key, self.measure)), _STANDING)
        return kept is not None or self.store.record(key) is not None

    def kept(self, key: str) -> SubmissionRow | None:
        """The verdict on a record, if it has been judged."""
        return _in(_read(self.store.row_path(key, self.measure)), _ROW)

    def unreadable(self, problem: str) -> SubmissionRow:
        return unreadable(problem, exercises_of(self.day), self.only)


def _read(path: Path) -> bytes:
    """What is in a file; nothing where it cannot be read."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _in(data: bytes, decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]) -> T | None:
    """What these bytes hold; None where they hold nothing of the kind."""
    with contextlib.suppress(BadEvidence):
        return decoded(decoder.decode, data)
    return None


def standing_of(row: SubmissionRow) -> Standing:
    return Standing(row.status, row.score, row.max_score)


CHUNK: Final = 8  # records sent to a process at a time, at most
SHARES: Final = (
    16  # at least so many times each process is sent some, so that none ends long before the others
)
AHEAD: Final = 2  # times that many wait for each process
FIRST: Final = 2  # records that have to be judged, after which other processes are started for those that may follow
IN_PARALLEL: Final = (
    50  # records; a process takes as long to start as it takes to judge some thirty of them
)


def processes(count: int, others: int) -> int:
    """How many other processes judge so many records, of those that may."""
    return min(others, count // IN_PARALLEL)


class Judges:
    """Judges records in this process and in up to so many others, where there are many of them."""

    def __init__(self, verdicts: Verdicts, count: int, others: int, at_once: bool = True) -> None:
        """Start the others; if not `at_once`, when the first few records that are added have to be judged."""
        self.verdicts = verdicts
        self._others = {process.pid for process in multiprocessing.active_children()}
        self._pool: ProcessPoolExecutor | None = None
        self._count = processes(count, others)
        self._chunk = max(1, min(CHUNK, count // (SHARES * (self._count + 1))))
        self._unchanged: list[tuple[str, Standing]] = []
        self._left: deque[str] = deque()
        self._busy: list[tuple[list[str], Future[list[Standing]]]] = []
        if at_once:
            self._start()

    def _start(self) -> None:
        if self._count > 0:
            # A copy has not read the reference yet, which each process does for itself.
            given = (dataclasses.replace(self.verdicts),)
            self._pool = ProcessPoolExecutor(self._count, _context(), _begin_judging, given)
            with contextlib.suppress(
                BrokenProcessPool, OSError, ValueError
            ):  # killed while it started: see `again`
                for _ in range(self._count):
                    self._pool.submit(_warm_up)

    def begin(self, key: str) -> Future[list[Standing]] | None:
        """Let another process judge a record, if there is one; what it cannot do is left to this one."""
        with contextlib.suppress(BrokenProcessPool, OSError, ValueError):
            return self._pool.submit(_judge_again, [key]) if self._pool else None
        return None

    def add(self, key: str) -> None:
        """Have a record judged again, unless nothing has changed: by another process soon, or by `again`."""
        if (known := self.verdicts.unchanged(key)) is not None:
            self._unchanged.append((key, known))
            return
        self._left.append(key)
        if self._pool is None and len(self._left) == FIRST:
            if self._count > 0:
                prepare(exercises_of(self.verdicts.day), self.verdicts.only)
            self._start()
        with contextlib.suppress(BrokenProcessPool, OSError, ValueError):  # which `again` reports
            self._send()

    def again(self) -> Iterator[tuple[str, Standing]]:
        """Yields the key of each record that was added, and its new verdict, which is on disk; in any order.

        Raises BadClass where the reference's record cannot be read, or a process was killed.
        """
        yield from self._unchanged
        try:
            while self._left or self._busy:
                self._send()
                if self._left:
                    key = self._left.popleft()
                    yield key, self.verdicts.standing(key, anew=True)
                else:
                    wait([future for _, future in self._busy], return_when=FIRST_COMPLETED)
                for part in [part for part in self._busy if part[1].done()]:
                    self._busy.remove(part)
                    yield from zip(part[0], part[1].result(), strict=True)
        except (BrokenProcessPool, OSError, ValueError) as error:
            if self._pool is None or not (
                isinstance(error, BrokenProcessPool) or _is_broken(self._pool)
            ):
                raise
            raise BadClass("a process that judges was killed; run the same command again") from None

    def _send(self) -> None:
        """Give the others something to do; of the last few, this process does what they have no time for."""
        waiting = sum(not future.done() for _, future in self._busy)
        while self._pool and waiting < AHEAD * self._count and len(self._left) >= self._chunk:
            part = [self._left.popleft() for _ in range(self._chunk)]
            try:
                self._busy.append((part, self._pool.submit(_judge_again, part)))
            except BaseException:
                self._left.extend(part)
                raise
            waiting += 1

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


def _judge_again(keys: Sequence[str]) -> list[Standing]:
    assert _verdicts is not None
    return [_verdicts.standing(key, anew=True) for key in keys]
