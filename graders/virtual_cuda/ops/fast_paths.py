"""Fast paths for frequent operators, and the choice of a path for each operator."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from itertools import zip_longest
from sys import _getframe, getrefcount
from time import perf_counter
from typing import Any, Final

import torch
import torch.nn.functional
import torch.optim
from torch import nn
from torch._C import DispatchKey, DispatchKeySet

from virtual_cuda.device.state import Place
from virtual_cuda.device.tensor import PLANS, VIRTUAL, Parameter, Tensor, attributes, refresh, wrap
from virtual_cuda.ledger.records import END, FORWARD, GRAD, OPERATION
from virtual_cuda.ops.dispatch import (
    Rules,
    allocate,
    beforehand,
    deliver,
    general,
    rescue,
    rules_of,
    settle,
    shut,
    thread_state,
    write,
)
from virtual_cuda.ops.elementwise import SLOW
from virtual_cuda.ops.placement import on_host
from virtual_cuda.ops.registry import facts_of
from virtual_cuda.patching import Opening, Patch, around, torch_patches
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
        if type(first) not in VIRTUAL or first._inner.layout is not _STRIDED:
            return general(func, args, kwargs)
        block = first._block
        if block.place.shut:
            raise shut(block.place)
        return wrap(first._inner, block)

    return plan


# More elements than this are looked at on the meta device first, so that the host does not try what the device refuses.
_SUSPICIOUS: Final = 1 << 27


def _product_elements(left: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements a matrix product has; looking at it costs nothing beside the product."""
    return left.numel() // max(left.shape[-1], 1) * right.shape[-1] if left.dim() > 1 and right.dim() > 1 else 0


def _broadcast_elements(left: Any, right: Any) -> int:
    """How many elements two shapes have when each is stretched to the other."""
    return math.prod(max(pair) for pair in zip_longest(reversed(left), reversed(right), fillvalue=1))


def _across(func: Any) -> Callable[[Any], tuple[int, ...]] | None:
    """For operators along a dimension: gives it, if it is not the last, for the clock; the memory is then strided."""
    kinds = ("int", "List[int]", "Optional[int]", "Optional[List[int]]")
    place = next((i for i, a in enumerate(func._schema.arguments) if a.name == "dim" and str(a.type) in kinds), 0)

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
    name, returns = str(func), func._schema.returns
    call, refuse, output, count_waits = rules
    product = facts_of(func).product
    in_place, single = returns[0].alias_info is not None, len(returns) == 1
    reshapes = torch.Tag.inplace_view in func.tags
    across = _across(func)

    def plan(args: Any, kwargs: Any) -> Any:
        inner = [*args]
        place = None
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
            elif tensor is not None:
                return general(func, args, kwargs)
        if place is None:
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
        shapes = [inner[slot].shape for slot in slots if slot < count and inner[slot] is not None]
        if across is not None:
            shapes += across(args)
        if in_place:
            result = args[0]
            write(name, place, 0, (result.dtype, None, *shapes))
        else:
            if output is not None:
                out = output(inner, kwargs or {}, out)
            result = deliver(out, place, name, *shapes) if single else _deliver_many(out, place, name, shapes)
        if count_waits is not None:
            count_waits(args, kwargs or {})
        if reshapes:
            refresh(result)
        return result

    return plan


def _deliver_many(out: Any, place: Place, name: str, shapes: list[Any]) -> tuple[Any, ...]:
    """The results of normalisation, pooling and losses on the device, and their line in the ledger."""
    given, nbytes, dtype = [], 0, None
    for tensor in out:
        if not on_host(tensor):
            given.append(tensor)
            continue
        size = tensor.untyped_storage().nbytes()  # it may be the front of a longer buffer
        nbytes += size
        dtype = dtype or tensor.dtype
        given.append(wrap(tensor, allocate(place, size)))
    write(name, place, nbytes, (dtype, out[0].shape if given[0] is not out[0] else None, *shapes))
    return tuple(given)


def _from_one(func: Any, call: Any, view: bool = False) -> Any:
    """One new tensor from one, or a view of it; the same as above without what such operators do not need."""
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
        if inner.numel() > _SUSPICIOUS and not view:
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
        if not view:
            plain = (
                inner.stride() == out.stride() if copies else pointwise
            )  # the clock takes a plain copy for no kernel
            if across is not None:
                return deliver(out, place, name, inner.shape, *across(args))
            return deliver(out, place, name) if plain else deliver(out, place, name, inner.shape)
        write(name, place, 0)
        return wrap(out, first._block)

    return plan


