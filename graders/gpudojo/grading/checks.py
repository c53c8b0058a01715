"""Ready-made checks, and what checks of several exercises share.

A probe calls the student's function in some scenarios and describes what it did. For a simple
exercise a probe returns `Cases[Ran]`, made by `describe_call`, and these functions declare its
checks: `runs`, `same_as_reference`, `on_the_device`, `at_most`, `leaves_its_input_alone`. The last
three hold for a function that does nothing, too, so they need `same_as_reference`, or another check
named by `after`, to pass first. `runs` and `changes_no_settings` are for probes of any kind. For
checks that an exercise declares itself there is the decorator `check_scenarios`, which judges each
scenario, and there are functions named `expect_…`, which raise Failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    Judge,
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
    before = [_array_if_tensor(argument) for argument in args]
    value, settings = call_and_restore_settings(call, *args, **kwargs)
    changed = []
    pairs = zip(args, before, strict=True)
    for number, (argument, array) in enumerate(pairs, 1):
        if array is not None and array_of(argument) != array:
            changed.append(number)
    copies = call.ledger.transfers()
    waits = call.ledger.syncs()
    described: Fact = _array_if_tensor(value)
    device = ""
    if described is None:
        described = _plain_value(value)
    else:
        device = str(value.device)
    return Ran(
        kind=type(value).__name__,
        value=described,
        device=device,
        wanted_device=device_name(call.device),
        copies=len(copies),
        waits=len(waits),
        line=call.first_line((*copies, *waits)),
        changed=changed,
        settings=settings,
    )


def _array_if_tensor(value: Any) -> Array | None:
    """The values of a tensor; None for anything else."""
    if not isinstance(value, torch.Tensor):
        return None
    return array_of(value)


def _plain_value(value: Any, depth: int = 0) -> Fact:
    """A result as plain data. Values that are no plain data, or lie too deep, become None."""
    if type(value) in (bool, int, float, str):
        return value
    if depth == 4:
        return None
    if isinstance(value, (list, tuple)):
        return [_plain_value(inner, depth + 1) for inner in value]
    if isinstance(value, dict):
        plain = {}
        for key, inner in value.items():
            plain[str(key)] = _plain_value(inner, depth + 1)
        return plain
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
    chosen = None
    if scenarios is not None:
        chosen = tuple(scenarios)

    def diagnose_or_none(raised: Raised, seen: Seen) -> str | None:
        """The author's diagnosis; None where it cannot be made."""
        try:
            return diagnose(raised, seen)
        except (KeyError, BadEvidence):
            # It looks at a probe that ended with an error, too, or at nothing.
            return None

    function.diagnose = diagnose_or_none

    def runs(seen: Seen, wanted: Seen) -> None:
        _expect_every_return(function, seen)
        # Evidence comes from where student code ran, so what is missing does not pass.
        found = dict(_errors_by_scenario(function, seen))
        expected = [name for name, _ in _errors_by_scenario(function, wanted)]
        for name in expected:
            if name not in found:
                happened = f"nothing was recorded for scenario `{name}`"
                raise Failed(happened, "what the function did there")
        # Last, errors in the scenarios that this check looks at.
        for name in expected if chosen is None else chosen:
            error = found[name]
            if error is not None:
                failed = failure_of_scenario(error, function.diagnose(error, seen))
                seen.about(None, name)
                raise failed

    runs.__doc__ = f"`{function.name}` runs in every scenario without an error."
    function.check(0, needs=())(runs)


def _expect_every_return(function: Function, seen: Seen) -> None:
    """Raise Failed for a function that is missing, or that a probe could not call to the end."""
    edges = {probe.name for probe in function.probes if probe.edge}
    for name, (status, error) in seen.ends.items():
        if status is CallStatus.RETURNED or name in edges:
            continue
        if status is CallStatus.MISSING:
            expected = f"a function named `{function.name}`"
            raise Failed(not_handed_in(function.name), expected, ran=())
        assert error is not None
        if status is CallStatus.BROKEN:
            raise _failure_of_file(error)
        if not error.scenario:
            error = msgspec.structs.replace(error, scenario=name)
        raise failure_of_scenario(error, function.diagnose(error, seen))


def _failure_of_file(error: Raised) -> Failed:
    """The failure of a check because the whole file could not be run."""
    mistake = device_mistake(error)
    if mistake is None and error.out_of_memory:
        mistake = "file-without-memory"
    mistake = mistake or general_mistake(error)
    problem = "could not be run"
    if mistake == "syntax-error":
        problem = "is not valid Python"
    expected = EXPECTED.get(mistake or "", "no error")
    happened = f"the file {problem}: {error.short}"
    return Failed(happened, expected, error.line, mistake)


