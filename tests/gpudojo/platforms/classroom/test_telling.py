"""Texts that a student controls, one by one: in commands, in Markdown, in a workflow's files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from gpudojo.model.errors import CannotExport
from gpudojo.model.results import (
    CheckRow,
    ClassResults,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
)
from gpudojo.platforms._autograder import GradedCheckout
from gpudojo.platforms.github_classroom import reporting as messages
from gpudojo.platforms.github_classroom.reporting import Annotation, escaped_markdown, summary_page
from gpudojo.release.manifest import Change
from hypothesis import given
from hypothesis import strategies as st

from tests.gpudojo.platforms.classroom import readers
from tests.gpudojo.platforms.classroom.conftest import IDENTITY

NASTY = [
    "::error::x",
    "a,b=c:d%e",
    "x\r\n::notice::y",
    "##[error]z",
    "\u2028::debug::s",
    "%0A::error::t",
    "|a|b|\n|c|",
]


def graded(
    message: str, name: str = "solution.py", output: str = "", count: int = 1, **more: object
) -> GradedCheckout:
    checks = [
        CheckRow(
            f"01_x::f{n}::c",
            f"f{n}",
            Outcome.FAILED,
            0.0,
            1.0,
            message,
            n + 1,
            claim=message,
            file=name,
        )
        for n in range(count)
    ]
    exercise = ExerciseRow("01_x", "X", 0.0, float(count), checks)
    row = SubmissionRow(
        "alice", SubmissionStatus.GRADED, 0.0, float(count), [exercise], output=output, **more
    )  # type: ignore[arg-type]
    return GradedCheckout(
        ClassResults("day8", "virtual", "2", "1", float(count), submissions=[row]), 10
    )


def test_what_was_not_graded_is_told_once() -> None:
    reason = "not graded: it wrote to the pipe; remove that"
    whole = graded("not graded", count=3)
    row = msgspec.structs.replace(whole.row, status=SubmissionStatus.NOT_GRADED, reason=reason)
    results = msgspec.structs.replace(whole.results, submissions=[row])
    page = summary_page(GradedCheckout(results, 10), None)
    assert f"**{escaped_markdown(reason)}**" in page
    assert page.count("not graded") == 1
    assert messages.annotations_of_failures(row) == []


@pytest.mark.parametrize("text", NASTY)
def test_a_command_says_what_was_meant_and_nothing_else(text: str) -> None:
    command = Annotation("error", text, text, text, 3).as_command()
    assert len(command.splitlines()) == 1 or "\u2028" in text
    ((name, given, message),) = readers.runner(command).commands
    assert (name, given, message) == ("error", {"file": text, "line": "3", "title": text}, text)


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=50))
def test_no_text_forges_a_command(message: str, output: str, name: str) -> None:
    report = messages.Report(graded(message, name, output), (Change(name, "added"),), (message,))
    heard = readers.runner("\n".join(report.log_lines(in_workflow=True)))
    assert {command for command, _, _ in heard.commands} <= {"error", "warning", "stop-commands"}
    levels = [command for command, _, _ in heard.commands]
    assert levels.count("error") <= 1
    assert levels.count("warning") == 2
    plain = list(report.log_lines(in_workflow=False))
    assert readers.runner("\n".join(plain)).commands == []


@pytest.mark.parametrize(
    "text", [*NASTY, "<img src=x>", "**b**", "[a](http://b)", "`code`", "- item", "# head", "$x$"]
)
def test_markdown_takes_it_for_text(text: str) -> None:
    shown = escaped_markdown(text)
    assert "\n" not in shown
    bare = shown.replace("\\\\", "")
    for mark in "`*[]<#|$":
        assert bare.count(mark) == bare.count(f"\\{mark}")


def test_a_table_has_as_many_cells_whatever_is_said() -> None:
    found = graded("a | b\n| c | d |\n| 100 | 100 |")
    page = summary_page(found, [Change("| x | 100 | 100 |\n", "added")])
    assert readers.table(page) == [("01\\_x X", 0.0, 1.0)]
    assert readers.summary_total(page) == (0.0, 1.0)


def test_github_shows_ten_remarks_and_gets_no_more() -> None:
    found = graded("no", count=30)
    assert len(messages.annotations_of_failures(found.row)) == 10
    assert (
        len(messages.annotations_of_changes([Change(f"{n}.py", "added") for n in range(30)])) == 10
    )


def test_a_failure_in_a_notebook_names_its_cell() -> None:
    check = CheckRow("01_x::f::c", "f", Outcome.FAILED, 0.0, 1.0, "no", 4, file="a.ipynb", cell=3)
    row = SubmissionRow(
        "alice", SubmissionStatus.GRADED, 0.0, 1.0, [ExerciseRow("01_x", "X", 0.0, 1.0, [check])]
    )
    (remark,) = messages.annotations_of_failures(row, "work")
    assert (remark.file, remark.line) == ("work/a.ipynb", 1)
    assert remark.message == "Code cell 3, line 4: no"


def test_what_appears_in_a_workflows_files_meanwhile_is_taken_back(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in messages.WORKFLOW_FILES}
    for path in paths.values():
        path.write_text("before\n")
    paths["GITHUB_STATE"].unlink()
    environment = {name: str(path) for name, path in paths.items()}
    with messages.guard_workflow_files(environment) as touched:
        paths["GITHUB_OUTPUT"].write_text("before\nexercise01=forged\n")
        paths["GITHUB_PATH"].unlink()
        paths["GITHUB_PATH"].symlink_to(tmp_path / "elsewhere")
        paths["GITHUB_STATE"].write_text("forged")
    assert sorted(touched) == ["GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STATE"]
    assert paths["GITHUB_OUTPUT"].read_text() == paths["GITHUB_PATH"].read_text() == "before\n"
    assert not paths["GITHUB_STATE"].exists()
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_workflow_the_same_goes_into_files(tmp_path: Path) -> None:
    report = messages.Report(graded("no"), None, ("a note",))
    both = ("github", "classroom50")
    written = messages.write_report(report, both, tmp_path / "new", IDENTITY)
    assert [path.name for path in written] == ["result.json", "github-outputs.txt", "summary.md"]
    written = messages.write_report(report, both, tmp_path / "new", {})
    assert [path.name for path in written] == ["github-outputs.txt", "summary.md"], (
        "Classroom 50 would refuse the file"
    )
    with pytest.raises(
        CannotExport, match="CLASSROOM, ASSIGNMENT, SUBMISSION_TAG, COMMIT_URL, RELEASE_URL are not"
    ):
        messages.write_report(report, ("classroom50",), tmp_path / "new", {})
    assert "a note" in (tmp_path / "new" / "summary.md").read_text()
    assert "exercise01=" in (tmp_path / "new" / "github-outputs.txt").read_text()


def test_a_summary_is_never_longer_than_github_takes(tmp_path: Path) -> None:
    messages.append_text(tmp_path / "summary", "é" * 800_000, messages.LARGEST_SUMMARY)
    assert 999_000 < (tmp_path / "summary").stat().st_size < 1 << 20
