"""The names of old code, and the marks of NVTX."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda

pytestmark = pytest.mark.filterwarnings(
    "ignore:The torch.cuda.*DtypeTensor", "ignore:torch.set_default_tensor_type"
)


def test_constructors():
    with virtual_cuda():
        x = torch.cuda.FloatTensor([1, 2, 3])
        assert (str(x.device), x.dtype, x.tolist()) == ("cuda:0", torch.float32, [1, 2, 3])
        assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
        assert torch.cuda.HalfTensor(torch.Size([4])).dtype is torch.float16
        assert torch.cuda.FloatTensor().shape == (0,)
        assert x.new([7]).device == x.device
        with pytest.raises(RuntimeError, match="legacy constructor expects device type: cuda"):
            torch.cuda.FloatTensor(2, device="cpu")


def test_constructors_warn():
    with virtual_cuda(), pytest.warns(UserWarning, match="no longer recommended"):
        torch.cuda.FloatTensor(2)


def test_isinstance():
    with virtual_cuda():
        x = torch.ones(2, device="cuda")
        assert isinstance(x, torch.cuda.FloatTensor)
        assert not isinstance(x, torch.cuda.HalfTensor)
        assert not isinstance(x, torch.FloatTensor)
        assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
        assert isinstance(x.cpu(), torch.FloatTensor)


def test_type_names():
    with virtual_cuda():
        x = torch.ones(2, device="cuda")
        assert x.type() == "torch.cuda.FloatTensor"
        assert x.type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor"
        assert x.type(torch.cuda.LongTensor).dtype is torch.int64
        assert x.type(torch.FloatTensor).device.type == "cpu"
        assert torch.ones(2).type(torch.cuda.FloatTensor).is_cuda
        assert torch.ones(2).type("torch.cuda.DoubleTensor").type() == "torch.cuda.DoubleTensor"
        assert torch.ones(2).type() == "torch.FloatTensor"
        assert torch.ones(2).type(torch.int32).dtype is torch.int32


def test_a_default_type_ends_when_it_is_taken_back_or_the_device_closes():
    with virtual_cuda():
        torch.set_default_tensor_type("torch.cuda.HalfTensor")
        assert torch.zeros(2).is_cuda
        assert torch.zeros(2).dtype is torch.float16
        torch.set_default_tensor_type(torch.FloatTensor)
        assert not torch.zeros(2).is_cuda
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
    assert torch.zeros(2).device.type == "cpu"


def test_the_oldest_constructor_makes_tensors_of_the_default_type():
    class Other(torch.Tensor):
        pass

    with virtual_cuda():
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        made = (
            torch.Tensor([1, 2]),
            torch.Tensor(2, 3),
            torch.Tensor(),
            nn.Parameter(torch.Tensor(2)),
        )
        assert {x.type() for x in made} == {"torch.cuda.DoubleTensor"}
        assert [x.shape for x in made] == [(2,), (2, 3), (0,), (2,)]
        assert not torch.FloatTensor([1]).is_cuda
        with pytest.raises(RuntimeError, match="device type"):
            torch.Tensor([1], device="cpu")
        torch.set_default_tensor_type(torch.FloatTensor)
        assert torch.Tensor([1, 2]).type() == "torch.FloatTensor"
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert "__new__" not in vars(torch.Tensor)
    assert torch.Tensor([1, 2]).tolist() == [1, 2]
    assert type(Other([1])) is Other


def test_mistakes_with_types_of_old():
    with virtual_cuda():
        with pytest.raises(
            TypeError,
            match=r"^expected TensorOptions\(dtype=float, device=cuda, .* device=cpu, layout",
        ):
            torch.cuda.FloatTensor(torch.ones(2))
        with pytest.raises(
            TypeError,
            match=r"^expected TensorOptions\(dtype=c10::Half, .* \(got .*dtype=long int, dev",
        ):
            torch.cuda.HalfTensor(torch.ones(2, device="cuda").long())
        with pytest.raises(ValueError, match=r"^invalid type: 'torch.cuda.FooTensor'$"):
            torch.ones(2, device="cuda").type("torch.cuda.FooTensor")


def test_nvtx_is_silent():
    with virtual_cuda():
        assert torch.cuda.nvtx.range_push("epoch") == -2
        assert torch.cuda.nvtx.range_pop() == -2
        assert torch.cuda.nvtx.mark("here") is None
        with torch.cuda.nvtx.range("batch"), torch.autograd.profiler.emit_nvtx():
            assert (torch.ones(2, device="cuda") + 1).tolist() == [2, 2]
        torch.cuda.profiler.start()
        torch.cuda.profiler.stop()


def test_sparse_types_of_old_make_sparse_tensors(virtual_cuda):
    made = torch.cuda.sparse.FloatTensor(
        torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), torch.Size([3])
    )
    assert made.is_sparse
    assert made.is_cuda
    assert made.to_dense().tolist() == [1.0, 0.0, 2.0]
    assert isinstance(made, torch.cuda.sparse.FloatTensor)
    assert not isinstance(made, torch.cuda.FloatTensor)
    assert torch.cuda.sparse.DoubleTensor(2, 3).shape == (2, 3)
