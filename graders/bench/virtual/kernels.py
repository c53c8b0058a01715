"""Which function computes what CUDA computes? The CPU kernel, but for operators whose results differ by definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

from graders.bench.virtual import bindings, integers, syncs, ties

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
aten: Final = torch.ops.aten
NOT_EMULATED: Final = object()
# Operators whose CPU kernel gives other values than CUDA's: {overload: function with the same arguments}.
REPLACED: Final[dict[Any, Any]] = {}


def call_of(func: Any) -> Any:
    """The callable that runs `func` on inner tensors."""
    return REPLACED.get(func) or bindings.call_of(func)


def replaces(*overloads: Any) -> Callable[[Kernel], Kernel]:
    """Register a kernel of ours for these operators."""

    def register(function: Kernel) -> Kernel:
        for overload in overloads:
            if overload is not None:
                REPLACED[overload] = function
        return function

    return register


def known(name: str) -> Any:
    """An operator that not every supported torch has, or None."""
    packet = getattr(aten, name, None)
    return None if packet is None else packet.default


# ---- kernels that wait before they can refuse ---------------------------------------------------------------------
# `syncs.of` writes waits down after an operator; these operators may raise, and have waited by then.


@replaces(aten._linalg_check_errors.default)
def _check_errors(info: Any, api_name: str, *, is_matrix: bool) -> Any:
    """Whether anything failed is read; where it did, also which."""
    syncs.note("linalg")
    try:
        return aten._linalg_check_errors.default(info, api_name, is_matrix=is_matrix)
    except Exception:
        syncs.note("linalg")
        raise


@replaces(known("cholesky"))
def _cholesky(self: Any, upper: bool = False) -> Any:
    if self.numel():
        syncs.note("linalg")
    return aten.cholesky.default(self, upper)


@replaces(aten.bincount.default)
def _bincount(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    """The smallest value is fetched to refuse negative ones (a byte cannot be), the largest to know the size."""
    if self.numel() == 0 or self.dim() != 1 or self.is_floating_point():
        return aten.bincount.default(self, weights, minlength)
    if self.dtype is not torch.uint8:
        syncs.note("bincount")
    out = aten.bincount.default(self, weights, minlength)
    syncs.note("bincount")
    return out


# ---- values -----------------------------------------------------------------------------------------------------


@replaces(aten.linalg_cholesky_ex.default)
def _cholesky_ex(self: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Where the factorization stops, CUDA has already taken the square root of what is negative."""
    factor, info = aten.linalg_cholesky_ex.default(self, upper=upper, check_errors=check_errors)
    failed = info > 0
    if failed.any():
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        order = torch.arange(1, diagonal.shape[-1] + 1)
        diagonal.masked_fill_(failed.unsqueeze(-1) & (order >= info.unsqueeze(-1)) & (diagonal <= 0), float("nan"))
    return factor, info


