"""03: batches of any structure on a device, and the golden rule: everything on one."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.probes.calling import Call, StudentRaised
from graders.probes.late import nn, torch
from graders.probes.sprites import sprites
from graders.probes.structures import Kept, places

exercise = Exercise(
    "03_moving_batches",
    "A batch on the GPU, whatever it is made of",
    points=10,
    reading=("generated/torch.Tensor.to.html", "tensor_attributes.html", "notes/cuda.html"),
)
move = exercise.function(
    "move_batch",
    "Ask what `batch` is: `isinstance(batch, torch.Tensor)`, a dict, a list or tuple, or anything else.",
    "For a container, build a new one of the same type from `move_batch(item, device, non_blocking)` of its items.",
    "A named tuple has `_fields`; build it with `type(batch)(*items)`, a tuple with `type(batch)(items)`.",
    "`tensor.to(device)` returns the moved tensor, and the tensor itself where there is nothing to move.",
)
same = exercise.function(
    "on_same_device",
    "Collect `tensor.device` of every tensor in a set; there must not be two different ones.",
    "A module has `.parameters()` and `.buffers()`; a structure is searched item by item, as in `move_batch`.",
    "Compare devices, not their `.type`: cuda:0 and cuda:1 are two.",
)


class Sprite(NamedTuple):
    images: Any
    labels: Any
    title: str


Masked = namedtuple("Masked", ["sprite", "mask"])
Alone = namedtuple("Alone", ["images"])


class Author:
    """Something that is no structure and no tensor."""


def _images(seed: int, count: int = 2) -> Any:
    return sprites(count, seed)[0]


def _labels(seed: int, count: int = 2) -> Any:
    return sprites(count, seed)[1]


def _raised(error: StudentRaised) -> dict[str, Any]:
    evidence = error.evidence
    first = evidence.message.splitlines()[0][:200] if evidence.message else ""
    return {"raised": f"{evidence.type}: {first}", "type": evidence.type, "line": evidence.line}


# ---- move_batch ------------------------------------------------------------------------------------------------------


def _moved(call: Call, batch: Any, device: Any, **options: Any) -> dict[str, Any]:
    kept = Kept(batch)
    value = call(batch, device, **options)
    copies = call.ledger.transfers()
    return {
        "places": places(batch, value),
        "device": str(torch.empty(0, device=device).device),
        "changed": kept.changed(),
        "copies": len(copies),
        "waits": [not copy.non_blocking for copy in copies],
        "line": next((call.line_of(copy) for copy in copies), None),
    }


def _tried(call: Call, batch: Any, device: Any, **options: Any) -> dict[str, Any]:
    """The same, where an error is judged by the check that the scenario belongs to and does not block all others."""
    try:
        return _moved(call, batch, device, **options)
    except StudentRaised as error:
        return _raised(error)


@move.probe
def a_pair(call: Call) -> dict[str, Any]:
    """What a DataLoader gives."""
    return {
        "a list": _moved(call, list(sprites(4, call.seed)), call.device),
        "a tuple": _moved(call, sprites(3, call.seed), str(call.device)),
        "a tensor": _moved(call, _labels(call.seed), call.device),
    }


@move.probe
def nested(call: Call) -> dict[str, Any]:
    images, labels = sprites(2, call.seed)
    batch = {
        "images": [images, (images > 0.5, labels.to(torch.uint8))],
        "deeper": {"labels": labels, 7: {"one": (labels.sum(),)}},
        ("a", 1): (images.half(), [torch.zeros(0, 3), [labels + 1]]),
    }
    return {
        "a nested batch": _tried(call, batch, call.device),
        "empty containers": _tried(call, {"list": [], "tuple": (), "dict": {}, "in": [[], ({},)]}, call.device),
        "an empty list": _tried(call, [], call.device),
        "an empty tuple": _tried(call, (), call.device),
        "an empty dict": _tried(call, {}, call.device),
    }


@move.probe
def named_tuples(call: Call) -> dict[str, Any]:
    images, labels = sprites(2, call.seed)
    return {
        "a named tuple": _tried(call, Masked(images, images > 0.5), call.device),
        "a named tuple of one field": _tried(call, Alone(images), call.device),
        "named tuples inside": _tried(
            call, [Masked({"a": Alone(images)}, (labels,)), {"s": Masked(labels, [])}], call.device
        ),
    }


@move.probe
def other_things(call: Call) -> dict[str, Any]:
    images, labels = sprites(2, call.seed)
    batch = {"images": images, "title": "mushroom", "count": 2, "score": 0.5, "mask": None, "new": True}
    listed = [labels, "mushroom", 7, None, b"png", Author(), ("", "m", -1.5, 1j)]
    return {
        "a dict with other things": _tried(call, batch, call.device),
        "a list with other things": _tried(call, listed, call.device),
        "a string": _tried(call, "mushroom", call.device),
        "a number": _tried(call, 3, call.device),
        "None": _tried(call, None, call.device),
    }


@move.probe
def a_sprite_with_title(call: Call) -> dict[str, Any]:
    """Both at once: a named tuple with a string."""
    return {"a named tuple with a string": _tried(call, Sprite(*sprites(2, call.seed), "mushroom"), call.device)}


@move.probe
def already_there(call: Call) -> dict[str, Any]:
    """By either name of the device: `cuda` and `cuda:0`."""
    there = _images(call.seed).to(call.device)
    return {
        "a tensor": _moved(call, there, call.device),
        "by its type": _moved(call, [there, there[:1]], call.device.type),
        "half of the pair": _moved(call, [there, _labels(call.seed)], str(call.device)),
        "on the CPU": _moved(call, list(sprites(2, call.seed)), "cpu"),
    }


@move.probe
def back_to_the_cpu(call: Call) -> dict[str, Any]:
    return {"a list": _moved(call, [t.to(call.device) for t in sprites(2, call.seed)], torch.device("cpu"))}


def to_the_second_gpu(call: Call) -> dict[str, Any]:
    return {
        "from the CPU": _moved(call, list(sprites(2, call.seed)), "cuda:1"),
        "from the first": _moved(call, [t.to("cuda:0") for t in sprites(2, call.seed)], torch.device("cuda", 1)),
    }


move.probe(to_the_second_gpu, machine="two gpus")


@move.probe
def without_waiting(call: Call) -> dict[str, Any]:
    """Pinned where that exists, since only then a copy can do without waiting."""
    images, labels = sprites(2, call.seed)
    if call.device.type == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()
    nested_batch = {"images": [images], "labels": (labels, Alone(images))}
    return {
        "a pair, not waiting": _tried(call, [images, labels], call.device, non_blocking=True),
        "a pair": _tried(call, [images, labels], call.device),
        "nested, not waiting": _tried(call, nested_batch, call.device, non_blocking=True),
        "nested": _tried(call, nested_batch, call.device, non_blocking=False),
    }


runs(move, points=0.5)


def _cases(seen: Seen, *scenarios: str) -> list[tuple[str, str, dict[str, Any]]]:
    """The calls of some scenarios, or of all, that did not raise."""
    chosen = scenarios or tuple(seen)
    found = [(scenario, name, case) for scenario in chosen for name, case in seen[scenario].facts.items()]
    return [(scenario, name, case) for scenario, name, case in found if "raised" not in case]


def _refuse_errors(seen: Seen, scenario: str, expected: str, misconception: str | None) -> None:
    for name, case in seen[scenario].facts.items():
        if "raised" in case:
            raise Failed(f"{name} raised {case['raised']}", expected, case["line"], misconception)


PAIRS = ("a list", "a tuple")


@move.check(points=1)
def moves_a_pair(seen: Seen, wanted: Seen) -> None:
    """Inputs and targets of a plain pair are on the device."""
    for name in PAIRS:
        _all_moved(name, seen["a_pair"].facts[name], wanted["a_pair"].facts[name])


@move.check(points=1, needs=("runs", "moves_a_pair"))
def keeps_the_structure(seen: Seen, wanted: Seen) -> None:
    """Lists stay lists, tuples tuples, named tuples named tuples, dicts dicts with the same keys."""
    for name, case in seen["named_tuples"].facts.items():
        if case.get("type") == "TypeError" and "positional argument" in case["raised"]:
            expected = "the same named tuple, built from its fields"
            raise Failed(f"{name} raised {case['raised']}", expected, case["line"], "named-tuple-constructor")
    for scenario, name, case in _cases(seen):
        for place in case["places"]:
            if place["role"] == "other" or (place["fits"] and place.get("alike", True)):
                continue
            happened = f"{name}: `{place['path']}` was {place['was']} and became {place['found']}"
            if place["was"] == place["found"]:
                happened = f"{name}: the keys or the number of items of `{place['path']}` changed"
            raise Failed(f"{happened} (scenario `{scenario}`)", "the same structure", None, "structure-changed")
    if not any("raised" in case for case in seen["nested"].facts.values()):  # that error comes with the next check
        _refuse_errors(seen, "named_tuples", "the same named tuple", None)


@move.check(points=1, needs=("runs", "moves_a_pair"))
def moves_every_tensor(seen: Seen, wanted: Seen) -> None:
    """Every tensor is on the device, at every depth, with its values and its dtype."""
    _refuse_errors(seen, "nested", "every tensor moved, at any depth", None)
    built_wrong = any("raised" in case for case in seen["named_tuples"].facts.values())  # said by another check
    for scenario, name, case in _cases(seen, "a_pair", "nested", "without_waiting", "named_tuples"):
        if scenario == "named_tuples" and built_wrong:
            continue
        _all_moved(name, case, wanted[scenario].facts[name])


def _all_moved(name: str, case: dict[str, Any], reference: dict[str, Any]) -> None:
    found = {place["path"]: place for place in case["places"]}
    for right in reference["places"]:
        place = found.get(right["path"])
        if right["role"] != "tensor":
            continue
        if place is None or not place["fits"]:
            shown = case["places"][0]["found"] if place is None else place["found"]
            raise Failed(f"{name}: it gave {shown}, where `{right['path']}` is no tensor", "a tensor, moved")
        if place["device"] != right["device"]:
            thrown = case["copies"] > 0 and not _any_moved(case)
            targets = name in PAIRS and right["path"] == "batch[1]"
            key = "result-thrown-away" if thrown else "targets-on-cpu" if targets else None
            happened = f"{name}: `{place['path']}` is on {place['device']}"
            raise Failed(happened, right["device"], case["line"] if thrown else None, key)
        if place["value"] != right["value"]:
            raise Failed(f"{name}: the values or the dtype of `{place['path']}` changed", "only another device")


def _any_moved(case: dict[str, Any]) -> bool:
    return any(place.get("device") == case["device"] for place in case["places"])


@move.check(points=1, needs=("runs", "moves_a_pair"))
def leaves_other_things_alone(seen: Seen, wanted: Seen) -> None:
    """Strings, numbers, None and whatever else is no tensor come back as they are."""
    expected = "what is no tensor, list, tuple or dict comes back as it is"
    _refuse_errors(seen, "other_things", expected, "everything-a-tensor")
    for _, name, case in _cases(seen):
        for place in case["places"]:
            if place["role"] == "other" and not place["fits"]:
                raise Failed(f"{name}: `{place['path']}` became {place['text']}", place["wanted"])
    # A named tuple with a string needs both; whoever fails at named tuples has heard of it already.
    if not any("raised" in case for case in seen["named_tuples"].facts.values()):
        _refuse_errors(seen, "a_sprite_with_title", expected, "everything-a-tensor")


@move.check(points=0.5, needs=("runs", "moves_a_pair"))
def leaves_the_input_alone(seen: Seen, wanted: Seen) -> None:
    """The batch that was passed in is not modified."""
    for scenario, name, case in _cases(seen):
        if case["changed"] is not None:
            raise Failed(
                f"{name}: after the call, `{case['changed']}` of the batch passed in is not what it was",
                f"a new structure, the old one as before (scenario `{scenario}`)",
                misconception="input-modified",
            )


@move.check(points=0.5, needs=("runs", "moves_a_pair"))
def does_not_copy_what_is_there(seen: Seen, wanted: Seen) -> None:
    """A tensor that is on the device already is not copied."""
    right = {name: case for _, name, case in _cases(wanted, "already_there")}
    for _, name, case in _cases(seen, "already_there"):
        references = {place["path"]: place for place in right[name]["places"]}
        for place in case["places"]:
            reference = references[place["path"]]
            on_its_device = place.get("device") == reference.get("device")
            if place.get("copied") and not reference["copied"] and on_its_device:
                raise Failed(
                    f"{name}: `{place['path']}` was on {reference['device']} already and was copied",
                    "the tensor itself",
                    case["line"],
                    "already-there-copied",
                )


@move.check(points=0.5, needs=("runs", "moves_a_pair"))
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Tensors end up on the very device passed in, whatever this machine has."""
    for scenario, name, case in _cases(seen, "already_there", "back_to_the_cpu", "to_the_second_gpu"):
        for place in case["places"]:
            found = place.get("device", case["device"])
            if found == case["device"]:
                continue
            key = None
            if scenario == "already_there" and name == "on the CPU":
                key = "hard-coded-cuda"
            elif scenario == "to_the_second_gpu" and found == "cuda:0":
                key = "device-index-dropped"
            raise Failed(
                f"with device={case['device']!r}, `{place['path']}` ended up on {found}",
                f"{case['device']}, as asked",
                case["line"],
                key,
            )


