"""Sparse tensors on the device: made, moved, multiplied, trained with."""

from __future__ import annotations

import copy
import io
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from virtual_cuda import gpu_named, times_of, virtual_cuda

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
INDICES = [[0, 1, 1], [2, 0, 2]]
VALUES = [3.0, 4.0, 5.0]
DENSE = [[0, 0, 3], [4, 0, 5]]


def test_coo_knows_what_it_is():
    with virtual_cuda():
        s = torch.sparse_coo_tensor(INDICES, VALUES, (2, 3), device="cuda")
        assert (str(s.device), s.is_sparse, s.is_cuda, s.layout, s._nnz()) == (
            "cuda:0",
            True,
            True,
            torch.sparse_coo,
            3,
        )
        assert s.to_dense().tolist() == DENSE
        assert s.to_dense().is_cuda
        assert s.coalesce().indices().tolist() == INDICES
        assert s.coalesce().values().device == s.device
        assert s.type() == "torch.cuda.sparse.FloatTensor"
        assert (s @ torch.ones(3, 1, device="cuda")).tolist() == [[3], [9]]
        assert "device='cuda:0', size=(2, 3), nnz=3, layout=torch.sparse_coo" in repr(s)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_there_and_back(layout):
    with virtual_cuda():
        host = torch.tensor(DENSE, dtype=torch.float32).to_sparse(layout=layout)
        s = host.to("cuda")
        assert (s.layout, s.device.type) == (layout, "cuda")
        assert s.to_dense().tolist() == DENSE
        back = s.cpu()
        assert (back.layout, back.device.type) == (layout, "cpu")
        assert torch.equal(back.to_dense(), host.to_dense())
        assert s.to(torch.float64).dtype is torch.float64


def test_csr():
    with virtual_cuda():
        s = torch.tensor(DENSE, dtype=torch.float32, device="cuda").to_sparse_csr()
        assert (s.is_sparse, s.is_sparse_csr) == (False, True)
        assert s.crow_indices().tolist() == [0, 1, 3]
        assert s.col_indices().tolist() == [2, 0, 2]
        assert s.values().is_cuda
        assert s.to_sparse_coo().layout is torch.sparse_coo
        made = torch.sparse_csr_tensor([0, 1, 3], [2, 0, 2], VALUES, (2, 3), device="cuda")
        assert made.to_dense().tolist() == DENSE


def test_memory_is_that_of_its_parts_and_is_freed():
    with virtual_cuda():
        s = torch.eye(100, device="cuda").to_sparse()
        assert torch.cuda.memory_allocated() == 2048 + 512  # 2 x 100 indices of 8 bytes, 100 values
        values = s._values()
        assert torch.cuda.memory_allocated() == 2048 + 512
        del s
        assert torch.cuda.memory_allocated() == 512
        del values
        assert torch.cuda.memory_allocated() == 0


def test_devices_must_agree():
    with (
        virtual_cuda(),
        pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"),
    ):
        torch.sparse.mm(torch.eye(3).to_sparse(), torch.ones(3, 3, device="cuda"))


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_training_an_embedding_as_on_the_host(make):
    def train(device):
        torch.manual_seed(0)
        layer = nn.Embedding(5, 2, sparse=True).to(device)
        optimizer = make(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.tensor([0, 2, 2], device=device)).square().sum().backward()
            assert layer.weight.grad.is_sparse
            assert layer.weight.grad.device == layer.weight.device
            optimizer.step()
        return layer.weight.detach().cpu()

    with virtual_cuda():
        assert torch.equal(train("cuda"), train("cpu"))


def test_adam_refuses():
    with virtual_cuda():
        layer = nn.Embedding(4, 2, sparse=True).to("cuda")
        optimizer = torch.optim.Adam(layer.parameters())
        layer(torch.tensor([0], device="cuda")).sum().backward()
        with pytest.raises(RuntimeError, match="Adam does not support sparse gradients"):
            optimizer.step()


