"""11: several GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpudojo.days.day8.two_ranks import two_ranks
from gpudojo.grading.call import Call, nn, torch
from gpudojo.grading.judge import runs
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "11_multiple_gpus",
    "One model on several GPUs",
    points=3,
    reading=("generated/torch.nn.DataParallel.html", "distributed.html", "notes/ddp.html"),
)
parallel = exercise.function(
    "parallelize",
    "`model.to(device)` first; then `nn.DataParallel(model)` if there is something to share.",
    '`torch.device(device).type == "cuda"` holds for "cuda" and "cuda:0"; `torch.cuda.device_count()` counts the GPUs.',
)
inside = exercise.function(
    "unwrap",
    "Both wrappers keep the model as `.module`.",
    "`isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))` asks for the wrapper itself.",
)
average = exercise.function(
    "average_gradients",
    "`dist.all_reduce(tensor)` replaces the tensor in every process by the sum over all of them.",
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


def _about_cuda(scenario: str, message: str) -> str | None:
    """A complaint about CUDA where no GPU is, and none was asked for."""
    about = "cuda" in message.lower() or "nvidia" in message.lower()
    return "hard-coded-cuda" if scenario == "no_gpu" and about else None


runs(parallel, diagnose=_about_cuda)
WORDS = {"two_gpus": "two GPUs", "one_gpu": "one GPU", "no_gpu": "no GPU"}


def _cases(seen: Seen, wanted: Seen) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for machine, words in WORDS.items():
        for device, right in wanted[machine].facts.items():
            yield f"with {words} and device={device}", seen[machine].facts[device], right


@parallel.check(points=0.25)
def moves_the_model(seen: Seen, wanted: Seen) -> None:
    """It returns a model whose parameters and buffers are on the device."""
    for case, facts, right in _cases(seen, wanted):
        if not facts["is_module"]:
            raise Failed(f"{case} it returned {called(facts['class'])}", "a model")
        if facts["devices"] != right["devices"] and facts["wraps"] == right["wraps"]:  # a wrapper moves it too
            raise Failed(
                f"{case} its parameters are on {', '.join(facts['devices'])}",
                ", ".join(right["devices"]),
                misconception="model-not-moved" if facts["devices"] == ["cpu"] else "hard-coded-cuda",
            )


@parallel.check(points=0.5)
def wraps_for_several_gpus(seen: Seen, wanted: Seen) -> None:
    """It is wrapped in `nn.DataParallel` over all GPUs exactly when the device is CUDA and there are several."""
    for case, facts, right in _cases(seen, wanted):
        if facts["wraps"] != right["wraps"]:
            times = {0: f"{called(facts['class'])}, not wrapped", 1: "a DataParallel"}
            shown = times.get(facts["wraps"], "a DataParallel in a DataParallel")
            raise Failed(f"{case} it returned {shown}", "nn.DataParallel" if right["wraps"] else "the model itself")
        if facts["gpus"] != right["gpus"]:
            raise Failed(f"{case} it uses the GPUs {facts['gpus']}", f"all of them: {right['gpus']}")


@parallel.check(points=0.25)
def keeps_the_model_itself(seen: Seen, wanted: Seen) -> None:
    """The model that was passed in is moved and wrapped, not a copy of it."""
    for case, facts, _ in _cases(seen, wanted):
        if not facts["same"] or not facts["same_parameters"]:
            raise Failed(
                f"{case} the model in the result is not the one passed in",
                "the same object, with the same parameters",
                misconception="copied-before-wrapping",
            )


runs(inside)


@inside.check(points=0.25)
def finds_the_model_inside(seen: Seen, wanted: Seen) -> None:
    """It takes the model out of `DataParallel` and `DistributedDataParallel`."""
    for name in wanted["wrappers"].facts:
        facts = seen["wrappers"].facts[name]
        if not facts["same"]:
            copied = facts["class"] == facts["inside"]
            shown = f"another {facts['class']}" if copied else called(facts["class"])
            raise Failed(f"for {name} it returned {shown}", "the very model that was wrapped")
        if not facts["training"]:
            raise Failed(f"the model inside {name} was switched to evaluation mode", "the model as it is")


@inside.check(points=0.25)
def leaves_other_models_whole(seen: Seen, wanted: Seen) -> None:
    """A model that is not wrapped comes back as it is."""
    for name in wanted["plain_models"].facts:
        facts = seen["plain_models"].facts[name]
        if facts["same"] and not facts["training"]:
            raise Failed(f"{name} was switched to evaluation mode", "the model as it is")
        if not facts["same"]:
            part = "`module`" in name
            raise Failed(
                f"for {name} it returned {called(facts['class'])}",
                "the model itself",
                misconception="wrapper-guessed-by-attribute" if part else None,
            )


runs(average)
RANKS = ("rank 0", "rank 1")


@average.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    facts, right = seen["two_processes"].facts, wanted["two_processes"].facts
    answers = [facts[rank]["some"]["gradients"] for rank in RANKS]
    wished = right["rank 0"]["some"]["gradients"]
    good = [_equal(answer, wished) for answer in answers]
    if all(good):
        return
    doubled = [None if g is None else [2 * value for value in g] for g in wished]
    number = next(n for n in range(len(wished)) if not all(_equal(a[: n + 1], wished[: n + 1]) for a in answers))
    found = " and ".join(f"{_values(answer, number)} in {rank}" for rank, answer in zip(RANKS, answers, strict=True))
    shown = f"gradient {number + 1} of {len(wished)} is {found}"
    misconception = None
    if any(good) and not any(_equal(answer, doubled) for answer in answers):  # one has the mean, one its own still
        misconception = "reduced-to-one-rank"
    elif _equal(answers[0], doubled) and _equal(answers[1], doubled):
        misconception = "gradients-summed-not-averaged"
    raise Failed(shown, f"{_values(wished, number)} in both", misconception=misconception)


def _values(gradients: list[Any], number: int = 0) -> str:
    found = gradients[number]
    return "None" if found is None else str([round(value, 3) for value in found[:3]])


def _equal(found: list[Any], right: list[Any]) -> bool:
    """Equal gradients; whether the missing ones are still missing is asked by another check."""
    return len(found) == len(right) and all(b is None or _close(a, b) for a, b in zip(found, right, strict=True))


def _close(found: list[float] | None, right: list[float]) -> bool:
    # `<=`, which no NaN fulfils
    return (
        found is not None
        and len(found) == len(right)
        and all(abs(a - b) <= 1e-4 for a, b in zip(found, right, strict=True))
    )


@average.check(points=0.25)
def leaves_the_rest_alone(seen: Seen, wanted: Seen) -> None:
    """Parameters without a gradient still have none, no weight has changed, and the group is still there."""
    for rank in RANKS:
        facts, right = (every["two_processes"].facts[rank]["some"] for every in (seen, wanted))
        if not facts["weights_kept"]:
            raise Failed(f"the weights changed in {rank}", "only gradients change; the optimizer does the rest")
        if not facts["group_kept"]:
            raise Failed(f"in {rank} the group of processes was gone afterwards", "the group, for the next step")
        if any(a is not None and b is None for a, b in zip(facts["gradients"], right["gradients"], strict=True)):
            raise Failed(f"in {rank} a parameter without a gradient has one now", "None, as before")


@average.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients."""
    for rank in RANKS:
        found, right = (every["two_processes"].facts[rank]["alone"]["gradients"] for every in (seen, wanted))
        if not _equal(found, right):
            raise Failed(
                f"in a group of one the first gradient became {_values(found)}",
                f"{_values(right)}: divided by dist.get_world_size(), which is 1",
            )
