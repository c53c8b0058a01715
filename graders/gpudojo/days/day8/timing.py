"""10: timing and profiling."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gpudojo.days.day8.chosen_durations import operators_taking
from gpudojo.days.day8.timed_work import (
    HostClock,
    HostWork,
    Workshop,
    issue_time,
    open_workshop,
)
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, StudentRaised, torch, try_scenarios
from gpudojo.grading.checks import count_in_words, expect_float, runs, scenario_pairs
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, returned_other_type, with_article

exercise = Exercise(
    "10_timing_and_profiling",
    "How long does it take, and what takes so long?",
    points=4,
    reading=(
        "notes/cuda.html#asynchronous-execution",
        "profiler.html",
        "generated/torch.cuda.synchronize.html",
    ),
)
clock = exercise.function("time_on_device")
compare = exercise.function("compare_devices")
top = exercise.function("top_operations")
smi = exercise.function("read_nvidia_smi")
CLOCKS = ("perf_counter(", "time(", "monotonic(", "now(", "record(")
LAST = (*(f"last {name}" for name in CLOCKS), *CLOCKS)  # where it is stopped


# ---- time_on_device and compare_devices ------------------------------------------------------------------------------

MILLISECOND: Final = 1e-3
_near: Final = partial(math.isclose, rel_tol=0.05)
T = TypeVar("T", "Timed", "Compared")


class Bounded(Case, frozen=True):
    """A time that was returned, beside the right one and the limits within which it is accepted."""

    value: float | None
    took: list[float]
    right: float
    least: float
    most: float

    @property
    def fits(self) -> bool:
        return self.value is not None and bool(self.took) and self.least <= self.value <= self.most


class Timed(Bounded, frozen=True):
    """One call of `time_on_device`."""

    kind: str
    calls: int
    repeats: int
    clocks: list[str]  # which of our clocks it read
    elsewhere: str  # "gpu" or "stream": it waited for one that had nothing to do
    line: int | None  # where it did
    really: Timed | None  # the same in real time, for a function that read none of them

    @property
    def holds(self) -> bool:
        return self.fits or (self.really is not None and self.really.fits)

    @property
    def best(self) -> Timed:
        """By the clock that tells more: the simulated one if it was read, else the real one."""
        return self if self.clocks or self.really is None else self.really


class ComparedRow(Bounded, frozen=True):
    """The answer of `compare_devices` for one device."""

    key: str
    is_text: bool
    asked: bool  # whether `make_work` was called for it


class Compared(Case, frozen=True):
    """One call of `compare_devices`."""

    kind: str
    is_dict: bool
    rows: list[ComparedRow]
    repeats: int
    calls: dict[str, int]
    elsewhere: str
    line: int | None
    really: Compared | None
    clocks: tuple[str, ...] = ()


def _durations(call: Call, name: str, *milliseconds: float) -> list[float]:
    """About these durations, in seconds; different for every seed, so that no answer is known beforehand.

    They are chosen so that no two mistakes give about the same answer, within 10 % either way.
    """
    generator = random.Random(f"{call.seed} {name}")
    return [value * generator.uniform(0.9, 1.1) * MILLISECOND for value in milliseconds]


class Bounds(NamedTuple):
    """What work took per call, and the least and the most that may be returned for it."""

    right: float
    least: float
    most: float


def _bounds(right: float, modelled: bool) -> Bounds:
    """The bounds for work that took `right` seconds per call."""
    if modelled:
        return Bounds(right, right * 0.98, right * 1.02)
    # That the host overslept, and a busy machine's odd millisecond, are not the student's fault.
    return Bounds(right, right * 0.9, right * 1.5 + 2 * MILLISECOND)


def _number(value: Any) -> float | None:
    """The value as a float; None if it is no number."""
    return float(value) if isinstance(value, (int, float)) else None


def _clocks_read(clock: HostClock) -> list[str]:
    """The clocks that student code has read: Python's by their names, and "event"."""
    names = set(clock.clocks_read)
    if clock.recorded_events:
        names.add("event")
    return sorted(names)


