"""What pages say, and the numbers they are made from. Without a browser."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from gpudojo.model.results import (
    Attempt,
    ExerciseRow,
    Grade,
    Outcome,
    Override,
    Reviewed,
    RosterRow,
    RubricRow,
    SubmissionRow,
    SubmissionStatus,
    Timing,
    not_handed_in,
    sum_points,
)
from gpudojo.model.results_file import format_points, read, write
from gpudojo.platforms._texts import root_causes
from gpudojo.report.charts import Dot, draw_scatter, levels_around
from gpudojo.report.class_page import Tally
from gpudojo.report.people import Roll
from gpudojo.report.rendering import short_id, status_and_reason
from gpudojo.report.timeline_svg import legend_of
from gpudojo.report.writing import ReportOptions, write_report
from hypothesis import given
from hypothesis import strategies as st
from virtual_cuda.ledger.timeline import Timeline, TimelineEvent

from tests.gpudojo.report.classes import (
    LOOP,
    PIXELS,
    B,
    F,
    T,
    check,
    exercise,
    header,
    submission,
    timeline,
)

REASON = "broken.zip is not a zip file."


def unreadable(name: str) -> SubmissionRow:
    """What grading leaves of a file that is no submission: every check failed, for one reason."""
    checks = [
        check(
            "04_loop",
            "train_epoch",
            each,
            F,
            5.0,
            happened=f"not graded: {REASON}",
            expected="a submission",
        )
        for each in ("runs", "learns", "waits_once", "returns")
    ]
    made = [exercise("04_loop", "A training loop", *checks)]
    return SubmissionRow(
        name, SubmissionStatus.UNREADABLE, 0, 20.0, made, reason=REASON, needs_human=[REASON]
    )


def not_graded(name: str) -> SubmissionRow:
    """What grading leaves of a submission that forged a message to the grader."""
    checks = [
        check("04_loop", "train_epoch", each, F, 5.0, happened="not graded", message="not graded")
        for each in ("runs", "learns")
    ]
    made = [exercise("04_loop", "A training loop", *checks)]
    return SubmissionRow(
        name,
        SubmissionStatus.NOT_GRADED,
        0,
        10.0,
        made,
        reason="not graded: it wrote to the pipe; remove that",
        needs_human=["forged: it wrote to the pipe", "reported: it asked"],
        seconds=1.0,
    )


def pages_of(folder: Path, *rows: SubmissionRow) -> tuple[str, list[str], list[str]]:
    """The class's page, each student's, and what was said in the terminal."""
    write(folder / "results.json", header(), list(rows))
    said: list[str] = []
    write_report(ReportOptions(folder, folder / "out"), said.append)
    students = [
        (folder / "out" / "students" / f"{row.submission}.html").read_text(encoding="utf-8")
        for row in rows
    ]
    return (folder / "out" / "index.html").read_text(encoding="utf-8"), students, said


def tally_of(*rows: SubmissionRow) -> Tally:
    tally = Tally(header())
    roll = Roll(None)
    for row in rows:
        tally.add(row, roll.add_person(row))
    return tally


def test_unreadable_submissions_are_not_counted_in_checks() -> None:
    read_one = submission(3, "ada", "no")
    alone = tally_of(read_one)
    together = tally_of(read_one, unreadable("bob"), unreadable("cyd"))
    assert (together.statistics.unread, alone.statistics.unread) == (2, 0)
    assert together.statistics.hardest == alone.statistics.hardest
    assert alone.statistics.hardest, "there is something to count"
    assert len(together.needs_review) == 2


def test_a_page_of_a_student_on_the_roster_with_several_attempts(tmp_path: Path) -> None:
    """The name instead of the file's, every attempt, what was not handed in once, and what a person
    gave.
    """
    missing = [
        check(
            LOOP,
            "train_epoch",
            "runs",
            F,
            0.0,
            happened=f"{not_handed_in('train_epoch')}; is `train` meant?",
        ),
        check(
            LOOP,
            "train_epoch",
            "learns",
            B,
            4.0,
            message="blocked: the function is missing",
            blocked_by="runs",
        ),
    ]
    given = msgspec.structs.replace(
        exercise(LOOP, "A loop", *missing), score=3.0, override=Override(3.0, comment="Lab.")
    )
    pixels = [
        msgspec.structs.replace(each, id=f"{PIXELS}::{each.function}::{number}")
        for number, each in enumerate(missing)
    ]
    row = msgspec.structs.replace(
        submission(3, "lovelaceada", "no"),
        exercises=[given, exercise(PIXELS, "Pixels", *pixels)],
        score=3.0,
        max_score=8.0,
        roster=RosterRow("101", "Ada Lovelace", "ada@example.org", "A"),
        attempts=[
            Attempt("lovelaceada (attempt 1)", "d", 61.6, 100.0),
            Attempt(
                "lovelaceada", "e", 75.6, 100.0, counts=True, changes=["runs: failed → passed"]
            ),
        ],
        timing=Timing(late=True, late_seconds=216_000, penalty=2.0),
    )
    said = ["the same files as lovelaceada"]
    other = msgspec.structs.replace(
        submission(4, "bo", "no"), roster=RosterRow("102", "Bo", "", "B"), needs_human=said
    )
    index, (page, _), _ = pages_of(tmp_path, row, other)
    assert "<h1><bdi>Ada Lovelace</bdi></h1>" in page
    assert "Submission: <bdi>lovelaceada</bdi>" in page
    assert "2 attempts: 61.6 → 75.6" in page
    assert "runs: failed → passed" in page
    assert page.count("Not handed in: ") == 1
    assert "is <code>train</code> meant?" in page
    assert ">Ada Lovelace</bdi></a></th>" in index
    assert "the same files as Ada Lovelace" in index
    assert '<td class="nowrap">2.5 days, −2</td>' in index
    assert '<td class="num">3</td>' in index, (
        "points that a person gave, although nothing was handed in"
    )
    assert '<th scope="row">A</th><td class="num"><span class="who" data-rows="0"' in index, (
        "a line for each section"
    )


def test_students_of_one_name_are_told_apart() -> None:
    roll = Roll(None)
    rows = [
        msgspec.structs.replace(submission(3, name, "no"), roster=RosterRow(name, "Ada"))
        for name in ("a1", "a2")
    ]
    assert [roll.add_person(row).shown for row in rows] == ["Ada", "Ada (a2)"]


def test_both_of_one_name_on_the_roster_have_their_ids() -> None:
    roll = Roll(None)
    rows = []
    for id_, name in (("s1", "Ada-7"), ("s2", "Ada"), ("s3", "ada-files")):
        on_roster = RosterRow(id_, "Ada", is_namesake=True)
        rows.append(msgspec.structs.replace(submission(3, name, "no"), roster=on_roster))
    assert [roll.add_person(row).shown for row in rows] == ["Ada (s1)", "Ada (s2)", "Ada (s3)"]
    assert [row.called for row in rows] == ["Ada (s1)", "Ada (s2)", "Ada (s3) (ada-files)"]


def test_an_unreadable_submission_has_its_reason_once(tmp_path: Path) -> None:
    index, (page,), said = pages_of(tmp_path, unreadable("bob"))
    assert page.count(REASON) == 1
    assert "so no check was run" in page
    assert "no timelines" not in page
    assert 'href="#04_loop"' not in page, "there is nothing to go to"
    assert said == [], "no record is missing of what never ran"
    assert "1 submission could not be read and is not counted." in index
    assert "Nobody failed a check." in index


def test_a_submission_that_was_not_graded_has_one_sentence(tmp_path: Path) -> None:
    index, (page,), _ = pages_of(tmp_path, not_graded("bob"))
    assert page.count("it wrote to the pipe; remove that") == 1
    assert "No check was judged; the reason is above." in page
    assert "no timelines" not in page
    assert 'href="#04_loop"' not in page, "there is nothing to go to"
    assert "forged" not in page
    assert "1 submission was not graded and is not counted." in index
    assert '<span class="badge s-not-graded">not graded</span>' in index
    assert index.index("forged: it wrote") < index.index("reported: it asked")


def test_what_was_not_graded_is_no_zero_in_a_mean() -> None:
    alone = tally_of(submission(3, "ada", "no"))
    together = tally_of(not_graded("bob"), submission(3, "ada", "no"))
    assert together.points == alone.points
    assert together.mean == alone.mean
    assert together.mean_score == alone.mean_score
    assert [line.mean for line in alone.reached] == [
        line.mean for line in together.reached if line.exercise in alone.exercises
    ]
    assert together.statistics.hardest == alone.statistics.hardest
    assert len(together.handed_in) == 2


def test_a_group_counts_once_in_all_numbers_of_a_check(tmp_path: Path) -> None:
    """On the class page as in the terminal; the links lead to all members."""
    members = [
        msgspec.structs.replace(submission(3, name, "no"), group="red", digest="same")
        for name in ("ada", "bob")
    ]
    alone = msgspec.structs.replace(submission(3, "cyd", "no"), digest="other")
    tally = tally_of(*members, alone)
    failed = tally.statistics.hardest[0]
    assert (failed.failed, failed.attempted) == (2, 2)
    assert tally.failed[failed.id] == [0, 1, 2]
    (mistake,) = tally.ranked
    assert (tally.statistics.misconceptions[mistake.key], mistake.places) == (2, [0, 1, 2])
    index, _, _ = pages_of(tmp_path, *members, alone)
    assert f'data-label="failed: {failed.claim}">2</span></td>' in index
    assert "· 2\u00a0submissions</span>" in index or "· 2 submissions</span>" in index
    assert "What a group handed in counts once; points are those of students." in index
    assert not [line for line in index.splitlines() if "failed: " in line and ">3</span>" in line]


def test_a_group_is_one_submission_of_several_students(tmp_path: Path) -> None:
    reason = ("replaced print",)
    members = [
        msgspec.structs.replace(
            submission(3, name, "no"), group="red", digest="same", seconds=2.0, needs_human=reason
        )
        for name in ("ada", "bob")
    ]
    alone = msgspec.structs.replace(submission(3, "cyd", "no"), digest="other")
    tally = tally_of(*members, alone)
    assert tally.submission_count == 2
    assert len(tally.points) == 3, "members may have different points"
    assert [line.person.shown for line in tally.needs_review] == ["ada"]
    assert [line.person.shown for line in tally.slowest if line.seconds == 2.0] == ["ada"]
    index, _, _ = pages_of(tmp_path, *members, alone)
    heading = index[index.index("<h1>") : index.index("</h1>")].replace("\u00a0", " ")
    assert heading.endswith("2 submissions of 3 students")
    assert 'data-noun="students"' in index


def test_forged_submissions_are_reviewed_first() -> None:
    crashed = SubmissionRow("ada", SubmissionStatus.CRASHED, 0, 10.0, reason="it crashed")
    review = tally_of(crashed, not_graded("bob")).needs_review
    assert [line.person.shown for line in review] == ["bob", "ada"]


def test_means_of_exercises_add_up_to_the_mean(class_of_sixty: Path) -> None:
    rows = read(class_of_sixty).submissions
    tally = tally_of(*rows)
    assert sum(mean for _, _, mean, _ in tally.reached) == pytest.approx(tally.mean_score)
    for key, _, mean, worth in tally.reached:
        own = [each for row in rows for each in row.exercises if each.exercise == key]
        assert mean == pytest.approx(sum(each.score for each in own) / len(rows))
        assert worth == max(each.max_score for each in own)


def test_slowest_lists_only_submissions_that_ran() -> None:
    rows = [submission(number, f"student-{number}", "no") for number in range(4)]
    slowest = tally_of(*rows, unreadable("bob")).slowest
    assert [line.person.shown for line in slowest] == [
        "student-3",
        "student-2",
        "student-1",
        "student-0",
    ]


def test_a_reason_is_not_repeated_for_each_check(tmp_path: Path) -> None:
    def half(name: str, outcome: Outcome, message: str) -> SubmissionRow:
        names = ("runs", "learns", "waits_once")
        checks = [
            check("04_loop", "train_epoch", each, outcome, 4.0, message=message) for each in names
        ]
        made = [exercise("04_loop", "A training loop", *checks)]
        return SubmissionRow(
            name, SubmissionStatus.GRADED, sum_points(each.score for each in made), 20.0, made
        )

    stub, behind = (
        half("ada", T, "to do: `f` is a stub."),
        half("bob", B, "blocked: `runs` has to pass first."),
    )
    _, (to_do, blocked), _ = pages_of(tmp_path, stub, behind)
    assert to_do.count('<p class="more"><code>f</code> is a stub.</p>') == 1
    assert to_do.count(">to do</span>") == 4, "three checks, and their sum at the top"
    assert 'Still to do: <a href="#04_loop"><code>train_epoch</code></a>.' in to_do
    assert blocked.count("has to pass first.") == 1
    assert "Still to do" not in blocked


def test_failures_are_listed_at_the_top(tmp_path: Path) -> None:
    long = "a word " * 100
    checks = [
        check("04_loop", "train_epoch", "runs", F, 4.0, happened="no line is known of this"),
        check("04_loop", "train_epoch", "learns", F, 4.0, happened=f"{long}\nand more", line=7),
        *(
            check("04_loop", "train_epoch", f"check_{n}", F, 1.0, happened=f"the {n}th")
            for n in range(20)
        ),
    ]
    row = SubmissionRow(
        "ada", SubmissionStatus.GRADED, 0, 28.0, [exercise("04_loop", "A training loop", *checks)]
    )
    _, (page,), _ = pages_of(tmp_path, row)
    top = page[page.index('<ul class="first">') : page.index("<main")]
    assert top.index("a word") < top.index("no line is known"), "what has a line comes first"
    assert "and more" not in top
    assert len(top) < 3000
    assert "and 14 more below" in top
    for anchor in ("at-04_loop-train_epoch-runs", "at-04_loop-train_epoch-learns"):
        assert f'href="#{anchor}"' in top
        assert page.count(f'id="{anchor}"') == 1


def test_a_status_is_not_repeated() -> None:
    assert status_and_reason("crashed", "crashed in file 01.py") == "crashed in file 01.py"
    assert status_and_reason("unreadable", REASON) == f"unreadable: {REASON}"


def test_short_ids_begin_with_the_exercise_number() -> None:
    assert (
        short_id("04_modifying_training_loop_gpu::train_epoch::runs") == "04 train_epoch::<wbr>runs"
    )
    assert short_id("odd") == "odd"
    assert "<b>" not in short_id("<b>::<b>")


def test_a_legend_explains_only_what_is_drawn() -> None:
    both = legend_of(timeline(1, "code"), None)
    assert {kind for kind, _, _ in both} == {
        "wait", "to-device", "to-host", "grad", "grad-autocast", "forward", "backward", "step"
    }  # fmt: skip
    across = Timeline(
        "f",
        "s",
        "cuda",
        [TimelineEvent("between devices", 0, 8, None, False, False, 0, "cuda:0 to cuda:1")],
    )
    assert [words for _, _, words in legend_of(across)] == ["copy between devices"]
    silent = msgspec.structs.replace(
        across, events=[TimelineEvent("memory", 0, 8, None, False, False, 8, "")]
    )
    assert legend_of(silent) == []


@given(st.floats(0, 1e12), st.floats(1e-3, 1e12))
def test_an_axis_covers_its_values_in_few_round_steps(one: float, other: float) -> None:
    lowest, highest = sorted((one, other))
    levels = levels_around(lowest, highest)
    assert levels[0] <= lowest * (1 + 1e-6) + 1e-9
    assert levels[-1] >= highest * (1 - 1e-6)
    assert 2 <= len(levels) <= 8
    assert all(math.isfinite(level) for level in levels)


def test_an_axis_of_memory_has_round_numbers() -> None:
    drawn = draw_scatter([Dot(1.0, 243 << 20, "graded"), Dot(2.0, 305 << 20, "graded")])
    for label in ("240 MiB", "260 MiB", "320 MiB"):
        assert f">{label}</text>" in drawn
    assert ">0 MiB</text>" in draw_scatter(
        [Dot(1.0, 10 << 20, "graded"), Dot(2.0, 305 << 20, "graded")]
    )


def test_means_say_which_points_they_count(tmp_path: Path) -> None:
    plain = submission(3, "ada", "no")
    late = msgspec.structs.replace(submission(5, "bo", "no"), grade=Grade(2.0, 20.0))
    assert "mean in the exercises" not in pages_of(tmp_path, plain)[0]
    tally = tally_of(plain, late)
    assert tally.mean == pytest.approx((plain.score + 2) / 2)
    page, *_ = pages_of(tmp_path, plain, late)
    assert f"<dt>mean</dt><dd>{format_points(tally.mean)} <small>of 20" in page
    assert f"<dt>mean in the exercises</dt><dd>{format_points(tally.mean_score)} <small>" in page


def test_a_page_names_the_group_and_when_attempts_were_handed_in(tmp_path: Path) -> None:
    row = msgspec.structs.replace(
        submission(3, "ada", "no"),
        group="Ada & Bo",
        attempts=[
            Attempt("ada", "d", 1.0, 2.0, "2026-11-03T10:00:00+00:00", "2026-11-01T10:00:00+01:00"),
            Attempt("ada", "e", 2.0, 2.0, "2026-11-04T10:00:00+00:00", counts=True),
        ],
    )
    _, (page,), _ = pages_of(tmp_path, row)
    assert "Group: <bdi>Ada &amp; Bo</bdi>. One submission counts for all members." in page
    assert "1 of 2, handed in 2026-11-01 10:00 UTC+01:00</li>" in page
    assert "2 of 2, graded 2026-11-04 10:00 UTC, this one counts</li>" in page
    write_report(ReportOptions(tmp_path, tmp_path / "hidden", anonymous=True), lambda said: None)
    (hidden,) = (tmp_path / "hidden" / "students").iterdir()
    assert "Group" not in hidden.read_text(encoding="utf-8")


def test_extra_credit_is_named(tmp_path: Path) -> None:
    """Its maximum is not in the total, and the points of the table would not add up."""
    (plain,) = submission(3, "ada", "no").exercises[:1]
    extra = msgspec.structs.replace(plain, exercise=PIXELS, title="Pixels", extra=True)
    row = msgspec.structs.replace(
        submission(3, "ada", "no"),
        exercises=[plain, extra],
        score=2 * plain.score,
        max_score=plain.max_score,
    )
    index, (page,), _ = pages_of(tmp_path, row)
    assert page.count("Pixels (extra credit)") == 2, "in the table, and above its checks"
    assert "Pixels (extra credit)</a></th>" in index
    assert f"{plain.title} (extra credit)" not in page + index


def test_what_waits_for_a_person_is_not_called_unattempted(tmp_path: Path) -> None:
    item = ExerciseRow("report", "Report", 0.0, 5.0, by_hand=True)
    row = submission(3, "ada", "no")
    row = msgspec.structs.replace(
        row, exercises=[*row.exercises, item], max_score=sum_points([row.max_score, 5.0])
    )
    absent = SubmissionRow(
        "bo", SubmissionStatus.ABSENT, 0.0, 5.0, [item], reason="Nothing was handed in."
    )
    index, _, _ = pages_of(tmp_path, row, absent)
    lines = index.partition('<table id="class"')[2].splitlines()
    waiting, nothing = (line for line in lines if line.startswith('<tr><th scope="row">'))
    assert waiting.count('<span title="still to grade by hand">') == 1
    assert 'title="not attempted"' not in waiting
    assert nothing.count('<span title="not attempted">') == 1


def test_points_by_hand_are_shown_though_no_function_was_handed_in(tmp_path: Path) -> None:
    two = Override(2.0)
    lost = check("05_five", "f", "runs", F, 2.0, happened=f"{not_handed_in('f')}.")
    untouched = exercise("06_six", "Six", lost)
    by_check = exercise("05_five", "Five", msgspec.structs.replace(lost, points=2.0, override=two))
    line = RubricRow("Words", 5.0, override=Override(0.0))
    by_line = ExerciseRow("report", "Report", 0.0, 5.0, by_hand=True, rubric=[line])
    row = submission(3, "ada", "no")
    parts = [by_check, untouched, by_line]
    row = msgspec.structs.replace(row, exercises=parts, score=2.0, max_score=9.0)
    index, _, _ = pages_of(tmp_path, row)
    lines = index.partition('<table id="class"')[2].splitlines()
    (shown,) = (line for line in lines if line.startswith('<tr><th scope="row"'))
    assert shown.count('<span title="not attempted">') == 1, "of 06 alone"
    assert '<td class="num full">2</td>' in shown
    assert '<td class="num none">0</td>' in shown


def test_an_exercise_that_a_person_graded_has_nothing_to_fix(tmp_path: Path) -> None:
    row = submission(3, "ada", "no")
    (wrong, *_) = [each for each in row.exercises if any(check.to_fix for check in each.checks)]
    given = Override(wrong.max_score, comment="Right as well.")
    decided = msgspec.structs.replace(wrong, score=wrong.max_score, override=given)
    _, (page,), _ = pages_of(tmp_path, msgspec.structs.replace(row, exercises=[decided]))
    (_, _, section) = page.partition('<section class="exercise"')
    assert "Right as well." in section
    shown, folded, seen = section.partition("What the grader saw: ")
    assert folded
    assert "badge" not in shown
    assert "failed" in seen[:40]
    assert "to fix</span>" not in page
    points_of_checks = "<code>train_epoch</code> <span"
    assert points_of_checks not in page


def test_what_waits_for_a_check_that_a_person_decided_is_in_a_list(tmp_path: Path) -> None:
    """All points are missing, and nothing failed that could be fixed."""
    runs = check("05_five", "f", "runs", F, 0.0, override=Override(0.0))
    waiting = check("05_five", "f", "learns", B, 20.0, blocked_by="runs")
    part = exercise("05_five", "Five", runs, waiting)
    row = msgspec.structs.replace(
        submission(3, "ada", "no"), exercises=[part], score=0.0, max_score=20.0
    )
    _, (page,), _ = pages_of(tmp_path, row)
    _, _, first = page.partition("What to fix</h2>")
    assert "Not judged, and without points: checks wait for one that a person decided: " in first
    assert '<a href="#05_five"><code>f</code></a>.' in first
    assert root_causes(part.checks)[-1] == (
        "05 f: 1 check not judged, waiting for `runs`, which a person decided [-20 points]"
    )


def test_what_was_reviewed_leaves_the_list_and_is_counted(tmp_path: Path) -> None:
    to_review = submission(4, "ada", "no")
    assert to_review.review
    done = msgspec.structs.replace(to_review, reviewed=Reviewed("T", "2026-11-03T10:00:00Z"))
    page, *_ = pages_of(tmp_path, done, submission(3, "bo", "no"))
    assert "Nothing is left." in page
    assert "Reviewed by a person:" in page
    assert "Review these before grades go out." not in page
