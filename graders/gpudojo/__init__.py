"""Exercises in GPU programming, and the grader for them."""

__version__ = "0.1.0"
