"""Calls `mixed_precision_step` in scenarios and describes the steps."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.error_messages import add_to_first_line
from gpudojo.days.day8.loops_over_batches import NOT_REACHED
from gpudojo.days.day8.mixed_precision.declaration import step
from gpudojo.days.day8.occurrences import Occurrences, count_occurrences
from gpudojo.days.day8.returned_numbers import float_or_none
from gpudojo.days.day8.sprites import CLASSES, SPRITE_NUMBERS, linear_layer, make_sprites
from gpudojo.days.day8.watched_objects import WatchLog
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    lines_of_copies,
    nn,
    torch,
    try_inputs,
)
from gpudojo.model.evidence import Array, Case, Cases

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

    def __init__(self, call: Call, overflow: bool = False, less: float = LESS) -> None:
        """A log of the calls that this student's function makes, empty so far.

        With `overflow`, the model's gradients will be infinite; `less` divides the loss.
        """
        super().__init__(call)
        self.overflow = overflow
        self.less = less
        # Taken now: while student code runs, the name may be another function's.
        self.is_autocast_enabled = torch.is_autocast_enabled
        # Of the latest forward pass: where autocast was on all the time, and a mark of the ledger.
        self.regions: list[str] = []
        self.start_mark = 0
        self.forward_regions: list[list[str]] = []
        self.loss_regions: list[list[str]] = []
        self.backwards: list[ScaledBackward] = []
        self.own_steps = 0  # of the optimizer that student code gets

    def begin_forward(self) -> None:
        super().begin_forward()
        self.regions = self._autocast_regions()
        self.start_mark = self.call.bench.ledger.mark()

    def note_layer(self, model: Any) -> None:
        super().note_layer(model)
        now = self._autocast_regions()
        self.regions = [kind for kind in self.regions if kind in now]

    def record_forward(self, model: Any, inputs: Any, outputs: Any) -> None:
        """Note a forward pass, and the types of devices for which autocast was on in all of it.

        A type does not count if the outputs there are of four bytes all the same, or a virtual GPU
        has run an operator outside of autocast. With `overflow`, makes the outputs' gradients
        infinite.
        """
        super().record_forward(model, inputs, outputs)
        regions = self.regions
        kind = outputs.device.type
        # What autocast makes of the outputs counts, and not only that it says it is on.
        has_whole_outputs = outputs.element_size() == 4
        if kind in regions and (has_whole_outputs or self._left_autocast()):
            regions.remove(kind)
        self.forward_regions.append(regions)
        if self.overflow and outputs.requires_grad:
            outputs.register_hook(_make_infinite)

    def record_step(self, optimizer: Any) -> None:
        self.own_steps += optimizer is self.optimizer

    def record_loss(self, outputs: Any, targets: Any, value: Any) -> Any:
        self.loss_regions.append(self._autocast_regions())
        return super().record_loss(outputs, targets, value) / self.less

    def record_backward(self, gradient: Any) -> None:
        """Note a backward pass from the loss, whose gradient is this tensor of one number.

        With it are noted where autocast was on, and the largest gradient that the model had before.
        """
        stale = 0.0
        for before in _gradients_of(self.model):
            largest = before.detach().abs().max()
            stale = max(stale, largest.item())
        backward = ScaledBackward(self._autocast_regions(), gradient.item(), stale)
        self.backwards.append(backward)

    def _autocast_regions(self) -> list[str]:
        """The device types for which autocast is on."""
        return [kind for kind in ("cuda", "cpu", "mps") if self.is_autocast_enabled(kind)]

    def _left_autocast(self) -> bool:
        """True if the forward pass ran an operator of a virtual GPU outside of autocast."""
        if self.call.bench.kind != "virtual":
            return False
        forward = self.call.bench.ledger.since(self.start_mark)
        return any(operation.autocast is None for operation in forward.operations())


def _make_infinite(gradient: Any) -> Any:
    """Infinite gradients of the same shape: a hook for `register_hook`."""
    return torch.full_like(gradient, math.inf)


class StepNumbers(NamedTuple):
    """What a step is made of: the parameters before it, and a batch."""

    first: Any
    bias: Any
    last: Any
    pictures: Any
    classes: Any

    @property
    def parameters(self) -> tuple[Any, Any, Any]:
        return self.first, self.bias, self.last


@step.draws_once
def draw_numbers(seed: int) -> StepNumbers:
    """Numbers with which there is much to learn, and the norm of the gradients is known.

    The classes are those that the model finds least likely. Drawn until the norm lies between the
    two NORMS, and without torch's own initialisation, which uses the caller's generator. Remembered
    by seed.
    """
    while True:
        generator = torch.Generator().manual_seed(seed)
        first = _draw_around_zero(0.3, generator, HIDDEN, SPRITE_NUMBERS)
        bias = _draw_around_zero(0.5, generator, HIDDEN)
        last = _draw_around_zero(2.0, generator, CLASSES, HIDDEN)
        pictures, _ = make_sprites(SPRITES, seed + 1)
        hidden = (pictures.flatten(1) @ first.T + bias).relu()
        classes = (hidden @ last.T).argmin(dim=1)
        numbers = StepNumbers(first, bias, last, pictures, classes)
        least, most = NORMS
        if least < _norm_of_gradients(numbers) < most:
            return numbers
        seed += 100_003


def _draw_around_zero(size: float, generator: Any, *shape: int) -> Any:
    """Numbers between -size and size."""
    shares = torch.rand(shape, generator=generator)  # of [0, 1)
    return (shares * 2 - 1) * size


def _norm_of_gradients(numbers: StepNumbers) -> float:
    """The norm of all gradients of a step with these numbers, computed without autograd."""
    # Forward
    flat = numbers.pictures.flatten(1)
    hidden = (flat @ numbers.first.T + numbers.bias).relu()
    shares = (hidden @ numbers.last.T).softmax(dim=1)
    # Backward
    wanted = nn.functional.one_hot(numbers.classes, CLASSES)
    error = (shares - wanted) / (SPRITES * LESS)
    inner = (error @ numbers.last) * (hidden > 0)
    of_first = inner.T @ flat
    of_bias = inner.sum(dim=0)
    of_last = error.T @ hidden
    norms = [gradient.norm().item() for gradient in (of_first, of_bias, of_last)]
    return math.hypot(*norms)


def make_batch(seed: int) -> tuple[Any, Any]:
    """New copies of the sprites and classes drawn from a seed: a solution may write into them."""
    numbers = draw_numbers(seed)
    return numbers.pictures.clone(), numbers.classes.clone()


def make_layers(seed: int) -> list[Any]:
    """The layers of the classifier, new, with the weights drawn from a seed, on the CPU."""
    parameters = draw_numbers(seed).parameters
    first, bias, last = [values.clone() for values in parameters]
    return [nn.Flatten(), linear_layer(first, bias), nn.ReLU(), linear_layer(last)]


class StepSetting(NamedTuple):
    """One scenario."""

    device: Any
    enabled: bool = True  # whether the scaler is
    overflow: bool = False  # whether the gradients are infinite
    max_norm: float | None = None
    momentum: float = 0.0  # from long before, about as large as the gradients
    earlier_norm: float | None = None  # the `max_norm` of a step before
    less: float = LESS  # divides the loss, and with it all gradients


class Stepped(Case, frozen=True):
    """One training step."""

    kind: str
    is_float: bool
    value: float | None
    device: str  # its type
    scale: float
    update: Array  # the changes of all parameters, one after the other
    own: bool  # whether the optimizer passed in stepped
    forward: list[list[str]]  # for each pass, the device types with autocast
    loss: list[list[str]]
    backward: list[ScaledBackward]
    order: list[str]
    backward_under_autocast: bool
    zeroed_after: bool  # whether no gradient was left
    # What else was done, by the names in `_occurrences_in`
    done: dict[str, Occurrences]

    def count_of(self, name: str) -> int:
        return self.done[name].count

    def line_of(self, name: str) -> int | None:
        """The line that did it first."""
        return self.done[name].line


@step.probe
def on_the_device(call: Call) -> Cases[Stepped]:
    """Steps on the device, with and without clipping, overflow and scaling.

    In "clipped_softly" the norm is below `max_norm`: only clipping scaled gradients changes
    anything. In "large_gradients" the norm is above what people clip to by default. In "overflow"
    there is a `max_norm` too: without one nothing happens between backward
    and the scaler's step. Raises StudentRaised for an error about a closed device or memory.
    """
    device = call.device
    settings = {
        "on_the_device": StepSetting(device),
        "clipped": StepSetting(str(device), max_norm=HARD),
        "clipped_softly": StepSetting(device, max_norm=SOFTLY),
        "after_a_clipped_step": StepSetting(device, momentum=0.0006, earlier_norm=HARD),
        "large_gradients": StepSetting(device, less=1.0),
        "overflow": StepSetting(device, overflow=True, max_norm=HARD),
        "scaler_disabled": StepSetting(device, enabled=False),
    }
    return try_inputs(_call_step, call, settings)


@step.probe(machine="two gpus", edge=True)
def on_the_second_gpu(call: Call) -> Cases[Stepped]:
    """A step on the second GPU.

    Autocast needs the type of the device, and a solution may send the batch to that type. Raises
    StudentRaised for an error about a closed device or memory.
    """
    return try_inputs(_call_step, call, {"on_the_second_gpu": StepSetting("cuda:1")})


@step.probe(edge=True)
def on_the_cpu(call: Call) -> Cases[Stepped]:
    """Steps on the CPU, with a scaler and with a disabled one.

    Raises StudentRaised for an error about a closed device or memory.
    """
    settings = {
        "on_the_cpu": StepSetting("cpu"),
        "on_the_cpu_disabled": StepSetting(torch.device("cpu"), enabled=False, max_norm=HARD),
    }
    return try_inputs(_call_step, call, settings)


def _call_step(call: Call, setting: StepSetting) -> Stepped:
    """Call the student's function for one step and describe it.

    Raises StudentRaised, whose message names the calls made so far.
    """
    device = setting.device
    kind = torch.device(device).type
    if kind == "cpu":
        _provoke_warnings()
    log = PrecisionLog(call, setting.overflow, setting.less)
    layers = make_layers(call.seed)
    model = log.make_model(*layers).to(device)
    optimizer = _make_optimizer(model, setting)
    log.watch_optimizer(optimizer)
    loss_fn = log.make_loss()
    scaler = _make_scaler(setting)
    try:
        value = _call_once_or_twice(call, setting, model, loss_fn, optimizer, scaler)
    except StudentRaised as error:
        raise _explain_error(error, call, log) from None
    ledger = call.ledger
    under_autocast = bool(ledger.backwards_under_autocast())
    for backward in log.backwards:
        if kind in backward.regions:
            under_autocast = True
    return Stepped(
        kind=type(value).__name__,
        is_float=isinstance(value, float),
        value=float_or_none(value),
        device=kind,
        scale=scaler.get_scale(),
        update=_update_of(model, call.seed),
        own=log.own_steps > 0,
        forward=log.forward_regions,
        loss=log.loss_regions,
        backward=log.backwards,
        order=list(ledger.training_order()),
        backward_under_autocast=under_autocast,
        zeroed_after=not _has_gradients(model),
        done=_occurrences_in(call),
    )


def _occurrences_in(call: Call) -> dict[str, Occurrences]:
    """What was done in the latest call: by kind, how often, and in which line first."""
    ledger = call.ledger
    records: dict[str, Sequence[Any]] = {
        "forward": ledger.forwards(),
        "loss": ledger.forwards("CrossEntropyLoss"),
        "backward": ledger.backward_passes(),
        "step": ledger.scaler_calls("step"),
        "second update": ledger.scaler_calls("update")[1:],
        "step outside the scaler": ledger.steps_outside_scaler(),
        "step without update": ledger.scaler_steps_without_update(),
        "norm before unscale": ledger.norms_before_unscale(),
    }
    return {name: count_occurrences(call, each) for name, each in records.items()}


def _make_scaler(setting: StepSetting) -> Any:
    """A scaler as after a first step: a new one would raise where it is forgotten.

    It grows after every good step, so that one update is seen as one doubling.
    """
    kind = torch.device(setting.device).type
    scaler = torch.amp.GradScaler(
        kind, init_scale=SCALE, growth_interval=1, enabled=setting.enabled
    )
    scaler.scale(torch.ones((), device=setting.device))
    return scaler


def _call_once_or_twice(
    call: Call, setting: StepSetting, model: Any, loss_fn: Any, optimizer: Any, scaler: Any
) -> Any:
    """What the student's function returns, after an earlier step where the setting has one.

    After that step the model's weights are restored. The call changes model, optimizer and scaler.
    Raises StudentRaised.
    """
    others = (loss_fn, optimizer, scaler, setting.device)
    if setting.earlier_norm is not None:
        batch = make_batch(call.seed)
        call(model, batch, *others, max_norm=setting.earlier_norm)
        _restore_weights(model, call.seed)  # from there on, there would be little to learn
    options = {}
    if setting.max_norm is not None:
        options["max_norm"] = setting.max_norm
    batch = make_batch(call.seed)
    return call(model, batch, *others, **options)


def _make_optimizer(model: Any, setting: StepSetting) -> Any:
    """An optimizer with the setting's momentum from before.

    Gives every parameter a gradient that must not leak into the step.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * setting.less, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, STALE)
        if setting.momentum:
            state = optimizer.state[parameter]
            state["momentum_buffer"] = torch.full_like(parameter, setting.momentum)
    return optimizer


