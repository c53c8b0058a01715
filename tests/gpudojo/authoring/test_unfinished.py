"""An unfinished exercise gives warnings and a next step.

A finished one with the same fault is a problem.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.authoring import lint, lint_declarations
from gpudojo.authoring.findings import Finding
from gpudojo.authoring.kept_solutions import Solution
from gpudojo.authoring.lint import Note, next_step, unfinished_notes
from gpudojo.authoring.lint_solutions import too_few_spellings
from gpudojo.authoring.new import Plan, Surroundings, exercise_files, write_new
from gpudojo.cli import main
from gpudojo.model import catalogue
from gpudojo.model.exercise import Exercise

STEM = "01_new"


@pytest.fixture
def skeleton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with nothing but a skeleton, whose package is found."""
    write_new(
        tmp_path, exercise_files(Plan("day9", "new", ("brighter",)), Surroundings({"day9": ()}))
    )
    module = tmp_path / "graders" / "gpudojo" / "days" / "day9" / "new.py"
    hints = module.parent / "hints" / f"{STEM}.toml"
    monkeypatch.setattr(lint, "source_files", lambda name, exercise: [module, hints])
    return tmp_path


def left(root: Path) -> list[Note]:
    return unfinished_notes("day9", Exercise(STEM, "New", 5), root)


def test_notes_come_in_the_order_of_work(skeleton: Path) -> None:
    found = [(note.path.relative_to(skeleton).as_posix(), note.text) for note in left(skeleton)]
    assert [path for path, _ in dict(found).items()] == [
        f"reference/day9/{STEM}.py",
        "graders/gpudojo/days/day9/new.py",
        f"graders/gpudojo/days/day9/hints/{STEM}.toml",
        f"tests/day9/solutions_{STEM}.py",
    ]
    assert found[0][1] == "say in one sentence what it returns."
    assert (
        f"graders/gpudojo/days/day9/hints/{STEM}.toml",
        "write a first hint, which names the tool.",
    ) in found
    path, last = found[-1]
    assert (path, last.partition(" when ")[0]) == (
        "graders/gpudojo/days/day9/new.py",
        "delete this line",
    )


def test_the_next_step_is_a_note_then_what_is_found_then_the_last_note(skeleton: Path) -> None:
    exercise = Exercise(STEM, "New", 5)
    found = left(skeleton)
    broken = [Finding(STEM, "the stub is stale"), Finding(STEM, "more")]
    step = next_step(exercise, found, broken, skeleton)
    assert step.warning
    where = f"reference/day9/{STEM}.py:11"
    assert step.text == (
        f"unfinished, {len(found)} notes left; next: {where}: say in one sentence what it returns."
    )
    last = found[-1:]
    assert (
        next_step(exercise, last, broken, skeleton).text
        == "unfinished, 1 note left; next: the stub is stale"
    )
    assert next_step(exercise, last, [], skeleton).text.startswith(
        "unfinished, 1 note left; next: graders/gpudojo/days/day9/new.py:3: delete this line when "
        "`dojo lint"
    )


def test_without_notes_it_is_finished(skeleton: Path) -> None:
    for note in left(skeleton):
        text = note.path.read_text(encoding="utf-8")
        note.path.write_text(text.replace("TODO: ", ""), encoding="utf-8")
    assert left(skeleton) == []


def test_no_exercise_of_day_8_has_a_note_left() -> None:
    root = Path(__file__).parents[3]
    assert [
        note
        for exercise in catalogue.exercises_of("day8")
        for note in unfinished_notes("day8", exercise, root)
    ] == []


@pytest.mark.parametrize("unfinished", [True, False])
def test_a_wrong_sum_is_a_warning_until_the_exercise_is_finished(
    unfinished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = Exercise("13_more", "More", points=3)
    every = (*catalogue.exercises_of("day8"), more)
    note = Note(tmp_path / "module.py", 1, "a hint")
    for module in (lint, lint_declarations):
        monkeypatch.setattr(module, "exercises_of", lambda name: every)
    monkeypatch.setattr(
        lint, "unfinished_notes", lambda name, e, root: [note] if e is more and unfinished else []
    )
    # Of the others nothing is there, in this folder; only what is said of all and of the new one
    # matters here.
    report = lint.lint_day("day8", tmp_path, quick=True)
    (told,) = [finding for finding in report.general if "add up" in finding.text]
    assert told.text.startswith("the points add up to 103, not 100")
    assert told.warning is unfinished
    assert told.text.endswith("; correct this before you finish 13_more") is unfinished
    assert {finding.warning for finding in report.rows[-1].findings} == {unfinished}
    assert report.unfinished == (["13_more"] if unfinished else [])
    first = report.rows[-1].findings[0].text
    assert first == (
        f"unfinished, 1 note left; next: module.py:1: {note.text}"
        if unfinished
        else 'it has no functions; declare one with exercise.function("name")'
    )


def test_right_solutions_are_counted_and_stubs_are_none(tmp_path: Path) -> None:
    exercise = Exercise(STEM, "New", 5)
    exercise.function("first")
    exercise.function("second")
    right = [
        Solution(tmp_path / f"{number}.py", f"right/{number}.py", wrong=False)
        for number in range(5)
    ]
    for one in right:
        one.path.write_text("def first(x):\n    return x\nsecond = lambda x: x\n")
    assert list(too_few_spellings(exercise, right)) == []
    right[3].path.write_text(
        "def first(x):\n    return x\ndef second(x):\n    raise NotImplementedError\n"
    )
    right[4].path.write_text("def second(:\n")
    assert [finding.text for finding in too_few_spellings(exercise, right)] == [
        "this is not Python: invalid syntax",
        "`second` has 3 right solutions; it needs 4",
    ]


def test_days_are_packages_called_so_in_the_order_of_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("day10", "day8", "days", "day", "day8x", "day08", "daylight"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise AssertionError('a day is found without importing it')"
        )
    (tmp_path / "day9" / "__pycache__").mkdir(
        parents=True
    )  # what git leaves of a day of another branch
    (tmp_path / "day7.py").touch()
    monkeypatch.setattr(catalogue, "BUILT_IN", tmp_path)
    assert list(catalogue.registered_days.__wrapped__()) == ["day8", "day10"]


def test_a_class_is_not_graded_with_points_that_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catalogue.wrong_points("day8") is None
    monkeypatch.setattr(catalogue, "size_of_complete_day", lambda name: (12, 104.0))
    (tmp_path / "class" / "ada").mkdir(parents=True)
    (tmp_path / "class" / "ada" / "01_checking_device.py").write_text("")
    done = CliRunner().invoke(
        main, ["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1
    assert "the points of day8 add up to 100, not 104; see: dojo lint --day day8" in done.output
    assert not (tmp_path / "out" / "results.json").exists()
    more = Exercise("13_more", "More", points=3)
    monkeypatch.setattr(catalogue, "exercises_of", lambda name: (more,))
    assert catalogue.wrong_points("day8") == "the checks of 13_more add up to 0 points, not 3"
