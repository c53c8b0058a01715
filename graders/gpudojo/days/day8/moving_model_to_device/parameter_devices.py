"""`parameter_devices`: where each parameter and each buffer is."""

from __future__ import annotations

import random
from typing import Any

from gpudojo.days.day8.moving_model_to_device.declaration import parameter_devices
from gpudojo.days.day8.moving_model_to_device.sprite_model import (
    ModelTensor,
    describe_tensors,
    make_model,
)
from gpudojo.grading.call import Call, call_and_restore_settings, nn, torch, try_inputs
from gpudojo.grading.checks import expect_settings_kept, is_same_device, runs
from gpudojo.grading.differences import tell_apart
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type, with_article

DEVICE = "torch.device"  # the type that values should have

# ---- scenarios -----------------------------------------------------------------------------------


class Told(Case, frozen=True):
    """The answer for one model, beside where its tensors are."""

    kind: str
    is_dict: bool
    told: dict[str, str]  # devices by the names that the answer has
    kinds: dict[str, str]  # the types of these devices
    tensors: dict[str, ModelTensor]  # of the model, before the call
    saved: list[str]  # names in `state_dict()`
    moved: list[str]  # names of tensors that are elsewhere afterwards
    settings: list[str]

    def missing_parameters(self) -> list[str]:
        """The first name of each parameter that the answer has under none of its names."""
        missing = {}
        for name, tensor in self.tensors.items():
            if not tensor.is_buffer:
                missing[tensor.first_name] = name
        for name in self.told:
            if name in self.tensors:
                missing.pop(self.tensors[name].first_name, None)
        return list(missing)


def _call_parameter_devices(call: Call, model: Any) -> Told:
    """Call the student's function and describe the answer, and which tensors it moved.

    Settings of torch that were changed are restored. Raises StudentRaised.
    """
    tensors = describe_tensors(model)
    answer, settings = call_and_restore_settings(call, model)
    # What the answer says
    told: dict[str, str] = {}
    kinds: dict[str, str] = {}
    if isinstance(answer, dict):
        for name, device in answer.items():
            told[str(name)] = str(device)
            is_device = isinstance(device, torch.device)
            kinds[str(name)] = DEVICE if is_device else type(device).__name__
    # Where the tensors are afterwards
    afterwards = describe_tensors(model)
    moved = []
    for name, tensor in tensors.items():
        if name not in afterwards or afterwards[name].device != tensor.device:
            moved.append(name)
    return Told(
        kind=type(answer).__name__,
        is_dict=isinstance(answer, dict),
        told=told,
        kinds=kinds,
        tensors=tensors,
        saved=list(model.state_dict()),
        moved=moved,
        settings=settings,
    )


@parameter_devices.probe
def told(call: Call) -> Cases[Told]:
    """A model on the device, and one without tensors.

    Raises StudentRaised for an error about a closed device or memory.
    """
    models = {
        "all_in_one_place": make_model(call.seed).to(call.device),
        "nothing_to_tell": nn.ReLU(),
    }
    return try_inputs(_call_parameter_devices, call, models)


@parameter_devices.probe(machine="two gpus")
def told_of_two_gpus(call: Call) -> Cases[Told]:
    """A model with its palette on one of two GPUs, a part on the second, the rest on the CPU.

    Raises StudentRaised for an error about a closed device or memory.
    """
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
    """The answers by scenario. Raises Failed for one that is no dict.

    Raises ScenarioRaised where the student's code raised.
    """
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
            if name not in case.tensors:
                qualified = max(case.tensors, key=lambda name: name.count("."))
                happened = f"it names `{name}`, which this model does not have"
                for right in case.tensors:
                    happened = tell_apart(happened, name, right)
                adding: tuple[str, ...] = ("[] =", "setdefault(", "append(")
                if not case.missing_parameters():  # then it is a buffer's, which come last
                    adding = ("last [] =", *adding)
                expected = f"names such as `{qualified}`"
                raise Failed(happened, expected, at=adding)
        missing = case.missing_parameters()
        if missing:
            at = (".requires_grad", "recurse=", "named_children(", "children(", "return")
            happened = f"the parameter `{missing[0]}` is missing"
            raise Failed(happened, "every parameter of the model", None, "loop-left-early", at)


@parameter_devices.check(points=1)
def names_every_buffer(seen: Seen, wanted: Seen) -> None:
    """Buffers are included too."""
    for case in _require_dict_answers(seen).values():
        buffers = [name for name, tensor in case.tensors.items() if tensor.is_buffer]
        missing = [name for name in buffers if name not in case.told]
        if missing:
            key = "loop-left-early"
            if set(missing).isdisjoint(case.saved):
                key = "state-dict-is-not-all"
            elif missing == buffers and not case.missing_parameters():
                key = "buffers-forgotten"
            happened = f"the buffer `{missing[0]}` is missing"
            expected = "every buffer of the model"
            others = [name for name in case.told if name not in case.tensors]
            if others and not case.missing_parameters():
                happened = f"{happened}, and it names `{others[0]}`"
                raise Failed(happened, f"{expected}, by its name", at=("last [] =", "return"))
            raise Failed(happened, expected, misconception=key)


@parameter_devices.check(points=0.5, needs=("runs", "names_every_parameter"))
def tells_the_device(seen: Seen, wanted: Seen) -> None:
    """Each value is the tensor's own torch.device, with its index, and no tensor is moved."""
    for scenario, case in _require_dict_answers(seen).items():
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
    """Raises Failed unless the value for a tensor is that tensor's device.

    Raises KeyError for a name that the answer or the model lacks.
    """
    told_device = case.told[name]
    kind = case.kinds[name]
    if kind != DEVICE:
        if kind == "str":
            value = repr(told_device)
        else:
            value = told_device
        happened = f"the value for `{name}` is {value}, {with_article(kind)}"
        key = None
        if kind == "str":
            key = "string-for-device"
        raise Failed(happened, "a torch.device", None, key, ("str(", "[] =", "return"))
    device = case.tensors[name].device  # no other name passes `names_every_parameter`
    if is_same_device(told_device, device):
        return
    told_devices = set(case.told.values())
    key = None
    if len(told_devices) == 1 and scenario == "spread_out":
        key = "first-tensor-only"
    elif device.startswith("cuda") and is_same_device(told_device, "cuda"):
        key = "device-index-dropped"
    happened = f"the value for `{name}` is {told_device} (scenario `{scenario}`)"
    raise Failed(happened, device, misconception=key)
