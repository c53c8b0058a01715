"""Counts the steps of a script, and stops it after enough of them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from virtual_cuda.device.state import VirtualGpu
from virtual_cuda.estimate.memory_record import (
    GRADIENTS,
    PARAMETERS,
    STATES,
    MemoryRecord,
    parameters_of_optimizer,
    tensors_of_optimizer,
)
from virtual_cuda.ledger.rows import BackwardRow, EndRow, ForwardRow, Row
from virtual_cuda.recorder import tensors_in, watch_outer_calls

# So often may a script with an optimizer call its model before it trains.
_MOST_BEFORE_TRAINING: Final = 4096


class EnoughSteps(BaseException):
    """Ends a script after so many steps. Not an Exception, which a script might catch."""


class Step(NamedTuple):
    """The rows of one step, from the end of the one before."""

    first: int
    until: int


class ModelInput(NamedTuple):
    """The first tensor that an outermost call of a module was given."""

    row: int  # how many rows there were
    module: int  # its identity
    shape: tuple[int, ...]
    is_floating: bool
    trains: bool  # with gradients


class StepWatch:
    """Watches the steps of a script's optimizer, and names what is in memory meanwhile.

    A script that has no optimizer changes its parameters by hand: there a step ends where a model
    is called after a backward pass.
    """

    def __init__(
        self, gpu: VirtualGpu, memory: MemoryRecord, most: int, most_passes: int = 0
    ) -> None:
        """Count up to `most` steps, and `most_passes` forward passes without gradients; 0: all."""
        self.most_passes = most_passes
        self.passes = 0  # outermost calls of modules, without those that an optimizer trains
        self._has_optimizer = False  # the script, as far as anybody has looked
        self.inputs: list[ModelInput] = []
        self.gpu = gpu
        self.memory = memory
        self.most = most
        self.steps: list[Step] = []
        self._counted: Any = None  # the optimizer whose steps count: the first one
        self._training_began = 0  # the row of the first call with gradients; 0 before it
        self._rows_searched = 0  # for backward passes
        self._has_gone_back = False  # whether there was one since the last step
        self.has_ended = False  # the script

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count steps inside the `with` block; EnoughSteps is raised in the last one."""
        hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            with watch_outer_calls(self._before_pass):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before_pass(self, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the input of an outermost call, and count the call if nothing is trained.

        Raises EnoughSteps: a loop that ends when a value says so would not end.
        """
        self._count_step_by_hand()
        if not self._training_began and torch.is_grad_enabled():
            self._training_began = len(self.gpu.ledger.rows)
        self._note_input(called, (*args, *kwargs.values()))
        if self._has_enough_passes():
            raise EnoughSteps
        if not self._has_optimizer or not torch.is_grad_enabled():
            self.passes += 1

    def _has_enough_passes(self) -> bool:
        """True if a loop has called a model so often that it may go on without end.

        A script that has an optimizer may evaluate its model first, and gets more time.
        """
        if not self.most_passes or self.passes < self.most_passes:
            return False
        return not self._find_optimizer() or self.passes >= _MOST_BEFORE_TRAINING

    def _find_optimizer(self) -> bool:
        """True if the script has an optimizer by now."""
        if not self._has_optimizer:
            # By their types: `isinstance` asks an object for its class, which may warn or raise.
            self._has_optimizer = any(
                issubclass(type(each), Optimizer) for each in gc.get_objects()
            )
        return self._has_optimizer

    @property
    def steps_by_hand(self) -> bool:
        """True if steps were counted, and no optimizer made them."""
        return bool(self.steps) and self._counted is None

    def _count_step_by_hand(self) -> None:
        """Count a step if a backward pass has run since the last one, and there is no optimizer.

        Raises EnoughSteps in the last one.
        """
        rows = self.gpu.ledger.rows
        new_rows = rows[self._rows_searched :]
        self._rows_searched = len(rows)
        if any(isinstance(row, BackwardRow) for row in new_rows):
            self._has_gone_back = True
        if self._has_gone_back and not self._find_optimizer():
            self._has_gone_back = False
            self._count_step()

    def end_script(self) -> None:
        """Note that the script has ended.

        A last step by hand is counted, which no call of a model has ended.
        """
        self.has_ended = True
        with contextlib.suppress(EnoughSteps):
            self._count_step_by_hand()

    def _note_input(self, called: Any, inputs: tuple[Any, ...]) -> None:
        """Note the first tensor with a dimension among the inputs of a module."""
        first = next((each for each in tensors_in(inputs) if each.dim()), None)
        if first is not None:
            row = len(self.gpu.ledger.rows)
            shape = tuple(first.shape)
            is_floating = first.is_floating_point()
            trains = torch.is_grad_enabled()
            self.inputs.append(ModelInput(row, id(called), shape, is_floating, trains))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Name parameters and gradients; the arguments of the step are not used."""
        parameters = parameters_of_optimizer(optimizer)
        self.memory.name_tensors(parameters, PARAMETERS)
        self.memory.name_tensors([each.grad for each in parameters], GRADIENTS)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Name the optimizer's states, and count the step; raises EnoughSteps."""
        self.memory.name_tensors(tensors_of_optimizer(optimizer), STATES)
        self._has_optimizer = True
        if self._counted is None:
            self._counted = optimizer
            self.steps.clear()  # those by hand, before there was an optimizer
        if optimizer is self._counted:
            self._count_step()

    def _count_step(self) -> None:
        """Note that a step ends here; raises EnoughSteps if it is the last one.

        It begins where the one before it ended. The first begins with the first call of a model
        with gradients, so that moving the model to the GPU is no part of it.
        """
        first = self.steps[-1].until if self.steps else self._training_began
        self.steps.append(Step(first, len(self.gpu.ledger.rows)))
        if len(self.steps) == self.most:
            raise EnoughSteps

    def steps_or_passes(self) -> list[Step]:
        """The steps, or the calls of models where there are none."""
        return self.steps or outer_passes(self.gpu.ledger.rows)

    def name_modules(self) -> None:
        """Name the parameters and buffers of all modules that there are, and their gradients."""
        for each in gc.get_objects():
            if not issubclass(type(each), nn.Module):
                continue
            parameters = [*vars(each).get("_parameters", {}).values()]
            buffers = [*vars(each).get("_buffers", {}).values()]
            self.memory.name_tensors(parameters + buffers, PARAMETERS)
            held = [parameter for parameter in parameters if isinstance(parameter, torch.Tensor)]
            self.memory.name_tensors([parameter.grad for parameter in held], GRADIENTS)


def outer_passes(rows: list[Row]) -> list[Step]:
    """The calls of modules that are not inside another, as spans of rows."""
    found = []
    inside: int | None = None
    for number, row in enumerate(rows):
        if inside is None and isinstance(row, ForwardRow):
            inside = number
        elif isinstance(row, EndRow) and row.opened == inside:
            if number > row.opened + 1:  # it has done something
                found.append(Step(row.opened, number))
            inside = None
    return found
