"""When each attempt was handed in, where a platform's table is all that tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.classes.class_grading import GradedClass
from gpudojo.model.results import SubmissionRow

from tests.gpudojo.classes.test_gradebook import (
    RIGHT,
    WRONG,
    dojo,
    grade,
    hand_in,
    made,  # noqa: F401 - a fixture
    term,  # noqa: F401 - a fixture
)

pytestmark = pytest.mark.usefixtures("loaded_fork_servers")

IN_TIME = "2026-11-17 22:00"
LATE = "2026-11-20 02:00"
HEADINGS = "Identifier,Full name,Last modified (submission),Maximum Grade,Grade\n"


class Moodle:
    """A class of two on Moodle, Ada and Bo; Ada hands in a second time, and late."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "graded"

    def download(self, name: str, ada: str) -> Path:
        """What Moodle hands out: a folder for each student."""
        for student, text in (("Ada One_7001", ada), ("Bo Bell_7002", RIGHT + "# bo\n")):
            hand_in(self.folder / name / f"{student}_assignsubmission_file_", text)
        return self.folder / name

    def worksheet(self, name: str, ada: str, bo: str = IN_TIME) -> None:
        lines = f"Participant 7001,Ada One,{ada},8,\nParticipant 7002,Bo Bell,{bo},8,\n"
        (self.folder / name).write_text(HEADINGS + lines, encoding="utf-8")

    def course(self, *rosters: str, more: str = "", zone: str = "Europe/Berlin") -> None:
        text = f"time_zone = {zone!r}\nroster = {list(rosters)}\n"
        text += f"deadline = 2026-11-18T23:59:00\n{more}\n"
        text += "[late]\npenalty = 10\n"
        (self.folder / "course.toml").write_text(text, encoding="utf-8")

    def grade(self, *paths: Path) -> tuple[GradedClass, SubmissionRow]:
        outcome, rows, _ = grade(self.out, *paths, course=self.folder / "course.toml")
        return outcome, rows["Ada One"]


@pytest.fixture
def moodle(term: Path) -> Moodle:  # noqa: F811
    """The class, graded once with the first worksheet."""
    made_class = Moodle(term)
    made_class.worksheet("old.csv", IN_TIME)
    made_class.worksheet("new.csv", LATE)
    made_class.course("old.csv")
    made_class.grade(made_class.download("first", WRONG))
    return made_class


def day_of(row: SubmissionRow) -> str:
    assert row.timing is not None
    return row.timing.submitted[:10]


def notices_about(outcome: GradedClass, name: str) -> list[str]:
    return [notice for notice in outcome.notices if name in notice]


@pytest.mark.parametrize(("rule", "day"), [("first", "2026-11-17"), ("latest", "2026-11-20")])
def test_an_attempt_keeps_the_date_of_its_hand_in(moodle: Moodle, rule: str, day: str) -> None:
    moodle.course("new.csv", more=f"attempt = {rule!r}")
    outcome, row = moodle.grade(moodle.download("second", RIGHT + "# ada\n"))
    assert [attempt.submitted[:10] for attempt in row.attempts] == ["2026-11-17", "2026-11-20"]
    assert (day_of(row), row.late) == (day, rule == "latest")
    assert notices_about(outcome, "Ada") == []
    # and in every later run
    assert day_of(moodle.grade()[1]) == day
    moodle.course("old.csv", "new.csv", more=f"attempt = {rule!r}")
    assert day_of(moodle.grade()[1]) == day


def test_the_best_attempt_is_compared_with_the_penalties_of_their_own_dates(
    moodle: Moodle,
) -> None:
    moodle.out = moodle.folder / "anew"
    moodle.grade(moodle.download("first", RIGHT + "# first\n"))
    moodle.course("new.csv", more="attempt = 'best'")
    _, row = moodle.grade(moodle.download("second", RIGHT + "# second\n"))
    assert (day_of(row), row.final.points) == ("2026-11-17", row.max_score)


