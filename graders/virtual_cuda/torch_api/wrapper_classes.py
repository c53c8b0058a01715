"""Classes of tensors that wrap other tensors, and modes that see operators.

Both have a `__torch_dispatch__`, which is told of operators. While a device is open it is changed,
so that it is told what a program on a GPU would see: "cuda", not the name that C++ has for the
device. Nested tensors above all have such a class.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nested

from virtual_cuda.device.state import find_open_device
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.student_classes import (
    device_as_programs_see_it,
    device_of,
    host_class,
    is_cuda_tensor,
)

# Where `_make_wrapper_subclass` takes the device, counted after the class.
_DEVICE_POSITION: Final = 6
# Classes that got the properties `device` and `is_cuda`.
_with_device_names: Final[list[Any]] = []
# Classes whose `__torch_dispatch__` was changed, and what it was; None where it is inherited.
_translated: Final[dict[Any, Any]] = {}


def _make_wrapper(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `Tensor._make_wrapper_subclass`, the `original`, for a class that wraps tensors.

    C++ must not hear of a device that it lacks, so it is told "lazy"; until the device closes, the
    class is changed so that Python hears "cuda". Gives the tensor. Raises CUDA's error for a device
    that is not there, and what `original` raises.
    """
    cls = host_class(cls)
    by_position = len(args) > _DEVICE_POSITION
    if by_position:
        given = args[_DEVICE_POSITION]
    else:
        given = kwargs.get("device")
    device = find_open_device(given)
    if device is None:
        return original(cls, *args, **kwargs)
    if by_position:
        new_args = list(args)
        new_args[_DEVICE_POSITION] = device.lazy
        args = tuple(new_args)
    else:
        kwargs["device"] = device.lazy
    if "device" not in vars(cls):
        cls.device = property(device_of)
        cls.is_cuda = property(is_cuda_tensor)
        _with_device_names.append(cls)
    _translate_dispatch(cls)
    return original(cls, *args, **kwargs)


def _translate_dispatch(cls: Any) -> None:
    """Change a class so that its `__torch_dispatch__` is told a GPU's names.

    They are the classes of tensors and the devices that a program on a GPU would see. Does nothing
    for a class that was changed before, or for one of ours, which says so by `knows_names`.
    """
    if cls in _translated or "knows_names" in vars(cls):
        return
    declared = inspect.getattr_static(cls, "__torch_dispatch__")
    is_static = isinstance(declared, staticmethod)
    is_bound = isinstance(declared, (classmethod, staticmethod))
    function: Any = declared.__func__ if is_bound else declared
    count_before_types = 1 if is_static else 2  # (func, types, …) or (self, func, types, …)

    @functools.wraps(function)
    def dispatch_with_names(*args: Any, **kwargs: Any) -> Any:
        """Call the class's own `__torch_dispatch__` with the names of a GPU.

        Gives and raises what that does.
        """
        before_types = args[:count_before_types]
        types = args[count_before_types]
        students_types = tuple(each for each in types if each not in VIRTUAL)
        rest = [_rename_devices(value) for value in args[count_before_types + 1 :]]
        renamed = {name: _rename_devices(value) for name, value in kwargs.items()}
        return function(*before_types, students_types, *rest, **renamed)

    _translated[cls] = vars(cls).get("__torch_dispatch__")
    if is_bound:
        cls.__torch_dispatch__ = type(declared)(dispatch_with_names)
    else:
        cls.__torch_dispatch__ = dispatch_with_names


def _rename_devices(arguments: Any) -> Any:
    """The arguments of an operator, a tuple or a dict, with the devices as programs know them."""
    if type(arguments) is dict:
        return {name: _rename_device(value) for name, value in arguments.items()}
    if type(arguments) is tuple:
        return tuple(_rename_device(value) for value in arguments)
    return arguments


def _rename_device(value: Any) -> Any:
    """A device by the name that programs know; all else as it is."""
    if isinstance(value, torch.device):
        return device_as_programs_see_it(value)
    return value


def _push_mode(original: Any, mode: Any) -> None:
    """Enter a mode that sees operators, by `original`.

    Until the device closes, the mode's class is changed so that it is told a GPU's names; one of
    ours stays.
    """
    _translate_dispatch(type(mode))
    original(mode)


def _restore_classes() -> None:
    """Undo what was done to classes, when the device closes."""
    if not _with_device_names and not _translated:
        return
    for cls in _with_device_names:
        del cls.device, cls.is_cuda
    for cls, before in _translated.items():
        if before is None:
            del cls.__torch_dispatch__
        else:
            cls.__torch_dispatch__ = before
    _translated.clear()
    _with_device_names.clear()


@torch_patches()
def _wrapper_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of what makes wrapping tensors and enters modes.

    `opening` is told to undo what was done to classes when a device closes.
    """
    opening.on_close.append(_restore_classes)
    yield around(find_internal("torch.utils._python_dispatch"), "_push_mode", _push_mode)
    original = find_internal("torch.Tensor._make_wrapper_subclass")
    make_wrapper = functools.partial(_make_wrapper, original)
    yield torch.Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper)
