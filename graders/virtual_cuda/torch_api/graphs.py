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
from virtual_cuda.device.pinning import has_pinned_memory
from virtual_cuda.device.state import CPU, Block, VirtualDevice, now
from virtual_cuda.device.tensor import Plan, Tensor, operator_hooks
from virtual_cuda.ops.dispatch import allocate, record_operation, work_of
from virtual_cuda.ops.placement import inner_of
from virtual_cuda.ops.registry import call_of
from virtual_cuda.ops.whole_kernels import run_write_in_hooks
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import tensors_in
from virtual_cuda.torch_api.compatibility import name_of_capture_check
from virtual_cuda.torch_api.generators import Generator, generator_of
from virtual_cuda.torch_api.memory import pool_numbers
from virtual_cuda.torch_api.random_operators import is_random, repeatable_call
from virtual_cuda.torch_api.storage import as_bytes
from virtual_cuda.torch_api.streams import capture, note_in_ledger

# Bytes each of what a graph keeps on the device so that replays draw new random numbers.
_SEED_AND_OFFSET: Final = 8


class _SharedSeeds:
    """The seed and the offset on the device, shared by all graphs that are alive."""

    def __init__(self, device: VirtualDevice) -> None:
        """Allocate the seed and the offset. Raises torch's OutOfMemoryError."""
        self.blocks: list[Block] = [allocate(device, _SEED_AND_OFFSET) for _ in range(2)]


_shared_seeds: Final[list[weakref.ref[_SharedSeeds]]] = []  # one, or none


def _seeds_on(device: VirtualDevice) -> _SharedSeeds:
    """The seeds that graphs share; allocated on this device, and remembered, if no graph is alive.

    Raises torch's OutOfMemoryError.
    """
    seeds = None
    if _shared_seeds:
        seeds = _shared_seeds[0]()
    if seeds is None:
        seeds = _SharedSeeds(device)
    _shared_seeds[:] = [weakref.ref(seeds)]
    return seeds


def _storages_of(value: Any) -> set[int]:
    """The addresses of the storages of all strided tensors in a value."""
    strided = [tensor for tensor in tensors_in(value) if tensor.layout is torch.strided]
    return {tensor.untyped_storage()._cdata for tensor in strided}


def _device_tensors_in(value: Any) -> list[Any]:
    """All device tensors in a value, also in lists, tuples and dicts."""
    return [tensor for tensor in tensors_in(value) if isinstance(tensor, Tensor)]


def _may_be_written(func: Any, argument: Any) -> bool:
    """True if an operator changes an argument of its schema, or may change it.

    Of a list torch does not say from Python whether it is written to: of an operator that writes,
    it may be.
    """
    if func._schema.is_mutable and "List[" in str(argument.type):
        return True
    return argument.alias_info is not None and argument.alias_info.is_write


