"""Searches what students get for lines of solutions."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.model.catalogue import registered_days
from gpudojo.release.stubs import (
    SHORTEST_TELLING_LINE,
    solution_blocks,
    stubs_of_day,
    telling_lines,
)
from gpudojo.release.wheel import PACKAGES, SOURCES

DEEPEST: Final = 4  # archives in archives
LARGEST: Final = 256 << 20
# In the grader's own code, shorter lines (`total, count = 0.0, 0`) occur anyway.
SHORTEST_IN_GRADER: Final = 24
LONG_SOLUTION: Final = 2 * SHORTEST_IN_GRADER  # letters
HEADS_OF_COMPRESSED: Final = re.compile(rb"\x78[\x01\x9c\xda]|\x1f\x8b\x08")  # zlib, gzip
JSON_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
NODES_OF_IDIOMS: Final = (
    ast.Module,
    ast.Expr,
    ast.Assign,
    ast.Return,
    ast.Yield,
    ast.YieldFrom,
    ast.Name,
    ast.Attribute,
    ast.Call,
    ast.expr_context,
)


@dataclass(frozen=True)
class Leak:
    """A line of a solution, and where it can be read."""

    path: str
    reference: str
    line: int
    text: str

    def __str__(self) -> str:
        """Say where which line of a solution can be read."""
        where = f"line {self.line} of the solution in {self.reference}"
        return f"{self.path} shows {where}: {self.text}"


@dataclass(frozen=True)
class Secret:
    """A line of a solution, or a whole solution, that must not be found."""

    reference: str
    line: int
    text: str
    squeezed: str  # what is searched for: no white space; of a whole solution, with line ends
    idiom: bool = False  # it may stand in the grader's own code for reasons of its own


class Secrets(NamedTuple):
    """The lines that would give something away, and the solutions as a whole."""

    lines: list[Secret]
    blocks: list[Secret]


def find_leaks(files: Mapping[str, bytes], reference: Path) -> list[Leak]:
    """Return every line of a solution that can be read in the files, in the order of the files.

    `reference` is the folder of the solutions, and has the name of their day. Files of the
    installed gpudojo are not searched for solutions of another distribution's day: everybody can
    read them, and what they have in common with a solution is not from there. Raises BadMarkers for
    a solution whose marks do not match, and OSError for one that cannot be read.
    """
    secrets = secrets_of(reference)
    skip = _nothing
    if _is_from_outside(reference.name):
        skip = _is_of_installed_gpudojo
    found = []
    for path, data in sorted(files.items()):
        for inner_path, text in texts_in(path, data, skip=skip):
            # The grader's code, the day's, and its hints.
            in_grader = ".whl: " in inner_path and inner_path.endswith((".py", ".toml"))
            visible = _visible_secrets(text, secrets, in_grader)
            for secret in visible:
                leak = Leak(inner_path, secret.reference, secret.line, secret.text)
                found.append(leak)
    return found


def leaks_in_package(files: Mapping[str, bytes], reference: Path) -> list[Leak]:
    """Return the lines of solutions that the files of a day's package show, by their paths.

    What is an idiom may stand there. `reference` is the folder of the solutions. Raises BadMarkers
    for one whose marks do not match, and OSError for one that cannot be read.
    """
    secrets = secrets_of(reference)
    found = []
    for path, data in sorted(files.items()):
        for _, text in texts_in(path, data):
            for secret in _visible_secrets(text, secrets, in_grader=True):
                leak = Leak(path, secret.reference, secret.line, secret.text)
                if leak not in found:
                    found.append(leak)
    return found


def secrets_of(reference: Path) -> Secrets:
    """Return what of a day's references must not be found.

    What stands in the stubs, too, is no secret. Raises BadMarkers for a solution whose marks do not
    match, and OSError for one that cannot be read.
    """
    stubs = "\n".join(stubs_of_day(reference).values())
    secrets = Secrets([], [])
    for path in sorted(reference.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        secrets.lines.extend(_secret_lines(path.name, source, stubs))
        secrets.blocks.extend(_secret_blocks(path.name, source, stubs))
    return secrets


def _secret_lines(reference: str, source: str, stubs: str) -> Iterator[Secret]:
    """Yield the lines of a reference that would give something away.

    Those that stand in a text of all stubs are left out.
    """
    squeezed_stubs = without_white_space(stubs)
    shortest = SHORTEST_TELLING_LINE * 3 // 4
    for number, text in telling_lines(source):
        squeezed = without_white_space(_without_comment(text))
        if len(squeezed) < shortest or squeezed in squeezed_stubs:
            continue
        idiom = len(squeezed) < SHORTEST_IN_GRADER or is_idiom(text)
        yield Secret(reference, number, text, squeezed, idiom)


def _secret_blocks(reference: str, source: str, stubs: str) -> Iterator[Secret]:
    """Yield the solutions of a reference, each as a whole.

    Those of which every line stands in a text of all stubs are left out.
    """
    lines_of_stubs = set(_squeezed_lines(stubs))
    for block in solution_blocks(source):
        texts = [line.text for line in block if line.text.strip()]
        lines = _squeezed_lines("\n".join(texts))
        squeezed = "\n".join(lines)
        if len(squeezed) < SHORTEST_TELLING_LINE or lines_of_stubs.issuperset(lines):
            continue
        first = texts[0].strip()
        yield Secret(reference, block[0].number, first, f"\n{squeezed}\n")


def _visible_secrets(text: str, secrets: Secrets, in_grader: bool) -> list[Secret]:
    """Return the secrets that a text shows, as it is or as it would be printed.

    A solution may stand in a string of JSON or Python. With `in_grader`, idioms are allowed.
    """
    found = _secrets_in(text, secrets, in_grader)
    if found:
        return found
    printed = text.replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'")
    if printed == text:
        return []
    return _secrets_in(printed, secrets, in_grader)


def _secrets_in(text: str, secrets: Secrets, in_grader: bool) -> list[Secret]:
    """Return the secrets that a text holds as it is; no idioms in the grader's own code."""
    squeezed = without_white_space(text)
    found = []
    for secret in secrets.lines:
        is_allowed = in_grader and secret.idiom
        if secret.squeezed in squeezed and not is_allowed:
            found.append(secret)
    lines = _squeezed_lines(text)
    with_line_ends = "\n".join(["", *lines, ""])
    without_line_ends = "".join(lines)
    for secret in secrets.blocks:
        # A long solution counts wherever it begins; a short one only between line ends, as it
        # may be part of anything.
        is_found = secret.squeezed in with_line_ends
        if len(secret.squeezed) >= LONG_SOLUTION:
            on_one_line = secret.squeezed.replace("\n", "")
            is_found |= on_one_line in without_line_ends
        if is_found:
            found.append(secret)
    return found


