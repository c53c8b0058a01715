"""Options of a run, and its seeds."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.classes.fingerprints import fingerprint_of_observing
from gpudojo.classes.records import FunctionRecord, Record
from gpudojo.grading.shipped_evidence import (
    PUBLIC_SEEDS,
    SHIPPED_SUFFIX,
    ShippedEvidence,
    encode_shipped_evidence,
    read_shipped_evidence,
)
from gpudojo.grading.shipped_evidence import SHIPPED_FOLDER as SHIPPED
from gpudojo.model.catalogue import torch_version
from gpudojo.model.errors import BadClass, suggest_name
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import AttemptRule
from gpudojo.sandbox.layers import examine_layers
from gpudojo.sandbox.protocol import RunOptions

BITS_OF_SEED: Final = 31  # accepted by every generator


def seeds_of_probes(secret: str, exercises: Iterable[Exercise]) -> dict[str, int]:
    """A seed for each "exercise::function::probe", drawn from the secret."""
    return {key: derive_number(secret, key) for key in _probe_keys(exercises)}


def _probe_keys(exercises: Iterable[Exercise]) -> list[str]:
    """The "exercise::function::probe" of every probe."""
    keys = []
    for exercise in exercises:
        for function in exercise.functions:
            for probe in function.probes:
                keys.append(f"{exercise.stem}::{function.name}::{probe.name}")
    return keys


def derive_number(secret: str, key: str) -> int:
    """A number that depends on both, from which the secret cannot be found."""
    digest = hmac.digest(secret.encode(), key.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") % (1 << BITS_OF_SEED)


def name_of_secret(secret: str) -> str:
    """A name that tells secrets apart and does not reveal them."""
    return hashlib.sha256(f"gpudojo seed {secret}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ChosenRecording:
    """Recorded evidence of a day's references, and the one of its seeds that is used."""

    shipped: ShippedEvidence
    seed: int

    @property
    def is_public(self) -> bool:
        """True if students have the scenarios of this seed, too."""
        return self.seed in PUBLIC_SEEDS

    def seed_for(self, digest: str) -> int:
        """The seed of a submission with that digest.

        Where the seed that was chosen is secret, it is the secret one that follows from the digest.
        Public ones are no secret: then it is the one that was chosen for everybody.
        """
        if self.is_public:
            return self.seed
        seeds = [seed for seed in self.shipped.seeds if seed not in PUBLIC_SEEDS]
        return seeds[derive_number(str(seeds), digest) % len(seeds)]

    @property
    def name(self) -> str:
        """Tells it apart from other evidence."""
        digest = hashlib.sha256(encode_shipped_evidence(self.shipped)).hexdigest()
        return f"evidence {self.seed} {digest[:16]}"

    def make_record(self, exercises: Sequence[Exercise], bench: str) -> Record:
        """The record that the references would have if they had been run here.

        Functions without evidence are left out. The layers of isolation are found out by trying
        them in another process. Raises NoSuchSeed, NotRecorded for a device, BadEvidence for
        evidence that cannot be read, and OSError where that process cannot be started.
        """
        asked = [
            f"{each.stem}::{function.name}" for each in exercises for function in each.functions
        ]
        record = Record("reference", layers=examine_layers(), asked=sorted(asked))
        for exercise in exercises:
            for function in exercise.functions:
                name = (exercise.stem, function.name)
                if not self.shipped.has_function(*name):
                    continue  # `judging.require_usable_reference` says which one is missing
                function_record = FunctionRecord(
                    self.shipped.evidence_of(*name, bench, self.seed),
                    0.0,
                    self.shipped.signature_of(*name),
                    timelines=self.shipped.timelines_of(*name),
                )
                record.add_function("::".join(name), function_record)
        return record


def read_recorded_reference(day: str, bench: str, folder: Path | None = None) -> ChosenRecording:
    """Read the evidence in a folder, or in this installation, and choose its last seed.

    Raises BadClass where there is none, NotRecorded where it is not of this device, and BadEvidence
    where it cannot be read.
    """
    shipped = read_shipped_evidence(day, folder or SHIPPED)
    if shipped is None:
        where = "in this installation of gpudojo"
        if folder:
            where = f"in {folder} ({day}{SHIPPED_SUFFIX})"
        raise BadClass(
            f"there are no reference solutions, and no recorded evidence of them {where}"
        )
    # Not the first, which students use themselves: a solution for these numbers alone fails with
    # others.
    seed = shipped.seeds[-1]
    shipped.refuse_unknown(bench, seed)
    return ChosenRecording(shipped, seed)


