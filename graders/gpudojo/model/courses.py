"""Finds the course that somebody writes: a folder whose pyproject.toml registers days.

It is found in the folder and not among what is installed, so that a course can be worked on before
it is. Nothing of it is imported.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gpudojo.model.catalogue import DAY, GROUP, registered_days
from gpudojo.model.errors import CannotBegin

CLONE_DAYS: Final = "graders/gpudojo/days"  # in a clone of gpudojo
PROJECT_FILE: Final = "pyproject.toml"
ENTRY_POINTS_HEADER: Final = f'[project.entry-points."{GROUP}"]'


@dataclass(frozen=True)
class OwnCourse:
    """A folder with days of somebody's own."""

    root: Path
    packages: Mapping[str, str]  # by day: "my_course.day1"

    @property
    def how_to_install(self) -> str:
        """The command that makes every other command know its days."""
        if self.root == Path.cwd():
            return "pip install -e ."
        return f"pip install -e {self.root}"

    def say_not_installed(self, day: str) -> str:
        """A sentence about a day of it that is not installed, with the command that installs it."""
        problem = f"{day} is a day of {self.root} that is not installed here"
        return f"{problem}; run: {self.how_to_install}"

    def folder_of(self, day: str) -> PurePosixPath:
        """The folder of a day's package, relative to the course.

        Raises CannotBegin where it is not there, and KeyError for a day that the course does not
        register.
        """
        package = self.packages[day]
        inside = PurePosixPath(*package.split("."))
        below = [each for each in sorted(self.root.glob("*")) if each.is_dir()]
        for folder in (self.root, self.root / "src", *below):
            if (folder / inside / "__init__.py").is_file():
                return PurePosixPath(folder.relative_to(self.root).as_posix()) / inside
        raise CannotBegin(
            f"{self.root / PROJECT_FILE} says that {day} is the package {package}, "
            f"and {self.root} has no {inside}/__init__.py"
        )

    def package_for(self, day: str) -> str:
        """The package of a new day: beside the first one that is there."""
        first = next(iter(self.packages.values()))
        above, dot, _ = first.rpartition(".")
        return f"{above}{dot}{day}"

    def project_with(self, day: str, package: str) -> str:
        """The text of its pyproject.toml with one more day.

        Raises CannotBegin where there is no place for it, and OSError.
        """
        path = self.root / PROJECT_FILE
        line = f'{day} = "{package}"'
        before, header, after = path.read_text(encoding="utf-8").partition(
            f"{ENTRY_POINTS_HEADER}\n"
        )
        entries, blank, rest = after.partition("\n\n")
        entries = entries.rstrip("\n")
        text = f"{before}{header}{entries}\n{line}{blank or chr(10)}{rest}"
        try:
            found = days_in_project(tomllib.loads(text))
        except tomllib.TOMLDecodeError:
            found = {}
        if not header or found != {**self.packages, day: package}:
            raise CannotBegin(f"add this to the entry points {GROUP!r} in {path}, then: {line}")
        return text


def find_course(here: Path) -> OwnCourse | None:
    """The course that a folder belongs to: the nearest one, in it or above it.

    Returns None where there is none. Raises CannotBegin for a pyproject.toml that is not TOML.
    """
    for folder in (here, *here.parents):
        course = read_course(folder)
        if course is not None:
            return course
    return None


def refuse_other_course(day: str, here: Path) -> None:
    """Refuse to write an exercise of a day into a course that the folder here does not belong to.

    Says nothing of a day of gpudojo itself, and of one that no course registers. Raises CannotBegin
    with the option that names the course, and for a pyproject.toml that is not TOML.
    """
    course = find_course(here)
    if course is not None and day in course.packages:
        return
    registered = registered_days().get(day)
    if registered is None or registered.built_in:
        return
    other = find_course(registered.folder.resolve())
    if other is not None and day in other.packages:
        raise CannotBegin(
            f"{day} is a day of another course, and this folder is not in it; "
            f"to write there, add: --root {other.root}"
        )


def describe_not_installed(place: Path) -> str:
    """A sentence about a day of the course around a file or folder that is not installed.

    It has the command that installs it. Of several days, it is one that the path names. Returns ""
    where there is no course, where its days are installed, and where its project file cannot be
    read.
    """
    place = place.resolve()
    try:
        course = find_course(place)
    except CannotBegin:
        return ""
    if course is None:
        return ""
    missing = [day for day in course.packages if day not in registered_days()]
    named = [day for day in missing if day in place.parts]
    for day in named or missing:
        return course.say_not_installed(day)
    return ""


def refuse_other_package(day: str, root: Path) -> None:
    """Refuse a day whose package is in a folder of somebody's, where another copy is installed.

    The reference and the tests of that folder would be judged with the other copy's checks. Raises
    CannotBegin, with the command that installs this one.
    """
    registered = registered_days().get(day)
    if registered is None:
        return
    installed = registered.folder.resolve()
    if registered.built_in:
        own = root / CLONE_DAYS / day
        command = f"pip install -e {root}"
    else:
        course = read_course(root)
        if course is None or day not in course.packages:
            return
        own = course.root / course.folder_of(day)
        command = course.how_to_install
    if own.is_dir() and own.resolve() != installed:
        raise CannotBegin(
            f"{day} is installed from {installed}, and this folder has another copy of it, {own}; "
            f"to use this one, run: {command}"
        )


def read_course(folder: Path) -> OwnCourse | None:
    """The course in a folder; None where its pyproject.toml registers no day, or is not there.

    Raises CannotBegin for one that is not TOML.
    """
    path = folder / PROJECT_FILE
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CannotBegin(f"{path} cannot be read: {error}") from None
    packages = days_in_project(project)
    if not packages:
        return None
    return OwnCourse(folder.resolve(), packages)


def days_in_project(project: Mapping[str, Any]) -> dict[str, str]:
    """The packages that a pyproject.toml registers as days, by day; others are left out."""
    found: Any = project
    for key in ("project", "entry-points", GROUP):
        if not isinstance(found, dict):
            return {}
        found = found.get(key)
    if not isinstance(found, dict):
        return {}
    packages = {}
    for name, value in found.items():
        if isinstance(value, str) and DAY.fullmatch(name):
            packages[name] = value
    return packages
