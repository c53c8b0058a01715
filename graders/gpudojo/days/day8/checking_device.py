"""01: choosing the device."""

from __future__ import annotations

import contextlib
import random
import types
from functools import partial
from typing import Any

from virtual_cuda.hooks import Patch, patch, patch_imported_names

from gpudojo.grading.call import (
    Call,
    StudentRaised,
    call_and_restore_settings,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import expect_settings_kept, runs
from gpudojo.grading.load import load_again
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Exercise, Failed, Probe, Seen, with_article

exercise = Exercise(
    "01_checking_device",
    "Which device does this machine have?",
    points=8,
    reading=("tensor_attributes.html", "notes/cuda.html", "notes/mps.html"),
)
select = exercise.function("select_device")
ASKING = ("is_available not called", "is_available(", "return")

PREFERENCES = ("cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "mps")


class DeviceAnswer(Case, frozen=True):
    """What one call returned."""

    kind: str
    text: str
    is_device: bool
    settings: list[str]


def _answer(call: Call, *prefer: Any) -> DeviceAnswer:
    value, changed = call_and_restore_settings(call, *prefer)
    return DeviceAnswer(type(value).__name__, str(value), isinstance(value, torch.device), changed)


def _answers(call: Call) -> Cases[DeviceAnswer]:
    """The answers on one machine. A function that cannot be called with a preference at all ends the probe."""
    _load_again(call)
    drawn = random.Random(call.seed)
    found = Cases({"best": _answer(call)})
    asked: dict[str, Any] = {"prefer None": None}
    for prefer in PREFERENCES:
        asked |= {f"prefer {prefer}": prefer, f"prefer device {prefer}": torch.device(prefer)}
    asked["nonsense"] = "".join(
        drawn.choices("bdfgjk", k=7)
    )  # the name of no device has these letters only
    for _ in range(drawn.randrange(4)):  # so that to count calls does not tell the machine
        _answer(call)
    found.add(
        try_scenarios(
            {name: partial(_answer, call, prefer) for name, prefer in asked.items()}, call.seed
        )
    )
    refused = found.errors.get("prefer None")
    if refused is not None and refused.type == "TypeError" and refused.line is None:
        raise StudentRaised(refused)
    return found


def _load_again(call: Call) -> None:
    """A file that asked torch when it was imported did so on another machine: run it again on this one."""
    if _remembers(call.function):
        again = load_again(call.submission).names.get(select.name)
        if callable(again):
            call.function = again


def _remembers(function: Any) -> bool:
    """Whether a function, or one that it calls, may use an earlier answer: a constant, a default, a cache."""
    waiting = [function]
    seen = set()
    while waiting:
        found = waiting.pop()
        if (
            isinstance(found, (types.ModuleType, types.BuiltinFunctionType, type))
            or id(found) in seen
        ):
            continue
        if not isinstance(found, types.FunctionType) or any(
            value is not None for value in found.__defaults__ or ()
        ):
            return True
        seen.add(id(found))
        if found.__module__ == function.__module__:  # not in libraries
            waiting += [cell.cell_contents for cell in found.__closure__ or ()]
            waiting += [
                found.__globals__[name]
                for name in _names_in(found.__code__)
                if name in found.__globals__
            ]
    return False


def _names_in(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


@select.probe(machine="one gpu")
def one_gpu(call: Call) -> Cases[DeviceAnswer]:
    found = _answers(call)
    # No machine has both CUDA and MPS, but the order in which a student asks is part of the contract.
    owners = [owner for owner in (torch.backends.mps, torch.mps) if hasattr(owner, "is_available")]
    changes: list[Patch] = [(owner, "is_available", lambda: True) for owner in owners]
    with contextlib.ExitStack() as undo:
        patch([*changes, (torch.mps, "device_count", lambda: 1)], undo)
        _load_again(call)
        return found.add(try_scenarios({"best of both": lambda: _answer(call)}))


@select.probe(machine="two gpus")
def two_gpus(call: Call) -> Cases[DeviceAnswer]:
    return _answers(call)


@select.probe(machine="mac")
def mac(call: Call) -> Cases[DeviceAnswer]:
    return _answers(call)


@select.probe(machine="laptop")
def laptop(call: Call) -> Cases[DeviceAnswer]:
    with contextlib.ExitStack() as undo:
        patch(
            [(torch.version, "cuda", "12.8")], undo
        )  # this torch was built with CUDA, but the machine has no GPU
        found = _answers(call)
        # If this makes a wrong answer right, it was an answer to what torch was built for.
        changes: list[Patch] = [(torch.version, "cuda", None)]
        changes += [
            (owner, "is_built", lambda: False)
            for owner in (torch.backends.cuda, torch.backends.mps)
        ]
        patch(
            [
                *changes,
                (torch.accelerator, "current_accelerator", lambda check_available=False: None),
            ],
            undo,
        )
        undo.enter_context(patch_imported_names(getattr(call.function, "__globals__", {})))
        _load_again(call)
        return found.add(try_scenarios({"best unbuilt": lambda: _answer(call)}))


Machine = Probe[Cases[DeviceAnswer]]
MACHINES: dict[Machine, str] = {
    one_gpu: "one GPU",
    two_gpus: "two GPUs",
    mac: "an Apple GPU",
    laptop: "no GPU",
}

runs(select, scenarios=())


def _same(answer: str, wanted: str) -> bool:
    """`cuda` and `cuda:0` are the same best device."""
    return answer.removesuffix(":0") == wanted.removesuffix(":0")


@select.check(points=0)
def depends_on_the_machine(seen: Seen, wanted: Seen) -> None:
    """The device depends on the machine and on what is preferred."""
    # On some machine any device is the right one, so the other checks need this one.
    answers = {answer.text for machine in MACHINES for answer in seen[machine].values()}
    if len(answers) <= 1:
        shown = answers.pop() if answers else "nothing"
        key = {"cpu": "never-the-gpu", "cuda": "hard-coded-cuda"}.get(shown.partition(":")[0])
        happened = f"it returned {shown} on every machine, whatever was preferred"
        raise Failed(
            happened, "the best device of the machine, or the preferred one", misconception=key
        )


CHOSEN = ("runs", "depends_on_the_machine")


@select.check(points=1, needs=CHOSEN)
def returns_a_device(seen: Seen, wanted: Seen) -> None:
    """It returns a `torch.device`, not a string, and changes no setting of torch."""
    for machine, words in MACHINES.items():
        for name in wanted[machine]:
            if name in seen[machine].errors or name == "best unbuilt":
                continue
            answer = seen[machine][name]
            if not answer.is_device:
                asked = (
                    f" for {name.replace('prefer ', 'prefer=')}"
                    if name.startswith("prefer ")
                    else ""
                )
                shown = with_article(answer.kind)
                key = None
                if answer.kind == "str":
                    shown = f"{answer.text!r}, a str"
                    key = "string-for-device"
                happened = f"on a machine with {words} it returned {shown}{asked}"
                raise Failed(happened, "a torch.device", misconception=key)
            expect_settings_kept(answer.settings, name)


def _best(seen: Seen, machine: Machine, name: str = "best") -> str:
    answer = seen[machine].get(name)
    return "an error" if answer is None else answer.text


def _best_on(machine: Machine, seen: Seen, wanted: Seen) -> None:
    why = _why_not_the_best(machine, seen)
    answer = _best(seen, machine)
    right = _best(wanted, machine)
    if not _same(answer, right):
        raise Failed(
            f"on a machine with {MACHINES[machine]} it chose {answer}", right, misconception=why
        )


def _why_not_the_best(machine: Machine, seen: Seen) -> str | None:
    """The misconception behind a device that is not the best one, where none was preferred."""
    if all(_best(seen, each) == "cpu" for each in MACHINES):
        return "never-the-gpu"
    if machine is laptop and _best(seen, machine, "best unbuilt") == "cpu":
        return "built-is-not-available"
    return (
        "hard-coded-cuda"
        if machine in (mac, laptop) and _best(seen, machine).startswith("cuda")
        else None
    )


@select.check(points=1.5, needs=CHOSEN)
def takes_the_gpu(seen: Seen, wanted: Seen) -> None:
    """If there is a CUDA GPU, it is chosen."""
    _best_on(one_gpu, seen, wanted)
    _best_on(two_gpus, seen, wanted)
    both = _best(seen, one_gpu, "best of both")
    right = _best(wanted, one_gpu, "best of both")
    if not _same(both, right):
        seen.about(one_gpu.name, "best of both")
        happened = f"where both CUDA and MPS are available, it chose {both}"
        raise Failed(
            happened, "CUDA, else MPS, else the CPU", at=(f'"{both.partition(":")[0]}"', "return")
        )


@select.check(points=1, needs=CHOSEN)
def takes_apples_gpu(seen: Seen, wanted: Seen) -> None:
    """On a Mac without CUDA, MPS is chosen."""
    _best_on(mac, seen, wanted)


@select.check(points=1, needs=CHOSEN)
def falls_back_to_the_cpu(seen: Seen, wanted: Seen) -> None:
    """Without a GPU the CPU is chosen, even if torch was built with CUDA."""
    _best_on(laptop, seen, wanted)


def _preferences(seen: Seen, wanted: Seen, present: bool) -> None:
    for machine, words in MACHINES.items():
        for name, right in wanted[machine].items():
            if not name.startswith("prefer "):
                continue
            asked = name.removeprefix("prefer ").removeprefix("device ")
            there = asked == "None" or _same(right.text, asked)
            if there is not present:
                continue
            expected = right.text if present else f"{right.text}, the best device of this machine"
            shown = (
                f"torch.device({asked!r})"
                if "device " in name
                else repr(None if asked == "None" else asked)
            )
            asking = f"on a machine with {words}, prefer={shown}"
            if (raised := seen[machine].errors.get(name)) is not None:
                raise Failed(f"{asking} raised {raised.short}", expected, raised.line)
            answer = seen[machine][name].text
            exactly = present and asked.endswith(":1")
            if answer == right.text or (not exactly and _same(answer, right.text)):
                continue
            mistaken = asked == "None" or (not present and _same(answer, _best(seen, machine)))
            why = (
                _why_not_the_best(machine, seen)
                if mistaken
                else _why(machine, asked, answer, present, seen)
            )
            seen.about(machine.name, "best")
            usual = seen.ran or ()
            seen.about(machine.name, name)
            # Better a line that only this call has executed than one that also runs where nothing is preferred.
            own = (
                tuple(each for each in seen.ran or () if each not in usual)
                if why == "device-index-dropped"
                else ()
            )
            at = ("device_count(",) if why == "index-not-checked" else ()
            raise Failed(f"{asking} returned {answer}", expected, None, why, at, own or None)


def _why(machine: Machine, asked: str, answer: str, present: bool, seen: Seen) -> str | None:
    kind = asked.partition(":")[0]
    if present and asked.endswith(":1") and _same(answer, kind):
        first = seen[machine].get("prefer cuda:0")
        return None if first is not None and first.text == "cuda:0" else "device-index-dropped"
    if not present and answer == asked and machine is one_gpu and kind == "cuda":
        asks = "prefer mps" in seen[machine] and seen[machine]["prefer mps"].text != "mps"
        return "index-not-checked" if asks else None
    # On machines with other GPUs it knew that this one is missing. Here torch was built for it.
    return (
        "built-is-not-available"
        if not present and machine is laptop and _same(answer, asked)
        else None
    )


@select.check(points=1.5, needs=CHOSEN)
def keeps_what_is_preferred(seen: Seen, wanted: Seen) -> None:
    """If this machine has the preferred device, that device is returned, with its index."""
    _preferences(seen, wanted, present=True)


@select.check(points=1, needs=CHOSEN)
def replaces_what_is_absent(seen: Seen, wanted: Seen) -> None:
    """If this machine lacks the preferred device, the best one is returned, without an error."""
    _preferences(seen, wanted, present=False)


@select.check(points=1, needs=CHOSEN)
def lets_torch_refuse_nonsense(seen: Seen, wanted: Seen) -> None:
    """A name that is no device at all raises torch's own error."""
    for machine in MACHINES:
        right = wanted[machine].errors["nonsense"]
        raised = seen[machine].errors.get("nonsense")
        if raised is None:
            answer = seen[machine]["nonsense"].text
            raise Failed(f"a name that is no device returned {answer}", f"torch's own {right.type}")
        if raised.type != right.type:
            happened = f"a name that is no device raised {raised.short}"
            raise Failed(happened, f"torch's own {right.type}", raised.line)
