"""What do the functions of 06 work on? Seeded sprites, numbers and palettes of any size, with ties or without."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from graders.probes.late import torch

Size = tuple[int, int, int, int]  # sprites, height, width, colours
Make = Callable[[int, Size], tuple[Any, ...]]


def _dice(seed: int, size: Size) -> Any:
    count, height, width, colors = size
    return torch.Generator().manual_seed(((((seed * 97 + count) * 97 + height) * 97 + width) * 97 + colors) % 2**63)


def for_grayscale(seed: int, size: Size) -> tuple[Any, ...]:
    count, height, width, _ = size
    return (torch.rand(count, 3, height, width, generator=_dice(seed, size)),)


def for_recolor(seed: int, size: Size) -> tuple[Any, ...]:
    count, height, width, colors = size
    dice = _dice(seed, size)
    return torch.randint(0, colors, (count, height, width), generator=dice), torch.rand(colors, 3, generator=dice)


def for_nearest(seed: int, size: Size, tied: bool = False) -> tuple[Any, ...]:
    """Sprites and palette such that every pixel has one nearest colour or, `tied`, two of them."""
    count, height, width, colors = size
    dice, wanted = _dice(seed, size), count * height * width
    every = _every_color()
    palette = every[torch.randperm(len(every), generator=dice)[:colors]]
    if tied:
        palette[-1] = palette[0]  # a colour twice, beside the ties between different colours
    distances = (every[:, None] - palette).square().sum(2)
    nearest = (distances == distances.amin(1, keepdim=True)).sum(1)
    candidates = every[nearest > 1 if tied else nearest == 1]
    pixels = candidates[torch.randint(0, len(candidates), (wanted,), generator=dice)]
    return pixels.reshape(count, height, width, 3).permute(0, 3, 1, 2).contiguous(), palette


def with_ties(seed: int, size: Size) -> tuple[Any, ...]:
    return for_nearest(seed, size, tied=True)


@lru_cache(maxsize=1)
def _every_color() -> Any:
    """All colours of eighths: float32 holds their squared differences exactly, in whatever order they are added."""
    eighths = torch.arange(9) / 8
    return torch.cartesian_prod(eighths, eighths, eighths)
