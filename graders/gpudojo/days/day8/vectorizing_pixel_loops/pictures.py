"""Calls a function of 06 on pictures of many sizes.

Describes the results, the operations and the copies.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpudojo.days.day8 import pixel_race
from gpudojo.days.day8.error_messages import add_to_first_line
from gpudojo.days.day8.line_counting import (
    ExecutedLines,
    call_counting_lines,
    loops_that_grew,
)
from gpudojo.days.day8.pixel_race import (
    count_allocations,
    modelled_times,
    race,
    read_result,
    unrecorded_allocations,
)
from gpudojo.days.day8.vectorizing_pixel_loops.inputs import (
    GROWING,
    LARGE,
    LONG,
    ON_THE_CPU,
    SMALLEST,
    MakeInputs,
    Size,
)
from gpudojo.grading.call import Call, StudentRaised, array_of, torch, try_scenarios
from gpudojo.grading.sealing import seal
from gpudojo.model.evidence import Array, Case, Modelled, Race, Raised, ScenarioRaised
from gpudojo.model.exercise import Function, Probe

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger

CLOCKED: Final = 1000  # added to the seed for the pictures that are timed
# Operators that make a tensor of a number, as `torch.where` does, and compute nothing.
NUMBERS: Final = ("aten.empty.", "aten.scalar_tensor.")
# Operators of a call that are watched. Whoever runs more is too slow: a loop takes less than three
# times as many for the picture that is timed.
MOST_WATCHED: Final = 200
ONE_PIXEL: Final = 24  # bytes of three numbers, of the largest dtype there is
# Functions that loop without a line of Python.
MAPS: Final = frozenset(
    "map filter zip enumerate sorted reduce accumulate starmap chain from_iterable itemgetter "
    "vectorize frompyfunc fromiter apply_along_axis apply_ map_".split()
)


class Picture(Case, frozen=True):
    """One call: the result, and whether the inputs were changed.

    The inputs themselves are only in the reference's evidence.
    """

    kind: str
    dtype: str
    device: str
    values: Array | None  # of a tensor
    first_input: Array | None
    last_input: Array | None
    input_device: str
    given: str  # the inputs in words
    changed: list[str]
    changing_line: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result; () for anything that is no tensor."""
        if self.values is None:
            return ()
        return self.values.shape


class Cost(Case, frozen=True):
    """What one picture took. It leaves the process before the next one is painted."""

    operations: int
    steps: int  # lines of Python executed
    # What it brought to the host, and back
    transfers: int
    bytes: int
    reads: int
    used: int  # of these, those that do more than refuse an input
    lists: int
    line: int | None  # of the first copy to the host, or else of the first read
    uploaded: int = 0  # bytes
    uploading_line: int | None = None
    computed: int | None = None  # numbers that the device computed; None on a real GPU
    written: bool = False  # whether the device's memory was written to by no operator
    # What may hide a loop
    single: int = 0  # operations that made the numbers of one pixel
    single_line: int | None = None  # the line with most of them
    mapped: bool = False  # whether it calls something of MAPS
    elsewhere: bool = False  # whether another process was there, whose lines are not counted
    has_gap: bool = False  # whether a tracer was set or removed, so that lines may be missing


class Growth(Case, frozen=True):
    """What pictures of growing size took, and then the long ones."""

    costs: list[Cost]
    line: int | None = None  # the line whose count grew most
    uploaded_for_large: int = 0  # bytes, for LARGE; 0 where it was not painted

    @property
    def operations(self) -> list[int]:
        return [cost.operations for cost in self.costs]

    @property
    def steps(self) -> list[int]:
        """For each picture, how many lines of Python were executed."""
        return [cost.steps for cost in self.costs]

    @property
    def uploaded(self) -> list[int]:
        """For each picture, how many bytes were copied to the device."""
        return [cost.uploaded for cost in self.costs]

    @property
    def largest(self) -> Cost:
        """What the largest of the growing pictures took."""
        return self.costs[len(GROWING) - 1]


