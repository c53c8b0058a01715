"""How is 06 judged? By the loop's values, the growth of the work, the device, the inputs and the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from graders.checks.common import runs
from graders.checks.timing import judge_speed
from graders.curriculum import Failed
from graders.curriculum.exercise import Function, Seen
from graders.curriculum.wording import called
from graders.day8.vectorizing.functions import grayscale, nearest, recolor
from graders.evidence import Array

SLOWED: Final = 4.0  # a busy or smaller machine may slow the loop down that much; the student's call is slower, too
GUARD_READS: Final = 2  # numbers a call may read back, for an assertion about its input, say


def _numbers(values: Array) -> Any:
    import numpy as np

    return np.frombuffer(values.data, values.dtype).reshape(values.shape)


def same(found: Array | None, right: Array | None) -> bool:
    """Equal integers, or floats as close as another order of adding leaves them."""
    import numpy as np

    if found is None or right is None or found.shape != right.shape:
        return False
    a, b = _numbers(found), _numbers(right)
    if b.dtype.kind in "iu":
        return found.dtype in ("int64", "int32") and bool((a == b).all())
    return a.dtype.kind == "f" and bool(np.allclose(a, b, rtol=0, atol=1e-4))


Diagnose = Callable[[dict[str, Any], dict[str, Any]], tuple[str, str | None]]


def _judge_values(group: str, seen: Seen, wanted: Seen, diagnose: Diagnose) -> None:
    for size, right in wanted["pictures"].facts[group].items():
        facts = seen["pictures"].facts[group][size]
        if facts["class"] != "Tensor":
            misconception = "trip-through-numpy" if facts["class"] == "ndarray" else None
            raise Failed(f"it returned {called(facts['class'])}", "a tensor", misconception=misconception)
        if same(facts["values"], right["values"]):
            continue
        if facts["shape"] != right["shape"]:
            transposed = len(right["shape"]) == 4 and facts["shape"] == [right["shape"][i] for i in (0, 2, 3, 1)]
            raise Failed(
                f"{right['given']} gave the shape {tuple(facts['shape'])}",
                f"the shape {tuple(right['shape'])}",
                misconception="channels-last" if transposed else None,
            )
        if facts["dtype"] != right["dtype"] and not facts["dtype"].startswith(right["dtype"].rstrip("0123456789")):
            expected = "int64 or int32" if right["dtype"] == "int64" else right["dtype"]
            raise Failed(f"the result's dtype is {facts['dtype']}", expected)
        happened, misconception = diagnose(facts, right)
        if misconception is None and facts["changed"]:
            happened, misconception = f"{happened}, and `{facts['changed'][0]}` was modified", "input-modified"
        line = facts["changing_line"] if misconception == "input-modified" else None
        raise Failed(f"{right['given']}: {happened}", "the values the loop gives", line, misconception)


def _differing(facts: dict[str, Any], right: dict[str, Any]) -> tuple[str, str | None]:
    a, b = _numbers(facts["values"]), _numbers(right["values"])
    differ = ~(abs(a.astype("float64") - b) <= 1e-4)  # no number is near a NaN
    where = tuple(int(i) for i in next(iter(zip(*differ.nonzero(), strict=True)), (0,) * a.ndim))
    return (
        f"{int(differ.sum())} of {a.size} values differ; at {list(where)} it gave {a[where]:.6g}, not {b[where]:.6g}",
        None,
    )


def _weights(facts: dict[str, Any], right: dict[str, Any]) -> tuple[str, str | None]:
    """Other weights leave a trace: they can be read off the result."""
    import numpy as np

    a, channels = _numbers(facts["values"]).astype("float64"), _numbers(facts["first_input"])
    pixels = np.moveaxis(channels, 1, -1).reshape(-1, 3).astype("float64")
    found = np.linalg.lstsq(pixels, a.reshape(-1), rcond=None)[0]
    if np.isfinite(a).all() and np.allclose(pixels @ found, a.reshape(-1), atol=1e-4):
        red, green, blue = found
        return f"the result is {red:.3f} red {green:+.3f} green {blue:+.3f} blue", "wrong-weights"
    return _differing(facts, right)


def _reshaped(facts: dict[str, Any], right: dict[str, Any]) -> tuple[str, str | None]:
    import numpy as np

    a, b = _numbers(facts["values"]), _numbers(right["values"])
    if np.allclose(np.moveaxis(b, 1, -1).reshape(b.shape), a, atol=1e-4):
        return "every colour is there, but its red, green and blue lie beside each other", "reshape-for-permute"
    return _differing(facts, right)


def _all_calls(seen: Seen, wanted: Seen) -> Iterator[dict[str, Any]]:
    for group in ("usual", "smallest", "tied", "on_the_cpu"):
        for size in wanted["pictures"].facts.get(group, ()):
            yield seen["pictures"].facts[group][size]


def _diagnose(scenario: str, message: str) -> str | None:
    """Not what devices mean in a training loop: here nothing has to be moved, and the input says where to work."""
    if "to numpy" in message:
        return "numpy-on-device-tensor"
    first = message.partition("\n")[0]
    if first.endswith("on cpu)") and ("same device" in first or "cuda" in first.partition(" (with ")[0].lower()):
        return "hard-coded-cuda"
    return None


def _judge_trips(facts: dict[str, Any], misconception: str) -> None:
    if facts["transfers"] or facts["lists"] or facts["reads"] > GUARD_READS:
        times = facts["transfers"] or facts["reads"]
        what = "copied from the device to the host" if facts["transfers"] else "a value was read back"
        raise Failed(
            f"{what} {'once' if times == 1 else f'{times} times'} in one call",
            "never: every step on the device",
            facts["trip_line"],
            misconception,
        )


def _with_an_honest_loop(facts: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """The loop ran beside student code, which may slow it down; beside the reference nobody did."""
    for name in ("student", "loop"):
        if not math.isfinite(facts[name]):
            raise Failed(f"the time of the {name} is {facts[name]}", "a number of seconds")
    return facts | {"loop": min(facts["loop"], SLOWED * right["loop"])}


def _claim(function: Function, values: float, diagnose: Diagnose) -> None:
    """The checks that all three functions have."""
    runs(function, points=0.25, diagnose=_diagnose)

    @function.check(points=values)
    def right_values(seen: Seen, wanted: Seen) -> None:
        """It gives the loop's values, on sizes that are not in the file."""
        _judge_values("usual", seen, wanted, diagnose)
        _judge_values("on_the_cpu", seen, wanted, diagnose)

    @function.check(points=0.25, needs=("runs", "right_values"))
    def right_on_the_smallest(seen: Seen, wanted: Seen) -> None:
        """It does so for a single sprite, a single pixel, a single row and a palette of one colour, too."""
        _judge_values("smallest", seen, wanted, diagnose)

    @function.check(points=1.25)
    def no_loop_over_pixels(seen: Seen, wanted: Seen) -> None:
        """The number of operations does not grow with the number of pixels."""
        facts = seen["pictures"].facts["growth"]
        for what, counts in (("operations", facts["operations"]), ("lines of Python", facts["steps"])):
            if all(a < b for a, b in pairwise(counts)):
                right = wanted["pictures"].facts["growth"]["operations"][-1]
                raise Failed(
                    f"{facts['pixels'][0]} pixels took {counts[0]} {what}, {facts['pixels'][-1]} pixels {counts[-1]}",
                    f"as many for any number of pixels; the reference takes {right} operations",
                    facts["line"],
                    "python-loop-over-elements",
                )

    @function.check(points=0.5)
    def stays_on_the_device(seen: Seen, wanted: Seen) -> None:
        """The result is on the input's device, without a trip through NumPy or the host."""
        usual = [seen["pictures"].facts["usual"][size] for size in wanted["pictures"].facts["usual"]]
        # Pixels in a Python list are gone through one by one, by `map` or a C function if not by a line of Python.
        listed = all(facts["lists"] for facts in usual) and all(
            a["trip_bytes"] < b["trip_bytes"] for a, b in pairwise(usual)
        )
        for facts in usual:
            _judge_trips(facts, "python-loop-over-elements" if listed else "trip-through-numpy")
        for facts in _all_calls(seen, wanted):
            if facts["device"] != facts["input_device"]:
                raise Failed(
                    f"the input is on {facts['input_device']}, the result on {facts['device'] or 'no device'}",
                    facts["input_device"],
                    misconception="hard-coded-cuda" if facts["input_device"] == "cpu" else "trip-through-numpy",
                )

    @function.check(points=0.25)
    def leaves_its_inputs_alone(seen: Seen, wanted: Seen) -> None:
        """What is passed in is not modified."""
        for facts in _all_calls(seen, wanted):
            if facts["changed"]:
                changed = " and ".join(f"`{name}`" for name in facts["changed"])
                raise Failed(
                    f"after the call {changed} had other values than before",
                    "the values from before",
                    facts["changing_line"],
                    "input-modified",
                )

    @function.check(points=0.75, needs=("runs", "right_values", "no_loop_over_pixels"))
    def faster_than_the_loop(seen: Seen, wanted: Seen) -> None:
        """It is several times as fast as the loop, timed in turns with the loop and the reference."""
        facts = seen["timed"].facts
        if "raised" in facts:
            raise Failed(f"a timed call raised {facts['raised']}", "no error", facts["line"])
        if not facts["outputs"] or len(facts["outputs"]) != len(facts["loop_outputs"]):
            raise Failed(f"{len(facts['outputs'])} timed calls gave a result", "one of each timed call")
        judge_speed(_with_an_honest_loop(facts, wanted["timed"].facts), wanted["timed"].facts, same)


_claim(grayscale, 0.75, _weights)
_claim(recolor, 0.75, _reshaped)
_claim(nearest, 0.5, _differing)


@nearest.check(points=0.25, needs=("runs", "right_values"))
def lowest_index_on_a_tie(seen: Seen, wanted: Seen) -> None:
    """Where several colours are equally near, it gives the lowest index."""
    _judge_values("tied", seen, wanted, _differing)
