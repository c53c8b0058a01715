"""What functions did, from the fenced child to the record: kept, bounded, and of the reference without its lines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from graders.batch.records import Record, decode, encode
from graders.batch.store import Store
from graders.bench.ledger.timeline import LARGEST, Event, Timeline, encoded
from graders.results import ClassResults
from graders.sandbox.protocol import Began, Fenced
from tests.batch.test_attempt import attempt, saw, say
from tests.batch.test_grading import FOURTH, REFERENCE, grade
from tests.plugin.test_timelines import WAITING

KEY = "04_modifying_training_loop_gpu::train_epoch"
GOOD = Timeline("train", "usual", "cuda", [Event("op", 0, 1, 1, True, False, 1, "add")], counts={"op": 1})


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClassResults, dict[str, Record | None]]:
    folder, out = tmp_path_factory.mktemp("class"), tmp_path_factory.mktemp("out")
    solution = (REFERENCE / FOURTH).read_text(encoding="utf-8")
    files = {
        "handed_back": solution,  # the reference itself, with its marks
        "waiting": WAITING,
        "looping": WAITING.replace("total += loss.item()", "[loss.item() for _ in range(700)]; total += loss.item()"),
        "forging": WAITING + "\nimport linecache\nlinecache.getlines = lambda file: [object()] * 100\n",
    }
    for name, source in files.items():
        (folder / name).mkdir()
        (folder / name / FOURTH).write_text(source, encoding="utf-8")
    (folder / "broken.zip").write_bytes(b"PK\x03\x04 no archive")
    _, _, results = grade(folder, out, only=frozenset({"train_epoch", "select_device"}))
    store = Store(out)
    records = {row.submission: store.record(row.record) if row.record else None for row in results.submissions}
    return results, {**records, "the reference": store.record(results.reference)}


def timeline(records: dict[str, Record | None], name: str) -> Timeline | None:
    record = records[name]
    assert record is not None
    return record.seen[KEY].timeline


def test_the_busiest_call_is_kept_beside_the_evidence(graded: tuple[ClassResults, dict[str, Record | None]]) -> None:
    results, records = graded
    mine, theirs = timeline(records, "waiting"), timeline(records, "the reference")
    assert mine is not None
    assert theirs is not None
    assert (mine.function, mine.scenario) == ("train_epoch", theirs.scenario)
    assert mine.walls > theirs.walls > 0
    assert "norms" in mine.lines[max(mine.waits, key=lambda line: mine.waits[line])]
    assert any(event.kind == "forward" and event.name.startswith("Loud\x1b") for event in mine.events), "as it came"
    scores = {row.submission: row.score for row in results.submissions}
    assert scores["waiting"] == scores["looping"] == scores["handed_back"]
    seen = records["waiting"].seen["01_checking_device::select_device"]  # type: ignore[union-attr]
    assert seen.timeline is None, "there is nothing of it to be drawn"


def test_a_reference_keeps_its_lines_to_itself(graded: tuple[ClassResults, dict[str, Record | None]]) -> None:
    for name in ("the reference", "handed_back"):
        found = timeline(graded[1], name)
        assert found is not None
        assert found.events
        assert found.lines == {}


def test_much_that_happens_is_still_small(graded: tuple[ClassResults, dict[str, Record | None]]) -> None:
    found = timeline(graded[1], "looping")
    assert found is not None
    assert found.walls > 1400
    assert found.left_out == sum(found.counts.values()) - len(found.events) > 0
    assert len(encoded(found)) <= LARGEST


def test_who_spoils_the_picture_has_none_and_is_graded(graded: tuple[ClassResults, dict[str, Record | None]]) -> None:
    results, records = graded
    assert timeline(records, "forging") is None
    row = next(row for row in results.submissions if row.submission == "forging")
    assert (row.status, row.score > 0) == ("graded", True)


def test_what_cannot_be_read_has_no_record(graded: tuple[ClassResults, dict[str, Record | None]]) -> None:
    assert {row.submission: bool(row.record) for row in graded[0].submissions}["broken"] is False


@pytest.mark.parametrize("change", [{"counts": {"op": 7}}, {"function": "f" * 101}, {"peak_bytes": -1}, {"events": []}])
def test_a_timeline_that_is_none_is_not_believed(change: dict[str, object]) -> None:
    for given, believed in ((GOOD, True), (msgspec.structs.replace(GOOD, **change), False)):
        one = attempt()
        frame = msgspec.structs.replace(saw("04_loop::train"), timeline=given)
        assert say(one, Fenced({}), Began("04_loop::train"), frame) is believed
        kept = one.record.seen.get("04_loop::train")
        assert (kept.timeline if kept else None) == (GOOD if believed else None)


def test_a_record_is_read_back_with_its_timelines(tmp_path: Path) -> None:
    one = attempt()
    say(one, Fenced({}), Began("04_loop::train"), msgspec.structs.replace(saw("04_loop::train"), timeline=GOOD))
    assert decode(encode(one.record)).seen["04_loop::train"].timeline == GOOD
