"""Follows one submission through the children that run it."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gpudojo.classes.records import FunctionRecord, Incident, IncidentKind, Record
from gpudojo.grading.limits import STRETCH
from gpudojo.model.evidence import CallStatus, Raised
from gpudojo.model.time_outs import USED_UP_CPU_TIME, still_running_after
from gpudojo.sandbox import protocol
from gpudojo.sandbox.protocol import ALL, ELSEWHERE, HERE, WHOLE, Frames, Job, RunOptions

GRACE: Final = 2.0  # seconds in which a child itself notices that a function is out of time
STARTING: Final = 30.0  # seconds before the first step
AGAIN: Final = 3  # times that a child killed by something else is run again
CHILDREN: Final = 24
INCIDENTS: Final = 500  # that are told of a submission
OUTPUT: Final = 64 << 10
GAP: Final = (
    1.0  # seconds for which the grader was stopped, after which a child's own clock is not trusted
)
# Not printed by student code: a message of torch's profiler in a process that cannot read its own name.
REMOVED: Final = re.compile(r"^Failed to read process name for pid \d+\n", re.MULTILINE)
# Different in every run: the folder a child runs in. Found in two steps, each of which looks at a character once.
PATH: Final = re.compile(r"[\w/.-]+")
SCRATCH: Final = re.compile(r"/dojo-\w{8}(?=/)")
EVIDENCE: Final = 64 << 20
BEFORE: Final = "before anything"  # the step of a child that ended before its first one
STUMBLED: Final = "the grader's own code failed, which may not be the submission's fault"
ENDS: Final = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a bus error",
    # See `kernel.seccomp_filter`: where there is no filter, a child in a process namespace aborts by SIGTRAP on ARM.
    **dict.fromkeys(("SIGABRT", "SIGSYS", "SIGTRAP"), "it aborted"),
}


class SubmissionRun:
    """Runs one submission in as many children as it takes, and collects its record."""

    def __init__(
        self,
        digest: str,
        files: dict[str, bytes],
        options: RunOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.files = files
        self.options = options
        self.record = Record(digest)
        self.clock = clock
        self.began = clock()
        self.skip: set[str] = set()
        self.step: str | None = None
        self.deadline = 0.0
        self.killed_by_us = False
        self.finished = False
        self.paused = False
        self.stumbled = ""
        self.stood_still = False  # the grader did, while this child ran
        self.trusted = True
        # With a real GPU two kinds of children observe, each the machines that the other cannot stand for.
        self._machines = [HERE, ELSEWHERE] if options.bench == "cuda" else [ALL]
        self._received: set[str] = set()  # from this child
        self._chosen: set[tuple[str, str]] = set()  # functions whose place is known
        self._probes: dict[str, set[str]] = {}  # by function, those that have observed it
        self._waited = self._spare = (
            0.0  # seconds: that this child waited, and by which its step may still be prolonged
        )
        self._killed: Counter[str] = Counter()
        self._over = False  # nothing more of this child counts
        self._again = False  # and it is run again
        self._children = 0
        self._frames = Frames(b"", 0)
        self._output = bytearray()
        self._printed = 0

    # one child

    def job(self, token: bytes) -> Job:
        """What the next child is to do."""
        self._children += 1
        self._frames = Frames(token, EVIDENCE)
        self.step = None
        self.killed_by_us = False
        self.finished = False
        self.paused = False
        self.stumbled = ""
        self.stood_still = False
        self._over = False
        self._again = False
        self._waited = 0.0
        self._begin(STARTING)
        self._received = set()
        complete = set(self.record.seen) if self.options.bench != "cuda" else set()
        return Job(
            **msgspec.structs.asdict(self.options),
            token=token,
            files=self.files,
            skip=frozenset(self.skip | complete),
            machines=self._machines[0],
            done=frozenset(
                f"{key}::{probe}" for key, probes in self._probes.items() for probe in probes
            ),
        )

    def receive(self, data: bytes) -> bool:
        """Take in what a child has sent; False if the child is to be ended."""
        if self._over:
            return False
        for frame in self._frames.feed(data):
            if not self._handle(frame):
                return False
        if self._frames.too_much:
            self._over = True
            most = f"what it did or returned takes more than the {EVIDENCE >> 20} MB that are recorded of a submission"
            self._end_step(self.step or BEFORE, IncidentKind.CRASHED, most)
        elif self._frames.problem is not None:
            self._reject(self._frames.problem)
        return self.trusted and not self._over

    def _handle(self, frame: protocol.Frame) -> bool:
        record = self.record
        if isinstance(frame, protocol.Isolated):
            record.layers = {
                name: record.layers.get(name) or why
                for name, why in (record.layers | frame.layers).items()
            }
            self._begin(self.options.seconds + GRACE)
        elif isinstance(frame, protocol.Chosen):
            if (which := (frame.exercise, frame.function)) not in self._chosen:
                self._chosen.add(which)
                record.places.append(frame)
        elif isinstance(frame, protocol.Began):
            self.step = frame.step
            self._begin(self.options.seconds + GRACE)
        elif isinstance(frame, protocol.Loaded):
            if self._late_by_our_fault([frame.broken] if frame.broken else []):
                return False
            record.files[frame.file] = frame
            self._note(f"file {frame.file}", [frame.broken] if frame.broken else [])
        elif isinstance(frame, protocol.Saw):
            return self._saw(frame)
        elif isinstance(frame, protocol.Tampered):
            self._reject(f"it changed {frame.what} of the grader while it was graded")
        elif isinstance(frame, protocol.Reached):
            where = (
                f"{frame.file} line {frame.line} "
                if frame.line
                else f"{frame.file} "
                if frame.file
                else "it "
            )
            self._add(Incident(IncidentKind.REACHED, self.step or "", where + frame.what))
        elif isinstance(frame, protocol.Stumbled):
            self.stumbled = frame.why
        elif isinstance(frame, protocol.Paused):
            self.paused = True
        elif isinstance(frame, protocol.Finished):
            self.finished = True
        return self.trusted

    def _saw(self, frame: protocol.Saw) -> bool:
        evidence = frame.evidence
        key = f"{evidence.exercise}::{evidence.function}"
        missing = all(seen.status is CallStatus.MISSING for seen in evidence.observations.values())
        raised = [
            seen.raised
            for seen in evidence.observations.values()
            if seen.raised and seen.status != "broken"
        ]
        if self._late_by_our_fault(raised):
            return False
        # A child does not compare its code where it was interrupted: then nothing can be earned.
        unchecked = frame.interrupted and not any(error.type == "TimedOut" for error in raised)
        known = self._probes.get(key)
        # With a real GPU a second child adds the rest of a function that an earlier one began, from other probes.
        adds = known is None or (
            self.options.bench == "cuda" and not known & set(evidence.observations)
        )
        again = key in self._received or not adds
        if (
            key not in self.options.known
            or again
            or (self.step != key and not missing)
            or unchecked
        ):
            self._reject("it sent evidence that the grader did not ask for")
            return False
        drawn = (
            frame.timelines if self.options.drawn == protocol.EVERY else []
        )  # a student's child sends none
        seen = FunctionRecord(evidence, frame.seconds, frame.signature, frame.timeline, drawn)
        if known is not None:
            seen = self.record.function(key).joined(seen)
        self.record.add(key, seen)
        self._probes[key] = set(evidence.observations) | (known or set())
        self._received.add(key)
        self._note(key, raised)
        return True

    def _late_by_our_fault(self, raised: Sequence[Raised]) -> bool:
        """Whether time ran out in a child while the grader stood still: it may have waited for us, and is run again."""
        late = self.stood_still and any(error.type == "TimedOut" for error in raised)
        self._over = self._again = late and self._killed[self.step or BEFORE] < AGAIN
        return self._again

    def _note(self, step: str, raised: Sequence[Raised]) -> None:
        """Note time and memory that ran out, where Python itself reported it."""
        for error in raised:
            if error.type == "TimedOut":
                self._add(Incident(IncidentKind.TIMED_OUT, step, error.message))
                if self.options.bench == "cuda" and step in self.options.known:
                    self.skip.add(step)  # out of time in one scenario: the others are not run
                return
            if error.out_of_memory:
                self._add(
                    Incident(
                        IncidentKind.OUT_OF_MEMORY, step, "it asked for more memory than allowed"
                    )
                )
                return

    def _add(self, incident: Incident) -> None:
        """Add it once: with a real GPU a file is run by several children."""
        if len(self.record.incidents) < INCIDENTS and incident not in self.record.incidents:
            self.record.incidents.append(incident)

    def _reject(self, why: str) -> None:
        self.trusted = False
        self.record.incidents.append(Incident(IncidentKind.TAMPERED, self.step or "", why))

    def add_output(self, data: bytes) -> None:
        self._printed += len(data)
        self._output += data[: max(0, OUTPUT - len(self._output))]

    def _begin(self, seconds: float) -> None:
        self.deadline, self._spare = self.clock() + seconds, (STRETCH - 1) * self.options.seconds

    def postpone(self, seconds: float) -> None:
        """The grader was stopped for so long (Ctrl-Z, a stalled machine): no time has run out meanwhile."""
        self._put_off(seconds)
        self.stood_still = self.stood_still or seconds >= GAP

    def waited(self, seconds: float) -> None:
        """The child has waited so long, in all, for a processor that others used: that is no time of its own."""
        more = min(seconds - self._waited, self._spare)
        self._waited, self._spare = seconds, self._spare - more
        self._put_off(more)

    def _put_off(self, seconds: float) -> None:
        self.deadline += seconds
        # Some of it may have been before the beginning, or counted already: the grader is stopped while a child waits.
        self.began = min(self.began + seconds, self.clock())

    def overdue(self, now: float) -> bool:
        return (
            now > self.deadline
            or now - self.began > WHOLE * self.options.seconds + GRACE + STARTING
        )

    # between children

    def child_exited(
        self, code: int | None, over_memory: bool = False, on_gpu: bool = False
    ) -> bool:
        """A child has ended; True if another one is to continue. `on_gpu`: the limit was the GPU's."""
        if sys.platform == "win32":
            raise NotImplementedError
        if not self.trusted:
            return False
        if self.finished:
            self._machines.pop(0)
            return bool(self._machines)
        step = self.step or BEFORE
        if self._again:
            self._killed[step] += 1
            return True
        if self.paused or self._over:
            pass
        elif self.killed_by_us:
            self._end_step(
                step,
                IncidentKind.TIMED_OUT,
                still_running_after(self.options.seconds),
            )
        elif over_memory:
            which = "GPU memory" if on_gpu else "memory"
            self._end_step(
                step,
                IncidentKind.OUT_OF_MEMORY,
                f"its processes together took more {which} than allowed",
            )
        elif code in (None, -signal.SIGKILL):
            # Something else may have killed it; if it was for want of memory, it happens again.
            self._killed[step] += 1
            if self._killed[step] <= AGAIN:
                return True
            self._end_step(
                step,
                IncidentKind.OUT_OF_MEMORY,
                "the system killed it, most likely for lack of memory",
            )
        elif code == -signal.SIGXCPU:
            self._end_step(step, IncidentKind.TIMED_OUT, USED_UP_CPU_TIME)
        else:
            how = f"{STUMBLED}: {self.stumbled}" if self.stumbled else how_it_ended(code)
            self._end_step(step, IncidentKind.CRASHED, how)
        used_up = self.clock() - self.began > WHOLE * self.options.seconds
        if self.step is None or self._children >= CHILDREN or used_up:
            left = sorted(self.options.known - set(self.record.seen) - self.skip)
            if left:
                self._add(
                    Incident(IncidentKind.NOT_RUN, left[0], f"{len(left)} functions were not run")
                )
            return False
        return True

    def _end_step(self, step: str, what: IncidentKind, detail: str) -> None:
        self.skip.add(step)
        self.record.incidents.append(Incident(what, step, detail))

    def child_lost(self) -> None:
        """The fork server died with its child, which then does not count."""
        self._children -= 1

    def finish(self, peak_bytes: int, cpu_seconds: float, device_bytes: int = 0) -> Record:
        """The whole record."""
        text = PATH.sub(_without_scratch, REMOVED.sub("", self._output.decode(errors="replace")))
        if self._printed > len(self._output):
            text += (
                f"\n… {self._printed - len(self._output):,} more bytes were printed and not kept\n"
            )
        self.record.output = text
        self.record.seconds = self.clock() - self.began
        self.record.peak_bytes = peak_bytes
        self.record.cpu_seconds = cpu_seconds
        self.record.device_bytes = device_bytes
        return self.record


def _without_scratch(path: re.Match[str]) -> str:
    """A path without all that comes before the files of a submission."""
    text = path[0]
    first = text.find("/")
    ends = [found.end() + 1 for found in SCRATCH.finditer(text, first + 1)] if first >= 0 else []
    return text[:first] + text[ends[-1] :] if ends else text


def how_it_ended(code: int) -> str:
    """The words for an exit code as the kernel reported it, negative for a signal."""
    if code >= 0:
        return f"it ended its own process (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return (
        f"its process ended: {ENDS[name]}" if name in ENDS else f"its process was ended by {name}"
    )