def _is_wall_clock(name: str) -> bool:
    return not name.startswith(("process_time", "thread_time"))


def _look_by_both_clocks(look: Callable[[bool], T], is_good: Callable[[T], bool]) -> T:
    """What `look(modelled=True)` sees; with `really`, what is seen in real time, where the modelled clock says nothing.

    That is so for a wrong answer of code that has read no clock which the model moves on, but another one: that of
    `datetime`, or one that it kept in a default argument.
    """
    found = look(True)
    if is_good(found) or any(map(_is_wall_clock, found.clocks)):
        return found
    try:
        return msgspec.structs.replace(found, really=look(False))
    except StudentRaised:
        return found


class _Waited(NamedTuple):
    """Where a call waited for a GPU ("gpu") or a stream ("stream") that had nothing to do; else "" and None."""

    elsewhere: str
    line: int | None


def _waited_elsewhere_in(call: Call) -> _Waited:
    wait = call.ledger.useless_wait()
    if wait is None:
        return _Waited("", None)
    elsewhere = "stream" if wait.device_works else "gpu"
    in_file = wait.site is not None and wait.site.file == str(call.path)
    return _Waited(elsewhere, wait.site.line if in_file and wait.site is not None else None)


class _TimingScenario:
    """One call of `time_on_device`, with calls of `fn` that take about so long."""

    def __init__(
        self, call: Call, name: str, device: Any, *milliseconds: float, **options: int
    ) -> None:
        self.call = call
        self.durations = _durations(call, name, *milliseconds)
        self.device = device
        self.options = options

    def __call__(self) -> Timed:
        return _look_by_both_clocks(self.look, lambda found: found.value is None or found.fits)

    def look(self, modelled: bool) -> Timed:
        """Call the student's function once. Raises StudentRaised."""
        with open_workshop(self.call, modelled) as workshop:
            work = workshop.make(self.durations, self.device)
            value = self.call(Sealed(work), self.device, **self.options)
            clocks = _clocks_read(workshop.clock)
        repeats = self.options.get("repeats", 5)
        took = work.took
        bounds = _bounds(math.fsum(took[-repeats:]) / repeats, modelled)
        waited = _waited_elsewhere_in(self.call)
        return Timed(
            value=_number(value),
            took=took[:50],
            right=bounds.right,
            least=bounds.least,
            most=bounds.most,
            kind=type(value).__name__,
            calls=len(took),
            repeats=repeats,
            clocks=clocks,
            elsewhere=waited.elsewhere,
            line=waited.line,
            really=None,
        )


@clock.probe(machine="one gpu")
def beside_a_gpu(call: Call) -> Cases[Timed]:
    """On the CPU: three short calls and a long one, two slow calls to warm up, the defaults. Then on the GPU."""
    return try_scenarios(
        {
            "uneven_calls": _TimingScenario(
                call, "uneven", "cpu", 8, 8, 8, 40, repeats=4, warmup=0
            ),
            "slow_first_calls": _TimingScenario(
                call, "slow", torch.device("cpu"), 50, 50, 10, repeats=3, warmup=2
            ),
            "as_it_comes": _TimingScenario(call, "defaults", "cpu", 4),
            "a_device_that_works_later": _TimingScenario(
                call, "later", call.device, 40, 40, 10, repeats=4, warmup=2
            ),
        }
    )


@clock.probe(machine="two gpus", edge=True)
def beside_another_gpu(call: Call) -> Cases[Timed]:
    """The first one, which is the current one, has nothing to do."""
    return try_scenarios(
        {"the_second_gpu": _TimingScenario(call, "second", "cuda:1", 60, 10, repeats=4, warmup=1)}
    )


