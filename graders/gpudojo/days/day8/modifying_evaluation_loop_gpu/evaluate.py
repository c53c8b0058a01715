"""`evaluate`: mean loss and accuracy of a classifier, on the device."""

from __future__ import annotations

import linecache
import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from gpudojo.days.day8.loops_over_batches import (
    CHANGING_OUTPUTS,
    ROUGH,
    batches_left_out,
    expect_forward_passes,
    expect_no_graph,
    loss_of_other_outputs,
    missing_loss,
    why_a_loop_raises,
)
from gpudojo.days.day8.modifying_evaluation_loop_gpu.declaration import evaluate
from gpudojo.days.day8.modifying_evaluation_loop_gpu.numbers import (
    BATCH,
    CLOSE,
    FEW,
    HIDDEN,
    MOST,
    SMOOTHING,
    Numbers,
    batch_means,
    classes_of,
    draw_telling_numbers,
)
from gpudojo.days.day8.returned_numbers import ReturnedNumber, describe_number
from gpudojo.days.day8.sprites import linear_layer
from gpudojo.days.day8.watched_objects import ForwardPass, WatchLog
from gpudojo.grading.call import (
    COPIED_BACK,
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
    compare_cases,
    expect_device_used,
    expect_float,
    expect_settings_kept,
    is_between_gpus,
    runs,
)
from gpudojo.model.evidence import Array, Case, Cases, Raised
from gpudojo.model.exercise import Failed, Seen, with_article

# ---- scenarios ---------------------------------------------------------------------------------

COMPARISON: Final = re.compile(r"[!=]=|\b(eq|ne|equal)\(")
COMPARING: Final = "(comparing outputs with targets)"  # the end of an error's message
# The parts of the model that have a mode, with the names that failures show.
PARTS: Final = {"": "model", "norm": "batch norm", "dropout": "dropout"}


