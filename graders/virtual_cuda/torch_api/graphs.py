"""CUDA graphs of the virtual device."""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.cuda.graphs
import torch.optim

from virtual_cuda.device.cuda_errors import cuda_error
from virtual_cuda.device.pinning import is_pinned
from virtual_cuda.device.state import CPU, Block, VirtualDevice, now
from virtual_cuda.device.tensor import Plan, Tensor, operator_hooks
from virtual_cuda.ops.dispatch import allocate, record_operation
from virtual_cuda.ops.placement import inner_of
from virtual_cuda.ops.registry import call_of
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import tensors_in
from virtual_cuda.torch_api.generators import Generator, generator_of, is_random, replayed
from virtual_cuda.torch_api.memory import pool_numbers
from virtual_cuda.torch_api.storage import as_bytes
from virtual_cuda.torch_api.streams import capture


def _own(graph: Any) -> dict[str, Any]:
    """The attributes of a graph."""
    found: dict[str, Any] = _attributes.__get__(graph)
    return found


_SEED_AND_OFFSET: Final = (
    8  # bytes each: what a graph keeps on the device so that replays draw new random numbers
)


class _Seeds:
    """Shared by all graphs that are alive."""

    def __init__(self, device: VirtualDevice) -> None:
        self.blocks: list[Block] = [allocate(device, _SEED_AND_OFFSET) for _ in range(2)]


_shared: Final[list[weakref.ref[_Seeds]]] = []


