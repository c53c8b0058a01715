"""Which is the shortest way for operators that make new tensors out of others?

A training step is some sixty operators, so a plan does as little Python as possible where all tensors are on one
device, and says so at the cost of repeating itself. Everything else goes through `dispatch.general`.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final

import torch

from graders.bench.virtual import outputs, refusals, syncs
from graders.bench.virtual.delivery import beforehand, deliver
from graders.bench.virtual.dispatch import allocate, general, shut, write
from graders.bench.virtual.rescue import rescue
from graders.bench.virtual.tensor import VIRTUAL, wrap

_STRIDED: Final = torch.strided
# More elements than this are looked at on the meta device first, so that the host does not try what the device refuses.
_SUSPICIOUS: Final = 1 << 27
# Results that can be far larger than what they are made of; the factors are the last two arguments.
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})


def _product_elements(left: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements a matrix product has; looking at it costs nothing beside the product."""
    return left.numel() // max(left.shape[-1], 1) * right.shape[-1] if left.dim() > 1 and right.dim() > 1 else 0


def _broadcast_elements(left: Any, right: Any) -> int:
    """How many elements two shapes have when each is stretched to the other."""
    elements = 1
    for a, b in zip_longest(reversed(left), reversed(right), fillvalue=1):
        elements *= max(a, b)
    return elements


def one(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """One new tensor from tensors given by position, all on one device."""
    name = str(func)
    rest = slots[1:]
    forbid, adjust, tick = refusals.of(func), outputs.of(func), syncs.of(func)
    product = func._schema.name in _PRODUCTS
    if forbid is None and adjust is None and tick is None:
        if slots == (0,):
            return _from_one(func, call, name)
        if slots == (0, 1):
            return _from_two(func, call, name)

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
            forbid(args, kwargs or {})
        if product and _product_elements(inner[-2], inner[-1]) > _SUSPICIOUS:
            beforehand(func, inner, kwargs, place)
        try:
            out = call(*inner, **kwargs) if kwargs else call(*inner)
        except Exception as error:
            out = rescue(func, inner, kwargs or {}, place, error)
        if adjust is not None:
            out = adjust(inner, kwargs or {}, out)
        shell = deliver(out, place, name)
        if tick is not None:
            tick(args, kwargs or {}, out)
        return shell

    return plan


def _from_one(func: Any, call: Any, name: str) -> Any:
    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        place = first._block.place
        if place.shut:
            raise shut(place)
        inner = first._inner
        if inner.numel() > _SUSPICIOUS:
            beforehand(func, [inner, *args[1:]], kwargs, place)
        try:
            if kwargs:
                out = call(inner, *args[1:], **kwargs)
            elif len(args) == 1:
                out = call(inner)
            else:
                out = call(inner, *args[1:])
        except Exception as error:
            out = rescue(func, [inner, *args[1:]], kwargs or {}, place, error)
        return deliver(out, place, name)

    return plan


def _from_two(func: Any, call: Any, name: str) -> Any:
    def plan(args: Any, kwargs: Any) -> Any:
        if len(args) < 2:
            return general(func, args, kwargs)
        first, second = args[0], args[1]
        if type(first) not in VIRTUAL or type(second) not in VIRTUAL:
            return general(func, args, kwargs)
        place = first._block.place
        if second._block.place is not place:
            return general(func, args, kwargs)
        if place.shut:
            raise shut(place)
        one, two = first._inner, second._inner
        if one.shape != two.shape and _broadcast_elements(one.shape, two.shape) > _SUSPICIOUS:
            beforehand(func, [one, two, *args[2:]], kwargs, place)
        try:
            if kwargs:
                out = call(one, two, *args[2:], **kwargs)
            elif len(args) == 2:
                out = call(one, two)
            else:
                out = call(one, two, *args[2:])
        except Exception as error:
            out = rescue(func, [one, two, *args[2:]], kwargs or {}, place, error)
        return deliver(out, place, name)

    return plan


def many(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """Several new tensors, as normalisation, pooling and losses give them."""
    name = str(func)
    forbid, adjust, tick = refusals.of(func), outputs.of(func), syncs.of(func)

    def plan(args: Any, kwargs: Any) -> Any:
        inner = [*args]
        place = None
        for slot in slots:
            if slot >= len(inner):
                break
            tensor = inner[slot]
            if type(tensor) in VIRTUAL:
                if tensor._block.place is not place:
                    if place is not None:
                        return general(func, args, kwargs)
                    place = tensor._block.place
                inner[slot] = tensor._inner
            elif tensor is not None:
                return general(func, args, kwargs)
        if place is None:
            return general(func, args, kwargs)
        if place.shut:
            raise shut(place)
        if forbid is not None:
            forbid(args, kwargs or {})
        try:
            out = call(*inner, **kwargs) if kwargs else call(*inner)
        except Exception as error:
            out = rescue(func, inner, kwargs or {}, place, error)
        if adjust is not None:
            out = adjust(inner, kwargs or {}, out)
        given = []
        total = 0
        for tensor in out:
            if tensor is None or type(tensor) in VIRTUAL:
                given.append(tensor)
            else:
                nbytes = tensor.untyped_storage().nbytes()  # a result may be the front of a longer buffer
                total += nbytes
                given.append(wrap(tensor, allocate(place, nbytes)))
        write(name, place, total)
        if tick is not None:
            tick(args, kwargs or {}, out)
        return tuple(given)

    return plan


def like(func: Any, call: Any) -> Any:
    """`zeros_like` and its kin where they stay on the device: everything else they may be asked is rare."""
    name = str(func)

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL or len(args) > 1:
            return general(func, args, kwargs)
        place = first._block.place
        options = {}
        for key, value in (kwargs or {}).items():
            if key == "device":
                if value is not None and value != place.lazy:
                    return general(func, args, kwargs)
            elif key != "pin_memory" and value is not None:
                options[key] = value
        if place.shut or first._inner.layout is not _STRIDED:
            return general(func, args, kwargs)
        return deliver(call(first._inner, **options), place, name)

    return plan
