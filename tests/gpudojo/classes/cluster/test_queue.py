"""Nothing is asked for too early, given to who has failed it, or forgotten."""

from __future__ import annotations

from collections.abc import Iterator

from gpudojo.classes import judging
from gpudojo.classes.dask_client import ALONE, AT_MOST, LOSSES, Errand, Errands
from gpudojo.classes.local_runner import GradingTask
from gpudojo.classes.store import Record
from gpudojo.classes.submission_run import RunOptions, SubmissionRun
from gpudojo.model.catalogue import day
from gpudojo.model.results import SubmissionStatus

TERMS = RunOptions(day="day8", bench="virtual", seeds={}, known=frozenset())


def works(count: int, done: list[Record], asked: list[int]) -> Iterator[GradingTask]:
    for number in range(count):
        asked.append(number)
        yield GradingTask(str(number), SubmissionRun(str(number), {}, TERMS), done.append, 0.0)


def test_the_next_one_is_asked_for_when_there_is_room_for_it() -> None:
    asked: list[int] = []
    errands = Errands(works(5, [], asked))
    assert errands.more()
    assert errands.more()
    assert asked == [0]
    assert [one.work.name for _ in range(2) if (one := errands.take("a", ["a"], idle=True))] == ["0", "1"]
    assert asked == [0, 1]


def test_who_has_failed_one_gets_it_only_where_everybody_has() -> None:
    errands = Errands(works(1, [], []))
    errand = errands.take("a", ["a", "b"], idle=True)
    assert isinstance(errand, Errand)
    errand.avoided.add("a")
    errands.put_back(errand)
    assert errands.take("a", ["a", "b"], idle=True) is None
    assert errands.more()
    assert errands.take("b", ["a", "b"], idle=True) is errand
    errand.avoided.add("b")
    errands.put_back(errand)
    assert errands.take("a", ["a", "b"], idle=True) is errand
    assert not errands.more()


def test_one_that_was_lost_twice_gets_a_worker_for_itself() -> None:
    errands = Errands(works(2, [], []))
    errand = errands.take("a", ["a"], idle=True)
    assert errand is not None
    errand.losses = ALONE
    errands.put_back(errand)
    other = errands.take("a", ["a"], idle=False)
    assert other is not None
    assert other is not errand
    assert errands.take("a", ["a"], idle=False) is None
    assert errands.more()
    assert errands.take("a", ["a"], idle=True) is errand


def test_so_many_losses_are_enough() -> None:
    asked: list[int] = []
    errands = Errands(works(2, [], asked))
    first, second = errands.take("a", ["a"], idle=True), errands.take("a", ["a"], idle=True)
    assert first is not None
    assert second is not None
    assert [first.lost(str(number)) for number in range(LOSSES)] == [False] * (LOSSES - 1) + [True]
    found = []
    for number in range(AT_MOST):  # others are lost all the time, and there is an end to it nevertheless
        second.losses = 0
        found.append(second.lost(str(number)))
    assert found == [False] * (AT_MOST - 1) + [True]


def test_one_that_is_given_up_is_a_result_for_a_human() -> None:
    done: list[Record] = []
    errands = Errands(works(1, done, []))
    errand = errands.take("a", ["a"], idle=True)
    assert errand is not None
    errands.finish(errand, errand.given_up("the worker it ran on was lost, 4 times one after another"))
    found = judging.judged(done[0], Record("reference"), day("day8"), frozenset({"nothing"}))
    assert (errands.done, found.status, found.digest) == (1, SubmissionStatus.CRASHED, "0")
    assert "the worker it ran on was lost, 4 times" in found.needs_human[0]
    assert "the worker it ran on was lost, 4 times" in found.reason
