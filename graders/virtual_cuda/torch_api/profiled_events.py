"""Turns the events that a profiler recorded into those that it would have seen on a GPU.

Operators that ran on the host inside a mark become time of the device; this package's own time is
cut out.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from typing import Any, NamedTuple

from virtual_cuda.torch_api.profiler_marks import (
    MARK,
    is_mark,
    is_ours,
    modelled_work_of,
    operator_name_of,
)


class _Kind(enum.Enum):
    """What an event is about."""

    HOST = enum.auto()  # what a program on a GPU has, too
    OURS = enum.auto()  # of this package
    MARK = enum.auto()  # a mark, or a Python function inside it
    DEVICE = enum.auto()  # an operator inside a mark: the work of the device


class _OpenEvent(NamedTuple):
    """An event that the next one may be inside of."""

    event: Any
    kind: _Kind


class _Span(NamedTuple):
    """A stretch of time, in microseconds."""

    start: float
    end: float


class _DeviceWork:
    """The work on the device of one operator."""

    # Written out: a constructor that dataclasses generate belongs to no file, and whoever counts
    # the lines of a program would count its lines.
    def __init__(self, operator: Any) -> None:
        self.operator = operator  # its event, or its mark where it has no event
        self.spans_on_host: list[_Span] = []  # when the host did that work
        self.microseconds: float | None = None  # how long it took; None if nothing was launched

    def add_time(self, microseconds: float) -> None:
        """Add to the time that the work took."""
        self.microseconds = (self.microseconds or 0.0) + microseconds


class _EventTree:
    """The events of one thread, as a tree.

    It tells which events are ours and which are the device's, and what time they take.
    """

    def __init__(self) -> None:
        """Begin without events."""
        self.kept: list[Any] = []  # events that a program on a GPU has
        self.work: dict[int, _DeviceWork] = {}  # by the id of the operator's event
        self._parent: dict[int, Any] = {}  # by the id of a kept event
        self._open: list[_OpenEvent] = []  # the inner one last
        self._work_of_mark = _DeviceWork(None)  # of the mark that is being read
        self._is_measured = True  # whether the host's time inside the mark is the device's

    def add(self, event: Any) -> None:
        """Put the next event into the tree.

        Events come by their start, the longer one first. An event of a fused operator is given the
        operator's name.
        """
        self._close_events_before(event)
        if self._open:
            inside = self._open[-1].kind
        else:
            inside = _Kind.HOST
        if inside is _Kind.MARK or inside is _Kind.DEVICE:
            kind = self._add_inside_mark(event, inside)
        elif is_mark(event.name):
            self._add_mark(event)
            kind = _Kind.MARK
        elif is_ours(event.name):
            kind = _Kind.OURS
        else:
            self._keep(event)
            kind = _Kind.HOST
        self._open.append(_OpenEvent(event, kind))

    def _close_events_before(self, event: Any) -> None:
        """Close the open events that this one is not inside of."""
        start = event.time_range.start
        end = event.time_range.end
        while self._open:
            open_until = self._open[-1].event.time_range.end
            if open_until >= end and open_until > start:
                return
            self._open.pop()

    def _add_inside_mark(self, event: Any, inside: _Kind) -> _Kind:
        """Count an operator of the host directly inside a mark as the device's work.

        Returns the kind of the event.
        """
        is_python = ".py(" in event.name or event.name.startswith("<built-in")
        if inside is _Kind.DEVICE or is_python:
            return inside
        span = _Span(event.time_range.start, event.time_range.end)
        self._work_of_mark.spans_on_host.append(span)
        if self._is_measured:
            self._work_of_mark.add_time(span.end - span.start)
        return _Kind.DEVICE

    def _add_mark(self, mark: Any) -> None:
        """Find the operator that a mark's work belongs to; what follows inside is counted for it.

        It is the event around it, if that is an operator. Else the mark itself becomes an event
        with the operator's name. Modelled time is added at once.
        """
        modelled = modelled_work_of(mark.name)
        self._is_measured = mark.name.startswith(MARK) and modelled is None
        above = self._innermost_host_event()
        if above is not None and _is_operator(above):
            operator = above
        else:
            operator = mark
            name = operator_name_of(mark.name)
            if name is not None:
                mark.name = name
                self._keep(mark)
        self._work_of_mark = self.work.setdefault(id(operator), _DeviceWork(operator))
        if modelled:
            seconds = sum(interval.seconds for interval in modelled)
            self._work_of_mark.add_time(seconds * 1e6)

    def _keep(self, event: Any) -> None:
        """Keep an event that a program on a GPU has, inside the one that is open."""
        self._parent[id(event)] = self._innermost_host_event()
        self.kept.append(event)

    def _innermost_host_event(self) -> Any:
        """The event of the host that is open, or None outside of all."""
        for event, kind in reversed(self._open):
            if kind is _Kind.HOST:
                return event
        return None

    def attribute_work(self) -> dict[int, float]:
        """Microseconds on the device, by the id of an event, of each event and all inside it.

        Moves the memory of the device's work from the host's account to the device's, in the
        events.
        """
        totals: dict[int, float] = {}
        for event in self.kept:
            work = self.work.get(id(event))
            if work is None or work.microseconds is None:
                continue
            memory = event.cpu_memory_usage
            above = event
            while above is not None:
                above.cpu_memory_usage -= memory
                above.device_memory_usage += memory
                totals[id(above)] = totals.get(id(above), 0.0) + work.microseconds
                above = self._parent[id(above)]
        return totals

    def own_spans(self) -> list[_Span]:
        """The stretches of time of the virtual device's own code, in order: no GPU has them."""
        spans = []
        for work in self.work.values():
            at = work.operator.time_range.start
            for span in work.spans_on_host:
                spans.append(_Span(at, span.start))
                at = span.end
            spans.append(_Span(at, work.operator.time_range.end))
        return sorted(span for span in spans if span.end > span.start)


