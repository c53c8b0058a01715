"""Runs any operator on the virtual device.

It opens the arguments, computes on the CPU, wraps the results and records the operation. To open a
device tensor is to take the CPU tensor inside, the inner tensor; to wrap one is to put a device
tensor around it. `plans.py` has shorter ways for operators whose arguments and results have a known
form.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import (
    device_assert_error,
    forked_process_error,
)
from virtual_cuda.device.known_values import shape_with_values
from virtual_cuda.device.layout import ROUND, SMALL
from virtual_cuda.device.state import Block, VirtualDevice, open_device_of
from virtual_cuda.device.tensor import VIRTUAL, set_conjugate, update_shell, wrap, wrap_new
from virtual_cuda.errors import DeviceClosed, DevicePaused
from virtual_cuda.identity import identity
from virtual_cuda.ledger.rows import GRAD, INFERENCE, OperationRow
from virtual_cuda.ops import placement
from virtual_cuda.ops.cpu_errors import handle_cpu_error
from virtual_cuda.ops.registry import ALLOWED
from virtual_cuda.ops.rules import rules_of
from virtual_cuda.recorder import site
from virtual_cuda.trees import map_leaves

_is_grad_enabled: Final = torch.is_grad_enabled
_is_inference_mode: Final = torch.is_inference_mode_enabled
_new: Final = object.__new__
_NO_DISPATCH: Final = torch.Tensor.__torch_dispatch__


class _ThreadState(threading.local):
    """The state of a thread, besides what torch keeps for it."""

    autocast: Any = None
    """The dtype that operators are cast to; None outside of autocast."""
    strides: Any = None
    """Those of the copy that C++ makes next, which leaves them out for a device it hardly knows."""
    cast: bool = False
    """Whether parts of an operator run that autocast has dealt with: they are not cast again."""
    forked: bool = False
    """Whether a fork has cut this process off from the device."""


thread_state: Final = _ThreadState()


# ---- devices, memory and records -----------------------------------------------------------------


def closed_device_error(device: VirtualDevice) -> Exception:
    """The error for a tensor whose device is no longer open.

    It is the error of what has ended the device, a fork or a failed kernel; else DevicePaused or
    DeviceClosed.
    """
    if thread_state.forked:
        return forked_process_error()
    if device.gpu.lost:
        return device_assert_error()
    if device.gpu.is_paused:
        return DevicePaused(device.label)
    return DeviceClosed(device.label)


def require_open_device(tensor: Any) -> VirtualDevice:
    """The device that a device tensor is on.

    Raises DeviceClosed if it is no longer open, or the RuntimeError of what has ended it: a fork or
    a failed kernel.
    """
    device: VirtualDevice = tensor._virtual_block.device
    if device.closed:
        raise closed_device_error(device)
    return device


def allocate(device: VirtualDevice, nbytes: int) -> Block:
    """A new block of at least `nbytes` bytes on a device; the device's counts of memory are raised.

    The device's cache is emptied where there is no room otherwise. Raises torch's OutOfMemoryError,
    after the GPU's observers were called.
    """
    memory = device.memory
    size = (nbytes + ROUND - 1) & -ROUND
    small_live = memory.small_live + size
    # Most blocks are small and fit into what is reserved: these are counted here, for speed.
    if 0 < size <= SMALL and small_live <= memory.quick:
        memory.small_live = small_live
        memory.blocks += 1
        memory.blocks_ever += 1
        memory.live += size
        if memory.live > memory.peak:
            memory.peak = memory.live
        block = _new(Block)
        block.device = device
        block.memory = memory
        block.size = size
        block.piece = None
        return block
    return Block(device, nbytes)


def record_operation(
    name: str,
    device: VirtualDevice,
    nbytes: int,
    work: Any = None,
    where: Any = None,
) -> None:
    """Append one operation to the ledger of a device; all operations go through here.

    `name` is the operator's, "aten.add.Tensor". `nbytes` is what its results newly occupy. `work`
    is what the clock needs to know: a dtype, the shape of the result or None, and the shapes of the
    tensors given. `where`, if known: code object and instruction offset of the student's line; else
    the line is looked for.
    """
    ended = perf_counter()
    code, offset = where or site()
    mode = 0
    if _is_grad_enabled():
        mode = GRAD
    if _is_inference_mode():
        mode |= INFERENCE
    memory = device.memory
    live = memory.live - memory.library_bytes  # the ledger tells what a program's tensors take
    dtype = thread_state.autocast
    label = device.label
    device.note(OperationRow(ended, code, offset, name, label, mode, dtype, nbytes, live, work))


def work_of(results: Any, arguments: Any) -> tuple[Any, ...]:
    """The work of an operator, for the clock.

    That is the dtype of the first tensor it was given, else that of the result; the shape of the
    first result, None without one; and the shapes of all tensors it was given, one after another.
    """
    tensors = _tensors_among(arguments)
    shapes = [tensor.shape for tensor in tensors]
    dtype = None
    if tensors:
        dtype = tensors[0].dtype
    if isinstance(results, (list, tuple)):
        if results:
            results = results[0]
        else:
            results = None
    if not isinstance(results, torch.Tensor):
        return dtype, None, *shapes
    return dtype or results.dtype, results.shape, *shapes


def _tensors_among(values: Any) -> list[torch.Tensor]:
    """The tensors among these values, and in the lists and tuples among them."""
    tensors = []
    for value in values:
        items = value if type(value) in (list, tuple) else [value]
        tensors += [item for item in items if isinstance(item, torch.Tensor)]
    return tensors


def put_on_device(result: Any, device: VirtualDevice, name: str, *shapes: Any) -> Any:
    """A device tensor around a new strided result, with its own memory; the operation is recorded.

    `name` is the operator's. `shapes`: those of the tensors it was made from, where they are not
    the result's. Raises torch's OutOfMemoryError.
    """
    nbytes = result.nbytes
    shape = result.shape
    dtype = result.dtype
    block = allocate(device, nbytes)
    record_operation(name, device, nbytes, (dtype, shape, *shapes))
    shell = wrap_new(result, shape, dtype, block)
    if dtype.is_complex and result.is_conj():  # `vdot` of a conjugate
        set_conjugate(shell, True)
    return shell


def refuse_if_too_large(func: Any, inner: Any, kwargs: Any, device: VirtualDevice) -> None:
    """Raise torch's OutOfMemoryError for a result that does not fit on the device.

    `inner` are the arguments by position, with CPU tensors. This is done before the host computes
    it. The size is found by a run on torch's "meta" device, where tensors have no values; whatever
    that run raises is ignored. Observers of the GPU are told of the request that fails.
    """
    on_meta = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in inner]
    try:
        result = func(*on_meta, **kwargs)
    except Exception:
        return  # whatever is wrong, the kernel itself will say it
    memory = device.memory
    room = memory.allowed - memory.live
    if isinstance(result, torch.Tensor) and result.nbytes > room:
        allocate(device, result.nbytes)


# ---- any operator --------------------------------------------------------------------------------


class Unwrapped:
    """The arguments of one call, opened: the devices met, and the way back."""

    __slots__ = ("back", "blocks", "device", "devices", "plain")

    def __init__(self) -> None:
        """Begin with nothing opened."""
        self.device: VirtualDevice | None = None  # the first one met
        self.devices: list[VirtualDevice] = []
        self.plain: list[torch.Tensor] = []  # tensors that are not on the device
        self.back: dict[int, Any] = {}  # by the identity of an inner tensor: its device tensor
        self.blocks: dict[int, Block] = {}  # by the address of a storage

    def open(self, value: Any) -> Any:
        """The value with inner tensors in the place of device tensors, also in lists and tuples.

        What was met is noted in the attributes.
        """
        kind = type(value)
        if kind in VIRTUAL:
            return self._open_tensor(value)
        if kind is list or kind is tuple:
            return kind([self.open(item) for item in value])
        if isinstance(value, torch.Tensor):
            self.plain.append(value)
        return value

    def _open_tensor(self, tensor: Any) -> torch.Tensor:
        """The inner tensor of a device tensor; its device and block are noted."""
        device = tensor._virtual_block.device
        if self.device is None:
            self.device = device
        if device not in self.devices:
            self.devices.append(device)
        inner: torch.Tensor = tensor._virtual_inner
        # Two device tensors may share an inner one: `x` and `x.detach()`. The first is meant.
        self.back.setdefault(identity(inner), tensor)
        if inner.layout is torch.strided:
            self.blocks[inner.untyped_storage()._cdata] = tensor._virtual_block
        return inner

    def has_mixed_places(self) -> bool:
        """True if tensors are in several places, one of them a virtual device."""
        return len(self.devices) > 1 or (bool(self.plain) and self.device is not None)

    def unshare(self, tensor: Any) -> torch.Tensor:
        """A new inner tensor of an argument whose shape is to change in place.

        The argument holds it from now on, and no other device tensor does.
        """
        inner: torch.Tensor = tensor._virtual_inner.detach()
        tensor._virtual_inner = inner
        self.back[identity(inner)] = tensor
        return inner

    def close(self, value: Any, device: VirtualDevice | None) -> tuple[Any, int]:
        """The results on the device, and how many bytes are new there.

        An inner tensor that was an argument becomes that argument again. Without a device, results
        stay on the host. Raises torch's OutOfMemoryError.
        """
        if isinstance(value, torch.Tensor):
            return self._close_tensor(value, device)
        if not isinstance(value, (list, tuple)):
            return value, 0
        results = []
        nbytes = 0
        for item in value:
            result, new = self.close(item, device)
            results.append(result)
            nbytes += new
        # A binding gives torch.return_types.*, which become tuples.
        return results if type(value) is list else tuple(results), nbytes

    def _close_tensor(self, tensor: torch.Tensor, device: VirtualDevice | None) -> tuple[Any, int]:
        """The device tensor for an inner one, and how many bytes are new.

        An argument whose shape or strides have changed is updated. Raises torch's
        OutOfMemoryError for a result, and for an argument that has grown.
        """
        known = self.back.get(identity(tensor))
        if known is not None:
            if known.shape != tensor.shape or known.stride() != tensor.stride():
                update_shell(known)
            return known, 0
        if device is None or type(tensor) in VIRTUAL:
            return tensor, 0
        return wrap_result(tensor, device, self.blocks)


# Gives a device tensor around a tensor, and how many bytes are new.
Wrapper = Callable[[torch.Tensor, VirtualDevice], tuple[Any, int]]
# How results that are not strided are wrapped, by layout; `sparse.py` fills it.
WRAPPERS: Final[dict[torch.layout, Wrapper]] = {}


def wrap_result(
    tensor: torch.Tensor, device: VirtualDevice, blocks: dict[int, Block]
) -> tuple[Any, int]:
    """A device tensor around a result, and how many bytes are new.

    It shares the block of an argument or an earlier result with the same storage. `blocks` holds
    these by the address of the storage, and a new block is added to it. Raises torch's
    OutOfMemoryError.
    """
    if tensor.layout is not torch.strided:
        return WRAPPERS[tensor.layout](tensor, device)
    storage = tensor.untyped_storage()
    block = blocks.get(storage._cdata)
    if block is not None:
        return wrap(tensor, block), 0
    nbytes = storage.nbytes()
    block = allocate(device, nbytes)
    blocks[storage._cdata] = block
    return wrap(tensor, block), nbytes


def run_any(func: Any, args: Any, kwargs: Any) -> Any:
    """Run any operator, whatever devices its arguments are on, and record it; gives its results.

    Raises what CUDA raises, torch's OutOfMemoryError, RuntimeError at a wait that is refused or
    tells of a failed kernel, DeviceClosed or the error of what ended the device, and NeedsValues in
    a run without values. Gives NotImplemented where an argument has a dispatcher of its own, which
    torch asks next.
    """
    opened = Unwrapped()
    inner = [opened.open(value) for value in args]
    named = {key: opened.open(value) for key, value in kwargs.items()}
    if "pin_memory" in named:
        named["pin_memory"] = None
    device = opened.device
    target = move_to_host(named, device)
    if device is not None and device.closed:
        raise closed_device_error(device)
    # Arguments in several places: most are refused, and some decide the result.
    if opened.has_mixed_places():
        if _have_own_dispatcher(opened.plain):
            return NotImplemented
        decided = placement.judge_placement(func, args, kwargs)
        if decided is not ALLOWED:
            return decided
    ledger_device = target or device
    rules = rules_of(func)
    if rules.refuse is not None and ledger_device is not None:
        rules.refuse(args, kwargs)
    if torch.Tag.inplace_view in func.tags and type(args[0]) in VIRTUAL:
        inner[0] = opened.unshare(args[0])
    if ledger_device is not None and not ledger_device.gpu.values:
        inner = map_leaves(shape_with_values, inner)
        named = map_leaves(shape_with_values, named)
    # Compute, wrap and record.
    results = _compute_on_host(func, inner, named, ledger_device)
    wrapped, nbytes = opened.close(results, target)
    if ledger_device is not None:
        work = work_of(results, (*inner, *named.values()))
        record_operation(rules.name, ledger_device, nbytes, work)
        if rules.count_waits is not None:
            rules.count_waits(args, kwargs)
    # Python's own binding of `_foreach_mul_` hands its list back; the operator returns nothing.
    if func._schema.returns:
        return wrapped
    return None


def _compute_on_host(func: Any, inner: Any, named: Any, device: VirtualDevice | None) -> Any:
    """What an operator gives for inner tensors, in the form that it has on CUDA.

    `inner` are the arguments by position, `named` those by name, all with CPU tensors. After a bad
    index the open GPU is marked: the next wait of the host raises. Raises what CUDA raises, and
    NeedsValues in a run without values; without a device, what the CPU raises.
    """
    rules = rules_of(func)
    try:
        results = rules.call(*inner, **named)
    except Exception as error:
        if device is None:
            raise
        results = handle_cpu_error(func, inner, named, device, error)
    if rules.output is None:
        return results
    return rules.output(inner, named, results)


def move_to_host(named: dict[str, Any], device: VirtualDevice | None) -> VirtualDevice | None:
    """The device where results will be; None for the host.

    That is `device`, unless there is a `device=` among the arguments by name, `named`. There a
    virtual device is replaced by the CPU, where everything is computed, or by "meta". Raises CUDA's
    error for an index that is not there.
    """
    if named.get("device") is None:
        return device
    target = open_device_of(named["device"])
    if target is not None:
        named["device"] = target.inside
    return target


def _have_own_dispatcher(tensors: list[torch.Tensor]) -> bool:
    """True if the class of one of these tensors has a dispatcher of its own."""
    return any(type(tensor).__torch_dispatch__ is not _NO_DISPATCH for tensor in tensors)
