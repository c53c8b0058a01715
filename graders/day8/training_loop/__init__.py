"""04: one training epoch on a device. What moved when, in which order training went, and what came out."""

from graders.day8.training_loop import checks, probes
from graders.day8.training_loop.functions import exercise

__all__ = ["checks", "exercise", "probes"]
