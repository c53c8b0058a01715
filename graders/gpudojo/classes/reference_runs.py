"""Runs the reference solutions, which submissions are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from gpudojo.classes import judging
from gpudojo.classes.records import Record
from gpudojo.classes.run_settings import RunSettings
from gpudojo.classes.runners import GradingTask
from gpudojo.classes.store import Store
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.exercise import Exercise
from gpudojo.sandbox import protocol
from gpudojo.sandbox.protocol import RunOptions

REFERENCE: Final = "the reference solutions"
# Times the limit of a student: nobody can be graded without the reference, also on a busy machine.
MORE_TIME: Final = 4


class ReferenceRuns:
    """Makes the tasks that run the reference solutions of a class, and keeps their records.

    `timelines_key` is the key of one more record, which has the pictures of the reference's calls.
    """

    def __init__(
        self,
        records: Store,
        files: dict[str, bytes],
        exercises: Sequence[Exercise],
        only: frozenset[str],
        timelines_key: str,
    ) -> None:
        """Run nothing yet; what runs give will be kept in `records`.

        `files` are the solutions, `only` the functions that are graded, or empty. `timelines_key`
        is the key of the record of timelines.
        """
        self.records = records
        self.files = files
        self.exercises = exercises
        self.only = only
        self.timelines_key = timelines_key

    def reference_task(
        self, settings: RunSettings, fresh: bool, then: Callable[[], None]
    ) -> GradingTask:
        """The task that runs the reference with these settings, checks its record and keeps it.

        What is known of other functions stays in the record, unless `fresh`. Then it calls `then`.
        What it does at the end raises BadClass where the reference cannot be used, OSError where
        its record cannot be written, and what `then` raises.
        """

        def check_and_keep(record: Record) -> None:
            """Keep the record of the reference, with timelines if there are any, and call `then`.

            Raises BadClass where it cannot be used, OSError where it cannot be written, and what
            `then` raises.
            """
            known = self.records.load_record(settings.verdicts.reference_key)
            if known is not None and not fresh:
                record = known.join_with(record)
            judging.require_usable_reference(record, self.exercises, self.only)
            timelines = self.records.load_record(self.timelines_key)
            if timelines is not None:
                _copy_timelines(timelines, record)
            self.records.keep_record(settings.verdicts.reference_key, record)
            then()

        options = _with_more_time(replace(settings.run_options, drawn=protocol.NONE))
        run = SubmissionRun("reference", self.files, options)
        return GradingTask(REFERENCE, run, check_and_keep, time.monotonic())

    def timelines_task(
        self, options: RunOptions, reference_keys: Callable[[], Iterable[str]]
    ) -> GradingTask:
        """The task that draws the calls of the reference. Nothing waits for it.

        It runs with a public seed, since pictures are for everybody. When it is done, they are kept
        in a record of their own, and added to those of the reference, whose keys `reference_keys`
        returns; one that still runs adds them itself. Its end raises OSError where a record cannot
        be written.
        """

        def keep_timelines(timelines: Record) -> None:
            """Keep the timelines, and add them to the records of references that are there.

            Raises OSError where a record cannot be written.
            """
            self.records.keep_record(self.timelines_key, timelines)
            for key in reference_keys():
                record = self.records.load_record(key)
                if record is not None:
                    _copy_timelines(timelines, record)
                    self.records.keep_record(key, record)

        seeds = dict.fromkeys(options.seeds, PUBLIC_SEEDS[0])
        options = _with_more_time(replace(options, drawn=protocol.EVERY, seeds=seeds))
        run = SubmissionRun("reference", self.files, options)
        return GradingTask(f"timelines of {REFERENCE}", run, keep_timelines, time.monotonic())


def _with_more_time(options: RunOptions) -> RunOptions:
    """These options with the time that the reference has for each function."""
    return replace(options, seconds=MORE_TIME * options.seconds)


def _copy_timelines(timelines: Record, record: Record) -> None:
    """Give the record of a reference, `record`, the timelines of another run of it.

    Raises BadEvidence for a damaged record.
    """
    for key, function in timelines.functions.items():
        if key in record.seen:
            own = record.decode_function(key)
            record.add_function(key, replace(own, timelines=function.timelines))
