"""Machines that code may find itself on: a virtual Mac, and one without an accelerator."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from virtual_cuda.errors import SelectionOnly
from virtual_cuda.internals import find_internal, require_internal
from virtual_cuda.patching import Patch, patch
from virtual_cuda.torch_api.imports import few_imports
from virtual_cuda.trees import leaves_of, map_leaves

_make_wrapper: Final = find_internal("torch.Tensor._make_wrapper_subclass")
MPS: Final = torch.device("mps")


def _names_mps(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "mps"
    return isinstance(value, str) and value.partition(":")[0] == "mps"


def _asked_for(args: Any, kwargs: Any) -> bool:
    # Only where a device may stand: an einsum's text or a dict's key may say "mps" and mean
    # something else.
    return _names_mps(kwargs.get("device")) or any(
        isinstance(a, torch.device) and a.type == "mps" for a in args
    )


class MpsTensor(torch.Tensor):
    """A tensor of a virtual Mac's GPU, held by the host.

    It can be made, computed with and read, but not trained.
    """

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> MpsTensor:
        if held.requires_grad:
            raise SelectionOnly("mps")
        made: MpsTensor = _make_wrapper(cls, held.shape, dtype=held.dtype, device=MPS)
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{repr(self.held)[:-1]}, device='mps:0')"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator, computed by the host.

    Tensors of the Mac's GPU are replaced by those they hold, and the result is there again, unless
    it is sent back. Raises SelectionOnly where gradients are wanted.
    """
    there = _asked_for(args, kwargs)
    if not there:
        if not any(isinstance(each, MpsTensor) for each in leaves_of((args, kwargs))):
            return func(*args, **kwargs)
        there = "device" not in kwargs
    args, kwargs = map_leaves(_on_host, (args, kwargs))
    found = func(*args, **kwargs)
    return (
        map_leaves(lambda each: MpsTensor(each) if isinstance(each, torch.Tensor) else each, found)
        if there
        else found
    )


def _on_host(each: Any) -> Any:
    if isinstance(each, MpsTensor):
        return each.held
    return torch.device("cpu") if isinstance(each, torch.device) and each.type == "mps" else each


class _Functions(TorchFunctionMode):
    """Sees calls as the student writes them.

    `torch.tensor` never gets as far as an operator.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, by the host if it names the Mac's GPU.

        Raises SelectionOnly where gradients are wanted.
        """
        named = kwargs or {}
        if func is torch.device:  # naming a device is not using it
            return func(*args, **named)
        moved = getattr(func, "__name__", "") == "to" and any(map(_names_mps, args))
        if not moved and not _asked_for(args, named):
            return func(*args, **named)
        if named.get("requires_grad") or any(isinstance(each, torch.nn.Parameter) for each in args):
            raise SelectionOnly("mps")
        spelled = tuple(MPS if moved and _names_mps(each) else each for each in args)
        return _computed(func, spelled, named | ({"device": MPS} if "device" in named else {}))


@functools.cache
def _operators_mode() -> Any:
    """The class of a mode that sees operators.

    It is for a default device that was set by code which `_Functions` does not see.
    """
    base: Any = require_internal("torch.utils._python_dispatch.TorchDispatchMode", "a Mac's GPU")

    class Operators(base):  # type: ignore[misc]
        """Has every operator computed by the host."""

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # torch would import its compiler (a second) to tell it to keep away

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return _computed(func, args, kwargs or {})

    return Operators


def _availability(
    cuda_built: bool, mps_built: bool, mps: bool, accelerator: Any
) -> Iterator[Patch]:
    """The patches for what a machine without CUDA answers when it is asked for a device."""
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
        yield owner, name, lambda *args, answer=answer, **kwargs: answer
    if not cuda_built:
        yield torch.version, "cuda", None

    yield (
        torch.accelerator,
        "current_accelerator",
        lambda check_available=False: accelerator if mps or not check_available else None,
    )


@contextlib.contextmanager
def virtual_mps() -> Iterator[torch.device]:
    """Give a Mac's answers to "which device is there?" for the length of a `with` block.

    There is MPS, and no CUDA. Gives the device "mps".
    """
    with few_imports(), contextlib.ExitStack() as undo:
        patch(_availability(cuda_built=False, mps_built=True, mps=True, accelerator=MPS), undo)
        undo.enter_context(_operators_mode()())
        undo.enter_context(_Functions())
        yield MPS


@contextlib.contextmanager
def no_accelerator(built: bool = False) -> Iterator[torch.device]:
    """Give the answers of a machine with neither CUDA nor MPS, for the length of a `with` block.

    That is so on a machine that has them, too. Gives the device "cpu". With `built`, torch has been
    built for both and only the devices are missing, as after `pip install torch` on a machine
    without a GPU: `is_built` is True there, and `torch.accelerator.current_accelerator()` is
    "cuda".
    """
    accelerator = torch.device("cuda") if built else None
    with few_imports(), contextlib.ExitStack() as undo:
        patch(
            _availability(cuda_built=built, mps_built=built, mps=False, accelerator=accelerator),
            undo,
        )
        yield torch.device("cpu")
