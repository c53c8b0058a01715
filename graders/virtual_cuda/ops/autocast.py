"""Autocast on the virtual device: the precision in which each operator runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.tensor import AUTOCAST, VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import thread_state
from virtual_cuda.ops.registry import autocast_policies
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import autocast_patches, tensors_in

aten: Final = torch.ops.aten
_without_keys: Final = find_internal("torch._C._ExcludeDispatchKeyGuard", "autocast")
_HALVES: Final = (torch.float16, torch.bfloat16)
_BANNED: Final = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


_held_elsewhere: Final = find_internal("torch._C._is_cached_tensor", otherwise=lambda tensor: False)
# By the identity of a weight: the weight, and what it was cast to. Kept until the outermost
# autocast region ends.
_cast_weights: Final[dict[int, tuple[Any, Any]]] = {}


def _eligible(value: Any) -> bool:
    """True for a floating-point tensor on the device, unless it is float64."""
    return (
        (type(value) in VIRTUAL or getattr(value, "is_cuda", False))
        and value.dtype.is_floating_point
        and value.dtype != torch.float64
    )


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The argument as autocast casts it; lists and tuples are cast inside.

    Floating-point tensors on the device get this dtype, except float64 ones. A weight that was cast
    to half precision is kept until the outermost autocast region ends, and given again.
    """
    if isinstance(value, torch.Tensor):
        if not _eligible(value) or value.dtype is dtype:
            return value
        if (
            dtype in _HALVES
            and value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        ):
            kept = _cast_weights.get(id(value))
            # What was cast without a graph does not serve where a graph is built.
            graphless = kept is not None and torch.is_grad_enabled() and not kept[1].requires_grad
            if kept is None or kept[0] is not value or graphless:
                if _held_elsewhere(value):  # another cache holds it: CUDA graph trees
                    return value.to(dtype)
                kept = _cast_weights[id(value)] = (value, value.to(dtype))
            return kept[1]
        return value.to(dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype) for item in value)
    return value


def _cast_all(op: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """Run an operator with all its arguments cast to this dtype."""
    return op(*[cast(a, dtype) for a in args], **{k: cast(v, dtype) for k, v in kwargs.items()})


def _optional(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator so that its result is float32.

    It runs unchanged if the caller has asked for a dtype, or autocast does not cast the input.
    """
    asked = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
    names = [a.name for a in op._schema.arguments]
    if asked or "dtype" not in names or not _eligible(args[0]):
        return op(*args, **kwargs)
    position = names.index("dtype")
    if position < len(args):
        return op(*args[:position], torch.float32, *args[position + 1 :], **kwargs)
    return op(*args, **{**kwargs, "dtype": torch.float32})


def _append(op: Any, args: Any, kwargs: Any) -> Any:
    """Run `norm` in the overload that takes a dtype, with float32.

    It runs unchanged if autocast does not cast the input.
    """
    if not _eligible(args[0]):
        return op(*args, **kwargs)
    if op is aten.norm.Scalar:
        return aten.norm.ScalarOpt_dtype(
            args[0], args[1] if len(args) > 1 else 2, dtype=torch.float32
        )
    given = [*args[1:], *(False for _ in range(3 - len(args[1:])))]
    return aten.norm.ScalarOpt_dim_dtype(args[0], given[0], given[1], given[2], dtype=torch.float32)


def _promote(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator in the widest floating dtype among its arguments.

    That is float32 if one of them has it, else autocast's dtype.
    """
    found = [tensor.dtype for tensor in tensors_in((args, kwargs)) if _eligible(tensor)]
    if not found:
        return op(*args, **kwargs)
    dtype = torch.float32 if torch.float32 in found else torch.get_autocast_dtype("cuda")
    return _cast_all(op, args, kwargs, dtype)


def _banned(op: Any, args: Any, kwargs: Any) -> Any:
    """Raise torch's RuntimeError for an operator that autocast forbids."""
    raise RuntimeError(_BANNED)


POLICIES: Final = {
    "lower": lambda op, args, kwargs: _cast_all(op, args, kwargs, torch.get_autocast_dtype("cuda")),
    "fp32": lambda op, args, kwargs: _cast_all(op, args, kwargs, torch.float32),
    "optional": _optional,
    "append": _append,
    "promote": _promote,
    "banned": _banned,
}


def _kernel(op: Any, policy: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operator by its autocast policy, with autocast off inside."""
    with _without_keys(AUTOCAST):
        return policy(op, args, kwargs)


def register(library: Any) -> None:
    """Register, for every operator that has an autocast policy, its kernel for autocast.

    `library` is the torch.library.Library of aten.
    """
    if AUTOCAST is None:  # this torch has no such key
        return
    for name, policy in autocast_policies().items():
        base, _, overload = name.partition(".")
        packet = getattr(aten, base, None)
        if packet is None or overload not in packet.overloads():
            continue  # a newer torch's operator
        kernel = functools.partial(_kernel, getattr(packet, overload), POLICIES[policy])
        library.impl(name.removesuffix(".default"), kernel, "AutocastCUDA", allow_override=True)


def _clear(original: Any) -> None:
    """Forget the weights that were cast, in torch's cache and in ours."""
    _cast_weights.clear()
    original()


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """Yield the patches for autocast.

    They keep the ledger's knowledge of the autocast dtype, and clear our cache of cast weights
    where torch clears its own. The cache is also cleared when the device closes.
    """
    opening.closing.append(_cast_weights.clear)
    yield from autocast_patches(thread_state, "cuda")
    yield around(torch, "clear_autocast_cache", _clear)
