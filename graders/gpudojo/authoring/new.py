"""Makes the files of a new exercise or day."""

from __future__ import annotations

import ast
import builtins
import contextlib
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Final

from gpudojo.authoring.kept_solutions import SHARED_PREFIX
from gpudojo.model.catalogue import (
    BUILT_IN,
    DAY,
    HINTS_FOLDER,
    day_names,
    exercises_of,
    registered_days,
)
from gpudojo.model.errors import BadName, CannotBegin, NameTaken
from gpudojo.release.stubs import stub_of

DAYS_FOLDER: Final = "graders/gpudojo/days"
LONGEST_NAME: Final = 30  # as a file name, and so that a line with two of them is not too long
LONGEST_TITLE: Final = 80
_EXERCISE: Final = re.compile(r"[a-z](?:_?[a-z0-9])*")
_FUNCTION: Final = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*")
# A file of such a name cannot be made on Windows, whatever its suffix.
_WINDOWS_DEVICE: Final = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9]")


@dataclass(frozen=True)
class Plan:
    """What the author wants."""

    day: str
    name: str
    functions: tuple[str, ...] = ()  # none: one, which is called as the exercise is
    points: int = 5
    title: str | None = None


@dataclass(frozen=True)
class Surroundings:
    """What there is of each day, by its name."""

    # The stems of exercises that are declared, or have a reference at least.
    stems: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the day's package
    # Each function's exercise, of any day.
    functions: Mapping[str, str] = field(default_factory=dict)
    # Of the day's package, relative to the repository.
    folders: Mapping[str, str] = field(default_factory=dict)
    clone: bool = True  # whether the repository is the one whose gpudojo runs here

    def next_number(self, day: str) -> int:
        """The number of the next exercise of a day: one more than the highest, or 1."""
        highest = 0
        for stem in self.stems.get(day, ()):
            if stem[:2].isdigit():
                highest = max(highest, int(stem[:2]))
        return highest + 1

    def folder_of(self, day: str) -> str:
        """The folder of a day's package: of a new day, where it will be."""
        return self.folders.get(day, f"{DAYS_FOLDER}/{day}")


def find_surroundings(root: Path) -> Surroundings:
    """The names that the installed days have taken, and the folders of the days."""
    stems = {}
    modules = {}
    folders = {}
    functions: dict[str, str] = {}
    for day in day_names():
        exercises = exercises_of(day)
        references = root / "reference" / day
        stems_of_day = {path.stem for path in references.glob("[0-9][0-9]_*.py")}
        for exercise in exercises:
            stems_of_day.add(exercise.stem)
            for function in exercise.functions:
                functions[function.name] = exercise.stem
        stems[day] = tuple(sorted(stems_of_day))
        # The day's package.
        folder = registered_days()[day].folder.resolve()
        names = {path.stem for path in folder.glob("*") if path.suffix in ("", ".py")}
        modules[day] = frozenset(names)
        folders[day] = str(folder)
        if folder.is_relative_to(root):
            folders[day] = folder.relative_to(root).as_posix()
    is_clone = (root / DAYS_FOLDER).resolve() == BUILT_IN
    return Surroundings(stems, modules, functions, folders, is_clone)


def exercise_files(plan: Plan, known: Surroundings) -> dict[str, str | None]:
    """The texts of a new exercise, by path.

    Raises CannotBegin, or BadName or NameTaken, where there cannot be such an exercise.
    """
    stem = f"{known.next_number(plan.day):02}_{plan.name}"
    functions = plan.functions or (plan.name,)
    if plan.title is None:
        title = plan.name.replace("_", " ").capitalize()
    else:
        title = plan.title.strip().rstrip(".")
    # Refuse what cannot be, before anything is made.
    refuse_exercise(plan.name, plan.day, stem, known)
    refuse_functions(functions, known)
    refuse_title(title)
    # Fill the skeletons.
    words = {
        "day": plan.day,
        "stem": stem,
        "number": stem[:2],
        "title": title,
        "points": plan.points,
    }
    reference = fill_skeleton("reference", **words)
    module = fill_skeleton("exercise", **words)
    hints = fill_skeleton("hints", **words)
    solutions = []
    points_by_place = share_points(plan.points, len(functions))
    for function, points in zip(functions, points_by_place, strict=True):
        reference += fill_skeleton("task", function=function)
        module += fill_skeleton("function", function=function, points=f"{points:g}")
        hints += fill_skeleton("function_hints", function=function)
        solutions.append(fill_skeleton("solutions", function=function))
    reference += fill_skeleton("demo")
    for function in functions:
        reference += fill_skeleton("demo_call", function=function)
    _refuse_names_of_skeletons(functions, reference, module)
    # Where each text belongs.
    folder = known.folder_of(plan.day)
    return {
        f"reference/{plan.day}/{stem}.py": reference,
        f"exercises/{plan.day}/{stem}.py": stub_of(reference),
        f"{folder}/{plan.name}.py": module,
        f"{folder}/{HINTS_FOLDER}/{stem}.toml": hints,
        f"tests/{plan.day}/{SHARED_PREFIX}{stem}.py": "\n\n".join(solutions),
    }


