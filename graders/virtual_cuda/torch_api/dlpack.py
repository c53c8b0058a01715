"""DLPack: how libraries hand tensors to each other.

All there can be here are libraries of the host, NumPy above all. So a device tensor can be handed
to torch itself only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.dlpack

from virtual_cuda.device.tensor import VIRTUAL, Tensor, wrap
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.compatibility import CUDA_IN_DLPACK


class PyCapsule:
    """What `to_dlpack` hands out for a device tensor; it can be taken in once."""

    def __init__(self, tensor: Any) -> None:
        self.tensor: Any = tensor


def _export(tensor: Any) -> Any:
    """A tensor over the same memory, to be handed out.

    Raises BufferError for one that requires gradients, has the conjugate bit, or is not strided.
    """
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.layout is not torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    return wrap(tensor._virtual_inner, tensor._virtual_block)


def _take_from(capsule: PyCapsule) -> Any:
    """The tensor in a capsule, which is empty afterwards.

    Raises RuntimeError for one that was empty before.
    """
    tensor = capsule.tensor
    capsule.tensor = None
    if tensor is None:
        raise RuntimeError(
            "from_dlpack received an invalid capsule. "
            "Note that DLTensor capsules can be consumed only once"
        )
    return tensor


def _refuse_dlpack(tensor: Any, *, stream: Any = None, **kwargs: Any) -> Any:
    """`Tensor.__dlpack__`, which always raises BufferError, or TypeError for a wrong stream.

    Every library that is not torch asks it. The errors of `_export` come first, as in torch; its
    result is not used.
    """
    _export(tensor)
    if stream is not None and type(stream) is not int:
        raise TypeError("stream must be ``int`` or ``none``")
    raise BufferError("Unsupported device in DLTensor.")


def _to_dlpack(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """`to_dlpack`: a capsule with a device tensor; torch's own for any other."""
    if type(tensor) in VIRTUAL:
        return PyCapsule(_export(tensor))
    return original(tensor, *args, **kwargs)


def _from_dlpack(original: Any, ext_tensor: Any, **kwargs: Any) -> Any:
    """The tensor in a capsule of ours, or a device tensor over another one's memory.

    Any other object is torch's. Raises RuntimeError for a capsule that was taken in before, and
    BufferError: see `_export`.
    """
    if type(ext_tensor) in VIRTUAL:
        tensor = _export(ext_tensor)
    elif isinstance(ext_tensor, PyCapsule):
        tensor = _take_from(ext_tensor)
    else:
        return original(ext_tensor, **kwargs)
    device = kwargs.get("device")
    if device is None:
        moved = tensor
    else:
        moved = tensor.to(device)
    if kwargs.get("copy") and moved is tensor:
        return moved.clone()
    return moved


Tensor.__dlpack__ = _refuse_dlpack  # type: ignore[method-assign,assignment]
Tensor.__dlpack_device__ = lambda self: (CUDA_IN_DLPACK, self._virtual_block.device.index)  # type: ignore[method-assign,attr-defined]


@torch_patches()
def _dlpack_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of `from_dlpack` and `to_dlpack`."""
    modules: tuple[Any, ...] = (torch, torch.utils.dlpack)
    for module in modules:
        yield around(module, "from_dlpack", _from_dlpack)
        yield around(module, "to_dlpack", _to_dlpack)
