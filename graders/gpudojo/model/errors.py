"""Errors that gpudojo raises. An error carries data; its text is made last."""

from __future__ import annotations

from virtual_cuda.errors import VirtualCudaError

# The base class of every error that gpudojo or its device raises on purpose, so that one `except` reports both.
DojoError = VirtualCudaError


class Refusal(DojoError):
    """An error whose text is complete where it is raised."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


class CannotBegin(Refusal):
    """A skeleton of an exercise or a day cannot be made here."""


class BadName(CannotBegin, ValueError):
    """A day, an exercise or a function is to have a name that it cannot have."""

    def __init__(self, what: str, name: str, rule: str) -> None:
        super().__init__(rule)
        self.args = (what, name, rule)
        self.what = what
        self.name = name
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.name!r} cannot be the name of {self.what}: {self.rule}"


class NameTaken(CannotBegin):
    """What is to be made is there already, or something else goes by its name."""

    def __init__(self, name: str, by: str) -> None:
        super().__init__(by)
        self.args = (name, by)
        self.name = name
        self.by = by

    def __str__(self) -> str:
        return f"{self.name} already exists: {self.by}"


class BadClass(Refusal):
    """A class cannot be graded as it was asked for."""


class ForkServerFailed(DojoError):
    """The process that starts the submissions' processes did not start, or keeps ending."""

    def __init__(self, why: str, log: str = "") -> None:
        super().__init__(why, log)
        self.why = why
        self.log = log

    def __str__(self) -> str:
        last = self.log.splitlines()[-1] if self.log else ""
        return f"the process that runs submissions did not start: {self.why}" + (f" ({last})" if last else "")


class NoCluster(DojoError):
    """A cluster cannot be reached, or has been lost."""

    def __init__(self, address: str, why: str, kept: bool = False) -> None:
        super().__init__(address, why, kept)
        self.address = address
        self.why = why
        self.kept = kept  # something may have been graded before it happened

    def __str__(self) -> str:
        more = "; what has been graded is kept: run the same command again to resume" if self.kept else ""
        return f"the scheduler at {self.address} {self.why}{more}"


class BadWorker(DojoError):
    """A worker of a cluster may not grade."""

    def __init__(self, worker: str, why: str) -> None:
        super().__init__(worker, why)
        self.worker = worker
        self.why = why

    def __str__(self) -> str:
        return f"the worker {self.worker} cannot be used: {self.why}"


class BadMessage(Refusal, ValueError):
    """What arrived over a cluster is not what was sent."""


class BadEvidence(DojoError, ValueError):
    """What arrived as evidence is not evidence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"this is not evidence: {self.reason}"


class NoReference(DojoError, FileNotFoundError):
    """There is nothing to judge a file against."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no reference solution for {self.name} was found in a `reference` folder above it"


class NoSuchSeed(DojoError, ValueError):
    """A release has the reference's evidence for some seeds, and another one is asked for."""

    def __init__(self, seed: int, seeds: tuple[int, ...]) -> None:
        super().__init__(seed, seeds)
        self.seed = seed
        self.seeds = seeds

    def __str__(self) -> str:
        *most, last = map(str, self.seeds)
        there = f"{', '.join(most)} and {last}" if most else last
        return f"what the reference does is recorded here for the seeds {there}, not for {self.seed}"


class NotRecorded(DojoError):
    """A release has the reference's evidence for some benches, and another one is asked for."""

    def __init__(self, bench: str) -> None:
        super().__init__(bench)
        self.bench = bench

    def __str__(self) -> str:
        there = "what the reference does is recorded here for CUDA and for the plain CPU"
        return f"{there}, not for {self.bench!r}; take the bench virtual or cpu"


class ReferenceFails(DojoError):
    """The reference solution does not run in a scenario, or a probe cannot use what it did."""

    def __init__(self, function: str, scenario: str, raised: str, source: str = "") -> None:
        super().__init__(function, scenario, raised, source)
        self.function = function
        self.scenario = scenario
        self.raised = raised
        self.source = source  # file:line of the probe, where that raised

    def __str__(self) -> str:
        where = f" (raised at {self.source})" if self.source else ""
        return f"the reference solution of `{self.function}` does not run in `{self.scenario}`: {self.raised}{where}"


class NotSprites(DojoError, ValueError):
    """Something is to be drawn that has not the shape of sprites."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.shape = shape

    def __str__(self) -> str:
        return f"sprites have the shape (N, 3, H, W), or (N, H, W) in grey; this has {self.shape}"


class BadResults(DojoError, ValueError):
    """A file that should hold the results of a class does not."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} is not a file of results: {self.reason}"


class CannotExport(DojoError, ValueError):
    """Class results cannot be written in a format with what was given."""

    def __init__(self, format_: str, reason: str) -> None:
        super().__init__(format_, reason)
        self.format = format_
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot export to {self.format}: {self.reason}"


class BadDay(DojoError, ImportError):
    """A file of a day cannot be imported: a mistake of its author."""

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        super().__init__(path, line, reason)
        self.file = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}: {self.reason}"


class CannotReport(Refusal):
    """A page that is asked for cannot be made."""


class CannotRelease(Refusal):
    """What students are to get cannot be made, or must not be."""


class BadMarkers(DojoError, ValueError):
    """The solution markers of a reference file do not match, so that a stub would show the solution."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"
