"""Runs `average_gradients` in several real processes, in one group and then each alone.

A rank is one of the processes, and its number.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final, NamedTuple

import msgspec

from gpudojo.days.day8.error_messages import add_to_first_line
from gpudojo.grading.call import StudentRaised, nn, torch
from gpudojo.grading.load import describe_exception, load_submission
from gpudojo.grading.thread_frames import frame_of_thread
from gpudojo.model.evidence import Raised

ATTEMPTS: Final = 3  # of a run in which something else kills a process
KILLED: Final = -9  # the exit code of a process that was killed
# A Mac can fork too, but its system libraries do not survive it.
FORKS: Final = sys.platform == "linux"
# No result depends on this: processes that wait forever report that they stand still.
PATIENCE: Final = timedelta(minutes=10)
ALONE: Final = "one process waited here forever for another: all have to make the same calls"
GONE: Final = "a process ended during the call"
STUCK: Final = "the processes did not finish"
# What errors say when another process is gone.
BROKEN: Final = (
    "Timed out",
    "closed by peer",
    "reset by peer",
    "Broken pipe",
)
PAUSE: Final = 0.01
LOOKS: Final = 50  # samples at the same place, without work done there
ENDLESS: Final = 30.0  # seconds of processor time, which a busy machine does not increase

_stores: Final[list[Any]] = []  # torch finds a store's methods as long as somebody holds it
# A student's file may replace them.
_sleep = time.sleep
_processor_time = time.process_time


class RankError(msgspec.Struct, frozen=True):
    """An error that ended a rank, as it reports it."""

    raised: str  # the type
    text: str
    line: int | None

    @property
    def severity(self) -> int:
        """Which of two errors says more: one of its own, more than that another rank is gone."""
        return {ALONE: 1, GONE: 0}.get(self.text, 2)


class RankProcess:
    """One of the processes, seen from the parent."""

    def __init__(self, process: Any, end: Any) -> None:
        """A process that has not reported yet; `end` is our end of the pipe to it."""
        self.process = process
        self.end = end  # of a pipe, through which it reports
        self.answer: dict[str, Any] | None = None  # its last result
        self.error: RankError | None = None
        self.is_killed_by_us = False
        # How often it has reported, since something last happened, that it stands still.
        self.still = 0

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None

    @property
    def has_error_of_its_own(self) -> bool:
        return self.error is not None and self.error.text not in (ALONE, GONE)

    def was_killed_by_others(self) -> bool:
        """True if something other than this module has killed it.

        May wait up to a second: its end of the pipe is closed before its exit code is there.
        """
        if self.error is not None and self.error.text == GONE:
            self.process.join(1.0)
        return not self.is_killed_by_us and self.process.exitcode == KILLED

    def receive_report(self) -> None:
        """Take in one message: an answer, an error, or that the process stands still.

        Waits for it. An end of the pipe that is closed or cannot be read counts as the process's
        error. Raises StudentRaised for a process that works without end, and
        msgspec.ValidationError for an error of another form.
        """
        message: dict[str, Any] = {"raised": "SystemExit", "text": GONE, "line": None}
        with contextlib.suppress(EOFError, OSError, ValueError):
            message = json.loads(self.end.recv_bytes(1 << 20))
        if "still" in message:
            self.still += 1
        elif "endless" in message:
            raise StudentRaised(Raised("TimeoutError", STUCK, None))
        elif "raised" in message:
            self.error = msgspec.convert(message, RankError)
        else:
            self.answer = message

    def kill_process(self) -> None:
        """Kill it, so that its connections break. Not joined, which would take 10 ms."""
        self.is_killed_by_us = True
        self.process.kill()


def run_in_ranks(
    student: Callable[..., Any], path: Path, function: str, seed: int = 0, count: int = 2
) -> list[dict[str, Any]]:
    """The results of each of `count` ranks, in a group of all of them and then alone.

    `student` is the student's function; `path` and `function` say where it is and what it is
    called. Starts and ends the processes. Where something else has killed one, as when memory is
    short, all are run again. Raises StudentRaised, OSError for a broken pipe, and
    msgspec.ValidationError for an error of another form.
    """
    attempts_left = ATTEMPTS
    while True:
        attempts_left -= 1
        with _started_ranks(student, path, function, seed, count) as ranks:
            try:
                return _results_of(ranks)
            except (StudentRaised, OSError):
                killed = any(rank.was_killed_by_others() for rank in ranks)
                if not attempts_left or not killed:
                    raise


def _results_of(ranks: list[RankProcess]) -> list[dict[str, Any]]:
    """What each rank did together ("some") and alone ("alone").

    Tells them to go on in between. Raises StudentRaised, OSError for a broken pipe, and
    msgspec.ValidationError for an error of another form.
    """
    together = _wait_for_answers(ranks)
    # None continues, and breaks a connection, while another is still working.
    for rank in ranks:
        rank.end.send_bytes(b"go on")
        rank.answer = None
    alone = _wait_for_answers(ranks)
    return [first | second for first, second in zip(together, alone, strict=True)]


@contextlib.contextmanager
def _started_ranks(
    student: Callable[..., Any], path: Path, function: str, seed: int, count: int
) -> Iterator[list[RankProcess]]:
    """Start the ranks for the length of a `with` block, and kill them at its end.

    Gives our side of each. `student` is the student's function; `path` and `function` say where it
    is and what it is called; `count` is the number of ranks. Raises OSError if a process or a pipe
    cannot be made.
    """
    method = "spawn"
    if FORKS:
        method = "fork"
    context: Any = multiprocessing.get_context(method)
    ranks: list[RankProcess] = []
    letters: Letters = {}
    for pair in itertools.combinations(range(count), 2):
        letters[pair] = context.Pipe()
    with warnings.catch_warnings():
        # Python warns of forking with threads. The children keep to one thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            for number in range(count):
                here, there = context.Pipe()
                job = RankJob(
                    end=there,
                    rank=number,
                    student=student if FORKS else None,
                    path=str(path),
                    function=function,
                    letters=letters,
                    seed=seed,
                    group_size=count,
                )
                process = context.Process(target=_run_rank, args=(job,), daemon=True)
                process.start()
                there.close()
                ranks.append(RankProcess(process, here))
            # Only the ranks have these ends: one notices when another is gone.
            for ends in letters.values():
                for end in ends:
                    end.close()
            yield ranks
        finally:
            for rank in ranks:
                rank.kill_process()
                rank.end.close()


def _wait_for_answers(ranks: list[RankProcess]) -> list[dict[str, Any]]:
    """One answer from each. Raises StudentRaised for an error in one of them.

    Of several errors it is the worst. If all stand still, one is killed, so that the call raises in
    the others. Raises msgspec.ValidationError for an error of another form.
    """
    _forget_standstills(ranks)
    while not _can_stop_waiting(ranks):
        waiting = [rank for rank in ranks if not rank.is_done]
        ready = multiprocessing.connection.wait([rank.end for rank in waiting])
        for rank in waiting:
            if rank.end in ready:
                rank.receive_report()
        if any(rank.is_done for rank in waiting):
            _forget_standstills(ranks)
        elif all(rank.still > 1 for rank in waiting):
            # One report alone may have been made before another's answer.
            _end_standstill(ranks)
    errors = [rank.error for rank in ranks if rank.error is not None]
    if errors:
        worst = max(errors, key=lambda error: error.severity)
        raise StudentRaised(Raised(worst.raised, worst.text, worst.line))
    return [rank.answer or {} for rank in ranks]


def _can_stop_waiting(ranks: list[RankProcess]) -> bool:
    """True if all ranks are done, or if one has an error of its own: others wait for it."""
    if all(rank.is_done for rank in ranks):
        return True
    return any(rank.has_error_of_its_own for rank in ranks)


def _end_standstill(ranks: list[RankProcess]) -> None:
    """Kill one of the ranks that wait for each other, and those that wait for it raise there.

    Raises StudentRaised if there is only one left.
    """
    alive = [rank for rank in ranks if rank.process.is_alive()]
    if len(alive) < 2:
        raise StudentRaised(Raised("TimeoutError", STUCK, None))
    done = [rank for rank in alive if rank.is_done]
    chosen = alive[-1]
    if done:
        chosen = done[0]
    chosen.kill_process()
    _forget_standstills(ranks)


def _forget_standstills(ranks: list[RankProcess]) -> None:
    for rank in ranks:
        rank.still = 0


# The two ends of a pipe between each two ranks, by their numbers.
Letters = dict[tuple[int, int], Any]


class RankJob(NamedTuple):
    """What one of the processes is to do."""

    end: Any  # of a pipe, for its reports
    rank: int
    student: Any  # the student's function; None where it has to be loaded
    path: str
    function: str  # its name
    letters: Letters
    seed: int
    group_size: int


def _run_rank(job: RankJob) -> None:
    """Call the student's function in a group of all ranks, then alone, and end this process.

    This is what one of the processes does; it does not return. Results and the student's errors are
    sent to the parent. Raises what loading the submission raises, and OSError for a broken pipe.
    """
    # Threads do not survive a fork, and waiting for them would take forever.
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    student = job.student
    if student is None:
        student = load_submission(Path(job.path)).names[job.function]
    lock = threading.Lock()

    def report(facts: dict[str, Any]) -> None:
        message = json.dumps(facts).encode()
        with lock:
            job.end.send_bytes(message)

    try:
        _report_waiting(report)
        _join_group_of_all(job)
        some = _call_student(student, _make_rank_model(job), job.path)
        report({"some": some})
        job.end.recv_bytes()  # until the others have answered, too
        _join_group_of_one()
        alone = _call_student(student, _make_rank_model(job), job.path)
        report({"alone": alone})
    except StudentRaised as error:
        raised = error.evidence
        text = raised.message
        if any(words in text for words in BROKEN):
            text = ALONE
        report({"raised": raised.type, "text": text, "line": raised.line})
    os._exit(0)  # no clean-up: what was inherited belongs to the parent


def _join_group_of_all(job: RankJob) -> None:
    """Initialise the process group of all ranks, which is torch's default one.

    Closes the ends of pipes that are not this rank's. Waits for the other ranks, without a limit of
    time. Raises OSError if one of them has ended.
    """
    distributed: Any = torch.distributed
    own = []
    for pair, ends in job.letters.items():
        for rank, end in zip(pair, ends, strict=True):
            if rank == job.rank:
                own.append(end)
            else:
                end.close()  # so that one notices when another is gone
    store = _letter_store(own)
    _stores.append(store)
    # Its functions keep the group at the time of import, which must not be one of those made here.
    importlib.import_module("torch.distributed.nn.functional")
    distributed.init_process_group(
        "gloo", store=store, rank=job.rank, world_size=job.group_size, timeout=PATIENCE
    )


def _join_group_of_one() -> None:
    """Replace torch's default process group by one of this process alone."""
    distributed: Any = torch.distributed
    if distributed.is_initialized():  # the student's function may have ended it
        distributed.destroy_process_group()
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def _letter_store(others: list[Any]) -> Any:
    """A store through which ranks exchange their addresses; `others` are pipes to the other ones.

    What one sets is sent to the others. torch's own stores wait for a file to change, or look up
    host names, which may take seconds. Its methods raise OSError once another is gone.
    """

    distributed: Any = torch.distributed

    class RankLetters(distributed.Store):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.known: dict[str, bytes] = {}
            self.reading = threading.RLock()

        def set(self, key: str, value: Any) -> None:
            """Keep a value, as bytes, and send it to the other ranks.

            Raises OSError if one is gone.
            """
            if not isinstance(value, bytes):
                value = str(value).encode()
            self.known[key] = value
            for other in others:
                other.send_bytes(key.encode() + b"\0" + value)

        def get(self, key: str) -> bytes:
            """A value, of this rank or of another; waits until it is there.

            Keeps all that others send meanwhile. Raises OSError if one of them is gone.
            """
            with self.reading:
                while key not in self.known:
                    for other in multiprocessing.connection.wait(others):
                        name, _, value = _receive_letter(other).partition(b"\0")
                        self.known[name.decode()] = value
            return self.known[key]

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            for key in keys:
                self.get(key)

    return RankLetters()


