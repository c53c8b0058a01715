"""Statistics: `checks.csv`, a line per check: attempted, absent, failed, difficulty,
discrimination.

Absent are those who did not hand in the function, or only the stub. The difficulty is the share
that passed of those who attempted it, the discrimination the point-biserial correlation of
passing with the score in everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpudojo.classes.check_statistics import CheckStatistics, ClassStatistics
from gpudojo.model.results import ClassResults, Outcome, SubmissionRow
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options
from gpudojo.platforms._files import BYTE_ORDER_MARK, save_csv
from gpudojo.platforms._texts import one_line

OF_CLASS: Final = True
HEADINGS: Final = (
    "exercise",
    "function",
    "check",
    "claim",
    "max_points",
    "attempted",
    "absent",
    "passed",
    "failed",
    "blocked",
    "errors",
    "difficulty",
    "discrimination",
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `checks.csv`, and return it. Raises OSError.

    How many submissions are not counted is told by `options.say`.
    """
    statistics = ClassStatistics(rows)
    if statistics.unread == 1:
        options.say("1 submission could not be read and is not counted.")
    elif statistics.unread:
        options.say(f"{statistics.unread} submissions could not be read and are not counted.")
    if statistics.not_graded == 1:
        options.say("1 submission was not graded and is not counted.")
    elif statistics.not_graded:
        options.say(f"{statistics.not_graded} submissions were not graded and are not counted.")
    lines = [_cells_of(check) for check in statistics.checks.values()]
    return [save_csv(target / "checks.csv", [HEADINGS, *lines], mark=BYTE_ORDER_MARK)]


def _cells_of(check: CheckStatistics) -> list[str]:
    """Return the cells of a check's line, as HEADINGS names them."""
    exercise, _, rest = check.id.partition("::")
    function, _, name = rest.partition("::")
    return [
        spreadsheet_safe(one_line(exercise)),
        spreadsheet_safe(one_line(function)),
        spreadsheet_safe(one_line(name)),
        spreadsheet_safe(one_line(check.claim)),
        format_points(check.max_points),
        str(check.attempted),
        str(check.absent),
        str(check.outcomes[Outcome.PASSED]),
        str(check.outcomes[Outcome.FAILED]),
        str(check.outcomes[Outcome.BLOCKED]),
        str(check.outcomes[Outcome.ERROR]),
        _share_in_words(check.difficulty),
        _share_in_words(check.discrimination),
    ]


def _share_in_words(value: float | None) -> str:
    """Return a share with three decimal places; empty where there is none."""
    if value is None:
        return ""
    return f"{value:.3f}"