def _from_two(func: Any, call: Any) -> Any:
    """One new tensor from two."""
    name, across = str(func), _across(func)

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
        return (
            deliver(out, place, name, left, right)
            if across is None
            else deliver(out, place, name, left, right, *across(args))
        )

    return plan


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
            torch._C._increment_version(args[slots[0]])  # as torch does for every list that is changed in place
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


def view(func: Any, rules: Rules) -> Any:
    """A view that the schema does not call one."""
    return _from_one(func, rules.call, view=True)


_FAST_PATHS: Final = {"detach": detach, "item": item, "like": like, "view": view}


def plan_by(function: Any, func: Any) -> Any:
    """A plan that is written by hand: function(func, args, kwargs)."""
    return lambda args, kwargs: function(func, args, kwargs or {})


def make_plan(func: Any) -> Any:
    """A function(args, kwargs) that runs this operator: the shortest way that its schema and its entry allow."""
    facts = facts_of(func)
    if facts.plan is not None:
        return plan_by(facts.plan, func)
    if func.namespace not in ("aten", "prims"):
        return plan_by(run, func)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    if composite and not facts.whole:
        # `to`, `item`, `linear`, …: autograd takes them apart, but in inference mode they arrive whole.
        return lambda args, kwargs: func.decompose(*args, **(kwargs or {}))
    rules = rules_of(func)
    if facts.fast_path is not None:
        return _FAST_PATHS[facts.fast_path](func, rules)
    schema = func._schema
    arguments, returns = schema.arguments, schema.returns
    kinds = [str(a.type) for a in arguments]
    slots = tuple(i for i, a in enumerate(arguments) if kinds[i] in ("Tensor", "Optional[Tensor]") and not a.kwarg_only)
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
    if fresh and slots in _FEW and rules[1:] == (None, None, None):
        return _FEW[slots](func, rules.call)
    alias = returns[0].alias_info
    if fresh or (alias is not None and alias.is_write):
        return _from_tensors(func, rules, slots)
    return _from_one(func, rules.call, view=True) if alias is not None and len(slots) == 1 else in_general


PLANS.maker = make_plan


# ---- linear layers ---------------------------------------------------------------------------------------------------

_ORDINARY: Final = (Tensor, Parameter)
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
_threshold_backward: Final = torch.ops.aten.threshold_backward.default


