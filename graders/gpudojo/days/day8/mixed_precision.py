"""07: mixed precision."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.sprites import CLASSES, SIZE, linear_layer, make_sprites
from gpudojo.days.day8.watched_objects import WatchLog
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    lines_of_copies,
    nn,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import device_mistake, expect_float, is_between_gpus, runs
from gpudojo.grading.comparing import numpy_values
from gpudojo.model.evidence import Array, Case, Cases, Raised, ScenarioRaised
from gpudojo.model.exercise import Exercise, Failed, Seen

exercise = Exercise(
    "07_mixed_precision",
    "A training step in mixed precision",
    points=12,
    reading=("amp.html", "notes/amp_examples.html"),
)
step = exercise.function("mixed_precision_step")

SCALE: Final = 1024.0
STALE: Final = 4096.0  # in the gradients before: large enough to be seen after unscaling, too
# Divides the loss: gradients scaled twice are far from the largest float16 under every seed.
LESS: Final = 512.0
SOFTLY: Final = 0.5  # above the norm of the gradients, below that of the scaled ones
HARD: Final = 0.002
NORMS: Final = (0.005, 0.03)  # of the gradients of a step, between HARD and SOFTLY
HIDDEN: Final = 8
SPRITES: Final = 8

# ---- scenarios ---------------------------------------------------------------------------------


class ScaledBackward(Case, frozen=True):
    """One backward pass from the loss."""

    regions: list[str]  # the device types for which autocast was on
    gradient: float  # that it started from: the scale, if the loss was scaled
    stale: float  # the largest gradient from before


class PrecisionLog(WatchLog):
    """Records for which device types autocast was on.

    It does so in forward passes, losses and backward passes. With `overflow` the model's gradients
    are infinite, whatever the dtype.
    """

    def __init__(self, call: Call, overflow: bool = False) -> None:
        super().__init__(call)
        self.overflow = overflow
        self.forward_regions: list[list[str]] = []
        self.loss_regions: list[list[str]] = []
        self.backwards: list[ScaledBackward] = []

    def forward_ran(self, model: Any, inputs: Any, outputs: Any) -> None:
        super().forward_ran(model, inputs, outputs)
        # What autocast makes of the outputs counts, and not only that it says it is on.
        not_used = outputs.device.type if outputs.element_size() == 4 else None
        regions = [kind for kind in autocast_regions() if kind != not_used]
        self.forward_regions.append(regions)
        if self.overflow and outputs.requires_grad:
            outputs.register_hook(lambda gradient: torch.full_like(gradient, math.inf))

    def loss_computed(self, outputs: Any, targets: Any, value: Any) -> Any:
        self.loss_regions.append(autocast_regions())
        return super().loss_computed(outputs, targets, value) / LESS

    def backward_begins(self, gradient: Any) -> None:
        largest = 0.0
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                largest = max(largest, parameter.grad.detach().abs().max().item())
        self.backwards.append(ScaledBackward(autocast_regions(), gradient.item(), largest))


def autocast_regions() -> list[str]:
    """The device types for which autocast is on."""
    return [kind for kind in ("cuda", "cpu", "mps") if torch.is_autocast_enabled(kind)]


@step.draws
def _drawn(seed: int) -> tuple[tuple[Any, ...], Any, Any]:
    """Parameters, sprites and classes.

    The classes are those that the model finds least likely: there is always much to learn. Drawn
    until the norm of the gradients lies between the two NORMS, and without torch's own
    initialisation, which uses the caller's generator.
    """
    sizes = (((HIDDEN, 3 * SIZE * SIZE), 0.3), ((HIDDEN,), 0.5), ((CLASSES, HIDDEN), 2.0))
    while True:
        generator = torch.Generator().manual_seed(seed)
        first, bias, last = (
            (torch.rand(shape, generator=generator) * 2 - 1) * size for shape, size in sizes
        )
        pictures, _ = make_sprites(SPRITES, seed + 1)
        flat = pictures.flatten(1)
        hidden = (flat @ first.T + bias).relu()
        outputs = hidden @ last.T
        classes = outputs.argmin(dim=1)
        # The gradients, computed without autograd.
        wanted = nn.functional.one_hot(classes, CLASSES)
        error = (outputs.softmax(dim=1) - wanted) / (SPRITES * LESS)
        inner = (error @ last) * (hidden > 0)
        gradients = (inner.T @ flat, inner.sum(dim=0), error.T @ hidden)
        norm = math.hypot(*(gradient.norm().item() for gradient in gradients))
        if NORMS[0] < norm < NORMS[1]:
            return (first, bias, last), pictures, classes
        seed += 100_003


def weights_before(seed: int) -> tuple[Any, ...]:
    """The parameters before the step."""
    return _drawn(seed)[0]


def make_batch(seed: int) -> tuple[Any, Any]:
    """Copies of the sprites and classes.

    A solution may write into them.
    """
    _, pictures, classes = _drawn(seed)
    return pictures.clone(), classes.clone()


def layers(seed: int) -> list[Any]:
    """The layers of the classifier, on the CPU."""
    first, bias, last = (values.clone() for values in weights_before(seed))
    return [nn.Flatten(), linear_layer(first, bias), nn.ReLU(), linear_layer(last)]


class Stepped(Case, frozen=True):
    """One training step."""

    kind: str
    is_float: bool
    value: float | None
    device: str  # its type
    scale: float
    update: list[Array]  # the change of each parameter
    own: bool  # whether the optimizer passed in stepped
    forward: list[list[str]]  # for each pass, the device types with autocast
    loss: list[list[str]]
    backward: list[ScaledBackward]
    order: list[str]
    backward_under_autocast: bool
    steps_outside: int  # steps without the scaler
    steps_without_update: int
    norms_before_unscale: int
    zeroed_after: bool  # whether no gradient was left
    forward_line: int | None
    loss_line: int | None
    backward_line: int | None
    outside_line: int | None
    unsettled_line: int | None  # of a step of the scaler without an update
    step_line: int | None
    update_line: int | None
    norm_line: int | None


@step.probe
def on_the_device(call: Call) -> Cases[Stepped]:
    """Steps on the device, with and without clipping, overflow and scaling.

    In "clipped_softly" the norm is below `max_norm`: only clipping scaled gradients changes
    anything. In "overflow" there is a `max_norm` too: without one nothing happens between backward
    and the scaler's step.
    """
    device = call.device
    return try_scenarios(
        {
            "on_the_device": lambda: _step(call, device),
            "clipped": lambda: _step(call, str(device), max_norm=HARD),
            "clipped_softly": lambda: _step(call, device, max_norm=SOFTLY),
            "after_a_clipped_step": lambda: _step(call, device, momentum=0.0006, earlier=HARD),
            "overflow": lambda: _step(call, device, overflow=True, max_norm=HARD),
            "scaler_disabled": lambda: _step(call, device, enabled=False),
        }
    )


@step.probe(machine="two gpus", edge=True)
def on_the_second_gpu(call: Call) -> Cases[Stepped]:
    """A step on the second GPU.

    Autocast needs the type of the device, and a solution may send the batch to that type.
    """
    return try_scenarios({"on_the_second_gpu": lambda: _step(call, "cuda:1")})


@step.probe(edge=True)
def on_the_cpu(call: Call) -> Cases[Stepped]:
    """Steps on the CPU, with a scaler and with a disabled one."""
    cpu = torch.device("cpu")
    return try_scenarios(
        {
            "on_the_cpu": lambda: _step(call, "cpu"),
            "on_the_cpu_disabled": lambda: _step(call, cpu, enabled=False, max_norm=HARD),
        }
    )


def _step(
    call: Call,
    device: Any,
    enabled: bool = True,
    overflow: bool = False,
    max_norm: float | None = None,
    momentum: float = 0.0,
    earlier: float | None = None,
) -> Stepped:
    """Call the student's function for one step and describe it. Raises StudentRaised.

    `enabled` is the scaler's; `momentum` is from long before, about as large as the gradients;
    `earlier` is the `max_norm` of a step before.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        _provoke_warnings()
    log = PrecisionLog(call, overflow)
    model = log.make_model(*layers(call.seed)).to(device)
    optimizer = _make_optimizer(model, momentum)
    # It grows after every good step, so that one update is seen as one doubling.
    scaler = torch.amp.GradScaler(kind, init_scale=SCALE, growth_interval=1, enabled=enabled)
    # As after a first step: a new one would raise where it is forgotten.
    scaler.scale(torch.ones((), device=device))
    options = {} if max_norm is None else {"max_norm": max_norm}
    loss_fn = log.make_loss()
    try:
        if earlier is not None:
            batch = make_batch(call.seed)
            call(model, batch, loss_fn, optimizer, scaler, device, max_norm=earlier)
            _restore_weights(model, call.seed)  # from there on, there would be little to learn
        batch = make_batch(call.seed)
        value = call(model, batch, loss_fn, optimizer, scaler, device, **options)
    except StudentRaised as error:
        raise _explain_error(error, call, device, model) from None
    ledger = call.ledger
    outside = ledger.steps_outside_scaler()
    norms = ledger.norms_before_unscale()
    unsettled = ledger.scaler_steps_without_update()
    under_autocast = any(kind in backward.regions for backward in log.backwards)
    return Stepped(
        kind=type(value).__name__,
        is_float=isinstance(value, float),
        value=float(value) if isinstance(value, (int, float)) else None,
        device=kind,
        scale=scaler.get_scale(),
        update=_update_of(model, call.seed),
        own=_has_stepped(optimizer, momentum),
        forward=log.forward_regions,
        loss=log.loss_regions,
        backward=log.backwards,
        order=list(ledger.training_order()),
        backward_under_autocast=under_autocast or bool(ledger.backwards_under_autocast()),
        steps_outside=len(outside),
        steps_without_update=len(unsettled),
        norms_before_unscale=len(norms),
        zeroed_after=not _has_gradients(model),
        forward_line=call.first_line(ledger.forwards()),
        loss_line=call.first_line(ledger.forwards("CrossEntropyLoss")),
        backward_line=call.first_line(ledger.backward_passes()),
        outside_line=call.first_line(outside),
        unsettled_line=call.first_line(unsettled),
        step_line=call.first_line(ledger.scaler_calls("step")),
        update_line=call.first_line(ledger.scaler_calls("update")[1:]),
        norm_line=call.first_line(norms),
    )


