"""What the student sees, as renderables of rich: the full-screen app and line mode show the same."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from rich.align import Align
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text
from rich.theme import Theme
from virtual_cuda.ledger import draw_timeline, timeline_legend

from gpudojo.grading.feedback import headline_and_parts, hint_parts, hints_about, progress_bar
from gpudojo.model.catalogue import lesson_of
from gpudojo.model.errors import suggest_name
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.watch.session import Course, ExerciseWork

AROUND: Final = 2  # lines of code above and below the one that is shown
MOST_PRINTED: Final = 40  # lines
# By the state of an exercise: the mark, which says it without colours too, and its colour.
MARKS: Final = {
    "done": ("✓", "green"),
    "begun": ("●", "yellow"),
    "to do": ("○", ""),
    "broken": ("✗", "red"),
    "missing": ("?", "red"),
    "unknown": ("…", "dim"),
}
LABELS: Final = {
    "happened": "red",
    "expected": "green",
    "mistake": "yellow",
    "hint": "cyan",
    "read": "cyan",
}
TIMELINE: Final = {
    "wait": "bold red",
    "copy": "cyan",
    "grad": "yellow",
    "no grad": "green",
    "autocast": "magenta",
    "pass": "bold",
    "memory": "blue",
}
HEART: Final = (0, 102, 255, 255, 126, 60, 24)
RAINBOW: Final = ("red", "yellow", "green", "cyan", "blue", "magenta")


def tint(style: str) -> str:
    """A style without its colour, where the user wants none."""
    words = style.split()
    return (
        " ".join(word for word in words if word in ("bold", "dim", "not"))
        if os.environ.get("NO_COLOR")
        else style
    )


def number(points: float) -> str:
    return f"{round(points, 2):g}"


def entry(work: ExerciseWork, width: int, marked: bool = False) -> Text:
    """One line of the list of exercises; one that is marked has no colours, which may be unreadable on the mark's."""
    row, (mark, colour) = work.points(), MARKS[work.state]
    colour, dim = ("", "") if marked else (colour, "dim")
    points = f"{number(row.points)}/{number(row.max_points)}"
    name = work.stem.replace("_", " ")
    room = width - len(points) - 3
    name = name if len(name) <= room else f"{name[: room - 1].rstrip()}…"
    return Text.assemble(
        (f"{mark} ", tint(colour)), f"{name:{max(room, 0)}} ", (points, tint(colour or dim))
    )


def score(course: Course, width: int = 20) -> Text:
    """The points of the day, after a bar of so many characters."""
    points, most = course.score
    return Text(f"{progress_bar(points, most, width)} {number(points)} of {number(most)} points")


def panel(
    course: Course, hints: int = 0, more: str = "the key h", dark: bool = True
) -> RenderableType:
    """The first thing to fix in the current exercise; a celebration where all are done."""
    if course.done:
        return celebration(course)
    return Group(*_panel(course, hints, more, dark))


def _panel(course: Course, hints: int, more: str, dark: bool) -> Iterator[RenderableType]:
    work = course.current
    if course.finished is not None and course.finished is not work:
        row = course.finished.points()
        said = f"✓ {course.finished.stem} is done: {number(row.points)} of {number(row.max_points)} points. Next:"
        yield Text(f"{said}\n", tint("bold green"))
    yield Text(f"{work.exercise.number} {work.exercise.title}", "bold")
    yield Text(f"{work.path.name}{_functions(work)}\n", "dim")
    if work.state == "missing":
        yield Text(
            f"{work.path.name} is not in {work.path.parent}. Its points count as not reached.",
            tint("red"),
        )
        others = {path.name for path in work.path.parent.glob("*.py")} - {
            each.path.name for each in course.works
        }
        if near := suggest_name(work.path.name, others, "").strip("; "):
            yield Text(f"\nA file with another name is not graded: {near}")
    elif work.broken is not None:
        yield Text(f"{work.broken.type}: {work.broken.message}", tint("bold red"))
        if work.broken.line is not None:
            yield excerpt(work.text or "", work.broken.line, dark)
        yield Text("Nothing is graded until Python can read the file.")
    elif work.stem in course.pending and work.first is None:
        yield Text("not graded yet")
    elif work.first is None:
        yield Text(
            f"All checks pass. {'Press n for the next exercise.' if course.after(work) else ''}",
            tint("green"),
        )
    else:
        if work.first.function in course.pending.get(work.stem, ()):
            yield Text(
                "What you saved is being graded. This is about the file as it was before:\n",
                tint("yellow"),
            )
        yield from feedback(work, work.first, hints, more, dark)


