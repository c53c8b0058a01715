"""Do the claims hold? Checks judge the student's evidence against the reference's; no student code runs here."""

from graders.checks.judging import judge

__all__ = ["judge"]
