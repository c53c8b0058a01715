"""Judges what was recorded of a submission: points, status, and what a person should review."""

from __future__ import annotations

import bisect
import importlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from gpudojo.classes.records import FunctionRecord, Incident, IncidentKind, Record
from gpudojo.classes.submission_run import BEFORE_FIRST_STEP
from gpudojo.grading.engine import UNJUDGED, judge_function
from gpudojo.grading.explain import blame_helpers
from gpudojo.grading.reference_solutions import refuse_failing
from gpudojo.model.catalogue import known_misconceptions
from gpudojo.model.errors import BadClass, ReferenceFails
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import (
    FINDING_CLASSES,
    CheckResult,
    CheckRow,
    Definition,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    round_points,
    row_of_check,
    row_of_exercise,
    rows_of,
    sum_points,
)

STATUS_OF_INCIDENT: Final = {
    IncidentKind.TIMED_OUT: SubmissionStatus.TIMED_OUT,
    IncidentKind.CRASHED: SubmissionStatus.CRASHED,
    IncidentKind.OUT_OF_MEMORY: SubmissionStatus.OUT_OF_MEMORY,
}
# The type of error that a student's function is said to have ended with.
ERROR_TYPES: Final = {
    IncidentKind.TIMED_OUT: "TimedOut",
    IncidentKind.CRASHED: "Crashed",
    IncidentKind.OUT_OF_MEMORY: "OutOfMemory",
}
PUT_UNDER_MAIN: Final = "Put the wrapper under `if __name__ == '__main__':`."


class UntrueText(NamedTuple):
    """What a student reads about a function that cannot be graded."""

    happened: str
    wanted: str


# What makes the evidence of a function worth nothing.
UNTRUE: Final = {
    IncidentKind.UNMEASURED: UntrueText(
        "it could not be measured",
        f"names of torch and Python as they are. {PUT_UNDER_MAIN}",
    ),
    IncidentKind.FORGED: UntrueText(
        "it does not count",
        "a function that leaves the grader alone. Remove what changes it.",
    ),
}
# In the order in which an instructor reads them.
FINDINGS: Final = tuple(IncidentKind(name) for name in FINDING_CLASSES)
NOT_GRADED: Final = "not graded"
STOP_WRITING: Final = "remove what writes to pipes or files that your code did not open"
NO_FUNCTIONS: Final = "none of the functions is in it"
NOT_RUN: Final = "it was not run, because the submission had used up its time"
SYNTAX_ERRORS: Final = ("SyntaxError", "IndentationError", "TabError")
MOST_NOTES: Final = 20
LONGEST_HAPPENED: Final = 600  # characters of what a check tells; ours have 300 at most
MOST_INVALID_FILES: Final = 3  # that are named for review
THREADS_VARIABLE: Final = "OPENBLAS_NUM_THREADS"  # is read when NumPy is imported


def judge_record(
    record: Record,
    reference: Mapping[str, FunctionRecord],
    exercises: Iterable[Exercise],
    only: frozenset[str] = frozenset(),
    known: Iterable[ExerciseRow] = (),
) -> SubmissionRow:
    """Judge the record of a submission and return its row.

    The row does not say yet whose it is. `reference` has the functions of the reference's record,
    by "exercise::function". `only` names the functions that are graded; if it is empty, all are.
    `known` are exercises of an earlier verdict on this record, by the same code and reference: they
    are taken as they are, where the same functions of them are graded. Raises BadEvidence where the
    record was damaged after it was kept, BadDay where the day's mistakes cannot be read, and
    KeyError if the reference lacks a function.
    """
    exercises = tuple(exercises)
    record = _record_of_graded(record, exercises, only)
    definitions = _definitions_in(record)
    places = {definition.function: definition for definition in definitions}
    layers = [name for name, why_missing in record.layers.items() if not why_missing]
    needs_human = _reviews_of_incidents(record) + _reviews_of_files(record)
    # The exercises: a row for each check of the functions that are graded.
    rows = []
    known_rows = {row.exercise: row for row in known}
    for exercise in exercises:
        functions = [each for each in exercise.functions if not only or each.name in only]
        known_row = known_rows.get(exercise.stem)
        if known_row is not None and _is_about(known_row, functions):
            rows.append(known_row)
            needs_human += _reviews_of_checks(known_row.checks)
            continue
        points = iter(_rounded_points(functions))
        checks = []
        judged: list[CheckResult] = []
        for function in functions:
            untruth = _untruth_about(record, f"{exercise.stem}::{function.name}")
            if untruth is not None:
                results = _fail_all_checks(exercise, function, untruth.happened, untruth.wanted)
            else:
                results = _judge_function(exercise, function, record, reference)
                results = blame_helpers(results, function, judged)
            judged += results
            worth = list(itertools.islice(points, len(function.checks)))
            # Hints are about code that was judged.
            hints = 0
            if untruth is None:
                hints = 1
            place = places.get(function.name)
            checks += _check_rows(results, function, worth, place, record, hints)
        needs_human += _reviews_of_checks(checks)
        if checks:
            rows.append(row_of_exercise(exercise, checks))
    return _submission_row(
        _status_of(record),
        rows,
        reason=_reason_of_status(record),
        definitions=definitions,
        notes=_notes_about_files(record),
        needs_human=needs_human,
        seconds=round(record.seconds, 3),
        peak_bytes=record.peak_bytes,
        digest=record.digest,
        output=record.output,
        layers=layers,
    )


