"""Device mistakes that the fixture `virtual_cuda` catches on a machine without a GPU.

With gpudojo installed, `python -m pytest examples/test_device_handling.py` runs it. Everything
called `broken_…` is wrong on purpose, and its test asserts how it is caught, so the file passes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

MIB = 1024**2


def chosen_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


# A forgotten move


def broken_predict(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model.to(chosen_device())(batch)  # BROKEN: the batch stays where it was


def predict(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    device = chosen_device()
    return model.to(device)(batch.to(device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would notice")
def test_on_the_cpu_nobody_notices() -> None:
    assert broken_predict(nn.Linear(4, 2), torch.ones(8, 4)).shape == (8, 2)


def test_the_virtual_device_notices(virtual_cuda) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        broken_predict(nn.Linear(4, 2), torch.ones(8, 4))


def test_predict(virtual_cuda) -> None:
    assert predict(nn.Linear(4, 2), torch.ones(8, 4)).is_cuda


# A hidden wait


def broken_mean_loss(model: nn.Module, batches: Iterable[torch.Tensor]) -> float:
    losses = []
    for batch in batches:
        loss = model(batch.to(chosen_device())).square().mean()
        losses.append(
            loss.item()
        )  # BROKEN: right, but the host waits for the device in every round
    return sum(losses) / len(losses)


def mean_loss(model: nn.Module, batches: Iterable[torch.Tensor]) -> float:
    losses = [model(batch.to(chosen_device())).square().mean() for batch in batches]
    return torch.stack(losses).mean().item()


def test_the_ledger_counts_the_reads(virtual_cuda) -> None:
    model = nn.Linear(4, 2).to("cuda")
    broken_mean_loss(model, [torch.ones(8, 4)] * 10)
    reads = virtual_cuda.ledger.syncs("item")
    assert len(reads) == 10
    assert {read.site.function for read in reads} == {
        "broken_mean_loss"
    }  # and read.site.line is the line


def test_the_loss_is_read_once(virtual_cuda) -> None:
    model = nn.Linear(4, 2).to("cuda")
    mean_loss(model, [torch.ones(8, 4)] * 10)
    assert len(virtual_cuda.ledger.syncs("item")) == 1


# Too much at once


def broken_brightness(sprites: torch.Tensor) -> torch.Tensor:
    return (
        sprites.to(chosen_device()).mean(dim=(1, 2, 3)).cpu()
    )  # BROKEN: the whole data set is on the device


def brightness(sprites: torch.Tensor, batch_size: int = 64) -> torch.Tensor:
    parts = [part.to(chosen_device()).mean(dim=(1, 2, 3)) for part in sprites.split(batch_size)]
    return torch.cat(parts).cpu()


@pytest.mark.virtual_cuda(memory="8 MiB")
def test_a_small_device_runs_out_of_memory(virtual_cuda) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        broken_brightness(torch.rand(1024, 3, 32, 32))  # 12 MiB


@pytest.mark.virtual_cuda(memory="8 MiB")
def test_brightness_in_batches_fits(virtual_cuda) -> None:
    brightness(torch.rand(1024, 3, 32, 32))
    assert virtual_cuda.ledger.peak_bytes() <= 2 * MIB
