"""Types and classes of tensors: legacy types, students' subclasses, and dispatch modes.

A legacy type is `torch.cuda.FloatTensor` or its like. A student's class is a subclass of
`torch.Tensor`; tensors on the device have a class that is made of it and stands for it.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nested

from virtual_cuda.device.cuda_errors import DTYPE_NAMES
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.state import CPU, CUDA, open_device_named
from virtual_cuda.device.tensor import VIRTUAL, DeviceClass, Parameter, Tensor, wrap
from virtual_cuda.internals import find_internal, no_torch_function
from virtual_cuda.ops.dispatch import closed_device_error
from virtual_cuda.ops.elementwise import IN_CPP
from virtual_cuda.patching import Opening, Patch, Stage, around, class_watch, torch_patches
from virtual_cuda.recorder import tensors_in

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


class LegacyType(type):
    """The type of `torch.cuda.FloatTensor` and its like.

    It names a dtype on the device, and is not a class that tensors have.
    """

    dtype: torch.dtype
    layout: torch.layout
    is_cuda: bool
    is_sparse: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.dtype is cls.dtype
            and instance.layout is cls.layout
        )

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        """Make a tensor, with torch's warning that this is the old way."""
        warnings.warn(
            "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods such as "
            "torch.tensor(data, dtype=*, device='cuda') to create tensors.",
            stacklevel=2,
        )
        device = "cuda" if device is None else device
        return (
            construct_sparse(cls.dtype, device, *args)
            if cls.is_sparse
            else construct(cls.dtype, device, *args)
        )

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


def construct(dtype: torch.dtype, device: Any, *args: Any) -> Any:
    """Make a device tensor as the constructors of old do.

    The arguments are sizes, as numbers or a `torch.Size`, or values in a sequence, or a tensor.
    Raises RuntimeError for another kind of device, and TypeError for another kind of tensor.
    """
    open_device = open_device_named(device)
    if open_device is None and (kind := torch.device(device).type) != "cuda":
        raise RuntimeError(
            f"legacy constructor expects device type: cuda but device type: {kind} was passed"
        )
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        given = args[0]
        if isinstance(given, torch.Tensor):
            if given.dtype is not dtype or open_device is None or given.device != open_device.cuda:
                raise TypeError(
                    f"expected {_options(dtype, 'cuda')} (got {_options(given.dtype, given.device.type)})"
                )
            return given.detach()
        return torch.tensor(given, dtype=dtype, device=device)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
    return torch.empty(tuple(sizes) if args else (0,), dtype=dtype, device=device)


def _options(dtype: torch.dtype, device: str) -> str:
    spelled = DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))
    return (
        f"TensorOptions(dtype={IN_CPP.get(spelled, spelled.lower())}, device={device}, layout=Strided, "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )


def construct_sparse(dtype: torch.dtype, device: Any, *args: Any) -> Any:
    """Make a COO tensor as the constructors of old do: of indices and values, or sizes."""
    if args and isinstance(args[0], torch.Tensor):
        return torch.sparse_coo_tensor(*args, dtype=dtype, device=device)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args or (0,)
    empty: Any = torch.sparse_coo_tensor
    return empty(tuple(sizes), dtype=dtype, device=device)


def _name(dtype: torch.dtype) -> str:
    return next((name for name, known in DTYPES.items() if known is dtype), "Tensor")


