"""02: a model on a device. Whether all of it moved, whether it is still the same one, and where its parts are."""

from graders.day8.moving_model import checks, probes
from graders.day8.moving_model.functions import exercise

__all__ = ["checks", "exercise", "probes"]
