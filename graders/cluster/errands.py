"""Which submission is to be sent next, and what has it been through? Each is on one worker at a time, or waits here."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from graders.batch.attempt import BEFORE
from graders.batch.records import Incident, Record, What
from graders.batch.scheduler import Work

ALONE: Final = 2  # workers lost with a submission, after which it gets one for itself: then it is no neighbour's fault
LOSSES: Final = 6  # so many, with no other worker lost in between, and the submission must be the reason
AT_MOST: Final = 20  # so many in all, whatever else was lost: somewhere there has to be an end
REFUSALS: Final = 4


@dataclass(eq=False)
class Errand:
    """A work, and what has kept it from being done."""

    work: Work
    losses: int = 0  # that speak against it
    all_losses: int = 0
    refusals: int = 0
    avoided: set[str] = field(default_factory=set)  # workers that have failed it

    @property
    def alone(self) -> bool:
        return self.losses >= ALONE

    def lost(self, worker: str) -> bool:
        """A worker is lost that had it; True if it is not to be tried again."""
        self.losses += 1
        self.all_losses += 1
        self.avoided.add(worker)
        return self.losses >= LOSSES or self.all_losses >= AT_MOST

    def given_up(self, why: str) -> Record:
        """What stands for a submission that no worker brings back: for a human, and never lost."""
        attempt = self.work.attempt
        attempt.record.incidents.append(Incident(What.CRASHED, BEFORE, why))
        return attempt.done(0, 0.0)


class Errands:
    """Works as they come, and before them those that came back."""

    def __init__(self, works: Iterator[Work]) -> None:
        self._works = works
        self._back: deque[Errand] = deque()
        self.done = 0

    def take(self, worker: str, workers: Collection[str], idle: bool) -> Errand | None:
        """The next one for a worker, which gets one again that it has failed only where all the others have, too."""
        for errand in self._back:
            free_to = worker not in errand.avoided or errand.avoided.issuperset(workers)
            if free_to and (idle or not errand.alone):
                self._back.remove(errand)
                return errand
        work = next(self._works, None)
        return None if work is None else Errand(work)

    def more(self) -> bool:
        """Is anything left to be sent? Where nothing came back, the next one is asked for."""
        if not self._back and (work := next(self._works, None)) is not None:
            self._back.append(Errand(work))
        return bool(self._back)

    def put_back(self, errand: Errand) -> None:
        self._back.append(errand)

    def waiting(self) -> list[Errand]:
        """Those that came back."""
        return list(self._back)

    def finish(self, errand: Errand, record: Record) -> None:
        self.done += 1
        errand.work.done(record)
