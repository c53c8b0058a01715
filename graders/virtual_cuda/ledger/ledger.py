"""The ledger of an open device. Rows become records when they are read."""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, overload

import msgspec

from virtual_cuda.ledger import exports, questions, records
from virtual_cuda.ledger.records import Record, Row, Site, Span


class Ledger(Sequence[Record]):
    """The records of a device, or of a part of its work, and every question of `questions.py` as a method.

    The device appends rows to `rows`, and puts the highest number of bytes allocated on each device into `peaks`.
    Records keep their `index` when they are read through a part of the ledger.
    """

    def __init__(self, opened_at: float | None = None) -> None:
        self.opened_at = time.perf_counter() if opened_at is None else opened_at
        self.peaks: dict[str, int] = {}
        self._reader = _Reader(self.opened_at)
        self._first = 0
        self._until: int | None = None
        self._cached: tuple[int, tuple[Record, ...]] = (0, ())

    @property
    def rows(self) -> list[Row]:
        """The list the device appends to; a part of a ledger shares it with the whole."""
        return self._reader.rows

    @property
    def records(self) -> tuple[Record, ...]:
        """The records up to now."""
        count = self._reader.catch_up()
        if self._cached[0] != count:
            reader = self._reader
            until = None if self._until is None else reader.position(self._until)
            self._cached = count, tuple(reader.records[reader.position(self._first) : until])
        return self._cached[1]

    def mark(self) -> int:
        """This moment, for `since`. Cheap: nothing is read."""
        return len(self.rows)

    def since(self, mark: int, until: int | None = None) -> Ledger:
        """The part of the ledger written after a mark, up to another one or still growing."""
        part = Ledger(self.opened_at)
        part._reader = self._reader
        part._first = max(mark, self._first)
        part._until = (
            self._until
            if until is None
            else until
            if self._until is None
            else min(until, self._until)
        )
        return part

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The first of `rows` that is in this part, and the one after its last; None while it grows."""
        return self._first, self._until

    def by_row(self) -> dict[int, Record]:
        """The records of this part, each under the number of its row: not every row is a record."""
        found, skipped = self.records, (records.END, records.STREAM)
        numbers = (n for n, row in enumerate(self.written(), self._first) if row[0] not in skipped)
        return dict(zip(numbers, found, strict=False))  # another thread may have written meanwhile

    def written(self) -> list[Row]:
        """The rows of this part, not yet records: for frequent questions, where making records would take too long."""
        return self.rows[self._first : self._until]

    def save_trace(self, path: str | os.PathLike[str]) -> Path:
        """Writes a trace that chrome://tracing and ui.perfetto.dev open."""
        path = Path(path)
        path.write_bytes(msgspec.json.encode(exports.trace_of(self.records)))
        return path

    def peak_bytes(self, device: str = "cuda") -> int:
        """The most that was allocated on a device, what was there before this part of the ledger included."""
        peak = questions.peak_bytes(self.records, device)
        if self._first:
            earlier = self._reader.records[: self._reader.position(self._first)]
            return max([peak, *questions.live_bytes(earlier, device).values()])
        # The device also sees the peaks inside an operation, which leave no record.
        return max(
            [
                peak,
                *(bytes_ for name, bytes_ in self.peaks.items() if questions.is_on(name, device)),
            ]
        )

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


def records_of(written: Sequence[Row], opened_at: float = 0.0) -> tuple[Record, ...]:
    """The records that the rows of a whole ledger stand for."""
    reader = _Reader(opened_at, written)
    reader.catch_up()
    return tuple(reader.records)


