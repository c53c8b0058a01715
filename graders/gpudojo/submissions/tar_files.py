"""Lists the files in a tar, which may be gzipped.

Python's `tarfile` is not used: whoever packed it may mean harm, and limits are kept from the first
byte on.
"""

from __future__ import annotations

import re
import zlib
from functools import partial
from typing import Final, NamedTuple

from virtual_cuda.hooks import format_size

from gpudojo.submissions.contents import LINK, NOT_A_FILE, Contents
from gpudojo.submissions.entries import ReadLimits, Unreadable

GZIP_MARK: Final = b"\x1f\x8b"
MOST_PIECES: Final = 10_000  # of a gzip: each one costs as much as thousands of bytes
_GZIP_WITH_HEADER: Final = 31  # what zlib calls it, in `wbits`
_BLOCK: Final = 512  # bytes; headers and contents are in whole blocks
_CHUNK: Final = 16 << 10
_PADDING: Final = re.compile(rb"\0*")
# Kinds of entries.
_REGULAR: Final = (b"0", b"\0", b"7")
_FOLDER: Final = b"5"
_LONG_NAME: Final = b"L"  # of the next entry
_PAX_HEADERS: Final = (b"x", b"X")  # which may name the next entry, too
_NOTHING_THAT_MATTERS: Final = (b"g", b"K", b"V")
_PROBLEMS: Final = {
    b"1": LINK,
    b"2": LINK,
    b"3": NOT_A_FILE,
    b"4": NOT_A_FILE,
    b"6": NOT_A_FILE,
}


class UnpackedGzip(NamedTuple):
    """The content of a gzip, and a remark where that is not all of it."""

    data: bytes
    remark: str


def is_tar(data: bytes) -> bool:
    """True if bytes begin with the header of a tar."""
    return len(data) >= _BLOCK and _checksum_fits(data[:_BLOCK])


def unpack_gzip(data: bytes, limits: ReadLimits) -> UnpackedGzip:
    """The content of a gzip up to the limit, with a remark where that is not all of it."""
    unpacked = bytearray()
    most = limits.total_bytes
    at = 0
    pieces = 0
    while at < len(data):
        stream = zlib.decompressobj(wbits=_GZIP_WITH_HEADER)
        pieces += 1
        if pieces > MOST_PIECES:
            return UnpackedGzip(bytes(unpacked), "is packed in too many pieces")
        while not stream.eof:
            if at >= len(data):
                return UnpackedGzip(bytes(unpacked), "is cut off")
            # What is left of a chunk is copied at the end of each piece: so it is small.
            chunk = data[at : at + _CHUNK]
            try:
                unpacked += stream.decompress(chunk, most + 1 - len(unpacked))
            except zlib.error:
                return UnpackedGzip(bytes(unpacked), "is damaged")
            if len(unpacked) > most:
                remark = f"unpacks to more than {format_size(most)}"
                return UnpackedGzip(bytes(unpacked), remark)
            at += len(chunk) - len(stream.unused_data)
        padding = _PADDING.match(data, at)
        assert padding is not None  # it may be empty
        at = padding.end()
    return UnpackedGzip(bytes(unpacked), "")


def list_tar(data: bytes, limits: ReadLimits) -> Contents:
    """The files in a tar, which may be gzipped; raises Unreadable if it is no tar."""
    contents = Contents()
    if data.startswith(GZIP_MARK):
        data = _unpack_tar(data, limits, contents)
    elif not is_tar(data):
        raise Unreadable("is not a tar file")
    _TarReader(data, limits, contents).list_entries()
    return contents


def _unpack_tar(packed: bytes, limits: ReadLimits, contents: Contents) -> bytes:
    """The tar in a gzip, as far as the limits allow, which `contents` notes.

    Raises Unreadable for a bomb, and where there is no tar in it.
    """
    data, remark = unpack_gzip(packed, limits)
    contents.unpacked = len(data)
    if limits.is_bomb(len(data), len(packed)):
        raise Unreadable(f"unpacks to more than {limits.ratio} times its size, as only a bomb does")
    if remark:
        contents.add_note("The archive", f"{remark}; what comes before that was read")
    if is_tar(data):
        return data
    if remark:
        raise Unreadable(f"{remark}, and nothing in it could be read")
    raise Unreadable("is packed, but not a tar")


