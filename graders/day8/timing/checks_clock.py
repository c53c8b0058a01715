"""Is the time right that `time_on_device` and `compare_devices` give, and if not, what went wrong?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from graders.checks.common import runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.timing.functions import CLOCKS, LAST, clock, compare


def _unfinished(_: str, said: str) -> str | None:
    """An event that was asked for its time before the device had come to it."""
    early = "device not ready" in said or "must be completed" in said
    return "timed-without-synchronising" if early else None


runs(clock, points=0.25, diagnose=_unfinished)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _right(row: dict[str, Any]) -> bool:
    return row["value"] is not None and bool(row["least"] <= row["value"] <= row["most"])


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    """By the clock that tells more: the made one, if it was looked at, and else the real one."""
    return facts if facts["clocks"] or "really" not in facts else facts["really"]


def _holds(facts: dict[str, Any]) -> bool:
    return _right(facts) or ("really" in facts and _right(facts["really"]))


def _near(value: float, wished: float) -> bool:
    return math.isclose(value, wished, rel_tol=0.05)


def _slip(value: float, right: float, repeats: int) -> str | None:
    """What an answer is that is right but for its unit or its division."""
    if _near(value, right * repeats):
        return "that is all timed calls together, not one of them"
    if _near(value, right * 1e3) or _near(value, right * 1e3 * repeats):
        return "those are milliseconds"
    return "those are nanoseconds" if _near(value, right * 1e9) else None


@clock.check(points=0.25)
def calls_it_as_often_as_asked(seen: Seen, wanted: Seen) -> None:
    """`fn` is called exactly `warmup + repeats` times."""
    asked = {
        "as_it_comes": "the defaults",
        "slow_first_calls": "repeats=3, warmup=2",
        "uneven_calls": "repeats=4, warmup=0",
    }
    for name, options in asked.items():
        calls, right = seen[name].facts["calls"], wanted[name].facts["calls"]
        if calls != right:
            raise Failed(f"with {options} `fn` was called {calls} times", f"{right} calls")


@clock.check(points=0.25)
def gives_the_mean_per_call(seen: Seen, wanted: Seen) -> None:
    """It returns the mean number of seconds per call, as a float."""
    facts = seen["uneven_calls"].facts
    if facts["value"] is None:
        misconception = "returned-tensor" if facts["class"] in ("Tensor", "Parameter") else None
        raise Failed(f"it returned {called(facts['class'])}", "a Python float", misconception=misconception)
    if _holds(facts):
        return
    facts = _told(facts)
    calls = ", ".join(f"{took * 1e3:.1f}" for took in facts["took"])
    happened = f"{len(facts['took'])} calls of {calls} ms gave {facts['value']:.6f}"
    slip = _slip(facts["value"], facts["right"], facts["repeats"])
    if slip:
        happened += f": {slip}"
    elif facts["clocks"] and all(name.startswith(("process_time", "thread_time")) for name in facts["clocks"]):
        happened += f": {facts['clocks'][0]}() counts the processor's time only, and not what has to be waited for"
    raise Failed(happened, f"their mean in seconds: {facts['right']:.4f}")


@clock.check(points=0.25, needs=("runs", "gives_the_mean_per_call"))
def leaves_the_warm_up_out(seen: Seen, wanted: Seen) -> None:
    """The warm-up calls are not timed."""
    facts = seen["slow_first_calls"].facts
    if _holds(facts):
        return
    facts = _told(facts)
    value, right = facts["value"] or 0.0, facts["right"]
    raise Failed(
        f"two warm-up calls of about 50 ms, then three of 10 ms, gave {_ms(value)} per call" + _spread(facts),
        f"{_ms(right)}: the clock starts after the warm-up",
        misconception="timed-the-warm-up" if value > right else None,
    )


def _spread(facts: dict[str, Any]) -> str:
    """Words for a time that was right until it was divided by all calls."""
    right = facts["right"] * facts["repeats"] / max(facts["calls"], 1)
    return ": divided by all calls, those of the warm-up included" if _near(facts["value"] or 0.0, right) else ""


@clock.check(points=0.5, needs=("runs", "gives_the_mean_per_call"))
def waits_for_the_device(seen: Seen, wanted: Seen) -> None:
    """The device is synchronised before the clock is started and before it is stopped."""
    facts = seen["a_device_that_works_later"].facts
    if not _holds(facts):
        raise _not_waited(_told(facts), "the GPU")


@clock.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_an_apple_gpu(seen: Seen, wanted: Seen) -> None:
    """For "mps" it waits for the Mac's GPU, and asks nothing of CUDA."""
    facts = seen["an_apple_gpu_that_works_later"].facts
    _no_error(facts, 'device="mps" on a Mac')
    if not _holds(facts):
        raise _not_waited(_told(facts), "the Mac's GPU")


