"""04: a training epoch on the device."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from typing import Any

from gpudojo.days.day8.sprites import CLASSES, SIZE, linear_layer, make_sprites
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    call_and_restore_settings,
    device_name,
    lines_of_copies,
    nn,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import (
    count_in_words,
    device_mistake,
    expect_float,
    expect_settings_kept,
    is_between_gpus,
    runs,
    scenario_pairs,
)
from gpudojo.grading.comparing import arrays_close
from gpudojo.grading.watching import (
    find_classes,
    keep_state,
    make_picklable,
    state_for_hook,
    state_of,
)
from gpudojo.model.evidence import Array, Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, with_article

exercise = Exercise(
    "04_modifying_training_loop_gpu",
    "A training loop that runs on the GPU",
    points=14,
    reading=("generated/torch.Tensor.to.html", "generated/torch.nn.Module.html", "notes/cuda.html"),
)
train = exercise.function("train_epoch")


class TrainForward(Case, frozen=True):
    """One forward pass of the model."""

    training: bool  # all modules of the model in training mode
    device: str | None  # of the inputs
    own: bool  # run by the model that was passed in, not by a copy


class Watch:
    """Records what happens during one call."""

    def __init__(self, call: Call) -> None:
        self.ledger, self.path = call.bench.ledger, str(call.path)
        self.model: Any = None
        self.forwards: list[TrainForward] = []
        self.walks: list[
            int | None
        ] = []  # lines that moved the whole model after the first batch was fetched
        self.losses: list[tuple[Any, int]] = []  # results of loss_fn, and batch sizes
        self.loss_devices: list[list[str]] = []  # of outputs and targets
        self.output: Any = None  # a weak reference to the latest
        self.as_they_are: list[
            bool
        ] = []  # for every loss, whether it got the latest outputs themselves
        self.found: list[
            Any
        ] = []  # for every backward pass, a copy of the gradients from before, or None
        self.steps: list[bool] = []  # for every optimizer step, whether there were gradients
        self.batch: dict[str, Any] = {}  # the latest
        self.latest: int | None = None  # ledger mark at the latest batch
        self.first: int | None = None  # at the first batch
        self.last: int | None = None  # at the end of the loader
        self.begun = 0  # iterators of the loader
        self.optimizer: Any = None
        self.state = 0  # of how many parameters the optimizer had a state when it stepped first

    def fetched(self, inputs: Any, targets: Any) -> None:
        self.latest = self.ledger.mark()
        self.first = self.latest if self.first is None else self.first
        self.batch = {"inputs": inputs, "targets": targets}

    def ended(self) -> None:
        self.last = self.ledger.mark()

    def moves(self) -> None:
        """Keeps the line of the student's file that is running, if batches are being fetched."""
        if self.first is not None and self.last is None:
            frame: Any = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename != self.path:
                frame = frame.f_back
            self.walks.append(None if frame is None else frame.f_lineno)

    def stepping(self, optimizer: Any) -> None:
        if optimizer is not self.optimizer:
            return
        self.state = self.state if self.steps else len(self.optimizer.state)
        self.steps.append(self.model[-1].bias.grad is not None)

    def keep_gradients(self) -> None:
        """Keeps those of the last layer. Copied now and read after the call: to read them here would be a wait."""
        gradient = self.model[-1].bias.grad
        self.found.append(None if gradient is None else gradient.detach().clone())

    @property
    def leftovers(self) -> list[bool]:
        """For every backward pass, whether it added to gradients. Only to be read after the call."""
        return [gradient is not None and any(gradient.tolist()) for gradient in self.found]


