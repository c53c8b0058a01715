"""`top_operations`: the operators that took most time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from gpudojo.days.day8.timing_and_profiling.chosen_durations import operators_taking
from gpudojo.days.day8.timing_and_profiling.declaration import top_operations
from gpudojo.grading.call import Call, torch
from gpudojo.grading.checks import runs
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import Failed, Seen, returned_other_type

# Microseconds per call, in the simulation: the first takes longest in total, the second longest
# per call, and the third is called first and most often.
TAKING: Final = (700.0, 2000.0, 10.0)
ALIKE: Final = ("exp", "sin", "cos", "tanh", "log")  # take about equally long
OTHERS: Final = ("abs", "neg", "floor", "sign")  # are called once and take no time
MOST: Final = 8  # attempts
UNNOTICED: Final = 0.0003  # seconds lost to other processes that cannot change the order


def _work(
    device: Any, operators: list[str], calls: tuple[int, int, int], sizes: tuple[int, int, int]
) -> Any:
    """A function for the student to profile.

    It calls three operators, each so often and on so many numbers, the last one first. It also
    calls each of OTHERS once.
    """
    parts = []
    more = zip(OTHERS, (1, 1, 1, 1), (2, 2, 2, 2), strict=True)
    for name, count, size in (*zip(operators, calls, sizes, strict=True), *more):
        # Looked up here: a profiler that records stacks would see it.
        parts.append(
            (
                getattr(torch, name),
                count,
                torch.ones(size).to(device),
                torch.empty(size, device=device),
            )
        )

    def work() -> None:
        for operator, count, numbers, out in reversed(parts):
            for _ in range(count):
                operator(numbers, out=out)

    return work


class Names(Case, frozen=True):
    """One answer."""

    kind: str
    texts: bool
    names: list[str]


class Ranked(Case, frozen=True):
    """The answers for one device.

    There is one with a `count`, one with a large one, one without, and one in real time if the
    first was unexpected.
    """

    operators: list[str]
    some: Names
    every: Names | None
    default: Names | None
    really: list[str] | None
    # Where there were no names: whether `fn` ran while the profiler was recording.
    recorded: bool = True


def _names(call: Call, work: Any, **options: int) -> Names:
    """Call the student's function and describe the names it gave. Raises StudentRaised."""
    value = call(work, **options)
    names = value if isinstance(value, (list, tuple)) else ()
    return Names(
        type(value).__name__,
        all(isinstance(name, str) for name in names),
        list(map(str, names))[:60],
    )


def _ranked(call: Call, device: Any, count: int, default: bool = False) -> Ranked:
    """Call the student's function several times on one device. Raises StudentRaised."""
    operators = random.Random(f"{call.seed} {device}").sample(ALIKE, 3)
    right = [f"aten::{name}" for name in operators]
    with operators_taking(dict(zip(right, TAKING, strict=True))):
        work = _work(device, operators, calls=(9, 1, 20), sizes=(2, 2, 2))
        some = _names(call, work, count=count)
        every = None
        unasked = None
        if default:
            every = _names(call, work, count=50)
            unasked = _names(call, work)
        recorded = bool(some.names) or _recorded(call, work, count)
    really = None
    if some.names[:3] != right[: len(some.names)]:
        # It may read the profiler's records in its own way. In real time each takes several times
        # the next one.
        work = _work(device, operators, calls=(64, 1, 60), sizes=(32_768, 327_680, 2))
        work()
        really = _undisturbed(lambda: _names(call, work, count=count).names)
    return Ranked(right, some, every, unasked, really, recorded)


def _recorded(call: Call, work: Any, count: int) -> bool:
    """True if `fn` ran while the profiler was recording. Raises StudentRaised.

    Asked in a call of its own: a profiler that records stacks would see this function.
    """
    found: list[bool] = []

    def fn() -> None:
        found.append(torch._C._autograd._profiler_enabled())
        work()

    call(fn, count=count)
    return any(found)


def _undisturbed(look: Callable[[], list[str]]) -> list[str]:
    """The result of the attempt that lost least time to other processes on this machine."""
    found: list[tuple[float, list[str]]] = []
    while len(found) < MOST and not any(lost < UNNOTICED for lost, _ in found):
        began = time.perf_counter()
        own = time.thread_time()
        names = look()
        found.append((time.perf_counter() - began - (time.thread_time() - own), names))
    return min(found, key=itemgetter(0))[1]


@top_operations.probe(machine="laptop")
def on_the_cpu(call: Call) -> Ranked:
    return _ranked(call, "cpu", count=3, default=True)


@top_operations.probe(machine="one gpu")
def on_the_gpu(call: Call) -> Ranked:
    return _ranked(call, call.device, count=2)


runs(top_operations)


@top_operations.check(points=0.25)
def gives_as_many_names_as_asked(seen: Seen, wanted: Seen) -> None:
    """It returns a list of `count` names such as "aten::mm"."""
    for probe, count in ((on_the_cpu, 3), (on_the_gpu, 2)):
        answer = seen[probe].some
        if answer.kind != "list":
            raise returned_other_type(answer.kind, "a list of strings")
        if not answer.texts:
            raise Failed(
                f"it returned a list of other things: {answer.names[:1]}", "a list of strings"
            )
        if len(answer.names) != count:
            happened = f"count={count} gave {len(answer.names)} names"
            if not seen[probe].recorded:
                happened += ": `fn` did not run while the profiler was recording"
                raise Failed(happened, f"{count}", at=("fn(", "profile("))
            raise Failed(happened, f"{count}")
        strange = [operator for operator in answer.names if "::" not in operator]
        if strange:
            raise Failed(
                f"one of the names is {strange[0]!r}",
                "an operator's name from the profiler: aten::mm",
            )
    # Without `count`, and with a large one
    unasked = seen[on_the_cpu].default
    every = seen[on_the_cpu].every
    right = wanted[on_the_cpu].every
    assert unasked is not None
    assert every is not None
    assert right is not None
    if len(unasked.names) != 5:
        raise Failed(f"without `count` it gave {len(unasked.names)} names", "5", at=("",))
    if set(every.names) != set(right.names):  # names given twice are another check's
        happened = f"count=50 gave {len(every.names)} names: {', '.join(every.names)}"
        expected = f"the {len(right.names)} operators that there are: {', '.join(right.names)}"
        raise Failed(happened, expected, at=("record_function(",))


@top_operations.check(points=0.5, needs=("runs", "gives_as_many_names_as_asked"))
def puts_the_longest_first(seen: Seen, wanted: Seen) -> None:
    """The operator that took most time in total comes first."""
    for probe, place in ((on_the_cpu, "the CPU"), (on_the_gpu, "the GPU")):
        found = seen[probe]
        right = wanted[probe].some.names
        if right not in (found.some.names, found.really):
            most, longest, often = (name.removeprefix("aten::") for name in wanted[probe].operators)
            work = f"20 short `{often}`, one long `{longest}` and 9 `{most}` on {place}"
            turned = right[::-1] in (found.some.names, found.really)
            happened = f"{work} gave {', '.join(found.some.names)}{': in reverse order' * turned}"
            at = ("reversed(", "[::-1]", "reverse(") if turned else ()
            raise Failed(happened, f"{', '.join(right)}: by the time of all calls together", at=at)
