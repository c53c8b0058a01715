"""Points are paid for what is done: loops as in PyTorch's quickstart get their share, an edge case
costs its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.authoring.solution_tests import grade_once
from gpudojo.model.results import Outcome

WRONG = Path(__file__).parent / "wrong"
# What a solution is not paid for; everything else it is.
MISSED = {
    # Gradients are zeroed after the step only, and nothing is returned.
    "04_modifying_training_loop_gpu/quickstart": {
        "learns_as_it_should",
        "returns_the_mean_loss_per_sample",
        "copes_with_nothing",
    },
    "04_modifying_training_loop_gpu/quickstart_with_a_mean": {
        "learns_as_it_should",
        "returns_the_mean_loss_per_sample",
        "copes_with_nothing",
    },
    "04_modifying_training_loop_gpu/empty_divides_by_zero": {"copes_with_nothing"},
    "05_modifying_evaluation_loop_gpu/quickstart": {
        "returns_the_mean_loss_per_sample",
        "copes_with_nothing",
    },
    "05_modifying_evaluation_loop_gpu/quickstart_prints_only": {
        "returns_two_floats",
        "returns_the_mean_loss_per_sample",
        "returns_the_accuracy",
        "copes_with_nothing",
    },
    "05_modifying_evaluation_loop_gpu/empty_divides_by_zero": {"copes_with_nothing"},
    "05_modifying_evaluation_loop_gpu/empty_has_no_outputs": {"copes_with_nothing"},
    "02_moving_model_to_device/first_parameter_decides": {"copes_with_nothing"},
    "06_vectorizing_pixel_loops/nearest_squeezed": {"right_on_the_smallest"},
}


@pytest.mark.parametrize("solution", MISSED)
def test_what_is_right_is_paid(solution: str) -> None:
    results = grade_once(WRONG / f"{solution}.py")
    assert {result.check for result in results if result.outcome is not Outcome.PASSED} == MISSED[
        solution
    ]
    assert sum(result.points for result in results) > 0


def test_a_wrong_device_costs_more_than_a_wrong_mean() -> None:
    folder = WRONG / "04_modifying_training_loop_gpu"
    points = {}
    for name in ("outputs_to_the_cpu", "hard_coded_data", "weighted_by_full_batches"):
        results = grade_once(folder / f"{name}.py")
        points[name] = sum(result.points for result in results)
    wrong_mean = points.pop("weighted_by_full_batches")
    assert max(points.values()) < wrong_mean


def test_a_step_without_mixed_precision_gets_little() -> None:
    results = grade_once(WRONG / "07_mixed_precision" / "neither_autocast_nor_scaler.py")
    points = sum(result.points for result in results)
    most = sum(result.max_points for result in results)
    assert points <= most / 6
