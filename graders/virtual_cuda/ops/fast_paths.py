"""Fast paths for frequent operators, and the choice of a path for each operator."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial, wraps
from itertools import zip_longest
from operator import attrgetter
from sys import _getframe, getrefcount
from time import perf_counter
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional
import torch.optim
from torch import nn
from torch._C import DispatchKey, DispatchKeySet

from virtual_cuda.device.state import Block, Place, attributes, conceal, revealed
from virtual_cuda.device.tensor import PLANS, VIRTUAL, Parameter, Tensor, fresh, refresh, wrap
from virtual_cuda.ledger.records import END, FORWARD, GRAD, INFERENCE, OPERATION
from virtual_cuda.ops.dispatch import (
    Rules,
    allocate,
    beforehand,
    bring,
    deliver,
    general,
    rescue,
    rules_of,
    settle,
    shut,
    thread_state,
    work_of,
    wrap_output,
    write,
)
from virtual_cuda.ops.elementwise import SLOW
from virtual_cuda.ops.placement import on_host
from virtual_cuda.ops.registry import call_of, facts_of
from virtual_cuda.patching import Opening, Patch, around, identity, torch_patches, unpatched
from virtual_cuda.recorder import site

# Namespaces with plans of their own: function(func, args, kwargs). `torch_api/distributed.py` adds one.
NAMESPACES: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {}
_CUDA: Final = DispatchKeySet(DispatchKey.CUDA)
_ONLY_CUDA: Final = (
    "the operator {0} has no implementation that the virtual GPU can run; add one in Python, for the CPU or for every "
    'device: torch.library.register_kernel("{0}", "cpu", function)'
)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of a library; raises NotImplementedError for one that only has a compiled CUDA kernel.

    A Python kernel for CUDA or for all devices is called with device tensors, as on a GPU. Other kernels get the CPU
    tensors inside. What is registered may change at any time, so it is asked at every call.
    """
    name = func.name()
    if name.partition("::")[0] in NAMESPACES:
        return NAMESPACES[func.namespace](func, args, kwargs)
    path = name.replace("::", "/")
    if {f"{path}/CUDA", f"{path}/CompositeExplicitAutograd"} & torch.library._impls:
        return func.redispatch(_CUDA, *args, **kwargs)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not any(has_kernel(name, key) for key in ("CPU", "CompositeExplicitAutograd")):
        raise NotImplementedError(_ONLY_CUDA.format(name))
    return general(func, args, kwargs)


_STRIDED: Final = torch.strided
_NUMBERS: Final = (int, float, bool)


def item(func: Any, rules: Rules) -> Any:
    """`item()`: the one operator whose result is a Python number."""
    name, count_waits = str(func), rules.count_waits
    assert count_waits is not None

    def plan(args: Any, kwargs: Any) -> Any:
        first = args[0]
        place = first._block.place
        if place.shut:
            raise shut(place)
        inner = first._inner
        value = inner.item() if inner.numel() == 1 else func(inner)
        write(name, place, 0)
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
        if block.place.shut:
            raise shut(block.place)
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
        place, number = None, False
        count = len(inner)
        for slot in slots:
            if slot >= count:
                break
            tensor = inner[slot]
            if type(tensor) in VIRTUAL:
                if tensor._block.place is not place:
                    if place is not None:
                        return general(func, args, kwargs)
                    place = tensor._block.place
                inner[slot] = tensor._inner
            elif in_place and type(tensor) in _NUMBERS:
                number = True
            elif tensor is not None:
                return general(func, args, kwargs)
        if place is None or (number and inner[0].layout is not _STRIDED):
            return general(func, args, kwargs)
        if place.shut:
            raise shut(place)
        if reshapes:  # other tensors may share the inner one
            inner[0] = args[0]._inner = inner[0].detach()
        if refuse is not None:
            refuse(args, kwargs or {})
        if product and _product_elements(inner[-2], inner[-1]) > _SUSPICIOUS:
            beforehand(func, inner, kwargs, place)
        try:
            out = call(*inner, **kwargs) if kwargs else call(*inner)
        except Exception as error:
            out = rescue(func, inner, kwargs or {}, place, error)
        if number:
            result = args[0]
            write(name, place, 0, work_of(inner[0], inner))
            if count_waits is not None:
                count_waits(args, kwargs or {})
            return result
        shapes = [inner[slot].shape for slot in slots if slot < count and inner[slot] is not None]
        if across is not None:
            shapes += across(args)
        if in_place:
            result = args[0]
            write(name, place, 0, (result.dtype, None, *shapes))
        else:
            if output is not None:
                out = output(inner, kwargs or {}, out)
            if single:
                result = deliver(out, place, name, *shapes)
            else:
                results = _deliver_many((out,) if front else out, place, name, shapes)
                result = results[0] if front else results
        if count_waits is not None:
            count_waits(args, kwargs or {})
        if reshapes:
            refresh(result)
        return result

    return plan


def _deliver_many(out: Any, place: Place, name: str, shapes: list[Any]) -> tuple[Any, ...]:
    """The results of normalisation, pooling and losses on the device, and their line in the ledger."""
    blocks = _note_many(out, place, name, shapes, site(), perf_counter(), _mode())
    return tuple(
        tensor if block is None else wrap(tensor, block)
        for tensor, block in zip(out, blocks, strict=True)
    )


def _note_many(
    out: Any,
    place: Place,
    name: str,
    shapes: Sequence[Any],
    where: Any,
    at: float,
    mode: int,
    whole: bool = False,
) -> list[Any]:
    """The line of several results in the ledger, and their blocks; None for what is no tensor of the host.

    `whole`: it is known that each is a tensor of the host or None, and that none is a part of something larger.
    """
    blocks: list[Any] = []
    nbytes, dtype = 0, None
    for tensor in out:
        if tensor is None if whole else not on_host(tensor):
            blocks.append(None)
            continue
        size = (
            tensor.nbytes if whole else tensor.untyped_storage().nbytes()
        )  # it may be the front of a longer buffer
        nbytes += size
        dtype = dtype or tensor.dtype
        blocks.append(allocate(place, size))
    code, offset = where
    work = dtype, None if blocks[0] is None else out[0].shape, *shapes
    live, cast = place.memory.live, thread_state.autocast
    place.note((OPERATION, at, code, offset, name, place.label, mode, cast, nbytes, live, work))
    return blocks


def _from_one(func: Any, call: Any) -> Any:
    """One new tensor from one; the same as above without what such operators do not need."""
    name = str(func)
    copies, pointwise = func is torch.ops.aten.clone.default, torch.Tag.pointwise in func.tags
    across = _across(func)

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
        if across is not None:
            return deliver(out, place, name, inner.shape, *across(args))
        # The clock takes a plain copy for no kernel.
        plain = inner.stride() == out.stride() if copies else pointwise
        return deliver(out, place, name) if plain else deliver(out, place, name, inner.shape)

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
        place = block.place
        if place.shut:
            raise shut(place)
        run = call if inner.dtype.is_complex else direct
        try:
            out = run(inner, *args[1:], **kwargs) if kwargs else run(inner, *args[1:])
        except Exception as error:
            out = rescue(func, [inner, *args[1:]], kwargs or {}, place, error)
        write(name, place, 0)
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
        place = first._block.place
        if second._block.place is not place:
            return general(func, args, kwargs)
        if place.shut:
            raise shut(place)
        one, two = first._inner, second._inner
        left, right = one.shape, two.shape
        if left != right and _broadcast_elements(left, right) > _SUSPICIOUS:
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
        at, given = (
            perf_counter(),
            (left, right) if across is None else (left, right, *across(args)),
        )
        if out.dtype.is_complex:
            return deliver(out, place, name, *given, at=at)
        mode = GRAD if _grad_on() else 0
        return bring(
            out, place, name, given, site(), at, mode | INFERENCE if _inference_on() else mode
        )

    return plan


def _with_number(func: Any, name: str, call: Any, args: Any, kwargs: Any) -> Any:
    """One new tensor from one and a number."""
    first = args[0]
    if type(first) not in VIRTUAL or first._inner.layout is not _STRIDED or first._block.place.shut:
        return general(func, args, kwargs)
    place, inner = first._block.place, first._inner
    try:
        out = call(inner, *args[1:], **(kwargs or {}))
    except Exception as error:
        out = rescue(func, [inner, *args[1:]], kwargs or {}, place, error)
    if out.dtype is inner.dtype:
        return deliver(out, place, name, inner.shape)
    result, nbytes = wrap_output(out, place, {})
    write(name, place, nbytes, work_of(out, (inner,)))
    return result


def like(func: Any, rules: Rules) -> Any:
    """`zeros_like` and its kin where they stay on the device: everything else they may be asked is rare."""
    name, call = str(func), rules.call

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


def _opened_lists(args: Any, slots: Sequence[int]) -> tuple[Place, list[Any]] | None:
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
    """`_foreach_*`: lists of tensors in, a list of new tensors out, or lists changed in place and nothing returned."""
    name, returns = str(func), bool(func._schema.returns)

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
        if not returns:
            torch._C._increment_version(
                args[slots[0]]
            )  # as torch does for every list that is changed in place
        return _deliver_lists(out if returns else None, place, name, inner[slots[0]])

    return plan


def _deliver_lists(out: Any, place: Place, name: str, first: list[Any]) -> Any:
    work = first[0].dtype, None, *[tensor.shape for tensor in first]
    if out is None:
        write(name, place, 0, work)
        return None
    given = [wrap(tensor, allocate(place, tensor.nbytes)) for tensor in out]
    write(name, place, sum(tensor.nbytes for tensor in out), work)
    return given


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
    apart = partial(func._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    autocast = torch._C.DispatchKey.AutocastCUDA
    known = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "AutocastCUDA")
    state, local = thread_state, torch._C

    def plan(args: Any, kwargs: Any) -> Any:
        if state.autocast is None or state.cast:
            return apart(*args, **(kwargs or {}))
        if known:
            state.cast = True
            try:
                return apart(*args, **(kwargs or {}))
            finally:
                state.cast = False
        included, excluded = (
            local._dispatch_tls_local_include_set(),
            local._dispatch_tls_local_exclude_set(),
        )
        with local._ForceDispatchKeyGuard(included, excluded.remove(autocast)):
            return apart(*args, **(kwargs or {}))

    return plan


def make_plan(func: Any) -> Any:
    """A function(args, kwargs) that runs this operator: the shortest way that its schema and its entry allow."""
    facts = facts_of(func)
    if facts.plan is not None:
        return plan_by(facts.plan, func)
    if func.namespace not in ("aten", "prims"):
        return plan_by(run, func)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )
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


# ---- linear layers ---------------------------------------------------------------------------------------------------

_ORDINARY: Final = frozenset(
    {Tensor, Parameter}
)  # no tuple: these classes equal those of host tensors
_HOSTS: Final = frozenset({torch.Tensor, nn.Parameter})
_FLOATS: Final = {torch.float32, torch.float64, torch.float16, torch.bfloat16}.difference(SLOW)
_host: Final = torch._C._VariableFunctions
_addmm, _mm, _sum = _host.addmm, _host.mm, _host.sum
_engine: Final = torch.autograd.Variable._execution_engine
_C: Final = torch._C
_profiler, _forward_ad = torch.autograd.profiler, torch.autograd.forward_ad
_grad_on, _inference_on = torch.is_grad_enabled, torch.is_inference_mode_enabled
_anomaly_on: Final = torch.is_anomaly_enabled
_saving_hooks: Final = torch._C._autograd._top_saved_tensors_default_hooks
_keeps_graph: Final = torch._C._autograd._get_current_graph_task_keep_graph
_threshold_backward: Final = call_of(torch.ops.aten.threshold_backward.default)


