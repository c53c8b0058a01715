"""Is the model where it should be and wrapped as it should be, and are the gradients the mean?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graders.checks.common import runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.multiple_gpus.functions import average, inside, parallel


def _about_cuda(scenario: str, message: str) -> str | None:
    """A complaint about CUDA where no GPU is, and none was asked for."""
    about = "cuda" in message.lower() or "nvidia" in message.lower()
    return "hard-coded-cuda" if scenario == "no_gpu" and about else None


runs(parallel, diagnose=_about_cuda)
WORDS = {"two_gpus": "two GPUs", "one_gpu": "one GPU", "no_gpu": "no GPU"}


def _cases(seen: Seen, wanted: Seen) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for machine, words in WORDS.items():
        for device, right in wanted[machine].facts.items():
            yield f"with {words} and device={device}", seen[machine].facts[device], right


@parallel.check(points=0.25)
def moves_the_model(seen: Seen, wanted: Seen) -> None:
    """It returns a model whose parameters and buffers are on the device."""
    for case, facts, right in _cases(seen, wanted):
        if not facts["is_module"]:
            raise Failed(f"{case} it returned {called(facts['class'])}", "a model")
        if facts["devices"] != right["devices"] and facts["wraps"] == right["wraps"]:  # a wrapper moves it too
            raise Failed(
                f"{case} its parameters are on {', '.join(facts['devices'])}",
                ", ".join(right["devices"]),
                misconception="model-not-moved" if facts["devices"] == ["cpu"] else "hard-coded-cuda",
            )


@parallel.check(points=0.5)
def wraps_for_several_gpus(seen: Seen, wanted: Seen) -> None:
    """It is wrapped in `nn.DataParallel` over all GPUs exactly when the device is CUDA and there are several."""
    for case, facts, right in _cases(seen, wanted):
        if facts["wraps"] != right["wraps"]:
            times = {0: f"{called(facts['class'])}, not wrapped", 1: "a DataParallel"}
            shown = times.get(facts["wraps"], "a DataParallel in a DataParallel")
            raise Failed(f"{case} it returned {shown}", "nn.DataParallel" if right["wraps"] else "the model itself")
        if facts["gpus"] != right["gpus"]:
            raise Failed(f"{case} it uses the GPUs {facts['gpus']}", f"all of them: {right['gpus']}")


@parallel.check(points=0.25)
def keeps_the_model_itself(seen: Seen, wanted: Seen) -> None:
    """The model that was passed in is moved and wrapped, not a copy of it."""
    for case, facts, _ in _cases(seen, wanted):
        if not facts["same"] or not facts["same_parameters"]:
            raise Failed(
                f"{case} the model in the result is not the one passed in",
                "the same object, with the same parameters",
                misconception="copied-before-wrapping",
            )


runs(inside)


@inside.check(points=0.25)
def finds_the_model_inside(seen: Seen, wanted: Seen) -> None:
    """It takes the model out of `DataParallel` and `DistributedDataParallel`."""
    for name in wanted["wrappers"].facts:
        facts = seen["wrappers"].facts[name]
        if not facts["same"]:
            copied = facts["class"] == facts["inside"]
            shown = f"another {facts['class']}" if copied else called(facts["class"])
            raise Failed(f"for {name} it returned {shown}", "the very model that was wrapped")
        if not facts["training"]:
            raise Failed(f"the model inside {name} was switched to evaluation mode", "the model as it is")


@inside.check(points=0.25)
def leaves_other_models_whole(seen: Seen, wanted: Seen) -> None:
    """A model that is not wrapped comes back as it is."""
    for name in wanted["plain_models"].facts:
        facts = seen["plain_models"].facts[name]
        if facts["same"] and not facts["training"]:
            raise Failed(f"{name} was switched to evaluation mode", "the model as it is")
        if not facts["same"]:
            part = "`module`" in name
            raise Failed(
                f"for {name} it returned {called(facts['class'])}",
                "the model itself",
                misconception="wrapper-guessed-by-attribute" if part else None,
            )


runs(average)
RANKS = ("rank 0", "rank 1")


@average.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    facts, right = seen["two_processes"].facts, wanted["two_processes"].facts
    answers = [facts[rank]["some"]["gradients"] for rank in RANKS]
    wished = right["rank 0"]["some"]["gradients"]
    good = [_equal(answer, wished) for answer in answers]
    if all(good):
        return
    doubled = [None if g is None else [2 * value for value in g] for g in wished]
    number = next(n for n in range(len(wished)) if not all(_equal(a[: n + 1], wished[: n + 1]) for a in answers))
    found = " and ".join(f"{_values(answer, number)} in {rank}" for rank, answer in zip(RANKS, answers, strict=True))
    shown = f"gradient {number + 1} of {len(wished)} is {found}"
    misconception = None
    if any(good) and not any(_equal(answer, doubled) for answer in answers):  # one has the mean, one its own still
        misconception = "reduced-to-one-rank"
    elif _equal(answers[0], doubled) and _equal(answers[1], doubled):
        misconception = "gradients-summed-not-averaged"
    raise Failed(shown, f"{_values(wished, number)} in both", misconception=misconception)


def _values(gradients: list[Any], number: int = 0) -> str:
    found = gradients[number]
    return "None" if found is None else str([round(value, 3) for value in found[:3]])


def _equal(found: list[Any], right: list[Any]) -> bool:
    """Equal gradients; whether the missing ones are still missing is asked by another check."""
    return len(found) == len(right) and all(b is None or _close(a, b) for a, b in zip(found, right, strict=True))


def _close(found: list[float] | None, right: list[float]) -> bool:
    # `<=`, which no NaN fulfils
    return (
        found is not None
        and len(found) == len(right)
        and all(abs(a - b) <= 1e-4 for a, b in zip(found, right, strict=True))
    )


@average.check(points=0.25)
def leaves_the_rest_alone(seen: Seen, wanted: Seen) -> None:
    """Parameters without a gradient still have none, no weight has changed, and the group is still there."""
    for rank in RANKS:
        facts, right = (every["two_processes"].facts[rank]["some"] for every in (seen, wanted))
        if not facts["weights_kept"]:
            raise Failed(f"the weights changed in {rank}", "only gradients change; the optimizer does the rest")
        if not facts["group_kept"]:
            raise Failed(f"in {rank} the group of processes was gone afterwards", "the group, for the next step")
        if any(a is not None and b is None for a, b in zip(facts["gradients"], right["gradients"], strict=True)):
            raise Failed(f"in {rank} a parameter without a gradient has one now", "None, as before")


@average.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients."""
    for rank in RANKS:
        found, right = (every["two_processes"].facts[rank]["alone"]["gradients"] for every in (seen, wanted))
        if not _equal(found, right):
            raise Failed(
                f"in a group of one the first gradient became {_values(found)}",
                f"{_values(right)}: divided by dist.get_world_size(), which is 1",
            )
