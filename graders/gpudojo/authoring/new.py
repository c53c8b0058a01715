"""Makes the files of a new exercise or day."""

from __future__ import annotations

import ast
import builtins
import keyword
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Final

import gpudojo.days
from gpudojo.model.catalogue import DAY, day, days
from gpudojo.model.errors import BadName, CannotBegin, NameTaken
from gpudojo.release.stubs import stub_of

DAYS_FOLDER: Final = "graders/gpudojo/days"


def filled(skeleton: str, **words: object) -> str:
    """A text; a word that it has and is not given, is an error."""
    text = (Path(__file__).parent / "skeletons" / f"{skeleton}.txt").read_text(encoding="utf-8")
    return Template(text).substitute({name: str(word) for name, word in words.items()})


@dataclass(frozen=True)
class Surroundings:
    """Of each day, by name."""

    stems: Mapping[str, tuple[str, ...]]  # of exercises that are declared, or have a reference at least
    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the day's package
    functions: Mapping[str, str] = field(default_factory=dict)  # each function's exercise, of any day

    def next_number(self, day: str) -> int:
        numbers = [int(stem[:2]) for stem in self.stems.get(day, ()) if stem[:2].isdigit()]
        return max(numbers, default=0) + 1


def surroundings(root: Path) -> Surroundings:
    """What the repository has; it must be the one whose code runs here, or its days would not be known."""
    package = Path(gpudojo.days.__file__).resolve().parent
    if (root / DAYS_FOLDER).resolve() != package:
        raise CannotBegin(
            f"the gpudojo that runs here is in {package.parents[2]}, not in {root}; go there and use python -m gpudojo"
        )
    stems: dict[str, tuple[str, ...]] = {}
    modules: dict[str, frozenset[str]] = {}
    functions: dict[str, str] = {}
    for name in days():
        written = {path.stem for path in (root / "reference" / name).glob("[0-9][0-9]_*.py")}
        stems[name] = tuple(sorted(written | {exercise.stem for exercise in day(name)}))
        modules[name] = frozenset(module.name for module in pkgutil.iter_modules([str(package / name)]))
        functions |= {function.name: exercise.stem for exercise in day(name) for function in exercise.functions}
    return Surroundings(stems, modules, functions)


LONGEST: Final = 40  # as a file name, and so that a line with two of them is not too long
_EXERCISE: Final = re.compile(r"[a-z](?:_?[a-z0-9])*")
_FUNCTION: Final = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*")
# A file of such a name cannot be made on Windows, whatever its suffix.
_DEVICES: Final = {"con", "prn", "aux", "nul", *(f"{word}{digit}" for word in ("com", "lpt") for digit in range(10))}


def refuse_day(name: str, known: Surroundings) -> None:
    if not DAY.fullmatch(name):
        raise BadName("a day", name, "it is called day and a number, such as day9")
    if name in known.stems:
        raise NameTaken(name, f"it has {len(known.stems[name])} exercises; add to it with: dojo new exercise {name} …")


def refuse_exercise(name: str, day: str, stem: str, known: Surroundings) -> None:
    if day not in known.stems:
        there = ", ".join(known.stems) or "none"
        raise CannotBegin(f"there is no day {day!r} (the days are: {there}); begin it with: dojo new day {day}")
    if not _EXERCISE.fullmatch(name) or keyword.iskeyword(name):
        rule = "small letters, digits and single _ between them, no word of Python's own, such as brightest_sprite"
        raise BadName("an exercise", name, rule + ("; its number comes by itself" if name[:1].isdigit() else ""))
    if len(name) > LONGEST or name in _DEVICES:
        why = f"it is longer than {LONGEST} letters" if len(name) > LONGEST else "Windows keeps that name for itself"
        raise BadName("an exercise", name, why)
    if DAY.fullmatch(name):
        raise BadName("an exercise", name, "a file called so is taken for a whole day")
    if name in known.modules.get(day, ()):
        raise NameTaken(name, f"{DAYS_FOLDER}/{day}/{name}")
    for other, stems in known.stems.items():
        for taken in stems:
            # With the same number it would be the same file name, by which a submission's exercise is known.
            if taken == stem or (other == day and taken[3:] == name):
                raise NameTaken(name, f"{other} has an exercise {taken}")
    if stem[2] != "_":
        raise CannotBegin(f"{day} has 99 exercises, which is all that two digits can count")


def refuse_functions(functions: tuple[str, ...], known: Surroundings) -> None:
    if not functions:
        raise CannotBegin("an exercise has one function at least; name them like this: --functions first,second")
    for name in functions:
        if not _FUNCTION.fullmatch(name) or keyword.iskeyword(name) or keyword.issoftkeyword(name):
            rule = "letters, digits and single _ between them, no word of Python's own"
            raise BadName("a function", name, rule)
        if len(name) > LONGEST:
            raise BadName("a function", name, f"it is longer than {LONGEST} letters")
        if hasattr(builtins, name):
            raise BadName("a function", name, "Python has one of its own that is called so")
        if functions.count(name) > 1:
            raise NameTaken(name, "it is given twice")
        if name in known.functions:  # in a notebook, a function is known by its name alone
            raise NameTaken(name, f"{known.functions[name]} has a function of that name")


def refuse_title(title: str) -> None:
    """It stands in texts of Python, as it is."""
    if not title.strip() or len(title) > 80 or not title.isprintable() or set(title) & set('"\\$'):
        rule = 'one line of at most 80 letters, without ", \\ and $'
        raise BadName("anything that has a title", title, rule)


