"""How much memory was in use while something ran? A curve of a few numbers, read from what the bench wrote down."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from graders.bench.ledger.rows import ALLOCATION, OPERATION

if TYPE_CHECKING:
    from graders.bench.ledger import Ledger

MOST: Final = 200  # points: a picture has not much more room


def memory_curve(forward: Ledger, backward: Ledger, base: int, peak: int) -> dict[str, Any]:
    """The bytes in use, above `base`, after each thing that happened in two parts of a ledger.

    `peak` is what the device says, which saw inside of operations as well. From the rows alone, because every
    submission pays for it.
    """
    up, down = _in_use(forward, base), _in_use(backward, base)
    first = thinned(up, len(up) * MOST // max(len(up) + len(down), MOST))
    return {"bytes": [*first, *thinned(down, MOST - len(first))], "backward": len(first), "peak": peak}


def _in_use(part: Ledger, base: int) -> list[int]:
    """Of all devices, one by one: who asks uses a single one."""
    live = []
    for row in part.written():
        if row[0] == OPERATION:
            live.append(max(row[9] - base, 0))
        elif row[0] == ALLOCATION:
            live.append(max(row[6] - base, 0))
    return live


def thinned(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many; the highest of several neighbours stands for them, so that no peak is lost."""
    if len(numbers) <= most:
        return list(numbers)
    edges = [place * len(numbers) // max(most, 1) for place in range(most + 1)]
    return [max(numbers[start:end]) for start, end in itertools.pairwise(edges)]