@move.check(points=0.5, needs=("runs", "moves_a_pair"))
def passes_non_blocking_on(seen: Seen, wanted: Seen) -> None:
    """`non_blocking` reaches every copy, and is not assumed."""
    for _, name, case in _cases(seen, "without_waiting"):
        asked = "not waiting" in name
        wrong = case["waits"].count(asked)
        if wrong:
            raise Failed(
                f"{name}: {wrong} of {len(case['waits'])} copies had non_blocking={not asked}",
                f"non_blocking={asked} for all of them",
                case["line"],
                "non-blocking-dropped" if asked else "always-non-blocking",
            )
    _refuse_errors(seen, "without_waiting", "no error", None)


# ---- on_same_device --------------------------------------------------------------------------------------------------


def _answer(call: Call, *things: Any) -> dict[str, Any]:
    value = call(*things)
    return {"class": type(value).__name__, "value": bool(value) if isinstance(value, (bool, int)) else None}


def _tried_answer(call: Call, *things: Any) -> dict[str, Any]:
    try:
        return _answer(call, *things)
    except StudentRaised as error:
        return _raised(error)


def _model(seed: int, device: Any = "cpu") -> Any:
    """Two layers, batch norm, and a palette that `state_dict()` leaves out."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.register_buffer("palette", torch.ones(2, 3), persistent=False)
    return model.to(device)


@same.probe
def tensors(call: Call) -> dict[str, Any]:
    here, there = _images(call.seed), _images(call.seed).to(call.device)
    labels = _labels(call.seed).to(call.device)
    return {
        "one tensor": _answer(call, there),
        "two on the CPU": _answer(call, here, here + 1),
        "two on the device": _answer(call, there, labels),
        "one here, one there": _answer(call, here, there),
        "the last one elsewhere": _answer(call, there, labels, there, here),
    }


@same.probe
def structures(call: Call) -> dict[str, Any]:
    here, there = _images(call.seed), _images(call.seed).to(call.device)
    return {
        "a list on the device": _tried_answer(call, [there, there]),
        "a list on both": _tried_answer(call, [there, here]),
        "a tuple on both": _tried_answer(call, (here, there)),
        "a dict on the device": _tried_answer(call, {"a": there, "b": there}, there),
        "a dict on both": _tried_answer(call, {"a": there, "b": here}),
        "a named tuple on both": _tried_answer(call, Sprite(there, here, "mushroom")),
        "one deep inside elsewhere": _tried_answer(call, {"a": there, "b": [{"c": (there, [Masked(there, here)])}]}),
        "all the same, deep inside": _tried_answer(call, {"a": there, "b": [{"c": (there, [Masked(there, there)])}]}),
        "two structures apart": _tried_answer(call, [here, {"a": here}], {"b": there}),
        "strings between": _tried_answer(call, "mushroom", [there, "cpu", None, 3], {"device": "cpu", "t": there}),
    }


@same.probe
def modules(call: Call) -> dict[str, Any]:
    there = _images(call.seed).to(call.device)
    stray_parameter, stray_buffer, stray_palette = (_model(call.seed, call.device) for _ in range(3))
    stray_parameter[2].cpu()
    stray_buffer[1].running_var = stray_buffer[1].running_var.cpu()
    stray_palette.palette = stray_palette.palette.cpu()
    return {
        "a model and its batch": _tried_answer(call, _model(call.seed, call.device), [there, there]),
        "a model alone": _tried_answer(call, _model(call.seed)),
        "a model on the CPU, a batch on the device": _tried_answer(call, _model(call.seed), there),
        "two models apart": _tried_answer(call, _model(call.seed, call.device), _model(call.seed)),
        "a model with one layer elsewhere": _tried_answer(call, stray_parameter),
        "a model with a buffer elsewhere": _tried_answer(call, stray_buffer, there),
        "a model with an unsaved buffer elsewhere": _tried_answer(call, stray_palette),
        "a model without parameters": _tried_answer(call, nn.ReLU(), there),
    }


def gpus(call: Call) -> dict[str, Any]:
    first, second = torch.zeros(2, device="cuda:0"), torch.zeros(2, device="cuda:1")
    model = _model(call.seed, "cuda:0")
    model[2].to("cuda:1")
    return {
        "cuda and cuda:0": _tried_answer(call, torch.zeros(2, device="cuda"), first),
        "two on the second GPU": _tried_answer(call, second, second + 1),
        "one on each GPU": _tried_answer(call, first, second),
        "one on each GPU, in a list": _tried_answer(call, [first, second]),
        "a model over two GPUs": _tried_answer(call, model),
    }


same.probe(gpus, machine="two gpus")


@same.probe
def no_tensors(call: Call) -> dict[str, Any]:
    return {
        "nothing at all": _tried_answer(call),
        "empty containers": _tried_answer(call, [], {}, (), [{}]),
        "other things": _tried_answer(call, "mushroom", 3, None, ["cuda", {"device": "cpu"}]),
        "a model without parameters": _tried_answer(call, nn.ReLU()),
    }


runs(same, points=0.5)


def _answered(seen: Seen, wanted: Seen, scenario: str, keys: dict[str, str] | None = None) -> None:
    """Every answer is the reference's; `keys` says which mistake a wrong one gives away."""
    for name, right in wanted[scenario].facts.items():
        answer = seen[scenario].facts[name]
        if "raised" in answer:
            raise Failed(f"{name} raised {answer['raised']}", str(right["value"]), answer["line"])
        if answer["class"] != "bool":
            raise Failed(f"{name} gave a {answer['class']}", f"{right['value']}, a bool")
        if answer["value"] != right["value"]:
            key = (keys or {}).get(name)
            raise Failed(f"{name}: it answered {answer['value']}", str(right["value"]), None, key)


