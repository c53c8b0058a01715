"""The speed check: what it models and measures, and its messages."""

from __future__ import annotations

import ast
import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import virtual_cuda as bench
from gpudojo.days.day8 import pixel_loops, pixel_race
from gpudojo.days.day8.pixel_race import judge_outputs, judge_speed
from gpudojo.grading import probing
from gpudojo.grading.call import Call
from gpudojo.grading.load import SOLUTION, Submission, load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import Array, Modelled, Race
from gpudojo.model.exercise import Failed

HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "reference" / "day8" / "06_vectorizing_pixel_loops.py"
ONE = Array("float32", (1,), b"\0\0\0\0")


def takes(student: float, loop: float = 0.1) -> Modelled:
    return Modelled(student, loop, ONE)


def judge(found: Modelled, wanted: Modelled, measured: float = 1.0) -> None:
    judge_speed(found, wanted, Race(1.0, measured), Race(1.0, 40.0))


def same(a: Any, b: Any) -> bool:
    return bool(a == b)


def test_the_graders_loops_are_those_students_are_given() -> None:
    def loops(path: Path) -> dict[str, str]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        return {
            n.name: ast.unparse(n)
            for n in tree.body
            if isinstance(n, ast.FunctionDef) and n.name.endswith("_loop")
        }

    assert len(loops(REFERENCE)) == 3
    assert loops(REFERENCE) == loops(Path(pixel_loops.__file__))


def test_a_fast_one_passes_whatever_was_measured() -> None:
    for measured in (0.0, 0.1, 50.0):
        judge(takes(0.002), takes(0.002), measured)


def test_a_slow_one_is_shown_three_numbers_and_what_was_measured() -> None:
    with pytest.raises(Failed, match=r"2\.0 times as fast as the loop") as caught:
        judge(takes(0.05), takes(0.002), 31.4159)
    assert caught.value.happened.splitlines()[1:] == [
        "the loop   ████████████████████████    100.00 ms     1.0 ×",
        "yours      ████████████                 50.00 ms     2.0 ×",
        "reference  ▏                             2.00 ms    50.0 ×",
        "modelled on a T4 (estimated); measured on this machine's CPU: 31.4 ×",
    ]
    assert caught.value.expected == "at least 3.0 times as fast; the reference is 50 times as fast"


def test_where_the_reference_gains_little_less_is_asked() -> None:
    judge(takes(0.05), takes(0.02))


def test_too_good_to_be_true() -> None:
    for student in (1e-9, 0.0, -1.0):
        with pytest.raises(Failed, match="too good to be true"):
            judge(takes(student), takes(0.002))
    for student in (math.inf, math.nan):
        with pytest.raises(Failed, match="a time is"):
            judge(takes(student), takes(0.002))


def test_a_loop_that_was_slowed_down_is_not_compared_with() -> None:
    with pytest.raises(Failed, match=r"2\.0 times as fast as the loop"):
        judge(takes(0.05, loop=100.0), takes(0.002))


def test_on_a_real_gpu_the_measured_times_are_judged() -> None:
    nothing = takes(0.0, loop=0.0)
    judge_speed(nothing, nothing, Race(0.01, 0.4), Race(0.01, 0.4))
    with pytest.raises(Failed, match=r"2\.0 times as fast as the loop") as caught:
        judge_speed(nothing, nothing, Race(0.2, 0.4), Race(0.01, 0.4))
    assert caught.value.happened.endswith("measured on this machine")
    with pytest.raises(Failed, match=r"0\.8 times as fast"):  # the loop was slowed down
        judge_speed(nothing, nothing, Race(2.0, 40.0), Race(0.01, 0.4))


def test_every_timed_output_is_checked() -> None:
    right = ONE
    wrong = Array("float32", (1,), b"\0\0\0\1")
    judge_outputs(Race(1.0, 1.0, 1, [right], [ONE]), Race(1.0, 1.0, 1, [ONE], [ONE]), same)
    with pytest.raises(Failed, match="timed call 2 of 2 is wrong"):
        judge_outputs(Race(1.0, 1.0, 2, [right, wrong], [ONE, ONE]), Race(1.0, 1.0), same)
    with pytest.raises(Failed, match="0 timed calls"):
        judge_outputs(Race(1.0, 1.0), Race(1.0, 1.0), same)


