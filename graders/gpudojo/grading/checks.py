"""Ready-made checks, and what checks of several exercises share.

A probe calls the student's function in some scenarios and describes what it did. For a simple
exercise a probe returns `Cases[Ran]`, made by `describe_call`, and the functions under "ready-made
checks" declare its checks, each under its own name: `runs`, `same_as_reference`, `on_the_device`
and others. Those of something that is not done hold for a function that does nothing, too, so they
need `same_as_reference`, or another check named by `after`, to pass first. `runs` and
`changes_no_settings` are for probes of any kind. For checks that an exercise declares itself there
is the decorator `check_scenarios`, which judges each scenario, and there are functions named
`expect_…`, which raise Failed. `docs/authoring.md` lists them all in tables, which
`python -m tools.list_checks` makes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from gpudojo.grading.call import (
    COPIED_BACK,
    Call,
    call_and_restore_settings,
    device_name,
)
from gpudojo.grading.call_values import Argument, describe_value
from gpudojo.grading.comparing import find_difference, has_array
from gpudojo.grading.differences import LONGEST_SHOWN, tell_apart
from gpudojo.grading.settings import setters_of
from gpudojo.model.declared import require_count, require_texts
from gpudojo.model.errors import BadEvidence, suggest_name
from gpudojo.model.evidence import (
    Array,
    CallStatus,
    Case,
    Cases,
    Fact,
    MissingEvidence,
    Raised,
    ScenarioRaised,
)
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

if TYPE_CHECKING:
    from virtual_cuda.ledger import Ledger, Record

T = TypeVar("T")

# ---- what a call did -----------------------------------------------------------------------------


class Ran(Case, frozen=True):
    """What one call returned, and what it cost."""

    kind: str  # the type's name
    value: Fact  # an Array for a tensor; numbers, texts, lists and dicts as they are; else None
    unknown: list[str]  # types of objects in it that are none of these
    device: str  # of all tensors in it: "cuda:0", or "cpu and cuda:0"
    wanted_device: str
    copies: int  # between host and device, either way
    waits: int  # of the host, to read from the device: `waits()` of the ledger
    line: int | None  # of the first copy or wait
    reads: int  # of values or tensors that came from the device to the host
    line_of_read: int | None  # of the first of these
    changed: list[str]  # arguments that hold other values than before: "argument 1"
    settings: list[str]  # settings of torch that it changed


def describe_call(call: Call, *args: Any, **kwargs: Any) -> Ran:
    """Call the student's function on the device and describe what it did.

    Settings of torch that it changed are put back, and so is what it changed in its arguments:
    another scenario may use them. Raises StudentRaised where the function raises,
    and what torch raises for a tensor whose values cannot be read.
    """
    arguments = [Argument(f"argument {number}", each) for number, each in enumerate(args, 1)]
    arguments += [Argument(f"the argument `{name}`", each) for name, each in kwargs.items()]
    try:
        value, settings = call_and_restore_settings(call, *args, **kwargs)
        changed = [argument.name for argument in arguments if argument.is_changed()]
        described = describe_value(value)
    finally:
        for argument in arguments:
            argument.put_back()
    copies = call.ledger.transfers()
    waits = call.ledger.waits()
    reads = _reads_of_host(call.ledger)
    return Ran(
        kind=type(value).__name__,
        value=described.value,
        unknown=described.unknown,
        device=" and ".join(sorted(set(described.devices))),
        wanted_device=device_name(call.device),
        copies=len(copies),
        waits=len(waits),
        line=call.first_line((*copies, *waits)),
        reads=len(reads),
        line_of_read=call.first_line(reads),
        changed=changed,
        settings=settings,
    )


def _reads_of_host(ledger: Ledger) -> list[Record]:
    """Records of everything that came from a device to the host, in the order of the ledger.

    A copy that waits is one record, that of its wait.
    """
    reads: list[Record] = [*ledger.waits()]
    for copy in ledger.transfers_to_host():
        if copy.non_blocking:
            reads.append(copy)
    return sorted(reads, key=lambda record: record.index)


# ---- ready-made checks ---------------------------------------------------------------------------

# Which tensor each of these mistakes is about.
_LEFT_BEHIND: Final = {
    "inputs-on-cpu": "inputs",
    "targets-on-cpu": "targets",
    "numpy-on-device-tensor": "tensor",
}


class DiagnosisFailed(Exception):
    """The author's `diagnose` raised an error of its own."""

    def __init__(self, raised: Raised, error: Exception) -> None:
        """Keep the error that was to be explained, and that of `diagnose`."""
        super().__init__(f"`diagnose` raised {type(error).__name__}: {error}")
        self.raised = raised


