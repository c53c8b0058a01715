"""Runs operators on the virtual device: plan, CPU kernel, new tensors, records."""

from __future__ import annotations

import threading
from collections.abc import Callable
from sys import _getframe
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device.memory import SMALL, OutOfMemory
from virtual_cuda.device.messages import device_assert, forked, out_of_memory
from virtual_cuda.device.state import CPU, Block, Place, place_of
from virtual_cuda.device.tensor import AUTOCAST, VIRTUAL, Tensor, make_shell, refresh, wrap
from virtual_cuda.errors import DeviceClosed
from virtual_cuda.ledger.records import GRAD, INFERENCE, OPERATION
from virtual_cuda.ops import placement
from virtual_cuda.ops.operators import rescue, rules_of
from virtual_cuda.ops.registry import ALLOWED
from virtual_cuda.recorder import student_file

_grad_on: Final = torch.is_grad_enabled
_inference_on: Final = torch.is_inference_mode_enabled
_TENSOR: Final = torch.Tensor
_STRIDED: Final = torch.strided
_new: Final = object.__new__
_NO_DISPATCH: Final = torch.Tensor.__torch_dispatch__


class _ThreadState(threading.local):
    """The autocast dtype of a thread, and whether a fork has cut this process off from the device."""

    autocast: Any = None
    forked: bool = False


thread_state: Final = _ThreadState()


def shut(place: Place) -> Exception:
    if thread_state.forked:
        return forked()
    return device_assert() if place.gpu.lost else DeviceClosed(place.label)


def open_place(tensor: Any) -> Place:
    """The device of a tensor; raises DeviceClosed, or what has ended the device."""
    place: Place = tensor._block.place
    if place.shut:
        raise shut(place)
    return place


def allocate(place: Place, nbytes: int) -> Block:
    try:
        return Block(place, nbytes)
    except OutOfMemory as error:
        raise out_of_memory(error, place.index) from None


def write(name: str, place: Place, nbytes: int) -> None:
    """One operation into the ledger."""
    frame: Any = _getframe(2)
    while True:
        code = frame.f_code
        if student_file[code.co_filename]:
            offset = frame.f_lasti
            break
        frame = frame.f_back
        if frame is None:
            code = offset = None
            break
    mode = GRAD if _grad_on() else 0
    if _inference_on():
        mode |= INFERENCE
    place.note(
        (
            OPERATION,
            perf_counter(),
            code,
            offset,
            name,
            place.label,
            mode,
            thread_state.autocast,
            nbytes,
            place.memory.live,
        )
    )


# ---- the general case ------------------------------------------------------------------------------------------------


class Unwrapped:
    """What a call's arguments were: the inner tensors, the devices met, and the way back."""

    __slots__ = ("back", "blocks", "place", "places", "plain")

    def __init__(self) -> None:
        self.place: Place | None = None
        self.places: list[Place] = []
        self.plain: list[torch.Tensor] = []
        self.back: dict[int, Any] = {}
        self.blocks: dict[int, Block] = {}

    def open(self, value: Any) -> Any:
        kind = type(value)
        if kind in VIRTUAL:
            place = value._block.place
            if self.place is None:
                self.place = place
            if place not in self.places:
                self.places.append(place)
            inner = value._inner
            self.back.setdefault(id(inner), value)  # two shells may share an inner tensor: `x` and `x.detach()`
            if inner.layout is torch.strided:
                self.blocks[inner.untyped_storage()._cdata] = value._block
            return inner
        if kind is list or kind is tuple:
            return kind([self.open(item) for item in value])
        if isinstance(value, _TENSOR):
            self.plain.append(value)
        return value

    def close(self, value: Any, place: Place | None) -> tuple[Any, int]:
        """Wrap results; also says how many bytes are new on the device."""
        if isinstance(value, _TENSOR):
            known = self.back.get(id(value))
            if known is not None:
                if known.shape != value.shape or known.stride() != value.stride():
                    refresh(known)
                return known, 0
            if place is None or type(value) in VIRTUAL:
                return value, 0
            return wrap_output(value, place, self.blocks)
        if isinstance(value, (list, tuple)):  # also torch.return_types.*, which a binding gives
            total = 0
            closed: list[Any] = []
            for item in value:
                wrapped, nbytes = self.close(item, place)
                closed.append(wrapped)
                total += nbytes
            return closed if type(value) is list else tuple(closed), total
        return value, 0


def unshared(tensor: Any, seen: Unwrapped) -> Any:
    """An inner tensor that no other shell holds, for operators that change its shape in place."""
    tensor._inner = inner = tensor._inner.detach()
    seen.back[id(inner)] = tensor
    return inner


