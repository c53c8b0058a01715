"""The one way of every operator: a plan, made once for each from its schema and its entry in the registry."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device.state import OpenDevice
from virtual_cuda.device.tensor import AUTOCAST, PLANS, VIRTUAL, fresh, refresh, wrap
from virtual_cuda.internals import COMPOSITE, dispatch_also_to, find_internal, has_kernel
from virtual_cuda.ops.dispatch import (
    Rules,
    allocate,
    beforehand,
    closed_device_error,
    deliver,
    general,
    rescue,
    rules_of,
    thread_state,
    work_of,
    wrap_output,
    write,
)
from virtual_cuda.ops.library_operators import run_library_operator
from virtual_cuda.ops.placement import on_host
from virtual_cuda.ops.registry import call_of, facts_of

_STRIDED: Final = torch.strided
_NUMBERS: Final = (int, float, bool)
_grad_on: Final = torch.is_grad_enabled
_inference_on: Final = torch.is_inference_mode_enabled


def item(func: Any, rules: Rules) -> Any:
    """`item()`: the one operator whose result is a Python number."""
    name, count_waits = str(func), rules.count_waits
    assert count_waits is not None

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        device = first._block.device
        if device.closed:
            raise closed_device_error(device)
        inner = first._inner
        value = inner.item() if inner.numel() == 1 else func(inner)
        write(name, device, 0)
        count_waits(args, {})
        return value

    return plan


def detach(func: Any, rules: Rules) -> Any:
    """Another shell around the same inner tensor. Operators that change a tensor's shape in place unshare it first.

    Not written down: autograd detaches what it saves, which for plain tensors never reaches a dispatcher.
    """

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        inner = first._inner
        if inner.layout is not _STRIDED:
            return general(func, args, kwargs)
        block = first._block
        if block.device.closed:
            raise closed_device_error(block.device)
        dtype = inner.dtype
        if dtype.is_complex or _inference_on() or inner.storage_offset() or inner.is_neg():
            return wrap(inner, block)
        return fresh(inner, inner.shape, dtype, block)  # most are the gradients of leaves

    return plan


# More elements than this are looked at on the meta device first, so that the host does not try what the device refuses.
_SUSPICIOUS: Final = 1 << 27


def _product_elements(left: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements a matrix product has; looking at it costs nothing beside the product."""
    return (
        left.numel() // max(left.shape[-1], 1) * right.shape[-1]
        if left.dim() > 1 and right.dim() > 1
        else 0
    )


def _broadcast_elements(left: Any, right: Any) -> int:
    """How many elements two shapes have when each is stretched to the other."""
    return math.prod(
        max(pair) for pair in zip_longest(reversed(left), reversed(right), fillvalue=1)
    )


def _across(func: Any) -> Callable[[Any], tuple[int, ...]] | None:
    """For operators along a dimension: gives it, if it is not the last, for the clock; the memory is then strided."""
    kinds = ("int", "List[int]", "Optional[int]", "Optional[List[int]]")
    place = next(
        (
            i
            for i, a in enumerate(func._schema.arguments)
            if a.name == "dim" and str(a.type) in kinds
        ),
        0,
    )

    def across(args: Any) -> tuple[int, ...]:
        given: Any = args[place] if len(args) > place else -1
        last = args[0].dim() - 1
        if given == -1 or given == last:
            return ()
        dims: Any = given if type(given) in (list, tuple) else (given,)
        return () if not dims or any(dim in (None, -1, last) for dim in dims) else (dims[0],)

    return across if place else None


