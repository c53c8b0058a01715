"""05: evaluation on a device. In which mode each forward pass ran, what it left behind, and what came out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from graders.checks.common import diagnosis, runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.probes.calling import Call
from graders.probes.late import nn, torch
from graders.probes.sprites import CLASSES, SIZE, sprites

exercise = Exercise(
    "05_modifying_evaluation_loop_gpu",
    "An evaluation loop that runs on the GPU",
    points=14,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "generated/torch.nn.Module.html"),
)
evaluate = exercise.function(
    "evaluate",
    "Two switches, and you need both: `model.eval()` for the layers, `torch.no_grad()` for autograd.",
    "Before the loop: the model to the device and into evaluation mode. In the loop: inputs and targets to the device.",
    "`loss_fn` gives the mean over its batch: multiply by the batch's size, add up, divide by all samples at the end.",
    "`outputs.argmax(dim=1) == targets` says which samples are right; count them over all batches, then divide once.",
)


class Log(list[dict[str, Any]]):
    """What each forward pass saw; a copy of the model that a solution may make goes on writing here."""

    def __deepcopy__(self, memo: Any) -> Log:
        return self


def _watched(seed: int, log: Log) -> Any:
    """A classifier with batch norm and dropout that writes down how it is run, also through `model.forward`."""

    class SpriteClassifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # Batch norm over four values a channel: in training mode a batch of one changes it, but does not raise.
            self.first = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 12), nn.Unflatten(1, (3, 4)))
            self.norm = nn.BatchNorm1d(3)
            self.dropout = nn.Dropout(0.5)
            self.last = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES))
            self.log = log

        def forward(self, pictures: Any) -> Any:
            outputs = self.last(self.dropout(self.norm(self.first(pictures))))
            self.log.append(
                {
                    "training": sorted(name for name, part in _parts(self) if part.training),
                    "graph": outputs.requires_grad,
                    "devices": sorted({str(pictures.device), *(str(p.device) for p in self.parameters())}),
                }
            )
            return outputs

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = SpriteClassifier()
        with torch.no_grad():
            model.norm.running_mean.uniform_(-0.5, 0.5)
            model.norm.running_var.uniform_(0.1, 0.3)
            model.last[2].weight.mul_(8)  # decided answers: a wrong one costs visibly more than a right one
    return model


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    yield from (("model", model), ("batch norm", model.norm), ("dropout", model.dropout))


def _answers(model: Any, pictures: Any) -> Any:
    """The logits in evaluation mode, from plain torch on the CPU."""
    with torch.no_grad():
        model.eval()
        return model(pictures)


def _scenario(call: Call, samples: int) -> tuple[Any, Any, list[float]]:
    """A loader in batches of 4 whose last batch is answered wrongly, a model, and the mean of batch means."""
    pictures, _ = sprites(samples, call.seed + 1)
    oracle = _watched(call.seed, Log())
    logits = _answers(oracle, pictures) if samples else torch.zeros(0, CLASSES)
    classes = logits.argmax(dim=1)
    last = (samples - 1) // 4 * 4
    for wrong in {1, *range(last, samples)} if samples > 1 else set():
        classes[wrong] = logits[wrong].argmin()
    loss_fn = _loss_fn()
    per_batch = [
        (loss_fn(a, b).item(), (a.argmax(dim=1) == b).float().mean().item())
        for a, b in zip(logits.split(4), classes.split(4), strict=True)
        if len(b)
    ]
    means = [sum(column) / len(per_batch) for column in zip(*per_batch, strict=True)] or [0.0, 0.0]
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pictures, classes), batch_size=4)
    return batches, _watched(call.seed, Log()), means


def _loss_fn() -> Any:
    return nn.CrossEntropyLoss(label_smoothing=0.1)  # not quite the usual loss: the one that is given has to be used


def _evaluated(call: Call, device: Any, samples: int = 9, moved: bool = False) -> dict[str, Any]:
    batches, model, means = _scenario(call, samples)
    model.first[1].bias.requires_grad_(False)  # frozen before, so frozen afterwards
    if moved:
        model.to(device)
    for parameter in list(model.parameters())[:-1]:  # the last one has no gradient yet, and gets none
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)
    model.train()
    before = _state(model)
    with torch.enable_grad():  # whatever the student's function leaves behind ends here
        value = call(model, batches, _loss_fn(), device)
        grad_mode = torch.is_grad_enabled()
    building = call.ledger.forwards_building_graph()
    after = _state(model)
    return {
        "class": type(value).__name__,
        "parts": [_describe(part) for part in value] if isinstance(value, (tuple, list)) else [],
        "is_tuple": isinstance(value, tuple),
        "passes": list(model.log),
        "graph_line": call.line_of(building[0]) if building else None,
        "forward_line": next((call.line_of(f) for f in call.ledger.forwards()), None),
        "wanted_device": str(torch.empty(0, device=device).device),
        "changed": {kind: _changed(before[kind], after[kind]) for kind in ("weights", "gradients", "statistics")},
        "flags_before": before["flags"],
        "flags_after": after["flags"],
        "grad_mode": grad_mode,
        "batch_means": means,
    }


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
        "weights": {name: p.detach().cpu().clone() for name, p in parameters.items()},
        "gradients": {n: None if p.grad is None else p.grad.detach().cpu().clone() for n, p in parameters.items()},
        "statistics": {name: b.detach().cpu().clone() for name, b in model.named_buffers()},
        "flags": {name: p.requires_grad for name, p in parameters.items()},
    }


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, old in before.items() if not _same(old, after.get(name))]


def _same(old: Any, new: Any) -> bool:
    if old is None or new is None:
        return old is new
    return old.dtype == new.dtype and torch.equal(old, new)


@evaluate.probe
def from_the_cpu(call: Call) -> dict[str, Any]:
    """The model still on the CPU, the last batch a single sprite."""
    return _evaluated(call, call.device)


@evaluate.probe
def already_there(call: Call) -> dict[str, Any]:
    return _evaluated(call, str(call.device), samples=10, moved=True)


@evaluate.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    """The same function, told to evaluate on the CPU."""
    return _evaluated(call, "cpu")


@evaluate.probe
def one_sprite(call: Call) -> dict[str, Any]:
    return _evaluated(call, call.device, samples=1)


@evaluate.probe
def nothing_to_evaluate(call: Call) -> dict[str, Any]:
    return _evaluated(call, call.device, samples=0)


FULL = ("from_the_cpu", "already_there", "on_the_cpu", "one_sprite")


def _diagnose(scenario: str, message: str) -> str | None:
    found = diagnosis(message)
    # Only with device="cpu" it cannot be the model that was forgotten: it was on the CPU already.
    return "hard-coded-cuda" if found == "model-not-moved" and scenario == "on_the_cpu" else found


runs(evaluate, points=1, diagnose=_diagnose)


@evaluate.check(points=1)
def runs_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device, also if the model was still on the CPU."""
    for name in ("from_the_cpu", "already_there", "one_sprite"):
        facts = seen[name].facts
        elsewhere = [p for p in facts["passes"] if p["devices"] != [facts["wanted_device"]]]
        if elsewhere:
            where = ", ".join(elsewhere[0]["devices"])
            raise Failed(
                f"{len(elsewhere)} of {len(facts['passes'])} forward passes ran on {where}",
                f"all of them on {facts['wanted_device']}",
                facts["forward_line"],
                "model-not-moved" if elsewhere[0]["devices"] == ["cpu"] else None,
            )
        if not facts["passes"]:
            raise Failed("the model was never called", f"a forward pass per batch on {facts['wanted_device']}")


