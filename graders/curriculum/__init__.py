"""What is taught, and what is checked: exercises, their functions, points, hints and misconceptions; no torch."""

from graders.curriculum.catalogue import day, exercise_for
from graders.curriculum.exercise import Check, Exercise, Function, Probe
from graders.curriculum.misconceptions import MISCONCEPTIONS, Misconception
from graders.curriculum.verdicts import Failed, Todo

__all__ = [
    "MISCONCEPTIONS",
    "Check",
    "Exercise",
    "Failed",
    "Function",
    "Misconception",
    "Probe",
    "Todo",
    "day",
    "exercise_for",
]
