"""Tests of a day's solutions: every right one passes, every wrong one gets its diagnosis, every
check is tried.

Where solutions are, and how they say what is expected of them, is in
`gpudojo.authoring.kept_solutions`. The `test_solutions.py` of a day, of gpudojo or of a course,
imports the tests from here; `pytest_generate_tests` finds the solutions in the folder of that file.
An exercise that is still being written, with notes left in it, is skipped.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pkgutil
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
from gpudojo.grading.explain import blame_helpers
from gpudojo.grading.load import load_submission
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.references import reference_of
from gpudojo.model.catalogue import exercises_of, known_misconceptions, repository_of
from gpudojo.model.errors import ReferenceFails
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
    "test_the_reference_runs",
]

# DOJO_BENCH=cuda on a machine with a GPU: the verdicts are the same.
BENCH = os.environ.get("DOJO_BENCH", "virtual")
# Of a day with at least MANY solutions, so many of each kind are in every run; others are slow
# tests. A kind is a function that is solved rightly, or a check that is failed.
MANY = 100
RIGHT_OF_EACH_FUNCTION = 2
WRONG_OF_EACH_CHECK = 1
# The environment variable with the folder of verdicts of this run; `tests/conftest.py` sets it.
VERDICTS = "DOJO_TEST_VERDICTS"
# The first line of a solution with a name that older releases of torch lack.
NEEDS = re.compile(r"# needs (torch\.[\w.]+)$", re.MULTILINE)
LOSES = "# After it a process cannot use a real GPU any more."
SHARED = (time, torch, torch.cuda, torch.cuda.Event, torch.Tensor)


@pytest.fixture(autouse=True)
def shared_names_put_back() -> Iterator[None]:
    """Put back after each test what hostile solutions replace in shared modules.

    In grading every submission has a process of its own.
    """
    before = [(shared, dict(vars(shared))) for shared in SHARED]
    yield
    for shared, names in before:
        for name, value in names.items():
            if vars(shared).get(name) is not value:
                setattr(shared, name, value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with a `path` for each solution, and one with an `exercise` for each exercise.

    They are those of the day whose folder the test module is in; tests of wrong solutions have
    "wrong" in their names.
    """
    folder = Path(str(metafunc.module.__file__)).parent
    if "path" in metafunc.fixturenames:
        wrong = "wrong" in metafunc.function.__name__
        metafunc.parametrize("path", _params_of_solutions(folder, wrong))
    elif "exercise" in metafunc.fixturenames:
        exercises = exercises_of(folder.name)
        metafunc.parametrize("exercise", exercises, ids=lambda exercise: exercise.stem)


def _params_of_solutions(folder: Path, wrong: bool) -> list[Any]:
    """A day's right or wrong solutions; where there are many, most of them marked as slow."""
    paths = [each.path for each in kept_solutions(folder) if each.wrong == wrong]
    counts = Counter[Any]()
    params = []
    for path in paths:
        # The first of each kind are in every run.
        if wrong:
            kinds = [claim_in(path)[:2]]
            wanted = WRONG_OF_EACH_CHECK
        else:
            kinds = [function.name for function in functions_in(path)]
            wanted = RIGHT_OF_EACH_FUNCTION
        counts.update(kinds)
        fewest = min(counts[kind] for kind in kinds)
        marks = []
        if len(paths) >= MANY and fewest > wanted:
            marks.append(pytest.mark.slow)
        params.append(pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=marks))
    return params


@cache
def exercise_of(day_name: str, stem: str) -> Exercise:
    found = next((exercise for exercise in exercises_of(day_name) if exercise.stem == stem), None)
    assert found is not None, f"{day_name} has no exercise {stem}"
    return found


@cache
def skip_if_unfinished(day_name: str, stem: str) -> None:
    root = repository_of(day_name) or Path.cwd()
    if unfinished_notes(day_name, exercise_of(day_name, stem), root):
        pytest.skip(f"{stem} is unfinished; dojo lint --day {day_name} says what is missing")


def skip_if_torch_lacks_names(path: Path) -> None:
    """Skip the test of a solution that uses a name which this release of torch does not have."""
    needed = NEEDS.match(path.read_text(encoding="utf-8"))
    if needed is None:
        return
    try:
        pkgutil.resolve_name(needed[1])
    except AttributeError:
        pytest.skip(f"torch {torch.__version__} has no {needed[1]}")


def day_and_exercise_of(path: Path) -> tuple[str, str]:
    """The names of the day and the exercise that a solution is for."""
    return path.parents[2].name, path.parent.name


def functions_in(path: Path) -> list[Any]:
    """The functions of the exercise that a file defines."""
    source = path.read_text(encoding="utf-8")
    exercise = exercise_of(*day_and_exercise_of(path))
    found = []
    for function in exercise.functions:
        name = function.name
        if re.search(rf"^(def {name}\b|{name}\b *=)", source, re.M):
            found.append(function)
    assert found, f"{path} defines no function of its exercise"
    return found


@cache
def reference_solution(day_name: str, stem: str) -> ReferenceSolution:
    return ReferenceSolution(reference_of(Path("exercises") / day_name / f"{stem}.py"), keep=True)


