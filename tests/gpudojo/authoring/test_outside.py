"""A day that another package registers by an entry point is linted, graded, reported and released
as day8 is.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpudojo.model import catalogue
from gpudojo.model.catalogue import Day
from gpudojo.model.errors import BadDay, CannotRelease
from gpudojo.model.results_file import read
from gpudojo.release import wheel

from tests.gpudojo.authoring.test_page import STEM, blocks, environment_at, write_files_of
from tests.sharing import WarmPython

ROOT = Path(__file__).parents[3]


def register(python: Path, entry_points: str) -> None:
    """What pip leaves of an editable install: the metadata of a distribution."""
    folder = next(python.parents[1].glob("lib/python*/site-packages")) / "my_course-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-course\nVersion: 1.0\nRequires-Dist: gpudojo\n"
    )
    (folder / "entry_points.txt").write_text(f"[gpudojo.days]\n{entry_points}\n")


def run(python: Path | WarmPython, *arguments: str, cwd: Path) -> str:
    left = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))
    }
    environment = left | {"COLUMNS": "120", "CUDA_VISIBLE_DEVICES": "", "PIP_NO_INDEX": "1"}
    if isinstance(python, WarmPython):
        done = python.run(*arguments, cwd=cwd, env=environment)
    else:
        command = [str(python), "-m", *arguments]
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
        )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Course:
    """A repository with the day of docs/authoring.md, and Python in which it is installed."""

    folder: Path
    python: WarmPython
    solutions: list[str]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    if os.name == "nt":
        pytest.skip("classes are graded on Linux and macOS")
    base = tmp_path_factory.mktemp("course")
    folder = base / "repository"
    for language, block in blocks():
        if language != "sh":
            write_files_of(block, folder)
    (folder / "sprite_course" / "__init__.py").write_text('"""A course."""\n')
    (folder / "sprite_course" / "day1" / "__init__.py").write_text(
        '"""Day 1: finding sprites."""\n'
    )
    python = environment_at(base / "environment", folder, ROOT / "graders")
    register(python, "day1 = sprite_course.day1")
    warm = WarmPython(python)
    run(warm, "gpudojo", "release", "stubs", "--day", "day1", cwd=folder)
    text = (folder / "tests" / "day1" / f"solutions_{STEM}.py").read_text(encoding="utf-8")
    yield Course(folder, warm, re.split(r"^# .*\n", text, flags=re.M)[1:])
    warm.close()


def test_it_is_linted(course: Course) -> None:
    output = run(course.python, "gpudojo", "lint", "--day", "day1", cwd=course.folder)
    assert re.search(rf"{STEM} +│ +4 │ +1 │ +3 │ +3 │ (fine|ok) ", output), output
    assert "problem:" not in output
    assert "warning:" not in output


def test_it_is_graded_and_reported(course: Course, tmp_path: Path) -> None:
    for student, solution in (("right", course.solutions[0]), ("wrong", course.solutions[-1])):
        (tmp_path / "class" / student).mkdir(parents=True)
        (tmp_path / "class" / student / f"{STEM}.py").write_text(solution, encoding="utf-8")
    arguments = (
        str(tmp_path / "class"),
        "--day",
        "day1",
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "1",
        "-q",
    )
    output = run(course.python, "gpudojo", "grade", *arguments, cwd=course.folder)
    assert (tmp_path / "out" / "results.json").is_file(), output
    rows = {row.submission: row for row in read(tmp_path / "out" / "results.json").submissions}
    assert {name: row.score for name, row in rows.items()} == {"right": 4, "wrong": 2.5}, output
    (failed,) = [check for check in rows["wrong"].exercises[0].checks if check.outcome == "failed"]
    assert failed.why.startswith(".item() in a loop")
    run(course.python, "gpudojo", "report", str(tmp_path / "out"), cwd=course.folder)
    assert STEM in (tmp_path / "out" / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_release_ships_this_day_and_no_other(course: Course, tmp_path: Path) -> None:
    output = run(
        course.python,
        "gpudojo",
        "release",
        "student",
        str(tmp_path / "out"),
        "--day",
        "day1",
        cwd=course.folder,
    )
    assert output.startswith("written: "), output
    released = tmp_path / "out"
    text = (released / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# Day 1: finding sprites\n\n2 exercises, 7 points.")
    (built,) = (released / "vendor").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        names = set(archive.namelist())
        points = next(
            archive.read(name).decode() for name in names if name.endswith("/entry_points.txt")
        )
    assert {
        "sprite_course/__init__.py",
        "sprite_course/day1/brightest_sprite.py",
        "sprite_course/day1/hints/01_brightest_sprite.toml",
        "sprite_course/day1/misconceptions.toml",
    } <= names
    assert "gpudojo/grading/of_reference/day1.mp" in names
    assert not [name for name in names if name.startswith("gpudojo/days/day8")]
    assert "[gpudojo.days]\nday1 = sprite_course.day1" in points

    # A student installs it, where there is neither the course nor a reference.
    python = environment_at(tmp_path / "student")
    run(python, "pip", "install", "--quiet", "--no-deps", str(built), cwd=tmp_path)
    with contextlib.closing(WarmPython(python)) as warm:
        output = run(warm, "pytest", "exercises", "notebooks", "-q", cwd=released)
        assert "21 to do" in output, output  # the files, their notebooks, and that of the day
        handed_in = released / "exercises" / "day1" / f"{STEM}.py"
        handed_in.write_text(course.solutions[1], encoding="utf-8")
        output = run(warm, "pytest", str(handed_in), "-q", cwd=released)
        assert "Everything passes" in output, output
        handed_in.write_text(course.solutions[-1], encoding="utf-8")
        output = run(warm, "pytest", str(handed_in), "-q", cwd=released)
    assert "with eight sprites the CPU waited 8 times" in output
    assert "Reading a value makes the CPU wait" in output


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an empty day9 that another distribution has registered."""
    folder = tmp_path / "my_course" / "day9"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent):
        (place / "__init__.py").touch()
    found = catalogue.registered_days() | {"day9": Day("day9", "my_course.day9", folder)}
    for module in (catalogue, wheel):
        monkeypatch.setattr(module, "registered_days", lambda: found)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_course"]:
        monkeypatch.delitem(sys.modules, name)
    yield folder
    for cached in (
        catalogue._load_day,
        catalogue.misconceptions_of,
        catalogue.known_misconceptions,
    ):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from my_course.tools import f", "my_course.tools"),
        ("import my_course.tools", "my_course.tools"),
        ("from ..tools import f", "my_course.tools"),
        ("def g():\n    from my_course.day9.missing import h", "my_course.day9.missing"),
    ],
)
def test_a_day_that_needs_more_than_its_package_is_refused(
    outside: Path, line: str, module: str
) -> None:
    (outside / "x.py").write_text(f"{line}\n")
    with pytest.raises(
        CannotRelease,
        match=rf"my_course/day9/x\.py, line \d: students get only .* imports {module}$",
    ):
        wheel.files_of_wheel("day9")


