"""How is 07 looked at? One step with a scaler, with clipping, with an overflow, without a scaler, and on the CPU."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from functools import lru_cache
from typing import Any

import msgspec

from graders.day8.mixed_precision.functions import HARD, SCALE, SOFTLY, STALE, step
from graders.day8.mixed_precision.probes_classifier import Log, batch, loss_fn, watched, weights
from graders.probes.calling import Call, StudentRaised, array
from graders.probes.copying import copied
from graders.probes.late import nn, torch


@step.probe
def on_the_device(call: Call) -> dict[str, Any]:
    """All on one bench. Softly, the norm is below `max_norm`: clipping scaled gradients is all that changes it.

    An overflow is clipped, too: without `max_norm` nothing stands between backward and the scaler's step.
    """
    device = call.device
    return {
        "on_the_device": _stepped(call, "on_the_device", device),
        "clipped": _stepped(call, "clipped", str(device), max_norm=HARD),
        "clipped_softly": _stepped(call, "clipped_softly", device, max_norm=SOFTLY),
        "overflow": _stepped(call, "overflow", device, overflow=True, max_norm=HARD),
        "scaler_disabled": _stepped(call, "scaler_disabled", device, enabled=False),
    }


@step.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    cpu = torch.device("cpu")
    return {
        "on_the_cpu": _stepped(call, "on_the_cpu", "cpu"),
        "on_the_cpu_disabled": _stepped(call, "on_the_cpu_disabled", cpu, enabled=False, max_norm=HARD),
    }


def on_the_second_gpu(call: Call) -> dict[str, Any]:
    """Autocast asks for a type of device, and who has it at hand may send the batch there."""
    return {"on_the_second_gpu": _stepped(call, "on_the_second_gpu", "cuda:1")}


step.probe(on_the_second_gpu, machine="two gpus")


def _stepped(
    call: Call,
    scenario: str,
    device: Any,
    enabled: bool = True,
    overflow: bool = False,
    max_norm: float | None = None,
) -> dict[str, Any]:
    kind = torch.device(device).type
    if kind == "cpu":
        _warned_before()
    log = Log(kind)
    model = watched(call.seed, device, log, overflow)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, STALE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # It grows after every good step, so that one update is seen as one doubling.
    scaler = torch.amp.GradScaler(kind, init_scale=SCALE, growth_interval=1, enabled=enabled)
    scaler.scale(torch.ones((), device=device))  # as after a first step: a new one would raise where it is forgotten
    options = {} if max_norm is None else {"max_norm": max_norm}
    try:
        value = call(model, batch(call.seed), loss_fn(model, log), optimizer, scaler, device, **options)
    except StudentRaised as error:
        raise _told(error, call, scenario, device) from None
    changes = [array(p.detach().cpu() - old) for p, old in zip(model.parameters(), weights(call.seed), strict=True)]
    return _recorded(call, log) | {
        "class": type(value).__name__,
        "is_float": isinstance(value, float),
        "is_tensor": isinstance(value, torch.Tensor),
        "value": float(value) if isinstance(value, (int, float)) else None,
        "kind": kind,
        "scale": scaler.get_scale(),
        "update": changes,
    }


def _recorded(call: Call, log: Log) -> dict[str, Any]:
    """How model, loss and gradients were run, and what the ledger knows of scaler and optimizer."""
    ledger = call.ledger
    outside, norms = ledger.steps_outside_scaler(), ledger.norms_before_unscale()
    backwards = ledger.backward_passes()
    unsettled = ledger.scaler_steps_without_update()
    under = ledger.backwards_under_autocast()
    return {
        "forward": log.forward,
        "loss": log.loss,
        "backward": log.backward,
        "order": list(ledger.training_order()),
        "backward_under_autocast": bool(under) or any(b["autocast"] for b in log.backward),
        "steps_outside": len(outside),
        "steps_without_update": len(unsettled),
        "norms_before_unscale": len(norms),
        "forward_line": next((call.line_of(f) for f in ledger.forwards()), None),
        "backward_line": call.line_of(backwards[0]) if backwards else None,
        "outside_line": call.line_of(outside[0]) if outside else None,
        "unsettled_line": call.line_of(unsettled[0]) if unsettled else None,
        "update_line": next((call.line_of(c) for c in ledger.scaler_calls("update")[1:]), None),
        "norm_line": call.line_of(norms[0]) if norms else None,
    }


@lru_cache(maxsize=1)
def _warned_before() -> None:
    """A CPU without half precision says so once, with a page of C++ frames: nothing a student should have to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for half in (torch.bfloat16, torch.float16):
            nn.functional.linear(torch.ones(8, 8, dtype=half), torch.ones(8, 8, dtype=half), torch.ones(8, dtype=half))


def _told(error: StudentRaised, call: Call, scenario: str, device: Any) -> StudentRaised:
    """What was done, in order, stands beside the message: a scaler's complaints have more than one cause."""
    inputs, targets = batch(call.seed)
    moved = copied(call, inputs=inputs, targets=targets)
    calls = "done so far", call.ledger.training_order()
    if "inf checks were recorded" in error.evidence.message:
        # A scaler that is switched off complains of nothing: with it the function shows what it does to the end.
        calls = "its calls", _order_to_the_end(call, device)
    # The loss is a module too: its forward after the model's says nothing new.
    order = ", ".join(name for name, _ in itertools.groupby(calls[1])) or "nothing"
    first, newline, rest = error.evidence.message.partition("\n")
    message = f"{first} ({calls[0]}: {order}){newline}{rest}"
    told = StudentRaised(msgspec.structs.replace(error.evidence, message=message))
    told.facts |= {"scenario": scenario, "copied": moved}
    return told


def _order_to_the_end(call: Call, device: Any) -> tuple[str, ...]:
    kind = torch.device(device).type
    log = Log(kind)
    model = watched(call.seed, device, log, overflow=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(kind, enabled=False)
    with contextlib.suppress(StudentRaised):  # then this far
        call(model, batch(call.seed), loss_fn(model, log), optimizer, scaler, device)
    return call.ledger.training_order()
