"""open_device: which device it opens, why, and what it says when it cannot."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import virtual_cuda
import virtual_cuda.hooks
from virtual_cuda.errors import AlreadyOpen, BadDeviceCount, BadSize, DeviceError, NoSuchDevice
from virtual_cuda.ledger.rows import StreamRow

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@no_gpu
def test_without_a_gpu_it_is_the_virtual_device() -> None:
    with virtual_cuda.open_device() as opened:
        x = torch.ones(2, device=opened.device)
        assert x.device == opened.device
    assert (opened.kind, opened.why) == ("virtual", "no GPU here, so the virtual CUDA device")
    assert opened.ledger.operations_on("cuda:0")


def test_a_device_that_was_asked_for_says_so() -> None:
    with virtual_cuda.open_device("cpu") as opened:
        x = torch.ones(2, device=opened.device)
    assert (opened.kind, opened.why, opened.device) == (
        "cpu",
        "the plain CPU was asked for",
        x.device,
    )
    with virtual_cuda.open_device("virtual", devices=2, memory="1 GiB") as opened:
        assert torch.cuda.device_count() == 2
        assert torch.cuda.get_device_properties(1).total_memory == 1 << 30


def test_too_few_gpus_are_replaced_by_virtual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtual_cuda.devices.device_count", lambda kind: 1)
    with virtual_cuda.open_device(devices=2) as opened:
        assert torch.cuda.device_count() == 2
    assert opened.why == "only 1 of the 2 GPUs asked for here, so the virtual CUDA device"
    with (
        pytest.raises(NoSuchDevice, match="this machine has 1 'cuda' device, not 2"),
        virtual_cuda.open_device("cuda", devices=2),
    ):
        pass


@no_gpu
def test_no_gpu_is_one_sentence() -> None:
    with pytest.raises(NoSuchDevice) as caught, virtual_cuda.open_device("cuda"):
        pass
    assert str(caught.value) == (
        "this machine has no 'cuda' device that torch can use; choose \"virtual\" for a CUDA "
        "device that needs no GPU"
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kind": "tpu"}, NoSuchDevice),
        ({"devices": 0}, BadDeviceCount),
        ({"kind": "cpu", "devices": True}, BadDeviceCount),
        ({"kind": "cpu", "memory": "lots"}, BadSize),
    ],
)
def test_bad_input(options: dict[str, object], error: type[DeviceError]) -> None:
    with pytest.raises(error), virtual_cuda.open_device(**options):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("outer", "inner"), [("cpu", "cpu"), ("cpu", "virtual"), ("virtual", "cpu")]
)
def test_one_device_at_a_time(outer: str, inner: str) -> None:
    with virtual_cuda.open_device(outer) as opened:  # type: ignore[arg-type]
        with (
            pytest.raises(AlreadyOpen, match="is already open in this process"),
            virtual_cuda.open_device(inner),
        ):  # type: ignore[arg-type]
            pass
        torch.ones(2, device=opened.device)
    assert opened.ledger.operations()
    with virtual_cuda.open_device(inner):  # type: ignore[arg-type]
        pass


def test_names_are_sorted() -> None:
    assert virtual_cuda.__all__ == sorted(virtual_cuda.__all__)
    assert all(hasattr(virtual_cuda, name) for name in virtual_cuda.__all__)


def test_patches_that_are_kept_serve_the_next_device() -> None:
    original = torch.cuda.is_available, torch.Tensor.to, torch.nn.Module.__call__
    with virtual_cuda.hooks.keep_patches() as restore:
        with virtual_cuda.virtual_cuda(2) as first:
            there = torch.ones(3, device="cuda:1")
            patched = torch.Tensor.to
            pinned = torch.ones(2).pin_memory()
        with virtual_cuda.virtual_cuda(1) as second:
            assert torch.Tensor.to is patched
            assert torch.cuda.device_count() == len(torch.cuda.default_generators) == 1
            assert torch.cuda.memory_allocated() == 0
            assert not pinned.is_pinned()
            with pytest.raises(virtual_cuda.errors.DeviceClosed):
                there + 1
            rows = len(first.ledger.rows)
            torch.nn.Linear(3, 2).cuda()(torch.ones(3, device="cuda")).sum().backward()
            assert (len(first.ledger.rows), len(second.ledger.forwards())) == (rows, 1)
            torch.cuda.synchronize = None  # type: ignore[assignment]
        with virtual_cuda.virtual_cuda():
            torch.cuda.synchronize()
        with virtual_cuda.hooks.no_accelerator():
            assert not torch.cuda.is_available()
        assert (torch.cuda.is_available, torch.Tensor.to) == original[:2]
        with virtual_cuda.virtual_cuda():
            pass
        assert torch.Tensor.to is not original[1]
        restore()
        assert torch.Tensor.to is original[1]
        with virtual_cuda.virtual_cuda():
            pass
    assert (torch.cuda.is_available, torch.Tensor.to, torch.nn.Module.__call__) == original


def test_a_call_of_modules_that_was_replaced_between_devices_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.nn.Module.__call__
    moved = torch.nn.Module._apply
    called = []
    with virtual_cuda.hooks.keep_patches() as restore:
        for _ in range(2):
            with virtual_cuda.virtual_cuda():
                pass
            restore()

        def own(self: torch.nn.Module, *args: object) -> object:
            called.append(type(self))
            return torch.nn.Module._call_impl(self, *args)

        monkeypatch.setattr(torch.nn.Module, "__call__", own)
        with virtual_cuda.virtual_cuda() as gpu:
            torch.nn.Linear(3, 2).cuda()(torch.ones(3, device="cuda"))
            assert len(gpu.ledger.forwards()) == 1
    assert called == [torch.nn.Linear]
    assert torch.nn.Module.__call__ is own
    assert torch.nn.Module._apply is moved
    monkeypatch.undo()
    torch.nn.Module.__call__ = original


def test_patches_are_undone_where_the_next_device_cannot_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.Tensor.to
    with virtual_cuda.hooks.keep_patches():
        with virtual_cuda.virtual_cuda():
            pass
        monkeypatch.setattr(torch, "initial_seed", lambda: "no number")
        with pytest.raises(ValueError, match="no number"), virtual_cuda.virtual_cuda():
            pass
        assert torch.Tensor.to is original


def test_patches_that_were_undone_serve_the_next_device() -> None:
    layer = torch.nn.Linear(3, 2)
    with virtual_cuda.hooks.keep_patches() as restore:
        for devices in (2, 1):
            with virtual_cuda.virtual_cuda(devices) as gpu:
                assert torch.cuda.device_count() == devices
                patched = torch.zeros
                optimizer = torch.optim.SGD(layer.cuda().parameters(), lr=0.1)
                layer(torch.ones(3, device="cuda")).sum().backward()
                optimizer.step()
                layer.cpu()
            assert (len(gpu.ledger.forwards()), len(gpu.ledger.optimizer_steps())) == (1, 1)
            restore()
            assert torch.zeros is not patched
            assert not hasattr(torch._C, "_cuda_setStream") or torch.version.cuda is not None
        with virtual_cuda.virtual_cuda():
            assert torch.zeros is patched


def test_a_closed_device_leaves_its_patches_to_the_next_and_is_kept_by_nobody() -> None:
    original = torch.zeros
    put = []
    for devices in (1, 2):
        with virtual_cuda.virtual_cuda(devices) as gpu:
            assert torch.cuda.device_count() == len(torch.cuda.default_generators) == devices
            torch.nn.Linear(3, 2).cuda()(torch.zeros(3, device="cuda")).sum().backward()
            put.append(torch.zeros)
        assert torch.zeros is original
        closed = weakref.ref(gpu)
        del gpu
        gc.collect()
        assert closed() is None
    assert put[0] is put[1]


def test_what_was_changed_between_two_devices_is_patched_as_it_is_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    with virtual_cuda.hooks.keep_patches() as restore:
        with virtual_cuda.virtual_cuda():
            pass
        restore()
        original = torch.tensor
        monkeypatch.setattr(
            torch, "tensor", lambda data, **options: asked.append(data) or original(data, **options)
        )
        changed = torch.tensor
        with virtual_cuda.virtual_cuda():
            assert torch.tensor([2], device="cuda").is_cuda
        restore()
        assert torch.tensor is changed
    assert asked == [[2]]


def test_each_device_says_that_products_may_use_tf32() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with virtual_cuda.hooks.keep_patches():
            for _ in range(2):
                with virtual_cuda.virtual_cuda() as gpu:
                    pass
                assert [row.what for row in gpu.ledger.rows if isinstance(row, StreamRow)] == [
                    "tf32"
                ]
    finally:
        torch.set_float32_matmul_precision(before)


def test_seeds_for_devices_that_are_not_there_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    # torch 2.8 and 2.9 seed no MTIA
    others = [other for other in (torch.xpu, torch.mtia) if hasattr(other, "manual_seed_all")]
    for other in others:
        assert not other.is_available()
        monkeypatch.setattr(other, "manual_seed_all", kept.append)
    with virtual_cuda.open_device("virtual"):
        assert torch.manual_seed(3).initial_seed() == 3
        assert torch.cuda.initial_seed() == 3
    assert kept == []
    torch.manual_seed(3)
    assert kept == [3 for _ in others]


def test_properties_are_printed_as_torch_prints_them() -> None:
    with virtual_cuda.virtual_cuda(gpu="T4", memory="1 GiB"):
        assert str(torch.cuda.get_device_properties(0)) == (
            "_CudaDeviceProperties(name='Tesla T4', major=7, minor=5, total_memory=1024MB, "
            "multi_processor_count=40, "
            "uuid=00000000-0000-0000-0000-000000000000, pci_bus_id=0, pci_device_id=0, "
            "pci_domain_id=0, "
            "L2_cache_size=4MB)"
        )
        assert str(torch.cuda.cudart()) == "<module 'torch._C._cudart'>"
