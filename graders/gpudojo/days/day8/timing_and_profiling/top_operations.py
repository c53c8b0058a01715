"""`top_operations`: the operators that took most time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.timing_and_profiling.chosen_durations import operators_taking
from gpudojo.days.day8.timing_and_profiling.declaration import top_operations
from gpudojo.grading.call import Call, torch
from gpudojo.grading.checks import runs
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import Failed, Seen, returned_other_type

ALIKE: Final = ("exp", "sin", "cos", "tanh", "log")  # take about equally long
OTHERS: Final = ("abs", "neg", "floor", "sign")  # are called once and take no time

# ---- scenarios ---------------------------------------------------------------------------------


class OperatorCalls(NamedTuple):
    """An operator of torch, how often it is called, and on how many numbers."""

    name: str
    times: int
    size: int
    taking: float = 0.0  # microseconds per call, as the profiler reports it


def _draw_operators(seed: str) -> list[OperatorCalls]:
    """Three operators, and others that hardly count.

    The first takes longest in total, the second longest per call, and the third is called most
    often. The sizes are chosen so that this is so in real time, too: a solution may read the
    profiler's records in its own way.
    """
    most, longest, often = random.Random(seed).sample(ALIKE, 3)
    return [
        OperatorCalls(most, 9, 240_000, taking=700),
        OperatorCalls(longest, 1, 340_000, taking=2000),
        OperatorCalls(often, 20, 2, taking=10),
        *(OperatorCalls(name, 1, 2) for name in OTHERS),
    ]


def _make_work(device: Any, operators: list[OperatorCalls]) -> Callable[[], None]:
    """A function for the student to profile, which calls these operators, the last one first."""
    steps = []
    for operator in operators:
        numbers = torch.ones(operator.size).to(device)
        out = torch.empty(operator.size, device=device)
        # Looked up here: a profiler that records stacks would see it.
        steps.append((getattr(torch, operator.name), operator.times, numbers, out))

    def work() -> None:
        for function, times, numbers, out in reversed(steps):
            for _ in range(times):
                function(numbers, out=out)

    return work


class Names(Case, frozen=True):
    """One answer."""

    kind: str
    texts: bool
    names: list[str]


class Ranked(Case, frozen=True):
    """The answers for one device: with a `count`, with a large one, and without."""

    operators: list[str]  # the three of `_draw_operators`
    some: Names
    every: Names | None
    default: Names | None
    # Where there were no names: whether `fn` ran while the profiler was recording.
    recorded: bool


def _call_top_operations(call: Call, work: Any, **options: int) -> Names:
    """Call the student's function and describe the names it gave. Raises StudentRaised."""
    value = call(work, **options)
    names = value if isinstance(value, (list, tuple)) else ()
    return Names(
        kind=type(value).__name__,
        texts=all(isinstance(name, str) for name in names),
        names=[str(name) for name in names][:60],
    )


def _rank_operators(call: Call, device: Any, count: int, default: bool = False) -> Ranked:
    """Call the student's function several times on one device. Raises StudentRaised.

    It is asked for `count` names; with `default` also for very many, and without a count.
    """
    operators = _draw_operators(f"{call.seed} {device}")
    work = _make_work(device, operators)
    every = None
    without_count = None
    with operators_taking({f"aten::{each.name}": each.taking for each in operators}):
        some = _call_top_operations(call, work, count=count)
        if default:
            every = _call_top_operations(call, work, count=50)
            without_count = _call_top_operations(call, work)
        recorded = bool(some.names) or _is_run_under_profiler(call, work, count)
    names = [each.name for each in operators[:3]]
    return Ranked(names, some, every, without_count, recorded)


def _is_run_under_profiler(call: Call, work: Any, count: int) -> bool:
    """True if `fn` ran while the profiler was recording. Raises StudentRaised.

    Asked in a call of its own: a profiler that records stacks would see this function.
    """
    recording: list[bool] = []

    def fn() -> None:
        recording.append(torch._C._autograd._profiler_enabled())
        work()

    call(fn, count=count)
    return any(recording)


@top_operations.probe(machine="laptop")
def on_the_cpu(call: Call) -> Ranked:
    return _rank_operators(call, "cpu", count=3, default=True)


@top_operations.probe(machine="one gpu")
def on_the_gpu(call: Call) -> Ranked:
    return _rank_operators(call, call.device, count=2)


# ---- claims ------------------------------------------------------------------------------------

runs(top_operations)


@top_operations.check(points=0.25)
def gives_as_many_names_as_asked(seen: Seen, wanted: Seen) -> None:
    """It returns a list of `count` names such as "aten::mm"."""
    _expect_names(seen[on_the_cpu], 3)
    _expect_names(seen[on_the_gpu], 2)
    _expect_other_counts(seen[on_the_cpu], wanted[on_the_cpu])


def _expect_names(found: Ranked, count: int) -> None:
    """Raises Failed unless a call with this `count` gave so many names of operators."""
    answer = found.some
    if answer.kind != "list":
        raise returned_other_type(answer.kind, "a list of strings")
    if not answer.texts:
        happened = f"it returned a list of other things: {answer.names[:1]}"
        raise Failed(happened, "a list of strings")
    if len(answer.names) != count:
        happened = f"count={count} gave {len(answer.names)} names"
        if found.recorded:
            raise Failed(happened, str(count))
        happened = f"{happened}: `fn` did not run while the profiler was recording"
        raise Failed(happened, str(count), at=("fn(", "profile("))
    for name in answer.names:
        if "::" not in name:
            expected = "an operator's name from the profiler: aten::mm"
            raise Failed(f"one of the names is {name!r}", expected)


def _expect_other_counts(found: Ranked, wanted: Ranked) -> None:
    """Raises Failed unless there are five names without `count`, and all with a large one."""
    assert found.default is not None
    assert found.every is not None
    assert wanted.every is not None
    count = len(found.default.names)
    if count != 5:
        raise Failed(f"without `count` it gave {count} names", "5", at=("",))
    names = found.every.names
    right = wanted.every.names
    if set(names) != set(right):  # names given twice are another check's
        happened = f"count=50 gave {len(names)} names: {', '.join(names)}"
        expected = f"the {len(right)} operators that there are: {', '.join(right)}"
        raise Failed(happened, expected, at=("record_function(",))


@top_operations.check(points=0.5, needs=("runs", "gives_as_many_names_as_asked"))
def puts_the_longest_first(seen: Seen, wanted: Seen) -> None:
    """The operator that took most time in total comes first."""
    for probe, place in ((on_the_cpu, "the CPU"), (on_the_gpu, "the GPU")):
        right = wanted[probe].some.names
        names = seen[probe].some.names
        if names == right:
            continue
        most, longest, often = wanted[probe].operators
        work = f"20 short `{often}`, one long `{longest}` and 9 `{most}` on {place}"
        happened = f"{work} gave {', '.join(names)}"
        expected = f"{', '.join(right)}: by the time of all calls together"
        at = ("reversed(", "[::-1]", "reverse(") if names == right[::-1] else ()
        raise Failed(happened, expected, at=at)
