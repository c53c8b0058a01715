"""How is 06 looked at? Growing and smallest pictures on a GPU, one on the CPU, and a race with the loop."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from graders.curriculum.exercise import Function
from graders.day8.vectorizing.functions import exercise, grayscale, nearest, recolor
from graders.day8.vectorizing.probes_pictures import Make, Size, for_grayscale, for_nearest, for_recolor, with_ties
from graders.probes import pixel_loops
from graders.probes.calling import Call, StudentRaised, array
from graders.probes.late import torch
from graders.probes.speed import arrived, race, reference_here
from graders.probes.stepping import stepped

if TYPE_CHECKING:
    from graders.bench.ledger import Ledger

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
_declare(grayscale, ("sprites",), for_grayscale, pixel_loops.grayscale_loop, (2, 4, 6, 2))
_declare(recolor, ("indices", "palette"), for_recolor, pixel_loops.recolor_loop, (2, 8, 8, 2))
_declare(nearest, ("sprites", "palette"), for_nearest, pixel_loops.nearest_color_loop, (2, 4, 6, 2))
