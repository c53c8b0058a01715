"""Finds the days that are installed, their exercises, and the day that a file belongs to.

A day is a package whose modules are exercises. Those of gpudojo are the packages in `gpudojo.days`. Other distributions
register theirs by an entry point of the group `gpudojo.days`: the entry's name is the day, its value the package.

Nothing is imported to answer which days there are and which exercises they have: stems are read from the source. So
this module is cheap to ask in any project, and imports nothing but the standard library until a day is wanted.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from gpudojo.model.errors import BadDay
    from gpudojo.model.exercise import Exercise, Misconception

DAY: Final = re.compile(r"day([1-9][0-9]{0,2})")
GROUP: Final = "gpudojo.days"
BUILT_IN: Final = Path(__file__).resolve().parents[1] / "days"
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
        return self.package.startswith(f"{GROUP}.")

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """The module that declares each exercise, by the exercise's stem; a package counts as one module."""
        found = {}
        for path in sorted(self.folder.rglob("*.py")):
            stems = _STEM.findall(path.read_text(encoding="utf-8", errors="replace"))
            inside = path.relative_to(self.folder).with_suffix("").parts[0]
            if inside != "__init__":
                found.update(dict.fromkeys(stems, f"{self.package}.{inside}"))
        return found


@functools.cache
def registered_days() -> dict[str, Day]:
    """Every installed day by name, in the order of their numbers.

    A day of gpudojo cannot be replaced from outside; of two packages that register the same name, the first counts.
    """
    inside = (init.parent for init in BUILT_IN.glob("*/__init__.py"))
    found = {
        each.name: Day(each.name, f"{GROUP}.{each.name}", each)
        for each in inside
        if DAY.fullmatch(each.name)
    }
    for entry in sorted(_entry_points(), key=lambda entry: (entry.name, entry.value)):
        folder = _folder(entry.value)
        if entry.name not in found and DAY.fullmatch(entry.name) and folder is not None:
            requires = entry.dist.requires if entry.dist else None
            found[entry.name] = Day(entry.name, entry.value, folder, tuple(requires or ()))
    return dict(sorted(found.items(), key=lambda item: int(item[0][3:])))


def _entry_points() -> Iterable[EntryPoint]:
    """Those of our group. `importlib.metadata` takes longer to import than most of this package: it is not asked
    where no distribution names the group.
    """
    if not any(_may_register(place) for place in sys.path) and not _others_find():
        return ()
    import importlib.metadata

    return importlib.metadata.entry_points(group=GROUP)


def _others_find() -> bool:
    """Whether distributions are found otherwise than on Python's path."""
    others = (finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder)
    return any(hasattr(finder, "find_distributions") for finder in others)


def _may_register(place: str) -> bool:
    """Whether a place on Python's path has a distribution that names our group, or is something else than a folder."""
    for path in distribution_folders(place):
        try:
            if GROUP.encode() in (path / "entry_points.txt").read_bytes():
                return True
        except OSError:  # it has none
            continue
    return os.path.isfile(place)


def distribution_folders(place: str) -> list[Path]:
    """The folders in which the distributions at a place on Python's path describe themselves."""
    try:
        names = os.listdir(place or os.curdir)
    except OSError:
        return []
    return [
        Path(place, name)
        for name in names
        if name.lower().endswith((".dist-info", ".egg-info", "egg-info"))
    ]


def torch_version() -> str:
    """As `importlib.metadata.version` tells, which is asked where there is not one folder that tells it, too.

    Raises PackageNotFoundError."""
    for place in sys.path:
        found = [
            path for path in distribution_folders(place) if path.name.lower().startswith("torch-")
        ]
        if found:
            with (
                contextlib.suppress(OSError, ValueError, StopIteration),
                open(found[0] / "METADATA", encoding="utf-8") as file,
            ):
                if len(found) == 1:
                    return (
                        next(line for line in file if line.startswith("Version: "))
                        .partition(": ")[2]
                        .strip()
                    )
            break
    import importlib.metadata

    return importlib.metadata.version("torch")


def _folder(package: str) -> Path | None:
    """Where a package lies; only the outermost one is looked up, as a lookup imports all above the one it is for."""
    first, *rest = package.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    folders = (
        Path(place, *rest) for place in (spec.submodule_search_locations or () if spec else ())
    )
    return next((folder for folder in folders if (folder / "__init__.py").is_file()), None)


def day_names() -> tuple[str, ...]:
    """The names of the installed days, in the order of their numbers."""
    return tuple(registered_days())


