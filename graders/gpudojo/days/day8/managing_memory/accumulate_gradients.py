"""`accumulate_gradients`: steps of an optimizer after several batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from gpudojo.days.day8.loops_over_batches import (
    CLIPPING,
    batches_left_out,
    changed_option,
    expect_ran_on,
    gradients_not_reached,
    step_of_another_optimizer,
    where_gradients_were_zeroed,
    why_a_loop_raises,
)
from gpudojo.days.day8.managing_memory.declaration import accumulate
from gpudojo.days.day8.returned_numbers import int_or_none
from gpudojo.days.day8.sprites import CLASSES, SPRITE_NUMBERS, make_sprites, seeded_generator
from gpudojo.days.day8.watched_objects import WatchLog
from gpudojo.grading.call import Call, array_of, device_name, nn, torch, try_inputs
from gpudojo.grading.checks import (
    check_scenarios,
    compare_cases,
    expect_mode_kept,
    mode_in_words,
    runs,
)
from gpudojo.grading.comparing import arrays_close
from gpudojo.grading.differences import ToldValue, tell_apart, told_value
from gpudojo.model.evidence import Array, Case, Cases
from gpudojo.model.exercise import Failed, Seen

FLATTEN = "0"  # the names of the model's parts
LINEAR = "1"

# ---- scenarios ---------------------------------------------------------------------------------


class AccumulationLog(WatchLog):
    """Records by what losses are multiplied, and whether backward passes find gradients."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.scales: list[Any] = []  # 1 / steps where the loss was divided
        self.clean: list[bool] = []  # whether the gradients were zero before each backward pass

    def record_backward(self, gradient: Any) -> None:
        """Record the scale of the loss, and whether there is a gradient already.

        Only the bias is asked, because it is small.
        """
        self.scales.append(gradient.detach())
        bias = self.model[1].bias
        is_clean = bias.grad is None or not bias.grad.any()
        self.clean.append(is_clean)


class Accumulated(Case, frozen=True):
    """One pass over a loader."""

    value: int | None
    told: ToldValue
    devices: list[str]
    wanted_device: str
    after: list[Array]  # the weights
    own: bool  # whether it was the optimizer passed in that stepped
    emptied: bool  # whether one of its steps found no gradients
    as_they_are: bool  # whether every loss got the model's outputs themselves
    step_lines: list[int | None]
    backward_line: int | None
    per_step: list[int]  # backward passes before each step
    unused: int  # backward passes after the last step
    ahead: bool  # whether a step came between a forward pass and its backward
    scales: list[float]  # what each loss was multiplied by
    clean: list[bool]  # for each backward pass, whether the gradients were zero before it
    batches: int
    forwards: int  # forward passes of the model
    options: list[str]  # of the optimizer that were changed
    steps: int
    training: bool  # the mode before the call
    whole: list[bool]  # whether it was in training mode, in every pass and afterwards
    part: list[bool]  # the same of a part that was in the other mode

    @property
    def taken(self) -> int:
        """The number of optimizer steps."""
        return len(self.per_step)

    @property
    def where(self) -> str:
        """The pass in words: how many batches, and how many for each step."""
        return f"({_batches_in_words(self.batches)}, steps={self.steps})"

    @property
    def step_line(self) -> int | None:
        if self.step_lines:
            return self.step_lines[0]
        return None

    @property
    def extra_line(self) -> int | None:
        """The line of the first step without a backward pass, else of the first.

        None if it is not known.
        """
        tries = zip(self.step_lines, self.per_step, strict=False)
        for line, passes in tries:
            if not passes:
                return line
        return self.step_line


def _batches_in_words(count: int) -> str:
    if count == 1:
        return "1 batch"
    return f"{count} batches"


class AccumulationSetting(NamedTuple):
    """One scenario: a pass over this many sprites, in batches of two."""

    device: Any
    sprites: int
    steps: int
    training: bool = True  # the mode of the model
    moved: bool = False  # whether the model is on the device before the call
    dirty: bool = False  # whether there are gradients before the call
    state: bool = False  # whether the optimizer has a state, as after earlier steps