@same.check(points=0.5)
def compares_tensors(seen: Seen, wanted: Seen) -> None:
    """It answers True or False: are all these tensors on one device?"""
    _answered(seen, wanted, "tensors", {"the last one elsewhere": "first-tensor-only"})


@same.check(points=0.5, needs=("runs", "compares_tensors"))
def searches_structures(seen: Seen, wanted: Seen) -> None:
    """Tensors in lists, tuples, named tuples and dicts count, at any depth; strings and numbers do not."""
    _answered(seen, wanted, "structures")


@same.check(points=1, needs=("runs", "compares_tensors"))
def searches_modules(seen: Seen, wanted: Seen) -> None:
    """All parameters and all buffers of a module count."""
    keys = {
        "a model with one layer elsewhere": "first-tensor-only",
        "a model with a buffer elsewhere": "buffers-forgotten",
        "a model with an unsaved buffer elsewhere": "state-dict-is-not-all",
    }
    _answered(seen, wanted, "modules", keys)


@same.check(points=0.5, needs=("runs", "compares_tensors"))
def tells_gpus_apart(seen: Seen, wanted: Seen) -> None:
    """cuda:0 and cuda:1 are two devices, cuda and cuda:0 are one."""
    apart = ("one on each GPU", "one on each GPU, in a list", "a model over two GPUs")
    _answered(seen, wanted, "gpus", dict.fromkeys(apart, "device-index-dropped"))


@same.check(points=0.5, needs=("runs", "compares_tensors"))
def is_true_of_nothing(seen: Seen, wanted: Seen) -> None:
    """Where there is no tensor at all, the answer is True."""
    _answered(seen, wanted, "no_tensors")
