"""The virtual GPU that is open, and its devices."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from gc import get_objects
from types import CodeType
from typing import Any, Final, NamedTuple, Protocol

import torch

from virtual_cuda.clock.gpu_models import Gpu, gpu_named
from virtual_cuda.clock.lanes import Clock, Times, times_of_rows
from virtual_cuda.device.cuda_errors import invalid_ordinal_error, out_of_memory_error
from virtual_cuda.device.host_memory import HostMemory
from virtual_cuda.device.memory import Allocator, OutOfMemory, Piece
from virtual_cuda.device.torch_names import module_names, names_made_of_others, operator_names
from virtual_cuda.errors import AlreadyOpen, NotOpen
from virtual_cuda.ledger import Ledger
from virtual_cuda.ledger.ledger import require_marks
from virtual_cuda.ledger.names import Vocabulary
from virtual_cuda.ledger.rows import Row

MOST_DEVICES: Final = 16
CUDA: Final = [torch.device("cuda", index) for index in range(MOST_DEVICES)]
# C++ sees this device: it has a guard on every build, no kernels, and runs on autograd's CPU queue.
LAZY: Final = [torch.device("lazy", index) for index in range(MOST_DEVICES)]
CPU: Final = torch.device("cpu")
META: Final = torch.device("meta")


class VirtualDevice:
    """One virtual device, from opening to closing; tensors keep it beyond that.

    A VirtualGpu for a part of that time may take its place: then `gpu`, `memory` and `note` are of
    that one. See `VirtualGpu.use_devices`.
    """

    __slots__ = ("closed", "cuda", "gpu", "index", "inside", "label", "lazy", "memory", "note")

    def __init__(self, gpu: VirtualGpu, index: int, memory: Allocator) -> None:
        """Make device number `index` of a virtual GPU, with this memory."""
        self.gpu = gpu
        self.index = index
        self.cuda = CUDA[index]  # its name for a program
        self.lazy = LAZY[index]  # its name for C++
        self.inside = CPU if gpu.values else META  # where the tensors inside of its tensors are
        self.label = f"cuda:{index}"
        self.memory = memory
        self.note: Callable[[Row], None] = gpu.ledger.rows.append
        self.closed = False

    def live_blocks(self) -> list[Block]:
        """All blocks in use on the device.

        They are found by asking the garbage collector for all objects, which takes long.
        """
        found = []
        for each in get_objects():
            if type(each) is Block and each.memory is self.memory:
                found.append(each)
        return found


class Block:
    """One allocation on a device: all tensors that share a storage share a block."""

    __slots__ = ("device", "memory", "piece", "size")

    def __init__(self, device: VirtualDevice, wanted: int) -> None:
        """Allocate this many bytes, and count them; an observer of the device's blocks is told.

        The device's cache is emptied where there is no room otherwise. Raises torch's
        OutOfMemoryError, after the GPU's observers were called.
        """
        self.device = device
        self.memory = device.memory  # which it goes back to
        self.size = 0
        self.piece: Piece | None = None
        self._allocate(wanted)

    def _allocate(self, wanted: int) -> None:
        """Take memory from the device; and an address, if every block gets one now.

        An observer of the device's blocks is told. The device's cache is emptied where there is no
        room otherwise. Raises torch's OutOfMemoryError, after the GPU's observers were called.
        """
        memory = self.memory
        try:
            self.size, self.piece = memory.take(wanted)
        except OutOfMemory as error:
            for observer in self.device.gpu.oom_observers:
                observer(self.device.index, error.requested, memory.live, memory.free)
            raise out_of_memory_error(error, self.device.index) from None
        if memory.quick < 0 and self.size:
            if memory.gives_addresses:
                memory.make_layout().spot_of(self, wanted)
            if memory.observer is not None:
                memory.observer.took(self, wanted)

    def resize(self, wanted: int) -> None:
        """Free the memory and allocate as much as is wanted now; an observer is told of both.

        The block stays the same object: every tensor that looks into the storage holds it. Without
        room, it is left without memory. Raises torch's OutOfMemoryError.
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
        memory = self.memory
        if memory.observer is not None:
            memory.observer.gave(self)
        if memory.layout is not None:
            memory.layout.release(self)
        memory.freed += self.size
        memory.give(self.size, self.piece)


class Assumption(NamedTuple):
    """What a program did with a value that a run without values does not have."""

    what: str  # without the line: "read a value that is not known, and got 0"
    code: CodeType | None
    offset: int | None  # of the instruction in `code`


class WorkspaceKey(NamedTuple):
    """What a workspace that a library keeps belongs to."""

    library: str
    device: int
    handle: int
    stream: int


class OpenedBy(Protocol):
    """What has opened a virtual GPU: see `devices.py`."""

    gives_way: bool

    def pause(self, gpu: VirtualGpu) -> AbstractContextManager[None]: ...


_regions: Final = itertools.count(1)  # of addresses, for memory that is counted apart


class _CurrentDevice(threading.local):
    """The index of a thread's current device."""

    index = 0