@clock.probe(machine="mac", edge=True)
def on_a_mac(call: Call) -> Cases[Timed]:
    return try_scenarios(
        {"an_apple_gpu": _TimingScenario(call, "mac", "mps", 60, 10, repeats=4, warmup=1)}
    )


@clock.probe(machine="laptop", edge=True)
def without_a_gpu(call: Call) -> Cases[Timed]:
    return try_scenarios({"no_gpu": _TimingScenario(call, "laptop", "cpu", 4, repeats=3, warmup=1)})


class _ComparingScenario:
    """One call of `compare_devices`."""

    def __init__(self, call: Call, devices: list[Any], **options: int) -> None:
        self.call = call
        self.devices = devices
        self.options = options
        self.repeats = options.get("repeats", 3)

    def __call__(self) -> Compared:
        return _look_by_both_clocks(self.look, _all_fit)

    def look(self, modelled: bool) -> Compared:
        """Call the student's function once. Raises StudentRaised."""
        with open_workshop(self.call, modelled) as workshop:
            maker = _WorkMaker(self.call, workshop)
            try:
                found = self.call(Sealed(maker), self.devices, **self.options)
            except StudentRaised as error:
                line = maker.wrong_line or error.evidence.line
                raise error.with_facts(line=line) from None
            clocks = _clocks_read(workshop.clock)
        waited = _waited_elsewhere_in(self.call)
        rows = []
        if isinstance(found, dict):
            for key, value in dict.items(found):
                rows.append(_compared_row(key, value, maker.made, modelled))
        return Compared(
            kind=type(found).__name__,
            is_dict=isinstance(found, dict),
            rows=rows,
            repeats=self.repeats,
            calls={name: len(work.took) for name, work in maker.made.items()},
            clocks=tuple(clocks),
            elsewhere=waited.elsewhere,
            line=waited.line,
            really=None,
        )


def _all_fit(found: Compared) -> bool:
    return all(row.value is None or row.fits for row in found.rows)


class _WorkMaker:
    """What a student gets as `make_work`; remembers what it has made, by the name of the device."""

    def __init__(self, call: Call, workshop: Workshop) -> None:
        self.call = call
        self.workshop = workshop
        self.made: dict[str, HostWork] = {}
        self.wrong_line: int | None = None  # where it was called with no device, or several

    def __call__(self, *devices: Any) -> Sealed:
        if len(devices) != 1:  # perhaps it was taken for the work itself, and called by a helper
            self.wrong_line = self.wrong_line or self.call.line_now(outermost=True)
            count = len(devices)
            raise TypeError(f"make_work() takes one device, but was called with {count} arguments")
        device = devices[0]
        # Making the work takes time too, which must not be counted.
        self.workshop.clock.sleep(25 * MILLISECOND)
        key = str(device)
        if key not in self.made:
            on_cpu = torch.device(device).type == "cpu"
            durations = _durations(self.call, key, *((40, 4) if on_cpu else (40, 10)))
            self.made[key] = self.workshop.make(durations, device)
        return Sealed(self.made[key])


def _compared_row(key: Any, value: Any, made: dict[str, HostWork], modelled: bool) -> ComparedRow:
    """What was returned for one device, beside what its work took."""
    name = str(key)
    took = made[name].took if name in made else []
    warm = took[1:]  # the first call of each device's work is the slow one
    mean = math.fsum(warm) / len(warm) if warm else 0.0
    bounds = _bounds(mean, modelled)
    return ComparedRow(
        value=_number(value),
        took=took[:50],
        right=bounds.right,
        least=bounds.least,
        most=bounds.most,
        key=name,
        is_text=isinstance(key, str),
        asked=name in made,
    )


@compare.probe(machine="one gpu")
def comparisons(call: Call) -> Cases[Compared]:
    """Both orders; the second as devices, and with other repeats."""
    return try_scenarios(
        {
            "gpu_first": _ComparingScenario(call, ["cuda", "cpu"]),
            "cpu_first": _ComparingScenario(
                call, [torch.device("cpu"), torch.device("cuda:0")], repeats=5
            ),
        }
    )


