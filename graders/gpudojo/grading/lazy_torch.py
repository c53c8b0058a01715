"""`torch` and `nn`, imported when something of them is first used.

Modules of exercises import them from here. Checks judge evidence without torch, and importing it
takes longer than judging a class.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


def _lazy_module(name: str) -> Any:
    """Make an object that stands for a module and imports it when an attribute is asked for.

    That may raise ImportError.
    """

    class LazyModule:
        __slots__ = ()

        def __getattribute__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # asked by `isinstance`
                return object.__getattribute__(self, attribute)
            module = importlib.import_module(name)
            # From now on Python asks the module itself, without this function in between: probes
            # ask it often.
            LazyModule.__getattribute__ = module.__getattribute__  # type: ignore[assignment,method-assign]
            return getattr(module, attribute)

    return LazyModule()


if TYPE_CHECKING:
    import torch as torch
    from torch import nn as nn
else:
    torch = _lazy_module("torch")
    nn = _lazy_module("torch.nn")