class Pictures(Case, frozen=True):
    """The calls of one function: "usual", "on_the_cpu", "smallest" and, for some, "tied" ones."""

    groups: dict[str, dict[str, Picture]]  # by group and size
    errors: dict[str, Raised]  # by group; of the last two
    growth: Growth
    speed: Modelled

    def in_group(self, name: str) -> dict[str, Picture]:
        """The pictures of a group. Raises ScenarioRaised where the student's function raised."""
        if name in self.errors:
            raise ScenarioRaised(self.errors[name])
        return self.groups[name]


def is_growing(counts: Sequence[int]) -> bool:
    """True if every count is larger than the one before."""
    return all(a < b for a, b in pairwise(counts))


def covers_pixels(uploaded: Sequence[int]) -> bool:
    """True if for each growing and long picture as many bytes were uploaded as it has pixels."""
    sizes = (*GROWING, *LONG)
    pairs = zip(uploaded, sizes, strict=False)
    return all(count >= size.pixels for count, size in pairs)


def _count_of_writes(tensor: Any) -> int:
    """How many times torch has written into a tensor, as autograd counts it.

    0 where it is not counted, as in inference mode: then only writes that change values are seen.
    """
    try:
        count: int = tensor._version
    except (AttributeError, RuntimeError):
        return 0
    return count


