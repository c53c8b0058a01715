"""Data arrives as on CUDA: loaders, pinning, workers, and the transfers they make."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from virtual_cuda import VirtualGpu, virtual_cuda

FORK = {"multiprocessing_context": "fork"}


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Samples as dictionaries, so that pinning has to look inside."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index)), "y": torch.tensor(index)}


class OnTheDevice(Dataset[torch.Tensor]):
    """What not to do."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2).to("cuda")


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_cross_without_waiting(gpu: VirtualGpu, workers: int) -> None:
    options: dict[str, Any] = FORK if workers else {}
    loader = DataLoader(Numbers(), batch_size=4, pin_memory=True, num_workers=workers, **options)
    total = torch.zeros((), device="cuda")
    for batch in loader:
        assert batch["x"].is_pinned()
        total += batch["x"].to("cuda", non_blocking=True).sum()
        batch["y"].cuda(non_blocking=True)
    copies = gpu.ledger.transfers_to_device()
    assert [(t.pinned, t.non_blocking, t.bytes) for t in copies] == [
        (True, True, 64),
        (True, True, 32),
    ] * 2
    assert not gpu.ledger.syncs()
    assert total.item() == 4 * sum(range(8))
    assert {t.site.function.rpartition(".")[2] for t in copies if t.site} == {
        "test_pinned_batches_cross_without_waiting"
    }


def test_unpinned_batches_wait(gpu: VirtualGpu) -> None:
    for batch in DataLoader(Numbers(), batch_size=4):
        assert not batch["x"].is_pinned()
        batch["x"].to("cuda")
    assert [(t.pinned, t.non_blocking) for t in gpu.ledger.transfers_to_device()] == [
        (False, False)
    ] * 2
    assert len(gpu.ledger.syncs()) == 2


@pytest.mark.usefixtures("gpu")
def test_what_can_be_pinned() -> None:
    x = torch.ones(3)
    pinned = x.pin_memory()
    assert (pinned.is_pinned(), x.is_pinned(), torch.equal(pinned, x)) == (True, False, True)
    assert torch.empty(2, pin_memory=True).is_pinned()
    assert pinned[1:].is_pinned()
    with pytest.raises(
        RuntimeError,
        match=r"cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
    ):
        x.cuda().pin_memory()


def test_pinned_copies_keep_their_strides(gpu: VirtualGpu) -> None:
    x = torch.arange(12.0).view(3, 4)
    for part in (x.t(), x[:, ::2], x[1:, 1:]):
        pinned = part.pin_memory()
        assert (pinned.stride(), pinned.is_pinned()) == (part.stride(), True)
        assert torch.equal(pinned, part)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x[:1].expand(3, 4).pin_memory()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "sparse_csc"])
def test_sparse_tensors_are_pinned_by_their_parts(gpu: VirtualGpu, layout: str) -> None:
    sparse = getattr(torch.eye(3), f"to_{layout}")()
    pinned = sparse.pin_memory()
    assert (pinned.layout, pinned.is_pinned(), sparse.is_pinned()) == (sparse.layout, True, False)
    moved = pinned.to("cuda", non_blocking=True)
    assert {(t.pinned, t.non_blocking) for t in gpu.ledger.transfers_to_device()} == {(True, True)}
    assert torch.equal(moved.to_dense().cpu(), torch.eye(3))


def test_without_a_device_there_is_nothing_to_pin_for() -> None:
    with virtual_cuda():
        loader = DataLoader(Numbers(), batch_size=4, pin_memory=True)
        assert all(batch["x"].is_pinned() for batch in loader)
    with pytest.warns(UserWarning, match="pin_memory"):
        assert not next(iter(DataLoader(Numbers(), pin_memory=True)))["x"].is_pinned()


@pytest.mark.usefixtures("gpu")
def test_a_worker_that_touches_the_device_gets_the_fork_error() -> None:
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        next(iter(DataLoader(OnTheDevice(), num_workers=1, **FORK)))
    assert torch.ones(2, device="cuda").sum().item() == 2  # the parent is as it was


@pytest.mark.usefixtures("gpu")
def test_samples_that_live_on_the_device() -> None:
    """Without workers it is allowed, and the batches are there already."""
    assert next(iter(DataLoader(OnTheDevice(), batch_size=2))).is_cuda
    data = TensorDataset(torch.arange(6.0).cuda(), torch.arange(6).cuda())
    batches = list(
        DataLoader(data, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(0))
    )
    assert all(x.is_cuda and y.is_cuda for x, y in batches)
    assert sorted(torch.cat([x for x, _ in batches]).tolist()) == list(range(6))
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch.cuda.FloatTensor'"):
        next(iter(DataLoader(data, batch_size=3, pin_memory=True)))


def test_losses_do_not_depend_on_workers() -> None:
    def run(device: str, workers: int) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 8).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options: dict[str, Any] = FORK if workers else {}
        found = []
        for batch in DataLoader(Numbers(), 4, shuffle=True, num_workers=workers, **options):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                model(batch["x"].to(device)), batch["y"].to(device)
            )
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = run("cpu", 0)
    with virtual_cuda():
        assert run("cuda", 0) == run("cuda", 2) == expected


def test_batches_are_pinned_while_another_thread_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patches are put aside for an import of torch's, and the thread that pins must not go on
    without them.
    """
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    with virtual_cuda():
        batches = iter(
            DataLoader(Numbers(), 1, num_workers=1, pin_memory=True, prefetch_factor=8, **FORK)
        )
        first = next(batches)
        importlib.import_module("torch.slow_module")
        del sys.modules["torch.slow_module"]
        assert all(batch["x"].is_pinned() for batch in (first, *batches))
