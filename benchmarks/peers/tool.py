"""What is a grader, to the benchmark?

Something that takes submissions and gives costs, and full marks or not.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.measuring import Measured
from benchmarks.peers.assignment import Submission

HERE: Final = Path(__file__).resolve().parent
CLAIMS: Final = ("claims.py", "claims_pictures.py")  # what every tool gets


@dataclass(frozen=True)
class Verdict:
    """Whether a submission got full marks.

    None where the tool gave no result, and why, or what failed.
    """

    full: bool | None
    failed: tuple[str, ...] = ()


@dataclass
class Graded:
    """What some submissions cost together, and what became of each."""

    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def add(self, run: Measured) -> None:
        self.wall += run.wall
        self.cpu += run.cpu
        self.peak = max(self.peak, run.peak)

    def merge(self, other: Graded) -> None:
        self.wall += other.wall
        self.cpu += other.cpu
        self.peak = max(self.peak, other.peak)
        self.verdicts.update(other.verdicts)


class Tool:
    """One grader. `package` is what its environment is called; empty for gpudojo's own."""

    name = ""
    package = ""
    form = "files"
    isolation = ""  # what holds by default, from the tool's documentation
    # True if it is given the whole class in every round, because its start is paid once a class.
    whole = False

    def __init__(self, place: Path, python: Path) -> None:
        self.place = place
        self.python = python
        place.mkdir(parents=True)

    def prepare(self, known: Sequence[Submission]) -> None:
        """What an instructor does once, before the first submission; not timed."""

    def grade(self, given: Sequence[Submission]) -> Graded:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """One thread for everybody, a home of its own, and no GPU."""
        home = self.place / "home"
        home.mkdir(exist_ok=True)
        kept = {
            name: os.environ[name]
            for name in ("PATH", "LANG", "LC_ALL", "TMPDIR")
            if name in os.environ
        }
        path = f"{self.python.parent}{os.pathsep}{kept.get('PATH', '')}"
        return kept | {
            "PATH": path,
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }


def claims_and_functions() -> dict[str, str]:
    """Every claim, and the student's function it is about."""
    if str(HERE) not in sys.path:
        sys.path.append(str(HERE))  # they import each other by name, as beside a tool's tests
    import claims  # late: it imports torch

    return {name: claims.about(claim) for name, claim in claims.CLAIMS.items()}


def copy_beside_tests(names: Sequence[str], folder: Path) -> None:
    """Copy files that a tool's tests need into their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy(HERE / name, folder / name)
