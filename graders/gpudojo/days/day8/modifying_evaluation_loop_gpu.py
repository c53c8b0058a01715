"""05: evaluation on the device."""

from __future__ import annotations

import linecache
import math
import re
import weakref
from functools import lru_cache
from itertools import permutations
from operator import eq
from typing import Any, Final

from gpudojo.days.day8.sprites import CLASSES, SIZE, linear_layer, make_sprites
from gpudojo.grading.call import (
    COPIED_BACK,
    Call,
    StudentRaised,
    call_and_restore_settings,
    device_name,
    lines_of_copies,
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
from gpudojo.grading.watching import find_classes, keep_state, make_picklable, state_of
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, with_article

exercise = Exercise(
    "05_modifying_evaluation_loop_gpu",
    "An evaluation loop that runs on the GPU",
    points=14,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "generated/torch.nn.Module.html"),
)
evaluate = exercise.function("evaluate")
CHANGING = (
    "backward(",
    "zero_grad(",
    "step(",
    "set_grad_enabled(",
    "requires_grad_(",
    ".requires_grad",
    "copy_(",
)


BATCH: Final = 3
FEW: Final = 4  # sprites, so that the last batch has one
MOST: Final = 5
CLOSE: Final = 5e-5  # how far a number may be from the right one
HIDDEN: Final = 12
SMOOTHING: Final = 0.1
DRAWS: Final = 32  # at a time
HALF: Final = ("torch.float16", "torch.bfloat16")
ROUGH: Final = ("autocast(", "half(")  # where outputs become so


class Pass(Case, frozen=True):
    """One forward pass."""

    training: list[str]  # which parts were in training mode
    graph: bool
    devices: list[str]  # of inputs and parameters
    dtype: str  # of the outputs


