"""Grades a submission on Gradescope and writes results.json."""

from __future__ import annotations

import math
import sys
import traceback
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.model.errors import DojoError
from gpudojo.model.results import PLACES, Grade, SubmissionRow
from gpudojo.platforms import Options, exporter, parts_of
from gpudojo.platforms._checkout import Graded, JudgedBy, graded
from gpudojo.platforms._entries import one_line
from gpudojo.sandbox.layers import missing

# The smallest container has 768 MB, of which torch and the grader take 340.
MEMORY: Final = 256 << 20


def main(root: Path, day: str, seconds: float) -> int:
    """The exit status: 1, without results, where the grader itself failed."""
    target = root / "results"
    target.mkdir(parents=True, exist_ok=True)
    try:
        measure = JudgedBy(evidence=root / "source" / "evidence")
        found = graded(root / "submission", day, measure, seconds=seconds, memory=MEMORY)
        row = published(found.row, worth(root / "submission_metadata.json"))
        options = Options(submission=row.submission, exercises=parts_of(day))
        exporter("gradescope")(found.results, [row], target, options)
        _log(found)
    except (DojoError, OSError) as error:
        return _failed(target, str(error))
    except Exception as error:
        traceback.print_exc()
        return _failed(target, f"{type(error).__name__}, see the log")
    return 0


def _failed(target: Path, why: str) -> int:
    """Without a results.json, Gradescope says that the autograder failed, and records no score."""
    (target / "results.json").unlink(missing_ok=True)
    print(f"The grader could not run: {why}. No score was recorded; run it again once this is mended.", file=sys.stderr)
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
    """Print what only the instructor sees: Gradescope hides standard output from students."""
    print(f"{one_line(found.row.submission)}: {found.row.score:g} of {found.row.max_score:g} points")
    lacking = missing(found.results.layers)
    print(f"Isolation layers missing in this container: {'; '.join(lacking) or 'none'}.")
    for sentence in (*found.row.notes, *found.row.needs_human):
        print(f"- {one_line(sentence)}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
