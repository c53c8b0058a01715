"""Scenarios are constructed so that no verdict depends on the seed.

`bench_seeds` grades all kept solutions.
"""

from __future__ import annotations

from pathlib import Path

import torch
from gpudojo.authoring.solution_tests import exercise_of, reference_solution
from gpudojo.days.day8.managing_memory import largest_batch
from gpudojo.days.day8.mixed_precision import steps as precision_steps
from gpudojo.days.day8.modifying_evaluation_loop_gpu import numbers as evaluation_numbers
from gpudojo.days.day8.modifying_evaluation_loop_gpu.evaluate import make_layers
from gpudojo.grading.engine import grade_function
from gpudojo.grading.load import load_submission
from gpudojo.model.results import Outcome

SEEDS = range(1, 101)


def test_half_precision_does_not_change_the_predictions_of_05() -> None:
    for seed in SEEDS:
        numbers, pictures, logits = evaluation_numbers.draw_telling_numbers(seed)
        model = torch.nn.Sequential(make_layers(numbers)).eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(pictures).argmax(dim=1), logits[0].argmax(dim=1)), seed


def test_a_mean_loss_that_is_right_by_chance_in_half_precision_fails_in_05() -> None:
    exercise = exercise_of("day8", "05_modifying_evaluation_loop_gpu")
    path = Path(__file__).parent / "wrong" / exercise.stem / "under_autocast.py"
    (function,) = exercise.functions
    for seed in (1, 79):
        results = grade_function(
            exercise,
            function,
            load_submission(path),
            reference_solution("day8", exercise.stem),
            "virtual",
            seed,
        )
        missed = [result.check for result in results if result.outcome is not Outcome.PASSED]
        assert missed == ["returns_the_mean_loss_per_sample"], seed


def test_the_largest_output_of_a_batch_counts_other_hits_in_05() -> None:
    for seed in SEEDS:
        for samples in (evaluation_numbers.FEW, evaluation_numbers.MOST):
            outputs = evaluation_numbers.draw_telling_numbers(seed).outputs[:, :samples]
            parts = (outputs[0], evaluation_numbers.classes_of(outputs)[0])
            batches = zip(*(part.split(evaluation_numbers.BATCH) for part in parts), strict=True)
            hits = [[int((x.argmax(*dim) == y).sum()) for dim in ((1,), ())] for x, y in batches]
            right, of_all = map(sum, zip(*hits, strict=True))
            assert right != of_all, seed


def test_gradients_of_07_are_clipped_and_do_not_overflow_when_scaled_twice() -> None:
    for seed in SEEDS:
        model = torch.nn.Sequential(*precision_steps.make_layers(seed))
        pictures, classes = precision_steps.make_batch(seed)
        loss = torch.nn.functional.cross_entropy(model(pictures), classes)
        (loss / precision_steps.LESS).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
        assert 2 * precision_steps.HARD < norm < precision_steps.SOFTLY / 2, seed
        assert norm * precision_steps.SCALE > 2 * precision_steps.SOFTLY, seed
        doubled = 2 * precision_steps.SCALE  # after a good step
        assert max(gradient.abs().max().item() for gradient in gradients) * doubled**2 < 65504, seed


def test_who_subtracts_one_never_reaches_the_other_error_of_09() -> None:
    starts = {largest_batch.error_start(seed) for seed in SEEDS}
    assert len(starts) > 1
    assert min(starts) // 2 > largest_batch.ENOUGH
