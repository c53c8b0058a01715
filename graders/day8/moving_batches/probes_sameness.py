"""What does `on_same_device` answer? For tensors, structures and modules, together and apart."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from graders.day8.moving_batches.functions import same
from graders.day8.moving_batches.probes_batches import Masked, Sprite, images, labels
from graders.probes.calling import Call
from graders.probes.late import nn, torch
from graders.probes.scenarios import tried
from graders.probes.settings import settled


def _answer(call: Call, *things: Any) -> dict[str, Any]:
    value, settings = settled(call, *things)
    answer = bool(value) if isinstance(value, (bool, int)) else None
    return {"class": type(value).__name__, "value": answer, "settings": settings}


def _group(name: str, call: Call, questions: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {title: {"group": name} | tried(_answer, call, *things) for title, things in questions.items()}


@functools.cache
def _parts() -> tuple[Any, Any]:
    class Layer(nn.Module):
        def __init__(self, weight: Any, frozen: bool = False) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight, requires_grad=not frozen)

    class Normed(Layer):
        """With a statistic, and with a palette that `state_dict()` leaves out."""

        def __init__(self, weight: Any, mean: Any, palette: Any) -> None:
            super().__init__(weight)
            self.register_buffer("running_mean", mean)
            self.register_buffer("palette", palette, persistent=False)

    return Layer, Normed


def _model(first: Any, last: Any = None, mean: Any = None, palette: Any = None, frozen: bool = False) -> Any:
    """A model made of tensors where they are: all of them `first`, but for those that are given."""
    layer, normed = _parts()
    return nn.Sequential(
        layer(first),
        normed(first, first if mean is None else mean, first if palette is None else palette),
        layer(first if last is None else last, frozen),
    )


@same.probe
def answered(call: Call) -> dict[str, Any]:
    here = images(call.seed)
    there, classes = here.to(call.device), labels(call.seed).to(call.device)
    deep = {"a": there, "b": [{"c": (there, [Masked(there, here)])}]}
    alike = {"a": there, "b": [{"c": (there, [Masked(there, there)])}]}
    on_device, on_cpu = _model(there), _model(here)
    return (
        _group(
            "tensors",
            call,
            {
                "one tensor": (there,),
                "two on the CPU": (here, here + 1),
                "two on the device": (there, classes),
                "one here, one there": (here, there),
                "the last one elsewhere": (there, classes, there, here),
            },
        )
        | _group(
            "structures",
            call,
            {
                "a list on the device": ([there, there],),
                "a list on both": ([there, here],),
                "a tuple on both": ((here, there),),
                "a dict on the device": ({"a": there, "b": there}, there),
                "a dict on both": ({"a": there, "b": here},),
                "a named tuple on both": (Sprite(there, here, "mushroom"),),
                "one deep inside elsewhere": (deep,),
                "all the same, deep inside": (alike,),
                "two structures apart": ([here, {"a": here}], {"b": there}),
                "a string between two apart": (there, "mushroom", here),
                "strings between": ("mushroom", [there, "cpu", None, 3], {"device": "cpu", "t": there}),
            },
        )
        | _group(
            "modules",
            call,
            {
                "a model and its batch": (on_device, [there, there]),
                "a model alone": (on_cpu,),
                "a model on the CPU, a batch on the device": (on_cpu, there),
                "two models apart": (on_device, on_cpu),
                "a model with one layer elsewhere": (_model(there, last=here),),
                "a model with a frozen layer elsewhere": (_model(there, last=here, frozen=True),),
                "a model with a buffer elsewhere": (_model(there, mean=here), there),
                "a model with an unsaved buffer elsewhere": (_model(there, palette=here),),
                "a model without parameters, a batch": (nn.ReLU(), there),
            },
        )
        | _group(
            "no_tensors",
            call,
            {
                "nothing at all": (),
                "empty containers": ([], {}, (), [{}]),
                "other things": ("mushroom", 3, None, ["cuda", {"device": "cpu"}]),
                "a model without parameters": (nn.ReLU(),),
            },
        )
    )


def answered_with_two_gpus(call: Call) -> dict[str, Any]:
    first, second = torch.zeros(2, device="cuda:0"), torch.zeros(2, device="cuda:1")
    questions = {
        "cuda and cuda:0": (torch.zeros(2, device="cuda"), first),
        "two on the second GPU": (second, second + 1),
        "one on each GPU": (first, second),
        "one on each GPU, in a list": ([first, second],),
        "a model over two GPUs": (_model(first, last=second),),
    }
    return _group("gpus", call, questions)


same.probe(answered_with_two_gpus, machine="two gpus")
