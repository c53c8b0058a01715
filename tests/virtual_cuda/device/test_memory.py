"""Memory figures are those of CUDA's allocator, and code can hit the limit and recover."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda
from virtual_cuda.device.state import Block

MIB = 1 << 20


def test_what_a_tensor_takes_and_gives_back() -> None:
    with virtual_cuda(memory="1 GiB"):
        assert torch.cuda.memory_allocated() == 0
        x = torch.zeros(1024, 1024, device="cuda")
        assert torch.cuda.memory_allocated() == 4 * MIB
        view = x.t()[:10]
        del x
        assert torch.cuda.memory_allocated() == 4 * MIB
        del view
        assert torch.cuda.memory_allocated() == 0
        one = torch.ones(1, device="cuda")
        assert torch.cuda.memory_allocated() == 512
        del one


def test_peaks_and_their_reset() -> None:
    with virtual_cuda() as gpu:
        x = torch.zeros(MIB, device="cuda")
        y = x + 1
        del y
        assert torch.cuda.memory_allocated() == 4 * MIB
        assert torch.cuda.max_memory_allocated() == 8 * MIB
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 4 * MIB
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 4 * MIB
        del x
    assert gpu.ledger.peak_bytes() == 8 * MIB


def test_reserved_memory_stays_until_the_cache_is_emptied() -> None:
    with virtual_cuda(memory="1 GiB"):
        x = torch.zeros(64 * MIB // 4, device="cuda")
        del x
        assert torch.cuda.memory_reserved() == 64 * MIB
        free, total = torch.cuda.mem_get_info()
        assert total - free == 64 * MIB
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert torch.cuda.max_memory_reserved() == 64 * MIB
        assert "Allocated memory" in torch.cuda.memory_summary()


def test_out_of_memory_and_recovery() -> None:
    with virtual_cuda(memory="64 MiB"):
        kept = torch.zeros(32 * MIB // 4, device="cuda")
        with pytest.raises(
            torch.cuda.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 48.00 MiB"
        ) as caught:
            torch.zeros(48 * MIB // 4, device="cuda")
        assert isinstance(caught.value, RuntimeError)
        assert "total capacity of 64.00 MiB" in str(caught.value)
        assert torch.cuda.memory_allocated() == 32 * MIB
        del kept
        torch.cuda.empty_cache()
        assert torch.zeros(48 * MIB // 4, device="cuda").sum().item() == 0
        assert torch.cuda.memory_stats()["num_ooms"] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.empty(10**13, device="cuda"),
        lambda: torch.zeros(10**13, dtype=torch.uint8, device="cuda"),
        lambda: torch.ones(10**7, 1, device="cuda") @ torch.ones(1, 10**6, device="cuda"),
        lambda: torch.ones(10**7, 1, device="cuda") + torch.ones(1, 10**6, device="cuda"),
    ],
)
def test_what_no_machine_holds_is_refused_before_the_host_tries(ask: object) -> None:
    with virtual_cuda(), pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        ask()  # type: ignore[operator]


def test_a_batch_that_does_not_fit_can_be_halved() -> None:
    """The loop of every course on memory: catch, free, halve, go on."""
    model_free = []
    with virtual_cuda(memory="128 MiB"):
        model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
        model(torch.ones(2, 256, device="cuda")).sum().backward()  # cuBLAS has its workspaces now
        model.zero_grad()
        size = 8192
        while True:
            try:
                model(torch.ones(size, 256, device="cuda")).sum().backward()
                break
            except torch.OutOfMemoryError:
                size //= 2
                model.zero_grad()
                torch.cuda.empty_cache()
                model_free.append(torch.cuda.memory_allocated())
        assert 64 < size < 8192
        assert len(set(model_free)) == 1


def test_a_fraction_of_the_memory() -> None:
    with virtual_cuda(memory="64 MiB"):
        torch.cuda.set_per_process_memory_fraction(0.25)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(32 * MIB // 4, device="cuda")
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.zeros(32 * MIB // 4, device="cuda")


def test_what_training_keeps() -> None:
    with virtual_cuda():
        model = nn.Linear(256, 256, bias=False).cuda()
        weight = 256 * 256 * 4
        optimizer = torch.optim.Adam(model.parameters())
        assert torch.cuda.memory_allocated() == weight
        x = torch.randn(512, 256, device="cuda")
        model(x).sum().backward()  # cuBLAS has its workspaces now
        optimizer.zero_grad()
        start = torch.cuda.memory_allocated()
        out = model(x).relu()
        activations = torch.cuda.memory_allocated() - start
        with torch.no_grad():
            before = torch.cuda.memory_allocated()
            quiet = model(x).relu()
            assert torch.cuda.memory_allocated() - before == 512 * 256 * 4
        del quiet
        assert activations == 512 * 256 * 4  # relu keeps its result only
        out.sum().backward()
        del out
        assert torch.cuda.memory_allocated() == start + weight
        optimizer.step()
        assert torch.cuda.memory_allocated() == start + 3 * weight
        optimizer.zero_grad()
        assert torch.cuda.memory_allocated() == start + 2 * weight
        del model, optimizer, x
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == 0


def test_a_list_of_losses_keeps_graphs_alive_and_a_list_of_numbers_does_not() -> None:
    def growth(keep: object) -> int:
        with virtual_cuda():
            model = nn.Linear(64, 64).cuda()
            x = torch.ones(64, 64, device="cuda")
            kept = []
            figures = []
            for _ in range(5):
                kept.append(keep(model(x).square().mean()))  # type: ignore[operator]
                figures.append(torch.cuda.memory_allocated())
            return figures[-1] - figures[0]

    assert growth(lambda loss: loss) > 4 * 64 * 64 * 4
    assert growth(lambda loss: loss.item()) == 0
    assert growth(lambda loss: loss.detach()) == 4 * 512


def test_each_device_has_its_own_memory() -> None:
    with virtual_cuda(devices=2, memory="32 MiB"):
        torch.zeros(1, device="cuda:0")
        big = torch.zeros(20 * MIB // 4, device="cuda:1")
        assert (torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)) == (0, 20 * MIB)
        with pytest.raises(torch.OutOfMemoryError, match="GPU 1 has a total capacity"):
            torch.zeros(20 * MIB // 4, device="cuda:1")
        torch.zeros(20 * MIB // 4, device="cuda:0")
        del big


def test_a_failed_try_keeps_its_tensors_inside_the_except_block_only() -> None:
    def attempt() -> None:
        half = torch.empty(24 * MIB, dtype=torch.uint8, device="cuda")
        torch.cat([half, half])

    with virtual_cuda(memory="64 MiB"):
        try:
            attempt()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            inside = torch.cuda.memory_allocated()
        assert (inside, torch.cuda.memory_allocated()) == (24 * MIB, 0)


KEEPING: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], Any]]] = {
    "attention": (nn.Identity, lambda _, x: nn.functional.scaled_dot_product_attention(x, x, x)),
    "attention in half": (
        nn.Identity,
        lambda _, x: nn.functional.scaled_dot_product_attention(*[x.half()] * 3),
    ),
    "lstm": (lambda: nn.LSTM(8, 4), lambda layer, x: layer(x[0])[0]),
    "lstm cell": (lambda: nn.LSTMCell(8, 4), lambda layer, x: layer(x[0, 0])[0]),
}


@pytest.mark.parametrize("name", KEEPING)
def test_what_a_kernel_keeps_is_freed_by_the_backward_pass(name: str) -> None:
    """The graph lives on, as `loss` does; what its nodes saved does not."""
    make, call = KEEPING[name]
    with virtual_cuda():
        layer = make().cuda()
        x = torch.rand(2, 3, 6, 8, device="cuda", requires_grad=True)
        call(layer, x).float().sum().backward()  # libraries have their workspaces now
        x.grad = None
        layer.zero_grad()
        before = torch.cuda.memory_allocated()
        loss = call(layer, x).float().sum()
        assert torch.cuda.memory_allocated() - before > 512
        loss.backward()
        x.grad = None
        layer.zero_grad()
        assert torch.cuda.memory_allocated() - before == 512  # the loss itself


class Interrupting(list[Any]):
    """Free pieces; before one is removed, what `hold` has is freed, as by the garbage collector."""

    hold: list[Any]

    def remove(self, piece: Any) -> None:
        self.hold.clear()
        super().remove(piece)


def test_a_block_that_is_freed_while_another_is_taken_is_joined_afterwards() -> None:
    with virtual_cuda() as gpu:
        memory = gpu.devices[0].memory
        front, middle, back = (
            torch.empty(6 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)
        )
        held = [middle]
        del front, middle
        memory.pieces = Interrupting(memory.pieces)
        memory.pieces.hold = held
        taken = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
        assert not held
        memory.pieces = [*memory.pieces]
        assert torch.cuda.memory_allocated() == taken.nbytes + back.nbytes
        del taken, back
        assert [piece.size for piece in memory.pieces] == [memory.reserved_large]
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0


def test_threads_that_allocate_at_once_leave_whole_segments() -> None:
    def work(seed: int) -> None:
        dice = random.Random(seed)
        kept = []
        for _ in range(400):
            kept.append(Block(place, dice.randrange(2, 8) << 20))
            if len(kept) > 4:
                del kept[dice.randrange(len(kept))]

    with virtual_cuda() as gpu, ThreadPoolExecutor(4) as pool:
        place = gpu.devices[0]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            list(pool.map(work, range(8)))
        finally:
            sys.setswitchinterval(interval)
        memory = place.memory
        torch.empty(
            2 << 20, dtype=torch.uint8, device="cuda"
        )  # what was freed meanwhile is joined now
        assert all(piece.before is piece.after is None for piece in memory.pieces)
        assert sum(piece.size for piece in memory.pieces) == memory.reserved_large


@pytest.mark.parametrize(
    "name", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"]
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_stays_in_the_memory_of_its_parts(name: str, reduction: str) -> None:
    """It is reduced in place: a list of such losses is as large as all that they were made of."""
    with virtual_cuda():
        x = torch.full((3200,), 0.5, device="cuda")
        y = torch.zeros(3200, device="cuda")
        before = torch.cuda.memory_allocated()
        loss = getattr(nn.functional, name)(x, y, reduction=reduction)
        assert loss.shape == ()
        assert torch.cuda.memory_allocated() - before == 12800
        total = loss + 0
        del loss
        assert torch.cuda.memory_allocated() - before == 512
        del total


KEPT_AT_EXIT = """
import time, torch, virtual_cuda

