"""A timeline is true and small, and refused where it is malformed. No torch."""

from __future__ import annotations

import itertools
import subprocess
import sys

import msgspec
import pytest
from virtual_cuda.errors import BadTimeline
from virtual_cuda.ledger import COLUMNS, totals
from virtual_cuda.ledger.records import (
    Allocation,
    Backward,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Site,
    Sync,
    Transfer,
)
from virtual_cuda.ledger.timeline import (
    LARGEST,
    LONGEST,
    MOST_EVENTS,
    MOST_LINES,
    Timeline,
    TimelineEvent,
    check_timeline,
    encode_timeline,
    timeline_of,
)

FILE = "04_loop.py"
SOURCE = ["def train():", "    x.to(device)", "    y = model(x)", "    total += y.item()"]


def at(line: int, file: str = FILE) -> Site:
    return Site(file, line, "train")


def op(
    index: int, live: int, line: int = 3, grad: bool = True, autocast: str | None = None
) -> Operation:
    return Operation(
        index, 0.0, at(line), "aten.add.Tensor", "cuda:0", grad, False, autocast, 512, live
    )


def up(index: int, size: int = 64, line: int = 2) -> Transfer:
    return Transfer(index, 0.0, at(line), "to_device", size, False, False, "cpu", "cuda:0")


def read(index: int, line: int = 4, what: str = "item", explicit: bool = False) -> Sync:
    return Sync(index, 0.0, at(line), what, explicit)


LEDGER: list[Record] = [
    op(0, 1536, 2),
    up(1),
    read(2, 2, "copy"),
    Forward(3, 0.0, at(3), "Net", True, True, False, ("cuda:0",), 0),
    Forward(4, 0.0, at(3), "Linear", True, True, False, ("cuda:0",), 1),
    op(5, 4096, autocast="float16"),
    Backward(6, 0.0, at(9, "elsewhere.py")),
    OptimizerStep(7, 0.0, None, "SGD"),
    ScalerCall(8, 0.0, at(3), "update"),
    read(9),
    read(10),
    read(11, explicit=True, what="torch.cuda.synchronize"),
    Allocation(12, 0.0, None, "cuda:0", -2048, 2048),
    Transfer(13, 0.0, at(4), "to_host", 8, False, False, "cuda:0", "cpu"),
    read(14, 4, "copy"),
]


def test_a_call_record_by_record() -> None:
    made = check_timeline(timeline_of(LEDGER, "train", "usual", FILE, "cuda:0", SOURCE))
    assert [event.kind for event in made.events] == [
        *(
            "op",
            "to device",
            "upload sync",
            "forward",
            "inner forward",
            "op",
            "backward",
            "step",
            "scaler",
        ),
        *("sync", "sync", "explicit sync", "memory", "to host", "sync"),
    ]
    assert made.wait_count == 3, (
        "a copy to the device makes nobody read, and who was told to wait knows it"
    )
    assert made.waits == {4: 3}
    assert dict(zip(COLUMNS, totals(LEDGER), strict=True))["waits"] == "3", (
        "a table counts the same"
    )
    assert (made.to_device, made.to_host, made.peak_bytes, made.left_out) == (64, 8, 4096, 0)
    assert made.lines == {2: SOURCE[1], 3: SOURCE[2], 4: SOURCE[3]}
    first, _, _, passing, _, second, backward, *_ = made.events
    assert first == TimelineEvent("op", 0, 512, 2, True, False, 1536, "add")
    assert (second.autocast, second.live) == (True, 4096)
    assert (passing.name, passing.grad, passing.live) == ("Net", True, 1536)
    assert backward.line is None, "a line of another file is no line of this one"
    assert made.events[-1].live == 2048, "what was given back is gone"


def test_what_was_there_before_the_call_is_there_when_it_begins() -> None:
    made = timeline_of([up(0), op(1, 4096)], "train", "usual", FILE)
    assert made.events[0].live == 4096 - 512


def test_a_peak_inside_an_operation_counts() -> None:
    assert timeline_of(LEDGER, "train", "usual", FILE, peak_bytes=9999).peak_bytes == 9999


