"""What the submissions of a class run with, and what they are judged by."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from gpudojo.classes import fingerprints, store
from gpudojo.classes.class_state import key_of_student
from gpudojo.classes.course_rules import SeedRule
from gpudojo.classes.grading_options import ChosenRecording, GradingOptions, derive_number
from gpudojo.classes.names import name_key
from gpudojo.classes.roster import Roster
from gpudojo.classes.verdict_store import VerdictStore
from gpudojo.model.catalogue import exercises_of
from gpudojo.sandbox.protocol import RunOptions
from gpudojo.submissions.entries import SourceFile, SubmissionEntry, digest_of

# Sets of seeds that the submissions of a class have. The reference runs for each of them: the more
# there are, the less a second attempt can use of the first one, and the longer a class takes.
POOL_SIZE: Final = 5
SEEDS_OF_CLASS: Final = ""  # the name of those that follow from the secret alone


@dataclass(frozen=True)
class RunSettings:
    """What a submission runs with, and what it is judged by.

    They are the same for all submissions that have the same seeds.
    """

    conditions: tuple[str, ...]  # on which a record depends
    run_options: RunOptions
    verdicts: VerdictStore
    recorded: ChosenRecording | None  # None where references run here

    @property
    def public_scenarios(self) -> bool:
        """True if students have the scenarios, too."""
        return self.recorded is not None and self.recorded.is_public

    def record_key(self, digest: str) -> str:
        """The key of the record of a submission with that digest."""
        return store.record_key(digest, *self.conditions)


def options_for_rest(options: RunOptions, asked: Iterable[str]) -> RunOptions:
    """The options for the functions that are left, where a record was run for those in `asked`."""
    left = options.known.difference(asked)
    names = {key.rpartition("::")[2] for key in left}
    return msgspec.structs.replace(options, known=left, only=frozenset(names))


class ClassSettings:
    """The settings of a class: one for each set of seeds, and who has which.

    By the rule "per-submission" seeds follow from the secret and from what was handed in, out of a
    few sets, the pool. The same files always have the same seeds; other files, such as a second
    attempt, most likely others. The reference runs once for each set that somebody has.
    """

    def __init__(
        self,
        options: GradingOptions,
        seed_rule: SeedRule,
        roster: Roster | None,
        secret: str,
        recorded: ChosenRecording | None,
        reference_files: Mapping[str, bytes],
        graded_before: Sequence[str],
    ) -> None:
        """Note what settings follow from.

        Seeds come from `secret`, or from `recorded` evidence; `reference_files` are the solutions.
        `graded_before` are the functions that the last run graded; empty for all, or no run.
        """
        self.options = options
        self.seed_rule = seed_rule
        self.roster = roster
        self.secret = secret
        self.recorded = recorded
        self.reference_files = reference_files
        self.graded_before = sorted(graded_before)
        self._seeds_of_entries: dict[str, str] = {}  # by name of an entry, that of its seeds
        # With seeds per student there are as many as students, each with a reference's record.
        self._settings_with_seeds = functools.lru_cache(POOL_SIZE + 1)(self._make_settings)

    def settings_of_class(self) -> RunSettings:
        """The settings of entries for which no seeds were chosen."""
        return self._settings_with_seeds(SEEDS_OF_CLASS)

    def choose_seeds(self, entry: SubmissionEntry, digest: str) -> None:
        """Choose the seeds of an entry with files of that digest, unless they were chosen before.

        The choice is remembered by the entry's name. So what is handed in anew while a class is
        graded keeps the seeds whose reference has run.
        """
        if entry.name not in self._seeds_of_entries:
            self._seeds_of_entries[entry.name] = self._name_of_seeds(entry, digest)

    def settings_for(self, entry: SubmissionEntry) -> RunSettings:
        """The settings of an entry, with the seeds that were chosen for it."""
        return self._settings_with_seeds(self._seeds_of_entries.get(entry.name, SEEDS_OF_CLASS))

    def settings_by_reference(self, entries: Sequence[SubmissionEntry]) -> dict[str, RunSettings]:
        """By key of the reference's record, the settings of entries whose seeds were chosen.

        Where there is no such entry, those of the class.
        """
        names = [self._seeds_of_entries.get(entry.name) for entry in entries]
        chosen = [name for name in dict.fromkeys(names) if name is not None]
        by_reference = {}
        for name in chosen or [SEEDS_OF_CLASS]:
            settings = self._settings_with_seeds(name)
            by_reference[settings.verdicts.reference_key] = settings
        return by_reference

    def sort_by_seeds(self, entries: Sequence[SubmissionEntry]) -> list[SubmissionEntry]:
        """The entries, those with equal seeds one after another.

        So their inputs are drawn once, and the references need not all run first.
        """
        by_seeds: dict[str, list[SubmissionEntry]] = {}
        for entry in entries:
            name = self._seeds_of_entries.get(entry.name, SEEDS_OF_CLASS)
            by_seeds.setdefault(name, []).append(entry)
        return [entry for equal in by_seeds.values() for entry in equal]

    def _name_of_seeds(self, entry: SubmissionEntry, digest: str) -> str:
        """The name of an entry's seeds, which follow from it and the secret."""
        if self.seed_rule == "per-student":
            return self._name_of_student(entry)
        if self.seed_rule == "per-class":
            return SEEDS_OF_CLASS
        if self.recorded is None:
            return f"pool {derive_number(self.secret, digest) % POOL_SIZE}"
        return str(self.recorded.seed_for(digest))

    def _name_of_student(self, entry: SubmissionEntry) -> str:
        """By what a student's seeds are known: the id on the roster, or else the submission's."""
        if self.roster is not None:
            names = (entry.student, entry.name)
            rows = self.roster.match_people(entry.identifier, names, entry.people).rows
            if len(rows) == 1:
                person = self.roster.rows[rows[0]]
                return f"roster:{name_key(person.id)}"
        return key_of_student(entry)

    def _make_settings(self, seeds: str) -> RunSettings:
        """The settings with the seeds of that name.

        The options of the run have its seeds; verdicts are by the reference that ran with them.
        Raises OSError if sources cannot be read, BadClass for an unknown function, and BadDay where
        the day cannot be imported.
        """
        options = self.options
        secret = self.secret
        recorded = self.recorded
        if seeds == SEEDS_OF_CLASS:
            pass
        elif recorded is not None:
            recorded = replace(recorded, seed=int(seeds))
        else:
            secret = f"{secret}\0{seeds}"
        # Where its reference, and verdicts by it, are kept.
        conditions = options.conditions_of_record(secret, recorded)
        files = [SourceFile(name, data) for name, data in self.reference_files.items()]
        solutions = "evidence"
        if files:
            solutions = digest_of(files)
        reference_key = store.record_key(solutions, "reference", *conditions)
        fingerprint = fingerprints.fingerprint_of_judging(options.day)
        judging_key = store.record_key(reference_key, fingerprint, *sorted(options.only))
        earlier_key = store.record_key(reference_key, fingerprint, *self.graded_before)
        verdicts = VerdictStore(
            options.out, options.day, options.only, reference_key, judging_key, earlier_key
        )
        run_options = options.run_options(exercises_of(options.day), secret, recorded)
        return RunSettings(conditions, run_options, verdicts, recorded)