def _receive_letter(other: Any) -> bytes:
    """The next bytes from a pipe to another rank. Raises OSError if that is gone."""
    try:
        letter: bytes = other.recv_bytes()
    except EOFError:
        raise ConnectionError("closed by peer") from None
    return letter


def _call_student(student: Any, model: Any, path: str) -> dict[str, Any]:
    """Call the student's function and describe gradients, weights and group.

    The keys are "gradients", a list of numbers or None for each parameter, "weights_kept" and
    "group_kept". The call changes the model. Raises StudentRaised for the student's errors,
    SystemExit included.
    """
    weights = [p.detach().clone() for p in model.parameters()]
    try:
        student(model)
    except (Exception, SystemExit) as error:
        raised = describe_exception(error, Path(path))
        if isinstance(error, (TypeError, AttributeError)) and _met_no_gradient(error, path):
            message = add_to_first_line(raised.message, WITHOUT_GRADIENT)
            raised = msgspec.structs.replace(raised, message=message)
        raise StudentRaised(raised) from None
    gradients: list[list[float] | None] = []
    for parameter in model.parameters():
        if parameter.grad is None:
            gradients.append(None)
        else:
            gradients.append(parameter.grad.flatten().tolist())
    pairs = zip(model.parameters(), weights, strict=True)
    return {
        "gradients": gradients,
        "weights_kept": all(bool(torch.equal(p.detach(), before)) for p, before in pairs),
        "group_kept": torch.distributed.is_initialized(),
    }


