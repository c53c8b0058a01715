"""Fourier transforms with the memory layout that cuFFT, CUDA's library, gives results."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional

from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ops.registry import operator

_Ints = Sequence[int]

# The dtype in which half precision is computed.
_WIDER: Final = {
    torch.float16: torch.float32,
    torch.complex32: torch.complex64,
}
_KINDS: Final = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
TRANSFORMS: Final = [f"{kind}{dims}" for kind in _KINDS for dims in ("", "2", "n")]
# These give half of a complex result: the other half would mirror it.
_HALVING: Final = ("rfft", "hfft", "irfft", "ihfft")


# ---- half precision ------------------------------------------------------------------------------


def transform_half_precision(
    name: str, original: Any, input: Any, *args: Any, **kwargs: Any
) -> Any:
    """The transform of half-precision input, computed in single precision.

    The CPU has no Fourier transforms in half precision. All other input goes to `original`, torch's
    function called `name`. Raises RuntimeError for sizes that are no powers of two, as cuFFT does,
    and what `original` raises.
    """
    if type(input) not in VIRTUAL or torch.is_autocast_enabled("cuda"):
        return original(input, *args, **kwargs)
    wider = _WIDER.get(input.dtype)
    if wider is None:
        return original(input, *args, **kwargs)
    result = original(input.to(wider), *args, **kwargs)
    _require_powers_of_two(_transformed_sizes(name, input, result, args, kwargs))
    return _in_half_precision(result)


def _require_powers_of_two(sizes: _Ints) -> None:
    """Raise RuntimeError for the sizes of a signal that cuFFT does not take in half precision."""
    for size in sizes:
        is_power_of_two = size & (size - 1) == 0
        if not is_power_of_two:
            raise RuntimeError(
                "cuFFT only supports dimensions whose sizes are powers of two "
                f"when computing in half precision, but got a signal size of{sizes}"
            )


def _in_half_precision(result: torch.Tensor) -> torch.Tensor:
    """The values as float16, complex ones as complex32."""
    if result.is_complex():
        return result.to(torch.complex32)
    return result.to(torch.float16)


def _compute_one_kind(overload: Any, input: torch.Tensor, *args: Any) -> torch.Tensor:
    """Call `_fft_c2c`, `_fft_c2r` or `_fft_r2c` for a tensor on the host.

    Half precision is computed in single precision. `overload` is the CPU's kernel; what it raises
    is raised.
    """
    wider = _WIDER.get(input.dtype)
    if wider is None:
        result: torch.Tensor = overload(input, *args)
        return result
    return _in_half_precision(overload(input.to(wider), *args))


def _refuse_sizes_of_half(kind: str, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError if `_fft_c2c` or its like has half precision and other sizes than cuFFT's.

    `args` and `kwargs` are those of the operator called `kind`.
    """
    input = args[0]
    dims = args[1]
    if input.dtype not in _WIDER or not dims:
        return
    sizes = [input.size(dim) for dim in dims]
    if kind == "_fft_c2r":  # the last argument says how long the real signal is
        sizes[-1] = args[3]
    _require_powers_of_two(sizes)


def _lengths_and_dims(
    n: Any = None, dim: Any = None, norm: Any = None, *, s: Any = None, **others: Any
) -> tuple[list[int] | None, list[int] | None]:
    """The lengths and the dimensions in a call of a transform; None where it does not say.

    The parameters are those of torch's functions after `input`. Lengths are called `n` where there
    is one dimension, and `s` where there are several.
    """
    if n is None:
        lengths = s
    else:
        lengths = n
    return _list_or_none(lengths), _list_or_none(dim)


def _transformed_sizes(name: str, input: Any, result: Any, args: Any, kwargs: Any) -> list[int]:
    """The sizes of the signal along the dimensions that `torch.fft.NAME` transforms.

    `args` and `kwargs` are those of the function after its input. Raises IndexError for a dimension
    that is not there.
    """
    lengths, dims = _lengths_and_dims(*args, **kwargs)
    if dims is None:
        count = _count_of_last_dims(name, input, lengths)
        dims = list(range(-count, 0))
    sizes = [result.size(dim) for dim in dims]
    is_halved = name.startswith(_HALVING) and result.is_complex()
    if not sizes or not is_halved:
        return sizes
    # The last size of a halved result is what was asked for, or that of the input.
    if lengths is None:
        last = -1
    else:
        last = lengths[-1]
    if last == -1:
        last = input.size(dims[-1])
    sizes[-1] = last
    return sizes


