"""08: fewer transfers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpudojo.days.day8.sprites import sprites
from gpudojo.days.day8.watched_batches import WatchedBatches
from gpudojo.grading.call import Call, StudentRaised, array, nn, settled, several, torch
from gpudojo.grading.judge import diagnosis, runs
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "08_minimizing_transfers",
    "Fewer transfers between host and GPU",
    points=7,
    reading=("generated/torch.Tensor.numpy.html", "notes/cuda.html", "data.html"),
)

to_numpy = exercise.function(
    "to_numpy",
    "NumPy reads the host's memory, and knows no gradients: first `.detach()`, then `.cpu()`, then `.numpy()`.",
    "`.detach()` gives a second view without a graph; `requires_grad_(False)` would change the tensor you were given.",
    "`tensor.numpy(force=True)` detaches, copies to the host and converts in one call.",
    "The array has the tensor's own dtype and shape: nothing is converted, flattened or squeezed on the way.",
)

predict = exercise.function(
    "predict",
    "Before the loop: `model.to(device)`, `model.eval()`, a list; under `torch.no_grad()`: the inputs to the device.",
    "Keep the outputs on the device while the loop runs; `torch.cat` joins them, and one `.cpu()` brings them back.",
    "`for inputs, _ in loader`: nothing is done with the targets, so they stay where they are.",
)

random_sprites = exercise.function(
    "random_sprites",
    "Every function that makes a tensor takes its shape and `device=`; `torch.rand` also takes `generator=`.",
    "`torch.rand(...).to(device)` makes the values on the CPU and then copies all of them.",
    "Hand `generator` on and seed nothing: whoever calls the function decides about that.",
    "`torch.rand` draws evenly from 0 to 1, in float32; `torch.randn` draws from a bell curve.",
)

make_loader = exercise.function(
    "make_loader",
    "`DataLoader(dataset, ..., pin_memory=...)`: True when the device is CUDA, False otherwise.",
    '`device` may be a string or a device: `torch.device(device).type == "cuda"` understands both.',
    "Pass `batch_size`, `shuffle` and `num_workers` on; options that need workers fail with `num_workers=0`.",
)
to_numpy.when("keeps_values_and_dtype", hint=4, at=("tolist(", "float(", "squeeze(", "return", "last return"))
to_numpy.when("leaves_the_tensor_alone", "requires-grad-left-off", hint=2, at=("requires_grad_(", ".data", "zero_("))
predict.when("returns_every_output", "copies_back_once", hint=2, at=("return", "last return"))
predict.when("leaves_the_targets", hint=3)
predict.when("builds_no_graph", hint=1, at=("requires_grad_(", ".requires_grad", "set_grad_enabled("))
random_sprites.when("returns_sprites_there", hint=1, at=("set_default_device(", "rand(", "return"))
random_sprites.when("made-on-cpu-then-moved", "result-thrown-away", hint=2)
random_sprites.when("follows_its_seed", hint=3, at=("manual_seed(", "seed(", "rand(", "return"))
random_sprites.when("spreads_evenly", hint=4, at=("randn(", "rand(", "return"))
make_loader.when("runs", "yields_every_sample_once", "passes_the_workers_on", hint=3, at=("DataLoader(", "return"))
make_loader.when("shuffles_when_asked", hint=3, at=("DataLoader(", "return"))
make_loader.when("pins_exactly_for_cuda", hint=2, at=("DataLoader(", "return"))
make_loader.when("pinned-for-cpu", hint=1)


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


def _watched_model(seed: int, log: list[dict[str, Any]]) -> Any:
    """A model whose outputs are pictures; `model.forward(...)` and copies of the model write into its log as well."""

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Dropout(0.5))

        def forward(self, x: Any) -> Any:
            out = self.body(x)
            log.append({"training": self.training, "graph": out.requires_grad, "device": out.device.type})
            return out

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Watched()


def _batches(call: Call, count: int) -> WatchedBatches:
    """The targets are larger than they need be, so that a transfer of theirs is known by its size."""
    pictures = sprites(count, call.seed + 1)[0]
    dataset = torch.utils.data.TensorDataset(pictures, torch.zeros(count, 11, dtype=torch.int64))
    return WatchedBatches(call, torch.utils.data.DataLoader(dataset, batch_size=4))


def _predictions(call: Call, device: Any, count: int, moved: bool = False) -> dict[str, Any]:
    log: list[dict[str, Any]] = []
    model = _watched_model(call.seed, log)
    if moved:
        model.to(device)
    batches = _batches(call, count)
    with torch.enable_grad(), batches.followed():  # whatever the student's function leaves behind ends here
        value = call(model, batches, device)
        grad_mode = torch.is_grad_enabled()
    ledger = call.ledger
    back = ledger.transfers_to_host()
    reads = ledger.syncs(besides=("copy", "tolist"))
    moved_targets = [t for t in ledger.transfers_to_device() if t.bytes in batches.target_sizes]
    building = ledger.forwards_building_graph()
    is_tensor = isinstance(value, torch.Tensor)
    return {
        "class": type(value).__name__,
        "device": value.device.type if is_tensor else None,
        "requires_grad": value.requires_grad if is_tensor else None,
        "value": array(value) if is_tensor else None,
        "forwards": log,
        "forward_line": next((call.line_of(f) for f in ledger.forwards()), None),
        "graph_line": call.line_of(building[0]) if building else None,
        "trainable": all(p.requires_grad for p in model.parameters()),
        "grad_mode": grad_mode,
        "batches": batches.handed_out,
        "copies_back": len(back),
        "copy_line": call.line_of(back[0]) if back else None,
        "reads": len(reads),
        "read_line": call.line_of(reads[0]) if reads else None,
        "targets_moved": len(moved_targets),
        "targets_line": call.line_of(moved_targets[0]) if moved_targets else None,
    }


@predict.probe
def loops(call: Call) -> dict[str, Any]:
    """With a smaller last batch, with one of a single sprite and the device as a string, and with one batch in all."""
    device = call.device
    return several(
        {
            "model_on_the_cpu": lambda: _predictions(call, device, count=10),
            "model_already_there": lambda: _predictions(call, str(device), count=5, moved=True),
            "told_to_use_the_cpu": lambda: _predictions(call, "cpu", count=3),
        }
    )


def _epoch(loader: Any) -> dict[str, Any]:
    """What one pass over a loader yields: the samples in order, the sizes of batches, and whether each was pinned."""
    found: dict[str, Any] = {
        "class": type(loader).__name__,
        "is_loader": isinstance(loader, torch.utils.data.DataLoader),
    }
    if not found["is_loader"]:
        return found
    order: list[int] = []
    sizes: list[int] = []
    pinned: list[bool] = []
    for pictures, numbers in loader:
        sizes.append(len(pictures))
        order += map(int, numbers.tolist())
        pinned.append(pictures.is_pinned() and numbers.is_pinned())
    return {**found, "order": order, "sizes": sizes, "pinned": pinned, "workers": loader.num_workers}


def _numbered(count: int) -> Any:
    return torch.utils.data.TensorDataset(torch.zeros(count, 3, 1, 1), torch.arange(count))


def _devices(call: Call) -> dict[str, Any]:
    """One epoch for each way of naming a device; where there is no CUDA, no host memory can be pinned for it."""
    spelled: dict[str, Any] = {"'cpu'": "cpu", "device('cpu')": torch.device("cpu")}
    if call.device.type == "cuda":
        spelled |= {"'cuda'": "cuda", "'cuda:0'": "cuda:0", "'mps'": "mps"}
        spelled |= {"device('cuda')": torch.device("cuda"), "device('cuda:0')": torch.device("cuda:0")}
    data = _numbered(3)
    return {name: _epoch(call(data, 2, device)) for name, device in spelled.items()}


def _samples(call: Call) -> dict[str, Any]:
    """In order, shuffled (12! orders: the first is not met by chance), and all in one batch."""
    data, device = _numbered(12), call.device
    shuffled, settings = settled(call, data, 5, device, shuffle=True)
    return {
        "in order": _epoch(call(data, 4, device)),
        "shuffle=False": _epoch(call(data, 5, device, shuffle=False, num_workers=0)),
        "shuffle=True": _epoch(shuffled) | {"settings": settings},
        "a batch larger than all": _epoch(call(data, 100, device)),
    }


@make_loader.probe
def epochs(call: Call) -> dict[str, Any]:
    """Every order, every device, and a loader told to use workers, which is not started.

    Orders first: who seeds the dice is noticed by the first call only.
    """
    return several(
        {
            "samples": lambda: _samples(call),
            "devices": lambda: _devices(call),
            "workers": lambda: getattr(call(_numbered(3), 2, call.device, num_workers=2), "num_workers", None),
        }
    )


runs(to_numpy, points=0.5, diagnose=lambda _, said: diagnosis(said))


@to_numpy.check(points=0.5)
def keeps_values_and_dtype(seen: Seen, wanted: Seen) -> None:
    """The array has the tensor's values, dtype and shape, whatever these are."""
    for scenario, tensors in wanted["arrays"].facts.items():
        for name, right in tensors.items():
            given = seen["arrays"].facts[scenario][name]
            value, correct = given["value"], right["value"]
            if value is None:
                raise Failed(f"{_named(name)} gave {called(given['class'])}", "a numpy.ndarray")
            if value.dtype != correct.dtype:
                raise Failed(f"{_named(name)} gave an array of {value.dtype}", correct.dtype)
            if value.shape != correct.shape:
                raise Failed(f"{_named(name)} gave shape {value.shape}", f"{correct.shape}")
            if value.data != correct.data:
                raise Failed(f"{_named(name)} gave other values", "the values of the tensor")


