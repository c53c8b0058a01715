"""No task is taken too early, or forgotten.

One that no worker can run is a result that needs review.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudojo.classes import judging
from gpudojo.classes.dask_queue import LOSSES_BEFORE_ALONE, MOST_REFUSALS, TaskQueue
from gpudojo.classes.records import Record
from gpudojo.classes.runners import GradingTask
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import SubmissionStatus
from gpudojo.sandbox.protocol import RunOptions

OPTIONS = RunOptions(day="day8", bench="virtual", seeds={}, known=frozenset())


def tasks(count: int, done: list[Record], taken: list[int]) -> Iterator[GradingTask]:
    for number in range(count):
        taken.append(number)
        yield GradingTask(str(number), SubmissionRun(str(number), {}, OPTIONS), done.append, 0.0)


def take(queue: TaskQueue, idle: bool = False) -> tuple[GradingTask, bool]:
    found = queue.next_task(idle)
    assert found is not None
    return found


def test_the_next_one_is_taken_when_there_is_room_for_it() -> None:
    taken: list[int] = []
    queue = TaskQueue(tasks(5, [], taken))
    assert queue.has_more()
    assert queue.has_more()
    assert taken == [0]
    assert [take(queue)[0].name for _ in range(2)] == ["0", "1"]
    assert taken == [0, 1]


def test_what_came_back_is_sent_before_anything_new() -> None:
    queue = TaskQueue(tasks(3, [], []))
    first, _ = take(queue)
    queue.put_back(first)
    assert take(queue) == (first, False)
    assert take(queue)[0].name == "1"


def test_one_under_suspicion_runs_last_and_alone() -> None:
    queue = TaskQueue(tasks(2, [], []))
    suspect, _ = take(queue)
    queue.put_back(suspect, alone=True)
    assert take(queue, idle=True)[0].name == "1"
    assert queue.next_task(idle=False) is None
    assert queue.has_more()
    assert queue.next_task(idle=True) == (suspect, True)
    assert not queue.has_more()


def test_so_many_refusals_are_enough() -> None:
    done: list[Record] = []
    queue = TaskQueue(tasks(1, done, []))
    for _ in range(MOST_REFUSALS):
        assert done == []
        queue.note_refusal(take(queue)[0], "there is no room")
    assert not queue.has_more()
    assert done[0].incidents[0].detail == "no worker could run it: there is no room"


def test_one_that_is_lost_again_and_again_runs_alone_before_it_is_given_up() -> None:
    done: list[Record] = []
    queue = TaskQueue(tasks(1, done, []))
    for number in range(2 * LOSSES_BEFORE_ALONE):
        assert done == []
        task, alone = take(queue, idle=True)
        assert alone == (number >= LOSSES_BEFORE_ALONE)
        queue.note_loss(task, alone)
    assert not queue.has_more()
    assert done[0].incidents[0].detail == "the worker it ran on was lost, 4 times in a row"


def test_one_that_is_given_up_is_a_result_that_needs_review() -> None:
    done: list[Record] = []
    queue = TaskQueue(tasks(1, done, []))
    queue.give_up(take(queue)[0], "the worker it ran on was lost, 4 times in a row")
    found = judging.judge_record(
        done[0], Record("reference"), exercises_of("day8"), frozenset({"nothing"})
    )
    assert (queue.count_done, found.status, found.digest) == (1, SubmissionStatus.CRASHED, "0")
    assert "the worker it ran on was lost, 4 times" in found.needs_human[0]
    assert "the worker it ran on was lost, 4 times" in found.reason
