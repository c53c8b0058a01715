"""06: vectorised code instead of loops over pixels.

`inputs` makes the pictures, `pictures` calls a function on them, `wrong_values` says what is wrong
with a result, and `claims` has the checks, which are the same for all three functions.
"""

from __future__ import annotations

from gpudojo.days.day8.vectorizing_pixel_loops import claims
from gpudojo.days.day8.vectorizing_pixel_loops.declaration import exercise

__all__ = ["claims", "exercise"]
