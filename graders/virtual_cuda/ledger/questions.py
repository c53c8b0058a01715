"""Questions about the records of a ledger: copies, waits, operations, memory, training.

All are pure functions. A question raises UnknownInLedger if it names what the ledger cannot have: a
device that was not opened, a kind of wait that none records, what is no operator of torch. What a
ledger can have, `names.py` knows. So a typo is never answered with nothing. A moment that is not in
the ledger raises BadMoment, and what has no inside NoSpan.
"""

from __future__ import annotations

import functools
import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from virtual_cuda.errors import NoSpan
from virtual_cuda.ledger import names
from virtual_cuda.ledger.names import LedgerPart, SourceLine
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
Moment = Record | int  # a record stands for the moment in which it began
Collectives = tuple[Collective, ...]
Transfers = tuple[Transfer, ...]
Syncs = tuple[Sync, ...]
Operations = tuple[Operation, ...]
MemoryEvents = tuple[Operation | Allocation, ...]
Forwards = tuple[Forward, ...]
Backwards = tuple[Backward, ...]
Steps = tuple[OptimizerStep, ...]
ScalerCalls = tuple[ScalerCall, ...]
CountPair = tuple[int, int]  # on the smaller and on the larger input
CountedKey = TypeVar("CountedKey")
RecordKind = TypeVar("RecordKind", bound=Record)


# Parts of a ledger


def between(records: Records, first: Moment, second: Moment) -> LedgerPart:
    """The records that began after `first` began and before `second` did.

    A moment is a record, or an index in the whole ledger. Raises BadMoment for what is none, and
    for two moments that are not in this order.
    """
    begin = names.index_of_moment(records, first)
    end = names.index_of_moment(records, second, begin)
    start = _place_of_index(records, begin + 1)
    return LedgerPart(records[start : _place_of_index(records, end)], records)


def before(records: Records, moment: Moment) -> LedgerPart:
    """The records that began before `moment`."""
    end = _place_of_index(records, names.index_of_moment(records, moment))
    return LedgerPart(records[:end], records)


def after(records: Records, moment: Moment) -> LedgerPart:
    """The records that began after `moment` began, the inside of a span included."""
    start = _place_of_index(records, names.index_of_moment(records, moment) + 1)
    return LedgerPart(records[start:], records)


def within(records: Records, span: Span) -> LedgerPart:
    """The records from inside a span; of one that never ended (it raised), all that follow.

    Raises NoSpan for another record, and for what is none, and BadMoment for a span whose place
    this ledger does not have.
    """
    if not isinstance(span, Span):
        raise NoSpan(span)
    if span.end is None:
        return after(records, span)
    return between(records, span, span.end)


def rounds(records: Records, starts: Records) -> tuple[LedgerPart, ...]:
    """A loop's records, round by round.

    Each of `starts` begins a round; the last round goes on to the end of the records. Raises
    NoRecords for starts that are no sequence of records, and BadMoment for one that is not in this
    ledger, or not after the one before it.
    """
    names.require_records(starts)
    cuts = []
    earliest = 0
    for start in starts:
        moment = names.index_of_moment(records, start, earliest)
        cuts.append(_place_of_index(records, moment))
        earliest = moment + 1
    cuts.append(len(records))
    parts = []
    for begin, end in pairwise(cuts):
        parts.append(LedgerPart(records[begin:end], records))
    return tuple(parts)


def in_function(records: Records, function: str | Callable[..., object]) -> LedgerPart:
    """The records caused by a line of this function: the function itself, or its qualified name.

    Raises UnknownInLedger for the name of a function that does not exist, and TypeError for what
    has no code of Python.
    """
    found = [record for record in records if _is_in_function(record, function)]
    if not found and isinstance(function, str):
        names.require_function(records, function)
    return LedgerPart(found, records)


def _is_in_function(record: Record, function: str | Callable[..., object]) -> bool:
    """True if a line of this function caused the record."""
    if record.site is None:
        return False
    if isinstance(function, str):
        return record.site.function == function
    code = names.code_of(function)
    if code is None:
        raise TypeError(f"{function!r} is no function of Python, and no name of one")
    return (record.site.file, record.site.function) == (code.co_filename, code.co_qualname)


