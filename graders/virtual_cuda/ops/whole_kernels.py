"""Results, memory and gradients of functions that CUDA runs as one kernel."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional
from torch.autograd import grad as _grad

from virtual_cuda.device.cuda_errors import without_lazy
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import VIRTUAL, operator_hooks, wrap
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import allocate


class KernelHook:
    """A hook for `operator_hooks` that runs around whole kernels as well."""

    def run_kernel(self, kernel: Any, args: Any) -> Any:
        """Return what `kernel(*args)` returns, which this calls."""
        return kernel(*args)


class WholeKernel(torch.autograd.Function):
    """A function that CUDA runs as one kernel each way.

    A subclass writes `forward` and `backward` as for any function of autograd. Both run inside the
    KernelHook that is in use, if there is one.
    """

    class_names: ClassVar[set[str]] = set()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.class_names.add(cls.__name__)
        for name in ("forward", "backward"):
            if name in vars(cls):
                kernel = functools.partial(_run_kernel, vars(cls)[name].__func__)
                setattr(cls, name, staticmethod(kernel))


def _run_kernel(kernel: Any, *args: Any) -> Any:
    """Call one direction of a whole kernel, inside the hook if there is one."""
    # With `create_graph`: made of operators, each of which has hooks.
    if operator_hooks and not torch.is_grad_enabled():
        for hook in operator_hooks:
            if isinstance(hook, KernelHook):
                return hook.run_kernel(kernel, args)
    return kernel(*args)


def wrap_each(tensors: Any, device: VirtualDevice) -> list[Any]:
    """The tensors on the device, each in a new block of its own; None stays None.

    Raises torch's OutOfMemoryError.
    """
    wrapped: list[Any] = []
    for tensor in tensors:
        if tensor is None:
            wrapped.append(None)
        else:
            wrapped.append(wrap(tensor, allocate(device, tensor.nbytes)))
    return wrapped


def bytes_of_all(tensors: Any) -> int:
    """How many bytes these tensors have; None counts nothing."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def inner_leaf_of(tensor: Any) -> torch.Tensor:
    """The inner tensor of a device tensor, as the start of a graph on the host.

    It needs a gradient if the device tensor does.
    """
    leaf: torch.Tensor = tensor._virtual_inner.detach()
    return leaf.requires_grad_(tensor.requires_grad)


def gradients_by_host(
    outputs: Any, gradients: Any, inputs: Any, *, create_graph: bool = False
) -> list[Any]:
    """The gradients of the inputs by a graph that is kept; None for those that need none.

    `gradients` are those of the outputs, None where one has none. An input that the graph does not
    reach gets zeros.
    """
    used_outputs = []
    used_gradients = []
    for output, gradient in zip(outputs, gradients, strict=True):
        if gradient is not None and output.requires_grad:
            used_outputs.append(output)
            used_gradients.append(gradient)
    found = _grad(
        used_outputs,
        [each for each in inputs if each.requires_grad],
        used_gradients,
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    remaining = iter(found)
    results: list[Any] = []
    for each in inputs:
        result = None
        if each.requires_grad:
            result = next(remaining)
            if result is None:
                result = torch.zeros_like(each)
        results.append(result)
    return results


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
    needed = [gradient.requires_grad_() for gradient in gradients if gradient is not None]
    if not needed:
        return gradients
    refuse = _DelayedError(text.encode(), len(needed))
    refusing = iter(refuse(*needed))
    return [None if gradient is None else next(refusing) for gradient in gradients]


def are_on_several_devices(*tensors: Any) -> bool:
    """True if these tensors are on different devices, one of them virtual."""
    devices = set()
    is_one_virtual = False
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            devices.add(tensor.device)
            is_one_virtual |= type(tensor) in VIRTUAL
    return is_one_virtual and len(devices) > 1


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
    if type(tensor) not in VIRTUAL:
        return tensor
    if not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(dtype)
