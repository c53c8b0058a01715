"""07: mixed precision."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from functools import lru_cache
from typing import Any, Final

import msgspec

from gpudojo.days.day8.sprites import CLASSES, SIZE, sprites
from gpudojo.grading.call import Call, StudentRaised, array, copied, nn, torch
from gpudojo.grading.judge import between_gpus, diagnosis, runs
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "07_mixed_precision",
    "A training step in mixed precision",
    points=12,
    reading=("amp.html", "notes/amp_examples.html"),
)
step = exercise.function(
    "mixed_precision_step",
    "`with torch.autocast(device_type=...)` goes around the forward pass and the loss, and ends before backward.",
    "Zero the gradients; then `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`, once each.",
    "To clip, the gradients must have their own size again: `scaler.unscale_(optimizer)` first.",
    "Inputs and targets go `.to(device)`, whichever device it is; autocast wants its `torch.device(device).type`.",
    "What is returned is the loss itself, not the scaled one, as a float: `loss.item()`.",
)
SCALE: Final = 1024.0
STALE: Final = 4096.0  # what lies in the gradients before: large enough to be seen even divided by the scale
SOFTLY: Final = 50.0  # above the norm of the gradients, below that of the scaled ones
HARD: Final = 0.05
step.when("runs", hint=2)
step.when("runs_under_autocast", "backward_outside_autocast", hint=1)
step.when("inputs-on-cpu", "targets-on-cpu", "result-thrown-away", "hard-coded-cuda", hint=4)
step.when("learns_from_this_batch_alone", "works_without_scaling", hint=2, at=("zero_grad(", "step("))
step.when("scaler_steps_the_optimizer", "backward_on_the_scaled_loss", hint=2, at=("step(", "backward("))
step.when("scaler_is_updated_once", hint=2, at=("GradScaler(", "update(", "step("))
step.when("skips_the_step_on_overflow", hint=2, at=("nan_to_num_(", "nan_to_num(", "step("))
step.when("missing-zero-grad", "missing-step", "step-before-backward", "scaler-without-update", hint=2)
CLIPPING = ("clip_grad_norm_(", "clip_grad_value_(", "unscale_(", "if max_norm", "norm(")
step.when("unscales_before_clipping", "clipped-before-unscale", hint=3, at=CLIPPING)
step.when("returns_the_unscaled_loss", "returned-tensor", "returned-scaled-loss", hint=5, at=("return", "last return"))


TYPES: Final = ("cuda", "cpu", "mps")
HIDDEN: Final = 8
SPRITES: Final = 8


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


def watched(seed: int, device: Any, log: Log, overflow: bool) -> Any:
    """A classifier that writes down how it is run; with `overflow` its gradients are infinite, whatever the dtype."""
    return _classes()[0](log, overflow, [nn.Parameter(values.to(device, copy=True)) for values in weights(seed)])


def loss_fn(model: Any, log: Log) -> Any:
    """A loss that notes the gradient it is given: the scale, if the loss was scaled; and what it is added to."""
    return _classes()[1](model, log)


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any]:
    """Classes made once, and only where torch is needed."""

    class SpriteClassifier(nn.Module):
        def __init__(self, log: Log, overflow: bool, weights: list[Any]) -> None:
            super().__init__()
            self.log, self.overflow = log, overflow
            self.first, self.shift, self.last = weights

        def forward(self, pictures: Any) -> Any:
            self.log.forward.append(self.log.mode())
            hidden = nn.functional.linear(pictures.flatten(1), self.first, self.shift).relu()
            outputs = nn.functional.linear(hidden, self.last)
            if self.overflow and outputs.requires_grad:
                outputs.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
            return outputs

    class SpriteLoss(nn.CrossEntropyLoss):
        def __init__(self, model: Any, log: Log) -> None:
            super().__init__()
            self.watch = (model, log)  # in a tuple, so that the model does not become a part of the loss

        def forward(self, outputs: Any, targets: Any) -> Any:
            self.watch[1].loss.append(self.watch[1].mode())
            loss = super().forward(outputs, targets)
            if loss.requires_grad:
                loss.register_hook(self.arrived)
            return loss

        def arrived(self, gradient: Any) -> None:
            model, log = self.watch
            found = [p.grad.detach().abs().max().item() for p in model.parameters() if p.grad is not None]
            log.backward.append({**log.mode(), "gradient": gradient.item(), "stale": max(found, default=0.0)})

    return SpriteClassifier, SpriteLoss


@lru_cache(maxsize=2)
def weights(seed: int) -> tuple[Any, ...]:
    """The parameters before the step, made by hand: torch's own way would need the program's random numbers."""
    dice = torch.Generator().manual_seed(seed)
    sizes = (((HIDDEN, 3 * SIZE * SIZE), 0.3), ((HIDDEN,), 0.5), ((CLASSES, HIDDEN), 2.0))
    return tuple((torch.rand(shape, generator=dice) * 2 - 1) * size for shape, size in sizes)


@lru_cache(maxsize=2)
def _sprites(seed: int) -> tuple[Any, Any]:
    """Sprites and the classes the model finds least likely, so that there is always much to learn."""
    pictures, _ = sprites(SPRITES, seed + 1)
    with torch.no_grad():
        return pictures, watched(seed, "cpu", Log("cpu"), overflow=False)(pictures).argmin(dim=1)


def batch(seed: int) -> tuple[Any, Any]:
    pictures, classes = _sprites(seed)
    return pictures.clone(), classes.clone()  # a solution may write into them


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


def size(ratio: float) -> str:
    """How large an update is beside the right one."""
    if ratio < 0.01 / SCALE:
        return "nothing at all"
    return f"{1 / ratio:.4g} times too small" if ratio < 0.85 else f"{ratio:.4g} times what it should be"


def compare(found: list[Array], right: list[Array]) -> tuple[float, float]:
    """How long one update is beside the other, and how far they are apart in units of the right one.

    Not closer than half precision allows: bfloat16 is as good an answer as float16.
    """
    import numpy as np

    if not alike(found, right):
        return math.inf, math.inf
    a, b = np.concatenate([values(x) for x in found]), np.concatenate([values(x) for x in right])
    length = float(np.linalg.norm(b))
    if not np.isfinite(a).all():
        return math.inf, math.inf
    return float(np.linalg.norm(a)) / length, float(np.linalg.norm(a - b)) / length


def alike(found: list[Array], right: list[Array]) -> bool:
    return [(a.shape, a.dtype) for a in found] == [(b.shape, b.dtype) for b in right]


def values(found: Array) -> Any:
    import numpy as np

    return np.frombuffer(found.data, found.dtype).reshape(found.shape).astype("float64").reshape(-1)


SCALED: Final = ("on_the_device", "clipped", "clipped_softly")


ON_THE_CPU: Final = ("on_the_cpu", "on_the_cpu_disabled")
SECOND: Final = "on_the_second_gpu"
EVERYWHERE: Final = (*SCALED, "overflow", "scaler_disabled", *ON_THE_CPU, SECOND)


def _facts(seen: Seen, scenario: str) -> Any:
    probe = "on_the_cpu" if scenario in ON_THE_CPU else SECOND if scenario == SECOND else "on_the_device"
    return seen[probe].facts[scenario]


def _diagnose(scenario: str, message: str) -> str | None:
    found = diagnosis(message)
    if scenario == SECOND and between_gpus(message):
        return "device-index-dropped"
    if found is not None:
        # The model is where it should be in every scenario: what met it from a GPU was sent there by name.
        return "hard-coded-cuda" if found == "model-not-moved" or scenario in ON_THE_CPU else found
    calls = re.search(r"\(its calls: (.*?)\)", message)
    order = calls[1].split(", ") if calls else []
    if not order:
        return None
    if "scaler.step" in order:
        late = "backward" in order and order.index("backward") > order.index("scaler.step")
        return "step-before-backward" if late else None
    return "optimizer-step-instead-of-scaler-step" if "step" in order else "missing-step"


runs(step, points=1, diagnose=_diagnose)


@step.check(points=2)
def runs_under_autocast(seen: Seen, wanted: Seen) -> None:
    """Forward pass and loss run under autocast for the device's type."""
    for name in (*SCALED, "overflow", "on_the_cpu"):  # not where the scaler is off: a recipe has one switch for both
        facts = _facts(seen, name)
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
                    misconception = "hard-coded-cuda" if other == "cuda" else "no-autocast"
                elif what == "the loss":
                    misconception = None
                expected = f"{what} under torch.autocast for {facts['kind']}"
                raise Failed(f"scenario `{name}`: {happened}", expected, facts["forward_line"], misconception)


