"""What is `torch.device(0)`? The first accelerator; C++ would look for a real one, so a number is understood here."""

from __future__ import annotations

from typing import Any, Final

import torch

_real: Final = torch.device


class _AnyDevice(type):
    """Lets `isinstance(x, torch.device)` mean what it always means."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _real)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _real)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], int) and not isinstance(args[0], bool):
            return _real("cuda", args[0])
        return _real(*args, **kwargs)


device: Final = _AnyDevice("device", (), {"__module__": "torch", "__doc__": _real.__doc__})


def patches() -> list[tuple[Any, str, Any]]:
    return [(torch, "device", device)]
