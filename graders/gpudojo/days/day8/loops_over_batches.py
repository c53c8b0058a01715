"""Judges loops over batches: errors, devices, graphs, batches, losses and optimizers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gpudojo.days.day8.watched_objects import ForwardPass
from gpudojo.grading.checks import (
    device_mistake,
    expect_device_used,
    failure_on_other_device,
    is_between_gpus,
)
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Failed, Seen

# Where `loss_fn` is not called.
OWN_LOSSES: Final = ("cross_entropy(", "CrossEntropyLoss(", "nll_loss(", "log_softmax(")
OPTIMIZER_AS_IT_WAS: Final = "the optimizer as it was passed in"
NOT_REACHED: Final = "backward() gave the model's weights no gradients"
ROUGH: Final = ("autocast(", "half(")  # where outputs get half precision
CHANGING_OUTPUTS: Final = ("softmax(", "sigmoid(", *ROUGH)
CLIPPING: Final = ("clip_grad_norm_(", "clip_grad_value_(")


def where_gradients_were_zeroed(
    backward_line: int | None, step_line: int | None
) -> tuple[str, ...]:
    """Source patterns for what zeroed the gradients between a backward pass and a step."""
    last = "last zeroed gradients"
    if backward_line is None or step_line is None:
        return (last,)
    return (f"between {backward_line} and {step_line} zeroed gradients", last)


def why_a_loop_raises(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error of a loop over batches; None if none is known.

    It depends on the scenario, such as `on_the_second_gpu`. Where the model was on the device
    before the call (`model_already_there`) and meets inputs on the CPU, the function moves neither:
    with a model on the CPU it ran.
    """
    scenario = raised.scenario
    if scenario == "on_the_second_gpu" and is_between_gpus(raised.message):
        return "device-index-dropped"
    key = device_mistake(raised)
    if key is None and scenario.startswith("nothing_to_"):
        return "empty-loader-forgotten"  # with sprites it ran, on the same device
    if key is not None and scenario in ("on_the_cpu", "told_to_use_the_cpu"):
        return "hard-coded-cuda"  # nothing should have been on a GPU
    if key == "inputs-on-cpu" and scenario == "model_already_there":
        return "model-not-moved"
    return key


def expect_ran_on(device: str, used: Collection[str], line: int | None = None) -> None:
    """Raise Failed unless a model ran on this device, and on no other.

    `used` are the devices that it ran on.
    """
    if not used:
        raise failure_on_other_device(device, "the model ran on no device", line)
    if device != "cpu" and set(used) == {"cpu"}:
        raise failure_on_other_device(device, "the model ran on cpu", line, "model-not-moved")
    expect_device_used(device, used, "the model ran on", line)


def expect_forward_passes(scenario: str, passes: Sequence[ForwardPass]) -> None:
    """Raises Failed unless there was a forward pass."""
    if not passes:
        happened = f"the model was never called (scenario `{scenario}`)"
        at = ("continue", "leaves loop", "islice(")
        expected = "a forward pass for every batch"
        raise Failed(happened, expected, None, "error-swallowed", at)


def expect_no_graph(passes: Sequence[ForwardPass], line: int | None, in_training: bool) -> None:
    """Raise Failed if a forward pass built an autograd graph.

    `line` is shown. `in_training` is whether any ran in training mode, which is another mistake.
    """
    building = [each for each in passes if each.graph]
    if building:
        happened = f"{len(building)} of {len(passes)} forward passes built an autograd graph"
        expected = "forward passes that autograd does not record"
        key = None
        if not in_training:
            key = "eval-without-no-grad"
        raise Failed(happened, expected, line, key)


def batches_left_out(used: int, batches: int, where: str = "") -> Failed:
    """The failure of a loop that leaves batches out; `where` begins its sentence.

    It is returned, not raised.
    """
    happened = f"{where}only {used} of {batches} batches were used"
    at = ("continue", "next(", "islice(", "for")
    return Failed(happened, "all of them, also a smaller one", None, "batches-left-out", at)


def changed_option(name: str, where: str = "") -> Failed:
    """The failure of a loop that changes an option of the optimizer; `where` begins its sentence.

    It is returned, not raised.
    """
    happened = f"{where}the optimizer's option `{name}` was changed"
    return Failed(happened, OPTIMIZER_AS_IT_WAS, at=("[] =", ".param_groups"))


def missing_loss(scenario: str) -> Failed:
    """The failure of a loop that does not call `loss_fn` in a scenario; returned, not raised."""
    expected = "`loss_fn(outputs, targets)` for every batch"
    happened = f"`loss_fn` was never called (scenario `{scenario}`)"
    at = ("continue", *OWN_LOSSES)
    return Failed(happened, expected, None, "error-swallowed", at)


def loss_of_other_outputs(*changing: str) -> Failed:
    """The failure of a loop that passes something else to `loss_fn`.

    It is returned, not raised. `changing` are patterns for what may have changed the model's
    outputs.
    """
    happened = "`loss_fn` got something other than the model's outputs"
    expected = "`loss_fn(outputs, targets)`, with the outputs as they are"
    return Failed(happened, expected, at=(*changing, "loss_fn("))


def gradients_not_reached() -> Failed:
    """The failure of a backward pass that does not go back to the model; returned, not raised."""
    expected = "a backward pass from the loss of the model's outputs, with their graph"
    return Failed(NOT_REACHED, expected, misconception="no-graph-behind-the-loss")


def step_of_another_optimizer(where: str = "", line: int | None = None) -> Failed:
    """The failure of steps of an optimizer that was not passed in; `where` begins its sentence."""
    happened = f"{where}another optimizer stepped than the one passed in"
    expected = "steps of the optimizer that was passed in, with its state"
    return Failed(happened, expected, line, "another-optimizer", ("optimizer =",))