def on_line(records: Records, file: str | os.PathLike[str], line: int) -> LedgerPart:
    """The records caused by this line; `file` is a path, or the end of one: "train.py".

    Raises UnknownInLedger for a file that does not exist, and BadLine for a line that it does not
    have.
    """
    file = os.fspath(file)
    names.require_file(records, file)
    names.require_line(records, file, line)
    found = []
    for record in records:
        site = record.site
        if site is not None and site.line == line and names.is_file(site.file, file):
            found.append(record)
    return LedgerPart(found, records)


# Lines


def per_line(records: Records) -> Counter[SourceLine]:
    """The number of records that each line caused; those without a site are left out.

    Its keys are whole paths with a number. Asked for another key, the answer raises UnknownInLedger
    for a file that has none, and BadLine for a line that the file does not have.
    """
    lines = [_line_of(record) for record in records]

    def require(line: SourceLine) -> None:
        names.require_one_of(line[0], {each[0] for each in lines if each is not None})
        names.require_line(records, *line)

    return names.counts_of([line for line in lines if line is not None], require)


def hot_lines(records: Records, at_least: int) -> dict[SourceLine, int]:
    """The lines that caused at least so many of the records, the busiest first.

    Raises BadLimit for less than 1.
    """
    names.require_at_least(at_least)
    counts = per_line(records).most_common()
    return {line: count for line, count in counts if count >= at_least}


# Transfers


def transfers(records: Records, direction: Direction | None = None) -> Transfers:
    """All copies from one device to another, or those in one direction.

    A direction is "to_device", "to_host" or "between_devices". Raises UnknownInLedger for others.
    """
    if direction is None:
        return _records_of_kind(Transfer, records)
    names.require_one_of(direction, names.DIRECTIONS)
    return _records_of_kind(Transfer, records, direction=direction)


def transfers_to_device(records: Records) -> Transfers:
    """The copies from the host to a device."""
    return transfers(records, "to_device")


def transfers_to_host(records: Records) -> Transfers:
    """The copies from a device back to the host."""
    return transfers(records, "to_host")


def transfers_between_devices(records: Records) -> Transfers:
    """The copies from one GPU to another."""
    return transfers(records, "between_devices")


def pinned_transfers(records: Records) -> Transfers:
    """The copies from or to pinned memory."""
    return _records_of_kind(Transfer, records, pinned=True)


def non_blocking_transfers(records: Records) -> Transfers:
    """The copies that were asked not to wait."""
    return _records_of_kind(Transfer, records, non_blocking=True)


def repeated_transfers(records: Records, at_least: int = 2) -> tuple[Transfers, ...]:
    """Groups of at least so many equal copies: something is copied in a loop.

    Copies are equal if line, direction and size are the same. Copies without a line are left out.
    Raises BadLimit for less than 1.
    """
    names.require_at_least(at_least)
    equal_copies: defaultdict[object, list[Transfer]] = defaultdict(list)
    for copy in transfers(records):
        line = _line_of(copy)
        if line is not None:
            key = (line, copy.direction, copy.bytes)
            equal_copies[key].append(copy)
    groups = equal_copies.values()
    return tuple(tuple(group) for group in groups if len(group) >= at_least)


def bytes_to_device(records: Records) -> int:
    """The bytes copied from the host to devices."""
    return sum(copy.bytes for copy in transfers_to_device(records))


def bytes_to_host(records: Records) -> int:
    """The bytes copied from devices back to the host."""
    return sum(copy.bytes for copy in transfers_to_host(records))


# Synchronisations


def syncs(records: Records, what: str | None = None, besides: str | Sequence[str] = ()) -> Syncs:
    """The implicit waits of the host: all, those of one kind, or all besides some kinds.

    A kind is the ledger's name for a wait: "item", "copy". Raises UnknownInLedger for what is none.
    """
    if isinstance(besides, str):
        besides = (besides,)
    for kind in besides:
        names.require_wait(records, kind)
    if what is not None:
        names.require_wait(records, what)
    found = []
    for sync in _records_of_kind(Sync, records, explicit=False):
        is_wanted = what is None or sync.what == what
        if is_wanted and sync.what not in besides:
            found.append(sync)
    return tuple(found)


