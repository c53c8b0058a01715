"""08: fewer transfers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from gpudojo.days.day8.loops_over_batches import expect_ran_on, why_a_loop_raised
from gpudojo.days.day8.sprites import make_sprites
from gpudojo.days.day8.watched_objects import WatchedBatches
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    call_and_restore_settings,
    device_name,
    nn,
    run_scenarios,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import device_mistake, runs, scenario_pairs
from gpudojo.grading.comparing import arrays_close
from gpudojo.grading.watching import find_classes, keep_state, make_picklable, state_of
from gpudojo.model.evidence import Array, Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, returned_other_type, with_article

exercise = Exercise(
    "08_minimizing_transfers",
    "Fewer transfers between host and GPU",
    points=7,
    reading=("generated/torch.Tensor.numpy.html", "notes/cuda.html", "data.html"),
)

to_numpy = exercise.function("to_numpy")

predict = exercise.function("predict")

random_sprites = exercise.function("random_sprites")

make_loader = exercise.function("make_loader")
SHAPES = ("tolist(", "float(", "squeeze(", "return", "last return")
THERE = ("set_default_device(", "rand(", "return", "last return")
LOADER = ("DataLoader(", "return", "last return")


# ---- to_numpy --------------------------------------------------------------------------------------------------------

DTYPES = ("float32", "float16", "float64", "int64", "uint8", "bool")


GRADED = ("that is a parameter", "that requires grad", "with a graph behind it")
SMALL = ("without a dimension", "without elements", "of one pixel")


def _tensors(seed: int, device: Any) -> dict[str, Any]:
    """One tensor for each thing that can make a conversion fail; no two share memory.

    Those of a dtype have numbers that do not fit into a smaller one.
    """
    base = make_sprites(2, seed)[0].to(device)
    numbers = make_sprites(2, seed)[0] * 200
    made = {dtype: numbers.to(getattr(torch, dtype)) for dtype in DTYPES} | {"bool": numbers > 100}
    if torch.device(device).type == "mps":
        del made["float64"]  # which it does not have
    weight = base.clone().requires_grad_()
    graded = (nn.Parameter(base.clone()), weight, weight * 2)
    small = (
        base.amax(),
        base[:0],
        base[:1, :, :1, :1].clone(),
    )  # not a mean, which differs between devices
    return {
        **{dtype: tensor.to(device) for dtype, tensor in made.items()},
        "transposed": base.clone().transpose(1, 3),
        **dict(zip((*GRADED, *SMALL), (*graded, *small), strict=True)),
    }


class Converted(Case, frozen=True):
    """The result for one tensor, and whether the tensor was changed."""

    kind: str
    value: Array | None
    switched: bool  # its requires_grad
    moved: bool  # its device, shape, or place in a graph
    left: Array  # its values afterwards


def _as_numpy(call: Call, tensor: Any) -> Converted:
    before = (tensor.requires_grad, tensor.device, tensor.is_leaf, tensor.shape)
    try:
        value = call(tensor)
    except StudentRaised as error:
        back = [
            call.line_of(t) for t in call.ledger.transfers_to_host() if t.bytes == tensor.nbytes
        ]
        raise error.with_facts(copied={"tensor": back[0]} if back else {}) from None
    import numpy as np

    found = None
    if isinstance(value, np.ndarray):
        found = Array(
            value.dtype.name, value.shape, value.tobytes() if value.dtype.kind in "biuf" else b""
        )
    moved = before[1:] != (tensor.device, tensor.is_leaf, tensor.shape)
    return Converted(
        type(value).__name__, found, before[0] != tensor.requires_grad, moved, array_of(tensor)
    )


@to_numpy.probe
def arrays(call: Call) -> Cases[Converted]:
    tensors = {(name, ""): tensor for name, tensor in _tensors(call.seed, call.device).items()}
    tensors |= {(name, ON_THE_CPU): tensor for name, tensor in _tensors(call.seed, "cpu").items()}
    return try_scenarios(
        {
            name + place: partial(_as_numpy, call, tensor)
            for (name, place), tensor in tensors.items()
        }
    )


ON_THE_CPU = " on the CPU"
runs(to_numpy, scenarios=("float32", "int64"), diagnose=lambda raised, seen: device_mistake(raised))


def _same_arrays(seen: Seen, wanted: Seen, *names: str) -> None:
    """Raises Failed unless tensors of these names gave arrays with their values, on the device and on the CPU."""
    places = [
        name + place
        for name in names
        for place in ("", ON_THE_CPU)
        if name + place in wanted[arrays]
    ]
    for name, found, right in scenario_pairs(seen[arrays], wanted[arrays], *places):
        value = found.value
        correct = right.value
        shown = _shown(name)
        assert correct is not None
        if value is None:
            raise Failed(f"{shown} gave {with_article(found.kind)}", "a numpy.ndarray")
        if value.dtype != correct.dtype:
            raise Failed(f"{shown} gave an array of {value.dtype}", correct.dtype)
        if value.shape != correct.shape:
            raise Failed(f"{shown} gave shape {value.shape}", f"{correct.shape}")
        if value.data != correct.data:
            raise Failed(f"{shown} gave other values", "the values of the tensor")


def _shown(name: str) -> str:
    kind = name.removesuffix(ON_THE_CPU)
    return f"a {kind} tensor" + name[len(kind) :] if kind in DTYPES else f"a tensor {name}"


@to_numpy.check(points=0.5)
def keeps_values_and_dtype(seen: Seen, wanted: Seen) -> None:
    """The array has the tensor's values, dtype and shape, whatever these are."""
    _same_arrays(seen, wanted, *DTYPES, "transposed")


