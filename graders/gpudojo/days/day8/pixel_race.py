"""The race of 06: the loops students are given, lines executed, and times beside the reference's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from time import get_clock_info, perf_counter, thread_time
from types import FrameType
from typing import Any, Final

from gpudojo.grading.call import Call, StudentRaised, array, torch
from gpudojo.grading.load import load
from gpudojo.model.evidence import Array, Raised

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
    """Call the student's function and count each line of its file; none of them while a debugger is watching."""
    lines: Counter[int] = Counter()
    file = str(call.path)

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        lines[frame.f_lineno] += 1
        return step

    def step(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines[frame.f_lineno] += 1
        return step

    if sys.gettrace() is not None:  # a debugger's or coverage's: theirs to keep
        return call(*args), lines
    sys.settrace(enter)
    try:
        return call(*args), lines
    finally:
        if sys.gettrace() is enter:  # a `breakpoint()` in the student's code has put its own there
            sys.settrace(None)


clock: Final = perf_counter
FINE: Final = get_clock_info("thread_time").resolution < 1e-4  # on Windows it ticks 64 times a second
ROUNDS: Final = 2  # in one attempt
ATTEMPTS: Final = 6  # the rounds of all attempts are judged together, so that more of them only sharpen the picture
BAR: Final = 3.0  # how many times as fast as the loop is fast enough, where the reference is 50 times as fast

Inputs = Callable[[int], tuple[Any, ...]]


def race(
    call: Call, loop: Callable[..., Any], reference: Callable[..., Any] | None, inputs: Inputs, clock: Any = clock
) -> dict[str, Any]:
    """The fastest time of student, loop and reference, and what student and loop gave in every round.

    While the student is not clearly faster than the loop there is another attempt: a machine busy with other things
    slows one call or another down, but not every one of many. After two attempts the hopeless are let go.
    """
    racers: dict[str, Callable[..., Any]] = {"student": call, "loop": loop}
    if reference is not None:
        racers["reference"] = reference
    fastest = dict.fromkeys(racers, float("inf"))
    kept: dict[str, list[Any]] = {name: [] for name in racers}
    rounds = 0
    for attempt in range(ATTEMPTS):
        for _ in range(ROUNDS):
            # Who begins changes from round to round, so that nobody always runs on a cold cache.
            order = list(racers)[rounds % len(racers) :] + list(racers)[: rounds % len(racers)]
            made = inputs(rounds)
            for name in order:
                given = tuple(tensor.clone() for tensor in made)  # the same values for all, in memory of their own
                worked, start = thread_time(), clock()
                values = arrived(racers[name](*given))
                took, worked = clock() - start, thread_time() - worked
                fastest[name] = min(fastest[name], worked if name == "loop" and FINE else took)
                kept[name].append(values)
            rounds += 1
        speedup = fastest["loop"] / max(fastest["student"], 1e-9)
        if speedup >= 2 * BAR or (attempt and speedup < BAR / 2):
            break
    return {
        "student": fastest["student"],
        "loop": fastest["loop"],
        "reference": fastest.get("reference"),
        "rounds": rounds,
        "outputs": kept["student"],
        "loop_outputs": kept["loop"],
    }


def arrived(result: Any) -> Array | None:
    """The values of a result, on the host; what is no tensor has none, and what cannot be read is the student's."""
    if not isinstance(result, torch.Tensor):
        return None
    try:
        return array(result)
    except Exception as error:
        raise StudentRaised(Raised(type(error).__name__, str(error)[:2000], None)) from None


def reference_here(stem: str, name: str, day: str = "day8") -> Callable[..., Any] | None:
    """The reference's function where this machine has it; a released repository and a sandbox have not."""
    for folder in Path(__file__).resolve().parents:
        candidate = folder / "reference" / day / f"{stem}.py"
        try:
            if candidate.is_file():
                found = _loaded(candidate, candidate.stat().st_mtime_ns).get(name)
                return found if callable(found) else None
        except OSError:  # a sandbox that does not let student code read it
            return None
    return None


@lru_cache(maxsize=1)
def _loaded(path: Path, changed: int) -> dict[str, Any]:
    """What a reference defines: its functions are timed one after the other, but the file is run once."""
    return load(path).names
