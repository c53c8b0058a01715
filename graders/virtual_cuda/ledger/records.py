"""Ledger records: frozen structs, and the raw rows they are read from."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Row = tuple[Any, ...]

# (kind, at, code, offset, name, device, mode, autocast, bytes, live, work)
#   name: "aten.add.Tensor"; device: "cuda:0"; mode: GRAD | INFERENCE bits; autocast: None or a dtype;
#   bytes: what its outputs newly occupy on the device; live: what is allocated there afterwards;
#   work: what `virtual_cuda.clock` reads: (dtype, shape of the result or None, shape of each tensor given, …), or None;
#      at its end the number of the dimension it works along, if that is not the last
OPERATION: Final = 0
# (kind, at, code, offset, direction, bytes, pinned, non_blocking, source, target)
TRANSFER: Final = 1
# (kind, at, code, offset, what, explicit)
SYNC: Final = 2
# (kind, at, code, offset, module, training, mode, devices)   closed by an END row
FORWARD: Final = 3
# (kind, at, code, offset)                                    closed by an END row
BACKWARD: Final = 4
# (kind, at, code, offset, optimizer)                         closed by an END row
OPTIMIZER_STEP: Final = 5
# (kind, at, code, offset, call)                              call: "scale", "unscale_", "step", "update"
SCALER_CALL: Final = 6
# (kind, at, code, offset, device, bytes, live)               an allocation outside any operation; bytes < 0 is a free
ALLOCATION: Final = 7
# (kind, at, None, None, index of the row it closes)
END: Final = 8
# (kind, at, None, None, device, stream, what, other)         no record; what: "use", "record", "wait", "wait_stream",
#   "synchronize", "synchronize_event", "tf32", "list"; other: the row that recorded the event, the stream waited for,
#   whether matrix products may use TF32 from here on, or how many numbers of a list were made into a tensor
STREAM: Final = 9
# (kind, at, code, offset, name, device, bytes, ranks)        closed by an END row
COLLECTIVE: Final = 10

GRAD: Final = 1
INFERENCE: Final = 2


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
        """Whether the pass leaves an autograd graph behind, given anything that requires a gradient."""
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
    """One exchange with other ranks, until it was complete here: the rank that comes last waits least."""

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