@replaces(aten.grid_sampler_2d.default)
def _grid_sampler_2d(
    grid_input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """A place that is no number lies outside the picture on CUDA; on the CPU it makes the pixel no number."""
    if not torch.isfinite(grid).all():
        grid = torch.where(torch.isfinite(grid), grid, -1e6)
    return aten.grid_sampler_2d.default(grid_input, grid, interpolation_mode, padding_mode, align_corners)


@replaces(aten.index_put_.default)
def _index_put_(self: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """`x[mask] = x[0, 0]`: the CPU reads the number first; CUDA finds it inside what is written to."""
    if (
        values.numel() == 1
        and self.is_contiguous()
        and values.untyped_storage()._cdata == self.untyped_storage()._cdata
    ):
        at = values.storage_offset() - self.storage_offset()
        if 0 <= at <= sum((size - 1) * stride for size, stride in zip(self.shape, self.stride(), strict=True)):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )
    return aten.index_put_.default(self, indices, values, accumulate)


@replaces(aten.linalg_lstsq.default)
def _lstsq(self: Any, b: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """CUDA has one driver, which assumes full rank."""
    return aten.linalg_lstsq.default(self, b, rcond, driver=driver or "gels")


@replaces(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any) -> Any:
    """CUDA keeps no buffer and computes it again."""
    return aten.log_sigmoid_backward.default(grad_output, self, torch.exp(-self.abs()))


def _in_single(position: int, statistic: int) -> Any:
    """Backward of a norm whose statistics are wider than its input: computed in single precision, and cast back."""

    def make(func: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            data, kept = args[position], args[statistic]
            if kept is None or kept.dtype is data.dtype or data.dtype not in (torch.float16, torch.bfloat16):
                return func(*args, **kwargs)
            half = data.dtype
            wide = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
            dtypes = [a.dtype for a in args if isinstance(a, torch.Tensor)]
            parameters = half if dtypes.count(half) > 2 else torch.float32
            outs = func(*wide, **kwargs)
            return tuple(None if out is None else out.to(half if i == 0 else parameters) for i, out in enumerate(outs))

        return run

    return make


for _func in (aten.native_batch_norm_backward.default, aten.batch_norm_backward.default):
    REPLACED[_func] = _in_single(1, 5)(_func)
REPLACED[aten.native_layer_norm_backward.default] = _in_single(1, 3)(aten.native_layer_norm_backward.default)
REPLACED.update(integers.KERNELS)
REPLACED.update(ties.KERNELS)


# ---- dtypes the CPU has no kernel for ------------------------------------------------------------------------------

# Operators that CUDA computes in dtypes the CPU does not: {operator: (dtypes, the dtype to compute in)}.
_HALF: Final = (torch.float16, torch.bfloat16)
_WHOLE: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
WIDER: Final[dict[str, tuple[tuple[torch.dtype, ...], torch.dtype]]] = {
    "_pdist_backward": (_HALF, torch.float32),
    "_upsample_bilinear2d_aa": (_HALF, torch.float32),
    "_upsample_bilinear2d_aa_backward": (_HALF, torch.float32),
    "abs": ((torch.bool,), torch.uint8),
    "avg_pool3d": (_HALF, torch.float32),
    "avg_pool3d_backward": (_HALF, torch.float32),
    "histc": (_WHOLE, torch.float64),
    "max_unpool2d": (_WHOLE, torch.float64),
    "max_unpool3d": (_WHOLE, torch.float64),
    "median": ((torch.bool,), torch.uint8),
    "multi_margin_loss": (_HALF, torch.float32),
    "multi_margin_loss_backward": (_HALF, torch.float32),
    "multilabel_margin_loss_backward": (_HALF, torch.float32),
    "multilabel_margin_loss_forward": (_HALF, torch.float32),
    "nanmedian": ((torch.bool,), torch.uint8),
    "rrelu_with_noise": (_HALF, torch.float32),
    "trace": ((*_HALF, torch.bool), torch.float32),
}


def emulate(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The result CUDA gives where the CPU has no kernel for a dtype; NOT_EMULATED if CUDA has none either."""
    if "ZeroDivisionError" in str(error):
        result = integers.divided_by_zero(func, inner, kwargs)
        return NOT_EMULATED if result is None else result
    wider = WIDER.get(func._schema.name.partition("::")[2])
    if wider is None or not isinstance(error, NotImplementedError):
        return NOT_EMULATED
    narrow, wide = wider
    given = next((a.dtype for a in inner if isinstance(a, torch.Tensor) and a.dtype in narrow), None)
    if given is None:
        return NOT_EMULATED
    # Indices and targets are whole numbers too: where the operator takes those, only the first tensor is widened.
    first = next(i for i, a in enumerate(inner) if isinstance(a, torch.Tensor))
    every = narrow is _HALF
    args = [
        a.to(wide) if isinstance(a, torch.Tensor) and a.dtype is given and (every or i == first) else a
        for i, a in enumerate(inner)
    ]
    out = func(*args, **kwargs)
    back = torch.int64 if given is torch.bool and "trace" in func._schema.name else given
    if isinstance(out, tuple):
        return tuple(t.to(back) if t.dtype is wide else t for t in out)
    return out.to(back)
