"""What mutants and rewrites share: changed solutions, and questions about their syntax trees."""

from __future__ import annotations

import ast
import difflib
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpudojo.grading.bindings import is_demo


@dataclass(frozen=True)
class Variant:
    """A changed solution."""

    solution: str  # "reference", or the name of a kept solution
    kind: str  # "comparison"
    functions: tuple[str, ...]  # of the exercise, that the change may concern
    diff: str  # the changed lines, without their indentation, after "-" and "+"
    source: str
    digest: str

    @property
    def name(self) -> str:
        """A name that stays as long as neither the solution nor the change is another one."""
        return f"{self.solution}-{self.digest}"


def choose_variants(
    variants_by_solution: Iterable[Sequence[Variant]], limit: int | None
) -> list[Variant]:
    """Return the variants of several solutions, each source once.

    With a limit there are so many, evenly from all solutions.
    """
    sorted_by_name = []
    for variants in variants_by_solution:
        sorted_by_name.append(sorted(variants, key=lambda variant: variant.name))
    by_source: dict[str, Variant] = {}
    # The first of each solution, then the second of each, and so on.
    for round_of_variants in itertools.zip_longest(*sorted_by_name):
        for variant in round_of_variants:
            if variant is not None:
                by_source.setdefault(variant.source, variant)
    return list(by_source.values())[:limit]


def parse_solution(source: str) -> ast.Module:
    """Return the tree of a file, without its docstring and its demo.

    Raises SyntaxError for a source that is no Python.
    """
    tree = ast.parse(source)
    own_statements = []
    for statement in tree.body:
        if not is_demo(statement) and not is_text(statement):
            own_statements.append(statement)
    tree.body = own_statements
    return tree


def changed_lines(before: str, after: str) -> str:
    """Return the lines that differ between two normalised sources, without their indentation."""
    old = [line.strip() for line in before.splitlines()]
    new = [line.strip() for line in after.splitlines()]
    lines = []
    for line in difflib.unified_diff(old, new, n=0, lineterm=""):
        is_change = line[0] in "+-" and len(line) > 1
        is_heading = line.startswith(("---", "+++"))
        if is_change and not is_heading:
            lines.append(line)
    return "\n".join(lines)


def text_of_tree(node: Any) -> str:
    """Return a node as a text that is the same with every version of Python.

    `ast.unparse` and `ast.dump` are not.
    """
    if isinstance(node, list):
        texts = [text_of_tree(each) for each in node]
        return f"[{' '.join(texts)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name not in ("ctx", "kind", "type_params"):
            fields.append(f"{name}={text_of_tree(value)}")
    joined = " ".join(fields)
    return f"({type(node).__name__} {joined})"


def digest_of(*texts: str) -> str:
    """Return ten letters that differ where one of the texts does."""
    whole = "\n".join(texts)
    return hashlib.sha256(whole.encode()).hexdigest()[:10]


def is_text(node: ast.AST) -> bool:
    """True for a statement that is a string alone, such as a docstring."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def names_bound_by(statement: ast.stmt) -> list[str]:
    """Return the name of a definition; of another statement, those that it assigns."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [statement.name]
    names = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
    return names


def names_in(node: ast.AST) -> set[str]:
    """Return every name that is read or assigned in a node.

    Attributes and parameters are none.
    """
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            names.add(each.id)
    return names
