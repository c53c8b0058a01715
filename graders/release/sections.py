"""Of what is an exercise file made? A title, what is given, the tasks, and a demo: its stub cut between statements.

A task is what the solution markers stand in: no list of names to keep, and no solution line survives the cut.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graders.errors import BadMarkers
from graders.release.stubs import BEGIN, stub_of

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
        raise BadMarkers(str(path), error.lineno or 1, f"this is no Python: {error.msg}") from None
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
        above, code = lines[begin : first - 1], lines[first - 1 : end]
        begin = end
        name = _bound(statement)
        if name in names or _is_demo(statement):
            found += _flushed(given)
        if name in names:
            found.append(_task(statement, name, above, code))
        elif _is_demo(statement):
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
    shortened = [*_trimmed(above), *_with_summary(statement, code)]
    return Task("\n".join(shortened), contract, name=name, signature=signature)


def _with_summary(statement: ast.FunctionDef, code: list[str]) -> list[str]:
    """The function with the first line of its docstring alone: the whole contract stands right above it."""
    docstring = statement.body[0]
    if not (isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)):
        return code
    offset = statement.end_lineno or 0
    first, last = (len(code) - 1 - (offset - line) for line in (docstring.lineno, docstring.end_lineno or 0))
    summary = code[first]
    if first == last or not summary.endswith((".", ":")):  # a sentence that goes on would say nothing
        return code
    return [*code[:first], f'{summary}"""', *code[last + 1 :]]


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


def _is_demo(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test).startswith("__name__ ==")
