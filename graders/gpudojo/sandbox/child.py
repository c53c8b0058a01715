"""What a child does: isolate itself, run the submission, send evidence."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import itertools
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import describe_error
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.exercise import Exercise, Function, Probe
from gpudojo.sandbox import protocol
from gpudojo.sandbox.evidence_pipe import ProbeObservation, Sent, make_sender
from gpudojo.submissions.choosing import Choice, choose_definitions

if TYPE_CHECKING:
    from gpudojo.grading.limits import Limits
    from gpudojo.grading.load import Submission
    from gpudojo.grading.sources import Trees
    from gpudojo.sandbox.isolation import Isolation
    from gpudojo.sandbox.tampering.watch import Watch

# Lines of names that are sent; a notebook with all functions of a day has some 700, most of them
# what sources show.
MOST_LINES = 2000
MOST_VERSIONS = 9  # of a file, that are named
LONGEST_SIGNATURE = 200  # characters


def run(
    number: int,
    job_end: int,
    evidence_end: int,
    output_end: int,
    isolation: Isolation,
    watch: Watch,
) -> None:
    """Do everything that a child, the process of one submission, does.

    `job_end`, `evidence_end` and `output_end` are file descriptors: of the job to read, and of the
    pipes for evidence and for printed output. Confines this process for good, runs the submission,
    and sends what was seen to the grader. An exception of our own goes to its output, and the
    grader sees that it crashed; one before that, such as OSError while it is confined, comes out of
    here.
    """
    from gpudojo.grading.limits import Limits
    from gpudojo.grading.sealing import send_facts_by

    if sys.platform == "win32":
        raise NotImplementedError
    # Read the job before the process is confined.
    with os.fdopen(job_end, "rb") as file:
        file.seek(0)
        job = msgspec.msgpack.decode(file.read(), type=protocol.Job)
    evidence_end = _close_descriptors(evidence_end, output_end)
    waited = _make_clock_of_waits()  # now, as it reads a file of the system
    seconds = protocol.WHOLE * job.seconds
    layers = isolation.confine(number, job.memory, job.scratch, seconds, job.files, job.on_gpu)
    os.register_at_fork(after_in_child=_make_closer(evidence_end))
    send = make_sender(evidence_end, job.token, watch.end_function)
    watch.tell_to(lambda finding: send(protocol.Found(*finding)))
    send_facts_by(lambda sealed: send(protocol.Fact(*sealed)))
    # Student code is not to find the token by which messages are signed.
    job = msgspec.structs.replace(job, token=b"")
    limits = Limits(job.seconds, shared=True, interruptible=False, waited=waited)
    for frame in _frames(job, layers, Path(os.getcwd()), limits):
        send(frame)


def _frames(
    job: protocol.Job, layers: dict[str, str], home: Path, limits: Limits
) -> Iterator[Sent]:
    """Run the submission; yield what is to be sent, from its isolation to its end.

    `home` is the folder of the submission's files. An Exception of ours is sent and printed, and
    does not come out; TimedOut and the like do. `layers` are those of the isolation: why each is
    missing, or "".
    """
    from virtual_cuda.hooks import keep_patches, limit_memory

    try:
        if job.on_gpu:
            limit_memory(job.gpu_memory)
        yield protocol.Isolated(layers)
        with keep_patches() as undo_patches:  # from one function to the next
            is_paused = yield from _observe_submission(job, home, limits, undo_patches)
    except Exception as error:  # errors of student code are evidence: this is ours, or was provoked
        yield protocol.Stumbled(": ".join(describe_error(error))[: protocol.MESSAGE])
        traceback.print_exc()
        return
    yield protocol.Paused() if is_paused else protocol.Finished()


# The submission


def _observe_submission(
    job: protocol.Job,
    home: Path,
    limits: Limits,
    undo_patches: Callable[[], None],
) -> Generator[Sent, None, bool]:
    """Load each file that matters and observe each function in it; yield what is to be sent.

    Returns True if another child has to go on. Files are loaded without the patches of a virtual
    device, which `undo_patches` removes. What a file sets of torch holds for its own functions.
    Raises BadDay where the day cannot be imported, other DojoErrors of the device, and KeyError for
    a probe without a seed.
    """
    from gpudojo.grading.observe import load_file
    from gpudojo.grading.settings import SettingsByFile

    # Choose the file for each function, and tell the grader.
    exercises = exercises_of(job.day)
    trees: Trees = {}
    choice = _choose_without_collecting(job, exercises, trees)
    functions = _functions_to_observe(job, exercises)
    if job.machines == protocol.ELSEWHERE:
        job = msgspec.structs.replace(job, bench="virtual")  # there is no GPU in this process
    yield from _tell_choices(functions, choice)
    loaded: dict[str, Submission] = {}
    settings = SettingsByFile()
    for exercise, function in functions:
        key = f"{exercise.stem}::{function.name}"
        if key in job.skip:
            continue
        chosen = choice.definition_of(function.name)
        file = None
        if chosen is not None:
            file = chosen.file
        if file is None:
            yield from _tell_missing(job, exercise, function)
            continue
        if f"file {file}" in job.skip:
            continue
        # Each file is loaded once, before its first function is observed.
        if file not in loaded:
            yield protocol.Began(f"file {file}")
            undo_patches()
            settings.begin_loading()
            began = time.perf_counter()
            loaded[file] = load_file(home / file, limits, trees)
            seconds = time.perf_counter() - began
            settings.end_loading(file)
            yield _loaded_frame(file, loaded[file], seconds, home)
        elif not settings.are_of(file):
            undo_patches()
            settings.put_in_place(file)
        yield protocol.Began(key)
        saw = yield from _observe_function(job, exercise, function, loaded[file], home, limits)
        yield saw
        if saw.interrupted or saw.spent:
            return True
    return False


def _choose_without_collecting(
    job: protocol.Job, exercises: tuple[Exercise, ...], trees: Trees
) -> Choice:
    """Choose the definition of each function, and fill `trees` with what was parsed.

    Trees are many small objects, none of them garbage: the collector does not look through them,
    now or later.
    """
    gc.disable()
    choice = choose_definitions(job.files, exercises, trees)
    gc.freeze()
    gc.enable()
    return choice


def _functions_to_observe(
    job: protocol.Job, exercises: tuple[Exercise, ...]
) -> list[tuple[Exercise, Function]]:
    """The functions that this child observes, each with the probes that it can run."""
    functions = []
    for exercise in exercises:
        for function in exercise.functions:
            if job.only and function.name not in job.only:
                continue
            if job.drawn == protocol.EVERY:
                function = _with_probes_that_call(function)
            if job.bench == "cuda":
                function = _keep_open_probes(job, exercise, function)
                if not function.probes:
                    continue
            functions.append((exercise, function))
    return functions


def _with_probes_that_call(function: Function) -> Function:
    """The function with those of its probes that call it on a device."""
    probes = [each for each in function.probes if each.machine not in ("value", "reference")]
    return dataclasses.replace(function, probes=probes)


def _keep_open_probes(job: protocol.Job, exercise: Exercise, function: Function) -> Function:
    """The function with the probes that are left for the machine that this child is."""
    elsewhere = job.machines == protocol.ELSEWHERE
    probes = []
    for probe in function.probes:
        is_ours = job.machines == protocol.ALL or probe.elsewhere == elsewhere
        if is_ours and f"{exercise.stem}::{function.name}::{probe.name}" not in job.done:
            probes.append(probe)
    return dataclasses.replace(function, probes=probes)


def _tell_choices(
    functions: list[tuple[Exercise, Function]], choice: Choice
) -> Iterator[protocol.Chosen]:
    """Yield which definition of each function is graded; nothing for one without a definition."""
    for exercise, function in functions:
        chosen = choice.definition_of(function.name)
        if chosen is not None:
            yield protocol.Chosen(
                exercise.stem,
                function.name,
                chosen.file,
                chosen.line,
                chosen.cell,
                chosen.note[: protocol.MESSAGE],
                chosen.versions[:MOST_VERSIONS],
            )


def _tell_missing(job: protocol.Job, exercise: Exercise, function: Function) -> Iterator[Sent]:
    """Yield the evidence of a function that is in none of the files."""
    for probe in function.probes:
        yield ProbeObservation(probe.name, Observation(CallStatus.MISSING))
    yield protocol.Saw(Evidence(exercise.stem, function.name, job.bench, 0, {}), 0.0)


def _loaded_frame(file: str, submission: Submission, seconds: float, home: Path) -> protocol.Loaded:
    """What is sent about a file that was loaded: seconds, lines of names, cells and its error.

    Long lists are cut off.
    """
    broken = submission.broken
    if broken is not None:
        broken = _without_scratch_folder(broken, home)
    lines = dict(itertools.islice(submission.lines.items(), MOST_LINES))
    cells = submission.cells[:MOST_LINES]
    return protocol.Loaded(file, seconds, lines, cells, broken)


def _observe_function(
    job: protocol.Job,
    exercise: Exercise,
    function: Function,
    submission: Submission,
    home: Path,
    limits: Limits,
) -> Generator[ProbeObservation, None, protocol.Saw]:
    """Observe one function: yield what each probe saw, and return the evidence without that.

    Where `interrupted` or `spent` is set in it, another child must go on: after a time-out, or
    where the GPU is lost. Raises DojoError and KeyError, for a probe without a seed, and what
    `limits` raise.
    """
    from virtual_cuda.hooks import device_failure

    from gpudojo.grading.load import describe_exception
    from gpudojo.grading.observe import observe_probes
    from gpudojo.grading.watching import Busiest, EveryCall

    def seed_of(probe: Probe[Any]) -> int:
        return job.seeds[f"{exercise.stem}::{function.name}::{probe.name}"]

    began = time.perf_counter()
    late: Observation | None = None
    gpu_is_lost = False
    # Watch the calls that are to be drawn.
    busiest = Busiest()
    every = EveryCall(function.name)
    watched = function
    if job.drawn == protocol.BUSIEST:
        watched = busiest.watch_function(function)
    elif job.drawn == protocol.EVERY:
        watched = every.watch_function(function)
    # Run the probes.
    for probe, seen in observe_probes(exercise, watched, submission, job.bench, seed_of, limits):
        if seen.raised is not None:
            without = _without_scratch_folder(seen.raised, home)
            seen = msgspec.structs.replace(seen, raised=without)
        late = None
        if seen.timed_out:
            late = seen
        error = None
        if job.on_gpu and not gpu_is_lost:
            error = device_failure()
        if error is not None:
            gpu_is_lost = True
            if seen.raised is None:  # it came up after everything had been observed
                without = _without_scratch_folder(describe_exception(error, submission.path), home)
                seen = Observation(CallStatus.RAISED, raised=without)
        yield ProbeObservation(probe.name, seen)
        if gpu_is_lost and late is None:
            break
    # Put the evidence together; the observations are out already.
    evidence = Evidence(exercise.stem, function.name, job.bench, 0, {})
    seconds = time.perf_counter() - began
    timeline = None
    if late is None:
        # For the report: whatever student code has done to what it is made of, the evidence is
        # worth the same without.
        with contextlib.suppress(Exception):
            timeline = busiest.make_timeline(function.name)
    return protocol.Saw(
        evidence,
        seconds,
        _signature_of(submission.names.get(function.name)),
        late is not None and late.status is CallStatus.RAISED,
        timeline,
        every.timelines,
        gpu_is_lost,
    )


def _signature_of(student: Any) -> str:
    """The signature of the student's function as text. Empty where it has none."""
    # Whatever it raises: what is called may be no function, and the repr of a default is the
    # student's code.
    with contextlib.suppress(Exception):
        text = str(inspect.signature(student))[:LONGEST_SIGNATURE]
        return text.encode("utf-8", "backslashreplace").decode()
    return ""