def _errors_by_scenario(function: Function, seen: Seen) -> Iterator[tuple[str, Raised | None]]:
    """Yield every scenario of the probes that try several, with the error it ended with."""
    for probe in function.probes:
        if probe.edge or "Cases[" not in str(probe.look.__annotations__.get("return")):
            continue
        found = seen[probe]
        several_cases = [found]
        if not isinstance(found, Cases):
            several_cases = list(found.values())
        for cases in several_cases:
            for name in cases:
                yield name, None
            yield from cases.errors.items()


def failure_of_scenario(raised: Raised, misconception: str | None) -> Failed:
    """The failure of a check that looks at a scenario in which the student's function raised."""
    misconception = misconception or general_mistake(raised)
    line = raised.line
    copied = raised.copied
    left_behind = _LEFT_BEHIND.get(misconception or "")
    copied_first = left_behind is not None and left_behind in copied
    if copied_first and COPIED_BACK in copied and misconception != "numpy-on-device-tensor":
        # Something was copied to the device, and something back.
        line = copied[COPIED_BACK] or line
        misconception = None
    elif left_behind is not None and copied_first:
        # It was copied to the device by this line just before; what was used is the original.
        line = copied[left_behind]
        misconception = "result-thrown-away"
    elif misconception == "outputs-on-cpu":
        line = copied.get(COPIED_BACK) or line
    happened = f"scenario `{raised.scenario}` raised: {raised.short}"
    expected = EXPECTED.get(misconception or "", "no error")
    return Failed(happened, expected, line, misconception, about="runs")


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
    if raised.type in ("NameError", "UnboundLocalError"):
        return "unknown-name"
    return None


def is_about_cuda(message: str) -> bool:
    """True if an error is about CUDA or its driver, as on a machine without a GPU."""
    lowered = message.lower()
    return "cuda" in lowered or "nvidia" in lowered


def is_between_gpus(message: str) -> bool:
    """True if an error of torch is about tensors on two different GPUs."""
    return "cuda:0" in message and "cuda:1" in message


# What torch says of inputs on the CPU, and of a model there, in its errors about devices.
_INPUTS_ON_CPU: Final = re.compile(
    r"got (mat1|input|self|index) is on cpu|got (weight|bias) is on cuda"
    r"|Input type \(torch\.FloatTensor\)"
)
_MODEL_ON_CPU: Final = re.compile(
    r"is on cuda:\d+, different from other tensors on cpu|weight type \(torch\.FloatTensor\)"
)


def device_mistake(raised: Raised) -> str | None:
    """The misconception behind an error of torch about devices. Returns None for other errors."""
    message = raised.message
    if "numpy() on Tensor that requires grad" in message:
        return "numpy-with-a-gradient"
    if "does not require grad and does not have a grad_fn" in message:
        return "no-graph-behind-the-loss"
    if not re.search("same device|Input type|to numpy", message):
        return None
    if "device type tensor to numpy" in message:
        return "numpy-on-device-tensor"
    if "got target is on cuda" in message:
        if COPIED_BACK in raised.copied:
            return "outputs-on-cpu"
        return "model-not-moved"
    if re.search("got target is on cpu|nll_loss|cross_entropy", message):
        return "targets-on-cpu"
    if _INPUTS_ON_CPU.search(message):
        return "inputs-on-cpu"
    if _MODEL_ON_CPU.search(message):
        return "model-not-moved"
    return None


Ready = Probe[Cases[Ran]]
# Gets the scenario, what was seen in it and what the reference did in it; raises Failed.
JudgeScenario = Callable[[str, T, T], None]


def declare_check(
    function: Function,
    name: str,
    claim: str,
    judge: Judge,
    points: float,
    needs: tuple[str, ...] = ("runs",),
) -> None:
    """Declare a check whose name and claim are known only when it is declared.

    `claim` is the line that students read. Where a check has a function of its own, decorate that
    one with `@function.check`.
    """

    def judge_claim(seen: Seen, wanted: Seen) -> None:
        judge(seen, wanted)

    judge_claim.__name__ = name
    judge_claim.__doc__ = claim
    function.check(points, needs)(judge_claim)


