"""What do the probes of a function see? Evidence, one observation for each."""

from __future__ import annotations

import contextlib
from typing import Any

from graders.bench.patching import imported_into
from graders.curriculum.exercise import OTHERS, Exercise, Function, Probe
from graders.errors import DeviceClosed, RealDeviceInUse
from graders.evidence import Evidence, Observation, Raised, Status
from graders.probes.apart import observe_apart
from graders.probes.calling import Call, StudentRaised
from graders.probes.loading import Submission, load
from graders.probes.machines import open_machine


def observe(exercise: Exercise, function: Function, submission: Submission, kind: str, seed: int) -> Evidence:
    """Call one function of a submission in every scenario."""
    found = {}
    for probe in function.probes:
        found[probe.name] = observe_one(exercise, function, probe, submission, kind, seed)
    return Evidence(exercise.stem, function.name, kind, seed, found)


def observe_one(
    exercise: Exercise, function: Function, probe: Probe, submission: Submission, kind: str, seed: int
) -> Observation:
    """What one probe sees, if need be in a process of its own."""
    if kind == "cuda" and probe.machine in OTHERS:
        return observe_apart(exercise, function, probe, submission.path, seed)  # this process has the real GPU
    try:
        return _observe(function, probe, submission, kind, seed)
    except RealDeviceInUse:
        return observe_apart(exercise, function, probe, submission.path, seed)


def _observe(function: Function, probe: Probe, submission: Submission, kind: str, seed: int) -> Observation:
    if function.name in submission.todo:
        return Observation(Status.TODO)
    student = submission.names.get(function.name)
    if student is None and submission.broken is not None:
        return Observation(Status.BROKEN, raised=submission.broken)
    if probe.machine in ("value", "reference") and student is not None:
        # No function to call: the probe looks at the value itself, or at what has nothing to do with the student.
        if isinstance(student, dict) and all(value is None for value in dict.values(student)):
            return Observation(Status.TODO)
        looks = probe.machine == "value" or submission.reference
        return Observation(Status.RETURNED, probe.look(student) if looks else {})
    if not callable(student):
        return Observation(Status.MISSING)
    seen = _look(function.name, student, probe, submission, kind, seed)
    if seen.raised is not None and seen.raised.type == "DeviceClosed":
        # The file remembers a tensor from another probe's bench. A real device would still be there: begin anew.
        submission = load(submission.path)
        again = submission.names.get(function.name, student)
        return _look(function.name, again, probe, submission, kind, seed)
    return seen


def _look(name: str, student: Any, probe: Probe, submission: Submission, kind: str, seed: int) -> Observation:
    with open_machine(probe.machine, kind) as bench, contextlib.ExitStack() as names:
        if submission.asks:  # on another machine, which this one is not
            submission = load(submission.path)
            student = submission.names.get(name, student)
        names.enter_context(imported_into(submission.names))
        try:
            return Observation(Status.RETURNED, probe.look(Call(student, submission.path, bench, seed)))
        except StudentRaised as error:
            return Observation(Status.RAISED, error.facts, error.evidence)
        except Exception as error:  # the probe stumbled over what came out: with the reference's result it does not
            said = f"what `{name}` did or returned cannot be used: {type(error).__name__}: {error}"
            what = "DeviceClosed" if isinstance(error, DeviceClosed) else "Unusable"
            return Observation(Status.RAISED, raised=Raised(what, said, submission.lines.get(name)))
