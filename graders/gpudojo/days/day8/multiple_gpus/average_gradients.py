"""`average_gradients`: the mean of gradients over processes."""

from __future__ import annotations

from typing import Final

import msgspec

from gpudojo.days.day8.multiple_gpus.declaration import average_gradients
from gpudojo.days.day8.multiple_gpus.two_ranks import WITHOUT_GRADIENT, run_in_two_ranks
from gpudojo.grading.call import Call
from gpudojo.grading.checks import runs, scenario_pairs
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import Failed, Seen

UNUSED = (
    "unused mean(",
    "unused div(",
    "unused sum(",
    "unused stack(",
    "unused /",
)  # results thrown away
Gradients = list[list[float] | None]  # one for each parameter


class Averaged(Case, frozen=True):
    """One call in one process."""

    gradients: Gradients
    weights_kept: bool
    group_kept: bool


class Rank(Case, frozen=True):
    """One process: in a group of two, and in a group of its own."""

    some: Averaged
    alone: Averaged


@average_gradients.probe(machine="laptop")
def two_processes(call: Call) -> dict[str, Rank]:
    """Both processes call it with their own gradients, and then each in a group of its own."""
    ranks = run_in_two_ranks(call.function, call.path, "average_gradients", call.seed)
    return {f"rank {number}": msgspec.convert(found, Rank) for number, found in enumerate(ranks)}


runs(
    average_gradients,
    diagnose=lambda raised, seen: (
        "gradient-is-none" if WITHOUT_GRADIENT in raised.message else None
    ),
)
RANKS = ("rank 0", "rank 1")
PARAMETERS: Final = ("0.weight", "0.bias", "1.weight", "1.bias")  # of `_rank_model`


@average_gradients.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    answers = [seen[two_processes][rank].some.gradients for rank in RANKS]
    mean = wanted[two_processes]["rank 0"].some.gradients
    if all(_are_equal(answer, mean) for answer in answers):
        return
    before = [wanted[two_processes][rank].alone.gradients for rank in RANKS]
    raise _not_the_mean(answers, mean, before)


def _not_the_mean(answers: list[Gradients], mean: Gradients, before: list[Gradients]) -> Failed:
    """The failure of gradients other than the mean.

    `before` are the gradients of each process before the call.
    """
    number = _first_wrong(answers, mean)
    values = [f"{_shown(a, number)} in {rank}" for rank, a in zip(RANKS, answers, strict=True)]
    happened = f"the gradient of `{PARAMETERS[number]}` is {' and '.join(values)}"
    expected = f"{_shown(mean, number)} in both"
    doubled = _times(2, mean)
    has_mean = [_are_equal(answer, mean) for answer in answers]
    has_sum = [_are_equal(answer, doubled) for answer in answers]
    if any(has_mean) and not any(has_sum):  # one has the mean, one still its own
        return Failed(happened, expected, misconception="reduced-to-one-rank")
    if all(has_sum):
        return Failed(happened, expected, misconception="gradients-summed-not-averaged")
    if all(map(_are_equal, answers, before)):
        at: tuple[str, ...] = (".data", "clone(", *UNUSED)
        return Failed(f"{happened}: no gradient has changed", expected, at=at)
    pairs = list(zip(answers, before, strict=True))
    if all(_are_equal([answer[number]], [own[number]]) for answer, own in pairs):
        at = ("leaves loop", "for")
        return Failed(f"{happened}, as before the call", expected, at=at)
    if all(_are_equal(answer, _times(0.5, own)) for answer, own in pairs):
        happened = f"{happened}: half of its own, with nothing added"
        return Failed(happened, expected, at=("async_op=",))
    if all(_are_equal(answer, _times(0.5, mean)) for answer in answers):
        return Failed(f"{happened}: half of the mean", expected)
    # After a sum that has arrived, both have the same.
    at = () if _are_equal(*answers) else ("async_op=True",)
    return Failed(happened, expected, at=at)


def _first_wrong(answers: list[Gradients], mean: Gradients) -> int:
    """The number of the first parameter whose gradient is not the mean in every process."""
    for number in range(len(mean)):
        stop = number + 1
        if not all(_are_equal(answer[:stop], mean[:stop]) for answer in answers):
            return number
    return 0


def _times(factor: float, gradients: Gradients) -> Gradients:
    return [None if each is None else [factor * value for value in each] for each in gradients]


def _shown(gradients: Gradients, number: int = 0) -> str:
    found = gradients[number]
    return "None" if found is None else str([round(value, 3) for value in found[:3]])


def _are_equal(found: Gradients, right: Gradients) -> bool:
    """True if gradients are equal; where the right one is None, any gradient counts as equal.

    That such a one stays None is another check's claim.
    """
    return len(found) == len(right) and all(
        b is None or _close(a, b) for a, b in zip(found, right, strict=True)
    )


def _close(found: list[float] | None, right: list[float]) -> bool:
    if found is None or len(found) != len(right):
        return False
    # `<=`, which is false for NaN
    return all(abs(a - b) <= 1e-4 for a, b in zip(found, right, strict=True))


@average_gradients.check(points=0.25)
def leaves_the_rest_alone(seen: Seen, wanted: Seen) -> None:
    """Only gradients change: parameters without one have none, weights are as before, and the group still exists."""
    before = [wanted[two_processes][rank].alone.gradients for rank in RANKS]
    if all(
        _are_equal(seen[two_processes][rank].some.gradients, own)
        for rank, own in zip(RANKS, before, strict=True)
    ):
        raise Failed("no gradient has changed", "the gradients of all processes put together")
    for rank, found, right in scenario_pairs(seen[two_processes], wanted[two_processes], *RANKS):
        if not found.some.weights_kept:
            expected = "only gradients changed; the optimizer changes weights"
            raise Failed(f"the weights changed in {rank}", expected, at=(".data", "all_reduce("))
        if not found.some.group_kept:
            at = ("destroy_process_group(",)
            raise Failed(
                f"in {rank} the process group was destroyed", "the group, for the next step", at=at
            )
        gradients = zip(found.some.gradients, right.some.gradients, strict=True)
        if any(a is not None and b is None for a, b in gradients):
            happened = f"in {rank} a parameter without a gradient has one now"
            raise Failed(happened, "None, as before", at=(".grad =", "all_reduce("))


@average_gradients.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients."""
    for _, found, right in scenario_pairs(seen[two_processes], wanted[two_processes], *RANKS):
        if not _are_equal(found.alone.gradients, right.alone.gradients):
            raise Failed(
                f"in a group of one the first gradient became {_shown(found.alone.gradients)}",
                f"{_shown(right.alone.gradients)}: divided by dist.get_world_size(), which is 1",
            )
