"""`parameter_devices`: where each parameter and each buffer is."""

from __future__ import annotations

import random
from typing import Any

from gpudojo.days.day8.moving_model_to_device.declaration import parameter_devices
from gpudojo.days.day8.moving_model_to_device.sprite_model import (
    ModelTensors,
    devices_of,
    make_model,
    tensors_of,
)
from gpudojo.grading.call import Call, call_and_restore_settings, nn, torch, try_inputs
from gpudojo.grading.checks import expect_settings_kept, is_same_device, runs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type, with_article

# ---- scenarios -----------------------------------------------------------------------------------


class Told(Case, frozen=True):
    """The answer for one model, beside where its tensors are."""

    kind: str
    is_dict: bool
    told: dict[str, str]  # devices by the names that the answer has
    kinds: dict[str, str]  # the types of these devices
    no_device: list[str]  # the names whose values are no torch.device
    parameters: list[list[str]]  # each by all of its names
    buffers: list[str]
    saved: list[str]  # buffers in `state_dict()`
    actual: dict[str, str]  # devices before the call, by name
    moved: list[str]  # names of tensors that are elsewhere afterwards
    settings: list[str]

    def missing_parameters(self) -> list[str]:
        """The first name of each parameter that the answer has under none of its names."""
        missing = []
        for names in self.parameters:
            if self.told.keys().isdisjoint(names):
                missing.append(names[0])
        return missing


def _call_parameter_devices(call: Call, model: Any) -> Told:
    """Call the student's function and describe the answer. Raises StudentRaised."""
    tensors = tensors_of(model)
    actual = devices_of(tensors.all)
    answer, settings = call_and_restore_settings(call, model)
    # What the answer says
    is_dict = isinstance(answer, dict)
    told: dict[str, str] = {}
    kinds: dict[str, str] = {}
    no_device = []
    for key, device in answer.items() if is_dict else ():
        name = str(key)
        told[name] = str(device)
        kinds[name] = type(device).__name__
        if not isinstance(device, torch.device):
            no_device.append(name)
    # Where the tensors are afterwards
    afterwards = devices_of(tensors_of(model).all)
    saved = model.state_dict()
    return Told(
        kind=type(answer).__name__,
        is_dict=is_dict,
        told=told,
        kinds=kinds,
        no_device=no_device,
        parameters=_names_of_parameters(tensors),
        buffers=list(tensors.buffers),
        saved=[name for name in tensors.buffers if name in saved],
        actual=actual,
        moved=[name for name, device in actual.items() if afterwards.get(name) != device],
        settings=settings,
    )


def _names_of_parameters(tensors: ModelTensors) -> list[list[str]]:
    """All names of each parameter: one that two layers share has two."""
    names: dict[int, list[str]] = {}
    for name, parameter in tensors.parameters.items():
        names.setdefault(id(parameter), []).append(name)
    return list(names.values())


@parameter_devices.probe
def told(call: Call) -> Cases[Told]:
    """A model on the device, and one without tensors."""
    models = {
        "all_in_one_place": make_model(call.seed).to(call.device),
        "nothing_to_tell": nn.ReLU(),
    }
    return try_inputs(_call_parameter_devices, call, models)


@parameter_devices.probe(machine="two gpus")
def told_of_two_gpus(call: Call) -> Cases[Told]:
    """A model with its palette on one of two GPUs, a part on the second, the rest on the CPU."""
    model = make_model(call.seed)
    drawn = random.Random(call.seed)
    part = drawn.choice(list(model.children()))
    part.to("cuda:1")
    gpu = drawn.choice(["cuda:0", "cuda:1"])
    model.palette = model.palette.to(gpu)
    return try_inputs(_call_parameter_devices, call, {"spread_out": model})


# ---- claims --------------------------------------------------------------------------------------

# A model with nothing in it comes last: more instructive mistakes show there too.
TOLD = ("all_in_one_place", "spread_out")
runs(parameter_devices, scenarios=TOLD)


