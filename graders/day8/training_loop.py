"""04: one training epoch on a device. What moved when, in which order training went, and what came out."""

from __future__ import annotations

import math
from typing import Any

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.evidence import Array
from graders.probes.calling import Call, array
from graders.probes.late import nn, torch
from graders.probes.sprites import classifier, loader

exercise = Exercise(
    "04_modifying_training_loop_gpu",
    "A training loop that runs on the GPU",
    points=14,
    reading=("generated/torch.Tensor.to.html", "generated/torch.nn.Module.html", "notes/cuda.html"),
)
train = exercise.function(
    "train_epoch",
    "Before the loop: the model to the device, once, and into training mode. In the loop: inputs and targets as well.",
    "Per batch: zero the gradients, forward, loss, backward, step, in this order.",
    "`loss_fn` gives the mean over its batch: multiply by the batch's size, add up, divide by all samples at the end.",
)


def _watch(batches: Any, call: Call) -> list[int]:
    """Remember where in the ledger a DataLoader hands out each batch; it stays a DataLoader to whoever asks."""
    marks: list[int] = []
    plain = type(batches)

    def hand_out(self: Any) -> Any:
        for batch in plain.__iter__(self):
            marks.append(call.bench.ledger.mark())
            yield batch

    batches.__class__ = type(plain.__name__, (plain,), {"__iter__": hand_out})
    return marks


def _epoch(call: Call, device: Any, samples: int = 10, moved: bool = False) -> dict[str, Any]:
    model = classifier(call.seed)
    if moved:
        model.to(device)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # what was there before must not leak into the first step
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.eval()
    before = [array(p) for p in model.parameters()]
    zeroed = _counted(optimizer, "zero_grad"), _counted(model, "zero_grad")
    batches = loader(samples, call.seed + 1)
    marks = _watch(batches, call)
    loss_fn = nn.CrossEntropyLoss()
    losses: list[Any] = []
    loss_fn.register_forward_hook(lambda module, args, out: losses.append((out.detach(), len(args[0]))))
    value = call(model, batches, loss_fn, optimizer, device)
    own = [(float(loss), size) for loss, size in losses]
    ledger = call.ledger
    first = marks[0] if marks else 0
    sizes = {p.nbytes for p in model.parameters()}
    late = [t for t in ledger.transfers_to_device() if marks and t.index >= first and t.bytes in sizes]
    weights = [t for t in late if t.bytes == max(sizes)]
    return {
        "class": type(value).__name__,
        "value": float(value) if isinstance(value, (int, float)) or hasattr(value, "item") else None,
        # Of the losses that really came up in this call, so that a mistake elsewhere is not blamed on the mean.
        "mean": sum(loss * size for loss, size in own) / sum(size for _, size in own) if own else 0.0,
        "mean_of_means": sum(loss for loss, _ in own) / len(own) if own else 0.0,
        "devices": sorted({str(p.device) for p in model.parameters()}),
        "wanted_device": str(torch.empty(0, device=device).device),
        "before": before,
        "after": [array(p) for p in model.parameters()],
        "order": list(ledger.training_order()),
        "zeroed": zeroed[0]() + zeroed[1](),
        "training": [forward.training for forward in ledger.forwards("Sequential")],
        "moved_in_loop": bool(weights),
        "moved_line": call.line_of(weights[0]) if weights else None,
        "step_line": next((call.line_of(s) for s in ledger.optimizer_steps()), None),
        "batches": len(marks),
    }


def _counted(owner: Any, name: str) -> Any:
    """Count the calls of a method on one object."""
    original, calls = getattr(owner, name), []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    object.__setattr__(owner, name, counted)
    return lambda: len(calls)


@train.probe
def from_the_cpu(call: Call) -> dict[str, Any]:
    """The model still on the CPU, the last batch smaller."""
    return _epoch(call, call.device)


