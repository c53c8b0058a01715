"""Sparse tensors, and nested tensors of the strided layout, on the virtual device.

The inner tensor of a device tensor is the CPU tensor with its values. A COO tensor lists the
coordinates of its elements; a compressed one (CSR, CSC, BSR, BSC) has shorter indices.
"""

from __future__ import annotations

import re
from functools import partial, partialmethod
from typing import Any, Final

import torch
import torch.nested

from virtual_cuda.device.hidden import conceal, reveal
from virtual_cuda.device.pinning import SPARSE_LAYOUTS, is_pinned, parts_of_sparse
from virtual_cuda.device.state import CPU, Block, VirtualDevice, open_device_named, open_device_of
from virtual_cuda.device.tensor import AUTOCAST, VIRTUAL, Tensor, make_shell
from virtual_cuda.device.tensor import wrap as wrap_strided
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import placement
from virtual_cuda.ops.cpu_errors import handle_cpu_error
from virtual_cuda.ops.dispatch import (
    WRAPPERS,
    Unwrapped,
    allocate,
    closed_device_error,
    record_operation,
    require_open_device,
    wrap_result,
)
from virtual_cuda.ops.elementwise import in_single
from virtual_cuda.ops.placement import HOST, record_copy, waits_of
from virtual_cuda.ops.registry import NOT_EMULATED, call_of, facts_of, operator
from virtual_cuda.ops.rules import alert_nondeterministic, no_kernel_error
from virtual_cuda.patching import identity
from virtual_cuda.trees import leaves_of, map_leaves, map_only

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
        ctx.device = conceal(tensor._block.device)
        return tensor._inner.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _dense(gradient, reveal(ctx.device), {})


