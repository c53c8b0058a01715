"""Can stored evidence still be used? As long as nothing it depends on has changed: the probes, the bench, torch.

What judges the evidence (checks, points, hints) has a fingerprint of its own: when only that changes, evidence is
judged again and no student code runs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from pathlib import Path
from typing import Final

import graders

ROOT: Final = Path(graders.__file__).resolve().parent
LOOKING: Final = ("bench", "probes", "evidence", "sandbox/child.py", "sandbox/looking.py", "intake/definitions.py")
JUDGING: Final = ("checks", "results", "curriculum", "batch/judging.py")


@functools.cache
def of_probes(day: str) -> str:
    """Of everything that decides what evidence says."""
    return _hash(_probing(day), importlib.metadata.version("torch"))


@functools.cache
def of_probes_alone(day: str) -> str:
    """The same without torch, whose builds for other machines have other names."""
    return _hash(_probing(day), "")


@functools.cache
def of_checks(day: str) -> str:
    """Of everything that decides what is made of it."""
    return _hash([*_files(JUDGING), *(f for f in _files([day]) if not f.name.startswith("probes"))], "")


def _probing(day: str) -> list[Path]:
    return [*_files(LOOKING), *(f for f in _files([day]) if f.name.startswith("probes"))]


def _files(names: tuple[str, ...] | list[str]) -> list[Path]:
    found: list[Path] = []
    for name in names:
        path = ROOT / name
        found += [path] if path.is_file() else path.rglob("*")
    return sorted(f for f in found if f.is_file() and f.suffix in (".py", ".toml", ".json"))


def _hash(files: list[Path], more: str) -> str:
    whole = hashlib.sha256(more.encode())
    for file in files:
        whole.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return whole.hexdigest()[:16]