def test_a_day_may_import_its_own_modules(outside: Path) -> None:
    (outside / "tools.py").write_text("import torch\nfrom gpudojo.model.exercise import Exercise\n")
    (outside / "x.py").write_text(
        "from . import tools\nfrom .tools import Exercise\nimport my_course.day9.tools\n"
    )
    assert {"my_course/__init__.py", "my_course/day9/x.py"} <= set(wheel.files_of_wheel("day9"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('exercise = Exercise("01_x", "X", 1)\ndef f(:\n', r"x\.py, line 2: invalid syntax$"),
        (
            'exercise = Exercise("01_x", "X", 1)\n',
            r"x\.py, line 1: NameError: name 'Exercise' is not defined$",
        ),
    ],
)
def test_an_authors_mistake_is_told_with_file_and_line(outside: Path, text: str, said: str) -> None:
    (outside / "x.py").write_text(text)
    with pytest.raises(BadDay, match=said):
        catalogue.exercise_for(Path("01_x.py"))


def test_an_authors_mistake_is_told_also_where_the_file_cannot_be_read_again(outside: Path) -> None:
    """As in an isolated child, whose fork server has tried to load the day."""
    module = outside / "x.py"
    module.write_text('exercise = Exercise("01_x", "X", 1)\n')
    for _ in range(2):
        with pytest.raises(BadDay, match=r"x\.py, line 1: NameError"):
            catalogue.exercises_of("day9")
        module.unlink(missing_ok=True)