class _ToDevice(torch.autograd.Function):
    """Puts a host tensor into the device's graph; its gradient goes to the host."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, device: VirtualDevice, blocks: dict[int, Block]) -> Any:
        return _dense(tensor.detach(), device, blocks)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient._inner, None, None


_to_host: Final[Any] = _ToHost.apply
_to_device: Final[Any] = _ToDevice.apply


class NestedTensor(Tensor):
    """A nested tensor of the strided layout on a virtual device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_nested(func, args, kwargs or {})

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(
            f"The virtual device cannot run {func} on a nested tensor of the strided layout."
        )

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The tensor on another device or in another dtype, or itself if nothing changes.

        A copy to the host is recorded.
        """
        # as it is now: ours takes a number for a GPU
        parse = find_internal("torch._C._nn._parse_to", "`to` of a nested tensor")
        device, dtype, *_ = parse(*args, **kwargs)
        open_device = self._block.device if device is None else open_device_named(device)
        inner = self._inner if dtype in (None, self.dtype) else self._inner.to(dtype)
        if open_device is not None:
            return (
                self
                if inner is self._inner and open_device is self._block.device
                else _nested(inner.clone(), open_device, {})
            )
        record_copy("to_host", self._inner.values(), False, False, self._block.device.label, HOST)
        return inner.clone()

    def cpu(self, *args: Any) -> Any:
        return self.to("cpu")

    def cuda(self, device: Any = None, *args: Any) -> Any:
        return self.to("cuda" if device is None else device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        pieces = ",\n".join(
            "  " + repr(piece).replace("\n", "\n  ") for piece in self.detach().unbind()
        )
        return f"nested_tensor([\n{pieces}\n])"


NestedTensor.__name__ = "Tensor"
NestedTensor.__module__ = "torch"


def _block_of(
    storage: torch.UntypedStorage, device: VirtualDevice, blocks: dict[int, Block]
) -> Block:
    """The block of a storage: the known one, or a new one, which is added to `blocks`."""
    block = blocks.get(storage._cdata)
    if block is None:
        block = blocks[storage._cdata] = allocate(device, storage.nbytes())
    return block


def _dense(value: torch.Tensor, device: VirtualDevice, blocks: dict[int, Block]) -> Any:
    """A device tensor around a strided one; it shares the block of its storage."""
    return wrap_strided(value, _block_of(value.untyped_storage(), device, blocks))


def _nested(value: torch.Tensor, device: VirtualDevice, blocks: dict[int, Block]) -> Any:
    """A device tensor around a nested one; it shares the block of its storage."""
    # Its shape is nobody's business in C++, which never looks at it.
    shell = make_shell(NestedTensor, (value.size(0),), dtype=value.dtype, device=device.lazy)
    shell._inner, shell._block = value, _block_of(value.values().untyped_storage(), device, blocks)
    return shell


def run_nested(func: Any, args: Any, kwargs: Any, device: VirtualDevice | None = None) -> Any:
    """Call any function of torch on the inner tensors; its results are put on the device.

    `device` is where they go if no argument is on a device. The operation is recorded. Raises
    DeviceClosed, or what has ended the device.
    """
    known = {}  # nested arguments by the identity of their inner tensor
    blocks = {}  # by the address of a storage

    def down(value: Any) -> Any:
        """The value for the host: an inner tensor, also in the graph; "cpu" for a device."""
        nonlocal device
        if type(value) is NestedTensor:
            known[id(value._inner)] = value
            blocks[value._inner.values().untyped_storage()._cdata] = value._block
        elif type(value) in VIRTUAL:
            blocks[value._inner.untyped_storage()._cdata] = value._block
        else:
            return (
                "cpu"
                if isinstance(value, torch.device) and open_device_of(value) is not None
                else value
            )
        device = device or value._block.device
        if device.closed:
            raise closed_device_error(device)
        graph = type(value) is not NestedTensor and value.requires_grad and torch.is_grad_enabled()
        return _to_host(value) if graph else value._inner

    def up(value: Any) -> Any:
        """The value for the device: an argument itself, or a device tensor around a new result."""
        if (
            not isinstance(value, torch.Tensor)
            or device is None
            or getattr(func, "__name__", "") in _HOST_ONLY
        ):
            return value
        if id(value) in known:
            return known[id(value)]
        if value.is_nested:
            return _nested(value, device, blocks)
        graph = value.requires_grad and torch.is_grad_enabled()
        return _to_device(value, device, blocks) if graph else _dense(value, device, blocks)

    # Compute, wrap and record.
    args, kwargs = map_leaves(down, (tuple(args), kwargs))
    before = len(blocks)
    out = map_leaves(up, func(*args, **kwargs))
    if device is not None and any(isinstance(leaf, torch.Tensor) for leaf in leaves_of(out)):
        made = sum(block.size for block in list(blocks.values())[before:])
        record_operation(f"aten.{getattr(func, '__name__', 'nested')}.default", device, made)
    return out


def nested_to_device(
    tensor: torch.Tensor, device: VirtualDevice, non_blocking: bool, dtype: torch.dtype | None
) -> Any:
    """A copy of a nested host tensor on the device; the copy is recorded."""
    moved = tensor.clone() if dtype in (None, tensor.dtype) else tensor.to(dtype)
    record_copy("to_device", moved.values(), is_pinned(tensor), non_blocking, HOST, device.label)
    return _nested(moved, device, {})


aten: Final = torch.ops.aten
_make: Final = make_shell


class SparseTensor(Tensor):
    """A sparse tensor on a virtual device."""

    _parts: dict[int, Block]  # by storage: the blocks of its indices and values

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(func, args, kwargs or {})

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return self._inner.layout

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return bool(self._inner.is_sparse)

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        return bool(self._inner.is_sparse_csr)

    def to_sparse(self, *args: Any, layout: Any = None, **kwargs: Any) -> Any:
        if self._inner.layout is torch.sparse_coo:
            return super().to_sparse(
                *args, **({} if layout is None else {"layout": layout}), **kwargs
            )
        if layout not in (None, torch.sparse_coo):
            return getattr(self, f"to_{str(layout)[6:]}")(*kwargs.values())
        return aten._to_sparse.default(self)  # C++ takes it for a COO tensor and would do nothing

    def to_sparse_coo(self) -> Any:
        return self.to_sparse()

    def _to_compressed(self, kind: str, *args: Any, **kwargs: Any) -> Any:
        if self._inner.layout is torch.sparse_coo:
            return getattr(super(), f"to_sparse_{kind}")(*args, **kwargs)
        same = self._inner.layout is getattr(torch, f"sparse_{kind}")
        return self if same else getattr(aten, f"_to_sparse_{kind}").default(self, *args, **kwargs)

    to_sparse_csr = partialmethod(_to_compressed, "csr")
    to_sparse_csc = partialmethod(_to_compressed, "csc")
    to_sparse_bsr = partialmethod(_to_compressed, "bsr")
    to_sparse_bsc = partialmethod(_to_compressed, "bsc")

    def _asked(self, name: str) -> Any:
        """The answer to a question that only COO tensors have. Raises for others, as torch does.

        C++ gets an answer for all of them (see `_as_coo`); Python is refused.
        """
        if self._inner.layout is not torch.sparse_coo:
            getattr(self._inner, name)()  # raises
        return getattr(super(), name)()

    is_coalesced = partialmethod(_asked, "is_coalesced")
    coalesce = partialmethod(_asked, "coalesce")
    indices = partialmethod(_asked, "indices")
    _indices = partialmethod(_asked, "_indices")
    _values = partialmethod(_asked, "_values")

    def new(self, *args: Any, device: Any = None) -> Any:
        """A new sparse tensor by torch's old constructor, which `SparseAdam` uses."""
        if len(args) < 2 or isinstance(args[0], int):
            return wrap(self._inner.new(*args), self._block.device)[0]
        return torch.sparse_coo_tensor(*args, dtype=self.dtype, device=self.device)

    def __copy__(self) -> Any:
        return wrap(self._inner, self._block.device, self._parts)[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]