class VirtualGpu:
    """The object that `with virtual_cuda() as gpu` gives.

    It has the ledger, which is the list of everything that was recorded, and the facts about the
    devices.
    """

    def __init__(
        self,
        devices: int,
        memory: int,
        name: str,
        model: Gpu | None = None,
        of: VirtualGpu | None = None,
        values: bool = True,
    ) -> None:
        """Make `devices` devices with `memory` bytes each, or take those of another GPU.

        Of the GPU `of`, it takes the devices when `use_devices` is called. Nothing is opened by
        this: `now` holds the GPU that is open. Without `values`, tensors have only shapes.
        """
        self.name = name
        self.values = values
        # What a program without values did with values: see `device/no_values.py`.
        self.assumptions: list[Assumption] = []
        # The GPU whose times are modelled; without one, times are those of this machine.
        self.model = model
        labels = tuple(f"cuda:{index}" for index in range(devices))
        vocabulary = Vocabulary(labels, operator_names, names_made_of_others, module_names)
        self.ledger = Ledger(vocabulary=vocabulary)
        self._clock: Clock | None = None
        self.streams: dict[int, int] = {}  # device -> the stream that is used there now
        region = next(_regions) if of is not None else 0
        self._memories = [
            Allocator(memory, index, self.streams, region) for index in range(devices)
        ]
        if of is None:
            self.devices = [
                VirtualDevice(self, index, memory) for index, memory in enumerate(self._memories)
            ]
        else:
            self.devices = of.devices
        # The default generators of random numbers, which `torch_api/generators.py` makes.
        self.generators: list[Any] = []
        self.generators_follow_host = True
        self.is_paused = False
        self.session: OpenedBy | None = None  # that has opened it, and can pause it
        self.host_memory = HostMemory()
        # The memory that libraries keep on the devices: see `ops/workspaces.py`.
        self.workspaces: dict[WorkspaceKey, Block] = {}
        self.workspace_sizes: dict[str, int] = {}  # by library, where a program has set one
        self.variables: dict[str, str | None] = {}  # of the environment, that libraries have read
        self.sync_debug = 0  # 0 default, 1 warn, 2 error: torch.cuda.set_sync_debug_mode
        self.asserted = False  # a kernel has met a bad index, and the host does not know yet
        self.lost = False  # the host knows
        self.oom_observers: list[Callable[[int, int, int, int], object]] = []
        # Called with the kind of each wait before it is recorded; they may raise.
        self.on_wait: list[Callable[[str], None]] = []
        self._current = _CurrentDevice()

    def use_devices(self) -> None:
        """Let the devices count memory and record in this GPU, from now on.

        Tensors that are on them already stay usable; their memory is counted where it was taken.
        """
        for device, memory in zip(self.devices, self._memories, strict=True):
            device.gpu = self
            device.memory = memory
            device.note = self.ledger.rows.append
            device.closed = self.lost

    def memory_in_use(self) -> dict[str, int]:
        """The bytes of tensors that are on each device now; without what libraries keep."""
        found = {}
        for device, memory in zip(self.devices, self._memories, strict=True):
            found[device.label] = memory.live - memory.library_bytes
        return found

    def note_peaks(self) -> None:
        """Note the highest use of memory so far in the ledger, for each device.

        Without what libraries keep: the ledger tells what a program's tensors take.
        """
        for device, memory in zip(self.devices, self._memories, strict=True):
            self.ledger.peaks[device.label] = memory.peak - memory.library_bytes

    def paused(self) -> AbstractContextManager[None]:
        """A `with` block in which torch is as without a virtual device: real CPU torch.

        Afterwards the device is as it was before. Meanwhile its tensors raise DevicePaused, and
        another device may be opened. Raises NotOpen for a GPU that is not open now.
        """
        if self.session is None or now.gpu is not self:
            raise NotOpen("cuda")
        return self.session.pause(self)

    @property
    def current(self) -> int:
        """The index of the current device. Each thread has its own, as in CUDA."""
        return self._current.index

    @current.setter
    def current(self, index: int) -> None:
        self._current.index = index

    def clock(self) -> Clock | None:
        """The modelled clock, up to now; None where no GPU was chosen.

        It is made when it is asked for first, and advanced by what was recorded since.
        """
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
        """Model the times of another GPU for the length of a `with` block; gives its clock.

        The clock begins at 0 with what is recorded from now on.
        """
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

    def times(
        self, first: int = 0, until: int | None = None, gpu: Gpu | str | None = None
    ) -> Times:
        """The modelled times of a part of the ledger on a GPU.

        `first` and `until` are marks of the ledger, numbers of rows; None is its end. The GPU is
        `gpu`, which may be a name, else the chosen one, else an H200. Raises BadMark and
        UnknownGpu.
        """
        rows = self.ledger.rows
        require_marks(first, until, len(rows))
        if isinstance(gpu, str):
            gpu = gpu_named(gpu)
        model = gpu or self.model or gpu_named("H200")
        return times_of_rows(rows, model, first, until)

    def __repr__(self) -> str:
        rows = len(self.ledger.rows)
        return f"<{self.name}: {len(self.devices)} device(s), {rows} rows in the ledger>"


class _Now:
    """Holds the virtual GPU that is open now."""

    gpu: VirtualGpu | None = None


now: Final = _Now()


def open_device_of(device: torch.device) -> VirtualDevice | None:
    """The open device that a torch.device names; None for the host and foreign devices.

    One without an index is the current device. Raises the RuntimeError of `invalid_ordinal_error`
    for an index that is not there.
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

    Raises the RuntimeError of `invalid_ordinal_error` for an index that is not there, and torch's
    RuntimeError for a text such as "cuda:x".
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

    Whether there is such a device is not asked. Raises ValueError, in torch's words, for what names
    no device of CUDA, and torch's RuntimeError for a text that names no device at all.
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

    `device` is the name of the one that opens, for the message. Two recorders would each see half
    of what happens. Raises AlreadyOpen where one is open.
    """
    if _claimed_by:
        raise AlreadyOpen(_claimed_by[0])
    _claimed_by.append(device)
    try:
        yield
    finally:
        _claimed_by.clear()


@contextlib.contextmanager
def without_claim() -> Iterator[None]:
    """Let another device open and close for the length of a `with` block."""
    claimed = _claimed_by.copy()
    _claimed_by.clear()
    try:
        yield
    finally:
        _claimed_by[:] = claimed
