"""Builds the wheel that students install: the grader, one day, and the evidence of that day's references.

Other days stay out of it. A day from another distribution is shipped under its own import name and registered by an
entry point, as it is where it comes from; so it may import nothing of its distribution but its own package.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from gpudojo.grading.references import SHIPPED_FOLDER, SHIPPED_SUFFIX
from gpudojo.model.catalogue import BUILT_IN, GROUP, Day, registered_days
from gpudojo.model.errors import CannotRelease

SOURCES: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = SOURCES.parent
EPOCH: Final = (
    "1577836800"  # the first second of 2020: no zip can tell an earlier one on every system
)
LEFT_OUT: Final = re.compile(r"(^|/)(__pycache__|\..*)(/|$)|\.py[co]$|~$")
PACKAGES: Final = re.compile(r"(?m)^(packages = \[.*)\]$")


def wheel(day: str, evidence: bytes | None = None) -> tuple[str, bytes]:
    """The wheel's name and bytes; raises CannotRelease where it cannot be built."""
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ImportError:
        said = "the wheel is built by hatchling, which is not installed; run: pip install -c constraints.txt hatchling"
        raise CannotRelease(said) from None
    with tempfile.TemporaryDirectory() as folder, _epoch():
        root = Path(folder) / "gpudojo"
        target = Path(folder) / "made"
        write_files(root, staged(day, evidence))
        (made,) = WheelBuilder(str(root)).build(directory=str(target), versions=["standard"])
        return Path(made).name, Path(made).read_bytes()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder, by their paths."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def staged(day: str, evidence: bytes | None = None) -> dict[str, bytes]:
    """The files the wheel is built from, by path."""
    for name in ("pyproject.toml", "LICENSE"):
        if not (PROJECT / name).is_file():
            raise CannotRelease(
                f"a release is made from a clone of gpudojo, and {PROJECT} is none: it has no {name}"
            )
    files = {"LICENSE": (PROJECT / "LICENSE").read_bytes()}
    # The README is for those who have the clone.
    project = re.sub(
        r"(?m)^readme = .*\n", "", (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    )
    wanted = registered_days()[day]
    for path, name in _files(SOURCES, PurePosixPath("graders")):
        of_a_day = path.is_relative_to(BUILT_IN) and path.parent != BUILT_IN
        if path.parent != SHIPPED_FOLDER and (not of_a_day or path.is_relative_to(wanted.folder)):
            files[name] = path.read_bytes()
    if not wanted.built_in:
        files |= _from_outside(wanted)
        top = wanted.package.partition(".")[0]
        project = PACKAGES.sub(rf'\1, "graders/{top}"]', project)
        project += f'\n[project.entry-points."{GROUP}"]\n{day} = "{wanted.package}"\n'
    files["pyproject.toml"] = project.encode()
    if evidence is not None:
        files[f"{SHIPPED_FOLDER.relative_to(PROJECT).as_posix()}/{day}{SHIPPED_SUFFIX}"] = evidence
    return _labelled(files)


def _files(folder: Path, inside: PurePosixPath) -> Iterator[tuple[Path, str]]:
    """Every file below a folder that belongs into a wheel, with its path there."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not LEFT_OUT.search(name):
            yield path, (inside / name).as_posix()


def _from_outside(day: Day) -> dict[str, bytes]:
    """A day's package, and what makes those above it packages; raises where the day needs more than that."""
    *above, _ = day.package.split(".")
    place = PurePosixPath("graders", *day.package.split("."))
    files = {name: path.read_bytes() for path, name in _files(day.folder, place)}
    for depth in range(1, len(above) + 1):
        init = day.folder.parents[len(above) - depth] / "__init__.py"
        if init.is_file():
            files[str(PurePosixPath("graders", *above[:depth], "__init__.py"))] = init.read_bytes()
    modules = {
        name.removeprefix("graders/").removesuffix(".py").removesuffix("/__init__")
        for name in files
    }
    modules |= {str(parent) for module in modules for parent in PurePosixPath(module).parents}
    for name, data in files.items():
        for module, line in _imported(name, data) if name.endswith(".py") else ():
            if module.partition("/")[0] == day.package.partition(".")[0] and module not in modules:
                where = f"{name.removeprefix('graders/')}, line {line}"
                dotted = module.replace("/", ".")
                raise CannotRelease(
                    f"{where}: students get only {day.package}, and it imports {dotted}"
                )
    return files


def _imported(name: str, data: bytes) -> Iterator[tuple[str, int]]:
    """The modules that a file imports, as paths, with the lines."""
    folder = PurePosixPath(name.removeprefix("graders/")).parent
    for node in ast.walk(ast.parse(data, name)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.replace(".", "/"), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").replace(".", "/")
            start = (folder, *folder.parents)[node.level - 1] if node.level else PurePosixPath()
            yield str(start / base), node.lineno


def _labelled(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with a version that ends in a hash of them, so that pip installs a newer release over an older one."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    name = "graders/gpudojo/__init__.py"
    source = files[name].decode()
    changed = re.sub(r'(?m)^(__version__ = "[^"+]+)"', rf'\1+{digest.hexdigest()[:8]}"', source)
    if changed == source:
        raise CannotRelease(
            f'{name} has no line `__version__ = "…"` that a release could be told apart by'
        )
    return {**files, name: changed.encode()}


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
