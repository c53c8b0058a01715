"""The right and wrong solutions of a day, which show what its checks accept and what they notice.

All solutions of an exercise may be in one file, `tests/DAY/solutions_EXERCISE.py`, each below a line that says what is
expected of it. What is above the first of these lines belongs to all of them:

    # passes
    # fails: train_epoch::learns_as_it_should as missing-step

A wrong solution names the first check that fails and the misconception that is told, `-` for none. Or each solution has
a file of its own: `tests/DAY/right/EXERCISE/NAME.py`, and `tests/DAY/wrong/EXERCISE/NAME.py` with that first line.
"""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HEADER: Final = re.compile(r"# fails: (\w+)::(\w+) as ([\w-]+)\s*$")
SHARED: Final = "solutions_"  # not the exercise's own name, by which pytest would take the file for a student's
_EXPECTED: Final = re.compile(r"(?m)^# (passes\b|fails\b).*$")


@dataclass(frozen=True)
class Solution:
    """A solution, in a file of its own; one that shares a file has been copied out of it."""

    path: Path
    where: str  # for messages: "wrong/no_step.py", "solutions_01_brightest_sprite.py, line 12"
    wrong: bool

    @property
    def exercise(self) -> str:
        return self.path.parent.name

    @property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def claim(self) -> tuple[str, str, str | None] | None:
        """Function, check and misconception that a wrong solution says it fails; None where it says nothing."""
        match = HEADER.match(self.source.partition("\n")[0])
        return (match[1], match[2], None if match[3] == "-" else match[3]) if match else None


def solutions(folder: Path, exercise: str = "*") -> list[Solution]:
    """The solutions in a day's folder of tests, of one exercise or all: first the right ones."""
    found = [
        Solution(path, f"{kind}/{path.name}", kind == "wrong")
        for kind in ("right", "wrong")
        for path in sorted((folder / kind).glob(f"{exercise}/*.py"))
    ]
    shared = [one for path in sorted(folder.glob(f"{SHARED}{exercise}.py")) for one in _copied_out(path)]
    return sorted([*found, *shared], key=lambda solution: (solution.wrong, solution.exercise))


def _copied_out(path: Path) -> list[Solution]:
    text = path.read_text(encoding="utf-8")
    starts = [match.start() for match in _EXPECTED.finditer(text)]
    target = Path(tempfile.mkdtemp(dir=_folder()))
    found = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        header, _, body = text[start:end].partition("\n")
        line = text.count("\n", 0, start) + 1
        wrong = header.startswith("# fails")
        # As in the other layout, DAY/KIND/EXERCISE/NAME.py: who reads a solution need not know which it is.
        file = (
            target
            / path.parent.name
            / ("wrong" if wrong else "right")
            / path.stem.removeprefix(SHARED)
            / f"line_{line}.py"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{header}\n{text[: starts[0]]}{body}", encoding="utf-8")
        found.append(Solution(file, f"{path.name}, line {line}", wrong))
    return found


@functools.cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="gpudojo-solutions-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
