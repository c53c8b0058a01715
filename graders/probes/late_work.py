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
        self.streams: list[Any] = []  # those that work was put on, or that wait for one of them

    def launch(self, seconds: float) -> None:
        if torch.cuda.is_available():
            self.streams.append(torch.cuda.current_stream())
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
        busy = not on_cuda or (stream or torch.cuda.current_stream()) in queue.streams
        self._at = max(clock.now(), queue.done_at) if busy else clock.now()

    def wait_for_stream(self: Any) -> None:
        """A stream without work is done at once, whatever the others have to do."""
        note("stream.synchronize", explicit=True, warned=True, where=site(1))
        if self in queue.streams:
            queue.wait()

    def wait_stream(self: Any, stream: Any) -> None:
        if stream in queue.streams:
            queue.streams.append(self)

    def wait_event(self: Any, event: Any) -> None:
        if event._at is not None:
            queue.streams.append(self)

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
        return self not in queue.streams or queue.is_past(queue.done_at)

    on_cuda = torch.cuda.is_available()
    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (syncs, "note", noted),
        (event, "record", record),
        (event, "synchronize", synchronize),
        (event, "elapsed_time", elapsed_time),
        (event, "query", query),
        (streams.Stream, "query", idle),
        (streams.Stream, "synchronize", wait_for_stream),
        (streams.Stream, "wait_stream", wait_stream),
        (streams.Stream, "wait_event", wait_event),
    ]
    if not on_cuda:
        changes += [(torch.mps, "synchronize", waits), (torch.accelerator, "synchronize", waits)]
        changes += [(itself, "Event", event), (torch.mps.event, "Event", streams.Event)]
        changes += [(torch.mps, "Event", streams.Event)] if hasattr(torch.mps, "Event") else []
    with contextlib.ExitStack() as undo:
        patch(changes, undo)
        yield queue
