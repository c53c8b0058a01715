"""Each format is what its reader expects, whatever a submission is called and whatever happened."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from pathlib import Path

import msgspec
import pytest
from gpudojo.classes.store import Store
from gpudojo.model.errors import CannotExport
from gpudojo.model.results import (
    ExerciseRow,
    Grade,
    Outcome,
    Override,
    RosterRow,
    RubricRow,
    SubmissionRow,
    SubmissionStatus,
    Timing,
    Visibility,
    not_handed_in,
)
from gpudojo.platforms import describe_format, exporter_of, format_names
from gpudojo.platforms._files import LONGEST_NAME, file_names, safe_name
from gpudojo.platforms._rows import rows_of_submission
from gpudojo.platforms._texts import describe_delay, lines_for_student, one_line

from tests.gpudojo.platforms.export import readers
from tests.gpudojo.platforms.export.classes import (
    CLASS,
    ODD,
    OPTIONS,
    RUNNER,
    P,
    check,
    one,
    submission,
)
from tests.gpudojo.platforms.export.golden import GOLDEN, TABLES, export_all, files

REMAKE = "look at the difference, then run: python -m tests.gpudojo.platforms.export.golden"


def test_every_format_is_as_it_was(tmp_path: Path) -> None:
    said = export_all(tmp_path)
    wanted = files(GOLDEN)
    made = files(tmp_path)
    assert sorted(made) == sorted(wanted), REMAKE
    for name, content in made.items():
        assert content == wanted[name], f"{name}: {REMAKE}"
    assert {name.partition("/")[0] for name in wanted} == set(format_names())
    left_out = ", ".join(row.submission for row in CLASS.submissions[2:])
    assert said["canvas"] == [f"4 students left out, in no line of the table: {left_out}."]
    assert said["github_classroom"] == said["junit"] == []


def test_what_was_not_graded_is_told_in_one_sentence(tmp_path: Path) -> None:
    reason = "not graded: it wrote to the pipe; remove that"
    checks = [
        check(
            f"01_one::f::{name}", Outcome.FAILED, 1.0, message="not graded", happened="not graded"
        )
        for name in ("runs", "right")
    ]
    row = submission(
        "eve",
        ExerciseRow("01_one", "One", 0.0, 2.0, checks),
        status=SubmissionStatus.NOT_GRADED,
        reason=reason,
        needs_human=["forged: it wrote to the pipe"],
    )
    assert lines_for_student(row, OPTIONS.exercises) == [f"0 of 3 points: {reason}"]
    for format_ in ("gradescope", "prairielearn", "exercism", "autolab", "junit"):
        exporter_of(format_)(CLASS, [row], tmp_path / format_, OPTIONS)
        text = "".join(path.read_text() for path in (tmp_path / format_).rglob("*.*"))
        assert reason in text
        assert "forged" not in text
    told: list[str] = []
    options = dataclasses.replace(OPTIONS, say=told.append)
    exporter_of("statistics")(CLASS, [row], tmp_path, options)
    assert told == ["1 submission was not graded and is not counted."]


def test_every_format_is_one_function_of_one_signature() -> None:
    assert format_names()
    for name in format_names():
        module = importlib.import_module(f"gpudojo.platforms.{name}")
        public = [
            each
            for each, value in vars(module).items()
            if inspect.isfunction(value)
            and value.__module__ == module.__name__
            and not each.startswith("_")
        ]
        assert public == ["export"]
        assert str(inspect.signature(module.export)) == (
            "(header: 'ClassResults', rows: 'Iterable[SubmissionRow]', target: 'Path', options: "
            "'Options')"
            " -> 'list[Path]'"
        )
        assert describe_format(name).endswith(".")


def only(format_: str, row: SubmissionRow, folder: Path, **more: object) -> Path:
    results = msgspec.structs.replace(CLASS, submissions=[row])
    written = exporter_of(format_)(
        results,
        results.submissions,
        folder,
        dataclasses.replace(OPTIONS, submission=row.submission, **more),
    )
    return written[0]


@pytest.mark.parametrize(
    "status", [status for status in SubmissionStatus if status is not SubmissionStatus.GRADED]
)
@pytest.mark.parametrize("known", [OPTIONS.exercises, ()])
def test_a_submission_that_was_not_graded_says_why_everywhere(
    tmp_path: Path, status: SubmissionStatus, known: tuple[ExerciseRow, ...]
) -> None:
    row = submission("eve", status=status, reason="It went wrong on line 3.")
    for format_ in ("github_classroom", "classroom50", "gradescope", "exercism", "junit"):
        text = only(format_, row, tmp_path / format_, exercises=known).read_text(encoding="utf-8")
        assert "It went wrong on line 3." in text, format_
    assert json.loads((tmp_path / "exercism/results.json").read_bytes())["status"] == "error"
    runner = json.loads((tmp_path / "github_classroom/eve.json").read_bytes())
    assert (runner["status"], runner["max_score"]) == ("fail", 3)
    assert (
        readers.total_recorded_by_github([runner])
        == readers.total_printed_by_github([runner])
        == (0.0, 3.0)
    )
    ids = {path.name for path in (tmp_path / "github_classroom").glob("*.base64")}
    # A workflow names its runners beforehand: they have to be there for a submission that never
    # ran, too.
    assert ids == {
        "eve.base64",
        *({"exercise01.base64", "exercise02.base64"} if known else {"submission.base64"}),
    }


def test_our_own_error_costs_nothing_and_is_loud(tmp_path: Path) -> None:
    row = CLASS.submissions[1]
    runner = json.loads(only("github_classroom", row, tmp_path).read_bytes())
    assert runner["status"] == "error"
    assert readers.total_recorded_by_github([runner]) == (3.0, 3.0)
    assert "gpudojo's fault" in json.dumps(runner)
    exercism = json.loads(only("exercism", row, tmp_path).read_bytes())
    assert exercism["status"] == "error"
    assert exercism["message"]
    assert 'errors="1"' in only("junit", row, tmp_path).read_text(encoding="utf-8")


def test_a_class_worth_nothing_has_no_nan(tmp_path: Path) -> None:
    row = SubmissionRow("eve", SubmissionStatus.GRADED, 0.0, 0.0)
    runner = json.loads(only("github_classroom", row, tmp_path, exercises=()).read_bytes())
    assert len(runner["tests"]) == 1
    assert (
        readers.total_recorded_by_github([runner])
        == readers.total_printed_by_github([runner])
        == (0.0, 0.0)
    )


def test_nothing_in_github_s_log_can_be_a_workflow_command(tmp_path: Path) -> None:
    row = CLASS.submissions[0]  # its check's text has two of them
    runner = json.loads(only("github_classroom", row, tmp_path).read_bytes())
    assert "forged" in json.dumps(runner)
    for test in runner["tests"]:
        for value in (test["name"], test["message"], test["filename"], test["test_code"]):
            assert len(value.splitlines()) <= 1
            assert "##[" not in value
            assert not value.lstrip().startswith("::")
        assert isinstance(test["line_no"], int)


def test_points_too_fine_for_equal_tests_are_said(tmp_path: Path) -> None:
    said: list[str] = []
    check = msgspec.structs.replace(
        CLASS.submissions[0].exercises[0].checks[0], points=0.000001, max_points=2.0
    )
    exercise = msgspec.structs.replace(
        CLASS.submissions[0].exercises[0], score=0.000001, checks=[check]
    )
    only("github_classroom", submission("ada", exercise), tmp_path, say=said.append)
    assert said == [
        "1 of the submissions have points too fine for tests of equal weight: "
        "the reporter records the right total and shows another."
    ]


def test_a_runner_too_large_for_a_variable_is_left_out_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    exercise = CLASS.submissions[0].exercises[0]
    checks = [msgspec.structs.replace(exercise.checks[2], id=f"01_one::f::{n}") for n in range(200)]
    checks = [msgspec.structs.replace(each, happened="x" * 5000) for each in checks]
    row = submission(
        "ada", msgspec.structs.replace(exercise, score=0.0, max_score=100.0, checks=checks)
    )
    row = msgspec.structs.replace(row, max_score=100.0)
    (tmp_path / "ada.base64").write_text("old", encoding="utf-8")
    only("github_classroom", row, tmp_path, say=said.append)
    assert (tmp_path / "ada.json").is_file()
    assert not (tmp_path / "ada.base64").exists()
    assert said[0].startswith("1 of the submissions do not fit into one environment variable")


def test_what_only_a_teacher_should_read_is_not_exported(tmp_path: Path) -> None:
    secret = "looks like a copy of bob's"
    row = msgspec.structs.replace(CLASS.submissions[0], needs_human=[secret], notes=[secret])
    results = msgspec.structs.replace(CLASS, submissions=[row])
    for format_ in format_names():
        Store(tmp_path).keep_sources(row.digest, {"a.py": b"x = 1\n"})
        options = dataclasses.replace(
            OPTIONS, worksheet=(TABLES / "worksheet.csv",), results=tmp_path
        )
        for path in exporter_of(format_)(results, results.submissions, tmp_path / format_, options):
            assert secret not in path.read_text(encoding="utf-8")


def test_names_of_files_are_safe_and_unique() -> None:
    given = [
        "a",
        "A",
        "a-2",
        "../x",
        "..",
        "",
        "CON",
        "con.py",
        "a/b",
        "a\\b",
        ODD,
        "x" * 300,
        "x" * 301,
        "-rf",
        "é",
        "é",
    ]
    results = msgspec.structs.replace(
        CLASS, submissions=[SubmissionRow(n, SubmissionStatus.GRADED, 0.0, 0.0) for n in given]
    )
    made = file_names(results.submissions)
    assert len({name.casefold() for name in made}) == len(given)
    for name in made:
        assert not set(name) & set('<>:"/\\|?*\n\0')
        assert name.split(".")[0].lower() not in ("con", "nul", "")
        assert not name.startswith(("-", "."))
        assert not name.endswith((".", " "))
        assert len(name.encode()) <= LONGEST_NAME + 4
    assert made[:4] == ["a", "A-2", "a-2-2", "_.._x"]
    assert safe_name("Ada Lovelace 🦄") == "Ada Lovelace 🦄"


def test_one_submission_alone_goes_where_programs_look_for_it(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, submission="../late")
    assert exporter_of("classroom50")(CLASS, CLASS.submissions, tmp_path, options) == [
        tmp_path / "result.json"
    ]
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["owner"] == "late-account"
    assert result["submission"] == RUNNER["SUBMISSION_TAG"]
    tagged = dataclasses.replace(
        options, environment=RUNNER | {"SUBMISSION_TAG": "submit/3", "MODE": "group"}
    )
    exporter_of("classroom50")(CLASS, CLASS.submissions, tmp_path, tagged)
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert (result["submission"], result["assignment"]) == ("submit/3", "day-0")
    assert (result["assignment_type"], result["review"]) == ("group", RUNNER["COMMIT_URL"])
    assert result["datetime"] == "2026-11-15T04:30:00Z"


def test_classroom50_names_what_its_runner_has_not_set(tmp_path: Path) -> None:
    environment = {
        name: text for name, text in RUNNER.items() if name not in ("CLASSROOM", "RELEASE_URL")
    }
    with pytest.raises(
        CannotExport, match="CLASSROOM, RELEASE_URL are not set; its runner sets them"
    ):
        only("classroom50", CLASS.submissions[0], tmp_path, environment=environment)
    assert list(tmp_path.iterdir()) == []


def test_feedback_has_one_line_per_cause() -> None:
    """Nine checks that fail for one reason, and their blocked ones, are not eighteen lines."""
    same = {"message": "it waits", "misconception": "sync", "line": 3}
    checks = [check(f"01_one::f::c{n}", Outcome.FAILED, 1.0, **same) for n in range(9)]
    checks += [
        check(f"01_one::f::b{n}", Outcome.BLOCKED, 1.0, message="blocked: …") for n in range(9)
    ]
    checks += [check(f"01_one::g::t{n}", Outcome.TODO, 1.0, message="to do: …") for n in range(9)]
    checks += [check("01_one::h::long", Outcome.FAILED, 1.0, message="x" * 20_000)]
    row = submission("ada", ExerciseRow("01_one", "One", 0.0, 28.0, checks))
    row = msgspec.structs.replace(row, max_score=28.0)
    first, cause, long, to_do = lines_for_student(row, ())
    assert first == "0 of 28 points"
    assert cause == "01 f: it waits (line 3) [-18 points]", "the blocked checks cost points, too"
    assert len(long) < 400
    assert to_do == "To do: g."


def test_a_cause_costs_what_it_blocks_and_what_is_missing_is_one_line() -> None:
    checks = [
        check("01_one::f::runs", Outcome.FAILED, 0.0, message="it raised", line=3),
        check("01_one::f::learns", Outcome.BLOCKED, 4.0, blocked_by="runs"),
        check("01_one::f::other", Outcome.FAILED, 1.0, message="another", line=9),
        check(
            "01_one::g::runs", Outcome.FAILED, 0.0, happened=f"{not_handed_in('g')}; is `gg` meant?"
        ),
        check("01_one::g::learns", Outcome.BLOCKED, 2.0, blocked_by="runs"),
        check("01_one::h::runs", Outcome.FAILED, 1.0, happened=not_handed_in("h")),
    ]
    row = submission("ada", ExerciseRow("01_one", "One", 0.0, 8.0, checks))
    assert lines_for_student(msgspec.structs.replace(row, max_score=8.0), ())[1:] == [
        "01 f: it raised (line 3) [-4 points]",
        "01 f: another (line 9) [-1 point]",
        "Not handed in: g (is `gg` meant?), h.",
    ]


def test_gradescope_shows_results_when_the_course_does(tmp_path: Path) -> None:
    for when, shown in (
        ("always", "visible"),
        ("after deadline", "after_due_date"),
        ("never", "hidden"),
    ):
        header = msgspec.structs.replace(CLASS, visibility=Visibility(results=when))
        (path,) = exporter_of("gradescope")(header, CLASS.submissions[:1], tmp_path / when, OPTIONS)
        result = json.loads(path.read_bytes())
        assert {result["visibility"], *(test["visibility"] for test in result["tests"])} == {shown}


@pytest.mark.parametrize(
    "format_", ["github_classroom", "classroom50", "exercism", "junit", "autolab"]
)
def test_a_format_without_published_points_says_so(tmp_path: Path, format_: str) -> None:
    late = Timing(late=True, late_seconds=960, penalty=2.0)
    row = msgspec.structs.replace(
        submission("ada", one(P, P, P)), timing=late, grade=Grade(18.0, 20.0)
    )
    said: list[str] = []
    text = only(format_, row, tmp_path, say=said.append).read_text(encoding="utf-8")
    assert "18 of 20 points" in text
    assert "submitted late by 16 minutes: 2 points off" in text.lower()
    assert said[0] == (
        "1 of 1 students have other points in the course, for its scale or a penalty; "
        "this format has the points of the exercises."
    )
    said.clear()
    only(format_, submission("bo", one(P, P, P)), tmp_path / "on time", say=said.append)
    assert said == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "1 minute"),
        (3599, "59 minutes"),
        (3600, "1.0 hours"),
        (None, ""),
    ],
)
def test_how_late(seconds: int | None, shown: str) -> None:
    assert describe_delay(Timing(late=True, late_seconds=seconds)) == shown


def test_a_new_gradebook_has_no_formulas(tmp_path: Path) -> None:
    listed = RosterRow("7", "=NAME()", section="=SUM(A1)", login="@ada")
    row = msgspec.structs.replace(submission("ada", one(P, P, P)), roster=listed, student="=NAME()")
    (path,) = exporter_of("canvas")(CLASS, [row], tmp_path, OPTIONS)
    assert (
        path.read_text(encoding="utf-8").splitlines()[2].startswith("'=NAME(),,,'@ada,'=SUM(A1),")
    )


def test_what_a_person_graded_is_published(tmp_path: Path) -> None:
    """Overrides, hand items, extra credit, a scale and a penalty: every program reads the published
    points.
    """
    by_hand = ExerciseRow(
        "essay", "The essay", 1.0, 2.0, by_hand=True, override=Override(1.0, comment="short")
    )
    extra = ExerciseRow("09_more", "More", 0.5, 1.0, extra=True, override=Override(0.5))
    row = submission(
        "ada",
        one(P, P, P),
        by_hand,
        extra,
        student="Lovelace, Ada",
        naming="canvas",
        identifier="101",
    )
    late = Timing(late=True, late_seconds=90_000, penalty=2.0)
    row = msgspec.structs.replace(row, max_score=4.0, timing=late, grade=Grade(15.5, 20.0))
    lines = lines_for_student(row, ())
    assert lines[:2] == [
        "15.5 of 20 points (3.5 of 4 in the exercises)",
        "Submitted late by 25.0 hours: 2 points off.",
    ]
    assert "The essay: 1 of 2 points, by hand. short" in lines
    waiting = msgspec.structs.replace(
        row, exercises=[msgspec.structs.replace(by_hand, score=0.0, override=None)]
    )
    assert [line for line in lines_for_student(waiting, ()) if "essay" in line] == [
        "Still to be graded by hand: The essay."
    ]
    checks = rows_of_submission(row, ())
    assert (sum(each.points for each in checks), sum(each.max_points for each in checks)) == (
        3.5,
        4.0,
    )
    header = msgspec.structs.replace(CLASS, max_score=4.0, scale=20.0, submissions=[row])
    for format_, shown in {"canvas": "20", "nbgrader": "17.5,2,15.5,20"}.items():
        (path,) = exporter_of(format_)(header, [row], tmp_path / format_, OPTIONS)
        assert shown in path.read_text(encoding="utf-8")
    assert (
        json.loads(only("gradescope", row, tmp_path / "gradescope").read_bytes())["score"] == 15.5
    )
    result = json.loads(only("classroom50", row, tmp_path / "classroom50").read_bytes())
    assert all(0 <= test["score"] <= test["max-score"] for test in result["tests"])
    assert result["score"] <= result["max-score"]


def test_the_same_points_are_not_told_twice() -> None:
    row = msgspec.structs.replace(
        CLASS.submissions[0], score=1.9, max_score=3.0, grade=Grade(1.9, 3.0)
    )
    assert lines_for_student(row, ())[0] == "1.9 of 3 points"
    assert lines_for_student(msgspec.structs.replace(row, grade=Grade(19.0, 30.0)), ())[0] == (
        "19 of 30 points (1.9 of 3 in the exercises)"
    )


def test_extra_credit_may_come_first(tmp_path: Path) -> None:
    """GitHub's reporter gets a test of an exercise that is worth nothing, with what it earned."""
    extra = ExerciseRow("00_more", "More", 0.5, 1.0, extra=True, override=Override(0.5))
    row = submission("ada", extra, one(P, P, P))
    row = msgspec.structs.replace(row, score=2.5, max_score=2.0)
    files = exporter_of("github_classroom")(CLASS, [row], tmp_path, OPTIONS)
    runner = json.loads(next(each for each in files if each.name == "exercise00.json").read_bytes())
    assert [test["score"] for test in runner["tests"]] == [0.5]


