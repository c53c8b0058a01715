"""What one entry of a ledger says: frozen structs that encode to tagged JSON.

`index` is the record's position in the whole ledger, also when it is read through a view of a part; `at` is in
seconds since the ledger was opened; `site` is the student's line, or None where no student frame was found.

A forward, a backward or an optimizer step is a *span*: `end` is the index of the first record after it, so that
its inside is `span.index < record.index < span.end`, and `seconds` is how long it took. Both are None while it is
open.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "Allocation",
    "Backward",
    "Direction",
    "Forward",
    "Operation",
    "OptimizerStep",
    "Record",
    "ScalerCall",
    "Site",
    "Span",
    "Sync",
    "Transfer",
]

Direction = Literal["to_device", "to_host", "between_devices"]


# gc=False throughout: records hold only texts, numbers and other records, so they cannot be part of a cycle, and
# a ledger of a hundred thousand of them does not slow down the garbage collector of the code it watches.
class Site(msgspec.Struct, frozen=True, gc=False):
    """A line of the student's code, and the function it is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class _Entry(msgspec.Struct, frozen=True, gc=False, tag=True):
    index: int
    at: float
    site: Site | None


class Operation(_Entry, frozen=True, gc=False):
    """One operator that ran on a device."""

    name: str
    device: str
    grad: bool
    inference: bool
    autocast: str | None
    bytes: int  # what its outputs newly occupy on the device
    live: int  # what is allocated there afterwards

    @property
    def builds_graph(self) -> bool:
        """Whether autograd would record it, were one of its inputs to require a gradient."""
        return self.grad and not self.inference


class Transfer(_Entry, frozen=True, gc=False):
    """One tensor copied from one device to another."""

    direction: Direction
    bytes: int
    pinned: bool
    non_blocking: bool
    source: str
    target: str


class Sync(_Entry, frozen=True, gc=False):
    """The host waited for a device: because it was told to (explicit), or to get hold of a value."""

    what: str
    explicit: bool


class Forward(_Entry, frozen=True, gc=False):
    """One call of a module; `depth` counts the forward and backward passes it was called from."""

    module: str
    training: bool
    grad: bool
    inference: bool
    devices: tuple[str, ...]  # of its parameters and inputs
    depth: int
    end: int | None = None
    seconds: float | None = None

    @property
    def builds_graph(self) -> bool:
        """Whether the pass leaves an autograd graph behind, given anything that requires a gradient."""
        return self.grad and not self.inference


class Backward(_Entry, frozen=True, gc=False):
    """One run of the autograd engine."""

    end: int | None = None
    seconds: float | None = None


class OptimizerStep(_Entry, frozen=True, gc=False):
    """One `optimizer.step()`, whoever called it."""

    optimizer: str
    end: int | None = None
    seconds: float | None = None


class ScalerCall(_Entry, frozen=True, gc=False):
    """One call of a gradient scaler: "scale", "unscale_", "step" or "update"."""

    call: str


class Allocation(_Entry, frozen=True, gc=False):
    """Memory taken (or, with negative bytes, given back) outside any operation."""

    device: str
    bytes: int
    live: int


Span = Forward | Backward | OptimizerStep
Record = Operation | Transfer | Sync | Forward | Backward | OptimizerStep | ScalerCall | Allocation
