"""Which way does an operator go? A plan is made from its schema the first time it is met."""

from __future__ import annotations

from typing import Any

import torch

from graders.bench.virtual import foreach, fresh, kernels, refusals, same
from graders.bench.virtual.dispatch import SPECIAL, general
from graders.bench.virtual.tensor import PLANS


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
        return fresh.like(func, call)
    if func is aten._local_scalar_dense.default:
        return same.scalar(func)
    if loose or generator or func.namespace != "aten":
        return _general(func)
    if lists:
        whole = schema.name.startswith("aten::_foreach_") and not slots and refusals.of(func) is None
        if whole and not schema.returns:
            return foreach.lists(func, call, lists)
        if whole and len(schema.returns) == 1 and not schema.is_mutable:
            return foreach.new_lists(func, call, lists)
        return _general(func)
    one = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor" and slots[:1] == (0,)
    if not one:
        many = len(schema.returns) > 1 and slots and not schema.is_mutable and str(schema.returns[0].type) == "Tensor"
        plain = all(str(r.type) == "Tensor" and r.alias_info is None for r in schema.returns)
        return fresh.many(func, call, slots) if many and plain else _general(func)
    if func in (aten.detach.default, aten.alias.default):
        return same.detach(func)
    alias = schema.returns[0].alias_info
    if alias is None:
        return _general(func) if schema.is_mutable else fresh.one(func, call, slots)
    if alias.is_write:
        return same.in_place(func, call, slots)
    return same.view(func, call) if len(slots) == 1 else _general(func)


PLANS.maker = make_plan
