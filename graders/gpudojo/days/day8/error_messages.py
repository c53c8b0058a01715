"""Adds to the messages of students' errors what was going on when they were raised."""

from __future__ import annotations


def add_to_first_line(message: str, note: str) -> str:
    """A message with a note at the end of its first line, and the other lines as they are."""
    first, *rest = message.split("\n")
    return "\n".join([f"{first} {note}", *rest])
