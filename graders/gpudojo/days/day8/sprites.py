"""Sprites for several exercises, layers with given weights, and random numbers from a seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gpudojo.grading.call import nn, torch

SIZE = 4  # the height and the width of a sprite
SPRITE_NUMBERS = 3 * SIZE * SIZE  # in one sprite, of three channels
CLASSES = 3


@contextlib.contextmanager
def seeded_generator(seed: int) -> Iterator[None]:
    """Seed the CPU's random numbers for a `with` block, and restore their state at its end."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def restored_generators(device: Any) -> contextlib.AbstractContextManager[None]:
    """Restore torch's random state, and that of a GPU, at the end of a `with` block."""
    gpus = []
    if device.type == "cuda":
        gpus.append(device.index or 0)
    fork: contextlib.AbstractContextManager[None] = torch.random.fork_rng(devices=gpus)
    return fork


def make_sprites(count: int, seed: int) -> tuple[Any, Any]:
    """Sprites of the shape `(count, 3, SIZE, SIZE)` in [0, 1], and their classes.

    The class is the brightest channel. Equal for the same seed, on the CPU; torch's own random
    state is not used.
    """
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.rand(count, 3, SIZE, SIZE, generator=generator) * 0.5
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    is_class = nn.functional.one_hot(classes, 3)
    pictures += 0.5 * is_class[:, :, None, None]
    return pictures, classes


def linear_layer(weight: Any, bias: Any = None) -> Any:
    """A linear layer with this weight and bias, which become its parameters without a copy.

    torch's constructor would draw random numbers, which takes time and changes the caller's
    generator.
    """
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.out_features = weight.shape[0]
    layer.in_features = weight.shape[-1]
    if not isinstance(weight, nn.Parameter):
        weight = nn.Parameter(weight)
    if bias is not None:
        bias = nn.Parameter(bias)
    layer.register_parameter("weight", weight)
    layer.register_parameter("bias", bias)
    return layer
