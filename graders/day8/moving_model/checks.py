"""Is the whole model where it should be, still the same one, and are its devices told truly?"""

from __future__ import annotations

from typing import Any

from graders.checks.scenarios import Case, cases, runs_in_all, said
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.moving_model.functions import move, tell

# ---- move_model ------------------------------------------------------------------------------------------------------

runs_in_all(move, points=0.5)


def _left(devices: dict[str, str], wanted: str) -> list[str]:
    return [name for name, device in devices.items() if device != wanted]


@move.check(points=1)
def moves_every_parameter(seen: Seen, wanted: Seen) -> None:
    """Every parameter is on the device afterwards."""
    case = cases(seen)["from_the_cpu"]
    left = _left(case["parameters"], case["wanted_device"])
    if not left:
        return
    none_moved = len(left) == len(case["parameters"])
    thrown = case["copies"] and none_moved
    raise Failed(
        f"`{left[0]}` is on {case['parameters'][left[0]]}"
        + (f", though {case['copies']} copies were made on the way" if thrown else ""),
        f"every parameter on {case['wanted_device']}",
        case["line"] if thrown else None,
        "result-thrown-away" if thrown else "model-not-moved" if none_moved else None,
    )


@move.check(points=1, needs=("runs", "moves_every_parameter"))
def returns_the_same_model(seen: Seen, wanted: Seen) -> None:
    """It returns the model it was given, not another one."""
    for name, case in cases(seen).items():
        if case["same"]:
            continue
        if case["copied"]:
            raise Failed(
                f"scenario `{name}` got another {case['class']} back",
                "the same object that was passed in",
                case["line"],
                "model-copied",
            )
        raise Failed(f"scenario `{name}` got {called(case['class'])} back", "the same object that was passed in")


@move.check(points=1, needs=("runs", "moves_every_parameter"))
def moves_every_buffer(seen: Seen, wanted: Seen) -> None:
    """Every buffer is on the device afterwards, those outside `state_dict()` too."""
    case = cases(seen)["from_the_cpu"]
    left = _left(case["buffers"], case["wanted_device"])
    if left:
        raise Failed(
            f"the buffer `{left[0]}` is on {case['buffers'][left[0]]}",
            f"every buffer on {case['wanted_device']}",
            misconception="state-dict-is-not-all" if left == ["palette"] else "buffers-forgotten",
        )


@move.check(points=0.5, needs=("runs", "moves_every_parameter"))
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """The model ends up on the very device passed in, whatever this machine has."""
    found = cases(seen)
    for name in ("stays_on_the_cpu", "back_to_the_cpu", "to_the_second_gpu", "already_there"):
        case = found[name]
        devices = case["parameters"] | case["buffers"]
        left = _left(devices, case["wanted_device"])
        if not left:
            continue
        misconception = None
        if set(left) <= set(case["buffers"]):
            misconception = "state-dict-is-not-all" if left == ["palette"] else "buffers-forgotten"
        elif name == "stays_on_the_cpu":
            misconception = "hard-coded-cuda"
        elif name == "to_the_second_gpu" and devices[left[0]] == "cuda:0":
            misconception = "device-index-dropped"
        raise Failed(
            f"with device={case['wanted_device']!r}, `{left[0]}` ended up on {devices[left[0]]}",
            f"{case['wanted_device']}, as asked",
            case["line"],
            misconception,
        )


@move.check(points=0.5, needs=("runs", "returns_the_same_model", "moves_every_parameter"))
def keeps_the_optimizer_working(seen: Seen, wanted: Seen) -> None:
    """An optimizer that was built before still updates the model."""
    for name, case in cases(seen).items():
        if case["replaced"]:
            raise Failed(
                f"after the move, `{case['replaced'][0]}` is no longer the parameter an optimizer that was built "
                f"before holds, so its step() would not change it (scenario `{name}`)",
                "the same parameter objects as before",
                case["line"],
                "parameters-replaced",
            )