@step.check(points=1)
def backward_outside_autocast(seen: Seen, wanted: Seen) -> None:
    """The backward pass runs outside autocast."""
    for name in (*SCALED, "on_the_cpu"):
        facts = _facts(seen, name)
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
        facts = _facts(seen, name)
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
        facts = _facts(seen, name)
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
        facts, right = _facts(seen, name), _facts(wanted, name)
        if facts["steps_without_update"]:
            raise Failed(
                "scaler.step was not followed by scaler.update",
                "scaler.update() after the step",
                facts["unsettled_line"],
                "scaler-without-update",
            )
        updates = facts["order"].count("scaler.update")
        if updates > 1:
            raise Failed(f"scaler.update was called {updates} times", "once, after the step", facts["update_line"])
        if not updates and name != "overflow" and facts["scale"] != right["scale"]:
            raise Failed("scaler.update was never called", "scaler.update() after the step", at=("step(", "backward("))
        if name != "overflow" and facts["scale"] != right["scale"]:
            raise Failed(
                f"the scale of the scaler that was passed in went from {SCALE:g} to {facts['scale']:g}",
                f"{right['scale']:g}: it doubles with each update here",
            )


@step.check(points=1)
def learns_from_this_batch_alone(seen: Seen, wanted: Seen) -> None:
    """The weights are those of one step with this batch's gradients, whatever was in them before."""
    _learnt("on_the_device", seen, wanted)
    _learnt(SECOND, seen, wanted)


