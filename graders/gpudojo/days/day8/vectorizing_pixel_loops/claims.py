"""The checks of 06, which are the same for all three functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final

from gpudojo.days.day8 import pixel_loops
from gpudojo.days.day8.pixel_race import judge_outputs, judge_speed
from gpudojo.days.day8.vectorizing_pixel_loops.declaration import grayscale, nearest, recolor
from gpudojo.days.day8.vectorizing_pixel_loops.inputs import (
    GROWING,
    LARGE,
    LONG,
    MANY_COLORS,
    ON_THE_CPU,
    SIDE,
    TIED,
    Size,
    for_grayscale,
    for_nearest,
    for_recolor,
)
from gpudojo.days.day8.vectorizing_pixel_loops.pictures import (
    Growth,
    Picture,
    Pictures,
    PictureWork,
    Probes,
    covers_pixels,
    declare_probes,
    is_growing,
)
from gpudojo.days.day8.vectorizing_pixel_loops.wrong_values import (
    Explain,
    expect_same_pictures,
    explain_difference,
    explain_grayscale,
    explain_nearest,
    explain_recolor,
    have_same_values,
)
from gpudojo.grading.checks import count_in_words, runs
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Failed, Function, Seen

GUARD_READS: Final = 2  # numbers that a call may read back, for an assertion about its input
# A function that does nothing has no loops and leaves all alone.
VALUES: Final = ("runs", "right_values")
LOOP: Final = "python-loop-over-elements"
TRIP: Final = "trip-through-numpy"


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error; None if none is known.

    Unlike in a training loop, nothing has to be moved here, and the input determines the device.
    """
    if "to numpy" in raised.message:
        return "numpy-on-device-tensor"
    first, *_ = raised.message.split("\n")
    about_devices = "same device" in first
    if about_devices and first.endswith("on cuda:0)"):
        return "made-on-the-cpu"  # all inputs are on the GPU
    own_words, *_ = first.split(" (with ")
    about_cuda = "cuda" in own_words.lower()
    if first.endswith("on cpu)") and (about_devices or about_cuda):
        return "hard-coded-cuda"
    return None


def declare_checks(function: Function, points: float, explain: Explain, probes: Probes) -> None:
    """Declare the checks that all three functions have; `points` are those for right values.

    `explain` says what is wrong with a picture of this function. The checks are added to
    `function`.
    """
    pictures, timed = probes
    runs(function, diagnose=_why_it_raises)

    @function.check(points=points)
    def right_values(seen: Seen, wanted: Seen) -> None:
        """It gives the same values as the loop, for every size."""
        for group in ("usual", "on_the_cpu"):
            found = seen[pictures].in_group(group)
            right = wanted[pictures].in_group(group)
            expect_same_pictures(found, right, explain)

    @function.check(points=0.25, needs=VALUES)
    def right_on_the_smallest(seen: Seen, wanted: Seen) -> None:
        """It gives them for a single sprite, a single pixel, a single row and a palette of one
        colour, too."""
        found = seen[pictures].in_group("smallest")
        right = wanted[pictures].in_group("smallest")
        expect_same_pictures(found, right, explain)

    @function.check(points=1.25, needs=VALUES)
    def no_loop_over_pixels(seen: Seen, wanted: Seen) -> None:
        """The number of operations does not grow with the number or the size of the sprites."""
        growth = seen[pictures].growth
        operations = wanted[pictures].growth.operations[-1]
        _expect_every_line_counted(growth)
        _expect_no_other_process(growth)
        _expect_no_growth(growth, "operations", growth.operations, operations)
        _expect_no_growth(growth, "lines of Python", growth.steps, operations)
        _expect_no_single_pixels(growth, operations)

    @function.check(points=0.5, needs=VALUES)
    def stays_on_the_device(seen: Seen, wanted: Seen) -> None:
        """The result is on the input's device, without a trip through NumPy or the host."""
        growth = seen[pictures].growth
        _expect_no_reading(growth)
        _expect_no_upload(growth)
        _expect_work_on_device(seen[pictures])
        for found in _all_calls(seen[pictures], wanted[pictures]):
            if found.device != found.input_device:
                result = found.device or "no device"
                happened = f"the input is on {found.input_device}, the result on {result}"
                key = TRIP
                if found.input_device == "cpu":
                    key = "hard-coded-cuda"
                raise Failed(happened, found.input_device, misconception=key)

    @function.check(points=0.25, needs=VALUES)
    def leaves_its_inputs_alone(seen: Seen, wanted: Seen) -> None:
        """What is passed in is not modified."""
        for found in _all_calls(seen[pictures], wanted[pictures]):
            if found.changed:
                changed = " and ".join(f"`{name}`" for name in found.changed)
                happened = f"the call wrote into {changed}"
                line = found.changing_line
                expected = "inputs that nothing is written into"
                raise Failed(happened, expected, line, "input-modified")

    @function.check(points=0.75, needs=(*VALUES, "no_loop_over_pixels"))
    def faster_than_the_loop(seen: Seen, wanted: Seen) -> None:
        """It is several times as fast as the loop, by the modelled clock of a T4."""
        measured = seen[timed]
        right = wanted[timed]
        speed = seen[pictures].speed
        right_speed = wanted[pictures].speed
        if measured.raised is not None:
            seen.about(timed.name)
            raise _raised_in_timed_call(measured.raised)
        if speed.raised is not None:
            seen.about(pictures.name)
            raise _raised_in_timed_call(speed.raised)
        judge_outputs(measured, right, have_same_values, partial(seen.about, timed.name))
        if not have_same_values(speed.output, right_speed.output):
            happened = "the result of the timed call is wrong"
            raise Failed(happened, "the loop's values", at=("return",))
        judge_speed(speed, right_speed, measured, right)


