"""Runs the probes of a function and collects evidence; if need be in a subprocess that has no GPU.

`observe` gives the evidence of one function, `scenarios` the same step by step, `load_file` runs the student's file.
All of them take `Limits`.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import virtual_cuda
from virtual_cuda import OpenDevice, nothing_above, patch_imported_names
from virtual_cuda.errors import DeviceClosed, RealDeviceInUse
from virtual_cuda.ledger import Ledger

from gpudojo.grading.call import Call, StudentRaised, executed, torch
from gpudojo.grading.limits import UNLIMITED, Limits, TimedOut, charged_seconds, in_scenario
from gpudojo.grading.load import Submission, Trees, describe_exception, load_again, load_submission
from gpudojo.model.catalogue import day_names, every_exercise, exercises_of
from gpudojo.model.errors import DojoError, author_line, describe_error
from gpudojo.model.evidence import (
    LARGEST_OBSERVATION,
    CallStatus,
    Evidence,
    Observation,
    Raised,
    decode_evidence,
    encode_evidence,
)
from gpudojo.model.exercise import GPUS, OTHERS, Exercise, Function, Probe

LONGEST: Final = 2000  # characters of a message
SECONDS: Final = 60.0  # for a probe in the subprocess
_now: Final = time.perf_counter  # student code may replace it in its module
nothing_above(__file__)


def load_file(path: Path, limits: Limits = UNLIMITED, trees: Trees | None = None) -> Submission:
    """Runs a student's file within the limits; a file that takes too long is broken. For `trees` see `load`."""
    try:
        with limits.applied(path, limits.seconds) as (stop, _):
            submission = load_submission(path, stop.ours, trees)
    except TimedOut as error:  # not where the file was running, which is caught there
        submission = Submission(path, broken=describe_exception(error, path))
    if submission.broken is not None:
        limits.on_raised(submission.broken)
    return submission


def observe(
    exercise: Exercise,
    function: Function,
    submission: Submission,
    kind: str,
    seed: int,
    limits: Limits = UNLIMITED,
) -> Evidence:
    """The evidence of one function of a submission. Raises what `observe_one` raises."""
    found = scenarios(exercise, function, submission, kind, lambda probe: seed, limits)
    return Evidence(
        exercise.stem, function.name, kind, seed, {probe.name: seen for probe, seen in found}
    )


def scenarios(
    exercise: Exercise,
    function: Function,
    submission: Submission,
    kind: str,
    seed_of: Callable[[Probe[Any]], int],
    limits: Limits = UNLIMITED,
) -> Iterator[tuple[Probe[Any], Observation]]:
    """Each probe of a function and what it saw. After a time-out, the other probes are not run and see the same."""
    began = _now()
    waited = limits.waited()
    late = None
    with virtual_cuda.keep_patches():
        for probe in function.probes:
            if late is not None:
                yield probe, late
                continue
            left = limits.seconds
            if limits.shared and left is not None:
                left -= charged_seconds(_now() - began, limits.waited() - waited)
            seen = observe_one(
                exercise, function, probe, submission, kind, seed_of(probe), limits, left
            )
            late = seen if seen.timed_out else None
            yield probe, seen


def observe_one(
    exercise: Exercise,
    function: Function,
    probe: Probe[Any],
    submission: Submission,
    kind: str,
    seed: int,
    limits: Limits = UNLIMITED,
    left: float | None = None,
) -> Observation:
    """What one probe sees, in the seconds that are left.

    What no probe catches is evidence too: time-outs, SystemExit, a KeyboardInterrupt that student code raises. Raises
    DojoError, KeyboardInterrupt for a Ctrl-C, and what `limits.on_raised` raises.
    """
    path = submission.path
    if limits.seconds and left is not None and left <= 0:
        return _out_of_time(limits, None)
    try:
        with limits.applied(path, left) as (stop, limit), in_scenario(probe.name):
            try:
                seen = _anywhere(exercise, function, probe, submission, kind, seed)
                try:
                    size = len(msgspec.msgpack.encode(seen))
                    if size > LARGEST_OBSERVATION:
                        raise ValueError(
                            f"it takes {size:,} bytes to record, and {LARGEST_OBSERVATION:,} are allowed"
                        )
                except (
                    Exception
                ) as error:  # it holds something of the student's that is no number, text or array
                    seen = Observation(
                        CallStatus.RAISED, raised=_unusable(function.name, error, None)
                    )
            except DojoError:
                raise
            except BaseException as error:
                if stop.ours(error):
                    raise
                what = msgspec.structs.replace(
                    describe_exception(error, path), source=author_line(error, path)
                )
                seen = Observation(CallStatus.RAISED, raised=what)
    except (
        TimedOut
    ) as error:  # our own code was interrupted, where it hung on what is the student's
        return _out_of_time(limits, describe_exception(error, path).line)
    if seen.raised is not None and seen.timed_out:
        broken = (
            seen.status is CallStatus.BROKEN
        )  # it was the file that took too long, and that says so itself
        return seen if broken else _out_of_time(limits, seen.raised.line)
    if limit.raised:  # who swallows a time-out is out of time all the same
        return _out_of_time(limits, limit.line)
    if seen.raised is not None:
        limits.on_raised(seen.raised)
    return seen


