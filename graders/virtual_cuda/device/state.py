"""The virtual GPUs: their memory, which of them are open, and which tensors are pinned."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import torch

from virtual_cuda.clock.gpu_models import Gpu, gpu_named
from virtual_cuda.clock.lanes import Clock, Times, times_of_rows
from virtual_cuda.device.layout import (
    LARGE_ALONE,
    LARGE_SEGMENT,
    ROUND,
    SMALL,
    SMALL_SEGMENT,
    HostMemory,
    Layout,
    stack,
)
from virtual_cuda.ledger import Ledger
from virtual_cuda.ledger.rows import Row
from virtual_cuda.sizes import format_size

_LATER = (
    "CUDA kernel errors might be asynchronously reported at some other API call, "
    "so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def accelerator_error(text: str) -> RuntimeError:
    kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(text)  # type: ignore[no-any-return]


def invalid_ordinal() -> RuntimeError:
    return accelerator_error(
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        + _LATER
    )


def cuda_error(text: str, name: str) -> RuntimeError:
    """What torch makes of an error of CUDA, which has a text and a name."""
    return accelerator_error(
        f"CUDA error: {text}\nSearch for `cudaError{name}' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\n" + _LATER
    )


def device_assert() -> RuntimeError:
    return cuda_error("device-side assert triggered", "Assert")


def forked() -> RuntimeError:
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
        "you must use the 'spawn' start method"
    )


def out_of_memory(error: OutOfMemory, index: int) -> RuntimeError:
    memory = revealed(error.place)
    limited = f"{format_size(memory.allowed)} allowed; " if memory.allowed < memory.total else ""
    return torch.cuda.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {format_size(error.requested)}. "
        f"GPU {index} has a total capacity of {format_size(memory.total)} of which {format_size(memory.free)} is free. "
        f"Including non-PyTorch memory, this process has {format_size(memory.reserved)} memory in use. "
        f"{limited}Of the allocated memory {format_size(memory.live)} is allocated by PyTorch, and "
        f"{format_size(memory.reserved - memory.live)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)"
    )


def two_devices(first: str, second: str) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def argument_elsewhere(argument: str, where: str, others: str, method: str) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {argument} is on {where}, different from other "
        f"tensors on {others} (when checking argument in method {method})"
    )


class Hidden:
    """Holds a value for `revealed`, and shows it to nobody else: nodes of a graph and errors are looked into."""

    __slots__ = ("value",)


_put = vars(Hidden)["value"].__set__
revealed = vars(Hidden)["value"].__get__
del Hidden.value  # type: ignore[attr-defined]


def conceal(value: Any) -> Hidden:
    """An object that holds this value."""
    holder = Hidden()
    _put(holder, value)
    return holder


attributes: Final = vars(torch.Tensor)[
    "__dict__"
].__get__  # of a tensor; `__dict__` itself may be hidden by others


def held_inside(value: Any, name: str, default: Any = None) -> Any:
    """What a tensor on the device has inside under this name; `default` for all else, which is not asked for it."""
    return (
        attributes(value).get(name, default) if issubclass(type(value), torch.Tensor) else default
    )


def type_name(tensor: Any) -> str:
    """`torch.cuda.FloatTensor`, as CUDA names the type of a tensor."""
    inner = held_inside(tensor, "_inner")
    if inner is None:
        return str(tensor.type())
    try:
        return str(inner.type()).replace("torch.", "torch.cuda.", 1)
    except RuntimeError as error:  # compressed sparse tensors have no such type on any device
        raise RuntimeError(str(error).replace("CPU", "CUDA")) from None


def label_of(tensor: Any) -> str:
    """`cuda:0` or `cpu`."""
    return str(tensor.device)


def not_on_host(label: str) -> TypeError:
    return TypeError(
        f"can't convert {label} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


_HERE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def warn(said: str) -> None:
    """Warn at the line that called the device, where C++ warns on a GPU: Python shows a warning once for each line."""
    distance = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        distance = distance + 1
        frame = frame.f_back
    warnings.warn(said, UserWarning, stacklevel=distance)


def without_lazy(error: Exception) -> Exception | None:
    """The error in the student's words, where C++ has used its own name for the device."""
    text = str(error)
    if "azy" not in text or not isinstance(error, (RuntimeError, TypeError)):
        return None
    return type(error)(
        re.sub(r"Lazy(\w+)Type", r"torch.cuda.\1Tensor", text).replace("lazy", "cuda")
    )


# ---- dtypes ----------------------------------------------------------------------------------------------------------

