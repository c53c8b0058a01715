"""Where do CUDA's outputs differ from the CPU's in dtype, shape or size?"""

from __future__ import annotations

from typing import Any


def of(func: Any) -> Any:
    """A function(inner, kwargs, out) -> out that gives the outputs the form they have on CUDA, or None."""
    return None