def _functions(work: ExerciseWork) -> str:
    """The points of each function, where there are several."""
    rows = [(name, work.points(name)) for name in work.names]
    shown = (f"{name} {number(row.points)}/{number(row.max_points)}" for name, row in rows)
    return f": {', '.join(shown)}" if len(rows) > 1 else ""


def feedback(
    work: ExerciseWork, result: CheckResult, hints: int, more: str, dark: bool
) -> Iterator[RenderableType]:
    """Everything about one check that did not pass."""
    headline, parts = headline_and_parts(
        result, "here" if result.line is not None else "", work.path.name
    )
    function = next(each for each in work.exercise.functions if each.name == result.function)
    mark, colour = MARKS["to do" if result.outcome is Outcome.TODO else "broken"]
    yield Text.assemble((f"{mark} ", tint(f"bold {colour}")), (headline, "bold"))
    if result.outcome is Outcome.TODO:
        yield Padding(Text(_task(work, function.name)), (1, 0, 0, 2))
    elif result.outcome is Outcome.FAILED:
        every = hints_about(result, function)
        parts += hint_parts(every, work.exercise, hints, more)
        if not hints and every:
            parts.append(("", f"({len(every)} hints; the first with {more})"))
    yield Text()
    table = _two_columns()
    for label, text in parts:
        style = tint(f"bold {LABELS.get(label.partition(' ')[0], '')}")
        if label == "line" and result.line is not None:  # code needs all columns
            yield from (
                table,
                Text(f"line {result.line}", style),
                excerpt(work.about[result.function], result.line, dark),
            )
            table = _two_columns()
        else:
            table.add_row(Text(label, style), Text(text))
    yield table


def _two_columns() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=8)
    table.add_column(overflow="fold")  # a web address is of no use when it is cut off
    return table


def excerpt(text: str, line: int, dark: bool) -> RenderableType:
    """A line of the student's file, marked, with some around it."""
    lines = text.replace("\0", "\N{SYMBOL FOR NULL}").split("\n")
    first = max(min(line, len(lines)) - AROUND, 1)
    shown = slice(first - 1, line + AROUND)
    indent = min(
        (len(each) - len(each.lstrip()) for each in lines[shown] if each.strip()), default=0
    )
    code = Text("\n".join(lines))
    if not os.environ.get("NO_COLOR"):  # the whole file, as an excerpt may begin inside a string
        code = Syntax("", "python", theme="ansi_dark" if dark else "ansi_light").highlight(
            code.plain
        )
    table = Table.grid("", "", Column(overflow="fold"), padding=(0, 1, 0, 0))
    for place, each in enumerate(code.split("\n", allow_blank=True)[: len(lines)][shown], first):
        mark, style = ("❱", "bold") if place == line else (" ", "dim")
        cut = each[indent:] if len(each) > indent else Text()
        table.add_row(Text(mark, tint("bold red")), Text(f"{place:>3}", style), cut)
    return table


def _task(work: ExerciseWork, function: str) -> str:
    """The docstring of a function that is to do, or else the file's first sentence; paragraphs without line breaks."""
    tree = ast.parse(work.graded or "")
    found = (
        ast.get_docstring(n)
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and n.name == function
    )
    paragraphs = (next(found, None) or (ast.get_docstring(tree) or "").partition("\n\n")[0]).split(
        "\n\n"
    )
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def aside(course: Course) -> RenderableType:
    """Below the thing to fix: what waits for it, where the file stopped, and what was printed."""
    work = course.current
    finished = course.finished
    parts: list[RenderableType] = []
    if not course.done and work.broken is None and work.text is not None:
        parts += _aside(work)
    if finished is not None and (finished is not work or course.done):
        parts += (part for name in finished.names for part in _printed(finished, name))
    return Group(*parts)