def make_layers(numbers: Numbers) -> OrderedDict[str, Any]:
    """New layers of a classifier with batch norm and dropout, by name.

    The numbers are copied into them.
    """
    copies = [each.clone() for each in numbers]
    numbers = Numbers(*copies)
    # Over four values per channel: in training mode a batch of one changes it, but does not raise.
    norm = nn.BatchNorm1d(3)
    norm.running_mean = numbers.mean
    norm.running_var = numbers.variance
    return OrderedDict(
        flatten=nn.Flatten(),
        first=linear_layer(numbers.first, numbers.first_bias),
        channels=nn.Unflatten(1, (3, HIDDEN // 3)),
        norm=norm,
        dropout=nn.Dropout(0.5),
        relu=nn.ReLU(),
        join=nn.Flatten(),
        last=linear_layer(numbers.last, numbers.last_bias),
    )


class Evaluated(Case, frozen=True):
    """One call, with what it returned, how the model was run, and what it changed."""

    kind: str
    parts: list[ReturnedNumber]  # of a tuple or list
    is_tuple: bool
    passes: list[ForwardPass]
    graph_line: int | None
    forward_line: int | None
    wanted_device: str
    changed: dict[str, list[str]]  # names of changed tensors: weights, gradients, statistics
    flags_after: dict[str, bool]  # `requires_grad` of each parameter
    settings: list[str]
    losses: int  # calls of `loss_fn`
    as_they_are: bool  # whether they got the model's outputs themselves
    batch_means: list[float]
    sizes: list[int]  # of the batches

    def training_parts(self) -> list[list[str]]:
        """The names of the parts in training mode, for each pass that had any."""
        found = []
        for forward in self.passes:
            names = [PARTS[part] for part in forward.training if part in PARTS]
            if names:
                found.append(sorted(names))
        return found

    def changed_model(self) -> list[str]:
        """The names of the weights and statistics that were changed."""
        return self.changed["weights"] + self.changed["statistics"]

    def devices(self) -> set[str]:
        """The devices that forward passes ran on."""
        used: set[str] = set()
        for forward in self.passes:
            used.update(forward.devices)
        return used

    def returned_number(self, which: int) -> float:
        """The number that was returned at this place, LOSS or ACCURACY; it is known to be one."""
        value = self.parts[which].value
        assert value is not None
        return value

    def trainable_names(self) -> list[str]:
        """The names of the parameters that require gradients after the call."""
        return [name for name, required in self.flags_after.items() if required]

    def is_training(self, part: str) -> bool:
        """True if this part of the model was in training mode in any pass."""
        return any(part in names for names in self.training_parts())


def _call_evaluate(call: Call, device: Any, samples: int = FEW, moved: bool = False) -> Evaluated:
    """Call the student's function for so many samples and describe what it did.

    With `moved` the model is on the device before. Settings of torch that were changed are
    restored. Raises StudentRaised.
    """
    # Watched objects, in the state that the scenario asks for
    drawn = draw_telling_numbers(call.seed)
    outputs = drawn.outputs[:, :samples]
    (classes,) = classes_of(outputs)
    log = WatchLog(call)
    # A copy of the sprites: a solution may write into them.
    pictures = drawn.pictures[:samples].clone()
    loader = log.make_loader(pictures, classes, BATCH)
    model = log.make_model(make_layers(drawn.numbers))
    _prepare_gradients(model)
    before = _state_of(model)
    if moved:
        model.to(device)
    loss_fn = log.make_loss(label_smoothing=SMOOTHING)
    with torch.enable_grad():  # whatever mode the student's function leaves on ends here
        try:
            value, settings = call_and_restore_settings(call, model, loader, loss_fn, device)
        except StudentRaised as error:
            raise _explain_error(error, call, log) from None
    # What came of it
    returned = []
    if isinstance(value, (tuple, list)):
        returned = [describe_number(part) for part in value]
    after = _state_of(model)
    changed = {}
    for kind, tensors in before.items():
        changed[kind] = _changed_names(tensors, after[kind])
    means: list[float] = []
    if samples:
        means = [float(mean) for mean in batch_means(outputs)]
    forwards = call.ledger.forwards()
    building = [forward for forward in forwards if forward.builds_graph]
    return Evaluated(
        kind=type(value).__name__,
        parts=returned,
        is_tuple=isinstance(value, tuple),
        passes=log.forwards,
        graph_line=call.first_line(building),
        forward_line=call.first_line(forwards),
        wanted_device=device_name(device),
        changed=changed,
        flags_after={name: p.requires_grad for name, p in model.named_parameters()},
        settings=settings,
        losses=len(log.losses),
        as_they_are=all(loss.got_outputs for loss in log.losses),
        batch_means=means,
        sizes=[min(BATCH, samples - start) for start in range(0, samples, BATCH)],
    )


def _prepare_gradients(model: Any) -> None:
    """Freeze one parameter, and give the others gradients but for the last one, which gets none."""
    model.first.bias.requires_grad_(False)
    *others, _ = model.parameters()
    for parameter in others:
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)


def _changed_names(before: TensorValues, after: TensorValues) -> list[str]:
    """The names of the tensors that have other values afterwards, or are not there."""
    return [name for name, values in before.items() if after.get(name) != values]


def _explain_error(error: StudentRaised, call: Call, log: WatchLog) -> StudentRaised:
    """The error with what had been copied. It is returned, not raised.

    A comparison of outputs with targets on different devices is named in its message. Before the
    first batch it is returned as it is.
    """
    if not log.latest_batch:
        return error
    lines = log.copied_lines()
    message = error.evidence.message
    line = error.evidence.line or 0
    source = linecache.getline(str(call.path), line)
    if "found at least two devices" in message and COMPARISON.search(source):
        message = f"{message} {COMPARING}"
        if log.losses and "targets" in lines:
            # The copy was not thrown away: the loss has used it.
            lines["targets of the loss"] = lines.pop("targets")
    return error.with_facts(message=message, copied=lines)


TensorValues = dict[str, Array | None]  # by name


def _state_of(model: Any) -> dict[str, TensorValues]:
    """The values of a model's tensors as they are now, by kind and name.

    The kinds are weights, gradients and statistics. A parameter without a gradient has None there.
    """
    weights: TensorValues = {}
    gradients: TensorValues = {}
    statistics: TensorValues = {}
    for name, parameter in model.named_parameters():
        weights[name] = array_of(parameter)
        gradients[name] = None
        if parameter.grad is not None:
            gradients[name] = array_of(parameter.grad)
    for name, buffer in model.named_buffers():
        statistics[name] = array_of(buffer)
    return {"weights": weights, "gradients": gradients, "statistics": statistics}


@evaluate.probe
def evaluated(call: Call) -> Cases[Evaluated]:
    """Evaluations of a model on the CPU or on the device, of an empty loader, and on the CPU.

    Raises StudentRaised for an error about a closed device or memory.
    """
    device = call.device
    return try_scenarios(
        {
            "model_starts_on_the_cpu": lambda: _call_evaluate(call, device),
            "already_there": lambda: _call_evaluate(call, str(device), samples=MOST, moved=True),
            "nothing_to_evaluate": lambda: _call_evaluate(call, device, samples=0),
            "on_the_cpu": lambda: _call_evaluate(call, "cpu"),
        }
    )


@evaluate.probe(machine="two gpus")
def evaluated_on_the_second_gpu(call: Call) -> Cases[Evaluated]:
    """An evaluation of a model that is on the second GPU already.

    A batch that goes to "cuda" goes to the first GPU. Raises StudentRaised for an error about a
    closed device or memory.
    """
    return try_scenarios(
        {"on_the_second_gpu": lambda: _call_evaluate(call, "cuda:1", samples=2, moved=True)}
    )


# ---- claims ------------------------------------------------------------------------------------

ON_THE_DEVICE = ("model_starts_on_the_cpu", "already_there")
FULL = (*ON_THE_DEVICE, "on_the_cpu", "on_the_second_gpu")
HALF: Final = ("torch.float16", "torch.bfloat16")


PROBES: Final = (evaluated, evaluated_on_the_second_gpu)


def _all_cases(seen: Seen) -> Cases[Evaluated]:
    return seen.cases(*PROBES)


def _full_cases(seen: Seen) -> Iterator[tuple[str, Evaluated]]:
    """Yield name and case of each scenario with sprites.

    Notes in `seen` which one is asked for. Raises ScenarioRaised for one that ended with an error.
    """
    cases = _all_cases(seen)
    for name in FULL:
        yield name, cases[name]


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error; None if none is known.

    It is found from torch's message and from what had been copied before.
    """
    if "must match the size" in raised.message:
        return "largest-over-samples"
    if not raised.message.endswith(COMPARING) or is_between_gpus(raised.message):
        return why_a_loop_raises(raised, seen)
    if raised.scenario == "on_the_cpu":
        return "hard-coded-cuda"
    copied_targets = {"targets", "targets of the loss"} & raised.copied.keys()
    if not copied_targets or COPIED_BACK not in raised.copied:
        return "targets-on-cpu"
    # Something was copied either way; where the comparison itself copies, it is the outputs.
    if raised.copied[COPIED_BACK] == raised.line:
        return "outputs-on-cpu"
    return None


runs(evaluate, scenarios=FULL, diagnose=_why_it_raises)


@evaluate.check(points=1)
def calls_the_model(seen: Seen, wanted: Seen) -> None:
    """The model is called with the inputs of the batches."""
    # In the main scenario: who leaves out batches elsewhere loses other points.
    name = FULL[0]
    expect_forward_passes(name, _all_cases(seen)[name].passes)


CALLED = ("runs", "calls_the_model")


@evaluate.check(points=1, needs=CALLED)
def runs_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device, even if the model was still on the CPU."""
    for name in ON_THE_DEVICE:
        case = seen[evaluated][name]
        device = case.wanted_device
        elsewhere = [forward for forward in case.passes if forward.devices != [device]]
        if elsewhere:
            where = ", ".join(elsewhere[0].devices)
            count = f"{len(elsewhere)} of {len(case.passes)} forward passes"
            happened = f"{count} ran on {where}"
            expected = f"all of them on {device}"
            if where == "cpu":
                key = "model-not-moved"
                raise Failed(happened, expected, case.forward_line, key, ("device =",))
            raise Failed(happened, expected, case.forward_line)


@evaluate.check(points=1, needs=CALLED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Evaluation happens on the device passed in, whatever this machine has."""
    for name in ("on_the_cpu", "on_the_second_gpu"):
        case = _all_cases(seen)[name]
        what = "the forward passes ran on"
        expect_device_used(case.wanted_device, case.devices(), what, case.forward_line)


@evaluate.check(points=2, needs=CALLED)
def evaluates_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode, including dropout and batch norm."""
    for _, case in _full_cases(seen):
        training = case.training_parts()
        if not training:
            continue
        parts = " and ".join(training[0])
        if len(training[0]) == len(PARTS):
            parts = "the whole model"
        count = f"{len(training)} of {len(case.passes)} forward passes"
        happened = f"{count} ran with {parts} in training mode"
        expected = "evaluation mode in every forward pass"
        raise _failure_in_training_mode(case, happened, expected)


def _failure_in_training_mode(case: Evaluated, happened: str, expected: str) -> Failed:
    """The failure of forward passes in training mode. It is returned, not raised.

    `happened` and `expected` are its sentences. It names the mistake, where that can be told, and
    where to look for the line.
    """
    training = case.training_parts()
    always = len(training) == len(case.passes)
    key = None
    if always and all("model" in parts for parts in training):
        # Without `no_grad` too, the mistake is not that one was taken for the other.
        if not any(each.graph for each in case.passes):
            key = "no-grad-without-eval"
        elif case.changed["statistics"]:
            key = "batch-norm-changed"
    elif case.is_training("batch norm"):
        key = "batch-norm-changed"
    at: tuple[str, ...] = ()
    if not case.is_training("model"):  # parts of a model in evaluation mode
        at = ("train(", ".training")
    elif always:
        at = ("eval not called", "train(", ".training", "eval(")
    return Failed(happened, expected, case.forward_line, key, at)


@evaluate.check(points=2, needs=CALLED)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph."""
    for _, case in _full_cases(seen):
        expect_no_graph(case.passes, case.graph_line, bool(case.training_parts()))


@evaluate.check(points=1, needs=CALLED)
def leaves_weights_and_gradients_as_they_were(seen: Seen, wanted: Seen) -> None:
    """Weights and gradients are the same afterwards."""
    _expect_same_tensors(seen, "weights")
    _expect_same_tensors(seen, "gradients")


@evaluate.check(points=1, needs=CALLED)
def leaves_batch_norm_as_it_was(seen: Seen, wanted: Seen) -> None:
    """The running statistics of batch norm are the same afterwards."""
    _expect_same_tensors(seen, "statistics")


def _expect_same_tensors(seen: Seen, kind: str) -> None:
    """Raises Failed if tensors of this kind were changed: weights, gradients or statistics.

    Raises ScenarioRaised where the student's code raised.
    """
    for name, case in _full_cases(seen):
        changed = case.changed[kind]
        if changed:
            names = ", ".join(changed[:3])
            happened = f"scenario `{name}` changed the {kind} of {names}"
            expected = f"the {kind} from before the call"
            if kind == "statistics" and case.is_training("batch norm"):
                raise _failure_in_training_mode(case, happened, expected)
            raise Failed(happened, expected)


@evaluate.check(points=1, needs=CALLED)
def leaves_training_possible(seen: Seen, wanted: Seen) -> None:
    """Training can continue: requires_grad of every parameter, grad mode and torch's settings are
    unchanged."""
    for scenario, case, right in compare_cases(seen, wanted, *PROBES, names=FULL):
        trainable = right.trainable_names()
        afterwards = case.trainable_names()
        switched_off = [name for name in trainable if name not in afterwards]
        switched_on = [name for name in afterwards if name not in trainable]
        if switched_off:
            count = f"{len(switched_off)} of {len(trainable)} trainable parameters"
            happened = f"afterwards {count} no longer require gradients"
            expected = "requires_grad as before"
            raise Failed(happened, expected, misconception="requires-grad-left-off")
        if switched_on:
            happened = f"{', '.join(switched_on)} was frozen, and requires gradients afterwards"
            raise Failed(happened, "requires_grad as before")
        if "the gradient mode" in case.settings:
            happened = "gradients are switched off for the whole program afterwards"
            raise Failed(happened, "gradients off in the loop only")
        expect_settings_kept(case.settings, scenario)


@evaluate.check(points=1, needs=CALLED)
def returns_two_floats(seen: Seen, wanted: Seen) -> None:
    """It returns a tuple of two Python floats: loss and accuracy."""
    for _, case in _full_cases(seen):
        if not case.is_tuple or len(case.parts) != 2:
            count = ""
            if case.parts:
                count = f" of {len(case.parts)}"
            happened = f"it returned {with_article(case.kind)}{count}"
            raise Failed(happened, "a tuple of two floats")
        for what, part in zip(NUMBERS, case.parts, strict=True):
            expect_float(part.kind, part.is_float, f"the {what} is ")


NUMBERS = ("loss", "accuracy")  # that are returned, in this order
LOSS = 0
ACCURACY = 1
RETURNED = (*CALLED, "evaluates_in_evaluation_mode", "returns_two_floats")


@evaluate.check(points=1, needs=RETURNED)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """The first number is the mean of `loss_fn` over all samples; the last batch may be smaller."""
    _expect_number(LOSS, seen, wanted)


@evaluate.check(points=1, needs=RETURNED)
def returns_the_accuracy(seen: Seen, wanted: Seen) -> None:
    """The second number is the share of all samples that are classified correctly, in [0, 1]."""
    _expect_number(ACCURACY, seen, wanted)


def _expect_number(which: int, seen: Seen, wanted: Seen) -> None:
    """Raises Failed where the number LOSS or ACCURACY is wrong, or right by chance.

    Raises ScenarioRaised where the student's code raised. Notes in `seen` what the failure is
    about.
    """
    what = NUMBERS[which]
    for name, case, right in compare_cases(seen, wanted, *PROBES, names=FULL):
        for changed in case.changed_model():
            happened = f"scenario `{name}`: {changed} was changed, so that {what} may be another"
            at = evaluate.signs_for("leaves_weights_and_gradients_as_they_were")
            raise Failed(happened, f"the {what} of the model as it was passed in", at=at)
        found_value = case.parts[which].value
        if not _is_close(found_value, right.returned_number(which)):
            is_mean_of_means = _is_mean_of_means(which, seen, wanted)
            seen.about(None, name)
            raise _wrong_number(which, name, case, right, is_mean_of_means)
        if which == LOSS:
            _expect_full_precision(name, case, seen)
        seen.about(None, name)
        expect_forward_passes(name, case.passes)  # a right number of no model is none


def _is_mean_of_means(which: int, seen: Seen, wanted: Seen) -> bool:
    """True if the number LOSS or ACCURACY is the mean over the batches in every scenario.

    In some of them, with a few samples, it may be equal to that by chance. Raises ScenarioRaised
    where the student's code raised.
    """
    for _, case, right in compare_cases(seen, wanted, *PROBES, names=FULL):
        found = case.parts[which].value
        if not _is_close(found, right.batch_means[which]):
            return False
    return True


def _expect_full_precision(name: str, case: Evaluated, seen: Seen) -> None:
    """Raises Failed for a loss of outputs in half precision, which is right by chance.

    Then `seen` notes that it is about the scenario `name`.
    """
    for forward in case.passes:
        if forward.dtype in HALF:
            seen.about(None, name)
            outputs = f"the model's outputs are {forward.dtype}, which keeps three digits at most"
            expected = "outputs in float32, as the model's parameters"
            happened = f"scenario `{name}`: {outputs}"
            raise Failed(happened, expected, at=ROUGH)


def _wrong_number(
    which: int, name: str, case: Evaluated, reference: Evaluated, is_mean_of_means: bool
) -> Failed:
    """The failure of a wrong number, LOSS or ACCURACY, in the scenario `name`; returned, not
    raised.

    It says what number it is, where that can be told. `is_mean_of_means` is whether the number is
    the mean over the batches in every scenario.
    """
    structural = _left_out_or_in_wrong_order(which, name, case, reference)
    if structural is not None:
        return structural
    what = NUMBERS[which]
    found = case.returned_number(which)
    right = reference.returned_number(which)
    batches = len(reference.sizes)
    samples = sum(reference.sizes)
    happened = f"scenario `{name}`: {what} {found:.4f}"
    at: tuple[str, ...] = (f"part {which + 1} of return",)
    if _is_close(found * batches, right * samples):
        happened = f"{happened}, the sum over {samples} samples divided by {batches}"
        expected = f"{right:.4f}, divided by the number of samples"
        return Failed(happened, expected, at=at, about="returns_two_floats")
    # A note means: the right samples, and another kind of number. `returns_two_floats` has its
    # hints.
    note = ""
    key = None
    if which == ACCURACY and _is_close(found, 100 * right):
        note = " (in [0, 1], not in percent)"
    elif which == ACCURACY and _is_close(found, 1 - right):
        happened = f"{happened}, which is the share of the wrong answers"
        return Failed(happened, f"{right:.4f}, the share of the right ones", at=("!=", "ne(", "-"))
    elif which == LOSS and _is_close(found, math.exp(right)):
        happened = f"{happened}, which is e to the power of the mean"
        return Failed(happened, f"{right:.4f}, the mean itself", at=("exp(",))
    elif found in [round(right, digits) for digits in (1, 2, 3)]:
        note = " (not rounded)"
    else:
        at = _patterns_of_computation(which, found * samples)
        if which == ACCURACY and found > 1:
            note = " (a share is at most 1: divide by the number of samples)"
            at = (f"part {which + 1} of return",)
        if found == math.floor(right):
            key = "floor-division"
        mean_of_sums = reference.batch_means[which] * batches / samples
        if _is_close(found, mean_of_sums):
            note = " (weight each batch by its number of samples)"
        elif which == LOSS and not is_mean_of_means and not case.as_they_are:
            return loss_of_other_outputs(*CHANGING_OUTPUTS)
    if is_mean_of_means and which == ACCURACY:
        at = ("mean(",)
    if is_mean_of_means:
        key = "mean-of-batch-means"
    elif which == ACCURACY and key is None and not note:
        key = "largest-over-samples"  # which the source has to show
    about = ""
    if note:
        about = "returns_two_floats"
    expected = f"{right:.4f}{note}"
    return Failed(happened, expected, misconception=key, at=at, about=about)


def _patterns_of_computation(which: int, total: float) -> tuple[str, ...]:
    """Patterns for the line that computes a wrong loss or accuracy.

    `total` is that number times the number of samples. A whole number of hits is divided wrongly.
    """
    if which == LOSS:
        return (*CHANGING_OUTPUTS, "+= loss_fn(", "loss_fn(")
    if _is_close(round(total), total):
        return ("sigmoid(", "max values", "amax(", "==", "eq(")
    return ("mean(",)


def _left_out_or_in_wrong_order(
    which: int, name: str, case: Evaluated, reference: Evaluated
) -> Failed | None:
    """The failure of a loss that was not computed, of batches left out, and of swapped numbers.

    It is returned, not raised; None if it is none of these. `which` is LOSS or ACCURACY.
    """
    if which == LOSS and not case.losses:
        return missing_loss(name)
    batches = len(case.sizes)
    if len(case.passes) < batches:
        return batches_left_out(len(case.passes), batches, f"scenario `{name}`: ")
    loss, accuracy = [part.value for part in case.parts]
    first_is_accuracy = _is_close(loss, reference.returned_number(ACCURACY))
    second_is_loss = _is_close(accuracy, reference.returned_number(LOSS))
    if first_is_accuracy and second_is_loss:
        happened = f"scenario `{name}`: loss and accuracy are swapped"
        return Failed(happened, "loss first, then accuracy")
    return None


def _is_close(found: float | None, right: float) -> bool:
    if found is None:
        return False
    return math.isclose(found, right, rel_tol=CLOSE, abs_tol=CLOSE)


@evaluate.check(points=1, needs=CALLED)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives (0.0, 0.0)."""
    name = "nothing_to_evaluate"
    case = seen[evaluated][name]
    values = [part.value for part in case.parts]
    if not case.is_tuple or values != [0.0, 0.0]:
        raise Failed(f"an empty loader gave {_result_in_words(case)}", "(0.0, 0.0)")
    right_flags = wanted[evaluated][name].flags_after
    if case.flags_after != right_flags:
        happened = "with an empty loader `requires_grad` of parameters was changed"
        raise Failed(happened, "requires_grad as before", misconception="requires-grad-left-off")
    if any(case.changed.values()):
        at = evaluate.signs_for("leaves_weights_and_gradients_as_they_were")
        raise Failed("with an empty loader the model was changed", "the model as it was", at=at)


def _result_in_words(case: Evaluated) -> str:
    """What was returned, for people: "(0.0, Tensor)", "a list of nan, 0.0", "None"."""
    if not case.parts:
        return with_article(case.kind)
    words = []
    for part in case.parts:
        if part.value is None:
            words.append(part.kind)
        else:
            words.append(str(part.value))
    parts = ", ".join(words)
    if case.is_tuple:
        return f"({parts})"
    return f"{with_article(case.kind)} of {parts}"
