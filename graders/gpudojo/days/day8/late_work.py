"""Work for 10: calls that finish later on the device, and a profiler with chosen durations."""

from __future__ import annotations

import contextlib
import functools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpudojo.grading.call import torch
from gpudojo.grading.limits import Clock


def issue_time() -> float:
    """How long the host takes to issue one operation, modelled on a T4."""
    from virtual_cuda import gpu_named

    return gpu_named("T4").host["operator"]


class Queue:
    """The work that devices still have to do."""

    def __init__(self, clock: Clock, line: Callable[[], int | None]) -> None:
        self.clock = clock
        self.line = line
        self.done: dict[
            Any, float
        ] = {}  # by stream, when its work is done; None is the stream of a Mac's GPU
        self.asked: list[
            tuple[int, Any, int | None]
        ] = []  # GPU, stream and line of each wait and event

    def launch(self, seconds: float, device: Any = None) -> None:
        if not self.clock.really:
            self.clock.work(issue_time())
        stream = torch.cuda.current_stream(device) if torch.cuda.is_available() else None
        self.done[stream] = max(self.clock.now(), self.done.get(stream, 0.0)) + seconds

    def ask(self, index: int, stream: Any = None) -> None:
        """Take note of a wait for a GPU or one of its streams, or of an event there."""
        self.asked.append((index, stream, self.line()))

    def elsewhere(self) -> tuple[str, int | None]:
        """The first wait or event where there was no work: "gpu", "stream" or nothing, and its line."""
        gpus = {stream.device_index for stream in self.done if stream is not None}
        for index, stream, line in self.asked:
            if index not in gpus or (stream is not None and stream not in self.done):
                return "stream" if index in gpus else "gpu", line
        return "", None

    def wait(self, index: int | None = None) -> None:
        """Wait for one GPU, or for all."""
        if index is not None:
            self.ask(index)
        of_it = (
            at for stream, at in self.done.items() if index is None or stream.device_index == index
        )
        self.clock.until(max(of_it, default=0.0))

    def is_past(self, moment: float) -> bool:
        """Whether the device has reached this moment. Each call lets a little time pass, so that polling ends."""
        if self.has_come(moment):
            return True
        self.clock.poll()
        return False

    def has_come(self, moment: float) -> bool:
        return moment <= self.clock.now() + 1e-9  # the resolution of the clock


class Work:
    """Work to be timed: the n-th call takes the n-th duration, all later ones the last. `took` is what they took."""

    def __init__(
        self,
        durations: Sequence[float],
        clock: Clock,
        queue: Queue | None = None,
        device: Any = None,
    ) -> None:
        self.durations = durations
        self.clock = clock
        self.queue = queue
        self.device = device
        self.took: list[float] = []

    def __call__(self) -> None:
        seconds = self.durations[min(len(self.took), len(self.durations) - 1)]
        if self.queue is not None:
            self.queue.launch(seconds, self.device)
            self.took.append(seconds)
            return
        began = self.clock.now()
        self.clock.work(seconds)
        self.took.append(self.clock.now() - began)