def check_scenarios(
    function: Function,
    *probes: Probe[Cases[T]],
    points: float,
    needs: tuple[str, ...] = ("runs",),
    names: Iterable[str] = (),
) -> Callable[[JudgeScenario[T]], JudgeScenario[T]]:
    """Make a decorator that declares a check of every scenario of these probes, or of some.

    Scenarios of several probes must have different names.

    The decorated function gets the name of a scenario, what was seen in it and what the reference
    did in it, and raises Failed. Its docstring is the line that students read. `names` chooses
    scenarios; without it, these are all of the reference.
    """
    chosen = tuple(names)

    def declare(judge: JudgeScenario[T]) -> JudgeScenario[T]:
        def judge_scenarios(seen: Seen, wanted: Seen) -> None:
            for scenario, found, right in compare_cases(seen, wanted, *probes, names=chosen):
                judge(scenario, found, right)

        claim = judge.__doc__ or ""
        declare_check(function, judge.__name__, claim, judge_scenarios, points, needs)
        return judge

    return declare


def _check_each_scenario(
    function: Function, probe: Ready, points: float, claim: str = "", after: str | None = None
) -> Callable[[JudgeScenario[Ran]], JudgeScenario[Ran]]:
    """Make a decorator that declares a check of every scenario of a probe.

    The check is added to `function`. Its claim, the line that students read, is `claim` or else the
    docstring of the decorated function. Raises ValueError if the check `after`, which must pass
    first, is not declared.
    """
    if after is not None and after not in [check.name for check in function.checks]:
        raise ValueError(
            f"declare the check {after} of {function.name} first: "
            "without it, doing nothing would pay"
        )

    needs = ("runs", after) if after else ("runs",)

    def declare(judge: JudgeScenario[Ran]) -> JudgeScenario[Ran]:
        judge.__doc__ = claim or judge.__doc__
        return check_scenarios(function, probe, points=points, needs=needs)(judge)

    return declare


def same_as_reference(function: Function, probe: Ready, points: float, claim: str = "") -> None:
    """Add a check, which needs `runs`: every scenario returns what the reference returns.

    That is equal plain data, or arrays with close values. `claim` is the line that students read,
    instead of "It returns the right values.".
    """

    @_check_each_scenario(function, probe, points, claim)
    def same_as_reference(scenario: str, found: Ran, right: Ran) -> None:
        """It returns the right values."""
        where = f"scenario `{scenario}`: "
        value = right.value
        if found.kind != right.kind:
            expected = right.kind
            if isinstance(value, (bool, int, float)):
                expected = f"{value}, {with_article(right.kind)}"
            happened = f"{where}it returned {with_article(found.kind)}"
            raise Failed(happened, expected)
        if isinstance(value, Array):
            if not arrays_close(found.value, value):
                raise Failed(f"{where}the values are wrong", "the reference's values")
        elif found.value != value:
            happened = f"{where}it returned {found.value!r}"
            raise Failed(happened, repr(value))


def on_the_device(
    function: Function, probe: Ready, points: float, after: str = "same_as_reference"
) -> None:
    """Declare that every scenario returns a tensor on the device."""

    @_check_each_scenario(function, probe, points, after=after)
    def on_the_device(scenario: str, found: Ran, right: Ran) -> None:
        """The result is on the device."""
        if found.device == found.wanted_device:
            return
        result = with_article(found.kind)
        if found.device:
            result = f"a tensor on {found.device}"
        happened = f"scenario `{scenario}`: it returned {result}"
        raise Failed(happened, f"a tensor on {found.wanted_device}")


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

    claim = (
        "It makes no needless copies between host and device, and no needless waits for the device."
    )

    @_check_each_scenario(function, probe, points, claim, after)
    def stays_on_the_device(scenario: str, found: Ran, right: Ran) -> None:
        if copies is not None and found.copies > copies:
            happened = f"scenario `{scenario}`: {found.copies} copies"
            expected = f"at most {copies}"
            raise Failed(happened, expected, found.line)
        if waits is not None and found.waits > waits:
            happened = f"scenario `{scenario}`: {found.waits} waits"
            expected = f"at most {waits}"
            raise Failed(happened, expected, found.line)


def leaves_its_input_alone(
    function: Function, probe: Ready, points: float, after: str = "same_as_reference"
) -> None:
    """Declare that no scenario changes a tensor that was passed in, or a setting of torch."""

    @_check_each_scenario(function, probe, points, after=after)
    def leaves_its_input_alone(scenario: str, found: Ran, right: Ran) -> None:
        """The tensors passed in and the settings of torch are not changed."""
        if found.changed:
            argument = f"argument {found.changed[0]}"
            happened = f"scenario `{scenario}`: {argument} has other values after the call"
            raise Failed(happened, "the values from before", None, "input-modified")
        expect_settings_kept(found.settings, scenario)


