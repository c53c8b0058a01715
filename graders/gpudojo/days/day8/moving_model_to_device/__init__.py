"""02: moving a model to the device. One module for each function, with its scenarios and claims."""

from __future__ import annotations

from gpudojo.days.day8.moving_model_to_device import move_model, parameter_devices
from gpudojo.days.day8.moving_model_to_device.declaration import exercise

__all__ = ["exercise", "move_model", "parameter_devices"]
