"""05: evaluation on the device."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from gpudojo.days.day8.sprites import CLASSES, SIZE, sprites
from gpudojo.grading.call import Call, StudentRaised, copied, nn, settled, torch
from gpudojo.grading.judge import between_gpus, diagnosis, runs
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "05_modifying_evaluation_loop_gpu",
    "An evaluation loop that runs on the GPU",
    points=14,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "generated/torch.nn.Module.html"),
)
evaluate = exercise.function(
    "evaluate",
    "Two switches, and you need both: `model.eval()` for the layers, `torch.no_grad()` for autograd.",
    "Before the loop: the model to the device and into evaluation mode. In the loop: inputs and targets to the device.",
    "`loss_fn` gives the mean over its batch: multiply by the batch's size, add up, divide by all samples at the end.",
    "`outputs.argmax(dim=1) == targets` says which samples are right; count them over all batches, then divide once.",
    "Return two Python floats (`.item()` gives one). Where there were no samples, do not divide: return (0.0, 0.0).",
    "`with torch.no_grad():` ends by itself; change no weight, gradient or `requires_grad`, and no setting of torch.",
)
evaluate.when("runs", "runs_on_the_device", "uses_the_device_it_is_given", hint=2, at=("for",))
evaluate.when("returns_the_mean_loss_per_sample", hint=3, at=("return", "last return"))
evaluate.when("returns_the_accuracy", hint=4, at=("return", "last return"))
evaluate.when("returns_two_floats", "returned-tensor", hint=5, at=("last return",))
evaluate.when("copes_with_nothing", "empty-loader-forgotten", hint=5, at=("return", "first return"))
CHANGING = ("backward(", "zero_grad(", "step(", "set_grad_enabled(", "requires_grad_(", ".requires_grad", "copy_(")
evaluate.when("leaves_weights_and_gradients_as_they_were", hint=6, at=(*CHANGING, ".data", "half(", "round_("))
evaluate.when("leaves_training_possible", "requires-grad-left-off", hint=6, at=CHANGING)
evaluate.when("leaves_batch_norm_as_it_was", hint=1, at=("reset_running_stats(", "train("))


BATCH: Final = 3
MOST: Final = 5  # sprites in the largest scenario
HIDDEN: Final = 12


class Log(list[dict[str, Any]]):
    """What each forward pass saw; a copy of the model that a solution may make goes on writing here."""

    def __deepcopy__(self, memo: Any) -> Log:
        return self


def watched(seed: int, log: Log) -> Any:
    """A classifier with batch norm and dropout that writes down how it is run, also through `model.forward`."""
    model = _class()(log)
    # Filled by hand: torch's own way would need the program's random numbers, and far more time.
    with torch.no_grad():
        for tensor, value in zip((*model.parameters(), *model.buffers()), _values(seed), strict=True):
            tensor.copy_(value)
    return model


@lru_cache(maxsize=1)
def _class() -> Any:
    """A class made once, and only where torch is needed."""

    class SpriteClassifier(nn.Module):
        def __init__(self, log: Log) -> None:
            super().__init__()
            self.first = _linear(3 * SIZE * SIZE, HIDDEN)
            # Batch norm over four values a channel: in training mode a batch of one changes it, but does not raise.
            self.norm = nn.BatchNorm1d(3)
            self.dropout = nn.Dropout(0.5)
            self.last = _linear(HIDDEN, CLASSES)
            self.log = log

        def forward(self, pictures: Any) -> Any:
            hidden = self.norm(self.first(pictures.flatten(1)).unflatten(1, (3, -1)))
            outputs = self.last(self.dropout(hidden).relu().flatten(1))
            parts = (("model", self), ("batch norm", self.norm), ("dropout", self.dropout))
            self.log.append(
                {
                    "training": sorted(name for name, part in parts if part.training),
                    "graph": outputs.requires_grad,
                    "devices": sorted({str(pictures.device), *(str(p.device) for p in self.parameters())}),
                }
            )
            return outputs

    return SpriteClassifier


def _linear(inputs: int, outputs: int) -> Any:
    layer = nn.Linear.__new__(nn.Linear)  # without what it does to have values, which are drawn, or slow to leave out
    nn.Module.__init__(layer)
    layer.in_features, layer.out_features = inputs, outputs
    layer.weight = nn.Parameter(torch.empty(outputs, inputs))
    layer.bias = nn.Parameter(torch.empty(outputs))
    return layer


@lru_cache(maxsize=2)
def _values(seed: int) -> tuple[Any, ...]:
    """Parameters and buffers, in their order. Decided answers: a wrong one costs visibly more than a right one."""
    dice = torch.Generator().manual_seed(seed)

    def between(low: float, high: float, *shape: int) -> Any:
        return torch.rand(shape, generator=dice) * (high - low) + low

    inputs = 3 * SIZE * SIZE
    first = between(-0.15, 0.15, HIDDEN, inputs), between(-0.15, 0.15, HIDDEN)
    norm = torch.ones(3), torch.zeros(3)
    last = between(-2.4, 2.4, CLASSES, HIDDEN), between(-0.3, 0.3, CLASSES)
    statistics = between(-0.5, 0.5, 3), between(0.1, 0.3, 3), torch.tensor(0)
    return (*first, *norm, *last, *statistics)


@lru_cache(maxsize=2)
def _classified(seed: int) -> tuple[Any, Any]:
    """All sprites, and what the model makes of them."""
    pictures = sprites(MOST, seed + 1)[0]
    with torch.no_grad():
        return pictures, watched(seed, Log()).eval()(pictures)  # plain torch on the CPU


@lru_cache(maxsize=8)
def _sprites(seed: int, samples: int) -> tuple[Any, Any, list[float]]:
    """Sprites, classes that make the second one and the last batch wrong, and the mean of the batches' means."""
    pictures, logits = (every[:samples] for every in _classified(seed))
    classes = logits.argmax(dim=1)
    wrong = {1, *range((samples - 1) // BATCH * BATCH, samples)} & {*range(samples)}
    classes[[*wrong]] = logits[[*wrong]].argmin(dim=1)
    pairs = zip(logits.split(BATCH), classes.split(BATCH), strict=True)
    each = [(loss_fn()(a, b).item(), (a.argmax(dim=1) == b).float().mean().item()) for a, b in pairs if len(b)]
    return pictures, classes, [sum(column) / len(each) for column in zip(*each, strict=True)] or [0.0, 0.0]


def batches(seed: int, samples: int) -> tuple[Any, list[float]]:
    """A loader, and the mean of its batches' means of loss and accuracy."""
    pictures, classes, means = _sprites(seed, samples)
    dataset = torch.utils.data.TensorDataset(pictures.clone(), classes.clone())  # a solution may write into them
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH), means


def loss_fn() -> Any:
    return nn.CrossEntropyLoss(label_smoothing=0.1)  # not quite the usual loss: the one that is given has to be used


_COMPARISON: Final = re.compile(r"[!=]=|\b(eq|ne|equal)\(")


@evaluate.probe
def on_the_device(call: Call) -> dict[str, Any]:
    """All on one bench. The last batch is a single sprite, or two."""
    return {
        "from_the_cpu": _evaluated(call, call.device, "from_the_cpu"),
        "already_there": _evaluated(call, str(call.device), "already_there", samples=5, moved=True),
        "nothing_to_evaluate": _evaluated(call, call.device, "nothing_to_evaluate", samples=0),
    }


@evaluate.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    """The same function, told to evaluate on the CPU."""
    return {"on_the_cpu": _evaluated(call, "cpu", "on_the_cpu")}


def on_the_second_gpu(call: Call) -> dict[str, Any]:
    """The model is there already; a batch that goes to "cuda" goes to the first one."""
    return {"on_the_second_gpu": _evaluated(call, "cuda:1", "on_the_second_gpu", samples=2, moved=True)}


evaluate.probe(on_the_second_gpu, machine="two gpus")


def _evaluated(call: Call, device: Any, scenario: str, samples: int = 4, moved: bool = False) -> dict[str, Any]:
    loader, means = batches(call.seed, samples)
    model = watched(call.seed, Log())
    model.first.bias.requires_grad_(False)  # frozen before, so frozen afterwards
    for parameter in list(model.parameters())[:-1]:  # the last one has no gradient yet, and gets none
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)
    before = _state(model)
    if moved:
        model.to(device)
    with torch.enable_grad():  # whatever the student's function leaves behind ends here
        try:
            value, settings = settled(call, model, loader, loss_fn(), device)
        except StudentRaised as error:
            raise _told(error, call, loader, scenario) from None
    forwards = call.ledger.forwards()
    after = _state(model)
    return {
        "class": type(value).__name__,
        "parts": [_describe(part) for part in value] if isinstance(value, (tuple, list)) else [],
        "is_tuple": isinstance(value, tuple),
        "passes": list(model.log),
        "graph_line": next((call.line_of(f) for f in forwards if f.builds_graph), None),
        "forward_line": next((call.line_of(f) for f in forwards), None),
        "wanted_device": str(torch.empty(0, device=device).device),
        "changed": {kind: _changed(before[kind], after[kind]) for kind in ("weights", "gradients", "statistics")},
        "flags_before": before["flags"],
        "flags_after": after["flags"],
        "settings": settings,
        "batch_means": means,
        "sizes": [min(BATCH, samples - start) for start in range(0, samples, BATCH)],
    }


