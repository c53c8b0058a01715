"""Results, memory and gradients of functions that CUDA runs as one kernel."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional

from virtual_cuda.device.cuda_errors import (
    without_lazy,
)
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import VIRTUAL, wrap
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import allocate


def wrap_each(tensors: Any, device: VirtualDevice) -> list[Any]:
    """The tensors on the device, each in a new block of its own; None stays None."""
    return [None if t is None else wrap(t, allocate(device, t.nbytes)) for t in tensors]


_DelayedError: Final = find_internal("torch._C._functions.DelayedError", "a second gradient")
_tracing_state: Final = find_internal("torch._C._get_tracing_state", otherwise=lambda: None)


def hold_memory(device: VirtualDevice, *sizes: int) -> list[Any]:
    """Empty device tensors that hold this many bytes each.

    A kernel keeps that memory for backward. They go into `save_for_backward`, so that autograd
    frees them with the rest.
    """
    return [wrap(torch.empty(0), allocate(device, size)) for size in sizes]


def refuse_second_gradients(gradients: list[Any], text: str) -> list[Any]:
    """The gradients, which raise this text when they are differentiated.

    This matters only with `create_graph`; otherwise they are returned unchanged.
    """
    if not torch.is_grad_enabled():
        return gradients
    given = [g for g in gradients if g is not None]
    refuse = _DelayedError(text.encode(), len(given))
    made = iter(refuse(*(g.requires_grad_() for g in given)) if given else ())
    return [None if g is None else next(made) for g in gradients]


def are_on_several_devices(*tensors: Any) -> bool:
    """True if these tensors are on different devices, one of them virtual."""
    given = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return any(type(t) in VIRTUAL for t in given) and len({t.device for t in given}) > 1


def call_in_cuda_words(original: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of `original`; its RuntimeErrors are raised with "cuda" in the text.

    C++ compares devices there, and calls the virtual one "lazy".
    """
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


def is_recording_operators() -> bool:
    """True while a CUDA graph or `torch.jit.trace` records operators: nothing is fused then."""
    return torch.cuda.is_current_stream_capturing() or _tracing_state() is not None


def cast_by_autocast(dtype: torch.dtype, tensor: Any) -> Any:
    """The operand, cast to autocast's lower precision where autocast would cast it."""
    eligible = (
        type(tensor) in VIRTUAL and tensor.is_floating_point() and tensor.dtype is not torch.float64
    )
    return tensor.to(dtype) if eligible else tensor
