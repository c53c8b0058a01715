"""Every wrong solution gets its own diagnosis, every right one passes, and every check has an enemy.

`right/EXERCISE/NAME.py` holds correct spellings. `wrong/EXERCISE/NAME.py` says on its first line which check it must
fail and as which misconception: `# fails: train_epoch::learns_as_it_should as missing-step` (or `as -` for no name).
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from graders.checks import judge
from graders.curriculum import MISCONCEPTIONS, day
from graders.evidence import Evidence, decode, encode
from graders.evidence.shipped import shipped
from graders.plugin.references import reference_of
from graders.probes.loading import load
from graders.probes.observing import observe
from graders.results import CheckResult, Outcome

HERE = Path(__file__).parent
BENCH = os.environ.get("DOJO_BENCH", "virtual")  # DOJO_BENCH=cuda on a machine with a GPU: the same verdicts
RECORDED = os.environ.get("DOJO_RECORDED")  # a folder with the day8.mp of a release: the same verdicts, on any machine
EXERCISES = {exercise.stem: exercise for exercise in day("day8")}
RIGHT = sorted((HERE / "right").glob("*/*.py"))
WRONG = sorted((HERE / "wrong").glob("*/*.py"))
HEADER = re.compile(r"# fails: (\w+)::(\w+) as ([\w-]+)$")


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def functions_in(path: Path) -> list[Any]:
    """The functions of the exercise that a file defines."""
    source = path.read_text(encoding="utf-8")
    exercise = EXERCISES[path.parent.name]
    found = [f for f in exercise.functions if re.search(rf"^(def {f.name}\b|{f.name}\b *=)", source, re.M)]
    assert found, f"{path} defines none of {[f.name for f in exercise.functions]}"
    return found


@cache
def wanted(stem: str, function: str) -> Evidence:
    exercise = EXERCISES[stem]
    target = next(f for f in exercise.functions if f.name == function)
    if RECORDED is not None:
        recorded = shipped("day8", Path(RECORDED))
        assert recorded is not None, f"{RECORDED} holds no day8.mp"
        return recorded.evidence_of(stem, function, BENCH, 8)
    return observe(exercise, target, load(reference_of(Path("exercises/day8") / f"{stem}.py")), BENCH, 8)


def graded(path: Path) -> list[CheckResult]:
    exercise = EXERCISES[path.parent.name]
    # The reference first, as in grading: a submission may spoil the process it is loaded into.
    right = {function.name: wanted(exercise.stem, function.name) for function in functions_in(path)}
    submission = load(path)
    results = []
    for function in functions_in(path):
        seen = decode(encode(observe(exercise, function, submission, BENCH, 8)))
        results += judge(exercise, function, seen, right[function.name])
    return results


@pytest.mark.parametrize("path", RIGHT, ids=name_of)
def test_a_right_solution_passes(path: Path) -> None:
    not_passed = [r for r in graded(path) if r.outcome is not Outcome.PASSED]
    assert not_passed == []


@pytest.mark.parametrize("path", WRONG, ids=name_of)
def test_a_wrong_solution_gets_its_diagnosis(path: Path) -> None:
    function, check, misconception = claimed(path)
    failed = [r for r in graded(path) if r.outcome not in (Outcome.PASSED, Outcome.BLOCKED)]
    assert failed, "it passes everything"
    first = failed[0]
    found = (first.function, first.check, first.misconception or "-")
    assert (first.outcome, found) == (Outcome.FAILED, (function, check, misconception)), first.happened


def claimed(path: Path) -> tuple[str, str, str]:
    match = HEADER.match(path.read_text(encoding="utf-8").splitlines()[0])
    assert match, f"{path}: the first line must say what it fails"
    assert match[3] == "-" or match[3] in MISCONCEPTIONS, f"no misconception {match[3]!r}"
    return match[1], match[2], match[3]


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=lambda e: e.stem)
def test_every_check_has_an_enemy(exercise: Any) -> None:
    enemies = {claimed(path)[:2] for path in WRONG if path.parent.name == exercise.stem}
    missing = [f"{f.name}::{c.name}" for f in exercise.functions for c in f.checks if (f.name, c.name) not in enemies]
    assert missing == []


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=lambda e: e.stem)
def test_every_function_has_four_right_spellings_and_the_points_add_up(exercise: Any) -> None:
    spellings = [f.name for path in RIGHT if path.parent.name == exercise.stem for f in functions_in(path)]
    assert {f.name: spellings.count(f.name) for f in exercise.functions if spellings.count(f.name) < 4} == {}
    assert sum(f.points for f in exercise.functions) == exercise.points
    assert all(f.hints for f in exercise.functions)
