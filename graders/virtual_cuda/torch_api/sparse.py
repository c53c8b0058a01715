"""Functions of torch that make, move and check sparse and nested tensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.nested

from virtual_cuda.device.cuda_errors import argument_elsewhere_error, label_of
from virtual_cuda.device.pinning import SPARSE_LAYOUTS
from virtual_cuda.device.state import VirtualDevice, open_device_named
from virtual_cuda.device.tensor import VIRTUAL, Tensor
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import placement
from virtual_cuda.ops.nested import NestedTensor, nested_to_device, run_nested
from virtual_cuda.ops.sparse import SparseTensor, sparse_to_device, wrap_sparse
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches
from virtual_cuda.torch_api.compatibility import sparse_tensors_to_validate
from virtual_cuda.trees import leaves_of

aten: Final = torch.ops.aten
_function_modes: Final = find_internal("torch._C._len_torch_function_stack", otherwise=lambda: 1)


# ---- nested tensors ------------------------------------------------------------------------------


def _make_nested(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `torch.nested.nested_tensor` or its like.

    Tensors on the device, or for it, become a nested tensor there. Raises RuntimeError for tensors
    on two devices.
    """
    pieces = args[0] if args else [kwargs.get(name) for name in ("tensor_list", "ts", "t")]
    leaves = [leaf for leaf in leaves_of(pieces) if isinstance(leaf, torch.Tensor)]
    here = next((leaf._block.device for leaf in leaves if isinstance(leaf, Tensor)), None)
    away = next((leaf for leaf in leaves if leaf.device != leaves[0].device), None)
    if kwargs.get("device") is None and away is not None:
        raise argument_elsewhere_error(
            "tensors", label_of(away), label_of(leaves[0]), "wrapper_CUDA_cat"
        )
    device = here if kwargs.get("device") is None else open_device_named(kwargs["device"])
    if device is None or kwargs.get("layout") is torch.jagged:
        return original(*args, **kwargs)
    kwargs.pop("device", None)
    return run_nested(original, args, kwargs, device)


def _from_buffer(original: Any, buffer: Any, *args: Any, **kwargs: Any) -> Any:
    """Rebuild a nested tensor that was saved or sent.

    Its sizes, strides and offsets are on the host.
    """
    if type(buffer) not in VIRTUAL:
        return original(buffer, *args, **kwargs)
    return run_nested(original, (buffer, *args), kwargs)


def _has_function(original: Any, values: Any) -> bool:
    """True if a class among the values wants to see the call.

    Layers ask so before they take the fast path, which nested tensors of the device take as well.
    """
    return bool(original(tuple(value for value in values if type(value) is not NestedTensor)))


def _forget_loaded() -> None:
    """Remove the device's sparse tensors from those that wait to be validated.

    The next `torch.load` would do that, on a device that is closed then.
    """
    waiting = sparse_tensors_to_validate()
    waiting[:] = [tensor for tensor in waiting if type(tensor) is not SparseTensor]


@torch_patches(Stage.WRAP)
def _nested_patches(opening: Opening) -> Iterator[Patch]:
    for owner, name in ((torch.nested, "nested_tensor"), (torch.nested, "as_nested_tensor")):
        yield around(owner, name, _make_nested)
    yield around(torch, "_nested_tensor_from_mask", _make_nested)
    for name in ("_nested_view_from_buffer", "_nested_view_from_buffer_copy"):
        yield around(torch, name, _from_buffer)
    yield around(torch.overrides, "has_torch_function", _has_function)


# ---- sparse tensors ------------------------------------------------------------------------------


def _wanted(kwargs: dict[str, Any], given: tuple[Any, ...]) -> VirtualDevice | None:
    """The device that a constructor is asked for, or None for the host.

    It is named by `device`, by the default device, which is put into `kwargs`, or by a tensor that
    is given.
    """
    if kwargs.get("device") is None and _function_modes():
        default = torch.get_default_device()
        if default.type == "cuda":
            kwargs["device"] = default
    if kwargs.get("device") is not None:
        return open_device_named(kwargs["device"])
    return next((value._block.device for value in given if type(value) in VIRTUAL), None)


_checking: Final[Any] = torch.sparse.check_sparse_tensor_invariants


