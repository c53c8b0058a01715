"""What several exercises of Day 8 work on: sprites, values of tensors, and a loader that records its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpudojo.grading.call import Call, StudentRaised, copied, nn, torch
from gpudojo.grading.checks import between_gpus, diagnosis
from gpudojo.grading.watching import keep, kept
from gpudojo.model.evidence import Case, Fact, Raised
from gpudojo.model.exercise import Failed, Seen

SIZE = 4
CLASSES = 3


def sprites(count: int, seed: int) -> tuple[Any, Any]:
    """`(count, 3, SIZE, SIZE)` sprites in [0, 1] and their classes: the class is the brightest channel."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.rand(count, 3, SIZE, SIZE, generator=generator) * 0.5
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    pictures += 0.5 * (classes[:, None] == torch.arange(3))[:, :, None, None]
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


@dataclass
class Fetched:
    """The batches that have been fetched from a loader."""

    call: Call
    inner: Any
    count: int = 0
    latest: tuple[Any, Any] | None = None
    start: int = 0  # ledger mark at the latest batch
    target_sizes: set[int] = field(default_factory=set)

    def add(self, batch: Any) -> None:
        self.count += 1
        self.latest, self.start = tuple(batch), self.call.bench.ledger.mark()
        self.target_sizes.add(batch[1].nbytes)


class WatchedBatches:
    """A loader with a length, a dataset and a batch size, which records when each batch is fetched.

    Copies are recognised by their size: the dataset is built so that inputs, targets and parameters differ.
    """

    def __init__(self, call: Call, inner: Any) -> None:
        self.dataset, self.batch_size = inner.dataset, inner.batch_size
        self.key = keep(Fetched(call, inner))

    def __len__(self) -> int:
        return len(kept(self.key).inner)

    def __iter__(self) -> Iterator[Any]:
        for batch in kept(self.key).inner:
            kept(self.key).add(batch)
            yield batch

    @property
    def handed_out(self) -> int:
        return int(kept(self.key).count)

    @property
    def target_sizes(self) -> frozenset[int]:
        return frozenset(kept(self.key).target_sizes)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Around a call: adds to an error which tensors of the last batch had been copied, and by which lines."""
        try:
            yield
        except StudentRaised as error:
            fetched: Fetched = kept(self.key)
            if fetched.latest is None:
                raise
            lines = copied(fetched.call, fetched.start, **dict(zip(("inputs", "targets"), fetched.latest, strict=True)))
            raise error.with_facts(copied=lines) from None


def why_a_loop_raised(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error of a loop over batches, by scenario: `on_the_second_gpu`, …

    If inputs meet the model only where it was there already, in `model_already_there`, the other model had stayed on
    the CPU with them.
    """
    if raised.scenario == "on_the_second_gpu" and between_gpus(raised.message):
        return "device-index-dropped"
    key = diagnosis(raised.message)
    if raised.scenario == "told_to_use_the_cpu" and key is not None:  # nothing should have been on a GPU
        return "hard-coded-cuda"
    return "model-not-moved" if raised.scenario == "model_already_there" and key == "inputs-on-cpu" else key


def expect_ran_on(device: str, used: Collection[str], line: int | None = None) -> None:
    """Raises Failed unless a model ran on this device, and on no other."""
    if set(used) != {device}:
        where = " and ".join(sorted(used)) or "no device"
        key = "hard-coded-cuda" if device == "cpu" else "model-not-moved" if set(used) == {"cpu"} else None
        key = "device-index-dropped" if device == "cuda:1" and set(used) == {"cuda:0"} else key if used else None
        raise Failed(f"with device={device!r}, the model ran on {where}", device, line, key)
