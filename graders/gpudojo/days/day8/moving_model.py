"""02: moving a model to the device."""

from __future__ import annotations

import functools
from typing import Any

from gpudojo.grading.call import Call, nn, settled, torch, tried
from gpudojo.grading.judge import Case, cases, runs_in_all, said
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "02_moving_model_to_device",
    "A model on the GPU, all of it",
    points=8,
    reading=("generated/torch.nn.Module.html", "notes/cuda.html"),
)
move = exercise.function(
    "move_model",
    "`nn.Module.to` moves parameters and buffers in place and returns the module itself.",
    "Use the `device` you were given, as it is: its index may matter.",
    "Move it, and do no more: mode, dtype, `requires_grad` and the settings of torch are the caller's.",
)
tell = exercise.function(
    "parameter_devices",
    "A tensor knows where it is: `tensor.device` is a torch.device, with its index.",
    "`model.named_parameters()` gives qualified names and parameters; buffers have their own `model.named_buffers()`.",
    "`state_dict()` is what is saved. Buffers registered with `persistent=False` are not in it.",
)
move.when("uses_the_device_it_is_given", hint=2, at=("to(", "cuda("))
move.when("hard-coded-cuda", "device-index-dropped", hint=2)
move.when("moves_every_parameter", hint=1, at=("for", "to("))
move.when("returns_the_same_model", hint=1, at=("return", "last return"))
CHANGING = ("set_default_device(", "eval(", "train(", "half(", "requires_grad_(", "zero_(", "to_empty(", "to(")
move.when("changes_nothing_else", hint=3, at=CHANGING)
tell.when("runs", "names_every_parameter", hint=2, at=("named_parameters(", "return"))
tell.when("names_every_buffer", "buffers-forgotten", hint=2, at=("named_buffers(", "named_parameters(", "return"))
tell.when("state-dict-is-not-all", hint=3)
tell.when("tells_the_device", hint=1, at=("to(", ".device", "return"))
tell.when("device-index-dropped", hint=1)


@functools.cache
def _model_class() -> Any:
    class Layer(nn.Module):
        """A linear layer, made without drawing weights that would be thrown away."""

        def __init__(self, weight: Any, bias: Any) -> None:
            super().__init__()
            self.weight = weight
            self.register_parameter("bias", bias)

    class SpriteModel(nn.Module):
        """Two layers with one weight, a frozen scale, batch norm, and a palette that `state_dict()` leaves out.

        The palette has a dtype of its own: `model.to(tensor)` gives every part the dtype of that tensor, too.
        """

        palette: Any

        def __init__(self, numbers: Any) -> None:
            super().__init__()
            weight, bias = nn.Parameter(numbers[:4].reshape(2, 2).clone()), nn.Parameter(numbers[4:6].clone())
            self.encoder = nn.Sequential(Layer(weight, None), nn.BatchNorm1d(2))
            self.decoder = Layer(weight, bias)
            self.scale = nn.Parameter(numbers[6:9].clone(), requires_grad=False)
            self.register_buffer("palette", (numbers[9:].reshape(2, 3) + 1).half(), persistent=False)

    return SpriteModel


@functools.cache
def _numbers(seed: int) -> Any:
    return torch.rand(15, generator=torch.Generator().manual_seed(seed))


def _sprite_model(seed: int) -> Any:
    return _model_class()(_numbers(seed))


def _values(tensor: Any) -> list[Any]:
    """Dtype, shape and values; a tensor without values, such as one on "meta", has none."""
    try:
        return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.tolist()]
    except (RuntimeError, TypeError):
        return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), None]


