"""`on_same_device`: the golden rule, that all tensors are on one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpudojo.days.day8.moving_batches.batches import Masked, Sprite, make_pair
from gpudojo.days.day8.moving_batches.declaration import on_same_device
from gpudojo.days.day8.sprites import linear_layer
from gpudojo.grading.call import Call, call_and_restore_settings, nn, torch, try_inputs
from gpudojo.grading.checks import (
    declare_check,
    expect_settings_kept,
    raised_instead,
    runs,
)
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, with_article

# ---- scenarios ---------------------------------------------------------------------------------


def _make_model(
    tensor: Any, last: Any = None, mean: Any = None, palette: Any = None, frozen: bool = False
) -> Any:
    """A model of this tensor alone, but for the parts that are given.

    It has a running mean, and a palette that is not in `state_dict()`. With `frozen` its last layer
    is not trained.
    """
    mean = tensor if mean is None else mean
    palette = tensor if palette is None else palette
    last = tensor if last is None else last
    middle = linear_layer(tensor)
    middle.register_buffer("running_mean", mean)
    middle.register_buffer("palette", palette, persistent=False)
    last_layer = linear_layer(last)
    last_layer.requires_grad_(not frozen)
    return nn.Sequential(linear_layer(tensor), middle, last_layer)


class Answer(Case, frozen=True):
    """One answer; None as its value if it is no bool or int."""

    kind: str
    value: bool | None
    settings: list[str]


def _call_on_same_device(call: Call, things: tuple[Any, ...]) -> Answer:
    """Call the student's function with these arguments and describe its answer.

    An answer that is neither a bool nor an int is described by its type alone. Settings of torch
    that were changed are restored. Raises StudentRaised.
    """
    value, settings = call_and_restore_settings(call, *things)
    answer = None
    if isinstance(value, (bool, int)):
        answer = bool(value)
    return Answer(type(value).__name__, answer, settings)


BETWEEN = "a string between two tensors on different devices"  # no structure to search
LISTS = 'a list on the CPU and {"b": a tensor on the device}'
MODEL = "a model on the CPU, a batch on the device"
EMPTY = "one on the device, one without elements on the CPU"


@on_same_device.probe
def answered(call: Call) -> dict[str, Cases[Answer]]:
    """The answers for tensors, structures, modules and nothing, on the CPU and the device.

    They are by group and question. Raises StudentRaised for an error about a closed device or
    memory.
    """
    here, classes = make_pair(call.seed)
    there = here.to(call.device)
    classes = classes.to(call.device)
    # Structures and models; "here" is the CPU, "there" the device.
    deep = {"a": there, "b": [{"c": (there, [Masked(there, here)])}]}
    alike = {"a": there, "b": [{"c": (there, [Masked(there, there)])}]}
    listed = [here, {"a": here}]
    with_others = [there, "cpu", None, 3]
    named = {"device": "cpu", "t": there}
    on_device = _make_model(there)
    on_cpu = _make_model(here)
    last_here = _make_model(there, last=here)
    frozen_here = _make_model(there, last=here, frozen=True)
    mean_here = _make_model(there, mean=here)
    palette_here = _make_model(there, palette=here)
    questions: dict[str, dict[str, tuple[Any, ...]]] = {
        "tensors": {
            "one tensor": (there,),
            "two on the CPU": (here, here + 1),
            "two on the device": (there, classes),
            "one on the CPU, one on the device": (here, there),
            "three on the device, the last one on the CPU": (there, classes, there, here),
            EMPTY: (there, here[:0]),
        },
        "structures": {
            "a list on the device": ([there, there],),
            "a list with tensors on both devices": ([there, here],),
            "a tuple with tensors on both devices": ((here, there),),
            "a dict on the device": ({"a": there, "b": there}, there),
            "a dict with tensors on both devices": ({"a": there, "b": here},),
            "a named tuple with tensors on both devices": (Sprite(there, here, "mushroom"),),
            "a nested batch with one tensor on the CPU": (deep,),
            "a nested batch on the device": (alike,),
            LISTS: (listed, {"b": there}),
            BETWEEN: (there, "mushroom", here),
            "strings between tensors on the device": ("mushroom", with_others, named),
        },
        "modules": {
            "a model and its batch": (on_device, [there, there]),
            "a model alone": (on_cpu,),
            MODEL: (on_cpu, there),
            "two models on different devices": (on_device, on_cpu),
            "a model with one layer elsewhere": (last_here,),
            "a model with a frozen layer elsewhere": (frozen_here,),
            "a model with a buffer elsewhere": (mean_here, there),
            "a model with an unsaved buffer elsewhere": (palette_here,),
            "a model without parameters, a batch": (nn.ReLU(), there),
        },
        "no_tensors": {
            "no argument": (),
            "empty containers": ([], {}, (), [{}]),
            "other things": ("mushroom", 3, None, ["cuda", {"device": "cpu"}]),
            "a model without parameters": (nn.ReLU(),),
        },
    }
    answers = {}
    for group, asked in questions.items():
        # In an order drawn from the seed: no list of answers is right by its order.
        answers[group] = try_inputs(_call_on_same_device, call, asked, order_seed=call.seed)
    return answers


@on_same_device.probe(machine="two gpus")
def answered_with_two_gpus(call: Call) -> Cases[Answer]:
    """The answers for tensors and a model on one or both of two GPUs.

    Raises StudentRaised for an error about a closed device or memory.
    """
    first = torch.zeros(2, device="cuda:0")
    second = torch.zeros(2, device="cuda:1")
    questions = {
        "cuda and cuda:0": (torch.zeros(2, device="cuda"), first),
        "two on the second GPU": (second, second + 1),
        "one on each GPU": (first, second),
        "one on each GPU, in a list": ([first, second],),
        "a model over two GPUs": (_make_model(first, last=second),),
    }
    return try_inputs(_call_on_same_device, call, questions, order_seed=call.seed)


# ---- claims ------------------------------------------------------------------------------------

LAST = "three on the device, the last one on the CPU"
TWO = ("two on the CPU", "two on the device", "one on the CPU, one on the device")
runs(on_same_device, scenarios=("one tensor", *TWO, LAST))


def _declare_check(
    group: str, points: float, name: str, claim: str, mistakes: Mapping[str, str] = {}
) -> None:
    """Declare the check that every answer of a group is the reference's.

    `claim` is the line that students read. `mistakes` has, by question, what a wrong answer shows.
    """

    def answers_in(seen: Seen) -> Cases[Answer]:
        if group == "gpus":
            return seen[answered_with_two_gpus]
        return seen[answered][group]

    def judge(seen: Seen, wanted: Seen) -> None:
        """Raises Failed for the first answer that is not the reference's, or that raised.

        Raises ScenarioRaised if the whole probe ended with an error.
        """
        found = answers_in(seen)
        elsewhere = seen[answered]
        for title, right in answers_in(wanted).items():
            raised = found.errors.get(title)
            if raised is not None:
                seen.about(None, title)
                raise raised_instead(raised, title, str(right.value))
            if _is_wrong_with_one_gpu(title, elsewhere):
                continue  # another check tells of it
            mistake = mistakes.get(title)
            if _answers_for_each_alone(title, found):
                mistake = "judged-apart"
            _expect_same_answer(title, found[title], right, mistake)

    needs = ("runs",) if group == "tensors" else ("runs", "compares_tensors")
    declare_check(on_same_device, name, claim, judge, points, needs)


# How questions about one kind of container begin, with patterns for the code that handles it.
CONTAINERS = {
    "a tuple": ("if tuple",),
    "a named tuple": ("if _fields", "if tuple"),
    "a dict": ("if dict", "if Mapping", "values("),
}


def _patterns_of_container(title: str) -> tuple[str, ...]:
    """Source patterns for the code that handles the container that a question is about."""
    for beginning, patterns in CONTAINERS.items():
        if title.startswith(f"{beginning} "):
            return patterns
    return ()


# Questions about two things, with one about the first of them that has tensors on both devices.
TOGETHER = {
    LISTS: "a list with tensors on both devices",
    MODEL: "a model with one layer elsewhere",
}


# Questions about two GPUs, with the group and the title of the same about one GPU and the CPU.
WITH_ONE_GPU = {
    "one on each GPU, in a list": ("structures", "a list with tensors on both devices"),
    "a model over two GPUs": ("modules", "a model with one layer elsewhere"),
}


def _is_wrong_with_one_gpu(title: str, answers: Mapping[str, Cases[Answer]]) -> bool:
    """True if a question about two GPUs is answered wrongly with one GPU and the CPU, too.

    `answers` are those with one GPU, by group.
    """
    if title not in WITH_ONE_GPU:
        return False
    group, alike = WITH_ONE_GPU[title]
    return alike in answers[group] and answers[group][alike].value is True


def _answers_for_each_alone(title: str, found: Cases[Answer]) -> bool:
    """True if a wrong True comes of two things that were each searched, and never compared.

    `title` names the question; `found` are the answers to all of its group.
    """
    inside = TOGETHER.get(title)
    if inside is None or inside not in found or not found[title].value:
        return False
    return found[inside].value is False


def _expect_same_answer(title: str, answer: Answer, right: Answer, mistake: str | None) -> None:
    """Raises Failed for an answer other than the reference's, and for changed settings of torch.

    `title` names the question. `mistake` is what a wrong answer shows; another wrong True shows a
    search that ended early.
    """
    if answer.kind != "bool":
        happened = f"{title}: it returned {with_article(answer.kind)}"
        expected = f"{right.value}, a bool"
        raise Failed(happened, expected, at=("return",))
    if answer.value != right.value:
        at: tuple[str, ...] = ()
        if mistake is None and answer.value:
            mistake = "loop-left-early"
            at = ("continue",)
        at = (*at, *_patterns_of_container(title))
        if title == BETWEEN:
            at = ("return",)
        elif title == EMPTY:
            at = ("numel(", "nelement(", ".shape", "len(")
        happened = f"{title}: it returned {answer.value}"
        raise Failed(happened, str(right.value), None, mistake, at)
    expect_settings_kept(answer.settings, title)


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
    "Tensors in lists, tuples, named tuples and dicts count, at any depth; "
    "strings and numbers do not.",
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
    # In a list or a model alone, it is that these are not searched.
    {"one on each GPU": "device-index-dropped"},
)
_declare_check(
    "no_tensors", 0.5, "is_true_of_nothing", "If there is no tensor at all, the answer is True."
)
