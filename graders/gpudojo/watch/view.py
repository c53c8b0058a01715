"""What the student sees, as renderables of rich, for the full-screen app and for line mode."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from rich.align import Align
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.padding import Padding
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text
from rich.theme import Theme
from virtual_cuda.ledger import draw_timeline, timeline_legend

from gpudojo.grading.colours import style_of_label, style_of_timeline
from gpudojo.grading.feedback import (
    CONTINUATION,
    ExercisePoints,
    Part,
    headline_and_parts,
    hint_parts,
    hints_about,
    pages_about,
    progress_bar,
)
from gpudojo.model.errors import suggest_name
from gpudojo.model.evidence import Raised
from gpudojo.model.lessons import lesson_of
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.model.results_file import count_and_noun, format_points
from gpudojo.watch.course import BusiestCalls, Course, ExerciseWork, SkippedBreakpoint

LINES_AROUND: Final = 2  # lines of code above and below the one that is shown
PRINTED_LINES: Final = 40
NEWER_IS_GRADED: Final = (
    "What you saved is being graded. This is about the file as it was before:\n"
)
SHORTEST_ENTRY: Final = 16  # characters, below which an exercise is named by its number alone
KEY_OF_HINTS: Final = "the key h"
WORDS_WITHOUT_COLOUR: Final = ("bold", "dim", "not")  # of a style


class StateMark(NamedTuple):
    """The sign for a state of an exercise, which says it without colours too."""

    sign: str
    style: str


MARKS: Final = {
    "done": StateMark("✓", "green"),
    "begun": StateMark("●", "yellow"),
    "to do": StateMark("○", ""),
    "broken": StateMark("✗", "red"),
    "missing": StateMark("?", "red"),
    "unknown": StateMark("…", "dim"),
}
HEART: Final = (0, 102, 255, 255, 126, 60, 24)  # rows of eight pixels, a bit for each
RAINBOW: Final = ("red", "yellow", "green", "cyan", "blue", "magenta")


def wanted_style(style: str) -> str:
    """The style, without its colour if the user wants none."""
    if not os.environ.get("NO_COLOR"):
        return style
    words = [word for word in style.split() if word in WORDS_WITHOUT_COLOUR]
    return " ".join(words)


def _styled_text(text: str, style: str) -> Text:
    """A text in a style, without its colour if the user wants none."""
    return Text(text, wanted_style(style))


def _code_theme(dark: bool) -> str:
    """The name of rich's colours for code on a dark or a light background."""
    if dark:
        return "ansi_dark"
    return "ansi_light"


def _points_of_most(row: ExercisePoints, between: str) -> str:
    """Points, and how many there are: with "/" between them, "2/5"."""
    points = format_points(row.points)
    most = format_points(row.max_points)
    return f"{points}{between}{most}"


def list_entry(work: ExerciseWork, width: int, selected: bool = False) -> Text:
    """One line of the list of exercises, of so many characters.

    A selected one has no colours, which may be unreadable on the colour of the selection.
    """
    mark = MARKS[work.state]
    points = _points_of_most(work.count_points(), "/")
    name = work.stem.replace("_", " ")
    room = width - len(points) - 3
    if len(name) > room:
        name = name[: room - 1].rstrip() + "…"
    style = ""
    style_of_points = ""
    if not selected:
        style = mark.style
        style_of_points = mark.style or "dim"
    return Text.assemble(
        (f"{mark.sign} ", wanted_style(style)),
        f"{name.ljust(room)} ",
        (points, wanted_style(style_of_points)),
    )


def folded_list(course: Course, width: int) -> Text:
    """The list of exercises in one line: a sign for each, and the current one by its name."""
    signs = Text()
    for work in course.works:
        mark = MARKS[work.state]
        style = mark.style
        if work is course.current:
            style = f"{style} reverse".strip()
        signs.append(mark.sign, wanted_style(style))
    signs.append("  ")
    room = width - len(signs)
    if room < SHORTEST_ENTRY:
        return signs.append(course.current.exercise.number)
    entry = list_entry(course.current, room)
    return signs.append_text(entry[2:])


class Key(NamedTuple):
    """A key, as the last line of the screen has it."""

    key: str
    meaning: str
    action: str  # that a click on it takes
    importance: int  # the least important ones are left out where there is no room


