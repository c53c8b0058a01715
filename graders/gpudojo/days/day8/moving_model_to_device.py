"""02: moving a model to the device."""

from __future__ import annotations

import functools
import random
from typing import Any

from gpudojo.days.day8.sprites import linear_layer
from gpudojo.days.day8.tensor_values import Values, values_of
from gpudojo.grading.call import (
    Call,
    call_and_restore_settings,
    device_name,
    nn,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import expect_settings_kept, runs, scenario_pairs
from gpudojo.grading.watching import find_classes, make_picklable
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Exercise, Failed, Seen, with_article

exercise = Exercise(
    "02_moving_model_to_device",
    "A model on the GPU, all of it",
    points=8,
    reading=("generated/torch.nn.Module.html", "notes/cuda.html"),
)
move_model = exercise.function("move_model")
parameter_devices = exercise.function("parameter_devices")

NAMES = (
    "encoder",
    "decoder",
    "body",
    "head",
    "trunk",
    "neck",
    "embedding",
    "scale",
    "gain",
    "mixer",
)


@functools.cache
def _model_class() -> tuple[Any, ...]:
    """The class of the model, in a tuple. Made once, and only where torch is needed."""

    class SpriteModel(nn.Module):
        """Two layers that share a weight, a frozen scale, batch norm, and a palette.

        The palette is not in `state_dict()`. It has another dtype: `model.to(tensor)` would change
        it. The other names are drawn from the seed.
        """

        palette: Any

        def __init__(self, numbers: Any, drawn: random.Random) -> None:
            super().__init__()
            weight = nn.Parameter(numbers[:4].reshape(2, 2).clone())
            first, second, scale = drawn.sample(NAMES, 3)
            self.add_module(first, nn.Sequential(linear_layer(weight), nn.BatchNorm1d(2)))
            self.add_module(second, linear_layer(weight, numbers[4:6].clone()))
            self.register_parameter(scale, nn.Parameter(numbers[6:9].clone(), requires_grad=False))
            self.register_buffer(
                "palette", (numbers[9:].reshape(2, 3) + 1).half(), persistent=False
            )
            self.register_buffer("mask", None)  # as batch norm without statistics has them

    return make_picklable(SpriteModel)


__getattr__ = find_classes(_model_class)


@functools.cache
def _numbers(seed: int) -> Any:
    """The numbers of which a model's tensors are made, for this seed."""
    return torch.rand(15, generator=torch.Generator().manual_seed(seed))


def _make_model(seed: int) -> Any:
    """A new model on the CPU, for this seed."""
    return _model_class()[0](_numbers(seed), random.Random(seed))


def _parameters_and_buffers(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every parameter and every buffer by each of its names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters, dict(model.named_buffers(remove_duplicate=False))


# ---- move_model ----------------------------------------------------------------------------------


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


def _move(call: Call, device: Any, start: Any = "cpu", model: Any = None) -> MovedModel:
    """Call the student's function and describe the model afterwards. Raises StudentRaised.

    `start` is where the model is before; `model` is one of sprites unless another is given.
    """
    if model is None:
        model = _make_model(call.seed)
    if start == "cpu":
        model.eval()
    else:
        model.to(start)
        next(model.children())[1].eval()  # one batch norm frozen, as for fine-tuning
    # What an optimizer built now would hold. Kept alive: a new parameter may get the address of one
    # that is gone.
    parameters_before = {id(parameter): parameter for parameter in model.parameters()}
    value, settings = call_and_restore_settings(call, model, device)
    copies = call.ledger.transfers()
    # One mistake is enough: where something else came back, the rest is judged on the model.
    found = value if type(value) is type(model) else model
    parameters, buffers = _parameters_and_buffers(found)
    return MovedModel(
        same=value is model,
        kind=type(value).__name__,
        copied=value is not model and type(value) is type(model),
        wanted_device=device_name(device),
        parameters={name: str(p.device) for name, p in parameters.items()},
        buffers={name: str(b.device) for name, b in buffers.items()},
        copies=len(copies),
        line=call.first_line(copies),
        values={name: values_of(tensor) for name, tensor in (parameters | buffers).items()},
        modes={name or "the model": module.training for name, module in found.named_modules()},
        learnable={name: p.requires_grad for name, p in parameters.items()},
        replaced=[name for name, p in parameters.items() if id(p) not in parameters_before],
        tied=len({id(p) for p in parameters.values()}) < len(parameters),
        settings=settings,
    )


@move_model.probe
def moved(call: Call) -> Cases[MovedModel]:
    """Moves to the device, by either of its names (`cuda` for `cuda:0`), and back."""
    without_parameters = nn.Sequential(nn.Flatten(), nn.ReLU())
    return try_scenarios(
        {
            "model_starts_on_the_cpu": lambda: _move(call, call.device),
            "already_there": lambda: _move(call, call.device.type, start=call.device),
            "stays_on_the_cpu": lambda: _move(call, "cpu"),
            "back_to_the_cpu": lambda: _move(call, torch.device("cpu"), start=call.device),
            "nothing_to_move": lambda: _move(call, call.device, model=without_parameters),
        }
    )


@move_model.probe(machine="two gpus")
def moved_to_the_second_gpu(call: Call) -> Cases[MovedModel]:
    return try_scenarios({"to_the_second_gpu": lambda: _move(call, "cuda:1")})


MOVES = (
    "model_starts_on_the_cpu",
    "already_there",
    "stays_on_the_cpu",
    "back_to_the_cpu",
    "to_the_second_gpu",
)
runs(move_model, scenarios=MOVES)


def _moves(seen: Seen) -> Cases[MovedModel]:
    return seen.cases(moved, moved_to_the_second_gpu)


def _names_elsewhere(devices: dict[str, str], wanted: str) -> list[str]:
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
        case = _moves(seen)[name]
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
        case = _moves(seen)[name]
        devices = case.parameters | case.buffers
        left = _names_elsewhere(devices, case.wanted_device)
        if not left:
            continue
        first = left[0]
        key = None
        if set(left) <= set(case.buffers):
            key = _mistake_of_buffers(left)
        elif name == "stays_on_the_cpu":
            key = "hard-coded-cuda"
        elif name == "to_the_second_gpu" and devices[first] == "cuda:0":
            key = "device-index-dropped"
        ended = f"the model's `{first}` ended up on {devices[first]}"
        happened = f"with device={case.wanted_device!r}, {ended}"
        raise Failed(happened, f"{case.wanted_device}, as asked", case.line, key)


@move_model.check(points=0.5, needs=(*MOVED, "returns_the_same_model"))
def keeps_the_optimizer_working(seen: Seen, wanted: Seen) -> None:
    """An optimizer that was built before still updates the model."""
    for name, case in _moves(seen).items():
        if case.replaced:
            what = f"after the move, `{case.replaced[0]}` is a new parameter"
            then = "so an optimizer that was built before no longer updates it"
            expected = "the same parameter objects as before"
            happened = f"{what}, {then} (scenario `{name}`)"
            raise Failed(happened, expected, case.line, "parameters-replaced")


_MODES = {True: "training", False: "evaluation", None: "no"}


@move_model.check(points=0.5, needs=MOVED)
def changes_nothing_else(seen: Seen, wanted: Seen) -> None:
    """Values, training mode, shared weights and the settings of torch stay as they were."""
    for name, case, right in scenario_pairs(_moves(seen), _moves(wanted), *MOVES):
        where = f"(scenario `{name}`)"
        for module, mode in right.modes.items():
            if case.modes.get(module) != mode:
                found = _MODES[case.modes.get(module)]
                happened = f"afterwards {module} is in {found} mode {where}"
                raise Failed(happened, f"{_MODES[mode]} mode")
        for tensor, value in right.values.items():
            found_value = case.values.get(tensor)
            if found_value != value:
                change = _describe_change(tensor, found_value, value)
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


def _describe_change(tensor: str, found: Values | None, right: Values) -> str:
    """What became of a tensor whose values should have stayed as they were."""
    if found is None or found.values is None:
        return f"`{tensor}` has no values any more"
    if found.dtype != right.dtype:
        return f"`{tensor}` became {found.dtype}, from {right.dtype}"
    return f"the values of `{tensor}` changed"


# ---- parameter_devices ---------------------------------------------------------------------------


class Told(Case, frozen=True):
    """The answer for one model, beside where its tensors are."""

    kind: str
    is_dict: bool
    told: dict[str, str]
    kinds: dict[str, str]
    no_device: list[str]
    parameters: list[list[str]]  # each by all of its names
    buffers: list[str]
    saved: list[str]  # buffers in `state_dict()`
    actual: dict[str, str]
    moved: list[str]
    settings: list[str]

    def missing_parameters(self) -> list[str]:
        """The first name of each parameter that the answer has under none of its names."""
        return [names[0] for names in self.parameters if self.told.keys().isdisjoint(names)]


def _ask(call: Call, model: Any) -> Told:
    """Call the student's function and describe the answer. Raises StudentRaised."""
    parameters, buffers = _parameters_and_buffers(model)
    actual = {name: str(tensor.device) for name, tensor in (parameters | buffers).items()}
    names: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    # The call
    value, changed = call_and_restore_settings(call, model)
    items = [(str(key), told) for key, told in value.items()] if isinstance(value, dict) else []
    # Where the tensors are afterwards
    now = {
        name: str(tensor.device)
        for part in _parameters_and_buffers(model)
        for name, tensor in part.items()
    }
    return Told(
        kind=type(value).__name__,
        is_dict=isinstance(value, dict),
        told={key: str(told) for key, told in items},
        kinds={key: type(told).__name__ for key, told in items},
        no_device=[key for key, told in items if not isinstance(told, torch.device)],
        parameters=list(names.values()),
        buffers=list(buffers),
        saved=[name for name in buffers if name in model.state_dict()],
        actual=actual,
        moved=[name for name in actual if now.get(name) != actual[name]],
        settings=changed,
    )


@parameter_devices.probe
def told(call: Call) -> Cases[Told]:
    return try_scenarios(
        {
            "all_in_one_place": lambda: _ask(call, _make_model(call.seed).to(call.device)),
            "nothing_to_tell": lambda: _ask(call, nn.ReLU()),
        }
    )


@parameter_devices.probe(machine="two gpus")
def told_of_two_gpus(call: Call) -> Cases[Told]:
    """A model with its palette on one of two GPUs, a part on the second, the rest on the CPU."""
    model = _make_model(call.seed)
    drawn = random.Random(call.seed)
    drawn.choice(list(model.children())).to("cuda:1")
    model.palette = model.palette.to(drawn.choice(["cuda:0", "cuda:1"]))
    return try_scenarios({"spread_out": lambda: _ask(call, model)})


# A model with nothing in it comes last: more instructive mistakes show there too.
TOLD = ("all_in_one_place", "spread_out")
runs(parameter_devices, scenarios=TOLD)


def _answers(seen: Seen) -> dict[str, Told]:
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
    for case in _answers(seen).values():
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
    for case in _answers(seen).values():
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
    for scenario, case in _answers(seen).items():
        for name in case.no_device:
            kind = case.kinds[name]
            shown = repr(case.told[name]) if kind == "str" else case.told[name]
            key = "string-for-device" if kind == "str" else None
            happened = f"the value for `{name}` is {shown}, {with_article(kind)}"
            raise Failed(happened, "a torch.device", None, key, ("str(", "[] =", "return"))
        for name, device in case.told.items():
            actual = case.actual.get(name)
            if actual is not None and device.removesuffix(":0") != actual.removesuffix(":0"):
                happened = f"the value for `{name}` is {device} (scenario `{scenario}`)"
                raise Failed(
                    happened, actual, misconception=_mistake_of_device(case, device, actual)
                )
        if case.moved:
            happened = f"the call moved `{case.moved[0]}` (scenario `{scenario}`)"
            raise Failed(happened, "tensors left where they are")
        expect_settings_kept(case.settings, scenario)
    strangers = list(seen[told]["nothing_to_tell"].told)
    if strangers:
        happened = f"for a model without tensors it names `{strangers[0]}`"
        raise Failed(happened, "an empty dict")


def _mistake_of_device(case: Told, device: str, actual: str) -> str | None:
    """The misconception behind another device than a tensor's own."""
    if len(set(case.told.values())) == 1 and len(set(case.actual.values())) > 1:
        return "first-tensor-only"
    dropped = actual != "cpu" and device.removesuffix(":0") == actual.partition(":")[0]
    return "device-index-dropped" if dropped else None
