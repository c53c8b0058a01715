"""`largest_batch`: the largest batch size that does not run out of memory."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpudojo.days.day8.managing_memory.declaration import largest_batch
from gpudojo.days.day8.returned_numbers import int_or_none
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, StudentRaised, torch, try_inputs
from gpudojo.grading.checks import check_scenarios, runs
from gpudojo.grading.differences import ToldValue, tell_apart, told_value
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed

ENOUGH = 40  # tries after which an endless loop is ended
MIB = 1 << 20
# Scenarios
SOMETHING_FITS = (
    "several_halvings",
    "the_first_fits",
    "only_one_fits",
    "one_fits_exactly",
    "start_is_one",
)
NOTHING_FITS = ("nothing_fits", "nothing_fits_from_one")
ANOTHER_ERROR = (
    "ValueError",
    "RuntimeError",
    "RuntimeError about memory",
    "RuntimeError with the words of out of memory",
)
# As torch.OutOfMemoryError has it.
WORDS_OF_OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 1.00 GiB is free. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 0 bytes "
    "is reserved by PyTorch but unallocated."
)

# ---- scenarios ---------------------------------------------------------------------------------


class SearchSetting(NamedTuple):
    """One scenario: the first size to try, and the largest that fits.

    With the size `bug_at` a `bug` is raised instead of an error about memory.
    """

    start: int
    fits: int
    bug: Exception | None = None
    bug_at: int = 0


class _Trial:
    """A `try_batch` for student code. Each try leaves something in the cache of the GPU."""

    def __init__(self, call: Call, setting: SearchSetting) -> None:
        """A trial of this setting, without tries so far."""
        self.call = call
        self.setting = setting
        self.on_gpu = call.device.type == "cuda"
        self.sizes: list[float] = []
        self.lines: list[int | None] = []  # from where it was called
        self.cached: list[int] = []  # bytes in the cache when each try began
        self.tries_until_bug = 0
        self.last_message = ""  # of an error about memory

    def __call__(self, size: Any) -> str:
        """Record the size and the line of this try, and fill the cache of a GPU.

        A size that is no number is recorded as -1. Returns a text that nothing needs. Raises the
        setting's bug at its size, OutOfMemoryError for others that do not fit, and TypeError for
        what cannot be compared with a number.
        """
        if isinstance(size, (int, float)):
            self.sizes.append(size)
        else:
            self.sizes.append(-1)
        self.lines.append(self.call.line_now())
        device = self.call.device
        if self.on_gpu:
            self.cached.append(torch.cuda.memory_reserved(device))
        try:
            self._use_memory(size)
        finally:
            if self.on_gpu:  # now, not before: an allocation that fails empties the cache by itself
                scratch = torch.empty(48 * MIB, dtype=torch.uint8, device=device)
                del scratch
        return "the result of try_batch is not used"

    def _use_memory(self, size: Any) -> None:
        """Raises the setting's bug or OutOfMemoryError, unless the batch fits.

        After too many tries every batch fits. Notes at which try the bug was raised, or the message
        of the OutOfMemoryError.
        """
        setting = self.setting
        if len(self.sizes) > ENOUGH:
            return
        if 1 <= size <= setting.fits:
            return
        if setting.bug is not None and size == setting.bug_at:
            self.tries_until_bug = len(self.sizes)
            raise setting.bug
        try:
            if self.on_gpu:
                torch.empty(1 << 50, dtype=torch.uint8, device=self.call.device)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 TiB.")
        except torch.OutOfMemoryError as error:
            self.last_message = str(error)
            raise

    def kept_in_cache(self) -> int:
        """The most bytes in the cache when a later try began, above those at the first one.

        Where there was one try at most, and without a GPU, these are 0.
        """
        if len(self.cached) < 2:
            return 0
        first, *later = self.cached
        return max(later) - first


class Search(Case, frozen=True):
    """One call of the student's function: what it returned or raised, and the sizes it tried."""

    start: int
    fits: int
    value: int | None
    told: ToldValue
    error: Raised | None
    sizes: list[int | float]
    lines: list[int | None]  # of the tries
    kept: int  # bytes in the cache when a later try began
    last: str  # the message of the last out-of-memory error
    met: int  # the number of tries when another error was raised

    @property
    def sizes_in_words(self) -> str:
        """The first eight sizes, for people: "64, 32, 16"; "nothing" if none was tried."""
        if not self.sizes:
            return "nothing"
        first = ", ".join(str(size) for size in self.sizes[:8])
        if len(self.sizes) > 8:
            return f"{first}, …"
        return first

    @property
    def scenario_in_words(self) -> str:
        """Where the search starts, and what fits."""
        return f"(start={self.start}, {self.fits} fits)"

    @property
    def error_line(self) -> int | None:
        if self.error:
            return self.error.line
        return None


