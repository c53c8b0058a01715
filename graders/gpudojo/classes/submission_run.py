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
from gpudojo.model.evidence import CallStatus, Evidence, Raised
from gpudojo.model.time_outs import USED_UP_CPU_TIME, still_running_after
from gpudojo.sandbox import protocol
from gpudojo.sandbox.protocol import ALL, ELSEWHERE, HERE, WHOLE, Frames, Job, RunOptions

GRACE_SECONDS: Final = 2.0  # seconds in which a child itself notices that a function is out of time
START_SECONDS: Final = 30.0  # seconds before the first step
MOST_REPEATS: Final = 3  # times that a child killed by something else is run again
MOST_CHILDREN: Final = 24  # at most, for one submission
MOST_INCIDENTS: Final = 500  # that are told of a submission
MOST_OUTPUT: Final = 64 << 10  # bytes that are kept
# Seconds for which the grader was stopped, after which a child's own clock is not trusted.
LONG_STANDSTILL: Final = 1.0
# Not printed by student code: a message of torch's profiler in a process that cannot read its own
# name.
PROFILER_MESSAGE: Final = re.compile(r"^Failed to read process name for pid \d+\n", re.MULTILINE)
# Different in every run: the folder a child runs in. Found in two steps, each of which looks at a
# character once.
PATH: Final = re.compile(r"[\w/.-]+")
SCRATCH: Final = re.compile(r"/dojo-\w{8}(?=/)")
MOST_EVIDENCE: Final = 64 << 20  # bytes of a submission
TOO_MUCH: Final = (
    f"what it did or returned takes more than the {MOST_EVIDENCE >> 20} MB "
    "that are recorded of a submission"
)
BEFORE_FIRST_STEP: Final = "before anything"  # the step of a child that ended before its first one
STUMBLED: Final = "the grader's own code failed, which may not be the submission's fault"
TIMED_OUT: Final = "TimedOut"  # the type of error by which a child ends a call that takes too long
OUT_OF_MEMORY: Final = "it asked for more memory than allowed"
KILLED_BY_SYSTEM: Final = "the system killed it, most likely for lack of memory"
WORDS_OF_SIGNALS: Final = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a bus error",
    "SIGABRT": "it aborted",
    "SIGSYS": "it aborted",
    # See `kernel.seccomp_filter`: where there is no filter, a child in a process namespace aborts
    # by SIGTRAP on ARM.
    "SIGTRAP": "it aborted",
}


