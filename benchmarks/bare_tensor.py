"""A tensor subclass that computes and does nothing else.

It shows the least that any device costs whose operators arrive in Python: torch hands each one to
`__torch_dispatch__`, which takes the CPU tensor out, computes and wraps the result. There are no
records, no memory, no checks of devices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_PLAIN_CPU = torch.device("cpu")


class BareTensor(torch.Tensor):
    """A shell around a CPU tensor."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Compute with the inner tensors. A result that is an argument stays that argument."""
        result = func(*_open(args), **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            first = args[0]
            if type(first) is BareTensor and result is first.inner:
                return first
            return wrap_bare(result)
        if isinstance(result, (list, tuple)):
            return type(result)([wrap_bare(each) for each in result])
        return result


def _open(values: Any) -> list[Any]:
    """The values with inner tensors in the place of shells, also in lists."""
    opened = []
    for value in values:
        if type(value) is BareTensor:
            value = value.inner
        elif type(value) is list:
            value = _open(value)
        opened.append(value)
    return opened


def wrap_bare(inner: torch.Tensor) -> Any:
    """A shell around a CPU tensor."""
    shell: Any = torch.Tensor._make_wrapper_subclass(
        BareTensor,
        inner.shape,
        inner.stride(),
        inner.storage_offset(),
        None,
        inner.dtype,
        torch.strided,
        _PLAIN_CPU,
    )
    shell.inner = inner
    return shell


def make_parameters_bare(model: nn.Module) -> None:
    """Put shells in the place of the parameters of a model."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(wrap_bare(parameter.detach())))
