"""Did the epoch train as it should, where it should, and tell the right mean?"""

from __future__ import annotations

import math
from typing import Any

from graders.checks.common import between_gpus, diagnosis
from graders.checks.scenarios import Case, cases, runs_in_all
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.training_loop.functions import train
from graders.evidence import Array

EPOCHS = ("from_the_cpu", "on_the_cpu", "already_there")  # most telling first


def _why(scenario: str, found: dict[str, Case]) -> tuple[str | None, int | None]:
    """What an error gives away, from torch's own words and from what had been copied before."""
    case, message = found[scenario], found[scenario]["raised"]["message"]
    if "modified by an inplace operation" in message:
        return "step-before-backward", None  # a step between forward and backward changes what backward needs
    key = diagnosis(message)
    part = {"inputs-on-cpu": "inputs", "targets-on-cpu": "targets"}.get(key or "")
    if part in case["copied"]:
        return "result-thrown-away", case["copied"][part]
    if key is not None and scenario == "on_the_cpu":
        return "hard-coded-cuda", None  # nothing here is on a GPU unless the function has put it there
    first = found["from_the_cpu"]
    if key is not None and scenario == "already_there" and first.get("devices") == ["cpu"]:
        return "model-not-moved", None  # where the model had been on the CPU, so had everything else
    if scenario == "already_there" and between_gpus(message):
        return "device-index-dropped", None  # that one, "cuda:1", was asked for
    if key is None and scenario == "nothing_to_train_on":  # with sprites it ran
        return "empty-loader-forgotten", None
    return key, None


runs_in_all(train, points=1, scenarios=(*EPOCHS, "nothing_to_train_on"), diagnose=_why)


@train.check(points=1.5)
def moves_the_model_once(seen: Seen, wanted: Seen) -> None:
    """The model is moved to the device once, before the loop."""
    found = cases(seen)
    case = found["from_the_cpu"]
    for epoch in ("from_the_cpu", "already_there"):
        if found[epoch]["moved_in_loop"]:
            raise Failed(
                "the model was moved after the first batch had been fetched",
                "one move before the loop",
                found[epoch]["moved_in_loop"][0],
                "model-moved-in-loop",
            )
    if case["devices"] == [case["wanted_device"]]:
        return
    happened, expected = f"after the epoch the parameters are on {', '.join(case['devices'])}", case["wanted_device"]
    if not all(forward["own"] for forward in case["forwards"]):
        raise Failed(f"a copy was trained, and {happened}", "the model itself moved and trained", None, "model-copied")
    ran_there = any(forward["device"] == expected for forward in case["forwards"])
    key = None if ran_there else "model-not-moved"
    back = ("cpu(", '"cpu"', "last to(")
    raise Failed(
        happened,
        f"all of them on {expected}" + (", still" if ran_there else ""),
        misconception=key,
        at=back if ran_there else (),
    )


@train.check(points=1)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Training happens on the device passed in, whatever this machine has."""
    for epoch, key in (("on_the_cpu", "hard-coded-cuda"), ("already_there", "device-index-dropped")):
        case = cases(seen)[epoch]
        device = case["wanted_device"]
        if case["devices"] != [device]:
            ended = ", ".join(case["devices"])
            there = all(name.startswith("cuda") for name in case["devices"])
            raise Failed(
                f'with device="{device}" the model ended up on {ended}',
                f"{device}, as asked",
                misconception=key if there else None,
            )


@train.check(points=0.5)
def computes_the_loss_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Inputs, outputs and targets are on the device when the model and `loss_fn` get them."""
    case = cases(seen)["from_the_cpu"]
    if case["devices"] != [case["wanted_device"]]:
        return  # a model elsewhere has been told of
    for inputs in case["forwards"]:
        if inputs["device"] != case["wanted_device"]:
            raise Failed(
                f"the model got its inputs on {inputs['device']}",
                f"inputs on {case['wanted_device']}",
                misconception="inputs-on-cpu",
            )
    for outputs, targets in case["loss_devices"]:
        if {outputs, targets} != {case["wanted_device"]}:
            raise Failed(
                f"`loss_fn` got outputs on {outputs} and targets on {targets}",
                f"both on {case['wanted_device']}",
                misconception="targets-on-cpu",
            )


