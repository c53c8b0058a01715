"""Says why what a probe saw cannot be recorded: which value, in which field, and what to record."""

from __future__ import annotations

from typing import Any, Final, get_args, get_origin

import msgspec

from gpudojo.model.errors import describe_error
from gpudojo.model.evidence import LARGEST_OBSERVATION, Cases, Observation
from gpudojo.model.exercise import Probe, with_article

REMEDY: Final = (
    "record None, numbers and texts, lists and dicts of them, and array_of(tensor) for a tensor"
)


class _Unrecordable(Exception):
    """A value that cannot be encoded, and the keys and indices that lead to it."""

    def __init__(self, value: Any, error: Exception, keys: list[str | int]) -> None:
        self.value = value
        self.error = error
        self.keys = keys


def why_not_recordable(seen: Observation, probe: Probe[Any]) -> Exception | None:
    """The error with which an observation of a probe cannot be recorded; None where it can be.

    It names the value that cannot be encoded, the size if that is too large, or what the probe must
    return if that is no struct and no dict. Changes nothing. Raises what reading the probe's return
    type raises.
    """
    if not isinstance(seen.facts, dict):
        return _name_returned(seen.facts, probe)
    try:
        size = len(msgspec.msgpack.encode(seen))
    except Exception as error:
        # It holds something of the student's that is no number, text or array; whatever its
        # methods raise when it is encoded is an answer.
        return _name_value(seen, probe, error)
    if size > LARGEST_OBSERVATION:
        return ValueError(
            f"what the probe `{probe.name}` recorded takes {size:,} bytes, and "
            f"{LARGEST_OBSERVATION:,} are allowed"
        )
    return None


def _name_returned(facts: Any, probe: Probe[Any]) -> Exception:
    """The error that says what a probe returned instead of facts, and what it must return."""
    kind = type.__dict__["__name__"].__get__(type(facts))  # it may be a student's class
    declared = probe.look.__annotations__.get("return")
    wanted = "a struct, `Cases` of structs, or a dict of `Cases`"
    if isinstance(declared, str) and declared != "None":
        wanted = f"`{declared}`, as it declares"
    hint = ""
    if facts is None:
        hint = "; does it end without `return`?"
    return TypeError(
        f"the probe `{probe.name}` returned {with_article(kind)} and must return {wanted}{hint}"
    )


def _name_value(seen: Observation, probe: Probe[Any], error: Exception) -> Exception:
    """The error that names the value, its field and its struct; else the one of encoding."""
    try:
        _require_encodable(seen.facts, [])
    except _Unrecordable as found:
        kind = type.__dict__["__name__"].__get__(type(found.value))  # it may be a student's class
        name, text = describe_error(found.error, 200)
        where = _describe_place(found.keys, probe.return_type)
        return ValueError(
            f"the probe `{probe.name}` recorded {with_article(kind)} as {where}, which cannot be "
            f"sent to the checks ({name}: {text}); {REMEDY}"
        )
    return error


def _require_encodable(value: Any, keys: list[str | int]) -> None:
    """Raises _Unrecordable for the first value in facts that cannot be encoded.

    `keys` lead to the value.
    """
    if type(value) is dict:
        for key, part in value.items():
            _require_encodable(part, [*keys, key])
    elif type(value) is list:
        for index, part in enumerate(value):
            _require_encodable(part, [*keys, index])
    else:
        try:
            msgspec.msgpack.encode(value)
        except Exception as error:  # whatever a student's class raises
            raise _Unrecordable(value, error, keys) from None


def _describe_place(keys: list[str | int], kind: Any) -> str:
    """Where a value is: its field, the struct that the probe returns, and its scenario.

    `kind` is the type that the probe is declared to return.
    """
    scenarios = []
    rest = list(keys)
    while get_origin(kind) in (Cases, dict) and len(rest) > 1:
        scenarios.append(f"`{rest.pop(0)}`")
        kind = get_args(kind)[-1]
    field = ""
    for key in rest:
        field += f"[{key}]" if isinstance(key, int) else f".{key}"
    place = f"`{field.removeprefix('.')}`"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        place += f" of `{kind.__name__}`"
    if scenarios:
        place += f" in {', '.join(scenarios)}"
    return place
