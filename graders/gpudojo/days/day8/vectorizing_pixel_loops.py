"""06: vectorised code instead of loops over pixels."""

from __future__ import annotations

import ast
import contextlib
import linecache
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from gpudojo.days.day8 import pixel_loops, pixel_race
from gpudojo.days.day8.line_counting import ExecutedLines, call_counting_lines
from gpudojo.days.day8.pixel_race import (
    allocated,
    arrived,
    judge_outputs,
    judge_speed,
    modelled,
    race,
    unseen,
)
from gpudojo.grading.call import Call, StudentRaised, array_of, torch, try_scenarios
from gpudojo.grading.checks import count_in_words, runs
from gpudojo.grading.comparing import arrays_identical, numpy_values, values_close
from gpudojo.model.evidence import Array, Case, Cases, Modelled, Race, Raised
from gpudojo.model.exercise import Exercise, Failed, Function, Probe, Seen, returned_other_type

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger


STAY = (
    "Where are the values while your function works, and what does the caller find in its tensors afterwards?",
    "Everything can be done on the device of the input, with new tensors as results.",
    'Work on the device of the input, and do not change it: no `.cpu()`, NumPy, "cuda", `*=` or `[...] =` on it.',
)
ONES = (
    "Which dimensions does the result have for a single sprite, or a single pixel?",
    "Dimensions of size 1 stay. Some operations drop all of them.",
    "A bare `squeeze()` drops every dimension of size 1: give it the dimension, or leave it out.",
)
exercise = Exercise(
    "06_vectorizing_pixel_loops",
    "Pixels all at once, without Python loops",
    points=12,
    reading=(
        "notes/broadcasting.html",
        "generated/torch.Tensor.permute.html",
        "generated/torch.argmin.html",
    ),
)
grayscale = exercise.function("grayscale")
recolor = exercise.function("recolor")
nearest = exercise.function("nearest_color")


Size = tuple[int, int, int, int]  # sprites, height, width, colours
Make = Callable[..., tuple[Any, ...]]  # gets a seed and a size


def _generator(seed: int, size: Size) -> Any:
    count, height, width, colors = size
    return torch.Generator().manual_seed(
        ((((seed * 97 + count) * 97 + height) * 97 + width) * 97 + colors) % 2**63
    )


def for_grayscale(seed: int, size: Size) -> tuple[Any, ...]:
    count, height, width, _ = size
    most = 4 if size == GROWING[1] else 1  # no range of the values is promised
    return (torch.rand(count, 3, height, width, generator=_generator(seed, size)) * most,)


def for_recolor(seed: int, size: Size) -> tuple[Any, ...]:
    *shape, colors = size
    generator = _generator(seed, size)
    return torch.randint(0, colors, shape, generator=generator), torch.rand(
        colors, 3, generator=generator
    )


def for_nearest(seed: int, size: Size, tied: bool = False) -> tuple[Any, ...]:
    """Sprites and a palette: every pixel has one nearest colour or, if `tied`, two."""
    count, height, width, colors = size
    generator = _generator(seed, size)
    wanted = count * height * width
    every = _every_color()
    palette = every[torch.randperm(len(every), generator=generator)[:colors]]
    if tied:
        palette[-1] = palette[0]  # a colour twice, beside the ties between different colours
    distances = (every[:, None] - palette).square().sum(2)
    nearest = (distances == distances.amin(1, keepdim=True)).sum(1)
    candidates = every[nearest > 1 if tied else nearest == 1]
    pixels = candidates[torch.randint(0, len(candidates), (wanted,), generator=generator)]
    return pixels.reshape(count, height, width, 3).permute(0, 3, 1, 2).contiguous(), palette


@lru_cache(maxsize=1)
def _every_color() -> Any:
    """All colours made of eighths: float32 holds their squared differences exactly, in any order of addition."""
    eighths = torch.arange(9) / 8
    return torch.cartesian_prod(eighths, eighths, eighths)


