"""07: one training step in mixed precision. What ran under autocast, what the scaler did, and what was learnt."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from typing import Any

import msgspec

from graders.checks.common import diagnosis, runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.evidence import Array
from graders.probes.calling import Call, StudentRaised, array
from graders.probes.late import nn, torch
from graders.probes.sprites import classifier, sprites

exercise = Exercise(
    "07_mixed_precision",
    "A training step in mixed precision",
    points=12,
    reading=("amp.html", "notes/amp_examples.html"),
)
step = exercise.function(
    "mixed_precision_step",
    "`with torch.autocast(device_type=...)` goes around the forward pass and the loss, and ends before backward.",
    "`scaler.scale(loss).backward()`, then `scaler.step(optimizer)`, then `scaler.update()`.",
    "To clip, the gradients must have their own size again: `scaler.unscale_(optimizer)` first.",
    '`torch.device(device).type` is what autocast wants, for a string such as "cuda:0" as well as for a device.',
)
SCALE = 1024.0
STALE = 4096.0  # what lies in the gradients before: large enough to be seen even divided by the scale
SOFTLY = 50.0  # above the norm of the gradients, below that of the scaled ones
HARD = 0.05
TYPES = ("cuda", "cpu", "mps")


class Log:
    """How the forward pass, the loss and the backward pass were run."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.forward: list[dict[str, Any]] = []
        self.loss: list[dict[str, Any]] = []
        self.backward: list[dict[str, Any]] = []

    def mode(self) -> dict[str, Any]:
        regions = [kind for kind in TYPES if torch.is_autocast_enabled(kind)]
        return {"autocast": self.kind in regions, "regions": regions}


def _watched(seed: int, log: Log, overflow: bool) -> Any:
    """A classifier that writes down how it is run; with `overflow` its gradients are infinite, whatever the dtype."""

    class SpriteClassifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = classifier(seed)

        def forward(self, pictures: Any) -> Any:
            log.forward.append(log.mode())
            outputs = self.layers(pictures)
            if overflow and outputs.requires_grad:
                outputs.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
            return outputs

    return SpriteClassifier()


def _loss_fn(model: Any, log: Log) -> Any:
    """A loss that notes the gradient it is given: the scale, if the loss was scaled; and what it is added to."""

    class SpriteLoss(nn.CrossEntropyLoss):
        def forward(self, outputs: Any, targets: Any) -> Any:
            log.loss.append(log.mode())
            loss = super().forward(outputs, targets)
            if loss.requires_grad:
                loss.register_hook(arrived)
            return loss

    def arrived(gradient: Any) -> None:
        found = [p.grad.detach().abs().max().item() for p in model.parameters() if p.grad is not None]
        log.backward.append({**log.mode(), "gradient": gradient.item(), "stale": max(found, default=0.0)})

    return SpriteLoss()


def _stepped(
    call: Call, device: Any, enabled: bool = True, overflow: bool = False, max_norm: float | None = None
) -> dict[str, Any]:
    kind = torch.device(device).type
    if kind == "cpu":
        _warned_before()
    log = Log(kind)
    model = _watched(call.seed, log, overflow).to(device).train()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, STALE)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # It grows after every good step, so that one update is seen as one doubling.
    scaler = torch.amp.GradScaler(kind, init_scale=SCALE, growth_interval=1, enabled=enabled)
    scaler.scale(torch.ones((), device=device))  # as after a first step: a new one would raise where it is forgotten
    batch = sprites(8, call.seed + 1)
    options = {} if max_norm is None else {"max_norm": max_norm}
    try:
        value = call(model, batch, _loss_fn(model, log), optimizer, scaler, device, **options)
    except StudentRaised as error:
        raise _with_order(error, call) from None
    ledger = call.ledger
    outside, norms = ledger.steps_outside_scaler(), ledger.norms_before_unscale()
    backwards = ledger.backward_passes()
    unsettled = ledger.scaler_steps_without_update()
    under = ledger.backwards_under_autocast()
    facts: dict[str, Any] = {
        "class": type(value).__name__,
        "is_float": isinstance(value, float),
        "is_tensor": isinstance(value, torch.Tensor),
        "value": float(value) if isinstance(value, (int, float)) else None,
        "forward": log.forward,
        "loss": log.loss,
        "backward": log.backward,
        "kind": kind,
        "order": list(ledger.training_order()),
        "backward_under_autocast": bool(under) or any(b["autocast"] for b in log.backward),
        "steps_outside": len(outside),
        "steps_without_update": len(unsettled),
        "norms_before_unscale": len(norms),
        "forward_line": next((call.line_of(f) for f in ledger.forwards()), None),
        "backward_line": call.line_of(backwards[0]) if backwards else None,
        "outside_line": call.line_of(outside[0]) if outside else None,
        "unsettled_line": call.line_of(unsettled[0]) if unsettled else None,
        "norm_line": call.line_of(norms[0]) if norms else None,
    }
    facts["scale"] = scaler.get_scale()
    facts["update"] = [array(p.detach() - old) for p, old in zip(model.parameters(), before, strict=True)]
    return facts


