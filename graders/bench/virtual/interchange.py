"""How do other libraries look into a device tensor? By DLPack: torch takes it as it is, a host library must refuse."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.utils.dlpack

from graders.bench.virtual.tensor import VIRTUAL, Tensor, wrap

_CUDA: Final = torch.utils.dlpack.DLDeviceType.kDLCUDA


class PyCapsule:
    """What `to_dlpack` hands out for a device tensor; it can be taken in once."""

    def __init__(self, tensor: Any) -> None:
        self.tensor: Any = tensor


def _exported(tensor: Any) -> Any:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.layout is not torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    return wrap(tensor._inner, tensor._block)


def _dlpack(self: Any, **kwargs: Any) -> Any:
    """Asked by every library that is not torch. All there can be here are host libraries, NumPy above all."""
    _exported(self)
    raise BufferError("Unsupported device in DLTensor.")


def _dlpack_device(self: Any) -> tuple[Any, int]:
    return _CUDA, self._block.place.index


def to_dlpack(original: Any) -> Any:
    def give(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return PyCapsule(_exported(tensor)) if type(tensor) in VIRTUAL else original(tensor, *args, **kwargs)

    return give


def from_dlpack(original: Any) -> Any:
    def take(ext_tensor: Any, **kwargs: Any) -> Any:
        if type(ext_tensor) in VIRTUAL:
            taken = _exported(ext_tensor)
        elif isinstance(ext_tensor, PyCapsule):
            taken, ext_tensor.tensor = ext_tensor.tensor, None
            if taken is None:
                raise RuntimeError(
                    "from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed only once"
                )
        else:
            return original(ext_tensor, **kwargs)
        device = kwargs.get("device")
        moved = taken if device is None else taken.to(device)
        return moved.clone() if kwargs.get("copy") and moved is taken else moved

    return take


Tensor.__dlpack__ = _dlpack  # type: ignore[method-assign]
Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]


def patches() -> list[tuple[Any, str, Any]]:
    home: Any = torch.utils.dlpack
    take, give = from_dlpack(home.from_dlpack), to_dlpack(home.to_dlpack)
    return [
        (torch, "from_dlpack", take),
        (home, "from_dlpack", take),
        (torch, "to_dlpack", give),
        (home, "to_dlpack", give),
    ]