class Painter:
    """Calls one function on pictures of many sizes.

    All are on one device: opening one for each would take longer.
    """

    def __init__(self, call: Call, names: tuple[str, ...]) -> None:
        """A painter that has painted nothing yet; `names` are those of the function's arguments."""
        self.call = call
        self.names = names  # of the function's arguments
        # Of all calls. Nothing here is judged: that leaves at once.
        self.ledgers: list[Ledger] = []
        self.lines: list[ExecutedLines] = []
        # Of the last call
        self.allocations = 0
        self.written = False  # whether memory of the device was written to by no operator
        # All inputs, alive, so that no two have one address: an answer may be cached by it.
        self.inputs: list[Any] = []

    def paint_growing(self, make: MakeInputs) -> tuple[dict[str, Picture], Growth]:
        """Paint pictures of growing size, and describe what they took.

        Returns the pictures by the name of their size, and the costs in that order. Keeps inputs,
        lines and ledgers of all calls. Raises StudentRaised.
        """
        pictures: dict[str, Picture] = {}
        costs: list[Cost] = []
        uploaded: list[int] = []
        for size in (*GROWING, *LONG):
            inputs = make(self.call.seed, size)
            picture = self._paint_picture(inputs)
            cost = self._describe_cost()
            uploaded.append(cost.uploaded)
            pictures[size.name] = seal(picture)
            costs.append(seal(cost))
        line = self._growing_line(len(GROWING) - 1)
        large = 0
        if covers_pixels(uploaded) and not self.call.reference:  # uploads may be results
            self._paint_picture(make(self.call.seed, LARGE))
            large = self._describe_cost().uploaded
        return pictures, Growth(costs, line, large)

    def _describe_cost(self) -> Cost:
        """What the last call took, copied and read. There must have been one."""
        ledger = self.call.ledger
        lines = self.lines[-1]
        recorded = len(ledger.operations())
        on_single_pixels = self._lines_on_single_pixels(ledger)
        to_host = ledger.transfers_to_host()
        to_device = ledger.transfers_to_device()
        reads = [sync for sync in ledger.syncs() if sync.what in ("item", "tolist")]
        used = self._reads_that_do_more(reads)
        unrecorded = unrecorded_allocations(ledger, self.allocations)
        computed = None
        if self.call.bench.kind == "virtual":
            computed = ledger.computed_numbers()
        return Cost(
            operations=max(recorded, unrecorded),
            steps=lines.total(),
            single=on_single_pixels.total(),
            single_line=_most_frequent(on_single_pixels),
            mapped=_calls_maps(lines),
            elsewhere=lines.elsewhere,
            has_gap=lines.has_gap,
            transfers=len(to_host),
            bytes=sum(transfer.bytes for transfer in to_host),
            reads=len(reads),
            used=len(used),
            lists=sum(read.what == "tolist" for read in reads),
            line=self.call.first_line((*to_host, *used, *reads)),
            uploaded=sum(transfer.bytes for transfer in to_device),
            uploading_line=self.call.first_line(to_device),
            computed=computed,
            written=self.written,
        )

    def _reads_that_do_more(self, reads: list[Any]) -> list[Any]:
        """The reads outside of assertions and of conditions that raise, in the student's source.

        Raises SyntaxError if the file is no longer Python.
        """
        if not reads:
            return []
        source = "".join(linecache.getlines(str(self.call.path)))
        guards = _lines_that_refuse_input(source)
        return [read for read in reads if self.call.line_of(read) not in guards]

    def _growing_line(self, largest: int) -> int | None:
        """The line whose operations, or executions, grew most; None if there is none.

        That is from the first picture to the one with the number `largest`. Where a loop went round
        more often it is the head of that loop, of several in each other the outermost. Where lines
        were executed more often, it is one in a loop, rather than in what the loop calls.
        """
        # By how much the operations and the executions of each line grew
        operations = {}
        grown = self.ledgers[0].grown_lines(self.ledgers[largest])
        for (file, line), (before, after) in grown.items():
            if file == str(self.call.path):
                operations[line] = after - before
        executions = {}
        lines = self.lines[largest]
        for line, count in lines.items():
            executions[line] = count - self.lines[0][line]
        # The line in a loop, or else any
        in_loops: dict[int, int] = {}
        if max(executions.values(), default=0) > 0:
            head = self._head_of_growing_loop(lines, operations)
            if head is not None:
                return head
            loops = lines.in_loops()
            in_loops = _positive_counts(operations, loops)
            if not in_loops:
                in_loops = _positive_counts(executions, loops)
        chosen = in_loops or operations or executions
        return _most_frequent(chosen) or None  # 0 is another file

    def _head_of_growing_loop(
        self, lines: ExecutedLines, operations: Mapping[int, int]
    ) -> int | None:
        """The head of the loop that went round more often than for the first picture; else None.

        `lines` are those executed for another picture, `operations` by how much the operations of
        each line grew: of several loops it is the one with most of these.
        """
        source = "".join(linecache.getlines(str(self.call.path)))
        best: tuple[int, int] = (-1, -1)
        head = None
        for loop in loops_that_grew(source, self.lines[0], lines):
            inside = range(loop.head, loop.last + 1)
            grown = sum(count for line, count in operations.items() if line in inside)
            if (grown, loop.more) > best:
                best = (grown, loop.more)
                head = loop.head
        return head

    def _lines_on_single_pixels(self, ledger: Ledger) -> Counter[int | None]:
        """How many operations each line made on the numbers of one pixel."""
        counts: Counter[int | None] = Counter()
        for operation in ledger.operations():
            is_small = 0 < operation.bytes <= ONE_PIXEL
            if is_small and not operation.name.startswith(NUMBERS):
                counts[self.call.line_of(operation)] += 1
        return counts

    def paint_sizes(
        self, make: MakeInputs, sizes: tuple[Size, ...], device: Any = None, *more: Any
    ) -> dict[str, Picture]:
        """One picture of each size, by its name; `make` gets `more`, too.

        Without `device` they are painted on that of the call. Keeps inputs, lines and ledgers of
        all calls. Raises StudentRaised.
        """
        pictures = {}
        for size in sizes:
            inputs = make(self.call.seed, size, *more)
            pictures[size.name] = self._paint_picture(inputs, device)
        return pictures

    def _paint_picture(self, inputs: tuple[Any, ...], device: Any = None) -> Picture:
        """Call the function and describe the result; keep its lines, allocations and ledger.

        Raises StudentRaised, with the inputs in its message.
        """
        from virtual_cuda.hooks import watch_writes

        if device is None:
            device = self.call.device
        given = tuple(tensor.to(device, copy=True) for tensor in inputs)
        self.inputs.append(given)
        input_device = str(given[0].device)
        words = self._in_words(inputs)
        versions = [_count_of_writes(tensor) for tensor in given]
        # The call
        before = count_allocations(self.call)
        try:
            with watch_writes(MOST_WATCHED) as writes:
                writes.remember(given)
                result, lines = call_counting_lines(self.call, *given)
                self.allocations = count_allocations(self.call) - before
                values = read_result(result)
            self.written = writes.has_found
        except StudentRaised as error:
            where = f"with {words} on {input_device}"
            raise self._explain_error(error, where) from None
        self.lines.append(lines)
        self.ledgers.append(self.call.ledger)
        # What it returned, and what became of the inputs
        kind = type(result).__name__
        dtype = ""
        result_device = ""
        if values is not None:
            kind = "Tensor"
            dtype = str(result.dtype).removeprefix("torch.")
            result_device = str(result.device)
        changed = self._changed_names(inputs, given, versions)
        changing_line = None
        if changed:  # the names of operators that work in place end in `_`
            changing_line = self._only_line_of_operators("_")
        first_input = None
        last_input = None
        if self.call.reference:
            first_input = array_of(inputs[0])
            last_input = array_of(inputs[-1])
        return Picture(
            kind=kind,
            dtype=dtype,
            device=result_device,
            values=values,
            first_input=first_input,
            last_input=last_input,
            input_device=input_device,
            given=words,
            changed=changed,
            changing_line=changing_line,
        )

    def _changed_names(
        self, before: tuple[Any, ...], now: tuple[Any, ...], versions: list[int]
    ) -> list[str]:
        """The names of the inputs that the call has written into, with other values or the same.

        `versions` are torch's counts of writes from before the call.
        """
        changed = []
        for name, old, new, version in zip(self.names, before, now, versions, strict=True):
            if _count_of_writes(new) != version or not torch.equal(new.cpu(), old):
                changed.append(name)
        return changed

    def _in_words(self, inputs: tuple[Any, ...]) -> str:
        """The inputs with their names and shapes; values above 1 in the first one are named."""
        parts = []
        for name, tensor in zip(self.names, inputs, strict=True):
            parts.append(f"{name} {tuple(tensor.shape)}")
        words = " and ".join(parts)
        first = inputs[0]
        if first.is_floating_point() and first.max() > 1:
            return f"{words} with values up to {first.max():.3g}"
        return words

    def _explain_error(self, error: StudentRaised, inputs: str) -> StudentRaised:
        """The error with its inputs, given in words, in the message. It is returned, not raised.

        For another size or device it may not be raised.
        """
        message = error.evidence.message
        first, *_ = message.split("\n")
        if "device-side assert" in first:
            inputs = f"most often an index out of range, {inputs}"
        message = add_to_first_line(message, f"({inputs})")
        line = error.evidence.line or self._only_line_of_operators("index")
        return error.with_facts(message=message, line=line)

    def _only_line_of_operators(self, ending: str) -> int | None:
        """The line of the operators whose names end so; None if there are several or none."""
        lines = set()
        for operation in self.call.ledger.operations():
            if operation.name.split(".")[1].endswith(ending):
                lines.add(self.call.line_of(operation))
        if len(lines) == 1:
            return lines.pop()
        return None


