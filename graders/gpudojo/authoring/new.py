"""Makes the files of a new exercise or day, and a sample class of submissions."""

from __future__ import annotations

import ast
import builtins
import contextlib
import keyword
import random
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Final

from gpudojo.authoring.lint import SHARED, solutions
from gpudojo.model.catalogue import (
    BUILT_IN,
    DAY,
    HINTS_FOLDER,
    day_names,
    exercises_of,
    registered_days,
)
from gpudojo.model.errors import BadClass, BadName, CannotBegin, NameTaken
from gpudojo.release.stubs import stub_of

DAYS_FOLDER: Final = "graders/gpudojo/days"
LONGEST: Final = 30  # as a file name, and so that a line with two of them is not too long
_EXERCISE: Final = re.compile(r"[a-z](?:_?[a-z0-9])*")
_FUNCTION: Final = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*")
# A file of such a name cannot be made on Windows, whatever its suffix.
_DEVICES: Final = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{word}{digit}" for word in ("com", "lpt") for digit in range(10)),
}


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

    stems: Mapping[
        str, tuple[str, ...]
    ]  # of exercises that are declared, or have a reference at least
    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the day's package
    functions: Mapping[str, str] = field(
        default_factory=dict
    )  # each function's exercise, of any day
    folders: Mapping[str, str] = field(
        default_factory=dict
    )  # of the day's package, relative to the repository
    clone: bool = True  # whether the repository is the one whose gpudojo runs here

    def next_number(self, day: str) -> int:
        return (
            max(
                (int(stem[:2]) for stem in self.stems.get(day, ()) if stem[:2].isdigit()), default=0
            )
            + 1
        )

    def folder(self, day: str) -> str:
        return self.folders.get(day, f"{DAYS_FOLDER}/{day}")


def surroundings(root: Path) -> Surroundings:
    """The names that the installed days have taken, and the folders of the days."""
    stems = {}
    modules = {}
    folders = {}
    functions: dict[str, str] = {}
    for name in day_names():
        folder = registered_days()[name].folder.resolve()
        written = {path.stem for path in (root / "reference" / name).glob("[0-9][0-9]_*.py")}
        stems[name] = tuple(sorted(written | {exercise.stem for exercise in exercises_of(name)}))
        modules[name] = frozenset(
            path.stem for path in folder.glob("*") if path.suffix in ("", ".py")
        )
        functions |= {
            function.name: exercise.stem
            for exercise in exercises_of(name)
            for function in exercise.functions
        }
        inside = folder.is_relative_to(root)
        folders[name] = folder.relative_to(root).as_posix() if inside else str(folder)
    return Surroundings(
        stems, modules, functions, folders, (root / DAYS_FOLDER).resolve() == BUILT_IN
    )


def exercise_files(plan: Plan, known: Surroundings) -> dict[str, str | None]:
    """The texts of a new exercise, by path.

    Raises CannotBegin, or BadName or NameTaken, where there cannot be such an exercise.
    """
    stem = f"{known.next_number(plan.day):02}_{plan.name}"
    functions = plan.functions or (plan.name,)
    title = (
        plan.name.replace("_", " ").capitalize()
        if plan.title is None
        else plan.title.strip().rstrip(".")
    )
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
    reference = filled("reference", **words)
    module = filled("exercise", **words)
    hints = filled("hints", **words)
    solutions = ""
    for function, points in zip(functions, shares(plan.points, len(functions)), strict=True):
        reference += filled("task", function=function)
        module += filled("function", function=function, points=f"{points:g}")
        hints += filled("function_hints", function=function)
        solutions += "\n\n" * bool(solutions) + filled("solutions", function=function)
    reference += filled("demo") + "".join(
        filled("demo_call", function=function) for function in functions
    )
    # Where each text belongs.
    files = {
        f"reference/{plan.day}/{stem}.py": reference,
        f"exercises/{plan.day}/{stem}.py": stub_of(reference),
        f"{known.folder(plan.day)}/{plan.name}.py": module,
        f"{known.folder(plan.day)}/{HINTS_FOLDER}/{stem}.toml": hints,
        f"tests/{plan.day}/{SHARED}{stem}.py": solutions,
    }
    for text in (
        reference,
        module,
    ):  # a function called as something that its own skeleton has: `torch`, `exercise`
        bound = list(_bound(ast.parse(text)))
        if twice := [function for function in functions if bound.count(function) > 1]:
            raise BadName(
                "a function", twice[0], "the files of the exercise use that name for something else"
            )
    return dict(files)


