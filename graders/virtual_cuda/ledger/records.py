"""Records of a ledger: what a row says, with the line of code that caused it.

Records are frozen, and free of torch.
"""

from __future__ import annotations

import msgspec

from virtual_cuda.ledger.rows import Direction


# gc=False throughout: records hold only texts, numbers and other records, so they cannot be part of
# a cycle, and a ledger of a hundred thousand of them does not slow down the garbage collector of
# the code it watches.
class Site(msgspec.Struct, frozen=True, gc=False):
    """A line of the student's code, and the function it is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class _Entry(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What all records have; those of a part of a ledger keep their `index` in the whole."""

    index: int
    at: float  # seconds since the ledger was opened
    site: Site | None  # None where no line of somebody's code caused it


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
        """True if autograd records it, given an input that requires a gradient."""
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
    """The host waited for a device: because of an explicit call, or to read a value."""

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
        """True if the pass leaves an autograd graph, given anything that requires a gradient."""
        return self.grad and not self.inference


class Backward(_Entry, frozen=True, gc=False):
    """One run of the autograd engine."""

    end: int | None = None
    seconds: float | None = None


class OptimizerStep(_Entry, frozen=True, gc=False):
    """One `optimizer.step()`, also one that a scaler called."""

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


class Collective(_Entry, frozen=True, gc=False):
    """One exchange with other ranks, until it was complete here.

    The rank that comes last waits least.
    """

    name: str
    device: str
    bytes: int
    ranks: int  # of the group
    end: int | None = None
    seconds: float | None = None


Span = Forward | Backward | OptimizerStep | Collective
Record = (
    Operation
    | Transfer
    | Sync
    | Forward
    | Backward
    | OptimizerStep
    | ScalerCall
    | Allocation
    | Collective
)