SPELLED: Final = {
    torch.bfloat16: "BFloat16", torch.bool: "Bool", torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble", torch.float16: "Half", torch.float32: "Float", torch.float64: "Double",
    torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long", torch.uint8: "Byte",
}  # fmt: skip
# C++ calls tensors of these by their Python type, and all others by backend and dtype: `CUDABFloat16Type`.
_LEGACY: Final = frozenset({"Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"})
_TYPES: Final[dict[str, type[Exception]]] = {
    "NotImplementedError": NotImplementedError,
    "RuntimeError": RuntimeError,
}
KERNEL: Final = re.compile(r"""^"(.+)" not implemented for '(\w+)'$""")


def worded(said: str, spelled: str) -> Exception:
    """The exception that a text of `facts/refusals.json` describes, for the dtype spelled so."""
    kind, _, text = said.replace("{T}", spelled).partition(": ")
    return _TYPES[kind](text)


def not_implemented(kernel: str, spelled: str) -> NotImplementedError:
    return NotImplementedError(f"\"{kernel}\" not implemented for '{spelled}'")


def mismatch(expected: Any, found: Any) -> RuntimeError:
    return RuntimeError(
        f"expected scalar type {SPELLED[expected.dtype]} but found {SPELLED[found.dtype]}"
    )


def legacy_type_name(tensor: Any) -> str:
    """A device tensor's type as C++ spells it in messages: `torch.cuda.FloatTensor`, `CUDABoolType`."""
    spelled = SPELLED.get(tensor.dtype, "Undefined")
    return f"torch.cuda.{spelled}Tensor" if spelled in _LEGACY else f"CUDA{spelled}Type"


# ---- the caching allocator: it counts memory and raises when none is left --------------------------------------------

POOLS: Final = ("all", "large_pool", "small_pool")
MOMENTS: Final = ("current", "peak", "allocated", "freed")
FIGURES: Final = """
    allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes
    requested_bytes
""".split()
NAMED: Final = {
    (figure, pool): tuple(f"{figure}.{pool}.{moment}" for moment in MOMENTS)
    for figure in FIGURES
    for pool in POOLS
}
_OTHERS: Final = """
    num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free max_split_size
    oversize_allocations.{0} oversize_segments.{0}
"""
NOTHING: Final = dict.fromkeys(
    sorted({*chain(*NAMED.values()), *" ".join(map(_OTHERS.format, MOMENTS)).split()}), 0
)


class OutOfMemory(Exception):
    """A request that does not fit; the dispatcher turns it into torch's error."""

    def __init__(self, requested: int, place: Allocator) -> None:
        super().__init__(requested)
        self.requested = requested
        self.place = conceal(place)


class Piece:
    """A stretch of a large segment, free or in use, between its neighbours."""

    __slots__ = ("after", "before", "free", "size")

    def __init__(self, size: int, before: Piece | None = None, after: Piece | None = None) -> None:
        self.size = size
        self.before = before
        self.after = after
        self.free = False


