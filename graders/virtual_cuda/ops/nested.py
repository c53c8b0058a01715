"""Nested tensors of the strided layout on the virtual device.

They are a class of C++ that only knows devices with kernels. So a function that is given one runs on the host's nested
tensor inside, with the host's graph; strided arguments and results pass from the device's graph to the host's and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nested
from torch.utils._pytree import tree_leaves, tree_map

from virtual_cuda.device.state import Block, Place, place_named, place_of
from virtual_cuda.device.tensor import VIRTUAL, Tensor, make_shell, wrap
from virtual_cuda.ops.dispatch import allocate, shut, write
from virtual_cuda.ops.placement import HOST, record_copy
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches

# What describes a nested tensor is on the host.
_HOST_ONLY: Final = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")


class _ToHost(torch.autograd.Function):
    """A device tensor in the host's graph."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        ctx.place = tensor._block.place
        return tensor._inner.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _dense(gradient, ctx.place, {})


class _ToDevice(torch.autograd.Function):
    """A host tensor in the device's graph."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, place: Place, blocks: dict[int, Block]) -> Any:
        return _dense(tensor.detach(), place, blocks)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient._inner, None, None


_to_host: Final[Any] = _ToHost.apply
_to_device: Final[Any] = _ToDevice.apply


class NestedTensor(Tensor):
    """A nested tensor of the strided layout on a virtual device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(func, args, kwargs or {})

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"The virtual device cannot run {func} on a nested tensor of the strided layout.")

    def to(self, *args: Any, **kwargs: Any) -> Any:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        place = self._block.place if device is None else place_named(device)
        inner = self._inner if dtype in (None, self.dtype) else self._inner.to(dtype)
        if place is not None:
            return self if inner is self._inner and place is self._block.place else _nested(inner.clone(), place, {})
        record_copy("to_host", self._inner.values(), False, False, self._block.place.label, HOST)
        return inner.clone()

    def cpu(self, *args: Any) -> Any:
        return self.to("cpu")

    def cuda(self, device: Any = None, *args: Any) -> Any:
        return self.to("cuda" if device is None else device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        pieces = ",\n".join("  " + repr(piece).replace("\n", "\n  ") for piece in self.detach().unbind())
        return f"nested_tensor([\n{pieces}\n])"


NestedTensor.__name__, NestedTensor.__module__ = "Tensor", "torch"


def _block_of(storage: torch.UntypedStorage, place: Place, blocks: dict[int, Block]) -> Block:
    block = blocks.get(storage._cdata)
    if block is None:
        block = blocks[storage._cdata] = allocate(place, storage.nbytes())
    return block


def _dense(value: torch.Tensor, place: Place, blocks: dict[int, Block]) -> Any:
    return wrap(value, _block_of(value.untyped_storage(), place, blocks))


def _nested(value: torch.Tensor, place: Place, blocks: dict[int, Block]) -> Any:
    # Its shape is nobody's business in C++, which never looks at it.
    shell = make_shell(NestedTensor, (value.size(0),), dtype=value.dtype, device=place.lazy)
    shell._inner, shell._block = value, _block_of(value.values().untyped_storage(), place, blocks)
    return shell


def run(func: Any, args: Any, kwargs: Any, place: Place | None = None) -> Any:
    """Call any function of torch on the host's tensors; its results are on the device."""
    known, blocks = {}, {}

    def down(value: Any) -> Any:
        nonlocal place
        if type(value) is NestedTensor:
            known[id(value._inner)] = value
            blocks[value._inner.values().untyped_storage()._cdata] = value._block
        elif type(value) in VIRTUAL:
            blocks[value._inner.untyped_storage()._cdata] = value._block
        else:
            return "cpu" if isinstance(value, torch.device) and place_of(value) is not None else value
        place = place or value._block.place
        if place.shut:
            raise shut(place)
        graph = type(value) is not NestedTensor and value.requires_grad and torch.is_grad_enabled()
        return _to_host(value) if graph else value._inner

    def up(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or place is None or getattr(func, "__name__", "") in _HOST_ONLY:
            return value
        if id(value) in known:
            return known[id(value)]
        if value.is_nested:
            return _nested(value, place, blocks)
        graph = value.requires_grad and torch.is_grad_enabled()
        return _to_device(value, place, blocks) if graph else _dense(value, place, blocks)

    args, kwargs = tree_map(down, (tuple(args), kwargs))
    before = len(blocks)
    out = tree_map(up, func(*args, **kwargs))
    if place is not None and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(out)):
        made = sum(block.size for block in list(blocks.values())[before:])
        write(f"aten.{getattr(func, '__name__', 'nested')}.default", place, made)
    return out


def _make(original: Any, pieces: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.nested.nested_tensor` and its like, of tensors on the device or for it."""
    here = next((leaf._block.place for leaf in tree_leaves(pieces) if isinstance(leaf, Tensor)), None)
    place = here if kwargs.get("device") is None else place_named(kwargs["device"])
    if place is None or kwargs.get("layout") is torch.jagged:
        return original(pieces, *args, **kwargs)
    kwargs.pop("device", None)
    return run(original, (pieces, *args), kwargs, place)


def to_device(tensor: torch.Tensor, place: Place, non_blocking: bool, dtype: torch.dtype | None) -> Any:
    """A nested host tensor, copied."""
    moved = tensor.clone() if dtype in (None, tensor.dtype) else tensor.to(dtype)
    record_copy("to_device", moved.values(), False, non_blocking, HOST, place.label)
    return _nested(moved, place, {})


def _has_function(original: Any, values: Any) -> bool:
    """Layers ask whether some class wants to see the call before they take the fast path, which runs here as well."""
    return bool(original(tuple(value for value in values if type(value) is not NestedTensor)))


@torch_patches(Stage.WRAP)
def _patches(opening: Opening) -> Iterator[Patch]:
    for owner, name in ((torch.nested, "nested_tensor"), (torch.nested, "as_nested_tensor")):
        yield around(owner, name, _make)
    yield around(torch, "_nested_tensor_from_mask", _make)
    yield around(torch.overrides, "has_torch_function", _has_function)
