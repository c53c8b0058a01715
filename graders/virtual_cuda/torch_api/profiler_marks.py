"""Marks: events of torch's profiler around the work of the device.

While a profiler records, every operator of the device runs inside an event of this package, called
a mark. Its name tells which row of the ledger the operator writes. `profiled_events.py` and
`profiled_trace.py` turn what is inside a mark into work of the device.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from virtual_cuda.clock.lanes import HOST as HOST_LANE
from virtual_cuda.clock.lanes import Interval
from virtual_cuda.device.state import now
from virtual_cuda.device.tensor import Plan
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import AllocationRow, OperationRow, SyncRow, TransferRow
from virtual_cuda.ops.whole_kernels import KernelHook, WholeKernel

MARK: Final = "[virtual device]"  # and the number of a row
IDLE_MARK: Final = "[virtual device, nothing to do]"
# Operators that launch no kernel, besides views.
_IDLE_OPERATORS: Final = (
    "aten::empty",
    "aten::new_empty",
    "aten::_has_compatible",
    "aten::set_",
    "aten::resize_",
)
_OUR_FILES: Final = f"{__name__.partition('.')[0]}/"
_RecordFunction: Final = find_internal("torch._C._profiler._RecordFunctionFast", "the profiler")


# ---- making marks --------------------------------------------------------------------------------


def _mark_for_next_row() -> Any:
    """An event whose name tells which row of the ledger the operator inside will write."""
    row = "" if now.gpu is None else len(now.gpu.ledger.rows)
    return _RecordFunction(f"{MARK}{row}")


class MarkingHook(KernelHook):
    """Runs operators and whole kernels inside marks: a hook for `operator_hooks`."""

    def __call__(self, func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Run an operator inside a mark; gives and raises what its plan does."""
        is_idle = func.is_view or func._schema.name.startswith(_IDLE_OPERATORS)
        if is_idle:
            mark = _RecordFunction(IDLE_MARK)
        else:
            mark = _mark_for_next_row()
        with mark:
            return plan(args, kwargs)

    def run_kernel(self, kernel: Any, args: Any) -> Any:
        """Run one direction of a whole kernel inside a mark; gives and raises what it does."""
        with _mark_for_next_row():
            return kernel(*args)


# ---- reading marks -------------------------------------------------------------------------------


def is_mark(name: str) -> bool:
    """True for the name of a mark, also of an operator that launches nothing."""
    return name == IDLE_MARK or name.startswith(MARK)


def is_ours(name: str) -> bool:
    """True for events that only a tensor subclass has.

    They are its dispatch, and the functions of this package.
    """
    if name == "PythonSubclass" or _OUR_FILES in name:
        return True
    return name.removesuffix("Backward") in WholeKernel.class_names


def row_number_of(mark: str) -> int | None:
    """The number of the row that the operator of a mark has written, or None."""
    gpu = now.gpu
    number_in_name = mark.removeprefix(MARK)
    if gpu is None or not number_in_name.isdigit():
        return None
    rows = gpu.ledger.rows
    number = int(number_in_name)
    # Past what it keeps for the backward pass.
    while number < len(rows) and isinstance(rows[number], AllocationRow):
        number += 1
    if number < len(rows) and isinstance(rows[number], OperationRow):
        return number
    return None


def operator_name_of(mark: str) -> str | None:
    """The operator of a mark as the profiler spells it, or None if it has written no row."""
    number = row_number_of(mark)
    if now.gpu is None or number is None:
        return None
    row = now.gpu.ledger.rows[number]
    assert isinstance(row, OperationRow)
    namespace_and_name = row.name.split(".")[:2]
    return "::".join(namespace_and_name)


def modelled_work_of(mark: str) -> list[Interval] | None:
    """What the device did for the operator of a mark, according to the modelled clock.

    The clock reads new rows for that. None where times are measured; [] for an operator without a
    row.
    """
    gpu = now.gpu
    if gpu is None:
        clock = None
    else:
        clock = gpu.clock()
    if gpu is None or clock is None:
        return None
    first = row_number_of(mark)
    if first is None:
        return []
    # Copies and waits that follow belong to the operator.
    rows = gpu.ledger.rows
    end = first + 1
    while end < len(rows) and isinstance(rows[end], (TransferRow, SyncRow)):
        end += 1
    intervals = _intervals_of_rows(clock.intervals, first, end)
    return [interval for interval in intervals if interval.lane != HOST_LANE]


def _intervals_of_rows(intervals: list[Interval], first: int, end: int) -> list[Interval]:
    """The intervals of the rows from `first` to before `end`; they are in the order of rows."""
    start_index = bisect_left(intervals, first, key=lambda interval: interval.row)
    end_index = bisect_left(intervals, end, key=lambda interval: interval.row)
    return intervals[start_index:end_index]
