"""The ledger of an open device: the list of everything the device did.

The device writes rows, which are cheap to write. They become records, which are easy to read, when
somebody asks for them.
"""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple, overload

import msgspec

from virtual_cuda.errors import BadMark
from virtual_cuda.ledger import questions, records, trace
from virtual_cuda.ledger.names import ANYTHING, LedgerPart, Vocabulary, device_label
from virtual_cuda.ledger.records import Record, Site, Span
from virtual_cuda.ledger.rows import (
    GRAD,
    INFERENCE,
    AllocationRow,
    BackwardRow,
    CollectiveRow,
    EndRow,
    ForwardRow,
    OperationRow,
    Row,
    ScalerRow,
    SiteRow,
    StepRow,
    StreamRow,
    SyncRow,
    TransferRow,
)
from virtual_cuda.ledger.stream_waits import UselessWait, first_useless_wait

_SpanRow = ForwardRow | BackwardRow | StepRow | CollectiveRow

# Operators that only fill or move numbers.
_MOVING: Final = ("aten.zero_.", "aten.fill_.", "aten._to_copy.")


class Ledger(Sequence[Record]):
    """The records of a device, or of a part of its work.

    Every question of `questions.py` is a method. The device appends rows to `rows`, and puts the
    highest number of bytes allocated on each device into `peaks`. Records keep their `index` when
    they are read through a part of the ledger.
    """

    def __init__(self, opened_at: float | None = None, vocabulary: Vocabulary = ANYTHING) -> None:
        """Begin an empty ledger; `opened_at` is a time of `time.perf_counter`, now if not given.

        `vocabulary` is what its records can name, so that questions refuse all else.
        """
        self.opened_at = time.perf_counter() if opened_at is None else opened_at
        self.vocabulary = vocabulary
        self.peaks: dict[str, int] = {}
        self._reader = _RowReader(self.opened_at)
        self._first = 0
        self._until: int | None = None
        # The records of this part, and how many rows the whole ledger had when they were read.
        self._cached_records: tuple[Record, ...] = ()
        self._cached_at = 0

    @property
    def rows(self) -> list[Row]:
        """The list the device appends to; a part of a ledger shares it with the whole."""
        return self._reader.rows

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of this part up to now.

        Reads the rows written since the last time. Raises ValueError for a row of no known kind.
        """
        rows_read = self._reader.read_new_rows()
        if self._cached_at != rows_read:
            first = self._reader.count_records_before(self._first)
            until = None
            if self._until is not None:
                until = self._reader.count_records_before(self._until)
            self._cached_records = tuple(self._reader.records[first:until])
            self._cached_at = rows_read
        return self._cached_records

    def mark(self) -> int:
        """A mark for this moment, to be given to `since`. Cheap: no row is read."""
        return len(self.rows)

    def since(self, mark: int, until: int | None = None) -> Ledger:
        """The part of the ledger written after a mark.

        It ends at the mark `until`, or grows with the ledger where that is None. Raises BadMark.
        """
        require_marks(mark, until, len(self.rows))
        part = Ledger(self.opened_at, self.vocabulary)
        part._reader = self._reader
        part._first = max(mark, self._first)
        ends = [end for end in (until, self._until) if end is not None]
        part._until = min(ends, default=None)
        return part

    @property
    def whole(self) -> Sequence[Record]:
        """The records of the whole ledger, of which this may be a part."""
        self._reader.read_new_rows()
        return self._reader.records

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The number of the first row of this part, and the number after its last row.

        The second is None while the part grows.
        """
        return self._first, self._until

    def rows_of_part(self) -> list[Row]:
        """The rows of this part.

        For questions that are asked often, where making records would take too long.
        """
        return self.rows[self._first : self._until]

    def records_by_row(self) -> dict[int, Record]:
        """The records of this part by the number of their row; not every row has a record.

        Raises ValueError for a row of no known kind.
        """
        found = self.records
        numbers = []
        for number, row in enumerate(self.rows_of_part(), self._first):
            if not isinstance(row, (EndRow, StreamRow)):
                numbers.append(number)
        # Not strict: another thread may have written meanwhile.
        return dict(zip(numbers, found, strict=False))

    def live_bytes_in_order(self) -> list[int]:
        """The bytes allocated after each operation and allocation of this part, in order.

        Cheap: no records are made. With several devices, each figure is that of the device of its
        row.
        """
        rows = self.rows_of_part()
        return [row.live for row in rows if isinstance(row, (OperationRow, AllocationRow))]

    def moved_bytes(self) -> int:
        """The bytes that known lines copied between the host and devices, in both directions.

        A line is known if the row says which instruction caused it. Cheap: no records are made.
        """
        moved = 0
        for row in self.rows_of_part():
            if not isinstance(row, TransferRow) or row.code is None:
                continue
            if row.direction != "between_devices":
                moved += row.bytes
        return moved

    def computed_numbers(self) -> int:
        """How many numbers operators on virtual devices computed from other numbers.

        Making, filling, moving and viewing a tensor computes nothing. Cheap: no records are made.
        """
        computed = 0
        for row in self.rows_of_part():
            if isinstance(row, OperationRow) and row.work and not row.name.startswith(_MOVING):
                _, result, *inputs = row.work
                if inputs:
                    shape = inputs[0] if result is None else result  # in place it has no result
                    computed += math.prod(shape)
        return computed

    def was_used(self) -> bool:
        """True if this part has an operation, a copy, a wait or an allocation of the device.

        Passes of modules and steps of optimizers may be on the host. Cheap: no records are made.
        """
        on_device = (OperationRow, TransferRow, SyncRow, AllocationRow)
        return any(isinstance(row, on_device) for row in self.rows_of_part())

    def count_with_line(self) -> int:
        """The number of records that a known line caused. Cheap: no records are made."""
        count = 0
        for row in self.rows_of_part():
            if isinstance(row, SiteRow) and not isinstance(row, StreamRow):
                count += row.code is not None
        return count

    def useless_wait(self) -> UselessWait | None:
        """The first wait for a device or a stream that was given no work; None if there is none.

        Recording an event in a stream without work counts as such a wait.
        """
        return first_useless_wait(self.rows_of_part(), self._reader.site_of)

    def save_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write a trace that chrome://tracing and ui.perfetto.dev open; returns its path.

        Raises OSError, and ValueError for a row of no known kind.
        """
        path = Path(path)
        path.write_bytes(msgspec.json.encode(trace.trace_of(self.records)))
        return path

    def peak_bytes(self, device: object = None) -> int:
        """The most bytes that were allocated on a device, or on the fullest one, at one time.

        What was there before this part of the ledger is included. Raises UnknownInLedger for a
        device that was not opened, and ValueError for a row of no known kind.
        """
        figures = [questions.peak_bytes(self, device)]
        if self._first:
            count = self._reader.count_records_before(self._first)
            earlier = LedgerPart(self._reader.records[:count], self)
            figures += questions.live_bytes(earlier, device).values()
            return max(figures)
        # The device also sees the peaks inside an operation, which leave no record.
        for name, peak in self.peaks.items():
            if device is None or questions.is_on(name, device_label(self, device)):
                figures.append(peak)
        return max(figures)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @overload
    def __getitem__(self, position: int) -> Record: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, position: int | slice) -> Record | tuple[Record, ...]:
        return self.records[position]

    def __repr__(self) -> str:
        return f"<Ledger of {len(self)} records>"

    # A ledger is a sequence of records, so a question is a method as it stands.
    between = questions.between
    before = questions.before
    after = questions.after
    within = questions.within
    rounds = questions.rounds
    in_function = questions.in_function
    on_line = questions.on_line
    per_line = questions.per_line
    hot_lines = questions.hot_lines
    transfers = questions.transfers
    transfers_to_device = questions.transfers_to_device
    transfers_to_host = questions.transfers_to_host
    transfers_between_devices = questions.transfers_between_devices
    pinned_transfers = questions.pinned_transfers
    non_blocking_transfers = questions.non_blocking_transfers
    repeated_transfers = questions.repeated_transfers
    bytes_to_device = questions.bytes_to_device
    bytes_to_host = questions.bytes_to_host
    syncs = questions.syncs
    waits = questions.waits
    explicit_syncs = questions.explicit_syncs
    sync_counts = questions.sync_counts
    syncs_between = questions.syncs_between
    syncs_within = questions.syncs_within
    syncs_per_round = questions.syncs_per_round
    operations = questions.operations
    operation_counts = questions.operation_counts
    operations_on = questions.operations_on
    operations_building_graph = questions.operations_building_graph
    operations_under_autocast = questions.operations_under_autocast
    autocast_dtypes = questions.autocast_dtypes
    grown_operations = questions.grown_operations
    grown_lines = questions.grown_lines
    forwards = questions.forwards
    forwards_building_graph = questions.forwards_building_graph
    forwards_in_training_mode = questions.forwards_in_training_mode
    forwards_on = questions.forwards_on
    forwards_across_devices = questions.forwards_across_devices
    forwards_under_autocast = questions.forwards_under_autocast
    backward_passes = questions.backward_passes
    backwards_under_autocast = questions.backwards_under_autocast
    optimizer_steps = questions.optimizer_steps
    training_order = questions.training_order
    backwards_per_step = questions.backwards_per_step
    steps_without_backward = questions.steps_without_backward
    backwards_after_last_step = questions.backwards_after_last_step
    scaler_calls = questions.scaler_calls
    backwards_without_scale = questions.backwards_without_scale
    steps_outside_scaler = questions.steps_outside_scaler
    scaler_steps_without_update = questions.scaler_steps_without_update
    gradient_norms = questions.gradient_norms
    norms_before_unscale = questions.norms_before_unscale
    collectives = questions.collectives
    allocations = questions.allocations
    allocated_bytes = questions.allocated_bytes
    live_bytes = questions.live_bytes


def require_marks(first: object, until: object, latest: int) -> None:
    """Raise BadMark for what are no two marks in order; `until` may be None, for the end.

    `latest` is the number of rows there are.
    """
    if not isinstance(first, int) or isinstance(first, bool) or not 0 <= first <= latest:
        raise BadMark(first, 0, latest)
    if until is None:
        return
    if not isinstance(until, int) or isinstance(until, bool) or not first <= until <= latest:
        raise BadMark(until, first, latest)


def records_of(rows: Sequence[Row], opened_at: float = 0.0) -> tuple[Record, ...]:
    """The records of the rows of a whole ledger.

    Raises ValueError for a row of no known kind.
    """
    reader = _RowReader(opened_at, rows)
    reader.read_new_rows()
    return tuple(reader.records)


class _RowReader:
    """Makes records of rows, each row once; a ledger and its parts share one reader."""

    def __init__(self, opened_at: float, rows: Sequence[Row] = ()) -> None:
        """Begin with these rows, none of them read; `opened_at` becomes the time 0 of records."""
        self.rows: list[Row] = list(rows)
        self.records: list[Record] = []
        self._opened_at = opened_at
        self._rows_read = 0
        # The numbers of the rows that have none, ascending.
        self._rows_without_record: list[int] = []
        # By the row of a span that has not ended: the index of its record.
        self._open_spans: dict[int, int] = {}
        # Rows of the forward and backward passes that now run, outermost first.
        self._enclosing: list[int] = []
        self._sites = Sites()

    def count_records_before(self, row: int) -> int:
        """The number of records written before this row."""
        return row - bisect_left(self._rows_without_record, row)

    def site_of(self, row: SiteRow) -> Site | None:
        """The line that caused a row; None where none is known."""
        return self._sites.find(row.code, row.offset)

    def read_new_rows(self) -> int:
        """Read the rows written since the last time; returns how many rows there are by now.

        Raises ValueError for a row of no known kind.
        """
        if len(self.rows) < self._rows_read:  # the device has emptied its list to start again
            self._forget_everything()
        for row in self.rows[self._rows_read :]:  # a copy: another thread may append meanwhile
            if isinstance(row, EndRow):
                self._close_span(row)
            elif isinstance(row, StreamRow):
                self._rows_without_record.append(self._rows_read)
            else:
                self.records.append(self._record_of(row))
            self._rows_read += 1
        return self._rows_read

    def _forget_everything(self) -> None:
        """Begin again before the first row."""
        self.records = []  # parts keep the old ones
        self._rows_without_record.clear()
        self._open_spans.clear()
        self._enclosing.clear()
        self._rows_read = 0

    def _close_span(self, row: EndRow) -> None:
        """Give the record of the span that ends here its end and its length.

        Does nothing to records where no span is open that began with the row which `row` names.
        """
        self._rows_without_record.append(self._rows_read)
        self._leave_pass(row.opened)
        position = self._open_spans.pop(row.opened, None)
        if position is None:
            return
        span = self.records[position]
        assert isinstance(span, Span)
        seconds = row.at - self._opened_at - span.at
        end = len(self.records)
        self.records[position] = msgspec.structs.replace(span, end=end, seconds=seconds)

    def _leave_pass(self, opened: int) -> None:
        """Note that the pass which began with this row encloses nothing from now on.

        Does nothing for other rows.
        """
        if opened not in self._enclosing:
            return
        if opened == self._enclosing[0]:
            # A pass inside this outermost one may have raised: its EndRow will not come.
            self._enclosing.clear()
        else:
            self._enclosing.remove(opened)

    def _record_of(self, row: Row) -> Record:
        """The record of a row that is neither an EndRow nor a StreamRow.

        A row that begins something is noted as open. Raises ValueError for a row of no known kind.
        """
        if not isinstance(row, SiteRow):
            raise ValueError(f"row {self._rows_read} is of no known kind: {row!r}")
        index = len(self.records)
        at = row.at - self._opened_at
        site = self.site_of(row)
        # What lasts: its record gets its end when an EndRow is read.
        if isinstance(row, _SpanRow):
            self._open_spans[self._rows_read] = index
            return self._span_record_of(row, index, at, site)
        # What happens at one moment.
        match row:
            case OperationRow():
                return records.Operation(
                    index,
                    at,
                    site,
                    name=str(row.name),
                    device=str(row.device),
                    grad=bool(row.mode & GRAD),
                    inference=bool(row.mode & INFERENCE),
                    autocast=_dtype_name(row.autocast),
                    bytes=row.bytes,
                    live=row.live,
                )
            case TransferRow():
                return records.Transfer(
                    index,
                    at,
                    site,
                    direction=row.direction,
                    bytes=row.bytes,
                    pinned=bool(row.pinned),
                    non_blocking=bool(row.non_blocking),
                    source=str(row.source),
                    target=str(row.target),
                )
            case SyncRow():
                return records.Sync(
                    index,
                    at,
                    site,
                    what=str(row.what),
                    explicit=bool(row.explicit),
                )
            case ScalerRow():
                return records.ScalerCall(index, at, site, call=row.call)
            case AllocationRow():
                return records.Allocation(
                    index,
                    at,
                    site,
                    device=str(row.device),
                    bytes=row.bytes,
                    live=row.live,
                )
            case _:
                raise ValueError(f"row {self._rows_read} is of no known kind: {row!r}")

    def _span_record_of(self, row: _SpanRow, index: int, at: float, site: Site | None) -> Span:
        """The record of something that lasts, still without its end.

        `index` is its number, `at` its time since the opening in seconds. Notes forward and
        backward passes as enclosing the rows that follow.
        """
        match row:
            # Passes enclose what follows; steps and exchanges with other ranks do not.
            case ForwardRow():
                depth = len(self._enclosing)
                self._enclosing.append(self._rows_read)
                return records.Forward(
                    index,
                    at,
                    site,
                    module=_class_name(row.module),
                    training=bool(row.training),
                    grad=bool(row.mode & GRAD),
                    inference=bool(row.mode & INFERENCE),
                    devices=tuple(map(str, row.devices)),
                    depth=depth,
                )
            case BackwardRow():
                self._enclosing.append(self._rows_read)
                return records.Backward(index, at, site)
            case StepRow():
                optimizer = _class_name(row.optimizer)
                return records.OptimizerStep(index, at, site, optimizer=optimizer)
            case CollectiveRow():
                return records.Collective(
                    index,
                    at,
                    site,
                    name=str(row.name),
                    device=str(row.device),
                    bytes=row.bytes,
                    ranks=row.ranks,
                )


_identity = object.__hash__  # unlike `id`, it raises no audit event


class _LineTable(NamedTuple):
    """Where the instructions of each line begin in a code object, ascending."""

    code: CodeType
    starts: list[int]
    lines: list[int]


class Sites:
    """Finds the line of an instruction; each code object's table is unpacked once."""

    def __init__(self) -> None:
        """Begin with no line found."""
        # By identity: code objects compare by content without their file name, so that two
        # students' identical files would be taken for one. The code is kept, so that its identity
        # is not given to another.
        self._tables: dict[int, _LineTable] = {}
        self._found: dict[tuple[int, int], Site] = {}

    def find(self, code: CodeType | None, offset: int | None) -> Site | None:
        """The line of the instruction at this offset; None where no code is known.

        What was found is remembered.
        """
        if code is None or offset is None:
            return None
        key = (_identity(code), offset)
        if key not in self._found:
            line = self._line_of(code, offset)
            self._found[key] = Site(code.co_filename, line, code.co_qualname)
        return self._found[key]

    def _line_of(self, code: CodeType, offset: int) -> int:
        """The line of the instruction at this offset; unpacks the code's table the first time."""
        table = self._tables.get(_identity(code))
        if table is None:
            table = _line_table_of(code)
            self._tables[_identity(code)] = table
        place = bisect_right(table.starts, offset) - 1
        if place < 0:
            # Before the first instruction (a frame that has not begun) the line of the `def` is the
            # best answer.
            return code.co_firstlineno
        return table.lines[place]


def _line_table_of(code: CodeType) -> _LineTable:
    """The table of where each line of a code object begins."""
    table = _LineTable(code, [], [])
    for start, _, line in code.co_lines():
        if line is not None:
            table.starts.append(start)
            table.lines.append(line)
    return table


def _dtype_name(dtype: object) -> str | None:
    """ "float16" for torch.float16 or its name; None for None."""
    if dtype is None:
        return None
    return str(dtype).removeprefix("torch.")


def _class_name(name: object) -> str:
    """The name of a class, which may be given as the class itself."""
    if isinstance(name, type):
        return name.__name__
    return str(name)
