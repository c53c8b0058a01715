"""What came of an epoch? Where the model went and when, what training did in which order, and what was returned."""

from __future__ import annotations

import functools
from typing import Any

from graders.day8.training_loop import probes_watch
from graders.day8.training_loop.functions import train
from graders.day8.training_loop.probes_watch import Watch
from graders.probes.calling import Call, StudentRaised, array
from graders.probes.late import torch
from graders.probes.scenarios import described
from graders.probes.settings import settled
from graders.probes.sprites import CLASSES, SIZE, sprites

SAMPLES, BATCH = 5, 4  # the last batch is smaller, and a batch of one
RATE = 0.15  # nobody's default


@functools.cache
def _numbers(seed: int) -> tuple[Any, Any, Any, Any]:
    dice = torch.Generator().manual_seed(seed)
    weight = torch.rand(CLASSES, 3 * SIZE * SIZE, generator=dice) * 0.2 - 0.1
    return (*sprites(SAMPLES, seed + 1), weight, torch.zeros(CLASSES))


def _epoch(call: Call, device: Any, samples: int = SAMPLES, moved: bool = False) -> dict[str, Any]:
    pictures, classes, weight, bias = (numbers.clone() for numbers in _numbers(call.seed))
    watch = Watch(call)
    model = probes_watch.model(watch, weight, bias)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # what was there before must not leak into the first step
    if moved:
        model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    watch.watch_steps(optimizer)
    model.eval()
    batches = probes_watch.loader(watch, pictures[:samples], classes[:samples], BATCH)
    try:
        value, settings = settled(call, model, batches, probes_watch.loss(watch), optimizer, device)
    except StudentRaised as error:
        return {"raised": described(error), "copied": _copied(call, watch)}
    return {
        "class": type(value).__name__,
        "is_float": isinstance(value, float),
        "is_tensor": isinstance(value, torch.Tensor),
        "value": float(value) if isinstance(value, (int, float)) else None,
        # The losses that really came up in this call, so that a mistake elsewhere is not blamed on the mean.
        "losses": [[float(loss), size] for loss, size in watch.losses],
        "devices": sorted({str(p.device) for p in model.parameters()}),
        "wanted_device": str(torch.empty(0, device=device).device),
        "after": [array(p) for p in model.parameters()],
        "order": list(call.ledger.training_order()),
        "forwards": watch.forwards,
        "loss_devices": watch.loss_devices,
        "leftovers": watch.leftovers,
        "steps": watch.steps,
        "moved_in_loop": _moved_in_loop(call, watch, model),
        "step_lines": [call.line_of(step) for step in call.ledger.optimizer_steps()],
        "backward_lines": [call.line_of(backward) for backward in call.ledger.backward_passes()],
        "batches": -(-samples // BATCH),
        "settings": settings,
    }


def _copied(call: Call, watch: Watch) -> dict[str, int | None]:
    """Which part of the latest batch had been copied to the device before an error came up, and by which line."""
    if watch.latest is None:
        return {}
    copies = call.bench.ledger.since(watch.latest).transfers_to_device()
    found: dict[str, int | None] = {}
    for part, sizes in watch.sizes.items():
        line = next((call.line_of(copy) for copy in copies if copy.bytes in sizes), None)
        if line is not None:
            found[part] = line
    return found


def _moved_in_loop(call: Call, watch: Watch, model: Any) -> list[int | None]:
    """The lines that moved the model, or its largest part by itself, while batches were being fetched."""
    if watch.first is None or watch.walks:
        return watch.walks
    largest = max(p.nbytes for p in model.parameters())
    copies = call.bench.ledger.since(watch.first, watch.last).transfers_to_device()
    return [call.line_of(copy) for copy in copies if copy.bytes == largest]


@train.probe
def epochs(call: Call) -> dict[str, Any]:
    """An empty loader first: what a function remembers of it must not change the next epoch."""
    return {
        "nothing_to_train_on": _epoch(call, call.device, samples=0),
        "from_the_cpu": _epoch(call, call.device),
        "on_the_cpu": _epoch(call, "cpu", samples=3),  # another mean than before, to whoever still remembers that one
    }


def an_epoch_on_the_second_gpu(call: Call) -> dict[str, Any]:
    """The model is there already, and the device is written as a string."""
    return {"already_there": _epoch(call, "cuda:1", samples=2, moved=True)}


train.probe(an_epoch_on_the_second_gpu, machine="two gpus")
