"""Functions of a running notebook session, and reports of checks there: data, plain text and HTML."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape
from virtual_cuda import ledger
from virtual_cuda.hooks import USUAL_GPU
from virtual_cuda.ledger import (
    Timeline,
    columns_of,
    draw_timeline,
    line_rows,
    questions,
    timeline_legend,
)

from gpudojo.grading.executed_lines import compile_with_marks
from gpudojo.grading.feedback import (
    BAR_WIDTH,
    ExercisePoints,
    Part,
    headline_and_parts,
    hint_parts,
    hints_about,
    lay_out_part,
    progress_bar,
)
from gpudojo.grading.load import Submission, is_stub
from gpudojo.grading.notebooks import without_magics
from gpudojo.grading.source_patterns import pattern_lines
from gpudojo.grading.watching import Busiest
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult, Outcome


@dataclass(frozen=True)
class LineTable:
    """What each line of a function did on the device, and how long a GPU would take for it."""

    headings: tuple[str, ...]
    rows: tuple[
        tuple[str, str, tuple[str, ...]], ...
    ]  # number, code and cells: the lines, those of other cells, sums
    waits: tuple[str, ...]  # a sentence for each line at which the host waited more than once
    device: str


def line_table(busiest: Busiest, live: Live) -> LineTable | None:
    """The table of the busiest call; None where it did not use a device."""
    records = tuple(record for record in busiest.records if record.site is not None)
    spent = busiest.spent()
    sums = ledger.totals(records, spent)
    if not any(sums):
        return None
    own = line_rows(records, live.file, live.source, live.first, spent)
    rows = [(str(row.number), row.code, row.cells) for row in own]
    for file, line in sorted(questions.per_line(records)):
        found = (
            line_rows(records, file, [linecache.getline(file, line)], line, spent)
            if file != live.file
            else []
        )
        number = f"{cell_name(file)}:{line}".lstrip(":")
        rows += [(number, row.code, row.cells) for row in found if any(row.cells)]
    hot = questions.hot_lines(questions.waits(records), at_least=2).items()
    told = "Line {} made the host wait for the device {} times."
    waits = tuple(told.format(line, count) for (file, line), count in hot if file == live.file)
    modelled = "" if spent is None else f", and how long it would take on {USUAL_GPU} (modelled)"
    device = f"{busiest.device}{modelled}"
    return LineTable(columns_of(spent), (*rows, ("", "total", sums)), waits, device)


DONE: Final = "Everything that is defined here passes. Well done!"
STUB: Final = "still to do: fill in its cell, run it, and check again."
STOPPED: Final = "Interrupted while `{name}` was checked. It has no result, and neither have the functions after it."
Timelines = tuple[Timeline, Timeline | None]  # of the student's function and of the reference


@dataclass(frozen=True)
class FunctionReport:
    """The results of one function, and the texts about them."""

    name: str
    exercise: str
    title: str
    results: tuple[CheckResult, ...]
    parts: tuple[tuple[Part, ...], ...]  # the texts about each result
    hints: tuple[Part, ...] = ()
    lines: LineTable | None = None
    timelines: Timelines | None = None

    @property
    def points(self) -> float:
        return sum(result.points for result in self.results)

    @property
    def most(self) -> float:
        return sum(result.max_points for result in self.results)

    @property
    def outcomes(self) -> set[Outcome]:
        return {result.outcome for result in self.results}

    @property
    def to_do(self) -> bool:
        return self.outcomes == {Outcome.TODO}


@dataclass(frozen=True)
class PointsTable:
    """The points of every exercise of which something is defined."""

    rows: tuple[ExercisePoints, ...]
    following: str  # what to check next, as code; empty when nothing is left

    @property
    def points(self) -> float:
        return sum(row.points for row in self.rows)

    @property
    def max_points(self) -> float:
        return sum(row.max_points for row in self.rows)

    @property
    def done(self) -> bool:
        return bool(self.rows) and all(row.state == "done" for row in self.rows)


@dataclass(frozen=True)
class CheckReport:
    """The output of one call of `check`, as text and as HTML."""

    checked: tuple[FunctionReport, ...] = ()
    table: PointsTable | None = None
    said: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def function_report(
    live: Live,
    exercise: Exercise,
    function: Function,
    results: Sequence[CheckResult],
    hints: int,
    lines: LineTable | None = None,
    timelines: Timelines | None = None,
) -> FunctionReport:
    """The report of one function: results, texts, hints, and what its busiest call did."""
    parts = tuple(_parts(result, live) for result in results)
    failed = next((result for result in results if result.outcome is Outcome.FAILED), None)
    passed = all(result.outcome is Outcome.PASSED for result in results)
    count = hints if failed or (hints > 1 and not passed) else 0
    every = hints_about(failed, function) if failed else function.hints
    shown = tuple(hint_parts(every, exercise, count, f"check({live.name}, hints={count + 1})"))
    return FunctionReport(
        function.name, exercise.stem, exercise.title, tuple(results), parts, shown, lines, timelines
    )


def _parts(result: CheckResult, live: Live) -> tuple[Part, ...]:
    headline, parts = headline_and_parts(
        result, live.place(result.line) if result.line is not None else ""
    )
    if result.outcome is Outcome.BLOCKED:
        parts = [("blocked by", f"`{result.blocked_by}`, which has to pass first")]
    elif result.outcome is Outcome.ERROR:
        parts = [("our fault", headline), *[part for part in parts if part[0] == "happened"]]
    elif result.outcome is Outcome.TODO:
        parts = [("to do", result.happened)] if result.happened else []
    return tuple(parts)


CODE: Final = 60  # characters of a line of code
WIDTH: Final = 110  # of a drawing, in characters
MARKS: Final = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "FAILED",
    Outcome.TODO: "to do",
    Outcome.BLOCKED: "blocked",
    Outcome.ERROR: "error",
}


def text(report: CheckReport) -> str:
    lines: list[str] = []
    for checked in report.checked:
        lines += [*_checked_text(checked), ""]
    if report.table is not None:
        lines += [*_table_text(report.table), ""]
    lines += report.said
    return "\n".join(lines).rstrip()


def _checked_text(checked: FunctionReport) -> Iterator[str]:
    yield f"{checked.name}: {checked.points:g} of {checked.most:g} points ({checked.exercise})"
    if checked.to_do:
        yield f"  {STUB}"
    else:
        for result, parts in zip(checked.results, checked.parts, strict=True):
            yield f"  {MARKS[result.outcome]:8} {result.claim}"
            for label, content in parts:
                yield from (f"  {line}" for line in lay_out_part(label, content))
    for label, content in checked.hints:
        yield from lay_out_part(label, content)
    if checked.lines is not None:
        yield from _lines_text(checked.lines)
    if checked.timelines is not None:
        yours, theirs = checked.timelines
        drawn = ledger.plain_lines(draw_timeline(yours, WIDTH, theirs))
        yield from (f"  {line}" for line in (*drawn, *timeline_legend(WIDTH)))


def _lines_text(table: LineTable) -> Iterator[str]:
    rows = [
        (number, c if len(c) <= CODE else f"{c[: CODE - 1]}…", cells)
        for number, c, cells in table.rows
    ]
    first = max(len(number) for number, _, _ in rows)
    code = max(len(shown) for _, shown, _ in rows)
    widths = [
        max(len(heading), *(len(row[2][i]) for row in rows))
        for i, heading in enumerate(table.headings)
    ]
    yield f"  What each line did in the busiest call, on {table.device}:"
    for number, shown, cells in [("", "", table.headings), *rows]:
        counted = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"  {number:>{first}}  {shown:{code}}  {counted}".rstrip()
    yield from (f"  {sentence}" for sentence in table.waits)


def _table_text(table: PointsTable) -> Iterator[str]:
    wide = max((len(row.exercise) for row in table.rows), default=0)
    for row in table.rows:
        filled = progress_bar(row.points, row.max_points)
        yield f"{row.exercise:{wide}}  {filled}  {row.points:5.4g} of {row.max_points:<4g}  {row.state}"
    yield f"{'total':{wide}}  {'':{BAR_WIDTH}}  {table.points:5.4g} of {table.max_points:g}"
    if table.following:
        yield f"next: {table.following}"
    elif table.done:
        yield DONE


def html(report: CheckReport) -> str:
    return _template().render(report=report)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudojo.notebook"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.globals.update(
        draw_timeline=draw_timeline, timeline_legend=timeline_legend, width=WIDTH
    )
    environment.globals.update(to_do=STUB, done=DONE)
    return environment.get_template("check.html")


def _prose(text: str) -> Markup:
    """A text in which `code` is marked, and everything is escaped."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


