"""What a file is judged by: the reference solution, or evidence of it from a release."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol

from virtual_cuda.ledger import Timeline

from gpudojo.grading.reference_solutions import CachedReference
from gpudojo.grading.shipped_evidence import ShippedEvidence, read_shipped_evidence
from gpudojo.model.catalogue import day_of_exercise, day_of_file, repository_of
from gpudojo.model.errors import BadEvidence, NoReference
from gpudojo.model.evidence import Evidence
from gpudojo.model.exercise import Exercise, Function


class Reference(Protocol):
    """What a student's evidence is compared with."""

    def evidence_of(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        """What probes saw of its function on a device of this kind. Raises DojoError."""
        ...

    def signature_of(self, exercise: Exercise, function: Function) -> str:
        """The parameters of its function as text."""
        ...

    def timelines_of(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """The timelines of its calls that were recorded for a release.

        The list is empty for a reference that runs here: that one can be watched.
        """
        ...


class RecordedReference:
    """The evidence that was recorded of a reference solution when the release was made.

    The solution itself is not here.
    """

    def __init__(self, recorded: ShippedEvidence) -> None:
        self.recorded = recorded

    def evidence_of(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        """The evidence that was recorded for a device of this kind and a seed.

        For "auto", patches that a closed device has left in torch are undone. Raises NoSuchSeed or
        NotRecorded where there is none, and BadEvidence where it cannot be read.
        """
        from virtual_cuda.hooks import choose_device

        bench = choose_device(kind)[0]
        return self.recorded.evidence_of(exercise.stem, function.name, bench, seed)

    def signature_of(self, exercise: Exercise, function: Function) -> str:
        return self.recorded.signature_of(exercise.stem, function.name)

    def timelines_of(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """The timelines of the release; none where they cannot be read."""
        try:
            return self.recorded.timelines_of(exercise.stem, function.name)
        except BadEvidence:
            return []  # a picture less is no reason not to judge


def reference_for(path: Path, exercise: Exercise) -> Reference:
    """The reference of one exercise, for a student's file or notebook.

    Raises NoReference where there is neither a solution nor recorded evidence of one. Raises
    BadEvidence where the recorded evidence cannot be read.
    """
    recorded = recorded_for(path, exercise)
    if recorded is not None:
        return RecordedReference(recorded)
    return CachedReference(reference_of(path.with_name(f"{exercise.stem}.py")), exercise)


def recorded_for(path: Path, exercise: Exercise) -> ShippedEvidence | None:
    """The recorded evidence that a file is judged by where there is no reference solution.

    Returns None where there is a solution, and where there is neither. Raises BadEvidence where it
    cannot be read.
    """
    try:
        reference_of(path.with_name(f"{exercise.stem}.py"))
    except NoReference:
        day = day_of_exercise(exercise)
        if day is None:
            return None
        return read_shipped_evidence(day)
    return None


def require_reference(path: Path, exercise: Exercise) -> None:
    """Raise NoReference where there is neither a solution nor recorded evidence to judge a file by.

    Evidence that cannot be read is there.
    """
    with contextlib.suppress(BadEvidence):
        if recorded_for(path, exercise) is None:
            reference_of(path.with_name(f"{exercise.stem}.py"))


def refuse_without_record(path: Path, exercise: Exercise, kind: str, seed: int) -> None:
    """Refuse a device or seed for which no evidence was recorded, if the file is judged by that.

    Raises NoSuchSeed or NotRecorded. BadEvidence says that the recorded evidence cannot be read.
    """
    recorded = recorded_for(path, exercise)
    if recorded is not None:
        recorded.refuse_unknown(kind, seed)


def known_seeds(path: Path, exercise: Exercise) -> tuple[int, ...] | None:
    """The seeds on which a file can be judged.

    Returns None where any seed can be used, and where the file cannot be judged at all. Raises
    BadEvidence where recorded evidence cannot be read.
    """
    recorded = recorded_for(path, exercise)
    if recorded is None:
        return None
    return recorded.seeds


def reference_of(path: Path) -> Path:
    """The path of the reference solution for a student's file.

    It is in `reference/DAY/` in a folder above that file, or above the day's package. Raises
    NoReference where there is none.
    """
    day = day_of_file(path) or path.parent.name
    folders = [*path.resolve().parents]
    repository = repository_of(day)
    if repository is not None:
        folders.append(repository)
    for folder in folders:
        candidate = folder / "reference" / day / path.name
        if candidate.is_file():
            return candidate
    raise NoReference(path.name)
