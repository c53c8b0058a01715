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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.release.stubs import TELLING, solution_lines, solutions, stubs

DEEPEST: Final = 4  # archives in archives
LARGEST: Final = 256 << 20
LONG: Final = 24  # in the grader's own code, shorter lines (`total, count = 0.0, 0`) occur anyway
_HEADS: Final = re.compile(rb"\x78[\x01\x9c\xda]|\x1f\x8b\x08")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_STATEMENTS: Final = (ast.Module, ast.Expr, ast.Assign, ast.Return, ast.Yield, ast.YieldFrom)
_IDIOM: Final = (*_STATEMENTS, ast.Name, ast.Attribute, ast.Call, ast.expr_context)


@dataclass(frozen=True)
class Leak:
    """A line of a solution, and where it can be read."""

    path: str
    reference: str
    line: int
    text: str

    def __str__(self) -> str:
        return (
            f"{self.path} shows line {self.line} of the solution in {self.reference}: {self.text}"
        )


@dataclass(frozen=True)
class Secret:
    """A line, or with all lines up to the end marker a whole solution, that must not be found."""

    reference: str
    line: int
    text: str
    squeezed: str
    idiom: bool = False

    @property
    def long(self) -> bool:
        return len(self.squeezed) >= 2 * LONG


def leaks(files: Mapping[str, bytes], reference: Path) -> list[Leak]:
    """Every line of a solution that can be read in the files, in the order of the files."""
    lines, blocks = secrets(reference)
    found = []
    for path, data in sorted(files.items()):
        for inner, text in texts(path, data):
            ours = ".whl: " in inner and inner.endswith(
                (".py", ".toml")
            )  # the grader's code, the day's, and its hints
            found += [
                Leak(inner, s.reference, s.line, s.text) for s in _shown(text, lines, blocks, ours)
            ]
    return found


def secrets(reference: Path) -> tuple[list[Secret], list[Secret]]:
    """The lines that would give something away, and the solutions as a whole."""
    visible = "\n".join(stubs(reference).values())
    shown_lines = set(_lines(visible))
    shown = squeezed(visible)
    lines = []
    blocks = []
    for path in sorted(reference.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        for number, text in solution_lines(source):
            bare = squeezed(_without_comment(text))
            if len(bare) >= TELLING * 3 // 4 and bare not in shown:
                lines.append(
                    Secret(path.name, number, text, bare, len(bare) < LONG or is_idiom(text))
                )
        for block in filter(None, solutions(source)):
            bare = "\n".join(_lines("\n".join(line for _, line in block)))
            if len(bare) >= TELLING and not set(bare.split("\n")) <= shown_lines:
                first = next(line.strip() for _, line in block if line.strip())
                blocks.append(Secret(path.name, block[0][0], first, f"\n{bare}\n"))
    return lines, blocks


def _shown(text: str, lines: list[Secret], blocks: list[Secret], ours: bool) -> Iterator[Secret]:
    # Also as it would be printed: a solution may stand in a string of JSON or Python.
    for variant in dict.fromkeys(
        (text, text.replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'"))
    ):
        bare = squeezed(variant)
        found = [s for s in lines if s.squeezed in bare and not (ours and s.idiom)]
        whole = "\n".join(["", *_lines(variant), ""])
        joined = whole.replace("\n", "")
        # A long solution counts wherever it begins; a short one only between line ends, as it may be part of anything.
        found += [
            s
            for s in blocks
            if s.squeezed in whole or (s.long and s.squeezed.replace("\n", "") in joined)
        ]
        if found:
            yield from found
            return


def texts(path: str, data: bytes, depth: int = 0) -> Iterator[tuple[str, str]]:
    """A file's text, and that of everything packed into it."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    yield path, data.decode(encoding, errors="replace")
    if path.endswith((".ipynb", ".json")):
        yield path, "\n".join(_strings(data.decode("utf-8", "replace")))
    elif path.endswith(".py"):
        yield path, _constants(data)
    if depth >= DEEPEST:
        return
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in sorted(archive.namelist()):
                yield from texts(f"{path}: {member}", archive.read(member), depth + 1)
    for inner in inflated(data):
        yield from texts(path, inner, depth + 1)


def inflated(data: bytes) -> Iterator[bytes]:
    """What zlib or gzip packed, wherever in a file it begins: evidence is many such pieces, one after the other."""
    position = 0
    while head := _HEADS.search(data, position):
        position = head.start() + 1
        reader = zlib.decompressobj(wbits=47)  # either of the two, told by its head
        with contextlib.suppress(zlib.error):
            if inner := reader.decompress(data[head.start() :], LARGEST):
                yield inner
                position = len(data) - len(reader.unused_data) if reader.eof else position


def squeezed(text: str) -> str:
    return "".join(text.split())


def is_idiom(line: str) -> bool:
    """Whether a line is one chain of attributes and calls on plain names."""
    try:
        tree = ast.parse(line)
    except SyntaxError:
        return False
    return all(
        isinstance(node, _IDIOM) and not getattr(node, "keywords", None) for node in ast.walk(tree)
    )


def _lines(text: str) -> list[str]:
    """The lines of a text without white space, quoting and comments: a solution may stand in a comment."""
    found = (
        squeezed(_without_comment(line.strip().lstrip("#>").strip())) for line in text.splitlines()
    )
    return [line for line in found if line]


def _without_comment(line: str) -> str:
    code, mark, _ = line.partition("  #")
    return code if mark and code.strip() else line


@functools.lru_cache(1000)  # several bundles of one run hold the same files
def _constants(data: bytes) -> str:
    """Every string of a Python file, as it would be printed."""
    try:
        nodes = ast.walk(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "\n".join(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _strings(text: str) -> Iterator[str]:
    """Every string of a JSON text, as it would be printed; those of a list, such as a notebook's lines, in a row."""
    for literal in _STRING.findall(text):
        with contextlib.suppress(ValueError):
            yield json.loads(literal, strict=False)
