"""The summary that `dojo grade` prints when a class is graded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gpudojo.classes.class_tally import ClassTally
from gpudojo.classes.console_texts import (
    print_text,
    seconds_in_words,
    statuses_in_words,
)
from gpudojo.classes.result_writing import RULES_CHANGED
from gpudojo.model.catalogue import known_misconceptions
from gpudojo.model.results_file import count_and_noun

if TYPE_CHECKING:
    from rich.console import Console

    from gpudojo.classes.class_grading import GradedClass

LINES_OF_LIST: Final = 20
CHECKS_SHOWN: Final = 5
MISCONCEPTIONS_SHOWN: Final = 5
BAR_WIDTH: Final = 30
INDENT: Final = " " * 7
GONE: Final = "Gone: the files are no longer there, the results are kept"


def print_summary(console: Console | None, graded: GradedClass) -> None:
    """Print scores, the most-failed checks and misconceptions, what changed, what to review.

    All that is known of the class is counted, and not only what was graded now. Without a console
    nothing is printed. Raises BadDay where the misconceptions of a day cannot be read.
    """
    if console is not None:
        _SummaryPrinter(console, graded).print_all()


class _SummaryPrinter:
    """Prints the summary of one class, part by part."""

    def __init__(self, console: Console, graded: GradedClass) -> None:
        self.console = console
        self.graded = graded
        self.tally: ClassTally = graded.tally

    def print_all(self) -> None:
        """Print the parts that have anything in them.

        What to review comes last: there it is seen first. Raises BadDay where the misconceptions of
        a day cannot be read.
        """
        graded = self.graded
        tally = self.tally
        self._print_counts()
        self._print_unusual_rules()
        self._print_distribution()
        self._print_hardest_checks()
        self._print_misconceptions()
        if graded.count < tally.statuses.total():
            self._print_list("Graded now", _indent_lines(tally.points_shown))
        changes = [str(change) for change in graded.changes]
        self._print_list("Changed", _indent_lines(changes), see="history.csv")
        by_rules = _indent_lines(tally.changed_by_rules)
        self._print_list(RULES_CHANGED, by_rules, see="history.csv")
        self._print_list(GONE, _indent_lines(tally.gone))
        self._print_list("Not on the roster", _indent_lines(graded.unmatched))
        self._print_list("Settings and files to look at", _indent_lines(graded.notices))
        self._print_list("Older than these results", _indent_lines(graded.stale))
        self._print_reviews()

    def _print_counts(self) -> None:
        """Print how many students have each status, how many submissions ran, and what is special.

        A student may have several submissions, or none, or share one with a group.
        """
        tally = self.tally
        everybody = count_and_noun(tally.statuses.total(), "student")
        statuses = statuses_in_words(tally.statuses)
        ran = self._describe_runs()
        self._print_title(f"{everybody}: {statuses}. {ran}.")
        # What is special about some.
        counts = {
            "late": tally.late,
            "handed in at an unknown time, and not counted as late": tally.undated,
            "with overrides": tally.overridden,
            "still to mark by hand (0 points until then)": tally.to_grade,
            "reviewed": tally.reviewed,
        }
        texts = []
        for description, count in counts.items():
            if count:
                texts.append(f"{count} {description}")
        if texts:
            sentence = ", ".join(texts)
            folder = self.graded.path.parent
            print_text(self.console, f"{sentence}. Their names: dojo status {folder}")

    def _print_unusual_rules(self) -> None:
        """Print what counts, where that is not everything or not the latest attempt."""
        for sentence in self.graded.unusual_rules:
            print_text(self.console, sentence)

    def _describe_runs(self) -> str:
        """How many were handed in and how many ran now, in which time, and at which speed.

        Each member of a group may have handed in, and earlier attempts are there, too.
        """
        graded = self.graded
        time = seconds_in_words(graded.seconds)
        text = f"{graded.count} handed in, {graded.ran} run now in {time}"
        if graded.ran > 1 and graded.seconds > 0:
            speed = graded.ran / graded.seconds
            text += f" ({speed:.1f}/s)"
        return text

    def _print_distribution(self) -> None:
        """Print the mean and a bar for each tenth of the points.

        Without anybody who counts in means, nothing is printed.
        """
        percents = self.tally.percents
        if not percents:
            return
        title = "Scores in percent"
        if self.tally.scaled:
            title = "Published points in percent, of those who handed in"
        mean = sum(percents) / len(percents)
        self._print_title(f"{title}: mean {mean:.1f}")
        tenths = [0] * 10
        for percent in percents:
            tenth = min(int(percent // 10), 9)
            tenths[tenth] += 1
        longest = max(tenths)
        for tenth, count in enumerate(tenths):
            bar = "█" * round(BAR_WIDTH * count / longest)
            line = f"{_name_of_tenth(tenth):>8}  {bar}"
            if count:
                line += f" {count}"
            print_text(self.console, line.rstrip())

    def _print_hardest_checks(self) -> None:
        """Print the checks that most students failed."""
        hardest = self.tally.statistics.hardest[:CHECKS_SHOWN]
        if not hardest:
            return
        lines = ["  failed  absent  attempted"]
        for check in hardest:
            counts = f"{check.failed:>8} {check.absent:>7} {check.attempted:>10}"
            lines.append(f"{counts}  {check.id}")
        self._print_list("Most-failed checks", lines)

    def _print_misconceptions(self) -> None:
        """Print the misconceptions that most submissions show, by name.

        Raises BadDay where the misconceptions of a day cannot be read.
        """
        known = known_misconceptions()
        lines = []
        for id_, count in self.tally.statistics.misconceptions.most_common(MISCONCEPTIONS_SHOWN):
            name = id_
            if id_ in known:
                name = known[id_].name
            lines.append(f"{count:>5}  {name}")
        self._print_list("Most common misconceptions", lines)

    def _print_reviews(self) -> None:
        """Print who is to be looked at by a person, and why."""
        tally = self.tally
        reviews = [f"{review.called}: {review.reason}" for review in tally.first_reviews]
        not_listed = tally.review_count - len(reviews)
        command = f"dojo review --out {self.graded.path.parent}"
        self._print_list("Needs review", _indent_lines(reviews), not_listed, see=command)

    def _print_title(self, title: str) -> None:
        """Print an empty line, and a title in bold."""
        print_text(self.console, f"\n{title}", style="bold")

    def _print_list(
        self, title: str, lines: Sequence[str], not_listed: int = 0, see: str = "results.csv"
    ) -> None:
        """Print a list, if there is anything in it, and how many more there are.

        `not_listed` counts those that are not among the lines, and `see` has them all.
        """
        if not lines:
            return
        self._print_title(title)
        for line in lines[:LINES_OF_LIST]:
            print_text(self.console, line)
        more = not_listed + max(0, len(lines) - LINES_OF_LIST)
        if more:
            print_text(self.console, f"{INDENT}… and {more} more: see {see}")


def _name_of_tenth(tenth: int) -> str:
    """The percents of a tenth: "  0–9" for the first one, 0, and "90–100" for the last."""
    first = tenth * 10
    if tenth == 9:
        return f"{first:>3}–100"
    return f"{first:>3}–{first + 9}"


def _indent_lines(lines: Iterable[str]) -> list[str]:
    """The lines as they stand below a title."""
    return [f"{INDENT}{line}" for line in lines]