@to_numpy.check(points=0.5)
def converts_what_requires_grad(seen: Seen, wanted: Seen) -> None:
    """It also works for parameters, for tensors that require a gradient, and for results computed from them."""
    _same_arrays(seen, wanted, *GRADED)


@to_numpy.check(points=0.25)
def converts_small_tensors(seen: Seen, wanted: Seen) -> None:
    """A single number, a single pixel and a tensor without elements keep their shapes too."""
    _same_arrays(seen, wanted, *SMALL)


@to_numpy.check(points=0.25, needs=("runs", "keeps_values_and_dtype"))
def leaves_the_tensor_alone(seen: Seen, wanted: Seen) -> None:
    """The tensor is not changed: its device, its values, and whether it requires a gradient."""
    for name, right in wanted[arrays].items():
        found = seen[arrays].get(name)
        if found is None:  # an error is another check's
            continue
        if found.switched:
            happened = f"the requires_grad of {_shown(name)} was changed"
            raise Failed(happened, "the tensor as before", misconception="requires-grad-left-off")
        if found.moved or found.left != right.left:
            what = "device, shape or graph" if found.moved else "the values"
            happened = f"{what} of {_shown(name)} changed"
            raise Failed(happened, "the tensor as before", misconception="input-modified")


# ---- random_sprites --------------------------------------------------------------------------------------------------

COUNT, EDGE = 40, 5  # 3000 values


class Draw(Case, frozen=True):
    """The result of one call."""

    kind: str
    dtype: str | None
    device: str | None
    value: Array | None
    moved: int  # bytes copied between host and device
    line: int | None
    default_device: str


class Draws(Case, frozen=True):
    """The calls on one device."""

    draws: dict[str, Draw]
    refused: Raised | None  # torch's error about a generator of another device
    wanted_device: str


def _made(call: Call, device: Any, **options: Any) -> Draw:
    value = call(COUNT, EDGE, device, **options)
    default = torch.get_default_device().type
    # Reset even if it is the CPU: a default that was set is passed to every factory, even together with `out`.
    torch.set_default_device(None)
    moved = call.ledger.transfers()
    kind, copied = (
        type(value).__name__,
        (sum(t.bytes for t in moved), call.first_line(moved), default),
    )
    if not isinstance(value, torch.Tensor):
        return Draw(kind, None, None, None, *copied)
    return Draw(
        kind, str(value.dtype).removeprefix("torch."), str(value.device), array_of(value), *copied
    )


def _draws(call: Call, device: Any, *by_name: str) -> Draws:
    """From torch's own random state, which we seed; from generators of the device; with the device as a string.

    torch refuses a generator of another device than the one on which the student's values are made.
    """
    found = {}
    refused = None
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        for name, seed in (("first", 0), ("next", None), ("again", 0), ("other", 1)):
            if seed is not None:
                torch.manual_seed(call.seed + seed)
            found[name] = _made(call, device)
    first, again, other = (
        torch.Generator(device=device).manual_seed(call.seed + seed) for seed in (0, 0, 1)
    )
    try:
        for name, generator in (
            ("first", first),
            ("next", first),
            ("again", again),
            ("other", other),
        ):
            found[f"generator {name}"] = _made(call, device, generator=generator)
    except StudentRaised as error:
        if "device type for generator" not in error.evidence.message:
            raise
        refused = error.evidence
    found |= {f"device={name!r}": _made(call, name) for name in by_name}
    return Draws(found, refused, device_name(device))


