"""Finds out for how long this process stood still, so that submissions do not pay for it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

SHORTEST_LOOK: Final = 0.1  # seconds; also the longest that a caller may sleep between two calls


class StandstillWatch:
    """Measures for how long this process was stopped (Ctrl-Z), or the whole machine stood still.

    Time in which it ran, or waited for a processor, is no such time: submissions can use up the
    processors.
    """

    def __init__(self) -> None:
        self._time = time.monotonic()
        self._threads = _seconds_of_threads()

    def measure_standstill(self) -> float:
        """Seconds of standstill since the last call; what was measured is remembered for the next.

        It has to be called after each time this process has slept for SHORTEST_LOOK or less. A call
        that comes sooner returns 0 and remembers nothing.
        """
        now = time.monotonic()
        elapsed = now - self._time
        if elapsed < SHORTEST_LOOK:
            return 0.0
        threads = _seconds_of_threads()
        active = 0.0
        for name, seconds in threads.items():
            active += seconds - self._threads.get(name, 0.0)
        self._time = now
        self._threads = threads
        # It may have slept before this call, and before calls that were too early to look.
        slept = 2 * SHORTEST_LOOK
        return max(0.0, elapsed - active - slept)


def _seconds_of_threads() -> dict[str, float]:
    """By thread of this process, the seconds that it ran or waited for a processor.

    Where the system does not say so, all threads together, and only the time in which they ran.
    """
    seconds = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/task"):
            # A thread may end meanwhile.
            with contextlib.suppress(OSError, ValueError):
                seconds[name] = _seconds_of_thread(name)
    return seconds or {"all": time.process_time()}


def _seconds_of_thread(name: str) -> float:
    """Seconds that a thread ran or waited. Raises OSError, and ValueError for other contents."""
    with open(f"/proc/self/task/{name}/schedstat", "rb") as file:
        ran, waited, *_ = file.read().split()
    return (int(ran) + int(waited)) / 1e9