SparseTensor.__name__ = "Tensor"
SparseTensor.__module__ = "torch"


def _account(shell: Any, device: VirtualDevice, known: dict[int, Block]) -> int:
    """Give each part of a sparse tensor its block, and return how many bytes are new.

    That is the known block of its storage, or a new one. Raises torch's OutOfMemoryError.
    """
    held: dict[int, Block] = {}
    fresh = 0
    for part in parts_of_sparse(shell._inner):
        storage = part.untyped_storage()
        block = known.get(storage._cdata)
        if block is None:
            fresh += storage.nbytes()
            block = allocate(device, storage.nbytes())
        held[storage._cdata] = shell._block = block
    shell._parts = held
    return fresh


def wrap(
    value: torch.Tensor, device: VirtualDevice, known: dict[int, Block] | None = None
) -> tuple[Any, int]:
    """A device tensor around a sparse one, and how many bytes are new."""
    shape = value.shape
    layout = torch.sparse_coo
    keys = AUTOCAST
    shell = _make(
        SparseTensor,
        shape,
        None,
        None,
        None,
        value.dtype,
        layout,
        device.lazy,
        False,
        False,
        None,
        False,
        False,
        keys,
    )
    shell._inner = value
    return shell, _account(shell, device, known or {})


class _OpenedSparse(Unwrapped):
    """Arguments of a call of which some are sparse, opened."""

    __slots__ = ()

    def open(self, value: Any) -> Any:
        """The value with inner tensors in the place of device tensors; what was met is noted."""
        if type(value) is not SparseTensor:
            return super().open(value)
        device = value._block.device
        self.device = self.device or device
        if device not in self.devices:
            self.devices.append(device)
        self.back.setdefault(identity(value._inner), value)
        self.blocks.update(value._parts)
        return value._inner

    def close(self, value: Any, device: VirtualDevice | None) -> tuple[Any, int]:
        """The results on the device, and how many bytes are new there."""
        if not isinstance(value, torch.Tensor):
            return super().close(value, device)
        known = self.back.get(identity(value))
        if type(known) is SparseTensor:
            return known, _account(known, known._block.device, self.blocks)
        if known is not None or device is None:
            return super().close(value, device)
        if value.layout is torch.strided:
            return wrap_result(value, device, self.blocks)
        return wrap(value, device, self.blocks)


class _Coordinates(Block):
    """The block of a compressed tensor's coordinates, which are made for C++."""

    __slots__ = ("of",)
    of: Any


def _as_coo(func: Any, args: Any) -> Any:
    """The answer to what autograd asks of a compressed tensor; NotImplemented for all else.

    C++ takes it for a COO tensor, and asks for its parts, to build one like it.
    """
    first = args[0]
    # Its parts, as a COO tensor would have them.
    if type(first) is SparseTensor and first._inner.layout is not torch.sparse_coo:
        if func is aten.is_coalesced.default:
            return True
        if func is aten._values.default:
            return aten.values.default(first)
        if func in (aten._indices.default, aten.indices.default):
            coordinates = first._inner.to_sparse()._indices()
            block = _Coordinates(first._block.device, coordinates.nbytes)
            block.of = first
            return wrap_strided(coordinates, block)
    # A new tensor from such parts: a compressed one again.
    if func is aten._sparse_coo_tensor_with_dims_and_tensors.default and isinstance(
        args[3]._block, _Coordinates
    ):
        pattern = args[3]._block.of
        *indices, _ = parts_of_sparse(pattern._inner)
        like = pattern._inner
        blocks = {**pattern._parts, args[4]._inner.untyped_storage()._cdata: args[4]._block}
        build: Any = torch.sparse_compressed_tensor
        made = build(*indices, args[4]._inner.detach(), like.shape, layout=like.layout)
        return wrap(made, pattern._block.device, blocks)[0]
    return NotImplemented


_HALF: Final = re.compile("not implemented for '(Half|BFloat16)'")


