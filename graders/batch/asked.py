"""What is asked of a class, and under which conditions is it run? Under the same ones, records are found again."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graders.batch import fingerprints, seeds
from graders.batch.attempt import Terms
from graders.batch.recorded import Recorded
from graders.curriculum.exercise import Exercise, Function
from graders.errors import BadClass
from graders.results import total


@dataclass(frozen=True)
class Asked:
    """What the instructor wants."""

    submissions: Sequence[Path]
    out: Path
    reference: Path | None  # None: they are judged by evidence of a release, which has a seed of its own
    day: str = "day8"
    bench: str = "virtual"
    secret: str | None = None
    jobs: int = 1
    seconds: float = 10.0
    memory: int = 2 << 30
    only: frozenset[str] = frozenset()
    rejudge: bool = False
    fresh: bool = False
    require_isolation: bool = False
    evidence: Path | None = None  # the folder of that evidence; None: this installation's
    alone: bool = False  # the one folder given is one submission, whatever lies in it
    gpu_memory: int = 2 << 30  # of a real GPU, where the bench is one

    def functions(self, exercises: Sequence[Exercise]) -> list[tuple[Exercise, Function]]:
        """Those that are to be graded; a name that no function has is an error."""
        every = [(exercise, function) for exercise in exercises for function in exercise.functions]
        names = {function.name for _, function in every}
        unknown = sorted(self.only - names)
        if unknown:
            near = difflib.get_close_matches(unknown[0], names, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(names))}"
            raise BadClass(f"{self.day} has no function {unknown[0]}{hint}")
        return [(exercise, function) for exercise, function in every if not self.only or function.name in self.only]

    def worth(self, exercises: Sequence[Exercise]) -> float:
        """The points there are for them."""
        return total(check.points for _, function in self.functions(exercises) for check in function.checks)

    def terms(self, exercises: Sequence[Exercise], secret: str, recorded: Recorded | None) -> Terms:
        """What each submission is run with."""
        return Terms(
            self.day,
            self.bench,
            recorded.seeds(exercises) if recorded else seeds.seeds(secret, exercises),
            frozenset(f"{exercise.stem}::{function.name}" for exercise, function in self.functions(exercises)),
            self.seconds,
            self.memory,
            only=self.only,
            gpu_memory=self.gpu_memory,
        )

    def conditions(self, secret: str, recorded: Recorded | None) -> tuple[str, ...]:
        """What a record depends on beside the submission itself: two runs under the same find each other's records."""
        return (
            self.day,
            self.bench,
            recorded.name if recorded else seeds.name_of(secret),
            fingerprints.of_probes(self.day),
            f"{self.seconds:g} {self.memory}" + (f" {self.gpu_memory}" if self.bench == "cuda" else ""),
            " ".join(sorted(self.only)),
        )
