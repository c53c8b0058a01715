"""`move_model`: a model on the device, all of it."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpudojo.days.day8.moving_model_to_device.declaration import move_model
from gpudojo.days.day8.moving_model_to_device.sprite_model import (
    devices_of,
    make_model,
    tensors_of,
)
from gpudojo.days.day8.tensor_values import Values, values_of
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
    other_device_used,
    runs,
    scenario_pairs,
)
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, with_article

# ---- scenarios -----------------------------------------------------------------------------------


class MovedModel(Case, frozen=True):
    """A model after the move."""

    same: bool  # whether the result is the object that was passed in
    kind: str
    copied: bool  # whether it is another object of the same class
    wanted_device: str
    parameters: dict[str, str]  # devices by name
    buffers: dict[str, str]
    copies: int
    line: int | None  # of the first copy
    values: dict[str, Values]
    modes: dict[str, bool]
    learnable: dict[str, bool]
    replaced: list[str]  # parameters that are other objects than before
    tied: bool
    settings: list[str]


def _call_move_model(call: Call, device: Any, start: Any = "cpu", model: Any = None) -> MovedModel:
    """Call the student's function and describe the model afterwards. Raises StudentRaised.

    `start` is where the model is before; `model` is one of sprites unless another is given.
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
    # One mistake is enough: where something else came back, the rest is judged on the model.
    has_same_type = type(value) is type(model)
    found = value if has_same_type else model
    tensors = tensors_of(found)
    parameters = tensors.parameters
    return MovedModel(
        same=value is model,
        kind=type(value).__name__,
        copied=has_same_type and value is not model,
        wanted_device=device_name(device),
        parameters=devices_of(parameters),
        buffers=devices_of(tensors.buffers),
        copies=len(copies),
        line=call.first_line(copies),
        values={name: values_of(tensor) for name, tensor in tensors.all.items()},
        modes={name or "the model": module.training for name, module in found.named_modules()},
        learnable={name: p.requires_grad for name, p in parameters.items()},
        replaced=[name for name, p in parameters.items() if p not in parameters_before],
        tied=len(set(parameters.values())) < len(parameters),
        settings=settings,
    )


@move_model.probe
def moved(call: Call) -> Cases[MovedModel]:
    """Moves to the device, by either of its names (`cuda` for `cuda:0`), and back."""
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


def _names_elsewhere(devices: dict[str, str], wanted: str) -> list[str]:
    """The names of the tensors that are on another device than this one."""
    return [name for name, device in devices.items() if device != wanted]


def _mistake_of_buffers(left: list[str]) -> str:
    """Which mistake it is that these buffers were left where they were."""
    return "state-dict-is-not-all" if left == ["palette"] else "buffers-forgotten"


@move_model.check(points=1.25)
def moves_every_parameter(seen: Seen, wanted: Seen) -> None:
    """Every parameter is on the device afterwards."""
    case = seen[moved]["model_starts_on_the_cpu"]
    left = _names_elsewhere(case.parameters, case.wanted_device)
    if not left:
        return
    happened = f"the parameter `{left[0]}` is on {case.parameters[left[0]]}"
    line = None
    key = None
    if len(left) == len(case.parameters):
        key = "model-not-moved"
        if case.copies:
            happened = f"{happened}, although {case.copies} copies were made"
            line = case.line
            key = "result-thrown-away"
    raise Failed(happened, f"every parameter on {case.wanted_device}", line, key)


MOVED = ("runs", "moves_every_parameter")


@move_model.check(points=1, needs=MOVED)
def returns_the_same_model(seen: Seen, wanted: Seen) -> None:
    """It returns the model it was given, not another one."""
    for name in MOVES:
        case = _all_moves(seen)[name]
        expected = "the same object that was passed in"
        if case.copied:
            happened = f"scenario `{name}` returned another {case.kind}"
            raise Failed(happened, expected, case.line, "model-copied")
        if not case.same:
            raise Failed(f"scenario `{name}` returned {with_article(case.kind)}", expected)


@move_model.check(points=1, needs=MOVED)
def moves_every_buffer(seen: Seen, wanted: Seen) -> None:
    """Every buffer is on the device afterwards, including those that are not in `state_dict()`."""
    case = seen[moved]["model_starts_on_the_cpu"]
    left = _names_elsewhere(case.buffers, case.wanted_device)
    if left:
        happened = f"the buffer `{left[0]}` is on {case.buffers[left[0]]}"
        expected = f"every buffer on {case.wanted_device}"
        raise Failed(happened, expected, misconception=_mistake_of_buffers(left))


@move_model.check(points=0.5, needs=MOVED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """The model ends up on exactly the device passed in, whatever this machine has."""
    for name in ("stays_on_the_cpu", "back_to_the_cpu", "to_the_second_gpu", "already_there"):
        case = _all_moves(seen)[name]
        devices = case.parameters | case.buffers
        left = _names_elsewhere(devices, case.wanted_device)
        if left:
            where = f"the model's `{left[0]}` ended up on {devices[left[0]]}"
            key = _why_elsewhere(name, left, case)
            raise other_device_used(case.wanted_device, where, case.line, key)


def _why_elsewhere(scenario: str, left: list[str], case: MovedModel) -> str | None:
    """The misconception behind tensors that were left on another device; None if none is known.

    `left` are their names.
    """
    if set(left) <= set(case.buffers):
        return _mistake_of_buffers(left)
    if scenario == "stays_on_the_cpu":
        return "hard-coded-cuda"
    devices = case.parameters | case.buffers
    if scenario == "to_the_second_gpu" and devices[left[0]] == "cuda:0":
        return "device-index-dropped"
    return None


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
        where = f"(scenario `{name}`)"
        for module, mode in right.modes.items():
            what = f"scenario `{name}`: {module}"
            expect_mode_kept(what, mode, case.modes.get(module))
        for tensor in right.values:
            change = _describe_change(tensor, case, right)
            if change:
                raise Failed(f"{change} {where}", "no change")
        if case.learnable != right.learnable:
            raise Failed(f"`requires_grad` of a parameter changed {where}", "no change")
        if case.tied != right.tied:
            happened = f"two layers that shared one weight now have one each {where}"
            raise Failed(happened, "one shared weight", misconception="parameters-replaced")
        expect_settings_kept(case.settings, name)


@move_model.check(points=0.25, needs=MOVED)
def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
    """A model without parameters and buffers is returned as it is."""
    case = seen[moved]["nothing_to_move"]
    if not case.same:
        happened = f"for a model without parameters it returned {with_article(case.kind)}"
        raise Failed(happened, "the model itself")


def _describe_change(tensor: str, case: MovedModel, reference: MovedModel) -> str:
    """What became of a tensor whose values should have stayed as they were; "" if they did."""
    found = case.values.get(tensor)
    right = reference.values[tensor]
    if found == right:
        return ""
    if found is None or found.values is None:
        return f"`{tensor}` has no values any more"
    if found.dtype != right.dtype:
        return f"`{tensor}` became {found.dtype}, from {right.dtype}"
    return f"the values of `{tensor}` changed"
