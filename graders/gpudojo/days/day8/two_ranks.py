"""Runs a function in two processes that share a gloo group."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gpudojo.grading.call import StudentRaised, nn, torch
from gpudojo.grading.load import load, raised
from gpudojo.model.evidence import Raised

RANKS: Final = 2
FORKS: Final = sys.platform == "linux"  # a Mac can fork too, but its system libraries do not survive it
# No result depends on this: processes that wait forever report that they stand still.
PATIENCE: Final = timedelta(minutes=10)
ALONE: Final = "one process waited here forever for the other: both have to make the same calls"
GONE: Final = "a process ended during the call"
STUCK: Final = "the processes did not finish"
PAUSE: Final = 0.01
LOOKS: Final = 50  # samples at the same place, without work done there
ENDLESS: Final = 30.0  # seconds of processor time, which a busy machine does not increase

_sleep, _processor_time = time.sleep, time.process_time  # a student's file may replace them


class Rank:
    """One of the processes, seen from the parent: `answer` is its last message."""

    def __init__(self, process: Any, end: Any) -> None:
        self.process, self.end = process, end
        self.answer: dict[str, Any] | None = None
        self.still = 0  # how often it has reported, since something last happened, that it stands still

    def listen(self) -> None:
        said: dict[str, Any] = {"raised": "SystemExit", "text": GONE, "line": None}
        with contextlib.suppress(EOFError, OSError, ValueError):
            said = json.loads(self.end.recv_bytes(1 << 20))
        if "still" in said:
            self.still += 1
        elif "endless" in said:
            raise StudentRaised(Raised("TimeoutError", STUCK, None))
        else:
            self.answer = said


def two_ranks(student: Callable[..., Any], path: Path, function: str) -> list[dict[str, Any]]:
    """The results of each rank, in a group of two and then alone. Raises what the student's function raised."""
    with _started(student, path, function) as ranks:
        together = _answers(ranks)
        for rank in ranks:  # neither continues, and breaks the connection, while the other is still working
            rank.end.send_bytes(b"go on")
            rank.answer = None
        alone = _answers(ranks)
    return [{**some, **one} for some, one in zip(together, alone, strict=True)]


@contextlib.contextmanager
def _started(student: Callable[..., Any], path: Path, function: str) -> Iterator[list[Rank]]:
    context: Any = multiprocessing.get_context("fork" if FORKS else "spawn")
    ranks: list[Rank] = []
    letters = context.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the children keep to one
        try:
            for number in range(RANKS):
                here, there = context.Pipe()
                given = (there, number, student if FORKS else None, str(path), function, letters)
                process = context.Process(target=_rank, args=given, daemon=True)
                process.start()
                there.close()
                ranks.append(Rank(process, here))
            for end in letters:
                end.close()
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()  # not joined, which would take 10 ms
                rank.end.close()


def _answers(ranks: list[Rank]) -> list[dict[str, Any]]:
    """One answer from each. If both stand still, one is killed, so that the call raises in the other."""
    told: list[dict[str, Any]] = []
    _begin(ranks)
    while waiting := [rank for rank in ranks if rank.answer is None]:
        ready = multiprocessing.connection.wait([rank.end for rank in waiting])
        for rank in waiting:
            if rank.end in ready:
                rank.listen()
        told = [rank.answer for rank in ranks if rank.answer and "raised" in rank.answer]
        if any(answer["text"] not in (ALONE, GONE) for answer in told):
            break  # the other one waits for this one
        if any(rank.answer is not None for rank in waiting):
            _begin(ranks)
        elif all(rank.still > 1 for rank in waiting):  # once may have been before the other's answer
            alive = [rank for rank in ranks if rank.process.is_alive()]
            if len(alive) < RANKS:
                raise StudentRaised(Raised("TimeoutError", STUCK, None))
            # Its connections break, and the one that waits for it raises at that line.
            next((rank for rank in alive if rank.answer is not None), alive[-1]).process.kill()
            _begin(ranks)
    # An error in one process says more than that the other one is gone.
    for answer in sorted(told, key=lambda answer: (answer["text"] == GONE, answer["text"] == ALONE)):
        raise StudentRaised(Raised(answer["raised"], answer["text"], answer["line"]))
    return [rank.answer or {} for rank in ranks]


