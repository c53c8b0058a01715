"""What was handed in? Folders, archives, notebooks and checkouts become submissions, read as bytes and never run."""

from graders.intake.listing import alone, entries, survey
from graders.intake.reading import read
from graders.intake.records import Entry, Kind, LeftOut, Limits, Naming, SourceFile, Submission, Survey

__all__ = [
    "Entry",
    "Kind",
    "LeftOut",
    "Limits",
    "Naming",
    "SourceFile",
    "Submission",
    "Survey",
    "alone",
    "entries",
    "read",
    "survey",
]
