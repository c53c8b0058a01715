"""06: vectorised code instead of loops over pixels."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpudojo.days.day8 import pixel_race
from gpudojo.days.day8.pixel_race import arrived, race, reference_here, stepped
from gpudojo.grading.call import Call, StudentRaised, array, torch
from gpudojo.grading.judge import judge_speed, runs
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Exercise, Failed, Function, Seen, called

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger


STAY = 'Work where the input is, and leave it as it is: no `.cpu()`, no NumPy, no "cuda", no `*=` or `[...] =` on it.'
ONES = "A single sprite or pixel has dimensions of size 1. A bare `squeeze()` drops them all: name the one you mean."
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
    "The weights are the loop's: 0.299 for red, 0.587 for green, 0.114 for blue; one number per pixel is left.",
    STAY,
    ONES,
)
recolor = exercise.function(
    "recolor",
    "A tensor of indices can stand where a single index stands: `palette[indices]` looks all of them up at once.",
    "`palette[indices]` has the shape (N, H, W, 3). The colours have to become the second dimension, not only by name.",
    "`permute` or `movedim` reorders dimensions; `reshape` and `view` only cut the same numbers up differently.",
    STAY,
    ONES,
)
nearest = exercise.function(
    "nearest_color",
    "Make room for the palette: (N, 1, 3, H, W) minus (1, K, 3, 1, 1) is every pixel minus every colour.",
    "Square pixel minus colour first, then sum over the three channels: (N, K, H, W) distances are left.",
    "`argmin` over the colours gives the index of the smallest, the first of them on a tie.",
    STAY,
    ONES,
)
for each in (grayscale, recolor, nearest):
    last = len(each.hints)
    each.when("right_on_the_smallest", hint=last, at=("squeeze(", "return", "last return"))
    each.when("stays_on_the_device", "leaves_its_inputs_alone", hint=last - 1, at=("[] =", "return", "last return"))
    each.when("trip-through-numpy", "numpy-on-device-tensor", "hard-coded-cuda", "input-modified", hint=last - 1)
    each.when("python-loop-over-elements", "no_loop_over_pixels", "faster_than_the_loop", hint=1)
grayscale.when("runs", hint=3)
grayscale.when("right_values", "wrong-weights", hint=4, at=("mean(", "tensor(", "return", "last return"))
recolor.when("right_values", "channels-last", hint=2, at=("permute(", "movedim(", "return", "last return"))
recolor.when("reshape-for-permute", hint=3)
nearest.when("right_values", hint=2, at=("argmin(", "return", "last return"))
nearest.when("lowest_index_on_a_tie", hint=3, at=("argmin(", "return", "last return"))


Size = tuple[int, int, int, int]  # sprites, height, width, colours
Make = Callable[[int, Size], tuple[Any, ...]]


def _dice(seed: int, size: Size) -> Any:
    count, height, width, colors = size
    return torch.Generator().manual_seed(((((seed * 97 + count) * 97 + height) * 97 + width) * 97 + colors) % 2**63)


def for_grayscale(seed: int, size: Size) -> tuple[Any, ...]:
    count, height, width, _ = size
    return (torch.rand(count, 3, height, width, generator=_dice(seed, size)),)


def for_recolor(seed: int, size: Size) -> tuple[Any, ...]:
    count, height, width, colors = size
    dice = _dice(seed, size)
    return torch.randint(0, colors, (count, height, width), generator=dice), torch.rand(colors, 3, generator=dice)


def for_nearest(seed: int, size: Size, tied: bool = False) -> tuple[Any, ...]:
    """Sprites and palette such that every pixel has one nearest colour or, `tied`, two of them."""
    count, height, width, colors = size
    dice, wanted = _dice(seed, size), count * height * width
    every = _every_color()
    palette = every[torch.randperm(len(every), generator=dice)[:colors]]
    if tied:
        palette[-1] = palette[0]  # a colour twice, beside the ties between different colours
    distances = (every[:, None] - palette).square().sum(2)
    nearest = (distances == distances.amin(1, keepdim=True)).sum(1)
    candidates = every[nearest > 1 if tied else nearest == 1]
    pixels = candidates[torch.randint(0, len(candidates), (wanted,), generator=dice)]
    return pixels.reshape(count, height, width, 3).permute(0, 3, 1, 2).contiguous(), palette


def with_ties(seed: int, size: Size) -> tuple[Any, ...]:
    return for_nearest(seed, size, tied=True)


@lru_cache(maxsize=1)
def _every_color() -> Any:
    """All colours of eighths: float32 holds their squared differences exactly, in whatever order they are added."""
    eighths = torch.arange(9) / 8
    return torch.cartesian_prod(eighths, eighths, eighths)


# Every dimension but the palette grows twice. torch itself may change its way at some size, but not at both steps.
GROWING: Final[tuple[Size, ...]] = ((2, 4, 4, 4), (3, 5, 7, 4), (4, 6, 9, 4))
SMALLEST: Final[tuple[Size, ...]] = ((1, 4, 3, 5), (2, 1, 1, 3), (3, 3, 2, 1), (1, 1, 1, 1))
TIED: Final[tuple[Size, ...]] = ((2, 4, 4, 3), (3, 3, 5, 6))
ON_THE_CPU: Final[tuple[Size, ...]] = ((2, 3, 4, 3),)
MANY_COLORS: Final[tuple[Size, ...]] = ((2, 3, 4, 600),)  # more than a byte can count, and most of them


class Pictures:
    """One function called on pictures of many sizes, all on one bench: to open a bench for each would take longer."""

    def __init__(self, call: Call, names: tuple[str, ...]) -> None:
        self.call, self.names = call, names
        self.ledgers: list[Ledger] = []
        self.lines: list[Counter[int]] = []
        self.kept: list[Any] = []  # alive, so that no two pictures have one address: an answer may remember by it

    def growing(self, make: Make) -> dict[str, Any]:
        found = {}
        for size in GROWING:
            found[str(size)] = self._called(make(self.call.seed, size), stepping=True) | _trips(self.call)
            self.ledgers.append(self.call.ledger)
        return found

    def each(self, make: Make, sizes: tuple[Size, ...], device: Any = None) -> dict[str, Any]:
        return {str(size): self._called(make(self.call.seed, size), device) for size in sizes}

    def growth(self) -> dict[str, Any]:
        """How many operations and lines of Python the growing pictures took."""
        first, last = self.ledgers[0], self.ledgers[-1]
        grown = {line: b - a for (file, line), (a, b) in first.grown_lines(last).items() if file == str(self.call.path)}
        grown = grown or {line: count - self.lines[0][line] for line, count in self.lines[-1].items()}
        return {
            "pixels": [count * height * width for count, height, width, _ in GROWING],
            "operations": [len(ledger.operations()) for ledger in self.ledgers],
            "steps": [lines.total() for lines in self.lines],
            "line": max(grown, key=lambda line: grown[line], default=None),
        }

    def _called(self, inputs: tuple[Any, ...], device: Any = None, stepping: bool = False) -> dict[str, Any]:
        """What came of one call, and whether its inputs are as they were."""
        given = tuple(tensor.to(device or self.call.device, copy=True) for tensor in inputs)
        self.kept.append(given)
        told = " and ".join(f"{name} {tuple(a.shape)}" for name, a in zip(self.names, inputs, strict=True))
        try:
            if stepping:
                result, lines = stepped(self.call, *given)
                self.lines.append(lines)
            else:
                result = self.call(*given)
        except StudentRaised as error:
            raise _with_input(error, f"{told} on {given[0].device}") from None
        pairs = zip(self.names, given, inputs, strict=True)
        changed = [name for name, a, b in pairs if not torch.equal(a.cpu(), b)]
        return _described(result) | {
            "first_input": array(inputs[0]),
            "input_device": str(given[0].device),
            "given": told,
            "changed": changed,
            "changing_line": self._in_place_line() if changed else None,
        }

    def _in_place_line(self) -> int | None:
        operations = self.call.ledger.operations()
        lines = {self.call.line_of(o) for o in operations if o.name.split(".")[1].endswith("_")}
        return lines.pop() if len(lines) == 1 else None


def _described(result: Any) -> dict[str, Any]:
    if not isinstance(result, torch.Tensor):
        return {"class": type(result).__name__, "shape": [], "dtype": "", "device": "", "values": None}
    values = arrived(result)
    assert values is not None
    dtype = str(result.dtype).removeprefix("torch.")
    return {
        "class": "Tensor",
        "shape": list(values.shape),
        "dtype": dtype,
        "device": str(result.device),
        "values": values,
    }


def _with_input(error: StudentRaised, given: str) -> StudentRaised:
    """For which input it raised stands beside the message: on another size or device it may not."""
    first, newline, rest = error.evidence.message.partition("\n")
    return StudentRaised(msgspec.structs.replace(error.evidence, message=f"{first} (with {given}){newline}{rest}"))


def _trips(call: Call) -> dict[str, Any]:
    """What the last call brought to the host."""
    transfers = call.ledger.transfers_to_host()
    reads = [sync for sync in call.ledger.syncs() if sync.what in ("item", "tolist")]
    first = next(iter(transfers), None) or next(iter(reads), None)
    return {
        "transfers": len(transfers),
        "trip_bytes": sum(transfer.bytes for transfer in transfers),
        "reads": len(reads),
        "lists": sum(read.what == "tolist" for read in reads),
        "trip_line": None if first is None else call.line_of(first),
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine threads wait for one another longer than these pictures take."""
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


