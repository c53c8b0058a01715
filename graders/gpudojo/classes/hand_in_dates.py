"""When submissions were handed in, where the roster is what tells it.

A platform's table has one date for each student: that of the last time the student handed in. So it
belongs to the latest attempt. An attempt keeps the date that it had when its files were graded.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from gpudojo.classes.class_state import StoredSubmission
from gpudojo.classes.roster_dates import parse_date


class RosterDate(NamedTuple):
    """A date in the roster, as the table writes it, and in ISO 8601."""

    text: str
    time: str

    @property
    def moment(self) -> datetime.datetime:
        """The date, to compare it with others."""
        return datetime.datetime.fromisoformat(self.time)


class SentSubmission(NamedTuple):
    """A submission, and the date that the roster has for it now."""

    submission: StoredSubmission
    date: RosterDate | None  # None where the sender handed in another one later


NO_DATES: Final[dict[str, RosterDate]] = {}


def pair_with_date(
    submissions: Sequence[StoredSubmission], date: RosterDate | None, given: Collection[str]
) -> list[SentSubmission]:
    """The submissions of one sender, the latest last, each with the date in the roster or None.

    The latest one gets it. Where some of them are `given` in this run, by digest, it is the latest
    of these: the files of an earlier attempt may be given again with its table. What has a date of
    its own, of another source, is not the one that the roster speaks of.
    """
    undated = [submission for submission in submissions if not submission.submitted]
    candidates = [submission for submission in undated if submission.digest in given] or undated
    latest = candidates[-1] if candidates else None
    return [SentSubmission(each, date if each is latest else None) for each in submissions]


class HandInDates:
    """Finds the dates of submissions that the roster tells."""

    def __init__(self, zone: datetime.tzinfo) -> None:
        """`zone` is that of dates without one."""
        self.zone = zone
        # Digests of what was given in this run, with the roster of this run.
        self.given: Collection[str] = frozenset()

    def find(self, sent: Sequence[SentSubmission]) -> dict[str, RosterDate]:
        """By digest, the dates of the submissions of one student or group.

        There is none for what has a date of its own, and where nobody knows it. A date that another
        attempt has, or an earlier one, is not that of new files.
        """
        known: dict[str, RosterDate] = {}
        for submission, _ in sent:
            date = self._date_kept(submission)
            if date is not None:
                known[submission.digest] = date
        dates = dict(known)
        for submission, date in sent:
            if date is None or submission.submitted:
                continue
            digest = submission.digest
            if digest in known and digest not in self.given:
                continue
            others = [other for key, other in known.items() if key != digest]
            if all(other.moment < date.moment for other in others):
                dates[digest] = date
        return dates

    def _date_kept(self, submission: StoredSubmission) -> RosterDate | None:
        """The date that the roster had when the files of a submission were given, if it had one."""
        if submission.submitted or not submission.dated:
            return None
        date = parse_date(submission.dated, self.zone)
        if date is None:
            return None
        return RosterDate(submission.dated, date.isoformat())
