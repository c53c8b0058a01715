"""What can keep results, pages and exercises from being handed on?"""

from __future__ import annotations

from graders.errors.base import DojoError, Refusal


class BadResults(DojoError, ValueError):
    """A file that should hold the results of a class does not."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} is not a file of results: {self.reason}"


class CannotExport(DojoError, ValueError):
    """Class results cannot be written in a format with what was given."""

    def __init__(self, format_: str, reason: str) -> None:
        super().__init__(format_, reason)
        self.format = format_
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot export to {self.format}: {self.reason}"


class CannotReport(Refusal):
    """A page that is asked for cannot be made."""


class CannotRelease(Refusal):
    """What students are to get cannot be made, or must not be."""


class BadMarkers(DojoError, ValueError):
    """The solution markers of a reference file do not match, so that a stub would show the solution."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"