def _told(error: StudentRaised, call: Call, loader: Any, scenario: str) -> StudentRaised:
    """Where it raised, and which tensors of the first batch had been copied by then."""
    told = StudentRaised(error.evidence)
    told.facts["scenario"] = scenario
    if not len(loader):
        return told
    inputs, targets = next(iter(loader))
    told.facts["copied"] = copied(call, inputs=inputs, targets=targets)
    source = linecache.getline(str(call.path), error.evidence.line or 0)
    if "found at least two devices" in error.evidence.message and _COMPARISON.search(source):
        message = f"{error.evidence.message} (comparing outputs with targets)"
        told.evidence = msgspec.structs.replace(error.evidence, message=message)
        if call.ledger.forwards("CrossEntropyLoss"):
            told.facts["copied"].pop("targets", None)  # the copy was not thrown away: the loss has used it
    return told


def _describe(part: Any) -> dict[str, Any]:
    number = isinstance(part, (int, float)) and not isinstance(part, bool)
    return {
        "class": type(part).__name__,
        "is_float": isinstance(part, float),
        "is_tensor": isinstance(part, torch.Tensor),
        "value": float(part) if number else None,
    }


def _state(model: Any) -> dict[str, dict[str, Any]]:
    parameters = dict(model.named_parameters())
    return {
        "weights": {name: _kept(p) for name, p in parameters.items()},
        "gradients": {name: None if p.grad is None else _kept(p.grad) for name, p in parameters.items()},
        "statistics": {name: _kept(b) for name, b in model.named_buffers()},
        "flags": {name: p.requires_grad for name, p in parameters.items()},
    }


