"""What are the batches of 03 made of? Tiny sprites and their classes, in named tuples and beside other things."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any, NamedTuple

from graders.probes.late import torch


class Sprite(NamedTuple):
    images: Any
    labels: Any
    title: str


Masked = namedtuple("Masked", ["sprite", "mask"])
Alone = namedtuple("Alone", ["images"])


class Author:
    """Something that is no structure and no tensor."""


def images(seed: int) -> Any:
    return _drawn(seed)[0].clone()  # never the same one: a student's function may write into it


def labels(seed: int) -> Any:
    return _drawn(seed)[1].clone()


def pair(seed: int) -> tuple[Any, Any]:
    return images(seed), labels(seed)


@functools.cache
def _drawn(seed: int) -> tuple[Any, Any]:
    dice = torch.Generator().manual_seed(seed)
    return torch.rand(2, 3, 2, 2, generator=dice), torch.randint(0, 3, (2,), generator=dice)
