"""08: fewer transfers. What came back to the host and how often, what was made where, and what was pinned."""

from __future__ import annotations

from typing import Any

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.evidence import Array
from graders.probes.calling import Call, StudentRaised, array
from graders.probes.late import nn, torch
from graders.probes.sprites import CLASSES, SIZE, sprites

exercise = Exercise(
    "08_minimizing_transfers",
    "Fewer transfers between host and GPU",
    points=7,
    reading=("generated/torch.Tensor.numpy.html", "notes/cuda.html", "data.html"),
)

# to_numpy

to_numpy = exercise.function(
    "to_numpy",
    "NumPy reads the host's memory, and knows no gradients: first `.detach()`, then `.cpu()`, then `.numpy()`.",
    "`.detach()` gives a second view without a graph; `requires_grad_(False)` would change the tensor you were given.",
    "`tensor.numpy(force=True)` does all three.",
)
DTYPES = ("float32", "float16", "float64", "int64", "uint8", "bool")


def _tensors(seed: int, device: Any) -> dict[str, Any]:
    """One tensor for each thing that can make a conversion go wrong."""
    base = sprites(2, seed)[0].to(device)
    scaled = {"int64": base * 200, "uint8": base * 200, "bool": base > 0.5}
    made = {
        dtype: scaled.get(dtype, base).to(getattr(torch, dtype), copy=True)
        for dtype in DTYPES
        if not (dtype == "float64" and torch.device(device).type == "mps")  # which has no float64
    }
    weight = base.clone().requires_grad_()
    return {
        **made,
        "of a parameter": nn.Parameter(base.clone()),
        "that requires grad": weight,
        "with a graph behind it": weight * 2,
        "without a dimension": base.mean(),
        "without elements": base[:0].clone(),
        "transposed": base.clone().transpose(1, 3),
    }


def _as_numpy(call: Call, device: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tensor in _tensors(call.seed, device).items():
        before = (tensor.requires_grad, str(tensor.device), array(tensor), tensor.is_leaf)
        value = call(tensor)
        after = (tensor.requires_grad, str(tensor.device), array(tensor), tensor.is_leaf)
        found[name] = {
            "class": type(value).__name__,
            "value": _evidence(value),
            "changed": "requires_grad"
            if before[0] != after[0]
            else ""
            if before == after
            else "values, device or graph",
        }
    return found


def _evidence(value: Any) -> Any:
    """A NumPy array as evidence; None for anything else."""
    import numpy as np

    if not isinstance(value, np.ndarray):
        return None
    return Array(value.dtype.name, value.shape, value.tobytes() if value.dtype.kind in "biuf" else b"")


@to_numpy.probe
def from_the_device(call: Call) -> dict[str, Any]:
    return _as_numpy(call, call.device)


@to_numpy.probe
def from_the_cpu(call: Call) -> dict[str, Any]:
    return _as_numpy(call, "cpu")


runs(to_numpy, points=0.5, diagnose=lambda _, said: "numpy-on-device-tensor" if "device type tensor" in said else None)


@to_numpy.check(points=0.5)
def keeps_values_and_dtype(seen: Seen, wanted: Seen) -> None:
    """The array has the tensor's values, dtype and shape, whatever these are."""
    for scenario, observation in wanted.items():
        for name, right in observation.facts.items():
            given = seen[scenario].facts[name]
            value, correct = given["value"], right["value"]
            what = f"a tensor {name}" if " " in name or name == "transposed" else f"a {name} tensor"
            if value is None:
                raise Failed(f"{what} gave a {given['class']}", "a numpy.ndarray")
            if value.dtype != correct.dtype:
                raise Failed(f"{what} gave an array of {value.dtype}", correct.dtype)
            if value.shape != correct.shape:
                raise Failed(f"{what} gave shape {value.shape}", f"{correct.shape}")
            if value.data != correct.data:
                raise Failed(f"{what} gave other values", "the values of the tensor")


@to_numpy.check(points=0.5)
def leaves_the_tensor_alone(seen: Seen, wanted: Seen) -> None:
    """The tensor is left as it was: where it is, what is in it, and whether it requires a gradient."""
    for observation in seen.values():
        for name, facts in observation.facts.items():
            if facts["changed"]:
                switched = facts["changed"] == "requires_grad"
                raise Failed(
                    f"a tensor ({name}) was changed: its {facts['changed']}",
                    "the tensor as it was",
                    misconception="requires-grad-left-off" if switched else None,
                )


# predict

predict = exercise.function(
    "predict",
    "Before the loop: `model.to(device)`, `model.eval()`, a list for the outputs; the loop under `torch.no_grad()`.",
    "Keep the outputs on the device while the loop runs; `torch.cat` joins them, and one `.cpu()` brings them back.",
    "`for inputs, _ in loader`: nothing is done with the targets, so they stay where they are.",
)


def _watched_model(seed: int, pictures: bool) -> Any:
    """A model that notes how it is called; its forward notices `model.forward(...)` as well as `model(...)`."""

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[dict[str, Any]] = []
            if pictures:
                self.body = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.5))
            else:
                width = 3 * SIZE * SIZE
                self.body = nn.Sequential(
                    nn.Flatten(), nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES)
                )

        def forward(self, x: Any) -> Any:
            out = self.body(x)
            self.seen.append({"training": self.training, "graph": out.requires_grad, "device": out.device.type})
            return out

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Watched()
    return model