def _named(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every parameter and every buffer by each of its names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters, dict(model.named_buffers(remove_duplicate=False))


def _device(device: Any) -> str:
    """As a tensor there says it: "cuda:0" for "cuda"."""
    return str(torch.empty(0, device=device).device)


# ---- move_model ------------------------------------------------------------------------------------------------------


def _moved(call: Call, device: Any, start: Any = "cpu", model: Any = None) -> dict[str, Any]:
    model = _sprite_model(call.seed) if model is None else model
    if start == "cpu":
        model.eval()
    else:
        model.to(start)
        model.encoder[1].eval()  # one batch norm frozen, as for fine-tuning
    held = [id(parameter) for parameter in model.parameters()]  # what an optimizer built now would hold on to
    value, changed = settled(call, model, device)
    copies = call.ledger.transfers()
    found = value if type(value) is type(model) else model  # one mistake is enough: the rest is judged on the model
    parameters, buffers = _named(found)
    return {
        "same": value is model,
        "class": type(value).__name__,
        "copied": value is not model and type(value) is type(model),
        "wanted_device": _device(device),
        "parameters": {name: str(p.device) for name, p in parameters.items()},
        "buffers": {name: str(b.device) for name, b in buffers.items()},
        "copies": len(copies),
        "line": next((call.line_of(t) for t in copies), None),
        "values": {name: _values(tensor) for name, tensor in (parameters | buffers).items()},
        "modes": {name or "the model": module.training for name, module in found.named_modules()},
        "learnable": {name: p.requires_grad for name, p in parameters.items()},
        "replaced": [name for name, p in parameters.items() if id(p) not in held],
        "tied": parameters.get("encoder.0.weight") is parameters.get("decoder.weight"),
        "settings": changed,
    }


@move.probe
def moved(call: Call) -> dict[str, Any]:
    """There, by either name of the device (`cuda` for `cuda:0`), and back."""
    without_parameters = nn.Sequential(nn.Flatten(), nn.ReLU())
    return {
        "from_the_cpu": tried(_moved, call, call.device),
        "already_there": tried(_moved, call, call.device.type, start=call.device),
        "stays_on_the_cpu": tried(_moved, call, "cpu"),
        "back_to_the_cpu": tried(_moved, call, torch.device("cpu"), start=call.device),
        "nothing_to_move": tried(_moved, call, call.device, model=without_parameters),
    }


def moved_to_the_second_gpu(call: Call) -> dict[str, Any]:
    return {"to_the_second_gpu": tried(_moved, call, "cuda:1")}


move.probe(moved_to_the_second_gpu, machine="two gpus")


# ---- parameter_devices -----------------------------------------------------------------------------------------------


def _told(call: Call, model: Any) -> dict[str, Any]:
    parameters, buffers = _named(model)
    actual = {name: str(tensor.device) for name, tensor in (parameters | buffers).items()}
    names: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    value, changed = settled(call, model)
    is_dict = isinstance(value, dict)
    items = [(str(key), told) for key, told in value.items()] if is_dict else []
    now = {name: str(tensor.device) for part in _named(model) for name, tensor in part.items()}
    return {
        "class": type(value).__name__,
        "is_dict": is_dict,
        "told": {key: str(told) for key, told in items},
        "classes": {key: type(told).__name__ for key, told in items},
        "no_device": [key for key, told in items if not isinstance(told, torch.device)],
        "parameters": list(names.values()),  # each by all of its names
        "buffers": list(buffers),
        "saved": [name for name in buffers if name in model.state_dict()],
        "actual": actual,
        "moved": [name for name in actual if now.get(name) != actual[name]],
        "settings": changed,
    }


@tell.probe
def told(call: Call) -> dict[str, Any]:
    return {
        "all_in_one_place": tried(_told, call, _sprite_model(call.seed).to(call.device)),
        "nothing_to_tell": tried(_told, call, nn.ReLU()),
    }


def told_of_two_gpus(call: Call) -> dict[str, Any]:
    model = _sprite_model(call.seed)
    model.encoder.to("cuda:1")
    model.palette = model.palette.to("cuda:0")
    return {"spread_out": tried(_told, call, model)}


tell.probe(told_of_two_gpus, machine="two gpus")


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


def _described(seen: Seen) -> dict[str, Case]:
    found = cases(seen)
    for case in found.values():
        if not case.get("is_dict", True):
            raise Failed(f"it returned {called(case['class'])}", "a dict from names to devices")
    return {name: found[name] for name in TOLD}


@tell.check(points=1)
def names_every_parameter(seen: Seen, wanted: Seen) -> None:
    """It names every parameter by its qualified name, and nothing that is not in the model."""
    for case in _described(seen).values():
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
    for case in _described(seen).values():
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
    for scenario, case in _described(seen).items():
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
