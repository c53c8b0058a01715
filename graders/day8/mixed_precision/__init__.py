"""07: one training step in mixed precision. What ran under autocast, what the scaler did, and what was learnt."""

from graders.day8.mixed_precision import checks, probes
from graders.day8.mixed_precision.functions import exercise

__all__ = ["checks", "exercise", "probes"]