def changes_no_settings(
    function: Function,
    *probes: Probe[Cases[Any]],
    points: float,
    needs: tuple[str, ...] = ("runs", "same_as_reference"),
) -> None:
    """Declare that no scenario of these probes changes a setting of torch.

    Their cases have `settings`, the names of those that were changed. It holds for a function that
    does nothing, too, so that it needs a check of something done.
    """

    def judge(seen: Seen, wanted: Seen) -> None:
        for scenario, case in seen.cases(*probes).items():
            expect_settings_kept(case.settings, scenario)

    claim = "It sets no seed and changes no setting of torch."
    declare_check(function, "changes_no_settings", claim, judge, points, needs)


# ---- for checks that an exercise declares itself -------------------------------------------------


def expect_settings_kept(settings: Sequence[str], scenario: str) -> None:
    """Require that no setting of torch was changed. Raises Failed."""
    if settings:
        setting = settings[0]
        happened = f"it changed {setting} (scenario `{scenario}`)"
        raise Failed(happened, "no change", at=setters_of(setting))


def is_same_device(one: str, other: str) -> bool:
    """True if two names are of the same device: `cuda` is `cuda:0`."""
    return one.removesuffix(":0") == other.removesuffix(":0")


def expect_device_used(
    device: str, used: Collection[str], what: str, line: int | None = None
) -> None:
    """Require that this device was used, and no other. Raises Failed.

    `what` begins the sentence that names the others: "the model ran on".
    """
    others = sorted(set(used) - {device})
    if others:
        where = f"{what} {' and '.join(sorted(used))}"
        raise other_device_used(device, where, line, wrong_device_mistake(device, others))


def other_device_used(
    device: str, where: str, line: int | None = None, misconception: str | None = None
) -> Failed:
    """The failure of a function that uses another device than the one that it is given.

    `where` says which: "the model ran on cuda:0".
    """
    happened = f"with device={device!r}, {where}"
    expected = f"{device}, as asked"
    return Failed(happened, expected, line, misconception)


def wrong_device_mistake(device: str, used: Sequence[str]) -> str | None:
    """The misconception behind the use of these devices instead of the one asked for."""
    on_gpus = all(name.startswith("cuda") for name in used)
    if device == "cpu" and on_gpus:
        return "hard-coded-cuda"
    if device == "cuda:1" and list(used) == ["cuda:0"]:
        return "device-index-dropped"
    return None


def expect_mode_kept(what: str, was_training: bool, is_training: bool | None) -> None:
    """Require that a module is in the mode from before. Raises Failed.

    `what` is the module in words; None is the mode of a module that is gone.
    """
    if is_training is not was_training:
        happened = f"{what} was put into {mode_in_words(is_training)} mode"
        raise Failed(happened, f"{mode_in_words(was_training)} mode, as before")


def mode_in_words(training: bool | None) -> str:
    """The name of a module's mode: "training" or "evaluation"; "no" for None."""
    if training is None:
        return "no"
    if training:
        return "training"
    return "evaluation"


def raised_instead(
    raised: Raised, what: str, expected: str = "no error", misconception: str | None = None
) -> Failed:
    """The failure of a call that raised: "WHAT raised ValueError: …", at the line of the error."""
    happened = f"{what} raised {raised.short}"
    return Failed(happened, expected, raised.line, misconception)


def expect_float(kind: str, is_float: bool, what: str = "it returned ") -> None:
    """Require a Python float. Raises Failed, for a tensor with the name of that mistake."""
    if not is_float:
        key = None
        if kind in ("Tensor", "Parameter"):
            key = "returned-tensor"
        happened = f"{what}{with_article(kind)}"
        raise Failed(happened, "a Python float", misconception=key)


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


def compare_cases(
    seen: Seen, wanted: Seen, *probes: Probe[Cases[T]], names: Iterable[str] = ()
) -> Iterator[tuple[str, T, T]]:
    """Yield the scenarios of these probes as `scenario_pairs` does.

    Raises KeyError for a scenario that was not seen, and what `seen[probe]` raises.
    """
    return scenario_pairs(seen.cases(*probes), wanted.cases(*probes), *names)