def _watched() -> bool:
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
        _, on_input, on_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(input if on_weight else None, weight if on_input else None, *made[1:])
        ctx.set_materialize_grads(False)
        ctx.leaves = bias if bias.is_leaf else None, None, weight if weight.is_leaf else None
        return made[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is None:
            return None, None, None, None
        on_bias, on_input, on_weight = needs = _needed(ctx)
        try:
            input, weight, *active = ctx.saved_tensors
        except RuntimeError as error:
            raise _of_transposed(error, ctx) from None
        watched = _grad_on() or _inference_on() or _C._is_any_autocast_enabled()
        if type(gradient) not in _ORDINARY or watched:
            if active:
                gradient = _threshold_backward(gradient, active[0], 0)
            return (*_separately(needs, gradient, input, weight), None)
        place, g = gradient._block.place, gradient._inner
        if place.shut:
            raise shut(place)
        if place.late is not None:
            settle(place)
        # First all that is computed, then all that is recorded: in turns, each would drive the other from the caches.
        made_at = perf_counter
        if active:
            g, at = _threshold_backward(g, active[0]._inner, 0), made_at()
        if on_input:
            product, at_input = _mm(g, weight._inner), made_at()
        if on_weight:
            turned = g.t()
            other, at_weight = _mm(turned, input._inner), made_at()
        if on_bias:
            total, at_bias = _sum(g, (0,), True), made_at()
        where, shape, note, memory, label = site(), g.shape, place.note, place.memory, place.label
        cast = thread_state.autocast
        of_bias = of_input = of_weight = None
        if active:
            behind = deliver(g, place, "aten.threshold_backward.default", shape, shape, where=where, at=at)
            # torch has freed both by now.
            if getrefcount(gradient) <= _UNHELD:
                del gradient._block
            gradient = behind
            if not _keeps_graph():
                del active[0]._block
        # Views: no bytes, nothing to do, no gradients.
        t = *where, "aten.t.default", label, 0, cast, 0
        if on_input:
            note((OPERATION, at_input, *t, memory.live, None))
            of_input = deliver(product, place, "aten.mm.default", shape, weight._inner.shape, where=where, at=at_input)
        if on_weight:
            note((OPERATION, at_weight, *t, memory.live, None))
            shapes = turned.shape, input._inner.shape
            of_weight = deliver(other, place, "aten.mm.default", *shapes, where=where, at=at_weight)
            note((OPERATION, at_weight, *t, memory.live, None))
        if on_bias:
            block = allocate(place, total.nbytes)
            live, work = memory.live, (total.dtype, total.shape, shape, 0)
            row = OPERATION, at_bias, *where
            note((*row, "aten.sum.dim_IntList", label, 0, cast, total.nbytes, live, work))
            note((*row, "aten.view.default", label, 0, cast, 0, live, None))
            of_bias = wrap(total.view(shape[1]), block)
        if on_weight:
            place.late = [where, *[None] * _additions(ctx.leaves[0] if on_bias else None, place), "aten.t.default"]
        return of_bias, of_input, of_weight, None


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


def _additions(bias: Any, place: Place) -> int:
    """How many operations add the gradient of a bias to others before its weight's is turned."""
    task = _C._current_graph_task_id()
    known, leaves = thread_state.handed_out
    if known != task:
        leaves = set()
        thread_state.handed_out = (task, leaves)
        _engine.queue_callback(partial(_settled, place))
    if bias is None:
        return 0
    before = id(bias) in leaves  # the same layer was called twice
    leaves.add(id(bias))
    return before + (bias.grad is not None)


def _settled(place: Place) -> None:
    """The end of a backward pass."""
    if place.late is not None:
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


def _of_transposed(error: RuntimeError, ctx: Any) -> RuntimeError:
    """The same complaint about the transposed weight, which torch saves, under the name that this torch has for it."""
    stale, weight = _STALE.fullmatch(str(error)), ctx.leaves[2]
    if stale is None or stale[4] or weight is None:
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


class _LinearRelu(_Linear):
    """The same with `relu` behind it: `made` also has another shell around its result, to be saved."""


for _cls, _name in ((_Linear, "AddmmBackward0"), (_LinearRelu, "ReluBackward0")):
    _node: Any = _cls._backward_cls
    _node.__name__ = _name
    _node.apply = _Linear.backward  # without the questions that torch asks of a student's function
_linear_node: Final[Any] = super(torch.autograd.Function, _Linear).apply
_relu_node: Final[Any] = super(torch.autograd.Function, _LinearRelu).apply


def _training() -> bool:
    """Whether a graph is made, of which nothing sees more than its nodes."""
    return (
        _grad_on()
        and not _watched()
        and not _anomaly_on()
        and _saving_hooks(True) is None
        and _forward_ad._current_level < 0
    )


def _usual(x: Any, place: Place, weight: Any, bias: Any) -> bool:
    """Whether `linear` of what is `x` inside is `addmm`, and its gradients may be computed together."""
    if type(weight) not in _ORDINARY or type(bias) not in _ORDINARY:
        return False
    w = weight._inner
    sizes, shape = x.shape, w.shape
    return bool(
        len(sizes) == 2
        and len(shape) == 2
        and sizes[1] == shape[1]
        and bias._inner.shape == shape[:1]
        and sizes[0] > 1 < sizes[1]  # torch takes other ways for a single row or column
        and 1 < shape[0] <= _SUSPICIOUS // sizes[0]
        and w.dtype in _FLOATS
        and place is weight._block.place
        and place is bias._block.place
        and not place.shut
        and x.is_contiguous()
        and w.is_contiguous()
        # The gradient of a leaf is accumulated, and seen by hooks, before the weight's is turned.
        and not bias._backward_hooks
        and not bias._post_accumulate_grad_hooks
    )


def _joined(input: Any, weight: Any, bias: Any) -> bool:
    """Whether the result is part of a graph, and its input no leaf, for the same reason."""
    return not input.is_leaf if input.requires_grad else weight.requires_grad or bias.requires_grad


def _product(x: Any, weight: Any, bias: Any) -> Any:
    """The layer on the CPU; None where that fails, since the operator raises what CUDA raises."""
    try:
        return _addmm(bias._inner, x, weight._inner.t())
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
        if type(input) not in _ORDINARY or type(weight) not in _ORDINARY or bias is None or not _training():
            return original(input, weight, bias)
        place, x, shape = input._block.place, input._inner, weight._inner.shape
        sizes = x.shape
        if len(sizes) == 3 and len(shape) == 2 and sizes[2] == shape[1] and 0 not in sizes and x.is_contiguous():
            flat = linear(input.view(-1, sizes[2]), weight, bias)  # as torch does
            return _reshaped(flat, (sizes[0], sizes[1], shape[0]))
        out = None
        if _usual(x, place, weight, bias) and _joined(input, weight, bias):
            out = _product(x, weight, bias)
        if out is None:
            return original(input, weight, bias)
        where = site()
        write("aten.t.default", place, 0, None, where)
        made = deliver(out, place, "aten.addmm.default", shape[:1], sizes, shape[::-1], where=where)
        return _linear_node(bias, input, weight, (made,))

    return linear


# ---- layers in sequence ----------------------------------------------------------------------------------------------

_call_impl: Final = nn.Module._call_impl.__code__
_forwards: Final = {kind: kind.forward for kind in (nn.Linear, nn.ReLU)}
_relu: Final = nn.functional.relu
_hooks: Final = nn.modules.module


def _plain(module: Any, kind: Any) -> bool:
    """Whether a layer is one of torch's own, and nothing looks at what goes in or comes out."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
        or kind.forward is not _forwards[kind]
    )


def _sequential(original: Any) -> Any:
    """`nn.Sequential.forward` in training: linear layers with `relu` between them have one node for both."""

    @wraps(original)  # torch.jit.script compiles what is wrapped
    def forward(self: Any, input: Any) -> Any:
        if type(input) not in _ORDINARY:
            return original(self, input)
        modules = [*self._modules.values()]
        if (
            _getframe(1).f_code is not _call_impl  # the pass around it is recorded
            or nn.Linear not in map(type, modules)
            or type(self).__iter__ is not nn.Sequential.__iter__
            or not _training()
            or nn.functional.relu is not _relu
            or _hooks._has_any_global_hook()
        ):
            return original(self, input)
        where = site()
        count = 0
        while count < len(modules):
            layers = [] if where[0] is None else _linear_layers(modules, count)
            out, done = _run_layers(input, layers, where) if layers and type(input) in _ORDINARY else (None, 0)
            input = modules[count](input) if out is None else out
            count += done or 1
        return input

    return forward


def _linear_layers(modules: list[Any], first: int) -> list[tuple[Any, Any]]:
    """Linear layers from the first on, each with the `relu` that follows it, or None."""
    layers: list[tuple[Any, Any]] = []
    while first < len(modules) and _plain(modules[first], nn.Linear):
        # With a linear layer behind it, nobody else sees the result of `relu`.
        relu = modules[first + 1] if first + 2 < len(modules) else None
        if relu is not None and (
            not _plain(relu, nn.ReLU) or relu.inplace or not _plain(modules[first + 2], nn.Linear)
        ):
            relu = None
        layers.append((modules[first], relu))
        first += 1 if relu is None else 2
    return layers


def _run_layers(input: Any, layers: list[tuple[Any, Any]], where: Any) -> tuple[Any, int]:
    """What these layers give and record, and how many modules that was; None and 0 where the first is not usual.

    First all that is computed, then all that is recorded, as in backward.
    """
    place, x = input._block.place, input._inner
    made: list[tuple[Any, ...]] = []
    for module, relu in layers:
        weight, bias = module._parameters["weight"], module._parameters["bias"]
        usual = _usual(x, place, weight, bias) and (made or _joined(input, weight, bias))
        began = perf_counter()
        out = _product(x, weight, bias) if usual else None
        if out is None:
            break
        at = perf_counter()
        sizes, x = x.shape, out if relu is None else out.relu_()
        made.append((module, relu, weight, bias, sizes, out, began, at, perf_counter()))
    if not made:
        return None, 0
    if place.late is not None:
        settle(place)
    note, rows, memory, label, cast = (
        place.note,
        place.gpu.ledger.rows,
        place.memory,
        place.label,
        thread_state.autocast,
    )
    for module, relu, weight, bias, sizes, out, began, at, later in made:
        shape, index = weight._inner.shape, len(rows)
        shapes = shape[:1], sizes, shape[::-1]
        note((FORWARD, began, *where, "Linear", module.training, GRAD, ()))
        note((OPERATION, began, *where, "aten.t.default", label, GRAD, cast, 0, memory.live, None))
        if relu is None:
            done = deliver(out, place, "aten.addmm.default", *shapes, where=where, at=at)
            note((END, at, None, None, index))
            input = _linear_node(bias, input, weight, (done,))
            continue
        block, nbytes, work = allocate(place, out.nbytes), out.nbytes, (out.dtype, out.shape, *shapes)
        note((OPERATION, at, *where, "aten.addmm.default", label, GRAD, cast, nbytes, memory.live, work))
        note((END, at, None, None, index))
        index = len(rows)
        note((FORWARD, at, *where, "ReLU", relu.training, GRAD, ()))
        done = deliver(out, place, "aten.relu.default", where=where, at=later)
        note((END, later, None, None, index))
        del block
        input = _relu_node(bias, input, weight, (done, wrap(out, done._block)))
    return input, sum(1 if relu is None else 2 for _, relu, *_ in made)


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
    step = thread_state.step
    if step is not None and first and (id(first[0]) in step.lists or "_block" in attributes(first[0])):
        return step.call(name, original, first, args, kwargs)
    if (
        (type(first) is not list and type(first) is not tuple)
        or not first
        or type(first[0]) not in _ORDINARY
        or _grad_on()
        or (kwargs and (len(args) != 1 or list(kwargs) != ["alpha"]))
        or (args and isinstance(args[-1], torch.Tensor))
        or _watched()
    ):
        return original(first, *args, **kwargs)
    lists = [
        0,
        *(i for i, a in enumerate(args, 1) if type(a) in (list, tuple) and a and isinstance(a[0], torch.Tensor)),
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

    def __init__(self, place: Place, lists: dict[int, Any], first: Any, where: Any) -> None:
        self.place, self.where = place, where
        self.lists = lists  # of tensors on the device, by the identity of the first tensor inside
        self.work = first[0].dtype, None, *[tensor.shape for tensor in first]

    def call(self, name: str, original: Any, first: Any, args: Any, kwargs: Any) -> Any:
        known = self.lists.get(id(first[0]))
        try:
            with _C._AutoDispatchBelowADInplaceOrView():
                out = original(first, *args, **kwargs)
        except Exception:
            given = (first, *args)
            opened = [self.lists.get(id(a[0]), a) if type(a) in (list, tuple) else a for a in given]
            return original(*opened, **kwargs)  # raises what CUDA raises
        place, nbytes = self.place, 0
        if name[-1] != "_":
            for tensor in out:  # it lives as long as the step needs it
                nbytes += tensor.nbytes
                tensor._block = allocate(place, tensor.nbytes)
        elif known is not None:
            _C._increment_version(known)
        write(f"aten._foreach_{name}.{_overload(name, args)}", place, nbytes, self.work, self.where)
        return out


def _stepping(original: Any, *args: Any, **named: Any) -> Any:
    """The usual steps of Adam and of plain gradient descent."""
    slots = [i for i, given in enumerate(args) if type(given) is list and given and type(given[0]) in _ORDINARY]
    # Steps are counted on the host; whatever else is there, or has yet to be made, is the dispatcher's.
    others = [given for i, given in enumerate(args) if i not in slots and given]
    counted = all(type(each) is torch.Tensor and not each.dim() for given in others[:1] for each in given)
    opened = None
    if not (
        _grad_on()
        or any(named.get(key) for key in ("has_complex", "capturable", "has_sparse_grad"))
        or any(isinstance(value, torch.Tensor) for value in named.values())
        or slots[:2] != [0, 1]
        or len(others) > 1
        or (len(args) >= 6) != bool(others)  # Adam has counts; those on the device have to be waited for
        or (others and (not counted or others[0] is not args[-1]))
        or _watched()
    ):
        opened = _opened_lists(args, slots)
    # With one dtype there is one group, whose lists are these.
    if opened is None or opened[0].shut or len({each.dtype for each in opened[1][0]}) > 1:
        return original(*args, **named)
    place, inner = opened
    lists = {id(inner[slot][0]): args[slot] for slot in slots}
    outer, thread_state.step = thread_state.step, _Step(place, lists, inner[0], site())
    try:
        return original(*inner, **named)
    finally:
        thread_state.step = outer


def _step_patches() -> Iterator[Patch]:
    for optimizer, name in _STEPS:
        owner = sys.modules[optimizer.__module__]
        used = getattr(getattr(owner, name, None), "__code__", _stepping.__code__).co_names
        lists = {each.removeprefix("_foreach_") for each in used if each.startswith("_foreach_")}
        if lists and lists <= {*_LISTS}:  # else they are recorded one by one
            yield around(owner, name, _stepping)


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    return [
        *((owner, "linear", _linear(owner.linear)) for owner in (torch._C._nn, torch.nn.functional)),
        (nn.Sequential, "forward", _sequential(nn.Sequential.forward)),
        *(around(torch, f"_foreach_{name}", partial(_foreach, name)) for name in _LISTS),
        *_step_patches(),
    ]
