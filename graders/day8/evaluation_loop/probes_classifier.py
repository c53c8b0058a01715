"""What is evaluated in 05? A classifier that notes how it is run, and sprites some of which it gets wrong."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from graders.probes.late import nn, torch
from graders.probes.sprites import CLASSES, SIZE, sprites

BATCH: Final = 3
MOST: Final = 5  # sprites in the largest scenario
HIDDEN: Final = 12


class Log(list[dict[str, Any]]):
    """What each forward pass saw; a copy of the model that a solution may make goes on writing here."""

    def __deepcopy__(self, memo: Any) -> Log:
        return self


def watched(seed: int, log: Log) -> Any:
    """A classifier with batch norm and dropout that writes down how it is run, also through `model.forward`."""
    model = _class()(log)
    # Filled by hand: torch's own way would need the program's random numbers, and far more time.
    with torch.no_grad():
        for tensor, value in zip((*model.parameters(), *model.buffers()), _values(seed), strict=True):
            tensor.copy_(value)
    return model


@lru_cache(maxsize=1)
def _class() -> Any:
    """A class made once, and only where torch is needed."""

    class SpriteClassifier(nn.Module):
        def __init__(self, log: Log) -> None:
            super().__init__()
            self.first = _linear(3 * SIZE * SIZE, HIDDEN)
            # Batch norm over four values a channel: in training mode a batch of one changes it, but does not raise.
            self.norm = nn.BatchNorm1d(3)
            self.dropout = nn.Dropout(0.5)
            self.last = _linear(HIDDEN, CLASSES)
            self.log = log

        def forward(self, pictures: Any) -> Any:
            hidden = self.norm(self.first(pictures.flatten(1)).unflatten(1, (3, -1)))
            outputs = self.last(self.dropout(hidden).relu().flatten(1))
            parts = (("model", self), ("batch norm", self.norm), ("dropout", self.dropout))
            self.log.append(
                {
                    "training": sorted(name for name, part in parts if part.training),
                    "graph": outputs.requires_grad,
                    "devices": sorted({str(pictures.device), *(str(p.device) for p in self.parameters())}),
                }
            )
            return outputs

    return SpriteClassifier


def _linear(inputs: int, outputs: int) -> Any:
    layer = nn.Linear.__new__(nn.Linear)  # without what it does to have values, which are drawn, or slow to leave out
    nn.Module.__init__(layer)
    layer.in_features, layer.out_features = inputs, outputs
    layer.weight = nn.Parameter(torch.empty(outputs, inputs))
    layer.bias = nn.Parameter(torch.empty(outputs))
    return layer


@lru_cache(maxsize=2)
def _values(seed: int) -> tuple[Any, ...]:
    """Parameters and buffers, in their order. Decided answers: a wrong one costs visibly more than a right one."""
    dice = torch.Generator().manual_seed(seed)

    def between(low: float, high: float, *shape: int) -> Any:
        return torch.rand(shape, generator=dice) * (high - low) + low

    inputs = 3 * SIZE * SIZE
    first = between(-0.15, 0.15, HIDDEN, inputs), between(-0.15, 0.15, HIDDEN)
    norm = torch.ones(3), torch.zeros(3)
    last = between(-2.4, 2.4, CLASSES, HIDDEN), between(-0.3, 0.3, CLASSES)
    statistics = between(-0.5, 0.5, 3), between(0.1, 0.3, 3), torch.tensor(0)
    return (*first, *norm, *last, *statistics)


@lru_cache(maxsize=2)
def _classified(seed: int) -> tuple[Any, Any]:
    """All sprites, and what the model makes of them."""
    pictures = sprites(MOST, seed + 1)[0]
    with torch.no_grad():
        return pictures, watched(seed, Log()).eval()(pictures)  # plain torch on the CPU


@lru_cache(maxsize=8)
def _sprites(seed: int, samples: int) -> tuple[Any, Any, list[float]]:
    """Sprites, classes that make the second one and the last batch wrong, and the mean of the batches' means."""
    pictures, logits = (every[:samples] for every in _classified(seed))
    classes = logits.argmax(dim=1)
    wrong = {1, *range((samples - 1) // BATCH * BATCH, samples)} & {*range(samples)}
    classes[[*wrong]] = logits[[*wrong]].argmin(dim=1)
    pairs = zip(logits.split(BATCH), classes.split(BATCH), strict=True)
    each = [(loss_fn()(a, b).item(), (a.argmax(dim=1) == b).float().mean().item()) for a, b in pairs if len(b)]
    return pictures, classes, [sum(column) / len(each) for column in zip(*each, strict=True)] or [0.0, 0.0]


def batches(seed: int, samples: int) -> tuple[Any, list[float]]:
    """A loader, and the mean of its batches' means of loss and accuracy."""
    pictures, classes, means = _sprites(seed, samples)
    dataset = torch.utils.data.TensorDataset(pictures.clone(), classes.clone())  # a solution may write into them
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH), means


def loss_fn() -> Any:
    return nn.CrossEntropyLoss(label_smoothing=0.1)  # not quite the usual loss: the one that is given has to be used
