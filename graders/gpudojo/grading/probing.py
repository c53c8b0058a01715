"""Runs one probe in this process: opens its machine, calls the student's function, notes errors."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import virtual_cuda
from virtual_cuda import OpenDevice
from virtual_cuda.errors import DeviceClosed
from virtual_cuda.hooks import nothing_above, patch_imported_names
from virtual_cuda.ledger import Ledger

from gpudojo.grading.call import Call, StudentRaised, torch
from gpudojo.grading.load import Submission, load_again
from gpudojo.grading.sealing import begin_run
from gpudojo.model.errors import author_line, describe_error
from gpudojo.model.evidence import CallStatus, Observation, Raised
from gpudojo.model.exercise import GPUS, Function, Probe

LONGEST_MESSAGE: Final = 2000  # characters
nothing_above(__file__)


def observe_here(
    function: Function, probe: Probe[Any], submission: Submission, kind: str, seed: int
) -> Observation:
    """What a probe sees in this process, on a device of this `kind`.

    Student code runs here; its errors are in what is returned. A file that keeps a tensor of
    another probe's device is run anew, and the probe with it. Raises RealDeviceInUse where the
    device cannot be opened here, other DojoErrors of opening it, a BaseException such as TimedOut,
    and what a probe raises that reads a value and calls nothing.
    """
    name = function.name
    if name in submission.todo:
        return Observation(CallStatus.TODO)
    student = submission.names.get(name)
    if student is None and submission.broken is not None:
        return Observation(CallStatus.BROKEN, raised=submission.broken)
    if probe.machine in ("value", "reference") and student is not None:
        return _observe_value(probe, student, submission.reference)
    if not callable(student):
        return Observation(CallStatus.MISSING)
    seen = _call_on_machine(name, student, probe, submission, kind, seed)
    if seen.raised is None or seen.raised.type != DeviceClosed.__name__:
        return seen
    # The file keeps a tensor of another probe's device. A real device would still be there: begin
    # again.
    with virtual_cuda.hooks.keep_patches() as undo_patches:
        undo_patches()
        submission = load_again(submission)
    student = submission.names.get(name, student)
    return _call_on_machine(name, student, probe, submission, kind, seed)


def _observe_value(probe: Probe[Any], student: Any, is_reference: bool) -> Observation:
    """What a probe sees that calls no function: it reads a value that was handed in.

    One for "reference" looks only at what does not depend on the student. Raises what the probe
    raises.
    """
    if isinstance(student, dict) and all(value is None for value in dict.values(student)):
        return Observation(CallStatus.TODO)
    facts = {}
    if probe.machine == "value" or is_reference:
        facts = probe.collect_facts(student)
    return Observation(CallStatus.RETURNED, facts)


def _call_on_machine(
    name: str, student: Any, probe: Probe[Any], submission: Submission, kind: str, seed: int
) -> Observation:
    """Open the machine that a probe needs, and run the probe with a student's function on it.

    All random numbers are seeded. A file that asks for the machine is run anew on it. Raises a
    DojoError where the machine cannot be opened, such as RealDeviceInUse, and what is no Exception,
    such as TimedOut.
    """
    with open_machine(probe.machine, kind) as device:
        if submission.asks:  # which machine it is on, when it is loaded: this one is another
            submission = load_again(submission)
            student = submission.names.get(name, student)
        with patch_imported_names(submission.names):
            _set_seeds(f"{seed} {name} {probe.name}")
            call = Call(student, submission, device, seed)
            begin_run()
            return _facts_or_error(name, probe, call)


def _facts_or_error(name: str, probe: Probe[Any], call: Call) -> Observation:
    """Run a probe and return what it finds out.

    An Exception of the student's function, or of the probe itself, is what was found out, too.
    """
    try:
        facts = probe.collect_facts(call)
    except StudentRaised as error:
        raised = msgspec.structs.replace(error.evidence, source=error.source_of_call())
        return Observation(CallStatus.RAISED, raised=raised)
    except Exception as error:
        # The probe cannot use what came out, whatever it is; with the reference's result it can.
        submission = call.submission
        line = submission.lines.get(name)
        source = author_line(error, submission.path, probe.place)
        raised = describe_unusable(name, error, line, source)
        if isinstance(error, DeviceClosed):
            raised = msgspec.structs.replace(raised, type=DeviceClosed.__name__)
        return Observation(CallStatus.RAISED, raised=raised)
    executed = {scenario: sorted(lines) for scenario, lines in call.executed.items()}
    return Observation(CallStatus.RETURNED, facts, executed=executed)


def _set_seeds(text: str) -> None:
    """Seed all random numbers by a text, so that a student's are the same whatever ran before.

    The seeds tell nothing of the one that scenarios are drawn from.
    """
    digest = hashlib.sha256(text.encode()).digest()
    number = int.from_bytes(digest[:7])
    torch.default_generator.manual_seed(number)
    random.seed(number)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(number >> 24)


@contextlib.contextmanager
def open_machine(machine: str, kind: str) -> Iterator[OpenDevice]:
    """Open the machine that a probe needs for a block, where the run is on a device of this kind.

    `bench` is that device; `a gpu` is it too, if it is one, and otherwise the virtual one;
    `unwatched` is for clocks, which would time the virtual device's bookkeeping instead of the
    student's work: there it is the CPU. `one gpu`, `two gpus`, `three gpus`, `mac` and `laptop` are
    machines to choose a device on. Raises a DojoError where the device cannot be opened:
    RealDeviceInUse, AlreadyOpen, NoSuchDevice and others.
    """
    count = 1
    if machine == "a gpu" and kind in ("cpu", "mps"):
        kind = "virtual"
    elif machine in GPUS:
        kind = "virtual"
        count = GPUS[machine]
    watched_cpu = machine == "unwatched" and kind in ("virtual", "cpu")
    if machine in ("mac", "laptop") or watched_cpu:
        with _without_accelerator(machine):
            reason = f"the exercise is about a {machine}"
            yield OpenDevice(machine, torch.device("cpu"), Ledger(), reason)
        return
    with virtual_cuda.open_device(kind, count) as device:  # type: ignore[arg-type]
        yield device


def _without_accelerator(machine: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which this machine is a Mac with MPS, or a laptop without any GPU."""
    if machine == "mac":
        return virtual_cuda.hooks.virtual_mps()
    return virtual_cuda.hooks.no_accelerator(built=True)


def describe_unusable(name: str, error: Exception, line: int | None, source: str = "") -> Raised:
    """An error of a probe as evidence: what the function did or returned cannot be used.

    `line` is that of the function, `source` the author's line that raised it.
    """
    kind, text = describe_error(error)
    first_line, _, _ = f"{kind}: {text}".partition("\n")
    message = f"what `{name}` did or returned cannot be used: {first_line}"
    if "device-side assert" in first_line:
        message += "; most often, an index was out of range"
    return Raised("Unusable", message[:LONGEST_MESSAGE], line, source=source)
