"""Draws the numbers of a classifier and its sprites, so that wrong formulas show.

They give another loss or another accuracy than the right formula. All are computed for many models
at once: the first dimension of every tensor is that of the models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.modifying_evaluation_loop_gpu.declaration import evaluate
from gpudojo.days.day8.sprites import CLASSES, SIZE, make_sprites
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
    """The first numbers and sprites with which wrong formulas show."""
    while True:
        models = _draw_models(seed)
        sprites, _ = make_sprites(DRAWS * MOST, seed + 1)
        pictures = sprites.unflatten(0, (DRAWS, MOST))
        outputs = _outputs_in_evaluation_mode(models, pictures)
        telling = _is_telling(outputs[:, :FEW]) & _is_telling(outputs)
        for draw in telling.nonzero().flatten().tolist():
            numbers = Numbers(*(part[draw] for part in models))
            return Drawn(numbers, pictures[draw], outputs[draw : draw + 1])
        seed += 100_003


def _draw_models(seed: int) -> Numbers:
    """The numbers of DRAWS models.

    They are large enough that wrong answers cost visibly more than right ones.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw_between(low: float, high: float, *shape: int) -> Any:
        return torch.empty(DRAWS, *shape).uniform_(low, high, generator=generator)

    return Numbers(
        first=draw_between(-0.15, 0.15, HIDDEN, 3 * SIZE * SIZE),
        first_bias=draw_between(-0.15, 0.15, HIDDEN),
        last=draw_between(-2.4, 2.4, CLASSES, HIDDEN),
        last_bias=draw_between(-0.3, 0.3, CLASSES),
        mean=draw_between(-0.5, 0.5, 3),
        variance=draw_between(0.1, 0.3, 3),
    )


def _outputs_in_evaluation_mode(models: Numbers, pictures: Any) -> Any:
    """What each of several models gives for its sprites."""
    hidden = _run_linear_layers(models.first, models.first_bias, pictures)
    channels = hidden.unflatten(2, (3, -1))
    mean = models.mean[:, None, :, None]
    variance = models.variance[:, None, :, None]
    deviation = (variance + 1e-5).sqrt()
    normed = (channels - mean) / deviation
    return _run_linear_layers(models.last, models.last_bias, normed.relu())


def _run_linear_layers(weights: Any, biases: Any, inputs: Any) -> Any:
    """The outputs of one linear layer of each of several models."""
    return torch.baddbmm(biases[:, None], inputs.flatten(2), weights.mT)


# ---- whether wrong formulas show ---------------------------------------------------------------


def _is_telling(outputs: Any) -> Any:
    """For each model, whether wrong formulas give other numbers."""
    # Half precision does not change which output is the largest.
    _, second, largest = outputs.sort(2).values.unbind(2)
    closest = (largest - second).amin(1)
    size = outputs.abs().amax((1, 2))
    telling = closest >= 0.03 * size + 0.02
    # The loss is not the mean over the batches, and not a rounded number.
    classes = classes_of(outputs)
    loss = _losses_of(outputs, classes).mean(1)
    mean_of_means, _ = batch_means(outputs)
    from_means = (loss - mean_of_means).abs()
    telling &= from_means > 0.01
    from_rounded = (loss - loss.round(decimals=3)).abs()
    telling &= from_rounded > 2 * CLOSE * (1 + loss)
    # Other ways of counting find another number of hits.
    answers = outputs.argmax(2)
    hits = _count_hits(answers, classes)
    for wrong_hits in _wrong_counts_of_hits(outputs, classes):
        telling &= wrong_hits != hits
    # So does to compare each answer of the first batch with each class there.
    answers = answers[:, :BATCH]
    targets = classes[:, :BATCH]
    hits_with_each = (answers[:, :, None] == targets[:, None]).sum((1, 2))
    hits_in_batch = _count_hits(answers, targets)
    return telling & (hits_with_each != BATCH * hits_in_batch)


def _wrong_counts_of_hits(outputs: Any, classes: Any) -> Iterator[Any]:
    """Yield, for each model, how many hits are found by wrong formulas."""
    # One output compared with a threshold, as for two classes
    for threshold in (0.0, 0.5):
        answers = (outputs[:, :, 1] > threshold).long()
        yield _count_hits(answers, classes)
    # The largest output of a whole batch, or of each column of it
    of_batches = 0
    of_columns = 0
    for rows, targets in zip(outputs.split(BATCH, 1), classes.split(BATCH, 1), strict=True):
        in_batch = rows.flatten(1).argmax(1, keepdim=True)
        in_columns = rows.argmax(1)[:, : targets.shape[1]]
        of_batches += _count_hits(in_batch, targets)
        of_columns += _count_hits(in_columns, targets)
    yield of_batches
    yield of_columns


def _count_hits(answers: Any, classes: Any) -> Any:
    """How many answers are right, for each model."""
    return (answers == classes).sum(1)


# ---- the right numbers -------------------------------------------------------------------------


def classes_of(outputs: Any) -> Any:
    """The targets, of which most are what the model finds.

    They are wrong for the second sprite, and for all of the last batch. The second one's class has
    the second largest output.
    """
    smallest, second, largest = outputs.argsort(2).unbind(2)
    count = outputs.shape[1]
    last_batch = (count - 1) // BATCH * BATCH
    classes = largest.clone()
    classes[:, 1:2] = second[:, 1:2]
    classes[:, last_batch:] = smallest[:, last_batch:]
    return classes


def batch_means(outputs: Any) -> tuple[Any, Any]:
    """The means over the batches of loss and of accuracy, for each model."""
    classes = classes_of(outputs)
    losses = _losses_of(outputs, classes)
    hits = outputs.argmax(2) == classes
    return _mean_of_means(losses), _mean_of_means(hits.float())


def _mean_of_means(numbers: Any) -> Any:
    """The mean, over the batches, of the mean over their sprites."""
    means = [batch.mean(1) for batch in numbers.split(BATCH, 1)]
    return torch.stack(means).mean(0)


def _losses_of(outputs: Any, classes: Any) -> Any:
    """The loss of each sprite, as `loss_fn` computes it."""
    return nn.functional.cross_entropy(
        outputs.mT, classes, label_smoothing=SMOOTHING, reduction="none"
    )
