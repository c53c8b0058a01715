"""Every file of the day runs as a script, to do and solved, and shows something.

A file to do names the functions that are still to do. Nothing is written beside it, and the
terminal may have no colours and only ASCII.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from gpudojo.model.catalogue import exercises_of
from gpudojo.release.stubs import stub_of

from tests.sharing import WarmPython

ROOT = Path(__file__).parents[2]
EXERCISES = exercises_of("day8")
TODO = "still to do"
# All in one process, because importing torch takes longer than running any of them. The first
# optimizer of a process imports half of torch, which is no part of an exercise either.
ONE_BY_ONE = """
import contextlib, io, json, runpy, sys, time, traceback
import torch
import torch._dynamo
shown = []
for script in sys.argv[1:]:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    failed, began = None, time.process_time()
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException:
            failed = traceback.format_exc()
    screen.flush()
    shown.append([failed, screen.buffer.getvalue().decode("ascii"), time.process_time() - began])
print(json.dumps(shown))
"""


def python(
    warm: WarmPython, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python as a student would, from the repository's folder, in no terminal.

    A warning is an error.

    Except one, which begins with "Warning": on some releases of torch every use of its profiler
    warns.
    """
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FORCE_COLOR", "COLORTERM")
    }
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    here = plain | {
        "PYTHONPATH": path,
        "COLUMNS": "100",
        "PYTHONWARNINGS": "error,ignore:Warning:UserWarning",
    }
    return warm.run(*arguments, cwd=ROOT, env=here | environment)


def each_of(warm: WarmPython, *scripts: Path) -> list[tuple[str | None, str, float]]:
    """The error of each script if it failed, its output, and its CPU seconds."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "one_by_one.py").write_text(ONE_BY_ONE, encoding="utf-8")
        ran = python(warm, str(Path(folder) / "one_by_one.py"), *map(str, scripts))
    assert ran.returncode == 0, ran.stderr
    return [(failed, shown, seconds) for failed, shown, seconds in json.loads(ran.stdout)]


@cache
def demos(warm: WarmPython, solved: bool) -> dict[str, tuple[str | None, str, float]]:
    with TemporaryDirectory() as folder:
        scripts = [script_of(exercise.stem, solved, Path(folder)) for exercise in EXERCISES]
        ran = each_of(warm, *scripts)
        assert solved or sorted(os.listdir(folder)) == sorted(script.name for script in scripts), (
            "it left a file"
        )
    return dict(zip((exercise.stem for exercise in EXERCISES), ran, strict=True))


def script_of(stem: str, solved: bool, folder: Path) -> Path:
    """The solution, or a stub made from it: stale stubs are reported by other tests."""
    reference = ROOT / "reference" / "day8" / f"{stem}.py"
    if solved:
        return reference
    stub = folder / reference.name
    stub.write_text(stub_of(reference.read_text(encoding="utf-8")), encoding="utf-8")
    return stub


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.stem)
def test_to_do_it_says_what_is(exercise: Any, warm_python: WarmPython) -> None:
    failed, shown, _ = demos(warm_python, solved=False)[exercise.stem]
    assert failed is None, failed
    said = [line for line in shown.splitlines() if TODO in line]
    assert said, shown
    assert any(function.name in line for function in exercise.functions for line in said), said


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.stem)
def test_solved_it_shows_its_idea_in_two_seconds(exercise: Any, warm_python: WarmPython) -> None:
    failed, shown, seconds = demos(warm_python, solved=True)[exercise.stem]
    assert failed is None, failed
    assert TODO not in shown
    assert len(shown.splitlines()) >= 3, shown
    assert seconds < 2


def test_a_file_by_itself_draws_in_colour_where_there_is_colour(warm_python: WarmPython) -> None:
    script = str(ROOT / "reference" / "day8" / "04_modifying_training_loop_gpu.py")
    ran = python(warm_python, script, FORCE_COLOR="1", TERM="xterm", PYTHONIOENCODING="utf-8")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "▀" in ran.stdout
    assert "\x1b[" in ran.stdout


def test_a_demo_that_fails_or_warns_is_noticed(warm_python: WarmPython, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import warnings\nwarnings.warn('old')\n", encoding="utf-8")
    (tmp_path / "odd.py").write_text("print('\\u2580')\n", encoding="utf-8")
    warned, unwritable = (
        failed for failed, *_ in each_of(warm_python, tmp_path / "fails.py", tmp_path / "odd.py")
    )
    assert "UserWarning: old" in (warned or "")
    assert "UnicodeEncodeError" in (unwritable or "")


def test_the_line_that_says_how_to_run_a_file_runs_it_on_a_gpu(warm_python: WarmPython) -> None:
    file = ROOT / "reference" / "day8" / "03_moving_batches.py"
    assert f"\nRun me: dojo run exercises/day8/{file.name}\n" in file.read_text(encoding="utf-8")
    done = python(warm_python, "gpudojo", "run", str(file))
    assert (done.returncode, "ghosts, moved from cpu to cuda:0:" in done.stdout) == (0, True), (
        done.stdout + done.stderr
    )
    heading = (
        "What each line did on the virtual GPU, "
        "and how long it would take on T4 (estimated), modelled:"
    )
    assert heading in done.stderr
