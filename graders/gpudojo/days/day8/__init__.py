"""Day 8: GPU acceleration and performance."""

from __future__ import annotations

EXERCISES = 12
POINTS = 100
