"""The changes that `--try` knows."""

from __future__ import annotations

from typing import Final

AUTOCAST: Final = "autocast"
HALF_BATCH: Final = "half-batch"
CHANGES: Final = (AUTOCAST, HALF_BATCH)
