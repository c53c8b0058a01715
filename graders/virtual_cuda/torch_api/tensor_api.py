"""Attributes and methods of a device tensor."""

from __future__ import annotations

import copy
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import not_on_host_error, type_name, without_lazy
from virtual_cuda.device.hidden import attributes_of
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.known_values import copy_known_values, read_values
from virtual_cuda.device.no_values import printing
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import Parameter, Tensor, wrap
from virtual_cuda.internals import find_internal, no_torch_function
from virtual_cuda.ops.dispatch import allocate, record_operation, require_open_device
from virtual_cuda.ops.placement import HOST, record_copy
from virtual_cuda.patching import Opening, Patch, torch_patches
from virtual_cuda.torch_api import storage
from virtual_cuda.torch_api.modules import give_content, set_grad

_Base: Final[Any] = torch.Tensor.__base__  # the class in C that torch.Tensor adds its methods to
_text_of: Final = find_internal("torch._tensor_str._str", "printing a tensor")
_get_grad: Final = _Base.grad.__get__


def _set_data(self: Any, value: Any) -> None:
    """Set `x.data`, where both tensors may be on the host or on the device.

    Where a host tensor becomes a device tensor, or the other way round, its gradient stays where it
    is; if C++ holds the tensor, a new one takes its place in every list and dict. Raises what torch
    raises for tensors that do not fit.
    """
    was_on_device = isinstance(self, Tensor)
    is_on_device = isinstance(value, Tensor)
    if was_on_device is not is_on_device:
        gradient = self.grad
        moved = give_content(self, value.detach(), self.requires_grad)
        if gradient is not None:
            moved.__dict__["_stray_grad"] = gradient
        return
    _Base.data.__set__(self, value)
    if is_on_device:
        self._virtual_inner = value._virtual_inner
        self._virtual_block = value._virtual_block


_DATA: Final = property(_Base.data.__get__, _set_data)


