"""Students' subclasses of `torch.Tensor`, on the device.

Tensors of such a class that are on the device have a class that is made of it and stands for it: a
device class. On a GPU the two are one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.state import CPU, CUDA
from virtual_cuda.device.tensor import VIRTUAL, DeviceClass, Parameter, Tensor, wrap
from virtual_cuda.internals import find_internal, no_torch_function
from virtual_cuda.ops.dispatch import closed_device_error
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches
from virtual_cuda.recorder import tensors_in

_as_subclass: Final[Any] = torch.Tensor.as_subclass
_device_in_cpp: Final[Any] = torch.Tensor.device
_device_classes: Final[dict[Any, Any]] = {}  # by the student's class


# ---- classes of the device -----------------------------------------------------------------------


def student_class(cls: Any) -> Any:
    """The class a device tensor's class stands for."""
    return cls._student_class


# `type(x)(...)` makes what the class stands for, on the host.
Tensor.__new__ = lambda cls, *args, **kwargs: student_class(cls)(*args, **kwargs)  # type: ignore[method-assign]


class _Bridge(Tensor):
    """Where `super().__torch_function__` of a student's class arrives.

    It is torch's own, which keeps the class.
    """


_Bridge.__torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]


class _MadeClass(DeviceClass):
    """The metaclass of the classes that are made of students'.

    What code sets there is set in the student's class. On a GPU the two are one: `type(self).calls
    += 1` counts for tensors on the host, too.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        """Set an attribute of the student's own class, which this one stands for."""
        if cls in VIRTUAL:
            setattr(cls._student_class, name, value)
        else:
            type.__setattr__(cls, name, value)

    def __delattr__(cls, name: str) -> None:
        """Delete an attribute of the student's own class, which this one stands for."""
        if cls in VIRTUAL:
            delattr(cls._student_class, name)
        else:
            type.__delattr__(cls, name)


def _attribute_method(cls: Any, name: str) -> Any:
    """The `__getattribute__` or `__setattr__`, by its name, of a device class made of `cls`.

    A student's own is not asked for what is inside of a tensor.
    """
    ours = getattr(Tensor, name)
    students = getattr(cls, name)
    if students is getattr(torch.Tensor, name):
        return ours

    def ask_student_unless_hidden(self: Any, attribute: str, *value: Any) -> Any:
        """Call the student's method; ours for attributes that students do not see.

        `value` is there if one is set. Gives and raises what the method does.
        """
        if attribute in HIDDEN_IN_TENSORS:
            method = ours
        else:
            method = students
        return method(self, attribute, *value)

    return ask_student_unless_hidden


def _metaclass_for(cls: Any) -> Any:
    """The metaclass of a device class; it derives from the student's own, if there is one.

    Raises TypeError where the two do not fit together.
    """
    students = type(cls)
    if students is type(torch.Tensor):
        return _MadeClass
    bases = (_MadeClass, students)
    return type.__new__(type, students.__name__, bases, {"__module__": students.__module__})


def _make_device_class(cls: Any) -> Any:
    """Make the class that device tensors have for a student's class, and return it.

    It derives from the student's class and from `Tensor`, and is known from now on. Raises what a
    student's `__init_subclass__` raises, and TypeError where a student's metaclass does not fit.
    """
    methods = {name: _attribute_method(cls, name) for name in ("__getattribute__", "__setattr__")}
    namespace = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "_student_class": cls,
        # What Python would add when it is first asked for; nobody adds anything to the class later.
        "__slotnames__": Tensor.__slotnames__,
        "__annotations__": dict(vars(cls).get("__annotations__", {})),
        **methods,
    }
    bases = (cls, _Bridge)
    # Not by calling the metaclass: one of the student's would choose what the class has.
    made: Any = type.__new__(_metaclass_for(cls), cls.__name__, bases, namespace)
    type(torch.Tensor).__init__(made, cls.__name__, bases, {})
    # Set afterwards: torch's metaclass turns __torch_function__ off where it finds a
    # __torch_dispatch__, and a student's `__init_subclass__` may have put something else into the
    # class.
    attributes = {**methods, "__slotnames__": Tensor.__slotnames__}
    # A `__torch_dispatch__` of the student's stays; it calls the one of `_Bridge`.
    if cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        attributes["__torch_dispatch__"] = staticmethod(Tensor.__torch_dispatch__)
    torch_function = cls.__torch_function__
    unbound = getattr(torch_function, "__func__", None)
    if unbound is not None:
        torch_function = classmethod(unbound)
    attributes["__torch_function__"] = torch_function
    for name, value in attributes.items():
        type.__setattr__(made, name, value)
    _device_classes[cls] = made
    VIRTUAL.add(made)
    return made