def _is_about(row: ExerciseRow, functions: Iterable[Function]) -> bool:
    """True if the checks of a row are those of these functions."""
    names = [
        f"{function.name}::{check.name}" for function in functions for check in function.checks
    ]
    return names == [check.id.partition("::")[2] for check in row.checks]


def _record_of_graded(
    record: Record, exercises: Iterable[Exercise], only: frozenset[str]
) -> Record:
    """The record as if only the functions that are graded had been run.

    It may hold others, which counted before. What looks like an attack stays.
    """
    if not only:
        return record
    graded = set()
    for exercise, function in _graded_functions(exercises, only):
        graded.add(f"{exercise.stem}::{function.name}")
    places = []
    other_files = set()
    for place in record.places:
        if f"{place.exercise}::{place.function}" in graded:
            places.append(place)
        else:
            other_files.add(place.file)
    other_files.difference_update(place.file for place in places)
    incidents = []
    for incident in record.incidents:
        step = incident.step
        if incident.what is IncidentKind.NOT_RUN:
            is_of_others = graded.issubset(record.seen)
        elif incident.what in STATUS_OF_INCIDENT:
            is_of_others = "::" in step and step not in graded
            is_of_others = is_of_others or step.removeprefix("file ") in other_files
        else:
            is_of_others = False
        if not is_of_others:
            incidents.append(incident)
    return replace(
        record,
        places=places,
        incidents=incidents,
        files={name: file for name, file in record.files.items() if name not in other_files},
        seen={key: function for key, function in record.seen.items() if key in graded},
    )


def _rounded_points(functions: Iterable[Function]) -> list[float]:
    """The points of all checks, rounded together, so that they add up to those of the exercise."""
    points = []
    for function in functions:
        points += [check.points for check in function.checks]
    return round_points(points)


def judge_unreadable(
    problem: str, exercises: Iterable[Exercise], only: frozenset[str] = frozenset()
) -> SubmissionRow:
    """Make the row of a submission that could not be read: every check failed.

    The problem is its reason, and the one thing to review. `only` names the functions that are
    graded; if it is empty, all are. Raises BadDay for a mistake in a file of hints.
    """
    exercises = tuple(exercises)
    happened = f"not graded: {problem}"
    results = []
    for exercise, function in _graded_functions(exercises, only):
        results += _fail_all_checks(exercise, function, happened, "a submission that can be read")
    return _submission_row(
        SubmissionStatus.UNREADABLE,
        rows_of(results, exercises),
        reason=problem,
        needs_human=[problem],
    )


def require_usable_reference(
    reference: Record, exercises: Iterable[Exercise], only: frozenset[str] = frozenset()
) -> None:
    """Raise BadClass where the reference does not run, or a probe cannot use what it did.

    Functions that are not graded are not looked at.
    """
    for exercise, function in _graded_functions(exercises, only):
        function_record = reference.functions.get(f"{exercise.stem}::{function.name}")
        if function_record is None:
            reasons = dict.fromkeys(incident.detail for incident in reference.incidents)
            why = "; ".join(reasons) or "there is no evidence"
            raise BadClass(f"the reference solution of `{function.name}` cannot be run: {why}")
        try:
            refuse_failing(function_record.evidence)
        except ReferenceFails as error:
            raise BadClass(str(error)) from None