def day_files(
    name: str, known: Surroundings, title: str | None = None, exercises: int = 12, points: int = 100
) -> dict[str, str | None]:
    """The texts of a new day of gpudojo, by path; None for a folder.

    Raises CannotBegin, or BadName or NameTaken, where there cannot be such a day.
    """
    # Refuse what cannot be.
    if not known.clone:
        said = "this is not the clone of gpudojo that runs here; for a course of your own, see CONTRIBUTING.md"
        raise CannotBegin(f"a day is made in gpudojo itself, and {said}")
    if not DAY.fullmatch(name):
        raise BadName("a day", name, "it is called day and a number, such as day9")
    if name in known.stems:
        raise NameTaken(
            name,
            f"it has {len(known.stems[name])} exercises; add one with: dojo new exercise {name} …",
        )
    # Fill the skeletons.
    number = name.removeprefix("day")
    title = f"the exercises of day {number}" if title is None else title
    refuse_title(title)
    return {
        f"{DAYS_FOLDER}/{name}/__init__.py": filled(
            "day", number=number, title=title, exercises=exercises, points=points
        ),
        f"reference/{name}": None,
        f"exercises/{name}": None,
        f"tests/{name}/__init__.py": "",
        f"tests/{name}/test_solutions.py": filled("tests", day=name),
    }


def filled(skeleton: str, **words: object) -> str:
    """A skeleton with these words in it; raises KeyError where it needs one more."""
    text = (Path(__file__).parent / "skeletons" / f"{skeleton}.txt").read_text(encoding="utf-8")
    return Template(text).substitute({name: str(word) for name, word in words.items()})


def shares(points: int, count: int) -> list[float]:
    """The points of each of some functions, in quarters.

    The last one gets the remainder. Raises CannotBegin where there are too few points.
    """
    each = 4 * points // count / 4
    if not each:
        raise CannotBegin(
            f"{count} functions need more than {points} points: at least a quarter each"
        )
    return [each] * (count - 1) + [points - each * (count - 1)]


def refuse_exercise(name: str, day: str, stem: str, known: Surroundings) -> None:
    """Raise an error if there cannot be such an exercise.

    BadName for its name, NameTaken if there is one already, CannotBegin for the day.
    """
    if day not in known.stems:
        there = ", ".join(known.stems) or "none"
        raise CannotBegin(
            f"there is no day {day!r} (the days are: {there}); make it with: dojo new day {day}"
        )
    if Path(known.folder(day)).is_absolute():
        raise CannotBegin(
            f"the package of {day} is not in this repository but in {known.folder(day)}"
        )
    # The name itself.
    if not _EXERCISE.fullmatch(name) or keyword.iskeyword(name):
        rule = "use small letters, digits and single _ between them, and no keyword of Python, such as brightest_sprite"
        raise BadName(
            "an exercise", name, rule + ("; the number is added" if name[:1].isdigit() else "")
        )
    if len(name) > LONGEST or name in _DEVICES:
        why = (
            f"it is longer than {LONGEST} letters"
            if len(name) > LONGEST
            else "Windows reserves that name"
        )
        raise BadName("an exercise", name, why)
    if DAY.fullmatch(name):
        raise BadName("an exercise", name, "a file with that name is taken for a whole day")
    # What has that name already.
    if name in known.modules.get(day, ()):
        raise NameTaken(name, f"{known.folder(day)}/{name}")
    for other, stems in known.stems.items():
        for taken in stems:
            # With the same number it would be the same file name, by which a submission's exercise
            # is known.
            if taken == stem or (other == day and taken[3:] == name):
                raise NameTaken(name, f"{other} has an exercise {taken}")
    if stem[2] != "_":
        raise CannotBegin(
            f"{day} has 99 exercises already, and file names have room for two digits"
        )


