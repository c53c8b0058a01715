"""How is 07 judged? By where autocast ended, what scaler and optimizer did, the weights that came out, and the loss."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from graders.checks.common import between_gpus, diagnosis, runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.mixed_precision.checks_updates import alike, compare, size, values
from graders.day8.mixed_precision.functions import HARD, SCALE, SOFTLY, step

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
