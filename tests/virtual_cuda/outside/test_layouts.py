"""Sparse tensors of every layout and nested ones on the virtual device, compared with the CPU's."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from virtual_cuda import virtual_cuda

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{about}:UserWarning")
    for about in ("Sparse", "The PyTorch API of nested tensors", "enable_nested_tensor")
]

TABLE = torch.tensor(
    [[0.0, 0, 1, 2, 0, 0], [0, 0, 0, 3, 0, 0], [4, 0, 0, 0, 0, 5], [0, 6, 0, 0, 7, 8]]
)
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
        if kind == "bsr" and "without MKL" in str(error):  # CUDA needs none
            assert_same(OPERATIONS[operation](host.cuda()), OPERATIONS[operation](TABLE))
            return
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
    s = KINDS[kind](TABLE).to(device).requires_grad_()
    x = X.detach().clone().to(device).requires_grad_()
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
    layer = SparseLinear(KINDS[kind](TABLE))
    x = X.t().contiguous()
    wanted = layer(x)
    weight = layer.weight
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


# ---- nested tensors ------------------------------------------------------------------------------

PIECES = [torch.arange(8.0).view(2, 4), torch.arange(12.0).view(3, 4) / 7]
Function = Callable[[torch.Tensor], Any]
NESTED: dict[str, Function] = {
    "sum of two": lambda n: n + n,
    "times a number": lambda n: n * 2,
    "activation": F.relu,
    "softmax": lambda n: torch.softmax(n, -1),
    "product": lambda n: torch.matmul(n, n.transpose(1, 2)),
    "padded": lambda n: n.to_padded_tensor(0.0),
    "pieces": lambda n: list(n.unbind()),
    "reshaped": lambda n: n.reshape(2, -1, 2, 2),
    "attention": lambda n: F.scaled_dot_product_attention(
        *[n.reshape(2, -1, 2, 2).transpose(1, 2).contiguous()] * 3
    ),
    "one piece": lambda n: n[1],
    "cast": lambda n: n.double(),
    "copy": lambda n: n.clone(),
}


def assert_same_nested(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, list) or theirs.is_nested:
        mine, theirs = ((t if isinstance(t, list) else t.unbind()) for t in (mine, theirs))
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same_nested(one, other)
    else:
        assert mine.is_cuda
        torch.testing.assert_close(mine.cpu(), theirs)


@pytest.mark.parametrize("name", NESTED)
def test_nested(name: str) -> None:
    there = torch.nested.nested_tensor(PIECES, device="cuda")
    assert_same_nested(NESTED[name](there), NESTED[name](torch.nested.nested_tensor(PIECES)))


def test_nested_tensors_know_what_they_are() -> None:
    there = torch.nested.nested_tensor([piece.cuda() for piece in PIECES])
    assert (there.is_nested, there.is_cuda, str(there.device), there.dim()) == (
        True,
        True,
        "cuda:0",
        3,
    )
    assert (there.dtype, there.size(0), there.size(2), there.numel()) == (torch.float32, 2, 4, 20)
    with pytest.raises(RuntimeError, match="irregular"):
        there.size(1)
    assert "device='cuda:0'" in repr(there)
    here = there.cpu()
    assert (here.is_nested, here.is_cuda) == (True, False)
    assert here.to("cuda").is_cuda
    assert there.to(torch.float64).dtype is torch.float64


def test_nested_tensors_are_saved_and_sent() -> None:
    there = torch.nested.nested_tensor([piece.cuda() for piece in PIECES])
    file = io.BytesIO()
    torch.save(there, file)
    file.seek(0)
    for other in (
        pickle.loads(pickle.dumps(there)),
        torch.load(file, weights_only=False),  # torch 2.15 takes no nested tensor otherwise
        ForkingPickler.loads(ForkingPickler.dumps(there)),
    ):
        assert (other.is_nested, str(other.device)) == (True, "cuda:0")
        assert_same_nested(other, torch.nested.nested_tensor(PIECES))


def test_memory_of_nested_tensors_is_given_back() -> None:
    before = torch.cuda.memory_allocated()
    there = torch.nested.nested_tensor(PIECES, device="cuda")
    assert torch.cuda.memory_allocated() == before + 512
    view = there.transpose(1, 2)
    assert torch.cuda.memory_allocated() == before + 512
    del there, view
    assert torch.cuda.memory_allocated() == before


def test_gradients_pass_through_nested_tensors() -> None:
    def trained(device: str) -> list[Any]:
        torch.manual_seed(0)
        layer = nn.Linear(4, 3).to(device)
        pieces = [piece.to(device, copy=True).requires_grad_() for piece in PIECES]
        made = layer(torch.nested.as_nested_tensor(pieces))
        made.relu().to_padded_tensor(0.0).pow(2).sum().backward()
        return [*(piece.grad for piece in pieces), layer.weight.grad, layer.bias.grad]

    for mine, theirs in zip(trained("cuda"), trained("cpu"), strict=True):
        assert_same(mine, theirs)


def test_a_transformer_in_eval_mode_takes_its_fast_path() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2
    ).eval()
    x = torch.randn(3, 5, 8)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2]])
    with torch.no_grad():
        wanted = encoder(x, src_key_padding_mask=padding)
        made = encoder.cuda()(x.cuda(), src_key_padding_mask=padding.cuda())
    assert_same(made, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_sum_of_two_coo_tensors_keeps_the_elements_of_both(dtype: torch.dtype) -> None:
    one = TABLE.to(dtype).to_sparse().cuda()
    both = one + one
    assert (both._nnz(), both.is_coalesced()) == (2 * one._nnz(), False)
    assert_same(torch.sub(both, one, alpha=3), (-TABLE.to(dtype)).to_sparse())
    both -= one
    assert_same(both, TABLE.to(dtype).to_sparse())
    assert (
        both + both + both + both
    )._nnz() == one._nnz()  # more elements than the table has places


def test_sparse_gradients_of_half_precision_are_not_merged() -> None:
    layer = nn.Embedding(10, 3, sparse=True).half().cuda()
    for _ in range(2):
        layer(torch.tensor([7, 1], device="cuda")).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad._indices().tolist() == [[7, 1, 7, 1]]
