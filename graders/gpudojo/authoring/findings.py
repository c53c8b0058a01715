"""What `dojo lint` finds, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpudojo.model.errors import Place


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, in a sentence."""

    exercise: str  # its stem, or what else it is about: a day, a file, "misconceptions"
    text: str
    warning: bool = False  # it does not make `dojo lint` fail
    place: str = ""  # of the author's file: "PATH:LINE", or "PATH" where the whole file is meant
    breaks: tuple[str, ...] = ()  # functions whose solutions are not tried because of it

    def __str__(self) -> str:
        """The sentence behind its place, or behind what it is about where no place is known."""
        return f"{self.place or self.exercise}: {self.text}"


def place_in(path: Path, root: Path, line: int | None = None) -> str:
    """A line of a file, or the whole file, as a finding names it: relative to the repository."""
    shown = path.as_posix()
    if path.is_relative_to(root):
        shown = path.relative_to(root).as_posix()
    if line is None:
        return shown
    return f"{shown}:{line}"


def place_of(declared: Place | None, root: Path) -> str:
    """Where something is declared, as a finding names it; "" where that is not known."""
    if declared is None:
        return ""
    return place_in(Path(declared.file), root, declared.line)


def line_with(path: Path, text: str) -> int | None:
    """The first line of a file that has this text. Returns None for none.

    Raises OSError for a file that cannot be read.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if text in line:
            return number
    return None
