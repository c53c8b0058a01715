"""Makes stubs from reference solutions, and splits exercise files into sections."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.grading.load import is_demo
from gpudojo.model.catalogue import exercise_for
from gpudojo.model.errors import BadMarkers
from gpudojo.model.results_file import replacing_file

BEGIN: Final = "# BEGIN SOLUTION"
END: Final = "# END SOLUTION"
INSTEAD: Final = "raise NotImplementedError"
OTHERWISE: Final = (
    "# INSTEAD: "  # inside a solution: a line of the stub, where raising would not do
)
TELLING: Final = (
    20  # characters: shorter lines, and those that only open a block, occur in any code
)


def stub_of(source: str, path: str = "reference") -> str:
    """The student's version of a reference file."""
    lines: list[str] = []
    begun = 0
    instead: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text == BEGIN:
            if begun:
                raise BadMarkers(path, number, f"a solution begins inside the one of line {begun}")
            begun = number
            instead = []
            margin = line[: len(line) - len(line.lstrip())]
        elif text == END:
            if not begun:
                raise BadMarkers(path, number, "a solution ends that has not begun")
            begun = 0
            lines += [margin + text for text in instead or [INSTEAD]]
        elif begun and text.startswith(OTHERWISE):
            instead.append(text.removeprefix(OTHERWISE))
        elif "SOLUTION" in text and text.startswith("#"):
            raise BadMarkers(path, number, f"{text!r} is not a marker; write {BEGIN!r} or {END!r}")
        elif not begun:
            lines.append(line)
    if begun:
        raise BadMarkers(path, begun, "a solution begins and does not end")
    return "\n".join(lines) + "\n"


def solutions(source: str) -> list[list[tuple[int, str]]]:
    """The lines between each pair of solution markers, with their numbers."""
    found: list[list[tuple[int, str]]] = []
    inside = False
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text in (BEGIN, END):
            inside = text == BEGIN
            if inside:
                found.append([])
        elif inside and not text.startswith(OTHERWISE):
            found[-1].append((number, line))
    return found


def solution_lines(source: str) -> Iterator[tuple[int, str]]:
    """The lines between solution markers that would give something away."""
    for number, line in (numbered for solution in solutions(source) for numbered in solution):
        text = line.strip()
        if len(text) >= TELLING and not text.startswith("#") and not text.endswith(":"):
            yield number, text


def stubs(reference: Path) -> dict[str, str]:
    """Every stub of a day, by file name."""
    return {
        p.name: stub_of(p.read_text(encoding="utf-8"), str(p))
        for p in sorted(reference.glob("*.py"))
    }


def stale(reference: Path, exercises: Path) -> list[str]:
    """The names of stubs that are missing, changed or left over."""
    wanted = stubs(reference)
    found = (
        {p.name: p.read_text(encoding="utf-8") for p in exercises.glob("*.py")}
        if exercises.exists()
        else {}
    )
    return sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )


def write(reference: Path, exercises: Path) -> list[str]:
    """Write the stubs; gives the names of those that changed."""
    changed = stale(reference, exercises)
    exercises.mkdir(parents=True, exist_ok=True)
    for name, text in stubs(reference).items():
        with replacing_file(exercises / name) as file:
            file.write(text.encode())
    return changed


# What the file says to whoever runs it as a script, and what a notebook's reader does instead.
IN_A_FILE: Final = "open this file and fill it in"
IN_A_NOTEBOOK: Final = "fill in its cell above"


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


def sections(path: Path) -> list[Section]:
    """The file in order; the first section is its title."""
    source = path.read_text(encoding="utf-8")
    stub = stub_of(source, str(path)).replace(IN_A_FILE, IN_A_NOTEBOOK)
    try:
        names, tree = tasks(source), ast.parse(stub)
    except SyntaxError as error:
        raise BadMarkers(str(path), error.lineno or 1, f"this is not Python: {error.msg}") from None
    lines = stub.splitlines()
    title = ast.get_docstring(tree)
    found = [Section("", title or path.stem.replace("_", " "))]
    given: list[str] = []
    begin = 0 if title is None else tree.body[0].end_lineno or 0
    for statement in tree.body if title is None else tree.body[1:]:
        end = statement.end_lineno or 0
        first = statement.lineno
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.decorator_list:
            first = statement.decorator_list[0].lineno
        above = lines[begin : first - 1]
        code = lines[first - 1 : end]
        begin = end
        name = _bound(statement)
        if name in names or is_demo(statement):
            found += _flushed(given)
        if name in names:
            found.append(_task(statement, name, above, code))
        elif is_demo(statement):
            found.append(Section("\n".join([*_trimmed(above), *code]), demo=True))
        else:
            given += [*above, *code]
    given += lines[begin:]
    return found + _flushed(given)


