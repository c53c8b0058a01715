"""Do some processes wait for something that will never come? On a busy machine a slow one looks the same to a clock.

So we look at what they do: a thread that waits for the processor is ready to run, one that waits for another process
sleeps. Only where the system does not tell, the clock has to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

STILL: Final = 1.0  # seconds in which no process went on
UNTOLD: Final = 20.0  # the same, where only the clock can tell
ENDLESS: Final = 30.0  # seconds of processor time, which is none that a busy machine adds
_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Thread(NamedTuple):
    process: int
    number: int  # the main thread has its process's
    asleep: bool
    used: float  # seconds of processor time


class Stillness:
    """Whether all of these processes have stood still since `begin`."""

    def __init__(self, processes: Sequence[int], folder: Path = Path("/proc")) -> None:
        self.processes, self.folder = processes, folder
        self.used = 0.0
        self.begin()

    def begin(self) -> None:
        self.since = time.monotonic()
        self.main: list[Thread] = []
        self.slept: set[tuple[int, int]] = set()

    def is_reached(self) -> bool:
        """To be asked again and again; any step seen begins it anew.

        The main threads must sleep all the time. The others, such as gloo's, wake up now and then to look around; but
        one that has something to deliver and waits for the processor to do so is not seen asleep before it has.
        """
        try:
            threads = [thread for process in self.processes for thread in _threads(self.folder, process)]
        except (OSError, ValueError, IndexError):
            return time.monotonic() - self.since > UNTOLD
        self.used = sum(thread.used for thread in threads)
        main = [thread for thread in threads if thread.number == thread.process]
        if main != self.main or not all(thread.asleep for thread in main):
            self.begin()
            self.main = main
        self.slept |= {(thread.process, thread.number) for thread in threads if thread.asleep}
        awake = {(thread.process, thread.number) for thread in threads} - self.slept
        return not awake and time.monotonic() - self.since > STILL

    def is_endless(self) -> bool:
        """Whether they have worked for so long that they will not come to an end."""
        return self.used > ENDLESS


def _threads(folder: Path, process: int) -> Iterator[Thread]:
    for path in (folder / str(process) / "task").iterdir():
        # The name in brackets may hold spaces and brackets of its own; the state is the first field after it.
        state, *fields = (path / "stat").read_text().rpartition(")")[2].split()
        yield Thread(process, int(path.name), state not in "RD", (int(fields[10]) + int(fields[11])) / _TICKS)
