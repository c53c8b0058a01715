"""Rows become the right records, however and whenever a ledger is read."""

from __future__ import annotations

import subprocess
import sys
from inspect import getmembers, isfunction
from pathlib import Path
from types import CodeType, FrameType

import msgspec
import pytest
from virtual_cuda.ledger import questions, rows
from virtual_cuda.ledger.ledger import Ledger, records_of
from virtual_cuda.ledger.records import (
    Allocation,
    Backward,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Site,
    Sync,
    Transfer,
)

NOWHERE = (None, None)


def an_operation(at: float, live: int = 0, taken: int = 0, device: str = "cuda:0") -> rows.Row:
    return rows.OperationRow(
        at,
        *NOWHERE,
        "aten.add.Tensor",
        device,
        rows.GRAD,
        None,
        taken,
        live,
    )


def a_forward(at: float, module: str = "Net") -> rows.Row:
    return rows.ForwardRow(at, *NOWHERE, module, True, rows.GRAD, ("cuda:0",))


def an_end(at: float, opened: int) -> rows.Row:
    return rows.EndRow(at, opened)


def test_every_kind_of_row_becomes_its_record() -> None:
    ledger = Ledger(opened_at=100.0)
    for row in (
        rows.OperationRow(
            100.5,
            *NOWHERE,
            "aten.mm.default",
            "cuda:0",
            rows.GRAD,
            "torch.float16",
            512,
            1024,
        ),
        rows.TransferRow(101.0, *NOWHERE, "to_device", 64, True, False, "cpu", "cuda:0"),
        rows.SyncRow(102.0, *NOWHERE, "item", False),
        rows.ForwardRow(103.0, *NOWHERE, "Net", False, rows.INFERENCE, ["cuda:0", "cpu"]),
        rows.BackwardRow(104.0, *NOWHERE),
        rows.StepRow(105.0, *NOWHERE, "Adam"),
        rows.ScalerRow(106.0, *NOWHERE, "update"),
        rows.AllocationRow(107.0, *NOWHERE, "cuda:1", -256, 0),
    ):
        ledger.rows.append(row)
    assert ledger.records == (
        Operation(0, 0.5, None, "aten.mm.default", "cuda:0", True, False, "float16", 512, 1024),
        Transfer(1, 1.0, None, "to_device", 64, True, False, "cpu", "cuda:0"),
        Sync(2, 2.0, None, "item", False),
        Forward(3, 3.0, None, "Net", False, False, True, ("cuda:0", "cpu"), 0),
        Backward(4, 4.0, None),
        OptimizerStep(5, 5.0, None, "Adam"),
        ScalerCall(6, 6.0, None, "update"),
        Allocation(7, 7.0, None, "cuda:1", -256, 0),
    )
    assert records_of(ledger.rows, 100.0) == ledger.records


def test_records_survive_json_with_their_kind() -> None:
    records = records_of(
        [an_operation(1.0), a_forward(2.0), rows.SyncRow(3.0, *NOWHERE, "item", False)]
    )
    text = msgspec.json.encode(records)
    assert b'"type":"Forward"' in text
    assert msgspec.json.decode(text, type=tuple[Record, ...]) == records


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        records_of([an_operation(1.0)])[0].at = 2.0  # type: ignore[misc]


def test_a_row_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 1 is of no known kind: Row\(at=1.0\)"):
        records_of([an_operation(1.0), rows.Row(1.0)])


def test_an_end_closes_its_span_and_is_no_record() -> None:
    forward, inside, following = records_of(
        [a_forward(1.0), an_operation(2.0), an_end(3.5, 0), an_operation(4.0)]
    )
    assert isinstance(forward, Forward)
    assert (forward.seconds, forward.end) == (2.5, 2)
    assert (forward.index, inside.index, following.index) == (0, 1, forward.end)


def test_forwards_know_how_deep_they_are() -> None:
    rows_ = [
        a_forward(1.0, "Net"),
        a_forward(2.0, "Linear"),
        an_end(3.0, 1),
        a_forward(4.0, "ReLU"),
        an_end(5.0, 3),
    ]
    rows_ += [an_end(6.0, 0), a_forward(7.0, "Loss"), an_end(8.0, 6)]
    assert [(f.module, f.depth) for f in records_of(rows_) if isinstance(f, Forward)] == [
        ("Net", 0),
        ("Linear", 1),
        ("ReLU", 1),
        ("Loss", 0),
    ]


