"""Lists and reads files in folders, zips and tars.

Whoever packed them may mean harm: nothing is read outside of them, and limits are kept.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from virtual_cuda.hooks import format_size

from gpudojo.submissions.entries import ReadLimits, Unreadable
from gpudojo.submissions.names import (
    ARCHIVES,
    SOURCES,
    ending_of,
    is_junk,
    name_in_text,
    natural_key,
    reason_of,
)

NOT_A_FILE: Final = "is neither a file nor a folder but a pipe, socket or device"
_LINK: Final = "is a link, which is not followed"
_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Names that Windows reserves for devices, with any ending; and characters it does not allow.
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)
_FORBIDDEN: Final = re.compile(r'[<>:"|?*\\]')
LONGEST_NAME: Final = (
    4  # times the longest path: so much may be left out of a name (`./`, accents that are joined)
)
PIECES: Final = 10_000  # of a gzip: each one costs as much as thousands of bytes


class ListedFile(msgspec.Struct, frozen=True):
    """A regular file in a folder or archive, not read yet."""

    path: str
    size: int
    fetch: Callable[[int], bytes]  # takes the most bytes to read; raises Unreadable


@dataclass(slots=True)
class Contents:
    """The files of one folder or archive, and notes on those that cannot be used."""

    files: dict[str, ListedFile] = field(default_factory=dict)  # by path, or by name on disk
    notes: list[str] = field(default_factory=list)
    unpacked: int = 0  # bytes that a gzip held

    def place(self, name: str, limits: ReadLimits, on_disk: bool = False) -> str | None:
        """The relative path under which a file is read; None for junk, which tools make.

        Adds a note where that is not its own name. Raises Unreadable for a path that leads out.
        """
        path, other = _place_on_disk(name, limits) if on_disk else _place(name, name, limits)
        if other:
            self.refuse(
                name,
                f"is read as {name_in_text(path or '')}, because not every system can store its name",
            )
        return path

    def add(
        self, name: str, limits: ReadLimits, problem: str, size: int, fetch: Callable[[int], bytes]
    ) -> None:
        """Add a file of an archive, or a note on what is wrong with it."""
        try:
            path = self.place(name, limits)
            if path is not None and problem:
                raise Unreadable(problem)
        except Unreadable as error:
            return self.refuse(name, error)
        if path in self.files:
            self.refuse(
                path,
                "is in the archive more than once; the last one counts, as when it is unpacked",
            )
        if path is not None:
            self.files[path] = ListedFile(path, size, fetch)

    def refuse(self, name: str, reason: object) -> None:
        self.notes.append(f"{name_in_text(name)} {reason}.")


@functools.lru_cache(1024)
def _place_on_disk(name: str, limits: ReadLimits) -> tuple[str | None, bool]:
    # In an archive a backslash separates and a colon follows a drive; on disk both are part of a
    # name.
    return _place(re.sub(r"[\\:]", "_", name), name, limits)


def _place(name: str, shown_as: str, limits: ReadLimits) -> tuple[str | None, bool]:
    """The path for a name, and True if a note must say that it differs from `shown_as`.

    No note is needed for what is never read. Raises Unreadable for a path that leads out.
    """
    path = storable_path(name, limits)
    other = path is not None and path != "/".join(_parts(shown_as))
    return path, other and bool(ending_of(path or "", (*SOURCES, *ARCHIVES)))


def storable_path(name: str, limits: ReadLimits) -> str | None:
    """A relative path that every system can store; None for junk, which tools make.

    Raises Unreadable for a path that leads out, or is too long or too deep.
    """
    too_long = Unreadable(f"has a path of more than {limits.path_length} bytes")
    if len(name) > LONGEST_NAME * limits.path_length:  # before anything is done with it
        raise too_long
    if "\0" in name:
        raise Unreadable("has a null byte in its name")
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        raise Unreadable("has an absolute path, which leads out of the submission")
    parts = _parts(name)
    if ".." in parts:
        raise Unreadable("has a path with `..`, which leads out of the submission")
    if any(is_junk(part) for part in parts):
        return None
    if len(parts) - 1 > limits.depth:
        raise Unreadable(f"lies more than {limits.depth} folders deep")
    path = "/".join(map(_storable, parts))
    if len(path.encode()) > limits.path_length:
        raise too_long
    return path or None


def _parts(name: str) -> list[str]:
    # Some Windows programs pack with backslashes.
    whole = unicodedata.normalize("NFC", name).replace("\\", "/")
    return [part for part in whole.split("/") if part not in ("", ".")]


@functools.lru_cache(1024)  # a class has the same names again and again
def _storable(part: str) -> str:
    """A name that every system can store.

    It has no control characters, no invalid UTF-8, and is no name of a device.
    """
    part = _FORBIDDEN.sub("_", "".join(c if c.isprintable() else "_" for c in part))
    bare = part.rstrip(" .")
    part = f"{bare}_" if bare != part else part
    part = f"_{part.lstrip()}" if part[:1].isspace() else part
    return f"_{part}" if _DEVICES.fullmatch(part) else part


SMALLEST: Final = 4096  # bytes that are read at a time: some file systems know of no size
# O_NONBLOCK: a FIFO would wait for a writer. O_NOFOLLOW: a file may have been replaced by a link
# since it was listed.
_FLAGS: Final = sum(
    getattr(os, name, 0)
    for name in ("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")
)


def folder_listing(root: Path, limits: ReadLimits) -> Contents:
    """The files below a folder, with notes on what cannot be used; no file is opened yet."""
    contents = Contents()
    waiting: deque[tuple[Path, str, int]] = deque([(root, "", 0)])
    looked_at = 0
    while waiting:
        folder, inside, depth = waiting.popleft()
        # The names in one folder, in an order that is the same everywhere.
        try:
            with os.scandir(folder) as listing:
                some = itertools.islice(listing, limits.entries + 1)
                children = sorted(some, key=lambda child: natural_key(child.name))
        except OSError as error:
            contents.refuse(inside or "The folder", f"cannot be read: {reason_of(error)}")
            continue
        if any(child.name == "pyvenv.cfg" for child in children):
            continue  # a virtual environment
        # Take files, keep folders for later, and note what cannot be used.
        for child in children:
            looked_at += 1
            if looked_at > limits.entries:
                contents.notes.append(
                    f"There are more than {limits.entries} files; the rest was ignored."
                )
                return contents
            if is_junk(child.name):
                continue
            name = f"{inside}/{child.name}" if inside else child.name
            try:
                if child.is_symlink() or _is_junction(child):
                    contents.refuse(name, _link(root, folder / child.name))
                elif child.is_dir(follow_symlinks=False):
                    if depth >= limits.depth:
                        contents.refuse(name, f"lies more than {limits.depth} folders deep")
                    else:
                        waiting.append((folder / child.name, name, depth + 1))
                elif child.is_file(follow_symlinks=False):
                    if path := contents.place(name, limits, on_disk=True):
                        size = child.stat(follow_symlinks=False).st_size
                        contents.files[name] = ListedFile(
                            path, size, partial(read_file, folder / child.name)
                        )
                else:
                    contents.refuse(name, NOT_A_FILE)
            except Unreadable as error:
                contents.refuse(name, error)
            except OSError as error:
                contents.refuse(name, f"cannot be read: {reason_of(error)}")
    return contents


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file, at most `most` and one more.

    The one more shows that the file is larger. Raises Unreadable.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {reason_of(error)}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("is not a regular file")
        # As much as there is, and no more memory: to ask for `most` would set that aside for every
        # file.
        parts = []
        left = most + 1
        while left and (part := os.read(descriptor, min(left, max(found.st_size, SMALLEST)))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError as error:
        raise Unreadable(f"cannot be read: {reason_of(error)}") from None
    finally:
        os.close(descriptor)


def _link(root: Path, path: Path) -> str:
    target = os.path.realpath(path)
    inside = os.path.realpath(root)
    if target == inside or target.startswith(inside + os.sep):
        return f"{_LINK}; what it points to is read at its own path"
    return "is a link that leads out of the submission"


def _is_junction(child: os.DirEntry[str]) -> bool:
    """True for Windows' other kind of link, which Python knows since 3.12."""
    ask = getattr(child, "is_junction", None)
    return bool(ask and ask())


