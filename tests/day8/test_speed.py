"""The speed check: what it times, which clock it reads, and its messages."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import virtual_cuda as bench
from gpudojo.days.day8 import pixel_race
from gpudojo.days.day8.pixel_race import bars, judge_speed
from gpudojo.grading import observe as observing
from gpudojo.grading.call import Call
from gpudojo.grading.load import load
from gpudojo.grading.observe import observe
from gpudojo.model.catalogue import day
from gpudojo.model.evidence import Array, Race
from gpudojo.model.exercise import Failed

HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "reference" / "day8" / "06_vectorizing_pixel_loops.py"
ONE = Array("float32", (1,), b"\0\0\0\0")


def times(student: float, loop: float = 0.1, reference: float | None = 0.002, output: Array = ONE) -> Race:
    return Race(student, loop, reference, 1, [output], [ONE])


def same(a: Any, b: Any) -> bool:
    return bool(a == b)


def test_the_graders_loops_are_those_students_are_given() -> None:
    def loops(path: Path) -> dict[str, str]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        return {n.name: ast.unparse(n) for n in tree.body if isinstance(n, ast.FunctionDef) and "_loop" in n.name}

    assert len(loops(REFERENCE)) == 3
    assert loops(REFERENCE) == loops(Path(pixel_race.__file__))


def test_a_fast_one_passes() -> None:
    judge_speed(times(0.002), times(0.002), same)
    judge_speed(times(0.002, reference=None), times(0.002, reference=None), same)


def test_a_slow_one_is_shown_three_numbers() -> None:
    with pytest.raises(Failed, match=r"2\.0 times as fast as the loop") as caught:
        judge_speed(times(0.05), times(0.002), same)
    assert caught.value.happened.splitlines()[1:] == [
        "the loop   ████████████████████████    100.00 ms     1.0 ×",
        "yours      ████████████                 50.00 ms     2.0 ×",
        "reference  ▏                             2.00 ms    50.0 ×",
    ]
    assert caught.value.expected == "at least 3.0 times as fast; the reference is 50 times as fast"


def test_where_the_reference_gains_little_less_is_asked() -> None:
    judge_speed(times(0.05), times(0.02), same)


def test_too_good_to_be_true() -> None:
    with pytest.raises(Failed, match="too good to be true"):
        judge_speed(times(1e-9), times(0.002), same)
    with pytest.raises(Failed, match="too good to be true"):
        judge_speed(times(0.002, loop=100.0), times(0.002), same)  # the loop was slowed down


def test_every_timed_output_is_checked() -> None:
    wrong = times(0.002, output=Array("float32", (1,), b"\0\0\0\1"))
    with pytest.raises(Failed, match="timed call 1 of 1 is wrong"):
        judge_speed(wrong, times(0.002), same)


def test_the_reference_beside_it_may_be_missing() -> None:
    with pytest.raises(Failed) as caught:
        judge_speed(times(0.05, reference=None), times(0.002), same)
    assert caught.value.happened.splitlines()[3].split()[-4:] == ["2.00", "ms", "50.0", "×"]
    assert bars(0.1, 0.05, 0.002) in caught.value.happened


def test_a_patched_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # so that it is put back afterwards
    file = tmp_path / "06_vectorizing_pixel_loops.py"
    file.write_text(
        "import time\n"
        "sleep, ticks = time.sleep, iter(range(10**9))\n"
        "time.perf_counter = lambda: next(ticks) * 1e-9\n"
        "def grayscale(sprites):\n"
        "    sleep(0.05)\n"
        "    return 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]\n"
    )
    exercise = next(e for e in day("day8") if e.number == "06")
    evidence = observe(exercise, exercise.functions[0], load(file), "virtual", 8)
    assert evidence.observations["timed"].facts["student"] >= 0.05


def test_who_is_fast_runs_few_rounds_and_who_is_not_gets_another_attempt() -> None:
    def inputs(number: int) -> tuple[Any, ...]:
        return (torch.full((2,), float(number)),)

    def slow(tensor: Any) -> Any:
        sum(range(200_000))
        return tensor + 1

    with bench.open_device("cpu") as opened:
        fast = pixel_race.race(Call(lambda t: t + 1, REFERENCE, opened, 8), slow, None, inputs)
        late = pixel_race.race(Call(slow, REFERENCE, opened, 8), slow, None, inputs)
    assert fast.rounds == pixel_race.ROUNDS
    assert late.rounds >= 2 * pixel_race.ROUNDS
    assert fast.outputs == fast.loop_outputs
    assert len({output.data for output in late.outputs if output}) == late.rounds, "every round has inputs of its own"


def test_the_loop_gains_nothing_by_waiting_and_the_student_loses() -> None:
    def waiting(tensor: Any) -> Any:
        time.sleep(0.02)
        return tensor + 1

    with bench.open_device("cpu") as opened:
        found = pixel_race.race(Call(waiting, REFERENCE, opened, 8), waiting, None, lambda number: (torch.ones(2),))
    assert found.student >= 0.02
    assert found.loop < 0.02 or not pixel_race.FINE


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_processor_that_others_use_costs_the_student_nothing() -> None:
    def working(tensor: Any) -> Any:
        sum(range(300_000))  # longer than the turn that one of two processes gets
        return tensor + 1

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]  # on the same processor
    try:
        with bench.open_device("cpu") as opened:
            call = Call(working, REFERENCE, opened, 8)
            found = pixel_race.race(call, working, None, lambda number: (torch.ones(2),))
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, allowed)
    assert found.student < 2 * found.loop


def test_the_virtual_device_is_not_timed_but_a_real_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    @contextlib.contextmanager
    def open_(kind: str) -> Iterator[str]:
        opened.append(kind)
        yield kind

    for kind in ("virtual", "cpu"):
        with observing.open_machine("unwatched", kind) as plain:
            assert (plain.device.type, torch.cuda.is_available()) == ("cpu", False)
    monkeypatch.setattr(observing.virtual_cuda, "open_device", open_)
    with observing.open_machine("unwatched", "cuda"):
        assert opened == ["cuda"]


def test_a_reference_is_run_once_for_its_three_functions() -> None:
    found = [pixel_race.reference_here(REFERENCE.stem, name) for name in ("grayscale", "recolor")]
    assert None not in found
    assert len({id(getattr(function, "__globals__", None)) for function in found}) == 1
    assert pixel_race.reference_here(REFERENCE.stem, "no_such_function") is None
    assert pixel_race.reference_here("no_such_exercise", "grayscale") is None