def _out_of_time(limits: Limits, line: int | None) -> Observation:
    # Earlier scenarios may have used some of the time; the limit is what a student knows of.
    return Observation(
        CallStatus.RAISED,
        raised=Raised(TimedOut.__name__, str(TimedOut(limits.seconds or 0)), line),
    )


def _unusable(name: str, error: Exception, line: int | None, source: str = "") -> Raised:
    first = ": ".join(describe_error(error)).partition("\n")[0]
    why = "; most often, an index was out of range" if "device-side assert" in first else ""
    said = f"what `{name}` did or returned cannot be used: {first}{why}"
    return Raised("Unusable", said[:LONGEST], line, source=source)


def _anywhere(
    exercise: Exercise,
    function: Function,
    probe: Probe[Any],
    submission: Submission,
    kind: str,
    seed: int,
) -> Observation:
    """What a probe sees, in this process or, where that has the real GPU and the probe must not, in another."""
    if not (kind == "cuda" and probe.machine in OTHERS):
        with contextlib.suppress(RealDeviceInUse):
            return _observe(function, probe, submission, kind, seed)
    return observe_in_subprocess(exercise, function, probe, submission.path, seed)


def _observe(
    function: Function, probe: Probe[Any], submission: Submission, kind: str, seed: int
) -> Observation:
    if function.name in submission.todo:
        return Observation(CallStatus.TODO)
    student = submission.names.get(function.name)
    if student is None and submission.broken is not None:
        return Observation(CallStatus.BROKEN, raised=submission.broken)
    if probe.machine in ("value", "reference") and student is not None:
        # No function to call: the probe reads the value itself, or what does not depend on the student.
        if isinstance(student, dict) and all(value is None for value in dict.values(student)):
            return Observation(CallStatus.TODO)
        looks = probe.machine == "value" or submission.reference
        return Observation(CallStatus.RETURNED, probe.facts(student) if looks else {})
    if not callable(student):
        return Observation(CallStatus.MISSING)
    seen = _call(function.name, student, probe, submission, kind, seed)
    if seen.raised is not None and seen.raised.type == "DeviceClosed":
        # The file keeps a tensor of another probe's device. A real device would still be there: begin again.
        with virtual_cuda.keep_patches() as restore:
            restore()
            submission = load_again(submission)
        again = submission.names.get(function.name, student)
        return _call(function.name, again, probe, submission, kind, seed)
    return seen


def _call(
    name: str, student: Any, probe: Probe[Any], submission: Submission, kind: str, seed: int
) -> Observation:
    with open_machine(probe.machine, kind) as device, contextlib.ExitStack() as names:
        if submission.asks:  # which machine it is on, when it is loaded: this one is another
            submission = load_again(submission)
            student = submission.names.get(name, student)
        names.enter_context(patch_imported_names(submission.names))
        executed.clear()
        _set_seeds(f"{seed} {name} {probe.name}")
        try:
            facts = probe.facts(Call(student, submission, device, seed))
            ran = {scenario: sorted(lines) for scenario, lines in executed.items()}
            return Observation(CallStatus.RETURNED, facts, executed=ran)
        except StudentRaised as error:
            return Observation(CallStatus.RAISED, raised=error.evidence)
        except (
            Exception
        ) as error:  # the probe cannot use what came out; with the reference's result it can
            found = _unusable(
                name, error, submission.lines.get(name), author_line(error, submission.path)
            )
            if isinstance(error, DeviceClosed):
                found = msgspec.structs.replace(found, type=DeviceClosed.__name__)
            return Observation(CallStatus.RAISED, raised=found)