_ENCRYPTED = 0x1
_UTF_8 = 0x800
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the ones zipfile unpacks piece by piece


def zip_listing(data: bytes, limits: ReadLimits) -> Contents:
    """The files in a zip, nothing unpacked yet; raises Unreadable if it is no zip."""
    # Each entry costs zipfile a hundred times its own bytes, so they are counted first.
    if data.count(b"PK\x01\x02") > limits.entries:
        raise Unreadable(f"holds more than {limits.entries} entries")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except UnicodeDecodeError:
        raise Unreadable("has a name in it that says it is UTF-8 and is not") from None
    except Exception:  # zipfile raises much more than BadZipFile for a damaged directory
        if data[:4] == b"PK\x03\x04":
            raise Unreadable(
                "is cut off or damaged: a zip's directory is missing at its end; pack it again"
            ) from None
        raise Unreadable("is not a zip file") from None
    # Links, devices and bombs are refused by what the directory says of them.
    contents = Contents()
    overlapping = _overlapping(archive)
    for info in archive.infolist():
        mode = stat.S_IFMT(info.external_attr >> 16)
        problem = ""
        if mode not in (0, stat.S_IFREG):
            problem = _LINK if mode == stat.S_IFLNK else NOT_A_FILE
        elif info.header_offset in overlapping:
            problem = "shares its bytes with another file of the archive, as only a zip bomb does"
        if not info.orig_filename.endswith("/"):  # `is_dir` fails for an entry without a name
            fetching = partial(_fetch_from_zip, archive, info, limits)
            contents.add(_name_in_zip(info), limits, problem, info.file_size, fetching)
    return contents


