"""Is the batch on the device, whole, in its structure, and the one passed in as it was?"""

from __future__ import annotations

import re

from graders.checks.scenarios import Case, cases, runs_in_all, said
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.day8.moving_batches.functions import move

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
