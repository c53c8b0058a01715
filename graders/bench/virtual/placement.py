"""May these tensors meet? CUDA's rules for arguments on different devices, in CUDA's order and words."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any, Final

import torch

from graders.bench.virtual.wording import argument_elsewhere, two_devices

ALLOWED: Final = object()


@functools.cache
def _checks() -> dict[str, tuple[str, list[str]]]:
    path = pathlib.Path(__file__).with_name("facts") / "operators.json"
    checks: dict[str, tuple[str, list[str]]] = json.loads(path.read_text())["checks"]
    return checks


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def named_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}
    given.update(kwargs)
    return given


def judge(func: Any, args: Any, kwargs: Any, seen: Any) -> Any:
    """ALLOWED if the call may go on; raises CUDA's error if not."""
    given = named_arguments(func, args, kwargs)
    check = _checks().get(str(func))
    if check is not None:
        method, order = check
        common = None
        for name in order:
            for tensor in _tensors(given.get(name)):
                if common is None:
                    common = tensor.device
                elif tensor.device != common:
                    raise argument_elsewhere(name, str(tensor.device), str(common), method)
        return ALLOWED
    if len(seen.places) > 1:
        raise two_devices(seen.places[0].label, seen.places[1].label)
    if any(tensor.dim() > 0 for tensor in seen.plain):
        raise two_devices(seen.places[0].label, "cpu")
    return ALLOWED
