"""03: moving batches to the device."""

from __future__ import annotations

import functools
import re
from collections import namedtuple
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpudojo.grading.call import Call, nn, settled, torch, tried
from gpudojo.grading.judge import Case, cases, runs_in_all, said
from gpudojo.model.exercise import Exercise, Failed, Seen, called

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
    "`type(batch)(items)` is of the batch's own type; a named tuple, which has `_fields`, takes them as `(*items)`.",
    "`tensor.to(device)` returns the moved tensor, and the tensor itself where there is nothing to move.",
    "Hand `device` and `non_blocking` on as you were given them, to `.to` and to every `move_batch` inside.",
)
same = exercise.function(
    "on_same_device",
    "Collect `tensor.device` of every tensor in a set; there must not be two different ones.",
    "A module has `.parameters()` and `.buffers()`; a structure is searched item by item, as in `move_batch`.",
    "Compare devices, not their `.type`: cuda:0 and cuda:1 are two.",
)
TENSOR = ("if Tensor", "if is_tensor", "to(")
move.when("moves_a_pair", hint=1, at=("if list", "if tuple", "for", "return"))
move.when("result-thrown-away", hint=4)
move.when("does_not_copy_what_is_there", "already-there-copied", hint=4, at=("deepcopy(", "clone(", *TENSOR))
move.when("keeps_the_structure", "structure-changed", "named-tuple-constructor", hint=3)
move.when("moves_every_tensor", "targets-on-cpu", hint=2, at=("if list", "if tuple", "for", "return"))
move.when("leaves_other_things_alone", hint=1, at=("tensor(", "as_tensor(", "deepcopy(", "last return"))
move.when("leaves_the_input_alone", "input-modified", hint=2, at=("set_default_device(", "[] =", ".data"))
move.when("uses_the_device_it_is_given", "hard-coded-cuda", hint=5, at=TENSOR)
move.when("device-index-dropped", hint=5, at=("if type", *TENSOR))
move.when("passes_non_blocking_on", "non-blocking-dropped", "always-non-blocking", hint=5, at=TENSOR)
same.when("compares_tensors", "is_true_of_nothing", hint=1, at=("return", "last return"))
same.when("searches_structures", hint=2, at=("if list", "if tuple", "if dict", "for"))
same.when("searches_modules", hint=2, at=("if Module", "parameters(", "return", "last return"))
same.when("tells_gpus_apart", "device-index-dropped", hint=3, at=("return", "last return"))


def kind_of(thing: Any) -> str:
    """In words: "a tensor", "a tuple", "a named tuple Sprite", …"""
    if isinstance(thing, torch.Tensor):
        return "a tensor"
    if thing is None:
        return "None"
    return f"a named tuple {type(thing).__name__}" if is_named(thing) else called(type(thing).__name__)


def is_named(thing: Any) -> bool:
    return isinstance(thing, tuple) and hasattr(thing, "_fields")


def parts(path: str, thing: Any) -> list[tuple[str, Any]]:
    """What a structure holds, each with the path a student would write to get there."""
    if isinstance(thing, dict):
        return [(f"{path}[{key!r}]", value) for key, value in thing.items()]
    if is_named(thing):
        return [(f"{path}.{name}", value) for name, value in zip(thing._fields, thing, strict=False)]
    if isinstance(thing, (list, tuple)):
        return [(f"{path}[{i}]", value) for i, value in enumerate(thing)]
    return []


def places(given: Any, found: Any, path: str = "batch") -> list[dict[str, Any]]:
    """A structure beside what it became, flattened: tensors, containers, and other things."""
    place: dict[str, Any] = {"path": path, "was": kind_of(given), "found": kind_of(found)}
    if isinstance(given, torch.Tensor):
        place |= {"role": "tensor", "fits": isinstance(found, torch.Tensor)}
        if place["fits"]:
            place |= {"device": str(found.device), "value": values(found), "copied": not _shared(given, found)}
        return [place]
    if not isinstance(given, (list, tuple, dict)):
        same = given is found or (type(given) is type(found) and bool(given == found))
        return [place | {"role": "other", "fits": same, "text": _shown(found), "wanted": _shown(given)}]
    inside, became = parts(path, given), dict(parts(path, found))
    alike = isinstance(found, dict) if isinstance(given, dict) else type(found) is type(given)
    place |= {"role": "container", "alike": alike, "fits": len(became) == len(inside)}
    by_order = list(became.values())
    flat = [place]
    if place["fits"]:
        for i, (at, thing) in enumerate(inside):
            # A tuple that became a list is wrong, but what it holds can still be looked at.
            flat += places(thing, became[at] if at in became else by_order[i], at)
        place["fits"] = not isinstance(given, dict) or {at for at, _ in inside} == became.keys()
    return flat


