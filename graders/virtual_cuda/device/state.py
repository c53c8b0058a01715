"""The virtual GPU that is open, and its devices."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from gc import get_objects
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.clock.gpu_models import Gpu, gpu_named
from virtual_cuda.clock.lanes import Clock, Times, times_of_rows
from virtual_cuda.device.cuda_errors import invalid_ordinal_error
from virtual_cuda.device.host_memory import HostMemory
from virtual_cuda.device.memory import Allocator, Piece
from virtual_cuda.errors import AlreadyOpen
from virtual_cuda.ledger import Ledger
from virtual_cuda.ledger.rows import Row

MOST_DEVICES: Final = 16
CUDA: Final = [torch.device("cuda", index) for index in range(MOST_DEVICES)]
# C++ sees this device: it has a guard on every build, no kernels, and runs on autograd's CPU queue.
LAZY: Final = [torch.device("lazy", index) for index in range(MOST_DEVICES)]
CPU: Final = torch.device("cpu")


class VirtualDevice:
    """One virtual device, from opening to closing; tensors keep it beyond that."""

    __slots__ = ("closed", "cuda", "gpu", "index", "label", "lazy", "memory", "note")

    def __init__(self, gpu: VirtualGpu, index: int, total: int) -> None:
        """Make device number `index` of a virtual GPU, with `total` bytes of memory."""
        self.gpu = gpu
        self.index = index
        self.cuda = CUDA[index]  # its name for a program
        self.lazy = LAZY[index]  # its name for C++
        self.label = f"cuda:{index}"
        self.memory = Allocator(total, index, gpu.streams)
        self.note: Callable[[Row], None] = gpu.ledger.rows.append
        self.closed = False

    def live_blocks(self) -> list[Block]:
        """All blocks in use on the device.

        They are found by asking the garbage collector for all objects, which takes long.
        """
        found = []
        for each in get_objects():
            if type(each) is Block and each.device is self:
                found.append(each)
        return found


class Block:
    """One allocation on a device: all tensors that share a storage share a block."""

    __slots__ = ("device", "piece", "size")

    def __init__(self, device: VirtualDevice, wanted: int) -> None:
        """Allocate this many bytes. Raises OutOfMemory."""
        self.device = device
        self.size = 0
        self.piece: Piece | None = None
        self._allocate(wanted)

    def _allocate(self, wanted: int) -> None:
        """Take memory from the device; and an address, if every block gets one now.

        Raises OutOfMemory.
        """
        memory = self.device.memory
        self.size, self.piece = memory.take(wanted)
        if memory.quick < 0 and self.size:
            memory.make_layout().spot_of(self, wanted)

    def resize(self, wanted: int) -> None:
        """Free the memory and allocate as much as is wanted now.

        The block stays the same object: every tensor that looks into the storage holds it. Raises
        OutOfMemory.
        """
        self.__del__()
        self.size = 0
        self.piece = None
        self._allocate(wanted)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Free the memory.

        At the interpreter's exit nothing is done: the names in our modules are None then, so that
        the function that asks for it must be an argument.
        """
        # A block without a size is empty, or did not fit into the memory.
        if not self.size or is_finalizing():
            return
        memory = self.device.memory
        if memory.layout is not None:
            memory.layout.release(self)
        memory.freed += self.size
        memory.give(self.size, self.piece)


class WorkspaceKey(NamedTuple):
    """What a workspace that a library keeps belongs to."""

    library: str
    device: int
    handle: int
    stream: int


class _CurrentDevice(threading.local):
    """The index of a thread's current device."""

    index = 0