WITHOUT_GRADIENT: Final = "(at a parameter whose `grad` is None)"


def _met_no_gradient(error: Exception, path: str) -> bool:
    """True if the student's innermost function had met a parameter without a gradient.

    One of its variables is such a parameter or, in an error about None, is None.
    """
    variables: dict[str, Any] = {}
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code.co_filename == path:
            variables = frame.f_locals
    about_none = "NoneType" in str(error)
    for value in list(variables.values()):
        if isinstance(value, nn.Parameter):
            if value.grad is None:
                return True
        elif value is None and about_none:
            return True
    return False


def _make_rank_model(job: RankJob) -> Any:
    """A model with gradients that differ between ranks and between seeds; one bias has none.

    The weights differ between ranks, too. There are layers of two kinds, one of them inside
    another, and a parameter of the model itself.
    """
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.LayerNorm(3)))
    model.scale = nn.Parameter(torch.ones(2))
    scale = random.Random(job.seed).uniform(0.5, 2.0)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            # Different weights: it would show if they were averaged.
            parameter.fill_(0.25 * (number + 1) + job.rank)
            if number == 2:
                continue
            values = torch.arange(parameter.numel(), dtype=torch.float32)
            size_of_step = 1 + 4 * job.rank**2  # the mean is none of the ranks' own
            start = number + 1 + 2 * job.rank**2
            steps = values.reshape(parameter.shape) * size_of_step
            parameter.grad = (steps + start) * scale
    return model