def _call_largest_batch(call: Call, setting: SearchSetting) -> Search:
    """Call the student's function with a `_Trial` and describe what it did.

    Raises StudentRaised for an error that `try_batch` cannot have raised: then the function itself
    is wrong.
    """
    if call.device.type == "cuda":
        torch.cuda.empty_cache()  # of an earlier search
    trial = _Trial(call, setting)
    value: Any = None
    raised = None
    try:
        with _usable_empty_cache(call):
            value = call(Sealed(trial), setting.start)
    except StudentRaised as error:
        raised = error.evidence
        # Errors of `try_batch` are part of the answer.
        about_memory = raised.type == "OutOfMemoryError"  # perhaps raised without a try
        fails_anyway = setting.bug is not None or not setting.fits
        if not about_memory and not (trial.sizes and fails_anyway):
            raise
    return Search(
        start=setting.start,
        fits=setting.fits,
        value=int_or_none(value),
        told=told_value(value),
        error=raised,
        sizes=trial.sizes[: ENOUGH + 1],
        lines=trial.lines[: ENOUGH + 1],
        kept=trial.kept_in_cache(),
        last=trial.last_message,
        met=trial.tries_until_bug,
    )


@contextlib.contextmanager
def _usable_empty_cache(call: Call) -> Iterator[None]:
    """Replace `torch.accelerator.empty_cache()` on the plain CPU for a `with` block.

    It raises there. The replacement does nothing, as `torch.cuda.empty_cache()` does there, too.
    """
    from virtual_cuda.hooks import patch

    with contextlib.ExitStack() as undo:
        if call.device.type == "cpu" and hasattr(torch.accelerator, "empty_cache"):
            patch([(torch.accelerator, "empty_cache", lambda: None)], undo)
        yield


def error_start(seed: int) -> int:
    """The size at which searches with another error start.

    Who subtracts one instead of halving needs more than ENOUGH tries to get to half of it.
    """
    return 16 * random.Random(seed).randrange(6, 9)


