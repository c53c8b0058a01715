"""What do methods of `torch.Tensor` answer that are called by their names in the class, or inside a function transform?

`map(torch.Tensor.tolist, tensors)` passes the device tensor's own methods by. And `torch.func.grad` or `vmap` hand out
wrappers that are no device tensors: theirs is the device that C++ knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from graders.bench.virtual.places import CUDA
from graders.bench.virtual.tensor import Tensor

_Base: Final[Any] = torch._C.TensorBase
_METHODS: Final = ("numpy", "tolist", "type")


def _either(name: str) -> Callable[..., Any]:
    own, others = getattr(Tensor, name), getattr(torch.Tensor, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (own if isinstance(self, Tensor) else others)(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = others.__doc__
    return method


def _device(self: Any) -> Any:
    found = _Base.device.__get__(self)
    return CUDA[found.index or 0] if found.type == "lazy" else found


def _is_cuda(self: Any) -> Any:
    return _Base.is_cuda.__get__(self) or _Base.device.__get__(self).type == "lazy"


def patches() -> Iterator[tuple[Any, str, Any]]:
    for name in _METHODS:
        yield torch.Tensor, name, _either(name)
    yield torch.Tensor, "device", property(_device)
    yield torch.Tensor, "is_cuda", property(_is_cuda)