def _positive_counts(counts: Mapping[int, int], lines: set[int]) -> dict[int, int]:
    """The counts above zero of these lines."""
    positive = {}
    for line, count in counts.items():
        if count > 0 and line in lines:
            positive[line] = count
    return positive


def _calls_maps(lines: ExecutedLines) -> bool:
    """True if the code that was executed calls something of MAPS."""
    return any(not MAPS.isdisjoint(code.co_names) for code in lines.codes)


def _most_frequent(counts: Mapping[Any, int]) -> Any:
    """The line with the highest count; None where there is none."""
    return max(counts, key=lambda line: counts[line], default=None)


def _lines_that_refuse_input(source: str) -> set[int]:
    """The lines that only refuse an input: assertions, and conditions that raise.

    Raises SyntaxError if the source cannot be parsed.
    """
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.If | ast.Assert):
            continue
        if isinstance(node, ast.If) and not isinstance(node.body[0], ast.Raise):
            continue
        end = node.end_lineno or node.lineno
        lines.update(range(node.lineno, end + 1))
    return lines


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread for the length of a `with` block.

    On a busy machine, threads would wait for each other longer than these pictures take.
    """
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


class PictureWork(NamedTuple):
    """What a function of 06 is tried with."""

    function: Function
    names: tuple[str, ...]  # of its arguments
    make: MakeInputs
    loop: Callable[..., Any]  # to compare it with
    clocked: Size  # that is timed
    on_the_cpu: tuple[Size, ...] = ON_THE_CPU
    tied: tuple[Size, ...] = ()  # pictures in which every pixel has several nearest colours

    def every_input(self, seed: int) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments with which `make` is called for a seed."""
        for size in (*GROWING, *LONG, *SMALLEST, *self.on_the_cpu):
            yield seed, size
        for size in self.tied:
            yield seed, size, True
        for number in range(pixel_race.ROUNDS):
            yield seed + CLOCKED + number, self.clocked

    def paint_all(self, call: Call) -> Pictures:
        """Paint all sizes on GPU and CPU, and model the times. Raises StudentRaised."""
        painter = Painter(call, self.names)
        usual, growth = painter.paint_growing(self.make)
        edges = {"smallest": partial(painter.paint_sizes, self.make, SMALLEST)}
        if self.tied:
            edges["tied"] = partial(painter.paint_sizes, self.make, self.tied, None, True)
        found = try_scenarios(edges)
        make_clocked = partial(self.make, call.seed + CLOCKED)
        speed = seal(modelled_times(call, self.loop, make_clocked, self.clocked))
        # After the GPU: what was made there and kept is of no use here.
        on_the_cpu = seal(painter.paint_sizes(self.make, self.on_the_cpu, "cpu"))
        groups = {"usual": usual, "on_the_cpu": on_the_cpu, **found}
        return Pictures(groups, found.errors, growth, speed)

    def race_with_loop(self, call: Call) -> Race:
        """The measured race; a student's error is in its evidence.

        Torch has one thread meanwhile. Afterwards `call` has no title for lines, but after an error
        it has that of the round which failed.
        """

        def inputs_of_round(number: int) -> tuple[Any, ...]:
            inputs = self.make(call.seed + CLOCKED + number, self.clocked)
            return tuple(tensor.to(call.device) for tensor in inputs)

        try:
            with _one_thread():
                return race(call, self.loop, inputs_of_round)
        except StudentRaised as error:  # one check's matter: it ran on pictures before
            return Race(0.0, 0.0, raised=error.evidence)


class Probes(NamedTuple):
    """The probes of one function."""

    pictures: Probe[Pictures]
    timed: Probe[Race]


def declare_probes(work: PictureWork) -> Probes:
    """Declare the probes of a function, and that its inputs are drawn from the seed alone.

    Adds them to the function of `work`, and returns them. On the plain CPU no copy to the host
    could be seen, so the first probe needs a GPU.
    """
    function = work.function
    work = work._replace(make=function.draws_once(work.make, work.every_input))

    @function.probe(machine="a gpu")
    def pictures(call: Call) -> Pictures:
        return work.paint_all(call)

    @function.probe(machine="unwatched")
    def timed(call: Call) -> Race:
        return work.race_with_loop(call)

    return Probes(pictures, timed)
