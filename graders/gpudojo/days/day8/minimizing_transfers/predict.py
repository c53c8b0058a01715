"""`predict`: the outputs of a model for all batches, with one copy back."""

from __future__ import annotations

import math
from typing import Any

from gpudojo.days.day8.loops_over_batches import (
    CHANGING_OUTPUTS,
    expect_no_graph,
    expect_ran_on,
    why_a_loop_raises,
)
from gpudojo.days.day8.minimizing_transfers.declaration import predict
from gpudojo.days.day8.occurrences import Occurrences, count_occurrences
from gpudojo.days.day8.sprites import make_sprites, seeded_generator
from gpudojo.days.day8.tensor_values import ReturnedTensor, describe_returned
from gpudojo.days.day8.watched_objects import ForwardPass, WatchLog
from gpudojo.grading.call import Call, nn, torch, try_scenarios
from gpudojo.grading.checks import check_scenarios, runs
from gpudojo.grading.comparing import arrays_close, numpy_values, values_close
from gpudojo.model.evidence import Array, Case, Cases
from gpudojo.model.exercise import Failed, returned_other_type

CHANGING_DTYPE = ("double(", "half(", "bfloat16(", "float(", "dtype=", "autocast(")
CHANGING_ORDER = ("insert(", "appendleft(", "reversed(", "[::-1]", "flip(", "sort(", "sorted(")
MODEL = ""  # the name of the whole model among its parts

# ---- scenarios ---------------------------------------------------------------------------------


class Predicted(Case, frozen=True):
    """One call: the result, the forward passes, and what was copied."""

    returned: ReturnedTensor
    forwards: list[ForwardPass]
    flags_lost: int  # parameters that required gradients before the call and not afterwards
    flags_gained: int  # parameters that require gradients only afterwards
    grad_mode: bool  # whether gradients are on afterwards
    gradients_kept: bool  # whether every parameter has the gradient from before
    batches: int
    forward_line: int | None
    graph_line: int | None
    copies_back: Occurrences
    reads: Occurrences  # of values from the device, which wait for it
    targets_moved: Occurrences
    bytes_back: int | None = None  # of `copies_back`; None in records of older releases

    def predicted_samples(self) -> int:
        """For how many samples the model was called."""
        return sum(forward.samples for forward in self.forwards)

    def training_passes(self) -> int:
        """How many forward passes the model was in training mode."""
        return sum(MODEL in forward.training for forward in self.forwards)


def _make_model(seed: int, log: WatchLog) -> Any:
    """A model whose outputs are pictures. Its bias is frozen, as parts of a model may be."""
    with seeded_generator(seed):
        model = log.make_model(nn.Conv2d(3, 2, 1), nn.Dropout(0.5))
    model[0].bias.requires_grad_(False)
    return model


def _call_predict(call: Call, device: Any, count: int, moved: bool = False) -> Predicted:
    """Call the student's function for so many sprites and describe it. Raises StudentRaised.

    With `moved` the model is on the device before.
    """
    log = WatchLog(call)
    model = _make_model(call.seed, log)
    if moved:
        model.to(device)
    flags_before = []
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
        flags_before.append(parameter.requires_grad)
    pictures, _ = make_sprites(count, call.seed + 1)
    # The targets are larger than necessary, so that a copy of them is recognised by its size.
    targets = torch.zeros(count, 11, dtype=torch.int64)
    loader = log.make_loader(pictures, targets, batch_size=4)
    # Whatever mode the student's function leaves on ends with this `with`.
    with torch.enable_grad(), log.explaining_errors():
        value = call(model, loader, device)
        grad_mode = torch.is_grad_enabled()
    ledger = call.ledger
    to_host = ledger.transfers_to_host()
    to_device = ledger.transfers_to_device()
    of_targets = [copy for copy in to_device if copy.bytes in log.target_sizes]
    reads = ledger.syncs(besides=("copy", "tolist"))
    flags = [
        (p.requires_grad, before)
        for p, before in zip(model.parameters(), flags_before, strict=True)
    ]
    return Predicted(
        returned=describe_returned(value),
        forwards=log.forwards,
        flags_lost=flags.count((False, True)),
        flags_gained=flags.count((True, False)),
        grad_mode=grad_mode,
        gradients_kept=all(map(_has_gradient_of_ones, model.parameters())),
        batches=log.batches,
        forward_line=call.first_line(ledger.forwards()),
        graph_line=call.first_line(ledger.forwards_building_graph()),
        copies_back=count_occurrences(call, to_host),
        reads=count_occurrences(call, reads),
        targets_moved=count_occurrences(call, of_targets),
        bytes_back=sum(copy.bytes for copy in to_host),
    )


