"""10: timing and profiling.

One module for each function, with its scenarios and claims. `timed_work` is what the first two
time, `measured_times` what they share; `chosen_durations` has operators that take long.
"""

from __future__ import annotations

from gpudojo.days.day8.timing_and_profiling import (
    compare_devices,
    read_nvidia_smi,
    time_on_device,
    top_operations,
)
from gpudojo.days.day8.timing_and_profiling.declaration import exercise

__all__ = ["compare_devices", "exercise", "read_nvidia_smi", "time_on_device", "top_operations"]
