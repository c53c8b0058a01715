"""The pictures on which the functions of 06 are tried.

Here are their sizes, and the tensors of each size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gpudojo.grading.call import torch


class Size(NamedTuple):
    """The size of some sprites, and of a palette."""

    sprites: int
    height: int
    width: int
    colors: int

    @property
    def name(self) -> str:
        """The name of this size in evidence."""
        return str(tuple(self))

    @property
    def pixels(self) -> int:
        return self.sprites * self.height * self.width


MakeInputs = Callable[..., tuple[Any, ...]]  # gets a seed and a size

# Every dimension but the palette grows twice. torch may switch algorithms at some size, but not at
# both steps.
GROWING: Final = (Size(2, 4, 4, 4), Size(3, 5, 7, 4), Size(4, 6, 9, 4))
# One side much longer: a loop over it takes that much more, and one of constant length does not
# reach the end.
SIDE: Final = 40
LONG: Final = (Size(SIDE, 2, 2, 4), Size(2, SIDE, 2, 4), Size(2, 2, SIDE, 4))
SMALLEST: Final = (Size(1, 4, 3, 5), Size(2, 1, 1, 3), Size(3, 3, 2, 1), Size(1, 1, 1, 1))
TIED: Final = (Size(2, 4, 4, 3), Size(3, 3, 5, 6))
ON_THE_CPU: Final = (Size(2, 3, 4, 3),)
MANY_COLORS: Final = (Size(2, 3, 4, 600),)  # more than fit in a byte


def _generator(seed: int, size: Size) -> Any:
    """A generator with another seed for every size."""
    for number in size:
        seed = seed * 97 + number
    return torch.Generator().manual_seed(seed % 2**63)


def for_grayscale(seed: int, size: Size) -> tuple[Any, ...]:
    """Sprites. In those of one size values are larger than 1: no range is promised."""
    most = 4 if size == GROWING[1] else 1
    shape = (size.sprites, 3, size.height, size.width)
    return (torch.rand(shape, generator=_generator(seed, size)) * most,)


def for_recolor(seed: int, size: Size) -> tuple[Any, ...]:
    """Indices and a palette."""
    generator = _generator(seed, size)
    shape = (size.sprites, size.height, size.width)
    indices = torch.randint(0, size.colors, shape, generator=generator)
    return indices, torch.rand(size.colors, 3, generator=generator)


def for_nearest(seed: int, size: Size, tied: bool = False) -> tuple[Any, ...]:
    """Sprites and a palette: every pixel has one nearest colour or, if `tied`, two."""
    generator = _generator(seed, size)
    every = _every_color()
    palette = every[torch.randperm(len(every), generator=generator)[: size.colors]]
    if tied:
        palette[-1] = palette[0]  # a colour twice, beside the ties between different colours
    distances = (every[:, None] - palette).square().sum(2)
    count_of_nearest = (distances == distances.amin(1, keepdim=True)).sum(1)
    candidates = every[count_of_nearest > 1 if tied else count_of_nearest == 1]
    chosen = torch.randint(0, len(candidates), (size.pixels,), generator=generator)
    pixels = candidates[chosen].reshape(size.sprites, size.height, size.width, 3)
    return pixels.permute(0, 3, 1, 2).contiguous(), palette


@lru_cache(maxsize=1)
def _every_color() -> Any:
    """All colours made of eighths.

    float32 holds their squared differences exactly, in any order of addition.
    """
    eighths = torch.arange(9) / 8
    return torch.cartesian_prod(eighths, eighths, eighths)
