"""01: which device? Selected on machines with one GPU, two GPUs, a Mac's, and none."""

from graders.day8.checking_device import checks, probes
from graders.day8.checking_device.functions import exercise

__all__ = ["checks", "exercise", "probes"]
