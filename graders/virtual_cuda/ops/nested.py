"""Nested tensors of the strided layout on the virtual device.

A nested tensor holds tensors of different shapes. The inner tensor of a device tensor is the CPU
tensor with its values.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nested

from virtual_cuda.device.hidden import conceal, reveal
from virtual_cuda.device.pinning import has_pinned_memory
from virtual_cuda.device.state import Block, VirtualDevice, find_open_device, open_device_of
from virtual_cuda.device.tensor import VIRTUAL, Tensor, make_shell
from virtual_cuda.device.tensor import wrap as wrap_strided
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import allocate, closed_device_error, record_operation
from virtual_cuda.ops.placement import HOST, record_copy
from virtual_cuda.trees import leaves_of, map_leaves

_Blocks = dict[int, Block]  # by the address of a storage

# What describes a nested tensor is on the host.
_HOST_ONLY: Final = (
    "_nested_tensor_size",
    "_nested_tensor_strides",
    "_nested_tensor_storage_offsets",
)


class _ToHost(torch.autograd.Function):
    """Puts a device tensor into the host's graph; its gradient goes to the device."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        ctx.device = conceal(tensor._virtual_block.device)
        return tensor._virtual_inner.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _wrap_dense(gradient, reveal(ctx.device), {})


class _ToDevice(torch.autograd.Function):
    """Puts a host tensor into the device's graph; its gradient goes to the host."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, device: VirtualDevice, blocks: _Blocks) -> Any:
        return _wrap_dense(tensor.detach(), device, blocks)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient._virtual_inner, None, None


_to_host: Final[Any] = _ToHost.apply
_to_device: Final[Any] = _ToDevice.apply


class NestedTensor(Tensor):
    """A nested tensor of the strided layout on a virtual device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call_with_nested_tensors(func, args, kwargs or {})

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(
            f"The virtual device cannot run {func} on a nested tensor of the strided layout."
        )

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The tensor on another device or in another dtype, or itself if nothing changes.

        A copy to the host or to another GPU is recorded. Raises what torch raises for wrong
        arguments, CUDA's error for a device that is not there, torch's OutOfMemoryError, and
        RuntimeError at a wait that is refused or tells of a failed kernel.
        """
        # Looked up at each call: ours, which takes a number for a GPU, is there now.
        parse = find_internal("torch._C._nn._parse_to", "`to` of a nested tensor")
        device, dtype, *_ = parse(*args, **kwargs)
        own_device = self._virtual_block.device
        open_device: VirtualDevice | None = own_device
        if device is not None:
            open_device = find_open_device(device)
        inner = self._virtual_inner
        if dtype is not None and dtype is not self.dtype:
            inner = inner.to(dtype)
        if open_device is None:
            record_copy(self._virtual_inner.values(), own_device.label, HOST)
            return inner.clone()
        if open_device is not own_device:
            record_copy(self._virtual_inner.values(), own_device.label, open_device.label)
        elif inner is self._virtual_inner:
            return self
        return _wrap_nested_tensor(inner.clone(), open_device, {})

    def cpu(self, *args: Any) -> Any:
        return self.to("cpu")

    def cuda(self, device: Any = None, *args: Any) -> Any:
        return self.to("cuda" if device is None else device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """The tensors inside, each as torch prints it.

        Raises the error of a closed device.
        """
        pieces = []
        for piece in self.detach().unbind():
            text = repr(piece).replace("\n", "\n  ")
            pieces.append(f"  {text}")
        lines = ",\n".join(pieces)
        return f"nested_tensor([\n{lines}\n])"


NestedTensor.__name__ = "Tensor"
NestedTensor.__module__ = "torch"


def _block_of(tensor: torch.Tensor, device: VirtualDevice, blocks: _Blocks) -> Block:
    """The block of a tensor's storage: the known one, or a new one, which is added to `blocks`.

    `blocks` has them by the address of the storage. Raises torch's OutOfMemoryError.
    """
    storage = tensor.untyped_storage()
    address = storage._cdata
    if address not in blocks:
        blocks[address] = allocate(device, storage.nbytes())
    return blocks[address]


def _wrap_dense(value: torch.Tensor, device: VirtualDevice, blocks: _Blocks) -> Any:
    """A device tensor around a strided one; it shares the block of its storage.

    `blocks` has the known ones; a new one is added. Raises torch's OutOfMemoryError.
    """
    return wrap_strided(value, _block_of(value, device, blocks))


def _wrap_nested_tensor(value: torch.Tensor, device: VirtualDevice, blocks: _Blocks) -> Any:
    """A device tensor around a nested one; it shares the block of its storage.

    `blocks` has the known ones; a new one is added. Raises torch's OutOfMemoryError.
    """
    # Its shape is nobody's business in C++, which never looks at it.
    shape = (value.size(0),)
    shell = make_shell(NestedTensor, shape, dtype=value.dtype, device=device.lazy)
    shell._virtual_inner = value
    shell._virtual_block = _block_of(value.values(), device, blocks)
    return shell


# By the name of a function: what runs in its place on nested tensors of the host.
RUN_ON_HOST: Final[dict[str, Any]] = {}


def call_with_nested_tensors(
    func: Any, args: Any, kwargs: Any, device: VirtualDevice | None = None
) -> Any:
    """Call any function of torch on the inner tensors; its results are put on the device.

    `device` is where they go if no argument is on a device. The operation is recorded. Raises
    DeviceClosed or the error of what ended the device, torch's OutOfMemoryError, and what the
    function raises.
    """
    name = getattr(func, "__name__", "")
    call = _NestedCall(device, keeps_on_host=name in _HOST_ONLY)
    arguments = (tuple(args), kwargs)
    inner_args, inner_kwargs = map_leaves(call.open, arguments)
    block_count = len(call.blocks)
    run = RUN_ON_HOST.get(name, func)
    results = map_leaves(call.close, run(*inner_args, **inner_kwargs))
    gives_tensors = any(isinstance(leaf, torch.Tensor) for leaf in leaves_of(results))
    if call.device is not None and gives_tensors:
        new_blocks = list(call.blocks.values())[block_count:]
        nbytes = sum(block.size for block in new_blocks)
        record_operation(f"aten.{name or 'nested'}.default", call.device, nbytes)
    return results


class _NestedCall:
    """One call of a function with nested tensors: what its arguments were, and the way back."""

    def __init__(self, device: VirtualDevice | None, keeps_on_host: bool) -> None:
        """Begin a call whose results go to `device`, or else to that of the first argument."""
        self.device = device
        self.keeps_on_host = keeps_on_host
        # Nested arguments by the identity of their inner tensor.
        self.arguments: dict[int, Any] = {}
        self.blocks: _Blocks = {}

    def open(self, value: Any) -> Any:
        """The value for the host: an inner tensor, also in the graph; "cpu" for a device.

        The arguments, their memory and the first device are noted. Raises the error of a closed
        device, and CUDA's for a device that is not there.
        """
        if isinstance(value, torch.device):
            if open_device_of(value) is None:
                return value
            return "cpu"
        is_nested = type(value) is NestedTensor
        if not is_nested and type(value) not in VIRTUAL:
            return value
        inner = value._virtual_inner
        buffer = inner
        if is_nested:
            buffer = inner.values()
            self.arguments[id(inner)] = value
        address = buffer.untyped_storage()._cdata
        self.blocks[address] = value._virtual_block
        if self.device is None:
            self.device = value._virtual_block.device
        if self.device.closed:
            raise closed_device_error(self.device)
        if not is_nested and value.requires_grad and torch.is_grad_enabled():
            return _to_host(value)
        return inner

    def close(self, value: Any) -> Any:
        """The value for the device: an argument itself, or a device tensor around a new result.

        New memory is noted in `blocks`. Raises torch's OutOfMemoryError.
        """
        if self.device is None or self.keeps_on_host:
            return value
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in self.arguments:
            return self.arguments[id(value)]
        if value.is_nested:
            return _wrap_nested_tensor(value, self.device, self.blocks)
        if value.requires_grad and torch.is_grad_enabled():
            return _to_device(value, self.device, self.blocks)
        return _wrap_dense(value, self.device, self.blocks)


def nested_to_device(
    tensor: torch.Tensor, device: VirtualDevice, non_blocking: bool, dtype: torch.dtype | None
) -> Any:
    """A copy of a nested host tensor on the device; the copy is recorded.

    Raises torch's OutOfMemoryError, and RuntimeError at a wait that is refused or tells of a failed
    kernel.
    """
    if dtype is None or dtype is tensor.dtype:
        moved = tensor.clone()
    else:
        moved = tensor.to(dtype)
    record_copy(
        moved.values(),
        HOST,
        device.label,
        pinned=has_pinned_memory(tensor),
        non_blocking=non_blocking,
    )
    return _wrap_nested_tensor(moved, device, {})
