"""The layout of the pages on a phone, in a large window and on paper, in every theme."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpudojo.model.results import Grade, RosterRow, SubmissionRow, SubmissionStatus, Timing
from gpudojo.model.results_file import write
from gpudojo.report.writing import ReportOptions, write_report

from tests.gpudojo.report.classes import F, P, check, exercise, header
from tests.gpudojo.report.conftest import Visit

Open = Callable[..., Visit]
PHONE = {"viewport": {"width": 360, "height": 740}}
LARGE = {"viewport": {"width": 1400, "height": 900}}
UNFOLDED = "document.querySelectorAll('details').forEach(each => each.open = true)"


def student(pages: Path, number: int) -> Path:
    return pages / "students" / f"student-{number}.html"


def box(page: Any, selector: str) -> dict[str, float]:
    found: dict[str, float] = page.locator(selector).first.bounding_box()
    return found


def right(found: dict[str, float]) -> float:
    return found["x"] + found["width"]


@pytest.mark.parametrize(
    "which", ["index.html", "students/student-15.html", "students/student-27.html"]
)
def test_nothing_sticks_out_of_a_phone(visit: Open, pages: Path, which: str) -> None:
    page = visit(pages / which, **PHONE).page
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_phone_needs_no_sideways_scrolling(visit: Open, pages: Path) -> None:
    page = visit(pages / "index.html", **PHONE).page
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    wide = "all => all.filter(box => box.scrollWidth > box.clientWidth).map(box => box.className)"
    assert page.eval_on_selector_all(".scroll:not(.tall), pre", wide) == []
    link = page.locator("#mistakes table a").first.bounding_box()
    assert link["x"] + link["width"] <= 360
    # The table of everybody is wider than a phone; whose row it is stays in sight.
    page.locator(".tall").evaluate("box => { box.scrollLeft = 200 }")
    name = page.locator("#class tbody th").first.bounding_box()
    assert 0 <= name["x"] < 40
    page = visit(student(pages, 15), **PHONE).page
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.eval_on_selector_all(".scroll, pre", wide) == []
    for lane in page.locator(".lanes span").all():
        assert lane.bounding_box()["x"] >= lane.locator("xpath=..").bounding_box()["x"]


def test_names_stay_visible_in_a_small_window(visit: Open, pages: Path) -> None:
    page = visit(pages / "index.html", viewport={"width": 800, "height": 900}).page
    page.locator("#class").evaluate(
        "table => { table.style.width = '1200px' }"
    )  # as with twelve exercises
    page.locator(".tall").evaluate("box => { box.scrollLeft = 300 }")
    assert page.locator(".tall").evaluate("box => box.scrollLeft") == 300
    assert box(page, "#class tbody th")["x"] == pytest.approx(box(page, ".tall")["x"], abs=2)


def test_a_class_with_all_columns_fits_a_laptop(visit: Open, tmp_path: Path) -> None:
    """Twelve exercises, a scale, sections, and late submissions that need review."""
    stems = [f"{number:02}_exercise" for number in range(1, 13)]
    late = Timing(late=True, late_seconds=500_000, penalty=10.25)
    rows = [
        SubmissionRow(
            f"surnamegiven{n}",
            SubmissionStatus.GRADED,
            54.0,
            144.0,
            [
                exercise(stem, stem, check(stem, "f", "c", P, 9.25), check(stem, "g", "c", F, 9.25))
                for stem in stems
            ],
            roster=RosterRow(str(n), f"Given-Second Surname{n}", section=f"CS8-0{n}"),
            timing=late,
            seconds=1.0,
            peak_bytes=300 << 20,
            needs_human=["late"],
            grade=Grade(12.75, 20.0),
        )
        for n in (1, 2)
    ]
    rows = [msgspec.structs.replace(row, score=111.0, max_score=222.0) for row in rows]
    write(
        tmp_path / "results.json",
        msgspec.structs.replace(header(), max_score=222.0, scale=20.0),
        rows,
    )
    write_report(ReportOptions(tmp_path, tmp_path / "out", students=False), print)
    page = visit(tmp_path / "out" / "index.html", viewport={"width": 1400, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.locator(".scroll:has(.sections)").evaluate(
        "box => box.scrollWidth <= box.clientWidth"
    )


def test_printed_pages_fit_the_paper(visit: Open, pages: Path) -> None:
    for which in ("index.html", "students/student-15.html"):
        page = visit(
            pages / which, viewport={"width": 718, "height": 1040}
        ).page  # A4 with a margin of a centimetre
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= 718


def test_printed_pages_unfold_what_is_to_be_read(visit: Open, pages: Path) -> None:
    page = visit(pages / "index.html").page
    example = page.locator(".example .why").first
    assert not example.is_visible()
    page.emulate_media(media="print")
    assert example.bounding_box()["height"] > 20
    # what passed, and the student's own code, would make twenty pages of three
    page = visit(student(pages, 18)).page
    page.emulate_media(media="print")
    assert not page.locator(".folded .checks").first.is_visible()
    assert not page.locator("#source").is_visible()


@pytest.mark.parametrize("width", [360, 800, 1400, 1920])
def test_text_in_charts_can_be_read(visit: Open, pages: Path, width: int) -> None:
    page = visit(pages / "index.html", viewport={"width": width, "height": 900}).page
    shown = page.locator("svg.histogram:visible, svg.scatter:visible")
    assert shown.count() == 2
    for chart in shown.all():
        scale = chart.bounding_box()["width"] / float(chart.get_attribute("viewBox").split()[2])
        assert 10 <= 12 * scale <= 15


def test_a_large_window_is_used(visit: Open, pages: Path) -> None:
    page = visit(pages / "index.html", **LARGE).page
    end = right(box(page, "#students"))
    for left, beside in (
        ("svg.histogram", "#scores .points"),
        ("#mistakes", "#checks"),
        ("svg.scatter", "#costs .slow"),
    ):
        one = box(page, left)
        other = box(page, beside)
        assert right(one) < other["x"]
        assert other["y"] < one["y"] + one["height"]
        assert right(other) == pytest.approx(end, abs=2)
    page = visit(student(pages, 15), **LARGE).page
    assert right(box(page, "nav[aria-label=Exercises]")) < box(page, "#first")["x"]


def test_claims_are_aligned_whatever_their_outcome(visit: Open, pages: Path) -> None:
    page = visit(student(pages, 25), **LARGE).page
    assert page.locator(".checks .failed").count() > 0
    assert page.locator(".checks .blocked").count() > 0
    assert page.locator(".checks .passed").count() > 0
    starts = page.eval_on_selector_all(
        ".claim > .badge + span", "all => all.map(e => e.getBoundingClientRect().x)"
    )
    assert max(starts) - min(starts) < 1


def test_timelines_are_as_high_on_a_phone(visit: Open, pages: Path) -> None:
    heights = []
    for options in (PHONE, LARGE):
        page = visit(student(pages, 15), **options).page
        page.evaluate(UNFOLDED)
        found = box(page, "svg.call")
        heights.append(found["height"])
        # The names of the lanes stand where the lanes are.
        lane = box(page, "svg.call .lane")
        name = box(page, ".lanes .host")
        assert lane["y"] < name["y"] + name["height"] / 2 < lane["y"] + lane["height"]
        assert right(name) < found["x"]
    assert heights[0] >= 150
    assert heights[0] == pytest.approx(heights[1], abs=1)


def test_a_stacked_table_is_still_a_table(visit: Open, pages: Path) -> None:
    page = visit(pages / "index.html", **PHONE).page
    name = box(page, "#review tbody th")
    why = box(page, "#review tbody td.wide")
    assert why["y"] > name["y"] + name["height"] / 2
    assert why["x"] == pytest.approx(name["x"], abs=1)
    said = page.locator("#review table").aria_snapshot()
    assert 'columnheader "why"' in said
    assert 'rowheader "student-19"' in said
    assert re.search(r'cell "look: line 10 waited 64 times; by student-19"', said)


def test_a_long_line_of_code_wraps_beside_its_number(visit: Open, pages: Path) -> None:
    page = visit(student(pages, 15), **PHONE).page
    marked = page.locator(".listing mark").first
    number = marked.locator(".n").bounding_box()
    lines = marked.evaluate(
        "mark => { const range = document.createRange(); range.selectNodeContents(mark.lastChild);"
        " return Array.from(range.getClientRects(), each => each.x) }"
    )
    assert len(lines) > 1
    assert min(lines) >= right(number) - 1


def test_paper_is_light_whatever_the_reader_s_theme(visit: Open, pages: Path) -> None:
    def colours(theme: str, medium: str) -> list[str]:
        page = visit(student(pages, 15), color_scheme=theme).page
        page.emulate_media(media=medium)
        read = """() => [
            'body', '.wait', '.tick.grad', '.to-device', '.bar', '.badge.failed', 'mark', '.area'
        ].flatMap(
            name => { const style = getComputedStyle(document.querySelector(name));
                      return [style.color, style.backgroundColor, style.fill, style.stroke] })"""
        found: list[str] = page.evaluate(read)
        return found

    assert colours("dark", "print") == colours("light", "print")
    assert colours("dark", "screen") != colours("light", "screen")


def test_a_printed_line_of_code_is_not_cut(visit: Open, pages: Path) -> None:
    page = visit(student(pages, 15), viewport={"width": 718, "height": 1040}).page
    page.locator(".listing mark").first.evaluate(
        "mark => { mark.lastChild.data += ' + loss.item()'.repeat(9) }"
    )
    wider = "all => all.filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.eval_on_selector_all(".listing", wider) == 1, "on a screen it can be scrolled"
    page.emulate_media(media="print")
    assert page.eval_on_selector_all(".listing", wider) == 0


def test_a_mark_is_selected_near_the_pointer(visit: Open, pages: Path) -> None:
    page = visit(student(pages, 18), **LARGE).page
    page.evaluate(UNFOLDED)
    page.locator("svg.call").first.scroll_into_view_if_needed()
    copy = box(page, "svg.call .to-device")
    page.mouse.move(copy["x"] - 5, copy["y"] + copy["height"] / 2)
    assert page.locator("svg.call .to-device.on").count() == 1
    assert "copied to device" in page.locator(".walk p").first.text_content()


def test_tab_reaches_failures_first(visit: Open, pages: Path) -> None:
    page = visit(student(pages, 15), **LARGE).page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert (
        page.locator(":focus")
        .get_attribute("href")
        .startswith("#at-04_modifying_training_loop_gpu-train_epoch-")
    )
    page.keyboard.press("Enter")
    assert page.locator(".checks li:target").get_attribute("class") == "failed"
