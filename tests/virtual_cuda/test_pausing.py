"""A device that is paused, that another one takes over, and that start and stop open and close."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda
from virtual_cuda.devices import take_over_devices
from virtual_cuda.errors import AlreadyOpen, BadSize, DevicePaused, NotOpen


def test_torch_is_as_without_a_device_in_a_pause() -> None:
    before = torch.cuda.is_available(), torch.Tensor.to, nn.Module.__call__
    with virtual_cuda() as gpu:
        model = nn.Linear(4, 2).to("cuda")
        x = torch.ones(8, 4, device="cuda")
        in_use = torch.cuda.memory_allocated()
        records = len(gpu.ledger)
        with gpu.paused():
            assert (torch.cuda.is_available(), torch.Tensor.to, nn.Module.__call__) == before
            assert not nn.Linear(4, 2)(torch.ones(8, 4)).is_cuda
            with pytest.raises(DevicePaused, match="is paused here"):
                x.sum()
            with pytest.raises(NotOpen), gpu.paused():
                pass
        assert len(gpu.ledger) == records
        assert torch.cuda.memory_allocated() == in_use
        assert model(x).is_cuda
        assert len(gpu.ledger) > records
    with pytest.raises(NotOpen), gpu.paused():
        pass


def test_a_pause_ends_with_an_error_in_it() -> None:
    with virtual_cuda() as gpu:
        with pytest.raises(ZeroDivisionError), gpu.paused():
            _ = 1 / 0
        assert torch.ones(3, device="cuda").sum().item() == 3


def test_random_numbers_go_on_after_a_pause() -> None:
    with virtual_cuda() as gpu:
        torch.manual_seed(3)
        wanted = torch.rand(4, device="cuda").tolist()
        torch.manual_seed(3)
        first = torch.rand(2, device="cuda").tolist()
        with gpu.paused():
            pass
        assert first + torch.rand(2, device="cuda").tolist() == wanted


def test_another_device_opens_in_a_pause() -> None:
    with virtual_cuda() as gpu:
        x = torch.ones(3, device="cuda")
        with gpu.paused(), virtual_cuda(devices=2) as other:
            assert torch.cuda.device_count() == 2
            assert torch.ones(3, device="cuda:1").sum().item() == 3
            with pytest.raises(DevicePaused):
                x.sum()
        assert torch.cuda.device_count() == 1
        assert x.sum().item() == 3
        assert len(gpu.ledger.syncs("item")) == len(other.ledger.syncs("item")) == 1
        with pytest.raises(AlreadyOpen), virtual_cuda():
            pass


def test_clocks_are_this_machines_in_a_pause() -> None:
    real = time.perf_counter
    with virtual_cuda(clock="modelled") as gpu:
        assert time.perf_counter is not real
        with gpu.paused():
            assert time.perf_counter is real
        assert time.perf_counter is not real
    assert time.perf_counter is real


def test_a_gpu_that_takes_over_counts_for_itself() -> None:
    with virtual_cuda() as gpu:
        model = nn.Linear(1000, 1000).to("cuda")
        in_use = torch.cuda.memory_allocated()
        records = len(gpu.ledger)
        with take_over_devices(gpu) as inner:
            assert torch.cuda.memory_allocated() == 0
            result = model(torch.ones(2, 1000, device="cuda"))
            result.sum().backward()
            assert inner.memory_in_use()["cuda:0"] >= 4_000_000  # the gradients
            assert result.data_ptr() != model.weight.data_ptr()
        assert len(inner.ledger.backward_passes()) == 1
        assert inner.ledger.peak_bytes() > 4_000_000
        assert len(gpu.ledger) == records
        assert torch.cuda.memory_allocated() == in_use
        # What the inner one has made lives on, and is not counted here when it is freed.
        assert result.sum().item() is not None
        model.zero_grad(set_to_none=True)
        assert gpu.memory_in_use()["cuda:0"] == in_use
        with pytest.raises(NotOpen), take_over_devices(inner):
            pass


def test_a_device_that_was_lost_is_there_for_the_next() -> None:
    with virtual_cuda() as gpu:
        x = torch.ones(3, device="cuda")
        with take_over_devices(gpu):
            _ = x[torch.tensor([5], device="cuda")]
            with pytest.raises(RuntimeError, match="device-side assert"):
                torch.cuda.synchronize()
        with take_over_devices(gpu):
            assert x.sum().item() == 3


def test_start_and_stop() -> None:
    device = virtual_cuda(devices=2)
    assert not torch.cuda.is_available()
    gpu = device.start()
    assert torch.ones(3, device="cuda:1").sum().item() == len(gpu.devices) + 1
    device.stop()
    assert not torch.cuda.is_available()
    with pytest.raises(NotOpen, match="is not open now"):
        device.stop()
    with pytest.raises(BadSize):
        virtual_cuda(memory="8 sheep").start()
    device.start()
    device.stop()


def test_a_function_has_a_device_in_each_of_its_calls() -> None:
    @virtual_cuda(devices=2)
    def count() -> int:
        return torch.cuda.device_count()

    assert (count(), count()) == (2, 2)
    assert not torch.cuda.is_available()
