"""Did the outputs come back in one copy, and does the loader yield and pin as it should?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graders.checks.common import diagnosis, runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.minimizing_transfers.functions import make_loader, predict
from graders.evidence import Array


def _diagnose(scenario: str, said: str) -> str | None:
    """Where only a model that is there already meets inputs of the CPU, the other one had stayed there with them."""
    key = diagnosis(said)
    return "model-not-moved" if scenario == "model_already_there" and key == "inputs-on-cpu" else key


runs(predict, diagnose=_diagnose)


def _loops(seen: Seen, wanted: Seen) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What the student's function and the reference's did, scenario by scenario."""
    for scenario, right in wanted["loops"].facts.items():
        yield seen["loops"].facts[scenario], right


@predict.check(points=0.5)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device passed in."""
    for facts, expected in _loops(seen, wanted):
        right = expected["forwards"][0]["device"]
        used = {forward["device"] for forward in facts["forwards"]}
        if used != {right}:
            where = " and ".join(sorted(used)) or "nowhere"
            key = "hard-coded-cuda" if right == "cpu" else "model-not-moved" if used == {"cpu"} else None
            raise Failed(f"told to use {right}, the model ran on {where}", right, facts["forward_line"], key)


@predict.check(points=0.25)
def predicts_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode."""
    for facts, _ in _loops(seen, wanted):
        training = [f for f in facts["forwards"] if f["training"]]
        if training:
            graph = any(f["graph"] for f in facts["forwards"])
            raise Failed(
                f"{len(training)} of {len(facts['forwards'])} forward passes ran in training mode, with dropout",
                "model.eval() before the loop",
                facts["forward_line"],
                None if graph else "no-grad-without-eval",
            )


@predict.check(points=0.25)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph, and the model can still be trained afterwards."""
    for facts, _ in _loops(seen, wanted):
        built = [f for f in facts["forwards"] if f["graph"]]
        if built:
            evaluating = not any(f["training"] for f in facts["forwards"])
            raise Failed(
                f"{len(built)} of {len(facts['forwards'])} forward passes built a graph",
                "none: torch.no_grad() or torch.inference_mode() around the loop",
                facts["graph_line"],
                "eval-without-no-grad" if evaluating else None,
            )
        if not facts["trainable"]:
            raise Failed(
                "parameters of the model no longer require a gradient",
                "parameters as they were",
                misconception="requires-grad-left-off",
            )
        if not facts["grad_mode"]:
            raise Failed("gradients were still switched off for everyone afterwards", "gradients off in the loop only")


@predict.check(points=0.5, needs=("runs", "predicts_in_evaluation_mode"))
def returns_every_output(seen: Seen, wanted: Seen) -> None:
    """It returns the outputs of all batches in one tensor, in order, on the CPU."""
    for facts, right in _loops(seen, wanted):
        value, correct = facts["value"], right["value"]
        if value is None:
            raise Failed(f"it returned {called(facts['class'])}", "one tensor")
        if facts["device"] != "cpu":
            copied = facts["copies_back"] > 0  # the copy was made, and what was returned is the original
            line, key = (facts["copy_line"], "result-thrown-away") if copied else (None, None)
            raise Failed(f"the outputs were returned on {facts['device']}", "the CPU", line, key)
        if value.shape != correct.shape:
            raise Failed(f"{right['batches']} batches gave shape {value.shape}", f"{correct.shape}")
        if not _close(value, correct):
            raise Failed("the values differ from the model's outputs, or their order does", "the outputs in order")


@predict.check(points=0.5, needs=("runs", "works_on_the_device"))
def copies_back_once(seen: Seen, wanted: Seen) -> None:
    """There is one copy back to the host in all, however many batches there are."""
    for facts, right in _loops(seen, wanted):
        count, batches = facts["copies_back"], facts["batches"]
        if count > right["copies_back"]:
            raise Failed(
                f"{batches} batches made {count} copies back to the host",
                "one, of all outputs together, after the loop",
                facts["copy_line"],
                "copied-every-batch-back" if count >= batches else None,
            )
        if facts["reads"] > right["reads"]:
            raise Failed(
                f"the host read a value from the device {facts['reads']} times and waited for it each time",
                "no reading before the one copy",
                facts["read_line"],
                "sync-in-hot-loop",
            )


@predict.check(points=0.5)
def leaves_the_targets(seen: Seen, wanted: Seen) -> None:
    """The targets are never moved."""
    for facts, _ in _loops(seen, wanted):
        if facts["targets_moved"]:
            raise Failed(
                f"the targets of {facts['targets_moved']} batches were copied to the device, and nothing used them",
                "only the inputs moved",
                facts["targets_line"],
            )


def _close(found: Array, right: Array) -> bool:
    import numpy as np

    if found.dtype != right.dtype:
        return False
    return np.allclose(np.frombuffer(found.data, found.dtype), np.frombuffer(right.data, right.dtype), 1e-3, 1e-5)


runs(make_loader)


def _epochs(seen: Seen, wanted: Seen, *scenarios: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every epoch: its name, what it was and what it should be."""
    for scenario in scenarios or ("devices", "samples"):
        for name, right in wanted["epochs"].facts[scenario].items():
            yield name, seen["epochs"].facts[scenario][name], right


