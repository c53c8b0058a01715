"""Draws the numbers of a classifier and its sprites, so that wrong formulas show.

They give another loss or another accuracy than the right formula.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations
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
        for draw, outputs in enumerate(_outputs_in_evaluation_mode(models, pictures).tolist()):
            order = _telling_order(outputs)
            if order is not None:
                numbers = Numbers(*(each[draw] for each in models))
                last = numbers.last[order]
                last_bias = numbers.last_bias[order]
                numbers = numbers._replace(last=last, last_bias=last_bias)
                return Drawn(numbers, pictures[draw], _in_order(outputs, order))
        seed += 100_003


def _draw_models(seed: int) -> tuple[Numbers, Any]:
    """The numbers of DRAWS models, and MOST sprites for each."""
    lows, widths = _lows_and_widths()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(DRAWS, len(lows), generator=generator).mul_(widths).add_(lows)
    numbers = Numbers(*drawn.split([part.size for part in RANGES], dim=1))
    first = numbers.first.unflatten(1, (HIDDEN, -1))
    last = numbers.last.unflatten(1, (CLASSES, -1))
    pictures, _ = make_sprites(DRAWS * MOST, seed + 1)
    return numbers._replace(first=first, last=last), pictures.unflatten(0, (DRAWS, MOST))


@lru_cache(maxsize=1)
def _lows_and_widths() -> tuple[Any, Any]:
    """For each number of a model, where its range begins and how wide it is."""
    lows = [torch.full((part.size,), part.low) for part in RANGES]
    widths = [torch.full((part.size,), part.high - part.low) for part in RANGES]
    return torch.cat(lows), torch.cat(widths)


def _outputs_in_evaluation_mode(models: Numbers, pictures: Any) -> Any:
    """What each of several models gives for its sprites."""
    hidden = torch.baddbmm(models.first_bias[:, None], pictures.flatten(2), models.first.mT)
    channels = hidden.unflatten(2, (3, -1))
    deviation = (models.variance[:, None, :, None] + 1e-5).sqrt()
    normed = (channels - models.mean[:, None, :, None]) / deviation
    return torch.baddbmm(models.last_bias[:, None], normed.relu().flatten(2), models.last.mT)


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
    if any(_is_one_output_enough(outputs[:samples]) for samples in (FEW, MOST)):
        return False
    return _is_telling_for_all_sizes(outputs)


def _is_telling_for_all_sizes(outputs: Outputs) -> bool:
    return all(_is_telling(outputs[:samples]) for samples in (FEW, MOST))


def _is_telling(outputs: Outputs) -> bool:
    """True if wrong formulas give other numbers.

    These are: averaging the means of batches, rounding, comparing each with each, or the largest
    output of a whole batch or of a class. The largest output is the largest by so much that half
    precision does not change which one it is.
    """
    classes = classes_of(outputs)
    if _is_comparing_each_with_each_right(outputs, classes) or _is_any_close_call(outputs):
        return False
    right = _evaluate_formula(outputs, classes)
    if abs(right.loss - batch_means(outputs).loss) <= 0.01:
        return False
    if abs(right.loss - round(right.loss, 3)) <= 2 * CLOSE * (1 + right.loss):
        return False
    hits = round(right.accuracy * len(outputs))
    return hits not in (_hits_of_whole_batches(outputs), _hits_of_columns(outputs))


def _is_comparing_each_with_each_right(outputs: Outputs, classes: list[int]) -> bool:
    """True if comparing all outputs of the first batch with all of its classes shows nothing."""
    largest = [_place_of_largest(row) for row in outputs[:BATCH]]
    compared_with_each = sum(map(largest.count, classes[:BATCH]))
    hits: int = sum(map(eq, largest, classes))
    return compared_with_each == BATCH * hits


def _is_any_close_call(outputs: Outputs) -> bool:
    """True if half precision could change which output is the largest."""
    size = max(abs(value) for row in outputs for value in row)
    closest = min(max(row) - sorted(row)[-2] for row in outputs)
    return closest < 0.03 * size + 0.02


def _is_one_output_enough(outputs: Outputs) -> bool:
    """True if comparing one output with a threshold is right as often as the largest output.

    That is how a model for two classes is judged.
    """
    classes = classes_of(outputs)
    hits = sum(map(eq, map(_place_of_largest, outputs), classes))
    for threshold in (0.0, 0.5):
        above = [row[1] > threshold for row in outputs]
        if hits == sum(map(eq, above, classes)):
            return True
    return False


def _hits_of_whole_batches(outputs: Outputs) -> int:
    """How many classes are found by the place of the largest output of a whole batch."""
    hits = 0
    for rows, classes in _batches_of(outputs):
        flat = [value for row in rows for value in row]
        hits += classes.count(_place_of_largest(flat))
    return hits


def _hits_of_columns(outputs: Outputs) -> int:
    """How many classes are found by the place of the largest output in each column of a batch."""
    hits = 0
    for rows, classes in _batches_of(outputs):
        columns = map(list, zip(*rows, strict=True))
        hits += sum(map(eq, map(_place_of_largest, columns), classes))
    return hits


# ---- the right numbers -------------------------------------------------------------------------


def classes_of(outputs: Outputs) -> list[int]:
    """The targets, of which most are what the model finds.

    They are wrong for the second sprite, and for all of the last batch. The second one's class has
    the second largest output.
    """
    last_batch = (len(outputs) - 1) // BATCH * BATCH
    classes = []
    for place, row in enumerate(outputs):
        ranked = sorted(row)
        wanted = ranked[-1]
        if place == 1:
            wanted = ranked[-2]
        if place >= last_batch:
            wanted = ranked[0]
        classes.append(row.index(wanted))
    return classes


def batch_means(outputs: Outputs) -> LossAndAccuracy:
    """The means over the batches of loss and accuracy; zeros for no batch."""
    results = [_evaluate_formula(*batch) for batch in _batches_of(outputs)]
    if not results:
        return LossAndAccuracy(0.0, 0.0)
    loss = sum(result.loss for result in results) / len(results)
    accuracy = sum(result.accuracy for result in results) / len(results)
    return LossAndAccuracy(loss, accuracy)


def _batches_of(outputs: Outputs) -> list[tuple[Outputs, list[int]]]:
    """The outputs and the classes of each batch."""
    classes = classes_of(outputs)
    starts = range(0, len(outputs), BATCH)
    return [(outputs[start : start + BATCH], classes[start : start + BATCH]) for start in starts]


def _evaluate_formula(outputs: Outputs, classes: list[int]) -> LossAndAccuracy:
    """The mean loss, as `loss_fn` computes it, and the accuracy."""
    loss = 0.0
    hits = 0.0
    for row, wanted in zip(outputs, classes, strict=True):
        logarithm = math.log(sum(map(math.exp, row)))
        loss += logarithm - (1 - SMOOTHING) * row[wanted] - SMOOTHING * sum(row) / CLASSES
        hits += _place_of_largest(row) == wanted
    return LossAndAccuracy(loss / len(classes), hits / len(classes))


def _place_of_largest(values: list[float]) -> int:
    return values.index(max(values))
