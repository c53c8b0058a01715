"""01: choosing the device."""

from __future__ import annotations

import contextlib
import random
import types
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from virtual_cuda.hooks import Patch, patch, patch_imported_names

from gpudojo.grading.call import (
    Call,
    StudentRaised,
    call_and_restore_settings,
    torch,
    try_inputs,
    try_scenarios,
)
from gpudojo.grading.checks import expect_settings_kept, is_same_device, raised_instead, runs
from gpudojo.grading.load import load_again
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Exercise, Failed, Lines, Probe, Seen, with_article

exercise = Exercise(
    "01_checking_device",
    "Which device does this machine have?",
    points=8,
    reading=("tensor_attributes.html", "notes/cuda.html", "notes/mps.html"),
)
select = exercise.function("select_device")

PREFERENCES = ("cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "mps")
OTHER_KIND = "another kind"  # the scenario of kinds that no machine has
# The kind that the virtual device is to torch's C++: whether it can make tensors depends on that.
KIND_OF_VIRTUAL_DEVICE = "lazy"


class DeviceAnswer(Case, frozen=True):
    """What one call returned."""

    kind: str
    text: str
    is_device: bool
    settings: list[str]
    prefer: str  # where a scenario has several, else ""


def _call_select_device(call: Call, *prefer: Any) -> DeviceAnswer:
    """Call the student's function and describe its answer. Raises StudentRaised."""
    value, settings = call_and_restore_settings(call, *prefer)
    return DeviceAnswer(
        kind=type(value).__name__,
        text=str(value),
        is_device=isinstance(value, torch.device),
        settings=settings,
        prefer="",
    )


def _ask_all(call: Call, number: int) -> Cases[DeviceAnswer]:
    """The answers to all preferences on one machine, by scenario; `number` is the machine's.

    `call.function` may be replaced by that of the file, loaded again. Raises StudentRaised for an
    error without a preference, and where the function takes no preference at all.
    """
    _load_file_again(call)
    drawn = random.Random(call.seed)
    found = Cases({"best": _call_select_device(call)})
    asked: dict[str, Any] = {"prefer None": None}
    for prefer in PREFERENCES:
        asked[f"prefer {prefer}"] = prefer
        asked[f"prefer device {prefer}"] = torch.device(prefer)
    # The name of no device has these letters only.
    asked["nonsense"] = "".join(drawn.choices("bdfgjk", k=7))
    for _ in range(drawn.randrange(4)):  # so that to count calls does not tell the machine
        _call_select_device(call)
    found.add(try_inputs(_call_select_device, call, asked, order_seed=call.seed))
    best = found["best"].text
    found.add(try_scenarios({OTHER_KIND: lambda: _ask_for_other_kinds(call, number, best)}))
    refused = found.errors.get("prefer None")
    if refused is not None and refused.type == "TypeError" and refused.line is None:
        raise StudentRaised(refused)
    return found


def _ask_for_other_kinds(call: Call, number: int, best: str) -> DeviceAnswer:
    """Call the student's function with kinds of devices that are on no machine.

    Each kind is asked for on one of the four machines, of which this one has a `number`. Describes
    the first answer that is another than `best`, else the last one. Raises StudentRaised, with the
    kind in its message.
    """
    answer = DeviceAnswer("", "", False, [], "")
    for kind in _other_kinds()[number::4]:
        try:
            answer = _call_select_device(call, kind)
        except StudentRaised as error:
            message = f"{error.evidence.message} (prefer={kind!r})"
            raise error.with_facts(message=message) from None
        answer = msgspec.structs.replace(answer, prefer=kind)
        if answer.text != best:
            break
    return answer


@lru_cache(maxsize=1)
def _other_kinds() -> tuple[str, ...]:
    """The kinds of devices that torch knows, and on which it cannot make a tensor here.

    Those of `PREFERENCES` are left out, the virtual device's own, and kinds that torch warns of.
    """
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    kinds = []
    warned_always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once, and the answer is another one then
    try:
        for name in DeviceType.__members__:
            kind = name.lower()
            if kind in PREFERENCES or kind == KIND_OF_VIRTUAL_DEVICE:
                continue
            if _is_known(kind) and not _can_make_tensor(kind):
                kinds.append(kind)
    finally:
        torch.set_warn_always(warned_always)
    return tuple(sorted(kinds, reverse=True))  # `xpu` first, which a student may have heard of


def _is_known(kind: str) -> bool:
    """True for a name that torch makes a device of, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            torch.device(kind)
        except (RuntimeError, UserWarning):
            return False
    return True


def _can_make_tensor(kind: str) -> bool:
    """True where torch can make a tensor on this kind of device."""
    try:
        torch.empty(0, device=kind)
    except Exception:  # each backend that is missing has an error of its own
        return False
    return True


def _load_file_again(call: Call) -> None:
    """Load the student's file again on this machine, and replace `call.function`.

    That is done only for a function that may remember an answer: its file was imported on another
    machine.
    """
    if _may_remember(call.function):
        names = load_again(call.submission).names
        again = names.get(select.name)
        if callable(again):
            call.function = again


def _may_remember(function: Any) -> bool:
    """True if a function may use an answer from before.

    It may have kept one in a constant, a default argument or a cache; so may a function that it
    calls.
    """
    waiting = [function]
    seen = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type)):
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not isinstance(value, types.FunctionType):
            return True
        defaults = value.__defaults__ or ()
        if any(default is not None for default in defaults):
            return True
        if value.__module__ == function.__module__:  # not in libraries
            waiting += _values_used_by(value)
    return False


def _values_used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function uses of the functions around it and of its module.

    Variables around it that have no value yet are left out.
    """
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # without a value
            yield cell.cell_contents
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names_in(code: types.CodeType) -> set[str]:
    """The names that some code uses, functions inside of it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


@select.probe(machine="one gpu")
def one_gpu(call: Call) -> Cases[DeviceAnswer]:
    """The answers beside one GPU; the last one where MPS is available, too.

    Names of torch are replaced for that, and put back. Raises StudentRaised for an error without a
    preference, and where the function takes no preference at all.
    """
    found = _ask_all(call, 0)
    # No machine has both CUDA and MPS, but the order in which a student asks is part of the
    # contract.
    changes: list[Patch] = [(torch.mps, "device_count", lambda: 1)]
    for owner in (torch.backends.mps, torch.mps):
        if hasattr(owner, "is_available"):
            changes.append((owner, "is_available", lambda: True))
    with contextlib.ExitStack() as undo:
        patch(changes, undo)
        return found.add(_ask_for_best(call, "best of both"))


def _ask_for_best(call: Call, scenario: str) -> Cases[DeviceAnswer]:
    """The answer without a preference, as a scenario. `call.function` may be replaced.

    Raises StudentRaised for an error about a closed device or memory.
    """
    _load_file_again(call)
    return try_scenarios({scenario: lambda: _call_select_device(call)})


@select.probe(machine="two gpus")
def two_gpus(call: Call) -> Cases[DeviceAnswer]:
    return _ask_all(call, 1)


@select.probe(machine="mac")
def mac(call: Call) -> Cases[DeviceAnswer]:
    return _ask_all(call, 2)


@select.probe(machine="laptop")
def laptop(call: Call) -> Cases[DeviceAnswer]:
    """The answers without a GPU, by a torch that was built with CUDA.

    The last one is asked again where torch seems to be built for no GPU. Names of torch are
    replaced for that, and put back. Raises StudentRaised for an error without a preference, and
    where the function takes no preference at all.
    """
    with contextlib.ExitStack() as undo:
        # This torch was built with CUDA, but the machine has no GPU.
        patch([(torch.version, "cuda", "12.8")], undo)
        found = _ask_all(call, 3)
        # If this makes a wrong answer right, it was an answer to what torch was built for.
        changes: list[Patch] = [
            (torch.version, "cuda", None),
            (torch.backends.cuda, "is_built", lambda: False),
            (torch.backends.mps, "is_built", lambda: False),
            (torch.accelerator, "current_accelerator", lambda check_available=False: None),
        ]
        patch(changes, undo)
        names = getattr(call.function, "__globals__", {})
        undo.enter_context(patch_imported_names(names))
        return found.add(_ask_for_best(call, "best unbuilt"))


Machine = Probe[Cases[DeviceAnswer]]
MACHINES: dict[Machine, str] = {
    one_gpu: "one GPU",
    two_gpus: "two GPUs",
    mac: "an Apple GPU",
    laptop: "no GPU",
}

runs(select, scenarios=())


@select.check(points=0)
def depends_on_the_machine(seen: Seen, wanted: Seen) -> None:
    """The device depends on the machine and on what is preferred."""
    # On some machine any device is the right one, so the other checks need this one.
    answers: set[str] = set()
    for machine in MACHINES:
        for answered in seen[machine].values():
            answers.add(answered.text)
    if len(answers) <= 1:
        answer = "nothing"
        if answers:
            answer = answers.pop()
        key = None
        if answer.startswith("cuda"):
            key = "hard-coded-cuda"
        elif answer.startswith("cpu"):
            key = "never-the-gpu"
        happened = f"it returned {answer} on every machine, whatever was preferred"
        expected = "the best device of the machine, or the preferred one"
        raise Failed(happened, expected, misconception=key)


CHOSEN = ("runs", "depends_on_the_machine")


@select.check(points=1, needs=CHOSEN)
def returns_a_device(seen: Seen, wanted: Seen) -> None:
    """It returns a `torch.device`, not a string, and changes no setting of torch."""
    for machine, words in MACHINES.items():
        found = seen[machine]
        for name in wanted[machine]:
            if name == "best unbuilt" or name in found.errors:
                continue
            answer = found[name]
            if not answer.is_device:
                raise _no_device(words, name, answer)
            expect_settings_kept(answer.settings, name)


def _no_device(machine: str, name: str, answer: DeviceAnswer) -> Failed:
    """The failure of an answer that is no torch.device; `machine` is that one's GPUs in words.

    It is returned, not raised. `name` is the scenario.
    """
    asked = ""
    if name.startswith("prefer "):
        asked = f" for {name.replace('prefer ', 'prefer=')}"
    value = with_article(answer.kind)
    key = None
    if answer.kind == "str":
        value = f"{answer.text!r}, a str"
        key = "string-for-device"
    happened = f"on a machine with {machine} it returned {value}{asked}"
    return Failed(happened, "a torch.device", misconception=key)


def _best_device(seen: Seen, machine: Machine, name: str = "best") -> str:
    """The device that was chosen where none was preferred; "an error" after an error.

    Raises ScenarioRaised for a machine on which the student's code raised outside of scenarios.
    """
    answer = seen[machine].get(name)
    if answer is None:
        return "an error"
    text: str = answer.text
    return text


def _expect_best_on(machine: Machine, seen: Seen, wanted: Seen) -> None:
    """Raise Failed unless the best device of a machine is chosen there.

    Raises ScenarioRaised for a machine on which the student's code raised outside of scenarios.
    """
    why = _why_not_the_best(machine, seen)
    answer = _best_device(seen, machine)
    right = _best_device(wanted, machine)
    if not is_same_device(answer, right):
        happened = f"on a machine with {MACHINES[machine]} it chose {answer}"
        raise Failed(happened, right, misconception=why)


def _why_not_the_best(machine: Machine, seen: Seen) -> str | None:
    """The misconception behind a device that is not the best one, where none was preferred.

    What is returned is its key, or None if none is known. Raises ScenarioRaised for a machine on
    which the student's code raised outside of scenarios.
    """
    chosen = [_best_device(seen, each) for each in MACHINES]
    if set(chosen) == {"cpu"}:
        return "never-the-gpu"
    if machine is laptop:
        unbuilt = _best_device(seen, machine, "best unbuilt")
        if unbuilt == "cpu":
            return "built-is-not-available"
    if machine in (mac, laptop):
        device = _best_device(seen, machine)
        if device.startswith("cuda"):
            return "hard-coded-cuda"
    return None


@select.check(points=1.5, needs=CHOSEN)
def takes_the_gpu(seen: Seen, wanted: Seen) -> None:
    """If there is a CUDA GPU, it is chosen."""
    _expect_best_on(one_gpu, seen, wanted)
    _expect_best_on(two_gpus, seen, wanted)
    scenario = "best of both"
    both = _best_device(seen, one_gpu, scenario)
    right = _best_device(wanted, one_gpu, scenario)
    if not is_same_device(both, right):
        seen.about(one_gpu.name, scenario)
        happened = f"where both CUDA and MPS are available, it chose {both}"
        kind, *_ = both.split(":")
        at = (f'"{kind}"', "return")
        raise Failed(happened, "CUDA, else MPS, else the CPU", at=at)


@select.check(points=1, needs=CHOSEN)
def takes_apples_gpu(seen: Seen, wanted: Seen) -> None:
    """On a Mac without CUDA, MPS is chosen."""
    _expect_best_on(mac, seen, wanted)


@select.check(points=1, needs=CHOSEN)
def falls_back_to_the_cpu(seen: Seen, wanted: Seen) -> None:
    """Without a GPU the CPU is chosen, even if torch was built with CUDA."""
    _expect_best_on(laptop, seen, wanted)


class Preference(NamedTuple):
    """One preference on one machine, and the right answer to it."""

    machine: Machine
    scenario: str
    device: str  # that is preferred, or "None"
    right: str
    present: bool  # whether the machine has that device

    @property
    def is_object(self) -> bool:
        """True if the preference is a torch.device, and no text."""
        return "device " in self.scenario

    def in_words(self) -> str:
        """The machine and the argument, for people."""
        argument = repr(self.device)
        if self.device == "None":
            argument = "None"
        elif self.is_object:
            argument = f"torch.device({self.device!r})"
        return f"on a machine with {MACHINES[self.machine]}, prefer={argument}"

    def is_met_by(self, answer: str) -> bool:
        """True for the right answer. `cuda` is as good as `cuda:0`, but not for `cuda:1`."""
        if self.present and self.device.endswith(":1"):
            return answer == self.right
        return is_same_device(answer, self.right)


def _all_preferences(wanted: Seen) -> Iterator[Preference]:
    """Yield every preference that the reference tried, on every machine."""
    for machine in MACHINES:
        for scenario, answer in wanted[machine].items():
            if not scenario.startswith("prefer "):
                continue
            right = answer.text
            device = scenario.removeprefix("prefer ").removeprefix("device ")
            present = device == "None" or is_same_device(right, device)
            yield Preference(machine, scenario, device, right, present)


def _expect_answer_to(preference: Preference, seen: Seen) -> None:
    """Raise Failed unless a preference got the right answer.

    Notes in `seen` which scenario the failure is about. Raises ScenarioRaised for a machine on
    which the student's code raised.
    """
    found = seen[preference.machine]
    scenario = preference.scenario
    expected = preference.right
    if not preference.present:
        expected = f"{expected}, the best device of this machine"
    raised = found.errors.get(scenario)
    if raised is not None:
        raise raised_instead(raised, preference.in_words(), expected)
    answer = found[scenario].text
    if preference.is_met_by(answer):
        return
    happened = f"{preference.in_words()} returned {answer}"
    key = _why_another_device(preference, answer, seen)
    if key == "device-index-dropped":
        lines = _lines_of_scenario_alone(preference, seen)
        raise Failed(happened, expected, None, key, ran=lines)
    seen.about(preference.machine.name, scenario)
    at: tuple[str, ...] = ()
    if preference.is_object:  # which is equal to no text
        at = (f'== "{preference.device.partition(":")[0]}"',)
    if key == "index-not-checked":
        at = ("device_count(",)
    raise Failed(happened, expected, None, key, at)


def _lines_of_scenario_alone(preference: Preference, seen: Seen) -> Lines | None:
    """The lines that only this call has executed, and not one without a preference.

    None if there are none. The failure is about this scenario from now on.
    """
    machine = preference.machine.name
    seen.about(machine, "best")
    usual = seen.ran or ()
    seen.about(machine, preference.scenario)
    own = [lines for lines in seen.ran or () if lines not in usual]
    return tuple(own) or None


def _why_another_device(preference: Preference, answer: str, seen: Seen) -> str | None:
    """The misconception behind a wrong answer to a preference; None if none is known.

    Where the preferred device is present, it was expected; otherwise the best one of the machine.
    Raises ScenarioRaised for a machine on which the student's code raised outside of scenarios.
    """
    machine = preference.machine
    device = preference.device
    if device == "None":
        return _why_not_the_best(machine, seen)
    if preference.present:
        return _name_dropped_index(device, answer, seen[machine].get("prefer cuda:0"))
    if is_same_device(answer, _best_device(seen, machine)):
        return _why_not_the_best(machine, seen)
    if machine is one_gpu and answer == device and device.startswith("cuda"):
        # Only if it knows at all that a device may be missing.
        other = seen[machine].get("prefer mps")
        if other and other.text != "mps":
            return "index-not-checked"
        return None
    if machine is laptop and is_same_device(answer, device):
        # On machines with other GPUs it knew that this one is missing. Here torch was built for it.
        return "built-is-not-available"
    return None


def _name_dropped_index(device: str, answer: str, first: DeviceAnswer | None) -> str | None:
    """The name of the mistake that `cuda:1` became `cuda`; None for another answer.

    `first` is the answer to `cuda:0`. Where that has its index, indices are not dropped.
    """
    if device != "cuda:1" or not is_same_device(answer, "cuda"):
        return None
    if first is not None and first.text == "cuda:0":
        return None
    return "device-index-dropped"


@select.check(points=1.5, needs=CHOSEN)
def keeps_what_is_preferred(seen: Seen, wanted: Seen) -> None:
    """If this machine has the preferred device, that device is returned, with its index."""
    for preference in _all_preferences(wanted):
        if preference.present:
            _expect_answer_to(preference, seen)


@select.check(points=1, needs=CHOSEN)
def replaces_what_is_absent(seen: Seen, wanted: Seen) -> None:
    """If this machine lacks the preferred device, the best one is returned, without an error."""
    for preference in _all_preferences(wanted):
        if not preference.present:
            _expect_answer_to(preference, seen)
    for machine in MACHINES:
        _expect_best_for_other_kinds(machine, seen, _best_device(wanted, machine))


def _expect_best_for_other_kinds(machine: Machine, seen: Seen, best: str) -> None:
    """Raise Failed unless kinds of devices that no machine has got the best one of this machine.

    Notes in `seen` which scenario the failure is about. Raises ScenarioRaised for a machine on
    which the student's code raised.
    """
    found = seen[machine]
    where = f"on a machine with {MACHINES[machine]}"
    expected = f"{best}, the best device of this machine"
    raised = found.errors.get(OTHER_KIND)
    if raised is not None:
        raise raised_instead(raised, f"{where}, another kind of device", expected)
    answer = found[OTHER_KIND]
    if not is_same_device(answer.text, best):
        seen.about(machine.name, OTHER_KIND)
        happened = f"{where}, prefer={answer.prefer!r} returned {answer.text}"
        raise Failed(happened, expected)


@select.check(points=1, needs=CHOSEN)
def lets_torch_refuse_nonsense(seen: Seen, wanted: Seen) -> None:
    """A name that is no device at all raises torch's own error."""
    for machine in MACHINES:
        right = wanted[machine].errors["nonsense"]
        expected = f"torch's own {right.type}"
        raised = seen[machine].errors.get("nonsense")
        if raised is None:
            answer = seen[machine]["nonsense"].text
            happened = f"with a name that is no device, it returned {answer}"
            raise Failed(happened, expected)
        if raised.type != right.type:
            raise raised_instead(raised, "with a name that is no device, it", expected)
