"""Sparse tensors on the virtual device.

The inner tensor of a device tensor is the CPU tensor with its values. A COO tensor lists the
coordinates of its elements; a compressed one (CSR, CSC, BSR, BSC) has shorter indices.
"""

from __future__ import annotations

import math
import re
from functools import partial, partialmethod
from typing import Any, Final

import torch

from virtual_cuda.device.pinning import SPARSE_LAYOUTS, has_pinned_memory, parts_of_sparse
from virtual_cuda.device.state import Block, VirtualDevice, open_device_of
from virtual_cuda.device.tensor import AUTOCAST, Tensor, make_shell
from virtual_cuda.device.tensor import wrap as wrap_strided
from virtual_cuda.identity import identity
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import placement
from virtual_cuda.ops.cpu_errors import handle_cpu_error
from virtual_cuda.ops.dispatch import (
    WRAPPERS,
    Unwrapped,
    allocate,
    closed_device_error,
    move_to_host,
    record_operation,
    require_open_device,
    work_of,
)
from virtual_cuda.ops.elementwise import HALF, in_single
from virtual_cuda.ops.placement import HOST, record_copy, waits_of
from virtual_cuda.ops.registry import NOT_EMULATED, call_of, facts_of, name_of, operator
from virtual_cuda.ops.rules import alert_nondeterministic, no_kernel_error
from virtual_cuda.recorder import tensors_in
from virtual_cuda.trees import map_only

aten: Final = torch.ops.aten
_data: Final[Any] = torch.Tensor.data


