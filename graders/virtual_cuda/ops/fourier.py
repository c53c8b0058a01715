"""Fourier transforms with the memory layout that cuFFT, CUDA's library, gives results."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional

from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ops.registry import operator

_WIDER: Final = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_KINDS: Final = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
TRANSFORMS: Final = [f"{kind}{dims}" for kind in _KINDS for dims in ("", "2", "n")]


def transform_half_precision(
    name: str, original: Any, input: Any, *args: Any, **kwargs: Any
) -> Any:
    """The transform of half-precision input, computed in single precision.

    The CPU has no Fourier transforms in half precision. All other input goes to `original`, torch's
    function called `name`. Raises RuntimeError for sizes that are no powers of two, as cuFFT does.
    """
    if type(input) not in VIRTUAL or input.dtype not in _WIDER or torch.is_autocast_enabled("cuda"):
        return original(input, *args, **kwargs)
    made = original(input.to(_WIDER[input.dtype]), *args, **kwargs)
    # Find the sizes of the transformed dimensions, for the refusal.
    lengths = args[0] if args else kwargs.get("n", kwargs.get("s"))
    lengths = [lengths] if isinstance(lengths, int) else lengths
    count = {"2": 2, "n": input.dim() if lengths is None else len(lengths)}.get(name[-1], 1)
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = (
        list(range(-count, 0)) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    )
    sizes = [made.size(dim) for dim in dims]
    # Half of the result is left out by these.
    if dims and name.lstrip("i").startswith(("rfft", "hfft")) and made.is_complex():
        sizes[-1] = input.size(dims[-1]) if lengths is None or lengths[-1] == -1 else lengths[-1]
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of{sizes}"
        )
    return made.to(torch.complex32 if made.is_complex() else torch.float16)


def _dims_by_stride(strides: Sequence[int], dims: Iterable[int]) -> list[int]:
    """The dimensions, those with the largest strides first."""
    return sorted(dims, key=lambda dim: -strides[dim])


def _strides_after_one_call(
    sizes: Sequence[int], strides: Sequence[int], dims: Sequence[int]
) -> list[int]:
    """The strides that one call of cuFFT gives its result.

    Dimensions that are not transformed come first, in the input's order, then the transformed ones.
    """
    made = [0] * len(sizes)
    step = 1
    batches = _dims_by_stride(strides, (dim for dim in range(len(sizes)) if dim not in dims))
    for dim in reversed([*batches, *dims]):
        made[dim] = step
        step *= sizes[dim]
    return made


def _complex_strides(
    sizes: Sequence[int], strides: Sequence[int], dims: Sequence[int]
) -> Sequence[int]:
    """The strides after a complex transform, which cuFFT does three dimensions at a time."""
    left = list(dims)
    while left:
        left = _dims_by_stride(strides, left)
        strides = _strides_after_one_call(sizes, strides, left[-3:])
        del left[-3:]
    return strides


def _fft_strides(kind: str, given: Any, dims: Sequence[int], made: Any) -> Sequence[int]:
    """The strides that CUDA gives the result `made` of an operator.

    `kind` is the operator's name: from complex to complex, complex to real, or real to complex.
    `given` is its input, `dims` are the transformed dimensions.
    """
    dims = [dim % given.dim() for dim in dims]
    strides = given.stride()
    if kind == "_fft_c2c":
        return _complex_strides(made.shape, strides, dims)
    if kind == "_fft_c2r":  # of a copy, as cuFFT overwrites what it is given
        strides = torch.empty(given.shape, device="meta").stride()
    if len(dims) <= 3 and dims[:2] != [0, 1]:
        return _strides_after_one_call(made.shape, strides, dims)
    if kind == "_fft_c2r":
        return _strides_after_one_call(
            made.shape, _complex_strides(given.shape, given.stride(), dims[:-1]), dims[-1:]
        )
    return _complex_strides(
        made.shape, _strides_after_one_call(made.shape, strides, dims[-1:]), dims[:-1]
    )


def _fft_output(kind: str, inner: Any, kwargs: Any, out: Any) -> Any:
    """The result with cuFFT's strides; the CPU's libraries give others."""
    given, dims = inner[:2]
    strides = _fft_strides(kind, given, dims, out) if dims else out.stride()
    return (
        out
        if out.stride() == tuple(strides)
        else out.new_empty_strided(out.shape, strides).copy_(out)
    )


for _name in ("_fft_c2c", "_fft_c2r", "_fft_r2c"):
    operator(_name, output=functools.partial(_fft_output, _name))