def _has_gradient_of_ones(parameter: Any) -> bool:
    """True if a parameter has a gradient that is 1 everywhere. Reads its values."""
    gradient = parameter.grad
    return gradient is not None and bool((gradient == 1).all())


@predict.probe
def loops(call: Call) -> Cases[Predicted]:
    """Predictions for loaders with several batches and with one.

    The last of several is smaller, and in one scenario has a single sprite. There the device is a
    string. Raises StudentRaised for an error about a closed device or memory.
    """
    device = call.device
    return try_scenarios(
        {
            "model_on_the_cpu": lambda: _call_predict(call, device, count=10),
            "model_already_there": lambda: _call_predict(call, str(device), count=5, moved=True),
            "told_to_use_the_cpu": lambda: _call_predict(call, "cpu", count=3),
        }
    )


@predict.probe(machine="two gpus", edge=True)
def loops_on_the_second_gpu(call: Call) -> Cases[Predicted]:
    return try_scenarios({"on_the_second_gpu": lambda: _call_predict(call, "cuda:1", count=5)})


# ---- claims ------------------------------------------------------------------------------------

runs(predict, diagnose=why_a_loop_raises)


def _expect_every_sample(found: Predicted, right: Predicted) -> None:
    """Raises Failed if the model was not called for every sample."""
    called = found.predicted_samples()
    samples = right.predicted_samples()
    if called < samples:
        happened = f"the model was called for {called} of {samples} inputs"
        if len(found.forwards) >= found.batches >= right.batches:
            expected = "forward passes with all inputs of each batch"
            raise Failed(happened, expected, found.forward_line)
        expected = "a forward pass for every batch"
        raise Failed(happened, expected, misconception="loop-left-early")


@check_scenarios(predict, loops, loops_on_the_second_gpu, points=0.5)
def works_on_the_device(scenario: str, found: Predicted, right: Predicted) -> None:
    """Every forward pass runs on the device passed in, even if another GPU is current."""
    device = right.forwards[0].input_device
    used = {forward.input_device for forward in found.forwards}
    expect_ran_on(device, used, found.forward_line)


@check_scenarios(predict, loops, points=0.25)
def predicts_in_evaluation_mode(scenario: str, found: Predicted, right: Predicted) -> None:
    """Every forward pass runs in evaluation mode."""
    _expect_every_sample(found, right)
    training = found.training_passes()
    if training:
        count = f"{training} of {len(found.forwards)} forward passes"
        happened = f"{count} ran in training mode, with dropout"
        expected = "evaluation mode in every forward pass"
        key = None
        if not any(forward.graph for forward in found.forwards):
            key = "no-grad-without-eval"
        raise Failed(happened, expected, found.forward_line, key, ("eval not called",))


@check_scenarios(predict, loops, points=0.25)
def builds_no_graph(scenario: str, found: Predicted, right: Predicted) -> None:
    """No forward pass builds an autograd graph, and the model can still be trained afterwards, from
    the gradients that it had."""
    _expect_every_sample(found, right)
    in_training = found.training_passes() > 0
    expect_no_graph(found.forwards, found.graph_line, in_training)
    if found.flags_lost:
        happened = "parameters of the model no longer require a gradient"
        key = "requires-grad-left-off"
        raise Failed(happened, "requires_grad as before", misconception=key)
    if found.flags_gained:
        happened = "a parameter that was frozen before the call requires a gradient after it"
        at = ("last requires_grad_(", "last .requires_grad =")
        raise Failed(happened, "requires_grad as before, for each parameter", at=at)
    if not found.grad_mode:
        happened = "gradients were still switched off after the call"
        raise Failed(happened, "gradients off in the loop only")
    if not found.gradients_kept:
        happened = "parameters have lost the gradients that they had before the call"
        zeroing = ("zero_grad(", ".grad =", "zero_(", "backward(")
        raise Failed(happened, "each parameter's `.grad` as before", at=zeroing)