NOWHERE: Final = "<no source>"
WRAPPERS: Final = 20  # nested decorators that are unwrapped


@dataclass(frozen=True)
class Live:
    """A function or value of the session, under the name of a task."""

    name: str
    thing: Any
    file: str  # the file name of the code object; a cell has a made-up one
    first: int  # the line at which `source` begins; lines are counted within the cell
    source: tuple[str, ...]
    line: int | None  # of its `def`
    stub: bool

    def submission(self, namespace: dict[str, Any]) -> Submission:
        """The session as a submission, which is what probes run."""
        names = getattr(_function(self.thing), "__globals__", namespace)
        if names.get(self.name) is not self.thing:
            names = {**names, self.name: self.thing}
        todo = frozenset({self.name} if self.stub else ())
        lines = {} if self.line is None else {self.name: self.line}
        node = _definition(self.source)
        if node is not None:
            lines |= pattern_lines([ast.increment_lineno(node, self.first - 1)])
        return Submission(Path(self.file), names, todo=todo, lines=lines)

    def place(self, line: int) -> str:
        """A line and its text, for the reader."""
        text = linecache.getline(self.file, line).strip()
        where = cell_name(self.file)
        return f"{where + ', ' if where else ''}line {line}" + (
            f"\n{line:>4} | {text}" if text else ""
        )


