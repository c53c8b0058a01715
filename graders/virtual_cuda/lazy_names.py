"""Imports names of a module when they are first used.

So `import virtual_cuda` does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def find_lazily(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module, which imports a name from its home and keeps it.

    `homes` names the module in which each name is defined. The function raises AttributeError for
    other names, and TorchUnsupported where this torch lacks what the name needs.
    """

    def find(name: str) -> Any:
        """Import a name, keep it in the module, and return it.

        Raises AttributeError for a name without a home, and TorchUnsupported where this torch lacks
        what the name needs.
        """
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            found = getattr(importlib.import_module(f"virtual_cuda.{homes[name]}"), name)
        except (AttributeError, ImportError) as error:
            # Not at the top: every pytest run imports this module.
            from virtual_cuda.errors import torch_lacks

            raise torch_lacks(error) or error from error
        setattr(sys.modules[module], name, found)
        return found

    return find
