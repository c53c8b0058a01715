"""Questions about the records of a ledger: copies, waits, operations, memory, training.

All are pure functions. A question raises UnknownInLedger if it names a device, a direction, a dtype
or a call of a scaler that no ledger has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, TypeVar, get_args

from virtual_cuda.device_kinds import DEVICE_TYPES
from virtual_cuda.errors import UnknownInLedger
from virtual_cuda.ledger.records import (
    Allocation,
    Backward,
    Collective,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Span,
    Sync,
    Transfer,
)
from virtual_cuda.ledger.rows import Direction

Records = Sequence[Record]
SourceLine = tuple[str, int]
K = TypeVar("K")
R = TypeVar("R", bound=Record)

DIRECTIONS: Final = get_args(Direction)
AUTOCAST_DTYPES: Final = ("float16", "bfloat16", "float32", "float64")
SCALER_CALLS: Final = ("scale", "unscale_", "step", "update")


# Parts of a ledger


def between(records: Records, first: Record | int, second: Record | int) -> tuple[Record, ...]:
    """The records that began after `first` began and before `second` did."""
    return tuple(
        records[
            _at_or_after(records, _position(first) + 1) : _at_or_after(records, _position(second))
        ]
    )


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
    """A loop's records, round by round.

    Each of `starts` begins a round; the last round goes on to the end of the records.
    """
    cuts = [_at_or_after(records, start.index) for start in starts]
    return tuple(tuple(records[cut:end]) for cut, end in pairwise([*cuts, len(records)]))


def in_function(records: Records, function: str) -> tuple[Record, ...]:
    """The records caused by a line of this function (its qualified name)."""
    return tuple(r for r in records if r.site is not None and r.site.function == function)


def on_line(records: Records, file: str, line: int) -> tuple[Record, ...]:
    """The records caused by this line."""
    return tuple(
        r for r in records if r.site is not None and (r.site.file, r.site.line) == (file, line)
    )


# Lines


def per_line(records: Records) -> Counter[SourceLine]:
    """The number of records that each line caused; those without a site are left out."""
    return Counter((r.site.file, r.site.line) for r in records if r.site is not None)


def hot_lines(records: Records, at_least: int) -> dict[SourceLine, int]:
    """The lines that caused at least so many of the records, the busiest first."""
    return {line: count for line, count in per_line(records).most_common() if count >= at_least}


# Transfers


def transfers(records: Records, direction: Direction | None = None) -> tuple[Transfer, ...]:
    """All copies from one device to another, or those in one direction."""
    _require_known(direction, DIRECTIONS)
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
    """Groups of at least so many equal copies: something is copied in a loop.

    Copies are equal if line, direction and size are the same.
    """
    groups: dict[tuple[object, ...], list[Transfer]] = {}
    for transfer in transfers(records):
        if transfer.site is not None:
            key = (transfer.site.file, transfer.site.line, transfer.direction, transfer.bytes)
            groups.setdefault(key, []).append(transfer)
    return tuple(tuple(group) for group in groups.values() if len(group) >= at_least)


def bytes_to_device(records: Records) -> int:
    """The bytes copied from the host to devices."""
    return sum(t.bytes for t in transfers_to_device(records))


def bytes_to_host(records: Records) -> int:
    """The bytes copied from devices back to the host."""
    return sum(t.bytes for t in transfers_to_host(records))


# Synchronisations


def syncs(
    records: Records, what: str | None = None, besides: Sequence[str] = ()
) -> tuple[Sync, ...]:
    """The implicit waits of the host: all, those of one kind, or all besides some kinds."""
    implicit = (s for s in _only(Sync, records) if not s.explicit)
    return tuple(s for s in implicit if what in (None, s.what) and s.what not in besides)


def waits(records: Records) -> tuple[Sync, ...]:
    """The implicit waits in which the host reads from a device.

    Waits for a copy to a device are left out.
    """
    found: list[Sync] = []
    before: Record | None = None
    for record in records:
        if isinstance(record, Sync) and not record.explicit:
            copied = before if record.what == "copy" else None
            if not isinstance(copied, Transfer) or copied.direction != "to_device":
                found.append(record)
        before = record
    return tuple(found)


def explicit_syncs(records: Records) -> tuple[Sync, ...]:
    """The explicit waits of the host: `torch.cuda.synchronize()` and the like."""
    return tuple(s for s in _only(Sync, records) if s.explicit)


def sync_counts(records: Records) -> Counter[str]:
    """The number of implicit synchronisations of each kind."""
    return Counter(s.what for s in syncs(records))


def syncs_between(records: Records, first: Record | int, second: Record | int) -> tuple[Sync, ...]:
    """The implicit synchronisations after `first` began and before `second` did."""
    return syncs(between(records, first, second))


def syncs_within(records: Records, span: Span) -> tuple[Sync, ...]:
    """The implicit synchronisations inside a span."""
    return syncs(within(records, span))


def syncs_per_round(
    records: Records, starts: Sequence[Record], besides: Sequence[str] = ()
) -> tuple[int, ...]:
    """The number of implicit synchronisations in each round of a loop.

    What follows the loop counts for the last round.
    """
    return tuple(len(syncs(part, besides=besides)) for part in rounds(records, starts))


# Operations


def operations(records: Records, name: str | None = None) -> tuple[Operation, ...]:
    """All operations, or those called "aten.add.Tensor", "aten.add" (any overload) or "add"."""
    every = _only(Operation, records)
    return every if name is None else tuple(o for o in every if name in _names(o.name))


def operation_counts(records: Records) -> Counter[str]:
    """The number of times that each operation ran."""
    return Counter(o.name for o in operations(records))


def operations_on(records: Records, device: str) -> tuple[Operation, ...]:
    """The operations that ran on a device."""
    _require_device(device)
    return tuple(o for o in operations(records) if is_on(o.device, device))


def operations_building_graph(records: Records) -> tuple[Operation, ...]:
    """The operations that ran with gradients enabled, outside inference mode."""
    return tuple(o for o in operations(records) if o.builds_graph)


def operations_under_autocast(records: Records, dtype: str | None = None) -> tuple[Operation, ...]:
    """The operations that ran under autocast, to any dtype or to this one ("float16")."""
    _require_known(dtype, AUTOCAST_DTYPES)
    return tuple(
        o for o in operations(records) if o.autocast is not None and dtype in (None, o.autocast)
    )


def autocast_dtypes(records: Records) -> Counter[str]:
    """The number of operations that ran under autocast to each dtype."""
    return Counter(o.autocast for o in operations(records) if o.autocast is not None)


def grown_operations(smaller: Records, larger: Records) -> dict[str, tuple[int, int]]:
    """The operations that ran more often on the larger input, with both counts.

    Such an operation stands in a loop over elements.
    """
    return _grown(operation_counts(smaller), operation_counts(larger))


def grown_lines(smaller: Records, larger: Records) -> dict[SourceLine, tuple[int, int]]:
    """The lines that caused more operations on the larger input, with both counts."""
    return _grown(per_line(operations(smaller)), per_line(operations(larger)))


# Exchanges with other ranks


def collectives(records: Records, name: str = "") -> tuple[Collective, ...]:
    """The exchanges with other ranks, all or those of one name.

    Names are "allreduce", "broadcast", "barrier" and so on.
    """
    return tuple(each for each in _only(Collective, records) if name in ("", each.name))


# Memory


def allocations(records: Records, device: str = "cuda") -> tuple[Operation | Allocation, ...]:
    """The operations and other events that took memory on a device."""
    return tuple(r for r in _memory_events(records, device) if r.bytes > 0)


def allocated_bytes(records: Records, device: str = "cuda") -> int:
    """The total of memory taken on a device, whatever was freed since."""
    return sum(r.bytes for r in allocations(records, device))


def live_bytes(records: Records, device: str = "cuda") -> dict[str, int]:
    """The bytes allocated after the last record, by device."""
    return {r.device: r.live for r in _memory_events(records, device)}


def peak_bytes(records: Records, device: str = "cuda") -> int:
    """The most bytes that were allocated on a device after any record.

    Of several devices, the figure of the fullest one.
    """
    return max((r.live for r in _memory_events(records, device)), default=0)


# Helpers


def _only(kind: type[R], records: Records) -> tuple[R, ...]:
    return tuple(r for r in records if isinstance(r, kind))


def _require_known(name: str | None, known: tuple[str, ...]) -> None:
    """Raise UnknownInLedger for a name that is none of these; None stands for all of them."""
    if name is not None and name not in known:
        raise UnknownInLedger(name, known)


def _require_device(device: str) -> None:
    """Raise UnknownInLedger for a device of a type that no ledger has: "gpu", "GPU 0"."""
    kind, _, index = str(device).partition(":")
    if kind not in DEVICE_TYPES or (index and not index.isdigit()):
        raise UnknownInLedger(device, DEVICE_TYPES)


def _position(moment: Record | int) -> int:
    return moment if isinstance(moment, int) else moment.index


def _at_or_after(records: Records, index: int) -> int:
    # A part of a ledger keeps the indices of the whole, so a position in `records` has to be looked
    # up.
    return bisect_left(records, index, key=lambda record: record.index)


def is_on(device: str, wanted: str) -> bool:
    """True if a device is the wanted one, or one of the wanted type."""
    return device == wanted or device.partition(":")[0] == wanted


def _names(operation: str) -> set[str]:
    """The names an operation answers to: "aten.add.Tensor", "aten.add", "add"."""
    packet = ".".join(operation.split(".")[:2])
    return {operation, packet, packet.rpartition(".")[2]}


def _grown(smaller: Counter[K], larger: Counter[K]) -> dict[K, tuple[int, int]]:
    return {key: (smaller[key], count) for key, count in larger.items() if count > smaller[key]}


def _memory_events(records: Records, device: str) -> tuple[Operation | Allocation, ...]:
    """The records that say how much is allocated on a device."""
    _require_device(device)
    return tuple(
        r for r in records if isinstance(r, Operation | Allocation) and is_on(r.device, device)
    )


_NORMS: Final = frozenset({"norm", "linalg_norm", "linalg_vector_norm", "_foreach_norm"})


# Forward and backward passes, optimizer steps


def forwards(
    records: Records, module: str | None = None, top_level_only: bool = True
) -> tuple[Forward, ...]:
    """The forward passes, of all modules or of one class.

    With `top_level_only`, those inside another pass are left out.
    """
    wanted = (f for f in _only(Forward, records) if module in (None, f.module))
    return tuple(f for f in wanted if not (top_level_only and f.depth))


def forwards_building_graph(records: Records) -> tuple[Forward, ...]:
    """The top-level forward passes with gradients enabled, outside inference mode."""
    return tuple(f for f in forwards(records) if f.builds_graph)


def forwards_in_training_mode(records: Records) -> tuple[Forward, ...]:
    """The forward passes, at any depth, of modules in training mode."""
    return tuple(f for f in forwards(records, top_level_only=False) if f.training)


def forwards_on(records: Records, device: str) -> tuple[Forward, ...]:
    """The top-level forward passes with all parameters and inputs on this device."""
    _require_device(device)
    return tuple(
        f for f in forwards(records) if f.devices and all(is_on(d, device) for d in f.devices)
    )


def forwards_across_devices(records: Records) -> tuple[Forward, ...]:
    """The top-level forward passes that met parameters or inputs on more than one device."""
    return tuple(f for f in forwards(records) if len(set(f.devices)) > 1)


def forwards_under_autocast(records: Records) -> tuple[Forward, ...]:
    """The top-level forward passes in which an operation ran under autocast."""
    return tuple(f for f in forwards(records) if operations_under_autocast(within(records, f)))


def backward_passes(records: Records) -> tuple[Backward, ...]:
    """The backward passes."""
    return _only(Backward, records)


def backwards_under_autocast(records: Records) -> tuple[Backward, ...]:
    """The backward passes in which an operation ran under autocast."""
    return tuple(
        b for b in backward_passes(records) if operations_under_autocast(within(records, b))
    )


def optimizer_steps(records: Records) -> tuple[OptimizerStep, ...]:
    """The optimizer steps, whether the student's code or a scaler took them."""
    return _only(OptimizerStep, records)