def seen_of(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "06_vectorizing_pixel_loops.py"
    file.write_text(text)
    exercise = next(e for e in exercises_of("day8") if e.number == "06")
    return observe_function(
        exercise, exercise.functions[0], load_submission(file), "virtual", 8
    ).observations


VECTORISED = "return 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]\n"


def test_the_modelled_time_is_the_same_on_every_run_and_counts_sleep_and_lines_of_python(
    tmp_path: Path,
) -> None:
    def speed(more: str = "") -> dict[str, float]:
        text = f"import time\ndef grayscale(sprites):\n    {SOLUTION}\n    {more}\n    {VECTORISED}"
        found = seen_of(tmp_path, text)["pictures"].facts["speed"]
        return {name: found[name] for name in ("student", "loop")}

    plain = speed()
    assert plain == speed()
    assert plain["loop"] > 30 * plain["student"] > 0
    assert speed("time.sleep(0.05)")["student"] == pytest.approx(plain["student"] + 0.05, abs=1e-6)
    busy = speed("for _ in range(20_000): pass")
    assert busy["student"] > plain["student"] + 20_000 * pixel_race.PYTHON
    assert busy["loop"] == plain["loop"]


def test_beside_a_student_the_loop_runs_once_and_the_reference_knows_the_rest(
    tmp_path: Path,
) -> None:
    found = seen_of(tmp_path, f"def grayscale(sprites):\n    {VECTORISED}")
    assert found["pictures"].facts["speed"]["loop"] == 0
    assert [len(found["timed"].facts[name]) for name in ("outputs", "loop_outputs")] == [
        pixel_race.ROUNDS,
        1,
    ]
    right = ONE
    wrong = Array("float32", (1,), b"\0\0\0\1")
    wanted = Race(1.0, 1.0, 2, [ONE, ONE], [ONE, ONE])
    judge_outputs(Race(1.0, 1.0, 2, [right, right], [ONE]), wanted, same)
    with pytest.raises(Failed, match="timed call 2 of 2 is wrong"):
        judge_outputs(Race(1.0, 1.0, 2, [right, wrong], [ONE]), wanted, same)
    with pytest.raises(Failed, match="1 timed call"):
        judge_outputs(Race(1.0, 1.0, 2, [right], [ONE]), wanted, same)


def test_a_patched_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        time, "perf_counter", time.perf_counter
    )  # so that it is put back afterwards
    found = seen_of(
        tmp_path,
        "import time\n"
        "sleep, ticks = time.sleep, iter(range(10**9))\n"
        "time.perf_counter = lambda: next(ticks) * 1e-9\n"
        f"def grayscale(sprites):\n    sleep(0.05)\n    {VECTORISED}",
    )
    assert found["timed"].facts["student"] >= 0.05
    assert found["pictures"].facts["speed"]["student"] >= 0.05


def test_every_round_has_inputs_of_its_own() -> None:
    with bench.open_device("cpu") as opened:
        call = Call(lambda t: t + 1, Submission(REFERENCE, reference=True), opened, 8)
        found = pixel_race.race(
            call, lambda t: t + 1, lambda number: (torch.full((2,), float(number)),)
        )
    assert (
        found.rounds
        == pixel_race.ROUNDS
        == len({output.data for output in found.outputs if output})
    )
    assert found.outputs == found.loop_outputs
    assert found.speedup > 0


def test_the_virtual_device_is_not_timed_but_a_real_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    @contextlib.contextmanager
    def open_(kind: str, devices: int) -> Iterator[str]:
        opened.append(kind)
        yield kind

    for kind in ("virtual", "cpu"):
        with probing.open_machine("unwatched", kind) as plain:
            assert (plain.device.type, torch.cuda.is_available()) == ("cpu", False)
    monkeypatch.setattr(probing.virtual_cuda, "open_device", open_)
    with probing.open_machine("unwatched", "cuda"):
        assert opened == ["cuda"]
