"""Runs the code of lessons again, and compares with what they say was recorded."""

from __future__ import annotations

import contextlib
import gc
import io
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from virtual_cuda.ledger import (
    COLUMNS,
    MARKS,
    Ledger,
    draw_timeline,
    line_rows,
    plain_lines,
    timeline_of,
)

from gpudojo.model.catalogue import registered_days
from gpudojo.model.errors import BadDay, BadMarkers
from gpudojo.model.lessons import (
    LESSONS_FOLDER,
    SETUP,
    Snippet,
    lesson_path,
    lesson_text,
    lines_outside_snippets,
    snippets_in,
)
from gpudojo.release.leaks import find_leaks
from gpudojo.release.stubs import solution_blocks, stubs_of_day

WIDTH: Final = 76  # of a terminal with 80 columns, within the frame of a code block
LONGEST_ERROR: Final = 170  # characters
RECORDING_SEED: Final = 8
UNUSED_COLUMN: Final = "allocated"  # lessons need the room for code
COUNT_OF_QUESTIONS: Final = 3
SETUP_FILE: Final = f"{SETUP}.py"
NBSP: Final = "\N{NO-BREAK SPACE}"
PRINTED: Final = "printed: "
ERROR: Final = "error: "
NOTHING: Final = "The device was not used."
LABEL_WIDTH: Final = 9  # of a drawn timeline: the name of a lane


def fill_lesson(source: str) -> str:
    """The source of a lesson with every snippet run anew, and what the device recorded below it.

    Raises BadDay where the options of a snippet are wrong, and a DojoError where the virtual device
    cannot be opened.
    """
    setup = ""
    for snippet in snippets_in(source):
        if snippet.name == SETUP:
            setup += snippet.code
    # From the end, so that the places of the snippets before stay right.
    for snippet in reversed(snippets_in(source)):
        if snippet.name != SETUP:
            block = f"```text\n{describe_run(snippet, setup)}\n```\n"
            before = source[: snippet.end]
            after = source[snippet.after :]
            source = f"{before}{block}{after}"
    return source


def remake_lesson(day: str, stem: str) -> Path | None:
    """Fill the lesson of an exercise anew. Returns its path, or None if nothing changed.

    Writes the lesson's file. Raises BadDay where the options of a snippet are wrong, a DojoError
    where the virtual device cannot be opened, and OSError.
    """
    path = lesson_path(day, stem)
    if path is None:
        return None
    source = path.read_text(encoding="utf-8")
    new_source = fill_lesson(source)
    if new_source == source:
        return None
    path.write_text(new_source, encoding="utf-8", newline="\n")
    return path


def describe_run(snippet: Snippet, setup: str = "") -> str:
    """Run a snippet on a virtual GPU of its own, and return a text on what it did.

    `setup` is code to run before it. The text has a table of its lines or a timeline, then what it
    printed, then its error. Raises BadDay where the options of the snippet are wrong, and a
    DojoError where the virtual device cannot be opened.
    """
    run = _run_snippet(snippet, setup)
    code = snippet.code.splitlines()
    if "timeline" in snippet.options:
        drawing = _draw_timeline(run.ledger, run.file, code)
    else:
        drawing = _draw_table(run.ledger, run.file, code, setup.splitlines())
    parts = [drawing or NOTHING]
    printed = run.output.rstrip()
    if printed:
        indent = " " * len(PRINTED)
        indented = printed.replace("\n", f"\n{indent}")
        parts.append(f"{PRINTED}{indented}")
    if run.error:
        # Of some errors general advice follows the first line.
        first_line = run.error.splitlines()[0]
        short = textwrap.shorten(first_line, LONGEST_ERROR, placeholder=" …")
        indent = " " * len(ERROR)
        text = textwrap.fill(short, WIDTH, initial_indent=ERROR, subsequent_indent=indent)
        parts.append(text)
    return "\n".join(parts)


class _SnippetRun(NamedTuple):
    """What happened when a snippet ran."""

    file: str  # the name that the snippet's code ran under
    ledger: Ledger
    output: str
    error: str  # its type and text; empty if there was none


