"""The virtual GPUs, which of them are open, and which tensors are pinned."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

from virtual_cuda.device.memory import Allocator, Piece
from virtual_cuda.device.messages import invalid_ordinal
from virtual_cuda.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable


MOST_DEVICES: Final = 16
CUDA: Final = [torch.device("cuda", i) for i in range(MOST_DEVICES)]
# C++ sees this device: it has a guard on every build, no kernels, and runs on autograd's CPU queue.
LAZY: Final = [torch.device("lazy", i) for i in range(MOST_DEVICES)]
CPU: Final = torch.device("cpu")


class Place:
    """One virtual device while it is open."""

    __slots__ = ("cuda", "gpu", "index", "label", "lazy", "memory", "note", "shut")

    def __init__(self, gpu: VirtualGpu, index: int, total: int) -> None:
        self.gpu = gpu
        self.index = index
        self.cuda = CUDA[index]
        self.lazy = LAZY[index]
        self.label = f"cuda:{index}"
        self.memory = Allocator(total)
        self.note: Callable[[Any], None] = gpu.ledger.rows.append
        self.shut = False


class Block:
    """One allocation on a device: all tensors that share a storage share a block."""

    __slots__ = ("piece", "place", "size")

    def __init__(self, place: Place, wanted: int) -> None:
        self.place = place
        self.size = 0
        self.piece: Piece | None = None
        self.size, self.piece = place.memory.take(wanted)

    def __del__(self) -> None:
        memory = self.place.memory
        if self.piece is None:
            memory.live -= self.size
            memory.blocks -= 1
            memory.small_live -= self.size
        else:
            memory.give(self.size, self.piece)


class VirtualGpu:
    """What `with virtual_cuda() as gpu` gives: the ledger, and the facts about the device."""

    def __init__(self, devices: int, memory: int, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self.places = [Place(self, i, memory) for i in range(devices)]
        self.sync_debug = 0  # 0 default, 1 warn, 2 error: torch.cuda.set_sync_debug_mode
        self.asserted = False  # a kernel has met a bad index, and the host does not know yet
        self.lost = False  # the host knows
        self._current = threading.local()

    @property
    def current(self) -> int:
        """The current device; as in CUDA, each thread has its own."""
        return getattr(self._current, "index", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._current.index = index

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.places)} device(s), {len(self.ledger.rows)} rows in the ledger>"


class _Now:
    """The virtual GPU that is open."""

    gpu: VirtualGpu | None = None


now: Final = _Now()


def place_of(device: torch.device) -> Place | None:
    """The open place a device argument names, or None for a host or foreign device."""
    gpu = now.gpu
    if gpu is None or device.type not in ("cuda", "lazy"):
        return None
    index = gpu.current if device.index is None else device.index
    if index >= len(gpu.places):
        raise invalid_ordinal()
    return gpu.places[index]


def place_named(device: Any) -> Place | None:
    """The open place that "cuda", "cuda:1", 0 or a torch.device names."""
    if isinstance(device, str):
        if device == "cuda" and now.gpu is not None:
            return now.gpu.places[now.gpu.current]
        if not device.startswith("cuda"):
            return None
        device = torch.device(device)
    elif isinstance(device, int) and not isinstance(device, bool):
        device = torch.device("cuda", device)
    return place_of(device) if isinstance(device, torch.device) else None


def index_of(gpu: VirtualGpu, device: Any = None, optional: bool = True) -> int:
    """The index a device argument of torch.cuda names, as torch.cuda._utils._get_device_index understands it."""
    if device is None:
        return gpu.current
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return gpu.current if device.index is None else int(device.index)
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    return device


_pinned: Final[dict[int, Any]] = {}


def is_pinned(tensor: torch.Tensor) -> bool:
    if not _pinned:
        return False
    kept = _pinned.get(tensor.untyped_storage()._cdata)
    return kept is not None and kept() is not None


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy, or the tensor itself if it is pinned already."""
    if is_pinned(tensor):
        return tensor
    copy = tensor.detach().clone(memory_format=torch.preserve_format)
    _remember(copy)
    return copy


def _remember(tensor: torch.Tensor) -> None:
    storage: Any = tensor.untyped_storage()
    key = storage._cdata
    # The storage object is kept by the tensor, so that the weak reference lives exactly as long as the memory.
    tensor._pinned_storage = storage  # type: ignore[attr-defined]
    _pinned[key] = weakref.ref(storage, lambda _: _pinned.pop(key, None))


def forget_pinned() -> None:
    """Forget which tensors are pinned; done when the device closes."""
    _pinned.clear()