@compare.probe(machine="two gpus", edge=True)
def comparisons_with_two_gpus(call: Call) -> Cases[Compared]:
    return try_scenarios({"second_gpu": _ComparingScenario(call, ["cpu", "cuda:1"])})


def _unfinished(raised: Raised, seen: Seen) -> str | None:
    """An event that was asked for its time before the device had reached it."""
    early = "device not ready" in raised.message or "must be completed" in raised.message
    return "timed-without-synchronising" if early else None


ON_THE_CPU: Final = {
    "as_it_comes": "the defaults",
    "slow_first_calls": "repeats=3, warmup=2",
    "uneven_calls": "repeats=4, warmup=0",
}
runs(clock, scenarios=(*ON_THE_CPU, "a_device_that_works_later"), diagnose=_unfinished)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if not 0 < seconds < 1e-4 else f"{seconds * 1e6:.1f} µs"


def _issued(value: float) -> str:
    """A note on a time in which work was issued, but not done."""
    near = issue_time() / 2 < value < issue_time() * 2
    return ": that is the time to issue the work, and not the time to run it" if near else ""


def _slip(value: float, right: float, repeats: int) -> str | None:
    """What is wrong with an answer that is right except for its unit or its division."""
    if _near(value, right * repeats):
        return "that is the time of all calls together, not of one"
    if value and value == round(value, 3) and abs(value - right) <= 0.05:
        return "that is rounded"
    if _near(value, right * 1e3) or _near(value, right * 1e3 * repeats):
        return "that is in milliseconds"
    return "that is in nanoseconds" if _near(value, right * 1e9) else None


@clock.check(points=0.25)
def calls_it_as_often_as_asked(seen: Seen, wanted: Seen) -> None:
    """`fn` is called exactly `warmup + repeats` times."""
    every = list(scenario_pairs(seen[beside_a_gpu], wanted[beside_a_gpu], *ON_THE_CPU))
    wrong = [name for name, found, right in every if found.calls != right.calls]
    # Only the defaults may be wrong, or `warmup` may not be used.
    ignored = len({found.calls - found.repeats for _, found, _ in every}) == 1
    at = ("",) if wrong == ["as_it_comes"] else ("fn(",) if ignored else ("for",)
    timed = seen[beside_a_gpu]["uneven_calls"]  # whose mean may tell which calls were timed
    shown = None
    if (
        len({found.calls - right.calls for _, found, right in every}) == 1
    ):  # in every call the same number
        if timed.value and _near(timed.value * timed.repeats, math.fsum(timed.took)):
            at = ("last for",)
        else:  # no loop is more likely than the other
            shown = ()
    for name, found, right in every:
        if found.calls != right.calls:
            happened = f"with {ON_THE_CPU[name]} `fn` was called {count_in_words(found.calls)}"
            raise Failed(happened, f"{right.calls} calls", at=at, ran=shown)


@clock.check(points=0.25)
def gives_the_mean_per_call(seen: Seen, wanted: Seen) -> None:
    """It returns the mean number of seconds per call, as a float."""
    found = seen[beside_a_gpu]["uneven_calls"]
    expect_float(found.kind, found.value is not None)
    if found.holds:
        return
    found = found.best
    assert found.value is not None
    calls = ", ".join(f"{took * 1e3:.1f}" for took in found.took)
    happened = f"{len(found.took)} calls of {calls} ms gave {found.value:.6f}"
    slip = _slip(found.value, found.right, found.repeats)
    if slip:
        happened += f": {slip}"
    elif found.clocks and all(
        name.startswith(("process_time", "thread_time")) for name in found.clocks
    ):
        happened += f": {found.clocks[0]}() counts only the time of the processor, without waiting"
    raise Failed(happened, f"their mean in seconds: {found.right:.4f}")