def _set_seeds(seed: str) -> None:
    """A student's random numbers are the same whenever a probe runs, whatever ran before it in this process.

    The seeds tell nothing of the one that scenarios are drawn from.
    """
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7])
    torch.default_generator.manual_seed(number)
    random.seed(number)
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed(number >> 24)


@contextlib.contextmanager
def open_machine(machine: str, kind: str) -> Iterator[OpenDevice]:
    """Opens the machine that a probe needs, where the run is on a device of this kind.

    `bench` is that device; `a gpu` is it too, if it is one, and otherwise the virtual one; `unwatched` is for clocks,
    which would time the virtual device's bookkeeping instead of the student's work: there it is the CPU. `one gpu`,
    `two gpus`, `three gpus`, `mac` and `laptop` are machines to choose a device on.
    """
    if machine == "bench":
        opened = virtual_cuda.open_device(kind)  # type: ignore[arg-type]
    elif machine == "a gpu":
        opened = virtual_cuda.open_device("virtual" if kind in ("cpu", "mps") else kind)  # type: ignore[arg-type]
    elif machine in GPUS:
        opened = virtual_cuda.open_device("virtual", devices=GPUS[machine])
    elif machine == "unwatched" and kind not in ("virtual", "cpu"):
        opened = virtual_cuda.open_device(kind)  # type: ignore[arg-type]
    else:
        around = (
            virtual_cuda.virtual_mps()
            if machine == "mac"
            else virtual_cuda.no_accelerator(built=True)
        )
        with around:
            yield OpenDevice(
                machine, torch.device("cpu"), Ledger(), f"the exercise is about a {machine}"
            )
        return
    with opened as device:
        yield device


class _Subprocess:
    """A process without a GPU that answers questions, a line each."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.reader = ThreadPoolExecutor(1, "gpudojo answers")

    def ask(self, question: dict[str, Any]) -> str:
        """The answer; empty where the process ended instead. Raises RuntimeError where none comes."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        try:
            answer = self.reader.submit(self.process.stdout.readline).result(SECONDS).strip()
        except TimeoutError:
            self.end()
            raise RuntimeError(f"no evidence after {SECONDS:g} s") from None
        if not answer:
            self.end()
        return answer

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpudojo.grading.observe"],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="ascii",
        )
        atexit.register(self.end)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):
                        stream.close()
            self.process = None


_subprocess: Final = _Subprocess()


def observe_in_subprocess(
    exercise: Exercise, function: Function, probe: Probe[Any], path: Path, seed: int
) -> Observation:
    """What a probe sees in a process without a GPU. Raises RuntimeError where that ends without an answer."""
    question = {
        "stem": exercise.stem,
        "function": function.name,
        "probe": probe.name,
        "path": str(path),
        "seed": seed,
    }
    answer = _subprocess.ask(question)
    if not answer:
        raise RuntimeError(f"the process for the probe {probe.name} ended without evidence")
    return decode_evidence(base64.b64decode(answer)).observations[probe.name]


def main() -> None:
    """The subprocess: answers questions, a line each, until there are no more."""
    # What student code prints goes where it can be seen, and is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    # Once, for all children: what they would each import, and what the first optimizer and device bring with them.
    torch.set_num_threads(1)
    with virtual_cuda.virtual_cuda():
        torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)])
    for name in day_names():
        exercises_of(name)
    for line in sys.stdin:
        question = json.loads(line)
        if hasattr(os, "fork") and sys.platform == "linux":
            pid = os.fork()
            if pid == 0:
                _answer(question, answers)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if status:
                print("", file=answers, flush=True)
        else:
            _answer(question, answers)


def _answer(question: dict[str, Any], answers: IO[str]) -> None:
    exercise = next(e for _, e in every_exercise() if e.stem == question["stem"])
    function = next(f for f in exercise.functions if f.name == question["function"])
    probe = next(p for p in function.probes if p.name == question["probe"])
    seen = _anywhere(
        exercise,
        function,
        probe,
        load_submission(Path(question["path"])),
        "virtual",
        question["seed"],
    )
    evidence = Evidence(
        exercise.stem, function.name, "virtual", question["seed"], {probe.name: seen}
    )
    print(base64.b64encode(encode_evidence(evidence)).decode(), file=answers, flush=True)


if __name__ == "__main__":
    main()
