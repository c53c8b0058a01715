"""Describes a snippet's result as plain data.

The real GPU's records were written with this description, so a change here makes every record
incomparable.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch

MOST_VALUES = 64
DEEPEST = 8
LONGEST_TEXT = 4000
LONGEST_REPR = 200
HALVES = (torch.bfloat16, torch.float16)
NAMED_CONSTANTS = (torch.device, torch.dtype, torch.layout, torch.memory_format)


def type_name(cls: type) -> str:
    """Built-in types and those a snippet defines go by their bare name, all others with their
    module.
    """
    if cls.__module__ in ("builtins", "__snippet__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def text(value: object, limit: int = 400) -> str:
    """Text without addresses, which differ from run to run."""
    return re.sub(r"0x[0-9a-fA-F]{4,}", "0xADDR", str(value))[:limit]


def number(value: Any) -> Any:
    """A number JSON can hold, floats rounded to six significant digits."""
    if isinstance(value, int):
        return value
    if isinstance(value, complex):
        return {"re": number(value.real), "im": number(value.imag)}
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.6g}")


def numbers(value: Any) -> Any:
    return [numbers(item) for item in value] if isinstance(value, list) else number(value)


def describe(value: Any, *, random: bool, depth: int = 0) -> Any:
    """``value`` as JSON data; ``random`` leaves out what the generator decides."""
    if depth > DEEPEST:
        return {"kind": "deep"}
    if isinstance(value, torch.Tensor):
        return _tensor(value, random)
    if isinstance(value, str):
        return text(value, LONGEST_TEXT)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (float, complex)):
        return {"kind": type(value).__name__, "value": None if random else number(value)}
    if isinstance(value, NAMED_CONSTANTS):
        return {"kind": type_name(type(value)), "value": str(value)}
    if isinstance(value, torch.Size):
        return {"kind": "torch.Size", "value": list(value)}
    if isinstance(value, (list, tuple)):
        items = [describe(item, random=random, depth=depth + 1) for item in value]
        return {
            "kind": "tuple" if isinstance(value, tuple) else "list",
            "class": type_name(type(value)),
            "items": items,
        }
    if isinstance(value, dict):
        pairs = [
            [describe(part, random=random, depth=depth + 1) for part in pair]
            for pair in value.items()
        ]
        return {"kind": "dict", "items": pairs}
    if isinstance(value, np.generic):
        return {
            "kind": f"numpy.{type(value).__name__}",
            "value": None if random else number(value.item()),
        }
    if isinstance(value, np.ndarray):
        shown = value.size <= MOST_VALUES and not random and value.dtype != object
        return {
            "kind": "numpy.ndarray",
            "dtype": str(value.dtype),
            "shape": list(value.shape),
            "values": numbers(value.tolist()) if shown else None,
        }
    return {
        "kind": "object",
        "class": type_name(type(value)),
        "repr": text(repr(value), LONGEST_REPR),
    }


def _tensor(tensor: torch.Tensor, random: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "kind": "tensor",
        "device": str(tensor.device),
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_inference": tensor.is_inference(),
        "layout": str(tensor.layout),
        "class": type_name(type(tensor)),
        "values": None,
        "stats": None,
    }
    if random or tensor.device.type == "meta":
        return described
    values = tensor.detach().cpu()
    if values.layout != torch.strided:
        values = values.to_dense()
    if values.dtype in HALVES or "float8" in str(values.dtype):
        values = values.float()
    if values.numel() <= MOST_VALUES:
        described["values"] = numbers(values.tolist())
    elif not values.is_complex():
        wide = values.double()
        described["stats"] = {
            "sum": number(wide.sum().item()),
            "absmax": number(wide.abs().max().item()),
            "first": numbers(wide.flatten()[:8].tolist()),
        }
    return described
