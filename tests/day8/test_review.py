"""Kept solutions in a class: none needs review, right or wrong. Names that some replace are put
back.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gpudojo.authoring.kept_solutions import kept_solutions
from gpudojo.classes.class_grading import ClassGrading
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.model.exercise import Exercise
from gpudojo.model.results_file import iterate

from tests.exploits.conftest import Quiet
from tests.solutions import ROOT, pytest_generate_tests

__all__ = ["pytest_generate_tests"]

HERE = Path(__file__).parent
REFERENCE = ROOT / "reference" / HERE.name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
def test_no_kept_solution_needs_review(exercise: Exercise, tmp_path: Path) -> None:
    """For one exercise: `-m slow -k 04`."""
    submissions = tmp_path / "class"
    out = tmp_path / "out"
    out.mkdir()
    handed_in = set()
    graded = {}
    for solution in kept_solutions(HERE, exercise.stem):
        folder = submissions / solution.where.replace("/", ".")
        folder.mkdir(parents=True)
        # Equal ones, with different diagnoses, would be run only once, and need review as copies.
        (folder / f"{exercise.stem}.py").write_text(
            f"{solution.source}\n# {solution.where}\n", encoding="utf-8"
        )
        handed_in.add(folder.name)
    asked = GradingOptions(
        submissions=[submissions], out=out, reference=REFERENCE, secret="of a test", jobs=2
    )
    for row in iterate(ClassGrading(asked, Quiet()).run().path):
        graded[row.submission] = " ".join(row.needs_human)
    assert graded.keys() == handed_in
    assert {name: told for name, told in graded.items() if told} == {}
