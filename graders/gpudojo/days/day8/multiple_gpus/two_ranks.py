"""Runs `average_gradients` in two real processes, in a group of two and then alone.

A rank is one of the two processes, and its number.
"""

from __future__ import annotations

import contextlib
import importlib
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
from typing import Any, Final

import msgspec

from gpudojo.grading.call import StudentRaised, nn, torch
from gpudojo.grading.load import describe_exception, load_submission
from gpudojo.model.evidence import Raised

RANK_COUNT: Final = 2
ATTEMPTS: Final = 3  # of a run in which something else kills a process
KILLED: Final = -9  # the exit code of a process that was killed
# A Mac can fork too, but its system libraries do not survive it.
FORKS: Final = sys.platform == "linux"
# No result depends on this: processes that wait forever report that they stand still.
PATIENCE: Final = timedelta(minutes=10)
ALONE: Final = "one process waited here forever for the other: both have to make the same calls"
GONE: Final = "a process ended during the call"
STUCK: Final = "the processes did not finish"
# What errors say when the other process is gone.
BROKEN: Final = (
    "Timed out",
    "closed by peer",
    "reset by peer",
    "Broken pipe",
)
PAUSE: Final = 0.01
LOOKS: Final = 50  # samples at the same place, without work done there
ENDLESS: Final = 30.0  # seconds of processor time, which a busy machine does not increase

_sleep, _processor_time = time.sleep, time.process_time  # a student's file may replace them


class RankProcess:
    """One of the processes, seen from the parent.

    `answer` is its last message.
    """

    def __init__(self, process: Any, end: Any) -> None:
        self.process = process
        self.end = end
        self.answer: dict[str, Any] | None = None
        self.ended = False  # by us
        # How often it has reported, since something last happened, that it stands still.
        self.still = 0

    def was_killed(self) -> bool:
        """True if something other than this module has killed it.

        May wait up to a second: its end of the pipe is closed before its exit code is there.
        """
        if self.answer is not None and self.answer.get("text") == GONE:
            self.process.join(1.0)
        return not self.ended and self.process.exitcode == KILLED

    def listen(self) -> None:
        """Take in one message. Raises StudentRaised for a process that works without end."""
        message: dict[str, Any] = {"raised": "SystemExit", "text": GONE, "line": None}
        with contextlib.suppress(EOFError, OSError, ValueError):
            message = json.loads(self.end.recv_bytes(1 << 20))
        if "still" in message:
            self.still += 1
        elif "endless" in message:
            raise StudentRaised(Raised("TimeoutError", STUCK, None))
        else:
            self.answer = message


def run_in_two_ranks(
    student: Callable[..., Any], path: Path, function: str, seed: int = 0
) -> list[dict[str, Any]]:
    """The results of each rank, in a group of two and then alone.

    Starts and ends two processes. Where something else has killed one, as when memory is short,
    both are run again. Raises StudentRaised, and OSError for a broken pipe.
    """
    for left in reversed(range(ATTEMPTS)):
        with _started_ranks(student, path, function, seed) as ranks:
            try:
                together = _wait_for_answers(ranks)
                # Neither continues, and breaks the connection, while the other is still working.
                for rank in ranks:
                    rank.end.send_bytes(b"go on")
                    rank.answer = None
                alone = _wait_for_answers(ranks)
                break
            except (StudentRaised, OSError):
                if not left or not any(rank.was_killed() for rank in ranks):
                    raise
    return [{**some, **one} for some, one in zip(together, alone, strict=True)]


@contextlib.contextmanager
def _started_ranks(
    student: Callable[..., Any], path: Path, function: str, seed: int
) -> Iterator[list[RankProcess]]:
    """Start both ranks for the length of a `with` block, and kill them at its end."""
    context: Any = multiprocessing.get_context("fork" if FORKS else "spawn")
    ranks: list[RankProcess] = []
    letters = context.Pipe()
    with warnings.catch_warnings():
        # Python warns of forking with threads. The children keep to one thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            for number in range(RANK_COUNT):
                here, there = context.Pipe()
                given = (
                    there,
                    number,
                    student if FORKS else None,
                    str(path),
                    function,
                    letters,
                    seed,
                )
                process = context.Process(target=_run_rank, args=given, daemon=True)
                process.start()
                there.close()
                ranks.append(RankProcess(process, here))
            # Only the ranks have these ends: one notices when the other is gone.
            for end in letters:
                end.close()
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()  # not joined, which would take 10 ms
                rank.end.close()


def _wait_for_answers(ranks: list[RankProcess]) -> list[dict[str, Any]]:
    """One answer from each. Raises StudentRaised for an error in one of them.

    If both stand still, one is killed, so that the call raises in the other.
    """
    errors: list[dict[str, Any]] = []
    _forget_standstills(ranks)
    while waiting := [rank for rank in ranks if rank.answer is None]:
        ready = multiprocessing.connection.wait([rank.end for rank in waiting])
        for rank in waiting:
            if rank.end in ready:
                rank.listen()
        errors = [rank.answer for rank in ranks if rank.answer and "raised" in rank.answer]
        if any(answer["text"] not in (ALONE, GONE) for answer in errors):
            break  # the other one waits for this one
        if any(rank.answer is not None for rank in waiting):
            _forget_standstills(ranks)
        elif all(rank.still > 1 for rank in waiting):
            # One report alone may have been made before the other's answer.
            alive = [rank for rank in ranks if rank.process.is_alive()]
            if len(alive) < RANK_COUNT:
                raise StudentRaised(Raised("TimeoutError", STUCK, None))
            # Its connections break, and the one that waits for it raises at that line.
            chosen = next((rank for rank in alive if rank.answer is not None), alive[-1])
            chosen.ended = True
            chosen.process.kill()
            _forget_standstills(ranks)
    # An error in one process says more than that the other one is gone.
    for answer in sorted(
        errors, key=lambda answer: (answer["text"] == GONE, answer["text"] == ALONE)
    ):
        raise StudentRaised(Raised(answer["raised"], answer["text"], answer["line"]))
    return [rank.answer or {} for rank in ranks]


