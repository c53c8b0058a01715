"""Makes a student's repository."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from gpudojo.classes.course_rules import CourseRules, Worth, find_exercise
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.catalogue import day_title, exercises_of, registered_days
from gpudojo.model.errors import BadMarkers, CannotRelease, suggest_name
from gpudojo.model.exercise import Exercise
from gpudojo.model.lessons import LESSONS_FOLDER, lesson_of
from gpudojo.model.results_file import count_and_noun, format_points
from gpudojo.pytest_plugin import POINTS_NOTE
from gpudojo.release import leaks, recording
from gpudojo.release.notebooks import notebooks_of_day
from gpudojo.release.stubs import stubs_of_day
from gpudojo.release.wheel import build_wheel, find_distribution, write_files
from gpudojo.submissions.own_output import MARK, mark_of_release

README: Final = Path(__file__).with_name("README.student.md")
GITIGNORE: Final = f".venv/\n__pycache__/\n.pytest_cache/\n.ipynb_checkpoints/\n.DS_Store\n{MARK}\n"
CONFTEST: Final = """\
\"""Adds the short options of gpudojo: --bench, --hints, --seed, --timeline, --traces.\"""

import importlib.util
import sys

if importlib.util.find_spec("gpudojo") is None:
    sys.exit(
        f"gpudojo is not installed in this Python ({sys.executable}). Switch on your environment "
        "(README.md), or install it: pip install -r requirements.txt"
    )

from gpudojo.pytest_plugin import short_options as pytest_addoption  # noqa: E402, F401
"""
PYTEST_INI: Final = "[pytest]\nminversion = 8.0\ntestpaths = exercises\n"
ABOUT_LESSONS: Final = (
    "Where a topic is a link, it leads to a lesson of one page. `dojo lesson` lists them, "
    "`dojo lesson {number}` shows one.\n\n"
)
OTHER_POINTS: Final = "Your course counts each exercise with other points: see README.md."
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
    course: CourseRules | None = None,
    left_out: Collection[str] = (),
) -> dict[str, bytes]:
    """Write the repository for a day into a new folder, and return its files by path.

    With the rules of a course, its README tells them. `left_out` are stems of exercises that
    students do not get; the grader has them all the same. `seals` add files at the end. Runs the
    references for these seeds. Raises CannotRelease, also where students would get a solution;
    nothing is written then. Raises BadFile where the course does not fit the day, BadDay where the
    day cannot be imported, BadMarkers, Unparsable for a stub that is no Python, and OSError.
    """
    require_free_target(target)  # before the minutes that the rest may take
    reference = root / "reference" / day
    exercises = stubs_for_students(reference, day)
    evidence = recording.record_evidence(reference, day, seeds)
    for stem in left_out:
        del exercises[f"exercises/{day}/{stem}.py"]
    files = repository_files(root, day, exercises, evidence, seals, course, left_out)
    found = leaks.find_leaks(files, reference)
    if found:
        shown = "; ".join(map(str, found[:MOST_LEAKS]))
        more = len(found) - MOST_LEAKS
        if more > 0:
            shown += f"; and {more} more"
        raise CannotRelease(f"nothing was written, because students would get a solution: {shown}")
    write_new_folder(files, target)
    return files


