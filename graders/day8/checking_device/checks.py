"""Is it the right device? The best one, the preferred one, or torch's own error, each as a torch.device."""

from __future__ import annotations

from typing import Any

from graders.checks.common import runs
from graders.checks.scenarios import said
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.checking_device.functions import select

IN_WORDS = {"one_gpu": "one GPU", "two_gpus": "two GPUs", "mac": "an Apple GPU", "laptop": "no GPU"}

runs(select, points=1)


def _same(answer: str, wanted: str) -> bool:
    """`cuda` and `cuda:0` are the same best device."""
    return answer.removesuffix(":0") == wanted.removesuffix(":0")


@select.check(points=1)
def returns_a_device(seen: Seen, wanted: Seen) -> None:
    """It returns a `torch.device`, not a string, and changes no setting of torch."""
    for machine in IN_WORDS:
        for key in wanted[machine].facts:
            answer = seen[machine].facts[key]
            if "raised" in answer or key in ("nonsense", "best unbuilt"):
                continue
            asked = f" for {key.replace('prefer ', 'prefer=')}" if key.startswith("prefer ") else ""
            if not answer["is_device"]:
                raise Failed(
                    f"on a machine with {IN_WORDS[machine]} it returned {_told(answer)}{asked}",
                    "a torch.device",
                    misconception="string-for-device" if answer["class"] == "str" else None,
                )
            if answer["settings"]:
                raise Failed(f"it changed {answer['settings'][0]} of torch", "an answer, and nothing changed")


def _told(answer: dict[str, Any]) -> str:
    return f"{answer['text']!r}, a str" if answer["class"] == "str" else called(answer["class"])


def _best(seen: Seen, machine: str, key: str = "best") -> str:
    return str(seen[machine].facts[key].get("text", "an error"))


def _best_on(machine: str, seen: Seen, wanted: Seen) -> None:
    answer, right = _best(seen, machine), _best(wanted, machine)
    if not _same(answer, right):
        happened = f"with {IN_WORDS[machine]} it chose {answer}"
        raise Failed(happened, right, misconception=_why_not_the_best(machine, seen))


def _why_not_the_best(machine: str, seen: Seen) -> str | None:
    """What a device that is not the best one gives away, where none was preferred."""
    if all(_best(seen, each) == "cpu" for each in IN_WORDS):
        return "never-the-gpu"
    if machine == "laptop" and _best(seen, machine, "best unbuilt") == "cpu":
        return "built-is-not-available"
    return "hard-coded-cuda" if machine in ("mac", "laptop") and _best(seen, machine).startswith("cuda") else None


@select.check(points=1)
def takes_the_gpu(seen: Seen, wanted: Seen) -> None:
    """Where there is a CUDA GPU, it is chosen."""
    _best_on("one_gpu", seen, wanted)
    _best_on("two_gpus", seen, wanted)
    both, right = _best(seen, "one_gpu", "best of both"), _best(wanted, "one_gpu", "best of both")
    if not _same(both, right):
        raise Failed(f"asked where torch says there are CUDA and MPS, it chose {both}", "CUDA, else MPS, else CPU")


@select.check(points=1)
def takes_apples_gpu(seen: Seen, wanted: Seen) -> None:
    """On a Mac without CUDA, MPS is chosen."""
    _best_on("mac", seen, wanted)


@select.check(points=1)
def falls_back_to_the_cpu(seen: Seen, wanted: Seen) -> None:
    """Where there is no GPU the CPU is chosen, even if torch was built with CUDA."""
    _best_on("laptop", seen, wanted)


def _preferences(seen: Seen, wanted: Seen, present: bool) -> None:
    for machine in IN_WORDS:
        for key, right in wanted[machine].facts.items():
            if not key.startswith("prefer "):
                continue
            asked = key.removeprefix("prefer ").removeprefix("device ")
            there = asked == "None" or _same(right["text"], asked)
            if there is not present:
                continue
            expected = right["text"] if present else f"{right['text']}, the best one there"
            answer = seen[machine].facts[key]
            shown = f"torch.device({asked!r})" if "device " in key else repr(None if asked == "None" else asked)
            asking = f"with {IN_WORDS[machine]}, prefer={shown}"
            if "raised" in answer:
                raise Failed(f"{asking} raised {said(answer['raised'])}", expected, answer["raised"]["line"])
            if _fits(answer, right, asked, present):
                continue
            mistaken = asked == "None" or (not present and _same(answer["text"], _best(seen, machine)))
            why = _why_not_the_best(machine, seen) if mistaken else _why(machine, asked, answer["text"], present)
            raise Failed(f"{asking} gave {answer['text']}", expected, None, why)


def _fits(answer: dict[str, Any], right: dict[str, Any], asked: str, present: bool) -> bool:
    if present and asked.endswith(":1"):
        return bool(answer["text"] == right["text"])
    return _same(answer["text"], right["text"])


def _why(machine: str, asked: str, answer: str, present: bool) -> str | None:
    if present and asked.endswith(":1") and _same(answer, asked.partition(":")[0]):
        return "device-index-dropped"
    # On machines with other GPUs it knew what is absent. Here torch was built for it.
    if not present and machine == "laptop" and _same(answer, asked):
        return "built-is-not-available"
    return None


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
    for machine in IN_WORDS:
        answer, right = seen[machine].facts["nonsense"], wanted[machine].facts["nonsense"]["raised"]
        if "raised" not in answer:
            raise Failed(f'prefer="toaster" gave {answer["text"]}', f"torch's own {right['type']}")
        if answer["raised"]["type"] != right["type"]:
            happened = f'prefer="toaster" raised {said(answer["raised"])}'
            raise Failed(happened, f"torch's own {right['type']}", answer["raised"]["line"])
