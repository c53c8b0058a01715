"""05: evaluation on the device.

`numbers` draws the model's numbers, so that wrong formulas show; `evaluate` has the scenarios and
claims.
"""

from __future__ import annotations

from gpudojo.days.day8.modifying_evaluation_loop_gpu import evaluate
from gpudojo.days.day8.modifying_evaluation_loop_gpu.declaration import exercise

__all__ = ["evaluate", "exercise"]
