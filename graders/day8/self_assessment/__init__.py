"""12: does the student know what happens? Five answers, each explained by what really happened when we tried it."""

from graders.day8.self_assessment import checks, probes
from graders.day8.self_assessment.functions import exercise

__all__ = ["checks", "exercise", "probes"]
