"""Attributes and methods of a device tensor."""

from __future__ import annotations

import copy
from typing import Any, Final

import torch

from virtual_cuda.device.messages import not_on_host, type_name, without_lazy
from virtual_cuda.device.state import Place
from virtual_cuda.device.tensor import VIRTUAL, Parameter, Tensor, wrap
from virtual_cuda.ops.dispatch import allocate, shut, write
from virtual_cuda.ops.syncs import HOST, record_copy
from virtual_cuda.patching import Opening, Patch, Stage, torch_patches
from virtual_cuda.recording import Recorder
from virtual_cuda.torch_api import storage
from virtual_cuda.torch_api.modules import exchange

_Base: Final[Any] = torch._C.TensorBase


def _device(self: Any) -> torch.device:
    place: Place = self._block.place
    return place.cuda


def _numpy(self: Any, *, force: bool = False) -> Any:
    if force:
        return self.detach().cpu().resolve_conj().resolve_neg().numpy()
    raise not_on_host(self._block.place.label)


def _array(self: Any, dtype: Any = None, copy: Any = None) -> Any:
    return self.numpy()


def _tolist(self: Any) -> Any:
    place = self._block.place
    if place.shut:
        raise shut(place)
    # As C++ does it: a copy to the host, read there.
    write("aten._to_copy.default", place, 0)
    record_copy("to_host", self._inner, False, False, place.label, HOST, wait="tolist")
    return self._inner.tolist()


def _data_ptr(self: Any) -> int:
    return storage.data_ptr(self)


def _is_pinned(self: Any, device: Any = None) -> bool:
    return False


def _pin_memory(self: Any, device: Any = None) -> Any:
    raise RuntimeError(f"cannot pin '{type_name(self)}' only dense CPU tensors can be pinned")


def _type(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    if dtype is None:
        return type_name(self)
    if isinstance(dtype, torch.dtype):
        return self.to(dtype, non_blocking=non_blocking)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    wanted = torch.empty(0).type(name.replace("torch.cuda.", "torch.")).dtype
    return self.to(wanted) if "cuda" in name else self.cpu().to(wanted)


def _repr(self: Any, *, tensor_contents: Any = None) -> str:
    if self._block.place.shut:
        return f"<tensor of shape {tuple(self.shape)} on a virtual device that is closed>"
    shown = self
    if isinstance(self, Parameter):  # torch would nest the class names
        shown = wrap(self._inner, self._block).requires_grad_(self.requires_grad)
    with torch._C.DisableTorchFunctionSubclass():
        text: str = torch._tensor_str._str(shown, tensor_contents=tensor_contents)
    # torch prints the class name of what it takes for a foreign subclass
    if text.startswith("Tensor("):
        text = "tensor(" + text[len("Tensor(") :]
    if self.requires_grad and self.grad_fn is None and "requires_grad" not in text:
        text = text[:-1] + ", requires_grad=True)"
    return "Parameter containing:\n" + text if isinstance(self, Parameter) else text


def _format(self: Any, spec: str) -> str:
    if self.dim() == 0 and not self.is_meta:
        return str(self.item().__format__(spec))
    return object.__format__(self, spec)


def _copy(self: Any) -> Any:
    twin = wrap(self._inner, self._block)
    twin.requires_grad_(self.requires_grad)
    twin.__class__ = type(self)
    return twin


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
            "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
            "see https://github.com/pytorch/pytorch/pull/103001"
        )
    place = self._block.place
    if place.shut:
        raise shut(place)
    inner = self._inner
    key = id(self._block)
    kept = memo.get(key)
    if isinstance(self, Parameter):
        fresh = inner.detach().clone(memory_format=torch.preserve_format)
        block = allocate(place, fresh.untyped_storage().nbytes())
    else:
        if kept is None:
            copied = storage.as_bytes(inner.untyped_storage()).clone().untyped_storage()
            kept = memo[key] = (copied, allocate(place, copied.nbytes()), self._block)
        copied, block = kept[0], kept[1]
        fresh = torch.empty(0, dtype=inner.dtype).set_(copied, inner.storage_offset(), inner.shape, inner.stride())
    twin = wrap(fresh, block)
    twin.requires_grad_(self.requires_grad)
    twin.__class__ = type(self)
    if self.grad is not None:
        twin.grad = copy.deepcopy(self.grad, memo)
    extra = {k: v for k, v in self.__dict__.items() if k not in ("_inner", "_block")}
    for name, value in extra.items():
        twin.__dict__[name] = copy.deepcopy(value, memo)
    memo[id(self)] = twin
    return twin


