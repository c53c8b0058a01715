"""`parallelize`: a model on one device, or spread over all GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from gpudojo.days.day8.multiple_gpus.declaration import parallelize
from gpudojo.days.day8.multiple_gpus.small_model import make_model
from gpudojo.grading.call import Call, nn, torch, try_scenarios
from gpudojo.grading.checks import runs, scenario_pairs
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed, Probe, Seen, returned_other_type, with_article


class Spread(Case, frozen=True):
    """The result for one device."""

    kind: str
    is_module: bool
    wraps: int  # how many DataParallel are around the model
    same: bool  # whether the model inside is the one passed in
    same_parameters: bool
    gpus: list[int]
    devices: list[str]


def _spreads(wrapper: Any) -> bool:
    """True if a DataParallel, or one of a student's own class, runs the model as torch's does."""
    own = type(wrapper)
    torchs = nn.DataParallel
    steps = ("__call__", "forward", "replicate", "scatter", "parallel_apply", "gather")
    return all(
        getattr(own, name) is getattr(torchs, name) and name not in vars(wrapper) for name in steps
    )


def _one(call: Call, device: Any) -> Spread:
    """Call the student's function for one device and describe the result. Raises StudentRaised."""
    model = make_model()
    parameters = list(model.parameters())
    result = call(model, device)
    wraps = 0
    core = result
    while isinstance(core, nn.DataParallel) and _spreads(core):
        wraps = wraps + 1
        core = core.module
    there = isinstance(core, nn.Module)
    return Spread(
        kind=type(result).__name__,
        is_module=isinstance(result, nn.Module),
        wraps=wraps,
        same=core is model,
        same_parameters=there and [id(p) for p in core.parameters()] == [id(p) for p in parameters],
        gpus=[int(index) for index in result.device_ids] if wraps else [],
        devices=sorted({str(t.device) for t in (*core.parameters(), *core.buffers())})
        if there
        else [],
    )


def _spread(call: Call, words: str, *devices: Any) -> Cases[Spread]:
    """One call for each device, a string or a torch.device."""
    return try_scenarios(
        {f"with {words} and device={device!r}": partial(_one, call, device) for device in devices}
    )


@parallelize.probe(machine="two gpus")
def two_gpus(call: Call) -> Cases[Spread]:
    return _spread(
        call, "two GPUs", "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0"), "cpu"
    )


@parallelize.probe(machine="one gpu")
def one_gpu(call: Call) -> Cases[Spread]:
    return _spread(call, "one GPU", "cuda", torch.device("cuda:0"), "cpu")


@parallelize.probe(machine="three gpus", edge=True)
def three_gpus(call: Call) -> Cases[Spread]:
    return _spread(call, "three GPUs", "cuda")


@parallelize.probe(machine="laptop", edge=True)
def no_gpu(call: Call) -> Cases[Spread]:
    return _spread(call, "no GPU", "cpu")


def _about_cuda(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error about CUDA on a machine without a GPU; None for other errors."""
    about = "cuda" in raised.message.lower() or "nvidia" in raised.message.lower()
    return "cuda-for-every-device" if "no GPU" in raised.scenario and about else None


runs(parallelize, diagnose=_about_cuda)


def _calls(
    seen: Seen, wanted: Seen, *more: Probe[Cases[Spread]]
) -> Iterator[tuple[str, Spread, Spread]]:
    probes = (two_gpus, one_gpu, three_gpus, *more)
    return scenario_pairs(seen.cases(*probes), wanted.cases(*probes))


@parallelize.check(points=0.25)
def moves_the_model(seen: Seen, wanted: Seen) -> None:
    """It returns a model whose parameters and buffers are on the device."""
    for name, found, right in _calls(seen, wanted, no_gpu):
        if not found.is_module:
            raise returned_other_type(found.kind, "a model", f"{name} ")
        if found.devices != right.devices and found.wraps == right.wraps:  # a wrapper moves it too
            key = "model-not-moved" if found.devices == ["cpu"] else "hard-coded-cuda"
            happened = f"{name} its parameters are on {', '.join(found.devices)}"
            raise Failed(happened, ", ".join(right.devices), misconception=key)


@parallelize.check(points=0.5)
def wraps_for_several_gpus(seen: Seen, wanted: Seen) -> None:
    """It is wrapped in `nn.DataParallel` over all GPUs exactly if the device is CUDA and there are several."""
    for name, found, right in _calls(seen, wanted):
        if found.wraps != right.wraps:
            wrapped = {0: f"{with_article(found.kind)}, not wrapped", 1: "a DataParallel"}
            shown = wrapped.get(found.wraps, "a DataParallel in a DataParallel")
            at = ("unused DataParallel(",) if found.wraps < right.wraps else ()
            at = (*at, "device_count(", '== "cuda"') if found.wraps < 2 else ()
            raise Failed(
                f"{name} it returned {shown}",
                "nn.DataParallel" if right.wraps else "the model itself",
                at=at,
            )
        if found.gpus != right.gpus:
            raise Failed(f"{name} it uses the GPUs {found.gpus}", f"all of them: {right.gpus}")


@parallelize.check(points=0.25, needs=("runs", "moves_the_model"))
def keeps_the_model_itself(seen: Seen, wanted: Seen) -> None:
    """The model that was passed in is moved and wrapped, not a copy of it."""
    for name, found, _ in _calls(seen, wanted):
        expected = "the same object, with the same parameters"
        if not found.same_parameters:
            happened = f"{name} the model in the result is not the one passed in"
            raise Failed(happened, expected, misconception="copied-before-wrapping")
        if not found.same:
            raise Failed(f"{name} the result has the model inside another module", expected)