def training_order(records: Records) -> tuple[str, ...]:
    """The parts of a training loop, in order: "forward", "backward", "step", "scaler.update", …"""
    passes = {Forward: "forward", Backward: "backward", OptimizerStep: "step"}
    shown = (r for r in records if not (isinstance(r, Forward) and r.depth))
    named = (
        f"scaler.{r.call}" if isinstance(r, ScalerCall) else passes.get(type(r)) for r in shown
    )
    return tuple(name for name in named if name is not None)


def backwards_per_step(records: Records) -> tuple[int, ...]:
    """The number of backward passes before each optimizer step, those of its closure included."""
    starts = [b.index for b in backward_passes(records)]
    reached = [
        bisect_left(starts, step.index if step.end is None else step.end)
        for step in optimizer_steps(records)
    ]
    return tuple(now - earlier for earlier, now in pairwise([0, *reached]))


def steps_without_backward(records: Records) -> tuple[OptimizerStep, ...]:
    """The optimizer steps that no backward pass led up to.

    That is a step before the backward pass, or two steps in a row.
    """
    counts = backwards_per_step(records)
    return tuple(
        step for step, count in zip(optimizer_steps(records), counts, strict=True) if not count
    )


def backwards_after_last_step(records: Records) -> tuple[Backward, ...]:
    """The backward passes that no optimizer step used: a missing step, or a dropped remainder."""
    return backward_passes(records)[sum(backwards_per_step(records)) :]


