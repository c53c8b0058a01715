"""The checks of `mixed_precision_step`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Final

from gpudojo.days.day8.loops_over_batches import (
    CLIPPING,
    NOT_REACHED,
    step_of_another_optimizer,
)
from gpudojo.days.day8.mixed_precision.declaration import step
from gpudojo.days.day8.mixed_precision.steps import (
    HARD,
    LESS,
    SCALE,
    SOFTLY,
    Stepped,
    on_the_cpu,
    on_the_device,
    on_the_second_gpu,
)
from gpudojo.days.day8.mixed_precision.updates import compare_updates
from gpudojo.grading.checks import device_mistake, expect_float, is_between_gpus, runs
from gpudojo.grading.comparing import numpy_values
from gpudojo.model.evidence import Raised, ScenarioRaised
from gpudojo.model.exercise import Failed, Seen

SCALED: Final = ("on_the_device", "clipped", "clipped_softly")
UNSCALED: Final = ("scaler_disabled", "on_the_cpu_disabled")
ON_THE_CPU: Final = ("on_the_cpu", "on_the_cpu_disabled")
OTHERS: Final = (
    "after_a_clipped_step",
    "large_gradients",
    "overflow",
    "scaler_disabled",
    "on_the_second_gpu",
)
WHERE: Final = {
    "on_the_device": "",
    "clipped": f"with max_norm={HARD:g}, ",
    "clipped_softly": f"with max_norm={SOFTLY:g}, ",
    "after_a_clipped_step": "in the step after a clipped one, ",
    "large_gradients": "with large gradients and without `max_norm`, ",
    "overflow": "with infinite gradients, ",
    "scaler_disabled": "with a disabled scaler, ",
    "on_the_second_gpu": 'with device="cuda:1", ',
    "on_the_cpu": "on the CPU, ",
    "on_the_cpu_disabled": "on the CPU with a disabled scaler, ",
}
ENOUGH: Final = 0.15  # the distance of two updates that counts as none


def _size_in_words(ratio: float) -> str:
    """How large an update is: `ratio` is its length divided by the right one's."""
    if ratio < 0.01 / SCALE:
        return "zero"
    if ratio < 0.85:
        return f"{1 / ratio:.4g} times too small"
    return f"{ratio:.4g} times what it should be"


def _case_of(seen: Seen, name: str) -> Stepped:
    """What was seen in a scenario. Raises ScenarioRaised after a student's error."""
    if name == "on_the_second_gpu":
        return seen[on_the_second_gpu][name]
    if name in ON_THE_CPU:
        probe = on_the_cpu
    else:
        probe = on_the_device
    return seen[probe][name]


def _compared_cases(
    seen: Seen, wanted: Seen, *names: str
) -> Iterator[tuple[str, Stepped, Stepped]]:
    """Yield name, what was seen and what the reference did, without scenarios that raised.

    An error costs the points of the check for its scenario. Notes in `seen` which one is asked for.
    """
    for name in names:
        with contextlib.suppress(ScenarioRaised):
            found = _case_of(seen, name)
            right = _case_of(wanted, name)
            yield name, found, right