def _in_single(func: Any, inner: Any, named: Any, error: Exception) -> Any:
    """The result of a half-precision operator that the CPU lacks, computed in single precision.

    NOT_EMULATED where the error has another reason.
    """
    spelled = _HALF.search(str(error))
    if spelled is None:
        return NOT_EMULATED
    narrow = torch.float16 if spelled[1] == "Half" else torch.bfloat16
    wide_args, wide_named = map_only(
        torch.Tensor, lambda t: t.float() if t.dtype is narrow else t, (tuple(inner), named)
    )
    out = call_of(func)(*wide_args, **wide_named)
    if out is wide_args[0]:
        return inner[0].copy_(out.to(narrow))
    return map_only(torch.Tensor, lambda t: t.to(narrow) if t.dtype is torch.float32 else t, out)


_sparse_product: Final = find_internal(
    "torch.ops.aten._sparse_sparse_matmul.default", otherwise=None
)
_PRODUCTS: Final = (aten.mm.default, aten.addmm.default, _sparse_product)
_FACTORS: Final = {  # what CUDA multiplies: a layout, and those of the second factor
    torch.strided: (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsc),
    torch.sparse_csr: (torch.strided, torch.sparse_csr, torch.sparse_csc),
    torch.sparse_csc: (torch.strided, torch.sparse_csr, torch.sparse_csc),
    torch.sparse_bsr: (torch.strided,),
}
_NO_MKL: Final = re.compile(
    r"(addmm: computation on )CPU( is not implemented for .*) without MKL|'SparseCsrCPU' backend"
)


def _product(func: Any, inner: Any, named: Any, error: Exception) -> Any:
    """A product with compressed tensors, which the CPU computes only if it was built with MKL.

    NOT_EMULATED where the error has another reason. Raises RuntimeError for layouts that CUDA does
    not multiply.
    """
    found = _NO_MKL.search(str(error)) if func in _PRODUCTS else None
    if found is None:
        return NOT_EMULATED
    *added, first, second = inner
    if second.layout not in _FACTORS.get(first.layout, ()):
        raise RuntimeError(f"{found[1]}CUDA{found[2]}") if found[1] else error
    if any(t.layout is torch.strided for t in inner):
        return call_of(func)(
            *(t if t.layout is torch.strided else t.to_dense() for t in inner), **named
        )
    out = torch.sparse.mm(first.to_sparse_coo(), second.to_sparse_coo()) * named.get("alpha", 1)
    if added:
        out = out + added[0].to_sparse_coo() * named.get("beta", 1)
    return out.coalesce().to_sparse(layout=added[0].layout if added else torch.sparse_csr)


def _joined(func: Any, inner: Any, named: Any) -> Any:
    """The sum of two COO tensors, with their elements one after the other, as on CUDA.

    The CPU may merge them. The first is changed by an in-place operator. NOT_EMULATED where the
    CPU's own kernel is to run.
    """
    first, second = inner[:2]
    if not all(
        isinstance(t, torch.Tensor) and t.layout is torch.sparse_coo and t._nnz()
        for t in (first, second)
    ):
        return NOT_EMULATED
    if first.shape != second.shape or first.sparse_dim() != second.sparse_dim() or "out" in named:
        return NOT_EMULATED  # the CPU says what is wrong
    # In the dtype of the sum; the CPU refuses it where it cannot be written in place.
    dtype = torch.result_type(first, second)
    factor = named.get("alpha", 1)
    in_place = func._schema.is_mutable
    if in_place and dtype is not first.dtype:
        return NOT_EMULATED
    factor = -factor if func._schema.name.startswith("aten::sub") else factor
    # Join the elements of both.
    values = torch.cat([first._values().to(dtype), second._values().to(dtype) * factor])
    indices = torch.cat([first._indices(), second._indices()], 1)
    made = torch.sparse_coo_tensor(
        indices, values, first.shape, check_invariants=False, is_coalesced=False
    )
    if made._nnz() > made.numel():  # so that it does not grow without end
        made = made.coalesce()._coalesced_(False)
    return first.copy_(made) if in_place else made


