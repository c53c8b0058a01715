"""Which is the shortest way for this operator? A plan made for its schema the first time it is met.

In the usual case (all tensors on one device, nothing unusual about the results) a plan does as little Python as
possible, and says so at the cost of repeating itself: a training step is some sixty operators. Whatever is
not the usual case goes through `dispatch.general`.
"""

from __future__ import annotations

from sys import _getframe
from time import perf_counter
from typing import Any, Final

import torch

from graders.bench.ledger.rows import GRAD, INFERENCE, OPERATION
from graders.bench.sites import student_file
from graders.bench.virtual import kernels, outputs, refusals, syncs
from graders.bench.virtual.dispatch import SPECIAL, allocate, general, mood, shut, write
from graders.bench.virtual.memory import SMALL
from graders.bench.virtual.places import Block, Place
from graders.bench.virtual.rescue import rescue
from graders.bench.virtual.tensor import AUTOCAST, PLANS, VIRTUAL, Tensor, make_shell, refresh, wrap

_grad_on: Final = torch._C.is_grad_enabled if hasattr(torch._C, "is_grad_enabled") else torch.is_grad_enabled
_inference_on: Final = torch.is_inference_mode_enabled
_STRIDED: Final = torch.strided
_new: Final = object.__new__
# More elements than this are looked at on the meta device first, so that the host does not try what the device refuses.
_SUSPICIOUS: Final = 1 << 27
# Results that can be far larger than what they are made of; the factors are the last two arguments.
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})


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
    place.note((OPERATION, perf_counter(), code, offset, name, place.label, mode, mood.autocast, nbytes, live))
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


def _fresh(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """One new tensor from tensors given by position, all on one device."""
    name = str(func)
    rest = slots[1:]
    forbid, adjust, tick = refusals.of(func), outputs.of(func), syncs.of(func)
    product = func._schema.name in _PRODUCTS
    if forbid is None and adjust is None and tick is None:
        if slots == (0,):
            return _fresh_from_one(func, call, name)
        if slots == (0, 1):
            return _fresh_from_two(func, call, name)

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
        if product and inner[-1].numel() * inner[-2].numel() > _SUSPICIOUS:
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


def _fresh_from_one(func: Any, call: Any, name: str) -> Any:
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


def _fresh_from_two(func: Any, call: Any, name: str) -> Any:
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
        if one.shape != two.shape and one.numel() * two.numel() > _SUSPICIOUS:
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


def _fresh_many(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
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


def _like(func: Any, call: Any) -> Any:
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


def _scalar(func: Any) -> Any:
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


def _detach(func: Any) -> Any:
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


def _in_place(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
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


def _lists(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
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


def _fresh_lists(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
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


# ---- choosing --------------------------------------------------------------------------------------------------------


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
    lists = tuple(i for i, k in enumerate(kinds) if "List[" in k and "Tensor" in k)
    loose = any(
        a.kwarg_only and ("Tensor" in k or a.name in ("device", "generator"))
        for a, k in zip(arguments, kinds, strict=True)
    )
    generator = any("Generator" in k for k in kinds)
    call = kernels.call_of(func)
    aten = torch.ops.aten
    if func in (aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default):
        return _like(func, call)
    if func is aten._local_scalar_dense.default:
        return _scalar(func)
    if loose or generator or func.namespace != "aten":
        return _general(func)
    if lists:
        foreach = schema.name.startswith("aten::_foreach_") and not slots and refusals.of(func) is None
        if foreach and not schema.returns:
            return _lists(func, call, lists)
        if foreach and len(schema.returns) == 1 and not schema.is_mutable:
            return _fresh_lists(func, call, lists)
        return _general(func)
    one = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor" and slots[:1] == (0,)
    if not one:
        many = len(schema.returns) > 1 and slots and not schema.is_mutable and str(schema.returns[0].type) == "Tensor"
        plain = all(str(r.type) == "Tensor" and r.alias_info is None for r in schema.returns)
        return _fresh_many(func, call, slots) if many and plain else _general(func)
    if func in (aten.detach.default, aten.alias.default):
        return _detach(func)
    alias = schema.returns[0].alias_info
    if alias is None:
        return _general(func) if schema.is_mutable else _fresh(func, call, slots)
    if alias.is_write:
        return _in_place(func, call, slots)
    return _view(func, call) if len(slots) == 1 else _general(func)


PLANS.maker = make_plan
