"""Makes a student's repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.catalogue import day_title, exercises_of, registered_days
from gpudojo.model.errors import BadMarkers, CannotRelease
from gpudojo.model.exercise import Exercise
from gpudojo.model.lessons import LESSONS_FOLDER, lesson_of
from gpudojo.model.results_file import count_and_noun
from gpudojo.release import leaks, recording
from gpudojo.release.notebooks import notebooks_of_day
from gpudojo.release.stubs import stubs_of_day
from gpudojo.release.wheel import PROJECT, build_wheel, write_files

README: Final = Path(__file__).with_name("README.student.md")
GITIGNORE: Final = ".venv/\n__pycache__/\n.pytest_cache/\n.ipynb_checkpoints/\n.DS_Store\n"
CONFTEST: Final = """\
\"""Adds the short options of gpudojo: --bench, --hints, --seed, --timeline, --traces.\"""

from gpudojo.pytest_plugin import short_options as pytest_addoption  # noqa: F401
"""
PYTEST_INI: Final = "[pytest]\nminversion = 8.0\ntestpaths = exercises\n"
VSCODE_SETTINGS: Final = {
    "python.testing.pytestEnabled": True,
    "python.testing.unittestEnabled": False,
    "python.testing.pytestArgs": ["exercises"],
    "python.testing.autoTestDiscoverOnSaveEnabled": True,
    "files.exclude": {"**/__pycache__": True, "**/.pytest_cache": True},
}
MOST_LEAKS: Final = 3  # that a refusal names
MOST_NAMES: Final = 3  # of files in a target that is not empty

# What a platform adds last, because it holds hashes of the other files: (those files, the day)
# to files by path.
Seal = Callable[[Mapping[str, bytes], str], dict[str, bytes]]


def write_release(
    root: Path,
    day: str,
    target: Path,
    seals: Iterable[Seal] = (),
    seeds: Sequence[int] = PUBLIC_SEEDS,
) -> dict[str, bytes]:
    """Write the repository for a day into a new folder, and return its files by path.

    Runs the references for these seeds. Raises CannotRelease, also where students would get a
    solution; nothing is written then.
    """
    require_free_target(target)  # before the minutes that the rest may take
    reference = root / "reference" / day
    exercises = stubs_for_students(reference, day)
    evidence = recording.record_evidence(reference, day, seeds)
    files = repository_files(root, day, exercises, evidence, seals)
    found = leaks.find_leaks(files, reference)
    if found:
        shown = "; ".join(map(str, found[:MOST_LEAKS]))
        more = len(found) - MOST_LEAKS
        if more > 0:
            shown += f"; and {more} more"
        raise CannotRelease(f"nothing was written, because students would get a solution: {shown}")
    write_repository(files, target)
    return files


def repository_files(
    root: Path, day: str, exercises: dict[str, bytes], evidence: bytes, seals: Iterable[Seal] = ()
) -> dict[str, bytes]:
    """Return every file by its path, relative to the student's repository.

    `exercises` are the stubs by path. Raises CannotRelease where two files have the same path, or
    the wheel cannot be built.
    """
    wheel_name, wheel_data = build_wheel(day, evidence)
    files = {
        f"vendor/{wheel_name}": wheel_data,
        **exercises,
        **notebooks_of_day(root, day),
        **pages_and_settings(day, wheel_name),
    }
    for seal in seals:
        added = seal(files, day)
        twice = sorted(added.keys() & files.keys())
        if twice:
            raise CannotRelease(
                f"{twice[0]} would be written twice, the second time by {seal.__module__}"
            )
        files |= added
    return files


def stubs_for_students(reference: Path, day: str) -> dict[str, bytes]:
    """Return the stubs of a day by path; raises CannotRelease where one is missing or solved."""
    if not reference.is_dir():
        raise CannotRelease(f"there is no folder {reference} to make stubs from")
    try:
        stubs = stubs_of_day(reference)
    except BadMarkers as error:
        raise CannotRelease(f"the markers of a solution do not match: {error}") from None
    for exercise in exercises_of(day):
        _require_open_stub(exercise, reference / f"{exercise.stem}.py", stubs)
    files = {}
    for name, text in stubs.items():
        files[f"exercises/{day}/{name}"] = text.encode()
    return files


def _require_open_stub(exercise: Exercise, path: Path, stubs: Mapping[str, str]) -> None:
    """Raise CannotRelease where a function of an exercise is not left to students.

    `path` is that of the reference, `stubs` are the texts of all stubs by file name.
    """
    from gpudojo.grading.bindings import find_bindings
    from gpudojo.grading.sources import parse_source

    if path.name not in stubs:
        raise CannotRelease(f"{path} is missing")
    stub = stubs[path.name]
    if stub == path.read_text(encoding="utf-8"):
        raise CannotRelease(f"{path} has no solution markers: students would get the solution")
    open_names = set()
    for binding in find_bindings(parse_source(stub, path)):
        if binding.is_stub:
            open_names.add(binding.name)
    for function in exercise.functions:
        if not function.is_value and function.name not in open_names:
            raise CannotRelease(
                f"{path}: there are no solution markers around the solution of `{function.name}`"
            )


def require_free_target(target: Path) -> None:
    """Raise CannotRelease where the target cannot become a new folder."""
    advice = "name a folder that does not exist yet"
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CannotRelease(f"{target} already exists and is not a folder; {advice}")
    if not target.is_dir():
        return
    names = sorted(path.name for path in target.iterdir())
    if names:
        few = ", ".join(names[:MOST_NAMES])
        if len(names) > MOST_NAMES:
            few += ", …"
        raise CannotRelease(f"{target} is not empty (it has {few}); {advice}")