class VirtualGpu:
    """The object that `with virtual_cuda() as gpu` gives.

    It has the ledger, which is the list of everything that was recorded, and the facts about the
    devices.
    """

    def __init__(self, devices: int, memory: int, name: str, model: Gpu | None = None) -> None:
        """Make `devices` devices with `memory` bytes each.

        Nothing is opened by this: `now` holds the GPU that is open.
        """
        self.name = name
        # The GPU whose times are modelled; without one, times are those of this machine.
        self.model = model
        self.ledger = Ledger()
        self._clock: Clock | None = None
        self.streams: dict[int, int] = {}  # device -> the stream that is used there now
        self.devices = [VirtualDevice(self, index, memory) for index in range(devices)]
        self.host_memory = HostMemory()
        # The memory that libraries keep on the devices: see `ops/workspaces.py`.
        self.workspaces: dict[WorkspaceKey, Block] = {}
        self.workspace_sizes: dict[str, int] = {}  # by library, where a program has set one
        self.sync_debug = 0  # 0 default, 1 warn, 2 error: torch.cuda.set_sync_debug_mode
        self.asserted = False  # a kernel has met a bad index, and the host does not know yet
        self.lost = False  # the host knows
        self.oom_observers: list[Callable[[int, int, int, int], object]] = []
        # Called with the kind of each wait before it is recorded; they may raise.
        self.on_wait: list[Callable[[str], None]] = []
        self._current = _CurrentDevice()

    @property
    def current(self) -> int:
        """The index of the current device. Each thread has its own, as in CUDA."""
        return self._current.index

    @current.setter
    def current(self, index: int) -> None:
        self._current.index = index

    def clock(self) -> Clock | None:
        """The modelled clock, up to now; None where no GPU was chosen."""
        if self.model is None:
            return None
        if self._clock is None:
            self._clock = Clock(self.ledger.rows, self.model)
        self._clock.advance()
        return self._clock

    def spend_on_asking(self) -> None:
        """Let the modelled time pass that it takes to ask a device whether it is done.

        Nothing passes without a model.
        """
        clock = self.clock()
        if clock is not None:
            clock.spend(clock.gpu.host["stream"])

    @contextlib.contextmanager
    def modelled_as(self, model: Gpu) -> Iterator[Clock]:
        """Model the times of another GPU for the length of a `with` block; gives its clock."""
        outer_model = self.model
        outer_clock = self._clock
        rows = self.ledger.rows
        clock = Clock(rows, model, first=len(rows))
        self.model = model
        self._clock = clock
        try:
            yield clock
        finally:
            self.model = outer_model
            self._clock = outer_clock

    def times(self, first: int = 0, until: int | None = None, gpu: Gpu | None = None) -> Times:
        """The modelled times of a part of the ledger on a GPU.

        `first` and `until` are marks of the ledger. The GPU is `gpu`, else the chosen one, else an
        H200.
        """
        model = gpu or self.model or gpu_named("H200")
        return times_of_rows(self.ledger.rows, model, first, until)

    def __repr__(self) -> str:
        rows = len(self.ledger.rows)
        return f"<{self.name}: {len(self.devices)} device(s), {rows} rows in the ledger>"


class _Now:
    """Holds the virtual GPU that is open now."""

    gpu: VirtualGpu | None = None


now: Final = _Now()


def open_device_of(device: torch.device) -> VirtualDevice | None:
    """The open device that a torch.device names; None for the host and foreign devices.

    Raises CUDA's error, of `invalid_ordinal_error`, for an index that is not there.
    """
    gpu = now.gpu
    if gpu is None or device.type not in ("cuda", "lazy"):
        return None
    if device.index is None:
        index = gpu.current
    else:
        index = device.index
    if index >= len(gpu.devices):
        raise invalid_ordinal_error()
    return gpu.devices[index]


def find_open_device(device: Any) -> VirtualDevice | None:
    """The open device that "cuda", "cuda:1", 0 or a torch.device names; None for all else.

    Raises CUDA's error, of `invalid_ordinal_error`, for an index that is not there.
    """
    if isinstance(device, str):
        if device == "cuda" and now.gpu is not None:
            return now.gpu.devices[now.gpu.current]
        if not device.startswith("cuda"):
            return None
        device = torch.device(device)
    elif isinstance(device, int) and not isinstance(device, bool):
        device = torch.device("cuda", device)
    if isinstance(device, torch.device):
        return open_device_of(device)
    return None


def index_of(gpu: VirtualGpu, device: Any = None) -> int:
    """The index that a device argument of torch.cuda names, the current one for None.

    Raises ValueError, in torch's words, for what names no device of CUDA.
    """
    if device is None:
        return gpu.current
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        if device.index is None:
            return gpu.current
        return int(device.index)
    if isinstance(device, torch.cuda.device):
        return int(device.idx)
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(
            f"Expected a torch.device with a specified index or an integer, but got:{device}"
        )
    return device


# ---- one device at a time ------------------------------------------------------------------------

_claimed_by: list[str] = []  # the device that is open in this process: one, or none


@contextlib.contextmanager
def claim_device(device: str) -> Iterator[None]:
    """Let no other device open for the length of a `with` block, virtual or real.

    Two recorders would each see half of what happens. Raises AlreadyOpen where one is open.
    """
    if _claimed_by:
        raise AlreadyOpen(_claimed_by[0])
    _claimed_by.append(device)
    try:
        yield
    finally:
        _claimed_by.clear()
