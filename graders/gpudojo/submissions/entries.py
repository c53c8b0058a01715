"""Entries, submissions and limits, and what the names of files and folders tell."""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import msgspec

from gpudojo.model.catalogue import day_names
from gpudojo.model.errors import printable_text

SOURCES: Final = (".py", ".ipynb")
ZIPS: Final = (".zip",)
TARS: Final = (".tar", ".tar.gz", ".tgz")
ARCHIVES: Final = (*TARS, *ZIPS)  # longer endings first
STRANGE_ARCHIVES: Final = (
    ".rar",
    ".7z",
    ".tar.bz2",
    ".tbz2",
    ".tar.xz",
    ".txz",
    ".tar.zst",
    ".gz",
    ".bz2",
    ".xz",
)

# Made by tools, never by a student; also every name that begins with a dot.
JUNK: Final = frozenset(
    "__pycache__ __macosx venv env virtualenv site-packages node_modules build dist htmlcov thumbs.db desktop.ini "
    "lib64 wandb lightning_logs mlruns".split()
)
# Folders whose definitions are not the student's, or not meant to be handed in.
ASIDE: Final = frozenset(
    "reference references test tests testing grader graders conformance".split()
)

# Canvas's numbers are long: `lab_8_2_name.py` is not from Canvas.
_CANVAS: Final = re.compile(
    r"(?P<student>[^_\s]+)_(?P<late>LATE_)?(?P<id>\d{2,})_(?P<file>\d{3,})_(?P<rest>.+)", re.S
)
_CANVAS_ANONYMOUS: Final = re.compile(
    r"anon_(?P<id>\w{3,8}?)_(?P<late>LATE_)?(?P<file>\d{3,})_(?P<rest>.+)", re.S
)
_MOODLE: Final = re.compile(
    r"(?P<student>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+_?(?P<rest>.*)", re.S
)
_GRADESCOPE: Final = re.compile(r"submission_(?P<id>\d+)")
_DAYS: Final = "|".join(re.sub(r"(\d+)", r"[-_]?\1", day) for day in day_names())
_DAY: Final = re.compile(rf"(?:.+[-_])??(?:{_DAYS})-(?P<id>.+)")
_DAY_SPELT: Final = re.compile(r"^(day)[\s_+-](\d+)")
# Added by browsers, file managers and platforms to a name that is taken: " (1)", "-2", "-Copy1", " - Copy".
_COPY: Final = re.compile(r"(?:[\s_+]*\(\d{1,3}\)|[-_\s]\d{1,2}|[\s_-]+copy[\s_-]*\d*)$")
_COPY_OF: Final = re.compile(r"^(?:copy[\s_+]of[\s_+])+")


class Named(NamedTuple):
    """What a name given by a platform says."""

    naming: Naming
    student: str
    identifier: str | None
    rest: str  # the student's own name of the file; empty for a folder
    late: bool = False
    file: int = 0  # the platform's number of the file


