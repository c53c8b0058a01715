"""Kept solutions in a class: none needs review, right or wrong. Names that some replace are put
back.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from gpudojo.authoring.kept_solutions import Solution, kept_solutions
from gpudojo.classes.class_grading import ClassGrading
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results_file import iterate

from tests.exploits.conftest import Quiet

ROOT = Path(__file__).parents[2]

HERE = Path(__file__).parent
REFERENCE = ROOT / "reference" / HERE.name


def students_with_solutions() -> list[list[Solution]]:
    """What each student hands in: of every exercise one solution, as long as there are any.

    All together hand in every solution once.
    """
    by_exercise = [kept_solutions(HERE, exercise.stem) for exercise in exercises_of(HERE.name)]
    students = []
    for solutions in itertools.zip_longest(*by_exercise):
        students.append([each for each in solutions if each is not None])
    return students


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
def test_no_kept_solution_needs_review(tmp_path: Path) -> None:
    submissions = tmp_path / "class"
    out = tmp_path / "out"
    out.mkdir()
    handed_in = {}
    for number, solutions in enumerate(students_with_solutions()):
        folder = submissions / f"student{number}"
        folder.mkdir(parents=True)
        handed_in[folder.name] = [each.where for each in solutions]
        for solution in solutions:
            # Equal ones, with different diagnoses, would need review as copies.
            text = f"{solution.source}\n# {solution.where}\n"
            (folder / f"{solution.exercise}.py").write_text(text, encoding="utf-8")
    asked = GradingOptions(
        submissions=[submissions], out=out, reference=REFERENCE, secret="of a test", jobs=2
    )
    reasons = {}
    for row in iterate(ClassGrading(asked, Quiet()).run().path):
        reasons[row.submission] = row.needs_human
    assert reasons.keys() == handed_in.keys()
    for student, solutions in handed_in.items():
        assert not reasons[student], f"{reasons[student]}, by one of {solutions}"
