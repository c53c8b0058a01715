"""What is selected? On four machines, for every preference, written as a string and as a device."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

from graders.bench.patching import Patch, imported_into, patch
from graders.day8.checking_device.functions import select
from graders.probes.calling import Call, StudentRaised
from graders.probes.late import torch
from graders.probes.loading import load
from graders.probes.scenarios import described, tried
from graders.probes.settings import settled

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
        undo.enter_context(imported_into(getattr(call.function, "__globals__", {})))
        _begin_anew(call)
        return found | {"best unbuilt": tried(_answer, call)}


def _built_for_nothing() -> Iterator[Patch]:
    yield torch.version, "cuda", None
    for owner in (torch.backends.cuda, torch.backends.mps):
        yield owner, "is_built", lambda: False
    yield torch.accelerator, "current_accelerator", lambda check_available=False: None
