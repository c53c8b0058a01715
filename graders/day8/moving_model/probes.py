"""What became of a model that was to be moved, and where are its tensors said to be?"""

from __future__ import annotations

import functools
from typing import Any

from graders.day8.moving_model.functions import move, tell
from graders.probes.calling import Call
from graders.probes.late import nn, torch
from graders.probes.scenarios import tried
from graders.probes.settings import settled


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
