"""Checks in several processes (`pytest -n 2`) end with the same summary."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from gpudojo.pytest_plugin.hooks import checks_among

from tests.gpudojo.pytest_plugin.conftest import REPOSITORY, Student
from tests.gpudojo.pytest_plugin.test_student_run import DEVICE, TRAIN, half_done

pytest.importorskip("xdist")


@pytest.mark.slow
def test_the_summary_is_written_once(student: Student) -> None:
    half_done(student)
    several = "11_multiple_gpus.py"
    shutil.copy(REPOSITORY / "exercises" / "day8" / several, student.write(f"day8/{several}", ""))
    student.notebook("day8/day8.ipynb", "def to_numpy(tensor):\n    return tensor.numpy()", "1 / 0")
    done = student.pytest("-p", "xdist", "-n", "2", "--dist", "loadfile", "day8", "--timeline")
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert said.count("= points =") == 1
    assert said.count("device: virtual (no GPU here, so the virtual CUDA device), seed 8") == 1
    assert "01_checking_device              ████████████████████      8 of 8     done" in said
    assert re.search(r"^04_modifying_training_loop_gpu .* 12.5 of 14 +1 failed$", said, re.M), said
    assert re.search(r"^11_multiple_gpus .* 0 of 3 +to do$", said, re.M), said
    assert re.search(r"^08_minimizing_transfers .*failed", said, re.M), said
    assert "next: `train_epoch`: It returns the mean loss per sample, as a Python float." in said
    assert f"pytest day8/{TRAIN}::train_epoch\n" in said
    assert said.count("code cell 2, line 1 stopped with ZeroDivisionError") == 1
    assert "--timeline and --traces do not work with -n" in said


@pytest.mark.slow
def test_checks_that_did_not_run_are_counted(student: Student) -> None:
    student.write(f"day8/{DEVICE}", "def select_device(prefer=None):\n    return 'cuda'\n")
    done = student.pytest("-p", "xdist", "-n", "1", "-x", "day8")
    assert re.search(
        r"^01_checking_device .* of 8 +1 failed, [1-9]\d* not run$", done.stdout, re.M
    ), done.stdout
    assert "INTERNALERROR" not in done.stdout


@pytest.mark.slow
def test_a_missing_device_ends_the_run_with_a_message(student: Student) -> None:
    half_done(student)
    done = student.pytest("-p", "xdist", "-n", "1", "day8", "--bench", "cuda")
    assert done.returncode == 4
    assert (
        "--bench cuda: this machine has no 'cuda' device that torch can use"
        in done.stderr + done.stdout
    )
    assert "INTERNALERROR" not in done.stderr + done.stdout


def test_checks_are_found_by_node_id() -> None:
    found = dict(
        checks_among(
            [
                f"day8/{DEVICE}::select_device::returns_a_device",
                "anna/day8.ipynb::train_epoch::runs",
                "tests/test_mine.py::test_something",
                "tests/test_mine.py::TestIt::test_something",
                f"day8/{DEVICE}::select_device::no_such_check",
            ],
            Path("/home"),
        )
    )
    assert [(check.path, check.exercise.stem, check.check.name) for check in found.values()] == [
        (Path("/home/day8") / DEVICE, Path(DEVICE).stem, "returns_a_device"),
        (Path("/home/anna/day8.ipynb"), Path(TRAIN).stem, "runs"),
    ]
    assert all(check.result is None for check in found.values())
