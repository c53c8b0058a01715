"""A storage behind a device tensor: where it is, what it shares, and what copying it costs."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.ledger.rows import SyncRow

from tests.virtual_cuda.releases import TORCH


def waits(gpu) -> int:
    return (
        len(list(gpu.ledger.syncs()))
        if hasattr(gpu.ledger, "syncs")
        else sum(isinstance(row, SyncRow) for row in gpu.ledger.rows)
    )


def test_it_says_where_it_is():
    with virtual_cuda():
        storage = torch.ones(4, device="cuda").untyped_storage()
        assert storage.device == torch.device("cuda:0")
        assert (storage.nbytes(), storage.size(), len(storage)) == (16, 16, 16)
        assert storage.is_cuda
        assert storage.is_shared()
        assert not storage.is_pinned()
        assert torch.is_storage(storage)
        assert type(storage).__name__ == "UntypedStorage"
        assert isinstance(storage, torch.UntypedStorage)


def test_views_share_and_clones_do_not():
    with virtual_cuda():
        x = torch.arange(6.0, device="cuda")
        view = x.view(2, 3).T
        clone = x.clone()
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view.untyped_storage() is x.untyped_storage()
        assert clone.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert x[1:].data_ptr() - x.data_ptr() == 4
        assert x.data_ptr() % 512 == 0


def test_a_storage_moves_between_host_and_device_and_each_copy_waits():
    with virtual_cuda() as gpu:
        x = torch.arange(4, dtype=torch.uint8, device="cuda")
        before = waits(gpu)
        host = x.untyped_storage().cpu()
        assert waits(gpu) == before + 1
        assert (host.device.type, host.tolist()) == ("cpu", [0, 1, 2, 3])
        assert type(host) is torch.UntypedStorage
        back = host.cuda()
        assert (back.device.type, back.tolist()) == ("cuda", [0, 1, 2, 3])
        assert waits(gpu) == before + 2 + 4  # each element that is read is a wait


def test_made_on_the_device_it_takes_memory_and_resizing_frees_it():
    with virtual_cuda():
        storage = torch.UntypedStorage(4096, device="cuda")
        assert torch.cuda.memory_allocated() == 4096
        x = torch.empty(0, device="cuda").set_(storage, 0, (1024,), (1,))
        assert x.shape == (1024,)
        storage.resize_(0)
        assert torch.cuda.memory_allocated() == 0
        storage.resize_(512)
        assert torch.cuda.memory_allocated() == 512


def test_a_tensor_takes_no_storage_from_elsewhere():
    with virtual_cuda(), pytest.raises(RuntimeError, match="storage on different device"):
        torch.empty(0, device="cuda").set_(torch.ones(2).untyped_storage())


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_typed_storages():
    with virtual_cuda():
        storage = torch.ones(3, device="cuda").storage()
        assert (str(storage.device), storage.dtype, storage.tolist()) == (
            "cuda:0",
            torch.float32,
            [1, 1, 1],
        )


def test_outside_the_block_storages_are_torchs_own():
    with virtual_cuda():
        pass
    assert "__new__" not in vars(torch.UntypedStorage)
    assert torch.UntypedStorage(3).nbytes() == 3


def test_dlpack_shares_within_torch_and_is_refused_by_the_host():
    with virtual_cuda():
        x = torch.arange(3.0, device="cuda")
        y = torch.from_dlpack(x)
        y[0] = 5
        assert x[0].item() == 5
        assert y.device == x.device
        assert x.__dlpack_device__() == (2, 0)  # CUDA, by DLPack's number for it
        capsule = torch.utils.dlpack.to_dlpack(x)
        assert 'capsule object "dltensor" at' in repr(capsule)
        assert torch.utils.dlpack.from_dlpack(capsule).data_ptr() == x.data_ptr()
        with pytest.raises(RuntimeError, match="only once"):
            torch.utils.dlpack.from_dlpack(capsule)
        with pytest.raises(BufferError, match=r"Unsupported device in DLTensor\."):
            np.from_dlpack(x)
        other_stream = torch.cuda.Stream()
        for capsule in (x.__dlpack__(), x.__dlpack__(stream=other_stream.cuda_stream)):
            assert torch.from_dlpack(capsule).data_ptr() == x.data_ptr()
        assert torch.asarray(torch.utils.dlpack.to_dlpack(x)).data_ptr() == x.data_ptr()
        with pytest.raises(TypeError, match="stream must be"):
            x.__dlpack__(stream=object())
        refusal = BufferError if TORCH >= (2, 9) else RuntimeError
        with pytest.raises(refusal, match="require gradient"):
            torch.from_dlpack(x.requires_grad_())


@pytest.mark.skipif(TORCH < (2, 9), reason="new in torch 2.9")
def test_dlpack_copies_where_it_is_asked_to() -> None:
    with virtual_cuda():
        x = torch.arange(3.0, device="cuda")
        capsule = x.__dlpack__(max_version=(1, 0))
        assert torch.from_dlpack(capsule).data_ptr() == x.data_ptr()
        assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
        assert torch.from_dlpack(x, device="cpu").tolist() == x.tolist()
        with pytest.raises(ValueError, match="without copying"):
            torch.from_dlpack(x, device="cpu", copy=False)


def test_forward_mode_does_not_crash():
    with virtual_cuda():
        x = torch.tensor([1.0, 2.0], device="cuda")
        hessian = torch.func.hessian(lambda v: (v**3).sum())(x)
        assert hessian.device == x.device
        assert hessian.tolist() == [[6, 0], [0, 12]]
        _, pull = torch.func.vjp(torch.sin, torch.zeros(2, device="cuda"))
        assert pull(torch.ones(2, device="cuda"))[0].tolist() == [1, 1]


def test_a_deep_copy_is_counted_once_also_where_the_storage_has_been_looked_at():
    with virtual_cuda():
        x = torch.ones(128, device="cuda")
        x.untyped_storage()
        twin = copy.deepcopy(x)
        assert torch.cuda.memory_allocated() == 1024
        assert twin.data_ptr() != x.data_ptr()
        assert torch.equal(twin, x)


SEEN: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda x: None,
    "saved": lambda x: torch.save(x, io.BytesIO()),
    "pickled": pickle.dumps,
    "storage": torch.Tensor.untyped_storage,
}


@pytest.mark.parametrize("before", SEEN)
def test_tensors_share_their_memory_with_other_processes(before: str) -> None:
    """Also those of which a storage was asked for, which saving does."""
    with virtual_cuda(devices=2):
        x = torch.arange(6.0, device="cuda:1").view(2, 3)
        storage = x.untyped_storage() if before == "storage" else None
        SEEN[before](x)
        for given in (x.t()[1:], torch.nn.Parameter(x[0]), x[:0], torch.empty(0, device="cuda:1")):
            taken = ForkingPickler.loads(ForkingPickler.dumps(given))
            assert (str(taken.device), taken.stride(), taken.storage_offset()) == (
                "cuda:1",
                given.stride(),
                given.storage_offset(),
            )
            assert (isinstance(taken, torch.nn.Parameter), taken.requires_grad) == (
                isinstance(given, torch.nn.Parameter),
                given.requires_grad,
            )
            taken.data.add_(1)
            assert torch.equal(taken, given)
        assert x.tolist() == [[1, 3, 4], [3, 5, 6]]
        if storage is not None:
            assert storage.device.type == "cuda"


def test_a_storage_has_no_attributes_but_those_that_a_program_has_set() -> None:
    with virtual_cuda():
        storage = torch.ones(2, device="cuda").untyped_storage()
        assert vars(storage) == {}
        storage.name = "mine"
        assert vars(storage) == {"name": "mine"}


@pytest.mark.parametrize("kind", [torch.UntypedStorage, torch.TypedStorage])
def test_a_storage_without_bytes_is_not_copied(kind) -> None:
    with virtual_cuda():
        empty = kind(4, device="meta")
        for device in ("cpu", "cuda"):
            with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
                kind(4, device=device).copy_(empty)
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            empty.cuda()
