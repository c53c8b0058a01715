"""A model, a loader and a loss for student code to hold, which record what is done with them.

They write into a `WatchLog`. Student code cannot reach it: the objects have a key, by which
`call_state` finds the log.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpudojo.grading.call import Call, StudentRaised, lines_of_copies, nn, torch
from gpudojo.grading.watching import (
    call_state,
    call_state_for_hook,
    find_classes,
    keep_state,
    make_picklable,
)
from gpudojo.model.evidence import Case


class Sealed:
    """A function for student code to call.

    It does not lead student code to the function it calls, or to what that records.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.key = keep_state(function)

    def __call__(self, *args: Any) -> Any:
        return call_state(self.key, "__call__", *args)


class Hook(Sealed):
    """A hook of torch's, which student code gets to hold but does not call."""

    def __call__(self, *args: Any) -> Any:
        return call_state_for_hook(self.key, "__call__", *args)


class ForwardPass(Case, frozen=True):
    """One forward pass of a watched model.

    Its parts are named as in `named_modules`; "" is the model.
    """

    training: list[str]  # the parts in training mode
    evaluating: list[str]  # the parts in evaluation mode
    graph: bool  # whether an autograd graph was built
    input_device: str
    devices: list[str]  # of inputs and parameters
    dtype: str  # of the outputs
    samples: int
    own: bool  # run by the model that was passed in, not by a copy


class LossCall(NamedTuple):
    """One call of a watched loss."""

    value: Any  # detached, on its device: to read it during the call would be a wait
    samples: int
    devices: list[str]  # of outputs and targets
    got_outputs: bool  # it got the model's latest outputs themselves


class WatchedClasses(NamedTuple):
    """The classes of a watched model, loader and loss."""

    model: Any
    loader: Any
    loss: Any


class WatchLog:
    """What a model, a loader and a loss record during one call of a student's function.

    Subclasses override `record_loss` and `record_backward` to record more.
    """

    def __init__(self, call: Call) -> None:
        """An empty log of a call of the student's function, and of what it does with objects."""
        self.call = call
        self.key = keep_state(self)
        # Taken now: while student code runs, the name may be another function's.
        self.is_grad_enabled = torch.is_grad_enabled
        self.model: Any = None
        self.optimizer: Any = None
        self.options: dict[str, str] = {}  # of that optimizer, when it was passed in
        # For every step of that optimizer, a copy of the last layer's gradient, or None.
        self.gradients_of_steps: list[Any] = []
        self.parameters_with_state = 0  # of the optimizer, when it stepped first
        self.modes: dict[str, set[bool]] = {}  # of each part, in the latest forward pass
        self.forwards: list[ForwardPass] = []
        self.losses: list[LossCall] = []
        self.latest_output: Any = None  # a weak reference
        self.iterators = 0  # of the loader
        self.batches = 0  # that were fetched
        self.latest_batch: dict[str, Any] = {}  # its inputs and targets
        self.target_sizes: set[int] = set()  # in bytes
        self.moves: list[int | None] = []  # lines that moved the model between two batches
        # Marks of the ledger: at the first batch, at the latest, and at the end of the loader.
        self.first_mark: int | None = None
        self.latest_mark: int | None = None
        self.end_mark: int | None = None

    def make_model(self, *layers: Any) -> Any:
        """A sequence of layers, or of an OrderedDict's layers, that records its forward passes.

        It is the model of this log from now on.
        """
        self.model = _watched_classes().model(*layers)
        self.model.key = self.key
        return self.model

    def make_loader(self, inputs: Any, targets: Any, batch_size: int) -> Any:
        """A DataLoader, in order, that records when batches are fetched."""
        dataset = torch.utils.data.TensorDataset(inputs, targets)
        loader = _watched_classes().loader(dataset, batch_size=batch_size)
        loader.key = self.key
        return loader

    def make_loss(self, **options: Any) -> Any:
        """A cross entropy that records its calls, and where backward passes begin."""
        loss = _watched_classes().loss(**options)
        loss.key = self.key
        return loss

    def watch_optimizer(self, optimizer: Any) -> None:
        """Record the steps of the optimizer that student code gets."""
        self.optimizer = optimizer
        self.options = _options_of(optimizer)
        optimizer.register_step_pre_hook(Hook(lambda stepping, *_: self.record_step(stepping)))

    def changed_options(self) -> list[str]:
        """The names of the watched optimizer's options with other values now."""
        now = _options_of(self.optimizer)
        return [name for name, option in self.options.items() if now.get(name) != option]

    def record_step(self, optimizer: Any) -> None:
        """Record the gradients of a step, unless a copy of the watched optimizer makes it."""
        if optimizer is not self.optimizer:
            return
        if not self.gradients_of_steps:
            self.parameters_with_state = len(optimizer.state)
        self.gradients_of_steps.append(self.copy_gradients())

    def copy_gradients(self) -> Any:
        """A copy of the last layer's gradients, to be read after the call; None without any.

        To read them during the call would be a wait.
        """
        gradients = self.model[-1].bias.grad
        if gradients is None:
            return None
        return gradients.detach().clone()

    def steps_with_gradients(self) -> list[bool]:
        """For every step of the watched optimizer, whether there were gradients, not all zero.

        To be asked only after the call, because it reads them.
        """
        return [has_gradients(gradients) for gradients in self.gradients_of_steps]

    def begin_forward(self) -> None:
        """Note that a forward pass begins."""
        self.modes = {}

    def note_layer(self, model: Any) -> None:
        """Note the mode of each part of the model before one of its layers runs.

        A hook may change it in the middle of a forward pass.
        """
        for name, module in _parts_of(model):
            self.modes.setdefault(name, set()).add(module.training)

    def record_forward(self, model: Any, inputs: Any, outputs: Any) -> None:
        """Record a forward pass of the model, or of a copy of it."""
        self.note_layer(model)
        modes = dict(self.modes)  # replicas of the model may run in other threads
        parameters = []
        for _, module in _parts_of(model):
            parameters += [each for each in module._parameters.values() if each is not None]
        input_device = str(inputs.device)
        devices = {str(p.device) for p in parameters}
        devices.add(input_device)
        # A hook that detaches the outputs has built a graph all the same.
        graph = self.is_grad_enabled() and any(p.requires_grad for p in parameters)
        forward = ForwardPass(
            training=[name for name, seen in modes.items() if True in seen],
            evaluating=[name for name, seen in modes.items() if False in seen],
            graph=outputs.requires_grad or graph,
            input_device=input_device,
            devices=sorted(devices),
            dtype=str(outputs.dtype),
            samples=len(outputs),
            own=model is self.model,
        )
        self.forwards.append(forward)
        self.latest_output = weakref.ref(outputs)

    def record_move(self) -> None:
        """Record the student's line that is running, if it moves the model between two batches."""
        if self.first_mark is None or self.end_mark is not None:
            return
        self.moves.append(self.call.line_now())

    def record_iterator(self) -> None:
        """Record that somebody begins to iterate over the loader."""
        self.iterators += 1

    def record_batch(self, inputs: Any, targets: Any) -> None:
        """Record a batch that the loader hands out."""
        self.batches += 1
        self.latest_batch = {"inputs": inputs, "targets": targets}
        self.target_sizes.add(targets.nbytes)
        self.latest_mark = self.call.bench.ledger.mark()
        if self.first_mark is None:
            self.first_mark = self.latest_mark

    def record_end_of_loader(self) -> None:
        """Record the end of the loader."""
        self.end_mark = self.call.bench.ledger.mark()

    def record_loss(self, outputs: Any, targets: Any, value: Any) -> Any:
        """Record a loss that was computed of outputs and targets.

        Returns the loss that student code gets, here `value` itself.
        """
        latest = None
        if self.latest_output is not None:
            latest = self.latest_output()
        devices = [str(outputs.device), str(targets.device)]
        loss = LossCall(value.detach(), len(targets), devices, latest is outputs)
        self.losses.append(loss)
        return value

    def record_backward(self, gradient: Any) -> None:
        """Record the beginning of a backward pass; here, nothing is recorded.

        `gradient` is the gradient of the loss.
        """

    def copied_lines(self) -> dict[str, int | None]:
        """The lines that copied inputs and targets of the latest batch, by these names.

        What was not copied is left out.
        """
        if not self.latest_batch:
            return {}
        return lines_of_copies(self.call, self.latest_mark, **self.latest_batch)

    @contextlib.contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Add to an error in a `with` block which tensors of the latest batch were copied.

        Raises StudentRaised again.
        """
        try:
            yield
        except StudentRaised as error:
            if not self.latest_batch:
                raise
            raise error.with_facts(copied=self.copied_lines()) from None


def has_gradients(gradients: Any) -> bool:
    """True for gradients of which one is not zero; False for None."""
    return gradients is not None and any(gradients.tolist())


def _parts_of(module: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a module and all modules inside of it, with their names; that of the module is `name`.

    They are found without the module's own methods: student code may have put others in their
    place, as attributes of the module.
    """
    yield name, module
    for own_name, part in module._modules.items():
        if part is not None:
            yield from _parts_of(part, f"{name}.{own_name}" if name else own_name)


