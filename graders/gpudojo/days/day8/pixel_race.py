"""The race of 06: how long a student's function and the loop take.

Times are modelled on a GPU, and measured on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpudojo.days.day8.line_counting import call_counting_lines
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    torch,
)
from gpudojo.grading.sealing import seal
from gpudojo.grading.student_code import in_sandbox
from gpudojo.model.evidence import Array, Modelled, Race, Raised
from gpudojo.model.exercise import Failed

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger

    from gpudojo.days.day8.vectorizing_pixel_loops.inputs import Size

ROUNDS: Final = 2
# Times as fast as the loop is enough; the references are 60 times as fast and more.
BAR: Final = 3.0
PYTHON: Final = 0.1e-6  # seconds for each executed line of Python
# Times the reference's own speedup: no kernel is that much better, but a slowed loop may be.
TOO_GOOD: Final = 50.0
# A busy or smaller machine may slow the loop down that much, and the student's call as well.
SLOWED: Final = 4.0
WIDTH: Final = 24  # of a bar

Inputs = tuple[Any, ...]

# ---- beside student code -----------------------------------------------------------------------


def race(call: Call, loop: Callable[..., Any], make: Callable[[int], Inputs]) -> Race:
    """The fastest time of student and loop on this machine, and the results of both.

    `make` gives the inputs of each round. The times are information; the results are judged. The
    loop runs in every round for a reference, and on a real GPU, where its time may be judged;
    beside a student once, and in a class not at all. All results are compared with those of the
    reference's loop. In the sandbox the student's results are sent out of the process at once. Sets
    `call.lines_under` to each round, and then to "", but not after an error. Raises StudentRaised.
    """
    student_seconds = math.inf
    loop_seconds = math.inf
    student_outputs: list[Array | None] = []
    loop_outputs: list[Array | None] = []
    loop_in_every_round = call.reference or call.bench.kind == "cuda"
    for number in range(ROUNDS):
        # The student
        inputs = make(number)
        call.lines_under = timed_call(number + 1)
        seconds, output = _time_call(call, inputs)
        student_seconds = min(student_seconds, seconds)
        student_outputs.append(seal(output))
        # The loop
        if loop_in_every_round or (number == 0 and not in_sandbox()):
            seconds, output = _time_call(loop, inputs)
            loop_seconds = min(loop_seconds, seconds)
            loop_outputs.append(output)
    call.lines_under = ""
    measured = 0.0
    if loop_outputs:
        measured = loop_seconds
    return Race(student_seconds, measured, ROUNDS, student_outputs, loop_outputs)


def _time_call(function: Callable[..., Any], inputs: Inputs) -> tuple[float, Array | None]:
    """Seconds and result of a call, with inputs of its own memory. Raises StudentRaised."""
    copies = tuple(tensor.clone() for tensor in inputs)
    start = perf_counter()
    values = read_result(function(*copies))
    return perf_counter() - start, values


def timed_call(number: int) -> str:
    """The name under which a timed call's lines are recorded."""
    return f"timed call {number}"


def modelled_times(
    call: Call, loop: Callable[..., Any], make: Callable[[Size], Inputs], size: Size
) -> Modelled:
    """How long student and loop take for pictures of this size on a T4 by the modelled clock.

    That clock is the same on every machine. The loop runs on one pixel and on two, and takes as
    long for each pixel as for the second of two; its time is known only for a reference, since
    student code may slow down a loop that runs beside it. Times that are not known are 0. An error
    of the student's is in the result, not raised.
    """
    from virtual_cuda.hooks import modelled_time, patch_imported_names

    given = tuple(tensor.to(call.device, copy=True) for tensor in make(size))
    names = getattr(call.function, "__globals__", {})
    before = count_allocations(call)
    try:
        with modelled_time() as clock, patch_imported_names(names):
            result, lines = call_counting_lines(call, *given)
            allocations = count_allocations(call) - before
            output = read_result(result)
    except StudentRaised as error:
        return Modelled(0.0, 0.0, None, error.evidence)
    if call.bench.kind != "virtual":
        # What a real GPU's ledger lacks for the model is measured there.
        return Modelled(0.0, 0.0, output)
    python = PYTHON * lines.total()
    student = _seconds_on_gpu(call.ledger) + clock.slept + python
    if unrecorded_allocations(call.ledger, allocations):
        student = 0.0
    if not call.reference:
        return Modelled(student, 0.0, output)
    one_pixel = size._replace(sprites=1, height=1, width=1)
    two_pixels = one_pixel._replace(width=2)
    first = _seconds_of_loop(call, loop, make(one_pixel))
    both = _seconds_of_loop(call, loop, make(two_pixels))
    others = (both - first) * (size.pixels - 1)
    return Modelled(student, first + others, output)


def _seconds_of_loop(call: Call, loop: Callable[..., Any], inputs: Inputs) -> float:
    """The modelled seconds of the loop, called with copies of these inputs on the device."""
    picture = tuple(tensor.to(call.device) for tensor in inputs)
    mark = call.bench.ledger.mark()
    loop(*picture)
    return _seconds_on_gpu(call.bench.ledger.since(mark))


def _seconds_on_gpu(ledger: Ledger) -> float:
    """The modelled seconds until all recorded work is done on a T4."""
    from virtual_cuda import gpu_named, times_of
    from virtual_cuda.hooks import USUAL_GPU

    return times_of(ledger, gpu_named(USUAL_GPU)).end


