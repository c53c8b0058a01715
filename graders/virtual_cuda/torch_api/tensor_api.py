"""Attributes and methods of a device tensor."""

from __future__ import annotations

import copy
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import not_on_host_error, type_name, without_lazy
from virtual_cuda.device.hidden import attributes_of
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import Parameter, Tensor, wrap
from virtual_cuda.internals import find_internal, no_torch_function
from virtual_cuda.ops.dispatch import allocate, record_operation, require_open_device
from virtual_cuda.ops.placement import HOST, record_copy
from virtual_cuda.patching import Opening, Patch, torch_patches
from virtual_cuda.torch_api import storage
from virtual_cuda.torch_api.modules import exchange, set_grad

_Base: Final[Any] = torch.Tensor.__base__  # the class in C that torch.Tensor adds its methods to
_text_of: Final = find_internal("torch._tensor_str._str", "printing a tensor")
_get_grad: Final = _Base.grad.__get__


def _set_data(self: Any, value: Any) -> None:
    """Set `x.data`, where both tensors may be on the host or on the device.

    Where a host tensor becomes a device tensor, or the other way round, its gradient stays where it
    is.
    """
    mine = isinstance(self, Tensor)
    theirs = isinstance(value, Tensor)
    if mine is not theirs:
        gradient = self.grad
        kept = exchange(self, value.detach(), self.requires_grad)
        if gradient is not None:
            kept.__dict__["_stray_grad"] = gradient  # `.data` moves, the gradient stays where it is
        return
    _Base.data.__set__(self, value)
    if mine:
        self._inner, self._block = value._inner, value._block


_DATA: Final = property(_Base.data.__get__, _set_data)


