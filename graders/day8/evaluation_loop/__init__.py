"""05: evaluation on a device. In which mode each forward pass ran, what it left behind, and what came out."""

from graders.day8.evaluation_loop import checks, probes
from graders.day8.evaluation_loop.functions import exercise

__all__ = ["checks", "exercise", "probes"]
