"""Lists the files in a zip.

Whoever packed it may mean harm: bombs and links are refused, and nothing is unpacked to the disk.
"""

from __future__ import annotations

import io
import stat
import zipfile
from functools import partial
from typing import Final

from gpudojo.submissions.contents import LINK, NOT_A_FILE, Contents
from gpudojo.submissions.entries import ReadLimits, Unreadable

_ENCRYPTED: Final = 0x1
_UTF_8: Final = 0x800
# The methods of packing that zipfile unpacks piece by piece.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADER_BYTES: Final = 30  # of a local header, at least; only the header itself tells more
_BEGIN_OF_ENTRY: Final = b"PK\x01\x02"  # in the directory at the end
_BEGIN_OF_FILE: Final = b"PK\x03\x04"


def list_zip(data: bytes, limits: ReadLimits) -> Contents:
    """The files in a zip, nothing unpacked yet, with notes on those that cannot be used.

    Raises Unreadable if it is no zip, or has too many entries.
    """
    archive = _open_zip(data, limits)
    contents = Contents()
    overlapping = _overlapping_entries(archive)
    for info in archive.infolist():
        if info.orig_filename.endswith("/"):  # `is_dir` fails for an entry without a name
            continue
        problem = _problem_of_kind(info)
        if not problem and info.header_offset in overlapping:
            problem = "shares its bytes with another file of the archive, as only a zip bomb does"
        fetch = partial(_fetch_file, archive, info, limits)
        contents.add_archived_file(_name_of(info), limits, problem, info.file_size, fetch)
    return contents


def _open_zip(data: bytes, limits: ReadLimits) -> zipfile.ZipFile:
    """The archive in these bytes; raises Unreadable if it is none, or has too many entries."""
    # Each entry costs zipfile a hundred times its own bytes, so they are counted first.
    if data.count(_BEGIN_OF_ENTRY) > limits.entries:
        raise Unreadable(f"holds more than {limits.entries} entries")
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except UnicodeDecodeError:
        raise Unreadable("has a name in it that says it is UTF-8 and is not") from None
    except Exception:  # zipfile raises much more than BadZipFile for a damaged directory
        if data.startswith(_BEGIN_OF_FILE):
            raise Unreadable(
                "is cut off or damaged: a zip's directory is missing at its end; pack it again"
            ) from None
        raise Unreadable("is not a zip file") from None


def _problem_of_kind(info: zipfile.ZipInfo) -> str:
    """Why an entry is no regular file, by what the directory says of it; empty if it is one."""
    mode = stat.S_IFMT(info.external_attr >> 16)
    if mode in (0, stat.S_IFREG):
        return ""
    if mode == stat.S_IFLNK:
        return LINK
    return NOT_A_FILE


def _name_of(info: zipfile.ZipInfo) -> str:
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


def _overlapping_entries(archive: zipfile.ZipFile) -> set[int]:
    """The offsets of entries whose bytes overlap those of another one, in a zip."""
    offsets: set[int] = set()
    reach = 0  # the end of what has been passed, and the entry that ends there
    owner = -1
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        offset = info.header_offset
        if offset < reach:
            offsets |= {owner, offset}
        end = offset + _HEADER_BYTES + info.compress_size
        if end > reach:
            reach = end
            owner = offset
    return offsets


def _fetch_file(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: ReadLimits, most: int
) -> bytes:
    """The bytes of a file in a zip, at most `most` and one more.

    Raises Unreadable if it is encrypted, damaged, packed in an unusual way, or a bomb.
    """
    if info.flag_bits & _ENCRYPTED:
        raise Unreadable("is encrypted; pack it again without a password")
    if info.compress_type not in _METHODS:
        raise Unreadable("is packed by an unusual method; pack it again as an ordinary zip")
    packed = max(info.compress_size, 1)
    if limits.is_bomb(info.file_size, packed):
        raise Unreadable(
            f"unpacks to more than {limits.ratio} times its size, as only a zip bomb does"
        )
    try:
        with archive.open(info) as stream:
            return stream.read(most + 1)
    except Exception:  # BadZipFile, zlib.error, EOFError, struct.error, …
        raise Unreadable("is damaged in the archive") from None