def _options_of(optimizer: Any) -> dict[str, str]:
    """The options of an optimizer, such as its learning rate, as they are now."""
    group = optimizer.param_groups[0]
    return {name: repr(value) for name, value in group.items() if name != "params"}


@functools.cache
def _watched_classes() -> WatchedClasses:
    """The classes of model, loader and loss. Made once, and only where torch is needed.

    They are called as torch's own, because the ledger and drawings of it name them. No frame of
    theirs keeps the log in a variable: student code can read the variables of a generator.
    """

    class Sequential(nn.Sequential):
        key: int

        def forward(self, input: Any) -> Any:
            call_state(self.key, "begin_forward")
            output = input
            for layer in self:
                call_state(self.key, "note_layer", self)
                output = layer(output)
            call_state(self.key, "record_forward", self, input, output)
            return output

        def _apply(self, *args: Any, **kwargs: Any) -> Any:  # where `to`, `cuda` and `cpu` end
            call_state(self.key, "record_move")
            return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        key: int

        def __iter__(self) -> Any:
            """Yield the batches, and record each before it is handed out, and the end."""
            call_state(self.key, "record_iterator")
            for batch in super().__iter__():
                call_state(self.key, "record_batch", *batch)
                yield batch
            call_state(self.key, "record_end_of_loader")

    class CrossEntropyLoss(nn.CrossEntropyLoss):
        key: int

        def forward(self, input: Any, target: Any) -> Any:
            """The loss, as the log changes it, recorded; so will be the backward pass from it."""
            key = self.key
            value = super().forward(input, target)
            value = call_state(key, "record_loss", input, target, value)
            if value.requires_grad:
                value.register_hook(
                    lambda gradient: call_state_for_hook(key, "record_backward", gradient)
                )
            return value

    return WatchedClasses(*make_picklable(Sequential, DataLoader, CrossEntropyLoss))


__getattr__ = find_classes(_watched_classes)
