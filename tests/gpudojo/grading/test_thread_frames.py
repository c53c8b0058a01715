"""A look at another thread never waits for itself."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from gpudojo.grading.thread_frames import frame_of_thread

# The look makes an object, which begins to collect what belongs to a thread.
GARBAGE_MEANWHILE = """
import gc, threading
from gpudojo.grading.thread_frames import frame_of_thread

class Held:
    def __init__(self):
        self.me = self
        self.own = threading.local()

gc.set_threshold(1)
for _ in range(100):
    gc.disable()
    for _ in range(10):
        Held()
    gc.enable()
    assert frame_of_thread(threading.main_thread().ident) is not None
"""


def test_garbage_of_threads_stops_no_look() -> None:
    command = [sys.executable, "-c", GARBAGE_MEANWHILE]
    subprocess.run(command, check=True, timeout=120)


def test_collecting_garbage_is_as_it_was() -> None:
    number = threading.get_ident()
    for switch in (gc.disable, gc.enable):
        switch()
        before = gc.isenabled()
        assert frame_of_thread(number) is not None
        assert gc.isenabled() == before
    assert frame_of_thread(-1) is None