@check_scenarios(predict, loops, points=0.5, needs=("runs", "predicts_in_evaluation_mode"))
def returns_every_output(scenario: str, found: Predicted, right: Predicted) -> None:
    """It returns the outputs of all batches in one tensor, in order, on the CPU."""
    _expect_every_sample(found, right)
    returned = found.returned
    outputs = right.returned.value
    assert outputs is not None
    if returned.value is None:
        raise returned_other_type(returned.kind, "one tensor")
    if returned.device != "cpu":
        happened = f"the outputs were returned on {returned.device}"
        # Where they were copied, the copy was thrown away.
        key = None
        if found.copies_back.count:
            key = "result-thrown-away"
        raise Failed(happened, "the CPU", found.copies_back.line, key)
    if returned.value.shape != outputs.shape:
        happened = f"{right.batches} batches gave shape {returned.value.shape}"
        at = ("argmax(", "max(", "squeeze(", "flatten(", "mean(")
        raise Failed(happened, str(outputs.shape), at=at)
    if returned.value.dtype != outputs.dtype:
        happened = f"the outputs have the dtype {returned.value.dtype}"
        raise Failed(happened, f"{outputs.dtype}, as the model gives them", at=CHANGING_DTYPE)
    if arrays_close(returned.value, outputs):
        return
    if _are_same_numbers(returned.value, outputs):
        happened = "the model's outputs are there in another order"
        raise Failed(happened, "the outputs in the order of the inputs", at=CHANGING_ORDER)
    happened = "the values differ from the model's outputs"
    raise Failed(happened, "the outputs as they are", at=CHANGING_OUTPUTS)


def _are_same_numbers(found: Array, right: Array) -> bool:
    """True if two arrays have the same numbers, in whatever order."""
    numbers = sorted(numpy_values(found).flatten().tolist())
    right_numbers = sorted(numpy_values(right).flatten().tolist())
    return values_close(numbers, right_numbers, rtol=1e-3, atol=1e-5)


@check_scenarios(predict, loops, points=0.5, needs=("runs", "works_on_the_device"))
def copies_back_once(scenario: str, found: Predicted, right: Predicted) -> None:
    """There is one copy back to the host, however many batches there are."""
    _expect_every_sample(found, right)
    copies = found.copies_back
    if copies.count > right.copies_back.count:
        happened = f"{found.batches} batches made {copies.count} copies back to the host"
        expected = "one, of all outputs together, after the loop"
        key = None
        if copies.count >= found.batches:
            key = "copied-every-batch-back"
        raise Failed(happened, expected, copies.line, key)
    _expect_every_number_copied(found, right)
    reads = found.reads
    if reads.count > right.reads.count:
        read = f"the host read a value from the device {reads.count} times"
        happened = f"{read} and waited for it each time"
        expected = "no reading before the one copy"
        raise Failed(happened, expected, reads.line, "sync-in-hot-loop")


def _expect_every_number_copied(found: Predicted, right: Predicted) -> None:
    """Raises Failed if fewer bytes were copied back than the result has numbers.

    Then some came to the host on a way that a real GPU does not have. Half of the bytes may do: a
    solution may copy numbers in half precision.
    """
    if not right.copies_back.count or found.bytes_back is None or found.returned.value is None:
        return
    numbers = math.prod(found.returned.value.shape)
    if found.bytes_back < numbers:
        happened = f"the result has {numbers} numbers; {found.bytes_back} bytes were copied back"
        raise Failed(happened, "one copy, of all outputs together", found.copies_back.line)


@check_scenarios(predict, loops, points=0.5)
def leaves_the_targets(scenario: str, found: Predicted, right: Predicted) -> None:
    """The targets are never moved."""
    _expect_every_sample(found, right)
    moved = found.targets_moved
    if moved.count:
        copied = f"the targets of {moved.count} batches were copied to the device"
        raise Failed(f"{copied}, and nothing used them", "only the inputs moved", moved.line)
