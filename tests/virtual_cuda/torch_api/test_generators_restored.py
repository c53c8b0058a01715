"""A second run draws the same random numbers when the generators' state is restored."""

from __future__ import annotations

import copy
import io
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import virtual_cuda
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _open() -> Iterator[None]:
    with virtual_cuda.open_device("virtual"):
        yield


@pytest.mark.parametrize(
    "seed", [torch.manual_seed, "torch.cuda.manual_seed"], ids=["both", "the device's"]
)
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
    host = torch.get_rng_state()
    device = torch.cuda.get_rng_state()
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


def test_seeding_notes_nothing_for_accelerators_that_torch_was_built_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def _through_a_file(state: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save({"rng": state}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["rng"]
    assert isinstance(loaded, torch.Tensor)
    return loaded


COPIES = {
    "itself": lambda state: state,
    "a copy": torch.Tensor.clone,
    "a deep copy": copy.deepcopy,
    "a file": _through_a_file,
    "pickled": lambda state: pickle.loads(pickle.dumps(state)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_state_is_the_seed_and_the_offset_and_goes_back_to_where_it_was(copied: Any) -> None:
    torch.cuda.manual_seed(-6)
    torch.rand(100, device="cuda")
    state = copied(torch.cuda.get_rng_state())
    assert (state.dtype, state.shape) == (torch.uint8, (16,))
    assert state.clone().view(torch.int64).tolist() == [-6, 4]
    wanted = torch.rand(100, device="cuda")
    torch.rand(10, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="cuda"), wanted)


@pytest.mark.parametrize(
    "copied", [COPIES["a deep copy"], COPIES["a file"]], ids=["a deep copy", "a file"]
)
def test_a_saved_state_is_restored_under_another_seed(copied: Any) -> None:
    torch.cuda.manual_seed(6)
    torch.rand(100, device="cuda")
    state = copied(torch.cuda.get_rng_state())
    wanted = torch.rand(100, device="cuda")
    torch.cuda.manual_seed(7)
    torch.cuda.set_rng_state(state)
    assert torch.cuda.initial_seed() == 6
    assert torch.equal(torch.rand(100, device="cuda"), wanted)


def test_a_state_that_was_changed_draws_other_numbers_each_time_the_same() -> None:
    drawn = []
    for offset in (8, 12, 8):
        torch.cuda.manual_seed(6)
        state = torch.cuda.get_rng_state()
        state[8:] = torch.tensor([offset]).view(
            torch.uint8
        )  # in place, as DTensor does for the shards of a tensor
        torch.cuda.set_rng_state(state)
        drawn.append(torch.rand(100, device="cuda"))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    with pytest.raises(RuntimeError, match="wrong size"):
        torch.cuda.set_rng_state(torch.zeros(5056, dtype=torch.uint8))