def _refuse_names_of_skeletons(functions: tuple[str, ...], *texts: str) -> None:
    """Raise BadName for a function called as something that its own skeletons have.

    Such names are `torch` and `exercise`.
    """
    for text in texts:
        bound = _names_bound_in(ast.parse(text))
        for function in functions:
            if bound.count(function) > 1:
                why = "the files of the exercise use that name for something else"
                raise BadName("a function", function, why)


def _names_bound_in(tree: ast.Module) -> list[str]:
    """Every name that is bound anywhere in a file, each time that it is."""
    names = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.append(name)
            case ast.FunctionDef(name=name) | ast.arg(arg=name):
                names.append(name)
            case ast.alias(name=name, asname=other):
                names.append(other or name)
    return names


def day_files(
    name: str, known: Surroundings, title: str | None = None, exercises: int = 12, points: int = 100
) -> dict[str, str | None]:
    """The texts of a new day of gpudojo, by path; None for a folder.

    Raises CannotBegin, or BadName or NameTaken, where there cannot be such a day.
    """
    # Refuse what cannot be.
    if not known.clone:
        raise CannotBegin(
            "a day is made in gpudojo itself, and this is not the clone of gpudojo that runs here; "
            "for a course of your own, see CONTRIBUTING.md"
        )
    if not DAY.fullmatch(name):
        raise BadName("a day", name, "it is called day and a number, such as day9")
    if name in known.stems:
        count = len(known.stems[name])
        command = f"dojo new exercise {name} …"
        raise NameTaken(name, f"it has {count} exercises; add one with: {command}")
    number = name.removeprefix("day")
    if title is None:
        title = f"the exercises of day {number}"
    refuse_title(title)
    # Fill the skeletons.
    words = {"number": number, "title": title, "exercises": exercises, "points": points}
    return {
        f"{DAYS_FOLDER}/{name}/__init__.py": fill_skeleton("day", **words),
        f"reference/{name}": None,
        f"exercises/{name}": None,
        f"tests/{name}/__init__.py": "",
        f"tests/{name}/test_solutions.py": fill_skeleton("tests", day=name),
    }


def fill_skeleton(skeleton: str, **words: object) -> str:
    """A skeleton with these words in it; raises KeyError where it needs one more."""
    path = Path(__file__).parent / "skeletons" / f"{skeleton}.txt"
    template = Template(path.read_text(encoding="utf-8"))
    return template.substitute(words)


def share_points(points: int, count: int) -> list[float]:
    """Share points between some functions, in quarters. Returns the points of each.

    The last one gets the remainder. Raises CannotBegin where there are too few points.
    """
    quarters = 4 * points // count
    if not quarters:
        raise CannotBegin(
            f"{count} functions need more than {points} points: at least a quarter each"
        )
    each = quarters / 4
    shares = [each] * count
    shares[-1] = points - each * (count - 1)
    return shares


def refuse_exercise(name: str, day: str, stem: str, known: Surroundings) -> None:
    """Raise an error if there cannot be such an exercise.

    BadName for its name, NameTaken if there is one already, CannotBegin for the day.
    """
    if day not in known.stems:
        days = ", ".join(known.stems) or "none"
        raise CannotBegin(
            f"there is no day {day!r} (the days are: {days}); make it with: dojo new day {day}"
        )
    folder = known.folder_of(day)
    if Path(folder).is_absolute():
        raise CannotBegin(f"the package of {day} is not in this repository but in {folder}")
    _refuse_name_of_exercise(name)
    # What has that name already.
    if name in known.modules.get(day, ()):
        raise NameTaken(name, f"{folder}/{name}")
    for other_day, stems in known.stems.items():
        for other_stem in stems:
            is_same_name = other_day == day and other_stem[3:] == name
            # Even of another day: a submission's exercise is known by its file name.
            is_same_file = other_stem == stem
            if is_same_file or is_same_name:
                raise NameTaken(name, f"{other_day} has an exercise {other_stem}")
    if stem[2] != "_":
        raise CannotBegin(
            f"{day} has 99 exercises already, and file names have room for two digits"
        )