@random_sprites.probe
def draws(call: Call) -> Cases[Draws]:
    device = call.device
    cpu = torch.device("cpu")
    return try_scenarios(
        {
            "on_the_device": lambda: _draws(call, device, device.type),
            "on_the_cpu": lambda: _draws(call, cpu, "cpu"),
        }
    )


@random_sprites.probe(machine="two gpus", edge=True)
def draws_on_the_second_gpu(call: Call) -> Cases[Draws]:
    def look() -> Draws:
        generator = torch.Generator(device="cuda:1").manual_seed(call.seed)
        found = {
            "a device": _made(call, torch.device("cuda:1")),
            "a string": _made(call, "cuda:1", generator=generator),
        }
        return Draws(found, None, "cuda:1")

    return try_scenarios({"on_the_second_gpu": look})


runs(random_sprites)


@random_sprites.check(points=0.5)
def made_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The sprites are made on the device passed in: nothing is transferred."""
    for _, found, right in scenario_pairs(seen[draws], wanted[draws]):
        place = right.wanted_device
        for draw in found.draws.values():
            if draw.moved:
                stayed = place != "cpu" and draw.device == "cpu"
                raise Failed(
                    f"{draw.moved} bytes were copied between host and device",
                    "none: values made where they are needed",
                    draw.line,
                    "result-thrown-away" if stayed else "made-on-cpu-then-moved",
                )
        if found.refused is not None:
            # Without a generator the device was right: with it, the values came from the CPU.
            elsewhere = any(draw.device != place for draw in found.draws.values())
            key = (
                "hard-coded-cuda"
                if place == "cpu"
                else None
                if elsewhere
                else "made-on-cpu-then-moved"
            )
            happened = f"with a generator of {place} it raised: {found.refused.message}"
            raise Failed(
                happened, "values made on the device of the generator", found.refused.line, key
            )
        _made_there(found, right)


def _made_there(found: Draws, right: Draws) -> None:
    place = right.wanted_device
    for draw in found.draws.values():
        if draw.value is None or not draw.value.data:
            raise Failed(
                f"it returned {with_article(draw.kind)}{' without values' * (draw.value is not None)}",
                "sprites",
                at=("return",),
            )
        if draw.device != place:
            dropped = place == "cuda:1" and draw.device == "cuda:0"
            key = (
                "hard-coded-cuda" if place == "cpu" else "device-index-dropped" if dropped else None
            )
            raise Failed(
                f"with device={place!r}, they were made on {draw.device}", place, misconception=key
            )


@random_sprites.check(points=0.25)
def finds_the_second_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cuda:1" they are made on the second GPU, even if the first one is current."""
    for _, found, right in scenario_pairs(
        seen[draws_on_the_second_gpu], wanted[draws_on_the_second_gpu]
    ):
        _made_there(found, right)


@random_sprites.check(points=0.25)
def returns_sprites_there(seen: Seen, wanted: Seen) -> None:
    """It returns float32 of shape (count, 3, size, size), and leaves torch's default device alone."""
    for _, found, expected in scenario_pairs(seen[draws], wanted[draws]):
        for name, right in expected.draws.items():
            draw = found.draws.get(name)
            if draw is None and found.refused is not None:  # which another check reports
                continue
            assert draw is not None
            assert right.value is not None
            if draw.value is None:
                raise returned_other_type(draw.kind, "a tensor")
            if draw.default_device != right.default_device:
                happened = (
                    f"{draw.default_device} is the default device of the whole program afterwards"
                )
                raise Failed(happened, "`device=` for these sprites only")
            if draw.dtype != "float32" or draw.value.dtype != "float32":
                raise Failed(f"their dtype is {draw.dtype}", "float32")
            if draw.value.shape != right.value.shape:
                raise Failed(f"their shape is {draw.value.shape}", f"{right.value.shape}")


