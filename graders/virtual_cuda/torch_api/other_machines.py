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
    """True for "mps", "mps:0" or the device."""
    if isinstance(value, torch.device):
        return value.type == "mps"
    if not isinstance(value, str):
        return False
    return value.partition(":")[0] == "mps"


def _ask_for_mps(args: Any, kwargs: Any) -> bool:
    """True if the arguments of a call name the Mac's GPU.

    A text counts only as `device`: an einsum's may say "mps" and mean something else.
    """
    if _names_mps(kwargs.get("device")):
        return True
    return any(isinstance(value, torch.device) and value.type == "mps" for value in args)


class MpsTensor(torch.Tensor):
    """A tensor of a virtual Mac's GPU, held by the host.

    It can be made, computed with and read, but not trained.
    """

    on_host: torch.Tensor  # with its values

    @staticmethod
    def __new__(cls, on_host: torch.Tensor) -> MpsTensor:
        """Make a tensor with the values of a host tensor.

        Raises SelectionOnly for one that requires gradients.
        """
        if on_host.requires_grad:
            raise SelectionOnly("mps")
        tensor: MpsTensor = _make_wrapper(cls, on_host.shape, dtype=on_host.dtype, device=MPS)
        tensor.on_host = on_host
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        without_parenthesis = repr(self.on_host)[:-1]
        return f"{without_parenthesis}, device='mps:0')"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run_on_host(func, args, kwargs or {})


def _run_on_host(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator, computed by the host.

    Tensors of the Mac's GPU are replaced by those they hold, and the result is there again, unless
    it is sent back. Raises SelectionOnly where gradients are wanted, and what the operator raises.
    """
    asks_for_mps = _ask_for_mps(args, kwargs)
    has_mps_tensor = any(isinstance(leaf, MpsTensor) for leaf in leaves_of((args, kwargs)))
    if not asks_for_mps and not has_mps_tensor:
        return func(*args, **kwargs)
    is_sent_back = not asks_for_mps and "device" in kwargs
    args, kwargs = map_leaves(_replace_by_host, (args, kwargs))
    result = func(*args, **kwargs)
    if is_sent_back:
        return result
    return map_leaves(_replace_by_mps, result)


def _replace_by_host(value: Any) -> Any:
    """The host's tensor or device in the place of the Mac's; all else as it is."""
    if isinstance(value, MpsTensor):
        return value.on_host
    if isinstance(value, torch.device) and value.type == "mps":
        return torch.device("cpu")
    return value


def _replace_by_mps(value: Any) -> Any:
    """A tensor of the Mac's GPU in the place of one of the host; all else as it is.

    Raises SelectionOnly for a tensor that requires gradients.
    """
    if isinstance(value, torch.Tensor):
        return MpsTensor(value)
    return value


class _FunctionsMode(TorchFunctionMode):
    """Sees calls as the student writes them.

    `torch.tensor` never gets as far as an operator.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, by the host if it names the Mac's GPU; gives its result.

        Raises SelectionOnly where gradients are wanted, and what the function raises.
        """
        kwargs = dict(kwargs or {})
        if func is torch.device:  # naming a device is not using it
            return func(*args, **kwargs)
        # Only `Tensor.to` takes the name of a device without a keyword.
        is_to = getattr(func, "__name__", "") == "to"
        moves = is_to and any(map(_names_mps, args))
        if not moves and not _ask_for_mps(args, kwargs):
            return func(*args, **kwargs)
        has_parameter = any(isinstance(value, torch.nn.Parameter) for value in args)
        if kwargs.get("requires_grad") or has_parameter:
            raise SelectionOnly("mps")
        # The device itself in the place of its name.
        if moves:
            args = tuple(MPS if _names_mps(value) else value for value in args)
        if "device" in kwargs:
            kwargs["device"] = MPS
        return _run_on_host(func, args, kwargs)


@functools.cache
def _operators_mode() -> Any:
    """The class of a mode that sees operators; made at the first call.

    It is for a default device that was set by code which `_FunctionsMode` does not see. Raises
    TorchLacks where this torch has no such modes.
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
            return _run_on_host(func, args, kwargs or {})

    return Operators


def _availability_patches(
    cuda_built: bool, mps_built: bool, mps: bool, accelerator: Any
) -> Iterator[Patch]:
    """The patches for what a machine without CUDA answers when it is asked for a device.

    `cuda_built` and `mps_built` say what torch was built for, `mps` whether there is a Mac's GPU.
    `accelerator` is the device that torch was built for, or None.
    """
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", False),
        (torch.cuda, "device_count", 0),
        (torch.backends.cuda, "is_built", cuda_built),
        (torch.backends.mps, "is_available", mps),
        (torch.backends.mps, "is_built", mps_built),
        (torch.mps, "device_count", int(mps)),
        (torch.mps, "is_available", mps),
        (torch.accelerator, "is_available", mps),
        (torch.accelerator, "device_count", int(mps)),
    ]
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

    There is MPS, and no CUDA. Gives the device "mps". Raises TorchLacks where this torch has no
    modes that see operators.
    """
    with few_imports(), contextlib.ExitStack() as undo:
        patches = _availability_patches(cuda_built=False, mps_built=True, mps=True, accelerator=MPS)
        patch(patches, undo)
        undo.enter_context(_operators_mode()())
        undo.enter_context(_FunctionsMode())
        yield MPS


@contextlib.contextmanager
def no_accelerator(built: bool = False) -> Iterator[torch.device]:
    """Give the answers of a machine with neither CUDA nor MPS, for the length of a `with` block.

    That is so on a machine that has them, too. Gives the device "cpu". With `built`, torch has been
    built for both and only the devices are missing, as after `pip install torch` on a machine
    without a GPU: `is_built` is True there, and `torch.accelerator.current_accelerator()` is
    "cuda".
    """
    accelerator = None
    if built:
        accelerator = torch.device("cuda")
    with few_imports(), contextlib.ExitStack() as undo:
        patches = _availability_patches(
            cuda_built=built, mps_built=built, mps=False, accelerator=accelerator
        )
        patch(patches, undo)
        yield torch.device("cpu")