class EvaluationLog:
    """What model and loss record."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self.output: Any = None  # a weak reference to the latest
        self.as_they_are = True  # whether every loss got the latest outputs themselves


def watched(values: tuple[Any, ...], log: EvaluationLog) -> Any:
    """A classifier with batch norm and dropout that records how it is run, also through `model.forward`."""
    first, first_bias, last, last_bias, mean, variance = (each.clone() for each in values)
    model = _classes()[0](
        linear_layer(first, first_bias), linear_layer(last, last_bias), keep_state(log)
    )
    model.norm.running_mean = mean
    model.norm.running_var = variance
    return model


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, ...]:
    """Classes made once, and only where torch is needed."""

    class WatchedClassifier(nn.Module):
        def __init__(self, first: Any, last: Any, key: int) -> None:
            super().__init__()
            # Batch norm over four values per channel: in training mode a batch of one changes it, but does not raise.
            self.first, self.norm, self.dropout, self.last = (
                first,
                nn.BatchNorm1d(3),
                nn.Dropout(0.5),
                last,
            )
            self.key = key

        def forward(self, pictures: Any) -> Any:
            hidden = self.norm(self.first(pictures.flatten(1)).unflatten(1, (3, -1)))
            outputs = self.last(self.dropout(hidden).relu().flatten(1))
            parts = (("model", self), ("batch norm", self.norm), ("dropout", self.dropout))
            training = sorted(name for name, part in parts if part.training)
            devices = sorted({str(pictures.device), *(str(p.device) for p in self.parameters())})
            # A hook that detaches the outputs has built a graph all the same.
            graph = outputs.requires_grad or (
                torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
            )
            log = state_of(self.key)
            log.passes.append(Pass(training, graph, devices, str(outputs.dtype)))
            log.output = weakref.ref(outputs)
            return outputs

    class WatchedCrossEntropy(nn.CrossEntropyLoss):
        key: int

        def forward(self, input: Any, target: Any) -> Any:
            log = state_of(self.key)
            log.as_they_are &= log.output is not None and log.output() is input
            return super().forward(input, target)

    WatchedCrossEntropy.__name__ = nn.CrossEntropyLoss.__name__  # by which the ledger is asked
    return make_picklable(WatchedClassifier, WatchedCrossEntropy)


__getattr__ = find_classes(_classes)


@lru_cache(maxsize=1)
def _ranges() -> tuple[list[int], Any, Any]:
    """Of the weights, biases and statistics, one after another: how many there are, how wide each range is, its low."""
    first, last = (
        ((-0.15, 0.15, HIDDEN * 3 * SIZE * SIZE), (-0.15, 0.15, HIDDEN)),
        ((-2.4, 2.4, CLASSES * HIDDEN),),
    )
    every = (*first, *last, (-0.3, 0.3, CLASSES), (-0.5, 0.5, 3), (0.1, 0.3, 3))
    sizes = [size for _, _, size in every]
    width = torch.cat([torch.full((size,), high - low) for low, high, size in every])
    return sizes, width, torch.cat([torch.full((size,), low) for low, _, size in every])


@evaluate.draws
def _drawn(seed: int) -> tuple[tuple[Any, ...], Any, list[list[float]]]:
    """The numbers of the model, sprites, and the model's outputs for them: the first with which wrong formulas show.

    The numbers are large enough that wrong answers cost visibly more than right ones. One draw in forty will do: their
    outputs are computed many at a time, from the numbers alone, and judged as Python's numbers.
    """
    sizes, width, low = _ranges()
    while True:
        generator = torch.Generator().manual_seed(seed)
        numbers = (
            torch.rand(DRAWS, sum(sizes), generator=generator)
            .mul_(width)
            .add_(low)
            .split(sizes, dim=1)
        )
        pictures = make_sprites(DRAWS * MOST, seed + 1)[0].unflatten(0, (DRAWS, MOST))
        first, first_bias, last, last_bias, mean, variance = numbers
        first = first.unflatten(1, (HIDDEN, -1))
        last = last.unflatten(1, (CLASSES, -1))
        # As in evaluation mode.
        hidden = torch.baddbmm(first_bias[:, None], pictures.flatten(2), first.mT).unflatten(
            2, (3, -1)
        )
        hidden = (hidden - mean[:, None, :, None]) / (variance[:, None, :, None] + 1e-5).sqrt()
        outputs = torch.baddbmm(last_bias[:, None], hidden.relu().flatten(2), last.mT).tolist()
        for draw, found in enumerate(outputs):
            if not all(_telling(found[:samples]) for samples in (FEW, MOST)):
                continue
            for order in map(
                list, permutations(range(CLASSES))
            ):  # in another order, two classes may show as one
                mixed = [[row[place] for place in order] for row in found]
                if all(
                    not _one_output_is_enough(mixed[:n]) and _telling(mixed[:n])
                    for n in (FEW, MOST)
                ):
                    every = (
                        first[draw],
                        first_bias[draw],
                        last[draw][order],
                        last_bias[draw][order],
                    )
                    return (*every, mean[draw], variance[draw]), pictures[draw], mixed
        seed += 100_003


def _telling(outputs: list[list[float]]) -> bool:
    """Whether averaging the means of batches, rounding, comparing each with each, or the largest output of a whole
    batch or of a class gives other numbers.

    The largest output is the largest by so much that half precision does not change which one it is.
    """
    classes = _wanted(outputs)
    largest = [row.index(max(row)) for row in outputs[:BATCH]]
    if sum(map(largest.count, classes[:BATCH])) == BATCH * sum(map(eq, largest, classes)):
        return False
    size = max(abs(value) for row in outputs for value in row)
    if min(max(row) - sorted(row)[-2] for row in outputs) < 0.03 * size + 0.02:
        return False
    loss, accuracy = _means(outputs, classes)
    if abs(loss - _batch_means(outputs)[0]) <= 0.01 or abs(loss - round(loss, 3)) <= 2 * CLOSE * (
        1 + loss
    ):
        return False
    return round(accuracy * len(outputs)) not in _hits_elsewhere(outputs, classes)


def _one_output_is_enough(outputs: list[list[float]]) -> bool:
    """Whether one output beside a threshold, as for two classes, is right as often as the largest one."""
    classes = _wanted(outputs)
    hits = sum(row.index(max(row)) == wanted for row, wanted in zip(outputs, classes, strict=True))
    return any(
        hits
        == sum((row[1] > least) == wanted for row, wanted in zip(outputs, classes, strict=True))
        for least in (0.0, 0.5)
    )


def _hits_elsewhere(outputs: list[list[float]], classes: list[int]) -> tuple[int, int]:
    """How many classes are the place of the largest output in their batch, or in their column of it."""
    whole = columns = 0
    for start in range(0, len(outputs), BATCH):
        rows = outputs[start : start + BATCH]
        wanted = classes[start : start + BATCH]
        flat = [value for row in rows for value in row]
        whole += wanted.count(flat.index(max(flat)))
        places = [column.index(max(column)) for column in zip(*rows, strict=True)]
        columns += sum(map(eq, places, wanted))
    return whole, columns


def _wanted(outputs: list[list[float]]) -> list[int]:
    """Classes that make the second sprite wrong, whose class has the second largest output, and the last batch."""
    last = (len(outputs) - 1) // BATCH * BATCH
    ranks = [0 if place >= last else -2 if place == 1 else -1 for place in range(len(outputs))]
    return [row.index(sorted(row)[rank]) for row, rank in zip(outputs, ranks, strict=True)]


def _batch_means(outputs: list[list[float]]) -> list[float]:
    """The means over the batches."""
    classes = _wanted(outputs)
    starts = range(0, len(outputs), BATCH)
    each = [
        _means(outputs[start : start + BATCH], classes[start : start + BATCH]) for start in starts
    ]
    return [sum(column) / len(each) for column in zip(*each, strict=True)] or [0.0, 0.0]


def _means(outputs: list[list[float]], classes: list[int]) -> tuple[float, float]:
    """The mean loss, as `loss_fn` computes it, and the accuracy."""
    loss = hits = 0.0
    for row, wanted in zip(outputs, classes, strict=True):
        logarithm = math.log(sum(map(math.exp, row)))
        loss += logarithm - (1 - SMOOTHING) * row[wanted] - SMOOTHING * sum(row) / CLASSES
        hits += row.index(max(row)) == wanted
    return loss / len(classes), hits / len(classes)


def batches(seed: int, samples: int) -> tuple[Any, list[float]]:
    """A loader, and the means over its batches of loss and accuracy."""
    _, pictures, outputs = _drawn(seed)
    classes = torch.tensor(_wanted(outputs[:samples]), dtype=torch.int64)
    dataset = torch.utils.data.TensorDataset(
        pictures[:samples].clone(), classes
    )  # a solution may write into them
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH), _batch_means(outputs[:samples])


def loss_fn(log: EvaluationLog) -> Any:
    loss = _classes()[1](
        label_smoothing=SMOOTHING
    )  # not the default: the given loss has to be used
    loss.key = keep_state(log)
    return loss


_COMPARISON: Final = re.compile(r"[!=]=|\b(eq|ne|equal)\(")


class ModelPart(Case, frozen=True):
    """One part of the returned tuple."""

    kind: str
    is_float: bool
    value: float | None


class Evaluated(Case, frozen=True):
    """One call, with what it returned, how the model was run, and what it changed."""

    kind: str
    parts: list[ModelPart]
    is_tuple: bool
    passes: list[Pass]
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


@evaluate.probe
def evaluated(call: Call) -> Cases[Evaluated]:
    return try_scenarios(
        {
            "model_starts_on_the_cpu": lambda: _evaluated(call, call.device),
            "already_there": lambda: _evaluated(call, str(call.device), samples=MOST, moved=True),
            "nothing_to_evaluate": lambda: _evaluated(call, call.device, samples=0),
            "on_the_cpu": lambda: _evaluated(call, "cpu"),
        }
    )


@evaluate.probe(machine="two gpus")
def evaluated_on_the_second_gpu(call: Call) -> Cases[Evaluated]:
    """The model is there already; a batch that goes to "cuda" goes to the first GPU."""
    return try_scenarios(
        {"on_the_second_gpu": lambda: _evaluated(call, "cuda:1", samples=2, moved=True)}
    )


def _evaluated(call: Call, device: Any, samples: int = FEW, moved: bool = False) -> Evaluated:
    loader, means = batches(call.seed, samples)
    log = EvaluationLog()
    model = watched(_drawn(call.seed)[0], log)
    model.first.bias.requires_grad_(False)  # frozen before, so frozen afterwards
    for parameter in list(model.parameters())[
        :-1
    ]:  # the last one has no gradient yet, and gets none
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)
    before = _state(model)
    if moved:
        model.to(device)
    with torch.enable_grad():  # whatever mode the student's function leaves on ends here
        try:
            value, settings = call_and_restore_settings(call, model, loader, loss_fn(log), device)
        except StudentRaised as error:
            raise _with_copies(error, call, loader) from None
    forwards = call.ledger.forwards()
    after = _state(model)
    return Evaluated(
        kind=type(value).__name__,
        parts=[
            ModelPart(
                type(part).__name__,
                isinstance(part, float),
                float(part) if type(part) in (int, float) else None,
            )
            for part in (value if isinstance(value, (tuple, list)) else ())
        ],
        is_tuple=isinstance(value, tuple),
        passes=log.passes,
        graph_line=call.first_line(f for f in forwards if f.builds_graph),
        forward_line=call.first_line(forwards),
        wanted_device=device_name(device),
        changed={
            kind: _changed(before[kind], after[kind])
            for kind in ("weights", "gradients", "statistics")
        },
        flags_before=before["flags"],
        flags_after=after["flags"],
        settings=settings,
        losses=len(call.ledger.forwards("CrossEntropyLoss")),
        as_they_are=log.as_they_are,
        batch_means=means,
        sizes=[min(BATCH, samples - start) for start in range(0, samples, BATCH)],
    )


def _with_copies(error: StudentRaised, call: Call, loader: Any) -> StudentRaised:
    """The error with what had been copied of the first batch; a comparison of outputs with targets is named."""
    if not len(loader):
        return error
    inputs, targets = next(iter(loader))
    lines = lines_of_copies(call, inputs=inputs, targets=targets)
    message = error.evidence.message
    source = linecache.getline(str(call.path), error.evidence.line or 0)
    if "found at least two devices" in message and _COMPARISON.search(source):
        message = f"{message} (comparing outputs with targets)"
        if call.ledger.forwards("CrossEntropyLoss"):
            # The copy was not thrown away: the loss has used it.
            lines |= {"targets of the loss": lines.pop("targets")} if "targets" in lines else {}
    return error.with_facts(message=message, copied=lines)


def _state(model: Any) -> dict[str, dict[str, Any]]:
    parameters = dict(model.named_parameters())
    return {
        "weights": {name: _kept(p) for name, p in parameters.items()},
        "gradients": {
            name: None if p.grad is None else _kept(p.grad) for name, p in parameters.items()
        },
        "statistics": {name: _kept(b) for name, b in model.named_buffers()},
        "flags": {name: p.requires_grad for name, p in parameters.items()},
    }


def _kept(tensor: Any) -> Any:
    host = tensor.cpu().detach()
    return host.clone() if tensor.device.type == "cpu" else host


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    def same(old: Any, new: Any) -> bool:
        return (
            old is new
            if old is None or new is None
            else old.dtype == new.dtype and torch.equal(old, new)
        )

    return [name for name, old in before.items() if not same(old, after.get(name))]


OWN_LOSSES = (
    "cross_entropy(",
    "CrossEntropyLoss(",
    "nll_loss(",
    "log_softmax(",
)  # where `loss_fn` is not called
ON_THE_DEVICE = ("model_starts_on_the_cpu", "already_there")
FULL = (*ON_THE_DEVICE, "on_the_cpu", "on_the_second_gpu")


def _all(seen: Seen) -> Cases[Evaluated]:
    return seen.cases(evaluated, evaluated_on_the_second_gpu)


def _diagnose(raised: Raised, seen: Seen) -> str | None:
    scenario = raised.scenario
    message = raised.message
    found = device_mistake(raised)
    if scenario == "on_the_second_gpu" and is_between_gpus(message):
        return "device-index-dropped"
    if found is None and message.endswith("(comparing outputs with targets)"):
        found = "targets-on-cpu"
        if (
            COPIED_BACK in raised.copied
            and {"targets", "targets of the loss"} & raised.copied.keys()
        ):
            # Something was copied either way; where the comparison itself copies, it is the outputs.
            return "outputs-on-cpu" if raised.copied[COPIED_BACK] == raised.line else None
    if (
        found is None and scenario == "nothing_to_evaluate"
    ):  # with sprites it ran, on the same device
        return "empty-loader-forgotten"
    # With device="cpu" nothing can have been forgotten: model and batches were on the CPU already.
    return "hard-coded-cuda" if found is not None and scenario == "on_the_cpu" else found


runs(evaluate, scenarios=FULL, diagnose=_diagnose)


@evaluate.check(points=1)
def calls_the_model(seen: Seen, wanted: Seen) -> None:
    """The model is called with the inputs of the batches."""
    for name in FULL:
        if not _all(seen)[name].passes:
            raise Failed(
                f"the model was never called (scenario `{name}`)", "a forward pass for every batch"
            )


CALLED = ("runs", "calls_the_model")


@evaluate.check(points=1, needs=CALLED)
def runs_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device, even if the model was still on the CPU."""
    for name in ON_THE_DEVICE:
        case = seen[evaluated][name]
        if elsewhere := [p for p in case.passes if p.devices != [case.wanted_device]]:
            where = ", ".join(elsewhere[0].devices)
            happened = f"{len(elsewhere)} of {len(case.passes)} forward passes ran on {where}"
            key = "model-not-moved" if where == "cpu" else None
            at = ("device =",) if key else ()
            raise Failed(
                happened, f"all of them on {case.wanted_device}", case.forward_line, key, at
            )


