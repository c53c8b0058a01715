"""How does an operator run on the virtual device? Its CPU kernel runs on the inner tensors; the result is wrapped and written down.

Every operator gets a plan the first time it is met: a function made for its schema, so that the usual case
(all tensors on one device, nothing aliased) does as little Python as possible. Whatever is not the usual case
goes through `general`.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any, Final

import torch

from graders.bench.ledger.rows import GRAD, INFERENCE, OPERATION
from graders.bench.virtual import kernels, outputs, placement, refusals, syncs
from graders.bench.virtual.memory import OutOfMemory
from graders.bench.virtual.places import CPU, Block, Place, place_of
from graders.bench.virtual.rescue import rescue
from graders.bench.sites import site
from graders.bench.virtual.tensor import PLANS, VIRTUAL, refresh, wrap
from graders.bench.virtual.wording import device_assert, forked, out_of_memory
from graders.errors import DeviceClosed

_grad_on: Final = torch._C.is_grad_enabled if hasattr(torch._C, "is_grad_enabled") else torch.is_grad_enabled
_inference_on: Final = torch.is_inference_mode_enabled
_TENSOR: Final = torch.Tensor

# Operators whose plan is written by hand: {overload: function(func, args, kwargs)}.
SPECIAL: Final[dict[Any, Any]] = {}


class _Mood(threading.local):
    """What the rows of this moment say beside the operator: the autocast dtype, and whether a fork has cut the device off."""

    autocast: Any = None
    forked: bool = False


mood: Final = _Mood()


def special(*overloads: Any) -> Any:
    """Register a hand-written plan."""

    def register(function: Any) -> Any:
        for overload in overloads:
            SPECIAL[overload] = function
        return function

    return register


def shut(place: Place) -> Exception:
    if mood.forked:
        return forked()
    return device_assert() if place.gpu.lost else DeviceClosed(place.label)


def allocate(place: Place, nbytes: int) -> Block:
    try:
        return Block(place, nbytes)
    except OutOfMemory as error:
        raise out_of_memory(error, place.index) from None


def write(name: str, place: Place, nbytes: int) -> None:
    """One operation into the ledger."""
    code, offset = site(3)
    mode = (GRAD if _grad_on() else 0) | (INFERENCE if _inference_on() else 0)
    place.note((OPERATION, perf_counter(), code, offset, name, place.label, mode, mood.autocast, nbytes, place.memory.live))


# ---- plans for the usual cases ---------------------------------------------------------------------------------------


def _fresh(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """One new tensor from tensors given by position, all on one device."""
    name = str(func)
    rest = slots[1:]
    forbid, adjust, tick = refusals.of(func), outputs.of(func), syncs.of(func)

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        place = first._block.place
        inner = [*args]
        inner[0] = first._inner
        count = len(inner)
        for slot in rest:
            if slot >= count:
                break
            other = inner[slot]
            if type(other) in VIRTUAL:
                if other._block.place is not place:
                    return general(func, args, kwargs)
                inner[slot] = other._inner
            elif other is not None:
                return general(func, args, kwargs)
        if place.shut:
            raise shut(place)
        if forbid is not None:
            forbid(args, kwargs)
        try:
            out = call(*inner, **kwargs)
        except Exception as error:
            out = rescue(func, inner, kwargs, place, error)
        if adjust is not None:
            out = adjust(inner, kwargs, out)
        nbytes = out.nbytes
        block = allocate(place, nbytes)
        write(name, place, nbytes)
        if tick is not None:
            tick(args, kwargs, out)
        return wrap(out, block)

    return plan


def _view(func: Any, call: Any) -> Any:
    """A tensor that looks into its first argument's storage."""
    name = str(func)

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        block = first._block
        place = block.place
        if place.shut:
            raise shut(place)
        try:
            out = call(first._inner, *args[1:], **kwargs)
        except Exception as error:
            out = rescue(func, [first._inner, *args[1:]], kwargs, place, error)
        write(name, place, 0)
        return wrap(out, block)

    return plan


