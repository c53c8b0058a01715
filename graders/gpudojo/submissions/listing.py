"""Lists the submissions in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpudojo.model.catalogue import day_names, registered_days
from gpudojo.submissions.commits import commit_time
from gpudojo.submissions.contents import Contents
from gpudojo.submissions.entries import (
    HOLDS_SEVERAL,
    IgnoredPath,
    Kind,
    Listing,
    Naming,
    ReadLimits,
    SubmissionEntry,
    Unreadable,
)
from gpudojo.submissions.folders import read_file
from gpudojo.submissions.names import (
    ARCHIVES,
    ASIDE,
    SOURCES,
    STRANGE_ARCHIVES,
    ZIPS,
    ParsedName,
    curriculum_name,
    ending_of,
    fold_case,
    holds_moodle_folder,
    is_junk,
    is_whole_class,
    natural_key,
    parse_platform_name,
    parse_repository_name,
    people_in,
    reason_of,
)
from gpudojo.submissions.submitters import METADATA_FILE, HandedIn, read_submitters
from gpudojo.submissions.zip_files import list_zip

COURSE_FILE: Final = "course.toml"  # beside the submissions of a class
_NEITHER: Final = "it is neither a file nor a folder"
_STRAY: Final = "it is neither a Python file, a notebook, an archive nor a folder"
_LINK: Final = "it is a link; to grade what it points to, give that path"
# What a platform packs for a whole class: as much as a machine has memory for.
_CLASS_LIMITS: Final = ReadLimits(entries=200_000, archive_bytes=1 << 30, total_bytes=4 << 30)


def list_submissions(paths: Sequence[Path]) -> Listing:
    """Return the submissions at these paths, in natural order.

    Those with the same name are renamed, and none is left out. Of a checkout, git tells when it was
    handed in. Raises nothing: a path that cannot be read is among the ignored, with the reason.
    """
    lister = _Lister()
    for path in paths:
        lister.add_path(path)
    return lister.make_listing()


def list_one(folder: Path) -> Listing:
    """The listing of one folder, or of one file, as one submission, whatever is in it.

    A path that does not exist, or is no submission, is among the ignored.
    """
    origin = Path(os.path.abspath(folder))
    entry = None
    if origin.exists():
        entry = _entry_of(origin, origin.is_dir(), None)
    if entry is None:
        return Listing((), (IgnoredPath(folder, _STRAY),))
    return Listing((entry,), ())


def unpack_class(path: Path, folder: Path, only_known: bool = False) -> Path:
    """Unpack the zip of a whole class, as a platform packs it, below `folder`.

    Returns the folder with the submissions, or the path itself if it is no such zip. With
    `only_known`, nothing is unpacked: the folder is returned only if it is there already. Raises
    OSError if the folder cannot be written.
    """
    if not path.is_file() or not ending_of(path.name, ZIPS):
        return path
    if path.stat().st_size > _CLASS_LIMITS.archive_bytes:
        return path
    try:
        data = read_file(path, _CLASS_LIMITS.archive_bytes)
        contents = list_zip(data, _CLASS_LIMITS)
    except Unreadable:
        return path  # which is reported when it is read
    if not is_whole_class(contents.files, path.name):
        return path
    target = folder / hashlib.sha256(data).hexdigest()[:20]
    if not target.is_dir():
        if only_known:
            return path
        _write_contents(contents, folder, target)
    return _innermost_folder(target)


def _write_contents(contents: Contents, folder: Path, target: Path) -> None:
    """Write the files of an archive to `target`, as far as they can be read and are not too large.

    `folder` is the one that `target` lies in. The folder appears when it is complete. Raises
    OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bytes_left = _CLASS_LIMITS.total_bytes
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        new_folder = Path(beside, "class")
        for name, file in contents.files.items():
            with contextlib.suppress(Unreadable):
                data = file.fetch(min(bytes_left, ReadLimits().archive_bytes))
                bytes_left -= len(data)
                place = new_folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
        new_folder.rename(target)


