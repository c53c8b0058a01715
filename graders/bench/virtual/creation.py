"""What may be asked of a factory? A device by number, pinning and a generator are settled before C++ asks for a GPU."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils._device

from graders.bench.virtual import pinning
from graders.bench.virtual.conversions import place_named
from graders.bench.virtual.randomness import is_device_generator
from graders.bench.virtual.tensor import VIRTUAL

# made from data, by their own rules
_ELSEWHERE = frozenset({"tensor", "as_tensor", "asarray"})
_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")


def _settle(name: str, original: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        place = None
        if device is not None:
            place = place_named(device)
            if place is not None and type(device) is int:
                kwargs["device"] = place.cuda
        if kwargs.get("pin_memory"):
            if place is not None:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            del kwargs["pin_memory"]
            return pinning.pin(original(*args, **kwargs))
        generator = kwargs.get("generator")
        if generator is not None and place is None and is_device_generator(generator) and not _on_device(args, kwargs):
            raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")
        return original(*args, **kwargs)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = original.__doc__
    return made


def _numbered(name: str, original: Any) -> Any:
    """`zeros_like(x, device=0)`, `x.new_zeros(3, device=0)`: only the number needs a word."""

    def made(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if type(device) is int:
            place = place_named(device)
            kwargs["device"] = device if place is None else place.cuda
        return original(*args, **kwargs)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = original.__doc__
    return made


def _on_device(args: Any, kwargs: Any) -> bool:
    """Whether values come to the device without its being named: by the default, into `out`, or beside a tensor."""
    beside = any(type(given) in VIRTUAL for given in (*args, *kwargs.values()))
    return beside or torch.get_default_device().type == "cuda"


@functools.cache
def _factories() -> tuple[tuple[Any, str, Any], ...]:
    """Every function of `torch` that takes a device; looked for once, because torch has a thousand names."""
    constructors = torch.utils._device._device_constructors()
    found = {
        name: f for name, f in vars(torch).items() if callable(f) and name not in _ELSEWHERE and _in(f, constructors)
    }
    found["normal"] = torch.normal
    made: list[tuple[Any, str, Any]] = [(torch, name, _settle(name, function)) for name, function in found.items()]
    for owner, home, names in ((torch, torch, _LIKE), (torch.Tensor, torch._C.TensorBase, _NEW)):
        made += [(owner, name, _numbered(name, getattr(home, name))) for name in names]
    return tuple(made)


def patches() -> tuple[tuple[Any, str, Any], ...]:
    return _factories()


def _in(function: Any, constructors: Any) -> bool:
    try:
        return function in constructors
    except TypeError:
        return False
