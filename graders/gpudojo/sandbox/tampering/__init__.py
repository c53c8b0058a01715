"""Keeps student code and the grader apart inside one process, as far as Python allows it."""
