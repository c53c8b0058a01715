"""What evidence and verdicts depend on is in their fingerprints, and what they do not depend on is
not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from gpudojo.classes import fingerprints
from gpudojo.classes.fingerprints import (
    fingerprint_of_judging,
    fingerprint_of_observing,
    source_without_checks,
)
from gpudojo.model.catalogue import Day

EXERCISE = '''"""Doubling."""

exercise = Exercise("01_doubling", "Doubling", 2)
double = exercise.function("double", "Multiply by two.")


@double.probe
def values(call):
    return {"value": call(3)}


@double.check(2, needs=())
def doubles(seen, wanted):
    """It returns twice its argument."""


runs(double, points=1)
double.when("doubles", hint=1)
double.probe(values)
'''


class MadeDay:
    """A day of one exercise; our own packages are one small one."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.write("day/doubling.py", EXERCISE)
        for name in ("day/misconceptions.toml", "day/cases.json", "day/lessons/01.md"):
            self.write(name, "")
        self.write("code/__init__.py", "")
        self.write("code/checks.py", "")
        package = ModuleType("code")
        package.__file__ = str(root / "code" / "__init__.py")
        day = Day("day8", "gpudojo.days.day8", root / "day")
        monkeypatch.setattr(fingerprints, "OBSERVING", (package,))
        monkeypatch.setattr(fingerprints, "registered_days", lambda: {"day8": day})

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def fingerprints(self) -> tuple[str, str]:
        """Those of observing and of judging."""
        return (
            fingerprint_of_observing.__wrapped__("day8"),
            fingerprint_of_judging.__wrapped__("day8"),
        )


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeDay:
    return MadeDay(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("code/checks.py", (True, True)),
        ("code/new/new.py", (True, True)),
        ("day/cases.json", (True, True)),
        ("day/misconceptions.toml", (False, True)),
        ("day/lessons/01.md", (False, False)),
        ("code/__pycache__/checks.pyc", (False, False)),
    ],
)
def test_a_changed_file_is_another_fingerprint(
    made: MadeDay, name: str, changed: tuple[bool, bool]
) -> None:
    before = made.fingerprints()
    made.write(name, "changed")
    after = made.fingerprints()
    assert (before[0] != after[0], before[1] != after[1]) == changed


@pytest.mark.parametrize(
    ("text", "other", "observing"),
    [
        ("Doubling.", "Twice.", False),
        ("It returns twice", "It returns", False),
        ("points=1", "points=2", False),
        ("hint=1", "hint=2", False),
        ("call(3)", "call(4)", True),
        ("double.probe(values)", "double.probe(other)", True),
        ("Multiply by two.", "Add it to itself.", True),
    ],
)
def test_what_only_judges_makes_no_other_evidence(
    made: MadeDay, text: str, other: str, observing: bool
) -> None:
    before = made.fingerprints()
    made.write("day/doubling.py", EXERCISE.replace(text, other))
    after = made.fingerprints()
    assert (before[0] != after[0], before[1] != after[1]) == (observing, True)


def test_another_torch_makes_other_evidence() -> None:
    assert fingerprint_of_observing("day8", "2.13") != fingerprint_of_observing("day8", "2.14")


def test_checks_and_hints_are_cut_from_a_source() -> None:
    left = source_without_checks(EXERCISE.encode()).decode()
    assert "def values" in left
    assert "double.probe(values)" in left
    assert all(text not in left for text in ("check", "when", "runs", '"""'))


def modules_after(code: str) -> set[Path]:
    """The files of our modules that a process has imported after it ran some code."""
    question = f"""import sys
{code}
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("gpudojo", "virtual_cuda"):
        print(module.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", question], capture_output=True, text=True, check=True
    )
    return {Path(line) for line in done.stdout.splitlines()}


def folders_of_observing() -> set[Path]:
    return {Path(str(package.__file__)).parent for package in fingerprints.OBSERVING}


def outside(files: set[Path], folders: set[Path]) -> set[str]:
    """The names of files in none of these folders, without the packages that only hold others."""
    left = {path for path in files if not any(path.is_relative_to(each) for each in folders)}
    return {f"{path.parent.name}/{path.name}" for path in left}


def test_every_module_that_judges_is_in_the_fingerprint() -> None:
    files = modules_after(
        "from gpudojo.classes import judging\nfrom gpudojo.model.catalogue import exercises_of\n"
        "judging.prepare_judging(exercises_of('day8'))"
    )
    ours = Path(fingerprints.__file__).parent
    folders = {*folders_of_observing(), ours, ours.parent / "days" / "day8"}
    assert outside(files, folders) <= {"gpudojo/__init__.py", "days/__init__.py"}


def test_every_module_of_a_child_is_in_the_fingerprint() -> None:
    files = modules_after(
        "import gpudojo.sandbox.fork_server, gpudojo.sandbox.child, gpudojo.grading.observe"
    )
    assert outside(files, folders_of_observing()) <= {"gpudojo/__init__.py", "days/__init__.py"}
