"""`compare_devices`: seconds per call on several devices."""

from __future__ import annotations

import math
from typing import Any

from gpudojo.days.day8.returned_numbers import float_or_none
from gpudojo.days.day8.timing_and_profiling.declaration import compare_devices
from gpudojo.days.day8.timing_and_profiling.measured_times import (
    CLOCKS,
    LAST,
    MILLISECOND,
    At,
    Bounded,
    bounds_for,
    draw_durations,
    failure_of_waiting_elsewhere,
    is_near,
    look_by_both_clocks,
    names_of_clocks,
    note_on_issuing,
    note_on_unit,
    reads_wall_clock,
    time_in_words,
    useless_wait_in,
)
from gpudojo.days.day8.timing_and_profiling.timed_work import HostWork, Workshop, open_workshop
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, StudentRaised, torch, try_scenarios
from gpudojo.grading.checks import runs, scenario_pairs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type

# ---- scenarios -----------------------------------------------------------------------------------


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


class _ComparingScenario:
    """One call of `compare_devices`."""

    def __init__(self, call: Call, devices: list[Any], **options: int) -> None:
        self.call = call
        self.devices = devices
        self.options = options
        self.repeats = options.get("repeats", 3)

    def __call__(self) -> ComparedDevices:
        return look_by_both_clocks(self.look, _is_enough)

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
            clocks = names_of_clocks(workshop.clock)
        waited = useless_wait_in(self.call)
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


def _is_enough(found: ComparedDevices) -> bool:
    """True if it is known by the modelled clock whether all answers are right."""
    all_fit = all(row.value is None or row.fits for row in found.rows)
    return all_fit or reads_wall_clock(found.clocks)


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
            durations = draw_durations(self.call, key, *((40, 4) if on_cpu else (40, 10)))
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
    bounds = bounds_for(mean, modelled)
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


# ---- claims --------------------------------------------------------------------------------------

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
    times = f"{time_in_words(row.right)} per call, and its value is {time_in_words(value)}"
    happened = f"{row.key} needed {times}"
    work = "the function that `make_work(device)` returns"
    expected = f"{work}, timed on that device as in `time_on_device`"
    note = note_on_unit(value, row.right, found.repeats)
    if note:
        return Failed(f"{happened}{note}", expected)
    key = _mistake_of_timing(row, value, found.repeats)
    if key is None:
        return Failed(happened, expected)
    if key == "timed-without-synchronising" and found.elsewhere:
        return failure_of_waiting_elsewhere(happened, found.elsewhere, found.line)
    at: At = ("warmup=", *CLOCKS)
    if key == "timed-without-synchronising" and value < row.right:
        at = LAST  # the clock was stopped early; otherwise it was started early
    return Failed(f"{happened}{note_on_issuing(value)}", expected, None, key, at)


def _mistake_of_timing(row: ComparedRow, value: float, repeats: int) -> str | None:
    """The misconception behind a wrong time of one device; None if none is known."""
    total = math.fsum(row.took)  # with the slow first call
    with_warm_up = is_near(value, total / repeats) or is_near(value, total / len(row.took))
    if row.key == "cpu":  # where there is nothing to wait for
        return "timed-the-warm-up" if with_warm_up else None
    if value >= row.right and not with_warm_up:
        return None
    if len(row.took) <= repeats:
        return "timed-the-warm-up"
    return "timed-without-synchronising"
