"""Functions of torch that make, move and check sparse and nested tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.nested

from virtual_cuda.device.cuda_errors import argument_elsewhere_error, label_of
from virtual_cuda.device.pinning import SPARSE_LAYOUTS
from virtual_cuda.device.state import VirtualDevice, find_open_device
from virtual_cuda.device.tensor import VIRTUAL, Tensor
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import placement
from virtual_cuda.ops.nested import NestedTensor, call_with_nested_tensors, nested_to_device
from virtual_cuda.ops.sparse import COO_METHODS, SparseTensor, require_coo, sparse_to_device
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches
from virtual_cuda.torch_api.compatibility import default_device, sparse_tensors_to_validate
from virtual_cuda.trees import leaves_of

aten: Final = torch.ops.aten
# Where this torch lacks it, a default device is always asked for.
_count_of_function_modes: Final = find_internal(
    "torch._C._len_torch_function_stack", otherwise=lambda: 1
)


# ---- nested tensors ------------------------------------------------------------------------------


def _make_nested_tensor(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `torch.nested.nested_tensor` or its like, the `original`.

    Tensors on the device, or for it, become a nested tensor there, and the operation is recorded.
    Raises RuntimeError for tensors on two devices, CUDA's error for a device that is not there,
    DeviceClosed or the error of what ended the device, torch's OutOfMemoryError, and what
    `original` raises.
    """
    if args:
        pieces = args[0]
    else:
        pieces = [kwargs.get(name) for name in ("tensor_list", "ts", "t")]
    tensors = [leaf for leaf in leaves_of(pieces) if isinstance(leaf, torch.Tensor)]
    device: VirtualDevice | None = None
    if kwargs.get("device") is not None:
        device = find_open_device(kwargs["device"])
    else:
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                raise argument_elsewhere_error(
                    "tensors", label_of(tensor), label_of(tensors[0]), "wrapper_CUDA_cat"
                )
        device = _device_of_first(tensors)
    if device is None or kwargs.get("layout") is torch.jagged:
        return original(*args, **kwargs)
    kwargs.pop("device", None)
    return call_with_nested_tensors(original, args, kwargs, device)


def _device_of_first(values: Iterable[Any]) -> VirtualDevice | None:
    """The device of the first device tensor among values; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            device: VirtualDevice = value._virtual_block.device
            return device
    return None


def _rebuild_nested_tensor(original: Any, buffer: Any, *args: Any, **kwargs: Any) -> Any:
    """Rebuild a nested tensor that was saved or sent, by `original`.

    `buffer` has its values; its sizes, strides and offsets, in `args`, are on the host. On the
    device the operation is recorded. Raises DeviceClosed or the error of what ended the device,
    torch's OutOfMemoryError, and what `original` raises.
    """
    if type(buffer) not in VIRTUAL:
        return original(buffer, *args, **kwargs)
    return call_with_nested_tensors(original, (buffer, *args), kwargs)


def _has_torch_function(original: Any, values: Any) -> bool:
    """True if a class among the values wants to see the call: what `original` says.

    Layers ask so before they take the fast path, which nested tensors of the device take as well.
    """
    others = [value for value in values if type(value) is not NestedTensor]
    return bool(original(tuple(others)))


def _forget_tensors_to_validate() -> None:
    """Remove the device's sparse tensors from those that wait to be validated.

    The next `torch.load` would do that, on a device that is closed then.
    """
    waiting = sparse_tensors_to_validate()
    waiting[:] = [tensor for tensor in waiting if type(tensor) is not SparseTensor]


@torch_patches(Stage.WRAP)
def _nested_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of what makes nested tensors and asks for them."""
    for name in ("nested_tensor", "as_nested_tensor"):
        yield around(torch.nested, name, _make_nested_tensor)
    yield around(torch, "_nested_tensor_from_mask", _make_nested_tensor)
    for name in ("_nested_view_from_buffer", "_nested_view_from_buffer_copy"):
        yield around(torch, name, _rebuild_nested_tensor)
    yield around(torch.overrides, "has_torch_function", _has_torch_function)


# ---- sparse tensors ------------------------------------------------------------------------------


def _device_asked_for(kwargs: dict[str, Any], tensors: Iterable[Any]) -> VirtualDevice | None:
    """The device that a constructor is asked for, or None for the host.

    It is named by `device`, by the default device, which is put into `kwargs`, or by a tensor that
    is given. Raises CUDA's error for a device that is not there.
    """
    if kwargs.get("device") is None and _count_of_function_modes():
        default = default_device()
        if default.type == "cuda":
            kwargs["device"] = default
    if kwargs.get("device") is not None:
        return find_open_device(kwargs["device"])
    for tensor in tensors:
        if type(tensor) in VIRTUAL:
            device: VirtualDevice = tensor._virtual_block.device
            return device
    return None


