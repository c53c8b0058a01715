"""Which release of torch the tests run on: what they expect of a GPU changes with it."""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""Of 2.13.0: (2, 13)."""