def _processor_time_of(thread: int) -> tuple[Callable[[], float], float]:
    """A function that reads a thread's processor time, and the least that counts as work.

    Where there is no clock for one thread, it reads the time of all threads.
    """
    if sys.platform != "win32" and hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(thread)
        read = time.clock_gettime
        return lambda: read(clock), 0.001
    return _processor_time, 0.2  # others look around now and then: gloo's threads, and ours


def _report_waiting(report: Callable[[dict[str, Any]], None]) -> None:
    """Start a thread that calls `report` each time this thread has waited for a while.

    It passes {"still": True}. After too much work in total, it passes {"endless": True}, once, and
    ends.
    """
    me = threading.get_ident()
    began = _processor_time()
    worked, much = _processor_time_of(me)

    def look_again_and_again() -> None:
        """Look where the other thread is, again and again; returns after `endless`."""
        place = None
        looks = 0
        used = 0.0
        while True:
            _sleep(PAUSE)
            frame = frame_of_thread(me)
            here = (id(frame), 0)
            if frame:
                here = (id(frame), frame.f_lasti)
            # It has gone on, or worked where it was: it does not wait.
            if here != place or worked() - used > much:
                place = here
                looks = 0
                used = worked()
            looks += 1
            if looks % LOOKS == 0:
                report({"still": True})
            if _processor_time() - began > ENDLESS:
                report({"endless": True})
                return

    threading.Thread(target=look_again_and_again, daemon=True).start()