def _refuse_name_of_exercise(name: str) -> None:
    """Raise BadName if an exercise cannot be called so, whatever others are called."""
    if not _EXERCISE.fullmatch(name) or keyword.iskeyword(name):
        rule = "use small letters, digits and single _ between them, and no keyword of Python"
        rule += ", such as brightest_sprite"
        if name[:1].isdigit():
            rule += "; the number is added"
        raise BadName("an exercise", name, rule)
    if len(name) > LONGEST_NAME:
        raise BadName("an exercise", name, f"it is longer than {LONGEST_NAME} letters")
    if _WINDOWS_DEVICE.fullmatch(name):
        raise BadName("an exercise", name, "Windows reserves that name")
    if DAY.fullmatch(name):
        raise BadName("an exercise", name, "a file with that name is taken for a whole day")


def refuse_functions(functions: tuple[str, ...], known: Surroundings) -> None:
    """Raise BadName or NameTaken for the first function that cannot be called so."""
    rule = "use letters, digits and single _ between them, and no keyword of Python"
    for name in functions:
        is_keyword = keyword.iskeyword(name) or keyword.issoftkeyword(name)
        if is_keyword or not _FUNCTION.fullmatch(name):
            raise BadName("a function", name, rule)
        if len(name) > LONGEST_NAME:
            raise BadName("a function", name, f"it is longer than {LONGEST_NAME} letters")
        if hasattr(builtins, name):
            raise BadName("a function", name, "Python has a built-in function of that name")
        if functions.count(name) > 1:
            raise NameTaken(name, "it is given twice")
        if name in known.functions:  # in a notebook, a function is known by its name alone
            raise NameTaken(name, f"{known.functions[name]} has a function of that name")


def refuse_title(title: str) -> None:
    """Raise BadName for a title that cannot stand in the texts as it is."""
    is_one_line = bool(title.strip()) and title.isprintable()
    has_special_signs = not set(title).isdisjoint('"\\$')
    if not is_one_line or has_special_signs or len(title) > LONGEST_TITLE:
        rule = f'use one line of at most {LONGEST_TITLE} letters, without ", \\ and $'
        raise BadName("anything that has a title", title, rule)


def write_new(root: Path, files: Mapping[str, str | None]) -> list[str]:
    """Write the files, and make the folders, whose text is None: all or nothing.

    Returns the paths of the files, in order. Raises NameTaken if a path exists, CannotBegin if
    something cannot be written.
    """
    for name, text in files.items():
        if _is_in_the_way(root / name, text is None):
            raise NameTaken(name, "nothing was written")
    try:
        # What was made is removed again if the next thing cannot be.
        with contextlib.ExitStack() as undo:
            for name, text in files.items():
                path = root / name
                if text is None:
                    _make_folders(path, undo)
                else:
                    _make_folders(path.parent, undo)
                    _write_new_file(path, text, undo)
            undo.pop_all()
    except OSError as error:
        path_of_error = error.filename or root
        reason = error.strerror or error
        problem = f"cannot write {path_of_error}: {reason}"
        raise CannotBegin(f"{problem}; nothing was written") from None
    return [name for name, text in files.items() if text is not None]


def _is_in_the_way(path: Path, is_folder: bool) -> bool:
    """True if something is at a path already, other than an empty folder where one is wanted."""
    if path.is_symlink():
        return True
    if is_folder and path.is_dir():
        return any(path.iterdir())
    return path.exists()


def _write_new_file(path: Path, text: str, undo: contextlib.ExitStack) -> None:
    """Write a file that is not there yet; `undo` removes it again. Raises OSError."""
    with path.open("x", encoding="utf-8", newline="\n") as file:
        undo.callback(path.unlink)
        file.write(text)


def _make_folders(folder: Path, undo: contextlib.ExitStack) -> None:
    """Make a folder and those above it that are missing; `undo` removes them again.

    Raises OSError.
    """
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir()
            undo.callback(each.rmdir)
