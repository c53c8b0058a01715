"""Grading in the terminal: progress while it runs. The summary at the end is `class_summary`'s."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gpudojo.classes.console_texts import (
    print_text,
    seconds_in_words,
    statuses_in_words,
)
from gpudojo.classes.runners import GradingTask
from gpudojo.model.errors import printable_text
from gpudojo.model.results import SubmissionStatus
from gpudojo.sandbox.layers import describe_layers, missing_layers
from gpudojo.submissions.entries import IgnoredPath

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

LINE_SECONDS: Final = 5.0  # between two lines where there is no terminal
SLOWEST_SHOWN: Final = 3  # of the submissions under way
IGNORED_SHOWN: Final = 10
BAR_WIDTH: Final = 30
LEAST_RUNS: Final = 3  # after which a speed can be told


class Display:
    """Shows how grading goes, as a `Progress`; used as a context while it runs.

    In a terminal it is a picture that changes, elsewhere a line from time to time. Without a
    console nothing is shown.
    """

    def __init__(self, console: Console | None) -> None:
        """Show nothing yet, and without a console nothing at all; the time counts from now on."""
        self.console = console
        self.count = 0  # of submissions
        self.done = 0
        self.known = 0  # that need not run
        self.doing = "looking for submissions"
        self.tasks: Sequence[GradingTask] = ()
        self.statuses: Counter[str] = Counter()
        self._start = time.monotonic()
        self._start_of_grading = 0.0  # 0: not yet
        self._ran = 0
        self._live: Live | None = None
        self._time_of_line = 0.0

    # Progress

    def report_submissions(self, count: int, known: int, ignored: Sequence[IgnoredPath]) -> None:
        """Print how many were handed in, and the first paths that are ignored.

        Earlier attempts that are graded again are among them. How many are ignored beyond those is
        printed, too. `known` counts those that need not run. Both counts are remembered.
        """
        self.count = count
        self.known = known
        text = f"{count} handed in"
        if known:
            text += f", {known} already run"
        print_text(self.console, text)
        for each in ignored[:IGNORED_SHOWN]:
            print_text(self.console, f"ignored: {each.path.name}: {each.reason}")
        not_shown = len(ignored) - IGNORED_SHOWN
        if not_shown > 0:
            print_text(self.console, f"ignored: {not_shown} more")

    def report_preparation(self, what: str) -> None:
        """Print what takes a while, and show it until grading begins."""
        self.doing = what
        print_text(self.console, what)

    def report_isolation(self, layers: dict[str, str]) -> None:
        """Print which layers of isolation hold. From now on a speed can be told."""
        self.doing = "grading"
        self._start_of_grading = time.monotonic()
        style = ""
        if missing_layers(layers):
            style = "yellow"
        print_text(self.console, describe_layers(layers), style)

    def report_running(self, tasks: Sequence[GradingTask]) -> None:
        """Note what runs, and print a line if one is due."""
        self.tasks = tasks
        self._print_line_if_due()

    def report_verdict(self, submission: str, status: SubmissionStatus, ran: bool) -> None:
        """Count a verdict, and print a line if one is due. `ran` tells whether it was run now."""
        self.done += 1
        self._ran += ran
        self.statuses[str(status)] += 1
        self._print_line_if_due()

    # While it runs

    def __enter__(self) -> Display:
        """Show the picture, if there is a terminal."""
        if self.console is not None and self.console.is_terminal:
            from rich.live import Live

            self._live = Live(
                console=self.console,
                refresh_per_second=8,
                transient=True,
                get_renderable=self._make_picture,
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop drawing the progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_line_if_due(self) -> None:
        """Print how far grading is, where there is no terminal, and not too often.

        Nothing is printed before the first submission can be judged, and after the last one.
        """
        if self._live is not None:
            return
        if not self._start_of_grading or self.done >= self.count:
            return
        now = time.monotonic()
        if now - self._time_of_line < LINE_SECONDS:
            return
        self._time_of_line = now
        line = f"{self.done}/{self.count} graded{self._speed_and_rest()}"
        slowest = self._slowest_tasks()
        if slowest:
            line += f"; running: {', '.join(slowest)}"
        print_text(self.console, line)

    def _speed_and_rest(self) -> str:
        """Submissions a second and the time that is left, to be appended. Empty at first."""
        seconds = time.monotonic() - self._start_of_grading
        if self._ran < LEAST_RUNS or seconds <= 0:
            return ""
        rate = self._ran / seconds
        seconds_left = (self.count - self.done) / rate
        return f", {rate:.1f}/s, {seconds_in_words(seconds_left)} left"

    def _slowest_tasks(self) -> list[str]:
        """Names and seconds of those that have run longest, if it is a second or more.

        At most SLOWEST_SHOWN, the longest first.
        """
        now = time.monotonic()
        by_age = sorted(self.tasks, key=lambda task: task.began)
        slowest = []
        for task in by_age[:SLOWEST_SHOWN]:
            seconds = now - task.began
            if seconds >= 1.0:
                slowest.append(f"{printable_text(task.name)} ({seconds:.0f} s)")
        return slowest

    def _make_picture(self) -> RenderableType:
        """The bar, the counts and the slowest submissions, as they are now."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # The first line.
        seconds = seconds_in_words(time.monotonic() - self._start)
        count = Text(f"{self.done}/{self.count}", style="bold")
        total = max(self.count, 1)
        bar = ProgressBar(total=total, completed=self.done, width=BAR_WIDTH)
        times = Text(f"{seconds}{self._speed_and_rest()}")
        first_line = Table.grid(padding=(0, 1))
        first_line.add_row(count, bar, times)
        # The lines below.
        counts = statuses_in_words(self.statuses)
        lines: list[RenderableType] = [first_line]
        lines.append(Text(counts or self.doing, style="dim"))
        slowest = self._slowest_tasks()
        if slowest:
            lines.append(Text(f"running: {', '.join(slowest)}", style="dim"))
        return Group(*lines)
