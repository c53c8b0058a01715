"""01: which device? Selected on machines with one GPU, two GPUs, a Mac's, and none."""

from __future__ import annotations

from typing import Any

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.probes.calling import Call, StudentRaised
from graders.probes.late import torch

exercise = Exercise(
    "01_checking_device",
    "Which device does this machine have?",
    points=8,
    reading=("tensor_attributes.html", "notes/cuda.html", "notes/mps.html"),
)
select = exercise.function(
    "select_device",
    "Ask torch what this machine has: `torch.cuda.is_available()` and `torch.backends.mps.is_available()`.",
    "`torch.device(prefer)` understands a string as well as a device; its `.type` and `.index` say what was asked for.",
    '"cuda:1" is there only if `torch.cuda.device_count()` is at least 2.',
)
MACHINES = {"one_gpu": "one gpu", "two_gpus": "two gpus", "mac": "mac", "laptop": "laptop"}
PREFERENCES = (None, "cpu", "cuda", "cuda:0", "cuda:1", "mps")


def _describe(value: Any) -> dict[str, Any]:
    return {"class": type(value).__name__, "text": str(value), "is_device": isinstance(value, torch.device)}


def _answers(call: Call) -> dict[str, Any]:
    """What is selected for every preference, as a string and as a device; devices are written as type and index."""
    found: dict[str, Any] = {"best": _describe(call())}
    for prefer in PREFERENCES:
        found[f"prefer {prefer}"] = _describe(call(prefer))
        if prefer is not None:
            found[f"prefer device {prefer}"] = _describe(call(torch.device(prefer)))
    try:
        found["nonsense"] = _describe(call("toaster"))
    except StudentRaised as error:
        found["nonsense"] = {"raised": error.evidence.type, "text": error.evidence.message[:120]}
    return found


for _name, _machine in MACHINES.items():

    def _look(call: Call) -> dict[str, Any]:
        return _answers(call)

    _look.__name__ = _name
    select.probe(machine=_machine)(_look)

runs(select, points=1)


def _same(answer: str, wanted: str) -> bool:
    """`cuda` and `cuda:0` are the same best device."""
    return answer.removesuffix(":0") == wanted.removesuffix(":0")


@select.check(points=1)
def returns_a_device(seen: Seen, wanted: Seen) -> None:
    """It returns a `torch.device`, not a string."""
    for machine, observation in seen.items():
        best = observation.facts["best"]
        if not best["is_device"]:
            raise Failed(
                f"on a machine with {_in_words(machine)} it returned {best['text']!r}, a {best['class']}",
                "a torch.device",
                misconception="string-for-device" if best["class"] == "str" else None,
            )


def _in_words(machine: str) -> str:
    return {"one_gpu": "one GPU", "two_gpus": "two GPUs", "mac": "an Apple GPU", "laptop": "no GPU"}[machine]


def _best_on(machine: str, seen: Seen, wanted: Seen, misconception: str | None) -> None:
    answer, right = seen[machine].facts["best"]["text"], wanted[machine].facts["best"]["text"]
    if not _same(answer, right):
        raise Failed(f"with {_in_words(machine)} it chose {answer}", right, misconception=misconception)


@select.check(points=1)
def takes_the_gpu(seen: Seen, wanted: Seen) -> None:
    """Where there is a CUDA GPU, it is chosen."""
    _best_on("one_gpu", seen, wanted, None)
    _best_on("two_gpus", seen, wanted, None)


@select.check(points=1)
def takes_apples_gpu(seen: Seen, wanted: Seen) -> None:
    """On a Mac without CUDA, MPS is chosen."""
    answer = seen["mac"].facts["best"]["text"]
    _best_on("mac", seen, wanted, "hard-coded-cuda" if answer.startswith("cuda") else None)


@select.check(points=1)
def falls_back_to_the_cpu(seen: Seen, wanted: Seen) -> None:
    """Where there is no GPU the CPU is chosen, even if torch was built with CUDA."""
    answer = seen["laptop"].facts["best"]["text"]
    _best_on("laptop", seen, wanted, None if answer == "cpu" else "built-is-not-available")


def _preferences(seen: Seen, wanted: Seen, present: bool) -> None:
    for machine, observation in wanted.items():
        best = observation.facts["best"]["text"]
        for key, right in observation.facts.items():
            if not key.startswith("prefer "):
                continue
            asked = key.removeprefix("prefer ").removeprefix("device ")
            there = asked == "None" or _same(right["text"], asked)
            answer = seen[machine].facts[key]["text"]
            exact = answer == right["text"] if there and asked.endswith(":1") else _same(answer, right["text"])
            if there is present and not exact:
                raise Failed(
                    f"with {_in_words(machine)}, prefer={asked!r} gave {answer}",
                    f"{right['text']}" if present else f"{right['text']}, the best one there ({best})",
                )


@select.check(points=1)
def keeps_what_is_preferred(seen: Seen, wanted: Seen) -> None:
    """A preferred device that this machine has is returned as it is, with its index."""
    _preferences(seen, wanted, present=True)


@select.check(points=1)
def replaces_what_is_absent(seen: Seen, wanted: Seen) -> None:
    """A preferred device that this machine lacks is replaced by the best one, without an error."""
    _preferences(seen, wanted, present=False)


@select.check(points=1)
def lets_torch_refuse_nonsense(seen: Seen, wanted: Seen) -> None:
    """A name that is no device at all raises torch's own error."""
    for machine, observation in seen.items():
        answer = observation.facts["nonsense"]
        if answer.get("raised") != wanted[machine].facts["nonsense"]["raised"]:
            shown = answer.get("raised") or f"{answer['text']} was returned"
            raise Failed(f'prefer="toaster" gave: {shown}', "torch's own RuntimeError")
