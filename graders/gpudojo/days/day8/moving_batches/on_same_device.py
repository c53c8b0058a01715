"""`on_same_device`: the golden rule, that all tensors are on one device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gpudojo.days.day8.moving_batches.batches import Masked, Sprite, make_pair
from gpudojo.days.day8.moving_batches.declaration import on_same_device
from gpudojo.days.day8.sprites import linear_layer
from gpudojo.grading.call import Call, call_and_restore_settings, nn, torch, try_scenarios
from gpudojo.grading.checks import expect_settings_kept, runs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, with_article


def _make_model(
    first: Any, last: Any = None, mean: Any = None, palette: Any = None, frozen: bool = False
) -> Any:
    """A model made of these tensors, wherever they are.

    `first` is used for all parts that are not given. It has a running mean, and a palette that is
    not in `state_dict()`.
    """
    made = nn.Sequential(
        linear_layer(first), linear_layer(first), linear_layer(first if last is None else last)
    )
    made[1].register_buffer("running_mean", first if mean is None else mean)
    made[1].register_buffer("palette", first if palette is None else palette, persistent=False)
    made[2].requires_grad_(not frozen)
    return made


class Answer(Case, frozen=True):
    """One answer; None as its value if it is no bool or int."""

    kind: str
    value: bool | None
    settings: list[str]


def _ask(call: Call, *things: Any) -> Answer:
    """Call the student's function and describe its answer. Raises StudentRaised."""
    value, settings = call_and_restore_settings(call, *things)
    return Answer(
        type(value).__name__, bool(value) if isinstance(value, (bool, int)) else None, settings
    )


def _ask_all(
    call: Call, groups: Mapping[str, Mapping[str, tuple[Any, ...]]]
) -> dict[str, Cases[Answer]]:
    """The answers to some groups of questions, asked in an order drawn from the seed."""
    every = {title: things for questions in groups.values() for title, things in questions.items()}
    found = try_scenarios(
        {title: functools.partial(_ask, call, *things) for title, things in every.items()},
        call.seed,
    )
    return {
        group: Cases(
            {title: found[title] for title in questions if title in found},
            {title: found.errors[title] for title in questions if title in found.errors},
        )
        for group, questions in groups.items()
    }


BETWEEN = "a string between two tensors on different devices"  # no structure to search


@on_same_device.probe
def answered(call: Call) -> dict[str, Cases[Answer]]:
    """The answers for tensors, structures, modules and nothing, on the CPU and the device."""
    here, classes = make_pair(call.seed)
    there = here.to(call.device)
    classes = classes.to(call.device)
    # Structures and models; "here" is the CPU, "there" the device.
    deep = {"a": there, "b": [{"c": (there, [Masked(there, here)])}]}
    alike = {"a": there, "b": [{"c": (there, [Masked(there, there)])}]}
    on_device = _make_model(there)
    on_cpu = _make_model(here)
    questions: dict[str, dict[str, tuple[Any, ...]]] = {
        "tensors": {
            "one tensor": (there,),
            "two on the CPU": (here, here + 1),
            "two on the device": (there, classes),
            "one on the CPU, one on the device": (here, there),
            "three on the device, the last one on the CPU": (there, classes, there, here),
        },
        "structures": {
            "a list on the device": ([there, there],),
            "a list on both": ([there, here],),
            "a tuple on both": ((here, there),),
            "a dict on the device": ({"a": there, "b": there}, there),
            "a dict on both": ({"a": there, "b": here},),
            "a named tuple on both": (Sprite(there, here, "mushroom"),),
            "a nested batch with one tensor on the CPU": (deep,),
            "a nested batch on the device": (alike,),
            'a list on the CPU and {"b": a tensor on the device}': (
                [here, {"a": here}],
                {"b": there},
            ),
            BETWEEN: (there, "mushroom", here),
            "strings between tensors on the device": (
                *("mushroom", [there, "cpu", None, 3]),
                {"device": "cpu", "t": there},
            ),
        },
        "modules": {
            "a model and its batch": (on_device, [there, there]),
            "a model alone": (on_cpu,),
            "a model on the CPU, a batch on the device": (on_cpu, there),
            "two models on different devices": (on_device, on_cpu),
            "a model with one layer elsewhere": (_make_model(there, last=here),),
            "a model with a frozen layer elsewhere": (_make_model(there, last=here, frozen=True),),
            "a model with a buffer elsewhere": (_make_model(there, mean=here), there),
            "a model with an unsaved buffer elsewhere": (_make_model(there, palette=here),),
            "a model without parameters, a batch": (nn.ReLU(), there),
        },
        "no_tensors": {
            "no argument": (),
            "empty containers": ([], {}, (), [{}]),
            "other things": ("mushroom", 3, None, ["cuda", {"device": "cpu"}]),
            "a model without parameters": (nn.ReLU(),),
        },
    }
    return _ask_all(call, questions)


