"""Draws the numbers of a classifier and its sprites, so that wrong formulas show.

They give another loss or another accuracy than the right formula.
"""

from __future__ import annotations

import math
from itertools import chain, permutations
from operator import eq
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.modifying_evaluation_loop_gpu.declaration import evaluate
from gpudojo.days.day8.sprites import CLASSES, SIZE, make_sprites
from gpudojo.grading.call import torch

BATCH: Final = 3
FEW: Final = 4  # sprites, so that the last batch has one
MOST: Final = 5
CLOSE: Final = 5e-5  # how far a number may be from the right one
HIDDEN: Final = 12
SMOOTHING: Final = 0.1  # of the loss: not the default, so the given loss has to be used
DRAWS: Final = 32  # at a time

Outputs = list[list[float]]  # of a model, one row for each sprite


class Numbers(NamedTuple):
    """The parameters and statistics of the model."""

    first: Any
    first_bias: Any
    last: Any
    last_bias: Any
    mean: Any
    variance: Any


class Drawn(NamedTuple):
    """A model's numbers, sprites, and the model's outputs for them."""

    numbers: Numbers
    pictures: Any
    outputs: Outputs


class LossAndAccuracy(NamedTuple):
    """What an evaluation returns."""

    loss: float
    accuracy: float


class NumberRange(NamedTuple):
    """How many numbers a part of the model has, and from where to where they are drawn."""

    size: int
    low: float
    high: float


# They are large enough that wrong answers cost visibly more than right ones.
RANGES: Final = Numbers(
    first=NumberRange(HIDDEN * 3 * SIZE * SIZE, -0.15, 0.15),
    first_bias=NumberRange(HIDDEN, -0.15, 0.15),
    last=NumberRange(CLASSES * HIDDEN, -2.4, 2.4),
    last_bias=NumberRange(CLASSES, -0.3, 0.3),
    mean=NumberRange(3, -0.5, 0.5),
    variance=NumberRange(3, 0.1, 0.3),
)

# ---- drawing -----------------------------------------------------------------------------------


@evaluate.draws_once
def draw_telling_numbers(seed: int) -> Drawn:
    """The first numbers and sprites with which wrong formulas show.

    One draw in forty will do: their outputs are computed many at a time, from the numbers alone,
    and judged as Python's numbers.
    """
    while True:
        models, pictures = _draw_models(seed)
        all_outputs = _outputs_in_evaluation_mode(models, pictures)
        for draw, outputs in enumerate(all_outputs.tolist()):
            order = _telling_order(outputs)
            if order is not None:
                numbers = Numbers(*(part[draw] for part in models))
                numbers = _with_classes_in_order(numbers, order)
                return Drawn(numbers, pictures[draw], _in_order(outputs, order))
        seed += 100_003


def _with_classes_in_order(numbers: Numbers, order: list[int]) -> Numbers:
    """The numbers of a model that gives its outputs in another order."""
    last = numbers.last[order]
    last_bias = numbers.last_bias[order]
    return numbers._replace(last=last, last_bias=last_bias)


def _draw_models(seed: int) -> tuple[Numbers, Any]:
    """The numbers of DRAWS models, and MOST sprites for each."""
    # All numbers at once, in [0, 1), then each part in its range
    sizes = [part.size for part in RANGES]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(DRAWS, sum(sizes), generator=generator)
    drawn_parts = drawn.split(sizes, dim=1)
    parts = []
    for numbers, part in zip(drawn_parts, RANGES, strict=True):
        width = part.high - part.low
        parts.append(numbers * width + part.low)
    models = Numbers(*parts)
    first = models.first.unflatten(1, (HIDDEN, -1))
    last = models.last.unflatten(1, (CLASSES, -1))
    models = models._replace(first=first, last=last)
    # Their sprites
    pictures, _ = make_sprites(DRAWS * MOST, seed + 1)
    return models, pictures.unflatten(0, (DRAWS, MOST))


def _outputs_in_evaluation_mode(models: Numbers, pictures: Any) -> Any:
    """What each of several models gives for its sprites."""
    hidden = _run_linear_layers(models.first, models.first_bias, pictures)
    channels = hidden.unflatten(2, (3, -1))
    mean = models.mean[:, None, :, None]
    variance = models.variance[:, None, :, None]
    normed = (channels - mean) / (variance + 1e-5).sqrt()
    return _run_linear_layers(models.last, models.last_bias, normed.relu())


def _run_linear_layers(weights: Any, biases: Any, inputs: Any) -> Any:
    """The outputs of one linear layer of each of several models."""
    return torch.baddbmm(biases[:, None], inputs.flatten(2), weights.mT)


# ---- whether wrong formulas show ---------------------------------------------------------------


def _telling_order(outputs: Outputs) -> list[int] | None:
    """An order of the classes in which wrong formulas show; None if there is none."""
    if not _is_telling_for_all_sizes(outputs):
        return None
    # In another order, two classes may show as one.
    for order in map(list, permutations(range(CLASSES))):
        if _is_telling_in_this_order(_in_order(outputs, order)):
            return order
    return None


def _in_order(outputs: Outputs, order: list[int]) -> Outputs:
    """The outputs with their columns in another order."""
    return [[row[place] for place in order] for row in outputs]


def _is_telling_in_this_order(outputs: Outputs) -> bool:
    """True if wrong formulas show, including one for models with a single output."""
    if _is_one_output_enough(outputs[:FEW]) or _is_one_output_enough(outputs[:MOST]):
        return False
    return _is_telling_for_all_sizes(outputs)


