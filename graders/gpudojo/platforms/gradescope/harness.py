"""Grades a submission on Gradescope and writes results.json."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any, Final

from gpudojo.model.errors import DojoError
from gpudojo.platforms import Options, exporter, parts_of
from gpudojo.platforms._checkout import Graded, JudgedBy, graded
from gpudojo.platforms._entries import one_line, save_json
from gpudojo.sandbox.layers import missing

# The smallest container has 768 MB, of which torch and the grader take 340.
MEMORY: Final = 256 << 20


def main(root: Path, day: str, seconds: float) -> None:
    target = root / "results"
    target.mkdir(parents=True, exist_ok=True)
    try:
        measure = JudgedBy(evidence=root / "source" / "evidence")
        found = graded(root / "submission", day, measure, seconds=seconds, memory=MEMORY)
        options = Options(submission=found.row.submission, exercises=parts_of(day))
        exporter("gradescope")(found.results, found.results.submissions, target, options)
        _log(found)
    except (DojoError, OSError) as error:
        fault(target, str(error))
    except Exception as error:
        traceback.print_exc()
        fault(target, f"{type(error).__name__}, see the log")


def fault(target: Path, why: str) -> None:
    """Write a result without tests that says why: a fault of the grader must not look like a grade."""
    said = f"The grader could not run: {why}. This is not your fault; please tell your teacher."
    result: dict[str, Any] = {
        "score": 0,
        "output": said,
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
    }
    save_json(target / "results.json", result)
    print(said, file=sys.stderr)


def _log(found: Graded) -> None:
    """Print what only the instructor sees: Gradescope hides standard output from students."""
    print(f"{one_line(found.row.submission)}: {found.row.score:g} of {found.row.max_score:g} points")
    lacking = missing(found.results.layers)
    print(f"Isolation layers missing in this container: {'; '.join(lacking) or 'none'}.")
    for sentence in (*found.row.notes, *found.row.needs_human):
        print(f"- {one_line(sentence)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
