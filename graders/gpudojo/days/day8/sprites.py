"""Sprites, loaders and classifiers that the exercises of Day 8 work on."""

from __future__ import annotations

from typing import Any

from gpudojo.grading.call import nn, torch

SIZE = 4
CLASSES = 3


def sprites(count: int, seed: int) -> tuple[Any, Any]:
    """`(count, 3, SIZE, SIZE)` sprites in [0, 1] and their classes: the class is the brightest channel."""
    dice = torch.Generator().manual_seed(seed)
    pictures = torch.rand(count, 3, SIZE, SIZE, generator=dice) * 0.5
    classes = torch.randint(0, CLASSES, (count,), generator=dice)
    for i, channel in enumerate(classes.tolist()):
        pictures[i, channel] += 0.5
    return pictures, classes


def loader(count: int, seed: int, batch_size: int = 4) -> Any:
    """A DataLoader over sprites; with 10 of them in batches of 4 the last batch is smaller."""
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*sprites(count, seed)), batch_size=batch_size)


def classifier(seed: int) -> Any:
    """A sprite classifier with batch norm, its weights made on the CPU from a seed."""
    with torch.random.fork_rng(devices=[]):  # with two GPUs torch would warn that it keeps the state of both
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
        )
