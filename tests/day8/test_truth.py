"""The line and the cause that a student is shown first are true: for each wrong solution both were
written by hand.

`truth/EXERCISE.toml` has a table for each file in `wrong/EXERCISE`: `line` lists the lines a
teacher would point at, any of which is right; 0 among them means that to show no line is right too,
and an empty list that nothing else is. `cause` is a misconception, `-` for one without a name, or a
list of those that are all true.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from gpudojo.authoring.kept_solutions import kept_solutions
from gpudojo.authoring.solution_tests import grade_once, pytest_generate_tests
from gpudojo.model.catalogue import known_misconceptions
from gpudojo.model.exercise import Exercise, was_executed
from gpudojo.model.results import Outcome

__all__ = ["pytest_generate_tests"]
HERE = Path(__file__).parent
WANTED = 0.98


def test_the_loop_is_shown_rather_than_what_it_calls() -> None:
    path = HERE / "wrong" / "06_vectorizing_pixel_loops" / "recolor_recursion.py"
    first = next(result for result in grade_once(path) if result.outcome is Outcome.FAILED)
    assert (
        "for part in indices"
        in path.read_text(encoding="utf-8").splitlines()[(first.line or 0) - 1]
    )


@pytest.mark.slow
def test_the_first_line_and_cause_shown_are_true(exercise: Exercise) -> None:
    wrong = {one.path.stem: one.path for one in kept_solutions(HERE, exercise.stem) if one.wrong}
    truth = tomllib.loads((HERE / "truth" / f"{exercise.stem}.toml").read_text(encoding="utf-8"))
    assert sorted(truth) == sorted(wrong)
    untrue = []
    for stem, path in wrong.items():
        lines = truth[stem]["line"] or [0]
        causes = (
            truth[stem]["cause"]
            if isinstance(truth[stem]["cause"], list)
            else [truth[stem]["cause"]]
        )
        assert set(causes) <= {"-", *known_misconceptions()}, stem
        assert max(lines) <= len(path.read_text(encoding="utf-8").splitlines()), stem
        failed = [result for result in grade_once(path) if result.outcome is Outcome.FAILED]
        assert failed, f"{stem} passes"
        first = failed[0]
        for each in failed:
            assert not each.line or each.ran is None or was_executed(each.line, each.ran), (
                f"{stem}: {each.happened}"
            )
        if (first.line or 0) not in lines or (first.misconception or "-") not in causes:
            shown = f"line {first.line}, {first.misconception or '-'}: {first.happened}"
            untrue.append(f"{stem}: {shown}; the truth: {lines}, {causes}")
    assert len(untrue) <= (1 - WANTED) * len(wrong), "\n" + "\n".join(untrue)
