"""Which submissions a person has reviewed, and whether that still holds."""

from __future__ import annotations

import hashlib

from gpudojo.classes.overrides import LogEntry
from gpudojo.model.results import Reviewed, SubmissionRow


def digest_of_reasons(row: SubmissionRow) -> str:
    """A text that changes if a submission, or a reason to review it, does."""
    text = "\0".join((row.digest, row.status, *row.reasons_to_review))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class ReviewFilter:
    """Finds the rows of a class to be listed for review: one of each group with equal reasons."""

    def __init__(self) -> None:
        """Know no group yet."""
        self._seen: set[tuple[str, str]] = set()

    def is_first(self, row: SubmissionRow) -> bool:
        """False where another member of the group has the same to review; the row is remembered."""
        if not row.group:
            return True
        work = (row.group, digest_of_reasons(row))
        if work in self._seen:
            return False
        self._seen.add(work)
        return True


def review_that_holds(row: SubmissionRow, entry: LogEntry | None) -> Reviewed | None:
    """Who reviewed a submission; None where nobody did, or it has changed since.

    `entry` is that of the log, if there is one.
    """
    if entry is None or entry.about != digest_of_reasons(row):
        return None
    return Reviewed(entry.by, entry.at, entry.comment)
