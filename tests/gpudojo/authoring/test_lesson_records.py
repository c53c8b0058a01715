"""What lessons say a snippet did is what the virtual GPU records, and `dojo lint` finds what is
wrong with a lesson.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.authoring import lesson_records, lint
from gpudojo.authoring.lesson_records import fill_lesson, lesson_problems
from gpudojo.cli import main
from gpudojo.model import catalogue, lessons
from gpudojo.model.catalogue import Day, exercises_of, registered_days
from gpudojo.model.errors import BadDay
from gpudojo.model.exercise import Exercise

ROOT = Path(__file__).parents[3]
STEM = "04_modifying_training_loop_gpu"


def snippet(code: str, options: str = "", name: str = "right") -> str:
    return f"<!-- run: {name}{options} -->\n```python\n{code}\n```\n"


def block(source: str) -> str:
    (found,) = (
        one.recorded for one in lessons.snippets_in(fill_lesson(source)) if one.recorded is not None
    )
    return found


@pytest.mark.parametrize("exercise", exercises_of("day8"), ids=lambda exercise: exercise.number)
def test_every_lesson_is_as_its_snippets_run_now_and_shows_no_solution(exercise: Exercise) -> None:
    assert list(lesson_problems("day8", exercise.stem, ROOT)) == []


def test_a_table_has_a_row_for_each_line_that_did_something() -> None:
    setup = snippet("import torch\ndef add(x):\n    return x + 1", name="setup")
    made = block(setup + snippet('x = torch.ones(256)\ny = add(x.to("cuda"))\nprint(y.device)'))
    heading, copied, added, said = made.splitlines()
    assert heading.split() == ["recorded,", "by", "line", *heading.split()[3:]]
    assert copied.startswith(' 2  y = add(x.to("cuda"))')
    assert "1 KiB" in copied
    assert added.startswith("        return x + 1")
    assert said == "printed: cuda:0"


def test_a_timeline_explains_only_the_signs_in_it() -> None:
    made = block(snippet('import torch\ntorch.ones(8).to("cuda").sum().item()', " timeline"))
    assert "to the device" in made
    assert "backward" not in made  # the B of "32 B" is no sign


def test_an_error_a_second_gpu_and_a_small_memory() -> None:
    two = block(snippet("import torch\nprint(torch.cuda.device_count())", " gpus=2"))
    assert two == "The device was not used.\nprinted: 2\n"
    full = block(
        snippet('import torch\ntorch.zeros(1 << 20, device="cuda")', " memory=2MiB", "wrong")
    )
    assert (
        "error: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 MiB."
        in " ".join(full.split())
    )


def test_a_setup_that_fails_is_told_and_what_it_prints_is_not_shown() -> None:
    made = block(snippet("print('ready')", name="setup") + snippet("print('done')"))
    assert made == "The device was not used.\nprinted: done\n"
    assert "ZeroDivisionError" in block(snippet("1 / 0", name="setup") + snippet("print('done')"))


@pytest.mark.parametrize("options", [" gpus=many", " gpus=0", " memory=much"])
def test_options_that_are_none(options: str) -> None:
    with pytest.raises(BadDay, match="snippet 'right', line 3"):
        fill_lesson(snippet("pass", options))


def test_filling_again_changes_nothing() -> None:
    once = fill_lesson(snippet('import torch\nprint(torch.rand(1, device="cuda").item())'))
    assert "printed: " in once
    assert fill_lesson(once) == once


@pytest.fixture
def lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lesson of 04 in a day of its own, to be spoiled."""
    folder = tmp_path / "day"
    here = registered_days()["day8"].folder / lessons.LESSONS_FOLDER / f"{STEM}.md"
    (folder / lessons.LESSONS_FOLDER).mkdir(parents=True)
    made = Path(shutil.copy(here, folder / lessons.LESSONS_FOLDER))
    for module in (catalogue, lessons, lesson_records):
        monkeypatch.setattr(
            module, "registered_days", lambda: {"day8": Day("day8", "gpudojo.days.day8", folder)}
        )
    return made


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (
            "range(5)",
            "range(6)",
            f"lessons/{STEM}.md: what was recorded is out of date; run: dojo lesson 04 --remake",
        ),
        (
            "<!-- run: setup -->\n",
            "",
            "line 20: nothing runs this code; write <!-- run: NAME --> above it",
        ),
        ("run: wrong", "run: other", "has no snippet called wrong"),
        ("</details>", "", "does not have 3 questions with answers"),
        ("opt.step()", "opt.jump()", "the snippet called right ends with an error"),
        ("Three batches", "`total += loss.item() * len(targets)` three", "shows line"),
        (
            "opt.step()",
            "opt.step()\n    model.train()",
            "of 04_modifying_training_loop_gpu.py: model.train()",
        ),
    ],
)
def test_lint_says_what_is_wrong(lesson: Path, before: str, after: str, found: str) -> None:
    source = lesson.read_text(encoding="utf-8")
    assert before in source
    lesson.write_text(source.replace(before, after), encoding="utf-8")
    said = list(lesson_problems("day8", STEM, ROOT))
    assert any(found in text for text in said), said


def test_a_day_with_lessons_has_one_for_each_exercise_and_a_day_may_have_none(lesson: Path) -> None:
    lesson.unlink()
    assert list(lesson_problems("day8", STEM, ROOT)) == [f"it has no lesson lessons/{STEM}.md"]
    lesson.parent.rmdir()
    assert list(lesson_problems("day8", STEM, ROOT)) == []


def test_lint_reports_them_with_the_exercise(lesson: Path) -> None:
    lesson.write_text(lesson.read_text(encoding="utf-8").replace("0.27", "0.28"), encoding="utf-8")
    exercise = next(each for each in exercises_of("day8") if each.stem == STEM)
    row = lint.lint_exercise(exercise, "day8", ROOT, (), quick=True)
    assert [finding.text for finding in row.findings if "out of date" in finding.text]


def test_remake_writes_what_is_recorded_now(lesson: Path) -> None:
    right = lesson.read_text(encoding="utf-8")
    lesson.write_text(right.replace("0.27", "0.28"), encoding="utf-8")
    made = CliRunner().invoke(main, ["lesson", "04", "--remake"])
    assert made.output == f"written: {lesson}\n"
    assert lesson.read_text(encoding="utf-8") == right
    assert "up to date" in CliRunner().invoke(main, ["lesson", "04", "--remake"]).output