def prepare_judging(exercises: Iterable[Exercise], only: frozenset[str] = frozenset()) -> None:
    """Import what judging needs, before there is work or a fork.

    NumPy is imported without threads of its own: a process with threads is not forked, and nothing
    that is judged is large enough for them. The variable for that is put back. Raises BadDay or
    OSError if the mistakes of a day cannot be read.
    """
    threads_before = os.environ.get(THREADS_VARIABLE)
    os.environ[THREADS_VARIABLE] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[THREADS_VARIABLE]
        if threads_before is not None:
            os.environ[THREADS_VARIABLE] = threads_before
    known_misconceptions()
    for _, function in _graded_functions(exercises, only):
        for probe in function.probes:
            _ = probe.return_type  # finding out takes long the first time


def _graded_functions(
    exercises: Iterable[Exercise], only: frozenset[str]
) -> Iterator[tuple[Exercise, Function]]:
    """Yield the functions that `only` names, or all, with their exercises."""
    for exercise in exercises:
        for function in exercise.functions:
            if not only or function.name in only:
                yield exercise, function


# One function


def _untruth_about(record: Record, key: str) -> UntrueText | None:
    """What a student reads about a function whose evidence may be untrue; None for good evidence.

    `key` is "exercise::function".
    """
    if _forged_message(record) is not None:
        return UntrueText(NOT_GRADED, "")  # the submission's reason says why
    for incident in sorted(record.incidents, key=_order_of_review):
        if incident.what in UNTRUE and incident.step == key:
            text = UNTRUE[incident.what]
            return UntrueText(f"{text.happened}: {incident.detail}", text.wanted)
    return None


def _forged_message(record: Record) -> Incident | None:
    """The incident for which nothing of a submission is graded, or None."""
    for incident in record.incidents:
        if incident.what is IncidentKind.FORGED and not incident.step:
            return incident
    return None


def _judge_function(
    exercise: Exercise,
    function: Function,
    record: Record,
    reference: Mapping[str, FunctionRecord],
) -> list[CheckResult]:
    """One result for each check of a function, by its record and the reference's.

    Where its process ended early, evidence is made up that says so. Raises BadEvidence where the
    record was damaged after it was kept, BadDay where the day's mistakes cannot be read, and
    KeyError if the reference lacks the function.
    """
    key = f"{exercise.stem}::{function.name}"
    # What was seen, completed where its process ended early.
    evidence = None
    if key in record.seen:
        evidence = record.decode_function(key).evidence
        if evidence.observations.keys() != {probe.name for probe in function.probes}:
            evidence = complete_after_time_out(function, evidence)
    if evidence is None:
        evidence = evidence_of_ended_process(exercise, function, record)
    expected = reference[key]
    lines = partial(_lines_of_source, record, exercise, function)
    return judge_function(
        exercise, function, evidence, expected.evidence, lines, expected.signature
    )


def complete_after_time_out(function: Function, evidence: Evidence) -> Evidence | None:
    """Fill in the time-out for probes that were not asked any more.

    Returns None where no probe timed out, or none is missing. On a real GPU several children
    observe a function. After a time-out in one of them no other is asked.
    """
    observations = evidence.observations
    timed_out = [each for each in observations.values() if each.timed_out]
    names = [probe.name for probe in function.probes]
    if not timed_out or not observations.keys() < set(names):
        return None
    completed = {name: observations.get(name, timed_out[0]) for name in names}
    return replace(evidence, observations=completed)


def evidence_of_ended_process(exercise: Exercise, function: Function, record: Record) -> Evidence:
    """Make evidence for a function whose process ended before it could send any.

    Every probe is said to have ended with the error that ended the process; without one, the
    function was not run.
    """
    incident = _incident_behind_end(exercise, function, record)
    status = CallStatus.RAISED
    if incident is None:
        raised = Raised("NotRun", NOT_RUN, None)
    else:
        raised = Raised(ERROR_TYPES[incident.what], incident.detail, None)
        if incident.step.startswith("file "):
            status = CallStatus.BROKEN
    observation = Observation(status, raised=raised)
    observations = {probe.name: observation for probe in function.probes}
    return Evidence(exercise.stem, function.name, "", 0, observations)


