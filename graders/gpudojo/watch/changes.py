"""Which functions of a file a change concerns, by comparing syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from gpudojo.grading.bindings import is_demo


def functions_to_grade(
    before: str, after: str, names: Sequence[str], finished: Collection[str] = ()
) -> list[str]:
    """The functions whose verdict a change of their file may change: first those that were edited.

    `names` are the functions of the exercise; after a change of anything else in the file, all of
    them are returned. One that only has other line numbers is left out if it is `finished`.
    """
    old = _FileParts(before, names)
    new = _FileParts(after, names)
    found = [name for name in names if old.code.get(name) != new.code.get(name)]
    if old.rest != new.rest:
        found += names
    for name in found:  # the list grows meanwhile: users of users are looked at, too
        for user in names:
            if user not in found and name in new.uses.get(user, ()):
                found.append(user)
    for name in names:
        moved = old.places.get(name) != new.places.get(name)
        if moved and name not in finished:
            found.append(name)
    return list(dict.fromkeys(found))


class _FileParts:
    """A file's functions, and the rest of it, as syntax trees that can be compared."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        # By function; one may be defined several times.
        self.code: dict[str, list[str]] = {}
        self.places: dict[str, list[str]] = {}  # its code with line numbers
        self.uses: dict[str, set[str]] = {}  # the names in it
        self.rest: list[str] = []
        for statement in ast.parse(text).body:
            name = _name_bound_by(statement)
            if name in names:
                self._add_function(name, statement)
            elif not is_demo(statement):
                self.rest.append(ast.dump(statement))

    def _add_function(self, name: str, statement: ast.stmt) -> None:
        """Note a definition of one of the functions."""
        code = ast.dump(statement)
        code_with_lines = ast.dump(statement, include_attributes=True)
        self.code.setdefault(name, []).append(code)
        self.places.setdefault(name, []).append(code_with_lines)
        uses = self.uses.setdefault(name, set())
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id != name:
                uses.add(node.id)


def _name_bound_by(statement: ast.stmt) -> str:
    """The one name that a definition or an assignment is for; else an empty text."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return statement.name
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    if len(targets) == 1 and isinstance(targets[0], ast.Name):
        return targets[0].id
    return ""
