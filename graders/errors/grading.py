"""What can keep a class from being graded, here or on a cluster?"""

from __future__ import annotations

from graders.errors.base import DojoError, Refusal


class BadClass(Refusal):
    """A class cannot be graded as it was asked for."""


class NoNursery(DojoError):
    """The process that starts the submissions' processes does not run."""

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why, said)
        self.why = why
        self.said = said

    def __str__(self) -> str:
        last = self.said.splitlines()[-1] if self.said else ""
        return f"the process that runs submissions did not start: {self.why}" + (f" ({last})" if last else "")


class NoCluster(DojoError):
    """A cluster cannot be reached, or cannot go on."""

    def __init__(self, address: str, why: str, kept: bool = False) -> None:
        super().__init__(address, why, kept)
        self.address = address
        self.why = why
        self.kept = kept  # something may have been graded before it happened

    def __str__(self) -> str:
        more = "; what has been graded is kept, and the same command goes on" if self.kept else ""
        return f"the scheduler at {self.address} {self.why}{more}"


class BadWorker(DojoError):
    """A worker of a cluster is not one that may grade."""

    def __init__(self, worker: str, why: str) -> None:
        super().__init__(worker, why)
        self.worker = worker
        self.why = why

    def __str__(self) -> str:
        return f"the worker {self.worker} cannot be used: {self.why}"


class BadParcel(Refusal, ValueError):
    """What arrived over a cluster is not what was sent."""