def test_gradients_through_sparse_mm():
    with virtual_cuda():
        s = torch.eye(3, device="cuda").to_sparse().requires_grad_()
        w = torch.ones(3, 2, device="cuda", requires_grad=True)
        torch.sparse.mm(s, w).sum().backward()
        assert w.grad.tolist() == [[1, 1]] * 3
        assert s.grad.is_sparse
        assert s.grad.is_cuda


def test_copied_and_saved():
    with virtual_cuda():
        s = torch.eye(2, device="cuda").to_sparse()
        assert copy.deepcopy(s).is_cuda
        buffer = io.BytesIO()
        torch.save(s, buffer)
        buffer.seek(0)
        assert torch.load(buffer).device == s.device
        buffer.seek(0)
        assert torch.load(buffer, map_location="cpu").to_dense().tolist() == [[1, 0], [0, 1]]


def test_nested_tensors_of_the_jagged_layout():
    with virtual_cuda():
        pieces = [torch.ones(2, 4), torch.ones(3, 4)]
        nested = torch.nested.nested_tensor(pieces, device="cuda", layout=torch.jagged)
        assert (str(nested.device), nested.is_nested, nested.is_cuda) == ("cuda:0", True, True)
        layer = nn.Linear(4, 2).to("cuda")
        out = layer(nested)
        assert str(out.device) == "cuda:0"
        out.values().sum().backward()
        assert layer.bias.grad.tolist() == [5, 5]
        assert torch.nested.nested_tensor(pieces, layout=torch.jagged).device.type == "cpu"
    assert "device" not in vars(type(nested))


def test_an_embedding_bag():
    with virtual_cuda():
        layer = nn.EmbeddingBag(4, 2, sparse=True, mode="sum").to("cuda")
        layer(torch.tensor([[0, 1]], device="cuda")).sum().backward()
        assert layer.weight.grad.is_sparse
        assert layer.weight.grad.to_dense().tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "call", ["a @ a", "a @ c", "torch.sparse.mm(a, c)", "torch.addmm(a, c, a, beta=2, alpha=3)"]
)
def test_products_of_compressed_tensors_need_no_mkl(call: str) -> None:
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [4.0, 5.0, 0.0]])
    there = x.to("cuda")
    product = eval(call, {"torch": torch, "a": there.to_sparse_csr(), "c": there.to_sparse_csc()})
    assert product.layout is torch.sparse_csr
    wanted = eval(call.replace("torch.sparse.mm", "torch.mm"), {"torch": torch, "a": x, "c": x})
    assert torch.equal(product.to_dense().cpu(), wanted)


@pytest.mark.usefixtures("gpu")
def test_products_with_blocks_need_no_mkl() -> None:
    x = torch.eye(4).roll(1, 1)
    dense = torch.arange(16.0).view(4, 4)
    rows = x.to("cuda").to_sparse_bsr((2, 2))
    columns = x.to("cuda").to_sparse_bsc((2, 2))
    d = dense.to("cuda")
    assert torch.equal((rows @ d).cpu(), x @ dense)
    assert torch.equal((d @ columns).cpu(), dense @ x)
    for product in (lambda: d @ rows, lambda: columns @ d):
        with pytest.raises(
            RuntimeError, match=r"addmm: computation on C.* is not implemented for Strided"
        ):
            product()


@pytest.mark.usefixtures("gpu")
def test_sparse_refusals_name_the_layout_and_the_backend() -> None:
    sparse = torch.eye(3, device="cuda").to_sparse()
    for force in (False, True):
        with pytest.raises(TypeError, match="can't convert Sparse layout tensor to numpy"):
            sparse.numpy(force=force)
    with pytest.raises(
        NotImplementedError, match="'aten::view' with arguments from the 'SparseCUDA' backend"
    ):
        sparse.view(9)


def test_the_parts_of_a_sparse_tensor_are_validated_as_loading_does():
    with virtual_cuda() as gpu:
        s = torch.eye(2, device="cuda").to_sparse()
        before = len(gpu.ledger.syncs())
        torch._validate_sparse_coo_tensor_args(
            s._indices(), s._values(), s.size(), s.is_coalesced()
        )
        assert len(gpu.ledger.syncs()) == before + 1
        with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
            torch._validate_sparse_coo_tensor_args(s._indices(), s._values(), (1, 1), True)


