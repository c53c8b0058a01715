"""What people decide about a class: reviews, lateness, disputes; and where the class stands."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from gpudojo.model.results import Outcome, SubmissionRow
from gpudojo.model.results_file import read

from tests.gpudojo.classes.test_gradebook import (
    RIGHT,
    WRONG,
    commit,
    dojo,
    grade,
    hand_in,
    made,  # noqa: F401 - a fixture
    term,  # noqa: F401 - a fixture
)

pytestmark = pytest.mark.usefixtures("loaded_fork_servers")


def row_of(out: Path, name: str) -> SubmissionRow:
    return next(row for row in read(out / "results.json").submissions if row.submission == name)


def status_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dojo("status", out, "--json"))
    return found


def names(listed: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in listed]


def test_a_review_stays_ticked_until_the_submission_changes(term: Path) -> None:  # noqa: F811
    out = term / "out"
    assert row_of(out, "cy").review
    assert "cy: " in dojo("review", "--out", out)
    dojo("review", "cy", "--done", "--comment", "A typing error.", "--by", "T", "--out", out)
    # it leaves every list
    row = row_of(out, "cy")
    assert (row.review, bool(row.reasons_to_review)) == ([], True)
    assert row.reviewed is not None
    assert (row.reviewed.by, row.reviewed.comment) == ("T", "A typing error.")
    found = status_of(out)
    assert (names(found["to_review"]), names(found["reviewed"])) == ([], ["cy"])
    assert "need" not in dojo("export", out, "--to", "canvas", "--out", term / "canvas")
    assert "Nothing needs review." in dojo("review", "--out", out)
    assert "reviewed by T" in (out / "results.csv").read_text(encoding="utf-8-sig")
    # the same files again: it stays ticked
    grade(out, term / "class")
    assert row_of(out, "cy").reviewed is not None
    # other files: it comes back
    hand_in(term / "class" / "cy", RIGHT.replace("def select_device", "def select_devises"))
    grade(out, term / "class")
    assert row_of(out, "cy").reviewed is None
    assert names(status_of(out)["to_review"]) == ["cy"]


def test_a_review_can_be_taken_back_and_needs_a_reason(term: Path) -> None:  # noqa: F811
    out = term / "out"
    assert "bo does not need review" in dojo("review", "bo", "--done", "--out", out, fails=True)
    dojo("review", "cy", "--done", "--out", out)
    dojo("review", "cy", "--undo", "--out", out)
    assert row_of(out, "cy").review
    assert "STUDENT is missing" in dojo("review", "--done", "--out", out, fails=True)
    assert "nobody" not in dojo("grade", term / "class", "--out", out, "--rejudge", fails=True)


def test_lateness_by_hand_comes_before_what_is_known(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    course.write_text("[late]\npenalty = 10\n")
    out = term / "out"
    _, rows, results = grade(out, term / "class", course=course)
    full = rows["ada"].final.points
    dojo("override", "ada", "--late", "3d", "--comment", "By mail.", "--out", out)
    row = row_of(out, "ada")
    assert row.timing is not None
    assert (row.timing.late_seconds, row.timing.told_by) == (3 * 86_400, "a person")
    assert row.final.points == pytest.approx(full - 0.3 * results.max_score)
    (late,) = status_of(out)["late"]
    assert late["timing"]["comment"] == "By mail."
    assert "3.0 days late" in dojo("override", "--out", out)
    # in time, for all; and taken back
    dojo("override", "ada", "--late", "0", "--out", out)
    assert not row_of(out, "ada").late
    dojo("override", "--undo", "ada", "late", "--out", out)
    assert row_of(out, "ada").timing is None
    said = dojo("override", "ada", "--late", "soon", "--out", out, fails=True)
    assert "write 30m, 2h or 3d" in said
    said = dojo("override", "ada", "late", "--points", "2", "--out", out, fails=True)
    assert "--late 2h" in said


@pytest.mark.parametrize(
    ("delay", "told", "cell"),
    [
        ("0", "Counted as in time", "late: in time"),
        ("2h", "Submitted late by 2.0 hours", "late: 2.0 h"),
    ],
)
def test_the_student_reads_why_lateness_was_decided(
    term: Path,  # noqa: F811
    delay: str,
    told: str,
    cell: str,
) -> None:
    out = term / "out"
    dojo("override", "ada", "--late", delay, "--comment", "Seen by Herr Li", "--out", out)
    dojo("feedback", out, "--out", term / "pages")
    page = (term / "pages" / "students" / "ada.html").read_text(encoding="utf-8")
    text = f"{told} (Seen by Herr Li)."
    assert text in page
    assert text in (term / "pages" / "feedback.csv").read_text(encoding="utf-8-sig")
    dojo("report", out)
    assert text in (out / "report" / "students" / "ada.html").read_text(encoding="utf-8")
    line = next(line for line in read_sheet(out / "results.csv") if line["submission"] == "ada")
    assert line["overrides"] == f"{cell} (Seen by Herr Li)"


def test_who_has_no_time_of_handing_in_is_not_silently_in_time(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    course.write_text("deadline = 2026-11-01T10:00:00Z\n[late]\npenalty = 10\n")
    out = term / "out"
    outcome, _, _ = grade(out, term / "class", course=course)
    assert outcome.tally.undated == 3
    assert names(status_of(out)["undated"]) == ["ada", "bo", "cy"]
    assert "These are not counted as late." in dojo("status", out)
    assert "ada, bo, cy" in dojo("status", out, "--all")
    dojo("override", "ada", "--late", "0", "--out", out)
    assert names(status_of(out)["undated"]) == ["bo", "cy"]


def test_a_group_is_decided_about_as_one(term: Path) -> None:  # noqa: F811
    hand_in(term / "class" / "cy", "nothing", "work.png")
    course = term / "class" / "course.toml"
    course.write_text("[groups]\nteam = ['cy', 'di']\n'a b' = ['bo', 'eve']\n")
    out = term / "out"
    outcome, _, _ = grade(out, term / "class", course=course)
    # it is listed once, and looked at once
    assert [review.called for review in outcome.tally.first_reviews] == ["cy, team"]
    assert len(status_of(out)["to_review"]) == 1
    assert dojo("review", "--out", out).count("cy, team: 0 of") == 1
    said = dojo("review", "di", "--done", "--out", out)
    assert "cy: reviewed\ndi: reviewed\n0 submissions left to review, 1 reviewed." in said
    assert "2 submissions" not in dojo("review", "team", "--undo", "--out", out)
    assert status_of(out)["to_review"][0]["group"] == "team"
    # points for one member, and for all of them
    said = dojo("override", "bo", "01", "--points", "full", "--out", out)
    assert "This is not for the others of a b: eve." in said
    assert "write 'a b' instead" in said
    said = dojo("override", "team", "01", "--points", "2", "--out", out)
    assert "2 of 2 students' points changed." in said
    assert (row_of(out, "cy").score, row_of(out, "di").score) == (2, 2)
    dojo("override", "--undo", "team", "01", "--out", out)
    assert (row_of(out, "cy").score, row_of(out, "di").score) == (0, 0)


def test_a_dispute_that_is_won_says_what_stays_blocked(term: Path) -> None:  # noqa: F811
    hand_in(term / "class" / "bo", "def select_device(prefer=None):\n    raise ValueError\n")
    out = term / "out"
    grade(out, term / "class")
    said = dojo("override", "bo", "runs", "--points", "full", "--comment", "It runs.", "--out", out)
    (exercise,) = row_of(out, "bo").exercises
    blocked = [check for check in exercise.checks if check.outcome is Outcome.BLOCKED]
    assert blocked
    assert f"{len(blocked)} checks waited for" in said
    assert "01_checking_device::select_device::runs is worth 0 points." in said
    for check in blocked:
        assert check.id.rpartition("::")[2] in said
    runs = exercise.checks[0]
    assert (runs.shown_outcome, runs.to_fix) == ("by hand", False)
    dojo("feedback", out, "--out", term / "pages")
    page = (term / "pages" / "students" / "bo.html").read_text(encoding="utf-8")
    assert '<span class="badge by-hand">by hand</span>' in page
    assert "It runs." in page
    assert '<span class="badge failed">' not in page
    assert "for which a person gave points" in page


def test_all_points_of_an_item_are_given_exactly(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    course.write_text('[exercises]\n"01" = 10\n')
    out = term / "out"
    _, rows, results = grade(out, term / "class", course=course)
    for check in rows["bo"].exercises[0].checks:
        dojo("override", "bo", check.id, "--points", "full", "--out", out)
    assert row_of(out, "bo").score == results.max_score


def test_full_stays_full_whatever_the_item_is_worth_later(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    hand = "[[by_hand]]\nname = 'talk'\npoints = {}\n"
    course.write_text("[exercises]\n'01' = 20\n" + hand.format(4))
    out = term / "out"
    grade(out, term / "class", course=course)
    dojo("override", "bo", "01", "--points", "full", "--out", out)
    check = row_of(out, "cy").exercises[0].checks[0]
    dojo("override", "cy", check.id, "--points", "full", "--out", out)
    marks = term / "marks.csv"
    marks.write_text("student,item,points\nbo,talk,Full\n")
    dojo("marks", "--from", marks, "--out", out)
    assert "bo  talk  full" in dojo("override", "--out", out)
    for worth, of_talk in ((30, 9), (10, 2)):
        course.write_text(f"[exercises]\n'01' = {worth}\n" + hand.format(of_talk))
        _, rows, _ = grade(out, term / "class")
        assert [exercise.score for exercise in rows["bo"].exercises] == [worth, of_talk]
        (given,) = [each for each in rows["cy"].exercises[0].checks if each.id == check.id]
        assert given.points == given.max_points
        assert "it was cut" not in str(rows["bo"].needs_human)
    # a sheet has the number that full is now
    sheet = term / "sheet.csv"
    dojo("marks", "--sheet", sheet, "--out", out)
    assert "hold already" in dojo("marks", "--from", sheet, "--out", out)


def test_what_was_exported_and_has_changed_since_is_named(term: Path) -> None:  # noqa: F811
    out = term / "out"
    assert status_of(out)["written"] == []
    dojo("export", out, "--to", "gradescope", "--out", term / "exported")
    dojo("report", out)
    for written in status_of(out)["written"]:
        assert written["changed"] == []
    said = dojo("override", "ada", "01", "--points", "1", "--out", out)
    assert f"the pages in {out / 'report'} show earlier results: dojo report {out}" in said
    report, export = status_of(out)["written"]  # the last one first
    assert (report["command"], export["command"]) == ("report", "export --to gradescope")
    assert names(export["changed"]) == names(report["changed"]) == ["ada"]
    assert export["changed"][0]["after"]["points"] == 1
    assert "ada" in dojo("status", out)
    dojo(*export["again"].split()[1:])
    assert status_of(out)["written"][0]["changed"] == []


def test_who_handed_in_nothing_does_not_change_with_what_exercises_are_worth(
    term: Path,  # noqa: F811
) -> None:
    """Until there are points to write: given by hand, or for a submission."""
    out = term / "out"
    course = term / "class" / "course.toml"
    (term / "class" / "roster.csv").write_text("id,name\n1,ada\n2,vera\n", encoding="utf-8")
    course.write_text("roster = 'roster.csv'\n[exercises]\n'01' = 4\n", encoding="utf-8")
    grade(out, term / "class")
    dojo("export", out, "--to", "gradescope", "--out", term / "exported")
    course.write_text("roster = 'roster.csv'\n[exercises]\n'01' = 8\n", encoding="utf-8")
    grade(out, term / "class")
    assert "ada" in names(status_of(out)["written"][0]["changed"])
    assert "vera" not in names(status_of(out)["written"][0]["changed"])
    dojo("override", "vera", "01", "--points", "2", "--out", out)
    assert "vera" in names(status_of(out)["written"][0]["changed"])


def test_points_by_hand_for_what_cannot_be_read_do_not_change_when_it_is_judged_anew(
    term: Path,  # noqa: F811
) -> None:
    out = term / "out"
    hand_in(term / "class" / "yara", "My work is on paper.", "homework.txt")
    grade(out, term / "class")
    dojo("override", "yara", "01", "--points", "3", "--out", out)
    judged_anew, rows, _ = grade(out, only=frozenset({"select_device", "ANSWERS"}))
    assert (rows["yara"].score, rows["yara"].status.value) == (3, "unreadable")
    assert "yara" not in [change.submission for change in judged_anew.changes]
    assert (out / "history.csv").read_text().count("regraded") == 0


def test_the_command_that_writes_anew_is_the_one_that_was_typed(term: Path) -> None:  # noqa: F811
    out = term / "out"
    book = term / "grade book.csv"
    book.write_text("Student,ID,SIS Login ID,Section\nPoints Possible,,,\nAda,1,ada,A\n")
    words = ("--to", "canvas", "--gradebook", book, "--title", "Day 8", "--out", term / "canvas")
    dojo("export", out, *words)
    dojo("feedback", out, "--early", "--out", term / "pages")
    (feedback, export) = status_of(out)["written"]
    given = shlex.split(export["again"])
    assert sorted(given[1:]) == sorted(["export", str(out), *map(str, words)])
    assert "--early" in feedback["again"]
    # again without an option, which then is no longer said
    dojo("feedback", out, "--out", term / "pages")
    assert "--early" not in status_of(out)["written"][0]["again"]
    table = (term / "canvas" / "gradebook.csv").read_text()
    dojo("override", "ada", "01", "--points", "1", "--out", out)
    dojo(*given[1:])
    assert (term / "canvas" / "gradebook.csv").read_text() != table


def test_what_was_written_again_elsewhere_is_not_on_the_screen(term: Path) -> None:  # noqa: F811
    out = term / "out"
    for name in ("first", "second"):
        dojo("feedback", out, "--out", term / name)
        dojo("override", "ada", "01", "--points", str(len(name)), "--out", out)
    # of single students, it replaces nothing
    dojo("feedback", out, "--out", term / "one", "--only", "bo")
    said = dojo("status", out)
    assert str(term / "second") in said
    assert str(term / "first") not in said
    assert len(status_of(out)["written"]) == 3


def test_who_was_not_asked_for_has_no_older_pages(term: Path) -> None:  # noqa: F811
    out = term / "out"
    dojo("feedback", out, "--out", term / "pages", "--only", "ada")
    dojo("export", out, "--to", "junit", "--out", term / "junit", "--submission", "ada")
    assert [written["changed"] for written in status_of(out)["written"]] == [[], []]
    said = dojo("override", "bo", "01", "--points", "1", "--out", out)
    assert "earlier results" not in said
    said = dojo("override", "ada", "01", "--points", "1", "--out", out)
    assert said.count("earlier results") == 1
    export, feedback = status_of(out)["written"]
    assert names(export["changed"]) == names(feedback["changed"]) == ["ada"]
    assert export["again"].endswith("--submission ada")
    for written in (feedback, export):
        dojo(*written["again"].split()[1:])
    assert not (term / "pages" / "students" / "bo.html").exists()
    assert [written["changed"] for written in status_of(out)["written"]] == [[], []]
    # the whole class, after that: who is new is told
    dojo("feedback", out, "--out", term / "pages")
    hand_in(term / "class" / "dee", RIGHT)
    grade(out, term / "class")
    written = status_of(out)["written"][0]
    assert (written["command"], names(written["changed"])) == ("feedback", ["dee"])


def test_pages_of_several_students_are_written_anew_together(term: Path) -> None:  # noqa: F811
    out = term / "out"
    dojo("feedback", out, "--out", term / "pages", "--only", "ada", "--only", "bo")
    (written,) = status_of(out)["written"]
    assert written["again"].endswith("--only ada --only bo")
    dojo("override", "bo", "01", "--points", "1", "--out", out)
    assert names(status_of(out)["written"][0]["changed"]) == ["bo"]
    dojo(*written["again"].split()[1:])
    assert status_of(out)["written"][0]["changed"] == []
    assert not (term / "pages" / "students" / "cy.html").exists()


@pytest.mark.parametrize("words", [("feedback",), ("report",), ("export", "--to", "gradescope")])
def test_pages_of_who_was_removed_do_not_stay(term: Path, words: tuple[str, ...]) -> None:  # noqa: F811
    """What a command wrote before is deleted by the next one; files of others stay."""
    out = term / "out"
    target = term / "pages"
    command, *more = words
    dojo(command, out, *more, "--out", target)
    pages = [path for path in target.rglob("*") if path.is_file()]
    (old,) = [path for path in pages if "bo" in path.relative_to(target).as_posix()]
    mine = old.with_name("bo-notes.html")
    mine.write_text("mine")
    said = dojo("remove", "bo", "--out", out)
    assert ("show earlier results: dojo" in said) == (command != "export")
    (written,) = status_of(out)["written"]
    assert [(each["name"], each["after"]) for each in written["changed"]] == [("bo", None)]
    assert "bo (not in the class any more)" in dojo("status", out)
    said = dojo(command, out, *more, "--out", target)
    assert f"note: 1 file of an earlier time deleted in {target}: " in said
    assert not old.exists()
    assert mine.read_text() == "mine"
    left = {path for path in target.rglob("*") if path.is_file()}
    assert left == {*pages, mine} - {old}
    assert status_of(out)["written"][0]["changed"] == []


def test_a_page_that_was_asked_for_alone_is_told_when_its_student_is_removed(
    term: Path,  # noqa: F811
) -> None:
    out = term / "out"
    target = term / "pages"
    dojo("feedback", out, "--out", target, "--only", "ada", "--only", "bo")
    said = dojo("remove", "bo", "--out", out)
    assert f"note: {target} has pages of who is not in the class any more: bo" in said
    (written,) = status_of(out)["written"]
    assert written["again"].endswith("--only ada")
    dojo(*written["again"].split()[1:])
    assert (target / "students" / "bo.html").exists()
    dojo("feedback", out, "--out", target)
    assert not (target / "students" / "bo.html").exists()


def test_points_by_hand_are_told_when_their_exercise_is_worth_others(term: Path) -> None:  # noqa: F811
    """They stay as they were given, and nobody takes 2 of 4 for all points."""
    course = term / "class" / "course.toml"
    course.write_text("[exercises]\n'01' = 2\n")
    out = term / "out"
    grade(out, term / "class", course=course)
    dojo("override", "bo", "01", "--points", "2", "--out", out)
    dojo("override", "cy", "01", "--points", "full", "--out", out)
    assert row_of(out, "bo").review == []
    course.write_text("[exercises]\n'01' = 4\n")
    _, rows, _ = grade(out, term / "class")
    assert (rows["bo"].score, rows["cy"].score) == (2, 4)
    told = (
        "2 of 2 points were given by hand for 01_checking_device, which is worth 4 now; to give "
        "others, or these again: dojo override bo 01_checking_device --points POINTS"
    )
    assert told in rows["bo"].review
    assert not any("by hand" in reason for reason in rows["cy"].review)
    assert "bo: 2 of 2 points were given by hand" in dojo("status", out)
    # either decision ends it
    for points in ("2", "4"):
        dojo("override", "bo", "01", "--points", points, "--out", out)
        assert row_of(out, "bo").review == []


def test_fewer_points_than_were_earned_are_told(term: Path) -> None:  # noqa: F811
    out = term / "out"
    said = dojo("override", "ada", "01", "--points", "3", "--out", out)
    assert "3 points by hand for 01_checking_device are fewer than the 8 that were earned." in said
    check = row_of(out, "bo").exercises[0].checks[0]
    assert "are fewer" not in dojo("override", "bo", check.id, "--points", "full", "--out", out)
    marks = term / "marks.csv"
    marks.write_text("student,item,points\nada,01,2\nbo,01,5\n")
    said = dojo("marks", "--from", marks, "--out", out)
    assert "2 points by hand for 01_checking_device are fewer than the 8" in said
    assert said.count("are fewer") == 1


def test_undo_for_a_group_gives_back_what_its_members_had(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    course.write_text("[groups]\nteam = ['ada', 'bo']\n")
    out = term / "out"
    grade(out, term / "class", course=course)

    def given() -> list[float | None]:
        rows = [row_of(out, name) for name in ("ada", "bo")]
        return [row.overrides[0][1].points if row.overrides else None for row in rows]

    dojo("override", "bo", "01", "--points", "4", "--comment", "mine", "--out", out)
    dojo("override", "team", "01", "--points", "2", "--out", out)
    assert given() == [2, 2]
    dojo("override", "--undo", "team", "01", "--out", out)
    assert given() == [None, 4]
    assert "mine" in dojo("override", "--out", out)
    # what a member was given after the group stays
    dojo("override", "team", "01", "--points", "2", "--out", out)
    dojo("override", "bo", "01", "--points", "5", "--out", out)
    dojo("override", "--undo", "team", "01", "--out", out)
    assert given() == [None, 5]


def test_an_override_of_a_dropped_exercise_is_not_listed_as_holding(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    course.write_text("[[by_hand]]\nname = 'talk'\npoints = 4\n")
    out = term / "out"
    grade(out, term / "class", course=course)
    dojo("override", "bo", "talk", "--points", "3", "--out", out)
    dojo("override", "bo", "01", "--points", "2", "--out", out)
    assert "not used" not in dojo("override", "--out", out)
    course.write_text("[exercises]\n'01' = 8\n")
    grade(out, term / "class")
    dropped, held = sorted(
        dojo("override", "--out", out).splitlines(), key=lambda line: "01" in line
    )
    assert dropped.endswith("not used now: talk is not graded any more")
    assert "not used" not in held
    said = dojo("override", "bo", "evaluate::runs", "--points", "1", "--out", out, fails=True)
    assert "evaluate::runs is of 05_modifying_evaluation_loop_gpu, which does not count" in said


def test_the_history_has_published_points_alone(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    course.write_text("points = 20\n")
    out = term / "out"
    old = out / "history.csv"
    old.write_text("at,submission,student,before,after,why,checks\n")
    _, rows, _ = grade(out, term / "class", course=course)
    before = rows["bo"].final.points
    hand_in(term / "class" / "bo", RIGHT)
    grade(out, term / "class")
    settings, regraded = [line for line in read_sheet(old) if line["submission"] == "bo"]
    assert [settings["why"], regraded["why"]] == ["settings", "new attempt"]
    assert settings["published_after"] == regraded["published_before"] == f"{before:g}"
    assert (regraded["published_after"], regraded["out_of"]) == ("20", "20")
    assert (out / "history-former.csv").read_text().startswith("at,submission,student,before")


def test_the_history_has_what_people_changed(term: Path) -> None:  # noqa: F811
    """Every published point that changes: by whom and by which command; and nothing else."""
    out = term / "out"
    course = term / "class" / "course.toml"
    (term / "class" / "roster.csv").write_text(
        "id,name\n1,ada\n2,bo\n3,cy\n4,vera\n5,wim\n", encoding="utf-8"
    )
    course.write_text("roster = 'roster.csv'\n[late]\npenalty = 25\n", encoding="utf-8")
    grade(out, term / "class")
    (term / "marks.csv").write_text("student,item,points\nbo,01,3\n", encoding="utf-8")
    by = ("--by", "T", "--out", out)
    dojo("override", "ada", "select_device::runs", "--comment", "It runs.", *by)
    dojo("override", "ada", "01", "--points", "5", *by)
    dojo("override", "--undo", *by)
    dojo("marks", "--from", term / "marks.csv", *by)
    dojo("override", "ada", "--late", "1d", *by)
    dojo("review", "cy", "--done", *by)
    dojo("override", "vera", "01", "--points", "2", *by)
    dojo("override", "--undo", "vera", "01", *by)
    dojo("remove", "bo", *by)
    dojo("remove", "--undo", "bo", *by)
    grade(out)
    lines = []
    for line in read_sheet(out / "history.csv"):
        before_and_after = (line["published_before"], line["published_after"])
        lines.append((line["submission"], *before_and_after, line["why"], line["checks"]))
    assert lines == [
        ("ada", "8", "5", "override by T", "01_checking_device"),
        ("ada", "5", "8", "override --undo by T", "01_checking_device"),
        ("bo", "0", "3", "marks by T", "01_checking_device"),
        ("ada", "8", "6", "override --late by T", "late"),
        ("vera", "", "2", "override by T", "01_checking_device"),
        ("vera", "2", "", "override --undo by T", "01_checking_device"),
        ("bo", "3", "", "remove by T", "removed"),
        ("bo", "", "3", "remove --undo by T", "removed"),
    ]


def test_a_penalty_that_comes_with_a_second_attempt_is_told(term: Path) -> None:  # noqa: F811
    """All checks are as before, and the points are not."""
    course = term / "class" / "course.toml"
    course.write_text(
        "deadline = 2026-11-20T23:59:00+01:00\n[late]\npenalty = 10\n", encoding="utf-8"
    )
    out = term / "out"
    grade(out, term / "class")
    hand_in(term / "class" / "ada", RIGHT + "\n# mended\n")
    commit(term / "class" / "ada", "2026-11-21T10:00:00+0100")
    again, _, _ = grade(out, term / "class")
    assert (again.changes, again.tally.changed_by_rules) == ([], ["ada: 8 → 7.2 of 8"])
    (line,) = read_sheet(out / "history.csv")
    assert (line["published_before"], line["published_after"]) == ("8", "7.2")


def test_points_for_a_check_that_a_decision_covers_are_told(term: Path) -> None:  # noqa: F811
    out = term / "out"
    dojo("override", "bo", "01", "--points", "2", "--out", out)
    said = dojo("override", "bo", "runs", "--points", "0", "--out", out)
    assert "01_checking_device as a whole has 2 points by hand, which come before" in said
    assert "--undo bo 01_checking_device" in said
    said = dojo("override", "ada", "runs", "--points", "0", "--out", out)
    assert "come before" not in said


def test_an_exercise_that_a_person_decided_is_not_to_fix(term: Path) -> None:  # noqa: F811
    out = term / "out"
    hand_in(
        term / "class" / "bo", "def select_device(prefer=None):\n    raise NotImplementedError\n"
    )
    grade(out, term / "class")
    for still, given in ((True, False), (False, True)):
        if given:
            dojo("override", "bo", "01", "--points", "full", "--comment", "Shown.", "--out", out)
        dojo("feedback", out, "--out", term / "pages")
        page = (term / "pages" / "students" / "bo.html").read_text(encoding="utf-8")
        assert ("Still to do:" in page) == still
    assert "Shown." in page


def test_a_write_that_fails_leaves_log_and_results(
    term: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = term / "out"
    before = (out / "results.json").read_bytes()

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device", "results.json")

    monkeypatch.setattr("gpudojo.classes.result_writing.open_results", fail)
    said = dojo("override", "ada", "01", "--points", "1", "--out", out, fails=True)
    assert "No space left on device" in said
    assert (out / "results.json").read_bytes() == before
    monkeypatch.undo()
    assert "There are no overrides." in dojo("override", "--out", out)


def test_a_log_of_an_earlier_version_is_read(term: Path) -> None:  # noqa: F811
    out = term / "out"
    (out / "overrides.csv").write_text(
        "at,by,action,student,item,points,comment,key\n"
        "2026-11-01T10:00:00,T,set,ada,01_checking_device,1,,plain:ada\n"
    )
    dojo("override", "bo", "01", "--points", "2", "--out", out)
    assert [row_of(out, name).score for name in ("ada", "bo")] == [1, 2]


def test_nothing_is_wrong_with_a_class_that_is_done(term: Path) -> None:  # noqa: F811
    hand_in(term / "class" / "cy", WRONG)
    grade(term / "out", term / "class")
    said = dojo("status", term / "out")
    for line in ("3 graded", "0 late", "0 absent", "Nothing was exported yet."):
        assert line in said


REPORT = """
[[by_hand]]
name = "report"
title = "Report"
points = 10
rubric = [{ text = "the trace", points = 4 }, { text = "the explanation", points = 6 }]

