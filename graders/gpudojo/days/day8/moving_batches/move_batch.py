"""`move_batch`: a batch on the device, whatever it is made of."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpudojo.days.day8.moving_batches.batches import Alone, Masked, Sprite, make_pair
from gpudojo.days.day8.moving_batches.declaration import move_batch
from gpudojo.days.day8.moving_batches.structures import (
    BatchPlace,
    compare_batches,
    first_changed_path,
    state_of_parts,
)
from gpudojo.grading.call import (
    Call,
    call_and_restore_settings,
    device_name,
    torch,
    try_inputs,
)
from gpudojo.grading.checks import (
    expect_settings_kept,
    other_device_used,
    raised_instead,
    runs,
)
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed, Seen

TENSOR = ("if Tensor", "if is_tensor", "to(")  # patterns for the code that moves a tensor

# ---- scenarios ---------------------------------------------------------------------------------


class Moved(Case, frozen=True):
    """A batch after the move."""

    places: list[BatchPlace]
    device: str  # the one that was asked for
    changed: str | None  # the first part of the batch passed in that is not as before
    copies: int
    waits: list[bool]  # of each copy to the device
    line: int | None  # of the first copy
    settings: list[str]


class Move(NamedTuple):
    """The arguments of one call; None is to leave `non_blocking` out."""

    batch: Any
    device: Any
    non_blocking: bool | None = None


Moves = dict[str, Move]  # by scenario


def _call_move_batch(call: Call, move: Move) -> Moved:
    """Call the student's function and describe what became of the batch. Raises StudentRaised."""
    batch = move.batch
    options = {} if move.non_blocking is None else {"non_blocking": move.non_blocking}
    before = state_of_parts(batch)
    value, settings = call_and_restore_settings(call, batch, move.device, **options)
    copies = call.ledger.transfers()
    return Moved(
        places=list(compare_batches(batch, value)),
        device=device_name(move.device),
        changed=first_changed_path(before, state_of_parts(batch)),
        copies=len(copies),
        # Only copies to the device: `asyncio.run` reads the result of a task on its way out.
        waits=[not copy.non_blocking for copy in call.ledger.transfers_to_device()],
        line=call.first_line(copies),
        settings=settings,
    )


def _nested_batch(seed: int) -> Any:
    """Tensors of several dtypes in dicts, lists and tuples, at several depths."""
    sprites, classes = make_pair(seed)
    return {
        "images": [sprites, (sprites > 0.5, classes.to(torch.uint8))],
        "deeper": {"labels": classes, 7: {"one": (classes.sum(),)}},
        ("a", 1): (sprites.half(), [torch.zeros(0, 3), [classes + 1]]),
    }


@move_batch.probe
def moved(call: Call) -> dict[str, Cases[Moved]]:
    """Moves of all kinds of batches to the device, and back, by group."""
    groups = {
        "a_pair": _moves_of_pairs(call),
        **_moves_from_the_cpu(call),
        "already_there": _moves_of_what_is_there(call),
        "back_to_the_cpu": _moves_back(call),
        "without_waiting": _moves_without_waiting(call),
    }
    # The group that an error is in decides which check it belongs to.
    return {name: try_inputs(_call_move_batch, call, moves) for name, moves in groups.items()}


def _moves_of_pairs(call: Call) -> Moves:
    """A list, a tensor and a tuple; for the last one the device is a string."""
    _, classes = make_pair(call.seed)
    return {
        "a list": Move(list(make_pair(call.seed)), call.device),
        "a tensor": Move(classes, call.device),
        "a tuple": Move(make_pair(call.seed), str(call.device)),
    }