def live(name: str, thing: Any) -> Live:
    function = _function(thing)
    if function is None:
        return Live(name, thing, NOWHERE, 1, (), None, False)
    code: CodeType = function.__code__
    source = tuple(_block(code))
    line = code.co_firstlineno
    node = _definition(source)
    if node is not None:
        line = line + node.lineno - 1
        stub = is_stub(node)
    else:  # code without source is a stub where it only raises NotImplementedError
        variables = code.co_nlocals - code.co_argcount - code.co_kwonlyargcount
        stub = code.co_names == ("NotImplementedError",) and not variables
    return Live(name, thing, code.co_filename, code.co_firstlineno, source, line, stub)


def cell_name(file: str) -> str:
    """The name of a cell, `In[5]`, or of a file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    naming = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if naming is not None and (found := naming(file)):
        return str(found[-1])
    return Path(file).name if Path(file).is_file() else ""


def _function(thing: Any) -> FunctionType | None:
    """The student's own function inside decorators, partials, methods and callable objects."""
    for _ in range(WRAPPERS):
        inner: Any = None
        if isinstance(thing, functools.partial):
            inner = thing.func
        elif isinstance(thing, MethodType):
            inner = thing.__func__
        elif isinstance(thing, FunctionType):
            inner = next(_wrapped(thing), None)
            if inner is None:
                return thing
        elif not isinstance(thing, type):
            call = inspect.getattr_static(type(thing), "__call__", None)
            inner = call if isinstance(call, FunctionType) else None
        if inner is None:
            return None
        thing = inner
    return None


def _wrapped(function: FunctionType) -> Iterator[Any]:
    """The function inside a decorator's wrapper, also where there is no `__wrapped__`."""
    named = vars(function).get("__wrapped__")
    if callable(named):
        yield named
    if function.__code__.co_freevars and function.__code__.co_filename.startswith(sys.prefix):
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # not bound yet
                if isinstance(cell.cell_contents, FunctionType):
                    yield cell.cell_contents


