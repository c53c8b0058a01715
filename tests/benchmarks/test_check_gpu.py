"""Does `make gpu` tell what passed, what failed, what took too long, and that there is no GPU?"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import check_gpu
from benchmarks.check_gpu import Deadline, Finished, Outcome, Part

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="real GPUs are used on Linux")
PART_NAMES = tuple(part.name for part in check_gpu.PARTS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    command = [sys.executable, "-m", "benchmarks.check_gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "There is no GPU here that torch can use, so nothing was checked.\n"
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize("names", [["class"], ["watch", "class"], list(PART_NAMES)])
def test_all_parts_together_take_less_than_ten_minutes(names: list[str]) -> None:
    limits = check_gpu.time_limits(names)
    assert {part.name for part in limits} == set(names)
    assert sum(limits.values()) + check_gpu.ENDING_SECONDS * len(limits) < 600


def test_a_part_that_fails_is_in_the_table_and_below_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Part("good", "what works", 5, lambda deadline: Outcome(3, 3, []))
    bad = Part("bad", "what does not", 5, lambda deadline: Outcome(1, 2, ["the second"]))
    none = Part("none", "what runs nothing", 5, lambda deadline: Outcome(0, 0, []))
    monkeypatch.setattr(check_gpu, "PARTS", (good, bad, none))
    assert check_gpu.run_parts(["good"], "GPU", markdown=True)
    assert not check_gpu.run_parts(["bad", "none"], "GPU", markdown=True)
    printed = capsys.readouterr().out
    assert "| good | what works | 3 of 3 | 0 |" in printed
    assert "| bad | what does not | 1 of 2 | 0 |" in printed
    assert printed.endswith("bad failed:\n    the second\nnone failed:\n")


def is_running(process: str) -> bool:
    """False for a process that has ended, also while nobody has asked for its exit status."""
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


class DeadlineAfter(Deadline):
    """Is over as soon as a file is there."""

    def __init__(self, file: Path) -> None:
        super().__init__(60)
        self.file = file

    def left(self) -> float:
        while not self.file.exists() and not self.is_over():
            time.sleep(0.01)
        return 0.01


def test_a_command_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    grandchild = f"import os, time; os.mknod({str(started)!r}); time.sleep(600)"
    process = f"[sys.executable, '-c', {grandchild!r}]"
    source = f"import subprocess, sys\np = subprocess.Popen({process})\nprint(p.pid)\np.wait()"
    command = [sys.executable, "-c", source]
    environment = check_gpu.environment_with("")
    finished = check_gpu.run_command(command, DeadlineAfter(started), environment)
    number, *_, last_line = finished.output.splitlines()
    assert (finished.code, last_line) == (None, "it had not ended after 60 s")
    end = time.monotonic() + 60
    while is_running(number) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(number)


def test_what_is_visible_is_set_for_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert "CUDA_VISIBLE_DEVICES" not in check_gpu.environment_with(check_gpu.UNSET)
    assert check_gpu.environment_with("")["CUDA_VISIBLE_DEVICES"] == ""
    assert check_gpu.environment_with("0")["CUDA_VISIBLE_DEVICES"] == "0"


def test_tests_are_counted_without_those_that_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "test_three.py"
    file.write_text(
        "import pytest\n"
        "def test_a(): pass\n"
        "def test_b(): assert 0, 'wrong'\n"
        "@pytest.mark.skip\n"
        "def test_c(): pass\n"
    )
    outcome = check_gpu.run_tests(Deadline(60), [str(file)], "")
    assert (outcome.passed, outcome.total, outcome.ok) == (1, 2, False)
    assert "test_b" in " ".join(outcome.notes)


def test_tests_that_were_stopped_have_failed(tmp_path: Path) -> None:
    """What has passed until then is counted."""
    file = tmp_path / "test_two.py"
    started = tmp_path / "started"
    file.write_text(
        "import os, time\n"
        "def test_a(): pass\n"
        f"def test_b(): os.mknod({str(started)!r}); time.sleep(600)\n"
    )
    words = [str(file), "-p", "no:randomly"]
    outcome = check_gpu.run_tests(DeadlineAfter(started), words, "")
    assert (outcome.passed, outcome.total, outcome.ok) == (1, 2, False)


def test_a_refusal_is_one_sentence_about_the_gpu() -> None:
    sentence = "Error: --bench cuda needs an NVIDIA GPU, and this machine has none"
    command = ["python", "-m", "gpudojo", "grade"]
    for finished, passed in (
        (Finished(1, sentence), True),
        (Finished(0, sentence), False),
        (Finished(None, sentence), False),
        (Finished(1, f"Traceback\n{sentence}"), False),
        (Finished(1, "KeyError: 'cuda'"), False),
    ):
        assert check_gpu._outcome_of_refusal(command, finished).ok == passed


@pytest.mark.slow
def test_every_command_refuses_where_no_gpu_is_visible() -> None:
    assert check_gpu.check_hidden(Deadline(300)) == Outcome(3, 3, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exercises", "class", "watch"])
def test_a_part_passes_on_the_virtual_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_gpu, "BENCH", "virtual")
    monkeypatch.setattr(check_gpu, "VISIBLE", (check_gpu.UNSET,))  # there is no GPU to be seen
    monkeypatch.setattr(check_gpu, "STUDENTS", 3)
    part = next(part for part in check_gpu.PARTS if part.name == name)
    assert part.run(Deadline(400)).ok
