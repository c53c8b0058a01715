"""`dojo export` writes what it is asked for, and answers bad input with a sentence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from gpudojo.classes.store import Store
from gpudojo.cli import main
from gpudojo.cli.export import exercises_of_class
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import write
from gpudojo.platforms import describe_format, format_names, options_used_by
from gpudojo.submissions.own_output import MARK

from tests.gpudojo.platforms.export.classes import CLASS, EXERCISES, RUNNER
from tests.gpudojo.platforms.export.golden import SOURCES, TABLES


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write(tmp_path / "results.json", CLASS, CLASS.submissions)
    for digest, sources in SOURCES.items():
        Store(tmp_path).keep_sources(digest, sources)
    return tmp_path / "results.json"


def dojo(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "220", **RUNNER}).invoke(
        main, ["export", *map(str, arguments)]
    )
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_help_lists_the_formats_of_the_package() -> None:
    code, said = dojo("--help")
    assert code == 0
    for name in format_names():
        assert " ".join(describe_format(name).split()[:5]) in said


@pytest.mark.parametrize("format_", format_names())
def test_every_format_can_be_written(results: Path, format_: str) -> None:
    out = results.parent / "out" / format_
    table = (
        ("--worksheet", TABLES / "worksheet.csv") if "worksheet" in options_used_by(format_) else ()
    )
    code, said = dojo(results, "--to", format_, "--out", out, *table)
    assert code == 0
    count = sum(path.is_file() and path.name != MARK for path in out.rglob("*"))
    assert f"{count} file{'s' * (count > 1)} written to {out}." in said
    assert "note: 3 of 6 submissions need review" in said  # as on the class page


def test_bad_input_is_answered_with_a_sentence(results: Path) -> None:
    out = results.parent / "out"
    for arguments, sentence in {
        (results, "--to", "excel", "--out", out): "'excel' is not one of",
        (results.parent / "none.json", "--to", "junit", "--out", out): "does not exist",
        (
            TABLES / "gradebook.csv",
            "--to",
            "junit",
            "--out",
            out,
        ): "is not a file of results: it is not JSON",
        (results, "--to", "junit", "--out", results): "is a file",
        (
            results,
            "--to",
            "moodle",
            "--out",
            out,
        ): "cannot export to moodle: give the assignment's grading worksheet",
        (
            results,
            "--to",
            "junit",
            "--out",
            out,
            "--submission",
            "adda",
        ): "has no submission 'adda'; did you mean ada?",
    }.items():
        code, said = dojo(*arguments)
        assert code in (1, 2)
        assert sentence in said
        assert "Traceback" not in said


def test_a_folder_of_results_will_do(results: Path) -> None:
    code, said = dojo(results.parent, "--to", "nbgrader", "--out", results.parent / "out")
    assert (code, "1 file written" in said) == (0, True)


def test_one_submission(results: Path) -> None:
    out = results.parent / "out"
    assert dojo(results, "--to", "gradescope", "--out", out, "--submission", "ada")[0] == 0
    assert {path.name for path in out.iterdir()} == {MARK, "results.json"}


def test_a_day_s_exercises_come_from_the_class_or_the_curriculum() -> None:
    assert exercises_of_class(CLASS, CLASS.submissions) == EXERCISES
    alone = msgspec.structs.replace(CLASS, submissions=CLASS.submissions[4:5])
    assert exercises_of_class(alone, alone.submissions) == ()
    known = exercises_of_class(
        msgspec.structs.replace(alone, day="day8", max_score=100.0), alone.submissions
    )
    assert [part.exercise for part in known] == [exercise.stem for exercise in exercises_of("day8")]
    assert sum(part.max_score for part in known) == 100


@pytest.mark.parametrize(
    ("format_", "option"),
    [
        ("junit", "--title"),
        ("canvas", "--worksheet"),
        ("moodle", "--gradebook"),
        ("statistics", "--submission"),
        ("jplag", "--submission"),
    ],
)
def test_an_option_that_a_format_does_not_take_is_refused(
    tmp_path: Path, format_: str, option: str
) -> None:
    (tmp_path / "results.json").touch()
    words = [
        "export",
        str(tmp_path),
        "--to",
        format_,
        "--out",
        str(tmp_path / "out"),
        option,
        __file__,
    ]
    done = CliRunner().invoke(main, words)
    assert f"{option} does not go with --to {format_}" in done.output
    assert not (tmp_path / "out").exists()


def test_who_handed_in_nothing_is_no_submission_to_review(tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(CLASS.submissions[0], needs_human=["a copy"])
    absent = SubmissionRow(
        "Eve", SubmissionStatus.ABSENT, 0.0, 3.0, reason="Nothing was handed in."
    )
    write(tmp_path / "results.json", CLASS, [wrong, absent])
    done = CliRunner().invoke(
        main, ["export", str(tmp_path), "--to", "statistics", "--out", str(tmp_path / "out")]
    )
    assert "note: 1 of 1 submissions needs review; " in done.output
