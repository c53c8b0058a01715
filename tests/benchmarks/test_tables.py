"""Do all benchmarks show what they measured in one form, and explain themselves?"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

import pytest

from benchmarks import tables
from tests.sharing import WarmPython

ROOT = Path(__file__).resolve().parents[2]
# All but the one for a machine with a GPU, which prints more than a table.
SCRIPTS = sorted({path.stem for path in (ROOT / "benchmarks").glob("bench_*.py")} - {"bench_cuda"})


def a_table() -> tables.Table:
    made = tables.Table(
        "Two of them", ("what", "seconds", "how"), words=("how",), notes=["Quiet.", "Cold."]
    )
    made.add("one", "1.00", "a|b")
    made.add("other", "2.00", "by hand")
    return made


def test_markdown_has_title_columns_rows_date_machine_and_notes() -> None:
    assert a_table().markdown("2026-01-02", "a machine").splitlines() == [
        "Two of them:",
        "",
        "| what | seconds | how |",
        "| --- | ---: | --- |",
        "| one | 1.00 | a/b |",
        "| other | 2.00 | by hand |",
        "",
        "2026-01-02, a machine. Quiet. Cold.",
    ]


def test_the_terminal_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    a_table().show(markdown=False)
    shown = capsys.readouterr().out
    for text in (
        "Two of them",
        "by hand",
        "Quiet.",
        datetime.date.today().isoformat(),
        tables.describe_machine(),
    ):
        assert text in shown


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for the 3 columns of 'Two of them'"):
        a_table().add("one", "1.00")


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.054, "0.05 ×"), (1.174, "1.17 ×"), (18.66, "18.7 ×"), (240.4, "240 ×")]
)
def test_a_ratio_has_about_three_digits(ratio: float, text: str) -> None:
    assert tables.format_ratio(ratio) == text


def test_the_machine_is_told_by_what_it_is_and_not_by_its_name() -> None:
    told = tables.describe_machine()
    assert told.startswith(f"{tables.core_count()}-core ")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in told
    assert "torch " in told
    if hasattr(os, "uname") and len(os.uname().nodename) > 3:
        assert os.uname().nodename not in told


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself(script: str, warm_python: WarmPython) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    run = warm_python.run(f"benchmarks.{script}", "--help", cwd=ROOT, env=environment)
    assert run.returncode == 0, run.stderr
    assert "--markdown" in run.stdout
    source = (ROOT / "benchmarks" / f"{script}.py").read_text(encoding="utf-8")
    assert source.splitlines()[0].removeprefix('"""') in run.stdout


def test_the_list_of_benchmarks_has_all_of_them() -> None:
    listed = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    missing = [
        path.name
        for path in (ROOT / "benchmarks").glob("bench_*.py")
        if f"`{path.name}`" not in listed
    ]
    assert missing == []
