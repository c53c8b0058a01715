"""What does a record come to? Judged once and kept, until the checks or the reference it is measured by are others."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from graders.batch import judging, store
from graders.batch.judging import Judged
from graders.batch.records import Record
from graders.curriculum.exercise import Exercise
from graders.errors import BadClass


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of one output folder."""

    store: store.Store
    exercises: tuple[Exercise, ...]
    only: frozenset[str]
    reference: Record
    measure: str  # by which the checks and the reference are known

    def of(self, key: str, anew: bool = False) -> Judged:
        """The verdict on a record; `anew` judges it again, whatever is kept."""
        path = self.store.row_path(key, self.measure)
        if not anew:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                return msgspec.json.decode(path.read_bytes(), type=Judged)
        found = judging.judged(record_of(self.store, key), self.reference, self.exercises, self.only)
        text = msgspec.json.encode(found)
        if not _holds(path, text):  # to replace a file by its equal takes milliseconds, and is most of judging again
            store.write(path, text, lasting=False)  # it can be made again
        return found

    def unreadable(self, problem: str) -> Judged:
        return judging.unreadable(problem, self.exercises, self.only)


def _holds(path: Path, text: bytes) -> bool:
    try:
        return path.read_bytes() == text
    except OSError:
        return False


def record_of(kept: store.Store, key: str) -> Record:
    record = kept.record(key)
    if record is None:
        raise BadClass(f"the record {kept.path_of(key)} cannot be read; run again with --fresh")
    return record
