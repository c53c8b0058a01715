"""Grading in the terminal: progress while it runs, and a summary at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gpudojo.classes.class_tally import ClassTally
from gpudojo.classes.result_writing import RULES_CHANGED
from gpudojo.classes.runners import GradingTask
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.errors import printable_text
from gpudojo.model.results import SubmissionStatus
from gpudojo.sandbox.layers import describe_layers, missing_layers
from gpudojo.submissions.entries import IgnoredPath

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from gpudojo.classes.class_grading import GradedClass

LINE_SECONDS: Final = 5.0  # between two lines where there is no terminal
SLOWEST_SHOWN: Final = 3  # of the submissions under way
IGNORED_SHOWN: Final = 10
LINES_OF_LIST: Final = 20
BAR_WIDTH: Final = 30
INDENT: Final = " " * 7


class Display:
    """Shows how grading goes, as a `Progress`; used as a context while it runs.

    In a terminal it is a picture that changes, elsewhere a line from time to time. Without a
    console nothing is shown.
    """

    def __init__(self, console: Console | None) -> None:
        self.console = console
        self.count = 0
        self.done = 0
        self.known = 0
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
        self.count = count
        self.known = known
        text = _count_of(count, "submission")
        if known:
            text += f", {known} already run"
        self._print_text(text)
        for each in ignored[:IGNORED_SHOWN]:
            self._print_text(f"ignored: {each.path.name}: {each.reason}")
        if len(ignored) > IGNORED_SHOWN:
            self._print_text(f"ignored: {len(ignored) - IGNORED_SHOWN} more")

    def report_preparation(self, what: str) -> None:
        self.doing = what
        self._print_text(what)

    def report_isolation(self, layers: dict[str, str]) -> None:
        self.doing = "grading"
        self._start_of_grading = time.monotonic()
        self._print_text(describe_layers(layers), style="yellow" if missing_layers(layers) else "")

    def report_running(self, tasks: Sequence[GradingTask]) -> None:
        self.tasks = tasks
        self._print_line_if_due()

    def report_verdict(self, submission: str, status: SubmissionStatus, ran: bool) -> None:
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
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_text(self, text: str, style: str = "") -> None:
        """Print a text as it is: what names of students hold is no markup, and does nothing."""
        if self.console is not None:
            text = printable_text(text, keep="\n")
            self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _print_line_if_due(self) -> None:
        """Print how far grading is, where there is no terminal, and not too often."""
        if self._live is not None or not self._start_of_grading or self.done >= self.count:
            return
        now = time.monotonic()
        if now - self._time_of_line < LINE_SECONDS:
            return
        self._time_of_line = now
        line = f"{self.done}/{self.count} graded{self._describe_speed()}"
        slowest = self._slowest_tasks()
        if slowest:
            line += f"; running: {', '.join(slowest)}"
        self._print_text(line)

    def _describe_speed(self) -> str:
        """Submissions a second and the time that is left, to be appended. Empty at first."""
        seconds = time.monotonic() - self._start_of_grading
        if self._ran < 3 or seconds <= 0:
            return ""
        rate = self._ran / seconds
        left = (self.count - self.done) / rate
        return f", {rate:.1f}/s, {_seconds_in_words(left)} left"

    def _slowest_tasks(self) -> list[str]:
        """Names and seconds of those that have run longest, of more than a second."""
        now = time.monotonic()
        slowest = []
        for task in sorted(self.tasks, key=lambda task: task.began)[:SLOWEST_SHOWN]:
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

        seconds = time.monotonic() - self._start
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(f"{self.done}/{self.count}", style="bold"),
            ProgressBar(total=max(self.count, 1), completed=self.done, width=BAR_WIDTH),
            Text(f"{_seconds_in_words(seconds)}{self._describe_speed()}"),
        )
        lines: list[RenderableType] = [bar]
        lines.append(Text(_counts_of_statuses(self.statuses) or self.doing, style="dim"))
        slowest = self._slowest_tasks()
        if slowest:
            lines.append(Text(f"running: {', '.join(slowest)}", style="dim"))
        return Group(*lines)

    # At the end

    def print_summary(self, outcome: GradedClass) -> None:
        """Print scores, the most-failed checks and misconceptions, what changed, what to review.

        All that is known of the class is counted, and not only what was graded now.
        """
        if self.console is None:
            return
        tally = outcome.tally
        self._print_counts(outcome)
        self._print_distribution(tally)
        self._print_hardest_checks(tally)
        self._print_misconceptions(tally)
        if outcome.count < tally.statuses.total():
            self._print_list("Graded now", _indent_lines(tally.now))
        self._print_list("Changed", _indent_lines(map(str, outcome.changes)))
        self._print_list(RULES_CHANGED, _indent_lines(tally.settled))
        gone = "Gone: the files are no longer there, the results are kept"
        self._print_list(gone, _indent_lines(tally.gone))
        self._print_list("Not on the roster", _indent_lines(outcome.unmatched))
        self._print_list("Settings and files to look at", _indent_lines(outcome.notices))
        reviews = [f"{review.called}: {review.reason}" for review in tally.review]
        not_listed = tally.reviews - len(tally.review)
        self._print_list("Needs review", _indent_lines(reviews), not_listed)

    def _print_counts(self, outcome: GradedClass) -> None:
        """Print how many there are of each status, how many ran, and what is special about some."""
        tally = outcome.tally
        are_students = tally.shared or "absent" in tally.statuses
        whole = _count_of(tally.statuses.total(), "student" if are_students else "submission")
        rate = ""
        if outcome.ran > 1 and outcome.seconds > 0:
            rate = f" ({outcome.ran / outcome.seconds:.1f}/s)"
        graded = f"{outcome.ran} graded in {_seconds_in_words(outcome.seconds)}{rate}"
        self._print_text(
            f"\n{whole}: {_counts_of_statuses(tally.statuses)}. {graded}.", style="bold"
        )
        counts = {
            "late": tally.late,
            "with overrides": tally.overridden,
            "still to grade by hand (0 points until then)": tally.to_grade,
        }
        texts = [f"{count} {what}" for what, count in counts.items() if count]
        if texts:
            self._print_text(f"{', '.join(texts)}.")

    def _print_distribution(self, tally: ClassTally) -> None:
        """Print the mean and a bar for each tenth of the points."""
        if not tally.shares:
            return
        title = "Scores in percent"
        if tally.scaled:
            title = "Published points in percent, of those who handed in"
        mean = sum(tally.shares) / len(tally.shares)
        self._print_text(f"\n{title}: mean {mean:.1f}", style="bold")
        tenths = Counter(min(int(share // 10), 9) for share in tally.shares)
        most = max(tenths.values())
        for tenth in range(10):
            count = tenths[tenth]
            last = 100 if tenth == 9 else tenth * 10 + 9
            name = f"{tenth * 10:>3}–{last}"
            bar = "█" * round(BAR_WIDTH * count / most)
            self._print_text(f"{name:>8}  {bar} {count or ''}".rstrip())

    def _print_hardest_checks(self, tally: ClassTally) -> None:
        """Print the checks that most students missed."""
        hardest = tally.statistics.hardest[:5]
        if not hardest:
            return
        lines = [f"{'failed':>8} {'absent':>7} {'attempted':>10}"]
        for check in hardest:
            lines.append(f"{check.failed:>8} {check.absent:>7} {check.attempted:>10}  {check.id}")
        self._print_list("Most-missed checks", lines)

    def _print_misconceptions(self, tally: ClassTally) -> None:
        """Print the misconceptions that most submissions show."""
        lines = []
        for id_, count in tally.mistakes.most_common(5):
            misconception = misconceptions().get(id_)
            lines.append(f"{count:>5}  {misconception.name if misconception else id_}")
        self._print_list("Most common misconceptions", lines)

    def _print_list(self, title: str, lines: Sequence[str], not_listed: int = 0) -> None:
        """Print a list, if there is anything in it, and how many more there are."""
        if not lines:
            return
        self._print_text(f"\n{title}", style="bold")
        for line in lines[:LINES_OF_LIST]:
            self._print_text(line)
        more = not_listed + max(0, len(lines) - LINES_OF_LIST)
        if more:
            self._print_text(f"{INDENT}… and {more} more: see results.csv")


def _indent_lines(lines: Iterable[str]) -> list[str]:
    return [f"{INDENT}{line}" for line in lines]


def _count_of(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _counts_of_statuses(statuses: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in statuses.most_common())


def _seconds_in_words(seconds: float) -> str:
    """Seconds in words: 5.0 s, or 1:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
