"""`average_gradients`: the mean of gradients over processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from gpudojo.days.day8.multiple_gpus import ranks
from gpudojo.days.day8.multiple_gpus.declaration import average_gradients
from gpudojo.days.day8.multiple_gpus.ranks import WITHOUT_GRADIENT, run_in_ranks
from gpudojo.grading.call import Call
from gpudojo.grading.checks import runs
from gpudojo.model.evidence import Case, Raised
from gpudojo.model.exercise import Failed, Seen

Gradient = list[float] | None
Gradients = list[Gradient]  # one for each parameter
RANKS: Final = ("rank 0", "rank 1")
THREE_RANKS: Final = (*RANKS, "rank 2")
# Of the model in `ranks`
PARAMETERS: Final = ("scale", "0.weight", "0.bias", "1.0.weight", "1.0.bias")
CLOSE: Final = 1e-4
# Results that are thrown away
UNUSED: Final = (
    "item =",
    ".data",
    "clone(",
    "unused result",
    "unused /",
    "unused mean(",
    "unused sum(",
    "unused stack(",
)

# ---- scenarios ---------------------------------------------------------------------------------


class Averaged(Case, frozen=True):
    """One call in one process."""

    gradients: Gradients
    weights_kept: bool
    group_kept: bool


class Rank(Case, frozen=True):
    """One process: in a group of several, and in a group of its own."""

    some: Averaged
    alone: Averaged


@average_gradients.probe(machine="laptop")
def two_processes(call: Call) -> dict[str, Rank]:
    """Both processes call it with their own gradients, and then each in a group of its own.

    Returns what each did, by rank. Starts two processes and ends them. Raises StudentRaised for an
    error in one of them, OSError for a broken pipe, and msgspec.ValidationError for an answer of
    another form.
    """
    return _run_ranks(call, RANKS)


@average_gradients.probe(machine="laptop", edge=True)
def three_processes(call: Call) -> dict[str, Rank]:
    """Three processes call it with their own gradients, and then each in a group of its own.

    Returns what each did, by rank; nothing where processes cannot be forked. There each of them
    imports torch, and on a slow machine five take longer than a function may. Starts three
    processes and ends them. Raises StudentRaised for an error in one of them, OSError for a broken
    pipe, and msgspec.ValidationError for an answer of another form.
    """
    if not ranks.FORKS:
        return {}
    return _run_ranks(call, THREE_RANKS)


def _run_ranks(call: Call, names: Sequence[str]) -> dict[str, Rank]:
    """What each of so many processes did, by the name of its rank.

    Raises StudentRaised for an error in one of them, OSError for a broken pipe, and
    msgspec.ValidationError for an answer of another form.
    """
    results = run_in_ranks(
        call.function, call.path, "average_gradients", call.seed, count=len(names)
    )
    described = [msgspec.convert(result, Rank) for result in results]
    return dict(zip(names, described, strict=True))


# ---- claims ------------------------------------------------------------------------------------


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error at a parameter without a gradient; None for other errors."""
    if WITHOUT_GRADIENT in raised.message:
        return "gradient-is-none"
    return None


runs(average_gradients, diagnose=_why_it_raises)


class RankGradients(NamedTuple):
    """The gradients of one process, after the call, before it, and as they should be."""

    found: Gradients
    before: Gradients
    mean: Gradients


def _gradients_of_ranks(seen: Seen, wanted: Seen) -> list[RankGradients]:
    """The gradients of both processes. One alone, where nothing changes, shows those before.

    Raises ScenarioRaised where the student's code raised.
    """
    ranks = []
    for name in RANKS:
        found = seen[two_processes][name].some.gradients
        right = wanted[two_processes][name]
        before = right.alone.gradients
        mean = right.some.gradients
        ranks.append(RankGradients(found, before, mean))
    return ranks


def _are_unchanged(ranks: list[RankGradients]) -> bool:
    """True if in both processes every gradient is that from before."""
    return all(_are_equal(rank.found, rank.before) for rank in ranks)


@average_gradients.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    ranks = _gradients_of_ranks(seen, wanted)
    if not all(_are_equal(rank.found, rank.mean) for rank in ranks):
        raise _not_the_mean(ranks)


