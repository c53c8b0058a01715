"""How does one update of the weights compare with another, and how is that said?"""

from __future__ import annotations

import math
from typing import Any

from graders.day8.mixed_precision.functions import SCALE
from graders.evidence import Array


def size(ratio: float) -> str:
    """How large an update is beside the right one."""
    if ratio < 0.01 / SCALE:
        return "nothing at all"
    return f"{1 / ratio:.4g} times too small" if ratio < 0.85 else f"{ratio:.4g} times what it should be"


def compare(found: list[Array], right: list[Array]) -> tuple[float, float]:
    """How long one update is beside the other, and how far they are apart in units of the right one.

    Not closer than half precision allows: bfloat16 is as good an answer as float16.
    """
    import numpy as np

    if not alike(found, right):
        return math.inf, math.inf
    a, b = np.concatenate([values(x) for x in found]), np.concatenate([values(x) for x in right])
    length = float(np.linalg.norm(b))
    if not np.isfinite(a).all():
        return math.inf, math.inf
    return float(np.linalg.norm(a)) / length, float(np.linalg.norm(a - b)) / length


def alike(found: list[Array], right: list[Array]) -> bool:
    return [(a.shape, a.dtype) for a in found] == [(b.shape, b.dtype) for b in right]


def values(found: Array) -> Any:
    import numpy as np

    return np.frombuffer(found.data, found.dtype).reshape(found.shape).astype("float64").reshape(-1)
