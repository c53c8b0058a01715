"""How does a new exercise or a new day begin? With a skeleton: every file there, and a note wherever work is left."""

from graders.authoring.days import day_files
from graders.authoring.exercises import Plan, exercise_files
from graders.authoring.planting import plant
from graders.authoring.surroundings import Surroundings, surroundings

__all__ = ["Plan", "Surroundings", "day_files", "exercise_files", "plant", "surroundings"]
