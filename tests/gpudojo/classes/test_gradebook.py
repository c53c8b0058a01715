"""A class over weeks: graded in parts and again, late, absent, in groups, and with points that
people give.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gpudojo.classes import judging
from gpudojo.classes.class_grading import ClassGrading, GradedClass
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.classes.run_settings import POOL_SIZE
from gpudojo.cli import main
from gpudojo.grading.engine import judge_function
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass, BadFile
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import (
    CheckResult,
    ClassResults,
    Grade,
    RosterRow,
    SubmissionRow,
    SubmissionStatus,
)
from gpudojo.model.results_file import read
from gpudojo.submissions.choosing import PARSED_CHARACTERS

from tests.gpudojo.classes.test_grading import REFERENCE, Quiet
from tests.gpudojo.report.test_similarity import OWN

EXERCISES = REFERENCE.parents[1] / "exercises" / "day8"
FIRST = "01_checking_device.py"
SECOND = "12_self_assessment.py"
FILES = {1: FIRST, 2: "02_moving_model_to_device.py"}
RIGHT = (REFERENCE / FIRST).read_text(encoding="utf-8")
WRONG = "import torch\n\n\ndef select_device(prefer=None):\n    return torch.device('cpu')\n"
PARTLY = (
    "import torch\n\n\ndef select_device(prefer=None):\n    return torch.device(prefer or 'cuda')\n"
)

pytestmark = pytest.mark.usefixtures("loaded_fork_servers")


def hand_in(folder: Path, text: str, name: str = FIRST) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def commit(folder: Path, date: str) -> None:
    dates = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": "2026-11-01T10:00:00+0100"}
    settings = ("-c", "user.name=a", "-c", "user.email=a@x.org")
    for words in (("init", "-q"), ("add", "."), (*settings, "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=folder, env=os.environ | dates, check=True)


def grade(
    out: Path, *paths: Path, **more: Any
) -> tuple[GradedClass, dict[str, SubmissionRow], ClassResults]:
    settings = {"only": frozenset({"select_device"}), "jobs": 2, "seconds": 10.0, **more}
    options = GradingOptions(submissions=paths, out=out, reference=REFERENCE, **settings)
    outcome = ClassGrading(options, Quiet()).run()
    results = read(out / "results.json")
    return outcome, {row.submission: row for row in results.submissions}, results


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `class` of three, and `out`, in which it was graded."""
    folder = tmp_path_factory.mktemp("course")
    hand_in(folder / "class" / "ada", RIGHT)
    hand_in(folder / "class" / "bo", WRONG)
    hand_in(folder / "class" / "cy", RIGHT.replace("def select_device", "def select_devise"))
    grade(folder / "out", folder / "class")
    return folder


@pytest.fixture
def term(made: Path, tmp_path: Path) -> Path:
    """The same for one test alone.

    Records are found by content, so that nothing has to run again.
    """
    shutil.copytree(made, tmp_path / "term")
    for path in (tmp_path / "term" / "out" / ".dojo").glob("class.json"):
        path.write_text(path.read_text().replace(str(made), str(tmp_path / "term")))
    return tmp_path / "term"


def dojo(*words: str | Path, fails: bool = False) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert bool(done.exit_code) is fails, done.output
    return done.output


def test_one_student_again_keeps_the_others_and_the_settings(term: Path) -> None:
    before = read(term / "out" / "results.json")
    hand_in(term / "class" / "bo", RIGHT + "\n# mended\n")
    options: dict[str, Any] = {
        "seconds": 3.0,
        "asked": frozenset(),
        "only": frozenset({"select_device"}),
    }
    outcome, rows, after = grade(term / "out", term / "class" / "bo", **options)
    assert (outcome.count, outcome.ran, list(rows)) == (1, 1, ["ada", "bo", "cy"])
    assert rows["ada"] == next(row for row in before.submissions if row.submission == "ada")
    assert (after.seed, after.limits) == (before.seed, before.limits)
    assert after.limits is not None
    assert after.limits.seconds == 10.0
    assert rows["bo"].score == after.max_score
    # the earlier attempt stays, and what changed is said
    first, second = rows["bo"].attempts
    assert (first.score < second.score, first.counts, second.counts) == (True, False, True)
    (change,) = outcome.changes
    assert str(change).startswith(f"bo: {first.score:g} → {second.score:g} (select_device::")
    assert second.changes == change.checks
    with (term / "out" / "history.csv").open(encoding="utf-8-sig", newline="") as file:
        (line,) = csv.DictReader(file)
    assert (line["submission"], line["why"], line["published_before"]) == (
        "bo",
        "new attempt",
        f"{first.score:g}",
    )
    # the same again changes nothing
    again, rows, _ = grade(term / "out", term / "class" / "bo", **options)
    assert (again.ran, again.changes, len(rows["bo"].attempts)) == (0, [], 2)


def test_the_history_has_the_name_on_the_roster(term: Path) -> None:
    hand_in(term / "class" / "bo", RIGHT + "\n# mended\n")
    (term / "roster.csv").write_text("id,name,email\nbo,Bo Bell,bo@school.org\n")
    grade(term / "out", term / "class" / "bo", roster=term / "roster.csv")
    with (term / "out" / "history.csv").open(encoding="utf-8-sig", newline="") as file:
        (line,) = csv.DictReader(file)
    assert (line["submission"], line["student"]) == ("bo", "Bo Bell")


def test_what_the_course_file_changes_is_said_and_logged(term: Path) -> None:
    """An extension after the deadline, a roster, other weights: no check has changed, and points
    have.
    """
    commit(term / "class" / "ada", "2026-11-21T10:00:00+0100")
    course = term / "class" / "course.toml"
    course.write_text(
        "deadline = 2026-11-20T23:59:00+01:00\n[late]\npenalty = 10\n", encoding="utf-8"
    )
    outcome, rows, _ = grade(term / "out", term / "class")
    assert (outcome.tally.changed_by_rules, rows["ada"].final.points) == (
        ["ada: 8 → 7.2 of 8"],
        7.2,
    )
    assert grade(term / "out", term / "class")[0].tally.changed_by_rules == []
    course.write_text(
        course.read_text(encoding="utf-8") + "[extensions]\nada = 1\n", encoding="utf-8"
    )
    # whichever command is the first to use it
    said = dojo("override", "bo", "01", "--points", "1", "--out", term / "out")
    assert (
        "Changed by the course file, the roster, dates, --only or --attempt\n  ada: 7.2 → 8 of 8\n"
        in said
    )
    assert grade(term / "out", term / "class")[0].tally.changed_by_rules == []
    (term / "roster.csv").write_text("id,name\nada,Ada One\n", encoding="utf-8")
    course.write_text("points = 20\n", encoding="utf-8")
    outcome, _, _ = grade(term / "out", term / "class", roster=term / "roster.csv")
    assert outcome.tally.changed_by_rules == [
        "Ada One (ada): 8 of 8 → 20 of 20",
        "bo: 1 of 8 → 2.5 of 20",
        "cy: 0 of 8 → 0 of 20",
    ]
    with (term / "out" / "history.csv").open(encoding="utf-8-sig", newline="") as file:
        lines = [
            (line["submission"], line["published_before"], line["published_after"], line["why"])
            for line in csv.DictReader(file)
        ]
    assert [line for line in lines if line[0] == "ada"] == [
        ("ada", "8", "7.2", "settings"),
        ("ada", "7.2", "8", "settings"),
        ("ada", "8", "20", "settings"),
    ]
    assert lines[-2:] == [("bo", "1", "2.5", "settings"), ("cy", "0", "0", "settings")]
    # what was graded again has the published points first
    hand_in(term / "class" / "cy", RIGHT)
    outcome, _, _ = grade(term / "out", term / "class")
    assert str(outcome.changes[0]).startswith("cy: 20 of 20; 0 → 8 of 8 in the exercises")


def test_who_is_absent_no_longer_or_from_now_on_is_a_change(term: Path) -> None:
    """By a new submission, or by the course file alone."""
    (term / "roster.csv").write_text("id,name\nada,Ada One\n2,Bo Bell\n3,Eve Fay\n")
    course = term / "class" / "course.toml"
    course.write_text(
        "points = 20\nroster = '../roster.csv'\n[groups]\nt1 = ['Ada One', 'Eve Fay']\n"
    )
    outcome, rows, _ = grade(term / "out", term / "class" / "ada")
    assert (rows["Eve Fay"].final.points, rows["Bo Bell"].status) == (20, SubmissionStatus.ABSENT)
    assert outcome.changes == []
    assert outcome.tally.changed_by_rules[0] == "Ada One (ada): 8 of 8 → 20 of 20"
    assert not any("absent" in change for change in outcome.tally.changed_by_rules)
    course.write_text("points = 20\nroster = '../roster.csv'\n")
    outcome, _, _ = grade(term / "out")
    assert outcome.tally.changed_by_rules == ["Eve Fay: 20 → absent"]
    hand_in(term / "class" / "Eve Fay", RIGHT)
    hand_in(term / "class" / "gil", RIGHT)
    outcome, _, _ = grade(term / "out", term / "class" / "Eve Fay", term / "class" / "gil")
    assert [str(change) for change in outcome.changes] == [
        "Eve Fay: 20 of 20; absent → 8 of 8 in the exercises"
    ]
    assert outcome.tally.changed_by_rules == []
    with (term / "out" / "history.csv").open(encoding="utf-8-sig", newline="") as file:
        lines = [list(line.values())[1:7] for line in csv.DictReader(file)]
    assert [line for line in lines if line[0] == "Eve Fay"] == [
        ["Eve Fay", "Eve Fay", "20", "", "20", "settings"],
        ["Eve Fay", "Eve Fay", "", "20", "20", "new attempt"],
    ]
    assert "gil" not in {line[0] for line in lines}


