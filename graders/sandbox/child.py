"""What happens in a child? It steps behind the fences, and sends evidence of each function of the submission.

Here student code runs. Nothing this process says is taken for more than evidence.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graders.sandbox import integrity
from graders.sandbox.looking import grade
from graders.sandbox.protocol import MESSAGE, Fenced, Finished, Frame, Glimpse, Job, Paused, Stumbled, decode_job
from graders.sandbox.voice import spoken
from graders.sandbox.warming import warm_up

if TYPE_CHECKING:
    from graders.sandbox.confinement import Fences

__all__ = ["prepare", "run"]

_changed: integrity.Changed | None = None


def prepare(for_gpu: bool = False) -> None:
    """In the nursery: what is slow the first time, and what the grader's code looks like before anybody has run."""
    global _changed
    warm_up(for_gpu)
    _changed = integrity.watch()


def run(number: int, job_end: int, evidence_end: int, output_end: int, fences: Fences) -> None:
    """Everything a child does. An exception of our own ends up in its output, and the grader sees that it crashed."""
    deque(_steps(number, job_end, evidence_end, output_end, fences), maxlen=0)


def _steps(number: int, job_end: int, evidence_end: int, output_end: int, fences: Fences) -> Iterator[None]:
    """Step behind the fences. This frame is gone, with all it knows, before a line of student code is read."""
    with os.fdopen(job_end, "rb") as file:
        file.seek(0)
        job = decode_job(file.read())
    evidence_end = _alone_with(evidence_end, output_end, fences.descriptors())
    layers = fences.confine(number, job.memory, job.scratch, _total(job), job.files, job.on_gpu)
    tempfile.tempdir = None  # the nursery has looked for one already, where this process may not write
    os.register_at_fork(after_in_child=_closing(evidence_end))
    changed = globals().pop("_changed") or integrity.watch()
    frames = _all(msgspec.structs.replace(job, token=b""), layers, Path(os.getcwd()))
    return spoken(frames, evidence_end, job.token, changed)


def _all(job: Job, layers: dict[str, str], home: Path) -> Iterator[Frame | Glimpse]:
    try:
        if job.on_gpu:
            from graders.bench.real import owning

            owning.take(job.gpu_memory)
        yield Fenced(layers)
        paused = yield from grade(job, home)
    except Exception as error:  # what the student's code raises is evidence by now: this is ours, or was provoked
        yield Stumbled(f"{type(error).__name__}: {error}"[:MESSAGE])
        traceback.print_exc()
        return
    yield Paused() if paused else Finished()


def _closing(end: int) -> Callable[[], None]:
    """Closes it once: in a copy's copy the number may be that of something else."""
    left = [end]

    def close() -> None:
        while left:
            os.close(left.pop())

    return close


def _total(job: Job) -> float:
    return job.seconds * 6


def _speak_at_once() -> None:
    """Line by line: a process that ends in a hurry does not write what it still has in a buffer."""
    sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115


def _alone_with(evidence_end: int, output_end: int, needed: list[int]) -> int:
    """No descriptor but the ends of two pipes, and what the fences need and close themselves."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(output_end, 1)
    os.dup2(output_end, 2)
    kept = random.SystemRandom().randrange(100, 200)
    while kept in needed:
        kept += 1
    os.dup2(evidence_end, kept, inheritable=False)
    last = 3
    for descriptor in sorted({*needed, kept}):
        os.closerange(last, descriptor)
        last = descriptor + 1
    os.closerange(last, 4096)
    _speak_at_once()
    return kept
