"""How does TorchScript recognise torch's functions while some are replaced? By name, not by object.

Forward-mode differentiation (`torch.func.jvp`, `hessian`) compiles its own formulas with TorchScript when it is
first used, so this concerns more than those who write `torch.jit.script`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.jit._builtins as builtins

_functions: Final[Any] = torch._C._VariableFunctions


def find(original: Any) -> Any:
    def found(function: Any) -> Any:
        known = original(function)
        if known is None:
            name = getattr(function, "__name__", None)
            if name is not None and vars(torch).get(name) is function and hasattr(_functions, name):
                return f"aten::{name}"
        return known

    return found


def patches() -> list[tuple[Any, str, Any]]:
    # Made once per process: it must hold the functions as they were.
    builtins._get_builtin_table()
    return [(builtins, "_find_builtin", find(builtins._find_builtin))]
