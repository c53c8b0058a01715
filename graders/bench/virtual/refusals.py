"""Which dtypes does CUDA refuse, and in which words?"""

from __future__ import annotations

from typing import Any


def of(func: Any) -> Any:
    """A function(args, kwargs) that raises CUDA's refusal before the CPU would accept, or None."""
    return None


def translate(func: Any, inner: Any, kwargs: Any, error: Exception) -> Exception | None:
    """CUDA's exception for a CPU kernel's, or None where both say the same."""
    return None