_SUMS: Final = (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run any operator that takes or gives a sparse tensor, and record it.

    Raises what CUDA raises.
    """
    if func is aten._to_copy.default:
        return _to_copy(func, args, kwargs)
    if (answer := _as_coo(func, args)) is not NotImplemented:
        return answer
    # Open the arguments, and find out where the results will be.
    seen = _OpenedSparse()
    inner = [seen.open(value) for value in args]
    named = {key: seen.open(value) for key, value in kwargs.items()}
    target = seen.device
    if named.get("device") is not None:
        target = open_device_of(named["device"])
        named["device"] = named["device"] if target is None else CPU
    named.pop("pin_memory", None)
    if seen.device is not None and seen.device.closed:
        raise closed_device_error(seen.device)
    # Arguments on several devices: the message names the sparse wrapper.
    if (seen.plain and seen.device is not None) or len(seen.devices) > 1:
        try:
            placement.judge(func, args, kwargs)
        except RuntimeError as error:
            first = (
                next(v for v in args if type(v) is SparseTensor)
                if SparseTensor in map(type, args)
                else None
            )
            if first is None:
                raise
            wrapper = f"wrapper_Sparse{'' if first.is_sparse else 'Csr'}CUDA_{func._schema.overload_name}_"
            name = func._schema.name.split("::")[1]
            raise RuntimeError(re.sub(r"wrapper_CUDA_\w+", wrapper + name, str(error))) from None
    # Refuse what CUDA refuses.
    facts = facts_of(func)
    if facts.nondeterministic is not None:
        alert_nondeterministic(facts, args, kwargs)
    if facts.absent:
        raise no_kernel_error(
            func,
            "SparseCsrCUDA"
            if any(type(v) is SparseTensor and not v.is_sparse for v in args)
            else "CUDA",
        )
    # Compute on the host; where the CPU raises, in another way, if there is one.
    try:
        out = _joined(func, inner, named) if func in _SUMS else NOT_EMULATED
        if out is NOT_EMULATED:
            out = call_of(func)(*inner, **named)
    except Exception as error:
        if target is None:
            raise
        out = _in_single(func, inner, named, error)
        if out is NOT_EMULATED:
            out = _product(func, inner, named, error)
        if out is NOT_EMULATED:
            out = handle_cpu_error(func, inner, named, target, error)
    # Wrap and record.
    closed, nbytes = seen.close(out, target)
    if target is not None and isinstance(out, (torch.Tensor, list, tuple)):
        record_operation(str(func), target, nbytes)
        if (count_waits := waits_of(func)) is not None:
            count_waits(args, kwargs)
    return closed


def _to_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """A copy on the host or a device, or in another dtype. Copies to the host are recorded.

    Raises DeviceClosed, or what has ended the device.
    """
    source = args[0]
    device = kwargs.get("device")
    open_device = require_open_device(source)
    inner = source._inner
    target = open_device if device is None else open_device_of(device)
    moved = inner.to(kwargs["dtype"]) if kwargs.get("dtype") is not None else inner.clone()
    if target is None:
        for part in parts_of_sparse(inner):
            record_copy(
                "to_host", part, False, bool(kwargs.get("non_blocking")), open_device.label, HOST
            )
        return moved
    return wrap(moved, target)[0]


def to_device(
    tensor: torch.Tensor, device: VirtualDevice, non_blocking: bool, dtype: torch.dtype | None
) -> Any:
    """A copy of a sparse host tensor on the device; the copy of each part is recorded."""
    inner = tensor.detach().clone() if dtype is None else tensor.detach().to(dtype, copy=True)
    shell, nbytes = wrap(inner, device)
    record_operation("aten._to_copy.default", device, nbytes)
    pinned = is_pinned(tensor)
    for part in parts_of_sparse(inner):
        record_copy("to_device", part, pinned, non_blocking, HOST, device.label)
    return shell.requires_grad_(tensor.requires_grad)


WRAPPERS.update(dict.fromkeys(SPARSE_LAYOUTS, wrap))

# Operators that make a sparse tensor out of strided ones; all others are known by their arguments.
# How often the host waits was measured on an H200.
operator("_to_sparse.default", "_to_sparse.sparse_dim", plan=run, waits=("sparse", 1))
operator("_to_sparse_csr", plan=run, waits=("sparse", 2))
operator("_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc", "sparse_mask", plan=run)
operator(
    "sparse_coo_tensor.size",
    "sparse_coo_tensor.indices",
    "sparse_coo_tensor.indices_size",
    plan=run,
)
operator("_sparse_coo_tensor_unsafe", "_sparse_coo_tensor_with_dims", plan=run)
operator(
    "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_compressed_tensor_with_dims", plan=run
)
operator("_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward", plan=run, absent=True)
operator("embedding_sparse_backward", "_embedding_bag_sparse_backward", plan=run)
operator(
    "_embedding_bag_backward",
    plan=run,
    kernel=partial(
        in_single,
        find_internal(
            "torch.ops.aten._embedding_bag_backward.default", "gradients of embedding_bag"
        ),
    ),
    nondeterministic=lambda args: "embedding_bag_backward_cuda_max" if args[8] == 2 else None,
)
operator("_gather_sparse_backward", plan=run)