def _warned_before() -> None:
    """A CPU without half precision says so once, with a page of C++ frames: nothing a student should have to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for half in (torch.bfloat16, torch.float16):
            nn.functional.linear(torch.ones(8, 8, dtype=half), torch.ones(8, 8, dtype=half), torch.ones(8, dtype=half))


def _with_order(error: StudentRaised, call: Call) -> StudentRaised:
    """What had been done when it raised stands beside the message: a scaler's complaints have more than one cause."""
    done = call.ledger.training_order()
    # The loss is a module too: its forward after the model's says nothing new.
    order = ", ".join(name for name, _ in itertools.groupby(done)) or "nothing"
    first, newline, rest = error.evidence.message.partition("\n")
    message = f"{first} (done so far: {order}){newline}{rest}"
    return StudentRaised(msgspec.structs.replace(error.evidence, message=message))


@step.probe
def on_the_device(call: Call) -> dict[str, Any]:
    """A real scaler, no clipping."""
    return _stepped(call, call.device)


@step.probe
def clipped(call: Call) -> dict[str, Any]:
    return _stepped(call, str(call.device), max_norm=HARD)


@step.probe
def clipped_softly(call: Call) -> dict[str, Any]:
    """The norm is below `max_norm`: clipping changes nothing, unless the gradients are still scaled."""
    return _stepped(call, call.device, max_norm=SOFTLY)


@step.probe
def overflow(call: Call) -> dict[str, Any]:
    return _stepped(call, call.device, overflow=True)


@step.probe
def overflow_clipped(call: Call) -> dict[str, Any]:
    return _stepped(call, call.device, overflow=True, max_norm=HARD)


@step.probe
def scaler_disabled(call: Call) -> dict[str, Any]:
    return _stepped(call, call.device, enabled=False)


@step.probe
def scaler_disabled_clipped(call: Call) -> dict[str, Any]:
    return _stepped(call, call.device, enabled=False, max_norm=HARD)


@step.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    return _stepped(call, "cpu")


@step.probe
def on_the_cpu_disabled(call: Call) -> dict[str, Any]:
    return _stepped(call, torch.device("cpu"), enabled=False, max_norm=HARD)


SCALED = ("on_the_device", "clipped", "clipped_softly")


def _diagnose(scenario: str, message: str) -> str | None:
    found = diagnosis(message)
    if found is not None:
        # The model is where it should be in every scenario: what met it from a GPU was sent there by name.
        return "hard-coded-cuda" if found == "model-not-moved" else found
    done = re.search(r"\(done so far: (.*?)\)", message)
    order = done[1].split(", ") if done else []
    if "No inf checks were recorded prior to update" in message and "scaler.step" not in order and "step" in order:
        return "optimizer-step-instead-of-scaler-step"
    return None


runs(step, points=1, diagnose=_diagnose)