def _call_accumulate(call: Call, setting: AccumulationSetting) -> Accumulated:
    """Call the student's function for one pass and describe it.

    Raises StudentRaised if it raises, and what torch raises for values that cannot be read.
    """
    log = AccumulationLog(call)
    model = _make_model(call.seed, log, setting)
    optimizer = _make_optimizer(model, setting)
    log.watch_optimizer(optimizer)
    pictures, classes = make_sprites(9, call.seed + 1)
    pictures = pictures[: setting.sprites]
    classes = classes[: setting.sprites]
    loader = log.make_loader(pictures, classes, batch_size=2)
    loss_fn = log.make_loss()
    with log.explaining_errors():
        value = call(model, loader, loss_fn, optimizer, setting.device, setting.steps)
    ledger = call.ledger
    devices = {forward.input_device for forward in log.forwards}
    whole = [LINEAR in forward.training for forward in log.forwards]
    part = [FLATTEN in forward.training for forward in log.forwards]
    return Accumulated(
        value=int_or_none(value),
        told=told_value(value),
        devices=sorted(devices),
        wanted_device=device_name(setting.device),
        after=[array_of(p) for p in model.parameters()],
        own=bool(log.gradients_of_steps),
        emptied=False in log.steps_with_gradients(),
        as_they_are=all(loss.got_outputs for loss in log.losses),
        step_lines=[call.line_of(step) for step in ledger.optimizer_steps()],
        backward_line=call.first_line(ledger.backward_passes()),
        per_step=list(ledger.backwards_per_step()),
        unused=len(ledger.backwards_after_last_step()),
        ahead=("forward", "step") in pairwise(ledger.training_order()),
        scales=[round(scale.item(), 4) for scale in log.scales],
        clean=log.clean,
        batches=log.batches,
        forwards=len(log.forwards),
        options=log.changed_options(),
        steps=setting.steps,
        training=setting.training,
        whole=[*whole, model.training, model[1].training],
        part=[*part, model[0].training],
    )


def _make_model(seed: int, log: WatchLog, setting: AccumulationSetting) -> Any:
    """A model watched by `log`, in the mode and on the device of the setting.

    One part is in the other mode, as batch norm may be for fine-tuning.
    """
    with seeded_generator(seed):
        linear = nn.Linear(SPRITE_NUMBERS, CLASSES)
        model = log.make_model(nn.Flatten(), linear)
    if setting.moved:
        model.to(setting.device)
    model.train(setting.training)
    model[0].train(not setting.training)
    return model


def _make_optimizer(model: Any, setting: AccumulationSetting) -> Any:
    """An optimizer, with the state and the gradients that the scenario asks for."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for parameter in model.parameters():
        if setting.state:
            state = optimizer.state[parameter]
            state["momentum_buffer"] = torch.full_like(parameter, 0.25)
        if setting.dirty:
            parameter.grad = torch.ones_like(parameter)
    return optimizer


@accumulate.probe
def accumulations(call: Call) -> Cases[Accumulated]:
    """The passes over a loader in each scenario.

    The device is tried where it matters, the counting on the CPU, where it is faster. Raises
    StudentRaised for an error about a closed device or memory.
    """
    gpu = call.device
    settings = {
        "model_on_the_cpu": AccumulationSetting(gpu, 4, steps=2),
        "model_already_there": AccumulationSetting(str(gpu), 1, steps=2, moved=True),
        "told_to_use_the_cpu": AccumulationSetting("cpu", 8, steps=2),
        "dirty_gradients": AccumulationSetting(gpu, 2, steps=1, dirty=True),
        "in_evaluation_mode": AccumulationSetting("cpu", 4, steps=1, training=False, state=True),
        "with_a_remainder": AccumulationSetting("cpu", 9, steps=3, state=True),
    }
    return try_inputs(_call_accumulate, call, settings)


@accumulate.probe(machine="two gpus", edge=True)
def accumulations_on_the_second_gpu(call: Call) -> Cases[Accumulated]:
    settings = {"on_the_second_gpu": AccumulationSetting("cuda:1", 2, steps=1)}
    return try_inputs(_call_accumulate, call, settings)


# ---- claims ------------------------------------------------------------------------------------

TRAINED = ("model_on_the_cpu", "model_already_there", "told_to_use_the_cpu")
runs(accumulate, scenarios=TRAINED, diagnose=why_a_loop_raises)


def _compare_passes(
    seen: Seen, wanted: Seen, *names: str
) -> Iterator[tuple[Accumulated, Accumulated]]:
    """Yield what was seen and what the reference did, for these scenarios.

    Raises ScenarioRaised for one in which the student's function raised, and KeyError.
    """
    probes = (accumulations, accumulations_on_the_second_gpu)
    for _, found, right in compare_cases(seen, wanted, *probes, names=names):
        yield found, right


@accumulate.check(points=0.25)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The model is trained on the device passed in, even if another GPU is current."""
    was_called = False
    # ScenarioRaised where the function raised: the engine explains it.
    for found, right in _compare_passes(seen, wanted, *TRAINED, "on_the_second_gpu"):
        if found.devices:
            was_called = True
            expect_ran_on(right.wanted_device, found.devices)
    if not was_called:
        raise Failed("the model was never called", "a pass over the loader")


