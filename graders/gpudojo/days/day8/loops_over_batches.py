"""Judges loops over batches: errors, devices, graphs, batches, losses and optimizers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gpudojo.days.day8.watched_objects import ForwardPass
from gpudojo.grading.checks import (
    device_mistake,
    expect_device_used,
    is_between_gpus,
    other_device_used,
)
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Failed, Seen

# Where `loss_fn` is not called.
OWN_LOSSES: Final = ("cross_entropy(", "CrossEntropyLoss(", "nll_loss(", "log_softmax(")
CLIPPING: Final = ("clip_grad_norm_(", "clip_grad_value_(")


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
    """Raises Failed unless a model ran on this device, and on no other."""
    if not used:
        raise other_device_used(device, "the model ran on no device", line)
    if device != "cpu" and set(used) == {"cpu"}:
        raise other_device_used(device, "the model ran on cpu", line, "model-not-moved")
    expect_device_used(device, used, "the model ran on", line)


def expect_forward_passes(scenario: str, passes: Sequence[ForwardPass]) -> None:
    """Raises Failed unless there was a forward pass."""
    if not passes:
        happened = f"the model was never called (scenario `{scenario}`)"
        raise Failed(happened, "a forward pass for every batch")


def expect_no_graph(passes: Sequence[ForwardPass], line: int | None, in_training: bool) -> None:
    """Raises Failed if a forward pass built an autograd graph.

    `in_training` is whether any ran in training mode, which is another mistake.
    """
    building = [each for each in passes if each.graph]
    if building:
        happened = f"{len(building)} of {len(passes)} forward passes built an autograd graph"
        expected = "forward passes under torch.no_grad() or torch.inference_mode()"
        key = None
        if not in_training:
            key = "eval-without-no-grad"
        raise Failed(happened, expected, line, key)


def batches_left_out(used: int, batches: int, where: str = "") -> Failed:
    """The failure of a loop that leaves batches out; `where` begins its sentence."""
    happened = f"{where}only {used} of {batches} batches were used"
    at = ("continue", "next(", "for")
    return Failed(happened, "all of them, also a smaller one", None, "loop-left-early", at)


def missing_loss() -> Failed:
    """The failure of a loop that does not call `loss_fn`."""
    expected = "`loss_fn(outputs, targets)` for every batch"
    return Failed("`loss_fn` was never called", expected, at=OWN_LOSSES)


def loss_of_other_outputs(*changing: str) -> Failed:
    """The failure of a loop that passes something else to `loss_fn`.

    `changing` are patterns for what may have changed the model's outputs.
    """
    happened = "`loss_fn` got something other than the model's outputs"
    expected = "`loss_fn(outputs, targets)`, with the outputs as they are"
    return Failed(happened, expected, at=(*changing, "loss_fn("))


def step_of_another_optimizer(where: str = "", line: int | None = None) -> Failed:
    """The failure of steps of an optimizer that was not passed in; `where` begins its sentence."""
    happened = f"{where}another optimizer stepped than the one passed in"
    expected = "steps of the optimizer that was passed in, with its state"
    return Failed(happened, expected, line, "another-optimizer", ("optimizer =",))
