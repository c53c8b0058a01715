"""05: evaluation on the device."""

from __future__ import annotations

import linecache
import math
import re
from collections import OrderedDict
from functools import lru_cache
from itertools import permutations
from operator import eq
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.sprites import CLASSES, SIZE, linear_layer, make_sprites
from gpudojo.days.day8.watched_objects import ForwardPass, WatchLog
from gpudojo.grading.call import (
    COPIED_BACK,
    Call,
    StudentRaised,
    call_and_restore_settings,
    device_name,
    nn,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import (
    device_mistake,
    expect_float,
    expect_settings_kept,
    is_between_gpus,
    runs,
    scenario_pairs,
)
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, with_article

exercise = Exercise(
    "05_modifying_evaluation_loop_gpu",
    "An evaluation loop that runs on the GPU",
    points=14,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "generated/torch.nn.Module.html"),
)
evaluate = exercise.function("evaluate")

BATCH: Final = 3
FEW: Final = 4  # sprites, so that the last batch has one
MOST: Final = 5
CLOSE: Final = 5e-5  # how far a number may be from the right one
HIDDEN: Final = 12
SMOOTHING: Final = 0.1  # of the loss: not the default, so the given loss has to be used
DRAWS: Final = 32  # at a time

# ---- numbers -----------------------------------------------------------------------------------

Outputs = list[list[float]]  # of a model, one row for each sprite


class Numbers(NamedTuple):
    """The parameters and statistics of the model."""

    first: Any
    first_bias: Any
    last: Any
    last_bias: Any
    mean: Any
    variance: Any


class Drawn(NamedTuple):
    """A model's numbers, sprites, and the model's outputs for them."""

    numbers: Numbers
    pictures: Any
    outputs: Outputs


# How many numbers each part of the model has, and from which range they are drawn. They are large
# enough that wrong answers cost visibly more than right ones.
SHAPES: Final = Numbers(
    first=(HIDDEN * 3 * SIZE * SIZE, -0.15, 0.15),
    first_bias=(HIDDEN, -0.15, 0.15),
    last=(CLASSES * HIDDEN, -2.4, 2.4),
    last_bias=(CLASSES, -0.3, 0.3),
    mean=(3, -0.5, 0.5),
    variance=(3, 0.1, 0.3),
)


@lru_cache(maxsize=1)
def _lows_and_widths() -> tuple[Any, Any]:
    """For each number of a model, where its range begins and how wide it is."""
    lows = [torch.full((size,), low) for size, low, _ in SHAPES]
    widths = [torch.full((size,), high - low) for size, low, high in SHAPES]
    return torch.cat(lows), torch.cat(widths)


@evaluate.draws
def _drawn(seed: int) -> Drawn:
    """The first numbers and sprites with which wrong formulas show.

    One draw in forty will do: their outputs are computed many at a time, from the numbers alone,
    and judged as Python's numbers.
    """
    while True:
        models, pictures = _draw_models(seed)
        for draw, outputs in enumerate(_outputs_in_evaluation_mode(models, pictures).tolist()):
            if not _is_telling_for_all_sizes(outputs):
                continue
            # In another order, two classes may show as one.
            for order in map(list, permutations(range(CLASSES))):
                reordered = [[row[place] for place in order] for row in outputs]
                if _is_telling_in_this_order(reordered):
                    numbers = Numbers(*(each[draw] for each in models))
                    last = numbers.last[order]
                    last_bias = numbers.last_bias[order]
                    numbers = numbers._replace(last=last, last_bias=last_bias)
                    return Drawn(numbers, pictures[draw], reordered)
        seed += 100_003


def _draw_models(seed: int) -> tuple[Numbers, Any]:
    """The numbers of DRAWS models, and MOST sprites for each."""
    lows, widths = _lows_and_widths()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(DRAWS, len(lows), generator=generator).mul_(widths).add_(lows)
    numbers = Numbers(*drawn.split([size for size, _, _ in SHAPES], dim=1))
    first = numbers.first.unflatten(1, (HIDDEN, -1))
    last = numbers.last.unflatten(1, (CLASSES, -1))
    pictures = make_sprites(DRAWS * MOST, seed + 1)[0].unflatten(0, (DRAWS, MOST))
    return numbers._replace(first=first, last=last), pictures


