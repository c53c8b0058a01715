"""What a check may ask about training: forward and backward passes, optimizer steps, gradient scaling.

Pure functions over records like those of `questions.py`; a ledger has each of them as a method too.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Final

from graders.bench.ledger.questions import Records, _names, _only, is_on, operations_under_autocast, within
from graders.bench.ledger.records import Backward, Forward, Operation, OptimizerStep, Record, ScalerCall, Span

_NORMS: Final = frozenset({"norm", "linalg_norm", "linalg_vector_norm", "_foreach_norm"})


# Forward and backward passes, optimizer steps


def forwards(records: Records, module: str | None = None, top_level_only: bool = True) -> tuple[Forward, ...]:
    """The forward passes, of any module or of one class; with `top_level_only`, not those inside another pass."""
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
    return tuple(f for f in forwards(records) if f.devices and all(is_on(d, device) for d in f.devices))


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
    return tuple(b for b in backward_passes(records) if operations_under_autocast(within(records, b)))


def optimizer_steps(records: Records) -> tuple[OptimizerStep, ...]:
    """The optimizer steps, whether the student's code or a scaler took them."""
    return _only(OptimizerStep, records)


def training_order(records: Records) -> tuple[str, ...]:
    """What a training loop did, in order: "forward", "backward", "step", "scaler.update", …"""
    return tuple(name for name in map(_stage, records) if name is not None)


def backwards_per_step(records: Records) -> tuple[int, ...]:
    """How many backward passes led up to each optimizer step, those from its closure included."""
    starts = [b.index for b in backward_passes(records)]
    reached = [bisect_left(starts, step.index if step.end is None else step.end) for step in optimizer_steps(records)]
    return tuple(now - earlier for earlier, now in pairwise([0, *reached]))


def steps_without_backward(records: Records) -> tuple[OptimizerStep, ...]:
    """The optimizer steps that no backward pass led up to: a step before backward, or two in a row."""
    counts = backwards_per_step(records)
    return tuple(step for step, count in zip(optimizer_steps(records), counts, strict=True) if not count)


def backwards_after_last_step(records: Records) -> tuple[Backward, ...]:
    """The backward passes that no optimizer step used: a missing step, or a dropped remainder."""
    return backward_passes(records)[sum(backwards_per_step(records)) :]


# Gradient scaling


def scaler_calls(records: Records, call: str | None = None) -> tuple[ScalerCall, ...]:
    """All calls of a gradient scaler, or those of one method: "scale", "unscale_", "step", "update"."""
    return tuple(c for c in _only(ScalerCall, records) if call in (None, c.call))


def backwards_without_scale(records: Records) -> tuple[Backward, ...]:
    """The backward passes for which no loss was scaled: every `scale` before a pass answers for one pass."""
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
        elif isinstance(record, OptimizerStep | Backward):  # a backward, too: the scaler may have skipped its step
            by_scaler = False
    return tuple(found)


def scaler_steps_without_update(records: Records) -> tuple[ScalerCall, ...]:
    """The `scaler.step` calls after which the next loss was scaled, or the records ended, without an `update`."""
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
        elif isinstance(record, Operation) and record.index >= inside_until and _names(record.name) & _NORMS:
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
        elif isinstance(record, ScalerCall) and record.call in ("unscale_", "step"):  # a step unscales too
            scaled = False
        elif isinstance(record, Operation) and scaled and record.index in norms:
            found.append(record)
    return tuple(found)


def _stage(record: Record) -> str | None:
    match record:
        case Forward(depth=0):
            return "forward"
        case Backward():
            return "backward"
        case OptimizerStep():
            return "step"
        case ScalerCall(call=call):
            return f"scaler.{call}"
        case _:
            return None