@step.check(points=2)
def runs_under_autocast(seen: Seen, wanted: Seen) -> None:
    """Forward pass and loss run under autocast for the device's type."""
    for name in (*SCALED, "overflow", "on_the_cpu"):
        facts = seen[name].facts
        for what, passes in (("the forward pass", facts["forward"]), ("the loss", facts["loss"])):
            plain = [p for p in passes if not p["autocast"]]
            if plain or not passes:
                happened = f"{what} ran outside autocast"
                misconception: str | None = "no-autocast"
                if not passes:
                    happened, misconception = f"{what} was never called", None
                elif plain[0]["regions"]:
                    other = plain[0]["regions"][0]
                    happened = f"on the device {facts['kind']}, {what} ran under autocast for {other}"
                    misconception = "hard-coded-cuda" if other == "cuda" else None
                elif what == "the loss":
                    misconception = None
                expected = f"{what} under torch.autocast for {facts['kind']}"
                raise Failed(f"scenario `{name}`: {happened}", expected, facts["forward_line"], misconception)


@step.check(points=1)
def backward_outside_autocast(seen: Seen, wanted: Seen) -> None:
    """The backward pass runs outside autocast."""
    for name in (*SCALED, "on_the_cpu"):
        facts = seen[name].facts
        if facts["backward_under_autocast"]:
            raise Failed(
                "the backward pass ran under autocast",
                "a region that ends after the loss",
                facts["backward_line"],
                "backward-under-autocast",
            )


@step.check(points=1)
def backward_on_the_scaled_loss(seen: Seen, wanted: Seen) -> None:
    """The backward pass starts from the scaled loss."""
    for name in SCALED:
        facts = seen[name].facts
        passes = facts["backward"]
        if not passes:
            raise Failed("there was no backward pass from the loss", "scaler.scale(loss).backward()")
        if math.isclose(passes[0]["gradient"], SCALE, rel_tol=1e-2) and len(passes) == 1:
            continue
        if len(passes) > 1:
            raise Failed(f"{len(passes)} backward passes ran", "one", facts["backward_line"])
        found = passes[0]["gradient"]
        raise Failed(
            f"backward started from the loss times {found:g}, while the scale is {SCALE:g}",
            "scaler.scale(loss).backward()",
            facts["backward_line"],
            "unscaled-backward" if math.isclose(found, 1.0, rel_tol=1e-2) else None,
        )


@step.check(points=1)
def scaler_steps_the_optimizer(seen: Seen, wanted: Seen) -> None:
    """The scaler steps the optimizer, once."""
    for name in SCALED:
        facts = seen[name].facts
        if facts["steps_outside"]:
            raise Failed(
                "optimizer.step() was called without the scaler",
                "scaler.step(optimizer)",
                facts["outside_line"],
                "optimizer-step-instead-of-scaler-step",
            )
        if "step" not in facts["order"]:
            raise Failed("the optimizer never stepped", "scaler.step(optimizer)", misconception="missing-step")
        if facts["order"].index("step") < facts["order"].index("backward"):
            raise Failed("the step came before backward", "backward, then step", misconception="step-before-backward")


@step.check(points=1)
def scaler_is_updated_once(seen: Seen, wanted: Seen) -> None:
    """The scaler is updated once, after its step."""
    for name in (*SCALED, "overflow"):
        facts, right = seen[name].facts, wanted[name].facts
        if facts["steps_without_update"]:
            raise Failed(
                "scaler.step was not followed by scaler.update",
                "scaler.update() after the step",
                facts["unsettled_line"],
                "scaler-without-update",
            )
        if name != "overflow" and facts["scale"] != right["scale"]:
            raise Failed(
                f"the scale of the scaler that was passed in went from {SCALE:g} to {facts['scale']:g}",
                f"{right['scale']:g}: it doubles with each update here",
            )


@step.check(points=1)
def learns_from_this_batch_alone(seen: Seen, wanted: Seen) -> None:
    """The weights are those of one step with this batch's gradients, whatever was in them before."""
    _learnt("on_the_device", seen, wanted)


