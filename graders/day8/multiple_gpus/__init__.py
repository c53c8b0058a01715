"""11: one model on several GPUs. Wrapped where there are two, unwrapped again, and gradients averaged by processes."""

from graders.day8.multiple_gpus import checks, probes
from graders.day8.multiple_gpus.functions import exercise

__all__ = ["checks", "exercise", "probes"]
