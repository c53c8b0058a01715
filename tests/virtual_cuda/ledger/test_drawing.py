"""The picture in a terminal shows what happened, fits, and stays text. No torch."""

from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cuda.ledger import LineRow, draw_table
from virtual_cuda.ledger.texts import short_size, write_similar
from virtual_cuda.ledger.timeline import Timeline, TimelineEvent
from virtual_cuda.ledger.timeline_text import (
    NARROWEST,
    NOTHING_BESIDE,
    compare_with_reference,
    draw_timeline,
    mark_of,
    plain_lines,
    split_into_columns,
    timeline_legend,
)


def timeline(*told: tuple[str, int, int, bool, bool, int], **more: object) -> Timeline:
    """Of kind, bytes, line, grad, autocast and live."""
    events = [
        msgspec.convert([kind, at, size, line, grad, autocast, live, "x"], TimelineEvent)
        for at, (kind, size, line, grad, autocast, live) in enumerate(told)
    ]
    counts = {
        kind: sum(event.kind == kind for event in events)
        for kind in {event.kind for event in events}
    }
    waits: dict[int, int] = {}
    for event in events:
        if event.kind == "sync" and event.line:
            waits[event.line] = waits.get(event.line, 0) + 1
    peak = max((event.live for event in events), default=0)
    made = Timeline("train", "usual", "cuda", events, peak, counts=counts, waits=waits)
    return msgspec.structs.replace(made, **more)


SMALL = timeline(
    ("op", 0, 2, False, False, 512),
    ("to device", 2048, 2, False, False, 1024),
    ("upload sync", 0, 2, False, False, 1024),
    *[("op", 0, 3, True, False, 2048)] * 6,
    ("forward", 0, 3, True, False, 2048),
    ("op", 0, 3, True, True, 4096),
    ("op", 0, 3, False, True, 4096),
    ("backward", 0, 4, False, False, 4096),
    ("step", 0, 5, False, False, 2048),
    ("explicit sync", 0, 6, False, False, 2048),
    ("sync", 0, 7, False, False, 2048),
    to_device=2048,
    lines={7: "    total += loss.item()"},
)


def test_the_picture() -> None:
    assert plain_lines(draw_timeline(SMALL, 100)) == [
        "train: 1 wait, 16 events in its busiest call (scenario “usual”, on cuda)",
        "    host ────────F──BS┊│",
        "          ↓2 KiB      ┊│",
        "  device ·─••••••─◆◇──┊│",
        "  memory ▂▃▅▅▅▅▅▅▅███▅▅▅",
        "         peak 4 KiB   ↓ 1 copy, 2 KiB",
        "         1 × │ line 7: total += loss.item()",
        NOTHING_BESIDE,
    ]
    meanings = {meaning for line in draw_timeline(SMALL, 100) for _, meaning in line}
    assert meanings == {"", "wait", "copy", "grad", "no grad", "autocast", "pass", "memory"}
    for sign in "│║┊↓↑FBSs•·◆◇":
        assert sign in "".join(timeline_legend(100))


def test_yours_and_theirs() -> None:
    many = timeline(*[("sync", 0, 7, False, False, 0)] * 12)
    one = timeline(("sync", 0, 7, False, False, 0), to_host=4)
    assert (
        compare_with_reference(many, one)
        == "Your code: 12 waits (reference: 1), to the host 0 B (reference: 4 B)"
    )
    assert plain_lines(draw_timeline(many, 100, one))[-1] == compare_with_reference(many, one)


@pytest.mark.parametrize("width", [40, 70, 160])
def test_what_the_signs_mean_fits_too(width: int) -> None:
    assert max(map(len, timeline_legend(width))) <= width
    assert "   ".join(timeline_legend(width)) == timeline_legend(1000)[0]


def test_more_than_there_is_room_for() -> None:
    many = timeline(
        *[("op", 0, 3, True, False, n) for n in range(1000)],
        ("sync", 0, 7, False, False, 5),
        left_out=9,
    )
    drawn = plain_lines(draw_timeline(many, 80))
    first = drawn.index(next(line for line in drawn if line.startswith("    host")))
    heading = " ".join(drawn[:first])  # which goes on in a second line
    host, between, device, memory, *_ = drawn[first:]
    assert max(map(len, drawn[:first])) <= 80
    assert {len(line) for line in (host, between, device, memory)} <= {79, 80}
    assert host.endswith("─│")
    assert "9 of them not drawn" in heading
    loop = timeline(*[("sync", 0, 7, False, False, 5)] * 1500)
    drawn = plain_lines(draw_timeline(loop, 80))
    [host] = [line for line in drawn if line.startswith("    host")]
    assert host.count("║") == 71
    assert plain_lines(draw_timeline(loop, 80, loop))[-2] == "         1,500 × │ line 7"


