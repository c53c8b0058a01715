"""The cache of what a reference solution does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from gpudojo.grading import reference_solutions, references
from gpudojo.grading.engine import FileGrader
from gpudojo.grading.feedback import headline_and_parts
from gpudojo.grading.reference_solutions import (
    OLDER_KEPT,
    CachedReference,
    ReferenceSolution,
    cache_folder,
)
from gpudojo.grading.references import require_reference
from gpudojo.model.catalogue import exercise_for
from gpudojo.model.errors import NoReference
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import Outcome

SOLUTION = Path(__file__).parents[3] / "reference" / "day8" / "02_moving_model_to_device.py"
SEED = 8


@pytest.fixture
def exercise() -> Exercise:
    found = exercise_for(SOLUTION)
    assert found is not None
    return found


@pytest.fixture
def function(exercise: Exercise) -> Function:
    return next(each for each in exercise.functions if each.name == "parameter_devices")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOJO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "evidence"


@pytest.fixture
def kept(exercise: Exercise, function: Function, cache: Path) -> CachedReference:
    """A reference whose evidence is in the cache, and not in its own memory."""
    CachedReference(SOLUTION, exercise).fill_cache(function, "virtual", SEED)
    return CachedReference(SOLUTION, exercise)


def test_what_is_in_the_cache_is_not_run_again(
    kept: CachedReference, exercise: Exercise, function: Function, cache: Path
) -> None:
    written = ReferenceSolution(SOLUTION)
    assert kept.has_evidence(function, "virtual", SEED)
    assert kept.evidence_of(exercise, function, "virtual", SEED) == written.evidence_of(
        exercise, function, "virtual", SEED
    )
    assert kept.signature_of(exercise, function) == written.signature_of(exercise, function)
    assert "written" not in vars(kept)
    assert [path.suffix for path in cache.iterdir()] == [".mp"]


def test_another_seed_device_or_solution_is_not_in_the_cache(
    kept: CachedReference, exercise: Exercise, function: Function, tmp_path: Path
) -> None:
    assert not kept.has_evidence(function, "virtual", SEED + 1)
    assert not kept.has_evidence(function, "cpu", SEED)
    other = tmp_path / SOLUTION.name
    other.write_text(SOLUTION.read_text(encoding="utf-8") + "\n# more\n", encoding="utf-8")
    assert not CachedReference(other, exercise).has_evidence(function, "virtual", SEED)


def test_a_change_of_the_grader_makes_it_anew(
    kept: CachedReference, exercise: Exercise, function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_solutions, "_digest_of_code", lambda day: "another")
    assert not CachedReference(SOLUTION, exercise).has_evidence(function, "virtual", SEED)


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "another's"])
def test_a_damaged_or_foreign_file_is_made_anew(
    damage: str, kept: CachedReference, exercise: Exercise, function: Function, cache: Path
) -> None:
    (path,) = cache.iterdir()
    data = path.read_bytes()
    if damage == "another's":
        other = next(each for each in exercise.functions if each is not function)
        CachedReference(SOLUTION, exercise).fill_cache(other, "virtual", SEED)
        shutil.copy(next(each for each in cache.iterdir() if each != path), path)
    else:
        place = len(data) // 2
        middle = bytes([data[place] ^ 0xFF])
        path.write_bytes(
            {"empty": b"", "cut": data[:place]}.get(
                damage, data[:place] + middle + data[place + 1 :]
            )
        )
    assert not kept.has_evidence(function, "virtual", SEED)
    kept.fill_cache(function, "virtual", SEED)
    assert CachedReference(SOLUTION, exercise).has_evidence(function, "virtual", SEED)


def test_nothing_is_kept_of_a_process_that_may_have_run_student_code(
    exercise: Exercise, function: Function, cache: Path
) -> None:
    CachedReference(SOLUTION, exercise).evidence_of(exercise, function, "virtual", SEED)
    assert not cache.exists()


def test_without_a_cache_everything_works(
    exercise: Exercise, function: Function, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("DOJO_CACHE", str(file))
    kept = CachedReference(SOLUTION, exercise)
    kept.fill_cache(function, "virtual", SEED)
    assert kept.evidence_of(exercise, function, "virtual", SEED).function == function.name
    assert not CachedReference(SOLUTION, exercise).has_evidence(function, "virtual", SEED)


def test_old_files_go(exercise: Exercise, function: Function, cache: Path) -> None:
    for seed in range(OLDER_KEPT + 3):
        CachedReference(SOLUTION, exercise).fill_cache(function, "virtual", seed)
    assert len(list(cache.iterdir())) == OLDER_KEPT + 1
    assert CachedReference(SOLUTION, exercise).has_evidence(function, "virtual", OLDER_KEPT + 2)


@pytest.mark.parametrize(
    ("system", "variable", "usual"),
    [
        ("linux", "XDG_CACHE_HOME", ".cache"),
        ("darwin", "XDG_CACHE_HOME", "Library/Caches"),
        ("win32", "LOCALAPPDATA", "AppData/Local"),
    ],
)
def test_the_cache_is_where_the_system_has_caches(
    system: str, variable: str, usual: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("DOJO_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", system)
    assert cache_folder() == Path.home() / usual / "gpudojo"
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_folder() == tmp_path / "gpudojo"
    monkeypatch.setenv("DOJO_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_without_anything_to_judge_by_nothing_is_earned(
    exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a file of a release, in a Python in which the release is not installed."""
    monkeypatch.setattr(references, "repository_of", lambda day: None)
    path = shutil.copy(SOLUTION, tmp_path / SOLUTION.name)
    with pytest.raises(NoReference):
        require_reference(path, exercise)
    results = FileGrader(path, "virtual", SEED).results_of(exercise, exercise.functions[0])
    assert {result.outcome for result in results} == {Outcome.BLOCKED}
    assert sum(result.points for result in results) == 0
    told, parts = headline_and_parts(results[0])
    assert told.startswith(f"not judged: there is nothing to compare {SOLUTION.name} with")
    assert told.endswith("run: pip install -r requirements.txt.")
    assert parts == []


def test_the_repository_of_a_day_is_above_its_package(exercise: Exercise, tmp_path: Path) -> None:
    path = tmp_path / SOLUTION.name
    assert references.reference_of(path) == SOLUTION
    require_reference(path, exercise)
