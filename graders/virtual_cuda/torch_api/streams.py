"""Streams, events and CUDA graphs of the virtual device."""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.cuda.graphs
import torch.nn.parallel._functions

from virtual_cuda.device.messages import accelerator_error
from virtual_cuda.device.state import CPU, CUDA, Block, Place, VirtualGpu, index_of, now
from virtual_cuda.device.tensor import Tensor
from virtual_cuda.ledger.records import STREAM
from virtual_cuda.ops import placement
from virtual_cuda.ops.dispatch import allocate, write
from virtual_cuda.ops.placement import inner_of
from virtual_cuda.ops.registry import call_of
from virtual_cuda.patching import Opening, Patch, torch_patches
from virtual_cuda.recorder import tensors_in


class AnyEvent:
    """`torch.Event`: remembers when it was recorded."""

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.interprocess = interprocess
        self._at: float | None = None
        self._row = -1  # where the ledger says that it was recorded

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()
        self._row = _note("record", stream)

    def wait(self, stream: Any = None) -> None:
        _note("wait", stream, self._row)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _note("synchronize_event", None, self._row)
        placement.note("event.synchronize", explicit=True)

    def elapsed_time(self, end_event: Any) -> float:
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        clock = None if now.gpu is None else now.gpu.clock()
        if clock is not None and self._row in clock.events and end_event._row in clock.events:
            return (clock.events[end_event._row] - clock.events[self._row]) * 1e3
        return float(end_event._at - self._at) * 1e3

    @property
    def device(self) -> torch.device | None:
        return None if self._at is None or now.gpu is None else CUDA[now.gpu.current]

    @property
    def cuda_event(self) -> int:
        return id(self) if self._at is not None else 0

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._at is None else hex(self.cuda_event)}>"


class Event(AnyEvent):
    """`torch.cuda.Event`, which needs no device to be named."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class Stream:
    """`torch.cuda.Stream`: in order by nature."""

    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **kwargs: Any) -> None:
        assert now.gpu is not None
        self.device_index = index_of(now.gpu, device)
        self.device = CUDA[self.device_index]
        self.priority = priority
        self.stream_id = id(self) if stream_id is None else stream_id

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority of an H200."""
        return 0, -5

    def synchronize(self) -> None:
        _note("synchronize", self)
        placement.note("stream.synchronize", explicit=True, warned=True)

    def wait_stream(self, stream: Any) -> None:
        _note("wait_stream", self, stream.stream_id)

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return capturing()

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.stream_id == other.stream_id and self.device == other.device

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={hex(self.cuda_stream)}>"

    def __enter__(self) -> Stream:
        _stacks[self.device_index].append(self)
        _note("use", self)
        return self

    def __exit__(self, *error: object) -> None:
        _stacks[self.device_index].pop()
        _note("use", None, device=self.device_index)


for _cls in (Event, Stream):
    _cls.__module__ = "torch.cuda.streams"

_stacks: Final[defaultdict[int, list[Stream]]] = defaultdict(list)  # the streams in use, by device


def _note(what: str, stream: Any = None, other: int = 0, device: int | None = None) -> int:
    """Write about a stream, or else the current one, into the ledger of the open device; gives the row's number."""
    gpu = now.gpu
    if gpu is None:
        return -1
    index = stream.device_index if stream is not None else gpu.current if device is None else device
    stack = _stacks[index]
    used = stream.stream_id if stream is not None else stack[-1].stream_id if stack else 0
    rows = gpu.ledger.rows
    rows.append((STREAM, time.perf_counter(), None, None, gpu.places[index].label, used, what, other))
    return len(rows) - 1


class Streams:
    """The functions of `torch.cuda` that hand out streams."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu
        _stacks.clear()

    def default(self, device: Any = None) -> Stream:
        return Stream(index_of(self.gpu, device), stream_id=0)

    def current(self, device: Any = None) -> Stream:
        stack = _stacks[index_of(self.gpu, device)]
        return stack[-1] if stack else self.default(device)

    def set_stream(self, stream: Any) -> None:
        if stream is not None:
            _stacks[stream.device_index][-1:] = [stream]
            _note("use", stream)


class _Using:
    """`with torch.cuda.stream(s)`."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        assert self.stream.device is not None
        self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        self.stream.__exit__(*error)


def _record_stream(self: Any, stream: Any) -> None:
    if not self.is_cuda:
        raise RuntimeError("unsupported operation: record_stream on a CPU tensor")


_dispatch: Final = Tensor.__torch_dispatch__
_pools: Final = itertools.count(1)
_SEED_AND_OFFSET: Final = 8  # bytes each: what a graph keeps on the device so that replays draw new random numbers


class _Seeds:
    """Shared by all graphs that are alive."""

    def __init__(self, place: Place) -> None:
        self.blocks: list[Block] = [allocate(place, _SEED_AND_OFFSET) for _ in range(2)]


class _State:
    """The capture that is under way in this process: CUDA allows one."""

    graph: CUDAGraph | None = None
    seeds: weakref.ref[_Seeds] | None = None


_state: Final = _State()


