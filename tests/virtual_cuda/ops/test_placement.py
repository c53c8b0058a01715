"""Tensors on different devices: CUDA's words where it refuses, CUDA's device where it does not
(from an H200).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from virtual_cuda import virtual_cuda

from tests.virtual_cuda.releases import TORCH

SAME = "Expected all tensors to be on the same device, but "
TWO = SAME + "found at least two devices, cuda:0 and cpu!"


@pytest.fixture(autouse=True)
def device() -> Iterator[Any]:
    with virtual_cuda(devices=2) as gpu:
        yield gpu


def on(*shape: int, index: int = 0) -> Any:
    return torch.ones(shape, device=f"cuda:{index}")


def got(name: str, where: str, others: str, method: str) -> str:
    different = f"got {name} is on {where}, different from other tensors on {others}"
    return f"{SAME}{different} (when checking argument in method {method})"


def elsewhere(name: str) -> str:
    between = "Expected result and input tensors to be on the same device"
    return f"{name}: {between}, but got result on cpu and input on cuda:0"


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "add": (lambda: torch.ones(2) + on(2), TWO),
    "two devices": (lambda: on(2) + on(2, index=1), TWO.replace("cpu", "cuda:1")),
    "out": (lambda: torch.add(on(2), on(2), out=torch.ones(2)), TWO),
    "number as output": (lambda: torch.tensor(1.0).add_(on()), TWO),
    "too many numbers": (
        lambda: torch.ops.aten.addcmul.default(on(2), torch.tensor(1.0), torch.tensor(1.0)),
        "Trying to pass too many CPU scalars to non-CPU kernel!",
    ),
    "pinv into": (
        lambda: torch.linalg.pinv(on(2, 2), out=torch.ones(2, 2)),
        elsewhere("linalg.pinv"),
    ),
    "cholesky_solve into": (
        lambda: torch.cholesky_solve(on(2, 2), on(2, 2), out=torch.ones(2, 2)),
        elsewhere("cholesky_solve"),
    ),
    "cond into": (
        lambda: torch.linalg.cond(on(2, 2), out=torch.ones(1)),
        elsewhere("linalg.cond"),
    ),
    "matrix_rank into": (
        lambda: torch.linalg.matrix_rank(on(2, 2), out=torch.ones(1, dtype=torch.int64)),
        elsewhere("torch.linalg.matrix_rank"),
    ),
    "tensorinv into": (
        lambda: torch.linalg.tensorinv(on(1, 1), ind=1, out=torch.ones(1, 1)),
        elsewhere("tensorinv"),
    ),
    "multi_dot into": (
        lambda: torch.linalg.multi_dot([on(2, 2), on(2, 2)], out=torch.ones(2, 2)),
        "multi_dot(): expected out tensor to be on device cuda:0 but got cpu",
    ),
    "mse": (lambda: functional.mse_loss(on(), torch.tensor(1.0)), TWO),
    "lerp": (
        lambda: torch.lerp(on(2), torch.tensor(1.0), 0.5),
        "argument 2: expected a CUDA device but found cpu",
    ),
    "logical": (lambda: torch.logical_or(torch.tensor(True), on().bool()), TWO),
    "mm": (lambda: torch.ones(2, 2) @ on(2, 2), got("mat2", "cuda:0", "cpu", "wrapper_CUDA_mm")),
    "mm out": (
        lambda: torch.mm(on(2, 2), on(2, 2), out=torch.ones(2, 2)),
        got("self", "cuda:0", "cpu", "wrapper_CUDA_mm_out_out"),
    ),
    "mv": (
        lambda: torch.mv(on(2, 2), torch.ones(2)),
        got("mat", "cuda:0", "cpu", "wrapper_CUDA_addmv_"),
    ),
    "stack": (
        lambda: torch.stack([on(2), torch.ones(2)]),
        got("tensors", "cpu", "cuda:0", "wrapper_CUDA_cat"),
    ),
    "scatter": (
        lambda: on(3).scatter(0, torch.tensor([0]), 1.0),
        got("index", "cpu", "cuda:0", "wrapper_CUDA_scatter_value"),
    ),
    "embedding": (
        lambda: nn.Embedding(3, 2).to("cuda")(torch.tensor([1])),
        got("index", "cpu", "cuda:0", "wrapper_CUDA__index_select"),
    ),
    "searchsorted": (
        lambda: torch.searchsorted(on(3), torch.ones(2)),
        got("self", "cpu", "cuda:0", "wrapper_CUDA_Tensor_searchsorted"),
    ),
    "index": (
        lambda: torch.ones(3)[torch.tensor([0], device="cuda")],
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "index_put value": (lambda: on(3).index_put((torch.tensor([0, 1]),), torch.ones(2)), TWO),
    "index_put sorted": (
        lambda: on(3).index_put((torch.tensor([0, 1]),), torch.ones(2), accumulate=True),
        "expected device cuda:0 but got device cpu for value tensor",
    ),
    "mask": (
        lambda: on(2).masked_fill(torch.tensor([True, False]), 0.0),
        "expected self and mask to be on the same device, but got mask on cpu and self on cuda:0",
    ),
    "where": (lambda: torch.where(on(2) > 0, torch.ones(2), on(2)), TWO),
    "convolution": (
        lambda: nn.Conv2d(1, 1, 1)(on(1, 1, 2, 2)),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be "
            "the same"
        ),
    ),
    "convolution of one image": (
        lambda: nn.Conv2d(1, 1, 3).to("cuda")(torch.ones(1, 1, 4, 4)),
        got("weight", "cuda:0", "cpu", "wrapper_CUDA___slow_conv2d_forward"),
    ),
    "convolution of a batch": (
        lambda: nn.Conv2d(1, 1, 3).to("cuda")(torch.ones(4, 1, 4, 4)),
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the "
        "same or input should be "
        "a MKLDNN tensor and weight is a dense tensor",
    ),
    "batch norm": (
        lambda: nn.BatchNorm2d(2)(on(2, 2, 2, 2)),
        got("weight", "cpu", "cuda:0", "wrapper_CUDA__cudnn_batch_norm"),
    ),
    "batch norm of rows": (
        lambda: nn.BatchNorm1d(2)(on(2, 2)),
        got("weight", "cpu", "cuda:0", "wrapper_CUDA__native_batch_norm"),
    ),
    "rms norm": (
        lambda: nn.RMSNorm(2)(on(2, 2)),
        got("weight", "cpu", "cuda:0", "wrapper_CUDA___fused_rms_norm") if TORCH >= (2, 9) else TWO,
    ),
    "cell": (
        lambda: nn.GRUCell(2, 3).to("cuda")(on(1, 2), torch.zeros(1, 3)),
        got("mat2", "cuda:0", "cpu", "wrapper_CUDA_mm"),
    ),
    "recurrent": (
        lambda: nn.GRU(2, 2).to("cuda")(on(3, 1, 2), torch.zeros(1, 1, 2)),
        (
            "Input and hidden tensors are not at the same device, found input tensor at cuda:0 "
            "and hidden tensor at cpu"
        ),
    ),
    "attention": (
        lambda: functional.scaled_dot_product_attention(
            *[on(1, 1, 2, 4)] * 3, attn_mask=torch.ones(2, 2).bool()
        ),
        got("attn_bias", "cpu", "cuda:0", "wrapper_CUDA___scaled_dot_product_efficient_attention"),
    ),
    "lengths": (
        lambda: nn.utils.rnn.pack_padded_sequence(on(3, 1, 2), torch.tensor([3], device="cuda")),
        "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor",
    ),
    "foreach": (lambda: torch._foreach_add([on(2), on(2)], [on(2), torch.ones(2)]), TWO),
    "foreach maximum": (
        lambda: torch._foreach_maximum([on(2)], [torch.ones(2)]),
        got("min", "cpu", "cuda:0", "wrapper_CUDA_clamp_min_Tensor"),
    ),
    "sum out": (
        lambda: torch.sum(on(2, 2), 0, out=torch.ones(2)),
        "Expected out tensor to have device cuda:0, but got cpu instead",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_cudas_words(case: str) -> None:
    call, text = REFUSED[case]
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call()


ALLOWED: dict[str, tuple[Callable[[], Any], str]] = {
    "number": (lambda: torch.tensor(2.0) * on(2), "cuda:0"),
    "number in place": (lambda: on(2).mul_(torch.tensor(2.0)), "cuda:0"),
    "host index": (lambda: on(3)[torch.tensor([0, 2])], "cuda:0"),
    "host mask": (lambda: on(3)[torch.tensor([True, False, True])], "cuda:0"),
    "device index into host": (
        lambda: torch.ones(3).index_put((torch.tensor([0]).to("cuda"),), torch.tensor(2.0)),
        "cpu",
    ),
    "fill": (lambda: torch.ones(3).masked_fill(torch.tensor([True, False, True]), 0.0), "cpu"),
    "fill by device number": (lambda: torch.zeros(2).fill_(on()), "cpu"),
    "where": (lambda: torch.where(on(2) > 0, torch.tensor(1.0), torch.tensor(0.0)), "cuda:0"),
    "scatter of a slice": (
        lambda: torch.slice_scatter(torch.zeros(3), on(1), start=0, end=1),
        "cpu",
    ),
    "foreach": (lambda: torch._foreach_mul([on(2), torch.ones(2)], 2.0)[1], "cpu"),
    "lengths": (
        lambda: nn.utils.rnn.pack_padded_sequence(on(3, 1, 2), torch.tensor([3])).data,
        "cuda:0",
    ),
    "batch sizes": (
        lambda: nn.utils.rnn.pack_padded_sequence(on(3, 1, 2), torch.tensor([3])).batch_sizes,
        "cpu",
    ),
    "lerp weight": (lambda: torch.lerp(on(2), on(2), torch.tensor(0.5)), "cuda:0"),
    "maximum": (lambda: on(2, 2).max(1).indices, "cuda:0"),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed_and_where_it_comes_out(case: str) -> None:
    call, where = ALLOWED[case]
    assert str(call().device) == where


def test_in_place_on_the_host_changes_the_host_tensor() -> None:
    target = torch.zeros(3)
    target[torch.tensor([True, False, True], device="cuda")] = 1.0
    assert target.tolist() == [1.0, 0.0, 1.0]


def test_foreach_in_place_changes_every_tensor() -> None:
    tensors = [on(2), torch.ones(2)]
    torch._foreach_add_(tensors, 1.0)
    assert [t.tolist() for t in tensors] == [[2.0, 2.0], [2.0, 2.0]]
    assert [str(t.device) for t in tensors] == ["cuda:0", "cpu"]


def test_foreach_of_one_list_runs_where_each_tensor_is() -> None:
    roots = torch._foreach_sqrt([on(2), torch.ones(2)])
    assert [str(each.device) for each in roots] == ["cuda:0", "cpu"]


def test_foreach_refuses_factors_on_the_device_and_too_few() -> None:
    lists = [[torch.ones(2, device="cuda")] * 3 for _ in range(3)]
    for function in (torch._foreach_addcmul, torch._foreach_addcdiv_):
        with pytest.raises(RuntimeError, match="Expected scalars to be on CPU, got cuda:0"):
            function(*lists, torch.ones(3, device="cuda"))
        with pytest.raises(RuntimeError, match="of length 3 but got 2"):
            function(*lists, torch.ones(2))


def test_foreach_takes_its_factors_from_a_tensor_on_the_host() -> None:
    ones = [on(1), on(1)]
    sums = torch._foreach_addcmul(ones, ones, ones, torch.tensor([1.0, 2.0]))
    assert [each.item() for each in sums] == [2.0, 3.0]
    with pytest.raises(RuntimeError, match="Got 2 instead"):
        torch._foreach_addcmul(ones, ones, ones, torch.ones(1, 2))


def test_ctc_loss_reads_lengths_on_the_host() -> None:
    scores = torch.zeros(5, 1, 4, device="cuda").log_softmax(2)
    loss = functional.ctc_loss(
        scores, torch.tensor([[1, 2]]).to("cuda"), torch.tensor([5]), torch.tensor([2])
    )
    assert str(loss.device) == "cuda:0"
