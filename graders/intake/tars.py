"""Which files lie in a tar? Its headers are read here, as bytes already bounded, instead of by `tarfile`.

`tarfile` follows sizes that are negative, sparse or larger than the file; in releases we support one crafted header
makes it loop without end. A reader that only ever steps forward through at most so many bytes has no such corner.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import Final

from graders.intake.contents import Contents, Found
from graders.intake.records import Limits, Unreadable

_BLOCK: Final = 512
_REGULAR: Final = (b"0", b"\0", b"7")
_LINKS: Final = (b"1", b"2")
_SPECIAL: Final = (b"3", b"4", b"6")


def is_tar(data: bytes) -> bool:
    return len(data) >= _BLOCK and _checksum_fits(data[:_BLOCK])


def unpacked(data: bytes, limits: Limits) -> tuple[bytes, str]:
    """A gzip's content up to the limit, and what is to be said about the rest of it."""
    pieces: list[bytes] = []
    size = 0
    while data:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            try:
                piece = stream.decompress(data, limits.total_bytes + 1 - size)
            except zlib.error:
                return b"".join(pieces), "is damaged"
            pieces.append(piece)
            size += len(piece)
            if size > limits.total_bytes:
                return b"".join(pieces), f"unpacks to more than {limits.total_bytes / 10**6:g} MB"
            data = stream.unconsumed_tail
            if not piece and not data and not stream.eof:
                return b"".join(pieces), "is cut off"
        data = stream.unused_data.lstrip(b"\0")
    return b"".join(pieces), ""


def listing(data: bytes, limits: Limits) -> Contents:
    """Everything of interest in a tar, nothing copied yet; Unreadable where it is none."""
    contents = Contents()
    if data[:2] == b"\x1f\x8b":
        packed = len(data)
        data, remark = unpacked(data, limits)
        if len(data) > limits.ratio_from and len(data) > limits.ratio * packed:
            raise Unreadable(f"unpacks to more than {limits.ratio} times its size, as only a bomb does")
        if remark:
            contents.refuse("The archive", f"{remark}; what comes before that was read")
        if not is_tar(data):
            raise Unreadable(f"{remark}, and nothing in it could be read" if remark else "is packed, but not a tar")
    elif not is_tar(data):
        raise Unreadable("is not a tar file")
    latest: dict[str, Found] = {}
    at, seen, long_name = 0, 0, None
    while at + _BLOCK <= len(data):
        header = data[at : at + _BLOCK]
        if not header.strip(b"\0"):
            break
        seen += 1
        size = _number(header[124:136])
        if seen > limits.entries:
            contents.refuse("The archive", f"holds more than {limits.entries} entries; the rest was left out")
            break
        if not _checksum_fits(header) or size is None:
            contents.refuse("The archive", "is damaged in the middle; what comes after that was left out")
            break
        start, kind = at + _BLOCK, header[156:157]
        at = start + -(-size // _BLOCK) * _BLOCK
        body = data[start : start + size]
        if kind == b"L":
            long_name = body.rstrip(b"\0")
            continue
        if kind in (b"x", b"X"):
            long_name = _pax_path(body) or long_name
            continue
        if kind in (b"g", b"K", b"V"):
            continue
        raw, long_name = long_name or _ustar_name(header), None
        name = raw.decode("utf-8", "surrogateescape")
        if kind == b"5" or (kind in _REGULAR and name.endswith("/")):
            continue
        try:
            path = contents.place(name, limits)
            if path is None:
                continue
            _check(kind, len(body) == size)
        except Unreadable as error:
            contents.refuse(name, error)
            continue
        if path in latest:
            contents.refuse(path, "is in the archive more than once; the last one counts, as when it is unpacked")
        latest[path] = Found(path, size, partial(_fetch, data, start, size))
    contents.files = list(latest.values())
    return contents


def _check(kind: bytes, whole: bool) -> None:
    if kind in _LINKS:
        raise Unreadable("is a link, which is not followed")
    if kind in _SPECIAL:
        raise Unreadable("is neither a file nor a folder but a pipe, socket or device")
    if kind not in _REGULAR:
        raise Unreadable("is stored in a way that is not read here")
    if not whole:
        raise Unreadable("is cut off")


def _fetch(data: bytes, start: int, size: int, most: int) -> bytes:
    return data[start : start + min(size, most + 1)]


def _number(field: bytes) -> int | None:
    """A size: octal digits, or for the large ones a mark and big-endian bytes."""
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
    while body:
        digits, _, _ = body[:20].partition(b" ")
        if not digits.isdigit() or not len(digits) < int(digits) <= len(body):
            break
        record, body = body[len(digits) + 1 : int(digits) - 1], body[int(digits) :]
        key, _, value = record.partition(b"=")
        if key == b"path":
            found = value
    return found