def _raised_in_timed_call(raised: Raised) -> Failed:
    """The failure of a timed call that raised. The line shown is one of that call."""
    happened = f"a timed call raised {raised.short}"
    return Failed(happened, "no error", raised.line, None, ("return",))


def _all_calls(seen: Pictures, wanted: Pictures) -> Iterator[Picture]:
    """Yield every picture that the reference has, too, but for groups that ended with an error.

    Raises KeyError for one that the student's evidence lacks.
    """
    for group, pictures in wanted.groups.items():
        if group not in seen.errors:  # its own check reports it
            for size in pictures:
                yield seen.groups[group][size]


def _expect_every_line_counted(growth: Growth) -> None:
    """Raises Failed if values went to the host in calls that set or removed a tracer.

    Their lines are not known. Without values on the host, a loop would be one of operations.
    """
    has_gap = any(cost.has_gap for cost in growth.costs)
    if has_gap and any(cost.bytes or cost.reads for cost in growth.costs):
        happened = (
            "this could not be measured: your code set or removed a tracer "
            "(`sys.settrace`, `trace`, a debugger, coverage) while its lines were counted"
        )
        expected = "no tracer in the function; put it under `if __name__ == '__main__':`"
        raise Failed(happened, expected, at=("settrace", "runfunc", "set_trace", "breakpoint"))


def _expect_no_other_process(growth: Growth) -> None:
    """Raises Failed if values went to the host while another process ran.

    The lines of that process are not counted.
    """
    elsewhere = any(cost.elsewhere for cost in growth.costs)
    if elsewhere and any(cost.bytes for cost in growth.costs):
        copied = "the values were copied to the host"
        happened = f"{copied} while your code had another process running"
        line = growth.costs[-1].line
        raise Failed(happened, "all work in the function itself", line, LOOP)


def _expect_no_growth(growth: Growth, what: str, counts: list[int], operations: int) -> None:
    """Raises Failed if larger pictures took more operations or lines.

    That is so if each of the GROWING pictures took more than the one before, or if the fewest and
    the most of all `counts` differ by what a loop over a side of SIDE would add. `what` names the
    counts; `operations` is how many the reference takes.
    """
    growing = counts[: len(GROWING)]
    if is_growing(growing):
        small = f"{_sprites_in_words(GROWING[0])} took {growing[0]} {what}"
        last = GROWING[-1]
        large = f"{last.sprites} of {last.height} x {last.width} took {growing[-1]}"
        same = "the same number for more and larger sprites"
        expected = f"{same}; the reference takes {operations} operations"
        happened = f"{small}, {large}"
        raise Failed(happened, expected, growth.line, LOOP)
    # A loop may be as long as most of these pictures need, and operations for all of them be
    # recorded in the first call. Lines that only prepare something there are no matter.
    compared = counts
    if what != "operations":
        compared = counts[1:]
    fewest = min(compared, default=0)
    most = max(compared, default=0)
    if most - fewest >= SIDE - max(GROWING[-1]):
        happened = f"one picture took {fewest} {what}, another {most}"
        expected = "the same number for more and larger sprites"
        raise Failed(happened, expected, growth.line, LOOP, ("for",))


