"""Operators make the host wait as often as on CUDA. The counts were measured on an H200."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.ledger.rows import SyncRow


def waits(construct: Callable[[], Any], gpu: Any) -> int:
    before = len(gpu.ledger.rows)
    construct()
    return sum(isinstance(row, SyncRow) for row in gpu.ledger.rows[before:])


def _x() -> Any:
    return torch.arange(12.0, device="cuda").reshape(3, 4)


def _set(index: Callable[[Any], Any], value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: x.__setitem__(index(x), value(x))


CASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "item": (lambda x: x.sum().item(), 1),
    "nonzero": (lambda x: x.nonzero(), 1),
    "nonzero of nothing": (lambda x: x[:0].nonzero(), 1),
    "get by device mask": (lambda x: x[x > 1], 1),
    "get by two device indices": (lambda x: x[x[:2, 0].long() * 0, x[:2, 0].long() * 0], 0),
    "fill by device mask": (_set(lambda x: x > 1, lambda x: 0.0), 0),
    "assign a device value by mask": (_set(lambda x: x > 1, lambda x: x[0, 0].clone()), 1),
    "one element": (_set(lambda x: (0, 0), lambda x: 1.0), 1),
    "one row": (_set(lambda x: 0, lambda x: 1.0), 0),
    "one element from the device": (_set(lambda x: (0, 0), lambda x: x[1, 1]), 0),
    "number by device index": (_set(lambda x: x[:2, 0].long() * 0, lambda x: 1.0), 1),
    "masked_fill with a number": (lambda x: x.masked_fill(x > 1, 0.0), 0),
    "masked_fill with a host value": (lambda x: x.masked_fill(x > 1, torch.tensor(0.0)), 0),
    "masked_fill with a device value": (lambda x: x.masked_fill(x > 1, x[0, 0]), 1),
    "where with a number": (lambda x: torch.where(x > 1, x, 0.0), 0),
    "where with a host value": (lambda x: torch.where(x > 1, x, torch.tensor(0.0)), 1),
    "where with two host values": (lambda x: torch.where(x > 1, torch.tensor(5), 2), 2),
    "bincount": (lambda x: x.long().flatten().bincount(), 2),
    "bincount of bytes": (lambda x: x.byte().flatten().bincount(), 1),
    "bincount of nothing": (lambda x: x.long()[:0].flatten().bincount(), 0),
    "histc with a range": (lambda x: x.histc(4, 0, 10), 0),
    "histc without": (lambda x: x.histc(4), 2),
    "unique": (lambda x: x.unique(return_inverse=True), 1),
    "unique rows": (lambda x: x.unique(dim=0), 0),
    "unique_consecutive rows": (lambda x: torch.unique_consecutive(x, dim=0), 0),
    "repeat_interleave": (lambda x: x.repeat_interleave(x[0, :3].long(), 0), 2),
    "repeat_interleave of known size": (
        lambda x: x.repeat_interleave(x[0, :3].long(), 0, output_size=3),
        0,
    ),
    "equal": (lambda x: torch.equal(x, x + 0), 1),
    "equal of other shapes": (lambda x: torch.equal(x, x[:1]), 0),
    "equal with itself": (lambda x: torch.equal(x, x), 0),
    "allclose": (lambda x: torch.allclose(x, x), 1),
    "isin few": (lambda x: torch.isin(x, x[0, :2]), 0),
    "isin many": (lambda x: torch.isin(x[0, :1], x), 3),
    "inv": (lambda x: torch.linalg.inv(torch.eye(2, device="cuda")), 1),
    "svd": (lambda x: torch.linalg.svd(x), 2),
    "eigvals": (lambda x: torch.linalg.eigvals(torch.eye(2, device="cuda")), 2),
    "qr": (lambda x: torch.linalg.qr(x), 0),
    "linspace between device ends": (
        lambda x: torch.linspace(x[0, 0], x[0, 1], 3, device="cuda"),
        2,
    ),
    "normal": (lambda x: torch.normal(x, x + 1), 2),
    "normal of a number": (lambda x: torch.normal(x, 1.0), 0),
    "sort": (lambda x: x.sort(), 0),
    "fill with a device value": (lambda x: x.fill_(x[0, 0]), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_waits_as_often_as_cuda(name: str) -> None:
    construct, expected = CASES[name]
    with virtual_cuda() as gpu:
        x = _x()
        assert waits(lambda: construct(x), gpu) == expected


def test_a_refusal_has_waited_before() -> None:
    with virtual_cuda() as gpu:
        negative = torch.arange(-2, 2, device="cuda")
        singular = torch.zeros(2, 2, device="cuda")

        def refused(function: Callable[[Any], Any], value: Any) -> int:
            def run() -> None:
                with pytest.raises(RuntimeError):
                    function(value)

            return waits(run, gpu)

        assert refused(torch.bincount, negative) == 1
        assert refused(torch.linalg.inv, singular) == 2


def test_debug_mode_error_stops_the_first_wait_and_no_quiet_operator() -> None:
    with virtual_cuda() as gpu:
        x = _x()
        torch.cuda.set_sync_debug_mode("error")
        x.sum()
        x[x > 1] = 0.0
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x.nonzero()
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x[0, 0] = 1
        torch.cuda.set_sync_debug_mode("default")
        assert gpu.ledger.rows


def test_debug_mode_warn_warns_once_per_wait() -> None:
    with virtual_cuda():
        x = _x().long().flatten()
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation") as caught:
            x.bincount()
        torch.cuda.set_sync_debug_mode("default")
        assert len(caught) == 2


@pytest.mark.usefixtures("gpu")
def test_warnings_name_the_line_that_waits_and_are_shown_once_for_each() -> None:
    x = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(3):
                x.sum().item()
                x.tolist()
                x.nonzero()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {warning.filename for warning in seen} == {__file__}
    assert len(seen) == len({warning.lineno for warning in seen}) == 3


@pytest.mark.usefixtures("gpu")
def test_recurrent_layers_leave_the_programs_own_warnings_alone() -> None:
    layer = torch.nn.LSTM(4, 4).cuda().half()
    x = torch.zeros(3, 2, 4, device="cuda", dtype=torch.half)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            warnings.warn("of the program", stacklevel=1)
            layer(x)
    assert [str(warning.message) for warning in seen] == ["of the program"]


def _assign_on_host(index: Any, value: Any) -> None:
    torch.zeros(4)[index] = value


# Index and value of an assignment to a tensor on the host, and the bytes of each copy that the host
# waits for.
ON_HOST: dict[str, tuple[Callable[[], Any], Callable[[], Any], list[int]]] = {
    "a value by numbers": (
        lambda: torch.tensor([1, 2]),
        lambda: torch.tensor(3.5, device="cuda"),
        [4],
    ),
    "a value by mask": (
        lambda: torch.tensor([True, False, True, False]),
        lambda: torch.tensor(3.5, device="cuda"),
        [4],
    ),
    "a value by numbers on the device": (
        lambda: torch.tensor([1, 2], device="cuda"),
        lambda: torch.tensor(3.5, device="cuda"),
        [4, 16],
    ),
    "a number by numbers on the device": (
        lambda: torch.tensor([1, 2], device="cuda"),
        lambda: 1.0,
        [16],
    ),
    "a number by numbers": (lambda: torch.tensor([1, 2]), lambda: 1.0, []),
}


@pytest.mark.parametrize("case", ON_HOST)
def test_what_comes_over_for_an_assignment_on_the_host_is_copied(case: str) -> None:
    make_index, make_value, copied = ON_HOST[case]
    with virtual_cuda() as gpu:
        index = make_index()
        value = make_value()
        before = gpu.ledger.mark()
        _assign_on_host(index, value)
        since = gpu.ledger.since(before)
        assert [copy.bytes for copy in since.transfers_to_host()] == copied
        assert len(since.syncs()) == len(copied)
