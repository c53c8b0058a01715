"""Runs the snippets of lessons on the virtual GPU, writes what it recorded into them, and finds what is wrong."""

from __future__ import annotations

import contextlib
import gc
import io
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from virtual_cuda.ledger import COLUMNS, MARKS, Ledger, draw_timeline, line_rows, plain_lines, timeline_of

from gpudojo.model.catalogue import registered
from gpudojo.model.errors import BadDay, BadMarkers
from gpudojo.model.lessons import FOLDER, SETUP, Snippet, lesson_path, never_run, shown, snippets
from gpudojo.release.leaks import leaks
from gpudojo.release.stubs import solutions, stubs

WIDTH: Final = 76  # of a terminal with 80 columns, within the frame of a code block
LONGEST: Final = 240  # characters of an error
SEED: Final = 8
UNUSED: Final = "allocated"  # the column that lessons do without: they need the room for code
QUESTIONS: Final = 3
SETUP_FILE: Final = f"{SETUP}.py"
NBSP: Final = "\N{NO-BREAK SPACE}"
NOTHING: Final = "The device was not used."


def filled(source: str) -> str:
    """The source of a lesson with every snippet run anew, and what the device recorded below it."""
    setup = "".join(snippet.code for snippet in snippets(source) if snippet.name == SETUP)
    for snippet in reversed(snippets(source)):
        if snippet.name != SETUP:
            block = f"<!-- recorded -->\n```text\n{recorded(snippet, setup)}\n```\n"
            source = source[: snippet.end] + block + source[snippet.after :]
    return source


def remake(day: str, stem: str) -> Path | None:
    """Fills the lesson of an exercise; its path if that changed it."""
    path = lesson_path(day, stem)
    if path is None or (made := filled(source := path.read_text(encoding="utf-8"))) == source:
        return None
    path.write_text(made, encoding="utf-8", newline="\n")
    return path


def recorded(snippet: Snippet, setup: str = "") -> str:
    """What a snippet did on a virtual GPU of its own, line by line or as a timeline, what it printed, its error.

    Raises BadDay where its options are none.
    """
    import torch  # not at the top: `dojo lint --help` does without
    from virtual_cuda import virtual_cuda

    file, said, error = f"{snippet.name}.py", io.StringIO(), ""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.ExitStack() as around:
        around.enter_context(torch.random.fork_rng(devices=[]))
        try:
            made_for = int(snippet.options.get("gpus", 1)), snippet.options.get("memory", "8GiB")
            gpu = around.enter_context(virtual_cuda(*made_for))
        except ValueError as wrong:
            raise BadDay(f"a lesson's snippet {snippet.name!r}", snippet.line, str(wrong)) from wrong
        around.enter_context(contextlib.redirect_stdout(said))
        if gc.isenabled():  # memory is freed at the same moments each time
            gc.disable()
            around.callback(gc.enable)
        torch.manual_seed(SEED)
        mark = gpu.ledger.mark()
        try:
            exec(compile(setup, SETUP_FILE, "exec"), names)
            mark = gpu.ledger.mark()
            said.seek(said.truncate(0))  # what the setup printed is not shown
            exec(compile(snippet.code, file, "exec"), names)
        except Exception as raised:
            error = f"{type(raised).__module__}.{type(raised).__name__}: {raised}".removeprefix("builtins.")
        made = gpu.ledger.since(mark)
        names.clear()
    draw = _timeline if "timeline" in snippet.options else _table
    parts = [draw(made, file, snippet.code.splitlines(), setup.splitlines()) or NOTHING]
    parts += [f"Printed:\n{textwrap.indent(said.getvalue().rstrip(), '  ')}"] if said.getvalue().strip() else []
    if error:
        first = textwrap.shorten(error.splitlines()[0], LONGEST, placeholder=" …")  # general advice follows in some
        parts.append(f"Error:\n{textwrap.fill(first, WIDTH, initial_indent='  ', subsequent_indent='  ')}")
    return "\n\n".join(parts)


