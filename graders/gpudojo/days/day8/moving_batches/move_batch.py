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

    def paths(self) -> list[str]:
        """Where everything in the batch is, from the outside to the inside."""
        return [place.path for place in self.places]

    def place_at(self, path: str) -> BatchPlace | None:
        """What is at this path; None if nothing is."""
        for place in self.places:
            if place.path == path:
                return place
        return None

    def has_moved_tensor(self, depth: int = 0) -> bool:
        """True if a tensor that lies as deep as this, or deeper, is on the device."""
        for place in self.places:
            if place.device == self.device and _depth_of(place.path) >= depth:
                return True
        return False


class Move(NamedTuple):
    """The arguments of one call; None is to leave `non_blocking` out."""

    batch: Any
    device: Any
    non_blocking: bool | None = None


Moves = dict[str, Move]  # by scenario


def _call_move_batch(call: Call, move: Move) -> Moved:
    """Call the student's function and describe what became of the batch. Raises StudentRaised."""
    batch = move.batch
    options = {}
    if move.non_blocking is not None:
        options["non_blocking"] = move.non_blocking
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
    found = {}
    for name, moves in groups.items():
        found[name] = try_inputs(_call_move_batch, call, moves)
    return found


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
    both = list(make_pair(call.seed))
    if device.type == "cuda":
        both = [tensor.pin_memory() for tensor in both]
    sprites, classes = both
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
    if was == "a tuple":
        return ("if tuple", *sequences)
    if was == "a dict":
        return ("if dict", "if Mapping", "items(", *sequences)
    return sequences


def _patterns_of_holder(case: Moved, path: str) -> tuple[str, ...]:
    """Source patterns for the container that a part of the batch is in."""
    outside = re.sub(r"(\[[^\[\]]*\]|\.\w+)$", "", path)
    holder = case.place_at(outside)
    return _patterns_of_kind(holder.was if holder else "")


def _depth_of(path: str) -> int:
    return path.count("[") + path.count(".")


def _errors_in(seen: Seen, *groups: str) -> dict[str, Raised]:
    """The errors of the calls of some groups, by scenario."""
    return _cases_in(seen, *groups).errors


def _expect_no_errors(seen: Seen, group: str, expected: str) -> None:
    """Raises Failed for the first error in a group of calls."""
    for name, raised in _errors_in(seen, group).items():
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
    found = seen[moved]["a_pair"]
    right = wanted[moved]["a_pair"]
    for name in PAIRS:
        _expect_tensors_on_device(name, found[name], right[name])


MOVED = ("runs", "moves_a_pair")


def _built_from_one_sequence(seen: Seen) -> dict[str, Raised]:
    """The errors of named tuples that were built from one sequence, by scenario."""
    found = {}
    for name, raised in _errors_in(seen, "named_tuples").items():
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
        if case.paths() != right[name].paths():
            happened = f"{name}: not all of the batch came back"
            raise Failed(happened, "the same structure", None, "structure-changed")
    if not _errors_in(seen, "nested"):  # those are the next check's
        _expect_no_errors(seen, "named_tuples", "the same named tuple")


def _other_structure(name: str, place: BatchPlace) -> Failed:
    """The failure of a container that became another one."""
    happened = f"{name}: `{place.path}` was {place.was} and became {place.found}"
    if place.was == place.found:
        happened = f"{name}: the keys or the number of items of `{place.path}` changed"
    # The line may be where the other kind is made, or where this kind is handled.
    kind = place.found.split()[-1]
    at = [f"{kind}("]
    if kind == "dict":
        at.append("_asdict(")
    at += _patterns_of_kind(place.was)
    return Failed(happened, "the same structure", None, "structure-changed", tuple(at))


@move_batch.check(points=1, needs=MOVED)
def moves_every_tensor(seen: Seen, wanted: Seen) -> None:
    """Every tensor is on the device, at every depth, with its values and its dtype."""
    _expect_no_errors(seen, "nested", "every tensor moved, at any depth")
    groups = ["a_pair", "nested", "without_waiting"]
    if not _errors_in(seen, "named_tuples"):  # those are another check's
        groups.append("named_tuples")
    instead = "named-tuple-constructor" if _built_from_one_sequence(seen) else None
    right = _cases_in(wanted, *groups)
    for name, case in _cases_in(seen, *groups).items():
        _expect_tensors_on_device(name, case, right[name], instead)


