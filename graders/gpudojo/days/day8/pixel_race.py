"""The race of 06: the loops that students are given, counting executed lines, modelled times, and judging them."""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from gpudojo.grading.call import Call, StudentRaised, array, lines_under, torch
from gpudojo.grading.clock import Skipping, running
from gpudojo.model.evidence import Array, Modelled, Race, Raised
from gpudojo.model.exercise import Failed

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger

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


def stepped(call: Call, *args: Any) -> tuple[Any, Counter[int]]:
    """Call the student's function and count the executed lines; none while a debugger is tracing.

    Lines of files beside the student's, and of text that is executed, count under the number 0.
    """
    from virtual_cuda import from_library  # and torch with it

    lines: Counter[int] = Counter()

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
        return None if count is None else count(frame, "line", value)

    if sys.gettrace() is not None:  # a debugger's or coverage's
        return call(*args), lines
    sys.settrace(enter)
    try:
        return call(*args), lines
    finally:
        if sys.gettrace() is enter:  # a `breakpoint()` in the student's code sets its own
            sys.settrace(None)


ROUNDS: Final = 2
BAR: Final = 3.0  # times as fast as the loop is enough; the references are 60 times as fast and more
GPU: Final = "T4"  # whose modelled times are compared
PYTHON: Final = 0.1e-6  # seconds for each executed line of Python

Inputs = Callable[[int], tuple[Any, ...]]


def race(call: Call, loop: Callable[..., Any], inputs: Inputs) -> Race:
    """The fastest time of student and loop on this machine, and the results of both in every round.

    The times are information; the results are judged.
    """
    racers: dict[str, Callable[..., Any]] = {"student": call, "loop": loop}
    fastest = dict.fromkeys(racers, math.inf)
    kept: dict[str, list[Array | None]] = {name: [] for name in racers}
    for number in range(ROUNDS):
        made = inputs(number)
        for name, racer in racers.items():
            lines_under(timed_call(number + 1))
            given = tuple(tensor.clone() for tensor in made)  # the same values for both, each in its own memory
            start = perf_counter()
            values = arrived(racer(*given))
            took = perf_counter() - start - (call.aside if name == "student" else 0.0)
            fastest[name] = min(fastest[name], took)
            kept[name].append(values)
    lines_under("")
    return Race(fastest["student"], fastest["loop"], ROUNDS, kept["student"], kept["loop"])


def modelled(call: Call, loop: Callable[..., Any], make: Inputs, pixels: int) -> Modelled:
    """How long student and loop take on a T4 by the modelled clock, which is the same on every machine.

    The student's picture is `make(0)`. The loop takes as long for each pixel as for the second one of `make(2)`.
    """
    given = tuple(tensor.to(call.device, copy=True) for tensor in make(0))
    watch = Skipping()  # knows how long the student slept
    virtual = call.bench.kind == "virtual"
    allocated = _allocated(call) if virtual else 0
    try:
        with running(watch):
            result, lines = stepped(call, *given)
            allocated = _allocated(call) - allocated if virtual else 0
            output = arrived(result)
    except StudentRaised as error:
        return Modelled(0.0, 0.0, None, error.evidence)
    if not virtual:  # what a real GPU's ledger lacks for the model is measured there
        return Modelled(0.0, 0.0, output)
    student = _seconds(call.ledger) + watch.now() + PYTHON * lines.total()
    if 2 * len(call.ledger.allocations()) + 16 < allocated:  # the allocator knows of work that the ledger does not have
        student = 0.0
    took = [0.0, 0.0]
    with contextlib.suppress(Exception):  # student code may have replaced what the loop uses; its time is not judged
        for number in (1, 2):
            picture = tuple(tensor.to(call.device) for tensor in make(number))
            mark = call.bench.ledger.mark()
            loop(*picture)
            took[number - 1] = _seconds(call.bench.ledger.since(mark))
    return Modelled(student, took[0] + (took[1] - took[0]) * (pixels - 1), output)


def _allocated(call: Call) -> int:
    found: int = torch.cuda.memory_stats(call.device)["allocation.all.allocated"]
    return found


def _seconds(ledger: Ledger) -> float:
    from virtual_cuda import gpu_named, times_of

    return times_of(ledger.rows, gpu_named(GPU), *ledger.bounds).end


def arrived(result: Any) -> Array | None:
    """The values of a tensor, on the host; None for anything else. Raises StudentRaised if it cannot be read."""
    if not isinstance(result, torch.Tensor):
        return None
    try:
        return array(result)
    except Exception as error:
        raise StudentRaised(Raised(type(error).__name__, str(error)[:2000], None)) from None


TOO_GOOD: Final = 50.0  # times the reference's own speedup: no kernel is that much better, but a slowed loop may be
WIDTH: Final = 24


def timed_call(number: int) -> str:
    """The name under which a timed call's lines are recorded."""
    return f"timed call {number}"


def judge_outputs(
    timed: Race, wanted: Race, same: Callable[[Any, Any], bool], about: Callable[[str], None] = lambda call: None
) -> None:
    """Raises Failed where a timed result is missing or wrong. `about` is told which call a failure is about."""
    if not timed.outputs or len(timed.outputs) != len(timed.loop_outputs):
        raise Failed(f"{len(timed.outputs)} timed calls returned a result", "a result of each timed call")
    for number, found in enumerate(timed.outputs):
        # The loop ran beside student code; where possible its result is also compared with one that did not.
        answers = [timed.loop_outputs[number], *wanted.loop_outputs[number : number + 1]]
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
        seconds, clock = min(measured.loop, SLOWED * reference.loop), "measured on this machine"
        wanted = Modelled(seconds * reference.student / reference.loop, seconds)
        found = Modelled(measured.student, seconds)
    elif math.isfinite(measured.speedup):
        clock += f"; measured on this machine's CPU: {measured.speedup:.1f} ×"
    loop, best, speedup = wanted.loop, _ratio(wanted.loop, wanted.student), _ratio(wanted.loop, found.student)
    needed = min(BAR, best / 3)  # on a device where the reference itself gains little, less is enough
    shown = f"{bars(loop, found.student, wanted.student)}\n{clock}"
    if speedup < needed:
        raise Failed(
            f"{speedup:.1f} times as fast as the loop\n{shown}",
            f"at least {needed:.1f} times as fast; the reference is {best:.0f} times as fast",
        )
    if min(found.student, loop) <= 0 or speedup > TOO_GOOD * best:
        raise Failed(
            f"{speedup:.0f} times as fast as the loop, which is too good to be true\n{shown}",
            f"about as fast as the reference, {best:.0f} times as fast as the loop",
        )


def bars(loop: float, student: float, reference: float) -> str:
    """Three times with a bar each."""
    lines = []
    for name, seconds in (("the loop", loop), ("yours", student), ("reference", reference)):
        filled = "█" * round(WIDTH * min(seconds / max(loop, student, 1e-9), 1.0)) or "▏"
        lines.append(f"{name:9}  {filled:{WIDTH}}  {seconds * 1000:8.2f} ms  {_ratio(loop, seconds):6.1f} ×")
    return "\n".join(lines)


def _ratio(loop: float, seconds: float) -> float:
    return loop / seconds if seconds > 0 else math.inf
