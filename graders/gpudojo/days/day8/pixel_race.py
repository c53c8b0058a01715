"""What several exercises of Day 8 work on, and the race of 06: loops, counted lines, modelled times."""

from __future__ import annotations

import contextlib
import dis
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    in_sandbox,
    lines_of_copies,
    lines_under,
    nn,
    torch,
)
from gpudojo.grading.checks import device_mistake, is_between_gpus
from gpudojo.grading.limits import Skipping, running
from gpudojo.grading.source_locator import tracing
from gpudojo.grading.watching import keep_state, state_for_hook, state_of
from gpudojo.model.evidence import Array, Case, Fact, Modelled, Race, Raised
from gpudojo.model.exercise import Failed, Seen

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger


SIZE = 4
CLASSES = 3


def sprites(count: int, seed: int) -> tuple[Any, Any]:
    """`(count, 3, SIZE, SIZE)` sprites in [0, 1] and their classes: the class is the brightest channel."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.rand(count, 3, SIZE, SIZE, generator=generator) * 0.5
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    pictures += 0.5 * (classes[:, None] == torch.arange(3))[:, :, None, None]
    return pictures, classes


def linear(weight: Any, bias: Any = None) -> Any:
    """A linear layer with this weight and bias; one with random numbers would take time, and the caller's generator."""
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = weight.shape[0], weight.shape[-1]
    layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
    layer.register_parameter("bias", None if bias is None else nn.Parameter(bias))
    return layer


class Sealed:
    """A function for student code to call, which does not lead to what it calls, or to what that records."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.key = keep_state(function)

    def __call__(self, *args: Any) -> Any:
        return state_of(self.key)(*args)


class Hook(Sealed):
    """A hook of torch's, which student code gets to hold but does not call."""

    def __call__(self, *args: Any) -> Any:
        return state_for_hook(self.key)(*args)


class Values(Case, frozen=True):
    """A small tensor: reading it as Python numbers is the fastest way off a device."""

    dtype: str
    shape: list[int]
    values: Fact  # None for a tensor without values, such as one on "meta"


def values(tensor: Any) -> Values:
    try:
        numbers = tensor.tolist()
    except (RuntimeError, TypeError):
        numbers = None
    return Values(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), numbers)


@dataclass
class Fetched:
    """The batches that have been fetched from a loader."""

    call: Call
    inner: Any
    count: int = 0
    latest: tuple[Any, Any] | None = None
    start: int = 0  # ledger mark at the latest batch
    target_sizes: set[int] = field(default_factory=set)

    def add(self, batch: Any) -> None:
        self.count += 1
        self.latest, self.start = tuple(batch), self.call.bench.ledger.mark()
        self.target_sizes.add(batch[1].nbytes)


class WatchedBatches:
    """A loader with a length, a dataset and a batch size, which records when each batch is fetched.

    Copies are recognised by their size: the dataset is built so that inputs, targets and parameters differ.
    """

    def __init__(self, call: Call, inner: Any) -> None:
        self.dataset, self.batch_size = inner.dataset, inner.batch_size
        self.key = keep_state(Fetched(call, inner))

    def __len__(self) -> int:
        return len(state_of(self.key).inner)

    def __iter__(self) -> Iterator[Any]:
        for batch in state_of(self.key).inner:
            state_of(self.key).add(batch)
            yield batch

    @property
    def handed_out(self) -> int:
        return int(state_of(self.key).count)

    @property
    def target_sizes(self) -> frozenset[int]:
        return frozenset(state_of(self.key).target_sizes)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Around a call: adds to an error which tensors of the last batch had been copied, and by which lines."""
        try:
            yield
        except StudentRaised as error:
            fetched: Fetched = state_of(self.key)
            if fetched.latest is None:
                raise
            lines = lines_of_copies(
                fetched.call,
                fetched.start,
                **dict(zip(("inputs", "targets"), fetched.latest, strict=True)),
            )
            raise error.with_facts(copied=lines) from None


def why_a_loop_raised(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error of a loop over batches, by scenario: `on_the_second_gpu`, …

    If inputs meet the model only where it was there already, in `model_already_there`, the other model had stayed on
    the CPU with them.
    """
    if raised.scenario == "on_the_second_gpu" and is_between_gpus(raised.message):
        return "device-index-dropped"
    key = device_mistake(raised)
    if (
        raised.scenario == "told_to_use_the_cpu" and key is not None
    ):  # nothing should have been on a GPU
        return "hard-coded-cuda"
    return (
        "model-not-moved"
        if raised.scenario == "model_already_there" and key == "inputs-on-cpu"
        else key
    )


