"""What becomes of a tensor that is turned into an array, and of sprites that are made on a device?"""

from __future__ import annotations

from typing import Any

from graders.day8.minimizing_transfers.functions import random_sprites, to_numpy
from graders.evidence import Array
from graders.probes.calling import Call, StudentRaised, array, several
from graders.probes.late import nn, torch
from graders.probes.sprites import sprites

DTYPES = ("float32", "float16", "float64", "int64", "uint8", "bool")


def _tensors(seed: int, device: Any) -> dict[str, Any]:
    """One tensor for each thing that can make a conversion go wrong; none shares its memory with another."""
    base = sprites(2, seed)[0].to(device)
    weight = base.clone().requires_grad_()
    return {
        "that is a parameter": nn.Parameter(base.clone()),
        "that requires grad": weight,
        "with a graph behind it": weight * 2,
        "without a dimension": base.amax(),  # the same number on every device, as no mean is
        "without elements": base[:0],
        "of one pixel": base[:1, :, :1, :1].clone(),
        "transposed": base.clone().transpose(1, 3),
    }


def _typed(seed: int, device: Any) -> dict[str, Any]:
    """One tensor for each dtype; the numbers do not fit into a smaller one."""
    numbers = sprites(2, seed)[0] * 200
    made = {dtype: numbers.to(getattr(torch, dtype)) for dtype in DTYPES}
    made["bool"] = numbers > 100
    if device.type == "mps":
        del made["float64"]  # which it does not have
    return {dtype: tensor.to(device) for dtype, tensor in made.items()}


def _converted(call: Call, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: _as_numpy(call, tensor) for name, tensor in tensors.items()}


def _as_numpy(call: Call, tensor: Any) -> dict[str, Any]:
    """The array that came out, and whether the tensor is still as it was."""
    before = (tensor.requires_grad, tensor.device, tensor.is_leaf, tensor.shape)
    try:
        value = call(tensor)
    except StudentRaised as error:
        back = [t for t in call.ledger.transfers_to_host() if t.bytes == tensor.nbytes]
        error.facts["copied"] = {"tensor": call.line_of(back[0])} if back else {}
        raise
    return {
        "class": type(value).__name__,
        "value": _evidence(value),
        "switched": before[0] != tensor.requires_grad,
        "moved": before[1:] != (tensor.device, tensor.is_leaf, tensor.shape),
        "left": array(tensor),
    }


def _evidence(value: Any) -> Any:
    """A NumPy array as evidence; None for anything else."""
    import numpy as np

    if not isinstance(value, np.ndarray):
        return None
    return Array(value.dtype.name, value.shape, value.tobytes() if value.dtype.kind in "biuf" else b"")


@to_numpy.probe
def arrays(call: Call) -> dict[str, Any]:
    device = call.device
    return several(
        {
            "from_the_device": lambda: _converted(call, _tensors(call.seed, device) | _typed(call.seed, device)),
            "from_the_cpu": lambda: _converted(call, _tensors(call.seed, "cpu")),
        }
    )


COUNT, EDGE = 40, 5  # 3000 values


def _made(call: Call, device: Any, **options: Any) -> Any:
    """What one call gave, described."""
    value = call(COUNT, EDGE, device, **options)
    default = torch.get_default_device().type
    torch.set_default_device(
        None
    )  # also if it is the CPU: set by name, it is handed to every factory, even beside `out`
    moved = call.ledger.transfers()
    is_tensor = isinstance(value, torch.Tensor)
    return {
        "class": type(value).__name__,
        "dtype": str(value.dtype).removeprefix("torch.") if is_tensor else None,
        "device": str(value.device) if is_tensor else None,
        "value": array(value) if is_tensor else None,
        "moved": sum(t.bytes for t in moved),
        "line": call.line_of(moved[0]) if moved else None,
        "default_device": default,
    }


def _without_a_generator(call: Call, device: Any) -> dict[str, Any]:
    """From torch's own random state, seeded by us."""
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(call.seed)
        found = {"first": _made(call, device), "next": _made(call, device)}
        torch.manual_seed(call.seed)
        found["again"] = _made(call, device)
        torch.manual_seed(call.seed + 1)
        found["other"] = _made(call, device)
    return found


def _with_generators(call: Call, device: Any) -> dict[str, Any]:
    """From generators of the device; one that is refused says where the student's values were made."""

    def dice(seed: int) -> Any:
        return torch.Generator(device=device).manual_seed(call.seed + seed)

    found: dict[str, Any] = {}
    first = dice(0)
    draws = (("first", first), ("next", first), ("again", dice(0)), ("other", dice(1)))
    try:
        for name, generator in draws:
            found[f"generator {name}"] = _made(call, device, generator=generator)
    except StudentRaised as error:
        if "device type for generator" not in error.evidence.message:
            raise
        found["refused"] = {"message": error.evidence.message, "line": error.evidence.line}
    return found


def _draws(call: Call, device: Any) -> dict[str, Any]:
    """Every draw on the device, and one more with the device as a string."""
    found = _without_a_generator(call, device) | _with_generators(call, device)
    found["by name"] = _made(call, torch.device(device).type)
    return {**found, "wanted_device": str(torch.empty(0, device=device).device)}


@random_sprites.probe
def draws(call: Call) -> dict[str, Any]:
    device = call.device
    cpu = torch.device("cpu")
    return several({"on_the_device": lambda: _draws(call, device), "on_the_cpu": lambda: _draws(call, cpu)})