def _incident_behind_end(exercise: Exercise, function: Function, record: Record) -> Incident | None:
    """The incident that ended the process in this function, in its file or before both, or None."""
    file = _graded_file(record, exercise, function)
    steps = (f"{exercise.stem}::{function.name}", f"file {file}", BEFORE_FIRST_STEP)
    for incident in record.incidents:
        if incident.step in steps and incident.what in ERROR_TYPES:
            return incident
    return None


def _graded_file(record: Record, exercise: Exercise, function: Function) -> str:
    """The file whose definition of a function was graded. Empty where there is none."""
    for place in record.places:
        if (place.exercise, place.function) == (exercise.stem, function.name):
            return place.file or ""
    return ""


def _lines_of_source(record: Record, exercise: Exercise, function: Function) -> Mapping[str, int]:
    """The lines of names and patterns in the file that was graded; empty for an unknown file.

    Raises BadEvidence where the record was damaged after it was kept.
    """
    file = _graded_file(record, exercise, function)
    if file in record.files:
        return record.files[file].lines
    return {}


def _fail_all_checks(
    exercise: Exercise, function: Function, happened: str, expected: str
) -> list[CheckResult]:
    """Results in which all checks of a function failed for one reason."""
    results = []
    for check in function.checks:
        result = CheckResult(
            exercise.stem,
            function.name,
            check.name,
            check.claim,
            Outcome.FAILED,
            check.points,
            happened,
            expected,
        )
        results.append(result)
    return results


# Rows


def _submission_row(
    status: SubmissionStatus, exercises: list[ExerciseRow], **more: Any
) -> SubmissionRow:
    """The row with the sums of points of its exercises; `more` are other fields of the row.

    The name of the submission is empty.
    """
    score = sum_points(row.score for row in exercises)
    max_score = sum_points(row.max_score for row in exercises)
    return SubmissionRow("", status, score, max_score, exercises, **more)


def _check_rows(
    results: list[CheckResult],
    function: Function,
    points: list[float],
    place: Definition | None,
    record: Record,
    hints: int,
) -> list[CheckRow]:
    """The rows of a function's checks, in the order of `results`, each with at most so many hints.

    `points` are those of each check, `place` is where the function is defined. Long texts are cut
    off. In a notebook, lines are counted within their cell. Raises ValueError if there are not as
    many points as results, and BadDay or OSError if the day's mistakes cannot be read.
    """
    mistakes = known_misconceptions()
    rows = []
    for result, worth in zip(results, points, strict=True):
        if len(result.happened) > LONGEST_HAPPENED:
            # Long texts are the student's: names of classes, keys, settings.
            result = replace(result, happened=f"{result.happened[:LONGEST_HAPPENED]}…")
        row = row_of_check(result, worth, function, mistakes, place, hints)
        rows.append(_with_line_in_cell(row, record))
    return rows


def _with_line_in_cell(check: CheckRow, record: Record) -> CheckRow:
    """The row with a line of one cell instead of a line of the whole notebook.

    Rows without a line, of other files or before the first cell are returned as they are.
    """
    loaded = record.files.get(check.file or "")
    if loaded is None or not loaded.cells or check.line is None:
        return check
    cell = bisect.bisect_right(loaded.cells, check.line)
    if cell == 0:
        return check
    first = loaded.cells[cell - 1]
    return replace(check, cell=cell, line=check.line - first + 1)


def _definitions_in(record: Record) -> list[Definition]:
    """Where the functions are defined that were graded; those without a file are left out."""
    definitions = []
    for place in record.places:
        if place.file is not None:
            definition = Definition(place.function, place.file, place.line, place.cell, place.note)
            definitions.append(definition)
    return definitions


def _status_of(record: Record) -> SubmissionStatus:
    """How the submission went: what ended it first, or "graded".

    It is "not graded" if a message to the grader was forged, whatever else happened.
    """
    if _forged_message(record) is not None:
        return SubmissionStatus.NOT_GRADED
    for incident in record.incidents:
        if incident.what in STATUS_OF_INCIDENT:
            return STATUS_OF_INCIDENT[incident.what]
    return SubmissionStatus.GRADED