[[by_hand]]
name = "talk"
points = 5
rubric = "Speak freely."
"""


def read_sheet(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def write_sheet(path: Path, lines: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


@pytest.fixture
def marked(term: Path) -> Path:  # noqa: F811
    (term / "class" / "course.toml").write_text(REPORT)
    grade(term / "out", term / "class", course=term / "class" / "course.toml")
    return term


def test_a_sheet_is_written_filled_in_and_read_back(marked: Path) -> None:
    out, sheet = marked / "out", marked / "marks.csv"
    assert "9 lines without points" in dojo("marks", "--sheet", sheet, "--out", out)
    lines = read_sheet(sheet)
    assert [line["item"] for line in lines[:3]] == ["report::1", "report::2", "talk"]
    assert [line["rubric"] for line in lines[:3]] == [
        "the trace",
        "the explanation",
        "Speak freely.",
    ]
    assert [line["out_of"] for line in lines[:3]] == ["4", "6", "5"]
    before = row_of(out, "ada").score
    # one line of two: there is still something to mark, and the points count
    lines[0] |= {"points": "3,5", "comment": "=A good trace"}
    write_sheet(sheet, lines)
    dojo("marks", "--from", sheet, "--out", out)
    row = row_of(out, "ada")
    assert (row.score, row.to_grade) == (before + 3.5, ["Report", "talk"])
    lines[1]["points"] = "full"
    lines[2]["points"] = "4"
    write_sheet(sheet, lines)
    dojo("marks", "--from", sheet, "--out", out)
    row = row_of(out, "ada")
    assert (row.score, row.to_grade) == (before + 13.5, [])
    # what is written again has what was given, and changes nothing
    again = marked / "again.csv"
    assert "6 lines without points" in dojo("marks", "--sheet", again, "--out", out)
    assert read_sheet(again)[0]["points"] == "3.5"
    assert read_sheet(again)[0]["comment"] == "'=A good trace"
    said = dojo("marks", "--from", again, "--out", out)
    assert f"All points of {again} hold already" in said
    said = dojo("marks", "--sheet", again, "--out", out, fails=True)
    assert "it exists already" in said
    # the student sees the rubric, and every export says who is still to be marked
    said = dojo("feedback", out, "--out", marked / "pages")
    left = (
        "2 students still to mark by hand (Report, talk), with 0 points for it until then: bo, cy"
    )
    assert left in said
    dojo("override", "bo", "talk", "--points", "1", "--out", out)
    said = dojo("report", out)
    assert "1 student still to mark by hand (Report), with 0 points for it until then: bo" in said
    assert "1 student still to mark by hand (Report, talk), with 0 points" in said
    assert "1 to mark by hand Report: bo\n" in dojo("status", out)
    dojo("override", "--undo", "--out", out)
    assert "2 to mark by hand Report, talk: bo, cy\n" in dojo("status", out)
    # of one student, what is left of that one
    said = dojo("feedback", out, "--out", marked / "page", "--only", "ada")
    assert "still to mark" not in said
    junit = ("export", out, "--to", "junit", "--out", marked / "junit", "--submission")
    assert "still to mark" not in dojo(*junit, "ada")
    assert dojo(*junit, "cy").count("then: cy\n") == 1
    page = (marked / "pages" / "students" / "ada.html").read_text(encoding="utf-8")
    for text in ("the trace", "3.5 of 4", "=A good trace", "6 of 6", "Speak freely."):
        assert text in page
    assert "the explanation" in (marked / "pages" / "students" / "bo.html").read_text()
    said = dojo("export", out, "--to", "canvas", "--out", marked / "canvas")
    assert left in said
    assert [each["items"] for each in status_of(out)["to_mark"]] == [["Report", "talk"]] * 2


def test_a_number_is_an_exercise_and_no_line_of_a_rubric(marked: Path) -> None:
    out = marked / "out"
    said = dojo("override", "--items", "--out", out)
    assert "report::1  the trace" in said
    assert "report::2  the explanation" in said
    for number in ("2", "02", "02_moving_model_to_device", "2::move_model::runs"):
        said = dojo("override", "bo", number, "--points", "1", "--out", out, fails=True)
        assert said == "Error: 02_moving_model_to_device does not count in this course\n"
    said = dojo("override", "bo", "77", "--points", "1", "--out", out, fails=True)
    assert "there is no check, exercise or item '77'" in said
    said = dojo("override", "bo", "report::3", "--points", "1", "--out", out, fails=True)
    assert "of report, report::1 is 'the trace'; report::2 is 'the explanation'" in said
    # the line that tells of success has the item's whole name
    said = dojo("override", "bo", "report::2", "--points", "1", "--out", out)
    assert said.startswith("Decided: report::the explanation\nbo: 0 → 1 of ")
    said = dojo("override", "bo", "runs", "--points", "0", "--out", out)
    assert said.startswith("Decided: 01_checking_device::select_device::runs\n")
    assert dojo("override", "--undo", "--out", out).startswith("Taken back: 01_checking_device::")


def test_all_mistakes_of_a_sheet_are_told_at_once_and_nothing_is_changed(marked: Path) -> None:
    out, sheet = marked / "out", marked / "marks.csv"
    sheet.write_text(
        "student,item,points,comment\n"
        "ada,report::1,3,fine\n"
        "eve,talk,1,\n"
        "bo,talk,6,\n"
        "bo,tlak,1,\n"
        "bo,report::2,many,\n"
        "ada,report::1,2,\n"
    )
    before = (out / "results.json").read_bytes()
    said = dojo("marks", "--from", sheet, "--out", out, fails=True)
    for text in (
        "line 3: no student is called 'eve'",
        "line 4: talk is worth 5 points, not 6",
        "line 5: there is no check, exercise or item 'tlak'; did you mean talk?",
        "line 6: 'many' is not a number of points",
        "line 7: report::the trace of ada is in line 2, too",
        "Nothing was changed.",
    ):
        assert text in said
    assert (out / "results.json").read_bytes() == before
    assert not (out / "overrides.csv").exists()


def test_a_rubric_whose_lines_do_not_add_up_is_refused(term: Path) -> None:  # noqa: F811
    course = term / "class" / "course.toml"
    course.write_text(REPORT.replace("points = 6", "points = 7"))
    said = dojo("init", term / "class", fails=True)
    assert "course.toml, line 6: the lines of the rubric are worth 11 points together" in said


def test_points_of_a_rubric_belong_to_the_texts_of_its_lines(marked: Path) -> None:
    out, sheet = marked / "out", marked / "marks.csv"
    course = marked / "class" / "course.toml"
    dojo("marks", "--sheet", sheet, "--out", out)
    for line, points in (("report::1", "3"), ("report::2", "6"), ("the trace", "4")):
        dojo("override", "ada", line, "--points", points, "--out", out)
    # a line before them; both change places
    changed = REPORT.replace("rubric = [", 'rubric = [{ text = "the start", points = 2 }, ', 1)
    swapped = REPORT.replace(
        "rubric = [", 'rubric = [{ text = "the  explanation", points = 6 }, ', 1
    )
    swapped = swapped.replace(', { text = "the explanation", points = 6 }]', "]")
    for text, points in (
        (changed.replace("points = 10", "points = 12"), [0, 4, 6]),
        (swapped, [6, 4]),
    ):
        course.write_text(text)
        _, rows, _ = grade(out, course=course)
        given = [
            line.override.points if line.override else 0
            for line in rows["ada"].exercises[-2].rubric
        ]
        assert (given, rows["ada"].needs_human) == (points, [])
    # a sheet of before says what its lines were
    lines = read_sheet(sheet)
    lines[0]["points"] = "1"
    write_sheet(sheet, lines)
    before = (out / "results.json").read_bytes()
    said = dojo("marks", "--from", sheet, "--out", out, fails=True)
    assert "line 2: the rubric says 'the trace' here, and 'the  explanation' in the course" in said
    assert "dojo marks --sheet FILE" in said
    assert (out / "results.json").read_bytes() == before
    # what fits no line is told, and can be taken back
    course.write_text(REPORT.replace("the trace", "the timeline"))
    outcome, rows, _ = grade(out, course=course)
    (reason,) = rows["ada"].needs_human
    undo = ("override", "--undo", "ada", "report::the trace")
    assert "4 of 4 points were given by hand for 'the trace', which is no line of report" in reason
    assert reason.endswith("dojo override --undo ada 'report::the trace'")
    (notice,) = [each for each in outcome.notices if "the trace" in each]
    assert "points of ada for it are unused" in notice
    assert rows["ada"].to_grade == ["Report", "talk"]
    dojo(*undo, "--out", out)
    assert row_of(out, "ada").needs_human == []


def test_a_log_with_numbers_of_rubric_lines_is_read(marked: Path) -> None:
    out = marked / "out"
    dojo("override", "ada", "report::2", "--points", "5", "--out", out)
    log = out / "overrides.csv"
    log.write_text(log.read_text(encoding="utf-8-sig").replace("::the explanation", "::2"))
    dojo("override", "bo", "report::1", "--points", "1", "--out", out)
    assert row_of(out, "ada").exercises[-2].score == 5
    assert "report::the explanation" in log.read_text(encoding="utf-8-sig")


@pytest.mark.parametrize("text", ["the explanation", "2", " "])
def test_lines_of_a_rubric_have_texts_of_their_own(term: Path, text: str) -> None:  # noqa: F811
    (term / "class" / "course.toml").write_text(REPORT.replace("the trace", text))
    said = dojo("init", term / "class", fails=True)
    assert "course.toml, line 6: points belong to the text of a line of the rubric" in said


def test_without_anything_to_mark_there_is_no_sheet(term: Path) -> None:  # noqa: F811
    sheet = term / "marks.csv"
    said = dojo("marks", "--sheet", sheet, "--out", term / "out", fails=True)
    assert "nothing to mark by hand" in said
    assert not sheet.exists()


def test_a_dispute_is_refused_with_a_comment_and_loses_nothing(term: Path) -> None:  # noqa: F811
    """The points stay, also those that were given before, and the failure is still to fix."""
    out = term / "out"
    failed = next(
        check
        for exercise in row_of(out, "bo").exercises
        for check in exercise.checks
        if check.outcome is Outcome.FAILED
    )
    before = row_of(out, "bo")
    said = dojo("override", "bo", failed.id, "--comment", "Refused: read the task.", "--out", out)
    assert "The points are the same as before." in said
    row = row_of(out, "bo")
    assert (row.score, row.overrides) == (before.score, [])
    dojo("report", out)
    page = (out / "report" / "students" / "bo.html").read_text(encoding="utf-8")
    assert "Refused: read the task." in page
    assert page.count('class="failed"') == 1
    dojo("feedback", out, "--out", term / "pages")
    text = (term / "pages" / "feedback.csv").read_text(encoding="utf-8-sig")
    assert "Refused: read the task." in text
    assert "[-" in text, "the loss is still told"
    assert "the points stay  Refused" in dojo("override", "--out", out)
    # points of before are given again
    dojo("override", "bo", failed.id, "--points", "0", "--comment", "One.", "--out", out)
    dojo("override", "bo", failed.id, "--comment", "No more.", "--out", out)
    ((_, given),) = row_of(out, "bo").overrides
    assert (given.points, given.comment) == (0, "No more.")
    dojo("override", "--undo", "bo", failed.id, "--out", out)
    assert row_of(out, "bo") == before


def test_an_item_that_is_not_marked_is_not_answered_without_points(marked: Path) -> None:
    out = marked / "out"
    said = dojo("override", "ada", "report", "--comment", "Well.", "--out", out, fails=True)
    assert "report is not marked yet: give it --points, too" in said


def test_a_comment_of_a_review_is_kept_when_it_is_ticked_off_again(term: Path) -> None:  # noqa: F811
    out = term / "out"
    dojo("review", "cy", "--done", "--comment", "A typing error.", "--out", out)
    dojo("review", "cy", "--done", "--out", out)
    reviewed = row_of(out, "cy").reviewed
    assert reviewed is not None
    assert reviewed.comment == "A typing error."


def test_a_group_that_is_mistyped_is_suggested(term: Path) -> None:  # noqa: F811
    (term / "class" / "course.toml").write_text("[groups]\nteam-red = ['ada', 'bo']\n")
    grade(term / "out", term / "class")
    said = dojo("override", "team-rde", "01", "--points", "1", "--out", term / "out", fails=True)
    assert "did you mean team-red?" in said


def test_the_column_to_rename_is_named(marked: Path) -> None:
    (marked / "marks.csv").write_text("student,item,pts\nada,01,1\n", encoding="utf-8")
    said = dojo("marks", "--from", marked / "marks.csv", "--out", marked / "out", fails=True)
    assert "there is no column 'points'" in said
    assert "rename the column 'pts'; the columns are student, item, pts" in " ".join(said.split())


def test_nothing_to_undo_is_told(marked: Path) -> None:
    said = dojo("override", "--undo", "--out", marked / "out", fails=True)
    assert "nobody was given anything yet" in said


def test_which_attempt_counts_is_told_where_it_is_not_the_latest(term: Path) -> None:  # noqa: F811
    out = term / "out"
    hand_in(term / "class" / "bo", RIGHT)
    said = dojo("grade", term / "class", "--out", out, "--attempt", "first", "--only", "01")
    told = "Of several attempts of a student, the first counts."
    assert told in said
    assert told in dojo("grade", "--out", out, "--only", "01")  # it stays in force
    assert told in dojo("status", out)
    assert told in dojo("export", out, "--to", "gradescope", "--out", term / "exported")
    assert told not in dojo("grade", "--out", out, "--only", "01", "--attempt", "latest")


def test_the_group_of_a_student_is_no_other_student(term: Path) -> None:  # noqa: F811
    out = term / "out"
    (term / "class" / "course.toml").write_text("[groups]\nteam-4 = ['cy', 'wim']\n")
    grade(out, term / "class")
    dojo("review", "cy", "--done", "--out", out)
    assert "cy (team-4)" in dojo("status", out)


def test_a_column_with_dates_of_an_unknown_name_is_told(term: Path) -> None:  # noqa: F811
    """With it unread, nobody would be late."""
    course = term / "class" / "course.toml"
    course.write_text("roster = 'w.csv'\ndeadline = 2026-11-15T23:59:00Z\n", encoding="utf-8")
    table = term / "class" / "w.csv"
    lines = "20210312,ada,2026-11-15 20:00\n2,bo,-\n"
    table.write_text(f"id,name,came in at\n{lines}", encoding="utf-8")
    assert "the column 'came in at' has dates, and is not known" in dojo("init", term / "class")
    table.write_text(f"id,name,submitted\n{lines}", encoding="utf-8")
    assert "has dates" not in dojo("init", term / "class")


def test_who_is_absent_and_marked_in_part_is_still_to_mark(marked: Path) -> None:
    out = marked / "out"
    (marked / "class" / "roster.csv").write_text("id,name\nada,Ada\nbo,Bo\ncy,Cy\n4,Dora\n")
    course = marked / "class" / "course.toml"
    course.write_text("roster = 'roster.csv'\n" + course.read_text())
    grade(out, course=course)
    assert row_of(out, "Dora").to_grade == []
    dojo("override", "Dora", "report::1", "--points", "2", "--out", out)
    assert row_of(out, "Dora").to_grade == ["Report"]
    assert "1 to mark by hand Report: Dora" in dojo("status", out)
    assert "Report" in dojo("marks", "--out", out)
    said = dojo("feedback", out, "--out", marked / "pages")
    assert "(Report), with 0 points for it until then: Dora" in said
    page = (marked / "pages" / "students" / "Dora.html").read_text(encoding="utf-8")
    assert "Still to be graded by hand: Report." in page
    assert "Still to be graded by hand: Report" in (marked / "pages" / "feedback.csv").read_text()


def test_words_in_the_wrong_place_are_told(marked: Path) -> None:
    out = ("--out", marked / "out")
    said = dojo("override", "01", "ada", "--points", "1", *out, fails=True)
    assert "STUDENT stands before CHECK or EXERCISE: dojo override ada 01" in said
    assert "cy has no review that is ticked off" in dojo("review", "cy", "--undo", *out, fails=True)
    course = marked / "class" / "course.toml"
    course.write_text("[groups]\nt1 = ['ada', 'bo']\n")
    grade(marked / "out", course=course)
    said = dojo("remove", "t1", *out, fails=True)
    assert "t1 is a group; name its members: ada, bo" in said


def test_a_course_file_is_not_made_where_it_is_not_meant(term: Path) -> None:  # noqa: F811
    new = term / "submisions"
    assert f"There was no folder {new}: it was made." in dojo("init", new)
    said = dojo("init", term / "out", fails=True)
    assert "holds results of `dojo grade`; the course file lies beside the submissions" in said
    assert not (term / "out" / "course.toml").exists()