def _outputs_in_evaluation_mode(models: Numbers, pictures: Any) -> Any:
    """What each of several models gives for its sprites."""
    hidden = torch.baddbmm(models.first_bias[:, None], pictures.flatten(2), models.first.mT)
    channels = hidden.unflatten(2, (3, -1))
    deviation = (models.variance[:, None, :, None] + 1e-5).sqrt()
    normed = (channels - models.mean[:, None, :, None]) / deviation
    return torch.baddbmm(models.last_bias[:, None], normed.relu().flatten(2), models.last.mT)


def _is_telling_for_all_sizes(outputs: Outputs) -> bool:
    return all(_is_telling(outputs[:samples]) for samples in (FEW, MOST))


def _is_telling_in_this_order(outputs: Outputs) -> bool:
    if any(_one_output_is_enough(outputs[:samples]) for samples in (FEW, MOST)):
        return False
    return _is_telling_for_all_sizes(outputs)


def _is_telling(outputs: Outputs) -> bool:
    """True if wrong formulas give other numbers.

    These are: averaging the means of batches, rounding, comparing each with each, or the largest
    output of a whole batch or of a class. The largest output is the largest by so much that half
    precision does not change which one it is.
    """
    classes = classes_of(outputs)
    largest = [row.index(max(row)) for row in outputs[:BATCH]]
    compared_with_each = sum(map(largest.count, classes[:BATCH]))
    if compared_with_each == BATCH * sum(map(eq, largest, classes)):
        return False
    size = max(abs(value) for row in outputs for value in row)
    closest = min(max(row) - sorted(row)[-2] for row in outputs)
    if closest < 0.03 * size + 0.02:
        return False
    loss, accuracy = _loss_and_accuracy(outputs, classes)
    if abs(loss - _batch_means(outputs)[0]) <= 0.01:
        return False
    if abs(loss - round(loss, 3)) <= 2 * CLOSE * (1 + loss):
        return False
    return round(accuracy * len(outputs)) not in _hits_elsewhere(outputs, classes)


def _one_output_is_enough(outputs: Outputs) -> bool:
    """True if comparing one output with a threshold is right as often as the largest output.

    That is how a model for two classes is judged.
    """
    pairs = list(zip(outputs, classes_of(outputs), strict=True))
    hits = sum(row.index(max(row)) == wanted for row, wanted in pairs)
    for threshold in (0.0, 0.5):
        if hits == sum((row[1] > threshold) == wanted for row, wanted in pairs):
            return True
    return False


def _hits_elsewhere(outputs: Outputs, classes: list[int]) -> tuple[int, int]:
    """How many classes two wrong formulas find.

    The first takes the place of the largest output of a whole batch, the second its place in each
    column of the batch.
    """
    whole = 0
    columns = 0
    for start in range(0, len(outputs), BATCH):
        rows = outputs[start : start + BATCH]
        wanted = classes[start : start + BATCH]
        flat = [value for row in rows for value in row]
        whole += wanted.count(flat.index(max(flat)))
        places = [column.index(max(column)) for column in zip(*rows, strict=True)]
        columns += sum(map(eq, places, wanted))
    return whole, columns


def classes_of(outputs: Outputs) -> list[int]:
    """The targets, of which most are what the model finds.

    They are wrong for the second sprite, and for all of the last batch. The second one's class has
    the second largest output.
    """
    last_batch = (len(outputs) - 1) // BATCH * BATCH
    classes = []
    for place, row in enumerate(outputs):
        ranked = sorted(row)
        wanted = ranked[-1]
        if place == 1:
            wanted = ranked[-2]
        if place >= last_batch:
            wanted = ranked[0]
        classes.append(row.index(wanted))
    return classes


def _batch_means(outputs: Outputs) -> list[float]:
    """The means over the batches of loss and accuracy."""
    classes = classes_of(outputs)
    each = []
    for start in range(0, len(outputs), BATCH):
        stop = start + BATCH
        each.append(_loss_and_accuracy(outputs[start:stop], classes[start:stop]))
    return [sum(column) / len(each) for column in zip(*each, strict=True)] or [0.0, 0.0]


