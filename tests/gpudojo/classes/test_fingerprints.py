"""What a verdict on given evidence depends on, by exercise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpudojo.classes import grading_options
from gpudojo.model.catalogue import Day

ONE = "01_one"
TWO = "02_two"
THREE = "03_three"
EXERCISE = 'from gpudojo.days.day8 import shared\nexercise = Exercise("{stem}")\n'
LONG_AGO = 1_000_000_000


class MadeDay:
    """A day of three exercises; the files of gpudojo itself are one small file."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = root / "days" / "day8"
        self.code = root / "code"
        self.package = "gpudojo.days.day8"
        for name, stem in (("one", ONE), ("two", TWO), ("three", THREE)):
            self.write(f"{name}.py", EXERCISE.format(stem=stem))
        for name in (
            "__init__.py",
            "shared.py",
            "misconceptions.toml",
            "lessons/01_one.md",
            "__pycache__/one.pyc",
        ):
            self.write(name, "")
        self.code.mkdir()
        self.write("../../code/checks.py", "")
        monkeypatch.setattr(grading_options, "ROOT", root)
        monkeypatch.setattr(grading_options, "VERDICTS", ("code",))
        monkeypatch.setattr(
            grading_options, "registered", lambda: {"day8": Day("day8", self.package, self.folder)}
        )
        monkeypatch.setattr(grading_options, "exercises_of", lambda day: ())
        monkeypatch.setattr(grading_options, "misconceptions", dict)

    def write(self, name: str, text: str, when: float = LONG_AGO) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (when, when))

    def add(self, name: str, text: str, when: float = LONG_AGO) -> None:
        self.write(name, (self.folder / name).read_text(encoding="utf-8") + text, when)

    def fingerprints(self) -> dict[str, str]:
        grading_options.of_exercises.cache_clear()
        found = grading_options.of_exercises("day8")
        grading_options.of_exercises.cache_clear()
        return found

    def changed_by(self, name: str) -> set[str]:
        """The exercises that have another fingerprint after a change."""
        before = self.fingerprints()
        self.add(name, "\n# changed\n")
        after = self.fingerprints()
        assert before.keys() == after.keys() == {ONE, TWO, THREE}
        return {stem for stem in before if before[stem] != after[stem]}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeDay:
    return MadeDay(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("one.py", {ONE}),
        ("three.py", {THREE}),
        ("shared.py", {ONE, TWO, THREE}),
        ("__init__.py", {ONE, TWO, THREE}),
        ("misconceptions.toml", {ONE, TWO, THREE}),
        ("../../code/checks.py", {ONE, TWO, THREE}),
        ("lessons/01_one.md", set()),
        ("__pycache__/one.pyc", set()),
    ],
)
def test_a_change_is_one_of_the_exercises_that_may_use_the_file(
    made: MadeDay, name: str, changed: set[str]
) -> None:
    assert made.changed_by(name) == changed


@pytest.mark.parametrize(
    "text",
    [
        "from gpudojo.days.day8.two import CASES\n",
        "from gpudojo.days.day8 import (\n    shared,\n    two,\n)\n",
        "from gpudojo.days.day8 import shared, two as other\n",
        "import gpudojo.days.day8.two\n",
        "from . import two\n",
        "from .two import (\n    CASES,\n)\n",
        "def judge():\n    from gpudojo.days.day8.two import CASES\n",
    ],
)
def test_exercises_of_which_one_imports_the_other_change_together(made: MadeDay, text: str) -> None:
    made.add("one.py", text)
    assert made.changed_by("one.py") == {ONE, TWO}
    assert made.changed_by("two.py") == {ONE, TWO}
    assert made.changed_by("three.py") == {THREE}
    made.add("two.py", "from gpudojo.days.day8.three import CASES\n")
    assert made.changed_by("three.py") == {ONE, TWO, THREE}


@pytest.mark.parametrize(
    "text", ["importlib.import_module(name)\n", "sys.modules[name]\n", "__import__(name)\n"]
)
def test_an_exercise_that_may_import_any_module_changes_with_all(made: MadeDay, text: str) -> None:
    made.add("one.py", text)
    assert made.changed_by("three.py") == {ONE, TWO, THREE}


def test_an_exercise_that_imports_a_library_by_name_stands_alone(made: MadeDay) -> None:
    made.add("one.py", 'importlib.import_module("torch.distributed")\n')
    assert made.changed_by("three.py") == {THREE}


def test_an_exercise_that_others_use_by_way_of_a_shared_module_changes_all(made: MadeDay) -> None:
    made.add("shared.py", "from gpudojo.days.day8.two import CASES\n")
    assert made.changed_by("two.py") == {ONE, TWO, THREE}
    assert made.changed_by("one.py") == {ONE}


def test_an_exercise_may_be_a_package(made: MadeDay) -> None:
    (made.folder / "one.py").unlink()
    made.write("one/__init__.py", EXERCISE.format(stem=ONE))
    made.write("one/cases.py", "")
    assert made.changed_by("one/cases.py") == {ONE}


def test_what_changed_since_the_process_began_is_in_doubt(made: MadeDay) -> None:
    late = grading_options.BEGAN + 10
    made.add("one.py", "", late)
    assert made.fingerprints().keys() == {TWO, THREE}
    made.add("shared.py", "", late)
    assert made.fingerprints() == {}
    made.add("shared.py", "")
    made.add("../../code/checks.py", "", late)
    assert made.fingerprints() == {}


def test_nothing_is_certain_of_a_day_of_another_package(made: MadeDay) -> None:
    made.package = "course.days.day8"
    assert made.fingerprints() == {}


def test_another_python_or_library_changes_all(
    made: MadeDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made.fingerprints()
    monkeypatch.setattr(grading_options, "_installed", lambda: ["numpy-0.dist-info"])
    other = made.fingerprints()
    monkeypatch.setattr(sys, "version", "3.99")
    last = made.fingerprints()
    assert all(len({before[stem], other[stem], last[stem]}) == 3 for stem in before)


def test_every_module_that_judges_is_in_the_fingerprint() -> None:
    question = (
        "import sys\nfrom gpudojo.classes import judging\nfrom gpudojo.model.catalogue import day\n"
        "judging.prepare(day('day8'))\n"
        "own = [m for n, m in sys.modules.items() if n.partition('.')[0] in ('gpudojo', 'virtual_cuda')]\n"
        "print(*[m.__file__ for m in own])"
    )
    done = subprocess.run(
        [sys.executable, "-c", question], capture_output=True, text=True, check=True
    )
    places = [*grading_options.VERDICTS, "gpudojo/days/day8"]
    covered = {
        path for place in places for path in grading_options._below(grading_options.ROOT / place)
    }
    assert {*done.stdout.split()} - covered == set()
    assert (
        "numpy"
        in subprocess.run(
            [
                sys.executable,
                "-c",
                "from gpudojo.classes.grading_options import _installed\nprint(*_installed())",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
