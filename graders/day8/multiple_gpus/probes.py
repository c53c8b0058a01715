"""Where does the model go, what comes out of its wrapper, and what do two processes make of their gradients?"""

from __future__ import annotations

from typing import Any

from graders.day8.multiple_gpus.functions import average, inside, parallel
from graders.probes.calling import Call
from graders.probes.late import nn, torch
from graders.probes.two_ranks import two_ranks


def _model() -> Any:
    """Small, with parameters and buffers; nothing here looks at its values."""
    return nn.BatchNorm1d(2).eval()


def _spread(call: Call, *devices: Any) -> dict[str, Any]:
    """Devices as text and as torch.device: by what a student would write."""
    return {repr(device): _one(call, device) for device in devices}


def _one(call: Call, device: Any) -> dict[str, Any]:
    model = _model()
    parameters = list(model.parameters())
    result = call(model, device)
    wraps, core = 0, result
    while isinstance(core, nn.DataParallel):
        wraps, core = wraps + 1, core.module
    there = isinstance(core, nn.Module)
    return {
        "class": type(result).__name__,
        "is_module": isinstance(result, nn.Module),
        "wraps": wraps,
        "same": core is model,
        "same_parameters": there and [id(p) for p in core.parameters()] == [id(p) for p in parameters],
        "gpus": [int(index) for index in result.device_ids] if wraps else [],
        "devices": sorted({str(t.device) for t in (*core.parameters(), *core.buffers())}) if there else [],
    }


@parallel.probe(machine="two gpus")
def two_gpus(call: Call) -> dict[str, Any]:
    return _spread(call, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0"), "cpu")


@parallel.probe(machine="one gpu")
def one_gpu(call: Call) -> dict[str, Any]:
    return _spread(call, "cuda", torch.device("cuda:0"), "cpu")


@parallel.probe(machine="laptop")
def no_gpu(call: Call) -> dict[str, Any]:
    return _spread(call, "cpu")


def _own_module() -> Any:
    """A model that is not wrapped, with a part that happens to be called `module`."""
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    return model


def _inside(call: Call, wrap: Any, plain: Any) -> dict[str, Any]:
    plain.train()
    found = call(wrap(plain))
    return {
        "class": type(found).__name__,
        "inside": type(plain).__name__,
        "same": found is plain,
        "training": plain.training,
    }


def _distributed(model: Any) -> Any:
    """A DistributedDataParallel around a model, without the group of processes its constructor asks for."""
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    return wrapper


@inside.probe(machine="laptop")
def wrappers(call: Call) -> dict[str, Any]:
    return {
        "DataParallel": _inside(call, nn.DataParallel, _model()),
        "DistributedDataParallel": _inside(call, _distributed, _model()),
        "DataParallel around a model with a `module`": _inside(call, nn.DataParallel, _own_module()),
    }


@inside.probe(machine="laptop")
def plain_models(call: Call) -> dict[str, Any]:
    return {
        "a Sequential": _inside(call, lambda model: model, nn.Sequential(_model())),
        "a Linear": _inside(call, lambda model: model, nn.Linear(2, 2)),
        "a model with a part called `module`": _inside(call, lambda model: model, _own_module()),
    }


@average.probe(machine="laptop")
def two_processes(call: Call) -> dict[str, Any]:
    """Both call it with gradients of their own, and then each in a group of its own."""
    first, second = two_ranks(call.function, call.path, "average_gradients")
    return {"rank 0": first, "rank 1": second}
