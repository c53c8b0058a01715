"""A second run draws the same random numbers when the generators' state is restored."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
import torch
import virtual_cuda
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _open() -> Iterator[None]:
    with virtual_cuda.open_device("virtual"):
        yield


@pytest.mark.parametrize("seed", [torch.manual_seed, "torch.cuda.manual_seed"], ids=["both", "the device's"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_drops_the_same_again(seed: object, reentrant: bool) -> None:
    found = []
    for again in (False, True):
        (torch.cuda.manual_seed if isinstance(seed, str) else torch.manual_seed)(5)
        x = torch.ones(64, device="cuda", requires_grad=True)
        out = checkpoint(_drop, x, use_reentrant=reentrant) if again else _drop(x)
        out.sum().backward()
        assert x.grad is not None
        found.append((out.tolist(), x.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("own", [False, True], ids=["seeded with the host", "seeded alone"])
def test_states_put_back_by_hand(own: bool) -> None:
    torch.manual_seed(5)
    if own:
        torch.cuda.manual_seed(6)
    host, device = torch.get_rng_state(), torch.cuda.get_rng_state()
    first = _drop(torch.ones(64, device="cuda"))
    torch.set_rng_state(host)
    torch.cuda.set_rng_state(device)
    assert torch.equal(first, _drop(torch.ones(64, device="cuda")))


def test_the_allocators_statistics_nested() -> None:
    kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] == kept.nbytes
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == kept.nbytes


def _drop(x: torch.Tensor) -> torch.Tensor:
    return dropout(x.tanh(), 0.5, training=True).tanh()


def test_seeding_notes_nothing_for_accelerators_that_torch_was_built_without(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.xpu._is_compiled() or torch.mtia._is_compiled():
        pytest.skip("this torch was built with them")
    monkeypatch.setattr(traceback, "format_stack", lambda *_: pytest.fail("a traceback was made"))
    torch.manual_seed(5)
    first = torch.rand(3, device="cuda"), torch.rand(3)
    torch.manual_seed(5)
    again = torch.rand(3, device="cuda"), torch.rand(3)
    assert all(map(torch.equal, first, again))


def test_a_state_that_was_saved_on_a_gpu() -> None:
    saved = torch.tensor([42, 8]).view(torch.uint8)  # the seed and the offset
    drawn = []
    for _ in range(2):
        torch.cuda.set_rng_state(saved)
        assert (torch.cuda.initial_seed(), torch.cuda.default_generators[0].get_offset()) == (42, 8)
        drawn.append(torch.rand(4, device="cuda").tolist())
    assert drawn[0] == drawn[1]
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.cuda.set_rng_state(torch.zeros(20, dtype=torch.uint8))