WRONG = "size is inconsistent with indices"
UNORDERED = "cannot set is_coalesced to true if indices correspond to uncoalesced COO tensor"


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.usefixtures("gpu")
def test_invariants_of_a_sparse_tensor_are_checked_where_asked(
    enabled: bool, asked: bool | None
) -> None:
    checked = enabled if asked is None else asked
    indices = torch.tensor([[0, 1, 2], [1, 0, 2]], device="cuda")
    values = torch.ones(3, device="cuda")
    with torch.sparse.check_sparse_tensor_invariants(enabled):
        for coalesced in (None, False, True):
            made = torch.sparse_coo_tensor(
                indices, values, (3, 3), check_invariants=asked, is_coalesced=coalesced
            )
            assert made.is_coalesced() is bool(coalesced)
            with pytest.raises(RuntimeError, match=WRONG) if checked else nullcontext():
                torch.sparse_coo_tensor(
                    indices, values, (2, 2), check_invariants=asked, is_coalesced=coalesced
                )
        with pytest.raises(RuntimeError, match=UNORDERED) if checked else nullcontext():
            torch.sparse_coo_tensor(
                indices.flip(1), values, (3, 3), check_invariants=asked, is_coalesced=True
            )
        assert torch.sparse.check_sparse_tensor_invariants.is_enabled() is enabled
        assert torch.equal(pickle.loads(pickle.dumps(made)).to_dense(), made.to_dense())


def test_products_with_sparse_matrices_take_time_by_the_modelled_clock() -> None:
    with virtual_cuda() as gpu:
        a = torch.eye(4).to_sparse().cuda()
        w = torch.randn(4, 3, device="cuda")
        start = len(gpu.ledger.rows)
        for found in (torch.mm(a, w), a @ w, a @ a, torch.addmm(w, a, w), torch.mv(a, w[:, 0])):
            assert found.is_cuda
        times = times_of(gpu.ledger.since(start), gpu_named("H200"))
        assert sum(interval.end - interval.start for interval in times.on_device) > 5e-6


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "bsc"])
@pytest.mark.parametrize("by_layout", [True, False])
def test_gradients_flow_to_the_values_of_a_compressed_tensor(kind, by_layout):
    options = {}
    build = getattr(torch, f"sparse_{kind}_tensor")
    if by_layout:
        options = {"layout": getattr(torch, f"sparse_{kind}")}
        build = torch.sparse_compressed_tensor
    with virtual_cuda() as gpu:
        values = torch.tensor([1.0, 2, 3, 4], device="cuda", requires_grad=True)
        shaped = values.reshape(4, 1, 1) if kind.startswith("b") else values
        outer = torch.tensor([0, 2, 4], device="cuda")
        inner = torch.tensor([0, 1, 0, 1], device="cuda")
        live = gpu.ledger.live_bytes()
        s = build(outer, inner, shaped, (2, 2), **options)
        assert gpu.ledger.live_bytes() == live  # no part is copied
        assert (s.requires_grad, s.is_leaf) == (True, False)
        assert s.grad_fn.name() == "SparseCompressedTensorBackward0"
        factors = torch.tensor([[1.0, 2], [3, 4]], device="cuda")
        (s.to_dense() * factors).sum().backward()
        expected = [1.0, 2, 3, 4] if kind.endswith("r") else [1.0, 3, 2, 4]
        assert values.grad.tolist() == expected
        s = build(outer, inner, shaped.detach(), (2, 2), requires_grad=True, **options)
        assert (s.requires_grad, s.is_leaf) == (True, True)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_tensor_asked_to_require_gradients_keeps_its_history(layout):
    with virtual_cuda():
        values = torch.tensor([1.0, 2], device="cuda", requires_grad=True)
        if layout == "coo":
            s = torch.sparse_coo_tensor([[0, 1]], values * 2, (2,), requires_grad=True)
        else:
            parts = torch.tensor([0, 1, 2]).cuda(), torch.tensor([0, 1]).cuda(), values * 2
            s = torch.sparse_csr_tensor(*parts, (2, 2), requires_grad=True)
        s.to_dense().sum().backward()
        assert values.grad.tolist() == [2, 2]


