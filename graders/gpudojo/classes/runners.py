"""Tasks of a class, a runner that runs them, and progress that is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpudojo.classes.records import Record
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.model.results import SubmissionStatus
from gpudojo.sandbox.fork_client import ChildPipes
from gpudojo.sandbox.layers import Layers
from gpudojo.sandbox.protocol import RunOptions
from gpudojo.submissions.entries import IgnoredPath


@dataclass(eq=False)
class GradingTask:
    """A submission to run. `done` is called with its record."""

    name: str
    run: SubmissionRun
    done: Callable[[Record], None]
    began: float  # by `time.monotonic`
    # While it runs on this machine:
    pipes: ChildPipes | None = None
    # Of all children that have run it:
    peak_bytes: int = 0
    device_bytes: int = 0
    cpu_seconds: float = 0.0


class Progress(Protocol):
    """Is told how grading goes: the terminal, or a test."""

    def report_submissions(self, count: int, known: int, ignored: Sequence[IgnoredPath]) -> None:
        """Is called when `count` submissions were found, of which `known` need not run."""

    def report_preparation(self, what: str) -> None:
        """Is called when something takes a while before submissions run."""

    def report_isolation(self, layers: dict[str, str]) -> None:
        """Is called when it is known which layers of isolation hold. Grading begins now."""

    def report_running(self, tasks: Sequence[GradingTask]) -> None:
        """Is called with the tasks that run at the moment."""

    def report_verdict(self, submission: str, status: SubmissionStatus, ran: bool) -> None:
        """Is called when one more submission has a verdict. `ran` tells if it was run for that."""


class Runner(Protocol):
    """Runs tasks, on this machine or elsewhere.

    It calls each task's `done` once, in the thread that called `run`.
    """

    def start(self, options: RunOptions, progress: Progress) -> Layers:
        """Get ready.

        Returns the isolation, or nothing where it is known only after a submission has run.
        """
        ...

    def run(self, tasks: Iterator[GradingTask]) -> None:
        """Run all tasks. The next one is taken only when there is room for it."""
        ...

    def close(self) -> None:
        """End what `start` has started. It may be called twice."""