def runs(
    function: Function,
    *,
    scenarios: Iterable[str] | None = None,
    diagnose: Diagnose = lambda raised, seen: device_mistake(raised),
) -> None:
    """Declare the check `runs`, which the other checks need.

    It passes if the function raises no error in these scenarios, in this order; without
    `scenarios`, in any. Name the main scenarios and leave out edge cases, or try those in a probe
    declared with `edge=True`: an error there fails the checks that look at it, and no others.
    `diagnose(raised, seen)` returns the misconception behind any error of the student's function,
    or None; without it that is what `device_mistake` says. It is set in `function`, too. To return
    without an error earns no points. Raises ValueError for a `diagnose` with other parameters, and
    for `scenarios` that are no tuple of texts.
    """
    _require_parameters_of_diagnosis(function, diagnose)
    chosen = None
    if scenarios is not None:
        chosen = require_texts(f"runs({function.name})", "scenarios", scenarios)

    def diagnose_or_none(raised: Raised, seen: Seen) -> str | None:
        """The author's diagnosis; None where what it looks at is not there.

        Raises DiagnosisFailed for any other error in it.
        """
        try:
            return diagnose(raised, seen)
        except (ScenarioRaised, MissingEvidence, BadEvidence):
            # It looks at a probe that ended with an error, too, or at nothing.
            return None
        except Exception as error:  # whatever an author's function may raise
            raise DiagnosisFailed(raised, error).with_traceback(error.__traceback__) from error

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
            if name not in found:
                hint = suggest_name(name, expected)
                raise MissingEvidence(
                    f"there is no scenario {name!r} for runs({function.name}){hint}"
                )
            error = found[name]
            if error is not None:
                failed = failure_of_scenario(error, function.diagnose(error, seen))
                seen.about(None, name)
                raise failed

    runs.__doc__ = f"`{function.name}` runs in every scenario without an error."
    function.check(0, needs=())(runs)


def _require_parameters_of_diagnosis(function: Function, diagnose: Diagnose) -> None:
    """Raise ValueError for a diagnosis that cannot be called with an error and what was seen."""
    try:
        inspect.signature(diagnose).bind(None, None)
    except TypeError:
        name = getattr(diagnose, "__name__", "diagnose")
        raise ValueError(
            f"`diagnose` of runs({function.name}) gets two arguments, (raised, seen), and {name} "
            f"takes {inspect.signature(diagnose)}; "
            f"write: diagnose=lambda raised, seen: {name}(raised)"
        ) from None


def _expect_every_return(function: Function, seen: Seen) -> None:
    """Raise Failed for a function that is missing, or that a probe could not call to the end.

    Probes of edge cases are not looked at.
    """
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
    """The failure of a check because the whole file could not be run, with the mistake if known.

    It is returned, not raised.
    """
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
    """Yield every scenario of the probes that try several, with its error, or None without one.

    Probes of edge cases are left out. Raises what `seen[probe]` raises where a probe ended with an
    error.
    """
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
    """The failure of a check that looks at a scenario in which the student's function raised.

    It is returned, not raised. `misconception` is the key of a diagnosis, or None. Where something
    was copied just before the error, the line of that copy is shown instead of that of the error.
    """
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
    return Failed(happened, expected, line, misconception, about="runs", called_at=raised.source)


# What is expected instead of a mistake that can be made anywhere.
EXPECTED: Final = {
    "syntax-error": "a file that Python can read",
    "unknown-name": "a name that exists here",
    "not-implemented-left": "the function without this line of the stub",
    "file-without-memory": "a file that needs little memory when it is imported",
}