def _shown(thing: Any) -> str:
    plain = thing is None or isinstance(thing, (str, bytes, bool, int, float, complex))
    return repr(thing)[:60] if plain else kind_of(thing)  # the text of other things is not ours to ask for


def _shared(given: Any, found: Any) -> bool:
    """Whether two tensors are one memory."""
    if given is found:
        return True
    if given.device != found.device:
        return False
    return bool(given.untyped_storage().data_ptr() == found.untyped_storage().data_ptr())


def values(tensor: Any) -> list[Any]:
    """Dtype, shape and values: as numbers, because that is the fastest way off a device for a few of them."""
    about = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    try:
        return [*about, tensor.tolist()]
    except (RuntimeError, TypeError):  # a tensor without values, such as one on "meta"
        return [*about, None]


class Kept:
    """A structure as it was, to see later what was done to it."""

    def __init__(self, thing: Any, path: str = "batch") -> None:
        self.thing, self.path = thing, path
        self.inside = [Kept(value, at) for at, value in parts(path, thing)]
        is_tensor = isinstance(thing, torch.Tensor)
        self.state = (str(thing.device), values(thing)) if is_tensor else None

    def changed(self) -> str | None:
        """The path of the first place that is not as it was."""
        if self.state is not None:
            return None if (str(self.thing.device), values(self.thing)) == self.state else self.path
        now = parts(self.path, self.thing)
        if [at for at, _ in now] != [kept.path for kept in self.inside]:
            return self.path
        for kept, (_, value) in zip(self.inside, now, strict=True):
            changed = kept.path if value is not kept.thing else kept.changed()
            if changed is not None:
                return changed
        return None


class Sprite(NamedTuple):
    images: Any
    labels: Any
    title: str


Masked = namedtuple("Masked", ["sprite", "mask"])
Alone = namedtuple("Alone", ["images"])


class Author:
    """Something that is no structure and no tensor."""


def images(seed: int) -> Any:
    return _drawn(seed)[0].clone()  # never the same one: a student's function may write into it


def labels(seed: int) -> Any:
    return _drawn(seed)[1].clone()


def pair(seed: int) -> tuple[Any, Any]:
    return images(seed), labels(seed)


@functools.cache
def _drawn(seed: int) -> tuple[Any, Any]:
    dice = torch.Generator().manual_seed(seed)
    return torch.rand(2, 3, 2, 2, generator=dice), torch.randint(0, 3, (2,), generator=dice)


def _moved(call: Call, batch: Any, device: Any, **options: Any) -> dict[str, Any]:
    kept = Kept(batch)
    value, settings = settled(call, batch, device, **options)
    copies = call.ledger.transfers()
    return {
        "places": places(batch, value),
        "changed": kept.changed(),
        "copies": len(copies),
        # Not what was only looked at on the way: `asyncio.run` shows the result of a task when it puts Ctrl-C back.
        "waits": [not copy.non_blocking for copy in call.ledger.transfers_to_device()],
        "line": next((call.line_of(copy) for copy in copies), None),
        "settings": settings,
    }