class SparseTensor(Tensor):
    """A sparse tensor on a virtual device."""

    _virtual_parts: dict[int, Block]  # by storage: the blocks of its indices and values

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run_sparse(func, args, kwargs or {})

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return self._virtual_inner.layout

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return bool(self._virtual_inner.is_sparse)

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        return bool(self._virtual_inner.is_sparse_csr)

    def to_sparse(self, *args: Any, layout: Any = None, **kwargs: Any) -> Any:
        """The tensor in another sparse layout, COO by default.

        The conversion is recorded, with its waits. Raises what torch raises for a layout it cannot
        be converted to.
        """
        if self._virtual_inner.layout is torch.sparse_coo:
            if layout is not None:
                kwargs["layout"] = layout
            return super().to_sparse(*args, **kwargs)
        if layout in (None, torch.sparse_coo):
            # C++ takes it for a COO tensor and would do nothing.
            return aten._to_sparse.default(self)
        name = str(layout).removeprefix("torch.")
        return getattr(self, f"to_{name}")(*kwargs.values())

    def to_sparse_coo(self) -> Any:
        return self.to_sparse()

    def _to_compressed_layout(self, kind: str, *args: Any, **kwargs: Any) -> Any:
        """The tensor in a compressed layout; itself if it has that layout.

        `kind` is "csr", "csc", "bsr" or "bsc". The conversion is recorded, with its waits. Raises
        what torch raises for a tensor that cannot be converted.
        """
        layout = self._virtual_inner.layout
        if layout is torch.sparse_coo:
            convert = getattr(super(), f"to_sparse_{kind}")
            return convert(*args, **kwargs)
        if layout is getattr(torch, f"sparse_{kind}"):
            return self
        packet = getattr(aten, f"_to_sparse_{kind}")
        return packet.default(self, *args, **kwargs)

    to_sparse_csr = partialmethod(_to_compressed_layout, "csr")
    to_sparse_csc = partialmethod(_to_compressed_layout, "csc")
    to_sparse_bsr = partialmethod(_to_compressed_layout, "bsr")
    to_sparse_bsc = partialmethod(_to_compressed_layout, "bsc")

    def new(self, *args: Any, device: Any = None) -> Any:
        """A new sparse tensor by torch's old constructor, which `SparseAdam` uses.

        It is on the device of this one, whatever `device` says. Raises torch's OutOfMemoryError,
        and RuntimeError for wrong indices.
        """
        has_parts = len(args) >= 2 and not isinstance(args[0], int)
        if has_parts:
            return torch.sparse_coo_tensor(*args, dtype=self.dtype, device=self.device)
        inner = self._virtual_inner.new(*args)
        shell, _ = wrap_sparse(inner, self._virtual_block.device)
        return shell

    def __copy__(self) -> Any:
        """Another device tensor around the same parts; their memory is shared."""
        device = self._virtual_block.device
        shell, _ = wrap_sparse(self._virtual_inner, device, self._virtual_parts)
        return shell

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with memory of its own and without history, kept in `memo` for this deep copy.

        Raises the error of a closed device, and torch's OutOfMemoryError.
        """
        if id(self) not in memo:
            copy = self.detach().clone()
            memo[id(self)] = copy.requires_grad_(self.requires_grad)
        return memo[id(self)]


SparseTensor.__name__ = "Tensor"
SparseTensor.__module__ = "torch"

# Methods that only COO tensors have.
COO_METHODS: Final = ("is_coalesced", "coalesce", "indices", "_indices", "_values")


def require_coo(tensor: Any, name: str) -> None:
    """Raise what torch raises if a method of COO tensors is called on a compressed device tensor.

    `name` is that of the method. To C++ every sparse tensor of the device is a COO tensor.
    """
    inner = tensor._virtual_inner
    if inner.layout is torch.sparse_coo:
        return
    try:
        getattr(inner, name)()
    except NotImplementedError:
        operator_of_method = getattr(aten, name).default
        raise no_kernel_error(operator_of_method, "SparseCsrCUDA") from None


def _assign_blocks(shell: Any, device: VirtualDevice, known: dict[int, Block]) -> int:
    """Give each part of a sparse tensor its block, and return how many bytes are new.

    That is the block of its storage in `known`, where they are by its address, or a new one. Raises
    torch's OutOfMemoryError.
    """
    parts: dict[int, Block] = {}
    new_bytes = 0
    for part in parts_of_sparse(shell._virtual_inner):
        storage = part.untyped_storage()
        block = known.get(storage._cdata)
        if block is None:
            new_bytes += storage.nbytes()
            block = allocate(device, storage.nbytes())
        parts[storage._cdata] = block
        shell._virtual_block = block
    shell._virtual_parts = parts
    return new_bytes


def wrap_sparse(
    inner: torch.Tensor, device: VirtualDevice, known: dict[int, Block] | None = None
) -> tuple[Any, int]:
    """A device tensor around a sparse one, and how many bytes are new.

    `known` are blocks by the address of their storage. Raises torch's OutOfMemoryError.
    """
    shell = make_shell(
        SparseTensor,
        inner.shape,
        dtype=inner.dtype,
        layout=torch.sparse_coo,
        device=device.lazy,
        _extra_dispatch_keys=AUTOCAST,
    )
    shell._virtual_inner = inner
    return shell, _assign_blocks(shell, device, known or {})


def _resize_shell(tensor: Any, known: dict[int, Block]) -> int:
    """Give a sparse device tensor the shape and the parts that its inner tensor has got.

    Returns how many bytes are new. `known` are blocks by the address of their storage. Raises
    torch's OutOfMemoryError.
    """
    shell, new_bytes = wrap_sparse(tensor._virtual_inner, tensor._virtual_block.device, known)
    _data.__set__(tensor, shell)
    tensor._virtual_parts = shell._virtual_parts
    tensor._virtual_block = shell._virtual_block
    return new_bytes


class _OpenedSparse(Unwrapped):
    """Arguments of a call of which some are sparse, opened."""

    __slots__ = ()

    def open(self, value: Any) -> Any:
        """The value with inner tensors in the place of device tensors; what was met is noted."""
        if type(value) is not SparseTensor:
            return super().open(value)
        self.blocks.update(value._virtual_parts)
        return self._open_tensor(value)

    def has_mixed_places(self) -> bool:
        """True if tensors are in several places, one of them a virtual device.

        A host tensor without dimensions counts as a number, which may be anywhere.
        """
        if len(self.devices) > 1:
            return True
        return self.device is not None and any(tensor.dim() > 0 for tensor in self.plain)

    def close(self, value: Any, device: VirtualDevice | None) -> tuple[Any, int]:
        """The results on the device, and how many bytes are new there.

        An argument that was changed gets blocks for its new parts. Raises torch's OutOfMemoryError.
        """
        if not isinstance(value, torch.Tensor):
            return super().close(value, device)
        known = self.back.get(identity(value))
        if type(known) is SparseTensor:
            if known.shape != value.shape:
                return known, _resize_shell(known, self.blocks)
            return known, _assign_blocks(known, known._virtual_block.device, self.blocks)
        is_new = known is None and device is not None
        if not is_new or value.layout is torch.strided:
            return super().close(value, device)
        assert device is not None
        return wrap_sparse(value, device, self.blocks)


class _Coordinates(Block):
    """The block of a compressed tensor's coordinates, which are made for C++."""

    __slots__ = ("of",)
    of: Any


