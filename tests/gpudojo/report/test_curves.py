"""Memory curves, and evidence that has none. Without a browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import msgspec
import pytest
from gpudojo.report.charts import HEIGHT, MOST_POINTS, curve_from, draw_curves
from gpudojo.report.records import NO_PICTURES, NOTHING_THERE, UNKNOWN_CALL, SubmissionRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpudojo.report.classes import LOOP, MEMORY, record, timeline

GOOD = {"bytes": [1024, 4096, 2048], "backward": 2, "peak": 4096}
points = st.lists(st.integers(0, 10**14) | st.floats(0, 1e14), min_size=2, max_size=MOST_POINTS)


def test_three_curves_with_their_peaks() -> None:
    found = SubmissionRecords(record(1, "mine"), record(1, "theirs", reference=True)).memory_curves(
        MEMORY, "checkpointed"
    )
    assert [(each.label, each.kind, each.peak) for each in found] == [
        ("all activations stored", "other", 224 << 10),
        ("yours", "mine", 137 << 10),
        ("the reference", "theirs", 137 << 10),
    ]
    svg = ElementTree.fromstring(draw_curves("Memory of checkpointed", found))
    assert [path.get("class") for path in svg if "curve" in path.get("class", "")] == [
        "curve other",
        "curve mine",
        "curve theirs",
    ]
    assert svg.get("aria-label") == (
        "Memory of checkpointed. all activations stored: peak 224 KiB, 32 operations, highest in "
        "forward; "
        "yours: peak 137 KiB, 40 operations, highest in forward; "
        "the reference: peak 137 KiB, 40 operations, highest in forward."
    )
    assert [text.text for text in svg.iter("text")][:2] == ["224 KiB", "137 KiB"], (
        "equal peaks have one label"
    )


def test_a_higher_curve_is_drawn_higher() -> None:
    plain = curve_from("plain", GOOD | {"bytes": [0, 8192], "peak": 8192}, "other")
    mine = curve_from("yours", GOOD, "mine")
    assert plain is not None
    assert mine is not None
    found = re.findall(r'class="curve (\w+)" d="([^"]+)"', draw_curves("x", [plain, mine]))
    tops = {kind: min(float(y) for y in re.findall(r"V([\d.]+)", path)) for kind, path in found}
    assert tops["other"] < tops["mine"] < HEIGHT / 2 + 10


def test_older_evidence_has_bars_and_no_curves() -> None:
    known = SubmissionRecords(record(1, "mine", curved=False), record(1, "theirs", reference=True))
    assert known.memory_curves(MEMORY, "checkpointed") == []
    assert len(known.peak_bars(MEMORY, "checkpointed")) == 3
    known = SubmissionRecords(record(1, "mine"), record(1, "theirs", reference=True, curved=False))
    assert [each.kind for each in known.memory_curves(MEMORY, "checkpointed")] == ["other", "mine"]
    assert SubmissionRecords(None, None).memory_curves(MEMORY, "checkpointed") == []


def test_the_plain_loop_may_be_in_the_reference_s_record_alone() -> None:
    mine = record(1, "mine")
    facts = mine.functions[f"{MEMORY}::checkpointed"].evidence.observations["probe"].facts
    facts.update(stored=None, stored_curve=None)
    assert SubmissionRecords(mine, None).peak_bars(MEMORY, "checkpointed") == []
    known = SubmissionRecords(mine, record(1, "theirs", reference=True))
    assert [bar.value for bar in known.peak_bars(MEMORY, "checkpointed")] == [
        224 << 10,
        137 << 10,
        137 << 10,
    ]
    assert [each.kind for each in known.memory_curves(MEMORY, "checkpointed")] == [
        "other",
        "mine",
        "theirs",
    ]


@pytest.mark.parametrize(
    "odd",
    [
        None,
        7,
        [],
        {},
        GOOD | {"bytes": "abc"},
        GOOD | {"bytes": [1]},
        GOOD | {"bytes": [1, "2"]},
        GOOD | {"bytes": [1, float("inf")]},
        GOOD | {"bytes": [1, float("nan")]},
        GOOD | {"bytes": [1, -1]},
        GOOD | {"bytes": [True, True]},
        GOOD | {"bytes": [1, 10**30]},
        GOOD | {"bytes": [1] * (MOST_POINTS + 1)},
        GOOD | {"bytes": [0, 0]},
        GOOD | {"backward": 4},
        GOOD | {"backward": -1},
        GOOD | {"backward": True},
        GOOD | {"peak": None},
        GOOD | {"peak": float("inf")},
        GOOD | {"bytes": [[1], [2]]},
    ],
)
def test_invalid_curves_are_not_drawn(odd: Any) -> None:
    assert curve_from("yours", odd, "mine") is None
    mine = record(1, "mine")
    mine.functions[f"{MEMORY}::checkpointed"].evidence.observations["probe"].facts["a list"][
        "curve"
    ] = odd
    known = SubmissionRecords(mine, None)
    assert known.memory_curves(MEMORY, "checkpointed") == []
    assert len(known.peak_bars(MEMORY, "checkpointed")) == 2


@settings(deadline=None, max_examples=60)
@given(points, points, st.integers(0, 2), st.integers(0, 10**14))
def test_curves_stay_inside_the_chart(
    one: list[float], two: list[float], turn: int, peak: int
) -> None:
    made = [
        curve_from("a < b", {"bytes": each, "backward": turn, "peak": peak}, "mine")
        for each in (one, two)
    ]
    drawn = [each for each in made if each is not None]
    if not drawn:
        return
    svg = draw_curves("x", drawn)
    assert ElementTree.fromstring(svg).tag == "svg"
    for path in re.findall(r' d="([^"]+)"', svg):
        assert all(0 <= float(y) <= HEIGHT for y in re.findall(r"V([-\d.e+]+)", path))


def test_only_the_same_call_of_the_reference_is_compared() -> None:
    theirs = record(1, "theirs", reference=True)
    found = SubmissionRecords(record(64, "mine"), theirs).timeline_pair(LOOP, "train_epoch")
    assert found.mine is not None
    assert found.theirs is not None
    assert (
        (found.theirs.scenario, found.theirs.place)
        == (found.mine.scenario, found.mine.place)
        == ("epochs", 1)
    )
    assert (found.mine.wait_count, found.theirs.wait_count, found.missing) == (64, 1, "")
    other = SubmissionRecords(record(64, "mine", "another"), theirs).timeline_pair(
        LOOP, "train_epoch"
    )
    assert (other.theirs, other.missing) == (None, NOTHING_THERE)
    older = SubmissionRecords(record(64, "mine"), record(1, "theirs")).timeline_pair(
        LOOP, "train_epoch"
    )
    assert (older.theirs, older.missing) == (None, NO_PICTURES), (
        "its one timeline is of the class's own seed"
    )
    assert (
        SubmissionRecords(record(64, "mine"), None).timeline_pair(LOOP, "train_epoch").missing
        == NO_PICTURES
    )


def test_a_call_without_a_number_is_not_compared() -> None:
    mine = record(64, "mine")
    seen = mine.functions[f"{LOOP}::train_epoch"]
    unplaced = msgspec.structs.replace(timeline(64, "mine"), place=None)
    mine.functions[f"{LOOP}::train_epoch"] = msgspec.structs.replace(seen, timeline=unplaced)
    found = SubmissionRecords(mine, record(1, "theirs", reference=True)).timeline_pair(
        LOOP, "train_epoch"
    )
    assert (found.theirs, found.missing) == (None, UNKNOWN_CALL)