def _from_tensors(func: Any, rules: Rules, slots: tuple[int, ...]) -> Any:
    """Tensors given by position, all on one device: one is changed and returned, or new ones are made."""
    returns = func._schema.returns
    call, refuse, output, count_waits, name = rules
    product, front = facts_of(func).product, facts_of(func).front
    in_place, single = returns[0].alias_info is not None, len(returns) == 1 and not front
    reshapes = torch.Tag.inplace_view in func.tags
    across = _across(func)

    def plan(args: Any, kwargs: Any) -> Any:
        inner = [*args]
        device, number = None, False
        count = len(inner)
        for slot in slots:
            if slot >= count:
                break
            tensor = inner[slot]
            if type(tensor) in VIRTUAL:
                if tensor._block.device is not device:
                    if device is not None:
                        return general(func, args, kwargs)
                    device = tensor._block.device
                inner[slot] = tensor._inner
            elif in_place and type(tensor) in _NUMBERS:
                number = True
            elif tensor is not None:
                return general(func, args, kwargs)
        if device is None or (number and inner[0].layout is not _STRIDED):
            return general(func, args, kwargs)
        if device.closed:
            raise closed_device_error(device)
        if reshapes:  # other tensors may share the inner one
            inner[0] = args[0]._inner = inner[0].detach()
        if refuse is not None:
            refuse(args, kwargs or {})
        if product and _product_elements(inner[-2], inner[-1]) > _SUSPICIOUS:
            beforehand(func, inner, kwargs, device)
        try:
            out = call(*inner, **kwargs) if kwargs else call(*inner)
        except Exception as error:
            out = rescue(func, inner, kwargs or {}, device, error)
        if number:
            result = args[0]
            write(name, device, 0, work_of(inner[0], inner))
            if count_waits is not None:
                count_waits(args, kwargs or {})
            return result
        shapes = [inner[slot].shape for slot in slots if slot < count and inner[slot] is not None]
        if across is not None:
            shapes += across(args)
        if in_place:
            result = args[0]
            write(name, device, 0, (result.dtype, None, *shapes))
        else:
            if output is not None:
                out = output(inner, kwargs or {}, out)
            if single:
                result = deliver(out, device, name, *shapes)
            else:
                results = _deliver_many((out,) if front else out, device, name, shapes)
                result = results[0] if front else results
        if count_waits is not None:
            count_waits(args, kwargs or {})
        if reshapes:
            refresh(result)
        return result

    return plan


def _deliver_many(out: Any, device: OpenDevice, name: str, shapes: list[Any]) -> tuple[Any, ...]:
    """The results of normalisation, pooling and losses on the device, and their line in the ledger."""
    at = perf_counter()
    results: list[Any] = []
    nbytes = 0
    dtype = None
    for tensor in out:
        if not on_host(tensor):
            results.append(tensor)
            continue
        size = tensor.untyped_storage().nbytes()  # it may be the front of a longer buffer
        nbytes += size
        dtype = dtype or tensor.dtype
        results.append(wrap(tensor, allocate(device, size)))
    first_shape = out[0].shape if on_host(out[0]) else None
    write(name, device, nbytes, (dtype, first_shape, *shapes), at=at)
    return tuple(results)


def _from_one(func: Any, call: Any) -> Any:
    """One new tensor from one; the same as above without what such operators do not need."""
    name = str(func)
    copies, pointwise = func is torch.ops.aten.clone.default, torch.Tag.pointwise in func.tags
    across = _across(func)

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        device = first._block.device
        if device.closed:
            raise closed_device_error(device)
        inner = first._inner
        if inner.numel() > _SUSPICIOUS:
            beforehand(func, [inner, *args[1:]], kwargs, device)
        try:
            if kwargs:
                out = call(inner, *args[1:], **kwargs)
            elif len(args) == 1:
                out = call(inner)
            else:
                out = call(inner, *args[1:])
        except Exception as error:
            out = rescue(func, [inner, *args[1:]], kwargs or {}, device, error)
        if across is not None:
            return deliver(out, device, name, inner.shape, *across(args))
        # The clock takes a plain copy for no kernel.
        plain = inner.stride() == out.stride() if copies else pointwise
        return deliver(out, device, name) if plain else deliver(out, device, name, inner.shape)

    return plan


def view(func: Any, rules: Rules) -> Any:
    """A view of one tensor."""
    name, call = str(func), rules.call
    direct = call_of(func)  # without the care that conjugated numbers need

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL:
            return general(func, args, kwargs)
        block, inner = first._block, first._inner
        device = block.device
        if device.closed:
            raise closed_device_error(device)
        run = call if inner.dtype.is_complex else direct
        try:
            out = run(inner, *args[1:], **kwargs) if kwargs else run(inner, *args[1:])
        except Exception as error:
            out = rescue(func, [inner, *args[1:]], kwargs or {}, device, error)
        write(name, device, 0)
        return wrap(out, block)

    return plan


