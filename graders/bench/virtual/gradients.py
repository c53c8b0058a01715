"""Is a gradient where its tensor is? Autograd checks plain tensors and trusts subclasses, so it is checked here."""

from __future__ import annotations

from typing import Any, Final

import torch

from graders.bench.virtual.tensor import VIRTUAL
from graders.bench.virtual.wording import without_lazy

_grad: Final[Any] = torch._C.TensorBase.grad


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _elsewhere(gradient: Any, device: torch.device) -> bool:
    """A gradient of one element follows its tensor; any other must be there already."""
    # Inside torch.func the wrapped gradient still shows the name C++ has for the device.
    other = isinstance(gradient, torch.Tensor) and gradient.dim() > 0 and gradient.device != device
    return other and "lazy" not in (gradient.device.type, device.type)


def _checked(original: Any, name: str, position: int) -> Any:
    """`torch.autograd.backward` or `grad`, whose gradients come by keyword or at a position."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[position] if len(args) > position else kwargs.get(name)
        if given is not None:
            tensors = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
            for index, (tensor, gradient) in enumerate(zip(_listed(tensors), _listed(given), strict=False)):
                virtual = type(tensor) in VIRTUAL or type(gradient) in VIRTUAL
                if virtual and isinstance(tensor, torch.Tensor) and _elsewhere(gradient, tensor.device):
                    raise RuntimeError(
                        f"invalid gradient at index {index} - expected device {tensor.device} but got {gradient.device}"
                    )
        return original(*args, **kwargs)

    return call


def _device_of_edge(edge: Any) -> torch.device | None:
    node, index = edge
    if node is None:
        return None
    variable = getattr(node, "variable", None)
    if variable is not None:
        return torch.device(variable.device)
    device = node._input_metadata[index].device
    return torch.device("cuda", device.index) if device.type == "lazy" else device


def _custom(original: Any) -> Any:
    """A student's own `autograd.Function.backward`: what it returns must be where the inputs are."""

    def apply(self: Any, *args: Any) -> Any:
        given = original(self, *args)
        for index, (gradient, edge) in enumerate(zip(_listed(given), self.next_functions, strict=False)):
            device = _device_of_edge(edge)
            if device is not None and _elsewhere(gradient, device) and "cuda" in (device.type, gradient.device.type):
                raise RuntimeError(
                    f"Function {type(self).__name__} returned an invalid gradient at index {index} - "
                    f"expected device {device} but got {gradient.device}"
                )
        return given

    return apply


def _set_grad(self: Any, gradient: Any) -> None:
    """A host tensor is given a gradient; if that is on the device, C++ refuses it by the name it has for the device."""
    try:
        _grad.__set__(self, gradient)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


def patches() -> list[tuple[Any, str, Any]]:
    custom = torch.autograd.function.BackwardCFunction
    return [
        (torch.autograd, "backward", _checked(torch.autograd.backward, "grad_tensors", 1)),
        (torch.autograd, "grad", _checked(torch.autograd.grad, "grad_outputs", 2)),
        (custom, "apply", _custom(custom.apply)),
        (torch.Tensor, "grad", property(_grad.__get__, _set_grad, _grad.__delete__)),
    ]
