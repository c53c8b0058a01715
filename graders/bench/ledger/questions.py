"""What a check may ask of a ledger: pure functions over records in the order of their index.

Every question takes a sequence of records, so questions combine: `syncs(within(records, forward))`. A ledger has
each of them as a method too. Where a position is asked for, a record stands for the moment it began. A device
"cuda" means every CUDA device, "cuda:0" only that one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from graders.bench.ledger.records import (
    Allocation,
    Direction,
    Operation,
    Record,
    Span,
    Sync,
    Transfer,
)

Records = Sequence[Record]
Line = tuple[str, int]
K = TypeVar("K")
R = TypeVar("R", bound=Record)


# Parts of a ledger


def between(records: Records, first: Record | int, second: Record | int) -> tuple[Record, ...]:
    """The records that began after `first` began and before `second` did."""
    return tuple(records[_at_or_after(records, _position(first) + 1) : _at_or_after(records, _position(second))])


def before(records: Records, moment: Record | int) -> tuple[Record, ...]:
    """The records that began before `moment`."""
    return tuple(records[: _at_or_after(records, _position(moment))])


def after(records: Records, moment: Record | int) -> tuple[Record, ...]:
    """The records that began after `moment` began, the inside of a span included."""
    return tuple(records[_at_or_after(records, _position(moment) + 1) :])


def within(records: Records, span: Span) -> tuple[Record, ...]:
    """The records from inside a span; of one that never ended (it raised), all that follow."""
    return after(records, span) if span.end is None else between(records, span, span.end)


def rounds(records: Records, starts: Sequence[Record]) -> tuple[tuple[Record, ...], ...]:
    """A loop's records round by round: each of `starts` begins a round, and the last one runs to the end."""
    cuts = [_at_or_after(records, start.index) for start in starts]
    return tuple(tuple(records[cut:end]) for cut, end in pairwise([*cuts, len(records)]))


def in_function(records: Records, function: str) -> tuple[Record, ...]:
    """The records caused by a line of this function (its qualified name)."""
    return tuple(r for r in records if r.site is not None and r.site.function == function)


def on_line(records: Records, file: str, line: int) -> tuple[Record, ...]:
    """The records caused by this line."""
    return tuple(r for r in records if r.site is not None and (r.site.file, r.site.line) == (file, line))


# Lines


def per_line(records: Records) -> Counter[Line]:
    """How many of the records each line caused; those without a site are left out."""
    return Counter((r.site.file, r.site.line) for r in records if r.site is not None)


def hot_lines(records: Records, at_least: int) -> dict[Line, int]:
    """The lines that caused at least so many of the records, the busiest first."""
    return {line: count for line, count in per_line(records).most_common() if count >= at_least}


# Transfers


def transfers(records: Records, direction: Direction | None = None) -> tuple[Transfer, ...]:
    """All copies from one device to another, or those in one direction."""
    return tuple(t for t in _only(Transfer, records) if direction in (None, t.direction))


def transfers_to_device(records: Records) -> tuple[Transfer, ...]:
    """The copies from the host to a device."""
    return transfers(records, "to_device")


def transfers_to_host(records: Records) -> tuple[Transfer, ...]:
    """The copies from a device back to the host."""
    return transfers(records, "to_host")


def transfers_between_devices(records: Records) -> tuple[Transfer, ...]:
    """The copies from one GPU to another."""
    return transfers(records, "between_devices")


def pinned_transfers(records: Records) -> tuple[Transfer, ...]:
    """The copies from or to pinned memory."""
    return tuple(t for t in transfers(records) if t.pinned)


def non_blocking_transfers(records: Records) -> tuple[Transfer, ...]:
    """The copies that were asked not to wait."""
    return tuple(t for t in transfers(records) if t.non_blocking)


def repeated_transfers(records: Records, at_least: int = 2) -> tuple[tuple[Transfer, ...], ...]:
    """Groups of copies of the same size in the same direction from the same line: something copied in a loop."""
    groups: dict[tuple[object, ...], list[Transfer]] = {}
    for transfer in transfers(records):
        if transfer.site is not None:
            key = (transfer.site.file, transfer.site.line, transfer.direction, transfer.bytes)
            groups.setdefault(key, []).append(transfer)
    return tuple(tuple(group) for group in groups.values() if len(group) >= at_least)


def bytes_to_device(records: Records) -> int:
    """How much was copied from the host to devices."""
    return sum(t.bytes for t in transfers_to_device(records))


def bytes_to_host(records: Records) -> int:
    """How much was copied back to the host."""
    return sum(t.bytes for t in transfers_to_host(records))


# Synchronisations


def syncs(records: Records, what: str | None = None, besides: Sequence[str] = ()) -> tuple[Sync, ...]:
    """The times the host waited without being told to: all, those of one kind, or all besides some kinds."""
    implicit = (s for s in _only(Sync, records) if not s.explicit)
    return tuple(s for s in implicit if what in (None, s.what) and s.what not in besides)