def test_too_many_operations_are_thinned_out_and_copies_and_waits_stay() -> None:
    ledger: list[Record] = []
    for step in range(3000):
        ledger.append(op(len(ledger), 512 if step != 1234 else 1 << 30))
        if step % 100 == 0:
            ledger += [up(len(ledger)), read(len(ledger) + 1)]
    made = check_timeline(timeline_of(ledger, "train", "usual", FILE, source=SOURCE))
    assert len(made.events) == MOST_EVENTS
    assert made.left_out == len(ledger) - MOST_EVENTS
    assert sum(event.kind == "sync" for event in made.events) == made.wait_count == 30
    assert sum(event.kind == "to device" for event in made.events) == 30
    assert max(event.live for event in made.events) == made.peak_bytes == 1 << 30
    places = [event.at for event in made.events if event.kind == "op"]
    assert max(b - a for a, b in itertools.pairwise(places)) < 10, "the picture has no holes"


def test_a_loop_over_elements_is_small_and_counts_all_its_waits() -> None:
    made = check_timeline(timeline_of([read(n) for n in range(20_000)], "train", "usual", FILE))
    assert (len(made.events), made.wait_count, made.waits) == (MOST_EVENTS, 20_000, {4: 20_000})


def test_long_names_leave_room_for_fewer_events() -> None:
    ledger = [Sync(n, 0.0, at(1), f"{n}".rjust(500, "é"), False) for n in range(4000)]
    made = check_timeline(timeline_of(ledger, "t" * 500, "usual", FILE, source=["x" * 500]))
    assert len(encode_timeline(made)) <= LARGEST
    assert 200 < len(made.events) < MOST_EVENTS
    assert all(len(text) == LONGEST for text in (made.function, made.lines[1], made.events[0].name))


def test_only_the_busiest_lines_travel() -> None:
    ledger: list[Record] = [op(n, 0, n % 500 + 1) for n in range(1000)]
    ledger.append(read(1000, 500))
    made = check_timeline(
        timeline_of(ledger, "train", "usual", FILE, source=[f"line {n}" for n in range(1, 501)])
    )
    assert len(made.lines) == MOST_LINES
    assert made.lines[500] == "line 500", "it made the host wait"


def test_a_text_that_cannot_be_encoded_is_sent_all_the_same() -> None:
    ledger = [Forward(0, 0.0, at(1), "Net\ud800", True, True, False, (), 0)]
    assert check_timeline(timeline_of(ledger, "train", "usual", FILE)).events[0].name == "Net?"


def test_nothing_is_a_timeline_too() -> None:
    assert check_timeline(timeline_of([], "train", "usual", FILE)).events == []


EVENT = TimelineEvent("op", 0, 1, 1, True, False, 1, "add")
GOOD = Timeline("f", "usual", "cuda", [EVENT], counts={"op": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": [EVENT, EVENT], "counts": {"op": 2}},
        {"counts": {"op": 2}},
        {"events": [msgspec.structs.replace(EVENT, name="x" * 101)]},
        {"events": [msgspec.structs.replace(EVENT, kind="mystery")]},
        {"events": [msgspec.structs.replace(EVENT, live=-1)]},
        {"events": [msgspec.structs.replace(EVENT, line=0)]},
        {"events": [msgspec.structs.replace(EVENT, bytes=1 << 70)]},
        {
            "events": [msgspec.structs.replace(EVENT, at=n) for n in range(1501)],
            "counts": {"op": 1501},
        },
        {
            "events": [msgspec.structs.replace(EVENT, at=n, name="é" * 100) for n in range(700)],
            "counts": {"op": 700},
        },
        {"lines": {n + 1: "" for n in range(61)}},
        {"lines": {1: object()}},
        {"function": "f\ud800"},
        {"peak_bytes": -5},
    ],
)
def test_what_no_child_of_ours_would_send_is_refused(wrong: dict[str, object]) -> None:
    assert check_timeline(GOOD) == GOOD
    with pytest.raises(BadTimeline):
        check_timeline(msgspec.structs.replace(GOOD, **wrong))


def test_no_torch_is_needed() -> None:
    code = "import sys, virtual_cuda.ledger.timeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
