"""`peak_memory`: the most bytes that are allocated while a function runs."""

from __future__ import annotations

import random
from typing import Any

from gpudojo.days.day8.managing_memory.declaration import peak_memory
from gpudojo.days.day8.returned_numbers import int_or_none
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, torch, try_inputs
from gpudojo.grading.checks import (
    check_scenarios,
    compare_cases,
    count_in_words,
    is_about_cuda,
    runs,
)
from gpudojo.grading.differences import ToldValue, told_value
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed, Seen

KIB = 1024

# ---- scenarios ---------------------------------------------------------------------------------


class Sizes(Case, frozen=True):
    """Bytes that are allocated in one scenario."""

    before: int  # when `fn` is called
    highest: int  # inside `fn`, at the peak
    left: int  # by `fn`, at its end
    earlier: int  # long before `fn`, and free again


class Measured(Case, frozen=True):
    """One answer; bytes are counted from what this process had allocated before."""

    value: int | None
    base: int  # what was allocated before: the answer itself is `value` and this
    told: ToldValue
    calls: int  # of `fn`
    sizes: Sizes


def _draw_sizes(seed: int) -> Sizes:
    """How many bytes a call allocates before, at most, afterwards and earlier, by the seed."""
    draw = random.Random(seed).randrange
    return Sizes(
        before=draw(40, 90) * KIB,
        highest=3 * draw(200, 300) * KIB,
        left=draw(100, 160) * KIB,
        earlier=4 * draw(900, 1000) * KIB,
    )


def _allocate_bytes(size: int, device: Any) -> Any:
    return torch.empty(size, dtype=torch.uint8, device=device)


class _Work:
    """A function for student code to call, which has its peak in its middle."""

    def __init__(self, sizes: Sizes, device: Any) -> None:
        self.sizes = sizes
        self.device = device
        self.results: list[Any] = []  # of all calls

    def __call__(self) -> str:
        """Allocate `highest` bytes in two tensors, free them, and keep a third one in `results`.

        The text that it returns is not used. Raises torch's error if the memory is not there.
        """
        third = self.sizes.highest // 3
        first = _allocate_bytes(third, self.device)
        second = _allocate_bytes(2 * third, self.device)
        del first, second
        left = _allocate_bytes(self.sizes.left, self.device)
        self.results.append(left)
        return "the result of fn is not used"


def _call_peak_memory(call: Call, device: Any) -> Measured:
    """Call the student's function once and describe its answer. Raises StudentRaised.

    Something is allocated before, and an earlier, higher peak is over. All blocks are small ones,
    which the allocator counts to the byte whatever it has cached.
    """
    sizes = _draw_sizes(call.seed)
    base = 0
    if torch.device(device).type == "cuda":
        base = torch.cuda.memory_allocated(device)
    # What is there before the call, and an earlier peak
    before = _allocate_bytes(sizes.before, device)
    quarter = sizes.earlier // 4
    earlier = [_allocate_bytes(quarter, device) for _ in range(4)]
    earlier.clear()
    # The call
    work = _Work(sizes, device)
    value = call(Sealed(work), device)
    del before
    number = int_or_none(value)
    return Measured(
        value=None if number is None else number - base,
        base=base,
        told=told_value(value),
        calls=len(work.results),
        sizes=sizes,
    )


def _measure_on(call: Call, *devices: Any) -> Cases[Measured]:
    """One call for each way of naming a device.

    Raises StudentRaised for an error about a closed device or memory.
    """
    inputs = {repr(device): device for device in devices}
    return try_inputs(_call_peak_memory, call, inputs)


@peak_memory.probe
def peaks(call: Call) -> Cases[Measured]:
    """Answers for the device, by each of its names.

    Raises StudentRaised for an error about a closed device or memory.
    """
    if call.device.type == "cuda":
        return _measure_on(call, "cuda", "cuda:0", torch.device("cuda"))
    return _measure_on(call, "cpu")


@peak_memory.probe(machine="two gpus", edge=True)
def on_the_second_gpu(call: Call) -> Cases[Measured]:
    """Answers for the second GPU.

    The first one, which is the current one, has another peak. Raises StudentRaised for an error
    about a closed device or memory.
    """
    other = _allocate_bytes(300 * KIB, "cuda:0")
    found = _measure_on(call, "cuda:1")
    del other
    return found


@peak_memory.probe(edge=True)
def on_the_cpu(call: Call) -> Cases[Measured]:
    """Answers for the CPU of a machine with a GPU, which has something in its memory.

    Raises StudentRaised for an error about a closed device or memory.
    """
    other = _allocate_bytes(300 * KIB, call.device)
    found = _measure_on(call, "cpu", torch.device("cpu"))
    del other
    return found


@peak_memory.probe(machine="laptop", edge=True)
def without_a_gpu(call: Call) -> Cases[Measured]:
    return _measure_on(call, "cpu")


# ---- claims ------------------------------------------------------------------------------------

