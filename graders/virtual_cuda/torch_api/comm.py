"""The functions in C++ that `torch.cuda.comm` calls: scatter, gather and broadcast.

torch's own functions in Python check most arguments; DataParallel uses them. Messages are those of
C++.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.cuda.nccl

from virtual_cuda.device.state import find_open_device
from virtual_cuda.patching import Opening, Patch, torch_patches


def _device_with_index(index: int | None) -> torch.device:
    """The device that an index names: the current GPU for None, the host for a negative one.

    Raises CUDA's error for an index that is not there.
    """
    if index is not None and index < 0:
        return torch.device("cpu")
    device = find_open_device("cuda" if index is None else index)
    if device is None:
        return torch.device("cpu")
    return device.cuda


def _require_on_device(words: str, index: int, tensor: Any) -> None:
    """Raise RuntimeError for a host tensor; `words` say which list it is in."""
    if not tensor.is_cuda:
        raise RuntimeError(f"Expected all {words} at index {index} has device '{tensor.device}'")


def _have_equal_sizes_except(dim: int, shape: list[int], other: list[int]) -> bool:
    """True if two shapes differ in the dimension `dim` at most."""
    if len(shape) != len(other):
        return False
    pairs = zip(shape, other, strict=True)
    for index, (size, other_size) in enumerate(pairs):
        if index != dim and size != other_size:
            return False
    return True


def _scatter(
    tensor: Any, devices: Any, chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> Any:
    """`torch._C._scatter`: copies of the parts of a tensor, one on each device.

    `devices` are indices, `chunk_sizes` the sizes of the parts along `dim`, which are equal if
    None; where there are fewer parts than devices, the last devices get none. Raises RuntimeError
    without devices, for another number of sizes, and for an index that is not there, and torch's
    OutOfMemoryError.
    """
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is None:
        pieces = tensor.chunk(len(devices), dim)
    elif len(chunk_sizes) == len(devices):
        pieces = tensor.split(list(chunk_sizes), dim)
    else:
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    copies = []
    for piece, index in zip(pieces, devices, strict=False):
        device = _device_with_index(index)
        copies.append(piece.to(device, non_blocking=True))
    return copies


def _scatter_out(tensor: Any, out: Any, dim: int = 0, streams: Any = None) -> Any:
    """`torch._C._scatter_out`: copies the parts of a tensor into the tensors of `out`.

    Returns `out`. Raises RuntimeError where they are on the host or do not fit the tensor.
    """
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = dim % tensor.dim()
    shape = list(tensor.shape)
    for index, target in enumerate(out):
        _require_on_device("output tensors to be CUDA tensors, but output tensor", index, target)
        if not _have_equal_sizes_except(dim, list(target.shape), shape):
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {list(target.shape)}. "
                f"Expected same shape except for scatter dim {dim} as the source tensor: {shape}"
            )
    sizes = [target.shape[dim] for target in out]
    total = sum(sizes)
    if total != shape[dim]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {shape[dim]}, but got total size {total}"
        )
    pieces = tensor.split(sizes, dim)
    for piece, target in zip(pieces, out, strict=True):
        target.copy_(piece, non_blocking=True)
    return out


def _broadcast(tensor: Any, devices: Any) -> Any:
    """`torch._C._broadcast`: copies of a tensor, one on each device; `devices` are indices.

    A device that has the tensor already gives the tensor itself. Raises CUDA's error for an index
    that is not there, and torch's OutOfMemoryError.
    """
    return [tensor.to(_device_with_index(index), non_blocking=True) for index in devices]


def _broadcast_out(tensor: Any, out: Any) -> Any:
    """`torch._C._broadcast_out`: copies a tensor into each tensor of `out`.

    Returns a list of these. Raises RuntimeError for one on the host or of another shape.
    """
    for index, target in enumerate(out):
        _require_on_device("output tensors to be CUDA tensors, but output tensor", index, target)
        if target.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {index} has shape "
                f"{list(target.shape)}"
            )
    return [target.copy_(tensor, non_blocking=True) for target in out]


def _broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
    """`torch._C._broadcast_coalesced`: lists of tensors, one for each device.

    The first list has the tensors themselves, the others copies without history. Raises
    RuntimeError unless all are on the first device, CUDA's error for an index that is not there,
    and torch's OutOfMemoryError.
    """
    for tensor in tensors:
        if tensor.get_device() != devices[0]:
            raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    lists = [list(tensors)]
    for index in devices[1:]:
        device = _device_with_index(index)
        lists.append([tensor.detach().to(device) for tensor in tensors])
    return lists


def _gather(tensors: Any, dim: int = 0, destination: Any = None) -> Any:
    """`torch._C._gather`: the tensors, joined along a dimension on one device.

    `destination` is its index; None is the current GPU, a negative one the host. Raises
    RuntimeError for tensors that do not fit together or are on the host and at a wait that is
    refused or tells of a failed kernel, CUDA's error for an index that is not there, and torch's
    OutOfMemoryError.
    """
    _shape_of_join(tensors, dim)
    device = _device_with_index(destination)
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _gather_out(tensors: Any, out: Any, dim: int = 0) -> Any:
    """`torch._C._gather_out`: copies tensors into the parts of `out`, and returns that.

    Raises RuntimeError for tensors that do not fit together, are on the host, or do not fill `out`.
    """
    expected = _shape_of_join(tensors, dim)
    if list(out.shape) != expected:
        raise RuntimeError(
            f"Expected out tensor to have shape {expected}, but got {list(out.shape)}"
        )
    sizes = [tensor.shape[dim] for tensor in tensors]
    pieces = out.split(sizes, dim)
    for piece, source in zip(pieces, tensors, strict=True):
        piece.copy_(source, non_blocking=True)
    return out


def _shape_of_join(tensors: Any, dim: int) -> list[int]:
    """The shape of tensors that are joined along a dimension.

    Raises RuntimeError, as C++ does, without tensors, for one on the host, and for tensors that do
    not fit together.
    """
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    shape = list(tensors[0].shape)
    if shape:
        dim = dim % len(shape)
    else:
        dim = 0
    for index, tensor in enumerate(tensors):
        _require_on_device("input tensors to be CUDA tensors, but tensor", index, tensor)
        if tensor.dim() != len(shape):
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {index}has {tensor.dim()} dimensions, (expected {len(shape)})"
            )
        if not _have_equal_sizes_except(dim, list(tensor.shape), shape):
            expected = list(shape)
            expected[dim] = tensor.shape[dim]
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, "
                f"but expected {expected}"
            )
    joined = list(shape)
    if joined:
        sizes = [tensor.shape[dim] for tensor in tensors]
        joined[dim] = sum(sizes)
    return joined


@torch_patches()
def _comm_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of what `torch.cuda.comm` calls in C++, each under the function's own name."""
    functions = (
        _scatter,
        _scatter_out,
        _broadcast,
        _broadcast_out,
        _broadcast_coalesced,
        _gather,
        _gather_out,
    )
    for function in functions:
        yield torch._C, function.__name__, function
    yield torch.cuda.nccl, "is_available", lambda tensors: False  # `reduce_add` adds then
