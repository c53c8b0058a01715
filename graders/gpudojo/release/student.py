"""Makes a student's repository, and notebooks from reference files."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gpudojo.model import catalogue
from gpudojo.model.catalogue import day_title, exercises_of, registered_days
from gpudojo.model.errors import BadMarkers, CannotRelease
from gpudojo.model.lessons import LESSONS_FOLDER, lesson_of, lesson_path, lesson_text
from gpudojo.release import leaks, manifest
from gpudojo.release.manifest import SEEDS
from gpudojo.release.stubs import Section, Task, sections, stubs, task_text, title_text
from gpudojo.release.wheel import PROJECT, wheel, write_files

NOTEBOOKS: Final = "notebooks"
METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Run before everything else, by Jupyter, by Colab, and by pytest and `dojo grade`, where nothing is missing.
OPENING: Final = Path(__file__).with_name("opening_cell.txt").read_text(encoding="utf-8")
EVERYTHING: Final = "All tasks at once, and your points. Save the notebook before you hand it in."
Cell = dict[str, Any]


def of_day(root: Path, day: str, package: str | None = None) -> dict[str, bytes]:
    """Every notebook of a day, by its path in the repository; `package` is what pip installs where no wheel is."""
    made = {path.stem: sections(path) for path in sorted((root / "reference" / day).glob("*.py"))}
    names = {stem: f"{NOTEBOOKS}/{day}/{stem}.ipynb" for stem in made}
    found = {
        names[stem]: _notebook(_exercise(day, stem, found, package)) for stem, found in made.items()
    }
    if made:
        found[f"{NOTEBOOKS}/{day}/{day}.ipynb"] = _notebook(_whole(day, made, package))
    return found


def write_notebooks(folder: Path, made: dict[str, bytes]) -> list[Path]:
    """Write the notebooks below a folder; gives those that changed."""
    there = {name: path.read_bytes() for name in made if (path := folder / name).is_file()}
    changed = {name: data for name, data in made.items() if there.get(name) != data}
    write_files(folder, changed)
    return [folder / name for name in changed]


def _exercise(day: str, stem: str, found: list[Section], package: str | None) -> Iterator[Cell]:
    prefix = _prefix(stem)
    title, *rest = found
    yield _markdown(f"{prefix}-title", title_text(title.text, stem))
    yield _code(f"{prefix}-opening", OPENING.format(package=package))
    yield from _body(day, stem, rest)


def _whole(day: str, made: dict[str, list[Section]], package: str | None) -> Iterator[Cell]:
    lines = [f"# {catalogue.day_title(day)}", "", "| exercise | points |", "| --- | ---: |"]
    points = {exercise.stem: exercise.points for exercise in catalogue.exercises_of(day)}
    for stem, (first, *_) in made.items():
        heading = first.text.splitlines()[0].removesuffix(".")
        lines.append(f"| {_prefix(stem)} {heading} | {points.get(stem, '')} |")
    yield _markdown(f"{day}-title", "\n".join(lines))
    yield _code(f"{day}-opening", OPENING.format(package=package))
    for stem, (first, *rest) in made.items():
        yield _markdown(f"{_prefix(stem)}-title", title_text(first.text, stem, level=2))
        yield from _body(day, stem, rest)
    yield _markdown(f"{day}-everything-text", EVERYTHING)
    yield _code(f"{day}-everything", "check()")


def _body(day: str, stem: str, rest: list[Section]) -> Iterator[Cell]:
    prefix = _prefix(stem)
    given = 0
    if path := lesson_path(day, stem):
        text = lesson_text(path.read_text(encoding="utf-8"), folded=True).partition("\n")[
            2
        ]  # the title is there
        yield _markdown(f"{prefix}-lesson", re.sub(r"(?m)^## ", "### ", text))
    for section in rest:
        if isinstance(section, Task):
            yield _markdown(f"{prefix}-{section.name}-text", task_text(section))
            yield _code(f"{prefix}-{section.name}", section.code)
            yield _code(f"{prefix}-{section.name}-check", f"check({section.name})")
        elif section.demo:
            yield _code(f"{prefix}-demo", section.code)
        else:
            given += 1
            yield _code(f"{prefix}-given-{given}", section.code)


def _prefix(stem: str) -> str:
    number = stem.partition("_")[0]
    return number if number.isdecimal() else stem


def _markdown(name: str, text: str) -> Cell:
    source = text.strip("\n").splitlines(keepends=True)
    return {"cell_type": "markdown", "id": name[:64], "metadata": {}, "source": source}


def _code(name: str, text: str) -> Cell:
    return _markdown(name, text) | {"cell_type": "code", "execution_count": None, "outputs": []}


def _notebook(cells: Iterator[Cell]) -> bytes:
    content = {"cells": list(cells), "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


# What a platform adds last, because it holds hashes of the other files: (those files, the day) to files by path.
Seal = Callable[[Mapping[str, bytes], str], dict[str, bytes]]


def refuse_if_taken(target: Path) -> None:
    """A sentence where the target cannot become a new folder."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CannotRelease(
            f"{target} already exists and is not a folder; name a folder that does not exist yet"
        )
    if target.is_dir():
        there = sorted(path.name for path in target.iterdir())
        if there:
            few = ", ".join(there[:3]) + (", …" if len(there) > 3 else "")
            raise CannotRelease(
                f"{target} is not empty (it has {few}); name a folder that does not exist yet"
            )


