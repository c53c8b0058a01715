"""Runs the probes of a function and collects evidence.

`observe_function` gives the evidence of one function, `observe_probes` the same probe by probe, and
`load_file` runs the student's file. All of them take `Limits`. Errors have two places: what a
probe raises becomes evidence in `probing.py`, and everything else in `observe_probe`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import virtual_cuda
from virtual_cuda.errors import RealDeviceInUse
from virtual_cuda.hooks import nothing_above

from gpudojo.grading.debugger import require_debugger_not_left, running_clock
from gpudojo.grading.limits import (
    UNLIMITED,
    Interrupts,
    Limits,
    TimedOut,
    charged_seconds,
    in_probe,
)
from gpudojo.grading.load import Submission, describe_exception, load_submission
from gpudojo.grading.probing import describe_unusable, observe_here
from gpudojo.grading.recordable import why_not_recordable
from gpudojo.grading.sources import Trees
from gpudojo.grading.subprocess_probe import observe_in_subprocess
from gpudojo.model.errors import DojoError, author_line
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.exercise import OTHERS, Exercise, Function, Probe

LONGEST_MESSAGE: Final = 2000  # characters
nothing_above(__file__)


def load_file(path: Path, limits: Limits = UNLIMITED, trees: Trees | None = None) -> Submission:
    """Run a student's file within the limits and return what it defines.

    A file that takes too long counts as broken. For `trees` see `load_submission`. Raises
    KeyboardInterrupt for a Ctrl-C, and LeftDebugger.
    """
    try:
        with limits.apply_to(path, limits.seconds) as (interrupts, _):
            submission = load_submission(path, interrupts.is_users_wish, trees)
    except TimedOut as error:  # not where the file was running, which is caught there
        submission = Submission(path, broken=describe_exception(error, path))
    require_debugger_not_left()
    return submission


class _ProbeRun(NamedTuple):
    """One probe, and what it is run with."""

    exercise: Exercise
    function: Function
    probe: Probe[Any]
    submission: Submission
    kind: str  # of the device that was chosen
    seed: int


# ---- all probes of a function ------------------------------------------------------------------


def observe_function(
    exercise: Exercise,
    function: Function,
    submission: Submission,
    kind: str,
    seed: int,
    limits: Limits = UNLIMITED,
) -> Evidence:
    """The evidence of one function of a submission, with one observation by name of each probe.

    `kind` is that of the device. Raises DojoError, KeyboardInterrupt for a Ctrl-C, and
    LeftDebugger.
    """
    observations = {}
    for probe, observation in observe_probes(
        exercise, function, submission, kind, lambda probe: seed, limits
    ):
        observations[probe.name] = observation
    return Evidence(exercise.stem, function.name, kind, seed, observations)


def observe_probes(
    exercise: Exercise,
    function: Function,
    submission: Submission,
    kind: str,
    seed_of: Callable[[Probe[Any]], int],
    limits: Limits = UNLIMITED,
) -> Iterator[tuple[Probe[Any], Observation]]:
    """Run the probes of a function, and yield each with what it saw.

    `seed_of` gives the seed of a probe. After a time-out the other probes are not run; for each of
    them the time-out is yielded, too. Torch stays patched between the probes, and is restored at
    the end. Raises DojoError, KeyboardInterrupt for a Ctrl-C, and LeftDebugger.
    """
    began = running_clock()
    waited_before = limits.waited()
    timed_out = None
    with virtual_cuda.hooks.keep_patches():
        for probe in function.probes:
            if timed_out is not None:
                yield probe, timed_out
                continue
            # Where all probes share the time, this one has what the others have left.
            left = limits.seconds
            if limits.shared and left is not None:
                waited = limits.waited() - waited_before
                left -= charged_seconds(running_clock() - began, waited)
            seen = observe_probe(
                exercise, function, probe, submission, kind, seed_of(probe), limits, left
            )
            if seen.timed_out:
                timed_out = seen
            yield probe, seen


# ---- one probe ---------------------------------------------------------------------------------


def observe_probe(
    exercise: Exercise,
    function: Function,
    probe: Probe[Any],
    submission: Submission,
    kind: str,
    seed: int,
    limits: Limits = UNLIMITED,
    left: float | None = None,
) -> Observation:
    """Run one probe, in the seconds that are left, and return what it sees.

    What no probe catches is evidence too: time-outs, SystemExit, a KeyboardInterrupt that student
    code raises. Raises DojoError, KeyboardInterrupt for a Ctrl-C, and LeftDebugger.
    """
    run = _ProbeRun(exercise, function, probe, submission, kind, seed)
    if limits.seconds and left is not None and left <= 0:
        return _out_of_time(limits, None)
    try:
        with limits.apply_to(submission.path, left) as (interrupts, limit), in_probe(probe.name):
            seen = _observation_or_error(run, interrupts)
    except TimedOut as error:
        # Code of ours was interrupted, where it hung on something of the student's.
        return _out_of_time(limits, describe_exception(error, submission.path).line)
    if seen.status is CallStatus.BROKEN and seen.timed_out:
        return seen  # it was the file that took too long, and that says so itself
    if seen.raised is not None and seen.timed_out:
        return _out_of_time(limits, seen.raised.line)
    if limit.raised:  # who swallows a time-out is out of time all the same
        return _out_of_time(limits, limit.line)
    require_debugger_not_left()
    return seen


def _out_of_time(limits: Limits, line: int | None) -> Observation:
    """A time-out as evidence, at a line of the student's file.

    It tells of the whole limit, which a student knows of: earlier probes may have used some.
    """
    error = TimedOut(limits.seconds or 0)
    raised = Raised(TimedOut.__name__, str(error), line)
    return Observation(CallStatus.RAISED, raised=raised)


def _observation_or_error(run: _ProbeRun, interrupts: Interrupts) -> Observation:
    """Run a probe and return what it sees, or the error that ended it.

    An observation that is too large to be recorded is an error, too.

    Raises DojoError, and the exception that is the user's wish to stop.
    """
    path = run.submission.path
    try:
        seen = _observe_anywhere(run)
        problem = why_not_recordable(seen, run.probe)
        if problem is None:
            return seen
        source = str(run.probe.place or "")
        raised = describe_unusable(run.function.name, problem, None, source)
    except DojoError:
        raise
    except BaseException as error:  # SystemExit, and whatever else student code may raise
        if interrupts.is_users_wish(error):
            raise
        source = author_line(error, path)
        raised = msgspec.structs.replace(describe_exception(error, path), source=source)
    return Observation(CallStatus.RAISED, raised=raised)


def _observe_anywhere(run: _ProbeRun) -> Observation:
    """What a probe sees, in this process or in another one without a GPU.

    The other one is for probes about other machines, where this process has the real GPU; it is
    started if it does not run. Raises what the device or a time-out raises here, RuntimeError where
    the other process does not answer, and BadEvidence for an answer that cannot be read.
    """
    if not (run.kind == "cuda" and run.probe.machine in OTHERS):
        with contextlib.suppress(RealDeviceInUse):
            return observe_here(run.function, run.probe, run.submission, run.kind, run.seed)
    return observe_in_subprocess(
        run.exercise, run.function, run.probe, run.submission.path, run.seed
    )
