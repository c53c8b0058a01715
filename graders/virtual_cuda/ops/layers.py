"""Layers, losses and linear algebra: what their operators do on CUDA.

Most functions here stand in an operator's entry (see `Operator` in `registry.py`): functions for
`kernel` compute in place of the CPU's kernel, functions for `placement` judge arguments on
different devices, and functions for `words` give CUDA's exception in place of the CPU's.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import (
    DTYPE_NAMES,
    KERNEL_LACKS_DTYPE,
    dtype_mismatch_error,
    kernel_lacks_dtype_error,
    label_of,
    legacy_type_name,
    two_devices_error,
    type_name,
)
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal, torch_functions
from virtual_cuda.ops import largest, placement
from virtual_cuda.ops.convolution_workspaces import (
    convolution_gradient_workspaces,
    convolution_workspaces,
)
from virtual_cuda.ops.elementwise import (
    HALF,
    WHOLE,
    in_single,
    is_slow_on_host,
    to_single,
    wider_emulation,
)
from virtual_cuda.ops.placement import (
    OperatorCall,
    allow_anywhere,
    compare_devices,
    compare_devices_by_name,
    on_device,
    on_host,
    takes_no_number,
    unless_empty,
)
from virtual_cuda.ops.registry import ALLOWED, NOT_EMULATED, name_of, operator
from virtual_cuda.ops.workspaces import (
    batched_solver_workspaces,
    biased_product_workspaces,
    distance_workspaces,
    fused_product_workspaces,
    product_workspaces,
    qr_workspaces,
    solver_workspaces,
)

aten: Final = torch.ops.aten


# ---- kernels -------------------------------------------------------------------------------------
# Some record their waits themselves, since they may raise and have waited by then.


def _check_errors(info: Any, api_name: str, *, is_matrix: bool) -> Any:
    """Check whether a factorization failed, and record the waits of the host.

    `info` says at which step each has failed, 0 for none. The host reads whether anything failed;
    where it did, also what. Raises torch's LinAlgError then, and RuntimeError at a wait that is
    refused or tells of a failed kernel.
    """
    placement.record_waits("linalg")
    try:
        return aten._linalg_check_errors.default(info, api_name, is_matrix=is_matrix)
    except Exception:
        placement.record_waits("linalg")
        raise


def _invert_singular(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The inverse from a Cholesky factor with a zero on its diagonal, which the CPU refuses.

    CUDA divides by that zero. `inner` and `kwargs` are the arguments with CPU tensors, `error` is
    what the CPU raised. NOT_EMULATED where the error has another reason.
    """
    if "is zero" not in str(error) or "out" in kwargs:
        return NOT_EMULATED
    factor = inner[0]
    size = factor.shape[-1]
    identity = torch.eye(size, dtype=factor.dtype, device=factor.device).expand_as(factor)
    return torch.cholesky_solve(identity, *inner, **kwargs)


def _cholesky_with_wait(self: Any, upper: bool = False) -> Any:
    """The Cholesky factor; the wait of the host is recorded.

    Raises torch's LinAlgError for a matrix that is not positive-definite, and RuntimeError at a
    wait that is refused or tells of a failed kernel.
    """
    if self.numel():
        placement.record_waits("linalg")
    return aten.cholesky.default(self, upper)


