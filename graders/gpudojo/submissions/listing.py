"""Lists the submissions in a folder."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.model.catalogue import day_names, registered_days
from gpudojo.submissions import archives, entries
from gpudojo.submissions.entries import (
    IgnoredPath,
    Kind,
    Listing,
    Named,
    Naming,
    SubmissionEntry,
    natural,
    suffix,
)

_NEITHER: Final = "it is neither a file nor a folder"
_STRAY: Final = "it is neither a Python file, a notebook, an archive nor a folder"


def list_submissions(paths: Sequence[Path]) -> Listing:
    """The submissions at these paths in natural order, each name once, and what was ignored with the reason."""
    found: list[SubmissionEntry] = []
    ignored: list[IgnoredPath] = []
    seen: set[Path] = set()
    loose: _Loose = {}
    for path in paths:
        # "." and "x/.." have no name; and a folder given twice is one folder
        origin = Path(os.path.abspath(path))
        real = Path(os.path.realpath(origin))
        if real in seen:
            ignored.append(IgnoredPath(path, "it was given twice"))
            continue
        seen.add(real)
        try:
            mode = origin.stat().st_mode
        except (OSError, ValueError) as error:
            ignored.append(IgnoredPath(path, f"it cannot be read: {entries.reason(error)}"))
            continue
        is_folder = stat.S_ISDIR(mode)
        named = entries.of_platform(origin.name, is_folder)
        if is_folder and not is_submission(origin):
            _list_class(origin, found, ignored, loose)
        elif not is_folder and not stat.S_ISREG(mode):
            ignored.append(IgnoredPath(path, _NEITHER))
        elif named is not None and named.naming is not Naming.GRADESCOPE:
            # A student's files may be given one by one, as a shell expands `download/ada_*`.
            _keep(loose, named, origin, is_folder)
        elif entry := _single(origin, is_folder, named):
            found.append(entry)
        else:
            ignored.append(IgnoredPath(path, _STRAY))
    found += [entry for parts in loose.values() for entry in _attempts(parts)]
    once = {
        entry.members: entry for entry in reversed(found)
    }  # a class, and one of its submissions
    return Listing(tuple(_with_unique_names(list(once.values()))), tuple(ignored))


# What a platform packs for a whole class: as much as a machine has memory for.
_CLASS: Final = entries.ReadLimits(entries=200_000, archive_bytes=1 << 30, total_bytes=4 << 30)


def unpacked(path: Path, folder: Path, known: bool = False) -> Path:
    """The zip of a whole class as a platform packs it, unpacked below `folder`; any other path as it is.

    With `known`, only one that was unpacked there before. Raises OSError where the folder cannot be written."""
    if not (
        path.is_file()
        and suffix(path.name, (".zip",))
        and path.stat().st_size <= _CLASS.archive_bytes
    ):
        return path
    try:
        data = archives.fetch(path, _CLASS.archive_bytes)
        contents = archives.zip_listing(data, _CLASS)
    except entries.Unreadable:
        return path  # which is reported when it is read
    if len(entries.people_of(contents.files)) < 2:
        return path
    target = folder / hashlib.sha256(data).hexdigest()[:20]
    if known and not target.is_dir():
        return path
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        left = _CLASS.total_bytes
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            for name, found in contents.files.items():
                with contextlib.suppress(entries.Unreadable):
                    inside = found.fetch(min(left, entries.ReadLimits().archive_bytes))
                    left -= len(inside)
                    place = Path(beside, "class", name)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(inside)
            Path(beside, "class").rename(target)
    # Gradescope packs everything into one folder.
    while len(inner := list(target.iterdir())) == 1 and inner[0].is_dir():
        if entries.of_platform(inner[0].name, folder=True) is not None:
            break
        target = inner[0]
    return target


def list_one(folder: Path) -> Listing:
    """One folder as one submission, whatever is in it."""
    origin = Path(os.path.abspath(folder))
    entry = _single(origin, origin.is_dir(), None) if origin.exists() else None
    return Listing((entry,), ()) if entry else Listing((), (IgnoredPath(folder, _STRAY),))


def is_submission(folder: Path) -> bool:
    """Whether a folder is one student's work rather than a class, by what is in it."""
    if (folder / ".git").exists():
        return True
    # Among the work of several students, a file or folder that is named for a day is one submission more.
    return (
        _is_work(folder) or any((folder / "exercises" / name).is_dir() for name in day_names())
    ) and not _several(folder)