def _loss_and_accuracy(outputs: Outputs, classes: list[int]) -> tuple[float, float]:
    """The mean loss, as `loss_fn` computes it, and the accuracy."""
    loss = 0.0
    hits = 0.0
    for row, wanted in zip(outputs, classes, strict=True):
        logarithm = math.log(sum(map(math.exp, row)))
        loss += logarithm - (1 - SMOOTHING) * row[wanted] - SMOOTHING * sum(row) / CLASSES
        hits += row.index(max(row)) == wanted
    return loss / len(classes), hits / len(classes)


# ---- scenarios ---------------------------------------------------------------------------------

COMPARISON: Final = re.compile(r"[!=]=|\b(eq|ne|equal)\(")
COMPARING: Final = "(comparing outputs with targets)"  # the end of an error's message
# The parts of the model that have a mode, with the names that failures show.
PARTS: Final = {"": "model", "norm": "batch norm", "dropout": "dropout"}


def layers(numbers: Numbers) -> OrderedDict[str, Any]:
    """The layers of a classifier with batch norm and dropout."""
    numbers = Numbers(*(each.clone() for each in numbers))
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


class ReturnedPart(Case, frozen=True):
    """One part of the returned tuple."""

    kind: str
    is_float: bool
    value: float | None


class Evaluated(Case, frozen=True):
    """One call, with what it returned, how the model was run, and what it changed."""

    kind: str
    parts: list[ReturnedPart]
    is_tuple: bool
    passes: list[ForwardPass]
    graph_line: int | None
    forward_line: int | None
    wanted_device: str
    changed: dict[str, list[str]]  # names of changed tensors: weights, gradients, statistics
    flags_before: dict[str, bool]  # `requires_grad` of each parameter
    flags_after: dict[str, bool]
    settings: list[str]
    losses: int  # calls of `loss_fn`
    as_they_are: bool  # whether they got the model's outputs themselves
    batch_means: list[float]
    sizes: list[int]  # of the batches

    def training_parts(self) -> list[list[str]]:
        """The names of the parts in training mode, for each pass that had any."""
        found = []
        for each in self.passes:
            names = sorted(PARTS[part] for part in each.training if part in PARTS)
            if names:
                found.append(names)
        return found

    def is_training(self, part: str) -> bool:
        """True if this part of the model was in training mode in any pass."""
        return any(part in names for names in self.training_parts())


def _evaluate(call: Call, device: Any, samples: int = FEW, moved: bool = False) -> Evaluated:
    """Call the student's function and describe what it did. Raises StudentRaised.

    With `moved` the model is on the device before.
    """
    numbers, pictures, outputs = _drawn(call.seed)
    outputs = outputs[:samples]
    classes = torch.tensor(classes_of(outputs), dtype=torch.int64)
    log = WatchLog(call)
    # A copy of the sprites: a solution may write into them.
    loader = log.make_loader(pictures[:samples].clone(), classes, BATCH)
    model = log.make_model(layers(numbers))
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
    forwards = call.ledger.forwards()
    after = _state_of(model)
    returned = value if isinstance(value, (tuple, list)) else ()
    return Evaluated(
        kind=type(value).__name__,
        parts=[_describe_part(part) for part in returned],
        is_tuple=isinstance(value, tuple),
        passes=log.forwards,
        graph_line=call.first_line(f for f in forwards if f.builds_graph),
        forward_line=call.first_line(forwards),
        wanted_device=device_name(device),
        changed={
            "weights": _names_of_changed(before.weights, after.weights),
            "gradients": _names_of_changed(before.gradients, after.gradients),
            "statistics": _names_of_changed(before.statistics, after.statistics),
        },
        flags_before=before.flags,
        flags_after=after.flags,
        settings=settings,
        losses=len(log.losses),
        as_they_are=all(loss.got_outputs for loss in log.losses),
        batch_means=_batch_means(outputs),
        sizes=[min(BATCH, samples - start) for start in range(0, samples, BATCH)],
    )


def _prepare_gradients(model: Any) -> None:
    """Freeze one parameter, and give the others gradients but for the last one, which gets none."""
    model.first.bias.requires_grad_(False)
    *others, _ = model.parameters()
    for parameter in others:
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)


