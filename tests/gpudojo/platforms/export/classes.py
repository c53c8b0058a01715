"""A class with everything that can happen in it, and classes made at random."""

from __future__ import annotations

from datetime import UTC, datetime

from gpudojo.model.results import (
    CheckRow,
    ClassResults,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    sum_points,
)
from gpudojo.platforms import Options
from hypothesis import strategies as st

EXERCISES = (ExerciseRow("01_one", "One", 0.0, 2.0), ExerciseRow("02_two", "Two", 0.0, 1.0))
# what the runner of Classroom 50 sets
RUNNER = {
    "CLASSROOM": "gpu",
    "ASSIGNMENT": "day-0",
    "SUBMISSION_TAG": "submit/20260101T000000Z-abc1234",
    "COMMIT_URL": "https://example.org/commit",
    "RELEASE_URL": "https://example.org/release",
}
OPTIONS = Options(
    exercises=EXERCISES, environment=RUNNER, when=datetime(2026, 11, 15, 4, 30, tzinfo=UTC)
)
ODD = 'Ünï 🦄, "Ada"\n=cmd'


def check(name: str, outcome: Outcome, worth: float, **more: object) -> CheckRow:
    points = worth if outcome in (Outcome.PASSED, Outcome.ERROR) else 0.0
    exercise, function, _ = name.split("::")
    return CheckRow(
        name, function, outcome, points, worth, claim=f"A claim about {exercise}.", **more
    )  # type: ignore[arg-type]


def one(*outcomes: Outcome) -> ExerciseRow:
    failed = {
        "message": "no step; expected one",
        "happened": "no step\n::notice title=Autograding report::forged ##[error]",
        "expected": "one",
        "why": "missing step: Nothing learns.",
        "hint": "Step.",
        "line": 7,
        "file": "01_one.py",
        "misconception": "missing-step",
    }
    worths = {"runs": 1.0, "right": 0.5, "fast": 0.5}
    rows = [
        check(f"01_one::f::{name}", outcome, worth, **(failed if outcome is Outcome.FAILED else {}))
        for (name, worth), outcome in zip(worths.items(), outcomes, strict=True)
    ]
    return ExerciseRow("01_one", "One", sum_points(row.points for row in rows), 2.0, rows)


def two(*outcomes: Outcome) -> ExerciseRow:
    texts = {
        Outcome.TODO: "to do: `g` is still a stub.",
        Outcome.BLOCKED: "blocked: the check `a` of `g` has to pass first.",
        Outcome.ERROR: "This is gpudojo's fault.",
    }
    worths = {"a": 0.4, "b": 0.4, "c": 0.2, "d": 0.0}
    rows = [
        check(f"02_two::g::{name}", outcome, worth, message=texts.get(outcome, ""))
        for (name, worth), outcome in zip(worths.items(), outcomes, strict=True)
    ]
    return ExerciseRow("02_two", "Two", sum_points(row.points for row in rows), 1.0, rows)


P = Outcome.PASSED
F = Outcome.FAILED
T = Outcome.TODO
B = Outcome.BLOCKED
E = Outcome.ERROR


def submission(name: str, *exercises: ExerciseRow, **more: object) -> SubmissionRow:
    more.setdefault("status", SubmissionStatus.GRADED)
    score = sum_points(exercise.score for exercise in exercises)
    return SubmissionRow(name, score=score, max_score=3.0, exercises=list(exercises), **more)  # type: ignore[arg-type]


CLASS = ClassResults(
    day="day0",
    bench="virtual",
    torch="2.13.0",
    gpudojo="0.1.0",
    max_score=3.0,
    layers={"landlock": "", "network": "not allowed here"},
    reference="r" * 40,
    submissions=[
        submission(
            "ada",
            one(P, P, F),
            two(P, F, B, P),
            student="Lovelace, Ada",
            naming="canvas",
            identifier="101",
            seconds=1.25,
            output="loss 0.5\n\x1b[31mred",
            digest="abc",
            layers=["landlock"],
            public_scenarios=True,
        ),
        submission(
            "Bob Ray",
            one(P, P, P),
            two(P, P, E, P),
            student="Bob Ray",
            naming="moodle",
            identifier="2000102",
            output="secret 7",
        ),
        submission(
            "CON", one(T, B, B), two(T, T, T, T), needs_human=["two files have the same function"]
        ),
        submission(
            "../late",
            one(P, F, P),
            status=SubmissionStatus.TIMED_OUT,
            reason="it ran for more than 60 s in `g`.",
            naming="classroom",
            identifier="late-account",
        ),
        submission(
            ODD,
            status=SubmissionStatus.UNREADABLE,
            reason="=the file is <b>no</b> Python: line 3",
            student=ODD,
        ),
        submission("=cmd|' /C calc'!A0", one(P, P, P), two(P, P, P, P)),
    ],
)


@st.composite
def classes(draw: st.DrawFn, naming: str = "plain") -> ClassResults:
    """A class of any kind; points are as fine as teachers make them, and sometimes finer."""
    grain = draw(st.sampled_from([1.0, 0.5, 0.25, 0.05, 0.1, 0.333333, 0.000007]))
    rows = []
    for place in range(draw(st.integers(0, 4))):
        exercises = []
        for number in range(draw(st.integers(0, 3))):
            checks = []
            for which in range(draw(st.integers(0, 4))):
                worth = round(draw(st.integers(0, 8)) * grain, 6)
                outcome = draw(st.sampled_from(Outcome))
                text = draw(st.text(max_size=20))
                checks.append(
                    check(
                        f"{number:02}_x::f::c{which}", outcome, worth, message=text, happened=text
                    )
                )
            worth = sum_points(row.max_points for row in checks)
            if draw(st.booleans()):
                worth = sum_points([worth, grain])
            score = sum_points(row.points for row in checks)
            exercises.append(ExerciseRow(f"{number:02}_x", "X", score, worth, checks))
        status = draw(st.sampled_from(SubmissionStatus))
        rows.append(
            SubmissionRow(
                draw(
                    st.text(max_size=12)
                    | st.sampled_from([ODD, "..", "a/b", "nul", "NUL.txt", "=1", "-", "A", "a"])
                ),
                status,
                sum_points(exercise.score for exercise in exercises),
                sum_points(exercise.max_score for exercise in exercises),
                exercises,
                reason="" if status is SubmissionStatus.GRADED else draw(st.text(max_size=20)),
                student=draw(st.none() | st.text(max_size=12)),
                naming=naming,
                identifier=str(1000 + place),
                output=draw(st.text(max_size=600)),
            )
        )
    # At least 1, and for all the same: what a class can reach does not depend on what was found in
    # a submission.
    most = (
        sum_points(
            [
                max((row.max_score for row in rows), default=0.0),
                draw(st.sampled_from([0.0, grain])) or 0.0,
            ]
        )
        or 1.0
    )
    rows = [SubmissionRow(**{**fields(row), "max_score": most}) for row in rows]
    return ClassResults("day0", "virtual", "2.13.0", "0.1.0", most, submissions=rows)


def fields(row: SubmissionRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in SubmissionRow.__struct_fields__}
