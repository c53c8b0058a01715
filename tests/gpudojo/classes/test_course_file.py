"""The course file: what it may say, how it is refused, and what it makes of points and dates."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.classes.course_file import find_course_file, load_course, template_text
from gpudojo.classes.course_rules import CourseRules, Worth, weigh_exercise
from gpudojo.cli import main
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadFile
from gpudojo.model.results import (
    CheckRow,
    ExerciseRow,
    Grade,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
)

DUE = "deadline = 2026-11-20T23:59:00+01:00\n"


def saved(folder: Path, text: str) -> Path:
    path = folder / "course.toml"
    path.write_text(text, encoding="utf-8")
    return path


def course(folder: Path, text: str) -> CourseRules:
    return load_course(saved(folder, text))


def test_the_template_changes_nothing_and_each_of_its_examples_is_valid(tmp_path: Path) -> None:
    text = template_text("day8", exercises_of("day8"))
    made = course(tmp_path, text)
    assert (made.day, made.worths, made.points, made.by_hand) == ("day8", {}, None, ())
    (tmp_path / "roster.csv").write_text("id\n1\n")
    words = (
        "# How",
        "# `dojo",
        "# What",
        "# Which",
        "# The ",
        "# Extra",
        "# By ",
        "# One",
        "# When",
        "# A CSV",
        '# "per',
    )
    lines = [
        line[2:] if line.startswith("# ") and not line.startswith(words) else line
        for line in text.splitlines()
    ]
    used = course(tmp_path, "\n".join(lines))
    assert len(used.worths) == len(exercises_of("day8"))
    assert used.worth_by_exercise(exercises_of("day8")).keys() == {
        exercise.stem for exercise in exercises_of("day8")
    }
    assert (used.points, used.late.penalty, used.visibility.hints) == (20, 10, "after deadline")
    assert len(used.extensions) == len(used.groups["team-1"]) == 2
    assert used.by_hand[0].title == "Report on the profile"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("dya = 'day8'", 1, "there is no setting `dya` here; did you mean day?"),
        (
            "[late]\n\npenality = 10",
            3,
            "there is no setting `penality` here; did you mean penalty?",
        ),
        ("[late]\npenalty = '10%'", 2, "`penalty` must be a number, not text in quotes"),
        ("attempt = 'last'", 1, "`attempt` cannot be 'last'; it is one of latest, best, first"),
        ("day = 'day88'", 1, "there is no day 'day88'; did you mean day8?"),
        (
            "title = 'x'\ndeadline = 2026-11-20T23:59:00",
            2,
            "a time zone is missing: write 2026-11-20T23:59:00+01:00",
        ),
        (
            "deadline = 2026-11-20",
            1,
            "`deadline` must be a date and time, such as 2026-11-20T23:59:00+01:00",
        ),
        ("time_zone = 'Europe/Berlim'", 1, "did you mean Europe/Berlin?"),
        ("points = 0", 1, "points must be more than 0, not 0"),
        ("points = nan", 1, "points must be more than 0"),
        ("[late]\ncap = 150", 2, "cap is in percent, at most 100, not 150"),
        ("[late]\npenalty = -1", 2, "penalty must be 0 or more"),
        ("[late]\npenalty = 150", 2, "penalty is in percent, at most 100, not 150"),
        (
            'roster = "C:\\Users\\x.csv"',
            1,
            "in double quotes a backslash begins an escape: write 'C:\\course\\roster.csv'",
        ),
        ("title = x y", 1, "this is not TOML"),
        (
            f"{DUE}[extensions]\nada = 'monday'",
            3,
            "`ada` must be a number of days, or a date and time, such as 2026-",
        ),
        (
            "deadline = '20.11.2026'",
            1,
            "`deadline` must be a date and time, such as 2026-11-20T23:59:00+01:00",
        ),
        ("deadline = 2026-11-31T23:59:00", 1, "there is no such day or time"),
        ("deadline = 2026-13-20T23:59:00Z", 1, "there is no such day or time"),
        ("deadline = 2026-11-20T24:00:00Z", 1, "there is no such day or time"),
        ("points = 20,5", 1, "numbers have a decimal point: 2.5"),
        ("day = \u201cday8\u201d", 1, "use straight quotes"),
        (f"{DUE}[extensions]\nAda Byron = 3", 3, "a name with a space or @ needs quotes"),
        (f"{DUE}[extensions]\nada@example.org = 3", 3, "a name with a space or @ needs quotes"),
        ("[groups]\na = ['Ada', 'Bo']\nb = ['cy', 'ADA']", 3, "'ADA' is in the group a, too"),
        ("[extensions]\nada = 3", 2, "an extension in days needs a deadline"),
        ("[groups]\nteam = 'ada'", 2, "`team` must be a list, not text in quotes"),
        ("roster = 'rooster.csv'", 1, "there is no file"),
        (
            "[[by_hand]]\nname = 'a'\npoints = 1\n[[by_hand]]\nname = 'b'\nponts = 1",
            6,
            "did you mean points?",
        ),
        ("[[by_hand]]\nname = 'a'\npoints = 1\n[[by_hand]]\nname = 'b'", 4, "`points` is missing"),
        ("[exercises]\n'04' = 0", 2, "leave an exercise out that does not count"),
        (
            "[exercises]\n'04' = { point = 3 }",
            2,
            "there is no setting `point` here; did you mean points?",
        ),
        ("[visibility]\nhints = 'later'", 2, "one of always, after deadline, never"),
        ("[visibility]\nhints = 'after deadline'", 2, '"after deadline" needs a deadline'),
        (f"{DUE}[extensions]\nada = inf", 3, "an extension is from 0 to 1000 days, not inf"),
        (f"{DUE}[extensions]\nada = nan", 3, "an extension is from 0 to 1000 days, not nan"),
        (f"{DUE}[extensions]\nada = 1e9", 3, "an extension is from 0 to 1000 days, not 1e+09"),
        (f"{DUE}[extensions]\nada = -3", 3, "an extension is from 0 to 1000 days, not -3"),
        (
            f"{DUE}[extensions]\nada = true",
            3,
            "`ada` must be a number of days, or a date and time, such as 2026-",
        ),
        (
            f"{DUE}[extensions]\nada = 2026-11-27",
            3,
            "`ada` must be a number of days, or a date and time, such as",
        ),
        (f"{DUE}[extensions]\nada = 3\nAda = 5", 4, "'Ada' is listed twice"),
        (f"{DUE}[extensions]\n'' = 3", 3, "a name is missing"),
        ("[groups]\nteam = ['ada', 'Ada']", 2, "'Ada' is listed twice"),
        ("[groups]\nteam = ['ada', '']", 2, "a name is missing"),
        (
            "[groups]\nteam = ['ada', 2]",
            2,
            "entry 2 of `team` must be text in quotes, not a number",
        ),
        (
            "time_zone = 'Europe/Berlin'\ndeadline = 2026-03-29T02:30:00",
            2,
            "there is no such time in Europe/Berlin",
        ),
        (
            "time_zone = 'Europe/Berlin'\ndeadline = 2026-10-25T02:30:00",
            2,
            (
                "this time comes twice in Europe/Berlin: write 2026-10-25T02:30:00+02:00 or "
                "2026-10-25T02:30:00+01:00"
            ),
        ),
        ("deadline = 9999-12-31T23:59:00Z", 1, "the year must be from 2000 to 2999, not 9999"),
        (
            "[by_hand]\nname = 'r'\npoints = 5",
            1,
            "`by_hand` must be a list, not a table; write [[by_hand]]",
        ),
        ("points = 1e-9", 1, "points must be from 0.01 to 1,000,000, not 1e-09"),
        ("[exercises]\n'04' = 1e300", 2, "points must be from 0.01 to 1,000,000, not 1e+300"),
        (
            "[exercises]\n'04' = { points = 3, extra = true }",
            1,
            "all of it is extra credit; something has to count",
        ),
        ("points = 3\npoints = 4\n", 2, "points is set a second time; leave one of the two out"),
        ("[[by_hand]]\nname = 'r'\npoints = -5", 3, "`points` must be 0 or more"),
        (
            "[[by_hand]]\nname = 'r'\npoints = inf",
            3,
            "points must be from 0.01 to 1,000,000, not inf",
        ),
        (
            "[[by_hand]]\nname = ' '\npoints = 5",
            2,
            "an item needs a name without ::, such as report",
        ),
        (
            "[[by_hand]]\nname = 'f::runs'\npoints = 5",
            2,
            "an item needs a name without ::, such as report",
        ),
        (
            "[[by_hand]]\nname = 'Points'\npoints = 5",
            2,
            "'Points' is a column of results.csv; choose another name",
        ),
        (
            "[[by_hand]]\nname = 'a'\npoints = 1\n[[by_hand]]\nname = 'A'\npoints = 1",
            5,
            "two items have the name 'A'",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_a_suggestion(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(BadFile) as refused:
        course(tmp_path, text)
    assert (refused.value.line, said in refused.value.reason) == (line, True), refused.value.reason
    assert str(refused.value).startswith(f"{tmp_path / 'course.toml'}, line {line}: ")


def test_exercises_are_named_by_stem_or_number_and_once(tmp_path: Path) -> None:
    stems = [exercise.stem for exercise in exercises_of("day8")]
    rules = course(
        tmp_path, f"[exercises]\n4 = 20\n'05' = true\n'{stems[0]}' = {{ extra = true }}\n"
    )
    assert rules.worth_by_exercise(exercises_of("day8")) == {
        stems[3]: Worth(20),
        stems[4]: Worth(),
        stems[0]: Worth(extra=True),
    }
    with pytest.raises(BadFile, match=r"line 3: the exercise 04_.* is listed twice"):
        course(tmp_path, "[exercises]\n4 = 20\n'04' = 3\n").worth_by_exercise(exercises_of("day8"))
    with pytest.raises(
        BadFile,
        match=r"line 2: there is no exercise '04_modifying_training_lop_gpu'; did you mean 04_",
    ):
        course(tmp_path, "[exercises]\n04_modifying_training_lop_gpu = 20\n").worth_by_exercise(
            exercises_of("day8")
        )


@pytest.mark.parametrize("name", ["04", "4", "04_modifying_training_loop_gpu"])
def test_an_item_graded_by_hand_is_not_called_like_an_exercise(tmp_path: Path, name: str) -> None:
    rules = course(tmp_path, f"[[by_hand]]\nname = '{name}'\npoints = 5\n")
    with pytest.raises(BadFile, match=rf"line 2: '{name}' is the name of an exercise"):
        rules.worth_by_exercise(exercises_of("day8"))


def test_weights_keep_shares_and_add_up() -> None:
    checks = [
        CheckRow(f"a::f::{n}", "f", Outcome.PASSED if n else Outcome.FAILED, n and 1.0, 1.0)
        for n in range(3)
    ]
    found = weigh_exercise(ExerciseRow("a", "A", 2.0, 3.0, checks), Worth(10), 3.0)
    assert (found.score, found.max_score) == (6.666667, 10.0)
    assert [check.points for check in found.checks] == [0.0, 3.333334, 3.333333]
    part = weigh_exercise(ExerciseRow("a", "A", 1.0, 1.0, checks[1:2]), Worth(10), 3.0)
    assert part.max_score == pytest.approx(10 / 3, abs=1e-6)


def row(score: float) -> SubmissionRow:
    return SubmissionRow("ada", SubmissionStatus.GRADED, score, 100.0)


@pytest.mark.parametrize(
    ("submitted", "late", "points", "penalty"),
    [
        ("2026-11-20T22:59:00+00:00", False, 16.0, 0.0),  # on time, in another time zone
        ("2026-11-21T00:13:00+01:00", False, 16.0, 0.0),  # in the grace
        ("2026-11-21T00:15:00+01:00", True, 14.0, 2.0),  # the first day has begun
        ("2026-11-23T00:00:00+01:00", True, 10.0, 6.0),
        ("2027-01-01T00:00:00+01:00", True, 6.0, 10.0),  # no more than the cap
    ],
)
def test_a_day_begun_costs_a_share_of_the_maximum(
    tmp_path: Path, submitted: str, late: bool, points: float, penalty: float
) -> None:
    rules = course(tmp_path, f"points = 20\n{DUE}[late]\npenalty = 10\ngrace = 15\ncap = 50\n")
    timing = rules.timing_of(submitted, "commit", False, ())
    assert timing is not None
    graded = rules.with_published_points(row(80.0), timing)
    assert graded.timing is not None
    assert (graded.late, graded.final, graded.timing.penalty) == (
        late,
        Grade(points, 20.0),
        penalty,
    )
    assert graded.score == 80.0


def test_a_penalty_takes_no_more_than_was_earned(tmp_path: Path) -> None:
    for base, points in (("maximum", 0.0), ("earned", 4.0)):
        rules = course(tmp_path, f"{DUE}[late]\npenalty = 20\nof = '{base}'\n")
        timing = rules.timing_of("2026-11-21T12:00:00+01:00", "commit", False, ())
        assert rules.with_published_points(row(5.0), timing).final == Grade(points, 100.0)


def test_an_extension_moves_the_deadline_of_one_student(tmp_path: Path) -> None:
    rules = course(
        tmp_path,
        f"{DUE}time_zone = 'Europe/Berlin'\n[extensions]\n'Ada X' = 3\nbo = 2026-11-30T12:00:00\n",
    )
    late = "2026-11-23T20:00:00+01:00"
    for names, is_late, due in (
        ({"ada x"}, False, "2026-11-23T23:59:00+01:00"),
        ({"bo"}, False, "2026-11-30T12:00:00+01:00"),
        ({"cy"}, True, "2026-11-20T23:59:00+01:00"),
    ):
        timing = rules.timing_of(late, "moodle", False, names)
        assert timing is not None
        assert (timing.late, timing.deadline, timing.extended) == (is_late, due, names != {"cy"})


def test_days_of_an_extension_end_at_the_same_time_of_day(tmp_path: Path) -> None:
    """Clocks are set back on 25 October, however the deadline is written."""
    for due in ("2026-10-20T23:59:00", "2026-10-20T23:59:00+02:00", "2026-10-20T21:59:00Z"):
        rules = course(
            tmp_path, f"deadline = {due}\ntime_zone = 'Europe/Berlin'\n[extensions]\nada = 7\n"
        )
        timing = rules.timing_of("2026-10-27T23:58:00+01:00", "moodle", False, {"ada"})
        assert timing is not None
        assert (timing.deadline, timing.late) == ("2026-10-27T23:59:00+01:00", False)


def test_published_points_are_rounded_as_people_round(tmp_path: Path) -> None:
    rules = course(tmp_path, f"{DUE}[late]\npenalty = 10\n")
    timing = rules.timing_of("2026-11-21T12:00:00+01:00", "commit", False, ())
    graded = rules.with_published_points(
        SubmissionRow("ada", SubmissionStatus.GRADED, 7.125, 23.0), timing
    )
    assert graded.final.points == 4.83  # 7.125 - 2.3
    assert (
        course(tmp_path, "points = 1\n").with_published_points(row(12.5), None).final.points == 0.13
    )


def test_init_tells_what_being_late_costs(tmp_path: Path) -> None:
    """Percents are easily written as shares."""
    late = "[late]\npenalty = 0.1\ngrace = 15\ncap = 50\nof = 'earned'\n"
    for text, said in (
        (
            f"{DUE}{late}",
            (
                "0.1 % of what was earned off for each day late, at most 50 %, after 15 minutes "
                "of grace"
            ),
        ),
        (f"{DUE}[late]\npenalty = 10\n", "10 % of the maximum off for each day late"),
    ):
        course(tmp_path, text)
        done = CliRunner().invoke(main, ["init", str(tmp_path)])
        assert f"due 2026-11-20 23:59 UTC+01:00, {said}." in done.output
    course(tmp_path, "[late]\npenalty = 10\n")
    done = CliRunner().invoke(main, ["init", str(tmp_path)])
    assert (
        "note: there is no deadline: only what a platform marks as late costs points\n"
        in done.output
    )


def test_init_counts_extensions_of_one_student(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text("id,name\n1,Ada\n2,Bo\n3,Bo\n", encoding="utf-8")
    table = "roster = 'roster.csv'\n[extensions]\nada = 1\n"
    for more, said in (("", "1 extension, "), ("bo = 1\ncy = 1\n", "3 extensions, 1 of them for")):
        course(tmp_path, f"{DUE}{table}{more}")
        assert said in CliRunner().invoke(main, ["init", str(tmp_path)]).output


def test_another_encoding_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "course.toml").write_bytes("day = 'day8'\ntitle = 'Übung'\n".encode("latin-1"))
    said = CliRunner().invoke(main, ["init", str(tmp_path)]).output
    assert "course.toml, line 2: this is not UTF-8 text; save the file as UTF-8" in said


def test_late_by_a_platforms_word_alone(tmp_path: Path) -> None:
    rules = course(tmp_path, f"{DUE}[late]\npenalty = 10\n[extensions]\nada = 3\n")
    timing = rules.timing_of("", "canvas", True, ())
    assert timing is not None
    assert (timing.late, timing.late_seconds) == (True, None)
    assert (
        rules.with_published_points(row(80.0), timing).final.points == 70.0
    )  # at least a day has begun
    extended = rules.timing_of("", "canvas", True, ("ada",))
    assert extended is not None
    assert not extended.late
    assert CourseRules().timing_of("", "", False, ()) is None


def test_results_may_be_shown_after_the_deadline_only(tmp_path: Path) -> None:
    rules = course(tmp_path, f"{DUE}[visibility]\nresults = 'after deadline'\nhints = 'never'\n")
    assert rules.deadline is not None
    for after, shown in ((-1, False), (0, True)):
        now = rules.deadline + datetime.timedelta(seconds=after)
        assert (
            rules.visibility.shows(rules.visibility.results, rules.deadline.isoformat(), now)
            is shown
        )
        assert not rules.visibility.shows(rules.visibility.hints, rules.deadline.isoformat(), now)


def test_no_course_file_is_taken_from_a_students_folder(tmp_path: Path) -> None:
    student = tmp_path / "class" / "ada"
    student.mkdir(parents=True)
    (student / "day8.py").write_text("x = 1\n")
    saved(student, "points = 1")
    assert find_course_file([student]) is None
    assert find_course_file([tmp_path / "class"]) is None
    mine = saved(tmp_path, "points = 20")
    assert find_course_file([tmp_path / "class"]) == mine
    assert find_course_file([student]) == mine
    nearer = saved(tmp_path / "class", "points = 30")
    assert find_course_file([student]) == nearer
    assert find_course_file([student / "day8.py"]) == nearer
