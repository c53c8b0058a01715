"""What other programs read: results in their formats, and autograders for their platforms.

Each module or folder here is one platform, found by listing the package. What begins with an
underscore is shared. A platform has:

    export(header, rows, target, options) -> list[Path]
        writes class results and returns the files. It may go through the rows several times and
        holds one at a time, as there may be ten thousand.
    USES        the fields of `Options` that a teacher may set for it alone
    OF_CLASS    True if it is about the class as a whole and takes no single submission

A folder may have modules that make what a teacher uploads, and a module `workflow`, whose
`seal(files, day)` adds files to a student's repository.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import cast

from gpudojo.model import catalogue
from gpudojo.model.results import ClassResults, ExerciseRow, SubmissionRow


def say_nothing(sentence: str) -> None:
    """Drop a sentence for the teacher."""


@dataclass(frozen=True)
class Options:
    """What an exporter may be told; each takes what it needs."""

    worksheet: tuple[Path, ...] = ()  # grading worksheets downloaded from Moodle
    gradebook: Path | None = None  # a gradebook downloaded from Canvas
    title: str | None = None  # what the assignment is called there
    submission: str | None = None  # only this one, and into the target folder itself
    # Those of the day, for submissions that could not be graded at all.
    exercises: tuple[ExerciseRow, ...] = ()
    results: Path | None = None  # the folder of the results, where `dojo grade` keeps sources
    environment: Mapping[str, str] = field(default_factory=dict)
    when: datetime = field(default_factory=lambda: datetime.now(UTC))
    # Gets the submissions that are not in the tables that are filled in.
    left_out: set[str] = field(default_factory=set)
    # Gets what a teacher should know and no file says.
    say: Callable[[str], None] = say_nothing


Exporter = Callable[[ClassResults, Iterable[SubmissionRow], Path, Options], list[Path]]
Seal = Callable[[Mapping[str, bytes], str], dict[str, bytes]]


def exercises_of_day(day: str) -> tuple[ExerciseRow, ...]:
    """Return the exercises of an installed day, without points, and what they are worth.

    Raises BadDay where the day cannot be imported.
    """
    rows = []
    for exercise in catalogue.exercises_of(day):
        row = ExerciseRow(exercise.stem, exercise.title, 0.0, float(exercise.points))
        rows.append(row)
    return tuple(rows)


def format_names() -> list[str]:
    """Return the names of all formats."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in names if not name.startswith("_"))


def _module_of(name: str) -> ModuleType:
    """Import the module or package of a platform. Raises ImportError for an unknown name."""
    return importlib.import_module(f"{__name__}.{name}")


def exporter_of(name: str) -> Exporter:
    """Return the function that writes a format."""
    return cast(Exporter, _module_of(name).export)


def options_used_by(name: str) -> tuple[str, ...]:
    """Return the options that a format takes and others do not: the `USES` of its module."""
    options: tuple[str, ...] = getattr(_module_of(name), "USES", ())
    return options


def is_about_the_class(name: str) -> bool:
    """True if a format is about the class as a whole: the `OF_CLASS` of its module."""
    return bool(getattr(_module_of(name), "OF_CLASS", False))


def describe_format(name: str) -> str:
    """Return the paragraph that a format's module opens with, on one line."""
    docstring = _module_of(name).__doc__ or ""
    return docstring.strip().split("\n\n")[0].replace("\n", " ")


def find_seals() -> list[Seal]:
    """Return the functions that add a platform's files to a student's repository.

    They are called once all other files are made. Imports the modules `workflow` of all platforms.
    """
    functions = []
    for module in pkgutil.iter_modules(__path__):
        name = f"{__name__}.{module.name}.workflow"
        if module.ispkg and importlib.util.find_spec(name):
            functions.append(importlib.import_module(name).seal)
    return functions
