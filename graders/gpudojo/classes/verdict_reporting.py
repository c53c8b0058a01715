"""Has records judged while a class is graded, and reports the verdicts to the display."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from gpudojo.classes.class_state import StoredSubmission
from gpudojo.classes.judge_pool import POOL_ERRORS, JudgePool
from gpudojo.classes.run_settings import RunSettings
from gpudojo.classes.runners import Progress
from gpudojo.classes.verdict_store import VerdictStore, VerdictSummary
from gpudojo.submissions.entries import SubmissionEntry


class EqualEntries(NamedTuple):
    """Entries of equal content, which have one verdict."""

    entries: Sequence[SubmissionEntry]
    ran: bool  # the first of them, in this run
    has_new_record: bool  # which is to be judged; else a verdict is there, or there is no record


class _BeingJudged(NamedTuple):
    """A record that is judged: by another process, or by this one when it is its turn."""

    future: Future[VerdictSummary] | None
    equal: EqualEntries

    @property
    def is_done(self) -> bool:
        """True if there is nothing to wait for."""
        if self.future is None:
            return True
        return self.future.done()


class VerdictReporter:
    """Has records judged, and reports verdicts in the order in which judging began.

    `stored` is what is kept of each entry, by its name; the score of a verdict is noted there.
    `settings_for` tells how an entry is judged.
    """

    def __init__(
        self,
        stored: Mapping[str, StoredSubmission],
        settings_for: Callable[[SubmissionEntry], RunSettings],
        progress: Progress,
    ) -> None:
        """Judge nothing yet, and in this process unless `start_processes` is called.

        `stored` has what is kept of each entry, by its name; scores will be noted there.
        `settings_for` tells how an entry is judged, and `progress` is told of verdicts.
        """
        self._stored = stored
        self._settings_for = settings_for
        self._progress = progress
        self._judges: JudgePool | None = None
        self._may_report = True
        self._missing_references: set[str] = set()  # keys of records
        self._held: list[EqualEntries] = []
        self._being_judged: deque[_BeingJudged] = deque()

    def start_processes(self, verdicts: VerdictStore, records: int, most: int) -> None:
        """Let up to `most` other processes judge, if so many records are worth their start.

        Raises OSError where they cannot be started.
        """
        self._judges = JudgePool(verdicts, records, most)

    def close(self) -> None:
        """End the processes that judge."""
        if self._judges is not None:
            self._judges.close()

    # Before its reference has run, nothing can be judged

    def begin_holding(self, references: Iterable[str]) -> None:
        """From now on only collect what is to be judged or reported.

        `references` are the keys of the references' records that are missing.
        """
        self._may_report = False
        self._missing_references = set(references)

    def stop_holding(self, reference: str) -> None:
        """Judge and report what was collected, but for what waits for another reference.

        `reference` is the key of the record that is there now. Verdicts are written, and scores
        noted in what is kept of entries. Raises BadClass where a reference's record cannot be read,
        and OSError where a verdict cannot be written. Raises BadDay where the day cannot be
        imported.
        """
        self._may_report = True
        self._missing_references.discard(reference)
        held = self._held
        self._held = []
        for equal in held:
            self.judge_or_hold(equal)

    # Judging and reporting

    def report_known_verdicts(self, entries: Sequence[SubmissionEntry]) -> None:
        """Report entries that have a verdict already, or cannot be read.

        While their reference is missing they are only collected. A verdict that is gone is made
        again and written, and scores are noted in what is kept of entries. Raises BadClass where
        the reference's record cannot be read for that, and OSError where it cannot be written.
        Raises BadDay where the day cannot be imported.
        """
        for entry in entries:
            self.judge_or_hold(EqualEntries([entry], ran=False, has_new_record=False))

    def judge_or_hold(self, equal: EqualEntries) -> None:
        """Have a record judged, if that is to do, and report what is done by now.

        While its reference is missing, it is only collected. Verdicts are written, and scores noted
        in what is kept of entries. Raises BadClass where the reference's record cannot be read, and
        OSError where a verdict cannot be written. Raises BadDay where the day cannot be imported.
        """
        if self._has_to_wait(equal):
            self._held.append(equal)
        elif equal.has_new_record:
            self._begin_judging(equal)
            self._report_in_order(wait=False)
        else:
            for entry in equal.entries:
                self._report_verdict(entry, self._known_verdict(entry), ran=False)

    def _has_to_wait(self, equal: EqualEntries) -> bool:
        """True before anything may be reported, and while the reference of these is missing."""
        if not self._may_report:
            return True
        stored = self._stored[equal.entries[0].name]
        return bool(stored.record) and stored.reference in self._missing_references

    def wait_for_verdicts(self) -> None:
        """Wait for all that is being judged, and report it.

        What no other process judges is judged here. Scores are noted in what is kept of entries.
        Raises BadClass where the reference's record cannot be read, and OSError where a verdict
        cannot be written. Raises BadDay where the day cannot be imported.
        """
        self._report_in_order(wait=True)

    def _begin_judging(self, equal: EqualEntries) -> None:
        """Give the record to another process, or put it off until it is its turn."""
        first = equal.entries[0]
        future = None
        if self._judges is not None:
            verdicts = self._settings_for(first).verdicts
            record = self._stored[first.name].record
            future = self._judges.submit(verdicts, record)
        self._being_judged.append(_BeingJudged(future, equal))

    def _report_in_order(self, wait: bool) -> None:
        """Report verdicts in the order in which judging began; `wait` for all, else for none.

        What no other process judges, or could not because it was killed, is judged here when it is
        its turn, and the verdict is written. Scores are noted in what is kept of entries. Raises
        BadClass where the reference's record cannot be read, and OSError where a verdict cannot be
        written. Raises BadDay where the day cannot be imported.
        """
        while self._being_judged:
            if not wait and not self._being_judged[0].is_done:
                return
            judged = self._being_judged.popleft()
            summary = self._verdict_of(judged)
            equal = judged.equal
            for entry in equal.entries:
                ran = equal.ran and entry is equal.entries[0]
                self._report_verdict(entry, summary, ran)

    def _verdict_of(self, judged: _BeingJudged) -> VerdictSummary:
        """The verdict of another process, or, where there is none, our own, which is kept.

        Raises BadClass where the record of the reference cannot be read, and OSError where a
        verdict cannot be written. Raises BadDay where the day cannot be imported.
        """
        if judged.future is not None:
            with contextlib.suppress(*POOL_ERRORS):
                return judged.future.result()
        first = judged.equal.entries[0]
        verdicts = self._settings_for(first).verdicts
        row = verdicts.judge_and_keep(self._stored[first.name].record)
        return VerdictSummary.of_row(row)

    def _known_verdict(self, entry: SubmissionEntry) -> VerdictSummary:
        """The verdict on an entry that did not run: the one that is kept, or "unreadable".

        A kept one that is gone is made again. Raises BadClass where the reference's record cannot
        be read for that, and OSError where it cannot be written. Raises BadDay where the day cannot
        be imported.
        """
        stored = self._stored[entry.name]
        verdicts = self._settings_for(entry).verdicts
        if stored.record:
            return verdicts.summary_of(stored.record)
        row = verdicts.judge_unreadable(stored.problem)
        return VerdictSummary.of_row(row)

    def _report_verdict(self, entry: SubmissionEntry, summary: VerdictSummary, ran: bool) -> None:
        """Tell the display of a verdict, which is on disk, and note its score.

        `ran` is whether the submission was run for it. Raises KeyError for an entry that is not
        stored.
        """
        stored = self._stored[entry.name]
        stored.score = summary.score
        stored.max_score = summary.max_score
        self._progress.report_verdict(entry.name, summary.status, ran)
