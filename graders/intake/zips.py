"""Which files lie in a zip? Its directory is believed in nothing that could cost memory, time or a place on disk."""

from __future__ import annotations

import io
import stat
import zipfile
from functools import partial

from graders.intake.contents import Contents, Found
from graders.intake.records import Limits, Unreadable

_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the ones zipfile unpacks piece by piece


def listing(data: bytes, limits: Limits) -> Contents:
    """Everything of interest in a zip, nothing unpacked yet; Unreadable where it is none."""
    # Each entry costs the reader a hundred times its own bytes, so they are counted before it is asked.
    if data.count(b"PK\x01\x02") > limits.entries:
        raise Unreadable(f"holds more than {limits.entries} entries")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except UnicodeDecodeError:
        raise Unreadable("has a name in it that says it is UTF-8 and is not") from None
    except Exception:  # a damaged directory makes zipfile raise much more than BadZipFile
        if data[:4] == b"PK\x03\x04":
            raise Unreadable("is cut off or damaged: a zip's directory is missing at its end; pack it again") from None
        raise Unreadable("is not a zip file") from None
    contents = Contents()
    latest: dict[str, Found] = {}
    overlapping = _overlapping(archive)
    for info in archive.infolist():
        if info.is_dir():
            continue
        name = info.orig_filename
        mode = stat.S_IFMT(info.external_attr >> 16)
        try:
            path = contents.place(name, limits)
            if path is None:
                continue
            if mode == stat.S_IFLNK:
                raise Unreadable("is a link, which is not followed")
            if mode not in (0, stat.S_IFREG):
                raise Unreadable("is neither a file nor a folder but a pipe, socket or device")
            if info.header_offset in overlapping:
                raise Unreadable("shares its bytes with another file of the archive, as only a zip bomb does")
        except Unreadable as error:
            contents.refuse(name, error)
            continue
        if path in latest:
            contents.refuse(path, "is in the archive more than once; the last one counts, as when it is unpacked")
        latest[path] = Found(path, info.file_size, partial(_fetch, archive, info, limits))
    contents.files = list(latest.values())
    return contents


def _overlapping(archive: zipfile.ZipFile) -> set[int]:
    """The offsets of entries that reach into the one behind them, and of those reached into."""
    found: set[int] = set()
    ordered = sorted(archive.infolist(), key=lambda info: info.header_offset)
    reach, owner = 0, -1
    for info in ordered:
        if info.header_offset < reach:
            found |= {owner, info.header_offset}
        # A local header is 30 bytes and the name at least; more than that only the header itself could tell.
        end = info.header_offset + 30 + info.compress_size
        if end > reach:
            reach, owner = end, info.header_offset
    return found


def _fetch(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: Limits, most: int) -> bytes:
    if info.flag_bits & _ENCRYPTED:
        raise Unreadable("is encrypted; pack it again without a password")
    if info.compress_type not in _METHODS:
        raise Unreadable("is packed by an unusual method; pack it again as an ordinary zip")
    if info.file_size > limits.ratio_from and info.file_size > limits.ratio * max(info.compress_size, 1):
        raise Unreadable(f"unpacks to more than {limits.ratio} times its size, as only a zip bomb does")
    try:
        with archive.open(info) as stream:
            return stream.read(most + 1)
    except Exception:  # BadZipFile, zlib.error, EOFError, struct.error, OverflowError, … by where the damage is
        raise Unreadable("is damaged in the archive") from None