def _several(folder: Path) -> bool:
    """Whether several of the folders and archives in it are each somebody's work."""
    aside = {"exercises", *day_names(), *entries.ASIDE}
    try:
        with os.scandir(folder) as listing:
            children = [each for each in listing if each.name.casefold() not in aside]
    except OSError:
        return False
    children = [each for each in children if not entries.is_junk(each.name)]
    packed = sum(each.is_file() and bool(suffix(each.name, entries.ARCHIVES)) for each in children)
    return (
        packed
        + sum(each.is_dir(follow_symlinks=False) and _is_work(Path(each.path)) for each in children)
        > 1
    )


def _is_work(folder: Path) -> bool:
    places = [
        folder,
        *(folder / name for name in day_names()),
        *(folder / "exercises" / name for name in day_names()),
    ]
    return any(map(_holds_work, places))


def _holds_work(folder: Path) -> bool:
    """Whether a file in it is named for an exercise or a day."""
    try:
        files = os.listdir(folder)
    except OSError:
        return False
    stems = {stem.casefold() for each in registered_days().values() for stem in each.modules} | set(
        day_names()
    )
    # a platform's prefix is on the files of many students: such a folder is a class
    own = [
        file
        for file in files
        if suffix(file, entries.SOURCES) and not entries.of_platform(file, folder=False)
    ]
    return any(entries.plain(file) in stems for file in own)


_Loose = dict[tuple[Path, Naming, str, str | None], list[tuple[Named, Path, bool]]]


def _keep(loose: _Loose, named: Named, path: Path, is_folder: bool) -> None:
    """Add a file or folder to those that a platform named for the same student in the same folder."""
    parts = loose.setdefault((path.parent, named.naming, named.student, named.identifier), [])
    if (named, path, is_folder) not in parts:  # a class, and one of its files
        parts.append((named, path, is_folder))


def _list_class(
    folder: Path, found: list[SubmissionEntry], ignored: list[IgnoredPath], loose: _Loose
) -> None:
    """Add everything in a folder to the submissions, to a student's loose files or to what is ignored."""
    try:
        with os.scandir(folder) as listing:
            children = sorted(listing, key=lambda child: natural(child.name))
    except OSError as error:
        ignored.append(IgnoredPath(folder, f"it cannot be read: {entries.reason(error)}"))
        return
    submitters = entries.submitters(folder / entries.METADATA)
    for child in children:
        path = folder / child.name
        if entries.is_junk(child.name) or (child.name == entries.METADATA and submitters):
            continue
        if child.is_symlink():
            ignored.append(
                IgnoredPath(path, "it is a link; to grade what it points to, give that path")
            )
            continue
        try:
            is_folder, is_file = (
                child.is_dir(follow_symlinks=False),
                child.is_file(follow_symlinks=False),
            )
        except OSError as error:
            ignored.append(IgnoredPath(path, f"it cannot be read: {entries.reason(error)}"))
            continue
        if not (is_folder or is_file):
            ignored.append(IgnoredPath(path, _NEITHER))
            continue
        named = entries.of_platform(child.name, is_folder)
        if named is not None and named.naming is not Naming.GRADESCOPE:
            _keep(loose, named, path, is_folder)
            continue
        handed_in = (
            submitters.get(child.name, entries.HandedIn())
            if named is not None
            else entries.HandedIn()
        )
        if named is not None and handed_in.people:
            named = named._replace(student=" & ".join(person.name for person in handed_in.people))
        if entry := _single(path, is_folder, named):
            submitted = handed_in.at or entry.submitted
            found.append(
                msgspec.structs.replace(entry, submitted=submitted, people=handed_in.people)
            )
        else:
            ignored.append(IgnoredPath(path, _STRAY))


