"""Statistics: `checks.csv`, a line per check: attempted, absent, failed, difficulty, discrimination.

Absent are those who did not hand in the function, or only the stub. The difficulty is the share that passed of those
who attempted it, the discrimination the point-biserial correlation of passing with the score in everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpudojo.classes.check_statistics import CheckStatistics, ClassStatistics
from gpudojo.model.results import ClassResults, Outcome, SubmissionRow
from gpudojo.model.results_file import format_points, spreadsheet_safe
from gpudojo.platforms import Options
from gpudojo.platforms._entries import one_line, save_csv

OF_CLASS: Final = True
HEADINGS: Final = (
    "exercise,function,check,claim,max_points,attempted,absent,passed,failed,blocked,errors,difficulty,discrimination"
).split(",")


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    statistics = ClassStatistics(rows)
    lines = [_line(check) for check in statistics.checks.values()]
    if statistics.unread:
        many = (
            "submissions could not be read and are"
            if statistics.unread > 1
            else "submission could not be read and is"
        )
        options.say(f"{statistics.unread} {many} not counted.")
    return [save_csv(target / "checks.csv", [HEADINGS, *lines])]


def _line(check: CheckStatistics) -> list[str]:
    exercise, _, rest = check.id.partition("::")
    function, _, name = rest.partition("::")
    counts = [
        check.outcomes[each]
        for each in (Outcome.PASSED, Outcome.FAILED, Outcome.BLOCKED, Outcome.ERROR)
    ]
    shares = [
        "" if each is None else f"{each:.3f}" for each in (check.difficulty, check.discrimination)
    ]
    texts = [spreadsheet_safe(one_line(text)) for text in (exercise, function, name, check.claim)]
    return [
        *texts,
        format_points(check.max_points),
        *map(str, (check.attempted, check.absent, *counts)),
        *shares,
    ]
