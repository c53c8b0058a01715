"""What is a class judged by where there are no reference solutions? By the evidence of a release, on its own seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from graders.batch.records import Record, Seen
from graders.curriculum.exercise import Exercise
from graders.errors import BadClass
from graders.evidence.shipped import FOLDER, SUFFIX, Shipped, pack, shipped
from graders.sandbox.examining import examine


@dataclass(frozen=True)
class Recorded:
    """A day's evidence, and the one of its seeds that scenarios are drawn from."""

    shipped: Shipped
    seed: int

    @property
    def name(self) -> str:
        """What tells it apart from other evidence."""
        return f"evidence {self.seed} {hashlib.sha256(pack(self.shipped)).hexdigest()[:16]}"

    def seeds(self, exercises: Iterable[Exercise]) -> dict[str, int]:
        """By "exercise::function::probe", as `batch.seeds` has them."""
        return {f"{e.stem}::{f.name}::{p.name}": self.seed for e in exercises for f in e.functions for p in f.probes}

    def record(self, exercises: Iterable[Exercise], bench: str) -> Record:
        """What the references would have left if they had been run here; the layers are those of this machine."""
        seen = {}
        for exercise in exercises:
            for function in exercise.functions:
                if not self.shipped.has(exercise.stem, function.name):
                    continue  # `judging.complete` says which one is missing
                evidence = self.shipped.evidence_of(exercise.stem, function.name, bench, self.seed)
                signature = self.shipped.signature(exercise.stem, function.name)
                timelines = self.shipped.timelines_of(exercise.stem, function.name)
                seen[f"{exercise.stem}::{function.name}"] = Seen(evidence, 0.0, signature, timelines=timelines)
        return Record("reference", seen=seen, layers=examine())


def recorded(day: str, bench: str, folder: Path | None = None) -> Recorded:
    """The evidence in a folder, or in this installation; raises where there is none that will do."""
    found = shipped(day, folder or FOLDER)
    if found is None:
        where = f"in {folder} ({day}{SUFFIX})" if folder else "in this installation of gpudojo"
        raise BadClass(f"there are no reference solutions, and no recorded evidence of them {where}")
    # Not the first, which is what students try by themselves: a solution for these numbers alone shows itself.
    seed = found.seeds[-1]
    found.refuse_unknown(bench, seed)
    return Recorded(found, seed)