def _in_place(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """The first argument is changed and returned."""
    name = str(func)
    rest = slots[1:]
    forbid, tick = refusals.of(func), syncs.of(func)

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        place = first._block.place
        inner = [*args]
        own = inner[0] = first._inner
        count = len(inner)
        for slot in rest:
            if slot >= count:
                break
            other = inner[slot]
            if type(other) in VIRTUAL:
                if other._block.place is not place:
                    return general(func, args, kwargs)
                inner[slot] = other._inner
            elif other is not None:
                return general(func, args, kwargs)
        if place.shut:
            raise shut(place)
        if forbid is not None:
            forbid(args, kwargs)
        try:
            call(*inner, **kwargs)
        except Exception as error:
            rescue(func, inner, kwargs, place, error)
        write(name, place, 0)
        if tick is not None:
            tick(args, kwargs, own)
        if own.shape != first.shape or own.stride() != first.stride():
            refresh(first)
        return first

    return plan


def _lists(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """`_foreach_*_`: lists of tensors changed in place, nothing returned."""
    name = str(func)

    def plan(args: Any, kwargs: Any) -> Any:
        place = None
        inner = [*args]
        for slot in slots:
            if slot >= len(inner):
                break
            given = inner[slot]
            if type(given) is not list and type(given) is not tuple:
                return general(func, args, kwargs)
            found = []
            for tensor in given:
                if type(tensor) not in VIRTUAL:
                    return general(func, args, kwargs)
                if tensor._block.place is not place:
                    if place is not None:
                        return general(func, args, kwargs)
                    place = tensor._block.place
                found.append(tensor._inner)
            inner[slot] = found
        if place is None:
            return general(func, args, kwargs)
        if place.shut:
            raise shut(place)
        try:
            call(*inner, **kwargs)
        except Exception as error:
            rescue(func, inner, kwargs, place, error)
        write(name, place, 0)

    return plan


# ---- the general case ------------------------------------------------------------------------------------------------


class Unwrapped:
    """What a call's arguments were: the inner tensors, the devices met, and the way back."""

    __slots__ = ("back", "blocks", "place", "plain", "places")

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
            self.back[id(inner)] = value
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
        kind = type(value)
        if kind is list or kind is tuple:
            total = 0
            closed = []
            for item in value:
                wrapped, nbytes = self.close(item, place)
                closed.append(wrapped)
                total += nbytes
            return kind(closed), total
        return value, 0


def wrap_output(value: torch.Tensor, place: Place, blocks: dict[int, Block]) -> tuple[Any, int]:
    """Wrap one result, in the block it shares with an argument or an earlier result, or in a new one."""
    if value.layout is not torch.strided:
        return wrap_sparse(value, place)
    storage = value.untyped_storage()
    block = blocks.get(storage._cdata)
    nbytes = 0
    if block is None:
        nbytes = storage.nbytes()
        block = blocks[storage._cdata] = allocate(place, nbytes)
    return wrap(value, block), nbytes


def wrap_sparse(value: torch.Tensor, place: Place) -> tuple[Any, int]:
    from graders.bench.virtual import sparse

    return sparse.wrap(value, place)


def general(func: Any, args: Any, kwargs: Any) -> Any:
    """Any operator with any mixture of arguments."""
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
        decided = placement.judge(func, args, kwargs, seen)
        if decided is not placement.ALLOWED:
            return decided
    if not chosen:
        target = place
    where = target or place
    forbid, adjust, tick = refusals.of(func), outputs.of(func), syncs.of(func)
    if forbid is not None and where is not None:
        forbid(args, kwargs)
    try:
        out = kernels.call_of(func)(*inner, **named)
    except Exception as error:
        if where is None:
            raise
        out = rescue(func, inner, named, where, error)
    if adjust is not None:
        out = adjust(inner, named, out)
    wrapped, nbytes = seen.close(out, target)
    if where is not None:
        write(str(func), where, nbytes)
        if tick is not None:
            tick(args, kwargs, out)
    return wrapped


# ---- choosing --------------------------------------------------------------------------------------------------------


def _general(func: Any) -> Any:
    def plan(args: Any, kwargs: Any) -> Any:
        return general(func, args, kwargs)

    return plan


def _by_hand(func: Any, function: Any) -> Any:
    def plan(args: Any, kwargs: Any) -> Any:
        return function(func, args, kwargs)

    return plan


def make_plan(func: Any) -> Any:
    by_hand = SPECIAL.get(func)
    if by_hand is not None:
        return _by_hand(func, by_hand)
    schema = func._schema
    arguments = schema.arguments
    kinds = [str(a.type) for a in arguments]
    slots = tuple(i for i, a in enumerate(arguments) if kinds[i] in ("Tensor", "Optional[Tensor]") and not a.kwarg_only)
    lists = tuple(i for i, k in enumerate(kinds) if "List[" in k and "Tensor" in k)
    loose = any(a.kwarg_only and ("Tensor" in k or a.name in ("device", "generator")) for a, k in zip(arguments, kinds, strict=True))
    generator = any("Generator" in k for k in kinds)
    call = kernels.call_of(func)
    if loose or generator or func.namespace != "aten":
        return _general(func)
    if lists:
        simple = not schema.returns and not slots
        return _lists(func, call, lists) if simple else _general(func)
    one = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor" and slots[:1] == (0,)
    if not one:
        return _general(func)
    alias = schema.returns[0].alias_info
    if alias is None:
        return _general(func) if schema.is_mutable else _fresh(func, call, slots)
    if alias.is_write:
        return _in_place(func, call, slots)
    return _view(func, call) if len(slots) == 1 else _general(func)


PLANS.maker = make_plan
