"""What the watch found: how a submission ends, and in which order somebody reads it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from gpudojo.classes.check_statistics import ClassStatistics
from gpudojo.classes.class_grading import GradedClass
from gpudojo.classes.class_summary import print_summary
from gpudojo.classes.class_tally import MOST_REVIEWS, ClassTally
from gpudojo.classes.judging import judge_record
from gpudojo.classes.records import FunctionRecord, Incident, IncidentKind, Record
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import CallStatus, Evidence, Observation
from gpudojo.model.results import Outcome, SubmissionRow, SubmissionStatus
from gpudojo.sandbox.protocol import STRANGER
from msgspec.structs import replace
from rich.console import Console

FIRST = "01_checking_device::select_device"
FORGED_FRAME = Incident(IncidentKind.FORGED, "", STRANGER)
FORGED = Incident(IncidentKind.FORGED, FIRST, "a.py line 3 replaced gpudojo.x")
UNMEASURED = Incident(IncidentKind.UNMEASURED, FIRST, "a.py line 4 replaced torch.equal")
REPORTED = Incident(IncidentKind.REPORTED, FIRST, "a.py line 5 asked for all living objects")
CRASHED = Incident(IncidentKind.CRASHED, FIRST, "it ended its own process (exit code 3)")


def judged(*incidents: Incident) -> SubmissionRow:
    """The row of a submission that came no further than these incidents."""
    exercises = exercises_of("day8")[:1]
    record = Record("digest", incidents=list(incidents))
    only = frozenset({"select_device"})
    probes = exercises[0].functions[0].probes
    seen = {probe.name: Observation(CallStatus.RETURNED) for probe in probes}
    reference = FunctionRecord(Evidence("01_checking_device", "select_device", "", 0, seen), 0.1)
    row = judge_record(record, {FIRST: reference}, exercises, only)
    return replace(row, submission="ada")


def summary_of(*rows: SubmissionRow) -> str:
    tally = ClassTally()
    for row in rows:
        tally.count_row(row)
    graded = GradedClass(
        Path("results.json"), len(rows), len(rows), 1.0, {}, tally, [], [], [], [], []
    )
    console = Console(file=io.StringIO(), width=200)
    print_summary(console, graded)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("more", [(), (CRASHED,), (UNMEASURED, FORGED)])
def test_a_forged_message_leaves_the_submission_not_graded(more: tuple[Incident, ...]) -> None:
    row = judged(*more, FORGED_FRAME)
    assert row.status is SubmissionStatus.NOT_GRADED
    assert row.score == 0
    assert not row.was_judged
    assert row.review[0].startswith("forged: ")
    assert f"forged: {STRANGER}" in row.review


def test_the_student_reads_one_sentence_that_says_what_to_do() -> None:
    row = judged(FORGED_FRAME)
    assert row.reason == (
        f"not graded: {STRANGER}; remove what writes to pipes or files that your code did not open"
    )
    for check in row.exercises[0].checks:
        assert check.outcome is Outcome.FAILED
        assert (check.message, check.hint) == ("not graded", "")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            FORGED,
            "it does not count: a.py line 3 replaced gpudojo.x; expected a function that leaves "
            "the grader alone. Remove what changes it.",
        ),
        (
            UNMEASURED,
            "it could not be measured: a.py line 4 replaced torch.equal; expected names of torch "
            "and Python as they are. Put the wrapper under `if __name__ == '__main__':`.",
        ),
    ],
)
def test_what_a_function_changed_costs_this_function(found: Incident, message: str) -> None:
    row = judged(found)
    assert row.status is SubmissionStatus.GRADED
    assert row.reason == ""
    assert {check.message for check in row.exercises[0].checks} == {message}
    assert {check.hint for check in row.exercises[0].checks} == {""}


def test_the_most_serious_finding_is_told_of_a_function() -> None:
    row = judged(UNMEASURED, FORGED)
    assert {check.happened for check in row.exercises[0].checks} == {
        "it does not count: a.py line 3 replaced gpudojo.x"
    }


def test_reasons_are_ordered_by_their_class() -> None:
    found = judged(CRASHED, REPORTED, UNMEASURED, FORGED).review
    assert [reason.partition(":")[0] for reason in found] == [
        "forged",
        "could not be measured",
        "reported",
        "crashed in `select_device`",
    ]


def test_students_to_review_are_ordered_by_their_first_reason() -> None:
    plain = SubmissionRow("z", SubmissionStatus.GRADED, 0, 1, needs_human=["two files"])
    rows = [plain] * MOST_REVIEWS + [judged(REPORTED), judged(UNMEASURED), judged(FORGED_FRAME)]
    lines = summary_of(*rows).partition("Needs review\n")[2].splitlines()
    assert [line.strip() for line in lines[:4]] == [
        f"ada: forged: {STRANGER}",
        "ada: could not be measured: a.py line 4 replaced torch.equal",
        "ada: reported: a.py line 5 asked for all living objects",
        "z: two files",
    ]
    assert lines[MOST_REVIEWS].strip() == "… and 3 more: see dojo review --out ."


def test_what_was_not_graded_is_no_zero_in_a_mean() -> None:
    half = SubmissionRow("bo", SubmissionStatus.GRADED, 50.0, 100.0)
    said = summary_of(half, judged(FORGED_FRAME))
    assert "2 students: 1 graded, 1 not graded." in said
    assert "Scores in percent: mean 50.0" in said
    assert "Most-failed checks" not in said


def test_checks_of_what_was_not_graded_are_not_counted() -> None:
    statistics = ClassStatistics([judged(FORGED_FRAME)])
    assert statistics.checks == {}
    assert (statistics.not_graded, statistics.unread) == (1, 0)
