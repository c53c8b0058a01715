"""Stubs are made from the references, byte for byte, and never show a solution."""

from __future__ import annotations

from pathlib import Path

import pytest

from graders.errors import BadMarkers
from graders.release import stubs

ROOT = Path(__file__).parents[2]


def test_the_committed_stubs_are_fresh() -> None:
    stale = stubs.stale(ROOT / "reference" / "day8", ROOT / "exercises" / "day8")
    assert stale == [], "run: dojo release stubs"


def test_a_solution_becomes_one_line() -> None:
    source = (
        'def f():\n    """Add."""\n    # BEGIN SOLUTION\n    x = 1\n    return x\n    # END SOLUTION\n\n\nprint(1)\n'
    )
    assert stubs.stub_of(source) == 'def f():\n    """Add."""\n    raise NotImplementedError\n\n\nprint(1)\n'


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("# BEGIN SOLUTION\nx = 1\n", 1),
        ("x = 1\n# END SOLUTION\n", 2),
        ("# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION\n", 2),
        ("# BEGIN SOLUTON\nx = 1\n# END SOLUTION\n", 3),
        ("# BEGIN  SOLUTION\nx = 1\n# END SOLUTION\n", 1),
    ],
)
def test_markers_that_do_not_match_are_an_error(source: str, line: int) -> None:
    with pytest.raises(BadMarkers) as error:
        stubs.stub_of(source, "some.py")
    assert error.value.line == line
    assert str(error.value).startswith(f"some.py:{line}: ")


def test_writing_says_what_changed(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    reference.mkdir()
    (reference / "a.py").write_text("# BEGIN SOLUTION\nx = 1\n# END SOLUTION\n")
    assert stubs.write(reference, tmp_path / "exercises") == ["a.py"]
    assert stubs.write(reference, tmp_path / "exercises") == []
    assert (tmp_path / "exercises" / "a.py").read_text() == "raise NotImplementedError\n"
