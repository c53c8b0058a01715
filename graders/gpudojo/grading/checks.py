"""Ready-made checks, and what checks of several exercises share.

A probe calls the student's function in some scenarios and describes what it did. For a simple
exercise a probe returns `Cases[Ran]`, made by `describe_call`, and these functions declare its
checks: `runs`, `same_as_reference`, `on_the_device`, `at_most`, `leaves_its_input_alone`. The last
three hold for a function that does nothing, too, so they need `same_as_reference`, or another check
named by `after`, to pass first. The functions named `expect_…` raise Failed and are for checks that
an exercise declares itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from gpudojo.grading.call import (
    COPIED_BACK,
    Call,
    array_of,
    call_and_restore_settings,
    device_name,
    torch,
)
from gpudojo.grading.comparing import arrays_close
from gpudojo.grading.settings import setters_of
from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import Array, CallStatus, Case, Cases, Fact, Raised
from gpudojo.model.exercise import (
    Diagnose,
    Failed,
    Function,
    Probe,
    Seen,
    with_article,
)
from gpudojo.model.results import not_handed_in

T = TypeVar("T")

# ---- what a call did -----------------------------------------------------------------------------


class Ran(Case, frozen=True):
    """What one call returned, and what it cost."""

    kind: str  # the type's name
    value: Fact  # an Array for a tensor; numbers, texts, lists and dicts as they are; else None
    device: str  # of a tensor
    wanted_device: str
    copies: int  # between host and device, either way
    waits: int  # of the host for the device
    line: int | None  # of the first copy or wait
    changed: list[int]  # which arguments have other values than before, counted from 1
    settings: list[str]  # settings of torch that it changed


def describe_call(call: Call, *args: Any, **kwargs: Any) -> Ran:
    """Call the student's function on the device and describe what it did."""
    before = [array_of(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
    value, settings = call_and_restore_settings(call, *args, **kwargs)
    ledger = call.ledger
    copies = ledger.transfers()
    waits = ledger.syncs()
    is_tensor = isinstance(value, torch.Tensor)
    return Ran(
        kind=type(value).__name__,
        value=array_of(value) if is_tensor else _plain(value),
        device=str(value.device) if is_tensor else "",
        wanted_device=device_name(call.device),
        copies=len(copies),
        waits=len(waits),
        line=call.first_line((*copies, *waits)),
        changed=[
            n
            for n, (arg, was) in enumerate(zip(args, before, strict=True), 1)
            if was and array_of(arg) != was
        ],
        settings=settings,
    )


def _plain(value: Any, depth: int = 0) -> Fact:
    """A result as plain data. Values that are no plain data, or lie too deep, become None."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)) and depth < 4:
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, dict) and depth < 4:
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    return None


# ---- ready-made checks ---------------------------------------------------------------------------

# Which tensor each of these mistakes is about.
_LEFT_BEHIND: Final = {
    "inputs-on-cpu": "inputs",
    "targets-on-cpu": "targets",
    "numpy-on-device-tensor": "tensor",
}


def runs(
    function: Function,
    *,
    scenarios: Iterable[str] | None = None,
    diagnose: Diagnose = lambda raised, seen: None,
) -> None:
    """Declare the check `runs`, which the other checks need.

    It passes if the function raises no error in these scenarios, in this order; without
    `scenarios`, in any. Name the main scenarios and leave out edge cases, or try those in a probe
    declared with `edge=True`: an error there fails the checks that look at it, and no others.
    `diagnose` names the misconception behind any error of the student's function; it is set in
    `function`, too. To return without an error earns no points.
    """
    chosen = None if scenarios is None else tuple(scenarios)

    def named(raised: Raised, seen: Seen) -> str | None:
        try:
            return diagnose(raised, seen)
        except (KeyError, BadEvidence):
            # It looks at a probe that ended with an error, too, or at nothing.
            return None

    function.diagnose = named
    edges = {probe.name for probe in function.probes if probe.edge}

    expected_of: list[tuple[Seen, list[str]]] = []  # the scenarios of the last reference

    def judge(seen: Seen, wanted: Seen) -> None:
        # First, probes that did not return: the function or the file is missing or broken.
        for name, (status, error) in seen.ends.items():
            if status is CallStatus.RETURNED or name in edges:
                continue
            if status is CallStatus.MISSING:
                raise Failed(
                    not_handed_in(function.name), f"a function named `{function.name}`", ran=()
                )
            assert error is not None
            if status is CallStatus.BROKEN:
                key = device_mistake(error) or (
                    "file-without-memory" if error.out_of_memory else general_mistake(error)
                )
                said = "is not valid Python" if key == "syntax-error" else "could not be run"
                raise Failed(
                    f"the file {said}: {error.short}",
                    EXPECTED.get(key or "", "no error"),
                    error.line,
                    key,
                )
            error = error if error.scenario else msgspec.structs.replace(error, scenario=name)
            raise scenario_raised(error, named(error, seen))
        # Then, scenarios of which nothing was recorded. Evidence comes from where student code ran,
        # so what is missing does not pass.
        found = dict(_scenarios(function, seen))
        if not expected_of or expected_of[0][0] is not wanted:
            expected_of[:] = [(wanted, [name for name, _ in _scenarios(function, wanted)])]
        expected = expected_of[0][1]
        for name in expected:
            if name not in found:
                raise Failed(
                    f"nothing was recorded for scenario `{name}`", "what the function did there"
                )
        # Last, errors in the scenarios that this check looks at.
        for name in expected if chosen is None else chosen:
            if (error := found[name]) is not None:
                failed = scenario_raised(error, named(error, seen))
                seen.about(None, name)
                raise failed

    judge.__name__, judge.__doc__ = (
        "runs",
        f"`{function.name}` runs in every scenario without an error.",
    )
    function.check(0, needs=())(judge)


def _scenarios(function: Function, seen: Seen) -> Iterator[tuple[str, Raised | None]]:
    """Every scenario of the probes that try several, with the error it ended with."""
    for probe in function.probes:
        if probe.edge or "Cases[" not in str(probe.look.__annotations__.get("return")):
            continue
        found = seen[probe]
        for cases in [found] if isinstance(found, Cases) else found.values():
            yield from ((name, None) for name in cases)
            yield from cases.errors.items()


def scenario_raised(raised: Raised, misconception: str | None) -> Failed:
    """The failure of a check that looks at a scenario in which the student's function raised."""
    line = raised.line
    misconception = misconception or general_mistake(raised)
    left = _LEFT_BEHIND.get(misconception or "")
    if (
        misconception != "numpy-on-device-tensor"
        and left in raised.copied
        and COPIED_BACK in raised.copied
    ):
        line, misconception = (
            raised.copied[COPIED_BACK] or line,
            None,
        )  # something was copied to the device, and something back
    elif left is not None and left in raised.copied:
        # It was copied to the device by this line just before; what was used is the original.
        line = raised.copied[left]
        misconception = "result-thrown-away"
    elif misconception == "outputs-on-cpu":
        line = raised.copied.get(COPIED_BACK) or line
    expected = EXPECTED.get(misconception or "", "no error")
    return Failed(
        f"scenario `{raised.scenario}` raised: {raised.short}",
        expected,
        line,
        misconception,
        about="runs",
    )


# What is expected instead of a mistake that can be made anywhere.
EXPECTED: Final = {
    "syntax-error": "a file that Python can read",
    "unknown-name": "a name that exists here",
    "not-implemented-left": "the function without this line of the stub",
    "file-without-memory": "a file that needs little memory when it is imported",
}


def general_mistake(raised: Raised) -> str | None:
    """The mistake behind an error that is none of torch."""
    if raised.type in ("SyntaxError", "IndentationError", "TabError"):
        return "syntax-error"
    if raised.type == "NotImplementedError" and not raised.message:  # torch's have a message
        return "not-implemented-left"
    if raised.type == "TimedOut":
        return "does-not-end"
    return "unknown-name" if raised.type in ("NameError", "UnboundLocalError") else None


def is_between_gpus(message: str) -> bool:
    """Whether an error of torch is about tensors on two different GPUs."""
    return "cuda:0" in message and "cuda:1" in message


def device_mistake(raised: Raised) -> str | None:
    """The misconception behind an error of torch about devices."""
    message = raised.message
    if "numpy() on Tensor that requires grad" in message:
        return "numpy-with-a-gradient"
    if "does not require grad and does not have a grad_fn" in message:
        return "no-graph-behind-the-loss"
    if "same device" not in message and "Input type" not in message and "to numpy" not in message:
        return None
    if "device type tensor to numpy" in message:
        return "numpy-on-device-tensor"
    if "got target is on cuda" in message:
        return "outputs-on-cpu" if COPIED_BACK in raised.copied else "model-not-moved"
    if re.search(r"got target is on cpu|nll_loss|cross_entropy", message):
        return "targets-on-cpu"
    on_cpu = r"got (mat1|input|self|index) is on cpu|got (weight|bias) is on cuda|Input type \(torch\.FloatTensor\)"
    if re.search(on_cpu, message):
        return "inputs-on-cpu"
    if re.search(
        r"is on cuda:\d+, different from other tensors on cpu|weight type \(torch\.FloatTensor\)",
        message,
    ):
        return "model-not-moved"
    return None


Ready = Probe[Cases[Ran]]
# Gets the scenario, the student's call and the reference's.
JudgeRan = Callable[[str, Ran, Ran], None]


def _for_each(
    function: Function, probe: Ready, points: float, claim: str = "", after: str | None = None
) -> Callable[[JudgeRan], None]:
    """Make a decorator that declares a check of every scenario of a probe.

    The check is added to `function`. Its claim, the line that students read, is `claim` or else the
    docstring of the decorated function. Raises ValueError if the check `after`, which must pass
    first, is not declared.
    """
    if after is not None and after not in [check.name for check in function.checks]:
        raise ValueError(
            f"declare the check {after} of {function.name} first: without it, doing nothing would pay"
        )

    def declare(judge: JudgeRan) -> None:
        def every(seen: Seen, wanted: Seen) -> None:
            for scenario, found, right in scenario_pairs(seen[probe], wanted[probe]):
                judge(scenario, found, right)

        every.__name__, every.__doc__ = judge.__name__, claim or judge.__doc__
        function.check(points, ("runs", after) if after else ("runs",))(every)

    return declare


def same_as_reference(function: Function, probe: Ready, points: float, claim: str = "") -> None:
    """Add a check, which needs `runs`: every scenario returns what the reference returns.

    That is equal plain data, or arrays with close values. `claim` is the line that students read,
    instead of "It returns the right values.".
    """

    @_for_each(function, probe, points, claim)
    def same_as_reference(scenario: str, found: Ran, right: Ran) -> None:
        """It returns the right values."""
        where = f"scenario `{scenario}`: "
        value = right.value
        if found.kind != right.kind:
            shown = (
                f"{value}, {with_article(right.kind)}"
                if isinstance(value, (bool, int, float))
                else right.kind
            )
            raise Failed(f"{where}it returned {with_article(found.kind)}", shown)
        if isinstance(value, Array):
            if not arrays_close(found.value, value):
                raise Failed(f"{where}the values are wrong", "the reference's values")
        elif found.value != value:
            raise Failed(f"{where}it returned {found.value!r}", repr(value))


def on_the_device(
    function: Function, probe: Ready, points: float, after: str = "same_as_reference"
) -> None:
    """Declare that every scenario returns a tensor on the device."""

    @_for_each(function, probe, points, after=after)
    def on_the_device(scenario: str, found: Ran, right: Ran) -> None:
        """The result is on the device."""
        if found.device != found.wanted_device:
            shown = f"a tensor on {found.device}" if found.device else with_article(found.kind)
            raise Failed(
                f"scenario `{scenario}`: it returned {shown}", f"a tensor on {found.wanted_device}"
            )


def at_most(
    function: Function,
    probe: Ready,
    points: float,
    after: str = "same_as_reference",
    *,
    copies: int | None = None,
    waits: int | None = None,
) -> None:
    """Declare a check that counts copies between host and device, and waits for the device.

    It fails if a scenario makes more than `copies` or `waits`. None is no limit.
    """

    @_for_each(function, probe, points, after=after)
    def stays_on_the_device(scenario: str, found: Ran, right: Ran) -> None:
        """It makes no needless copies between host and device, and no needless waits for the device."""
        for what, count, most in (("copies", found.copies, copies), ("waits", found.waits, waits)):
            if most is not None and count > most:
                raise Failed(
                    f"scenario `{scenario}`: {count} {what}", f"at most {most}", found.line
                )


def leaves_its_input_alone(
    function: Function, probe: Ready, points: float, after: str = "same_as_reference"
) -> None:
    """Declare that no scenario changes a tensor that was passed in, or a setting of torch."""

    @_for_each(function, probe, points, after=after)
    def leaves_its_input_alone(scenario: str, found: Ran, right: Ran) -> None:
        """The tensors passed in and the settings of torch are not changed."""
        if found.changed:
            happened = f"scenario `{scenario}`: argument {found.changed[0]} has other values after the call"
            raise Failed(happened, "the values from before", None, "input-modified")
        expect_settings_kept(found.settings, scenario)


# ---- for checks that an exercise declares itself -------------------------------------------------


def expect_settings_kept(settings: Sequence[str], scenario: str) -> None:
    """Require that no setting of torch was changed. Raises Failed."""
    if settings:
        raise Failed(
            f"it changed {settings[0]} (scenario `{scenario}`)",
            "no change",
            at=setters_of(settings[0]),
        )


def expect_float(kind: str, is_float: bool, what: str = "it returned ") -> None:
    """Require a Python float. Raises Failed, for a tensor with the name of that mistake."""
    if not is_float:
        key = "returned-tensor" if kind in ("Tensor", "Parameter") else None
        raise Failed(f"{what}{with_article(kind)}", "a Python float", misconception=key)


def count_in_words(count: int) -> str:
    """A count in words: "never", "once", "3 times"."""
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def scenario_pairs(
    seen: Mapping[str, T], wanted: Mapping[str, T], *names: str
) -> Iterator[tuple[str, T, T]]:
    """Yield the name of each scenario, what was seen in it and what the reference did in it.

    Without `names`, these are all scenarios of the reference. Raises KeyError for one that was not
    seen.
    """
    for name in names or wanted:
        yield name, seen[name], wanted[name]
