"""Results, memory and gradients of functions that CUDA runs as one kernel."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional
from torch.autograd import grad as _grad
from torch.autograd.graph import saved_tensors_hooks

from virtual_cuda.device.cuda_errors import without_lazy
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import VIRTUAL, operator_hooks, wrap
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import allocate


class KernelHook:
    """A hook for `operator_hooks` that runs around whole kernels as well."""

    def run_kernel(self, kernel: Any, args: Any) -> Any:
        """Return what `kernel(*args)` returns, which this calls; what it raises is raised."""
        return kernel(*args)

    def run_write(self, write: Callable[[], object]) -> None:
        """Call `write()`, which writes to memory and is no operator; what it raises is raised."""
        write()


def run_write_in_hooks(write: Callable[[], object]) -> None:
    """Call `write()`, which writes to a device's memory and is no operator, inside all hooks.

    That is the replay of a graph, or a copy of a storage. Raises what it raises.
    """
    for hook in operator_hooks:
        if isinstance(hook, KernelHook):
            write = functools.partial(hook.run_write, write)
    write()


class WholeKernel(torch.autograd.Function):
    """A function that CUDA runs as one kernel each way.

    A subclass writes `forward` and `backward` as for any function of autograd. Both run inside the
    KernelHook that is in use, if there is one.
    """

    class_names: ClassVar[set[str]] = set()

    def __init_subclass__(cls) -> None:
        """Note the name of a subclass, and let its two directions run inside the hook in use."""
        super().__init_subclass__()
        cls.class_names.add(cls.__name__)
        for name in ("forward", "backward"):
            if name in vars(cls):
                kernel = functools.partial(_run_kernel, vars(cls)[name].__func__)
                setattr(cls, name, staticmethod(kernel))


def _run_kernel(kernel: Any, *args: Any) -> Any:
    """Call one direction of a whole kernel, inside the hooks in use.

    Of several hooks the last one is outermost. Gives and raises what the kernel does.
    """
    # With `create_graph`: made of operators, each of which has hooks.
    if operator_hooks and not torch.is_grad_enabled():
        for hook in operator_hooks:
            if isinstance(hook, KernelHook):
                kernel = functools.partial(_run_in_hook, hook, kernel)
    return kernel(*args)


def _run_in_hook(hook: KernelHook, kernel: Any, *args: Any) -> Any:
    return hook.run_kernel(kernel, args)


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


@contextlib.contextmanager
def graph_on_host(wanted: bool) -> Iterator[None]:
    """Let the host's operators build a graph inside a `with` block, if that is wanted.

    On a GPU there is no such graph, so a program's hooks for saved tensors, such as a checkpoint's,
    do not see what it saves.
    """
    with torch.set_grad_enabled(wanted), saved_tensors_hooks(_as_it_is, _as_it_is):
        yield


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def gradients_by_host(
    outputs: Any, gradients: Any, inputs: Any, *, create_graph: bool = False
) -> list[Any]:
    """The gradients of the inputs by a graph that is kept; None for those that need none.

    `gradients` are those of the outputs, None where one has none. An input that the graph does not
    reach gets zeros. Raises what autograd raises.
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
    frees them with the rest. Raises torch's OutOfMemoryError.
    """
    return [wrap(torch.empty(0), allocate(device, size)) for size in sizes]


def refuse_second_gradients(gradients: list[Any], text: str) -> list[Any]:
    """The gradients, which raise a RuntimeError with this text when they are differentiated.

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

    C++ compares devices there, and calls the virtual one "lazy". Other errors are raised as they
    are.
    """
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


def is_recording_operators() -> bool:
    """True while a CUDA graph or `torch.jit.trace` records operators: nothing is fused then."""
    return torch.cuda.is_current_stream_capturing() or _tracing_state() is not None


def cast_by_autocast(dtype: torch.dtype, tensor: Any) -> Any:
    """The operand, cast to autocast's lower precision, `dtype`, where autocast would cast it.

    A cast is recorded. Raises torch's OutOfMemoryError.
    """
    if type(tensor) not in VIRTUAL:
        return tensor
    if not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(dtype)
