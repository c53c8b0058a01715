"""`top_operations`: the operators that took most time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.timing_and_profiling.chosen_durations import operators_taking
from gpudojo.days.day8.timing_and_profiling.declaration import top_operations
from gpudojo.grading.call import Call, torch, try_inputs
from gpudojo.grading.checks import compare_cases, runs
from gpudojo.grading.differences import tell_apart
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type

ALIKE: Final = ("exp", "sin", "cos", "tanh", "log")  # take about equally long
OTHERS: Final = ("abs", "neg", "floor", "sign")  # are called once and take no time
# What makes several rows of one operator
SPLITTING: Final = (
    "group_by_input_shape=",
    "group_by_input_shapes=",
    "group_by_stack_n=",
    "group_by_overload_name=",
)

# ---- scenarios ---------------------------------------------------------------------------------


class OperatorCalls(NamedTuple):
    """An operator of torch, how often it is called, and on how many numbers at most.

    No two calls have inputs of the same shape, and every second one is told where to put its
    result: rows for an operator's shapes, overloads or lines are not rows for the operator.
    """

    name: str
    times: int
    size: int
    taking: float = 0.0  # microseconds per call, as the profiler reports it


def _draw_operators(seed: str) -> list[OperatorCalls]:
    """Three operators, and others that hardly count.

    The first takes longest in total, but not with half of its calls, the second longest per call,
    and the third is called most often. The sizes are chosen so that the first takes longest in real
    time, too: a solution may read the profiler's records in its own way. Their names are not in the
    order of the alphabet by any of these, nor backwards by the time in total.
    """
    draw = random.Random(seed)
    while True:
        most, longest, often = draw.sample(ALIKE, 3)
        by_total = [most, longest, often]
        by_mean = [longest, most, often]
        by_calls = [often, most, longest]
        alphabet = sorted(by_total)
        if alphabet not in (by_total, by_total[::-1], by_mean, by_calls):
            break
    return [
        OperatorCalls(most, 10, 240_000, taking=700),
        OperatorCalls(longest, 1, 340_000, taking=5000),
        OperatorCalls(often, 20, 40, taking=10),
        *(OperatorCalls(name, 1, 2) for name in OTHERS),
    ]


def _make_work(device: Any, operators: list[OperatorCalls]) -> Callable[[], None]:
    """A function for the student to profile, which calls these operators, the last one first.

    Its tensors are made here, on the device. Raises AttributeError for an operator that torch
    lacks.
    """
    steps = []
    for operator in operators:
        ones = torch.ones(operator.size).to(device)
        inputs = [ones[number:] for number in range(operator.times)]
        outs = [torch.empty_like(each) for each in inputs]
        # Looked up here: a profiler that records stacks would see it.
        steps.append((getattr(torch, operator.name), inputs, outs))

    def work() -> None:
        for function, inputs, outs in reversed(steps):
            for each, out in zip(inputs[::2], outs[::2], strict=True):
                function(each, out=out)
            for each in inputs[1::2]:
                function(each)

    return work


class RankedNames(Case, frozen=True):
    """One answer."""

    kind: str
    texts: bool
    names: list[str]
    work: str  # what `fn` does, in words
    recorded: bool  # whether `fn` ran while the profiler was recording, where there are no names


class RankingSetting(NamedTuple):
    """One scenario."""

    device: Any
    options: dict[str, int]


def _call_top_operations(call: Call, setting: RankingSetting) -> RankedNames:
    """Call the student's function and describe the names it gave. Raises StudentRaised."""
    operators = _draw_operators(f"{call.seed} {setting.device}")
    work = _make_work(setting.device, operators)
    durations = {}
    for operator in operators:
        durations[f"aten::{operator.name}"] = operator.taking
    with operators_taking(durations):
        value = call(work, **setting.options)
        names = []
        if isinstance(value, (list, tuple)):
            names = list(value)
        recorded = bool(names) or _is_run_under_profiler(call, work)
    most, longest, often, *_ = operators
    return RankedNames(
        kind=type(value).__name__,
        texts=all(isinstance(name, str) for name in names),
        names=[str(name) for name in names][:60],
        work=f"20 short `{often.name}`, one long `{longest.name}` and {most.times} `{most.name}`",
        recorded=recorded,
    )


