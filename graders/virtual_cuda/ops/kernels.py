"""Kernels whose results differ between CUDA and the CPU: values, ties, integers, output forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

from virtual_cuda.ops import syncs

HOT: Final = frozenset(
    """
    add add_ sub sub_ mul mul_ div div_ neg sqrt rsqrt pow exp log abs lerp_ addcmul_ addcdiv_ reciprocal mm
    addmm bmm baddbmm mv dot t transpose permute view expand unsqueeze select detach clone relu
    relu_ sigmoid tanh gelu silu leaky_relu native_layer_norm convolution max_pool2d_with_indices _log_softmax
    _log_softmax_backward_data _softmax _softmax_backward_data sum mean max min argmax eq ne lt le gt ge where
    zero_ fill_ zeros_like ones_like empty_like _foreach_add_ _foreach_mul_ _foreach_lerp_ _foreach_addcmul_
    _foreach_sqrt _foreach_div_ _foreach_addcdiv_
    """.split()
)


def binding_of(func: Any) -> Any:
    """The callable that runs `func` on plain tensors."""
    name = func._schema.name.partition("::")[2]
    if (
        func.namespace != "aten"
        or name not in HOT
        or any(a.kwarg_only and "Tensor" in str(a.type) for a in func._schema.arguments)
    ):
        return func
    if name in ("add", "add_", "sub", "sub_") and func._overloadname == "Scalar":
        return func  # alpha by position means something else to the binding, which is deprecated and warns
    if name in ("max", "min") and len(func._schema.returns) > 1:
        return func  # the binding gives a named tuple, which the dispatcher would not open
    for home in (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase):
        binding = getattr(home, name, None)
        if binding is not None:
            return binding
    return func


aten: Final = torch.ops.aten
_NARROW: Final = (torch.int8, torch.int16, torch.int32)


def divided_by_zero(func: Any, inner: Any, kwargs: Any) -> Any:
    """The quotient or remainder where some divisors are zero, or None if the operator is neither."""
    name = func._schema.name.partition("::")[2]
    plain = name.rstrip("_")
    if plain not in ("floor_divide", "div", "remainder", "fmod") or len(inner) < 2:
        return None
    mode = "floor" if plain == "floor_divide" else kwargs.get("rounding_mode")
    dividend, divisor = inner[0], inner[1]
    dtype = torch.result_type(dividend, divisor)
    shape = (torch.as_tensor(dividend) + torch.as_tensor(divisor)).shape
    one = torch.as_tensor(dividend, dtype=dtype).expand(shape)
    other = torch.as_tensor(divisor, dtype=dtype).expand(shape)
    zero = other == 0
    safe = other.masked_fill(zero, 1)
    if plain in ("floor_divide", "div"):
        usual = torch.div(one, safe, rounding_mode=mode)
    else:
        usual = torch.remainder(one, safe) if plain == "remainder" else torch.fmod(one, safe)
    result = torch.where(zero, _by_zero(one, mode), usual)
    if name.endswith("_"):
        return dividend.copy_(result)
    out = kwargs.get("out")
    return result if out is None else out.copy_(result)


def _by_zero(dividend: torch.Tensor, mode: str | None) -> torch.Tensor:
    """All bits set, 64 of them only where the dividend needs so many; rounding down takes one off below zero."""
    ones = torch.full_like(dividend, 255 if dividend.dtype is torch.uint8 else -1)
    if dividend.dtype is torch.int64:
        ones = ones.masked_fill((dividend >= 0) & (dividend < 1 << 32), 0xFFFFFFFF)
    if mode == "floor" and dividend.dtype is not torch.uint8:
        ones = torch.where(dividend < 0, ones - 1, ones)
    return ones


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A float tensor as integers: what does not fit becomes the nearest of 32 or of 64 bits, and is then cut."""
    wide = torch.int32 if dtype in _NARROW else torch.int64
    limits = torch.iinfo(wide)
    whole = source.to(wide)
    # The largest integer is no float: the comparison is with the power of two above it.
    whole = whole.masked_fill(source >= -float(limits.min), limits.max).masked_fill(
        source <= float(limits.min), limits.min
    )
    if wide is torch.int32:
        # Only the instruction from double to 32 bits keeps the sign bit of what is no number.
        empty = limits.min if source.dtype is torch.float64 else 0
        whole = whole.masked_fill(source.isnan(), empty)
    else:
        whole = whole.masked_fill(source.isnan(), limits.min)
    return whole.to(dtype)


