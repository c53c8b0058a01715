"""What does C++ ask before each operator of a subclass? For a rule somebody registered; answered quickly here."""

from __future__ import annotations

from typing import Any

import torch._library.simple_registry as registry

from graders.bench.virtual.tensor import VIRTUAL


def patches() -> list[tuple[Any, str, Any]]:
    original = getattr(registry, "find_torch_dispatch_rule", None)
    if original is None:
        return []

    def find(op: Any, subclass: Any) -> Any:
        return None if subclass in VIRTUAL else original(op, subclass)

    return [(registry, "find_torch_dispatch_rule", find)]
