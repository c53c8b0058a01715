"""11: several GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gpudojo.days.day8.two_ranks import two_ranks
from gpudojo.grading.call import Call, nn, torch
from gpudojo.grading.checks import pairs, runs
from gpudojo.model.evidence import Case, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "11_multiple_gpus",
    "One model on several GPUs",
    points=3,
    reading=("generated/torch.nn.DataParallel.html", "distributed.html", "notes/ddp.html"),
)
parallel = exercise.function(
    "parallelize",
    "`model.to(device)` first; then `nn.DataParallel(model)` if there are several GPUs.",
    '`torch.device(device).type == "cuda"` holds for "cuda" and "cuda:0"; `torch.cuda.device_count()` counts the GPUs.',
)
inside = exercise.function(
    "unwrap",
    "Both wrappers keep the model as `.module`.",
    "`isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))` recognises the wrappers.",
)
average = exercise.function(
    "average_gradients",
    "`dist.all_reduce(tensor)` replaces the tensor in every process by the sum over all processes.",
    "A mean is a sum divided by `dist.get_world_size()`.",
    "Only `.grad` changes. Skip parameters where it is None, the same ones in every process.",
)
parallel.when("moves_the_model", "keeps_the_model_itself", hint=1, at=("return", "last return"))
parallel.when("wraps_for_several_gpus", hint=2, at=("DataParallel(", "return", "last return"))
inside.when("runs", "finds_the_model_inside", hint=2, at=("eval(", "deepcopy(", "isinstance(", "return"))
inside.when("leaves_other_models_whole", hint=2, at=("eval(", "deepcopy(", "last return"))
average.when("makes_them_the_mean", hint=1, at=("all_reduce(", "reduce(", "for"))
average.when("gradients-summed-not-averaged", "asks_how_many_there_are", hint=2, at=("all_reduce(", "for"))
average.when("runs", "leaves_the_rest_alone", hint=3, at=("all_reduce(", "for"))


# ---- parallelize -----------------------------------------------------------------------------------------------------


class Spread(Case, frozen=True):
    """The result for one device."""

    kind: str
    is_module: bool
    wraps: int  # how many DataParallel are around the model
    same: bool  # whether the model inside is the one passed in
    same_parameters: bool
    gpus: list[int]
    devices: list[str]


def _model() -> Any:
    """Small, with parameters and buffers; their values do not matter."""
    return nn.BatchNorm1d(2).eval()


def _spread(call: Call, *devices: Any) -> dict[str, Spread]:
    """One call for each device, a string or a torch.device, by its repr."""
    return {repr(device): _one(call, device) for device in devices}


def _one(call: Call, device: Any) -> Spread:
    model = _model()
    parameters = list(model.parameters())
    result = call(model, device)
    wraps, core = 0, result
    while isinstance(core, nn.DataParallel):
        wraps, core = wraps + 1, core.module
    there = isinstance(core, nn.Module)
    return Spread(
        kind=type(result).__name__,
        is_module=isinstance(result, nn.Module),
        wraps=wraps,
        same=core is model,
        same_parameters=there and [id(p) for p in core.parameters()] == [id(p) for p in parameters],
        gpus=[int(index) for index in result.device_ids] if wraps else [],
        devices=sorted({str(t.device) for t in (*core.parameters(), *core.buffers())}) if there else [],
    )


@parallel.probe(machine="two gpus")
def two_gpus(call: Call) -> dict[str, Spread]:
    return _spread(call, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0"), "cpu")


@parallel.probe(machine="one gpu")
def one_gpu(call: Call) -> dict[str, Spread]:
    return _spread(call, "cuda", torch.device("cuda:0"), "cpu")


@parallel.probe(machine="laptop")
def no_gpu(call: Call) -> dict[str, Spread]:
    return _spread(call, "cpu")


def _about_cuda(raised: Raised, seen: Seen) -> str | None:
    """An error about CUDA on a machine without a GPU, where none was asked for."""
    about = "cuda" in raised.message.lower() or "nvidia" in raised.message.lower()
    return "hard-coded-cuda" if raised.scenario == "no_gpu" and about else None


runs(parallel, diagnose=_about_cuda)


def _calls(seen: Seen, wanted: Seen) -> Iterator[tuple[str, Spread, Spread]]:
    for probe, words in ((two_gpus, "two GPUs"), (one_gpu, "one GPU"), (no_gpu, "no GPU")):
        for device, found, right in pairs(seen[probe], wanted[probe]):
            yield f"with {words} and device={device}", found, right


@parallel.check(points=0.25)
def moves_the_model(seen: Seen, wanted: Seen) -> None:
    """It returns a model whose parameters and buffers are on the device."""
    for name, found, right in _calls(seen, wanted):
        if not found.is_module:
            raise Failed(f"{name} it returned {called(found.kind)}", "a model")
        if found.devices != right.devices and found.wraps == right.wraps:  # a wrapper moves it too
            key = "model-not-moved" if found.devices == ["cpu"] else "hard-coded-cuda"
            happened = f"{name} its parameters are on {', '.join(found.devices)}"
            raise Failed(happened, ", ".join(right.devices), misconception=key)


@parallel.check(points=0.5)
def wraps_for_several_gpus(seen: Seen, wanted: Seen) -> None:
    """It is wrapped in `nn.DataParallel` over all GPUs exactly if the device is CUDA and there are several."""
    for name, found, right in _calls(seen, wanted):
        if found.wraps != right.wraps:
            wrapped = {0: f"{called(found.kind)}, not wrapped", 1: "a DataParallel"}
            shown = wrapped.get(found.wraps, "a DataParallel in a DataParallel")
            raise Failed(f"{name} it returned {shown}", "nn.DataParallel" if right.wraps else "the model itself")
        if found.gpus != right.gpus:
            raise Failed(f"{name} it uses the GPUs {found.gpus}", f"all of them: {right.gpus}")


@parallel.check(points=0.25)
def keeps_the_model_itself(seen: Seen, wanted: Seen) -> None:
    """The model that was passed in is moved and wrapped, not a copy of it."""
    for name, found, _ in _calls(seen, wanted):
        if not found.same or not found.same_parameters:
            happened = f"{name} the model in the result is not the one passed in"
            expected = "the same object, with the same parameters"
            raise Failed(happened, expected, misconception="copied-before-wrapping")


# ---- unwrap ----------------------------------------------------------------------------------------------------------


class Inside(Case, frozen=True):
    """The result for one model."""

    kind: str
    inside: str  # the type of the model inside
    same: bool
    training: bool


def _own_module() -> Any:
    """A model that is not wrapped, with a part called `module`."""
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    return model


def _inside(call: Call, wrap: Any, plain: Any) -> Inside:
    plain.train()
    found = call(wrap(plain))
    return Inside(type(found).__name__, type(plain).__name__, found is plain, plain.training)


def _distributed(model: Any) -> Any:
    """A DistributedDataParallel around a model, without the process group that its constructor needs."""
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    return wrapper


@inside.probe(machine="laptop")
def wrappers(call: Call) -> dict[str, Inside]:
    return {
        "DataParallel": _inside(call, nn.DataParallel, _model()),
        "DistributedDataParallel": _inside(call, _distributed, _model()),
        "DataParallel around a model with a `module`": _inside(call, nn.DataParallel, _own_module()),
    }


@inside.probe(machine="laptop")
def plain_models(call: Call) -> dict[str, Inside]:
    return {
        "a Sequential": _inside(call, lambda model: model, nn.Sequential(_model())),
        "a Linear": _inside(call, lambda model: model, nn.Linear(2, 2)),
        "a model with a part called `module`": _inside(call, lambda model: model, _own_module()),
    }


runs(inside)


@inside.check(points=0.25)
def finds_the_model_inside(seen: Seen, wanted: Seen) -> None:
    """It returns the model inside `DataParallel` and `DistributedDataParallel`."""
    for name, found, _ in pairs(seen[wrappers], wanted[wrappers]):
        if not found.same:
            shown = f"another {found.kind}" if found.kind == found.inside else called(found.kind)
            raise Failed(f"for {name} it returned {shown}", "the same model that was wrapped")
        if not found.training:
            raise Failed(f"the model inside {name} was switched to evaluation mode", "its mode unchanged")


@inside.check(points=0.25)
def leaves_other_models_whole(seen: Seen, wanted: Seen) -> None:
    """A model that is not wrapped is returned unchanged."""
    for name, found, _ in pairs(seen[plain_models], wanted[plain_models]):
        if not found.same:
            key = "wrapper-guessed-by-attribute" if "`module`" in name else None
            happened = f"for {name} it returned {called(found.kind)}"
            raise Failed(happened, "the model itself", misconception=key)
        if not found.training:
            raise Failed(f"{name} was switched to evaluation mode", "its mode unchanged")


# ---- average_gradients -----------------------------------------------------------------------------------------------

Gradients = list[list[float] | None]  # one for each parameter


class Averaged(Case, frozen=True):
    """One call in one process."""

    gradients: Gradients
    weights_kept: bool
    group_kept: bool


class Rank(Case, frozen=True):
    """One process: in a group of two, and in a group of its own."""

    some: Averaged
    alone: Averaged


@average.probe(machine="laptop")
def two_processes(call: Call) -> dict[str, Rank]:
    """Both processes call it with their own gradients, and then each in a group of its own."""
    ranks = two_ranks(call.function, call.path, "average_gradients")
    return {f"rank {number}": msgspec.convert(found, Rank) for number, found in enumerate(ranks)}


runs(average)
RANKS = ("rank 0", "rank 1")


@average.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    answers = [seen[two_processes][rank].some.gradients for rank in RANKS]
    wished = wanted[two_processes]["rank 0"].some.gradients
    good = [_equal(answer, wished) for answer in answers]
    if all(good):
        return
    doubled: Gradients = [None if g is None else [2 * value for value in g] for g in wished]
    number = next(n for n in range(len(wished)) if not all(_equal(a[: n + 1], wished[: n + 1]) for a in answers))
    found = " and ".join(f"{_values(answer, number)} in {rank}" for rank, answer in zip(RANKS, answers, strict=True))
    misconception = None
    if any(good) and not any(_equal(answer, doubled) for answer in answers):  # one has the mean, one still its own
        misconception = "reduced-to-one-rank"
    elif all(_equal(answer, doubled) for answer in answers):
        misconception = "gradients-summed-not-averaged"
    happened = f"gradient {number + 1} of {len(wished)} is {found}"
    raise Failed(happened, f"{_values(wished, number)} in both", misconception=misconception)


def _values(gradients: Gradients, number: int = 0) -> str:
    found = gradients[number]
    return "None" if found is None else str([round(value, 3) for value in found[:3]])


def _equal(found: Gradients, right: Gradients) -> bool:
    """Whether gradients are equal. Missing ones are another check's."""
    return len(found) == len(right) and all(b is None or _close(a, b) for a, b in zip(found, right, strict=True))


