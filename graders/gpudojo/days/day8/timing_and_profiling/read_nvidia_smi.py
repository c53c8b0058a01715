"""`read_nvidia_smi`: the table of `nvidia-smi` as dicts."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, Final

import msgspec

from gpudojo.days.day8.timing_and_profiling.declaration import read_nvidia_smi
from gpudojo.grading.call import Call, StudentRaised, try_inputs
from gpudojo.grading.checks import raised_instead, runs
from gpudojo.grading.differences import ToldValue, tell_apart, told_value
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type

# ---- scenarios ---------------------------------------------------------------------------------


class Read(Case, frozen=True):
    """What one text gave: a dict of told values for each item."""

    text: str
    kind: str
    gpus: list[dict[str, ToldValue]]


def _call_read_nvidia_smi(call: Call, text: str) -> Read:
    """Call the student's function with a text and describe its answer.

    Raises StudentRaised, with the text in its message.
    """
    try:
        answer = call(text)
    except StudentRaised as error:
        message = f"{error.evidence.message} (for the text {text!r})"
        raise error.with_facts(message=message) from None
    gpus = []
    if isinstance(answer, list):
        gpus = [_describe_gpu(gpu) for gpu in answer]
    return Read(text, type(answer).__name__, gpus)


def _describe_gpu(gpu: Any) -> dict[str, ToldValue]:
    """One item of the list that the student's function returned: its values, told by key.

    For what is no dict, its type under "no dict". Raises what printing a student's own class
    raises.
    """
    if not isinstance(gpu, dict):
        return {"no dict": told_value(gpu)}
    values = {}
    for key, value in dict.items(gpu):
        values[str(key)] = told_value(value)
    return values


MODELS: Final = (
    "NVIDIA H200",
    "NVIDIA A100-SXM4-80GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GB10",
)


UNKNOWN: Final = "[N/A]"


def _draw_line(draw: random.Random, index: int, model: str, used: str = "", total: str = "") -> str:
    """The line of one GPU; numbers that are not given are drawn."""
    if not used:
        used = str(draw.randrange(1, 9_999))
    if not total:
        total = str(draw.randrange(10_000, 150_000))
    return f"{index}, {model}, {used}, {total}"


def _make_texts(seed: int) -> dict[str, str]:
    """Texts that nvidia-smi may print, by scenario.

    The last GPU of `several` comes first, as with `nvidia-smi -i`. Only `blank` ends with an end of
    line: who splits at those gets an empty line, which is the subject of one check.
    """
    draw = random.Random(seed)
    models = draw.sample(MODELS, 5)
    first = _draw_line(draw, 0, models[0])
    second = _draw_line(draw, 1, models[1])
    unused = _draw_line(draw, draw.randrange(10, 99), models[2], used="0")
    unknown = _draw_line(draw, 0, models[3], used=UNKNOWN, total=UNKNOWN)
    half_known = _draw_line(draw, 1, models[4], used=UNKNOWN)
    return {
        "one": first,
        "several": f"{unused}\n{first}\n{second}",
        "unknown": f"{unknown}\n{half_known}",
        "blank": f"\n{first}\n\n\n{second}\n\n",
        "nothing": "",
    }


@read_nvidia_smi.probe(machine="laptop")
def texts(call: Call) -> Cases[Read]:
    return try_inputs(_call_read_nvidia_smi, call, _make_texts(call.seed))


# ---- claims ------------------------------------------------------------------------------------

USUAL: Final = ("one", "several")  # scenarios
NOT_ASKED: Final = ToldValue("", "…")  # instead of a value that is another check's
runs(read_nvidia_smi, scenarios=USUAL)


def _expect_same_gpus(
    seen: Seen,
    wanted: Seen,
    *names: str,
    except_for: Collection[str] = (),
    if_found: bool = False,
) -> None:
    """Raises Failed unless the texts of these names gave the reference's dicts.

    The values of the keys in `except_for` may be others, but None where the reference has None.
    With `if_found`, GPUs that are lost are another check's. Raises ScenarioRaised if the whole
    probe ended with an error.
    """
    for name in names:
        right = wanted[texts][name]
        raised = seen[texts].errors.get(name)
        if raised is not None:
            raise raised_instead(raised, "it")
        found = seen[texts][name]
        if if_found:
            right = _with_known_gpus(found, right)
        if len(found.gpus) == len(right.gpus):
            found, right = _without(found, right, except_for)
        _expect_gpus_of_text(found, right)


def _loses_gpus(seen: Seen, wanted: Seen) -> bool:
    """True if some usual text gave too few dicts, which another check tells.

    Raises ScenarioRaised if the whole probe ended with an error.
    """
    for name in USUAL:
        found = dict.get(seen[texts], name)
        if found is not None and len(found.gpus) < len(wanted[texts][name].gpus):
            return True
    return False


def _with_known_gpus(found: Read, right: Read) -> Read:
    """What the reference gave, with only those GPUs whose index is in what was found.

    All of them if there is none.
    """
    indices = [gpu.get("index") for gpu in found.gpus]
    known = [gpu for gpu in right.gpus if gpu["index"] in indices]
    return msgspec.structs.replace(right, gpus=known or right.gpus)


def _without(found: Read, right: Read, keys: Collection[str]) -> tuple[Read, Read]:
    """What a text gave, and what the reference gave, without the values of these keys.

    The keys stay, and the values where the reference has None.
    """
    found_gpus = []
    right_gpus = []
    for gpu, wished in zip(found.gpus, right.gpus, strict=True):
        known = {key for key, value in wished.items() if value.kind != "NoneType"}
        left_out = known.intersection(keys)
        found_gpus.append(gpu | dict.fromkeys(left_out & gpu.keys(), NOT_ASKED))
        right_gpus.append(wished | dict.fromkeys(left_out, NOT_ASKED))
    found = msgspec.structs.replace(found, gpus=found_gpus)
    right = msgspec.structs.replace(right, gpus=right_gpus)
    return found, right


def _keys_always_wrong(seen: Seen, wanted: Seen) -> set[str]:
    """The keys whose values are wrong in every usual text, where others are right.

    Another check tells of them. Raises ScenarioRaised if the whole probe ended with an error.
    """
    wrong: set[str] = set()
    right_somewhere: set[str] = set()
    for name in USUAL:
        found = dict.get(seen[texts], name)
        if found is None:
            return set()
        right = wanted[texts][name]
        if len(found.gpus) != len(right.gpus):
            return set()
        for gpu, wished in zip(found.gpus, right.gpus, strict=True):
            if set(gpu) != set(wished):
                return set()
            for key, value in wished.items():
                if gpu[key] == value:
                    right_somewhere.add(key)
                else:
                    wrong.add(key)
    if not right_somewhere:
        return set()
    return wrong - right_somewhere


def _expect_gpus_of_text(found: Read, right: Read) -> None:
    """Raises Failed unless one text gave the reference's dicts."""
    if found.kind != "list":
        raise returned_other_type(found.kind, "a list of dicts")
    count = len(found.gpus)
    if count != len(right.gpus):
        if count == 1:
            dicts = "1 dict"
        else:
            dicts = f"{count} dicts"
        happened = f"{right.text!r} gave {dicts}"
        raise Failed(happened, str(len(right.gpus)), at=("first return",))
    if found.gpus == right.gpus:
        return
    if _sorted_gpus(found.gpus) == _sorted_gpus(right.gpus):
        indices = _indices_in_words(found.gpus)
        right_indices = _indices_in_words(right.gpus)
        happened = f"{right.text!r} gave the right dicts in another order: the GPUs {indices}"
        raise Failed(happened, f"{right_indices}: the order of the lines")
    for gpu, wished in zip(found.gpus, right.gpus, strict=True):
        if gpu != wished:
            happened = f"{right.text!r} gave {_gpu_in_words(gpu)}"
            happened = tell_apart(happened, gpu, wished)
            at = _where_to_look(gpu, wished)
            raise Failed(happened, _gpu_in_words(wished), at=at)