def _import(name: str) -> ModuleType:
    """A module of a day; raises BadDay where an author's file cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        from gpudojo.model.errors import BadDay

        if isinstance(error, SyntaxError) and error.filename:
            raise BadDay(error.filename, error.lineno, error.msg) from error
        here = traceback.extract_tb(error.__traceback__)
        last = next(
            (frame for frame in reversed(here) if "importlib" not in frame.filename), here[-1]
        )
        raise BadDay(last.filename, last.lineno, f"{type(error).__name__}: {error}") from error


def _imported(name: str) -> Iterator[tuple[ModuleType, Exercise]]:
    """The exercises of a day, each with the module that declares it. Raises BadDay."""
    for module_name in dict.fromkeys(registered_days()[name].modules.values()):
        module = _import(module_name)
        exercise = _exercise_of(module, registered_days()[name])
        if exercise is not None:
            yield module, exercise


def _exercise_of(module: ModuleType, day: Day) -> Exercise | None:
    """The exercise that a module of a day declares, which is told where its hints are; None for no exercise."""
    from gpudojo.model.exercise import Exercise

    exercise = getattr(module, "exercise", None)
    if not isinstance(exercise, Exercise):
        return None
    exercise.hints_file = day.folder / HINTS_FOLDER / f"{exercise.stem}.toml"
    return exercise


def exercises_of(name: str) -> tuple[Exercise, ...]:
    """The exercises of a day, in order; raises BadDay for a file that cannot be imported.

    The error is kept, too. The fork server loads a day where its files can be read; a child that
    is to grade it, and cannot read them, raises the author's mistake and not its own.
    """
    loaded = _load_day(name)
    if isinstance(loaded, BaseException):
        raise loaded
    return loaded


@functools.cache
def _load_day(name: str) -> tuple[Exercise, ...] | BadDay:
    """The exercises of a day, or why they cannot be loaded."""
    from gpudojo.model.errors import BadDay

    try:
        exercises = [exercise for _, exercise in _imported(name)]
    except BadDay as error:
        return error
    return tuple(sorted(exercises, key=lambda exercise: exercise.stem))


def size_of_complete_day(name: str) -> tuple[int, float]:
    """How many exercises a complete day has, and how many points, as its package says."""
    package = _import(registered_days()[name].package)
    return int(getattr(package, "EXERCISES", 0)), float(getattr(package, "POINTS", 100))


def wrong_points(name: str) -> str | None:
    """A sentence where points do not add up: those of an exercise's checks, or those of a day with all exercises."""
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
    """The first line of its package's docstring, such as "Day 8: GPU acceleration and performance"."""
    lines = (
        (_import(registered_days()[name].package).__doc__ or f"Day {name[3:]}").strip().splitlines()
    )
    return lines[0].rstrip(". ")


@functools.cache
def misconceptions_of(name: str) -> Mapping[str, Misconception]:
    """The named mistakes of a day, by key, from the `misconceptions.toml` in its folder; raises BadDay."""
    return _mistakes(registered_days()[name].folder / "misconceptions.toml")


@functools.cache
def general_mistakes() -> Mapping[str, Misconception]:
    """The named mistakes that can be made in every exercise, by key."""
    return _mistakes(Path(__file__).with_name("mistakes.toml"))


def _mistakes(path: Path) -> Mapping[str, Misconception]:
    from gpudojo.model.errors import BadDay
    from gpudojo.model.exercise import Misconception

    def frozen(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {
            key: Misconception(**{name: frozen(value) for name, value in e.items()})
            for key, e in entries.items()
        }
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise BadDay(str(path), None, str(error)) from error


@functools.cache
def misconceptions() -> Mapping[str, Misconception]:
    """The named mistakes of all installed days, and the general ones, by key."""
    own = {
        key: known
        for name in reversed(day_names())
        for key, known in misconceptions_of(name).items()
    }
    return {**general_mistakes(), **own}


def source_files(name: str, exercise: Exercise) -> list[Path]:
    """The files that declare an exercise: its module, or those of its package, and then its hints."""
    for module, declared in _imported(name):
        if declared is exercise and module.__file__ is not None:
            path = Path(module.__file__)
            modules = sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]
            hints = exercise.hints_file
            return [*modules, hints] if hints is not None and hints.is_file() else modules
    return []