@largest_batch.probe
def searches(call: Call) -> Cases[Search]:
    """Searches in which some size fits, nothing fits, or `try_batch` has a bug.

    The numbers are others for every seed. Halving meets odd ones on its way, and 5, 2, 1 at its
    end. The bug shows at once, after one halving, or after two. One has the words of running out of
    memory, and only another class. Raises StudentRaised for an error about a closed device or
    memory.
    """
    draw = random.Random(call.seed).randrange
    odd = draw(91, 127, 2)
    exact = 8 * draw(9, 15)
    first = draw(50, 90)
    start = error_start(call.seed)
    sprites = ValueError(f"{draw(100)} is an odd number of sprites")
    shapes = f"mat1 and mat2 shapes cannot be multiplied ({draw(9)}x2 and 3x4)"
    access = "CUDA error: an illegal memory access was encountered"
    words = RuntimeError(WORDS_OF_OUT_OF_MEMORY)
    settings = {
        "several_halvings": SearchSetting(odd, draw(odd // 8 + 1, odd // 4)),
        "the_first_fits": SearchSetting(first, first),
        "only_one_fits": SearchSetting(draw(20, 24), 1),
        "one_fits_exactly": SearchSetting(exact, exact // 4),
        "start_is_one": SearchSetting(1, 1),
        "ValueError": SearchSetting(start, 1, sprites, start),
        "RuntimeError": SearchSetting(start, 1, RuntimeError(shapes), start // 2),
        "RuntimeError about memory": SearchSetting(start, 1, RuntimeError(access), start // 4),
        "RuntimeError with the words of out of memory": SearchSetting(start, 1, words, start // 2),
        "nothing_fits": SearchSetting(draw(10, 12), 0),
        "nothing_fits_from_one": SearchSetting(1, 0),
    }
    return try_inputs(_call_largest_batch, call, settings)


# ---- claims ------------------------------------------------------------------------------------

runs(largest_batch, scenarios=SOMETHING_FITS)


@check_scenarios(largest_batch, searches, points=0.5, names=SOMETHING_FITS)
def halves_until_it_fits(scenario: str, found: Search, right: Search) -> None:
    """It tries start, start // 2, ... and returns the first that does not run out of memory."""
    if found.sizes != right.sizes:
        raise _tried_other_sizes(found, right)
    if found.value != right.value:
        raise _returned_another_size(found, right)


def _tried_other_sizes(found: Search, right: Search) -> Failed:
    """The failure of a search that tried other sizes than the reference, or in another order.

    It is returned, not raised.
    """
    happened = f"{right.scenario_in_words} it tried {found.sizes_in_words}"
    if found.error:
        happened = f"{happened} and raised {found.error.type}"
    if len(found.sizes) < 2:
        at = ("raise", "except")
        key = None if found.error else "loop-left-early"
        return Failed(happened, right.sizes_in_words, found.error_line, key, at)
    if found.sizes[0] != right.sizes[0]:
        return Failed(happened, right.sizes_in_words, at=("start =", "from start", "try_batch("))
    count = len(right.sizes)
    goes_on = found.sizes[:count] == right.sizes  # after it had found the size
    line = None
    if goes_on and len(found.lines) > count:
        line = found.lines[count]
    return Failed(happened, right.sizes_in_words, line)


def _returned_another_size(found: Search, right: Search) -> Failed:
    """The failure of a search that tried the right sizes, but returned no right one.

    It is returned, not raised. The student's function may also have raised an error instead.
    """
    expected = f"{right.value} returned"
    if found.error:
        happened = f"{right.scenario_in_words} it raised {found.error.type}"
        return Failed(happened, expected, found.error.line)
    happened = f"{right.scenario_in_words} it returned {found.told.shown}"
    happened = tell_apart(happened, found.told, right.told)
    line = None
    if found.told.kind == "NoneType":
        line = found.lines[-1]  # of the try that fitted
    return Failed(happened, expected, line, at=("unused largest_batch(", "return"))


@check_scenarios(largest_batch, searches, points=0.25, names=SOMETHING_FITS)
def gives_the_cache_back(scenario: str, found: Search, right: Search) -> None:
    """Cached memory is freed between two tries."""
    if len(right.sizes) < 2:
        return
    if len(found.sizes) < 2:
        happened = f"{right.scenario_in_words} it tried {found.sizes_in_words}"
        raise Failed(happened, right.sizes_in_words, about="halves_until_it_fits")
    if found.kept > right.kept + 20 * MIB:
        kept = found.kept // MIB
        happened = f"{kept} MiB were still in the cache when the next try began"
        raise Failed(happened, "an empty cache, as at the first try")


@check_scenarios(largest_batch, searches, points=0.25, names=NOTHING_FITS)
def raises_when_nothing_fits(scenario: str, found: Search, right: Search) -> None:
    """If not even 1 fits, the error of the last try is raised."""
    expected = "the OutOfMemoryError of the last try"
    where = f"(start={right.start})"
    raised = found.error
    assert right.error is not None
    if raised is None:
        happened = f"{where} nothing fits, and it returned {found.told.shown}"
        if found.told.kind == "NoneType":
            happened = f"{where} nothing fits, and it ended without an error"
        if any(size < 1 for size in found.sizes):
            raise Failed(happened, expected)
        raise Failed(happened, expected, at=("last return",))
    is_last_error = raised.type == right.error.type and raised.message == found.last
    if not is_last_error:
        message, *_ = raised.message.split(".")
        happened = f"{where} it raised {raised.type}: {message}"
        raise Failed(happened, expected, raised.line)
    # The way to 1, and sizes that are no whole numbers, are another check's.
    *earlier, last = found.sizes
    if last > 1 or (last < 1 and 1 in earlier):
        happened = f"{where} it tried {found.sizes_in_words}"
        raise Failed(happened, right.sizes_in_words)


@check_scenarios(largest_batch, searches, points=0.5, names=ANOTHER_ERROR)
def swallows_nothing_else(scenario: str, found: Search, right: Search) -> None:
    """Any other error is raised at once, unchanged."""
    raised = found.error
    bug = right.error
    assert bug is not None
    tried = found.sizes_in_words
    if not found.met:
        size = f"a batch of {right.sizes[-1]}, which raises a {bug.type}, was never tried"
        happened = f"{size}; tried: {tried}"
        raise Failed(happened, right.sizes_in_words, found.error_line)
    if raised is None or len(found.sizes) > found.met:
        message, *_ = bug.message.split(".")
        happened = f"{bug.type} ({message}) was taken for out of memory; tried: {tried}"
        expected = f"the {bug.type} itself, after {right.sizes_in_words}"
        raise Failed(happened, expected, misconception="other-error-taken-for-memory")
    if raised.type != bug.type or raised.message != bug.message:
        happened = f"a {bug.type} was raised as {raised.type}: {raised.message}"
        expected = f"{bug.type}: {bug.message}"
        raise Failed(happened, expected, raised.line)