LESSON: Final = "lesson"
SHOWN_KEYS: Final = (
    Key("h", "hint", "hint", 5),
    Key("t", "timeline", "page('timeline')", 2),
    Key("l", LESSON, "page('lesson')", 3),
    Key("n", "next", "next", 4),
    Key("r", "again", "again", 1),
    Key("?", "help", "page('help')", 6),
    Key("q", "quit", "quit", 7),
)


def key_line(width: int, has_lesson: bool) -> Text:
    """The keys in one line of at most so many characters; each can be clicked.

    That of the lesson is left out where the exercise has none.
    """
    by_importance = sorted(SHOWN_KEYS, key=lambda key: key.importance)
    left_out: list[Key] = []
    if not has_lesson:
        left_out = [key for key in by_importance if key.meaning == LESSON]
        by_importance = [*left_out, *(key for key in by_importance if key not in left_out)]
    line = _line_of_keys(left_out)
    while len(line) > width and len(left_out) < len(by_importance):
        left_out.append(by_importance[len(left_out)])
        line = _line_of_keys(left_out)
    return line


def _line_of_keys(left_out: list[Key]) -> Text:
    """The keys in one line, without those that are left out."""
    line = Text()
    for key in SHOWN_KEYS:
        if key in left_out:
            continue
        if line:
            line.append("  ")
        entry = Text.assemble((key.key, "bold"), f" {key.meaning}")
        entry.stylize(Style.from_meta({"@click": f"app.{key.action}"}))
        line.append_text(entry)
    return line


def last_line(course: Course) -> str:
    """What stays on the terminal after quitting: the points, and what comes next."""
    text = _score_of_course(course)
    if course.done:
        return f"{text}. Everything passes."
    work: ExerciseWork | None = course.current
    if course.current.state == "done":
        work = course.work_after(course.current)
    if work is None:
        return f"{text}."
    return f"{text}. Next: {work.exercise.title} ({_shortest_path(work.path)})"


def score_line(course: Course, width: int = 20) -> Text:
    """The points of the day, after a bar of so many characters; without one for 0."""
    points, most = course.score
    score = _score_of_course(course)
    if not width:
        return Text(score)
    return Text(f"{progress_bar(points, most, width)} {score}")


def _score_of_course(course: Course) -> str:
    """The points of the day, and how many there are: "12 of 80 points"."""
    points, most = course.score
    reached = format_points(points)
    return f"{reached} of {format_points(most)} points"


def fix_panel(
    course: Course, hints: int = 0, more: str = KEY_OF_HINTS, dark: bool = True
) -> RenderableType:
    """The first thing to fix in the current exercise, or a celebration if all are done.

    `hints` is how many are shown, `more` says how to see one more, `dark` is the background. Raises
    BadDay or OSError where hints or mistakes of the day cannot be read.
    """
    if course.done:
        return celebration_page(course)
    return Group(*_panel_parts(course, hints, more, dark))


def _panel_parts(course: Course, hints: int, more: str, dark: bool) -> Iterator[RenderableType]:
    """Yield what was finished just now, the current exercise's title, and what is to fix in it.

    `hints` is how many are shown, `more` says how to see one more, `dark` is the background. Raises
    BadDay or OSError where hints or mistakes of the day cannot be read.
    """
    work = course.current
    finished = course.finished
    if finished is not None and finished is not work:
        yield _finished_line(finished)
    exercise = work.exercise
    yield Text(f"{exercise.number} {exercise.title}", "bold")
    yield Text(f"{work.path.name}{_points_by_function(work)}\n", "dim")
    if work.breakpoint is not None and work.broken is None:
        yield _breakpoint_line(work.breakpoint)
    # One of these: the file is missing, is no Python, is done or not graded yet, or has a mistake.
    if work.state == "missing":
        yield from _missing_parts(course, work)
    elif work.broken is not None:
        yield from _broken_parts(work, work.broken, dark)
    elif work.first is None:
        yield _line_without_mistakes(course, work, more)
    else:
        pending_functions = course.pending.get(work.stem, ())
        if work.first.function in pending_functions:
            yield _styled_text(NEWER_IS_GRADED, "yellow")
        yield from _feedback_parts(work, work.first, hints, more, dark)


def _finished_line(work: ExerciseWork) -> Text:
    """A line that says that an exercise is done, with its points."""
    points = _points_of_most(work.count_points(), " of ")
    text = f"✓ {work.stem} is done: {points} points. Next:\n"
    return _styled_text(text, "bold green")