def _storages(value: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors_in(value) if t.layout is torch.strided}


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The device tensors an operator changes."""
    found: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        # Of a list torch does not say from Python whether it is written to: of an operator that writes, it may be.
        listed = func._schema.is_mutable and "List[" in str(argument.type)
        if not listed and (argument.alias_info is None or not argument.alias_info.is_write):
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        found += [t for t in tensors_in(value) if isinstance(t, Tensor)]
    return found


class CUDAGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._steps: list[tuple[Any, list[Any], dict[str, Any], Any]] = []
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # storage -> its bytes, and what they were
        self._made: set[int] = set()  # storages that the capture itself made
        self._held: list[Any] = []
        self._note: Any = None
        self._captured = self._broken = False
        self._pool: tuple[int, int] = (0, 0)
        self._seeds: _Seeds | None = None
        self._place: Place | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **kwargs: Any) -> None:
        gpu = now.gpu
        assert gpu is not None
        if torch.cuda.current_stream() == torch.cuda.default_stream():
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        self._place = gpu.places[gpu.current]
        self._seeds = (_state.seeds and _state.seeds()) or _Seeds(self._place)
        _state.seeds = weakref.ref(self._seeds)
        self._pool = pool or (0, next(_pools))
        _state.graph = self
        Tensor.__torch_dispatch__ = staticmethod(_captured)  # type: ignore[method-assign]
        self._note, placement.note = placement.note, _refuse

    def record(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        given = [inner_of(value) for value in args]
        named = {key: CPU if isinstance(value, torch.device) else inner_of(value) for key, value in kwargs.items()}
        for tensor in _written(func, args, kwargs):
            storage = tensor._inner.untyped_storage()
            if storage._cdata not in self._before and storage._cdata not in self._made:
                raw = torch.empty(0, dtype=torch.uint8).set_(storage)
                self._before[storage._cdata] = (raw, raw.clone())
        out = _dispatch(func, types, args, kwargs)
        results = [t for t in tensors_in(out) if isinstance(t, Tensor)]
        if not func.is_view and results + _written(func, args, kwargs):
            self._steps.append((func, given, named, [t._inner for t in results]))
        self._made |= _storages([t._inner for t in results]) - _storages([given, named])
        self._held += results  # the graph's own pool: its tensors stay where they are
        return out

    def capture_end(self) -> None:
        Tensor.__torch_dispatch__ = staticmethod(_dispatch)  # type: ignore[method-assign]
        placement.note = self._note
        _state.graph = None
        for raw, kept in self._before.values():
            raw.copy_(kept)
        self._before.clear()
        if self._broken:
            self.reset()
            raise accelerator_error("CUDA error: operation failed due to a previous error during capture\n")
        self._captured = True

    def replay(self) -> None:
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        assert self._place is not None
        for func, given, named, results in self._steps:
            again = call_of(func)(*given, **named)
            write(str(func), self._place, 0)
            for result, value in zip(results, tensors_in(again), strict=False):
                if result is not value:
                    result.copy_(value)

    def reset(self) -> None:
        self._steps.clear()
        self._held.clear()
        self._captured = self._broken = False
        self._seeds = None

    def pool(self) -> tuple[int, int]:
        return self._pool

    def instantiate(self) -> None:
        """Done at the end of the capture."""

    def enable_debug_mode(self) -> None:
        """There is no debug information to keep."""

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to dump."""


CUDAGraph.__module__ = "torch.cuda.graphs"


def _captured(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    graph = _state.graph
    if graph is None:
        return _dispatch(func, types, args, kwargs)
    return graph.record(func, types, args, kwargs or {})


def _refuse(*args: Any, **kwargs: Any) -> None:
    """The host cannot wait for work that is being written down."""
    if _state.graph is not None:
        _state.graph._broken = True
    raise accelerator_error("CUDA error: operation not permitted when stream is capturing\n")


# Records that the host waited for the device; takes the arguments of `ops.placement.note`.
record_wait: Final = placement.note


def wait_patch(function: Any) -> Patch:
    """The patch that hands every wait to `function`, which takes the arguments of `record_wait`."""
    return placement, "note", function


def capturing() -> bool:
    return _state.graph is not None


def tf32_allowed() -> bool:
    """Whether products of float32 may use tensor cores. The old name may raise once the new one was used."""
    ask = getattr(torch._C, "_get_fp32_precision_getter", None)
    return bool(ask("cuda", "matmul") == "tf32" if ask else torch._C._get_cublas_allow_tf32())


def _noting_tf32(setter: Any) -> Any:
    """The same setter; the ledger says from where on products may use TF32."""

    def noted(*args: Any) -> Any:
        before, result = tf32_allowed(), setter(*args)
        if tf32_allowed() is not before:
            _note("tf32", other=int(not before))
        return result

    return noted


_PRECISION: Final = ("_set_cublas_allow_tf32", "_set_float32_matmul_precision", "_set_fp32_precision_setter")


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    if tf32_allowed():
        opening.gpu.ledger.rows.append((STREAM, time.perf_counter(), None, None, "cuda:0", 0, "tf32", 1))
    for name in filter(partial(hasattr, torch._C), _PRECISION):
        yield torch._C, name, _noting_tf32(getattr(torch._C, name))
    streams = Streams(opening.gpu)
    for home in (torch.cuda, torch.cuda.streams, torch):
        yield home, "Event", AnyEvent if home is torch else Event
        yield home, "Stream", Stream
    for home in (torch.cuda, torch.accelerator):
        yield home, "current_stream", streams.current
        yield home, "set_stream", streams.set_stream
    for home in (torch.cuda, torch.cuda.graphs):
        yield home, "CUDAGraph", CUDAGraph
        yield home, "is_current_stream_capturing", capturing
        yield home, "graph_pool_handle", lambda: (0, next(_pools))
    yield torch.cuda, "default_stream", streams.default
    yield torch.cuda, "stream", lambda stream: contextlib.nullcontext() if stream is None else _Using(stream)
    yield torch.cuda.graphs.graph, "default_capture_stream", None
    yield torch.nn.parallel._functions, "_streams", None
    yield torch.Tensor, "record_stream", _record_stream
    if not hasattr(torch._C, "_host_emptyCache"):
        yield torch._C, "_host_emptyCache", lambda: None