def write(files: Mapping[str, bytes], target: Path) -> None:
    """All files, or none."""
    target = Path(os.path.abspath(target))
    refuse_if_taken(target)
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name:
            raise CannotRelease(f"{name!r} is not a path inside a student's repository")
    made: list[Path] = []
    beside: Path | None = None
    try:
        for folder in reversed((target.parent, *target.parent.parents)):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        beside.chmod(0o755)  # as a folder usually is; a temporary one is its owner's alone
        write_files(beside, files)
        if target.is_dir():
            target.rmdir()
        beside.rename(target)
    except OSError as error:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
        for folder in reversed(made):
            folder.rmdir()
        raise CannotRelease(f"cannot write {target}: {error.strerror or error}") from None


README: Final = Path(__file__).with_name("README.student.md")
IGNORED: Final = ".venv/\n__pycache__/\n.pytest_cache/\n.ipynb_checkpoints/\n.DS_Store\n"
CONFTEST: Final = """\
\"""Adds the short options of gpudojo: --bench, --hints, --seed, --timeline, --traces.\"""

from gpudojo.pytest_plugin import short_options as pytest_addoption  # noqa: F401
"""
PYTEST: Final = "[pytest]\nminversion = 8.0\ntestpaths = exercises\n"
SETTINGS: Final = {
    "python.testing.pytestEnabled": True,
    "python.testing.unittestEnabled": False,
    "python.testing.pytestArgs": ["exercises"],
    "python.testing.autoTestDiscoverOnSaveEnabled": True,
    "files.exclude": {"**/__pycache__": True, "**/.pytest_cache": True},
}


def pages(name: str, wheel: str) -> dict[str, bytes]:
    """README, requirements and settings by path; `wheel` is the name of the one in `vendor`."""
    texts = {
        "README.md": readme(name),
        "requirements.txt": requirements(name, wheel),
        "conftest.py": CONFTEST,
        "pytest.ini": PYTEST,
        ".gitignore": IGNORED,
        ".vscode/settings.json": f"{json.dumps(SETTINGS, indent=4)}\n",
    }
    return {path: text.encode() for path, text in {**texts, **lessons(name)}.items()}


def lessons(name: str) -> dict[str, str]:
    """The lessons of a day, by path."""
    texts = {
        f"{LESSONS_FOLDER}/{name}/{each.stem}.md": lesson_of(each, folded=True)
        for each in exercises_of(name)
    }
    return {path: text for path, text in texts.items() if text is not None}