def test_a_new_download_with_an_old_worksheet_is_not_in_time_by_that(moodle: Moodle) -> None:
    """Its date is that of the attempt before; when the new one came is not known."""
    second = moodle.download("second", RIGHT + "# ada\n")
    outcome, row = moodle.grade(second)
    assert [attempt.submitted[:10] for attempt in row.attempts] == ["2026-11-17", ""]
    assert (day_of(row), row.late) == ("", False)
    (notice,) = notices_about(outcome, "Ada One")
    assert "course.toml, line 2: " in notice
    assert "date of an earlier attempt of Ada One" in notice
    assert "Bo" not in notice
    assert "1 time unknown    Ada One" in dojo("status", moodle.out)
    # the right table is enough
    moodle.course("new.csv")
    outcome, row = moodle.grade()
    assert (day_of(row), row.late) == ("2026-11-20", True)
    assert notices_about(outcome, "Ada One") == []


def test_a_new_worksheet_without_the_new_download_is_told(moodle: Moodle) -> None:
    """The files that are graded are those of the earlier date."""
    moodle.course("new.csv")
    outcome, row = moodle.grade()
    assert (day_of(row), row.late) == ("2026-11-17", False)
    (notice,) = notices_about(outcome, "Ada One")
    assert "another date" in notice
    assert "Bo" not in notice
    # the same files, given with this table: it is theirs
    outcome, row = moodle.grade(moodle.folder / "first")
    assert (day_of(row), notices_about(outcome, "Ada One")) == ("2026-11-20", [])


def test_another_time_zone_moves_the_dates_that_are_known(moodle: Moodle) -> None:
    moodle.course("new.csv", zone="Asia/Tokyo")
    outcome, row = moodle.grade(moodle.download("second", RIGHT + "# ada\n"))
    assert [attempt.submitted for attempt in row.attempts] == [
        "2026-11-17T22:00:00+09:00",
        "2026-11-20T02:00:00+09:00",
    ]
    assert notices_about(outcome, "Bo Bell") == []


@pytest.mark.parametrize("order", [("old.csv", "new.csv"), ("new.csv", "old.csv")])
def test_of_two_worksheets_the_later_date_counts(moodle: Moodle, order: tuple[str, str]) -> None:
    """They are downloads one after another; which one is used is said."""
    (moodle.folder / "people.csv").write_text("id,name\n7001,Ada One\n", encoding="utf-8")
    moodle.course("people.csv", *order)
    outcome, row = moodle.grade(moodle.download("second", RIGHT + "# ada\n"))
    assert (day_of(row), row.late) == ("2026-11-20", True)
    (notice,) = notices_about(outcome, "later")
    assert "old.csv" in notice
    assert "new.csv" in notice
    assert "people.csv" not in notice, "it has no dates"
    assert "Ada One" in notice
    assert "Bo" not in notice


@pytest.mark.parametrize("graded_before_corrected", [False, True])
def test_old_files_with_two_worksheets_are_told_and_can_be_corrected(
    moodle: Moodle, graded_before_corrected: bool
) -> None:
    """Nothing says of which date they are; the later one is taken."""
    moodle.out = moodle.folder / "anew"
    moodle.course("old.csv", "new.csv")
    first = moodle.folder / "first"
    outcome, row = moodle.grade(first)
    assert day_of(row) == "2026-11-20"
    (notice,) = notices_about(outcome, "not 2026")
    assert f"Ada One ({LATE}, and not {IN_TIME})" in notice
    assert "Bo" not in notice
    second = moodle.download("second", RIGHT + "# ada\n")
    if graded_before_corrected:
        outcome, row = moodle.grade(second)
        assert notices_about(outcome, "not 2026") == [notice]
    # what the notice says
    moodle.course("old.csv")
    moodle.grade(first)
    moodle.course("old.csv", "new.csv")
    outcome, row = moodle.grade(*([] if graded_before_corrected else [second]))
    assert [attempt.submitted[:10] for attempt in row.attempts] == ["2026-11-17", "2026-11-20"]
    assert notices_about(outcome, "Ada One (") == []


def test_old_files_given_again_with_the_new_worksheet_stay_the_earlier_attempt(
    moodle: Moodle,
) -> None:
    moodle.course("new.csv")
    moodle.grade(moodle.download("second", RIGHT + "# ada\n"))
    _, row = moodle.grade(moodle.folder / "first")
    assert [attempt.submitted[:10] for attempt in row.attempts] == ["2026-11-17", "2026-11-20"]