@random_sprites.check(points=0.25, needs=("runs", "returns_sprites_there"))
def spreads_evenly(seen: Seen, wanted: Seen) -> None:
    """The values are uniform in [0, 1), each of them drawn anew."""
    import numpy as np

    for name in wanted[draws]:
        for draw in seen[draws][name].draws.values():
            assert draw.value is not None
            values = np.frombuffer(draw.value.data, "float32")
            low = float(values.min())
            high = float(values.max())
            if not (low >= 0 and high <= 1):
                raise Failed(f"the values run from {low:.2f} to {high:.2f}", "values in [0, 1)")
            # Of 3000 values a tenth of the range holds 10 % with a standard deviation of 0.55 %.
            tenths = np.minimum((values * 10).astype("uint8"), 9)
            share = np.bincount(tenths, minlength=10) / len(values)
            if abs(share - 0.1).max() > 0.04:
                worst = int(abs(share - 0.1).argmax())
                happened = f"{share[worst]:.0%} of the values lie between {worst / 10} and {(worst + 1) / 10}"
                raise Failed(happened, "about 10 % in every tenth")
            # Of 3000 floats with 24 bits hardly any two are equal.
            ordered = np.sort(
                values
            )  # `np.unique` imports masked arrays, which takes longer than all of this
            if (distinct := 1 + int((ordered[1:] != ordered[:-1]).sum())) < 0.98 * len(values):
                raise Failed(
                    f"only {distinct} of {len(values)} values are different",
                    "a new value for each pixel",
                )


@random_sprites.check(points=0.25)
def follows_its_seed(seen: Seen, wanted: Seen) -> None:
    """The same seed gives the same sprites, another seed others, and a second draw is not the first again."""
    for scenario in wanted[draws]:
        found = seen[draws][scenario]
        for prefix, what in (("", "torch's own random state"), ("generator ", "a generator")):
            value = {}
            for name in ("first", "next", "again", "other"):
                draw = found.draws.get(prefix + name)
                if draw is None:
                    said = found.refused.message if found.refused else "nothing was recorded"
                    raise Failed(f"with {what} it raised: {said}", "sprites drawn from it")
                if draw.value is None:
                    raise returned_other_type(draw.kind, "a tensor")
                value[name] = draw.value.data
            if value["first"] == value["next"]:
                raise Failed(
                    f"with {what}, two draws in a row were the same",
                    "new sprites: set no seed inside",
                )
            if value["first"] != value["again"]:
                raise Failed(
                    f"with {what} and the same seed twice, the sprites differed", "the same sprites"
                )
            if value["first"] == value["other"]:
                raise Failed(
                    f"with {what} and different seeds, the sprites were the same",
                    "different sprites",
                )


# ---- predict ---------------------------------------------------------------------------------------------------------


class PredictForward(Case, frozen=True):
    """One forward pass."""

    training: bool
    graph: bool
    device: str
    samples: int


class Predicted(Case, frozen=True):
    """One call: the result, the forward passes, and what was copied."""

    kind: str
    device: str | None
    value: Array | None
    forwards: list[PredictForward]
    forward_line: int | None
    graph_line: int | None
    trainable: bool
    grad_mode: bool
    batches: int
    copies_back: int
    copy_line: int | None
    reads: int
    read_line: int | None
    targets_moved: int
    targets_line: int | None


@cache
def _classes() -> tuple[Any, ...]:
    class Watched(nn.Module):
        def __init__(self, log: list[PredictForward]) -> None:
            super().__init__()
            self.key = keep_state(log)
            self.body = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Dropout(0.5))

        def forward(self, x: Any) -> Any:
            out = self.body(x)
            graph = out.requires_grad or (
                torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
            )
            state_of(self.key).append(
                PredictForward(self.training, graph, str(out.device), len(out))
            )
            return out

    return make_picklable(Watched)


__getattr__ = find_classes(_classes)


