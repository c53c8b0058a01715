"""Work for 10 whose duration is known.

It runs on the host, on a virtual GPU that works asynchronously, or on a Mac's GPU.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpudojo.grading.call import Call, torch

if TYPE_CHECKING:
    from virtual_cuda.hooks import Patch


class HostClock(Protocol):
    """What work needs of a clock: the modelled one of `virtual_cuda`, or a RealClock."""

    clocks_read: set[str]  # the names of Python's clocks that student code has asked

    @property
    def recorded_events(self) -> int: ...

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def work(self, seconds: float) -> None: ...


class RealClock:
    """The clock of this machine. It does not know which clocks student code asks."""

    # Taken before any student code is loaded: a submission that replaces them changes nothing here.
    _now: Final = staticmethod(time.perf_counter)
    _sleep: Final = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.clocks_read: set[str] = set()
        self.recorded_events = 0

    def now(self) -> float:
        return self._now()

    def sleep(self, seconds: float) -> None:
        self._sleep(seconds)

    def work(self, seconds: float) -> None:
        self._sleep(seconds)


def issue_time() -> float:
    """How many seconds the host takes to give a GPU something to do, modelled."""
    from virtual_cuda import gpu_named
    from virtual_cuda.hooks import USUAL_GPU

    seconds: float = gpu_named(USUAL_GPU).host["stream"]
    return seconds


class TimedWork:
    """Work for student code to call.

    The n-th call takes the n-th duration, all later ones the last. `took` is what they took.
    """

    def __init__(self, durations: Sequence[float], work: Callable[[float], float]) -> None:
        self.durations = durations
        self.work = work  # gets the seconds to take, and returns those it took
        self.took: list[float] = []

    def __call__(self) -> None:
        """Work for the next duration, or the last again, and note how many seconds it took."""
        last = len(self.durations) - 1
        place = min(len(self.took), last)
        seconds = self.work(self.durations[place])
        self.took.append(seconds)


class AppleGpu:
    """A Mac's GPU, which does one piece of work after the other."""

    def __init__(self, clock: HostClock) -> None:
        self.clock = clock
        self.issue_time = issue_time()
        self.free_at = 0.0  # when all of its work is done

    def launch(self, seconds: float) -> float:
        """Give it work of so many seconds, and return them; it is busy until then.

        The host needs a moment for that, by the modelled clock.
        """
        if not isinstance(self.clock, RealClock):
            self.clock.sleep(self.issue_time)
        self.free_at = max(self.clock.now(), self.free_at) + seconds
        return seconds

    def synchronize(self, *args: Any, **kwargs: Any) -> None:
        """Wait until all work is done."""
        self.wait_until(self.free_at)

    def wait_until(self, moment: float) -> None:
        left = moment - self.clock.now()
        if left > 0:
            self.clock.sleep(left)

    def patches(self) -> Iterator[Patch]:
        """Yield replacements of torch's functions with which one waits for this GPU, or times
        it.
        """
        import torch as itself  # the module itself, to be patched

        def event(*args: Any, enable_timing: bool = False, **options: Any) -> AppleEvent:
            return AppleEvent(self, enable_timing)

        yield torch.mps, "synchronize", self.synchronize
        yield torch.accelerator, "synchronize", self.synchronize
        yield itself, "Event", event
        yield torch.mps.event, "Event", event
        if hasattr(torch.mps, "Event"):
            yield torch.mps, "Event", event


class AppleEvent:
    """A moment of a Mac's GPU, as `torch.mps.Event`."""

    def __init__(self, gpu: AppleGpu, enable_timing: bool) -> None:
        self._gpu = gpu
        self._enable_timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._gpu.clock.clocks_read.add("event")
        self._at = max(self._gpu.clock.now(), self._gpu.free_at)

    def wait(self, stream: Any = None) -> None:
        """Let the GPU wait for it, which has one stream alone."""

    def synchronize(self) -> None:
        self._gpu.wait_until(self._at or 0.0)

    def query(self) -> bool:
        """True if the GPU has reached it.

        If not, the clock moves on, so that a loop that asks comes to an end.
        """
        if self._is_complete():
            return True
        self._gpu.clock.sleep(self._gpu.issue_time)
        return False

    def elapsed_time(self, end_event: AppleEvent) -> float:
        """Milliseconds until another event, with torch's errors.

        Raises ValueError for events not made for timing or not recorded, and RuntimeError for those
        that the GPU has not reached.
        """
        if not (self._enable_timing and end_event._enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self._is_complete() and end_event._is_complete()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3

    def _is_complete(self) -> bool:
        moment = self._at or 0.0
        return moment <= self._gpu.clock.now() + 1e-9  # the resolution of the clock


class Workshop:
    """Where the work for one call of a student's function is made, by one clock."""

    def __init__(self, clock: HostClock, modelled: bool) -> None:
        self.clock = clock
        self.modelled = modelled
        self.apple_gpu = AppleGpu(clock)

    def make(self, durations: Sequence[float], device: Any) -> TimedWork:
        """Work for a device, by its type: "cpu", "cuda" or "mps".

        Each call of it takes the next duration, in seconds.
        """
        kind = torch.device(device).type
        if kind == "cuda":
            return TimedWork(durations, partial(_work_on_cuda, device))
        if kind == "mps":
            return TimedWork(durations, self.apple_gpu.launch)
        return TimedWork(durations, self._work_on_host)

    def _work_on_host(self, seconds: float) -> float:
        began = self.clock.now()
        self.clock.work(seconds)
        return self.clock.now() - began


def _work_on_cuda(device: Any, seconds: float) -> float:
    """Give a virtual GPU work of so many seconds, on its current stream, and return them.

    Returns before the work is done.
    """
    from virtual_cuda.hooks import CYCLES_PER_SECOND

    with torch.cuda.device(device):
        torch.cuda._sleep(round(seconds * CYCLES_PER_SECOND))
    return seconds


@contextlib.contextmanager
def open_workshop(call: Call, modelled: bool) -> Iterator[Workshop]:
    """Make a workshop, and let student code live by its clock for a `with` block.

    That is the modelled clock, or this machine's. On a Mac, the functions of torch that wait for
    its GPU are replaced meanwhile.
    """
    from virtual_cuda.hooks import modelled_time, patch, patch_imported_names

    with contextlib.ExitStack() as undo:
        clock: HostClock = undo.enter_context(modelled_time()) if modelled else RealClock()
        workshop = Workshop(clock, modelled)
        if torch.backends.mps.is_available() and not torch.cuda.is_available():
            patch(workshop.apple_gpu.patches(), undo)
        names = getattr(call.function, "__globals__", {})
        undo.enter_context(patch_imported_names(names))
        yield workshop