@functools.cache
def _classes() -> tuple[Any, ...]:
    """Model, loader and loss that record what is done with them; made once, and only where torch is needed."""

    class Sequential(nn.Sequential):
        key: int  # of a Watch

        def forward(self, input: Any) -> Any:
            device = str(input.device) if isinstance(input, torch.Tensor) else None
            training = all(
                module.training for module in self.modules()
            )  # the outermost flag is not enough
            watch = state_of(self.key)
            watch.forwards.append(TrainForward(training, device, self is watch.model))
            output = super().forward(input)  # type: ignore[no-untyped-call]
            watch.output = weakref.ref(output)
            return output

        def _apply(self, *args: Any, **kwargs: Any) -> Any:  # where `to`, `cuda` and `cpu` end
            state_of(self.key).moves()
            return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        key: int

        def __iter__(self) -> Any:
            state_of(self.key).begun += 1
            for batch in super().__iter__():
                state_of(self.key).fetched(*batch)
                yield batch
            state_of(self.key).ended()

    class CrossEntropyLoss(nn.CrossEntropyLoss):
        key: int

        def forward(self, input: Any, target: Any) -> Any:
            watch = state_of(self.key)
            key = self.key
            value = super().forward(input, target)
            watch.losses.append((value.detach(), len(target)))
            watch.loss_devices.append([str(input.device), str(target.device)])
            watch.as_they_are.append(watch.output is not None and watch.output() is input)
            if value.requires_grad:
                value.register_hook(lambda gradient: state_for_hook(key).keep_gradients())
            return value

    return make_picklable(Sequential, DataLoader, CrossEntropyLoss)


__getattr__ = find_classes(_classes)


STEPPED = "a step since the forward pass"  # beside what was copied before an error
SAMPLES, BATCH = 5, 4  # the last batch is smaller, and a batch of one
RATE, MOMENTUM = 0.15, 0.8  # not the defaults


@train.draws
def _numbers(seed: int) -> tuple[Any, Any, Any, Any]:
    """Sprites, classes, weight and bias; drawn until the losses of the batches differ, so that their mean is wrong."""
    while True:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.rand(CLASSES, 3 * SIZE * SIZE, generator=generator) * 0.2 - 0.1
        pictures, classes = make_sprites(SAMPLES, seed + 1)
        first, last = _losses(pictures.flatten(1), classes, weight)
        if abs(first - last) > 0.1:
            return pictures, classes, weight, torch.zeros(CLASSES)
        seed += 100_003


def _losses(inputs: Any, classes: Any, weight: Any) -> list[float]:
    """The losses of the batches of an epoch."""
    found = []
    bias = torch.zeros(CLASSES)
    wanted = torch.eye(CLASSES)[classes]
    for x, y in zip(inputs.split(BATCH), wanted.split(BATCH), strict=True):
        logs = (x @ weight.T + bias).log_softmax(1)
        found.append(-(logs * y).sum(1).mean().item())
        error = (logs.exp() - y) * RATE / len(x)
        weight = weight - error.T @ x
        bias = bias - error.sum(0)
    return found


class Epoch(Case, frozen=True):
    """One call, with what it returned and how the model was trained."""

    kind: str
    is_float: bool
    value: float | None
    losses: list[
        tuple[float, int]
    ]  # of this very call, so that a mistake elsewhere is not blamed on the mean
    devices: list[str]
    wanted_device: str
    after: list[Array]
    order: list[str]
    forwards: list[TrainForward]
    loss_devices: list[list[str]]
    as_they_are: list[bool]  # for every loss, whether it got the model's outputs themselves
    leftovers: list[bool]
    steps: list[bool]  # of the optimizer passed in: whether there were gradients
    moved_in_loop: list[int | None]
    step_lines: list[int | None]
    backward_lines: list[int | None]
    batches: int
    settings: list[str]
    changed: bool  # whether the weights are not those from before
    begun: int  # how often the loader was started
    options: list[str]  # of the optimizer that were changed
    state_kept: bool  # whether the optimizer had its state from before when it stepped


