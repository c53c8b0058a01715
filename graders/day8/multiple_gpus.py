"""11: one model on several GPUs. Wrapped where there are two, unwrapped again, and gradients averaged by processes."""

from __future__ import annotations

from typing import Any

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.probes.calling import Call
from graders.probes.late import nn, torch
from graders.probes.sprites import classifier
from graders.probes.two_ranks import two_ranks

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
    "Skip parameters whose `.grad` is None, the same ones in every process.",
)


def _spread(call: Call, devices: tuple[str, ...]) -> dict[str, Any]:
    return {name: _one(call, name) for name in devices} | {
        f"device {name}": _one(call, torch.device(name)) for name in devices
    }


def _one(call: Call, device: Any) -> dict[str, Any]:
    model = classifier(call.seed).eval()
    parameters = list(model.parameters())
    result = call(model, device)
    wrapped = isinstance(result, nn.DataParallel)
    core = result.module if wrapped else result
    there = isinstance(core, nn.Module)
    return {
        "class": type(result).__name__,
        "is_module": isinstance(result, nn.Module),
        "wrapped": wrapped,
        "same": core is model,
        "same_parameters": there and all(a is b for a, b in zip(core.parameters(), parameters, strict=False)),
        "gpus": [int(index) for index in result.device_ids] if wrapped else [],
        "devices": sorted({str(t.device) for t in (*core.parameters(), *core.buffers())}) if there else [],
    }


@parallel.probe(machine="two gpus")
def two_gpus(call: Call) -> dict[str, Any]:
    return _spread(call, ("cuda", "cuda:0", "cpu"))


@parallel.probe(machine="one gpu")
def one_gpu(call: Call) -> dict[str, Any]:
    return _spread(call, ("cuda", "cuda:0", "cpu"))


@parallel.probe(machine="laptop")
def no_gpu(call: Call) -> dict[str, Any]:
    return _spread(call, ("cpu",))


runs(parallel)
WORDS = {"two_gpus": "two GPUs", "one_gpu": "one GPU", "no_gpu": "no GPU"}


def _cases(seen: Seen, wanted: Seen) -> Any:
    for machine, words in WORDS.items():
        for key, right in wanted[machine].facts.items():
            yield f"with {words} and device={key.removeprefix('device ')!r}", seen[machine].facts[key], right


@parallel.check(points=0.25)
def moves_the_model(seen: Seen, wanted: Seen) -> None:
    """It returns a model whose parameters and buffers are on the device."""
    for case, facts, right in _cases(seen, wanted):
        if not facts["is_module"]:
            raise Failed(f"{case} it returned a {facts['class']}", "a model")
        if facts["devices"] != right["devices"]:
            raise Failed(
                f"{case} its parameters are on {', '.join(facts['devices'])}",
                ", ".join(right["devices"]),
                misconception="model-not-moved" if facts["devices"] == ["cpu"] else "hard-coded-cuda",
            )


@parallel.check(points=0.5)
def wraps_for_several_gpus(seen: Seen, wanted: Seen) -> None:
    """It is wrapped in `nn.DataParallel` over all GPUs exactly when the device is CUDA and there are several."""
    for case, facts, right in _cases(seen, wanted):
        if facts["wrapped"] != right["wrapped"]:
            shown = "a DataParallel" if facts["wrapped"] else f"a {facts['class']}, not wrapped"
            raise Failed(f"{case} it returned {shown}", "nn.DataParallel" if right["wrapped"] else "the model itself")
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


def _own_module() -> Any:
    """A model that is not wrapped, with a part that happens to be called `module`."""
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    return model


def _inside(call: Call, wrap: Any, plain: Any) -> dict[str, Any]:
    found = call(wrap(plain))
    return {"class": type(found).__name__, "same": found is plain}


def _distributed(model: Any) -> Any:
    """A DistributedDataParallel around a model, without the group of processes its constructor asks for."""
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    return wrapper


