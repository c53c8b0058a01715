"""Grades a submission on Gradescope and writes results.json."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any, Final

from gpudojo.model.catalogue import day as exercises_of
from gpudojo.model.errors import DojoError
from gpudojo.platforms import Options, Part, exporter
from gpudojo.platforms._checkout import Graded, Measure, Terms, graded
from gpudojo.platforms._entries import save_json
from gpudojo.sandbox.isolation import missing

# A container there may have 768 MB in all. Torch and the grader take 340 of it.
MEMORY: Final = 256 << 20


def main(root: Path, day: str, seconds: float) -> None:
    target = root / "results"
    target.mkdir(parents=True, exist_ok=True)
    try:
        measure = Measure(evidence=root / "source" / "evidence")
        found = graded(root / "submission", Terms(day, measure, seconds, MEMORY))
        parts = tuple(Part(each.stem, each.title, float(each.points)) for each in exercises_of(day))
        exporter("gradescope")(found.results, target, Options(submission=found.row.submission, exercises=parts))
        _teller(found)
    except (DojoError, OSError) as error:
        fault(target, str(error))
    except Exception as error:
        traceback.print_exc()
        fault(target, f"it met with a {type(error).__name__}")


def fault(target: Path, why: str) -> None:
    """Results that say that there are none: our fault is no grade of a student's work."""
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


def _teller(found: Graded) -> None:
    """What only the instructor sees: Gradescope shows standard output to nobody else."""
    print(f"{found.row.submission}: {found.row.score:g} of {found.row.max_score:g} points")
    lacking = missing(found.results.layers)
    print(f"Layers of isolation that this container lacks: {'; '.join(lacking) or 'none'}.")
    for sentence in (*found.row.notes, *found.row.needs_human):
        print(f"- {' '.join(sentence.split())}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
