"""What do the names of old code mean? `torch.cuda.FloatTensor`, type strings, a default tensor type."""

from __future__ import annotations

import warnings
from typing import Any, Final

import torch

from graders.bench.virtual.conversions import place_named
from graders.bench.virtual.tensor import Tensor

DTYPES: Final = {
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
_Base: Final[Any] = torch._C.TensorBase


class LegacyType(type):
    """The type of `torch.cuda.FloatTensor`: a name for a dtype on the device, not a class that tensors have."""

    dtype: torch.dtype
    layout: torch.layout
    is_cuda: bool
    is_sparse: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.dtype and instance.layout is cls.layout

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        warnings.warn(
            "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods such as "
            "torch.tensor(data, dtype=*, device='cuda') to create tensors.",
            stacklevel=2,
        )
        if device is not None and place_named(device) is None:
            kind = torch.device(device).type
            raise RuntimeError(f"legacy constructor expects device type: cuda but device type: {kind} was passed")
        return construct(cls.dtype, "cuda" if device is None else device, *args)

    def __repr__(cls) -> str:
        return f"<class '{_PREFIX}{cls.__name__}'>"


def construct(dtype: torch.dtype, device: Any, *args: Any) -> Any:
    """The constructor of old: sizes as numbers or a `torch.Size`, or values in a sequence, or a tensor."""
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        given = args[0]
        if isinstance(given, torch.Tensor):
            if given.dtype is not dtype or given.device != torch.device("cuda", _index(device)):
                raise TypeError(f"expected {_PREFIX}{_name(dtype)} (got {given.type()})")
            return given.detach()
        return torch.tensor(given, dtype=dtype, device=device)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
    return torch.empty(tuple(sizes) if args else (0,), dtype=dtype, device=device)


def _index(device: Any) -> int:
    place = place_named(device)
    return 0 if place is None else place.index


def _name(dtype: torch.dtype) -> str:
    return next((name for name, known in DTYPES.items() if known is dtype), "Tensor")


def _types() -> dict[str, Any]:
    made = {}
    for name, dtype in DTYPES.items():
        facts = {
            "dtype": dtype,
            "layout": torch.strided,
            "is_cuda": True,
            "is_sparse": False,
            "__module__": "torch.cuda",
        }
        made[name] = LegacyType(name, (), facts)
    return made


TYPES: Final = _types()


def _dtype_on_device(named: Any) -> torch.dtype | None:
    """The dtype that a type of `torch.cuda` names, given as a class or in words; None for any other."""
    if isinstance(named, LegacyType):
        return named.dtype
    if isinstance(named, str) and named.startswith(_PREFIX):
        return DTYPES.get(named[len(_PREFIX) :])
    return None


def typed(original: Any) -> Any:
    """`x.type(...)` of a host tensor."""

    def answer(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        wanted = _dtype_on_device(dtype)
        if wanted is not None:
            return self.to("cuda", wanted, non_blocking)
        return original(self, dtype, non_blocking, **kwargs) if dtype is not None else original(self)

    return answer


class _Default:
    """Whether a default tensor type on the device is in force."""

    on_device: bool = False


_default: Final = _Default()


def set_default(original: Any) -> Any:
    def chosen(t: Any, /) -> None:
        dtype = _dtype_on_device(t)
        if dtype is None:
            original(t)
            forget()
            return
        original(f"torch.{_name(dtype)}")
        torch.set_default_device("cuda")
        _default.on_device = True

    return chosen


def forget() -> None:
    """A default tensor type on the device ends with it."""
    if _default.on_device:
        torch.set_default_device(None)
        _default.on_device = False


def new(self: Any, *args: Any, device: Any = None) -> Any:
    """`x.new(...)`: the constructor of old, with the dtype and device of `x`."""
    if device is not None and place_named(device) is None:
        kind = torch.device(device).type
        raise RuntimeError(f"legacy constructor expects device type: cuda but device type: {kind} was passed")
    return construct(self.dtype, self.device if device is None else device, *args)


Tensor.new = new  # type: ignore[method-assign,assignment]


def patches() -> list[tuple[Any, str, Any]]:
    made: list[tuple[Any, str, Any]] = [(torch.cuda, name, made_type) for name, made_type in TYPES.items()]
    made += [
        (torch.Tensor, "type", typed(_Base.type)),
        (torch, "set_default_tensor_type", set_default(torch.set_default_tensor_type)),
    ]
    return made
