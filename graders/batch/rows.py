"""What is a student's row in the results? What the content comes to, under the name it was handed in by."""

from __future__ import annotations

from collections.abc import Sequence

from graders.batch.judging import Judged
from graders.intake import Entry
from graders.results import SubmissionRow, total


def row_of(entry: Entry, found: Judged, record: str, notes: Sequence[str] = ()) -> SubmissionRow:
    """`notes` are what is worth knowing of the entry itself, before what its content has to say."""
    return SubmissionRow(
        submission=entry.name,
        status=found.status,
        score=total(row.score for row in found.exercises),
        max_score=total(row.max_score for row in found.exercises),
        exercises=found.exercises,
        reason=found.reason,
        student=entry.student,
        identifier=entry.identifier,
        naming=str(entry.naming),
        definitions=found.definitions,
        notes=[*notes, *found.notes],
        needs_human=found.needs_human,
        seconds=found.seconds,
        peak_bytes=found.peak_bytes,
        digest=found.digest,
        output=found.output,
        layers=found.layers,
        record=record,
    )
