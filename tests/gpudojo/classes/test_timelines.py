"""Timelines of functions: kept in the record, bounded, and for the reference without its lines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from gpudojo.classes.records import Record, decode_record, encode_record
from gpudojo.classes.store import Store
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.grading.watching import EveryCall
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import ClassResults
from gpudojo.sandbox.protocol import BUSIEST, EVERY, NONE, Began, Isolated
from virtual_cuda.ledger.timeline import (
    LARGEST,
    Timeline,
    TimelineEvent,
    encode_timeline,
    same_call,
)

from tests.gpudojo.classes.test_grading import FOURTH, REFERENCE, grade
from tests.gpudojo.classes.test_submission_run import saw, say, submission_run
from tests.gpudojo.pytest_plugin.test_timelines import WAITING

KEY = "04_modifying_training_loop_gpu::train_epoch"
GOOD = Timeline(
    "train",
    "usual",
    "cuda",
    [TimelineEvent("op", 0, 1, 1, True, False, 1, "add")],
    counts={"op": 1},
)


@pytest.fixture(scope="module")
def graded(
    tmp_path_factory: pytest.TempPathFactory, loaded_fork_servers: None
) -> tuple[ClassResults, dict[str, Record | None]]:
    folder = tmp_path_factory.mktemp("class")
    out = tmp_path_factory.mktemp("out")
    solution = (REFERENCE / FOURTH).read_text(encoding="utf-8")
    files = {
        "handed_back": solution,  # the reference itself, with its marks
        "waiting": WAITING,
        "looping": WAITING.replace(
            "total += loss.item()", "[loss.item() for _ in range(700)]; total += loss.item()"
        ),
        "forging": WAITING
        + "\nimport linecache\nlinecache.getlines = lambda file: [object()] * 100\n",
    }
    for name, source in files.items():
        (folder / name).mkdir()
        (folder / name / FOURTH).write_text(source, encoding="utf-8")
    (folder / "broken.zip").write_bytes(b"PK\x03\x04 no archive")
    _, _, results = grade(folder, out, only=frozenset({"train_epoch", "select_device"}))
    store = Store(out)
    records = {
        row.submission: store.load_record(row.record) if row.record else None
        for row in results.submissions
    }
    return results, {**records, "the reference": store.load_record(results.reference)}


def timeline(records: dict[str, Record | None], name: str) -> Timeline | None:
    record = records[name]
    assert record is not None
    return record.functions[KEY].timeline


def references(records: dict[str, Record | None]) -> list[Timeline]:
    record = records["the reference"]
    assert record is not None
    return record.functions[KEY].timelines


def test_the_busiest_call_is_kept_beside_the_evidence(
    graded: tuple[ClassResults, dict[str, Record | None]],
) -> None:
    results, records = graded
    mine = timeline(records, "waiting")
    assert mine is not None
    theirs = same_call(mine, references(records))
    assert theirs is not None
    assert (mine.function, theirs.function) == ("train_epoch", "train_epoch")
    assert mine.wait_count > theirs.wait_count > 0
    assert "norms" in mine.lines[max(mine.waits, key=lambda line: mine.waits[line])]
    assert any(
        event.kind == "forward" and event.name.startswith("Loud\x1b") for event in mine.events
    ), "as it came"
    scores = {row.submission: row.score for row in results.submissions}
    assert scores["waiting"] == scores["looping"] == scores["handed_back"]
    seen = records["waiting"].functions["01_checking_device::select_device"]  # type: ignore[union-attr]
    assert seen.timeline is None, "there is nothing of it to be drawn"


def test_a_reference_keeps_its_lines_to_itself(
    graded: tuple[ClassResults, dict[str, Record | None]],
) -> None:
    found = references(graded[1])
    assert len({(each.scenario, each.place) for each in found}) == len(found) > 1
    assert all(each.events and each.lines == {} for each in found)
    assert timeline(graded[1], "the reference") is None


def test_who_leaves_the_markers_in_place_still_sees_lines(
    graded: tuple[ClassResults, dict[str, Record | None]],
) -> None:
    """Marks are no sign of a reference: what is one is known by who asked for it to be run."""
    record = graded[1]["handed_back"]
    assert record is not None
    found = record.functions[KEY].timeline
    assert found is not None
    assert any("loss.item()" in text or ".to(device)" in text for text in found.lines.values())
    assert record.functions[KEY].timelines == []


def test_a_reference_is_drawn_on_the_public_seed(
    graded: tuple[ClassResults, dict[str, Record | None]],
) -> None:
    """The same calls as in a run of its own on that seed, whatever the class's secret is."""
    exercise = next(each for each in exercises_of("day8") if f"{each.stem}::train_epoch" == KEY)
    function = exercise.functions[0]
    every = EveryCall("train_epoch")
    observe_function(
        exercise,
        every.watch_function(function),
        load_submission(REFERENCE / FOURTH),
        "virtual",
        PUBLIC_SEEDS[0],
    )
    found = [
        (each.scenario, each.place, each.counts, each.peak_bytes) for each in references(graded[1])
    ]
    assert found == [
        (each.scenario, each.place, each.counts, each.peak_bytes) for each in every.timelines
    ]


def test_a_student_sends_no_pictures_of_a_reference() -> None:
    for drawn, kept in ((NONE, []), (BUSIEST, []), (EVERY, [GOOD])):
        one = submission_run()
        one.options = msgspec.structs.replace(one.options, drawn=drawn)
        frame = msgspec.structs.replace(saw("04_loop::train"), timelines=[GOOD])
        assert say(one, Isolated({}), Began("04_loop::train"), frame)
        assert (
            decode_record(encode_record(one.record)).functions["04_loop::train"].timelines == kept
        )


def test_much_that_happens_is_still_small(
    graded: tuple[ClassResults, dict[str, Record | None]],
) -> None:
    found = timeline(graded[1], "looping")
    assert found is not None
    assert found.wait_count > 1400
    assert found.left_out == sum(found.counts.values()) - len(found.events) > 0
    assert len(encode_timeline(found)) <= LARGEST


def test_who_spoils_the_picture_has_none_and_is_graded(
    graded: tuple[ClassResults, dict[str, Record | None]],
) -> None:
    results, records = graded
    assert timeline(records, "forging") is None
    row = next(row for row in results.submissions if row.submission == "forging")
    assert (row.status, row.score > 0) == ("graded", True)


def test_what_cannot_be_read_has_no_record(
    graded: tuple[ClassResults, dict[str, Record | None]],
) -> None:
    assert {row.submission: bool(row.record) for row in graded[0].submissions}["broken"] is False


@pytest.mark.parametrize(
    "change", [{"counts": {"op": 7}}, {"function": "f" * 101}, {"peak_bytes": -1}, {"events": []}]
)
def test_a_timeline_that_is_none_is_not_believed(change: dict[str, object]) -> None:
    for given, believed in ((GOOD, True), (msgspec.structs.replace(GOOD, **change), False)):
        one = submission_run()
        frame = msgspec.structs.replace(saw("04_loop::train"), timeline=given)
        assert say(one, Isolated({}), Began("04_loop::train"), frame) is believed
        kept = one.record.functions.get("04_loop::train")
        assert (kept.timeline if kept else None) == (GOOD if believed else None)


def test_a_record_is_read_back_with_its_timelines(tmp_path: Path) -> None:
    one = submission_run()
    say(
        one,
        Isolated({}),
        Began("04_loop::train"),
        msgspec.structs.replace(saw("04_loop::train"), timeline=GOOD),
    )
    assert decode_record(encode_record(one.record)).functions["04_loop::train"].timeline == GOOD