def _expect_no_single_pixels(growth: Growth, operations: int) -> None:
    """Raises Failed for as many operations on single pixels as the picture has.

    Such a loop may be as long as the largest picture it is meant for, whatever the size of this
    one.
    """
    largest = GROWING[-1]
    if growth.largest.single >= largest.pixels:
        took = f"{growth.largest.single} operations on single pixels"
        expected = f"operations on all of them; the reference takes {operations}"
        happened = f"{_sprites_in_words(largest)} took {took}"
        raise Failed(happened, expected, growth.largest.single_line, LOOP)


def _sprites_in_words(size: Size) -> str:
    return f"{size.sprites} sprites of {size.height} x {size.width} pixels"


def _expect_no_reading(growth: Growth) -> None:
    """Raises Failed if values were copied to the host, or more read than an assertion needs."""
    growing = growth.costs[: len(GROWING)]
    # Pixels in a Python list are processed one by one, or only made a tensor again.
    listed = all(cost.lists for cost in growing)
    more_bytes = is_growing([cost.bytes for cost in growing])
    more_steps = is_growing([cost.steps for cost in growing])
    key = TRIP
    if listed and more_bytes and (more_steps or growth.largest.mapped):
        key = LOOP
    for cost in growth.costs:
        if cost.transfers or cost.lists or cost.used or cost.reads > GUARD_READS:
            what = "a value was read back"
            if cost.transfers:
                what = "copied from the device to the host"
            count = count_in_words(cost.transfers or cost.reads)
            happened = f"{what} {count} in one call"
            raise Failed(happened, "never: every step on the device", cost.line, key)


def _expect_no_upload(growth: Growth) -> None:
    """Raises Failed if as many bytes as there are pixels were copied to the device, for every size.

    These are the result's, perhaps as part of a larger copy that is as large each time: weights or
    a palette are no more.
    """
    uploaded = growth.uploaded
    if not covers_pixels(uploaded):
        return
    first = GROWING[0]
    last = GROWING[-1]
    count = uploaded[len(GROWING) - 1]
    if not is_growing(uploaded[: len(GROWING)]):
        if growth.uploaded_for_large < LARGE.pixels:
            return
        last = LARGE
        count = growth.uploaded_for_large
    small = f"for {first.pixels} pixels {uploaded[0]} bytes were copied to the device"
    happened = f"{small}, for {last.pixels} {count}"
    line = growth.costs[0].uploading_line
    raise Failed(happened, "a result made on the device", line, TRIP)


def _expect_work_on_device(seen: Pictures) -> None:
    """Raises Failed if the device computed fewer numbers than a result has, or others."""
    names = [size.name for size in (*GROWING, *LONG)]
    pictures = seen.groups["usual"]
    for name, cost in zip(names, seen.growth.costs, strict=False):
        if cost.written:
            happened = "numbers came into the device's memory that nothing copied or computed there"
            raise Failed(happened, "a result made on the device", at=("return",))
        numbers = math.prod(pictures[name].shape)
        if cost.computed is not None and cost.computed < numbers:
            happened = f"the result has {numbers} numbers; the device computed {cost.computed}"
            raise Failed(happened, "a result made on the device", cost.line, TRIP)


# The timed sizes make each loop take some milliseconds: sixty times a vectorized call and more.
GRAYSCALE = declare_probes(
    PictureWork(
        function=grayscale,
        names=("sprites",),
        make=for_grayscale,
        loop=pixel_loops.grayscale_loop,
        clocked=Size(2, 4, 6, 2),
    )
)
RECOLOR = declare_probes(
    PictureWork(
        function=recolor,
        names=("indices", "palette"),
        make=for_recolor,
        loop=pixel_loops.recolor_loop,
        clocked=Size(2, 8, 8, 2),
        on_the_cpu=(*ON_THE_CPU, MANY_COLORS),
    )
)
NEAREST = declare_probes(
    PictureWork(
        function=nearest,
        names=("sprites", "palette"),
        make=for_nearest,
        loop=pixel_loops.nearest_color_loop,
        clocked=Size(2, 4, 6, 2),
        tied=TIED,
    )
)
declare_checks(grayscale, 1, explain_grayscale, GRAYSCALE)
declare_checks(recolor, 1, explain_recolor, RECOLOR)
declare_checks(nearest, 0.75, explain_nearest, NEAREST)


@nearest.check(points=0.25, needs=VALUES)
def lowest_index_on_a_tie(seen: Seen, wanted: Seen) -> None:
    """If several colours are equally near, it gives the lowest index."""
    tied = wanted[NEAREST.pictures].in_group("tied")
    expect_same_pictures(seen[NEAREST.pictures].in_group("tied"), tied, explain_difference)
