"""07: mixed precision."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from gpudojo.days.day8.sprites import CLASSES, SIZE, make_sprites
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
from gpudojo.grading.watching import (
    find_classes,
    keep_state,
    make_picklable,
    state_for_hook,
    state_of,
)
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
STALE: Final = (
    4096.0  # in the gradients before: large enough to be seen even after division by the scale
)
LESS: Final = 512.0  # divides the loss: gradients scaled twice are far from the largest float16 under every seed
SOFTLY: Final = 0.5  # above the norm of the gradients, below that of the scaled ones
HARD: Final = 0.002
NORMS: Final = (0.005, 0.03)  # of the gradients of a step, between HARD and SOFTLY
FINITE = ("isfinite(", "isinf(", "isnan(", "nan_to_num_(", "nan_to_num(", "step(")
CLIPPING = ("clip_grad_norm_(", "clip_grad_value_(")
WITHOUT = ("if is_enabled", "if get_scale")  # what is done without a scaler only


TYPES: Final = ("cuda", "cpu", "mps")
HIDDEN: Final = 8
SPRITES: Final = 8


class ScaledBackward(Case, frozen=True):
    """One backward pass from the loss."""

    regions: list[str]  # the device types for which autocast was on
    gradient: float  # that it started from: the scale, if the loss was scaled
    stale: float  # the largest gradient from before


class StepLog:
    """How the forward pass, the loss and the backward pass were run: the device types with autocast, each time."""

    def __init__(self) -> None:
        self.forward: list[list[str]] = []
        self.loss: list[list[str]] = []
        self.backward: list[ScaledBackward] = []


def regions() -> list[str]:
    return [kind for kind in TYPES if torch.is_autocast_enabled(kind)]


def watched(seed: int, device: Any, log: StepLog, overflow: bool) -> Any:
    """A classifier that records how it is run; with `overflow` its gradients are infinite, whatever the dtype."""
    return _classes()[0](
        log, overflow, [nn.Parameter(values.to(device, copy=True)) for values in weights(seed)]
    )


def loss_fn(model: Any, log: StepLog) -> Any:
    """A loss that records the gradient that backward starts from, and the gradients from before."""
    return _classes()[1](model, log)


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, ...]:
    """Classes made once, and only where torch is needed."""

    class SpriteClassifier(nn.Module):
        def __init__(self, log: StepLog, overflow: bool, weights: list[Any]) -> None:
            super().__init__()
            self.key = keep_state((log, overflow))
            self.first, self.shift, self.last = weights

        def forward(self, pictures: Any) -> Any:
            log, overflow = state_of(self.key)
            hidden = nn.functional.linear(pictures.flatten(1), self.first, self.shift).relu()
            outputs = nn.functional.linear(hidden, self.last)
            # What autocast makes of the outputs counts, and not only that it says it is on.
            whole = outputs.device.type if outputs.element_size() == 4 else None
            log.forward.append([kind for kind in regions() if kind != whole])
            if overflow and outputs.requires_grad:
                outputs.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
            return outputs

    class SpriteLoss(nn.CrossEntropyLoss):
        def __init__(self, model: Any, log: StepLog) -> None:
            super().__init__()
            self.key = keep_state((model, log))

        def forward(self, outputs: Any, targets: Any) -> Any:
            state_of(self.key)[1].loss.append(regions())
            loss = super().forward(outputs, targets) / LESS
            if loss.requires_grad:
                loss.register_hook(self._arrived)
            return loss

        def _arrived(self, gradient: Any) -> None:
            model, log = state_for_hook(self.key)
            found = [
                p.grad.detach().abs().max().item() for p in model.parameters() if p.grad is not None
            ]
            log.backward.append(ScaledBackward(regions(), gradient.item(), max(found, default=0.0)))

    return make_picklable(SpriteClassifier, SpriteLoss)


__getattr__ = find_classes(_classes)


@step.draws
def _drawn(seed: int) -> tuple[tuple[Any, ...], Any, Any]:
    """Parameters, sprites and the classes that the model finds least likely, so that there is always much to learn.

    Drawn until the norm of the gradients is one of NORMS, and without torch's own initialisation, which uses the
    caller's generator.
    """
    sizes = (((HIDDEN, 3 * SIZE * SIZE), 0.3), ((HIDDEN,), 0.5), ((CLASSES, HIDDEN), 2.0))
    while True:
        generator = torch.Generator().manual_seed(seed)
        first, shift, last = (
            (torch.rand(shape, generator=generator) * 2 - 1) * size for shape, size in sizes
        )
        pictures, _ = make_sprites(SPRITES, seed + 1)
        flat = pictures.flatten(1)
        hidden = (flat @ first.T + shift).relu()
        outputs = hidden @ last.T
        classes = outputs.argmin(dim=1)
        error = (outputs.softmax(dim=1) - nn.functional.one_hot(classes, CLASSES)) / (
            SPRITES * LESS
        )
        inner = (error @ last) * (hidden > 0)
        gradients = (inner.T @ flat, inner.sum(dim=0), error.T @ hidden)
        if NORMS[0] < math.hypot(*(each.norm().item() for each in gradients)) < NORMS[1]:
            return (first, shift, last), pictures, classes
        seed += 100_003


def weights(seed: int) -> tuple[Any, ...]:
    """The parameters before the step."""
    return _drawn(seed)[0]


def batch(seed: int) -> tuple[Any, Any]:
    _, pictures, classes = _drawn(seed)
    return pictures.clone(), classes.clone()  # a solution may write into them


class Stepped(Case, frozen=True):
    """One training step."""

    kind: str
    is_float: bool
    value: float | None
    device: str  # its type
    scale: float
    update: list[Array]  # the change of each parameter
    own: bool  # whether the optimizer passed in stepped
    forward: list[list[str]]
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
    unsettled_line: int | None
    step_line: int | None
    update_line: int | None
    norm_line: int | None


@step.probe
def on_the_device(call: Call) -> Cases[Stepped]:
    """In "clipped_softly" the norm is below `max_norm`: only clipping scaled gradients changes anything.

    In "overflow" there is a `max_norm` too: without one nothing happens between backward and the scaler's step.
    """
    device = call.device
    return try_scenarios(
        {
            "on_the_device": lambda: _stepped(call, device),
            "clipped": lambda: _stepped(call, str(device), max_norm=HARD),
            "clipped_softly": lambda: _stepped(call, device, max_norm=SOFTLY),
            "after_a_clipped_step": lambda: _stepped(call, device, momentum=0.0006, earlier=HARD),
            "overflow": lambda: _stepped(call, device, overflow=True, max_norm=HARD),
            "scaler_disabled": lambda: _stepped(call, device, enabled=False),
        }
    )


@step.probe(machine="two gpus", edge=True)
def on_the_second_gpu(call: Call) -> Cases[Stepped]:
    """Autocast needs the type of the device, and a solution may send the batch to that type."""
    return try_scenarios({"on_the_second_gpu": lambda: _stepped(call, "cuda:1")})


@step.probe(edge=True)
def on_the_cpu(call: Call) -> Cases[Stepped]:
    return try_scenarios(
        {
            "on_the_cpu": lambda: _stepped(call, "cpu"),
            "on_the_cpu_disabled": lambda: _stepped(
                call, torch.device("cpu"), enabled=False, max_norm=HARD
            ),
        }
    )


def _stepped(
    call: Call,
    device: Any,
    enabled: bool = True,
    overflow: bool = False,
    max_norm: float | None = None,
    momentum: float = 0.0,  # from long before, about as large as the gradients
    earlier: float | None = None,  # the `max_norm` of a step before
) -> Stepped:
    kind = torch.device(device).type
    if kind == "cpu":
        _warned_before()
    log = StepLog()
    model = watched(call.seed, device, log, overflow)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * LESS, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, STALE)
        if momentum:
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, momentum)
    # It grows after every good step, so that one update is seen as one doubling.
    scaler = torch.amp.GradScaler(kind, init_scale=SCALE, growth_interval=1, enabled=enabled)
    scaler.scale(
        torch.ones((), device=device)
    )  # as after a first step: a new one would raise where it is forgotten
    options = {} if max_norm is None else {"max_norm": max_norm}
    loss = loss_fn(model, log)
    try:
        if earlier is not None:
            call(model, batch(call.seed), loss, optimizer, scaler, device, max_norm=earlier)
            with torch.no_grad():  # from there on, there would be little to learn
                for parameter, old in zip(model.parameters(), weights(call.seed), strict=True):
                    parameter.copy_(old)
        value = call(model, batch(call.seed), loss, optimizer, scaler, device, **options)
    except StudentRaised as error:
        raise _with_order(
            error, call, device, all(p.grad is None for p in model.parameters())
        ) from None
    ledger = call.ledger
    outside = ledger.steps_outside_scaler()
    norms = ledger.norms_before_unscale()
    unsettled = ledger.scaler_steps_without_update()
    under = ledger.backwards_under_autocast()
    line = call.first_line
    return Stepped(
        kind=type(value).__name__,
        is_float=isinstance(value, float),
        value=float(value) if isinstance(value, (int, float)) else None,
        device=kind,
        scale=scaler.get_scale(),
        update=[
            array_of(p.detach().cpu() - old)
            for p, old in zip(model.parameters(), weights(call.seed), strict=True)
        ],
        own=any(
            not momentum or bool((s["momentum_buffer"].cpu() != momentum).any())
            for s in optimizer.state.values()
        ),
        forward=log.forward,
        loss=log.loss,
        backward=log.backward,
        order=list(ledger.training_order()),
        backward_under_autocast=bool(under) or any(kind in b.regions for b in log.backward),
        steps_outside=len(outside),
        steps_without_update=len(unsettled),
        norms_before_unscale=len(norms),
        zeroed_after=not any(
            p.grad is not None and bool(p.grad.cpu().any()) for p in model.parameters()
        ),
        forward_line=line(ledger.forwards()),
        loss_line=line(ledger.forwards("SpriteLoss")),
        backward_line=line(ledger.backward_passes()),
        outside_line=line(outside),
        unsettled_line=line(unsettled),
        step_line=line(ledger.scaler_calls("step")),
        update_line=line(ledger.scaler_calls("update")[1:]),
        norm_line=line(norms),
    )


@lru_cache(maxsize=1)
def _warned_before() -> None:
    """A CPU without half precision warns once, with a page of C++ frames, which students need not see."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for half in (torch.bfloat16, torch.float16):
            nn.functional.linear(
                torch.ones(8, 8, dtype=half),
                torch.ones(8, 8, dtype=half),
                torch.ones(8, dtype=half),
            )


