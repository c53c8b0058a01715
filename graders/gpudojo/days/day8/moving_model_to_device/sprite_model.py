"""The model that is moved, and its tensors."""

from __future__ import annotations

import functools
import random
from typing import Any

from gpudojo.days.day8.sprites import linear_layer
from gpudojo.days.day8.tensor_values import Values, values_of
from gpudojo.grading.call import nn, torch
from gpudojo.grading.watching import find_classes, make_picklable
from gpudojo.model.evidence import Case

# Names for the parts of a model, of which some are drawn
NAMES = "encoder decoder body head trunk neck embedding scale gain mixer".split()


@functools.cache
def _model_class() -> tuple[Any, ...]:
    """The class of the model, in a tuple. Made once, and only where torch is needed."""

    class SpriteModel(nn.Module):
        """Two layers that share a weight, a frozen scale, batch norm, and a palette.

        The palette is not in `state_dict()`. It has another dtype: `model.to(tensor)` would change
        it. The other names are drawn from the seed.
        """

        palette: Any

        def __init__(self, numbers: Any, drawn: random.Random) -> None:
            """A model whose weights are these 15 numbers; the names of its parts are drawn."""
            super().__init__()
            shared = numbers[:4].reshape(2, 2)
            weight = nn.Parameter(shared.clone())
            bias = numbers[4:6].clone()
            first, second, scale = drawn.sample(NAMES, 3)
            with_norm = nn.Sequential(linear_layer(weight), nn.BatchNorm1d(2))
            self.add_module(first, with_norm)
            self.add_module(second, linear_layer(weight, bias))
            frozen = nn.Parameter(numbers[6:9].clone(), requires_grad=False)
            self.register_parameter(scale, frozen)
            palette = numbers[9:].reshape(2, 3) + 1
            self.register_buffer("palette", palette.half(), persistent=False)
            self.register_buffer("mask", None)  # as batch norm without statistics has them

    return make_picklable(SpriteModel)


__getattr__ = find_classes(_model_class)


@functools.cache
def _draw_numbers(seed: int) -> Any:
    """The numbers of which a model's tensors are made, for this seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(15, generator=generator)


def make_model(seed: int) -> Any:
    """A new model on the CPU, for this seed."""
    (model_class,) = _model_class()
    return model_class(_draw_numbers(seed), random.Random(seed))


class ModelTensor(Case, frozen=True):
    """A parameter or a buffer of a model."""

    is_buffer: bool
    first_name: str  # a tensor that two layers share has two names
    device: str
    requires_grad: bool
    values: Values


def describe_tensors(model: Any) -> dict[str, ModelTensor]:
    """Every parameter and every buffer that a model has now, by each of its names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    first_names: dict[int, str] = {}
    found = {}
    for name, tensor in (parameters | buffers).items():
        found[name] = ModelTensor(
            is_buffer=name in buffers,
            first_name=first_names.setdefault(id(tensor), name),
            device=str(tensor.device),
            requires_grad=tensor.requires_grad,
            values=values_of(tensor),
        )
    return found