class _Members:
    """Everything that a device tensor has or does in its own way.

    It is copied into `Tensor`, which torch must find bare.
    """

    data = _DATA
    is_cuda = property(lambda self: True)

    @property
    def device(self: Any) -> torch.device:
        device: VirtualDevice = self._block.device
        return device.cuda

    @property
    def grad(self: Any) -> Any:
        stray = attributes_of(self).get("_stray_grad")
        return _get_grad(self) if stray is None else stray

    @grad.setter
    def grad(self: Any, gradient: Any) -> None:
        attributes_of(self).pop("_stray_grad", None)
        set_grad(self, gradient)

    @grad.deleter
    def grad(self: Any) -> None:
        self.grad = None

    def numpy(self: Any, *, force: bool = False) -> Any:
        if self.layout is not torch.strided:
            return self._inner.numpy()  # refused for its layout
        if force:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        raise not_on_host_error(self._block.device.label)

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
                "If gradients aren't required, use var.detach() to get Variable that doesn't require grad."
            )
        return {
            "typestr": self._inner.numpy().dtype.str,
            "shape": tuple(self.shape),
            "strides": None
            if self.is_contiguous()
            else tuple(s * self.element_size() for s in self.stride()),
            "data": (self.data_ptr() if self.numel() > 0 else 0, False),
            "version": 2,
        }

    def tolist(self: Any) -> Any:
        device = require_open_device(self)
        # As C++ does it: a copy to the host, read there.
        record_operation("aten._to_copy.default", device, 0)
        record_copy("to_host", self._inner, False, False, device.label, HOST, wait="tolist")
        return self._inner.tolist()

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

        Raises ValueError for a type that is not known.
        """
        if dtype is None:
            return type_name(self)
        if isinstance(dtype, torch.dtype):
            return self.to(dtype, non_blocking=non_blocking)
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        try:
            wanted = torch.empty(0, device="cpu").type(name.replace("torch.cuda.", "torch.")).dtype
        except ValueError:
            raise ValueError(f"invalid type: {name!r}") from None
        return self.to(wanted) if "cuda" in name else self.cpu().to(wanted)

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.Tensor.to` as it is at the moment.

        Raises DeviceClosed; without an open device torch would blame its own build.
        """
        require_open_device(self)
        return torch.Tensor.to(self, *args, **kwargs)

    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        require_open_device(self)
        return torch.Tensor.cuda(self, *args, **kwargs)

    def __repr__(self: Any, *, tensor_contents: Any = None) -> str:
        """The tensor as torch prints one of a GPU; it can also be asked of a closed device."""
        if self._block.device.closed:
            return f"<tensor of shape {tuple(self.shape)} on a virtual device that is closed>"
        shown = self
        if isinstance(self, Parameter):  # torch would nest the class names
            shown = wrap(self._inner, self._block).requires_grad_(self.requires_grad)
        with no_torch_function():
            text: str = _text_of(shown, tensor_contents=tensor_contents)
        # torch prints the class name of what it takes for a foreign subclass
        if text.startswith("Tensor("):
            text = "tensor(" + text[len("Tensor(") :]
        if self.requires_grad and self.grad_fn is None and "requires_grad" not in text:
            text = text[:-1] + ", requires_grad=True)"
        return "Parameter containing:\n" + text if isinstance(self, Parameter) else text

    def __format__(self: Any, spec: str) -> str:
        if self.dim() == 0 and not self.is_meta:
            return str(self.item().__format__(spec))
        return object.__format__(self, spec)

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        """Write into the tensor; raises what CUDA raises.

        A number becomes a scalar of the host first, as for CUDA: to write one element waits, to
        fill a row does not.
        """
        if isinstance(value, (int, float, complex)):
            value = torch.scalar_tensor(value, dtype=self.dtype, device="cpu")
        try:
            _Base.__setitem__(self, index, value)
        except (RuntimeError, TypeError) as error:
            raise without_lazy(error) or error from None

    def __copy__(self: Any) -> Any:
        return _twin(self, self._inner, self._block)

    def __dir__(self: Any) -> list[str]:
        kind = type(self)._student_class
        names = {*dir(kind), *attributes_of(self)} - {"volatile", *HIDDEN_IN_TENSORS, *_OUTSIDE}
        return sorted(names - {"__cuda_array_interface__"} if self.is_sparse else names)

    def __deepcopy__(self: Any, memo: dict[Any, Any]) -> Any:
        """A copy with memory of its own, its gradient and its attributes.

        Tensors over one storage share the copy of that. Raises RuntimeError for a tensor with a
        history, and DeviceClosed.
        """
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                "moment.  If you were attempting to deepcopy a module, this may be because of a "
                "torch.nn.utils.weight_norm usage, see https://github.com/pytorch/pytorch/pull/103001"
            )
        device = require_open_device(self)
        inner = self._inner
        if type(self) is not Tensor and not isinstance(self, torch.nn.Parameter):
            with no_torch_function():
                if type(self.new_empty([])) is not type(self):
                    raise RuntimeError(_NO_COPY)
        # A copy has the conjugate and negative bits resolved.
        if isinstance(self, torch.nn.Parameter) or inner.is_conj() or inner.is_neg():
            fresh = inner.detach().clone(memory_format=torch.preserve_format)
            block = allocate(device, fresh.untyped_storage().nbytes())
        else:
            # Shared by all tensors that look into the same storage, and by the storage itself;
            # torch keeps it there.
            storages = memo.setdefault("torch", {})
            key = inner.untyped_storage()._cdata
            if key not in storages:
                copied = storage.as_bytes(inner.untyped_storage()).clone().untyped_storage()
                storages[key] = storage.on_device(copied, allocate(device, copied.nbytes()))
            copied = storages[key]
            block = storages[key]._block
            where = inner.storage_offset(), inner.shape, inner.stride()
            fresh = storage.host_set(torch.empty(0, dtype=inner.dtype), copied, *where)
        # What else the tensor has.
        twin = _twin(self, fresh, block)
        if self.grad is not None:
            twin.grad = copy.deepcopy(self.grad, memo)
        for name, value in list(self.__dict__.items()):
            if name not in HIDDEN_IN_TENSORS:
                twin.__dict__[name] = copy.deepcopy(value, memo)
        memo[id(self)] = twin
        return twin


# Attributes that are ours, too, but that a copy takes along.
_OUTSIDE: Final = (
    "_stray_grad",
    "_goes_to",
)
_NO_COPY: Final = (
    "The default implementation of __deepcopy__() for non-wrapper subclasses only works for subclass types that "
    "implement new_empty() and for which that function returns another instance of the same subclass. You should "
    "either properly implement new_empty() for your subclass or override __deepcopy__() if it is intended behavior for "
    "new_empty() to return an instance of a different type."
)


def _twin(tensor: Any, inner: torch.Tensor, block: Any) -> Any:
    """A tensor of the class of `tensor` around other values."""
    twin = wrap(inner, block)
    twin.requires_grad_(tensor.requires_grad)
    twin.__class__ = type(tensor)
    return twin


for _name, _value in vars(_Members).items():
    if _name not in (
        "__module__",
        "__dict__",
        "__weakref__",
        "__doc__",
        "__annotations__",
        "__qualname__",
    ):
        setattr(Tensor, _name, _value)


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    return [(torch.Tensor, "data", _DATA)]
