"""Looks where other threads are."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def frame_of_thread(number: int) -> FrameType | None:
    """The frame that a thread executes, by the thread's number; None where there is no such thread.

    No garbage is collected meanwhile. Python 3.11 and some later releases hold a lock while they
    make the frames, and a collection that frees a `threading.local` would wait for it for ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(number)
    finally:
        if was_enabled:
            gc.enable()
