"""Against what is a file judged? The reference solution where this machine has it, or the evidence of a release."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from graders.curriculum.catalogue import DAYS, day, day_of
from graders.curriculum.exercise import Exercise, Function
from graders.errors import BadEvidence, NoReference, ReferenceFails
from graders.evidence import Evidence, Status
from graders.evidence.shipped import Shipped, shipped

if TYPE_CHECKING:
    from graders.bench.ledger.timeline import Timeline
    from graders.probes.loading import Submission


class Reference(Protocol):
    """What a student's evidence is compared with."""

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence: ...

    def signature(self, exercise: Exercise, function: Function) -> str: ...

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """What its calls did when it was recorded; of a reference that runs here, nothing: it can be watched."""
        ...


class Written:
    """A reference solution, run on the same scenarios."""

    def __init__(self, path: Path) -> None:
        from graders.probes.loading import load

        self.path = path
        self.solution: Submission = load(path)

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        from graders.probes.observing import observe

        wanted = observe(exercise, function, self.solution, kind, seed)
        for scenario, each in wanted.observations.items():
            if each.status is not Status.RETURNED:
                why = f"{each.raised.type}: {each.raised.message}" if each.raised else f"it is {each.status}"
                raise ReferenceFails(scenario, why)
        return wanted

    def signature(self, exercise: Exercise, function: Function) -> str:
        try:
            return str(inspect.signature(self.solution.names[function.name]))
        except (KeyError, TypeError, ValueError):
            return "(…)"

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        return []


class Recorded:
    """What a reference solution did when the release was made; it is not here."""

    def __init__(self, recorded: Shipped) -> None:
        self.recorded = recorded

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        from graders.bench.opening import choose

        return self.recorded.evidence_of(exercise.stem, function.name, choose(kind)[0], seed)

    def signature(self, exercise: Exercise, function: Function) -> str:
        return self.recorded.signature(exercise.stem, function.name)

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        try:
            return self.recorded.timelines_of(exercise.stem, function.name)
        except BadEvidence:
            return []  # a picture less is no reason not to judge


def reference_for(path: Path, exercise: Exercise) -> Reference:
    """The reference of one exercise, for a student's file or notebook."""
    try:
        return Written(reference_of(path.with_name(f"{exercise.stem}.py")))
    except NoReference:
        recorded = recorded_of(exercise)
        if recorded is None:
            raise
        return recorded


def refuse_unrecorded(path: Path, exercise: Exercise, kind: str, seed: int) -> None:
    """Raises where a file would be judged by recorded evidence, and there is none for this bench or seed."""
    recorded = _in_place_of_a_file(path, exercise)
    if recorded is not None:
        recorded.refuse_unknown(kind, seed)


def known_seeds(path: Path, exercise: Exercise) -> tuple[int, ...] | None:
    """The seeds a file can be judged on; None: any, or it cannot be judged at all."""
    recorded = _in_place_of_a_file(path, exercise)
    return None if recorded is None else recorded.seeds


def _in_place_of_a_file(path: Path, exercise: Exercise) -> Shipped | None:
    try:
        reference_of(path.with_name(f"{exercise.stem}.py"))
    except NoReference:
        recorded = recorded_of(exercise)
        return None if recorded is None else recorded.recorded
    return None


def recorded_of(exercise: Exercise) -> Recorded | None:
    for name in DAYS:
        if any(each.stem == exercise.stem for each in day(name)):
            found = shipped(name)
            return None if found is None else Recorded(found)
    return None


def reference_of(path: Path) -> Path:
    """The reference solution for a student's file: `reference/DAY/` in a folder above it, or above this package."""
    day = day_of(path.stem) or path.parent.name
    for folder in (*path.resolve().parents, *Path(__file__).resolve().parents):
        candidate = folder / "reference" / day / path.name
        if candidate.is_file():
            return candidate
    raise NoReference(path.name)
