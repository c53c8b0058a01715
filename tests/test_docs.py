"""The docs name files and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks" / "README.md"]
)
NAMED = re.compile(
    r"`((?:graders|tests|benchmarks|examples|docs|reference|exercises)/[a-z0-9_./-]*)`"
)
LINKED = re.compile(r"\]\((?!https?:|#)([^)#]+)")
MADE_BY_THE_READER = (
    "tests/day1",
    "reference/day1",
    "exercises/day1",
    "graders/gpudojo/days/day9",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = [ROOT / path for path in NAMED.findall(text) if not path.startswith(MADE_BY_THE_READER)]
    linked = [page.parent / path for path in LINKED.findall(text)]
    assert [str(path) for path in (*named, *linked) if not path.exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 250


def test_the_readme_s_test_line_is_what_ci_runs() -> None:
    (line,) = re.findall(
        r"&& (python -m pytest .*)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert f"\n{line}" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