@contextlib.contextmanager
def working_later(clock: Clock, line: Callable[[], int | None] = lambda: None) -> Iterator[Queue]:
    """Within a `with` block the open virtual GPU (or the virtual Mac's) works asynchronously.

    `line` tells the line of the student's file that is being run.
    """
    import torch as itself  # the module itself, to be patched
    from virtual_cuda import AnyEvent, Event, Stream, patch, record_wait, site, wait_patch

    queue = Queue(clock, line)
    note = record_wait
    event: Any = AnyEvent

    def noted(
        kind: str,
        times: int = 1,
        explicit: bool = False,
        warned: bool | None = None,
        where: Any = None,
    ) -> None:
        note(kind, times, explicit, warned, where or site())
        queue.wait(torch.cuda.current_device() if kind == "synchronize" else None)

    def record(self: Any, stream: Any = None) -> None:
        clock.read.add("event")
        stream = (stream or torch.cuda.current_stream()) if on_cuda else None
        if stream is not None:
            queue.ask(stream.device_index, stream)
        self._at = max(clock.now(), queue.done.get(stream, 0.0))

    def wait_for_stream(self: Any) -> None:
        """A stream without work is done at once, whatever the other streams do."""
        note("stream.synchronize", explicit=True, warned=True, where=site())
        queue.ask(self.device_index, self)
        clock.until(queue.done.get(self, 0.0))

    def wait_stream(self: Any, stream: Any) -> None:
        queue.done[self] = max(queue.done.get(self, 0.0), queue.done.get(stream, 0.0))

    def wait_event(self: Any, event: Any) -> None:
        queue.done[self] = max(queue.done.get(self, 0.0), event._at or 0.0)

    def synchronize(self: Any) -> None:
        if on_cuda:
            note("event.synchronize", explicit=True, where=site())
        clock.until(self._at or 0.0)

    elapsed = event.elapsed_time

    def elapsed_time(self: Any, end_event: Any) -> float:
        if not queue.has_come(max(self._at or 0.0, end_event._at or 0.0)):
            raise RuntimeError(
                "CUDA error: device not ready"
            )  # CUDA's error for an event that is not reached
        return float(elapsed(self, end_event))

    def waits(*args: Any, **kwargs: Any) -> None:
        queue.wait()

    def query(self: Any) -> bool:
        return queue.is_past(self._at or 0.0)

    def idle(self: Any) -> bool:
        return queue.is_past(queue.done.get(self, 0.0))

    on_cuda = torch.cuda.is_available()
    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        wait_patch(noted),
        (event, "record", record),
        (event, "synchronize", synchronize),
        (event, "elapsed_time", elapsed_time),
        (event, "query", query),
        (Stream, "query", idle),
        (Stream, "synchronize", wait_for_stream),
        (Stream, "wait_stream", wait_stream),
        (Stream, "wait_event", wait_event),
    ]
    if not on_cuda:
        changes += [(torch.mps, "synchronize", waits), (torch.accelerator, "synchronize", waits)]
        changes += [(itself, "Event", event), (torch.mps.event, "Event", Event)]
        changes += [(torch.mps, "Event", Event)] if hasattr(torch.mps, "Event") else []
    with contextlib.ExitStack() as undo:
        patch(changes, undo)
        yield queue


def retimed(events: list[Any], durations: Mapping[str, float]) -> list[Any]:
    """The profiler's events, as if the named operators took these microseconds, and no time passed between them."""
    by_thread: dict[Any, list[Any]] = {}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    for every in by_thread.values():
        timeline = _Timeline()
        for event in sorted(every, key=lambda e: (e.time_range.start, -e.time_range.end)):
            if event.name in durations:
                timeline.add(event, durations[event.name])
        for event in every:
            timeline.retime(event)
    return events


class _Timeline:
    """The chosen calls of one thread, one after the other, with their new times."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.calls: list[tuple[Any, float, float]] = []  # the call, its real end, its new end

    def add(self, event: Any, duration: float) -> None:
        if (
            not self.calls or event.time_range.end > self.calls[-1][1]
        ):  # else it is inside the one before
            self.starts.append(event.time_range.start)
            self.calls.append(
                (event, event.time_range.end, self._before(len(self.calls)) + duration)
            )

    def _before(self, number: int) -> float:
        """The new end of the call before, which is the new start of this one."""
        return self.calls[number - 1][2] if number else 0.0

    def retime(self, event: Any) -> None:
        start = event.time_range.start
        end = event.time_range.end
        first = bisect_right(self.starts, start) - 1
        call, call_end, here = self.calls[first] if first >= 0 else (None, -1.0, 0.0)
        if event is call:
            begins = self._before(first)
            ends = here
        elif end <= call_end:  # a part of a chosen call takes no time
            begins = ends = self._before(first)
        else:
            begins = self._moved(start)
            ends = self._moved(end, up_to=True)
        event.time_range.start = begins
        event.time_range.end = ends
        if event.kernels:  # the virtual GPU's operators have their device time in one fake kernel
            event.kernels = []
            event.append_kernel(event.name, 0, ends - begins)

    def _moved(self, at: float, up_to: bool = False) -> float:
        """The new time of a real moment; no time passes between calls."""
        number = bisect_right(self.starts, at) - 1
        if number < 0:
            return 0.0
        _, end, here = self.calls[number]
        return here if at > end or (up_to and at == end) else self._before(number)


@functools.cache
def warmed_up() -> None:
    """The first session of a process imports 800 modules, and fails if it records stacks."""
    with torch.profiler.profile(), torch.profiler.record_function("nothing"):
        pass


@contextlib.contextmanager
def operators_taking(durations: Mapping[str, float]) -> Iterator[None]:
    """Within a `with` block every profiler reports that these operators took these microseconds."""
    from virtual_cuda import patch

    warmed_up()
    profile: Any = torch.autograd.profiler.profile
    parse = profile._parse_kineto_results

    def parsed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return retimed(parse(self, *args, **kwargs), durations)

    with contextlib.ExitStack() as undo:
        patch([(profile, "_parse_kineto_results", parsed)], undo)
        yield
