"""Which events stand above one another? A timeline in as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from graders.bench.ledger.timeline import Event, Timeline

# What happens without a column of its own: it shows in the memory, or inside a pass or a copy that is drawn already.
UNSEEN: Final = frozenset({"memory", "inner forward", "upload sync"})
SHARE: Final = 0.75  # of the columns, at most, for events that have one each; the rest is for operations


@dataclass
class Column:
    """Some events that follow one another."""

    events: list[Event] = field(default_factory=list)
    live: int = 0  # bytes, the most in it

    def count(self, *kinds: str) -> int:
        return sum(event.kind in kinds for event in self.events)

    def bytes(self, kind: str) -> int:
        return sum(event.bytes for event in self.events if event.kind == kind)

    @property
    def walls(self) -> int:
        """How often the host waited here."""
        return self.count("sync", "explicit sync")


def columns(timeline: Timeline, room: int) -> list[Column]:
    """At most `room` columns. What moves or waits has one for itself as long as there are enough."""
    drawn = [event for event in timeline.events if event.kind not in UNSEEN]
    places = _places(drawn, max(room, 1))
    found: list[Column] = []
    last = -1
    for event, place in zip(drawn, places, strict=True):
        if place != last:
            found.append(Column())
            last = place
        found[-1].events.append(event)
    _fill_memory(found, timeline.events)
    return found


def _places(events: Sequence[Event], room: int) -> list[int]:
    if len(events) <= room:
        return list(range(len(events)))
    special = sum(event.kind != "op" for event in events)
    plain = len(events) - special
    if special > room * SHARE or not plain:
        return [place * room // len(events) for place in range(len(events))]
    left = room - special
    places, specials_before, plain_before = [], 0, 0
    for event in events:
        places.append(specials_before + plain_before * left // plain)
        if event.kind == "op":
            plain_before += 1
        else:
            specials_before += 1
    return places


def _fill_memory(found: Sequence[Column], events: Sequence[Event]) -> None:
    """Each column's memory: the most from its first event to the next column's."""
    starts = [column.events[0].at for column in found]
    place = 0
    for event in events:
        while place + 1 < len(found) and event.at >= starts[place + 1]:
            place += 1
        if found:
            found[place].live = max(found[place].live, event.live)
