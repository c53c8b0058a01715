"""The virtual device refuses what CUDA refuses, in CUDA's words.

The words are those an H200 used (torch 2.11), but for mixed dtypes in convolution, LayerNorm and
BatchNorm and for class indices of images, which nobody recorded: those are written after ATen's
source, unseen on a GPU. Those of float8 are from public reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from virtual_cuda import virtual_cuda

HALF = torch.half
DOUBLE = torch.double
INT = torch.int
LONG = torch.long
BYTE = torch.uint8
BOOL = torch.bool
FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with virtual_cuda():
        yield


def ones(*shape: int, dtype: torch.dtype = torch.float) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device="cuda")


Call = Callable[[], Any]


def missing(kernel: str, dtype: str) -> str:
    return f"\"{kernel}\" not implemented for '{dtype}'"


@pytest.mark.parametrize(
    ("call", "kernel", "dtype"),
    [
        (lambda: ones(2, 2, dtype=LONG) @ ones(2, 2, dtype=LONG), "addmm_cuda", "Long"),
        (
            lambda: ones(2, 2, dtype=torch.int16) @ ones(2, 2, dtype=torch.int16),
            "addmm_cuda",
            "Short",
        ),
        (lambda: ones(2, 2, dtype=BOOL) @ ones(2, 2, dtype=BOOL), "addmm_cuda", "Bool"),
        (lambda: ones(2, 2, dtype=BYTE) @ ones(2, dtype=BYTE), "addmv_impl_cuda", "Byte"),
        (lambda: ones(2, 2, 2, dtype=LONG) @ ones(2, 2, 2, dtype=LONG), "baddbmm_cuda", "Long"),
        (lambda: torch.dot(ones(2, dtype=INT), ones(2, dtype=INT)), "dot", "Int"),
        (lambda: ones(2, dtype=FLOAT8) + 1, "ufunc_add_CUDA", "Float8_e4m3fn"),
        (lambda: ones(2, dtype=FLOAT8) * 2, "mul_cuda", "Float8_e4m3fn"),
        (
            lambda: ones(2, 2, dtype=INT).addmm_(ones(2, 2, dtype=INT), ones(2, 2, dtype=INT)),
            "addmm_cuda",
            "Int",
        ),
        (
            lambda: F.linear(ones(2, 2, dtype=LONG), ones(2, 2, dtype=LONG), ones(2, dtype=LONG)),
            "addmm_cuda",
            "Long",
        ),
        (
            lambda: F.max_pool2d(ones(1, 1, 4, 4, dtype=LONG), 2),
            "max_pool2d_with_indices_out_cuda_frame",
            "Long",
        ),
        (
            lambda: F.avg_pool2d(ones(1, 1, 4, 4, dtype=BYTE), 2),
            "avg_pool2d_out_cuda_frame",
            "Byte",
        ),
        (lambda: F.dropout(ones(2, dtype=LONG)), "fused_dropout", "Long"),
        (lambda: ones(2) & ones(2), "bitwise_and_cuda", "Float"),
        (
            lambda: ones(2, dtype=torch.cfloat) > ones(2, dtype=torch.cfloat),
            "compare_cuda",
            "ComplexFloat",
        ),
        (lambda: torch.bincount(ones(2)), "bincount_cuda", "Float"),
        (lambda: ones(2, 2, dtype=LONG).softmax(0), "host_softmax", "Long"),
        (
            lambda: F.cross_entropy(ones(2, 3, dtype=LONG), ones(2, dtype=LONG)),
            "host_softmax",
            "Long",
        ),
        (lambda: F.mse_loss(ones(2, dtype=LONG), ones(2, dtype=LONG)), "mse_cuda", "Long"),
        (lambda: F.gelu(ones(2, dtype=LONG)), "GeluCUDAKernelImpl", "Long"),
        (lambda: ones(2, dtype=LONG).normal_(), "normal_kernel_cuda", "Long"),
        (
            lambda: F.interpolate(ones(1, 1, 2, 2, dtype=LONG), scale_factor=2),
            "upsample_nearest2d_out_frame",
            "Long",
        ),
        (
            lambda: nn.LayerNorm(2, device="cuda")(ones(2, 2, dtype=LONG)),
            "LayerNormKernelImpl",
            "Long",
        ),
        (
            lambda: nn.BatchNorm1d(2, device="cuda")(ones(2, 2, dtype=LONG)),
            "batch_norm_stats_cuda",
            "Long",
        ),
    ],
)
def test_no_kernel_for_the_dtype(call: Call, kernel: str, dtype: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        call()
    assert str(caught.value) == missing(kernel, dtype)


@pytest.mark.parametrize(
    ("target", "options", "kernel"),
    [
        (INT, {}, "nll_loss_forward_reduce_cuda_kernel_2d_index"),
        (INT, {"reduction": "none"}, "nll_loss_forward_no_reduce_cuda_kernel_index"),
        (torch.float, {}, "nll_loss_forward_reduce_cuda_kernel_2d_index"),
        (BOOL, {"reduction": "sum"}, "nll_loss_forward_reduce_cuda_kernel_2d_index"),
    ],
)
def test_class_indices_of_another_dtype(
    target: torch.dtype, options: dict[str, Any], kernel: str
) -> None:
    with pytest.raises(NotImplementedError, match=kernel):
        F.cross_entropy(ones(2, 3), ones(2, dtype=target), **options)


def test_class_indices_of_an_image() -> None:
    with pytest.raises(RuntimeError, match=r"^expected scalar type Long but found Int$"):
        F.cross_entropy(ones(2, 3, 4, 4), ones(2, 4, 4, dtype=INT))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: ones(2, 2) @ ones(2, 2, dtype=DOUBLE),
            "expected mat1 and mat2 to have the same dtype, but got: float != double",
        ),
        (
            lambda: ones(2, 2, dtype=LONG) @ ones(2, 2),
            "expected mat1 and mat2 to have the same dtype, but got: long int != float",
        ),
        (
            lambda: F.conv2d(ones(1, 1, 4, 4), ones(1, 1, 3, 3, dtype=HALF)),
            (
                "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) "
                "should be the same"
            ),
        ),
        (
            lambda: F.conv2d(ones(1, 1, 4, 4, dtype=torch.bfloat16), ones(1, 1, 3, 3)),
            (
                "Input type (CUDABFloat16Type) and weight type (torch.cuda.FloatTensor) should be "
                "the same"
            ),
        ),
        (
            lambda: F.conv2d(ones(1, 1, 4, 4, dtype=LONG), ones(1, 1, 3, 3, dtype=LONG)),
            "getCudnnDataTypeFromScalarType() not supported for Long",
        ),
        (
            lambda: F.conv2d(ones(1, 1, 4, 4, dtype=BYTE), ones(1, 1, 3, 3, dtype=BYTE)),
            "GET was unable to find an engine to execute this computation",
        ),
        (
            lambda: F.embedding(ones(2), ones(3, 2)),
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            "Long, Int; "
            "but got torch.cuda.FloatTensor instead (while checking arguments for embedding)",
        ),
        (
            lambda: nn.LayerNorm(2, device="cuda")(ones(2, 2, dtype=HALF)),
            "expected scalar type Half but found Float",
        ),
        (
            lambda: nn.LayerNorm(2, device="cuda")(ones(2, 2, dtype=DOUBLE)),
            "expected scalar type Double but found Float",
        ),
        (
            lambda: nn.BatchNorm2d(2, device="cuda")(ones(2, 2, 3, 3, dtype=DOUBLE)),
            "Expected tensor for argument #1 'input' to have the same type as tensor for argument "
            "#2 'weight'; "
            "but type torch.cuda.DoubleTensor does not equal torch.cuda.FloatTensor "
            "(while checking arguments for cudnn_batch_norm)",
        ),
        (
            lambda: torch.linalg.lstsq(ones(3, 2), ones(3, 1), driver="gelsd"),
            "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA",
        ),
    ],
)
def test_arguments_that_do_not_go_together(call: Call, said: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value) == said


def test_a_squared_error_of_two_dtypes_has_no_gradient() -> None:
    given = ones(2).requires_grad_()
    loss = F.mse_loss(given, ones(2, dtype=DOUBLE))
    with pytest.raises(RuntimeError, match=r"^Found dtype Double but expected Float$"):
        torch.autograd.backward(loss)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_an_atomic_gradient_is_refused_where_order_matters() -> None:
    given = ones(1, 1, 4, 4).requires_grad_()
    total = torch._C._nn.upsample_bicubic2d(
        given, [8, 8], False
    ).sum()  # since torch 2.15 F.interpolate avoids it
    with pytest.raises(
        RuntimeError,
        match=r"^upsample_bicubic2d_backward_out_cuda does not have a deterministic impl",
    ):
        torch.autograd.backward(total)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(
        UserWarning, match=r"^median CUDA with indices output does not have a deterministic implem"
    ):
        ones(3).median(0)
    torch.use_deterministic_algorithms(True)
    assert ones(3).cumsum(0).tolist() == [
        1,
        2,
        3,
    ]  # an H200 alerts to neither this nor the padding's gradient
    padded = ones(1, 1, 3, 3).requires_grad_()
    F.pad(padded, (1, 1, 1, 1), mode="reflect").sum().backward()
    assert torch.bincount(ones(3, dtype=LONG)).tolist() == [0, 3]


def test_an_operator_without_a_cuda_kernel() -> None:
    with pytest.raises(
        NotImplementedError,
        match=r"^Could not run 'aten::histogram\.bin_ct' with arguments from the 'CUDA'",
    ):
        torch.histogram(ones(3), 2)


def test_shapes_are_checked_before_dtypes() -> None:
    with pytest.raises(
        RuntimeError, match=r"^(mm: )?mat1 and mat2 shapes cannot be multiplied \(2x2 and 3x2\)$"
    ):
        ones(2, 2, dtype=LONG) @ ones(3, 2, dtype=LONG)


def test_a_refused_change_in_place_changes_nothing() -> None:
    total = ones(2, 2, dtype=LONG)
    with pytest.raises(NotImplementedError):
        total.addmm_(ones(2, 2, dtype=LONG), ones(2, 2, dtype=LONG))
    assert total.cpu().tolist() == [[1, 1], [1, 1]]


def test_nothing_is_refused_for_empty_matrices() -> None:
    assert (ones(0, 2, dtype=LONG) @ ones(2, 3, dtype=LONG)).shape == (0, 3)


def test_what_cuda_computes_is_computed() -> None:
    assert (ones(2, 2) @ ones(2, 2)).sum().item() == 8
    assert F.cross_entropy(ones(2, 3), ones(2, dtype=BYTE)).item() > 0
    assert nn.BatchNorm1d(2, device="cuda")(ones(2, 2, dtype=HALF)).dtype is HALF
    assert F.max_pool2d(ones(1, 1, 4, 4), 2).shape == (1, 1, 2, 2)


def test_the_host_keeps_its_own_words() -> None:
    assert (torch.ones(2, 2, dtype=LONG) @ torch.ones(2, 2, dtype=LONG)).sum() == 8
    with pytest.raises(NotImplementedError, match="bitwise_and_cpu"):
        torch.ones(2) & torch.ones(2)