@clock.check(points=0.25, needs=("runs", "gives_the_mean_per_call"))
def leaves_the_warm_up_out(seen: Seen, wanted: Seen) -> None:
    """The warm-up calls are not timed."""
    found = seen[beside_a_gpu]["slow_first_calls"]
    if found.holds:
        return
    found = found.best
    value = found.value or 0.0
    spread = _spread(found)
    raise Failed(
        f"two warm-up calls of about 50 ms, then three of 10 ms, gave {_ms(value)} per call"
        + spread,
        f"{_ms(found.right)}: {'divided by `repeats`' if spread else 'the clock starts after the warm-up'}",
        misconception="timed-the-warm-up" if value > found.right else None,
        at=("return", "last return") if spread else (),
    )


def _spread(found: Timed) -> str:
    """A note on a time that is right except that it was divided by all calls."""
    right = found.right * found.repeats / max(found.calls, 1)
    return (
        ": divided by all calls, including the warm-up" if _near(found.value or 0.0, right) else ""
    )


@clock.check(points=0.5, needs=("runs", "gives_the_mean_per_call"))
def waits_for_the_device(seen: Seen, wanted: Seen) -> None:
    """The device is synchronised before the clock is started and before it is stopped."""
    found = seen[beside_a_gpu]["a_device_that_works_later"]
    if not found.holds:
        raise _not_waited(found.best, "the GPU")


@clock.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_an_apple_gpu(seen: Seen, wanted: Seen) -> None:
    """For "mps" it waits for the Mac's GPU, and does not call CUDA."""
    found = _no_error(seen[on_a_mac], "an_apple_gpu", 'device="mps" on a Mac')
    if not found.holds:
        raise _not_waited(found.best, "the Mac's GPU")


def _not_waited(found: Timed, device: str) -> Failed:
    value = found.value or 0.0
    right = found.right
    said = f"{device} needed {_ms(right)} per call and the clock says {_ms(value)}"
    if slip := _slip(value, right, found.repeats):
        expected = "seconds per call; an event's elapsed_time() is in milliseconds"
        return Failed(f"{said}: {slip}", expected, at=("elapsed_time(",))
    if spread := _spread(found):
        return Failed(said + spread, "the time of the timed calls, divided by their number")
    if found.elsewhere:
        return _waited_elsewhere(said, found.elsewhere, found.line)
    if value < right:
        happened = said + (_issued(value) or ": the clock was stopped before the work was done")
        expected = (
            "a wait for `device` (CUDA or MPS) before the clock is started, and one before it stops"
        )
        where = LAST
    else:
        happened = f"{said}: the clock was started before the warm-up was done"
        expected = (
            "a wait for `device` between the warm-up and the clock's start, and one before it stops"
        )
        where = CLOCKS
    return Failed(happened, expected, None, "timed-without-synchronising", where)


def _waited_elsewhere(said: str, elsewhere: str, line: int | None) -> Failed:
    if elsewhere == "stream":
        happened = f"{said}: it waited for a stream that had no work"
        expected = "a wait for all work of the device"
        return Failed(happened, expected, line, "timed-without-synchronising")
    happened = f"{said}: it waited for another GPU"
    expected = "a wait for the device that was passed in"
    return Failed(happened, expected, line, "current-gpu-used")


def _no_error(cases: Cases[Timed], name: str, what: str) -> Timed:
    if (raised := cases.errors.get(name)) is not None:
        key = "cuda-for-every-device" if "cuda" in raised.message.lower() else None
        raise Failed(f"{what} raised {raised.short}", "no error", raised.line, key)
    return cases[name]


@clock.check(points=0.25)
def works_without_a_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cpu" it also works on a machine without a GPU."""
    found = _no_error(seen[without_a_gpu], "no_gpu", 'device="cpu" on a machine without a GPU')
    if not found.calls or not found.value:
        happened = f"without a GPU `fn` was called {count_in_words(found.calls)}, and the time is {found.value}"
        raise Failed(happened, "the time of its calls, as with a GPU")