def waits(records: Records) -> Syncs:
    """The implicit waits in which the host reads from a device.

    Waits for a copy to a device are left out.
    """
    found: list[Sync] = []
    previous: Record | None = None
    for record in records:
        if isinstance(record, Sync) and not record.explicit:
            for_copy = record.what == "copy"
            if not (for_copy and _is_copy_to_device(previous)):
                found.append(record)
        previous = record
    return tuple(found)


def _is_copy_to_device(record: Record | None) -> bool:
    """True for a copy from the host to a device."""
    if not isinstance(record, Transfer):
        return False
    return record.direction == "to_device"


def explicit_syncs(records: Records, what: str | None = None) -> Syncs:
    """The explicit waits of the host: `torch.cuda.synchronize()` and the like, or those of a kind.

    Raises UnknownInLedger for what is no kind of explicit wait.
    """
    if what is None:
        return _records_of_kind(Sync, records, explicit=True)
    names.require_wait(records, what, explicit=True)
    return _records_of_kind(Sync, records, explicit=True, what=what)


def sync_counts(records: Records) -> Counter[str]:
    """The number of implicit synchronisations of each kind.

    Asked for a kind that no device records, the answer raises UnknownInLedger.
    """
    kinds = [sync.what for sync in syncs(records)]
    return names.counts_of(kinds, functools.partial(names.require_wait, records))


def syncs_between(records: Records, first: Moment, second: Moment) -> Syncs:
    """The implicit synchronisations after `first` began and before `second` did."""
    return syncs(between(records, first, second))


def syncs_within(records: Records, span: Span) -> Syncs:
    """The implicit synchronisations inside a span."""
    return syncs(within(records, span))


def syncs_per_round(
    records: Records, starts: Records, besides: str | Sequence[str] = ()
) -> tuple[int, ...]:
    """The number of implicit synchronisations in each round of a loop.

    What follows the loop counts for the last round. `besides` are kinds of waits that are not
    counted. Raises UnknownInLedger for what is no kind, NoRecords for starts that are no sequence
    of records, and BadMoment for starts that are not in this ledger, or not in order.
    """
    syncs((), besides=besides)
    parts = rounds(records, starts)
    return tuple(len(syncs(part, besides=besides)) for part in parts)


# Operations


def operations(records: Records, name: str | None = None) -> Operations:
    """All operations, or those called "aten.add.Tensor", "aten.add" (any overload) or "add".

    Raises UnknownInLedger for what is no operator of torch, and for one that torch always makes of
    others, such as "linear".
    """
    every = _records_of_kind(Operation, records)
    if name is None:
        return every
    found = tuple(each for each in every if name in names.names_of_operator(each.name))
    if not found:
        names.require_operator(records, name)
    return found


def operation_counts(records: Records) -> Counter[str]:
    """The number of times that each operation ran, by its full name: "aten.add.Tensor".

    Asked for what is no full name of an operator of torch, or for one that torch always makes of
    others, the answer raises UnknownInLedger.
    """
    every = [operation.name for operation in operations(records)]
    return names.counts_of(every, functools.partial(names.require_full_operator, records))


def operations_on(records: Records, device: object) -> Operations:
    """The operations that ran on a device: "cuda:0", or "cuda" for all of this type.

    An index and a torch.device name one, too. Raises UnknownInLedger for a device that was not
    opened.
    """
    label = names.device_label(records, device)
    every = operations(records)
    return tuple(operation for operation in every if is_on(operation.device, label))


def operations_building_graph(records: Records) -> Operations:
    """The operations that ran with gradients enabled, outside inference mode."""
    return _records_of_kind(Operation, records, builds_graph=True)


def operations_under_autocast(records: Records, dtype: object = None) -> Operations:
    """The operations that ran under autocast, to any dtype or to this one ("float16").

    A torch.dtype names one, too. Raises UnknownInLedger for a dtype that autocast does not have.
    """
    if dtype is not None:
        name = str(dtype).removeprefix("torch.")
        names.require_one_of(name, names.AUTOCAST_DTYPES)
        return _records_of_kind(Operation, records, autocast=name)
    every = operations(records)
    return tuple(operation for operation in every if operation.autocast is not None)


