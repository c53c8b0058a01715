"""Builds the wheel that students install: the grader, one day, and the evidence of its references.

Other days stay out of it. A day from another distribution is shipped under its own import name
and registered by an entry point, as it is where it comes from; so it may import nothing of its
distribution but its own package.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from gpudojo.grading.shipped_evidence import SHIPPED_FOLDER, SHIPPED_SUFFIX
from gpudojo.model.catalogue import BUILT_IN, GROUP, Day, registered_days
from gpudojo.model.errors import CannotRelease

SOURCES: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = SOURCES.parent
# The first second of 2020: no zip can tell an earlier one on every system.
EPOCH: Final = "1577836800"
LEFT_OUT: Final = re.compile(r"(^|/)(__pycache__|\..*)(/|$)|\.py[co]$|~$")
PACKAGES_LINE: Final = re.compile(r"(?m)^(packages = \[.*)\]$")
README_LINE: Final = re.compile(r"(?m)^readme = .*\n")  # it is for those who have the clone
VERSION_LINE: Final = re.compile(r'(?m)^(__version__ = "[^"+]+)"')


def build_wheel(day: str, evidence: bytes | None = None) -> tuple[str, bytes]:
    """Return the wheel's name and bytes; raises CannotRelease where it cannot be built.

    `evidence` is that of the references, as students get it instead of them.
    """
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ImportError:
        raise CannotRelease(
            "the wheel is built by hatchling, which is not installed; "
            "run: pip install -c constraints.txt hatchling"
        ) from None
    with tempfile.TemporaryDirectory() as folder, _fixed_date():
        root = Path(folder) / "gpudojo"
        target = Path(folder) / "built"
        write_files(root, files_of_wheel(day, evidence))
        builder = WheelBuilder(str(root))
        (built,) = builder.build(directory=str(target), versions=["standard"])
        wheel = Path(built)
        return wheel.name, wheel.read_bytes()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder, by their paths, and the folders around them. Raises OSError."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def files_of_wheel(day: str, evidence: bytes | None = None) -> dict[str, bytes]:
    """Return the files the wheel is built from, by path.

    Raises CannotRelease where this is no clone of gpudojo, or the day needs what is not shipped.
    """
    for name in ("pyproject.toml", "LICENSE"):
        if not (PROJECT / name).is_file():
            raise CannotRelease(
                f"a release is made from a clone of gpudojo, and {PROJECT} is none: "
                f"it has no {name}"
            )
    license_file = PROJECT / "LICENSE"
    files = {"LICENSE": license_file.read_bytes()}
    wanted = registered_days()[day]
    for path, name in _shipped_files(SOURCES, PurePosixPath("graders")):
        is_evidence = path.parent == SHIPPED_FOLDER
        if not is_evidence and not _is_of_another_day(path, wanted):
            files[name] = path.read_bytes()
    if not wanted.built_in:
        files |= _files_of_outside_day(wanted)
    files["pyproject.toml"] = _project_file(wanted).encode()
    if evidence is not None:
        folder = SHIPPED_FOLDER.relative_to(PROJECT).as_posix()
        files[f"{folder}/{day}{SHIPPED_SUFFIX}"] = evidence
    return _with_own_version(files)


def _project_file(day: Day) -> str:
    """Return the pyproject.toml of the wheel: gpudojo's, without its readme.

    A day from outside is added to its packages and entry points.
    """
    path = PROJECT / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    project = README_LINE.sub("", text)
    if day.built_in:
        return project
    top = day.package.partition(".")[0]
    project = PACKAGES_LINE.sub(rf'\1, "graders/{top}"]', project)
    project += f'\n[project.entry-points."{GROUP}"]\n'
    project += f'{day.name} = "{day.package}"\n'
    return project


def _is_of_another_day(path: Path, wanted: Day) -> bool:
    """True for a file in the package of a day of gpudojo other than the wanted one."""
    if not path.is_relative_to(BUILT_IN) or path.parent == BUILT_IN:
        return False
    return not path.is_relative_to(wanted.folder)


class ShippedFile(NamedTuple):
    """A file that belongs into a wheel."""

    path: Path
    name: str  # its path in the wheel's sources


def _shipped_files(folder: Path, inside: PurePosixPath) -> Iterator[ShippedFile]:
    """Yield every file below a folder that belongs into a wheel.

    `inside` is the folder in the wheel's sources that it becomes.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or LEFT_OUT.search(name):
            continue
        place = inside / name
        yield ShippedFile(path, place.as_posix())


