"""`move_model`: a model on the device, all of it."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpudojo.days.day8.moving_model_to_device.declaration import move_model
from gpudojo.days.day8.moving_model_to_device.sprite_model import (
    ModelTensor,
    describe_tensors,
    make_model,
)
from gpudojo.grading.call import (
    Call,
    call_and_restore_settings,
    device_name,
    nn,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import (
    expect_mode_kept,
    expect_settings_kept,
    failure_on_other_device,
    runs,
    scenario_pairs,
    wrong_device_mistake,
)
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, with_article

# ---- scenarios -----------------------------------------------------------------------------------


class MovedModel(Case, frozen=True):
    """A model after the move."""

    same: bool  # whether the result is the object that was passed in
    kind: str
    wanted_device: str
    tensors: dict[str, ModelTensor]
    copies: int
    line: int | None  # of the first copy
    modes: dict[str, bool]
    replaced: list[str]  # parameters that are other objects than before
    settings: list[str]

    def names_elsewhere(self, buffers: bool) -> list[str]:
        """The parameters, or buffers, that are on another device than the one asked for."""
        names = []
        for name, tensor in self.tensors.items():
            if tensor.is_buffer is buffers and tensor.device != self.wanted_device:
                names.append(name)
        return names


def _call_move_model(call: Call, device: Any, start: Any = "cpu", model: Any = None) -> MovedModel:
    """Call the student's function and describe the model afterwards.

    `start` is where the model is before; `model` is one of sprites unless another is given, and is
    changed. Settings of torch that were changed are restored. Raises StudentRaised.
    """
    if model is None:
        model = make_model(call.seed)
    if start == "cpu":
        model.eval()
    else:
        model.to(start)
        next(model.children())[1].eval()  # one batch norm frozen, as for fine-tuning
    parameters_before = set(model.parameters())  # what an optimizer built now would hold
    value, settings = call_and_restore_settings(call, model, device)
    copies = call.ledger.transfers()
    found = model
    # One mistake is enough: where something else came back, the rest is judged on the model.
    if type(value) is type(model):
        found = value
    replaced = [name for name, p in found.named_parameters() if p not in parameters_before]
    return MovedModel(
        same=value is model,
        kind=type(value).__name__,
        wanted_device=device_name(device),
        tensors=describe_tensors(found),
        copies=len(copies),
        line=call.first_line(copies),
        modes={name or "the model": module.training for name, module in found.named_modules()},
        replaced=replaced,
        settings=settings,
    )


@move_model.probe
def moved(call: Call) -> Cases[MovedModel]:
    """Moves to the device, by either of its names (`cuda` for `cuda:0`), and back.

    Raises StudentRaised for an error about a closed device or memory.
    """
    device = call.device
    without_parameters = nn.Sequential(nn.Flatten(), nn.ReLU())
    move = partial(_call_move_model, call)
    return try_scenarios(
        {
            "model_starts_on_the_cpu": partial(move, device),
            "already_there": partial(move, device.type, start=device),
            "stays_on_the_cpu": partial(move, "cpu"),
            "back_to_the_cpu": partial(move, torch.device("cpu"), start=device),
            "nothing_to_move": partial(move, device, model=without_parameters),
        }
    )


@move_model.probe(machine="two gpus")
def moved_to_the_second_gpu(call: Call) -> Cases[MovedModel]:
    return try_scenarios({"to_the_second_gpu": lambda: _call_move_model(call, "cuda:1")})


# ---- claims --------------------------------------------------------------------------------------

MOVES = (
    "model_starts_on_the_cpu",
    "already_there",
    "stays_on_the_cpu",
    "back_to_the_cpu",
    "to_the_second_gpu",
)
runs(move_model, scenarios=MOVES)


def _all_moves(seen: Seen) -> Cases[MovedModel]:
    return seen.cases(moved, moved_to_the_second_gpu)


def _mistake_of_buffers(left: list[str]) -> str:
    """Which mistake it is that these buffers were left where they were."""
    if left == ["palette"]:
        return "state-dict-is-not-all"
    return "buffers-forgotten"


@move_model.check(points=1.25)
def moves_every_parameter(seen: Seen, wanted: Seen) -> None:
    """Every parameter is on the device afterwards."""
    case = seen[moved]["model_starts_on_the_cpu"]
    left = case.names_elsewhere(buffers=False)
    if not left:
        return
    name = left[0]
    happened = f"the parameter `{name}` is on {case.tensors[name].device}"
    expected = f"every parameter on {case.wanted_device}"
    if any(tensor.device == case.wanted_device for tensor in case.tensors.values()):
        raise Failed(happened, expected)
    if case.copies:
        happened = f"{happened}, although {case.copies} copies were made"
        raise Failed(happened, expected, case.line, "result-thrown-away")
    raise Failed(happened, expected, misconception="model-not-moved")


MOVED = ("runs", "moves_every_parameter")


@move_model.check(points=1, needs=MOVED)
def returns_the_same_model(seen: Seen, wanted: Seen) -> None:
    """It returns the model it was given, not another one."""
    for name, case, right in scenario_pairs(_all_moves(seen), _all_moves(wanted), *MOVES):
        if not case.same:
            expected = "the same object that was passed in"
            if case.kind == right.kind:
                happened = f"scenario `{name}` returned another {case.kind}"
                raise Failed(happened, expected, case.line, "model-copied")
            happened = f"scenario `{name}` returned {with_article(case.kind)}"
            raise Failed(happened, expected)


@move_model.check(points=1, needs=MOVED)
def moves_every_buffer(seen: Seen, wanted: Seen) -> None:
    """Every buffer is on the device afterwards, including those that are not in `state_dict()`."""
    case = seen[moved]["model_starts_on_the_cpu"]
    left = case.names_elsewhere(buffers=True)
    if left:
        name = left[0]
        happened = f"the buffer `{name}` is on {case.tensors[name].device}"
        expected = f"every buffer on {case.wanted_device}"
        raise Failed(happened, expected, misconception=_mistake_of_buffers(left))


@move_model.check(points=0.5, needs=MOVED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """The model ends up on exactly the device passed in, whatever this machine has."""
    for name in ("stays_on_the_cpu", "back_to_the_cpu", "to_the_second_gpu", "already_there"):
        case = _all_moves(seen)[name]
        parameters = case.names_elsewhere(buffers=False)
        buffers = case.names_elsewhere(buffers=True)
        for tensor in parameters + buffers:
            device = case.tensors[tensor].device
            key = wrong_device_mistake(case.wanted_device, [device])
            if not parameters:
                key = _mistake_of_buffers(buffers)
            where = f"the model's `{tensor}` ended up on {device}"
            raise failure_on_other_device(case.wanted_device, where, case.line, key)


@move_model.check(points=0.5, needs=(*MOVED, "returns_the_same_model"))
def keeps_the_optimizer_working(seen: Seen, wanted: Seen) -> None:
    """An optimizer that was built before still updates the model."""
    for name, case in _all_moves(seen).items():
        if case.replaced:
            what = f"after the move, `{case.replaced[0]}` is a new parameter"
            then = "so an optimizer that was built before no longer updates it"
            expected = "the same parameter objects as before"
            happened = f"{what}, {then} (scenario `{name}`)"
            raise Failed(happened, expected, case.line, "parameters-replaced")


@move_model.check(points=0.5, needs=MOVED)
def changes_nothing_else(seen: Seen, wanted: Seen) -> None:
    """Values, training mode, shared weights and the settings of torch stay as they were."""
    for name, case, right in scenario_pairs(_all_moves(seen), _all_moves(wanted), *MOVES):
        for module, mode in right.modes.items():
            what = f"scenario `{name}`: {module}"
            expect_mode_kept(what, mode, case.modes.get(module))
        for tensor, before in right.tensors.items():
            _expect_same_tensor(f"`{tensor}`", case.tensors.get(tensor), before, name)
        expect_settings_kept(case.settings, name)


def _expect_same_tensor(
    what: str, found: ModelTensor | None, right: ModelTensor, scenario: str
) -> None:
    """Raises Failed unless a tensor, `what` in words, is as before but for its device."""
    where = f"(scenario `{scenario}`)"
    if found is None or found.values.values is None:
        raise Failed(f"{what} has no values any more {where}", "no change")
    if found.values.dtype != right.values.dtype:
        became = f"became {found.values.dtype}, from {right.values.dtype}"
        happened = f"{what} {became} {where}"
        raise Failed(happened, "no change", at=_patterns_of_cast(found.values.dtype))
    if found.values != right.values:
        raise Failed(f"the values of {what} changed {where}", "no change")
    if found.requires_grad != right.requires_grad:
        raise Failed(f"`requires_grad` of {what} changed {where}", "no change")
    if found.first_name != right.first_name:
        happened = f"two layers that shared one weight now have one each {where}"
        raise Failed(happened, "one shared weight", misconception="parameters-replaced")


# The methods that change dtypes, by what they make.
CASTS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16"}


def _patterns_of_cast(dtype: str) -> tuple[str, ...]:
    """Patterns for the line that made tensors this dtype."""
    cast = CASTS.get(dtype, dtype)
    return (f"{cast}(", "type(", "dtype=", f".{dtype}")


@move_model.check(points=0.25, needs=MOVED)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """A model without parameters and buffers is returned as it is."""
    case = seen[moved]["nothing_to_move"]
    if not case.same:
        happened = f"for a model without parameters it returned {with_article(case.kind)}"
        raise Failed(happened, "the model itself")