# Gradient scaling


def scaler_calls(records: Records, call: str | None = None) -> tuple[ScalerCall, ...]:
    """The calls of a gradient scaler, all or those of one method.

    The methods are "scale", "unscale_", "step" and "update"; others raise UnknownInLedger.
    """
    _require_known(call, SCALER_CALLS)
    return tuple(c for c in _only(ScalerCall, records) if call in (None, c.call))


def backwards_without_scale(records: Records) -> tuple[Backward, ...]:
    """The backward passes for which no loss was scaled.

    Every `scale` before a pass counts for one pass.
    """
    found: list[Backward] = []
    scaled = 0
    for record in records:
        if isinstance(record, ScalerCall) and record.call == "scale":
            scaled += 1
        elif isinstance(record, Backward) and scaled:
            scaled -= 1
        elif isinstance(record, Backward):
            found.append(record)
    return tuple(found)


def steps_outside_scaler(records: Records) -> tuple[OptimizerStep, ...]:
    """The optimizer steps that were not taken by `scaler.step`."""
    found: list[OptimizerStep] = []
    by_scaler = False
    for record in records:
        if isinstance(record, OptimizerStep) and not by_scaler:
            found.append(record)
        if isinstance(record, ScalerCall) and record.call == "step":
            by_scaler = True
        elif isinstance(
            record, OptimizerStep | Backward
        ):  # a backward, too: the scaler may have skipped its step
            by_scaler = False
    return tuple(found)


