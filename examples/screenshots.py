"""Takes the README's two pictures of a report: grades the example class and makes its pages.

    python examples/screenshots.py              the README's two, in examples/
    python examples/screenshots.py --all DIR    both pages at four widths, in both themes

Needs chromium, and playwright from the extra `dev`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from gpudojo.authoring.sample_class import (
    SampleSubmission,
    hand_in,
    read_corpus,
    sample_submissions,
)
from gpudojo.classes.class_grading import ClassGrading
from gpudojo.classes.display import Display
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.report.writing import ReportOptions, write_report
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
STUDENTS = 40
WAITING = "student-41"  # copies every batch back by itself: its picture is full of walls
MARKERS = (b"# BEGIN SOLUTION", b"# END SOLUTION")
WIDTHS, THEMES = (360, 800, 1400, 1920), ("light", "dark")


def report(folder: Path) -> Path:
    """A class made up from the repository's own solutions, graded here."""

    handed_in, out = folder / "class", folder / "graded"
    handed_in.mkdir()
    for made in sample_submissions(read_corpus(ROOT, "day8"), STUDENTS, seed=8, hostile=0):
        hand_in(made, handed_in)
    wrong = ROOT / "tests/day8/wrong/08_minimizing_transfers/copied_every_batch.py"
    solved = {path.name: without_markers(path) for path in (ROOT / "reference/day8").glob("*.py")}
    solved["08_minimizing_transfers.py"] += b"\n\n" + wrong.read_bytes()
    hand_in(SampleSubmission(WAITING, solved, "folder"), handed_in)
    asked = GradingOptions(
        submissions=[handed_in],
        out=out,
        reference=ROOT / "reference" / "day8",
        secret="pictures",
        jobs=2,
    )
    ClassGrading(asked, Display(None)).run()
    write_report(ReportOptions(out, folder / "report"), print)
    return folder / "report"


def without_markers(path: Path) -> bytes:
    """A solution as a student would have it."""
    return b"".join(
        line for line in path.read_bytes().splitlines(True) if line.strip() not in MARKERS
    )


def readme(browser: Any, pages: Path) -> None:
    """The class from its top; the student's page where the code is drawn."""
    page = browser.new_page(viewport={"width": 1400, "height": 1600}, color_scheme="light")
    page.goto((pages / "index.html").as_uri())
    page.screenshot(path=ROOT / "examples" / "report-class.png")
    page.set_viewport_size({"width": 1200, "height": 940})
    page.goto((pages / "students" / f"{WAITING}.html").as_uri())
    page.locator("h3", has_text="predict").evaluate("each => each.scrollIntoView()")
    page.screenshot(path=ROOT / "examples" / "report-student.png")


def gallery(browser: Any, pages: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, file in (
        ("class", pages / "index.html"),
        ("student", pages / "students" / f"{WAITING}.html"),
    ):
        for width in WIDTHS:
            for theme in THEMES:
                page = browser.new_page(
                    viewport={"width": width, "height": 900}, color_scheme=theme
                )
                page.goto(file.as_uri())
                page.screenshot(path=target / f"{name}-{width}-{theme}.png", full_page=True)
                page.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", type=Path, metavar="DIR")
    chosen = parser.parse_args().all
    path = next(
        (found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None
    )
    if path is None:
        parser.error("there is no chromium on this machine")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        pages = report(Path(folder))
        if chosen:
            gallery(browser, pages, chosen)
        else:
            readme(browser, pages)
        browser.close()


if __name__ == "__main__":
    main()