def test_another_attempt_of_another_name_is_a_change(term: Path) -> None:
    (term / "roster.csv").write_text(
        "id,name,github\n1,Ada One,ada\n2,Bo Bell,\n", encoding="utf-8"
    )
    hand_in(term / "class" / "Ada One", WRONG + "# again\n")
    grade(term / "out", term / "class", roster=term / "roster.csv", attempt="latest")
    latest = read(term / "out" / "results.json").submissions
    outcome, _, _ = grade(term / "out", term / "class" / "bo", attempt="best")
    assert [row.submission for row in latest if row.roster] == ["Ada One", "Bo Bell"]
    assert outcome.tally.changed_by_rules == ["Ada One (ada): 0 → 8 of 8"]


def test_which_attempt_counts(term: Path) -> None:
    hand_in(term / "class" / "ada", WRONG + "\n# worse\n")
    worth = read(term / "out" / "results.json").max_score
    for rule, best in (("latest", False), ("best", True), ("first", True)):
        _, rows, _ = grade(term / "out", term / "class" / "ada", attempt=rule)
        assert (rows["ada"].score == worth) is best, rule
        assert [attempt.counts for attempt in rows["ada"].attempts] == [best, not best]


def test_attempts_have_the_points_of_the_course(term: Path) -> None:
    """The grader's own points would choose another attempt, and stand beside the course's."""
    course = "attempt = 'best'\n[exercises]\n'01' = 10\n'12' = 90\n"
    (term / "class" / "course.toml").write_text(course, encoding="utf-8")
    answers = "12_self_assessment.py"
    every: dict[str, Any] = {"only": frozenset()}
    grade(term / "new", term / "class", **every)
    hand_in(term / "class" / "ada", (REFERENCE / answers).read_text(encoding="utf-8"), answers)
    hand_in(term / "class" / "ada", "")
    outcome, rows, _ = grade(term / "new", term / "class" / "ada", **every)
    assert rows["ada"].score == 90
    assert [(each.score, each.max_score, each.counts) for each in rows["ada"].attempts] == [
        (10, 100, False),
        (90, 100, True),
    ]
    (change,) = outcome.changes
    assert str(change).startswith("ada: 10 → 90 (")
    # what a person gave holds for every attempt
    dojo("override", "--out", term / "new", "ada", "01", "--points", "4")
    row = next(
        row for row in read(term / "new" / "results.json").submissions if row.submission == "ada"
    )
    assert [each.score for each in row.attempts] == [4, 94]


def test_the_best_attempt_is_best_with_its_penalty(term: Path) -> None:
    course = "deadline = 2026-11-20T23:59:00+01:00\nattempt = 'best'\n[late]\npenalty = 100\n"
    (term / "class" / "course.toml").write_text(course, encoding="utf-8")
    for day, text in ((20, PARTLY), (21, RIGHT)):
        hand_in(term / "class" / "bo", text + "# of bo\n")
        commit(term / "class" / "bo", f"2026-11-{day}T23:59:00+0100")
        _, rows, _ = grade(term / "out", term / "class" / "bo")
    assert 0 < rows["bo"].final.points < rows["bo"].max_score
    assert [each.counts for each in rows["bo"].attempts][-2:] == [True, False]


def test_the_same_download_again_is_no_later_attempt(term: Path) -> None:
    hand_in(term / "mended" / "bo", RIGHT + "\n# mended\n")
    worth = read(term / "out" / "results.json").max_score
    assert grade(term / "out", term / "mended" / "bo")[1]["bo"].score == worth
    shutil.copytree(term / "class" / "bo", term / "download" / "bo")
    for place in ("class", "download"):
        outcome, rows, _ = grade(term / "out", term / place / "bo")
        assert (rows["bo"].score, outcome.changes, len(rows["bo"].attempts)) == (worth, [], 2), (
            place
        )
    # What changes back in its own place is what the student wants.
    hand_in(term / "mended" / "bo", WRONG)
    outcome, rows, _ = grade(term / "out", term / "mended" / "bo")
    assert (rows["bo"].score < worth, len(rows["bo"].attempts)) == (True, 2)


def test_a_run_that_began_before_another_ended_loses_nothing(term: Path) -> None:
    settings: dict[str, Any] = {
        "out": term / "out",
        "reference": REFERENCE,
        "only": frozenset({"select_device"}),
    }
    waits = ClassGrading(GradingOptions(submissions=(term / "class" / "ada",), **settings), Quiet())
    hand_in(term / "more" / "dee", RIGHT + "# dee\n")
    grade(term / "out", term / "more")
    with pytest.raises(
        BadClass, match=r"another `dojo grade` has just written to .*; run the same command again"
    ):
        waits.run()
    _, rows, _ = grade(term / "out", term / "class" / "ada")
    assert list(rows) == ["ada", "bo", "cy", "dee"]


def test_what_is_gone_is_kept_and_said(term: Path) -> None:
    shutil.rmtree(term / "class" / "cy")
    outcome, rows, _ = grade(term / "out", term / "class")
    assert (outcome.tally.gone, rows["cy"].gone, rows["ada"].gone) == (["cy"], True, False)


def test_other_functions_do_not_get_into_the_same_table(term: Path) -> None:
    said = (
        "has 2 more submissions, graded with --only select_device; give it again, grade all of "
        "them again"
    )
    for other in (frozenset({"move_batch"}), frozenset[str]()):
        with pytest.raises(BadClass, match=said):
            grade(term / "out", term / "class" / "bo", only=other)
    assert len(read(term / "out" / "results.json").submissions) == 3


def write_course(term: Path, text: str) -> None:
    (term / "class" / "course.toml").write_text(f"[exercises]\n{text}", encoding="utf-8")


def test_a_course_that_changes_runs_only_what_is_new(term: Path) -> None:
    """An exercise is dropped, added and weighted anew; points given by hand come back with it."""
    hand_in(term / "class" / "ada", (REFERENCE / "12_self_assessment.py").read_text(), SECOND)
    course: dict[str, Any] = {"only": frozenset(), "asked": frozenset()}
    write_course(term, "'01' = 8\n'12' = 2\n")
    first, rows, _ = grade(term / "out", term / "class", **course)
    assert (first.ran, rows["ada"].score, rows["ada"].max_score) == (4, 10, 10)  # both attempts
    dojo("override", "ada", "12", "--points", "1", "--out", term / "out")
    write_course(term, "'01' = 4\n")
    dropped, rows, _ = grade(term / "out", term / "class", **course)
    assert (dropped.ran, rows["ada"].score, rows["ada"].max_score) == (0, 4, 4)
    assert [item.exercise for item in rows["bo"].exercises] == ["01_checking_device"]
    # added again: nothing runs, also where one student alone is given, or nobody
    write_course(term, "'01' = 4\n'12' = 2\n")
    for given in ((term / "class" / "bo",), ()):
        added, rows, _ = grade(term / "out", *given, **course)
        assert (added.ran, rows["ada"].score, rows["ada"].max_score) == (0, 5, 6)
        assert (rows["bo"].max_score, len(rows)) == (6, 3)
    # one that was never run: it alone runs, from what the class keeps
    shutil.rmtree(term / "class" / "ada")
    write_course(term, "'01' = 4\n'12' = 2\n'02' = 4\n")
    new, rows, results = grade(term / "out", term / "class" / "bo", **course)
    assert (new.ran, rows["ada"].score, results.max_score) == (4, 5, 10)
    assert [item.exercise for item in rows["ada"].exercises] == [
        "01_checking_device",
        "02_moving_model_to_device",
        "12_self_assessment",
    ]
    write_course(term, "'02' = 4\n'01' = 8\n")
    again, rows, _ = grade(term / "out", rejudge=True, **course)
    assert (again.ran, rows["ada"].score, rows["ada"].max_score) == (0, 8, 12)


