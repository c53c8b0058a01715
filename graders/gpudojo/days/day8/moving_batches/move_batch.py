"""`move_batch`: a batch on the device, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gpudojo.days.day8.moving_batches.batches import Alone, Masked, Sprite, make_pair
from gpudojo.days.day8.moving_batches.declaration import move_batch
from gpudojo.days.day8.moving_batches.structures import (
    BatchPart,
    copy_containers,
    describe_parts,
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
    failure_on_other_device,
    raised_instead,
    runs,
    wrong_device_mistake,
)
from gpudojo.grading.differences import tell_apart
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed, Seen

# ---- scenarios ---------------------------------------------------------------------------------


class Moved(Case, frozen=True):
    """A batch after the move."""

    parts: list[BatchPart]
    device: str  # the one that was asked for
    changed: str | None  # the first part of the batch passed in that is not as before
    copies: int
    waits: list[bool]  # of each copy to the device
    line: int | None  # of the first copy between devices
    line_on_device: int | None  # of the first operation on a device that made something new
    settings: list[str]

    def part_at(self, path: str) -> BatchPart | None:
        """What is at this path; None if nothing is."""
        for part in self.parts:
            if part.path == path:
                return part
        return None

    def beside(self, reference: Moved) -> Iterator[tuple[BatchPart, BatchPart]]:
        """Yield each part that came back, with what the reference gave there."""
        for right in reference.parts:
            part = self.part_at(right.path)
            if part is not None:
                yield part, right

    def has_moved_tensor(self, depth: int = 0) -> bool:
        """True if a tensor that lies as deep as this, or deeper, is on the device."""
        for part in self.parts:
            is_moved = part.device == self.device
            if is_moved and _depth_of(part.path) >= depth:
                return True
        return False


class Move(NamedTuple):
    """The arguments of one call; None is to leave `non_blocking` out."""

    batch: Any
    device: Any
    non_blocking: bool | None = None


def _call_move_batch(call: Call, move: Move) -> Moved:
    """Call the student's function and describe what became of the batch.

    Settings of torch that were changed are restored. Raises StudentRaised, and what a student's own
    class raises when it is compared.
    """
    options = {}
    if move.non_blocking is not None:
        options["non_blocking"] = move.non_blocking
    before = state_of_parts(move.batch)
    form = copy_containers(move.batch)
    value, settings = call_and_restore_settings(call, move.batch, move.device, **options)
    copies = call.ledger.transfers()
    return Moved(
        parts=list(describe_parts(form, value)),
        device=device_name(move.device),
        changed=first_changed_path(before, state_of_parts(move.batch)),
        copies=len(copies),
        # Only copies to the device: `asyncio.run` reads the result of a task on its way out.
        waits=[not copy.non_blocking for copy in call.ledger.transfers_to_device()],
        line=call.first_line(copies),
        line_on_device=call.first_line(_operations_making_something(call)),
        settings=settings,
    )


def _operations_making_something(call: Call) -> list[Any]:
    """The operations of the last call with a result that took memory on a device: no views."""
    return [operation for operation in call.ledger.operations() if operation.bytes]


@move_batch.probe
def moved(call: Call) -> dict[str, Cases[Moved]]:
    """Moves of all kinds of batches, by group: which check an error belongs to depends on it.

    Raises StudentRaised for an error about a closed device or memory.
    """
    groups: dict[str, dict[str, Move]] = {}
    for group, batches in _batches_to_move(call).items():
        groups[group] = {}
        for name, batch in batches.items():
            groups[group][name] = Move(batch, call.device)
    groups |= _moves_with_options(call)
    found = {}
    for group, moves in groups.items():
        found[group] = try_inputs(_call_move_batch, call, moves)
    return found


def _batches_to_move(call: Call) -> dict[str, dict[str, Any]]:
    """New batches of all kinds on the CPU, by group and, within it, by scenario."""
    sprites, classes = make_pair(call.seed)  # of their own, if a solution writes into them
    nested = {
        "images": [sprites, (sprites > 0.5, classes.to(torch.uint8))],
        "deeper": {"labels": classes, 7: {"one": (classes.sum(),)}},
        ("a", 1): (sprites.half(), [torch.zeros(0, 3), [classes + 1]]),
    }
    sprites, classes = make_pair(call.seed)
    one, _ = make_pair(call.seed)
    numbers = {"count": 2, "score": 0.5, "mask": None, "new": True}
    return {
        "a_pair": {
            "a list": list(make_pair(call.seed)),
            "a tensor": make_pair(call.seed)[1],
            "a tuple": make_pair(call.seed),
        },
        "nested": {
            "a nested batch": nested,
            "empty containers": {"list": [], "tuple": (), "dict": {}, "in": [[], ({},)]},
            "an empty list": [],
            "an empty tuple": (),
            "an empty dict": {},
        },
        "named_tuples": {
            "a named tuple": Masked(sprites, sprites > 0.5),
            "a named tuple of one field": Alone(one),
            "named tuples inside": [
                Masked({"a": Alone(sprites)}, (classes,)),
                {"s": Masked(classes, [])},
            ],
        },
        "other_things": {
            "a dict with other things": {"images": sprites, "title": "mushroom", **numbers},
            "a list with other things": [
                *(classes, "mushroom", 7, None, b"png", object()),
                ("", "m", -1.5, 1j),
            ],
            "a string": "mushroom",
            "a number": 3,
            "None": None,
        },
        "a_sprite_with_title": {
            "a named tuple with a string": Sprite(*make_pair(call.seed), "mushroom"),
        },
    }


def _moves_with_options(call: Call) -> dict[str, dict[str, Move]]:
    """Moves for which the device or the flag matter, by group and scenario.

    The device has two names (`cuda:0`, `cuda`). Back to the CPU tensors go in containers of all
    kinds: the code for one may have a device of its own.
    """
    device = call.device
    sprites, classes = make_pair(call.seed)
    there = sprites.to(device)
    back = [tensor.to(device) for tensor in make_pair(call.seed)]
    named = dict(zip("ab", back, strict=True))
    # Only from pinned memory, where that exists, a copy can run without the host waiting.
    pair = list(make_pair(call.seed))
    if device.type == "cuda":
        pair = [tensor.pin_memory() for tensor in pair]
    images, labels = pair

    def nested_batch() -> Any:
        """A new one each time, if a solution writes into it."""
        return {"images": [images], "labels": (labels, Alone(images))}

    return {
        "already_there": {
            "a tensor that is there": Move(there, device),
            "by its type": Move([there, there[:1], there.mT], device.type),
            "half of the pair": Move([there, classes], str(device)),
            "on the CPU": Move(list(make_pair(call.seed)), "cpu"),
        },
        "back_to_the_cpu": {
            "from the device": Move(tuple(back), torch.device("cpu")),
            "to the CPU, non_blocking=True": Move(named, "cpu", True),
            "a named tuple to the CPU": Move(Masked(*back), "cpu"),
        },
        "without_waiting": {
            "a pair, non_blocking=True": Move(list(pair), device, True),
            "nested, non_blocking=True": Move(nested_batch(), device, True),
            "a pair, by default": Move(list(pair), device),
            "nested, non_blocking=False": Move(nested_batch(), device, False),
        },
    }


@move_batch.probe(machine="two gpus")
def moved_to_the_second_gpu(call: Call) -> dict[str, Cases[Moved]]:
    """To the second GPU, from the CPU and from the first one.

    Raises StudentRaised for an error about a closed device or memory.
    """
    sprites, classes = make_pair(call.seed)
    first = [tensor.to("cuda:0") for tensor in make_pair(call.seed)]
    moves = {
        "from the CPU": Move({"a": sprites, "b": classes}, "cuda:1", non_blocking=True),
        "from the first": Move(Masked(*first), torch.device("cuda", 1)),
    }
    return {"to_the_second_gpu": try_inputs(_call_move_batch, call, moves)}


# ---- claims ------------------------------------------------------------------------------------

PAIRS = ("a list", "a tuple")
THERE = ("a tensor that is there", "by its type", "half of the pair", "on the CPU")
runs(move_batch, scenarios=(*PAIRS, "a tensor", *THERE, "from the device"))

# Patterns for the code that moves a tensor, and that handles a kind of container.
TENSOR = ("if Tensor", "if is_tensor", "to(")
SEQUENCES = ("if list", "if tuple", "for", "return")
TUPLES = ("if tuple", *SEQUENCES)
CONTAINERS = {
    "a tuple": TUPLES,
    "a named tuple": ("if _fields", "_make(", *TUPLES),
    "a dict": ("if dict", "if Mapping", "items(", *SEQUENCES),
}


def _patterns_of_container(kind: str) -> tuple[str, ...]:
    """Source patterns for the code that handles "a tuple", "a named tuple Masked", …"""
    if kind.startswith("a named tuple"):
        kind = "a named tuple"
    return CONTAINERS.get(kind, SEQUENCES)


def _depth_of(path: str) -> int:
    return path.count("[") + path.count(".")


def _cases_in(seen: Seen, *groups: str) -> Cases[Moved]:
    """The calls of some groups, or of all, in one; what is asked for is noted in `seen`.

    Raises ScenarioRaised if a whole probe ended with an error.
    """
    every = seen[moved] | seen[moved_to_the_second_gpu]
    found: Cases[Moved] = Cases()
    for group in groups or every:
        found.add(every[group])
    return found


def _expect_no_errors(seen: Seen, group: str, expected: str) -> None:
    """Raises Failed for the first error in a group of calls.

    `expected` is what the failure says should have happened. Then `seen` notes which scenario it is
    about. Raises ScenarioRaised if a whole probe ended with an error.
    """
    for name, raised in _cases_in(seen, group).errors.items():
        seen.about(None, name)
        key = None
        if group in ("other_things", "a_sprite_with_title"):
            if raised.type == "RecursionError":
                key = "string-taken-for-container"
            elif _took_for_tensor(raised):
                key = "everything-a-tensor"
        raise raised_instead(raised, name, expected, key)


def _took_for_tensor(raised: Raised) -> bool:
    """True for an error about something that is no tensor, and was moved or turned into one."""
    if raised.type == "AttributeError":
        return True
    return "invalid data type" in raised.message or "infer dtype" in raised.message


@move_batch.check(points=1.5)
def moves_a_pair(seen: Seen, wanted: Seen) -> None:
    """Inputs and targets of a plain pair are on the device, with their values and dtypes."""
    found = seen[moved]["a_pair"]
    right = wanted[moved]["a_pair"]
    for name in PAIRS:
        _expect_tensors_moved(name, found[name], right[name])


MOVED = ("runs", "moves_a_pair")


def _built_from_one_sequence(seen: Seen) -> dict[str, Raised]:
    """The errors of named tuples that were built from one sequence, by scenario.

    Raises ScenarioRaised if a whole probe ended with an error.
    """
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
        for part, before in case.beside(right[name]):
            if part.role != "other" and not part.is_kept:
                raise _other_structure(name, part, before)
        if len(case.parts) != len(right[name].parts):
            happened = f"{name}: not all of the batch came back"
            raise Failed(happened, "the same structure", None, "structure-changed")
    if not _cases_in(seen, "nested").errors:  # those are the next check's
        _expect_no_errors(seen, "named_tuples", "the same named tuple")


def _other_structure(name: str, part: BatchPart, before: BatchPart) -> Failed:
    """The failure of a container that became another one. It is returned, not raised.

    `name` is the scenario, `part` what came back, and `before` what the reference gave there.
    """
    happened = f"{name}: `{part.path}` was {before.words} and became {part.words}"
    if part.words == before.words:
        happened = f"{name}: the keys or the number of items of `{part.path}` changed"
    # The line may be where the other kind is made, or where this kind is handled.
    kind = part.words.split()[-1]
    kind_patterns = _patterns_of_container(before.words)
    at = (f"{kind}(", f"_as{kind}(", *kind_patterns)
    return Failed(happened, "the same structure", None, "structure-changed", at)


@move_batch.check(points=1, needs=MOVED)
def moves_every_tensor(seen: Seen, wanted: Seen) -> None:
    """Every tensor is on the device, at every depth, with its values and its dtype."""
    _expect_no_errors(seen, "nested", "every tensor moved, at any depth")
    groups = ["a_pair", "nested", "without_waiting"]
    if not _cases_in(seen, "named_tuples").errors:  # those are another check's
        groups.append("named_tuples")
    instead = None
    if _built_from_one_sequence(seen):
        instead = "named-tuple-constructor"
    right = _cases_in(wanted, *groups)
    for name, case in _cases_in(seen, *groups).items():
        _expect_tensors_moved(name, case, right[name], instead)


def _expect_tensors_moved(
    name: str, case: Moved, reference: Moved, instead: str | None = None
) -> None:
    """Raises Failed for a tensor that is missing, was not moved, or has changed.

    `name` is the scenario. `instead` is the mistake to name if something other than a tensor is in
    its place.
    """
    for right in reference.parts:
        if right.role != "tensor":
            continue
        part = case.part_at(right.path)
        if part is None:
            raise _tensor_missing(name, case, reference, right)
        if not part.is_kept:
            at = _patterns_of_container(right.holder)
            if part.words == "None":
                at = ("return",)
            happened = f"{name}: `{part.path}` is {part.words}"
            raise Failed(happened, "a tensor, moved", None, instead, at)
        if part.device != right.device:
            raise _tensor_elsewhere(name, case, part, right)
        if part.values != right.values:
            happened = f"{name}: the values or the dtype of `{part.path}` changed"
            raise Failed(happened, "only the device changed", at=TENSOR)


def _tensor_missing(name: str, case: Moved, reference: Moved, right: BatchPart) -> Failed:
    """The failure of a result that has nothing where a tensor should be; returned, not raised.

    `right` is the tensor of the reference.
    """
    found = case.parts[0].words
    before = reference.parts[0].words
    happened = f"{name}: it returned {found}"
    expected = f"{before} with all of its tensors, moved"
    if found == "None":  # a forgotten return
        return Failed(happened, expected, at=("return",))
    at = _patterns_of_container(right.holder)
    if found == before:
        happened = f"{happened} without `{right.path}`"
        return Failed(happened, expected, at=at)
    return Failed(happened, expected, None, "structure-changed", at)


def _tensor_elsewhere(name: str, case: Moved, part: BatchPart, right: BatchPart) -> Failed:
    """The failure of a tensor on another device, `part`. It is returned, not raised.

    `right` is the same tensor of the reference.
    """
    happened = f"{name}: `{part.path}` is on {part.device}"
    expected = str(right.device)
    if case.copies and not case.has_moved_tensor():
        return Failed(happened, expected, case.line, "result-thrown-away")
    key = None
    if name in PAIRS and right.path == "batch[1]":
        key = "targets-on-cpu"
    at = ('== "cuda"', "for", *_patterns_of_container(right.holder))
    # Where others inside a container were moved, it is how this tensor is treated.
    if case.has_moved_tensor(_depth_of(right.path)):
        if key is None:
            at = TENSOR
        at = ("return itself", *at)
    return Failed(happened, expected, None, key, at)


@move_batch.check(points=1, needs=MOVED)
def leaves_other_things_alone(seen: Seen, wanted: Seen) -> None:
    """Strings, numbers, None and everything else that is no tensor come back unchanged."""
    expected = "what is no tensor, list, tuple or dict comes back unchanged"
    _expect_no_errors(seen, "other_things", expected)
    right = _cases_in(wanted)
    for name, case in _cases_in(seen).items():
        for part, before in case.beside(right[name]):
            if part.role == "other" and not part.is_kept:
                raise _change_of_other_thing(name, part, before)
    # A named tuple with a string needs both; errors with named tuples have been reported already.
    if not _cases_in(seen, "named_tuples").errors:
        _expect_no_errors(seen, "a_sprite_with_title", expected)


def _change_of_other_thing(name: str, part: BatchPart, before: BatchPart) -> Failed:
    """The failure of something that is no tensor and came back otherwise; returned, not raised.

    `part` is what came back, and `before` what the reference gave there.
    """
    expected = before.words
    became = part.words
    if became == expected:
        became = "a copy of it"
        expected = "the same object"
    key = None
    if became == "a tensor":
        key = "everything-a-tensor"
    at: tuple[str, ...] = ()
    if became == "None":
        at = ("end",)
    happened = f"{name}: `{part.path}` became {became}"
    happened = tell_apart(happened, became, expected)
    return Failed(happened, expected, None, key, at)


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
        for part, stayed in case.beside(right[name]):
            is_copy = stayed.same and not part.same
            is_there = part.role == "tensor" and part.device == stayed.device
            if is_copy and is_there:
                happened = f"{name}: `{part.path}` was on {part.device} already and was copied"
                line = case.line_on_device or case.line
                raise Failed(happened, "the tensor itself", line, "already-there-copied")


@move_batch.check(points=0.5, needs=MOVED)
def uses_the_device_it_is_given(seen: Seen, wanted: Seen) -> None:
    """Tensors end up on exactly the device passed in, whatever this machine has."""
    elsewhere = _cases_in(seen, "already_there", "back_to_the_cpu", "to_the_second_gpu")
    if not _cases_in(seen, "nested", "named_tuples").errors:  # those are another check's
        for name, raised in elsewhere.errors.items():
            raise raised_instead(raised, name)
    for case in elsewhere.values():
        for part in case.parts:
            if part.device not in (None, case.device):
                where = f"`{part.path}` ended up on {part.device}"
                key = wrong_device_mistake(case.device, [part.device])
                line = None
                if key:
                    line = case.line
                raise failure_on_other_device(case.device, where, line, key)


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
            key = "always-non-blocking"
            if asked:
                key = "non-blocking-dropped"
            raise Failed(happened, expected, case.line, key)
    _expect_no_errors(seen, "without_waiting", "no error")