def device_class(cls: Any) -> Any:
    """The class that a device tensor has for a class of tensors; made at the first call.

    Raises what a student's `__init_subclass__` raises, and TypeError where a student's metaclass
    does not fit.
    """
    if cls in VIRTUAL:
        return cls
    if cls is torch.Tensor:
        return Tensor
    if cls is torch.nn.Parameter:
        return Parameter
    return _device_classes.get(cls) or _make_device_class(cls)


def host_class(cls: Any) -> Any:
    """The class that a host tensor has for a class of tensors."""
    if cls in VIRTUAL:
        return student_class(cls)
    return cls


def _refuse_after_close(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The `__torch_dispatch__` of tensors that have outlived their device.

    Raises DeviceClosed or the error of what ended the device; None where there is no such tensor.
    """
    for tensor in tensors_in([args, kwargs or {}]):
        if isinstance(tensor, Tensor):
            raise closed_device_error(tensor._virtual_block.device)


def _forget_device_classes() -> None:
    """Forget the classes that were made, when the device closes.

    Their tensors raise DeviceClosed from now on.
    """
    if not _device_classes:
        return
    VIRTUAL.difference_update(_device_classes.values())
    for cls in _device_classes.values():
        # No plan knows the class any more.
        type.__setattr__(cls, "__torch_dispatch__", staticmethod(_refuse_after_close))
    _device_classes.clear()


# ---- tensors of these classes --------------------------------------------------------------------


def _view_as_subclass(tensor: Any, cls: Any) -> Any:
    """`Tensor.as_subclass` for host and device tensors alike; the memory is shared.

    `cls` is the class of the view. The first view of a class of a student's makes the device class
    that stands for it. Raises what the student's `__init_subclass__` raises, DeviceClosed for a
    tensor with gradients whose device is closed, and what torch raises for a class of other things.
    """
    if type(tensor) not in VIRTUAL:
        return _as_subclass(tensor, host_class(cls))
    cls = device_class(cls)
    if cls is Tensor and type(tensor) is Tensor:
        return tensor  # torch.load asks so of a leaf that it has just made, and it must stay one
    with no_torch_function():
        if tensor.requires_grad and torch.is_grad_enabled():
            view = torch.ops.aten.alias(tensor)
        else:
            view = wrap(tensor._virtual_inner, tensor._virtual_block)
    view.__class__ = cls
    return view


def _make_subclass(
    original: Any, cls: Any, data: Any, require_grad: bool = False, **kwargs: Any
) -> Any:
    """`Tensor._make_subclass` for host and device tensors alike; `cls` is the class to make.

    Raises RuntimeError for gradients of integers, and what `original` raises.
    """
    if type(data) not in VIRTUAL:
        return original(host_class(cls), data, require_grad, **kwargs)
    return detach_as(device_class(cls), data, require_grad)


def detach_as(cls: Any, data: Any, requires_grad: bool) -> Any:
    """A device tensor of this class with the memory of another one, and no history.

    Raises RuntimeError for gradients of integers.
    """
    with no_torch_function():
        detached = data.detach().requires_grad_(requires_grad)
    detached.__class__ = cls
    return detached


@torch_patches()
def _subclass_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of what makes a tensor one of another class.

    `opening` is told to forget the classes that were made when a device closes.
    """
    opening.on_close.append(_forget_device_classes)
    yield torch.Tensor, "as_subclass", _view_as_subclass
    original = find_internal("torch.Tensor._make_subclass", "a tensor of a subclass")
    make_subclass = functools.partial(_make_subclass, original)
    yield torch.Tensor, "_make_subclass", staticmethod(make_subclass)


# ---- what is looked up on torch.Tensor -----------------------------------------------------------


def device_as_programs_see_it(device: torch.device) -> torch.device:
    """The device by the name that programs know; C++ has another one for ours."""
    if device == CPU:  # its type as a text takes longer
        return device
    if device.type == "lazy":
        return CUDA[device.index or 0]
    return device


def device_of(tensor: Any) -> torch.device:
    """The value of `x.device`, of host and device tensors alike."""
    return device_as_programs_see_it(_device_in_cpp.__get__(tensor))


def is_cuda_tensor(tensor: Any) -> bool:
    """The value of `x.is_cuda`, of host and device tensors alike."""
    return device_of(tensor).type == "cuda"


def _call_own_or_original(
    own: Any, original: Any, tensor: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Call `own`, the device's method, for a device tensor, and `original`, torch's, for others.

    Gives and raises what that method does.
    """
    if isinstance(tensor, Tensor):
        method = own
    else:
        method = original
    return method(tensor, *args, **kwargs)


@torch_patches(Stage.WRAP)
def _unbound_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of what is looked up on `torch.Tensor` and used with a device tensor."""
    for name in ("numpy", "tolist", "type"):
        own = getattr(Tensor, name)
        yield around(torch.Tensor, name, functools.partial(_call_own_or_original, own))
    yield torch.Tensor, "device", property(device_of)
    yield torch.Tensor, "is_cuda", property(is_cuda_tensor)