def test_what_was_judged_is_not_judged_again_when_an_exercise_is_dropped(
    term: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in FILES.items():
        hand_in(term / "class" / "ada", (REFERENCE / name).read_text(), name)
        hand_in(term / "class" / "cy", (EXERCISES / name).read_text() + f"# {number}\n", name)
    course: dict[str, Any] = {"only": frozenset(), "asked": frozenset()}
    write_course(term, "'01' = 4\n'02' = 4\n")
    grade(term / "out", term / "class", **course)
    judged = []

    def judge(exercise: Exercise, *given: Any) -> list[CheckResult]:
        judged.append(exercise.stem)
        return judge_function(exercise, *given)

    monkeypatch.setattr(judging, "judge_function", judge)
    write_course(term, "'02' = 8\n")
    outcome, rows, _ = grade(term / "out", **course)
    assert (outcome.ran, judged, rows["ada"].score) == (0, [], 8)
    # Judged anew, it is the same.
    _, anew, _ = grade(term / "out", rejudge=True, **course)
    assert judged
    assert {name: row.exercises for name, row in rows.items()} == {
        name: row.exercises for name, row in anew.items()
    }
    assert [row.needs_human for row in rows.values()] == [row.needs_human for row in anew.values()]
    # Only what is added is judged.
    judged.clear()
    write_course(term, "'02' = 8\n'03' = 2\n")
    grade(term / "out", **course)
    write_course(term, "'03' = 2\n'02' = 8\n'01' = 1\n")
    judged.clear()
    grade(term / "out", **course)
    assert set(judged) == {"01_checking_device"}


def test_what_is_dropped_is_no_reason_to_review_any_more(tmp_path: Path) -> None:
    """A record that was made for more functions is judged as if it had been made for these."""
    broken = "import os\n\n\ndef select_device(prefer=None):\n    os._exit(3)\n"
    right = (REFERENCE / "02_moving_model_to_device.py").read_text()
    for number in (1, 2):
        hand_in(tmp_path / "class" / "ada", broken if number == 1 else right, FILES[number])
    write_course(tmp_path, "'01' = 4\n'02' = 4\n")
    course: dict[str, Any] = {"only": frozenset(), "asked": frozenset()}
    _, rows, _ = grade(tmp_path / "out", tmp_path / "class", **course)
    assert rows["ada"].status is SubmissionStatus.CRASHED
    write_course(tmp_path, "'02' = 4\n")
    outcome, rows, _ = grade(tmp_path / "out", tmp_path / "class", **course)
    _, anew, _ = grade(tmp_path / "new", tmp_path / "class", **course)
    assert outcome.ran == 0
    assert (rows["ada"].status, rows["ada"].needs_human) == (SubmissionStatus.GRADED, [])
    assert rows["ada"].exercises == anew["ada"].exercises
    assert rows["ada"].definitions == anew["ada"].definitions


def test_a_part_of_the_class_has_the_secret_and_the_device_of_all(term: Path) -> None:
    """Another secret is for all of them: what was kept of the others would be run again, too."""
    path = term / "out" / ".dojo" / "secret"
    secret = path.read_text()
    said = "has 2 more submissions, whose scenarios are drawn from another secret; leave out --seed"
    with pytest.raises(BadClass, match=said):
        grade(term / "out", term / "class" / "bo", secret="other")
    with pytest.raises(
        BadClass, match="graded on virtual; give --bench virtual, grade all of them"
    ):
        grade(term / "out", term / "class" / "bo", bench="cuda", asked=frozenset({"bench"}))
    assert path.read_text() == secret
    same, _, _ = grade(term / "out", term / "class" / "bo", secret=secret)
    all_again, _, _ = grade(term / "out", secret="other")
    assert (same.ran, all_again.ran, path.read_text()) == (0, 3, "other")


def test_a_secret_that_is_lost_is_told(term: Path) -> None:
    """Without a word, a new one would be drawn and everybody run again."""
    secret = (term / "out" / ".dojo" / "secret").read_text()
    (term / "out" / ".dojo" / "secret").unlink()
    with pytest.raises(BadClass, match="secret is gone, from which the scenarios"):
        grade(term / "out", term / "class")
    outcome, _, _ = grade(term / "out", term / "class", secret=secret)
    assert outcome.ran == 0


def test_zips_of_two_attempts_are_two_attempts(term: Path) -> None:
    for number, text in enumerate((WRONG, RIGHT)):
        name = "day8.zip" if number == 0 else "day8-1.zip"
        with zipfile.ZipFile(term / "class" / f"doe_77_{9001 + number}_{name}", "w") as packed:
            packed.writestr(FIRST, text)
    _, rows, _ = grade(term / "out", term / "class")
    assert ([attempt.counts for attempt in rows["doe"].attempts], rows["doe"].score) == (
        [False, True],
        8,
    )


def test_without_submissions_there_has_to_be_a_class(tmp_path: Path) -> None:
    with pytest.raises(BadClass, match="has no class yet; give SUBMISSIONS"):
        grade(tmp_path / "out")


def test_a_row_is_removed_and_taken_back(term: Path) -> None:
    """However often the class is graded; nothing of it gets lost."""
    out = ("--out", term / "out")
    before = read(term / "out" / "results.json").submissions
    dojo("override", "bo", "01", "--points", "3", *out)
    given = read(term / "out" / "results.json").submissions
    assert given != before
    said = dojo("remove", "bo", "cy", "--comment", "they left", *out)
    assert "1 row in" in said
    assert "To undo it: dojo remove --undo bo cy" in said
    assert [row.submission for row in read(term / "out" / "results.json").submissions] == ["ada"]
    outcome, rows, _ = grade(term / "out", term / "class")
    assert rows.keys() == {"ada"}
    assert outcome.notices == [
        "removed by hand: bo, cy; to take one back: dojo remove --undo STUDENT"
    ]
    listed = dojo("remove", *out)
    assert "bo: removed by " in listed
    assert "they left" in listed
    for words in (
        ("override", "bo", "01", "--points", "1"),
        ("override", "--undo", "bo", "01"),
        ("review", "bo"),
        ("remove", "bo"),
    ):
        said = dojo(*words, *out, fails=True)
        assert "bo was removed from the class; to take the row back: dojo remove --undo bo" in said
    assert "nobody would be left" in dojo("remove", "ada", *out, fails=True)
    assert "STUDENT is missing" in dojo("remove", "--undo", *out, fails=True)
    assert "bo: in the class again" in dojo("remove", "--undo", "bo", *out)
    dojo("remove", "--undo", "cy", *out)
    assert read(term / "out" / "results.json").submissions == given
    assert "nobody was removed" in dojo("remove", "--undo", "cy", *out, fails=True)


def test_who_is_on_the_roster_can_be_removed_too(term: Path) -> None:
    (term / "class" / "roster.csv").write_text("id,name\nada,Ada\nbo,Bo\ndora,Dora\n")
    grade(term / "out", term / "class", roster=term / "class" / "roster.csv")
    dojo("remove", "Dora", "cy", "--out", term / "out")
    outcome, rows, _ = grade(term / "out", term / "class")
    assert (rows.keys(), outcome.unmatched) == ({"ada", "bo"}, [])


def test_reasons_to_look(term: Path) -> None:
    hand_in(term / "class" / "dee" / "sub", RIGHT.replace("\n", "\r\n"), "mine.py")
    hand_in(term / "class" / "eve", "def select_device(prefer=None:\n    return 1\n")
    hand_in(term / "class" / "fay", WRONG)
    hand_in(term / "class" / "fay", RIGHT, "01_checking_device (1).py")
    hand_in(term / "class" / "gil", WRONG + "# gil\n", "old.py")
    hand_in(term / "class" / "gil", RIGHT + "# gil\n", "final.py")
    _, rows, _ = grade(term / "out", term / "class")
    told = {name: " ".join(row.needs_human) for name, row in rows.items()}
    assert told["cy"] == "none of the functions is in it"
    assert (told["ada"], told["dee"]) == ("the same files as dee", "the same files as ada")
    assert told["bo"] == ""
    assert told["eve"].startswith(f"{FIRST} is not valid Python: SyntaxError")
    assert f"01_checking_device (1).py was graded, and not {FIRST}" in told["fay"]
    assert "final.py was graded, and not old.py" in told["gil"]
    (term / "roster.csv").write_text("id,name\nada,Ada One\ndee,Dee Example\n", encoding="utf-8")
    _, rows, _ = grade(term / "out", term / "class", roster=term / "roster.csv")
    assert rows["dee"].needs_human == ["the same files as Ada One (ada)"]


def test_a_copy_stays_a_copy_when_its_author_hands_in_again(term: Path) -> None:
    """In the reviews, and in similar submissions."""
    for name in ("ada", "dee"):
        hand_in(term / "class" / name, f"{RIGHT}\n\ndef own(moved, device):\n{OWN}")
    _, rows, _ = grade(term / "out", term / "class")
    assert rows["ada"].needs_human == ["the same files as dee"]
    for name in ("dee", "ada"):
        hand_in(term / "class" / name, RIGHT + f"# {name}, in words of their own\n")
        _, rows, _ = grade(term / "out", term / "class")
    assert rows["ada"].needs_human == [
        "an earlier attempt has the same files as an earlier attempt of dee"
    ]
    assert rows["dee"].needs_human == [
        "an earlier attempt has the same files as an earlier attempt of ada"
    ]
    dojo("report", term / "out", "--similarity", "--out", term / "pages")
    page = (term / "pages" / "similarity.html").read_text(encoding="utf-8")
    assert (
        page.count("<bdi>another attempt of ada</bdi> and <bdi>another attempt of dee</bdi>") == 1
    )
    assert "<bdi>ada</bdi> and <bdi>another attempt of ada</bdi>" not in page
    assert "4 submissions" in page


ANSWERS = "12_self_assessment.py"
UNANSWERED = (EXERCISES / ANSWERS).read_text(encoding="utf-8")


@pytest.mark.parametrize("only", [frozenset({"ANSWERS"}), frozenset[str]()])
def test_equal_answers_are_no_equal_files(tmp_path: Path, only: frozenset[str]) -> None:
    """Who is right has the same five letters as all others, and a stub is everybody's."""
    for name in ("ada", "bo", "cy"):
        hand_in(tmp_path / "class" / name, (REFERENCE / ANSWERS).read_text("utf-8"), ANSWERS)
    for name in ("dee", "eve"):
        hand_in(tmp_path / "class" / name, UNANSWERED, ANSWERS)
    _, rows, _ = grade(tmp_path / "out", tmp_path / "class", only=only)
    assert [name for name, row in rows.items() if row.needs_human] == []
    assert [rows[name].score for name in ("ada", "dee")] == [2.0, 0.0]


def test_the_same_stub_is_no_copy(tmp_path: Path) -> None:
    for exercise in exercises_of("day8"):
        stub = (EXERCISES / f"{exercise.stem}.py").read_text(encoding="utf-8")
        hand_in(tmp_path / "class" / f"ada {exercise.stem}", stub, f"{exercise.stem}.py")
        hand_in(tmp_path / "class" / f"bo {exercise.stem}", stub, f"{exercise.stem}.py")
    _, rows, _ = grade(tmp_path / "out", tmp_path / "class", only=frozenset())
    assert len(rows) == 24
    assert [name for name, row in rows.items() if row.needs_human] == []


def test_the_functions_of_a_long_file_are_in_it(tmp_path: Path) -> None:
    """It is too long to be parsed before it runs, and runs all the same."""
    notes = "# what I have learned today\n" * (PARSED_CHARACTERS // 20)
    hand_in(tmp_path / "class" / "ada", RIGHT + notes)
    hand_in(
        tmp_path / "class" / "bo", f"globals()['select_device'] = lambda prefer=None: 1\n{notes}"
    )
    hand_in(tmp_path / "class" / "cy", notes)
    _, rows, _ = grade(tmp_path / "out", tmp_path / "class")
    assert {name: row.needs_human for name, row in rows.items()} == {
        "ada": [],
        "bo": [],
        "cy": ["none of the functions is in it"],
    }
    assert rows["ada"].score == rows["ada"].max_score


def test_functions_in_a_cell_that_is_written_to_a_file_are_named(term: Path) -> None:
    """As in Colab, where files cannot be edited otherwise. Such cells are not run."""
    magic = [f"%%writefile {FIRST}\n", *RIGHT.splitlines(keepends=True)]
    for name, sources in {
        "dee": [magic],
        "eve": [magic, [WRONG]],
        "fay": [["%%writefile a.txt\n", "text"]],
    }.items():
        cells = [
            {"cell_type": "code", "metadata": {}, "outputs": [], "source": source}
            for source in sources
        ]
        notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        (term / "class" / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    _, rows, _ = grade(term / "out", term / "class")
    said = f"a cell of {{}}.ipynb writes {FIRST} with %%writefile; such cells are not run."
    assert rows["dee"].needs_human == [f"none of the functions is in it: {said.format('dee')}"]
    assert (rows["eve"].needs_human, rows["eve"].notes) == ([], ["A" + said.format("eve")[1:]])
    assert rows["fay"].needs_human == ["none of the functions is in it"]


def test_a_class_with_a_course_file(term: Path) -> None:
    """Scale, lateness by commit and by Canvas, an extension, sections, the absent, a stranger,
    items graded by hand.
    """
    commit(term / "class" / "ada", "2026-11-21T10:00:00+0100")
    (term / "class" / f"exampledee_LATE_10010_7001_{FIRST}").write_text(
        RIGHT + "# dee\n", encoding="utf-8"
    )
    (term / "class" / "roster.csv").write_text(
        "id,name,section\n1,Ada,Mon\n2,bo,Tue\n10010,Dee Example,Tue\n4,Nobody Here,Wed\n",
        encoding="utf-8",
    )
    (term / "class" / "course.toml").write_text(
        "points = 20\n"
        "deadline = 2026-11-20T23:59:00+01:00\n"
        "roster = 'roster.csv'\n"
        "[late]\n"
        "penalty = 10\n"
        "[extensions]\n"
        "2 = 3\n"
        "zoe = 1\n"
        "[[by_hand]]\n"
        "name = 'report'\n"
        "title = 'Report'\n"
        "points = 8\n",
        encoding="utf-8",
    )
    outcome, rows, results = grade(term / "out", term / "class")
    assert (results.scale, results.sections, results.unmatched) == (
        20,
        ["Mon", "Tue", "Wed"],
        ["cy"],
    )
    assert [row.section for row in rows.values()] == ["Mon", "Tue", "", "Tue", "Wed"]
    ada = rows["ada"]
    absent = rows["Nobody Here"]
    dee = rows["exampledee"]
    worth = results.max_score
    assert ada.timing is not None
    assert (ada.late, ada.timing.told_by, ada.timing.late_seconds) == (True, "commit", 36060)
    assert ada.final == Grade(round(20 * ada.score / worth - 2, 2), 20.0)
    assert (absent.status, absent.score, absent.max_score) == (SubmissionStatus.ABSENT, 0.0, worth)
    assert dee.needs_human == ["late, and by how much is not known: one day was counted"]
    assert rows["bo"].timing is not None
    assert (rows["bo"].timing.extended, rows["bo"].late) == (True, False)
    assert "nobody on the roster matches cy." in rows["cy"].needs_human
    assert [notice.partition(": ")[2] for notice in outcome.notices] == ["nobody is called 'zoe'"]
    assert absent.to_grade == []
    handed_in = [row for row in rows.values() if row is not absent]
    assert all(row.to_grade == ["Report"] for row in handed_in)


def test_points_that_people_give(term: Path) -> None:
    out = ("--out", term / "out")
    (term / "class" / "course.toml").write_text(
        "[[by_hand]]\nname = 'report'\ntitle = 'Report'\npoints = 8\n", encoding="utf-8"
    )
    grade(term / "out", term / "class")

    def now() -> dict[str, SubmissionRow]:
        return {row.submission: row for row in read(term / "out" / "results.json").submissions}

    before = now()["bo"]
    failed = next(check for check in before.exercises[0].checks if check.points < check.max_points)
    said = dojo(
        "override",
        "bo",
        failed.id,
        "--points",
        str(failed.max_points),
        "--comment",
        "seen",
        "--by",
        "kim",
        *out,
    )
    assert (
        f"bo: {before.score:g} → {before.score + failed.max_points:g} of {before.max_score:g}"
        in said
    )
    ((item, given),) = now()["bo"].overrides
    assert (item, given.graded, given.comment, given.by) == (failed.id, 0.0, "seen", "kim")
    assert "in the exercises" not in said, "the published points are the same"
    dojo("override", "--all", "report", "--points", "3", *out)
    dojo("override", "BO", "report", "--points", "5", *out)
    assert [row.exercises[-1].score for row in now().values()] == [3.0, 5.0, 3.0]
    dojo("override", "bo", "1", "--points", "1.5", "--comment", "whole exercise", *out)
    assert now()["bo"].score == 6.5
    # they survive regrading, also of another attempt
    hand_in(term / "class" / "bo", RIGHT)
    _, rows, _ = grade(term / "out", term / "class" / "bo")
    assert rows["bo"].score == 6.5
    # and are taken back, the last ones or by name; the log has it all
    dojo("override", "--undo", *out)
    dojo("override", "--undo", "bo", "report", *out)
    assert now()["bo"].exercises[-1].score == 3.0
    assert "kim  bo" in dojo("override", "--log", *out)
    assert dojo("override", "--log", *out).count("undone") == 2
    # what is unknown or too much is refused, and nothing is written
    log = (term / "out" / "overrides.csv").read_bytes()
    for words, told in (
        (("boo", "report", "--points", "1"), "no student is called 'boo'; did you mean bo?"),
        (("d", "report", "--points", "1"), "no student is called 'd'; names with it: ada"),
        (("bo", "select_device::run", "--points", "1"), "did you mean select_device::runs?\n"),
        (
            ("bo", "reprt", "--points", "1"),
            "there is no check, exercise or item 'reprt'; did you mean report?",
        ),
        (("bo", "report", "--points", "9"), "report is worth 8 points, not 9"),
        (("bo", "report"), "--points is missing"),
        (("bo", "report", "--points", "nan"), "--points: points must be 0 or more, not nan"),
        (("bo", "report", "--points", "much"), "--points: 'much' is not a number of points"),
        (
            ("bo", "select_device::takes_the_g", "--points", "1"),
            "did you mean select_device::takes_the_gpu?",
        ),
        (("ada", failed.id, "--undo"), "ada has no override for"),
    ):
        assert told in dojo("override", *words, *out, fails=True)
    assert (term / "out" / "overrides.csv").read_bytes() == log


def test_points_from_a_table(term: Path) -> None:
    (term / "class" / "course.toml").write_text(
        "[[by_hand]]\nname = 'essay'\npoints = 4\n", encoding="utf-8"
    )
    grade(term / "out", term / "class")
    assert "There are no overrides." in dojo("override", "--out", term / "out")
    listed = dojo("marks", "--out", term / "out")
    assert "  essay (essay; 4 points): 3 students\n    ada, bo, cy\n" in listed
    marks = term / "marks.csv"
    marks.write_text(
        'student,item,points,comment\nada,essay,4,good\nbo,essay,,\ncy,essay,"2,5",=1+1\n',
        encoding="utf-8",
    )
    said = dojo("marks", "--from", marks, "--out", term / "out")
    assert "2 of 2 students' points changed" in said
    rows = {row.submission: row for row in read(term / "out" / "results.json").submissions}
    assert [row.exercises[-1].score for row in rows.values()] == [4.0, 0.0, 2.5]
    assert rows["cy"].overrides[0][1].comment == "=1+1"
    assert rows["bo"].to_grade == ["essay"]
    for line, told in (
        ("dee,essay,1,", "line 3: no student is called 'dee'"),
        ("bo,essay,5,", "line 3: essay is worth 4 points, not 5"),
        ("bo,essay,much,", "line 3: 'much' is not a number of points"),
        ("Ada,essay,2,", "line 3: essay of ada is in line 2, too"),
        (",essay,2,", "line 3: the student is missing"),
        ("bo,,2,", "line 3: the item is missing"),
    ):
        marks.write_text(f"student,item,points,comment\nada,essay,1,\n{line}\n", encoding="utf-8")
        assert told in dojo("marks", "--from", marks, "--out", term / "out", fails=True)
    for empty in ("student,item,points,comment\n", "student,item,points\nada,essay\n"):
        marks.write_text(empty, encoding="utf-8")
        assert "no line of it has points" in dojo(
            "marks", "--from", marks, "--out", term / "out", fails=True
        )
    dojo("override", "--undo", "--out", term / "out")
    assert not any(row.overrides for row in read(term / "out" / "results.json").submissions)


def test_who_handed_in_nothing_is_not_counted_among_those_to_grade(term: Path) -> None:
    (term / "roster.csv").write_text("id,name\nada,Ada One\nzoe,Zoe\neve,Eve\n", encoding="utf-8")
    (term / "class" / "course.toml").write_text(
        "[[by_hand]]\nname = 'essay'\npoints = 4\n", encoding="utf-8"
    )
    outcome, _, _ = grade(term / "out", term / "class", roster=term / "roster.csv")
    assert outcome.tally.to_grade == 3
    listed = dojo("marks", "--out", term / "out")
    assert "  essay (essay; 4 points): 3 students\n    Ada One (ada), bo, cy\n" in listed
    assert "    2 more handed in nothing: Eve, Zoe\n" in listed


def test_undo_gives_back_what_held_before(term: Path) -> None:
    out = ("--out", term / "out")

    def given() -> list[float]:
        rows = read(term / "out" / "results.json").submissions
        return [one.points for row in rows for _, one in row.overrides]

    dojo("override", "bo", "01", "--points", "4", "--comment", "good", *out)
    (term / "marks.csv").write_text("student,item,points\nada,01,1\nbo,01,2\n", encoding="utf-8")
    dojo("marks", "--from", term / "marks.csv", *out)
    assert given() == [1, 2]
    assert "bo: 2 → 4 of 8" in dojo("override", "--undo", *out)
    assert given() == [4]
    assert "bo  01_checking_device  4  good" in dojo("override", *out)
    said = dojo("override", "--undo", *out, fails=True)
    assert "the last command took something back itself (" in said
    dojo("override", "--undo", "bo", "01", *out)
    assert given() == []


def test_the_last_points_hold_however_the_student_was_known_before(term: Path) -> None:
    """The first are given to a submission, the second to somebody on the roster."""
    out = ("--out", term / "out")
    dojo("override", "bo", "01", "--points", "2", *out)
    (term / "roster.csv").write_text("name,email\nbo,bo@x.org\nAda,ada@x.org\n", encoding="utf-8")
    grade(term / "out", term / "class", roster=term / "roster.csv")
    assert "bo: 2 → 7 of 8" in dojo("override", "bo", "01", "--points", "7", *out)
    assert dojo("override", *out).startswith("bo  01_checking_device  7  (")
    assert "  2  " not in dojo("override", *out)
    assert "bo: 7 → 2 of 8" in dojo("override", "--undo", "bo", "01", *out)
    assert "bo: 2 → 0 of 8" in dojo("override", "--undo", "bo", "01", *out)


def test_points_stay_with_whom_the_roster_knows_otherwise_now(term: Path) -> None:
    """An address without an id changes, a student leaves the course, another handed in nothing."""
    roster = term / "roster.csv"
    roster.write_text(
        "name,email\nAda,a@x.org\nbo,b@x.org\nZoe,z@x.org\nEve,y@x.org\n", encoding="utf-8"
    )
    grade(term / "out", term / "class", roster=roster)
    for who in ("ada", "bo", "zoe", "eve"):
        dojo("override", who, "01", "--points", "3", "--out", term / "out")
    roster.write_text("name,email\nAda,ada@y.org\nZoe,zoe@y.org\n", encoding="utf-8")
    outcome, rows, _ = grade(term / "out", term / "class")
    assert {name: row.score for name, row in rows.items() if row.overrides} == {
        "ada": 3,
        "bo": 3,
        "Zoe": 3,
    }
    assert [notice.partition("overrides.csv: ")[2] for notice in outcome.notices] == [
        "'Zoe' had another id on the roster before, 'z@x.org', and keeps the points given by hand",
        "nobody is 'Eve' any more; an override is unused",
    ]
    # a change is told with these points
    hand_in(term / "class" / "ada", WRONG)
    outcome, _, _ = grade(term / "out", term / "class")
    assert [str(change)[:12] for change in outcome.changes] == ["Ada: 3 → 3 ("]
    assert "Ada: 3 → 0 of 8" in dojo("override", "--undo", "ada", "01", "--out", term / "out")


def test_points_for_what_is_not_graded_any_more_are_said_to_be_unused(term: Path) -> None:
    course = term / "class" / "course.toml"
    both = {"only": frozenset({"select_device", "ANSWERS"})}
    course.write_text("[[by_hand]]\nname = 'essay'\npoints = 4\n", encoding="utf-8")
    grade(term / "out", term / "class", **both)
    out = ("--out", term / "out")
    dojo("override", "bo", "essay", "--points", "3", *out)
    dojo("override", "bo", "ANSWERS::is_a_dict", "--points", "0", *out)
    dojo("override", "--all", "12", "--points", "1", *out)
    dojo("override", "bo", "01", "--points", "2", *out)
    course.write_text("[exercises]\n'01' = 8\n", encoding="utf-8")
    outcome, rows, _ = grade(term / "out", term / "class")
    assert rows["bo"].score == 2
    assert [notice.partition("overrides.csv: ")[2] for notice in outcome.notices] == [
        "essay is not graded any more; points of bo for it are unused",
        (
            "12_self_assessment::ANSWERS::is_a_dict is not graded any more; points of bo for it "
            "are unused"
        ),
        "12_self_assessment is not graded any more; points of everyone for it are unused",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--points", "5"), "STUDENT and CHECK or EXERCISE are missing"),
        (("--comment", "x"), "STUDENT and CHECK or EXERCISE are missing"),
        (("Grace Kim", "--points", "5"), "CHECK or EXERCISE is missing behind 'Grace Kim'"),
        (
            ("Grace", "Kim", "01", "--points", "5"),
            "give STUDENT and CHECK or EXERCISE; Grace Kim 01 is more: a name with spaces needs",
        ),
        (("--log", "bo", "01", "--points", "5"), "--log does not go with STUDENT"),
        (("--items", "--undo"), "--items does not go with --undo"),
        (("--undo", "bo", "01", "--points", "5"), "--undo does not go with --points"),
    ],
)
def test_a_word_that_would_be_left_out_is_refused(
    term: Path, words: tuple[str, ...], said: str
) -> None:
    (term / "marks.csv").write_text("student,item,points\nada,01,1\n", encoding="utf-8")
    filled = [word.format(marks=term / "marks.csv") for word in words]
    assert said in dojo("override", *filled, "--out", term / "out", fails=True)
    assert not (term / "out" / "overrides.csv").exists()


def test_an_option_that_was_refused_is_not_used_again(term: Path) -> None:
    before = (term / "out" / ".dojo" / "class.json").read_bytes()
    with pytest.raises(BadClass, match="the reference solution"):
        grade(term / "out", term / "class", memory=1000)
    assert (term / "out" / ".dojo" / "class.json").read_bytes() == before


def test_results_are_nobodys_submission(term: Path) -> None:
    """Not those of this class beside or among the submissions, and not those of another."""
    _, rows, _ = grade(term / "class" / "graded", term / "class")
    (term / "class" / "graded" / "report").mkdir()
    again, same, _ = grade(term / "class" / "graded", term / "class")
    assert (same, again.ran) == (rows, 0)
    for out in (term / "class", term / "class" / "ada", term / "class" / "ada" / "out"):
        with pytest.raises(BadClass, match="is a folder of submissions, among which results"):
            grade(out, term / "class")
        assert not (out / ".dojo").exists()
    with pytest.raises(
        BadClass, match="out holds results of `dojo grade`; give the folder of submissions"
    ):
        grade(term / "more", term / "out")


def test_what_dojo_wrote_is_nobodys_submission(term: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its feedback, pages and exports lie among the submissions, in the folder that is given."""
    monkeypatch.chdir(term)
    (term / "class").rename(term / "download")
    for name in ("ada", "bo", "cy"):
        (term / "download" / name).rename(term / name)
    (term / "download").rmdir()
    dojo("feedback", "out", "--out", "feedback")
    dojo("export", "out", "--to", "jplag", "--out", "exp")
    dojo("report", "out", "--out", "pages")
    _, rows, _ = grade(Path("out"), Path())
    assert rows.keys() == {"ada", "bo", "cy"}
    _, rows, _ = grade(Path("out"), Path("ada"), Path("bo"), Path("exp"), Path("feedback"))
    assert rows.keys() == {"ada", "bo", "cy"}
    with pytest.raises(BadClass, match="there is nothing to grade in exp"):
        grade(Path("out"), Path("exp"))


def test_what_was_noted_as_written_is_nobodys_submission(term: Path) -> None:
    """Though an earlier version wrote it into the folder of the submissions, without a mark."""
    dojo("feedback", term / "out", "--out", term / "pages")
    (term / "pages" / "students").rename(term / "class" / "students")
    outputs = term / "out" / ".dojo" / "outputs.json"
    outputs.write_text(outputs.read_text().replace("../pages", "../class"))
    _, rows, _ = grade(term / "out", term / "class")
    assert "students" not in rows
    (term / "class" / "students" / "work.py").write_text(RIGHT)
    _, rows, _ = grade(term / "out", term / "class")
    assert "students" in rows


def test_files_are_graded_by_relative_paths(term: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(term)
    (term / "ada_1032_55031_01_checking_device.py").write_text(RIGHT)
    (term / "cy.py").write_text(WRONG)
    with zipfile.ZipFile(term / "bo.zip", "w") as packed:
        packed.writestr(FIRST, RIGHT)
    given = (Path("ada_1032_55031_01_checking_device.py"), Path("bo.zip"), Path("cy.py"))
    outcome, rows, _ = grade(Path("one"), *given)
    assert (outcome.count, rows.keys()) == (3, {"ada", "bo", "cy"})


def test_the_zip_of_a_class_is_opened_where_it_was_given_by_itself(term: Path) -> None:
    """Among submissions it may be a student's, who must not hand in for others."""
    with zipfile.ZipFile(term / "class" / "submissions.zip", "w") as packed:
        for name in ("byronada_101_9001", "okaforbo_102_9002"):
            packed.writestr(f"{name}_{FIRST}", WRONG)
    _, rows, _ = grade(term / "out", term / "class")
    assert (len(rows), "give it by itself" in rows["submissions"].reason) == (4, True)
    _, rows, _ = grade(term / "out", term / "class" / "submissions.zip")
    assert rows.keys() == {"ada", "bo", "cy", "byronada", "okaforbo"}
    again, same, _ = grade(term / "out", term / "class")
    assert (same.keys(), again.ran) == (rows.keys(), 0)


def test_a_few_are_listed_with_their_points(term: Path) -> None:
    outcome, rows, _ = grade(term / "out", term / "class" / "bo")
    assert outcome.tally.points_shown == [f"bo: {rows['bo'].score:g} of {rows['bo'].max_score:g}"]


def test_who_is_on_the_roster_stands_in_the_order_of_names(term: Path) -> None:
    (term / "roster.csv").write_text(
        "id,name,github\n1,Zoe,ada\n2,Bo,bo\n3,Ann,\n", encoding="utf-8"
    )
    _, rows, _ = grade(term / "out", term / "class", roster=term / "roster.csv")
    assert list(rows) == ["Ann", "bo", "cy", "ada"]


def test_who_has_a_family_name_on_the_roster_stands_by_it(term: Path) -> None:
    canvas = 'Student,ID,SIS Login ID\n"Young, Ada",1,ada\n"Bell, Bo",2,bo\n"Li, Di",3,di\n'
    plain = "id,first name,last name\nada,Ada,Young\nbo,Bo,Bell\ndi,Di,Li\n"
    for table in (canvas, plain):
        (term / "roster.csv").write_text(table, encoding="utf-8")
        _, rows, _ = grade(term / "out", term / "class", roster=term / "roster.csv")
        assert [row.called for row in rows.values()] == [
            "Bo Bell (bo)",
            "cy",
            "Di Li",
            "Ada Young (ada)",
        ]


def test_lists_in_the_terminal_have_the_names_on_the_roster(term: Path) -> None:
    (term / "roster.csv").write_text("id,name\nbo,Bo Bell\nada,ADA\n", encoding="utf-8")
    (term / "class" / "course.toml").write_text(
        "[[by_hand]]\nname = 'report'\npoints = 8\n", encoding="utf-8"
    )
    hand_in(term / "class" / "bo", "def select_device(:\n")
    outcome, _, _ = grade(term / "out", term / "class" / "bo", roster=term / "roster.csv")
    tally = outcome.tally
    assert [line.partition(":")[0] for line in tally.points_shown] == ["Bo Bell (bo)"]
    assert "Bo Bell (bo)" in {review.called for review in tally.first_reviews}
    shutil.rmtree(term / "class" / "bo")
    outcome, _, _ = grade(term / "out", term / "class" / "ada")
    assert outcome.tally.gone == ["Bo Bell (bo)"]
    hand_in(term / "class" / "bo", RIGHT)
    outcome, _, _ = grade(term / "out", term / "class" / "bo")
    assert [str(change).partition(":")[0] for change in outcome.changes] == ["Bo Bell (bo)"]
    assert "    ADA, Bo Bell (bo), cy\n" in dojo("marks", "--out", term / "out")
    assert dojo("override", "bo", "report", "--points", "2", "--out", term / "out").startswith(
        "Decided: report\nBo Bell (bo): "
    )


def test_a_group_has_one_submission(term: Path) -> None:
    (term / "class" / "course.toml").write_text(
        "[groups]\nteam = ['bo', 'zoe', 'ada']\n", encoding="utf-8"
    )
    hand_in(term / "class" / "ada", RIGHT + "# of all of us\n")
    _, rows, results = grade(term / "out", term / "class")
    assert {name: row.group for name, row in rows.items()} == {
        "ada": "team",
        "bo": "team",
        "cy": "",
        "zoe": "team",
    }
    assert {rows[name].score for name in ("ada", "bo", "zoe")} == {results.max_score}
    assert rows["ada"].needs_human == [
        "handed in by several of the group: bo, ada; when each was handed in is not known, so what "
        "was graded last is taken for the latest."
    ]
    with (term / "out" / "results.csv").open(encoding="utf-8-sig", newline="") as file:
        assert [line["group"] for line in csv.DictReader(file)] == ["team", "team", "", "team"]


def test_what_cannot_be_read_is_no_group_s_latest_where_no_time_is_known(term: Path) -> None:
    """Two members hand in, one of them a picture: the group keeps its points, and is reviewed."""
    hand_in(term / "class" / "zoe", "a picture", "work.png")
    (term / "class" / "course.toml").write_text("[groups]\nteam = ['ada', 'zoe']\n")
    _, rows, results = grade(term / "out", term / "class")
    assert {rows[name].score for name in ("ada", "zoe")} == {results.max_score}
    (reason,) = rows["ada"].needs_human
    assert "handed in by several of the group: ada, zoe" in reason
    # The best counts whatever the order is.
    _, rows, _ = grade(term / "out", term / "class", attempt="best")
    assert rows["ada"].needs_human == []


def test_a_group_is_one_where_work_is_compared(term: Path) -> None:
    """In similar submissions, for JPlag and in the statistics; its members are no copies."""
    (term / "class" / "course.toml").write_text(
        "[groups]\nteam = ['bo', 'dora']\n", encoding="utf-8"
    )
    for name in ("ada", "bo"):
        hand_in(term / "class" / name, f"{WRONG}\n\ndef {name}(moved, device):\n{OWN}")
    outcome, rows, _ = grade(term / "out", term / "class")
    assert rows["bo"].digest == rows["dora"].digest
    statistics = outcome.tally.statistics.checks.values()
    assert {each.attempted + each.absent for each in statistics} == {3}
    dojo("export", term / "out", "--to", "jplag", "--out", term / "jplag")
    folders = {path.name for path in (term / "jplag" / "submissions").iterdir()}
    assert folders == {"ada", "cy", "team"}
    dojo("report", term / "out", "--similarity", "--out", term / "pages")
    page = (term / "pages" / "similarity.html").read_text(encoding="utf-8")
    assert "<bdi>ada</bdi> and <bdi>team (bo, dora)</bdi>" in page
    assert "<bdi>dora" not in page


def test_what_is_named_for_a_group_is_its_members(term: Path) -> None:
    (term / "roster.csv").write_text("id,name\nada,Ada\n2,Di\n3,Eve\n", encoding="utf-8")
    (term / "class" / "course.toml").write_text("[groups]\nbo = ['Di', 'Eve']\n", encoding="utf-8")
    outcome, rows, results = grade(term / "out", term / "class", roster=term / "roster.csv")
    assert {name: row.group for name, row in rows.items()} == {
        "ada": "",
        "cy": "",
        "Di": "bo",
        "Eve": "bo",
    }
    assert outcome.unmatched == results.unmatched == ["cy"]


def test_who_hands_in_together_on_moodle_is_a_group(term: Path) -> None:
    """Each member has a folder with the same files: they are no copies."""
    members = {"7001": "Bo Bell", "7002": "Anne-Marie Li", "7003": "Di Li", "7004": "Jo-Di Li"}
    lines = ["Identifier,Full name,Group"]
    for id_, name in members.items():
        group = "Team-1" if id_ < "7003" else "Team 2"
        folder = f"{group}-{name}_{id_}_assignsubmission_file_"
        hand_in(term / "moodle" / folder, RIGHT + f"# {group}\n")
        lines.append(f"Participant {id_},{name},{group}")
    (term / "roster.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _, rows, _ = grade(term / "new", term / "moodle", roster=term / "roster.csv")
    assert {row.student: (row.group, row.needs_human) for row in rows.values()} == {
        "Bo Bell": ("Team-1", []),
        "Anne-Marie Li": ("Team-1", []),
        "Di Li": ("Team 2", []),
        "Jo-Di Li": ("Team 2", []),
    }
    # What the course file says comes first.
    (term / "moodle" / "course.toml").write_text("[groups]\nus = ['7001', '7002', '7003']\n")
    _, rows, _ = grade(term / "new", term / "moodle")
    assert {row.student: row.group for row in rows.values()} == {
        "Bo Bell": "us",
        "Anne-Marie Li": "us",
        "Di Li": "us",
        "Jo-Di Li": "",
    }


def test_gradescope_s_list_names_who_is_on_no_roster(term: Path) -> None:
    for number, person in (
        ("1", "{name: Bo Bell, email: bo@x.org, sid: '7'}"),
        ("2", "{name: Di Li, email: di@x.org}"),
    ):
        hand_in(term / "scope" / f"submission_{number}", RIGHT + f"# {number}\n")
        with (term / "scope" / "submission_metadata.yml").open("a", encoding="utf-8") as file:
            submitter = "".join(f"    :{part}\n" for part in person.strip("{}").split(", "))
            file.write(f"submission_{number}:\n  :submitters:\n  -{submitter[3:]}")
    _, rows, _ = grade(term / "new", term / "scope")
    assert [row.called for row in rows.values()] == [
        "Bo Bell (submission_1)",
        "Di Li (submission_2)",
    ]
    dojo("feedback", term / "new", "--out", term / "pages")
    with (term / "pages" / "feedback.csv").open(encoding="utf-8-sig", newline="") as file:
        assert [(line["name"], line["email"], line["id"]) for line in csv.DictReader(file)] == [
            ("Bo Bell", "bo@x.org", "7"),
            ("Di Li", "di@x.org", ""),
        ]
    assert "<h1><bdi>Bo Bell</bdi></h1>" in (
        term / "pages" / "students" / "submission_1.html"
    ).read_text("utf-8")
    said = dojo("override", "Di Li", "01", "--points", "1", "--out", term / "new")
    assert said.splitlines()[1].startswith("Di Li (submission_2): ")
    (term / "roster.csv").write_text("id,name,email\n7,Bo Bell,bo@y.org\n", encoding="utf-8")
    outcome, rows, _ = grade(term / "new", term / "scope", roster=term / "roster.csv")
    assert (outcome.unmatched, rows["submission_1"].roster) == (
        ["Di Li (submission_2)"],
        RosterRow("7", "Bo Bell", "bo@y.org"),
    )


def test_members_of_a_group_have_their_own_ids_and_the_date_of_what_was_handed_in(
    term: Path,
) -> None:
    """With another's id, their points would go to the other one."""
    folder = term / "moodle" / "Bo Bell_7001_assignsubmission_file_"
    hand_in(folder, RIGHT)
    (term / "moodle" / "worksheet.csv").write_text(
        "Identifier,Full name,Last modified (submission),Maximum Grade,Grade\n"
        "Participant 7001,Bo Bell,2026-11-02 10:00,8,\nParticipant 7002,Di Li,-,8,\n",
        encoding="utf-8",
    )
    (term / "moodle" / "course.toml").write_text(
        "deadline = 2026-11-01T10:00:00Z\nroster = 'worksheet.csv'\n[late]\npenalty = 10\n"
        "[groups]\nteam = ['Di Li', 'Bo Bell']\n",
        encoding="utf-8",
    )
    _, rows, _ = grade(term / "new", term / "moodle")
    assert {name: (row.student, row.identifier) for name, row in rows.items()} == {
        "Bo Bell": ("Bo Bell", "7001"),
        "Di Li": ("Di Li", "7002"),
    }
    assert {
        (row.timing and row.timing.late_seconds, row.final.points) for row in rows.values()
    } == {(86_400, 7.2)}
    dojo("feedback", term / "new", "--out", term / "pages")
    with zipfile.ZipFile(term / "pages" / "moodle.zip") as made:
        assert sorted(name.partition("_assign")[0] for name in made.namelist()) == [
            "Bo Bell_7001",
            "Di Li_7002",
        ]
    # without a roster, a member is called by the name in the course file
    (term / "class" / "course.toml").write_text(
        "[groups]\nteam = ['bo', 'zoe']\n", encoding="utf-8"
    )
    _, rows, _ = grade(term / "out", term / "class")
    assert (rows["zoe"].student, rows["zoe"].identifier, rows["zoe"].score) == (
        "zoe",
        None,
        rows["bo"].score,
    )


def test_feedback_for_canvas_has_the_numbers_of_what_counts(term: Path) -> None:
    """Also after the class was graded again from what it keeps."""
    download = term / "download"
    hand_in(download, WRONG, f"bellbo_1024_55031_{FIRST}")
    hand_in(download, RIGHT, f"bellbo_LATE_1024_55044_{Path(FIRST).stem}-1.py")
    hand_in(download, RIGHT, f"ngada_1025_55032_{FIRST}")
    (term / "download" / "course.toml").write_text(
        "[groups]\nteam = ['ngada', 'colecy']\n", encoding="utf-8"
    )
    _, rows, _ = grade(term / "new", download)
    file_of_bo = f"bellbo_LATE_1024_55044_{Path(FIRST).stem}-1.py"
    assert rows["bellbo"].canvas_file == file_of_bo
    for file in download.glob("*.py"):
        file.unlink()
    dojo("grade", "--out", term / "new", "--reference", REFERENCE)
    said = dojo("feedback", term / "new", "--out", term / "pages")
    assert "which handed out no file of these students: colecy" in said
    with zipfile.ZipFile(term / "pages" / "canvas.zip") as made:
        assert sorted(made.namelist()) == [
            "bellbo_LATE_1024_55044_feedback.html",
            "ngada_1025_55032_feedback.html",
        ]


def test_feedback_for_canvas_goes_to_every_member_whose_file_canvas_has(term: Path) -> None:
    """Also where another member's file counts, and after several attempts by mail."""
    download = term / "download"
    hand_in(download, WRONG, f"bellbo_1024_55031_{FIRST}")
    hand_in(download, RIGHT, f"ngada_1025_55032_{FIRST}")
    hand_in(download, RIGHT, f"rouxyann_1026_55033_{FIRST}")
    hand_in(download, "id,name\n1024,Bo Bell\n1025,Ada Ng\n1026,Yann Roux\n", "roster.csv")
    course = download / "course.toml"
    course.write_text("roster = 'roster.csv'\n[groups]\nteam = ['1024', '1025']\n")
    grade(term / "new", download)
    for number, name in enumerate(("rouxyann", "Yann Roux", "Roux Yann")):
        hand_in(term / "mail" / name, f"{RIGHT}# {number}\n")
        _, rows, _ = grade(term / "new", term / "mail" / name, course=course)
        assert rows[name].identifier == "1026"
    dojo("feedback", term / "new", "--out", term / "pages")
    with zipfile.ZipFile(term / "pages" / "canvas.zip") as made:
        assert sorted(made.namelist()) == [
            "bellbo_1024_55031_feedback.html",
            "ngada_1025_55032_feedback.html",
            "rouxyann_1026_55033_feedback.html",
        ]


def test_feedback_for_canvas_knows_whose_latest_came_by_mail(term: Path) -> None:
    """The roster says that it is the same person as the one whose file Canvas named."""
    (term / "roster.csv").write_text("ID,Student,SIS Login ID\n1024,Bo Bell,bellbo\n")
    hand_in(term / "download", WRONG, f"bellbo_1024_55031_{FIRST}")
    grade(term / "new", term / "download", roster=term / "roster.csv")
    hand_in(term / "mail" / "bellbo", RIGHT)
    _, rows, results = grade(term / "new", term / "mail" / "bellbo")
    (row,) = rows.values()
    assert (row.score, row.canvas_file) == (results.max_score, f"bellbo_1024_55031_{FIRST}")


def test_a_name_that_does_not_tell_one_student_is_said(term: Path) -> None:
    """In a group it would give somebody another student's points."""
    (term / "class" / "roster.csv").write_text(
        "id,name\nada,Ada One\nbo,Bo Li\ncy,Bo Li\n", encoding="utf-8"
    )
    course = term / "class" / "course.toml"
    course.write_text(
        "deadline = 2026-11-20T23:59:00+01:00\nroster = 'roster.csv'\n[groups]\na = ['ada', 'bo']\n"
        "b = ['Ada One', 'cy']\nc = ['Bo Li']\n[extensions]\nada = 1\n'Ada One' = 2\n'bo li' = 3\n",
        encoding="utf-8",
    )
    said = dojo("init", term / "class")
    assert "course.toml, line 10: 2 on the roster are called 'bo li': write bo or cy" in said
    outcome, rows, _ = grade(term / "out", term / "class")
    assert {name: row.group for name, row in rows.items()} == {"ada": "a", "bo": "a", "cy": "b"}
    assert [notice.partition("course.toml, ")[2] for notice in outcome.notices] == [
        "line 5: 'Ada One' is in the group a by another name, and stays there",
        "line 6: 2 students are called 'Bo Li': write bo or cy; nobody of them is in the group",
        "line 9: 'Ada One' is 'ada', whose extension is used",
        "line 10: 2 students are called 'bo li': write bo or cy; all of them have the extension",
    ]


def test_a_student_may_be_named_as_the_roster_writes_it(term: Path) -> None:
    (term / "class" / "roster.csv").write_text('id,name\nbo,"Bell, Bo"\n', encoding="utf-8")
    (term / "class" / "course.toml").write_text(
        (
            "deadline = 2026-11-20T23:59:00+01:00\n"
            "roster = 'roster.csv'\n"
            "[extensions]\n"
            "'Bell, Bo' = 3\n"
        ),
        encoding="utf-8",
    )
    outcome, rows, _ = grade(term / "out", term / "class")
    assert outcome.notices == []
    assert rows["bo"].timing is not None
    assert rows["bo"].timing.extended
    assert "Bo Bell (bo): 0 → 1 of 8" in dojo(
        "override", "Bell, Bo", "01", "--points", "1", "--out", term / "out"
    )


CANVAS_ROSTER = (
    "Student,ID,SIS User ID,SIS Login ID,Section\n"
    '"Bell, Bo",1024,s1019,bobell,Mon\n"Ng, Ada",1025,s1020,ada,Mon\n"Cole, Cy",1026,s1021,cy,Tue\n'
)


def test_everybody_is_found_by_any_id_in_every_command(term: Path) -> None:
    """A student number that only the roster has is as good as a name; a slip makes no row."""
    (term / "class" / "bo").rename(term / "class" / "bobell")
    (term / "class" / "roster.csv").write_text(CANVAS_ROSTER, encoding="utf-8")
    course = term / "class" / "course.toml"
    course.write_text(
        "deadline = 2026-11-20T23:59:00+01:00\nroster = 'roster.csv'\n"
        "[groups]\nteam = ['s1020', 'Cole Cy']\n[extensions]\ns1019 = 3\n",
        encoding="utf-8",
    )
    assert "note" not in dojo("init", term / "class")
    outcome, rows, _ = grade(term / "out", term / "class")
    assert (outcome.notices, rows.keys()) == ([], {"ada", "bo", "bobell", "cy"})  # bo is gone
    assert rows["bobell"].timing is not None
    assert rows["bobell"].timing.extended
    assert (rows["ada"].group, rows["cy"].group) == ("team", "team")
    for points, name in enumerate(("s1019", "1024", "Bell, Bo", "bo bell", "BOBELL", "Bell Bo")):
        given = dojo("override", name, "01", "--points", str(points + 1), "--out", term / "out")
        assert "Bo Bell (bobell)" in given
        exported = dojo(
            "export", term / "out", "--to", "junit", "--out", term / name, "--submission", name
        )
        assert "1 file written" in exported
    # a slip
    text = course.read_text().replace("s1020", "s1920").replace("s1019", "s1919")
    course.write_text(text, encoding="utf-8")
    said = dojo("init", term / "class")
    assert "nobody on the roster is called 's1920'; did you mean s1020?" in said
    outcome, rows, _ = grade(term / "out", term / "class")
    assert rows.keys() == {"ada", "bo", "bobell", "cy"}
    assert [notice.partition("course.toml, ")[2] for notice in outcome.notices] == [
        "line 4: nobody is called 's1920'; did you mean s1020?",
        "line 6: nobody is called 's1919'; did you mean s1019?",
    ]
    for words in (("override", "s1919", "01", "--points", "1", "--out", term / "out"),):
        assert "no student is called 's1919'; did you mean s1019?" in dojo(*words, fails=True)


def test_an_attempt_that_the_roster_matches_is_in_the_history(term: Path) -> None:
    """Handed in again in a folder with another name, it is the same person's second attempt."""
    (term / "class" / "roster.csv").write_text(CANVAS_ROSTER, encoding="utf-8")
    first = term / "class" / f"bellbo_1024_55031_{FIRST}"
    (term / "class" / "bo" / FIRST).rename(first)
    (term / "class" / "bo").rmdir()
    roster = term / "class" / "roster.csv"
    grade(term / "out", term / "class", roster=roster)
    hand_in(term / "fix" / "Bo Bell", RIGHT)
    outcome, rows, _ = grade(term / "out", term / "fix", roster=roster)
    (change,) = outcome.changes
    assert str(change).startswith("Bo Bell: 0 → 8 (select_device::")
    with (term / "out" / "history.csv").open(encoding="utf-8-sig", newline="") as file:
        line = list(csv.DictReader(file))[-1]
    assert (line["student"], line["why"], line["published_after"]) == (
        "Bo Bell",
        "new attempt",
        "8",
    )
    row = rows["Bo Bell"]
    assert (row.identifier, len(row.attempts)) == ("1024", 2)
    assert row.attempts[1].counts
    assert any(f"names: bellbo_1024_55031_{FIRST}, Bo Bell;" in each for each in row.needs_human)


def test_an_extension_that_ends_before_the_deadline_is_said(term: Path) -> None:
    (term / "class" / "course.toml").write_text(
        (
            "deadline = 2026-11-20T23:59:00+01:00\n"
            "[extensions]\n"
            "bo = 2026-11-02T23:59:00+01:00\n"
            "ada = 0\n"
        ),
        encoding="utf-8",
    )
    said = "the extension of 'bo' ends 2026-11-02 23:59 UTC+01:00, before the deadline, "
    said += "2026-11-20 23:59 UTC+01:00, which holds"
    assert f"course.toml, line 3: {said}\n" in dojo("init", term / "class")
    outcome, _, _ = grade(term / "out", term / "class")
    assert [notice.partition("course.toml, ")[2] for notice in outcome.notices] == [
        f"line 3: {said}"
    ]


def test_all_are_those_who_handed_something_in(term: Path) -> None:
    (term / "roster.csv").write_text("id,name\nada,Ada\nzoe,Zoe\n", encoding="utf-8")
    (term / "class" / "course.toml").write_text(
        "[[by_hand]]\nname = 'report'\npoints = 8\n", encoding="utf-8"
    )
    grade(term / "out", term / "class", roster=term / "roster.csv")
    out = ("--out", term / "out")
    said = dojo("override", "--all", "report", "--points", "3", *out)
    assert (
        "3 of 4 students' points changed. 1 handed in nothing and got nothing: to give them "
        "points, name them."
    ) in said
    assert "Zoe" not in said
    (zoe,) = (
        row for row in read(term / "out" / "results.json").submissions if row.submission == "Zoe"
    )
    assert (zoe.score, zoe.overrides) == (0, [])
    assert "Zoe: 0 → 2 of 16" in dojo("override", "zoe", "report", "--points", "2", *out)


def test_seeds_for_each_student_are_the_same_each_time(term: Path) -> None:
    (term / "class" / "course.toml").write_text("seed = 'per-student'\n", encoding="utf-8")
    hand_in(term / "class" / "twin", RIGHT)
    shutil.rmtree(term / "class" / "cy")
    first, rows, results = grade(term / "new", term / "class", secret="s")
    assert first.ran == 3  # the same files, with other numbers
    assert results.seed.startswith("per student: ")
    assert len({rows[name].record for name in ("ada", "twin")}) == 2
    assert len(set(references_of(rows, results).values())) == 3
    assert rows["ada"].score == rows["twin"].score == results.max_score
    again, same, _ = grade(term / "new", term / "class")
    assert (again.ran, same) == (0, rows)


def references_of(rows: dict[str, SubmissionRow], results: ClassResults) -> dict[str, str]:
    """By name of a submission, the key of its reference."""
    return {name: row.reference or results.reference for name, row in rows.items()}


def test_seeds_follow_from_what_was_handed_in(term: Path) -> None:
    for number in range(12):
        hand_in(term / "many" / f"s{number:02}", f"{RIGHT}# {number}\n")
    hand_in(term / "many" / "twin", f"{RIGHT}# 0\n")
    first, rows, results = grade(term / "new", term / "many", secret="s")
    references = references_of(rows, results)
    assert 1 < len(set(references.values())) <= POOL_SIZE
    assert references["twin"] == references["s00"]
    assert first.ran == 12
    assert {row.score for row in rows.values()} == {results.max_score}
    # The same files have the same seeds: with the other submissions, alone, and by the same secret.
    again, same, results = grade(term / "new", term / "many", fresh=True)
    assert again.ran >= 12
    assert references_of(same, results) == references
    _, same, results = grade(term / "other", term / "many" / "s03", secret="s")
    assert list(references_of(same, results).values()) == [references["s03"]]


def test_one_seed_for_the_class_can_be_asked_for(term: Path) -> None:
    (term / "class" / "course.toml").write_text("seed = 'per-class'\n", encoding="utf-8")
    _, rows, results = grade(term / "new", term / "class", secret="s")
    assert len(set(references_of(rows, results).values())) == 1


def test_a_damaged_state_is_refused_in_plain_words(term: Path) -> None:
    (term / "out" / ".dojo" / "class.json").write_text('{"students":', encoding="utf-8")
    said = dojo("override", "--out", term / "out", fails=True)
    assert (
        "class.json cannot be read (Input data was truncated); move it away, and grade the "
        "whole class again"
    ) in said


def test_a_damaged_log_of_overrides_is_refused_with_its_line(term: Path) -> None:
    dojo("override", "bo", "1", "--points", "1", "--out", term / "out")
    path = term / "out" / "overrides.csv"
    path.write_text(path.read_text(encoding="utf-8") + "x,y\n", encoding="utf-8")
    with pytest.raises(BadFile, match=r"overrides\.csv, line 3: 9 cells are needed"):
        grade(term / "out", term / "class")