def _answer_as_coo(func: Any, args: Any) -> Any:
    """The answer to what autograd asks of a compressed tensor; NotImplemented for all else.

    C++ takes it for a COO tensor, and asks for its parts, to build one like it. Raises torch's
    OutOfMemoryError.
    """
    first = args[0]
    is_sparse = type(first) is SparseTensor
    if is_sparse and first._virtual_inner.layout is not torch.sparse_coo:
        return _part_as_coo(func, first)
    if func is aten._sparse_coo_tensor_with_dims_and_tensors.default:
        coordinates = args[3]
        if isinstance(coordinates._virtual_block, _Coordinates):
            return _compress_again(coordinates._virtual_block.of, values=args[4])
    return NotImplemented


def _part_as_coo(func: Any, tensor: Any) -> Any:
    """The part of a compressed tensor that an operator asks of COO tensors; else NotImplemented.

    Coordinates are made for the answer. Raises torch's OutOfMemoryError.
    """
    if func is aten.is_coalesced.default:
        return True
    if func is aten._values.default:
        return aten.values.default(tensor)
    if func is aten._indices.default or func is aten.indices.default:
        coordinates = tensor._virtual_inner.to_sparse()._indices()
        block = _Coordinates(tensor._virtual_block.device, coordinates.nbytes)
        block.of = tensor
        return wrap_strided(coordinates, block)
    return NotImplemented


def _compress_again(pattern: Any, values: Any) -> Any:
    """A compressed device tensor with the indices of another, `pattern`, and these values.

    Raises torch's OutOfMemoryError, and RuntimeError for values that do not fit.
    """
    inner = pattern._virtual_inner
    *indices, _ = parts_of_sparse(inner)
    build: Any = torch.sparse_compressed_tensor
    new_values = values._virtual_inner.detach()
    result = build(*indices, new_values, inner.shape, layout=inner.layout)
    blocks = dict(pattern._virtual_parts)
    blocks[new_values.untyped_storage()._cdata] = values._virtual_block
    shell, _ = wrap_sparse(result, pattern._virtual_block.device, blocks)
    return shell


# ---- what CUDA computes and the CPU does not -----------------------------------------------------

_HALF: Final = re.compile("not implemented for '(Half|BFloat16)'")