@to_numpy.check(points=0.5)
def leaves_the_tensor_alone(seen: Seen, wanted: Seen) -> None:
    """The tensor is left as it was: where it is, what is in it, and whether it requires a gradient."""
    for scenario, tensors in wanted["arrays"].facts.items():
        for name, right in tensors.items():
            facts = seen["arrays"].facts[scenario][name]
            if facts["switched"]:
                raise Failed(
                    f"{_named(name)} was changed: its requires_grad",
                    "the tensor as it was",
                    misconception="requires-grad-left-off",
                )
            if facts["moved"] or facts["left"] != right["left"]:
                raise Failed(f"{_named(name)} was changed: its values, device or graph", "the tensor as it was")


def _named(name: str) -> str:
    return f"a tensor {name}" if " " in name or name == "transposed" else f"a {name} tensor"


runs(random_sprites)


def _places(seen: Seen, wanted: Seen) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """For every device its name, what the student's function gave there, and what the reference's did."""
    for scenario, right in wanted["draws"].facts.items():
        yield right["wanted_device"], seen["draws"].facts[scenario], right


def _draw_cases(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: draw for name, draw in facts.items() if isinstance(draw, dict) and "value" in draw}


@random_sprites.check(points=0.5)
def made_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The sprites are made on the device: nothing is transferred."""
    for place, facts, _ in _places(seen, wanted):
        draws = _draw_cases(facts)
        for draw in draws.values():
            if draw["moved"]:
                stayed = place != "cpu" and draw["device"] == "cpu"
                raise Failed(
                    f"{draw['moved']} bytes were copied between host and device",
                    "none: values made where they are needed",
                    draw["line"],
                    "result-thrown-away" if stayed else "made-on-cpu-then-moved",
                )
        refused = facts.get("refused")
        if refused is not None:
            # Without a generator the device was the right one: with it, the values came from the CPU.
            elsewhere = any(draw["device"] != place for draw in draws.values())
            key = "hard-coded-cuda" if place == "cpu" else None if elsewhere else "made-on-cpu-then-moved"
            raise Failed(
                f"a generator of {place} was refused: {refused['message']}",
                "values made on the device, where its generator is",
                refused["line"],
                key,
            )


@random_sprites.check(points=0.25)
def returns_sprites_there(seen: Seen, wanted: Seen) -> None:
    """It returns float32 of shape (count, 3, size, size), on the device passed in."""
    for place, facts, expected in _places(seen, wanted):
        for name, right in _draw_cases(expected).items():
            draw = facts.get(name)
            if draw is None:  # a generator was refused, which another check says
                continue
            if draw["value"] is None:
                raise Failed(f"it returned {called(draw['class'])}", "a tensor")
            if draw["device"] != place:
                key = "hard-coded-cuda" if place == "cpu" else None
                raise Failed(f"told to use {place}, it made them on {draw['device']}", place, misconception=key)
            if draw["default_device"] != right["default_device"]:
                happened = f"{draw['default_device']} was left behind as the default device of the whole program"
                raise Failed(happened, "`device=` for these sprites alone")
            if draw["dtype"] != "float32" or draw["value"].dtype != "float32":
                raise Failed(f"their dtype is {draw['dtype']}", "float32")
            if draw["value"].shape != right["value"].shape:
                raise Failed(f"their shape is {draw['value'].shape}", f"{right['value'].shape}")


@random_sprites.check(points=0.25, needs=("runs", "returns_sprites_there"))
def spreads_evenly(seen: Seen, wanted: Seen) -> None:
    """The values are spread evenly over [0, 1], each of them drawn anew."""
    import numpy as np

    for _, facts, _ in _places(seen, wanted):
        for draw in _draw_cases(facts).values():
            values = np.frombuffer(draw["value"].data, "float32")
            low, high = float(values.min()), float(values.max())
            if not (low >= 0 and high <= 1):
                raise Failed(f"the values run from {low:.2f} to {high:.2f}", "values in [0, 1]")
            # Of 3000 values a tenth of the range holds 10 % with a standard deviation of 0.55 %.
            tenths = np.minimum((values * 10).astype("uint8"), 9)
            share = np.bincount(tenths, minlength=10) / len(values)
            if abs(share - 0.1).max() > 0.04:
                worst = int(abs(share - 0.1).argmax())
                happened = f"{share[worst]:.0%} of the values lie between {worst / 10} and {(worst + 1) / 10}"
                raise Failed(happened, "about 10 % in every tenth")
            # Of 3000 floats with 24 bits hardly any two are alike.
            if (distinct := len(np.unique(values))) < 0.98 * len(values):
                raise Failed(f"only {distinct} of {len(values)} values differ", "a value of its own for each")


@random_sprites.check(points=0.5)
def follows_its_seed(seen: Seen, wanted: Seen) -> None:
    """The same seed gives the same sprites and another seed others, and a second draw is not the first again."""
    for _, facts, _ in _places(seen, wanted):
        for prefix, what in (("", "torch's own random state"), ("generator ", "a generator")):
            draws = {draw: facts.get(prefix + draw) for draw in ("first", "next", "again", "other")}
            value = {}
            for draw, found in draws.items():
                if found is None:
                    raise Failed(f"{what} was refused", "sprites drawn from it")
                if found["value"] is None:
                    raise Failed(f"it returned {called(found['class'])}", "a tensor")
                value[draw] = found["value"].data
            if value["first"] == value["next"]:
                raise Failed(f"with {what}, two draws in a row were the same", "new sprites: nothing is seeded inside")
            if value["first"] != value["again"]:
                raise Failed(f"with {what} seeded alike twice, the sprites differed", "the same sprites")
            if value["first"] == value["other"]:
                raise Failed(f"with {what} seeded differently, the sprites were the same", "other sprites")


def _diagnose(scenario: str, said: str) -> str | None:
    """Where only a model that is there already meets inputs of the CPU, the other one had stayed there with them."""
    key = diagnosis(said)
    return "model-not-moved" if scenario == "model_already_there" and key == "inputs-on-cpu" else key


runs(predict, diagnose=_diagnose)


def _loops(seen: Seen, wanted: Seen) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What the student's function and the reference's did, scenario by scenario."""
    for scenario, right in wanted["loops"].facts.items():
        yield seen["loops"].facts[scenario], right


