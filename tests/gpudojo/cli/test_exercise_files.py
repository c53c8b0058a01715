"""`dojo reset` and `dojo solution`: a file from the beginning, and one from the end."""

from __future__ import annotations

import os
import shutil
import sys
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from gpudojo.cli import main
from gpudojo.grading import shipped_evidence
from gpudojo.grading.shipped_evidence import ShippedEvidence, encode_shipped_evidence

REPOSITORY = Path(__file__).resolve().parents[3]
NAME = "12_self_assessment.py"
STUB = (REPOSITORY / "exercises" / "day8" / NAME).read_text(encoding="utf-8")
RIGHT = (REPOSITORY / "reference" / "day8" / NAME).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "exercises" / "day8"
    shutil.copytree(REPOSITORY / "exercises" / "day8", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def dojo(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_stub_comes_back_and_nothing_is_lost(folder: Path) -> None:
    path = folder / NAME
    for text in ("first = 1\n", "second = 2\n"):
        path.write_text(text, encoding="utf-8")
        done = dojo("reset", "12")
        assert done.exit_code == 0
        assert path.read_text(encoding="utf-8") == STUB
    assert f"What you had is in {path}.bak2." in done.output
    kept = [Path(f"{path}{end}").read_text(encoding="utf-8") for end in (".bak", ".bak2")]
    assert kept == ["first = 1\n", "second = 2\n"]
    assert "is as it was handed out already" in dojo("reset", str(path)).output
    path.unlink()
    assert dojo("reset", "ANSWERS").exit_code == 0
    assert path.read_text(encoding="utf-8") == STUB
    assert "there is no exercise 33; there are: 01, 02" in dojo("reset", "33").output


def test_a_release_has_its_stubs_and_says_that_it_has_no_solutions(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs = {Path(NAME).stem: zlib.compress(b"# as handed out\n")}
    shipped = ShippedEvidence("day8", (8,), {}, {}, stubs=stubs)
    (tmp_path / "day8.mp").write_bytes(encode_shipped_evidence(shipped))
    read = shipped_evidence.read_shipped_evidence.__wrapped__
    monkeypatch.setattr(
        "gpudojo.cli.exercise_files.read_shipped_evidence", lambda day: read(day, tmp_path)
    )
    monkeypatch.setattr("gpudojo.grading.references.repository_of", lambda day: None)
    assert dojo("reset", "12").exit_code == 0
    assert (folder / NAME).read_text(encoding="utf-8") == "# as handed out\n"
    done = dojo("reset", "11")
    assert done.exit_code == 1
    assert "get it from where you got the exercises" in done.output
    done = dojo("solution", "12")
    assert done.exit_code == 1
    assert "there are no model solutions here: exercises are handed out without them" in done.output


def test_a_model_solution_is_shown_once_all_points_are_reached(folder: Path) -> None:
    done = dojo("solution", "12")
    assert done.exit_code == 1
    assert f"{NAME} has 0 of 2 points" in done.output
    (folder / NAME).write_text(RIGHT + "print('a line of mine')\n", encoding="utf-8")
    done = dojo("solution", "12")
    assert done.exit_code == 0
    assert "ANSWERS" in done.output
    for hidden in ("SOLUTION", "INSTEAD", "__main__", "a line of mine"):
        assert hidden not in done.output


def test_a_breakpoint_does_not_stop_a_model_solution(folder: Path) -> None:
    (folder / NAME).write_text(f"breakpoint()\n{RIGHT}", encoding="utf-8")
    assert dojo("solution", "12").exit_code == 0
    assert sys.breakpointhook is sys.__breakpointhook__
    assert "PYTHONBREAKPOINT" not in os.environ