@make_loader.check(points=0.5)
def yields_every_sample_once(seen: Seen, wanted: Seen) -> None:
    """It returns a DataLoader that yields every sample once, in batches of `batch_size`."""
    for name, epoch, right in _epochs(seen, wanted):
        if not epoch["is_loader"]:
            raise Failed(f"it returned {called(epoch['class'])}", "a DataLoader")
        count = len(right["order"])
        missing = set(right["order"]) - set(epoch["order"])
        if missing:
            raise Failed(f"{_asked(name)}{len(missing)} of {count} samples were left out", "every sample")
        if len(epoch["order"]) != count:
            happened = f"{_asked(name)}of {count} samples {len(epoch['order'])} were yielded, some of them twice"
            raise Failed(happened, "each of them once")
        if epoch["sizes"] != right["sizes"]:
            raise Failed(f"{_asked(name)}the batches had sizes {epoch['sizes']}", f"{right['sizes']}")


@make_loader.check(points=0.25, needs=("runs", "yields_every_sample_once"))
def shuffles_when_asked(seen: Seen, wanted: Seen) -> None:
    """The order is shuffled with `shuffle=True`, and kept without it."""
    for name, epoch, _ in _epochs(seen, wanted):
        in_order = epoch["order"] == sorted(epoch["order"])
        if in_order is (name == "shuffle=True"):
            happened = "the samples came in order" if in_order else "the samples came in another order"
            raise Failed(f"{_asked(name)}{happened}", "shuffled with shuffle=True only")
    if changed := seen["epochs"].facts["samples"]["shuffle=True"]["settings"]:
        raise Failed(f"it changed {changed[0]}", "an order drawn by torch's dice as they are")


@make_loader.check(points=0.5, needs=("runs", "yields_every_sample_once"))
def pins_exactly_for_cuda(seen: Seen, wanted: Seen) -> None:
    """Batches are pinned when the device is CUDA, however it is named, and not otherwise."""
    for name, epoch, right in _epochs(seen, wanted, "devices"):
        if epoch["pinned"] == right["pinned"]:
            continue
        if any(right["pinned"]):
            raise Failed(f"for device={name} the batches were not pinned", "pinned batches")
        raise Failed(f"for device={name} the batches were pinned", "ordinary memory", misconception="pinned-for-cpu")


@make_loader.check(points=0.25)
def passes_the_workers_on(seen: Seen, wanted: Seen) -> None:
    """`num_workers` is passed on, and is 0 if not given."""
    told = seen["epochs"].facts["workers"]
    if told != wanted["epochs"].facts["workers"]:
        raise Failed(f"num_workers=2 made a loader with {told}", "2")
    for name, epoch, _ in _epochs(seen, wanted):
        if epoch.get("workers", 0) != 0:
            raise Failed(f"{_asked(name)}the loader has {epoch['workers']} workers", "0")


def _asked(name: str) -> str:
    """How a loader was asked for: with an argument, for a device in quotes, or in words."""
    if "'" in name:
        return f"with device={name} "
    return f"with {name} " if "=" in name else f"({name}) "