# How results that are not strided are wrapped, by layout; `sparse.py` fills it.
WRAPPERS: Final[dict[torch.layout, Callable[[torch.Tensor, Place], tuple[Any, int]]]] = {}


def wrap_output(value: torch.Tensor, place: Place, blocks: dict[int, Block]) -> tuple[Any, int]:
    """Wrap one result, in the block it shares with an argument or an earlier result, or in a new one."""
    if value.layout is not torch.strided:
        return WRAPPERS[value.layout](value, place)
    storage = value.untyped_storage()
    block = blocks.get(storage._cdata)
    nbytes = 0
    if block is None:
        nbytes = storage.nbytes()
        block = blocks[storage._cdata] = allocate(place, nbytes)
    return wrap(value, block), nbytes


def general(func: Any, args: Any, kwargs: Any) -> Any:
    """Run any operator, whatever devices its arguments are on."""
    kwargs = kwargs or {}
    seen = Unwrapped()
    inner = [seen.open(value) for value in args]
    named: dict[str, Any] = {}
    target: Place | None = None
    chosen = False
    for key, value in kwargs.items():
        if key == "device":
            if value is not None:
                chosen = True
                target = place_of(value)
                value = CPU if target is not None else value
            named[key] = value
        elif key == "pin_memory":
            named[key] = None
        else:
            named[key] = seen.open(value)
    place = seen.place
    if place is not None and place.shut:
        raise shut(place)
    if (seen.plain and place is not None) or len(seen.places) > 1:
        if any(type(tensor).__torch_dispatch__ is not _NO_DISPATCH for tensor in seen.plain):
            return NotImplemented  # a class with a dispatcher of its own, sparse or nested: it is asked next
        decided = placement.judge(func, args, kwargs)
        if decided is not ALLOWED:
            return decided
    if not chosen:
        target = place
    where = target or place
    call, refuse, output, count_waits = rules_of(func)
    if refuse is not None and where is not None:
        refuse(args, kwargs)
    if torch.Tag.inplace_view in func.tags and type(args[0]) in VIRTUAL:
        inner[0] = unshared(args[0], seen)
    try:
        out = call(*inner, **named)
    except Exception as error:
        if where is None:
            raise
        out = rescue(func, inner, named, where, error)
    if output is not None:
        out = output(inner, named, out)
    wrapped, nbytes = seen.close(out, target)
    if where is not None:
        write(str(func), where, nbytes)
        if count_waits is not None:
            count_waits(args, kwargs)
    # Python's own binding of `_foreach_mul_` hands its list back; the operator itself returns nothing.
    return wrapped if func._schema.returns else None


def deliver(out: Any, place: Place, name: str) -> Any:
    """A new tensor's block, its line in the ledger and its shell, written out because every operator ends here."""
    nbytes = out.nbytes
    size = (nbytes + 511) & -512
    memory = place.memory
    small = memory.small_live + size
    if size <= SMALL and small <= memory.small_high:
        memory.small_live = small
        memory.blocks += 1
        memory.blocks_ever += 1
        live = memory.live = memory.live + size
        if live > memory.peak:
            memory.peak = live
        block = _new(Block)
        block.place = place
        block.size = size
        block.piece = None
    else:
        block = allocate(place, nbytes)
        live = memory.live
    frame: Any = _getframe(2)
    while True:
        code = frame.f_code
        if student_file[code.co_filename]:
            offset = frame.f_lasti
            break
        frame = frame.f_back
        if frame is None:
            code = offset = None
            break
    mode = GRAD if _grad_on() else 0
    if _inference_on():
        mode |= INFERENCE
    place.note((OPERATION, perf_counter(), code, offset, name, place.label, mode, thread_state.autocast, nbytes, live))
    # Strides left out are contiguous ones: reading and passing them costs as much as the rest of this function.
    strides = None if out.is_contiguous() else out.stride()
    shell = make_shell(
        Tensor,
        out.shape,
        strides,
        None,
        None,
        out.dtype,
        _STRIDED,
        place.lazy,
        False,
        False,
        None,
        False,
        False,
        AUTOCAST,
    )
    shell._inner = out
    shell._block = block
    return shell


def beforehand(func: Any, inner: Any, kwargs: Any, place: Place) -> None:
    """Refuse a result that does not fit on the device before the host computes it."""
    try:
        out = func(*[v.to("meta") if isinstance(v, torch.Tensor) else v for v in inner], **(kwargs or {}))
    except Exception:
        return  # the kernel itself will say what is wrong
    if isinstance(out, torch.Tensor) and out.nbytes > place.memory.allowed - place.memory.live:
        allocate(place, out.nbytes)
