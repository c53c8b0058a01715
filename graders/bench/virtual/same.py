"""Which is the shortest way for operators that make no new tensor? Views, changes in place, and reading a number."""

from __future__ import annotations

from typing import Any, Final

import torch

from graders.bench.virtual import refusals, syncs
from graders.bench.virtual.dispatch import general, shut, write
from graders.bench.virtual.rescue import rescue
from graders.bench.virtual.tensor import VIRTUAL, refresh, wrap

_STRIDED: Final = torch.strided


def scalar(func: Any) -> Any:
    """`item()`: the one operator whose result is a Python number."""
    name = str(func)
    tick = syncs.of(func)

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        place = first._block.place
        if place.shut:
            raise shut(place)
        value = first._inner.item()
        write(name, place, 0)
        tick(args, {}, value)
        return value

    return plan


def view(func: Any, call: Any) -> Any:
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
            if kwargs:
                out = call(first._inner, *args[1:], **kwargs)
            elif len(args) == 1:
                out = call(first._inner)
            else:
                out = call(first._inner, *args[1:])
        except Exception as error:
            out = rescue(func, [first._inner, *args[1:]], kwargs or {}, place, error)
        write(name, place, 0)
        return wrap(out, block)

    return plan


def detach(func: Any) -> Any:
    """Another shell around the same inner tensor. Operators that change a tensor's shape in place unshare it first.

    Not written down: autograd detaches what it saves, which for plain tensors never reaches a dispatcher.
    """

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL or first._inner.layout is not _STRIDED:
            return general(func, args, kwargs)
        block = first._block
        if block.place.shut:
            raise shut(block.place)
        return wrap(first._inner, block)

    return plan


def in_place(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """The first argument is changed and returned."""
    name = str(func)
    rest = slots[1:]
    forbid, tick = refusals.of(func), syncs.of(func)
    reshapes = torch.Tag.inplace_view in func.tags

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        place = first._block.place
        if reshapes:
            first._inner = first._inner.detach()
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
            forbid(args, kwargs or {})
        try:
            if kwargs:
                call(*inner, **kwargs)
            else:
                call(*inner)
        except Exception as error:
            rescue(func, inner, kwargs or {}, place, error)
        write(name, place, 0)
        if tick is not None:
            tick(args, kwargs or {}, own)
        if reshapes:
            refresh(first)
        return first

    return plan