def _with_order(error: StudentRaised, call: Call, device: Any, zeroed: bool) -> StudentRaised:
    """The error with the calls made so far in its message: a scaler's errors have more than one cause."""
    inputs, targets = batch(call.seed)
    moved = lines_of_copies(call, inputs=inputs, targets=targets)
    calls, at = ("done so far", call.ledger.training_order()), error.evidence.line
    until = calls[1].index("scaler.step") if "scaler.step" in calls[1] else 0
    zeroed = zeroed and "backward" in calls[1][:until] and "step" not in calls[1][:until]
    if zeroed:
        calls = calls[0], calls[1][: until + 1]  # not those that scaler.step made itself
    elif "inf checks were recorded" in error.evidence.message:
        # A disabled scaler does not raise: with it the function shows all of its calls, and which one was wrong.
        calls, ledger = ("its calls", _order_to_the_end(call, device)), call.ledger
        wrong = (
            ledger.scaler_calls("scale")
            if "backward" not in calls[1]
            else ledger.steps_outside_scaler()
        )
        at = call.first_line(wrong) or at
    # The loss is a module too: its forward after the model's says nothing new.
    order = ", ".join(name for name, _ in itertools.groupby(calls[1])) or "nothing"
    if zeroed:
        order += "; no parameter had a gradient any more"
    first, newline, rest = error.evidence.message.partition("\n")
    return error.with_facts(
        message=f"{first} ({calls[0]}: {order}){newline}{rest}", copied=moved, line=at
    )