def _close(found: list[float] | None, right: list[float]) -> bool:
    if found is None or len(found) != len(right):
        return False
    return all(abs(a - b) <= 1e-4 for a, b in zip(found, right, strict=True))  # `<=`, which is false for NaN


@average.check(points=0.25)
def leaves_the_rest_alone(seen: Seen, wanted: Seen) -> None:
    """Parameters without a gradient still have none, no weight has changed, and the group still exists."""
    for rank, found, right in pairs(seen[two_processes], wanted[two_processes], *RANKS):
        if not found.some.weights_kept:
            raise Failed(f"the weights changed in {rank}", "only gradients changed; the optimizer changes weights")
        if not found.some.group_kept:
            raise Failed(f"in {rank} the process group was destroyed", "the group, for the next step")
        gradients = zip(found.some.gradients, right.some.gradients, strict=True)
        if any(a is not None and b is None for a, b in gradients):
            raise Failed(f"in {rank} a parameter without a gradient has one now", "None, as before")


@average.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients."""
    for _, found, right in pairs(seen[two_processes], wanted[two_processes], *RANKS):
        if not _equal(found.alone.gradients, right.alone.gradients):
            raise Failed(
                f"in a group of one the first gradient became {_values(found.alone.gradients)}",
                f"{_values(right.alone.gradients)}: divided by dist.get_world_size(), which is 1",
            )