class Allocator:
    """The memory of one device. `live` and `peak` are read and written by the dispatcher directly, for speed."""

    __slots__ = tuple(
        """
        allowed asked blocks blocks_ever busy emptied freed index layout live lock ooms peak peak_reserved pieces quick
        reserved_large retries returned since small_high small_live streams total waiting
        """.split()
    )

    def __init__(self, total: int, index: int = 0, streams: dict[int, int] | None = None) -> None:
        self.total = self.allowed = total
        self.live = self.peak = self.blocks = self.blocks_ever = 0
        self.pieces: list[Piece] = []  # free stretches of large segments
        # A block is freed at any moment: the garbage collector frees some while another is taken, threads do.
        self.waiting: deque[Piece] = deque()  # freed, and not joined with their neighbours yet
        self.lock = threading.RLock()
        self.busy = False  # whether the thread that has the lock is at work on the pieces
        self.small_high = (
            0  # what the small segments must have held at once since the cache was last emptied
        )
        self.small_live = self.reserved_large = self.peak_reserved = self.ooms = self.retries = 0
        self.freed = 0  # bytes
        self.since = 0, 0, 0  # blocks ever, blocks and bytes in use when such figures began
        self.quick = 0  # up to here small blocks need nothing but counting: as small_high, or -1 while watched
        self.asked = self.returned = self.emptied = (
            0  # segments, and how often all streams were waited for
        )
        self.index = index
        self.streams = {} if streams is None else streams  # device -> current stream
        self.layout: Layout | None = None  # made by the first question about an address

    @property
    def reserved(self) -> int:
        return _segments(self.small_high) + self.reserved_large

    @property
    def free(self) -> int:
        """What another process could still have: cached memory is not free."""
        return self.total - self.reserved

    def take(self, wanted: int) -> tuple[int, Piece | None]:
        """Allocate; gives the size counted for the block and, for a large one, its piece."""
        size = (wanted + ROUND - 1) & -ROUND
        if size <= SMALL:
            piece = None
            small = self.small_live + size
            if small > self.small_high:
                self._make_room(lambda: _segments(small) + self.reserved_large, size)
                self._set_small_high(small)
                self.peak_reserved = max(self.peak_reserved, self.reserved)
            self.small_live = small
        else:
            with self._at_work():
                piece = self._take_large(size)
            size = piece.size
        self.live += size
        if size:
            self.blocks += 1
            self.blocks_ever += 1
        if self.live > self.peak:
            self.peak = self.live
        return size, piece

    def give(self, size: int, piece: Piece | None) -> None:
        self.live -= size
        self.blocks -= 1
        if piece is None:
            self.small_live -= size
            return
        self.waiting.append(piece)
        self._join_waiting()

    def _join_waiting(self) -> None:
        """Join freed pieces with their neighbours; whoever is at work on the pieces does it when that is done."""
        if not self.busy and self.lock.acquire(blocking=False):
            try:
                with self._at_work():
                    pass
            finally:
                self.lock.release()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """The pieces are for this thread, and what is freed meanwhile waits."""
        with self.lock:
            outer = self.busy
            self.busy = True
            try:
                while self.waiting and not outer:
                    self._join(self.waiting.popleft())
                yield
                while self.waiting and not outer:
                    self._join(self.waiting.popleft())
            finally:
                self.busy = outer

    def _join(self, piece: Piece) -> None:
        piece.free = True
        for side in ("before", "after"):
            neighbour = getattr(piece, side)
            if neighbour is not None and neighbour.free:
                self.pieces.remove(neighbour)
                piece.size += neighbour.size
                setattr(piece, side, getattr(neighbour, side))
                beyond = getattr(piece, side)
                if beyond is not None:
                    setattr(beyond, "after" if side == "before" else "before", piece)
        self.pieces.append(piece)

    def empty_cache(self) -> None:
        """Give segments back that nothing lives in."""
        with self._at_work():
            for piece in [p for p in self.pieces if p.before is None and p.after is None]:
                self.pieces.remove(piece)
                self.reserved_large -= piece.size
                self.returned += 1
        self._set_small_high(self.small_live)
        self.emptied += 1
        if self.layout is not None:
            self.layout.empty()

    def _set_small_high(self, size: int) -> None:
        segments = (_segments(size) - _segments(self.small_high)) // SMALL_SEGMENT
        self.asked += max(segments, 0)
        self.returned -= min(segments, 0)
        self.small_high = size
        if self.quick >= 0:
            self.quick = size

    def located(self) -> Layout:
        """Where the blocks lie."""
        if self.layout is None:
            self.layout = Layout(self.index, self.streams)
        return self.layout

    def watch(self, watched: bool) -> None:
        """Whether every block gets its address when it is allocated."""
        self.quick = -1 if watched else self.small_high

    def live_blocks(self) -> list[Block]:
        """All blocks in use."""
        return [o for o in gc.get_objects() if type(o) is Block and o.place.memory is self]

    def reset_accumulated(self) -> None:
        self.freed = 0
        self.since = self.blocks_ever, self.blocks, self.live

    def reset_peaks(self) -> None:
        self.peak = self.live
        self.peak_reserved = self.reserved

    def statistics(self) -> dict[str, Any]:
        """The figures that torch.cuda.memory_stats() gives, in its order."""
        large = self.live - self.small_live
        now = {
            "allocated_bytes": {
                "all": self.live,
                "small_pool": self.small_live,
                "large_pool": large,
            },
            "reserved_bytes": {
                "all": self.reserved,
                "small_pool": self.reserved - self.reserved_large,
                "large_pool": self.reserved_large,
            },
        }
        now["active_bytes"] = now["requested_bytes"] = now["allocated_bytes"]
        now["inactive_split_bytes"] = {
            p: now["reserved_bytes"][p] - now["allocated_bytes"][p] for p in POOLS
        }
        found: dict[str, Any] = {**NOTHING}
        for figure, by_pool in now.items():
            for pool, current in by_pool.items():
                peak = current
                if pool == "all":
                    peak = {"allocated_bytes": self.peak, "reserved_bytes": self.peak_reserved}.get(
                        figure, current
                    )
                ever = peak
                freed = peak - current
                if pool == "all" and figure in (
                    "allocated_bytes",
                    "active_bytes",
                    "requested_bytes",
                ):
                    peak = self.peak
                    freed = self.freed
                    ever = current - self.since[2] + freed
                found.update(zip(NAMED[figure, pool], (current, peak, ever, freed), strict=True))
        ever = self.blocks_ever - self.since[0]
        for figure in ("allocation", "active"):
            values = (self.blocks, self.blocks, ever, ever + self.since[1] - self.blocks)
            found.update(zip(NAMED[figure, "all"], values, strict=True))
        found.update(num_alloc_retries=self.retries, num_ooms=self.ooms, max_split_size=-1)
        found.update(
            num_sync_all_streams=self.emptied,
            num_device_alloc=self.asked,
            num_device_free=self.returned,
        )
        return found

    def _make_room(self, wanted: Callable[[], int], size: int) -> None:
        """Empty the cache where what is wanted is more than allowed; raises OutOfMemory where that does not help."""
        if wanted() > self.allowed:
            self.retries += 1
            self.empty_cache()
            if wanted() > self.allowed:
                self.ooms += 1
                if self.layout is not None and self.layout.history is not None:
                    self.layout.history.note(
                        "oom", self.free, size, self.layout.pool, frames=stack()
                    )
                raise OutOfMemory(size, self)

    def _take_large(self, size: int) -> Piece:
        fitting = [p for p in self.pieces if p.size >= size]
        if fitting:
            piece = min(fitting, key=lambda p: p.size)
            self.pieces.remove(piece)
        else:
            segment = LARGE_SEGMENT if size < LARGE_ALONE else _segments(size)
            self._make_room(lambda: self.reserved + segment, size)
            self.reserved_large += segment
            self.asked += 1
            self.peak_reserved = max(self.peak_reserved, self.reserved)
            piece = Piece(segment)
        piece.free = False
        rest = piece.size - size
        if rest > SMALL:
            remainder = Piece(rest, piece, piece.after)
            if piece.after is not None:
                piece.after.before = remainder
            piece.after = remainder
            piece.size = size
            remainder.free = True
            self.pieces.append(remainder)
        return piece