EARLIER = "a peak that was over before `fn` was called"


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error about CUDA where the device is the CPU; None for other errors.

    It counts only if there is an error on a machine without a GPU, too. Raises ScenarioRaised if
    all of that probe ended with an error.
    """
    if "cpu" not in raised.scenario or not is_about_cuda(raised.message):
        return None
    if seen[without_a_gpu].errors:
        return "cuda-for-every-device"
    return None


runs(peak_memory, diagnose=_why_it_raises)


def _meaning_of_answer(found: Measured, right: Measured) -> str | None:
    """What an answer is, in words, if it is another number that the allocator knows.

    Empty for the right answer, None for any other number.
    """
    sizes = right.sizes
    meanings = {
        right.value: "",
        sizes.earlier + sizes.before: EARLIER,
        sizes.left + sizes.before: "what is left after `fn`",
        sizes.highest: "what `fn` added",
        sizes.left: "what `fn` left behind",
    }
    return meanings.get(found.value)


def _expect_number(device: str, found: Measured) -> None:
    """Raises Failed for an answer that is no int, and if `fn` was not called exactly once."""
    if found.value is None:
        happened = f"device={device} gave {found.told}"
        raise Failed(happened, "a number of bytes, as an int")
    if found.calls != 1:
        called = "never called"
        if found.calls:
            called = f"called {count_in_words(found.calls)}"
        happened = f"device={device}: `fn` was {called}"
        raise Failed(happened, "called once", at=("last fn(",))


def _in_kib(size: int) -> str:
    """A number of bytes for people, in KiB or, where it is less than one, in bytes."""
    if size == 0:
        return "0"
    if 0 < size < KIB:
        return f"{size} bytes"
    return f"{size / KIB:g} KiB"


def _answer_in_words(device: str, found: Measured, meaning: str | None) -> str:
    """The answer for a device, and what that number is."""
    note = ""
    if meaning:
        note = f": {meaning}"
    return f"device={device} gave {_answer_in_kib(found)}{note}"


def _answer_in_kib(found: Measured) -> str:
    """The answer itself, for people."""
    return _in_kib((found.value or 0) + found.base)


def _right_answer_in_kib(found: Measured, right: Measured) -> str:
    """What the answer should have been, beside what was allocated before this call."""
    return _in_kib((right.value or 0) + found.base)


@check_scenarios(peak_memory, peaks, points=0.5)
def finds_the_highest_moment(device: str, found: Measured, right: Measured) -> None:
    """It calls `fn` once and returns the most bytes that were allocated meanwhile, earlier ones
    included."""
    _expect_number(device, found)
    meaning = _meaning_of_answer(found, right)
    if meaning not in ("", EARLIER):  # the second is another check's
        happened = _answer_in_words(device, found, meaning)
        expected = f"{_right_answer_in_kib(found, right)}, the peak"
        raise Failed(happened, expected)


@check_scenarios(peak_memory, peaks, points=0.25, needs=("runs", "finds_the_highest_moment"))
def forgets_earlier_peaks(device: str, found: Measured, right: Measured) -> None:
    """A peak from before the call does not count."""
    meaning = _meaning_of_answer(found, right)
    if meaning == EARLIER:
        happened = _answer_in_words(device, found, meaning)
        expected = f"{_right_answer_in_kib(found, right)}, the peak while `fn` ran"
        raise Failed(happened, expected)


@peak_memory.check(points=0.25)
def measures_the_right_device(seen: Seen, wanted: Seen) -> None:
    """It measures the device passed in, even if another one is current."""
    # What is mistaken in the same way on one GPU is another check's.
    elsewhere = set()
    for device, found, right in compare_cases(seen, wanted, peaks):
        _expect_number(device, found)
        elsewhere.add(_meaning_of_answer(found, right))
    for device, found, right in compare_cases(seen, wanted, on_the_second_gpu):
        _expect_number(device, found)
        meaning = _meaning_of_answer(found, right)
        is_new = meaning not in elsewhere
        if meaning is None or (meaning and is_new):
            happened = f"with two GPUs, {_answer_in_words(device, found, meaning)}"
            expected = f"{_right_answer_in_kib(found, right)}: the memory of that one"
            key = "current-gpu-used" if is_new else None
            at: tuple[str, ...] = ()
            if meaning == EARLIER:
                at = ("reset_peak_memory_stats(",)
            # What is mistaken on one GPU as well gets the hints of that check.
            about = "" if is_new else "finds_the_highest_moment"
            raise Failed(happened, expected, None, key, at, about=about)


@peak_memory.check(points=0.25)
def is_nothing_on_the_cpu(seen: Seen, wanted: Seen) -> None:
    """On the CPU `fn` is also called once, and the answer is 0."""
    for probe in (on_the_cpu, without_a_gpu):
        for device, found, _ in compare_cases(seen, wanted, probe):
            _expect_number(device, found)
            if found.value != 0:
                happened = f"device={device} gave {found.value}"
                raise Failed(happened, "0")
