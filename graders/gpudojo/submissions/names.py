"""What the names of files and folders tell: kinds, platforms, students, exercises, copies."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from gpudojo.model.catalogue import day_names
from gpudojo.model.errors import printable_text
from gpudojo.submissions.entries import Naming

SOURCES: Final = (".py", ".ipynb")
ZIPS: Final = (".zip",)
TARS: Final = (".tar", ".tar.gz", ".tgz")
ARCHIVES: Final = (*TARS, *ZIPS)
STRANGE_ARCHIVES: Final = tuple(
    ".rar .7z .tar.bz2 .tbz2 .tar.xz .txz .tar.zst .gz .bz2 .xz".split()  # longer endings first
)

# Made by tools, never by a student; also every name that begins with a dot.
JUNK: Final = frozenset(
    """
    __pycache__ __macosx venv env virtualenv site-packages node_modules build dist htmlcov
    thumbs.db desktop.ini lib64 wandb lightning_logs mlruns
    """.split()
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
_DAY_SPELT: Final = re.compile(r"^(day)[\s_+-](\d+)")
# Added by browsers, file managers and platforms to a name that is taken:
# " (1)", "-2", "-Copy1", " - Copy".
_COPY: Final = re.compile(r"(?:[\s_+]*\(\d{1,3}\)|[-_\s]\d{1,2}|[\s_-]+copy[\s_-]*\d*)$")
_COPY_OF: Final = re.compile(r"^(?:copy[\s_+]of[\s_+])+")
_LONGEST_SHOWN: Final = 80  # characters of a name in a sentence
_LONGEST_PRINTED: Final = 120  # the same, with invisible characters told in eight
_DIGITS: Final = re.compile(r"(\d{1,18})")


class ParsedName(NamedTuple):
    """What a name given by a platform says."""

    naming: Naming
    student: str
    identifier: str | None
    rest: str  # the student's own name of the file; empty for a folder
    late: bool = False
    file: int = 0  # the platform's number of the file


class _KeyPart(NamedTuple):
    """A run of digits, or the text between two of them; numbers come before texts."""

    is_text: bool
    number: int
    text: str


class NaturalKey(NamedTuple):
    """The parts of a name to sort by; the name itself tells those apart that have equal parts."""

    parts: tuple[_KeyPart, ...]
    name: str


@functools.lru_cache(1024)  # a class has the same names again and again
def natural_key(name: str) -> NaturalKey:
    """A sort key that puts `student-2` before `student-10`, the same on every machine.

    Letters with accents stand beside those without.
    """
    parts = []
    letters = unicodedata.normalize("NFKD", fold_case(name))
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    for part in _DIGITS.split(plain):
        if _DIGITS.fullmatch(part):
            parts.append(_KeyPart(False, int(part), ""))
        elif part:
            parts.append(_KeyPart(True, 0, part))
    return NaturalKey(tuple(parts), name)


def depth_key(path: str) -> tuple[int, object]:
    """A sort key that puts the shallowest files first."""
    return path.count("/"), natural_key(path)


@functools.lru_cache(1024)
def is_junk(name: str) -> bool:
    """True for what tools make and no student hands in."""
    folded = name.casefold()
    if folded.startswith(".") or folded in JUNK:
        return True
    return folded.endswith((".egg-info", ".pyc", ".ipynb_checkpoints"))


@functools.lru_cache(1024)
def ending_of(name: str, endings: tuple[str, ...]) -> str:
    """The first of these endings that a name has; an empty text for a name that is nothing else.

    The endings are in lower case, the name in any.
    """
    folded = name.casefold()
    for ending in endings:
        if folded != ending and folded.endswith(ending):
            return ending
    return ""


@functools.lru_cache(1024)
def parse_platform_name(name: str, is_folder: bool) -> ParsedName | None:
    """The parts of a name given by Canvas, Moodle or Gradescope; None for other names.

    Folders are named by Moodle and Gradescope, files by Moodle and Canvas. What was parsed before
    is remembered.
    """
    moodle = _MOODLE.fullmatch(name)
    if moodle:
        student = moodle["student"].strip()
        return ParsedName(Naming.MOODLE, student, moodle["id"], moodle["rest"])
    if not is_folder:
        return _parse_canvas_name(name)
    gradescope = _GRADESCOPE.fullmatch(name)
    if gradescope:
        return ParsedName(Naming.GRADESCOPE, name, gradescope["id"], "")
    return None


def _parse_canvas_name(name: str) -> ParsedName | None:
    """The parts of a file's name given by Canvas; None for other names."""
    match = _CANVAS.fullmatch(name)
    if match:
        student = match["student"]
    else:
        match = _CANVAS_ANONYMOUS.fullmatch(name)
        if match is None:
            return None
        student = f"anon_{match['id']}"
    return ParsedName(
        naming=Naming.CANVAS,
        student=student,
        identifier=match["id"],
        rest=match["rest"],
        late=bool(match["late"]),
        file=int(match["file"]),
    )


