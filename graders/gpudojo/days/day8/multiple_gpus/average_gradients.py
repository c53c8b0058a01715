"""`average_gradients`: the mean of gradients over processes."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from gpudojo.days.day8.multiple_gpus.declaration import average_gradients
from gpudojo.days.day8.multiple_gpus.two_ranks import WITHOUT_GRADIENT, run_in_two_ranks
from gpudojo.grading.call import Call
from gpudojo.grading.checks import runs
from gpudojo.model.evidence import Case, Raised
from gpudojo.model.exercise import Failed, Seen

Gradient = list[float] | None
Gradients = list[Gradient]  # one for each parameter
RANKS: Final = ("rank 0", "rank 1")
PARAMETERS: Final = ("0.weight", "0.bias", "1.weight", "1.bias")  # of the model in `two_ranks`
CLOSE: Final = 1e-4
# Results that are thrown away
UNUSED: Final = ("unused mean(", "unused div(", "unused sum(", "unused stack(", "unused /")

# ---- scenarios ---------------------------------------------------------------------------------


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
    results = run_in_two_ranks(call.function, call.path, "average_gradients", call.seed)
    ranks = [msgspec.convert(result, Rank) for result in results]
    return dict(zip(RANKS, ranks, strict=True))


# ---- claims ------------------------------------------------------------------------------------


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error at a parameter without a gradient; None for other errors."""
    return "gradient-is-none" if WITHOUT_GRADIENT in raised.message else None


runs(average_gradients, diagnose=_why_it_raises)


class RankGradients(NamedTuple):
    """The gradients of one process, after the call, before it, and as they should be."""

    rank: str
    found: Gradients
    before: Gradients
    mean: Gradients

    def is_mean(self, factor: float = 1.0) -> bool:
        """True if every gradient is the mean, or the mean times a factor."""
        return _are_equal(self.found, self.mean, factor)

    def is_own(self, factor: float = 1.0) -> bool:
        """True if every gradient is that from before, or that times a factor."""
        return _are_equal(self.found, self.before, factor)

    def is_mean_at(self, number: int) -> bool:
        """True if the gradient of one parameter is there, and is the mean."""
        if number >= len(self.found):
            return False
        return _is_equal(self.found[number], self.mean[number])

    def is_own_at(self, number: int) -> bool:
        """True if the gradient of one parameter is that from before."""
        return _is_equal(self.found[number], self.before[number])

    def describe_gradient(self, number: int) -> str:
        """The gradient of one parameter, for people."""
        return f"{_in_words(self.found[number])} in {self.rank}"


class BothRanks(NamedTuple):
    """The gradients of both processes."""

    first: RankGradients
    second: RankGradients

    def are_means(self, factor: float = 1.0) -> bool:
        """True if in both every gradient is the mean, or the mean times a factor."""
        return self.first.is_mean(factor) and self.second.is_mean(factor)

    def are_own(self, factor: float = 1.0) -> bool:
        """True if in both every gradient is that from before, or that times a factor."""
        return self.first.is_own(factor) and self.second.is_own(factor)

    def has_mean(self, factor: float = 1.0) -> bool:
        """True if in one of them every gradient is the mean, or the mean times a factor."""
        return self.first.is_mean(factor) or self.second.is_mean(factor)

    def is_own_at(self, number: int) -> bool:
        """True if in both the gradient of one parameter is that from before."""
        return self.first.is_own_at(number) and self.second.is_own_at(number)

    def first_wrong_parameter(self) -> int:
        """The number of the first parameter whose gradient is not the mean in both."""
        for number in range(len(PARAMETERS)):
            if not self.first.is_mean_at(number) or not self.second.is_mean_at(number):
                return number
        return 0


def _answers_of_both(seen: Seen, wanted: Seen) -> BothRanks:
    """The gradients of both processes. One alone, where nothing changes, shows those before."""
    answers = []
    for rank in RANKS:
        found = seen[two_processes][rank]
        right = wanted[two_processes][rank]
        answer = RankGradients(
            rank,
            found=found.some.gradients,
            before=right.alone.gradients,
            mean=right.some.gradients,
        )
        answers.append(answer)
    return BothRanks(*answers)


@average_gradients.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    answers = _answers_of_both(seen, wanted)
    if not answers.are_means():
        raise _not_the_mean(answers)


def _not_the_mean(answers: BothRanks) -> Failed:
    """The failure of gradients other than the mean, with its cause where that can be told."""
    first, second = answers
    number = answers.first_wrong_parameter()
    gradients = f"{first.describe_gradient(number)} and {second.describe_gradient(number)}"
    happened = f"the gradient of `{PARAMETERS[number]}` is {gradients}"
    expected = f"{_in_words(first.mean[number])} in both"
    if answers.has_mean() and not answers.has_mean(2):  # the other has still its own
        return Failed(happened, expected, misconception="reduced-to-one-rank")
    if answers.are_means(2):
        return Failed(happened, expected, misconception="gradients-summed-not-averaged")
    if answers.are_own():
        at = (".data", "clone(", *UNUSED)
        return Failed(f"{happened}: no gradient has changed", expected, at=at)
    if answers.is_own_at(number):
        return Failed(f"{happened}, as before the call", expected, at=("leaves loop", "for"))
    if answers.are_own(0.5):
        happened = f"{happened}: half of its own, with nothing added"
        return Failed(happened, expected, at=("async_op=",))
    if answers.are_means(0.5):
        return Failed(f"{happened}: half of the mean", expected)
    if _are_equal(first.found, second.found):
        return Failed(happened, expected)
    # After a sum that has arrived, both have the same.
    return Failed(happened, expected, at=("async_op=True",))


def _in_words(gradient: Gradient) -> str:
    """The first numbers of a gradient, for people."""
    if gradient is None:
        return "None"
    return str([round(value, 3) for value in gradient[:3]])


def _are_equal(found: Gradients, right: Gradients, factor: float = 1.0) -> bool:
    """True if all gradients are the right ones times a factor.

    Where the right one is None, any gradient counts as equal. That such a one stays None is another
    check's claim.
    """
    if len(found) != len(right):
        return False
    return all(_is_equal(*pair, factor) for pair in zip(found, right, strict=True))


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
    """Only gradients change: parameters without one have none, weights are as before, and the group
    still exists."""
    if _answers_of_both(seen, wanted).are_own():
        raise Failed("no gradient has changed", "the gradients of all processes put together")
    for rank in RANKS:
        found = seen[two_processes][rank].some
        right = wanted[two_processes][rank].some
        if not found.weights_kept:
            expected = "only gradients changed; the optimizer changes weights"
            raise Failed(f"the weights changed in {rank}", expected, at=(".data", "all_reduce("))
        if not found.group_kept:
            happened = f"in {rank} the process group was destroyed"
            expected = "the group, for the next step"
            raise Failed(happened, expected, at=("destroy_process_group(",))
        for after, wished in zip(found.gradients, right.gradients, strict=True):
            if after is not None and wished is None:
                happened = f"in {rank} a parameter without a gradient has one now"
                raise Failed(happened, "None, as before", at=(".grad =", "all_reduce("))


@average_gradients.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients."""
    for rank in RANKS:
        found = seen[two_processes][rank].alone
        right = wanted[two_processes][rank].alone
        if not _are_equal(found.gradients, right.gradients):
            first = _in_words(found.gradients[0])
            kept = _in_words(right.gradients[0])
            happened = f"in a group of one the first gradient became {first}"
            raise Failed(happened, f"{kept}: divided by dist.get_world_size(), which is 1")
