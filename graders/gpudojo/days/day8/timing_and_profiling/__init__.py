"""10: timing and profiling.

`timing` has the two functions that take times, `timed_work` what they time; `top_operations` and
`read_nvidia_smi` have the function of their name, `chosen_durations` operators that take long.
"""

from __future__ import annotations

from gpudojo.days.day8.timing_and_profiling import read_nvidia_smi, timing, top_operations
from gpudojo.days.day8.timing_and_profiling.declaration import exercise

__all__ = ["exercise", "read_nvidia_smi", "timing", "top_operations"]
