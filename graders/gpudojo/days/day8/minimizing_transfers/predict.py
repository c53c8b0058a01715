"""`predict`: the outputs of a model for all batches, with one copy back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpudojo.days.day8.loops_over_batches import (
    expect_no_graph,
    expect_ran_on,
    why_a_loop_raises,
)
from gpudojo.days.day8.minimizing_transfers.declaration import predict
from gpudojo.days.day8.sprites import make_sprites, seeded_generator
from gpudojo.days.day8.watched_objects import ForwardPass, WatchLog
from gpudojo.grading.call import Call, array_of, nn, torch, try_scenarios
from gpudojo.grading.checks import compare_cases, runs
from gpudojo.grading.comparing import arrays_close
from gpudojo.model.evidence import Array, Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type

MODEL = ""  # the name of the whole model among its parts

# ---- scenarios ---------------------------------------------------------------------------------


class Predicted(Case, frozen=True):
    """One call: the result, the forward passes, and what was copied."""

    kind: str
    device: str | None
    value: Array | None
    forwards: list[ForwardPass]
    forward_line: int | None
    graph_line: int | None
    trainable: bool  # whether all parameters require gradients afterwards
    grad_mode: bool  # whether gradients are on afterwards
    batches: int
    copies_back: int
    copy_line: int | None
    reads: int  # of values from the device, which wait for it
    read_line: int | None
    targets_moved: int
    targets_line: int | None

    def predicted_samples(self) -> int:
        """For how many samples the model was called."""
        return sum(forward.samples for forward in self.forwards)

    def training_passes(self) -> int:
        """How many forward passes the model was in training mode."""
        return sum(MODEL in forward.training for forward in self.forwards)


def _make_model(seed: int, log: WatchLog) -> Any:
    """A model whose outputs are pictures."""
    with seeded_generator(seed):
        return log.make_model(nn.Conv2d(3, 2, 1), nn.Dropout(0.5))


def _call_predict(call: Call, device: Any, count: int, moved: bool = False) -> Predicted:
    """Call the student's function for so many sprites and describe it. Raises StudentRaised.

    With `moved` the model is on the device before.
    """
    log = WatchLog(call)
    model = _make_model(call.seed, log)
    if moved:
        model.to(device)
    pictures, _ = make_sprites(count, call.seed + 1)
    # The targets are larger than necessary, so that a copy of them is recognised by its size.
    targets = torch.zeros(count, 11, dtype=torch.int64)
    loader = log.make_loader(pictures, targets, batch_size=4)
    # Whatever mode the student's function leaves on ends with this `with`.
    with torch.enable_grad(), log.explaining_errors():
        value = call(model, loader, device)
        grad_mode = torch.is_grad_enabled()
    ledger = call.ledger
    copies_back = ledger.transfers_to_host()
    reads = ledger.syncs(besides=("copy", "tolist"))
    to_device = ledger.transfers_to_device()
    of_targets = [copy for copy in to_device if copy.bytes in log.target_sizes]
    is_tensor = isinstance(value, torch.Tensor)
    return Predicted(
        kind=type(value).__name__,
        device=value.device.type if is_tensor else None,
        value=array_of(value) if is_tensor else None,
        forwards=log.forwards,
        forward_line=call.first_line(ledger.forwards()),
        graph_line=call.first_line(ledger.forwards_building_graph()),
        trainable=all(p.requires_grad for p in model.parameters()),
        grad_mode=grad_mode,
        batches=log.batches,
        copies_back=len(copies_back),
        copy_line=call.first_line(copies_back),
        reads=len(reads),
        read_line=call.first_line(reads),
        targets_moved=len(of_targets),
        targets_line=call.first_line(of_targets),
    )


@predict.probe
def loops(call: Call) -> Cases[Predicted]:
    """Predictions for loaders with several batches and with one.

    The last of several is smaller, and in one scenario has a single sprite. There the device is a
    string.
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


