"""How is 05 judged? By mode, graph and device of each forward pass, by what is left behind, and by two numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from graders.checks.common import between_gpus, diagnosis, runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.evaluation_loop.functions import evaluate

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