def watched() -> bool:
    """Whether something may look at, or change, the operators that a function calls or what they save."""
    return bool(
        _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._are_functorch_transforms_active()
        or _C._get_tracing_state() is not None
        or _C._is_any_autocast_enabled()  # the CPU's would cast what is computed below
        or _profiler._is_profiler_enabled
        or torch.cuda.is_current_stream_capturing()
    )


def _references() -> int:
    """How many references a gradient has in `backward` that nobody keeps; versions of Python and torch differ."""
    counts: list[int] = []

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            counts.append(getrefcount(gradient))
            return gradient.clone()

    node: Any = Copied
    node._backward_cls.apply = Copied.backward
    apply = super(torch.autograd.Function, node).apply
    with torch.inference_mode(False), torch.enable_grad():
        apply(apply(torch.zeros((), device="cpu", requires_grad=True))).backward()
    return counts[-1]


_UNHELD: Final = _references()


class _Linear(torch.autograd.Function):
    """`addmm` of a transposed weight: one node, whose backward records what those of `addmm` and `t` would do.

    Where a gradient has a graph of its own, or is no ordinary tensor, backward calls those operators themselves.
    """

    @staticmethod
    def forward(ctx: Any, bias: Any, input: Any, weight: Any, made: Any) -> Any:
        on_bias, on_input, on_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(input if on_weight else None, weight if on_input else None)
        ctx.set_materialize_grads(False)
        ctx.of_leaf = weight.is_leaf
        ctx.leaves = (
            bias if on_bias and bias.is_leaf else None,
            None,
            weight if on_weight and ctx.of_leaf else None,
        )
        return made[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is None:
            return None, None, None, None
        on_bias, on_input, on_weight = needs = _needed(ctx)
        try:
            input, weight = ctx.saved_tensors
        except RuntimeError as error:
            raise (_of_transposed(error) if ctx.of_leaf else error) from None
        unusual = _grad_on() or _inference_on() or _C._is_any_autocast_enabled()
        if type(gradient) not in _ORDINARY or unusual:
            return (*_separately(needs, gradient, input, weight), None)
        place, g = gradient._block.place, gradient._inner
        if place.shut:
            raise shut(place)
        if place.late is not None:
            settle(place)
        task = _task_of(place)
        x = None if input is None else input._inner
        outs = _linear_gradients(
            g, None if weight is None else weight._inner, x, on_input, on_weight, on_bias
        )
        sizes = None if x is None else x.shape
        block, of_weight, of_bias = _note_linear(place, task.where, g.shape, weight, sizes, outs)
        of_input = None if block is None else fresh(outs[0], outs[0].shape, outs[0].dtype, block)
        if on_weight:
            before = _additions(ctx.leaves[0], of_bias, task) if on_bias else ()
            place.late = [task.where, *before, _TURNED]
            of_weight = _handed(ctx.leaves[2], of_weight, task)
        if on_bias:
            of_bias = _handed(ctx.leaves[0], of_bias, task)
        return of_bias, of_input, of_weight, None


_TURNED: Final = "aten.t.default"


def _linear_gradients(
    g: Any, weight: Any, x: Any, on_input: bool, on_weight: bool, on_bias: bool
) -> tuple[Any, ...]:
    """The gradients of input, weight and bias on the CPU, None where they are not needed, and when they were there.

    First all is computed, then all is recorded: in turns, each would drive the other from the processor's caches.
    """
    product = other = total = at_input = at_weight = at_bias = None
    if on_input:
        product, at_input = _mm(g, weight), perf_counter()
    if on_weight:
        other, at_weight = _mm(g.t(), x), perf_counter()
    if on_bias:
        total, at_bias = _sum(g, (0,)), perf_counter()
    return product, other, total, at_input, at_weight, at_bias


def _note_linear(
    place: Place, where: Any, shape: Any, weight: Any, sizes: Any, outs: Any
) -> tuple[Any, Any, Any]:
    """Record these gradients, but for the last view of the weight's; returns the block of the first and the others.

    `shape`: of the gradient that they were made from; `sizes`: of the layer's input.
    """
    product, other, total, at_input, at_weight, at_bias = outs
    note, memory, label = place.note, place.memory, place.label
    (code, offset), cast = where, thread_state.autocast
    block = of_weight = of_bias = None
    # Views: no bytes, nothing to do, no gradients.
    if product is not None:
        note((OPERATION, at_input, code, offset, _TURNED, label, 0, cast, 0, memory.live, None))
        block = _taken(
            product, place, "aten.mm.default", (shape, weight._inner.shape), where, at_input, 0
        )
    if other is not None:
        note((OPERATION, at_weight, code, offset, _TURNED, label, 0, cast, 0, memory.live, None))
        of_weight = bring(
            other, place, "aten.mm.default", (shape[::-1], sizes), where, at_weight, 0
        )
        note((OPERATION, at_weight, code, offset, _TURNED, label, 0, cast, 0, memory.live, None))
    if total is not None:
        nbytes, flat, dtype = total.nbytes, total.shape, total.dtype
        given = allocate(place, nbytes)
        live, work = (
            memory.live,
            (dtype, (1, shape[1]), shape, 0),
        )  # with the dimension that a view then drops
        note(
            (
                OPERATION,
                at_bias,
                code,
                offset,
                "aten.sum.dim_IntList",
                label,
                0,
                cast,
                nbytes,
                live,
                work,
            )
        )
        note((OPERATION, at_bias, code, offset, "aten.view.default", label, 0, cast, 0, live, None))
        of_bias = fresh(total, flat, dtype, given)
    return block, of_weight, of_bias


def _taken(out: Any, place: Place, name: str, given: Any, where: Any, at: float, mode: int) -> Any:
    """As `bring`, for a result that nobody sees; returns its block."""
    nbytes = out.nbytes
    block = allocate(place, nbytes)
    code, offset = where
    live, work = place.memory.live, (out.dtype, out.shape, *given)
    place.note(
        (
            OPERATION,
            at,
            code,
            offset,
            name,
            place.label,
            mode,
            thread_state.autocast,
            nbytes,
            live,
            work,
        )
    )
    return block


def _needed(ctx: Any) -> list[bool]:
    """Which gradients this backward pass is for: `torch.autograd.grad` may want a few."""
    needs = list(ctx.needs_input_grad[:3])
    wanted = thread_state.wanted
    if wanted is not None:
        for slot, leaf in enumerate(ctx.leaves):
            if needs[slot] and leaf is not None:
                needs[slot] = id(leaf) in wanted
            elif needs[slot]:
                needs[slot] = torch._C._will_engine_execute_node(ctx.next_functions[slot][0])
    return needs


class _Task:
    """One run of the autograd engine."""

    __slots__ = ("leaves", "number", "once", "where")

    def __init__(self, number: int) -> None:
        self.number = number
        self.leaves: set[int] = set()  # the ids of biases that it has a gradient for
        # Identities of leaves that may be handed their gradients. Only the run that was started with them has them.
        self.once: set[int] | None
        self.where: Any
        self.once, self.where = thread_state.once or (None, site())
        thread_state.once = None


def _task_of(place: Place) -> _Task:
    """The one that runs now."""
    number, known = _C._current_graph_task_id(), thread_state.task
    if known is None or known.number != number:
        started = thread_state.once is not None  # by `run_backward`
        known = thread_state.task = _Task(number)
        if not started:
            _engine.queue_callback(partial(_settled, place))
    return known  # type: ignore[no-any-return]


_accumulator: Final[Any] = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_grad_slot: Final[Any] = torch._C.TensorBase.grad
_get_grad, _set_grad = _grad_slot.__get__, _grad_slot.__set__


@torch.enable_grad()
def _holders() -> int:
    """How many references there are to the node of a leaf that nobody keeps; versions of torch differ."""
    graph: Any = torch.zeros((), device="cpu", requires_grad=True).clone()
    nodes = {0: graph.grad_fn.next_functions[0][0]}
    return getrefcount(nodes[0])


_UNKEPT: Final = _holders()


def _used_once(root: Any) -> set[int]:
    """Identities of the leaves under a node that get their gradients from one place, and that nobody watches."""
    nodes: dict[int, Any] = {identity(root): root}  # they are kept: an identity is given away again
    ends: dict[
        int, Any
    ] = {}  # of leaves: the leaf where it is known; None for those that are used more than once
    todo = [root]
    while todo:
        last = todo.pop()
        given: Any = ()
        if type(last) not in _RUN_NODES:
            edges = last.next_functions
        else:
            edges = _edges(last)
            given = () if last.run is None else revealed(last.run).given
        for slot, (node, _) in enumerate(edges):
            if node is None:
                continue
            key = identity(node)
            if type(node) is _accumulator:
                ends[key] = (
                    None if key in ends else given[slot] if given and slot else node.variable
                )
                nodes[key] = node
            elif key not in nodes:
                nodes[key] = node
                todo.append(node)
    node = edges = last = None
    found: set[int] = set()
    for key, leaf in ends.items():
        if (
            leaf is not None
            and getrefcount(nodes[key])
            <= _UNKEPT  # nobody holds the node, as those do who put hooks there
            and type(leaf) in _ORDINARY
            and leaf.requires_grad  # still
            and not leaf._backward_hooks
            and not leaf._post_accumulate_grad_hooks
        ):
            found.add(identity(leaf))
    return found


def _handed(leaf: Any, gradient: Any, task: _Task) -> Any:
    """Hand a leaf its gradient; returns what is left for autograd to do, which makes another tensor of it first."""
    once = task.once
    if once is None or leaf is None or identity(leaf) not in once or _get_grad(leaf) is not None:
        return gradient
    if not gradient._inner.is_contiguous():  # autograd makes a copy that is
        return gradient
    _set_grad(leaf, gradient)
    return None


def _additions(bias: Any, gradient: Any, task: _Task) -> list[Any]:
    """The operations that add the gradient of a bias to others before its weight's is turned, for `place.late`."""
    if bias is None:
        return []
    again = id(bias) in task.leaves  # the same layer was called twice
    task.leaves.add(id(bias))
    return ([None, gradient] if again else []) + ([] if bias.grad is None else [None])


def _settled(place: Place) -> None:
    """The end of a backward pass."""
    if place.late is not None and not thread_state.nested:
        settle(place)


def _separately(needs: list[bool], gradient: Any, input: Any, weight: Any) -> tuple[Any, Any, Any]:
    on_bias, on_input, on_weight = needs
    of_bias = of_input = of_weight = None
    if on_input:
        turned = weight.t()
        weight._block.place.gpu.ledger.rows.pop()  # recorded when the layer was called
        of_input = gradient.mm(turned.t())
    if on_weight:
        of_weight = gradient.t().mm(input).t()
    if on_bias:
        of_bias = gradient.sum((0,), True).view(gradient.shape[1])
    return of_bias, of_input, None if of_weight is None else of_weight.t()


_STALE: Final = re.compile(
    r"(.*inplace operation: \[\S+) \[(\d+), (\d+)\]\](, which .*)? (is at version .*)", re.DOTALL
)


def _of_transposed(error: RuntimeError) -> RuntimeError:
    """The same complaint about the transposed weight, which torch saves, under the name that this torch has for it."""
    stale = _STALE.fullmatch(str(error))
    if stale is None or stale[4]:
        return error
    with torch.enable_grad():
        host = torch.zeros(2, 2).requires_grad_()
        product = host.detach().requires_grad_().mm(host.t())
    host.detach().add_(1)
    try:
        _engine.run_backward((product,), (product.detach(),), False, False, (), True, True)
    except RuntimeError as other:
        known = _STALE.fullmatch(str(other))
        if known is not None:
            return RuntimeError(f"{stale[1]} [{stale[3]}, {stale[2]}]]{known[4]} {stale[5]}")
    return error


_node: Any = _Linear._backward_cls
_node.__name__ = "AddmmBackward0"
_node.apply = _Linear.backward  # without the questions that torch asks of a student's function
_linear_node: Final[Any] = super(torch.autograd.Function, _Linear).apply


def _training() -> bool:
    """Whether a graph is made, of which nothing sees more than its nodes."""
    return (
        _grad_on()
        and not watched()
        and not _anomaly_on()
        and _saving_hooks(True) is None
        and _forward_ad._current_level < 0
    )


class _Weights:
    """What is known of a weight and a bias as long as they have these tensors inside."""

    __slots__ = ("bias", "inputs", "outputs", "shape", "turned", "turned_shape", "weight")

    def __init__(self, weight: Any, bias: Any) -> None:
        self.weight, self.bias, self.shape = weight, bias, weight.shape
        usual = weight.dim() == 2 and bias.shape == self.shape[:1] and weight.is_contiguous()
        sizes: tuple[int, int] = self.shape if usual and weight.dtype in _FLOATS else (0, 0)
        self.outputs, self.inputs = sizes
        if self.outputs:
            self.turned = weight.t()
            self.turned_shape = self.turned.shape


def _usual(x: Any, place: Place, weight: Any, bias: Any) -> _Weights | None:
    """The weights, where `linear` of what is `x` inside is `addmm` and its gradients may be computed together."""
    if type(weight) not in _ORDINARY or type(bias) not in _ORDINARY:
        return None
    known = attributes(weight).get("_weights")
    if known is None or known.weight is not weight._inner or known.bias is not bias._inner:
        known = weight._weights = _Weights(weight._inner, bias._inner)
    sizes = x.shape
    if (
        len(sizes) == 2
        and sizes[0] > 1 < sizes[1]  # torch takes other ways for a single row or column
        and sizes[1] == known.inputs
        and 1 < known.outputs <= _SUSPICIOUS // sizes[0]
        and place is weight._block.place
        and place is bias._block.place
        and not place.shut
        and x.is_contiguous()
        # The gradient of a leaf is accumulated, and seen by hooks, before the weight's is turned.
        and not bias._backward_hooks
        and not bias._post_accumulate_grad_hooks
    ):
        return known  # type: ignore[no-any-return]
    return None


def _joined(input: Any, weight: Any, bias: Any) -> bool:
    """Whether the result is part of a graph, and its input no leaf, for the same reason."""
    return not input.is_leaf if input.requires_grad else weight.requires_grad or bias.requires_grad


def _product(x: Any, weights: _Weights) -> Any:
    """The layer on the CPU; None where that fails, since the operator raises what CUDA raises."""
    try:
        return _addmm(weights.bias, x, weights.turned)
    except Exception:
        return None


@torch.enable_grad()
def _reshaping() -> Any:
    """How torch gives a layer's result the shape of a sequence: another operator since torch 2.15."""
    one = torch.ones(1, 1, 1, device="cpu", requires_grad=True)
    node = type(torch.nn.functional.linear(one, one[0], one[0, 0]).grad_fn).__name__
    return torch.ops.aten._unsafe_view.default if node == "UnsafeViewBackward0" else Tensor.view


_reshaped: Final = _reshaping()


def _linear(original: Any) -> Any:
    """`torch.nn.functional.linear`: usual layers in training as one node; all others as torch does it."""

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        if (
            type(input) not in _ORDINARY
            or type(weight) not in _ORDINARY
            or bias is None
            or not _training()
        ):
            return original(input, weight, bias)
        place, x, shape = input._block.place, input._inner, weight._inner.shape
        sizes = x.shape
        if (
            len(sizes) == 3
            and len(shape) == 2
            and sizes[2] == shape[1]
            and 0 not in sizes
            and x.is_contiguous()
        ):
            flat = linear(input.view(-1, sizes[2]), weight, bias)  # as torch does
            return _reshaped(flat, (sizes[0], sizes[1], shape[0]))
        weights = _usual(x, place, weight, bias)
        out = _product(x, weights) if weights is not None and _joined(input, weight, bias) else None
        if out is None:
            return original(input, weight, bias)
        where = site()
        write("aten.t.default", place, 0, None, where)
        made = deliver(out, place, "aten.addmm.default", shape[:1], sizes, shape[::-1], where=where)
        return _linear_node(bias, input, weight, (made,))

    return linear


# ---- layers in sequence ----------------------------------------------------------------------------------------------

_call_impl: Final = nn.Module._call_impl.__code__
_KINDS: Final = (nn.Linear, nn.ReLU, nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.Flatten)
_forwards: Final = {kind: kind.forward for kind in _KINDS}
_in_functional: Final = attrgetter("relu", "conv2d", "batch_norm", "max_pool2d")
_functional: Final = _in_functional(nn.functional)
_hooks: Final = nn.modules.module


def _plain(module: Any, kind: Any) -> bool:
    """Whether a layer is one of torch's own, and nothing looks at what goes in or comes out."""
    if type(module) is not kind:
        return False
    own = module.__dict__
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or module._compiled_call_impl is not None
        or "forward" in own
        or kind.forward is not _forwards[kind]
    )