@predict.check(points=0.5)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device passed in."""
    for facts, expected in _loops(seen, wanted):
        right = expected["forwards"][0]["device"]
        used = {forward["device"] for forward in facts["forwards"]}
        if used != {right}:
            where = " and ".join(sorted(used)) or "nowhere"
            key = "hard-coded-cuda" if right == "cpu" else "model-not-moved" if used == {"cpu"} else None
            raise Failed(f"told to use {right}, the model ran on {where}", right, facts["forward_line"], key)


@predict.check(points=0.25)
def predicts_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode."""
    for facts, _ in _loops(seen, wanted):
        training = [f for f in facts["forwards"] if f["training"]]
        if training:
            graph = any(f["graph"] for f in facts["forwards"])
            raise Failed(
                f"{len(training)} of {len(facts['forwards'])} forward passes ran in training mode, with dropout",
                "model.eval() before the loop",
                facts["forward_line"],
                None if graph else "no-grad-without-eval",
            )


@predict.check(points=0.25)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph, and the model can still be trained afterwards."""
    for facts, _ in _loops(seen, wanted):
        built = [f for f in facts["forwards"] if f["graph"]]
        if built:
            evaluating = not any(f["training"] for f in facts["forwards"])
            raise Failed(
                f"{len(built)} of {len(facts['forwards'])} forward passes built a graph",
                "none: torch.no_grad() or torch.inference_mode() around the loop",
                facts["graph_line"],
                "eval-without-no-grad" if evaluating else None,
            )
        if not facts["trainable"]:
            raise Failed(
                "parameters of the model no longer require a gradient",
                "parameters as they were",
                misconception="requires-grad-left-off",
            )
        if not facts["grad_mode"]:
            raise Failed("gradients were still switched off for everyone afterwards", "gradients off in the loop only")


@predict.check(points=0.5, needs=("runs", "predicts_in_evaluation_mode"))
def returns_every_output(seen: Seen, wanted: Seen) -> None:
    """It returns the outputs of all batches in one tensor, in order, on the CPU."""
    for facts, right in _loops(seen, wanted):
        value, correct = facts["value"], right["value"]
        if value is None:
            raise Failed(f"it returned {called(facts['class'])}", "one tensor")
        if facts["device"] != "cpu":
            copied = facts["copies_back"] > 0  # the copy was made, and what was returned is the original
            line, key = (facts["copy_line"], "result-thrown-away") if copied else (None, None)
            raise Failed(f"the outputs were returned on {facts['device']}", "the CPU", line, key)
        if value.shape != correct.shape:
            raise Failed(f"{right['batches']} batches gave shape {value.shape}", f"{correct.shape}")
        if not _close(value, correct):
            raise Failed("the values differ from the model's outputs, or their order does", "the outputs in order")


@predict.check(points=0.5, needs=("runs", "works_on_the_device"))
def copies_back_once(seen: Seen, wanted: Seen) -> None:
    """There is one copy back to the host in all, however many batches there are."""
    for facts, right in _loops(seen, wanted):
        count, batches = facts["copies_back"], facts["batches"]
        if count > right["copies_back"]:
            raise Failed(
                f"{batches} batches made {count} copies back to the host",
                "one, of all outputs together, after the loop",
                facts["copy_line"],
                "copied-every-batch-back" if count >= batches else None,
            )
        if facts["reads"] > right["reads"]:
            raise Failed(
                f"the host read a value from the device {facts['reads']} times and waited for it each time",
                "no reading before the one copy",
                facts["read_line"],
                "sync-in-hot-loop",
            )


@predict.check(points=0.5)
def leaves_the_targets(seen: Seen, wanted: Seen) -> None:
    """The targets are never moved."""
    for facts, _ in _loops(seen, wanted):
        if facts["targets_moved"]:
            raise Failed(
                f"the targets of {facts['targets_moved']} batches were copied to the device, and nothing used them",
                "only the inputs moved",
                facts["targets_line"],
            )


def _close(found: Array, right: Array) -> bool:
    import numpy as np

    if found.dtype != right.dtype:
        return False
    return np.allclose(np.frombuffer(found.data, found.dtype), np.frombuffer(right.data, right.dtype), 1e-3, 1e-5)


runs(make_loader)


def _epochs(seen: Seen, wanted: Seen, *scenarios: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every epoch: its name, what it was and what it should be."""
    for scenario in scenarios or ("devices", "samples"):
        for name, right in wanted["epochs"].facts[scenario].items():
            yield name, seen["epochs"].facts[scenario][name], right