class _Batches:
    """A loader whose targets are larger than they need be, so that a transfer of theirs is known by its size."""

    def __init__(self, call: Call, count: int) -> None:
        pictures = sprites(count, call.seed + 1)[0]
        self.dataset = torch.utils.data.TensorDataset(pictures, torch.zeros(count, 11, dtype=torch.int64))
        self.inner = torch.utils.data.DataLoader(self.dataset, batch_size=4)
        self.batch_size = 4
        self.call = call
        self.starts: list[int] = []
        self.target_bytes: set[int] = set()

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Any:
        for batch in self.inner:
            self.starts.append(self.call.bench.ledger.mark())
            self.target_bytes.add(batch[1].nbytes)
            yield batch


def _predictions(
    call: Call, device: Any, count: int = 10, pictures: bool = False, moved: bool = False
) -> dict[str, Any]:
    model = _watched_model(call.seed, pictures)
    if moved:
        model.to(device)
    batches = _Batches(call, count)
    model.train()
    value = call(model, batches, device)
    ledger = call.ledger
    back = ledger.transfers_to_host()
    reads = ledger.syncs(besides=("copy", "tolist"))
    moved_targets = [t for t in ledger.transfers_to_device() if t.bytes in batches.target_bytes]
    is_tensor = isinstance(value, torch.Tensor)
    return {
        "class": type(value).__name__,
        "device": value.device.type if is_tensor else None,
        "requires_grad": value.requires_grad if is_tensor else None,
        "value": array(value) if is_tensor else None,
        "forwards": model.seen,
        "trainable": all(p.requires_grad for p in model.parameters()),
        "batches": len(batches.starts),
        "copies_back": len(back),
        "copy_line": call.line_of(back[0]) if back else None,
        "reads": len(reads),
        "read_line": call.line_of(reads[0]) if reads else None,
        "targets_moved": len(moved_targets),
        "targets_line": call.line_of(moved_targets[0]) if moved_targets else None,
    }


@predict.probe
def model_on_the_cpu(call: Call) -> dict[str, Any]:
    """The model still on the CPU, the last batch smaller."""
    return _predictions(call, call.device)


@predict.probe
def model_already_there(call: Call) -> dict[str, Any]:
    """The device as a string, outputs that are pictures, and a last batch of one."""
    return _predictions(call, str(call.device), count=9, pictures=True, moved=True)


@predict.probe
def a_single_batch(call: Call) -> dict[str, Any]:
    return _predictions(call, call.device, count=3)


@predict.probe
def told_to_use_the_cpu(call: Call) -> dict[str, Any]:
    return _predictions(call, "cpu")


runs(predict)


