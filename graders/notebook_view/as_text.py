"""How does a report read where there is no HTML? As plain lines, in any terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graders.bench.ledger.by_line import COLUMNS, LineRow
from graders.notebook_view.moving import Moves
from graders.notebook_view.reports import DONE, STUB, Checked, Report, Table
from graders.plugin.feedback import laid_out
from graders.plugin.summary import WIDTH, bar
from graders.results import Outcome
from graders.timelines import drawn, legend, plain

CODE: Final = 60  # characters of a line of code
PICTURE: Final = 110
MARKS: Final = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "FAILED",
    Outcome.TODO: "to do",
    Outcome.BLOCKED: "blocked",
    Outcome.ERROR: "error",
}


def text(report: Report) -> str:
    lines: list[str] = []
    for checked in report.checked:
        lines += [*_checked(checked), ""]
    if report.table is not None:
        lines += [*_table(report.table), ""]
    lines += report.said
    return "\n".join(lines).rstrip()


def _checked(checked: Checked) -> Iterator[str]:
    yield f"{checked.name}: {checked.points:g} of {checked.most:g} points ({checked.exercise})"
    if checked.outcomes == {Outcome.TODO}:
        yield f"  {STUB}"
    else:
        for verdict in checked.verdicts:
            yield f"  {MARKS[verdict.outcome]:8} {verdict.claim}"
            for label, content in verdict.parts:
                yield from (f"  {line}" for line in laid_out(label, content))
    for label, content in checked.hints:
        yield from laid_out(label, content)
    if checked.moves is not None:
        yield from _moves(checked.moves)
    if checked.picture is not None:
        yield from (f"  {line}" for line in plain(drawn(checked.picture[0], PICTURE, checked.picture[1])))
        yield from (f"  {line}" for line in legend(PICTURE))


def _moves(moves: Moves) -> Iterator[str]:
    rows: list[tuple[str, str, tuple[str, ...]]] = [(str(row.number), _cut(row), row.cells) for row in moves.rows]
    rows += [(f"{cell}:{row.number}".lstrip(":"), _cut(row), row.cells) for cell, row in moves.elsewhere]
    rows.append(("", "in all", moves.sums))
    first = max(len(number) for number, _, _ in rows)
    code = max(len(shown) for _, shown, _ in rows)
    widths = [max(len(heading), *(len(row[2][i]) for row in rows)) for i, heading in enumerate(COLUMNS)]
    yield f"  What moved where, in the busiest call, on {moves.device}:"
    for number, shown, cells in [("", "", tuple(COLUMNS)), *rows]:
        counted = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"  {number:>{first}}  {shown:{code}}  {counted}".rstrip()
    for line, count in moves.waits:
        yield f"  Line {line} made the host wait for the device {count} times."


def _cut(row: LineRow) -> str:
    return row.code if len(row.code) <= CODE else f"{row.code[: CODE - 1]}…"


def _table(table: Table) -> Iterator[str]:
    wide = max((len(row.exercise) for row in table.rows), default=0)
    for row in table.rows:
        filled = bar(row.points, row.most)
        yield f"{row.exercise:{wide}}  {filled}  {row.points:5.4g} of {row.most:<4g}  {row.state}"
    got, most = sum(row.points for row in table.rows), sum(row.most for row in table.rows)
    yield f"{'in all':{wide}}  {'':{WIDTH}}  {got:5.4g} of {most:g}"
    if table.following:
        yield f"next: {table.following}"
    elif table.done:
        yield DONE
