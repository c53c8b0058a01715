"""A browser, and pages to open in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpudojo.report.writing import ReportOptions, write_report

from tests.gpudojo.report.classes import sixty
from tests.sharing import once


@pytest.fixture(scope="session")
def class_of_sixty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the class, with the records of its runs beside them."""
    return once(tmp_path_factory, "sixty", sixty)


@pytest.fixture(scope="session")
def pages(class_of_sixty: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its report."""

    def make(out: Path) -> Path:
        write_report(ReportOptions(class_of_sixty, out), print)
        return out

    return once(tmp_path_factory, "pages", make)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window. Its driver keeps a loop running in this thread, which other tests may want."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
    )
    if not path:
        pytest.skip("there is no chromium on this machine")
    with driver.sync_playwright() as playwright:
        # In a container there is no sandbox to be had for root; the pages are ours.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """One page in one window, and everything that went wrong or out of it."""

    def __init__(self, context: Any, file: Path, fragment: str = "") -> None:
        self.page = context.new_page()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri() + fragment)


@pytest.fixture(scope="module")
def contexts(browser: Any) -> dict[str, Any]:
    """One for each way of looking: to make a new one takes longer than to open a page."""
    return {}


@pytest.fixture
def visit(browser: Any, contexts: dict[str, Any]) -> Iterator[Callable[..., Visit]]:
    """Opens a file; options are those of a browser's context."""
    visits = []

    def opened(file: Path, fragment: str = "", **options: Any) -> Visit:
        way = repr(sorted(options.items()))
        if way not in contexts:
            contexts[way] = browser.new_context(**options)
        visits.append(Visit(contexts[way], file, fragment))
        return visits[-1]

    yield opened
    for each in visits:
        each.page.close()