# Every dimension but the palette grows twice. torch may switch algorithms at some size, but not at both steps.
GROWING: Final[tuple[Size, ...]] = ((2, 4, 4, 4), (3, 5, 7, 4), (4, 6, 9, 4))
# One side much longer: a loop over it takes that much more, and one of constant length does not reach the end.
SIDE: Final = 40
LONG: Final[tuple[Size, ...]] = ((SIDE, 2, 2, 4), (2, SIDE, 2, 4), (2, 2, SIDE, 4))
# A loop of constant length that is enough for the other pictures takes at least so many operations, or lines.
FEW_OPERATIONS = max(GROWING[-1])
FEW_LINES = 3 * max(GROWING[-1])
SMALLEST: Final[tuple[Size, ...]] = ((1, 4, 3, 5), (2, 1, 1, 3), (3, 3, 2, 1), (1, 1, 1, 1))
TIED: Final[tuple[Size, ...]] = ((2, 4, 4, 3), (3, 3, 5, 6))
ON_THE_CPU: Final[tuple[Size, ...]] = ((2, 3, 4, 3),)
NUMBERS: Final = ("aten.empty.", "aten.scalar_tensor.")
ONE_PIXEL: Final = 24  # bytes of three numbers, of the largest dtype there is
MAPS: Final = frozenset(
    "map filter zip enumerate sorted reduce accumulate starmap chain from_iterable itemgetter "
    "vectorize frompyfunc fromiter apply_along_axis apply_ map_".split()
)
CLOCKED: Final = 1000  # added to the seed for the pictures that are timed
MANY_COLORS: Final[tuple[Size, ...]] = ((2, 3, 4, 600),)  # more than fit in a byte


class Picture(Case, frozen=True):
    """One call: the result, and whether the inputs were changed. The inputs themselves are the reference's evidence."""

    kind: str
    shape: list[int]
    dtype: str
    device: str
    values: Array | None
    first_input: Array | None
    last_input: Array | None
    input_device: str
    given: str  # the inputs in words
    changed: list[str]
    changing_line: int | None


class Trip(Case, frozen=True):
    """What a call brought to the host, and back."""

    transfers: int
    bytes: int
    reads: int
    used: int  # of these, those that do more than refuse an input
    lists: int
    line: int | None
    uploaded: int = 0  # bytes
    uploading_line: int | None = None


class Growth(Case, frozen=True):
    """What pictures of growing size took, and then the long ones."""

    operations: list[int]
    steps: list[int]  # lines of Python executed
    line: int | None  # the line whose count grew most
    single: int  # operations on the largest picture that made the numbers of one pixel
    single_line: int | None  # the line with most of them
    trips: list[Trip]
    mapped: bool = (
        False  # whether it calls something like `map`, which loops without a line of Python
    )
    elsewhere: bool = (
        False  # whether another process of the submission was there, whose lines are not counted
    )


class Pictures(Case, frozen=True):
    """The calls of one function, by size. No ties where the function has none."""

    usual: dict[str, Picture]
    on_the_cpu: dict[str, Picture]
    growth: Growth
    smallest: dict[str, Picture]
    tied: dict[str, Picture]
    errors: dict[str, Raised]  # of the last two
    speed: Modelled

    def edge(self, name: str) -> dict[str, Picture]:
        """The smallest or the tied pictures. Raises ScenarioRaised where the student's function raised."""
        found: dict[str, Picture] = getattr(self, name)
        return Cases({} if name in self.errors else {name: found}, self.errors)[name]


def _grows(counts: list[int]) -> bool:
    return all(a < b for a, b in pairwise(counts))


def _known(operations: list[int], steps: list[int]) -> bool:
    """Whether it is known without the long pictures that there is a loop, or that there can be none."""
    loops = _grows(steps[: len(GROWING)])
    return loops or (max(operations) < FEW_OPERATIONS and max(steps) < FEW_LINES)


def _usual(seen: Pictures, wanted: Pictures) -> dict[str, Picture]:
    """The reference's pictures of usual size; without the long ones where these were rightly left out."""
    left_out = {str(size) for size in LONG} - seen.usual.keys()
    if not _known(seen.growth.operations, seen.growth.steps):
        left_out = set()
    return {size: found for size, found in wanted.usual.items() if size not in left_out}