def _kept(tensor: Any) -> Any:
    host = tensor.detach().cpu()
    return host.clone() if tensor.device.type == "cpu" else host


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, old in before.items() if not _same(old, after.get(name))]


def _same(old: Any, new: Any) -> bool:
    if old is None or new is None:
        return old is new
    return old.dtype == new.dtype and torch.equal(old, new)


ON_THE_DEVICE = ("from_the_cpu", "already_there")
SECOND = "on_the_second_gpu"
FULL = (*ON_THE_DEVICE, "on_the_cpu", SECOND)


def _facts(seen: Seen, scenario: str) -> Any:
    return seen[scenario if scenario in ("on_the_cpu", SECOND) else "on_the_device"].facts[scenario]


def _each(seen: Seen, *scenarios: str) -> Iterator[tuple[str, Any]]:
    for scenario in scenarios:
        yield scenario, _facts(seen, scenario)


def _diagnose(scenario: str, message: str) -> str | None:
    found = diagnosis(message)
    if scenario == SECOND and between_gpus(message):
        return "device-index-dropped"
    if found is None and message.endswith("(comparing outputs with targets)"):
        found = "targets-on-cpu"
    if found is None and scenario == "nothing_to_evaluate":  # with sprites it ran, on the same bench
        return "empty-loader-forgotten"
    # With device="cpu" nothing can have been forgotten: model and batches were on the CPU already.
    return "hard-coded-cuda" if found is not None and scenario == "on_the_cpu" else found


runs(evaluate, points=1, diagnose=_diagnose)