def test_bars_of_a_chart_are_no_part_of_a_line() -> None:
    text = "0.3 times as fast as the loop\nthe loop   ███  7.73 ms\nyours  ▏ 26.35 ms\non a T4"
    assert one_line(text) == "0.3 times as fast as the loop on a T4"
    assert one_line("█ is a name") == "█ is a name"


def test_the_lines_of_a_rubric_are_told_with_points_and_comments() -> None:
    """Points that are missing in an item have a line as those of a check have."""
    given = Override(3.0, comment="Axis labels are missing.", by="T")
    rubric = [RubricRow("the trace", 4.0, given), RubricRow("the explanation", 6.0)]
    item = ExerciseRow("report", "Report", 3.0, 10.0, by_hand=True, rubric=rubric)
    row = msgspec.structs.replace(submission("ada", item), score=3.0, max_score=10.0)
    told = "Report: 3 of 10 points, by hand. the trace: 3 of 4 (Axis labels are missing.)"
    assert lines_for_student(row, ()) == [
        "3 of 10 points",
        "Still to be graded by hand: Report.",
        told,
    ]
    (check_row,) = rows_of_submission(row, ())
    assert check_row.message == (
        "the trace: 3 of 4 (Axis labels are missing.); a person still has to grade this."
    )
    whole = msgspec.structs.replace(given, points=5.0, comment="")
    rubric = [rubric[0], RubricRow("the explanation", 6.0, whole)]
    item = msgspec.structs.replace(item, score=8.0, rubric=rubric)
    row = msgspec.structs.replace(row, exercises=[item], score=8.0)
    told = told.replace("3 of 10", "8 of 10") + "; the explanation: 5 of 6"
    assert lines_for_student(row, ()) == ["8 of 10 points", told]