def _sorted_gpus(gpus: list[dict[str, ToldValue]]) -> list[str]:
    """The GPUs in words, in an order of their own, to be compared."""
    in_words = []
    for gpu in gpus:
        by_key = dict(sorted(gpu.items()))
        in_words.append(_gpu_in_words(by_key))
    return sorted(in_words)


def _indices_in_words(gpus: list[dict[str, ToldValue]]) -> str:
    """The indices of the GPUs, without their types: "1, 0, 74"."""
    return ", ".join(gpu["index"].shown for gpu in gpus)


def _where_to_look(gpu: dict[str, ToldValue], wished: dict[str, ToldValue]) -> tuple[str, ...]:
    """Patterns for the line that made a wrong dict.

    They are those of the conversion where only memory is wrong, and has another type, and those of
    the cut where only the name is wrong; none where nothing is known.
    """
    if set(gpu) != set(wished):
        return ("dict(", "zip(", "append(")
    wrong = [key for key in wished if gpu[key] != wished[key]]
    if wrong == ["name"]:
        return ("last split(",)
    if set(wrong) & {"index", "name"}:
        return (f'"{wrong[0]}":',)
    if wished[wrong[0]].kind == "NoneType":
        key = wrong[0]
        handler: tuple[str, ...] = ()
        if gpu[key].value == UNKNOWN:  # as it was: an error that the conversion raised was caught
            handler = ("except",)
        return (*handler, f"value {gpu[key].shown}", '== "[N/A]"', f'"{key}":', "int(")
    if any(gpu[key].kind != wished[key].kind for key in wrong):
        return ('== "[N/A]"', f'"{wrong[0]}":', "int(")
    return ("split(",)


def _gpu_in_words(gpu: dict[str, ToldValue]) -> str:
    """One GPU's keys with their values and types, in braces."""
    values = []
    for key, value in gpu.items():
        in_words = value.shown if value == NOT_ASKED else str(value)
        values.append(f"{key}: {in_words}")
    return "{" + ", ".join(values) + "}"


@read_nvidia_smi.check(points=0.25)
def reads_every_gpu(seen: Seen, wanted: Seen) -> None:
    """One dict per GPU, in the order of the lines, with its name and its numbers as ints."""
    _expect_same_gpus(seen, wanted, "one", "several")


@read_nvidia_smi.check(points=0.25)
def reads_missing_values(seen: Seen, wanted: Seen) -> None:
    """`[N/A]` becomes None."""
    wrong = _keys_always_wrong(seen, wanted)
    lost = _loses_gpus(seen, wanted)
    _expect_same_gpus(seen, wanted, "unknown", except_for=wrong, if_found=lost)


@read_nvidia_smi.check(points=0.25)
def skips_blank_lines(seen: Seen, wanted: Seen) -> None:
    """Empty lines are skipped; an empty text gives an empty list."""
    wrong = _keys_always_wrong(seen, wanted)
    lost = _loses_gpus(seen, wanted)
    _expect_same_gpus(seen, wanted, "blank", "nothing", except_for=wrong, if_found=lost)
