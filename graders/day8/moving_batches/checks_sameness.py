"""Is the golden rule told truly? For tensors, structures, modules, two GPUs, and where there is nothing."""

from __future__ import annotations

from graders.checks.scenarios import cases, runs_in_all, said
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.moving_batches.functions import same

TENSORS = ("one tensor", "two on the CPU", "two on the device", "one here, one there", "the last one elsewhere")
runs_in_all(same, points=0.5, scenarios=TENSORS)


def _answered(seen: Seen, wanted: Seen, group: str, keys: dict[str, str] | None = None) -> None:
    """Every answer is the reference's; `keys` says which mistake a wrong one gives away."""
    found = cases(seen)
    for name, right in cases(wanted).items():
        if right["group"] != group:
            continue
        answer = found[name]
        if "raised" in answer:
            raised = answer["raised"]
            raise Failed(f"{name} raised {said(raised)}", str(right["value"]), raised["line"])
        if answer["class"] != "bool":
            raise Failed(f"{name} gave {called(answer['class'])}", f"{right['value']}, a bool")
        if answer["value"] != right["value"]:
            key = (keys or {}).get(name)
            raise Failed(f"{name}: it answered {answer['value']}", str(right["value"]), None, key)
        if answer["settings"]:
            raise Failed(f"{name}: it changed {answer['settings'][0]} of torch", "an answer, and nothing changed")


@same.check(points=0.5)
def compares_tensors(seen: Seen, wanted: Seen) -> None:
    """It answers True or False: are all these tensors on one device?"""
    _answered(seen, wanted, "tensors", {"the last one elsewhere": "first-tensor-only"})


@same.check(points=0.5, needs=("runs", "compares_tensors"))
def searches_structures(seen: Seen, wanted: Seen) -> None:
    """Tensors in lists, tuples, named tuples and dicts count, at any depth; strings and numbers do not."""
    _answered(seen, wanted, "structures")


@same.check(points=1, needs=("runs", "compares_tensors"))
def searches_modules(seen: Seen, wanted: Seen) -> None:
    """All parameters and all buffers of a module count."""
    keys = {
        "a model with one layer elsewhere": "first-tensor-only",
        "a model with a buffer elsewhere": "buffers-forgotten",
        "a model with an unsaved buffer elsewhere": "state-dict-is-not-all",
    }
    _answered(seen, wanted, "modules", keys)


@same.check(points=0.5, needs=("runs", "compares_tensors"))
def tells_gpus_apart(seen: Seen, wanted: Seen) -> None:
    """cuda:0 and cuda:1 are two devices, cuda and cuda:0 are one."""
    apart = ("one on each GPU", "one on each GPU, in a list", "a model over two GPUs")
    _answered(seen, wanted, "gpus", dict.fromkeys(apart, "device-index-dropped"))


@same.check(points=0.5, needs=("runs", "compares_tensors"))
def is_true_of_nothing(seen: Seen, wanted: Seen) -> None:
    """Where there is no tensor at all, the answer is True."""
    _answered(seen, wanted, "no_tensors")