def _breakpoint_line(skipped: SkippedBreakpoint) -> Text:
    """A line that says that a breakpoint was skipped, and where it stops."""
    text = f"breakpoint() at line {skipped.line} stops only under pytest.\n"
    return _styled_text(text, "yellow")


def _shortest_path(path: Path) -> str:
    """The path from the current folder, where that is shorter."""
    with contextlib.suppress(ValueError):  # another drive
        return min(str(path), os.path.relpath(path), key=len)
    return str(path)


def _missing_parts(course: Course, work: ExerciseWork) -> Iterator[RenderableType]:
    """Yield sentences that say that a file is missing, and which other file may be it."""
    folder = work.path.parent
    name = work.path.name
    text = f"{name} is not in {folder}. Its points count as not reached."
    yield _styled_text(text, "red")
    files_of_day = {each.path for each in course.works}
    other_names = {path.name for path in folder.glob("*.py") if path not in files_of_day}
    suggestion = suggest_name(name, other_names, "").strip("; ")
    if suggestion:
        yield Text(f"\nA file with another name is not graded: {suggestion}")


def _broken_parts(work: ExerciseWork, error: Raised, dark: bool) -> Iterator[RenderableType]:
    """Yield why Python cannot read the file, and the line at which it stopped.

    `dark` is whether the terminal is dark.
    """
    yield _styled_text(f"{error.type}: {error.message}", "bold red")
    if error.line is not None:
        yield code_excerpt(work.text or "", error.line, dark)
    yield Text("Nothing is graded until Python can read the file.")


def _line_without_mistakes(course: Course, work: ExerciseWork, more: str) -> Text:
    """A line that says that an exercise passes, or is not graded yet.

    It names the next exercise to do, with its key where `more` says that there are keys.
    """
    if work.stem in course.pending:
        return Text("not graded yet")
    text = "All checks pass."
    if work.has_model_solution:
        text += f" To compare: dojo solution {work.exercise.number}"
    following = course.work_after(work)
    if following is not None:
        text += f"\nNext: {following.exercise.number} {following.exercise.title}"
        text += f" ({following.path.name})"
        if more == KEY_OF_HINTS:
            text += ": the key n"
    return _styled_text(text, "green")


def _points_by_function(work: ExerciseWork) -> str:
    """The points of each function, if there are several."""
    if len(work.names) < 2:
        return ""
    points = []
    for name in work.names:
        row = work.count_points(name)
        points.append(f"{name} {_points_of_most(row, '/')}")
    return f": {', '.join(points)}"


def _feedback_parts(
    work: ExerciseWork, result: CheckResult, hints: int, more: str, dark: bool
) -> Iterator[RenderableType]:
    """Yield everything about one check that did not pass.

    `hints` is how many are shown, `more` says how to see one more, `dark` is the background. Raises
    BadDay or OSError where hints or mistakes of the day cannot be read.
    """
    # The headline, and what is below it.
    place = ""
    if result.line is not None:
        place = "here"  # the line itself is an excerpt below
    headline, parts = headline_and_parts(result, place, work.path.name)
    if result.outcome is Outcome.TODO:
        yield _marked_headline(MARKS["to do"], headline)
        task = Text(_task_of(work, result.function))
        yield Padding(task, (1, 0, 0, 2))
    else:
        yield _marked_headline(MARKS["broken"], headline)
    if result.outcome is Outcome.FAILED:
        parts += _parts_of_hints(work, result, hints, more)
    # The labelled parts, in a table that is interrupted for code.
    yield Text()
    table = _two_columns()
    for label, text in parts:
        style = wanted_style(f"bold {style_of_label(label)}")
        if label == result.line_role and result.line is not None:  # code needs all columns
            yield table
            yield Text(f"{result.line_role.before}line {result.line}", style)
            graded_text = work.about[result.function]
            yield code_excerpt(graded_text, result.line, dark)
            table = _two_columns()
        else:
            table.add_row(Text(label, style), Text(text))
    yield table


def _marked_headline(mark: StateMark, headline: str) -> Text:
    """A headline after its sign, both bold, the sign in its colour."""
    style = wanted_style(f"bold {mark.style}")
    line = Text(f"{mark.sign} ", style)
    return line.append(headline, "bold")


