"""How does a report look in Jupyter and Colab? As HTML that reads on light and dark pages; every text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Final

from graders.bench.ledger.by_line import COLUMNS
from graders.bench.ledger.timeline import Timeline
from graders.notebook_view.moving import Moves
from graders.notebook_view.reports import DONE, STUB, Checked, Part, Report, Table, Verdict
from graders.results import Outcome
from graders.timelines import drawn, legend

# The page's own colours, and greys that let them through, so that no theme has to be known. Badges bring both theirs.
STYLE: Final = """
.gpudojo{font-family:system-ui,sans-serif;line-height:1.45;max-width:62rem}
.gpudojo h4{margin:.6em 0 .4em;font-size:1.05em}
.gpudojo code,.gpudojo pre{font-family:ui-monospace,monospace;font-size:.92em;background:none;color:inherit}
.gpudojo pre{margin:.2em 0;padding:.2em .6em;border-left:3px solid #8888;background:#8882;white-space:pre-wrap}
.gpudojo .v{margin:.25em 0}
.gpudojo .b{display:inline-block;min-width:4.2em;text-align:center;border-radius:.6em;padding:0 .5em;margin-right:.5em;
font-size:.82em;font-weight:600;color:#fff;background:#57606a}
.gpudojo .passed{background:#1a7f37}.gpudojo .failed{background:#cf222e}.gpudojo .error{background:#8250df}
.gpudojo dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em .8em;margin:.2em 0 .5em 5.6em}
.gpudojo dt{font-weight:600;opacity:.75}.gpudojo dd{margin:0}
.gpudojo table{border-collapse:collapse;margin:.3em 0;font-size:.92em}
.gpudojo td,.gpudojo th{padding:.1em .7em;text-align:right!important;border:0;white-space:pre;vertical-align:top;
background:none;color:inherit}
.gpudojo td.c,.gpudojo th.c{text-align:left!important}
.gpudojo tr.m{background:#d4a72c33!important}.gpudojo tfoot td{border-top:1px solid #8888;font-weight:600}
.gpudojo .bar{display:inline-block;width:10em;height:.7em;background:#8884;border-radius:.35em;overflow:hidden}
.gpudojo .bar i{display:block;height:100%;background:#1a7f37}
.gpudojo .q{opacity:.75}
.gpudojo pre.t{white-space:pre;overflow-x:auto;line-height:1.15}
.gpudojo .t-wall{color:#cf222e;font-weight:700}.gpudojo .t-copy,.gpudojo .t-memory{color:#0969da}
.gpudojo .t-grad{color:#9a6700}.gpudojo .t-nograd{color:#1a7f37}.gpudojo .t-autocast{color:#8250df}
"""

PICTURE: Final = 110  # characters


def html(report: Report) -> str:
    parts = [part for checked in report.checked for part in _checked(checked)]
    parts += list(_table(report.table)) if report.table is not None else []
    parts += [f"<p>{_prose(sentence)}</p>" for sentence in report.said]
    return f'<div class="gpudojo"><style>{STYLE}</style>{"".join(parts)}</div>'


def _checked(checked: Checked) -> Iterator[str]:
    points = f"{checked.points:g} of {checked.most:g} points"
    yield f'<h4><code>{escape(checked.name)}</code>: {points} <span class="q">· {escape(checked.title)}</span></h4>'
    if checked.outcomes == {Outcome.TODO}:
        yield f'<div class="v">{_badge(Outcome.TODO)}{_prose(STUB)}</div>'
    else:
        yield from (piece for verdict in checked.verdicts for piece in _verdict(verdict))
    yield _list(checked.hints)
    if checked.moves is not None:
        yield from _moves(checked.moves)
    if checked.picture is not None:
        yield _picture(*checked.picture)


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield f'<div class="v">{_badge(verdict.outcome)}{_prose(verdict.claim)}</div>'
    yield _list(verdict.parts)


def _badge(outcome: Outcome) -> str:
    return f'<span class="b {outcome.replace(" ", "")}">{escape(outcome)}</span>'


def _list(parts: tuple[Part, ...]) -> str:
    if not parts:
        return ""
    return f"<dl>{''.join(f'<dt>{escape(label)}</dt><dd>{_content(label, text)}</dd>' for label, text in parts)}</dl>"


def _content(label: str, text: str) -> str:
    if label == "line":
        first, _, code = text.partition("\n")
        return escape(first) + (f"<pre>{escape(code.strip())}</pre>" if code else "")
    if label == "read":
        pages = [escape(page) for page in text.splitlines()]
        return "<br>".join(f'<a href="{page}" target="_blank" rel="noopener">{page}</a>' for page in pages)
    first, *rest = text.splitlines() or [""]
    # Whatever has several lines is aligned: code, or a drawing of values.
    return _prose(first) + (f"<pre>{escape(chr(10).join(rest))}</pre>" if rest else "")


def _prose(text: str) -> str:
    """A text in which `code` is marked; escaped before it is looked at."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _moves(moves: Moves) -> Iterator[str]:
    headings = "".join(f"<th>{escape(heading)}</th>" for heading in COLUMNS)
    yield f'<div class="q">What moved where, in the busiest call, on <code>{escape(moves.device)}</code>:</div>'
    yield f'<table><thead><tr><th></th><th class="c"></th>{headings}</tr></thead><tbody>'
    for row in moves.rows:
        yield _row(str(row.number), row.code, row.cells)
    for cell, row in moves.elsewhere:
        yield _row(f"{cell}:{row.number}".lstrip(":"), row.code, row.cells)
    yield f"</tbody><tfoot>{_row('', 'in all', moves.sums)}</tfoot></table>"
    for line, count in moves.waits:
        yield f"<div>Line {line} made the host wait for the device {count} times.</div>"


def _picture(yours: Timeline, theirs: Timeline | None) -> str:
    """The drawing that a terminal shows; how often the host waits is said in its first line, for who cannot see it."""
    lines = [
        "".join(
            f'<span class="t-{meaning.replace(" ", "")}">{escape(text)}</span>' if meaning else escape(text)
            for text, meaning in line
        )
        for line in drawn(yours, PICTURE, theirs)
    ]
    signs = "<br>".join(map(escape, legend(PICTURE)))
    return f'<pre class="t">{chr(10).join(lines)}</pre><div class="q">{signs}</div>'


def _row(number: str, code: str, cells: tuple[str, ...]) -> str:
    moved = ' class="m"' if number and (cells[0] or cells[1]) else ""
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr{moved}><td class="q">{escape(number)}</td><td class="c"><code>{escape(code)}</code></td>{shown}</tr>'


def _table(table: Table) -> Iterator[str]:
    yield '<table><thead><tr><th class="c">exercise</th><th></th><th>points</th><th class="c"></th></tr></thead><tbody>'
    for row in table.rows:
        share = 100 * row.points / row.most if row.most else 0
        filled = f'<span class="bar"><i style="width:{share:.0f}%"></i></span>'
        yield f'<tr><td class="c">{escape(row.exercise)}</td><td>{filled}</td>'
        yield f'<td>{row.points:.4g} of {row.most:g}</td><td class="c">{escape(row.state)}</td></tr>'
    got, most = sum(row.points for row in table.rows), sum(row.most for row in table.rows)
    yield '</tbody><tfoot><tr><td class="c">in all</td><td></td>'
    yield f"<td>{got:.4g} of {most:g}</td><td></td></tr></tfoot></table>"
    if table.following:
        yield f"<div>next: <code>{escape(table.following)}</code></div>"
    elif table.done:
        yield f"<div>{_prose(DONE)}</div>"