def _describe_part(part: Any) -> ReturnedPart:
    number = float(part) if type(part) in (int, float) else None
    return ReturnedPart(type(part).__name__, isinstance(part, float), number)


def _explain_error(error: StudentRaised, call: Call, log: WatchLog) -> StudentRaised:
    """The error with what had been copied.

    A comparison of outputs with targets on different devices is named in its message.
    """
    if not log.latest_batch:
        return error
    lines = log.copied_lines()
    message = error.evidence.message
    source = linecache.getline(str(call.path), error.evidence.line or 0)
    if "found at least two devices" in message and COMPARISON.search(source):
        message = f"{message} {COMPARING}"
        if log.losses and "targets" in lines:
            # The copy was not thrown away: the loss has used it.
            lines["targets of the loss"] = lines.pop("targets")
    return error.with_facts(message=message, copied=lines)


class ModelState(NamedTuple):
    """Copies of a model's tensors by name, on the CPU, and which parameters require gradients."""

    weights: dict[str, Any]
    gradients: dict[str, Any]
    statistics: dict[str, Any]
    flags: dict[str, bool]


def _state_of(model: Any) -> ModelState:
    """Copies of the model's tensors as they are now."""
    parameters = dict(model.named_parameters())
    return ModelState(
        weights={name: _copy_to_cpu(p) for name, p in parameters.items()},
        gradients={name: _copy_to_cpu(p.grad) for name, p in parameters.items()},
        statistics={name: _copy_to_cpu(buffer) for name, buffer in model.named_buffers()},
        flags={name: p.requires_grad for name, p in parameters.items()},
    )


def _copy_to_cpu(tensor: Any) -> Any:
    """A copy of a tensor; None for None."""
    if tensor is None:
        return None
    host = tensor.cpu().detach()
    return host.clone() if tensor.device.type == "cpu" else host


def _names_of_changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, old in before.items() if not _is_same(old, after.get(name))]


def _is_same(old: Any, new: Any) -> bool:
    if old is None or new is None:
        return old is new
    return old.dtype == new.dtype and torch.equal(old, new)


@evaluate.probe
def evaluated(call: Call) -> Cases[Evaluated]:
    """Evaluations of a model on the CPU or on the device, of an empty loader, and on the CPU."""
    device = call.device
    return try_scenarios(
        {
            "model_starts_on_the_cpu": lambda: _evaluate(call, device),
            "already_there": lambda: _evaluate(call, str(device), samples=MOST, moved=True),
            "nothing_to_evaluate": lambda: _evaluate(call, device, samples=0),
            "on_the_cpu": lambda: _evaluate(call, "cpu"),
        }
    )


@evaluate.probe(machine="two gpus")
def evaluated_on_the_second_gpu(call: Call) -> Cases[Evaluated]:
    """An evaluation of a model that is on the second GPU already.

    A batch that goes to "cuda" goes to the first GPU.
    """
    return try_scenarios(
        {"on_the_second_gpu": lambda: _evaluate(call, "cuda:1", samples=2, moved=True)}
    )


# ---- claims ------------------------------------------------------------------------------------

ON_THE_DEVICE = ("model_starts_on_the_cpu", "already_there")
FULL = (*ON_THE_DEVICE, "on_the_cpu", "on_the_second_gpu")
# Where `loss_fn` is not called.
OWN_LOSSES = ("cross_entropy(", "CrossEntropyLoss(", "nll_loss(", "log_softmax(")
HALF: Final = ("torch.float16", "torch.bfloat16")
ROUGH: Final = ("autocast(", "half(")  # where outputs become so
CHANGING_OUTPUTS: Final = ("softmax(", "sigmoid(", *ROUGH)


def _all_cases(seen: Seen) -> Cases[Evaluated]:
    return seen.cases(evaluated, evaluated_on_the_second_gpu)