class SubmissionRun:
    """Runs one submission in as many children as it takes, and collects its record.

    It starts no process itself: `make_job` says what the next child is to do; `receive_bytes` and
    `add_output` take in what it sends and prints; `note_child_exit` decides whether another child
    is to continue.
    """

    def __init__(
        self,
        digest: str,
        files: dict[str, bytes],
        options: RunOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count the time of the submission; no child has begun yet.

        `files` are by path. `clock` returns seconds.
        """
        self.files = files
        self.options = options
        self.record = Record(digest, asked=sorted(options.known))
        self.clock = clock
        self.began = clock()
        self.skip: set[str] = set()  # steps that no other child is to try
        self.trusted = True  # false once it tampered with the grader
        # With a real GPU two kinds of children observe, each the machines that the other cannot
        # stand for.
        self._machines = [ALL]
        if self._is_on_gpu:
            self._machines = [HERE, ELSEWHERE]
        self._chosen: set[tuple[str, str]] = set()  # functions whose place is known
        self._probes: dict[str, set[str]] = {}  # by function, those that have observed it
        self._killed: Counter[str] = Counter()  # by step, how often something else ended a child
        self._children = 0
        self._output = bytearray()
        self._printed = 0  # bytes, with those that are not kept
        self._forget_child(b"")

    # One child

    def _forget_child(self, token: bytes) -> None:
        """Forget what was known of the last child; the next one signs by this token.

        The time of its start begins now.
        """
        self.step: str | None = None
        self.killed_by_us = False
        self.finished = False
        self.paused = False
        self.stumbled = ""
        self.stood_still = False  # the grader did, while this child ran
        self._ignores_child = False  # nothing more of this child counts
        self._repeats_child = False  # and it is run again
        self._received: set[str] = set()  # functions, from this child
        self._frames = Frames(token, MOST_EVIDENCE)
        self._waited = 0.0  # seconds that this child waited for a processor
        self._begin_step(START_SECONDS)

    def make_job(self, token: bytes) -> Job:
        """Begin another child: return what it is to do. It signs what it sends by `token`.

        What was known of the last child is forgotten.
        """
        self._children += 1
        self._forget_child(token)
        skip = set(self.skip)
        if not self._is_on_gpu:
            skip.update(self.record.seen)
        probes_done = []
        for key, probes in self._probes.items():
            probes_done += [f"{key}::{probe}" for probe in probes]
        return Job(
            **msgspec.structs.asdict(self.options),
            token=token,
            files=self.files,
            skip=frozenset(skip),
            machines=self._machines[0],
            done=frozenset(probes_done),
        )

    @property
    def _is_on_gpu(self) -> bool:
        """True if it runs on a real GPU, where several children observe one function."""
        return self.options.bench == "cuda"

    @property
    def _step_or_start(self) -> str:
        """The step of the child; BEFORE_FIRST_STEP where it has begun none."""
        return self.step or BEFORE_FIRST_STEP

    def receive_bytes(self, data: bytes) -> bool:
        """Take in what a child has sent. Returns False if the child is to be ended.

        The record grows by it. Too much evidence ends the step it is in; a frame that is not the
        child's rejects the submission.
        """
        if self._ignores_child:
            return False
        for frame in self._frames.feed(data):
            if not self._handle_frame(frame):
                return False
        if self._frames.too_much:
            self._ignores_child = True
            self._end_step(self._step_or_start, IncidentKind.CRASHED, TOO_MUCH)
        elif self._frames.problem is not None:
            self._reject_submission(self._frames.problem)
        return self.trusted and not self._ignores_child

    def _handle_frame(self, frame: protocol.Frame) -> bool:
        """Put one message of the child into the record.

        Returns False if the child is to be ended: it tampered, sent what nobody asked for, or ran
        out of time while the grader itself stood still. In the last case it is run again.
        """
        # What the child is about to do.
        if isinstance(frame, protocol.Isolated):
            self._note_layers(frame.layers)
            self._begin_step(self.options.seconds + GRACE_SECONDS)
        elif isinstance(frame, protocol.Chosen):
            function = (frame.exercise, frame.function)
            if function not in self._chosen:
                self._chosen.add(function)
                self.record.places.append(frame)
        elif isinstance(frame, protocol.Began):
            self.step = frame.step
            self._begin_step(self.options.seconds + GRACE_SECONDS)
        # What it has seen.
        elif isinstance(frame, protocol.Loaded):
            return self._add_file(frame)
        elif isinstance(frame, protocol.Saw):
            return self._add_evidence(frame)
        # What went wrong, and how it ends.
        elif isinstance(frame, protocol.Found):
            kind = IncidentKind(frame.kind)
            detail = f"{_place_of(frame)} {frame.what}"
            self._add_incident(kind, self._step_or_start, detail)
        elif isinstance(frame, protocol.Stumbled):
            self.stumbled = frame.why
        elif isinstance(frame, protocol.Paused):
            self.paused = True
        elif isinstance(frame, protocol.Finished):
            self.finished = True
        return self.trusted

    def _note_layers(self, layers: dict[str, str]) -> None:
        """Note the isolation of a child. A layer that one child lacked counts as missing.

        The values are reasons why a layer is missing; empty where it is not.
        """
        layers_before = self.record.layers
        merged = dict(layers_before)
        for name, why in layers.items():
            merged[name] = layers_before.get(name) or why
        self.record.layers = merged

    def _add_file(self, frame: protocol.Loaded) -> bool:
        """Add what came of running a file to the record. Returns False if the child is to be ended.

        Time or memory that ran out is noted as an incident.
        """
        errors = []
        if frame.broken:
            errors.append(frame.broken)
        if self._repeat_child_if_we_stood_still(errors):
            return False
        self.record.files[frame.file] = frame
        self._note_reaching_limits(f"file {frame.file}", errors)
        return self.trusted

    def _add_evidence(self, frame: protocol.Saw) -> bool:
        """Add the evidence of a function to the record, if it was asked for.

        Returns False if the child is to be ended. Evidence that was not asked for rejects the
        submission. Time or memory that ran out is noted as an incident.
        """
        evidence = frame.evidence
        key = f"{evidence.exercise}::{evidence.function}"
        errors = _errors_in(evidence)
        if self._repeat_child_if_we_stood_still(errors):
            return False
        if not self._is_asked_for(key, frame, errors):
            self._reject_submission("it sent evidence that the grader did not ask for")
            return False
        function = FunctionRecord(
            evidence=evidence,
            seconds=frame.seconds,
            signature=frame.signature,
            timeline=frame.timeline,
        )
        # A student's child sends no timelines of all calls.
        if self.options.drawn == protocol.EVERY:
            function = msgspec.structs.replace(function, timelines=frame.timelines)
        if key in self._probes:
            earlier = self.record.decode_function(key)
            function = earlier.join_with(function)
        self.record.add_function(key, function)
        probes = self._probes.setdefault(key, set())
        probes.update(evidence.observations)
        self._received.add(key)
        self._note_reaching_limits(key, errors)
        return True

    def _is_asked_for(self, key: str, frame: protocol.Saw, errors: Sequence[Raised]) -> bool:
        """True if a child may send this evidence of a function now.

        That is: of the step it is in, of a function that is graded, and once from each probe. `key`
        is "exercise::function"; `errors` are those that student code raised.
        """
        observations = frame.evidence.observations
        # A child does not compare its code where it was interrupted: then nothing can be earned.
        if frame.interrupted and not _timed_out(errors):
            return False
        # Functions that are missing are told without a step of their own.
        statuses = {observation.status for observation in observations.values()}
        is_missing = statuses <= {CallStatus.MISSING}
        if self.step != key and not is_missing:
            return False
        return self._is_new(key, set(observations))

    def _is_new(self, key: str, probes: set[str]) -> bool:
        """True for a function that is graded and not known yet.

        With a real GPU a second child adds the rest of a function that an earlier one began, from
        other probes.
        """
        if key not in self.options.known or key in self._received:
            return False
        known_probes = self._probes.get(key)
        if known_probes is None:
            return True
        return self._is_on_gpu and not known_probes & probes

    def _repeat_child_if_we_stood_still(self, errors: Sequence[Raised]) -> bool:
        """Note that a child is to be run again if time ran out while the grader stood still.

        It may have waited for us: nothing more of it counts. Returns True if that is so.
        """
        kills = self._killed[self._step_or_start]
        repeats = self.stood_still and _timed_out(errors) and kills < MOST_REPEATS
        self._ignores_child = repeats
        self._repeats_child = repeats
        return repeats

    def _note_reaching_limits(self, step: str, errors: Sequence[Raised]) -> None:
        """Add an incident for time or memory that ran out, where Python itself reported it.

        On a real GPU, a function that ran out of time is not tried in other scenarios.
        """
        for error in errors:
            if error.type == TIMED_OUT:
                self._add_incident(IncidentKind.TIMED_OUT, step, error.message)
                if self._is_on_gpu and step in self.options.known:
                    self.skip.add(step)  # out of time in one scenario: the others are not run
                return
            if error.out_of_memory:
                self._add_incident(IncidentKind.OUT_OF_MEMORY, step, OUT_OF_MEMORY)
                return

    def _add_incident(self, what: IncidentKind, step: str, detail: str) -> None:
        """Add an incident to the record once; if there are too many, only one that costs points.

        With a real GPU a file is run by several children.
        """
        incident = Incident(what, step, detail)
        incidents = self.record.incidents
        has_room = len(incidents) < MOST_INCIDENTS
        costs_points = what in (IncidentKind.UNMEASURED, IncidentKind.FORGED)
        if (has_room or costs_points) and incident not in incidents:
            incidents.append(incident)

    def _reject_submission(self, why: str) -> None:
        """Note that it forged what a child sends: nothing of it is graded."""
        self.trusted = False
        self._add_incident(IncidentKind.FORGED, "", why)

    def add_output(self, data: bytes) -> None:
        """Keep what a child has printed, up to a limit."""
        self._printed += len(data)
        room = MOST_OUTPUT - len(self._output)
        if room > 0:
            self._output += data[:room]

    # Time

    def _begin_step(self, seconds: float) -> None:
        """Let the child begin a step, for which it has so many seconds."""
        self.deadline = self.clock() + seconds
        # Seconds by which the step may still be prolonged for waiting.
        self._spare = (STRETCH - 1) * self.options.seconds

    def postpone_deadline(self, seconds: float) -> None:
        """Put off the deadline: the grader was stopped for so long (Ctrl-Z, a stalled machine)."""
        self._put_off(seconds)
        self.stood_still = self.stood_still or seconds >= LONG_STANDSTILL

    def note_waiting(self, seconds: float) -> None:
        """Put off the deadline: the child has waited so long, in all, for a processor.

        Others used it: that is no time of its own. A step is prolonged so up to a limit.
        """
        more = min(seconds - self._waited, self._spare)
        self._waited = seconds
        self._spare -= more
        self._put_off(more)

    def _put_off(self, seconds: float) -> None:
        """Put off the end of the step and of the whole submission."""
        self.deadline += seconds
        # Some of it may have been before the beginning, or counted already: the grader is stopped
        # while a child waits.
        self.began = min(self.began + seconds, self.clock())

    def is_overdue(self, now: float) -> bool:
        """True if the step, or the whole submission, is out of time."""
        if now > self.deadline:
            return True
        whole = WHOLE * self.options.seconds + GRACE_SECONDS + START_SECONDS
        return now - self.began > whole

    # Between children

    def note_child_exit(
        self, code: int | None, over_memory: bool = False, on_gpu: bool = False
    ) -> bool:
        """Note how a child ended. Returns True if another one is to continue.

        `code` is the exit code, negative for a signal, None where it is not known. `over_memory`:
        it was ended for its memory, that of the GPU if `on_gpu`. What ended it becomes an incident,
        and its step is not tried again. None continues after too much time, too many children, or
        an end before the first step: an incident says what was not run, if anything.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        if not self.trusted:
            return False
        if self.finished:
            self._machines.pop(0)
            return bool(self._machines)
        step = self._step_or_start
        if self._repeats_child:
            self._killed[step] += 1
            return True
        has_said_why = self.paused or self._ignores_child
        killed_by_other = code in (None, -signal.SIGKILL)
        if has_said_why:
            pass
        elif self.killed_by_us:
            why = still_running_after(self.options.seconds)
            self._end_step(step, IncidentKind.TIMED_OUT, why)
        elif over_memory:
            which = "memory"
            if on_gpu:
                which = "GPU memory"
            why = f"its processes together took more {which} than allowed"
            self._end_step(step, IncidentKind.OUT_OF_MEMORY, why)
        elif killed_by_other:
            # If it was for want of memory, it happens again.
            self._killed[step] += 1
            if self._killed[step] <= MOST_REPEATS:
                return True
            self._end_step(step, IncidentKind.OUT_OF_MEMORY, KILLED_BY_SYSTEM)
        elif code == -signal.SIGXCPU:
            self._end_step(step, IncidentKind.TIMED_OUT, USED_UP_CPU_TIME)
        elif self.stumbled:
            self._end_step(step, IncidentKind.CRASHED, f"{STUMBLED}: {self.stumbled}")
        else:
            assert code is not None
            self._end_step(step, IncidentKind.CRASHED, describe_exit(code))
        return self._may_continue()

    def _may_continue(self) -> bool:
        """True if another child may continue; else an incident says what was not run.

        None continues after too many children, after the time of the whole submission, or where the
        last one did not come to its first step.
        """
        seconds = self.clock() - self.began
        has_time = seconds <= WHOLE * self.options.seconds
        has_children = self._children < MOST_CHILDREN
        if self.step is not None and has_time and has_children:
            return True
        unseen = self.options.known - set(self.record.seen)
        functions_left = sorted(unseen - self.skip)
        if functions_left:
            detail = f"{len(functions_left)} functions were not run"
            self._add_incident(IncidentKind.NOT_RUN, functions_left[0], detail)
        return False

    def _end_step(self, step: str, what: IncidentKind, detail: str) -> None:
        """Note what ended a child in a step, which no other child is to try."""
        self.skip.add(step)
        self.record.incidents.append(Incident(what, step, detail))

    def discount_child(self) -> None:
        """Do not count the last child: the fork server died with it."""
        self._children -= 1

    def finish_record(self, peak_bytes: int, cpu_seconds: float, device_bytes: int = 0) -> Record:
        """Put output, time and memory into the record, and return it.

        Paths in the output are those inside of the submission, and it says how much was left out.
        """
        record = self.record
        text = self._output.decode(errors="replace")
        text = PROFILER_MESSAGE.sub("", text)
        text = PATH.sub(_without_scratch, text)
        left_out = self._printed - len(self._output)
        if left_out > 0:
            text += f"\n… {left_out:,} more bytes were printed and not kept\n"
        record.output = text
        # Time and memory.
        record.seconds = self.clock() - self.began
        record.peak_bytes = peak_bytes
        record.cpu_seconds = cpu_seconds
        record.device_bytes = device_bytes
        return record


def _errors_in(evidence: Evidence) -> list[Raised]:
    """The errors that a student's function raised, without those of loading its file."""
    errors = []
    for observation in evidence.observations.values():
        if observation.raised and observation.status is not CallStatus.BROKEN:
            errors.append(observation.raised)
    return errors


def _timed_out(errors: Sequence[Raised]) -> bool:
    """True if one of the errors is that time ran out."""
    return any(error.type == TIMED_OUT for error in errors)


def _place_of(frame: protocol.Found) -> str:
    """Where student code did something; "it" where that is not known."""
    if frame.line:
        return f"{frame.file} line {frame.line}"
    return frame.file or "it"


def _without_scratch(path: re.Match[str]) -> str:
    """A path without all that comes before the files of a submission."""
    text = path[0]
    first_slash = text.find("/")
    if first_slash < 0:
        return text
    folders = list(SCRATCH.finditer(text, first_slash + 1))
    if not folders:
        return text
    before = text[:first_slash]
    end_of_last = folders[-1].end() + len("/")
    after = text[end_of_last:]
    return before + after


def describe_exit(code: int) -> str:
    """The words for an exit code as the kernel reported it, negative for a signal."""
    if code >= 0:
        return f"it ended its own process (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name in WORDS_OF_SIGNALS:
        return f"its process ended: {WORDS_OF_SIGNALS[name]}"
    return f"its process was ended by {name}"