def _cholesky_ex(self: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """The Cholesky factor, and the step at which each factorization failed, 0 for none.

    Where a factorization stops, CUDA has already taken the square root of what is negative. Raises
    torch's LinAlgError for a failure if `check_errors` is set.
    """
    factor, info = aten.linalg_cholesky_ex.default(self, upper=upper)
    if factor.is_meta:
        return factor, info
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    # Some CPUs go on where a pivot is no number.
    lost = diagonal.isnan()
    if lost.any():
        first_lost = lost.int().argmax(-1) + 1
        is_unnoticed = (info == 0) & lost.any(-1)
        info = torch.where(is_unnoticed, first_lost, info).int()
    if check_errors:
        is_matrix = self.dim() == 2
        aten._linalg_check_errors.default(info, "linalg.cholesky_ex", is_matrix=is_matrix)
    failed = info > 0
    if failed.any():
        steps = torch.arange(1, diagonal.shape[-1] + 1)
        failed_at = info.unsqueeze(-1)
        is_after_failure = failed.unsqueeze(-1) & (steps >= failed_at)
        diagonal.masked_fill_(is_after_failure & (diagonal <= 0), float("nan"))
    return factor, info


def _lstsq_by_gels(self: Any, b: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """The solution by CUDA's only driver, "gels", which assumes full rank.

    Raises what the CPU's kernel raises.
    """
    return aten.linalg_lstsq.default(self, b, rcond, driver=driver or "gels")


_SVD_DRIVERS: Final = (None, "gesvd", "gesvdj", "gesvda")


def _svd_by_any_driver(
    a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Any:
    """The singular value decomposition by the CPU, whichever of CUDA's drivers is named.

    CUDA has three drivers, the CPU knows none by name. Raises RuntimeError for an unknown one.
    """
    if driver not in _SVD_DRIVERS:
        raise RuntimeError(
            f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. "
            "Check doc at https://pytorch.org/docs/stable/generated/torch.linalg.svd.html"
        )
    return aten._linalg_svd.default(a, full_matrices, compute_uv)


def _refuse_drivers(args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for a driver of `lstsq` that CUDA does not have."""
    if kwargs.get("driver") not in (None, "gels"):
        raise RuntimeError(
            "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA"
        )


def _row_major(position: int) -> Any:
    """A function for `output` that makes the result at this position row-major.

    LAPACK, the CPU's library, gives these matrices by columns, and cuSOLVER by rows.
    """

    def lay_out_by_rows(inner: Any, kwargs: Any, out: Any) -> Any:
        """The results, `out`, one of them row-major."""
        results = [*out]
        results[position] = make_contiguous(inner, kwargs, out[position])
        return tuple(results)

    return lay_out_by_rows


def _multiply_into_dtype(name: str, /, *args: Any, out: Any = None, **named: Any) -> Any:
    """The product in the dtype of the last argument, which the CPU's kernels lack.

    `name` is that of torch's function. Sums of half-precision products are kept in single
    precision. The result is written into `out` if it is given. Raises RuntimeError for dtypes that
    CUDA does not combine, and for shapes that do not fit.
    """
    *operands, dtype = args
    left_dtype = operands[-2].dtype
    right_dtype = operands[-1].dtype
    is_widened = dtype is torch.float32 and left_dtype in HALF
    is_right_dtype = is_widened or dtype is left_dtype
    if left_dtype is not right_dtype or not is_right_dtype:
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    wide = [tensor.to(dtype) for tensor in operands]
    product = getattr(torch, name)(*wide, **named)
    if out is None:
        return product
    return out.resize_(product.shape).copy_(product)


def _in_single_product(product: Any, *operands: Any, **named: Any) -> Any:
    """The product; one in half precision is computed in single precision and rounded once.

    GPUs do it so. Where the CPU is fast in that dtype, it computes the product itself. Raises what
    `product` raises.
    """
    dtype = operands[-1].dtype
    if not is_slow_on_host(dtype):
        return product(*operands, **named)
    dtypes = {tensor.dtype for tensor in operands}
    if len(dtypes) > 1:
        return product(*operands, **named)
    wide = [tensor.float() for tensor in operands]
    return product(*wide, **named).to(dtype)


# ---- placement -----------------------------------------------------------------------------------


def _require_result_beside(name: str, result: Any, input: Any) -> None:
    """Raise RuntimeError, with `name` in its text, for a tensor of `out=` on another device.

    `result` is that tensor, or None where there is none.
    """
    if result is not None and result.device != input.device:
        raise RuntimeError(
            f"{name}: Expected result and input tensors to be on the same device, "
            f"but got result on {label_of(result)} and input on {label_of(input)}"
        )


def _judge_pinv_into(call: OperatorCall) -> Any:
    """Raise CUDA's RuntimeError for a result elsewhere; else None: the general rules decide."""
    _require_result_beside("linalg.pinv", call.given["out"], call.given["self"])


def _refuse_cholesky_solve(call: OperatorCall) -> Any:
    """Raise CUDA's RuntimeError for operands, or a result, on different devices."""
    _require_result_beside("cholesky_solve", call.given.get("out"), call.given["self"])
    right = label_of(call.given["self"])
    left = label_of(call.given["input2"])
    raise RuntimeError(
        "Expected b and A to be on the same device, "
        f"but found b on {right} and A on {left} instead."
    )


def _refuse_hermitian(args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for complex tensors with `hermitian=True`."""
    if args[0].is_complex() and kwargs.get("hermitian"):
        raise RuntimeError(
            "torch.linalg.ldl_solve: complex tensors with hermitian=True flag "
            "are not supported on CUDA."
        )


def _judge_block_diag(call: OperatorCall) -> Any:
    """Raise CUDA's RuntimeError for a tensor on another device than the first; else ALLOWED."""
    first, *others = call.given["tensors"]
    for position, tensor in enumerate(others, 1):
        if tensor.device != first.device:
            raise RuntimeError(
                "torch.block_diag: input tensors must all be on the same device. "
                f"Input 0 is on device {label_of(first)} "
                f"and input {position} is on device {label_of(tensor)}"
            )
    return ALLOWED


_SCALAR: Final = re.compile(r"^expected scalar type (\w+) but found (\w+)$")
_REAL: Final = (*HALF, torch.float32, torch.float64)


def _bmm_words(inner: Any, text: str) -> Exception | None:
    """A RuntimeError with the CPU's text for two floating dtypes, as CUDA says the same; else None.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    are_real = all(tensor.dtype in _REAL for tensor in inner[:2])
    if not are_real or not _SCALAR.match(text):
        return None
    return RuntimeError(text)


def _cross_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for different dtypes; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    found = _SCALAR.match(text)
    if found is None:
        return None
    return RuntimeError(f"Found dtype {found[2]} but expected {found[1]}")


def _mv_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for different dtypes; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    if "input tensors must have the same dtype" not in text:
        return None
    expected = DTYPE_NAMES.get(inner[0].dtype)
    found = DTYPE_NAMES.get(inner[1].dtype)
    if expected is None or found is None:
        return None
    return RuntimeError(f"expected scalar type {expected} but found {found}")


def _trace_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for a tensor that is no matrix; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    if "expected a matrix" not in text:
        return None
    return RuntimeError("expected a matrix")


def _waits_of_pinv(given: dict[str, Any]) -> int:
    """How often the host waits for `pinv` with tensors as tolerances.

    `given` are the arguments by name.
    """
    if not given["self"].numel():
        return 0
    if given.get("hermitian"):
        return 1
    return 2


# ---- entries -------------------------------------------------------------------------------------

for _name in ("mm", "bmm", "addmm", "baddbmm"):
    _single = partial(_in_single_product, getattr(torch_functions, _name))
    _words = {"words": _bmm_words} if _name == "bmm" else {}
    _rule = biased_product_workspaces if _name == "addmm" else product_workspaces
    operator(_name, binding=True, product=True, kernel=_single, workspaces=_rule, **_words)
    operator(
        f"{_name}.dtype",
        f"{_name}.dtype_out",
        kernel=partial(_multiply_into_dtype, _name),
        product=False,
    )
operator("mv", binding=True, words=_mv_words, workspaces=product_workspaces)
operator("dot", binding=True, workspaces=product_workspaces)
operator(
    "addmm_",
    "baddbmm_",
    "addmv",
    "addmv_",
    "addbmm",
    "addbmm_",
    "_int_mm",
    "_trilinear",
    workspaces=product_workspaces,
)
operator("_euclidean_dist", workspaces=distance_workspaces)
operator("_addmm_activation", workspaces=biased_product_workspaces)
operator("_grouped_mm", largest=largest.products_of_groups)
operator("_scaled_mm", workspaces=fused_product_workspaces)
operator("linalg_inv_ex", "linalg_solve_triangular", workspaces=solver_workspaces)
operator(
    "linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", workspaces=batched_solver_workspaces
)
operator("linalg_qr", workspaces=qr_workspaces)
operator("linalg_cross", words=_cross_words)
operator(
    "trace",
    emulate=wider_emulation((*HALF, torch.bool), torch.float32, torch.int64),
    complex_half=True,
    words=_trace_words,
)
operator("linalg_ldl_solve", refuse=_refuse_hermitian)
operator("block_diag", placement=_judge_block_diag)
operator("_linalg_check_errors", kernel=_check_errors)
operator("cholesky", kernel=_cholesky_with_wait)
operator("cholesky_inverse", emulate=_invert_singular)
operator("cholesky_solve", placement=_refuse_cholesky_solve)
operator("linalg_cholesky_ex", kernel=_cholesky_ex)
operator(
    "linalg_lstsq",
    kernel=_lstsq_by_gels,
    waits=("linalg", 1),
    refuse=_refuse_drivers,
    by_hand=True,
    workspaces=solver_workspaces,
)
# Solved on the host, so in and out again; a real matrix is copied once more, as a complex one.
operator(
    "linalg_eig",
    output=_row_major(1),
    waits=("linalg", lambda given: 2 if given["self"].is_complex() else 3),
)
operator(
    "_linalg_svd",
    kernel=_svd_by_any_driver,
    output=_row_major(2),
    waits=("linalg", unless_empty("A", 2)),
)
operator("_linalg_eigh", waits=("linalg", unless_empty("A", 1)))
operator("_linalg_eigvals", waits=("linalg", 2))
# One matrix is sorted by its norm into one of six cases, a batch by counting each case.
operator(
    "linalg_matrix_exp",
    waits=("linalg", lambda given: 6 if given["self"].dim() == 2 else 3),
    workspaces=solver_workspaces,
)
operator(
    "linalg_pinv.atol_rtol_tensor",
    waits=("linalg", _waits_of_pinv),
    workspaces=solver_workspaces,
)
operator("linalg_pinv.atol_rtol_tensor_out", placement=_judge_pinv_into)


# cuDNN has a type for these, but no engine; for other integers it has no type either.
_CUDNN_KNOWS: Final = (torch.uint8, torch.int8, torch.int32)


# ---- convolution ---------------------------------------------------------------------------------


def _judge_convolution(call: OperatorCall) -> Any:
    """Raise CUDA's RuntimeError for a weight or bias on another device than the input.

    None otherwise, so that the general rules decide.
    """
    given = call.given
    image = given["input"]
    weight = given["weight"]
    bias = given["bias"]
    is_mkldnn = on_host(image) and _asks_mkldnn(image, weight, given)
    # An input on the host that goes to torch's own kernels: their wrappers compare the devices.
    if on_host(image) and not is_mkldnn:
        wrapper = _wrapper_of_slow_convolution(given)
        compare_devices_by_name(wrapper, ("input", "weight", "bias"), given)
    # Otherwise the types are compared, and then the devices by cuDNN's wrapper.
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None or tensor.device.type == image.device.type:
            continue
        text = (
            f"Input type ({type_name(image)}) and {name} type ({type_name(tensor)}) "
            "should be the same"
        )
        if is_mkldnn:
            text += f" or input should be a MKLDNN tensor and {name} is a dense tensor"
        raise RuntimeError(text)
    order = [("input", "self"), ("weight", "weight")]
    compare_devices("wrapper_CUDA__cudnn_convolution", order, given)
    return None


def _wrapper_of_slow_convolution(given: dict[str, Any]) -> str:
    """The C++ function that compares devices for a convolution by torch's own kernels.

    `given` are the arguments by name.
    """
    depth = 2
    if given["weight"].dim() == 5:
        depth = 3
    if given["transposed"]:
        underscores = "__"
        if depth == 2:
            underscores = "_"
        return f"wrapper_CUDA{underscores}slow_conv_transpose{depth}d"
    if any(step != 1 for step in given["dilation"]):
        return f"wrapper_CUDA__slow_conv_dilated{depth}d"
    return f"wrapper_CUDA___slow_conv{depth}d_forward"


def _asks_mkldnn(image: torch.Tensor, weight: torch.Tensor, given: dict[str, Any]) -> bool:
    """True if torch gives this convolution on the CPU to oneDNN, formerly MKL-DNN.

    oneDNN has other words for arguments on different devices. `given` are the arguments by name.
    """
    if image.dtype is not torch.float32:
        return False
    batch = image.shape[0]
    window = weight.shape[2:][-2:]
    # A window of one point is a product of matrices, for which a small batch needs no oneDNN.
    ones = {*given["stride"], *given["dilation"], *window}
    if ones == {1} and batch < 16:
        return False
    if int(given["groups"]) > 1 or batch > 1:
        return True
    if weight.dim() > 3 and min(window) > 3:
        return True
    # The size of one image.
    if image.dim() == 5:
        image = image[..., 0]
    return image.numel() > 20480


def _refuse_integers(args: Any, kwargs: Any) -> None:
    """Raise CUDA's error for a convolution of integers: cuDNN has none, though the CPU has.

    It is a RuntimeError or a NotImplementedError. `args` are those of `convolution`.
    """
    given = args[0]
    weight = args[1]
    dtype = given.dtype
    if dtype.is_floating_point or weight.dtype is not dtype or not given.numel():
        return
    dilated = any(size > 1 for size in args[5])
    transposed = args[6]
    if transposed and dilated:
        raise kernel_lacks_dtype_error(
            f"slow_conv_transpose{max(weight.dim() - 2, 2)}d_out_cuda", DTYPE_NAMES[dtype]
        )
    if dtype in _CUDNN_KNOWS:
        raise RuntimeError("GET was unable to find an engine to execute this computation")
    if not dtype.is_complex:
        raise RuntimeError(
            f"getCudnnDataTypeFromScalarType() not supported for {DTYPE_NAMES[dtype]}"
        )


def _convolution_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for an input and a weight of different dtypes; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    given = inner[0]
    weight = inner[1]
    is_about_types = "scalar type" in text or "Input type" in text
    if given.dtype is weight.dtype or not is_about_types:
        return None
    return RuntimeError(
        f"Input type ({legacy_type_name(given)}) and weight type ({legacy_type_name(weight)}) "
        "should be the same"
    )


# ---- normalisation -------------------------------------------------------------------------------


def _widen_half(tensor: torch.Tensor) -> torch.Tensor:
    """The statistics in single precision, if they have half precision."""
    if tensor.dtype in HALF:
        return tensor.float()
    return tensor


def _batch_norm_in_single(func: Any, /, data: Any, weight: Any, bias: Any, *args: Any) -> Any:
    """The results of a batch norm; half precision is computed in single and rounded once.

    `func` is the CPU's kernel. Running statistics among the arguments are changed. Raises what the
    kernel raises.
    """
    if data.dtype not in HALF:
        return func(data, weight, bias, *args)
    given = (weight, bias, *args)
    wide = [to_single(value) for value in given]
    outs = func(data.float(), *wide)
    statistics = zip(given[2:], wide[2:], strict=True)
    for running, updated in statistics:
        if running is not updated:
            running.copy_(updated)
    result, *rest = outs
    return (result.to(data.dtype), *rest)


_LINES: Final = (
    "Expected input->is_contiguous(input->suggest_memory_format()) to be true, but got false.  "
    "(Could this error message be improved?  "
    "If so, please report an enhancement request to PyTorch.)"
)


def _refuse_gaps(args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for dimensions in an order that cuDNN does not take.

    Asked directly, it takes contiguous tensors and such with channels last.
    """
    data, weight, bias = args[:3]
    if data.dim() < 3 or weight is None or bias is None or data.is_contiguous():
        return
    if data.dtype in HALF and weight.dtype is data.dtype:
        return
    form = _LAST.get(data.dim())
    if form is None or not data.is_contiguous(memory_format=form):
        raise RuntimeError(_LINES)


def _batch_norm_as_cuda(
    training: int | None,
    statistics: bool,
    inner: Any,
    kwargs: Any,
    out: Any,
    *,
    direct: bool = False,
) -> Any:
    """The result and the statistics as CUDA leaves them.

    `inner` are the arguments with CPU tensors, `out` is what the CPU gave. `training` is the
    position of that argument, None for an operator that always trains; `statistics` says whether
    running ones are arguments; `direct` says that cuDNN is not asked.
    """
    data = inner[0]
    result, mean, invstd, *rest = out
    has_running = statistics and inner[3] is not None
    is_training = training is None or bool(inner[training])
    is_for_cudnn = not direct and (has_running or is_training)
    by_cudnn = is_for_cudnn and _cudnn_norms(*inner[:3])
    # The other kernels keep any order of dimensions.
    if not by_cudnn and result.stride() != data.stride():
        result = torch.empty_like(data).copy_(result)
    if is_training:
        return result, _widen_half(mean), _widen_half(invstd), *rest
    # cuDNN keeps nothing in eval mode; the kernel used for two dimensions or no weights keeps
    # both statistics.
    if by_cudnn:
        size = 0
    else:
        size = data.shape[1]
    dtype = torch.promote_types(data.dtype, torch.float32)
    if size and has_running:
        mean = inner[3].to(dtype, copy=True)
        variance = inner[4].to(dtype)
        eps = inner[-1]
        invstd = (variance + eps).rsqrt()
    else:
        mean = data.new_empty(size, dtype=dtype)
        invstd = data.new_empty(size, dtype=dtype)
    return result, mean, invstd, *rest


def _cudnn_norms(data: Any, weight: Any, bias: Any) -> bool:
    """True if cuDNN normalises data with these parameters."""
    if data.dim() < 3 or weight is None or bias is None:
        return False
    return data.dtype not in HALF or weight.dtype is torch.float32


def _judge_batch_norm(call: OperatorCall) -> Any:
    """Raise the RuntimeError of cuDNN's wrapper for arguments on different devices.

    None where all are on one device or cuDNN is not asked, so that the general rules decide.
    """
    given = call.given
    image = given["input"]
    if on_host(image) or image.dim() < 3 or not torch.backends.cudnn.enabled:
        return None
    if given["weight"] is None or given["bias"] is None:
        return None
    names = ("input", "weight", "bias", "running_mean", "running_var")
    compare_devices_by_name("wrapper_CUDA__cudnn_batch_norm", names, given)
    return None


def _batch_norm_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for dtypes that a batch norm does not take; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    given = inner[0]
    weight = inner[1]
    training = inner[5]
    spelled = DTYPE_NAMES[given.dtype]
    mixed = weight is not None and weight.dtype is not given.dtype
    if '"batch_norm"' not in text and "mixed dtype" not in text:
        return None
    if weight is not None and given.dim() >= 3:  # cuDNN's, which is asked for images and sequences
        if mixed:
            return RuntimeError(
                "Expected tensor for argument #1 'input' to have the same type "
                "as tensor for argument #2 'weight'; "
                f"but type {legacy_type_name(given)} does not equal {legacy_type_name(weight)} "
                "(while checking arguments for cudnn_batch_norm)"
            )
        if given.dtype in _CUDNN_KNOWS:
            return RuntimeError(f"TensorDescriptor does not support {spelled}")
        return RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {spelled}")
    if given.dtype.is_floating_point:
        if mixed:
            return dtype_mismatch_error(given, weight)
        return None
    kernel = "batch_norm_invert_std_cuda"
    if training:
        kernel = "batch_norm_stats_cuda"
    return kernel_lacks_dtype_error(kernel, spelled)


def _layer_norm_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for an input and a weight of different dtypes; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    if "mixed dtype" not in text:
        return None
    given = inner[0]
    weight = next(value for value in inner[2:4] if value is not None)
    if given.dtype.is_floating_point:
        return dtype_mismatch_error(given, weight)
    return kernel_lacks_dtype_error("LayerNormKernelImpl", DTYPE_NAMES[given.dtype])


def _refuse_other_weights(weights: slice, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for half-precision input with weights of another dtype.

    `weights` are their positions. The CPU's normalisations take such weights; CUDA's do not.
    """
    data = args[0]
    if data.dtype not in HALF:
        return
    for weight in args[weights]:
        if weight is not None and weight.dtype is not data.dtype:
            raise dtype_mismatch_error(data, weight)


def _norm_gradients_in_single(func: Any, statistic: int, /, *args: Any, **kwargs: Any) -> Any:
    """The gradients of a norm whose statistics are wider than its input.

    They are computed in single precision and cast back. `statistic` is the position of one of the
    statistics. All other calls go to `func` unchanged. Raises what `func` raises.
    """
    half = args[1].dtype
    kept = args[statistic]
    if kept is None or kept.dtype is half or half not in HALF:
        return func(*args, **kwargs)
    wide = [_float_if_real(value) for value in args]
    data, *parameters = func(*wide, **kwargs)
    # Besides input and gradient, are the parameters in half precision, too?
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    half_tensors = [tensor for tensor in tensors if tensor.dtype is half]
    if len(half_tensors) > 2:
        dtype = half
    else:
        dtype = torch.float32
    cast_parameters = [_cast_if_any(each, dtype) for each in parameters]
    return _cast_if_any(data, half), *cast_parameters


def _float_if_real(value: Any) -> Any:
    """A tensor of real numbers in single precision; any other value as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.float()
    return value


def _cast_if_any(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """The tensor in this dtype; None stays None."""
    if tensor is None:
        return None
    return tensor.to(dtype)


def make_contiguous(inner: Any, kwargs: Any, out: Any) -> Any:
    """The result, `out`, with the strides of a new tensor.

    Where a size is 0 or 1, a tensor with other strides counts as contiguous, too; here it gets
    those of a new one.
    """
    strides = torch.empty(out.shape, device="meta").stride()
    return out.contiguous().as_strided(out.shape, strides)


_UNPOOLED: Final = re.compile(
    r"indices to be same as that of the input tensor \((.*)\) but got indices .*?: (.*)"
)


def _unpool_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for indices of a wrong shape; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    shapes = _UNPOOLED.search(text)
    if shapes is None:
        return None
    return RuntimeError(f"Expected shape of indices to be: {shapes[1]} but got: {shapes[2]}")


def _contiguous_or_channels_last(inner: Any, kwargs: Any, out: Any) -> Any:
    """The result, made contiguous unless the input has channels last."""
    if has_channels_last(inner[0]):
        return out
    return out.contiguous()


def _channel_shuffle(self: torch.Tensor, groups: int) -> torch.Tensor:
    """The channels in a new order, as CUDA's kernel writes them: contiguous.

    Raises RuntimeError where the pixels do not lie in one line.
    """
    batch, channels = self.shape[:2]
    # Refused where pixels do not lie in one line.
    parts = self.view(batch, groups, channels // groups, -1)
    return parts.permute(0, 2, 1, 3).contiguous().reshape(self.shape)


# ---- other kernels -------------------------------------------------------------------------------


def _convolve(image: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    """The result of a convolution, in the memory layout that cuDNN gives it.

    `settings` are those of `torch.convolution`. Half precision is summed up in single precision;
    CPUs without such units also take a hundred times as long. Raises what the CPU's kernel raises.
    """
    dtype = image.dtype
    operands = [image, weight, bias]
    if dtype in HALF and weight.dtype is dtype:
        operands = [_cast_if_any(operand, torch.float32) for operand in operands]
    out = torch.convolution(*operands, *settings).to(dtype)
    if dtype is torch.float64 or _not_by_cudnn(settings):
        # As cuDNN writes it, which has channels last in single and half precision only.
        return out.contiguous()
    form = _layout_to_be_made(image, weight)
    if form is not None:
        return out.contiguous(memory_format=form)
    return out


def _layout_to_be_made(image: Any, weight: Any) -> torch.memory_format | None:
    """The layout with channels last of cuDNN's results, where the kernel called here has another.

    The CPU's kernel does so for pictures, but not for volumes, and that of "meta" for neither.
    """
    if not has_channels_last(image) and not has_channels_last(weight):
        return None
    if image.dim() == 5 or image.is_meta:
        return _LAST[image.dim()]
    return None


_parse_key: Final = find_internal("torch._C._parse_dispatch_key", otherwise=None)
_tf32_in_cudnn: Final = find_internal("torch._C._get_cudnn_allow_tf32", otherwise=lambda: True)


def _run_traced_convolution(keys: Any, image: Any, *rest: Any) -> Any:
    """The result of a convolution that `torch.jit.trace` records.

    The tracer knows the operator that C++ makes of a convolution for its own devices; ours are
    given the convolution itself. `keys` are the dispatch keys of the call. Raises what the
    convolution raises.
    """
    if type(image) not in VIRTUAL:
        other_keys = keys.remove(_parse_key("Tracer"))
        return aten.convolution.default.redispatch(other_keys, image, *rest)
    cudnn = torch.backends.cudnn
    products = _tf32_in_cudnn()
    return aten._convolution.default(
        image, *rest, cudnn.benchmark, cudnn.deterministic, cudnn.enabled, products
    )


def register_traced_convolution(library: Any) -> None:
    """Register the kernel of convolutions for functions that are traced.

    `library` is the torch.library.Library of aten.
    """
    if _parse_key is None:  # a traced convolution cannot be saved then
        return
    library.impl("convolution", _run_traced_convolution, "Tracer", with_keyset=True)


def _not_by_cudnn(settings: Any) -> bool:
    """True if a transposed convolution pads its result by its stride or more.

    cuDNN does not do that. `settings` are stride, padding, dilation, whether it is transposed,
    output padding and groups.
    """
    stride, _, _, transposed, output_padding, _ = settings
    if not transposed:
        return False
    pairs = zip(output_padding, stride, strict=False)
    return any(padding >= step for padding, step in pairs)


def _convolve_backward(*args: Any) -> Any:
    """The gradients of a convolution, in the memory layout that cuDNN gives them.

    `args` are those of `convolution_backward`; one that is not wanted is None. Raises what the
    CPU's kernel raises.
    """
    outs = _in_single_backward(aten.convolution_backward.default, *args)
    image = args[1]
    weight = args[2]
    form: torch.memory_format | None
    if _not_by_cudnn(args[4:10]):
        form = torch.contiguous_format
    elif image.dtype is torch.float64:
        return outs
    else:
        form = _layout_to_be_made(image, weight)
    if form is None:
        return outs
    gradients = [*outs]
    for position in (0, 1):  # of image and weight
        if gradients[position] is not None:
            gradients[position] = gradients[position].contiguous(memory_format=form)
    return tuple(gradients)


def _by_cudnn(
    image: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *how: bool
) -> Any:
    """The result of `cudnn_convolution`, which has no bias."""
    return _convolve(image, weight, None, stride, padding, dilation, False, [0], groups)


def _by_cudnn_transpose(
    image: Any,
    weight: Any,
    padding: Any,
    more: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *how: bool,
) -> Any:
    """The result of `cudnn_convolution_transpose`; `more` is its `output_padding`.

    Raises what the CPU's kernel raises.
    """
    return _convolve(image, weight, None, stride, padding, dilation, True, more, groups)


def _by_cudnn_relu(
    image: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """The result of `cudnn_convolution_relu`."""
    out = _convolve(image, weight, bias, stride, padding, dilation, False, [0], groups)
    return out.relu()


def _by_cudnn_add_relu(
    image: Any, weight: Any, more: Any, alpha: Any, bias: Any, *settings: Any
) -> Any:
    """The result of `cudnn_convolution_add_relu`: `more`, times `alpha`, is added first."""
    stride, padding, dilation, groups = settings
    out = _convolve(image, weight, bias, stride, padding, dilation, False, [0], groups)
    if alpha is None:
        alpha = 1
    return out.add(more, alpha=alpha).relu()


_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def has_channels_last(tensor: Any) -> bool:
    """True if channels come last in memory, and the tensor is not contiguous as well."""
    form = _LAST.get(tensor.dim())
    if form is None or tensor.is_contiguous():
        return False
    return bool(tensor.is_contiguous(memory_format=form))


def _grid_sampler(func: Any, image: Any, grid: Any, *settings: Any) -> Any:
    """The pixels at these places; half precision is computed in single precision.

    A place that is no finite number lies outside the picture on CUDA; on the CPU it makes the pixel
    no number. `func` is the CPU's kernel; what it raises is raised.
    """
    dtype = image.dtype
    if not grid.is_meta and not torch.isfinite(grid).all():
        grid = torch.where(torch.isfinite(grid), grid, -1e4)
    if dtype in HALF and grid.dtype is dtype:
        out = func(image.float(), grid.float(), *settings)
        return out.to(dtype)
    return func(image, grid, *settings)


def _in_single_backward(func: Any, *args: Any) -> Any:
    """The gradients; those of half precision are computed in single precision.

    `func` computes them from `args`; what it raises is raised.
    """
    half = args[0].dtype
    if half not in HALF:
        return func(*args)
    wide = [value.float() if isinstance(value, torch.Tensor) else value for value in args]
    gradients = func(*wide)
    return tuple(_cast_if_any(gradient, half) for gradient in gradients)


# ---- entries -------------------------------------------------------------------------------------

operator(
    "convolution",
    kernel=_convolve,
    placement=_judge_convolution,
    refuse=_refuse_integers,
    words=_convolution_words,
    by_hand=True,
    workspaces=convolution_workspaces,
)
operator(
    "convolution_backward",
    kernel=_convolve_backward,
    workspaces=convolution_gradient_workspaces,
)
operator("_convolution", placement=_judge_convolution)
operator("cudnn_convolution", kernel=_by_cudnn, autocast="lower")
operator("cudnn_convolution_transpose", kernel=_by_cudnn_transpose, autocast="lower")
operator("cudnn_convolution_relu", kernel=_by_cudnn_relu)
operator("cudnn_convolution_add_relu", kernel=_by_cudnn_add_relu)

operator(
    "native_batch_norm",
    kernel=partial(_batch_norm_in_single, aten.native_batch_norm.default),
    output=partial(_batch_norm_as_cuda, 5, True),
    placement=_judge_batch_norm,
    words=_batch_norm_words,
    by_hand=True,
)
operator(
    "_native_batch_norm_legit",
    kernel=partial(
        _batch_norm_in_single, find_internal("torch.ops.aten._native_batch_norm_legit.default")
    ),
    output=partial(_batch_norm_as_cuda, 5, True, direct=True),
    words=_batch_norm_words,
    by_hand=True,
)
operator("cudnn_batch_norm", by_hand=True)
operator(
    "_native_batch_norm_legit.no_stats",
    kernel=partial(
        _batch_norm_in_single, find_internal("torch.ops.aten._native_batch_norm_legit.no_stats")
    ),
    output=partial(_batch_norm_as_cuda, 3, False, direct=True),
)
operator(
    "_batch_norm_with_update",
    kernel=partial(
        _batch_norm_in_single, find_internal("torch.ops.aten._batch_norm_with_update.default")
    ),
    output=partial(_batch_norm_as_cuda, None, True),
    refuse=_refuse_gaps,
    by_hand=True,
)
operator(
    "native_batch_norm_backward",
    kernel=partial(_norm_gradients_in_single, aten.native_batch_norm_backward.default, 5),
)
operator(
    "batch_norm_backward",
    kernel=partial(_norm_gradients_in_single, aten.batch_norm_backward.default, 5),
)
operator(
    "native_layer_norm",
    output=lambda inner, kwargs, out: (out[0], _widen_half(out[1]), _widen_half(out[2])),
    refuse=partial(_refuse_other_weights, slice(2, 4)),
    words=_layer_norm_words,
    binding=True,
)
operator(
    "native_layer_norm_backward",
    kernel=partial(_norm_gradients_in_single, aten.native_layer_norm_backward.default, 3),
)
operator("native_group_norm", refuse=partial(_refuse_other_weights, slice(1, 3)))

operator(
    "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", binding=True
)
operator("max_pool2d_with_indices", binding=True)
operator("silu_backward", "mish_backward", whole=True)
operator("log_sigmoid_forward", output=lambda inner, kwargs, out: (out[0], out[1].new_empty(0)))
# CUDA keeps no buffer and computes it again.
operator(
    "log_sigmoid_backward",
    kernel=lambda grad, self, _: aten.log_sigmoid_backward.default(
        grad, self, torch.exp(-self.abs())
    ),
)
for _sampler in (aten.grid_sampler_2d, aten.grid_sampler_3d):
    operator(_sampler.__name__, kernel=partial(_grid_sampler, _sampler.default))
operator(
    "cudnn_grid_sampler",
    kernel=lambda image, grid: in_single(torch.grid_sampler, image, grid, 0, 0, True),
)
operator(
    "cudnn_grid_sampler_backward",
    kernel=lambda image, grid, grad: aten.grid_sampler_2d_backward.default(
        grad, image, grid, 0, 0, True, [True, True]
    ),
)
for _sampler in (aten.grid_sampler_2d_backward, aten.grid_sampler_3d_backward):
    operator(
        _sampler.__name__,
        kernel=partial(_in_single_backward, _sampler.default),
        nondeterministic=f"{_sampler.__name__}_cuda",
    )

for _kernel in (
    aten.upsample_linear1d,
    aten.upsample_bicubic2d,
    aten.upsample_trilinear3d,
):
    operator(_kernel.__name__, kernel=partial(in_single, _kernel.default))
_average = find_internal("torch.ops.aten._adaptive_avg_pool3d.default")
operator("_adaptive_avg_pool3d", kernel=partial(in_single, _average))
_IN_SINGLE: Final = wider_emulation(HALF, torch.float32)
operator("avg_pool3d", "_upsample_bilinear2d_aa", emulate=_IN_SINGLE)
operator(
    "_upsample_bicubic2d_aa",
    emulate=_IN_SINGLE,
    forbidden={
        "Byte": "NotImplementedError: \"upsample_bilinear2d_out_frame\" not implemented for '{T}'"
    },
)
for _name in ("upsample_bilinear2d_aa_backward", "upsample_bicubic2d_aa_backward"):
    operator(f"_{_name}", emulate=_IN_SINGLE, nondeterministic=f"{_name}_out_cuda")
operator("avg_pool3d_backward", emulate=_IN_SINGLE, nondeterministic="avg_pool3d_backward_cuda")
operator(
    "max_unpool2d",
    emulate=wider_emulation(WHOLE, torch.float64),
    words=_unpool_words,
    output=make_contiguous,
)
operator("max_unpool3d", emulate=wider_emulation(WHOLE, torch.float64), words=_unpool_words)
# Kernels that do not keep channels last.
operator("pixel_shuffle", "pixel_unshuffle", "roll", output=make_contiguous)
operator("native_dropout_backward", output=_contiguous_or_channels_last)
operator("native_channel_shuffle", "channel_shuffle", kernel=_channel_shuffle)
operator("reflection_pad2d", "reflection_pad2d_backward", output=make_contiguous)
operator("reflection_pad3d", "replication_pad2d", "replication_pad3d", output=make_contiguous)

# Sums whose order the GPU does not fix.
for _name in """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d fractional_max_pool2d
    fractional_max_pool3d max_pool3d_with_indices replication_pad1d
""".split():
    operator(f"{_name}_backward", nondeterministic=f"{_name.removeprefix('_')}_backward_cuda")
for _name in ("replication_pad2d", "replication_pad3d"):
    operator(f"{_name}_backward", nondeterministic=f"{_name}_backward_cuda", output=make_contiguous)
for _name in """
    reflection_pad1d upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_trilinear3d
""".split():
    operator(f"{_name}_backward", nondeterministic=f"{_name}_backward_out_cuda")
operator(
    "reflection_pad3d_backward",
    nondeterministic="reflection_pad3d_backward_out_cuda",
    output=make_contiguous,
)


_TARGET: Final = re.compile(
    r"expected (?:scalar type Long but found|target dtype to be Long or Byte, but got) (\w+)"
)


def _nll_loss_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for a dtype that the loss does not take; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    target = _TARGET.search(text)
    kernel = KERNEL_LACKS_DTYPE.match(text)
    if not (target or kernel):
        return None
    name = "nll_loss_forward_no_reduce_cuda_kernel"
    dims = inner[0].dim()
    if inner[3] != 0 or dims == 1:
        name = f"nll_loss_forward_reduce_cuda_kernel_{dims}d"
    if target:
        return kernel_lacks_dtype_error(f"{name}_index", target[1])
    if kernel:
        return kernel_lacks_dtype_error(name, kernel[2])
    return None


def _nll_loss2d_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for a target of a wrong dtype; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    target = _TARGET.search(text)
    if target:
        return RuntimeError(f"expected scalar type Long but found {target[1]}")
    return None


def _judge_mse_loss(call: OperatorCall) -> Any:
    """Raise CUDA's RuntimeError for an input without dimensions on the host.

    The reduction writes where the input is, and meets the other device there. None otherwise, so
    that the general rules decide.
    """
    base = call.given["self"]
    target = call.given["target"]
    if on_host(base) and base.dim() == 0:
        raise two_devices_error(label_of(base), label_of(target))
    return None


def _refuse_mse_dtypes(args: Any, kwargs: Any) -> None:
    """Raise CUDA's RuntimeError for two dtypes; `args` are gradient, input and target.

    The loss of two dtypes has the wider one, and CUDA does not cast its gradient back.
    """
    gradient, given, target = args[:3]
    for tensor in (target, gradient):
        if tensor.dtype is not given.dtype:
            raise RuntimeError(
                f"Found dtype {DTYPE_NAMES[tensor.dtype]} but expected {DTYPE_NAMES[given.dtype]}"
            )


def _judge_ctc_loss(call: OperatorCall) -> Any:
    """Allow lengths anywhere: CUDA reads them on the host. cuDNN also takes targets there.

    Raises RuntimeError for other tensors on different devices; else gives ALLOWED.
    """
    given = call.given
    name = name_of(call.func)
    targets = given["targets"]
    names = ["log_probs", "targets"]
    if name.endswith("backward"):
        names = ["grad", *names, "neg_log_likelihood", "log_alpha"]
    is_for_cudnn = targets.dtype is torch.int32 and targets.dim() == 1
    if is_for_cudnn and given.get("blank", 0) == 0 and on_host(targets):
        names.remove("targets")
    compare_devices_by_name(f"wrapper_CUDA__{name}", names, given)
    return ALLOWED


def _waits_of_ctc_loss(given: dict[str, Any]) -> int:
    """How often the host waits for a CTC loss.

    Lengths in tensors are read on the host. They and the offsets go to the device. Targets there
    are looked at. `given` are the arguments by name.
    """
    lengths = given["input_lengths"]
    waits = 3
    waits += on_device(given["targets"])
    waits += isinstance(lengths, torch.Tensor)
    waits += 3 * on_device(lengths)
    return waits


operator("nll_loss_forward", words=_nll_loss_words, asserts=True, by_hand=True)
operator(
    "nll_loss2d_forward",
    words=_nll_loss2d_words,
    asserts=True,
    nondeterministic="nll_loss2d_forward_out_cuda_template",
)
operator("nll_loss_backward", asserts=True)
operator(
    "nll_loss2d_backward", asserts=True, nondeterministic="nll_loss2d_backward_out_cuda_template"
)
operator("multi_margin_loss", "multilabel_margin_loss_forward", asserts=True, emulate=_IN_SINGLE)
operator("multi_margin_loss_backward", "multilabel_margin_loss_backward", emulate=_IN_SINGLE)
operator("soft_margin_loss", front=True)
operator("binary_cross_entropy", front=True, asserts=True, autocast="banned")
operator("mse_loss", front=True, placement=_judge_mse_loss)
operator("mse_loss_backward", refuse=_refuse_mse_dtypes)
operator("smooth_l1_loss", front=True, placement=takes_no_number)
operator("_ctc_loss", placement=_judge_ctc_loss, waits=("ctc_loss", _waits_of_ctc_loss))
operator(
    "_ctc_loss_backward",
    placement=_judge_ctc_loss,
    waits=("ctc_loss", 3),
    nondeterministic="ctc_loss_backward_gpu",
)
operator("_ctc_loss_backward.Tensor", waits=("ctc_loss", 5))
operator("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", placement=allow_anywhere)
operator("_pdist_backward", emulate=_IN_SINGLE)