@functools.lru_cache(1024)  # a class has the same names again and again
def natural(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """A sort key that puts `student-2` before `student-10`, the same on every machine."""
    parts = re.split(r"(\d{1,18})", folded(name))
    return tuple(
        (0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part
    ), name


def in_order(path: str) -> tuple[int, object]:
    """A sort key that puts the shallowest files first."""
    return path.count("/"), natural(path)


@functools.lru_cache(1024)
def is_junk(name: str) -> bool:
    folded = name.casefold()
    return (
        folded.startswith(".")
        or folded in JUNK
        or folded.endswith((".egg-info", ".pyc", ".ipynb_checkpoints"))
    )


@functools.lru_cache(1024)
def suffix(name: str, kinds: tuple[str, ...]) -> str:
    """The ending that the name has of these, or an empty text."""
    folded = name.casefold()
    return next((kind for kind in kinds if folded.endswith(kind) and len(folded) > len(kind)), "")


@functools.lru_cache(1024)
def of_platform(name: str, folder: bool) -> Named | None:
    """What a name given by Canvas, Moodle or Gradescope says; None for other names."""
    if moodle := _MOODLE.fullmatch(name):
        return Named(Naming.MOODLE, moodle["student"].strip(), moodle["id"], moodle["rest"])
    if folder:
        found = _GRADESCOPE.fullmatch(name)
        return Named(Naming.GRADESCOPE, name, found["id"], "") if found else None
    if canvas := _CANVAS.fullmatch(name) or _CANVAS_ANONYMOUS.fullmatch(name):
        student = canvas.groupdict().get("student") or f"anon_{canvas['id']}"
        late = bool(canvas["late"])
        number = int(canvas["file"])
        return Named(Naming.CANVAS, student, canvas["id"], canvas["rest"], late, number)
    return None


def people_of(paths: Iterable[str]) -> set[tuple[str, str | None]]:
    """Whose work an archive holds, by names that a platform gives: that of a whole class is not a submission."""
    parts = {part for path in paths for part in path.split("/")}
    names = [of_platform(part, folder=not suffix(part, (*SOURCES, *ARCHIVES))) for part in parts]
    return {(one.student, one.identifier) for one in names if one is not None}


def of_repository(name: str, folder: str) -> Named | None:
    """What the name of a repository says: `day8-account`, `spring-day8-account`, or `x-account` in `x-submissions`."""
    assignment = folder.removesuffix("-submissions") if folder.endswith("-submissions") else ""
    account = (
        name.removeprefix(f"{assignment}-")
        if assignment and name.startswith(f"{assignment}-")
        else ""
    )
    if not account and (found := _DAY.fullmatch(name.casefold())):
        account = name[len(name) - len(found["id"]) :]
    return Named(Naming.CLASSROOM, account, account, "") if account else None


def plain(name: str) -> str:
    """The name of a file as in the curriculum: without ending, prefix of a platform, and mark of a copy."""
    stem = PurePosixPath(name).name
    stem = stem[: len(stem) - len(suffix(stem, SOURCES))]
    if (named := of_platform(stem, folder=False)) and named.rest:
        stem = named.rest
    stem = _COPY_OF.sub("", folded(stem).strip())
    stem = _DAY_SPELT.sub(
        r"\1\2", stem
    )  # first, or its number would be taken for the mark of a copy
    while (shorter := _COPY.sub("", stem)) != stem and shorter:
        stem = shorter
    return re.sub(r"[\s+-]+", "_", stem.strip())


def copy_number(name: str) -> int:
    """The number of a copy: 0 for `day8.py`, 2 for `day8 (2).py`, 1 where a copy has none."""
    stem = PurePosixPath(name).name
    stem = _DAY_SPELT.sub(
        r"\1\2", _COPY_OF.sub("", folded(stem[: len(stem) - len(suffix(stem, SOURCES))]).strip())
    )
    mark = _COPY.search(stem)
    figures = re.sub(r"\D", "", mark[0]) if mark else ""
    return int(figures) if figures else int(mark is not None)


def folded(name: str) -> str:
    """A name as it is compared where case and the encoding of accents do not count."""
    return unicodedata.normalize("NFC", name).casefold()


def reason(error: Exception) -> str:
    """Why something cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def shown(name: str) -> str:
    """A name for use in a sentence: short, on one line, without invisible characters."""
    made = printable_text(name if len(name) <= 80 else f"{name[:38]}…{name[-38:]}")
    return (
        made if len(made) <= 120 else f"{made[:58]}…{made[-58:]}"
    )  # invisible characters are told in eight


METADATA: Final = "submission_metadata.yml"
_LARGEST: Final = 64_000_000  # it holds results and histories too
_SUBMISSION: Final = re.compile(r"""["']?(submission_\d+)["']?:\s*$""")
_KEY: Final = re.compile(r"""(\s+):?["']?(\w+)["']?:\s*$""")
_FIELD: Final = re.compile(r"""\s*(?:-\s+)?:?["']?(name|sid|email)["']?:\s+(.+?)\s*$""")
_CREATED: Final = re.compile(r"""\s+:?["']?(created_at|utc)["']?:(.*)$""")
_DATE: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?\s*(Z|UTC|[+-]\d\d:?\d\d)"
)


class Submitter(NamedTuple):
    """A student, as a platform lists who handed in."""

    name: str
    sid: str = ""
    email: str = ""


class HandedIn(msgspec.Struct, frozen=True):
    """Who handed a submission in, and when: ISO 8601, or empty."""

    people: tuple[Submitter, ...] = ()
    at: str = ""


def submitters(path: Path) -> dict[str, HandedIn]:
    """Who handed in each folder and when, as Gradescope lists it; empty where there is no readable list."""
    try:
        with path.open("rb") as file:
            lines = file.read(_LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, list[Submitter]] = {}
    dates: dict[str, str] = {}
    people: list[Submitter] | None = None  # of the current submission
    folder, inside, dated = (
        "",
        -1,
        False,
    )  # indentation of the current list of submitters; -1 outside of one
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if heading := _SUBMISSION.match(line):
            folder = heading[1]
            inside = -1
            dated = False
            people = found.setdefault(folder, [])
        elif people is None:
            continue
        elif inside >= 0 and (
            indent > inside or (indent == inside and line.lstrip().startswith("- "))
        ):
            if field := _FIELD.match(line):
                if line.lstrip().startswith("- ") or not people:
                    people.append(Submitter(""))
                people[-1] = people[-1]._replace(**{field[1]: _text(field[2])})
        else:
            # Only the submission's own entries: its history repeats them, indented further.
            key = _KEY.match(line)
            inside = indent if key and key[2] == "submitters" and indent <= 2 and not people else -1
            created = _CREATED.match(line)
            if created and (indent <= 2 if created[1] == "created_at" else dated):
                dated = True
                if (date := _DATE.search(created[2])) and folder not in dates:
                    zone = {"Z": "+00:00", "UTC": "+00:00"}.get(date[3], date[3])
                    dates[folder] = f"{date[1]}T{date[2]}{zone}"
            elif indent <= 2:
                dated = False
    known = {name: tuple(one for one in people if one.name) for name, people in found.items()}
    return {
        name: HandedIn(people, dates.get(name, ""))
        for name, people in known.items()
        if people or name in dates
    }


def _text(value: str) -> str:
    """The value of a simple YAML scalar."""
    if len(value) >= 2 and value[0] == value[-1] == "'":
        value = value[1:-1].replace("''", "'")
    elif len(value) >= 2 and value[0] == value[-1] == '"':
        escape = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))")
        value = escape.sub(
            lambda m: chr(int(m[1] or m[2], 16)) if m[1] or m[2] else m[3], value[1:-1]
        )
    return "".join(c if c.isprintable() else "_" for c in value).strip()