def _run_snippet(snippet: Snippet, setup: str) -> _SnippetRun:
    """Run the setup and then the snippet, the same way each time.

    An Exception of the code is in what is returned. Torch's random numbers are put back. Raises
    BadDay where the options of the snippet are wrong, and a DojoError where the virtual device
    cannot be opened.
    """
    import torch  # not at the top: `dojo lint --help` does without
    from virtual_cuda import virtual_cuda

    file = f"{snippet.name}.py"
    output = io.StringIO()
    error = ""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.ExitStack() as around:
        around.enter_context(torch.random.fork_rng(devices=[]))
        try:
            gpus = int(snippet.options.get("gpus", 1))
            memory = snippet.options.get("memory", "8GiB")
            gpu = around.enter_context(virtual_cuda(gpus, memory))
        except ValueError as wrong:
            where = f"a lesson's snippet {snippet.name!r}"
            raise BadDay(where, snippet.line, str(wrong)) from wrong
        around.enter_context(contextlib.redirect_stdout(output))
        if gc.isenabled():  # memory is freed at the same moments each time
            gc.disable()
            around.callback(gc.enable)
        torch.manual_seed(RECORDING_SEED)
        mark = gpu.ledger.mark()
        try:
            exec(compile(setup, SETUP_FILE, "exec"), names)
            mark = gpu.ledger.mark()
            output.seek(output.truncate(0))  # what the setup printed is not shown
            exec(compile(snippet.code, file, "exec"), names)
        except Exception as raised:  # any error belongs to the lesson
            error = _describe_error(raised)
        ledger = gpu.ledger.since(mark)
        names.clear()
    return _SnippetRun(file, ledger, output.getvalue(), error)


def _describe_error(error: Exception) -> str:
    """The type of an error, with its module unless it is Python's own, and its text."""
    kind = type(error)
    text = f"{kind.__module__}.{kind.__name__}: {error}"
    return text.removeprefix("builtins.")


class _TableRow(NamedTuple):
    """A line of code, with its number if any, and a cell for each column that is shown."""

    text: str
    cells: list[str]


def _draw_table(ledger: Ledger, file: str, code: list[str], setup: list[str]) -> str:
    """A table with a row for each line that did something; empty if none did.

    It has a column for each kind of thing. Lines of the setup have no number.
    """
    # The lines that did something.
    numbered_rows = []
    for row in line_rows(ledger.records, file, code):
        if any(row.cells):
            numbered_rows.append((f"{row.number:2}", row))
    for row in line_rows(ledger.records, SETUP_FILE, setup):
        if any(row.cells):
            numbered_rows.append(("", row))
    if not numbered_rows:
        return ""
    # The columns with anything in them.
    heads = []
    used_columns = []
    for column, name in enumerate(COLUMNS):
        is_filled = any(row.cells[column] for _, row in numbered_rows)
        if is_filled and name != UNUSED_COLUMN:
            heads.append(name)
            used_columns.append(column)
    lines = [_TableRow("recorded, by line", heads)]
    for number, row in numbered_rows:
        cells = [row.cells[column] for column in used_columns]
        lines.append(_TableRow(f"{number:2}  {row.code}", cells))
    return _lay_out_table(lines)


def _lay_out_table(rows: list[_TableRow]) -> str:
    """The rows as text: each column as wide as its widest cell, code cut where it is too long."""
    widths = []
    for column in range(len(rows[0].cells)):
        lengths = [len(row.cells[column]) for row in rows]
        widths.append(max(lengths))
    # What the columns leave of the width is for code.
    room = WIDTH - sum(widths) - 2 * len(widths)
    longest = max(len(row.text) for row in rows)
    room = min(room, longest)
    lines = []
    for row in rows:
        text = row.text
        if len(text) > room:
            text = text[: room - 1] + "…"
        line = text.ljust(room)
        for cell, width in zip(row.cells, widths, strict=True):
            line += f"  {cell:>{width}}"
        lines.append(line)
    return "\n".join(lines)


