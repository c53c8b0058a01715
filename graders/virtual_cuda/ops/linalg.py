"""Matrix products, factorizations and solvers."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from virtual_cuda.device.messages import label_of
from virtual_cuda.ops import placement
from virtual_cuda.ops.elementwise import HALF, widened
from virtual_cuda.ops.placement import OperatorCall, unless_empty
from virtual_cuda.ops.registry import ALLOWED, operator

aten: Final = torch.ops.aten


# ---- kernels. Some record their waits themselves, since they may raise and have waited by then ----------------------


def _check_errors(info: Any, api_name: str, *, is_matrix: bool) -> Any:
    """Whether anything failed is read; where it did, also which."""
    placement.note("linalg")
    try:
        return aten._linalg_check_errors.default(info, api_name, is_matrix=is_matrix)
    except Exception:
        placement.note("linalg")
        raise


def _cholesky(self: Any, upper: bool = False) -> Any:
    if self.numel():
        placement.note("linalg")
    return aten.cholesky.default(self, upper)


def _cholesky_ex(self: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Where the factorization stops, CUDA has already taken the square root of what is negative."""
    factor, info = aten.linalg_cholesky_ex.default(self, upper=upper, check_errors=check_errors)
    failed = info > 0
    if failed.any():
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        order = torch.arange(1, diagonal.shape[-1] + 1)
        diagonal.masked_fill_(failed.unsqueeze(-1) & (order >= info.unsqueeze(-1)) & (diagonal <= 0), float("nan"))
    return factor, info


def _lstsq(self: Any, b: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """CUDA has one driver, which assumes full rank."""
    return aten.linalg_lstsq.default(self, b, rcond, driver=driver or "gels")


def _refuse_drivers(args: Any, kwargs: Any) -> None:
    if kwargs.get("driver") not in (None, "gels"):
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")


def _row_major(position: int) -> Any:
    """Matrices that LAPACK gives by columns and cuSOLVER by rows."""
    return lambda inner, kwargs, out: tuple(t.contiguous() if i == position else t for i, t in enumerate(out))


def _into(name: str, /, *args: Any, out: Any = None, **named: Any) -> Any:
    """A product with `out_dtype`, which the CPU lacks: sums of half-precision products are kept in single precision."""
    *operands, dtype = args
    one, other = (t.dtype for t in operands[-2:])
    if one is not other or (dtype is not one and (dtype is not torch.float32 or one not in HALF)):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    made = getattr(torch, name)(*(t.to(dtype) for t in operands), **named)
    return made if out is None else out.resize_(made.shape).copy_(made)


# ---- placement -------------------------------------------------------------------------------------------------------


def _cholesky_solve(call: OperatorCall) -> Any:
    right, left = label_of(call.given["self"]), label_of(call.given["input2"])
    raise RuntimeError(f"Expected b and A to be on the same device, but found b on {right} and A on {left} instead.")


def _block_diag(call: OperatorCall) -> Any:
    first, *others = call.given["tensors"]
    for position, tensor in enumerate(others, 1):
        if tensor.device != first.device:
            raise RuntimeError(
                "torch.block_diag: input tensors must all be on the same device. "
                f"Input 0 is on device {label_of(first)} and input {position} is on device {label_of(tensor)}"
            )
    return ALLOWED


# ---- entries ---------------------------------------------------------------------------------------------------------

operator("mm", "addmm", "bmm", "baddbmm", binding=True, product=True)
for _name in ("mm", "bmm", "addmm", "baddbmm"):
    operator(f"{_name}.dtype", f"{_name}.dtype_out", kernel=partial(_into, _name), product=False)
operator("mv", "dot", binding=True)
operator("trace", emulate=widened((*HALF, torch.bool), torch.float32, torch.int64))
operator("block_diag", placement=_block_diag)
operator("_linalg_check_errors", kernel=_check_errors)
operator("cholesky", kernel=_cholesky)
operator("cholesky_solve", placement=_cholesky_solve)
operator("linalg_cholesky_ex", kernel=_cholesky_ex)
operator("linalg_lstsq", kernel=_lstsq, waits=("linalg", 1), refuse=_refuse_drivers, by_hand=True)
# Solved on the host, so in and out again; a real matrix is copied once more, as a complex one.
operator("linalg_eig", output=_row_major(1), waits=("linalg", lambda given: 2 if given["self"].is_complex() else 3))
operator("_linalg_svd", output=_row_major(2), waits=("linalg", unless_empty("A", 2)))
operator("_linalg_eigh", waits=("linalg", unless_empty("A", 1)))
operator("_linalg_eigvals", waits=("linalg", 2))
# One matrix is sorted by its norm into one of six cases, a batch by counting each case.
operator("linalg_matrix_exp", waits=("linalg", lambda given: 6 if given["self"].dim() == 2 else 3))
operator(
    "linalg_pinv.atol_rtol_tensor",
    waits=("linalg", lambda given: (1 if given.get("hermitian") else 2) if given["self"].numel() else 0),
)