def test_a_member_of_a_group_who_hands_in_with_an_old_worksheet(moodle: Moodle) -> None:
    """The date of the group's earlier attempt is not that of the new one."""
    moodle.course("old.csv", more="[groups]\nus = ['Ada One', 'Bo Bell']")
    moodle.worksheet("old.csv", IN_TIME)
    first = moodle.folder / "first" / "Ada One_7001_assignsubmission_file_"
    grade(moodle.folder / "g", first, course=moodle.folder / "course.toml")
    second = moodle.folder / "second" / "Bo Bell_7002_assignsubmission_file_"
    hand_in(second, RIGHT)
    outcome, rows, _ = grade(moodle.folder / "g", second, course=moodle.folder / "course.toml")
    assert {day_of(row) for row in rows.values()} == {""}
    assert len(notices_about(outcome, "Ada One, Bo Bell")) == 1


@pytest.mark.parametrize("dates", [(IN_TIME, LATE), (LATE, IN_TIME)])
def test_of_the_same_files_of_a_group_the_earliest_date_counts(
    moodle: Moodle, dates: tuple[str, str]
) -> None:
    """Whatever the order of the folders; and nobody's date is told to be another one."""
    moodle.out = moodle.folder / "anew"
    moodle.course("old.csv", more="[groups]\nus = ['Ada One', 'Bo Bell']")
    moodle.worksheet("old.csv", *dates)
    for student, folder in (("Ada One_7001", ""), ("Bo Bell_7002", "hw")):
        hand_in(moodle.folder / "same" / f"{student}_assignsubmission_file_" / folder, RIGHT)
    for given in ([moodle.folder / "same"], []):
        outcome, row = moodle.grade(*given)
        assert (day_of(row), row.late, len(row.attempts)) == ("2026-11-17", False, 0)
        assert notices_about(outcome, "another date") == []
    # whoever hands in again has another date
    moodle.worksheet("old.csv", *["2026-11-21 02:00" if date == LATE else date for date in dates])
    outcome, row = moodle.grade()
    assert day_of(row) == "2026-11-17"
    assert len(notices_about(outcome, "another date")) == 1


def test_lateness_by_hand_is_of_the_hand_in_it_was_given_for(moodle: Moodle) -> None:
    """Of a newer one, the platform's date counts, and that is told."""
    moodle.course("new.csv")
    _, row = moodle.grade(moodle.folder / "first")
    assert row.late
    dojo("override", "Ada One", "--late", "0", "--out", moodle.out)
    assert not moodle.grade()[1].late
    assert "had been decided" not in dojo("status", moodle.out)
    moodle.worksheet("new.csv", "2026-11-23 02:00")
    outcome, row = moodle.grade(moodle.download("second", RIGHT + "# ada\n"))
    assert (day_of(row), row.late) == ("2026-11-23", True)
    again = "dojo override 'Ada One' --late 0"
    (notice,) = notices_about(outcome, "decided by hand")
    assert again in notice
    assert any(again in reason for reason in row.needs_human)
    assert " ".join(dojo("status", moodle.out).split()).count(again) == 1
    assert "not used now: it was decided of another" in dojo("override", "--out", moodle.out)
    dojo("override", "Ada One", "--late", "0", "--out", moodle.out)
    outcome, row = moodle.grade()
    assert (row.late, row.needs_human, notices_about(outcome, "decided")) == (False, [], [])
    # of all, what has arrived by then
    dojo("override", "--undo", "--out", moodle.out)
    dojo("override", "--undo", "Ada One", "late", "--out", moodle.out)
    dojo("override", "--all", "--late", "2h", "--out", moodle.out)
    assert moodle.grade()[1].late
    moodle.worksheet("new.csv", "2026-11-24 02:00")
    _, row = moodle.grade(moodle.download("third", RIGHT + "# again\n"))
    assert row.timing is not None
    assert row.timing.decide_again == "dojo override 'Ada One' --late 2h"
