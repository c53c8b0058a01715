"""`time_on_device` and `compare_devices`: seconds per call."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gpudojo.days.day8.returned_numbers import float_or_none
from gpudojo.days.day8.timing_and_profiling.declaration import compare_devices, time_on_device
from gpudojo.days.day8.timing_and_profiling.timed_work import (
    HostClock,
    HostWork,
    Workshop,
    issue_time,
    open_workshop,
)
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, StudentRaised, torch, try_scenarios
from gpudojo.grading.checks import (
    count_in_words,
    expect_float,
    raised_instead,
    runs,
    scenario_pairs,
)
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed, Seen, returned_other_type

CLOCKS = ("perf_counter(", "time(", "monotonic(", "now(", "record(")
LAST = (*(f"last {name}" for name in CLOCKS), *CLOCKS)  # where it is stopped
MILLISECOND: Final = 1e-3
T = TypeVar("T", "Timed", "ComparedDevices")
At = tuple[str, ...]  # patterns for the line to show


# ---- scenarios ---------------------------------------------------------------------------------


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


class ComparedDevices(Case, frozen=True):
    """One call of `compare_devices`."""

    kind: str
    is_dict: bool
    rows: list[ComparedRow]
    repeats: int
    calls: dict[str, int]
    elsewhere: str
    line: int | None
    really: ComparedDevices | None
    clocks: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        return [row.key for row in self.rows]


def _draw_durations(call: Call, name: str, *milliseconds: float) -> list[float]:
    """About these durations, in seconds; different for every seed.

    So no answer is known beforehand. They are chosen so that no two mistakes give about the same
    answer, within 10 % either way.
    """
    generator = random.Random(f"{call.seed} {name}")
    return [value * generator.uniform(0.9, 1.1) * MILLISECOND for value in milliseconds]


class Bounds(NamedTuple):
    """What work took per call, and the least and the most that may be returned for it."""

    right: float
    least: float
    most: float


def _bounds_for(right: float, modelled: bool) -> Bounds:
    """The bounds for work that took `right` seconds per call."""
    if modelled:
        return Bounds(right, right * 0.98, right * 1.02)
    # That the host overslept, and a busy machine's odd millisecond, are not the student's fault.
    return Bounds(right, right * 0.9, right * 1.5 + 2 * MILLISECOND)


def _names_of_clocks(clock: HostClock) -> list[str]:
    """The clocks that student code has read: Python's by their names, and "event"."""
    names = set(clock.clocks_read)
    if clock.recorded_events:
        names.add("event")
    return sorted(names)


def _is_wall_clock(name: str) -> bool:
    return not name.startswith(("process_time", "thread_time"))


def _look_by_both_clocks(look: Callable[[bool], T], is_good: Callable[[T], bool]) -> T:
    """What `look(True)` sees by the modelled clock, and perhaps what is seen in real time.

    The second is in `really`. It is looked at where the modelled clock says nothing: for a wrong
    answer of code that has read no clock which the model moves on, but another one, such as that of
    `datetime`, or one that it kept in a default argument. Raises StudentRaised by the modelled
    clock only.
    """
    found = look(True)
    if is_good(found) or any(map(_is_wall_clock, found.clocks)):
        return found
    try:
        return msgspec.structs.replace(found, really=look(False))
    except StudentRaised:
        return found


class _Waited(NamedTuple):
    """Where a call waited for something that had nothing to do.

    That is a GPU ("gpu") or a stream ("stream"); "" and None if it did not.
    """

    elsewhere: str
    line: int | None