def _aside(work: ExerciseWork) -> Iterator[RenderableType]:
    first = work.first
    if first is not None:
        blocked = [
            each.check for each in work.results[first.function] if each.blocked_by == first.check
        ]
        yield Text(
            f"\nblocked until `{first.check}` passes: {', '.join(blocked)}" if blocked else "",
            "dim",
        )
        for name in work.names:
            failed = [each for each in work.results.get(name, ()) if each.outcome is Outcome.FAILED]
            if failed and name != first.function:
                yield Text(f"then `{name}`: {headline_and_parts(failed[0])[0]}", "dim")
    if work.stopped is not None:
        place = f" at line {work.stopped.line}" if work.stopped.line else ""
        yield Text(
            f"\nThe file stopped{place}: {work.stopped.short}. What it defines before was graded.",
            tint("yellow"),
        )
    yield from _printed(work, first.function if first is not None else work.last)


def _printed(work: ExerciseWork, name: str) -> Iterator[RenderableType]:
    printed = work.printed.get(name, "").rstrip("\n")
    if printed:
        lines = printed.split("\n")
        if len(lines) > MOST_PRINTED:
            lines[:-MOST_PRINTED] = [f"… {len(lines) - MOST_PRINTED:,} lines left out …"]
        yield Text(f"\nprinted by {name}", "bold")
        yield Padding(Text("\n".join(lines)), (0, 0, 0, 2))


def timeline(course: Course, width: int) -> RenderableType:
    """What the busiest call of a function did: of the one to fix, or of the last that was graded."""
    work = course.current
    if (
        not work.timelines and course.finished is not None
    ):  # the exercise before is done, and this one has not begun
        work = course.finished
    wanted = [work.first.function if work.first is not None else "", work.last, *work.names]
    name = next((name for name in wanted if name in work.timelines), None)
    if name is None:
        return Text("No timeline: nothing was recorded on the device, or nothing has run yet.")
    yours, theirs = work.timelines[name]
    lines: list[Text] = []
    for line in draw_timeline(yours, width, theirs):
        lines.append(
            Text.assemble(*((text, tint(TIMELINE.get(meaning, ""))) for text, meaning in line))
        )
    return Group(*lines, Text(), *_dim(timeline_legend(width)))


def _dim(lines: Iterable[str]) -> Iterator[Text]:
    return (Text(line, "dim", no_wrap=True) for line in lines)


class _Code(CodeBlock):
    """A block of code without empty lines around it, which rich adds to those between blocks."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=self.theme,
            word_wrap=True,
            padding=(0, 1),
        )


class _Page(Markdown):
    elements: ClassVar = {**Markdown.elements, "fence": _Code}


class LessonPage:
    """A lesson in Markdown; code in its text has no background, which rich makes black on a light one too."""

    def __init__(self, text: str, dark: bool) -> None:
        self.markdown = _Page(text, code_theme="ansi_dark" if dark else "ansi_light")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(Theme({"markdown.code": tint("bold cyan")})):
            yield from console.render(self.markdown, options)


def lesson(work: ExerciseWork, dark: bool) -> RenderableType:
    """The lesson of an exercise."""
    text = lesson_of(work.exercise)
    return (
        Text(f"There is no lesson for {work.exercise.number}.")
        if text is None
        else LessonPage(text, dark)
    )


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


def keys() -> RenderableType:
    """What can be typed, and what the signs in the list mean."""
    table = _two_columns()
    for key, meaning in KEYS:
        table.add_row(Text(key, "bold"), Text(meaning))
    signs = "   ".join(f"{mark} {state}" for state, (mark, _) in MARKS.items())
    return Group(
        Text("Save a file of the day to have it graded.\n", "bold"), table, Text(f"\n{signs}")
    )


def celebration(course: Course, step: int = 0) -> RenderableType:
    """The end of the day: a heart of the sprites that the exercises draw, in colours that move with `step`."""
    heart = Text()
    for place, row in enumerate(HEART):
        pixels = "".join("██" if bit == "1" else "  " for bit in f"{row:08b}")
        heart.append(f"{pixels}\n", tint(RAINBOW[(place + step) % len(RAINBOW)]))
    points, most = course.score
    said = Text(f"{course.title}: everything passes.\n", "bold", justify="center")
    said.append(f"{number(points)} of {number(most)} points. Well done!", "not bold")
    return Group(Align.center(heart), said)