def _innermost_folder(folder: Path) -> Path:
    """The folder with the submissions: Gradescope packs everything into one.

    Raises OSError for a folder that cannot be read.
    """
    while True:
        inner = list(folder.iterdir())
        if len(inner) != 1 or not inner[0].is_dir():
            return folder
        if parse_platform_name(inner[0].name, is_folder=True) is not None:
            return folder
        folder = inner[0]


# One student's work, or a class


def is_submission(folder: Path) -> bool:
    """True if a folder is one student's work rather than a class, by what is in it.

    It is, with a `.git`, or with exercise files, unless several students' work lies in it.
    """
    if (folder / ".git").exists():
        return True
    exercises = folder / "exercises"
    has_day = any((exercises / name).is_dir() for name in day_names())
    if not has_day and not _is_work(folder):
        return False
    # Among the work of several students, a file or folder that is named for a day is one
    # submission more.
    return not _holds_several_works(folder)


def _holds_several_works(folder: Path) -> bool:
    """True if several of the folders and archives in it are each somebody's work.

    False for a folder that cannot be read.
    """
    aside = {"exercises", *day_names(), *ASIDE}
    try:
        with os.scandir(folder) as listing:
            children = list(listing)
    except OSError:
        return False
    count = 0
    for child in children:
        is_aside = child.name.casefold() in aside or is_junk(child.name)
        if not is_aside and _is_somebodys_work(child):
            count += 1
    return count > 1


def _holds_class(folder: Path) -> bool:
    """True if a folder among submissions has folders or files of students in it.

    These have names of a platform, or a course file lies beside several students' work. False for a
    checkout, and for a folder that cannot be read.
    """
    if (folder / ".git").exists():
        return False
    names = []
    folders = []
    try:
        with os.scandir(folder) as listing:
            for child in listing:
                if child.is_dir(follow_symlinks=False):
                    folders.append(child.name)
                elif ending_of(child.name, (*SOURCES, *ARCHIVES)):
                    names.append(child.name)
    except OSError:
        return False
    if holds_moodle_folder(folders) or len(people_in([*names, *folders])) > 1:
        return True
    return (folder / COURSE_FILE).is_file() and _holds_several_works(folder)


def _is_somebodys_work(child: os.DirEntry[str]) -> bool:
    """True for a folder with exercise files, and for an archive."""
    if child.is_dir(follow_symlinks=False):
        return _is_work(Path(child.path))
    if not ending_of(child.name, ARCHIVES):
        return False
    return child.is_file()


def _is_work(folder: Path) -> bool:
    """True if a folder, or one in it that is named for a day, holds exercise files."""
    folders = [folder]
    for name in day_names():
        folders.append(folder / name)
        folders.append(folder / "exercises" / name)
    return any(_holds_exercise_file(each) for each in folders)