def _compared_predictions(seen: Seen, wanted: Seen) -> Iterator[tuple[Predicted, Predicted]]:
    """Yield what was seen and what the reference did, for each scenario.

    Raises Failed if the model was not called for every sample.
    """
    for _, found, right in compare_cases(seen, wanted, loops):
        called = found.predicted_samples()
        samples = right.predicted_samples()
        if called < samples:
            happened = f"the model was called for {called} of {samples} inputs"
            expected = "a forward pass for every batch"
            raise Failed(happened, expected, misconception="loop-left-early")
        yield found, right


@predict.check(points=0.5)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device passed in, even if another GPU is current."""
    for _, found, right in compare_cases(seen, wanted, loops, loops_on_the_second_gpu):
        used = {forward.input_device for forward in found.forwards}
        expect_ran_on(right.forwards[0].input_device, used, found.forward_line)


@predict.check(points=0.25)
def predicts_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode."""
    for found, _ in _compared_predictions(seen, wanted):
        training = found.training_passes()
        if training:
            count = f"{training} of {len(found.forwards)} forward passes"
            happened = f"{count} ran in training mode, with dropout"
            expected = "model.eval() before the loop"
            graph = any(forward.graph for forward in found.forwards)
            key = None if graph else "no-grad-without-eval"
            raise Failed(happened, expected, found.forward_line, key, ("eval not called",))


@predict.check(points=0.25)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph, and the model can still be trained afterwards."""
    for found, _ in _compared_predictions(seen, wanted):
        in_training = found.training_passes() > 0
        expect_no_graph(found.forwards, found.graph_line, in_training)
        if not found.trainable:
            happened = "parameters of the model no longer require a gradient"
            key = "requires-grad-left-off"
            raise Failed(happened, "requires_grad as before", misconception=key)
        if not found.grad_mode:
            happened = "gradients were still switched off after the call"
            raise Failed(happened, "gradients off in the loop only")


@predict.check(points=0.5, needs=("runs", "predicts_in_evaluation_mode"))
def returns_every_output(seen: Seen, wanted: Seen) -> None:
    """It returns the outputs of all batches in one tensor, in order, on the CPU."""
    for found, right in _compared_predictions(seen, wanted):
        assert right.value is not None
        if found.value is None:
            raise returned_other_type(found.kind, "one tensor")
        if found.device != "cpu":
            happened = f"the outputs were returned on {found.device}"
            if found.copies_back:  # the copy was made, and the original returned
                raise Failed(happened, "the CPU", found.copy_line, "result-thrown-away")
            raise Failed(happened, "the CPU")
        if found.value.shape != right.value.shape:
            happened = f"{right.batches} batches gave shape {found.value.shape}"
            raise Failed(happened, str(right.value.shape))
        if not arrays_close(found.value, right.value):
            happened = "the values or their order differ from the model's outputs"
            raise Failed(happened, "the outputs in order")


@predict.check(points=0.5, needs=("runs", "works_on_the_device"))
def copies_back_once(seen: Seen, wanted: Seen) -> None:
    """There is one copy back to the host, however many batches there are."""
    for found, right in _compared_predictions(seen, wanted):
        if found.copies_back > right.copies_back:
            happened = f"{found.batches} batches made {found.copies_back} copies back to the host"
            expected = "one, of all outputs together, after the loop"
            key = None
            if found.copies_back >= found.batches:
                key = "copied-every-batch-back"
            raise Failed(happened, expected, found.copy_line, key)
        if found.reads > right.reads:
            read = f"the host read a value from the device {found.reads} times"
            happened = f"{read} and waited for it each time"
            expected = "no reading before the one copy"
            raise Failed(happened, expected, found.read_line, "sync-in-hot-loop")


@predict.check(points=0.5)
def leaves_the_targets(seen: Seen, wanted: Seen) -> None:
    """The targets are never moved."""
    for found, _ in _compared_predictions(seen, wanted):
        if found.targets_moved:
            copied = f"the targets of {found.targets_moved} batches were copied to the device"
            happened = f"{copied}, and nothing used them"
            raise Failed(happened, "only the inputs moved", found.targets_line)