@inside.probe(machine="laptop")
def wrappers(call: Call) -> dict[str, Any]:
    return {
        "DataParallel": _inside(call, nn.DataParallel, classifier(call.seed)),
        "DistributedDataParallel": _inside(call, _distributed, classifier(call.seed)),
        "DataParallel around a model with a `module`": _inside(call, nn.DataParallel, _own_module()),
    }


@inside.probe(machine="laptop")
def plain_models(call: Call) -> dict[str, Any]:
    return {
        "a Sequential": _inside(call, lambda model: model, classifier(call.seed)),
        "a Linear": _inside(call, lambda model: model, nn.Linear(2, 2)),
        "a model with a part called `module`": _inside(call, lambda model: model, _own_module()),
    }


runs(inside)


@inside.check(points=0.25)
def finds_the_model_inside(seen: Seen, wanted: Seen) -> None:
    """It takes the model out of `DataParallel` and `DistributedDataParallel`."""
    for name, facts in seen["wrappers"].facts.items():
        if not facts["same"]:
            raise Failed(f"for {name} it returned a {facts['class']}", "the very model that was wrapped")


@inside.check(points=0.25)
def leaves_other_models_whole(seen: Seen, wanted: Seen) -> None:
    """A model that is not wrapped comes back as it is."""
    for name, facts in seen["plain_models"].facts.items():
        if not facts["same"]:
            part = "`module`" in name
            raise Failed(
                f"for {name} it returned a {facts['class']}",
                "the model itself",
                misconception="wrapper-guessed-by-attribute" if part else None,
            )


@average.probe(machine="laptop")
def two_processes(call: Call) -> dict[str, Any]:
    """Both call it with gradients of their own, then with none, and at last each in a group of its own."""
    first, second = two_ranks(call.path, "average_gradients")
    return {"rank 0": first, "rank 1": second}


runs(average)


@average.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    facts, right = seen["two_processes"].facts, wanted["two_processes"].facts
    answers = [facts[rank]["some"]["gradients"] for rank in ("rank 0", "rank 1")]
    wished = right["rank 0"]["some"]["gradients"]
    good = [_equal(answer, wished) for answer in answers]
    if all(good):
        return
    doubled = [None if g is None else [2 * value for value in g] for g in wished]
    shown = f"the first gradient is {_values(answers[0])} in rank 0 and {_values(answers[1])} in rank 1"
    misconception = None
    if any(good):
        misconception = "reduced-to-one-rank"
    elif _equal(answers[0], doubled) and _equal(answers[1], doubled):
        misconception = "gradients-summed-not-averaged"
    raise Failed(shown, f"{_values(wished)} in both", misconception=misconception)


def _values(gradients: list[Any]) -> str:
    return "None" if gradients[0] is None else str([round(value, 3) for value in gradients[0][:3]])


def _equal(found: list[Any], right: list[Any]) -> bool:
    """Equal gradients; whether the missing ones are still missing is asked by another check."""
    for a, b in zip(found, right, strict=True):
        if b is not None and (a is None or any(abs(x - y) > 1e-4 for x, y in zip(a, b, strict=True))):
            return False
    return True


@average.check(points=0.25)
def leaves_the_rest_alone(seen: Seen, wanted: Seen) -> None:
    """Parameters without a gradient still have none, and no weight has changed."""
    for rank, facts in seen["two_processes"].facts.items():
        for scenario in ("some", "none"):
            if not facts[scenario]["weights_kept"]:
                raise Failed(f"the weights changed in {rank}", "only gradients change; the optimizer does the rest")
            right = wanted["two_processes"].facts[rank][scenario]["gradients"]
            if any(a is not None and b is None for a, b in zip(facts[scenario]["gradients"], right, strict=True)):
                raise Failed(f"in {rank} a parameter without a gradient has one now", "None, as before")


@average.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients."""
    for rank, facts in seen["two_processes"].facts.items():
        right = wanted["two_processes"].facts[rank]["alone"]["gradients"]
        if not _equal(facts["alone"]["gradients"], right):
            raise Failed(
                f"in a group of one the first gradient became {_values(facts['alone']['gradients'])}",
                f"{_values(right)}: divided by dist.get_world_size(), which is 1",
            )
