"""10: how long does it take? Clocks on a device that works later, operators by their time, and nvidia-smi's lines."""

from graders.day8.timing import checks_clock, checks_profile, probes_clock, probes_profile
from graders.day8.timing.functions import exercise

__all__ = ["checks_clock", "checks_profile", "exercise", "probes_clock", "probes_profile"]
