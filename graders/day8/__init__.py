"""Day 8: GPU acceleration and performance."""

EXERCISES = 12
POINTS = 100