_FACTS: Final = {
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
TYPES: Final = {
    (home, name): LegacyType(name, (), {"dtype": dtype, **facts})
    for home, facts in ((torch.cuda, _FACTS), (torch.cuda.sparse, _SPARSE))
    for name, dtype in DTYPES.items()
    if hasattr(home, name)
}


def _dtype_on_device(named: Any) -> torch.dtype | None:
    """The dtype that a type of `torch.cuda` names, or None for any other type.

    The type is given as a class or in words.
    """
    if isinstance(named, LegacyType):
        return named.dtype
    if isinstance(named, str) and named.startswith(_PREFIX):
        return DTYPES.get(named[len(_PREFIX) :])
    return None


def _type(
    original: Any, self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
) -> Any:
    """`x.type(...)` of a host tensor."""
    wanted = _dtype_on_device(dtype)
    if wanted is not None:
        return self.to("cuda", wanted, non_blocking)
    return original(self, dtype, non_blocking, **kwargs) if dtype is not None else original(self)


_default_on_device = False  # whether a default tensor type on the device is in force


def _set_default(original: Any, t: Any, /) -> None:
    """Call `torch.set_default_tensor_type`.

    A type on the device also makes that the default device, and changes `torch.Tensor(...)`.
    """
    global _default_on_device
    dtype = _dtype_on_device(t)
    original(t if dtype is None else f"torch.{_name(dtype)}")
    if dtype is None:
        forget_default_type()
    else:
        torch.set_default_device("cuda")
        _default_on_device = True
        torch.Tensor.__new__ = _new  # type: ignore[method-assign]


def _new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """`torch.Tensor(...)` where a default tensor type on the device is in force."""
    if cls is torch.Tensor and not kwargs:
        return construct(torch.get_default_dtype(), "cuda" if device is None else device, *args)
    named = kwargs if device is None else {**kwargs, "device": device}
    return torch.Tensor.__base__.__new__(cls, *args, **named)


def forget_default_type() -> None:
    """Undo a default tensor type on the device, when the device closes."""
    global _default_on_device
    if _default_on_device:
        torch.set_default_device(None)
        _default_on_device = False
        del torch.Tensor.__new__


def new(self: Any, *args: Any, device: Any = None) -> Any:
    """`x.new(...)`: the constructor of old, with the dtype and device of `x`."""
    return construct(self.dtype, self.device if device is None else device, *args)


Tensor.new = new  # type: ignore[method-assign,assignment]


_as_subclass: Final[Any] = torch.Tensor.as_subclass
_device_in_c: Final[Any] = torch.Tensor.device
_made: Final[dict[Any, Any]] = {}
_renamed: Final[list[Any]] = []
_DEVICE: Final = 6  # where _make_wrapper_subclass takes the device, counted after the class


class _Bridge(Tensor):
    """Where `super().__torch_function__` of a student's class arrives.

    It is torch's own, which keeps the class.
    """


_Bridge.__torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]


def student_class(cls: Any) -> Any:
    """The class a device tensor's class stands for."""
    return cls._student_class


# `type(x)(...)` makes what the class stands for, on the host.
Tensor.__new__ = lambda cls, *args, **kwargs: student_class(cls)(*args, **kwargs)  # type: ignore[method-assign]


def _past_inside(cls: Any, name: str) -> Any:
    """A student's own `__getattribute__` or `__setattr__`, for device tensors.

    It is not asked for what is inside of a tensor.
    """
    plain = getattr(Tensor, name)
    own = getattr(cls, name)

    def method(self: Any, name: str, *value: Any) -> Any:
        return (plain if name in HIDDEN_IN_TENSORS else own)(self, name, *value)

    return plain if own is getattr(torch.Tensor, name) else method


