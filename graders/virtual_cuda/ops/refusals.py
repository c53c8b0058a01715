"""Operators and dtypes that CUDA refuses, and errors it reports later."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from virtual_cuda.device.state import VirtualGpu, now
from virtual_cuda.ops.messages import CUDNN_KNOWS, SPELLED, device_assert, facts, found, mismatch, worded

# Operators that check values, not shapes, and so check them on the device.
_ASSERTING: Final = frozenset(
    """
    index index_put index_put_ _index_put_impl_ _unsafe_index index_select index_add index_add_ index_copy
    index_copy_ index_reduce index_reduce_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce
    scatter_reduce_ take put put_ embedding embedding_renorm_ _embedding_bag _embedding_bag_forward_only
    nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward multi_margin_loss
    multilabel_margin_loss_forward binary_cross_entropy multinomial _assert_async
    """.split()
)
_OUT_OF_RANGE: Final = re.compile(
    r"out of bounds|out of range|between 0 and 1|`inf`, `nan` or element < 0|invalid multinomial|"
    r"Expected .* nonzero value|nonzero value"
)


NOTHING: Final = object()  # what an operator without results gives


def later(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The result a launch gives although its kernel will assert; None if this error is not of that kind."""
    name = func._schema.name.partition("::")[2]
    gpu = now.gpu
    if gpu is None or name not in _ASSERTING or not _OUT_OF_RANGE.search(str(error)):
        return None
    gpu.asserted = True
    if func._schema.is_mutable:
        return inner[0]
    if not func._schema.returns:
        return NOTHING
    return _blank(func(*_meta(inner), **{k: _meta(v) for k, v in kwargs.items() if k != "generator"}))


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_meta(item) for item in value)
    return value


def _blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(_blank(item) for item in value)
    return value


def report(gpu: VirtualGpu) -> None:
    """Called wherever the host waits: an assert that has happened is heard of now, and the device is lost."""
    if gpu.asserted:
        gpu.lost = True
        for place in gpu.places:
            place.shut = True
        raise device_assert()


CALLERS: Final = {
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "bincount": "_bincount_cuda",
    "cumsum": "cumsum_cuda_kernel",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
    "histc": "_histc_cuda",
    "nll_loss2d_backward": "nll_loss2d_backward_out_cuda_template",
    "nll_loss2d_forward": "nll_loss2d_forward_out_cuda_template",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad2d_backward": "reflection_pad2d_backward_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
}
_REFUSED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can "
    "turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's acceptable "
    "for your application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help us "
    "prioritize adding deterministic support for this operation."
)
_WARNED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True, "
    "warn_only=True)'. You can file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
    "deterministic support for this operation."
)


# Whole numbers add up to the same in any order.
_WHOLE: Final = ("bincount", "cumsum")


def _fractions(args: Any, kwargs: Any) -> bool:
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in given)


def nondeterministic(func: Any) -> Callable[[Any, Any], None] | None:
    """A function(args, kwargs) that alerts as CUDA does, or None for an operator that is deterministic on both."""
    name = func._schema.name.partition("::")[2]
    caller = CALLERS.get(name)
    if name == "median" and func._overloadname.startswith("dim"):
        caller = "median CUDA with indices output"
    if caller is None:
        return None

    def alert(args: Any, kwargs: Any) -> None:
        if not torch.are_deterministic_algorithms_enabled():
            return
        if name in _WHOLE and not _fractions(args, kwargs):
            return
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(_REFUSED.format(caller))
        warnings.warn(_WARNED.format(caller), UserWarning, stacklevel=4)

    return alert


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
def refusal_of(func: Any) -> Forbid | None:
    """A function(args, kwargs) that raises CUDA's refusal before the CPU would accept, or None."""
    alert, forbid = nondeterministic(func), _forbidden(func)
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
