"""What do the probes of a function see? Evidence, one observation for each."""

from __future__ import annotations

from graders.curriculum.exercise import Exercise, Function, Probe
from graders.evidence import Evidence, Observation, Status
from graders.probes.calling import Call, StudentRaised
from graders.probes.loading import Submission
from graders.probes.machines import open_machine


def observe(exercise: Exercise, function: Function, submission: Submission, kind: str, seed: int) -> Evidence:
    """Call one function of a submission in every scenario."""
    found = {}
    for probe in function.probes:
        found[probe.name] = _observe(function, probe, submission, kind, seed)
    return Evidence(exercise.stem, function.name, kind, seed, found)


def _observe(function: Function, probe: Probe, submission: Submission, kind: str, seed: int) -> Observation:
    if function.name in submission.todo:
        return Observation(Status.TODO)
    student = submission.names.get(function.name)
    if student is None and submission.broken is not None:
        return Observation(Status.BROKEN, raised=submission.broken)
    if not callable(student):
        return Observation(Status.MISSING)
    with open_machine(probe.machine, kind) as bench:
        try:
            return Observation(Status.RETURNED, probe.look(Call(student, submission.path, bench, seed)))
        except StudentRaised as error:
            return Observation(Status.RAISED, raised=error.evidence)
