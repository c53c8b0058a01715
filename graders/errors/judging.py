"""What can be missing or wrong where student code is to be judged?"""

from __future__ import annotations

from graders.errors.base import DojoError


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
    """The reference solution itself does not run where a student's is to be compared with it."""

    def __init__(self, scenario: str, raised: str) -> None:
        super().__init__(scenario, raised)
        self.scenario = scenario
        self.raised = raised

    def __str__(self) -> str:
        return f"the reference solution does not run in `{self.scenario}`: {self.raised}"


class NotSprites(DojoError, ValueError):
    """Something is to be drawn that has not the shape of sprites."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.shape = shape

    def __str__(self) -> str:
        return f"sprites have the shape (N, 3, H, W), or (N, H, W) in grey; this has {self.shape}"