def _block(code: CodeType) -> list[str]:
    lines = linecache.getlines(code.co_filename)
    try:
        # The latter knows where newer prompts keep what was typed.
        found = (
            inspect.getblock(lines[code.co_firstlineno - 1 :])
            if lines
            else inspect.getsourcelines(code)[0]
        )
    except (OSError, SyntaxError, IndexError, TypeError):
        return []
    return [line.rstrip("\n") for line in found]


def _definition(source: tuple[str, ...]) -> ast.FunctionDef | None:
    try:
        body = ast.parse(textwrap.dedent("\n".join(source))).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if len(body) == 1 and isinstance(body[0], ast.FunctionDef) else None


def _cell(live: Live) -> str:
    """The text of the cell, or at least the function at its lines."""
    return "".join(linecache.getlines(live.file)) or "\n" * (live.first - 1) + "\n".join(
        live.source
    )


@contextlib.contextmanager
def recording_lines(live: Live, names: Mapping[str, Any]) -> Iterator[None]:
    """While it is open, the functions of the cell record the lines that they execute, if their source is known."""
    codes: dict[tuple[str, int], CodeType] = {}
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        waiting = [compile_with_marks(ast.parse(_cell(live)), live.file)]
        for code in waiting:  # which grows meanwhile
            codes[code.co_qualname, code.co_firstlineno] = code
            waiting += (each for each in code.co_consts if isinstance(each, CodeType))
    before: dict[FunctionType, CodeType] = {}
    for each in (_function(live.thing), *names.values()):
        if isinstance(each, FunctionType) and each.__code__.co_filename == live.file:
            made = codes.get((each.__code__.co_qualname, each.__code__.co_firstlineno))
            if (
                each not in before
                and made is not None
                and made.co_freevars == each.__code__.co_freevars
            ):
                before[each] = each.__code__
                each.__code__ = made
    try:
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


OTHER: Final = (
    "<another cell>"  # so that its lines are not mistaken for those of the function's own cell
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definitions(live: Live, namespace: dict[str, Any]) -> list[str]:
    """The code to run in another process: what the function uses of other cells, then its own cell, with its lines."""
    if live.file == NOWHERE:
        return [f"{live.name} = {live.thing!r}"] if isinstance(live.thing, dict) else []
    own = _cell(live)
    history = namespace.get("In")
    cells = [cell for cell in history if isinstance(cell, str)] if isinstance(history, list) else []
    # The history has a cell once for each time it ran; the last one counts, so the function's own cell comes last.
    texts = [*(cell for cell in cells if cell.strip() != own.strip()), own]
    used = needs(live.name, texts)
    *others, last = (only_definitions(text, used) for text in texts)
    return [
        *(f"exec(compile({text!r}, {OTHER!r}, 'exec'))" for text in others if text.strip()),
        last,
    ]


def needs(name: str, texts: Iterable[str]) -> set[str]:
    """A name, and all names that its definition uses, directly or indirectly."""
    statements = [statement for text in texts for statement in _tree(text).body]
    wanted = {name}
    before = 0
    while len(wanted) > before:
        before = len(wanted)
        wanted |= {use for s in statements if wanted.intersection(_bound(s)) for use in _uses(s)}
    return wanted


def only_definitions(source: str, used: set[str]) -> str:
    """A cell with only its imports and the functions, classes and values that are used.

    Removed lines are left empty, so that the others keep their numbers.
    """
    plain = without_magics(source)
    lines = plain.splitlines()
    for statement in _tree(plain).body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)) and used.isdisjoint(
            _bound(statement)
        ):
            first = min(
                [statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]
            )
            for number in range(first - 1, statement.end_lineno or statement.lineno):
                lines[number] = ""
    return "\n".join(lines)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a definition or an assignment binds."""
    if isinstance(statement, _SCOPES):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (
                n.id
                for n in ast.walk(target)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            )


def _uses(statement: ast.stmt) -> set[str]:
    """The names a statement reads that are not its own."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    if not isinstance(statement, _SCOPES):
        return read
    arguments = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return read - arguments - {name.id for name in names if not isinstance(name.ctx, ast.Load)}


def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(without_magics(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
