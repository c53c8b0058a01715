"""09: managing memory. One module for each function, with its scenarios and claims."""

from __future__ import annotations

from gpudojo.days.day8.managing_memory import (
    accumulate_gradients,
    checkpointed,
    largest_batch,
    peak_memory,
)
from gpudojo.days.day8.managing_memory.declaration import exercise

__all__ = ["accumulate_gradients", "checkpointed", "exercise", "largest_batch", "peak_memory"]