@evaluate.check(points=1)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Evaluation happens on the device passed in, whatever this machine has."""
    facts = seen["on_the_cpu"].facts
    elsewhere = sorted({device for p in facts["passes"] for device in p["devices"]} - {"cpu"})
    if elsewhere:
        raise Failed(
            f'with device="cpu" the forward passes ran on {", ".join(elsewhere)}',
            "the CPU, as asked",
            facts["forward_line"],
            "hard-coded-cuda",
        )


@evaluate.check(points=2)
def evaluates_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode, dropout and batch norm included."""
    for name in FULL:
        facts = seen[name].facts
        training = [p["training"] for p in facts["passes"] if p["training"]]
        if not training:
            continue
        happened = (
            f"{len(training)} of {len(facts['passes'])} forward passes ran with {_named(training[0])} in training mode"
        )
        misconception = None
        if len(training) == len(facts["passes"]) and all("model" in parts for parts in training):
            # Without either switch the mistake is not that one was taken for the other.
            misconception = None if any(p["graph"] for p in facts["passes"]) else "no-grad-without-eval"
        elif any("batch norm" in parts for parts in training):
            misconception = "batch-norm-changed"
        raise Failed(happened, "model.eval() before the first pass", facts["forward_line"], misconception)


def _named(parts: list[str]) -> str:
    return "the whole model" if "model" in parts and len(parts) == 3 else " and ".join(parts)


