"""CONTRIBUTING's page on adding an exercise works word for word, typed and written in a copy."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpudojo.model.results_file import read

from tests.sharing import WarmPython

ROOT = Path(__file__).parents[3]
PAGE = "## Add an exercise"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"^# ((?:reference|graders|tests)/\S+\.(?:py|toml))\n", re.M)
STEM = "01_brightest_sprite"


def blocks() -> list[tuple[str, str]]:
    """The page's blocks of code, in order, with their language."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    page = text.partition(f"{PAGE}\n")[2].partition("\n## ")[0]
    return [(match[1], match[2]) for match in BLOCK.finditer(page)]


def files_in(block: str) -> Iterator[tuple[str, str]]:
    """The files of a block; a comment with its path stands above each."""
    before, *parts = FILE.split(block)
    assert not before, f"a block begins without a path: {before}"
    yield from zip(parts[::2], parts[1::2], strict=True)


def copy_of_the_repository(target: Path) -> Path:
    for folder in ("graders", "reference", "exercises", "tests/day8"):
        shutil.copytree(
            ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("conftest.py", "pyproject.toml", "tests/__init__.py", "tests/solutions.py"):
        shutil.copy(ROOT / file, target / file)
    return target


def typed(python: WarmPython, line: str, where: Path) -> subprocess.CompletedProcess[str]:
    """A line of the page, as a shell would run it where the copy is installed."""
    word, *rest = shlex.split(line)
    module, *rest = {"dojo": ["gpudojo"], "python": []}[word] + [
        part for part in rest if part != "-m"
    ]
    environment = os.environ | {
        "PYTHONPATH": str(where / "graders"),
        "COLUMNS": "140",
        "PYTHONUTF8": "1",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    return python.run(module, *rest, cwd=where, env=environment)


def graded(python: WarmPython, repository: Path, submissions: Path) -> dict[str, Any]:
    """Each student's row, by `dojo grade`."""
    run = typed(
        python,
        f"dojo grade {submissions.as_posix()} --day day9 --out results --jobs 1 -q",
        repository,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return {
        row.submission: row for row in read(repository / "results" / "results.json").submissions
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_followed_literally_ends_in_an_exercise_that_grades(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    repository = copy_of_the_repository(tmp_path / "repository")
    said: list[tuple[str, str]] = []
    written: dict[str, str] = {}
    for language, block in blocks():
        if language == "sh":
            for line in block.splitlines():
                run = typed(warm_python, line, repository)
                assert run.returncode == 0, f"{line}\n{run.stdout}{run.stderr}"
                said.append((line, run.stdout))
            continue
        for name, text in files_in(block):
            path = repository / name
            if path.suffix == ".py":
                assert path.is_file(), f"the skeleton has no {name}"
            written[name] = text
            path.write_text(text, encoding="utf-8")
    lints = [output for line, output in said if "lint" in line]
    assert len(lints) == 2
    assert "unfinished, " in lints[0]
    assert f"next: reference/day9/{STEM}.py:" in lints[0]
    assert re.search(r"│ (fine|ok) ", lints[1])
    assert not re.search("^(warning|problem): ", lints[1], re.M), lints[1]
    assert "= 9 passed in " in said[-1][1]
    assert list(repository.glob("exercises/day9/*.py")) == [
        repository / "exercises" / "day9" / f"{STEM}.py"
    ]

    # Every file of the page is clean by the rules of the house, and what students write is let be.
    for rule in ("check", "format --check"):
        run = typed(
            warm_python,
            f"python -m ruff {rule} --no-cache graders/gpudojo/days/day9 reference/day9 tests/day9",
            repository,
        )
        assert run.returncode == 0, run.stdout + run.stderr

    # A class of two.
    solutions = re.split(r"^# .*\n", written[f"tests/day9/solutions_{STEM}.py"], flags=re.M)[1:]
    for student, solution in (("right", solutions[2]), ("wrong", solutions[-1])):
        target = tmp_path / "class" / student / f"{STEM}.py"
        target.parent.mkdir(parents=True)
        target.write_text(solution, encoding="utf-8")
    found = graded(warm_python, repository, tmp_path / "class")
    assert found["right"].score == 4
    assert found["wrong"].score == 2.5
    (failed,) = [check for check in found["wrong"].exercises[0].checks if check.outcome == "failed"]
    assert (failed.id, failed.misconception) == (
        f"{STEM}::brightest::waits_once",
        "waits-in-a-loop",
    )
    assert (failed.happened, failed.line) == ("with eight sprites the CPU waited 8 times", 2)