def repository_files(
    root: Path,
    day: str,
    exercises: dict[str, bytes],
    evidence: bytes,
    seals: Iterable[Seal] = (),
    course: CourseRules | None = None,
    left_out: Collection[str] = (),
) -> dict[str, bytes]:
    """Return every file by its path, relative to the student's repository.

    `exercises` are the stubs by path, `evidence` is put into the wheel, `seals` add files at the
    end. There are no pages and notebooks of the exercises that are `left_out`. Raises CannotRelease
    where two files have the same path, or the wheel cannot be built; BadFile where the course does
    not fit the day; BadMarkers, BadDay and OSError.
    """
    wheel_name, wheel_data = build_wheel(day, evidence)
    files = {
        f"vendor/{wheel_name}": wheel_data,
        **exercises,
        **notebooks_of_day(root, day, left_out=left_out),
        **pages_and_settings(day, wheel_name, course, left_out),
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


def exercises_left_out(
    day: str, only: Iterable[str], course: CourseRules | None = None
) -> frozenset[str]:
    """Return the stems of exercises that are not asked for, or do not count in the course.

    `only` are numbers or stems; none asks for all. Raises CannotRelease for one that is no exercise
    or does not count, BadFile where the course does not fit the day, and BadDay.
    """
    exercises = exercises_of(day)
    stems = [exercise.stem for exercise in exercises]
    counted = set(stems)
    if course is not None:
        counted = set(course.worth_by_exercise(exercises))
    asked = set()
    for name in only:
        stem = find_exercise(name, stems)
        if stem is None:
            raise CannotRelease(f"there is no exercise {name!r}{suggest_name(name, stems)}")
        if stem not in counted:
            raise CannotRelease(f"the exercise {stem} does not count in the course file")
        asked.add(stem)
    return frozenset(stems) - (asked or counted)


def stubs_for_students(reference: Path, day: str) -> dict[str, bytes]:
    """Return the stubs of a day by path.

    Raises CannotRelease where one is missing or solved, BadDay where the day cannot be imported,
    Unparsable for a stub that is no Python, and OSError.
    """
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

    `path` is that of the reference, `stubs` are the texts of all stubs by file name. Raises
    Unparsable for a stub that is no Python, and OSError.
    """
    from gpudojo.grading.bindings import find_bindings
    from gpudojo.grading.sources import parse_source

    if path.name not in stubs:
        raise CannotRelease(f"{path} is missing")
    stub = stubs[path.name]
    if stub == path.read_text(encoding="utf-8"):
        raise CannotRelease(f"{path} has no solution markers: students would get the solution")
    names = set()
    open_names = set()
    for binding in find_bindings(parse_source(stub, path)):
        names.add(binding.name)
        if binding.is_stub:
            open_names.add(binding.name)
    for function in exercise.functions:
        if function.name not in names:
            hint = suggest_name(function.name, names, "; define it there")
            raise CannotRelease(f"{path} has no `{function.name}`{hint}")
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


def write_new_folder(files: Mapping[str, bytes], target: Path) -> None:
    """Write all files into a new folder, or none.

    Folders above it are made, and a file that marks it as written by `dojo`, so that it is not
    taken for somebody's work. Raises CannotRelease where it is not empty, a path leads out of it,
    or it cannot be written.
    """
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
        write_files(beside, {**files, MARK: mark_of_release(files)})
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


def pages_and_settings(
    day: str, wheel: str, course: CourseRules | None = None, left_out: Collection[str] = ()
) -> dict[str, bytes]:
    """Return README, lessons, requirements and settings by path; `wheel` is the one in `vendor`.

    Of exercises with the stems `left_out` there are no lessons. Raises BadFile where the course
    does not fit the day, BadDay where the day cannot be imported, CannotRelease where gpudojo is
    not installed, and OSError.
    """
    texts = {
        "README.md": readme_text(day, course, left_out),
        "requirements.txt": requirements_text(day, wheel),
        "conftest.py": CONFTEST,
        "pytest.ini": pytest_ini_text(day, course),
        ".gitignore": GITIGNORE,
        ".vscode/settings.json": f"{json.dumps(VSCODE_SETTINGS, indent=4)}\n",
        **lessons_of_day(day, left_out),
    }
    return {path: text.encode() for path, text in texts.items()}


def pytest_ini_text(day: str, course: CourseRules | None) -> str:
    """Return pytest's settings: with a course that weighs, they hold a line to show with points.

    Raises BadFile where the course does not fit the day, and BadDay where the day cannot be
    imported.
    """
    if course is None:
        return PYTEST_INI
    worths = course.worth_by_exercise(exercises_of(day))
    for exercise in exercises_of(day):
        worth = worths.get(exercise.stem)
        if worth is not None and worth.points not in (None, exercise.points):
            return f"{PYTEST_INI}{POINTS_NOTE} = {OTHER_POINTS}\n"
    return PYTEST_INI


def lessons_of_day(day: str, left_out: Collection[str] = ()) -> dict[str, str]:
    """Return the texts of a day's lessons, by their paths in the student's repository.

    Those of exercises with the stems `left_out` are not among them. Raises BadDay where the day
    cannot be imported, and OSError.
    """
    lessons = {}
    for exercise in exercises_of(day):
        if exercise.stem in left_out:
            continue
        text = lesson_of(exercise, folded=True)
        if text is not None:
            lessons[_lesson_page(day, exercise)] = text
    return lessons


def _lesson_page(day: str, exercise: Exercise) -> str:
    """Return the path of an exercise's lesson in a student's repository."""
    return f"{LESSONS_FOLDER}/{day}/{exercise.stem}.md"


def _rules_for_students(course: CourseRules) -> str:
    """Return what the README says of a course: points, the deadline, how to hand in."""
    lines = ["## Your course", ""]
    if course.title:
        lines += [f"**{course.title}**", ""]
    text = "- Exercises count with the points in the table below."
    if course.points:
        text += f" Your grade is out of {format_points(course.points)} points."
    lines.append(text)
    if course.deadline:
        lines.append(f"- Deadline: {course.deadline:%A, %Y-%m-%d, %H:%M %Z}.".replace(" .", "."))
    if course.late.costs_points:
        lines.append(f"- Late: {course.late.describe()}.")
    if course.hand_in:
        lines.append(f"- How to hand in: {course.hand_in}")
    for item in course.by_hand:
        points = count_and_noun(item.points, "point")
        lines.append(f"- Graded by a person: {item.title}, {points}.")
        for row in item.rubric_rows:
            share = f": {format_points(row.max_points)}" if row.max_points else ""
            lines.append(f"  - {row.text}{share}")
    lines += [
        "",
        "`pytest` and `dojo watch` show the exercises' own points, not weighed for your course.",
        "",
        "## Set up",
        "",
        "",
    ]
    return "\n".join(lines)


def _points_in_course(exercise: Exercise, worths: Mapping[str, Worth] | None) -> str:
    """Return the points of an exercise in the README's table: those of the course, if any."""
    if worths is None:
        return f"{exercise.points:g}"
    worth = worths[exercise.stem]
    points = exercise.points if worth.points is None else worth.points
    extra = " (extra credit)" if worth.extra else ""
    return f"{format_points(points)}{extra}"


def _points_of_all(exercises: Iterable[Exercise], worths: Mapping[str, Worth] | None) -> float:
    """Return what exercises are worth together, in the course if there is one.

    Extra credit is not counted then.
    """
    points = 0.0
    for exercise in exercises:
        worth = worths[exercise.stem] if worths is not None else Worth()
        if not worth.extra:
            points += exercise.points if worth.points is None else worth.points
    return points


def readme_text(day: str, course: CourseRules | None = None, left_out: Collection[str] = ()) -> str:
    """Return the README of a student's repository, with a table of the exercises.

    With a course, it says what counts, when and how to hand in; what does not count has to be among
    the stems that are `left_out`. Raises BadFile where the course does not fit the day, BadDay
    where the day cannot be imported, CannotRelease where gpudojo is not installed, and OSError
    where files of the project cannot be read.
    """
    worths = None
    rules = ""
    if course is not None:
        worths = course.worth_by_exercise(exercises_of(day))
        rules = _rules_for_students(course)
    exercises = [each for each in exercises_of(day) if each.stem not in left_out]
    lessons = lessons_of_day(day)
    rows = []
    for exercise in exercises:
        topic = exercise.title
        lesson = _lesson_page(day, exercise)
        if lesson in lessons:
            topic = f"[{topic}]({lesson})"
        rows.append(f"| `{exercise.stem}.py` | {_points_in_course(exercise, worths)} | {topic} |")
    about_lessons = ""
    with_lesson = [each.number for each in exercises if _lesson_page(day, each) in lessons]
    if with_lesson:
        about_lessons = ABOUT_LESSONS.format(number=with_lesson[0])
    python = find_distribution().metadata["Requires-Python"]
    torch = _pinned_requirement(Requirement("torch"))
    first = exercises[0]
    points = _points_of_all(exercises, worths)
    *first_seeds, last_seed = map(str, PUBLIC_SEEDS)
    template = README.read_text(encoding="utf-8")
    return template.format(
        title=day_title(day),
        day=day,
        python=python.lstrip(">="),
        torch=torch,
        first=first.stem,
        function=first.functions[0].name,
        exercises=count_and_noun(len(exercises), "exercise"),
        points=format_points(points),
        second=PUBLIC_SEEDS[1],
        seeds=f"{', '.join(first_seeds)} and {last_seed}",
        lessons=about_lessons,
        table="\n".join(rows),
        course=rules,
    )


def _requirements_of_grader() -> list[Requirement]:
    """Return what gpudojo needs, with `dojo watch`, as the installed one says.

    Raises CannotRelease where it is not installed.
    """
    needed = []
    for text in find_distribution().requires or ():
        requirement = Requirement(text)
        extra = re.fullmatch(r"extra == ['\"](\w+)['\"]", str(requirement.marker or ""))
        if extra is not None and extra[1] == "watch":
            requirement.marker = None
        if "extra" not in str(requirement.marker or ""):
            needed.append(requirement)
    return needed


def requirements_text(day: str, wheel: str) -> str:
    """Return the lines of requirements.txt: what grader and day need, and the grader's wheel.

    Each is in the version that is installed here, with which the references were run. Raises
    CannotRelease where gpudojo is not installed.
    """
    needed = _requirements_of_grader()
    for text in registered_days()[day].requires:
        requirement = Requirement(text)
        if requirement.name != "gpudojo" and "extra" not in str(requirement.marker or ""):
            needed.append(requirement)
    lines = [_pinned_requirement(requirement) for requirement in needed]
    lines.append(f"./vendor/{wheel}\n")
    return "\n".join(lines)


def _pinned_requirement(requirement: Requirement) -> str:
    """Return a requirement in the version of its package that is installed, if it is a release.

    What stands behind a semicolon, such as the systems that need it, stays.
    """
    line = f"{requirement.name}{requirement.specifier}"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = Version(importlib.metadata.version(requirement.name))
        if not version.is_devrelease:
            # Without what a build for one kind of GPU adds, as in 2.13.0+cpu.
            line = f"{requirement.name}=={version.public}"
    if requirement.marker is not None:
        line += f"; {requirement.marker}"
    return line
