"""Does a process wait for something that will never come? On a busy machine a slow one looks the same to a clock.

So the process looks at itself: a thread of its own wakes up every few milliseconds and looks where the main thread is.
On a busy machine that thread is held up as much as all others, so what counts is how often it has looked, and not
how much time has passed. It needs nothing of the system, which may tell a fenced process little.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

PAUSE: Final = 0.01
LOOKS: Final = 50  # so many times at the same place, and no work done there
ENDLESS: Final = 30.0  # seconds of processor time, which is none that a busy machine adds

_sleep, _processor_time = time.sleep, time.process_time  # a student's file may have others


def _own_time(thread: int) -> tuple[Callable[[], float], float]:
    """The processor time of one thread, or else of all, and how much of it is more than waiting takes."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock, read = time.pthread_getcpuclockid(thread), time.clock_gettime
        return lambda: read(clock), 0.001
    return _processor_time, 0.2  # others look around now and then: gloo's threads, and ours


def watched(tell: Callable[[dict[str, Any]], None]) -> None:
    """From now on `tell` is given {"still": True} whenever this thread has stood still for a while, again and again.

    After too much work in all it is given {"endless": True}, once.
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