def _sequential(original: Any) -> Any:
    """`nn.Sequential.forward` in training: usual layers that follow each other have one node for all."""

    @wraps(original)  # torch.jit.script compiles what is wrapped
    def forward(self: Any, input: Any) -> Any:
        if type(input) not in _ORDINARY:
            return original(self, input)
        modules = [*self._modules.values()]
        if (
            _getframe(1).f_code is not _call_impl  # the pass around it is recorded
            or _forwards.keys().isdisjoint(map(type, modules))
            or type(self).__iter__ is not nn.Sequential.__iter__
            or not _training()
            or _in_functional(nn.functional) != _functional  # somebody else's
            or _hooks._has_any_global_hook()
        ):
            return original(self, input)
        where, place = site(), input._block.place
        if place.norms is None and nn.BatchNorm2d in map(type, modules):
            count, rows = len(place.gpu.ledger.rows), place.gpu.ledger.rows
            input = original(self, input)
            place.norms = _operators_of("BatchNorm2d", rows[count:])
            return input
        count = 0
        while count < len(modules):
            done = 0
            if type(input) in _ORDINARY and where[0] is not None:
                held, input = [input], None  # freed after the first layer
                done = _run(held, modules[count:], where)
                input = held.pop()
            if not done:
                input = modules[count](input)
            count += done or 1
        return input

    return forward


aten: Final = torch.ops.aten
_CHAIN_FLOATS: Final = (torch.float32, torch.float64)
# In elements: where several tensors are more than the processor's caches hold, and where they are much memory.
_SIZEABLE: Final = 1 << 15
_LARGE: Final = 1 << 21


class _Gone(NamedTuple):
    """What is recorded of a tensor on the CPU that is not kept."""

    shape: Any
    dtype: Any
    nbytes: int


class _Layer:
    """A layer of a run: what its backward calls, with which tensors and settings."""

    kind: Any
    operator: Any = None  # its backward; a linear layer has several
    settings: Any = ()
    shape: Any  # of its input
    needs: Sequence[bool]  # whether there are gradients of the input, the weight and the bias
    weight: Any = None
    bias: Any = None
    # What backward needs, as long as it may be called: the input, which nobody else sees but for that of the first
    # layer, with its block; other tensors on the device; and results that nobody sees, with their blocks.
    x: Any = None
    block: Any = None
    saved: tuple[Any, ...] = ()
    hidden: tuple[tuple[Any, Any], ...] = ()
    slot: int = 1  # of the weight, among what the node of a run is given
    # Until it is recorded:
    outs: Any
    buffers: Any = ()
    began: float
    at: float

    def arguments(self, gradient: Any, saved: Any, needs: Any) -> tuple[Any, ...]:
        """Those of `operator`, on the device or on the CPU."""
        kind = self.kind
        if kind is _RELU:
            return gradient, saved[0], 0
        if kind is _POOL:
            return gradient, saved[0], *self.settings, saved[1]
        if kind is _FLATTEN:
            return gradient, self.shape
        return gradient, *saved, *self.settings, needs

    def gradients(self, gradient: Any) -> tuple[Any, Any]:
        """The gradients on the CPU, that of the input first, and when they were there."""
        if self.kind is _LINEAR:
            weight = self.saved[0]._inner if self.saved else None
            return _linear_gradients(gradient, weight, self.x, *self.needs), None
        if self.kind is _RELU:
            return _threshold_backward(gradient, self.hidden[0][0], 0), perf_counter()
        if self.kind is _FLATTEN:
            return gradient.view(self.shape), perf_counter()
        # The CPU's own: what CUDA does in another way, it does in half precision or with other strides.
        if self.kind is _POOL:
            out = _pool_backward(gradient, self.x, *self.settings, self.hidden[0][0])
            return out, perf_counter()
        backward = _convolution_backward if self.kind is _CONV else _norm_backward
        inner = [*(each._inner for each in self.saved), *[inner for inner, _ in self.hidden]]
        return backward(gradient, self.x, *inner, *self.settings, self.needs), perf_counter()

    def note(
        self, place: Place, where: Any, shape: Any, block: Any, outs: Any, at: Any
    ) -> tuple[Any, Any, Any]:
        """Record these gradients. Returns the block of the input's, and the others.

        `shape` and `block`: those of the gradient that they were made from.
        """
        if self.kind is _LINEAR:
            return _note_linear(
                place, where, shape, self.saved[0] if self.saved else None, self.shape, outs
            )
        name = _OPERATORS[identity(self.operator)]
        if self.kind is _RELU:
            return _taken(outs, place, name, (shape, shape), where, at, 0), None, None
        if self.kind is _FLATTEN:
            write(name, place, 0, None, where, at)
            return block, None, None
        inside = [
            *(each._inner.shape for each in self.saved),
            *[one.shape for one, _ in self.hidden],
        ]
        shapes = shape, self.shape, *inside
        if type(outs) is not tuple:
            return _taken(outs, place, name, shapes, where, at, 0), None, None
        first, *blocks = _note_many(outs, place, name, shapes, where, at, 0, True)
        others = [
            None if block is None else fresh(out, out.shape, out.dtype, block)
            for out, block in zip(outs[1:], blocks, strict=True)
        ]
        return first, others[0], others[1]

    def release(self) -> None:
        """Drop the CPU's tensors that nobody sees; the device's stay until `clear`."""
        self.x = None
        self.hidden = tuple(
            (_Gone(one.shape, one.dtype, one.nbytes), block) for one, block in self.hidden
        )

    def copy(self, others: dict[int, Any]) -> _Layer:
        """A copy, which is cleared alone; `others` are used in place of parameters, by slot."""
        one = copy(self)
        for slot, name in enumerate(("weight", "bias"), self.slot):
            if slot in others and getattr(self, name) is not None:
                setattr(one, name, others[slot])
        if self.saved and self.slot in others:
            one.saved = others[self.slot], *self.saved[1:]
        return one

    def clear(self) -> None:
        """Drop what backward needs."""
        self.x = self.block = None
        self.saved, self.hidden = (), ()


_LINEAR, _RELU, _CONV, _NORM, _POOL, _FLATTEN = _KINDS
_FORGETFUL: Final = (_RELU, _FLATTEN)  # whose backward does not need the input
_BACKWARDS: Final = (
    aten.convolution_backward.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.native_batch_norm_backward.default,
    aten.threshold_backward.default,
    aten.view.default,
)
# By identity: an operator's own hash is a Python function.
_OPERATORS: Final = {identity(operator): str(operator) for operator in _BACKWARDS}
_convolution_backward, _pool_backward, _norm_backward = (
    operator._op for operator in _BACKWARDS[:3]
)
_pool: Final = call_of(aten.max_pool2d_with_indices.default)