def _list_or_none(value: Any) -> list[int] | None:
    """A number as a list of one, several numbers as a list; None stays None."""
    if value is None:
        return None
    if isinstance(value, int):
        return [value]
    return list(value)


def _count_of_last_dims(name: str, input: Any, lengths: _Ints | None) -> int:
    """How many dimensions `torch.fft.NAME` transforms if the caller does not say which."""
    if name.endswith("2"):
        return 2
    if not name.endswith("n"):
        return 1
    dims: int = input.dim()
    if lengths is None:
        return dims
    return len(lengths)


# ---- memory layout -------------------------------------------------------------------------------


def _dims_by_stride(strides: _Ints, dims: Iterable[int]) -> list[int]:
    """The dimensions, those with the largest strides first."""
    return sorted(dims, key=lambda dim: -strides[dim])


def _strides_after_one_call(sizes: _Ints, strides: _Ints, dims: _Ints) -> list[int]:
    """The strides that one call of cuFFT gives its result.

    `sizes` are those of the result, `strides` those of the input. Dimensions that are not
    transformed come first, in the input's order, then the transformed ones, `dims`.
    """
    order = []
    for dim in _dims_by_stride(strides, range(len(sizes))):
        if dim not in dims:
            order.append(dim)
    order += dims
    # The last dimension lies closest together.
    new_strides = [0] * len(sizes)
    step = 1
    for dim in reversed(order):
        new_strides[dim] = step
        step *= sizes[dim]
    return new_strides


def _strides_of_complex_transform(sizes: _Ints, strides: _Ints, dims: _Ints) -> _Ints:
    """The strides after a complex transform, which cuFFT does three dimensions at a time."""
    remaining = list(dims)
    while remaining:
        remaining = _dims_by_stride(strides, remaining)
        last_three = remaining[-3:]
        strides = _strides_after_one_call(sizes, strides, last_three)
        del remaining[-3:]
    return strides


def _cufft_strides(kind: str, input: Any, dims: _Ints, result: Any) -> _Ints:
    """The strides that CUDA gives the result of an operator.

    `kind` is the operator's name: from complex to complex, complex to real, or real to complex.
    `dims` are the transformed dimensions.
    """
    dims = [dim % input.dim() for dim in dims]
    sizes = result.shape
    strides = input.stride()
    if kind == "_fft_c2c":
        return _strides_of_complex_transform(sizes, strides, dims)
    first_strides = strides
    if kind == "_fft_c2r":  # of a copy, as cuFFT overwrites its input
        first_strides = torch.empty(input.shape, device="meta").stride()
    if len(dims) <= 3 and dims[:2] != [0, 1]:
        return _strides_after_one_call(sizes, first_strides, dims)
    # Several calls: one for the last dimension, where numbers become real or complex.
    last = dims[-1:]
    others = dims[:-1]
    if kind == "_fft_c2r":
        complex_strides = _strides_of_complex_transform(input.shape, strides, others)
        return _strides_after_one_call(sizes, complex_strides, last)
    first_strides = _strides_after_one_call(sizes, strides, last)
    return _strides_of_complex_transform(sizes, first_strides, others)


def _lay_out_as_cufft(kind: str, inner: Any, kwargs: Any, result: Any) -> Any:
    """The result with cuFFT's strides, if need be a copy; the CPU's libraries give others.

    `kind` is the operator's name; `inner` are its arguments, input and dimensions first.
    """
    input = inner[0]
    dims = inner[1]
    if not dims:
        return result
    strides = _cufft_strides(kind, input, dims, result)
    if result.stride() == tuple(strides):
        return result
    return result.new_empty_strided(result.shape, strides).copy_(result)


for _name in ("_fft_c2c", "_fft_c2r", "_fft_r2c"):
    operator(
        _name,
        kernel=functools.partial(_compute_one_kind, getattr(torch.ops.aten, _name).default),
        output=functools.partial(_lay_out_as_cufft, _name),
        refuse=functools.partial(_refuse_sizes_of_half, _name),
    )
