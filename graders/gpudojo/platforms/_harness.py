"""Grades one submission where a platform runs it, and leaves what the platform reads.

`python -m gpudojo.platforms._harness PLATFORM FOLDER DAY SECONDS`; the exit status is 1 where the grader itself failed.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpudojo.model.errors import DojoError
from gpudojo.model.results import PLACES, Grade, SubmissionRow
from gpudojo.platforms import Options, exporter, parts_of
from gpudojo.platforms._checkout import Graded, JudgedBy, graded
from gpudojo.platforms._entries import one_line, save, save_json
from gpudojo.sandbox.layers import missing

# The smallest container has 768 MB, of which torch and the grader take 340.
MEMORY: Final = 256 << 20


def _no_result(target: Path, why: str, day: str) -> None:
    """Without a results.json, Gradescope says that the autograder failed, and records no score."""
    (target / "results.json").unlink(missing_ok=True)


def _not_gradable(target: Path, why: str, day: str) -> None:
    """PrairieLearn gives and takes no points for what is not gradable, and does not count it as an attempt."""
    said = f"The grader could not run: {why}. This is not your fault; please tell your instructor."
    save_json(target / "results.json", {"gradable": False, "format_errors": [said]})


def _no_scores(target: Path, why: str, day: str) -> None:
    """Autolab leaves a problem without a score ungraded."""
    said = f"The grader could not run: {why}. This is not your fault; please tell your instructor."
    none = dict.fromkeys(each.exercise for each in parts_of(day))
    save(target / "feedback.txt", f"{said}\n{msgspec.json.encode({'scores': none}).decode()}\n")


class Place(NamedTuple):
    """Where a platform puts a submission and the evidence, and what it gets where the grader fails."""

    submission: str
    evidence: str
    failure: Callable[[Path, str, str], None]


PLACES_THERE: Final = {
    "gradescope": Place("submission", "source/evidence", _no_result),
    "prairielearn": Place("student", "tests/evidence", _not_gradable),
    "autolab": Place("submission", "evidence", _no_scores),
}


def main(platform: str, root: Path, day: str, seconds: float) -> int:
    place, target = PLACES_THERE[platform], root / "results"
    target.mkdir(parents=True, exist_ok=True)
    try:
        measure = JudgedBy(evidence=root / place.evidence)
        found = graded(root / place.submission, day, measure, seconds=seconds, memory=MEMORY)
        row = published(found.row, worth(root / "submission_metadata.json"))
        exporter(platform)(found.results, [row], target, Options(submission=row.submission, exercises=parts_of(day)))
        _log(found)
        return 0
    except (DojoError, OSError) as error:
        why = str(error)
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}, see the log"
    print(f"The grader could not run: {one_line(why)}. No score was recorded.", file=sys.stderr)
    place.failure(target, one_line(why), day)
    return 1


class _Assignment(msgspec.Struct):
    total_points: float


class _Metadata(msgspec.Struct):
    assignment: _Assignment


def worth(metadata: Path) -> float | None:
    """The assignment's points on Gradescope; None where they cannot be read or are not positive."""
    try:
        found = msgspec.json.decode(metadata.read_bytes(), type=_Metadata, strict=False).assignment.total_points
    except (OSError, msgspec.MsgspecError):
        return None
    return found if 0 < found < math.inf else None


def published(row: SubmissionRow, points: float | None) -> SubmissionRow:
    """The row, with its score scaled to what the assignment is worth there."""
    if points is None or not row.max_score:
        return row
    return msgspec.structs.replace(row, grade=Grade(round(row.score * points / row.max_score, PLACES), points))


def _log(found: Graded) -> None:
    """Print what only the instructor should see: the scripts keep it from students."""
    print(f"{one_line(found.row.submission)}: {found.row.score:g} of {found.row.max_score:g} points")
    lacking = missing(found.results.layers)
    print(f"Isolation layers missing in this container: {'; '.join(lacking) or 'none'}.")
    for sentence in (*found.row.notes, *found.row.needs_human):
        print(f"- {one_line(sentence)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