def _from_two(func: Any, call: Any) -> Any:
    """One new tensor from two."""
    name, across = str(func), _across(func)
    number = partial(_with_number, func, name, call)

    def plan(args: Any, kwargs: Any) -> Any:
        if len(args) < 2:
            return general(func, args, kwargs)
        first, second = args[0], args[1]
        if type(first) not in VIRTUAL or type(second) not in VIRTUAL:
            return number(args, kwargs) if type(second) in _NUMBERS else general(func, args, kwargs)
        device = first._block.device
        if second._block.device is not device:
            return general(func, args, kwargs)
        if device.closed:
            raise closed_device_error(device)
        one, two = first._inner, second._inner
        left, right = one.shape, two.shape
        if left != right and _broadcast_elements(left, right) > _SUSPICIOUS:
            beforehand(func, [one, two, *args[2:]], kwargs, device)
        try:
            if kwargs:
                out = call(one, two, *args[2:], **kwargs)
            elif len(args) == 2:
                out = call(one, two)
            else:
                out = call(one, two, *args[2:])
        except Exception as error:
            out = rescue(func, [one, two, *args[2:]], kwargs or {}, device, error)
        if across is None:
            return deliver(out, device, name, left, right)
        return deliver(out, device, name, left, right, *across(args))

    return plan


def _with_number(func: Any, name: str, call: Any, args: Any, kwargs: Any) -> Any:
    """One new tensor from one and a number."""
    first = args[0]
    if (
        type(first) not in VIRTUAL
        or first._inner.layout is not _STRIDED
        or first._block.device.closed
    ):
        return general(func, args, kwargs)
    device, inner = first._block.device, first._inner
    try:
        out = call(inner, *args[1:], **(kwargs or {}))
    except Exception as error:
        out = rescue(func, [inner, *args[1:]], kwargs or {}, device, error)
    if out.dtype is inner.dtype:
        return deliver(out, device, name, inner.shape)
    result, nbytes = wrap_output(out, device, {})
    write(name, device, nbytes, work_of(out, (inner,)))
    return result


def like(func: Any, rules: Rules) -> Any:
    """`zeros_like` and its kin where they stay on the device: everything else they may be asked is rare."""
    name, call = str(func), rules.call

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        if type(first) not in VIRTUAL or len(args) > 1:
            return general(func, args, kwargs)
        device = first._block.device
        options = {}
        for key, value in (kwargs or {}).items():
            if key == "device":
                if value is not None and value != device.lazy:
                    return general(func, args, kwargs)
            elif key != "pin_memory" and value is not None:
                options[key] = value
        if device.closed or first._inner.layout is not _STRIDED:
            return general(func, args, kwargs)
        return deliver(call(first._inner, **options), device, name)

    return plan


def _opened_lists(args: Any, slots: Sequence[int]) -> tuple[OpenDevice, list[Any]] | None:
    """The arguments with their lists of device tensors opened; None where that is not all there is to it."""
    device = None
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
            if tensor._block.device is not device:
                if device is not None:
                    return None
                device = tensor._block.device
            found.append(tensor._inner)
        inner[slot] = found
    return None if device is None else (device, inner)


def lists(func: Any, call: Any, slots: tuple[int, ...]) -> Any:
    """`_foreach_*`: lists of tensors in, a list of new tensors out, or lists changed in place and nothing returned."""
    name, returns = str(func), bool(func._schema.returns)

    def plan(args: Any, kwargs: Any) -> Any:
        opened = _opened_lists(args, slots)
        if opened is None:
            return general(func, args, kwargs)
        device, inner = opened
        if device.closed:
            raise closed_device_error(device)
        try:
            out = call(*inner, **kwargs) if kwargs else call(*inner)
        except Exception as error:
            out = rescue(func, inner, kwargs or {}, device, error)
        if not returns:
            _increment_version(
                args[slots[0]]
            )  # as torch does for every list that is changed in place
        return _deliver_lists(out if returns else None, device, name, inner[slots[0]])

    return plan