class _StudentClass(DeviceClass):
    """The metaclass of the classes that are made of students'.

    What code sets there is set in the student's class. On a GPU the two are one: `type(self).calls
    += 1` counts for tensors on the host, too.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(cls._student_class, name, value) if cls in VIRTUAL else type.__setattr__(
            cls, name, value
        )

    def __delattr__(cls, name: str) -> None:
        delattr(cls._student_class, name) if cls in VIRTUAL else type.__delattr__(cls, name)


def _device_class(cls: Any) -> Any:
    """The class that device tensors have for a student's class; made at the first call.

    It derives from the student's class and from `Tensor`.
    """
    found = _made.get(cls)
    if found is None:
        inherited = cls.__torch_function__
        bound = getattr(inherited, "__func__", None)
        named = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "_student_class": cls,
        }
        # What Python would add when it is first asked for; nobody adds anything to the class later.
        named |= {
            "__slotnames__": Tensor.__slotnames__,
            "__annotations__": dict(vars(cls).get("__annotations__", {})),
        }
        ours = {name: _past_inside(cls, name) for name in ("__getattribute__", "__setattr__")}
        students = type(cls)
        kind: Any = _StudentClass
        if students is not type(torch.Tensor):
            kind = type.__new__(
                type,
                students.__name__,
                (_StudentClass, students),
                {"__module__": students.__module__},
            )
        bases = (cls, _Bridge)
        # Not by calling `kind`: a metaclass of the student's would choose what the class has.
        found = type.__new__(kind, cls.__name__, bases, {**named, **ours})
        type(torch.Tensor).__init__(found, cls.__name__, bases, {})
        # Set afterwards: torch's metaclass turns __torch_function__ off where it finds a
        # __torch_dispatch__, and a student's `__init_subclass__` may have put something else into
        # the class.
        ours["__slotnames__"] = Tensor.__slotnames__
        # A `__torch_dispatch__` of the student's stays; it calls the one of `_Bridge`.
        if cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
            ours["__torch_dispatch__"] = staticmethod(Tensor.__torch_dispatch__)
        ours["__torch_function__"] = inherited if bound is None else classmethod(bound)
        with class_watch:
            for name, value in ours.items():
                type.__setattr__(found, name, value)
            _made[cls] = found
            VIRTUAL.add(found)
    return found


def device_class(cls: Any) -> Any:
    """The class that a device tensor has for a class of tensors."""
    if cls in VIRTUAL:
        return cls
    return {torch.Tensor: Tensor, torch.nn.Parameter: Parameter}.get(cls) or _device_class(cls)


def host_class(cls: Any) -> Any:
    """The class that a host tensor has for a class of tensors."""
    return student_class(cls) if cls in VIRTUAL else cls


def as_subclass(self: Any, cls: Any) -> Any:
    """`Tensor.as_subclass` for host and device tensors alike; the memory is shared."""
    if type(self) not in VIRTUAL:
        return _as_subclass(self, host_class(cls))
    cls = device_class(cls)
    if cls is Tensor and type(self) is Tensor:
        return self  # torch.load asks so of a leaf that it has just made, and it must stay one
    with no_torch_function():
        graph = self.requires_grad and torch.is_grad_enabled()
        twin = torch.ops.aten.alias(self) if graph else wrap(self._inner, self._block)
    twin.__class__ = cls
    return twin


def _make_subclass(
    original: Any, cls: Any, data: Any, require_grad: bool = False, **kwargs: Any
) -> Any:
    """`Tensor._make_subclass` for host and device tensors alike."""
    if type(data) not in VIRTUAL:
        return original(host_class(cls), data, require_grad, **kwargs)
    return detach_as(device_class(cls), data, require_grad)


def detach_as(cls: Any, data: Any, requires_grad: bool) -> Any:
    """A device tensor of this class with the memory of another one, and no history."""
    with no_torch_function():
        made = data.detach().requires_grad_(requires_grad)
    made.__class__ = cls
    return made


def _make_wrapper(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `Tensor._make_wrapper_subclass` for a class that wraps tensors.

    C++ must not hear of a device that it lacks, so it is told "lazy"; the class is changed so that
    Python hears "cuda". Nested tensors above all have such a class.
    """
    cls = host_class(cls)
    device = open_device_named(args[_DEVICE] if len(args) > _DEVICE else kwargs.get("device"))
    if device is not None:
        if len(args) > _DEVICE:
            args = (*args[:_DEVICE], device.lazy, *args[_DEVICE + 1 :])
        else:
            kwargs["device"] = device.lazy
        if "device" not in vars(cls):
            cls.device, cls.is_cuda = property(_device), property(_is_cuda)
            _renamed.append(cls)
        _translate(cls)
    return original(cls, *args, **kwargs)


# Classes of tensors and modes that see operators, and the `__torch_dispatch__` of each; None where
# it is inherited.
_translated: Final[dict[Any, Any]] = {}