@make_loader.check(points=0.5)
def yields_every_sample_once(seen: Seen, wanted: Seen) -> None:
    """It returns a DataLoader that yields every sample once, in batches of `batch_size`."""
    for name, epoch, right in _epochs(seen, wanted):
        if not epoch["is_loader"]:
            raise Failed(f"it returned {called(epoch['class'])}", "a DataLoader")
        count = len(right["order"])
        missing = set(right["order"]) - set(epoch["order"])
        if missing:
            raise Failed(f"{_asked(name)}{len(missing)} of {count} samples were left out", "every sample")
        if len(epoch["order"]) != count:
            happened = f"{_asked(name)}of {count} samples {len(epoch['order'])} were yielded, some of them twice"
            raise Failed(happened, "each of them once")
        if epoch["sizes"] != right["sizes"]:
            raise Failed(f"{_asked(name)}the batches had sizes {epoch['sizes']}", f"{right['sizes']}")


@make_loader.check(points=0.25, needs=("runs", "yields_every_sample_once"))
def shuffles_when_asked(seen: Seen, wanted: Seen) -> None:
    """The order is shuffled with `shuffle=True`, and kept without it."""
    for name, epoch, _ in _epochs(seen, wanted):
        in_order = epoch["order"] == sorted(epoch["order"])
        if in_order is (name == "shuffle=True"):
            happened = "the samples came in order" if in_order else "the samples came in another order"
            raise Failed(f"{_asked(name)}{happened}", "shuffled with shuffle=True only")
    if changed := seen["epochs"].facts["samples"]["shuffle=True"]["settings"]:
        raise Failed(f"it changed {changed[0]}", "an order drawn by torch's dice as they are")


