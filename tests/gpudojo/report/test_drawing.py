"""Charts, timelines, pseudonyms and formatted texts. Without a browser."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest
from gpudojo.model.results import CheckRow, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.report.charts import Bar, Dot, draw_bars, draw_histogram, draw_scatter
from gpudojo.report.people import Roll, nameless_author, patterns_to_hide, pseudonym_of
from gpudojo.report.records import SubmissionRecords, TimelinePair
from gpudojo.report.rendering import (
    count_phrase,
    format_duration,
    format_size,
    mark_code,
    visible_value,
)
from gpudojo.report.timeline_svg import timeline_svg, totals_of
from gpudojo.sandbox.protocol import Loaded
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_cuda.ledger.timeline import EventKind, Timeline, TimelineEvent

from tests.gpudojo.report.classes import LOOP, MEMORY, PIXELS, record, timeline

SECRET = b"s" * 32


def row(name: str, student: str | None = None, identifier: str | None = None) -> SubmissionRow:
    return SubmissionRow(
        name, SubmissionStatus.GRADED, 0, 0, student=student, identifier=identifier
    )


events = st.lists(
    st.builds(
        TimelineEvent,
        st.sampled_from(EventKind.__args__),  # type: ignore[attr-defined]
        st.just(0),
        st.integers(-(1 << 62), 1 << 62),
        st.none() | st.integers(1, 10_000_000),
        st.booleans(),
        st.booleans(),
        st.integers(0, 1 << 62),
        st.text(max_size=100),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(events, st.integers(0, 1 << 62), st.text(max_size=100))
def test_any_timeline_is_valid_svg(found: list[TimelineEvent], peak: int, text: str) -> None:
    """Every kind that a timeline can have, numbers of any size, no text that ends its element."""
    made = Timeline("f", text, text, found, peak, 0, dict.fromkeys(range(1, 9), text))
    for code in (True, False):
        svg = timeline_svg(made, text.replace("\x00", ""), peak, 1, code=code)
        if text.isprintable():
            assert ElementTree.fromstring(svg).tag == "svg"


def test_each_wait_and_each_copy_has_a_mark() -> None:
    svg = str(timeline_svg(timeline(12, "code"), "Yours", 9000, 1 << 20))
    assert svg.count('class="mark wait"') == 12
    assert svg.count('class="mark to-host"') == 12
    assert svg.count('class="mark to-device"') == 12
    assert "line 10: total += loss.item()" in svg
    assert "peak" in svg


def test_a_timeline_of_the_reference_shows_no_code() -> None:
    svg = str(timeline_svg(timeline(3, "the solution itself"), "Theirs", 9000, 1, code=False))
    assert "loss.item()" not in svg
    assert "line" not in svg.replace('class="lane"', "")


def test_wider_arrows_carry_more() -> None:
    def shaft(carried: int) -> float:
        event = TimelineEvent("to device", 0, carried, None, False, False, 0, "")
        svg = str(timeline_svg(Timeline("f", "s", "cuda", [event]), "x", 1, 1 << 30))
        path = svg.partition("mark to-device")[2].partition(' d="')[2]
        head, _, rest = path.partition("V")
        return float(rest.rpartition("H")[2].partition("V")[0]) - float(
            head.removeprefix("M").split()[0]
        )

    widths = [shaft(carried) for carried in (0, 1 << 10, 1 << 20, 1 << 30)]
    assert widths == sorted(widths)
    assert widths[-1] > 3 * widths[0]


def test_totals_are_put_into_words() -> None:
    said = totals_of(timeline(64, "code")).sentence
    assert said.startswith("the host waited for a value 64 times; 64 copies (")
    assert "192 operations" in said
    assert totals_of(timeline(0, "code")).waits == 0


def test_times_and_peaks_are_compared_with_the_reference() -> None:
    known = SubmissionRecords(record(1, "mine"), record(1, "theirs"))
    assert [(bar.label, bar.told) for bar in known.race_bars(PIXELS, "grayscale")] == [
        ("the loop", "20.00 ms"),
        ("yours", "1.00 ms"),
        ("the reference", "1.00 ms"),
    ]
    assert [bar.value for bar in known.peak_bars(MEMORY, "checkpointed")] == [
        224 << 10,
        137 << 10,
        137 << 10,
    ]
    nothing = SubmissionRecords(None, None)
    assert (nothing.race_bars(PIXELS, "grayscale"), nothing.peak_bars(MEMORY, "checkpointed")) == (
        [],
        [],
    )
    assert nothing.timeline_pair(LOOP, "train_epoch") == TimelinePair(None)


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), -1.0, 0, True, "1", None, 10**30, [1]])
def test_invalid_times_are_not_drawn(odd: object) -> None:
    mine = record(1, "mine")
    mine.functions[f"{PIXELS}::grayscale"].evidence.observations["probe"].facts["speed"][
        "student"
    ] = odd
    assert SubmissionRecords(mine, None).race_bars(PIXELS, "grayscale") == []


def test_charts_have_labels() -> None:
    assert 'aria-label="Score distribution. 0 to 1 points: 1; 9 to 10 points: 2"' in draw_histogram(
        [0, 9.5, 10], 10
    )
    assert "None." in draw_histogram([], 10)
    for made in (
        draw_histogram([], 0),
        draw_histogram([3.0], 0),
        draw_scatter([]),
        draw_scatter([Dot(0.0, 0, "graded")]),
        draw_bars("x", []),
    ):
        assert {each.tag for each in ElementTree.fromstring(f"<p>{made}</p>")} == {"svg"}
    assert "yours: 1 &lt; 2" in draw_bars("x", [Bar("yours", 1, "1 < 2")])


@settings(deadline=None)
@given(st.text(), st.text())
def test_invisible_characters_are_replaced(before: str, after: str) -> None:
    for mark in "\u202e\u2066\u200b\x1b\x00\u200f":
        text = str(visible_value(before + mark + after))
        assert mark not in text
    assert "<script" not in mark_code(f"{before}<script>`<script>`\n<script>{after}")


def test_sizes_counts_and_durations() -> None:
    assert mark_code("see `x < y`\n  a\n  b") == "see <code>x &lt; y</code><pre>  a\n  b</pre>"
    assert [format_size(n) for n in (0, 1023, 1536, 224 << 10, 3 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1.5 KiB",
        "224 KiB",
        "3.0 GiB",
    ]
    assert [count_phrase(n, "copy", "copies") for n in (0, 1, 2000)] == [
        "0 copies",
        "1 copy",
        "2,000 copies",
    ]
    assert [format_duration(s) for s in (0.0012, 0.25, 12.3)] == ["1.20 ms", "250 ms", "12.3 s"]


def test_no_two_share_a_page() -> None:
    roll = Roll(None)
    files = [
        roll.add_person(row(name)).file
        for name in ("Ada", "ada", "a/b", "a\\b", "..", "CON", "Ada-2", "\udcff")
    ]
    assert len({file.casefold() for file in files}) == len(files)
    assert all(Path(file).parts[0] == "students" and len(Path(file).parts) == 2 for file in files)


def test_a_pseudonym_depends_on_the_name_and_the_secret() -> None:
    assert pseudonym_of("ada", SECRET) == pseudonym_of("ada", SECRET)
    assert pseudonym_of("ada", SECRET) != pseudonym_of("ada", b"t" * 32)
    assert len({pseudonym_of(f"student-{n}", SECRET) for n in range(3000)}) == 3000


def test_names_are_hidden_in_texts_but_words_stay() -> None:
    person = Roll(SECRET).add_person(row("max_mustermann_4711", "Mustermann, Max", "4711"))
    said = person.hide_names(
        "Max wrote max(x) in max_mustermann_4711.py; MUSTERMANN, MAX has 4711 and maximum 14711"
    )
    assert said == (
        f"{person.shown} wrote max(x) in {person.shown}.py; {person.shown} has {person.shown} "
        "and maximum 14711"
    )
    assert (
        nameless_author(row("ada"), person).hide_names("by ada, in Canada")
        == "by somebody, in Canada"
    )
    assert patterns_to_hide(row(" ")) == ()


def test_lines_around_a_failure_are_dedented() -> None:
    def around(check: CheckRow, **lines: str) -> list[tuple[int, str, bool]]:
        mine = record(1, "mine")
        seen = mine.functions[f"{LOOP}::train_epoch"]
        assert seen.timeline is not None
        told = {int(number[1:]): text for number, text in lines.items()}
        drawn = msgspec.structs.replace(seen.timeline, lines=told)
        mine.functions[f"{LOOP}::train_epoch"] = msgspec.structs.replace(seen, timeline=drawn)
        mine.files["n.ipynb"] = Loaded("n.ipynb", 0.0, {}, [1, 9])
        return SubmissionRecords(mine, None).code_around(check)

    at_ten = CheckRow(f"{LOOP}::train_epoch::runs", "train_epoch", Outcome.FAILED, 0, 1, line=10)
    assert around(at_ten, n4="far", n9="    for x in y:", n10="        f(x)", n14="far") == [
        (9, "for x in y:", False),
        (10, "    f(x)", True),
    ]
    assert around(at_ten, n9="    for x in y:") == []
    assert around(at_ten, n10="two\nlines") == []
    # In a notebook the check counts in its cell, and lines of another cell are not around it.
    in_cell = msgspec.structs.replace(at_ten, file="n.ipynb", cell=2, line=2)
    assert around(in_cell, n8="of the first cell", n10="f(x)") == [(2, "f(x)", True)]
    assert around(msgspec.structs.replace(in_cell, cell=3), n10="f(x)") == []