@clock.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_the_right_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cuda:1" it waits for the second GPU, even if the first one is current."""
    found = seen[beside_another_gpu]["the_second_gpu"]
    if not found.holds:
        raise _not_waited(found.best, "the second GPU")


runs(compare)


@compare.check(points=0.25)
def names_every_device_in_order(seen: Seen, wanted: Seen) -> None:
    """The keys are the devices as strings, in the order given."""
    for _, found, right in scenario_pairs(seen[comparisons], wanted[comparisons]):
        if not found.is_dict:
            raise returned_other_type(found.kind, "a dict")
        keys = [row.key for row in found.rows]
        wished = [row.key for row in right.rows]
        if not all(row.is_text for row in found.rows):
            raise Failed(
                "for devices given as torch.device the keys are devices too", "strings: str(device)"
            )
        if keys != wished:
            raise Failed(f"the keys are {keys}", f"{wished}")


@compare.check(points=0.25, needs=("runs", "names_every_device_in_order"))
def times_each_as_it_should(seen: Seen, wanted: Seen) -> None:
    """Each value is that device's own seconds per call, over `repeats` calls, with warm-up and waiting for it."""
    for found in seen[comparisons].values():
        _every_row(found)
    few, many = (seen[comparisons][name].calls for name in ("gpu_first", "cpu_first"))
    if many["cpu"] - few["cpu"] != 2:
        raise Failed(
            f"by default the CPU's work was called {few['cpu']} times, with repeats=5 {many['cpu']} times",
            "2 calls more with repeats=5 than by default, where it is 3: pass `repeats` on",
            at=("time_on_device(",),
        )
    second = seen[comparisons_with_two_gpus]["second_gpu"]
    if "cuda:1" not in (keys := [row.key for row in second.rows]):
        raise Failed(
            f"with two GPUs and the devices cpu and cuda:1 the keys are {keys}",
            "one for each device",
        )
    _every_row(second)


def _every_row(found: Compared) -> None:
    """Raises Failed for a wrong time; the CPU's first, which needs no waiting, so that a mistake has fewer causes."""
    really = found.really or found
    best = really if all(row.fits for row in really.rows) else found
    for row in sorted(best.rows, key=lambda row: row.key != "cpu"):
        if row.value is None:
            raise Failed(f"the value for {row.key} is no number", "seconds as a float")
        if not row.asked:
            raise Failed(
                f"`make_work` was never called for {row.key}", "work made for every device"
            )
        if not row.took:
            happened = f"the function that `make_work({row.key!r})` returned was never called"
            raise Failed(happened, "that function, timed", at=("lambda", "make_work("))
        if not row.fits:
            raise _mistimed(row, row.value, best)


def _mistimed(row: ComparedRow, value: float, found: Compared) -> Failed:
    repeats = found.repeats
    at: tuple[str, ...] = ()
    said = f"{row.key} needed {_ms(row.right)} per call, and its value is {_ms(value)}"
    expected = (
        "the function that `make_work(device)` returns, timed on that device as in `time_on_device`"
    )
    if slip := _slip(value, row.right, repeats):
        return Failed(f"{said}: {slip}", expected)
    all_in = [
        math.fsum(row.took) / repeats,
        math.fsum(row.took) / len(row.took),
    ]  # with the slow first call
    with_warm_up = any(_near(value, mean) for mean in all_in)
    misconception = None
    if row.key == "cpu":
        misconception = "timed-the-warm-up" if with_warm_up else None
    elif value < row.right or with_warm_up:
        misconception = (
            "timed-the-warm-up" if len(row.took) <= repeats else "timed-without-synchronising"
        )
        if found.elsewhere and misconception == "timed-without-synchronising":
            return _waited_elsewhere(said, found.elsewhere, found.line)
    if misconception is not None:
        late = value < row.right  # the clock was stopped early; otherwise it was started early
        said += _issued(value)
        at = LAST if misconception != "timed-the-warm-up" and late else ("warmup=", *CLOCKS)
    return Failed(said, expected, None, misconception, at)


