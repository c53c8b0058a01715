"""What if the device works while the host goes on? Calls whose work is done later, by the clock, until someone waits.

The virtual device computes at once, so a clock read without waiting would be right by accident. Here a call only puts
its duration in a queue, and whatever waits for the device (`synchronize`, events, streams, `.item()`) sleeps until the
queue is empty.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from graders.probes.late import torch


class Queue:
    """The work a device has still to do; `late` is how long the host overslept in all, which is not the student's."""

    def __init__(self) -> None:
        self.done_at = 0.0
        self.late = 0.0

    def launch(self, seconds: float) -> None:
        self.done_at = max(time.perf_counter(), self.done_at) + seconds

    def wait(self, until: float | None = None) -> None:
        moment = self.done_at if until is None else until
        left = moment - time.perf_counter()
        if left > 0:
            time.sleep(left)
            self.late += time.perf_counter() - moment


class Work:
    """A function to be timed: the n-th call takes the n-th duration, the last one ever after."""

    def __init__(self, durations: list[float], queue: Queue | None = None) -> None:
        self.durations, self.queue = durations, queue
        self.took: list[float] = []

    def __call__(self) -> None:
        seconds = self.durations[min(len(self.took), len(self.durations) - 1)]
        if self.queue is not None:
            self.queue.launch(seconds)
            self.took.append(seconds)
            return
        began = time.perf_counter()
        time.sleep(seconds)
        self.took.append(time.perf_counter() - began)


@contextlib.contextmanager
def working_later() -> Iterator[Queue]:
    """The open virtual GPU (or the made-up Mac's) works behind the host's back for the length of a `with` block."""
    from graders.bench.patching import patch
    from graders.bench.sites import site
    from graders.bench.virtual import streams, syncs

    queue = Queue()
    note = syncs.note
    event: Any = streams.Event

    def noted(kind: str, times: int = 1, explicit: bool = False, warned: bool | None = None, where: Any = None) -> None:
        note(kind, times, explicit, warned, where or site(2))
        queue.wait()

    def record(self: Any, stream: Any = None) -> None:
        self._at = max(time.perf_counter(), queue.done_at)

    def synchronize(self: Any) -> None:
        note("event.synchronize", explicit=True, where=site(1))
        queue.wait(self._at or 0.0)

    elapsed = event.elapsed_time

    def elapsed_time(self: Any, end_event: Any) -> float:
        if max(self._at or 0.0, end_event._at or 0.0) > time.perf_counter():
            raise RuntimeError("CUDA error: device not ready")  # what CUDA says of an event that has not come yet
        return float(elapsed(self, end_event))

    def waits(*args: Any, **kwargs: Any) -> None:
        queue.wait()

    def query(self: Any) -> bool:
        return (self._at or 0.0) <= time.perf_counter()

    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (syncs, "note", noted),
        (event, "record", record),
        (event, "synchronize", synchronize),
        (event, "elapsed_time", elapsed_time),
        (event, "query", query),
    ]
    if not torch.cuda.is_available():
        changes += [(torch.mps, "synchronize", waits), (torch.accelerator, "synchronize", waits)]
    with contextlib.ExitStack() as undo:
        patch(changes, undo)
        yield queue
