"""Which of two programs is faster? Pairs of programs that an H200 ran, and what the clock says.

The programs of a pair have one name before the slash: "rows_sum/loop" and "rows_sum/vectorised".
"""

from __future__ import annotations

import json
from typing import NamedTuple

from virtual_cuda import gpu_named
from virtual_cuda.fitting.figures import modelled_times

from tests.virtual_cuda.clock.__main__ import PAIRS, stored

GAP = 1.2  # times as long, in every recording: then one of two programs is faster
MOST_WRONG = 3  # of at least 60


class Pair(NamedTuple):
    """Two programs; `ratios` says how many times as long the first one took, by recording."""

    name: str
    first: str
    second: str
    ratios: list[float]

    @property
    def first_is_slower(self) -> bool:
        return all(ratio > GAP for ratio in self.ratios)

    @property
    def first_is_faster(self) -> bool:
        return all(ratio < 1 / GAP for ratio in self.ratios)


def recorded_pairs() -> list[Pair]:
    """The pairs of the record of which one program was faster in every recording."""
    programs = json.loads(PAIRS.read_text(encoding="utf-8"))["programs"]
    by_pair: dict[str, list[str]] = {}
    for name in programs:
        by_pair.setdefault(name.partition("/")[0], []).append(name)
    pairs = []
    for pair_name, (first, second) in by_pair.items():
        walls = zip(programs[first]["walls_s"], programs[second]["walls_s"], strict=True)
        pair = Pair(pair_name, first, second, [one / other for one, other in walls])
        if pair.first_is_slower or pair.first_is_faster:
            pairs.append(pair)
    return pairs


def test_the_clock_tells_which_of_two_programs_is_faster() -> None:
    gpu = gpu_named("H200")
    runs = stored(PAIRS)
    pairs = recorded_pairs()
    wrong = []
    for pair in pairs:
        first = modelled_times(runs[pair.first], gpu).end
        second = modelled_times(runs[pair.second], gpu).end
        if (first > second) != pair.first_is_slower:
            wrong.append(f"{pair.name}: {first / second:.2f} times, recorded {pair.ratios}")
    assert len(pairs) >= 60
    assert len(wrong) <= MOST_WRONG, "\n".join(wrong)