def _waited_elsewhere_in(call: Call) -> _Waited:
    """Where the latest call of the student's function waited in vain, from the ledger."""
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
        self.durations = _draw_durations(call, name, *milliseconds)
        self.device = device
        self.options = options

    def __call__(self) -> Timed:
        return _look_by_both_clocks(self.look, lambda found: found.value is None or found.fits)

    def look(self, modelled: bool) -> Timed:
        """Call the student's function once. Raises StudentRaised."""
        with open_workshop(self.call, modelled) as workshop:
            work = workshop.make(self.durations, self.device)
            value = self.call(Sealed(work), self.device, **self.options)
            clocks = _names_of_clocks(workshop.clock)
        repeats = self.options.get("repeats", 5)
        took = work.took
        bounds = _bounds_for(math.fsum(took[-repeats:]) / repeats, modelled)
        waited = _waited_elsewhere_in(self.call)
        return Timed(
            value=float_or_none(value),
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


@time_on_device.probe(machine="one gpu")
def beside_a_gpu(call: Call) -> Cases[Timed]:
    """Calls on the CPU of a machine with a GPU, then on the GPU.

    On the CPU there are three short calls and a long one, two slow calls to warm up, and the
    defaults.
    """
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


@time_on_device.probe(machine="two gpus", edge=True)
def beside_another_gpu(call: Call) -> Cases[Timed]:
    """A call on the second GPU.

    The first one, which is the current one, has nothing to do.
    """
    return try_scenarios(
        {"the_second_gpu": _TimingScenario(call, "second", "cuda:1", 60, 10, repeats=4, warmup=1)}
    )


@time_on_device.probe(machine="mac", edge=True)
def on_a_mac(call: Call) -> Cases[Timed]:
    return try_scenarios(
        {"an_apple_gpu": _TimingScenario(call, "mac", "mps", 60, 10, repeats=4, warmup=1)}
    )


@time_on_device.probe(machine="laptop", edge=True)
def without_a_gpu(call: Call) -> Cases[Timed]:
    return try_scenarios({"no_gpu": _TimingScenario(call, "laptop", "cpu", 4, repeats=3, warmup=1)})


class _ComparingScenario:
    """One call of `compare_devices`."""

    def __init__(self, call: Call, devices: list[Any], **options: int) -> None:
        self.call = call
        self.devices = devices
        self.options = options
        self.repeats = options.get("repeats", 3)

    def __call__(self) -> ComparedDevices:
        return _look_by_both_clocks(self.look, _all_fit)

    def look(self, modelled: bool) -> ComparedDevices:
        """Call the student's function once. Raises StudentRaised."""
        # The call; an error is shown at the line that used `make_work` wrongly.
        with open_workshop(self.call, modelled) as workshop:
            maker = _WorkMaker(self.call, workshop)
            try:
                found = self.call(Sealed(maker), self.devices, **self.options)
            except StudentRaised as error:
                line = maker.wrong_line or error.evidence.line
                raise error.with_facts(line=line) from None
            clocks = _names_of_clocks(workshop.clock)
        waited = _waited_elsewhere_in(self.call)
        rows = []
        if isinstance(found, dict):
            for key, value in dict.items(found):
                rows.append(_compared_row(key, value, maker.made, modelled))
        return ComparedDevices(
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


def _all_fit(found: ComparedDevices) -> bool:
    return all(row.value is None or row.fits for row in found.rows)


class _WorkMaker:
    """A `make_work` for student code.

    It remembers what it has made, by the name of the device.
    """

    def __init__(self, call: Call, workshop: Workshop) -> None:
        self.call = call
        self.workshop = workshop
        self.made: dict[str, HostWork] = {}
        self.wrong_line: int | None = None  # where it was called with no device, or several

    def __call__(self, *devices: Any) -> Sealed:
        """Work for one device, the same one for each call with it.

        Takes time by the clock. Raises TypeError for no device, or several, as a function of Python
        does.
        """
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
            durations = _draw_durations(self.call, key, *((40, 4) if on_cpu else (40, 10)))
            self.made[key] = self.workshop.make(durations, device)
        return Sealed(self.made[key])


def _compared_row(key: Any, value: Any, made: dict[str, HostWork], modelled: bool) -> ComparedRow:
    """What was returned for one device, beside what its work took.

    `key` and `value` are the student's; `made` is the work by device, and `modelled` whether the
    clock was.
    """
    name = str(key)
    took = made[name].took if name in made else []
    warm = took[1:]  # the first call of each device's work is the slow one
    mean = math.fsum(warm) / len(warm) if warm else 0.0
    bounds = _bounds_for(mean, modelled)
    return ComparedRow(
        value=float_or_none(value),
        took=took[:50],
        right=bounds.right,
        least=bounds.least,
        most=bounds.most,
        key=name,
        is_text=isinstance(key, str),
        asked=name in made,
    )


@compare_devices.probe(machine="one gpu")
def comparisons(call: Call) -> Cases[ComparedDevices]:
    """Comparisons of CPU and GPU in both orders.

    In the second the devices are objects, and the repeats others.
    """
    return try_scenarios(
        {
            "gpu_first": _ComparingScenario(call, ["cuda", "cpu"]),
            "cpu_first": _ComparingScenario(
                call, [torch.device("cpu"), torch.device("cuda:0")], repeats=5
            ),
        }
    )


@compare_devices.probe(machine="two gpus", edge=True)
def comparisons_with_two_gpus(call: Call) -> Cases[ComparedDevices]:
    return try_scenarios({"second_gpu": _ComparingScenario(call, ["cpu", "cuda:1"])})


# ---- claims ------------------------------------------------------------------------------------


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error of an event that the device had not reached; None for others."""
    early = "device not ready" in raised.message or "must be completed" in raised.message
    return "timed-without-synchronising" if early else None


ON_THE_CPU: Final = {
    "as_it_comes": "the defaults",
    "slow_first_calls": "repeats=3, warmup=2",
    "uneven_calls": "repeats=4, warmup=0",
}
runs(time_on_device, scenarios=(*ON_THE_CPU, "a_device_that_works_later"), diagnose=_why_it_raises)


def _is_near(value: float, right: float) -> bool:
    return math.isclose(value, right, rel_tol=0.05)


def _time_in_words(seconds: float) -> str:
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms"


def _note_on_issuing(value: float) -> str:
    """A note on a time in which work was issued, but not done; empty for other times."""
    if issue_time() / 2 < value < issue_time() * 2:
        return ": that is the time to issue the work, and not the time to run it"
    return ""


def _note_on_unit(value: float, right: float, repeats: int) -> str:
    """A note on an answer that is right except for its unit or its division.

    Empty for other answers. `value` and `right` are seconds per call of `repeats` calls.
    """
    if _is_near(value, right * repeats):
        return ": that is the time of all calls together, not of one"
    if value and value == round(value, 3) and abs(value - right) <= 0.05:
        return ": that is rounded"
    if _is_near(value, right * 1e3) or _is_near(value, right * 1e3 * repeats):
        return ": that is in milliseconds"
    if _is_near(value, right * 1e9):
        return ": that is in nanoseconds"
    return ""


def _note_on_division(found: Timed) -> str:
    """A note on a time that is right except that it was divided by all calls; else empty."""
    right = found.right * found.repeats / max(found.calls, 1)
    if _is_near(found.value or 0.0, right):
        return ": divided by all calls, including the warm-up"
    return ""


@time_on_device.check(points=0.25)
def calls_it_as_often_as_asked(seen: Seen, wanted: Seen) -> None:
    """`fn` is called exactly `warmup + repeats` times."""
    every = list(scenario_pairs(seen[beside_a_gpu], wanted[beside_a_gpu], *ON_THE_CPU))
    timed = seen[beside_a_gpu]["uneven_calls"]
    for name, found, right in every:
        if found.calls != right.calls:
            happened = f"with {ON_THE_CPU[name]} `fn` was called {count_in_words(found.calls)}"
            at = _loop_to_show(every, timed)
            lines = () if at is None else None
            raise Failed(happened, f"{right.calls} calls", at=at or (), ran=lines)


def _loop_to_show(every: Sequence[tuple[str, Timed, Timed]], timed: Timed) -> At | None:
    """Patterns for the loop that calls `fn` too often, or not often enough.

    None where no loop is more likely than the other. `every` has name, case and reference of all
    scenarios; `timed` is the one whose mean may tell which calls were timed.
    """
    surplus = {found.calls - right.calls for _, found, right in every}
    if len(surplus) == 1:  # the same number of calls too many in every scenario
        total = (timed.value or 0.0) * timed.repeats
        all_timed = total > 0 and _is_near(total, math.fsum(timed.took))
        return ("last for",) if all_timed else None
    if [name for name, found, right in every if found.calls != right.calls] == ["as_it_comes"]:
        return ("",)  # only the defaults are wrong
    if len({found.calls - found.repeats for _, found, _ in every}) == 1:
        return ("fn(",)  # `warmup` is not used
    return ("for",)


@time_on_device.check(points=0.25)
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
    note = _note_on_unit(found.value, found.right, found.repeats)
    if not note and found.clocks and not any(map(_is_wall_clock, found.clocks)):
        clock = found.clocks[0]
        note = f": {clock}() counts only the time of the processor, without waiting"
    raise Failed(f"{happened}{note}", f"their mean in seconds: {found.right:.4f}")


@time_on_device.check(points=0.25, needs=("runs", "gives_the_mean_per_call"))
def leaves_the_warm_up_out(seen: Seen, wanted: Seen) -> None:
    """The warm-up calls are not timed."""
    found = seen[beside_a_gpu]["slow_first_calls"]
    if found.holds:
        return
    found = found.best
    value = found.value or 0.0
    calls = "two warm-up calls of about 50 ms, then three of 10 ms,"
    happened = f"{calls} gave {_time_in_words(value)} per call"
    expected = f"{_time_in_words(found.right)}: the clock starts after the warm-up"
    key = "timed-the-warm-up" if value > found.right else None
    note = _note_on_division(found)
    if note:
        expected = f"{_time_in_words(found.right)}: divided by `repeats`"
        at = ("return", "last return")
        raise Failed(f"{happened}{note}", expected, misconception=key, at=at)
    raise Failed(happened, expected, misconception=key)


@time_on_device.check(points=0.5, needs=("runs", "gives_the_mean_per_call"))
def waits_for_the_device(seen: Seen, wanted: Seen) -> None:
    """The device is synchronised before the clock is started and before it is stopped."""
    found = seen[beside_a_gpu]["a_device_that_works_later"]
    if not found.holds:
        raise _waited_wrongly(found.best, "the GPU")


@time_on_device.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_an_apple_gpu(seen: Seen, wanted: Seen) -> None:
    """For "mps" it waits for the Mac's GPU, and does not call CUDA."""
    found = _case_without_error(seen[on_a_mac], "an_apple_gpu", 'device="mps" on a Mac')
    if not found.holds:
        raise _waited_wrongly(found.best, "the Mac's GPU")


def _waited_wrongly(found: Timed, device: str) -> Failed:
    """The failure of a wrong time on a GPU: a wrong unit, a wrong division or a missing wait."""
    value = found.value or 0.0
    right = found.right
    times = f"{_time_in_words(right)} per call and the clock says {_time_in_words(value)}"
    happened = f"{device} needed {times}"
    note = _note_on_unit(value, right, found.repeats)
    if note:
        expected = "seconds per call; an event's elapsed_time() is in milliseconds"
        return Failed(f"{happened}{note}", expected, at=("elapsed_time(",))
    note = _note_on_division(found)
    if note:
        expected = "the time of the timed calls, divided by their number"
        return Failed(f"{happened}{note}", expected)
    if found.elsewhere:
        return _waited_elsewhere(happened, found.elsewhere, found.line)
    key = "timed-without-synchronising"
    if value < right:
        stopped_early = ": the clock was stopped before the work was done"
        happened = f"{happened}{_note_on_issuing(value) or stopped_early}"
        expected = "a wait for `device` (CUDA or MPS) before the clock is started"
        return Failed(happened, f"{expected}, and one before it stops", None, key, LAST)
    happened = f"{happened}: the clock was started before the warm-up was done"
    expected = "a wait for `device` between the warm-up and the clock's start"
    return Failed(happened, f"{expected}, and one before it stops", None, key, CLOCKS)


def _waited_elsewhere(times: str, elsewhere: str, line: int | None) -> Failed:
    """The failure of a wait for a stream or a GPU that had no work.

    `times` begins its sentence; `elsewhere` is "stream" or "gpu".
    """
    if elsewhere == "stream":
        happened = f"{times}: it waited for a stream that had no work"
        expected = "a wait for all work of the device"
        return Failed(happened, expected, line, "timed-without-synchronising")
    happened = f"{times}: it waited for another GPU"
    expected = "a wait for the device that was passed in"
    return Failed(happened, expected, line, "current-gpu-used")


def _case_without_error(cases: Cases[Timed], name: str, what: str) -> Timed:
    """What was seen in a scenario, which is `what` in words. Raises Failed after an error."""
    raised = cases.errors.get(name)
    if raised is not None:
        key = "cuda-for-every-device" if "cuda" in raised.message.lower() else None
        raise raised_instead(raised, what, misconception=key)
    return cases[name]


@time_on_device.check(points=0.25)
def works_without_a_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cpu" it also works on a machine without a GPU."""
    found = _case_without_error(
        seen[without_a_gpu], "no_gpu", 'device="cpu" on a machine without a GPU'
    )
    if not found.calls or not found.value:
        calls = f"without a GPU `fn` was called {count_in_words(found.calls)}"
        happened = f"{calls}, and the time is {found.value}"
        raise Failed(happened, "the time of its calls, as with a GPU")


@time_on_device.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_the_right_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cuda:1" it waits for the second GPU, even if the first one is current."""
    found = seen[beside_another_gpu]["the_second_gpu"]
    if not found.holds:
        raise _waited_wrongly(found.best, "the second GPU")


runs(compare_devices)


@compare_devices.check(points=0.25)
def names_every_device_in_order(seen: Seen, wanted: Seen) -> None:
    """The keys are the devices as strings, in the order given."""
    for _, found, right in scenario_pairs(seen[comparisons], wanted[comparisons]):
        if not found.is_dict:
            raise returned_other_type(found.kind, "a dict")
        if not all(row.is_text for row in found.rows):
            happened = "for devices given as torch.device the keys are devices too"
            raise Failed(happened, "strings: str(device)")
        if found.keys != right.keys:
            raise Failed(f"the keys are {found.keys}", f"{right.keys}")


@compare_devices.check(points=0.25, needs=("runs", "names_every_device_in_order"))
def times_each_as_it_should(seen: Seen, wanted: Seen) -> None:
    """Each value is that device's own seconds per call, over `repeats` calls, with warm-up and
    waiting for it."""
    for found in seen[comparisons].values():
        _expect_right_times(found)
    few = seen[comparisons]["gpu_first"].calls["cpu"]
    many = seen[comparisons]["cpu_first"].calls["cpu"]
    if many - few != 2:
        default = f"by default the CPU's work was called {few} times"
        happened = f"{default}, with repeats=5 {many} times"
        more = "2 calls more with repeats=5 than by default, where it is 3"
        raise Failed(happened, f"{more}: pass `repeats` on", at=("time_on_device(",))
    second = seen[comparisons_with_two_gpus]["second_gpu"]
    if "cuda:1" not in second.keys:
        happened = f"with two GPUs and the devices cpu and cuda:1 the keys are {second.keys}"
        raise Failed(happened, "one for each device")
    _expect_right_times(second)


def _expect_right_times(found: ComparedDevices) -> None:
    """Raises Failed for a wrong time.

    The CPU's comes first: it needs no waiting, so that a mistake has fewer causes.
    """
    really = found.really or found
    best = really if all(row.fits for row in really.rows) else found
    for row in sorted(best.rows, key=lambda row: row.key != "cpu"):
        if row.value is None:
            raise Failed(f"the value for {row.key} is no number", "seconds as a float")
        if not row.asked:
            happened = f"`make_work` was never called for {row.key}"
            raise Failed(happened, "work made for every device")
        if not row.took:
            happened = f"the function that `make_work({row.key!r})` returned was never called"
            raise Failed(happened, "that function, timed", at=("lambda", "make_work("))
        if not row.fits:
            raise _wrong_time(row, row.value, best)


def _wrong_time(row: ComparedRow, value: float, found: ComparedDevices) -> Failed:
    """The failure of a wrong `value` for one device, with its cause where that can be told."""
    times = f"{_time_in_words(row.right)} per call, and its value is {_time_in_words(value)}"
    happened = f"{row.key} needed {times}"
    work = "the function that `make_work(device)` returns"
    expected = f"{work}, timed on that device as in `time_on_device`"
    note = _note_on_unit(value, row.right, found.repeats)
    if note:
        return Failed(f"{happened}{note}", expected)
    key = _mistake_of_timing(row, value, found.repeats)
    if key is None:
        return Failed(happened, expected)
    if key == "timed-without-synchronising" and found.elsewhere:
        return _waited_elsewhere(happened, found.elsewhere, found.line)
    at: At = ("warmup=", *CLOCKS)
    if key == "timed-without-synchronising" and value < row.right:
        at = LAST  # the clock was stopped early; otherwise it was started early
    return Failed(f"{happened}{_note_on_issuing(value)}", expected, None, key, at)


def _mistake_of_timing(row: ComparedRow, value: float, repeats: int) -> str | None:
    """The misconception behind a wrong time of one device; None if none is known."""
    total = math.fsum(row.took)  # with the slow first call
    with_warm_up = _is_near(value, total / repeats) or _is_near(value, total / len(row.took))
    if row.key == "cpu":  # where there is nothing to wait for
        return "timed-the-warm-up" if with_warm_up else None
    if value >= row.right and not with_warm_up:
        return None
    if len(row.took) <= repeats:
        return "timed-the-warm-up"
    return "timed-without-synchronising"
