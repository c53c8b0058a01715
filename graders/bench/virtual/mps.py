"""Which device does code choose on a Mac, or on a machine with none? Availability is made up, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graders.bench.patching import Patch, patch
from graders.errors import SelectionOnly

MPS = torch.device("mps")


def _names_mps(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "mps"
    return isinstance(value, str) and value.partition(":")[0] == "mps"


def _refuse(args: Any, kwargs: Any) -> None:
    # Only where a device may stand: an einsum's text or a dict's key may say "mps" and mean something else.
    if _names_mps(kwargs.get("device")) or any(isinstance(a, torch.device) and a.type == "mps" for a in args):
        raise SelectionOnly()


class _Functions(TorchFunctionMode):
    """Calls as the student writes them: `torch.tensor` never gets as far as an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is torch.device:  # naming a device is not using it
            return func(*args, **named)
        if getattr(func, "__name__", "") == "to" and any(map(_names_mps, args)):
            raise SelectionOnly()
        _refuse(args, named)
        return func(*args, **named)


class _Operators(TorchDispatchMode):
    """Operators, where a default device was set by code the mode above does not see."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler (a second) to tell it to keep away

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse(args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _constant(value: Any) -> Any:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return value

    return answer


def _availability(cuda_built: bool, mps_built: bool, mps: bool, accelerator: Any) -> Iterator[Patch]:
    """What a machine without CUDA answers to the questions `select_device` may ask."""
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", False),
        (torch.cuda, "device_count", 0),
        (torch.backends.cuda, "is_built", cuda_built),
        (torch.backends.mps, "is_available", mps),
        (torch.backends.mps, "is_built", mps_built),
        (torch.mps, "device_count", int(mps)),
        (torch.accelerator, "is_available", mps),
        (torch.accelerator, "device_count", int(mps)),
    ]
    if hasattr(torch.mps, "is_available"):
        answers.append((torch.mps, "is_available", mps))
    for owner, name, answer in answers:
        yield owner, name, _constant(answer)
    if not cuda_built:
        yield torch.version, "cuda", None

    def current_accelerator(check_available: bool = False) -> Any:
        return accelerator if mps or not check_available else None

    yield torch.accelerator, "current_accelerator", current_accelerator


@contextlib.contextmanager
def virtual_mps() -> Iterator[torch.device]:
    """A Mac's answers to "which device is there?" for the length of a `with` block: MPS, and no CUDA."""
    with contextlib.ExitStack() as undo:
        patch(_availability(cuda_built=False, mps_built=True, mps=True, accelerator=MPS), undo)
        undo.enter_context(_Operators())  # type: ignore[no-untyped-call]
        undo.enter_context(_Functions())
        yield MPS


@contextlib.contextmanager
def no_accelerator(built: bool = False) -> Iterator[torch.device]:
    """The answers of a machine with neither CUDA nor MPS, also on one that has them.

    With `built`, torch has been built for both and only the devices are missing, as after `pip install torch` on a
    machine without a GPU: `is_built` is True there, and so is `torch.accelerator.current_accelerator()`.
    """
    accelerator = torch.device("cuda") if built else None
    with contextlib.ExitStack() as undo:
        patch(_availability(cuda_built=built, mps_built=built, mps=False, accelerator=accelerator), undo)
        yield torch.device("cpu")