def _parts_of_hints(work: ExerciseWork, result: CheckResult, hints: int, more: str) -> list[Part]:
    """The first hints about a check that failed, or how many there are if none is to be shown.

    `hints` is how many are shown, `more` says how to see one more. Raises BadDay or OSError where
    hints or mistakes of the day cannot be read.
    """
    function = work.exercise.function_named(result.function)
    every_hint = hints_about(result, function)
    parts = hint_parts(every_hint, pages_about(result, work.exercise), hints, more)
    if every_hint and not hints:
        text = f"({count_and_noun(len(every_hint), 'hint')}; the first with {more})"
        parts.append(Part("", text))
    return parts


def _two_columns() -> Table:
    """An empty table for labels and texts."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=8)
    table.add_column(overflow="fold")  # a web address is of no use when it is cut off
    return table


class _CodeLine:
    """A line of code; where it is too long it goes on in the next line, further to the right."""

    def __init__(self, code: Text) -> None:
        self.code = code

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line in as many lines as it needs."""
        plain = self.code.plain
        indent = len(plain) - len(plain.lstrip()) + CONTINUATION
        room = options.max_width
        if indent > room // 2:  # so narrow that indentation would take it all
            indent = 0
        rest = self.code
        margin = ""
        while len(margin) + len(rest) > room:
            end = _end_of_first_line(rest.plain, room - len(margin))
            yield Text.assemble(margin, rest[:end].copy())
            rest = rest[end:]
            rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
            margin = " " * indent
        yield Text.assemble(margin, rest)