def _single(path: Path, is_folder: bool, named: Named | None) -> SubmissionEntry | None:
    """A submission that is one file or folder; None for a file of another kind."""
    name = path.name or str(path)
    kind = Kind.CHECKOUT if is_folder and (path / ".git").exists() else _kind(name, is_folder)
    if kind is None:
        return None
    kinds = () if is_folder else (*entries.ARCHIVES, *entries.STRANGE_ARCHIVES, *entries.SOURCES)
    bare = name[: len(name) - len(suffix(name, kinds))]
    member = (name if kind in (Kind.PYTHON, Kind.NOTEBOOK) else "", path)
    if named is None and (is_folder or kind is Kind.ZIP):
        named = entries.of_repository(_legible(bare), path.parent.name)
    if named is None:
        named = Named(Naming.PLAIN, _legible(bare), None, "")
    submitted = commit_time(path) if kind is Kind.CHECKOUT else ""
    told = (named.student, path, kind, named.naming, named.identifier)
    return SubmissionEntry(_legible(bare), *told, submitted=submitted, members=(member,))


def _attempts(parts: list[tuple[Named, Path, bool]]) -> list[SubmissionEntry]:
    """One submission for each attempt of a student, the last with the student's name; most often there is one.

    A platform numbers files as they arrive. A file that was there before under the same name begins another attempt.
    """
    rounds: list[list[tuple[Named, Path, bool]]] = [[]]
    names: set[str] = set()
    for part in sorted(parts, key=lambda part: part[0].file):
        name = f"{entries.plain(part[0].rest)}{suffix(part[0].rest, (*entries.SOURCES, *entries.ARCHIVES))}"
        if part[0].rest and name in names:
            rounds.append([])
            names = set()
        names.add(name)
        rounds[-1].append(part)
    if len(rounds) == 1:
        return [_together(parts)]
    every = [_together(sorted(each, key=lambda part: natural(part[1].name))) for each in rounds]
    last = len(every)
    spelled = [
        f"{each.name} (attempt {n})" if n < last else each.name for n, each in enumerate(every, 1)
    ]
    return [
        msgspec.structs.replace(each, name=name, attempt=n)
        for n, (each, name) in enumerate(zip(every, spelled, strict=True), 1)
    ]


_SHA: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF: Final = re.compile(r"refs/heads/(?!.*\.\.)[\w./-]+")
_COMMITTER: Final = re.compile(rb"^committer .*> (\d{1,11}) ([+-]\d{4})$", re.M)