@evaluate.check(points=1)
def runs_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device, also if the model was still on the CPU."""
    for _, facts in _each(seen, *ON_THE_DEVICE):
        elsewhere = [p for p in facts["passes"] if p["devices"] != [facts["wanted_device"]]]
        if elsewhere:
            where = ", ".join(elsewhere[0]["devices"])
            raise Failed(
                f"{len(elsewhere)} of {len(facts['passes'])} forward passes ran on {where}",
                f"all of them on {facts['wanted_device']}",
                facts["forward_line"],
                "model-not-moved" if elsewhere[0]["devices"] == ["cpu"] else None,
            )
        if not facts["passes"]:
            raise Failed("the model was never called", f"a forward pass per batch on {facts['wanted_device']}")


@evaluate.check(points=1)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Evaluation happens on the device passed in, whatever this machine has."""
    facts = _facts(seen, "on_the_cpu")
    elsewhere = sorted({device for p in facts["passes"] for device in p["devices"]} - {"cpu"})
    if not facts["passes"]:
        raise Failed("the model was never called", "a forward pass per batch on the CPU")
    if elsewhere:
        raise Failed(
            f'with device="cpu" the forward passes ran on {", ".join(elsewhere)}',
            "the CPU, as asked",
            facts["forward_line"],
            "hard-coded-cuda",
        )
    facts = _facts(seen, SECOND)
    elsewhere = sorted({device for p in facts["passes"] for device in p["devices"]} - {"cuda:1"})
    if elsewhere or not facts["passes"]:
        raise Failed(
            f'with device="cuda:1" the forward passes ran on {", ".join(elsewhere) or "nothing"}',
            "cuda:1, as asked",
            facts["forward_line"],
            "device-index-dropped" if elsewhere == ["cuda:0"] else None,
        )


@evaluate.check(points=2)
def evaluates_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode, dropout and batch norm included."""
    for _, facts in _each(seen, *FULL):
        training = [p["training"] for p in facts["passes"] if p["training"]]
        if not training:
            continue
        happened = (
            f"{len(training)} of {len(facts['passes'])} forward passes ran with {_named(training[0])} in training mode"
        )
        misconception = None
        if len(training) == len(facts["passes"]) and all("model" in parts for parts in training):
            # Without either switch the mistake is not that one was taken for the other; what it did is left to say.
            changed = "batch-norm-changed" if facts["changed"]["statistics"] else None
            misconception = changed if any(p["graph"] for p in facts["passes"]) else "no-grad-without-eval"
        elif any("batch norm" in parts for parts in training):
            misconception = "batch-norm-changed"
        raise Failed(happened, "model.eval() before the first pass", facts["forward_line"], misconception)


def _named(parts: list[str]) -> str:
    return "the whole model" if "model" in parts and len(parts) == 3 else " and ".join(parts)


@evaluate.check(points=2)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph."""
    for _, facts in _each(seen, *FULL):
        building = [p for p in facts["passes"] if p["graph"]]
        if building:
            in_evaluation = not any(p["training"] for p in facts["passes"])
            raise Failed(
                f"the outputs of {len(building)} of {len(facts['passes'])} forward passes came with a graph",
                "forward passes under torch.no_grad() or torch.inference_mode()",
                facts["graph_line"],
                "eval-without-no-grad" if in_evaluation else None,
            )


@evaluate.check(points=1)
def leaves_weights_and_gradients_as_they_were(seen: Seen, wanted: Seen) -> None:
    """Weights and gradients are the same afterwards."""
    _unchanged(seen, "weights", None)
    _unchanged(seen, "gradients", None)


@evaluate.check(points=1)
def leaves_batch_norm_as_it_was(seen: Seen, wanted: Seen) -> None:
    """The running statistics of batch norm are the same afterwards."""
    _unchanged(seen, "statistics", "batch-norm-changed")


def _unchanged(seen: Seen, kind: str, misconception: str | None) -> None:
    for name, facts in _each(seen, *FULL, "nothing_to_evaluate"):
        changed = facts["changed"][kind]
        if changed:
            training = kind == "statistics" and any("batch norm" in p["training"] for p in facts["passes"])
            raise Failed(
                f"scenario `{name}` changed the {kind} of {', '.join(changed[:3])}",
                f"the {kind} as they were before the call",
                facts["forward_line"] if training else None,
                misconception,
            )


