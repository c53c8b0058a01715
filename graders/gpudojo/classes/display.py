"""Progress and summary in the terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gpudojo.classes.gradebook import ClassTally
from gpudojo.classes.local_runner import GradingTask
from gpudojo.model.errors import printable
from gpudojo.model.results import SubmissionRow
from gpudojo.sandbox.layers import missing, sentence
from gpudojo.submissions.entries import IgnoredPath

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from gpudojo.classes.class_grading import GradedClass

EVERY: Final = 5.0  # seconds between two lines where there is no terminal
SHOWN: Final = 3  # of the submissions under way, the slowest
BAR: Final = 30
MOST: Final = 20  # lines of a list


class Display:
    """Shows progress in the terminal, and a summary at the end."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.count = self.done = self.known = 0
        self.doing = "looking for submissions"
        self.tasks: Sequence[GradingTask] = ()
        self.tally = ClassTally()
        self._began = time.monotonic()
        self._running = 0.0
        self._ran = 0
        self._live: Live | None = None
        self._spoken = 0.0

    # told by the grading

    def begins(self, count: int, known: int, ignored: Sequence[IgnoredPath]) -> None:
        self.count, self.known = count, known
        kept = f", {known} already run" if known else ""
        self._say(f"{count} submission{'s' * (count != 1)}{kept}")
        for one in ignored[:10]:
            self._say(f"ignored: {one.path.name}: {one.reason}")
        if len(ignored) > 10:
            self._say(f"ignored: {len(ignored) - 10} more")

    def prepares(self, what: str) -> None:
        self.doing = what
        self._say(what)

    def isolated(self, layers: dict[str, str]) -> None:
        self.doing = "grading"
        self._running = time.monotonic()
        self._say(sentence(layers), style="yellow" if missing(layers) else "")

    def under_way(self, tasks: Sequence[GradingTask]) -> None:
        self.tasks = tasks
        self._refresh()

    def graded(self, row: SubmissionRow, ran: bool) -> None:
        self.done += 1
        self._ran += ran
        self.tally.add(row)
        self._refresh()

    # while it runs

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self.quiet:
            from rich.live import Live

            self._live = Live(console=self.console, refresh_per_second=8, transient=True, get_renderable=self._picture)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, text: str, style: str = "") -> None:
        if not self.quiet:
            text = printable(text, keep="\n")
            self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live is not None or self.quiet:
            return
        now = time.monotonic()
        if now - self._spoken >= EVERY and self.done < self.count and self._running:
            self._spoken = now
            self._say(self._line())

    def _line(self) -> str:
        slowest = self._slowest()
        now = f"; running: {', '.join(slowest)}" if slowest else ""
        return f"{self.done}/{self.count} graded{self._speed()}{now}"

    def _speed(self) -> str:
        took = time.monotonic() - self._running
        if self._ran < 3 or took <= 0:
            return ""
        rate = self._ran / took
        left = (self.count - self.done) / rate
        return f", {rate:.1f}/s, {_time(left)} left"

    def _slowest(self) -> list[str]:
        now = time.monotonic()
        slow = sorted(self.tasks, key=lambda task: task.began)[:SHOWN]
        return [f"{printable(task.name)} ({now - task.began:.0f} s)" for task in slow if now - task.began >= 1.0]

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        counts = ", ".join(f"{count} {status}" for status, count in self.tally.statuses.most_common())
        table.add_row(
            Text(f"{self.done}/{self.count}", style="bold"),
            ProgressBar(total=max(self.count, 1), completed=self.done, width=BAR),
            Text(f"{_time(time.monotonic() - self._began)}{self._speed()}"),
        )
        lines: list[RenderableType] = [table, Text(counts or self.doing, style="dim")]
        slowest = self._slowest()
        if slowest:
            lines.append(Text(f"running: {', '.join(slowest)}", style="dim"))
        return Group(*lines)

    # at the end

    def summary(self, seconds: float, ran: int, outcome: GradedClass | None = None) -> None:
        """Print the scores, the most-failed checks and misconceptions, what changed, and what needs review.

        With the outcome of a run, all that is known of the class is counted, and not only what was graded now.
        """
        if self.quiet:
            return
        from gpudojo.model.catalogue import misconceptions

        tally = outcome.tally if outcome else self.tally
        count = sum(tally.statuses.values())
        counts = ", ".join(f"{count} {status}" for status, count in tally.statuses.most_common())
        rate = f" ({ran / seconds:.1f}/s)" if ran and seconds > 0 else ""
        whole = f"{count} {'student' if 'absent' in tally.statuses else 'submission'}{'s' * (count != 1)}"
        self._say(f"\n{whole}: {counts}. {ran} graded in {_time(seconds)}{rate}.", style="bold")
        marked = {"late": tally.late, "with overrides": tally.overridden, "still to grade by hand": tally.to_grade}
        if said := ", ".join(f"{number} {what}" for what, number in marked.items() if number):
            self._say(f"{said}.")
        self._distribution(tally)
        if hardest := tally.statistics.hardest[:5]:
            head = f"{'failed':>8} {'absent':>7} {'attempted':>10}"
            lines = [f"{each.failed:>8} {each.absent:>7} {each.attempted:>10}  {each.id}" for each in hardest]
            self._list("Hardest checks", [head, *lines])
        mistakes = [(misconceptions().get(name), name, count) for name, count in tally.mistakes.most_common(5)]
        named = [f"{count:>5}  {known.name if known else name}" for known, name, count in mistakes]
        self._list("Most common misconceptions", named)
        wide = " " * 7
        if outcome is not None:
            self._list("Changed", [f"{wide}{change}" for change in outcome.changes])
            self._list(
                "Gone: the files are no longer there, the results are kept", [wide + name for name in tally.gone]
            )
            self._list("Not on the roster", [wide + name for name in outcome.unmatched])
            self._list("Not used", [wide + notice for notice in outcome.notices])
        more = tally.reviews - len(tally.review)
        self._list("Needs review", [f"{wide}{name}: {why}" for name, why in tally.review], more)

    def _list(self, title: str, lines: Sequence[str], more: int = 0) -> None:
        if not lines:
            return
        self._say(f"\n{title}", style="bold")
        for line in lines[:MOST]:
            self._say(line)
        if more := more + max(0, len(lines) - MOST):
            self._say(f"       … and {more} more: see results.csv")

    def _distribution(self, tally: ClassTally) -> None:
        shares = [100 * score / worth if worth else 0.0 for score, worth in tally.scores]
        if not shares:
            return
        bins = Counter(min(int(share // 10), 9) for share in shares)
        most = max(bins.values())
        self._say(f"\nScores in percent: mean {sum(shares) / len(shares):.1f}", style="bold")
        for tenth in range(10):
            count = bins[tenth]
            name = f"{tenth * 10:>3}–{tenth * 10 + 10 if tenth == 9 else tenth * 10 + 9}"
            self._say(f"{name:>8}  {'█' * round(BAR * count / most)} {count or ''}".rstrip())


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if seconds >= 60 else f"{seconds:.1f} s"
