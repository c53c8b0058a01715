"""How far is the student? Points per exercise, and one command for what to do next."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from graders.plugin.collection import RESULT, CheckItem, ExerciseFile
from graders.results import Outcome


def write_summary(reporter: pytest.TerminalReporter, items: Iterable[pytest.Item]) -> None:
    rows: dict[str, tuple[float, float, str]] = {}
    after = None
    for item in items:
        file = item.getparent(ExerciseFile)
        if not isinstance(item, CheckItem) or file is None or RESULT not in item.stash:
            continue
        result = item.stash[RESULT]
        got, most, _ = rows.get(result.exercise, (0.0, 0.0, ""))
        rows[result.exercise] = got + result.points, most + result.max_points, file.nodeid
        if after is None and result.outcome not in (Outcome.PASSED, Outcome.ERROR):
            after = f"{file.nodeid} -k {result.function}", result
    if not rows:
        return
    reporter.section("points", sep="=")
    for exercise, (got, most, _) in rows.items():
        filled = round(20 * got / most) if most else 0
        reporter.write_line(f"{exercise:36} {'█' * filled}{'░' * (20 - filled)} {got:5.1f} of {most:g}")
    total, possible = sum(r[0] for r in rows.values()), sum(r[1] for r in rows.values())
    reporter.write_line(f"{'in all':36} {'':20} {total:5.1f} of {possible:g}")
    if after is not None:
        command, result = after
        reporter.write_line(f"next: {result.claim}  ({result.outcome})")
        reporter.write_line(f"      pytest {command}")