def _expect_tensors_on_device(
    name: str, case: Moved, reference: Moved, instead: str | None = None
) -> None:
    """Raises Failed for a tensor that is missing, was not moved, or has changed.

    `instead` is the mistake to name if something other than a tensor is in its place.
    """
    for right in reference.places:
        if right.role != "tensor":
            continue
        place = case.place_at(right.path)
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
    happened = f"{name}: it returned {root.found}"
    expected = f"{root.was} with all of its tensors, moved"
    if root.found == "None":  # a forgotten return
        return Failed(happened, expected, at=("return",))
    at = _patterns_of_holder(case, right.path)
    if root.found == root.was:
        return Failed(f"{happened} without `{right.path}`", expected, at=at)
    return Failed(happened, expected, None, "structure-changed", at)


def _no_tensor(name: str, case: Moved, place: BatchPlace, instead: str | None) -> Failed:
    """The failure of something else where a tensor should be; `instead` is its mistake."""
    expected = "a tensor, moved"
    at: tuple[str, ...] = ("return",)
    if place.found != "None":
        at = _patterns_of_holder(case, place.path)
    if place is case.places[0]:
        return Failed(f"{name}: it returned {place.found}", expected, at=at)
    return Failed(f"{name}: `{place.path}` is {place.found}", expected, None, instead, at)


def _tensor_elsewhere(name: str, case: Moved, place: BatchPlace, right: BatchPlace) -> Failed:
    """The failure of a tensor on another device."""
    happened = f"{name}: `{place.path}` is on {place.device}"
    expected = str(right.device)
    if case.copies and not case.has_moved_tensor():
        return Failed(happened, expected, case.line, "result-thrown-away")
    holder = ("for", *_patterns_of_holder(case, right.path))
    if name in PAIRS and right.path == "batch[1]":
        return Failed(happened, expected, None, "targets-on-cpu", holder)
    # Where others inside a container were moved, it is how this tensor is treated.
    if case.has_moved_tensor(_depth_of(right.path)):
        return Failed(happened, expected, at=TENSOR)
    return Failed(happened, expected, at=holder)


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
    if not _errors_in(seen, "named_tuples"):
        _expect_no_errors(seen, "a_sprite_with_title", expected)


def _change_of_other_thing(name: str, place: BatchPlace) -> Failed:
    """The failure of something that is no tensor and came back otherwise."""
    became = f"{name}: `{place.path}` became"
    key = "everything-a-tensor" if place.found == "a tensor" else None
    if place.text == place.wanted:
        return Failed(f"{became} a copy of it", "the same object", None, key)
    at = ("end",) if place.text == "None" else ()
    return Failed(f"{became} {place.text}", place.wanted, None, key, at)


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
    right = wanted[moved]["already_there"]
    for name, case in seen[moved]["already_there"].items():
        # The other tensors have to be copied.
        staying = [place for place in right[name].places if not place.copied]
        for stayed in staying:
            place = case.place_at(stayed.path)
            if place and place.copied and place.device == stayed.device:
                happened = f"{name}: `{place.path}` was on {place.device} already and was copied"
                raise Failed(happened, "the tensor itself", case.line, "already-there-copied")


@move_batch.check(points=0.5, needs=MOVED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Tensors end up on exactly the device passed in, whatever this machine has."""
    second = seen[moved_to_the_second_gpu]["to_the_second_gpu"]
    elsewhere = _cases_in(seen, "already_there", "back_to_the_cpu", "to_the_second_gpu")
    if not _errors_in(seen, "nested", "named_tuples"):  # those are another check's
        for name, raised in elsewhere.errors.items():
            raise raised_instead(raised, name)
    for name, case in elsewhere.items():
        for place in case.places:
            if place.device in (None, case.device):
                continue
            where = f"`{place.path}` ended up on {place.device}"
            key = None
            if name in second and place.device == "cuda:0":
                key = "device-index-dropped"
            elif name in TO_THE_CPU and place.device.startswith("cuda"):
                key = "hard-coded-cuda"
            line = case.line if key else None
            raise other_device_used(case.device, where, line, key)


@move_batch.check(points=0.5, needs=MOVED)
def passes_non_blocking_on(seen: Seen, wanted: Seen) -> None:
    """Every copy uses the `non_blocking` value you were given."""
    for name, case in seen[moved]["without_waiting"].items():
        asked = "non_blocking=True" in name
        wrong = case.waits.count(asked)
        if wrong:
            count = f"{wrong} of {len(case.waits)} copies"
            happened = f"{name}: {count} had non_blocking={not asked}"
            expected = f"non_blocking={asked} for all of them"
            key = "non-blocking-dropped" if asked else "always-non-blocking"
            raise Failed(happened, expected, case.line, key)
    _expect_no_errors(seen, "without_waiting", "no error")