def _moves_from_the_cpu(call: Call) -> dict[str, Moves]:
    """Batches of all kinds, by group."""
    seed = call.seed
    device = call.device
    sprites, classes = make_pair(seed)
    one, _ = make_pair(seed)
    empty: dict[str, Any] = {"list": [], "tuple": (), "dict": {}, "in": [[], ({},)]}
    inside = [Masked({"a": Alone(sprites)}, (classes,)), {"s": Masked(classes, [])}]
    in_dict = {
        "images": sprites,
        "title": "mushroom",
        "count": 2,
        "score": 0.5,
        "mask": None,
        "new": True,
    }
    in_list = [classes, "mushroom", 7, None, b"png", object(), ("", "m", -1.5, 1j)]
    return {
        "nested": {
            "a nested batch": Move(_nested_batch(seed), device),
            "empty containers": Move(empty, device),
            "an empty list": Move([], device),
            "an empty tuple": Move((), device),
            "an empty dict": Move({}, device),
        },
        "named_tuples": {
            "a named tuple": Move(Masked(sprites, sprites > 0.5), device),
            "a named tuple of one field": Move(Alone(one), device),
            "named tuples inside": Move(inside, device),
        },
        "other_things": {
            "a dict with other things": Move(in_dict, device),
            "a list with other things": Move(in_list, device),
            "a string": Move("mushroom", device),
            "a number": Move(3, device),
            "None": Move(None, device),
        },
        "a_sprite_with_title": {
            "a named tuple with a string": Move(Sprite(*make_pair(seed), "mushroom"), device),
        },
    }


def _moves_of_what_is_there(call: Call) -> Moves:
    """Tensors that are already there, by either name of the device (`cuda:0`, `cuda`)."""
    device = call.device
    sprites, classes = make_pair(call.seed)
    there = sprites.to(device)
    return {
        "a tensor that is there": Move(there, device),
        "by its type": Move([there, there[:1], there.mT], device.type),
        "half of the pair": Move([there, classes], str(device)),
        "on the CPU": Move(list(make_pair(call.seed)), "cpu"),
    }


def _moves_back(call: Call) -> Moves:
    """From the device to the CPU, in containers of all kinds.

    The code for one kind may have another device than that for the others.
    """
    sprites, classes = (tensor.to(call.device) for tensor in make_pair(call.seed))
    named = {"a": sprites, "b": classes}
    return {
        "from the device": Move((sprites, classes), torch.device("cpu")),
        "to the CPU, non_blocking=True": Move(named, "cpu", non_blocking=True),
        "a named tuple to the CPU": Move(Masked(sprites, classes), "cpu"),
    }


def _moves_without_waiting(call: Call) -> Moves:
    """With and without `non_blocking`.

    The tensors are pinned where that exists, since only then a copy can run without the host
    waiting.
    """
    device = call.device
    sprites, classes = make_pair(call.seed)
    if device.type == "cuda":
        sprites = sprites.pin_memory()
        classes = classes.pin_memory()
    both = [sprites, classes]
    nested = {"images": [sprites], "labels": (classes, Alone(sprites))}
    return {
        "a pair, non_blocking=True": Move(both, device, non_blocking=True),
        "nested, non_blocking=True": Move(nested, device, non_blocking=True),
        "a pair, by default": Move(both, device),
        "nested, non_blocking=False": Move(nested, device, non_blocking=False),
    }


@move_batch.probe(machine="two gpus")
def moved_to_the_second_gpu(call: Call) -> dict[str, Cases[Moved]]:
    """To the second GPU, from the CPU and from the first one."""
    sprites, classes = make_pair(call.seed)
    first = [tensor.to("cuda:0") for tensor in make_pair(call.seed)]
    moves = {
        "from the CPU": Move({"a": sprites, "b": classes}, "cuda:1", non_blocking=True),
        "from the first": Move(Masked(*first), torch.device("cuda", 1)),
    }
    return {"to_the_second_gpu": try_inputs(_call_move_batch, call, moves)}


# ---- claims ------------------------------------------------------------------------------------