def test_an_authors_mistake_has_a_traceback_of_its_own_each_time(outside: Path) -> None:
    (outside / "x.py").write_text('exercise = Exercise("01_x", "X", 1)\n')
    errors = []
    for _ in range(2):
        with pytest.raises(BadDay) as raised:
            catalogue.exercises_of("day9")
        errors.append(raised.value)
    first, second = errors
    assert first is not second
    assert len(traceback.extract_tb(first.__traceback__)) == 2  # this test, and `exercises_of`
    assert len(traceback.extract_tb(second.__traceback__)) == 2
    assert isinstance(second.__cause__, NameError)


def test_misconceptions_that_cannot_be_read_are_an_error(outside: Path) -> None:
    (outside / "misconceptions.toml").write_text('[a]\nname = "x"\n')
    with pytest.raises(BadDay, match=r"misconceptions\.toml, line 1: `why` is missing"):
        catalogue.misconceptions_of("day9")


def test_misconceptions_that_are_no_utf_8_are_an_error(outside: Path) -> None:
    (outside / "misconceptions.toml").write_bytes('[a]\nname = "für"\n'.encode("latin-1"))
    with pytest.raises(BadDay, match=r"misconceptions\.toml, line 2: this is not UTF-8 text"):
        catalogue.misconceptions_of("day9")


def test_of_two_days_with_the_same_file_name_the_folder_decides(outside: Path) -> None:
    text = (
        "from gpudojo.model.exercise import Exercise\n\n"
        'exercise = Exercise("01_checking_device", "Y", 1)\n'
    )
    (outside / "x.py").write_text(text)
    assert catalogue.day_of_file(Path("01_checking_device.py")) == "day8"
    assert catalogue.day_of_file(Path("exercises/day9/01_checking_device.py")) == "day9"
    found = catalogue.exercise_for(Path("exercises/day9/01_checking_device.py"))
    assert found is not None
    assert (found.title, catalogue.day_of_exercise(found)) == ("Y", "day9")


def test_entry_points_are_found_without_importing_anything(tmp_path: Path) -> None:
    python = environment_at(tmp_path / "environment", tmp_path, ROOT / "graders")
    register(
        python,
        (
            "day9 = my_course.day9\n"
            "day8 = my_course.day8\n"
            "week1 = my_course.day9\n"
            "day10 = not_there.day10"
        ),
    )
    for name in ("day8", "day9"):
        (tmp_path / "my_course" / name).mkdir(parents=True)
        (tmp_path / "my_course" / name / "__init__.py").write_text("raise AssertionError\n")
    (tmp_path / "my_course" / "__init__.py").write_text("raise AssertionError\n")
    (tmp_path / "my_course" / "day9" / "x.py").write_text(
        'exercise = Exercise(\n    "01_x", "X", points=1\n)\n'
    )
    code = (
        "import sys; from gpudojo.model import catalogue; from pathlib import Path\n"
        "print(catalogue.day_names(), catalogue.registered_days()['day8'].package, "
        "catalogue.day_of_file(Path('01_x.py')))\n"
        "print(sorted(n for n in sys.modules if n.startswith(('gpudojo', 'virtual_cuda', 'torch', "
        "'msgspec'))))"
    )
    (tmp_path / "asked.py").write_text(code)
    assert run(python, "asked", cwd=tmp_path).splitlines() == [
        "('day8', 'day9') gpudojo.days.day8 day9",
        "['gpudojo', 'gpudojo.model', 'gpudojo.model.catalogue']",
    ]
