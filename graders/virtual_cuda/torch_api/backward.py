"""Wraps `torch.autograd.backward` and `grad`: records them, checks devices, chooses streams.

What runs inside is torch's own engine. It calls `Tensor.__torch_dispatch__` for each operator of
the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from virtual_cuda.device.cuda_errors import without_lazy
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches
from virtual_cuda.recorder import Recorder
from virtual_cuda.torch_api.backward_streams import on_streams_of_forward, use_streams_of_node


def _as_list(value: Any) -> list[Any]:
    """A tensor as a list of one; a list or tuple of tensors as a list."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [value]


def _is_elsewhere(gradient: Any, device: torch.device) -> bool:
    """True if a gradient would have to move to this device; a gradient of one element may."""
    if not isinstance(gradient, torch.Tensor) or gradient.dim() == 0:
        return False
    # Inside torch.func the wrapped gradient still shows the name C++ has for the device.
    if gradient.device.type == "lazy" or device.type == "lazy":
        return False
    return gradient.device != device


def _refuse_gradients_elsewhere(tensors: Any, gradients: Any) -> None:
    """Raise RuntimeError for a given gradient on another device than the tensor it belongs to."""
    pairs = zip(_as_list(tensors), _as_list(gradients), strict=False)
    for index, (tensor, gradient) in enumerate(pairs):
        if type(tensor) not in VIRTUAL and type(gradient) not in VIRTUAL:
            continue
        if isinstance(tensor, torch.Tensor) and _is_elsewhere(gradient, tensor.device):
            raise RuntimeError(
                f"invalid gradient at index {index} - expected device {tensor.device} "
                f"but got {gradient.device}"
            )


def _run_backward(gradients_at: int, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `torch.autograd.backward` or `grad`, the `original`; gives what it gives.

    `gradients_at` is the position of the argument that holds gradients. The pass runs on the
    streams of its forward pass, which the ledger notes where they change. Raises RuntimeError, as
    CUDA does, for a gradient on another device than its tensor, and what the pass raises.
    """
    if len(args) > gradients_at:
        gradients = args[gradients_at]
    else:
        gradients = kwargs.get("grad_tensors", kwargs.get("grad_outputs"))
    if gradients is not None:
        if args:
            tensors = args[0]
        else:
            tensors = kwargs.get("tensors", kwargs.get("outputs"))
        _refuse_gradients_elsewhere(tensors, gradients)
    with on_streams_of_forward():
        return original(*args, **kwargs)


def _device_of_input(node: Any, slot: int) -> torch.device | None:
    """The device of what a node of a graph has made, by the name that students know.

    `slot` is the number of the result of that node. None where this torch does not tell.
    """
    variable = getattr(node, "variable", None)
    if variable is not None:
        device: torch.device = variable.device
    elif hasattr(node, "_input_metadata"):
        device = node._input_metadata[slot].device
    else:
        return None
    if device.type == "lazy":
        return torch.device("cuda", device.index)
    return device


def _run_custom_backward(original: Any, node: Any, *args: Any) -> Any:
    """Call a student's own `autograd.Function.backward`, the `original`, by its node in the graph.

    Gives the gradients that it returns. Streams of the node's forward are used. Raises
    RuntimeError, as CUDA does, if a gradient is not where the input is, and what the student's
    function raises.
    """
    use_streams_of_node(node)
    gradients = original(node, *args)
    pairs = zip(_as_list(gradients), node.next_functions, strict=False)
    for index, (gradient, (next_node, slot)) in enumerate(pairs):
        if next_node is None:
            continue
        device = _device_of_input(next_node, slot)
        if device is None or not _is_elsewhere(gradient, device):
            continue
        if device.type == "cuda" or gradient.device.type == "cuda":
            raise RuntimeError(
                f"Function {type(node).__name__} returned an invalid gradient at index {index} - "
                f"expected device {device} but got {gradient.device}"
            )
    return gradients


@torch_patches(Stage.RECORD)
def _recording_patches(opening: Opening) -> Iterator[Patch]:
    """The patches that record passes and steps.

    A recorder that stays for the next device is told of that device's ledger; it stops when a
    device closes, and hooks of optimizers are there while the patches are: `opening` is told of all
    that.
    """
    recorder = Recorder(opening.gpu.ledger.rows, without_lazy)
    opening.on_next_device.append(lambda gpu: recorder.record_into(gpu.ledger.rows))
    opening.on_close.append(recorder.stop)
    opening.enter(recorder.step_hooks)
    yield from recorder.patches()
    yield around(torch.autograd, "backward", partial(recorder.record_backward, _run_backward, 1))
    yield around(torch.autograd, "grad", partial(recorder.record_backward, _run_backward, 2))
    yield around(torch.autograd.function.BackwardCFunction, "apply", _run_custom_backward)
