"""Operators for which CUDA has a kernel and the CPU has none: in half precision, with `out_dtype`, in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from virtual_cuda import virtual_cuda


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Any]:
    with virtual_cuda() as gpu:
        yield gpu


@pytest.mark.parametrize("function", [F.silu, F.mish])
def test_backward_is_one_operation(gpu: Any, function: Any) -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    made = function(x)
    before = len(gpu.ledger)
    made.backward(torch.ones(4, device="cuda"))
    names = [str(row[4]) for row in gpu.ledger.rows[before:] if "backward" in str(row[4:5])]
    assert names == [f"aten.{function.__name__}_backward.default"]


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm"])
def test_products_in_single_precision(name: str) -> None:
    shape = (2, 3, 3) if "bmm" in name else (3, 3)
    operands = [torch.randn(shape).bfloat16() for _ in range(3 if "add" in name else 2)]
    function = getattr(torch, name)
    made = function(*(each.cuda() for each in operands), out_dtype=torch.float32)
    assert made.dtype is torch.float32
    torch.testing.assert_close(made.cpu(), function(*(each.float() for each in operands)))
    with pytest.raises(RuntimeError, match="out_dtype"):
        function(*(each.cuda() for each in operands), out_dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_transforms_in_half_precision() -> None:
    x = torch.randn(4, 8).half()
    made = torch.fft.rfft(x.cuda())
    assert made.dtype is torch.complex32
    torch.testing.assert_close(made.cpu().to(torch.complex64), torch.fft.rfft(x.float()), rtol=1e-2, atol=1e-2)
    assert torch.fft.irfft(made).dtype is torch.float16
    for refused in (lambda: torch.fft.rfft(x[:, :6].cuda()), lambda: torch.fft.fftn(x.cuda(), (4, 5))):
        with pytest.raises(RuntimeError, match="powers of two"):
            refused()


def test_complex_numbers_are_summed_without_those_missing() -> None:
    z = torch.tensor([[1 + 2j, float("nan")], [3j, 4]], device="cuda")
    assert torch.nansum(z).item() == 5 + 5j
    assert torch.nansum(z, 0).tolist() == [1 + 5j, 4]


def test_a_conjugate_result_knows_that_it_is_one() -> None:
    a, b = (torch.randn(3, dtype=torch.complex64) for _ in range(2))
    made = torch.vdot(a.cuda(), b.cuda().conj())
    assert made.is_conj() == torch.vdot(a, b.conj()).is_conj()
    torch.testing.assert_close(made.cpu(), a.conj() @ b.conj())
