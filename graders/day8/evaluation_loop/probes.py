"""How is 05 looked at? From the CPU, there already, without sprites; on the CPU, and on a second GPU."""

from __future__ import annotations

import linecache
import re
from typing import Any, Final

import msgspec

from graders.day8.evaluation_loop.functions import evaluate
from graders.day8.evaluation_loop.probes_classifier import BATCH, Log, batches, loss_fn, watched
from graders.probes.calling import Call, StudentRaised
from graders.probes.copying import copied
from graders.probes.late import torch
from graders.probes.settings import settled

_COMPARISON: Final = re.compile(r"[!=]=|\b(eq|ne|equal)\(")


@evaluate.probe
def on_the_device(call: Call) -> dict[str, Any]:
    """All on one bench. The last batch is a single sprite, or two."""
    return {
        "from_the_cpu": _evaluated(call, call.device, "from_the_cpu"),
        "already_there": _evaluated(call, str(call.device), "already_there", samples=5, moved=True),
        "nothing_to_evaluate": _evaluated(call, call.device, "nothing_to_evaluate", samples=0),
    }


@evaluate.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    """The same function, told to evaluate on the CPU."""
    return {"on_the_cpu": _evaluated(call, "cpu", "on_the_cpu")}


def on_the_second_gpu(call: Call) -> dict[str, Any]:
    """The model is there already; a batch that goes to "cuda" goes to the first one."""
    return {"on_the_second_gpu": _evaluated(call, "cuda:1", "on_the_second_gpu", samples=2, moved=True)}


evaluate.probe(on_the_second_gpu, machine="two gpus")


def _evaluated(call: Call, device: Any, scenario: str, samples: int = 4, moved: bool = False) -> dict[str, Any]:
    loader, means = batches(call.seed, samples)
    model = watched(call.seed, Log())
    model.first.bias.requires_grad_(False)  # frozen before, so frozen afterwards
    for parameter in list(model.parameters())[:-1]:  # the last one has no gradient yet, and gets none
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)
    before = _state(model)
    if moved:
        model.to(device)
    with torch.enable_grad():  # whatever the student's function leaves behind ends here
        try:
            value, settings = settled(call, model, loader, loss_fn(), device)
        except StudentRaised as error:
            raise _told(error, call, loader, scenario) from None
    forwards = call.ledger.forwards()
    after = _state(model)
    return {
        "class": type(value).__name__,
        "parts": [_describe(part) for part in value] if isinstance(value, (tuple, list)) else [],
        "is_tuple": isinstance(value, tuple),
        "passes": list(model.log),
        "graph_line": next((call.line_of(f) for f in forwards if f.builds_graph), None),
        "forward_line": next((call.line_of(f) for f in forwards), None),
        "wanted_device": str(torch.empty(0, device=device).device),
        "changed": {kind: _changed(before[kind], after[kind]) for kind in ("weights", "gradients", "statistics")},
        "flags_before": before["flags"],
        "flags_after": after["flags"],
        "settings": settings,
        "batch_means": means,
        "sizes": [min(BATCH, samples - start) for start in range(0, samples, BATCH)],
    }


def _told(error: StudentRaised, call: Call, loader: Any, scenario: str) -> StudentRaised:
    """Where it raised, and which tensors of the first batch had been copied by then."""
    told = StudentRaised(error.evidence)
    told.facts["scenario"] = scenario
    if not len(loader):
        return told
    inputs, targets = next(iter(loader))
    told.facts["copied"] = copied(call, inputs=inputs, targets=targets)
    source = linecache.getline(str(call.path), error.evidence.line or 0)
    if "found at least two devices" in error.evidence.message and _COMPARISON.search(source):
        message = f"{error.evidence.message} (comparing outputs with targets)"
        told.evidence = msgspec.structs.replace(error.evidence, message=message)
        if call.ledger.forwards("CrossEntropyLoss"):
            told.facts["copied"].pop("targets", None)  # the copy was not thrown away: the loss has used it
    return told


def _describe(part: Any) -> dict[str, Any]:
    number = isinstance(part, (int, float)) and not isinstance(part, bool)
    return {
        "class": type(part).__name__,
        "is_float": isinstance(part, float),
        "is_tensor": isinstance(part, torch.Tensor),
        "value": float(part) if number else None,
    }


def _state(model: Any) -> dict[str, dict[str, Any]]:
    parameters = dict(model.named_parameters())
    return {
        "weights": {name: _kept(p) for name, p in parameters.items()},
        "gradients": {name: None if p.grad is None else _kept(p.grad) for name, p in parameters.items()},
        "statistics": {name: _kept(b) for name, b in model.named_buffers()},
        "flags": {name: p.requires_grad for name, p in parameters.items()},
    }


def _kept(tensor: Any) -> Any:
    host = tensor.detach().cpu()
    return host.clone() if tensor.device.type == "cpu" else host


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, old in before.items() if not _same(old, after.get(name))]


def _same(old: Any, new: Any) -> bool:
    if old is None or new is None:
        return old is new
    return old.dtype == new.dtype and torch.equal(old, new)
