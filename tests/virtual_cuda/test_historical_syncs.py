"""Budgets catch synchronisations that projects have removed, and are silent once they are gone."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.utils import _pytree
from virtual_cuda import virtual_cuda
from virtual_cuda.budgets import Excess, MeasuredTest, describe, over_options

from tests.virtual_cuda.historical_syncs import BUGS, Bug, Program

by_name = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)


def run(bug: Bug, program: Program) -> tuple[list[Excess], MeasuredTest, Any]:
    """What is over the budget, as the marker judges it; and the program's result, on the host."""
    torch.manual_seed(0)
    # torch.compile switches these checks off for the rest of the process.
    torch.distributions.Distribution.set_default_validate_args(True)
    with virtual_cuda() as gpu:
        made = bug.prepare()
        first = gpu.ledger.mark()
        before = gpu.memory_in_use()
        result = program(made)
        until = gpu.ledger.mark()
        measured = MeasuredTest(gpu.ledger.since(first, until), gpu.times(first, until), before)
        on_host = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), result)
    return over_options(measured.counts(), bug.budget), measured, on_host


@by_name
def test_it_is_caught_on_its_lines(bug: Bug) -> None:
    excesses, measured, _ = run(bug, bug.before)
    assert excesses
    assert excesses[0].figure == "syncs"
    worst = describe(excesses[0], measured, "").splitlines()[1]
    source, first = inspect.getsourcelines(bug.before)
    lines = range(first, first + len(source))
    assert any(f"historical_syncs.py:{line} " in worst for line in lines), worst


@by_name
def test_it_is_silent_once_it_is_mended(bug: Bug) -> None:
    excesses, measured, _ = run(bug, bug.after)
    assert not excesses, describe(excesses[0], measured, "")


@by_name
def test_what_was_mended_gives_the_same(bug: Bug) -> None:
    _, _, before = run(bug, bug.before)
    _, _, after = run(bug, bug.after)
    torch.testing.assert_close(before, after)


def test_each_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) > 20