class _Single(torch.autograd.Function):
    """A layer as a node of its own, as torch makes it, which computes on the CPU's tensors and then records."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any, layer: _Layer, made: Any) -> Any:
        ctx.save_for_backward(*made[1])
        ctx.set_materialize_grads(False)
        given = input, weight, bias
        ctx.layer = conceal(layer)
        ctx.leaves = [t if t is not None and t.requires_grad and t.is_leaf else None for t in given]
        return made[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is None:
            return None, None, None, None, None
        layer, needs, saved = revealed(ctx.layer), _needed(ctx), ctx.saved_tensors
        outs = None
        if needs == [*layer.needs] and _quick(gradient, layer) and not gradient._block.place.shut:
            outs = _single_gradients(layer, gradient)
        if outs is None:  # raises what CUDA raises
            if layer.kind is _FLATTEN:
                return gradient.reshape(layer.shape), None, None, None, None
            saved = *saved, *(wrap(*each) for each in layer.hidden if each[1] is not None)
            outs = layer.operator(*layer.arguments(gradient, saved, needs))
        else:
            task = thread_state.task
            outs = (
                outs[0],
                *[
                    _handed(leaf, out, task)
                    for leaf, out in zip(ctx.leaves[1:], outs[1:], strict=True)
                ],
            )
        if not _keeps_graph():
            layer.clear()
        if not isinstance(outs, tuple):
            outs = outs, None, None
        return *(out if need else None for out, need in zip(outs, needs, strict=True)), None, None


def _quick(gradient: Any, layer: _Layer) -> bool:
    """Whether the gradient of a layer's result is an ordinary one, and nobody looks at what becomes of it."""
    return (
        type(gradient) in _ORDINARY
        and not _grad_on()
        and not _inference_on()
        and not _C._is_any_autocast_enabled()
        and not _C._len_torch_dispatch_stack()
        and not torch.are_deterministic_algorithms_enabled()
        and (layer.kind is _LINEAR or gradient._inner.is_contiguous())
    )


def _single_gradients(layer: _Layer, gradient: Any) -> Any:
    """The gradients of a layer on the device; None where that fails: the layer itself raises it."""
    block, given = gradient._block, gradient._inner
    place = block.place
    try:
        outs, at = layer.gradients(given)
    except Exception:
        return None
    first, *others = layer.note(place, _task_of(place).where, given.shape, block, outs, at)
    out = outs[0] if type(outs) is tuple else outs
    return None if first is None else fresh(out, out.shape, out.dtype, first), *others


class _Layers:
    """Layers that follow each other, of which nobody sees more than the input of the first and the last result."""

    __slots__ = ("dtype", "given", "layers", "leaves", "place", "shape", "versions")

    def __init__(self, place: Place, layers: list[_Layer], shape: Any, dtype: Any) -> None:
        self.place, self.layers, self.shape, self.dtype = place, layers, shape, dtype
        self.versions: list[int] = []  # of the tensors that were saved, the last layer's first
        self.leaves: set[int] = set()  # identities of those that get gradients
        self.given: list[Any] = []  # None for the input, weights and biases

    def parameters(self) -> Iterator[Any]:
        """Those that get gradients."""
        for layer in self.layers:
            for leaf in (layer.weight, layer.bias):
                if leaf is not None and leaf.requires_grad:
                    yield leaf


class _InOne(torch.autograd.Function):
    """A run of layers as one node, which computes on the CPU's tensors and records what the node of each would.

    Where somebody looks into the graph, or backward is not the usual one, there is a node for each layer after all.
    """

    @staticmethod
    def forward(ctx: Any, input: Any, *given: Any) -> Any:
        result, run, saved = given[-1]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.run, ctx.last = conceal(run), None
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if ctx.run is None:
            return ctx.saved_tensors  # refuses
        run, given = revealed(ctx.run), [None] * len(ctx.needs_input_grad)
        if gradient is None:
            return (*given,)
        try:
            input = ctx.saved_tensors[-1]
        except RuntimeError as error:
            raise _stale(run, gradient, error) from None
        unheld = getrefcount(gradient) <= _UNHELD
        place, keeps = run.place, _keeps_graph()
        if place.shut:
            raise shut(place)
        task = _task_of(place)
        alone = task.once is not None and run.leaves <= task.once
        if not alone or ctx.last is not None or thread_state.wanted is not None or _grad_on():
            if (
                not alone
                and task.once is not None
                and (leaf := next(run.parameters(), None)) is not None
            ):
                leaf._apart = True  # the next time there is a node for each layer
            return _in_graph(ctx, run, input, gradient, given, unheld)
        if _get_grad(next(run.parameters())) is not None or not _quick(gradient, run.layers[-1]):
            held = [input]
            del input
            given[0] = _one_by_one(ctx, run, held, gradient, unheld)
            return (*given,)
        del input
        g, block, where = gradient._inner, gradient._block, task.where
        if not keeps:
            ctx.run = None
        todo = run.layers[:] if keeps else run.layers
        del run
        while todo:
            computed = []
            while (
                todo
            ):  # large ones are not worth the memory that computing the next ones before takes
                layer, shape = todo.pop(), g.shape
                outs, at = layer.gradients(g)
                several = type(outs) is tuple
                g = outs[0] if several else outs
                if (
                    not keeps and g is not None and g.numel() > _SIZEABLE
                ):  # what follows has its memory
                    layer.release()
                    gone = _Gone(g.shape, g.dtype, g.nbytes)
                    outs = (gone, *outs[1:]) if several else gone
                computed.append((layer, shape, outs, at))
                if g is None or g.numel() > _LARGE:
                    break
            for layer, shape, outs, at in computed:
                if place.late is not None:
                    settle(place)
                block, of_weight, of_bias = layer.note(place, where, shape, block, outs, at)
                if unheld:  # torch has freed it by now
                    del gradient._block
                    unheld = False
                if of_weight is not None:
                    given[layer.slot] = _handed(layer.weight, of_weight, task)
                    if layer.kind is _LINEAR:
                        place.late = [where, _TURNED]
                if of_bias is not None:
                    given[layer.slot + 1] = _handed(layer.bias, of_bias, task)
                if not keeps:
                    layer.clear()
        if block is not None:
            given[0] = fresh(g, g.shape, g.dtype, block)
        return (*given,)


def _stale(run: _Layers, gradient: Any, error: RuntimeError) -> RuntimeError:
    """The complaint about a tensor that was changed, or about a graph that is gone.

    As in torch, layers behind the one whose tensor it is have their gradients by then.
    """
    layers = run.layers
    versions = iter(run.versions)
    changed = next(
        (
            layer
            for layer in reversed(layers)
            for each in layer.saved
            if each._version != next(versions)
        ),
        None,
    )
    if changed is None and not any(layer.saved for layer in layers):
        return error
    behind = layers[
        1 + (0 if changed is None else layers.index(changed)) :
    ]  # else it is the input of the first
    if behind:
        first = behind[0]
        x = _host.empty(first.shape, dtype=run.dtype, device="cpu") if first.x is None else first.x
        leaf = fresh(x, first.shape, run.dtype, first.block or Block(run.place, 0)).requires_grad_()
        last = _unfolded(_Layers(run.place, behind, run.shape, run.dtype), leaf, False)[0]
        _pass_inside(last, gradient, False, False, ())
    return (
        _of_transposed(error)
        if changed is not None and changed.kind is _LINEAR and changed.weight.is_leaf
        else error
    )


def _node_of(layer: _Layer, input: Any, made: Any) -> Any:
    """The result of a layer, with a node of its own."""
    if layer.kind is _LINEAR:
        return _linear_node(layer.bias, input, layer.weight, (made,))
    saved = layer.saved if layer.x is None else (input, *layer.saved)
    if layer.hidden and layer.hidden[0][1] is None:
        saved = (made,)
    return _NODES[layer.kind](input, layer.weight, layer.bias, layer, (made, saved))


def _unfolded(
    run: _Layers,
    input: Any,
    for_good: bool,
    result: Any = None,
    others: dict[int, Any] | None = None,
) -> tuple[Any, Any]:
    """The result of these layers with a node for each; if nobody has it any more, another with the same graph.

    `for_good`: these nodes take the place of the one for all. `others` are used in place of parameters, by slot. Also
    returns the node of the first layer.
    """
    place, dtype, layers, first = run.place, run.dtype, run.layers, None
    with torch.inference_mode(False), torch.enable_grad():
        for number, layer in enumerate(layers, 1):
            after = layers[number] if number < len(layers) else None
            made, shape = result, run.shape if after is None else after.shape
            if after is not None and after.x is not None:
                made = fresh(after.x, shape, dtype, after.block)
            elif after is not None or made is None:  # freed since, and not needed
                made = fresh(
                    _host.empty(shape, dtype=dtype, device="cpu"), shape, dtype, Block(place, 0)
                )
            one = layer if for_good else layer.copy(others or {})
            input = _node_of(one, input, made)
            first = first or input.grad_fn
            if for_good and layer.kind is _LINEAR:
                layer.clear()
    return input, first


class _Alias(torch.autograd.Function):
    """The same tensor, which nobody else knows, as a part of the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return fresh(tensor._inner, tensor.shape, tensor.dtype, tensor._block)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


_alias: Final[Any] = _Alias.apply


def _in_graph(
    ctx: Any, run: _Layers, input: Any, gradient: Any, given: list[Any], unheld: bool
) -> tuple[Any, ...]:
    """The gradients that are wanted, by a graph with a node for each layer, which may become part of another."""
    keeps, wanted = _keeps_graph(), thread_state.wanted
    slots = {
        slot: leaf
        for layer in run.layers
        for slot, leaf in enumerate((layer.weight, layer.bias), layer.slot)
        if leaf is not None and leaf.requires_grad and (wanted is None or id(leaf) in wanted)
    }
    if ctx.needs_input_grad[0]:
        node = _edges(ctx)[0][0]
        if wanted is None or (
            id(input) in wanted if input.is_leaf else torch._C._will_engine_execute_node(node)
        ):
            slots[0] = input
    if not slots:
        return (*given,)
    hooks: list[tuple[Any, Any]] = []  # they are called when the gradients arrive, and not before
    if ctx.last is None:
        with torch.inference_mode(False), torch.enable_grad():
            slots = {slot: _alias(each) for slot, each in slots.items()}
        last = _unfolded(run, slots.get(0, input), False, None, slots)[0]
    else:
        last = revealed(ctx.last)
        hooks = [
            (each, each._backward_hooks)
            for each in slots.values()
            if each.is_leaf and each._backward_hooks
        ]
    del input
    if not keeps:
        ctx.run = None
        run.layers.clear()
    for leaf, _ in hooks:
        leaf._backward_hooks = None
    try:
        found = _pass_inside(last, gradient, unheld and not _grad_on(), keeps, (*slots.values(),))
    finally:
        for leaf, own in hooks:
            leaf._backward_hooks = own
    for slot, one in zip(slots, found, strict=True):
        given[slot] = one
    return (*given,)


def _one_by_one(ctx: Any, run: _Layers, held: list[Any], gradient: Any, unheld: bool) -> Any:
    """The gradient of the input, by a graph with a node for each layer; leaves get theirs from their own nodes."""
    keeps, input = _keeps_graph(), held.pop()
    leaf = wrap(input._inner, input._block)
    if input.requires_grad:
        leaf.requires_grad_()
    del input
    last, first = _unfolded(run, leaf, not keeps)
    if not keeps:
        ctx.run = None
        ctx.maybe_clear_saved_tensors()  # torch has freed the input after the first layer
        first.register_hook(partial(_let_go, leaf))
    _pass_inside(last, gradient, unheld, keeps, ())
    return _get_grad(leaf)


def _pass_inside(
    last: Any, gradient: Any, unheld: bool, keeps: bool, inputs: tuple[Any, ...]
) -> Any:
    """A backward pass inside a node, for these inputs or for all leaves.

    What it leaves to be recorded is recorded after that node. `unheld`: nobody else holds the gradient.
    """
    if unheld:  # torch has freed it after the last layer
        held, gradient = gradient, wrap(gradient._inner, gradient._block)
        del held._block
        last.grad_fn.register_hook(partial(_let_go, gradient))
    task, thread_state.nested = thread_state.task, thread_state.nested + 1
    try:
        return _engine.run_backward(
            (last,), (gradient,), keeps, _grad_on(), inputs, True, not inputs
        )
    finally:
        thread_state.task, thread_state.nested = task, thread_state.nested - 1


def _let_go(tensor: Any, *gradients: Any) -> None:
    del tensor._block


_edges: Final = vars(torch._C._FunctionBase)["next_functions"].__get__


def _looked_at(node: Any) -> Any:
    """`next_functions` of the node of a run: those of the last layer's, which is made with the others then."""
    if node.last is None and node.run is not None:
        try:
            node.last = conceal(_unfolded(revealed(node.run), node.saved_tensors[-1], False)[0])
        except RuntimeError:  # they are freed, or were changed
            return _edges(node)
    return _edges(node) if node.last is None else revealed(node.last).grad_fn.next_functions


