"""How does a host tensor get onto the device? `.to`, `.cuda` and the factories that take data."""

from __future__ import annotations

import warnings
from typing import Any, Final

import torch

from graders.bench.virtual import pinning
from graders.bench.virtual.places import CPU, Place, now, place_of
from graders.bench.virtual.tensor import VIRTUAL
from graders.bench.virtual.transfers import to_device

_Base: Final[Any] = torch._C.TensorBase
_COPIED: Final = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
    "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor)."
)
_PLAIN: Final = frozenset({"dtype", "non_blocking"})  # what `.to` may be told besides the device without a detour


def place_named(device: Any) -> Place | None:
    """The open place that "cuda", "cuda:1", 0 or a torch.device names."""
    if isinstance(device, str):
        if device == "cuda" and now.gpu is not None:
            return now.gpu.places[now.gpu.current]
        if not device.startswith("cuda"):
            return None
        device = torch.device(device)
    elif isinstance(device, int) and not isinstance(device, bool):
        device = torch.device("cuda", device)
    return place_of(device) if isinstance(device, torch.device) else None


def translate(device: Any) -> Any:
    """The device C++ must be told for the one the student named."""
    place = place_named(device)
    return device if place is None else place.lazy


_profiled: Final = torch._C._autograd._profiler_enabled


def _direct(tensor: Any) -> bool:
    """Whether a host tensor can be copied without telling autograd."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not torch.is_inference_mode_enabled()
        and not _profiled()  # which shows the operators a copy consists of
    )


def to(original: Any) -> Any:
    def converted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            first = args[0]
            if isinstance(first, (str, torch.device, int)):
                place = place_named(first)
                if place is not None:
                    # (device) as students write it, (device, dtype or None, non_blocking) as nn.Module.to does
                    usual = len(args) == 1 or (len(args) == 3 and args[1] in (None, self.dtype))
                    if usual and not kwargs.keys() - {"non_blocking"} and _direct(self):
                        return to_device(self, place, kwargs.get("non_blocking", len(args) == 3 and args[2]))
                    if not any(isinstance(other, str) for other in args[1:]):  # else C++ shall refuse what was written
                        args = (place.lazy, *args[1:])
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        if "other" in kwargs:
            args = (kwargs.pop("other"), *args)
        return original(self, *args, **kwargs)

    return converted


def cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> Any:
    return self.to(
        torch.device("cuda") if device is None else device, non_blocking=non_blocking, memory_format=memory_format
    )


def _default_device() -> Any:
    """The device of an enclosing `with torch.device(...)` or of set_default_device."""
    if not torch._C._len_torch_function_stack():
        return None
    for mode in reversed(torch.overrides._get_current_function_mode_stack()):
        if isinstance(mode, torch.utils._device.DeviceContext):
            return mode.device
    return None


def _read(data: Any) -> Any:
    """Lists of device scalars are read one by one, as torch does it, each at the price of a wait."""
    if type(data) in (list, tuple):
        if any(type(item) in VIRTUAL or type(item) in (list, tuple) for item in data):
            return [_read(item) for item in data]
    elif type(data) in VIRTUAL:
        if data.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return data.item()
    return data


def from_data(name: str, original: Any) -> Any:
    """`torch.tensor`, `as_tensor` and `asarray`: made on the host, then copied, as torch does it."""

    def made(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Any:
        data: Any = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        if device is None:
            if type(data) in VIRTUAL:
                device = data.device
            elif not isinstance(data, torch.Tensor):
                device = _default_device()
        place = None if device is None else place_named(device)
        if place is None:
            if device is not None:
                kwargs["device"] = device
            if type(data) in VIRTUAL:
                args = (data.cpu() if torch.device(device).type == "cpu" else data, *args[1:])
            elif args and not isinstance(data, torch.Tensor):
                args = (_read(data), *args[1:])
            made_here = original(*args, **kwargs)
            return pinning.pin(made_here) if pin_memory else made_here
        requires_grad = kwargs.pop("requires_grad", False)
        if isinstance(data, torch.Tensor):
            if name == "tensor":
                warnings.warn(_COPIED, UserWarning, stacklevel=2)
            moved = data.detach() if name == "tensor" else data
            dtype = kwargs.get("dtype")
            moved = moved.to(place.cuda, dtype or moved.dtype)
            if (name == "tensor" and moved.data_ptr() == data.data_ptr()) or (kwargs.get("copy") and moved is data):
                moved = moved.clone()
        else:
            if pin_memory:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            args = (_read(args[0]), *args[1:]) if args else args
            moved = original(*args, device=CPU, **kwargs).to(place.cuda)
        if requires_grad and not (moved.is_floating_point() or moved.is_complex()):
            raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
        return moved.requires_grad_() if requires_grad else moved

    made.__name__ = name
    return made


def new_tensor(
    self: Any, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kwargs: Any
) -> Any:
    where = self.device if device is None else device
    return torch.tensor(data, dtype=dtype or self.dtype, device=where, requires_grad=requires_grad)


def patches() -> list[tuple[Any, str, Any]]:
    made: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "to", to(_Base.to)),
        (torch.Tensor, "cuda", cuda),
        (torch.Tensor, "pin_memory", lambda self, device=None: pinning.pin(self)),
        (torch.Tensor, "is_pinned", lambda self, device=None: pinning.is_pinned(self)),
        (torch.Tensor, "new_tensor", new_tensor),
    ]
    for name in ("tensor", "as_tensor", "asarray"):
        made.append((torch, name, from_data(name, getattr(torch, name))))
    return made