@predict.check(points=0.5)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs on the device passed in."""
    for name, observation in wanted.items():
        right = observation.facts["forwards"][0]["device"]
        used = {forward["device"] for forward in seen[name].facts["forwards"]}
        if used != {right}:
            where = " and ".join(sorted(used)) or "nowhere"
            key = "hard-coded-cuda" if right == "cpu" else "model-not-moved" if used == {"cpu"} else None
            raise Failed(f"told to use {right}, the model ran on {where}", right, misconception=key)


@predict.check(points=0.25)
def predicts_in_evaluation_mode(seen: Seen, wanted: Seen) -> None:
    """Every forward pass runs in evaluation mode."""
    for observation in seen.values():
        forwards = observation.facts["forwards"]
        training = [f for f in forwards if f["training"]]
        if training:
            graph = any(f["graph"] for f in forwards)
            raise Failed(
                f"{len(training)} of {len(forwards)} forward passes ran in training mode, with dropout",
                "model.eval() before the loop",
                misconception=None if graph else "no-grad-without-eval",
            )


@predict.check(points=0.25)
def builds_no_graph(seen: Seen, wanted: Seen) -> None:
    """No forward pass builds an autograd graph, and the model's parameters can still be trained afterwards."""
    for observation in seen.values():
        facts = observation.facts
        built = [f for f in facts["forwards"] if f["graph"]]
        if built:
            evaluating = not any(f["training"] for f in facts["forwards"])
            raise Failed(
                f"{len(built)} of {len(facts['forwards'])} forward passes built a graph",
                "none: torch.no_grad() or torch.inference_mode() around the loop",
                misconception="eval-without-no-grad" if evaluating else None,
            )
        if not facts["trainable"]:
            raise Failed(
                "parameters of the model no longer require a gradient",
                "parameters as they were",
                misconception="requires-grad-left-off",
            )


@predict.check(points=0.5)
def returns_every_output(seen: Seen, wanted: Seen) -> None:
    """It returns the outputs of all batches in one tensor, in order, on the CPU."""
    for name, observation in wanted.items():
        facts, right = seen[name].facts, observation.facts
        value, correct = facts["value"], right["value"]
        if value is None:
            raise Failed(f"it returned a {facts['class']}", "one tensor")
        if facts["device"] != "cpu":
            raise Failed(f"the outputs were returned on {facts['device']}", "the CPU")
        if value.shape != correct.shape:
            raise Failed(f"{right['batches']} batches gave shape {value.shape}", f"{correct.shape}")
        if not _close(value, correct):
            raise Failed("the values differ from the model's outputs, or their order does", "the outputs in order")


@predict.check(points=0.5)
def copies_back_once(seen: Seen, wanted: Seen) -> None:
    """There is one copy back to the host in all, however many batches there are."""
    for name, observation in wanted.items():
        facts, right = seen[name].facts, observation.facts
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
    for observation in seen.values():
        facts = observation.facts
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


# random_sprites

random_sprites = exercise.function(
    "random_sprites",
    "Every function that makes a tensor takes `device=`; `torch.rand` also takes `generator=`.",
    "`torch.rand(...).to(device)` makes the values on the CPU and then copies all of them.",
    "Do not seed anything here: whoever calls the function decides about that.",
)
COUNT, EDGE = 64, 8


def _made(call: Call, device: Any, **options: Any) -> Any:
    """What one call gave, described."""
    value = call(COUNT, EDGE, device, **options)
    moved = call.ledger.transfers()
    is_tensor = isinstance(value, torch.Tensor)
    return {
        "class": type(value).__name__,
        "dtype": str(value.dtype).removeprefix("torch.") if is_tensor else None,
        "device": str(value.device) if is_tensor else None,
        "value": array(value) if is_tensor else None,
        "moved": sum(t.bytes for t in moved),
        "line": call.line_of(moved[0]) if moved else None,
    }


def _sprites_from(call: Call, device: Any) -> dict[str, Any]:
    """Without a generator, each draw seeded by us; then from generators of the device."""
    kind = torch.device(device)
    devices = [kind.index or 0] if kind.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(call.seed)
        found: dict[str, Any] = {"first": _made(call, device), "next": _made(call, device)}
        torch.manual_seed(call.seed)
        found["again"] = _made(call, device)
        torch.manual_seed(call.seed + 1)
        found["other"] = _made(call, device)
    try:
        for name, seed in (("first", 0), ("again", 0), ("other", 1)):
            dice = torch.Generator(device=device).manual_seed(call.seed + seed)
            found[f"generator {name}"] = _made(call, device, generator=dice)
            if name == "first":
                found["generator next"] = _made(call, device, generator=dice)
    except StudentRaised as error:
        if "device type for generator" not in error.evidence.message:
            raise
        found["refused"] = {"message": error.evidence.message, "line": error.evidence.line}
    found["wanted_device"] = str(torch.empty(0, device=device).device)
    return found


@random_sprites.probe
def on_the_device(call: Call) -> dict[str, Any]:
    return _sprites_from(call, call.device)


@random_sprites.probe
def named_by_a_string(call: Call) -> dict[str, Any]:
    return _sprites_from(call, call.device.type)


@random_sprites.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    return _sprites_from(call, "cpu")


