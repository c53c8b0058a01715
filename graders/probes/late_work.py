"""What if the device works while the host goes on? Calls whose work is done later, by the clock, until someone waits.

The virtual device computes at once, so a clock read without waiting would be right by accident. Here a call only puts
its duration in a queue, and whatever waits for the device (`synchronize`, events, streams, `.item()`) lets the clock go
on until the queue is empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from graders.probes.clock import Clock
from graders.probes.late import torch


class Queue:
    """The work a device has still to do."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.done_at = 0.0

    def launch(self, seconds: float) -> None:
        self.done_at = max(self.clock.now(), self.done_at) + seconds

    def wait(self, until: float | None = None) -> None:
        self.clock.until(self.done_at if until is None else until)

    def is_past(self, moment: float) -> bool:
        """Whether the device has come that far; asked again and again, it will."""
        if self.has_come(moment):
            return True
        self.clock.poll()
        return False

    def has_come(self, moment: float) -> bool:
        return moment <= self.clock.now() + 1e-9  # which is as well as the clock can tell


class Work:
    """A function to be timed: the n-th call takes the n-th duration, the last one ever after."""

    def __init__(self, durations: Sequence[float], clock: Clock, queue: Queue | None = None) -> None:
        self.durations, self.clock, self.queue = durations, clock, queue
        self.took: list[float] = []

    def __call__(self) -> None:
        seconds = self.durations[min(len(self.took), len(self.durations) - 1)]
        if self.queue is not None:
            self.queue.launch(seconds)
            self.took.append(seconds)
            return
        began = self.clock.now()
        self.clock.work(seconds)
        self.took.append(self.clock.now() - began)


@contextlib.contextmanager
def working_later(clock: Clock) -> Iterator[Queue]:
    """The open virtual GPU (or the made-up Mac's) works behind the host's back for the length of a `with` block."""
    import torch as itself  # to be patched: ours only passes on what it is asked for

    from graders.bench.patching import patch
    from graders.bench.sites import site
    from graders.bench.virtual import streams, syncs

    queue = Queue(clock)
    note = syncs.note
    event: Any = streams.AnyEvent

    def noted(kind: str, times: int = 1, explicit: bool = False, warned: bool | None = None, where: Any = None) -> None:
        note(kind, times, explicit, warned, where or site(2))
        queue.wait()

    def record(self: Any, stream: Any = None) -> None:
        clock.read.add("event")
        self._at = max(clock.now(), queue.done_at)

    def synchronize(self: Any) -> None:
        if on_cuda:
            note("event.synchronize", explicit=True, where=site(1))
        queue.wait(self._at or 0.0)

    elapsed = event.elapsed_time

    def elapsed_time(self: Any, end_event: Any) -> float:
        if not queue.has_come(max(self._at or 0.0, end_event._at or 0.0)):
            raise RuntimeError("CUDA error: device not ready")  # what CUDA says of an event that has not come yet
        return float(elapsed(self, end_event))

    def waits(*args: Any, **kwargs: Any) -> None:
        queue.wait()

    def query(self: Any) -> bool:
        return queue.is_past(self._at or 0.0)

    def idle(self: Any) -> bool:
        return queue.is_past(queue.done_at)

    on_cuda = torch.cuda.is_available()
    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (syncs, "note", noted),
        (event, "record", record),
        (event, "synchronize", synchronize),
        (event, "elapsed_time", elapsed_time),
        (event, "query", query),
        (streams.Stream, "query", idle),
    ]
    if not on_cuda:
        changes += [(torch.mps, "synchronize", waits), (torch.accelerator, "synchronize", waits)]
        changes += [(itself, "Event", event), (torch.mps.event, "Event", streams.Event)]
        changes += [(torch.mps, "Event", streams.Event)] if hasattr(torch.mps, "Event") else []
    with contextlib.ExitStack() as undo:
        patch(changes, undo)
        yield queue