def general_mistake(raised: Raised) -> str | None:
    """The key of the mistake behind an error that is none of torch.

    Returns None for other errors.
    """
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
    """The misconception behind an error of torch about devices. Returns None for other errors.

    What is returned is its key.
    """
    message = raised.message
    if "numpy() on Tensor that requires grad" in message:
        return "numpy-with-a-gradient"
    if "does not require grad and does not have a grad_fn" in message:
        return "no-graph-behind-the-loss"
    if re.search("Expected a cuda device|must be cuda device", message):
        return "cuda-for-every-device"
    if not re.search("same device|Input type|to numpy", message):
        return None
    if "device type tensor to numpy" in message:
        return "numpy-on-device-tensor"
    if "got target is on cuda" in message or raised.on_cpu == "input":
        if COPIED_BACK in raised.copied:
            return "outputs-on-cpu"
        return "model-not-moved"
    if raised.on_cpu == "target" or re.search(
        "got target is on cpu|nll_loss|cross_entropy", message
    ):
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
    """Add a check to a function, whose name and claim are known only when it is declared.

    `claim` is the line that students read; `needs` are the checks that must pass first. `judge`
    gets what was seen of the student's function and of the reference, and raises Failed. Where a
    check has a function of its own, decorate that one with `@function.check`.
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
    scenarios; without it, these are all of the reference. Raises ValueError for `names` that are no
    tuple of texts.
    """
    chosen = require_texts(f"check_scenarios({function.name})", "names", names)

    def declare(judge: JudgeScenario[T]) -> JudgeScenario[T]:
        """Add the check to `function`, and return the decorated function unchanged."""

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
    names = [check.name for check in function.checks]
    if after is not None and after not in names:
        hint = suggest_name(after, names, "")
        raise ValueError(
            f"declare the check {after} of {function.name} first: "
            f"without it, doing nothing would pay{hint}"
        )

    needs = ("runs", after) if after else ("runs",)

    def declare(judge: JudgeScenario[Ran]) -> JudgeScenario[Ran]:
        judge.__doc__ = claim or judge.__doc__
        return check_scenarios(function, probe, points=points, needs=needs)(judge)

    return declare


def same_as_reference(function: Function, probe: Ready, points: float, claim: str = "") -> None:
    """Add a check: every scenario returns what the reference returns.

    That is plain data, in which floats may differ a little, or tensors with close values; tensors
    may lie in lists and dicts. It is judged only where the check `runs`, which must have been
    declared before, has passed. `claim` is the line that students read, instead of "It returns the
    right values.". What it cannot compare, such as a module, is an error of the exercise.
    """

    @_check_each_scenario(function, probe, points, claim)
    def same_as_reference(scenario: str, found: Ran, right: Ran) -> None:
        """It returns the right values."""
        where = f"scenario `{scenario}`: "
        _require_comparable(right)
        if found.kind != right.kind:
            expected = _result_in_words(right)
            happened = f"{where}it returned {_result_in_words(found)}"
            raise Failed(happened, expected)
        if found.unknown:
            happened = f"{where}in what it returned is {with_article(found.unknown[0])}"
            raise Failed(happened, "the reference's values")
        difference = find_difference(found.value, right.value)
        if difference is None:
            return
        if has_array(found.value) or has_array(right.value):
            raise Failed(where + difference.happened, difference.expected)
        happened = f"{where}it returned {found.value!r}"
        raise Failed(tell_apart(happened, found.value, right.value), repr(right.value))


def _require_comparable(right: Ran) -> None:
    """Raise ValueError for what a reference returned that is no plain data."""
    if right.unknown:
        kinds = ", ".join(sorted(set(right.unknown)))
        raise ValueError(
            f"what the reference returns holds {kinds}, which it cannot compare; "
            "describe it in a probe of your own"
        )


def _result_in_words(ran: Ran) -> str:
    """A number or a text with its type; for anything else, the name of the type."""
    if isinstance(ran.value, (bool, int, float, str)):
        return f"{ran.value!r:.{LONGEST_SHOWN}}, {with_article(ran.kind)}"
    return with_article(ran.kind)


