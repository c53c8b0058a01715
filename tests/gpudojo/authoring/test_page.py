"""docs/authoring.md works word for word, typed and written in an empty folder.

gpudojo is installed there as from a wheel, without its clone.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpudojo.model.results_file import read
from hatchling.builders.wheel import WheelBuilder

from tools import list_checks

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "authoring.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(
    r"^# ((?:add to )?(?:reference|sprite_course|tests|submissions)/\S+\.(?:py|toml))\n", re.M
)
STEM = "01_brightest_sprite"


def blocks() -> list[tuple[str, str]]:
    """The page's blocks of code, in order, with their language."""
    return [(match[1], match[2]) for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


def files_in(block: str) -> Iterator[tuple[str, str]]:
    """The files of a block; a comment with its path stands above each, or "add to" and the path."""
    before, *parts = FILE.split(block)
    assert not before, f"a block begins without a path: {before}"
    yield from zip(parts[::2], parts[1::2], strict=True)


def environment_at(folder: Path, *more: Path) -> Path:
    """Python in an environment of its own that borrows what this one has installed.

    `more` is on its path first.
    """
    venv.create(folder, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text(
        "\n".join([*map(str, more), *borrowed]), encoding="utf-8"
    )
    return folder / "bin" / "python"


def environment_without_clone(folder: Path) -> Path:
    """Python in an environment of its own, in which gpudojo is installed from a wheel."""
    python = environment_at(folder / "environment")
    built = next(iter(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])))
    run = typed(python, f"pip install --quiet --no-deps {built}", folder)
    assert run.returncode == 0, run.stdout + run.stderr
    return python


def typed(python: Path, line: str, where: Path) -> subprocess.CompletedProcess[str]:
    """A line of the page, as a shell would run it where that environment is switched on."""
    word, *rest = shlex.split(line)
    module = {"dojo": ["-m", "gpudojo"], "pip": ["-m", "pip"], "python": []}[word]
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTE"))
    }
    environment = kept | {
        "COLUMNS": "140",
        "PYTHONUTF8": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which pip reads as: do not isolate
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    command = [str(python), *module, *rest]
    return subprocess.run(
        command, cwd=where, env=environment, capture_output=True, encoding="utf-8", timeout=300
    )


def write_files_of(block: str, folder: Path) -> None:
    """Write the files of a block below a folder."""
    for name, text in files_in(block):
        path = folder / name.removeprefix("add to ")
        if path != folder / name:
            text = path.read_text(encoding="utf-8") + text
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.name == "nt", reason="classes are graded on Linux and macOS")
def test_the_page_followed_literally_ends_in_a_graded_submission(tmp_path: Path) -> None:
    python = environment_without_clone(tmp_path)
    course = tmp_path / "course"
    course.mkdir()
    said: dict[str, list[str]] = {}
    for language, block in blocks():
        if language != "sh":
            write_files_of(block, course)
            continue
        for line in block.splitlines():
            run = typed(python, line, course)
            assert run.returncode == 0, f"{line}\n{run.stdout}{run.stderr}"
            said.setdefault(line, []).append(run.stdout)
    first, second, third = said["dojo lint"]
    assert f"next: reference/day1/{STEM}.py:" in first
    for later in (second, third):
        assert re.search(r"│ ok ", later)
        assert not re.search("^(warning|problem): ", later, re.M), later
    tested, tested_again = said["python -m pytest tests"]
    assert "10 passed" in tested
    assert "22 passed" in tested_again

    # What students get has the wheel of the installed gpudojo with this day alone.
    (built,) = (tmp_path / "sprites" / "vendor").glob("*.whl")
    assert built.name.startswith("gpudojo-")

    # Ada's loop returns the right index and waits once: for the index.
    (row,) = read(course / "results" / "results.json").submissions
    assert (row.submission, row.score) == ("ada", 4)

    # Every file that the page shows is clean by the rules of the house.
    for rule in ("check", "format --check"):
        line = f"python -m ruff {rule} --no-cache --config {ROOT / 'pyproject.toml'}"
        run = typed(python, f"{line} sprite_course reference", course)
        assert run.returncode == 0, run.stdout + run.stderr


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert list_checks.fill_page(page) == page, "run: python -m tools.list_checks"
    ready_made = list_checks.tables()["ready-made"]
    for name in ("runs", "same_as_reference", "reads_nothing_back", "changes_no_settings"):
        assert f"| `{name}(function" in ready_made
    assert "| `trip-through-numpy` |" in ready_made
    with pytest.raises(ValueError, match="no place for the table 'ready-made'"):
        list_checks.fill_page("")
