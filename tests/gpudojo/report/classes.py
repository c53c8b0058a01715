"""Made-up classes: sixty submissions of every kind, hostile ones among them, and a thousand plain
ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from gpudojo.classes.records import FunctionRecord, Record
from gpudojo.classes.store import Store
from gpudojo.model.evidence import CallStatus as Saw
from gpudojo.model.evidence import Evidence, Observation
from gpudojo.model.results import (
    CheckRow,
    ClassResults,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    sum_points,
)
from gpudojo.model.results_file import write
from virtual_cuda.ledger.timeline import Timeline, TimelineEvent

P = Outcome.PASSED
F = Outcome.FAILED
T = Outcome.TODO
B = Outcome.BLOCKED
E = Outcome.ERROR
LOOP = "04_modifying_training_loop_gpu"
PIXELS = "06_vectorizing_pixel_loops"
MEMORY = "09_managing_memory"
REFERENCE = "r" * 40
# Each would do something if it were taken for anything but text.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><script>alert(3)</script>",
    "javascript:alert(4)",
    "invoice\u202egnp.exe",
    "</title><svg onload=alert(5)>",
    "' onmouseover='alert(6)",
    "{{ 7 * 7 }}{% include 'base.html' %}",
    "../../outside",
    "=cmd|' /C calc'!A0",
    "<!-- begun",
    "]]>&lt;b&gt;",
    "Ünï 🦄",
)
WAITS = 64


def check(
    exercise: str, function: str, name: str, outcome: Outcome, worth: float, **more: object
) -> CheckRow:
    points = worth if outcome in (P, E) else 0.0
    id_ = f"{exercise}::{function}::{name}"
    return CheckRow(
        id_, function, outcome, points, worth, claim=f"A claim called `{name}`.", **more
    )  # type: ignore[arg-type]


def exercise(stem: str, title: str, *checks: CheckRow) -> ExerciseRow:
    return ExerciseRow(
        stem,
        title,
        sum_points(c.points for c in checks),
        sum_points(c.max_points for c in checks),
        list(checks),
    )


def submission(number: int, name: str, text: str, record: str = "") -> SubmissionRow:
    """One of a class; `text` is what the student's code had to say, wherever it could say it."""
    failed = {
        "message": text,
        "happened": f"{text}\nand on a second line {text}",
        "expected": text,
        "why": "a wait in a hot loop: Reading a value makes the CPU wait.",
        "hint": "Keep the sum on the device.\nRead it once.",
        "line": 10,
        "file": f"{name}.py",
        "misconception": "sync-in-hot-loop" if number % 3 else "missing-zero-grad",
    }
    outcomes = [(P, F)[number % 2], (P, T, F)[number % 3], (P, B)[number % 2]]
    extras = {
        F: failed,
        T: {"message": "to do."},
        B: {"message": "blocked.", "blocked_by": "runs"},
        P: {},
        E: {},
    }
    loop = [
        check(LOOP, "train_epoch", called, outcome, 4.0, **extras[outcome])
        for called, outcome in zip(("runs", "learns", "waits_once"), outcomes, strict=True)
    ]
    status = SubmissionStatus.CRASHED if number % 20 == 7 else SubmissionStatus.GRADED
    exercises = [
        exercise(LOOP, "A training loop", *loop),
        exercise(PIXELS, "Pixels all at once", check(PIXELS, "grayscale", "fast", P, 6.0)),
        exercise(MEMORY, "Memory", check(MEMORY, "checkpointed", "saves", E, 2.0, message="ours")),
    ]
    return SubmissionRow(
        name,
        status,
        sum_points(e.score for e in exercises),
        20.0,
        exercises,
        reason=f"crashed: {text}" if status is SubmissionStatus.CRASHED else "",
        student=f"Student Surname{number}",
        identifier=str(770000 + number),
        needs_human=[f"look: {text}"] if number % 15 == 4 else [],
        seconds=0.5 + number / 40,
        peak_bytes=(200 + number) << 20,
        output=f"printed {text}",
        public_scenarios=True,
        record=record,
    )


def timeline(waits: int, text: str, scenario: str = "epochs") -> Timeline:
    """A loop that copies a batch, computes, and reads its loss back, so often."""
    events: list[TimelineEvent] = []

    def add(
        kind: str,
        size: int = 0,
        line: int | None = None,
        grad: bool = False,
        live: int = 0,
        name: str = "",
    ) -> None:
        events.append(
            TimelineEvent(kind, len(events), size, line, grad, len(events) % 2 > 0, live, name)
        )  # type: ignore[arg-type]

    for number in range(max(waits, 1)):
        add("to device", 4096 << number % 8, 7, live=4096, name=text[:50])
        for _ in range(3):
            add("op", 512, 8, True, 4096 + 512 * number % 9000, text[:50])
        add("forward", 0, 8, True, 5000, text[:50])
        add("backward", 0, 9, live=6000)
        add("step", 0, 9, live=4096, name="SGD")
        if waits:
            add("to host", 4, 10, live=4096, name="cuda:0 to cpu")
            add("sync", 0, 10, live=4096, name="item")
    counts: dict[str, int] = {}
    for event in events:
        counts[event.kind] = counts.get(event.kind, 0) + 1
    lines = {
        7: "x = x.to(device)",
        8: text[:90],
        9: "loss.backward()",
        10: f"total += loss.item()  # {text}"[:99],
    }
    peak = max(event.live for event in events)
    per_line = {10: waits} if waits else {}
    return Timeline(
        "train_epoch", scenario[:80], "cuda:0", events, peak, 0, lines, counts, per_line, place=1
    )  # type: ignore[arg-type]