def tasks(source: str) -> set[str]:
    """The names in whose statements a solution stands."""
    begins = [number for number, line in enumerate(source.splitlines(), 1) if line.strip() == BEGIN]
    body = ast.parse(source).body
    inside = [s for s in body if any(s.lineno <= number <= _end(s, body) for number in begins)]
    return {name for statement in inside if (name := _bound(statement)) is not None}


def _end(statement: ast.stmt, body: list[ast.stmt]) -> int:
    """The last line before the next statement: comments at its end belong to a statement, too."""
    following = body[body.index(statement) + 1 :]
    return following[0].lineno - 1 if following else 1 << 30


def _task(statement: ast.stmt, name: str, above: list[str], code: list[str]) -> Task:
    if not isinstance(statement, ast.FunctionDef):
        prose = " ".join(line.strip().lstrip("# ") for line in above if line.strip())
        return Task("\n".join(code), prose, name=name)
    contract = ast.get_docstring(statement) or ""
    signature = f"{name}({ast.unparse(statement.args)})"
    docstring = statement.body[0]
    if isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant):
        # Only the first line of its docstring stays: the whole contract stands right above it.
        before = (statement.end_lineno or 0) - len(code) + 1
        first = docstring.lineno - before
        last = (docstring.end_lineno or 0) - before
        if first != last and code[first].endswith(
            (".", ":")
        ):  # a sentence that goes on would say nothing
            code = [*code[:first], f'{code[first]}"""', *code[last + 1 :]]
    return Task("\n".join([*_trimmed(above), *code]), contract, name=name, signature=signature)


def _flushed(given: list[str]) -> list[Section]:
    kept = _trimmed(given)
    given.clear()
    return [Section("\n".join(kept))] if kept else []


def _trimmed(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip("\n").splitlines()


def _bound(statement: ast.stmt) -> str | None:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return statement.name
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    return None


HOW: Final = "Fill in the cells that say `raise NotImplementedError`, run them, and run the check below each."
HOW_ANSWERS: Final = "Fill in the cell, run it, and run the check below it."
_RUN: Final = re.compile(r"^(Read|Run|Check) me: .*$", re.M)
_COMMAND: Final = re.compile(r"[\w./-]+( --?[\w-]+(=\S+)?)+")
_SIZE: Final = re.compile(r"(About )?\d+ lines?\.")
_READING: Final = re.compile(r"^(?P<size>.*?)\s*Read: (?P<address>https://\S+)$", re.S)


def title_text(docstring: str, stem: str, level: int = 1) -> str:
    """The first cell of an exercise: its title, and what to do."""
    first, _, rest = docstring.partition("\n")
    number = stem.partition("_")[0]
    heading = (
        f"{'#' * level} {number if number.isdecimal() else ''} {first.removesuffix('.')}".replace(
            "  ", " "
        )
    )
    prose = [_flowing(block) for block in _RUN.sub("", rest).strip().split("\n\n") if block.strip()]
    exercise = exercise_for(Path(f"{stem}.py"))
    functions = exercise is None or any(function.name.islower() for function in exercise.functions)
    about = [] if exercise is None else [f"{exercise.points} points."]
    if level == 1:
        about = [" ".join([*about, HOW if functions else HOW_ANSWERS])]
    return "\n\n".join([heading, *prose, *about])


def task_text(task: Task) -> str:
    """The cell above a task: the contract, then how long it may get and what to read."""
    *contract, last = task.text.split("\n\n")
    reading = ""
    if (found := _READING.match(_flowing(last))) is None:
        contract = [*contract, last]
    else:
        size = f"*{found['size']}*" if _SIZE.fullmatch(found["size"]) else found["size"]
        reading = f"{size} Read: <{found['address']}>".strip()
    # Prose flows; a command on a line of its own stays as it is.
    prose = [f"    {b.strip()}" if _COMMAND.fullmatch(b.strip()) else _flowing(b) for b in contract]
    blocks = [f"### `{task.signature or task.name}`", *prose, reading]
    return "\n\n".join(block for block in blocks if block)


def _flowing(block: str) -> str:
    # Outside of `code`, an asterisk or an angle bracket would be read as Markdown.
    pieces = re.split(r"(`[^`]*`)", " ".join(block.split()))
    return "".join(p if p.startswith("`") else re.sub(r"([*<\\])", r"\\\1", p) for p in pieces)