class Kind(enum.StrEnum):
    """The form of a submission."""

    FOLDER = "folder"
    CHECKOUT = "checkout"  # a folder that is a git checkout
    ZIP = "zip"
    TAR = "tar"
    PYTHON = "python"
    NOTEBOOK = "notebook"
    FILES = "files"  # loose files of one student, grouped by the names that a platform gave them
    OTHER = "other"  # an archive of a kind that is not read, which is reported


class Naming(enum.StrEnum):
    """The platform that named it."""

    PLAIN = "plain"
    CANVAS = "canvas"
    MOODLE = "moodle"
    GRADESCOPE = "gradescope"
    CLASSROOM = (
        "classroom"  # GitHub Classroom, Classroom 50: a repository named for assignment and account
    )


class SubmissionEntry(msgspec.Struct, frozen=True):
    """One submission in a listing, not read yet."""

    name: str  # unique in its listing, also where case is ignored
    student: str  # as far as the name says
    origin: Path  # the file or folder; for loose files, the first of them
    kind: Kind
    naming: Naming = Naming.PLAIN
    identifier: str | None = (
        None  # the platform's number of the student or submission, or the account
    )
    late: bool = False  # marked by the platform
    attempt: int = 0  # its number, where the platform's files hold several of this student
    submitted: str = ""  # when, as the platform or the last commit says; ISO 8601
    people: tuple[
        Submitter, ...
    ] = ()  # who handed it in, where the platform lists several or their ids
    # Its parts: the name inside the submission ("" for a folder or archive that is all of it), and the path.
    members: tuple[tuple[str, Path], ...] = ()


class IgnoredPath(msgspec.Struct, frozen=True):
    """Something among the submissions that is none."""

    path: Path
    reason: str


class Listing(msgspec.Struct, frozen=True):
    """The submissions at some paths, and what was ignored there."""

    entries: tuple[SubmissionEntry, ...]
    ignored: tuple[IgnoredPath, ...]


class ReadLimits(msgspec.Struct, frozen=True):
    """How large one submission may be."""

    files: int = 200
    file_bytes: int = 10 << 20
    total_bytes: int = 50 << 20  # of everything unpacked, with nested archives
    archive_bytes: int = 50 << 20  # of an archive as handed in
    ratio: int = 200  # unpacked to packed; source text stays below 20
    ratio_from: int = 1_000_000  # bytes below which the ratio does not matter
    entries: int = 20_000  # names in a folder or archive
    depth: int = 16  # of folders
    path_length: int = 240
    notes: int = 20


class SourceFile(msgspec.Struct, frozen=True):
    """A Python file or notebook."""

    path: str  # relative, with forward slashes, safe to be written below any folder
    data: bytes


class ReadSubmission(msgspec.Struct, frozen=True):
    """What was read of an entry. `problem` says why nothing can be graded, if so."""

    entry: SubmissionEntry
    files: tuple[SourceFile, ...]
    problem: str | None = None
    notes: tuple[str, ...] = ()
    digest: str = ""

    @property
    def contents(self) -> dict[str, bytes]:
        """The files by path."""
        return {file.path: file.data for file in self.files}


class Unreadable(Exception):
    """A file cannot be used; the text continues a sentence that its name begins: "… is encrypted"."""


def digest(files: Iterable[SourceFile]) -> str:
    """The hash of all paths and bytes; it does not depend on the name or date of a submission."""
    whole = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        for part in (file.path.encode("utf-8", "surrogatepass"), file.data):
            # the length first: no two lists of files may give the same bytes
            whole.update(len(part).to_bytes(8, "big"))
            whole.update(part)
    return whole.hexdigest()