def _require_dict_answers(seen: Seen) -> dict[str, Told]:
    """The answers by scenario. Raises Failed for one that is no dict."""
    cases = seen.cases(told, told_of_two_gpus)
    answers = {name: cases[name] for name in TOLD}
    for answer in answers.values():
        if not answer.is_dict:
            raise returned_other_type(answer.kind, "a dict from names to devices")
    return answers


@parameter_devices.check(points=1.5)
def names_every_parameter(seen: Seen, wanted: Seen) -> None:
    """Every parameter is included, by its qualified name, and nothing that is not in the model."""
    for case in _require_dict_answers(seen).values():
        for name in case.told:
            if name not in case.actual:
                raise _unknown_name(name, case)
        missing = case.missing_parameters()
        if missing:
            at: tuple[str, ...] = (".requires_grad", "recurse=")
            if len(missing) == len(case.parameters):
                at = ("return",)
            happened = f"the parameter `{missing[0]}` is missing"
            raise Failed(happened, "every parameter of the model", None, "loop-left-early", at)


def _unknown_name(name: str, case: Told) -> Failed:
    """The failure of a name that is none of the model's; it shows one with several parts."""
    qualified = max(case.actual, key=lambda name: name.count("."))
    happened = f"it names `{name}`, which this model does not have"
    adding = ("[] =", "setdefault(", "append(")
    return Failed(happened, f"names such as `{qualified}`", at=adding)


@parameter_devices.check(points=1)
def names_every_buffer(seen: Seen, wanted: Seen) -> None:
    """Buffers are included too."""
    for case in _require_dict_answers(seen).values():
        missing = [name for name in case.buffers if name not in case.told]
        if missing:
            key = "loop-left-early"
            if set(missing).isdisjoint(case.saved):
                key = "state-dict-is-not-all"
            elif missing == case.buffers and not case.missing_parameters():
                key = "buffers-forgotten"
            happened = f"the buffer `{missing[0]}` is missing"
            raise Failed(happened, "every buffer of the model", misconception=key)


@parameter_devices.check(points=0.5, needs=("runs", "names_every_parameter"))
def tells_the_device(seen: Seen, wanted: Seen) -> None:
    """Each value is the tensor's own torch.device, with its index, and no tensor is moved."""
    for scenario, case in _require_dict_answers(seen).items():
        for name in case.no_device:
            raise _no_device(name, case)
        for name in case.told:
            _expect_own_device(name, case, scenario)
        for name in case.moved:
            happened = f"the call moved `{name}` (scenario `{scenario}`)"
            raise Failed(happened, "tensors left where they are")
        expect_settings_kept(case.settings, scenario)
    for name in seen[told]["nothing_to_tell"].told:
        happened = f"for a model without tensors it names `{name}`"
        raise Failed(happened, "an empty dict")


def _expect_own_device(name: str, case: Told, scenario: str) -> None:
    """Raises Failed unless the value for a tensor is that tensor's device."""
    device = case.told[name]
    actual = case.actual[name]  # no other name passes `names_every_parameter`
    if not is_same_device(device, actual):
        happened = f"the value for `{name}` is {device} (scenario `{scenario}`)"
        key = _mistake_of_device(case, device, actual)
        raise Failed(happened, actual, misconception=key)


def _no_device(name: str, case: Told) -> Failed:
    """The failure of a value that is no torch.device."""
    kind = case.kinds[name]
    value = case.told[name]
    key = None
    if kind == "str":
        value = repr(value)
        key = "string-for-device"
    happened = f"the value for `{name}` is {value}, {with_article(kind)}"
    return Failed(happened, "a torch.device", None, key, ("str(", "[] =", "return"))


def _mistake_of_device(case: Told, device: str, actual: str) -> str | None:
    """The misconception behind another device than a tensor's own."""
    told_devices = set(case.told.values())
    actual_devices = set(case.actual.values())
    if len(told_devices) == 1 and len(actual_devices) > 1:
        return "first-tensor-only"
    if actual.startswith("cuda") and is_same_device(device, "cuda"):
        return "device-index-dropped"
    return None