def test_only_the_worst_lines_are_listed() -> None:
    waits = timeline(
        *[("sync", 0, line, False, False, 0) for line in range(1, 9) for _ in range(line)]
    )
    assert plain_lines(draw_timeline(waits, 80, waits))[-7:-1] == [
        *(f"         {line} × │ line {line}" for line in (8, 7, 6, 5, 4)),
        "         … and 3 lines more that made the host wait",
    ]


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\r\n", "\x9b31m", "\u202e", "\x07", "\0"])
def test_a_hostile_name_stays_text(hostile: str) -> None:
    text = f"a{hostile}b"
    made = timeline(
        ("sync", 0, 7, False, False, 0), function=text, scenario=text, device=text, lines={7: text}
    )
    shown = plain_lines(draw_timeline(made, 100, made))
    assert all(line.isprintable() for line in shown)
    assert "\N{REPLACEMENT CHARACTER}" in shown[0]
    assert "\N{REPLACEMENT CHARACTER}" in shown[-2]


KINDS = (
    "op",
    "to device",
    "to host",
    "between devices",
    "sync",
    "explicit sync",
    "upload sync",
    "forward",
    "memory",
)
EVENTS = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 1 << 40),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)


@given(st.lists(EVENTS, max_size=120), st.integers(1, 200))
def test_every_event_stands_in_one_column_in_order(
    told: list[tuple[str, int, int, bool, bool, int]], room: int
) -> None:
    made = timeline(*told)
    found = split_into_columns(made, room)
    assert len(found) <= room
    assert [event for column in found for event in column.events] == [
        e for e in made.events if mark_of(e) is not None
    ]
    assert max((column.live for column in found), default=0) == (made.peak_bytes if found else 0)
    lines = plain_lines(draw_timeline(made, room))
    assert all(len(line) <= max(room, NARROWEST) for line in lines)


def test_sizes_are_short() -> None:
    assert [short_size(n) for n in (0, 512, 1023, 1024, 1536, 1 << 20, 1023 << 20, 5 << 50)] == [
        *("0 B", "512 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "1023 MiB", "5120 TiB"),
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_a_table_is_as_wide_as_the_terminal_at_most_and_tells_every_copy_and_wait(
    width: int,
) -> None:
    cells = ("64 KiB", "2 KiB", "12", "1024", "132 KiB", "156 KiB")
    rows = [
        LineRow(7, "x = x.to(device)", cells),
        LineRow(1234, "loss = " + "model(" * 30, ("",) * 5 + ("9 KiB",)),
    ]
    lines = draw_table({"a/rather/long/path/to/train.py": rows}, cells, width)
    assert max(map(len, lines)) <= width
    for needed in (
        "7  x = x.to(device)",
        "64 KiB",
        "2 KiB",
        "12",
        "132 KiB",
        "to device",
        "waits",
        "total",
    ):
        assert any(needed in line for line in lines), needed
    assert ("156 KiB" in lines[1]) == (width >= 100), "what gives way to the code"
    without = [LineRow(7, "x += 1", ("", "", "", "3", "", "9 B"))]
    assert draw_table({"train.py": without}, without[0].cells, width)[0].split() == [
        "train.py",
        "ops",
        "peak",
    ]


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_an_output_without_the_signs_gets_similar_ones_in_their_places(encoding: str) -> None:
    lines = plain_lines(
        draw_timeline(
            timeline(("to device", 4096, 3, True, False, 4096), ("sync", 0, 5, True, True, 9)), 60
        )
    )
    drawn = "\n".join([*lines, *timeline_legend(60)])
    stream = io.TextIOWrapper(io.BytesIO(), encoding, newline="")
    write_similar(stream)
    stream.write(drawn)
    stream.seek(0)
    written = stream.read()
    assert len(written) == len(drawn)
    assert [a for a, b in zip(drawn, written, strict=True) if b == "?" != a] == []


def test_an_output_with_all_characters_stays_as_it_is() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    write_similar(stream, None)
    assert stream.errors == "strict"