_compressed_tensor_of_parts: Final = aten.sparse_compressed_tensor.comp_plain_value_size
_invariants: Final[Any] = torch.sparse.check_sparse_tensor_invariants


def _make_coo(
    original: Any, indices: Any = None, values: Any = None, size: Any = None, **kwargs: Any
) -> Any:
    """Call `torch.sparse_coo_tensor`, the `original`, which may be for the device.

    What is not on the device is copied there first, which is recorded. Raises RuntimeError for
    indices and values on two devices and for wrong indices, CUDA's error for a device that is not
    there, torch's OutOfMemoryError, RuntimeError at a wait that is refused or tells of a failed
    kernel, and what `original` raises for the host.
    """
    device = _device_asked_for(kwargs, (values, indices))
    if kwargs.get("device") is None:
        _require_values_beside(indices, values)
    if device is None:
        arguments = [value for value in (indices, values, size) if value is not None]
        return original(*arguments, **kwargs)
    # It is for the device.
    if values is None:  # a size alone, which may be the first argument
        size = tuple(indices if size is None else size)
        indices = torch.empty((len(size), 0), dtype=torch.int64)
        values = torch.empty(0)
    indices = torch.as_tensor(indices, device=device.cuda)
    indices = indices.to(torch.int64)
    values = torch.as_tensor(values, dtype=kwargs.get("dtype"), device=device.cuda)
    tensor = _make_checked_coo(device, indices, values, size, kwargs)
    if kwargs.get("requires_grad"):
        return tensor.requires_grad_()
    return tensor


def _make_checked_coo(
    device: VirtualDevice, indices: Any, values: Any, size: Any, options: dict[str, Any]
) -> Any:
    """A sparse tensor on the device; raises RuntimeError for wrong indices, if they are checked.

    They are checked if the options of `torch.sparse_coo_tensor` or torch's setting say so. Raises
    torch's OutOfMemoryError, and RuntimeError at a wait that is refused or tells of a failed
    kernel.
    """
    checks = options.get("check_invariants")
    if checks is None:
        checks = _invariants.is_enabled()
    is_coalesced = options.get("is_coalesced")
    # C++ cannot tell on the device whether indices are in order.
    with _invariants(bool(checks and not is_coalesced)):
        tensor = _make_coo_on_device(device, indices, values, size, is_coalesced)
    if checks and is_coalesced:
        # Found now, as it is patched, too.
        validate = find_internal(
            "torch._validate_sparse_coo_tensor_args", otherwise=lambda *args: None
        )
        validate(indices, values, tensor.shape, True)
    return tensor


def _require_values_beside(indices: Any, values: Any) -> None:
    """Raise RuntimeError if indices and values are tensors on two devices."""
    if not isinstance(indices, torch.Tensor) or not isinstance(values, torch.Tensor):
        return
    if indices.device != values.device:
        wrapper = "wrapper_SparseCUDA___sparse_coo_tensor_with_dims_and_tensors"
        raise argument_elsewhere_error("values", label_of(values), label_of(indices), wrapper)


def _make_coo_on_device(
    device: VirtualDevice, indices: Any, values: Any, size: Any, is_coalesced: bool | None
) -> Any:
    """A COO tensor of device tensors; without `size`, it is as large as the indices need.

    The operators for it are recorded, and without `size` that the host waits for the largest index.
    Raises torch's OutOfMemoryError, and RuntimeError for parts that do not fit and at a wait that
    is refused or tells of a failed kernel.
    """
    options = {
        "dtype": values.dtype,
        "layout": torch.sparse_coo,
        "device": device.lazy,
        "is_coalesced": is_coalesced,
    }
    if size is None:
        return aten.sparse_coo_tensor.indices(indices, values, **options)
    return aten.sparse_coo_tensor.indices_size(indices, values, size, **options)


