"""Runs submissions on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Final

from gpudojo.classes.child_scheduler import ChildScheduler
from gpudojo.classes.runners import GradingTask, Progress
from gpudojo.model.errors import BadClass
from gpudojo.sandbox.fork_client import ForkClient
from gpudojo.sandbox.layers import Layers
from gpudojo.sandbox.protocol import RunOptions
from gpudojo.sandbox.real_gpus import CUDA_DEVICE_BYTES, device_files, room_for

VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"  # the variable that hides GPUs from programs


class LocalRunner:
    """Runs tasks on this machine: one fork server, and up to `jobs` children at once."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._client: ForkClient | None = None
        self._watch: Callable[[list[GradingTask]], None] = lambda under_way: None

    def start_early(self, bench: str) -> None:
        """Start the fork server and do not wait for it: to import torch takes seconds.

        Raises BadClass where this machine lacks the device, and OSError where it cannot be started.
        """
        self._client = fork_client_for(bench)
        self._client.start()

    def start(self, options: RunOptions, progress: Progress) -> Layers:
        """Start the fork server, if that is still to do, and wait until it is ready.

        With a real GPU, fewer jobs may fit from now on. Returns no layers: the first child tells
        them. Raises BadClass where this machine lacks the device, ForkServerFailed where it ends
        or is not ready in time, and OSError where it cannot be started.
        """
        progress.report_preparation("starting the process that runs submissions")
        self._watch = progress.report_running
        self.jobs = jobs_that_fit(options, self.jobs)
        if self._client is None:
            self._client = fork_client_for(options.bench)
        self._client.start_and_wait()
        return {}

    def run(self, tasks: Iterator[GradingTask]) -> None:
        """Run all tasks.

        Raises ForkServerFailed where they cannot be run, and what their ends raise.
        """
        assert self._client is not None
        ChildScheduler(self._client, self.jobs, self._watch).run(tasks)

    def close(self) -> None:
        """End the fork server. It may be called twice."""
        if self._client is not None:
            self._client.close()
            self._client = None


def jobs_that_fit(options: RunOptions, jobs: int) -> int:
    """How many submissions may run at once.

    These are `jobs`, and with a real GPU no more than its memory has room for, but at least one.
    """
    if options.bench != "cuda":
        return jobs
    room = room_for(options.gpu_memory + CUDA_DEVICE_BYTES)
    if room is None:
        return jobs
    return min(jobs, max(1, room))


def fork_client_for(bench: str) -> ForkClient:
    """The client for a device, not started yet. Raises BadClass where this machine lacks it."""
    if bench == "cuda" and not device_files():
        raise BadClass(
            "--bench cuda needs an NVIDIA GPU, and this machine has none; "
            "--bench virtual needs none"
        )
    if bench == "cuda" and os.environ.get(VISIBLE_GPUS) in ("", "-1"):
        raise BadClass(
            "--bench cuda needs an NVIDIA GPU, and this machine has none that "
            f"{VISIBLE_GPUS} lets programs see"
        )
    if bench == "mps" and sys.platform != "darwin":
        raise BadClass("--bench mps needs a Mac; --bench virtual is a CUDA device on any machine")
    return ForkClient(gpu=bench == "cuda")