class _Reader:
    """Reads each row once, however often the ledger is asked; whole ledger and views share one."""

    def __init__(self, opened_at: float, written: Sequence[Row] = ()) -> None:
        self.rows: list[Row] = list(written)
        self.records: list[Record] = []
        self._opened_at = opened_at
        self._rows_read = 0
        self._skipped: list[int] = []  # the rows that are no records, ascending
        self._open: dict[int, int] = {}  # row of a span without an END → position of its record
        self._enclosing: list[
            int
        ] = []  # rows of the forward and backward passes that now run, outermost first
        self._site = _Sites()

    def position(self, row: int) -> int:
        """The number of records written before this row."""
        return row - bisect_left(self._skipped, row)

    def catch_up(self) -> int:
        """Reads the rows written since the last time; returns how many there are by now."""
        if len(self.rows) < self._rows_read:  # the device has emptied its list to start again
            for seen in (self.records, self._skipped, self._open, self._enclosing):
                seen.clear()
            self._rows_read = 0
        for row in self.rows[self._rows_read :]:  # a copy: another thread may append meanwhile
            if row[0] == records.END:
                self._close(row)
            elif row[0] == records.STREAM:
                self._skipped.append(self._rows_read)
            else:
                self.records.append(self._record(row))
            self._rows_read += 1
        return self._rows_read

    def _close(self, row: Row) -> None:
        _, at, _, _, opened = row
        self._skipped.append(self._rows_read)
        if opened in self._enclosing:
            # A pass inside the outermost one that is open by now raised, and its END will not come.
            place = self._enclosing.index(opened)
            del self._enclosing[place : None if place == 0 else place + 1]
        if (place_of_record := self._open.pop(opened, None)) is not None:
            span = self.records[place_of_record]
            assert isinstance(span, Span)
            seconds = at - self._opened_at - span.at
            self.records[place_of_record] = msgspec.structs.replace(
                span, end=len(self.records), seconds=seconds
            )

    def _record(self, row: Row) -> Record:
        kind, at, code, offset, *rest = row
        index = len(self.records)
        common = (index, at - self._opened_at, self._site(code, offset))
        if kind in (records.FORWARD, records.BACKWARD, records.OPTIMIZER_STEP, records.COLLECTIVE):
            self._open[self._rows_read] = index
        match kind:
            case records.OPERATION:
                name, device, mode, autocast, taken, live, *_ = rest
                return records.Operation(
                    *common, str(name), str(device), *_mode(mode), _dtype(autocast), taken, live
                )
            case records.TRANSFER:
                direction, size, pinned, non_blocking, source, target = rest
                return records.Transfer(
                    *common,
                    direction,
                    size,
                    bool(pinned),
                    bool(non_blocking),
                    str(source),
                    str(target),
                )
            case records.SYNC:
                what, explicit = rest
                return records.Sync(*common, str(what), bool(explicit))
            case records.FORWARD:
                module, training, mode, devices = rest
                depth = len(self._enclosing)
                self._enclosing.append(self._rows_read)
                return records.Forward(
                    *common,
                    _class(module),
                    bool(training),
                    *_mode(mode),
                    tuple(map(str, devices)),
                    depth,
                )
            case records.BACKWARD:
                self._enclosing.append(self._rows_read)
                return records.Backward(*common)
            case records.OPTIMIZER_STEP:
                return records.OptimizerStep(*common, _class(*rest))
            case records.COLLECTIVE:
                name, device, size, ranks = rest
                return records.Collective(*common, str(name), str(device), size, ranks)
            case records.SCALER_CALL:
                return records.ScalerCall(*common, *rest)
            case records.ALLOCATION:
                device, taken, live = rest
                return records.Allocation(*common, str(device), taken, live)
            case _:
                raise ValueError(f"row {self._rows_read} is of no known kind: {kind!r}")


_identity = object.__hash__  # unlike `id`, it raises no audit event


class _Sites:
    """Finds the line of an instruction; each code object's table is unpacked once."""

    def __init__(self) -> None:
        # By identity: code objects compare by content without their file name, so that two students' identical
        # files would be taken for one. The code is kept, so that its identity is not given to another.
        self._tables: dict[int, tuple[CodeType, list[int], list[int]]] = {}
        self._found: dict[tuple[int, int], Site] = {}

    def __call__(self, code: CodeType | None, offset: int | None) -> Site | None:
        if code is None or offset is None:
            return None
        key = (_identity(code), offset)
        if key not in self._found:
            self._found[key] = Site(code.co_filename, self._line(code, offset), code.co_qualname)
        return self._found[key]

    def _line(self, code: CodeType, offset: int) -> int:
        if _identity(code) not in self._tables:
            known = [(start, line) for start, _, line in code.co_lines() if line is not None]
            self._tables[_identity(code)] = (
                code,
                [start for start, _ in known],
                [line for _, line in known],
            )
        _, starts, lines = self._tables[_identity(code)]
        place = bisect_right(starts, offset) - 1
        # Before the first instruction (a frame that has not begun) the line of the `def` is the best answer.
        return lines[place] if place >= 0 else code.co_firstlineno


def _mode(bits: int) -> tuple[bool, bool]:
    return bool(bits & records.GRAD), bool(bits & records.INFERENCE)


def _dtype(dtype: object) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _class(name: Any) -> str:
    return name.__name__ if isinstance(name, type) else str(name)
