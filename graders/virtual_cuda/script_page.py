"""The page of a script that has run: its timeline, its worst lines, and its code with figures.

It is one file, which needs nothing beside it.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from string import Template
from typing import Final, NamedTuple

from virtual_cuda.clock.lanes import Times
from virtual_cuda.ledger import Ledger
from virtual_cuda.ledger.line_table import (
    COLUMNS,
    TIMES,
    ModelledSeconds,
    records_by_line,
    time_cell,
)
from virtual_cuda.ledger.names import SourceLine
from virtual_cuda.ledger.records import Record
from virtual_cuda.ledger.texts import duration
from virtual_cuda.script_page_files import PAGE, SCRIPT, STYLE
from virtual_cuda.script_page_sources import PageSource, anchor_of, place_and_code
from virtual_cuda.script_timeline import TimelineDrawing, peak_text

WORST_LINES: Final = 5
# By the column of a figure, what is said of its sum.
SUMS: Final = {
    "waits": "waits of the CPU to read from the GPU",
    "to device": "copied to the device",
    "to host": "copied to the host",
    "ops": "operations",
}


class Heat(NamedTuple):
    """What lines can be coloured and ranked by."""

    key: str
    label: str
    columns: tuple[str, ...]  # those that a narrow page shows


HEATS: Final = (
    Heat("time", "time", ("host", "GPU")),
    Heat("memory", "memory", ("allocated", "peak")),
    Heat("waits", "waits", ("waits", "to host")),
)


class LineFigures(NamedTuple):
    """What one line did: a number for each heat, and a text for each column."""

    heat: dict[str, float]
    cells: dict[str, str]


class PageTexts(NamedTuple):
    """Sentences of the page that the report makes."""

    title: str
    told: list[str]  # about the modelled times
    timeline: list[str]  # drawn as text, where no times are modelled


def make_page(
    ledger: Ledger,
    times: Times | None,
    files: Sequence[PageSource],
    texts: PageTexts,
) -> str:
    """The HTML of the page.

    `files` are those of the lines that did something, in the order to show them. `times` is None
    where nothing is modelled; then the timeline is a text.
    """
    spent = None
    if times is not None:
        spent = times.by_record(ledger)
    figures = _figures_of_lines(ledger.records, spent)
    heats = [heat for heat in HEATS if any(each.heat[heat.key] for each in figures.values())]
    timeline = f"<pre>{html.escape(chr(10).join(texts.timeline))}</pre>"
    if times is not None and times.end:
        timeline = TimelineDrawing(ledger, times, files).draw()
    body = [
        _key_figures(ledger, times),
        *(f"<p>{html.escape(sentence)}</p>" for sentence in texts.told),
        f"<section><h2>Timeline</h2>{timeline}</section>",
        _worst_lines(figures, files, heats),
        "<section><h2>Every line</h2>",
        _choices(heats),
        *_tables(figures, files, heats),
        "</section>",
    ]
    return Template(PAGE).substitute(
        title=html.escape(texts.title), style=STYLE, script=SCRIPT, body="\n".join(body)
    )


# ---- figures -------------------------------------------------------------------------------------


def _figures_of_lines(
    records: Iterable[Record], spent: Mapping[int, ModelledSeconds] | None
) -> dict[SourceLine, LineFigures]:
    """What each line did. Lines that did nothing are left out."""
    found = {}
    for line, of_line in records_by_line(tuple(records)).items():
        figures = _figures_of_line(of_line, spent)
        if any(figures.cells.values()):
            found[line] = figures
    return found


def _figures_of_line(
    records: Sequence[Record], spent: Mapping[int, ModelledSeconds] | None
) -> LineFigures:
    """What the records of one line come to."""
    host = 0.0
    device = 0.0
    for record in records:
        seconds = (spent or {}).get(record.index, ModelledSeconds())
        host += seconds.host
        device += seconds.device
    cells = {"host": time_cell(host), "GPU": time_cell(device)}
    for name, figure in COLUMNS.items():
        cells[name] = figure.cell(records)
    heat = {
        "time": max(host, device),  # they work at the same time
        "memory": float(COLUMNS["allocated"].ask(records)),
        "waits": float(COLUMNS["waits"].ask(records)),
    }
    return LineFigures(heat, cells)


def _key_figures(ledger: Ledger, times: Times | None) -> str:
    """The sums, each with its name."""
    found = []
    if times is not None and times.end:
        found.append((duration(round(times.end * 1e9)), f"on {times.label}, modelled"))
        found.append((f"{times.idle_share:.0%}", "of it the GPU is idle"))
    records = ledger.records
    for name, words in SUMS.items():
        cell = COLUMNS[name].cell(records)
        found.append((cell or "0", words))
    found.append((peak_text(ledger), "memory at the peak"))
    tiles = ""
    for figure, words in found:
        tiles += f"<div><dt>{html.escape(words)}</dt><dd>{html.escape(figure)}</dd></div>"
    return f'<dl class="sums">{tiles}</dl>'


# ---- the worst lines -----------------------------------------------------------------------------


def _worst_lines(
    figures: Mapping[SourceLine, LineFigures], files: Sequence[PageSource], heats: Sequence[Heat]
) -> str:
    """A list of the worst lines for each heat, side by side."""
    if not heats:
        return ""
    lists = [_worst_list(figures, files, heat) for heat in heats]
    return f'<section><h2>Worst lines</h2><div class="worst">{"".join(lists)}</div></section>'


def _worst_list(
    figures: Mapping[SourceLine, LineFigures], files: Sequence[PageSource], heat: Heat
) -> str:
    """The worst lines for one heat, each with its share of the total."""
    amounts = {line: each.heat[heat.key] for line, each in figures.items()}
    total = sum(amounts.values())
    worst = sorted(amounts, key=lambda line: amounts[line], reverse=True)
    entries = ""
    for line in worst[:WORST_LINES]:
        share = amounts[line] / total
        if share > 0:
            entries += _worst_entry(line, figures[line], files, heat, share)
    return f"<div><h3>by {heat.label}</h3><ol>{entries}</ol></div>"


def _worst_entry(
    line: SourceLine,
    figures: LineFigures,
    files: Sequence[PageSource],
    heat: Heat,
    share: float,
) -> str:
    """One line of code in such a list, with a bar for its share of the total."""
    told = []
    for column in heat.columns:
        if figures.cells[column]:
            told.append(f"{column} {figures.cells[column]}")
    bar = f'<i style="width:{share:.1%}"></i>'
    place = html.escape(place_and_code(line, files))
    target = anchor_of(line, files)
    text = f"<code>{place}</code>"
    if target:
        text = f'<a href="#{target}">{text}</a>'
    return f"<li>{text}<span>{html.escape(', '.join(told))}</span>{bar}</li>"


# ---- the code ------------------------------------------------------------------------------------


def _choices(heats: Sequence[Heat]) -> str:
    """What lines are coloured by, and whether those that did nothing are shown."""
    choices = []
    for place, heat in enumerate(heats):
        checked = ""
        if place == 0:
            checked = " checked"
        choices.append(
            f'<label><input type="radio" name="heat" id="by-{heat.key}"{checked}>{heat.label}'
            "</label>"
        )
    return (
        f'<p class="choices">Colour by {" ".join(choices)}'
        '<label class="only"><input type="checkbox" id="only">only lines that used the GPU'
        "</label></p>"
    )


def _tables(
    figures: Mapping[SourceLine, LineFigures], files: Sequence[PageSource], heats: Sequence[Heat]
) -> Iterator[str]:
    """Yield a table for each file; columns without any figure are left out."""
    columns = _columns_with_figures(figures.values())
    most = {}
    for heat in heats:
        most[heat.key] = max(each.heat[heat.key] for each in figures.values())
    for place, file in enumerate(files):
        yield f"<h3>{html.escape(file.shown_path)}</h3>"
        yield f'<div class="wide" tabindex="0"><table style="--columns:{len(columns)}">'
        yield _heading_row(columns, heats)
        for number, code in enumerate(_lines_or_gaps(file, figures), 1):
            found = figures.get((file.path, number))
            yield _code_row(place, number, code, found, columns, most)
        yield "</table></div>"


def _columns_with_figures(figures: Collection[LineFigures]) -> list[str]:
    """The columns in which at least one line has a figure."""
    columns = []
    for name in (*TIMES, *COLUMNS):
        if any(each.cells[name] for each in figures):
            columns.append(name)
    return columns


def _lines_or_gaps(file: PageSource, figures: Mapping[SourceLine, LineFigures]) -> list[str]:
    """The lines of a file; where it cannot be read, an empty text for each that is known."""
    if file.lines:
        return file.lines
    last = max(number for path, number in figures if path == file.path)
    return [""] * last


def _classes_of(column: str) -> str:
    """The heats that a column belongs to, as classes of the style sheet."""
    names = [f"of-{heat.key}" for heat in HEATS if column in heat.columns]
    return " ".join(["figure", *names])


def _heading_row(columns: Sequence[str], heats: Sequence[Heat]) -> str:
    """The headings; those of the figures share a cell, as the figures do."""
    headings = [f'<b class="{_classes_of(name)}">{name}</b>' for name in columns]
    return f"<tr><th></th><th></th><th><div>{''.join(headings)}</div></th></tr>"


def _code_row(
    place: int,
    number: int,
    code: str,
    figures: LineFigures | None,
    columns: Sequence[str],
    most: Mapping[str, float],
) -> str:
    """A line of code with its figures; one that did something is marked, the hotter the more.

    `most` has the largest number of each heat.
    """
    text = html.escape(code.expandtabs(8))
    begin = f'<tr id="L{place}-{number}"'
    if figures is None:
        return f"{begin}><th>{number}</th><td><code>{text}</code></td><td></td></tr>"
    heats = []
    for key, highest in most.items():
        share = 0.0
        if highest:
            share = figures.heat[key] / highest
        heats.append(f"--{key}:{share:.3f}")
    cells = []
    for name in columns:
        cells.append(f'<span class="{_classes_of(name)}">{html.escape(figures.cells[name])}</span>')
    return (
        f'{begin} class="used" style="{";".join(heats)}"><th>{number}</th>'
        f"<td><code>{text}</code></td><td><div>{''.join(cells)}</div></td></tr>"
    )
