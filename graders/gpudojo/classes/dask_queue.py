"""Which submission is sent to a cluster next, and when one is given up."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpudojo.classes.records import Incident, IncidentKind, Record
from gpudojo.classes.runners import GradingTask
from gpudojo.classes.submission_run import BEFORE_FIRST_STEP

MOST_REFUSALS: Final = 4  # of one submission, after which no worker can run it
# Of a submission with its worker, after which it runs alone; after as many more it is given up.
LOSSES_BEFORE_ALONE: Final = 2


class NextTask(NamedTuple):
    """A task to send; `alone`: nothing else may be under way."""

    task: GradingTask
    alone: bool


class TaskQueue:
    """Tasks to send to a cluster.

    First come those that came back, then new ones, and last, one at a time, those that may be why
    a worker was lost.
    """

    def __init__(self, tasks: Iterator[GradingTask]) -> None:
        """Take no task from the iterator `tasks` yet, which gives new ones."""
        self._tasks = tasks
        self._ready: deque[GradingTask] = deque()
        self._suspects: deque[GradingTask] = deque()
        self._refusals: Counter[GradingTask] = Counter()
        self._losses: Counter[GradingTask] = Counter()
        self.count_done = 0

    def next_task(self, idle: bool) -> NextTask | None:
        """Take the next task out of the queue, or return None if there is none now.

        `idle` means that nothing is under way: only then a task that is to run alone is taken.
        """
        if not self.has_more():
            return None
        if self._ready:
            return NextTask(self._ready.popleft(), alone=False)
        if idle:
            return NextTask(self._suspects.popleft(), alone=True)
        return None

    def has_more(self) -> bool:
        """True if anything is left to send. A new task is taken from the iterator if need be."""
        if not self._ready:
            task = next(self._tasks, None)
            if task is not None:
                self._ready.append(task)
        return bool(self._ready or self._suspects)

    def put_back(self, task: GradingTask, alone: bool = False) -> None:
        """Put a task back into the queue; `alone`: among those that are sent one at a time."""
        if alone:
            self._suspects.append(task)
        else:
            self._ready.append(task)

    def note_refusal(self, task: GradingTask, why: str) -> None:
        """Put a task back that a worker could not run, or give it up after MOST_REFUSALS.

        Raises what the end of a task raises that is given up.
        """
        self._refusals[task] += 1
        if self._refusals[task] >= MOST_REFUSALS:
            self.give_up(task, f"no worker could run it: {why}")
        else:
            self.put_back(task)

    def note_loss(self, task: GradingTask, alone: bool, times: int = 1) -> None:
        """Put a task back that was lost with its worker, or give it up after too many losses.

        It was lost `times` times. It may be why the worker was lost, and runs alone where that
        happened before. Raises what the end of a task raises that is given up.
        """
        self._losses[task] += times
        losses = self._losses[task]
        if alone and losses >= 2 * LOSSES_BEFORE_ALONE:
            self.give_up(task, f"the worker it ran on was lost, {losses} times in a row")
        else:
            self.put_back(task, alone or losses >= LOSSES_BEFORE_ALONE)

    def finish_task(self, task: GradingTask, record: Record) -> None:
        """Hand over the record of a task, and count it as done. Raises what its `done` raises."""
        self.count_done += 1
        task.done(record)

    def give_up(self, task: GradingTask, why: str) -> None:
        """Finish a task with a record that says why it could not be run. It needs review.

        The reason is added to the incidents of its record. Raises what its `done` raises.
        """
        incident = Incident(IncidentKind.CRASHED, BEFORE_FIRST_STEP, why)
        task.run.record.incidents.append(incident)
        self.finish_task(task, task.run.finish_record(0, 0.0))