def _parameters_and_starts(model: Any, seed: int) -> Iterator[tuple[Any, Any]]:
    """Each parameter of the model, and its value from before the step."""
    starts = draw_numbers(seed).parameters
    return zip(model.parameters(), starts, strict=True)


def _restore_weights(model: Any, seed: int) -> None:
    """Give the model's parameters their values from before the step."""
    with torch.no_grad():
        for parameter, start in _parameters_and_starts(model, seed):
            parameter.copy_(start)


def _update_of(model: Any, seed: int) -> Array:
    """The changes of all parameters since the start for this seed, flat, one after the other."""
    changes = []
    for parameter, start in _parameters_and_starts(model, seed):
        weights = parameter.detach().cpu()
        changes.append((weights - start).flatten())
    return array_of(torch.cat(changes))


def _gradients_of(model: Any) -> list[Any]:
    """The gradients of those parameters that have one."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def _has_gradients(model: Any) -> bool:
    """True if any parameter has a gradient other than zero."""
    return any(gradient.cpu().any() for gradient in _gradients_of(model))


@lru_cache(maxsize=1)
def _provoke_warnings() -> None:
    """Use half precision once, without warnings.

    A CPU without it warns once, with a page of C++ frames, which students need not see.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.bfloat16, torch.float16):
            square = torch.ones(8, 8, dtype=dtype)
            row = torch.ones(8, dtype=dtype)
            nn.functional.linear(square, square, row)