def _watched_model(seed: int, log: list[PredictForward]) -> Any:
    """A model whose outputs are pictures. `model.forward(...)` and copies of the model write into the log as well."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _classes()[0](log)


def _predictions(call: Call, device: Any, count: int, moved: bool = False) -> Predicted:
    log: list[PredictForward] = []
    model = _watched_model(call.seed, log)
    if moved:
        model.to(device)
    # The targets are larger than necessary, so that a copy of them is recognised by its size.
    data = torch.utils.data.TensorDataset(
        make_sprites(count, call.seed + 1)[0], torch.zeros(count, 11, dtype=torch.int64)
    )
    batches = WatchedBatches(call, torch.utils.data.DataLoader(data, batch_size=4))
    with (
        torch.enable_grad(),
        batches.followed(),
    ):  # whatever mode the student's function leaves on ends here
        value = call(model, batches, device)
        grad_mode = torch.is_grad_enabled()
    ledger = call.ledger
    back = ledger.transfers_to_host()
    reads = ledger.syncs(besides=("copy", "tolist"))
    targets = [t for t in ledger.transfers_to_device() if t.bytes in batches.target_sizes]

    line = call.first_line
    is_tensor = isinstance(value, torch.Tensor)
    return Predicted(
        kind=type(value).__name__,
        device=value.device.type if is_tensor else None,
        value=array_of(value) if is_tensor else None,
        forwards=log,
        forward_line=line(ledger.forwards()),
        graph_line=line(ledger.forwards_building_graph()),
        trainable=all(p.requires_grad for p in model.parameters()),
        grad_mode=grad_mode,
        batches=batches.handed_out,
        copies_back=len(back),
        copy_line=line(back),
        reads=len(reads),
        read_line=line(reads),
        targets_moved=len(targets),
        targets_line=line(targets),
    )


@predict.probe
def loops(call: Call) -> Cases[Predicted]:
    """With a smaller last batch, with one of a single sprite and the device as a string, and with only one batch."""
    device = call.device
    return try_scenarios(
        {
            "model_on_the_cpu": lambda: _predictions(call, device, count=10),
            "model_already_there": lambda: _predictions(call, str(device), count=5, moved=True),
            "told_to_use_the_cpu": lambda: _predictions(call, "cpu", count=3),
        }
    )


@predict.probe(machine="two gpus", edge=True)
def loops_on_the_second_gpu(call: Call) -> Cases[Predicted]:
    return try_scenarios({"on_the_second_gpu": lambda: _predictions(call, "cuda:1", count=5)})


runs(predict, diagnose=why_a_loop_raised)


def _predicted(seen: Seen, wanted: Seen) -> Iterator[tuple[Predicted, Predicted]]:
    """What was seen and what the reference did. Raises Failed if the model was not called for every sample."""
    for _, found, right in scenario_pairs(seen[loops], wanted[loops]):
        called_for, samples = (
            sum(forward.samples for forward in each.forwards) for each in (found, right)
        )
        if called_for < samples:
            happened = f"the model was called for {called_for} of {samples} inputs"
            raise Failed(
                happened, "a forward pass for every batch", misconception="loop-left-early"
            )
        yield found, right


@predict.check(points=0.5)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device passed in, even if another GPU is current."""
    every = (loops, loops_on_the_second_gpu)
    for _, found, expected in scenario_pairs(seen.cases(*every), wanted.cases(*every)):
        used = {forward.device for forward in found.forwards}
        expect_ran_on(expected.forwards[0].device, used, found.forward_line)


@predict.check(points=0.25)
def predicts_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode."""
    for found, _ in _predicted(seen, wanted):
        training = [f for f in found.forwards if f.training]
        if training:
            graph = any(f.graph for f in found.forwards)
            raise Failed(
                f"{len(training)} of {len(found.forwards)} forward passes ran in training mode, with dropout",
                "model.eval() before the loop",
                found.forward_line,
                None if graph else "no-grad-without-eval",
                ("eval not called",),
            )


@predict.check(points=0.25)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph, and the model can still be trained afterwards."""
    for found, _ in _predicted(seen, wanted):
        built = [f for f in found.forwards if f.graph]
        if built:
            evaluating = not any(f.training for f in found.forwards)
            raise Failed(
                f"{len(built)} of {len(found.forwards)} forward passes built a graph",
                "none: torch.no_grad() or torch.inference_mode() around the loop",
                found.graph_line,
                "eval-without-no-grad" if evaluating else None,
            )
        if not found.trainable:
            happened = "parameters of the model no longer require a gradient"
            raise Failed(
                happened, "requires_grad as before", misconception="requires-grad-left-off"
            )
        if not found.grad_mode:
            raise Failed(
                "gradients were still switched off after the call", "gradients off in the loop only"
            )