@on_same_device.probe(machine="two gpus")
def answered_with_two_gpus(call: Call) -> dict[str, Cases[Answer]]:
    """The answers for tensors and a model on one or both of two GPUs."""
    first = torch.zeros(2, device="cuda:0")
    second = torch.zeros(2, device="cuda:1")
    questions: dict[str, tuple[Any, ...]] = {
        "cuda and cuda:0": (torch.zeros(2, device="cuda"), first),
        "two on the second GPU": (second, second + 1),
        "one on each GPU": (first, second),
        "one on each GPU, in a list": ([first, second],),
        "a model over two GPUs": (_make_model(first, last=second),),
    }
    return _ask_all(call, {"gpus": questions})


LAST = "three on the device, the last one on the CPU"
TENSORS = (
    "one tensor",
    "two on the CPU",
    "two on the device",
    "one on the CPU, one on the device",
    LAST,
)
runs(on_same_device, scenarios=TENSORS)


def _declare_check(
    group: str, points: float, name: str, claim: str, keys: Mapping[str, str] = {}
) -> None:
    """Declare the check that every answer of a group is the reference's.

    `claim` is the line that students read. `keys` has, by question, the mistake that a wrong answer
    shows.
    """

    def judge(seen: Seen, wanted: Seen) -> None:
        probe = answered_with_two_gpus if group == "gpus" else answered
        found = seen[probe][group]
        for title, right in wanted[probe][group].items():
            if (raised := found.errors.get(title)) is not None:
                seen.about(None, title)
                raise Failed(f"{title} raised {raised.short}", str(right.value), raised.line)
            answer = found[title]
            if answer.kind != "bool":
                raise Failed(
                    f"{title}: it returned {with_article(answer.kind)}",
                    f"{right.value}, a bool",
                    at=("return",),
                )
            if answer.value != right.value:
                at = ("return",) if title == BETWEEN else ()
                key = keys.get(title) or ("loop-left-early" if answer.value else None)
                raise Failed(
                    f"{title}: it returned {answer.value}", str(right.value), None, key, at
                )
            expect_settings_kept(answer.settings, title)

    judge.__name__ = name
    judge.__doc__ = claim
    on_same_device.check(
        points, needs=("runs",) if group == "tensors" else ("runs", "compares_tensors")
    )(judge)


_declare_check(
    "tensors",
    1,
    "compares_tensors",
    "It answers True or False: are all these tensors on one device?",
    {LAST: "first-tensor-only"},
)
_declare_check(
    "structures",
    0.5,
    "searches_structures",
    "Tensors in lists, tuples, named tuples and dicts count, at any depth; strings and numbers do not.",
)
_declare_check(
    "modules",
    1,
    "searches_modules",
    "All parameters and all buffers of a module count.",
    {
        "a model with one layer elsewhere": "first-tensor-only",
        "a model with a buffer elsewhere": "buffers-forgotten",
        "a model with an unsaved buffer elsewhere": "state-dict-is-not-all",
    },
)
_declare_check(
    "gpus",
    0.5,
    "tells_gpus_apart",
    "cuda:0 and cuda:1 are different devices, cuda and cuda:0 are the same.",
    {
        "one on each GPU": "device-index-dropped"
    },  # in a list or a model alone, it is that these are not searched
)
_declare_check(
    "no_tensors", 0.5, "is_true_of_nothing", "If there is no tensor at all, the answer is True."
)