def commit_time(checkout: Path) -> str:
    """When its last commit was made, as ISO 8601; empty where that cannot be found out.

    The checkout is the student's, and git runs programs that a repository's settings name: it is given the objects
    alone, and settings of ours.
    """
    git = checkout / ".git"
    try:
        sha = _short(git / "HEAD").strip()
        if ref := _REF.fullmatch(sha.removeprefix("ref: ")):
            branch = git / ref[0]
            packed = "" if branch.is_file() else _short(git / "packed-refs")
            lines = (line.partition(" ") for line in packed.splitlines())
            sha = (
                next((sha for sha, _, name in lines if name == ref[0]), "")
                if packed
                else _short(branch).strip()
            )
        if not _SHA.fullmatch(sha):
            return ""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("objects", "refs"):
                (Path(folder) / name).mkdir()
            (Path(folder) / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
            nowhere = {
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
                "HOME": folder,
                "LC_ALL": "C",
            }
            objects = {"GIT_DIR": folder, "GIT_OBJECT_DIRECTORY": str((git / "objects").resolve())}
            found = subprocess.run(
                ["git", "cat-file", "commit", sha],
                env={"PATH": os.environ.get("PATH", os.defpath), **nowhere, **objects},
                capture_output=True,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                timeout=10,
            )
        committer = _COMMITTER.search(found.stdout.partition(b"\n\n")[0])
        if committer is None:
            return ""
        sign, hours, minutes = committer[2][:1], int(committer[2][1:3]), int(committer[2][3:5])
        offset = datetime.timedelta(hours=hours, minutes=minutes) * (-1 if sign == b"-" else 1)
        return datetime.datetime.fromtimestamp(
            int(committer[1]), datetime.timezone(offset)
        ).isoformat()
    except (OSError, ValueError, OverflowError, subprocess.SubprocessError):
        return ""


def _short(path: Path, most: int = 1 << 20) -> str:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError  # to open a pipe would wait for whoever writes to it
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(most)


def _together(parts: list[tuple[Named, Path, bool]]) -> SubmissionEntry:
    """One submission of all files and folders that a platform named for one student."""
    named, origin, is_folder = parts[0]
    alone = len(parts) == 1
    kind = _kind(origin.name, is_folder) if alone else Kind.FILES
    members = []
    for part, path, part_is_folder in parts:
        # A folder from Moodle is named for the student only; a single archive is the whole submission.
        bare = part_is_folder or (alone and kind not in (Kind.PYTHON, Kind.NOTEBOOK))
        members.append(("" if bare else part.rest or path.name, path))
    student = _legible(named.student)
    late = any(part.late for part, _, _ in parts)
    return SubmissionEntry(
        student,
        student,
        origin,
        kind or Kind.FILES,
        named.naming,
        named.identifier,
        late,
        members=tuple(members),
    )


def _kind(name: str, is_folder: bool) -> Kind | None:
    if is_folder:
        return Kind.FOLDER
    if ending := suffix(name, entries.SOURCES):
        return Kind.PYTHON if ending == ".py" else Kind.NOTEBOOK
    if ending := suffix(name, entries.ARCHIVES):
        return Kind.ZIP if ending in entries.ZIPS else Kind.TAR
    return Kind.OTHER if suffix(name, entries.STRANGE_ARCHIVES) else None


def _with_unique_names(listed: list[SubmissionEntry]) -> list[SubmissionEntry]:
    """The entries with unique names, also where case or the encoding of accents is ignored."""
    by_name: dict[str, list[SubmissionEntry]] = {}
    for entry in listed:
        by_name.setdefault(entries.folded(entry.name), []).append(entry)
    taken = {name for name, group in by_name.items() if len(group) == 1}
    apart: list[SubmissionEntry] = []
    for group in by_name.values():
        if len(group) == 1:
            apart.append(group[0])
            continue
        for candidates in _spellings(group):
            keys = {entries.folded(name) for name in candidates}
            if len(keys) == len(group) and not taken & keys:
                break
        taken |= {entries.folded(name) for name in candidates}
        apart += [
            msgspec.structs.replace(entry, name=name)
            for entry, name in zip(group, candidates, strict=True)
        ]
    return sorted(apart, key=lambda entry: (natural(entry.name), str(entry.origin)))


def _spellings(group: list[SubmissionEntry]) -> list[list[str]]:
    """Lists of names for entries with the same name, the most readable first; the last one is always unique."""
    ways = [[f"{entry.name}-{entry.identifier or ''}" for entry in group]]
    ways.append([_legible(entry.origin.name) for entry in group])
    for up in range(1, 4):
        ways.append(
            [
                f"{entry.name}-{_legible('-'.join(entry.origin.parts[-1 - up : -1]))}"
                for entry in group
            ]
        )
    marks = [hashlib.sha256(os.fsencode(entry.origin)).hexdigest() for entry in group]
    ways += [
        [f"{entry.name}-{mark[:size]}" for entry, mark in zip(group, marks, strict=True)]
        for size in (8, 64)
    ]
    return ways


def _legible(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 are written as %XX, control characters as _."""
    text = "".join(f"%{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else c for c in name)
    return "".join(c if c.isprintable() else "_" for c in text).strip() or "_"
