"""What a student is told first about these wrong solutions is what happened, and not something like
it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.references import reference_of
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import encode_evidence
from gpudojo.model.results import Outcome
from virtual_cuda.modelled_time import _REAL_CLOCKS

from tests.solutions import grade_once

WRONG = Path(__file__).parent / "wrong"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "07_mixed_precision/steps_twice",
            "without the scaler, and scaler.step(optimizer) as well: two steps",
        ),
        (
            "07_mixed_precision/update_under_a_condition",
            "without `max_norm` scaler.step was not followed by",
        ),
        (
            "07_mixed_precision/zero_grad_between_backward_and_step",
            "backward, scaler.step; no parameter had a",
        ),
        ("09_managing_memory/acc_counts_from_zero", "steps=2) you stepped after 1 batch"),
        (
            "09_managing_memory/acc_part_to_training",
            "a part in evaluation mode, of a model in training mode, was put",
        ),
        ("09_managing_memory/half_of_them", "2 of 4 blocks ran"),
        ("10_timing_and_profiling/clock_plain_of_the_current_gpu", "it waited for another GPU"),
        (
            "10_timing_and_profiling/clock_waits_for_another_stream",
            "it waited for a stream that had no work",
        ),
        ("10_timing_and_profiling/compare_calls_make_work_wrong", "make_work() takes one device"),
        (
            "10_timing_and_profiling/top_runs_outside",
            "`fn` did not run while the profiler was recording",
        ),
        (
            "11_multiple_gpus/parallel_two_of_three",
            "with three GPUs and device='cuda' it uses the GPUs [0, 1]",
        ),
        ("11_multiple_gpus/unwrap_to_the_cpu", "inside DataParallel are torch.float32 on cpu"),
        ("12_self_assessment/renamed", "`ANSWERS` was not handed in, or is None"),
        ("12_self_assessment/whole_answer", "is 'A smaller batch.'"),
    ],
)
def test_what_happened_is_told(name: str, told: str) -> None:
    first = next(
        r for r in grade_once((WRONG / name).with_suffix(".py")) if r.outcome is Outcome.FAILED
    )
    assert told in first.happened


def test_a_batch_with_something_else_instead_of_a_tensor() -> None:
    results = grade_once(WRONG / "03_moving_batches" / "named_tuple_constructor.py")
    told = next(result for result in results if result.check == "moves_every_tensor")
    assert told.happened == "nested, non_blocking=True: `batch['labels'][1].images` is a list"
    assert told.expected == "a tensor, moved"


@pytest.mark.parametrize("function", ["time_on_device", "compare_devices"])
def test_recorded_times_do_not_depend_on_how_long_the_machine_is_up(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    exercise = next(each for each in exercises_of("day8") if each.stem == "10_timing_and_profiling")
    asked = next(each for each in exercise.functions if each.name == function)
    written = ReferenceSolution(reference_of(Path("exercises/day8/10_timing_and_profiling.py")))
    found = set()
    for up in (3.0, 1000.1, 32767.9, 32768.3):
        monkeypatch.setitem(_REAL_CLOCKS, "perf_counter", lambda up=up: up)
        found.add(encode_evidence(written.evidence_of(exercise, asked, "virtual", 10)))
    assert len(found) == 1