class _Members:
    """Everything that a device tensor has or does in its own way, under torch's names.

    It is copied into `Tensor`, which torch must find bare. No object of this class is made: `self`
    is a device tensor.
    """

    data = _DATA
    is_cuda = property(lambda self: True)

    @property
    def device(self: Any) -> torch.device:
        device: VirtualDevice = self._virtual_block.device
        return device.cuda

    @property
    def grad(self: Any) -> Any:
        """The gradient; after `x.data` has moved to another device, the one left behind."""
        left_behind = attributes_of(self).get("_stray_grad")
        if left_behind is None:
            return _get_grad(self)
        return left_behind

    @grad.setter
    def grad(self: Any, gradient: Any) -> None:
        attributes_of(self).pop("_stray_grad", None)
        set_grad(self, gradient)

    @grad.deleter
    def grad(self: Any) -> None:
        self.grad = None

    def numpy(self: Any, *, force: bool = False) -> Any:
        """The values as an array, only with `force`: that copies them to the host.

        The copy is recorded, and the host waits for it. Raises CUDA's TypeError without `force`,
        torch's for a tensor that is not strided, DeviceClosed or the error of what ended the
        device, and RuntimeError at a wait that is refused or tells of a failed kernel.
        """
        if self.layout is not torch.strided:
            return self._virtual_inner.numpy()  # refused for its layout
        if force:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        raise not_on_host_error(self._virtual_block.device.label)

    def __array__(self: Any, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    @property
    def __cuda_array_interface__(self: Any) -> dict[str, Any]:
        """The tensor's memory, described for other libraries of CUDA.

        Raises RuntimeError if it requires gradients.
        """
        if self.requires_grad:
            raise RuntimeError(
                "Can't get __cuda_array_interface__ on Variable that requires grad. "
                "If gradients aren't required, use var.detach() to get Variable that doesn't "
                "require grad."
            )
        strides = None
        if not self.is_contiguous():
            strides = tuple(step * self.element_size() for step in self.stride())
        address = 0
        if self.numel() > 0:
            address = self.data_ptr()
        read_only = False
        return {
            "typestr": self._virtual_inner.numpy().dtype.str,
            "shape": tuple(self.shape),
            "strides": strides,
            "data": (address, read_only),
            "version": 2,
        }

    def tolist(self: Any) -> Any:
        """The values as nested lists; records the operator, the copy to the host, and its wait.

        In a run without values they are zeros, and that they were read is noted for the report.
        Raises DeviceClosed or the error of what ended the device, and RuntimeError at a wait that
        is refused or tells of a failed kernel.
        """
        device = require_open_device(self)
        # As C++ does it: a copy to the host, read there.
        record_operation("aten._to_copy.default", device, 0)
        record_copy(self._virtual_inner, device.label, HOST, wait="tolist")
        if self._virtual_inner.is_meta:
            return read_values(self._virtual_inner).tolist()
        return self._virtual_inner.tolist()

    def data_ptr(self: Any) -> int:
        return storage.data_ptr(self)

    def const_data_ptr(self: Any) -> int:
        return storage.const_data_ptr(self)

    def is_pinned(self: Any, device: Any = None) -> bool:
        return False

    def pin_memory(self: Any, device: Any = None) -> Any:
        raise RuntimeError(f"cannot pin '{type_name(self)}' only dense CPU tensors can be pinned")

    def type(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        """The name of the tensor's type, or the tensor as another type.

        As a type of the host, it is a copy on the host. Copies are recorded. Raises ValueError for
        a type that is not known, DeviceClosed or the error of what ended the device, torch's
        OutOfMemoryError, and RuntimeError at a wait that is refused or tells of a failed kernel.
        """
        if dtype is None:
            return type_name(self)
        if isinstance(dtype, torch.dtype):
            return self.to(dtype, non_blocking=non_blocking)
        if isinstance(dtype, str):
            type_named = dtype
        else:
            type_named = f"{dtype.__module__}.{dtype.__name__}"
        host_type = type_named.replace("torch.cuda.", "torch.")
        try:
            wanted = torch.empty(0, device="cpu").type(host_type).dtype
        except ValueError:
            raise ValueError(f"invalid type: {type_named!r}") from None
        if "cuda" in type_named:
            source = self
        else:
            source = self.cpu()
        return source.to(wanted)

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.Tensor.to` as it is at the moment.

        Raises what that raises, and before, where the device is not open, DeviceClosed or the error
        of what ended it; torch would blame its own build.
        """
        require_open_device(self)
        return torch.Tensor.to(self, *args, **kwargs)

    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        require_open_device(self)
        return torch.Tensor.cuda(self, *args, **kwargs)

    def __repr__(self: Any, *, tensor_contents: Any = None) -> str:
        """The tensor as torch prints one of a GPU; it can also be asked of a closed device.

        What torch computes and reads for that is recorded, with its waits; in a run without values
        it is noted for the report as one line that prints. Raises RuntimeError at a wait that is
        refused or tells of a failed kernel.
        """
        if self._virtual_block.device.closed:
            return f"<tensor of shape {tuple(self.shape)} on a virtual device that is closed>"
        tensor = self
        if isinstance(self, Parameter):  # torch would nest the class names
            tensor = wrap(self._virtual_inner, self._virtual_block).requires_grad_(
                self.requires_grad
            )
        with no_torch_function(), printing():
            text: str = _text_of(tensor, tensor_contents=tensor_contents)
        # torch prints the class name of what it takes for a foreign subclass
        if text.startswith("Tensor("):
            text = "tensor(" + text[len("Tensor(") :]
        if self.requires_grad and self.grad_fn is None and "requires_grad" not in text:
            text = text[:-1] + ", requires_grad=True)"
        if isinstance(self, Parameter):
            return "Parameter containing:\n" + text
        return text

    def __format__(self: Any, spec: str) -> str:
        if self.dim() == 0 and not self.is_meta:
            return str(self.item().__format__(spec))
        return object.__format__(self, spec)

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        """Write into the tensor, which is recorded with its waits; raises what CUDA raises.

        A number becomes a scalar of the host first, as for CUDA: to write one element waits, to
        fill a row does not. Errors name the device as students know it.
        """
        if isinstance(value, (int, float, complex)):
            value = torch.scalar_tensor(value, dtype=self.dtype, device="cpu")
        try:
            _Base.__setitem__(self, index, value)
        except (RuntimeError, TypeError) as error:
            raise without_lazy(error) or error from None

    def __copy__(self: Any) -> Any:
        return _new_like(self, self._virtual_inner, self._virtual_block)

    def __dir__(self: Any) -> list[str]:
        """The names that a tensor on a GPU has; none of ours."""
        names = {*dir(type(self)._student_class), *attributes_of(self)}
        names -= {"volatile", *HIDDEN_IN_TENSORS, *_OURS_BUT_COPIED}
        if self.is_sparse:
            names.discard("__cuda_array_interface__")
        return sorted(names)

    def __deepcopy__(self: Any, memo: dict[Any, Any]) -> Any:
        """A copy with memory of its own, its gradient and its attributes, kept in `memo`.

        Tensors over one storage share the copy of that. Raises RuntimeError for a tensor with a
        history and for a class whose `new_empty` makes another one, DeviceClosed or the error of
        what ended the device, and torch's OutOfMemoryError.
        """
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment.  If you were attempting to deepcopy a module, this may be "
                "because of a torch.nn.utils.weight_norm usage, "
                "see https://github.com/pytorch/pytorch/pull/103001"
            )
        device = require_open_device(self)
        _require_new_empty_of_class(self)
        # Its values. A copy has the conjugate and negative bits resolved.
        inner = self._virtual_inner
        if isinstance(self, torch.nn.Parameter) or inner.is_conj() or inner.is_neg():
            values = inner.detach().clone(memory_format=torch.preserve_format)
            block = allocate(device, values.untyped_storage().nbytes())
        else:
            copied = _copy_storage_once(inner.untyped_storage(), device, memo)
            block = copied._virtual_block
            where = inner.storage_offset(), inner.shape, inner.stride()
            values = storage.host_set(
                torch.empty(0, dtype=inner.dtype, device=device.inside), copied, *where
            )
        copy_known_values(inner, values)
        # Whatever else the tensor has.
        result = _new_like(self, values, block)
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
        for name, value in list(self.__dict__.items()):
            if name not in HIDDEN_IN_TENSORS:
                result.__dict__[name] = copy.deepcopy(value, memo)
        memo[id(self)] = result
        return result


# Attributes that are ours, too, but that a copy takes along.
_OURS_BUT_COPIED: Final = ("_stray_grad", "_goes_to")
_NO_COPY: Final = (
    "The default implementation of __deepcopy__() for non-wrapper subclasses only works for "
    "subclass types that implement new_empty() and for which that function returns another "
    "instance of the same subclass. You should either properly implement new_empty() for your "
    "subclass or override __deepcopy__() if it is intended behavior for new_empty() to return an "
    "instance of a different type."
)


def _require_new_empty_of_class(tensor: Any) -> None:
    """Raise RuntimeError if `new_empty` of a student's class makes a tensor of another class."""
    if type(tensor) is Tensor or isinstance(tensor, torch.nn.Parameter):
        return
    with no_torch_function():
        if type(tensor.new_empty([])) is not type(tensor):
            raise RuntimeError(_NO_COPY)


def _copy_storage_once(original: Any, device: VirtualDevice, memo: dict[Any, Any]) -> Any:
    """The copy of a storage within one `copy.deepcopy`; allocates memory for it at the first call.

    All tensors that look into the same storage share it, and so does the storage itself: torch
    keeps it in `memo`, under this key. Raises torch's OutOfMemoryError.
    """
    copies = memo.setdefault("torch", {})
    key = original._cdata
    if key not in copies:
        copied = storage.as_bytes(original).clone().untyped_storage()
        copies[key] = storage.mark_as_on_device(copied, allocate(device, copied.nbytes()))
    return copies[key]


def _new_like(tensor: Any, inner: torch.Tensor, block: Any) -> Any:
    """A tensor of the class of `tensor` around other values, with `block` as their memory.

    It requires gradients if `tensor` does. Raises RuntimeError where integers would.
    """
    result = wrap(inner, block)
    result.requires_grad_(tensor.requires_grad)
    result.__class__ = type(tensor)
    return result


# What every class has, and what is not to be copied into another one.
_OF_EVERY_CLASS: Final = frozenset(
    ("__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__qualname__")
)
for _name, _value in vars(_Members).items():
    if _name not in _OF_EVERY_CLASS:
        setattr(Tensor, _name, _value)


@torch_patches()
def _data_patch(opening: Opening) -> list[Patch]:
    """The patch of `Tensor.data`, for host tensors that become device tensors by it."""
    return [(torch.Tensor, "data", _DATA)]
