"""What does a student read first? The job summary: points by exercise, what to do next, and what else is to be known.

It is Markdown, and what comes from the student is escaped, so that no name or message can draw another table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from graders.classroom.checkout import Graded
from graders.classroom.workflow_log import WHATS
from graders.export._entries import one_line
from graders.release.manifest import Change
from graders.results import CheckRow, ExerciseRow, Outcome, Status, SubmissionRow
from graders.results.spreadsheet import number
from graders.sandbox.layers import missing

SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$@&:])")
LONGEST: Final = 300
NEXT: Final = 10  # failed checks that are told in words
MOST: Final = 50  # changed files


def summary(graded: Graded, changes: Sequence[Change] | None, notes: Sequence[str] = ()) -> str:
    """The page; `changes` is None where there was no release to compare with."""
    return "\n".join(_lines(graded, changes, notes)) + "\n"


def escaped(text: str) -> str:
    """Text on one line that Markdown takes for nothing but text."""
    short = one_line(text)
    if len(short) > LONGEST:
        short = f"{short[: LONGEST - 1]}…"
    return SPECIAL.sub(r"\\\1", short).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def _lines(graded: Graded, changes: Sequence[Change] | None, notes: Sequence[str]) -> Iterator[str]:
    row = graded.row
    yield f"## {number(row.score)} of {number(row.max_score)} points"
    yield ""
    if row.status is not Status.GRADED:
        yield f"**{row.status.value}**: {escaped(row.reason)}"
        yield ""
    yield "| exercise | points | of | passed | failed | to do |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for exercise in row.exercises:
        yield _line(exercise)
    yield f"| **in all** | **{number(row.score)}** | **{number(row.max_score)}** | | | |"
    yield ""
    yield from _next(row)
    yield from _changed(changes)
    yield from _known(graded, notes)


def _line(exercise: ExerciseRow) -> str:
    counts = [sum(check.outcome in kinds for check in exercise.checks) for kinds in COLUMNS]
    name = f"{escaped(exercise.exercise)} {escaped(exercise.title)}".strip()
    cells = [number(exercise.score), number(exercise.max_score), *map(str, counts)]
    return f"| {name} | {' | '.join(cells)} |"


COLUMNS: Final = (
    (Outcome.PASSED, Outcome.ERROR),  # what we could not judge costs nothing
    (Outcome.FAILED, Outcome.BLOCKED),
    (Outcome.TODO,),
)


def _next(row: SubmissionRow) -> Iterator[str]:
    failed = [check for exercise in row.exercises for check in exercise.checks if check.outcome is Outcome.FAILED]
    if failed and row.status is not Status.UNREADABLE:
        yield "### What failed"
        yield ""
        yield from (_told(check) for check in failed[:NEXT])
        if len(failed) > NEXT:
            yield f"- … and {len(failed) - NEXT} more"
        yield ""
    ours = [check for exercise in row.exercises for check in exercise.checks if check.outcome is Outcome.ERROR]
    if ours:
        yield f"**{len(ours)} checks could not be judged, by the grader's fault.** They cost no points."
        yield ""


def _told(check: CheckRow) -> str:
    cell = f"code cell {check.cell}, " if check.cell else ""
    place = f" ({escaped(check.file)}, {cell}line {check.line})" if check.file and check.line else ""
    return f"- **{escaped(check.function)}**{place}: {escaped(check.message)}"


def _changed(changes: Sequence[Change] | None) -> Iterator[str]:
    if not changes:
        return
    yield "### Files that are not as they were released"
    yield ""
    for change in changes[:MOST]:
        yield f"- {escaped(change.path)} {WHATS[change.what]}"
    if len(changes) > MOST:
        yield f"- … and {len(changes) - MOST} more"
    yield ""
    yield "Points do not depend on them: the grader is the released one, and runs outside of this repository."
    yield ""


def _known(graded: Graded, notes: Sequence[str]) -> Iterator[str]:
    results, row = graded.results, graded.row
    said = [*notes, *row.notes]
    if graded.seed is not None:
        said.append(f"The same numbers at home: pytest exercises/{results.day} --seed {graded.seed}")
    said.append(f"gpudojo {results.gpudojo}, torch {results.torch}, bench {results.bench}")
    lacking = missing(results.layers)
    if lacking:
        said.append(f"This machine lacks layers of isolation: {'; '.join(lacking)}")
    yield from (f"- {escaped(sentence)}" for sentence in said[:MOST])
