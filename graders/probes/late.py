"""How can a module speak of torch without importing it? Collecting exercises must not cost the seconds torch takes."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any


class _Late:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # From the table of modules, where it is by now: the import system takes longer to find that out.
        module = sys.modules.get(self._name) or importlib.import_module(self._name)
        return getattr(module, attribute)


if TYPE_CHECKING:
    import torch
    from torch import nn
else:
    torch, nn = _Late("torch"), _Late("torch.nn")

__all__ = ["nn", "torch"]