def _is_run_under_profiler(call: Call, work: Any) -> bool:
    """True if `fn` ran while the profiler was recording. Raises StudentRaised.

    Asked in a call of its own: a profiler that records stacks would see this function.
    """
    recording: list[bool] = []

    def fn() -> None:
        recording.append(torch._C._autograd._profiler_enabled())
        work()

    call(fn)
    return any(recording)


@top_operations.probe(machine="laptop")
def on_the_cpu(call: Call) -> Cases[RankedNames]:
    """The names for work on the CPU, with several values of `count`.

    Raises StudentRaised for an error about a closed device or memory.
    """
    settings = {
        "count=3": RankingSetting("cpu", {"count": 3}),
        "count=50": RankingSetting("cpu", {"count": 50}),
        "no `count`": RankingSetting("cpu", {}),
    }
    return try_inputs(_call_top_operations, call, settings)


@top_operations.probe(machine="one gpu")
def on_the_gpu(call: Call) -> Cases[RankedNames]:
    settings = {"count=2": RankingSetting(call.device, {"count": 2})}
    return try_inputs(_call_top_operations, call, settings)


# ---- claims ------------------------------------------------------------------------------------

runs(top_operations)


@top_operations.check(points=0.25)
def gives_as_many_names_as_asked(seen: Seen, wanted: Seen) -> None:
    """It returns a list of `count` names such as "aten::mm"."""
    for scenario, found, right in compare_cases(seen, wanted, on_the_cpu, on_the_gpu):
        _expect_names(scenario, found)
        if scenario == "count=50":
            _expect_all_names(found, right)
        elif len(found.names) != len(right.names):
            happened = f"with {scenario} it gave {len(found.names)} names"
            at: tuple[str, ...] = ()
            if scenario == "no `count`":
                at = ("",)
            raise Failed(happened, str(len(right.names)), at=at)


def _expect_names(scenario: str, found: RankedNames) -> None:
    """Raises Failed unless a call gave names of operators."""
    if found.kind != "list":
        raise returned_other_type(found.kind, "a list of strings")
    if not found.texts:
        happened = f"it returned a list of other things: {found.names[:1]}"
        raise Failed(happened, "a list of strings")
    if not found.recorded:
        not_recorded = "`fn` did not run while the profiler was recording"
        happened = f"with {scenario} it gave no names: {not_recorded}"
        raise Failed(happened, "the names of operators", at=("fn(", "profile("))
    for name in found.names:
        if "::" not in name:
            expected = "an operator's name from the profiler: aten::mm"
            happened = f"one of the names is {name!r}"
            raise Failed(happened, expected, at=("record_function(",))


def _expect_all_names(found: RankedNames, right: RankedNames) -> None:
    """Raises Failed unless all operators are there. Names given twice are another check's."""
    if set(found.names) != set(right.names):
        names = ", ".join(found.names)
        right_names = ", ".join(right.names)
        happened = f"count=50 gave {len(found.names)} names: {names}"
        happened = tell_apart(happened, sorted(found.names), sorted(right.names), "the names")
        expected = f"the {len(right.names)} operators that there are: {right_names}"
        raise Failed(happened, expected, at=("record_function(",))


@top_operations.check(points=0.5, needs=("runs", "gives_as_many_names_as_asked"))
def puts_the_longest_first(seen: Seen, wanted: Seen) -> None:
    """The operator that took most time in total comes first."""
    _expect_order("the CPU", seen[on_the_cpu]["count=3"], wanted[on_the_cpu]["count=3"])
    _expect_order("the GPU", seen[on_the_gpu]["count=2"], wanted[on_the_gpu]["count=2"])


def _expect_order(place: str, found: RankedNames, right: RankedNames) -> None:
    """Raises Failed for names in another order than the reference's.

    `place` is the device, in words.
    """
    if found.names == right.names:
        return
    names = ", ".join(found.names)
    right_names = ", ".join(right.names)
    happened = f"{right.work} on {place} gave {names}"
    expected = f"{right_names}: by the time of all calls together"
    at: tuple[str, ...] = ("[-n:]", *SPLITTING)
    if found.names == right.names[::-1]:
        at = ("reversed(", "[::-1]", "reverse(")
    elif found.names == sorted(right.names):
        happened = f"{happened}: those are in the order of the alphabet"
        at = ("last sorted(", "last sort(", "set(")
    repeated = [name for name in found.names if found.names.count(name) > 1]
    if repeated:
        happened = f"{happened}: there are several rows for {repeated[0]}"
    raise Failed(happened, expected, at=at)
