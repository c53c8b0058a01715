"""Lets `time.perf_counter`, `time.sleep` and Python's other clocks tell modelled time."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import timeit
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Final

from virtual_cuda.clock.gpu_models import USUAL_GPU, gpu_named
from virtual_cuda.clock.lanes import Clock
from virtual_cuda.device.state import now
from virtual_cuda.patching import Patch, patch

_WALL_CLOCKS: Final = ("perf_counter", "monotonic", "time")
_PROCESSOR_CLOCKS: Final = ("process_time", "thread_time")  # stand still while the host waits
# What reading a clock takes, in seconds: a loop that waits for a clock comes to an end.
READING: Final = 100e-9
# Of a second, about a nanosecond. Whole seconds and a binary fraction add up exactly, so that
# differences between two readings do not depend on the time of day.
_FRACTION: Final = 1 << 30


class ModelledTime:
    """Time as the host of a modelled GPU has it.

    It passes by what happens, not while Python computes. It belongs to the thread that made it. In
    all others `time` tells and takes real time, so that a thread in the background neither adds to
    this time nor spins.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin the modelled time of this thread, by this clock."""
        self._clock = clock
        self._thread = get_ident()
        self.clocks_read: set[str] = set()  # the names of Python's clocks that were asked
        self.slept = 0.0  # seconds, in `time.sleep`
        self._starts: dict[str, float] = {}  # by the name of a clock, what it said in the beginning

    def now(self) -> float:
        """Modelled seconds since the beginning."""
        return self._clock.advance()

    def sleep(self, seconds: float) -> None:
        """Let modelled time pass in which the processor has nothing to do; nobody waits.

        In any thread but the one that made this clock, wait in real time instead. Raises ValueError
        for a negative time, as `time.sleep` does.
        """
        if get_ident() != self._thread:
            _real_sleep(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.slept += seconds
        self._clock.sleep(seconds)

    def work(self, seconds: float) -> None:
        """Let modelled time pass for work that a program times, in whichever thread it is done."""
        self.slept += seconds
        self._clock.sleep(seconds)

    def read_clock(self, name: str) -> float:
        """What one of Python's clocks says, in seconds; reading takes a little time itself.

        Notes that the clock was read. Other threads get the real clock.
        """
        if get_ident() != self._thread:
            return _REAL_CLOCKS[name]()
        self.clocks_read.add(name)
        return self._reading_of(name)

    def read_clock_ns(self, name: str) -> int:
        """What one of Python's clocks says, in nanoseconds; reading takes a little time itself.

        `name` is that of the clock for seconds. Notes that the clock was read. Other threads get
        the real clock.
        """
        if get_ident() != self._thread:
            return round(_REAL_CLOCKS[name]() * 1e9)
        self.clocks_read.add(f"{name}_ns")
        seconds = self._reading_of(name)
        whole = math.floor(seconds)
        rest = seconds - whole
        return whole * 10**9 + round(rest * 1e9)

    def _reading_of(self, name: str) -> float:
        """What a clock says, in seconds, after the little time that reading it takes.

        That time passes on the modelled clock. The first reading is close to what the real clock
        says, and where a clock began is remembered.
        """
        self._clock.spend(READING)
        seconds = self._clock.now
        if name.startswith(_PROCESSOR_CLOCKS):
            seconds -= self._clock.idle
        exact = round(seconds * _FRACTION) / _FRACTION
        if name not in self._starts:
            start = math.ceil(_REAL_CLOCKS[name]() - exact)
            self._starts[name] = float(start)
        return self._starts[name] + exact

    @property
    def was_read(self) -> bool:
        """True if a clock was read that runs while the host waits, or an event was recorded."""
        walls = [name for name in self.clocks_read if not name.startswith(_PROCESSOR_CLOCKS)]
        return bool(walls or self.recorded_events)

    @property
    def recorded_events(self) -> int:
        """How many events were recorded on streams of the device."""
        self._clock.advance()
        return len(self._clock.events)

    def patches(self) -> Iterator[Patch]:
        """The patches with which `time` and `timeit` tell this time; none is applied yet."""
        for name in _REAL_CLOCKS:
            yield time, name, functools.partial(self.read_clock, name)
            yield time, f"{name}_ns", functools.partial(self.read_clock_ns, name)
        yield time, "sleep", self.sleep
        perf_counter = functools.partial(self.read_clock, "perf_counter")
        yield timeit, "default_timer", perf_counter
        # These hold the clock as the default of an argument.
        yield timeit, "timeit", functools.partial(_timeit, timeit.timeit, perf_counter)
        yield timeit, "repeat", functools.partial(_timeit, timeit.repeat, perf_counter)
        yield timeit, "Timer", _timer_class(perf_counter)


# Taken before any student code is loaded: a submission that replaces them changes nothing here.
_real_sleep: Final = time.sleep
_REAL_CLOCKS: Final[dict[str, Callable[[], float]]] = {
    name: getattr(time, name) for name in (*_WALL_CLOCKS, *_PROCESSOR_CLOCKS) if hasattr(time, name)
}


def _timeit(
    function: Any,
    clock: Callable[[], float],
    stmt: Any = "pass",
    setup: Any = "pass",
    timer: Any = None,
    **options: Any,
) -> Any:
    """Call `timeit.timeit` or `timeit.repeat` with this clock, unless another one is asked for."""
    return function(stmt, setup, clock if timer is None else timer, **options)


def _timer_class(clock: Callable[[], float]) -> type[timeit.Timer]:
    """A `timeit.Timer` with this clock, unless another one is asked for."""

    class Timer(timeit.Timer):
        def __init__(
            self, stmt: Any = "pass", setup: Any = "pass", timer: Any = None, globals: Any = None
        ) -> None:
            super().__init__(stmt, setup, clock if timer is None else timer, globals)

    return Timer


@contextlib.contextmanager
def modelled_time(gpu: str = USUAL_GPU) -> Iterator[ModelledTime]:
    """Let Python's clocks tell modelled time for the length of a `with` block.

    Functions of `time` and `timeit` are replaced meanwhile. Where a virtual device is open, its
    events and waits follow that time, too, on the GPU of this name; without one, only `time.sleep`
    and `ModelledTime.sleep` let time pass. Raises UnknownGpu.
    """
    model = gpu_named(gpu)
    with contextlib.ExitStack() as undo:
        if now.gpu is None:
            clock = Clock([], model)
        else:
            clock = undo.enter_context(now.gpu.modelled_as(model))
        modelled = ModelledTime(clock)
        patch(modelled.patches(), undo)
        yield modelled
