"""02: a model on a device. Whether all of it moved, whether it is still the same one, and where its parts are."""

from __future__ import annotations

import contextlib
from typing import Any

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.evidence import Array
from graders.probes.calling import Call, array
from graders.probes.late import nn, torch

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
)
tell = exercise.function(
    "parameter_devices",
    "A tensor knows where it is: `tensor.device`.",
    "`model.named_parameters()` gives qualified names and parameters; buffers have their own `model.named_buffers()`.",
    "`state_dict()` is what is saved. Buffers registered with `persistent=False` are not in it.",
)


def _sprite_model(seed: int) -> Any:
    """Two layers with one weight, a frozen scale, batch norm, and a palette that `state_dict()` leaves out."""

    class SpriteModel(nn.Module):
        palette: Any

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
            self.decoder = nn.Linear(4, 4)
            self.decoder.weight = self.encoder[0].weight  # type: ignore[assignment]
            self.scale = nn.Parameter(torch.rand(3), requires_grad=False)
            self.register_buffer("palette", torch.rand(3, 3) + 1, persistent=False)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SpriteModel()


def _values(tensor: Any) -> Array | None:
    try:
        return array(tensor)
    except (RuntimeError, TypeError):  # a tensor without values, such as one on "meta"
        return None


def _all_named(model: Any) -> dict[str, Any]:
    """Every tensor by each of its names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return named | dict(model.named_buffers(remove_duplicate=False))


# ---- move_model ------------------------------------------------------------------------------------------------------


def _moved(call: Call, device: Any, start: Any = "cpu", model: Any = None) -> dict[str, Any]:
    model = _sprite_model(call.seed).to(start) if model is None else model
    if start == "cpu":
        model.eval()
    else:
        model.train()
        model.encoder[1].eval()  # one batch norm frozen, as for fine-tuning
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if list(model.parameters()) else None
    wanted = str(torch.empty(0, device=device).device)
    value = call(model, device)
    copies = call.ledger.transfers()
    found = value if type(value) is type(model) else model  # one mistake is enough: the rest is judged on the model
    named = _all_named(found)
    facts: dict[str, Any] = {
        "same": value is model,
        "class": type(value).__name__,
        "copied": value is not model and type(value) is type(model),
        "wanted_device": wanted,
        "parameters": {name: str(p.device) for name, p in found.named_parameters(remove_duplicate=False)},
        "buffers": {name: str(b.device) for name, b in found.named_buffers(remove_duplicate=False)},
        "copies": len(copies),
        "line": next((call.line_of(t) for t in copies), None),
        "values": {name: _values(tensor) for name, tensor in named.items()},
        "modes": {name or "the model": module.training for name, module in found.named_modules()},
        "learnable": {name: p.requires_grad for name, p in found.named_parameters(remove_duplicate=False)},
    }
    if optimizer is not None:
        facts["tied"] = named.get("encoder.0.weight") is named.get("decoder.weight")
        facts["stepped"] = _after_a_step(found, optimizer)
    return facts


def _after_a_step(model: Any, optimizer: Any) -> dict[str, Any]:
    """The parameters after gradients of one and a step of the optimizer that was built before."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    with contextlib.suppress(RuntimeError):  # its parameters and their gradients are apart: nothing is updated
        optimizer.step()
    return {name: _values(p) for name, p in model.named_parameters(remove_duplicate=False)}


@move.probe
def from_the_cpu(call: Call) -> dict[str, Any]:
    return _moved(call, call.device)


@move.probe
def already_there(call: Call) -> dict[str, Any]:
    """By the other name of the device: `cuda` for `cuda:0`."""
    return _moved(call, call.device.type, start=call.device)


@move.probe
def stays_on_the_cpu(call: Call) -> dict[str, Any]:
    return _moved(call, "cpu")


@move.probe
def back_to_the_cpu(call: Call) -> dict[str, Any]:
    return _moved(call, torch.device("cpu"), start=call.device)


def to_the_second_gpu(call: Call) -> dict[str, Any]:
    return _moved(call, "cuda:1")


move.probe(to_the_second_gpu, machine="two gpus")


@move.probe
def nothing_to_move(call: Call) -> dict[str, Any]:
    """A model without parameters."""
    return _moved(call, call.device, model=nn.Sequential(nn.Flatten(), nn.ReLU()))


