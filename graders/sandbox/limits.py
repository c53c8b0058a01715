"""How much may a child take? The kernel's limits, and who goes first when the machine has no memory left."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from typing import Final

from graders.sandbox.gpu import HOST_AROUND

PROCESSES_AT_MOST: Final = 64


def limit(memory: int, scratch: int, seconds: float, alone: bool, gpu: bool = False) -> None:
    """What the child may take in all; memory comes on top of what torch holds already.

    `alone` is said of a child whose user has no other processes: the kernel counts those of a user. On a GPU, CUDA
    reserves addresses by the gigabyte, which cost nothing: there what can be written to is counted instead.
    """
    processes = PROCESSES_AT_MOST + (0 if alone else _running())
    processor = int(seconds) + 5
    size, data = _sizes()
    for kind, most in (
        (resource.RLIMIT_DATA, data + HOST_AROUND + memory) if gpu else (resource.RLIMIT_AS, size + memory),
        (resource.RLIMIT_CPU, processor),
        (resource.RLIMIT_FSIZE, scratch),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bounded, bounded))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write that is too long then is an OSError


def _running() -> int:
    """How many threads this user has already: the limit counts them, too."""
    own, found = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == own:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _sizes() -> tuple[int, int]:
    """The bytes of this process's addresses, and of those that it alone can write to."""
    try:
        with open("/proc/self/statm") as file:
            pages = [int(word) for word in file.read().split()]
            return pages[0] * resource.getpagesize(), pages[5] * resource.getpagesize()
    except OSError:
        return 8 << 30, 8 << 30


def first_to_go() -> None:
    """When memory runs out on the machine, a submission goes before anything else."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
