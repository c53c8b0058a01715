"""04: a training epoch on the device."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpudojo.days.day8.loops_over_batches import (
    CLIPPING,
    OPTIMIZER_AS_IT_WAS,
    batches_left_out,
    changed_option,
    expect_forward_passes,
    gradients_not_reached,
    loss_of_other_outputs,
    missing_loss,
    step_of_another_optimizer,
    where_gradients_were_zeroed,
    why_a_loop_raises,
)
from gpudojo.days.day8.returned_numbers import ReturnedNumber, describe_number
from gpudojo.days.day8.sprites import CLASSES, SPRITE_NUMBERS, linear_layer, make_sprites
from gpudojo.days.day8.watched_objects import ForwardPass, WatchLog, has_gradients
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    call_and_restore_settings,
    device_name,
    nn,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import (
    changes_no_settings,
    compare_cases,
    count_in_words,
    device_mistake,
    expect_device_used,
    expect_float,
    is_between_gpus,
    runs,
)
from gpudojo.grading.comparing import arrays_close
from gpudojo.model.evidence import Array, Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, with_article

exercise = Exercise(
    "04_modifying_training_loop_gpu",
    "A training loop that runs on the GPU",
    points=14,
    reading=("generated/torch.Tensor.to.html", "generated/torch.nn.Module.html", "notes/cuda.html"),
)
train = exercise.function("train_epoch")

SAMPLES = 5  # the last batch is smaller, and a batch of one
BATCH = 4
RATE = 0.15  # neither this nor the momentum is a default
MOMENTUM = 0.8
STEPPED = "a step since the forward pass"  # beside what was copied before an error

# ---- scenarios ---------------------------------------------------------------------------------


class TrainingLog(WatchLog):
    """Records the gradients that backward passes find, and what the model gets of each batch."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.gradients_before: list[Any] = []  # for every backward pass, a copy, or None
        self.inputs_of_model: list[Any] = []
        self.inputs_of_batches: list[Any] = []

    def record_batch(self, inputs: Any, targets: Any) -> None:
        super().record_batch(inputs, targets)
        self.inputs_of_batches.append(inputs.clone())

    def record_forward(self, model: Any, inputs: Any, outputs: Any) -> None:
        super().record_forward(model, inputs, outputs)
        self.inputs_of_model.append(inputs.detach())

    def changed_inputs(self) -> bool:
        """True if the model once got as many numbers as a batch has, and those of none.

        To be asked only after the call, because it reads them. Half precision changes them a bit.
        """
        batches = [batch.flatten() for batch in self.inputs_of_batches]
        for inputs in self.inputs_of_model:
            found = inputs.cpu().float().flatten()
            alike = [batch for batch in batches if batch.numel() == found.numel()]
            if alike and not any(torch.allclose(found, batch, atol=0.02) for batch in alike):
                return True
        return False

    def record_backward(self, gradient: Any) -> None:
        """Copy the last layer's gradients, to be read after the call."""
        self.gradients_before.append(self.copy_gradients())

    def added_to_gradients(self) -> list[bool]:
        """For every backward pass, whether it added to gradients.

        To be asked only after the call, because it reads them.
        """
        return [has_gradients(before) for before in self.gradients_before]


class TrainingNumbers(NamedTuple):
    """What an epoch is made of."""

    pictures: Any
    classes: Any
    weight: Any
    bias: Any


@train.draws_once
def _draw_numbers(seed: int) -> TrainingNumbers:
    """Numbers with which the losses of the batches differ, and one rises before the last.

    So the mean of the batches' means is not the mean over the samples, and who stops where a loss
    rises leaves batches out.
    """
    while True:
        generator = torch.Generator().manual_seed(seed)
        shares = torch.rand(CLASSES, SPRITE_NUMBERS, generator=generator)
        weight = shares * 0.2 - 0.1
        pictures, classes = make_sprites(SAMPLES, seed + 1)
        inputs = pictures.flatten(1)
        first, last = _batch_losses(inputs, classes, weight, BATCH)
        one, another, *_ = _batch_losses(inputs, classes, weight, 1)
        if abs(first - last) > 0.1 and another > one + 0.1:
            bias = torch.zeros(CLASSES)
            return TrainingNumbers(pictures, classes, weight, bias)
        seed += 100_003


