"""Sparse tensors of every layout on the virtual device, compared with the CPU's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from virtual_cuda import virtual_cuda

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

TABLE = torch.tensor([[0.0, 0, 1, 2, 0, 0], [0, 0, 0, 3, 0, 0], [4, 0, 0, 0, 0, 5], [0, 6, 0, 0, 7, 8]])
X = torch.arange(18.0).view(6, 3) / 10 - 0.5
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
}
COMPRESSED = [kind for kind in KINDS if kind != "coo"]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with virtual_cuda():
        yield


def assert_same(mine: torch.Tensor | None, theirs: torch.Tensor | None) -> None:
    assert mine is not None
    assert theirs is not None
    assert mine.is_cuda
    assert (mine.layout, mine.dtype, mine.shape) == (theirs.layout, theirs.dtype, theirs.shape)
    torch.testing.assert_close(mine.detach().cpu().to_dense(), theirs.detach().to_dense())


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda s: s.to_dense(),
    "times a number": lambda s: s * 2,
    "negative": lambda s: -s,
    "sum of two": lambda s: s + s,
    "product": lambda s: s @ X.to(s),
    "vector": lambda s: s @ X[:, 0].to(s),
    "layer": lambda s: F.linear(X.t().contiguous().to(s), s),
    "transposed": lambda s: s.t(),
    "cast": lambda s: s.double(),
    "copy": lambda s: s.clone(),
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_operations(kind: str, operation: str) -> None:
    host = KINDS[kind](TABLE)
    try:
        wanted = OPERATIONS[operation](host)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            OPERATIONS[operation](host.cuda())
    else:
        assert_same(OPERATIONS[operation](host.cuda()), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_conversions(kind: str, other: str) -> None:
    there = KINDS[kind](TABLE.cuda())
    try:
        wanted = KINDS[other](KINDS[kind](TABLE))
    except RuntimeError:
        with pytest.raises(RuntimeError):
            KINDS[other](there)
    else:
        converted = KINDS[other](there)
        assert_same(converted, wanted)
        assert (converted is there) is (kind == other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["coo", "csr"])
def test_half_precision(kind: str, dtype: torch.dtype) -> None:
    s = KINDS[kind](TABLE.to("cuda", dtype))
    for made, wanted in ((s + s, TABLE * 2), (s @ X.to(s), TABLE @ X)):
        assert made.dtype is dtype
        torch.testing.assert_close(made.cpu().to_dense().float(), wanted, rtol=2e-2, atol=2e-2)
    if kind == "coo":
        assert s.add_(s).to_dense().tolist() == (TABLE * 2).tolist()


def gradients(kind: str, device: str) -> list[torch.Tensor | None]:
    s, x = KINDS[kind](TABLE).to(device).requires_grad_(), X.detach().clone().to(device).requires_grad_()
    for _ in range(2):  # the second time, gradients are added
        (s @ x).pow(2).sum().backward()
        (s.to_dense() * TABLE.to(device)).sum().backward()
    return [s.grad, x.grad]


@pytest.mark.parametrize("kind", ["coo", "csr"])
def test_gradients(kind: str) -> None:
    for mine, theirs in zip(gradients(kind, "cuda"), gradients(kind, "cpu"), strict=True):
        assert_same(mine, theirs)


def test_gradients_of_the_values() -> None:
    def gradient(device: str) -> torch.Tensor | None:
        s = KINDS["csr"](TABLE).to(device).requires_grad_()
        s.values().pow(2).sum().backward()
        return s.grad

    assert_same(gradient("cuda"), gradient("cpu"))


@pytest.mark.parametrize("kind", COMPRESSED)
def test_questions_of_coo_tensors_are_refused(kind: str) -> None:
    there = KINDS[kind](TABLE.cuda())
    for ask in (torch.Tensor.is_coalesced, torch.Tensor.coalesce, torch.Tensor.indices):
        with pytest.raises(RuntimeError, match="expected sparse coordinate tensor layout"):
            getattr(there, ask.__name__)()


class SparseLinear(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_sparse_weights_move_with_their_module(kind: str) -> None:
    layer, x = SparseLinear(KINDS[kind](TABLE)), X.t().contiguous()
    wanted, weight = layer(x), layer.weight
    made = layer.cuda()(x.cuda())
    assert_same(made, wanted)
    assert (layer.weight.layout, layer.weight.is_cuda) == (weight.layout, True)
    assert isinstance(layer.weight, nn.Parameter)
    assert_same(copy.deepcopy(layer)(x.cuda()), wanted)
    torch.testing.assert_close(layer.cpu()(x), wanted)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_a_reducing_product_is_refused_as_on_cuda(reduce: Any) -> None:
    s = KINDS["csr"](TABLE.cuda()).requires_grad_()
    with pytest.raises(NotImplementedError, match="SparseCsrCUDA"):
        torch.sparse.mm(s, X.cuda(), reduce)