PAIRS = ("a list", "a tuple")
# Scenarios in which something on a GPU shows that it is named in the code
TO_THE_CPU = ("on the CPU", "a named tuple to the CPU", "to the CPU, non_blocking=True")
BASIC = (
    "a list",
    "a tuple",
    "a tensor",
    "a tensor that is there",
    "by its type",
    "half of the pair",
    "on the CPU",
)
runs(move_batch, scenarios=(*BASIC, "from the device"))


def _cases_in(seen: Seen, *groups: str) -> Cases[Moved]:
    """The calls of some groups, or of all."""
    every = seen[moved] | seen[moved_to_the_second_gpu]
    found: Cases[Moved] = Cases()
    for group in groups or every:
        found.add(every[group])
    return found


def _patterns_of_kind(was: str) -> tuple[str, ...]:
    """Source patterns for the code that handles a kind of thing.

    Kinds are "a tuple", "a named tuple Masked", ….
    """
    sequences = ("if list", "if tuple", "for", "return")
    if "named tuple" in was:
        return ("if _fields", "_make(", "if tuple", *sequences)
    kind = was.rpartition(" ")[2]
    if kind == "tuple":
        return ("if tuple", *sequences)
    if kind == "dict":
        return ("if dict", "if Mapping", "items(", *sequences)
    return sequences


def _patterns_of_holder(case: Moved, path: str) -> tuple[str, ...]:
    """Source patterns for the container that a part of the batch is in."""
    outside = re.sub(r"(\[[^\[\]]*\]|\.\w+)$", "", path)
    for place in case.places:
        if place.path == outside:
            return _patterns_of_kind(place.was)
    return _patterns_of_kind("")


def _depth_of(path: str) -> int:
    return path.count("[") + path.count(".")


def _expect_no_errors(seen: Seen, group: str, expected: str) -> None:
    """Raises Failed for the first error in a group of calls."""
    for name, raised in _cases_in(seen, group).errors.items():
        seen.about(None, name)
        key = None
        if group in ("other_things", "a_sprite_with_title") and _took_for_tensor(raised):
            key = "everything-a-tensor"
        raise raised_instead(raised, name, expected, key)


def _took_for_tensor(raised: Raised) -> bool:
    """True for an error about something that is no tensor.

    It was moved, turned into one, or searched for tensors without end.
    """
    if raised.type in ("AttributeError", "RecursionError"):
        return True
    return "invalid data type" in raised.message or "infer dtype" in raised.message


@move_batch.check(points=1.5)
def moves_a_pair(seen: Seen, wanted: Seen) -> None:
    """Inputs and targets of a plain pair are on the device, with their values and dtypes."""
    for name in PAIRS:
        _expect_tensors_on_device(name, seen[moved]["a_pair"][name], wanted[moved]["a_pair"][name])


MOVED = ("runs", "moves_a_pair")


def _built_from_one_sequence(seen: Seen) -> dict[str, Raised]:
    """The errors of named tuples that were built from one sequence, by scenario."""
    found = {}
    for name, raised in _cases_in(seen, "named_tuples").errors.items():
        if raised.type == "TypeError" and "positional argument" in raised.message:
            found[name] = raised
    return found


@move_batch.check(points=1, needs=MOVED)
def keeps_the_structure(seen: Seen, wanted: Seen) -> None:
    """Lists stay lists, tuples tuples, named tuples named tuples, dicts dicts with the same
    keys."""
    for name, raised in _built_from_one_sequence(seen).items():
        expected = "the same named tuple, built from its fields"
        raise raised_instead(raised, name, expected, "named-tuple-constructor")
    right = _cases_in(wanted)
    for name, case in _cases_in(seen).items():
        for place in case.places:
            if place.role != "other" and not (place.fits and place.alike):
                raise _other_structure(name, place)
        if [place.path for place in case.places] != [place.path for place in right[name].places]:
            happened = f"{name}: not all of the batch came back"
            raise Failed(happened, "the same structure", None, "structure-changed")
    if not _cases_in(seen, "nested").errors:  # those are the next check's
        _expect_no_errors(seen, "named_tuples", "the same named tuple")