def _is_from_outside(day: str) -> bool:
    """True for a day of another distribution than gpudojo; an unknown one may be gpudojo's."""
    known = registered_days().get(day)
    return known is not None and not known.built_in


def _is_of_installed_gpudojo(path: str, data: bytes) -> bool:
    """True for a file as it is in the installed gpudojo.

    The path of one in an archive stands after ": ".
    """
    inner_path = path.rpartition(": ")[2]
    if inner_path.partition("/")[0] not in PACKAGES:
        return False
    installed = SOURCES / inner_path
    return installed.is_file() and installed.read_bytes() == data


def _nothing(path: str, data: bytes) -> bool:
    """False: no file is skipped."""
    return False


def texts_in(
    path: str, data: bytes, depth: int = 0, skip: Callable[[str, bytes], bool] = _nothing
) -> Iterator[tuple[str, str]]:
    """Yield a file's text, and that of everything packed into it, with the paths.

    `depth` counts the archives around it. Nothing is yielded of a file for whose path and bytes
    `skip` returns True. Raises what zipfile raises for a damaged archive.
    """
    if skip(path, data):
        return
    encoding = "utf-8"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    yield path, data.decode(encoding, errors="replace")
    if path.endswith((".ipynb", ".json")):
        strings = _strings_of_json(data.decode("utf-8", "replace"))
        yield path, "\n".join(strings)
    elif path.endswith(".py"):
        yield path, _strings_of_python(data)
    if depth >= DEEPEST:
        return
    file = io.BytesIO(data)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for member in sorted(archive.namelist()):
                inner = archive.read(member)
                yield from texts_in(f"{path}: {member}", inner, depth + 1, skip)
    for inner in decompressed_parts(data):
        yield from texts_in(path, inner, depth + 1, skip)


def decompressed_parts(data: bytes) -> Iterator[bytes]:
    """Yield what zlib or gzip packed, wherever in a file it begins.

    Evidence is many such pieces, one after the other.
    """
    position = 0
    while True:
        head = HEADS_OF_COMPRESSED.search(data, position)
        if head is None:
            return
        position = head.start() + 1
        reader = zlib.decompressobj(wbits=47)  # either of the two, told by its head
        try:
            inner = reader.decompress(data[head.start() :], LARGEST)
        except zlib.error:
            continue  # it only looked like a head
        if inner:
            yield inner
            if reader.eof:
                position = len(data) - len(reader.unused_data)


def without_white_space(text: str) -> str:
    """Return the text without white space."""
    return "".join(text.split())


def is_idiom(line: str) -> bool:
    """True if a line is one chain of attributes and calls on plain names."""
    try:
        tree = ast.parse(line)
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if not isinstance(node, NODES_OF_IDIOMS) or getattr(node, "keywords", None):
            return False
    return True


def _squeezed_lines(text: str) -> list[str]:
    """Return the lines of a text without white space, quoting and comments.

    A solution may stand in a comment.
    """
    lines = []
    for line in text.splitlines():
        unquoted = line.strip().lstrip("#>").strip()
        squeezed = without_white_space(_without_comment(unquoted))
        if squeezed:
            lines.append(squeezed)
    return lines


def _without_comment(line: str) -> str:
    """Return a line without the comment behind its code; one that is all comment stays."""
    code, _, _ = line.partition("  #")
    if not code.strip():
        return line
    return code


@functools.lru_cache(1000)  # several bundles of one run hold the same files
def _strings_of_python(data: bytes) -> str:
    """Return every string of a Python file, as it would be printed; empty if it is no Python."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    strings = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
    return "\n".join(strings)


def _strings_of_json(text: str) -> Iterator[str]:
    """Yield every string of a JSON text, as it would be printed.

    Those of a list, such as a notebook's lines, come in a row.
    """
    for literal in JSON_STRING.findall(text):
        with contextlib.suppress(ValueError):  # it only looked like a string
            yield json.loads(literal, strict=False)
