"""09: memory. Peaks that are measured, batches that fit, gradients that add up, and activations made twice."""

from graders.day8.managing_memory import checks_fitting, checks_training, probes_fitting, probes_training
from graders.day8.managing_memory.functions import exercise

__all__ = ["checks_fitting", "checks_training", "exercise", "probes_fitting", "probes_training"]
