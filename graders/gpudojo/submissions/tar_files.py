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
    if len(data) < _BLOCK:
        return False
    return _checksum_fits(data[:_BLOCK])


def unpack_gzip(data: bytes, limits: ReadLimits) -> UnpackedGzip:
    """The content of a gzip up to the limit, with a remark where that is not all of it.

    Raises nothing: damage is a remark.
    """
    unpacker = _GzipUnpacker(data, limits.total_bytes)
    remark = unpacker.unpack_all()
    return UnpackedGzip(bytes(unpacker.unpacked), remark)


class _GzipUnpacker:
    """Unpacks a gzip, which may have several pieces, up to a number of bytes."""

    def __init__(self, data: bytes, most: int) -> None:
        self.data = data
        self.most = most
        self.unpacked = bytearray()
        self._at = 0  # where the next chunk begins

    def unpack_all(self) -> str:
        """Unpack all pieces. Returns a remark where something stopped it; else empty.

        Zeros between and after the pieces are passed over.
        """
        pieces = 0
        while self._at < len(self.data):
            pieces += 1
            if pieces > MOST_PIECES:
                return "is packed in too many pieces"
            remark = self._unpack_piece()
            if remark:
                return remark
            padding = _PADDING.match(self.data, self._at)
            assert padding is not None  # it may be empty
            self._at = padding.end()
        return ""

    def _unpack_piece(self) -> str:
        """Add one piece to `unpacked`. Returns a remark where something stopped it; else ""."""
        stream = zlib.decompressobj(wbits=_GZIP_WITH_HEADER)
        while not stream.eof:
            if self._at >= len(self.data):
                return "is cut off"
            # What is left of a chunk is copied at the end of each piece: so it is small.
            chunk = self.data[self._at : self._at + _CHUNK]
            room = self.most + 1 - len(self.unpacked)
            try:
                self.unpacked += stream.decompress(chunk, room)
            except zlib.error:
                return "is damaged"
            if len(self.unpacked) > self.most:
                return f"unpacks to more than {format_size(self.most)}"
            self._at += len(chunk)
            self._at -= len(stream.unused_data)
        return ""


def list_tar(data: bytes, limits: ReadLimits) -> Contents:
    """The files in a tar, which may be gzipped, with notes on those that cannot be used.

    Raises Unreadable if it is no tar, and for a bomb.
    """
    contents = Contents()
    if data.startswith(GZIP_MARK):
        data = _unpack_tar(data, limits, contents)
    elif not is_tar(data):
        raise Unreadable("is not a tar file")
    _TarReader(data, limits, contents).list_entries()
    return contents


def _unpack_tar(packed: bytes, limits: ReadLimits, contents: Contents) -> bytes:
    """The tar in a gzip, as far as the limits allow; what is left out is noted in `contents`.

    How many bytes it unpacks to is put there, too. Raises Unreadable for a bomb, and where there is
    no tar in it.
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
        """List nothing yet; entries and notes go into `contents`."""
        self.data = data
        self.limits = limits
        self.contents = contents
        self._at = 0  # where the next header begins
        self._long_name: bytes | None = None  # of the next entry, if the last one told it

    def list_entries(self) -> None:
        """Add all entries, until the end, damage or the limit.

        Damage and the limit are noted.
        """
        most = self.limits.entries
        count = 0
        while True:
            header = self.data[self._at : self._at + _BLOCK]
            is_whole = len(header) == _BLOCK
            if not is_whole or not header.strip(b"\0"):
                return
            count += 1
            if count > most:
                self._add_note(f"holds more than {most} entries; the rest was ignored")
                return
            size = _parse_number(header[124:136])
            if size is None or not _checksum_fits(header):
                self._add_note("is damaged in the middle; what comes after that was ignored")
                return
            self._read_entry(header, size)

    def _add_note(self, problem: str) -> None:
        """Note something about the archive as a whole."""
        self.contents.add_note("The archive", problem)

    def _read_entry(self, header: bytes, size: int) -> None:
        """Take an entry: a file, or the name of the next one. Goes on to the next header.

        `size` is the number of bytes of its content, which follows the header.
        """
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
            raw_name = self._long_name or _ustar_name(header)
            self._long_name = None
            name = raw_name.decode("utf-8", "surrogateescape")
            self._add_file(name, kind, start, size)

    def _add_file(self, name: str, kind: bytes, start: int, size: int) -> None:
        """Add a file, or a note on something that cannot be used; folders are left out.

        Its content has `size` bytes from `start` on. `kind` is the byte that tells what it is.
        """
        problem = ""
        if kind == _FOLDER:
            return
        if kind not in _REGULAR:
            problem = _PROBLEMS.get(kind, "is stored in a way that is not supported")
        elif name.endswith("/"):
            return  # a folder, as old tars mark it
        elif start + size > len(self.data):
            problem = "is cut off"
        fetch = partial(_fetch_file, self.data, start, size)
        self.contents.add_archived_file(name, self.limits, problem, size, fetch)


def _fetch_file(data: bytes, start: int, size: int, most: int) -> bytes:
    """The bytes of a file in a tar, at most `most` and one more."""
    end = start + min(size, most + 1)
    return data[start:end]


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
    if value >= 0:
        return value
    return None


def _checksum_fits(header: bytes) -> bool:
    """True if the sum of a header's bytes is the one in it, which itself counts as eight spaces."""
    before = header[:148]
    field = header[148:156]
    after = header[156:]
    counted = before + b" " * len(field) + after
    return _parse_number(field) == sum(counted)


def _ustar_name(header: bytes) -> bytes:
    """The name in a header, with the folder that newer tars keep apart."""
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] != b"ustar\0":
        return name
    prefix = header[345:500].split(b"\0", 1)[0]
    if prefix:
        return prefix + b"/" + name
    return name


def _pax_path(body: bytes) -> bytes | None:
    """The `path` of an extended header, whose records are `LENGTH KEY=VALUE` and a newline.

    Returns None where it has none.
    """
    path = None
    at = 0  # where the next record begins; the body may be long, and is not copied
    while at < len(body):
        digits, _, _ = body[at : at + 20].partition(b" ")
        if not digits.isdigit():
            break
        first = at + len(digits) + 1
        end = at + int(digits)
        if not first <= end <= len(body):
            break
        record = body[first : end - 1]
        key, _, value = record.partition(b"=")
        if key == b"path":
            path = value
        at = end
    return path
