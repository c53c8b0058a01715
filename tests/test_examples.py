"""The files in examples/: tests that can be copied, a class, and output that the README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.model.results_file import read

from tests.sharing import WarmPython

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = REPOSITORY / "examples"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("test_*.py")), ids=lambda path: path.stem)
def test_every_test_of_an_example_passes(
    example: Path, tmp_path: Path, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The plugin by hand instead of by its entry point, so that this works in a checkout that is not
    # installed, too.
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv(
        "PYTEST_ADDOPTS",
        "-p virtual_cuda.pytest_plugin --strict-markers -W error -p no:cacheprovider",
    )
    source = example.read_text(encoding="utf-8")
    (tmp_path / example.name).write_text(source, encoding="utf-8")
    said = warm_python.run("pytest", cwd=tmp_path, env=os.environ).stdout
    found = pytest.RunResult.parse_summary_nouns(said.splitlines())
    assert found == {"passed": len(re.findall("^def test_", source, re.MULTILINE))}, said


def test_a_project_without_a_gpu_runs_its_tests_on_the_virtual_device(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    source = (EXAMPLES / "project" / "test_training.py").read_text(encoding="utf-8")
    (tmp_path / "test_training.py").write_text(source, encoding="utf-8")
    options = ("-p", "virtual_cuda.pytest_plugin", "-p", "no:cacheprovider")
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY / "graders"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    outcomes = []
    for more in ((), ("--virtual-cuda",)):
        said = warm_python.run("pytest", *options, *more, cwd=tmp_path, env=environment).stdout
        outcomes.append(pytest.RunResult.parse_summary_nouns(said.splitlines()))
    assert outcomes == [{"skipped": 3}, {"passed": 3}]


def test_the_readme_shows_what_dojo_run_prints_today(warm_python: WarmPython) -> None:
    """If not: `COLUMNS=120 dojo run examples/training_loop.py`, and copy what follows the script's
    own output.
    """
    environment = os.environ | {"COLUMNS": "120", "PYTHONPATH": str(REPOSITORY / "graders")}
    done = warm_python.run(
        "gpudojo", "run", "examples/training_loop.py", cwd=REPOSITORY, env=environment
    )
    assert done.stdout.endswith("of 256 right\n")
    shown = re.search(
        r"<!-- run -->\n\n```\n(.*?)```\n", (REPOSITORY / "README.md").read_text("utf-8"), re.DOTALL
    )
    assert shown is not None
    assert shown[1] == done.stderr.lstrip("\n")


def test_the_class_is_made_of_todays_solutions(tmp_path: Path) -> None:
    """If not: `python examples/make_class.py`."""
    made = subprocess.run(
        [sys.executable, EXAMPLES / "make_class.py", tmp_path / "class"], check=False
    )
    assert made.returncode == 0

    def content(folder: Path) -> dict[str, bytes]:
        return {
            str(f.relative_to(folder)): f.read_bytes()
            for f in sorted(folder.rglob("*"))
            if f.is_file()
        }

    anew, stored = content(tmp_path / "class"), content(EXAMPLES / "class")
    assert sorted(anew) == sorted(stored)
    assert [name for name in anew if anew[name] != stored[name]] == []


@pytest.mark.usefixtures("loaded_fork_servers")
def test_the_class_is_graded_as_the_readme_says(tmp_path: Path) -> None:
    command = [
        "grade",
        str(EXAMPLES / "class"),
        "--out",
        str(tmp_path),
        "--time-limit",
        "4",
        "--jobs",
        "2",
    ]
    outcome = CliRunner().invoke(main, command)
    assert outcome.exit_code == 0, outcome.output
    rows = {row.submission[:10]: row for row in read(tmp_path / "results.json").submissions}
    assert len(rows) == 10
    assert rows["student-01"].score == 100
    assert rows["student-08"].status == "timed out"
    assert rows["student-09"].status == "crashed"
    assert rows["student-09"].score == 0
    assert {name: row.naming for name, row in rows.items() if row.naming != "plain"} == {
        "student10": "canvas"
    }
    named = {
        c.misconception
        for row in rows.values()
        for e in row.exercises
        for c in e.checks
        if c.misconception
    }
    assert {"missing-zero-grad", "hard-coded-cuda", "mean-of-batch-means"} <= named