def _written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The device tensors that an operator changes, or may change."""
    written: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        if _may_be_written(func, argument):
            if position < len(args):
                value = args[position]
            else:
                value = kwargs.get(argument.name)
            written += _device_tensors_in(value)
    return written


_UNPINNED: Final = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
    "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def _copies_pageable(func: Any, args: Any, kwargs: Any) -> bool:
    """True for a copy from or to host memory that is not pinned."""
    name = func._schema.name
    if name not in ("aten::copy_", "aten::_to_copy"):
        return False
    to_host = name == "aten::_to_copy" and kwargs.get("device") == CPU
    if to_host and not kwargs.get("non_blocking"):
        return True
    for tensor in args[:2]:
        on_host = isinstance(tensor, torch.Tensor) and not isinstance(tensor, Tensor)
        if on_host and tensor.numel() and not has_pinned_memory(tensor):
            return True
    return False


def _repeat_step(
    device: VirtualDevice, name: str, call: Callable[[], Any], results: list[Any], work: Any
) -> None:
    """Run one step of a replay, into the memory that the capture gave its results.

    `call` computes, `results` are the inner tensors of the capture. Records the operator `name`,
    with its work for the clock. Raises what `call` raises.
    """
    values = call()
    record_operation(name, device, 0, work)
    for result, value in zip(results, tensors_in(values), strict=False):
        if result is not value:
            result.copy_(value)


class _Inside:
    """What a graph keeps of the inside of tensors; student code does not get hold of it."""

    def __init__(self) -> None:
        """Begin with nothing captured."""
        self.steps: list[Callable[[], object]] = []  # what a replay does
        # By storage: its bytes, and what they were before the capture.
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.results: list[Any] = []  # the graph's own pool: its tensors stay where they are
        self.device: VirtualDevice | None = None  # where it is captured
        self.seeds: _SharedSeeds | None = None


class CUDAGraph:
    """`torch.cuda.CUDAGraph`: while it captures, operators run and are written down.

    When the capture ends, what they have written is undone; `replay` runs them again.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        """Make a graph that has captured nothing.

        With `keep_graph`, it is the caller who instantiates it.
        """
        _attributes.__get__(self)["_inside"] = _Inside()
        self._keep_graph = keep_graph
        self._new_storages: set[int] = set()  # those that the capture itself made
        # Generators, and their states before the capture.
        self._generator_states: list[tuple[Generator, torch.Tensor]] = []
        self._is_captured = False
        self._is_broken = False
        self._is_instantiated = False
        self._pool: tuple[int, int] = (0, 0)
        self._stream: Any = None
        self.generators: list[Generator] = []  # registered ones, besides the default generators

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **kwargs: Any
    ) -> None:
        """Write down every operator from now on.

        `pool` is the id of a pool of memory, which `pool()` tells; other arguments have no effect.
        Waits are refused meanwhile. Generators are noted, to go back. What graphs keep on the
        device is allocated, if no other graph is alive. Raises RuntimeError on the default stream,
        or if the graph has captured before, and torch's OutOfMemoryError.
        """
        gpu = now.gpu
        assert gpu is not None
        if self._is_captured:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        self._stream = torch.cuda.current_stream()
        if self._stream == torch.cuda.default_stream():
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        inside = _inside_of(self)
        inside.device = gpu.devices[gpu.current]
        inside.seeds = _seeds_on(inside.device)
        self._pool = pool or (0, next(pool_numbers))
        # A capture draws nothing, so the generators go back when it ends.
        generators: Any = (*torch.cuda.default_generators, *self.generators)
        self._generator_states = [(each, each.get_state()) for each in generators]
        capture.graph = self
        operator_hooks.append(_record_in_capture)
        gpu.on_wait.append(_refuse_wait)

    def record(self, func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Run one operator of a capture, and write it down; returns its result.

        `plan` runs it. Remembers the bytes that it changes, to restore them, and keeps its results
        alive. Raises RuntimeError for a copy from or to memory that is not pinned, and what the
        operator raises.
        """
        if _copies_pageable(func, args, kwargs):
            raise RuntimeError(_UNPINNED)
        written = _written_by(func, args, kwargs)
        for tensor in written:
            self._remember_bytes(tensor._virtual_inner.untyped_storage())
        inner_args = [inner_of(value) for value in args]
        inner_kwargs = {key: _for_host(value) for key, value in kwargs.items()}
        result = plan(args, kwargs)
        # It has run: write down how to run it again.
        outputs = _device_tensors_in(result)
        inner_outputs = [tensor._virtual_inner for tensor in outputs]
        if not func.is_view and (outputs or written):
            self._add_operator(func, inner_args, inner_kwargs, inner_outputs)
        storages_before = _storages_of([inner_args, inner_kwargs])
        self._new_storages |= _storages_of(inner_outputs) - storages_before
        _inside_of(self).results += outputs
        return result

    def _add_operator(
        self, func: Any, args: list[Any], kwargs: dict[str, Any], results: list[Any]
    ) -> None:
        """Have replays repeat an operator on inner tensors, into the memory of `results`.

        Raises RuntimeError for a random operator whose generator the graph does not know.
        """
        inside = _inside_of(self)
        assert inside.device is not None
        if is_random(func):
            call = repeatable_call(func, args, kwargs, inside.device)
        else:
            call = functools.partial(call_of(func), *args, **kwargs)
        work = work_of(results, (*args, *kwargs.values()))
        step = functools.partial(_repeat_step, inside.device, str(func), call, results, work)
        inside.steps.append(step)

    def _remember_bytes(self, storage: Any) -> None:
        """Keep a storage's bytes of before the capture, unless the capture has made it."""
        before = _inside_of(self).before
        address = storage._cdata
        if address not in before and address not in self._new_storages:
            content = as_bytes(storage)
            before[address] = (content, content.clone())

    def add(self, step: Callable[[], object]) -> None:
        """Have replays repeat something that is no operator: an event, a generator's state."""
        _inside_of(self).steps.append(step)

    def register_generator_state(self, generator: Any) -> None:
        """Let operators of the capture draw from a generator that is not a default one.

        Raises KeyError for a generator of the host.
        """
        self.generators.append(generator_of(generator))

    def capture_end(self) -> None:
        """End the capture, and restore what it has changed: memory and generators.

        Warns of a graph without operators. Raises RuntimeError if the capture was not begun, ended
        on another stream, or was broken by a refused wait; the graph is reset in the last two
        cases.
        """
        if capture.graph is not self:
            raise RuntimeError("capture_end() called before capture_begin().")
        self.leave()
        run_write_in_hooks(self._undo_capture)
        # What is wrong with the capture is said now.
        if torch.cuda.current_stream() != self._stream:
            self.reset()
            raise RuntimeError("Capture must end on the same stream it began on.")
        if self._is_broken:
            self.reset()
            raise cuda_error(
                "operation failed due to a previous error during capture",
                "StreamCaptureInvalidated",
            )
        another_error = sys.exc_info()[0] is not None  # which says what is wrong
        if not _inside_of(self).steps and not another_error:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=2,
            )
        self._is_captured = True
        self._is_instantiated = not self._keep_graph

    def _undo_capture(self) -> None:
        """Restore what the capture has changed: memory and generators.

        Nothing was computed; what was written down will be.
        """
        inside = _inside_of(self)
        for content, before in inside.before.values():
            content.copy_(before)
        inside.before.clear()
        for tensor in inside.results:
            storage = tensor._virtual_inner.untyped_storage()
            if storage._cdata in self._new_storages:
                as_bytes(storage).zero_()
        for generator, state in self._generator_states:
            generator.set_state(state)
        self._generator_states.clear()

    def leave(self) -> None:
        """Run operators from now on without writing them down; waits are allowed again."""
        device = _inside_of(self).device
        assert device is not None
        operator_hooks.remove(_record_in_capture)
        device.gpu.on_wait.remove(_refuse_wait)
        capture.graph = None

    def replay(self) -> None:
        """Run again what was captured, into the same memory, and record it.

        Raises RuntimeError if nothing was captured, CUDA's error after an assertion on the device
        has failed, and what an operator raises.
        """
        if not self._is_captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._is_instantiated = True
        note_in_ledger("replay", argument=1)
        run_write_in_hooks(self._run_steps)
        note_in_ledger("replay", argument=0)

    def _run_steps(self) -> None:
        for step in _inside_of(self).steps:
            step()

    def reset(self) -> None:
        """Forget the capture, so that another one can be made."""
        inside = _inside_of(self)
        inside.steps.clear()
        inside.results.clear()
        inside.seeds = None
        self._is_captured = False
        self._is_broken = False
        self._is_instantiated = False

    def pool(self) -> tuple[int, int]:
        """The id of the graph's pool of memory; raises RuntimeError if nothing was captured."""
        if not self._is_captured:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def instantiate(self) -> None:
        """Make the graph ready to be replayed; there is nothing to do.

        Raises RuntimeError if nothing was captured, or where it is not the caller's to do.
        """
        if not self._is_captured:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if self._is_instantiated and not self._keep_graph:
            raise RuntimeError(
                "instantiate() is intended to be called by the user only when keep_graph=true"
            )
        self._is_instantiated = True

    def raw_cuda_graph(self) -> int:
        """A number that stands for the driver's graph.

        Raises RuntimeError if nothing was captured, or the graph was made without `keep_graph`.
        """
        if not self._keep_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized "
                "with keep_graph=true"
            )
        if not self._is_captured:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance until capture_end() has been called"
            )
        return id(self)

    def raw_cuda_graph_exec(self) -> int:
        """A number that stands for the driver's executable graph.

        Raises RuntimeError if the graph was not instantiated.
        """
        if not self._is_instantiated:
            raise RuntimeError(
                "You cannot access the raw cudaGraphExec_t instance until instantiate() has been "
                "called"
            )
        return id(self) + 8

    def enable_debug_mode(self) -> None:
        """There is no debug information to keep."""

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to dump."""


CUDAGraph.__module__ = "torch.cuda.graphs"
_attributes: Final = vars(CUDAGraph)["__dict__"]  # whatever a subclass makes of its attributes


def _inside_of(graph: CUDAGraph) -> _Inside:
    """What a graph keeps of the inside of tensors."""
    inside: _Inside = _attributes.__get__(graph)["_inside"]
    return inside


def _for_host(value: Any) -> Any:
    """An argument of an operator for its kernel on the host."""
    if isinstance(value, torch.device):
        return CPU
    return inner_of(value)


def _record_in_capture(func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
    """Run an operator, and have the graph that is being captured write it down; gives its result.

    Raises RuntimeError for a copy from or to memory that is not pinned, and what the operator
    raises.
    """
    graph = capture.graph
    if graph is None:
        return plan(args, kwargs)
    return graph.record(func, plan, args, kwargs)


def _refuse_wait(kind: str) -> None:
    """Raise CUDA's error for a wait during a capture, which is broken then.

    The host cannot wait for work that is being written down.
    """
    if capture.graph is not None:
        capture.graph._is_broken = True
    raise cuda_error("operation not permitted when stream is capturing", "StreamCaptureUnsupported")


def _abandon_capture() -> None:
    """End a capture that is under way when the device closes; what it has changed stays changed."""
    if capture.graph is not None:
        capture.graph.leave()


def _check_capture_where_it_matters(original: Any, optimizer: Any) -> None:
    """Run the check that an optimizer makes before each step, `original`, if it matters.

    torch would make a stream for it. Raises what the check raises.
    """
    is_capturable = any(group.get("capturable") for group in optimizer.param_groups)
    if capture.graph is not None or is_capturable:
        original(optimizer)


@torch_patches()
def _graph_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of CUDA graphs and of the question whether one is being captured.

    `opening` is told to end a capture when a device closes.
    """
    opening.on_close.append(_abandon_capture)
    yield around(torch.optim.Optimizer, name_of_capture_check(), _check_capture_where_it_matters)
    for module in (torch.cuda, torch.cuda.graphs):
        yield module, "CUDAGraph", CUDAGraph
        yield module, "is_current_stream_capturing", lambda: capture.graph is not None
        yield module, "graph_pool_handle", lambda: (0, next(pool_numbers))
    yield torch.cuda.graphs.graph, "default_capture_stream", None