def _draw_timeline(ledger: Ledger, file: str, code: list[str]) -> str:
    """The lanes of a timeline, and the meaning of the signs in it.

    Empty where the device was not used.
    """
    if not len(ledger):
        return ""
    timeline = timeline_of(ledger.records, file, file, file, source=code)
    # Without its heading, which may have two lines, and the line that compares with a reference.
    lines = plain_lines(draw_timeline(timeline, WIDTH))
    labels = [line[:LABEL_WIDTH].strip() for line in lines]
    drawn = lines[labels.index("host") : -1]
    lanes = [line[LABEL_WIDTH:] for line in drawn[:3]]
    # Between the lanes of host and device are copies, with their sizes: letters there are units.
    lanes[1] = re.sub(r"[\w.]", "", lanes[1])
    drawn_signs = "\n".join(lanes)
    signs = []
    for sign, meaning in MARKS.values():
        if sign in drawn_signs:
            words = f"{sign} {meaning}"
            signs.append(words.replace(" ", NBSP))
    legend = textwrap.wrap("   ".join(signs), WIDTH)
    lines = ["recorded, in order:"]
    lines += [line for line in drawn if line]
    lines += [line.replace(NBSP, " ") for line in legend]
    return "\n".join(lines)


def lesson_problems(day: str, stem: str, root: Path) -> Iterator[str]:
    """Yield sentences about what is wrong with the lesson of an exercise.

    There are none for a day without lessons. Runs the lesson's code. Raises BadDay where the
    options of a snippet are wrong, a DojoError where the virtual device cannot be opened, and
    OSError.
    """
    path = lesson_path(day, stem)
    if path is None:
        if (registered_days()[day].folder / LESSONS_FOLDER).is_dir():
            yield f"it has no lesson {LESSONS_FOLDER}/{stem}.md"
        return
    name = f"{LESSONS_FOLDER}/{path.name}"
    source = path.read_text(encoding="utf-8")
    # What it has, and what it must not show.
    for line in lines_outside_snippets(source):
        yield f"{name}, line {line}: nothing runs this code; write <!-- run: NAME --> above it"
    names_of_snippets = {snippet.name for snippet in snippets_in(source)}
    if not {"wrong", "right"} <= names_of_snippets:
        yield f"{name} has no snippet called wrong, or none called right"
    if lesson_text(source, folded=True).count("</details>") != COUNT_OF_QUESTIONS:
        yield f"{name} does not have {COUNT_OF_QUESTIONS} questions with answers"
    yield from _solution_lines_in(name, source, root / "reference" / day)
    # What its code does.
    new_source = fill_lesson(source)
    for snippet in snippets_in(new_source):
        recorded = snippet.recorded or ""
        if snippet.name == "right" and f"\n{ERROR}" in recorded:
            yield f"{name}: the snippet called right ends with an error"
            break
    if new_source != source:
        number = stem.partition("_")[0]
        command = f"dojo lesson {number} --remake"
        yield f"{name}: what was recorded is out of date; run: {command}"


def _solution_lines_in(name: str, source: str, reference: Path) -> list[str]:
    """Sentences about lines of solutions that a lesson shows, short ones too.

    `name` is that of the lesson, `reference` the folder of solutions. None where a reference has no
    good markers yet: lint says that elsewhere. Raises OSError.
    """
    try:
        leaks = find_leaks({name: source.encode()}, reference)
        found = [str(leak) for leak in leaks]
        stubs = stubs_of_day(reference)
    except BadMarkers:
        return []
    if found:
        return found
    # Short lines are no leaks elsewhere; in a lesson they count, unless a stub has them too.
    lines = {line.strip() for line in source.splitlines()}
    lines.discard("")
    for stub in stubs.values():
        lines.difference_update(line.strip() for line in stub.splitlines())
    for path in sorted(reference.glob("*.py")):
        solution = path.read_text(encoding="utf-8")
        for block in solution_blocks(solution):
            for line in block:
                text = line.text.strip()
                if text in lines:
                    found.append(f"{name} shows line {line.number} of {path.name}: {text}")
    return found