def write_repository(files: Mapping[str, bytes], target: Path) -> None:
    """Write all files into a new folder, or none; raises CannotRelease."""
    target = Path(os.path.abspath(target))
    require_free_target(target)
    for name in files:
        _require_path_inside(name)
    made_folders: list[Path] = []
    beside: Path | None = None  # everything is written there first
    try:
        for folder in reversed(target.parents):
            if not folder.exists():
                folder.mkdir()
                made_folders.append(folder)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        beside.chmod(0o755)  # as a folder usually is; a temporary one is its owner's alone
        write_files(beside, files)
        if target.is_dir():
            target.rmdir()
        beside.rename(target)
    except OSError as error:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
        for folder in reversed(made_folders):
            folder.rmdir()
        reason = error.strerror or error
        raise CannotRelease(f"cannot write {target}: {reason}") from None


def _require_path_inside(name: str) -> None:
    """Raise CannotRelease where a file would not be inside the student's repository."""
    parts = PurePosixPath(name).parts
    is_outside = name.startswith("/") or ".." in parts
    if not parts or is_outside or "\\" in name:
        raise CannotRelease(f"{name!r} is not a path inside a student's repository")


def pages_and_settings(day: str, wheel: str) -> dict[str, bytes]:
    """Return README, requirements and settings by path; `wheel` is the one in `vendor`."""
    texts = {
        "README.md": readme_text(day),
        "requirements.txt": requirements_text(day, wheel),
        "conftest.py": CONFTEST,
        "pytest.ini": PYTEST_INI,
        ".gitignore": GITIGNORE,
        ".vscode/settings.json": f"{json.dumps(VSCODE_SETTINGS, indent=4)}\n",
        **lessons_of_day(day),
    }
    return {path: text.encode() for path, text in texts.items()}


def lessons_of_day(day: str) -> dict[str, str]:
    """Return the texts of a day's lessons, by their paths in the student's repository."""
    lessons = {}
    for exercise in exercises_of(day):
        text = lesson_of(exercise, folded=True)
        if text is not None:
            lessons[_lesson_page(day, exercise)] = text
    return lessons


def _lesson_page(day: str, exercise: Exercise) -> str:
    """Return the path of an exercise's lesson in a student's repository."""
    return f"{LESSONS_FOLDER}/{day}/{exercise.stem}.md"


def readme_text(day: str) -> str:
    """Return the README of a student's repository, with a table of the exercises."""
    exercises = exercises_of(day)
    lessons = lessons_of_day(day)
    rows = []
    for exercise in exercises:
        topic = exercise.title
        lesson = _lesson_page(day, exercise)
        if lesson in lessons:
            topic = f"[{topic}]({lesson})"
        rows.append(f"| `{exercise.stem}.py` | {exercise.points:g} | {topic} |")
    python = _project_table()["requires-python"]
    torch = _pinned_versions()["torch"]
    first = exercises[0]
    points = sum(exercise.points for exercise in exercises)
    *first_seeds, last_seed = map(str, PUBLIC_SEEDS)
    template = README.read_text(encoding="utf-8")
    return template.format(
        title=day_title(day),
        day=day,
        python=python.lstrip(">="),
        torch=f"torch=={torch}",
        first=first.stem,
        function=first.functions[0].name,
        exercises=count_and_noun(len(exercises), "exercise"),
        points=f"{points:g}",
        second=PUBLIC_SEEDS[1],
        seeds=f"{', '.join(first_seeds)} and {last_seed}",
        table="\n".join(rows),
    )


def _pinned_versions() -> dict[str, str]:
    """Return the versions in constraints.txt, by package."""
    path = PROJECT / "constraints.txt"
    constraints = path.read_text(encoding="utf-8")
    pins = re.findall(r"(?m)^([\w.-]+)==(\S+)$", constraints)
    return dict(pins)


def requirements_text(day: str, wheel: str) -> str:
    """Return the lines of requirements.txt: what grader and day need, and the grader's wheel.

    Each is in the version that a course runs on, where constraints.txt pins it.
    """
    pins = _pinned_versions()
    project = _project_table()
    needed = [*project["dependencies"], *project["optional-dependencies"].get("watch", [])]
    for requirement in registered_days()[day].requires:
        if not re.match(r"gpudojo\b|.*;.*\bextra\b", requirement):
            needed.append(requirement)
    lines = [_pinned_requirement(requirement, pins) for requirement in needed]
    lines.append(f"./vendor/{wheel}\n")
    return "\n".join(lines)


def _pinned_requirement(requirement: str, pins: Mapping[str, str]) -> str:
    """Return a requirement in the pinned version of its package, if there is a pin.

    What stands behind a semicolon, such as the systems that need it, stays.
    """
    asked, semicolon, marker = requirement.partition(";")
    line = asked.strip()
    (package,) = re.findall(r"^[\w.-]+", line)
    if package in pins:
        line = f"{package}=={pins[package]}"
    if semicolon:
        line += f"; {marker.strip()}"
    return line


def _project_table() -> dict[str, Any]:
    """Return what gpudojo's pyproject.toml says of the project."""
    path = PROJECT / "pyproject.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    table: dict[str, Any] = content["project"]
    return table