@accumulate.check(points=0.5)
def steps_after_every_group(seen: Seen, wanted: Seen) -> None:
    """The optimizer steps after every `steps` batches, with the mean of their gradients."""
    anywhere = _steps_in_any_scenario(seen)
    names = ("model_on_the_cpu", "told_to_use_the_cpu", "in_evaluation_mode")
    for found, right in _compare_passes(seen, wanted, *names):
        has_all_steps = found.taken == right.taken
        if not has_all_steps or not arrays_close(found.after, right.after):
            raise _why_weights_differ(found, right, anywhere)
        if found.options:
            raise changed_option(found.options[0], f"{right.where} ")


def _steps_in_any_scenario(seen: Seen) -> bool:
    """True if any pass made a step.

    Then, in a pass without one, the call of `step()` is there and its condition is wrong. To be
    asked before the passes are looked at: the line shown for a failure is one of the pass looked at
    last. Raises ScenarioRaised where the probe itself ended with an error.
    """
    trained = dict.values(seen[accumulations])  # without an error
    return any(found.taken for found in trained)


def _why_weights_differ(found: Accumulated, right: Accumulated, steps_anywhere: bool) -> Failed:
    """The failure of a pass whose weights are not the reference's; returned, not raised.

    It is the first of the possible causes that is found. `steps_anywhere` is whether any pass made
    a step.
    """
    return (
        _something_left_out(found, right, steps_anywhere)
        or _joined_batches(found, right)
        or _wrong_groups(found, right)
        or _wrong_gradients(found, right)
    )


def _something_left_out(
    found: Accumulated, right: Accumulated, steps_anywhere: bool
) -> Failed | None:
    """The failure of a pass that left something out; None if it did not.

    Left out are backward passes, batches, steps, the optimizer that was passed in, or the gradients
    of a step. Without steps here, `steps_anywhere` tells a wrong condition from a forgotten call.
    """
    where = right.where
    if not found.scales:
        happened = f"{where} there was no backward pass"
        expected = "a backward pass for every batch"
        return Failed(happened, expected, misconception="missing-backward")
    if found.batches < right.batches:
        return batches_left_out(found.batches, right.batches, f"{where} ")
    if found.taken != right.taken:
        happened = f"{where} the optimizer made {found.taken} steps"
        if found.taken > right.taken:
            line = found.extra_line
        else:
            line = found.step_line
        key = None
        if not steps_anywhere:
            key = "missing-step"
        return Failed(happened, str(right.taken), line, key, ("reached line",))
    if not found.own:
        return step_of_another_optimizer(f"{where} ")
    if found.emptied and all(found.per_step):
        # The losses record the backward passes that reach them.
        if len(found.scales) < sum(found.per_step) or not found.as_they_are:
            return gradients_not_reached()
        happened = f"{where} the gradients were zeroed between backward() and step()"
        expected = "gradients that are still there when the step uses them"
        at = where_gradients_were_zeroed(found.backward_line, found.step_line)
        return Failed(happened, expected, found.step_line, at=at)
    return None


def _joined_batches(found: Accumulated, right: Accumulated) -> Failed | None:
    """The failure of fewer forward passes than batches; None for one for each."""
    if found.forwards >= found.batches:
        return None
    passes = "1 forward pass"
    if found.forwards > 1:
        passes = f"{found.forwards} forward passes"
    happened = f"{right.where} {_batches_in_words(found.batches)} went into {passes}"
    at = ("cat(", "concat(", "concatenate(", "vstack(", "stack(")
    return Failed(happened, "a forward and a backward pass for each batch", at=at)


def _has_joined_losses(found: Accumulated) -> bool:
    """True if several losses were in one backward pass."""
    backward_passes = sum(found.per_step) + found.unused
    return len(found.scales) > backward_passes


def _wrong_groups(found: Accumulated, right: Accumulated) -> Failed | None:
    """The failure of steps after other numbers of batches; None for the right ones."""
    if found.per_step == right.per_step or _has_joined_losses(found):
        return None
    groups = " and ".join(map(_batches_in_words, found.per_step))
    happened = f"{right.where} you stepped after {groups}"
    expected = f"a step after every {_batches_in_words(right.steps)}"
    key = None
    if found.unused and found.ahead:
        key = "step-before-backward"
    return Failed(happened, expected, found.step_line, key, ("reached line",))