# ---- top_operations --------------------------------------------------------------------------------------------------

# Microseconds per call, in the simulation: the first takes longest in total, the second longest per call, and the third
# is called first and most often.
TAKING: Final = (700.0, 2000.0, 10.0)
ALIKE: Final = ("exp", "sin", "cos", "tanh", "log")  # take about equally long
OTHERS: Final = ("abs", "neg", "floor", "sign")  # are called once and take no time
MOST: Final = 8  # attempts
UNNOTICED: Final = 0.0003  # seconds lost to other processes that cannot change the order


def _work(
    device: Any, operators: list[str], calls: tuple[int, int, int], sizes: tuple[int, int, int]
) -> Any:
    """Calls of three operators, so many of each and on so many numbers; the last one first. And one of each other."""
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
    """The answers with a `count`, with a large one and without one, and in real time if the first was unexpected."""

    operators: list[str]
    some: Names
    every: Names | None
    default: Names | None
    really: list[str] | None
    recorded: bool = (
        True  # where there were no names: whether `fn` ran while the profiler was recording
    )


def _names(call: Call, work: Any, **options: int) -> Names:
    value = call(work, **options)
    names = value if isinstance(value, (list, tuple)) else ()
    return Names(
        type(value).__name__,
        all(isinstance(name, str) for name in names),
        list(map(str, names))[:60],
    )


def _ranked(call: Call, device: Any, count: int, default: bool = False) -> Ranked:
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
        # It may read the profiler's records in its own way. In real time each takes several times the next one.
        work = _work(device, operators, calls=(64, 1, 60), sizes=(32_768, 327_680, 2))
        work()
        really = _undisturbed(lambda: _names(call, work, count=count).names)
    return Ranked(right, some, every, unasked, really, recorded)


def _recorded(call: Call, work: Any, count: int) -> bool:
    """Asked in a call of its own: a profiler that records stacks would see this function."""
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


@top.probe(machine="laptop")
def on_the_cpu(call: Call) -> Ranked:
    return _ranked(call, "cpu", count=3, default=True)


@top.probe(machine="one gpu")
def on_the_gpu(call: Call) -> Ranked:
    return _ranked(call, call.device, count=2)


runs(top)


@top.check(points=0.25)
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


@top.check(points=0.5, needs=("runs", "gives_as_many_names_as_asked"))
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


# ---- read_nvidia_smi -------------------------------------------------------------------------------------------------


class GpuRow(Case, frozen=True):
    """One item of the list: its type, and each value with its type, because 3 and "3" print alike."""

    kind: str
    values: dict[str, tuple[str, str | None]]

    def __str__(self) -> str:
        if self.kind != "dict":
            return with_article(self.kind)
        values = [
            (key, kind, repr(text) if kind == "str" else text)
            for key, (kind, text) in self.values.items()
        ]
        return (
            "{"
            + ", ".join(
                f"{k}: {text} ({kind})" if text else f"{k}: None" for k, kind, text in values
            )
            + "}"
        )


class Read(Case, frozen=True):
    """What one text gave."""

    text: str
    kind: str
    gpus: list[GpuRow]


def _read(call: Call, text: str) -> Read:
    try:
        answer = call(text)
    except StudentRaised as error:
        raise error.with_facts(
            message=f"{error.evidence.message} (for the text {text!r})"
        ) from None

    def row(gpu: Any) -> GpuRow:
        values = dict.items(gpu) if isinstance(gpu, dict) else ()
        shown = {str(k): (type(v).__name__, None if v is None else str(v)) for k, v in values}
        return GpuRow("dict" if isinstance(gpu, dict) else type(gpu).__name__, shown)

    return Read(
        text, type(answer).__name__, list(map(row, answer)) if isinstance(answer, list) else []
    )


