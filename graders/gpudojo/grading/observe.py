"""Runs the probes of a function and collects evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import virtual_cuda
from virtual_cuda import OpenDevice, patch_imported_names
from virtual_cuda.errors import DeviceClosed, RealDeviceInUse
from virtual_cuda.ledger import Ledger

from gpudojo.grading.call import Call, StudentRaised, torch
from gpudojo.grading.load import Submission, load
from gpudojo.grading.subprocess_probe import observe_apart
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.exercise import OTHERS, Exercise, Function, Probe


@contextlib.contextmanager
def open_machine(machine: str, kind: str) -> Iterator[OpenDevice]:
    """`bench` is the chosen one; `a gpu` is it too, if it is one, and else virtual; `unwatched` is for clocks.

    A clock would time the virtual device's bookkeeping instead of the student's work: there `unwatched` is the CPU.
    `one gpu`, `two gpus`, `mac` and `laptop` are machines to choose a device on.
    """
    if machine == "bench":
        with virtual_cuda.open_device(kind) as bench:  # type: ignore[arg-type]
            yield bench
    elif machine == "a gpu":
        with virtual_cuda.open_device("virtual" if kind in ("cpu", "mps") else kind) as bench:  # type: ignore[arg-type]
            yield bench
    elif machine in ("one gpu", "two gpus"):
        with virtual_cuda.open_device("virtual", devices=1 if machine == "one gpu" else 2) as bench:
            yield bench
    elif machine == "unwatched" and kind not in ("virtual", "cpu"):
        with virtual_cuda.open_device(kind) as bench:  # type: ignore[arg-type]
            yield bench
    else:
        around = virtual_cuda.virtual_mps() if machine == "mac" else virtual_cuda.no_accelerator(built=True)
        with around:
            yield OpenDevice(machine, torch.device("cpu"), Ledger(), f"the exercise is about a {machine}")


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
        return Observation(CallStatus.TODO)
    student = submission.names.get(function.name)
    if student is None and submission.broken is not None:
        return Observation(CallStatus.BROKEN, raised=submission.broken)
    if probe.machine in ("value", "reference") and student is not None:
        # No function to call: the probe looks at the value itself, or at what has nothing to do with the student.
        if isinstance(student, dict) and all(value is None for value in dict.values(student)):
            return Observation(CallStatus.TODO)
        looks = probe.machine == "value" or submission.reference
        return Observation(CallStatus.RETURNED, probe.look(student) if looks else {})
    if not callable(student):
        return Observation(CallStatus.MISSING)
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
        names.enter_context(patch_imported_names(submission.names))
        try:
            return Observation(CallStatus.RETURNED, probe.look(Call(student, submission.path, bench, seed)))
        except StudentRaised as error:
            return Observation(CallStatus.RAISED, error.facts, error.evidence)
        except Exception as error:  # the probe stumbled over what came out: with the reference's result it does not
            said = f"what `{name}` did or returned cannot be used: {type(error).__name__}: {error}"
            what = "DeviceClosed" if isinstance(error, DeviceClosed) else "Unusable"
            return Observation(CallStatus.RAISED, raised=Raised(what, said, submission.lines.get(name)))
