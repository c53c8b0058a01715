"""`parallelize`: a model on one device, or spread over all GPUs."""

from __future__ import annotations

from typing import Any, Final

from gpudojo.days.day8.multiple_gpus.declaration import parallelize
from gpudojo.days.day8.multiple_gpus.small_model import make_model
from gpudojo.grading.call import Call, nn, torch, try_inputs
from gpudojo.grading.checks import check_scenarios, is_about_cuda, runs
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed, Seen, returned_other_type, with_article

# The methods by which a DataParallel runs the model on all GPUs
RUNNING: Final = ("__call__", "forward", "replicate", "scatter", "parallel_apply", "gather")

# ---- scenarios ---------------------------------------------------------------------------------


class Spread(Case, frozen=True):
    """The result for one device."""

    kind: str
    is_module: bool
    wraps: int  # how many DataParallel are around the model
    same: bool  # whether the model inside is the one passed in
    same_parameters: bool
    gpus: list[int]
    devices: list[str]  # of its parameters
    buffer_devices: list[str]


def _is_spread(wrapper: Any) -> bool:
    """True if a DataParallel, or one of a student's own class, runs the model as torch's does."""
    for name in RUNNING:
        method = getattr(type(wrapper), name)
        if method is not getattr(nn.DataParallel, name) or name in vars(wrapper):
            return False
    return True


def _call_parallelize(call: Call, device: Any) -> Spread:
    """Call the student's function for one device and describe the result. Raises StudentRaised."""
    model = make_model()
    own_parameters = list(map(id, model.parameters()))
    result = call(model, device)
    # The model inside of all wrappers
    gpus: list[int] = []
    wraps = 0
    inner = result
    while isinstance(inner, nn.DataParallel) and _is_spread(inner):
        gpus = list(map(int, result.device_ids))
        wraps += 1
        inner = inner.module
    # Its tensors; something else has none
    parameters = []
    devices = set()
    buffer_devices = set()
    if isinstance(inner, nn.Module):
        parameters = list(map(id, inner.parameters()))
        devices = {str(parameter.device) for parameter in inner.parameters()}
        buffer_devices = {str(buffer.device) for buffer in inner.buffers()}
    return Spread(
        kind=type(result).__name__,
        is_module=isinstance(result, nn.Module),
        wraps=wraps,
        same=inner is model,
        same_parameters=parameters == own_parameters,
        gpus=gpus,
        devices=sorted(devices),
        buffer_devices=sorted(buffer_devices),
    )


def _try_devices(call: Call, words: str, *devices: Any) -> Cases[Spread]:
    """One call for each device, a string or a torch.device. `words` name the machine's GPUs.

    Raises StudentRaised for an error about a closed device or memory.
    """
    inputs = {}
    for device in devices:
        inputs[f"with {words} and device={device!r}"] = device
    return try_inputs(_call_parallelize, call, inputs)


@parallelize.probe(machine="two gpus")
def two_gpus(call: Call) -> Cases[Spread]:
    """Beside two GPUs, each way of naming the first one, and the CPU.

    Raises StudentRaised for an error about a closed device or memory.
    """
    first = torch.device("cuda:0")
    return _try_devices(call, "two GPUs", "cuda", "cuda:0", torch.device("cuda"), first, "cpu")


@parallelize.probe(machine="one gpu")
def one_gpu(call: Call) -> Cases[Spread]:
    return _try_devices(call, "one GPU", "cuda", torch.device("cuda:0"), "cpu")


@parallelize.probe(machine="three gpus", edge=True)
def three_gpus(call: Call) -> Cases[Spread]:
    return _try_devices(call, "three GPUs", "cuda")


@parallelize.probe(machine="laptop", edge=True)
def no_gpu(call: Call) -> Cases[Spread]:
    return _try_devices(call, "no GPU", "cpu")


# ---- claims ------------------------------------------------------------------------------------


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error about CUDA on a machine without a GPU; None for other errors."""
    if "no GPU" in raised.scenario and is_about_cuda(raised.message):
        return "cuda-for-every-device"
    return None


runs(parallelize, diagnose=_why_it_raises)


PROBES_WITH_GPUS: Final = (two_gpus, one_gpu, three_gpus)


@check_scenarios(parallelize, *PROBES_WITH_GPUS, no_gpu, points=0.25)
def moves_the_model(scenario: str, found: Spread, right: Spread) -> None:
    """It returns a model whose parameters and buffers are on the device."""
    if not found.is_module:
        raise returned_other_type(found.kind, "a model", f"{scenario} ")
    # A wrapper moves the model too: a wrong number of them is another check's.
    if found.wraps != right.wraps:
        return
    if found.devices != right.devices:
        happened = f"{scenario} its parameters are on {_listed(found.devices)}"
        key = "hard-coded-cuda"
        if found.devices == ["cpu"]:
            key = "model-not-moved"
        raise Failed(happened, _listed(right.devices), misconception=key)
    if found.buffer_devices != right.buffer_devices:
        parameters = f"its parameters are on {_listed(found.devices)}"
        happened = f"{scenario} {parameters}, its buffers on {_listed(found.buffer_devices)}"
        expected = f"both on {_listed(right.buffer_devices)}"
        at = (".data =", "parameters(")
        raise Failed(happened, expected, None, "buffers-forgotten", at)


def _listed(devices: list[str]) -> str:
    """Devices in words; "no device" for what has no tensors."""
    return ", ".join(devices) or "no device"


@check_scenarios(parallelize, *PROBES_WITH_GPUS, points=0.5)
def wraps_for_several_gpus(scenario: str, found: Spread, right: Spread) -> None:
    """It is wrapped in `nn.DataParallel` over all GPUs exactly if the device is CUDA and there are
    several."""
    if found.wraps != right.wraps:
        raise _wrapped_otherwise(scenario, found, right)
    if found.gpus != right.gpus:
        happened = f"{scenario} it uses the GPUs {found.gpus}"
        raise Failed(happened, f"all of them: {right.gpus}")


def _wrapped_otherwise(name: str, found: Spread, right: Spread) -> Failed:
    """The failure of a model with too few or too many wrappers. It is returned, not raised.

    `name` is the scenario.
    """
    returned = f"{name} it returned"
    expected = "the model itself"
    if right.wraps:
        expected = "nn.DataParallel"
    if found.wraps > 1:
        return Failed(f"{returned} a DataParallel in a DataParallel", expected)
    condition = ("device_count(", '== "cuda"')
    if found.wraps:
        at = ("== .device_count", "reached DataParallel(", *condition)
        return Failed(f"{returned} a DataParallel", expected, at=at)
    happened = f"{returned} {with_article(found.kind)}, not wrapped"
    at = ("unused DataParallel(", "skipped DataParallel(", *condition)
    return Failed(happened, expected, at=at)


@check_scenarios(parallelize, *PROBES_WITH_GPUS, points=0.25, needs=("runs", "moves_the_model"))
def keeps_the_model_itself(scenario: str, found: Spread, right: Spread) -> None:
    """The model that was passed in is moved and wrapped, not a copy of it."""
    expected = "the same object, with the same parameters"
    if not found.same_parameters:
        happened = f"{scenario} the model in the result is not the one passed in"
        raise Failed(happened, expected, misconception="copied-before-wrapping")
    if not found.same:
        happened = f"{scenario} the result has the model inside another module"
        raise Failed(happened, expected)