@make_loader.check(points=0.5, needs=("runs", "yields_every_sample_once"))
def pins_exactly_for_cuda(seen: Seen, wanted: Seen) -> None:
    """Batches are pinned when the device is CUDA, however it is named, and not otherwise."""
    for name, epoch, right in _epochs(seen, wanted, "devices"):
        if epoch["pinned"] == right["pinned"]:
            continue
        if any(right["pinned"]):
            raise Failed(f"for device={name} the batches were not pinned", "pinned batches")
        raise Failed(f"for device={name} the batches were pinned", "ordinary memory", misconception="pinned-for-cpu")


@make_loader.check(points=0.25)
def passes_the_workers_on(seen: Seen, wanted: Seen) -> None:
    """`num_workers` is passed on, and is 0 if not given."""
    told = seen["epochs"].facts["workers"]
    if told != wanted["epochs"].facts["workers"]:
        raise Failed(f"num_workers=2 made a loader with {told}", "2")
    for name, epoch, _ in _epochs(seen, wanted):
        if epoch.get("workers", 0) != 0:
            raise Failed(f"{_asked(name)}the loader has {epoch['workers']} workers", "0")


def _asked(name: str) -> str:
    """How a loader was asked for: with an argument, for a device in quotes, or in words."""
    if "'" in name:
        return f"with device={name} "
    return f"with {name} " if "=" in name else f"({name}) "
