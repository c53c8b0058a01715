"""DLPack: how libraries hand tensors to each other.

All there can be here are libraries of the host, NumPy above all. So a device tensor can be handed
to torch itself only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack

from virtual_cuda.device.tensor import VIRTUAL, wrap
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.compatibility import CUDA_IN_DLPACK
from virtual_cuda.torch_api.imports import patches_on_import


class PyCapsule:
    """What `to_dlpack` hands out for a device tensor; it can be taken in once."""

    def __init__(self, tensor: Any, name: str) -> None:
        self.tensor: Any = tensor
        self.name = name  # which DLPack gives it

    def __repr__(self) -> str:
        return f'<capsule object "{self.name}" at {hex(id(self))}>'


def take_from(capsule: PyCapsule) -> Any:
    """Take the tensor out of a capsule, which is empty and called "used_…" then, and return it.

    Raises RuntimeError for one that was empty before.
    """
    tensor = capsule.tensor
    if tensor is None:
        raise RuntimeError(
            "from_dlpack received an invalid capsule. "
            "Note that DLTensor capsules can be consumed only once"
        )
    capsule.tensor = None
    capsule.name = f"used_{capsule.name}"
    return tensor


def _put_into_capsule(name: str, original: Any, tensor: Any, **kwargs: Any) -> Any:
    """A capsule with a device tensor over the same memory, or over a copy if that is asked for.

    `name` is the name of the capsule. It is torch's own for a tensor on the host, and where
    `dl_device` is not CUDA: then the values are copied to the host, which is recorded. Raises
    ValueError if that is asked for without a copy. Releases before 2.9 know neither `dl_device=`
    nor `copy=`. Raises what `original` raises.
    """
    if type(tensor) not in VIRTUAL:
        return original(tensor, **kwargs)
    dl_device = kwargs.get("dl_device")
    copy = kwargs.get("copy")
    if dl_device is not None and dl_device[0] != CUDA_IN_DLPACK:
        capsule = original(tensor.cpu(), dl_device=dl_device)
        if copy is False:
            raise ValueError(
                f"cannot move (i.e. copy=False) tensor from {tensor.device} to cpu without copying."
            )
        return capsule
    if copy:
        return PyCapsule(tensor.clone(), name)
    return PyCapsule(wrap(tensor._virtual_inner, tensor._virtual_block), name)


def _take_tensor(original: Any, capsule: Any) -> Any:
    """The tensor in a capsule, which is empty then; torch's `original` opens one that is not ours.

    Raises RuntimeError for a capsule that was taken in before.
    """
    if isinstance(capsule, PyCapsule):
        return take_from(capsule)
    return original(capsule)


def _refuse_in_numpy(original: Any, tensor: Any, /, **kwargs: Any) -> Any:
    """`numpy.from_dlpack`, the `original`, which raises BufferError for a tensor on the device.

    Such a tensor's own `__dlpack__` is asked first, and what it raises is raised. With
    `device="cpu"`, NumPy is asked; what it raises is raised.
    """
    if type(tensor) in VIRTUAL and kwargs.get("device") != "cpu":
        tensor.__dlpack__()  # which has errors of its own
        raise BufferError("Unsupported device in DLTensor.")
    return original(tensor, **kwargs)


def _numpy_patches(numpy: ModuleType) -> Iterable[Patch]:
    """The patches of NumPy, which would not know our capsules."""
    return [around(numpy, "from_dlpack", _refuse_in_numpy)]


@torch_patches()
def _dlpack_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of functions that make capsules and open them."""
    make_capsule = functools.partial(_put_into_capsule, "dltensor")
    make_versioned = functools.partial(_put_into_capsule, "dltensor_versioned")
    yield around(torch._C, "_to_dlpack", make_capsule)
    if hasattr(torch._C, "_to_dlpack_versioned"):  # since 2.9
        yield around(torch._C, "_to_dlpack_versioned", make_versioned)
    for module in (torch._C, torch.utils.dlpack):  # before 2.9 there is a second name for it
        yield around(module, "_from_dlpack", _take_tensor)
    for module in (torch, torch.utils.dlpack):
        yield around(module, "to_dlpack", make_capsule)
    yield from patches_on_import(opening, "numpy", _numpy_patches)