def _other_structure(name: str, place: BatchPlace) -> Failed:
    """The failure of a container that became another one."""
    happened = f"{name}: `{place.path}` was {place.was} and became {place.found}"
    if place.was == place.found:
        happened = f"{name}: the keys or the number of items of `{place.path}` changed"
    kind = place.found.rpartition(" ")[2]
    making = ("dict(", "_asdict(") if kind == "dict" else (f"{kind}(",)
    at = (*making, *_patterns_of_kind(place.was))
    return Failed(happened, "the same structure", None, "structure-changed", at)


@move_batch.check(points=1, needs=MOVED)
def moves_every_tensor(seen: Seen, wanted: Seen) -> None:
    """Every tensor is on the device, at every depth, with its values and its dtype."""
    _expect_no_errors(seen, "nested", "every tensor moved, at any depth")
    groups = ["a_pair", "nested", "without_waiting"]
    if not _cases_in(seen, "named_tuples").errors:  # those are another check's
        groups.append("named_tuples")
    instead = "named-tuple-constructor" if _built_from_one_sequence(seen) else None
    for group in groups:
        for name, case in seen[moved][group].items():
            _expect_tensors_on_device(name, case, wanted[moved][group][name], instead)


def _expect_tensors_on_device(
    name: str, case: Moved, reference: Moved, instead: str | None = None
) -> None:
    """Raises Failed for a tensor that is missing, was not moved, or has changed.

    `instead` is the mistake to name if something other than a tensor is in its place.
    """
    found = {place.path: place for place in case.places}
    for right in reference.places:
        if right.role != "tensor":
            continue
        place = found.get(right.path)
        if place is None:
            raise _tensor_missing(name, case, right)
        if not place.fits:
            raise _no_tensor(name, case, place, instead)
        if place.device != right.device:
            raise _tensor_elsewhere(name, case, place, right)
        if place.value != right.value:
            happened = f"{name}: the values or the dtype of `{place.path}` changed"
            raise Failed(happened, "only the device changed", at=TENSOR)


def _tensor_missing(name: str, case: Moved, right: BatchPlace) -> Failed:
    """The failure of a result that has nothing where a tensor should be."""
    root = case.places[0]
    happened = f"it returned {root.found}"
    if root.found == root.was:
        happened = f"{happened} without `{right.path}`"
    # None is a forgotten return; anything else instead of a list is another structure.
    key = None if root.found in ("None", root.was) else "structure-changed"
    at = ("return",) if root.found == "None" else _patterns_of_holder(case, right.path)
    expected = f"{root.was} with all of its tensors, moved"
    return Failed(f"{name}: {happened}", expected, None, key, at)


def _no_tensor(name: str, case: Moved, place: BatchPlace, instead: str | None) -> Failed:
    """The failure of something else where a tensor should be; `instead` is its mistake."""
    at = ("return",) if place.found == "None" else _patterns_of_holder(case, place.path)
    if place is case.places[0]:
        happened = f"{name}: it returned {place.found}"
        return Failed(happened, "a tensor, moved", at=at)
    happened = f"{name}: `{place.path}` is {place.found}"
    return Failed(happened, "a tensor, moved", None, instead, at)


def _tensor_elsewhere(name: str, case: Moved, place: BatchPlace, right: BatchPlace) -> Failed:
    """The failure of a tensor on another device."""
    happened = f"{name}: `{place.path}` is on {place.device}"
    expected = str(right.device)
    moved_any = any(each.device == case.device for each in case.places)
    if case.copies and not moved_any:
        return Failed(happened, expected, case.line, "result-thrown-away")
    holder = ("for", *_patterns_of_holder(case, right.path))
    if name in PAIRS and right.path == "batch[1]":
        return Failed(happened, expected, None, "targets-on-cpu", holder)
    # Where others inside a container were moved, it is how this tensor is treated.
    depth = _depth_of(right.path)
    as_deep = [each for each in case.places if _depth_of(each.path) >= depth]
    moved_as_deep = any(each.device == case.device for each in as_deep)
    return Failed(happened, expected, at=TENSOR if moved_as_deep else holder)