def test_a_forward_recomputed_in_backward_is_not_top_level_but_one_from_a_closure_is() -> None:
    recomputed = [rows.BackwardRow(1.0, *NOWHERE), a_forward(2.0), an_end(3.0, 1), an_end(4.0, 0)]
    assert [f.depth for f in records_of(recomputed) if isinstance(f, Forward)] == [1]
    closure = [
        rows.StepRow(1.0, *NOWHERE, "LBFGS"),
        a_forward(2.0),
        an_end(3.0, 1),
        an_end(4.0, 0),
    ]
    assert [f.depth for f in records_of(closure) if isinstance(f, Forward)] == [0]


def test_an_inner_pass_that_raised_does_not_deepen_the_next_call() -> None:
    raised = [
        a_forward(1.0, "Net"),
        a_forward(2.0, "Linear"),
        an_end(3.0, 0),
        a_forward(4.0, "Net"),
    ]
    _, inner, next_ = records_of(raised)
    assert isinstance(inner, Forward)
    assert isinstance(next_, Forward)
    assert (inner.seconds, inner.end, next_.depth) == (None, None, 0)


def test_a_ledger_is_right_when_rows_come_after_a_read() -> None:
    ledger = Ledger(opened_at=0.0)
    note = ledger.rows.append
    assert (len(ledger), ledger.records) == (0, ())
    note(a_forward(1.0))
    open_forward = ledger[0]
    assert isinstance(open_forward, Forward)
    assert open_forward.seconds is None
    note(an_operation(2.0))
    note(an_end(3.0, 0))
    closed = ledger[0]
    assert isinstance(closed, Forward)
    assert (closed.seconds, closed.end, len(ledger)) == (2.0, 2, 2)
    assert ledger.records == records_of(ledger.rows)


def test_records_are_made_once() -> None:
    ledger = Ledger()
    ledger.rows.append(an_operation(1.0))
    first = ledger.records
    assert ledger.records is first
    ledger.rows.append(an_operation(2.0))
    assert ledger.records[0] is first[0]


def test_a_ledger_emptied_by_its_device_starts_again() -> None:
    ledger = Ledger(opened_at=0.0)
    ledger.rows.extend([a_forward(1.0), an_operation(2.0), an_end(3.0, 0)])
    assert len(ledger) == 2
    ledger.rows.clear()
    ledger.rows.append(a_forward(4.0))
    assert [(r.index, r.at) for r in ledger] == [(0, 4.0)]
    assert ledger.forwards()[0].depth == 0


def test_a_record_is_at_its_index() -> None:
    ledger = Ledger()
    ledger.rows.extend(
        [a_forward(1.0), an_end(2.0, 0), an_operation(3.0), a_forward(4.0), an_end(5.0, 3)]
    )
    assert [ledger[record.index] for record in ledger] == list(ledger.records)


def test_since_shows_one_call_only() -> None:
    ledger = Ledger(opened_at=0.0)
    ledger.rows.extend([a_forward(1.0), an_end(2.0, 0), a_forward(3.0)])
    mark = ledger.mark()
    view = ledger.since(mark)
    assert len(view) == 0
    ledger.rows.extend([an_end(4.0, 2), an_operation(5.0)])
    assert [(type(r), r.index) for r in view] == [(Operation, 2)]
    done = ledger.mark()
    ledger.rows.append(an_operation(6.0))
    assert len(view) == 2
    assert [r.at for r in ledger.since(mark, done)] == [5.0]
    assert [r.at for r in ledger.since(mark, done).since(0)] == [5.0]
    assert [r.at for r in ledger.since(mark, done).since(0, done + 1)] == [5.0]
    assert view.operations() == ledger.operations()
    assert [r.at for r in view.since(done)] == [6.0]


