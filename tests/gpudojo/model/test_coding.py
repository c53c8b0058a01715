"""Evidence arrives unchanged, and what is no evidence is refused: it comes from a process that ran
student code.
"""

from __future__ import annotations

import contextlib
from typing import Any, get_origin

import msgspec
import pytest
from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import (
    MOST_FACTS,
    Array,
    CallStatus,
    Case,
    Cases,
    Evidence,
    Fact,
    Observation,
    Raised,
    convert_facts,
    decode_evidence,
    encode_evidence,
)
from hypothesis import given
from hypothesis import strategies as st

ARRAYS = st.builds(
    lambda kind, shape: Array(kind[0], shape, bytes(kind[1] * (shape[0] * shape[1]))),
    st.sampled_from([("float32", 4), ("int64", 8), ("bool", 1), ("complex64", 8)]),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
)
FACTS = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda k: k != "type"), inner),
    max_leaves=20,
)


def made(facts: dict[str, Any]) -> Evidence:
    return Evidence("04", "train", "virtual", 8, {"usual": Observation(CallStatus.RETURNED, facts)})


@given(st.dictionaries(st.text(), FACTS, max_size=5))
def test_what_is_sent_arrives(facts: dict[str, Any]) -> None:
    assert decode_evidence(encode_evidence(made(facts))).observations["usual"].facts == facts


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def array(dtype: str = "float32", shape: Any = (2,), data: Any = b"12345678") -> dict[str, Any]:
    return {"type": "array", "dtype": dtype, "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (b"bytes", "bytes is no fact"),
        ({1: 2}, "no text"),
        ([{"a": {2.5: 1}}], "no text"),
        (deep(40), "too deeply"),
        (array(dtype="object"), "'object' is no fact"),
        (array(shape=(3,)), "8 bytes"),
        (array(shape=(-2, -1)), "8 bytes"),
        (array(shape="2"), "array"),
        (array(data="text"), "bytes"),
        (array(shape=(2**62, 4)), "8 bytes"),
        (msgspec.msgpack.Ext(5, b""), "Ext is no fact"),
    ],
    ids=[
        "bytes",
        "key",
        "inner-key",
        "deep",
        "object",
        "short",
        "negative",
        "shape",
        "text",
        "huge",
        "ext",
    ],
)
def test_what_is_no_fact_is_refused(fact: Any, why: str) -> None:
    data = msgspec.msgpack.encode(made({"x": fact}))
    with pytest.raises(BadEvidence, match=why):
        decode_evidence(data)


def test_lists_and_mappings_of_all_probes_together_are_limited() -> None:
    sizes = {"small": 3, "half": MOST_FACTS // 2, "more than half": MOST_FACTS // 2 + 50}
    seen = {
        name: Observation(CallStatus.RETURNED, {"x": [[]] * size}) for name, size in sizes.items()
    }
    some = {name: seen[name] for name in ("small", "half")}
    decode_evidence(encode_evidence(Evidence("04", "train", "virtual", 8, some)))
    with pytest.raises(BadEvidence, match="more than 50,000"):
        decode_evidence(encode_evidence(Evidence("04", "train", "virtual", 8, seen)))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x80", b"passed", b"\x91" * 100_000, bytes(20 << 20)]
)
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(BadEvidence):
        decode_evidence(data)


def test_another_version_is_refused() -> None:
    with pytest.raises(BadEvidence, match="version 99"):
        decode_evidence(encode_evidence(msgspec.structs.replace(made({}), version=99)))


def test_errors_keep_the_order_of_the_scenarios() -> None:
    names = [f"scenario {number}" for number in range(40)]
    facts = {
        name: {"raised": {"type": "ValueError", "message": "", "line": None}} for name in names
    }
    assert list(convert_facts(facts, Cases[Case]).errors) == names


@pytest.mark.parametrize("length", [80_000, 65])
def test_no_array_has_so_many_dimensions(length: int) -> None:
    """The product of 80,000 of them has 5 million bits."""
    with pytest.raises(BadEvidence, match=f"an array of {length} dimensions is no fact"):
        decode_evidence(encode_evidence(made({"a": array(shape=[2**63 - 1] * length)})))


@given(
    st.binary(max_size=300)
    | st.builds(lambda data, at: data[at:], st.just(encode_evidence(made({}))), st.integers(0, 9))
)
def test_any_bytes_are_evidence_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadEvidence):
        assert isinstance(decode_evidence(data), Evidence)


@pytest.mark.parametrize(
    "data",
    [b"\xa3\xff\xfe\xfd", b"\x91" * 100_000, b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"],
)
def test_whatever_decoding_raises_is_bad_evidence(data: bytes) -> None:
    with pytest.raises(BadEvidence):
        decode_evidence(data)
    whole = encode_evidence(made({"a": "xyz"})).replace(b"xyz", b"\xff\xfe\xfd")
    with pytest.raises(BadEvidence):
        decode_evidence(whole)


class Part(Case, frozen=True):
    at: tuple[int, ...] = ()
    ratio: float = 0.0
    picture: Array | None = None


class Looked(Case, frozen=True):
    text: str
    anything: Fact
    parts: list[Part] = msgspec.field(default_factory=list)
    named: dict[str, Part] = msgspec.field(default_factory=dict)
    raised: Raised | None = None


class Small(Case, frozen=True):
    number: int | None = None
    pictures: list[Array | None] = msgspec.field(default_factory=list)


KINDS = [
    Looked,
    Small,
    Part,
    Cases[Looked],
    Cases[Small],
    dict[str, Cases[Small]],
    dict[str, Part],
    dict[str, str],
]
LINES = st.integers(-(2**63), 2**64 - 1)
ERRORS = st.builds(
    lambda kind, line: {"raised": {"type": kind, "message": "", "line": line}}, st.text(), LINES
)
PARTS = st.fixed_dictionaries(
    {}, optional={"at": st.lists(LINES), "ratio": PLAIN, "picture": ARRAYS}
)
LOOKED = st.fixed_dictionaries(
    {"text": st.text() | PLAIN, "anything": FACTS | ARRAYS},
    optional={"parts": st.lists(PARTS), "named": st.dictionaries(st.text(), PARTS)},
)
SMALL = st.fixed_dictionaries(
    {}, optional={"number": PLAIN, "pictures": st.lists(ARRAYS | st.none())}
)
SEEN = LOOKED | SMALL | PARTS
NAMES = st.text(max_size=3) | st.sampled_from(["raised", "array", "type_"])
LIKELY = SEEN | st.dictionaries(
    NAMES, SEEN | ERRORS | st.dictionaries(NAMES, SEEN | ERRORS) | PLAIN
)


@given(LIKELY, st.sampled_from(KINDS))
def test_facts_are_what_a_probe_returns_or_bad_evidence(facts: dict[str, Any], kind: Any) -> None:
    received = decode_evidence(encode_evidence(made(facts))).observations["usual"]
    with contextlib.suppress(BadEvidence):
        found = convert_facts(received.facts, kind)
        assert isinstance(found, get_origin(kind) or kind)