def day_of_file(path: Path) -> str | None:
    """The day that a file of this name belongs to; where several have such an exercise, the one its folder names."""
    found = [each.name for each in registered_days().values() if path.stem in each.modules]
    return next((name for name in found if name in path.parts), found[0] if found else None)


def exercise_for(path: Path) -> Exercise | None:
    """The exercise that a file belongs to, by its name. Of its day, only the exercise's own module is imported."""
    name = day_of_file(path)
    if name is None:
        return None
    day = registered_days()[name]
    return _exercise_of(_import(day.modules[path.stem]), day)


def day_of_exercise(exercise: Exercise) -> str | None:
    """The day that declares an exercise."""
    having = {
        each.name: each.modules[exercise.stem]
        for each in registered_days().values()
        if exercise.stem in each.modules
    }
    same = (
        name
        for name, module in having.items()
        if getattr(sys.modules.get(module), "exercise", None) is exercise
    )
    return next(same, next(iter(having), None))


def every_exercise() -> Iterator[tuple[str, Exercise]]:
    """All installed exercises, each with its day; this imports every day."""
    return ((name, exercise) for name in day_names() for exercise in exercises_of(name))


LESSONS_FOLDER: Final = "lessons"
HINTS_FOLDER: Final = "hints"
SETUP: Final = "setup"
_COMMENT: Final = re.compile(r"(?m)^<!-- .*? -->\n")
_ANSWER: Final = re.compile(r"<details><summary>Answer</summary>\s*(.*?)\s*</details>\n", re.S)
_FENCE: Final = re.compile(r"(?ms)^```python\n(.*?)^```\n")
_SNIPPET: Final = re.compile(
    r"(?ms)^<!-- run: (?P<name>\w+)(?P<options>[^\n]*?) -->\n```python\n(?P<code>.*?)^```\n"
    r"(?:```text\n(?P<recorded>.*?)^```\n)?"
)


@dataclass(frozen=True)
class Snippet:
    """Code of a lesson that is run: `<!-- run: NAME OPTIONS -->`, a Python block, then what was recorded.

    Those called `setup` are run before each of the others, and nothing is shown of them. The options are words such as
    `timeline`, `gpus=2` and `memory=64MiB`.
    """

    name: str
    options: dict[str, str]
    code: str
    recorded: str | None
    line: int  # of its first line of code in the lesson
    end: int  # where the code's block ends in the text
    after: int  # where what was recorded ends


def lesson_path(day: str, stem: str) -> Path | None:
    """The file of an exercise's lesson; None where it has none."""
    path = registered_days()[day].folder / LESSONS_FOLDER / f"{stem}.md"
    return path if path.is_file() else None


def lesson_of(exercise: Exercise, folded: bool = False) -> str | None:
    """The lesson of an exercise as Markdown; None where it has none.

    Without HTML, for a terminal: the answers stand at the end, below a line. With `folded`, each stands in `<details>`.
    """
    day = day_of_exercise(exercise)
    path = None if day is None else lesson_path(day, exercise.stem)
    return None if path is None else lesson_text(path.read_text(encoding="utf-8"), folded)


def lesson_text(source: str, folded: bool) -> str:
    """The text that students read: without the marks of snippets."""
    text = _COMMENT.sub("", source)
    if folded:  # with empty lines, which some readers of Markdown need beside HTML
        return _ANSWER.sub(r"\n<details><summary>Answer</summary>\n\n\1\n\n</details>\n", text)
    answers = [answer.strip() for answer in _ANSWER.findall(text)]
    if not answers:
        return text
    listed = "\n".join(f"{number}. {answer}" for number, answer in enumerate(answers, 1))
    return f"{_ANSWER.sub('', text).rstrip()}\n\n---\n\n## Answers\n\n{listed}\n"


def snippets(source: str) -> list[Snippet]:
    """The snippets of a lesson's source, in order."""
    found = []
    for match in _SNIPPET.finditer(source):
        words = (word.partition("=") for word in match["options"].split())
        options = {name: value for name, _, value in words}
        end = match.end("code") + len("```\n")
        line = source.count("\n", 0, match.start("code")) + 1
        found.append(
            Snippet(
                match["name"], options, match["code"], match["recorded"], line, end, match.end()
            )
        )
    return found


def lines_never_run(source: str) -> list[int]:
    """The lines of Python blocks in a lesson that no mark makes snippets."""
    marked = {snippet.line for snippet in snippets(source)}
    starts = (source.count("\n", 0, match.start(1)) + 1 for match in _FENCE.finditer(source))
    return [line for line in starts if line not in marked]
