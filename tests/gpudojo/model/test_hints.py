"""Hints are read from a file by function and check.

What an author got wrong is said in a sentence.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.model.errors import BadDay
from gpudojo.model.exercise import Exercise

WRITTEN = """
[[double.hints]]
about = ["doubles", "wrong-factor"]
steps = ["How much is twice?", "Multiply."]

[[double.hints]]
steps = ["Return it."]

[double.lines]
doubles = ["last return"]
runs = ["return"]
"""


@pytest.fixture
def exercise(tmp_path: Path) -> Exercise:
    """An exercise of one function."""
    made = Exercise("01_doubling", "Doubling", points=1)
    made.function("double")
    made.hints_file = tmp_path / "01_doubling.toml"
    return made


def test_hints_are_those_of_the_first_key_that_has_some(tmp_path: Path, exercise: Exercise) -> None:
    (tmp_path / "01_doubling.toml").write_text(WRITTEN, encoding="utf-8")
    (function,) = exercise.functions
    assert function.hints == ("How much is twice?", "Multiply.", "Return it.")
    assert function.hints_for("unknown", "wrong-factor") == ("How much is twice?", "Multiply.")
    assert function.hints_for("runs") == function.hints
    assert function.signs_for("doubles", None, "runs") == ("last return", "return")
    assert function.has_advice_on("runs")
    assert not function.has_advice_on("unknown")


def test_without_a_file_there_are_no_hints(exercise: Exercise) -> None:
    assert exercise.functions[0].hints_for("runs") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WRITTEN.replace("double.", "triple."), "2: .*has no function 'triple'; .*are: double"),
        (WRITTEN.replace("double.", "doubel."), "2: .*'doubel'; did you mean double"),
        (
            WRITTEN + '[[double.hints]]\nabout = ["runs", "doubles"]\nsteps = ["x"]\n',
            "12: .*two lists",
        ),
        (WRITTEN.replace('["Return it."]', '["Return it.", " "]'), "6: .*has an empty hint"),
        (
            WRITTEN.replace('steps = ["Return', 'step = ["Return'),
            "7: there is no setting `step` here; did you mean steps",
        ),
        (WRITTEN.replace('["Return it."]', '"Return it."'), "7: `steps` must be a list, not text"),
        ("[double]\n", "1: `hints` is missing"),
        ("[double\n", "1: this is not TOML"),
        (WRITTEN.replace('it."]', "it.]"), "7: .*the text needs its closing quote"),
    ],
)
def test_a_mistake_in_the_file_is_told(
    exercise: Exercise, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "01_doubling.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadDay, match=rf"01_doubling\.toml, line {reason}"):
        _ = exercise.written_hints
