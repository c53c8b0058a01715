"""What other programs read: class results in their formats, and autograders for platforms that run student code.

Each module or folder here is one platform, found by listing the package; what begins with an underscore is shared. Its
`export(header, rows, target, options) -> list[Path]` writes class results. It may go through the rows several times,
and holds one at a time, as there may be ten thousand. Its `USES` names the fields of `Options` that a teacher may set
for it alone, and with `OF_CLASS = True` it is about the class as a whole and takes no single submission. A folder may
have modules that make what a teacher uploads, and a module `workflow`, whose `seal(files, day)` adds files to a
student's repository.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from gpudojo.model import catalogue
from gpudojo.model.results import ClassResults, ExerciseRow, SubmissionRow


@dataclass(frozen=True)
class Options:
    """What an exporter may be told; each takes what it needs."""

    worksheet: Path | None = None  # a grading worksheet downloaded from Moodle
    gradebook: Path | None = None  # a gradebook downloaded from Canvas
    title: str | None = None  # what the assignment is called there
    submission: str | None = None  # only this one, and into the target folder itself
    exercises: tuple[
        ExerciseRow, ...
    ] = ()  # those of the day, for submissions that could not be graded at all
    results: Path | None = None  # the folder of the results, where `dojo grade` keeps sources
    environment: Mapping[str, str] = field(default_factory=dict)
    when: datetime = field(default_factory=lambda: datetime.now(UTC))
    say: Callable[[str], Any] = (
        str  # gets what a teacher should know and no file says; the default drops it
    )


def parts_of(day: str) -> tuple[ExerciseRow, ...]:
    """The exercises of an installed day, and what they are worth."""
    return tuple(
        ExerciseRow(each.stem, each.title, 0.0, float(each.points))
        for each in catalogue.exercises_of(day)
    )


Exporter = Callable[[ClassResults, Iterable[SubmissionRow], Path, Options], list[Path]]


def formats() -> list[str]:
    """The names of all formats."""
    return sorted(
        module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
    )


def exporter(name: str) -> Exporter:
    """The function that writes a format."""
    return cast(Exporter, importlib.import_module(f"{__name__}.{name}").export)


def uses(name: str) -> tuple[str, ...]:
    """The options that a format takes and others do not: the `USES` of its module."""
    found: tuple[str, ...] = getattr(importlib.import_module(f"{__name__}.{name}"), "USES", ())
    return found


def of_class(name: str) -> bool:
    """Whether a format is about the class as a whole: the `OF_CLASS` of its module."""
    return bool(getattr(importlib.import_module(f"{__name__}.{name}"), "OF_CLASS", False))


def describe(name: str) -> str:
    """The sentence its module opens with."""
    return (
        (importlib.import_module(f"{__name__}.{name}").__doc__ or "")
        .strip()
        .split("\n\n")[0]
        .replace("\n", " ")
    )


def seals() -> list[Callable[[Mapping[str, bytes], str], dict[str, bytes]]]:
    """The functions that add files of a platform to a student's repository, once all others are made."""
    folders = (module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    names = (f"{__name__}.{folder}.workflow" for folder in folders)
    return [importlib.import_module(name).seal for name in names if importlib.util.find_spec(name)]