def on_the_device(
    function: Function, probe: Ready, points: float, after: str = "same_as_reference"
) -> None:
    """Add a check: every scenario returns a tensor on the device, or some, all of them there.

    Raises ValueError if the check `after`, which must pass first, is not declared.
    """

    @_check_each_scenario(function, probe, points, after=after)
    def on_the_device(scenario: str, found: Ran, right: Ran) -> None:
        """The result is on the device."""
        if found.device == found.wanted_device:
            return
        result = with_article(found.kind)
        expected = f"a tensor on {found.wanted_device}"
        if isinstance(found.value, Array):
            result = f"a tensor on {found.device}"
        elif found.device:
            result += f" with tensors on {found.device}"
            expected = f"all tensors on {found.wanted_device}"
        raise Failed(f"scenario `{scenario}`: it returned {result}", expected)


def copies_at_most(
    function: Function, probe: Ready, points: float, copies: int, after: str = "same_as_reference"
) -> None:
    """Add a check: no scenario makes more copies between host and device, either way.

    Raises ValueError if the check `after`, which must pass first, is not declared, and if `copies`
    is no count.
    """
    require_count(f"copies_at_most({function.name})", "copies", copies)
    claim = f"It copies between host and device at most {count_in_words(copies)}."
    if copies == 0:
        claim = "It copies nothing between host and device."

    @_check_each_scenario(function, probe, points, claim, after)
    def copies_at_most(scenario: str, found: Ran, right: Ran) -> None:
        if found.copies > copies:
            times = count_in_words(found.copies)
            happened = f"scenario `{scenario}`: it copied between host and device {times}"
            raise Failed(happened, _limit_in_words(copies), found.line)


def waits_at_most(
    function: Function, probe: Ready, points: float, waits: int, after: str = "same_as_reference"
) -> None:
    """Add a check: in no scenario the CPU waits for the device more often.

    That is to read from it; copies to the device do not count. For "nothing comes back" there is
    `reads_nothing_back`. Raises ValueError if the check `after`, which must pass first, is not
    declared, and if `waits` is no count.
    """
    require_count(f"waits_at_most({function.name})", "waits", waits)
    claim = f"The CPU waits for the device at most {count_in_words(waits)}."
    if waits == 0:
        claim = "The CPU never waits for the device."

    @_check_each_scenario(function, probe, points, claim, after)
    def waits_at_most(scenario: str, found: Ran, right: Ran) -> None:
        if found.waits > waits:
            times = count_in_words(found.waits)
            happened = f"scenario `{scenario}`: the CPU waited for the device {times}"
            raise Failed(happened, _limit_in_words(waits), found.line)


def reads_nothing_back(
    function: Function, probe: Ready, points: float, after: str = "same_as_reference"
) -> None:
    """Add a check: in no scenario a value or a tensor comes from the device to the host.

    Copies to the device are allowed. Raises ValueError if the check `after`, which must pass first,
    is not declared.
    """

    @_check_each_scenario(function, probe, points, after=after)
    def reads_nothing_back(scenario: str, found: Ran, right: Ran) -> None:
        """Nothing comes back to the host: no value is read there, and no tensor is copied back."""
        if found.reads:
            times = count_in_words(found.reads)
            happened = f"scenario `{scenario}`: the host read from the device {times}"
            raise Failed(happened, "never", found.line_of_read, "trip-through-numpy")


def _limit_in_words(count: int) -> str:
    """What a check expects that allows so many: "never", "at most once"."""
    if count == 0:
        return "never"
    return f"at most {count_in_words(count)}"


def leaves_its_input_alone(
    function: Function, probe: Ready, points: float, after: str = "same_as_reference"
) -> None:
    """Add a check: no scenario changes what was passed in, or a setting of torch.

    That is tensors, lists, dicts and modules with the values in them.
    Raises ValueError if the check `after`, which must pass first, is not declared.
    """

    @_check_each_scenario(function, probe, points, after=after)
    def leaves_its_input_alone(scenario: str, found: Ran, right: Ran) -> None:
        """What is passed in and the settings of torch are not changed."""
        if found.changed:
            happened = f"scenario `{scenario}`: {found.changed[0]} has other values after the call"
            raise Failed(happened, "the values from before", None, "input-modified")
        expect_settings_kept(found.settings, scenario)