runs(random_sprites)


def _draws(observation: Any) -> dict[str, dict[str, Any]]:
    return {name: draw for name, draw in observation.facts.items() if isinstance(draw, dict) and "value" in draw}


@random_sprites.check(points=0.5)
def made_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The sprites are made on the device: nothing is transferred."""
    for observation in seen.values():
        facts = observation.facts
        for draw in _draws(observation).values():
            if draw["moved"]:
                raise Failed(
                    f"{draw['moved']} bytes were copied between host and device",
                    "none: values made where they are needed",
                    draw["line"],
                    "made-on-cpu-then-moved",
                )
        if "refused" in facts:
            key = "made-on-cpu-then-moved" if facts["wanted_device"] != "cpu" else "hard-coded-cuda"
            raise Failed(
                f"a generator of {facts['wanted_device']} was refused: {facts['refused']['message']}",
                "values made on the device, where its generator is",
                facts["refused"]["line"],
                key,
            )


@random_sprites.check(points=0.25)
def returns_sprites_there(seen: Seen, wanted: Seen) -> None:
    """It returns float32 of shape (count, 3, size, size), on the device passed in."""
    for name, observation in seen.items():
        right = wanted[name].facts["first"]
        place = wanted[name].facts["wanted_device"]
        for draw in _draws(observation).values():
            if draw["value"] is None:
                raise Failed(f"it returned a {draw['class']}", "a tensor")
            if draw["device"] != place:
                key = "hard-coded-cuda" if place == "cpu" else None
                raise Failed(f"told to use {place}, it made them on {draw['device']}", place, misconception=key)
            if draw["dtype"] != "float32":
                raise Failed(f"their dtype is {draw['dtype']}", "float32")
            if draw["value"].shape != right["value"].shape:
                raise Failed(f"their shape is {draw['value'].shape}", f"{right['value'].shape}")


@random_sprites.check(points=0.25, needs=("runs", "returns_sprites_there"))
def spreads_evenly(seen: Seen, wanted: Seen) -> None:
    """The values are spread evenly over [0, 1]."""
    import numpy as np

    for observation in seen.values():
        for draw in _draws(observation).values():
            values = np.frombuffer(draw["value"].data, "float32")
            low, high = float(values.min()), float(values.max())
            if low < 0 or high > 1:
                raise Failed(f"the values run from {low:.2f} to {high:.2f}", "values in [0, 1]")
            # 12288 values: a tenth of them holds 10 % with a standard deviation of 0.3 %.
            share = np.histogram(values, 10, (0, 1))[0] / len(values)
            if abs(share - 0.1).max() > 0.02:
                worst = int(abs(share - 0.1).argmax())
                happened = f"{share[worst]:.0%} of the values lie between {worst / 10} and {(worst + 1) / 10}"
                raise Failed(happened, "about 10 % in every tenth")


@random_sprites.check(points=0.5)
def follows_its_seed(seen: Seen, wanted: Seen) -> None:
    """The same seed gives the same sprites and another seed others, and a second draw is not the first again."""
    for observation in seen.values():
        for prefix, what in (("", "torch's own random state"), ("generator ", "a generator")):
            draws = {name: observation.facts.get(prefix + name) for name in ("first", "next", "again", "other")}
            value = {name: draw["value"].data if draw and draw["value"] else None for name, draw in draws.items()}
            if None in value.values():
                raise Failed(f"{what} was refused", "sprites drawn from it")
            if value["first"] == value["next"]:
                raise Failed(f"with {what}, two draws in a row were the same", "new sprites: nothing is seeded inside")
            if value["first"] != value["again"]:
                raise Failed(f"with {what} seeded alike twice, the sprites differed", "the same sprites")
            if value["first"] == value["other"]:
                raise Failed(f"with {what} seeded differently, the sprites were the same", "other sprites")


# make_loader

make_loader = exercise.function(
    "make_loader",
    "`DataLoader(dataset, ..., pin_memory=...)`: True when the device is CUDA, False otherwise.",
    '`device` may be a string or a device: `torch.device(device).type == "cuda"` understands both.',
    "Pass `batch_size`, `shuffle` and `num_workers` on; options that need workers fail with `num_workers=0`.",
)
SAMPLES = 64


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
        order += [int(number) for number in numbers]
        pinned.append(pictures.is_pinned() and numbers.is_pinned())
    workers = loader.num_workers
    return {**found, "order": order, "sizes": sizes, "pinned": pinned, "workers": workers}


def _numbered(seed: int, count: int = SAMPLES) -> Any:
    return torch.utils.data.TensorDataset(sprites(count, seed)[0], torch.arange(count))


@make_loader.probe
def devices(call: Call) -> dict[str, Any]:
    """One epoch for each way of naming a device; where there is no CUDA, no host memory can be pinned for it."""
    spelled: dict[str, Any] = {"'cpu'": "cpu", "device('cpu')": torch.device("cpu")}
    if call.device.type == "cuda":
        spelled |= {"'cuda'": "cuda", "'cuda:0'": "cuda:0", "'mps'": "mps"}
        spelled |= {"device('cuda')": torch.device("cuda"), "device('cuda:0')": torch.device("cuda:0")}
    data = _numbered(call.seed, 10)
    return {name: _epoch(call(data, 4, device)) for name, device in spelled.items()}


@make_loader.probe
def samples(call: Call) -> dict[str, Any]:
    """Sample by sample: in order, shuffled, in batches that do and do not divide, and told to use workers."""
    data, device = _numbered(call.seed), call.device
    workers = call(data, 4, device, num_workers=2)
    return {
        "in order": _epoch(call(data, 8, device)),
        "shuffle=False": _epoch(call(data, 7, device, shuffle=False, num_workers=0)),
        "shuffle=True": _epoch(call(data, 7, device, shuffle=True)),
        "a batch larger than all": _epoch(call(data, 100, device)),
        "workers": getattr(workers, "num_workers", None),
    }


runs(make_loader)


def _epochs(seen: Seen) -> Any:
    """Every epoch of every scenario, by name."""
    for observation in seen.values():
        for name, epoch in observation.facts.items():
            if isinstance(epoch, dict):
                yield name, epoch


@make_loader.check(points=0.5)
def yields_every_sample_once(seen: Seen, wanted: Seen) -> None:
    """It returns a DataLoader that yields every sample once, in batches of `batch_size`."""
    right = dict(_epochs(wanted))
    for name, epoch in _epochs(seen):
        if not epoch["is_loader"]:
            raise Failed(f"it returned a {epoch['class']}", "a DataLoader")
        missing = set(right[name]["order"]) - set(epoch["order"])
        if missing:
            raise Failed(
                f"({name}) {len(missing)} of {len(right[name]['order'])} samples were left out", "every sample"
            )
        if len(epoch["order"]) != len(right[name]["order"]):
            raise Failed(
                f"({name}) {len(right[name]['order'])} samples were yielded {len(epoch['order'])} times", "once"
            )
        if epoch["sizes"] != right[name]["sizes"]:
            raise Failed(f"({name}) the batches had sizes {epoch['sizes']}", f"{right[name]['sizes']}")


@make_loader.check(points=0.25, needs=("runs", "yields_every_sample_once"))
def shuffles_when_asked(seen: Seen, wanted: Seen) -> None:
    """The order is shuffled with `shuffle=True`, and kept without it."""
    for name, epoch in _epochs(seen):
        in_order = epoch["order"] == sorted(epoch["order"])
        if in_order is (name == "shuffle=True"):
            happened = "the samples came in order" if in_order else "the samples came in another order"
            raise Failed(f"({name}) {happened}", "shuffled with shuffle=True only")


@make_loader.check(points=0.5, needs=("runs", "yields_every_sample_once"))
def pins_exactly_for_cuda(seen: Seen, wanted: Seen) -> None:
    """Batches are pinned when the device is CUDA, however it is named, and not otherwise."""
    for name, right in wanted["devices"].facts.items():
        pinned = seen["devices"].facts[name]["pinned"]
        if pinned == right["pinned"]:
            continue
        if any(right["pinned"]):
            raise Failed(f"for device={name} the batches were not pinned", "pinned batches")
        raise Failed(f"for device={name} the batches were pinned", "ordinary memory", misconception="pinned-for-cpu")


@make_loader.check(points=0.25)
def passes_the_workers_on(seen: Seen, wanted: Seen) -> None:
    """`num_workers` is passed on, and is 0 if not given."""
    told = seen["samples"].facts["workers"]
    if told != wanted["samples"].facts["workers"]:
        raise Failed(f"num_workers=2 made a loader with {told}", "2")
    for name, epoch in _epochs(seen):
        if epoch.get("workers", 0) != 0:
            raise Failed(f"({name}) the loader has {epoch['workers']} workers", "0")
