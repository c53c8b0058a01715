"""07: mixed precision.

`steps` has the scenarios, `claims` the checks, `updates` compares what steps did to the weights.
"""

from __future__ import annotations

from gpudojo.days.day8.mixed_precision import claims
from gpudojo.days.day8.mixed_precision.declaration import exercise

__all__ = ["claims", "exercise"]
