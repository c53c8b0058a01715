"""What a student is told first about these wrong solutions is what happened, and not something like
it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.authoring.solution_tests import grade_once
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.references import reference_of
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import encode_evidence
from gpudojo.model.exercise import LineRole
from gpudojo.model.results import Outcome
from virtual_cuda.modelled_time import _REAL_CLOCKS

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
        ("01_checking_device/kinds_in_a_table", "another kind of device raised KeyError: 'xpu'"),
        ("09_managing_memory/device_equals_cuda", "device='cuda:0' gave 0"),
        (
            "09_managing_memory/lambda_looks_block_up_late",
            "in backward blocks 1, 2 and 3 did not run again, block 4 did",
        ),
        ("11_multiple_gpus/unwrap_to_the_cpu", "inside DataParallel are torch.float32 on cpu"),
        ("03_moving_batches/text_of_a_generator", "became '<generator object>'"),
        (
            "06_vectorizing_pixel_loops/recolor_cut_off",
            "got the colour of index 3: no index is above 3",
        ),
        (
            "06_vectorizing_pixel_loops/recolor_next_color",
            "every index is 1 too large, and begins again at the other end",
        ),
        (
            "06_vectorizing_pixel_loops/nearest_sum_over_colors",
            "the sum goes over the colours, and not over red, green and blue: no index is above 2",
        ),
        (
            "06_vectorizing_pixel_loops/nearest_palette_scaled",
            "nearest in a palette that was divided by its largest value",
        ),
        (
            "11_multiple_gpus/parallel_buffers_left",
            "its parameters are on cuda:0, its buffers on cpu",
        ),
        (
            "11_multiple_gpus/unwrap_copies_in_one_line",
            "it returned another ParallelBranches, not the model itself",
        ),
        ("12_self_assessment/renamed", "`ANSWERS` was not handed in, or is None"),
        ("12_self_assessment/whole_answer", "is 'A smaller batch.'"),
    ],
)
def test_what_happened_is_told(name: str, told: str) -> None:
    first = next(
        r for r in grade_once((WRONG / name).with_suffix(".py")) if r.outcome is Outcome.FAILED
    )
    assert told in first.happened


@pytest.mark.parametrize(
    ("name", "check", "line", "mistake"),
    [
        ("03_moving_batches/device_of_the_first_parameter", "is_true_of_nothing", 11, None),
        (
            "04_modifying_training_loop_gpu/builds_its_own_optimizer",
            "steps_once_for_every_batch",
            7,
            "another-optimizer",
        ),
        (
            "07_mixed_precision/steps_with_and_without_the_scaler",
            "learns_from_this_batch_alone",
            16,
            None,
        ),
        (
            "07_mixed_precision/steps_with_and_without_the_scaler",
            "skips_the_step_on_overflow",
            16,
            None,
        ),
    ],
)
def test_later_checks_tell_the_same_mistake(
    name: str, check: str, line: int, mistake: str | None
) -> None:
    results = grade_once((WRONG / name).with_suffix(".py"))
    told = next(result for result in results if result.check == check)
    assert (told.outcome, told.line, told.misconception) == (Outcome.FAILED, line, mistake)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("09_managing_memory/halves_with_a_point", "raises_when_nothing_fits"),
        ("09_managing_memory/one_is_never_tried", "gives_the_cache_back"),
        ("10_timing_and_profiling/last_line_cut_off", "reads_missing_values"),
    ],
)
def test_a_check_fails_by_its_own_claim(name: str, check: str) -> None:
    results = grade_once((WRONG / name).with_suffix(".py"))
    assert next(result for result in results if result.check == check).outcome is Outcome.PASSED


def test_a_batch_with_something_else_instead_of_a_tensor() -> None:
    results = grade_once(WRONG / "03_moving_batches" / "named_tuple_constructor.py")
    told = next(result for result in results if result.check == "moves_every_tensor")
    assert told.happened == "nested, non_blocking=True: `batch['labels'][1].images` is a list"
    assert told.expected == "a tensor, moved"


@pytest.mark.parametrize(
    ("name", "line", "told"),
    [
        ("03_moving_batches/compares_with_cuda", 10, "one on the CPU, one on the device"),
        ("03_moving_batches/copied_in_a_helper", 6, "was on cuda:0 already and was copied"),
        ("04_modifying_training_loop_gpu/gradients_filled_in_a_helper", 5, "were zeroed between"),
        ("04_modifying_training_loop_gpu/gradients_times_zero", 13, "were zeroed between"),
        ("04_modifying_training_loop_gpu/one_step_for_all", 13, "stepped once for 2 backward"),
        ("05_modifying_evaluation_loop_gpu/largest_over_samples_by_place", 14, "accuracy"),
        ("06_vectorizing_pixel_loops/gray_rows_in_three_statements", 8, "took 42 operations"),
        ("08_minimizing_transfers/pinned_by_update", 7, "were not pinned"),
        ("09_managing_memory/reentrant_by_another_name", 10, "does not require grad"),
        ("10_timing_and_profiling/smi_zero_by_a_function", 5, "used_mib: 0 (int)"),
        ("04_modifying_training_loop_gpu/rounded_mean", 17, "which is rounded"),
        ("07_mixed_precision/clipping_skipped_without_scaler", 12, "changed nothing"),
        ("07_mixed_precision/everything_in_half_precision", 9, "unscale FP16 gradients"),
        ("09_managing_memory/ends_without_an_error", 10, "it ended without an error"),
        ("10_timing_and_profiling/smi_last_first", 8, "in another order: the GPUs 1, 0"),
        ("10_timing_and_profiling/smi_spaces_left", None, "`name` has spaces at its beginning"),
        ("11_multiple_gpus/average_by_gpus", 9, "in rank 0"),
    ],
)
def test_what_happened_is_told_at_its_line(name: str, line: int | None, told: str) -> None:
    results = grade_once((WRONG / name).with_suffix(".py"))
    first = next(result for result in results if result.outcome is Outcome.FAILED)
    assert told in first.happened
    if line is not None:
        assert first.line == line


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("08_minimizing_transfers/pinned_by_item", LineRole.CONDITION),
        ("10_timing_and_profiling/smi_floats_by_a_function", LineRole.RETURNED),
        ("10_timing_and_profiling/smi_index_by_hand", LineRole.ASSIGNED),
        ("11_multiple_gpus/parallel_moved_when_wrapped", LineRole.CONDITION),
    ],
)
def test_the_line_is_labelled_as_what_it_is(name: str, role: LineRole) -> None:
    results = grade_once((WRONG / name).with_suffix(".py"))
    first = next(result for result in results if result.outcome is Outcome.FAILED)
    assert first.line_role is role


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        (
            "03_moving_batches/named_tuple_lost_and_dict_written",
            ["keeps_the_structure", "leaves_the_input_alone"],
        ),
        ("09_managing_memory/reentrant_everywhere", ["trains_on_plain_data"]),
        ("10_timing_and_profiling/smi_name_with_its_space", ["reads_every_gpu"]),
        ("10_timing_and_profiling/smi_texts_but_none", ["reads_every_gpu"]),
    ],
)
def test_one_mistake_fails_no_other_check(name: str, checks: list[str]) -> None:
    results = grade_once((WRONG / name).with_suffix(".py"))
    assert [each.check for each in results if each.outcome is not Outcome.PASSED] == checks


def test_a_warm_up_that_is_timed_is_not_told_as_a_missing_wait() -> None:
    results = grade_once(WRONG / "10_timing_and_profiling" / "clock_times_every_call.py")
    failed = [result for result in results if result.outcome is Outcome.FAILED]
    assert {result.check for result in failed} == {"leaves_the_warm_up_out", "waits_for_the_device"}
    assert {result.misconception for result in failed} == {"timed-the-warm-up"}


def test_state_dict_is_not_named_where_it_was_not_used() -> None:
    results = grade_once(WRONG / "02_moving_model_to_device" / "names_of_children_only.py")
    told = next(result for result in results if result.check == "names_every_buffer")
    assert told.outcome is Outcome.FAILED
    assert told.misconception is None


def test_a_scaler_of_its_own_is_not_told_as_clipping() -> None:
    path = WRONG / "07_mixed_precision" / "own_scaler_in_the_name_of_the_given.py"
    results = grade_once(path)
    told = next(result for result in results if result.check == "unscales_before_clipping")
    assert "the loss was scaled by 65536" in told.happened
    failed = [result for result in results if result.outcome is Outcome.FAILED]
    assert {result.line for result in failed} == {8}


def test_a_failure_that_another_function_causes_is_shown_there() -> None:
    results = grade_once(WRONG / "10_timing_and_profiling" / "clock_and_compare_in_milliseconds.py")
    told = {result.function: result for result in results if result.outcome is Outcome.FAILED}
    of_helper = told["time_on_device"]
    of_caller = told["compare_devices"]
    assert "this call uses `time_on_device`, which fails as well" in of_caller.happened
    assert of_caller.line == of_helper.line


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
