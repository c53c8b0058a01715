"""What a child does: isolate itself, run the submission, send evidence."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import inspect
import itertools
import mmap
import os
import random
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import describe_error
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.exercise import Drawing, Exercise, Function, Probe
from gpudojo.sandbox import integrity, protocol
from gpudojo.sandbox.integrity import Changed
from gpudojo.submissions.reading import choose

if TYPE_CHECKING:
    from gpudojo.grading.limits import Limits
    from gpudojo.grading.load import Submission, Trees
    from gpudojo.sandbox.isolation import Isolation
    from gpudojo.sandbox.reaching import Reaching


def sender(
    end: int, key: bytes, changed: Changed
) -> Callable[[protocol.Frame | protocol.Glimpse], None]:
    """A function that signs frames and writes them to a pipe. The key is kept only within a hash object.

    In place of evidence that changed code may have made, the function sends what has changed and ends the process.
    """
    keyed = hashlib.blake2b(key=key, digest_size=protocol.TOKEN)
    # By local names: student code may replace those of modules. A closure, since it could replace a method.
    encode = msgspec.msgpack.Encoder().encode
    count = itertools.count().__next__
    pack = protocol.HEAD.pack
    number = protocol.NUMBER.pack
    write = os.write
    leave = os._exit
    own_number = os.getpid
    own = os.getpid()
    size = len
    view = memoryview
    kind = type
    saw = protocol.Saw
    stumbled = protocol.Stumbled
    tampered = protocol.Tampered
    glimpse = protocol.Glimpse
    raw = msgspec.Raw
    replace = msgspec.structs.replace
    reached = protocol.Reached
    began = protocol.Began
    running = False  # whether student code has run since things were compared
    seen: dict[str, msgspec.Raw] = {}  # of the function that is being observed
    one_at_a_time = threading.RLock()  # what is reached for is told by the thread that does it

    def emit(frame: protocol.Frame | protocol.Glimpse) -> None:
        if own_number() != own:  # a copy of this process that student code has forked
            leave(0)
        with one_at_a_time:
            signed_and_written(frame)

    def signed_and_written(frame: protocol.Frame | protocol.Glimpse) -> None:
        nonlocal running
        what = None
        if kind(frame) is glimpse:
            seen[frame.probe] = raw(encode(frame.seen))  # type: ignore[union-attr]
            return
        if kind(frame) is stumbled:  # our own code failed, perhaps because it was changed
            what = changed()
        if kind(frame) is saw:
            # A function that is missing begins nothing, and from a step that did not begin nothing else is accepted.
            what = changed() if running and not frame.interrupted else None  # type: ignore[union-attr]
            running = False
            frame = replace(frame, evidence=replace(frame.evidence, observations=seen))  # type: ignore[union-attr]
        running = running or kind(frame) is began
        body = encode(frame if what is None else tampered(what))
        if kind(frame) is not reached:
            seen.clear()
        signed = keyed.copy()
        signed.update(number(count()))
        signed.update(body)
        data = view(pack(size(body)) + signed.digest() + body)
        while data:
            data = data[write(end, data) :]
        if what is not None:
            leave(0)

    return emit


class Drawings:
    """Draws what children with the same seeds would all draw: once, in the fork server, before they are forked.

    The process of one submission must not hold what belongs to another one: seeds are drawn from when they come a
    second time, as those of a class do, and what was drawn is dropped when others come. Of a job, which has a student's
    files in it, nothing but the seeds is copied.
    """

    def __init__(self) -> None:
        self._number = 0
        self._done = False
        self._made: list[Drawing] = []

    def prepare(self, number: int, job_end: int) -> bool:
        """Draw for the job, whose seeds have this number, if need be; True if something was drawn."""
        if number != self._number:
            self._number = number
            self._done = False
            while self._made:
                self._made.pop().draw.cache_clear()
            return False
        if self._done:
            return False
        self._done = True
        with contextlib.suppress(Exception):  # then each child draws for itself
            with mmap.mmap(job_end, 0, access=mmap.ACCESS_READ) as data:
                job = msgspec.msgpack.decode(data, type=protocol.Seeds)
            for exercise in exercises_of(job.day):
                for function in exercise.functions:
                    keys = (
                        f"{exercise.stem}::{function.name}::{probe.name}"
                        for probe in function.probes
                    )
                    for seed in {job.seeds[key]: None for key in keys if key in job.seeds}:
                        for drawing in function.drawings:
                            self._made.append(drawing)
                            drawing.make(seed)
        return True


LINES = 2000  # a notebook with all functions of a day has some 700, most of them what sources show


def grade(
    job: protocol.Job, home: Path, limits: Limits, restore: Callable[..., None]
) -> Generator[protocol.Frame | protocol.Glimpse, None, bool]:
    """Load each file that matters and look at each function in it; True if another child has to go on.

    Files are loaded without the patches of a virtual device, which `restore` undoes.
    """
    from gpudojo.grading.observe import load_file

    exercises = exercises_of(job.day)
    loaded: dict[str, Submission] = {}
    trees: Trees = {}
    gc.disable()  # trees are many small objects, none of them garbage
    choice = choose(job.files, exercises, trees)
    gc.freeze()
    gc.enable()
    asked = [(e, f) for e in exercises for f in e.functions if not job.only or f.name in job.only]
    if job.drawn == protocol.EVERY:
        asked = [(e, _called(f)) for e, f in asked]
    if job.bench == "cuda":
        asked = [(e, left) for e, f in asked if (left := _left(job, e, f)).probes]
    if job.machines == protocol.ELSEWHERE:
        job = msgspec.structs.replace(job, bench="virtual")  # as there is no GPU in this process
    for exercise, function in asked:
        if (one := choice.of(function.name)) is not None:
            note = one.note[: protocol.MESSAGE]
            yield protocol.Chosen(
                exercise.stem, function.name, one.file, one.line, one.cell, note, one.versions[:9]
            )
    for exercise, function in asked:
        key = f"{exercise.stem}::{function.name}"
        one = choice.of(function.name)
        file = one.file if one is not None else None
        if key in job.skip:
            continue
        if file is None:
            yield from (
                protocol.Glimpse(probe.name, Observation(CallStatus.MISSING))
                for probe in function.probes
            )
            yield protocol.Saw(Evidence(exercise.stem, function.name, job.bench, 0, {}), 0.0)
            continue
        if f"file {file}" in job.skip:
            continue
        if file not in loaded:
            yield protocol.Began(f"file {file}")
            restore(modules=False)
            began = time.perf_counter()
            loaded[file] = read = load_file(home / file, limits, trees)
            broken = None if read.broken is None else _plain(read.broken, home)
            lines = dict(itertools.islice(read.lines.items(), LINES))
            yield protocol.Loaded(
                file, time.perf_counter() - began, lines, read.cells[:LINES], broken
            )
        yield protocol.Began(key)
        saw = yield from observed(job, exercise, function, loaded[file], home, limits)
        yield saw
        if saw.interrupted or saw.spent:
            return True
    return False


def _called(function: Function) -> Function:
    """The function with those of its probes that call it on a device."""
    return dataclasses.replace(
        function, probes=[p for p in function.probes if p.machine not in ("value", "reference")]
    )


def _left(job: protocol.Job, exercise: Exercise, function: Function) -> Function:
    """The function with those of its probes that this child can be the machine for, and that none has looked with."""
    key = f"{exercise.stem}::{function.name}"
    elsewhere = job.machines == protocol.ELSEWHERE
    here = [p for p in function.probes if job.machines == protocol.ALL or p.elsewhere == elsewhere]
    return dataclasses.replace(
        function, probes=[p for p in here if f"{key}::{p.name}" not in job.done]
    )


def _waiting_for_others() -> Callable[[], float]:
    """A function that returns how long this process waited for a processor while others, not its own, used them all."""
    if sys.platform != "linux":
        return lambda: 0.0
    try:
        end = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel that does not count it
        return lambda: 0.0
    read = os.pread
    process = time.process_time
    thread = time.thread_time
    usage = resource.getrusage
    wait = os.waitid
    every = os.P_ALL
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT

    def waited() -> float:
        try:
            nanoseconds = int(read(end, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):  # closed by student code
            return 0.0
        try:
            wait(every, 0, how)
        except ChildProcessError:  # there are none
            ended = usage(resource.RUSAGE_CHILDREN)
            own = process() - thread() + ended.ru_utime + ended.ru_stime
            return max(0.0, nanoseconds / 1e9 - own)
        return 0.0

    return waited


def observed(
    job: protocol.Job,
    exercise: Exercise,
    function: Function,
    submission: Submission,
    home: Path,
    limits: Limits,
) -> Generator[protocol.Glimpse, None, protocol.Saw]:
    """The evidence of one function."""
    from virtual_cuda.hooks import device_failure

    from gpudojo.grading.load import describe_exception
    from gpudojo.grading.observe import observe_probes
    from gpudojo.grading.watching import Busiest, EveryCall

    def seed_of(probe: Probe[Any]) -> int:
        return job.seeds[f"{exercise.stem}::{function.name}::{probe.name}"]

    began = time.perf_counter()
    late: Observation | None = None
    spent = False
    busiest = Busiest()
    every = EveryCall(function.name)
    if job.drawn != protocol.NONE:
        function = (busiest if job.drawn == protocol.BUSIEST else every).over(function)
    for probe, seen in observe_probes(exercise, function, submission, job.bench, seed_of, limits):
        if seen.raised is not None:
            seen = msgspec.structs.replace(seen, raised=_plain(seen.raised, home))
        late = seen if seen.timed_out else None
        if job.on_gpu and not spent and (error := device_failure()) is not None:
            spent = True
            if seen.raised is None:  # it came up after everything had been observed
                seen = Observation(
                    CallStatus.RAISED,
                    raised=_plain(describe_exception(error, submission.path), home),
                )
        yield protocol.Glimpse(probe.name, seen)
        if spent and late is None:
            break
    evidence = Evidence(
        exercise.stem, function.name, job.bench, 0, {}
    )  # its observations are out already
    signature = ""
    with contextlib.suppress(
        Exception
    ):  # of what has none, or of a default whose repr is the student's code
        text = str(inspect.signature(submission.names[function.name]))[:200]
        signature = text.encode("utf-8", "backslashreplace").decode()
    interrupted = late is not None and late.status is CallStatus.RAISED
    seconds = time.perf_counter() - began
    timeline = None
    if late is None:
        # For the report: whatever student code has done to what it is made of, its evidence is worth the same without.
        with contextlib.suppress(Exception):
            timeline = busiest.timeline(function.name)
    return protocol.Saw(evidence, seconds, signature, interrupted, timeline, every.timelines, spent)


def _plain(error: Raised, home: Path) -> Raised:
    """Without the name of the scratch folder, which tells a student nothing and is another one in every run."""
    return msgspec.structs.replace(
        error, message=error.message.replace(f"{home}{os.sep}", "")[: protocol.MESSAGE]
    )


def run(
    number: int,
    job_end: int,
    evidence_end: int,
    output_end: int,
    isolation: Isolation,
    reaching: Reaching,
    changed: Changed | None,
) -> None:
    """Everything a child does. An exception of our own goes to its output, and the grader sees that it crashed."""
    from gpudojo.grading.limits import Limits

    if sys.platform == "win32":
        raise NotImplementedError
    with os.fdopen(job_end, "rb") as file:
        file.seek(0)
        job = msgspec.msgpack.decode(file.read(), type=protocol.Job)
    evidence_end = _close_descriptors(evidence_end, output_end)
    waited = _waiting_for_others()  # now, as it reads a file of the system
    seconds = protocol.WHOLE * job.seconds
    layers = isolation.confine(number, job.memory, job.scratch, seconds, job.files, job.on_gpu)
    os.register_at_fork(after_in_child=_closing(evidence_end))
    emit = sender(
        evidence_end,
        job.token,
        changed or integrity.watch(reaching.remove_tracers, reaching.rewritten, reaching.memory),
    )
    reaching.tell_to(lambda what, file, line: emit(protocol.Reached(what[:300], file[:300], line)))
    job = msgspec.structs.replace(job, token=b"")
    limits = Limits(job.seconds, shared=True, interruptible=False, waited=waited)
    for frame in _frames(job, layers, Path(os.getcwd()), limits):
        emit(frame)


def _frames(
    job: protocol.Job, layers: dict[str, str], home: Path, limits: Limits
) -> Iterator[protocol.Frame | protocol.Glimpse]:
    from virtual_cuda.hooks import keep_patches, limit_memory

    try:
        if job.on_gpu:
            limit_memory(job.gpu_memory)
        yield protocol.Isolated(layers)
        with keep_patches() as restore:  # from one function to the next
            paused = yield from grade(job, home, limits, restore)
    except (
        Exception
    ) as error:  # errors of student code are evidence: this is our own, or was provoked
        yield protocol.Stumbled(": ".join(describe_error(error))[: protocol.MESSAGE])
        traceback.print_exc()
        return
    yield protocol.Paused() if paused else protocol.Finished()


def _closing(end: int) -> Callable[[], None]:
    """A function that closes it once: in a copy of a copy the number may belong to something else."""
    left = [end]

    def close() -> None:
        while left:
            os.close(left.pop())

    return close


def _close_descriptors(evidence_end: int, output_end: int) -> int:
    """Close all but the two pipes; returns the new number of the evidence pipe."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(output_end, 1)
    os.dup2(output_end, 2)
    kept = random.SystemRandom().randrange(100, 200)
    os.dup2(evidence_end, kept, inheritable=False)
    os.closerange(3, kept)
    os.closerange(kept + 1, 4096)
    # Buffered by line: a process that is killed does not write what is still in a buffer.
    sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    return kept
