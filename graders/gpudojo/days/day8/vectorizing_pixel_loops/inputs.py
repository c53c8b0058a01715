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
    def shape(self) -> tuple[int, int, int]:
        """The shape of one number for each pixel."""
        return self.sprites, self.height, self.width

    @property
    def pixels(self) -> int:
        return self.sprites * self.height * self.width


Inputs = tuple[Any, ...]  # tensors
MakeInputs = Callable[..., Inputs]  # gets a seed and a size

# Every dimension but the palette grows twice. torch may switch algorithms at some size, but not at
# both steps.
GROWING: Final = (
    Size(sprites=2, height=4, width=4, colors=4),
    Size(sprites=3, height=5, width=7, colors=4),
    Size(sprites=4, height=6, width=9, colors=4),
)
# One side much longer: a loop over it takes that much more, and one of constant length does not
# reach the end.
SIDE: Final = 40
LONG: Final = (
    Size(sprites=SIDE, height=2, width=2, colors=4),
    Size(sprites=2, height=SIDE, width=2, colors=4),
    Size(sprites=2, height=2, width=SIDE, colors=4),
)
# Painted only where calls copied as many bytes to the device as each of the others has pixels. A
# table that a function uploads has fewer bytes than this one has pixels; a result has not.
LARGE: Final = Size(sprites=2, height=64, width=64, colors=4)
SMALLEST: Final = (
    Size(sprites=1, height=4, width=3, colors=5),
    Size(sprites=2, height=1, width=1, colors=3),
    Size(sprites=3, height=3, width=2, colors=1),
    Size(sprites=1, height=1, width=1, colors=1),
)
TIED: Final = (
    Size(sprites=2, height=4, width=4, colors=3),
    Size(sprites=3, height=3, width=5, colors=6),
)
ON_THE_CPU: Final = (Size(sprites=2, height=3, width=4, colors=3),)
# More colours than fit in a byte
MANY_COLORS: Final = Size(sprites=2, height=3, width=4, colors=600)


def _make_generator(seed: int, size: Size) -> Any:
    """A generator with another seed for every size."""
    for number in size:
        seed = seed * 97 + number
    return torch.Generator().manual_seed(seed % 2**63)


def for_grayscale(seed: int, size: Size) -> Inputs:
    """Sprites, in a tuple. In those of one size values are larger than 1: no range is promised."""
    generator = _make_generator(seed, size)
    shape = (size.sprites, 3, size.height, size.width)
    sprites = torch.rand(shape, generator=generator)
    if size == GROWING[1]:
        sprites *= 4
    return (sprites,)


def for_recolor(seed: int, size: Size) -> Inputs:
    """Indices of the shape of `size`, and a palette of so many colours, drawn from the seed."""
    generator = _make_generator(seed, size)
    indices = torch.randint(0, size.colors, size.shape, generator=generator)
    palette = torch.rand(size.colors, 3, generator=generator)
    return indices, palette


def for_nearest(seed: int, size: Size, tied: bool = False) -> Inputs:
    """Sprites and a palette: every pixel has one nearest colour or, if `tied`, two."""
    generator = _make_generator(seed, size)
    every_color = _every_color()
    order = torch.randperm(len(every_color), generator=generator)
    chosen = order[: size.colors]
    palette = every_color[chosen]
    if tied:
        palette[-1] = palette[0]  # a colour twice, beside the ties between different colours
    # The colours with one nearest colour of the palette, or with several.
    differences = every_color[:, None] - palette
    distances = differences.square().sum(2)
    nearest = distances.amin(1, keepdim=True)
    count = (distances == nearest).sum(1)
    has_ties = count > 1
    candidates = every_color[has_ties == tied]
    # One of them for each pixel
    chosen = torch.randint(0, len(candidates), size.shape, generator=generator)
    pixels = candidates[chosen]
    sprites = pixels.permute(0, 3, 1, 2).contiguous()
    return sprites, palette


@lru_cache(maxsize=1)
def _every_color() -> Any:
    """All colours made of eighths, a tensor of rows of three; made once, and not to be changed.

    float32 holds their squared differences exactly, in any order of addition.
    """
    eighths = torch.arange(9) / 8
    return torch.cartesian_prod(eighths, eighths, eighths)