def autocast_dtypes(records: Records) -> Counter[str]:
    """The number of operations that ran under autocast to each dtype.

    Asked for a dtype that autocast does not have, the answer raises UnknownInLedger.
    """
    found = [each.autocast for each in operations(records) if each.autocast is not None]
    return names.counts_of(found, lambda name: names.require_one_of(name, names.AUTOCAST_DTYPES))


def grown_operations(smaller: Records, larger: Records) -> dict[str, CountPair]:
    """The operations that ran more often on the larger input, with both counts.

    Such an operation stands in a loop over elements. Raises NoRecords if `larger` is no sequence of
    records.
    """
    names.require_records(larger)
    smaller_counts = operation_counts(smaller)
    larger_counts = operation_counts(larger)
    return _grown_counts(smaller_counts, larger_counts)


def grown_lines(smaller: Records, larger: Records) -> dict[SourceLine, CountPair]:
    """The lines that caused more operations on the larger input, with both counts.

    Raises NoRecords if `larger` is no sequence of records.
    """
    names.require_records(larger)
    smaller_counts = per_line(operations(smaller))
    larger_counts = per_line(operations(larger))
    return _grown_counts(smaller_counts, larger_counts)


# Exchanges with other ranks


def collectives(records: Records, name: str | None = None) -> Collectives:
    """The exchanges with other ranks, all or those of one name.

    Names are "allreduce", "broadcast", "barrier" and so on, with or without underscores. Raises
    UnknownInLedger for what torch does not have.
    """
    every = _records_of_kind(Collective, records)
    if name is None:
        return every
    names.require_collective(records, name)
    return tuple(each for each in every if names.same_collective(each.name, name))


# Memory


def allocations(records: Records, device: object = None) -> MemoryEvents:
    """The operations and other events that took memory on a device, or on any.

    Raises UnknownInLedger for a device that was not opened.
    """
    events = _memory_events(records, device)
    return tuple(event for event in events if event.bytes > 0)


def allocated_bytes(records: Records, device: object = None) -> int:
    """The total of memory taken on a device, or on all of them, whatever was freed since.

    Raises UnknownInLedger for a device that was not opened.
    """
    return sum(event.bytes for event in allocations(records, device))


def live_bytes(records: Records, device: object = None) -> Counter[str]:
    """The bytes allocated after the last record, by device.

    Its keys are labels, "cuda:0". Raises UnknownInLedger for a device that was not opened; so does
    the answer when it is asked for one.
    """
    found = {event.device: event.live for event in _memory_events(records, device)}
    return names.counts_of(found, functools.partial(names.require_label, records))


def peak_bytes(records: Records, device: object = None) -> int:
    """The most bytes that were allocated on a device after any record.

    Of several devices, the figure of the fullest one. Raises UnknownInLedger for a device that was
    not opened.
    """
    events = _memory_events(records, device)
    return max((event.live for event in events), default=0)


# Helpers


def _records_of_kind(
    kind: type[RecordKind], records: Records, **attributes: object
) -> tuple[RecordKind, ...]:
    """The records of one class, or those of them whose attributes have these values."""
    found = [record for record in records if isinstance(record, kind)]
    for name, value in attributes.items():
        found = [record for record in found if getattr(record, name) == value]
    return tuple(found)


def _place_of_index(records: Records, index: int) -> int:
    """The place in `records` of the first record with this index in the ledger, or a later one.

    A part of a ledger keeps the indices of the whole, so the place has to be looked up.
    """
    return bisect_left(records, index, key=lambda record: record.index)


def _line_of(record: Record) -> SourceLine | None:
    """The student's line that caused a record; None where there is none."""
    if record.site is None:
        return None
    return record.site.file, record.site.line


def is_on(device: str, wanted: str) -> bool:
    """True if a device is the wanted one, or one of the wanted type."""
    device_type = device.partition(":")[0]
    return wanted in (device, device_type)