def refuse_functions(functions: tuple[str, ...], known: Surroundings) -> None:
    """Raise BadName or NameTaken for the first function that cannot be called so."""
    for name in functions:
        if not _FUNCTION.fullmatch(name) or keyword.iskeyword(name) or keyword.issoftkeyword(name):
            raise BadName(
                "a function",
                name,
                "use letters, digits and single _ between them, and no keyword of Python",
            )
        if len(name) > LONGEST:
            raise BadName("a function", name, f"it is longer than {LONGEST} letters")
        if hasattr(builtins, name):
            raise BadName("a function", name, "Python has a built-in function of that name")
        if functions.count(name) > 1:
            raise NameTaken(name, "it is given twice")
        if name in known.functions:  # in a notebook, a function is known by its name alone
            raise NameTaken(name, f"{known.functions[name]} has a function of that name")


def refuse_title(title: str) -> None:
    """Raise BadName for a title that cannot stand in the texts as it is."""
    if not title.strip() or len(title) > 80 or not title.isprintable() or set(title) & set('"\\$'):
        raise BadName(
            "anything that has a title",
            title,
            'use one line of at most 80 letters, without ", \\ and $',
        )


def _bound(tree: ast.Module) -> Iterator[str]:
    """Every name that is bound anywhere in a file, each time that it is."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.arg(arg=name)
            ):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name


def write_new(root: Path, files: Mapping[str, str | None]) -> list[str]:
    """Write the files, and make the folders, whose text is None: all or nothing.

    Returns the paths of the files, in order. Raises NameTaken if a path exists, CannotBegin if
    something cannot be written.
    """
    # Nothing may be there but empty folders.
    for name, text in files.items():
        path = root / name
        if path.is_symlink() or (
            path.exists() and not (text is None and path.is_dir() and not any(path.iterdir()))
        ):
            raise NameTaken(name, "nothing was written")
    try:
        # What was made is removed again if the next thing cannot be.
        with contextlib.ExitStack() as undo:
            for name, text in files.items():
                path = root / name
                folder = path if text is None else path.parent
                for each in reversed((folder, *folder.parents)):
                    if not each.is_dir():
                        each.mkdir()
                        undo.callback(each.rmdir)
                if text is not None:
                    with path.open("x", encoding="utf-8", newline="\n") as file:
                        undo.callback(path.unlink)
                        file.write(text)
            undo.pop_all()
    except OSError as error:
        said = (
            f"cannot write {error.filename or root}: {error.strerror or error}; nothing was written"
        )
        raise CannotBegin(said) from None
    return [name for name, text in files.items() if text is not None]


# Shares as in a class in its first week.
SOLVED, WRONG = 0.62, 0.2  # of the exercises; the rest are still stubs
FORMS: Final = (("folder", 0.8), ("zip", 0.1), ("notebook", 0.1))
BROKEN: Final = 0.03
HOSTILE: Final = 0.01
# Not the exploits of the tests: what happens in a class that means no harm.
HARMFUL: Final = (
    "while True:\n    pass\n",
    "import os\n\nos._exit(0)\n",
    "import sys\n\nsys.exit(0)\n",
    "x = [0]\nwhile True:\n    x = x + x\n",
)


ATTACK: Final = re.compile(r"\bsleep\(|setattr\(|\bgc\.|_getframe|^torch\.[\w.]+ = ", re.M)


@dataclass(frozen=True)
class Made:
    """One submission: its name, its files and the form in which it is handed in."""

    name: str
    files: dict[str, bytes]
    form: str


@dataclass(frozen=True)
class Corpus:
    """What there is to choose from, by exercise."""

    stubs: dict[str, str]
    right: dict[str, list[str]]
    wrong: dict[str, list[str]]


def corpus(root: Path, day: str) -> Corpus:
    """The repository's stubs, references and tried solutions of a day.

    Raises BadClass where there are none to make a class from.
    """
    stubs = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((root / "exercises" / day).glob("*.py"))
    }
    tried = solutions(root / "tests" / day)
    if not stubs or not tried:
        raise BadClass(
            f"{root} has no exercises/{day} or no solutions in tests/{day} to make a class from"
        )
    right = {
        stem: [(root / "reference" / day / f"{stem}.py").read_text(encoding="utf-8")]
        for stem in stubs
    }
    wrong: dict[str, list[str]] = {stem: [] for stem in stubs}
    for one in tried:
        # A file with an import that must stand first cannot be put below another; an attack is no
        # honest mistake.
        if (
            one.exercise in stubs
            and "from __future__" not in one.source
            and not ATTACK.search(one.source)
        ):
            # Who answers one function of several has the others still as stubs; the last definition
            # counts.
            text = f"{_without_demo(stubs[one.exercise])}\n\n{one.source}"
            (wrong if one.wrong else right)[one.exercise].append(text)
    return Corpus(stubs, right, wrong)


def _without_demo(source: str) -> str:
    return source.partition('\nif __name__ == "__main__":')[0]


def sample(
    known: Corpus, students: int, seed: int, hostile: float = HOSTILE, broken: float = BROKEN
) -> Iterator[Made]:
    """The submissions of a class, one at a time; the same seed gives the same class."""
    width = len(str(students))
    for number in range(1, students + 1):
        generator = random.Random(f"{seed} {number}")
        name = f"student-{number:0{width}}"
        files = {f"{stem}.py": _answer(known, stem, generator).encode() for stem in known.stubs}
        chance = generator.random()
        if chance < hostile:
            files[generator.choice(sorted(files))] = generator.choice(HARMFUL).encode()
        elif chance < hostile + broken:
            victim = generator.choice(sorted(files))
            files[victim] = files[victim][: len(files[victim]) // 2] + b"\n)\n"
        # A name in each submission: no two are the same, as in a real class.
        first = next(iter(files))
        files[first] = f"# {name}\n".encode() + files[first]
        form = generator.choices([form for form, _ in FORMS], [share for _, share in FORMS])[0]
        yield Made(name, files, form)


def _answer(known: Corpus, stem: str, generator: random.Random) -> str:
    chance = generator.random()
    if chance < SOLVED:
        return generator.choice(known.right[stem])
    if chance < SOLVED + WRONG and known.wrong[stem]:
        return generator.choice(known.wrong[stem])
    return known.stubs[stem]


def hand_in(made: Made, folder: Path) -> Path:
    """Write a submission as its student would have handed it in; returns its path."""
    target = folder / (made.name + {"zip": ".zip", "notebook": ".ipynb"}.get(made.form, ""))
    if made.form == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in made.files.items():
                archive.writestr(zipfile.ZipInfo(f"{made.name}/{name}"), data)
    elif made.form == "notebook":
        target.write_bytes(_notebook(made))
    else:
        target.mkdir()
        for name, data in made.files.items():
            (target / name).write_bytes(data)
    return target


def _notebook(made: Made) -> bytes:
    """A notebook with a cell for each file, as bytes."""
    import nbformat

    cells = [nbformat.v4.new_markdown_cell(f"# {made.name}", id="title")]  # type: ignore[no-untyped-call]
    for number, data in enumerate(made.files.values()):
        source = _without_demo(data.decode(errors="replace"))
        cells.append(nbformat.v4.new_code_cell(source, id=f"cell-{number}"))  # type: ignore[no-untyped-call]
    text: str = nbformat.writes(nbformat.v4.new_notebook(cells=cells))  # type: ignore[no-untyped-call]
    return f"{text}\n".encode()