def test_a_product_that_cuda_lacks_names_cuda():
    with virtual_cuda():
        s = torch.eye(2, device="cuda").to_sparse_bsc((1, 1))
        with pytest.raises(RuntimeError, match=r"on CUDA is not implemented for .*SparseBsc @ Str"):
            s @ torch.eye(2, device="cuda")


def _sparse_matrix() -> torch.Tensor:
    return torch.eye(4).to_sparse().to("cuda:0")


def _nested_tensor() -> torch.Tensor:
    lengths = [torch.ones(2, 3), torch.ones(1, 3)]
    return torch.nested.nested_tensor(lengths, layout=torch.strided).to("cuda:0")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("make", [_sparse_matrix, _nested_tensor])
def test_a_copy_to_another_gpu_is_recorded(make):
    with virtual_cuda(devices=2) as gpu:
        x = make()
        before = len(gpu.ledger.rows)
        x.to("cuda:1")
        copies = gpu.ledger.since(before).transfers()
        assert copies
        for copied in copies:
            assert copied.direction == "between_devices"
            assert copied.bytes > 0


def test_a_sparse_tensor_that_is_resized_tells_its_new_shape():
    with virtual_cuda():
        compressed = torch.eye(3, device="cuda").to_sparse_csr()
        assert compressed.resize_(4, 5) is compressed
        assert (compressed.shape, compressed._nnz()) == ((4, 5), 3)
        assert compressed.to_dense().shape == (4, 5)
        s = torch.eye(2, device="cuda").to_sparse()
        s.sparse_resize_((3, 4), 2, 0)
        assert (s.shape, s.to_dense().shape) == ((3, 4), (3, 4))
        s.sparse_resize_and_clear_((6, 4), 2, 0)
        assert (s.shape, s._nnz()) == ((6, 4), 0)
        s.resize_as_sparse_(torch.eye(7, device="cuda").to_sparse())
        assert s.shape == (7, 7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_elements_in_half_precision_are_added_in_single(dtype):
    with virtual_cuda():
        dense = (torch.arange(60, device="cuda").reshape(3, 20) / 7.3).to(dtype)
        s = dense.to_sparse()
        expected = dense.float().sum(1).to(dtype)
        assert torch.equal(s.sum(1).to_dense(), expected)
        assert torch.equal(torch.sparse.sum(s, 1).to_dense(), expected)
        same_place = torch.zeros(1, 20, device="cuda", dtype=torch.int64)
        merged = torch.sparse_coo_tensor(same_place, dense[1], (1,)).coalesce()
        assert (merged.dtype, merged.is_coalesced(), merged._nnz()) == (dtype, True, 1)
        assert torch.equal(merged.values(), expected[1:2])


SPARSE = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


@pytest.mark.parametrize("make", [torch.empty, torch.zeros])
@pytest.mark.parametrize("layout", SPARSE)
def test_factories_make_sparse_tensors_without_elements(make, layout):
    with virtual_cuda():
        made = make((3, 4), layout=layout, dtype=torch.float16, device="cuda")
        assert (made.layout, str(made.device), made.dtype) == (layout, "cuda:0", torch.float16)
        assert (made.shape, made._nnz()) == ((3, 4), 0)
        assert made.to_dense().sum() == 0


@pytest.mark.parametrize("layout", SPARSE)
def test_zeros_like_a_dense_tensor_may_be_sparse(layout):
    with virtual_cuda():
        zeros = torch.zeros_like(torch.ones(2, 3, device="cuda"), layout=layout)
        assert (zeros.layout, zeros.shape, zeros._nnz()) == (layout, (2, 3), 0)


def test_factories_refuse_what_torch_refuses_of_compressed_layouts():
    with virtual_cuda():
        words = (
            r"Only batched sparse compressed \(non-block\) tensors are supported, but got size \[4"
        )
        with pytest.raises(RuntimeError, match=words):
            torch.empty(4, layout=torch.sparse_csr, device="cuda")
        with pytest.raises(RuntimeError, match="tensor layout but got SparseBsr"):
            torch.empty((4, 4), layout=torch.sparse_bsr, device="cuda")


@pytest.mark.parametrize("layout", [*SPARSE, torch.sparse_bsr])
def test_a_number_on_the_host_multiplies_a_sparse_tensor(layout):
    with virtual_cuda():
        options = {"blocksize": (2, 2)} if layout is torch.sparse_bsr else {}
        s = torch.eye(4, device="cuda").to_sparse(layout=layout, **options)
        for two in (2, torch.tensor(2), torch.tensor(2.0, dtype=torch.float64)):
            for product in (s.mul(two), two * s, s.clone().mul_(two)):
                assert (product.layout, str(product.device)) == (layout, "cuda:0")
                assert product.dtype is torch.float32
                assert torch.equal(product.to_dense().cpu(), 2 * torch.eye(4))


def test_a_number_on_the_host_divides_a_coo_tensor_alone():
    with virtual_cuda():
        dense = torch.eye(2, device="cuda")
        assert (dense.to_sparse() / torch.tensor(2.0)).to_dense().tolist() == [[0.5, 0], [0, 0.5]]
        with pytest.raises(RuntimeError, match="unsupported tensor layout: SparseCsr"):
            dense.to_sparse_csr() / torch.tensor(2.0)


def test_a_larger_tensor_on_the_host_is_refused_beside_a_sparse_one():
    with virtual_cuda(), pytest.raises(RuntimeError, match="on the same device"):
        torch.eye(2, device="cuda").to_sparse_csr() * torch.ones(1)


@pytest.mark.parametrize("name", ["coalesce", "is_coalesced", "indices"])
def test_a_compressed_tensor_has_nothing_of_a_coo_tensor(name):
    with virtual_cuda():
        compressed = torch.eye(2, device="cuda").to_sparse_csr()
        words = f"{name} expected sparse coordinate tensor layout but got SparseCsr"
        for ask in (getattr(compressed, name), lambda: getattr(torch.Tensor, name)(compressed)):
            with pytest.raises(RuntimeError, match=words):
                ask()


@pytest.mark.parametrize("name", ["_indices", "_values"])
def test_a_compressed_tensor_lacks_the_parts_of_a_coo_tensor(name):
    with virtual_cuda():
        compressed = torch.eye(2, device="cuda").to_sparse_csr()
        with pytest.raises(NotImplementedError, match=f"'aten::{name}' .* 'SparseCsrCUDA' backend"):
            getattr(compressed, name)()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_product_in_half_precision_is_written_into_out(dtype):
    with virtual_cuda():
        dense = torch.arange(16, device="cuda", dtype=dtype).reshape(4, 4)
        term = torch.ones(4, 4, device="cuda", dtype=dtype)
        for sparse in (dense.to_sparse_csr(), dense.to_sparse_bsr((2, 2))):
            out = torch.zeros(4, 4, device="cuda", dtype=dtype)
            assert torch.addmm(term, sparse, term, out=out) is out
            assert torch.equal(out, dense @ term + 1)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_a_system_of_blocks_is_solved(upper, transpose, unitriangular):
    options = {"upper": upper, "transpose": transpose, "unitriangular": unitriangular}
    with virtual_cuda():
        dense = torch.arange(1, 17, device="cuda").reshape(4, 4).double()
        right = torch.ones(4, 2, device="cuda").double()
        blocks = dense.to_sparse_bsr((2, 2))
        solution, coefficient = torch.triangular_solve(right, blocks, **options)
        triangle = dense.triu() if upper else dense.tril()
        if unitriangular:
            triangle = triangle.fill_diagonal_(1)
        assert torch.allclose((triangle.mT if transpose else triangle) @ solution, right)
        assert coefficient.numel() == 0
        out = torch.empty_like(right), torch.empty_like(coefficient)
        torch.triangular_solve(right, blocks, **options, out=out)
        assert torch.equal(out[0], solution)


def test_a_system_of_no_blocks_has_no_solution():
    with virtual_cuda():
        blocks = torch.zeros(4, 4, device="cuda").to_sparse_bsr((2, 2))
        solution, _ = torch.triangular_solve(torch.ones(4, 2, device="cuda"), blocks)
        assert solution.isnan().all()
