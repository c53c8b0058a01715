"""What does a training loop do to the model, the loader, the loss and the optimizer it is given?

Each of them is what it claims to be, and tells what is done to it: methods of a subclass, not attributes of the object,
so that a copy of it does not work on the original.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from graders.probes.calling import Call
from graders.probes.late import nn, torch


class Watch:
    """What was seen during one call."""

    def __init__(self, call: Call) -> None:
        self.ledger, self.path = call.bench.ledger, str(call.path)
        self.model: Any = None
        self.forwards: list[dict[str, Any]] = []  # every forward pass of the model
        self.walks: list[int | None] = []  # lines that moved the whole model between the first batch and the end
        self.losses: list[tuple[Any, int]] = []  # what loss_fn gave, and the size of its batch
        self.loss_devices: list[list[str]] = []  # where outputs and targets were
        self.found: list[Any] = []  # for every backward pass, a copy of the gradients that it found, or None
        self.steps: list[bool] = []  # for every step of the optimizer, whether it found gradients
        self.sizes: dict[str, set[int]] = {"inputs": set(), "targets": set()}  # bytes of the batches handed out
        self.first: int | None = None  # where in the ledger the first batch was handed out
        self.latest: int | None = None  # and the latest one
        self.last: int | None = None  # and where there were no more

    def __deepcopy__(self, memo: Any) -> Watch:
        return self

    @property
    def in_loop(self) -> bool:
        return self.first is not None and self.last is None

    def line(self) -> int | None:
        """The line of the student's file that is running."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno

    def watch_backward(self, loss: Any) -> None:
        """When a backward pass begins, look whether the gradients of the last layer are still someone else's."""
        if loss.requires_grad:
            loss.register_hook(lambda gradient: self.found.append(_copy(self.model[-1].bias.grad)))

    @property
    def leftovers(self) -> list[bool]:
        """For every backward pass, whether it found gradients to add to; to be asked when the call is over."""
        return [gradient is not None and any(gradient.tolist()) for gradient in self.found]

    def watch_steps(self, optimizer: Any) -> None:
        def stepping(*_: Any) -> None:
            self.steps.append(self.model[-1].bias.grad is not None)

        optimizer.register_step_pre_hook(stepping)


def _copy(gradient: Any) -> Any:
    # Copied now and read after the call: to read it here would be a wait, put down to the student's line.
    return None if gradient is None else gradient.detach().clone()


def model(watch: Watch, weight: Any, bias: Any) -> Any:
    """A classifier of sprites: one layer is enough to learn wrongly."""
    watched, layer, *_ = _classes()
    made = watched(nn.Flatten(), layer(weight.shape[1], weight.shape[0]))
    made[1].weight, made[1].bias = nn.Parameter(weight), nn.Parameter(bias)
    made.watch = watch
    watch.model = made
    return made


def loader(watch: Watch, sprites: Any, classes: Any, batch_size: int) -> Any:
    *_, watched, _ = _classes()
    made = watched(torch.utils.data.TensorDataset(sprites, classes), batch_size=batch_size)
    made.watch = watch
    return made


def loss(watch: Watch) -> Any:
    *_, watched = _classes()
    made = watched()
    made.watch = watch
    return made


@functools.cache
def _classes() -> tuple[Any, Any, Any, Any]:
    class Sequential(nn.Sequential):
        watch: Any

        def forward(self, input: Any) -> Any:
            device = str(input.device) if isinstance(input, torch.Tensor) else None
            own = self is self.watch.model
            training = all(module.training for module in self.modules())  # a flag of the outermost one is not enough
            self.watch.forwards.append({"training": training, "device": device, "own": own})
            return super().forward(input)  # type: ignore[no-untyped-call]

        def to(self, *args: Any, **kwargs: Any) -> Any:
            self._walked()
            return super().to(*args, **kwargs)

        def cuda(self, *args: Any, **kwargs: Any) -> Any:
            self._walked()
            return super().cuda(*args, **kwargs)

        def cpu(self) -> Any:
            self._walked()
            return super().cpu()

        def _walked(self) -> None:
            if self.watch.in_loop:
                self.watch.walks.append(self.watch.line())

    class Linear(nn.Linear):
        def reset_parameters(self) -> None:
            """Weights are given: drawing some would take time, and random numbers from others."""

    class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        watch: Any

        def __iter__(self) -> Any:
            watch = self.watch
            for inputs, targets in super().__iter__():
                watch.latest = watch.ledger.mark()
                if watch.first is None:
                    watch.first = watch.latest
                watch.sizes["inputs"].add(inputs.nbytes)
                watch.sizes["targets"].add(targets.nbytes)
                yield [inputs, targets]
            watch.last = watch.ledger.mark()

    class CrossEntropyLoss(nn.CrossEntropyLoss):
        watch: Any

        def forward(self, input: Any, target: Any) -> Any:
            value = super().forward(input, target)
            self.watch.losses.append((value.detach(), len(target)))
            self.watch.loss_devices.append([str(input.device), str(target.device)])
            self.watch.watch_backward(value)
            return value

    return Sequential, Linear, DataLoader, CrossEntropyLoss
