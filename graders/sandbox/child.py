"""What happens in a child? It steps behind the fences, reads the submission, and sends evidence of each function.

Here student code runs. Nothing this process says is taken for more than evidence.
"""

from __future__ import annotations

import inspect
import os
import random
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graders.curriculum import day
from graders.curriculum.exercise import Exercise, Function
from graders.evidence import Evidence, Observation, Raised, Status
from graders.intake.definitions import choose
from graders.sandbox import integrity
from graders.sandbox.protocol import (
    Began,
    Chosen,
    Fenced,
    Finished,
    Frame,
    Job,
    Loaded,
    Saw,
    Stumbled,
    Tampered,
    decode_job,
    encode_frame,
)
from graders.sandbox.warming import warm_up

if TYPE_CHECKING:
    from graders.probes.loading import Submission
    from graders.sandbox.confinement import Fences

__all__ = ["prepare", "run"]

LINES = 500
MESSAGE = 2000
Send = Callable[[Frame], None]


_untouched: integrity.Print = {}


def prepare() -> None:
    """In the nursery: what is slow the first time, and what the grader's code looks like before anybody has run."""
    warm_up()
    _untouched.update(integrity.fingerprint())


def run(number: int, job_end: int, evidence_end: int, output_end: int, fences: Fences) -> None:
    """Everything a child does. An exception of our own ends up in its output, and the grader sees that it crashed."""
    with os.fdopen(job_end, "rb") as file:
        file.seek(0)
        job = decode_job(file.read())
    evidence_end = _alone_with(evidence_end, output_end, [path for path, _ in fences.readable])
    layers = fences.confine(number, job.memory, job.scratch, _total(job), job.files)
    tempfile.tempdir = None  # the nursery has looked for one already, where this process may not write
    token = job.token

    def send(frame: Frame) -> None:
        data = memoryview(encode_frame(frame, token))
        while data:
            data = data[os.write(evidence_end, data) :]

    send(Fenced(layers))
    try:
        grade(job, Path(os.getcwd()), send)
    except Exception as error:  # what the student's code raises is evidence by now: this is ours, or was provoked
        send(Stumbled(f"{type(error).__name__}: {error}"[:MESSAGE]))
        traceback.print_exc()
        return
    send(Finished())


def _total(job: Job) -> float:
    return job.seconds * 6


def _alone_with(evidence_end: int, output_end: int, needed: list[int]) -> int:
    """No descriptor but the ends of two pipes, and what the fences need and close themselves."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(output_end, 1)
    os.dup2(output_end, 2)
    kept = random.SystemRandom().randrange(100, 200)
    while kept in needed:
        kept += 1
    os.dup2(evidence_end, kept, inheritable=False)
    last = 3
    for descriptor in sorted({*needed, kept}):
        os.closerange(last, descriptor)
        last = descriptor + 1
    os.closerange(last, 4096)
    return kept


def grade(job: Job, home: Path, send: Send) -> None:
    """Load each file that matters and look at each function in it."""
    exercises = day(job.day)
    loaded: dict[str, Submission] = {}
    for exercise, function, file in chosen(job, exercises, send):
        key = f"{exercise.stem}::{function.name}"
        if key in job.skip:
            continue
        if file is None:
            nothing = {probe.name: Observation(Status.MISSING) for probe in function.probes}
            send(Saw(Evidence(exercise.stem, function.name, job.bench, 0, nothing), 0.0))
            continue
        if f"file {file}" in job.skip:
            continue
        submission = loaded.get(file)
        if submission is None:
            send(Began(f"file {file}"))
            submission = loaded[file] = _load(job, home, file, send)
        send(Began(key))
        send(looked_at(job, exercise, function, submission, home))
    what = integrity.changed(_untouched)
    if what is not None:
        send(Tampered(what))


def chosen(job: Job, exercises: tuple[Exercise, ...], send: Send) -> list[tuple[Exercise, Function, str | None]]:
    """Every function, with the file whose definition of it is graded; told once, by the first child."""
    choice = choose(job.files, exercises)
    found = []
    for exercise in exercises:
        for function in exercise.functions:
            if job.only and function.name not in job.only:
                continue
            one = choice.of(function.name)
            file = one.file if one is not None else None
            if one is not None:
                send(Chosen(exercise.stem, function.name, one.file, one.line, one.cell, one.note[:MESSAGE]))
            found.append((exercise, function, file))
    return found


def _load(job: Job, home: Path, file: str, send: Send) -> Submission:
    from graders.probes.loading import load
    from graders.probes.time_limits import time_limit

    path, began = home / file, time.perf_counter()
    with time_limit(job.seconds, str(path)):
        submission = load(path)
    lines = dict(list(submission.lines.items())[:LINES])
    broken = None if submission.broken is None else _plain(submission.broken, home)
    send(Loaded(file, time.perf_counter() - began, lines, submission.cells[:LINES], broken))
    return submission


def looked_at(job: Job, exercise: Exercise, function: Function, submission: Submission, home: Path) -> Saw:
    """The evidence of one function. Once it is out of time in one scenario it is not asked in the others."""
    from graders.probes.time_limits import time_limit

    began = time.perf_counter()
    found: dict[str, Observation] = {}
    late: Observation | None = None
    for probe in function.probes:
        if late is None:
            seed = job.seeds[f"{exercise.stem}::{function.name}::{probe.name}"]
            left = job.seconds - (time.perf_counter() - began)
            with time_limit(max(left, 0.05), str(submission.path)):
                seen = _observed(exercise, function, probe, submission, job.bench, seed)
            if seen.raised is not None:
                seen = msgspec.structs.replace(seen, raised=_plain(seen.raised, home))
            if seen.raised is not None and seen.raised.type == "TimedOut":
                late = seen
        found[probe.name] = late or seen
    evidence = Evidence(exercise.stem, function.name, job.bench, 0, found)
    return Saw(evidence, time.perf_counter() - began, _signature(submission.names.get(function.name)))


def _observed(
    exercise: Exercise, function: Function, probe: object, submission: Submission, kind: str, seed: int
) -> Observation:
    from graders.curriculum.exercise import Probe
    from graders.errors import DojoError
    from graders.probes.loading import raised
    from graders.probes.observing import observe_one

    assert isinstance(probe, Probe)
    try:
        return observe_one(exercise, function, probe, submission, kind, seed)
    except DojoError:
        raise
    except BaseException as error:  # what no probe catches: time-outs, SystemExit and KeyboardInterrupt of its own
        return Observation(Status.RAISED, raised=raised(error, submission.path))


def _plain(error: Raised, home: Path) -> Raised:
    """Without the name of the scratch folder, which tells a student nothing and is another one in every run."""
    return msgspec.structs.replace(error, message=error.message.replace(f"{home}{os.sep}", "")[:MESSAGE])


def _signature(function: object) -> str:
    try:
        return str(inspect.signature(function))[:200] if callable(function) else ""
    except (TypeError, ValueError):
        return ""