def _declare(function: Function, names: tuple[str, ...], make: Make, loop: Callable[..., Any], clocked: Size) -> None:
    """The probes of one function. On the plain CPU nothing could be seen of a trip to the host: hence a GPU."""

    @function.probe(machine="a gpu")
    def pictures(call: Call) -> dict[str, Any]:
        looked = Pictures(call, names)
        usual = looked.growing(make)
        found = {"usual": usual, "smallest": looked.each(make, SMALLEST), "growth": looked.growth()}
        if function is nearest:
            found["tied"] = looked.each(with_ties, TIED)
        # After the GPU: what was made there and kept is of no use here.
        sizes = ON_THE_CPU + (MANY_COLORS if function is recolor else ())
        return found | {"on_the_cpu": looked.each(make, sizes, "cpu")}

    @function.probe(machine="unwatched")
    def timed(call: Call) -> dict[str, Any]:
        def inputs(number: int) -> tuple[Any, ...]:
            return tuple(tensor.to(call.device) for tensor in make(call.seed + 1000 + number, clocked))

        try:
            with _one_thread():
                return race(call, loop, reference_here(exercise.stem, function.name), inputs)
        except StudentRaised as error:  # a matter of its own: it ran on pictures before
            return {"raised": f"{error.evidence.type}: {error.evidence.message}", "line": error.evidence.line}


# The timed sizes make each loop take some milliseconds: a hundred times a vectorized call, and little beside the rest.
_declare(grayscale, ("sprites",), for_grayscale, pixel_race.grayscale_loop, (2, 4, 6, 2))
_declare(recolor, ("indices", "palette"), for_recolor, pixel_race.recolor_loop, (2, 8, 8, 2))
_declare(nearest, ("sprites", "palette"), for_nearest, pixel_race.nearest_color_loop, (2, 4, 6, 2))


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
