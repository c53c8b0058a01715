"""`dojo lesson` lists the lessons, shows one, and writes pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from gpudojo.cli import main
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.lessons import lesson_of
from rich.console import Console


def dojo(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lesson", *arguments])


def test_without_a_number_it_lists_them() -> None:
    lines = dojo().output.splitlines()
    assert lines[:-1] == [f"{each.number}  {each.title}" for each in exercises_of("day8")]
    assert lines[-1] == "To read one, run: dojo lesson 01"


@pytest.mark.parametrize("name", ["04", "4", "exercises/day8/04_modifying_training_loop_gpu.py"])
def test_a_number_or_a_file_shows_one(name: str) -> None:
    exercise = next(each for each in exercises_of("day8") if each.number == "04")
    assert dojo(name).output == f"{lesson_of(exercise)}\n"


@pytest.mark.parametrize("charset", ["cp1252", "ascii"])
def test_an_output_without_all_characters_gets_similar_ones(charset: str) -> None:
    for exercise in exercises_of("day8"):
        result = CliRunner(charset=charset).invoke(main, ["lesson", exercise.number])
        assert result.exit_code == 0, exercise.number
        assert "?" * 3 not in result.output


def test_a_terminal_gets_it_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("TERM", "dumb")  # no colours
    monkeypatch.setenv("COLUMNS", "80")
    text = dojo("06").output
    assert "Why it matters on a GPU" in text
    assert "##" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_is_not_there_is_named() -> None:
    done = dojo("77")
    assert done.exit_code == 1
    assert done.output.startswith("Error: day8 has no lesson 77; there are: 01, 02, ")


def test_a_day_without_lessons_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudojo.cli.watch.lesson_path", lambda day, stem: None)
    done = dojo()
    assert (done.exit_code, done.output) == (1, "Error: day8 has no lessons\n")


def test_pages(tmp_path: Path) -> None:
    one = tmp_path / "one.html"
    every = tmp_path / "every.html"
    assert dojo("04", "--html", str(one)).output == f"written: {one}\n"
    assert dojo("--html", str(every)).exit_code == 0
    text = one.read_text(encoding="utf-8")
    assert "<title>04 A training loop that runs on the GPU</title>" in text
    assert text.count("<details><summary>Answer</summary>") == 3
    assert "<!--" not in text
    assert every.read_text(encoding="utf-8").count('<article class="lesson">') == len(
        exercises_of("day8")
    )


@pytest.mark.parametrize(
    "name", ["train_epoch", "exercises/day8/04_modifying_training_loop_gpu.py"]
)
def test_a_function_or_a_path_shows_one(name: str) -> None:
    assert dojo(name).output == dojo("04").output


def test_a_name_like_one_is_suggested() -> None:
    said = "Error: day8 has no lesson 04_mod; did you mean 04_modifying_training_loop_gpu?\n"
    assert dojo("04_mod").output == said


def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before", encoding="utf-8")
    monkeypatch.setattr("gpudojo.cli.watch._page_of_lessons", lambda day, chosen: "\ud800")
    assert dojo("04", "--html", str(page)).exit_code == 1
    assert page.read_text(encoding="utf-8") == "before"
    assert "--remake does not go with --html" in dojo("04", "--remake", "--html", str(page)).output