def expect_ran_on(device: str, used: Collection[str], line: int | None = None) -> None:
    """Raises Failed unless a model ran on this device, and on no other."""
    if set(used) != {device}:
        where = " and ".join(sorted(used)) or "no device"
        key = (
            "hard-coded-cuda"
            if device == "cpu"
            else "model-not-moved"
            if set(used) == {"cpu"}
            else None
        )
        key = (
            "device-index-dropped"
            if device == "cuda:1" and set(used) == {"cuda:0"}
            else key
            if used
            else None
        )
        raise Failed(f"with device={device!r}, the model ran on {where}", device, line, key)


# mypy: disable-error-code="no-untyped-def, no-untyped-call"


def grayscale_loop(sprites):
    """The slow way: one pixel after the other."""
    count, _, height, width = sprites.shape
    gray = torch.zeros(count, height, width, dtype=sprites.dtype, device=sprites.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                red, green, blue = sprites[n, :, y, x]
                gray[n, y, x] = 0.299 * red + 0.587 * green + 0.114 * blue
    return gray


def recolor_loop(indices, palette):
    """The slow way: one pixel after the other."""
    count, height, width = indices.shape
    sprites = torch.zeros(count, 3, height, width, dtype=palette.dtype, device=palette.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                sprites[n, :, y, x] = palette[indices[n, y, x]]
    return sprites


def nearest_color_loop(sprites, palette):
    """The slow way: one pixel after the other, and for each of them one colour after the other."""
    count, _, height, width = sprites.shape
    indices = torch.zeros(count, height, width, dtype=torch.int64, device=sprites.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                nearest = None
                for k, color in enumerate(palette):
                    distance = ((sprites[n, :, y, x] - color) ** 2).sum()
                    if nearest is None or distance < nearest:
                        nearest = distance
                        indices[n, y, x] = k
    return indices


# 3.11 has several; `JUMP_BACKWARD_NO_INTERRUPT` belongs to `await` and `yield from`.
JUMPS: Final = frozenset(
    name for name in dis.opmap if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name
)


class Steps(Counter[int]):
    """How often each line was executed, and the code that they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: set[CodeType] = set()
        self.elsewhere = False  # whether another process of the submission was there

    def in_loops(self) -> set[int]:
        """The lines inside of loops and comprehensions: those between a jump back and its target."""
        found: set[int] = set()
        for code in self.codes:
            every = [*dis.get_instructions(code)]
            jumps = [(each.argval, each.offset) for each in every if each.opname in JUMPS]
            inside = (
                each for each in every if any(first <= each.offset <= last for first, last in jumps)
            )
            found |= {each.positions.lineno or 0 for each in inside if each.positions}
        return found


def _processes() -> tuple[bool, float]:
    """Whether this process has others that run, and what those that have ended have used."""
    if sys.platform != "linux":
        return False, 0.0
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False, used.ru_utime + used.ru_stime + used.ru_minflt
    return True, used.ru_utime + used.ru_stime + used.ru_minflt


def stepped(call: Call, *args: Any) -> tuple[Any, Steps]:
    """Call the student's function and count the executed lines; none while a debugger is tracing.

    Lines of files beside the student's, and of text that is executed, count under the number 0. In the sandbox lines
    of all threads count.
    """
    from virtual_cuda import from_library  # and torch with it

    lines = Steps()

    def here(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines[frame.f_lineno] += 1
        return here

    def elsewhere(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines[0] += 1
        return elsewhere

    counting: dict[str, Any] = {str(call.path): here}  # by file

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in counting:
            counting[name] = None if from_library(name) else elsewhere
        count = counting[name]
        if count is here:
            lines.codes.add(frame.f_code)
        return None if count is None else count(frame, "line", value)

    def in_thread(frame: FrameType) -> None:
        lines[frame.f_lineno if counting.get(frame.f_code.co_filename) is here else 0] += 1

    if sys.gettrace() is not None:  # a debugger's or coverage's
        return call(*args), lines
    before = _processes()
    sys.settrace(enter)
    tracing.append(in_thread)
    try:
        return call(*args), lines
    finally:
        tracing.remove(in_thread)
        # In the sandbox all processes are the submission's. A notebook or a test runner may have others.
        lines.elsewhere = _processes() != before or (before[0] and in_sandbox())
        if sys.gettrace() is enter:  # a `breakpoint()` in the student's code sets its own
            sys.settrace(None)


ROUNDS: Final = 2
BAR: Final = (
    3.0  # times as fast as the loop is enough; the references are 60 times as fast and more
)
GPU: Final = "T4"  # whose modelled times are compared
PYTHON: Final = 0.1e-6  # seconds for each executed line of Python

Inputs = Callable[[int], tuple[Any, ...]]


def race(call: Call, loop: Callable[..., Any], inputs: Inputs) -> Race:
    """The fastest time of student and loop on this machine, and the results of both.

    The times are information; the results are judged. The loop runs in every round for a reference, and on a real GPU,
    where its time may be judged; beside a student once, and in a class not at all. All results are compared with
    those of the reference's loop.
    """
    racers: dict[str, Callable[..., Any]] = {"student": call, "loop": loop}
    fastest = dict.fromkeys(racers, math.inf)
    kept: dict[str, list[Array | None]] = {name: [] for name in racers}
    always = call.reference or call.bench.kind == "cuda"
    once = not in_sandbox()
    for number in range(ROUNDS):
        made = inputs(number)
        for name, racer in racers.items():
            if name == "loop" and not (always or (once and not number)):
                continue
            lines_under(timed_call(number + 1))
            given = tuple(
                tensor.clone() for tensor in made
            )  # the same values for both, each in its own memory
            start = perf_counter()
            values = arrived(racer(*given))
            took = perf_counter() - start - (call.aside if name == "student" else 0.0)
            fastest[name] = min(fastest[name], took)
            kept[name].append(values)
    lines_under("")
    measured = fastest["loop"] if kept["loop"] else 0.0
    return Race(fastest["student"], measured, ROUNDS, kept["student"], kept["loop"])


def modelled(call: Call, loop: Callable[..., Any], make: Inputs, pixels: int) -> Modelled:
    """How long student and loop take on a T4 by the modelled clock, which is the same on every machine.

    The student's picture is `make(0)`. The loop takes as long for each pixel as for the second one of `make(2)`; only
    of a reference it is known, since student code may slow down a loop that runs beside it.
    """
    given = tuple(tensor.to(call.device, copy=True) for tensor in make(0))
    watch = Skipping()  # knows how long the student slept
    virtual = call.bench.kind == "virtual"
    before = allocated(call)
    try:
        with running(watch):
            result, lines = stepped(call, *given)
            after = allocated(call)
            output = arrived(result)
    except StudentRaised as error:
        return Modelled(0.0, 0.0, None, error.evidence)
    if not virtual:  # what a real GPU's ledger lacks for the model is measured there
        return Modelled(0.0, 0.0, output)
    student = _seconds(call.ledger) + watch.now() + PYTHON * lines.total()
    if unseen(call.ledger, after - before):
        student = 0.0
    took = []
    for number in (1, 2) if call.reference else ():
        picture = tuple(tensor.to(call.device) for tensor in make(number))
        mark = call.bench.ledger.mark()
        loop(*picture)
        took.append(_seconds(call.bench.ledger.since(mark)))
    return Modelled(student, took[0] + (took[1] - took[0]) * (pixels - 1) if took else 0.0, output)


def allocated(call: Call) -> int:
    """How often memory has been allocated on the virtual device so far; 0 on others."""
    if call.bench.kind != "virtual":
        return 0
    found: int = torch.cuda.memory_stats(call.device)["allocation.all.allocated"]
    return found


def unseen(ledger: Ledger, allocations: int) -> int:
    """The number of allocations where the allocator knows of work that the ledger does not have; else 0."""
    return allocations if 2 * len(ledger.allocations()) + 16 < allocations else 0


def _seconds(ledger: Ledger) -> float:
    from virtual_cuda import gpu_named, times_of

    return times_of(ledger.rows, gpu_named(GPU), *ledger.bounds).end


def arrived(result: Any) -> Array | None:
    """The values of a tensor, on the host; None for anything else. Raises StudentRaised if it cannot be read."""
    if not isinstance(result, torch.Tensor):
        return None
    try:
        return array_of(result)
    except Exception as error:
        raise StudentRaised(Raised(type(error).__name__, str(error)[:2000], None)) from None


TOO_GOOD: Final = 50.0  # times the reference's own speedup: no kernel is that much better, but a slowed loop may be
WIDTH: Final = 24


def timed_call(number: int) -> str:
    """The name under which a timed call's lines are recorded."""
    return f"timed call {number}"


def judge_outputs(
    timed: Race,
    wanted: Race,
    same: Callable[[Any, Any], bool],
    about: Callable[[str], None] = lambda call: None,
) -> None:
    """Raises Failed where a timed result is missing or wrong. `about` is told which call a failure is about."""
    if not timed.outputs or len(timed.outputs) != max(
        len(timed.loop_outputs), len(wanted.loop_outputs)
    ):
        raise Failed(
            f"{len(timed.outputs)} timed calls returned a result", "a result of each timed call"
        )
    for number, found in enumerate(timed.outputs):
        # The loop ran beside student code; where possible its result is also compared with one that did not.
        answers = timed.loop_outputs[number : number + 1] + wanted.loop_outputs[number : number + 1]
        if not all(same(found, answer) for answer in answers):
            about(timed_call(number + 1))
            happened = f"the result of {timed_call(number + 1)} of {len(timed.outputs)} is wrong"
            raise Failed(happened, "the loop's values", at=("return",))


SLOWED: Final = 4.0  # a busy or smaller machine may slow the loop down that much, and the student's call as well


def judge_speed(found: Modelled, wanted: Modelled, measured: Race, reference: Race) -> None:
    """Raises Failed where the student is too slow by the modelled clock, or too fast to be believed.

    The loop's time is the reference's evidence: student code may slow down a loop that runs beside it. The speedup that
    was measured on this machine is only shown; where the reference ran on a real GPU, it is judged.
    """
    clock = f"modelled on a {GPU}"
    for each in (found.student, found.loop, measured.student, measured.loop):
        if not math.isfinite(each):
            raise Failed(f"a time is {each}", "a number of seconds")
    if not wanted.loop:
        seconds = min(measured.loop, SLOWED * reference.loop)
        clock = "measured on this machine"
        wanted = Modelled(seconds * reference.student / reference.loop, seconds)
        found = Modelled(measured.student, seconds)
    elif math.isfinite(measured.speedup):
        clock += f"; measured on this machine's CPU: {measured.speedup:.1f} ×"
    loop = wanted.loop
    best = _ratio(wanted.loop, wanted.student)
    speedup = _ratio(wanted.loop, found.student)
    needed = min(
        BAR, best / 3
    )  # on a device where the reference itself gains little, less is enough
    if speedup < needed:
        shown = f"{bars(loop, found.student, wanted.student)}\n{clock}"
        raise Failed(
            f"{speedup:.1f} times as fast as the loop\n{shown}",
            f"at least {needed:.1f} times as fast; the reference is {best:.0f} times as fast",
        )
    if min(found.student, loop) <= 0 or speedup > TOO_GOOD * best:
        shown = f"{bars(loop, found.student, wanted.student)}\n{clock}"
        raise Failed(
            f"{speedup:.0f} times as fast as the loop, which is too good to be true\n{shown}",
            f"about as fast as the reference, {best:.0f} times as fast as the loop",
        )


def bars(loop: float, student: float, reference: float) -> str:
    """Three times with a bar each."""
    lines = []
    for name, seconds in (("the loop", loop), ("yours", student), ("reference", reference)):
        filled = "█" * round(WIDTH * min(seconds / max(loop, student, 1e-9), 1.0)) or "▏"
        lines.append(
            f"{name:9}  {filled:{WIDTH}}  {seconds * 1000:8.2f} ms  {_ratio(loop, seconds):6.1f} ×"
        )
    return "\n".join(lines)


def _ratio(loop: float, seconds: float) -> float:
    return loop / seconds if seconds > 0 else math.inf
