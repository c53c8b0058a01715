"""Draws the numbers of a classifier and its sprites, so that wrong formulas show.

They give another loss or another accuracy than the right formula. All are computed for many models
at once: the first dimension of every tensor is that of the models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.modifying_evaluation_loop_gpu.declaration import evaluate
from gpudojo.days.day8.sprites import CLASSES, SPRITE_NUMBERS, make_sprites
from gpudojo.grading.call import nn, torch

BATCH: Final = 3
FEW: Final = 4  # sprites, so that the last batch has one
MOST: Final = 5
CLOSE: Final = 5e-5  # how far a number may be from the right one
HIDDEN: Final = 12
SMOOTHING: Final = 0.1  # of the loss: not the default, so the given loss has to be used
DRAWS: Final = 128  # at a time; about one in a hundred will do


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
    outputs: Any  # of this one model


# ---- drawing -----------------------------------------------------------------------------------


@evaluate.draws_once
def draw_telling_numbers(seed: int) -> Drawn:
    """The first numbers and sprites, from this seed on, with which wrong formulas show.

    Remembered by seed. Tries one seed after the other until there are some.
    """
    while True:
        models = _draw_models(seed)
        sprites, _ = make_sprites(DRAWS * MOST, seed + 1)
        pictures = sprites.unflatten(0, (DRAWS, MOST))
        outputs = _outputs_in_evaluation_mode(models, pictures)
        few_outputs = outputs[:, :FEW]
        telling = _is_telling(outputs) & _is_telling(few_outputs)
        for draw in telling.nonzero().flatten().tolist():
            numbers = Numbers._make(part[draw] for part in models)
            own_outputs = outputs[draw : draw + 1]
            return Drawn(numbers, pictures[draw], own_outputs)
        seed += 100_003


class _Drawing:
    """Draws numbers for DRAWS models."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def numbers_up_to(self, size: float, *shape: int) -> Any:
        """Numbers of this shape between -size and size, for each model."""
        return self.numbers_between(-size, size, *shape)

    def numbers_between(self, low: float, high: float, *shape: int) -> Any:
        """Numbers of this shape, for each model."""
        numbers = torch.empty(DRAWS, *shape)
        return numbers.uniform_(low, high, generator=self.generator)


def _draw_models(seed: int) -> Numbers:
    """The numbers of DRAWS models, in the first dimension of each tensor.

    They are large enough that wrong answers cost visibly more than right ones.
    """
    drawing = _Drawing(seed)
    return Numbers(
        first=drawing.numbers_up_to(0.15, HIDDEN, SPRITE_NUMBERS),
        first_bias=drawing.numbers_up_to(0.15, HIDDEN),
        last=drawing.numbers_up_to(2.4, CLASSES, HIDDEN),
        last_bias=drawing.numbers_up_to(0.3, CLASSES),
        mean=drawing.numbers_up_to(0.5, 3),
        variance=drawing.numbers_between(0.1, 0.3, 3),
    )


def _outputs_in_evaluation_mode(models: Numbers, pictures: Any) -> Any:
    """What each of several models gives for its sprites: (models, sprites, classes)."""
    hidden = _run_linear_layers(models.first, models.first_bias, pictures)
    channels = hidden.unflatten(2, (3, -1))
    mean = models.mean[:, None, :, None]
    variance = models.variance[:, None, :, None]
    deviation = (variance + 1e-5).sqrt()
    normed = (channels - mean) / deviation
    hidden = normed.relu()
    return _run_linear_layers(models.last, models.last_bias, hidden)


def _run_linear_layers(weights: Any, biases: Any, inputs: Any) -> Any:
    """The outputs of one linear layer of each of several models."""
    rows = inputs.flatten(2)
    return torch.baddbmm(biases[:, None], rows, weights.mT)


# ---- whether wrong formulas show ---------------------------------------------------------------


def _is_telling(outputs: Any) -> Any:
    """For each model, whether wrong formulas give other numbers: a tensor of bools.

    `outputs` has the shape (models, sprites, classes).
    """
    classes = classes_of(outputs)
    telling = _is_clear_in_half_precision(outputs)
    telling &= _is_telling_for_loss(outputs, classes)
    telling &= _is_telling_for_hits(outputs, classes)
    return telling