_RUN_NODES: Final[set[Any]] = set()
_NAMES: Final = {
    nn.Linear: "AddmmBackward0",
    nn.Conv2d: "ConvolutionBackward0",
    nn.BatchNorm2d: "NativeBatchNormBackward0",
    nn.ReLU: "ReluBackward0",
    nn.MaxPool2d: "MaxPool2DWithIndicesBackward0",
    nn.Flatten: "ViewBackward0",
}


def _named(base: Any, name: str) -> Any:
    """A node of this kind with the name that torch has for it."""
    kind: Any = type(base)
    made = kind(name, (base,), {})
    node = made._backward_cls
    node.__name__ = node.__qualname__ = name
    node.__module__, node.apply = "builtins", base.backward  # as torch shows its own
    if base is _InOne:
        node.next_functions = property(_looked_at)
        _RUN_NODES.add(node)
    return super(torch.autograd.Function, made).apply


_NODES: Final = {
    kind: _named(_Single, name) for kind, name in _NAMES.items() if kind is not nn.Linear
}
_RUNS: Final = {kind: _named(_InOne, name) for kind, name in _NAMES.items()}
_BATCH_NORM: Final = {
    "aten.add_.Tensor",
    "aten.empty.memory_format",
    "aten.native_batch_norm.default",
}


def _operators_of(layer: str, rows: Any) -> list[str]:
    """What the first layer of this name has called."""
    names: list[str] = []
    inside = False
    for row in rows:
        inside = (inside or (row[0] == FORWARD and row[4] == layer)) and row[0] != END
        if inside and row[0] == OPERATION:
            names.append(row[4])
        elif names:
            break
    return names