def _name_in_zip(info: zipfile.ZipInfo) -> str:
    """The name of an entry.

    macOS and Linux may write UTF-8 and not say so; zipfile reads that as code page 437.
    """
    name = info.orig_filename
    if info.flag_bits & _UTF_8 or name.isascii():
        return name
    try:
        return name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return name


def _overlapping(archive: zipfile.ZipFile) -> set[int]:
    """The offsets of entries that overlap another one."""
    found: set[int] = set()
    ordered = sorted(archive.infolist(), key=lambda info: info.header_offset)
    reach = 0
    owner = -1
    for info in ordered:
        if info.header_offset < reach:
            found |= {owner, info.header_offset}
        # A local header has at least 30 bytes; only the header itself tells more.
        end = info.header_offset + 30 + info.compress_size
        if end > reach:
            reach = end
            owner = info.header_offset
    return found


def _fetch_from_zip(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: ReadLimits, most: int
) -> bytes:
    """The bytes of a file in a zip, at most `most` and one more.

    Raises Unreadable if it is encrypted, damaged, packed in an unusual way, or a bomb.
    """
    if info.flag_bits & _ENCRYPTED:
        raise Unreadable("is encrypted; pack it again without a password")
    if info.compress_type not in _METHODS:
        raise Unreadable("is packed by an unusual method; pack it again as an ordinary zip")
    if info.file_size > limits.ratio_from and info.file_size > limits.ratio * max(
        info.compress_size, 1
    ):
        raise Unreadable(
            f"unpacks to more than {limits.ratio} times its size, as only a zip bomb does"
        )
    try:
        with archive.open(info) as stream:
            return stream.read(most + 1)
    except Exception:  # BadZipFile, zlib.error, EOFError, struct.error, …
        raise Unreadable("is damaged in the archive") from None


_BLOCK: Final = 512
_CHUNK: Final = 16 << 10
_PADDING: Final = re.compile(rb"\0*")
_REGULAR: Final = (b"0", b"\0", b"7")
_KINDS: Final = {
    **dict.fromkeys((b"1", b"2"), _LINK),
    **dict.fromkeys((b"3", b"4", b"6"), NOT_A_FILE),
}


def is_tar(data: bytes) -> bool:
    return len(data) >= _BLOCK and _checksum_fits(data[:_BLOCK])