def _make_optimizer(model: Any, momentum: float) -> Any:
    """An optimizer with this momentum from before.

    Gives every parameter a gradient that must not leak into the step.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * LESS, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, STALE)
        if momentum:
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, momentum)
    return optimizer


def _restore_weights(model: Any, seed: int) -> None:
    """Give the model's parameters their values from before the step."""
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), weights_before(seed), strict=True):
            parameter.copy_(before)


def _update_of(model: Any, seed: int) -> list[Array]:
    """The change of each parameter."""
    pairs = zip(model.parameters(), weights_before(seed), strict=True)
    return [array_of(parameter.detach().cpu() - before) for parameter, before in pairs]


def _has_stepped(optimizer: Any, momentum: float) -> bool:
    """True if the optimizer has a momentum that it did not have before."""
    for state in optimizer.state.values():
        if not momentum or bool((state["momentum_buffer"].cpu() != momentum).any()):
            return True
    return False


def _has_gradients(model: Any) -> bool:
    """True if any parameter has a gradient other than zero."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return any(bool(gradient.cpu().any()) for gradient in gradients)


@lru_cache(maxsize=1)
def _provoke_warnings() -> None:
    """Use half precision once, without warnings.

    A CPU without it warns once, with a page of C++ frames, which students need not see.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.bfloat16, torch.float16):
            square = torch.ones(8, 8, dtype=dtype)
            nn.functional.linear(square, square, torch.ones(8, dtype=dtype))


