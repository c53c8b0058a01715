"""The exported trace shows what happened, on the right tracks and properly nested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cuda.ledger import rows
from virtual_cuda.ledger.ledger import Ledger, records_of
from virtual_cuda.ledger.trace import trace_of

NOWHERE = (None, None)
CODE = compile("\n\nloss.item()", "loop.py", "exec")
LINE_3 = (CODE, CODE.co_code.__len__() - 2)


def an_operation(at: float, device: str = "cuda:0", live: int = 0) -> rows.Row:
    return rows.OperationRow(
        at,
        *LINE_3,
        "aten.mm.default",
        device,
        rows.GRAD,
        "torch.float16",
        256,
        live,
    )


def a_forward(at: float, module: str = "Net") -> rows.Row:
    return rows.ForwardRow(at, *NOWHERE, module, True, rows.GRAD, ("cuda:0",))


def an_end(at: float, opened: int) -> rows.Row:
    return rows.EndRow(at, opened)


def events_of(*written: rows.Row) -> list[dict[str, Any]]:
    # Through JSON, because that is what a reader of the file gets.
    events: list[dict[str, Any]] = json.loads(json.dumps(trace_of(records_of(written))))[
        "traceEvents"
    ]
    return events


def slices(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def test_an_operation_says_where_and_how_it_ran() -> None:
    (operation,) = slices(events_of(an_operation(0.5)), "operation")
    assert operation == {
        "name": "aten.mm.default",
        "cat": "operation",
        "ph": "X",
        "ts": 500_000.0,
        "dur": 1.0,
        "pid": 1,
        "tid": 4,
        "args": {"site": "loop.py:3", "record": 0, "bytes": 256, "dtype": "float16", "grad": True},
    }


def test_each_kind_has_a_named_track() -> None:
    events = events_of(
        a_forward(0.0),
        an_operation(0.1),
        an_operation(0.2, "cuda:1"),
        rows.TransferRow(0.3, *NOWHERE, "to_host", 8, True, False, "cuda:0", "cpu"),
        rows.SyncRow(0.4, *LINE_3, "item", False),
        an_end(0.5, 0),
        rows.BackwardRow(0.6, *NOWHERE),
        an_end(0.7, 6),
        rows.StepRow(0.8, *NOWHERE, "Adam"),
        an_end(0.9, 8),
    )
    named = {
        e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
    }
    shown = [(named[e["tid"]], e["name"]) for e in events if e["ph"] == "X"]
    assert sorted(shown) == [
        ("copies", "cuda:0 → cpu"),
        ("host", "Adam.step"),
        ("host", "Net"),
        ("host", "backward"),
        ("operations on cuda:0", "aten.mm.default"),
        ("operations on cuda:1", "aten.mm.default"),
        ("synchronisations", "item"),
    ]
    (copy,) = slices(events, "copy")
    assert copy["args"] == {"record": 3, "bytes": 8, "pinned": True, "non_blocking": False}


def test_a_short_event_lasts_until_the_next_row_within_bounds() -> None:
    moments = (0.0, 0.000_200, 0.000_200_1, 1.0)
    operations = slices(events_of(*map(an_operation, moments)), "operation")
    assert [operation["dur"] for operation in operations] == [200.0, 1.0, 10_000.0, 1.0]


def test_an_operation_does_not_outlast_the_pass_it_is_in() -> None:
    events = events_of(a_forward(0.0), an_operation(0.001), an_end(0.002, 0), an_operation(0.009))
    assert slices(events, "operation")[0]["dur"] == pytest.approx(1000.0)


def test_passes_are_as_long_as_they_took() -> None:
    events = events_of(a_forward(0.0), a_forward(0.25, "Linear"), an_end(0.5, 1), an_end(1.0, 0))
    spans = [(e["name"], e["ts"], e["dur"]) for e in slices(events, "forward")]
    assert spans == [("Net", 0.0, 1_000_000.0), ("Linear", 250_000.0, 250_000.0)]


def test_a_pass_that_begins_as_another_ends_is_not_inside_it() -> None:
    events = events_of(a_forward(0.0), an_end(1.0, 0), a_forward(1.0, "Loss"), an_end(2.0, 2))
    assert [e["dur"] for e in slices(events, "forward")] == [1_000_000.0, 1_000_000.0]


def test_a_pass_that_raised_ends_with_the_one_around_it() -> None:
    events = events_of(a_forward(0.0), a_forward(0.25, "Linear"), an_end(1.0, 0), an_operation(2.0))
    assert [e["dur"] for e in slices(events, "forward")] == [1_000_000.0, 750_000.0]


def test_a_scaler_call_is_a_mark_on_the_host() -> None:
    events = events_of(rows.ScalerRow(0.5, *NOWHERE, "update"))
    (mark,) = [event for event in events if event["ph"] == "i"]
    assert (mark["name"], mark["ts"], mark["tid"]) == ("scaler.update", 500_000.0, 1)


def test_live_bytes_are_a_curve_per_device() -> None:
    events = events_of(
        an_operation(0.1, live=512),
        rows.AllocationRow(0.2, *NOWHERE, "cuda:0", -512, 0),
        an_operation(0.3, "cuda:1"),
    )
    curve = [(e["name"], e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert curve == [
        ("live bytes on cuda:0", 100_000.0, 512),
        ("live bytes on cuda:0", 200_000.0, 0),
        ("live bytes on cuda:1", 300_000.0, 0),
    ]


@given(st.data())
def test_slices_of_one_track_nest_or_follow_each_other(data: st.DataObject) -> None:
    written: list[rows.Row] = []
    unclosed: list[int] = []
    at = 0.0
    for _ in range(data.draw(st.integers(0, 25))):
        at += data.draw(st.sampled_from([0.0, 1e-7, 1e-5, 0.5]))
        choice = data.draw(st.sampled_from(["operation", "forward", "end"]))
        if choice == "operation":
            written.append(an_operation(at))
        elif choice == "forward":
            unclosed.append(len(written))
            written.append(a_forward(at))
        elif unclosed:  # any of them: threads end their passes in any order
            written.append(an_end(at, unclosed.pop(data.draw(st.integers(0, len(unclosed) - 1)))))
    events = [e for e in trace_of(records_of(written))["traceEvents"] if e["ph"] == "X"]
    for tid in (1, 4):
        around: list[float] = []
        for event in (e for e in events if e["tid"] == tid):
            start = event["ts"]
            end = event["ts"] + event["dur"]
            while around and around[-1] <= start + 1e-4:
                around.pop()
            assert end <= min([*around, end]) + 1e-3
            assert event["dur"] >= 0
            if tid == 4:
                assert not around
            around.append(end)


def test_a_ledger_saves_its_trace(tmp_path: Path) -> None:
    ledger = Ledger(opened_at=10.0)
    ledger.rows.append(an_operation(10.5))
    path = ledger.save_trace(tmp_path / "trace.json")
    saved = json.loads(path.read_text("utf-8"))
    assert slices(saved["traceEvents"], "operation")[0]["ts"] == 500_000.0


def test_an_empty_ledger_has_a_trace_too(tmp_path: Path) -> None:
    events = json.loads(Ledger().save_trace(str(tmp_path / "empty.json")).read_text())[
        "traceEvents"
    ]
    assert {event["ph"] for event in events} == {"M"}
