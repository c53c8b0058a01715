"""Follows one submission through the children that run it."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpudojo.classes.store import Incident, Place, Ran, Record, Seen, What
from gpudojo.model.evidence import CallStatus, Evidence, Raised
from gpudojo.sandbox.protocol import (
    ALL,
    ELSEWHERE,
    HERE,
    Began,
    Chosen,
    Fenced,
    Finished,
    Frame,
    Frames,
    Job,
    Loaded,
    Paused,
    Saw,
    Stumbled,
    Tampered,
)

GRACE: Final = 2.0  # seconds a child has to notice by itself that a function is out of time
STARTING: Final = 30.0  # seconds for what comes before the first step
WHOLE: Final = 6  # times the limit of a function: what a submission may take in all
AGAIN: Final = 3  # how often a child that someone else killed is tried again
CHILDREN: Final = 24
OUTPUT: Final = 64 << 10
# What nobody's code printed, or is another text in every run: the folder a child runs in, and what torch's profiler
# says of a process that cannot look at itself.
OURS: Final = re.compile(r"^Failed to read process name for pid \d+\n|/[\w/.-]*/dojo-\w{8}/", re.MULTILINE)
EVIDENCE: Final = 64 << 20
BEFORE: Final = "before anything"  # the step of a child that ended before it had come to one
STUMBLED: Final = "the grader itself could not go on, which may be its own fault"


@dataclass(frozen=True)
class Terms:
    """The conditions of a run, the same for every submission."""

    day: str
    bench: str
    seeds: dict[str, int]
    known: frozenset[str]  # every "exercise::function"
    seconds: float = 10.0
    memory: int = 2 << 30
    scratch: int = 64 << 20
    only: frozenset[str] = frozenset()
    drawn_with: int | None = None  # of a reference: the public seed, which its pictures are of
    gpu_memory: int = 2 << 30


class Attempt:
    """One submission on its way to a record."""

    def __init__(
        self, digest: str, files: dict[str, bytes], terms: Terms, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.files, self.terms = files, terms
        self.record = Record(digest)
        self.clock = clock
        self.began = clock()
        self.skip: set[str] = set()
        self.step: str | None = None
        self.deadline = 0.0
        self.ended_by_us = False
        self.finished = False
        self.paused = False
        self.stumbled = ""
        self.believed = True
        # On a real GPU two kinds of children look, each at what the other cannot be.
        self._machines = [HERE, ELSEWHERE] if terms.bench == "cuda" else [ALL]
        self._told: set[str] = set()  # by this child
        self._killed: Counter[str] = Counter()
        self._children = 0
        self._frames = Frames(b"", 0)
        self._output = bytearray()
        self._printed = 0

    # one child

    def job(self, token: bytes) -> Job:
        """What the next child is to do."""
        self._children += 1
        self._frames = Frames(token, EVIDENCE)
        self.step, self.ended_by_us, self.finished, self.paused, self.stumbled = None, False, False, False, ""
        self.deadline = self.clock() + STARTING
        terms = self.terms
        self._told = set()
        whole = set(self.record.seen) if terms.bench != "cuda" else set()
        return Job(
            *(token, terms.day, terms.bench, self.files, terms.seeds, frozenset(self.skip | whole)),
            *(terms.seconds, terms.memory, terms.scratch, terms.only, terms.drawn_with),
            *(self._machines[0], terms.gpu_memory),
            done=frozenset(f"{key}::{probe}" for key, seen in self.record.seen.items() for probe in _probes(seen)),
        )

    def heard(self, data: bytes) -> bool:
        """Take in what a child has sent; False if it is to be ended."""
        for frame in self._frames.feed(data):
            if not self._take(frame):
                return False
        if self._frames.problem is not None:
            self._disbelieve(self._frames.problem)
        return self.believed

    def _take(self, frame: Frame) -> bool:
        now, record = self.clock(), self.record
        if isinstance(frame, Fenced):
            record.layers = {
                name: record.layers.get(name) or why for name, why in (record.layers | frame.layers).items()
            }
            self.deadline = now + self.terms.seconds + GRACE
        elif isinstance(frame, Chosen):
            if not any((p.exercise, p.function) == (frame.exercise, frame.function) for p in record.places):
                record.places.append(
                    Place(frame.exercise, frame.function, frame.file, frame.line, frame.cell, frame.note)
                )
        elif isinstance(frame, Began):
            self.step = frame.step
            self.deadline = now + self.terms.seconds + GRACE
        elif isinstance(frame, Loaded):
            record.files[frame.file] = Ran(frame.lines, frame.cells, frame.broken)
            self._note(f"file {frame.file}", [frame.broken] if frame.broken else [])
        elif isinstance(frame, Saw):
            return self._saw(frame)
        elif isinstance(frame, Tampered):
            self._disbelieve(f"it changed {frame.what} of the grader while it was graded")
        elif isinstance(frame, Stumbled):
            self.stumbled = frame.why
        elif isinstance(frame, Paused):
            self.paused = True
        elif isinstance(frame, Finished):
            self.finished = True
        return self.believed

    def _saw(self, frame: Saw) -> bool:
        evidence = frame.evidence
        key = f"{evidence.exercise}::{evidence.function}"
        missing = all(seen.status is CallStatus.MISSING for seen in evidence.observations.values())
        raised = [seen.raised for seen in evidence.observations.values() if seen.raised and seen.status != "broken"]
        # A child does not look whether its code is still the grader's where it was interrupted, which earns nothing.
        unlooked = frame.interrupted and not any(error.type == "TimedOut" for error in raised)
        known = self.record.seen.get(key)
        again = key in self._told or (known is not None and not self._adds(known, evidence))
        if key not in self.terms.known or again or (self.step != key and not missing) or unlooked:
            self._disbelieve("it sent evidence of its own making")
            return False
        drawn = frame.timelines if self.terms.drawn_with is not None else []  # a student has no reason to send any
        seen = Seen(evidence, frame.seconds, frame.signature, frame.timeline, drawn)
        self.record.seen[key] = seen if known is None else known.joined(seen)
        self._told.add(key)
        self._note(key, raised)
        return True

    def _adds(self, known: Seen, evidence: Evidence) -> bool:
        """Whether it may be what another child has left of a function: on a real GPU, and of other probes."""
        return self.terms.bench == "cuda" and not _probes(known) & set(evidence.observations)

    def _note(self, step: str, raised: Sequence[Raised]) -> None:
        """Time and memory that ran out where Python itself could tell."""
        for error in raised:
            if error.type == "TimedOut":
                self._happened(Incident(What.TIMED_OUT, step, error.message))
                if self.terms.bench == "cuda" and step in self.terms.known:
                    self.skip.add(step)  # once out of time in one scenario, it is not asked in the others
                return
            if error.out_of_memory:
                self._happened(Incident(What.OUT_OF_MEMORY, step, "it asked for more memory than it may have"))
                return

    def _happened(self, incident: Incident) -> None:
        """Once: on a real GPU a file is run by several children."""
        if incident not in self.record.incidents:
            self.record.incidents.append(incident)

    def _disbelieve(self, why: str) -> None:
        self.believed = False
        self.record.incidents.append(Incident(What.TAMPERED, self.step or "", why))

    def printed(self, data: bytes) -> None:
        self._printed += len(data)
        self._output += data[: max(0, OUTPUT - len(self._output))]

    def overdue(self, now: float) -> bool:
        return now > self.deadline or now - self.began > WHOLE * self.terms.seconds + GRACE + STARTING

    # between children

    def exited(self, status: int | None, too_heavy: bool = False, there: bool = False) -> bool:
        """A child has ended; True if another one is to go on. `there` is said of the GPU's memory."""
        if not self.believed:
            return False
        if self.finished:
            self._machines.pop(0)
            return bool(self._machines)
        step = self.step or BEFORE
        if self.paused:
            pass  # as it said it would
        elif self.ended_by_us:
            self._ended(step, What.TIMED_OUT, f"still running after {self.terms.seconds:g} seconds")
        elif too_heavy:
            whose = " of the GPU" if there else ""
            self._ended(step, What.OUT_OF_MEMORY, f"its processes together took more memory{whose} than they may have")
        elif status in (None, -signal.SIGKILL):
            # Whoever kills, kills anything; memory that does not suffice does not suffice again.
            self._killed[step] += 1
            if self._killed[step] <= AGAIN:
                return True
            self._ended(step, What.OUT_OF_MEMORY, "the system ended it, most likely for want of memory")
        elif status == -signal.SIGXCPU:
            self._ended(step, What.TIMED_OUT, "it used up its processor time")
        else:
            self._ended(step, What.CRASHED, f"{STUMBLED}: {self.stumbled}" if self.stumbled else _told(status))
        used_up = self.clock() - self.began > WHOLE * self.terms.seconds
        if self.step is None or self._children >= CHILDREN or used_up:
            left = sorted(self.terms.known - set(self.record.seen) - self.skip)
            if left:
                self.record.incidents.append(Incident(What.NOT_RUN, left[0], f"{len(left)} functions were not run"))
            return False
        return True

    def _ended(self, step: str, what: What, detail: str) -> None:
        self.skip.add(step)
        self.record.incidents.append(Incident(what, step, detail))

    def lost(self) -> None:
        """The nursery died under it: nobody's fault, begin that child again."""
        self._children -= 1

    def done(self, peak_bytes: int, cpu_seconds: float, device_bytes: int = 0) -> Record:
        text = OURS.sub("", self._output.decode(errors="replace"))
        if self._printed > len(self._output):
            text += f"\n… {self._printed - len(self._output):,} more bytes were printed and not kept\n"
        self.record.output = text
        self.record.seconds = self.clock() - self.began
        self.record.peak_bytes, self.record.cpu_seconds = peak_bytes, cpu_seconds
        self.record.device_bytes = device_bytes
        return self.record


def _probes(seen: Seen) -> set[str]:
    return set(seen.evidence.observations)


def _told(status: int) -> str:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        said = {
            "SIGSEGV": "a segmentation fault",
            "SIGABRT": "it aborted",
            "SIGTRAP": "it aborted",  # the first process of a namespace cannot be ended by the usual signal
            "SIGBUS": "a bus error",
        }.get(name, name)
        return f"its process was ended by {said}" if said == name else f"its process ended: {said}"
    return f"it ended its own process (exit code {status})"
