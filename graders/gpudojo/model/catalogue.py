"""Finds the days that are installed, their exercises, and the day that a file belongs to.

A day is a package whose modules are exercises. Those of gpudojo are the packages in
`gpudojo.days`. Other distributions register theirs by an entry point of the group `gpudojo.days`:
the entry's name is the day, its value the package.

Nothing is imported to answer which days there are and which exercises they have: stems are read
from the source. So this module is cheap to ask in any project, and imports nothing but the
standard library until a day is wanted.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpudojo.model.errors import BadDay
    from gpudojo.model.exercise import Exercise, Misconception

DAY: Final = re.compile(r"day([1-9][0-9]{0,2})")
GROUP: Final = "gpudojo.days"
HINTS_FOLDER: Final = "hints"
MISCONCEPTIONS_FILE: Final = "misconceptions.toml"
BUILT_IN: Final = Path(__file__).resolve().parents[1] / "days"
# Modules in which an error of declarations is raised, and which are not the author's.
_NOT_AUTHORS: Final = ("gpudojo.grading.", "gpudojo.model.")
_CANNOT_IMPORT: Final = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_STEM: Final = re.compile(
    r"""^exercise\b[^=\n]*=\s*(?:\w+\.)?Exercise\(\s*(?:stem=)?["']([^"'\n]+)["']""", re.M
)


@dataclass(frozen=True)
class Day:
    """An installed day, found and not yet imported."""

    name: str
    package: str  # "gpudojo.days.day8"
    folder: Path
    requires: tuple[str, ...] = ()  # what the distribution that registers it needs

    @property
    def built_in(self) -> bool:
        """True if it comes with gpudojo, and not from another package."""
        return self.package.startswith(f"{GROUP}.")

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """The module that declares each exercise, by its stem. A package counts as one module.

        Read from the sources once; nothing is imported. Raises OSError if one cannot be read.
        """
        found = {}
        for path in sorted(self.folder.rglob("*.py")):
            stems = _STEM.findall(path.read_text(encoding="utf-8", errors="replace"))
            inside = path.relative_to(self.folder).with_suffix("").parts[0]
            if inside != "__init__":
                module = f"{self.package}.{inside}"
                found.update(dict.fromkeys(stems, module))
        return found


@functools.cache
def registered_days() -> dict[str, Day]:
    """Every installed day by name, in the order of their numbers; found once.

    A day of gpudojo cannot be replaced from outside; of two packages that register the same name,
    the first counts.
    """
    found = {}
    for init in BUILT_IN.glob("*/__init__.py"):
        name = init.parent.name
        if DAY.fullmatch(name):
            found[name] = Day(name, f"{GROUP}.{name}", init.parent)
    entries = importlib.metadata.entry_points(group=GROUP)
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.value)):
        folder = _folder_of_package(entry.value)
        is_known = entry.name in found
        if is_known or folder is None or not DAY.fullmatch(entry.name):
            continue
        requires: tuple[str, ...] = ()
        if entry.dist:
            requires = tuple(entry.dist.requires or ())
        found[entry.name] = Day(entry.name, entry.value, folder, requires)
    in_order = sorted(found, key=_number_of_day)
    return {name: found[name] for name in in_order}


def _number_of_day(name: str) -> int:
    """The 8 of `day8`. Raises ValueError for other names."""
    return int(name.removeprefix("day"))


def torch_version() -> str:
    """The version of torch that is installed, without importing it.

    Raises `importlib.metadata.PackageNotFoundError` where there is none.
    """
    return importlib.metadata.version("torch")


def _folder_of_package(package: str) -> Path | None:
    """Where a package lies. Returns None where it is not found.

    Only the outermost one is looked up: a lookup imports all packages above the one it is for.
    """
    outermost, *rest = package.split(".")
    try:
        spec = importlib.util.find_spec(outermost)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    for place in spec.submodule_search_locations or ():
        folder = Path(place, *rest)
        if (folder / "__init__.py").is_file():
            return folder
    return None


def day_names() -> tuple[str, ...]:
    """The names of the installed days, in the order of their numbers."""
    return tuple(registered_days())


def _import_of_author(name: str) -> ModuleType:
    """Import a module of a day. Raises BadDay, with file and line, where that fails."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever an author's file may raise
        from gpudojo.model.errors import BadDay

        if isinstance(error, SyntaxError) and error.filename:
            raise BadDay(error.filename, error.lineno, error.msg) from error
        # The author's own line, and not one of gpudojo that refuses what is declared there.
        frames = []
        for frame, number in traceback.walk_tb(error.__traceback__):
            module = str(frame.f_globals.get("__name__", ""))
            if not module.startswith(_NOT_AUTHORS) and "importlib" not in frame.f_code.co_filename:
                frames.append((frame.f_code.co_filename, number))
        file, line = "", None
        if frames:
            file, line = frames[-1]
        reason = f"{type(error).__name__}: {error}{_name_that_may_be_meant(error)}"
        raise BadDay(file or name, line, reason) from error


def _name_that_may_be_meant(error: Exception) -> str:
    """The end of a sentence about a name that a module does not have; "" for other errors."""
    from gpudojo.model.errors import suggest_name

    match = _CANNOT_IMPORT.match(str(error))
    if match is None or match[2] not in sys.modules:
        return ""
    return suggest_name(match[1], vars(sys.modules[match[2]]), "")


def _modules_and_exercises(name: str) -> Iterator[tuple[ModuleType, Exercise]]:
    """Yield the exercises of a day, each with the module that declares it.

    Imports the modules. Raises BadDay where one cannot be imported, and KeyError for an unknown
    day.
    """
    for module_name in dict.fromkeys(registered_days()[name].modules.values()):
        module = _import_of_author(module_name)
        exercise = _exercise_of(module, registered_days()[name])
        if exercise is not None:
            yield module, exercise


def _exercise_of(module: ModuleType, day: Day) -> Exercise | None:
    """The exercise that a module of a day declares. Returns None where it declares none.

    Sets the path of its hints in the exercise.
    """
    from gpudojo.model.exercise import Exercise

    exercise = getattr(module, "exercise", None)
    if not isinstance(exercise, Exercise):
        return None
    exercise.hints_file = day.folder / HINTS_FOLDER / f"{exercise.stem}.toml"
    return exercise


def exercises_of(name: str) -> tuple[Exercise, ...]:
    """The exercises of a day, in order; its modules are imported the first time.

    Raises BadDay for a file that cannot be imported, and KeyError for an unknown day. The error is
    kept, too. The fork server loads a day where its files can be read; a child that is to grade it,
    and cannot read them, raises the author's mistake and not its own.
    """
    from gpudojo.model.errors import BadDay

    loaded = _load_day(name)
    if isinstance(loaded, BadDay):
        # A new one each time: the traceback of an error grows whenever it is raised.
        raise BadDay(loaded.file, loaded.line, loaded.reason) from loaded.__cause__
    return loaded


@functools.cache
def _load_day(name: str) -> tuple[Exercise, ...] | BadDay:
    """The exercises of a day, or the BadDay that says why they cannot be loaded; found once.

    Raises KeyError for an unknown day.
    """
    from gpudojo.model.errors import BadDay

    try:
        exercises = [exercise for _, exercise in _modules_and_exercises(name)]
    except BadDay as error:
        return error
    return tuple(sorted(exercises, key=lambda exercise: exercise.stem))


def size_of_complete_day(name: str) -> tuple[int, float]:
    """How many exercises a complete day has, and how many points, as its package says.

    Where it does not say how many, it is what is there. Raises BadDay where the day cannot be
    imported.
    """
    package = _import_of_author(registered_days()[name].package)
    exercises = exercises_of(name)
    count = getattr(package, "EXERCISES", len(exercises))
    points = getattr(package, "POINTS", sum(exercise.points for exercise in exercises))
    return int(count), float(points)


def wrong_points(name: str) -> str | None:
    """A sentence where points do not add up, else None.

    Those of an exercise's checks have to, and those of a day that has all its exercises. Raises
    BadDay where the day cannot be imported.
    """
    for exercise in exercises_of(name):
        found = sum(function.points for function in exercise.functions)
        if found != exercise.points:
            return (
                f"the checks of {exercise.stem} add up to {found:g} points, not {exercise.points:g}"
            )
    count, points = size_of_complete_day(name)
    total = sum(exercise.points for exercise in exercises_of(name))
    if len(exercises_of(name)) >= count and total != points:
        return f"the points of {name} add up to {total:g}, not {points:g}"
    return None


def day_title(name: str) -> str:
    """The first line of its package's docstring: "Day 8: GPU acceleration and performance".

    Raises BadDay where the package cannot be imported.
    """
    package = _import_of_author(registered_days()[name].package)
    text = package.__doc__ or f"Day {_number_of_day(name)}"
    first, *_ = text.strip().splitlines()
    return first.rstrip(". ")


@functools.cache
def misconceptions_of(name: str) -> Mapping[str, Misconception]:
    """The named mistakes of a day, by key: its `misconceptions.toml`, read once.

    Raises BadDay for an author's mistake in it, and OSError.
    """
    return _read_mistakes(registered_days()[name].folder / MISCONCEPTIONS_FILE)


def mistakes_for(name: str) -> Mapping[str, Misconception]:
    """The named mistakes that checks of a day may name, by key: the general ones and its own.

    Raises BadDay for an author's mistake in the day's file, and OSError.
    """
    return {**general_mistakes(), **misconceptions_of(name)}


@functools.cache
def general_mistakes() -> Mapping[str, Misconception]:
    """The named mistakes that can be made in every exercise, by key; read once."""
    return _read_mistakes(Path(__file__).with_name("mistakes.toml"))


def _read_mistakes(path: Path) -> Mapping[str, Misconception]:
    """The named mistakes in a file, by key; none where there is no file.

    Raises BadDay for an author's mistake in it, or where it cannot be read.
    """
    from gpudojo.model.errors import BadDay, BadFile
    from gpudojo.model.exercise import Misconception
    from gpudojo.model.toml_mistakes import convert_setting, parse_toml

    if not path.is_file():
        return {}
    found = {}
    try:
        tables, text = parse_toml(path)
        for key, entry in tables.items():
            found[key] = convert_setting(path, text, entry, Misconception, key)
    except BadFile as error:
        raise BadDay(error.file, error.line, error.reason) from error
    return found


@functools.cache
def known_misconceptions() -> Mapping[str, Misconception]:
    """The named mistakes of all installed days, and the general ones, by key; read once.

    Of two with the same key, that of a day counts, and of two days that of the first. Raises BadDay
    for an author's mistake in a file, and OSError where one cannot be read.
    """
    found = dict(general_mistakes())
    for name in reversed(day_names()):
        found.update(misconceptions_of(name))
    return found


def repository_of(name: str) -> Path | None:
    """The nearest folder above a day's package that has its reference solutions.

    Returns None where there is none, as in a release, and for an unknown day.
    """
    day = registered_days().get(name)
    if day is None:
        return None
    for folder in day.folder.resolve().parents:
        if (folder / "reference" / name).is_dir():
            return folder
    return None


def source_files(name: str, exercise: Exercise) -> list[Path]:
    """The files that declare an exercise of a day: its module or package, then its hints.

    Empty for an exercise of another day. Raises BadDay where the day cannot be imported.
    """
    for module, declared in _modules_and_exercises(name):
        if declared is not exercise or module.__file__ is None:
            continue
        path = Path(module.__file__)
        if path.name == "__init__.py":
            files = sorted(path.parent.glob("*.py"))
        else:
            files = [path]
        hints = exercise.hints_file
        if hints is not None and hints.is_file():
            files.append(hints)
        return files
    return []


def day_of_file(path: Path) -> str | None:
    """The day that a file of this name belongs to. Returns None for no day.

    Where several have such an exercise, it is the one that the file's folder names, or the first.
    """
    days = registered_days().values()
    names = [each.name for each in days if path.stem in each.modules]
    for name in names:
        if name in path.parts:
            return name
    if names:
        return names[0]
    return None


def exercise_for(path: Path) -> Exercise | None:
    """The exercise that a file belongs to, by its name; None for none. Raises BadDay.

    Of its day, only the exercise's own module is imported.
    """
    name = day_of_file(path)
    if name is None:
        return None
    day = registered_days()[name]
    return _exercise_of(_import_of_author(day.modules[path.stem]), day)


def day_of_exercise(exercise: Exercise) -> str | None:
    """The day that declares an exercise.

    Otherwise the first day that has an exercise of its stem, or None.
    """
    days = registered_days().values()
    having = [each for each in days if exercise.stem in each.modules]
    for each in having:
        module = sys.modules.get(each.modules[exercise.stem])
        if getattr(module, "exercise", None) is exercise:
            return each.name
    if having:
        return having[0].name
    return None


def every_exercise() -> Iterator[tuple[str, Exercise]]:
    """Yield all installed exercises, each with its day. This imports every day.

    Raises BadDay where one cannot be imported.
    """
    for name in day_names():
        for exercise in exercises_of(name):
            yield name, exercise
