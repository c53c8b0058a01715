"""What does a child look at? Each file that matters is run, and each function in it called in every scenario."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graders.curriculum import day
from graders.curriculum.exercise import Exercise, Function, Probe
from graders.evidence import Evidence, Observation, Raised, Status
from graders.intake.definitions import choose
from graders.sandbox.protocol import (
    ALL,
    ELSEWHERE,
    MESSAGE,
    Began,
    Chosen,
    Frame,
    Glimpse,
    Job,
    Loaded,
    Saw,
)

if TYPE_CHECKING:
    from graders.bench.ledger.timeline import Timeline
    from graders.probes.loading import Submission
    from graders.probes.watching import Busiest

LINES = 2000  # a notebook with all functions of a day has some 700, most of them what sources show


def grade(job: Job, home: Path) -> Generator[Frame | Glimpse, None, bool]:
    """Load each file that matters and look at each function in it; True if another child has to go on."""
    exercises = day(job.day)
    loaded: dict[str, Submission] = {}
    choice = choose(job.files, exercises)
    asked = [(e, f) for e in exercises for f in e.functions if not job.only or f.name in job.only]
    if job.bench == "cuda":
        asked = [(e, left) for e, f in asked if (left := _left(job, e, f)).probes]
    if job.machines == ELSEWHERE:
        job = msgspec.structs.replace(job, bench="virtual")  # as there is no GPU in this process
    for exercise, function in asked:
        one = choice.of(function.name)
        if one is not None:
            yield Chosen(exercise.stem, function.name, one.file, one.line, one.cell, one.note[:MESSAGE])
    for exercise, function in asked:
        key, one = f"{exercise.stem}::{function.name}", choice.of(function.name)
        file = one.file if one is not None else None
        if key in job.skip:
            continue
        if file is None:
            yield from (Glimpse(probe.name, Observation(Status.MISSING)) for probe in function.probes)
            yield Saw(Evidence(exercise.stem, function.name, job.bench, 0, {}), 0.0)
            continue
        if f"file {file}" in job.skip:
            continue
        if file not in loaded:
            yield Began(f"file {file}")
            loaded[file], ran = _load(job, home, file)
            yield ran
        yield Began(key)
        saw = yield from looked_at(job, exercise, function, loaded[file], home)
        yield saw
        if saw.interrupted or saw.spent:
            return True
    return False


def _left(job: Job, exercise: Exercise, function: Function) -> Function:
    """The function with those of its probes that this child can be the machine for, and that none has looked with."""
    key = f"{exercise.stem}::{function.name}"
    here = [p for p in function.probes if job.machines == ALL or p.elsewhere == (job.machines == ELSEWHERE)]
    return dataclasses.replace(function, probes=[p for p in here if f"{key}::{p.name}" not in job.done])


def _load(job: Job, home: Path, file: str) -> tuple[Submission, Loaded]:
    from graders.probes.loading import Submission, load, raised
    from graders.probes.time_limits import TimedOut, time_limit

    path, began = home / file, time.perf_counter()
    try:
        with time_limit(job.seconds, str(path)):
            submission = load(path)
    except TimedOut as error:  # not where the file was running, which is caught there
        submission = Submission(path, broken=raised(error, path))
    lines = dict(list(submission.lines.items())[:LINES])
    broken = None if submission.broken is None else _plain(submission.broken, home)
    return submission, Loaded(file, time.perf_counter() - began, lines, submission.cells[:LINES], broken)


def looked_at(
    job: Job, exercise: Exercise, function: Function, submission: Submission, home: Path
) -> Generator[Glimpse, None, Saw]:
    """The evidence of one function. Once it is out of time in one scenario it is not asked in the others."""
    from graders.bench.real.owning import lost
    from graders.probes.loading import raised
    from graders.probes.time_limits import TimedOut
    from graders.probes.watching import Busiest

    began = time.perf_counter()
    late: Observation | None = None
    spent = False
    busiest = Busiest()
    for probe in map(busiest.watched, function.probes):
        if late is None:
            seed = job.seeds[f"{exercise.stem}::{function.name}::{probe.name}"]
            left = job.seconds - (time.perf_counter() - began)
            seen = _in_time(left, exercise, function, probe, submission, job.bench, seed)
            if seen.raised is not None:
                seen = msgspec.structs.replace(seen, raised=_plain(seen.raised, home))
            if seen.raised is not None and seen.raised.type == "TimedOut":
                # It had what earlier scenarios had left of the time; the limit is what a student knows of.
                said = msgspec.structs.replace(seen.raised, message=str(TimedOut(job.seconds)))
                late = seen = msgspec.structs.replace(seen, raised=said)
            if job.on_gpu and (error := lost()) is not None:
                spent = True
                if seen.raised is None:  # it came up after everything had been looked at
                    seen = Observation(Status.RAISED, raised=_plain(raised(error, submission.path), home))
        yield Glimpse(probe.name, late or seen)
        if spent and late is None:
            break
    evidence = Evidence(exercise.stem, function.name, job.bench, 0, {})  # its observations are out already
    signature = _signature(submission.names.get(function.name))
    interrupted = late is not None and late.status is Status.RAISED
    seconds = time.perf_counter() - began
    if job.drawn_with is not None:
        looks = late is None and not spent and bool(busiest.records)
        drawn = _drawn(job, exercise, function, submission) if looks else []
        return Saw(evidence, seconds, signature, interrupted, timelines=drawn, spent=spent)
    timeline = None if late is not None else _timeline(busiest, function.name)
    return Saw(evidence, seconds, signature, interrupted, timeline, spent=spent)


def _timeline(busiest: Busiest, function: str) -> Timeline | None:
    """For the report; whatever student code has done to what it is made of, its evidence is worth the same without."""
    with contextlib.suppress(Exception):
        return busiest.timeline(function)
    return None


def _drawn(job: Job, exercise: Exercise, function: Function, submission: Submission) -> list[Timeline]:
    """What a reference's calls do on the public seed: pictures are for everybody, and the class's seed is a secret."""
    from graders.probes.time_limits import time_limit
    from graders.probes.watching import EveryCall

    every = EveryCall(function.name)
    assert job.drawn_with is not None
    for probe in map(every.watched, function.probes):
        if probe.machine not in ("value", "reference"):
            with time_limit(job.seconds, str(submission.path)):
                _observed(exercise, function, probe, submission, job.bench, job.drawn_with)
    return every.timelines


def _in_time(
    left: float, exercise: Exercise, function: Function, probe: Probe, submission: Submission, kind: str, seed: int
) -> Observation:
    """What is observed in so many seconds; a student who swallows that they are over is out of time all the same."""
    from graders.probes.loading import raised
    from graders.probes.time_limits import TimedOut, time_limit

    if left <= 0:
        return _out_of_time(None)
    try:
        with time_limit(left, str(submission.path)) as limit:
            seen = _observed(exercise, function, probe, submission, kind, seed)
    except TimedOut as error:  # our own code was interrupted, where it hung on what is the student's
        return Observation(Status.RAISED, raised=raised(error, submission.path))
    swallowed = limit.raised and (seen.raised is None or seen.raised.type != TimedOut.__name__)
    return _out_of_time(limit.line) if swallowed else seen


def _out_of_time(line: int | None) -> Observation:
    from graders.probes.time_limits import TimedOut

    return Observation(Status.RAISED, raised=Raised(TimedOut.__name__, "", line))


def _observed(
    exercise: Exercise, function: Function, probe: Probe, submission: Submission, kind: str, seed: int
) -> Observation:
    from graders.errors import DojoError
    from graders.probes.loading import raised
    from graders.probes.observing import observe_one

    try:
        seen = observe_one(exercise, function, probe, submission, kind, seed)
        return _sendable(function, seen)
    except DojoError:
        raise
    except BaseException as error:  # what no probe catches: time-outs, SystemExit and KeyboardInterrupt of its own
        return Observation(Status.RAISED, raised=raised(error, submission.path))


def _sendable(function: Function, seen: Observation) -> Observation:
    """What was seen, unless there is something of the student's in it that is no number, text or array."""
    try:
        msgspec.msgpack.encode(seen)
    except Exception as error:
        said = f"what `{function.name}` did or returned cannot be used: {type(error).__name__}: {error}"
        return Observation(Status.RAISED, raised=Raised("Unusable", said[:MESSAGE], None))
    return seen


def _plain(error: Raised, home: Path) -> Raised:
    """Without the name of the scratch folder, which tells a student nothing and is another one in every run."""
    return msgspec.structs.replace(error, message=error.message.replace(f"{home}{os.sep}", "")[:MESSAGE])


def _signature(function: object) -> str:
    try:
        return str(inspect.signature(function))[:200] if callable(function) else ""
    except (TypeError, ValueError):
        return ""
