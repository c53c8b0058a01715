"""Is the peak that was found the right one, and the batch the first that fits?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graders.checks.common import runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.managing_memory.functions import largest_batch, peak_memory

KIB = 1024


def _about_cuda(scenario: str, said: str) -> str | None:
    """A complaint about CUDA where the CPU was asked for."""
    return "hard-coded-cuda" if scenario == "on_the_cpu" and "cuda" in said.lower() else None


runs(peak_memory, diagnose=_about_cuda)


def _earlier(right: dict[str, Any]) -> int:
    """The peak that was over before `fn` was called."""
    return int(right["blocks"]["earlier"] + right["blocks"]["before"])


def _mistaken(right: dict[str, Any]) -> dict[int, str]:
    """What else can be read off the allocator, and what it is."""
    before, highest, left = (right["blocks"][name] for name in ("before", "highest", "left"))
    return {left + before: "what is left after `fn`", highest: "what `fn` added", left: "what `fn` left behind"}


def _measured(seen: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, answer and right answer of every measurement; one that is no int is refused on the way."""
    for name, right in wanted.items():
        facts = seen[name]
        if facts["value"] is None:
            raise Failed(
                f"device={name} gave {facts['shown']}, {called(facts['class'])}", "a number of bytes, as an int"
            )
        yield name, facts, right


def _here(seen: Seen, wanted: Seen) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    return _measured(seen["peaks"].facts["on_this_device"], wanted["peaks"].facts["on_this_device"])


@peak_memory.check(points=0.25)
def forgets_earlier_peaks(seen: Seen, wanted: Seen) -> None:
    """A peak from before the call does not count."""
    for name, facts, right in _here(seen, wanted):
        if facts["value"] == _earlier(right) != right["value"]:
            raise Failed(
                f"device={name} gave {_kib(facts)}, a peak that was over before `fn` was called",
                f"{_kib(right)}, the highest while `fn` ran",
            )


@peak_memory.check(points=0.5)
def finds_the_highest_moment(seen: Seen, wanted: Seen) -> None:
    """It is the highest number of bytes allocated while `fn` runs, what was there before included."""
    for name, facts, right in _here(seen, wanted):
        if facts["calls"] != 1:
            raise Failed(f"device={name}: `fn` was called {facts['calls']} times", "once", at=("last fn(",))
        value = facts["value"]
        if value in (right["value"], _earlier(right)):  # the second is another check's business
            continue
        told = _mistaken(right).get(value)
        raise Failed(f"device={name} gave {_kib(facts)}" + (f": {told}" if told else ""), f"{_kib(right)}, the peak")


@peak_memory.check(points=0.25)
def measures_the_right_device(seen: Seen, wanted: Seen) -> None:
    """It is the memory of the device passed in, also where another one is current."""
    for name, facts, right in _measured(seen["on_the_second_gpu"].facts, wanted["on_the_second_gpu"].facts):
        if facts["value"] not in (right["value"], _earlier(right), *_mistaken(right)):
            raise Failed(f"with two GPUs, device={name} gave {_kib(facts)}", f"{_kib(right)}: the memory of that one")


@peak_memory.check(points=0.25)
def is_nothing_on_the_cpu(seen: Seen, wanted: Seen) -> None:
    """On the CPU `fn` is called too, once, and the answer is 0."""
    pairs = [
        (seen["peaks"].facts["on_the_cpu"], wanted["peaks"].facts["on_the_cpu"]),
        (seen["without_a_gpu"].facts, wanted["without_a_gpu"].facts),
    ]
    for found, expected in pairs:
        for name, facts, _ in _measured(found, expected):
            if facts["calls"] != 1:
                raise Failed(f"device={name}: `fn` was called {facts['calls']} times", "once", at=("last fn(",))
            if facts["value"] != 0:
                raise Failed(f"device={name} gave {facts['value']}", "0")


def _kib(facts: dict[str, Any]) -> str:
    return f"{facts['value'] / KIB:g} KiB"


runs(largest_batch)


def _searches(seen: Seen, wanted: Seen, scenario: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, right in wanted["searches"].facts[scenario].items():
        yield name, seen["searches"].facts[scenario][name], right


@largest_batch.check(points=0.5)
def halves_until_it_fits(seen: Seen, wanted: Seen) -> None:
    """It tries start, start // 2, ... and returns the first that does not run out of memory."""
    for name, facts, right in _searches(seen, wanted, "halving"):
        if facts["sizes"] != right["sizes"]:
            ended = f" and raised {facts['raised']}" if "raised" in facts else ""
            raise Failed(f"({name}) it tried {_listed(facts['sizes'])}{ended}", _listed(right["sizes"]))
        if facts.get("value") != right["value"]:
            answer = f"raised {facts['raised']}" if "raised" in facts else f"returned {facts['shown']}"
            raise Failed(f"({name}) it {answer}", f"{right['value']} returned", facts.get("line"))


@largest_batch.check(points=0.25)
def gives_the_cache_back(seen: Seen, wanted: Seen) -> None:
    """Cached memory is given back between two tries."""
    for _, facts, right in _searches(seen, wanted, "halving"):
        if not facts["kept"] <= right["kept"] + (20 << 20):
            raise Failed(
                f"{facts['kept'] >> 20} MiB were still in the cache when the next try began",
                "torch.cuda.empty_cache() first",
            )


@largest_batch.check(points=0.25)
def raises_when_nothing_fits(seen: Seen, wanted: Seen) -> None:
    """Out of memory at 1 raises that error."""
    for name, facts, right in _searches(seen, wanted, "nothing_fits"):
        if "raised" not in facts:
            raise Failed(
                f"({name}) nothing fits, and it returned {facts['shown']}", "the OutOfMemoryError of the last try"
            )
        if facts["raised"] != right["raised"] or facts["message"] != facts["last"]:
            happened = f"({name}) it raised {facts['raised']}: {facts['message'].partition('.')[0]}"
            raise Failed(happened, "the OutOfMemoryError of the last try", facts["line"])
        if facts["sizes"] != right["sizes"]:
            raise Failed(f"({name}) it tried {_listed(facts['sizes'])}", _listed(right["sizes"]))


@largest_batch.check(points=0.5)
def swallows_nothing_else(seen: Seen, wanted: Seen) -> None:
    """Any other error comes out at once, as it was raised."""
    for _, facts, right in _searches(seen, wanted, "another_error"):
        if not facts["met"]:
            happened = f"a batch of {right['sizes'][-1]}, where a {right['raised']} waits, was never tried"
            raise Failed(f"{happened}; tried: {_listed(facts['sizes'])}", _listed(right["sizes"]), facts.get("line"))
        if "raised" not in facts or len(facts["sizes"]) > facts["met"]:
            raise Failed(
                f"{right['raised']} ({right['message']}) was taken for out of memory; tried: {_listed(facts['sizes'])}",
                f"the {right['raised']} itself, after {_listed(right['sizes'])}",
                misconception="swallowed-every-error",
            )
        if (facts["raised"], facts["message"]) != (right["raised"], right["message"]):
            happened = f"a {right['raised']} came out as {facts['raised']}: {facts['message']}"
            raise Failed(happened, f"{right['raised']}: {right['message']}", facts["line"])


def _listed(sizes: list[float]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown + ", …" if len(sizes) > 8 else shown or "nothing"