def _order_to_the_end(call: Call, device: Any) -> tuple[str, ...]:
    log = StepLog()
    model = watched(call.seed, device, log, overflow=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(torch.device(device).type, enabled=False)
    with contextlib.suppress(StudentRaised):  # then up to there
        call(model, batch(call.seed), loss_fn(model, log), optimizer, scaler, device)
    return call.ledger.training_order()


def size(ratio: float) -> str:
    """How large an update is beside the right one, in words."""
    if ratio < 0.01 / SCALE:
        return "zero"
    return (
        f"{1 / ratio:.4g} times too small"
        if ratio < 0.85
        else f"{ratio:.4g} times what it should be"
    )


def compare(found: list[Array], right: list[Array]) -> tuple[float, float]:
    """The length of one update beside the other's, and their distance, both in units of the right one's length.

    Callers allow for half precision: bfloat16 is as good an answer as float16.
    """
    import numpy as np

    if not alike(found, right):
        return math.inf, math.inf
    b, length, finite = _joined(tuple(right))
    if found == right:  # as most are
        return (length / length, 0.0 / length) if finite else (math.inf, math.inf)
    a = np.concatenate([values(each) for each in found])
    if not np.isfinite(a).all():
        return math.inf, math.inf
    return float(np.linalg.norm(a)) / length, float(np.linalg.norm(a - b)) / length


@lru_cache(64)
def _joined(right: tuple[Array, ...]) -> tuple[Any, float, bool]:
    """The values of a reference's arrays in one, its length, and whether all are finite."""
    import numpy as np

    joined = np.concatenate([values(each) for each in right])
    return joined, float(np.linalg.norm(joined)), bool(np.isfinite(joined).all())


def alike(found: list[Array], right: list[Array]) -> bool:
    return [(a.shape, a.dtype) for a in found] == [(b.shape, b.dtype) for b in right]


def values(found: Array) -> Any:
    return numpy_values(found).astype("float64").reshape(-1)


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


def _case(seen: Seen, name: str) -> Stepped:
    probe = {"on_the_second_gpu": on_the_second_gpu}.get(
        name, on_the_cpu if name in ON_THE_CPU else on_the_device
    )
    return seen[probe][name]


def _finished(seen: Seen, wanted: Seen, *names: str) -> Iterator[tuple[str, Stepped, Stepped]]:
    """Name, what was seen and what the reference did; an error costs the points of the check for its scenario."""
    for name in names:
        with contextlib.suppress(ScenarioRaised):
            yield name, _case(seen, name), _case(wanted, name)


def _with_max_norm(name: str, seen: Seen) -> Stepped | None:
    """The clipped step, to compare one without `max_norm` with; the line shown is still one of the latter."""
    found = None if name != "on_the_device" else dict.get(seen[on_the_device], "clipped")
    seen.about(on_the_device.name if name == "on_the_device" else None, name)
    return found


def _diagnose(raised: Raised, seen: Seen) -> str | None:
    found = device_mistake(raised)
    if raised.scenario == "on_the_second_gpu" and is_between_gpus(raised.message):
        return "device-index-dropped"
    if found is not None:
        # The model is where it should be in every scenario: what met it from a GPU was sent there by name.
        return (
            "hard-coded-cuda"
            if found == "model-not-moved" or raised.scenario in ON_THE_CPU
            else found
        )
    calls = re.search(r"\(its calls: (.*?)\)", raised.message)
    order = calls[1].split(", ") if calls else []
    if not order:
        return None
    if "backward" not in order:
        return "missing-backward"
    if "scaler.step" in order:
        if "scaler.update" in order[: order.index("scaler.step")]:
            return "update-before-step"
        return (
            "step-before-backward" if order.index("backward") > order.index("scaler.step") else None
        )
    return "optimizer-step-instead-of-scaler-step" if "step" in order else "missing-step"


runs(step, scenarios=("on_the_device",), diagnose=_diagnose)


@step.check(points=2)
def runs_under_autocast(seen: Seen, wanted: Seen) -> None:
    """Forward pass and loss run under autocast for the device's type, with a disabled scaler too."""
    for name, case, _ in _finished(seen, wanted, *SCALED, "overflow", "on_the_cpu", *UNSCALED):
        for what, passes in (("the forward pass", case.forward), ("the loss", case.loss)):
            plain = [regions for regions in passes if case.device not in regions]
            if passes and not plain:
                continue
            happened = f"{what} was never called"
            misconception = None
            if passes and plain[0]:
                happened = (
                    f"on the device {case.device}, {what} ran under autocast for {plain[0][0]}"
                )
                misconception = "hard-coded-cuda" if plain[0][0] == "cuda" else "no-autocast"
            elif passes:
                happened = f"{what} ran outside autocast"
                misconception = None if what == "the loss" else "no-autocast"
            expected = f"{what} under torch.autocast for {case.device}"
            line = case.loss_line if what == "the loss" else case.forward_line
            raise Failed(f"{WHERE[name]}{happened}", expected, line, misconception)


@step.check(points=1)
def backward_outside_autocast(seen: Seen, wanted: Seen) -> None:
    """The backward pass runs outside autocast."""
    for _, case, _ in _finished(seen, wanted, *SCALED, "on_the_cpu"):
        if not case.backward:
            raise _no_backward()
        if case.backward_under_autocast:
            happened = "the backward pass ran under autocast"
            expected = "an autocast region that ends after the loss"
            raise Failed(happened, expected, case.backward_line, "backward-under-autocast")


def _no_backward() -> Failed:
    happened = "there was no backward pass from the loss"
    expected = "a backward pass, from the scaled loss"
    return Failed(happened, expected, misconception="missing-backward")


@step.check(points=1)
def backward_on_the_scaled_loss(seen: Seen, wanted: Seen) -> None:
    """The backward pass starts from the scaled loss."""
    for _, case, _ in _finished(seen, wanted, *SCALED):
        if not case.backward:
            raise _no_backward()
        if len(case.backward) > 1:
            raise Failed(f"{len(case.backward)} backward passes ran", "one", case.backward_line)
        found = case.backward[0].gradient
        if not math.isclose(found, SCALE, rel_tol=1e-2):
            unscaled = math.isclose(found, 1.0, rel_tol=1e-2)
            raise Failed(
                f"backward started from the loss times {found:g}, while the scale of `scaler` is {SCALE:g}",
                "scaler.scale(loss).backward()"
                if unscaled
                else "the loss scaled once, by the `scaler` that is given",
                case.backward_line,
                "unscaled-backward" if unscaled else None,
                at=() if unscaled else ("GradScaler(",),
            )


@step.check(points=1)
def scaler_steps_the_optimizer(seen: Seen, wanted: Seen) -> None:
    """The scaler steps the optimizer, once."""
    for name, case, _ in _finished(seen, wanted, *SCALED):
        if case.steps_outside:
            both = "scaler.step" in case.order
            happened = "optimizer.step() was called without the scaler"
            raise Failed(
                f"{happened}, and scaler.step(optimizer) as well: two steps" if both else happened,
                "scaler.step(optimizer), and no other step",
                case.outside_line,
                None if both else "optimizer-step-instead-of-scaler-step",
            )
        if "step" not in case.order:
            if (clipped := _with_max_norm(name, seen)) and "step" in clipped.order:
                happened, at = "without `max_norm` the optimizer never stepped", ("skipped step(",)
                raise Failed(happened, "scaler.step(optimizer) in every case", at=at)
            raise Failed(
                "the optimizer never stepped",
                "scaler.step(optimizer)",
                misconception="missing-step",
            )
        if case.order.index("step") < case.order.index("backward"):
            raise Failed(
                "the step came before backward",
                "backward, then step",
                misconception="step-before-backward",
            )


@step.check(points=1)
def scaler_is_updated_once(seen: Seen, wanted: Seen) -> None:
    """The scaler is updated once, after its step."""
    after = "scaler.update() after the step"
    for name, case, right in _finished(seen, wanted, *SCALED, "overflow"):
        if case.steps_without_update:
            happened = "scaler.step was not followed by scaler.update"
            line = case.unsettled_line
            at: tuple[str, ...] = ()
            if (clipped := _with_max_norm(name, seen)) and not clipped.steps_without_update:
                happened = f"without `max_norm` {happened}"
                if (
                    clipped.step_line == line
                ):  # the step is made in both cases, and only the update left out
                    line, at = None, ("skipped update(",)
            raise Failed(happened, after, line, "scaler-without-update", at)
        updates = case.order.count("scaler.update")
        if updates > 1:
            raise Failed(
                f"scaler.update was called {updates} times",
                "once, after the step",
                case.update_line,
            )
        if name != "overflow" and case.scale != right.scale:
            if not updates:
                raise Failed("scaler.update was never called", after, at=("step(", "backward("))
            raise Failed(
                f"the scale of the scaler that was passed in went from {SCALE:g} to {case.scale:g}",
                f"{right.scale:g}: it doubles with each update here",
            )


@step.check(points=1)
def learns_from_this_batch_alone(seen: Seen, wanted: Seen) -> None:
    """The weights are those of one step of the optimizer with this batch's gradients, whatever those were before."""
    _learned("on_the_device", seen, wanted)
    later = _case(seen, name := "after_a_clipped_step")
    _optimizer_used(name, later)
    first, right = (_case(wanted, each).update for each in ("on_the_device", name))
    if compare(later.update, first)[1] < 0.05 < 0.15 < compare(later.update, right)[1]:
        happened = f"{WHERE[name]}the update is that of a first step: the optimizer's momentum from before is gone"
        raise Failed(
            happened, "the optimizer's state kept", at=(".state", "load_state_dict(", "step(")
        )


def _learned(name: str, seen: Seen, wanted: Seen) -> None:
    case = _case(seen, name)
    right = _case(wanted, name)
    ratio, off = compare(case.update, right.update)
    if off < 0.15:
        return
    if "step" not in case.order:
        early = () if name in SCALED else WITHOUT
        raise Failed(
            f"{WHERE[name]}the optimizer never stepped", "one step", None, "missing-step", early
        )
    _optimizer_used(name, case)
    _nothing_added(name, case, seen)
    happened = f"{WHERE[name]}the update of the weights is {size(ratio)}"
    if (
        name == "on_the_cpu_disabled"
        and compare(case.update, _case(wanted, "on_the_cpu").update)[1] < 0.15
    ):
        happened = f"{WHERE[name]}max_norm={HARD:g} changed nothing"
    at = ("last zero_grad(", "zero_grad(") if ratio < 0.01 / SCALE else (*CLIPPING, "step(")
    at = (
        (*WITHOUT, *at)
        if name in UNSCALED
        else (".state", *at)
        if name == "after_a_clipped_step"
        else at
    )
    key = _other_way(name, case)
    raise Failed(happened, "the update of one step with this batch", None, key, () if key else at)


def _optimizer_used(name: str, case: Stepped) -> None:
    if not case.own and "step" in case.order:
        happened = (
            f"{WHERE[name]}another optimizer than the one passed in stepped, without its momentum"
        )
        raise Failed(
            happened, "one step of the optimizer that was passed in", None, "another-optimizer"
        )


def _other_way(name: str, case: Stepped) -> str | None:
    """A mistake that another check reports, if it shows here too."""
    if name not in SCALED:
        return None
    if case.steps_outside:
        return "optimizer-step-instead-of-scaler-step"
    unscaled = case.backward and math.isclose(case.backward[0].gradient, 1.0, rel_tol=1e-2)
    return "unscaled-backward" if unscaled else None


def _nothing_added(name: str, case: Stepped, seen: Seen) -> None:
    if any(backward.stale for backward in case.backward):
        happened = "backward added to the gradients from before"
        expected = "gradients of this batch only"
        clipped = _with_max_norm(name, seen)
        if (
            clipped
            and clipped.backward
            and not any(backward.stale for backward in clipped.backward)
        ):
            happened = f"without `max_norm`, {happened}; with it they are zeroed"
            raise Failed(
                happened, f"{expected}, in every case", at=("skipped zero_grad(", "zero_grad(")
            )
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
    for name, max_norm in (("clipped", HARD), ("clipped_softly", SOFTLY)):
        case = seen[on_the_device][name]
        ratio, off = compare(case.update, wanted[on_the_device][name].update)
        if off < 0.15:
            continue
        _nothing_added(name, case, seen)
        scaled = bool(case.norms_before_unscale) or math.isclose(ratio, 1 / SCALE, rel_tol=0.2)
        ignored = compare(case.update, wanted[on_the_device]["on_the_device"].update)[1] < 0.15
        happened = f"with max_norm={max_norm:g} the update is {size(ratio)}"
        by_hand = (
            ("if max_norm", "step(")
            if ignored
            else ("mul_(", "*")
            if ratio > 1
            else ("norm(", ".grad")
        )
        raise Failed(
            f"max_norm={max_norm:g} changed nothing" if ignored else happened,
            "the gradients unscaled, then all of them together clipped to the norm max_norm",
            case.norm_line,
            "clipped-before-unscale" if scaled and not ignored else "values-clipped",
            (*CLIPPING, *by_hand),
        )
    _learned("after_a_clipped_step", seen, wanted)


@step.check(points=1)
def skips_the_step_on_overflow(seen: Seen, wanted: Seen) -> None:
    """If gradients overflow, the weights stay unchanged and the scale falls."""
    case = seen[on_the_device]["overflow"]
    right = wanted[on_the_device]["overflow"]
    moved = any(bool((values(found) != 0).any()) for found in case.update)
    if moved or not alike(case.update, right.update):
        key = "optimizer-step-instead-of-scaler-step" if case.steps_outside else None
        raise Failed(
            "infinite gradients changed the weights",
            "a skipped step, as scaler.step does it",
            None,
            key,
        )
    if case.scale != right.scale:
        key = "scaler-without-update" if case.steps_without_update else None
        raise Failed(
            f"after an overflow the scale is {case.scale:g}", f"{right.scale:g}", None, key
        )


@step.check(points=1)
def works_without_scaling(seen: Seen, wanted: Seen) -> None:
    """It learns the same with a disabled scaler, and on the CPU."""
    for name in ("scaler_disabled", *ON_THE_CPU):
        _learned(name, seen, wanted)


@step.check(points=1)
def works_on_another_gpu(seen: Seen, wanted: Seen) -> None:
    """It learns the same on a second GPU while the first one is current."""
    _learned("on_the_second_gpu", seen, wanted)


@step.check(points=1)
def returns_the_unscaled_loss(seen: Seen, wanted: Seen) -> None:
    """It returns the unscaled loss as a Python float."""
    for name, case, reference in _finished(seen, wanted, *SCALED, *OTHERS, *ON_THE_CPU):
        expect_float(case.kind, case.is_float)
        found = case.value
        right = reference.value
        assert found is not None
        assert right is not None
        if not math.isclose(found, right, rel_tol=0.03, abs_tol=0.16 / LESS):
            scaled = any(
                math.isclose(found, right * scale, rel_tol=0.03) for scale in (SCALE, 2 * SCALE)
            )
            key = "returned-scaled-loss" if scaled else None
            raise Failed(f"{WHERE[name]}it returned {found:.4g}", f"{right:.4g}", misconception=key)