def _compute_in_single(func: Any, inner: Any, named: Any, error: Exception) -> Any:
    """The result of a half-precision operator that the CPU lacks, computed in single precision.

    `inner` and `named` are the arguments with CPU tensors, `error` is what the CPU raised. An
    in-place operator changes the first, one with `out` changes that. NOT_EMULATED where the error
    has another reason. Raises what the CPU raises in single precision.
    """
    refused = _HALF.search(str(error))
    if refused is None:
        return NOT_EMULATED
    if refused[1] == "Half":
        narrow = torch.float16
    else:
        narrow = torch.bfloat16

    def to_single(tensor: torch.Tensor) -> torch.Tensor:
        """A half-precision tensor in single precision, any other as it is."""
        if tensor.dtype is narrow:
            return tensor.float()
        return tensor

    def to_half(tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in single precision in half precision, any other as it is."""
        if tensor.dtype is torch.float32:
            return tensor.to(narrow)
        return tensor

    arguments = (tuple(inner), named)
    wide_args, wide_named = map_only(torch.Tensor, to_single, arguments)
    result = call_of(func)(*wide_args, **wide_named)
    if result is wide_args[0]:
        return inner[0].copy_(result.to(narrow))
    out = named.get("out")
    if out is not None:
        return out.copy_(result.to(narrow))
    return map_only(torch.Tensor, to_half, result)


_sparse_product: Final = find_internal(
    "torch.ops.aten._sparse_sparse_matmul.default", otherwise=None
)
_PRODUCTS: Final = (
    aten.mm.default,
    aten.addmm.default,
    _sparse_product,
)
_FACTORS: Final = {  # what CUDA multiplies: a layout, and those of the second factor
    torch.strided: (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsc),
    torch.sparse_csr: (torch.strided, torch.sparse_csr, torch.sparse_csc),
    torch.sparse_csc: (torch.strided, torch.sparse_csr, torch.sparse_csc),
    torch.sparse_bsr: (torch.strided,),
}
_NO_MKL: Final = re.compile(
    r"(addmm: computation on )CPU( is not implemented for .*?)(?: without MKL)?$"
    r"|'SparseCsrCPU' backend"
)


def _compressed_product(func: Any, inner: Any, named: Any, error: Exception) -> Any:
    """A product with compressed tensors that the CPU refuses, all of them if built without MKL.

    `inner` and `named` are the arguments with CPU tensors, `error` is what the CPU raised.
    NOT_EMULATED where the error has another reason. Raises RuntimeError, or `error` itself, for
    layouts that CUDA does not multiply.
    """
    if func not in _PRODUCTS:
        return NOT_EMULATED
    refused = _NO_MKL.search(str(error))
    if refused is None:
        return NOT_EMULATED
    *added, first, second = inner
    second_layouts = _FACTORS.get(first.layout, ())
    if second.layout not in second_layouts:
        if not refused[1]:
            raise error
        raise RuntimeError(f"{refused[1]}CUDA{refused[2]}")
    # With a strided operand, in strided tensors.
    if any(tensor.layout is torch.strided for tensor in inner):
        dense = [_dense_of(tensor) for tensor in inner]
        return call_of(func)(*dense, **named)
    # Otherwise in COO tensors.
    result = torch.sparse.mm(first.to_sparse_coo(), second.to_sparse_coo())
    result = result * named.get("alpha", 1)
    layout = torch.sparse_csr
    if added:
        term = added[0].to_sparse_coo() * named.get("beta", 1)
        result = result + term
        layout = added[0].layout
    return result.coalesce().to_sparse(layout=layout)


def _dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a strided one; itself if it is one."""
    if tensor.layout is torch.strided:
        return tensor
    return tensor.to_dense()


def _has_coo_elements(value: Any) -> bool:
    """True for a COO tensor that lists at least one element."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.layout is torch.sparse_coo and value._nnz() > 0


def _join_elements(func: Any, inner: Any, named: Any) -> Any:
    """The sum of two COO tensors, with their elements one after the other, as on CUDA.

    `inner` and `named` are the arguments of `func`, with CPU tensors. The CPU may merge them. The
    first is changed by an in-place operator. NOT_EMULATED where the CPU's own kernel is to run.
    """
    first = inner[0]
    second = inner[1]
    if "out" in named:
        return NOT_EMULATED
    if not _has_coo_elements(first) or not _has_coo_elements(second):
        return NOT_EMULATED
    has_same_dims = first.sparse_dim() == second.sparse_dim()
    if not has_same_dims or first.shape != second.shape:
        return NOT_EMULATED  # the CPU says what is wrong
    # In the dtype of the sum; the CPU refuses it where it cannot be written in place.
    dtype = torch.result_type(first, second)
    is_in_place = func._schema.is_mutable
    if is_in_place and dtype is not first.dtype:
        return NOT_EMULATED
    factor = named.get("alpha", 1)
    if func._schema.name.startswith("aten::sub"):
        factor = -factor
    # Join the elements of both.
    first_values = first._values().to(dtype)
    second_values = second._values().to(dtype) * factor
    values = torch.cat([first_values, second_values])
    indices = torch.cat([first._indices(), second._indices()], 1)
    result = torch.sparse_coo_tensor(
        indices, values, first.shape, check_invariants=False, is_coalesced=False
    )
    if result._nnz() > result.numel():  # so that it does not grow without end
        result = result.coalesce()._coalesced_(False)
    if is_in_place:
        return first.copy_(result)
    return result


_SUMS: Final = (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)


_MERGES: Final = ("_coalesce", "_sparse_sum", "sum")


def _merge_in_single(func: Any, inner: Any, named: Any) -> Any:
    """Elements of a COO tensor in half precision, added in single precision and rounded once.

    CUDA adds them so; the CPU rounds after each. `inner` and `named` are the arguments of `func`,
    with CPU tensors. NOT_EMULATED where the CPU's own kernel is to run.
    """
    if name_of(func) not in _MERGES or inner[0].layout is not torch.sparse_coo:
        return NOT_EMULATED
    if inner[0].dtype not in HALF or named.get("dtype") is not None:
        return NOT_EMULATED
    return in_single(partial(call_of(func), **named), *inner)


def _solve_with_blocks(func: Any, inner: Any, named: Any) -> Any:
    """The solution of a triangular system of blocks, solved as a dense one.

    The CPU lacks systems with ones on the diagonal, and may end the process for others. `inner` and
    `named` are the arguments of `triangular_solve`, with CPU tensors; those to write into are among
    `named`. NOT_EMULATED for other layouts.
    """
    right, matrix, *options = inner
    if matrix.layout is not torch.sparse_bsr:
        return NOT_EMULATED
    options_by_name = {name: value for name, value in named.items() if name not in _SOLUTION}
    solution = _solve_triangular(right, matrix.to_dense(), *options, **options_by_name)
    if matrix._nnz() == 0:
        solution.fill_(math.nan)
    if "X" in named:
        return named["X"].copy_(solution), named["M"].resize_(0)
    return solution, right.new_empty(0)


def _solve_triangular(
    right: torch.Tensor,
    matrix: torch.Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> torch.Tensor:
    """The solution of a dense triangular system, with the options of `triangular_solve`.

    Raises RuntimeError for shapes that do not fit.
    """
    if transpose:
        matrix = matrix.mT
        upper = not upper
    options = {"upper": upper, "unitriangular": unitriangular}
    solution: torch.Tensor = torch.linalg.solve_triangular(matrix, right, **options)
    return solution


_SOLUTION: Final = ("X", "M")  # what `triangular_solve` writes into, if it is given

# What runs in the place of the CPU's kernel, or gives NOT_EMULATED; for all others
# `_merge_in_single`.
_IN_PLACE_OF_KERNEL: Final = {
    **dict.fromkeys(_SUMS, _join_elements),
    aten.triangular_solve.default: _solve_with_blocks,
    aten.triangular_solve.X: _solve_with_blocks,
}


# ---- any operator --------------------------------------------------------------------------------


def run_sparse(func: Any, args: Any, kwargs: Any) -> Any:
    """Run any operator that takes or gives a sparse tensor, record it, and give its results.

    Raises what CUDA raises, DeviceClosed or the error of what ended the device, torch's
    OutOfMemoryError, NeedsValues in a run without values, and RuntimeError at a wait that is
    refused or tells of a failed kernel.
    """
    if func is aten._to_copy.default:
        return _run_copy(func, args, kwargs)
    answer = _answer_as_coo(func, args)
    if answer is not NotImplemented:
        return answer
    # Open the arguments, and find out where the results will be.
    opened = _OpenedSparse()
    inner = [opened.open(value) for value in args]
    named = {key: opened.open(value) for key, value in kwargs.items()}
    named.pop("pin_memory", None)
    device = opened.device
    target = move_to_host(named, device)
    # Refuse what CUDA refuses.
    if device is not None and device.closed:
        raise closed_device_error(device)
    if opened.has_mixed_places():
        _compare_devices(func, args, kwargs)
    facts = facts_of(func)
    if facts.nondeterministic is not None:
        alert_nondeterministic(facts, args, kwargs)
    if facts.absent:
        raise no_kernel_error(func, _backend_of(args))
    # Compute, wrap and record.
    results = _compute_on_host(func, inner, named, target)
    wrapped, nbytes = opened.close(results, target)
    if target is not None and isinstance(results, (torch.Tensor, list, tuple)):
        work = None  # the clock has no rules for sparse tensors
        if all(tensor.layout is torch.strided for tensor in tensors_in((inner, results))):
            work = work_of(results, inner)
        record_operation(str(func), target, nbytes, work)
        count_waits = waits_of(func)
        if count_waits is not None:
            count_waits(args, kwargs)
    return wrapped


def _backend_of(args: Any) -> str:
    """torch's name for the backend of an operator with these arguments."""
    for value in args:
        if type(value) is SparseTensor and not value.is_sparse:
            return "SparseCsrCUDA"
    return "CUDA"


def _compare_devices(func: Any, args: Any, kwargs: Any) -> None:
    """Judge arguments on several devices. Raises RuntimeError, which names the sparse wrapper.

    The operator's own rule may record copies and waits; what it gives is not used. Raises
    RuntimeError also at a wait that is refused or tells of a failed kernel.
    """
    try:
        placement.judge_placement(func, args, kwargs)
    except RuntimeError as error:
        sparse_args = [value for value in args if type(value) is SparseTensor]
        if not sparse_args:
            raise
        backend = "SparseCsr"
        if sparse_args[0].is_sparse:
            backend = "Sparse"
        name = name_of(func)
        wrapper = f"wrapper_{backend}CUDA_{func._schema.overload_name}_{name}"
        text = re.sub(r"wrapper_CUDA_\w+", wrapper, str(error))
        raise RuntimeError(text) from None


def _compute_on_host(func: Any, inner: Any, named: Any, target: VirtualDevice | None) -> Any:
    """The results of an operator on inner tensors.

    Where the CPU raises, they are computed in another way, if there is one. After a bad index the
    open GPU is marked: the next wait of the host raises. Raises what CUDA raises; what the CPU
    raises, where the results stay on the host.
    """
    results = NOT_EMULATED
    try:
        compute = _IN_PLACE_OF_KERNEL.get(func, _merge_in_single)
        results = compute(func, inner, named)
        if results is NOT_EMULATED:
            results = call_of(func)(*inner, **named)
    except Exception as error:
        if target is None:
            raise
        results = _compute_in_single(func, inner, named, error)
        if results is NOT_EMULATED:
            results = _compressed_product(func, inner, named, error)
        if results is NOT_EMULATED:
            results = handle_cpu_error(func, inner, named, target, error)
    return results


def _run_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """A copy on the host or a device, or in another dtype. Copies from one to another are recorded.

    Raises DeviceClosed or the error of what ended the device, torch's OutOfMemoryError, and
    RuntimeError at a wait that is refused or tells of a failed kernel.
    """
    source = args[0]
    device = kwargs.get("device")
    dtype = kwargs.get("dtype")
    open_device = require_open_device(source)
    target: VirtualDevice | None = open_device
    if device is not None:
        target = open_device_of(device)
    inner = source._virtual_inner
    if dtype is None:
        copy = inner.clone()
    else:
        copy = inner.to(dtype)
    if target is not open_device:
        label = HOST if target is None else target.label
        non_blocking = bool(kwargs.get("non_blocking"))
        for part in parts_of_sparse(inner):
            record_copy(part, open_device.label, label, non_blocking=non_blocking)
    if target is None:
        return copy
    shell, _ = wrap_sparse(copy, target)
    return shell


def sparse_to_device(
    tensor: torch.Tensor, device: VirtualDevice, non_blocking: bool, dtype: torch.dtype | None
) -> Any:
    """A copy of a sparse host tensor on the device; the copy of each part is recorded.

    Raises torch's OutOfMemoryError, and RuntimeError at a wait that is refused or tells of a failed
    kernel.
    """
    inner = tensor.detach()
    if dtype is None:
        inner = inner.clone()
    else:
        inner = inner.to(dtype, copy=True)
    shell, nbytes = wrap_sparse(inner, device)
    record_operation("aten._to_copy.default", device, nbytes)
    pinned = has_pinned_memory(tensor)
    for part in parts_of_sparse(inner):
        record_copy(part, HOST, device.label, pinned=pinned, non_blocking=non_blocking)
    return shell.requires_grad_(tensor.requires_grad)


WRAPPERS.update(dict.fromkeys(SPARSE_LAYOUTS, wrap_sparse))

# Operators that make a sparse tensor out of strided ones; all others are known by their arguments.
# How often the host waits was measured on an H200.
operator("_to_sparse.default", "_to_sparse.sparse_dim", plan=run_sparse, waits=("sparse", 1))
operator("_to_sparse_csr", plan=run_sparse, waits=("sparse", 2))
operator("_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc", "sparse_mask", plan=run_sparse)
operator(
    "sparse_coo_tensor.size",
    "sparse_coo_tensor.indices",
    "sparse_coo_tensor.indices_size",
    plan=run_sparse,
)
operator("_sparse_coo_tensor_unsafe", "_sparse_coo_tensor_with_dims", plan=run_sparse)
operator(
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_compressed_tensor_with_dims",
    "sparse_compressed_tensor.comp_plain_value_size",
    plan=run_sparse,
)
operator("_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward", plan=run_sparse, absent=True)
operator("embedding_sparse_backward", "_embedding_bag_sparse_backward", plan=run_sparse)
_embedding_bag_backward: Final = find_internal(
    "torch.ops.aten._embedding_bag_backward.default", "gradients of embedding_bag"
)
operator(
    "_embedding_bag_backward",
    plan=run_sparse,
    kernel=partial(in_single, _embedding_bag_backward),
    nondeterministic=lambda args: "embedding_bag_backward_cuda_max" if args[8] == 2 else None,
)
operator("_gather_sparse_backward", plan=run_sparse)