def _forget_standstills(ranks: list[RankProcess]) -> None:
    for rank in ranks:
        rank.still = 0


def _run_rank(
    end: Any, rank: int, student: Any, path: str, function: str, letters: tuple[Any, Any], seed: int
) -> None:
    """Call the student's function in a group of two, then alone, and end this process.

    This is what one of the processes does. Results and errors are sent through `end`.
    """
    # Threads do not survive a fork, and waiting for them would take forever.
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    student = load_submission(Path(path)).names[function] if student is None else student
    distributed: Any = torch.distributed
    lock = threading.Lock()

    def tell(facts: dict[str, Any]) -> None:
        with lock:
            end.send_bytes(json.dumps(facts).encode())

    try:
        _report_waiting(tell)
        letters[1 - rank].close()  # so that one notices when the other is gone
        store = _letter_store(letters[rank])
        # Its functions keep the group at the time of import, which must not be one of the two made
        # here.
        importlib.import_module("torch.distributed.nn.functional")
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=RANK_COUNT, timeout=PATIENCE
        )
        tell({"some": _call_student(student, _make_rank_model(rank, seed), path)})
        end.recv_bytes()
        try:
            # Not by `destroy_process_group`, which takes 20 ms to end its threads.
            distributed.GroupMember.WORLD = None
            distributed.init_process_group(
                "gloo", store=distributed.HashStore(), rank=0, world_size=1
            )
        except (AttributeError, ValueError):
            distributed.destroy_process_group()
            distributed.init_process_group(
                "gloo", store=distributed.HashStore(), rank=0, world_size=1
            )
        tell({"alone": _call_student(student, _make_rank_model(rank, seed), path)})
    except StudentRaised as error:
        raised = error.evidence
        text = raised.message
        if any(words in text for words in BROKEN):
            text = ALONE
        tell({"raised": raised.type, "text": text, "line": raised.line})
    os._exit(0)  # no clean-up: what was inherited belongs to the parent


def _letter_store(other: Any) -> Any:
    """A store through which two ranks exchange their addresses.

    What one sets is sent to the other. torch's own stores wait for a file to change, or look up
    host names, which may take seconds.
    """

    distributed: Any = torch.distributed

    class RankLetters(distributed.Store):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.known: dict[str, bytes] = {}
            self.reading = threading.RLock()

        def set(self, key: str, value: Any) -> None:
            self.known[key] = value if isinstance(value, bytes) else str(value).encode()
            other.send_bytes(b"\0".join((key.encode(), self.known[key])))

        def get(self, key: str) -> bytes:
            with self.reading:
                while key not in self.known:
                    name, _, value = other.recv_bytes().partition(b"\0")
                    self.known[name.decode()] = value
            return self.known[key]

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            for key in keys:
                self.get(key)

    return RankLetters()


def _call_student(student: Any, model: Any, path: str) -> dict[str, Any]:
    """Call the student's function and describe gradients, weights and group.

    Raises StudentRaised.
    """
    weights = [p.detach().clone() for p in model.parameters()]
    try:
        student(model)
    except (Exception, SystemExit) as error:
        raised = describe_exception(error, Path(path))
        if isinstance(error, (TypeError, AttributeError)) and _met_no_gradient(error, path):
            first, newline, rest = raised.message.partition("\n")
            message = f"{first} {WITHOUT_GRADIENT}{newline}{rest}"
            raised = msgspec.structs.replace(raised, message=message)
        raise StudentRaised(raised) from None
    gradients = []
    for parameter in model.parameters():
        gradient = parameter.grad
        gradients.append(None if gradient is None else gradient.flatten().tolist())
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


def _make_rank_model(rank: int, seed: int) -> Any:
    """Two layers with gradients that differ between ranks and between seeds; one bias has none."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    scale = random.Random(seed).uniform(0.5, 2.0)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            # Different weights: it would show if they were averaged.
            parameter.fill_(0.25 * (number + 1) + rank)
            if number != 1:
                values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(
                    parameter.shape
                )
                parameter.grad = (values * (1 + 4 * rank) + number + 1 + 2 * rank) * scale
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


def _report_waiting(tell: Callable[[dict[str, Any]], None]) -> None:
    """Start a thread that calls `tell` each time this thread has waited for a while.

    It passes {"still": True}. After too much work in total, it passes {"endless": True}, once, and
    ends.
    """
    me = threading.get_ident()
    began = _processor_time()
    worked, much = _processor_time_of(me)

    def look() -> None:
        """Look where the other thread is, again and again; returns after `endless`."""
        place = None
        looks = 0
        used = 0.0
        while True:
            _sleep(PAUSE)
            frame = sys._current_frames().get(me)
            here = (id(frame), frame.f_lasti if frame else 0)
            # It has gone on, or worked where it was: it does not wait.
            if here != place or worked() - used > much:
                place = here
                looks = 0
                used = worked()
            looks += 1
            if looks % LOOKS == 0:
                tell({"still": True})
            if _processor_time() - began > ENDLESS:
                tell({"endless": True})
                return

    threading.Thread(target=look, daemon=True).start()