class _TarReader:
    """Lists the entries of a tar: each is a header of one block, then the content in blocks."""

    def __init__(self, data: bytes, limits: ReadLimits, contents: Contents) -> None:
        self.data = data
        self.limits = limits
        self.contents = contents
        self._at = 0  # where the next header begins
        self._long_name: bytes | None = None  # of the next entry, if the last one told it

    def list_entries(self) -> None:
        """Add all entries, until the end, damage or the limit."""
        count = 0
        while self._at + _BLOCK <= len(self.data):
            header = self.data[self._at : self._at + _BLOCK]
            if not header.strip(b"\0"):
                return
            count += 1
            if count > self.limits.entries:
                problem = f"holds more than {self.limits.entries} entries; the rest was ignored"
                self.contents.add_note("The archive", problem)
                return
            size = _parse_number(header[124:136])
            if not _checksum_fits(header) or size is None:
                problem = "is damaged in the middle; what comes after that was ignored"
                self.contents.add_note("The archive", problem)
                return
            self._read_entry(header, size)

    def _read_entry(self, header: bytes, size: int) -> None:
        """Take an entry: a file, or the name of the next one. Goes on to the next header."""
        kind = header[156:157]
        start = self._at + _BLOCK
        blocks = -(-size // _BLOCK)
        self._at = start + blocks * _BLOCK
        body = self.data[start : start + size]
        if kind == _LONG_NAME:
            self._long_name = body.rstrip(b"\0")
        elif kind in _PAX_HEADERS:
            self._long_name = _pax_path(body) or self._long_name
        elif kind not in _NOTHING_THAT_MATTERS:
            name = self._long_name or _ustar_name(header)
            self._long_name = None
            self._add_file(name.decode("utf-8", "surrogateescape"), kind, start, size)

    def _add_file(self, name: str, kind: bytes, start: int, size: int) -> None:
        """Add a file, or a note on something that cannot be used; folders are left out."""
        is_regular = kind in _REGULAR
        if kind == _FOLDER or (is_regular and name.endswith("/")):
            return
        problem = ""
        if not is_regular:
            problem = _PROBLEMS.get(kind, "is stored in a way that is not supported")
        elif start + size > len(self.data):
            problem = "is cut off"
        fetch = partial(_fetch_file, self.data, start, size)
        self.contents.add_archived_file(name, self.limits, problem, size, fetch)


def _fetch_file(data: bytes, start: int, size: int, most: int) -> bytes:
    """The bytes of a file in a tar, at most `most` and one more."""
    return data[start : start + min(size, most + 1)]


def _parse_number(field: bytes) -> int | None:
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
    """True if the sum of a header's bytes is the one in it, which itself counts as eight spaces."""
    field = header[148:156]
    expected = _parse_number(field)
    spaces = len(field) * ord(" ")
    return expected == sum(header) - sum(field) + spaces


def _ustar_name(header: bytes) -> bytes:
    """The name in a header, with the folder that newer tars keep apart."""
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] != b"ustar\0":
        return name
    prefix = header[345:500].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix else name


def _pax_path(body: bytes) -> bytes | None:
    """The `path` of an extended header, whose records are `LENGTH KEY=VALUE` and a newline.

    Returns None where it has none.
    """
    path = None
    at = 0
    while at < len(body):
        digits, _, _ = body[at : at + 20].partition(b" ")
        if not digits.isdigit():
            break
        length = int(digits)
        if not len(digits) < length <= len(body) - at:
            break
        record = body[at + len(digits) + 1 : at + length - 1]
        key, _, value = record.partition(b"=")
        if key == b"path":
            path = value
        at += length
    return path