def _learnt(name: str, seen: Seen, wanted: Seen) -> None:
    facts, right = seen[name].facts, wanted[name].facts
    ratio, off = _compare(facts["update"], right["update"])
    if off < 0.15:
        return
    if "step" not in facts["order"]:
        raise Failed(f"scenario `{name}`: the optimizer never stepped", "one step", misconception="missing-step")
    if any(b["stale"] for b in facts["backward"]):
        raise Failed(
            f"scenario `{name}`: backward added to the gradients that were there before",
            "gradients of this batch only",
            facts["backward_line"],
            "missing-zero-grad",
        )
    raise Failed(
        f"scenario `{name}`: the update of the weights is {ratio:.3g} times the reference's", "the same update"
    )


@step.check(points=1, needs=("runs", "learns_from_this_batch_alone"))
def unscales_before_clipping(seen: Seen, wanted: Seen) -> None:
    """With `max_norm` the gradients are unscaled before they are clipped."""
    for name, max_norm in (("clipped", HARD), ("clipped_softly", SOFTLY)):
        facts, right = seen[name].facts, wanted[name].facts
        ratio, off = _compare(facts["update"], right["update"])
        if off < 0.15:
            continue
        scaled = bool(facts["norms_before_unscale"]) or math.isclose(ratio, 1 / SCALE, rel_tol=0.2)
        ignored = _compare(facts["update"], wanted["on_the_device"].facts["update"])[1] < 0.15
        size = f"{1 / ratio:.4g} times too small" if 0 < ratio < 0.85 else f"{ratio:.3g} times what it should be"
        raise Failed(
            f"max_norm={max_norm:g} changed nothing" if ignored else f"with max_norm={max_norm:g} the update is {size}",
            "the gradients unscaled, then clipped to max_norm",
            facts["norm_line"],
            "clipped-before-unscale" if scaled and not ignored else None,
        )


@step.check(points=1)
def skips_the_step_on_overflow(seen: Seen, wanted: Seen) -> None:
    """When gradients overflow, the weights stay as they are and the scale falls."""
    for name in ("overflow", "overflow_clipped"):
        facts, right = seen[name].facts, wanted[name].facts
        if any(bool((_values(found) != 0).any()) for found in facts["update"]):
            raise Failed("infinite gradients changed the weights", "a skipped step, as scaler.step does it")
        if facts["scale"] != right["scale"]:
            raise Failed(f"after an overflow the scale is {facts['scale']:g}", f"{right['scale']:g}")


@step.check(points=1)
def works_without_scaling(seen: Seen, wanted: Seen) -> None:
    """It learns the same with a disabled scaler, and on the CPU."""
    for name in ("scaler_disabled", "on_the_cpu", "scaler_disabled_clipped", "on_the_cpu_disabled"):
        _learnt(name, seen, wanted)


@step.check(points=1)
def returns_the_unscaled_loss(seen: Seen, wanted: Seen) -> None:
    """It returns the unscaled loss as a Python float."""
    for name, observation in seen.items():
        facts, right = observation.facts, wanted[name].facts["value"]
        if not facts["is_float"]:
            misconception = "returned-tensor" if facts["is_tensor"] else None
            raise Failed(f"it returned a {facts['class']}", "a Python float", misconception=misconception)
        if math.isclose(facts["value"], right, rel_tol=0.03, abs_tol=0.01):
            continue
        scaled = any(math.isclose(facts["value"], right * scale, rel_tol=0.03) for scale in (SCALE, 2 * SCALE))
        raise Failed(
            f"scenario `{name}`: it returned {facts['value']:.4g}",
            f"{right:.4g}",
            misconception="returned-scaled-loss" if scaled else None,
        )


def _compare(found: list[Array], right: list[Array]) -> tuple[float, float]:
    """How long one update is beside the other, and how far they are apart in units of the right one.

    Not closer than half precision allows: bfloat16 is as good an answer as float16.
    """
    import numpy as np

    a, b = np.concatenate([_values(x) for x in found]), np.concatenate([_values(x) for x in right])
    length = float(np.linalg.norm(b))
    if a.shape != b.shape or not np.isfinite(a).all():
        return math.inf, math.inf
    return float(np.linalg.norm(a)) / length, float(np.linalg.norm(a - b)) / length


def _values(found: Array) -> Any:
    import numpy as np

    return np.frombuffer(found.data, found.dtype).astype("float64")