def _explain_error(error: StudentRaised, call: Call, device: Any, model: Any) -> StudentRaised:
    """The error with the calls made so far in its message, and what had been copied.

    A scaler's errors have more than one cause. For an error about missing inf checks, the student's
    function is called once more.
    """
    inputs, targets = make_batch(call.seed)
    copied = lines_of_copies(call, inputs=inputs, targets=targets)
    line = error.evidence.line
    title = "done so far"
    note = ""
    order = call.ledger.training_order()
    until = order.index("scaler.step") if "scaler.step" in order else 0
    before_step = order[:until]
    zeroed = all(parameter.grad is None for parameter in model.parameters())
    if zeroed and "backward" in before_step and "step" not in before_step:
        order = order[: until + 1]  # not those that scaler.step made itself
        note = "; no parameter had a gradient any more"
    elif "inf checks were recorded" in error.evidence.message:
        # A disabled scaler does not raise: with it the function shows all of its calls, and which
        # one was wrong.
        title = "its calls"
        order = _order_to_the_end(call, device)
        wrong: tuple[Any, ...] = call.ledger.steps_outside_scaler()
        if "backward" not in order:
            wrong = call.ledger.scaler_calls("scale")
        line = call.first_line(wrong) or line
    # The loss is a module too: its forward after the model's says nothing new.
    calls = ", ".join(name for name, _ in itertools.groupby(order)) or "nothing"
    first, newline, rest = error.evidence.message.partition("\n")
    message = f"{first} ({title}: {calls}{note}){newline}{rest}"
    return error.with_facts(message=message, copied=copied, line=line)


