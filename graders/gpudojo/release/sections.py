"""Splits exercise files into sections, and says what a notebook's cells say about them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.grading.bindings import is_demo
from gpudojo.model.catalogue import exercise_for
from gpudojo.model.errors import BadMarkers
from gpudojo.model.exercise import Exercise
from gpudojo.release.stubs import BEGIN, stub_of

# What the file says to whoever runs it as a script, and what a notebook's reader does instead.
IN_A_FILE: Final = "open this file and fill it in"
IN_A_NOTEBOOK: Final = "fill in its cell above"
HOW_TO_FILL_IN: Final = (
    "Fill in the cells that say `raise NotImplementedError`, run them, "
    "and run the check below each."
)
HOW_TO_ANSWER: Final = "Fill in the cell, run it, and run the check below it."
LINE_FOR_SCRIPTS: Final = re.compile(r"^(Read|Run|Check) me: .*$", re.M)
COMMAND: Final = re.compile(r"[\w./-]+( --?[\w-]+(=\S+)?)+")
SIZE: Final = re.compile(r"(About )?\d+ lines?\.")
SIZE_AND_READING: Final = re.compile(r"^(?P<size>.*?)\s*Read: (?P<address>https://\S+)$", re.S)


@dataclass(frozen=True)
class Section:
    """Some statements of the file that stand together; of the title, its text."""

    code: str
    text: str = ""
    demo: bool = False


@dataclass(frozen=True)
class Task(Section):
    """A function, or a value, for students to write; its text is the contract."""

    name: str = ""
    signature: str = ""


def split_into_sections(path: Path) -> list[Section]:
    """Return a reference file as students see it, in order; the first section is its title.

    Raises BadMarkers where it is not Python, or its solutions are not marked as they should, and
    OSError where it cannot be read.
    """
    source = path.read_text(encoding="utf-8")
    stub = stub_of(source, str(path)).replace(IN_A_FILE, IN_A_NOTEBOOK)
    try:
        tasks = names_of_tasks(source)
        tree = ast.parse(stub)
    except SyntaxError as error:
        reason = f"this is not Python: {error.msg}"
        raise BadMarkers(str(path), error.lineno or 1, reason) from None
    title = ast.get_docstring(tree)
    statements = tree.body
    splitter = _SectionSplitter(stub.splitlines(), tasks)
    if title is None:
        title = path.stem.replace("_", " ")
    else:
        docstring, *statements = statements
        splitter.skip_to(docstring.end_lineno or 0)
    for statement in statements:
        splitter.add_statement(statement)
    splitter.add_rest()
    return [Section("", title), *splitter.sections]


class _SectionSplitter:
    """Puts the lines of a file into sections, statement by statement.

    `tasks` are the names that students bind. Lines above a statement belong to it.
    """

    def __init__(self, lines: list[str], tasks: Collection[str]) -> None:
        """Begin at the first line, without any section.

        `tasks` are the names that students bind.
        """
        self.sections: list[Section] = []
        self._lines = lines
        self._tasks = tasks
        self._begin = 0  # the number of lines that are in a section already
        self._given: list[str] = []  # lines since the last task or demo

    def skip_to(self, line: int) -> None:
        """Leave out the lines up to this one."""
        self._begin = line

    def add_statement(self, statement: ast.stmt) -> None:
        """Add the next statement: as a task, as a demo, or to what is given between them.

        Lines above a task or a demo are in its own section.
        """
        first = _first_line(statement)
        end = statement.end_lineno or 0
        above = self._lines[self._begin : first - 1]
        code = self._lines[first - 1 : end]
        self._begin = end
        name = _name_bound_by(statement)
        if name in self._tasks:
            self._end_given_code()
            task = _make_task(statement, name, above, code)
            self.sections.append(task)
        elif is_demo(statement):
            self._end_given_code()
            lines = _without_blank_ends(above) + code
            self.sections.append(Section("\n".join(lines), demo=True))
        else:
            self._given += above + code

    def add_rest(self) -> None:
        """Add the lines after the last statement."""
        self._given += self._lines[self._begin :]
        self._end_given_code()

    def _end_given_code(self) -> None:
        """Make a section of the given lines, unless they are empty, and begin to collect anew."""
        lines = _without_blank_ends(self._given)
        self._given = []
        if lines:
            self.sections.append(Section("\n".join(lines)))


def _first_line(statement: ast.stmt) -> int:
    """Return the line of a statement, or of its first decorator."""
    match statement:
        case ast.FunctionDef(decorator_list=[first, *_]) | ast.ClassDef(decorator_list=[first, *_]):
            return first.lineno
    return statement.lineno


def names_of_tasks(source: str) -> set[str]:
    """Return the names that are bound by statements in which a solution stands.

    Raises SyntaxError where the source is not Python.
    """
    lines = source.splitlines()
    names = set()
    # From the last statement to the first: comments behind a statement belong to it, too.
    end = len(lines)
    for statement in reversed(ast.parse(source).body):
        first = statement.lineno - 1
        lines_of_statement = [line.strip() for line in lines[first:end]]
        if BEGIN in lines_of_statement:
            names.add(_name_bound_by(statement))
        end = first
    return names - {""}


def _make_task(statement: ast.stmt, name: str, above: list[str], code: list[str]) -> Task:
    """Return a task, with its contract as text: the docstring, or the comment above a value.

    `above` are the lines between the statement before and the code.
    """
    if not isinstance(statement, ast.FunctionDef):
        comment = _text_of_comment(above)
        return Task("\n".join(code), comment, name=name)
    parameters = ast.unparse(statement.args)
    signature = f"{name}({parameters})"
    contract = ast.get_docstring(statement) or ""
    lines = _without_blank_ends(above)
    lines += _with_short_docstring(statement, code)
    return Task("\n".join(lines), contract, name=name, signature=signature)


def _text_of_comment(lines: list[str]) -> str:
    """Return the text of comment lines, without their signs and line breaks."""
    pieces = []
    for line in lines:
        text = line.strip()
        if text:
            pieces.append(text.lstrip("# "))
    return " ".join(pieces)


def _with_short_docstring(function: ast.FunctionDef, code: list[str]) -> list[str]:
    """Return the function's lines with the first line of its docstring alone.

    The whole contract stands right above it. A first line that goes on in the next one would say
    nothing, and then the docstring stays.
    """
    docstring = function.body[0]
    if not isinstance(docstring, ast.Expr) or not isinstance(docstring.value, ast.Constant):
        return code
    # Its places among the lines of the code.
    first_line_of_code = (function.end_lineno or 0) - len(code) + 1
    first = docstring.lineno - first_line_of_code
    last = (docstring.end_lineno or 0) - first_line_of_code
    if first == last or not code[first].endswith((".", ":")):
        return code
    closed_line = f'{code[first]}"""'
    return [*code[:first], closed_line, *code[last + 1 :]]