def curve(count: int, peak: int) -> dict[str, object]:
    """Up in the forward pass, down in the backward one."""
    up = [peak * n // count for n in range(1, count + 1)]
    return {"bytes": [*up, *reversed(up)], "backward": count, "peak": peak}


def record(
    waits: int, text: str, scenario: str = "epochs", reference: bool = False, curved: bool = True
) -> Record:
    """What a run leaves: a timeline, three times, two curves of memory and their peaks."""

    def seen(
        stem: str, function: str, facts: dict[str, object], drawn: Timeline | None = None
    ) -> FunctionRecord:
        evidence = Evidence(
            stem, function, "virtual", 1, {"probe": Observation(Saw.RETURNED, facts)}
        )
        every = [drawn, msgspec.structs.replace(drawn, place=0)] if drawn is not None else []
        return (
            FunctionRecord(evidence, 0.1, timelines=every)
            if reference
            else FunctionRecord(evidence, 0.1, timeline=drawn)
        )

    curves = {"stored_curve": curve(16, 224 << 10)} if curved else {}
    mine = {"curve": curve(20, 137 << 10)} if curved else {}
    times = {"speed": {"loop": 0.02, "student": 0.001}}
    peaks = {"a list": {"peak": 137 << 10, **mine}, "stored": 224 << 10, **curves}
    made = Record("digest")
    made.add_function(
        f"{LOOP}::train_epoch", seen(LOOP, "train_epoch", {}, timeline(waits, text, scenario))
    )
    made.add_function(f"{PIXELS}::grayscale", seen(PIXELS, "grayscale", times))
    made.add_function(f"{MEMORY}::checkpointed", seen(MEMORY, "checkpointed", peaks))
    return made


def header(**more: object) -> ClassResults:
    return ClassResults("day8", "virtual", "2.13.0", "0.1.0", 20.0, **more)  # type: ignore[arg-type]


def sixty(folder: Path) -> Path:
    """A class of sixty with the records of their runs.

    The first ones are hostile in everything they say.
    """
    store = Store(folder)
    rows = []
    for number in range(60):
        hostile = number < len(HOSTILE)
        name = HOSTILE[number] if hostile else f"student-{number:02}"
        text = (
            HOSTILE[number] if hostile else f"line 10 waited {WAITS} times; by student-{number:02}"
        )
        key = f"{number:040x}"
        rows.append(submission(number, name, text, key))
        # One whose call is none of the reference's, and one whose record is older than curves.
        scenario = text if hostile else "another" if number == 27 else "epochs"
        store.keep_record(
            key, record(WAITS if number % 2 else 0, text, scenario, curved=number != 27)
        )
    store.keep_record(REFERENCE, record(1, "the secret solution", reference=True))
    write(folder / "results.json", header(reference=REFERENCE), rows)
    return folder / "results.json"


WORDY = "it did something else than what was asked of it, and here is how " * 2


def thousand(folder: Path) -> Path:
    """A class of a thousand with as many checks each as a real day has."""

    def rows() -> Iterator[SubmissionRow]:
        for number in range(1000):
            exercises = [
                exercise(
                    f"{place:02}_exercise",
                    f"Exercise {place}",
                    *(
                        check(
                            f"{place:02}_exercise", f"function_{which % 3}", f"check_{which}",
                            F if (number * 7 + place * 3 + which) % 5 == 0 else P, 1.0,
                            happened=WORDY,
                            misconception=f"mistake-{place}-{which % 4}", line=7,
                        )
                        for which in range(10)
                    ),
                )
                for place in range(1, 13)
            ]  # fmt: skip
            score = sum_points(e.score for e in exercises)
            yield SubmissionRow(
                f"student-{number:04}", SubmissionStatus.GRADED, score, 120.0, exercises,
                seconds=1 + number % 17 / 10, peak_bytes=(250 + number % 90) << 20,
                needs_human=["odd"] if number % 100 == 3 else [],
            )  # fmt: skip

    head = ClassResults("day8", "virtual", "2.13.0", "0.1.0", 120.0)
    write(folder / "results.json", head, rows())
    return folder / "results.json"
