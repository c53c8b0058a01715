"""Options of a run, and its seeds."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.classes.fingerprints import fingerprint_of_observing
from gpudojo.classes.records import FunctionRecord, Record
from gpudojo.grading.references import SHIPPED_FOLDER as SHIPPED
from gpudojo.grading.references import SHIPPED_SUFFIX, ShippedEvidence, encode_shipped, read_shipped
from gpudojo.model.catalogue import torch_version
from gpudojo.model.errors import BadClass, suggest_name
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import AttemptRule, sum_points
from gpudojo.sandbox.layers import examine_layers
from gpudojo.sandbox.protocol import RunOptions

BITS: Final = 31  # accepted by every generator


def seeds(secret: str, exercises: Iterable[Exercise]) -> dict[str, int]:
    """A seed for each "exercise::function::probe"."""
    return {key: number(secret, key) for key in _probes(exercises)}


def _probes(exercises: Iterable[Exercise]) -> list[str]:
    return [
        f"{e.stem}::{f.name}::{p.name}" for e in exercises for f in e.functions for p in f.probes
    ]


def number(secret: str, key: str) -> int:
    """A number from which the secret cannot be found."""
    digest = hmac.digest(secret.encode(), key.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") % (1 << BITS)


def name_of(secret: str) -> str:
    """A name that tells secrets apart and does not reveal them."""
    return hashlib.sha256(f"gpudojo seed {secret}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RecordedReference:
    """Recorded evidence of a day's references, and the one of its seeds that is used."""

    shipped: ShippedEvidence
    seed: int

    @property
    def name(self) -> str:
        """Tells it apart from other evidence."""
        return (
            f"evidence {self.seed} {hashlib.sha256(encode_shipped(self.shipped)).hexdigest()[:16]}"
        )

    def record(self, exercises: Iterable[Exercise], bench: str) -> Record:
        """The record that the references would have if they had been run here."""
        record = Record("reference", layers=examine_layers())
        for exercise in exercises:
            for function in exercise.functions:
                name = (exercise.stem, function.name)
                if not self.shipped.has(*name):
                    continue  # `judging.require_usable_reference` says which one is missing
                seen = FunctionRecord(
                    self.shipped.evidence_of(*name, bench, self.seed),
                    0.0,
                    self.shipped.signature(*name),
                    timelines=self.shipped.timelines_of(*name),
                )
                record.add("::".join(name), seen)
        return record


def recorded(day: str, bench: str, folder: Path | None = None) -> RecordedReference:
    """The evidence in a folder, or in this installation; raises BadClass where there is none to use."""
    found = read_shipped(day, folder or SHIPPED)
    if found is None:
        where = (
            f"in {folder} ({day}{SHIPPED_SUFFIX})" if folder else "in this installation of gpudojo"
        )
        raise BadClass(
            f"there are no reference solutions, and no recorded evidence of them {where}"
        )
    # Not the first, which students use themselves: a solution for these numbers alone fails with others.
    seed = found.seeds[-1]
    found.refuse_unknown(bench, seed)
    return RecordedReference(found, seed)


@dataclass(frozen=True, kw_only=True)
class GradingOptions:
    """The options of one run."""

    submissions: Sequence[Path]
    out: Path
    reference: Path | None = (
        None  # a folder of solutions; None: recorded evidence is used, which has its own seed
    )
    day: str = "day8"
    bench: str = "virtual"
    secret: str | None = None
    jobs: int = 1
    seconds: float = 10.0  # for each function
    memory: int = 2 << 30
    gpu_memory: int = 2 << 30  # of a real GPU
    only: frozenset[str] = (
        frozenset()
    )  # functions, or exercises before a class is graded; empty: all
    rejudge: bool = False
    fresh: bool = False
    require_isolation: bool = False
    evidence: Path | None = None  # the folder of recorded evidence; None: this installation's
    alone: bool = False  # the one folder given is one submission, whatever is in it, and the grader keeps nothing
    references: Path | None = (
        None  # a folder with one of solutions for each day, where `reference` is None
    )
    course: Path | None = None  # None: the course file beside the submissions, if there is one
    roster: Path | None = None
    attempt: AttemptRule | None = None
    asked: frozenset[str] | None = (
        None  # options that the user gave: others are as in the last run. None: all
    )

    @staticmethod
    def chosen(only: Iterable[str], exercises: Sequence[Exercise]) -> frozenset[str]:
        """The functions that are meant: by their own names, or by an exercise's (`04_…`, `04` or `4`)."""
        found: set[str] = set()
        for name in only:
            number = name.rjust(2, "0") if name.isdecimal() else name.removesuffix(".py")
            meant = [
                each for each in exercises if number in (each.stem, each.stem.partition("_")[0])
            ]
            found.update(each.name for exercise in meant for each in exercise.functions)
            found.update([] if meant else [name])
        return frozenset(found)

    def functions(self, exercises: Sequence[Exercise]) -> list[tuple[Exercise, Function]]:
        """The functions that are graded; raises BadClass for an unknown name."""
        every = [(exercise, function) for exercise in exercises for function in exercise.functions]
        names = {function.name for _, function in every}
        unknown = sorted(self.only - names)
        if unknown:
            stems = [each.stem for each in exercises]
            hint = (
                suggest_name(unknown[0], [*names, *stems], "")
                or f"; the exercises are {', '.join(stems)}"
            )
            raise BadClass(f"{self.day} has no function or exercise {unknown[0]}{hint}")
        return [
            (exercise, function)
            for exercise, function in every
            if not self.only or function.name in self.only
        ]

    def worth(self, exercises: Sequence[Exercise]) -> float:
        """The points of these functions."""
        return sum_points(
            check.points for _, function in self.functions(exercises) for check in function.checks
        )

    def run_options(
        self, exercises: Sequence[Exercise], secret: str, recorded: RecordedReference | None
    ) -> RunOptions:
        """What every submission is run with."""
        return RunOptions(
            day=self.day,
            bench=self.bench,
            seeds=dict.fromkeys(_probes(exercises), recorded.seed)
            if recorded
            else seeds(secret, exercises),
            known=frozenset(
                f"{exercise.stem}::{function.name}"
                for exercise, function in self.functions(exercises)
            ),
            seconds=self.seconds,
            memory=self.memory,
            only=self.only,
            gpu_memory=self.gpu_memory,
        )

    def conditions(self, secret: str, recorded: RecordedReference | None) -> tuple[str, ...]:
        """What a record depends on beside the submission itself; part of its key."""
        return (
            self.day,
            self.bench,
            recorded.name if recorded else name_of(secret),
            fingerprint_of_observing(self.day, torch_version()),
            f"{self.seconds:g} {self.memory}"
            + (f" {self.gpu_memory}" if self.bench == "cuda" else ""),
            " ".join(sorted(self.only)),
        )