def _explain_error(error: StudentRaised, call: Call, log: PrecisionLog) -> StudentRaised:
    """A new error with the calls made so far in its message, and what had been copied.

    It is returned, not raised. A scaler's errors have more than one cause.
    """
    inputs, targets = make_batch(call.seed)
    copied = lines_of_copies(call, inputs=inputs, targets=targets)
    order = call.ledger.training_order()
    if order[-2:] == ("scaler.step", "scaler.unscale_"):
        order = order[:-1]  # which scaler.step called itself
    note = f"done so far: {_calls_in_words(order)}"
    if _has_lost_gradients(order, log.model):
        # The loss records the backward passes that reach it.
        if log.backwards and all(loss.got_outputs for loss in log.losses):
            note = f"{note}; no parameter had a gradient any more"
        else:
            note = f"{note}; {NOT_REACHED}"
    message = add_to_first_line(error.evidence.message, f"({note})")
    return error.with_facts(message=message, copied=copied)


def _has_lost_gradients(order: tuple[str, ...], model: Any) -> bool:
    """True if scaler.step found no gradient after a backward pass, and before any step."""
    if "scaler.step" not in order:
        return False
    before_step = order[: order.index("scaler.step")]
    if "backward" not in before_step or "step" in before_step:
        return False
    return not _gradients_of(model)


def _calls_in_words(order: tuple[str, ...]) -> str:
    """The calls that were made, in their order, for people: "forward, backward"; or "nothing".

    Equal neighbours are one: the loss is a module too, and its forward after the model's says
    nothing new.
    """
    names = [name for name, _ in itertools.groupby(order)]
    return ", ".join(names) or "nothing"