opened = virtual_cuda.virtual_cuda()
opened.__enter__()
# The interpreter empties `time` after the modules of the virtual device.
time.small = torch.ones(3, device="cuda")
time.large = torch.ones(3_000_000, device="cuda")
time.pool = torch.cuda.MemPool()
torch.cuda.memory_snapshot()  # each block gets an address
"""


def test_memory_that_is_still_in_use_at_exit_is_freed_in_silence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT_AT_EXIT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def _grow_tensor(x: torch.Tensor, size: int) -> None:
    x.resize_(size)


def _grow_storage(x: torch.Tensor, size: int) -> None:
    x.untyped_storage().resize_(size)


def _write_into_smaller_one(x: torch.Tensor, size: int) -> None:
    torch.cat([torch.ones(1, device="cuda").expand(size)], out=x)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("grow", [_grow_tensor, _grow_storage, _write_into_smaller_one])
def test_what_has_no_room_to_grow_raises_torchs_error(
    grow: Callable[[torch.Tensor, int], None],
) -> None:
    told = []
    with virtual_cuda(memory="64 MiB"):
        torch._C._cuda_attach_out_of_memory_observer(lambda *figures: told.append(figures))
        x = torch.ones(8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            grow(x, 80 * MIB)
        assert len(told) == 1