def _storages(value: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors_in(value) if t.layout is torch.strided}


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The device tensors that an operator changes, or may change."""
    found: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        # Of a list torch does not say from Python whether it is written to: of an operator that
        # writes, it may be.
        listed = func._schema.is_mutable and "List[" in str(argument.type)
        if not listed and (argument.alias_info is None or not argument.alias_info.is_write):
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        found += [t for t in tensors_in(value) if isinstance(t, Tensor)]
    return found


_COPIES: Final = ("aten::copy_", "aten::_to_copy")
_UNPINNED: Final = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use "
    "tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def _copies_pageable(func: Any, args: Any, kwargs: Any) -> bool:
    """True for a copy from or to host memory that is not pinned."""
    if func._schema.name not in _COPIES:
        return False
    hosts = [
        t
        for t in args[:2]
        if isinstance(t, torch.Tensor) and not isinstance(t, Tensor) and t.numel()
    ]
    to_host = (
        func._schema.name == _COPIES[1]
        and kwargs.get("device") == CPU
        and not kwargs.get("non_blocking")
    )
    return to_host or any(not is_pinned(tensor) for tensor in hosts)


def _run(device: VirtualDevice, name: str, call: Callable[[], Any], results: list[Any]) -> None:
    """Run one step of a replay, into the memory that the capture gave its results."""
    again = call()
    record_operation(name, device, 0)
    for result, value in zip(results, tensors_in(again), strict=False):
        if result is not value:
            result.copy_(value)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`: while it captures, operators run and are written down.

    When the capture ends, what they have written is undone; `replay` runs them again.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        """Make a graph that has captured nothing.

        With `keep_graph`, it is the caller who instantiates it.
        """
        self._keep = keep_graph
        self._made: set[int] = set()  # storages that the capture itself made
        # Past whatever a subclass makes of its attributes, as this is the inside of tensors.
        own = _own(self)
        own["_steps"] = list[Callable[[], object]]()
        # By storage: its bytes, and what they were.
        own["_before"] = dict[int, tuple[torch.Tensor, torch.Tensor]]()
        own["_held"] = list[Any]()
        own["_place"] = own["_seeds"] = None  # where it is captured
        # Generators, and their states before the capture.
        self._undo: list[tuple[Generator, torch.Tensor]] = []
        self._note: Any = None
        self._captured = self._broken = self._instantiated = False
        self._pool: tuple[int, int] = (0, 0)
        self._stream: Any = None
        self.generators: list[Generator] = []  # registered ones, besides the default generators

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **kwargs: Any
    ) -> None:
        """Write down every operator from now on.

        Waits are refused meanwhile. Raises RuntimeError on the default stream, or if the graph has
        captured before.
        """
        gpu = now.gpu
        assert gpu is not None
        if self._captured:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        self._stream = torch.cuda.current_stream()
        if self._stream == torch.cuda.default_stream():
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        _own(self)["_place"] = gpu.devices[gpu.current]
        _own(self)["_seeds"] = (_shared and _shared[0]()) or _Seeds(_own(self)["_place"])
        _shared[:] = [weakref.ref(_own(self)["_seeds"])]
        self._pool = pool or (0, next(pool_numbers))
        # A capture draws nothing, so the generators go back when it ends.
        known: Any = (*torch.cuda.default_generators, *self.generators)
        self._undo = [(generator, generator.get_state()) for generator in known]
        capture.graph = self
        operator_hooks.append(_record_in_capture)
        gpu.on_wait.append(_refuse)

    def record(self, func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Run one operator of a capture, and write it down; returns its result.

        Remembers the bytes that it changes, to restore them. Raises RuntimeError for a copy from or
        to memory that is not pinned.
        """
        if _copies_pageable(func, args, kwargs):
            raise RuntimeError(_UNPINNED)
        given = [inner_of(value) for value in args]
        named = {
            key: CPU if isinstance(value, torch.device) else inner_of(value)
            for key, value in kwargs.items()
        }
        for tensor in _written(func, args, kwargs):
            storage = tensor._inner.untyped_storage()
            if storage._cdata not in _own(self)["_before"] and storage._cdata not in self._made:
                raw = as_bytes(storage)
                _own(self)["_before"][storage._cdata] = (raw, raw.clone())
        out = plan(args, kwargs)
        # It has run: write down how to run it again.
        results = [t for t in tensors_in(out) if isinstance(t, Tensor)]
        if not func.is_view and results + _written(func, args, kwargs):
            again: Callable[[], Any] = functools.partial(call_of(func), *given, **named)
            again = replayed(func, given, named, _own(self)["_place"]) if is_random(func) else again
            device = _own(self)["_place"]
            inner = [t._inner for t in results]
            _own(self)["_steps"].append(functools.partial(_run, device, str(func), again, inner))
        self._made |= _storages([t._inner for t in results]) - _storages([given, named])
        _own(self)["_held"] += results  # the graph's own pool: its tensors stay where they are
        return out

    def add(self, step: Callable[[], object]) -> None:
        """Have replays repeat something that is no operator: an event, a generator's state."""
        _own(self)["_steps"].append(step)

    def register_generator_state(self, generator: Any) -> None:
        self.generators.append(generator_of(generator))

    def capture_end(self) -> None:
        """End the capture, and restore what it has changed.

        Raises RuntimeError if the capture was not begun, ended on another stream, or was broken by
        a refused wait.
        """
        if capture.graph is not self:
            raise RuntimeError("capture_end() called before capture_begin().")
        self.leave()
        for raw, kept in _own(self)["_before"].values():
            raw.copy_(kept)
        _own(self)["_before"].clear()
        for tensor in _own(self)["_held"]:  # nothing was computed; what was written down will be
            if tensor._inner.untyped_storage()._cdata in self._made:
                as_bytes(tensor._inner.untyped_storage()).zero_()
        for generator, state in self._undo:  # a capture draws nothing
            generator.set_state(state)
        self._undo.clear()
        # What is wrong with the capture is said now.
        if torch.cuda.current_stream() != self._stream:
            self.reset()
            raise RuntimeError("Capture must end on the same stream it began on.")
        if self._broken:
            self.reset()
            raise cuda_error(
                "operation failed due to a previous error during capture",
                "StreamCaptureInvalidated",
            )
        if not _own(self)["_steps"] and sys.exc_info()[0] is None:  # else that exception says why
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                stacklevel=2,
            )
        self._captured = True
        self._instantiated = not self._keep

    def leave(self) -> None:
        """Run operators from now on without writing them down."""
        operator_hooks.remove(_record_in_capture)
        _own(self)["_place"].gpu.on_wait.remove(_refuse)
        capture.graph = None

    def replay(self) -> None:
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._instantiated = True
        for step in _own(self)["_steps"]:
            step()

    def reset(self) -> None:
        _own(self)["_steps"].clear()
        _own(self)["_held"].clear()
        self._captured = self._broken = self._instantiated = False
        _own(self)["_seeds"] = None

    def pool(self) -> tuple[int, int]:
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def instantiate(self) -> None:
        if not self._captured:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if self._instantiated and not self._keep:
            raise RuntimeError(
                "instantiate() is intended to be called by the user only when keep_graph=true"
            )
        self._instantiated = True

    def raw_cuda_graph(self) -> int:
        """A number that stands for the driver's graph; raises RuntimeError if there is none."""
        if not self._keep:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )
        if not self._captured:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance until capture_end() has been called"
            )
        return id(self)

    def raw_cuda_graph_exec(self) -> int:
        if not self._instantiated:
            raise RuntimeError(
                "You cannot access the raw cudaGraphExec_t instance until instantiate() has been called"
            )
        return id(self) + 8

    def enable_debug_mode(self) -> None:
        """There is no debug information to keep."""

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to dump."""


_attributes: Final = vars(CUDAGraph)["__dict__"]


CUDAGraph.__module__ = "torch.cuda.graphs"


def _record_in_capture(func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
    """Run an operator, and have the graph that is being captured write it down."""
    graph = capture.graph
    if graph is None:
        return plan(args, kwargs)
    return graph.record(func, plan, args, kwargs or {})


def _refuse(kind: str) -> None:
    """Raise CUDA's error for a wait during a capture, which is broken then.

    The host cannot wait for work that is being written down.
    """
    if capture.graph is not None:
        capture.graph._broken = True
    raise cuda_error("operation not permitted when stream is capturing", "StreamCaptureUnsupported")


def _abandon() -> None:
    if capture.graph is not None:
        capture.graph.leave()


def _check_capture(original: Any, self: Any) -> None:
    """Run the check that an optimizer makes before each step, if it matters.

    torch would make a stream for it.
    """
    if capture.graph is not None or any(group.get("capturable") for group in self.param_groups):
        original(self)


# The name has changed; in some versions the other one is there, too, and warns.
_CHECKS: Final = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of CUDA graphs and of the question whether one is being captured."""
    opening.on_close.append(_abandon)
    check = next((name for name in _CHECKS if name in vars(torch.optim.Optimizer)), None)
    if check is not None:
        yield around(torch.optim.Optimizer, check, _check_capture)
    for home in (torch.cuda, torch.cuda.graphs):
        yield home, "CUDAGraph", CUDAGraph
        yield home, "is_current_stream_capturing", lambda: capture.graph is not None
        yield home, "graph_pool_handle", lambda: (0, next(pool_numbers))
    yield torch.cuda.graphs.graph, "default_capture_stream", None
