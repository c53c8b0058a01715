"""Modes that see every call of a function of torch: `torch.overrides.TorchFunctionMode`.

torch's functions in C++ hand themselves to such a mode before they do anything. A function of ours
in the place of one of them does the same, so that a mode sees `torch.zeros`, and not what the
device calls meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, Final

import torch

from virtual_cuda.internals import find_internal, torch_functions

# Where this torch lacks it, modes see what the device calls.
_is_mode_on: Final = find_internal(
    "torch.overrides._is_torch_function_mode_enabled", otherwise=lambda: False
)
_telling: Final[weakref.WeakSet[FunctionType]] = weakref.WeakSet()


def tells_modes(function: Any) -> bool:
    """True if a function hands itself to modes: one of torch in C++, or one of `telling_modes`."""
    if type(function) is FunctionType:
        return function in _telling
    if type(function) is MethodDescriptorType:
        return issubclass(torch.Tensor, function.__objclass__)
    if type(function) is not BuiltinFunctionType:
        return False
    if getattr(torch_functions, function.__name__, None) is function:
        return True
    # The other functions in C++ are in modules such as `torch._C._nn`.
    return str(function.__module__).rpartition(".")[0] == torch._C.__name__


def telling_modes(function: Callable[..., Any]) -> FunctionType:
    """A function that does what `function` does, and hands itself to the modes that are on."""

    def tell_modes_and_call(*args: Any, **kwargs: Any) -> Any:
        """Let the innermost mode answer, or call the function if no mode is on.

        Gives and raises what these do.
        """
        if _is_mode_on():
            values = (*args, *kwargs.values())
            this = tell_modes_and_call
            return torch.overrides.handle_torch_function(this, values, *args, **kwargs)
        return function(*args, **kwargs)

    assert isinstance(tell_modes_and_call, FunctionType)
    _telling.add(tell_modes_and_call)
    return tell_modes_and_call