def _wrong_gradients(found: Accumulated, right: Accumulated) -> Failed:
    """The failure of steps at the right time with wrong gradients."""
    where = right.where
    if found.options:
        return changed_option(found.options[0], f"{where} ")
    # Losses that were not divided, or by another number
    if right.steps > 1 and set(found.scales) == {1}:
        too_large = f"each step is up to {right.steps} times too large"
        happened = f"{where} the losses were not divided: {too_large}"
        expected = f"each batch's loss divided by {right.steps}"
        line = None
        if _has_joined_losses(found):
            line = found.backward_line
        return Failed(happened, expected, line, "loss-not-divided")
    if found.scales != right.scales:
        happened = f"{where} the losses were scaled by {found.scales}"
        key = "losses-scaled-otherwise"
        return Failed(happened, str(right.scales), None, key, ("/", "*", "backward("))
    # Gradients that were not zeroed after a step, or in the middle of a group
    clean = list(zip(found.clean, right.clean, strict=False))
    if (False, True) in clean:
        happened = f"{where} backward() added to gradients that an earlier step had used"
        expected = "gradients zeroed after every step"
        return Failed(happened, expected, found.step_line, "missing-zero-grad")
    if (True, False) in clean:
        zeroed = "the gradients were zeroed in the middle of a group"
        happened = f"{where} {zeroed}, so a step used its last batch only"
        expected = f"the gradients of {right.steps} batches added up"
        return Failed(happened, expected, at=("zero_grad( 2", "zero_grad("))
    scaled = "every loss was scaled as it should be"
    happened = f"{where} {scaled}, but the weights differ from the reference's"
    expected = "steps with the mean of the gradients, not changed otherwise"
    at = (".grad =", "div_(", "mul_(", *CLIPPING, "loss_fn(")
    return Failed(happened, expected, at=at)


@accumulate.check(points=0.5, needs=("runs", "steps_after_every_group"))
def steps_for_the_remainder(seen: Seen, wanted: Seen) -> None:
    """Batches left over at the end get one more step, with their losses divided like all others."""
    anywhere = _steps_in_any_scenario(seen)
    # The longer one first: with one batch, different mistakes look alike.
    names = ("with_a_remainder", "model_already_there")
    for found, right in _compare_passes(seen, wanted, *names):
        if found.taken < right.taken:
            unused = right.batches - sum(found.per_step)
            of_batches = f"{unused} of {right.batches} batches"
            happened = f"{right.where} no step used the gradients of {of_batches}"
            raise Failed(happened, "one more step for them", misconception="remainder-dropped")
        if not arrays_close(found.after, right.after):
            raise _why_weights_differ(found, right, anywhere)


@check_scenarios(
    accumulate,
    accumulations,
    points=0.25,
    needs=("runs", "steps_after_every_group"),
    names=["dirty_gradients"],
)
def starts_from_nothing(scenario: str, found: Accumulated, right: Accumulated) -> None:
    """Gradients from before the call do not leak into the first step."""
    if not arrays_close(found.after, right.after):
        happened = "gradients from before the call went into the first step"
        expected = "gradients of this call's batches only"
        raise Failed(happened, expected, found.backward_line, "stale-gradients")


@check_scenarios(accumulate, accumulations, points=0.25, names=(*TRAINED, "in_evaluation_mode"))
def leaves_the_mode_alone(scenario: str, found: Accumulated, right: Accumulated) -> None:
    """Training or evaluation mode is the caller's choice and is not changed."""
    mode = mode_in_words(right.training)
    other = mode_in_words(not right.training)
    if not found.devices:
        raise Failed("the model was never called", f"a pass over the loader in {mode} mode")
    for training in found.whole:
        expect_mode_kept(f"a model in {mode} mode", right.training, training)
    part = f"a part in {other} mode, of a model in {mode} mode,"
    for training in found.part:
        expect_mode_kept(part, not right.training, training)


@accumulate.check(points=0.25)
def returns_the_number_of_steps(seen: Seen, wanted: Seen) -> None:
    """It returns the number of optimizer steps, as an int."""
    anywhere = _steps_in_any_scenario(seen)
    for found, right in _compare_passes(seen, wanted, *TRAINED):
        if not found.taken:
            key = None
            if not anywhere:
                key = "missing-step"
            elif right.batches < right.steps:
                # Without a remainder it steps: what is missing is the step after the loop.
                key = "remainder-dropped"
            happened = f"{right.where} the optimizer made no step"
            raise Failed(happened, str(right.taken), misconception=key)
        if found.value != found.taken:
            happened = f"{right.where} it returned {found.told.shown}"
            happened = tell_apart(happened, found.told, told_value(found.taken))
            raise Failed(happened, f"{found.taken}, the number of steps")