def _batch_losses(inputs: Any, classes: Any, weight: Any, size: int) -> list[float]:
    """The losses of the batches of this size of an epoch, in order, computed without autograd.

    The model is one layer with this weight, and a bias of zeros, which changes after each batch as
    an optimizer would change it. `weight` itself stays as it is.
    """
    losses = []
    bias = torch.zeros(CLASSES)
    wanted = torch.eye(CLASSES)[classes]
    batches = zip(inputs.split(size), wanted.split(size), strict=True)
    for x, y in batches:
        logarithms = (x @ weight.T + bias).log_softmax(1)
        sample_losses = -(logarithms * y).sum(1)
        losses.append(sample_losses.mean().item())
        error = (logarithms.exp() - y) * RATE / len(x)
        weight = weight - error.T @ x
        bias = bias - error.sum(0)
    return losses


class Epoch(Case, frozen=True):
    """One call, with what it returned and how the model was trained."""

    returned: ReturnedNumber
    # Losses and batch sizes of this very call: a mistake elsewhere is not blamed on the mean.
    losses: list[tuple[float, int]]
    devices: list[str]  # of the parameters, after the call
    wanted_device: str
    after: list[Array]  # the parameters
    order: list[str]  # of forward passes, backward passes and steps
    forwards: list[ForwardPass]
    loss_devices: list[list[str]]  # for every loss, of outputs and targets
    as_they_are: list[bool]  # for every loss, whether it got the model's outputs themselves
    other_inputs: bool  # whether the model got other numbers than those of the batches
    leftovers: list[bool]  # for every backward pass, whether it added to gradients
    steps: list[bool]  # of the optimizer passed in: whether there were gradients, not all zero
    moved_in_loop: list[int | None]
    step_lines: list[int | None]
    backward_lines: list[int | None]
    batches: int
    settings: list[str]
    changed: bool  # whether the weights are not those from before
    begun: int  # how often the loader was started
    options: list[str]  # of the optimizer that were changed
    state_kept: bool  # whether the optimizer had its state from before when it stepped


def _call_train_epoch(
    call: Call,
    device: Any,
    samples: int = SAMPLES,
    batch: int = BATCH,
    moved: bool = False,
    begun: bool = False,
    partly_training: bool = False,
) -> Epoch:
    """Call the student's function for an epoch of so many samples and describe it.

    With `moved` the model is on the device before; with `begun` the optimizer has stepped before;
    with `partly_training` the model is in training mode before, and its parts are not. Settings
    of torch that were changed are restored. Raises StudentRaised.
    """
    # Watched objects, in the state that the scenario asks for
    copies = [each.clone() for each in _draw_numbers(call.seed)]
    numbers = TrainingNumbers(*copies)
    pictures = numbers.pictures[:samples]
    classes = numbers.classes[:samples]
    linear = linear_layer(numbers.weight, numbers.bias)
    log = TrainingLog(call)
    model = log.make_model(nn.Flatten(), linear)
    loader = log.make_loader(pictures, classes, batch)
    loss_fn = log.make_loss()
    if moved:
        model.to(device)
    optimizer = _make_optimizer(model, begun)
    log.watch_optimizer(optimizer)
    # What must be the same, or different, after the call
    state_before = len(optimizer.state)
    weights_before = [array_of(p) for p in model.parameters()]
    # The student's function has to put the model into training mode itself.
    model.eval()
    model.training = partly_training
    arguments = (model, loader, loss_fn, optimizer, device)
    try:
        value, settings = call_and_restore_settings(call, *arguments)
    except StudentRaised as error:
        raise _explain_error(error, call, log) from None
    weights_after = [array_of(p) for p in model.parameters()]
    return Epoch(
        returned=describe_number(value),
        losses=[(float(loss.value), loss.samples) for loss in log.losses],
        devices=sorted({str(p.device) for p in model.parameters()}),
        wanted_device=device_name(device),
        after=weights_after,
        order=list(call.ledger.training_order()),
        forwards=log.forwards,
        loss_devices=[loss.devices for loss in log.losses],
        as_they_are=[loss.got_outputs for loss in log.losses],
        other_inputs=log.changed_inputs(),
        leftovers=log.added_to_gradients(),
        steps=log.steps_with_gradients(),
        moved_in_loop=_lines_moving_the_model(call, log),
        step_lines=[call.line_of(step) for step in call.ledger.optimizer_steps()],
        backward_lines=[call.line_of(backward) for backward in call.ledger.backward_passes()],
        batches=math.ceil(samples / batch),
        settings=settings,
        changed=weights_after != weights_before,
        begun=log.iterators,
        options=log.changed_options(),
        state_kept=log.parameters_with_state >= state_before,
    )