@predict.check(points=0.5, needs=("runs", "predicts_in_evaluation_mode"))
def returns_every_output(seen: Seen, wanted: Seen) -> None:
    """It returns the outputs of all batches in one tensor, in order, on the CPU."""
    for found, right in _predicted(seen, wanted):
        assert right.value is not None
        if found.value is None:
            raise returned_other_type(found.kind, "one tensor")
        if found.device != "cpu":
            copied = found.copies_back > 0  # the copy was made, and the original returned
            line, key = (found.copy_line, "result-thrown-away") if copied else (None, None)
            raise Failed(f"the outputs were returned on {found.device}", "the CPU", line, key)
        if found.value.shape != right.value.shape:
            raise Failed(
                f"{right.batches} batches gave shape {found.value.shape}", f"{right.value.shape}"
            )
        if not arrays_close(found.value, right.value):
            raise Failed(
                "the values or their order differ from the model's outputs", "the outputs in order"
            )


@predict.check(points=0.5, needs=("runs", "works_on_the_device"))
def copies_back_once(seen: Seen, wanted: Seen) -> None:
    """There is one copy back to the host, however many batches there are."""
    for found, right in _predicted(seen, wanted):
        if found.copies_back > right.copies_back:
            raise Failed(
                f"{found.batches} batches made {found.copies_back} copies back to the host",
                "one, of all outputs together, after the loop",
                found.copy_line,
                "copied-every-batch-back" if found.copies_back >= found.batches else None,
            )
        if found.reads > right.reads:
            raise Failed(
                f"the host read a value from the device {found.reads} times and waited for it each time",
                "no reading before the one copy",
                found.read_line,
                "sync-in-hot-loop",
            )


@predict.check(points=0.5)
def leaves_the_targets(seen: Seen, wanted: Seen) -> None:
    """The targets are never moved."""
    for found, _ in _predicted(seen, wanted):
        if found.targets_moved:
            happened = f"the targets of {found.targets_moved} batches were copied to the device, and nothing used them"
            raise Failed(happened, "only the inputs moved", found.targets_line)


# ---- make_loader -----------------------------------------------------------------------------------------------------


class LoaderEpoch(Case, frozen=True):
    """One pass over a loader: the samples in order, the batch sizes, and which batches were pinned."""

    kind: str
    is_loader: bool
    order: list[int]
    sizes: list[int]
    pinned: list[bool]
    workers: int
    settings: list[str]


class Loaders(Case, frozen=True):
    """Loaders for every order and every device, and one with workers, which is not started."""

    samples: dict[str, LoaderEpoch]
    devices: dict[str, LoaderEpoch]
    workers: int | None
    pins_with_workers: bool


def _epoch(loader: Any, settings: tuple[str, ...] = ()) -> LoaderEpoch:
    is_loader = isinstance(loader, torch.utils.data.DataLoader)
    batches = list(loader) if is_loader else []
    order = [int(number) for _, numbers in batches for number in numbers.tolist()]
    pinned = [pictures.is_pinned() and numbers.is_pinned() for pictures, numbers in batches]
    workers = loader.num_workers if is_loader else 0
    sizes = [len(pictures) for pictures, _ in batches]
    return LoaderEpoch(
        type(loader).__name__, is_loader, order, sizes, pinned, workers, list(settings)
    )


def _numbered(count: int) -> Any:
    return torch.utils.data.TensorDataset(torch.zeros(count, 3, 1, 1), torch.arange(count))


def _devices(call: Call) -> dict[str, LoaderEpoch]:
    """One epoch for each way of naming a device; without CUDA no host memory can be pinned."""
    spelled: list[Any] = ["cpu", torch.device("cpu")]
    if call.device.type == "cuda":
        spelled += ["cuda", "cuda:0", "cuda:1", "mps", torch.device("cuda"), torch.device("cuda:0")]
    data = _numbered(3)
    return {repr(device).replace("type=", ""): _epoch(call(data, 2, device)) for device in spelled}


def _samples(call: Call) -> dict[str, LoaderEpoch]:
    """In order, shuffled (of 12! orders, the sorted one does not come up by chance), and all in one batch."""
    data = _numbered(12)
    device = call.device
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(call.seed + (1 << 40))  # no seed that a student sets
        shuffled, settings = call_and_restore_settings(call, data, 5, device, shuffle=True)
    return {
        "in order": _epoch(call(data, 4, device)),
        "shuffle=False": _epoch(call(data, 5, device, shuffle=False, num_workers=0)),
        "shuffle=True": _epoch(shuffled, tuple(settings)),
        "a batch larger than all": _epoch(call(data, 100, device)),
    }