def _order_to_the_end(call: Call, device: Any) -> tuple[str, ...]:
    """The calls that the student's function makes with a disabled scaler.

    It is called once more for this. Where it raises again, they are those up to there.
    """
    log = PrecisionLog(call)
    model = log.make_model(*layers(call.seed)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(torch.device(device).type, enabled=False)
    with contextlib.suppress(StudentRaised):
        call(model, make_batch(call.seed), log.make_loss(), optimizer, scaler, device)
    return call.ledger.training_order()


# ---- claims ------------------------------------------------------------------------------------

SCALED: Final = ("on_the_device", "clipped", "clipped_softly")
UNSCALED: Final = ("scaler_disabled", "on_the_cpu_disabled")
ON_THE_CPU: Final = ("on_the_cpu", "on_the_cpu_disabled")
OTHERS: Final = ("after_a_clipped_step", "overflow", "scaler_disabled", "on_the_second_gpu")
WHERE: Final = {
    "on_the_device": "",
    "clipped": f"with max_norm={HARD:g}, ",
    "clipped_softly": f"with max_norm={SOFTLY:g}, ",
    "after_a_clipped_step": "in the step after a clipped one, ",
    "overflow": "with infinite gradients, ",
    "scaler_disabled": "with a disabled scaler, ",
    "on_the_second_gpu": 'with device="cuda:1", ',
    "on_the_cpu": "on the CPU, ",
    "on_the_cpu_disabled": "on the CPU with a disabled scaler, ",
}
CLIPPING = ("clip_grad_norm_(", "clip_grad_value_(")
WITHOUT = ("if is_enabled", "if get_scale")  # what is done without a scaler only
ENOUGH: Final = 0.15  # the distance of two updates that counts as none


class Difference(NamedTuple):
    """An update beside the right one, in units of the right one's length."""

    ratio: float  # of the lengths
    distance: float


UNLIKE: Final = Difference(math.inf, math.inf)


def compare_updates(found: list[Array], right: list[Array]) -> Difference:
    """How an update differs from the right one.

    Callers allow for half precision: bfloat16 is as good an answer as float16.
    """
    import numpy as np

    if not _have_same_shapes(found, right):
        return UNLIKE
    joined, length, finite = _joined_reference(tuple(right))
    if found == right:  # as most are
        return Difference(length / length, 0.0 / length) if finite else UNLIKE
    values = np.concatenate([_flat_values(each) for each in found])
    if not np.isfinite(values).all():
        return UNLIKE
    distance = float(np.linalg.norm(values - joined))
    return Difference(float(np.linalg.norm(values)) / length, distance / length)


@lru_cache(64)
def _joined_reference(right: tuple[Array, ...]) -> tuple[Any, float, bool]:
    """The values of a reference's arrays in one, its length, and whether all are finite."""
    import numpy as np

    joined = np.concatenate([_flat_values(each) for each in right])
    return joined, float(np.linalg.norm(joined)), bool(np.isfinite(joined).all())


def _have_same_shapes(found: list[Array], right: list[Array]) -> bool:
    return [(a.shape, a.dtype) for a in found] == [(b.shape, b.dtype) for b in right]


def _flat_values(found: Array) -> Any:
    return numpy_values(found).astype("float64").reshape(-1)


def _size_in_words(ratio: float) -> str:
    """How large an update is beside the right one."""
    if ratio < 0.01 / SCALE:
        return "zero"
    if ratio < 0.85:
        return f"{1 / ratio:.4g} times too small"
    return f"{ratio:.4g} times what it should be"


def _case(seen: Seen, name: str) -> Stepped:
    """What was seen in a scenario. Raises ScenarioRaised after a student's error."""
    if name == "on_the_second_gpu":
        return seen[on_the_second_gpu][name]
    probe = on_the_cpu if name in ON_THE_CPU else on_the_device
    return seen[probe][name]


def _cases(seen: Seen, wanted: Seen, *names: str) -> Iterator[tuple[str, Stepped, Stepped]]:
    """Name, what was seen and what the reference did, without scenarios that raised.

    An error costs the points of the check for its scenario.
    """
    for name in names:
        with contextlib.suppress(ScenarioRaised):
            yield name, _case(seen, name), _case(wanted, name)


def _clipped_case(name: str, seen: Seen) -> Stepped | None:
    """The clipped step, beside the step without `max_norm`; None for other scenarios.

    The line that a failure shows is still one of the scenario `name`.
    """
    if name != "on_the_device":
        seen.about(None, name)
        return None
    clipped = dict.get(seen[on_the_device], "clipped")  # `get` of Cases raises after an error
    seen.about(on_the_device.name, name)
    return clipped


def _why_it_raised(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error, from torch's message and from the calls named in it."""
    if raised.scenario == "on_the_second_gpu" and is_between_gpus(raised.message):
        return "device-index-dropped"
    key = device_mistake(raised)
    if key == "model-not-moved" or (key is not None and raised.scenario in ON_THE_CPU):
        # The model is where it should be: what met it from a GPU was sent there by name.
        return "hard-coded-cuda"
    if key is not None:
        return key
    calls = re.search(r"\(its calls: (.*?)\)", raised.message)
    if calls is None:
        return None
    order = calls[1].split(", ")
    if "backward" not in order:
        return "missing-backward"
    if "scaler.step" not in order:
        return "optimizer-step-instead-of-scaler-step" if "step" in order else "missing-step"
    at_step = order.index("scaler.step")
    if "scaler.update" in order[:at_step]:
        return "update-before-step"
    return "step-before-backward" if order.index("backward") > at_step else None


runs(step, scenarios=("on_the_device",), diagnose=_why_it_raised)


@step.check(points=2)
def runs_under_autocast(seen: Seen, wanted: Seen) -> None:
    """Forward pass and loss run under autocast for the device's type, with a disabled scaler too."""
    names = (*SCALED, "overflow", "on_the_cpu", *UNSCALED)
    for name, case, _ in _cases(seen, wanted, *names):
        _expect_autocast(name, case, "the forward pass", case.forward, case.forward_line)
        _expect_autocast(name, case, "the loss", case.loss, case.loss_line)


def _expect_autocast(
    name: str, case: Stepped, what: str, passes: list[list[str]], line: int | None
) -> None:
    """Raises Failed unless there were passes, all under autocast for the type of the device."""
    outside = [regions for regions in passes if case.device not in regions]
    if passes and not outside:
        return
    key = None
    if not passes:
        happened = f"{what} was never called"
    elif outside[0]:
        other = outside[0][0]
        happened = f"on the device {case.device}, {what} ran under autocast for {other}"
        key = "hard-coded-cuda" if other == "cuda" else "no-autocast"
    else:
        happened = f"{what} ran outside autocast"
        key = None if what == "the loss" else "no-autocast"
    expected = f"{what} under torch.autocast for {case.device}"
    raise Failed(f"{WHERE[name]}{happened}", expected, line, key)


@step.check(points=1)
def backward_outside_autocast(seen: Seen, wanted: Seen) -> None:
    """The backward pass runs outside autocast."""
    for _, case, _ in _cases(seen, wanted, *SCALED, "on_the_cpu"):
        _expect_backward(case)
        if case.backward_under_autocast:
            happened = "the backward pass ran under autocast"
            expected = "an autocast region that ends after the loss"
            raise Failed(happened, expected, case.backward_line, "backward-under-autocast")


def _expect_backward(case: Stepped) -> None:
    """Raises Failed unless there was a backward pass."""
    if not case.backward:
        happened = "there was no backward pass from the loss"
        expected = "a backward pass, from the scaled loss"
        raise Failed(happened, expected, misconception="missing-backward")


@step.check(points=1)
def backward_on_the_scaled_loss(seen: Seen, wanted: Seen) -> None:
    """The backward pass starts from the scaled loss."""
    for _, case, _ in _cases(seen, wanted, *SCALED):
        _expect_backward(case)
        line = case.backward_line
        if len(case.backward) > 1:
            raise Failed(f"{len(case.backward)} backward passes ran", "one", line)
        factor = case.backward[0].gradient
        if math.isclose(factor, SCALE, rel_tol=1e-2):
            continue
        started = f"backward started from the loss times {factor:g}"
        happened = f"{started}, while the scale of `scaler` is {SCALE:g}"
        if math.isclose(factor, 1.0, rel_tol=1e-2):
            raise Failed(happened, "scaler.scale(loss).backward()", line, "unscaled-backward")
        expected = "the loss scaled once, by the `scaler` that is given"
        raise Failed(happened, expected, line, at=("GradScaler(",))


@step.check(points=1)
def scaler_steps_the_optimizer(seen: Seen, wanted: Seen) -> None:
    """The scaler steps the optimizer, once."""
    for name, case, _ in _cases(seen, wanted, *SCALED):
        if case.steps_outside:
            raise _stepped_without_scaler(case)
        if "step" not in case.order:
            clipped = _clipped_case(name, seen)
            if clipped and "step" in clipped.order:
                happened = "without `max_norm` the optimizer never stepped"
                expected = "scaler.step(optimizer) in every case"
                raise Failed(happened, expected, at=("skipped step(",))
            happened = "the optimizer never stepped"
            raise Failed(happened, "scaler.step(optimizer)", misconception="missing-step")
        if case.order.index("step") < case.order.index("backward"):
            happened = "the step came before backward"
            raise Failed(happened, "backward, then step", misconception="step-before-backward")


def _stepped_without_scaler(case: Stepped) -> Failed:
    """The failure of a step of the optimizer that the scaler did not make."""
    happened = "optimizer.step() was called without the scaler"
    expected = "scaler.step(optimizer), and no other step"
    if "scaler.step" in case.order:
        happened = f"{happened}, and scaler.step(optimizer) as well: two steps"
        return Failed(happened, expected, case.outside_line)
    key = "optimizer-step-instead-of-scaler-step"
    return Failed(happened, expected, case.outside_line, key)


@step.check(points=1)
def scaler_is_updated_once(seen: Seen, wanted: Seen) -> None:
    """The scaler is updated once, after its step."""
    expected = "scaler.update() after the step"
    for name, case, right in _cases(seen, wanted, *SCALED, "overflow"):
        if case.steps_without_update:
            raise _update_left_out(case, _clipped_case(name, seen), expected)
        updates = case.order.count("scaler.update")
        if updates > 1:
            happened = f"scaler.update was called {updates} times"
            raise Failed(happened, "once, after the step", case.update_line)
        if name == "overflow" or case.scale == right.scale:
            continue
        if not updates:
            raise Failed("scaler.update was never called", expected, at=("step(", "backward("))
        went = f"went from {SCALE:g} to {case.scale:g}"
        happened = f"the scale of the scaler that was passed in {went}"
        raise Failed(happened, f"{right.scale:g}: it doubles with each update here")


def _update_left_out(case: Stepped, clipped: Stepped | None, expected: str) -> Failed:
    """The failure of a scaler's step without an update.

    `clipped` is the clipped step, where there is one: the update may be left out only without
    `max_norm`.
    """
    happened = "scaler.step was not followed by scaler.update"
    key = "scaler-without-update"
    line = case.unsettled_line
    if not clipped or clipped.steps_without_update:
        return Failed(happened, expected, line, key)
    happened = f"without `max_norm` {happened}"
    if clipped.step_line != line:
        return Failed(happened, expected, line, key)
    # The step is made in both cases, and only the update left out.
    return Failed(happened, expected, None, key, ("skipped update(",))


@step.check(points=1)
def learns_from_this_batch_alone(seen: Seen, wanted: Seen) -> None:
    """The weights are those of one step of the optimizer with this batch's gradients, whatever those were before."""
    _expect_right_update("on_the_device", seen, wanted)
    name = "after_a_clipped_step"
    later = _case(seen, name)
    _expect_own_optimizer(name, later)
    from_first = compare_updates(later.update, _case(wanted, "on_the_device").update)
    from_right = compare_updates(later.update, _case(wanted, name).update)
    if from_first.distance < 0.05 and from_right.distance > ENOUGH:
        update = "the update is that of a first step"
        happened = f"{WHERE[name]}{update}: the optimizer's momentum from before is gone"
        at = (".state", "load_state_dict(", "step(")
        raise Failed(happened, "the optimizer's state kept", at=at)


def _expect_right_update(name: str, seen: Seen, wanted: Seen) -> None:
    """Raises Failed unless the weights have changed as the reference's."""
    case = _case(seen, name)
    right = _case(wanted, name)
    difference = compare_updates(case.update, right.update)
    if difference.distance < ENOUGH:
        return
    where = WHERE[name]
    if "step" not in case.order:
        early = () if name in SCALED else WITHOUT
        happened = f"{where}the optimizer never stepped"
        raise Failed(happened, "one step", None, "missing-step", early)
    _expect_own_optimizer(name, case)
    _expect_clean_gradients(name, case, seen)
    happened = f"{where}the update of the weights is {_size_in_words(difference.ratio)}"
    if name == "on_the_cpu_disabled":
        unclipped = _case(wanted, "on_the_cpu").update
        if compare_updates(case.update, unclipped).distance < ENOUGH:
            happened = f"{where}max_norm={HARD:g} changed nothing"
    key = _mistake_of_another_check(name, case)
    at = () if key else _where_an_update_went_wrong(name, difference.ratio)
    raise Failed(happened, "the update of one step with this batch", None, key, at)


def _where_an_update_went_wrong(name: str, ratio: float) -> tuple[str, ...]:
    """Patterns for the line to show."""
    at: tuple[str, ...] = (*CLIPPING, "step(")
    if ratio < 0.01 / SCALE:
        at = ("last zero_grad(", "zero_grad(")
    if name in UNSCALED:
        return (*WITHOUT, *at)
    if name == "after_a_clipped_step":
        return (".state", *at)
    return at


def _expect_own_optimizer(name: str, case: Stepped) -> None:
    """Raises Failed if only another optimizer stepped."""
    if not case.own and "step" in case.order:
        stepped = "another optimizer than the one passed in stepped, without its momentum"
        expected = "one step of the optimizer that was passed in"
        raise Failed(f"{WHERE[name]}{stepped}", expected, None, "another-optimizer")


def _mistake_of_another_check(name: str, case: Stepped) -> str | None:
    """A mistake that another check reports, if it shows here too."""
    if name not in SCALED:
        return None
    if case.steps_outside:
        return "optimizer-step-instead-of-scaler-step"
    if case.backward and math.isclose(case.backward[0].gradient, 1.0, rel_tol=1e-2):
        return "unscaled-backward"
    return None


def _has_stale_gradients(case: Stepped) -> bool:
    return any(backward.stale for backward in case.backward)


def _expect_clean_gradients(name: str, case: Stepped, seen: Seen) -> None:
    """Raises Failed if a backward pass added to gradients from before."""
    if not _has_stale_gradients(case):
        return
    happened = "backward added to the gradients from before"
    expected = "gradients of this batch only"
    clipped = _clipped_case(name, seen)
    if clipped and clipped.backward and not _has_stale_gradients(clipped):
        happened = f"without `max_norm`, {happened}; with it they are zeroed"
        at = ("skipped zero_grad(", "zero_grad(")
        raise Failed(happened, f"{expected}, in every case", at=at)
    raise Failed(
        f"{WHERE[name]}{happened}",
        f"{expected}: zeroed before backward",
        case.backward_line,
        "stale-gradients" if case.zeroed_after else "missing-zero-grad",
        () if case.zeroed_after else ("zero_grad(",),
    )


@step.check(points=1, needs=("runs", "learns_from_this_batch_alone"))
def unscales_before_clipping(seen: Seen, wanted: Seen) -> None:
    """With `max_norm` the gradients are unscaled before they are clipped, and a step without it is not clipped."""
    unclipped = wanted[on_the_device]["on_the_device"].update
    for name, max_norm in (("clipped", HARD), ("clipped_softly", SOFTLY)):
        case = seen[on_the_device][name]
        difference = compare_updates(case.update, wanted[on_the_device][name].update)
        if difference.distance < ENOUGH:
            continue
        _expect_clean_gradients(name, case, seen)
        ignored = compare_updates(case.update, unclipped).distance < ENOUGH
        raise _clipped_wrongly(case, max_norm, difference.ratio, ignored)
    _expect_right_update("after_a_clipped_step", seen, wanted)


def _clipped_wrongly(case: Stepped, max_norm: float, ratio: float, ignored: bool) -> Failed:
    """The failure of a clipped step.

    With `ignored` its update is that of a step without clipping.
    """
    expected = "the gradients unscaled, then all of them together clipped to the norm max_norm"
    line = case.norm_line
    if ignored:
        happened = f"max_norm={max_norm:g} changed nothing"
        at: tuple[str, ...] = (*CLIPPING, "if max_norm", "step(")
        return Failed(happened, expected, line, "values-clipped", at)
    happened = f"with max_norm={max_norm:g} the update is {_size_in_words(ratio)}"
    by_hand = ("mul_(", "*") if ratio > 1 else ("norm(", ".grad")
    scaled = case.norms_before_unscale or math.isclose(ratio, 1 / SCALE, rel_tol=0.2)
    key = "clipped-before-unscale" if scaled else "values-clipped"
    return Failed(happened, expected, line, key, (*CLIPPING, *by_hand))


@step.check(points=1)
def skips_the_step_on_overflow(seen: Seen, wanted: Seen) -> None:
    """If gradients overflow, the weights stay unchanged and the scale falls."""
    case = seen[on_the_device]["overflow"]
    right = wanted[on_the_device]["overflow"]
    moved = any(bool((_flat_values(update) != 0).any()) for update in case.update)
    if moved or not _have_same_shapes(case.update, right.update):
        key = "optimizer-step-instead-of-scaler-step" if case.steps_outside else None
        happened = "infinite gradients changed the weights"
        raise Failed(happened, "a skipped step, as scaler.step does it", None, key)
    if case.scale != right.scale:
        key = "scaler-without-update" if case.steps_without_update else None
        happened = f"after an overflow the scale is {case.scale:g}"
        raise Failed(happened, f"{right.scale:g}", None, key)


@step.check(points=1)
def works_without_scaling(seen: Seen, wanted: Seen) -> None:
    """It learns the same with a disabled scaler, and on the CPU."""
    for name in ("scaler_disabled", *ON_THE_CPU):
        _expect_right_update(name, seen, wanted)


@step.check(points=1)
def works_on_another_gpu(seen: Seen, wanted: Seen) -> None:
    """It learns the same on a second GPU while the first one is current."""
    _expect_right_update("on_the_second_gpu", seen, wanted)


@step.check(points=1)
def returns_the_unscaled_loss(seen: Seen, wanted: Seen) -> None:
    """It returns the unscaled loss as a Python float."""
    for name, case, reference in _cases(seen, wanted, *SCALED, *OTHERS, *ON_THE_CPU):
        expect_float(case.kind, case.is_float)
        found = case.value
        right = reference.value
        assert found is not None
        assert right is not None
        if math.isclose(found, right, rel_tol=0.03, abs_tol=0.16 / LESS):
            continue
        key = None
        for scale in (SCALE, 2 * SCALE):
            if math.isclose(found, right * scale, rel_tol=0.03):
                key = "returned-scaled-loss"
        raise Failed(f"{WHERE[name]}it returned {found:.4g}", f"{right:.4g}", misconception=key)
