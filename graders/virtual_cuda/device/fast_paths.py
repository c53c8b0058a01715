"""Fast paths for frequent operators, and the choice of a path for each operator."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final

import torch

from virtual_cuda.device.dispatch import SPECIAL, allocate, beforehand, deliver, general, rescue, shut, write
from virtual_cuda.device.state import Place
from virtual_cuda.device.tensor import PLANS, VIRTUAL, refresh, wrap
from virtual_cuda.ops import kernels, refusals, syncs

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
    forbid, tick = refusals.refusal_of(func), syncs.of(func)
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
    forbid, adjust, tick = refusals.refusal_of(func), kernels.of(func), syncs.of(func)
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
    forbid, adjust, tick = refusals.refusal_of(func), kernels.of(func), syncs.of(func)

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


def _general(func: Any) -> Any:
    def plan(args: Any, kwargs: Any) -> Any:
        return general(func, args, kwargs)

    return plan


def _by_hand(func: Any, function: Any) -> Any:
    def plan(args: Any, kwargs: Any) -> Any:
        return function(func, args, kwargs or {})

    return plan


def _shorthand(func: Any) -> Any:
    """`to`, `item`, `linear`, …: autograd takes them apart, but in inference mode they arrive whole."""

    def plan(args: Any, kwargs: Any) -> Any:
        return func.decompose(*args, **(kwargs or {}))

    return plan


def make_plan(func: Any) -> Any:
    by_hand = SPECIAL.get(func)
    if by_hand is not None:
        return _by_hand(func, by_hand)
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return _shorthand(func)
    schema = func._schema
    arguments = schema.arguments
    kinds = [str(a.type) for a in arguments]
    slots = tuple(i for i, a in enumerate(arguments) if kinds[i] in ("Tensor", "Optional[Tensor]") and not a.kwarg_only)
    list_slots = tuple(i for i, k in enumerate(kinds) if "List[" in k and "Tensor" in k)
    loose = any(
        a.kwarg_only and ("Tensor" in k or a.name in ("device", "generator"))
        for a, k in zip(arguments, kinds, strict=True)
    )
    generator = any("Generator" in k for k in kinds)
    call = kernels.call_of(func)
    aten = torch.ops.aten
    if func in (aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default):
        return like(func, call)
    if func is aten._local_scalar_dense.default:
        return scalar(func)
    if loose or generator or func.namespace != "aten":
        return _general(func)
    if list_slots:
        whole = schema.name.startswith("aten::_foreach_") and not slots and refusals.refusal_of(func) is None
        if whole and not schema.returns:
            return lists(func, call, list_slots)
        if whole and len(schema.returns) == 1 and not schema.is_mutable:
            return new_lists(func, call, list_slots)
        return _general(func)
    single = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor" and slots[:1] == (0,)
    if not single:
        several = (
            len(schema.returns) > 1 and slots and not schema.is_mutable and str(schema.returns[0].type) == "Tensor"
        )
        plain = all(str(r.type) == "Tensor" and r.alias_info is None for r in schema.returns)
        return many(func, call, slots) if several and plain else _general(func)
    if func in (aten.detach.default, aten.alias.default):
        return detach(func)
    alias = schema.returns[0].alias_info
    if alias is None:
        return _general(func) if schema.is_mutable else one(func, call, slots)
    if alias.is_write:
        return in_place(func, call, slots)
    return view(func, call) if len(slots) == 1 else _general(func)


PLANS.maker = make_plan