@evaluate.check(points=1)
def leaves_training_possible(seen: Seen, wanted: Seen) -> None:
    """Training can go on: requires_grad of every parameter, grad mode and torch's settings are as they were."""
    for name, facts in _each(seen, *FULL, "nothing_to_evaluate"):
        before, after = _facts(wanted, name)["flags_before"], facts["flags_after"]
        off = [parameter for parameter, flag in before.items() if flag and not after.get(parameter)]
        on = [parameter for parameter, flag in before.items() if not flag and after.get(parameter)]
        if off:
            raise Failed(
                f"afterwards {len(off)} of {sum(before.values())} trainable parameters no longer require gradients",
                "the flags as they were; torch.no_grad() needs none of them changed",
                misconception="requires-grad-left-off",
            )
        if on:
            raise Failed(f"{', '.join(on)} was frozen, and requires gradients afterwards", "the flags as they were")
        if "the gradient mode" in facts["settings"]:
            raise Failed("gradients are switched off for the whole program afterwards", "torch.no_grad() in a `with`")
        if facts["settings"]:
            raise Failed(f"it changed {facts['settings'][0]} (scenario `{name}`)", "no change")


@evaluate.check(points=1)
def returns_two_floats(seen: Seen, wanted: Seen) -> None:
    """It returns a tuple of two Python floats: loss and accuracy."""
    for _, facts in _each(seen, *FULL):
        if not facts["is_tuple"] or len(facts["parts"]) != 2:
            shown = called(facts["class"]) + (f" of {len(facts['parts'])}" if facts["parts"] else "")
            raise Failed(f"it returned {shown}", "a tuple of two floats")
        for what, part in zip(("loss", "accuracy"), facts["parts"], strict=True):
            if not part["is_float"]:
                raise Failed(
                    f"the {what} is {called(part['class'])}",
                    "a Python float",
                    misconception="returned-tensor" if part["is_tensor"] else None,
                )


NUMBERS = ("runs", "evaluates_in_evaluation_mode", "returns_two_floats")


@evaluate.check(points=1, needs=NUMBERS)
def returns_the_mean_loss_per_sample(seen: Seen, wanted: Seen) -> None:
    """The first is the mean loss per sample, although the last batch is smaller."""
    _number(0, seen, wanted)


@evaluate.check(points=1, needs=NUMBERS)
def returns_the_accuracy(seen: Seen, wanted: Seen) -> None:
    """The second is the share of all samples that are classified correctly, in [0, 1]."""
    _number(1, seen, wanted)


def _number(place: int, seen: Seen, wanted: Seen) -> None:
    what = ("loss", "accuracy")[place]
    for name, facts in _each(seen, *FULL):
        reference = _facts(wanted, name)
        found, right = facts["parts"][place]["value"], reference["parts"][place]["value"]
        if _close(found, right):
            continue
        sizes, mean = reference["sizes"], reference["batch_means"][place]
        misconception = "mean-of-batch-means" if _of_means(place, seen, wanted) else None
        told = ""
        if place and _close(found, 100 * right):
            told = " (in [0, 1], not in percent)"
        elif _close(found, mean * len(sizes) / sum(sizes)):
            told = " (each batch counts as often as it has samples)"
        raise Failed(f"scenario `{name}`: {what} {found:.4f}", f"{right:.4f}{told}", misconception=misconception)


def _of_means(place: int, seen: Seen, wanted: Seen) -> bool:
    """In every scenario: with a few samples one number may be another by chance."""
    return all(
        _close(facts["parts"][place]["value"], _facts(wanted, name)["batch_means"][place])
        for name, facts in _each(seen, *FULL)
    )


def _close(found: float, right: float) -> bool:
    return math.isclose(found, right, rel_tol=2e-4, abs_tol=1e-5)


@evaluate.check(points=1)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """An empty loader gives (0.0, 0.0)."""
    facts = _facts(seen, "nothing_to_evaluate")
    if not facts["is_tuple"] or [part["value"] for part in facts["parts"]] != [0.0, 0.0]:
        shown = [part["class"] if part["value"] is None else str(part["value"]) for part in facts["parts"]]
        shape = "({})" if facts["is_tuple"] else f"{called(facts['class'])} of {{}}"
        given = shape.format(", ".join(shown)) if shown else called(facts["class"])
        raise Failed(f"an empty loader gave {given}", "(0.0, 0.0)")