def _deliver_lists(out: Any, device: OpenDevice, name: str, first: list[Any]) -> Any:
    work = first[0].dtype, None, *[tensor.shape for tensor in first]
    if out is None:
        write(name, device, 0, work)
        return None
    given = [wrap(tensor, allocate(device, tensor.nbytes)) for tensor in out]
    write(name, device, sum(tensor.nbytes for tensor in out), work)
    return given


_increment_version: Final = find_internal(
    "torch._C._increment_version", otherwise=lambda tensors: None
)
_FEW: Final = {(0,): _from_one, (0, 1): _from_two}
_FAST_PATHS: Final = {"detach": detach, "item": item, "like": like, "view": view}


def plan_by(function: Any, func: Any) -> Any:
    """A plan that is written by hand: function(func, args, kwargs)."""
    return lambda args, kwargs: function(func, args, kwargs or {})


def _taken_apart(func: Any) -> Any:
    """A plan for `to`, `item`, `linear`, …: autograd takes them apart, but in inference mode they arrive whole.

    C++ takes them apart here, too: `func.decompose` prefers versions in Python, which a GPU never runs, and some import
    sympy. What arrives here has left autocast behind: it is turned on again for the parts of operators that autocast
    has nothing to do with, as they would find it on a GPU.
    """
    apart = partial(func._op_dk, COMPOSITE)
    known = has_kernel(func.name(), "AutocastCUDA")
    state = thread_state

    def plan(args: Any, kwargs: Any) -> Any:
        if state.autocast is None or state.cast:
            return apart(*args, **(kwargs or {}))
        if known:
            state.cast = True
            try:
                return apart(*args, **(kwargs or {}))
            finally:
                state.cast = False
        with dispatch_also_to(AUTOCAST):
            return apart(*args, **(kwargs or {}))

    return plan


def make_plan(func: Any) -> Any:
    """A function(args, kwargs) that runs this operator: the shortest way that its schema and its entry allow."""
    facts = facts_of(func)
    if facts.plan is not None:
        return plan_by(facts.plan, func)
    if func.namespace not in ("aten", "prims"):
        return plan_by(run_library_operator, func)
    composite = has_kernel(func.name(), "CompositeImplicitAutograd")
    if composite and not facts.whole:
        return _taken_apart(func)
    rules = rules_of(func)
    if facts.fast_path is not None:
        return _FAST_PATHS[facts.fast_path](func, rules)
    schema = func._schema
    arguments, returns = schema.arguments, schema.returns
    kinds = [str(a.type) for a in arguments]
    slots = tuple(
        i
        for i, a in enumerate(arguments)
        if kinds[i] in ("Tensor", "Optional[Tensor]") and not a.kwarg_only
    )
    list_slots = tuple(i for i, k in enumerate(kinds) if "List[" in k and "Tensor" in k)
    loose = any(
        a.kwarg_only and ("Tensor" in k or a.name in ("device", "generator"))
        for a, k in zip(arguments, kinds, strict=True)
    )
    in_general = partial(general, func)
    if loose or any("Generator" in k for k in kinds) or func.namespace != "aten":
        return in_general
    if list_slots:
        whole = schema.name.startswith("aten::_foreach_") and not slots and rules.refuse is None
        simple = not returns or (len(returns) == 1 and not schema.is_mutable)
        return lists(func, rules.call, list_slots) if whole and simple else in_general
    tensors = bool(returns) and all(str(r.type) == "Tensor" for r in returns)
    fresh = not schema.is_mutable and all(r.alias_info is None for r in returns)
    if len(returns) > 1 and tensors and slots and fresh:
        return _from_tensors(func, rules, slots)
    if len(returns) != 1 or not tensors or slots[:1] != (0,):
        return in_general
    if fresh and slots in _FEW and rules[1:4] == (None, None, None) and not facts_of(func).front:
        return _FEW[slots](func, rules.call)
    alias = returns[0].alias_info
    if fresh or (alias is not None and alias.is_write):
        return _from_tensors(func, rules, slots)
    return view(func, rules) if alias is not None and len(slots) == 1 else in_general


PLANS.maker = make_plan