def readme(name: str) -> str:
    exercises = exercises_of(name)
    *most, last = map(str, SEEDS)
    (torch,) = re.findall(
        r"(?m)^torch==\S+$", (PROJECT / "constraints.txt").read_text(encoding="utf-8")
    )
    pages = {Path(path).stem: f"]({path})" for path in lessons(name)}
    topics = {
        e.stem: f"[{e.title}{pages[e.stem]}" if e.stem in pages else e.title for e in exercises
    }
    rows = [f"| `{e.stem}.py` | {e.points:g} | {topics[e.stem]} |" for e in exercises]
    return README.read_text(encoding="utf-8").format(
        title=day_title(name),
        day=name,
        python=_project()["requires-python"].lstrip(">="),
        torch=torch,
        first=exercises[0].stem,
        function=exercises[0].functions[0].name,
        exercises=f"{len(exercises)} exercise{'s' * (len(exercises) != 1)}",
        points=f"{sum(e.points for e in exercises):g}",
        second=SEEDS[1],
        seeds=f"{', '.join(most)} and {last}",
        table="\n".join(rows),
    )


def requirements(name: str, wheel: str) -> str:
    """The grader, and what it and the day's own distribution need, in the versions that a course runs on."""
    text = (PROJECT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", text))
    lines: list[str] = []
    more = [
        each
        for each in registered_days()[name].requires
        if not re.match(r"gpudojo\b|.*;.*\bextra\b", each)
    ]
    watch = _project()["optional-dependencies"].get("watch", [])
    for dependency in [*_project()["dependencies"], *watch, *more]:
        asked, semicolon, marker = dependency.partition(";")
        (package,) = re.findall(r"^[\w.-]+", asked)
        wanted = f"{package}=={pins[package]}" if package in pins else asked.strip()
        lines.append(f"{wanted}; {marker.strip()}" if semicolon else wanted)
    return "\n".join([*lines, f"./vendor/{wheel}", ""])


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return found


SHOWN = 3  # how many leaks a refusal names


def release(
    root: Path,
    name: str,
    target: Path,
    seals: Iterable[Seal] = (),
    seeds: Sequence[int] = manifest.SEEDS,
) -> dict[str, bytes]:
    """Write the repository for a day into a new folder; gives its files by path. Raises CannotRelease."""
    refuse_if_taken(target)  # before the minutes that the rest may take
    reference = root / "reference" / name
    exercises = open_stubs(reference, name)
    evidence = manifest.recorded(reference, name, seeds)
    files = repository(root, name, exercises, evidence, seals)
    if found := leaks.leaks(files, reference):
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        shown = "; ".join(map(str, found[:SHOWN]))
        raise CannotRelease(
            f"nothing was written, because students would get a solution: {shown}{more}"
        )
    write(files, target)
    return files


def repository(
    root: Path, name: str, exercises: dict[str, bytes], evidence: bytes, seals: Iterable[Seal] = ()
) -> dict[str, bytes]:
    """Every file by its path, relative to the student's repository."""
    wheel_name, wheel_data = wheel(name, evidence)
    files = {
        f"vendor/{wheel_name}": wheel_data,
        **exercises,
        **of_day(root, name),
        **pages(name, wheel_name),
    }
    for seal in seals:
        added = seal(files, name)
        if twice := sorted(added.keys() & files.keys()):
            raise CannotRelease(
                f"{twice[0]} would be written twice, the second time by {seal.__module__}"
            )
        files |= added
    return files


def open_stubs(reference: Path, name: str) -> dict[str, bytes]:
    """The stubs of a day by path; a sentence where one is missing or already solved."""
    from gpudojo.grading.load import bindings, parse_source

    if not reference.is_dir():
        raise CannotRelease(f"there is no folder {reference} to make stubs from")
    try:
        made = stubs(reference)
    except BadMarkers as error:
        raise CannotRelease(f"the markers of a solution do not match: {error}") from None
    for exercise in exercises_of(name):
        file = f"{exercise.stem}.py"
        if file not in made:
            raise CannotRelease(f"{reference / file} is missing")
        if made[file] == (reference / file).read_text(encoding="utf-8"):
            raise CannotRelease(
                f"{reference / file} has no solution markers: students would get the solution"
            )
        todo = {
            function: stub
            for function, _, stub in bindings(parse_source(made[file], reference / file))
        }
        for function in exercise.functions:
            if not function.is_value and not todo.get(function.name):
                said = f"{reference / file}: there are no solution markers around the solution of `{function.name}`"
                raise CannotRelease(said)
    return {f"exercises/{name}/{file}": text.encode() for file, text in made.items()}
