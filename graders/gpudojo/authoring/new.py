"""Makes the files of a new exercise, day or course."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Final

from gpudojo.authoring.kept_solutions import SHARED_PREFIX
from gpudojo.authoring.signatures import Signature, read_signature
from gpudojo.grading.bindings import find_bindings
from gpudojo.model.catalogue import (
    BUILT_IN,
    DAY,
    HINTS_FOLDER,
    Day,
    exercises_of,
    registered_days,
)
from gpudojo.model.courses import CLONE_DAYS, OwnCourse, find_course
from gpudojo.model.errors import BadName, CannotBegin, DojoError, NameTaken
from gpudojo.release.stubs import stub_of

COURSE_FOLDERS: Final = ("reference", "exercises", "tests")  # beside a course's package
RESERVED_PARAMETERS: Final = ("call", "generator")  # what a probe itself has
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
    # Each a name, or how its definition begins: "f(batch, device) -> Tensor". None: one function,
    # which is called as the exercise is.
    functions: tuple[str, ...] = ()
    points: int = 5
    title: str | None = None


@dataclass(frozen=True)
class Surroundings:
    """What there is of each day, by its name, and where a new one goes."""

    # The stems of exercises that are declared, or have a reference at least.
    stems: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the day's package
    # Each function's exercise, of any day.
    functions: Mapping[str, str] = field(default_factory=dict)
    # Of the packages of days that are written in this repository, relative to it. None: all.
    folders: Mapping[str, str] | None = None
    root: Path = Path()  # the repository
    course: OwnCourse | None = None  # None: the repository is the clone of gpudojo

    def next_number(self, day: str) -> int:
        """The number of the next exercise of a day: one more than the highest, or 1."""
        highest = 0
        for stem in self.stems.get(day, ()):
            if stem[:2].isdigit():
                highest = max(highest, int(stem[:2]))
        return highest + 1

    def folder_of(self, day: str) -> str:
        """The folder of a day's package, relative to the repository: of a new day, where it will
        be.

        Raises CannotBegin for a new day of a course whose first day is not there.
        """
        if self.folders is not None and day in self.folders:
            return self.folders[day]
        if self.course is None:
            return f"{CLONE_DAYS}/{day}"
        # Beside the days that are there.
        first = next(iter(self.course.packages))
        return (self.course.folder_of(first).parent / day).as_posix()

    def is_written_here(self, day: str) -> bool:
        """True for a day whose package is in this repository."""
        return self.folders is None or day in self.folders


def find_surroundings(here: Path) -> Surroundings:
    """The names that days have taken, and the repository that a folder belongs to.

    That is a course, or the clone of the gpudojo that runs. Raises CannotBegin where it is neither,
    and BadDay where an installed day cannot be imported.
    """
    course = find_course(here)
    root = course.root if course is not None else _find_clone(here)
    stems = {}
    modules = {}
    folders = {}
    functions: dict[str, str] = {}
    for name, day in _find_days(root, course).items():
        is_here = day.folder.is_relative_to(root)
        if is_here:
            folders[name] = day.folder.relative_to(root).as_posix()
        functions |= _functions_of(day, root)
        stems_of_day = {path.stem for path in root.glob(f"reference/{name}/[0-9][0-9]_*.py")}
        stems_of_day.update(day.modules)
        stems[name] = tuple(sorted(stems_of_day))
        names = {path.stem for path in day.folder.glob("*") if path.suffix in ("", ".py")}
        modules[name] = frozenset(names)
    return Surroundings(stems, modules, functions, folders, root, course)


def _find_clone(here: Path) -> Path:
    """The clone of the gpudojo that runs, if a folder belongs to it. Raises CannotBegin if not."""
    clone = BUILT_IN.parents[2]
    for folder in (here, *here.parents):
        if (folder / CLONE_DAYS).resolve() == BUILT_IN:
            return clone
        if (folder / CLONE_DAYS).is_dir():
            raise CannotBegin(
                f"{folder} is a clone of gpudojo, and the gpudojo that runs is another one; "
                f"run: pip install -e {folder}"
            )
    raise CannotBegin(
        f"{here} is no course: no pyproject.toml in it or above it registers a day. "
        "To begin one in an empty folder, run: dojo new course NAME"
    )


def _find_days(root: Path, course: OwnCourse | None) -> dict[str, Day]:
    """Every day by name: those of this repository, installed or not, and the installed ones.

    Raises CannotBegin for a day of the course whose package is not there.
    """
    found = {}
    for name, day in registered_days().items():
        found[name] = replace(day, folder=day.folder.resolve())
    if course is not None:
        for name, package in course.packages.items():
            # One of gpudojo itself cannot be replaced.
            if name not in found or not found[name].built_in:
                found[name] = Day(name, package, root / course.folder_of(name))
    return found


def _functions_of(day: Day, root: Path) -> dict[str, str]:
    """The functions that students of a day write, each with the stem of its exercise.

    Those of a day of this repository are read from its references, without importing anything.
    Raises BadDay where another one cannot be imported.
    """
    found = {}
    registered = registered_days().get(day.name)
    if registered is not None and registered.folder.resolve() == day.folder:
        for exercise in exercises_of(day.name):
            for function in exercise.functions:
                found[function.name] = exercise.stem
        return found
    for path in sorted(root.glob(f"reference/{day.name}/[0-9][0-9]_*.py")):
        with contextlib.suppress(DojoError, SyntaxError):  # the author is still writing it
            stub = stub_of(path.read_text(encoding="utf-8"), str(path))
            for binding in find_bindings(ast.parse(stub)):
                if binding.is_stub:
                    found[binding.name] = path.stem
    return found


def exercise_files(plan: Plan, known: Surroundings) -> dict[str, str | None]:
    """The texts of a new exercise, by path; `known` is what there is already.

    Raises CannotBegin, or BadName or NameTaken, where there cannot be such an exercise, and OSError
    where a skeleton of ours cannot be read. None stands for a folder.
    """
    stem = f"{known.next_number(plan.day):02}_{plan.name}"
    if plan.title is None:
        title = plan.name.replace("_", " ").capitalize()
    else:
        title = plan.title.strip().rstrip(".")
    # Refuse what cannot be, before anything is made.
    refuse_exercise(plan.name, plan.day, stem, known)
    signatures = [read_signature(text) for text in plan.functions or (plan.name,)]
    refuse_functions([signature.name for signature in signatures], known)
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
    solutions = "import torch\n"
    points_by_place = share_points(plan.points, len(signatures))
    for signature, points in zip(signatures, points_by_place, strict=True):
        texts = signature.texts()
        reference += fill_skeleton("task", **texts)
        module += fill_skeleton("function", points=f"{points:g}", **texts)
        hints += fill_skeleton("function_hints", **texts)
        solutions += fill_skeleton("solutions", **texts)
    reference += fill_skeleton("demo")
    for signature in signatures:
        reference += fill_skeleton("demo_call", **signature.texts())
    _refuse_names_of_skeletons(signatures, reference, module)
    # Where each text belongs.
    folder = known.folder_of(plan.day)
    return {
        f"reference/{plan.day}/{stem}.py": reference,
        f"exercises/{plan.day}/{stem}.py": stub_of(reference),
        f"{folder}/{plan.name}.py": module,
        f"{folder}/{HINTS_FOLDER}/{stem}.toml": hints,
        f"tests/{plan.day}/{SHARED_PREFIX}{stem}.py": solutions,
    }


def _refuse_names_of_skeletons(signatures: Sequence[Signature], *texts: str) -> None:
    """Raise BadName for a function or a parameter called as something that its own skeletons have.

    Such names are `torch` and `exercise`. `texts` are those of the files, which are Python.
    """
    why = "the files of the exercise use that name for something else"
    for text in texts:
        tree = ast.parse(text)
        bound = _names_bound_in(tree)
        at_top = {binding.name for binding in find_bindings(tree)}
        for signature in signatures:
            if bound.count(signature.name) > 1:
                raise BadName("a function", signature.name, why)
            for name in signature.parameter_names:
                if name in RESERVED_PARAMETERS or name in at_top:
                    raise BadName("a parameter", name, why)


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
    name: str,
    known: Surroundings,
    title: str | None = None,
    exercises: int | None = None,
    points: int | None = None,
) -> dict[str, str | None]:
    """The texts of a new day, by path; None for a folder.

    `known` is what there is already. Where neither `exercises` nor `points` is given, the day says
    nothing of its size. Raises CannotBegin, or BadName or NameTaken, where there cannot be such a
    day, and OSError where a skeleton of ours cannot be read.
    """
    _refuse_day(name, known)
    folder = known.folder_of(name)
    files = _files_of_day(name, folder, title, exercises, points)
    if known.course is None:
        files[f"tests/{name}/__init__.py"] = ""
    return files


def course_files(
    package: str, known_days: Mapping[str, Day], day: str, title: str | None = None
) -> dict[str, str | None]:
    """The texts of a new course with one day, by path; None for a folder.

    `known_days` are those that are installed. Raises CannotBegin, or BadName or NameTaken, where
    there cannot be such a course, and OSError where a skeleton of ours cannot be read.
    """
    if not _EXERCISE.fullmatch(package) or keyword.iskeyword(package):
        rule = "use small letters, digits and single _ between them, such as image_course"
        raise BadName("a course", package, rule)
    if package in COURSE_FOLDERS or importlib.util.find_spec(package) is not None:
        raise BadName("a course", package, "a module of that name is there already")
    _refuse_name_of_day(day)
    if day in known_days:
        taken = f"{known_days[day].package} is installed; choose another with --day"
        raise NameTaken(day, taken)
    words = {"package": package, "day": day, "distribution": package.replace("_", "-")}
    return {
        "pyproject.toml": fill_skeleton("pyproject", **words),
        "README.md": fill_skeleton("readme", **words),
        "conftest.py": fill_skeleton("conftest"),
        ".gitignore": fill_skeleton("gitignore"),
        f"{package}/__init__.py": fill_skeleton("package"),
        **_files_of_day(day, f"{package}/{day}", title, None, None),
    }


def _refuse_day(name: str, known: Surroundings) -> None:
    """Raise BadName or NameTaken if there cannot be a new day of this name."""
    _refuse_name_of_day(name)
    if name not in known.stems:
        return
    if known.is_written_here(name):
        count = len(known.stems[name])
        command = f"dojo new exercise {name} …"
        raise NameTaken(name, f"it has {count} exercises; add one with: {command}")
    package = registered_days()[name].package
    raise NameTaken(name, f"{package} is installed, and two days cannot have the same name")


def _refuse_name_of_day(name: str) -> None:
    """Raise BadName if no day can be called so."""
    if not DAY.fullmatch(name):
        raise BadName("a day", name, "it is called day and a number, such as day9")


def _files_of_day(
    name: str, folder: str, title: str | None, exercises: int | None, points: int | None
) -> dict[str, str | None]:
    """The texts that every new day has, by path; None for a folder. `folder` is its package.

    Raises BadName for a title that cannot be, and OSError where a skeleton of ours cannot be read.
    """
    number = name.removeprefix("day")
    if title is None:
        title = f"the exercises of day {number}"
    refuse_title(title)
    text = fill_skeleton("day", number=number, title=title)
    if exercises is not None or points is not None:
        sizes = {"exercises": exercises or 0, "points": points or 100}
        text += fill_skeleton("day_size", **sizes)
    return {
        f"{folder}/__init__.py": text,
        f"reference/{name}": None,
        f"exercises/{name}": None,
        f"tests/{name}/test_solutions.py": fill_skeleton("tests", day=name),
    }


def fill_skeleton(skeleton: str, **words: object) -> str:
    """A skeleton with these words in it; raises KeyError where it needs one more, and OSError."""
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

    BadName for its name, NameTaken if there is one already, CannotBegin for the day. `known` is
    what there is already.
    """
    if day not in known.stems:
        days = ", ".join(known.stems) or "none"
        raise CannotBegin(
            f"there is no day {day!r} (the days are: {days}); make it with: dojo new day {day}"
        )
    if not known.is_written_here(day):
        raise CannotBegin(_describe_home_of_day(registered_days()[day], known))
    folder = known.folder_of(day)
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


def _describe_home_of_day(day: Day, known: Surroundings) -> str:
    """A sentence about a day of another repository."""
    if day.built_in:
        own = [name for name in known.stems if known.is_written_here(name)]
        advice = "make one of your own with: dojo new day"
        if own:
            advice = f"yours: {', '.join(own)}"
        return f"{day.name} is a day of gpudojo, which is written in its clone; {advice}"
    return f"{day.name} is written elsewhere, its package is {day.folder}"


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


def refuse_functions(functions: Sequence[str], known: Surroundings) -> None:
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