@train.check(points=1)
def trains_in_training_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in training mode."""
    modes = [forward["training"] for forward in cases(seen)["from_the_cpu"]["forwards"]]
    if not modes:
        raise Failed("the model was never called", "a forward pass for every batch")
    if not all(modes):
        raise Failed(
            f"{modes.count(False)} of {len(modes)} forward passes ran in evaluation mode", "model.train() first"
        )


@train.check(points=3.5)
def learns_as_it_should(seen: Seen, wanted: Seen) -> None:
    """After the epoch the weights are those of plain SGD: zeroed, backward, stepped for every batch."""
    found, right = cases(seen), cases(wanted)
    for name in EPOCHS:
        if not _close(found[name]["after"], right[name]["after"]):
            raise _learned_wrongly(found[name])


def _learned_wrongly(case: Case) -> Failed:
    order, batches = case["order"], case["batches"]
    steps, backwards = order.count("step"), order.count("backward")
    if not steps:
        return Failed("the optimizer never stepped", f"{batches} steps", misconception="missing-step")
    if not case["steps"]:
        return Failed("another optimizer stepped than the one passed in", "`optimizer.step()`", case["step_lines"][0])
    if not backwards:
        return Failed("there was no backward pass", f"{batches} backward passes", case["step_lines"][0])
    if order.index("step") < order.index("backward"):
        expected = "backward(), then step()"
        return Failed("step() came before backward()", expected, case["step_lines"][0], "step-before-backward")
    if not all(case["steps"]):
        happened = "step() found no gradients: they were zeroed after backward()"
        line = case["step_lines"][case["steps"].index(False)]
        return Failed(happened, "zero_grad(), backward(), step()", line)
    if True in case["leftovers"]:
        which = case["leftovers"].index(True)
        lines = case["backward_lines"]
        return Failed(
            f"backward() of batch {which + 1} added to gradients that were not zeroed",
            "gradients of this batch only, in every step",
            lines[which] if which < len(lines) else None,
            "missing-zero-grad",
        )
    if steps < backwards:
        happened = f"the optimizer stepped {_times(steps)} for {backwards} backward passes"
        return Failed(happened, "a step for every batch", case["step_lines"][0], "missing-step")
    if steps != batches:
        return Failed(f"the optimizer stepped {_times(steps)} for {batches} batches", f"{batches} steps")
    return Failed("the weights after the epoch differ from the reference's", "the weights plain SGD gives")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@train.check(points=4)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """It returns the mean loss per sample, as a Python float."""
    for name in EPOCHS:
        case = cases(seen)[name]
        if not case["is_float"]:
            key = "returned-tensor" if case["is_tensor"] else None
            raise Failed(f"it returned {called(case['class'])}", "a Python float", misconception=key)
        losses = [(loss, size) for loss, size in case["losses"]]
        if not losses:
            raise Failed("`loss_fn` was never called", "`loss_fn(outputs, targets)` for every batch")
        mean = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
        if _near(case["value"], mean):
            continue
        of_means = _near(case["value"], sum(loss for loss, _ in losses) / len(losses))
        last = "" if of_means or not _near(case["value"], losses[-1][0]) else ", the loss of the last batch"
        raise Failed(
            f"it returned {case['value']:.4f}{last}",
            f"{mean:.4f}, the mean over all samples of this epoch's losses",
            misconception="mean-of-batch-means" if of_means else None,
        )


def _near(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=1e-4, abs_tol=1e-6)


@train.check(points=1)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives 0.0."""
    case = cases(seen)["nothing_to_train_on"]
    if case["value"] != 0.0:
        shown = called(case["class"]) if case["value"] is None else case["value"]
        raise Failed(f"an empty loader gave {shown}", "0.0")


@train.check(points=0.5)
def changes_no_settings(seen: Seen, wanted: Seen) -> None:
    """It seeds nothing and leaves the settings of torch as they were."""
    for name, case in cases(seen).items():
        if case["settings"]:
            raise Failed(f"it changed {case['settings'][0]} (scenario `{name}`)", "no change")


def _close(found: list[Array], right: list[Array]) -> bool:
    import numpy as np

    if [(a.dtype, a.shape) for a in found] != [(b.dtype, b.shape) for b in right]:
        return False
    # All of one dtype at once: a comparison of a few numbers takes as long as one of all of them.
    return all(
        np.allclose(_joined(found, dtype), _joined(right, dtype), rtol=1e-3, atol=1e-5)
        for dtype in {a.dtype for a in right}
    )


def _joined(arrays: list[Array], dtype: str) -> Any:
    import numpy as np

    return np.frombuffer(b"".join(a.data for a in arrays if a.dtype == dtype), dtype)