def _translate(cls: Any) -> None:
    """Change a class so that its `__torch_dispatch__` is told a GPU's names.

    They are the classes of tensors and the devices that a program on a GPU would see.
    """
    if cls in _translated:
        return
    found = inspect.getattr_static(cls, "__torch_dispatch__")
    kind = type(found) if isinstance(found, (classmethod, staticmethod)) else None
    function: Any = found.__func__ if kind else found

    @functools.wraps(function)
    def told(*given: Any, **named: Any) -> Any:
        *self, func, types = given[:2] if kind is staticmethod else given[:3]
        rest = [_renamed_devices(each) for each in given[len(self) + 2 :]]
        named = {name: _renamed_devices(each) for name, each in named.items()}
        return function(
            *self, func, tuple(each for each in types if each not in VIRTUAL), *rest, **named
        )

    with class_watch:
        _translated[cls] = vars(cls).get("__torch_dispatch__")
        cls.__torch_dispatch__ = kind(told) if kind else told


def _renamed_devices(given: Any) -> Any:
    """The arguments of an operator, with the devices that a program on a GPU would see."""
    if type(given) is dict:
        return {name: _renamed_device(value) for name, value in given.items()}
    return tuple(map(_renamed_device, given)) if type(given) is tuple else given


def _renamed_device(value: Any) -> Any:
    return (
        CUDA[value.index or 0]
        if isinstance(value, torch.device) and value.type == "lazy"
        else value
    )


def _push_mode(original: Any, mode: Any) -> None:
    _translate(type(mode))
    original(mode)


def _device(self: Any) -> torch.device:
    device: torch.device = _device_in_c.__get__(self)
    if device == CPU:  # its type as a text takes longer
        return device
    return CUDA[device.index or 0] if device.type == "lazy" else device


def _is_cuda(self: Any) -> bool:
    return _device(self).type == "cuda"


def _closed(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    raise closed_device_error(
        next(t._block.device for t in tensors_in([args, kwargs or {}]) if isinstance(t, Tensor))
    )


def forget_classes() -> None:
    """Undo what was done to classes, when the device closes.

    Tensors of classes that were made for it raise DeviceClosed from now on.
    """
    if not (_made or _renamed or _translated):
        return
    with class_watch:
        VIRTUAL.difference_update(_made.values())
        for cls in _made.values():
            # No plan knows the class any more.
            type.__setattr__(cls, "__torch_dispatch__", staticmethod(_closed))
        for cls in _renamed:
            del cls.device, cls.is_cuda
        for cls, found in _translated.items():
            if found is None:
                del cls.__torch_dispatch__
            else:
                cls.__torch_dispatch__ = found
        _translated.clear()
        _renamed.clear()
        _made.clear()


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of legacy types, tensor subclasses and dispatch modes."""
    opening.on_close.extend((forget_default_type, forget_classes))
    yield from ((home, name, legacy) for (home, name), legacy in TYPES.items())
    yield around(torch.Tensor, "type", _type)
    yield around(torch, "set_default_tensor_type", _set_default)
    yield around(find_internal("torch.utils._python_dispatch"), "_push_mode", _push_mode)
    yield torch.Tensor, "as_subclass", as_subclass
    for name, function in {
        "_make_wrapper_subclass": _make_wrapper,
        "_make_subclass": _make_subclass,
    }.items():
        yield (
            torch.Tensor,
            name,
            staticmethod(functools.partial(function, getattr(torch.Tensor, name))),
        )


def _either(own: Any, others: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    return (own if isinstance(self, Tensor) else others)(self, *args, **kwargs)


@torch_patches(Stage.WRAP)
def _unbound_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of what is looked up on `torch.Tensor` and used with a device tensor."""
    for name in ("numpy", "tolist", "type"):
        yield around(torch.Tensor, name, functools.partial(_either, getattr(Tensor, name)))
    yield torch.Tensor, "device", property(_device)
    yield torch.Tensor, "is_cuda", property(_is_cuda)