runs(move, points=0.5)


def _left(devices: dict[str, str], wanted: str) -> list[str]:
    return [name for name, device in devices.items() if device != wanted]


@move.check(points=1)
def moves_every_parameter(seen: Seen, wanted: Seen) -> None:
    """Every parameter is on the device afterwards."""
    facts = seen["from_the_cpu"].facts
    left = _left(facts["parameters"], facts["wanted_device"])
    if left:
        raise Failed(
            f"`{left[0]}` is on {facts['parameters'][left[0]]}"
            + (f", though {facts['copies']} copies were made on the way" if facts["copies"] else ""),
            f"every parameter on {facts['wanted_device']}",
            facts["line"],
            "result-thrown-away" if facts["copies"] else "model-not-moved",
        )


@move.check(points=1, needs=("runs", "moves_every_parameter"))
def returns_the_same_model(seen: Seen, wanted: Seen) -> None:
    """It returns the model it was given, not another one."""
    for name, observation in seen.items():
        facts = observation.facts
        if facts["same"]:
            continue
        if facts["copied"]:
            raise Failed(
                f"scenario `{name}` got another {facts['class']} back",
                "the same object that was passed in",
                facts["line"],
                "model-copied",
            )
        raise Failed(f"scenario `{name}` got a {facts['class']} back", "the same object that was passed in")


@move.check(points=1, needs=("runs", "moves_every_parameter"))
def moves_every_buffer(seen: Seen, wanted: Seen) -> None:
    """Every buffer is on the device afterwards, those outside `state_dict()` too."""
    facts = seen["from_the_cpu"].facts
    left = _left(facts["buffers"], facts["wanted_device"])
    if left:
        raise Failed(
            f"the buffer `{left[0]}` is on {facts['buffers'][left[0]]}",
            f"every buffer on {facts['wanted_device']}",
            misconception="state-dict-is-not-all" if left == ["palette"] else "buffers-forgotten",
        )


@move.check(points=0.5, needs=("runs", "moves_every_parameter"))
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """The model ends up on the very device passed in, whatever this machine has."""
    for name in ("stays_on_the_cpu", "back_to_the_cpu", "to_the_second_gpu", "already_there"):
        facts = seen[name].facts
        devices = facts["parameters"]
        left = _left(devices, facts["wanted_device"])
        if not left:
            continue
        misconception = None
        if name == "stays_on_the_cpu":
            misconception = "hard-coded-cuda"
        elif name == "to_the_second_gpu" and devices[left[0]] == "cuda:0":
            misconception = "device-index-dropped"
        raise Failed(
            f"with device={facts['wanted_device']!r} the parameter `{left[0]}` ended up on {devices[left[0]]}",
            f"{facts['wanted_device']}, as asked",
            facts["line"],
            misconception,
        )


@move.check(points=0.5, needs=("runs", "returns_the_same_model", "moves_every_parameter"))
def keeps_the_optimizer_working(seen: Seen, wanted: Seen) -> None:
    """An optimizer that was built before still updates the model."""
    for name, observation in wanted.items():
        right, facts = observation.facts, seen[name].facts
        if "stepped" not in right:
            continue
        for parameter, before in facts["values"].items():
            if not (right["learnable"].get(parameter) and facts["learnable"].get(parameter)):
                continue
            if facts["stepped"].get(parameter) == before:
                raise Failed(
                    f"after the move, optimizer.step() left `{parameter}` as it was (scenario `{name}`)",
                    "the parameters the optimizer holds are those of the model",
                    facts["line"],
                    "parameters-replaced",
                )


@move.check(points=0.5, needs=("runs", "moves_every_parameter"))
def changes_nothing_else(seen: Seen, wanted: Seen) -> None:
    """Values, training mode and shared weights stay as they were."""
    for name, observation in wanted.items():
        right, facts = observation.facts, seen[name].facts
        for module, mode in right["modes"].items():
            if facts["modes"].get(module) != mode:
                shown = {True: "training", False: "evaluation", None: "no"}[facts["modes"].get(module)]
                mode_wanted = "training" if mode else "evaluation"
                raise Failed(f"afterwards {module} is in {shown} mode (scenario `{name}`)", f"{mode_wanted} mode")
        for tensor, value in right["values"].items():
            if facts["values"].get(tensor) != value:
                raise Failed(f"{_changed(tensor, facts['values'].get(tensor), value)} (scenario `{name}`)", "no change")
        if facts["learnable"] != right["learnable"]:
            raise Failed(f"`requires_grad` of a parameter changed (scenario `{name}`)", "no change")
        if facts.get("tied") != right.get("tied"):
            raise Failed(
                f"two layers that shared one weight have two now (scenario `{name}`)",
                "one shared weight",
                misconception="parameters-replaced",
            )