def _unusual(source: torch.Tensor, dtype: Any) -> bool:
    """Whether a cast on the CPU would give other integers than one on CUDA."""
    if (
        dtype is None
        or not source.is_floating_point()
        or dtype.is_floating_point
        or dtype.is_complex
        or dtype is torch.bool
    ):
        return False
    bound = float(2**31 if dtype in _NARROW else 2**63)
    return bool(source.numel()) and not bool((source.abs() < bound).all())


def _to_copy(source: torch.Tensor, **options: Any) -> torch.Tensor:
    dtype: Any = options.get("dtype")
    if _unusual(source, dtype):
        source = cast(source, dtype)
    return aten._to_copy.default(source, **options)  # type: ignore[no-any-return]


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if _unusual(source, target.dtype):
        source = cast(source, target.dtype)
    return target.copy_(source)


INTEGER_KERNELS: Final[dict[Any, Any]] = {aten._to_copy.default: _to_copy, aten.copy_.default: _copy_}


_NETWORK: Final = 32  # up to so many elements an unstable sort is a bitonic network; beyond, every sort is stable


def _network(keys: torch.Tensor) -> torch.Tensor:
    """The permutation that CUDA's bitonic network for 32 elements leaves in rows sorted by integer keys."""
    rows, length = keys.shape
    slots = torch.arange(_NETWORK).expand(rows, _NETWORK).clone()
    # What is not there sorts to the end.
    ranks = torch.full((rows, _NETWORK), torch.iinfo(torch.int64).max)
    ranks[:, :length] = keys
    there = slots < length
    thread = torch.arange(_NETWORK // 2)
    size = 2
    while size <= _NETWORK:
        flag = (thread & (size // 2)) != 0 if size < _NETWORK else torch.zeros_like(thread, dtype=torch.bool)
        stride = size // 2
        while stride:
            left = 2 * thread - (thread & (stride - 1))
            right = left + stride
            before = ((ranks[:, left] < ranks[:, right]) & there[:, left]) | ~there[:, right]
            swap = before == flag
            for table in (slots, ranks, there):
                one, other = table[:, left], table[:, right]
                table[:, left], table[:, right] = torch.where(swap, other, one), torch.where(swap, one, other)
            stride //= 2
        size *= 2
    return slots[:, :length]


def _ranks(rows: torch.Tensor, descending: bool) -> torch.Tensor:
    """Equal elements get equal integers, in the order of the sort; all that is no number is equal, and largest."""
    order = rows.sort(dim=1, descending=descending, stable=True)
    steps = order.values[:, 1:] != order.values[:, :-1]
    if rows.is_floating_point():
        steps &= ~(order.values[:, 1:].isnan() & order.values[:, :-1].isnan())
    ranks = torch.zeros(rows.shape, dtype=torch.int64)
    ranks[:, 1:] = steps.cumsum(1)
    return torch.empty_like(ranks).scatter_(1, order.indices, ranks)


def _as_rows(tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, Any]:
    """The tensor as rows along `dim`, and the way back."""
    moved = tensor.movedim(dim, -1)
    shape = moved.shape

    def back(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(*shape[:-1], rows.shape[-1]).movedim(-1, dim).contiguous()

    return moved.reshape(-1, shape[-1]), back


def sort(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """`sort` without `stable`: up to 32 elements through the network."""
    if self.dim() == 0 or self.numel() == 0 or not 2 <= self.shape[dim] <= _NETWORK or self.is_complex():
        return aten.sort.stable(self, stable=True, dim=dim, descending=descending)
    rows, back = _as_rows(self, dim)
    ranks = _ranks(rows, descending)
    if int(ranks.max(1).values.min()) == rows.shape[1] - 1:  # nothing is equal: any sort will do
        return aten.sort.stable(self, stable=True, dim=dim, descending=descending)
    order = _network(ranks)
    return back(rows.gather(1, order)), back(order)


def sort_stable(self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    if stable:
        return aten.sort.stable(self, stable=True, dim=dim, descending=descending)
    return sort(self, dim, descending)


def topk(self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """First all beyond the last one chosen, as they come, then as many equal to it as are needed; then sorted."""
    if self.dim() == 0 or self.numel() == 0 or not 0 < k <= self.shape[dim]:
        return aten.topk.default(self, k, dim, largest, sorted)
    rows, back = _as_rows(self, dim)
    ranks = _ranks(rows, largest)
    last = ranks.sort(1).values[:, k - 1 : k]
    # Beyond: 0, equal: 1, the rest: 2; a stable sort of that is the order of collection.
    chosen = ((ranks == last) + 2 * (ranks > last)).sort(dim=1, stable=True).indices[:, :k]
    if sorted:
        kept = ranks.gather(1, chosen)
        order = _network(kept) if 2 <= k <= _NETWORK else kept.sort(dim=1, stable=True).indices
        chosen = chosen.gather(1, order)
    return back(rows.gather(1, chosen)), back(chosen)


def _equal_one(func: Any, dim_at: int, dim_default: int | None, last: bool = False) -> Any:
    """`kthvalue` and `median` name the first element equal to the value found, `mode` the last."""

    def run(*args: Any, **kwargs: Any) -> Any:
        values, indices = func(*args, **kwargs)
        self = args[0]
        dim = args[dim_at] if len(args) > dim_at else kwargs.get("dim", dim_default)
        if self.dim() == 0 or self.numel() == 0:
            return values, indices
        keep = values.dim() == self.dim()
        wanted = values if keep else values.unsqueeze(dim)
        same = self == wanted
        if self.is_floating_point():
            same |= self.isnan() & wanted.isnan()
        if last:
            return values, self.shape[dim] - 1 - same.flip(dim).to(torch.uint8).argmax(dim, keepdim=keep)
        return values, same.to(torch.uint8).argmax(dim, keepdim=keep)

    return run


TIE_KERNELS: Final[dict[Any, Any]] = {
    aten.kthvalue.default: _equal_one(aten.kthvalue.default, 2, -1),
    aten.median.dim: _equal_one(aten.median.dim, 1, None),
    aten.mode.default: _equal_one(aten.mode.default, 1, -1, last=True),
    aten.nanmedian.dim: _equal_one(aten.nanmedian.dim, 1, None),
    aten.sort.default: sort,
    aten.sort.stable: sort_stable,
    aten.topk.default: topk,
}


_HALF: Final = (torch.float16, torch.bfloat16)


def of(func: Any) -> Any:
    """A function(inner, kwargs, out) -> out that gives the outputs the form they have on CUDA, or None."""
    return FORMS.get(func)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Statistics of half-precision inputs are kept in single precision."""
    return tensor.float() if tensor.dtype in _HALF else tensor


def _layer_norm(inner: Any, kwargs: Any, out: Any) -> Any:
    return (out[0], _wide(out[1]), _wide(out[2]))


def _batch_norm(training: int | None, statistics: bool) -> Any:
    """`training` is the position of that argument, None where it is so; `statistics`: running ones are arguments."""

    def form(inner: Any, kwargs: Any, out: Any) -> Any:
        data, weight, bias = inner[0], inner[1], inner[2]
        trains = training is None or inner[training]
        mean, invstd = _wide(out[1]), _wide(out[2])
        if not trains:
            # cuDNN keeps nothing in eval mode; the kernel used for two dimensions or no weights keeps both statistics.
            cudnn = data.dim() >= 3 and weight is not None and bias is not None and statistics and inner[3] is not None
            cudnn = cudnn and (data.dtype not in _HALF or weight.dtype is torch.float32)
            size = 0 if cudnn else data.shape[1]
            kept = torch.float64 if data.dtype is torch.float64 else torch.float32
            mean, invstd = torch.empty(size, dtype=kept), torch.empty(size, dtype=kept)
            if size and statistics and inner[3] is not None:
                mean.copy_(inner[3])
                invstd.copy_((inner[4].to(kept) + inner[-1]).rsqrt())
        return (out[0], mean, invstd, *out[3:])

    return form


def _log_sigmoid(inner: Any, kwargs: Any, out: Any) -> Any:
    return (out[0], out[1].new_empty(0))


def _embedding_bag(inner: Any, kwargs: Any, out: Any) -> Any:
    """Every index knows its bag; the largest of a bag are remembered only where they are asked for."""
    result, bag_of, sizes, largest = out
    indices, offsets = inner[1], inner[2]
    mode = inner[4] if len(inner) > 4 else kwargs.get("mode", 0)
    bag_of = torch.zeros_like(indices)
    starts = offsets[1:]
    bag_of.index_add_(0, starts[starts < len(indices)], torch.ones_like(starts[starts < len(indices)]))
    bag_of = bag_of.cumsum(0).to(indices.dtype)
    ends = torch.cat([offsets[1:], offsets.new_tensor([len(indices)])])
    sizes = (ends - offsets)[: len(sizes)].to(sizes.dtype) if len(sizes) <= len(offsets) else sizes
    return (result, bag_of, sizes, largest if mode == 2 else largest.new_empty(0))


def _unique(inner: Any, kwargs: Any, out: Any) -> Any:
    """The result is the front of a buffer as long as the input."""
    found = out[0]
    buffer = found.new_empty(max(inner[0].numel(), found.numel()))
    front = buffer[: found.numel()].copy_(found)
    return (front, *out[1:])


def _row_major(*positions: int) -> Any:
    """Matrices that LAPACK gives by columns and cuSOLVER by rows."""

    def form(inner: Any, kwargs: Any, out: Any) -> Any:
        return tuple(t.contiguous() if i in positions else t for i, t in enumerate(out))

    return form


FORMS: Final[dict[Any, Any]] = {
    aten._batch_norm_with_update.default: _batch_norm(None, True),
    aten._embedding_bag.default: _embedding_bag,
    aten._linalg_svd.default: _row_major(2),
    aten._native_batch_norm_legit.default: _batch_norm(5, True),
    aten._native_batch_norm_legit.no_stats: _batch_norm(3, False),
    aten._unique.default: _unique,
    aten._unique2.default: _unique,
    aten.linalg_eig.default: _row_major(1),
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.native_batch_norm.default: _batch_norm(5, True),
    aten.native_layer_norm.default: _layer_norm,
}


Kernel = TypeVar("Kernel", bound=Callable[..., Any])
NOT_EMULATED: Final = object()
# Operators whose CPU kernel gives other values than CUDA's: {overload: function with the same arguments}.
REPLACED: Final[dict[Any, Any]] = {}


def call_of(func: Any) -> Any:
    """The callable that runs `func` on inner tensors."""
    return REPLACED.get(func) or binding_of(func)


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
REPLACED.update(INTEGER_KERNELS)
REPLACED.update(TIE_KERNELS)


# ---- dtypes the CPU has no kernel for ------------------------------------------------------------------------------

# Operators that CUDA computes in dtypes the CPU does not: {operator: (dtypes, the dtype to compute in)}.
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
        result = divided_by_zero(func, inner, kwargs)
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