def _parameters(module: Any, x: Any, place: Place) -> Any:
    """Weight and bias, all of whose gradients are wanted; None if they are not of the usual kind."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    for each in (weight, bias):
        if each is None:
            continue
        if type(each) not in _ORDINARY or each._block.place is not place or not each.requires_grad:
            return None
        if each._inner.dtype is not x.dtype or not each._inner.is_contiguous():
            return None
    return None if weight is None else (weight, bias)


def _compute(module: Any, x: Any, place: Place, needed: bool, fresh: bool) -> _Layer | None:
    """A layer with its results; None where it is not a usual one.

    `needed`: there will be a gradient of `x`. `fresh`: nothing else needs `x`.
    """
    layer, kind = _Layer(), type(module)
    layer.kind, layer.shape, layer.began = kind, x.shape, perf_counter()
    if kind is _LINEAR:
        own = module.__dict__["_parameters"]
        weight, bias = layer.weight, layer.bias = own["weight"], own["bias"]
        weights = _usual(x, place, weight, bias)
        if weights is None:
            return None
        layer.outs = (_addmm(weights.bias, x, weights.turned),)
        layer.at = perf_counter()
        on_weight = weight.requires_grad
        layer.needs, layer.settings = (needed, on_weight, bias.requires_grad), weights
        if on_weight:
            layer.x = x
        if needed:
            layer.saved = (weight,)
        return layer
    layer.needs = (needed, False, False)
    if kind is _RELU:
        layer.outs = (x.relu_() if fresh else _host.relu(x),)
        layer.operator, layer.at = aten.threshold_backward.default, perf_counter()
        return layer
    if kind is _FLATTEN:
        if module.start_dim != 1 or module.end_dim != -1 or x.dim() < 3:
            return None
        layer.outs = (x.view(x.shape[0], -1),)
        layer.operator, layer.at = aten.view.default, perf_counter()
        return layer
    if x.dim() != 4:
        return None
    layer.x = x
    if kind is _POOL:
        sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
        layer.settings = (
            *((size, size) if type(size) is int else size for size in sizes),
            module.ceil_mode,
        )
        if module.return_indices:
            return None
        layer.outs, layer.operator = (
            _pool(x, *layer.settings),
            aten.max_pool2d_with_indices_backward.default,
        )
        layer.at = perf_counter()
        return layer
    given = _parameters(module, x, place)
    if given is None:
        return None
    weight, bias = layer.weight, layer.bias = given
    layer.needs, layer.saved = (needed, True, bias is not None), (weight,)
    if kind is _CONV:
        channels, inside = weight._inner.shape[:2]
        if (
            module.padding_mode != "zeros"
            or type(module.padding) is str
            or x.shape[1] != inside * module.groups
        ):
            return None
        if x.numel() // x.shape[1] * channels > _SUSPICIOUS:
            return None
        settings = module.stride, module.padding, module.dilation, False, (0, 0), module.groups
        added = None if bias is None else bias._inner
        layer.outs, layer.operator = (
            (_host.convolution(x, weight._inner, added, *settings).contiguous(),),
            aten.convolution_backward.default,
        )
        layer.settings = [0 if bias is None else channels], *settings
        layer.at = perf_counter()
        return layer
    buffers = [
        module._buffers.get(name) for name in ("running_mean", "running_var", "num_batches_tracked")
    ]
    if (
        any(type(each) not in _ORDINARY or each._block.place is not place for each in buffers)
        or bias is None
    ):
        return None
    if not module.training or module.momentum is None or x.shape[1] != bias._inner.shape[0]:
        return None
    if place.norms is None or {*place.norms} != _BATCH_NORM or x.numel() == x.shape[1]:
        return None
    if any(each._inner.dtype is not x.dtype for each in buffers[:2]):
        return None
    running = buffers[0]._inner, buffers[1]._inner
    layer.outs = _host.native_batch_norm(
        x, weight._inner, bias._inner, *running, True, module.momentum, module.eps
    )
    layer.operator, layer.settings = aten.native_batch_norm_backward.default, (True, module.eps)
    layer.buffers, layer.at = buffers, perf_counter()
    return layer


def _run(held: list[Any], modules: list[Any], where: Any) -> int:
    """Run as many layers as are usual ones, and record them; `held` has their input, then their result.

    Returns how many there are. First all that is computed, then all that is recorded, as in backward.
    """
    input = held[0]
    place, x, needed = input._block.place, input._inner, input.requires_grad
    if place.shut or x.dtype not in _FLOATS:
        return 0
    wide = x.dtype in _CHAIN_FLOATS and not torch.are_deterministic_algorithms_enabled()
    layers: list[_Layer] = []
    room = place.memory.allowed - place.memory.live
    kind: Any = None
    for number, module in enumerate(modules, 1):
        before, kind = kind, type(module)
        if (
            kind not in _RUNS
            or not _plain(module, kind)
            or not 0 < x.numel() <= _SUSPICIOUS
            or not x.is_contiguous()
        ):
            break
        if kind is _LINEAR:
            weight, bias = map(module._parameters.get, ("weight", "bias"))
            if weight is None or bias is None or not (layers or _joined(input, weight, bias)):
                break
        elif kind is _RELU:
            if module.inplace or not (needed and (wide or layers)):
                break
        elif not wide or not (needed or kind is _CONV or kind is _NORM):
            break
        # What follows neither writes into the result nor asks whether it is a view.
        if kind is _FLATTEN and (number == len(modules) or not _plain(modules[number], _LINEAR)):
            break
        try:
            room -= 4 * x.nbytes * _growth(module, x)
            if room < 0:
                break
            layer = _compute(
                module, x, place, needed, before is not None and before not in _FORGETFUL
            )
        except Exception:  # the layer itself raises it
            break
        if layer is None:
            break
        layers.append(layer)
        x, needed = layer.outs[0], True
        if layer.x is None and len(layers) == 1:
            break  # the input is freed after this layer
    if layers:
        held[0] = _noted(input, place, layers, modules, where)
    return len(layers)


def _growth(module: Any, x: Any) -> int:
    """How many times as large as `x` the result of a layer is, at most."""
    kind, after, before = type(module), 1, 1
    if kind is _LINEAR:
        after, before = module._parameters["weight"].shape[0], x.shape[-1]
    elif kind is _CONV:
        after, before = module.out_channels, x.shape[1]
    return -(-after // before)


def _noted(input: Any, place: Place, layers: list[_Layer], modules: list[Any], where: Any) -> Any:
    """Record layers that have been computed; returns their result on the device, with its graph."""
    if place.late is not None:
        settle(place)
    note, rows, block = place.note, place.gpu.ledger.rows, input._block
    memory, label, cast = place.memory, place.label, thread_state.autocast
    code, offset = where
    first = True
    for layer, module in zip(layers, modules, strict=False):
        kind, index, began, at, out = layer.kind, len(rows), layer.began, layer.at, layer.outs[0]
        if first:
            first = False
        elif layer.x is not None:
            layer.block = block
        note((FORWARD, began, code, offset, kind.__name__, module.training, GRAD, ()))
        if kind is _LINEAR:
            weights = layer.settings
            note((OPERATION, began, code, offset, _TURNED, label, GRAD, cast, 0, memory.live, None))
            nbytes, work = (
                out.nbytes,
                (out.dtype, out.shape, weights.bias.shape, layer.shape, weights.turned_shape),
            )
            block = allocate(place, nbytes)
            note(
                (OPERATION, at, code, offset, _ADDMM, label, GRAD, cast, nbytes, memory.live, work)
            )
        elif kind is _RELU:
            block = _taken(out, place, "aten.relu.default", (), where, at, GRAD)
            layer.hidden = ((out, block),)
        else:
            block = _note_layer(layer, block, place, where)
        note((END, at, None, None, index))
        del layer.outs
    shape, dtype = out.shape, out.dtype
    result = fresh(out, shape, dtype, block)
    if kind is _RELU:
        layer.hidden = ((out, None),)  # torch has the result on the device
        if len(layers) > 1:  # a node of its own, which holds that
            run = _Layers(place, layers[:-1], shape, dtype)
            nothing = fresh(out, shape, dtype, Block(place, 0))
            return _node_of(layer, _with_graph(run, input, nothing), result)
    return _with_graph(_Layers(place, layers, shape, dtype), input, result)


_ADDMM: Final = "aten.addmm.default"


def _with_graph(run: _Layers, input: Any, result: Any) -> Any:
    """The result of a run as part of a graph: with one node, if nothing keeps leaves from getting their gradients."""
    layers, given, saved, count = run.layers, [input], [input], 0
    leaf = None
    for layer in layers:
        layer.slot = len(given)
        weight, bias = layer.weight, layer.bias
        if weight is not None:
            given.append(weight)
            if layer.needs[1]:
                run.leaves.add(identity(weight))
                leaf, count = weight if leaf is None else leaf, count + 1
        if bias is not None:
            given.append(bias)
            if layer.needs[2]:
                run.leaves.add(identity(bias))
                count += 1
        saved += reversed(layer.saved)
    if (
        len(layers) < 2
        or len(run.leaves) < count
        or leaf is None
        # Others of the same model are used alike. That all are alone is known when backward begins.
        or _get_grad(leaf) is not None
        or leaf._backward_hooks
        or leaf._post_accumulate_grad_hooks
        or "_apart" in attributes(leaf)
    ):
        return _unfolded(run, input, True, result)[0]
    saved.reverse()
    run.given = [None, *given[1:]]
    run.versions = [each._version for each in saved]
    return _RUNS[layers[-1].kind](*given, (result, run, saved))


def _note_layer(layer: _Layer, block: Any, place: Place, where: Any) -> Any:
    """Record a layer; `block`: that of its input. Returns the block of its result."""
    kind, outs, at, shape = layer.kind, layer.outs, layer.at, layer.shape
    if kind is _FLATTEN:
        write("aten.view.default", place, 0, None, where, at)
        return block
    if kind is _CONV:
        shapes = (
            shape,
            *[each._inner.shape for each in (layer.weight, layer.bias) if each is not None],
        )
        return _taken(outs[0], place, "aten.convolution.default", shapes, where, at, GRAD)
    if kind is _POOL:
        name = "aten.max_pool2d_with_indices.default"
        block, other = _note_many(outs, place, name, (shape,), where, at, GRAD)
        layer.hidden = ((outs[1], other),)
        return block
    mean, variance, count = layer.buffers
    for name in place.norms or ():
        if name == "aten.add_.Tensor":
            count._inner.add_(1)
            _C._increment_version([count])
            write(name, place, 0, work_of(count._inner, (count._inner,)), where, at)
        elif name == "aten.empty.memory_format":
            write(name, place, 0, None, where, at)
        else:
            shapes = (
                shape,
                *[each._inner.shape for each in (layer.weight, layer.bias, mean, variance)],
            )
            block, *blocks = _note_many(outs, place, name, shapes, where, at, GRAD)
    layer.saved = layer.weight, mean, variance
    layer.hidden = tuple(zip(outs[1:], blocks, strict=True))
    return block


# ---- cross entropy ---------------------------------------------------------------------------------------------------

_logs_of, _logs_backward = (
    rules_of(op.default).call for op in (aten._log_softmax, aten._log_softmax_backward_data)
)
_nll_of, _nll_backward = (
    rules_of(op.default).call for op in (aten.nll_loss_forward, aten.nll_loss_backward)
)


class _Kept:
    """What the backward of a cross entropy needs on the CPU, and what it keeps alive on the device."""

    __slots__ = ("logs", "settings", "target", "total", "version", "weights")

    def __init__(
        self, logs: Any, target: Any, total: Any, weights: Any, settings: tuple[int, int]
    ) -> None:
        self.logs, self.target, self.total, self.weights, self.settings = (
            logs,
            target,
            total,
            weights,
            settings,
        )
        self.version = target._version


class _CrossEntropy(torch.autograd.Function):
    """`log_softmax` and `nll_loss` as one node. The logarithms are a result, too, for second derivatives alone."""

    @staticmethod
    def forward(ctx: Any, input: Any, made: Any) -> Any:
        loss, logs, kept = made
        ctx.kept = conceal(kept)
        ctx.save_for_backward(logs)
        ctx.set_materialize_grads(False)
        return loss, logs

    @staticmethod
    def backward(ctx: Any, gradient: Any, of_logs: Any) -> Any:
        if ctx.kept is None:
            return ctx.saved_tensors  # refuses
        kept = revealed(ctx.kept)
        if gradient is not None and kept.target._version != kept.version:
            raise _stale_target(kept)
        unusual = (
            _grad_on()
            or _inference_on()
            or _C._is_any_autocast_enabled()
            or _C._len_torch_dispatch_stack()
        )
        if of_logs is not None or type(gradient) not in _ORDINARY or unusual:
            return _separate_losses(ctx.saved_tensors[0], kept, gradient, of_logs), None
        place, g, logs, (reduction, ignored) = (
            gradient._block.place,
            gradient._inner,
            kept.logs,
            kept.settings,
        )
        if place.shut:
            raise shut(place)
        if place.late is not None:
            settle(place)
        target = kept.target._inner
        first, at = (
            _nll_backward(g, logs, target, None, reduction, ignored, kept.total),
            perf_counter(),
        )
        second, later = _logs_backward(first, logs, 1, logs.dtype), perf_counter()
        shape, where, nbytes = first.shape, _task_of(place).where, first.nbytes
        block, label, cast = allocate(place, nbytes), place.label, thread_state.autocast
        work = first.dtype, shape, g.shape, logs.shape, target.shape, kept.total.shape
        name = "aten.nll_loss_backward.default"
        place.note((OPERATION, at, *where, name, label, 0, cast, nbytes, place.memory.live, work))
        # torch has freed these by now.
        if getrefcount(gradient) <= _UNHELD:
            del gradient._block
        if not _keeps_graph():
            ctx.kept = kept = None
        name = "aten._log_softmax_backward_data.default"
        result = bring(second, place, name, (shape, shape), where, later, 0)
        del block
        return result, None


def _separate_losses(logs: Any, kept: _Kept, gradient: Any, of_logs: Any) -> Any:
    if gradient is not None:
        total = wrap(kept.total, kept.weights)
        behind = aten.nll_loss_backward.default(
            gradient, logs, kept.target, None, *kept.settings, total
        )
        of_logs = behind if of_logs is None else behind + of_logs
    return (
        None
        if of_logs is None
        else aten._log_softmax_backward_data.default(of_logs, logs, 1, logs.dtype)
    )


def _stale_target(kept: _Kept) -> RuntimeError:
    """What torch says where the targets were written to; versions differ in the words around."""
    with torch.enable_grad():
        target = torch.zeros(2, dtype=torch.int64)
        loss = torch.nn.functional.nll_loss(torch.zeros(2, 2, requires_grad=True), target)
    target.add_(0)
    try:
        _engine.run_backward((loss,), (torch.ones(()),), False, False, (), True, True)
    except RuntimeError as error:
        said = str(error).replace(
            "torch.LongTensor [2]", f"torch.cuda.LongTensor [{kept.target.shape[0]}]"
        )
        said = said.replace("is at version 1", f"is at version {kept.target._version}")
        return RuntimeError(said.replace("expected version 0", f"expected version {kept.version}"))
    return RuntimeError("one of the variables needed for gradient computation has been modified")


_node = _CrossEntropy._backward_cls
_node.__name__, _node.apply = "NllLossBackward0", _CrossEntropy.backward
_loss_node: Final[Any] = super(torch.autograd.Function, _CrossEntropy).apply


def cross_entropy(input: Any, target: Any, reduction: int, ignored: int) -> Any:
    """The loss of rows of logits with a class for each, in training; None where it is another."""
    if (
        type(input) not in _ORDINARY
        or type(target) not in _ORDINARY
        or not input.requires_grad
        or not _training()
    ):
        return None
    place, x, classes = input._block.place, input._inner, target._inner
    sizes = x.shape
    if (
        len(sizes) != 2
        or classes.dtype is not torch.int64
        or classes.shape != sizes[:1]
        or x.dtype not in _CHAIN_FLOATS
        or 0 in sizes
        or not x.is_contiguous()
        or place is not target._block.place
        or place.shut
    ):
        return None
    try:
        logs, at = _logs_of(x, 1, False), perf_counter()
        out, total = _nll_of(logs, classes, None, reduction, ignored)
    except Exception:
        return None  # the operators raise what CUDA raises
    later, where = perf_counter(), site()
    kept = bring(logs, place, "aten._log_softmax.default", (sizes,), where, at, GRAD)
    shape, dtype, nbytes, more = out.shape, out.dtype, out.nbytes, total.nbytes
    block, weights = allocate(place, nbytes), allocate(place, more)
    (code, offset), cast, work = where, thread_state.autocast, (dtype, shape, sizes, sizes[:1])
    name, live = "aten.nll_loss_forward.default", place.memory.live
    place.note(
        (OPERATION, later, code, offset, name, place.label, GRAD, cast, nbytes + more, live, work)
    )
    made = (
        fresh(out, shape, dtype, block),
        kept,
        _Kept(logs, target, total, weights, (reduction, ignored)),
    )
    return _loss_node(input, made)[0]


# ---- self-attention --------------------------------------------------------------------------------------------------

_host_attention: Final[Any] = vars(torch._C._nn)["scaled_dot_product_attention"]
_dispatch: Final = Tensor.__torch_dispatch__
_functions: Final[Any] = nn.functional
_in_projection: Final = getattr(_functions, "_in_projection_packed", None)
_gradients_of: Final = torch.autograd.grad
_VIEW, _TURN, _COPY, _UNSAFE = (
    f"aten.{name}"
    for name in ("view.default", "transpose.int", "clone.default", "_unsafe_view.default")
)
_PACKED: Final = ("aten.unsqueeze.default", _TURN, "aten.squeeze.dim")
_ATTENTION: Final = "aten._scaled_dot_product_efficient_attention"
# What torch calls between the two linear layers, before the view that makes rows of the result.
_BETWEEN: Final = [
    _VIEW, *_PACKED, _COPY, *["aten.select.int"] * 3, *[_VIEW, _TURN] * 3, *[_VIEW] * 3, f"{_ATTENTION}.default",
    "aten.permute.default", _COPY,
]  # fmt: skip


class _Heads:
    """What the backward of attention needs on the CPU, and what it keeps alive on the device."""

    __slots__ = ("blocks", "inner", "out", "place", "shapes")

    def __init__(self, place: Place, inner: Any, out: Any, shapes: tuple[torch.Size, ...]) -> None:
        self.place, self.inner, self.out = place, inner, out
        self.shapes = shapes  # one head after another, heads side by side, one layer's, all three's, these turned
        self.blocks: list[Any] = []


class _SelfAttention(torch.autograd.Function):
    """All between the two linear layers as one node, whose backward records what the nodes of each step would do."""

    @staticmethod
    def forward(ctx: Any, packed: Any, made: Any) -> Any:
        result, heads = made
        ctx.heads = conceal(heads)
        ctx.save_for_backward(wrap(torch.empty(0), allocate(heads.place, 0)))
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is None:
            return None, None
        if ctx.heads is None:
            return ctx.saved_tensors  # refuses
        heads = revealed(ctx.heads)
        place = heads.place
        if place.shut:
            raise shut(place)
        unusual = (
            _grad_on()
            or _inference_on()
            or _C._is_any_autocast_enabled()
            or _C._len_torch_dispatch_stack()
        )
        unusual = (
            unusual or Tensor.__torch_dispatch__ is not _dispatch
        )  # which changes streams as it goes
        if type(gradient) not in _ORDINARY or unusual or not gradient._inner.is_contiguous():
            unheld = type(gradient) in _ORDINARY and getrefcount(gradient) <= _UNHELD
            if not _keeps_graph():
                ctx.heads = None
            return _separate_heads(heads, gradient, unheld), None
        if place.late is not None:
            settle(place)
        each, beside, layer, three, turned = heads.shapes
        g = gradient._inner.view(turned).permute(1, 2, 0, 3)
        keeps = _keeps_graph()
        found, at = _gradients_of(heads.out, heads.inner, g, retain_graph=keeps), perf_counter()
        length, batch, _, size = sizes = three[1], three[2], 3, three[3]
        final = torch.empty(sizes, dtype=g.dtype, device="cpu")
        for slot, one in enumerate(found):
            final[:, :, slot].view(turned).copy_(one.permute(2, 0, 1, 3))
        final = final.add_(0.0).view(length, batch, 3 * size)  # as zeros of the others are added
        later, nbytes, dtype = perf_counter(), g.nbytes, g.dtype
        code, offset = _task_of(place).where
        note, memory, label, cast = place.note, place.memory, place.label, thread_state.autocast

        def row(name: str, nbytes: int = 0, *work: Any, at: float = later) -> None:
            done = (dtype, *work) if work else None
            note((OPERATION, at, code, offset, name, label, 0, cast, nbytes, memory.live, done))

        def made(name: str, nbytes: int, *work: Any) -> Any:
            block = allocate(place, nbytes)
            row(name, nbytes, *work)
            return block

        row(_VIEW, at=at)
        row("aten.permute.default", at=at)
        blocks: list[Any] = [allocate(place, nbytes) for _ in found]
        row(f"{_ATTENTION}_backward.default", 3 * nbytes, None, each, each, each, at=at)
        # torch has freed these by now.
        if getrefcount(gradient) <= _UNHELD:
            del gradient._block
        if not keeps:
            ctx.heads = heads = None
        for slot in range(3):
            copied = made(_COPY, nbytes, each, each)
            row(_UNSAFE)
            blocks[slot] = copied
        for slot in range(3):
            row(_TURN)
            copied = made(_COPY, nbytes, beside, beside)
            row(_UNSAFE)
            blocks[slot] = copied
        del copied
        whole, add, select = 3 * nbytes, "aten.add.Tensor", "aten.select_backward.default"
        total = made(select, whole, three, layer, 0)
        for slot in (1, 2):
            blocks[slot - 1] = None
            other = made(select, whole, three, layer, 0)
            blocks[slot] = None
            total = made(add, whole, three, three, three)
            del other
        for name in _PACKED:
            row(name)
        block = made(_COPY, whole, sizes, sizes)
        row(_UNSAFE)
        del total
        return fresh(final, final.shape, dtype, block), None


def _separate_heads(heads: _Heads, gradient: Any, unheld: bool) -> Any:
    """The same by operators of the device, each with its own gradient."""
    _, beside, layer, three, turned = heads.shapes
    place, flat = heads.place, (beside[1], beside[0], beside[2])
    over = gradient.reshape(turned).permute(1, 2, 0, 3)
    found = _gradients_of(heads.out, heads.inner, over._inner, retain_graph=True)
    plain = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in found]
    blocks = [allocate(place, one.nbytes) for one in plain]
    work = work_of(None, heads.inner)
    write(f"{_ATTENTION}_backward.default", place, sum(one.nbytes for one in plain), work)
    given = [wrap(one, block) for one, block in zip(plain, blocks, strict=True)]
    if _grad_on():
        text = "derivative for aten::_scaled_dot_product_efficient_attention_backward is not implemented"
        given = [
            *_C._functions.DelayedError(text.encode(), 3)(*(one.requires_grad_() for one in given))
        ]
    del blocks, plain, over
    if unheld:  # torch has freed it by now, and what its own graph keeps
        del gradient._block
        gradient.detach_()
    if not _keeps_graph():
        heads.blocks.clear()
    for slot in (2, 1, 0):
        given[slot] = given[slot].reshape(flat)
    for slot in (2, 1, 0):
        given[slot] = given[slot].transpose(0, 1).reshape(layer)
    total: Any = aten.select_backward.default(given.pop(), three, 0, 2)
    for slot in (1, 0):
        total = total + aten.select_backward.default(given.pop(), three, 0, slot)
    return total.unsqueeze(-2).transpose(0, -2).squeeze(0).reshape(three[1], three[2], 3 * three[3])


class _SelfAttentionViewed(_SelfAttention):
    """The same where torch copies the result first and then makes rows of it. The gradients are the same operators."""


for _kind, _name in (
    (_SelfAttention, "UnsafeViewBackward0"),
    (_SelfAttentionViewed, "ViewBackward0"),
):
    _node = _kind._backward_cls
    _node.__name__, _node.apply = _name, _SelfAttention.backward
# By the operator that makes rows: that of `reshape`, and of `contiguous().view`, as in torch 2.11.
_ATTENTION_NODES: Final = {
    _UNSAFE: super(torch.autograd.Function, _SelfAttention).apply,
    _VIEW: super(torch.autograd.Function, _SelfAttentionViewed).apply,
}


def _attend(packed: Any, count: int, dropout: float, causal: bool) -> Any:
    """Attention of what the first linear layer gives, with this many heads, as rows for the last."""
    place, x = packed._block.place, packed._inner
    _, last = place.heads
    length, batch, size = x.shape[0], x.shape[1], x.shape[2] // 3
    wide = size // count
    three = x.view(length, batch, 3, size).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    at = perf_counter()
    beside = three.view(3, length, batch * count, wide).transpose(1, 2)
    inner = [
        one.view(batch, count, length, wide).detach().requires_grad_() for one in beside.unbind(0)
    ]
    out = _host_attention(*inner, None, dropout, causal)
    plain = out.detach().transpose(1, 2).contiguous().transpose(1, 2)
    middle = perf_counter()
    turned = plain.permute(2, 0, 1, 3)
    rows = turned.reshape(batch * length, size)
    later, nbytes, dtype, each = perf_counter(), plain.nbytes, plain.dtype, plain.shape
    if place.late is not None:
        settle(place)
    code, offset = site()
    note, memory, label, cast = place.note, place.memory, place.label, thread_state.autocast

    def row(name: str, at: float) -> None:
        note((OPERATION, at, code, offset, name, label, GRAD, cast, 0, memory.live, None))

    for name in (_VIEW, *_PACKED):
        row(name, at)
    heads = _Heads(
        place,
        inner,
        out,
        (each, beside.shape[2:0:-1] + beside.shape[3:], three.shape[1:], three.shape, turned.shape),
    )
    block = allocate(place, three.nbytes)
    work: Any = (dtype, three.shape, three.shape)
    note((OPERATION, at, code, offset, _COPY, label, GRAD, cast, three.nbytes, memory.live, work))
    base = packed._base
    del packed._block  # torch has freed it by now
    if base is not None:
        del base._block
    for name in _BETWEEN[5:17]:
        row(name, at)
    held = allocate(place, nbytes)
    work = dtype, each, each, each, each
    note((OPERATION, middle, code, offset, _BETWEEN[17], label, 0, cast, nbytes, memory.live, work))
    # The kernel keeps sums of exponentials, padded to 32 queries.
    heads.blocks += block, held, allocate(place, batch * count * -(-length // 32) * 32 * 4)
    row("aten.permute.default", middle)
    block = allocate(place, nbytes)
    work = dtype, turned.shape, turned.shape
    note((OPERATION, later, code, offset, _COPY, label, GRAD, cast, nbytes, memory.live, work))
    row(last, later)
    node: Any = _ATTENTION_NODES[last]
    return node(packed, (fresh(rows, rows.shape, dtype, block), heads))


_ATTENTION_DEFAULTS: Final[dict[str, Any]] = {
    "training": True, "key_padding_mask": None, "need_weights": True, "attn_mask": None,
    "use_separate_proj_weight": False, "q_proj_weight": None, "k_proj_weight": None, "v_proj_weight": None,
    "static_k": None, "static_v": None, "average_attn_weights": True, "is_causal": False,
}  # fmt: skip


def _self_attention(original: Any) -> Any:
    """`torch.nn.functional.multi_head_attention_forward` in training, of a sequence with itself, without weights."""
    functions = _functions

    @wraps(original)  # torch.jit.script compiles what is wrapped
    def forward(query: Any, key: Any, value: Any, *args: Any, **named: Any) -> Any:
        if query is not key or key is not value or not _plain_attention(query, args, named):
            return original(query, key, value, *args, **named)
        place = query._block.place
        if place.heads is None:
            rows = place.gpu.ledger.rows
            count = len(rows)
            given = original(query, key, value, *args, **named)
            names = [row[4] for row in rows[count:] if row[0] == OPERATION]
            *before, last = names[-len(_BETWEEN) - 4 : -3] or [
                ""
            ]  # behind them is another linear layer
            usual = before == _BETWEEN and last in _ATTENTION_NODES
            current = functions.scaled_dot_product_attention
            place.heads = (
                (current, last) if usual and unpatched(current) is _host_attention else (None, last)
            )
            return given
        _, heads, weight, bias, *_, dropout, last, last_bias = args
        if (mask := named.get("attn_mask")) is not None:
            functions._mha_shape_check(query, key, value, None, mask, heads)
        length, batch = query.shape[:2]
        out = functions.linear(query, weight, bias)
        out = _attend(
            out,
            heads,
            dropout if named.get("training", True) else 0.0,
            bool(named.get("is_causal")),
        )
        out = functions.linear(out, last, last_bias)
        return out.view(length, batch, out.size(1)), None

    return forward


def _plain_attention(query: Any, args: Any, named: Any) -> bool:
    """Whether it is of the usual kind: CUDA's memory-efficient kernel, and shapes none of whose copies is a view."""
    if (
        type(query) not in _ORDINARY
        or len(args) != 10
        or named.get("need_weights", True)
        or not _training()
    ):
        return False
    size, heads, weight, bias, *others, _, _, _ = args
    x, place = query._inner, query._block.place
    given = {**_ATTENTION_DEFAULTS, **named}
    parts = [x, *(each._inner for each in (weight, bias) if type(each) in _ORDINARY)]
    return bool(
        len(parts) == 3
        and (place.heads is None or place.heads[0] is _functions.scaled_dot_product_attention)
        and _functions._in_projection_packed is _in_projection
        and not place.shut
        and place is weight._block.place
        and place is bias._block.place
        and all(one.dtype is torch.float32 for one in parts)
        and (query.requires_grad or weight.requires_grad or bias.requires_grad)
        and others == [None, None, False]
        and x.dim() == 3
        and 1 not in x.shape
        and 0 not in x.shape
        and x.shape[2] == size
        and type(heads) is int
        and heads > 1
        and not size % (4 * heads)
        and weight._inner.shape == (3 * size, size)
        and bias._inner.shape == (3 * size,)
        and 3 * x.numel() <= _SUSPICIOUS
        and given["key_padding_mask"] is None
        and given["is_causal"] is (given["attn_mask"] is not None)
        and given.keys() == _ATTENTION_DEFAULTS.keys()
        and not given["use_separate_proj_weight"]
        and given["static_k"] is given["static_v"] is None
        and _C._get_mem_efficient_sdp_enabled()
        and not _anomaly_on()
    )