def _epoch(
    call: Call, device: Any, samples: int = SAMPLES, moved: bool = False, begun: bool = False
) -> Epoch:
    """An epoch; the model may be on the device before, and the optimizer may have stepped before."""
    pictures, classes, weight, bias = (numbers.clone() for numbers in _numbers(call.seed))
    watch = Watch(call)
    key = keep_state(watch)
    sequential, loader, loss = _classes()
    model = watch.model = sequential(nn.Flatten(), linear_layer(weight, bias))
    data = torch.utils.data.TensorDataset(pictures[:samples], classes[:samples])
    batches = loader(data, batch_size=BATCH)
    loss_fn = loss()
    model.key = batches.key = loss_fn.key = key
    if moved:
        model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM if begun else 0.0)
    for gradient in (0.1, 1.0) if begun else (1.0,):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(
                parameter, gradient
            )  # must not leak into the first step
        if gradient != 1.0:
            optimizer.step()  # it has momentum from before, which only this optimizer knows
    optimizer.register_step_pre_hook(lambda stepped, *_: state_for_hook(key).stepping(stepped))
    options = _options(optimizer)
    state = len(optimizer.state)
    start = [array_of(p) for p in model.parameters()]
    watch.optimizer = optimizer
    model.eval()
    try:
        value, settings = call_and_restore_settings(
            call, model, batches, loss_fn, optimizer, device
        )
    except StudentRaised as error:
        copies = lines_of_copies(call, watch.latest, **watch.batch) if watch.batch else {}
        if watch.forwards and len(watch.steps) >= len(
            watch.forwards
        ):  # no backward pass has come between
            copies |= {STEPPED: call.first_line(reversed(call.ledger.optimizer_steps())) or 0}
        raise error.with_facts(copied=copies) from None
    now = _options(optimizer)
    after = [array_of(p) for p in model.parameters()]
    return Epoch(
        kind=type(value).__name__,
        is_float=isinstance(value, float),
        value=float(value) if isinstance(value, (int, float)) else None,
        losses=[(float(loss), size) for loss, size in watch.losses],
        devices=sorted({str(p.device) for p in model.parameters()}),
        wanted_device=device_name(device),
        after=after,
        order=list(call.ledger.training_order()),
        forwards=watch.forwards,
        loss_devices=watch.loss_devices,
        as_they_are=watch.as_they_are,
        leftovers=watch.leftovers,
        steps=watch.steps,
        moved_in_loop=_moved_in_loop(call, watch, model),
        step_lines=[call.line_of(step) for step in call.ledger.optimizer_steps()],
        backward_lines=[call.line_of(backward) for backward in call.ledger.backward_passes()],
        batches=-(-samples // BATCH),
        settings=settings,
        changed=after != start,
        begun=watch.begun,
        options=[name for name, value in options.items() if now.get(name) != value],
        state_kept=watch.state >= state,
    )


def _options(optimizer: Any) -> dict[str, Any]:
    """The options of an optimizer, such as its learning rate, as they are now."""
    return {
        name: repr(value) for name, value in optimizer.param_groups[0].items() if name != "params"
    }


def _moved_in_loop(call: Call, watch: Watch, model: Any) -> list[int | None]:
    """The lines that moved the model, or only its largest part, while batches were being fetched."""
    if watch.first is None or watch.walks:
        return watch.walks
    largest = max(p.nbytes for p in model.parameters())
    copies = call.bench.ledger.since(watch.first, watch.last).transfers_to_device()
    return [call.line_of(copy) for copy in copies if copy.bytes == largest]


@train.probe
def epochs(call: Call) -> Cases[Epoch]:
    """An empty loader first: what a function remembers of it must not change the next epoch."""
    return try_scenarios(
        {
            "nothing_to_train_on": lambda: _epoch(call, call.device, samples=0),
            "model_starts_on_the_cpu": lambda: _epoch(call, call.device),
            "trained_before": lambda: _epoch(call, call.device, samples=2, moved=True, begun=True),
            "on_the_cpu": lambda: _epoch(
                call, "cpu", samples=3
            ),  # another mean, in case the last one is remembered
        }
    )


@train.probe(machine="two gpus")
def an_epoch_on_the_second_gpu(call: Call) -> Cases[Epoch]:
    """The model is there already, and the device is a string."""
    return try_scenarios({"already_there": lambda: _epoch(call, "cuda:1", samples=2, moved=True)})


CLIPPING = ("clip_grad_norm_(", "clip_grad_value_(")
OWN_LOSSES = (
    "cross_entropy(",
    "CrossEntropyLoss(",
    "nll_loss(",
    "log_softmax(",
)  # where `loss_fn` is not called
EPOCHS = (
    "model_starts_on_the_cpu",
    "on_the_cpu",
    "already_there",
    "trained_before",
)  # most telling first


def _epochs(seen: Seen) -> Cases[Epoch]:
    return seen.cases(epochs, an_epoch_on_the_second_gpu)


def _why(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error, from torch's message and from what had been copied before."""
    if "modified by an inplace operation" in raised.message:
        # A step between forward and backward changes what backward needs; so do other operations in place.
        return "step-before-backward" if STEPPED in raised.copied else None
    key = device_mistake(raised)
    if {"inputs-on-cpu": "inputs", "targets-on-cpu": "targets"}.get(key or "") in raised.copied:
        return key
    if key is not None and raised.scenario == "on_the_cpu":
        return "hard-coded-cuda"  # nothing here is on a GPU unless the function moved it
    first = seen[epochs].get("model_starts_on_the_cpu")
    if (
        key is not None
        and raised.scenario == "already_there"
        and first is not None
        and first.devices == ["cpu"]
    ):
        return "model-not-moved"  # where the model had been on the CPU, so had everything else
    if raised.scenario == "already_there" and is_between_gpus(raised.message):
        return "device-index-dropped"  # "cuda:1" was asked for
    if key is None and raised.scenario == "nothing_to_train_on":  # with sprites it ran
        return "empty-loader-forgotten"
    return key


runs(train, scenarios=EPOCHS, diagnose=_why)


@train.check(points=1)
def calls_the_model(seen: Seen, wanted: Seen) -> None:
    """The model is called with the inputs of the batches."""
    for name in EPOCHS:
        if not _epochs(seen)[name].forwards:
            raise Failed(
                f"the model was never called (scenario `{name}`)", "a forward pass for every batch"
            )


CALLED = ("runs", "calls_the_model")


@train.check(points=1.5)
def moves_the_model_once(seen: Seen, wanted: Seen) -> None:
    """The model itself is moved to the device, once, before the loop, and stays there."""
    for epoch in ("model_starts_on_the_cpu", "already_there"):
        if lines := _epochs(seen)[epoch].moved_in_loop:
            happened = "the model was moved after the first batch had been fetched"
            raise Failed(happened, "one move before the loop", lines[0], "model-moved-in-loop")
    case = seen[epochs]["model_starts_on_the_cpu"]
    if case.devices == [case.wanted_device]:
        return
    happened = f"after the epoch the parameters are on {', '.join(case.devices)}"
    expected = case.wanted_device
    if not all(forward.own for forward in case.forwards):
        raise Failed(
            f"a copy was trained, and {happened}",
            "the model itself moved and trained",
            None,
            "model-copied",
        )
    if any(forward.device == expected for forward in case.forwards):
        raise Failed(happened, f"all of them still on {expected}", at=("cpu(", '"cpu"', "last to("))
    raise Failed(happened, f"all of them on {expected}", misconception="model-not-moved")


@train.check(points=1, needs=CALLED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Training happens on the device passed in, whatever this machine has."""
    for epoch, key in (
        ("on_the_cpu", "hard-coded-cuda"),
        ("already_there", "device-index-dropped"),
    ):
        case = _epochs(seen)[epoch]
        device = case.wanted_device
        if case.devices != [device]:
            on_gpus = all(name.startswith("cuda") for name in case.devices)
            happened = f'with device="{device}" the model ended up on {", ".join(case.devices)}'
            raise Failed(happened, f"{device}, as asked", misconception=key if on_gpus else None)


@train.check(points=0.5, needs=CALLED)
def computes_the_loss_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Inputs, outputs and targets are on the device when the model and `loss_fn` get them."""
    case = seen[epochs]["model_starts_on_the_cpu"]
    device = case.wanted_device
    for forward in case.forwards:
        if forward.device != device:
            happened = f"the model got its inputs on {forward.device}"
            raise Failed(happened, f"inputs on {device}", misconception="inputs-on-cpu")
    for outputs, targets in case.loss_devices:
        if {outputs, targets} != {device}:
            happened = f"`loss_fn` got outputs on {outputs} and targets on {targets}"
            key = "targets-on-cpu" if outputs == device else None
            raise Failed(happened, f"both on {device}", misconception=key)


@train.check(points=1, needs=CALLED)
def trains_in_training_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in training mode."""
    modes = [forward.training for forward in seen[epochs]["model_starts_on_the_cpu"].forwards]
    if not all(modes):
        happened = f"{modes.count(False)} of {len(modes)} forward passes ran in evaluation mode"
        raise Failed(
            happened, "model.train() before the loop", misconception="not-in-training-mode"
        )


# Before the weights are compared: on a real GPU a changed precision changes them too.
@train.check(points=0.5, needs=CALLED)
def changes_no_settings(seen: Seen, wanted: Seen) -> None:
    """It sets no seed and changes no setting of torch."""
    for name, case in _epochs(seen).items():
        expect_settings_kept(case.settings, name)


@train.check(points=2.5)
def learns_as_it_should(seen: Seen, wanted: Seen) -> None:
    """For every batch the gradients are zeroed, computed and used for one step of the optimizer that was passed in."""
    for _, case, right in scenario_pairs(_epochs(seen), _epochs(wanted), *EPOCHS):
        if not arrays_close(case.after, right.after):
            raise _learned_wrongly(case)


def _learned_wrongly(case: Epoch) -> Failed:
    order = case.order
    batches = case.batches
    steps = order.count("step")
    backwards = order.count("backward")
    if not steps and case.changed:
        return Failed(
            "the weights were changed without the optimizer",
            "`optimizer.step()`",
            at=(".grad", ".data"),
        )
    if not steps:
        return Failed(
            "the optimizer never stepped", f"{batches} steps", misconception="missing-step"
        )
    if not case.steps:
        happened = "another optimizer stepped than the one passed in"
        line = case.step_lines[0]
        return Failed(happened, "`optimizer.step()`", line, "another-optimizer", ("optimizer =",))
    if not backwards:
        happened = "there was no backward pass"
        line = case.step_lines[0]
        return Failed(happened, f"{batches} backward passes", line, "missing-backward")
    if order.index("step") < order.index("backward"):
        expected = "backward(), then step()"
        return Failed(
            "step() came before backward()", expected, case.step_lines[0], "step-before-backward"
        )
    if not all(case.steps):
        line = case.step_lines[case.steps.index(False)]
        happened = "the gradients were zeroed between backward() and step()"
        return Failed(happened, "zero_grad(), backward(), step()", line, at=("last zero_grad(",))
    if backwards > len(case.forwards):
        happened = f"backward() ran {count_in_words(backwards)} in {case.batches} batches"
        return Failed(happened, "one backward pass for every batch", at=("last backward(",))
    if True in case.leftovers:
        which = case.leftovers.index(True)
        stale = which == 0 and len(case.leftovers) > 1 and not any(case.leftovers[1:])
        happened = f"backward() of batch {which + 1} added to gradients "
        return Failed(
            happened + ("that were there before the call" if stale else "that were not zeroed"),
            "in every step, the gradients of this batch only",
            case.backward_lines[which] if which < len(case.backward_lines) else None,
            "stale-gradients" if stale else "missing-zero-grad",
            ("zero_grad(",),
        )
    if unused := _unused(case):
        return unused
    if steps < backwards:
        happened = f"the optimizer stepped {count_in_words(steps)} for {backwards} backward passes"
        return Failed(happened, "a step for every batch", case.step_lines[0], "step-left-out")
    if steps != batches:
        return Failed(
            f"the optimizer stepped {count_in_words(steps)} for {batches} batches",
            f"{batches} steps",
        )
    if case.begun > 1:
        happened = f"the loader was started {count_in_words(case.begun)}, and each time gives its first batch again"
        return Failed(happened, "one loop over the loader", at=("next(", "iter("))
    if case.options:
        happened = f"the optimizer's option `{case.options[0]}` was changed"
        return Failed(happened, "the optimizer as it was passed in", at=("[] =", ".param_groups"))
    if not case.state_kept:
        happened = "the optimizer's state from earlier steps, such as its momentum, was lost"
        return Failed(
            happened, "the optimizer as it was passed in", at=(".state", "load_state_dict(")
        )
    if not all(case.as_they_are):
        expected = "`loss_fn(outputs, targets)`, with the outputs as they are"
        return Failed(
            "`loss_fn` got something else than the model's outputs",
            expected,
            at=("softmax(", "loss_fn("),
        )
    happened, at = (
        "the weights after the epoch differ from the reference's",
        (*CLIPPING, ".grad", "loss_fn("),
    )
    return Failed(happened, "the weights that this optimizer gives", at=at)


def _unused(case: Epoch) -> Failed | None:
    """The failure of a loop that leaves batches out."""
    count = len(case.forwards)
    happened, at = f"only {count} of {case.batches} batches were used", ("continue", "next(", "for")
    return (
        Failed(happened, "all of them", None, "loop-left-early", at)
        if count < case.batches
        else None
    )


@train.check(points=1)
def steps_once_for_every_batch(seen: Seen, wanted: Seen) -> None:
    """The optimizer that was passed in steps once for every batch."""
    for name in EPOCHS:
        case = _epochs(seen)[name]
        if len(case.steps) != case.batches:
            if unused := _unused(case):
                raise unused
            happened = f"the optimizer stepped {count_in_words(len(case.steps))} for {case.batches} batches (scenario `{name}`)"
            line = (
                case.step_lines[-1] if len(case.steps) > case.batches and case.step_lines else None
            )
            raise Failed(happened, "one step for every batch", line)


@train.check(points=4)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """It returns the mean loss per sample, as a Python float."""
    for name in EPOCHS:
        case = _epochs(seen)[name]
        expect_float(case.kind, case.is_float)
        losses = case.losses
        value = case.value
        if not losses:
            raise Failed(
                "`loss_fn` was never called",
                "`loss_fn(outputs, targets)` for every batch",
                at=OWN_LOSSES,
            )
        mean = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
        if _near(value, mean):
            continue
        of_means = _near(value, sum(loss for loss, _ in losses) / len(losses))
        last = "" if of_means or not _near(value, losses[-1][0]) else ", the loss of the last batch"
        samples = sum(size for _, size in losses)
        divided = next(
            (n for n in range(1, 2 * samples) if n != samples and _near(value, mean * samples / n)),
            None,
        )
        if divided and not of_means and not last:
            last = f", the sum over {samples} samples divided by {divided}"
        raise Failed(
            f"it returned {value:.4f}{last}",
            f"{mean:.4f}, the mean over all samples of this epoch's losses",
            misconception="mean-of-batch-means" if of_means else None,
            at=("return",) if divided and not of_means else ("last item(",),
        )


def _near(value: float | None, wanted: float) -> bool:
    return value is not None and math.isclose(value, wanted, rel_tol=1e-4, abs_tol=1e-6)


@train.check(points=1, needs=CALLED)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives 0.0."""
    case = seen[epochs]["nothing_to_train_on"]
    if case.value != 0.0:
        raise Failed(
            f"an empty loader gave {with_article(case.kind) if case.value is None else case.value}",
            "0.0",
        )
