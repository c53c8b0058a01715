"""Splits exercise files into sections, and says what a notebook's cells say about them."""

from __future__ import annotations

import ast
import re
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

    Raises BadMarkers where it is not Python, or its solutions are not marked as they should.
    """
    source = path.read_text(encoding="utf-8")
    stub = stub_of(source, str(path)).replace(IN_A_FILE, IN_A_NOTEBOOK)
    try:
        tasks = names_of_tasks(source)
        tree = ast.parse(stub)
    except SyntaxError as error:
        raise BadMarkers(str(path), error.lineno or 1, f"this is not Python: {error.msg}") from None
    lines = stub.splitlines()
    statements = tree.body
    title = ast.get_docstring(tree)
    begin = 0  # the number of lines that are in a section already
    if title is None:
        title = path.stem.replace("_", " ")
    else:
        begin = statements[0].end_lineno or 0
        statements = statements[1:]
    sections = [Section("", title)]
    given: list[str] = []  # lines between tasks
    for statement in statements:
        first = _first_line(statement)
        end = statement.end_lineno or 0
        above = lines[begin : first - 1]
        code = lines[first - 1 : end]
        begin = end
        name = _name_bound_by(statement)
        if name in tasks:
            sections += _section_of(given)
            given = []
            sections.append(_make_task(statement, name, above, code))
        elif is_demo(statement):
            sections += _section_of(given)
            given = []
            demo = [*_without_blank_ends(above), *code]
            sections.append(Section("\n".join(demo), demo=True))
        else:
            given += [*above, *code]
    given += lines[begin:]
    return sections + _section_of(given)


def _first_line(statement: ast.stmt) -> int:
    """Return the line of a statement, or of its first decorator."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.decorator_list:
        return statement.decorator_list[0].lineno
    return statement.lineno


def names_of_tasks(source: str) -> set[str | None]:
    """Return the names that are bound by statements in which a solution stands."""
    begins = []  # lines
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip() == BEGIN:
            begins.append(number)
    names = set()
    statements = ast.parse(source).body
    for position, statement in enumerate(statements):
        # Comments behind a statement belong to it, too.
        following = statements[position + 1 :]
        last = following[0].lineno - 1 if following else len(source)
        if any(statement.lineno <= number <= last for number in begins):
            names.add(_name_bound_by(statement))
    return names - {None}


def _make_task(statement: ast.stmt, name: str | None, above: list[str], code: list[str]) -> Task:
    """Return a task, with its contract as text: the docstring, or the comment above a value."""
    task_name = name or ""
    if not isinstance(statement, ast.FunctionDef):
        comment = [line.strip().lstrip("# ") for line in above if line.strip()]
        return Task("\n".join(code), " ".join(comment), name=task_name)
    code = [*_without_blank_ends(above), *_with_short_docstring(statement, code)]
    return Task(
        "\n".join(code),
        ast.get_docstring(statement) or "",
        name=task_name,
        signature=f"{task_name}({ast.unparse(statement.args)})",
    )


def _with_short_docstring(function: ast.FunctionDef, code: list[str]) -> list[str]:
    """Return the function's lines with the first line of its docstring alone.

    The whole contract stands right above it. A first line that goes on in the next one would say
    nothing, and then the docstring stays.
    """
    docstring = function.body[0]
    if not isinstance(docstring, ast.Expr) or not isinstance(docstring.value, ast.Constant):
        return code
    first_line_of_code = (function.end_lineno or 0) - len(code) + 1
    first = docstring.lineno - first_line_of_code
    last = (docstring.end_lineno or 0) - first_line_of_code
    if first == last or not code[first].endswith((".", ":")):
        return code
    return [*code[:first], f'{code[first]}"""', *code[last + 1 :]]


def _section_of(lines: list[str]) -> list[Section]:
    """Return one section of these lines; none where they are empty."""
    kept = _without_blank_ends(lines)
    return [Section("\n".join(kept))] if kept else []


def _without_blank_ends(lines: list[str]) -> list[str]:
    """Return the lines without empty ones at the beginning and the end."""
    return "\n".join(lines).strip("\n").splitlines()


def _name_bound_by(statement: ast.stmt) -> str | None:
    """Return what a definition defines, or an assignment assigns first; None for the rest."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def title_text(docstring: str, stem: str, level: int = 1) -> str:
    """Return the first cell of an exercise: its title, and what to do."""
    first, _, rest = docstring.partition("\n")
    words = ["#" * level, first.removesuffix(".")]
    number = stem.partition("_")[0]
    if number.isdecimal():
        words.insert(1, number)
    blocks = [" ".join(words)]
    for block in LINE_FOR_SCRIPTS.sub("", rest).strip().split("\n\n"):
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
    if exercise is None or any(function.name.islower() for function in exercise.functions):
        return HOW_TO_FILL_IN
    return HOW_TO_ANSWER


def task_text(task: Task) -> str:
    """Return the cell above a task: the contract, then how long it may get and what to read."""
    blocks = [f"### `{task.signature or task.name}`"]
    *contract, last = task.text.split("\n\n")
    reading = SIZE_AND_READING.match(_on_one_line(last))
    if reading is None:
        contract.append(last)
    for block in contract:
        # Prose flows; a command on a line of its own stays as it is.
        is_command = COMMAND.fullmatch(block.strip())
        blocks.append(f"    {block.strip()}" if is_command else _on_one_line(block))
    if reading is not None:
        size = reading["size"]
        if SIZE.fullmatch(size):
            size = f"*{size}*"
        blocks.append(f"{size} Read: <{reading['address']}>".strip())
    return "\n\n".join(block for block in blocks if block)


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