# ---- backward passes -------------------------------------------------------------------------------------------------

_ones: Final = rules_of(aten.ones_like.default).call


def _mode() -> int:
    return (GRAD if _grad_on() else 0) | (INFERENCE if _inference_on() else 0)


def run_backward(loss: Any, retain_graph: bool | None) -> bool:
    """`loss.backward()`: the gradient of a scalar is one. False, and nothing done, where torch asks more questions."""
    if (
        type(loss) not in _ORDINARY
        or loss.dim()
        or not loss.requires_grad
        or loss._block.place.shut
        or not loss._inner.dtype.is_floating_point
        or watched()
    ):
        return False
    place, where = loss._block.place, site()
    gradient = bring(
        _ones(loss._inner), place, "aten.ones_like.default", (), where, perf_counter(), _mode()
    )
    # Where streams are followed, each operator and each leaf says on which it is.
    watching = _anomaly_on() or Tensor.__torch_dispatch__ is not _dispatch
    outer, thread_state.once = (
        thread_state.once,
        None if watching else (_used_once(loss.grad_fn), where),
    )
    try:
        torch.autograd.graph._engine_run_backward(
            (loss,),
            (gradient,),
            bool(retain_graph),
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        _settled(place)
    finally:
        thread_state.once = outer
    return True


# ---- steps of optimizers ---------------------------------------------------------------------------------------------

_LISTS: Final = tuple(
    """
    add add_ addcdiv_ addcmul addcmul_ div div_ lerp_ maximum_ mul mul_ neg neg_ pow reciprocal_ sqrt sqrt_ sub_
    """.split()
)
_STEPS: Final = ((torch.optim.Adam, "_multi_tensor_adam"), (torch.optim.SGD, "_multi_tensor_sgd"))


def _overload(name: str, args: Any) -> str:
    """The overload that these arguments after the first list choose."""
    if not args:
        return "default"
    last = args[-1]
    if type(last) is not list and type(last) is not tuple:
        return "Scalar"
    if not isinstance(last[0], torch.Tensor):
        return "ScalarList"
    return "Scalar" if name.startswith("addc") else "List"  # these have a value, which was left out


def _foreach(name: str, original: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch._foreach_NAME` without gradients: straight to the CPU's, past the dispatcher in C++ and back."""
    if (
        (type(first) is not list and type(first) is not tuple)
        or not first
        or type(first[0]) not in _ORDINARY
        or _grad_on()
        or (kwargs and (len(args) != 1 or list(kwargs) != ["alpha"]))
        or (args and isinstance(args[-1], torch.Tensor))
        or watched()
    ):
        return original(first, *args, **kwargs)
    lists = [
        0,
        *(
            i
            for i, a in enumerate(args, 1)
            if type(a) in (list, tuple) and a and isinstance(a[0], torch.Tensor)
        ),
    ]
    opened = _opened_lists((first, *args), lists)
    if opened is None or opened[0].shut:
        return original(first, *args, **kwargs)
    place, inner = opened
    try:
        with _C._AutoDispatchBelowADInplaceOrView():  # as where the dispatcher calls
            out = original(*inner, **kwargs)
    except Exception:
        return original(first, *args, **kwargs)  # raises what CUDA raises
    full = f"aten._foreach_{name}.{_overload(name, args)}"
    if name[-1] != "_":
        return tuple(_deliver_lists(out, place, full, inner[0]))
    _deliver_lists(None, place, full, inner[0])
    _C._increment_version(first)
    return first


class _Step:
    """A step of an optimizer on the CPU's tensors: opened once, and not by each of its operators."""

    __slots__ = (
        "before",
        "blocks",
        "cast",
        "changed",
        "label",
        "lists",
        "mode",
        "place",
        "rows",
        "where",
        "work",
    )

    def __init__(self, place: Place, lists: dict[int, Any], first: Any) -> None:
        self.place, self.label, self.where = place, place.label, site()
        self.lists = lists  # of tensors on the device, by the identity of the first tensor inside
        self.work = first[0].dtype, None, *[tensor.shape for tensor in first]
        self.mode, self.cast = INFERENCE if _inference_on() else 0, thread_state.autocast
        self.before = place.memory.live
        self.rows: list[
            tuple[str, int, int]
        ] = []  # the operator, the bytes it takes, and how many live more by then
        self.blocks: list[Any] = []  # the sizes of what was taken; None for what is no small block
        self.changed: list[Any] = []  # the lists that were written to, as often as they were

    def note(self, at: float, name: str, nbytes: int, live: int) -> None:
        """One operation into the ledger."""
        code, offset = self.where
        row = (
            OPERATION,
            at,
            code,
            offset,
            name,
            self.label,
            self.mode,
            self.cast,
            nbytes,
            live,
            self.work,
        )
        self.place.note(row)


class _Recipe:
    """What a step does and takes, and so does every other one of its kind: it is then run as it is on the host."""

    __slots__ = ("blocks", "changed", "freed", "most", "rows")

    def __init__(self, step: _Step, args: Any) -> None:
        self.rows = step.rows
        self.most = max((more for *_, more in step.rows), default=0)
        self.blocks, self.freed = len(step.blocks), sum(step.blocks)
        self.changed = [
            next(slot for slot, given in enumerate(args) if given is one) for one in step.changed
        ]

    def fits(self, place: Place) -> bool:
        """Whether what it takes is there without asking CUDA, and nobody wants to know where it lies."""
        memory = place.memory
        return memory.layout is None and memory.small_live + self.most <= memory.quick

    def note(self, step: _Step, args: Any, began: float) -> None:
        """Record a step that has been computed since."""
        ended, memory, count = perf_counter(), step.place.memory, len(self.rows)
        for number, (name, nbytes, more) in enumerate(self.rows, 1):
            step.note(began + (ended - began) * number / count, name, nbytes, step.before + more)
        memory.blocks_ever += self.blocks
        memory.freed += self.freed
        memory.peak = max(memory.peak, step.before + self.most)
        _C._increment_version([tensor for slot in self.changed for tensor in args[slot]])


def _in_step(name: str, original: Any) -> Any:
    """`torch._foreach_NAME` for the tensors of a step."""
    names = {
        overload: f"aten._foreach_{name}.{overload}"
        for overload in ("default", "List", "Scalar", "ScalarList")
    }
    in_place = name[-1] == "_"

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        step = thread_state.step
        known = step.lists.get(id(first[0]))
        if known is None and "_block" not in attributes(first[0]):  # on the host
            return original(first, *args, **kwargs)
        try:
            out = original(first, *args, **kwargs)
        except Exception:
            given = (first, *args)
            opened = [step.lists.get(id(a[0]), a) if type(a) in (list, tuple) else a for a in given]
            return original(*opened, **kwargs)  # raises what CUDA raises
        place, nbytes = step.place, 0
        if not in_place:
            for tensor in out:  # it lives as long as the step needs it
                nbytes += tensor.nbytes
                block = tensor._block = allocate(place, tensor.nbytes)
                step.blocks.append(block.size if block.piece is None else None)
        elif known is not None:
            _C._increment_version(known)
            step.changed.append(known)
        full, live = names[_overload(name, args)], place.memory.live
        step.rows.append((full, nbytes, live - step.before))
        step.note(perf_counter(), full, nbytes, live)
        return out

    return call


_MANY: Final = 100


class _Stepping:
    """`_multi_tensor_adam` or `_multi_tensor_sgd`, the usual steps of Adam and of plain gradient descent.

    Both are run with other `torch._foreach_` functions than the patched ones: with torch's own for tensors of the host,
    and with those above for tensors of the device.
    """

    def __init__(self, original: Any, lists: dict[str, Any]) -> None:
        self.original, self.lists = original, lists
        self.patched: dict[str, Any] = {}
        self.recipes: dict[Any, _Recipe] = {}
        self.on_host: Any = None
        self.on_device: Any = None

    def prepare(self) -> None:
        """Where this is the first step since the device was opened."""
        used = self.original.__code__.co_names
        names = {name for name in self.lists if f"_foreach_{name}" in used}
        self.patched = {f"_foreach_{name}": vars(torch)[f"_foreach_{name}"] for name in names}
        plain = {f"_foreach_{name}": self.lists[name] for name in names} | {"tensor": _host.tensor}
        recorded = {f"_foreach_{name}": _in_step(name, self.lists[name]) for name in names}
        self.on_host, self.on_device = self._using(plain), self._using(plain | recorded)

    def _using(self, functions: dict[str, Any]) -> Any:
        """The same code, where `torch` has these functions."""
        original, library = self.original, ModuleType("torch")
        vars(library).update(vars(torch))
        vars(library).update(functions)
        names = original.__globals__ | {"torch": library}
        made = FunctionType(
            original.__code__, names, original.__name__, original.__defaults__, original.__closure__
        )
        made.__kwdefaults__ = original.__kwdefaults__
        return made

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self.on_host is None:
            self.prepare()
        torch_has = vars(torch)
        if (
            any(torch_has.get(name) is not function for name, function in self.patched.items())
            or watched()
        ):
            return self.original(*args, **named)  # somebody else looks
        if args and args[0] and type(args[0][0]) in _HOSTS:
            host = all(type(each) in _HOSTS for each in args[0])
            return self.on_host(*args, **named) if host else self.original(*args, **named)
        slots = [
            i
            for i, given in enumerate(args)
            if type(given) is list and given and type(given[0]) in _ORDINARY
        ]
        # Steps are counted on the host; whatever else is there, or has yet to be made, is the dispatcher's.
        others = [given for i, given in enumerate(args) if i not in slots and given]
        counted = all(
            type(each) is torch.Tensor and not each.dim() for given in others[:1] for each in given
        )
        opened = None
        if not (
            _grad_on()
            or any(named.get(key) for key in ("has_complex", "capturable", "has_sparse_grad"))
            or any(isinstance(value, torch.Tensor) for value in named.values())
            or slots[:2] != [0, 1]
            or len(others) > 1
            or (len(args) >= 6)
            != bool(others)  # Adam has counts; those on the device have to be waited for
            or (others and (not counted or others[0] is not args[-1]))
        ):
            opened = _opened_lists(args, slots)
        # With one dtype there is one group, whose lists are these.
        if opened is None or opened[0].shut or len({each.dtype for each in opened[1][0]}) > 1:
            return self.original(*args, **named)
        place, inner = opened
        if place.late is not None:
            settle(place)
        step = _Step(place, {id(inner[slot][0]): args[slot] for slot in slots}, inner[0])
        # Which operators are called depends on what is asked for, not on how much of it.
        kind = step.work, *slots, *map(bool, named.values())
        recipe, began = self.recipes.get(kind), perf_counter()
        try:
            if recipe is None or not recipe.fits(place):
                return self.recorded(step, args, inner, named, kind)
            try:
                with _C._AutoDispatchBelowADInplaceOrView():  # as where the dispatcher calls
                    given = self.on_host(*inner, **named)
            except Exception:
                return self.original(*args, **named)  # raises what CUDA raises
            recipe.note(step, args, began)
            return given
        finally:
            if others:
                _C._increment_version(others[0])

    def recorded(self, step: _Step, args: Any, inner: Any, named: Any, kind: Any) -> Any:
        """Run a step whose operators record themselves, and keep what they did for others of its kind."""
        outer, thread_state.step = thread_state.step, step
        try:
            with _C._AutoDispatchBelowADInplaceOrView():
                given = self.on_device(*inner, **named)
        finally:
            thread_state.step = outer
        if step.before == step.place.memory.live and None not in step.blocks:
            if len(self.recipes) > _MANY:
                self.recipes.clear()
            self.recipes[kind] = _Recipe(step, args)
        return given


def _step_patches() -> Iterator[Patch]:
    originals = {name: getattr(torch, f"_foreach_{name}") for name in _LISTS}
    for optimizer, name in _STEPS:
        owner = sys.modules[optimizer.__module__]
        function = getattr(owner, name, None)
        used = getattr(function, "__code__", _opened_lists.__code__).co_names
        lists = {each.removeprefix("_foreach_") for each in used if each.startswith("_foreach_")}
        if lists and lists <= {*_LISTS}:  # else they are recorded one by one
            yield around(owner, name, _calling(_Stepping(function, originals)))


def _calling(stepping: _Stepping) -> Any:
    return lambda original, *args, **named: stepping(*args, **named)


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    linear = _linear(torch.nn.functional.linear)
    return [
        *((owner, "linear", linear) for owner in (torch._C._nn, torch.nn.functional)),
        (nn.Sequential, "forward", _sequential(nn.Sequential.forward)),
        (
            nn.functional,
            "multi_head_attention_forward",
            _self_attention(nn.functional.multi_head_attention_forward),
        ),
        *(around(torch, f"_foreach_{name}", partial(_foreach, name)) for name in _LISTS),
        *_step_patches(),
    ]