def _group(name: str, call: Call, device: Any, batches: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Each batch of a group; which group an error is in decides which check it belongs to."""
    about = {"group": name, "device": str(torch.empty(0, device=device).device)}
    return {title: about | tried(_moved, call, batch, device, **options) for title, batch in batches.items()}


def _nested(seed: int) -> Any:
    sprites, classes = pair(seed)
    return {
        "images": [sprites, (sprites > 0.5, classes.to(torch.uint8))],
        "deeper": {"labels": classes, 7: {"one": (classes.sum(),)}},
        ("a", 1): (sprites.half(), [torch.zeros(0, 3), [classes + 1]]),
    }


@move.probe
def moved(call: Call) -> dict[str, Any]:
    """From the CPU to the device: the device as an object, but once as a string."""
    seed, device = call.seed, call.device
    sprites, classes = pair(seed)
    empty: dict[str, Any] = {"list": [], "tuple": (), "dict": {}, "in": [[], ({},)]}
    inside = [Masked({"a": Alone(sprites)}, (classes,)), {"s": Masked(classes, [])}]
    named = {"images": sprites, "title": "mushroom", "count": 2, "score": 0.5, "mask": None, "new": True}
    listed = [classes, "mushroom", 7, None, b"png", Author(), ("", "m", -1.5, 1j)]
    return (
        _group("a_pair", call, device, {"a list": list(pair(seed)), "a tensor": labels(seed)})
        | _group("a_pair", call, str(device), {"a tuple": pair(seed)})
        | _group("nested", call, device, {"a nested batch": _nested(seed), "empty containers": empty})
        | _group("nested", call, device, {"an empty list": [], "an empty tuple": (), "an empty dict": {}})
        | _group("named_tuples", call, device, {"a named tuple": Masked(sprites, sprites > 0.5)})
        | _group("named_tuples", call, device, {"a named tuple of one field": Alone(images(seed))})
        | _group("named_tuples", call, device, {"named tuples inside": inside})
        | _group("other_things", call, device, {"a dict with other things": named, "a list with other things": listed})
        | _group("other_things", call, device, {"a string": "mushroom", "a number": 3, "None": None})
        | _group("a_sprite_with_title", call, device, {"a named tuple with a string": Sprite(*pair(seed), "mushroom")})
        | _elsewhere(call)
        | _without_waiting(call)
    )


def _elsewhere(call: Call) -> dict[str, Any]:
    """Where the tensors are already, by either name of the device (`cuda` and `cuda:0`), and back to the CPU."""
    seed, device = call.seed, call.device
    there, classes = images(seed).to(device), labels(seed).to(device)
    return (
        _group("already_there", call, device, {"a tensor that is there": there})
        | _group("already_there", call, device.type, {"by its type": [there, there[:1], there.mT]})
        | _group("already_there", call, str(device), {"half of the pair": [there, labels(seed)]})
        | _group("already_there", call, "cpu", {"on the CPU": list(pair(seed))})
        | _group("back_to_the_cpu", call, torch.device("cpu"), {"from the device": [there, classes]})
    )


def _without_waiting(call: Call) -> dict[str, Any]:
    """Pinned where that exists, since only then a copy can do without waiting."""
    sprites, classes = pair(call.seed)
    if call.device.type == "cuda":
        sprites, classes = sprites.pin_memory(), classes.pin_memory()
    nested = {"images": [sprites], "labels": (classes, Alone(sprites))}
    both = [sprites, classes]
    group = "without_waiting"
    return (
        _group(
            group, call, call.device, {"a pair, not waiting": both, "nested, not waiting": nested}, non_blocking=True
        )
        | _group(group, call, call.device, {"a pair, waiting": both})
        | _group(group, call, call.device, {"nested, waiting": nested}, non_blocking=False)
    )


def moved_to_the_second_gpu(call: Call) -> dict[str, Any]:
    first = [tensor.to("cuda:0") for tensor in pair(call.seed)]
    group = "to_the_second_gpu"
    return _group(group, call, "cuda:1", {"from the CPU": list(pair(call.seed))}) | _group(
        group, call, torch.device("cuda", 1), {"from the first": first}
    )


move.probe(moved_to_the_second_gpu, machine="two gpus")


def _answer(call: Call, *things: Any) -> dict[str, Any]:
    value, settings = settled(call, *things)
    answer = bool(value) if isinstance(value, (bool, int)) else None
    return {"class": type(value).__name__, "value": answer, "settings": settings}


def _things(name: str, call: Call, questions: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {title: {"group": name} | tried(_answer, call, *things) for title, things in questions.items()}


@functools.cache
def _parts() -> tuple[Any, Any]:
    class Layer(nn.Module):
        def __init__(self, weight: Any, frozen: bool = False) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight, requires_grad=not frozen)

    class Normed(Layer):
        """With a statistic, and with a palette that `state_dict()` leaves out."""

        def __init__(self, weight: Any, mean: Any, palette: Any) -> None:
            super().__init__(weight)
            self.register_buffer("running_mean", mean)
            self.register_buffer("palette", palette, persistent=False)

    return Layer, Normed


def _model(first: Any, last: Any = None, mean: Any = None, palette: Any = None, frozen: bool = False) -> Any:
    """A model made of tensors where they are: all of them `first`, but for those that are given."""
    layer, normed = _parts()
    return nn.Sequential(
        layer(first),
        normed(first, first if mean is None else mean, first if palette is None else palette),
        layer(first if last is None else last, frozen),
    )


@same.probe
def answered(call: Call) -> dict[str, Any]:
    here = images(call.seed)
    there, classes = here.to(call.device), labels(call.seed).to(call.device)
    deep = {"a": there, "b": [{"c": (there, [Masked(there, here)])}]}
    alike = {"a": there, "b": [{"c": (there, [Masked(there, there)])}]}
    on_device, on_cpu = _model(there), _model(here)
    return (
        _things(
            "tensors",
            call,
            {
                "one tensor": (there,),
                "two on the CPU": (here, here + 1),
                "two on the device": (there, classes),
                "one here, one there": (here, there),
                "the last one elsewhere": (there, classes, there, here),
            },
        )
        | _things(
            "structures",
            call,
            {
                "a list on the device": ([there, there],),
                "a list on both": ([there, here],),
                "a tuple on both": ((here, there),),
                "a dict on the device": ({"a": there, "b": there}, there),
                "a dict on both": ({"a": there, "b": here},),
                "a named tuple on both": (Sprite(there, here, "mushroom"),),
                "one deep inside elsewhere": (deep,),
                "all the same, deep inside": (alike,),
                "two structures apart": ([here, {"a": here}], {"b": there}),
                "a string between two apart": (there, "mushroom", here),
                "strings between": ("mushroom", [there, "cpu", None, 3], {"device": "cpu", "t": there}),
            },
        )
        | _things(
            "modules",
            call,
            {
                "a model and its batch": (on_device, [there, there]),
                "a model alone": (on_cpu,),
                "a model on the CPU, a batch on the device": (on_cpu, there),
                "two models apart": (on_device, on_cpu),
                "a model with one layer elsewhere": (_model(there, last=here),),
                "a model with a frozen layer elsewhere": (_model(there, last=here, frozen=True),),
                "a model with a buffer elsewhere": (_model(there, mean=here), there),
                "a model with an unsaved buffer elsewhere": (_model(there, palette=here),),
                "a model without parameters, a batch": (nn.ReLU(), there),
            },
        )
        | _things(
            "no_tensors",
            call,
            {
                "nothing at all": (),
                "empty containers": ([], {}, (), [{}]),
                "other things": ("mushroom", 3, None, ["cuda", {"device": "cpu"}]),
                "a model without parameters": (nn.ReLU(),),
            },
        )
    )


def answered_with_two_gpus(call: Call) -> dict[str, Any]:
    first, second = torch.zeros(2, device="cuda:0"), torch.zeros(2, device="cuda:1")
    questions = {
        "cuda and cuda:0": (torch.zeros(2, device="cuda"), first),
        "two on the second GPU": (second, second + 1),
        "one on each GPU": (first, second),
        "one on each GPU, in a list": ([first, second],),
        "a model over two GPUs": (_model(first, last=second),),
    }
    return _things("gpus", call, questions)


same.probe(answered_with_two_gpus, machine="two gpus")


PAIRS = ("a list", "a tuple")
BASIC = ("a list", "a tuple", "a tensor", "a tensor that is there", "by its type", "half of the pair", "on the CPU")
runs_in_all(move, points=0.5, scenarios=(*BASIC, "from the device", "from the CPU", "from the first"))


def _in(seen: Seen, *groups: str) -> dict[str, Case]:
    """The calls of some groups, or of all."""
    return {name: case for name, case in cases(seen).items() if not groups or case["group"] in groups}


def _returned(seen: Seen, *groups: str) -> dict[str, Case]:
    return {name: case for name, case in _in(seen, *groups).items() if "raised" not in case}


def _branch(was: str) -> tuple[str, ...]:
    """Where the source deals with a thing of this kind, as probes call it: "a tuple", "a named tuple Masked"."""
    kind = "named tuple" if "named tuple" in was else was.rpartition(" ")[2]
    lists = ("if list", "if tuple", "for", "return")
    return {
        "named tuple": ("if _fields", "_make(", "if tuple", *lists),
        "tuple": ("if tuple", *lists),
        "list": lists,
        "dict": ("if dict", "if Mapping", "items(", *lists),
    }.get(kind, lists)


def _holder(case: Case, path: str) -> tuple[str, ...]:
    """The branch for what a part of the batch lies in."""
    outside = re.sub(r"(\[[^\[\]]*\]|\.\w+)$", "", path)
    was = next((place["was"] for place in case["places"] if place["path"] == outside and "was" in place), "")
    return _branch(was)


def _any_raised(seen: Seen, group: str) -> bool:
    return any("raised" in case for case in _in(seen, group).values())


def _refuse_errors(seen: Seen, group: str, expected: str) -> None:
    for name, case in _in(seen, group).items():
        if "raised" in case:
            raised = case["raised"]
            key = _taken_for_tensor(raised) if group in ("other_things", "a_sprite_with_title") else None
            raise Failed(f"{name} raised {said(raised)}", expected, raised["line"], key)


def _taken_for_tensor(raised: Case) -> str | None:
    """Whether something was asked to move that is no tensor, or to become one, or to hold some without end."""
    made = "invalid data type" in raised["message"] or "infer dtype" in raised["message"]
    return "everything-a-tensor" if made or raised["type"] in ("AttributeError", "RecursionError") else None


@move.check(points=1)
def moves_a_pair(seen: Seen, wanted: Seen) -> None:
    """Inputs and targets of a plain pair are on the device."""
    found, right = cases(seen), cases(wanted)
    for name in PAIRS:
        _all_moved(name, found[name], right[name])


@move.check(points=1, needs=("runs", "moves_a_pair"))
def keeps_the_structure(seen: Seen, wanted: Seen) -> None:
    """Lists stay lists, tuples tuples, named tuples named tuples, dicts dicts with the same keys."""
    for name, case in _in(seen, "named_tuples").items():
        raised = case.get("raised")
        if raised is not None and raised["type"] == "TypeError" and "positional argument" in raised["message"]:
            expected = "the same named tuple, built from its fields"
            raise Failed(f"{name} raised {said(raised)}", expected, raised["line"], "named-tuple-constructor")
    right = cases(wanted)
    for name, case in _returned(seen).items():
        for place in case["places"]:
            if place["role"] == "other" or (place["fits"] and place.get("alike", True)):
                continue
            happened = f"{name}: `{place['path']}` was {place['was']} and became {place['found']}"
            if place["was"] == place["found"]:
                happened = f"{name}: the keys or the number of items of `{place['path']}` changed"
            raise Failed(happened, "the same structure", None, "structure-changed", _branch(place["was"]))
        if [place["path"] for place in case["places"]] != [place["path"] for place in right[name].get("places", [])]:
            raise Failed(f"{name}: not all of the batch came back", "the same structure", None, "structure-changed")
    if not _any_raised(seen, "nested"):  # that error comes with the next check
        _refuse_errors(seen, "named_tuples", "the same named tuple")


@move.check(points=1, needs=("runs", "moves_a_pair"))
def moves_every_tensor(seen: Seen, wanted: Seen) -> None:
    """Every tensor is on the device, at every depth, with its values and its dtype."""
    _refuse_errors(seen, "nested", "every tensor moved, at any depth")
    built_wrong = _any_raised(seen, "named_tuples")  # said by another check
    right = cases(wanted)
    for name, case in _returned(seen, "a_pair", "nested", "without_waiting", "named_tuples").items():
        if not (case["group"] == "named_tuples" and built_wrong):
            _all_moved(name, case, right[name])


def _all_moved(name: str, case: Case, reference: Case) -> None:
    found = {place["path"]: place for place in case["places"]}
    for right in reference["places"]:
        place = found.get(right["path"])
        if right["role"] != "tensor":
            continue
        if place is None or not place["fits"]:
            root = case["places"][0]
            shown = root["found"] if place is None else place["found"]
            # None is a result forgotten; anything else in a list's place is another structure.
            other = place is None and root["found"] not in ("None", root["was"])
            key = "structure-changed" if other else None
            happened = f"{name}: it gave {shown}, where `{right['path']}` is no tensor"
            raise Failed(happened, "a tensor, moved", None, key, _holder(case, right["path"]))
        if place["device"] != right["device"]:
            thrown = case["copies"] > 0 and not _any_moved(case)
            targets = name in PAIRS and right["path"] == "batch[1]"
            why = "result-thrown-away" if thrown else "targets-on-cpu" if targets else None
            happened = f"{name}: `{place['path']}` is on {place['device']}"
            line = case["line"] if thrown else None
            raise Failed(happened, right["device"], line, why, _holder(case, right["path"]))
        if place["value"] != right["value"]:
            happened = f"{name}: the values or the dtype of `{place['path']}` changed"
            raise Failed(happened, "only another device", at=("if Tensor", "if is_tensor", "to("))


def _any_moved(case: Case) -> bool:
    return any(place.get("device") == case["device"] for place in case["places"])


@move.check(points=1, needs=("runs", "moves_a_pair"))
def leaves_other_things_alone(seen: Seen, wanted: Seen) -> None:
    """Strings, numbers, None and whatever else is no tensor come back as they are."""
    expected = "what is no tensor, list, tuple or dict comes back as it is"
    _refuse_errors(seen, "other_things", expected)
    for name, case in _returned(seen).items():
        for place in case["places"]:
            if place["role"] == "other" and not place["fits"]:
                key = "everything-a-tensor" if place["found"] == "a tensor" else None
                copied = place["text"] == place["wanted"]
                became, wished = ("a copy of it", "the very object") if copied else (place["text"], place["wanted"])
                raise Failed(f"{name}: `{place['path']}` became {became}", wished, None, key)
    # A named tuple with a string needs both; whoever fails at named tuples has heard of it already.
    if not _any_raised(seen, "named_tuples"):
        _refuse_errors(seen, "a_sprite_with_title", expected)


@move.check(points=0.5, needs=("runs", "moves_a_pair"))
def leaves_the_input_alone(seen: Seen, wanted: Seen) -> None:
    """The batch that was passed in is not modified, nor are the settings of torch."""
    for name, case in _returned(seen).items():
        if case["changed"] is not None:
            raise Failed(
                f"{name}: after the call, `{case['changed']}` of the batch passed in is not what it was",
                "a new structure, the old one as before",
                misconception="input-modified",
            )
        if case["settings"]:
            raise Failed(f"{name}: it changed {case['settings'][0]} of torch", "a batch moved, and nothing else")


@move.check(points=0.5, needs=("runs", "moves_a_pair"))
def does_not_copy_what_is_there(seen: Seen, wanted: Seen) -> None:
    """A tensor that is on the device already is not copied."""
    right = cases(wanted)
    for name, case in _returned(seen, "already_there").items():
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
    for name, case in _returned(seen, "already_there", "back_to_the_cpu", "to_the_second_gpu").items():
        for place in case["places"]:
            found = place.get("device", case["device"])
            if found == case["device"]:
                continue
            key = None
            if name == "on the CPU":
                key = "hard-coded-cuda"
            elif case["group"] == "to_the_second_gpu" and found == "cuda:0":
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
    for name, case in _returned(seen, "without_waiting").items():
        asked = "not waiting" in name
        wrong = case["waits"].count(asked)
        if wrong:
            raise Failed(
                f"{name}: {wrong} of {len(case['waits'])} copies had non_blocking={not asked}",
                f"non_blocking={asked} for all of them",
                case["line"],
                "non-blocking-dropped" if asked else "always-non-blocking",
            )
    _refuse_errors(seen, "without_waiting", "no error")


TENSORS = ("one tensor", "two on the CPU", "two on the device", "one here, one there", "the last one elsewhere")
runs_in_all(same, points=0.5, scenarios=TENSORS)


def _answered(seen: Seen, wanted: Seen, group: str, keys: dict[str, str] | None = None) -> None:
    """Every answer is the reference's; `keys` says which mistake a wrong one gives away."""
    found = cases(seen)
    for name, right in cases(wanted).items():
        if right["group"] != group:
            continue
        answer = found[name]
        if "raised" in answer:
            raised = answer["raised"]
            raise Failed(f"{name} raised {said(raised)}", str(right["value"]), raised["line"])
        if answer["class"] != "bool":
            raise Failed(f"{name} gave {called(answer['class'])}", f"{right['value']}, a bool")
        if answer["value"] != right["value"]:
            key = (keys or {}).get(name)
            raise Failed(f"{name}: it answered {answer['value']}", str(right["value"]), None, key)
        if answer["settings"]:
            raise Failed(f"{name}: it changed {answer['settings'][0]} of torch", "an answer, and nothing changed")


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
