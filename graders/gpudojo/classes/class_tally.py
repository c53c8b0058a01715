"""Counts of a class, for the summary after a run."""

from __future__ import annotations

import array
from collections import Counter
from typing import Final, NamedTuple

from gpudojo.classes.check_statistics import ClassStatistics
from gpudojo.classes.lateness import is_undated
from gpudojo.classes.reviews import ReviewFilter
from gpudojo.model.results import SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import format_points

MOST_REVIEWS: Final = 20  # that are listed; the rest is counted


class Review(NamedTuple):
    """A participant to look at, and the first reason."""

    rank: int  # the most serious reasons are 0
    called: str
    reason: str


class ClassTally:
    """Counts of the rows of a class. `count_row` counts one."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self.statuses: Counter[str] = Counter()
        # Published points in percent. A list would take ten times the memory.
        self.percents = array.array("d")
        self.scaled = False  # if points to publish are others than those of the exercises
        self.statistics = ClassStatistics()
        self._reviews = ReviewFilter()
        self.first_reviews: list[Review] = []
        self.review_count = 0
        self.reviewed = 0
        self.late = 0
        self.undated = 0  # of whom nobody knows whether they were late
        self.overridden = 0
        self.to_grade = 0
        self.were_absent: set[str] = set()  # in the results of before, and not now
        self.gone: list[str] = []
        self.points_shown: list[str] = []  # of a few that were asked for
        # Whose points changed although nothing was graded anew: see RULES_CHANGED.
        self.changed_by_rules: list[str] = []

    def count_row(self, row: SubmissionRow, show_points: bool = False) -> None:
        """Count a row in all that it concerns.

        `show_points`: it is one of a few that were asked for. Those who handed in nothing count in
        statuses, checks and reviews only.
        """
        if show_points:
            self.points_shown.append(_describe_points(row))
        self.statuses[str(row.status)] += 1
        self.statistics.count_row(row)
        if row.status is not SubmissionStatus.ABSENT:
            if row.scaled:
                self.scaled = True
            if row.to_grade:
                self.to_grade += 1
        # How well it went.
        if row.counts_in_means:
            self.percents.append(_percent_of(row))
        if row.reasons_to_review and self._reviews.is_first(row):
            if row.review:
                self._count_review(row)
            else:
                self.reviewed += 1
        # What is special about it.
        if row.late:
            self.late += 1
        if is_undated(row):
            self.undated += 1
        if row.graded_otherwise:
            self.overridden += 1
        if row.gone:
            self.gone.append(row.called)

    def _count_review(self, row: SubmissionRow) -> None:
        """Count a row to review. Those with the most serious reasons are kept, these first."""
        self.review_count += 1
        review = Review(row.review_rank, row.called_with_group, row.review[0])
        self.first_reviews.append(review)
        self.first_reviews.sort(key=lambda review: review.rank)
        del self.first_reviews[MOST_REVIEWS:]


def _describe_points(row: SubmissionRow) -> str:
    """The points of a row in words; its status, too, where it was not simply graded."""
    points = format_points(row.final.points)
    max_points = format_points(row.final.max_points)
    text = f"{row.called}: {points} of {max_points}"
    if row.status is not SubmissionStatus.GRADED:
        text += f" ({row.status.value})"
    return text


def _percent_of(row: SubmissionRow) -> float:
    """The published points in percent of their maximum; 0 where there is nothing to get.

    It may be more than 100, for extra credit.
    """
    grade = row.final
    if not grade.max_points:
        return 0.0
    return 100 * grade.points / grade.max_points
