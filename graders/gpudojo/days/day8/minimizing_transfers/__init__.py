"""08: fewer transfers. One module for each function, with its scenarios and claims."""

from __future__ import annotations

from gpudojo.days.day8.minimizing_transfers import make_loader, predict, random_sprites, to_numpy
from gpudojo.days.day8.minimizing_transfers.declaration import exercise

__all__ = ["exercise", "make_loader", "predict", "random_sprites", "to_numpy"]