def _grown_counts(
    smaller: Counter[CountedKey], larger: Counter[CountedKey]
) -> dict[CountedKey, CountPair]:
    """What was counted more often in the larger of two runs, with both counts."""
    grown = {}
    counted = dict(smaller)  # which, unlike the counts, may be asked for anything
    for key, count in larger.items():
        before = counted.get(key, 0)
        if count > before:
            grown[key] = (before, count)
    return grown


def _memory_events(records: Records, device: object) -> MemoryEvents:
    """The records that say how much is allocated on a device, or on any GPU where it is None.

    Where the CPU was recorded, None stands for the CPU. Raises UnknownInLedger for a device that
    was not opened.
    """
    every = [record for record in records if isinstance(record, Operation | Allocation)]
    if device is not None:
        label = names.device_label(records, device)
        return tuple(event for event in every if is_on(event.device, label))
    if names.vocabulary_of(records).devices == ("cpu",):
        return tuple(every)
    return tuple(event for event in every if event.device != "cpu")


# Forward and backward passes, optimizer steps


def forwards(records: Records, module: str | None = None, top_level_only: bool = True) -> Forwards:
    """The forward passes, of all modules or of one class.

    With `top_level_only`, those inside another pass are left out. Raises UnknownInLedger for what
    is no class of modules.
    """
    found = []
    of_this_class = False
    for forward in _records_of_kind(Forward, records):
        if module is None or forward.module == module:
            of_this_class = True
            if not top_level_only or not forward.depth:
                found.append(forward)
    if module is not None and not of_this_class:
        names.require_module(records, module)
    return tuple(found)


def forwards_building_graph(records: Records) -> Forwards:
    """The top-level forward passes with gradients enabled, outside inference mode."""
    return _records_of_kind(Forward, records, depth=0, builds_graph=True)


def forwards_in_training_mode(records: Records) -> Forwards:
    """The forward passes, at any depth, of modules in training mode."""
    return _records_of_kind(Forward, records, training=True)


def forwards_on(records: Records, device: object) -> Forwards:
    """The top-level forward passes with all parameters and inputs on this device, or on the CPU.

    Raises UnknownInLedger for a device that was not opened.
    """
    label = names.device_label(records, device, also=("cpu",))
    found = []
    for forward in forwards(records):
        elsewhere = [each for each in forward.devices if not is_on(each, label)]
        if forward.devices and not elsewhere:
            found.append(forward)
    return tuple(found)


def forwards_across_devices(records: Records) -> Forwards:
    """The top-level forward passes that met parameters or inputs on more than one device."""
    found = []
    for forward in forwards(records):
        devices = set(forward.devices)
        if len(devices) > 1:
            found.append(forward)
    return tuple(found)


def forwards_under_autocast(records: Records) -> Forwards:
    """The top-level forward passes in which an operation ran under autocast."""
    every = forwards(records)
    return tuple(forward for forward in every if _has_autocast_inside(records, forward))


def backward_passes(records: Records) -> Backwards:
    """The backward passes."""
    return _records_of_kind(Backward, records)


def backwards_under_autocast(records: Records) -> Backwards:
    """The backward passes in which an operation ran under autocast."""
    every = backward_passes(records)
    return tuple(backward for backward in every if _has_autocast_inside(records, backward))


def _has_autocast_inside(records: Records, span: Span) -> bool:
    """True if an operation inside a span ran under autocast."""
    return bool(operations_under_autocast(within(records, span)))


def optimizer_steps(records: Records) -> Steps:
    """The optimizer steps, whether the student's code or a scaler took them."""
    return _records_of_kind(OptimizerStep, records)


def training_order(records: Records) -> tuple[str, ...]:
    """The parts of a training loop, in order: "forward", "backward", "step", "scaler.update", …"""
    order = []
    for record in records:
        if isinstance(record, Forward) and not record.depth:
            order.append("forward")
        elif isinstance(record, Backward):
            order.append("backward")
        elif isinstance(record, OptimizerStep):
            order.append("step")
        elif isinstance(record, ScalerCall):
            order.append(f"scaler.{record.call}")
    return tuple(order)