def _coo(
    original: Any, indices: Any = None, values: Any = None, size: Any = None, **kwargs: Any
) -> Any:
    """Call `torch.sparse_coo_tensor`, which may be for the device.

    Raises RuntimeError for indices and values on two devices.
    """
    device = _wanted(kwargs, (values, indices))
    mixed = [
        v.device
        for v in (indices, values)
        if isinstance(v, torch.Tensor) and kwargs.get("device") is None
    ]
    if len(set(mixed)) > 1:
        wrapper = "wrapper_SparseCUDA___sparse_coo_tensor_with_dims_and_tensors"
        raise argument_elsewhere_error("values", label_of(values), label_of(indices), wrapper)
    if device is None:
        return original(
            *(value for value in (indices, values, size) if value is not None), **kwargs
        )
    # It is for the device.
    if values is None:  # a size alone
        size = tuple(indices if size is None else size)
        indices = torch.empty((len(size), 0), dtype=torch.int64)
        values = torch.empty(0)
    where = torch.as_tensor(indices, device=device.cuda).to(torch.int64)
    what = torch.as_tensor(values, dtype=kwargs.get("dtype"), device=device.cuda)
    build, given, coalesced = aten.sparse_coo_tensor, (where, what), kwargs.get("is_coalesced")
    # a place that no layout or device argument may contradict: C++ asks the tensors
    options = {
        "dtype": what.dtype,
        "layout": torch.sparse_coo,
        "device": device.lazy,
        "is_coalesced": coalesced,
    }
    checked = kwargs.get("check_invariants")
    checked = _checking.is_enabled() if checked is None else checked
    # C++ cannot tell on the device whether indices are in order.
    with _checking(bool(checked and not coalesced)):
        built = (
            build.indices(where, what, **options)
            if size is None
            else build.indices_size(where, what, size, **options)
        )
    if checked and coalesced:
        # as it is now, which is ours
        validate = find_internal(
            "torch._validate_sparse_coo_tensor_args", otherwise=lambda *args: None
        )
        validate(*given, built.shape, True)
    return built.detach().requires_grad_() if kwargs.get("requires_grad") else built


def _compressed(kind: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `torch.sparse_csr_tensor` or its like, which may be for the device.

    Raises RuntimeError for tensors on two devices.
    """
    device = _wanted(kwargs, args)
    if device is None:
        return original(*args, **kwargs)
    given = [value for value in args[:3] if isinstance(value, torch.Tensor)]
    if kwargs.get("device") is None and len({value.device for value in given}) > 1:
        names = (
            ("ccol_indices", "row_indices")
            if kind in ("csc", "bsc")
            else ("crow_indices", "col_indices")
        )
        other = names[0] if args[0].device != args[2].device else names[1]
        raise RuntimeError(f"Values and {other} need to be on the same device.")
    requires_grad = kwargs.pop("requires_grad", False)
    # Made on the host, then moved; device tensors keep their memory.
    plain = original(*placement.inner_of(args), **{**kwargs, "device": "cpu"})
    if not all(type(value) in VIRTUAL for value in args[:3]):
        return sparse_to_device(plain, device, False, None).requires_grad_(requires_grad)
    known = {
        value._inner.untyped_storage()._cdata: value._block
        for value in args
        if type(value) in VIRTUAL
    }
    return wrap_sparse(plain, device, known)[0].requires_grad_(requires_grad)


def _to(original: Any) -> Any:
    """The function to put in the place of `Tensor.to`; it moves sparse and nested tensors, too."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Move a sparse or nested host tensor to the device; call the original for all others."""
        nested_one = self.is_nested and type(self) is torch.Tensor
        if not nested_one and (self.layout not in SPARSE_LAYOUTS or type(self) is SparseTensor):
            return original(self, *args, **kwargs)
        device = kwargs.get("device", args[0] if args else None)
        open_device = open_device_named(
            device.device if isinstance(device, torch.Tensor) else device
        )
        if open_device is None:
            return original(self, *args, **kwargs)
        dtype = kwargs.get(
            "dtype", next((value for value in args if isinstance(value, torch.dtype)), None)
        )
        move = nested_to_device if nested_one else sparse_to_device
        return move(self, open_device, bool(kwargs.get("non_blocking", False)), dtype)

    return to


def _validate(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `torch._validate_sparse_…_args`, as `torch.load` does.

    The check reads the indices, so a wait is noted.
    """
    if any(type(value) in VIRTUAL for value in args):
        placement.record_waits("item")
    return original(*placement.inner_of(args), **kwargs)


def _no_sparse_sum(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `smm` or `sspaddmm`.

    Raises RuntimeError, as CUDA does, on the device: the result would be sparse.
    """
    if any(type(value) is SparseTensor or type(value) in VIRTUAL for value in args):
        raise RuntimeError("NYI: CUDA sspaddmm is not implemented")
    return original(*args, **kwargs)


@torch_patches(Stage.WRAP)
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of sparse tensors' constructors, checks and moves."""
    opening.on_close.append(_forget_loaded)
    for owner in (torch, torch.Tensor):
        yield from (around(owner, name, _no_sparse_sum) for name in ("smm", "sspaddmm"))
    names = (
        name
        for name in vars(torch)
        if name.startswith("_validate_sparse_") and name.endswith("_args")
    )
    yield from (around(torch, name, _validate) for name in names)
    yield from (
        around(torch, f"sparse_{kind}_tensor", partial(_compressed, kind))
        for kind in ("compressed", "csr", "csc", "bsr", "bsc")
    )
    yield around(torch, "sparse_coo_tensor", _coo)
    yield torch.Tensor, "to", _to(torch.Tensor.to)