def test_a_part_keeps_the_insides_of_its_spans() -> None:
    ledger = Ledger()
    ledger.rows.extend([an_operation(1.0), an_operation(2.0)])
    view = ledger.since(ledger.mark())
    ledger.rows.extend(
        [
            a_forward(3.0),
            rows.SyncRow(4.0, *NOWHERE, "item", False),
            an_end(5.0, 2),
            an_operation(6.0),
        ]
    )
    (forward,) = view.forwards()
    assert [r.index for r in view.within(forward)] == [3]
    assert len(view.syncs_within(forward)) == 1


def test_the_peak_includes_what_the_device_saw_and_what_was_there_before() -> None:
    ledger = Ledger()
    ledger.rows.append(an_operation(1.0, live=900, taken=900))
    ledger.rows.append(rows.AllocationRow(2.0, *NOWHERE, "cuda:0", -400, 500))
    mark = ledger.mark()
    ledger.rows.append(rows.AllocationRow(3.0, *NOWHERE, "cuda:0", -300, 200))
    ledger.rows.append(an_operation(4.0, live=300, taken=100))
    assert ledger.peak_bytes() == 900
    ledger.peaks |= {"cuda:0": 2000, "cuda:1": 5000}
    assert ledger.peak_bytes("cuda:0") == 2000
    assert ledger.peak_bytes("cuda") == 5000
    assert ledger.since(mark).peak_bytes("cuda:0") == 500
    assert ledger.since(mark).peak_bytes("cuda:1") == 0


def test_every_question_can_be_asked_of_a_ledger() -> None:
    public = {
        name: function
        for home in (questions, questions)
        for name, function in getmembers(home, isfunction)
        if function.__module__ == home.__name__ and not name.startswith("_") and name != "is_on"
    }
    assert len(public) > 40
    assert {n for n, question in public.items() if getattr(Ledger, n, None) is not question} == {
        "peak_bytes"
    }


# Sites


def here() -> FrameType:
    return sys._getframe(1)


def site_of(code: CodeType | None, offset: int | None) -> Site | None:
    (record,) = records_of([rows.SyncRow(0.0, code, offset, "item", False)])
    return record.site


def test_a_site_is_the_line_the_frame_was_at() -> None:
    def inner() -> tuple[FrameType, int, int]:
        frame = here()
        first = frame.f_lasti
        again = frame.f_lasti + (0 * len("a"))
        return frame, first, again

    frame, first, again = inner()
    line = inner.__code__.co_firstlineno
    name = f"{test_a_site_is_the_line_the_frame_was_at.__name__}.<locals>.inner"
    assert site_of(frame.f_code, first) == Site(__file__, line + 2, name)
    assert site_of(frame.f_code, again) == Site(__file__, line + 3, name)


def test_a_call_over_several_lines_has_the_line_of_the_frame() -> None:
    def inner() -> tuple[FrameType, int, int]:
        return (
            (frame := here()),
            frame.f_lineno,
            frame.f_lasti,
        )

    frame, line, offset = inner()
    found = site_of(frame.f_code, offset)
    assert found is not None
    lines = [found.line - inner.__code__.co_firstlineno, line - inner.__code__.co_firstlineno]
    assert lines == [4, 3]


def test_no_student_frame_is_no_site() -> None:
    assert site_of(None, None) is None


def test_a_frame_that_has_not_begun_is_at_its_def() -> None:
    code = here.__code__
    found = site_of(code, -1)
    assert found is not None
    assert found.line == code.co_firstlineno
    assert str(found) == f"{code.co_filename}:{code.co_firstlineno}"


def test_the_same_code_in_two_files_is_two_sites() -> None:
    alice, bob = (compile("x = 1", name, "exec") for name in ("alice.py", "bob.py"))
    assert alice == bob  # this is what makes a cache keyed by the code object wrong
    ledger = Ledger()
    ledger.rows.extend(rows.SyncRow(0.0, code, 2, "item", False) for code in (alice, bob))
    assert [str(record.site) for record in ledger] == ["alice.py:1", "bob.py:1"]


def test_reading_a_ledger_does_not_import_torch() -> None:
    script = (
        "import sys\n"
        "import virtual_cuda.ledger, virtual_cuda.errors, virtual_cuda.sizes\n"
        "import gpudojo.model.results_file, gpudojo.model.exercise, gpudojo.model.evidence\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])
