"""03: moving batches to the device."""

from __future__ import annotations

import functools
import re
from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpudojo.days.day8.sprites import linear_layer
from gpudojo.days.day8.tensor_values import Values, values_of
from gpudojo.grading.call import (
    Call,
    call_and_restore_settings,
    device_name,
    nn,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import expect_settings_kept, runs
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, with_article

exercise = Exercise(
    "03_moving_batches",
    "A batch on the GPU, whatever it is made of",
    points=10,
    reading=("generated/torch.Tensor.to.html", "tensor_attributes.html", "notes/cuda.html"),
)
move = exercise.function("move_batch")
same = exercise.function("on_same_device")
TENSOR = ("if Tensor", "if is_tensor", "to(")


# ---- move_batch ------------------------------------------------------------------------------------------------------


class BatchPlace(Case, frozen=True, kw_only=True):
    """One part of a batch, and what it became."""

    path: str
    role: str  # "tensor", "container" or "other"
    was: str
    found: str
    fits: bool
    alike: bool = True  # whether a container kept its type
    device: str | None = None
    value: Values | None = None
    copied: bool = False
    text: str = ""
    wanted: str = ""


class Moved(Case, frozen=True):
    """A batch after the move."""

    places: list[BatchPlace]
    device: str  # the one that was asked for
    changed: str | None  # the first part of the batch passed in that is not as before
    copies: int
    waits: list[bool]  # of each copy to the device
    line: int | None  # of the first copy
    settings: list[str]


def kind_of(thing: Any) -> str:
    """A thing's kind: "a tensor", "a tuple", "a named tuple Sprite", …"""
    if isinstance(thing, torch.Tensor):
        return "a tensor"
    return (
        f"a named tuple {type(thing).__name__}"
        if is_named(thing)
        else with_article(type(thing).__name__)
    )


def is_named(thing: Any) -> bool:
    return isinstance(thing, tuple) and hasattr(thing, "_fields")


def parts(path: str, thing: Any) -> list[tuple[str, Any]]:
    """The items of a container, each with the path a student would write to get there."""
    if isinstance(thing, dict):
        return [(f"{path}[{key!r}]", value) for key, value in thing.items()]
    if is_named(thing):
        return [
            (f"{path}.{name}", value) for name, value in zip(thing._fields, thing, strict=False)
        ]
    if isinstance(thing, (list, tuple)):
        return [(f"{path}[{i}]", value) for i, value in enumerate(thing)]
    return []


def places(given: Any, found: Any, path: str = "batch") -> Iterator[BatchPlace]:
    """A batch beside what it became, flattened: tensors, containers, and other things."""
    place = functools.partial(BatchPlace, path=path, was=kind_of(given), found=kind_of(found))
    if isinstance(given, torch.Tensor):
        if isinstance(found, torch.Tensor):
            copied = not _shared(given, found)
            yield place(
                role="tensor",
                fits=True,
                device=str(found.device),
                value=values_of(found),
                copied=copied,
            )
        else:
            yield place(role="tensor", fits=False)
    elif not isinstance(given, (list, tuple, dict)):
        kept = given is found or (type(given) is type(found) and bool(given == found))
        yield place(role="other", fits=kept, text=_shown(found), wanted=_shown(given))
    else:
        inside = parts(path, given)
        became = dict(parts(path, found))
        alike = isinstance(found, dict) if isinstance(given, dict) else type(found) is type(given)
        same_length = len(became) == len(inside)
        same_keys = not isinstance(given, dict) or {at for at, _ in inside} == became.keys()
        yield place(role="container", alike=alike, fits=same_length and same_keys)
        if same_length:
            for (at, thing), in_order in zip(inside, became.values(), strict=True):
                # A tuple that became a list is wrong, but its items can still be judged.
                yield from places(thing, became.get(at, in_order), at)


def _shown(thing: Any) -> str:
    basic = thing is None or isinstance(thing, (str, bytes, bool, int, float, complex))
    return (
        repr(thing)[:60] if basic else kind_of(thing)
    )  # the repr of other things may be the student's code


def _shared(given: Any, found: Any) -> bool:
    """Whether two tensors share their memory."""
    if given is found or given.device != found.device:
        return given is found
    return bool(given.untyped_storage().data_ptr() == found.untyped_storage().data_ptr())


def state(thing: Any, path: str = "batch") -> list[tuple[str, Any, Any]]:
    """Every part of a batch: its path, the object itself and, of a tensor, its device and values."""
    own = (str(thing.device), values_of(thing)) if isinstance(thing, torch.Tensor) else None
    return [
        (path, thing, own),
        *(part for at, value in parts(path, thing) for part in state(value, at)),
    ]


def changed(before: list[tuple[str, Any, Any]], now: list[tuple[str, Any, Any]]) -> str | None:
    """The path of the first part that is not as it was."""
    for (path, thing, own), (at, other, after) in zip(before, now, strict=False):
        if path != at or thing is not other or own != after:
            return path
    return None if len(before) == len(now) else "batch"


class Sprite(NamedTuple):
    images: Any
    labels: Any
    title: str


Masked = namedtuple("Masked", ["sprite", "mask"])
Alone = namedtuple("Alone", ["images"])


def pair(seed: int) -> tuple[Any, Any]:
    """New ones each time: a student's function may write into them."""
    pictures, classes = _drawn(seed)
    return pictures.clone(), classes.clone()


@functools.cache
def _drawn(seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, 3, 2, 2, generator=generator), torch.randint(
        0, 3, (2,), generator=generator
    )


def _moved(call: Call, batch: Any, device: Any, **options: Any) -> Moved:
    before = state(batch)
    value, settings = call_and_restore_settings(call, batch, device, **options)
    copies = call.ledger.transfers()
    return Moved(
        places=list(places(batch, value)),
        device=device_name(device),
        changed=changed(before, state(batch)),
        copies=len(copies),
        # Only copies to the device: `asyncio.run` reads the result of a task on its way out.
        waits=[not copy.non_blocking for copy in call.ledger.transfers_to_device()],
        line=call.first_line(copies),
        settings=settings,
    )


def _group(call: Call, device: Any, batches: Mapping[str, Any], **options: Any) -> Cases[Moved]:
    """Each batch of a group. The group that an error is in decides which check it belongs to."""
    moving = {
        name: functools.partial(_moved, call, batch, device, **options)
        for name, batch in batches.items()
    }
    return try_scenarios(moving)


def _nested(seed: int) -> Any:
    sprites, classes = pair(seed)
    return {
        "images": [sprites, (sprites > 0.5, classes.to(torch.uint8))],
        "deeper": {"labels": classes, 7: {"one": (classes.sum(),)}},
        ("a", 1): (sprites.half(), [torch.zeros(0, 3), [classes + 1]]),
    }


@move.probe
def moved(call: Call) -> dict[str, Cases[Moved]]:
    """From the CPU to the device, which is given as an object, and once as a string."""
    seed = call.seed
    device = call.device
    sprites, classes = pair(seed)
    empty: dict[str, Any] = {"list": [], "tuple": (), "dict": {}, "in": [[], ({},)]}
    inside = [Masked({"a": Alone(sprites)}, (classes,)), {"s": Masked(classes, [])}]
    named = {
        "images": sprites,
        "title": "mushroom",
        "count": 2,
        "score": 0.5,
        "mask": None,
        "new": True,
    }
    listed = [classes, "mushroom", 7, None, b"png", object(), ("", "m", -1.5, 1j)]
    there, there_too = (tensor.to(device) for tensor in pair(seed))
    batches: dict[str, dict[str, Any]] = {
        "nested": {"a nested batch": _nested(seed), "empty containers": empty}
        | {"an empty list": [], "an empty tuple": (), "an empty dict": {}},
        "named_tuples": {
            "a named tuple": Masked(sprites, sprites > 0.5),
            "a named tuple of one field": Alone(pair(seed)[0]),
            "named tuples inside": inside,
        },
        "other_things": {"a dict with other things": named, "a list with other things": listed}
        | {"a string": "mushroom", "a number": 3, "None": None},
        "a_sprite_with_title": {"a named tuple with a string": Sprite(*pair(seed), "mushroom")},
    }
    pairs = _group(call, device, {"a list": list(pair(seed)), "a tensor": pair(seed)[1]})
    # Tensors that are already there, by either name of the device (`cuda` and `cuda:0`).
    already = _group(call, device, {"a tensor that is there": there})
    already.add(_group(call, device.type, {"by its type": [there, there[:1], there.mT]}))
    already.add(_group(call, str(device), {"half of the pair": [there, pair(seed)[1]]}))
    already.add(_group(call, "cpu", {"on the CPU": list(pair(seed))}))
    # Containers of all kinds: the code for one may have another device than that for the others.
    back = _group(call, torch.device("cpu"), {"from the device": (there, there_too)})
    back.add(
        _group(
            call,
            "cpu",
            {"to the CPU, non_blocking=True": {"a": there, "b": there_too}},
            non_blocking=True,
        )
    )
    back.add(_group(call, "cpu", {"a named tuple to the CPU": Masked(there, there_too)}))
    return {
        "a_pair": pairs.add(_group(call, str(device), {"a tuple": pair(seed)})),
        **{name: _group(call, device, group) for name, group in batches.items()},
        "already_there": already,
        "back_to_the_cpu": back,
        "without_waiting": _without_waiting(call),
    }


def _without_waiting(call: Call) -> Cases[Moved]:
    """Pinned where that exists, since only then a copy can run without the host waiting."""
    sprites, classes = pair(call.seed)
    if call.device.type == "cuda":
        sprites = sprites.pin_memory()
        classes = classes.pin_memory()
    both = [sprites, classes]
    nested = {"images": [sprites], "labels": (classes, Alone(sprites))}
    asked = {"a pair, non_blocking=True": both, "nested, non_blocking=True": nested}
    found = _group(call, call.device, asked, non_blocking=True)
    found.add(_group(call, call.device, {"a pair, by default": both}))
    return found.add(
        _group(call, call.device, {"nested, non_blocking=False": nested}, non_blocking=False)
    )


@move.probe(machine="two gpus")
def moved_to_the_second_gpu(call: Call) -> dict[str, Cases[Moved]]:
    here = pair(call.seed)
    first = [tensor.to("cuda:0") for tensor in pair(call.seed)]
    found = _group(
        call, "cuda:1", {"from the CPU": {"a": here[0], "b": here[1]}}, non_blocking=True
    )
    return {
        "to_the_second_gpu": found.add(
            _group(call, torch.device("cuda", 1), {"from the first": Masked(*first)})
        )
    }


PAIRS = ("a list", "a tuple")
BASIC = (
    "a list",
    "a tuple",
    "a tensor",
    "a tensor that is there",
    "by its type",
    "half of the pair",
    "on the CPU",
)
runs(move, scenarios=(*BASIC, "from the device"))


def _in(seen: Seen, *groups: str) -> Cases[Moved]:
    """The calls of some groups, or of all."""
    every = seen[moved] | seen[moved_to_the_second_gpu]
    found: Cases[Moved] = Cases()
    for group in groups or every:
        found.add(every[group])
    return found


def _branch(was: str) -> tuple[str, ...]:
    """Source patterns for the code that handles a kind of thing: "a tuple", "a named tuple Masked"."""
    kind = "named tuple" if "named tuple" in was else was.rpartition(" ")[2]
    lists = ("if list", "if tuple", "for", "return")
    return {
        "named tuple": ("if _fields", "_make(", "if tuple", *lists),
        "tuple": ("if tuple", *lists),
        "list": lists,
        "dict": ("if dict", "if Mapping", "items(", *lists),
    }.get(kind, lists)


def _holder(case: Moved, path: str) -> tuple[str, ...]:
    """Source patterns for the container that a part of the batch is in."""
    outside = re.sub(r"(\[[^\[\]]*\]|\.\w+)$", "", path)
    return _branch(next((place.was for place in case.places if place.path == outside), ""))


def _depth(path: str) -> int:
    return path.count("[") + path.count(".")


def _refuse_errors(seen: Seen, group: str, expected: str) -> None:
    for name, raised in _in(seen, group).errors.items():
        seen.about(None, name)
        # Something that is no tensor was moved, turned into one, or searched for tensors without end.
        made = "invalid data type" in raised.message or "infer dtype" in raised.message
        taken = made or raised.type in ("AttributeError", "RecursionError")
        key = (
            "everything-a-tensor"
            if taken and group in ("other_things", "a_sprite_with_title")
            else None
        )
        raise Failed(f"{name} raised {raised.short}", expected, raised.line, key)


@move.check(points=1.5)
def moves_a_pair(seen: Seen, wanted: Seen) -> None:
    """Inputs and targets of a plain pair are on the device, with their values and dtypes."""
    for name in PAIRS:
        _all_moved(name, seen[moved]["a_pair"][name], wanted[moved]["a_pair"][name])


MOVED = ("runs", "moves_a_pair")


def _misbuilt(seen: Seen) -> list[tuple[str, Raised]]:
    """The named tuples that were built from one sequence."""
    errors = _in(seen, "named_tuples").errors.items()
    return [
        each
        for each in errors
        if each[1].type == "TypeError" and "positional argument" in each[1].message
    ]


@move.check(points=1, needs=MOVED)
def keeps_the_structure(seen: Seen, wanted: Seen) -> None:
    """Lists stay lists, tuples tuples, named tuples named tuples, dicts dicts with the same keys."""
    for name, raised in _misbuilt(seen):
        expected = "the same named tuple, built from its fields"
        raise Failed(
            f"{name} raised {raised.short}", expected, raised.line, "named-tuple-constructor"
        )
    right = _in(wanted)
    for name, case in _in(seen).items():
        for place in case.places:
            if place.role == "other" or (place.fits and place.alike):
                continue
            happened = f"{name}: `{place.path}` was {place.was} and became {place.found}"
            if place.was == place.found:
                happened = f"{name}: the keys or the number of items of `{place.path}` changed"
            made = place.found.rpartition(" ")[2]
            at = (f"{made}(", *(("_asdict(",) if made == "dict" else ()), *_branch(place.was))
            raise Failed(happened, "the same structure", None, "structure-changed", at)
        if [place.path for place in case.places] != [place.path for place in right[name].places]:
            raise Failed(
                f"{name}: not all of the batch came back",
                "the same structure",
                None,
                "structure-changed",
            )
    if not _in(seen, "nested").errors:  # those are the next check's
        _refuse_errors(seen, "named_tuples", "the same named tuple")


@move.check(points=1, needs=MOVED)
def moves_every_tensor(seen: Seen, wanted: Seen) -> None:
    """Every tensor is on the device, at every depth, with its values and its dtype."""
    _refuse_errors(seen, "nested", "every tensor moved, at any depth")
    groups = ["a_pair", "nested", "without_waiting"]
    if not _in(seen, "named_tuples").errors:  # those are another check's
        groups.append("named_tuples")
    for group in groups:
        for name, case in seen[moved][group].items():
            _all_moved(
                name,
                case,
                wanted[moved][group][name],
                "named-tuple-constructor" if _misbuilt(seen) else None,
            )


def _all_moved(name: str, case: Moved, reference: Moved, instead: str | None = None) -> None:
    """Raises Failed for a tensor that was not moved; `instead` is the mistake if there is something else in a tuple."""
    found = {place.path: place for place in case.places}
    for right in reference.places:
        place = found.get(right.path)
        if right.role != "tensor":
            continue
        if place is None or not place.fits:
            root = case.places[0]
            shown = root.found if place is None else place.found
            happened = f"`{right.path}` is {shown}"
            if place is None:
                happened = f"it returned {shown}" + (
                    f" without `{right.path}`" if shown == root.was else ""
                )
            elif place is root:
                happened = f"it returned {shown}"
            # None is a forgotten return; anything else instead of a list is another structure.
            other = place is None and root.found not in ("None", root.was)
            key = "structure-changed" if other else instead if place not in (None, root) else None
            at = ("return",) if shown == "None" else _holder(case, right.path)
            expected = (
                "a tensor, moved"
                if place is not None
                else f"{root.was} with all of its tensors, moved"
            )
            raise Failed(f"{name}: {happened}", expected, None, key, at)
        if place.device != right.device:
            thrown = case.copies > 0 and not any(each.device == case.device for each in case.places)
            targets = name in PAIRS and right.path == "batch[1]"
            why = "result-thrown-away" if thrown else "targets-on-cpu" if targets else None
            happened = f"{name}: `{place.path}` is on {place.device}"
            line = case.line if thrown else None
            # Where others inside a container were moved, it is how this tensor is treated.
            deep = [
                each.device == case.device
                for each in case.places
                if _depth(each.path) >= _depth(right.path)
            ]
            at = TENSOR if any(deep) and not targets else ("for", *_holder(case, right.path))
            raise Failed(happened, str(right.device), line, why, () if thrown else at)
        if place.value != right.value:
            happened = f"{name}: the values or the dtype of `{place.path}` changed"
            raise Failed(
                happened, "only the device changed", at=("if Tensor", "if is_tensor", "to(")
            )


@move.check(points=1, needs=MOVED)
def leaves_other_things_alone(seen: Seen, wanted: Seen) -> None:
    """Strings, numbers, None and everything else that is no tensor come back unchanged."""
    expected = "what is no tensor, list, tuple or dict comes back unchanged"
    _refuse_errors(seen, "other_things", expected)
    for name, case in _in(seen).items():
        for place in case.places:
            if place.role == "other" and not place.fits:
                key = "everything-a-tensor" if place.found == "a tensor" else None
                copied = place.text == place.wanted
                became, wished = (
                    ("a copy of it", "the same object") if copied else (place.text, place.wanted)
                )
                at = ("end",) if became == "None" else ()
                raise Failed(f"{name}: `{place.path}` became {became}", wished, None, key, at)
    # A named tuple with a string needs both; errors with named tuples have been reported already.
    if not _in(seen, "named_tuples").errors:
        _refuse_errors(seen, "a_sprite_with_title", expected)


@move.check(points=0.5, needs=MOVED)
def leaves_the_input_alone(seen: Seen, wanted: Seen) -> None:
    """The batch that was passed in is not modified, nor are the settings of torch."""
    for name, case in _in(seen).items():
        if case.changed is not None:
            happened = f"{name}: the call changed `{case.changed}` of the batch passed in"
            raise Failed(
                happened, "a new structure, the old one unchanged", misconception="input-modified"
            )
        expect_settings_kept(case.settings, name)


@move.check(points=0.5, needs=MOVED)
def does_not_copy_what_is_there(seen: Seen, wanted: Seen) -> None:
    """A tensor that is already on the device is not copied."""
    for name, case in seen[moved]["already_there"].items():
        references = {place.path: place for place in wanted[moved]["already_there"][name].places}
        for place in case.places:
            right = references[place.path]
            if place.copied and not right.copied and place.device == right.device:
                happened = f"{name}: `{place.path}` was on {right.device} already and was copied"
                raise Failed(happened, "the tensor itself", case.line, "already-there-copied")


@move.check(points=0.5, needs=MOVED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Tensors end up on exactly the device passed in, whatever this machine has."""
    second = seen[moved_to_the_second_gpu]["to_the_second_gpu"]
    elsewhere = _in(seen, "already_there", "back_to_the_cpu", "to_the_second_gpu")
    for name, raised in elsewhere.errors.items():
        if not _in(seen, "nested", "named_tuples").errors:  # those are another check's
            raise Failed(f"{name} raised {raised.short}", "no error", raised.line)
    for name, case in elsewhere.items():
        for place in case.places:
            if place.device in (None, case.device):
                continue
            key = None
            if place.device.startswith("cuda") and name.endswith(
                ("on the CPU", "to the CPU", "to the CPU, non_blocking=True")
            ):
                key = "hard-coded-cuda"
            elif name in second and place.device == "cuda:0":
                key = "device-index-dropped"
            happened = f"with device={case.device!r}, `{place.path}` ended up on {place.device}"
            raise Failed(happened, f"{case.device}, as asked", case.line if key else None, key)


@move.check(points=0.5, needs=MOVED)
def passes_non_blocking_on(seen: Seen, wanted: Seen) -> None:
    """Every copy uses the `non_blocking` value you were given."""
    for name, case in seen[moved]["without_waiting"].items():
        asked = "non_blocking=True" in name
        if wrong := case.waits.count(asked):
            happened = f"{name}: {wrong} of {len(case.waits)} copies had non_blocking={not asked}"
            key = "non-blocking-dropped" if asked else "always-non-blocking"
            raise Failed(happened, f"non_blocking={asked} for all of them", case.line, key)
    _refuse_errors(seen, "without_waiting", "no error")


# ---- on_same_device --------------------------------------------------------------------------------------------------


def _model(
    first: Any, last: Any = None, mean: Any = None, palette: Any = None, frozen: bool = False
) -> Any:
    """A model made of these tensors, wherever they are: `first` everywhere unless another one is given.

    It has a running mean, and a palette that is not in `state_dict()`.
    """
    made = nn.Sequential(
        linear_layer(first), linear_layer(first), linear_layer(first if last is None else last)
    )
    made[1].register_buffer("running_mean", first if mean is None else mean)
    made[1].register_buffer("palette", first if palette is None else palette, persistent=False)
    made[2].requires_grad_(not frozen)
    return made


class Answer(Case, frozen=True):
    """One answer; None as its value if it is no bool or int."""

    kind: str
    value: bool | None
    settings: list[str]


def _answer(call: Call, *things: Any) -> Answer:
    value, settings = call_and_restore_settings(call, *things)
    return Answer(
        type(value).__name__, bool(value) if isinstance(value, (bool, int)) else None, settings
    )


def _answers(
    call: Call, groups: Mapping[str, Mapping[str, tuple[Any, ...]]]
) -> dict[str, Cases[Answer]]:
    """The answers to some groups of questions, asked in an order drawn from the seed."""
    every = {title: things for questions in groups.values() for title, things in questions.items()}
    found = try_scenarios(
        {title: functools.partial(_answer, call, *things) for title, things in every.items()},
        call.seed,
    )
    return {
        group: Cases(
            {title: found[title] for title in questions if title in found},
            {title: found.errors[title] for title in questions if title in found.errors},
        )
        for group, questions in groups.items()
    }


BETWEEN = "a string between two tensors on different devices"  # no structure to search


@same.probe
def answered(call: Call) -> dict[str, Cases[Answer]]:
    here, classes = pair(call.seed)
    there = here.to(call.device)
    classes = classes.to(call.device)
    deep = {"a": there, "b": [{"c": (there, [Masked(there, here)])}]}
    alike = {"a": there, "b": [{"c": (there, [Masked(there, there)])}]}
    on_device = _model(there)
    on_cpu = _model(here)
    questions: dict[str, dict[str, tuple[Any, ...]]] = {
        "tensors": {
            "one tensor": (there,),
            "two on the CPU": (here, here + 1),
            "two on the device": (there, classes),
            "one on the CPU, one on the device": (here, there),
            "three on the device, the last one on the CPU": (there, classes, there, here),
        },
        "structures": {
            "a list on the device": ([there, there],),
            "a list on both": ([there, here],),
            "a tuple on both": ((here, there),),
            "a dict on the device": ({"a": there, "b": there}, there),
            "a dict on both": ({"a": there, "b": here},),
            "a named tuple on both": (Sprite(there, here, "mushroom"),),
            "a nested batch with one tensor on the CPU": (deep,),
            "a nested batch on the device": (alike,),
            'a list on the CPU and {"b": a tensor on the device}': (
                [here, {"a": here}],
                {"b": there},
            ),
            BETWEEN: (there, "mushroom", here),
            "strings between tensors on the device": (
                *("mushroom", [there, "cpu", None, 3]),
                {"device": "cpu", "t": there},
            ),
        },
        "modules": {
            "a model and its batch": (on_device, [there, there]),
            "a model alone": (on_cpu,),
            "a model on the CPU, a batch on the device": (on_cpu, there),
            "two models on different devices": (on_device, on_cpu),
            "a model with one layer elsewhere": (_model(there, last=here),),
            "a model with a frozen layer elsewhere": (_model(there, last=here, frozen=True),),
            "a model with a buffer elsewhere": (_model(there, mean=here), there),
            "a model with an unsaved buffer elsewhere": (_model(there, palette=here),),
            "a model without parameters, a batch": (nn.ReLU(), there),
        },
        "no_tensors": {
            "no argument": (),
            "empty containers": ([], {}, (), [{}]),
            "other things": ("mushroom", 3, None, ["cuda", {"device": "cpu"}]),
            "a model without parameters": (nn.ReLU(),),
        },
    }
    return _answers(call, questions)


@same.probe(machine="two gpus")
def answered_with_two_gpus(call: Call) -> dict[str, Cases[Answer]]:
    first = torch.zeros(2, device="cuda:0")
    second = torch.zeros(2, device="cuda:1")
    questions: dict[str, tuple[Any, ...]] = {
        "cuda and cuda:0": (torch.zeros(2, device="cuda"), first),
        "two on the second GPU": (second, second + 1),
        "one on each GPU": (first, second),
        "one on each GPU, in a list": ([first, second],),
        "a model over two GPUs": (_model(first, last=second),),
    }
    return _answers(call, {"gpus": questions})


LAST = "three on the device, the last one on the CPU"
TENSORS = (
    "one tensor",
    "two on the CPU",
    "two on the device",
    "one on the CPU, one on the device",
    LAST,
)
runs(same, scenarios=TENSORS)


def _answers_right(
    group: str, points: float, name: str, claim: str, keys: Mapping[str, str] = {}
) -> None:
    """Declare that every answer of a group is the reference's; `keys` has the mistake that a wrong answer shows."""

    def judge(seen: Seen, wanted: Seen) -> None:
        probe = answered_with_two_gpus if group == "gpus" else answered
        found = seen[probe][group]
        for title, right in wanted[probe][group].items():
            if (raised := found.errors.get(title)) is not None:
                seen.about(None, title)
                raise Failed(f"{title} raised {raised.short}", str(right.value), raised.line)
            answer = found[title]
            if answer.kind != "bool":
                raise Failed(
                    f"{title}: it returned {with_article(answer.kind)}",
                    f"{right.value}, a bool",
                    at=("return",),
                )
            if answer.value != right.value:
                at = ("return",) if title == BETWEEN else ()
                key = keys.get(title) or ("loop-left-early" if answer.value else None)
                raise Failed(
                    f"{title}: it returned {answer.value}", str(right.value), None, key, at
                )
            expect_settings_kept(answer.settings, title)

    judge.__name__ = name
    judge.__doc__ = claim
    same.check(points, needs=("runs",) if group == "tensors" else ("runs", "compares_tensors"))(
        judge
    )


_answers_right(
    "tensors",
    1,
    "compares_tensors",
    "It answers True or False: are all these tensors on one device?",
    {LAST: "first-tensor-only"},
)
_answers_right(
    "structures",
    0.5,
    "searches_structures",
    "Tensors in lists, tuples, named tuples and dicts count, at any depth; strings and numbers do not.",
)
_answers_right(
    "modules",
    1,
    "searches_modules",
    "All parameters and all buffers of a module count.",
    {
        "a model with one layer elsewhere": "first-tensor-only",
        "a model with a buffer elsewhere": "buffers-forgotten",
        "a model with an unsaved buffer elsewhere": "state-dict-is-not-all",
    },
)
_answers_right(
    "gpus",
    0.5,
    "tells_gpus_apart",
    "cuda:0 and cuda:1 are different devices, cuda and cuda:0 are the same.",
    {
        "one on each GPU": "device-index-dropped"
    },  # in a list or a model alone, it is that these are not searched
)
_answers_right(
    "no_tensors", 0.5, "is_true_of_nothing", "If there is no tensor at all, the answer is True."
)