def _not_waited(facts: dict[str, Any], device: str) -> Failed:
    value, right = facts["value"] or 0.0, facts["right"]
    said = f"{device} needed {_ms(right)} per call and the clock says {_ms(value)}"
    if slip := _slip(value, right, facts["repeats"]):
        return Failed(f"{said}: {slip}", "seconds per call; an event's elapsed_time() is in milliseconds")
    if spread := _spread(facts):
        return Failed(said + spread, "the time of the timed calls, divided by their number")
    if value < right:
        happened = f"{said}: it stopped before the work did"
        expected, where = "a synchronize() before the clock is stopped", LAST
    else:
        happened = f"{said}: it ran while the warm-up's work was still being done"
        expected, where = "a synchronize() between the warm-up and the start of the clock", CLOCKS
    return Failed(happened, expected, None, "timed-without-synchronising", where)


def _no_error(facts: dict[str, Any], what: str) -> None:
    if "raised" in facts:
        raise Failed(
            f"{what} raised {facts['raised']}: {facts['text'].partition(chr(10))[0]}",
            "no error",
            facts["line"],
            "hard-coded-cuda",
        )


@clock.check(points=0.25)
def works_without_a_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cpu" it also works on a machine that has no GPU."""
    _no_error(seen["a_machine_without_a_gpu"].facts, 'device="cpu" on a machine without a GPU')


runs(compare)
PLACES = ("gpu_first", "cpu_first")


@compare.check(points=0.25)
def names_every_device_in_order(seen: Seen, wanted: Seen) -> None:
    """The keys are the devices as strings, in the order given."""
    for name in PLACES:
        facts, right = seen[name].facts, wanted[name].facts
        if not facts["is_dict"]:
            raise Failed(f"it returned {called(facts['class'])}", "a dict")
        keys, wished = [row["key"] for row in facts["rows"]], [row["key"] for row in right["rows"]]
        if not all(row["is_text"] for row in facts["rows"]):
            raise Failed("for devices given as torch.device the keys are devices too", "strings: str(device)")
        if keys != wished:
            raise Failed(f"the keys are {keys}", f"{wished}")


@compare.check(points=0.25, needs=("runs", "names_every_device_in_order"))
def times_each_as_it_should(seen: Seen, wanted: Seen) -> None:
    """Each value is that device's own seconds per call: warmed up, waited for, over `repeats` calls."""
    for row, repeats in _rows(seen):
        if row["value"] is None:
            raise Failed(f"the value for {row['key']} is no number", "seconds as a float")
        if not row["asked"]:
            raise Failed(f"`make_work` was never called for {row['key']}", "work made for every device")
        if not row["took"]:
            raise Failed(
                f"the function that `make_work({row['key']!r})` returned was never called", "that function, timed"
            )
        if not _right(row):
            raise _mistimed(row, repeats)
    few, many = seen["gpu_first"].facts["calls"], seen["cpu_first"].facts["calls"]
    if many["cpu"] - few["cpu"] != 2:
        raise Failed(
            f"with repeats=3 the CPU's work was called {few['cpu']} times, with repeats=5 {many['cpu']} times",
            "2 calls more: `repeats` is passed on",
        )


def _rows(seen: Seen) -> Iterator[tuple[dict[str, Any], int]]:
    """Every device's row; the CPU's first, where nothing has to be waited for and a mistake has one cause less."""
    for name in PLACES:
        facts = seen[name].facts
        really = facts.get("really", facts)
        best = facts if not all(map(_right, really["rows"])) else really
        for row in sorted(best["rows"], key=lambda row: row["key"] != "cpu"):
            yield row, best["repeats"]


def _mistimed(row: dict[str, Any], repeats: int) -> Failed:
    value, right, took = row["value"], row["right"], row["took"]
    said = f"{row['key']} needed {_ms(right)} per call, and its value says {_ms(value)}"
    expected = "the work that `make_work(device)` returns, timed on that device as `time_on_device` does"
    if slip := _slip(value, right, repeats):
        return Failed(f"{said}: {slip}", expected)
    all_in = [math.fsum(took) / repeats, math.fsum(took) / len(took)]  # with the slow first call
    misconception = None
    if row["key"] == "cpu":
        misconception = "timed-the-warm-up" if any(_near(value, mean) for mean in all_in) else None
    elif value < right or any(_near(value, mean) for mean in all_in):
        misconception = "timed-the-warm-up" if len(took) <= repeats else "timed-without-synchronising"
    return Failed(said, expected, misconception=misconception)
