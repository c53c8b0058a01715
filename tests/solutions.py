"""Tests of a day's solutions: every right one passes, every wrong one gets its diagnosis, every
check is tried.

Where solutions are, and how they say what is expected of them, is in
`gpudojo.authoring.kept_solutions`. A day's `test_solutions.py` imports the tests from here;
`pytest_generate_tests` finds the solutions in the folder of that file. An exercise that is still
being written, with notes left in it, is skipped.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from gpudojo.authoring.kept_solutions import HEADER, kept_solutions
from gpudojo.authoring.lint import unfinished_notes
from gpudojo.authoring.lint_solutions import SPELLINGS
from gpudojo.grading.engine import grade_function
from gpudojo.grading.load import load_submission
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.references import reference_of
from gpudojo.model.catalogue import exercises_of, known_misconceptions
from gpudojo.model.evidence import Evidence
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import CheckResult, Outcome

__all__ = [
    "pytest_generate_tests",
    "shared_names_put_back",
    "test_a_right_solution_passes",
    "test_a_wrong_solution_gets_its_diagnosis",
    "test_every_check_is_failed_by_a_wrong_solution",
    "test_every_function_has_four_right_spellings_and_the_points_add_up",
]

ROOT = Path(__file__).parents[1]
BENCH = os.environ.get(
    "DOJO_BENCH", "virtual"
)  # DOJO_BENCH=cuda on a machine with a GPU: the same verdicts
EACH = {
    "right": 2,
    "wrong": 1,
}  # solutions of each function, of each check; of a day with MANY, others are slow tests
MANY = 100
# The environment variable with the folder of verdicts of this run; `tests/conftest.py` sets it.
VERDICTS = "DOJO_TEST_VERDICTS"
LOSES = "# After it a process cannot use a real GPU any more."
SHARED = (time, torch, torch.cuda, torch.cuda.Event, torch.Tensor)


@pytest.fixture(autouse=True)
def shared_names_put_back() -> Iterator[None]:
    """What hostile solutions replace in shared modules.

    In grading every submission has a process of its own.
    """
    before = [(shared, dict(vars(shared))) for shared in SHARED]
    yield
    for shared, names in before:
        for name, value in names.items():
            if vars(shared).get(name) is not value:
                setattr(shared, name, value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The files, or the exercises, of the day whose folder the test module is in."""
    here = Path(str(metafunc.module.__file__)).parent
    if "path" in metafunc.fixturenames:
        kind = "right" if "right" in metafunc.function.__name__ else "wrong"
        found = [each.path for each in kept_solutions(here) if each.wrong == (kind == "wrong")]
        counts = Counter[Any]()
        params = []
        for path in found:
            kinds = [claimed(path)[:2]] if kind == "wrong" else [f.name for f in functions_in(path)]
            counts.update(kinds)
            few = len(found) < MANY or min(counts[each] for each in kinds) <= EACH[kind]
            marks = [] if few else [pytest.mark.slow]
            params.append(pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=marks))
        metafunc.parametrize("path", params)
    elif "exercise" in metafunc.fixturenames:
        metafunc.parametrize(
            "exercise", exercises_of(here.name), ids=lambda exercise: exercise.stem
        )


@cache
def exercise_of(day_name: str, stem: str) -> Exercise:
    found = next((exercise for exercise in exercises_of(day_name) if exercise.stem == stem), None)
    assert found is not None, f"{day_name} has no exercise {stem}"
    return found


@cache
def skip_if_unfinished(day_name: str, stem: str) -> None:
    if unfinished_notes(day_name, exercise_of(day_name, stem), ROOT):
        pytest.skip(f"{stem} is unfinished; dojo lint --day {day_name} says what is missing")


def of_path(path: Path) -> tuple[str, str]:
    """Day and exercise of a solution."""
    return path.parents[2].name, path.parent.name


def functions_in(path: Path) -> list[Any]:
    """The functions of the exercise that a file defines."""
    source = path.read_text(encoding="utf-8")
    exercise = exercise_of(*of_path(path))
    found = [
        f
        for f in exercise.functions
        if re.search(rf"^(def {f.name}\b|{f.name}\b *=)", source, re.M)
    ]
    assert found, f"{path} defines none of {[f.name for f in exercise.functions]}"
    return found