def _files_of_outside_day(day: Day) -> dict[str, bytes]:
    """Return a day's package, and what makes those above it packages.

    Raises CannotRelease where the day imports more than that of its distribution.
    """
    parts = day.package.split(".")
    files = {}
    for path, name in _shipped_files(day.folder, PurePosixPath("graders", *parts)):
        files[name] = path.read_bytes()
    # The packages above it, from the inside out.
    folder = day.folder
    for depth in range(len(parts) - 1, 0, -1):
        folder = folder.parent
        init = folder / "__init__.py"
        if init.is_file():
            package = "/".join(parts[:depth])
            files[f"graders/{package}/__init__.py"] = init.read_bytes()
    _require_own_imports(day, files)
    return files


def _require_own_imports(day: Day, files: Mapping[str, bytes]) -> None:
    """Raise CannotRelease where a file imports a module of its distribution that is not shipped.

    `files` are those that are shipped of the day, by path.
    """
    shipped = _modules_among(files)
    own_top = day.package.partition(".")[0]
    for name, data in files.items():
        if not name.endswith(".py"):
            continue
        for module, line in _imports_of(name, data):
            top = module.partition("/")[0]
            if top != own_top or module in shipped:
                continue
            file = name.removeprefix("graders/")
            dotted = module.replace("/", ".")
            raise CannotRelease(
                f"{file}, line {line}: students get only {day.package}, and it imports {dotted}"
            )


def _modules_among(files: Iterable[str]) -> set[str]:
    """Return the modules that files are, and the packages above them: "my_course/day9"."""
    modules = set()
    for name in files:
        module = name.removeprefix("graders/").removesuffix(".py")
        path = PurePosixPath(module.removesuffix("/__init__"))
        modules.add(str(path))
        for parent in path.parents:
            modules.add(str(parent))
    return modules


class ImportedModule(NamedTuple):
    """A module that a file imports."""

    path: str  # "my_course/day9/helpers"
    line: int


def _imports_of(name: str, data: bytes) -> Iterator[ImportedModule]:
    """Yield the modules that a file imports, also relative to itself.

    `name` is its path in the wheel's sources, `data` its text.
    """
    own_path = PurePosixPath(name.removeprefix("graders/"))
    tree = ast.parse(data, name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name.replace(".", "/")
                yield ImportedModule(path, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            start = PurePosixPath()
            if node.level:  # one dot is the file's own folder
                start = own_path.parents[node.level - 1]
            module = node.module or ""
            path = str(start / module.replace(".", "/"))
            yield ImportedModule(path, node.lineno)


def _with_own_version(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files with a version that ends in a hash of them.

    So pip installs a newer release over an older one. Raises CannotRelease without a version.
    """
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        header = f"{name}\0{len(data)}\0"
        digest.update(header.encode())
        digest.update(data)
    suffix = digest.hexdigest()[:8]
    name = "graders/gpudojo/__init__.py"
    source = files[name].decode()
    versioned = VERSION_LINE.sub(rf'\1+{suffix}"', source)
    if versioned == source:
        raise CannotRelease(
            f'{name} has no line `__version__ = "…"` that a release could be told apart by'
        )
    return {**files, name: versioned.encode()}


@contextlib.contextmanager
def _fixed_date() -> Iterator[None]:
    """Let everything that is built have the same date, so that it has the same bytes."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = EPOCH
    try:
        yield
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]
        else:
            os.environ["SOURCE_DATE_EPOCH"] = before