class Painter:
    """Calls one function on pictures of many sizes, all on one device: opening one for each would take longer."""

    def __init__(self, call: Call, names: tuple[str, ...]) -> None:
        self.call = call
        self.names = names
        self.ledgers: list[Ledger] = []
        self.lines: list[ExecutedLines] = []
        self.allocated: list[int] = []
        self.kept: list[
            Any
        ] = []  # alive, so that no two pictures have one address: an answer may be cached by it

    @property
    def operations(self) -> list[int]:
        both = zip(self.ledgers, self.allocated, strict=True)
        return [max(len(ledger.operations()), unseen(ledger, count)) for ledger, count in both]

    @property
    def steps(self) -> list[int]:
        return [lines.total() for lines in self.lines]

    def growing(self, make: Make) -> tuple[dict[str, Picture], Growth]:
        """Pictures of growing size, and how many operations and lines of Python they took."""
        found: dict[str, Picture] = {}
        trips: list[Trip] = []
        for size in (*GROWING, *LONG):
            if size == LONG[0] and not self.call.reference and _known(self.operations, self.steps):
                break
            found[str(size)] = self._called(make(self.call.seed, size), stepping=True)
            trips.append(self._trip())
            self.ledgers.append(self.call.ledger)
        largest = len(GROWING) - 1
        first = self.ledgers[0]
        last = self.ledgers[largest]
        grown = {
            line: b - a
            for (file, line), (a, b) in first.grown_lines(last).items()
            if file == str(self.call.path)
        }
        again = {line: count - self.lines[0][line] for line, count in self.lines[largest].items()}
        if any(count > 0 for count in again.values()):  # the loop, rather than what it calls
            loops = self.lines[largest].in_loops()
            looping = (
                {line: n for line, n in each.items() if n > 0 and line in loops}
                for each in (grown, again)
            )
            grown = next(filter(None, looping), grown)
        grown = grown or again
        small = (each for each in last.operations() if 0 < each.bytes <= ONE_PIXEL)
        # `torch.where` and others make a tensor of a number, which computes nothing.
        single = Counter(
            self.call.line_of(each) for each in small if not each.name.startswith(NUMBERS)
        )
        return found, Growth(
            operations=self.operations,
            steps=self.steps,
            line=max(grown, key=lambda line: grown[line], default=None)
            or None,  # 0 is another file
            single=single.total(),
            single_line=max(single, key=lambda line: single[line], default=None),
            trips=trips,
            mapped=any(not MAPS.isdisjoint(code.co_names) for code in self.lines[largest].codes),
            elsewhere=any(lines.elsewhere for lines in self.lines),
        )

    def each(self, make: Make, sizes: tuple[Size, ...], device: Any = None) -> dict[str, Picture]:
        return {str(size): self._called(make(self.call.seed, size), device) for size in sizes}

    def _called(
        self, inputs: tuple[Any, ...], device: Any = None, stepping: bool = False
    ) -> Picture:
        given = tuple(tensor.to(device or self.call.device, copy=True) for tensor in inputs)
        self.kept.append(given)
        words = " and ".join(
            f"{name} {tuple(a.shape)}" for name, a in zip(self.names, inputs, strict=True)
        )
        if inputs[0].is_floating_point() and inputs[0].max() > 1:
            words += f" with values up to {inputs[0].max():.3g}"
        try:
            if stepping:
                before = allocated(self.call)
                result, lines = call_counting_lines(self.call, *given)
                self.lines.append(lines)
                self.allocated.append(allocated(self.call) - before)
            else:
                result = self.call(*given)
            values = arrived(result)
        except StudentRaised as error:
            # For which input it raised stands beside the message: for another size or device it may not.
            first, newline, rest = error.evidence.message.partition("\n")
            why = "most often an index out of range, " if "device-side assert" in first else ""
            message = f"{first} ({why}with {words} on {given[0].device}){newline}{rest}"
            raise error.with_facts(
                message=message, line=error.evidence.line or self._only_line("index")
            ) from None
        pairs = zip(self.names, given, inputs, strict=True)
        changed = [name for name, a, b in pairs if not torch.equal(a.cpu(), b)]
        return Picture(
            kind="Tensor" if values is not None else type(result).__name__,
            shape=list(values.shape) if values is not None else [],
            dtype=str(result.dtype).removeprefix("torch.") if values is not None else "",
            device=str(result.device) if values is not None else "",
            values=values,
            first_input=array_of(inputs[0]) if self.call.reference else None,
            last_input=array_of(inputs[-1]) if self.call.reference else None,
            input_device=str(given[0].device),
            given=words,
            changed=changed,
            changing_line=self._only_line("_") if changed else None,
        )

    def _only_line(self, ending: str) -> int | None:
        """The line of the operators whose name ends so, if there is one: `_` are those that work in place."""
        operations = self.call.ledger.operations()
        lines = {self.call.line_of(o) for o in operations if o.name.split(".")[1].endswith(ending)}
        return lines.pop() if len(lines) == 1 else None

    def _trip(self) -> Trip:
        transfers = self.call.ledger.transfers_to_host()
        reads = [sync for sync in self.call.ledger.syncs() if sync.what in ("item", "tolist")]
        back = self.call.ledger.transfers_to_device()
        guards = _guards("".join(linecache.getlines(str(self.call.path)))) if reads else ()
        used = [read for read in reads if self.call.line_of(read) not in guards]
        return Trip(
            transfers=len(transfers),
            bytes=sum(transfer.bytes for transfer in transfers),
            reads=len(reads),
            used=len(used),
            lists=sum(read.what == "tolist" for read in reads),
            line=self.call.first_line((*transfers, *used, *reads)),
            uploaded=sum(transfer.bytes for transfer in back),
            uploading_line=self.call.first_line(back),
        )


