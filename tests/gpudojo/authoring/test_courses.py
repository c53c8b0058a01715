"""A course of somebody's own is begun and found in its folder, installed or not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.authoring import new
from gpudojo.cli import authoring, main, options
from gpudojo.cli.grade import choose_reference
from gpudojo.model import catalogue, courses
from gpudojo.model.catalogue import Day
from gpudojo.model.courses import describe_not_installed, find_course, refuse_other_course
from gpudojo.model.errors import CannotBegin

ROOT = Path(__file__).parents[3]


def dojo(*words: str) -> tuple[int, str]:
    """The exit status of a command, and what it printed."""
    done = CliRunner().invoke(main, words)
    return done.exit_code, done.output


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new course that is not installed, which is the current folder."""
    folder = tmp_path / "course"
    folder.mkdir()
    monkeypatch.chdir(folder)
    code, said = dojo("new", "course", "image_course", "--title", "images")
    assert code == 0, said
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "image_course"]:
        del sys.modules[name]
    catalogue._load_day.cache_clear()


def install(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `pip install -e` changes for the commands that run in this process."""
    found = dict(catalogue.registered_days())
    for name, package in find_course(course).packages.items():  # type: ignore[union-attr]
        found[name] = Day(name, package, course.joinpath(*package.split(".")))
    monkeypatch.syspath_prepend(course)
    for module in (catalogue, new, courses, authoring):
        monkeypatch.setattr(module, "registered_days", lambda: found)


def test_a_course_is_made_in_the_current_folder(course: Path) -> None:
    assert everything(course) == {
        ".gitignore",
        "README.md",
        "conftest.py",
        "image_course/__init__.py",
        "image_course/day1/__init__.py",
        "pyproject.toml",
        "tests/day1/test_solutions.py",
    }
    ignored = (course / ".gitignore").read_text(encoding="utf-8").split()
    assert {"submissions/", "results/", "feedback/"} <= set(ignored)  # personal data
    assert (course / "reference" / "day1").is_dir()
    assert (course / "exercises" / "day1").is_dir()
    project = tomllib.loads((course / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "image-course"
    assert project["entry-points"] == {"gpudojo.days": {"day1": "image_course.day1"}}
    title = (course / "image_course" / "day1" / "__init__.py").read_text(encoding="utf-8")
    assert title == '"""Day 1: images."""\n'


def test_an_exercise_is_made_before_and_after_the_install(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (course / "deeper").mkdir()
    monkeypatch.chdir(course / "deeper")
    code, said = dojo("new", "exercise", "day1", "crops", "--functions", "crop(batch); flip(batch)")
    assert code == 0, said
    assert f"day1 is not installed yet; run: pip install -e {course}\n" in said
    assert {
        "image_course/day1/crops.py",
        "image_course/day1/hints/01_crops.toml",
        "reference/day1/01_crops.py",
        "exercises/day1/01_crops.py",
        "tests/day1/solutions_01_crops.py",
    } <= everything(course)
    # What it has is known, too.
    code, said = dojo("new", "exercise", "day1", "more", "--functions", "flip")
    assert (code, said) == (1, "Error: flip already exists: 01_crops has a function of that name\n")
    assert dojo("new", "exercise", "day1", "crops")[0] == 1
    # Installed, it is known everywhere. Another folder is no reason to write into it.
    install(course, monkeypatch)
    monkeypatch.chdir(course.parent)
    before = everything(course.parent)
    code, said = dojo("new", "exercise", "day1", "more")
    assert (code, said) == (
        1,
        "Error: day1 is a day of another course, and this folder is not in it; "
        f"to write there, add: --root {course}\n",
    )
    assert everything(course.parent) == before
    code, said = dojo("new", "exercise", "day1", "more", "--root", str(course))
    assert code == 0, said
    assert f"written: {course / 'reference' / 'day1' / '02_more.py'}\n" in said
    assert "not installed" not in said


def test_a_folder_without_a_course_is_not_linted_unless_a_day_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(authoring, "_examine_day", lambda day, root, quick: False)
    code, said = dojo("lint")
    assert code == 2
    assert "there is no course in this folder or above it; go to the folder of yours" in said
    code, said = dojo("lint", "--day", "day8")
    assert code == 0, said
    assert f"this is day8 in {ROOT}" in said


def test_another_day_is_added_to_the_course_and_never_to_the_clone(course: Path) -> None:
    before = everything(ROOT / "graders" / "gpudojo" / "days")
    code, said = dojo("new", "day", "day2")
    assert code == 0, said
    assert "changed: pyproject.toml; install it again: pip install -e .\n" in said
    assert (course / "image_course" / "day2" / "__init__.py").is_file()
    assert (course / "tests" / "day2" / "test_solutions.py").is_file()
    found = find_course(course)
    assert found is not None
    assert found.packages == {"day1": "image_course.day1", "day2": "image_course.day2"}
    assert everything(ROOT / "graders" / "gpudojo" / "days") == before
    assert dojo("new", "day", "day2")[0] == 1
    for words in (("day", "day8"), ("exercise", "day8", "more")):
        code, said = dojo("new", *words)
        assert code == 1, said
        assert everything(ROOT / "graders" / "gpudojo" / "days") == before


def test_outside_of_a_course_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("day", "day9"), ("exercise", "day9", "first")):
        code, said = dojo("new", *words)
        assert code == 1
        assert said.endswith("To begin one in an empty folder, run: dojo new course NAME\n")
    assert everything(tmp_path) == set()


@pytest.mark.parametrize("name", ["Images", "9images", "torch", "tests", "class", "a-b", ""])
def test_a_course_has_a_name_that_can_be_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = dojo("new", "course", name)
    assert code == 1
    assert said.startswith(f"Error: {name!r} cannot be the name of a course: ")
    assert everything(tmp_path) == set()


def test_a_course_is_not_made_over_another_project(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is a course already; add a day with: dojo new day" in dojo("new", "course", "other")[1]
    other = tmp_path / "project"
    other.mkdir()
    (other / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    monkeypatch.chdir(other)
    assert "pyproject.toml already exists: nothing was written" in dojo("new", "course", "mine")[1]
    assert everything(other) == {"pyproject.toml"}


def test_a_day_that_is_not_installed_is_told_with_the_command(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = dojo("lint")
    assert code == 2
    assert "day1 is a day of" in said
    assert "not installed here; run: pip install -e ." in " ".join(said.split())
    code, said = dojo("lint", "--day", "day7")
    assert (code, "there is no day 'day7'" in said) == (2, True)
    assert options.default_day() == "day1"
    monkeypatch.chdir(ROOT)
    assert options.default_day() == "day8"


def test_exercises_of_a_day_that_is_not_installed_are_told_with_the_command(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dojo("new", "exercise", "day1", "crops")[0] == 0
    why = f"day1 is a day of {course} that is not installed here; run: pip install -e ."
    folder = Path("exercises") / "day1"
    for path in (folder, folder / "01_crops.py"):
        code, said = dojo("watch", "--plain", str(path))
        assert (code, said) == (1, f"Error: no exercise files in {path}; {why}\n")
    assert describe_not_installed(folder) == describe_not_installed(course) == why
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "gpudojo.pytest_plugin", str(folder)],
        cwd=course,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "graders"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
    )
    assert f"collected 0 items\n{why}\n" in done.stdout, done.stdout + done.stderr
    # Installed, or elsewhere, there is nothing to say.
    install(course, monkeypatch)
    assert describe_not_installed(folder) == ""
    assert describe_not_installed(course.parent) == ""


def test_a_copy_of_a_course_is_not_judged_by_the_package_of_the_other(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(course, monkeypatch)
    assert options.find_repository("day1") == course
    copied = tmp_path / "copied"
    shutil.copytree(course, copied)
    monkeypatch.chdir(copied)
    package = Path("image_course", "day1")
    for root in (None, copied):
        with pytest.raises(CannotBegin) as refused:
            options.find_repository("day1", root)
        assert str(refused.value) == (
            f"day1 is installed from {course / package}, and this folder has another copy "
            f"of it, {copied / package}; to use this one, run: pip install -e ."
        )
    # A folder of references that is given is refused alike.
    for reference in (copied / "reference" / "day1", Path("reference", "day1")):
        with pytest.raises(CannotBegin, match="this folder has another copy of it"):
            choose_reference("day1", reference)
    assert choose_reference("day1", course / "reference" / "day1") == course / "reference" / "day1"
    # The same for a second clone of gpudojo.
    (copied / "graders" / "gpudojo" / "days" / "day8").mkdir(parents=True)
    with pytest.raises(CannotBegin, match=f"run: pip install -e {copied}"):
        options.find_repository("day8", copied)
    (copied / "reference" / "day8").mkdir()
    words = ("--day", "day8", "--out", "results", "--reference", "reference/day8")
    code, said = dojo("grade", ".", *words)
    assert code == 1
    assert said.startswith("Error: day8 is installed from "), said
    assert not (copied / "results" / "results.json").exists()


def test_a_day_is_meant_in_its_own_folder(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dojo("new", "day", "day2")[0] == 0
    for kind in ("exercises", "reference", "tests"):
        below = course / kind / "day2" / "more"
        below.mkdir(parents=True)
        for folder in (below, below.parent):
            monkeypatch.chdir(folder)
            assert options.default_day() == "day2"
    monkeypatch.chdir(course)
    assert options.default_day() == "day1"


def test_project_files_of_other_shapes(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    for text in ("", "project = 3", "[project]\nentry-points = 1", "[tool.x]\na = 1"):
        file.write_text(text)
        assert find_course(tmp_path) is None
    file.write_text("[project\n")
    with pytest.raises(CannotBegin, match=r"pyproject\.toml cannot be read: "):
        find_course(tmp_path)
    file.write_text('[project]\nentry-points = {"gpudojo.days" = {day3 = "a.b.day3", x = "y"}}\n')
    found = find_course(tmp_path)
    assert found is not None
    assert found.packages == {"day3": "a.b.day3"}
    with pytest.raises(CannotBegin, match=r"says that day3 is the package a\.b\.day3"):
        found.folder_of("day3")
    with pytest.raises(CannotBegin, match=r'add this to the entry points .*: day4 = "a.b.day4"'):
        found.project_with("day4", found.package_for("day4"))
    inside = tmp_path / "src" / "a" / "b" / "day3"
    inside.mkdir(parents=True)
    (inside / "__init__.py").touch()
    assert found.folder_of("day3").as_posix() == "src/a/b/day3"
    refuse_other_course("day3", tmp_path)  # no course registers it


def test_a_repository_with_a_readme_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("mine")
    monkeypatch.chdir(tmp_path)
    code, said = dojo("new", "course", "sound_course")
    assert (code, "kept as it is: README.md\n" in said) == (0, True)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert (tmp_path / ".gitignore").is_file()
    assert (tmp_path / "sound_course" / "day1" / "__init__.py").is_file()
