"""Similar submissions: pairs that share statements which few others have, ranked and side by side.

A statement is compared by its syntax tree, without the names of variables, the texts of strings,
annotations and comments. Statements of the reference, which holds the given code too, and of the
notebooks that students are given are left out, and so is what much of the class wrote. The rarer a
shared statement is, the more it counts. A high rank is a reason to look, and no proof.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final, NamedTuple

from gpudojo.grading.bindings import is_demo
from gpudojo.grading.notebooks import NotANotebook
from gpudojo.grading.sources import Unparsable, parse_source
from gpudojo.report.people import Person
from gpudojo.report.rendering import render_page
from gpudojo.submissions.choosing import PARSED_CHARACTERS, PARSED_IN_ALL, is_unfilled, source_parts
from gpudojo.submissions.names import SOURCES, ending_of
from gpudojo.submissions.opening_cell import opening_code

# Nodes of a statement that is compared: `x = x.to(device)` has as many.
SMALLEST_STATEMENT: Final = 7
FEWEST_SHARED: Final = 3  # statements of a pair
MOST_OWNERS: Final = 60  # of a statement; with more it is everybody's
MOST_PAIRS: Final = 50  # that are shown
NO_ATTEMPTS: Final[Mapping[int, int]] = MappingProxyType({})
NO_PATH: Final = PurePosixPath("<submission>")
IGNORED_FIELDS: Final = {"ctx", "annotation", "returns", "type_comment", "decorator_list", "kind"}
BODIES: Final = {"body", "orelse", "finalbody", "handlers", "cases"}
NOT_COMPARED: Final = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
)


class Statement(NamedTuple):
    """One statement, and where it stands."""

    shape: bytes  # the hash of its tree
    size: int  # nodes of the tree
    block: int  # its place in the blocks of the work
    first: int  # line
    last: int  # line; of a compound statement, of its head


class SourceBlock(NamedTuple):
    """A definition at the top of a file or cell, or the statements between two of them."""

    name: str
    where: str
    first: int
    lines: list[str]


class ComparedWork:
    """The statements of one submission."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Read the statements of these files, by path; large files are left out."""
        self.blocks: list[SourceBlock] = []
        self.statements: list[Statement] = []
        bytes_left = PARSED_IN_ALL
        for path, data in files.items():
            bytes_left -= len(data)
            if len(data) > PARSED_CHARACTERS or bytes_left <= 0:
                continue
            if ending_of(path, SOURCES):
                self._add_file(path, data)

    @property
    def shapes(self) -> set[bytes]:
        """The different statements, each as the hash of its tree."""
        return {statement.shape for statement in self.statements}

    def count_shapes(self) -> Counter[bytes]:
        """How many times each statement is in the work."""
        return Counter(statement.shape for statement in self.statements)

    def _add_file(self, path: str, data: bytes) -> None:
        """Add the blocks and statements of a file, up to the first part that is not Python."""
        try:
            for part in source_parts(path, data):
                where = path
                if part.cell is not None:
                    where = f"{path}, cell {part.cell}"
                self._add_text(where, part.source)
        except (Unparsable, NotANotebook, RecursionError, MemoryError):
            pass  # what is not Python is not compared

    def _add_text(self, where: str, text: str) -> None:
        """Add the blocks and statements of a file or cell. Raises Unparsable.

        Imports and demos are left out. `where` is what the page calls the file or cell.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes and comparisons in student code
            tree = parse_source(text, NO_PATH, 1)
        variables = _variables_in(tree)
        lines = text.splitlines()
        for top in tree.body:
            if is_demo(top) or isinstance(top, ast.Import | ast.ImportFrom):
                continue
            name = getattr(top, "name", "")
            first = top.lineno
            block = SourceBlock(name, where, first, lines[first - 1 : top.end_lineno])
            self.blocks.append(block)
            for statement in _statements_in(top):
                self._add_statement(statement, variables)

    def _add_statement(self, statement: ast.stmt, variables: set[str]) -> None:
        """Add a statement of the last block, unless it is a small one.

        Names in `variables` count as the same name.
        """
        nodes = _nodes_of(statement, variables)
        if len(nodes) < SMALLEST_STATEMENT:
            return
        text = repr(nodes).encode("utf-8", "replace")
        self.statements.append(
            Statement(
                shape=hashlib.blake2b(text, digest_size=12).digest(),
                size=len(nodes),
                block=len(self.blocks) - 1,
                first=statement.lineno,
                last=_last_line_of_head(statement),
            )
        )


def _variables_in(tree: ast.AST) -> set[str]:
    """Return the names that are assigned or are arguments: these may be called anything."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.arg(arg=name):
                names.add(name)
    return names