def _guards(source: str) -> set[int]:
    """The lines that only refuse an input: assertions, and conditions that raise."""
    guards = (
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Assert)
        or (isinstance(each, ast.If) and isinstance(each.body[0], ast.Raise))
    )
    return {
        line for each in guards for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine, threads would wait for each other longer than these pictures take."""
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


Probes = tuple[Probe[Pictures], Probe[Race]]


def _declare(
    function: Function, names: tuple[str, ...], make: Make, loop: Callable[..., Any], clocked: Size
) -> Probes:
    """The probes of one function. On the plain CPU no copy to the host could be seen, so the first one needs a GPU."""
    others = ON_THE_CPU + (MANY_COLORS if function is recolor else ())

    def every(seed: int) -> Iterator[tuple[Any, ...]]:
        yield from ((seed, size) for size in (*GROWING, *SMALLEST, *others))
        yield from ((seed, size, True) for size in (TIED if function is nearest else ()))
        yield from ((seed + CLOCKED + number, clocked) for number in range(pixel_race.ROUNDS))

    make = function.draws(make, every)

    @function.probe(machine="a gpu")
    def pictures(call: Call) -> Pictures:
        painter = Painter(call, names)
        usual, growth = painter.growing(make)
        edges = {"smallest": partial(painter.each, make, SMALLEST)}
        if function is nearest:
            edges["tied"] = partial(painter.each, lambda seed, size: make(seed, size, True), TIED)
        found = try_scenarios(edges)
        pixel = clocked[3]
        sizes = clocked, (1, 1, 1, pixel), (1, 1, 2, pixel)
        count, height, width, _ = clocked
        speed = modelled(
            call,
            loop,
            lambda number: make(call.seed + CLOCKED, sizes[number]),
            count * height * width,
        )
        # After the GPU: what was made there and kept is of no use here.
        return Pictures(
            usual,
            painter.each(make, others, "cpu"),
            growth,
            found.get("smallest", {}),
            found.get("tied", {}),
            found.errors,
            speed,
        )

    @function.probe(machine="unwatched")
    def timed(call: Call) -> Race:
        def inputs(number: int) -> tuple[Any, ...]:
            return tuple(
                tensor.to(call.device) for tensor in make(call.seed + CLOCKED + number, clocked)
            )

        try:
            with _one_thread():
                return race(call, loop, inputs)
        except StudentRaised as error:  # one check's matter: it ran on pictures before
            return Race(0.0, 0.0, raised=error.evidence)

    return pictures, timed


GUARD_READS: Final = 2  # numbers that a call may read back, for an assertion about its input
Told = tuple[
    str, str | None, tuple[str, ...]
]  # what happened, the misconception, and patterns for its line
Diagnose = Callable[[Picture, Picture], Told]


COMPARED: Final = frozenset({"int64", "int32", "float64", "float32", "float16"})


def same(found: Array | None, right: Array | None) -> bool:
    """Equal integers, or floats as close as another order of addition leaves them."""
    if found is None or right is None or found.shape != right.shape:
        return False
    if right.dtype in COMPARED and arrays_identical(found, right):
        return True
    a = numpy_values(found)
    b = numpy_values(right)
    if b.dtype.kind in "iu":
        return found.dtype in ("int64", "int32") and bool((a == b).all())
    return a.dtype.kind == "f" and values_close(a, b, 0, 1e-4)


def _judge_values(seen: dict[str, Picture], wanted: dict[str, Picture], diagnose: Diagnose) -> None:
    for size, right in wanted.items():
        found = seen[size]
        if found.kind != "Tensor" or found.values is None:
            key = "trip-through-numpy" if found.kind == "ndarray" else None
            raise returned_other_type(found.kind, "a tensor", key=key)
        if same(found.values, right.values):
            continue
        if found.shape != right.shape:
            transposed = len(right.shape) == 4 and found.shape == [
                right.shape[i] for i in (0, 2, 3, 1)
            ]
            happened = f"{right.given} gave the shape {tuple(found.shape)}"
            expected = f"the shape {tuple(right.shape)}"
            raise Failed(
                happened, expected, None, "channels-last" if transposed else None, at=("return",)
            )
        dtypes = ("int64", "int32") if right.dtype == "int64" else (right.dtype, "float64")
        if found.dtype not in dtypes:
            expected = " or ".join(dtypes) if right.dtype == "int64" else right.dtype
            raise Failed(f"the result's dtype is {found.dtype}", expected, at=("half(", "return"))
        happened, key, at = diagnose(found, right)
        if key is None and found.changed:
            happened = f"{happened}, and `{found.changed[0]}` was modified"
            key = "input-modified"
        line = found.changing_line if key == "input-modified" else None
        raise Failed(f"{right.given}: {happened}", "the loop's values", line, key, at)


def _differing(found: Picture, right: Picture) -> Told:
    assert found.values is not None
    assert right.values is not None
    a = numpy_values(found.values)
    b = numpy_values(right.values)
    differ = ~(abs(a.astype("float64") - b) <= 1e-4)  # a NaN is not near anything
    if (
        a.ndim > 2
        and a.shape[-1] == a.shape[-2]
        and (abs(a.astype("float64") - b.swapaxes(-1, -2)) <= 1e-4).all()
    ):
        return "height and width are swapped", None, ()
    where = tuple(int(i) for i in next(iter(zip(*differ.nonzero(), strict=True)), (0,) * a.ndim))
    count = f"{int(differ.sum())} of {a.size} values differ"
    return f"{count}; at {list(where)} it gave {a[where]:.6g}, not {b[where]:.6g}", None, ()


WEIGHTS: Final = (0.299, 0.587, 0.114)
MIXED: Final = (
    "red, green and blue of one pixel were taken from different pixels",
    "reshape-for-permute",
    (),
)


def _weights(found: Picture, right: Picture) -> Told:
    """Other weights can be computed from the result."""
    import numpy as np

    assert found.values is not None
    assert right.first_input is not None
    a = numpy_values(found.values).astype("float64")
    channels = numpy_values(right.first_input).astype("float64")
    if np.allclose(channels.reshape(-1, 3) @ WEIGHTS, a.reshape(-1), atol=1e-4):
        return MIXED
    pixels = np.moveaxis(channels, 1, -1).reshape(-1, 3)
    weights = np.linalg.lstsq(pixels, a.reshape(-1), rcond=None)[0]
    if np.isfinite(a).all() and np.allclose(pixels @ weights, a.reshape(-1), atol=1e-4):
        factors = weights / WEIGHTS
        if abs(factors[0]) > 1e-3 and np.allclose(factors, factors[0], rtol=1e-3):
            return f"the result is {factors[0]:.3g} times the loop's", None, ()
        red, green, blue = weights
        sum_of = f"{red:.3f} red + {green:.3f} green + {blue:.3f} blue".replace("+ -", "- ")
        strange = (
            f"number {each:.3g}"
            for each in weights
            if min(abs(each - right) for right in WEIGHTS) > 1e-3
        )
        at = (f"numbers {red:.3g}, {green:.3g}, {blue:.3g}", *strange)
        return (
            f"the result is {sum_of}",
            "wrong-weights",
            (*at, "mean(") if np.ptp(weights) < 1e-3 else at,
        )
    return _differing(found, right)


def _nearest(found: Picture, right: Picture) -> Told:
    assert found.values is not None
    assert right.first_input is not None
    assert right.last_input is not None
    sprites, palette = (
        numpy_values(each).astype("float64") for each in (right.first_input, right.last_input)
    )
    indices = numpy_values(found.values).reshape(-1)
    distances = ((sprites.reshape(-1, 1, 3) - palette) ** 2).sum(2)
    if (distances.argmin(1) == indices).all():
        return MIXED
    apart = sprites.transpose(0, 2, 3, 1).reshape(-1, 1, 3) - palette
    others = {
        "nearest by the sum of the absolute differences": abs(apart).sum(2),
        "nearest by the square of the sum of the differences": apart.sum(2) ** 2,
        "the farthest": -(apart**2).sum(2),
    }
    for words, distances in others.items():
        if len(palette) > 1 and (distances.argmin(1) == indices).all():
            return f"the colours are {words}", None, ()
    assert right.values is not None
    wished = numpy_values(right.values).reshape(-1)
    became = dict(zip(wished.tolist(), indices.tolist(), strict=True))
    if (
        len({*became.values()}) == len(became) > 1
        and [became[each] for each in wished.tolist()] == indices.tolist()
    ):
        at = (
            ("palette =",) if len({*(indices - wished).tolist()}) > 1 else ()
        )  # not all shifted: another order
        first = next(each for each in sorted(became) if became[each] != each)
        return f"every index {first} became {became[first]}", None, at
    return _differing(found, right)


def _reshaped(found: Picture, right: Picture) -> Told:
    import numpy as np

    assert found.values is not None
    assert right.values is not None
    a = numpy_values(found.values)
    b = numpy_values(right.values)
    if np.allclose(np.moveaxis(b, 1, -1).reshape(b.shape), a, atol=1e-4):
        return (
            "all numbers are there, but red, green and blue are mixed up with the pixels",
            "reshape-for-permute",
            (),
        )
    assert right.first_input is not None
    assert right.last_input is not None
    indices = numpy_values(right.first_input).reshape(-1)
    palette = numpy_values(right.last_input)
    distances = abs(np.moveaxis(a, 1, -1).reshape(-1, 1, 3) - palette).max(2)
    if (distances.min(1) <= 1e-4).all():  # each pixel has a colour of the palette
        chosen = distances.argmin(1)
        pairs = sorted({*zip(indices.tolist(), chosen.tolist(), strict=True)})
        wrong = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if wrong and len(pairs) == len({*indices.tolist()}):  # one colour for each index
            return (
                f"pixels with the index {wrong[0]} got colour {wrong[1]} of the palette",
                None,
                (),
            )
    return _differing(found, right)


def _all_calls(seen: Pictures, wanted: Pictures) -> Iterator[Picture]:
    for group in ("usual", "smallest", "tied", "on_the_cpu"):
        if group not in seen.errors:  # its own check reports it
            sizes = _usual(seen, wanted) if group == "usual" else getattr(wanted, group)
            yield from (getattr(seen, group)[size] for size in sizes)


def _diagnose(raised: Raised, seen: Seen) -> str | None:
    """Not as in a training loop: nothing has to be moved here, and the input determines the device."""
    if "to numpy" in raised.message:
        return "numpy-on-device-tensor"
    first = raised.message.partition("\n")[0]
    if "same device" in first and first.endswith("on cuda:0)"):
        return "made-on-the-cpu"  # all inputs are on the GPU
    if first.endswith("on cpu)") and (
        "same device" in first or "cuda" in first.partition(" (with ")[0].lower()
    ):
        return "hard-coded-cuda"
    return None


VALUES: Final = (
    "runs",
    "right_values",
)  # a function that does nothing has no loops and leaves all alone


def _claim(function: Function, values: float, diagnose: Diagnose, probes: Probes) -> None:
    """The checks that all three functions have."""
    pictures, timed = probes
    runs(function, diagnose=_diagnose)

    @function.check(points=values)
    def right_values(seen: Seen, wanted: Seen) -> None:
        """It gives the same values as the loop, for every size."""
        _judge_values(seen[pictures].usual, _usual(seen[pictures], wanted[pictures]), diagnose)
        _judge_values(seen[pictures].on_the_cpu, wanted[pictures].on_the_cpu, diagnose)

    @function.check(points=0.25, needs=VALUES)
    def right_on_the_smallest(seen: Seen, wanted: Seen) -> None:
        """It gives them for a single sprite, a single pixel, a single row and a palette of one colour, too."""
        _judge_values(seen[pictures].edge("smallest"), wanted[pictures].edge("smallest"), diagnose)

    @function.check(points=1.25, needs=VALUES)
    def no_loop_over_pixels(seen: Seen, wanted: Seen) -> None:
        """The number of operations does not grow with the number or the size of the sprites."""
        growth = seen[pictures].growth
        if growth.elsewhere and any(
            trip.bytes for trip in growth.trips
        ):  # what stays on the device is counted
            happened = (
                "the values were copied to the host while your code had another process running"
            )
            raise Failed(
                happened,
                "all work in the function itself",
                growth.trips[-1].line,
                "python-loop-over-elements",
            )
        (few, high, wide, _), (many, higher, wider, _) = GROWING[0], GROWING[-1]
        for what, every in (("operations", growth.operations), ("lines of Python", growth.steps)):
            counts = every[: len(GROWING)]
            if _grows(counts):
                happened = (
                    f"{few} sprites of {high} x {wide} pixels took {counts[0]} {what}, "
                    f"{many} of {higher} x {wider} took {counts[-1]}"
                )
                right = wanted[pictures].growth.operations[-1]
                expected = f"the same number for more and larger sprites; the reference takes {right} operations"
                raise Failed(happened, expected, growth.line, "python-loop-over-elements")
            # A loop may be as long as most of these pictures need, and operations for all of them be recorded in the
            # first call. Lines that only prepare something there are no matter.
            later = every[what != "operations" :] or [0]
            if max(later) - min(later) >= SIDE - max(GROWING[-1]):
                happened = f"one picture took {min(later)} {what}, another {max(later)}"
                expected = "the same number for more and larger sprites"
                raise Failed(happened, expected, growth.line, "python-loop-over-elements", ("for",))
        # A loop as long as the largest picture it is meant for, whatever the size of this one.
        if growth.single >= many * higher * wider:
            happened = f"{many} sprites of {higher} x {wider} pixels took {growth.single} operations on single pixels"
            expected = f"operations on all of them; the reference takes {wanted[pictures].growth.operations[-1]}"
            raise Failed(happened, expected, growth.single_line, "python-loop-over-elements")

    @function.check(points=0.5, needs=VALUES)
    def stays_on_the_device(seen: Seen, wanted: Seen) -> None:
        """The result is on the input's device, without a trip through NumPy or the host."""
        trips = seen[pictures].growth.trips
        steps = seen[pictures].growth.steps[: len(GROWING)]
        # Pixels in a Python list are processed one by one, or only made a tensor again.
        growing = trips[: len(GROWING)]
        listed = all(trip.lists for trip in growing) and all(
            a.bytes < b.bytes for a, b in pairwise(growing)
        )
        listed = listed and (seen[pictures].growth.mapped or _grows(steps))
        for trip in trips:
            if trip.transfers or trip.lists or trip.used or trip.reads > GUARD_READS:
                what = (
                    "copied from the device to the host"
                    if trip.transfers
                    else "a value was read back"
                )
                happened = f"{what} {count_in_words(trip.transfers or trip.reads)} in one call"
                key = "python-loop-over-elements" if listed else "trip-through-numpy"
                raise Failed(happened, "never: every step on the device", trip.line, key)
        # As many bytes as there are pixels, for every size: these are the result's. Weights or a palette are no more.
        sizes = [count * height * width for count, height, width, _ in (*GROWING, *LONG)]
        growth = [trip.uploaded for trip in growing]
        if all(a < b for a, b in pairwise(growth)) and all(
            t.uploaded >= s for t, s in zip(trips, sizes, strict=False)
        ):
            happened = f"for {sizes[0]} pixels {growth[0]} bytes were copied to the device, for {sizes[2]} {growth[-1]}"
            raise Failed(
                happened,
                "a result made on the device",
                trips[0].uploading_line,
                "trip-through-numpy",
            )
        for found in _all_calls(seen[pictures], wanted[pictures]):
            if found.device != found.input_device:
                happened = f"the input is on {found.input_device}, the result on {found.device or 'no device'}"
                key = "hard-coded-cuda" if found.input_device == "cpu" else "trip-through-numpy"
                raise Failed(happened, found.input_device, misconception=key)

    @function.check(points=0.25, needs=VALUES)
    def leaves_its_inputs_alone(seen: Seen, wanted: Seen) -> None:
        """What is passed in is not modified."""
        for found in _all_calls(seen[pictures], wanted[pictures]):
            if found.changed:
                changed = " and ".join(f"`{name}`" for name in found.changed)
                happened = f"after the call {changed} had other values than before"
                raise Failed(
                    happened, "the values from before", found.changing_line, "input-modified"
                )

    @function.check(points=0.75, needs=(*VALUES, "no_loop_over_pixels"))
    def faster_than_the_loop(seen: Seen, wanted: Seen) -> None:
        """It is several times as fast as the loop, by the modelled clock of a T4."""
        found = seen[timed]
        speed = seen[pictures].speed
        if (raised := found.raised or speed.raised) is not None:
            seen.about(
                timed.name if found.raised else pictures.name
            )  # the line shown is one of that call
            raise Failed(
                f"a timed call raised {raised.short}", "no error", raised.line, None, ("return",)
            )
        judge_outputs(found, wanted[timed], same, partial(seen.about, timed.name))
        if not same(speed.output, wanted[pictures].speed.output):
            raise Failed(
                "the result of the timed call is wrong", "the loop's values", at=("return",)
            )
        judge_speed(speed, wanted[pictures].speed, found, wanted[timed])


# The timed sizes make each loop take some milliseconds: sixty times a vectorized call and more.
GRAYSCALE = _declare(
    grayscale, ("sprites",), for_grayscale, pixel_loops.grayscale_loop, (2, 4, 6, 2)
)
RECOLOR = _declare(
    recolor, ("indices", "palette"), for_recolor, pixel_loops.recolor_loop, (2, 8, 8, 2)
)
NEAREST = _declare(
    nearest, ("sprites", "palette"), for_nearest, pixel_loops.nearest_color_loop, (2, 4, 6, 2)
)
_claim(grayscale, 1, _weights, GRAYSCALE)
_claim(recolor, 1, _reshaped, RECOLOR)
_claim(nearest, 0.75, _nearest, NEAREST)


@nearest.check(points=0.25, needs=VALUES)
def lowest_index_on_a_tie(seen: Seen, wanted: Seen) -> None:
    """If several colours are equally near, it gives the lowest index."""
    _judge_values(seen[NEAREST[0]].edge("tied"), wanted[NEAREST[0]].edge("tied"), _differing)
