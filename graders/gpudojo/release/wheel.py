"""Builds the wheel that students install: the grader, one day, and the evidence of its references.

It is made from the gpudojo that is installed, whether from a clone or not: from the files of its
packages and from the metadata of its distribution. Other days stay out of it. A day from another
distribution is shipped under its own import name and registered by an entry point, as it is where
it comes from; so it may import nothing of its distribution but its own package.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.metadata
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from gpudojo.grading.shipped_evidence import SHIPPED_FOLDER, SHIPPED_SUFFIX
from gpudojo.model.catalogue import BUILT_IN, GROUP, Day, registered_days
from gpudojo.model.errors import CannotRelease

SOURCES: Final = Path(__file__).resolve().parents[2]  # the folder of these packages
PACKAGES: Final = ("gpudojo", "virtual_cuda")
DATE: Final = (2020, 1, 1, 0, 0, 0)  # no zip can tell an earlier one on every system
LEFT_OUT: Final = re.compile(r"(^|/)(__pycache__|\..*)(/|$)|\.py[co]$|~$")
DESCRIPTION: Final = ("Description", "Description-Content-Type")  # for those who have the clone
VERSION_FILE: Final = "gpudojo/__init__.py"
VERSION_LINE: Final = re.compile(r'(?m)^__version__ = "([^"]+)"')


def build_wheel(day: str, evidence: bytes | None = None) -> tuple[str, bytes]:
    """Return the wheel's name and bytes, which are the same each time.

    `evidence` is that of the references, as students get it instead of them. Raises CannotRelease
    where it cannot be built, KeyError for an unknown day, and OSError.
    """
    files = files_of_wheel(day, evidence)
    version = _version_in(files[VERSION_FILE])
    info = f"gpudojo-{version}.dist-info"
    files |= _files_about_distribution(info, version, registered_days()[day])
    record = f"{info}/RECORD"
    lines = [_line_of_record(name, data) for name, data in sorted(files.items())]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return f"gpudojo-{version}-py3-none-any.whl", held.getvalue()


def _files_about_distribution(info: str, version: str, day: Day) -> dict[str, bytes]:
    """Return the metadata of the wheel but its list of files, by path; `info` is their folder.

    They are those of the installed gpudojo. Raises CannotRelease where it is not installed.
    """
    installed = find_distribution()
    headers = ""
    for name in dict.fromkeys(installed.metadata):
        values = installed.metadata.get_all(name) or []
        if name == "Version":
            values = [version]
        elif name in DESCRIPTION:
            values = []
        headers += "".join(f"{name}: {value}\n" for value in values)
    entry_points = installed.read_text("entry_points.txt") or ""
    if not day.built_in:
        entry_points += f"\n[{GROUP}]\n{day.name} = {day.package}\n"
    texts = {
        "METADATA": headers,
        "WHEEL": "Wheel-Version: 1.0\nGenerator: gpudojo\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": entry_points,
    }
    for name in installed.metadata.get_all("License-File") or ():
        text = installed.read_text(f"licenses/{name}")
        if text is None:
            raise CannotRelease(f"the installed gpudojo has no {name}; install it again")
        texts[f"licenses/{name}"] = text
    return {f"{info}/{name}": text.encode() for name, text in texts.items()}


def find_distribution() -> importlib.metadata.Distribution:
    """Return what is installed as gpudojo. Raises CannotRelease where that is nothing."""
    try:
        return importlib.metadata.distribution("gpudojo")
    except importlib.metadata.PackageNotFoundError:
        raise CannotRelease(
            "gpudojo is not installed in this Python, and a release is made from what is installed"
        ) from None


def _line_of_record(name: str, data: bytes) -> str:
    """Return the line about a file in a wheel's list of files."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(data)}"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder, by their paths, and the folders around them. Raises OSError."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def files_of_wheel(day: str, evidence: bytes | None = None) -> dict[str, bytes]:
    """Return the files of the wheel's packages, by path.

    `evidence` is that of the references, if it is to be shipped. Raises CannotRelease where the day
    needs what is not shipped, KeyError for an unknown day, and OSError.
    """
    files = {}
    wanted = registered_days()[day]
    for package in PACKAGES:
        for path, name in _shipped_files(SOURCES / package, PurePosixPath(package)):
            is_evidence = path.parent == SHIPPED_FOLDER
            if not is_evidence and not _is_of_another_day(path, wanted):
                files[name] = path.read_bytes()
    if not wanted.built_in:
        files |= _files_of_outside_day(wanted)
    if evidence is not None:
        folder = SHIPPED_FOLDER.relative_to(SOURCES).as_posix()
        files[f"{folder}/{day}{SHIPPED_SUFFIX}"] = evidence
    return _with_own_version(files)


def _is_of_another_day(path: Path, wanted: Day) -> bool:
    """True for a file in the package of a day of gpudojo other than the wanted one."""
    if not path.is_relative_to(BUILT_IN) or path.parent == BUILT_IN:
        return False
    return not path.is_relative_to(wanted.folder)


class ShippedFile(NamedTuple):
    """A file that belongs into a wheel."""

    path: Path
    name: str  # its path in the wheel


def _shipped_files(folder: Path, inside: PurePosixPath) -> Iterator[ShippedFile]:
    """Yield every file below a folder that belongs into a wheel.

    `inside` is the folder in the wheel that it becomes.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or LEFT_OUT.search(name):
            continue
        place = inside / name
        yield ShippedFile(path, place.as_posix())


def _files_of_outside_day(day: Day) -> dict[str, bytes]:
    """Return a day's package, and what makes those above it packages, as files by path.

    Raises CannotRelease where the day imports more than that of its distribution, and OSError.
    """
    parts = day.package.split(".")
    files = {}
    for path, name in _shipped_files(day.folder, PurePosixPath(*parts)):
        files[name] = path.read_bytes()
    # The packages above it, from the inside out.
    folder = day.folder
    for depth in range(len(parts) - 1, 0, -1):
        folder = folder.parent
        init = folder / "__init__.py"
        if init.is_file():
            package = "/".join(parts[:depth])
            files[f"{package}/__init__.py"] = init.read_bytes()
    _require_own_imports(day, files)
    return files


def _require_own_imports(day: Day, files: Mapping[str, bytes]) -> None:
    """Raise CannotRelease where a file imports a module of its distribution that is not shipped.

    `files` are those that are shipped of the day, by path. Raises SyntaxError for one that is no
    Python.
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
            dotted = module.replace("/", ".")
            raise CannotRelease(
                f"{name}, line {line}: students get only {day.package}, and it imports {dotted}"
            )


def _modules_among(files: Iterable[str]) -> set[str]:
    """Return the modules that files are, and the packages above them: "my_course/day9"."""
    modules = set()
    for name in files:
        module = name.removesuffix(".py")
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

    `name` is its path in the wheel, `data` its text. Raises SyntaxError if it is no
    Python.
    """
    own_path = PurePosixPath(name)
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
    source = files[VERSION_FILE]
    public, _, _ = _version_in(source).partition("+")
    version = f'__version__ = "{public}+{suffix}"'
    versioned = VERSION_LINE.sub(version, source.decode())
    return {**files, VERSION_FILE: versioned.encode()}


def _version_in(source: bytes) -> str:
    """Return the version that a source says. Raises CannotRelease where it says none."""
    found = VERSION_LINE.search(source.decode())
    if found is None:
        raise CannotRelease(
            f'{VERSION_FILE} has no line `__version__ = "…"` that a release could be told apart by'
        )
    return found[1]