def _begin(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.still = 0


def _rank(end: Any, rank: int, student: Any, path: str, function: str, letters: tuple[Any, Any]) -> None:
    """One of the processes."""
    torch.set_num_threads(1)  # threads do not survive a fork, and waiting for them would take forever
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    student = load(Path(path)).names[function] if student is None else student
    distributed: Any = torch.distributed
    lock = threading.Lock()

    def tell(facts: dict[str, Any]) -> None:
        with lock:
            end.send_bytes(json.dumps(facts).encode())

    try:
        _report_waiting(tell)
        letters[1 - rank].close()  # so that one notices when the other is gone
        store = _letters(letters[rank])
        # Its functions keep the group at the time of import, which must not be one of the two made here.
        importlib.import_module("torch.distributed.nn.functional")
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=PATIENCE)
        tell({"some": _averaged(student, _model(rank), path)})
        end.recv_bytes()
        try:
            distributed.GroupMember.WORLD = None  # `destroy_process_group` takes 20 ms to end its threads
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        except (AttributeError, ValueError):
            distributed.destroy_process_group()
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        tell({"alone": _averaged(student, _model(rank), path)})
    except StudentRaised as error:
        told = error.evidence
        said = ALONE if "Timed out" in told.message or "closed by peer" in told.message else told.message
        tell({"raised": told.type, "text": said, "line": told.line})
    os._exit(0)  # no clean-up: what was inherited belongs to the parent


def _letters(other: Any) -> Any:
    """A store through which two ranks exchange their addresses: what one sets is sent to the other.

    torch's own stores wait for a file to change, or look up host names, which may take seconds.
    """

    distributed: Any = torch.distributed

    class Letters(distributed.Store):  # type: ignore[misc]
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

    return Letters()


def _averaged(student: Any, model: Any, path: str) -> dict[str, Any]:
    weights = [p.detach().clone() for p in model.parameters()]
    try:
        student(model)
    except (Exception, SystemExit) as error:
        raise StudentRaised(raised(error, Path(path))) from None
    pairs = zip(model.parameters(), weights, strict=True)
    return {
        "gradients": [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()],
        "weights_kept": all(bool(torch.equal(p.detach(), before)) for p, before in pairs),
        "group_kept": torch.distributed.is_initialized(),
    }


def _model(rank: int) -> Any:
    """Two layers with gradients that differ between ranks; one bias has none."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(0.25 * (number + 1) + rank)  # different weights would show if they were averaged
            if number != 1:
                values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
                parameter.grad = values * (1 + 4 * rank) + number + 2 * rank
    return model


def _own_time(thread: int) -> tuple[Callable[[], float], float]:
    """The processor time of one thread, or else of all, and how much of it is more than waiting takes."""
    if sys.platform != "win32" and hasattr(time, "pthread_getcpuclockid"):
        clock, read = time.pthread_getcpuclockid(thread), time.clock_gettime
        return lambda: read(clock), 0.001
    return _processor_time, 0.2  # others look around now and then: gloo's threads, and ours


def _report_waiting(tell: Callable[[dict[str, Any]], None]) -> None:
    """From now on, calls `tell` with {"still": True} each time this thread has waited for a while.

    After too much work in total, calls it with {"endless": True}, once.
    """
    me, began = threading.get_ident(), _processor_time()
    worked, much = _own_time(me)

    def look() -> None:
        place, looks, used = None, 0, 0.0
        while True:
            _sleep(PAUSE)
            frame = sys._current_frames().get(me)
            here = (id(frame), frame.f_lasti if frame else 0)
            if here != place or worked() - used > much:
                place, looks, used = here, 0, worked()
            looks += 1
            if looks % LOOKS == 0:
                tell({"still": True})
            if _processor_time() - began > ENDLESS:
                tell({"endless": True})
                return

    threading.Thread(target=look, daemon=True).start()