def explicit_syncs(records: Records) -> tuple[Sync, ...]:
    """The times the host was told to wait: `torch.cuda.synchronize()` and its kin."""
    return tuple(s for s in _only(Sync, records) if s.explicit)


def sync_counts(records: Records) -> Counter[str]:
    """How many implicit synchronisations there were of each kind."""
    return Counter(s.what for s in syncs(records))


def syncs_between(records: Records, first: Record | int, second: Record | int) -> tuple[Sync, ...]:
    """The implicit synchronisations after `first` began and before `second` did."""
    return syncs(between(records, first, second))


def syncs_within(records: Records, span: Span) -> tuple[Sync, ...]:
    """The implicit synchronisations inside a span."""
    return syncs(within(records, span))


def syncs_per_round(records: Records, starts: Sequence[Record], besides: Sequence[str] = ()) -> tuple[int, ...]:
    """The number of implicit synchronisations in each round of a loop; what follows the loop is in the last."""
    return tuple(len(syncs(part, besides=besides)) for part in rounds(records, starts))


# Operations


def operations(records: Records, name: str | None = None) -> tuple[Operation, ...]:
    """All operations, or those called "aten.add.Tensor", "aten.add" (any overload) or "add"."""
    every = _only(Operation, records)
    return every if name is None else tuple(o for o in every if name in _names(o.name))


def operation_counts(records: Records) -> Counter[str]:
    """How often each operation ran."""
    return Counter(o.name for o in operations(records))


def operations_on(records: Records, device: str) -> tuple[Operation, ...]:
    """The operations that ran on a device."""
    return tuple(o for o in operations(records) if is_on(o.device, device))


def operations_building_graph(records: Records) -> tuple[Operation, ...]:
    """The operations that ran with gradients enabled, outside inference mode."""
    return tuple(o for o in operations(records) if o.builds_graph)


def operations_under_autocast(records: Records, dtype: str | None = None) -> tuple[Operation, ...]:
    """The operations that ran under autocast, to any dtype or to this one ("float16")."""
    return tuple(o for o in operations(records) if o.autocast is not None and dtype in (None, o.autocast))


def autocast_dtypes(records: Records) -> Counter[str]:
    """How many operations ran under autocast to each dtype."""
    return Counter(o.autocast for o in operations(records) if o.autocast is not None)


def grown_operations(smaller: Records, larger: Records) -> dict[str, tuple[int, int]]:
    """The operations that ran more often on the larger input, and how often each time: a loop over elements."""
    return _grown(operation_counts(smaller), operation_counts(larger))


def grown_lines(smaller: Records, larger: Records) -> dict[Line, tuple[int, int]]:
    """The lines that caused more operations on the larger input, and how many each time."""
    return _grown(per_line(operations(smaller)), per_line(operations(larger)))


# Memory


def allocations(records: Records, device: str = "cuda") -> tuple[Operation | Allocation, ...]:
    """The operations and other events that took memory on a device."""
    return tuple(r for r in _memory_events(records, device) if r.bytes > 0)


def allocated_bytes(records: Records, device: str = "cuda") -> int:
    """How much memory was taken on a device in all, whatever was given back since."""
    return sum(r.bytes for r in allocations(records, device))


def live_bytes(records: Records, device: str = "cuda") -> dict[str, int]:
    """What was allocated after the last record, by device."""
    return {r.device: r.live for r in _memory_events(records, device)}


def peak_bytes(records: Records, device: str = "cuda") -> int:
    """The most that was allocated on a device after any record; of several devices, the fullest one's."""
    return max((r.live for r in _memory_events(records, device)), default=0)


# How the questions above are answered


def _only(kind: type[R], records: Records) -> tuple[R, ...]:
    return tuple(r for r in records if isinstance(r, kind))


def _position(moment: Record | int) -> int:
    return moment if isinstance(moment, int) else moment.index


def _at_or_after(records: Records, index: int) -> int:
    # A part of a ledger keeps the indices of the whole, so a position in `records` has to be looked up.
    return bisect_left(records, index, key=lambda record: record.index)


def is_on(device: str, wanted: str) -> bool:
    """Whether a device is the wanted one, or one of the wanted type."""
    return device == wanted or device.partition(":")[0] == wanted


def _names(operation: str) -> set[str]:
    """The names an operation answers to: "aten.add.Tensor", "aten.add", "add"."""
    packet = ".".join(operation.split(".")[:2])
    return {operation, packet, packet.rpartition(".")[2]}


def _grown(smaller: Counter[K], larger: Counter[K]) -> dict[K, tuple[int, int]]:
    return {key: (smaller[key], count) for key, count in larger.items() if count > smaller[key]}


def _memory_events(records: Records, device: str) -> tuple[Operation | Allocation, ...]:
    return tuple(r for r in records if isinstance(r, Operation | Allocation) and is_on(r.device, device))