@make_loader.probe
def loaders(call: Call) -> Loaders:
    """Orders first: only the first call shows whether a seed is set."""
    found = run_scenarios({"samples": lambda: _samples(call), "devices": lambda: _devices(call)})
    told = run_scenarios({"workers": lambda: call(_numbered(3), 2, call.device, num_workers=2)})
    workers = getattr(told["workers"], "num_workers", None)
    pins = getattr(told["workers"], "pin_memory", None) is True
    return Loaders(
        found["samples"], found["devices"], workers if isinstance(workers, int) else None, pins
    )


runs(make_loader)


def _epochs(seen: Seen, wanted: Seen) -> Iterator[tuple[str, LoaderEpoch, LoaderEpoch]]:
    """Every epoch: how the loader was asked for, what it yielded and what it should yield."""
    yield from scenario_pairs(seen[loaders].devices, wanted[loaders].devices)
    yield from scenario_pairs(seen[loaders].samples, wanted[loaders].samples)


@make_loader.check(points=0.5)
def yields_every_sample_once(seen: Seen, wanted: Seen) -> None:
    """It returns a DataLoader that yields every sample once, in batches of `batch_size`."""
    for name, epoch, right in _epochs(seen, wanted):
        if not epoch.is_loader:
            raise returned_other_type(epoch.kind, "a DataLoader")
        count = len(right.order)
        missing = set(right.order) - set(epoch.order)
        if missing:
            raise Failed(
                f"{_asked(name)}{len(missing)} of {count} samples were left out", "every sample"
            )
        if len(epoch.order) != count:
            happened = f"{_asked(name)}of {count} samples {len(epoch.order)} were yielded, some of them twice"
            raise Failed(happened, "each of them once")
        if epoch.sizes != right.sizes:
            raise Failed(f"{_asked(name)}the batches had sizes {epoch.sizes}", f"{right.sizes}")


@make_loader.check(points=0.25, needs=("runs", "yields_every_sample_once"))
def shuffles_when_asked(seen: Seen, wanted: Seen) -> None:
    """The order is shuffled with `shuffle=True`, and kept without it."""
    for name, epoch, _ in _epochs(seen, wanted):
        in_order = epoch.order == sorted(epoch.order)
        if in_order is (name == "shuffle=True"):
            happened = (
                "the samples came in order" if in_order else "the samples came in another order"
            )
            raise Failed(f"{_asked(name)}{happened}", "shuffled with shuffle=True only")
    if changed := seen[loaders].samples["shuffle=True"].settings:
        raise Failed(
            f"it changed {changed[0]}", "an order from torch's own random state, with no seed set"
        )


@make_loader.check(points=0.5, needs=("runs", "yields_every_sample_once"))
def pins_exactly_for_cuda(seen: Seen, wanted: Seen) -> None:
    """Batches are pinned if the device is CUDA, however it is named, and not otherwise."""
    for name, epoch, right in scenario_pairs(seen[loaders].devices, wanted[loaders].devices):
        if epoch.pinned != right.pinned:
            if any(right.pinned):
                raise Failed(f"for device={name} the batches were not pinned", "pinned batches")
            happened = f"for device={name} the batches were pinned"
            raise Failed(happened, "ordinary memory", misconception="pinned-for-cpu")
    if seen[loaders].pins_with_workers is not wanted[loaders].pins_with_workers:
        raise Failed(
            "with num_workers=2 memory is not pinned as it is without workers",
            "pinned for CUDA as well",
        )


@make_loader.check(points=0.25)
def passes_the_workers_on(seen: Seen, wanted: Seen) -> None:
    """`num_workers` is passed on, and is 0 if not given."""
    told = seen[loaders].workers
    if told != wanted[loaders].workers:
        raise Failed(f"num_workers=2 made a loader with {told}", "2")
    for name, epoch, _ in _epochs(seen, wanted):
        if epoch.workers != 0:
            raise Failed(f"{_asked(name)}the loader has {epoch.workers} workers", "0")


def _asked(name: str) -> str:
    """How a loader was asked for: with an argument, for a device in quotes, or in words."""
    if "'" in name:
        return f"with device={name} "
    return f"with {name} " if "=" in name else f"({name}) "