def backwards_per_step(records: Records) -> tuple[int, ...]:
    """The number of backward passes before each optimizer step, those of its closure included."""
    starts = [backward.index for backward in backward_passes(records)]
    counts = []
    counted = 0
    for step in optimizer_steps(records):
        if step.end is None:
            end = step.index
        else:
            end = step.end
        begun_by_then = bisect_left(starts, end)
        counts.append(begun_by_then - counted)
        counted = begun_by_then
    return tuple(counts)


def steps_without_backward(records: Records) -> Steps:
    """The optimizer steps that no backward pass led up to.

    That is a step before the backward pass, or two steps in a row.
    """
    counts = backwards_per_step(records)
    counted_steps = zip(optimizer_steps(records), counts, strict=True)
    return tuple(step for step, count in counted_steps if not count)


def backwards_after_last_step(records: Records) -> Backwards:
    """The backward passes that no optimizer step used: a missing step, or a dropped remainder."""
    used = sum(backwards_per_step(records))
    return backward_passes(records)[used:]


# Gradient scaling


def scaler_calls(records: Records, call: str | None = None) -> ScalerCalls:
    """The calls of a gradient scaler, all or those of one method.

    The methods are "scale", "unscale_", "step" and "update"; others raise UnknownInLedger.
    """
    if call is None:
        return _records_of_kind(ScalerCall, records)
    names.require_one_of(call, names.SCALER_CALLS)
    return _records_of_kind(ScalerCall, records, call=call)


def backwards_without_scale(records: Records) -> Backwards:
    """The backward passes for which no loss was scaled.

    Every `scale` before a pass counts for one pass.
    """
    found: list[Backward] = []
    scaled = 0
    for record in records:
        if _is_scaler_call(record, "scale"):
            scaled += 1
        elif isinstance(record, Backward) and scaled:
            scaled -= 1
        elif isinstance(record, Backward):
            found.append(record)
    return tuple(found)


def _is_scaler_call(record: Record, *calls: str) -> bool:
    """True for a call of one of these methods of a gradient scaler."""
    if not isinstance(record, ScalerCall):
        return False
    return record.call in calls


def steps_outside_scaler(records: Records) -> Steps:
    """The optimizer steps that were not taken by `scaler.step`."""
    found: list[OptimizerStep] = []
    by_scaler = False
    for record in records:
        if isinstance(record, OptimizerStep):
            if not by_scaler:
                found.append(record)
            by_scaler = False
        elif isinstance(record, Backward):
            by_scaler = False  # the scaler may have skipped its step
        elif _is_scaler_call(record, "step"):
            by_scaler = True
    return tuple(found)


def scaler_steps_without_update(records: Records) -> ScalerCalls:
    """The `scaler.step` calls that no `update` followed in time.

    In time is before the next loss is scaled, and before the records end.
    """
    too_late: list[ScalerCall] = []
    waiting: list[ScalerCall] = []
    for call in scaler_calls(records):
        if call.call == "step":
            waiting.append(call)
        elif call.call == "update":
            waiting.clear()
        elif call.call == "scale":
            too_late += waiting
            waiting.clear()
    return tuple(too_late + waiting)


_NORMS: Final = frozenset({"norm", "linalg_norm", "linalg_vector_norm", "_foreach_norm"})


def gradient_norms(records: Records) -> Operations:
    """The norms computed outside every forward, backward and step: what clipping begins with."""
    found: list[Operation] = []
    inside_until = 0
    for record in records:
        if isinstance(record, Span):
            inside_until = max(inside_until, record.end or 0)
        elif record.index < inside_until:
            continue
        elif isinstance(record, Operation) and _is_norm(record):
            found.append(record)
    return tuple(found)


def _is_norm(operation: Operation) -> bool:
    """True for an operation that computes a norm."""
    return not _NORMS.isdisjoint(names.names_of_operator(operation.name))


def norms_before_unscale(records: Records) -> Operations:
    """The gradient norms taken after a backward pass and before the gradients were unscaled."""
    found: list[Operation] = []
    norms = {norm.index for norm in gradient_norms(records)}
    scaled = False
    for record in records:
        if isinstance(record, Backward):
            scaled = True
        elif _is_scaler_call(record, "unscale_", "step"):  # a step unscales too
            scaled = False
        elif isinstance(record, Operation) and scaled and record.index in norms:
            found.append(record)
    return tuple(found)