def _segments(size: int) -> int:
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


# ---- devices ---------------------------------------------------------------------------------------------------------

MOST_DEVICES: Final = 16
CUDA: Final = [torch.device("cuda", i) for i in range(MOST_DEVICES)]
# C++ sees this device: it has a guard on every build, no kernels, and runs on autograd's CPU queue.
LAZY: Final = [torch.device("lazy", i) for i in range(MOST_DEVICES)]
CPU: Final = torch.device("cpu")


class Place:
    """One virtual device while it is open."""

    __slots__ = (
        "cuda",
        "gpu",
        "index",
        "label",
        "lazy",
        "memory",
        "note",
        "shut",
    )

    def __init__(self, gpu: VirtualGpu, index: int, total: int) -> None:
        self.gpu = gpu
        self.index = index
        self.cuda = CUDA[index]
        self.lazy = LAZY[index]
        self.label = f"cuda:{index}"
        self.memory = Allocator(total, index, gpu.streams)
        self.note: Callable[[Row], None] = gpu.ledger.rows.append
        self.shut = False


class Block:
    """One allocation on a device: all tensors that share a storage share a block."""

    __slots__ = ("piece", "place", "size")

    def __init__(self, place: Place, wanted: int) -> None:
        self.place = place
        self.size = 0
        self.piece: Piece | None = None
        self.allocate(wanted)

    def allocate(self, wanted: int) -> None:
        memory = self.place.memory
        self.size, self.piece = memory.take(wanted)
        if memory.quick < 0 and self.size:
            memory.located().spot(self, wanted)

    def resize(self, wanted: int) -> None:
        """In place: every tensor that looks into the storage holds this block."""
        self.__del__()
        self.size = 0
        self.piece = None
        self.allocate(wanted)

    def __del__(self) -> None:
        if not self.size:  # nothing, or more than there is
            return
        memory = self.place.memory
        if memory.layout is not None:
            memory.layout.release(self)
        memory.freed += self.size
        if self.piece is None:
            memory.live -= self.size
            memory.blocks -= 1
            memory.small_live -= self.size
        else:
            memory.give(self.size, self.piece)


class _Current(threading.local):
    """The current device of a thread."""

    index = 0