@evaluate.check(points=1, needs=CALLED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Evaluation happens on the device passed in, whatever this machine has."""
    for name, device, key in (
        ("on_the_cpu", "cpu", "hard-coded-cuda"),
        ("on_the_second_gpu", "cuda:1", "device-index-dropped"),
    ):
        case = _all(seen)[name]
        elsewhere = sorted({used for p in case.passes for used in p.devices} - {device})
        if elsewhere:
            happened = f'with device="{device}" the forward passes ran on {", ".join(elsewhere)}'
            other = device != "cpu" and elsewhere != ["cuda:0"]
            raise Failed(happened, f"{device}, as asked", case.forward_line, None if other else key)


@evaluate.check(points=2, needs=CALLED)
def evaluates_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode, including dropout and batch norm."""
    for name in FULL:
        case = _all(seen)[name]
        training = [p.training for p in case.passes if p.training]
        if not training:
            continue
        parts = (
            "the whole model"
            if "model" in training[0] and len(training[0]) == 3
            else " and ".join(training[0])
        )
        happened = f"{len(training)} of {len(case.passes)} forward passes ran with {parts} in training mode"
        expected = "evaluation mode in every pass, with model.eval() before the first"
        raise Failed(happened, expected, case.forward_line, *_mode_mistake(case))


def _mode_mistake(case: Evaluated) -> tuple[str | None, tuple[str, ...]]:
    """The mistake of forward passes in training mode, and patterns of its line."""
    training = [p.training for p in case.passes if p.training]
    misconception = None
    if len(training) == len(case.passes) and all("model" in parts for parts in training):
        # Without `no_grad` too, the mistake is not that one was taken for the other.
        changed = "batch-norm-changed" if case.changed["statistics"] else None
        misconception = changed if any(p.graph for p in case.passes) else "no-grad-without-eval"
    elif any("batch norm" in parts for parts in training):
        misconception = "batch-norm-changed"
    if not any("model" in parts for parts in training):  # parts of a model in evaluation mode
        return misconception, ("train(", ".training")
    return misconception, ("eval not called", "train(", ".training", "eval(") if len(
        training
    ) == len(case.passes) else ()


@evaluate.check(points=2, needs=CALLED)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph."""
    for name in FULL:
        case = _all(seen)[name]
        building = [p for p in case.passes if p.graph]
        if building:
            in_evaluation = not any(p.training for p in case.passes)
            raise Failed(
                f"{len(building)} of {len(case.passes)} forward passes built an autograd graph",
                "forward passes under torch.no_grad() or torch.inference_mode()",
                case.graph_line,
                "eval-without-no-grad" if in_evaluation else None,
            )


@evaluate.check(points=1, needs=CALLED)
def leaves_weights_and_gradients_as_they_were(seen: Seen, wanted: Seen) -> None:
    """Weights and gradients are the same afterwards."""
    _unchanged(seen, "weights")
    _unchanged(seen, "gradients")


@evaluate.check(points=1, needs=CALLED)
def leaves_batch_norm_as_it_was(seen: Seen, wanted: Seen) -> None:
    """The running statistics of batch norm are the same afterwards."""
    _unchanged(seen, "statistics")


def _unchanged(seen: Seen, kind: str) -> None:
    for name in FULL:
        case = _all(seen)[name]
        if changed := case.changed[kind]:
            happened = f"scenario `{name}` changed the {kind} of {', '.join(changed[:3])}"
            expected = f"the {kind} from before the call"
            training = any("batch norm" in p.training for p in case.passes)
            if kind == "statistics" and training:
                raise Failed(happened, expected, case.forward_line, *_mode_mistake(case))
            raise Failed(happened, expected)


@evaluate.check(points=1, needs=CALLED)
def leaves_training_possible(seen: Seen, wanted: Seen) -> None:
    """Training can continue: requires_grad of every parameter, grad mode and torch's settings are unchanged."""
    for name, case, right in scenario_pairs(_all(seen), _all(wanted), *FULL):
        before = right.flags_before
        after = case.flags_after
        off = [parameter for parameter, flag in before.items() if flag and not after.get(parameter)]
        on = [parameter for parameter, flag in before.items() if not flag and after.get(parameter)]
        if off:
            raise Failed(
                f"afterwards {len(off)} of {sum(before.values())} trainable parameters no longer require gradients",
                "requires_grad as before; torch.no_grad() does not need it changed",
                misconception="requires-grad-left-off",
            )
        if on:
            raise Failed(
                f"{', '.join(on)} was frozen, and requires gradients afterwards",
                "requires_grad as before",
            )
        if "the gradient mode" in case.settings:
            raise Failed(
                "gradients are switched off for the whole program afterwards",
                "torch.no_grad() in a `with`",
            )
        expect_settings_kept(case.settings, name)


@evaluate.check(points=1, needs=CALLED)
def returns_two_floats(seen: Seen, wanted: Seen) -> None:
    """It returns a tuple of two Python floats: loss and accuracy."""
    for name in FULL:
        case = _all(seen)[name]
        if not case.is_tuple or len(case.parts) != 2:
            shown = with_article(case.kind) + (f" of {len(case.parts)}" if case.parts else "")
            raise Failed(f"it returned {shown}", "a tuple of two floats")
        for what, part in zip(("loss", "accuracy"), case.parts, strict=True):
            expect_float(part.kind, part.is_float, f"the {what} is ")


NUMBERS = (*CALLED, "evaluates_in_evaluation_mode", "returns_two_floats")


@evaluate.check(points=1, needs=NUMBERS)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """The first number is the mean of `loss_fn` over all samples; the last batch may be smaller."""
    _number(0, seen, wanted)


@evaluate.check(points=1, needs=NUMBERS)
def returns_the_accuracy(seen: Seen, wanted: Seen) -> None:
    """The second number is the share of all samples that are classified correctly, in [0, 1]."""
    _number(1, seen, wanted)


def _number(place: int, seen: Seen, wanted: Seen) -> None:
    what = ("loss", "accuracy")[place]
    every = list(scenario_pairs(_all(seen), _all(wanted), *FULL))
    # In every scenario: with a few samples, two numbers may be equal by chance.
    of_means = all(
        _close(case.parts[place].value, right.batch_means[place]) for _, case, right in every
    )
    for name, case, reference in every:
        if changed := [*case.changed["weights"], *case.changed["statistics"]]:
            happened = f"scenario `{name}`: {changed[0]} was changed, so that {what} may be another"
            raise Failed(happened, f"the {what} of the model as it was passed in")
        found = case.parts[place].value
        right = reference.parts[place].value
        assert found is not None
        assert right is not None
        rough = next((each.dtype for each in case.passes if each.dtype in HALF), None)
        if _close(found, right):
            if rough and not place:  # it is right by chance
                seen.about(None, name)
                happened = f"scenario `{name}`: the model's outputs are {rough}, which keeps three digits at most"
                raise Failed(happened, "outputs in float32, as the model's parameters", at=ROUGH)
            continue
        seen.about(None, name)
        note = ""
        # A number of hits over another than that of the samples is divided wrongly.
        counted = _close(round(found * sum(reference.sizes)), found * sum(reference.sizes))
        at: tuple[str, ...] = (
            (("==", "eq(") if counted else ("mean(",))
            if place
            else ("softmax(", "sigmoid(", *ROUGH, "+= loss_fn(")
        )
        if not place and not case.losses:
            raise Failed(
                "`loss_fn` was never called",
                "`loss_fn(outputs, targets)` for every batch",
                at=OWN_LOSSES,
            )
        if len(case.passes) < len(case.sizes):
            happened = f"only {len(case.passes)} of {len(case.sizes)} batches were used (scenario `{name}`)"
            at = ("continue", "for")
            raise Failed(happened, "all of them, also a smaller one", None, "loop-left-early", at)
        other = case.parts[1 - place].value
        sizes = reference.sizes
        if _close(found, reference.parts[1 - place].value or 0.0) and _close(other, right):
            raise Failed(
                f"scenario `{name}`: loss and accuracy are swapped", "loss first, then accuracy"
            )
        if _close(found * len(sizes), right * sum(sizes)):
            happened = f"scenario `{name}`: {what} {found:.4f}, the sum over {sum(sizes)} samples divided by {len(sizes)}"
            raise Failed(happened, f"{right:.4f}, divided by the number of samples")
        if place and _close(found, 100 * right):
            note, at = " (in [0, 1], not in percent)", ()
        elif any(found == round(right, digits) for digits in (1, 2, 3)):
            note, at = " (not rounded)", ()
        elif _close(
            found, reference.batch_means[place] * len(reference.sizes) / sum(reference.sizes)
        ):
            note = " (weight each batch by its number of samples)"
        elif not (place or of_means or case.as_they_are):
            expected = "`loss_fn(outputs, targets)`, with the outputs as they are"
            at = ("softmax(", "sigmoid(", *ROUGH, "loss_fn(")
            raise Failed("`loss_fn` got something else than the model's outputs", expected, at=at)
        misconception = "mean-of-batch-means" if of_means else None
        at = ("mean(",) if of_means and place else at or ("return",)
        happened = f"scenario `{name}`: {what} {found:.4f}"
        about = (
            "returns_two_floats" if note else ""
        )  # the right samples, and another kind of number
        raise Failed(
            happened, f"{right:.4f}{note}", misconception=misconception, at=at, about=about
        )


def _close(found: float | None, right: float) -> bool:
    return found is not None and math.isclose(found, right, rel_tol=CLOSE, abs_tol=CLOSE)


@evaluate.check(points=1, needs=CALLED)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives (0.0, 0.0)."""
    case = seen[evaluated]["nothing_to_evaluate"]
    if not case.is_tuple or [part.value for part in case.parts] != [0.0, 0.0]:
        shown = [part.kind if part.value is None else str(part.value) for part in case.parts]
        shape = "({})" if case.is_tuple else f"{with_article(case.kind)} of {{}}"
        given = shape.format(", ".join(shown)) if shown else with_article(case.kind)
        raise Failed(f"an empty loader gave {given}", "(0.0, 0.0)")
    if (
        any(case.changed.values())
        or case.flags_after != wanted[evaluated]["nothing_to_evaluate"].flags_after
    ):
        raise Failed("with an empty loader the model was changed", "the model as it was")