@move_batch.check(points=1, needs=MOVED)
def leaves_other_things_alone(seen: Seen, wanted: Seen) -> None:
    """Strings, numbers, None and everything else that is no tensor come back unchanged."""
    expected = "what is no tensor, list, tuple or dict comes back unchanged"
    _expect_no_errors(seen, "other_things", expected)
    for name, case in _cases_in(seen).items():
        for place in case.places:
            if place.role == "other" and not place.fits:
                raise _change_of_other_thing(name, place)
    # A named tuple with a string needs both; errors with named tuples have been reported already.
    if not _cases_in(seen, "named_tuples").errors:
        _expect_no_errors(seen, "a_sprite_with_title", expected)


def _change_of_other_thing(name: str, place: BatchPlace) -> Failed:
    """The failure of something that is no tensor and came back otherwise."""
    became = place.text
    expected = place.wanted
    if place.text == place.wanted:
        became = "a copy of it"
        expected = "the same object"
    key = "everything-a-tensor" if place.found == "a tensor" else None
    at = ("end",) if became == "None" else ()
    return Failed(f"{name}: `{place.path}` became {became}", expected, None, key, at)


@move_batch.check(points=0.5, needs=MOVED)
def leaves_the_input_alone(seen: Seen, wanted: Seen) -> None:
    """The batch that was passed in is not modified, nor are the settings of torch."""
    for name, case in _cases_in(seen).items():
        if case.changed is not None:
            happened = f"{name}: the call changed `{case.changed}` of the batch passed in"
            expected = "a new structure, the old one unchanged"
            raise Failed(happened, expected, misconception="input-modified")
        expect_settings_kept(case.settings, name)


@move_batch.check(points=0.5, needs=MOVED)
def does_not_copy_what_is_there(seen: Seen, wanted: Seen) -> None:
    """A tensor that is already on the device is not copied."""
    for name, case in seen[moved]["already_there"].items():
        references = {place.path: place for place in wanted[moved]["already_there"][name].places}
        for place in case.places:
            right = references[place.path]
            if place.copied and not right.copied and place.device == right.device:
                happened = f"{name}: `{place.path}` was on {right.device} already and was copied"
                raise Failed(happened, "the tensor itself", case.line, "already-there-copied")


@move_batch.check(points=0.5, needs=MOVED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Tensors end up on exactly the device passed in, whatever this machine has."""
    second = seen[moved_to_the_second_gpu]["to_the_second_gpu"]
    elsewhere = _cases_in(seen, "already_there", "back_to_the_cpu", "to_the_second_gpu")
    for name, raised in elsewhere.errors.items():
        if not _cases_in(seen, "nested", "named_tuples").errors:  # those are another check's
            raise raised_instead(raised, name)
    for name, case in elsewhere.items():
        for place in case.places:
            if place.device in (None, case.device):
                continue
            key = None
            if name in second and place.device == "cuda:0":
                key = "device-index-dropped"
            elif name in TO_THE_CPU and place.device.startswith("cuda"):
                key = "hard-coded-cuda"
            where = f"`{place.path}` ended up on {place.device}"
            raise other_device_used(case.device, where, case.line if key else None, key)


@move_batch.check(points=0.5, needs=MOVED)
def passes_non_blocking_on(seen: Seen, wanted: Seen) -> None:
    """Every copy uses the `non_blocking` value you were given."""
    for name, case in seen[moved]["without_waiting"].items():
        asked = "non_blocking=True" in name
        wrong = case.waits.count(asked)
        if wrong:
            happened = f"{name}: {wrong} of {len(case.waits)} copies had non_blocking={not asked}"
            key = "non-blocking-dropped" if asked else "always-non-blocking"
            raise Failed(happened, f"non_blocking={asked} for all of them", case.line, key)
    _expect_no_errors(seen, "without_waiting", "no error")