def _set_data(self: Any, value: Any) -> None:
    """`x.data = value` for every combination of host and device tensors."""
    mine, theirs = type(self) in VIRTUAL, type(value) in VIRTUAL
    if mine and theirs:
        _Base.data.__set__(self, value)
        self._inner, self._block = value._inner, value._block
    elif mine or theirs:
        gradient = self.grad
        kept = exchange(self, value.detach(), self.requires_grad)
        if gradient is not None:
            kept.__dict__["_stray_grad"] = gradient  # `.data` moves, the gradient stays where it is
    else:
        _Base.data.__set__(self, value)


def _get_data(self: Any) -> Any:
    return _Base.data.__get__(self)


_DATA: Final = property(_get_data, _set_data)


def _get_grad(self: Any) -> Any:
    stray = self.__dict__.get("_stray_grad")
    return _Base.grad.__get__(self) if stray is None else stray


def _set_grad(self: Any, gradient: Any) -> None:
    self.__dict__.pop("_stray_grad", None)
    try:
        _Base.grad.__set__(self, gradient)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


def _del_grad(self: Any) -> None:
    _set_grad(self, None)


def _cuda_array_interface(self: Any) -> dict[str, Any]:
    if self.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on Variable that requires grad. "
            "If gradients aren't required, use var.detach() to get Variable that doesn't require grad."
        )
    shown: dict[str, Any] = {
        "typestr": self._inner.numpy().dtype.str,
        "shape": tuple(self.shape),
        "strides": None if self.is_contiguous() else tuple(s * self.element_size() for s in self.stride()),
        "data": (self.data_ptr() if self.numel() > 0 else 0, False),
        "version": 2,
    }
    return shown


def _setitem(self: Any, index: Any, value: Any) -> None:
    """A number becomes a host scalar first, as for CUDA: writing one element waits, filling a row does not."""
    if isinstance(value, (int, float, complex)):
        value = torch.scalar_tensor(value, dtype=self.dtype, device="cpu")
    _Base.__setitem__(self, index, value)


def _to(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.Tensor.to` as it is at the moment; without a device to ask, torch would blame its own build."""
    place = self._block.place
    if place.shut:
        raise shut(place)
    return torch.Tensor.to(self, *args, **kwargs)


def _cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
    place = self._block.place
    if place.shut:
        raise shut(place)
    return torch.Tensor.cuda(self, *args, **kwargs)


def complete() -> None:
    """Give `tensor.Tensor` its surface; done once, at import."""
    for name, value in {
        "device": property(_device),
        "is_cuda": property(lambda self: True),
        "data": _DATA,
        "grad": property(_get_grad, _set_grad, _del_grad),
        "numpy": _numpy,
        "__array__": _array,
        "__cuda_array_interface__": property(_cuda_array_interface),
        "tolist": _tolist,
        "data_ptr": _data_ptr,
        "is_pinned": _is_pinned,
        "pin_memory": _pin_memory,
        "type": _type,
        "to": _to,
        "cuda": _cuda,
        "__repr__": _repr,
        "__format__": _format,
        "__copy__": _copy,
        "__deepcopy__": _deepcopy,
        "__setitem__": _setitem,
    }.items():
        setattr(Tensor, name, value)


complete()


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    return [(torch.Tensor, "data", _DATA)]


@torch_patches(Stage.RECORD)
def _recording_patches(opening: Opening) -> list[Patch]:
    recorder = Recorder(opening.gpu.ledger.rows, without_lazy)
    for hook in recorder.hooks():
        opening.undo.callback(hook.remove)
    return recorder.patches()