def unpack_gzip(data: bytes, limits: ReadLimits) -> tuple[bytes, str]:
    """The content of a gzip up to the limit, and a remark where that is not all of it."""
    found = bytearray()
    at = 0
    count = 0
    while at < len(data):
        stream = zlib.decompressobj(wbits=31)
        count += 1
        if count > PIECES:
            return bytes(found), "is packed in too many pieces"
        while not stream.eof:
            if at >= len(data):
                return bytes(found), "is cut off"
            some = data[at : at + _CHUNK]  # what is left of it is copied at the end of each piece
            try:
                found += stream.decompress(some, limits.total_bytes + 1 - len(found))
            except zlib.error:
                return bytes(found), "is damaged"
            if len(found) > limits.total_bytes:
                return bytes(found), f"unpacks to more than {format_size(limits.total_bytes)}"
            at += len(some) - len(stream.unused_data)
        at = _PADDING.match(data, at).end()  # type: ignore[union-attr]
    return bytes(found), ""


def tar_listing(data: bytes, limits: ReadLimits) -> Contents:
    """The files in a tar, which may be gzipped; raises Unreadable if it is no tar."""
    contents = Contents()
    # Unpack a gzip first, as far as the limits allow.
    if data[:2] == b"\x1f\x8b":
        packed = len(data)
        data, remark = unpack_gzip(data, limits)
        contents.unpacked = len(data)
        if len(data) > limits.ratio_from and len(data) > limits.ratio * packed:
            raise Unreadable(
                f"unpacks to more than {limits.ratio} times its size, as only a bomb does"
            )
        if remark:
            contents.refuse("The archive", f"{remark}; what comes before that was read")
        if not is_tar(data):
            raise Unreadable(
                f"{remark}, and nothing in it could be read"
                if remark
                else "is packed, but not a tar"
            )
    elif not is_tar(data):
        raise Unreadable("is not a tar file")
    # Entry after entry: a header of one block, then the content in whole blocks.
    at = 0
    seen = 0
    long_name = None
    while at + _BLOCK <= len(data):
        header = data[at : at + _BLOCK]
        if not header.strip(b"\0"):
            break
        seen += 1
        size = _number(header[124:136])
        if seen > limits.entries:
            contents.refuse(
                "The archive", f"holds more than {limits.entries} entries; the rest was ignored"
            )
            break
        if not _checksum_fits(header) or size is None:
            contents.refuse(
                "The archive", "is damaged in the middle; what comes after that was ignored"
            )
            break
        start = at + _BLOCK
        kind = header[156:157]
        at = start + -(-size // _BLOCK) * _BLOCK
        body = data[start : start + size]
        # Entries that only tell the name of the next one, or nothing that matters here.
        if kind == b"L":
            long_name = body.rstrip(b"\0")
            continue
        if kind in (b"x", b"X"):
            long_name = _pax_path(body) or long_name
            continue
        if kind in (b"g", b"K", b"V"):
            continue
        # A file, a folder, or something that cannot be used.
        raw = long_name or _ustar_name(header)
        long_name = None
        name = raw.decode("utf-8", "surrogateescape")
        if kind == b"5" or (kind in _REGULAR and name.endswith("/")):
            continue
        problem = "is cut off" if len(body) < size else ""
        if kind not in _REGULAR:
            problem = _KINDS.get(kind, "is stored in a way that is not supported")
        contents.add(name, limits, problem, size, partial(_fetch_from_tar, data, start, size))
    return contents


def _fetch_from_tar(data: bytes, start: int, size: int, most: int) -> bytes:
    return data[start : start + min(size, most + 1)]


def _number(field: bytes) -> int | None:
    """The number in a field of a header; None where it is invalid.

    It is in octal digits, or for large numbers in big-endian bytes after a mark.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        value = int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        return None
    return value if value >= 0 else None


def _checksum_fits(header: bytes) -> bool:
    said = _number(header[148:156])
    return said is not None and said == sum(header) - sum(header[148:156]) + 8 * 32


def _ustar_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_path(body: bytes) -> bytes | None:
    """The `path` of an extended header, whose records are `LENGTH KEY=VALUE` and a newline."""
    found = None
    at = 0
    while at < len(body):
        digits, _, _ = body[at : at + 20].partition(b" ")
        if not digits.isdigit() or not len(digits) < int(digits) <= len(body) - at:
            break
        key, _, value = body[at + len(digits) + 1 : at + int(digits) - 1].partition(b"=")
        if key == b"path":
            found = value
        at += int(digits)
    return found
