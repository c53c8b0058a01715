"""How does a solution become a stub? What stands between the markers is replaced; a marker out of place is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from graders.errors import BadMarkers

BEGIN: Final = "# BEGIN SOLUTION"
END: Final = "# END SOLUTION"
INSTEAD: Final = "raise NotImplementedError"
OTHERWISE: Final = "# INSTEAD: "  # inside a solution: a line of the stub, where raising would not do


def stub_of(source: str, path: str = "reference") -> str:
    """The student's version of a reference file."""
    lines: list[str] = []
    begun = 0
    instead: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text == BEGIN:
            if begun:
                raise BadMarkers(path, number, f"a solution begins inside the one of line {begun}")
            begun = number
            instead = []
            margin = line[: len(line) - len(line.lstrip())]
        elif text == END:
            if not begun:
                raise BadMarkers(path, number, "a solution ends that has not begun")
            begun = 0
            lines += [margin + text for text in instead or [INSTEAD]]
        elif begun and text.startswith(OTHERWISE):
            instead.append(text.removeprefix(OTHERWISE))
        elif "SOLUTION" in text and text.startswith("#"):
            raise BadMarkers(path, number, f"{text!r} is no marker; write {BEGIN!r} or {END!r}")
        elif not begun:
            lines.append(line)
    if begun:
        raise BadMarkers(path, begun, "a solution begins and does not end")
    return "\n".join(lines) + "\n"


def stubs(reference: Path) -> dict[str, str]:
    """Every stub of a day, by file name."""
    return {p.name: stub_of(p.read_text(encoding="utf-8"), str(p)) for p in sorted(reference.glob("*.py"))}


def stale(reference: Path, exercises: Path) -> list[str]:
    """The names of stubs that are missing, changed or left over."""
    wanted = stubs(reference)
    found = {p.name: p.read_text(encoding="utf-8") for p in exercises.glob("*.py")} if exercises.exists() else {}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write(reference: Path, exercises: Path) -> list[str]:
    """Write the stubs; gives the names of those that changed."""
    changed = stale(reference, exercises)
    exercises.mkdir(parents=True, exist_ok=True)
    for name, text in stubs(reference).items():
        (exercises / name).write_text(text, encoding="utf-8")
    return changed