def _learnt(name: str, seen: Seen, wanted: Seen) -> None:
    facts, right = _facts(seen, name), _facts(wanted, name)
    ratio, off = compare(facts["update"], right["update"])
    if off < 0.15:
        return
    if "step" not in facts["order"]:
        raise Failed(f"scenario `{name}`: the optimizer never stepped", "one step", misconception="missing-step")
    _nothing_added(name, facts)
    happened = f"scenario `{name}`: the update of the weights is {size(ratio)}"
    at = ("zero_grad(",) if ratio < 0.01 / SCALE else ("clip_grad_norm_(", "clip_grad_value_(", "step(")
    key = _other_way(name, facts)
    raise Failed(happened, "the update of one step with this batch", None, key, () if key else at)


def _other_way(name: str, facts: dict[str, Any]) -> str | None:
    """The mistake that another check tells of, where its trace is seen here too."""
    if name not in SCALED:
        return None
    if facts["steps_outside"]:
        return "optimizer-step-instead-of-scaler-step"
    unscaled = facts["backward"] and math.isclose(facts["backward"][0]["gradient"], 1.0, rel_tol=1e-2)
    return "unscaled-backward" if unscaled else None


def _nothing_added(name: str, facts: dict[str, Any]) -> None:
    if any(b["stale"] for b in facts["backward"]):
        raise Failed(
            f"scenario `{name}`: backward added to the gradients that were there before",
            "gradients of this batch only",
            facts["backward_line"],
            "missing-zero-grad",
        )


@step.check(points=1, needs=("runs", "learns_from_this_batch_alone"))
def unscales_before_clipping(seen: Seen, wanted: Seen) -> None:
    """With `max_norm` the gradients are unscaled before they are clipped."""
    for name, max_norm in (("clipped", HARD), ("clipped_softly", SOFTLY)):
        facts, right = _facts(seen, name), _facts(wanted, name)
        ratio, off = compare(facts["update"], right["update"])
        if off < 0.15:
            continue
        _nothing_added(name, facts)
        scaled = bool(facts["norms_before_unscale"]) or math.isclose(ratio, 1 / SCALE, rel_tol=0.2)
        ignored = compare(facts["update"], _facts(wanted, "on_the_device")["update"])[1] < 0.15
        told = f"max_norm={max_norm:g} changed nothing"
        if not ignored:
            told = f"with max_norm={max_norm:g} the update is {size(ratio)}"
        raise Failed(
            told,
            "the gradients unscaled, then clipped to max_norm",
            facts["norm_line"],
            "clipped-before-unscale" if scaled and not ignored else None,
        )


@step.check(points=1)
def skips_the_step_on_overflow(seen: Seen, wanted: Seen) -> None:
    """When gradients overflow, the weights stay as they are and the scale falls."""
    facts, right = _facts(seen, "overflow"), _facts(wanted, "overflow")
    moved = any(bool((values(found) != 0).any()) for found in facts["update"])
    if moved or not alike(facts["update"], right["update"]):
        key = "optimizer-step-instead-of-scaler-step" if facts["steps_outside"] else None
        raise Failed("infinite gradients changed the weights", "a skipped step, as scaler.step does it", None, key)
    if facts["scale"] != right["scale"]:
        key = "scaler-without-update" if facts["steps_without_update"] else None
        raise Failed(f"after an overflow the scale is {facts['scale']:g}", f"{right['scale']:g}", None, key)


@step.check(points=1)
def works_without_scaling(seen: Seen, wanted: Seen) -> None:
    """It learns the same with a disabled scaler, and on the CPU."""
    for name in ("scaler_disabled", *ON_THE_CPU):
        _learnt(name, seen, wanted)


@step.check(points=1)
def returns_the_unscaled_loss(seen: Seen, wanted: Seen) -> None:
    """It returns the unscaled loss as a Python float."""
    for name in EVERYWHERE:
        facts, right = _facts(seen, name), _facts(wanted, name)["value"]
        if not facts["is_float"]:
            misconception = "returned-tensor" if facts["is_tensor"] else None
            raise Failed(f"it returned {called(facts['class'])}", "a Python float", misconception=misconception)
        if math.isclose(facts["value"], right, rel_tol=0.03, abs_tol=0.01):
            continue
        scaled = any(math.isclose(facts["value"], right * scale, rel_tol=0.03) for scale in (SCALE, 2 * SCALE))
        raise Failed(
            f"scenario `{name}`: it returned {facts['value']:.4g}",
            f"{right:.4g}",
            misconception="returned-scaled-loss" if scaled else None,
        )
