"""Which is the shortest way for `_foreach_*`, the operators of whole lists that optimizers call?"""

from __future__ import annotations

from typing import Any

from graders.bench.virtual.dispatch import allocate, general, shut, write
from graders.bench.virtual.places import Place
from graders.bench.virtual.rescue import rescue
from graders.bench.virtual.tensor import VIRTUAL, wrap


def _opened_lists(args: Any, slots: tuple[int, ...]) -> tuple[Place, list[Any]] | None:
    """The arguments with their lists of device tensors opened; None where that is not all there is to it."""
    place = None
    inner = [*args]
    for slot in slots:
        if slot >= len(inner):
            break
        given = inner[slot]
        if type(given) is not list and type(given) is not tuple:
            return None
        found = []
        for tensor in given:
            if type(tensor) not in VIRTUAL:
                return None
            if tensor._block.place is not place:
                if place is not None:
                    return None
                place = tensor._block.place
            found.append(tensor._inner)
        inner[slot] = found
    return None if place is None else (place, inner)


def lists(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """`_foreach_*_`: lists of tensors changed in place, nothing returned."""
    name = str(func)

    def plan(args: Any, kwargs: Any) -> Any:
        opened = _opened_lists(args, slots)
        if opened is None:
            return general(func, args, kwargs)
        place, inner = opened
        if place.shut:
            raise shut(place)
        try:
            if kwargs:
                call(*inner, **kwargs)
            else:
                call(*inner)
        except Exception as error:
            rescue(func, inner, kwargs or {}, place, error)
        write(name, place, 0)

    return plan


def new_lists(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """`_foreach_*`: lists of tensors in, a list of new tensors out."""
    name = str(func)

    def plan(args: Any, kwargs: Any) -> Any:
        opened = _opened_lists(args, slots)
        if opened is None:
            return general(func, args, kwargs)
        place, inner = opened
        if place.shut:
            raise shut(place)
        try:
            out = call(*inner, **kwargs) if kwargs else call(*inner)
        except Exception as error:
            out = rescue(func, inner, kwargs or {}, place, error)
        given = [wrap(tensor, allocate(place, tensor.nbytes)) for tensor in out]
        write(name, place, sum(tensor.nbytes for tensor in out))
        return given

    return plan
