"""Waits for devices and streams that have nothing to do.

This is a question about rows: streams leave no records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from virtual_cuda.ledger.records import Site
from virtual_cuda.ledger.rows import OperationRow, Row, SiteRow, StreamRow, SyncRow


class StreamKey(NamedTuple):
    """A stream of a device: its number as torch gives it; 0 is the default stream."""

    device: str
    number: int


class UselessWait(NamedTuple):
    """A wait for a device or a stream that was given no work, or an event recorded there."""

    site: Site | None
    device_works: bool  # True if another stream of the same device was given work


def first_useless_wait(
    rows: Sequence[Row], site_of: Callable[[SiteRow], Site | None]
) -> UselessWait | None:
    """The first wait for a device or a stream without work in these rows; None if there is none.

    Recording an event in a stream without work counts as such a wait.
    """
    busy_streams = streams_with_work(rows)
    busy_devices = {stream.device for stream in busy_streams}
    for row in rows:
        if isinstance(row, SyncRow) and row.what == "synchronize":
            if row.device and row.device not in busy_devices:
                return UselessWait(site_of(row), device_works=False)
        elif isinstance(row, StreamRow) and row.what in ("record", "synchronize"):
            stream = StreamKey(row.device, row.stream)
            if stream not in busy_streams:
                device_works = row.device in busy_devices
                return UselessWait(site_of(row), device_works)
    return None


def streams_with_work(rows: Sequence[Row]) -> set[StreamKey]:
    """The streams that were given an operator or a sleep."""
    busy: set[StreamKey] = set()
    current_numbers: dict[str, int] = {}  # of the current stream, by device
    for row in rows:
        if isinstance(row, OperationRow):
            number = current_numbers.get(row.device, 0)
            busy.add(StreamKey(row.device, number))
        elif not isinstance(row, StreamRow):
            continue
        elif row.what == "use":
            current_numbers[row.device] = row.stream
        elif row.what == "sleep":
            busy.add(StreamKey(row.device, row.stream))
    return busy
