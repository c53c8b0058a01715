"""01: choosing the device."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

from virtual_cuda import Patch, patch, patch_imported_names

from gpudojo.grading.call import Call, StudentRaised, described, settled, torch, tried
from gpudojo.grading.judge import runs, said
from gpudojo.grading.load import load
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "01_checking_device",
    "Which device does this machine have?",
    points=8,
    reading=("tensor_attributes.html", "notes/cuda.html", "notes/mps.html"),
)
select = exercise.function(
    "select_device",
    "Ask torch what this machine has: `torch.cuda.is_available()` and `torch.backends.mps.is_available()`.",
    "`torch.device(prefer)` takes a string or a device, and refuses nonsense; `.type` and `.index` say what was asked.",
    '"cuda:1" is there only if `torch.cuda.device_count()` is at least 2. For what is not there, return the best one.',
    '`torch.device("cuda")` makes a device of a string. Return that, and leave the settings of torch as they are.',
)
select.when("built-is-not-available", hint=1)
select.when("takes_the_gpu", hint=1, at=('"cuda"', "is_available(", "return"))
select.when("takes_apples_gpu", "falls_back_to_the_cpu", hint=1, at=("is_available(", "return"))
select.when("keeps_what_is_preferred", hint=2, at=("last return",))
select.when("device-index-dropped", hint=2, at=("last return",))
select.when("replaces_what_is_absent", hint=3, at=("last return",))
select.when("lets_torch_refuse_nonsense", hint=2, at=("except", "first return"))
select.when("returns_a_device", hint=4, at=("set_default_device(", "last return"))
select.when("string-for-device", hint=4)


PREFERENCES = ("cpu", "cuda", "cuda:0", "cuda:1", "mps")
NONSENSE = "toaster"


def _answer(call: Call, *prefer: Any) -> dict[str, Any]:
    value, changed = settled(call, *prefer)
    is_device = isinstance(value, torch.device)
    return {"class": type(value).__name__, "text": str(value), "is_device": is_device, "settings": changed}


def _answers(call: Call) -> dict[str, Any]:
    _begin_anew(call)
    found = {"best": _answer(call), "prefer None": _answer_to_none(call)}
    for prefer in PREFERENCES:
        found[f"prefer {prefer}"] = tried(_answer, call, prefer)
        found[f"prefer device {prefer}"] = tried(_answer, call, torch.device(prefer))
    found["nonsense"] = tried(_answer, call, NONSENSE)
    return found


def _answer_to_none(call: Call) -> dict[str, Any]:
    """A function that cannot be called with a preference at all does not run; one that chokes on None is only wrong."""
    try:
        return _answer(call, None)
    except StudentRaised as error:
        if error.evidence.type == "TypeError" and error.evidence.line is None:
            raise
        return {"raised": described(error)}


def _begin_anew(call: Call) -> None:
    """A file that asked once, when it was run, asked on another machine: run it again on this one."""
    if _remembers(call.function):
        again = load(call.path).names.get(select.name)
        if callable(again):
            call.function = again


def _remembers(function: Any) -> bool:
    """Whether a function, or one it calls, may use an answer from earlier: a constant, a default, a cache."""
    waiting, seen = [function], set()
    while waiting:
        found = waiting.pop()
        if isinstance(found, (types.ModuleType, types.BuiltinFunctionType, type)) or id(found) in seen:
            continue
        if not isinstance(found, types.FunctionType) or any(value is not None for value in found.__defaults__ or ()):
            return True
        seen.add(id(found))
        if found.__module__ == function.__module__:  # what others' functions remember is theirs
            waiting += [cell.cell_contents for cell in found.__closure__ or ()]
            waiting += [found.__globals__[name] for name in _names_in(found.__code__) if name in found.__globals__]
    return False


def _names_in(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


@select.probe(machine="one gpu")
def one_gpu(call: Call) -> dict[str, Any]:
    found = _answers(call)
    with contextlib.ExitStack() as undo:
        patch(_apples_gpu_as_well(), undo)
        _begin_anew(call)
        return found | {"best of both": tried(_answer, call)}


def _apples_gpu_as_well() -> Iterator[Patch]:
    """No machine has both, but the order in which a student asks is part of the contract."""
    for owner in (torch.backends.mps, torch.mps):
        if hasattr(owner, "is_available"):
            yield owner, "is_available", lambda: True
    yield torch.mps, "device_count", lambda: 1


@select.probe(machine="two gpus")
def two_gpus(call: Call) -> dict[str, Any]:
    return _answers(call)


@select.probe(machine="mac")
def mac(call: Call) -> dict[str, Any]:
    return _answers(call)


@select.probe(machine="laptop")
def laptop(call: Call) -> dict[str, Any]:
    with contextlib.ExitStack() as undo:
        patch([(torch.version, "cuda", "12.8")], undo)  # what this torch was built with, and the machine has not
        found = _answers(call)
        # If this makes a wrong answer right, it was an answer to what torch was built for.
        patch(_built_for_nothing(), undo)
        undo.enter_context(patch_imported_names(getattr(call.function, "__globals__", {})))
        _begin_anew(call)
        return found | {"best unbuilt": tried(_answer, call)}


def _built_for_nothing() -> Iterator[Patch]:
    yield torch.version, "cuda", None
    for owner in (torch.backends.cuda, torch.backends.mps):
        yield owner, "is_built", lambda: False
    yield torch.accelerator, "current_accelerator", lambda check_available=False: None


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
