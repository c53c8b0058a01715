"""Finds the right and wrong solutions that a day's folder of tests keeps."""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.authoring.findings import place_in

HEADER: Final = re.compile(r"# fails: (\w+)::(\w+) as ([\w-]+)\s*$")
# How the name of a file with several solutions begins. It is not the exercise's own name, by which
# pytest would take the file for a student's.
SHARED_PREFIX: Final = "solutions_"
_FIRST_LINE_OF_SOLUTION: Final = re.compile(r"(?m)^# (passes\b|fails\b).*$")


class Claim(NamedTuple):
    """What a wrong solution says that it fails."""

    function: str
    check: str
    misconception: str | None


@dataclass(frozen=True)
class Solution:
    """A solution, in a file of its own; one that shares a file has been copied out of it."""

    path: Path
    where: str  # for messages: "wrong/no_step.py", "solutions_01_brightest_sprite.py, line 12"
    wrong: bool
    file: Path | None = None  # that it has been copied out of
    line: int = 1  # of its first line there

    def place(self, root: Path) -> str:
        """The line of the author's file where it begins, as a finding names it."""
        return place_in(self.file or self.path, root, self.line)

    @property
    def exercise(self) -> str:
        """The stem of its exercise."""
        return self.path.parent.name

    @property
    def source(self) -> str:
        """The text of its file, read each time."""
        return self.path.read_text(encoding="utf-8")

    @property
    def claim(self) -> Claim | None:
        """What a wrong solution says that it fails, in its first line; None if it does not.

        The file is read each time, which raises OSError if it cannot be.
        """
        first_line = self.source.partition("\n")[0]
        match = HEADER.match(first_line)
        if match is None:
            return None
        function, check, key = match.groups()
        if key == "-":
            key = None
        return Claim(function, check, key)


def reference_path(root: Path, day: str, stem: str) -> Path:
    """Where a repository has the solution that an exercise of this stem is compared with."""
    return root / "reference" / day / f"{stem}.py"


def stub_path(root: Path, day: str, stem: str) -> Path:
    """Where a repository has the file that students of an exercise get."""
    return root / "exercises" / day / f"{stem}.py"


def kept_solutions(folder: Path, exercise: str = "*") -> list[Solution]:
    """The solutions in a day's folder of tests, of one exercise or all: first the right ones.

    Those that share a file are copied out of it, to files that are removed when Python exits.
    Raises OSError.
    """
    found = []
    for kind in ("right", "wrong"):
        is_wrong = kind == "wrong"
        for path in sorted(folder.glob(f"{kind}/{exercise}/*.py")):
            found.append(Solution(path, f"{kind}/{path.name}", is_wrong))
    for path in sorted(folder.glob(f"{SHARED_PREFIX}{exercise}.py")):
        found += _split_shared_file(path)
    return sorted(found, key=lambda solution: (solution.wrong, solution.exercise))


def _split_shared_file(path: Path) -> list[Solution]:
    """Write each solution of a shared file to a file of its own, and return them.

    The files lie below a folder that is removed when Python exits. Raises OSError.
    """
    text = path.read_text(encoding="utf-8")
    exercise = path.stem.removeprefix(SHARED_PREFIX)
    starts = [match.start() for match in _FIRST_LINE_OF_SOLUTION.finditer(text)]
    ends = [*starts[1:], len(text)]
    new_folder = tempfile.mkdtemp(dir=_folder_until_exit())
    target = Path(new_folder) / path.parent.name
    found = []
    for start, end in zip(starts, ends, strict=True):
        header, _, body = text[start:end].partition("\n")
        line = text.count("\n", 0, start) + 1
        is_wrong = header.startswith("# fails")
        # DAY/KIND/EXERCISE/NAME.py, as in the other layout: a reader of solutions need not know
        # which layout it is.
        kind = "right"
        if is_wrong:
            kind = "wrong"
        file = target / kind / exercise / f"line_{line}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        shared = text[: starts[0]]  # stands above the first solution
        file.write_text(f"{header}\n{shared}{body}", encoding="utf-8")
        found.append(Solution(file, f"{path.name}, line {line}", is_wrong, path, line))
    return found


@functools.cache
def _folder_until_exit() -> str:
    """Make a folder for this process once, which is removed when Python exits. Returns its path."""
    folder = tempfile.mkdtemp(prefix="gpudojo-solutions-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
