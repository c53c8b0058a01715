"""Day 8: GPU acceleration and performance."""
