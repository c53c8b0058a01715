"""The race of 06: the loops that students are given, counting executed lines, timing, and judging the times."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from time import get_clock_info, perf_counter, thread_time
from types import FrameType
from typing import Any, Final

import msgspec

from gpudojo.grading.call import Call, StudentRaised, array, lines_under, torch
from gpudojo.grading.load import load
from gpudojo.model.evidence import Array, Race, Raised
from gpudojo.model.exercise import Failed

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


clock: Final = perf_counter
FINE: Final = get_clock_info("thread_time").resolution < 1e-4  # on Windows it ticks 64 times a second
ROUNDS: Final = 2  # in one attempt
ATTEMPTS: Final = 6  # the rounds of all attempts are judged together
BAR: Final = 3.0  # times as fast as the loop is enough; the reference is 50 times as fast

Inputs = Callable[[int], tuple[Any, ...]]


def race(
    call: Call, loop: Callable[..., Any], reference: Callable[..., Any] | None, inputs: Inputs, clock: Any = clock
) -> Race:
    """The fastest time of student, loop and reference, and the results of student and loop in every round.

    While the student is not clearly faster than the loop there is another attempt: a busy machine slows down some
    calls, but not every one of many. A function that is clearly too slow gets two attempts.
    """
    racers: dict[str, Callable[..., Any]] = {"student": call, "loop": loop}
    if reference is not None:
        racers["reference"] = reference
    fastest = dict.fromkeys(racers, float("inf"))
    kept: dict[str, list[Any]] = {name: [] for name in racers}
    rounds = 0
    for attempt in range(ATTEMPTS):
        for _ in range(ROUNDS):
            # The order changes from round to round, so that none of them always runs on a cold cache.
            order = list(racers)[rounds % len(racers) :] + list(racers)[: rounds % len(racers)]
            made = inputs(rounds)
            for name in order:
                lines_under(timed_call(rounds + 1))
                given = tuple(tensor.clone() for tensor in made)  # the same values for all, each in its own memory
                pauses, worked, start = _pauses(), thread_time(), clock()
                values = arrived(racers[name](*given))
                took, worked = clock() - start, thread_time() - worked
                if name == "student":
                    took, worked = took - call.aside[0], worked - call.aside[1]
                # Who never paused has only been kept from working, by others on a busy machine.
                busy = FINE and (name == "loop" or (pauses is not None and _pauses() == pauses))
                fastest[name] = min(fastest[name], worked if busy else took)
                kept[name].append(values)
            rounds += 1
        speedup = fastest["loop"] / max(fastest["student"], 1e-9)
        if speedup >= 2 * BAR or (attempt and speedup < BAR / 2):
            break
    lines_under("")
    times = fastest["student"], fastest["loop"], fastest.get("reference")
    return Race(*times, rounds, outputs=kept["student"], loop_outputs=kept["loop"])


def _pauses() -> int | None:
    """How often this thread has paused by itself: slept, or waited for another thread or process."""
    if sys.platform != "linux":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def arrived(result: Any) -> Array | None:
    """The values of a tensor, on the host; None for anything else. Raises StudentRaised if it cannot be read."""
    if not isinstance(result, torch.Tensor):
        return None
    try:
        return array(result)
    except Exception as error:
        raise StudentRaised(Raised(type(error).__name__, str(error)[:2000], None)) from None


def reference_here(stem: str, name: str, day: str = "day8") -> Callable[..., Any] | None:
    """The reference's function, or None on a machine without it: a released repository, or a sandbox."""
    for folder in Path(__file__).resolve().parents:
        candidate = folder / "reference" / day / f"{stem}.py"
        try:
            if candidate.is_file():
                found = _loaded(candidate, candidate.stat().st_mtime_ns).get(name)
                return found if callable(found) else None
        except OSError:  # a sandbox
            return None
    return None


@lru_cache(maxsize=1)
def _loaded(path: Path, changed: int) -> dict[str, Any]:
    """The names that a reference defines; cached, because its functions are timed one after the other."""
    return load(path).names


TOO_GOOD: Final = 50.0  # times the reference's own speedup: no kernel is that much better, but a slowed loop may be
SLOWED: Final = 4.0  # a busy or smaller machine may slow the loop down that much, and the student's call as well
WIDTH: Final = 24


def limited(timed: Race, wanted: Race) -> Race:
    """Student code may slow down the loop that runs beside it, but not the loop beside the reference."""
    for name, seconds in (("student", timed.student), ("loop", timed.loop)):
        if not math.isfinite(seconds):
            raise Failed(f"the time of the {name} is {seconds}", "a number of seconds")
    return msgspec.structs.replace(timed, loop=min(timed.loop, SLOWED * wanted.loop))


def timed_call(number: int) -> str:
    """The name under which a timed call's lines are recorded."""
    return f"timed call {number}"


def judge_speed(
    timed: Race, wanted: Race, same: Callable[[Any, Any], bool], about: Callable[[str], None] = lambda call: None
) -> None:
    """Raises Failed where a timed result is wrong, or the student is too slow, or too fast to be believed.

    `about` is told which call a failure is about.
    """
    for number, found in enumerate(timed.outputs):
        # The loop ran beside student code; where possible its result is also compared with one that did not.
        answers = [timed.loop_outputs[number], *wanted.loop_outputs[number : number + 1]]
        if not all(same(found, answer) for answer in answers):
            about(timed_call(number + 1))
            happened = f"the result of {timed_call(number + 1)} of {len(timed.outputs)} is wrong"
            raise Failed(happened, "the loop's values", at=("return",))
    best = _ratio(wanted.loop, wanted.student)  # the reference, whose own evidence this is
    loop, speedup = timed.loop, _ratio(timed.loop, timed.student)
    needed = min(BAR, best / 3)  # on a device where the reference itself gains little, less is enough
    shown = bars(loop, timed.student, timed.reference or loop / best)
    if speedup < needed:
        raise Failed(
            f"{speedup:.1f} times as fast as the loop\n{shown}",
            f"at least {needed:.1f} times as fast; the reference is {best:.0f} times as fast",
        )
    if min(timed.student, loop) <= 0 or speedup > TOO_GOOD * best:
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