def _is_telling_for_all_sizes(outputs: Outputs) -> bool:
    """True if wrong formulas show in scenarios with few sprites and with most."""
    return _is_telling(outputs[:FEW]) and _is_telling(outputs[:MOST])


def _is_telling(outputs: Outputs) -> bool:
    """True if wrong formulas give other numbers.

    These are: averaging the means of batches, rounding, comparing each with each, or the largest
    output of a whole batch or of a class. The largest output is the largest by so much that half
    precision does not change which one it is.
    """
    classes = classes_of(outputs)
    if _is_comparing_each_with_each_right(outputs, classes):
        return False
    if _is_any_close_call(outputs):
        return False
    right = _evaluate_formula(outputs, classes)
    mean_of_means = batch_means(outputs).loss
    if abs(right.loss - mean_of_means) <= 0.01:
        return False
    rounded = round(right.loss, 3)
    if abs(right.loss - rounded) <= 2 * CLOSE * (1 + right.loss):
        return False
    hits = round(right.accuracy * len(outputs))
    return hits not in (_hits_of_whole_batches(outputs), _hits_of_columns(outputs))


def _is_comparing_each_with_each_right(outputs: Outputs, classes: list[int]) -> bool:
    """True if comparing all outputs of the first batch with all of its classes shows nothing."""
    in_batch = classes[:BATCH]
    answers = _places_of_largest(outputs[:BATCH])
    hits_with_each = sum(map(answers.count, in_batch))
    return hits_with_each == BATCH * _count_hits(answers, in_batch)


def _is_any_close_call(outputs: Outputs) -> bool:
    """True if half precision could change which output is the largest."""
    largest = 0.0
    closest = math.inf
    for row in outputs:
        *_, second, first = sorted(row)
        closest = min(closest, first - second)
        largest = max(largest, *map(abs, row))
    return closest < 0.03 * largest + 0.02


def _is_one_output_enough(outputs: Outputs) -> bool:
    """True if comparing one output with a threshold is right as often as the largest output.

    That is how a model for two classes is judged.
    """
    classes = classes_of(outputs)
    hits = _count_hits(_places_of_largest(outputs), classes)
    for threshold in (0.0, 0.5):
        answers = [int(row[1] > threshold) for row in outputs]
        if hits == _count_hits(answers, classes):
            return True
    return False


def _hits_of_whole_batches(outputs: Outputs) -> int:
    """How many classes are found by the place of the largest output of a whole batch."""
    hits = 0
    for rows, classes in _batches_of(outputs):
        flat = list(chain.from_iterable(rows))
        hits += classes.count(flat.index(max(flat)))
    return hits


def _hits_of_columns(outputs: Outputs) -> int:
    """How many classes are found by the place of the largest output in each column of a batch."""
    hits = 0
    for rows, classes in _batches_of(outputs):
        columns = list(map(list, zip(*rows, strict=True)))
        hits += _count_hits(_places_of_largest(columns), classes)
    return hits


def _places_of_largest(rows: Outputs) -> list[int]:
    """For each row, the place of its largest number."""
    return [row.index(max(row)) for row in rows]


def _count_hits(answers: list[int], classes: list[int]) -> int:
    """How many answers are right; where one list is longer, its end is left out."""
    return sum(map(eq, answers, classes))


# ---- the right numbers -------------------------------------------------------------------------


def classes_of(outputs: Outputs) -> list[int]:
    """The targets, of which most are what the model finds.

    They are wrong for the second sprite, and for all of the last batch. The second one's class has
    the second largest output.
    """
    last_batch = (len(outputs) - 1) // BATCH * BATCH
    classes = []
    for place, row in enumerate(outputs):
        rank = -1
        if place == 1:
            rank = -2
        if place >= last_batch:
            rank = 0
        output = sorted(row)[rank]
        classes.append(row.index(output))
    return classes


def batch_means(outputs: Outputs) -> LossAndAccuracy:
    """The means over the batches of loss and accuracy; zeros for no batch."""
    batches = _batches_of(outputs)
    if not batches:
        return LossAndAccuracy(0.0, 0.0)
    loss = 0.0
    accuracy = 0.0
    for batch in batches:
        result = _evaluate_formula(*batch)
        loss += result.loss
        accuracy += result.accuracy
    return LossAndAccuracy(loss / len(batches), accuracy / len(batches))


def _batches_of(outputs: Outputs) -> list[tuple[Outputs, list[int]]]:
    """The outputs and the classes of each batch."""
    classes = classes_of(outputs)
    batches = []
    for start in range(0, len(outputs), BATCH):
        end = start + BATCH
        batches.append((outputs[start:end], classes[start:end]))
    return batches


def _evaluate_formula(outputs: Outputs, classes: list[int]) -> LossAndAccuracy:
    """The mean loss, as `loss_fn` computes it, and the accuracy."""
    loss = 0.0
    for row, wanted in zip(outputs, classes, strict=True):
        logarithm = math.log(sum(map(math.exp, row)))
        mean = sum(row) / CLASSES
        loss += logarithm - (1 - SMOOTHING) * row[wanted] - SMOOTHING * mean
    hits = _count_hits(_places_of_largest(outputs), classes)
    return LossAndAccuracy(loss / len(classes), hits / len(classes))