def scaler_steps_without_update(records: Records) -> tuple[ScalerCall, ...]:
    """The `scaler.step` calls that no `update` followed in time.

    In time is before the next loss is scaled, and before the records end.
    """
    unsettled: list[ScalerCall] = []
    waiting: list[ScalerCall] = []
    for call in scaler_calls(records):
        if call.call == "step":
            waiting.append(call)
        elif call.call == "update":
            waiting.clear()
        elif call.call == "scale":
            unsettled += waiting
            waiting.clear()
    return tuple(unsettled + waiting)


def gradient_norms(records: Records) -> tuple[Operation, ...]:
    """The norms computed outside every forward, backward and step: what clipping begins with."""
    found: list[Operation] = []
    inside_until = 0
    for record in records:
        if isinstance(record, Span):
            inside_until = max(inside_until, record.end or 0)
        elif (
            isinstance(record, Operation)
            and record.index >= inside_until
            and _names(record.name) & _NORMS
        ):
            found.append(record)
    return tuple(found)


def norms_before_unscale(records: Records) -> tuple[Operation, ...]:
    """The gradient norms taken after a backward pass and before the gradients were unscaled."""
    found: list[Operation] = []
    norms = {norm.index for norm in gradient_norms(records)}
    scaled = False
    for record in records:
        if isinstance(record, Backward):
            scaled = True
        elif isinstance(record, ScalerCall) and record.call in (
            "unscale_",
            "step",
        ):  # a step unscales too
            scaled = False
        elif isinstance(record, Operation) and scaled and record.index in norms:
            found.append(record)
    return tuple(found)