def _make_optimizer(model: Any, begun: bool) -> Any:
    """An optimizer for a model, which gets gradients that must not leak into the first step.

    With `begun` it has momentum from a step before, which only this optimizer knows, and which
    changed the model.
    """
    momentum = 0.0
    if begun:
        momentum = MOMENTUM
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    if begun:
        _fill_gradients(model, 0.1)
        optimizer.step()
    _fill_gradients(model, 1.0)
    return optimizer


def _fill_gradients(model: Any, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def _explain_error(error: StudentRaised, call: Call, log: TrainingLog) -> StudentRaised:
    """The error with what had been copied, and the line of a step since the forward pass.

    It is returned, not raised.
    """
    copies = log.copied_lines()
    if log.forwards and len(log.gradients_of_steps) >= len(log.forwards):
        # No backward pass has come between.
        steps = call.ledger.optimizer_steps()
        copies[STEPPED] = call.first_line(reversed(steps)) or 0
    return error.with_facts(copied=copies)


def _lines_moving_the_model(call: Call, log: TrainingLog) -> list[int | None]:
    """The lines that moved the model while batches were being fetched.

    Where the model itself was not moved, those that copied its largest parameter.
    """
    if log.first_mark is None or log.moves:
        return log.moves
    largest = max(p.nbytes for p in log.model.parameters())
    ledger = call.bench.ledger.since(log.first_mark, log.end_mark)
    copies = ledger.transfers_to_device()
    return [call.line_of(copy) for copy in copies if copy.bytes == largest]


@train.probe
def epochs(call: Call) -> Cases[Epoch]:
    """Epochs on the device and on the CPU.

    An empty loader comes second, and another model on the CPU after it: what a function remembers
    of a call must not change the next epoch.
    Raises StudentRaised for an error about a closed device or memory.
    """
    device = call.device
    return try_scenarios(
        {
            "model_starts_on_the_cpu": lambda: _call_train_epoch(call, device),
            "nothing_to_train_on": lambda: _call_train_epoch(call, device, samples=0),
            "another_model": lambda: _call_train_epoch(
                call, device, samples=2, partly_training=True
            ),
            "trained_before": lambda: _call_train_epoch(
                call, device, samples=2, moved=True, begun=True
            ),
            # With another mean, in case the last one is remembered, and a loss that rises.
            "on_the_cpu": lambda: _call_train_epoch(call, "cpu", samples=3, batch=1),
        }
    )


@train.probe(machine="two gpus")
def an_epoch_on_the_second_gpu(call: Call) -> Cases[Epoch]:
    """An epoch of a model that is on the second GPU already; the device is a string.

    Raises StudentRaised for an error about a closed device or memory.
    """
    return try_scenarios(
        {"already_there": lambda: _call_train_epoch(call, "cuda:1", samples=2, moved=True)}
    )


# ---- claims ------------------------------------------------------------------------------------

EPOCHS = (
    "model_starts_on_the_cpu",
    "on_the_cpu",
    "already_there",
    "trained_before",
    "another_model",
)


PROBES = (epochs, an_epoch_on_the_second_gpu)


def _all_epochs(seen: Seen) -> Cases[Epoch]:
    return seen.cases(*PROBES)


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error; None if none is known.

    It is found from torch's message and from what had been copied before. Raises ScenarioRaised if
    the whole probe ended with an error.
    """
    if "modified by an inplace operation" in raised.message:
        # A step between forward and backward changes what backward needs; so do other operations.
        if STEPPED in raised.copied:
            return "step-before-backward"
        return None
    key = device_mistake(raised)
    about = {"inputs-on-cpu": "inputs", "targets-on-cpu": "targets"}.get(key or "")
    if about in raised.copied:
        return key
    if raised.scenario == "already_there":
        first = seen[epochs].get("model_starts_on_the_cpu")
        is_left_behind = first is not None and first.devices == ["cpu"]
        if key is not None and is_left_behind:
            return "model-not-moved"  # where the model had been on the CPU, so had all else
        if is_between_gpus(raised.message):
            return "device-index-dropped"  # "cuda:1" was asked for
    return why_a_loop_raises(raised, seen)


runs(train, scenarios=EPOCHS, diagnose=_why_it_raises)


@train.check(points=0.5)
def calls_the_model(seen: Seen, wanted: Seen) -> None:
    """The model is called with the inputs of the batches."""
    # In the main scenario: who leaves out batches elsewhere loses other points.
    name = EPOCHS[0]
    expect_forward_passes(name, _all_epochs(seen)[name].forwards)


CALLED = ("runs", "calls_the_model")


@train.check(points=2)
def moves_the_model_once(seen: Seen, wanted: Seen) -> None:
    """The model itself is moved to the device, once, before the loop, and stays there."""
    for name in ("model_starts_on_the_cpu", "already_there"):
        lines = _all_epochs(seen)[name].moved_in_loop
        if lines:
            happened = "the model was moved after the first batch had been fetched"
            raise Failed(happened, "one move before the loop", lines[0], "model-moved-in-loop")
    case = seen[epochs]["model_starts_on_the_cpu"]
    device = case.wanted_device
    if case.devices == [device]:
        return
    happened = f"after the epoch the parameters are on {', '.join(case.devices)}"
    if not all(forward.own for forward in case.forwards):
        expected = "the model itself moved and trained"
        raise Failed(f"a copy was trained, and {happened}", expected, None, "model-copied")
    if any(forward.input_device == device for forward in case.forwards):
        back = ("cpu(", '"cpu"', "last to(")
        raise Failed(happened, f"all of them still on {device}", at=back)
    raise Failed(happened, f"all of them on {device}", misconception="model-not-moved")


@train.check(points=2.5, needs=CALLED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Training happens on the device passed in, whatever this machine has."""
    for name in ("on_the_cpu", "already_there"):
        case = _all_epochs(seen)[name]
        expect_device_used(case.wanted_device, case.devices, "the model ended up on")


@train.check(points=2.5, needs=CALLED)
def computes_the_loss_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Inputs, outputs and targets are on the device when the model and `loss_fn` get them."""
    case = seen[epochs]["model_starts_on_the_cpu"]
    device = case.wanted_device
    for forward in case.forwards:
        if forward.input_device != device:
            happened = f"the model got its inputs on {forward.input_device}"
            raise Failed(happened, f"inputs on {device}", misconception="inputs-on-cpu")
    for outputs, targets in case.loss_devices:
        if {outputs, targets} != {device}:
            happened = f"`loss_fn` got outputs on {outputs} and targets on {targets}"
            key = None
            if outputs == device:
                key = "targets-on-cpu"
            raise Failed(happened, f"both on {device}", misconception=key)


@train.check(points=1, needs=CALLED)
def trains_in_training_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in training mode."""
    expected = "every forward pass in training mode"
    for name in ("model_starts_on_the_cpu", "another_model"):
        forwards = seen[epochs][name].forwards
        evaluating = [forward for forward in forwards if forward.evaluating]
        if not evaluating:
            continue
        happened = f"{len(evaluating)} of {len(forwards)} forward passes ran in evaluation mode"
        at: tuple[str, ...] = ()
        if name == "another_model":  # of the first model everything was put into training mode
            happened = "a model was in training mode and its layers were not: these stayed so"
            at = (".training", "train(")
        raise Failed(happened, expected, None, "not-in-training-mode", at)


# Before the weights are compared: on a real GPU a changed precision changes them too.
changes_no_settings(train, *PROBES, points=0.5, needs=CALLED)


@train.check(points=2.5)
def learns_as_it_should(seen: Seen, wanted: Seen) -> None:
    """For every batch the gradients are zeroed, computed and used for one step of the optimizer
    that was passed in."""
    for name, case, right in compare_cases(seen, wanted, *PROBES, names=EPOCHS):
        if not arrays_close(case.after, right.after):
            raise _why_it_learned_wrongly(case)
        expect_forward_passes(name, case.forwards)


def _why_it_learned_wrongly(case: Epoch) -> Failed:
    """The failure of an epoch with wrong weights. It is returned, not raised.

    It is the first of the possible causes that is found.
    """
    return (
        _wrong_order(case)
        or _fewer_steps(case)
        or _wrong_gradients(case)
        or _batches_left_out(case)
        or _wrong_number_of_steps(case)
        or _changed_optimizer(case)
        or _other_weights(case)
    )


def _wrong_order(case: Epoch) -> Failed | None:
    """The failure of an epoch without steps or backward passes, or with a step that came first.

    It is returned, not raised; None if it is none of these.
    """
    if "step" not in case.order:
        if case.changed:
            happened = "the weights were changed without the optimizer"
            return Failed(happened, "weights changed by the optimizer alone", at=(".grad", ".data"))
        expected = f"{case.batches} steps"
        return Failed("the optimizer never stepped", expected, misconception="missing-step")
    line = case.step_lines[0]
    if not case.steps:
        return step_of_another_optimizer(line=line)
    if "backward" not in case.order:
        expected = f"{case.batches} backward passes"
        return Failed("there was no backward pass", expected, line, "missing-backward")
    if case.order.index("step") < case.order.index("backward"):
        happened = "step() came before backward()"
        return Failed(
            happened, "a step that uses the gradients of its batch", line, "step-before-backward"
        )
    return None


def _fewer_steps(case: Epoch) -> Failed | None:
    """The failure of an epoch with fewer steps than backward passes, one for each forward pass.

    It is returned, not raised; None if it is none. Gradients that add up follow from it.
    """
    steps = case.order.count("step")
    backwards = case.order.count("backward")
    if not steps < backwards <= len(case.forwards):
        return None
    happened = f"the optimizer stepped {count_in_words(steps)} for {backwards} backward passes"
    return Failed(happened, "a step for every batch", case.step_lines[0], "step-left-out")


def _wrong_gradients(case: Epoch) -> Failed | None:
    """The failure of steps whose gradients are not those of one batch; None if they are.

    It is returned, not raised.
    """
    backwards = case.order.count("backward")
    if not all(case.steps):
        line = case.step_lines[case.steps.index(False)]
        # The loss records the backward passes that reach it.
        if len(case.leftovers) < backwards or not all(case.as_they_are):
            return gradients_not_reached()
        happened = "the gradients were zeroed between backward() and step()"
        expected = "gradients that are still there when the step uses them"
        at = where_gradients_were_zeroed(case.backward_lines[0], line)
        return Failed(happened, expected, line, at=at)
    if backwards > len(case.forwards):
        happened = f"backward() ran {count_in_words(backwards)} in {case.batches} batches"
        return Failed(happened, "one backward pass for every batch", at=("last backward(",))
    if True not in case.leftovers:
        return None
    which = case.leftovers.index(True)
    happened = f"backward() of batch {which + 1} added to gradients"
    expected = "in every step, the gradients of this batch only"
    line = None
    if which < len(case.backward_lines):
        line = case.backward_lines[which]
    # Of several batches the first alone: the gradients are zeroed, but too late for it.
    first, *others = case.leftovers
    if first and others and not any(others):
        happened = f"{happened} that were there before the call"
        return Failed(happened, expected, line, "stale-gradients", ("zero_grad(",))
    happened = f"{happened} that were not zeroed"
    at = ("zero_grad(", "zero_(", ".grad =")
    return Failed(happened, expected, line, "missing-zero-grad", at)


def _batches_left_out(case: Epoch) -> Failed | None:
    """The failure of a loop that leaves batches out; None if it does not."""
    count = len(case.forwards)
    if count < case.batches:
        return batches_left_out(count, case.batches)
    return None


def _wrong_number_of_steps(case: Epoch) -> Failed | None:
    """The failure of an epoch with a wrong number of steps; None if it is right.

    It is returned, not raised. The loader may also have been started several times, and give its
    first batch again.
    """
    steps = case.order.count("step")
    if steps != case.batches:
        happened = f"the optimizer stepped {count_in_words(steps)} for {case.batches} batches"
        return Failed(happened, f"{case.batches} steps", case.step_lines[-1])
    if case.begun > 1:
        started = f"the loader was started {count_in_words(case.begun)}"
        happened = f"{started}, and each time gives its first batch again"
        return Failed(happened, "one loop over the loader", at=("next(", "iter("))
    return None


def _changed_optimizer(case: Epoch) -> Failed | None:
    """The failure of an epoch that changed the optimizer; None if it did not.

    It is returned, not raised. Afterwards the optimizer has other options, or has lost its state
    from before.
    """
    if case.options:
        return changed_option(case.options[0])
    expected = OPTIMIZER_AS_IT_WAS
    if not case.state_kept:
        happened = "the optimizer's state from earlier steps, such as its momentum, was lost"
        return Failed(happened, expected, at=(".state", "load_state_dict("))
    return None


def _other_weights(case: Epoch) -> Failed:
    """The failure of an epoch whose weights are wrong for another reason."""
    if not all(case.as_they_are):
        return loss_of_other_outputs("softmax(")
    if case.other_inputs:
        happened = "the model got other numbers than the inputs of the batches"
        expected = "`model(inputs)`, with the inputs as they are"
        return Failed(happened, expected, at=("mean(", "std(", "/ number", "* number", "item ="))
    happened = "the weights after the epoch differ from the reference's"
    at = (*CLIPPING, "changed loss_fn(", ".grad", "loss_fn(")
    return Failed(happened, "the weights that this optimizer gives", at=at)


@train.check(points=0.5)
def steps_once_for_every_batch(seen: Seen, wanted: Seen) -> None:
    """The optimizer that was passed in steps once for every batch."""
    for name in EPOCHS:
        case = _all_epochs(seen)[name]
        steps = len(case.steps)
        if steps == case.batches:
            continue
        left_out = _batches_left_out(case)
        if left_out:
            raise left_out
        if not steps and "step" in case.order:
            raise step_of_another_optimizer(f"scenario `{name}`: ")
        called = "not called"
        if steps:
            called = f"called {count_in_words(steps)}"
        batches = f"there were {case.batches} batches (scenario `{name}`)"
        happened = f"`optimizer.step()` was {called}; {batches}"
        line = None
        key = None
        if not steps:
            key = "missing-step"
        elif steps > case.batches and case.step_lines:
            line = case.step_lines[-1]
        raise Failed(happened, "one step for every batch", line, key)


@train.check(points=1.5)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """It returns the mean loss per sample, as a Python float."""
    for name in EPOCHS:
        case = _all_epochs(seen)[name]
        expect_float(case.returned.kind, case.returned.is_float)
        if not case.losses:
            raise missing_loss(name)
        samples = 0
        total = 0.0
        for loss, size in case.losses:
            samples += size
            total += loss * size
        mean = total / samples
        if not _is_near(case.returned.value, mean):
            raise _wrong_mean(case, mean, samples)


def _wrong_mean(case: Epoch, mean: float, samples: int) -> Failed:
    """The failure of a number other than the mean. It is returned, not raised.

    `mean` is the right number, over so many samples. It says what number the wrong one is, where
    that can be told.
    """
    value = case.returned.value
    assert value is not None
    expected = f"{mean:.4f}, the mean over all samples of this epoch's losses"
    losses = [loss for loss, _ in case.losses]
    mean_of_means = sum(losses) / len(losses)
    if _is_near(value, mean_of_means):
        key = "mean-of-batch-means"
        happened = f"it returned {value:.4f}"
        return Failed(happened, expected, None, key, ("last item(",))
    if value == math.floor(mean):
        happened = f"it returned {value:.4f}, which is rounded down"
        return Failed(happened, expected, None, "floor-division", ("round(", "last return"))
    divisor = _wrong_divisor(value, mean, samples)
    at: tuple[str, ...] = ("round(", "return") if divisor else ("round(", "last item(")
    note = ""
    if any(value == round(mean, digits) for digits in range(4)):
        note = ", which is rounded"
        at = ("round(", "last return")
    elif _is_near(value, losses[-1]):
        note = ", the loss of the last batch"
    elif _is_near(value, sum(losses) / samples):
        note = f", the sum of {len(losses)} means divided by {samples} samples"
        at = ("last item(",)
    elif divisor:
        note = f", the sum over {samples} samples divided by {divisor}"
    happened = f"it returned {value:.4f}{note}"
    return Failed(happened, expected, at=at)


def _wrong_divisor(value: float, mean: float, samples: int) -> int | None:
    """The number by which the sum over the samples was divided to get this value.

    None if there is none, and if it is the right one. `mean` is the right value.
    """
    total = mean * samples
    for divisor in range(1, 2 * samples):
        if divisor != samples and _is_near(value, total / divisor):
            return divisor
    return None


def _is_near(value: float | None, wanted: float) -> bool:
    if value is None:
        return False
    return math.isclose(value, wanted, rel_tol=1e-4, abs_tol=1e-6)


@train.check(points=0.5, needs=CALLED)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives 0.0."""
    found = seen[epochs]["nothing_to_train_on"].returned
    if found.value != 0.0:
        shown = str(found.value)
        if found.value is None:
            shown = with_article(found.kind)
        raise Failed(f"an empty loader gave {shown}", "0.0")
