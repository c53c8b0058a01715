"""A browser, and pages to open in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
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
    """Chromium, without a window.

    Its driver keeps a loop running in this thread, which other tests may want.
    """
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (found := shutil.which(name))
        ),
        "",
    )
    if not path:
        pytest.skip("there is no chromium on this machine")
    with driver.sync_playwright() as playwright:
        # In a container there is no sandbox to be had for root; the pages are ours.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


WINDOW = MappingProxyType({"width": 1280, "height": 720})


class Visit:
    """A file in a window, and everything that went wrong or out of it."""

    def __init__(self, page: Any, file: Path, fragment: str = "") -> None:
        self.page = page
        self.said: list[str] = []
        self.requests: list[str] = []
        self.hearing = {
            "console": lambda message: self.said.append(message.text),
            "pageerror": lambda error: self.said.append(str(error)),
            "dialog": lambda dialog: (
                self.said.append(f"dialog: {dialog.message}"),
                dialog.dismiss(),
            ),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, heard in self.hearing.items():
            page.on(event, heard)
        page.goto(file.as_uri() + fragment)

    def leave(self) -> None:
        self.page.goto("about:blank")
        for event, heard in self.hearing.items():
            self.page.remove_listener(event, heard)


@pytest.fixture(scope="module")
def windows(browser: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Contexts by their options, with their free windows: a new one takes four times as long as a
    page in it.
    """
    return {}


@pytest.fixture
def visit(
    browser: Any, windows: dict[str, tuple[Any, list[Any]]]
) -> Iterator[Callable[..., Visit]]:
    """Opens a file in a window of this size and theme.

    Other options are those of a browser's context.
    """
    visits = []

    def opened(
        file: Path,
        fragment: str = "",
        viewport: Mapping[str, int] = WINDOW,
        color_scheme: str = "light",
        **options: Any,
    ) -> Visit:
        way = repr(sorted(options.items()))
        if way not in windows:
            windows[way] = browser.new_context(**options), []
        context, free = windows[way]
        page = free.pop() if free else context.new_page()
        page.set_viewport_size(dict(viewport))
        page.emulate_media(media="null", color_scheme=color_scheme)
        visits.append((Visit(page, file, fragment), free))
        return visits[-1][0]

    yield opened
    for each, free in visits:
        each.leave()
        free.append(each.page)