def _why_it_raised(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error; None if none is known.

    It is found from torch's message and from what had been copied before.
    """
    scenario = raised.scenario
    key = device_mistake(raised)
    if scenario == "on_the_second_gpu" and is_between_gpus(raised.message):
        return "device-index-dropped"
    if key is None and raised.message.endswith(COMPARING):
        copied_targets = {"targets", "targets of the loss"} & raised.copied.keys()
        if COPIED_BACK in raised.copied and copied_targets:
            # Something was copied either way; where the comparison itself copies, it is the
            # outputs.
            return "outputs-on-cpu" if raised.copied[COPIED_BACK] == raised.line else None
        key = "targets-on-cpu"
    if key is None and scenario == "nothing_to_evaluate":
        return "empty-loader-forgotten"  # with sprites it ran, on the same device
    if key is not None and scenario == "on_the_cpu":
        # Nothing can have been forgotten: model and batches were on the CPU already.
        return "hard-coded-cuda"
    return key


runs(evaluate, scenarios=FULL, diagnose=_why_it_raised)


@evaluate.check(points=1)
def calls_the_model(seen: Seen, wanted: Seen) -> None:
    """The model is called with the inputs of the batches."""
    for name in FULL:
        if not _all_cases(seen)[name].passes:
            happened = f"the model was never called (scenario `{name}`)"
            raise Failed(happened, "a forward pass for every batch")


CALLED = ("runs", "calls_the_model")


@evaluate.check(points=1, needs=CALLED)
def runs_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device, even if the model was still on the CPU."""
    for name in ON_THE_DEVICE:
        case = seen[evaluated][name]
        device = case.wanted_device
        elsewhere = [each for each in case.passes if each.devices != [device]]
        if elsewhere:
            where = ", ".join(elsewhere[0].devices)
            happened = f"{len(elsewhere)} of {len(case.passes)} forward passes ran on {where}"
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
        device = case.wanted_device
        used = {each_device for each in case.passes for each_device in each.devices}
        elsewhere = sorted(used - {device})
        if not elsewhere:
            continue
        key = None
        if device == "cpu":
            key = "hard-coded-cuda"
        elif elsewhere == ["cuda:0"]:
            key = "device-index-dropped"
        happened = f'with device="{device}" the forward passes ran on {", ".join(elsewhere)}'
        raise Failed(happened, f"{device}, as asked", case.forward_line, key)


@evaluate.check(points=2, needs=CALLED)
def evaluates_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode, including dropout and batch norm."""
    for name in FULL:
        case = _all_cases(seen)[name]
        training = case.training_parts()
        if not training:
            continue
        parts = " and ".join(training[0])
        if len(training[0]) == len(PARTS):
            parts = "the whole model"
        count = f"{len(training)} of {len(case.passes)} forward passes"
        happened = f"{count} ran with {parts} in training mode"
        expected = "evaluation mode in every pass, with model.eval() before the first"
        raise _failure_in_training_mode(case, happened, expected)


def _failure_in_training_mode(case: Evaluated, happened: str, expected: str) -> Failed:
    """The failure of forward passes in training mode.

    It names the mistake, where that can be told, and where to look for the line.
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
    for name in FULL:
        case = _all_cases(seen)[name]
        building = [each for each in case.passes if each.graph]
        if building:
            raise Failed(
                f"{len(building)} of {len(case.passes)} forward passes built an autograd graph",
                "forward passes under torch.no_grad() or torch.inference_mode()",
                case.graph_line,
                None if case.training_parts() else "eval-without-no-grad",
            )


@evaluate.check(points=1, needs=CALLED)
def leaves_weights_and_gradients_as_they_were(seen: Seen, wanted: Seen) -> None:
    """Weights and gradients are the same afterwards."""
    _expect_unchanged(seen, "weights")
    _expect_unchanged(seen, "gradients")


@evaluate.check(points=1, needs=CALLED)
def leaves_batch_norm_as_it_was(seen: Seen, wanted: Seen) -> None:
    """The running statistics of batch norm are the same afterwards."""
    _expect_unchanged(seen, "statistics")


def _expect_unchanged(seen: Seen, kind: str) -> None:
    """Raises Failed if tensors of this kind were changed: weights, gradients or statistics."""
    for name in FULL:
        case = _all_cases(seen)[name]
        changed = case.changed[kind]
        if changed:
            happened = f"scenario `{name}` changed the {kind} of {', '.join(changed[:3])}"
            expected = f"the {kind} from before the call"
            if kind == "statistics" and case.is_training("batch norm"):
                raise _failure_in_training_mode(case, happened, expected)
            raise Failed(happened, expected)


@evaluate.check(points=1, needs=CALLED)
def leaves_training_possible(seen: Seen, wanted: Seen) -> None:
    """Training can continue: requires_grad of every parameter, grad mode and torch's settings are unchanged."""
    for name, case, right in scenario_pairs(_all_cases(seen), _all_cases(wanted), *FULL):
        trainable = [parameter for parameter, flag in right.flags_before.items() if flag]
        frozen = [parameter for parameter, flag in right.flags_before.items() if not flag]
        switched_off = [parameter for parameter in trainable if not case.flags_after.get(parameter)]
        switched_on = [parameter for parameter in frozen if case.flags_after.get(parameter)]
        if switched_off:
            count = f"{len(switched_off)} of {len(trainable)} trainable parameters"
            happened = f"afterwards {count} no longer require gradients"
            expected = "requires_grad as before; torch.no_grad() does not need it changed"
            raise Failed(happened, expected, misconception="requires-grad-left-off")
        if switched_on:
            happened = f"{', '.join(switched_on)} was frozen, and requires gradients afterwards"
            raise Failed(happened, "requires_grad as before")
        if "the gradient mode" in case.settings:
            happened = "gradients are switched off for the whole program afterwards"
            raise Failed(happened, "torch.no_grad() in a `with`")
        expect_settings_kept(case.settings, name)


@evaluate.check(points=1, needs=CALLED)
def returns_two_floats(seen: Seen, wanted: Seen) -> None:
    """It returns a tuple of two Python floats: loss and accuracy."""
    for name in FULL:
        case = _all_cases(seen)[name]
        if not case.is_tuple or len(case.parts) != 2:
            count = f" of {len(case.parts)}" if case.parts else ""
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
    """Raises Failed where loss or accuracy is wrong, or right by chance."""
    cases = list(scenario_pairs(_all_cases(seen), _all_cases(wanted), *FULL))
    # In every scenario: with a few samples, two numbers may be equal by chance.
    is_mean_of_means = all(
        _is_close(case.parts[which].value, right.batch_means[which]) for _, case, right in cases
    )
    for name, case, right in cases:
        changed = [*case.changed["weights"], *case.changed["statistics"]]
        if changed:
            what = NUMBERS[which]
            happened = f"scenario `{name}`: {changed[0]} was changed, so that {what} may be another"
            raise Failed(happened, f"the {what} of the model as it was passed in")
        if _is_close(case.parts[which].value, _number(right, which)):
            if which == LOSS:
                _expect_full_precision(name, case, seen)
            continue
        seen.about(None, name)
        raise _wrong_number(which, name, case, right, is_mean_of_means)


def _number(case: Evaluated, which: int) -> float:
    """The loss or the accuracy that was returned, which is known to be a number."""
    value = case.parts[which].value
    assert value is not None
    return value


def _expect_full_precision(name: str, case: Evaluated, seen: Seen) -> None:
    """Raises Failed for a loss of outputs in half precision, which is right by chance."""
    rough = [each.dtype for each in case.passes if each.dtype in HALF]
    if rough:
        seen.about(None, name)
        outputs = f"the model's outputs are {rough[0]}, which keeps three digits at most"
        expected = "outputs in float32, as the model's parameters"
        raise Failed(f"scenario `{name}`: {outputs}", expected, at=ROUGH)


def _wrong_number(
    which: int, name: str, case: Evaluated, reference: Evaluated, is_mean_of_means: bool
) -> Failed:
    """The failure of a wrong loss or accuracy.

    It says what number it is, where that can be told.
    """
    structural = _missing_or_swapped(which, name, case, reference)
    if structural is not None:
        return structural
    what = NUMBERS[which]
    found = _number(case, which)
    right = _number(reference, which)
    batches = len(reference.sizes)
    samples = sum(reference.sizes)
    happened = f"scenario `{name}`: {what} {found:.4f}"
    if _is_close(found * batches, right * samples):
        happened = f"{happened}, the sum over {samples} samples divided by {batches}"
        return Failed(happened, f"{right:.4f}, divided by the number of samples")
    # A note means: the right samples, and another kind of number. `returns_two_floats` has its
    # hints.
    about = "returns_two_floats"
    if which == ACCURACY and _is_close(found, 100 * right):
        expected = f"{right:.4f} (in [0, 1], not in percent)"
        return _failure_of_number(happened, expected, is_mean_of_means, which, (), about)
    if any(found == round(right, digits) for digits in (1, 2, 3)):
        expected = f"{right:.4f} (not rounded)"
        return _failure_of_number(happened, expected, is_mean_of_means, which, (), about)
    at: tuple[str, ...] = (*CHANGING_OUTPUTS, "+= loss_fn(")
    if which == ACCURACY:
        # A number of hits over another than that of the samples is divided wrongly.
        hits = found * samples
        at = ("==", "eq(") if _is_close(round(hits), hits) else ("mean(",)
    if _is_close(found, reference.batch_means[which] * batches / samples):
        expected = f"{right:.4f} (weight each batch by its number of samples)"
        return _failure_of_number(happened, expected, is_mean_of_means, which, at, about)
    if which == LOSS and not is_mean_of_means and not case.as_they_are:
        happened = "`loss_fn` got something other than the model's outputs"
        expected = "`loss_fn(outputs, targets)`, with the outputs as they are"
        return Failed(happened, expected, at=(*CHANGING_OUTPUTS, "loss_fn("))
    return _failure_of_number(happened, f"{right:.4f}", is_mean_of_means, which, at)


def _missing_or_swapped(
    which: int, name: str, case: Evaluated, reference: Evaluated
) -> Failed | None:
    """The failure of a loss that was not computed, of batches left out, and of swapped numbers."""
    if which == LOSS and not case.losses:
        expected = "`loss_fn(outputs, targets)` for every batch"
        return Failed("`loss_fn` was never called", expected, at=OWN_LOSSES)
    batches = len(case.sizes)
    if len(case.passes) < batches:
        happened = f"only {len(case.passes)} of {batches} batches were used (scenario `{name}`)"
        expected = "all of them, also a smaller one"
        return Failed(happened, expected, None, "loop-left-early", ("continue", "for"))
    other = 1 - which
    is_other = _is_close(_number(case, which), _number(reference, other))
    if is_other and _is_close(case.parts[other].value, _number(reference, which)):
        happened = f"scenario `{name}`: loss and accuracy are swapped"
        return Failed(happened, "loss first, then accuracy")
    return None


def _failure_of_number(
    happened: str,
    expected: str,
    is_mean_of_means: bool,
    which: int,
    at: tuple[str, ...],
    about: str = "",
) -> Failed:
    """The failure of a wrong number.

    `at` are patterns for the line to show; for a mean of means that is the accuracy, they are
    replaced.
    """
    key = "mean-of-batch-means" if is_mean_of_means else None
    if is_mean_of_means and which == ACCURACY:
        at = ("mean(",)
    at = at or ("return",)
    return Failed(happened, expected, misconception=key, at=at, about=about)


def _is_close(found: float | None, right: float) -> bool:
    return found is not None and math.isclose(found, right, rel_tol=CLOSE, abs_tol=CLOSE)


@evaluate.check(points=1, needs=CALLED)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives (0.0, 0.0)."""
    name = "nothing_to_evaluate"
    case = seen[evaluated][name]
    if not case.is_tuple or [part.value for part in case.parts] != [0.0, 0.0]:
        raise Failed(f"an empty loader gave {_shown_result(case)}", "(0.0, 0.0)")
    changed = any(case.changed.values())
    if changed or case.flags_after != wanted[evaluated][name].flags_after:
        raise Failed("with an empty loader the model was changed", "the model as it was")


def _shown_result(case: Evaluated) -> str:
    """What was returned, for people: "(0.0, Tensor)", "a list of nan, 0.0", "None"."""
    if not case.parts:
        return with_article(case.kind)
    shown = [part.kind if part.value is None else str(part.value) for part in case.parts]
    parts = ", ".join(shown)
    return f"({parts})" if case.is_tuple else f"{with_article(case.kind)} of {parts}"