@cache
def reference(day_name: str, stem: str) -> ReferenceSolution:
    return ReferenceSolution(reference_of(Path("exercises") / day_name / f"{stem}.py"), keep=True)


def wanted(day_name: str, stem: str, function: str) -> Evidence:
    exercise = exercise_of(day_name, stem)
    target = next(f for f in exercise.functions if f.name == function)
    return reference(day_name, stem).evidence_of(exercise, target, BENCH, 8)


def graded(path: Path) -> list[CheckResult]:
    """The results of a solution, which is graded once: the tests of lines and causes look at the
    same ones.
    """
    skip_if_unfinished(*of_path(path))
    if VERDICTS not in os.environ:
        return _graded(path)
    kept = Path(os.environ[VERDICTS], "-".join((*of_path(path), path.parents[1].name, path.stem)))
    with contextlib.suppress(OSError):
        return msgspec.msgpack.decode(kept.read_bytes(), type=list[CheckResult])
    found = _graded(path)
    kept.with_suffix(f".{os.getpid()}").write_bytes(msgspec.msgpack.encode(found))
    kept.with_suffix(f".{os.getpid()}").replace(kept)
    return found


def _graded(path: Path) -> list[CheckResult]:
    if BENCH != "cuda" or LOSES not in path.read_text(encoding="utf-8"):
        return _graded_here(path)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_graded_here, path).result()


def _graded_here(path: Path) -> list[CheckResult]:
    day_name, stem = of_path(path)
    exercise = exercise_of(day_name, stem)
    # The reference first, as in grading: a submission may spoil the process it is loaded into.
    for function in functions_in(path):
        wanted(day_name, stem, function.name)
    submission = load_submission(path)
    measure = reference(day_name, stem)
    graded_by_function = (
        grade_function(exercise, f, submission, measure, BENCH, 8) for f in functions_in(path)
    )
    return [result for results in graded_by_function for result in results]


def test_a_right_solution_passes(path: Path) -> None:
    not_passed = [r for r in graded(path) if r.outcome is not Outcome.PASSED]
    assert not_passed == []


def test_a_wrong_solution_gets_its_diagnosis(path: Path) -> None:
    function, check, misconception = claimed(path)
    failed = [r for r in graded(path) if r.outcome not in (Outcome.PASSED, Outcome.BLOCKED)]
    assert failed, "it passes everything"
    first = failed[0]
    found = (first.function, first.check, first.misconception or "-")
    assert (first.outcome, found) == (Outcome.FAILED, (function, check, misconception)), (
        first.happened
    )


def claimed(path: Path) -> tuple[str, str, str]:
    match = HEADER.match(path.read_text(encoding="utf-8").splitlines()[0])
    assert match, f"{path}: the first line must say what it fails"
    assert match[3] == "-" or match[3] in known_misconceptions(), f"no misconception {match[3]!r}"
    return match[1], match[2], match[3]


def test_every_check_is_failed_by_a_wrong_solution(
    exercise: Exercise, request: pytest.FixtureRequest
) -> None:
    skip_if_unfinished(request.path.parent.name, exercise.stem)
    wrong = [each.path for each in kept_solutions(request.path.parent, exercise.stem) if each.wrong]
    failed = {claimed(path)[:2] for path in wrong}
    missing = [
        f"{f.name}::{c.name}"
        for f in exercise.functions
        for c in f.checks
        if (f.name, c.name) not in failed
    ]
    assert missing == []


def test_every_function_has_four_right_spellings_and_the_points_add_up(
    exercise: Exercise, request: pytest.FixtureRequest
) -> None:
    skip_if_unfinished(request.path.parent.name, exercise.stem)
    right = [
        each.path for each in kept_solutions(request.path.parent, exercise.stem) if not each.wrong
    ]
    spellings = [f.name for path in right for f in functions_in(path)]
    few = {
        f.name: spellings.count(f.name)
        for f in exercise.functions
        if spellings.count(f.name) < SPELLINGS
    }
    assert few == {}
    assert sum(f.points for f in exercise.functions) == exercise.points
    assert all(f.hints for f in exercise.functions)