@evaluate.check(points=2)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph."""
    for name in FULL:
        facts = seen[name].facts
        building = [p for p in facts["passes"] if p["graph"]]
        if building:
            in_evaluation = not any(p["training"] for p in facts["passes"])
            raise Failed(
                f"the outputs of {len(building)} of {len(facts['passes'])} forward passes came with a graph",
                "forward passes under torch.no_grad() or torch.inference_mode()",
                facts["graph_line"],
                "eval-without-no-grad" if in_evaluation else None,
            )


@evaluate.check(points=1)
def leaves_weights_and_gradients_as_they_were(seen: Seen, wanted: Seen) -> None:
    """Weights and gradients are the same afterwards."""
    _unchanged(seen, "weights", None)
    _unchanged(seen, "gradients", None)


@evaluate.check(points=1)
def leaves_batch_norm_as_it_was(seen: Seen, wanted: Seen) -> None:
    """The running statistics of batch norm are the same afterwards."""
    _unchanged(seen, "statistics", "batch-norm-changed")


def _unchanged(seen: Seen, kind: str, misconception: str | None) -> None:
    for name in (*FULL, "nothing_to_evaluate"):
        changed = seen[name].facts["changed"][kind]
        if changed:
            raise Failed(
                f"scenario `{name}` changed the {kind} of {', '.join(changed[:3])}",
                f"the {kind} as they were before the call",
                misconception=misconception,
            )


@evaluate.check(points=1)
def leaves_training_possible(seen: Seen, wanted: Seen) -> None:
    """Training can go on: requires_grad of every parameter, and grad mode, are as they were."""
    for name in (*FULL, "nothing_to_evaluate"):
        facts = seen[name].facts
        before, after = facts["flags_before"], facts["flags_after"]
        off = [parameter for parameter, flag in before.items() if flag and not after.get(parameter)]
        on = [parameter for parameter, flag in before.items() if not flag and after.get(parameter)]
        if off:
            raise Failed(
                f"afterwards {len(off)} of {sum(before.values())} trainable parameters no longer require gradients",
                "the flags as they were; torch.no_grad() needs none of them changed",
                misconception="requires-grad-left-off",
            )
        if on:
            raise Failed(f"{', '.join(on)} was frozen, and requires gradients afterwards", "the flags as they were")
        if not facts["grad_mode"]:
            raise Failed("gradients are switched off for the whole program afterwards", "torch.no_grad() in a `with`")


@evaluate.check(points=1)
def returns_two_floats(seen: Seen, wanted: Seen) -> None:
    """It returns a tuple of two Python floats: loss and accuracy."""
    for name in FULL:
        facts = seen[name].facts
        if not facts["is_tuple"] or len(facts["parts"]) != 2:
            shown = f"a {facts['class']}" + (f" of {len(facts['parts'])}" if facts["parts"] else "")
            raise Failed(f"it returned {shown}", "a tuple of two floats")
        for what, part in zip(("loss", "accuracy"), facts["parts"], strict=True):
            if not part["is_float"]:
                raise Failed(
                    f"the {what} is a {part['class']}",
                    "a Python float",
                    misconception="returned-tensor" if part["is_tensor"] else None,
                )


NUMBERS = ("runs", "evaluates_in_evaluation_mode", "returns_two_floats")


@evaluate.check(points=1, needs=NUMBERS)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """The first is the mean loss per sample, although the last batch is smaller."""
    _number(0, seen, wanted)


@evaluate.check(points=1, needs=NUMBERS)
def returns_the_accuracy(seen: Seen, wanted: Seen) -> None:
    """The second is the share of all samples that are classified correctly, in [0, 1]."""
    _number(1, seen, wanted)


def _number(place: int, seen: Seen, wanted: Seen) -> None:
    what = ("loss", "accuracy")[place]
    for name in FULL:
        facts = seen[name].facts
        found = facts["parts"][place]["value"]
        right = wanted[name].facts["parts"][place]["value"]
        if _close(found, right):
            continue
        misconception = "mean-of-batch-means" if _close(found, facts["batch_means"][place]) else None
        percent = " (in [0, 1], not in percent)" if place and _close(found, 100 * right) else ""
        raise Failed(f"scenario `{name}`: {what} {found:.4f}", f"{right:.4f}{percent}", misconception=misconception)


def _close(found: float, right: float) -> bool:
    return math.isclose(found, right, rel_tol=1e-3, abs_tol=1e-5)


@evaluate.check(points=1)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives (0.0, 0.0)."""
    parts = [part["value"] for part in seen["nothing_to_evaluate"].facts["parts"]]
    if parts != [0.0, 0.0]:
        classes = [part["class"] for part in seen["nothing_to_evaluate"].facts["parts"]]
        shown = ", ".join(str(v) if v is not None else c for v, c in zip(parts, classes, strict=True))
        raise Failed(f"an empty loader gave ({shown})", "(0.0, 0.0)")
