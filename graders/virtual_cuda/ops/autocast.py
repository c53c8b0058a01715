"""Autocast on the virtual device: the precision in which each operator runs."""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.tensor import AUTOCAST, VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.registry import autocast_policies
from virtual_cuda.recorder import tensors_in

aten: Final = torch.ops.aten
_without_keys: Final = find_internal("torch._C._ExcludeDispatchKeyGuard", "autocast")
_HALVES: Final = (torch.float16, torch.bfloat16)
_BANNED: Final = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


_held_elsewhere: Final = find_internal("torch._C._is_cached_tensor", otherwise=lambda tensor: False)


class _CastWeight(NamedTuple):
    """A weight, and what it was cast to."""

    weight: torch.Tensor
    copy: torch.Tensor

    def serves(self, weight: torch.Tensor) -> bool:
        """True if the copy can be used for this weight.

        What was cast without a graph does not serve where a graph is built.
        """
        if self.weight is not weight:
            return False
        return self.copy.requires_grad or not torch.is_grad_enabled()


# By the identity of a weight. Kept until the outermost autocast region ends.
_cast_weights: Final[dict[int, _CastWeight]] = {}


def _is_castable(value: Any) -> bool:
    """True for a floating-point tensor on the device, unless it is float64."""
    if type(value) not in VIRTUAL and not getattr(value, "is_cuda", False):
        return False
    dtype = value.dtype
    return bool(dtype.is_floating_point) and dtype != torch.float64


def cast_argument(value: Any, dtype: torch.dtype) -> Any:
    """The argument as autocast casts it; lists and tuples are cast inside.

    Floating-point tensors on the device get this dtype, except float64 ones. A weight that was cast
    to half precision is kept until the outermost autocast region ends, and given again. A cast is
    recorded. Raises torch's OutOfMemoryError.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(cast_argument(item, dtype) for item in value)
    if not isinstance(value, torch.Tensor) or value.dtype is dtype:
        return value
    if not _is_castable(value):
        return value
    is_kept = dtype in _HALVES and torch.is_autocast_cache_enabled()
    if is_kept and _is_weight(value):
        return _cast_weight(value, dtype)
    return value.to(dtype)


def _is_weight(tensor: torch.Tensor) -> bool:
    """True for a tensor in single precision that is trained."""
    if tensor.dtype is not torch.float32 or not tensor.requires_grad:
        return False
    return tensor.is_leaf and not tensor._is_view()


def _cast_weight(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weight in this dtype: a kept copy, or a new one, which is kept from now on.

    The cast is recorded. Raises torch's OutOfMemoryError.
    """
    kept = _cast_weights.get(id(weight))
    if kept is not None and kept.serves(weight):
        return kept.copy
    copy = weight.to(dtype)
    if not _held_elsewhere(weight):  # by CUDA graph trees, which have a cache of their own
        _cast_weights[id(weight)] = _CastWeight(weight, copy)
    return copy


# ---- policies: function(operator, args, kwargs) -> results ---------------------------------------


def _run_cast(dtype: torch.dtype, op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator with all its arguments cast to this dtype, the last one first.

    The order is that of torch's builds: it decides where in memory the copies lie, and in which
    order a backward pass comes by them. Gives and raises what the operator does.
    """
    cast_kwargs = {}
    for key, value in reversed(kwargs.items()):
        cast_kwargs[key] = cast_argument(value, dtype)
    cast_args = [cast_argument(value, dtype) for value in reversed(args)]
    return op(*reversed(cast_args), **cast_kwargs)


def _run_lower(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator in autocast's lower precision."""
    return _run_cast(torch.get_autocast_dtype("cuda"), op, args, kwargs)


def _run_with_single_result(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator so that its result is float32.

    It runs unchanged if the caller has asked for a dtype, or autocast does not cast the input.
    Gives and raises what the operator does.
    """
    values = [*args, *kwargs.values()]
    has_dtype = any(isinstance(value, torch.dtype) for value in values)
    if has_dtype or not _is_castable(args[0]):
        return op(*args, **kwargs)
    names = [argument.name for argument in op._schema.arguments]
    if "dtype" not in names:
        return op(*args, **kwargs)
    # The place of the dtype may hold None.
    position = names.index("dtype")
    if position < len(args):
        new_args = [*args]
        new_args[position] = torch.float32
        return op(*new_args, **kwargs)
    return op(*args, **{**kwargs, "dtype": torch.float32})


def _run_norm_with_dtype(op: Any, args: Any, kwargs: Any) -> Any:
    """Run `norm` in the overload that takes a dtype, with float32.

    It runs unchanged if autocast does not cast the input. Gives and raises what the operator does.
    """
    if not _is_castable(args[0]):
        return op(*args, **kwargs)
    input, *rest = args
    if op is aten.norm.Scalar:
        p = 2
        if rest:
            p = rest[0]
        return aten.norm.ScalarOpt_dtype(input, p, dtype=torch.float32)
    rest += [False] * (3 - len(rest))  # p, dim, keepdim
    return aten.norm.ScalarOpt_dim_dtype(input, *rest[:3], dtype=torch.float32)


def _run_in_widest(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator in the widest floating dtype among its arguments.

    That is float32 if one of them has it, else autocast's dtype. Gives and raises what the operator
    does.
    """
    tensors = tensors_in((args, kwargs))
    dtypes = [tensor.dtype for tensor in tensors if _is_castable(tensor)]
    if not dtypes:
        return op(*args, **kwargs)
    if torch.float32 in dtypes:
        return _run_cast(torch.float32, op, args, kwargs)
    return _run_lower(op, args, kwargs)


def _refuse_operator(op: Any, args: Any, kwargs: Any) -> Any:
    """Raise torch's RuntimeError for an operator that autocast forbids."""
    raise RuntimeError(_BANNED)


POLICIES: Final = {
    "lower": _run_lower,
    "fp32": functools.partial(_run_cast, torch.float32),
    "optional": _run_with_single_result,
    "append": _run_norm_with_dtype,
    "promote": _run_in_widest,
    "banned": _refuse_operator,
}


def _run_by_policy(op: Any, policy: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operator by its autocast policy, with autocast off inside.

    Gives and raises what the policy, a function(op, args, kwargs), does.
    """
    with _without_keys(AUTOCAST):
        return policy(op, args, kwargs)


def register_policies(library: Any) -> None:
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
        func = getattr(packet, overload)
        kernel = functools.partial(_run_by_policy, func, POLICIES[policy])
        short_name = name.removesuffix(".default")
        library.impl(short_name, kernel, "AutocastCUDA", allow_override=True)


def forget_cast_weights() -> None:
    """Forget the weights that were cast: the next use of each casts it again."""
    _cast_weights.clear()
