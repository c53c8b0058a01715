"""11: several GPUs. One module for each function, with its scenarios and claims."""

from __future__ import annotations

from gpudojo.days.day8.multiple_gpus import average_gradients, parallelize, unwrap
from gpudojo.days.day8.multiple_gpus.declaration import exercise

__all__ = ["average_gradients", "exercise", "parallelize", "unwrap"]
