"""Legacy types, `torch.cuda.FloatTensor` and its like: constructors and default types of old."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import DTYPE_NAMES
from virtual_cuda.device.state import find_open_device
from virtual_cuda.device.tensor import Tensor
from virtual_cuda.ops.elementwise import IN_CPP
from virtual_cuda.patching import Opening, Patch, around, if_present, torch_patches
from virtual_cuda.torch_api.compatibility import forget_default_device

_DTYPES: Final = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
_PREFIX: Final = "torch.cuda."


class _LegacyType(type):
    """The type of `torch.cuda.FloatTensor` and its like.

    It names a dtype on the device, and is not a class that tensors have.
    """

    dtype: torch.dtype
    layout: torch.layout
    is_cuda: bool
    is_sparse: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        """True for a device tensor with the dtype and layout of this type."""
        if not isinstance(instance, Tensor):
            return False
        return instance.dtype is cls.dtype and instance.layout is cls.layout

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        """Make a tensor, with torch's warning that this is the old way.

        Raises RuntimeError for another kind of device, TypeError for another kind of tensor, and
        torch's OutOfMemoryError. Other arguments by name are ignored.
        """
        warnings.warn(
            "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use "
            "methods such as torch.tensor(data, dtype=*, device='cuda') to create tensors.",
            stacklevel=2,
        )
        if device is None:
            device = "cuda"
        if cls.is_sparse:
            return _construct_sparse(cls.dtype, device, *args)
        return _construct(cls.dtype, device, *args)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


def _construct(dtype: torch.dtype, device: Any, *args: Any) -> Any:
    """Make a device tensor as the constructors of old do.

    The arguments are sizes, as numbers or a `torch.Size`, or values in a sequence, or a tensor.
    Raises RuntimeError for another kind of device, TypeError for another kind of tensor, and
    torch's OutOfMemoryError.
    """
    open_device = find_open_device(device)
    if open_device is not None:
        kind = "cuda"
    else:
        kind = torch.device(device).type
    if kind != "cuda":
        raise RuntimeError(
            f"legacy constructor expects device type: cuda but device type: {kind} was passed"
        )
    if not args:
        return torch.empty((0,), dtype=dtype, device=device)
    first = args[0]
    if len(args) > 1 or isinstance(first, int):
        return torch.empty(args, dtype=dtype, device=device)
    if isinstance(first, torch.Size):
        return torch.empty(tuple(first), dtype=dtype, device=device)
    if not isinstance(first, torch.Tensor):
        return torch.tensor(first, dtype=dtype, device=device)
    if first.dtype is not dtype or open_device is None or first.device != open_device.cuda:
        expected = _tensor_options(dtype, "cuda")
        given = _tensor_options(first.dtype, first.device.type)
        raise TypeError(f"expected {expected} (got {given})")
    return first.detach()


def _tensor_options(dtype: torch.dtype, device: str) -> str:
    """The kind of a strided tensor, as C++ describes it in an error message."""
    name = DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))
    name_in_cpp = IN_CPP.get(name, name.lower())
    return (
        f"TensorOptions(dtype={name_in_cpp}, device={device}, layout=Strided, "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )


def _construct_sparse(dtype: torch.dtype, device: Any, *args: Any) -> Any:
    """Make a COO tensor as the constructors of old do: of indices and values, or sizes.

    Raises what `torch.sparse_coo_tensor` raises.
    """
    make_coo: Any = torch.sparse_coo_tensor
    if not args:
        return make_coo((0,), dtype=dtype, device=device)
    first = args[0]
    if isinstance(first, torch.Tensor):
        return make_coo(*args, dtype=dtype, device=device)
    has_size = len(args) == 1 and isinstance(first, torch.Size)
    if has_size:
        sizes = first
    else:
        sizes = args
    return make_coo(tuple(sizes), dtype=dtype, device=device)


def _name_of_type(dtype: torch.dtype) -> str:
    """The name of the legacy type with this dtype; "Tensor" if there is none."""
    for name, known in _DTYPES.items():
        if known is dtype:
            return name
    return "Tensor"


def _dtype_on_device(named: Any) -> torch.dtype | None:
    """The dtype that a type of `torch.cuda` names, or None for any other type.

    The type is given as a class or in words.
    """
    if isinstance(named, _LegacyType):
        return named.dtype
    if isinstance(named, str) and named.startswith(_PREFIX):
        return _DTYPES.get(named[len(_PREFIX) :])
    return None


def _convert_to_type(
    original: Any, tensor: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
) -> Any:
    """`x.type(...)` of a host tensor: the name of its type, or the tensor as another type.

    Raises what `original`, torch's own, or `Tensor.to` raises.
    """
    if dtype is None:
        return original(tensor)
    dtype_on_device = _dtype_on_device(dtype)
    if dtype_on_device is not None:
        return tensor.to("cuda", dtype_on_device, non_blocking)
    return original(tensor, dtype, non_blocking, **kwargs)


class _DefaultType:
    """The default tensor type that a program has set."""

    is_on_device = False


_default_type: Final = _DefaultType()


def _set_default_type(original: Any, t: Any, /) -> None:
    """Call `torch.set_default_tensor_type`, the `original`.

    A type on the device also makes that the default device, and changes `torch.Tensor(...)`, until
    another type is set or the device closes. Raises TypeError for what is no type of tensors.
    """
    dtype = _dtype_on_device(t)
    if dtype is None:
        original(t)
        _forget_default_type()
        return
    original(f"torch.{_name_of_type(dtype)}")
    torch.set_default_device("cuda")
    _default_type.is_on_device = True
    torch.Tensor.__new__ = _construct_default  # type: ignore[method-assign]


def _construct_default(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """`torch.Tensor(...)` where a default tensor type on the device is in force.

    Other classes, and calls with further arguments by name, are left to torch. Raises RuntimeError
    for another kind of device, TypeError for another kind of tensor, and torch's OutOfMemoryError.
    """
    if cls is torch.Tensor and not kwargs:
        if device is None:
            device = "cuda"
        return _construct(torch.get_default_dtype(), device, *args)
    if device is not None:
        kwargs["device"] = device
    return torch.Tensor.__base__.__new__(cls, *args, **kwargs)


def _forget_default_type() -> None:
    """Undo a default tensor type on the device, when the device closes."""
    if _default_type.is_on_device:
        forget_default_device()
        _default_type.is_on_device = False
        del torch.Tensor.__new__


def _construct_like(tensor: Any, *args: Any, device: Any = None) -> Any:
    """`x.new(...)`: the constructor of old, with the dtype and device of `x`.

    Raises RuntimeError for another kind of device, TypeError for another kind of tensor, and
    torch's OutOfMemoryError.
    """
    if device is None:
        device = tensor.device
    return _construct(tensor.dtype, device, *args)


Tensor.new = _construct_like  # type: ignore[method-assign,assignment]


def _make_types(module: Any, attributes: dict[str, Any]) -> Iterator[Patch]:
    """Patches that put our types in the place of those that a module has."""
    for name, dtype in _DTYPES.items():
        legacy_type = _LegacyType(name, (), {"dtype": dtype, **attributes})
        yield if_present(module, name, legacy_type)


_STRIDED: Final = {
    "layout": torch.strided,
    "is_cuda": True,
    "is_sparse": False,
    "__module__": "torch.cuda",
}
_SPARSE: Final = {
    "layout": torch.sparse_coo,
    "is_cuda": True,
    "is_sparse": True,
    "__module__": "torch.cuda.sparse",
}
_TYPES: Final = (*_make_types(torch.cuda, _STRIDED), *_make_types(torch.cuda.sparse, _SPARSE))


@torch_patches()
def _legacy_type_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of legacy types, and of functions that take their names.

    `opening` is told to undo a default type when a device closes.
    """
    opening.on_close.append(_forget_default_type)
    yield from _TYPES
    yield around(torch.Tensor, "type", _convert_to_type)
    yield around(torch, "set_default_tensor_type", _set_default_type)