def _changed(tensor: str, found: Array | None, right: Array) -> str:
    if found is None:
        return f"`{tensor}` has no values any more"
    if found.dtype != right.dtype:
        return f"`{tensor}` became {found.dtype}, from {right.dtype}"
    return f"the values of `{tensor}` changed"


# ---- parameter_devices -----------------------------------------------------------------------------------------------


def _told(call: Call, model: Any) -> dict[str, Any]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    actual = {name: str(tensor.device) for name, tensor in _all_named(model).items()}
    names: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    value = call(model)
    is_dict = isinstance(value, dict)
    items = [(str(key), told) for key, told in value.items()] if is_dict else []
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
    }


@tell.probe
def all_in_one_place(call: Call) -> dict[str, Any]:
    return _told(call, _sprite_model(call.seed).to(call.device))


def spread_out(call: Call) -> dict[str, Any]:
    model = _sprite_model(call.seed)
    model.encoder.to("cuda:1")
    model.palette = model.palette.to("cuda:0")
    return _told(call, model)


tell.probe(spread_out, machine="two gpus")


@tell.probe
def nothing_to_tell(call: Call) -> dict[str, Any]:
    return _told(call, nn.ReLU())


runs(tell, points=0.5)


def _as_dict(name: str, seen: Seen) -> dict[str, Any]:
    facts: dict[str, Any] = seen[name].facts
    if not facts["is_dict"]:
        raise Failed(f"it returned a {facts['class']}", "a dict from names to devices")
    return facts


@tell.check(points=1)
def names_every_parameter(seen: Seen, wanted: Seen) -> None:
    """It names every parameter by its qualified name, and nothing that is not in the model."""
    for scenario in seen:
        facts = _as_dict(scenario, seen)
        strangers = [name for name in facts["told"] if name not in facts["actual"]]
        if strangers:
            right = max(facts["actual"], key=lambda name: name.count("."), default=None)
            expected = f"names such as `{right}`" if right else "an empty dict for a model without any"
            raise Failed(f"it names `{strangers[0]}`, which this model does not have", expected)
        for names in facts["parameters"]:
            if not any(name in facts["told"] for name in names):
                raise Failed(f"the parameter `{names[0]}` is missing", "every parameter of the model")


@tell.check(points=1)
def names_every_buffer(seen: Seen, wanted: Seen) -> None:
    """It names every buffer as well."""
    for scenario in seen:
        facts = _as_dict(scenario, seen)
        missing = [name for name in facts["buffers"] if name not in facts["told"]]
        if missing:
            unsaved = not any(name in facts["saved"] for name in missing)
            raise Failed(
                f"the buffer `{missing[0]}` is missing",
                "every buffer of the model",
                misconception="state-dict-is-not-all" if unsaved else "buffers-forgotten",
            )


@tell.check(points=0.5, needs=("runs", "names_every_parameter"))
def tells_the_device(seen: Seen, wanted: Seen) -> None:
    """For each it gives the torch.device where it is, index included."""
    for scenario in seen:
        facts = _as_dict(scenario, seen)
        for name in facts["no_device"]:
            kind = facts["classes"][name]
            raise Failed(
                f"`{name}` is said to be on {facts['told'][name]!r}, a {kind}",
                "a torch.device",
                misconception="string-for-device" if kind == "str" else None,
            )
        for name, told in facts["told"].items():
            actual = facts["actual"].get(name)
            if actual is None or told.removesuffix(":0") == actual.removesuffix(":0"):
                continue
            dropped = actual != "cpu" and told.removesuffix(":0") == actual.partition(":")[0]
            raise Failed(
                f"`{name}` is said to be on {told} (scenario `{scenario}`)",
                actual,
                misconception="device-index-dropped" if dropped else None,
            )
