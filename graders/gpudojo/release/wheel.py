"""Builds the wheel that students install."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpudojo.grading.references import FOLDER, SUFFIX
from gpudojo.model.errors import CannotRelease

SOURCES: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = SOURCES.parent
EPOCH: Final = "1577836800"  # the first second of 2020: no zip can tell an earlier one on every system
LEFT_OUT: Final = re.compile(r"(^|/)(__pycache__|\..*)(/|$)|\.py[co]$|~$")


def wheel(evidence: Mapping[str, bytes]) -> tuple[str, bytes]:
    """The wheel's name and bytes, with each day's evidence in it."""
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ImportError:
        said = "the wheel is built by hatchling, which is not installed; run: pip install -c constraints.txt hatchling"
        raise CannotRelease(said) from None
    with tempfile.TemporaryDirectory() as folder, _epoch():
        root, target = Path(folder) / "gpudojo", Path(folder) / "made"
        for name, data in staged(evidence).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (made,) = WheelBuilder(str(root)).build(directory=str(target), versions=["standard"])
        return Path(made).name, Path(made).read_bytes()


def staged(evidence: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files the wheel is built from, by path."""
    for name in ("pyproject.toml", "LICENSE"):
        if not (PROJECT / name).is_file():
            raise CannotRelease(f"a release is made from a clone of gpudojo, and {PROJECT} is none: it has no {name}")
    files = {"LICENSE": (PROJECT / "LICENSE").read_bytes()}
    # The README is for those who have the clone.
    project = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    files["pyproject.toml"] = re.sub(r"(?m)^readme = .*\n", "", project).encode()
    for path in sorted(SOURCES.rglob("*")):
        name = path.relative_to(PROJECT).as_posix()
        if path.is_file() and not LEFT_OUT.search(name) and path.parent != FOLDER:
            files[name] = path.read_bytes()
    inside = FOLDER.relative_to(PROJECT).as_posix()
    files |= {f"{inside}/{day}{SUFFIX}": data for day, data in evidence.items()}
    return _labelled(files)


def _labelled(files: dict[str, bytes]) -> dict[str, bytes]:
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    name = "graders/gpudojo/__init__.py"
    source = files[name].decode()
    changed = re.sub(r'(?m)^(__version__ = "[^"+]+)"', rf'\1+{digest.hexdigest()[:8]}"', source)
    if changed == source:
        raise CannotRelease(f'{name} has no line `__version__ = "…"` that a release could be told apart by')
    return files | {name: changed.encode()}


@contextlib.contextmanager
def _epoch() -> Iterator[None]:
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = EPOCH
    try:
        yield
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]
        else:
            os.environ["SOURCE_DATE_EPOCH"] = before
