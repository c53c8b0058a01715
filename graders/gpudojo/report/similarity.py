"""Similar submissions: pairs that share statements which few others have, ranked and side by side.

A statement is compared by its syntax tree, without the names of variables, the texts of strings, annotations and
comments. Statements of the reference, which holds the given code too, are left out, and so is what much of the class
wrote. The rarer a shared statement is, the more it counts. A high rank is a reason to look, and no proof.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from gpudojo.grading.load import NotANotebook, Unparsable, is_demo, parse_source
from gpudojo.report.rendering import Person, page
from gpudojo.submissions.entries import SOURCES, suffix
from gpudojo.submissions.reading import PARSED, PARSED_IN_ALL, is_unfilled, parts

SMALLEST: Final = 7  # nodes of a statement that is compared: `x = x.to(device)` has as many
FEWEST: Final = 3  # statements that a pair shares
COMMON: Final = 60  # who share a statement at most; with more it is everybody's
PAIRS: Final = 50  # that are shown
_NOWHERE: Final = PurePosixPath("<submission>")
_IGNORED: Final = {"ctx", "annotation", "returns", "type_comment", "decorator_list", "kind"}
_BODIES: Final = {"body", "orelse", "finalbody", "handlers", "cases"}


class Statement(NamedTuple):
    """One statement: the hash of its tree, its size, the block it is in, and the lines it takes there."""

    shape: bytes
    size: int
    block: int
    first: int
    last: int


class SourceBlock(NamedTuple):
    """A definition at the top of a file or cell, or the statements between two of them."""

    name: str
    where: str
    first: int
    lines: list[str]


class ComparedWork:
    """The statements of one submission."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.blocks: list[SourceBlock] = []
        self.statements: list[Statement] = []
        left = PARSED_IN_ALL
        for path, data in files.items():
            left -= len(data)
            if suffix(path, SOURCES) and len(data) <= PARSED and left > 0:
                try:
                    for text, _, cell in parts(path, data):
                        self._add(path if cell is None else f"{path}, cell {cell}", text)
                except (Unparsable, NotANotebook, RecursionError, MemoryError):
                    continue  # what is not Python is not compared

    def _add(self, where: str, text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes and comparisons in student code
            tree = parse_source(text, _NOWHERE, 1)
        stored = (
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        local = {*stored, *(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))}
        lines = text.splitlines()
        for statement in tree.body:
            if is_demo(statement) or isinstance(statement, ast.Import | ast.ImportFrom):
                continue
            name = getattr(statement, "name", "")
            last = statement.end_lineno or statement.lineno
            self.blocks.append(
                SourceBlock(name, where, statement.lineno, lines[statement.lineno - 1 : last])
            )
            for each in _statements(statement):
                shape = _shape(each, local)
                if len(shape) >= SMALLEST:
                    digest = hashlib.blake2b(
                        repr(shape).encode("utf-8", "replace"), digest_size=12
                    ).digest()
                    own = [
                        node.lineno
                        for node in ast.walk(each)
                        if isinstance(node, ast.stmt) and node is not each
                    ]
                    end = min(own, default=(each.end_lineno or each.lineno) + 1) - 1
                    place = len(self.blocks) - 1
                    self.statements.append(
                        Statement(digest, len(shape), place, each.lineno, max(end, each.lineno))
                    )


def _statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement and those inside it, without definitions themselves, imports, texts that stand alone, and stubs."""
    for node in ast.walk(statement):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        stub = isinstance(node, ast.Assign | ast.AnnAssign) and is_unfilled(node.value)
        if isinstance(node, ast.stmt) and not (alone or stub) and not isinstance(node, skipped):
            yield node


def _shape(node: ast.AST, local: set[str]) -> list[str]:
    """The tree of a statement, of a compound one its head, as a list of what its nodes are."""
    found = [type(node).__name__]
    if isinstance(node, ast.Name):
        return ["variable" if node.id in local else node.id]
    if isinstance(node, ast.Constant):
        return ["text" if isinstance(node.value, str) else repr(node.value)]
    for name, value in ast.iter_fields(node):
        if name in _IGNORED or (name in _BODIES and isinstance(node, ast.stmt | ast.ExceptHandler)):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                found += _shape(each, local)
            elif isinstance(each, str) and not isinstance(node, ast.arg | ast.ExceptHandler):
                found.append(each)
    return found


@dataclass(frozen=True)
class SimilarPair:
    """Two submissions, by their places in the class."""

    one: int
    other: int
    similarity: float  # 1: all statements of their own are shared
    shared: int  # statements


def similar_pairs(
    works: Mapping[int, ComparedWork], given: ComparedWork | None = None
) -> list[SimilarPair]:
    """Pairs of submissions that share code which is not given and not everybody's, most similar first."""
    known = {each.shape for each in given.statements} if given is not None else set()
    counts = {
        place: Counter(each.shape for each in work.statements) for place, work in works.items()
    }
    sizes = {each.shape: each.size for work in works.values() for each in work.statements}
    owners: dict[bytes, list[int]] = {}
    for place, own in counts.items():
        for shape in own:
            if shape not in known:
                owners.setdefault(shape, []).append(place)
    most = max(2, min(COMMON, len(works) // 2))
    # 1 for a statement that two have, and near 0 for one that half of the class has.
    rare = math.log((len(works) + 1) / 2)
    weights = {
        shape: sizes[shape] * math.log((len(works) + 1) / max(len(having), 2)) / rare
        for shape, having in owners.items()
        if len(having) <= most
    }
    whole = {
        place: sum(weights.get(shape, 0.0) * n for shape, n in own.items())
        for place, own in counts.items()
    }
    shared: dict[tuple[int, int], list[float]] = {}
    for shape, weight in weights.items():
        for one, other in itertools.combinations(owners[shape], 2):
            both = min(counts[one][shape], counts[other][shape])
            sums = shared.setdefault((one, other), [0.0, 0])
            sums[0] += weight * both
            sums[1] += both
    found = [
        SimilarPair(one, other, 2 * common / (whole[one] + whole[other]), int(number))
        for (one, other), (common, number) in shared.items()
        if number >= FEWEST
    ]
    return sorted(found, key=lambda pair: (-pair.similarity, -pair.shared, pair.one, pair.other))


Shown = tuple[
    str, list[tuple[int, str, bool]]
]  # a title and lines: number, text, whether it is shared


def side_by_side(
    one: ComparedWork, other: ComparedWork, given: ComparedWork | None = None
) -> list[tuple[Shown | None, Shown | None]]:
    """The blocks of both that hold what they share; those of one name are beside each other."""
    known = {each.shape for each in given.statements} if given is not None else set()
    common = (
        {each.shape for each in one.statements} & {each.shape for each in other.statements}
    ) - known
    left = _marked(one, common)
    right = _marked(other, common)
    rows: list[tuple[Shown | None, Shown | None]] = []
    for name in sorted(left.keys() | right.keys()):
        rows += itertools.zip_longest(left.get(name, []), right.get(name, []))
    return rows


def _marked(work: ComparedWork, common: set[bytes]) -> dict[str, list[Shown]]:
    """The blocks with something in common, by name."""
    marks: dict[int, set[int]] = {}
    for each in work.statements:
        if each.shape in common:
            marks.setdefault(each.block, set()).update(range(each.first, each.last + 1))
    found: dict[str, list[Shown]] = {}
    for place, lines in sorted(marks.items()):
        block = work.blocks[place]
        numbered = [(n, text, n in lines) for n, text in enumerate(block.lines, block.first)]
        found.setdefault(block.name, []).append(
            (f"{block.name}, {block.where}".removeprefix(", "), numbered)
        )
    return found


def similarity_page(
    people: list[Person],
    works: Mapping[int, ComparedWork],
    given: ComparedWork | None,
    students: bool,
    title: str,
) -> str:
    """The text of the page; with `students`, names lead to the students' own pages."""
    pairs = similar_pairs(works, given)
    compared = [
        (pair, side_by_side(works[pair.one], works[pair.other], given)) for pair in pairs[:PAIRS]
    ]
    values = {
        "people": people,
        "compared": compared,
        "more": len(pairs[PAIRS:]),
        "count": len(works),
    }
    return page(
        "similarity.html",
        "class.js",
        title=title,
        students=students,
        given=given is not None,
        **values,
    )