def _is_clear_in_half_precision(outputs: Any) -> Any:
    """For each model, whether half precision leaves the largest output the largest.

    `outputs` has the shape (models, sprites, three classes); returned is a tensor of bools.
    """
    in_order = outputs.sort(2).values
    _, second, largest = in_order.unbind(2)
    closest = (largest - second).amin(1)
    size = outputs.abs().amax((1, 2))
    return closest >= 0.03 * size + 0.02


def _is_telling_for_loss(outputs: Any, classes: Any) -> Any:
    """For each model, whether the loss is not the mean over the batches, and not rounded.

    `outputs` has the shape (models, sprites, classes); returned is a tensor of bools.
    """
    loss = _losses_of(outputs, classes).mean(1)
    mean_of_means, _ = batch_means(outputs)
    from_means = (loss - mean_of_means).abs()
    rounded = loss.round(decimals=3)
    from_rounded = (loss - rounded).abs()
    tolerance = CLOSE * (1 + loss)
    return (from_means > 0.01) & (from_rounded > 2 * tolerance)


def _is_telling_for_hits(outputs: Any, classes: Any) -> Any:
    """For each model, whether other ways of counting find another number of hits.

    `outputs` has the shape (models, sprites, classes), `classes` the targets (models, sprites);
    returned is a tensor of bools.
    """
    answers = outputs.argmax(2)
    hits = _count_hits(answers, classes)
    # Each answer of the first batch compared with each class there
    targets = classes[:, :BATCH]
    answers = answers[:, :BATCH]
    hits_in_batch = _count_hits(answers, targets)
    hits_with_each = 0
    for answer in answers.split(1, 1):
        hits_with_each += _count_hits(answer, targets)
    telling = hits_with_each != BATCH * hits_in_batch
    # Wrong formulas
    for wrong_hits in _wrong_counts_of_hits(outputs, classes):
        telling &= wrong_hits != hits
    return telling


def _wrong_counts_of_hits(outputs: Any, classes: Any) -> Iterator[Any]:
    """Yield how many hits each wrong formula finds: each time a tensor with one count per model.

    `outputs` has the shape (models, sprites, classes), `classes` the targets (models, sprites).
    """
    # One output compared with a threshold, as for two classes
    second_outputs = outputs[:, :, 1]
    for threshold in (0.0, 0.5):
        answers = (second_outputs > threshold).long()
        yield _count_hits(answers, classes)
    # The largest output of a whole batch, or of each column of it
    of_batches = 0
    of_columns = 0
    batches = zip(outputs.split(BATCH, 1), classes.split(BATCH, 1), strict=True)
    for rows, targets in batches:
        count = targets.shape[1]
        in_batch = rows.flatten(1).argmax(1, keepdim=True)
        in_columns = rows.argmax(1)[:, :count]
        of_batches += _count_hits(in_batch, targets)
        of_columns += _count_hits(in_columns, targets)
    yield of_batches
    yield of_columns


def _count_hits(answers: Any, classes: Any) -> Any:
    """How many answers are right, for each model."""
    return (answers == classes).sum(1)


# ---- the right numbers -------------------------------------------------------------------------


def classes_of(outputs: Any) -> Any:
    """The targets (models, sprites) for outputs (models, sprites, three classes).

    Most are what the model finds. They are wrong for the second sprite, and for all of the last
    batch. The second one's class has the second largest output.
    """
    smallest, second, largest = outputs.argsort(2).unbind(2)
    count = outputs.shape[1]
    last_batch = (count - 1) // BATCH * BATCH
    classes = largest.clone()
    classes[:, 1:2] = second[:, 1:2]
    classes[:, last_batch:] = smallest[:, last_batch:]
    return classes


def batch_means(outputs: Any) -> tuple[Any, Any]:
    """The means over the batches' means of loss and of accuracy: two tensors, by model.

    `outputs` has the shape (models, sprites, classes).
    """
    classes = classes_of(outputs)
    losses = _losses_of(outputs, classes)
    hits = outputs.argmax(2) == classes
    loss = _mean_of_means(losses)
    accuracy = _mean_of_means(hits.float())
    return loss, accuracy


def _mean_of_means(numbers: Any) -> Any:
    """The mean, over the batches, of the mean over their sprites."""
    means = [batch.mean(1) for batch in numbers.split(BATCH, 1)]
    return torch.stack(means).mean(0)


def _losses_of(outputs: Any, classes: Any) -> Any:
    """The loss of each sprite, as `loss_fn` computes it: a tensor (models, sprites)."""
    return nn.functional.cross_entropy(
        outputs.mT, classes, label_smoothing=SMOOTHING, reduction="none"
    )
