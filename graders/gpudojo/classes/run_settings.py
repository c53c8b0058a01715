"""What the submissions of a class run with, and what they are judged by."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudojo.classes import fingerprints, store
from gpudojo.classes.class_state import key_of_student
from gpudojo.classes.course_rules import SeedRule
from gpudojo.classes.grading_options import ChosenRecording, GradingOptions
from gpudojo.classes.names import name_key
from gpudojo.classes.roster import Roster
from gpudojo.classes.verdict_store import VerdictStore
from gpudojo.model.catalogue import exercises_of
from gpudojo.sandbox.protocol import RunOptions
from gpudojo.submissions.entries import SourceFile, SubmissionEntry, digest_of


@dataclass(frozen=True)
class RunSettings:
    """What a submission runs with, and what it is judged by.

    They are the same for a whole class, unless each student has a seed.
    """

    conditions: tuple[str, ...]  # on which a record depends
    run_options: RunOptions
    verdicts: VerdictStore

    def record_key(self, digest: str) -> str:
        """The key of the record of a submission with that digest."""
        return store.record_key(digest, *self.conditions)


class ClassSettings:
    """The settings of a class: one for all submissions, or one for each student's seeds."""

    def __init__(
        self,
        options: GradingOptions,
        seed_rule: SeedRule,
        roster: Roster | None,
        secret: str,
        recorded: ChosenRecording | None,
        reference_files: Mapping[str, bytes],
    ) -> None:
        """Note what settings follow from.

        Seeds come from `secret`, or from `recorded` evidence; `reference_files` are the solutions.
        """
        self.options = options
        self.has_one_seed = seed_rule == "per-class"
        self.roster = roster
        self.secret = secret
        self.recorded = recorded
        self.reference_files = reference_files
        # With seeds per student there are as many as students, each with a reference's record.
        self._settings_of_secret = functools.lru_cache(4)(self._make_settings)

    def settings_of_class(self) -> RunSettings:
        """The settings with the seeds of the class itself."""
        return self._settings_of_secret(self.secret)

    def settings_for(self, entry: SubmissionEntry) -> RunSettings:
        """The settings of an entry: its own where each student has a seed."""
        if self.has_one_seed:
            return self.settings_of_class()
        student = self._seed_key(entry)
        return self._settings_of_secret(f"{self.secret}\0{student}")

    def settings_by_reference(self, entries: Sequence[SubmissionEntry]) -> dict[str, RunSettings]:
        """By key of the reference's record, the settings: one, or one for each student."""
        if self.has_one_seed:
            entries = entries[:1]
        by_reference = {}
        for entry in entries:
            settings = self.settings_for(entry)
            by_reference[settings.verdicts.reference_key] = settings
        return by_reference

    def _seed_key(self, entry: SubmissionEntry) -> str:
        """By what a student's seeds are known: the id on the roster, or else the submission's."""
        if self.roster is not None:
            names = (entry.student, entry.name)
            rows = self.roster.match_people(entry.identifier, names, entry.people).rows
            if len(rows) == 1:
                person = self.roster.rows[rows[0]]
                return f"roster:{name_key(person.id)}"
        return key_of_student(entry)

    def _make_settings(self, secret: str) -> RunSettings:
        """The settings for a secret."""
        options = self.options
        conditions = options.conditions_of_record(secret, self.recorded)
        files = [SourceFile(name, data) for name, data in self.reference_files.items()]
        solutions = digest_of(files) if files else "evidence"
        reference_key = store.record_key(solutions, "reference", *conditions)
        fingerprint = fingerprints.fingerprint_of_judging(options.day)
        judging_key = store.record_key(reference_key, fingerprint)
        verdicts = VerdictStore(options.out, options.day, options.only, reference_key, judging_key)
        run_options = options.run_options(exercises_of(options.day), secret, self.recorded)
        return RunSettings(conditions, run_options, verdicts)