def count_allocations(call: Call) -> int:
    """How often memory has been allocated on the virtual device so far; 0 on others."""
    if call.bench.kind != "virtual":
        return 0
    count: int = torch.cuda.memory_stats(call.device)["allocation.all.allocated"]
    return count


def unrecorded_allocations(ledger: Ledger, allocations: int) -> int:
    """The number of allocations, if the ledger lacks more than half of them; else 0.

    Then the allocator knows of work that was not recorded.
    """
    if 2 * len(ledger.allocations()) + 16 < allocations:
        return allocations
    return 0


def read_result(result: Any) -> Array | None:
    """The values of a tensor, on the host; None for anything else.

    Raises StudentRaised if it cannot be read.
    """
    if not isinstance(result, torch.Tensor):
        return None
    try:
        return array_of(result)
    except Exception as error:  # whatever the student's tensor raises is the student's
        raised = Raised(type(error).__name__, str(error)[:2000], None)
        raise StudentRaised(raised) from None


# ---- judging -----------------------------------------------------------------------------------


def judge_outputs(
    timed: Race,
    wanted: Race,
    same: Callable[[Any, Any], bool],
    about: Callable[[str], None] = lambda call: None,
) -> None:
    """Raises Failed where a timed result is missing or wrong.

    `same` tells whether two results are equal. `about` is called with the name of the call that a
    failure is about.
    """
    count = len(timed.outputs)
    # The loop ran beside student code; where possible results are also compared with one that did
    # not.
    loops = (timed.loop_outputs, wanted.loop_outputs)
    rounds = max(map(len, loops))
    if not count or count != rounds:
        happened = f"{count} timed calls returned a result"
        raise Failed(happened, "a result of each timed call")
    for number, found in enumerate(timed.outputs):
        for outputs in loops:
            if number < len(outputs) and not same(found, outputs[number]):
                name = timed_call(number + 1)
                about(name)
                happened = f"the result of {name} of {count} is wrong"
                raise Failed(happened, "the loop's values", at=("return",))


def judge_speed(found: Modelled, wanted: Modelled, measured: Race, reference: Race) -> None:
    """Raises Failed where the student is too slow, or too fast to be believed.

    That is by the modelled clock. The loop's time is the reference's evidence: student code may
    slow down a loop that runs beside it. The speedup that was measured on this machine is only
    shown; where the reference ran on a real GPU, it is judged.
    """
    for seconds in (found.student, found.loop, measured.student, measured.loop):
        if not math.isfinite(seconds):
            raise Failed(f"a time is {seconds}", "a number of seconds")
    times = _times_to_compare(found, wanted, measured, reference)
    best = _speedup_over(times.loop, times.reference)
    speedup = _speedup_over(times.loop, times.student)
    needed = min(BAR, best / 3)  # where the reference itself gains little, less is enough
    bars = draw_bars(times.loop, times.student, times.reference)
    if speedup < needed:
        happened = f"{speedup:.1f} times as fast as the loop"
        at_least = f"at least {needed:.1f} times as fast"
        expected = f"{at_least}; the reference is {best:.0f} times as fast"
        happened = f"{happened}\n{bars}\n{times.clock}"
        raise Failed(happened, expected)
    if min(times.student, times.loop) <= 0 or speedup > TOO_GOOD * best:
        happened = f"{speedup:.0f} times as fast as the loop, which is too good to be true"
        expected = f"about as fast as the reference, {best:.0f} times as fast as the loop"
        happened = f"{happened}\n{bars}\n{times.clock}"
        raise Failed(happened, expected)


class RaceTimes(NamedTuple):
    """Seconds to compare, and in words by which clock."""

    student: float
    loop: float
    reference: float
    clock: str


def _times_to_compare(
    found: Modelled, wanted: Modelled, measured: Race, reference: Race
) -> RaceTimes:
    """The modelled times or, where the reference ran on a real GPU, those of this machine.

    There the loop's time is limited, since student code may slow it down; raises ZeroDivisionError
    if the reference's loop took no time.
    """
    from virtual_cuda import gpu_named
    from virtual_cuda.hooks import USUAL_GPU

    if wanted.loop:
        clock = f"modelled on a {gpu_named(USUAL_GPU).label}"
        if math.isfinite(measured.speedup):
            clock = f"{clock}; measured on this machine's CPU: {measured.speedup:.1f} ×"
        return RaceTimes(found.student, wanted.loop, wanted.student, clock)
    loop = min(measured.loop, SLOWED * reference.loop)
    best = loop * reference.student / reference.loop
    return RaceTimes(measured.student, loop, best, "measured on this machine")


def draw_bars(loop: float, student: float, reference: float) -> str:
    """Three times, given in seconds, in lines with a bar each."""
    longest = max(loop, student, 1e-9)
    times = {"the loop": loop, "yours": student, "reference": reference}
    lines = []
    for name, seconds in times.items():
        share = min(seconds / longest, 1.0)
        bar = "█" * round(WIDTH * share) or "▏"
        milliseconds = seconds * 1000
        speedup = _speedup_over(loop, seconds)
        lines.append(f"{name:9}  {bar:{WIDTH}}  {milliseconds:8.2f} ms  {speedup:6.1f} ×")
    return "\n".join(lines)


def _speedup_over(loop: float, seconds: float) -> float:
    """How many times as fast as the loop something is that takes so many seconds.

    Infinite for 0.
    """
    if seconds > 0:
        return loop / seconds
    return math.inf