def _table(made: Ledger, file: str, code: list[str], setup: list[str]) -> str:
    """A row for each line that did something, a column for each kind of thing; lines of the setup have no number."""
    own = [(f"{row.number:2}", row) for row in line_rows(made.records, file, code)]
    called = [("", row) for row in line_rows(made.records, SETUP_FILE, setup)]
    rows = [(number, row) for number, row in (*own, *called) if any(row.cells)]
    names = list(enumerate(COLUMNS))
    used = [place for place, name in names if name != UNUSED and any(row.cells[place] for _, row in rows)]
    heads = [name for place, name in names if place in used]
    body = [(f"{number:2}  {row.code}", [row.cells[place] for place in used]) for number, row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *(cells for _, cells in body), strict=True)]
    lines = [("recorded, by line", heads), *body] if body else []
    room = min(WIDTH - sum(widths) - 2 * len(widths), max([0, *(len(text) for text, _ in lines)]))
    return "\n".join(
        f"{text if len(text) <= room else f'{text[: room - 1]}…':{room}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for text, cells in lines
    )


def _timeline(made: Ledger, file: str, code: list[str], setup: list[str]) -> str:
    """The lanes of a timeline, and the meaning of the signs in it; nothing where the device was not used."""
    if not len(made):
        return ""
    timeline = timeline_of(made.records, file, file, file, source=code)
    drawn = plain_lines(draw_timeline(timeline, WIDTH))[1:-1]  # without its heading, and the reference
    # Between the lanes of host and device are copies, with their sizes: letters there are units.
    lanes = [line[9:] if place != 1 else re.sub(r"[\w.]", "", line[9:]) for place, line in enumerate(drawn[:3])]
    signs = [f"{sign} {meaning}" for sign, meaning in MARKS.values() if any(sign in lane for lane in lanes)]
    legend = textwrap.wrap("   ".join(sign.replace(" ", NBSP) for sign in signs), WIDTH)
    return "\n".join(["recorded, in order:", *filter(None, drawn), *(line.replace(NBSP, " ") for line in legend)])


def _given_away(name: str, source: str, reference: Path) -> Iterator[str]:
    """Lines of solutions in a lesson, short ones too; none where a reference is no stub yet, as lint says elsewhere."""
    with contextlib.suppress(BadMarkers):
        found = list(map(str, leaks({name: source.encode()}, reference)))
        shown_anyway = {line.strip() for stub in stubs(reference).values() for line in stub.splitlines()}
        lines = {line.strip() for line in source.splitlines()} - shown_anyway
        for path in sorted(reference.glob("*.py")) if not found else ():
            numbered = (line for block in solutions(path.read_text(encoding="utf-8")) for line in block)
            told = ((number, text.strip()) for number, text in numbered if text.strip() in lines)
            found += [f"{name} shows line {number} of {path.name}: {text}" for number, text in told if text]
        yield from found


def problems(day: str, stem: str, root: Path) -> Iterator[str]:
    """What is wrong with the lesson of an exercise; a day without lessons has none to find fault with."""
    path = lesson_path(day, stem)
    if path is None:
        if (registered()[day].folder / FOLDER).is_dir():
            yield f"it has no lesson {FOLDER}/{stem}.md"
        return
    name, source = f"{FOLDER}/{path.name}", path.read_text(encoding="utf-8")
    for line in never_run(source):
        yield f"{name}, line {line}: nothing runs this code; write <!-- run: NAME --> above it"
    if not {"wrong", "right"} <= {snippet.name for snippet in snippets(source)}:
        yield f"{name} has no snippet called wrong, or none called right"
    if shown(source, folded=True).count("</details>") != QUESTIONS:
        yield f"{name} does not have {QUESTIONS} questions with answers"
    yield from _given_away(name, source, root / "reference" / day)
    made = filled(source)
    if any(one.name == "right" and "\nError:\n" in (one.recorded or "") for one in snippets(made)):
        yield f"{name}: the snippet called right ends with an error"
    if made != source:
        yield f"{name}: what was recorded is out of date; run: dojo lesson {stem.partition('_')[0]} --remake"
