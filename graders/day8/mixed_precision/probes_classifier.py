"""What is trained in 07? A small classifier and a loss that note how they are run, forward and backward."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

from graders.probes.late import nn, torch
from graders.probes.sprites import CLASSES, SIZE, sprites

TYPES: Final = ("cuda", "cpu", "mps")
HIDDEN: Final = 8
SPRITES: Final = 8


class Log:
    """How the forward pass, the loss and the backward pass were run."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.forward: list[dict[str, Any]] = []
        self.loss: list[dict[str, Any]] = []
        self.backward: list[dict[str, Any]] = []

    def mode(self) -> dict[str, Any]:
        regions = [kind for kind in TYPES if torch.is_autocast_enabled(kind)]
        return {"autocast": self.kind in regions, "regions": regions}


def watched(seed: int, device: Any, log: Log, overflow: bool) -> Any:
    """A classifier that writes down how it is run; with `overflow` its gradients are infinite, whatever the dtype."""
    return _classes()[0](log, overflow, [nn.Parameter(values.to(device, copy=True)) for values in weights(seed)])


def loss_fn(model: Any, log: Log) -> Any:
    """A loss that notes the gradient it is given: the scale, if the loss was scaled; and what it is added to."""
    return _classes()[1](model, log)


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any]:
    """Classes made once, and only where torch is needed."""

    class SpriteClassifier(nn.Module):
        def __init__(self, log: Log, overflow: bool, weights: list[Any]) -> None:
            super().__init__()
            self.log, self.overflow = log, overflow
            self.first, self.shift, self.last = weights

        def forward(self, pictures: Any) -> Any:
            self.log.forward.append(self.log.mode())
            hidden = nn.functional.linear(pictures.flatten(1), self.first, self.shift).relu()
            outputs = nn.functional.linear(hidden, self.last)
            if self.overflow and outputs.requires_grad:
                outputs.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
            return outputs

    class SpriteLoss(nn.CrossEntropyLoss):
        def __init__(self, model: Any, log: Log) -> None:
            super().__init__()
            self.watch = (model, log)  # in a tuple, so that the model does not become a part of the loss

        def forward(self, outputs: Any, targets: Any) -> Any:
            self.watch[1].loss.append(self.watch[1].mode())
            loss = super().forward(outputs, targets)
            if loss.requires_grad:
                loss.register_hook(self.arrived)
            return loss

        def arrived(self, gradient: Any) -> None:
            model, log = self.watch
            found = [p.grad.detach().abs().max().item() for p in model.parameters() if p.grad is not None]
            log.backward.append({**log.mode(), "gradient": gradient.item(), "stale": max(found, default=0.0)})

    return SpriteClassifier, SpriteLoss


@lru_cache(maxsize=2)
def weights(seed: int) -> tuple[Any, ...]:
    """The parameters before the step, made by hand: torch's own way would need the program's random numbers."""
    dice = torch.Generator().manual_seed(seed)
    sizes = (((HIDDEN, 3 * SIZE * SIZE), 0.3), ((HIDDEN,), 0.5), ((CLASSES, HIDDEN), 2.0))
    return tuple((torch.rand(shape, generator=dice) * 2 - 1) * size for shape, size in sizes)


@lru_cache(maxsize=2)
def _sprites(seed: int) -> tuple[Any, Any]:
    """Sprites and the classes the model finds least likely, so that there is always much to learn."""
    pictures, _ = sprites(SPRITES, seed + 1)
    with torch.no_grad():
        return pictures, watched(seed, "cpu", Log("cpu"), overflow=False)(pictures).argmin(dim=1)


def batch(seed: int) -> tuple[Any, Any]:
    pictures, classes = _sprites(seed)
    return pictures.clone(), classes.clone()  # a solution may write into them