def _without_scratch_folder(error: Raised, home: Path) -> Raised:
    """The error without the name of the scratch folder.

    That tells a student nothing, and is another one in every run.
    """
    message = error.message.replace(f"{home}{os.sep}", "")[: protocol.MESSAGE]
    return msgspec.structs.replace(error, message=message)


# The process


def _make_clock_of_waits() -> Callable[[], float]:
    """Make a function that returns how long this thread waited for a processor.

    It counts seconds in which other processes had all processors, not its own threads and children.
    While there are children, and where nobody can tell, nothing is added: it never goes back.
    """
    if sys.platform != "linux":
        return lambda: 0.0
    try:
        end = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel that does not count it
        return lambda: 0.0
    # By local names: student code may replace those of modules.
    read = os.pread
    process_time = time.process_time
    thread_time = time.thread_time
    usage_of = resource.getrusage
    wait = os.waitid
    every_child = os.P_ALL
    children = resource.RUSAGE_CHILDREN
    without_waiting = os.WEXITED | os.WNOHANG | os.WNOWAIT
    known = 0.0

    def waiting_seconds() -> float:
        """Seconds so far in which others used the processors."""
        nonlocal known
        try:
            nanoseconds = int(read(end, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):  # closed by student code
            return known
        try:
            wait(every_child, 0, without_waiting)
        except ChildProcessError:  # there are none
            ended = usage_of(children)
            own = process_time() - thread_time() + ended.ru_utime + ended.ru_stime
            known = max(known, nanoseconds / 1e9 - own)
        return known

    return waiting_seconds


def _make_closer(end: int) -> Callable[[], None]:
    """Make a function that closes a descriptor once.

    In a copy of a copy the number may belong to something else.
    """
    left = [end]

    def close() -> None:
        while left:
            os.close(left.pop())

    return close


def _close_descriptors(evidence_end: int, output_end: int) -> int:
    """Close all but the two pipes. Returns the new number of the evidence pipe.

    The output pipe becomes standard output and standard error, and the streams of `sys` are made
    anew. Standard input is empty. Raises OSError where descriptors cannot be copied.
    """
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
    # Python has both streams twice. Without the second, one that student code wraps anew is closed
    # as soon as nobody else has it.
    sys.__stdout__ = sys.stdout  # type: ignore[misc]
    sys.__stderr__ = sys.stderr  # type: ignore[misc]
    return kept