class VirtualGpu:
    """What `with virtual_cuda() as gpu` gives: the ledger, and the facts about the device."""

    def __init__(self, devices: int, memory: int, name: str, model: Gpu | None = None) -> None:
        self.name = name
        self.model = (
            model  # the GPU whose times are modelled; without one, times are those of this machine
        )
        self.ledger = Ledger()
        self._clock: Clock | None = None
        self.streams: dict[int, int] = {}  # device -> the stream that is used there now
        self.places = [Place(self, i, memory) for i in range(devices)]
        self.host_memory = HostMemory()
        self.sync_debug = 0  # 0 default, 1 warn, 2 error: torch.cuda.set_sync_debug_mode
        self.asserted = False  # a kernel has met a bad index, and the host does not know yet
        self.lost = False  # the host knows
        self.oom_observers: list[Callable[[int, int, int, int], object]] = []
        self.before_wait: Callable[[str], None] | None = None  # called with the kind of each wait
        self._current = _Current()

    @property
    def current(self) -> int:
        """The current device; as in CUDA, each thread has its own."""
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
        """Let the modelled time pass that it takes to ask a device whether it is done; nothing without a model."""
        clock = self.clock()
        if clock is not None:
            clock.spend(clock.gpu.host["stream"])

    @contextlib.contextmanager
    def modelled_as(self, model: Gpu) -> Iterator[Clock]:
        """Model the times of another GPU for the length of a `with` block, from here on; gives the clock."""
        before = self.model, self._clock
        clock = Clock(self.ledger.rows, model, first=len(self.ledger.rows))
        self.model, self._clock = model, clock
        try:
            yield clock
        finally:
            self.model, self._clock = before

    def times(self, first: int = 0, until: int | None = None, gpu: Gpu | None = None) -> Times:
        """The modelled times of a part of the ledger on the chosen GPU, or another; marks say which part."""
        model = gpu or self.model or gpu_named("H200")
        return times_of_rows(self.ledger.rows, model, first, until)

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


def index_of(gpu: VirtualGpu, device: Any = None) -> int:
    """The index a device argument of torch.cuda names, as torch.cuda._utils._get_device_index understands it."""
    if device is None:
        return gpu.current
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return gpu.current if device.index is None else int(device.index)
    if isinstance(device, torch.cuda.device):
        return int(device.idx)
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(
            f"Expected a torch.device with a specified index or an integer, but got:{device}"
        )
    return device


pinned: Final[
    dict[int, Any]
] = {}  # weak references to pinned storages; emptied when the device closes
registered: Final[dict[int, int]] = {}  # address -> bytes that cudaHostRegister has pinned


SPARSE: Final = frozenset(
    {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
)


def parts(value: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a sparse tensor is made of, its values last."""
    if value.layout is torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value.crow_indices(), value.col_indices(), value.values()]


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether its memory is pinned; of a sparse tensor, that of its values."""
    if not (pinned or registered):
        return False
    if tensor.layout in SPARSE:
        tensor = parts(tensor)[-1]
    kept = pinned.get(tensor.untyped_storage()._cdata)
    if kept is not None and kept() is not None:
        return True
    return bool(registered) and any(
        0 <= tensor.data_ptr() - at < nbytes for at, nbytes in registered.items()
    )


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy with the same strides, or the tensor itself if it is pinned already."""
    if is_pinned(tensor):
        return tensor
    if tensor.layout in SPARSE:
        copies = [pin(part) for part in parts(tensor)]
        make: Any = torch.sparse_compressed_tensor
        rest: dict[str, Any] = {"layout": tensor.layout}
        if tensor.layout is torch.sparse_coo:
            make = torch.sparse_coo_tensor
            rest = {"is_coalesced": tensor.is_coalesced()}
        made: torch.Tensor = make(*copies, tensor.shape, **rest, check_invariants=False)
        made._pinned_storage = copies  # type: ignore[attr-defined]
        return made
    copy = tensor.clone(memory_format=torch.preserve_format)
    if not tensor.is_nested and copy.stride() != tensor.stride():
        copy = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU
        ).copy_(tensor)
    return pinned_from_now(copy)


def pinned_from_now(copy: torch.Tensor) -> torch.Tensor:
    """The same tensor, which nobody else holds yet; its memory counts as pinned from now on."""
    storage: Any = copy.untyped_storage()
    key = storage._cdata
    gpu = now.gpu
    size = 0 if gpu is None else gpu.host_memory.take(storage.nbytes())

    def freed(_: object) -> None:
        pinned.pop(key, None)
        if gpu is not None:
            gpu.host_memory.give(size)

    # The storage object is kept by the tensor, so that the weak reference lives exactly as long as the memory.
    copy._pinned_storage = storage  # type: ignore[attr-defined]
    pinned[key] = weakref.ref(storage, freed)
    return copy