def reference_evidence(day_name: str, stem: str, function: str) -> Evidence:
    """What the reference shows of a function, by its name."""
    exercise = exercise_of(day_name, stem)
    target = next(each for each in exercise.functions if each.name == function)
    return reference_solution(day_name, stem).evidence_of(exercise, target, BENCH, 8)


def grade_once(path: Path) -> list[CheckResult]:
    """The results of a solution, which is graded once in a run: several tests look at them.

    They are kept in the folder that the environment variable of VERDICTS names, if it is set. Skips
    the test for an unfinished exercise, for a solution with a name that this torch lacks, and where
    the reference does not run, which `test_the_reference_runs` tells once.
    """
    day_name, stem = day_and_exercise_of(path)
    skip_if_unfinished(day_name, stem)
    skip_if_torch_lacks_names(path)
    if VERDICTS not in os.environ:
        return _grade(path)
    kind = path.parents[1].name  # right or wrong
    kept = Path(os.environ[VERDICTS], f"{day_name}-{stem}-{kind}-{path.stem}")
    with contextlib.suppress(OSError):  # it is not there yet
        return msgspec.msgpack.decode(kept.read_bytes(), type=list[CheckResult])
    results = _grade(path)
    own = kept.with_suffix(f".{os.getpid()}")
    own.write_bytes(msgspec.msgpack.encode(results))
    own.replace(kept)  # at once, as other processes read it
    return results


def _grade(path: Path) -> list[CheckResult]:
    """Grade a solution, in a process of its own where this one would lose its GPU.

    Skips the test where the reference does not run.
    """
    try:
        if BENCH != "cuda" or LOSES not in path.read_text(encoding="utf-8"):
            return _grade_here(path)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            return process.submit(_grade_here, path).result()
    except ReferenceFails as error:
        pytest.skip(str(error))


def _grade_here(path: Path) -> list[CheckResult]:
    day_name, stem = day_and_exercise_of(path)
    exercise = exercise_of(day_name, stem)
    functions = functions_in(path)
    # The reference first, as in grading: a submission may spoil the process it is loaded into.
    for function in functions:
        reference_evidence(day_name, stem, function.name)
    submission = load_submission(path)
    reference = reference_solution(day_name, stem)
    results: list[CheckResult] = []
    for function in functions:
        found = grade_function(exercise, function, submission, reference, BENCH, 8)
        results += blame_helpers(found, function, results)
    return results


def test_the_reference_runs(exercise: Exercise, request: pytest.FixtureRequest) -> None:
    day_name = request.path.parent.name
    skip_if_unfinished(day_name, exercise.stem)
    errors = []
    for function in exercise.functions:
        try:
            reference_evidence(day_name, exercise.stem, function.name)
        except ReferenceFails as error:
            errors.append(str(error))
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)


def test_a_right_solution_passes(path: Path) -> None:
    not_passed = [r for r in grade_once(path) if r.outcome is not Outcome.PASSED]
    assert not_passed == []


def test_a_wrong_solution_gets_its_diagnosis(path: Path) -> None:
    claim = claim_in(path)
    failed = [r for r in grade_once(path) if r.outcome not in (Outcome.PASSED, Outcome.BLOCKED)]
    assert failed, "it passes everything"
    first = failed[0]
    found = (first.function, first.check, first.misconception or "-")
    assert (first.outcome, found) == (Outcome.FAILED, claim), first.happened


def claim_in(path: Path) -> tuple[str, str, str]:
    """The function, the check and the misconception that a wrong solution's first line names."""
    lines = path.read_text(encoding="utf-8").splitlines()
    match = HEADER.match(lines[0])
    assert match, f"{path}: the first line must say what it fails"
    misconception = match[3]
    if misconception != "-":
        assert misconception in known_misconceptions(), f"no misconception {misconception!r}"
    return match[1], match[2], misconception


def test_every_check_is_failed_by_a_wrong_solution(
    exercise: Exercise, request: pytest.FixtureRequest
) -> None:
    skip_if_unfinished(request.path.parent.name, exercise.stem)
    failed = set()
    for solution in kept_solutions(request.path.parent, exercise.stem):
        if solution.wrong:
            failed.add(claim_in(solution.path)[:2])
    missing = []
    for function in exercise.functions:
        for check in function.checks:
            if (function.name, check.name) not in failed:
                missing.append(f"{function.name}::{check.name}")
    assert missing == []


def test_every_function_has_four_right_spellings_and_the_points_add_up(
    exercise: Exercise, request: pytest.FixtureRequest
) -> None:
    skip_if_unfinished(request.path.parent.name, exercise.stem)
    spellings = Counter[str]()
    for solution in kept_solutions(request.path.parent, exercise.stem):
        if not solution.wrong:
            spellings.update(function.name for function in functions_in(solution.path))
    few = []
    points = 0.0
    for function in exercise.functions:
        if spellings[function.name] < SPELLINGS:
            few.append(function.name)
        points += function.points
        assert function.hints
    assert few == []
    assert points == exercise.points
