"""Rules by which one operator runs on inner tensors, and what CUDA refuses beforehand.

The inner tensor of a device tensor is the CPU tensor with its values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.cuda_errors import DTYPE_NAMES, error_from_fact, warn
from virtual_cuda.device.hidden import hidden_attribute
from virtual_cuda.internals import DispatchKeySet, dispatch_also_to, find_internal, has_kernel
from virtual_cuda.ops import elementwise
from virtual_cuda.ops.placement import waits_of
from virtual_cuda.ops.registry import Operator, call_of, facts_of

Refuse = Callable[[Any, Any], object]  # function(args, kwargs): raises what CUDA raises


class Rules(NamedTuple):
    """The rules by which the dispatcher runs one operator."""

    call: Any
    """Computes the results from inner tensors."""
    refuse: Refuse | None
    """Raises what CUDA raises before it computes."""
    output: Callable[[Any, Any, Any], Any] | None
    """Gives the results their form on CUDA: function(inner arguments, kwargs, results)."""
    count_waits: Callable[[Any, Any], None] | None
    """Records the waits of the host afterwards: function(args, kwargs)."""
    name: str
    """What the ledger calls it: "aten.add.Tensor"."""


@functools.cache
def rules_of(func: Any) -> Rules:
    """The rules of an overload; made once, since an operator is called often."""
    facts = facts_of(func)
    call = call_of(func)
    is_made_of_others = not has_kernel(func.name(), "CPU")
    if is_made_of_others or "linalg" in func.name():
        call = functools.partial(_call_with_resolved_bits, call)
    return Rules(
        call=call,
        refuse=_refusal_of(func, facts),
        output=facts.output,
        count_waits=waits_of(func),
        name=str(func),
    )


_FEATURE: Final = "an operator of complex numbers that is made of others"
_CONJUGATE: Final = find_internal("torch._C.DispatchKey.Conjugate", _FEATURE)
_NEGATIVE: Final = find_internal("torch._C.DispatchKey.Negative", _FEATURE)


def _call_with_resolved_bits(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that C++ makes of others, with conjugates between them resolved.

    Gives its result. Inside a dispatcher C++ does not resolve them by itself. Raises what the
    operator raises.
    """
    is_complex = args and isinstance(args[0], torch.Tensor) and args[0].is_complex()
    if not is_complex:
        return call(*args, **kwargs)
    with dispatch_also_to(DispatchKeySet(_CONJUGATE) | DispatchKeySet(_NEGATIVE)):
        return call(*args, **kwargs)


def _refusal_of(func: Any, facts: Operator) -> Refuse | None:
    """The function that refuses arguments as CUDA does; None where CUDA takes all the CPU takes.

    It is called with args and kwargs, and raises CUDA's error.
    """
    refusals: list[Refuse] = []
    if facts.nondeterministic is not None:
        refusals.append(functools.partial(alert_nondeterministic, facts))
    if facts.absent:
        refusals.append(functools.partial(_refuse_all, func))
    elif facts.refuse is not None:
        refusals.append(facts.refuse)
    elif facts.forbidden is not None:
        messages = _messages_by_dtype(facts.forbidden)
        refusals.append(functools.partial(_refuse_dtypes, func, messages))
    if not refusals:
        return None
    if len(refusals) == 1:
        return refusals[0]

    def refuse_in_turn(args: Any, kwargs: Any) -> None:
        """Ask one refusal after another; the first that does not fit raises CUDA's error."""
        for refuse in refusals:
            refuse(args, kwargs)

    return refuse_in_turn


# ---- determinism ---------------------------------------------------------------------------------

_NOT_DETERMINISTIC: Final = (
    "{} does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this "
    "operation, or you can use the 'warn_only=True' option, if that's acceptable for your "
    "application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help "
    "us prioritize adding deterministic support for this operation."
)
_NOT_DETERMINISTIC_WARNING: Final = (
    "{} does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
    "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support "
    "for this operation."
)


def alert_nondeterministic(facts: Operator, args: Any, kwargs: Any) -> None:
    """Raise or warn where `torch.use_deterministic_algorithms` forbids the operator.

    The error is a RuntimeError; it is a warning where `warn_only` was asked for.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return
    caller = facts.nondeterministic
    if callable(caller):
        caller = caller(args)
    if caller is None:
        return
    values = (*args, *kwargs.values())
    if facts.exact_integers and _are_all_integers(values):
        return
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(_NOT_DETERMINISTIC.format(caller))
    warn(_NOT_DETERMINISTIC_WARNING.format(caller))


def _are_all_integers(values: tuple[Any, ...]) -> bool:
    """True if no tensor among these values has floating-point or complex numbers."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


# ---- dtypes --------------------------------------------------------------------------------------

_NO_KERNEL: Final = (
    "Could not run '{0}' with arguments from the '{1}' backend. This could be because the operator "
    "doesn't exist for this backend, or was omitted during the selective/custom build process (if "
    "using custom build). If you are a Facebook employee using PyTorch on mobile, please visit "
    "https://fburl.com/ptmfixes for possible resolutions. "
    "'{0}' is only available for these backends: [CPU, Meta]."
)


def no_kernel_error(func: Any, backend: str) -> Exception:
    """The error of torch where a backend has no kernel of an operator."""
    return NotImplementedError(_NO_KERNEL.format(func.name(), backend))


def _refuse_all(func: Any, args: Any, kwargs: Any) -> None:
    """Raise NotImplementedError: CUDA has no kernel of this operator."""
    raise no_kernel_error(func, "CUDA")


def _refuse_dtypes(func: Any, messages: dict[torch.dtype, str], args: Any, kwargs: Any) -> None:
    """Raise CUDA's error for the dtype of the first argument, if `messages` has one for it.

    It is a RuntimeError or a NotImplementedError.
    """
    dtype = args[0].dtype
    if dtype in messages and _would_launch_kernel(func, args, kwargs):
        raise error_from_fact(messages[dtype], DTYPE_NAMES[dtype])


def _messages_by_dtype(messages: dict[str, str]) -> dict[torch.dtype, str]:
    """The messages of `facts/refusals.json` by dtype; there they are by name: "Half".

    "integer" stands for all whole numbers, and "ComplexFloat" for larger complex numbers, too.
    """
    by_dtype = {}
    for dtype, name in DTYPE_NAMES.items():
        if name in messages:
            by_dtype[dtype] = messages[name]
    if "integer" in messages:
        by_dtype |= dict.fromkeys(elementwise.WHOLE, messages["integer"])
    if "ComplexFloat" in messages:
        by_dtype[torch.complex128] = messages["ComplexFloat"]
    return by_dtype


def _would_launch_kernel(func: Any, args: Any, kwargs: Any) -> bool:
    """True if CUDA gets as far as launching a kernel.

    It checks shapes before dtypes, and empty tensors need no kernel. The operator is tried on
    copies on the host, and nothing that the trial raises comes out.
    """
    copies = [_copy_of(value) for value in args]
    if any(isinstance(copy, torch.Tensor) and not copy.numel() for copy in copies):
        return False
    try:
        named = {key: _copy_of(value) for key, value in kwargs.items()}
        func(*copies, **named)
    except Exception as error:
        # The CPU refuses the arguments. That error is raised, and translated, when the operator
        # runs; here it only matters whether the CPU has complained of the dtype as well.
        return "not implemented for" in str(error) or "can't be cast" in str(error)
    return True


def _copy_of(value: Any) -> Any:
    """A copy of a tensor's values on the host, since the trial run may write into its arguments."""
    if not isinstance(value, torch.Tensor):
        return value
    return hidden_attribute(value, "_virtual_inner", value).clone()
