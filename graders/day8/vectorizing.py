"""06: pixels all at once. The loop's values, without a loop, on the device, and faster than the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from graders.checks.common import runs
from graders.checks.timing import judge_speed
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Function, Seen
from graders.evidence import Array
from graders.probes import pixel_loops
from graders.probes.calling import Call, array
from graders.probes.late import torch
from graders.probes.speed import arrived, race, reference_here
from graders.probes.stepping import stepped

exercise = Exercise(
    "06_vectorizing_pixel_loops",
    "Pixels all at once, without Python loops",
    points=12,
    reading=("notes/broadcasting.html", "generated/torch.Tensor.permute.html", "generated/torch.argmin.html"),
)
grayscale = exercise.function(
    "grayscale",
    "`sprites[:, 0]` is the red of every pixel of every sprite at once.",
    "A number times a tensor multiplies every element; three such products can be added.",
    "Weights in a tensor need the sprites' device and the shape (3, 1, 1) to be broadcast over the channels.",
)
recolor = exercise.function(
    "recolor",
    "A tensor of indices can stand where a single index stands: `palette[indices]` looks all of them up at once.",
    "That has the shape (N, H, W, 3). The colours have to become the second dimension, not only by name.",
    "`permute` or `movedim` reorders dimensions; `reshape` and `view` only cut the same numbers up differently.",
)
nearest = exercise.function(
    "nearest_color",
    "Make room for the palette: (N, 1, 3, H, W) minus (1, K, 3, 1, 1) is every pixel minus every colour.",
    "Square the differences, sum them over the three channels, and (N, K, H, W) distances are left.",
    "`argmin` over the colours gives the index of the smallest, the first of them on a tie.",
)

Size = tuple[int, int, int, int]  # sprites, height, width, colours
USUAL: Final[tuple[Size, ...]] = ((2, 4, 4, 5), (3, 5, 7, 6), (4, 9, 2, 3))
SMALLEST: Final[tuple[Size, ...]] = ((1, 4, 3, 4), (2, 1, 1, 3), (2, 1, 5, 2), (3, 3, 2, 1), (1, 1, 1, 1))
# Every dimension but the palette grows twice. torch itself may change its way at some size, but not at both steps.
GROWING: Final[tuple[Size, ...]] = ((2, 4, 7, 4), (3, 5, 8, 4), (4, 6, 9, 4))
GUARD_READS: Final = 2  # numbers a call may read back, for an assertion about its input, say


def _dice(seed: int, size: Size) -> Any:
    count, height, width, colors = size
    return torch.Generator().manual_seed(((((seed * 97 + count) * 97 + height) * 97 + width) * 97 + colors) % 2**63)


def _eighths(dice: Any, *shape: int) -> Any:
    """Values whose squared differences float32 holds exactly, whatever the order they are computed in."""
    return torch.randint(0, 9, shape, generator=dice).float() / 8


def _for_grayscale(seed: int, size: Size) -> tuple[Any, ...]:
    count, height, width, _ = size
    return (torch.rand(count, 3, height, width, generator=_dice(seed, size)),)


def _for_recolor(seed: int, size: Size) -> tuple[Any, ...]:
    count, height, width, colors = size
    dice = _dice(seed, size)
    return torch.randint(0, colors, (count, height, width), generator=dice), torch.rand(colors, 3, generator=dice)


def _for_nearest(seed: int, size: Size, tied: bool = False) -> tuple[Any, ...]:
    """Sprites and palette such that every pixel has one nearest colour or, `tied`, two of them."""
    count, height, width, colors = size
    dice, wanted = _dice(seed, size), count * height * width
    # Distinct colours: a number below 729 is three digits of base nine.
    numbers = torch.randperm(729, generator=dice)[:colors]
    palette = torch.stack([numbers // 81, numbers // 9 % 9, numbers % 9], 1).float() / 8
    if tied:
        palette[-1] = palette[0]  # a colour twice, beside the ties between different colours
    found: Any = torch.empty(0, 3)
    while len(found) < wanted:
        pixels = _eighths(dice, 16 * wanted, 3)
        distances = (pixels[:, None] - palette).square().sum(2)
        ties = (distances == distances.amin(1, keepdim=True)).sum(1)
        found = torch.cat([found, pixels[ties > 1 if tied else ties == 1]])
    return found[:wanted].reshape(count, height, width, 3).permute(0, 3, 1, 2).contiguous(), palette


Make = Callable[[int, Size], tuple[Any, ...]]


def _seen(call: Call, inputs: tuple[Any, ...], result: Any) -> dict[str, Any]:
    """A result, and whether the inputs are as they were; `inputs` are the ones kept on the CPU."""
    if not isinstance(result, torch.Tensor):
        return {"class": type(result).__name__, "shape": [], "dtype": "", "device": "", "values": None}
    values = arrived(result)
    assert values is not None
    return {
        "class": "Tensor",
        "shape": list(values.shape),
        "dtype": str(result.dtype).removeprefix("torch."),
        "device": str(result.device),
        "values": values,
        "first_input": array(inputs[0]),
    }


def _called(call: Call, names: tuple[str, ...], inputs: tuple[Any, ...]) -> dict[str, Any]:
    given = tuple(tensor.to(call.device, copy=True) for tensor in inputs)
    facts = _seen(call, inputs, call(*given))
    in_place = {call.line_of(o) for o in call.ledger.operations() if o.name.split(".")[1].endswith("_")}
    changed = [name for name, a, b in zip(names, given, inputs, strict=True) if not torch.equal(a.cpu(), b)]
    return facts | {
        "changed": changed,
        "changing_line": in_place.pop() if len(in_place) == 1 else None,
        "input_device": str(given[0].device),
        "given": " and ".join(f"{name} {tuple(a.shape)}" for name, a in zip(names, inputs, strict=True)),
    }


def _trips(call: Call) -> dict[str, Any]:
    """What the last call brought to the host."""
    transfers = call.ledger.transfers_to_host()
    reads = [sync for sync in call.ledger.syncs() if sync.what in ("item", "tolist")]
    first = next(iter(transfers), None) or next(iter(reads), None)
    return {
        "transfers": len(transfers),
        "reads": len(reads),
        "lists": sum(read.what == "tolist" for read in reads),
        "line": None if first is None else call.line_of(first),
    }


def _declare(function: Function, names: tuple[str, ...], make: Make, loop: Callable[..., Any], clocked: Size) -> None:
    """The probes that all three functions have."""

    @function.probe
    def usual_sizes(call: Call) -> dict[str, Any]:
        return {str(size): _called(call, names, make(call.seed, size)) for size in USUAL}

    @function.probe
    def smallest_sizes(call: Call) -> dict[str, Any]:
        return {str(size): _called(call, names, make(call.seed, size)) for size in SMALLEST}

    @function.probe
    def growing_sizes(call: Call) -> dict[str, Any]:
        steps, ledgers = [], []
        for size in GROWING:
            given = tuple(tensor.to(call.device) for tensor in make(call.seed, size))
            steps.append(stepped(call, *given))
            ledgers.append(call.ledger)
        lines = {
            line: larger - smaller
            for (file, line), (smaller, larger) in ledgers[0].grown_lines(ledgers[-1]).items()
            if file == str(call.path)
        } or {line: count - steps[0][line] for line, count in steps[-1].items()}
        return {
            "pixels": [count * height * width for count, height, width, _ in GROWING],
            "operations": [len(ledger.operations()) for ledger in ledgers],
            "steps": [step.total() for step in steps],
            "line": max(lines, key=lambda line: lines[line], default=None),
        }

    def on_a_gpu(call: Call) -> dict[str, Any]:
        """Whatever the bench: on the plain CPU nothing could be seen of a trip to the host."""
        facts = _called(call, names, make(call.seed, USUAL[0]))
        return facts | _trips(call)

    function.probe(machine="a gpu")(on_a_gpu)

    @function.probe(machine="unwatched")
    def timed(call: Call) -> dict[str, Any]:
        def inputs(number: int) -> tuple[Any, ...]:
            return tuple(tensor.to(call.device) for tensor in make(call.seed + 1000 + number, clocked))

        return race(call, loop, reference_here(exercise.stem, function.name), inputs)


# The timed sizes make each loop take some milliseconds: a hundred times a vectorized call, and little beside the rest.
_declare(grayscale, ("sprites",), _for_grayscale, pixel_loops.grayscale_loop, (2, 4, 6, 2))
_declare(recolor, ("indices", "palette"), _for_recolor, pixel_loops.recolor_loop, (2, 8, 8, 2))
_declare(nearest, ("sprites", "palette"), _for_nearest, pixel_loops.nearest_color_loop, (2, 4, 6, 2))


@nearest.probe
def tied_colors(call: Call) -> dict[str, Any]:
    found = {}
    for size in ((2, 4, 4, 3), (3, 3, 5, 6)):
        found[str(size)] = _called(call, ("sprites", "palette"), _for_nearest(call.seed, size, tied=True))
    return found


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


def _judge_values(scenario: str, seen: Seen, wanted: Seen, diagnose: Diagnose) -> None:
    for size, right in wanted[scenario].facts.items():
        facts = seen[scenario].facts[size]
        if facts["class"] != "Tensor":
            misconception = "trip-through-numpy" if facts["class"] == "ndarray" else None
            raise Failed(f"it returned a {facts['class']}", "a tensor", misconception=misconception)
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
            raise Failed(f"the result's dtype is {facts['dtype']}", right["dtype"])
        happened, misconception = diagnose(facts, right)
        raise Failed(f"{right['given']}: {happened}", "the values the loop gives", misconception=misconception)


def _differing(facts: dict[str, Any], right: dict[str, Any]) -> tuple[str, str | None]:
    a, b = _numbers(facts["values"]), _numbers(right["values"])
    differ = abs(a.astype("float64") - b) > 1e-4
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


def _all_calls(seen: Seen) -> Iterator[dict[str, Any]]:
    for scenario in ("usual_sizes", "smallest_sizes", "tied_colors"):
        if scenario in seen:
            yield from seen[scenario].facts.values()
    yield seen["on_a_gpu"].facts


def _diagnose(scenario: str, message: str) -> str | None:
    """`.numpy()` is refused by the device, whatever else the common diagnoses say of devices in training loops."""
    return "numpy-on-device-tensor" if "to numpy" in message else None


def _claim(function: Function, values: float, diagnose: Diagnose) -> None:
    """The checks that all three functions have."""
    runs(function, points=0.25, diagnose=_diagnose)

    @function.check(points=values)
    def right_values(seen: Seen, wanted: Seen) -> None:
        """It gives the loop's values, on sizes that are not in the file."""
        _judge_values("usual_sizes", seen, wanted, diagnose)

    @function.check(points=0.25, needs=("runs", "right_values"))
    def right_on_the_smallest(seen: Seen, wanted: Seen) -> None:
        """It does so for a single sprite, a single pixel, a single row and a palette of one colour, too."""
        _judge_values("smallest_sizes", seen, wanted, diagnose)

    @function.check(points=1.25)
    def no_loop_over_pixels(seen: Seen, wanted: Seen) -> None:
        """The number of operations does not grow with the number of pixels."""
        facts = seen["growing_sizes"].facts
        for what, counts in (("operations", facts["operations"]), ("lines of Python", facts["steps"])):
            if all(a < b for a, b in pairwise(counts)):
                right = wanted["growing_sizes"].facts["operations"][-1]
                raise Failed(
                    f"{facts['pixels'][0]} pixels took {counts[0]} {what}, {facts['pixels'][-1]} pixels {counts[-1]}",
                    f"as many for any number of pixels; the reference takes {right} operations",
                    facts["line"],
                    "python-loop-over-elements",
                )

    @function.check(points=0.5)
    def stays_on_the_device(seen: Seen, wanted: Seen) -> None:
        """The result is on the input's device, without a trip through NumPy or the host."""
        facts = seen["on_a_gpu"].facts
        if facts["transfers"] or facts["lists"] or facts["reads"] > GUARD_READS:
            times = facts["transfers"] or facts["reads"]
            what = "copied from the device to the host" if facts["transfers"] else "a value was read back"
            raise Failed(
                f"{what} {'once' if times == 1 else f'{times} times'} in one call",
                "never: every step on the device",
                facts["line"],
                "trip-through-numpy",
            )
        for each in _all_calls(seen):
            if each["device"] != each["input_device"]:
                where = each["device"] or "no device"
                raise Failed(
                    f"the input is on {each['input_device']}, the result on {where}",
                    each["input_device"],
                    misconception="trip-through-numpy",
                )

    @function.check(points=0.25)
    def leaves_its_inputs_alone(seen: Seen, wanted: Seen) -> None:
        """What is passed in is not modified."""
        for facts in _all_calls(seen):
            if facts["changed"]:
                changed = " and ".join(f"`{name}`" for name in facts["changed"])
                raise Failed(
                    f"after the call {changed} had other values than before",
                    "the values from before",
                    facts["changing_line"],
                    "input-modified",
                )

    @function.check(points=0.75, needs=("runs", "right_values"))
    def faster_than_the_loop(seen: Seen, wanted: Seen) -> None:
        """It is several times as fast as the loop, timed in turns with the loop and the reference."""
        judge_speed(seen["timed"].facts, wanted["timed"].facts, same)


_claim(grayscale, 0.75, _weights)
_claim(recolor, 0.75, _reshaped)
_claim(nearest, 0.5, _differing)


@nearest.check(points=0.25, needs=("runs", "right_values"))
def lowest_index_on_a_tie(seen: Seen, wanted: Seen) -> None:
    """Where several colours are equally near, it gives the lowest index."""
    _judge_values("tied_colors", seen, wanted, _differing)