@dataclass(frozen=True, kw_only=True)
class GradingOptions:
    """The options of one run."""

    submissions: Sequence[Path]
    out: Path
    # A folder of solutions; None: recorded evidence is used, which has its own seed.
    reference: Path | None = None
    day: str = "day8"
    bench: str = "virtual"
    secret: str | None = None
    jobs: int = 1
    seconds: float = 10.0  # for each function
    memory: int = 2 << 30  # bytes
    gpu_memory: int = 2 << 30  # bytes of a real GPU
    # What --only names. In a run these are the functions that are graded and count; empty: all.
    only: frozenset[str] = frozenset()
    # Known in a run: the functions that --only names now, and those that count because it named
    # them in this run or an earlier one. Without the latter, the course says which count.
    named: frozenset[str] = frozenset()
    chosen: frozenset[str] = frozenset()
    rejudge: bool = False
    fresh: bool = False
    require_isolation: bool = False
    evidence: Path | None = None  # the folder of recorded evidence; None: this installation's
    # The one folder given is one submission, whatever is in it, and the grader keeps nothing.
    alone: bool = False
    # Finds the folder of a day's solutions, where `reference` is None.
    find_reference: Callable[[str], Path] | None = None
    course: Path | None = None  # None: the course file beside the submissions, if there is one
    roster: Path | None = None
    attempt: AttemptRule | None = None
    # Options that the user gave: others are as in the last run. None: all.
    asked: frozenset[str] | None = None

    @staticmethod
    def functions_meant_by(only: Iterable[str], exercises: Sequence[Exercise]) -> frozenset[str]:
        """The functions that are meant by names: their own, or an exercise's (`04_…`, `04`, `4`).

        A name that means nothing stays: `graded_functions` refuses it.
        """
        functions: set[str] = set()
        for name in only:
            stem = name.removesuffix(".py")
            if name.isdecimal():
                stem = name.rjust(2, "0")
            matching = [each for each in exercises if stem in (each.stem, each.number)]
            if not matching:
                functions.add(name)
            for exercise in matching:
                functions.update(function.name for function in exercise.functions)
        return frozenset(functions)

    def graded_functions(self, exercises: Sequence[Exercise]) -> list[tuple[Exercise, Function]]:
        """The functions that are graded, each with its exercise.

        Raises BadClass for an unknown name.
        """
        graded = []
        names = set()
        for exercise in exercises:
            for function in exercise.functions:
                names.add(function.name)
                if not self.only or function.name in self.only:
                    graded.append((exercise, function))
        unknown = sorted((self.only | self.named) - names)
        if unknown:
            stems = [each.stem for each in exercises]
            hint = suggest_name(unknown[0], [*names, *stems], "")
            if not hint:
                hint = f"; the exercises are {', '.join(stems)}"
            raise BadClass(f"{self.day} has no function or exercise {unknown[0]}{hint}")
        return graded

    def run_options(
        self, exercises: Sequence[Exercise], secret: str, recorded: ChosenRecording | None
    ) -> RunOptions:
        """What every submission is run with. Raises BadClass for an unknown name.

        Its seeds come from the secret, or are the seed of the recorded evidence.
        """
        if recorded is None:
            seeds = seeds_of_probes(secret, exercises)
        else:
            seeds = dict.fromkeys(_probe_keys(exercises), recorded.seed)
        keys = set()
        for exercise, function in self.graded_functions(exercises):
            keys.add(f"{exercise.stem}::{function.name}")
        return RunOptions(
            day=self.day,
            bench=self.bench,
            seeds=seeds,
            known=frozenset(keys),
            seconds=self.seconds,
            memory=self.memory,
            only=self.only,
            gpu_memory=self.gpu_memory,
        )

    def conditions_of_record(
        self, secret: str, recorded: ChosenRecording | None
    ) -> tuple[str, ...]:
        """What a record depends on beside the submission itself; part of its key.

        A record says itself which functions it was run for, and may grow by others.
        Raises OSError if sources of ours or of the day cannot be read.
        """
        limits = f"{self.seconds:g} {self.memory}"
        if self.bench == "cuda":
            limits += f" {self.gpu_memory}"
        if recorded:
            seeds = recorded.name
        else:
            seeds = name_of_secret(secret)
        code = fingerprint_of_observing(self.day, torch_version())
        return (self.day, self.bench, seeds, code, limits)
