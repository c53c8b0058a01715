"""Fingerprints of the code that evidence and verdicts depend on.

Evidence is made by the packages below and by the probes of a day; verdicts are made by the same
packages, by this one, and by the whole day. So every file of theirs counts, whichever part of it
is used: a check or a probe that moves to another file cannot fall out. A change that does not
matter costs a class another run, or some seconds of judging.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import gpudojo.sandbox
import gpudojo.submissions
from gpudojo.grading.reference_solutions import CODE_OF_EVIDENCE
from gpudojo.model.catalogue import registered_days

OBSERVING: Final[tuple[ModuleType, ...]] = (
    *CODE_OF_EVIDENCE,
    gpudojo.sandbox,
    gpudojo.submissions,
)
READ_BY_CODE: Final = (".py", ".toml", ".json")
TEXTS: Final = ".toml"  # in a day: what students read of misconceptions and hints


@functools.cache
def fingerprint_of_observing(day: str, torch: str = "") -> str:
    """The fingerprint of everything that evidence depends on: our code, probes, a version of torch.

    The checks, hints and texts of the day are left out: an author may change them, and need not run
    what students handed in again. Found once. Raises OSError if a file cannot be read, KeyError for
    an unknown day, and SyntaxError for a file that is no Python.
    """
    files = _files_of_packages()
    for name, data in _files_below(_folder_of(day)).items():
        if name.endswith(".py"):
            files[f"{day}/{name}"] = source_without_checks(data)
        elif not name.endswith(TEXTS):
            files[f"{day}/{name}"] = data
    return _digest_of_files(files, torch)


@functools.cache
def fingerprint_of_judging(day: str) -> str:
    """The fingerprint of everything that verdicts on given evidence depend on; found once.

    Raises OSError if a file cannot be read, and KeyError for an unknown day.
    """
    files = _files_of_packages()
    for name, data in _files_below(Path(__file__).parent).items():
        files[f"{__package__}/{name}"] = data
    for name, data in _files_below(_folder_of(day)).items():
        files[f"{day}/{name}"] = data
    return _digest_of_files(files)


def source_without_checks(source: bytes) -> bytes:
    """The source of an exercise without its checks, hints and docstring: they make no evidence.

    Checks are functions that are decorated by `….check(…)`, and calls at the top level, such as
    `….when(…)` and those that add ready-made checks; calls of `….probe(…)` stay. Their lines are
    left out. Raises SyntaxError for a source that is no Python.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        if _is_about_checks(node):
            first = _first_line(node)
            last = node.end_lineno or first
            count = last - first + 1
            lines[first - 1 : last] = [b""] * count
    return b"".join(lines)


def _is_about_checks(node: ast.stmt) -> bool:
    """True for a statement at the top of an exercise that makes no evidence."""
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        return _name_of_called_method(node.decorator_list[0]) == "check"
    if isinstance(node, ast.Expr):
        return _name_of_called_method(node.value) != "probe"
    return False


def _name_of_called_method(node: ast.expr) -> str:
    """The name of the method that is called, such as `check` in `train.check(2)`; else empty."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return ""


def _first_line(node: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        return node.decorator_list[0].lineno
    return node.lineno


def _folder_of(day: str) -> Path:
    """The folder with the files of a day. Raises KeyError for an unknown day."""
    return registered_days()[day].folder


def _files_of_packages() -> dict[str, bytes]:
    """The files of our packages that observe and help to judge, by package and path.

    Raises OSError if one cannot be read.
    """
    files = {}
    for package in OBSERVING:
        assert package.__file__ is not None
        for name, data in _files_below(Path(package.__file__).parent).items():
            files[f"{package.__name__}/{name}"] = data
    return files


def _files_below(folder: Path) -> dict[str, bytes]:
    """The files in a folder that code is made of or reads, by their paths in it.

    Raises OSError if one cannot be read.
    """
    files = {}
    for path in folder.rglob("*"):
        if path.suffix in READ_BY_CODE:
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def _digest_of_files(files: Mapping[str, bytes], more: str = "") -> str:
    """A short digest of names and contents, and of a text more."""
    whole = hashlib.sha256(more.encode())
    for name, data in sorted(files.items()):
        whole.update(name.encode() + b"\0" + data + b"\0")
    return whole.hexdigest()[:16]
