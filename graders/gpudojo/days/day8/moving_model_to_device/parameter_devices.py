"""`parameter_devices`: where each parameter and each buffer is."""

from __future__ import annotations

import random
from typing import Any

from gpudojo.days.day8.moving_model_to_device.declaration import parameter_devices
from gpudojo.days.day8.moving_model_to_device.sprite_model import make_model, tensors_of
from gpudojo.grading.call import Call, call_and_restore_settings, nn, torch, try_inputs
from gpudojo.grading.checks import expect_settings_kept, is_same_device, runs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, with_article

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
    devices_before = tensors.devices()
    names: dict[int, list[str]] = {}
    for name, parameter in tensors.parameters.items():
        names.setdefault(id(parameter), []).append(name)
    # The call
    value, changed = call_and_restore_settings(call, model)
    answer = {}
    if isinstance(value, dict):
        answer = {str(key): device for key, device in value.items()}
    # Where the tensors are afterwards
    devices_after = tensors_of(model).devices()
    return Told(
        kind=type(value).__name__,
        is_dict=isinstance(value, dict),
        told={name: str(device) for name, device in answer.items()},
        kinds={name: type(device).__name__ for name, device in answer.items()},
        no_device=[name for name in answer if not isinstance(answer[name], torch.device)],
        parameters=list(names.values()),
        buffers=list(tensors.buffers),
        saved=[name for name in tensors.buffers if name in model.state_dict()],
        actual=devices_before,
        moved=[name for name in devices_before if devices_after.get(name) != devices_before[name]],
        settings=changed,
    )


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
    drawn.choice(list(model.children())).to("cuda:1")
    model.palette = model.palette.to(drawn.choice(["cuda:0", "cuda:1"]))
    return try_inputs(_call_parameter_devices, call, {"spread_out": model})


# ---- claims --------------------------------------------------------------------------------------

# A model with nothing in it comes last: more instructive mistakes show there too.
TOLD = ("all_in_one_place", "spread_out")
runs(parameter_devices, scenarios=TOLD)


def _require_dict_answers(seen: Seen) -> dict[str, Told]:
    """The answers by scenario. Raises Failed for one that is no dict."""
    found = seen.cases(told, told_of_two_gpus)
    for name in TOLD:
        if not found[name].is_dict:
            happened = f"it returned {with_article(found[name].kind)}"
            raise Failed(happened, "a dict from names to devices", at=("return",))
    return {name: found[name] for name in TOLD}


@parameter_devices.check(points=1.5)
def names_every_parameter(seen: Seen, wanted: Seen) -> None:
    """Every parameter is included, by its qualified name, and nothing that is not in the model."""
    for case in _require_dict_answers(seen).values():
        strangers = [name for name in case.told if name not in case.actual]
        if strangers:
            right = max(case.actual, key=lambda name: name.count("."))
            happened = f"it names `{strangers[0]}`, which this model does not have"
            adding = ("[] =", "setdefault(", "append(")
            raise Failed(happened, f"names such as `{right}`", at=adding)
        missing = case.missing_parameters()
        if missing:
            all_missing = len(missing) == len(case.parameters)
            at = ("return",) if all_missing else (".requires_grad", "recurse=")
            happened = f"the parameter `{missing[0]}` is missing"
            raise Failed(happened, "every parameter of the model", None, "loop-left-early", at)


@parameter_devices.check(points=1)
def names_every_buffer(seen: Seen, wanted: Seen) -> None:
    """Buffers are included too."""
    for case in _require_dict_answers(seen).values():
        missing = [name for name in case.buffers if name not in case.told]
        if missing:
            key = "loop-left-early"
            if not any(name in case.saved for name in missing):
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
        for name, device in case.told.items():
            actual = case.actual.get(name)
            if actual is not None and not is_same_device(device, actual):
                happened = f"the value for `{name}` is {device} (scenario `{scenario}`)"
                key = _mistake_of_device(case, device, actual)
                raise Failed(happened, actual, misconception=key)
        if case.moved:
            happened = f"the call moved `{case.moved[0]}` (scenario `{scenario}`)"
            raise Failed(happened, "tensors left where they are")
        expect_settings_kept(case.settings, scenario)
    strangers = list(seen[told]["nothing_to_tell"].told)
    if strangers:
        happened = f"for a model without tensors it names `{strangers[0]}`"
        raise Failed(happened, "an empty dict")


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
    told = set(case.told.values())
    actual_devices = set(case.actual.values())
    if len(told) == 1 and len(actual_devices) > 1:
        return "first-tensor-only"
    dropped = actual != "cpu" and is_same_device(device, actual.partition(":")[0])
    return "device-index-dropped" if dropped else None