def plant(root: Path, files: Mapping[str, str | None]) -> list[str]:
    """Write the files, and make the folders, whose text is None; gives what was made, in order."""
    for name, text in files.items():
        path = root / name
        if path.is_symlink() or (path.exists() and not (text is None and path.is_dir() and not any(path.iterdir()))):
            raise NameTaken(name, "nothing was written")
    made: list[Path] = []
    try:
        for name, text in files.items():
            path = root / name
            _make_folders(path if text is None else path.parent, made)
            if text is not None:
                with path.open("x", encoding="utf-8", newline="\n") as file:
                    made.append(path)
                    file.write(text)
    except BaseException as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            said = f"cannot write {error.filename or root}: {error.strerror or error}; nothing was written"
            raise CannotBegin(said) from None
        raise
    return [name for name, text in files.items() if text is not None]


def _make_folders(folder: Path, made: list[Path]) -> None:
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir()
            made.append(each)


WIDTH: Final = 120
RUNS: Final = 0.5  # what it is worth that a function runs at all


@dataclass(frozen=True)
class Plan:
    """What the author wants."""

    day: str
    name: str
    functions: tuple[str, ...] = ()  # none: one, which is called as the exercise is
    points: int = 5
    title: str | None = None


def exercise_files(plan: Plan, known: Surroundings) -> dict[str, str | None]:
    """The texts, by path; or a sentence why there cannot be such an exercise."""
    stem = f"{known.next_number(plan.day):02}_{plan.name}"
    functions = plan.functions or (plan.name,)
    title = plan.name.replace("_", " ").capitalize() if plan.title is None else plan.title.strip().rstrip(".")
    refuse_exercise(plan.name, plan.day, stem, known)
    refuse_functions(functions, known)
    refuse_title(title)
    words = {"day": plan.day, "name": plan.name, "stem": stem, "number": stem[:2], "title": title}
    reference = _reference(functions, words)
    grader = f"{DAYS_FOLDER}/{plan.day}/{plan.name}"
    files = {
        f"reference/{plan.day}/{stem}.py": reference,
        f"exercises/{plan.day}/{stem}.py": stub_of(reference),
        f"{grader}/functions.py": filled("functions", **words, points=plan.points)
        + "".join(filled("function", function=function) for function in functions),
    }
    modules = []
    for function, points in zip(functions, shares(plan.points, len(functions)), strict=True):
        # One function has all to itself; of several, each has modules of its own, in which no two checks clash.
        suffix = "" if len(functions) == 1 else f"_{function}"
        worth = {"runs": f"{min(RUNS, points / 2):g}", "rest": f"{points - min(RUNS, points / 2):g}"}
        for kind in ("probes", "checks"):
            files[f"{grader}/{kind}{suffix}.py"] = filled(kind, **words, **worth, function=function)
            modules.append(f"{kind}{suffix}")
        examples = f"tests/{plan.day}"
        files[f"{examples}/right/{stem}/{function}_plain.py"] = filled("right", function=function)
        for mistake in ("raises", "nothing"):
            text = filled(f"wrong_{mistake}", function=function)
            files[f"{examples}/wrong/{stem}/{function}_{mistake}.py"] = text
    files[f"{grader}/__init__.py"] = _package(modules, words)
    _refuse_clashes(files, functions)
    return dict(files)


def shares(points: int, count: int) -> list[float]:
    """The points of each of some functions, in quarters, the last one's a little more."""
    each = 4 * points // count / 4
    if not each:
        raise CannotBegin(f"{count} functions need more points than {points}: a quarter each, at least")
    return [each] * (count - 1) + [points - each * (count - 1)]


def _reference(functions: Iterable[str], words: dict[str, str]) -> str:
    tasks = "".join(filled("task", function=function) for function in functions)
    demos = "".join(filled("demo_of_task", function=function) for function in functions)
    return filled("reference", **words) + tasks + filled("demo") + demos


def _package(modules: list[str], words: dict[str, str]) -> str:
    home = f"gpudojo.days.{words['day']}.{words['name']}"
    exported = [f'"{name}"' for name in sorted([*modules, "exercise"], key=_natural)]
    imported = _list(f"from {home} import ", sorted(modules, key=_natural), "", "", "()")
    return (
        filled("package", **words)
        + f"{imported}\nfrom {home}.functions import exercise\n\n"
        + f"{_list('__all__ = ', exported, '[', ']', '[]')}\n"
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """An order in which 10 comes after 2, as ruff has it."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _list(before: str, names: list[str], opening: str, closing: str, brackets: str) -> str:
    """On one line where it fits, else one name a line."""
    line = f"{before}{opening}{', '.join(names)}{closing}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{before}{brackets[0]}", *(f"    {name}," for name in names), brackets[1]])


def _refuse_clashes(files: dict[str, str], functions: tuple[str, ...]) -> None:
    """A function called as something that its own skeleton has: `torch`, `sprites`, `exercise`."""
    for text in files.values():
        bound = list(_bound(ast.parse(text)))
        for function in functions:
            if bound.count(function) > 1:
                raise BadName("a function", function, "the files around it need that name for something else")


def _bound(tree: ast.Module) -> Iterator[str]:
    """Every name that is bound anywhere in a file, each time that it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


def day_files(
    name: str, known: Surroundings, title: str | None = None, exercises: int = 12, points: int = 100
) -> dict[str, str | None]:
    """Their texts, by path; None is a folder."""
    refuse_day(name, known)
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
        f"tests/{name}/test_solutions.py": filled("test_solutions", day=name),
        f"tests/{name}/right": None,
        f"tests/{name}/wrong": None,
    }
