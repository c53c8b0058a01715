"""Prints pages as PDF, all of them with one browser, which is told what to do through pipes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from gpudojo.model.errors import CannotReport
from gpudojo.model.results_file import replacing_file

BROWSERS: Final = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
SECONDS_FOR_PDF: Final = 120
READ_AT_ONCE: Final = 1 << 16
Paper = Literal["a4", "letter"]


class _Size(NamedTuple):
    """A sheet of paper, in inches."""

    width: float
    height: float


SIZES: Final[dict[Paper, _Size]] = {"a4": _Size(8.27, 11.69), "letter": _Size(8.5, 11.0)}
MARGIN: Final = 0.5  # inches


def find_browser() -> str:
    """Return a browser that prints; raises CannotReport where there is none."""
    if sys.platform == "win32":
        raise CannotReport("PDF needs Linux or macOS; leave out --pdf for HTML pages, or use WSL")
    for name in BROWSERS:
        path = shutil.which(name)
        if path:
            return path
    raise CannotReport(
        "PDF needs Chromium, Chrome or Edge, and none is installed; leave out --pdf for HTML pages"
    )


def _number_files(its_input: int, its_output: int) -> None:
    """Give two open files the numbers 3 and 4, in the process that will be the browser."""
    first = os.dup(its_input)
    second = os.dup(its_output)
    while min(first, second) <= 4:  # they must not be closed by what follows
        first, second = os.dup(first), os.dup(second)
    os.dup2(first, 3)
    os.dup2(second, 4)


class PdfPrinter:
    """A browser that prints one page after another. `started_printer` makes and ends it."""

    def __init__(self, browser: str, folder: Path, paper: Paper) -> None:
        """Start the browser with a profile in the folder. Raises OSError where it cannot run."""
        self.browser = browser
        self.folder = folder
        self.paper = SIZES[paper]
        self._received = b""
        self._last_id = 0
        # The browser reads from its file 3 and writes to its file 4.
        its_input, self._to_browser = os.pipe()
        self._from_browser, its_output = os.pipe()
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={folder}/profile",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # which Chromium does not have for root
        try:
            self._process = subprocess.Popen(
                command,
                preexec_fn=lambda: _number_files(its_input, its_output),
                pass_fds=(3, 4),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(its_input)
            os.close(its_output)
        self._session = ""

    def open_tab(self) -> None:
        """Open the tab in which all pages are shown. Raises CannotReport and OSError."""
        target = self._ask("Target.createTarget", {"url": "about:blank"})
        about = {"targetId": target["targetId"], "flatten": True}
        self._session = self._ask("Target.attachToTarget", about)["sessionId"]
        self._ask("Page.enable", {})

    def print_page(self, text: str, target: Path) -> Path:
        """Write a page as PDF, and return its path.

        `text` is the page's HTML. Folders are made as needed. Raises CannotReport where the browser
        fails, and OSError where a file cannot be written.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        page = self.folder / "page.html"
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
        try:
            self._ask("Page.navigate", {"url": page.as_uri()}, until="Page.loadEventFired")
            options = {
                "paperWidth": self.paper.width,
                "paperHeight": self.paper.height,
                "marginTop": MARGIN,
                "marginBottom": MARGIN,
                "marginLeft": MARGIN,
                "marginRight": MARGIN,
                "printBackground": True,
            }
            printed = self._ask("Page.printToPDF", options)
        except (CannotReport, OSError) as error:
            raise CannotReport(f"{self.browser} could not print {target.name}: {error}") from None
        with replacing_file(target, lasting=False) as file:
            file.write(base64.b64decode(printed["data"]))
        return target

    def _ask(self, method: str, parameters: dict[str, Any], until: str = "") -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result.

        With `until`, wait for that event, too. Raises CannotReport for an error, and where the
        browser ended or does not answer; OSError where it cannot be written to.
        """
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to_browser, data) :]
        result: dict[str, Any] | None = None
        happened = not until
        deadline = time.monotonic() + SECONDS_FOR_PDF
        while result is None or not happened:
            answer = self._receive(deadline)
            if answer.get("method") == until:
                happened = True
            if answer.get("id") != self._last_id:
                continue
            if "error" in answer:
                raise CannotReport(str(answer["error"].get("message", "it refused")))
            result = answer["result"]
        return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message of the browser. Raises CannotReport where none comes in time."""
        while b"\0" not in self._received:
            seconds = deadline - time.monotonic()
            ready, _, _ = select.select([self._from_browser], [], [], max(seconds, 0))
            if not ready:
                raise CannotReport(f"it did not answer within {SECONDS_FOR_PDF} s")
            data = os.read(self._from_browser, READ_AT_ONCE)
            if not data:
                raise CannotReport("it ended")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def close(self) -> None:
        """End the browser."""
        os.close(self._to_browser)  # at the end of its input it ends itself
        os.close(self._from_browser)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def started_printer(paper: Paper) -> Iterator[PdfPrinter]:
    """Give a printer, whose browser ends with the block.

    Raises CannotReport where no browser is installed or it does not start, and OSError.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="dojo-feedback-", ignore_cleanup_errors=True) as folder:
        printer = PdfPrinter(browser, Path(folder), paper)
        try:
            try:
                printer.open_tab()
            except (CannotReport, OSError) as error:
                raise CannotReport(f"{browser} could not be started: {error}") from None
            yield printer
        finally:
            printer.close()