def _statements_in(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement and those inside it.

    Definitions themselves, imports, texts that stand alone and stubs are left out.
    """
    for node in ast.walk(statement):
        match node:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Assign(value=value) | ast.AnnAssign(value=value) if is_unfilled(value):
                continue
            case ast.stmt() if not isinstance(node, NOT_COMPARED):
                yield node


def _last_line_of_head(statement: ast.stmt) -> int:
    """Return the line before the first statement inside; without any, the last line."""
    lines_inside = []
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt) and node is not statement:
            lines_inside.append(node.lineno)
    if not lines_inside:
        return statement.end_lineno or statement.lineno
    last_of_head = min(lines_inside) - 1
    return max(last_of_head, statement.lineno)


def _nodes_of(node: ast.AST, variables: set[str]) -> list[str]:
    """Return the tree of a statement as a list of its nodes; of a compound one, of its head.

    Names in `variables` are the same node, and so are all texts.
    """
    match node:
        case ast.Name(id=name) if name in variables:
            return ["variable"]
        case ast.Name(id=name):
            return [name]
        case ast.Constant(value=str()):
            return ["text"]
        case ast.Constant(value=value):
            return [repr(value)]
    nodes = [type(node).__name__]
    ignored = IGNORED_FIELDS
    if isinstance(node, ast.stmt | ast.ExceptHandler):
        ignored = IGNORED_FIELDS | BODIES
    binds_its_text = isinstance(node, ast.arg | ast.ExceptHandler)  # a name, called anything
    for field, value in ast.iter_fields(node):
        if field in ignored:
            continue
        children = [value]
        if isinstance(value, list):
            children = value
        for child in children:
            if isinstance(child, ast.AST):
                nodes += _nodes_of(child, variables)
            elif isinstance(child, str) and not binds_its_text:
                nodes.append(child)
    return nodes


@dataclass(frozen=True)
class SimilarPair:
    """Two submissions, by their places in the class."""

    one: int
    other: int
    similarity: float  # 1: all statements of their own are shared
    shared: int  # statements


def similar_pairs(
    works: Mapping[int, ComparedWork],
    given: ComparedWork | None = None,
    author_of: Mapping[int, int] = NO_ATTEMPTS,
) -> list[SimilarPair]:
    """Return pairs of submissions that share code which is not given and not everybody's.

    `works` are by their places in the class; `given` is code that all were given. `author_of` has
    the places of those whose other attempts are among the works, by their own places. The most
    similar pairs come first, one of two authors. Those that share fewer than FEWEST_SHARED
    statements are left out.
    """
    given_shapes = set()
    if given is not None:
        given_shapes = given.shapes
    counts = {}
    owners: dict[bytes, list[int]] = {}
    for place, work in works.items():
        counts[place] = work.count_shapes()
        for shape in work.shapes - given_shapes:
            owners.setdefault(shape, []).append(place)
    weights = _weights_of(owners, works, author_of)

    # What each pair shares: the sum of weights, and the number of statements.
    shared_weight: defaultdict[tuple[int, int], float] = defaultdict(float)
    shared_count: Counter[tuple[int, int]] = Counter()
    for shape, weight in weights.items():
        for pair in itertools.combinations(owners[shape], 2):
            in_both = min(counts[place][shape] for place in pair)
            shared_weight[pair] += weight * in_both
            shared_count[pair] += in_both

    # How much that is of all that counts in both.
    weight_of_work = {}
    for place, counts_of_work in counts.items():
        weight_of_work[place] = _total_weight(counts_of_work, weights)
    pairs = []
    for (one, other), count in shared_count.items():
        if count < FEWEST_SHARED:
            continue
        whole = weight_of_work[one] + weight_of_work[other]
        similarity = 2 * shared_weight[one, other] / whole
        pairs.append(SimilarPair(one, other, similarity, count))
    pairs.sort(key=_rank_of_pair)
    best: dict[frozenset[int], SimilarPair] = {}
    for each in pairs:
        authors = frozenset(author_of.get(place, place) for place in (each.one, each.other))
        if len(authors) == 2:
            best.setdefault(authors, each)
    return list(best.values())


def _rank_of_pair(pair: SimilarPair) -> tuple[float, ...]:
    """Return what pairs are sorted by.

    That is similarity, then the number of statements that are shared, then places in the class.
    """
    return (-pair.similarity, -pair.shared, pair.one, pair.other)


def _total_weight(counts: Mapping[bytes, int], weights: Mapping[bytes, float]) -> float:
    """Return what all statements of a work count; those without a weight count nothing.

    `counts` tells how many times each is in the work.
    """
    total = 0.0
    for shape, count in counts.items():
        total += weights.get(shape, 0.0) * count
    return total


def _weights_of(
    owners: Mapping[bytes, list[int]],
    works: Mapping[int, ComparedWork],
    author_of: Mapping[int, int],
) -> dict[bytes, float]:
    """Return what each statement counts, by its shape; what much of the class has is left out.

    It is the size times 1 for a statement that two have, and near 0 for one that half of the class
    has. `owners` tells in which works a statement is, `author_of` whose another attempt is.
    """
    sizes = {}
    for work in works.values():
        for statement in work.statements:
            sizes[statement.shape] = statement.size
    authors = {author_of.get(place, place) for place in works}
    most_owners = max(2, min(MOST_OWNERS, len(authors) // 2))
    rarity_of_two = math.log((len(authors) + 1) / 2)
    weights = {}
    for shape, places in owners.items():
        authors_of_shape = {author_of.get(place, place) for place in places}
        count = max(len(authors_of_shape), 2)
        if count > most_owners:
            continue
        rarity = math.log((len(authors) + 1) / count)
        weights[shape] = sizes[shape] * rarity / rarity_of_two
    return weights


class ShownLine(NamedTuple):
    """A line of a block that is shown."""

    number: int
    text: str
    is_shared: bool


class ShownBlock(NamedTuple):
    """A block that holds something shared."""

    title: str
    lines: list[ShownLine]


# Of one submission and of the other; None where that has no more blocks of the name.
BlockPair = tuple[ShownBlock | None, ShownBlock | None]


def side_by_side(
    one: ComparedWork, other: ComparedWork, given: ComparedWork | None = None
) -> list[BlockPair]:
    """Return the blocks of both that hold what they share; those of one name beside each other.

    Statements of `given` do not count as shared.
    """
    common = one.shapes & other.shapes
    if given is not None:
        common -= given.shapes
    left = _blocks_with(common, one)
    right = _blocks_with(common, other)
    rows: list[BlockPair] = []
    for name in sorted(left.keys() | right.keys()):
        blocks_of_one = left.get(name, [])
        blocks_of_other = right.get(name, [])
        rows += itertools.zip_longest(blocks_of_one, blocks_of_other)
    return rows


def _blocks_with(shapes: set[bytes], work: ComparedWork) -> dict[str, list[ShownBlock]]:
    """Return the blocks that hold one of these statements, by name, with their lines marked."""
    marked_lines: defaultdict[int, set[int]] = defaultdict(set)  # by the place of the block
    for statement in work.statements:
        if statement.shape in shapes:
            lines = range(statement.first, statement.last + 1)
            marked_lines[statement.block].update(lines)
    blocks: defaultdict[str, list[ShownBlock]] = defaultdict(list)
    for place in sorted(marked_lines):
        block = work.blocks[place]
        shown = _mark_lines(block, marked_lines[place])
        blocks[block.name].append(shown)
    return blocks


def _mark_lines(block: SourceBlock, marked: set[int]) -> ShownBlock:
    """Return a block as it is shown, with the lines of these numbers marked."""
    title = block.where
    if block.name:
        title = f"{block.name}, {block.where}"
    lines = []
    for number, text in enumerate(block.lines, block.first):
        is_marked = number in marked
        lines.append(ShownLine(number, text, is_marked))
    return ShownBlock(title, lines)


def similarity_page(
    people: list[Person],
    works: Mapping[int, ComparedWork],
    author_of: Mapping[int, int],
    reference: Mapping[str, bytes],
    students: bool,
    title: str,
) -> str:
    """Return the text of the page; with `students`, names lead to the students' own pages.

    `works` are by their places in `people`; those of no known sources are not among them, and of
    other attempts, `author_of` has the places of their authors.
    `reference` are the files of the reference, none where they were not kept. Raises OSError where
    a file of ours cannot be read.
    """
    opening = opening_code(package=None).encode()
    given = ComparedWork({**reference, "opening_cell.py": opening})
    pairs = similar_pairs(works, given, author_of)
    compared = []
    for pair in pairs[:MOST_PAIRS]:
        blocks = side_by_side(works[pair.one], works[pair.other], given)
        compared.append((pair, blocks))
    return render_page(
        "similarity.html",
        "class.js",
        title=title,
        students=students,
        has_reference=bool(reference),
        people=people,
        compared=compared,
        more=len(pairs[MOST_PAIRS:]),
        count=len(works) - len(author_of),
    )
