"""Keeps what probes record.

That is the state of objects which student code holds, the ledgers of calls, and memory curves. A
ledger is the list of what a call did on the device. A probe is a function of an exercise that calls
the student's function and describes what it did.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import linecache
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from virtual_cuda.hooks import USUAL_GPU
from virtual_cuda.ledger import (
    MOST_CALLS,
    Scaled,
    Timeline,
    same_call,
    timeline_of,
    trace_of,
)

from gpudojo.grading.call import Call
from gpudojo.grading.student_code import call_recorder
from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import MemoryCurve, require_valid_timeline
from gpudojo.model.exercise import Exercise, Function, Probe

if TYPE_CHECKING:
    from virtual_cuda import Times
    from virtual_cuda.ledger import Ledger, ModelledSeconds, Record


KEPT: Final = "gpudojo.kept"  # the audit event of `state_of`


def _keep_states() -> Generator[Any, tuple[int, Any], None]:
    """Answer each pair of a key and a state that is sent: with the state that is kept for the key.

    A state other than None is kept if the key has none yet; None only asks. The states are local
    variables of a generator, because Python raises an audit event when somebody asks a generator
    for its frame.
    """
    states: dict[int, Any] = {}
    state: Any = None
    while True:
        key, new = yield state
        sys.audit(KEPT)
        if new is None:
            state = states.get(key)
        else:
            state = states.setdefault(key, new)


_keeper: Final = _keep_states()
next(_keeper)
_lock: Final = threading.Lock()
_keys: Final = itertools.count(1)


def keep_state(state: Any) -> int:
    """Keep the state of an object that student code will hold, and return a key to it.

    The object has only the key as an attribute, so it does not lead to its state. Its methods call
    `call_state`, the probe `state_of`. In the sandbox it is reported when other code calls these.
    """
    key = next(_keys)
    with _lock:
        _keeper.send((key, state))
    return key


def state_of(key: int) -> Any:
    """The state that `keep_state` took in, by the key it returned.

    Raises KeyError for any other key. An audit event tells the sandbox who asks.
    """
    with _lock:
        state = _keeper.send((key, None))
    if state is None:
        raise KeyError(key)
    return state


def call_state(key: int, method: str, *args: Any) -> Any:
    """Call a method of the state for a key, for objects that student code holds.

    Student code is running, so the names that the method uses are put right for it. Returns what
    the method returns. Raises what it raises, and KeyError where there is no state.
    """
    return call_recorder(_call_method_of_state, key, method, args)


def _call_method_of_state(key: int, method: str, args: tuple[Any, ...]) -> Any:
    return getattr(state_of(key), method)(*args)


HOOK: Final = "gpudojo.hook"  # the audit event of `call_state_for_hook`


def call_state_for_hook(key: int, method: str, *args: Any) -> Any:
    """Do what `call_state` does, for hooks that only torch calls.

    In the sandbox it is reported when student code calls such a hook.
    """
    sys.audit(HOOK)
    return call_state(key, method, *args)


def make_picklable(*classes: Any) -> tuple[Any, ...]:
    """Give classes that are made inside a function names by which pickle finds them.

    Changes `__qualname__` of each class, and returns the classes. The module needs `find_classes`.
    """
    for each in classes:
        each.__qualname__ = each.__name__
    return classes


def find_classes(make: Callable[[], tuple[Any, ...]]) -> Callable[[str], Any]:
    """Make a module's `__getattr__` that finds the classes which `make` returns.

    Pickle needs it: students save models and losses that they were given. It raises AttributeError
    for any other name.
    """

    def find_class(name: str) -> Any:
        """The class of this name. Raises AttributeError for any other name."""
        if not name.startswith("_"):
            for each in make():
                if each.__name__ == name:
                    return each
        raise AttributeError(name)

    return find_class


MOST_POINTS: Final = 200  # points: a picture has not much more room


def memory_curve(forward: Ledger, backward: Ledger, base: int, peak: int) -> MemoryCurve:
    """The bytes in use, above `base`, after each record of two parts of a ledger, thinned out.

    `peak` is the device's own figure in bytes, which includes memory inside of operations. The
    curve also tells at which point the second part begins.
    """
    up = _in_use(forward, base)
    down = _in_use(backward, base)
    # Each part has room in proportion to its length.
    length = max(len(up) + len(down), MOST_POINTS)
    first = thin_out(up, len(up) * MOST_POINTS // length)
    second = thin_out(down, MOST_POINTS - len(first))
    return MemoryCurve([*first, *second], len(first), peak)


def _in_use(part: Ledger, base: int) -> list[int]:
    """The bytes in use above `base`, never below 0, after each record of a part of a ledger.

    Devices are not told apart: whoever asks uses a single one.
    """
    return [max(live - base, 0) for live in part.live_bytes_in_order()]


def thin_out(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers, in order.

    The highest of several neighbours stands for them all, so that no peak is lost.
    """
    if len(numbers) <= most:
        return list(numbers)
    edges = [place * len(numbers) // max(most, 1) for place in range(most + 1)]
    parts = [numbers[start:end] for start, end in itertools.pairwise(edges)]
    return [max(part) for part in parts]


FEWEST: Final = 5  # records of a call that is worth a picture


class _Watched(Call):
    """A call that remembers the ledgers of all its calls, not only of the last one."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.function, call.submission, call.bench, call.seed)
        self.executed = call.executed
        self.ledgers: list[Ledger] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the student's function, and remember the ledger of this call.

        Raises StudentRaised where the function raises.
        """
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.ledgers.append(self.ledger)  # and no more: the probe may be taking the time


class _Watching:
    """Is told of every call that some probes make. Subclasses choose what to keep."""

    def watch_function(self, function: Function) -> Function:
        """A copy of a function whose probes are watched."""
        probes = [self.watch_probe(probe) for probe in function.probes]
        return dataclasses.replace(function, probes=probes)

    def watch_probe(self, probe: Probe[Any]) -> Probe[Any]:
        """A copy of a probe whose calls are watched.

        A probe that gets a value and not a call, as in the self-assessment, works as before.
        """
        look = probe.look

        def look_and_watch(call: Any) -> Any:
            """What the probe returns; its calls are chosen from also where it raises."""
            if not isinstance(call, Call):
                return look(call)
            watched = _Watched(call)
            try:
                return look(watched)
            finally:
                self._choose_calls(watched, probe.name)

        # No function of the standard library stands in between: student code may have replaced it.
        return Probe(probe.name, look_and_watch, probe.machine, probe.edge)

    def _choose_calls(self, call: _Watched, scenario: str) -> None:
        """Keep what is wanted of the calls that a probe has made."""
        raise NotImplementedError


class Busiest(_Watching):
    """Keeps the call of a function that moved most bytes; of equal ones, the one that did most.

    With `like`, it keeps the call that has the same scenario and place as the call in `like`. That
    is for a reference, so that the two can be compared.
    """

    def __init__(self, like: Busiest | None = None) -> None:
        """Keep no call yet.

        With `like`, only a call with the scenario and place of its call will be kept.
        """
        self.like = like
        self.file = ""
        self.device = ""
        self.scenario = ""
        self.place = -1  # among the calls in its scenario
        self._weight = (0, 0)
        self._ledger: Ledger | None = None
        self._times: Times | None = None

    def _choose_calls(self, call: _Watched, scenario: str) -> None:
        """Keep the heaviest call that a probe has made, if it outweighs the one kept so far.

        It looks at the rows of the ledgers only. To read the records of every call would take
        longer than many calls do.
        """
        candidates = []
        for place, ledger in enumerate(call.ledgers):
            if self.like is None or self.like.is_call(scenario, place):
                candidates.append((_weight_of(ledger), place))
        weight, place = max(candidates, default=((0, 0), -1))
        if weight <= self._weight:
            return
        self._weight = weight
        self.scenario = scenario
        self.place = place
        self.file = str(call.path)
        self.device = str(call.device)
        self._ledger = call.ledgers[place]
        self._times = None

    def is_call(self, scenario: str, place: int) -> bool:
        """True if the call that is kept has this scenario and place in it."""
        return self.scenario == scenario and self.place == place

    @property
    def records(self) -> tuple[Record, ...]:
        if self._ledger is None:
            return ()
        return self._ledger.records

    def make_timeline(self, function: str, source: bool = True) -> Timeline | None:
        """The timeline of the call, for a picture; `function` is the name to show.

        Returns None where next to nothing happened on a device. Without `source` the timeline has
        no source lines: those of a reference would be the solution. Raises BadEvidence for a
        timeline that is not valid.
        """
        if self._ledger is None or len(self.records) < FEWEST:
            return None
        text: list[str] = []
        if source:
            text = [line.rstrip("\n") for line in linecache.getlines(self.file)]
        timeline = timeline_of(
            self.records,
            function,
            self.scenario,
            self.file,
            self.device,
            text,
            self._ledger.peak_bytes(self.device),
            place=self.place,
            scaled=self.lanes_to_scale(),
        )
        return require_valid_timeline(timeline)

    def modelled_times(self) -> Times | None:
        """The modelled times of the call on the usual GPU, computed once and remembered.

        Returns None where it used no device.
        """
        from virtual_cuda import gpu_named, times_of

        if self._ledger is None:
            return None
        if self._times is None:
            self._times = times_of(self._ledger, gpu_named(USUAL_GPU))
        if self._times.on_device:
            return self._times
        return None

    def lanes_to_scale(self) -> Scaled | None:
        """The lanes of host and device to scale. Returns None where the call used no device."""
        from virtual_cuda.hooks import lanes_to_scale

        times = self.modelled_times()
        if times is None:
            return None
        return lanes_to_scale(times)

    def seconds_by_record(self) -> dict[int, ModelledSeconds] | None:
        """Modelled seconds of host and GPU, by the index of the record.

        Returns None where the call used no device.
        """
        times = self.modelled_times()
        if times is None or self._ledger is None:
            return None
        return times.by_record(self._ledger)

    def make_trace(self) -> dict[str, Any]:
        """The trace of the call for the viewer Perfetto, as data for JSON.

        It is to scale on a modelled GPU. Where the call used no device, it is as recorded.
        """
        from virtual_cuda.hooks import modelled_trace

        times = self.modelled_times()
        if times is None or self._ledger is None:
            return trace_of(self.records)
        return modelled_trace(self._ledger, times)


@dataclass(frozen=True)
class Pair:
    """The busiest call of a student's function, and the same one of the reference's."""

    exercise: str
    functions: tuple[Function, Function]  # the same function, watched for the one and the other
    yours: Busiest
    theirs: Busiest
    # Where the reference is not here, what its calls did on the public seed.
    recorded: Sequence[Timeline] = ()

    @classmethod
    def of_function(
        cls, exercise: Exercise, function: Function, recorded: Sequence[Timeline] = ()
    ) -> Pair:
        """A pair for one function. Its `functions` are to be run, the student's first."""
        yours = Busiest()
        theirs = Busiest(like=yours)
        functions = (yours.watch_function(function), theirs.watch_function(function))
        return cls(exercise.stem, functions, yours, theirs, recorded)

    def make_timelines(self) -> tuple[Timeline, Timeline | None] | None:
        """The timelines of the student's call and of the reference's.

        The second is None where the reference has no such call. Returns None where the student's
        call has nothing to draw, or a timeline is not valid.
        """
        name = self.functions[0].name
        try:
            yours = self.yours.make_timeline(name)
            theirs = self.theirs.make_timeline(name, source=False)
        except BadEvidence:
            return None
        if yours is None:
            return None
        return yours, theirs or same_call(yours, self.recorded)


class EveryCall(_Watching):
    """Keeps the timelines, without source lines, of a reference's calls that are worth a picture.

    All are kept, up to a limit, because a student's busiest call may be any of them.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self.timelines: list[Timeline] = []

    def _choose_calls(self, call: _Watched, scenario: str) -> None:
        """Keep the timeline of each call that did enough to be drawn, if it is valid.

        They are added to `timelines`, up to MOST_CALLS.
        """
        for place, ledger in enumerate(call.ledgers):
            if len(self.timelines) >= MOST_CALLS:
                return
            if len(ledger.records) < FEWEST:
                continue
            device = str(call.device)
            timeline = timeline_of(
                ledger.records,
                self.function,
                scenario,
                str(call.path),
                device,
                (),
                ledger.peak_bytes(device),
                place=place,
            )
            # A picture less is no reason to have no reference.
            with contextlib.suppress(BadEvidence):
                self.timelines.append(require_valid_timeline(timeline))


def _weight_of(ledger: Ledger) -> tuple[int, int]:
    """Bytes copied from and to the host, and how many records a line of somebody's caused."""
    return ledger.moved_bytes(), ledger.count_with_line()
