"""A clock for student code that advances only when work is done."""

from __future__ import annotations

import contextlib
import math
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any, Final

# Taken before any student code is loaded: a submission that replaces them afterwards changes nothing here.
_WALL: Final = ("perf_counter", "monotonic", "time")
_PROCESSOR: Final = ("process_time", "thread_time")
_REAL: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(time, name) for base in (*_WALL, *_PROCESSOR) for name in (base, f"{base}_ns") if hasattr(time, name)
}
_sleep: Final = time.sleep
FRACTION: Final = 1 << 30  # of a second: about a nanosecond
TICK: Final = 100  # nanoseconds that reading a clock takes, so that a loop that waits for one ends


class Skipping:
    """A clock that is moved on by what happens: work that takes 20 ms takes none of ours."""

    really: Final = False

    def __init__(self) -> None:
        self.passed = 0  # nanoseconds since it was made
        self.late = 0.0
        self.read: set[str] = set()  # which clocks were read
        self._began: dict[str, Any] = {}

    def now(self) -> float:
        return self.passed / 1e9

    def work(self, seconds: float) -> None:
        self.passed += max(0, round(seconds * 1e9))

    def until(self, moment: float) -> None:
        self.passed = max(self.passed, math.ceil(moment * 1e9))

    def was_read(self) -> bool:
        """Whether any clock was read that this one can advance."""
        return any(not name.startswith(_PROCESSOR) for name in self.read)

    def poll(self) -> None:
        """Someone asks whether the device is done yet, and will ask again."""
        self.work(50e-6)

    def shown(self, name: str) -> Any:
        """What one of Python's clocks says."""
        self.read.add(name)
        if name.startswith(_PROCESSOR):  # does not run while the host waits
            return _REAL[name]()
        self.passed += TICK
        if name.endswith("_ns"):
            return self._began.setdefault(name, _REAL[name]() - self.passed) + self.passed
        # Whole seconds and a binary fraction add up exactly, so that differences do not depend on the time of day.
        seconds = round(self.passed * FRACTION / 1e9) / FRACTION
        return self._began.setdefault(name, float(math.ceil(_REAL[name]() - seconds))) + seconds


class Sleeping:
    """The real clock; `late` is how long the host overslept in all, which is not the student's fault."""

    really: Final = True

    def __init__(self) -> None:
        self.late = 0.0
        self.read: set[str] = set()

    def now(self) -> float:
        return float(_REAL["perf_counter"]())

    def work(self, seconds: float) -> None:
        _sleep(seconds)

    def until(self, moment: float) -> None:
        left = moment - self.now()
        if left > 0:
            _sleep(left)
            self.late += self.now() - moment

    def poll(self) -> None:
        pass


Clock = Skipping | Sleeping


_now: Skipping | None = None  # what student code lives by


def _clock_named(name: str) -> Callable[[], Any]:
    real = _REAL[name]

    def clock() -> Any:
        return real() if _now is None else _now.shown(name)

    clock.__name__ = clock.__qualname__ = name
    clock.__doc__ = real.__doc__
    return clock


def _slept(seconds: float) -> None:
    (_sleep if _now is None else _now.work)(seconds)


_CLOCKS: Final = {name: _clock_named(name) for name in _REAL}


@contextlib.contextmanager
def replaceable() -> Iterator[None]:
    """While a file is loaded: `from time import perf_counter` at its top gets a clock that a probe can move on."""
    ours = {"sleep": _slept, **_CLOCKS}
    timers = [f for f in (timeit.Timer.__init__, timeit.timeit, timeit.repeat) if f.__defaults__]
    defaults = [function.__defaults__ for function in timers]  # timeit keeps its clock there too
    before = {name: getattr(time, name) for name in ours}
    default_timer = timeit.default_timer
    vars(time).update(ours)
    timeit.default_timer = _CLOCKS["perf_counter"]
    for function, values in zip(timers, defaults, strict=True):
        function.__defaults__ = tuple(timeit.default_timer if v is _REAL["perf_counter"] else v for v in values or ())
    try:
        yield
    finally:
        vars(time).update(before)  # whatever student code put there meanwhile
        timeit.default_timer = default_timer
        for function, values in zip(timers, defaults, strict=True):
            function.__defaults__ = values


@contextlib.contextmanager
def running(clock: Clock) -> Iterator[None]:
    """For the length of a `with` block student code lives by this clock."""
    if isinstance(clock, Sleeping):
        yield
        return
    global _now
    with replaceable():
        before, _now = _now, clock
        try:
            yield
        finally:
            _now = before