def _reason_of_status(record: Record) -> str:
    """Why a submission was not graded, or not all of it ran. Empty where all of it did.

    Of a submission that was not graded it says what to do; else it names every step that ended a
    process.
    """
    forged = _forged_message(record)
    if forged is not None:
        return f"{NOT_GRADED}: {forged.detail}; {STOP_WRITING}"
    reasons = []
    for incident in record.incidents:
        if incident.what in STATUS_OF_INCIDENT:
            reasons.append(_sentence_of(incident))
    for incident in record.incidents:
        if incident.what is IncidentKind.NOT_RUN:
            reasons.append(incident.detail)
    return "; ".join(reasons)


def _sentence_of(incident: Incident) -> str:
    """What happened, in which file or function, and how: "timed out in `train`: …"."""
    step = incident.step
    where = f"`{step.rpartition('::')[2]}`"
    if step.startswith("file "):
        where = step
    return f"{incident.what} in {where}: {incident.detail}"


def _notes_about_files(record: Record) -> list[str]:
    """The errors with which files ended, and the names that their code had replaced.

    They are notes for the instructor, at most MOST_NOTES.
    """
    notes = []
    for name, loaded in record.files.items():
        if loaded.broken:
            notes.append(f"{name}: {loaded.broken.type}: {loaded.broken.message}")
    for incident in record.incidents:
        if incident.what is IncidentKind.PUT_BACK:
            notes.append(f"{incident.detail}; it was put back. {PUT_UNDER_MAIN}")
    return notes[:MOST_NOTES]


# What an instructor should review before grades are published


def _reviews_of_incidents(record: Record) -> list[str]:
    """What was forged, not measured or reported, crashed or ran out of memory, in this order."""
    reviews = []
    for incident in sorted(record.incidents, key=_order_of_review):
        if incident.what in FINDINGS:
            reviews.append(f"{incident.what}: {incident.detail}")
        elif incident.what in (IncidentKind.CRASHED, IncidentKind.OUT_OF_MEMORY):
            reviews.append(_sentence_of(incident))
    return reviews


def _order_of_review(incident: Incident) -> int:
    """The place of an incident in the list of what is to be reviewed."""
    if incident.what in FINDINGS:
        return FINDINGS.index(incident.what)
    return len(FINDINGS)


def _reviews_of_files(record: Record) -> list[str]:
    """Files that are no Python, functions that are nowhere, and files that are there twice.

    At most MOST_INVALID_FILES of the first are named. Raises BadEvidence where the record is
    damaged.
    """
    invalid = []
    for name, loaded in record.files.items():
        broken = loaded.broken
        if broken and broken.type in SYNTAX_ERRORS:
            invalid.append(f"{name} is not valid Python: {broken.type}: {broken.message}")
    reviews = invalid[:MOST_INVALID_FILES]
    incidents = [each for each in record.incidents if each.what is not IncidentKind.PUT_BACK]
    if not invalid and not incidents and _has_no_functions(record):
        reviews.append(NO_FUNCTIONS)
    # Several functions may be in one file: it is named once.
    versions = {}
    for place in record.places:
        if place.versions:
            versions[place.file] = ", ".join(place.versions)
    for graded, others in versions.items():
        reviews.append(
            f"there are several versions of a file: {graded} was graded, and not {others}"
        )
    return reviews


def _has_no_functions(record: Record) -> bool:
    """True if the submission has files, and none of the functions was found in them.

    A function can be there without a known line: in a file that is too long to be parsed, or under
    a name that is only set while the file runs. Raises BadEvidence where the record is damaged.
    """
    if not record.places:
        return False
    if any(place.line is not None for place in record.places):
        return False
    for function in record.functions.values():
        for observation in function.evidence.observations.values():
            if observation.status not in (CallStatus.MISSING, CallStatus.BROKEN):
                return False
    return True


def _reviews_of_checks(checks: Iterable[CheckRow]) -> list[str]:
    """Checks that could not judge, or are not sure of what they saw.

    What is too good to be true is among them.
    """
    reviews = []
    for check in checks:
        happened = check.happened
        if check.outcome is Outcome.ERROR:
            reviews.append(f"an error in the check {check.id}, not in the submission: {happened}")
        elif happened.startswith(UNJUDGED):
            why = happened.removeprefix(UNJUDGED).strip(" ()")
            reviews.append(f"the check {check.id} could not judge it: {why}")
        elif "too good to be true" in happened:
            reviews.append(f"{check.id}: {happened.splitlines()[0]}")
    return reviews