def _without_blank_ends(lines: list[str]) -> list[str]:
    """Return the lines without empty ones at the beginning and the end."""
    text = "\n".join(lines)
    return text.strip("\n").splitlines()


def _name_bound_by(statement: ast.stmt) -> str:
    """Return what a definition defines, or an assignment assigns first; empty for the rest."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name), *_]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def title_text(docstring: str, stem: str, level: int = 1) -> str:
    """Return the first cell of an exercise in Markdown: its title, and what to do.

    `docstring` is that of the exercise's file, `level` the level of the heading; how to begin is
    said at the first level alone. Raises BadDay where the exercise cannot be imported.
    """
    first, _, rest = docstring.partition("\n")
    title = first.removesuffix(".")
    number, _, _ = stem.partition("_")
    if number.isdecimal():
        title = f"{number} {title}"
    signs = "#" * level
    blocks = [f"{signs} {title}"]
    text = LINE_FOR_SCRIPTS.sub("", rest).strip()
    for block in text.split("\n\n"):
        if block.strip():
            blocks.append(_on_one_line(block))
    about = []
    exercise = exercise_for(Path(f"{stem}.py"))
    if exercise is not None:
        about.append(f"{exercise.points} points.")
    if level == 1:
        about.append(_how_to_begin(exercise))
    if about:
        blocks.append(" ".join(about))
    return "\n\n".join(blocks)


def _how_to_begin(exercise: Exercise | None) -> str:
    """Return what to do with the cells of an exercise; one may have values alone to fill in."""
    if exercise is None:
        return HOW_TO_FILL_IN
    for function in exercise.functions:
        if function.name.islower():  # a value is in capitals
            return HOW_TO_FILL_IN
    return HOW_TO_ANSWER


def task_text(task: Task) -> str:
    """Return the cell above a task, in Markdown.

    It has the contract, then how long a solution may get and what to read.
    """
    blocks = [f"### `{task.signature or task.name}`"]
    *contract, last = task.text.split("\n\n")
    reading = SIZE_AND_READING.match(_on_one_line(last))
    if reading is None:
        contract.append(last)
    for block in contract:
        # Prose flows; a command on a line of its own stays as it is.
        text = block.strip()
        if COMMAND.fullmatch(text):
            blocks.append(f"    {text}")
        else:
            blocks.append(_on_one_line(text))
    if reading is not None:
        size = reading["size"]
        if SIZE.fullmatch(size):
            size = f"*{size}*"
        address = reading["address"]
        blocks.append(f"{size} Read: <{address}>".strip())
    return "\n\n".join(filter(None, blocks))


def _on_one_line(block: str) -> str:
    """Return a block on one line.

    Outside of `code`, an asterisk or an angle bracket would be read as Markdown.
    """
    text = ""
    line = " ".join(block.split())
    for piece in re.split(r"(`[^`]*`)", line):
        if piece.startswith("`"):
            text += piece
        else:
            text += re.sub(r"([*<\\])", r"\\\1", piece)
    return text
