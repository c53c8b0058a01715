"""The race of 06: how long a student's function and the loop take, modelled on a GPU and measured here."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from gpudojo.days.day8.line_counting import call_counting_lines
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    in_sandbox,
    torch,
)
from gpudojo.model.evidence import Array, Modelled, Race, Raised
from gpudojo.model.exercise import Failed

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger


ROUNDS: Final = 2
BAR: Final = (
    3.0  # times as fast as the loop is enough; the references are 60 times as fast and more
)
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
            call.lines_under = timed_call(number + 1)
            given = tuple(
                tensor.clone() for tensor in made
            )  # the same values for both, each in its own memory
            start = perf_counter()
            values = arrived(racer(*given))
            took = perf_counter() - start - (call.aside if name == "student" else 0.0)
            fastest[name] = min(fastest[name], took)
            kept[name].append(values)
    call.lines_under = ""
    measured = fastest["loop"] if kept["loop"] else 0.0
    return Race(fastest["student"], measured, ROUNDS, kept["student"], kept["loop"])


def modelled(call: Call, loop: Callable[..., Any], make: Inputs, pixels: int) -> Modelled:
    """How long student and loop take on a T4 by the modelled clock, which is the same on every machine.

    The student's picture is `make(0)`. The loop takes as long for each pixel as for the second one of `make(2)`; only
    of a reference it is known, since student code may slow down a loop that runs beside it.
    """
    from virtual_cuda.hooks import modelled_time, patch_imported_names

    given = tuple(tensor.to(call.device, copy=True) for tensor in make(0))
    virtual = call.bench.kind == "virtual"
    before = allocated(call)
    try:
        names = getattr(call.function, "__globals__", {})
        with modelled_time() as clock, patch_imported_names(names):
            result, lines = call_counting_lines(call, *given)
            after = allocated(call)
            output = arrived(result)
    except StudentRaised as error:
        return Modelled(0.0, 0.0, None, error.evidence)
    if not virtual:  # what a real GPU's ledger lacks for the model is measured there
        return Modelled(0.0, 0.0, output)
    student = _seconds(call.ledger) + clock.slept + PYTHON * lines.total()
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
    from virtual_cuda.hooks import USUAL_GPU

    return times_of(ledger, gpu_named(USUAL_GPU)).end


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
    from virtual_cuda.hooks import USUAL_GPU

    clock = f"modelled on a {USUAL_GPU}"
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