def _make_compressed_tensor(kind: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `torch.sparse_csr_tensor` or its like, which may be for the device.

    `kind` is "csr" or its like. Parts that are all on the device keep their memory; otherwise the
    tensor is made on the host and copied, which is recorded. Raises RuntimeError for tensors on two
    devices and at a wait that is refused or tells of a failed kernel, CUDA's error for a device
    that is not there, torch's OutOfMemoryError, and what `original` raises.
    """
    device = _device_asked_for(kwargs, args)
    if device is None:
        return original(*args, **kwargs)
    if kwargs.get("device") is None:
        _require_one_device(kind, args)
    requires_grad = kwargs.pop("requires_grad", False)
    # Made on the host, then moved; device tensors keep their memory.
    kwargs["device"] = "cpu"
    on_host = original(*placement.inner_of(args), **kwargs)
    are_on_device = all(type(value) in VIRTUAL for value in args[:3])
    if not are_on_device:
        moved = sparse_to_device(on_host, device, False, None)
        return moved.requires_grad_(requires_grad)
    # On the device by torch's operator, through which gradients flow to the values.
    compressed, plain, values = args[:3]
    tensor = _compressed_tensor_of_parts(
        compressed,
        plain,
        values.to(on_host.dtype),
        on_host.shape,
        dtype=on_host.dtype,
        layout=on_host.layout,
        device=device.lazy,
    )
    if requires_grad:
        return tensor.requires_grad_()
    return tensor


def _require_one_device(kind: str, args: Any) -> None:
    """Raise RuntimeError if the two lists of indices and the values are on two devices.

    `args` are these three, tensors or lists, the compressed indices first; `kind` is "csr" or its
    like.
    """
    devices = {value.device for value in args[:3] if isinstance(value, torch.Tensor)}
    if len(devices) <= 1:
        return
    compressed = args[0]
    values = args[2]
    is_by_column = kind in ("csc", "bsc")
    if compressed.device != values.device:
        name = "crow_indices"
        if is_by_column:
            name = "ccol_indices"
    else:
        name = "col_indices"
        if is_by_column:
            name = "row_indices"
    raise RuntimeError(f"Values and {name} need to be on the same device.")


def _move_sparse_or_nested_tensor(original: Any, tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.to`: move a sparse or nested host tensor to the device.

    The copy is recorded. Calls the original for all others. Raises CUDA's error for a device that
    is not there, torch's OutOfMemoryError, RuntimeError at a wait that is refused or tells of a
    failed kernel, and what `original` raises.
    """
    if type(tensor) in VIRTUAL:
        return original(tensor, *args, **kwargs)
    if tensor.is_nested and type(tensor) is torch.Tensor:
        move_to_device = nested_to_device
    elif tensor.layout in SPARSE_LAYOUTS and type(tensor) is not SparseTensor:
        move_to_device = sparse_to_device
    else:
        return original(tensor, *args, **kwargs)
    first = None
    if args:
        first = args[0]
    target = kwargs.get("device", first)
    if isinstance(target, torch.Tensor):
        target = target.device
    device = find_open_device(target)
    if device is None:
        return original(tensor, *args, **kwargs)
    # What else is asked for.
    dtypes = [argument for argument in args if isinstance(argument, torch.dtype)]
    dtype = kwargs.get("dtype") or (dtypes[0] if dtypes else None)
    non_blocking = bool(kwargs.get("non_blocking"))
    return move_to_device(tensor, device, non_blocking, dtype)


def _validate_on_host(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `torch._validate_sparse_…_args`, the `original`, as `torch.load` does.

    The check reads the indices, so a wait is noted. Raises RuntimeError for wrong indices, and at a
    wait that is refused or tells of a failed kernel.
    """
    if any(type(value) in VIRTUAL for value in args):
        placement.record_waits("item")
    return original(*placement.inner_of(args), **kwargs)


def _refuse_sparse_result(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `smm` or `sspaddmm`, the `original`.

    Raises RuntimeError, as CUDA does, on the device: the result would be sparse.
    """
    for value in args:
        if type(value) is SparseTensor or type(value) in VIRTUAL:
            raise RuntimeError("NYI: CUDA sspaddmm is not implemented")
    return original(*args, **kwargs)


def _call_method_of_coo(name: str, original: Any, tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method that only COO tensors have, the `original`, whose name is `name`.

    Raises what torch raises for a compressed tensor of the device, and what `original` raises.
    """
    if type(tensor) is SparseTensor:
        require_coo(tensor, name)
    return original(tensor, *args, **kwargs)


@torch_patches(Stage.WRAP)
def _sparse_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of sparse tensors' constructors, checks and moves.

    `opening` is told to forget tensors that wait to be validated when a device closes.
    """
    opening.on_close.append(_forget_tensors_to_validate)
    for owner in (torch, torch.Tensor):
        for name in ("smm", "sspaddmm"):
            yield around(owner, name, _refuse_sparse_result)
    for name in COO_METHODS:
        yield around(torch.Tensor, name, partial(_call_method_of_coo, name))
    for name in list(vars(torch)):
        if name.startswith("_validate_sparse_") and name.endswith("_args"):
            yield around(torch, name, _validate_on_host)
    for kind in ("compressed", "csr", "csc", "bsr", "bsc"):
        yield around(torch, f"sparse_{kind}_tensor", partial(_make_compressed_tensor, kind))
    yield around(torch, "sparse_coo_tensor", _make_coo)
    yield around(torch.Tensor, "to", _move_sparse_or_nested_tensor)
