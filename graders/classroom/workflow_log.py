"""What may stand in the log of a workflow? GitHub obeys lines that look like commands, so no student's text is bare.

A command begins a line with `::`, or is spelled `##[…]` anywhere in it. What a student has printed goes between a pair
of `::stop-commands::` with a token that nobody could guess, and is quoted line by line all the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from graders.export._entries import one_line, printable
from graders.release.manifest import Change
from graders.results import CheckRow, Outcome, SubmissionRow

SHOWN: Final = 10  # annotations of a kind that GitHub shows for a step
LONGEST: Final = 500
OUTPUT: Final = 16_000  # characters of what a student printed
QUOTE: Final = "│ "
WHATS: Final = {
    "changed": "is not the file of the release any more",
    "deleted": "was deleted from the release",
    "added": "is not part of the release",
}


@dataclass(frozen=True)
class Annotation:
    """A remark on a line of a file."""

    level: str  # "error", "warning", "notice"
    title: str
    message: str
    file: str = ""
    line: int = 0

    def command(self) -> str:
        properties = {"file": self.file, "line": str(self.line) if self.line else "", "title": self.title}
        given = ",".join(f"{name}={escaped_property(text)}" for name, text in properties.items() if text)
        return f"::{self.level} {given}::{escaped(self.message)}"


def escaped(text: str) -> str:
    """Text as the message of a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escaped_property(text: str) -> str:
    """Text as the value of one of its properties."""
    return escaped(text).replace(":", "%3A").replace(",", "%2C")


def on_lines(row: SubmissionRow, inside: str = "") -> list[Annotation]:
    """What failed, each on the student's own line; `inside` is where in the repository the checkout lies."""
    found, places = [], set()
    for exercise in row.exercises:
        for check in exercise.checks:
            place = (check.function, check.file, check.cell, check.line)
            if check.outcome is not Outcome.FAILED or not check.file or place in places:
                continue
            places.add(place)
            found.append(_annotation(check, inside))
    return found[:SHOWN]


def _annotation(check: CheckRow, inside: str) -> Annotation:
    said = [check.message, check.why, f"Hint: {check.hint}" if check.hint else ""]
    line = check.line or 1
    if check.cell:  # GitHub counts the lines of a notebook's JSON
        said[0] = f"Code cell {check.cell}, line {check.line}: {said[0]}"
        line = 1
    message = "\n".join(one_line(text)[:LONGEST] for text in said if text)
    file = f"{inside}/{check.file}" if inside else check.file
    return Annotation("error", f"{check.function}: {one_line(check.claim)}", message, file or "", line)


def on_changes(changes: Iterable[Change], inside: str = "") -> list[Annotation]:
    """What was changed of the release."""
    found = []
    for change in changes:
        message = f"It {WHATS[change.what]}. This has no influence on the points, and your teacher can see it."
        file = f"{inside}/{change.path}" if inside else change.path
        found.append(Annotation("warning", f"{one_line(change.path)} was {change.what}", message, file, 1))
    return found[:SHOWN]


def quoted(text: str) -> Iterator[str]:
    """What a student has printed, line by line."""
    if not text.strip():
        return
    token = secrets.token_hex(32)
    yield f"::stop-commands::{token}"
    yield "What the submission printed:"
    shown = text if len(text) <= OUTPUT else f"{text[:OUTPUT]}\n… and {len(text) - OUTPUT:,} characters more"
    for line in printable(shown).splitlines():  # also at what only Python takes for the end of a line
        yield f"{QUOTE}{line}".replace("##[", "# #[")
    yield f"::{token}::"