class PersonOnPlatform(NamedTuple):
    """A student, as a platform puts it into names."""

    student: str
    identifier: str | None


def people_in(paths: Iterable[str]) -> set[PersonOnPlatform]:
    """The students, with their identifiers, whose work an archive holds.

    They are known by names that a platform gives; with several, it is that of a whole class.
    """
    names: set[str] = set()
    for path in paths:
        names.update(path.split("/"))
    people = set()
    for name in names:
        is_folder = not ending_of(name, (*SOURCES, *ARCHIVES))
        parsed = parse_platform_name(name, is_folder)
        if parsed is not None:
            people.add(PersonOnPlatform(parsed.student, parsed.identifier))
    return people


def is_whole_class(paths: Iterable[str], own_name: str) -> bool:
    """True if an archive of that name holds work of students under names of a platform.

    Of several, or of one: then all sources are that student's, and the archive has another name.
    """
    sources = [path for path in paths if ending_of(path, (*SOURCES, *ARCHIVES))]
    if len(people_in(sources)) > 1:
        return True
    if not sources or parse_platform_name(own_name, is_folder=False) is not None:
        return False
    return all(people_in([path]) for path in sources)


def holds_moodle_folder(names: Iterable[str]) -> bool:
    """True if one of these names of folders is that of a student on Moodle."""
    return any(_MOODLE.fullmatch(name) for name in names)


def parse_repository_name(name: str, folder: str) -> ParsedName | None:
    """The account in the name of a repository; None for other names.

    `folder` is the name of the folder it lies in. Known are `day8-account`, `spring-day8-account`,
    and `x-account` in `x-submissions`.
    """
    account = ""
    assignment = folder.removesuffix("-submissions")
    prefix = f"{assignment}-"
    is_named_for_assignment = assignment not in ("", folder)
    if is_named_for_assignment and name.startswith(prefix):
        account = name.removeprefix(prefix)
    if not account:
        match = _repository_pattern().fullmatch(name.casefold())
        if match:
            account = name[len(name) - len(match["id"]) :]
    if account:
        return ParsedName(Naming.CLASSROOM, account, account, "")
    return None


@functools.cache
def _repository_pattern() -> re.Pattern[str]:
    """Matches names like `spring-day8-account`, with the days that are installed."""
    spellings = [re.sub(r"(\d+)", r"[-_]?\1", day) for day in day_names()]
    days = "|".join(spellings)
    return re.compile(rf"(?:.+[-_])??(?:{days})-(?P<id>.+)")


def curriculum_name(name: str) -> str:
    """The name of a file as in the curriculum, in small letters and with underscores.

    It is without ending, prefix of a platform, and mark of a copy; a day is spelt `day8`.
    """
    stem = _stem_of(name)
    parsed = parse_platform_name(stem, is_folder=False)
    if parsed is not None and parsed.rest:
        stem = parsed.rest
    stem = _without_copy_of(stem)
    while True:
        shorter = _COPY.sub("", stem)
        if shorter == stem or not shorter:
            break
        stem = shorter
    return re.sub(r"[\s+-]+", "_", stem.strip())


def copy_number(name: str) -> int:
    """The number of a copy: 0 for `day8.py`, 2 for `day8 (2).py`, 1 if a copy has none."""
    stem = _without_copy_of(_stem_of(name))
    mark = _COPY.search(stem)
    if mark is None:
        return 0
    digits = re.sub(r"\D", "", mark[0])
    if digits:
        return int(digits)
    return 1


def _stem_of(path: str) -> str:
    """The name of a file without the ending of a source."""
    name = PurePosixPath(path).name
    ending = ending_of(name, SOURCES)
    return name[: len(name) - len(ending)]


def _without_copy_of(stem: str) -> str:
    """A stem in one case, without "Copy of " in front.

    Its day is spelt `day8`, or else the number would be taken for the mark of a copy.
    """
    folded = fold_case(stem).strip()
    original = _COPY_OF.sub("", folded)
    return _DAY_SPELT.sub(r"\1\2", original)


def fold_case(name: str) -> str:
    """A name as it is compared where case and the encoding of accents do not count."""
    return unicodedata.normalize("NFC", name).casefold()


def reason_of(error: Exception) -> str:
    """The reason why something cannot be read, as the end of a sentence."""
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def name_in_text(name: str) -> str:
    """A name for use in a sentence: short, on one line, without invisible characters."""
    if len(name) > _LONGEST_SHOWN:
        name = f"{name[:38]}…{name[-38:]}"
    text = printable_text(name)
    if len(text) <= _LONGEST_PRINTED:
        return text
    return f"{text[:58]}…{text[-58:]}"
