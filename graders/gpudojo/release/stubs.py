"""Makes stubs from reference solutions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.model.errors import BadMarkers
from gpudojo.model.results_file import replacing_file

BEGIN: Final = "# BEGIN SOLUTION"
END: Final = "# END SOLUTION"
IN_STUB: Final = "raise NotImplementedError"
# Inside a solution: a line of the stub, where raising would not do.
INSTEAD: Final = "# INSTEAD: "
# Letters: shorter lines, and those that only open a block, occur in any code.
SHORTEST_TELLING_LINE: Final = 20


class NumberedLine(NamedTuple):
    """A line of a file."""

    number: int
    text: str


def stub_of(source: str, path: str = "reference") -> str:
    """Return the student's version of a reference file.

    A solution becomes `raise NotImplementedError`, or the lines that it names instead. Raises
    BadMarkers where solutions do not begin and end as they should; `path` is for its text.
    """
    lines: list[str] = []
    begun_at = 0  # the line of the solution's marker; 0 outside of solutions
    margin = ""
    instead: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text == BEGIN:
            if begun_at:
                why = f"a solution begins inside the one of line {begun_at}"
                raise BadMarkers(path, number, why)
            begun_at = number
            margin, _, _ = line.partition(BEGIN)
            instead = []
        elif text == END:
            if not begun_at:
                raise BadMarkers(path, number, "a solution ends that has not begun")
            begun_at = 0
            for line_of_stub in instead or [IN_STUB]:
                lines.append(f"{margin}{line_of_stub}")
        elif begun_at and text.startswith(INSTEAD):
            instead.append(text.removeprefix(INSTEAD))
        elif "SOLUTION" in text and text.startswith("#"):
            why = f"{text!r} is not a marker; write {BEGIN!r} or {END!r}"
            raise BadMarkers(path, number, why)
        elif not begun_at:
            lines.append(line)
    if begun_at:
        raise BadMarkers(path, begun_at, "a solution begins and does not end")
    return "\n".join(lines) + "\n"


def solution_blocks(source: str) -> list[list[NumberedLine]]:
    """Return the lines between each pair of solution markers, which must be as `stub_of` wants.

    Lines for the stub alone are left out.
    """
    blocks: list[list[NumberedLine]] = []
    inside = False
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text == BEGIN:
            inside = True
            blocks.append([])
        elif text == END:
            inside = False
        elif inside and not text.startswith(INSTEAD):
            blocks[-1].append(NumberedLine(number, line))
    return blocks


def telling_lines(source: str) -> Iterator[NumberedLine]:
    """Yield the lines between solution markers that would give something away."""
    for block in solution_blocks(source):
        for line in block:
            text = line.text.strip()
            if text.startswith("#") or text.endswith(":"):
                continue
            if len(text) >= SHORTEST_TELLING_LINE:
                yield NumberedLine(line.number, text)


def stubs_of_day(reference: Path) -> dict[str, str]:
    """Return every stub of a day, by file name; raises BadMarkers and OSError."""
    stubs = {}
    for path in sorted(reference.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        stubs[path.name] = stub_of(source, str(path))
    return stubs


def stale_stubs(reference: Path, exercises: Path) -> list[str]:
    """Return the names of stubs that are missing, changed or left over.

    Raises BadMarkers for a solution whose marks do not match, and OSError.
    """
    wanted = stubs_of_day(reference)
    present = {}
    if exercises.exists():
        for path in exercises.glob("*.py"):
            present[path.name] = path.read_text(encoding="utf-8")
    stale = []
    for name in sorted(wanted.keys() | present.keys()):
        if wanted.get(name) != present.get(name):
            stale.append(name)
    return stale


def write_stubs(reference: Path, exercises: Path) -> list[str]:
    """Write the stubs of a day, and return the names of those that changed or are left over.

    Stubs that are left over stay. Raises BadMarkers before anything is written, and OSError.
    """
    changed = stale_stubs(reference, exercises)
    exercises.mkdir(parents=True, exist_ok=True)
    for name, text in stubs_of_day(reference).items():
        with replacing_file(exercises / name) as file:
            file.write(text.encode())
    return changed