MODELS: Final = (
    "NVIDIA H200",
    "NVIDIA A100-SXM4-80GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GB10",
)


def _texts(seed: int) -> dict[str, str]:
    """What nvidia-smi may print; the last GPU of `several` comes first, as with `nvidia-smi -i`.

    Only `blank` ends with an end of line: who splits at those gets an empty line, which is the subject of one check.
    """
    draw = random.Random(seed)
    names = draw.sample(MODELS, 5)
    used = draw.sample(range(1, 9_999), 5)
    total = draw.sample(range(10_000, 150_000), 5)
    rows = [f"{index}, {names[index]}, {used[index]}, {total[index]}\n" for index in range(5)]
    return {
        "one": rows[0].strip(),
        "several": f"{draw.randrange(10, 99)}, {names[4]}, 0, {total[4]}\n{rows[0]}{rows[1].strip()}",
        "unknown": f"0, {names[3]}, [N/A], [N/A]\n1, {names[2]}, [N/A], {total[2]}",
        "blank": f"\n{rows[0]}\n\n{rows[1]}\n",
        "nothing": "",
    }


@smi.probe(machine="laptop")
def texts(call: Call) -> Cases[Read]:
    return try_scenarios(
        {name: partial(_read, call, text) for name, text in _texts(call.seed).items()}
    )


runs(smi, scenarios=("one", "several"))


def _same_gpus(seen: Seen, wanted: Seen, *names: str) -> None:
    usual = [
        gpu for name in ("one", "several") if name in seen[texts] for gpu in seen[texts][name].gpus
    ]
    for name in names:
        right = wanted[texts][name]
        if (raised := seen[texts].errors.get(name)) is not None:
            raise Failed(f"it raised {raised.short}", "no error", raised.line)
        found = seen[texts][name]
        if found.kind != "list":
            raise returned_other_type(found.kind, "a list of dicts")
        if (count := len(found.gpus)) != len(right.gpus):
            happened = f"{right.text!r} gave {count} dict{'s' * (count != 1)}"
            raise Failed(happened, f"{len(right.gpus)}", at=("first return",))
        for gpu, wished in zip(found.gpus, right.gpus, strict=True):
            if gpu != wished:
                elsewhere = (
                    ("sorted(", "sort(") if gpu in right.gpus else ()
                )  # that GPU is another line's
                unlike = {key for key in wished.values if gpu.values.get(key) != wished.values[key]}
                kinds = {gpu.values.get(key, ("", None))[0] for key in unlike}
                number = unlike <= {"used_mib", "total_mib"} and kinds <= {"int", "NoneType"}
                memory = (
                    ('== "[N/A]"', "int(")
                    if number
                    else ("last split(",)
                    if unlike == {"name"}
                    else ()
                )
                about = (
                    "reads_every_gpu" if gpu in usual else ""
                )  # what is as wrong there is that check's
                raise Failed(
                    f"{right.text!r} gave {gpu}", str(wished), at=elsewhere or memory, about=about
                )


@smi.check(points=0.25)
def reads_every_gpu(seen: Seen, wanted: Seen) -> None:
    """One dict per GPU, in the order of the lines, with its name and its numbers as ints."""
    _same_gpus(seen, wanted, "one", "several")


@smi.check(points=0.25)
def reads_missing_values(seen: Seen, wanted: Seen) -> None:
    """`[N/A]` becomes None."""
    _same_gpus(seen, wanted, "unknown")


@smi.check(points=0.25)
def skips_blank_lines(seen: Seen, wanted: Seen) -> None:
    """Empty lines are skipped; an empty text gives an empty list."""
    _same_gpus(seen, wanted, "blank", "nothing")
