"""Which dtypes does CUDA refuse that the CPU computes?

Most of it is a table (`facts/refusals.json`, made from a probe of an H200 by `facts/from_probe.py`). The rules by
hand are those that look at more than one dtype. Where both refuse, `translations.py` finds CUDA's words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from graders.bench.virtual import determinism
from graders.bench.virtual.translations import CUDNN_KNOWS, SPELLED, facts, found, mismatch, translate, worded

__all__ = ["of", "translate"]

INTEGERS: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
REDUCED: Final = (torch.float16, torch.bfloat16)
_ABSENT: Final = (
    "Could not run '{0}' with arguments from the 'CUDA' backend. This could be because the operator doesn't exist "
    "for this backend, or was omitted during the selective/custom build process (if using custom build). If you are "
    "a Facebook employee using PyTorch on mobile, please visit https://fburl.com/ptmfixes for possible resolutions. "
    "'{0}' is only available for these backends: [CPU, Meta]."
)

Forbid = Callable[[Any, Any], None]


@functools.cache
def of(func: Any) -> Forbid | None:
    """A function(args, kwargs) that raises CUDA's refusal before the CPU would accept, or None."""
    alert, forbid = determinism.of(func), _forbidden(func)
    if alert is None or forbid is None:
        return alert or forbid

    def both(args: Any, kwargs: Any) -> None:
        alert(args, kwargs)
        forbid(args, kwargs)

    return both


def _forbidden(func: Any) -> Forbid | None:
    name = func._schema.name.partition("::")[2]
    if str(func) in facts()["absent"]:
        return _absent(func)
    by_hand = _BY_HAND.get(name)
    if by_hand is not None:
        return by_hand
    messages = found(facts()["forbidden"], func)
    return None if messages is None else _by_dtype(func, messages)


def _absent(func: Any) -> Forbid:
    schema = func._schema
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")

    def forbid(args: Any, kwargs: Any) -> None:
        raise NotImplementedError(_ABSENT.format(name))

    return forbid


def _by_dtype(func: Any, messages: dict[str, str]) -> Forbid:
    integer = messages.get("integer")
    said = {dtype: messages[spelled] for dtype, spelled in SPELLED.items() if spelled in messages}
    if integer is not None:
        said.update(dict.fromkeys(INTEGERS, integer))
    if "ComplexFloat" in messages:
        said[torch.complex128] = messages["ComplexFloat"]

    def forbid(args: Any, kwargs: Any) -> None:
        dtype = args[0].dtype
        if dtype in said and _would_run(func, args, kwargs):
            raise worded(said[dtype], SPELLED[dtype])

    return forbid


def _would_run(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel would be launched: shapes are checked before dtypes, and empty tensors need none."""
    opened = [_opened(value) for value in args]
    if any(isinstance(value, torch.Tensor) and not value.numel() for value in opened):
        return False
    try:
        func(*opened, **{key: _opened(value) for key, value in kwargs.items()})
    except Exception as error:  # a refusal of the arguments; it is raised, and translated, when the operator runs
        return any(text in str(error) for text in ("not implemented for", "can't be cast"))
    return True


def _opened(value: Any) -> Any:
    """A copy, since the trial run may write into its arguments."""
    return getattr(value, "_inner", value).clone() if isinstance(value, torch.Tensor) else value


def _convolution(args: Any, kwargs: Any) -> None:
    """cuDNN computes no integers, though the CPU does."""
    given, weight = args[0], args[1]
    dtype = given.dtype
    if dtype.is_floating_point or weight.dtype is not dtype or not given.numel():
        return
    spelled = SPELLED[dtype]
    dilated, transposed = any(size > 1 for size in args[5]), args[6]
    if transposed and dilated:
        raise NotImplementedError(
            f"\"slow_conv_transpose{max(weight.dim() - 2, 2)}d_out_cuda\" not implemented for '{spelled}'"
        )
    if dtype in CUDNN_KNOWS:
        raise RuntimeError("GET was unable to find an engine to execute this computation")
    if not dtype.is_complex:
        raise RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {spelled}")


def _squared_error_backward(args: Any, kwargs: Any) -> None:
    """The loss of two dtypes has the wider one, and CUDA does not cast its gradient back."""
    gradient, given, target = args[:3]
    for tensor in (target, gradient):
        if tensor.dtype is not given.dtype:
            raise RuntimeError(f"Found dtype {SPELLED[tensor.dtype]} but expected {SPELLED[given.dtype]}")


def _least_squares(args: Any, kwargs: Any) -> None:
    if kwargs.get("driver") not in (None, "gels"):
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")


def _same_as_weight(weights: tuple[int, ...]) -> Forbid:
    """The CPU's normalisations take half precision with weights in float; CUDA's do not."""

    def forbid(args: Any, kwargs: Any) -> None:
        given = args[0]
        if given.dtype in REDUCED:
            for slot in weights:
                weight = args[slot] if slot < len(args) else None
                if weight is not None and weight.dtype is not given.dtype:
                    raise mismatch(given, weight)

    return forbid


_BY_HAND: Final[dict[str, Forbid]] = {
    "convolution": _convolution,
    "linalg_lstsq": _least_squares,
    "mse_loss_backward": _squared_error_backward,
    "native_group_norm": _same_as_weight((1, 2)),
    "native_layer_norm": _same_as_weight((2, 3)),
}
