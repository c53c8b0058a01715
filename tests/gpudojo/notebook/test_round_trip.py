"""A solved notebook gets the same grade as the solved files, from pytest and from `dojo grade`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import Outcome
from gpudojo.model.results_file import read
from gpudojo.release.notebooks import notebooks_of_day

from tests.gpudojo.notebook.solving import REFERENCE, ROOT, filled, reference
from tests.sharing import WarmPython

WRONG = {
    "train_epoch": "def train_epoch(model, loader, loss_fn, optimizer, device):\n    return 1 / 0",
    "ANSWERS": "ANSWERS = dict.fromkeys(QUESTIONS, 'a')",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class: files, notebooks and one notebook for the day, all solved.

    And a notebook and files with mistakes.
    """
    made = tmp_path_factory.mktemp("class")
    answers = reference()
    for name, data in notebooks_of_day(ROOT, "day8").items():
        whole = name.endswith("day8.ipynb")
        _write(made / ("days" if whole else "sheets") / Path(name).name, filled(data, answers))
        if whole:
            _write(made / "mistaken" / "day8.ipynb", filled(data, answers | WRONG))
            _write(made / "untouched" / "day8.ipynb", data)
    for path in REFERENCE.glob("*.py"):
        _write(made / "files" / path.name, path.read_bytes())
        source = path.read_text(encoding="utf-8")
        for name, text in WRONG.items():
            source = source.replace(answers[name], text)
        _write(made / "wrong" / path.name, source.encode())
    return made


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def pytested(python: WarmPython, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_timeout",
        "-p",
        "gpudojo.pytest_plugin",
    )
    root = paths[0].parent
    place = ("-c", os.devnull, "--rootdir", str(root))
    return python.run("pytest", *options, *place, *map(str, paths), cwd=root, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_pytest_passes_all_checks_of_all_solved_notebooks(
    warm_python: WarmPython, folder: Path
) -> None:
    done = pytested(
        warm_python, *sorted((folder / "sheets").iterdir()), folder / "days" / "day8.ipynb"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    checks = sum(
        len(function.checks) for exercise in exercises_of("day8") for function in exercise.functions
    )
    assert f"{2 * checks} passed" in done.stdout
    assert "note:" not in done.stdout, (
        "every cell of a notebook runs, the opening one and the checks included"
    )


@pytest.mark.slow
@pytest.mark.timeout(250)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="grading a class needs a system that can fork")
@pytest.mark.usefixtures("loaded_fork_servers")
def test_dojo_grade_gives_the_same_verdicts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(main, ["grade", str(folder), "--out", str(tmp_path), "--quiet"])
    assert done.exit_code == 0, done.output
    rows = {row.submission: row for row in read(tmp_path / "results.json").submissions}
    verdicts = {
        who: {
            check.id: (check.outcome, check.happened, check.misconception)
            for exercise in row.exercises
            for check in exercise.checks
        }
        for who, row in rows.items()
    }
    assert verdicts["sheets"] == verdicts["days"] == verdicts["files"]
    assert {outcome for outcome, *_ in verdicts["days"].values()} == {Outcome.PASSED}
    assert {rows[who].score for who in ("sheets", "days", "files")} == {100}
    assert verdicts["mistaken"] == verdicts["wrong"]
    assert rows["mistaken"].score == rows["wrong"].score < 85
    assert {outcome for outcome, *_ in verdicts["untouched"].values()} == {Outcome.TODO}
    assert {
        who: (row.notes, row.needs_human)
        for who, row in rows.items()
        if row.notes or row.needs_human
    } == {}


def test_solving_a_notebook_fills_every_task(folder: Path) -> None:
    for path in [*(folder / "sheets").iterdir(), folder / "days" / "day8.ipynb"]:
        assert "NotImplementedError\\n" not in path.read_text(encoding="utf-8")
        assert '"raise NotImplementedError"' not in path.read_text(encoding="utf-8")
