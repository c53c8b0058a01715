"""Stubs are made from the references, byte for byte, and never show a solution."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.model.errors import BadMarkers
from gpudojo.release import stubs

ROOT = Path(__file__).parents[3]


def test_the_committed_stubs_are_fresh() -> None:
    stale = stubs.stale_stubs(ROOT / "reference" / "day8", ROOT / "exercises" / "day8")
    assert stale == [], "run: dojo release stubs"


def test_a_solution_becomes_one_line() -> None:
    source = (
        "def f():\n"
        '    """Add."""\n'
        "    # BEGIN SOLUTION\n"
        "    x = 1\n"
        "    return x\n"
        "    # END SOLUTION\n\n\n"
        "print(1)\n"
    )
    assert (
        stubs.stub_of(source)
        == 'def f():\n    """Add."""\n    raise NotImplementedError\n\n\nprint(1)\n'
    )


def test_a_solution_may_say_what_stands_there_instead() -> None:
    inside = "    # INSTEAD: 'x': None,\n    # INSTEAD: 'y': None,\n    'x': 1,\n"
    source = f"A = {{\n    # BEGIN SOLUTION\n{inside}    # END SOLUTION\n}}\n"
    assert stubs.stub_of(source) == "A = {\n    'x': None,\n    'y': None,\n}\n"


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
    assert stubs.write_stubs(reference, tmp_path / "exercises") == ["a.py"]
    assert stubs.write_stubs(reference, tmp_path / "exercises") == []
    assert (tmp_path / "exercises" / "a.py").read_text() == "raise NotImplementedError\n"


def release(root: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["release", "stubs", "--root", str(root), *arguments])
    return result.exit_code, result.output


def test_the_command_writes_and_checks(tmp_path: Path) -> None:
    reference = tmp_path / "reference" / "day8" / "a.py"
    stub = tmp_path / "exercises" / "day8" / "a.py"
    assert release(tmp_path) == (1, f"Error: there is no folder {reference.parent}\n")
    reference.parent.mkdir(parents=True)
    reference.write_text("# BEGIN SOLUTION\nx = 1\n# END SOLUTION\n")
    assert release(tmp_path, "--check") == (1, f"stale: {stub}\nrun: dojo release stubs\n")
    assert not stub.exists(), "--check writes nothing"
    assert release(tmp_path) == (0, f"written: {stub}\n")
    assert release(tmp_path, "--check") == (0, "All stubs of day8 are up to date.\n")
    assert release(tmp_path) == (0, "All stubs of day8 are up to date.\n")
    reference.write_text("# BEGIN SOLUTION\n")
    assert release(tmp_path) == (1, f"Error: {reference}:1: a solution begins and does not end\n")
    reference.unlink()
    assert release(tmp_path) == (1, f"no reference for it: {stub}\n")
    assert stub.exists(), "what a person may have written is not deleted"


def test_stubs_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    for name, text in stubs.stubs_of_day(ROOT / "reference" / "day8").items():
        assert "\r" not in text
        assert text.endswith("\n"), name
        assert not text.endswith("\n\n"), name
        assert "SOLUTION" not in text, name