def _holds_exercise_file(folder: Path) -> bool:
    """True if a file in it is named for an exercise or a day.

    False for a folder that cannot be read, and for files that a platform named for students.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    stems = set(day_names())
    for day in registered_days().values():
        stems |= {stem.casefold() for stem in day.modules}
    for name in names:
        if not ending_of(name, SOURCES):
            continue
        if parse_platform_name(name, is_folder=False):
            # Such a prefix is on the files of many students: the folder is a class.
            continue
        if curriculum_name(name) in stems:
            return True
    return False


# Listing


class _LooseFile(NamedTuple):
    """A file or folder that a platform named for a student."""

    parsed: ParsedName
    path: Path
    is_folder: bool


class _StudentKey(NamedTuple):
    """Whose files belong together: those with the same student, in the same folder."""

    folder: Path
    naming: Naming
    student: str
    identifier: str | None


class _Lister:
    """Collects submissions, loose files of students, and what is ignored."""

    def __init__(self) -> None:
        self._entries: list[SubmissionEntry] = []
        self._ignored: list[IgnoredPath] = []
        self._loose: dict[_StudentKey, list[_LooseFile]] = {}
        self._seen: set[Path] = set()

    def add_path(self, path: Path) -> None:
        """Add a path that was given: a class, or one submission or a part of one.

        What is neither, or cannot be read, is ignored with the reason.
        """
        # "." and "x/.." have no name; and a folder given twice is one folder.
        origin = Path(os.path.abspath(path))
        real = Path(os.path.realpath(origin))
        if real in self._seen:
            self._ignore_path(path, "it was given twice")
            return
        self._seen.add(real)
        try:
            mode = origin.stat().st_mode
        except (OSError, ValueError) as error:
            self._ignore_path(path, f"it cannot be read: {reason_of(error)}")
            return
        is_folder = stat.S_ISDIR(mode)
        if is_folder and not is_submission(origin):
            self._add_class(origin)
        elif not is_folder and not stat.S_ISREG(mode):
            self._ignore_path(path, _NEITHER)
        else:
            self._add_submission(origin, is_folder, path, {})

    def _add_class(self, folder: Path) -> None:
        """Add everything in a folder.

        A folder that cannot be read is ignored with the reason.
        """
        try:
            with os.scandir(folder) as listing:
                children = sorted(listing, key=lambda child: natural_key(child.name))
        except OSError as error:
            self._ignore_path(folder, f"it cannot be read: {reason_of(error)}")
            return
        submitters = read_submitters(folder / METADATA_FILE)
        for child in children:
            if is_junk(child.name):
                continue
            if child.name == METADATA_FILE and submitters:
                continue
            self._add_child(child, folder / child.name, submitters)

    def _add_child(
        self, child: os.DirEntry[str], path: Path, submitters: Mapping[str, HandedIn]
    ) -> None:
        """Add a file or folder of a class.

        Links, devices and what is no submission are ignored, with the reason.

        `submitters` is who handed in, by folder.
        """
        try:
            is_link = child.is_symlink()
            is_folder = child.is_dir(follow_symlinks=False)
            is_file = child.is_file(follow_symlinks=False)
        except OSError as error:
            self._ignore_path(path, f"it cannot be read: {reason_of(error)}")
            return
        if is_link:
            self._ignore_path(path, _LINK)
        elif is_folder or is_file:
            self._add_submission(path, is_folder, path, submitters)
        else:
            self._ignore_path(path, _NEITHER)

    def _add_submission(
        self,
        path: Path,
        is_folder: bool,
        given: Path,
        submitters: Mapping[str, HandedIn],
    ) -> None:
        """Add a submission that is one file or folder, or a student's loose file.

        `given` is the path as the user gave it, `submitters` is who handed in, by folder. What is
        no submission is added to the ignored.
        """
        parsed = parse_platform_name(path.name, is_folder)
        if parsed is not None and parsed.naming is not Naming.GRADESCOPE:
            # A student's files may be given one by one, as a shell expands `download/ada_*`.
            self._add_loose(_LooseFile(parsed, path, is_folder))
            return
        # Gradescope lists the people of each folder.
        handed_in = HandedIn()
        if parsed is not None:
            handed_in = submitters.get(path.name, handed_in)
            if handed_in.people:
                students = [person.name for person in handed_in.people]
                parsed = parsed._replace(student=" & ".join(students))
        if parsed is None and is_folder and _holds_class(path):
            self._ignore_path(given, f"it {HOLDS_SEVERAL.format('give it by itself')}")
            return
        # Everything else is a submission of its own.
        entry = _entry_of(path, is_folder, parsed)
        if entry is None:
            self._ignore_path(given, _STRAY)
            return
        entry = msgspec.structs.replace(
            entry,
            submitted=handed_in.at or entry.submitted,
            people=handed_in.people,
        )
        self._entries.append(entry)

    def _add_loose(self, file: _LooseFile) -> None:
        """Add a file to those that a platform named for the same student in the same folder."""
        key = _StudentKey(
            folder=file.path.parent,
            naming=file.parsed.naming,
            student=file.parsed.student,
            identifier=file.parsed.identifier,
        )
        files = self._loose.setdefault(key, [])
        if file not in files:  # a class, and one of its files
            files.append(file)

    def _ignore_path(self, path: Path, reason: str) -> None:
        """Note that a path is no submission, and why."""
        self._ignored.append(IgnoredPath(path, reason))

    def make_listing(self) -> Listing:
        """Everything that was added, sorted, with unique names.

        What was added twice is there once.
        """
        all_entries = [*self._entries]
        for files in self._loose.values():
            all_entries += _entries_of_attempts(files)
        # Once each: a class, and one of its submissions, may have been given.
        unique = {}
        for entry in reversed(all_entries):
            unique[entry.members] = entry
        entries = _with_unique_names(list(unique.values()))
        return Listing(tuple(entries), tuple(self._ignored))


def _entry_of(path: Path, is_folder: bool, parsed: ParsedName | None) -> SubmissionEntry | None:
    """A submission that is one file or folder; None for a file of another kind.

    Of a checkout, it was handed in when its last commit was made, which git tells.
    """
    name = path.name or str(path)
    kind = _kind_of(name, is_folder)
    if is_folder and (path / ".git").exists():
        kind = Kind.CHECKOUT
    if kind is None:
        return None
    # The name without its ending.
    stem = name
    if not is_folder:
        ending = ending_of(name, (*ARCHIVES, *STRANGE_ARCHIVES, *SOURCES))
        stem = name[: len(name) - len(ending)]
    stem = _legible_name(stem)
    # Who it is: as the platform says, by the repository, or by the name.
    if parsed is None and (is_folder or kind is Kind.ZIP):
        parsed = parse_repository_name(stem, path.parent.name)
    if parsed is None:
        parsed = ParsedName(Naming.PLAIN, stem, None, "")
    submitted = ""
    if kind is Kind.CHECKOUT:
        submitted = commit_time(path)
    name_inside = ""
    if kind in (Kind.PYTHON, Kind.NOTEBOOK):
        name_inside = name
    return SubmissionEntry(
        name=stem,
        student=parsed.student,
        origin=path,
        kind=kind,
        naming=parsed.naming,
        identifier=parsed.identifier,
        submitted=submitted,
        members=((name_inside, path),),
    )


def _entries_of_attempts(files: list[_LooseFile]) -> list[SubmissionEntry]:
    """One submission for each attempt of a student; most often there is one.

    The last has the student's name.
    """
    attempts = _split_into_attempts(files)
    if len(attempts) == 1:
        return [_entry_of_files(files)]
    entries = []
    for number, attempt in enumerate(attempts, 1):
        attempt.sort(key=lambda file: natural_key(file.path.name))
        entry = _entry_of_files(attempt)
        name = entry.name
        if number < len(attempts):
            name = f"{name} (attempt {number})"
        entries.append(msgspec.structs.replace(entry, name=name, attempt=number))
    return entries


def _split_into_attempts(files: list[_LooseFile]) -> list[list[_LooseFile]]:
    """The files of each attempt of a student, the first attempt first.

    A platform numbers files as they arrive. A file that was there before under the same name begins
    another attempt.
    """
    attempts: list[list[_LooseFile]] = [[]]
    names: set[str] = set()
    for file in sorted(files, key=lambda file: file.parsed.file):
        rest = file.parsed.rest
        ending = ending_of(rest, (*SOURCES, *ARCHIVES))
        stem = rest[: len(rest) - len(ending)]
        name = f"{curriculum_name(stem)}{ending}"
        if rest and name in names:
            attempts.append([])
            names = set()
        names.add(name)
        attempts[-1].append(file)
    return attempts


def _entry_of_files(files: list[_LooseFile]) -> SubmissionEntry:
    """One submission of all files and folders that a platform named for one student."""
    first = files[0]
    kind = Kind.FILES
    is_whole = False  # a single archive is the whole submission
    if len(files) == 1:
        kind = _kind_of(first.path.name, first.is_folder) or kind
        is_whole = kind not in (Kind.PYTHON, Kind.NOTEBOOK)
    members = []
    for file in files:
        name = file.parsed.rest or file.path.name
        # A folder from Moodle is named for the student only.
        if file.is_folder or is_whole:
            name = ""
        members.append((name, file.path))
    student = _legible_name(first.parsed.student)
    return SubmissionEntry(
        name=student,
        student=student,
        origin=first.path,
        kind=kind,
        naming=first.parsed.naming,
        identifier=first.parsed.identifier,
        late=any(file.parsed.late for file in files),
        members=tuple(members),
    )


def _kind_of(name: str, is_folder: bool) -> Kind | None:
    """The form of a submission by its name; None for a file of another kind.

    An archive of a kind that is not supported is listed, too: it is reported when it is read.
    """
    if is_folder:
        return Kind.FOLDER
    source = ending_of(name, SOURCES)
    if source:
        if source == ".py":
            return Kind.PYTHON
        return Kind.NOTEBOOK
    archive = ending_of(name, ARCHIVES)
    if archive:
        if archive in ZIPS:
            return Kind.ZIP
        return Kind.TAR
    if ending_of(name, STRANGE_ARCHIVES):
        return Kind.OTHER
    return None


def _with_unique_names(listed: list[SubmissionEntry]) -> list[SubmissionEntry]:
    """The entries with unique names, also if case or the encoding of accents is ignored.

    They are sorted by name. An entry that gets another name is a copy.
    """
    by_name: dict[str, list[SubmissionEntry]] = {}
    for entry in listed:
        by_name.setdefault(fold_case(entry.name), []).append(entry)
    # Those whose name is unique keep it.
    named: list[SubmissionEntry] = []
    used: set[str] = set()
    groups = []
    for name, group in by_name.items():
        if len(group) > 1:
            groups.append(group)
        else:
            named += group
            used.add(name)
    for group in groups:
        names = _unused_names(group, used)
        used.update(fold_case(name) for name in names)
        for entry, name in zip(group, names, strict=True):
            named.append(msgspec.structs.replace(entry, name=name))
    named.sort(key=lambda entry: str(entry.origin))
    named.sort(key=lambda entry: natural_key(entry.name))
    return named


def _unused_names(group: list[SubmissionEntry], used: set[str]) -> list[str]:
    """Different names for entries of one name, none of which is used; the most readable ones."""
    names: list[str] = []
    for names in _lists_of_names(group):
        keys = {fold_case(name) for name in names}
        if len(keys) == len(group) and not used & keys:
            break
    return names


def _lists_of_names(group: list[SubmissionEntry]) -> Iterator[list[str]]:
    """Lists of names for entries with the same name, the most readable first.

    The last one is always unique.
    """
    yield [f"{entry.name}-{entry.identifier or ''}" for entry in group]
    yield [_legible_name(entry.origin.name) for entry in group]
    for count in range(1, 4):
        yield [_name_with_folders(entry, count) for entry in group]
    for size in (8, 64):
        yield [_name_with_digest(entry, size) for entry in group]


def _name_with_folders(entry: SubmissionEntry, count: int) -> str:
    """The name of an entry with those of so many folders that it lies in."""
    folders = entry.origin.parts[:-1]
    text = "-".join(folders[-count:])
    return f"{entry.name}-{_legible_name(text)}"


def _name_with_digest(entry: SubmissionEntry, size: int) -> str:
    """The name of an entry with so many characters of a digest of its path."""
    path = os.fsencode(entry.origin)
    digest = hashlib.sha256(path).hexdigest()
    return f"{entry.name}-{digest[:size]}"


def _legible_name(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 become %XX, control characters _."""
    characters = []
    for character in name:
        if "\udc80" <= character <= "\udcff":
            byte = ord(character) - 0xDC00
            characters.append(f"%{byte:02X}")
        elif character.isprintable():
            characters.append(character)
        else:
            characters.append("_")
    return "".join(characters).strip() or "_"