def _not_the_mean(ranks: list[RankGradients]) -> Failed:
    """The failure of gradients other than the mean, with its cause where that can be told.

    It is returned, not raised. Raises IndexError for evidence with too few gradients.
    """
    first, second = ranks
    # What happened, at the first parameter whose gradient is wrong
    number = _first_wrong_parameter(ranks)
    in_first = _in_words(first.found[number])
    in_second = _in_words(second.found[number])
    gradients = f"{in_first} in rank 0 and {in_second} in rank 1"
    happened = f"the gradient of `{PARAMETERS[number]}` is {gradients}"
    expected = f"{_in_words(first.mean[number])} in both"
    # Its cause, where all gradients are what that would make of them
    are_means = [_are_equal(rank.found, rank.mean) for rank in ranks]
    are_sums = [_are_equal(rank.found, rank.mean, len(ranks)) for rank in ranks]
    if any(are_means) and not any(are_sums):  # the other has still its own
        return Failed(happened, expected, misconception="reduced-to-one-rank")
    if all(are_sums):
        divided = ("div_(", "/", "div(", "mul_(", "*")  # by another number than it should be
        return Failed(happened, expected, None, "gradients-summed-not-averaged", divided)
    if _are_unchanged(ranks):
        return Failed(f"{happened}: no gradient has changed", expected, at=UNUSED)
    if all(_is_equal(rank.found[number], rank.before[number]) for rank in ranks):
        happened = f"{happened}, as before the call"
        return Failed(happened, expected, at=("next(", "[0]", "continue", "leaves loop", "for"))
    if all(_are_equal(rank.found, rank.before, 1 / len(ranks)) for rank in ranks):
        happened = f"{happened}: half of its own, with nothing added"
        return Failed(happened, expected, at=("async_op=",))
    # After a sum that has arrived, both have the same.
    if _are_equal(first.found, second.found):
        return Failed(happened, expected)
    return Failed(happened, expected, at=("async_op=True",))


def _first_wrong_parameter(ranks: list[RankGradients]) -> int:
    """The number of the first parameter whose gradient is not the mean in both processes.

    It is 0 if all are. Raises IndexError for evidence with too few gradients.
    """
    for number in range(len(PARAMETERS)):
        for rank in ranks:
            if not _is_equal(rank.found[number], rank.mean[number]):
                return number
    return 0


def _in_words(gradient: Gradient) -> str:
    """The first three numbers of a gradient, for people: "[0.5, 1.0]", or "None"."""
    if gradient is None:
        return "None"
    numbers = [round(value, 3) for value in gradient[:3]]
    return str(numbers)


def _are_equal(found: Gradients, right: Gradients, factor: float = 1.0) -> bool:
    """True if all gradients are the right ones times a factor.

    Where the right one is None, any gradient counts as equal. That such a one stays None is another
    check's claim.
    """
    if len(found) != len(right):
        return False
    pairs = zip(found, right, strict=True)
    return all(_is_equal(one, other, factor) for one, other in pairs)


def _is_equal(found: Gradient, right: Gradient, factor: float = 1.0) -> bool:
    """True if one gradient is the right one times a factor, or if there is no right one."""
    if right is None:
        return True
    if found is None or len(found) != len(right):
        return False
    for value, wished in zip(found, right, strict=True):
        if not abs(value - factor * wished) <= CLOSE:  # so that NaN is not equal
            return False
    return True


@average_gradients.check(points=0.25)
def leaves_the_rest_alone(seen: Seen, wanted: Seen) -> None:
    """Gradients change, and nothing else: parameters without one have none, weights are as before,
    and the group still exists."""
    for rank in RANKS:
        found = seen[two_processes][rank].some
        right = wanted[two_processes][rank].some
        if not found.weights_kept:
            expected = "only gradients changed; the optimizer changes weights"
            happened = f"the weights changed in {rank}"
            raise Failed(happened, expected, at=(".data", "all_reduce("))
        if not found.group_kept:
            happened = f"in {rank} the process group was destroyed"
            expected = "the group, for the next step"
            raise Failed(happened, expected, at=("destroy_process_group(",))
        for after, wished in zip(found.gradients, right.gradients, strict=True):
            if after is not None and wished is None:
                happened = f"in {rank} a parameter without a gradient has one now"
                raise Failed(happened, "None, as before", at=(".grad =", "all_reduce("))
    if _are_unchanged(_gradients_of_ranks(seen, wanted)):
        raise Failed("no gradient has changed", "the gradients of all processes put together")


@average_gradients.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients, three get their mean."""
    for rank in RANKS:
        found = seen[two_processes][rank].alone
        right = wanted[two_processes][rank].alone
        if not _are_equal(found.gradients, right.gradients):
            first = _in_words(found.gradients[0])
            kept = _in_words(right.gradients[0])
            happened = f"in a group of one the first gradient became {first}"
            raise Failed(happened, f"{kept}: divided by the number of processes, which is 1")
    for name in THREE_RANKS if ranks.FORKS else ():
        found = seen[three_processes][name].some
        right = wanted[three_processes][name].some
        if not _are_equal(found.gradients, right.gradients):
            happened = f"of three processes, {name} got another gradient than the mean"
            after = _in_words(found.gradients[0])
            expected = f"{_in_words(right.gradients[0])}: the mean over all three"
            raise Failed(f"{happened}: {after}", expected)
