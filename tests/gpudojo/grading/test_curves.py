"""Memory curves are true and small, and keep their peak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.grading.watching import MOST_POINTS, memory_curve, thin_out
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import MemoryCurve
from hypothesis import given
from hypothesis import strategies as st
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.rows import AllocationRow, OperationRow, SyncRow

ROOT = Path(__file__).parents[3]
STEM = "09_managing_memory"


def operation(live: int) -> OperationRow:
    return OperationRow(0.0, None, None, "aten.add", "cuda:0", 0, None, 4, live)


def passes(forward: list[int], backward: list[int]) -> tuple[Ledger, Ledger]:
    """The two parts of a ledger with something before them."""
    ledger = Ledger()
    ledger.rows.append(operation(999))
    start = ledger.mark()
    ledger.rows.extend(map(operation, forward))
    turn = ledger.mark()
    ledger.rows.append(SyncRow(0.0, None, None, "item", False))
    ledger.rows.extend(AllocationRow(0.0, None, None, "cuda:0", -4, live) for live in backward)
    return ledger.since(start, turn), ledger.since(turn)


def test_what_was_there_before_does_not_count() -> None:
    found = memory_curve(*passes([110, 150], [130, 90]), 100, 77)
    assert found == MemoryCurve([10, 50, 30, 0], 2, 77)


def test_nothing_at_all_is_a_curve_too() -> None:
    assert memory_curve(*passes([], []), 0, 0) == MemoryCurve([], 0, 0)


@given(
    st.lists(st.integers(0, 1 << 40), max_size=900), st.lists(st.integers(0, 1 << 40), max_size=900)
)
def test_it_is_small_and_no_peak_is_lost(forward: list[int], backward: list[int]) -> None:
    found = memory_curve(*passes(forward, backward), 0, 0)
    points = found.bytes
    turn = found.backward
    assert len(points) <= MOST_POINTS
    assert max(points, default=0) == max([*forward, *backward], default=0) or len(
        forward
    ) * MOST_POINTS < len([*forward, *backward]), (
        "only a forward pass too short for a single point is left out"
    )
    assert max(points[turn:], default=0) == max(backward, default=0)
    if len(forward) + len(backward) <= MOST_POINTS:
        assert points == [*forward, *backward]


def test_a_few_stand_for_many() -> None:
    assert thin_out([1, 5, 2, 2, 9, 0], 3) == [5, 2, 9]
    assert thin_out([1, 2], 3) == [1, 2]
    assert thin_out([1, 2], 0) == []


@pytest.fixture(scope="module")
def checkpointed() -> Any:
    """What the probe sees of a file, by its path."""
    exercise = next(each for each in exercises_of("day8") if each.stem == STEM)
    function = next(each for each in exercise.functions if each.name == "checkpointed")

    def facts(path: Path) -> dict[str, Any]:
        return (
            observe_function(exercise, function, load_submission(path), "virtual", 8)
            .observations["passes"]
            .facts
        )

    return facts


def test_what_is_made_again_takes_less_memory_and_more_operations(checkpointed: Any) -> None:
    facts = checkpointed(ROOT / "reference" / "day8" / f"{STEM}.py")
    plain = facts["stored_curve"]
    again = facts["a list"]["curve"]
    assert max(plain["bytes"]) == plain["peak"] > facts["stored"]
    assert max(plain["bytes"][: plain["backward"]]) == facts["stored"], (
        "when every activation is there"
    )
    assert max(again["bytes"]) == again["peak"] == facts["a list"]["peak"] < plain["peak"]
    assert len(again["bytes"]) > len(plain["bytes"])
    assert 0 < again["backward"] < len(again["bytes"]) < MOST_POINTS


def test_who_keeps_everything_has_the_plain_loop_s_curve(checkpointed: Any) -> None:
    facts = checkpointed(ROOT / "tests" / "day8" / "wrong" / STEM / "plain_loop.py")
    reference = checkpointed(ROOT / "reference" / "day8" / f"{STEM}.py")
    assert facts["a list"]["curve"] == reference["stored_curve"]
