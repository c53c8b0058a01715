"""What came of the checks? One model that the terminal, files and other programs read; no torch."""

from graders.results.checks import CheckResult, Outcome
from graders.results.making import rows_of, total
from graders.results.rows import (
    VERSION,
    CheckRow,
    ClassResults,
    Definition,
    ExerciseRow,
    Status,
    SubmissionRow,
)
from graders.results.spreadsheet import write_csv
from graders.results.storing import Stored, encode, header, iterate, read, stored, write

__all__ = [
    "VERSION",
    "CheckResult",
    "CheckRow",
    "ClassResults",
    "Definition",
    "ExerciseRow",
    "Outcome",
    "Status",
    "Stored",
    "SubmissionRow",
    "encode",
    "header",
    "iterate",
    "read",
    "rows_of",
    "stored",
    "total",
    "write",
    "write_csv",
]