def _clipped_without(
    name: str, seen: Seen, mistake: Callable[[Stepped], bool | int]
) -> Stepped | None:
    """The clipped step, if a mistake is made only in the step without `max_norm`; else None.

    `mistake` tells whether a step has it. Notes in `seen` that the line of a failure is one of the
    scenario `name`. Raises ScenarioRaised if the whole probe ended with an error.
    """
    clipped = None
    if name == "on_the_device":
        clipped = dict.get(seen[on_the_device], "clipped")  # `get` of Cases raises after an error
    if clipped is None:
        seen.about(None, name)
        return None
    seen.about(on_the_device.name, name)
    if mistake(clipped):
        return None
    return clipped


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error, from torch's message and from the order of calls.

    None if none is known. Raises ScenarioRaised if a whole probe ended with an error.
    """
    if raised.scenario == "on_the_second_gpu" and is_between_gpus(raised.message):
        return "device-index-dropped"
    key = device_mistake(raised)
    if key == "model-not-moved" or (key is not None and raised.scenario in ON_THE_CPU):
        # The model is where it should be: what met it from a GPU was sent there by name.
        return "hard-coded-cuda"
    if key is not None:
        return key
    if "unscale FP16 gradients" in raised.message:
        return "no-autocast"  # the model's own weights are in half precision
    if "inf checks were recorded" not in raised.message:
        return None
    if NOT_REACHED in raised.message:
        return "no-graph-behind-the-loss"
    # A disabled scaler does not raise: with it the function shows all of its calls.
    to_the_end = dict.get(seen[on_the_device], "scaler_disabled")
    if to_the_end is None:
        return None
    return _mistake_in_order(to_the_end.order)


def _mistake_in_order(order: list[str]) -> str | None:
    """The misconception behind calls of which the scaler says that something is missing.

    `order` has the names of the calls as they were made. None if none is known.
    """
    if "backward" not in order:
        return "missing-backward"
    if "scaler.step" not in order:
        if "step" in order:
            return "optimizer-step-instead-of-scaler-step"
        return "missing-step"
    at_step = order.index("scaler.step")
    if "scaler.update" in order[:at_step]:
        return "update-before-step"
    if order.index("backward") > at_step:
        return "step-before-backward"
    return None


UNDER_AUTOCAST: Final = ("runs", "runs_under_autocast")
runs(step, scenarios=("on_the_device",), diagnose=_why_it_raises)


@step.check(points=3)
def runs_under_autocast(seen: Seen, wanted: Seen) -> None:
    """Forward pass and loss run under autocast for the device's type, with a disabled scaler
    too."""
    names = (*SCALED, "overflow", "on_the_cpu", *UNSCALED)
    elsewhere = False
    for name, case, _ in _compared_cases(seen, wanted, *names):
        forward = case.line_of("forward")
        _expect_autocast(name, case, "the forward pass", case.forward, forward, elsewhere)
        _expect_autocast(name, case, "the loss", case.loss, case.line_of("loss"), elsewhere)
        elsewhere = True


def _expect_autocast(
    name: str,
    case: Stepped,
    what: str,
    passes: list[list[str]],
    line: int | None,
    elsewhere: bool,
) -> None:
    """Raises Failed unless there were passes, all under autocast for the type of the device.

    `passes` has, for each pass of `what`, the types of devices for which autocast was on; `line` is
    where a failure points to. `elsewhere` tells whether all is right in another scenario.
    """
    outside = [regions for regions in passes if case.device not in regions]
    if passes and not outside:
        return
    key = None
    if not passes:
        happened = f"{what} was never called"
    elif outside[0]:
        other = outside[0][0]
        happened = f"{what} ran under autocast for {other}"
        key = "no-autocast"
        if other == "cuda":
            key = "hard-coded-cuda"
    else:
        happened = f"{what} ran outside autocast"
        key = "no-autocast"
        if elsewhere:
            key = "autocast-not-always"
        elif what == "the loss":
            key = None
    expected = f"{what} under autocast for {case.device}"
    where = WHERE[name] or f"on {case.device}, "
    raise Failed(f"{where}{happened}", expected, line, key)


@step.check(points=0.5, needs=UNDER_AUTOCAST)
def backward_outside_autocast(seen: Seen, wanted: Seen) -> None:
    """The backward pass runs outside autocast."""
    for _, case, _ in _compared_cases(seen, wanted, *SCALED, "on_the_cpu"):
        _expect_backward(case)
        if case.backward_under_autocast:
            happened = "the backward pass ran under autocast"
            expected = "an autocast region that ends after the loss"
            raise Failed(happened, expected, case.line_of("backward"), "backward-under-autocast")


def _expect_backward(case: Stepped) -> None:
    """Raises Failed unless there was a backward pass."""
    if not case.backward:
        happened = "there was no backward pass from the loss"
        expected = "a backward pass, from the scaled loss"
        raise Failed(happened, expected, misconception="missing-backward")


@step.check(points=2)
def backward_on_the_scaled_loss(seen: Seen, wanted: Seen) -> None:
    """The backward pass starts from the scaled loss."""
    for _, case, _ in _compared_cases(seen, wanted, *SCALED):
        _expect_backward(case)
        line = case.line_of("backward")
        if len(case.backward) > 1:
            happened = f"{len(case.backward)} backward passes ran"
            raise Failed(happened, "one", line)
        factor = case.backward[0].gradient
        if math.isclose(factor, SCALE, rel_tol=1e-2):
            continue
        started = f"backward started from the loss times {factor:g}"
        happened = f"{started}, while the scale of `scaler` is {SCALE:g}"
        if math.isclose(factor, 1.0, rel_tol=1e-2):
            raise Failed(happened, f"the loss times {SCALE:g}", line, "unscaled-backward")
        expected = "the loss scaled once, by the `scaler` that is given"
        raise Failed(happened, expected, line, at=("GradScaler(",))


@step.check(points=1.5)
def scaler_steps_the_optimizer(seen: Seen, wanted: Seen) -> None:
    """The scaler steps the optimizer, once."""
    expected = "one step, made by the scaler"
    for name, case, _ in _compared_cases(seen, wanted, *SCALED):
        order = case.order
        if case.count_of("step outside the scaler"):
            raise _stepped_without_scaler(case, expected)
        if "step" not in order:
            if _clipped_without(name, seen, _never_steps):
                happened = "without `max_norm` the optimizer never stepped"
                expected = f"{expected}, in every case"
                raise Failed(happened, expected, at=("skipped step(",))
            happened = "the optimizer never stepped"
            raise Failed(happened, expected, misconception="missing-step")
        if order.index("step") < order.index("backward"):
            happened = "the step came before backward"
            raise Failed(happened, "backward, then step", misconception="step-before-backward")


def _never_steps(case: Stepped) -> bool:
    return "step" not in case.order


def _stepped_without_scaler(case: Stepped, expected: str) -> Failed:
    """The failure of a step of the optimizer that the scaler did not make.

    It is returned, not raised; `expected` is what it says should have happened.
    """
    happened = "optimizer.step() was called without the scaler"
    key: str | None = "optimizer-step-instead-of-scaler-step"
    if "scaler.step" in case.order:
        happened = f"{happened}, and scaler.step(optimizer) as well: two steps"
        key = None
    return Failed(happened, expected, case.line_of("step outside the scaler"), key)


@step.check(points=1)
def scaler_is_updated_once(seen: Seen, wanted: Seen) -> None:
    """The scaler is updated once, after its step."""
    for name, case, right in _compared_cases(seen, wanted, *SCALED, "overflow"):
        if case.count_of("step without update"):
            raise _update_left_out(name, case, seen)
        updates = case.order.count("scaler.update")
        if updates > 1:
            happened = f"scaler.update was called {updates} times"
            raise Failed(happened, "once, after the step", case.line_of("second update"))
        if name == "overflow" or case.scale == right.scale:
            continue
        if not updates:
            happened = "scaler.update was never called"
            raise Failed(happened, AFTER_THE_STEP, at=("step(", "backward("))
        went = f"went from {SCALE:g} to {case.scale:g}"
        happened = f"the scale of the scaler that was passed in {went}"
        expected = f"{right.scale:g}: it doubles with each update here"
        raise Failed(happened, expected)


AFTER_THE_STEP: Final = "one update of the scaler after its step"


def _update_left_out(name: str, case: Stepped, seen: Seen) -> Failed:
    """The failure of a scaler's step without an update, perhaps only without `max_norm`.

    It is returned, not raised. Notes in `seen` that it is about the scenario `name`. Raises
    ScenarioRaised if the whole probe ended with an error.
    """
    happened = "scaler.step was not followed by scaler.update"
    key = "scaler-without-update"
    line = case.line_of("step without update")
    clipped = _clipped_without(name, seen, _lacks_update)
    if clipped is None:
        return Failed(happened, AFTER_THE_STEP, line, key)
    happened = f"without `max_norm` {happened}"
    # Where the same step is made in both cases, only the update is left out.
    if clipped.line_of("step") == line:
        return Failed(happened, AFTER_THE_STEP, line, key, ("skipped update(",))
    return Failed(happened, AFTER_THE_STEP, line, key)


def _lacks_update(case: Stepped) -> bool:
    return case.count_of("step without update") > 0


@step.check(points=0.5)
def learns_from_this_batch_alone(seen: Seen, wanted: Seen) -> None:
    """The weights are those of one step of the optimizer with this batch's gradients, whatever
    those were before."""
    _expect_right_update("on_the_device", seen, wanted)
    name = "after_a_clipped_step"
    later = _case_of(seen, name)
    _expect_own_optimizer(name, later)
    first = _case_of(wanted, "on_the_device")
    right = _case_of(wanted, name)
    from_first = compare_updates(later.update, first.update)
    from_right = compare_updates(later.update, right.update)
    if from_first.distance < 0.05 and from_right.distance > ENOUGH:
        update = "the update is that of a first step"
        happened = f"{WHERE[name]}{update}: the optimizer's momentum from before is gone"
        at = (".state", "load_state_dict(", "step(")
        raise Failed(happened, "the optimizer's state kept", at=at)


def _expect_right_update(name: str, seen: Seen, wanted: Seen) -> None:
    """Raises Failed unless the weights have changed as the reference's in the scenario `name`.

    Raises ScenarioRaised where the student's code raised.
    """
    case = _case_of(seen, name)
    right = _case_of(wanted, name)
    difference = compare_updates(case.update, right.update)
    if difference.distance < ENOUGH:
        return
    where = WHERE[name]
    if "step" not in case.order:
        happened = f"{where}the optimizer never stepped"
        raise Failed(happened, "one step", misconception="missing-step")
    _expect_own_optimizer(name, case)
    if case.count_of("step outside the scaler"):
        raise _stepped_without_scaler(case, "one step, made by the scaler")
    _expect_clean_gradients(name, case, seen)
    happened = f"{where}the update of the weights is {_size_in_words(difference.ratio)}"
    if name == "on_the_cpu_disabled":
        unclipped = _case_of(wanted, "on_the_cpu").update
        if compare_updates(case.update, unclipped).distance < ENOUGH:
            happened = f"{where}max_norm={HARD:g} changed nothing"
            at = ("skipped clip_grad_norm_(", *CLIPPING, "if max_norm")
            raise Failed(happened, "gradients clipped without scaling, too", at=at)
    key = _mistake_of_another_check(name, case)
    is_zero = difference.ratio < 0.01 / SCALE
    expected = "the update of one step with this batch"
    if is_zero and key is None:
        raise Failed(happened, expected, at=("last zero_grad(", "zero_grad("))
    raise Failed(happened, expected, misconception=key)


def _expect_own_optimizer(name: str, case: Stepped) -> None:
    """Raises Failed if only another optimizer stepped."""
    if not case.own and "step" in case.order:
        raise step_of_another_optimizer(WHERE[name])


def _mistake_of_another_check(name: str, case: Stepped) -> str | None:
    """A mistake that another check reports, if it shows here too; else None."""
    if name not in SCALED:
        return None
    if case.backward:
        gradient = case.backward[0].gradient
        if math.isclose(gradient, 1.0, rel_tol=1e-2):
            return "unscaled-backward"
    return None


def _has_stale_gradients(case: Stepped) -> bool:
    return any(backward.stale for backward in case.backward)


def _lacks_clean_gradients(case: Stepped) -> bool:
    return not case.backward or _has_stale_gradients(case)


def _expect_clean_gradients(name: str, case: Stepped, seen: Seen) -> None:
    """Raises Failed if a backward pass added to gradients from before.

    Notes in `seen` that the failure is about the scenario `name`. Raises ScenarioRaised if the
    whole probe ended with an error.
    """
    if not _has_stale_gradients(case):
        return
    happened = "backward added to the gradients from before"
    expected = "gradients of this batch only, zeroed before backward"
    if _clipped_without(name, seen, _lacks_clean_gradients):
        happened = f"without `max_norm`, {happened}; with it they are zeroed"
        at = ("skipped zero_grad(", "zero_grad(")
        raise Failed(happened, f"{expected}, in every case", at=at)
    happened = f"{WHERE[name]}{happened}"
    line = case.line_of("backward")
    if len(case.backward) > 1 and not case.backward[0].stale:
        happened = f"{WHERE[name]}the second of {len(case.backward)} backward passes added to the"
        raise Failed(f"{happened} gradients of the first", "one backward pass", line)
    if case.zeroed_after:
        raise Failed(happened, expected, line, "stale-gradients")
    raise Failed(happened, expected, line, "missing-zero-grad", ("zero_grad(",))


@step.check(points=1, needs=(*UNDER_AUTOCAST, "learns_from_this_batch_alone"))
def unscales_before_clipping(seen: Seen, wanted: Seen) -> None:
    """With `max_norm` the gradients are unscaled before they are clipped, and a step without it is
    not clipped."""
    right = wanted[on_the_device]
    for name, max_norm in {"clipped": HARD, "clipped_softly": SOFTLY}.items():
        case = seen[on_the_device][name]
        difference = compare_updates(case.update, right[name].update)
        if difference.distance < ENOUGH:
            continue
        _expect_clean_gradients(name, case, seen)
        unclipped = compare_updates(case.update, right["on_the_device"].update)
        ignored = unclipped.distance < ENOUGH
        raise _clipped_wrongly(case, max_norm, difference.ratio, ignored)
    _expect_right_update("after_a_clipped_step", seen, wanted)
    name = "large_gradients"
    _expect_scale_of_scaler(name, seen[on_the_device][name])
    ratio = compare_updates(seen[on_the_device][name].update, right[name].update).ratio
    if ratio < 1 - ENOUGH:
        happened = f"{WHERE[name]}the update of the weights is {_size_in_words(ratio)}"
        raise Failed(happened, "gradients that are not clipped without `max_norm`", at=CLIPPING)
    _expect_right_update(name, seen, wanted)


def _expect_scale_of_scaler(name: str, case: Stepped) -> None:
    """Raises Failed if backward started from a loss scaled by more than the `scaler` that is given.

    The gradients of the scenario `name`, which are large, may then be infinite.
    """
    for backward in case.backward:
        if backward.gradient > 1.5 * SCALE:
            scaled = f"the loss was scaled by {backward.gradient:g}"
            happened = f"{WHERE[name]}{scaled}, while the scale of `scaler` is {SCALE:g}"
            raise Failed(happened, "the loss scaled once, by `scaler`", at=("GradScaler(",))


def _clipped_wrongly(case: Stepped, max_norm: float, ratio: float, ignored: bool) -> Failed:
    """The failure of a step clipped to `max_norm`. It is returned, not raised.

    `ratio` is the length of its update in units of the right one's; with `ignored` it is that of a
    step without clipping.
    """
    expected = "the gradients unscaled, then all of them together clipped to the norm max_norm"
    line = case.line_of("norm before unscale")
    if ignored:
        happened = f"max_norm={max_norm:g} changed nothing"
        at: tuple[str, ...] = (*CLIPPING, "if max_norm", "step(")
        return Failed(happened, expected, line, "values-clipped", at)
    happened = f"with max_norm={max_norm:g} the update is {_size_in_words(ratio)}"
    by_hand = ("norm(", ".grad")
    if ratio > 1:
        by_hand = ("mul_(", "*")
    is_scaled = math.isclose(ratio, 1 / SCALE, rel_tol=0.2)
    key = "values-clipped"
    if is_scaled or case.count_of("norm before unscale"):
        key = "clipped-before-unscale"
    return Failed(happened, expected, line, key, (*CLIPPING, *by_hand))


@step.check(points=1)
def skips_the_step_on_overflow(seen: Seen, wanted: Seen) -> None:
    """If gradients overflow, the weights stay unchanged and the scale falls."""
    case = seen[on_the_device]["overflow"]
    right = wanted[on_the_device]["overflow"]
    has_changed = numpy_values(case.update).any()
    if has_changed or case.update.shape != right.update.shape:
        happened = "infinite gradients changed the weights"
        expected = "a skipped step, as scaler.step does it"
        # After an overflow the scaler makes no step, and none is seen to be another one.
        usual = seen[on_the_device]["on_the_device"]
        if usual.count_of("step outside the scaler"):
            raise _stepped_without_scaler(usual, expected)
        raise Failed(happened, expected)
    if case.scale != right.scale:
        happened = f"after an overflow the scale of `scaler` is {case.scale:g}"
        key = None
        if case.count_of("step without update"):
            key = "scaler-without-update"
        expected = f"{right.scale:g}"
        raise Failed(happened, expected, None, key, ("GradScaler(",))


@step.check(points=0.5, needs=UNDER_AUTOCAST)
def works_without_scaling(seen: Seen, wanted: Seen) -> None:
    """It learns the same with a disabled scaler, and on the CPU."""
    for name in ("scaler_disabled", *ON_THE_CPU):
        _expect_right_update(name, seen, wanted)


@step.check(points=0.5)
def works_on_another_gpu(seen: Seen, wanted: Seen) -> None:
    """It learns the same on a second GPU while the first one is current."""
    _expect_right_update("on_the_second_gpu", seen, wanted)


@step.check(points=0.5)
def returns_the_unscaled_loss(seen: Seen, wanted: Seen) -> None:
    """It returns the unscaled loss as a Python float."""
    names = (*SCALED, *OTHERS, *ON_THE_CPU)
    for name, case, reference in _compared_cases(seen, wanted, *names):
        expect_float(case.kind, case.is_float)
        found = case.value
        right = reference.value
        assert found is not None
        assert right is not None
        if math.isclose(found, right, rel_tol=0.03, abs_tol=0.16 / LESS):
            continue
        happened = f"{WHERE[name]}it returned {found:.4g}"
        key = None
        for scale in (SCALE, 2 * SCALE):
            if math.isclose(found, right * scale, rel_tol=0.03):
                key = "returned-scaled-loss"
        expected = f"{right:.4g}"
        raise Failed(happened, expected, misconception=key)
