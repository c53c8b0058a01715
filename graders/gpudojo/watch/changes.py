"""Which functions of a file a change concerns, by comparing syntax trees."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Sequence

from gpudojo.grading.bindings import is_demo


def functions_to_grade(
    before: str, after: str, names: Sequence[str], finished: Collection[str] = ()
) -> list[str]:
    """The functions whose verdict a change of their file may change: first those that were edited.

    `before` and `after` are the texts of the file. `names` are the functions of the exercise; after
    a change of anything else in the file, all of them are returned. One that only has other line
    numbers is left out if it is `finished`. Raises SyntaxError for a text that is no Python.
    """
    old = _FileParts(before, names)
    new = _FileParts(after, names)
    found = []
    # Those that were edited.
    for name in names:
        if old.code_of(name) != new.code_of(name):
            found.append(name)
    if old.rest != new.rest:
        found += names
    # Those that use them. The list grows meanwhile: users of users are looked at, too.
    for name in found:
        for user in names:
            if user not in found and name in new.names_used_by(user):
                found.append(user)
    # Those that are at other lines.
    for name in names:
        if name in finished:
            continue
        if old.code_and_lines_of(name) != new.code_and_lines_of(name):
            found.append(name)
    each_once = dict.fromkeys(found)
    return list(each_once)


class _FileParts:
    """A file's functions and the rest of it, in forms that can be compared.

    `names` are those of the functions. One may be missing, or be defined several times.
    """

    def __init__(self, text: str, names: Sequence[str]) -> None:
        """Divide a text into these functions and the rest.

        Raises SyntaxError if it is no Python.
        """
        self._definitions: defaultdict[str, list[ast.stmt]] = defaultdict(list)
        self.rest: list[str] = []  # the syntax trees of all other statements
        tree = ast.parse(text)
        for statement in tree.body:
            name = _name_bound_by(statement)
            if name in names:
                self._definitions[name].append(statement)
            elif not is_demo(statement):
                self.rest.append(ast.dump(statement))

    def code_of(self, name: str) -> list[str]:
        """The syntax tree of each definition of a function, as a text."""
        definitions = self._definitions[name]
        return [ast.dump(definition) for definition in definitions]

    def code_and_lines_of(self, name: str) -> list[str]:
        """The syntax tree of each definition of a function, as a text with line numbers."""
        definitions = self._definitions[name]
        return [ast.dump(definition, include_attributes=True) for definition in definitions]

    def names_used_by(self, function: str) -> set[str]:
        """The names that occur in the definitions of a function; none where it is not defined."""
        used = set()
        for statement in self._definitions.get(function, []):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    used.add(node.id)
        return used


def _name_bound_by(statement: ast.stmt) -> str:
    """The one name that a definition or an assignment is for; else an empty text."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""
