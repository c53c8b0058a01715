"""03: moving batches to the device. One module for each function, with its scenarios and claims."""

from __future__ import annotations

from gpudojo.days.day8.moving_batches import move_batch, on_same_device
from gpudojo.days.day8.moving_batches.declaration import exercise

__all__ = ["exercise", "move_batch", "on_same_device"]
