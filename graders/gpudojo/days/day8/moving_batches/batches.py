"""Tensors and named tuples that batches are made of."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any, NamedTuple

from gpudojo.grading.call import torch


class Sprite(NamedTuple):
    images: Any
    labels: Any
    title: str


Masked = namedtuple("Masked", ["sprite", "mask"])
Alone = namedtuple("Alone", ["images"])


def make_pair(seed: int) -> tuple[Any, Any]:
    """New sprites and their classes, two tensors on the CPU, equal for the same seed.

    A student's function may write into them.
    """
    pictures, classes = _draw_pair(seed)
    return pictures.clone(), classes.clone()


@functools.cache
def _draw_pair(seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.rand(2, 3, 2, 2, generator=generator)
    return pictures, torch.randint(0, 3, (2,), generator=generator)
