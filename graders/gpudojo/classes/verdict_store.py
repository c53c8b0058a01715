"""Keeps verdicts beside the records of a class: one file for each record and way of judging it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gpudojo.classes import judging, store
from gpudojo.classes.records import Record, decode_record, decode_whole_record
from gpudojo.classes.store import Store
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass, BadEvidence, describe_error
from gpudojo.model.evidence import decode_untrusted_bytes
from gpudojo.model.results import ExerciseRow, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import encode_json

T = TypeVar("T")


class VerdictSummary(msgspec.Struct, frozen=True):
    """What is told of a verdict while a class is graded."""

    status: SubmissionStatus
    score: float
    max_score: float

    @classmethod
    def of_row(cls, row: SubmissionRow) -> VerdictSummary:
        """The summary of a verdict."""
        return cls(row.status, row.score, row.max_score)


_ROW: Final = msgspec.json.Decoder(SubmissionRow)
_SUMMARY: Final = msgspec.json.Decoder(VerdictSummary)


@dataclass(frozen=True)
class VerdictStore:
    """The verdicts of one output folder, for one reference and one version of the code that judges.

    A verdict that is not there is made from the record of the submission. Other processes can have
    such an object, too: it holds nothing but names until it is used.
    """

    out: Path
    day: str
    only: frozenset[str]  # functions that are graded; empty: all
    reference_key: str  # of the reference's record
    judging_key: str  # tells apart references and versions of the code that judges
    # The same key with the functions that were graded before the choice changed; empty for none.
    earlier_key: str = ""

    @functools.cached_property
    def store(self) -> Store:
        """The store in the same output folder."""
        return Store(self.out)

    @functools.cached_property
    def reference(self) -> Record:
        """The record of the reference. Raises BadClass where it cannot be read."""
        path = self.store.path_of(self.reference_key)
        try:
            return decode_whole_record(path.read_bytes())
        except (OSError, BadEvidence):
            raise BadClass(f"the record {path} cannot be read; run again with --fresh") from None

    @property
    def has_reference(self) -> bool:
        """True if the record of the reference can be read."""
        try:
            return self.reference is not None
        except BadClass:
            return False

    def load_or_judge(self, key: str) -> SubmissionRow:
        """The verdict on a record: the one that is kept, or a new one, which is kept then.

        Exercises that were judged before the choice of them changed are not judged again.

        Raises BadClass where there is none and the reference cannot be read. Raises OSError where a
        new one cannot be written. Raises BadDay where the day cannot be imported.
        """
        kept_row = self.kept_row(key)
        if kept_row is not None:
            return kept_row
        earlier = self._earlier_row(key)
        if earlier is None:
            return self.judge_and_keep(key)
        return self.judge_and_keep(key, earlier.exercises)

    def _earlier_row(self, key: str) -> SubmissionRow | None:
        """The verdict from before the choice of exercises changed; None if there is none."""
        if not self.earlier_key:
            return None
        path = self.store.row_path(key, self.earlier_key)
        return _decode_or_none(_read_or_empty(path), _ROW)

    def judge_and_keep(self, key: str, known: Iterable[ExerciseRow] = ()) -> SubmissionRow:
        """Judge a record and keep the verdict. Raises BadClass where the reference cannot be read.

        `known` are exercises of an earlier verdict on it, which are not judged again.

        A record that is damaged, or that our own code cannot judge, gets the verdict "unreadable",
        which is not kept. In the latter case an older verdict is taken away, too. Raises OSError
        where the verdict cannot be written. Raises BadDay where the day cannot be imported.
        """
        path = self._path_of_row(key)
        record_path = self.store.path_of(key)
        reference = self.reference.functions
        try:
            record = decode_record(_read_or_empty(record_path))
            exercises = exercises_of(self.day)
            row = judging.judge_record(record, reference, exercises, self.only, known)
        except BadEvidence:
            return self.judge_unreadable(
                f"the record {record_path} is damaged; run again without --rejudge"
            )
        except Exception as error:  # of ours: one submission is reviewed, the class has its results
            path.unlink(missing_ok=True)
            why = ": ".join(describe_error(error))
            return self.judge_unreadable(f"the grader could not judge it ({why})")
        text = encode_json(row)
        if _read_or_empty(path) != text:  # replacing a file by its equal takes longer than judging
            store.write_file(path, text, lasting=False)  # not lasting: it can be made again
        return row

    def judge_unreadable(self, problem: str) -> SubmissionRow:
        """The verdict on a submission that could not be read, for this reason. It is not kept.

        Raises BadDay where the day cannot be imported.
        """
        return judging.judge_unreadable(problem, exercises_of(self.day), self.only)

    def summary_of(self, key: str) -> VerdictSummary:
        """The summary of the verdict on a record: the one that is kept, or a new one.

        Raises BadClass where there is none and the reference cannot be read. A new verdict is kept.
        Raises OSError where it cannot be written. Raises BadDay where the day cannot be imported.
        """
        kept_summary = _decode_or_none(_read_or_empty(self._path_of_row(key)), _SUMMARY)
        if kept_summary is None:
            return VerdictSummary.of_row(self.load_or_judge(key))
        return kept_summary

    def kept_row(self, key: str) -> SubmissionRow | None:
        """The verdict on a record; None if it has not been judged, or its file cannot be read."""
        return _decode_or_none(_read_or_empty(self._path_of_row(key)), _ROW)

    def can_answer(self, key: str, functions: Iterable[str]) -> bool:
        """True if there is a verdict on a record, or a record of these functions to be judged."""
        if not self.store.has_record(key):
            return False
        kept_summary = _decode_or_none(_read_or_empty(self._path_of_row(key)), _SUMMARY)
        if kept_summary is not None:
            return True
        earlier = self._earlier_row(key)
        if earlier is not None and _has_judged(earlier, functions):
            return True
        return self.store.has_record_of(key, functions)

    def _path_of_row(self, key: str) -> Path:
        """Where the verdict on a record is kept."""
        return self.store.row_path(key, self.judging_key)


def _has_judged(row: SubmissionRow, functions: Iterable[str]) -> bool:
    """True if a verdict is about all of these functions, "exercise::function"."""
    judged = set()
    for exercise in row.exercises:
        for check in exercise.checks:
            judged.add(f"{exercise.exercise}::{check.function}")
    return judged.issuperset(functions)


def _read_or_empty(path: Path) -> bytes:
    """The content of a file. Empty where it cannot be read."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _decode_or_none(data: bytes, decoder: msgspec.json.Decoder[T]) -> T | None:
    """What these bytes hold. Returns None where they hold nothing of the kind."""
    with contextlib.suppress(BadEvidence):
        return decode_untrusted_bytes(decoder.decode, data)
    return None