@move.check(points=0.5, needs=("runs", "moves_every_parameter"))
def changes_nothing_else(seen: Seen, wanted: Seen) -> None:
    """Values, training mode, shared weights and the settings of torch stay as they were."""
    found = cases(seen)
    for name, right in cases(wanted).items():
        case = found[name]
        for module, mode in right["modes"].items():
            if case["modes"].get(module) != mode:
                shown = {True: "training", False: "evaluation", None: "no"}[case["modes"].get(module)]
                mode_wanted = "training" if mode else "evaluation"
                raise Failed(f"afterwards {module} is in {shown} mode (scenario `{name}`)", f"{mode_wanted} mode")
        for tensor, value in right["values"].items():
            if case["values"].get(tensor) != value:
                raise Failed(f"{_changed(tensor, case['values'].get(tensor), value)} (scenario `{name}`)", "no change")
        if case["learnable"] != right["learnable"]:
            raise Failed(f"`requires_grad` of a parameter changed (scenario `{name}`)", "no change")
        if case["tied"] != right["tied"]:
            raise Failed(
                f"two layers that shared one weight have two now (scenario `{name}`)",
                "one shared weight",
                misconception="parameters-replaced",
            )
        if case["settings"]:
            raise Failed(f"it changed {case['settings'][0]} of torch (scenario `{name}`)", "no change")


def _changed(tensor: str, found: list[Any] | None, right: list[Any]) -> str:
    if found is None or found[2] is None:
        return f"`{tensor}` has no values any more"
    if found[0] != right[0]:
        return f"`{tensor}` became {found[0]}, from {right[0]}"
    return f"the values of `{tensor}` changed"


# ---- parameter_devices -----------------------------------------------------------------------------------------------

# What a function makes of a model with nothing in it is told last: more instructive mistakes lead there too.
TOLD = ("all_in_one_place", "spread_out")
runs_in_all(tell, points=0.5, scenarios=TOLD)


def _told(seen: Seen) -> dict[str, Case]:
    found = cases(seen)
    for case in found.values():
        if not case.get("is_dict", True):
            raise Failed(f"it returned {called(case['class'])}", "a dict from names to devices")
    return {name: found[name] for name in TOLD}


@tell.check(points=1)
def names_every_parameter(seen: Seen, wanted: Seen) -> None:
    """It names every parameter by its qualified name, and nothing that is not in the model."""
    for case in _told(seen).values():
        strangers = [name for name in case["told"] if name not in case["actual"]]
        if strangers:
            right = max(case["actual"], key=lambda name: name.count("."))
            raise Failed(f"it names `{strangers[0]}`, which this model does not have", f"names such as `{right}`")
        for names in case["parameters"]:
            if not any(name in case["told"] for name in names):
                raise Failed(f"the parameter `{names[0]}` is missing", "every parameter of the model")


@tell.check(points=1)
def names_every_buffer(seen: Seen, wanted: Seen) -> None:
    """It names every buffer as well."""
    for case in _told(seen).values():
        missing = [name for name in case["buffers"] if name not in case["told"]]
        if missing:
            key = None
            if not any(name in case["saved"] for name in missing):
                key = "state-dict-is-not-all"
            elif missing == case["buffers"]:
                key = "buffers-forgotten"
            raise Failed(f"the buffer `{missing[0]}` is missing", "every buffer of the model", misconception=key)


@tell.check(points=0.5, needs=("runs", "names_every_parameter"))
def tells_the_device(seen: Seen, wanted: Seen) -> None:
    """For each it gives the torch.device where it is, index included, and leaves it there."""
    for scenario, case in _told(seen).items():
        for name in case["no_device"]:
            kind = case["classes"][name]
            raise Failed(
                f"`{name}` is said to be on {_quoted(case['told'][name], kind)}, {called(kind)}",
                "a torch.device",
                misconception="string-for-device" if kind == "str" else None,
            )
        for name, told in case["told"].items():
            actual = case["actual"].get(name)
            if actual is None or told.removesuffix(":0") == actual.removesuffix(":0"):
                continue
            happened = f"`{name}` is said to be on {told} (scenario `{scenario}`)"
            raise Failed(happened, actual, misconception=_why(case, told, actual))
        if case["moved"] or case["settings"]:
            what = f"`{case['moved'][0]}` is somewhere else" if case["moved"] else f"{case['settings'][0]} is changed"
            raise Failed(f"after the call {what} (scenario `{scenario}`)", "a look, and nothing changed")
    empty = cases(seen)["nothing_to_tell"]
    if "raised" in empty:
        happened = f"a model without parameters and buffers raised {said(empty['raised'])}"
        raise Failed(happened, "an empty dict", empty["raised"]["line"])
    if empty["told"]:
        raise Failed(f"of a model without any it names `{next(iter(empty['told']))}`", "an empty dict")


def _quoted(told: str, kind: str) -> str:
    return repr(told) if kind == "str" else told


def _why(case: Case, told: str, actual: str) -> str | None:
    if len(set(case["told"].values())) == 1 and len(set(case["actual"].values())) > 1:
        return "first-tensor-only"
    dropped = actual != "cpu" and told.removesuffix(":0") == actual.partition(":")[0]
    return "device-index-dropped" if dropped else None