def _end_of_first_line(code: str, room: int) -> int:
    """How many characters of code to put into a line: to the last space that leaves half of it."""
    room = max(room, 1)
    space = code.rfind(" ", room // 2, room + 1)
    if space > len(code) - len(code.lstrip()):
        return space
    return room


def code_excerpt(text: str, line: int, dark: bool) -> RenderableType:
    """A line of the student's file, marked, with some lines of code around it.

    `text` is the whole file. A line after its end is not marked.
    """
    text = text.replace("\0", "\N{SYMBOL FOR NULL}")
    lines = text.split("\n")
    numbers = _lines_to_show(text, lines, line)
    indent = _common_indent([lines[number - 1] for number in numbers])
    # The whole file is coloured, as an excerpt may begin inside a string.
    code = _coloured_code(text, dark)
    coloured_lines = code.split("\n", allow_blank=True)[: len(lines)]
    # A row for each line: a sign beside the marked one, the number, the code.
    table = Table.grid("", "", Column(overflow="fold"), padding=(0, 1, 0, 0))
    for number in numbers:
        code_of_line = coloured_lines[number - 1]
        marker = Text(" ")
        style_of_number = "dim"
        if number == line:
            marker = _styled_text("❱", "bold red")
            style_of_number = "bold"
        dedented = Text()
        if len(code_of_line) > indent:
            dedented = code_of_line[indent:]
        table.add_row(marker, Text(f"{number:>3}", style_of_number), _CodeLine(dedented))
    return table


def _lines_to_show(text: str, lines: list[str], marked: int) -> list[int]:
    """The numbers of a marked line and of the lines around it that help to read it.

    Blank lines and docstrings are passed over, and what is left out shows by the numbers. A text
    that is no Python may have ended inside a string: there, the nearest lines are shown.
    """
    last = len(lines)
    nearest = range(max(min(marked, last) - LINES_AROUND, 1), min(marked + LINES_AROUND, last) + 1)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return list(nearest)
    passed_over = _lines_of_docstrings(tree)
    if marked in passed_over or marked > last:
        return list(nearest)
    before: list[int] = []
    after: list[int] = []
    for number in _lines_of_statement(tree, marked):
        code = lines[number - 1]
        if number == marked or not code.strip() or number in passed_over:
            continue
        if number < marked:
            before.append(number)
        else:
            after.append(number)
    return [*before[-LINES_AROUND:], marked, *after[:LINES_AROUND]]


def _lines_of_statement(tree: ast.Module, line: int) -> range:
    """The numbers of the lines of the function, or of another statement of a file, at a line."""
    for statement in tree.body:
        end = statement.end_lineno or statement.lineno
        if statement.lineno <= line <= end:
            return range(statement.lineno, end + 1)
    return range(line, line + 1)


def _lines_of_docstrings(tree: ast.Module) -> set[int]:
    """The numbers of all lines that docstrings take."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        docstring = node.body[0]
        numbers.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return numbers


def _coloured_code(text: str, dark: bool) -> Text:
    """Python code in rich's colours; without any, if the user wants none.

    `dark` is whether the terminal is dark.
    """
    if os.environ.get("NO_COLOR"):
        return Text(text)
    syntax = Syntax("", "python", theme=_code_theme(dark))
    return syntax.highlight(text)


def _common_indent(lines: list[str]) -> int:
    """The number of spaces that all lines begin with; blank lines do not count."""
    indents = []
    for line in lines:
        code = line.lstrip()
        if code:
            indents.append(len(line) - len(code))
    return min(indents, default=0)


def _task_of(work: ExerciseWork, name: str) -> str:
    """The docstring of a function that is to do, or else the file's first paragraph.

    Its paragraphs are without line breaks. Raises SyntaxError if the graded text is no Python.
    """
    tree = ast.parse(work.graded or "")
    text_of_file = ast.get_docstring(tree) or ""
    text, _, _ = text_of_file.partition("\n\n")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            text = ast.get_docstring(node) or text
            break
    paragraphs = []
    for paragraph in text.split("\n\n"):
        without_breaks = " ".join(paragraph.split())
        paragraphs.append(without_breaks)
    return "\n\n".join(paragraphs)


def aside_panel(course: Course) -> RenderableType:
    """Below the thing to fix: what waits for it, where the file stopped, and what was printed.

    Raises BadDay or OSError where mistakes of the day cannot be read.
    """
    work = course.current
    finished = course.finished
    parts: list[RenderableType] = []
    is_readable = work.broken is None and work.text is not None
    if is_readable and not course.done:
        parts += _aside_parts(work)
    if finished is not None and (finished is not work or course.done):
        for name in finished.names:
            parts += _printed_parts(finished, name)
    return Group(*parts)


def _aside_parts(work: ExerciseWork) -> Iterator[RenderableType]:
    """Yield of one exercise: what waits, where the file stopped, and what was printed.

    Raises BadDay or OSError where mistakes of the day cannot be read.
    """
    first = work.first
    printing_function = work.last
    if first is not None:
        printing_function = first.function
        yield _blocked_by(work, first)
        yield from _failures_elsewhere(work, first.function)
    if work.stopped is not None:
        place = ""
        if work.stopped.line:
            place = f" at line {work.stopped.line}"
        text = f"\nThe file stopped{place}: {work.stopped.short}."
        if first is None or first.outcome is not Outcome.TODO:
            text += " What it defines before was graded."
        yield _styled_text(text, "yellow")
    yield from _printed_parts(work, printing_function)


def _failures_elsewhere(work: ExerciseWork, function: str) -> Iterator[Text]:
    """Yield for each other function with a check that failed a line about the first of them.

    `function` is the one that is left out. Raises BadDay or OSError where mistakes of the day
    cannot be read.
    """
    for name in work.names:
        failed = _first_failure(work.results.get(name, []))
        if failed is not None and name != function:
            headline, _ = headline_and_parts(failed)
            yield Text(f"then `{name}`: {headline}", "dim")


def _first_failure(results: list[CheckResult]) -> CheckResult | None:
    """The first result of a check that failed; None if none did."""
    for result in results:
        if result.outcome is Outcome.FAILED:
            return result
    return None


def _blocked_by(work: ExerciseWork, first: CheckResult) -> Text:
    """The checks that wait for the one to fix first, in a line; empty where none does."""
    blocked = []
    for result in work.results[first.function]:
        if result.blocked_by == first.check:
            blocked.append(result.check)
    if not blocked:
        return Text("", "dim")
    names = ", ".join(blocked)
    return Text(f"\nblocked until `{first.check}` passes: {names}", "dim")


def _printed_parts(work: ExerciseWork, name: str) -> Iterator[RenderableType]:
    """Yield what a function printed, or the last PRINTED_LINES of it."""
    printed = work.printed.get(name, "").rstrip("\n")
    if not printed:
        return
    lines = printed.split("\n")
    left_out = len(lines) - PRINTED_LINES
    if left_out > 0:
        lines[:-PRINTED_LINES] = [f"… {left_out:,} lines left out …"]
    yield Text(f"\nprinted by {name}", "bold")
    text = Text("\n".join(lines))
    yield Padding(text, (0, 0, 0, 2))


def timeline_page(course: Course, width: int) -> RenderableType:
    """What the busiest call did: of the function to fix, or of the last that was graded.

    `width` is in characters. Without a timeline, a line says so.
    """
    work = course.current
    if not work.timelines and course.finished is not None:
        work = course.finished  # the exercise before is done, and this one has not begun
    pair = _timelines_to_show(work)
    if pair is None:
        return Text("No timeline: nothing was recorded on the device, or nothing has run yet.")
    lines = []
    for pieces in draw_timeline(pair.yours, width, pair.theirs):
        line = Text()
        for text, meaning in pieces:
            style = style_of_timeline(meaning)
            line.append(text, wanted_style(style))
        lines.append(line)
    lines.append(Text())
    for text in timeline_legend(width):
        lines.append(Text(text, "dim", no_wrap=True))
    return Group(*lines)


def _timelines_to_show(work: ExerciseWork) -> BusiestCalls | None:
    """Those of the function to fix, of the last that was graded, or of any other; else None."""
    names = [work.last, *work.names]
    if work.first is not None:
        names.insert(0, work.first.function)
    for name in names:
        if name in work.timelines:
            return work.timelines[name]
    return None


class _Code(CodeBlock):
    """A block of code without empty lines around it, which rich adds to those between blocks."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the code in colours, with one column free at each side."""
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class _MarkdownPage(Markdown):
    """A page of Markdown with such blocks of code."""

    elements: ClassVar = {**Markdown.elements, "fence": _Code}


class LessonPage:
    """A lesson in Markdown.

    Code in its text has no background, which rich makes black on a light one too.
    """

    def __init__(self, text: str, dark: bool) -> None:
        theme = _code_theme(dark)
        self.markdown = _MarkdownPage(text, code_theme=theme)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page, with our style for code in its text."""
        theme = Theme({"markdown.code": wanted_style("bold cyan")})
        with console.use_theme(theme):
            yield from console.render(self.markdown, options)


def lesson_page(work: ExerciseWork, dark: bool) -> RenderableType:
    """The lesson of an exercise, or a line that says that there is none.

    Raises OSError where the lesson cannot be read.
    """
    text = lesson_of(work.exercise)
    if text is None:
        return Text(f"There is no lesson for {work.exercise.number}.")
    return LessonPage(text, dark)


KEYS: Final = (
    ("↑ ↓", "another exercise"),
    ("h", "one more hint for the check that is shown"),
    ("t", "the timeline of the last call: operations, copies, waits and memory"),
    ("l", "the lesson of the exercise"),
    ("n", "the next exercise that is not done"),
    ("r", "grade the exercise again"),
    ("space, page up", "scroll"),
    ("esc", "back to the thing to fix; so does the same key again"),
    ("d", "dark or light"),
    ("q, ctrl+c", "quit; the next time begins where you stopped"),
)


def help_page(has_lesson: bool) -> RenderableType:
    """What can be typed, and what the signs in the list mean.

    The key of the lesson is left out where the exercise has none.
    """
    headline = Text("Save a file of the day to have it graded.\n", "bold")
    table = _two_columns()
    for key, meaning in KEYS:
        if key == "l" and not has_lesson:
            continue
        table.add_row(Text(key, "bold"), Text(meaning))
    signs = []
    for state, mark in MARKS.items():
        signs.append(f"{mark.sign} {state}")
    legend = "   ".join(signs)
    return Group(headline, table, Text(f"\n{legend}"))


def celebration_page(course: Course, step: int = 0) -> RenderableType:
    """The end of the day: a heart of the sprites that the exercises draw.

    Its colours move with `step`. Raises BadDay where the day's title cannot be read.
    """
    heart = Text()
    for number, row in enumerate(HEART):
        bits = f"{row:08b}"
        pixels = bits.replace("1", "██").replace("0", "  ")
        colour = RAINBOW[(number + step) % len(RAINBOW)]
        heart.append(f"{pixels}\n", wanted_style(colour))
    text = Text(f"{course.title}: everything passes.\n", "bold", justify="center")
    text.append(f"{_score_of_course(course)}. Well done!", "not bold")
    return Group(Align.center(heart), text)
