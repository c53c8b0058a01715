"""`dojo lint --mutants` finds holes in checks, knows equivalent mutants and why, and resumes.

Doing nothing pays 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from gpudojo.authoring import fairness, lint
from gpudojo.authoring.fairness import (
    EQUIVALENT,
    Equivalent,
    FairnessRow,
    KnownMutant,
    all_mutants,
    all_rewrites,
    doubtful_entries,
    examine_exercise,
    read_equivalents,
)
from gpudojo.authoring.lint_solutions import grade_on_virtual_device, paid_for_nothing
from gpudojo.cli import authoring, main
from gpudojo.grading.call import Call, torch, try_scenarios
from gpudojo.grading.checks import Ran, describe_call, runs, same_as_reference
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass
from gpudojo.model.evidence import Cases
from gpudojo.model.exercise import Exercise, Seen
from gpudojo.model.results import SubmissionStatus

from tests.gpudojo.authoring.test_outside import environment_at, register, run

ROOT = Path(__file__).parents[3]
LIMIT = int(
    os.environ.get("DOJO_MUTANTS", "12")
)  # mutants of each exercise: the first of all that the docs tell of
STEM = "01_total"
REFERENCE = '''"""The sum."""


def total(values, start=0.0):
    """Return the sum of `values` and `start` as a Python number; an int is as good as a float."""
    # BEGIN SOLUTION
    return float(values.sum().item()) + start
    # END SOLUTION
'''
MODULE = '''"""01: the sum."""

from gpudojo.grading.call import Call, torch, try_scenarios
from gpudojo.grading.checks import Ran, describe_call, runs, same_as_reference
from gpudojo.model.evidence import Cases
from gpudojo.model.exercise import Exercise

exercise = Exercise("01_total", "The sum", points=1)
total = exercise.function("total")


@total.probe
def sums(call: Call) -> Cases[Ran]:
    values = (torch.arange(5.0) + call.seed % 7 + 1).to(call.device)
    return try_scenarios({"five": lambda: describe_call(call, values)})


runs(total)
same_as_reference(total, sums, points=1, claim="It returns the sum.")
'''
SIGNED = "-return float(values.sum().item()) + start\n+return float(values.sum().item()) - start"
ALIKE = "-return float(values.sum().item()) + start\n+return values.sum().item() + start"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A repository with a day of one small exercise, and Python in which it is installed."""
    if os.name == "nt":
        pytest.skip("classes are graded on Linux and macOS")
    base = tmp_path_factory.mktemp("course")
    folder = base / "repository"
    files = {
        f"reference/day9/{STEM}.py": REFERENCE,
        "src/my_course/__init__.py": "",
        "src/my_course/day9/__init__.py": '"""Day 9: sums."""\n\nEXERCISES = 1\nPOINTS = 1\n',
        "src/my_course/day9/total.py": MODULE,
        f"tests/day9/right/{STEM}/plain.py": (
            "def total(values, start=0.0):\n    return sum(values.tolist(), start)\n"
        ),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    python = environment_at(base / "environment", folder / "src", ROOT / "graders")
    register(python, "day9 = my_course.day9")
    return folder, python


@pytest.mark.slow
def test_a_hole_is_found_and_closed_and_an_equivalent_mutant_has_a_reason(
    course: tuple[Path, Path],
) -> None:
    folder, python = course
    command = ("gpudojo", "lint", "--day", "day9", "--mutants", "--jobs", "2")
    said = run(python, *command, cwd=folder)
    assert f"problem: {STEM}: a mutant of reference is alive (operator, total):\n{SIGNED}" in said
    found = (folder / "build" / "mutants" / "alive.toml").read_text(encoding="utf-8")
    assert SIGNED in found
    assert ALIKE in found
    assert "a rewrite" not in said

    # The scenario that was missing; and reasons for all of them, also for those that fail from now
    # on.
    module = folder / "src" / "my_course" / "day9" / "total.py"
    more = (
        '"five": lambda: describe_call(call, values), "from three": lambda: describe_call(call, '
        "values, 3.0)"
    )
    module.write_text(
        MODULE.replace('"five": lambda: describe_call(call, values)', more), encoding="utf-8"
    )
    text = found.replace(
        "why = ''", "why = 'the sum is a float already'\nquote = 'an int is as good'"
    )
    (folder / "tests" / "day9" / EQUIVALENT).write_text(text, encoding="utf-8")
    said = run(python, *command, cwd=folder)
    assert " is alive" not in said
    assert re.search(
        rf"reference-\w{{10}} is not equivalent, for it loses points\n{re.escape(SIGNED)}", said
    ), said
    assert ALIKE not in said
    assert "a rewrite" not in said
    assert re.search(rf"{STEM} +│ +\d+ │ +\d+ │ +[1-9]\d* │ +0 │ +\d+ │ +0 │", said), said


class Stopping:
    """Is told how grading goes, and stops it after some submissions."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.ran = 0
        self.known = 0

    def report_submissions(self, count: int, known: int, ignored: Sequence[Any]) -> None:
        self.known = known

    def report_preparation(self, what: str) -> None: ...
    def report_isolation(self, layers: dict[str, str]) -> None: ...
    def report_running(self, tasks: Sequence[Any]) -> None: ...

    def report_verdict(self, submission: str, status: SubmissionStatus, ran: bool) -> None:
        self.ran += ran
        if self.ran == self.after:
            raise KeyboardInterrupt


@pytest.mark.skipif(os.name == "nt", reason="classes are graded on Linux and macOS")
@pytest.mark.usefixtures("loaded_fork_servers")
def test_a_run_that_was_stopped_is_resumed(tmp_path: Path) -> None:
    exercise = next(each for each in exercises_of("day8") if each.stem.startswith("12"))
    first = Stopping(after=4)
    with pytest.raises(KeyboardInterrupt):
        examine_exercise("day8", exercise, ROOT, tmp_path, first, jobs=2, limit=12)
    second = Stopping()
    row = examine_exercise("day8", exercise, ROOT, tmp_path, second, jobs=2, limit=12)
    assert second.known >= 4
    assert second.known + second.ran == row.mutants + row.rewrites
    assert (row.alive, row.failing) == ([], [])


@pytest.mark.skipif(os.name == "nt", reason="classes are graded on Linux and macOS")
def test_an_unfinished_exercise_is_left_out_and_the_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is one that cannot be graded, but that is a problem."""
    graded, broken, unfinished, last = (Exercise(f"0{n}_x", "X", points=1) for n in (1, 2, 3, 4))
    exercises = (graded, broken, unfinished, last)
    examined = []

    def examine(day: str, exercise: Exercise, *rest: Any) -> FairnessRow:
        examined.append(exercise.stem)
        if exercise is broken:
            raise BadClass("this is no Python")
        return FairnessRow(exercise.stem, mutants=7, rewrites=2)

    monkeypatch.setattr(authoring, "exercises_of", lambda day: exercises)
    monkeypatch.setattr(fairness, "examine_exercise", examine)
    monkeypatch.setattr(
        lint, "unfinished_notes", lambda day, exercise, root: ["a note"] * (exercise is unfinished)
    )
    command = ["lint", "--mutants", "--day", "day8", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1, done.output
    assert examined == ["01_x", "02_x", "04_x"]
    assert re.search(r"04_x +│ +7 │", done.output), done.output
    assert re.search(r"total +│ +14 │", done.output), done.output
    assert "problem: 02_x: it cannot be graded: this is no Python\n" in done.output
    assert "warning: 03_x: it is unfinished, and was left out; see: dojo lint\n" in done.output


def small_exercise() -> Exercise:
    exercise = Exercise(STEM, "The sum", points=2)
    function = exercise.function("total")

    @function.probe
    def sums(call: Call) -> Cases[Ran]:
        values = torch.arange(1.0, 6.0).to(call.device)
        return try_scenarios({"five": lambda: describe_call(call, values)})

    runs(function)
    same_as_reference(function, sums, points=1, claim="It returns the sum.")

    @function.check(points=1)
    def leaves_alone(seen: Seen, wanted: Seen) -> None:
        """It does no harm."""

    return exercise


def test_a_check_that_pays_for_nothing_is_found(tmp_path: Path) -> None:
    path = tmp_path / f"{STEM}.py"
    path.write_text(REFERENCE, encoding="utf-8")
    exercise = small_exercise()
    (found,) = paid_for_nothing(exercise, REFERENCE, ReferenceSolution(path, keep=True))
    assert re.fullmatch(
        r"\d\d of 2\d answers to `total` that do nothing earn points, the most, 1, for `return "
        r"None`; "
        "paid for: leaves_alone",
        found.text,
    )
    (function,) = exercise.functions
    del function.checks[-1]
    assert list(paid_for_nothing(exercise, REFERENCE, ReferenceSolution(path, keep=True))) == []
    assert (
        sum(result.points for result in grade_on_virtual_device(exercise, function, path, None))
        == 1
    )


def test_an_entry_that_is_stale_or_gives_no_reason_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reference" / "day9").mkdir(parents=True)
    (tmp_path / "reference" / "day9" / f"{STEM}.py").write_text(REFERENCE, encoding="utf-8")
    exercise = small_exercise()
    ((*made,),) = all_mutants("day9", exercise, tmp_path)
    alike = next(one for one in made if one.diff == ALIKE)
    good = Equivalent(
        STEM,
        "float() of a float is the same",
        [KnownMutant(alike.name, alike.diff)],
        "an int is as good",
    )

    def said(entry: Equivalent) -> list[str]:
        return [found.text for found in doubtful_entries(exercise, [entry], made, tmp_path, "day9")]

    assert said(good) == []
    (text,) = said(
        msgspec.structs.replace(good, mutants=[KnownMutant("reference-0123456789", ALIKE)])
    )
    assert "there is no such mutant any more: reference-0123456789" in text
    (text,) = said(msgspec.structs.replace(good, mutants=[KnownMutant(alike.name, SIGNED)]))
    assert "there is no such mutant any more" in text
    (text,) = said(msgspec.structs.replace(good, why=" "))
    assert text.endswith("give a reason in a sentence")
    (text,) = said(msgspec.structs.replace(good, quote="a string is as good"))
    assert text.endswith("the reference's file does not say 'a string is as good'")


@pytest.mark.parametrize("text", ["def total(values:\n", "total = 1\0\n"])
@pytest.mark.parametrize("name", [f"reference/day9/{STEM}.py", f"tests/day9/right/{STEM}/odd.py"])
def test_a_solution_that_is_no_python_is_told_by_its_place(
    name: str, text: str, tmp_path: Path
) -> None:
    reference = tmp_path / "reference" / "day9" / f"{STEM}.py"
    reference.parent.mkdir(parents=True)
    reference.write_text(REFERENCE, encoding="utf-8")
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    for make in (all_mutants, all_rewrites):
        with pytest.raises(BadClass, match=rf"^{re.escape(name)}(:1)?: this is not Python, so no "):
            make("day9", small_exercise(), tmp_path)


def test_a_file_that_is_not_one_of_entries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / EQUIVALENT
    assert read_equivalents(path) == []
    for text in ("[[equivalent]]\nexercise = 'x'\n", "[[equivalent]]\nbecause = 1\n", "["):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadClass, match=EQUIVALENT):
            read_equivalents(path)


@pytest.mark.parametrize("exercise", exercises_of("day8"), ids=lambda exercise: exercise.stem)
def test_every_entry_of_day8_is_about_a_mutant_and_has_a_reason(exercise: Exercise) -> None:
    entries = [
        each
        for each in read_equivalents(ROOT / "tests" / "day8" / EQUIVALENT)
        if each.exercise == exercise.stem
    ]
    named = {one.name.rpartition("-")[0] for entry in entries for one in entry.mutants}
    made = [one for each in all_mutants("day8", exercise, ROOT, named) for one in each]
    assert [found.text for found in doubtful_entries(exercise, entries, made, ROOT, "day8")] == []


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="classes are graded on Linux and macOS")
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("loaded_fork_servers")
@pytest.mark.parametrize("exercise", exercises_of("day8"), ids=lambda exercise: exercise.stem)
def test_no_mutant_of_day8_passes_without_a_reason_and_no_rewrite_fails(
    exercise: Exercise, tmp_path: Path
) -> None:
    row = examine_exercise("day8", exercise, ROOT, tmp_path, Stopping(), jobs=2, limit=LIMIT)
    assert [(one.name, one.diff) for one in row.alive] == []
    assert [(one.name, check.id) for one, check in row.failing] == []