@train.probe
def already_there(call: Call) -> dict[str, Any]:
    return _epoch(call, str(call.device), moved=True)


@train.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    """The same function, told to train on the CPU."""
    return _epoch(call, "cpu")


@train.probe
def nothing_to_train_on(call: Call) -> dict[str, Any]:
    return _epoch(call, call.device, samples=0)


runs(train, points=1)


@train.check(points=2)
def moves_the_model_once(seen: Seen, wanted: Seen) -> None:
    """The model is moved to the device once, before the loop."""
    facts = seen["from_the_cpu"].facts
    if facts["devices"] != [facts["wanted_device"]]:
        raise Failed(
            f"after the epoch the parameters are on {', '.join(facts['devices'])}",
            f"all of them on {facts['wanted_device']}",
            misconception="model-not-moved",
        )
    if facts["moved_in_loop"]:
        raise Failed(
            "the model was moved after the first batch had been fetched",
            "one move before the loop",
            facts["moved_line"],
            "model-moved-in-loop",
        )


@train.check(points=1)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Training happens on the device passed in, whatever this machine has."""
    facts = seen["on_the_cpu"].facts
    if facts["devices"] != ["cpu"]:
        raise Failed(
            f'with device="cpu" the model ended up on {", ".join(facts["devices"])}',
            "the CPU, as asked",
            misconception="hard-coded-cuda",
        )


@train.check(points=1)
def trains_in_training_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in training mode."""
    modes = seen["from_the_cpu"].facts["training"]
    if not modes or not all(modes):
        raise Failed(
            f"{modes.count(False)} of {len(modes)} forward passes ran in evaluation mode", "model.train() first"
        )


@train.check(points=4)
def learns_as_it_should(seen: Seen, wanted: Seen) -> None:
    """After the epoch the weights are those of plain SGD: zeroed, backward, stepped for every batch."""
    for name in ("from_the_cpu", "already_there"):
        facts, right = seen[name].facts, wanted[name].facts
        if _close(facts["after"], right["after"]):
            continue
        order, batches = facts["order"], facts["batches"]
        if "step" not in order:
            raise Failed("the optimizer never stepped", f"{batches} steps", misconception="missing-step")
        if "backward" in order and order.index("step") < order.index("backward"):
            raise Failed(
                "step() came before backward()", "backward(), then step()", facts["step_line"], "step-before-backward"
            )
        if facts["zeroed"] == 0:
            raise Failed(
                "the gradients were never zeroed",
                "gradients of this batch only, in every step",
                None,
                "missing-zero-grad",
            )
        raise Failed("the weights after the epoch differ from the reference's", "the weights plain SGD gives")


@train.check(points=4)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """It returns the mean loss per sample, as a Python float."""
    facts = seen["from_the_cpu"].facts
    if facts["class"] != "float":
        misconception = "returned-tensor" if facts["class"] in ("Tensor", "Parameter") else None
        raise Failed(f"it returned a {facts['class']}", "a Python float", misconception=misconception)
    if _near(facts["value"], facts["mean"]):
        return
    means = _near(facts["value"], facts["mean_of_means"])
    raise Failed(
        f"it returned {facts['value']:.4f}",
        f"{facts['mean']:.4f}, the mean over all samples of this epoch's losses",
        misconception="mean-of-batch-means" if means else None,
    )


def _near(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=1e-4, abs_tol=1e-6)


@train.check(points=1)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives 0.0."""
    value = seen["nothing_to_train_on"].facts["value"]
    if value != 0.0:
        raise Failed(f"an empty loader gave {value}", "0.0")


def _close(found: list[Array], right: list[Array]) -> bool:
    import numpy as np

    for a, b in zip(found, right, strict=True):
        if a.shape != b.shape:
            return False
        if not np.allclose(np.frombuffer(a.data, a.dtype), np.frombuffer(b.data, b.dtype), rtol=1e-3, atol=1e-5):
            return False
    return True