class _TimeWithoutGaps:
    """Moments on a time line from which gaps, given in order, were cut out."""

    def __init__(self, gaps: list[_Span]) -> None:
        """Cut these gaps, which are in order, out of a time line."""
        self._gaps = gaps
        self._starts = [gap.start for gap in gaps]
        # By the number of a gap: the length of all gaps before it.
        self._cut_before = [0.0]
        for gap in gaps:
            length = gap.end - gap.start
            self._cut_before.append(self._cut_before[-1] + length)

    def moment(self, at: float) -> float:
        """A moment of the whole time line; inside a gap, the moment at which the gap began."""
        count = bisect_right(self._starts, at)  # of the gaps that begin before
        if count:
            last = self._gaps[count - 1]
            if at < last.end:
                return last.start - self._cut_before[count - 1]
        return at - self._cut_before[count]


def _cut_out(gaps: list[_Span], events: list[Any]) -> None:
    """Move the events in time, in place, as if the gaps were not there."""
    time_line = _TimeWithoutGaps(gaps)
    for event in events:
        times = event.time_range
        times.start = time_line.moment(times.start)
        times.end = time_line.moment(times.end)


def _is_operator(event: Any) -> bool:
    """True for an operator of the host, "aten::add", but not for a node of autograd."""
    return "::" in event.name and "autograd::" not in event.name


def events_as_on_gpu(events: list[Any], use_device: str | None, with_host: bool) -> list[Any]:
    """The events as they would be if the device had done its work.

    Changes their times and memory. Without `with_host`, only those with work on the device are
    returned; without `use_device` none gets time of the device.
    """
    trees: dict[int, _EventTree] = {}
    for event in sorted(events, key=_outer_first):
        tree = trees.setdefault(event.thread, _EventTree())
        tree.add(event)
    kept: list[Any] = []
    for tree in trees.values():
        totals = tree.attribute_work()
        _cut_out(tree.own_spans(), tree.kept)
        kept += tree.kept
        if use_device is not None:
            for event in tree.kept:
                _show_device_time(event, totals.get(id(event), 0.0))
    kept.sort(key=_outer_first)
    return [event for event in kept if with_host or event.kernels]


def _show_device_time(event: Any, microseconds: float) -> None:
    """Give an event time on the device, in the form that torch has for its timing by events."""
    event.is_legacy = True
    if microseconds:
        event.append_kernel(event.name, 0, microseconds)


def _outer_first(event: Any) -> tuple[float, float]:
    """The key that sorts events by their start, the longer one first."""
    return event.time_range.start, -event.time_range.end
