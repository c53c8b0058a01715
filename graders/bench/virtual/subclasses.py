"""What is a student's own tensor class on the device? The same class with a device tensor behind it.

`x.as_subclass(Tagged)` gives a tensor of a class made for the occasion: it inherits from `Tagged` first and
from the device tensor after it, is called `Tagged`, and follows Tagged's `__torch_function__`.
"""

from __future__ import annotations

from typing import Any, Final, cast

import torch
import torch.nested

from graders.bench.virtual.conversions import place_named
from graders.bench.virtual.dispatch import shut
from graders.bench.virtual.placement import tensors_in
from graders.bench.virtual.places import CUDA
from graders.bench.virtual.tensor import VIRTUAL, Parameter, Tensor, wrap

_as_subclass: Final[Any] = torch._C.TensorBase.as_subclass
_device_in_c: Final[Any] = torch._C.TensorBase.device
_made: Final[dict[Any, Any]] = {}
_renamed: Final[list[Any]] = []
_DEVICE: Final = 6  # where _make_wrapper_subclass takes the device, counted after the class


class _Bridge(Tensor):
    """Where `super().__torch_function__` of a student's class arrives: torch's own, which keeps the class."""


_Bridge.__torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined,assignment]


def student_class(cls: Any) -> Any:
    """The class a device tensor's class stands for."""
    return torch.nn.Parameter if cls is Parameter else cls.__dict__.get("_student_class", torch.Tensor)


def _device_class(cls: Any) -> Any:
    found = _made.get(cls)
    if found is None:
        inherited = cls.__torch_function__
        bound = getattr(inherited, "__func__", None)
        named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_student_class": cls}
        found = cast("Any", type(cls.__name__, (cls, _Bridge), named))
        # Set afterwards: torch's metaclass turns __torch_function__ off where it finds a __torch_dispatch__.
        found.__torch_dispatch__ = staticmethod(Tensor.__torch_dispatch__)
        found.__torch_function__ = inherited if bound is None else classmethod(bound)
        _made[cls] = found
        VIRTUAL.add(found)
    return found


def as_subclass(self: Any, cls: Any) -> Any:
    """`Tensor.as_subclass` for host and device tensors alike."""
    if type(self) not in VIRTUAL:
        return _as_subclass(self, cls.__dict__.get("_student_class", cls))
    if cls not in VIRTUAL:
        if cls is torch.Tensor:
            cls = Tensor
        elif cls is torch.nn.Parameter:
            cls = Parameter
        else:
            cls = _device_class(cls)
    if cls is Tensor and type(self) is Tensor:
        return self  # torch.load asks so of a leaf that it has just made, and it must stay one
    with torch._C.DisableTorchFunctionSubclass():
        twin = (
            torch.ops.aten.alias(self)
            if self.requires_grad and torch.is_grad_enabled()
            else wrap(self._inner, self._block)
        )
    twin.__class__ = cls
    return twin


def make_wrapper(original: Any) -> Any:
    """Other classes of torch's that wrap tensors, nested ones above all: C++ must not hear of a device it lacks."""

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[_DEVICE] if len(args) > _DEVICE else kwargs.get("device")
        place = None if given is None else place_named(given)
        if place is not None:
            if len(args) > _DEVICE:
                args = (*args[:_DEVICE], place.lazy, *args[_DEVICE + 1 :])
            else:
                kwargs["device"] = place.lazy
            if "device" not in vars(cls):
                cls.device, cls.is_cuda = property(_device), property(_is_cuda)
                _renamed.append(cls)
        return original(cls, *args, **kwargs)

    return make


def nested(original: Any) -> Any:
    """Nested tensors of the older, strided layout are a C++ class that only knows devices with kernels."""

    def made(pieces: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        here = device is not None and place_named(device) is not None
        here = here or (isinstance(pieces, (list, tuple)) and any(type(piece) in VIRTUAL for piece in pieces))
        if here and kwargs.get("layout") is not torch.jagged:
            raise NotImplementedError("the virtual device has nested tensors of layout=torch.jagged only")
        return original(pieces, *args, **kwargs)

    return made


def _device(self: Any) -> torch.device:
    device: torch.device = _device_in_c.__get__(self)
    return CUDA[device.index or 0] if device.type == "lazy" else device


def _is_cuda(self: Any) -> bool:
    return _device(self).type == "cuda"


def _closed(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    place = next(t._block.place for t in tensors_in([*args, *(kwargs or {}).values()]) if isinstance(t, Tensor))
    raise shut(place)


def forget_all() -> None:
    """Classes made for a `with` block end with it."""
    for cls in _made.values():
        cls.__torch_dispatch__ = staticmethod(_closed)  # no plan knows the class any more
    for cls in _renamed:
        del cls.device, cls.is_cuda
    _renamed.clear()
    VIRTUAL.difference_update(_made.values())
    _made.clear()


def patches() -> list[tuple[Any, str, Any]]:
    make = make_wrapper(torch.Tensor._make_wrapper_subclass)
    return [
        (torch.Tensor, "as_subclass", as_subclass),
        (torch.Tensor, "_make_wrapper_subclass", staticmethod(make)),
        (torch.nested, "nested_tensor", nested(torch.nested.nested_tensor)),
        (torch.nested, "as_nested_tensor", nested(torch.nested.as_nested_tensor)),
    ]