def changes_no_settings(
    function: Function,
    *probes: Probe[Cases[Any]],
    points: float,
    needs: tuple[str, ...] = ("runs", "same_as_reference"),
) -> None:
    """Add a check: no scenario of these probes changes a setting of torch.

    Their cases have `settings`, the names of those that were changed. It holds for a function that
    does nothing, too, so that it needs a check of something done: `needs` are the names of those.
    """

    def judge(seen: Seen, wanted: Seen) -> None:
        for scenario, case in seen.cases(*probes).items():
            expect_settings_kept(case.settings, scenario)

    claim = "It sets no seed and changes no setting of torch."
    declare_check(function, "changes_no_settings", claim, judge, points, needs)


# ---- for checks that an exercise declares itself -------------------------------------------------


def expect_settings_kept(settings: Sequence[str], scenario: str) -> None:
    """Raise Failed, which names the first of these settings of torch, if any was changed.

    Its hints are about settings, whatever else the check claims.
    """
    if settings:
        setting = settings[0]
        happened = f"it changed {setting} (scenario `{scenario}`)"
        raise Failed(happened, "no change", None, "setting-changed", setters_of(setting))


def is_same_device(one: str, other: str) -> bool:
    """True if two names are of the same device: `cuda` is `cuda:0`."""
    return one.removesuffix(":0") == other.removesuffix(":0")


def expect_device_used(
    device: str, used: Collection[str], what: str, line: int | None = None
) -> None:
    """Require that this device was used, and no other. Raises Failed.

    `what` begins the sentence that names the others: "the model ran on". If nothing was used, it
    raises nothing.
    """
    others = sorted(set(used) - {device})
    if others:
        where = f"{what} {' and '.join(sorted(used))}"
        raise failure_on_other_device(device, where, line, wrong_device_mistake(device, others))


def failure_on_other_device(
    device: str, where: str, line: int | None = None, misconception: str | None = None
) -> Failed:
    """The failure of a function that uses another device than the one that it is given.

    It is returned, not raised. `where` says which: "the model ran on cuda:0".
    """
    happened = f"with device={device!r}, {where}"
    expected = f"{device}, as asked"
    return Failed(happened, expected, line, misconception)


def wrong_device_mistake(device: str, used: Sequence[str]) -> str | None:
    """The misconception behind the use of these devices instead of the one asked for.

    What is returned is its key, or None where it is no known one.
    """
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
        # The line that did this, and not one that puts another mode back.
        at = ("train(", "eval(") if is_training else ("eval(", "train(")
        raise Failed(happened, f"{mode_in_words(was_training)} mode, as before", at=at)


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
    """The failure of a call that raised: "WHAT raised ValueError: …", at the line of the error.

    It is returned, not raised. `misconception` is a key.
    """
    happened = f"{what} raised {raised.short}"
    return Failed(happened, expected, raised.line, misconception)


def expect_float(kind: str, is_float: bool, what: str = "it returned ") -> None:
    """Require a Python float; raise Failed otherwise, for a tensor with the name of that mistake.

    `kind` is the name of the type that was returned. `what` begins the sentence.
    """
    if not is_float:
        key = None
        if kind in ("Tensor", "Parameter"):
            key = "returned-tensor"
        happened = f"{what}{with_article(kind)}"
        raise Failed(happened, "a Python float", None, key, () if key else ("return",))


def count_in_words(count: int) -> str:
    """A count in words: "never", "once", "3 times"."""
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def scenario_pairs(
    seen: Mapping[str, T], wanted: Mapping[str, T], *names: str
) -> Iterator[tuple[str, T, T]]:
    """Yield the name of each scenario, what was seen in it and what the reference did in it.

    Without `names`, these are all scenarios of the reference. Raises MissingEvidence for one that
    was not seen.
    """
    for name in names or wanted:
        yield name, seen[name], wanted[name]


def compare_cases(
    seen: Seen, wanted: Seen, *probes: Probe[Cases[T]], names: Iterable[str] = ()
) -> Iterator[tuple[str, T, T]]:
    """Yield the name of each scenario, what was seen in it and what the reference did in it.

    `names` chooses scenarios of these probes; without it, these are all of the reference. Raises
    ScenarioRaised where the student's function raised, MissingEvidence for a scenario that was not
    seen,
    and BadEvidence where what was recorded has another type.
    """
    return scenario_pairs(seen.cases(*probes), wanted.cases(*probes), *names)
