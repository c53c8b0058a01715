"""What several exercises of Day 8 work on: sprites, values of tensors, and a loader that records its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from gpudojo.grading.call import Call, StudentRaised, nn, torch
from gpudojo.grading.watching import keep, kept
from gpudojo.model.evidence import Case, Fact

SIZE = 4
CLASSES = 3


def sprites(count: int, seed: int) -> tuple[Any, Any]:
    """`(count, 3, SIZE, SIZE)` sprites in [0, 1] and their classes: the class is the brightest channel."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.rand(count, 3, SIZE, SIZE, generator=generator) * 0.5
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    for i, channel in enumerate(classes.tolist()):
        pictures[i, channel] += 0.5
    return pictures, classes


def linear(weight: Any, bias: Any = None) -> Any:
    """A linear layer with this weight and bias; one with random numbers would take time, and the caller's generator."""
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = weight.shape[0], weight.shape[-1]
    layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
    layer.register_parameter("bias", None if bias is None else nn.Parameter(bias))
    return layer


class Sealed:
    """A function for student code to call, which does not lead to what it calls, or to what that records."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.key = keep(function)

    def __call__(self, *args: Any) -> Any:
        return kept(self.key)(*args)


class Values(Case, frozen=True):
    """A small tensor: reading it as Python numbers is the fastest way off a device."""

    dtype: str
    shape: list[int]
    values: Fact  # None for a tensor without values, such as one on "meta"


def values(tensor: Any) -> Values:
    try:
        numbers = tensor.tolist()
    except (RuntimeError, TypeError):
        numbers = None
    return Values(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), numbers)


class WatchedBatches:
    """A loader with a length, a dataset and a batch size, which records when each batch is fetched.

    Copies are recognised by their size: the dataset is built so that inputs, targets and parameters differ.
    """

    def __init__(self, call: Call, inner: Any) -> None:
        self.call, self.inner = call, inner
        self.dataset, self.batch_size = inner.dataset, inner.batch_size
        self.handed_out = 0
        self.inputs: Any = None
        self.targets: Any = None
        self.target_sizes: set[int] = set()
        self.start = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.inner:
            self.handed_out += 1
            self.inputs, self.targets = batch
            self.target_sizes.add(self.targets.nbytes)
            self.start = self.call.bench.ledger.mark()
            yield batch

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Around a call: adds to an error which tensors of the last batch had been copied, and by which lines."""
        try:
            yield
        except StudentRaised as error:
            if not self.handed_out:
                raise
            copies = self.call.bench.ledger.since(self.start).transfers_to_device()
            sizes = {"inputs": self.inputs.nbytes, "targets": self.targets.nbytes}
            lines = {name: [self.call.line_of(t) for t in copies if t.bytes == size] for name, size in sizes.items()}
            raise error.with_facts(copied={name: found[0] for name, found in lines.items() if found}) from None
