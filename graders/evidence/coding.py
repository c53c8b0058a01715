"""How does evidence travel? As MessagePack, checked for size, depth and types when it arrives."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from graders.errors import BadEvidence
from graders.evidence.structs import VERSION, Array, Evidence

LARGEST: Final = 16 << 20
DEEPEST: Final = 16
_ARRAY: Final = "array"


def encode(evidence: Evidence) -> bytes:
    return msgspec.msgpack.encode(evidence)


def decode(data: bytes) -> Evidence:
    if len(data) > LARGEST:
        raise BadEvidence(f"{len(data)} bytes are more than {LARGEST}")
    try:
        evidence = msgspec.msgpack.decode(data, type=Evidence)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadEvidence(str(error)) from None
    if evidence.version != VERSION:
        raise BadEvidence(f"version {evidence.version} is not {VERSION}")
    for observation in evidence.observations.values():
        observation.facts.update({key: _fact(value) for key, value in observation.facts.items()})
    return evidence


def _fact(value: Any, depth: int = 0) -> Any:
    """The value with its arrays made whole; anything that is not a fact is refused."""
    if depth > DEEPEST:
        raise BadEvidence("it is nested too deeply")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_fact(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if value.get("type") == _ARRAY:
            return msgspec.convert(value, Array)
        if all(isinstance(key, str) for key in value):
            return {key: _fact(item, depth + 1) for key, item in value.items()}
    raise BadEvidence(f"a {type(value).__name__} is no fact")
