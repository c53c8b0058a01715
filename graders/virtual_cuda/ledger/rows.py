"""Rows: what a device appends to its ledger while code runs. `ledger.py` reads them into records.

A row is written for every operator, so it holds what is at hand at that moment: a code object and
an offset instead of a line, bits instead of names. Rows and records differ so that writing is cheap
and reading is convenient.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Final, Literal

import msgspec

Direction = Literal["to_device", "to_host", "between_devices"]

# Bits of `mode`.
GRAD: Final = 1
INFERENCE: Final = 2


# gc=False: rows hold only texts, numbers, dtypes, code objects and shapes. None of these refers to
# a row, so no row is part of a cycle, and the garbage collector of the code that is watched has no
# row to visit. It does visit the shapes, which are `torch.Size` objects as torch gives them: plain
# tuples, which it would skip, cost every operator more time than they save there.
class Row(msgspec.Struct, frozen=True, gc=False):
    """One entry of a ledger; `at` is a time of `time.perf_counter`."""

    at: float


class SiteRow(Row, frozen=True, gc=False):
    """A row that a line of somebody's code caused; None and None where no such line is known."""

    code: CodeType | None
    offset: int | None  # of the instruction, in bytes


class OperationRow(SiteRow, frozen=True, gc=False):
    """One operator that ran on a device."""

    name: str  # "aten.add.Tensor"
    device: str  # "cuda:0"
    mode: int  # GRAD | INFERENCE
    autocast: Any  # the dtype that inputs are cast to, or None
    bytes: int  # what its outputs newly occupy on the device
    live: int  # what is allocated there afterwards
    # What `virtual_cuda.clock` reads: (dtype, shape of the result or None, shape of each tensor
    # given, …), or None. Shapes are `torch.Size` objects, or tuples. At its end stands the number
    # of the dimension it works along, if that is not the last. Of a convolution or a batch norm it
    # is 1 where the channels lie last in memory.
    work: tuple[Any, ...] | None = None

    @property
    def builds_graph(self) -> bool:
        """True if it ran with gradients enabled, outside inference mode."""
        return bool(self.mode & GRAD) and not self.mode & INFERENCE


class TransferRow(SiteRow, frozen=True, gc=False):
    """One tensor copied from one device to another."""

    direction: Direction
    bytes: int
    pinned: bool
    non_blocking: bool
    source: str
    target: str


class SyncRow(SiteRow, frozen=True, gc=False):
    """The host waited for a device."""

    what: str
    explicit: bool
    device: str = ""  # the current device, which "synchronize" waits for; "" if it is not known


class ForwardRow(SiteRow, frozen=True, gc=False):
    """A call of a module begins; an EndRow closes it."""

    module: str
    training: bool
    mode: int  # GRAD | INFERENCE
    devices: Any  # of its parameters and inputs


class BackwardRow(SiteRow, frozen=True, gc=False):
    """A backward pass begins; an EndRow closes it."""


class StepRow(SiteRow, frozen=True, gc=False):
    """A step of an optimizer begins; an EndRow closes it."""

    optimizer: str


class ScalerRow(SiteRow, frozen=True, gc=False):
    """A call of a gradient scaler: "scale", "unscale_", "step" or "update"."""

    call: str


class AllocationRow(SiteRow, frozen=True, gc=False):
    """Memory taken outside any operation; given back where `bytes` is negative."""

    device: str
    bytes: int
    live: int


class CollectiveRow(SiteRow, frozen=True, gc=False):
    """An exchange with other ranks begins; an EndRow closes it."""

    name: str
    device: str
    bytes: int
    ranks: int


class EndRow(Row, frozen=True, gc=False):
    """What another row began has ended. Not a record of its own."""

    opened: int  # the number of that row


StreamEvent = Literal[
    "use",
    "record",
    "wait",
    "wait_stream",
    "synchronize",
    "synchronize_event",
    "sleep",
    "tf32",
    "list",
    "replay",
]


class StreamRow(SiteRow, frozen=True, gc=False):
    """What streams do, which only the modelled clock must know. Not a record."""

    device: str
    stream: int
    what: StreamEvent
    # Of "wait" and "synchronize_event": the row that recorded the event. Of "wait_stream": the
    # stream waited for. Of "sleep": cycles. Of "tf32": whether matrix products may use TF32 from
    # here on. Of "list": how many numbers of a list were made into a tensor. Of "replay": 1 where
    # a CUDA graph begins to run again, 0 where it is done.
    other: int = 0
