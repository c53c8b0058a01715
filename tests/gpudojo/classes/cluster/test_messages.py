"""What arrives is what was sent, or nothing."""

from __future__ import annotations

import msgspec
import pytest
from gpudojo.classes.dask_client import layers_of_all, objection_to
from gpudojo.classes.dask_messages import (
    HASH,
    Introduction,
    Order,
    Reply,
    Versions,
    pack_message,
    unpack_message,
    unpack_reply,
    versions_here,
)
from gpudojo.classes.records import Record, encode_record
from gpudojo.classes.submission_run import RunOptions
from gpudojo.model.errors import BadMessage
from hypothesis import given
from hypothesis import strategies as st

OURS = Versions("0.1.0", "abc", "2.13.0", "3.11", "2026.8.0")
OPTIONS = RunOptions(
    day="day8",
    bench="virtual",
    seeds={"a::b::c": 7},
    known=frozenset({"a::b"}),
    only=frozenset({"b"}),
)
ORDER = Order(OURS, "digest", {"01.py": b"x = 1\n\xff"}, OPTIONS)
MESSAGE = pack_message(ORDER)
NUMBER = MESSAGE[:HASH]
ANSWER = pack_message(Reply(NUMBER, encode_record(Record("digest", output="hello"))))


def test_an_order_arrives_whole() -> None:
    assert unpack_message(MESSAGE, Order) == ORDER


@given(at=st.integers(0, len(ANSWER) - 1), by=st.integers(1, 255))
def test_no_byte_of_a_reply_can_change(at: int, by: int) -> None:
    changed = bytearray(ANSWER)
    changed[at] ^= by
    with pytest.raises(BadMessage):
        unpack_reply(bytes(changed), NUMBER, "digest")


@given(at=st.integers(0, len(MESSAGE) - 1), by=st.integers(1, 255))
def test_no_byte_of_an_order_can_change(at: int, by: int) -> None:
    changed = bytearray(MESSAGE)
    changed[at] ^= by
    with pytest.raises(BadMessage):
        unpack_message(bytes(changed), Order)


def test_a_reply_is_a_record_or_a_reason() -> None:
    record = unpack_reply(ANSWER, NUMBER, "digest")
    assert isinstance(record, Record)
    assert record.output == "hello"
    assert (
        unpack_reply(pack_message(Reply(NUMBER, refused="no room")), NUMBER, "digest") == "no room"
    )


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (pack_message(Reply(bytes(HASH), encode_record(Record("digest")))), "another order"),
        (pack_message(Reply(NUMBER, encode_record(Record("someone else")))), "another submission"),
        (pack_message(Reply(NUMBER, b"\x93")), "not evidence"),
        (pack_message(Introduction(OURS, {})), "missing required field"),
        (ANSWER[:20], "not a message"),
        ({"record": ANSWER}, "not a message"),
        (None, "not a message"),
    ],
)
def test_what_is_no_reply_to_this_order_is_refused(message: object, said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        unpack_reply(message, NUMBER, "digest")


def test_an_introduction_arrives_or_is_refused() -> None:
    said = Introduction(OURS, {"files": ""})
    assert unpack_message(pack_message(said), Introduction) == said
    with pytest.raises(BadMessage):
        unpack_message(ANSWER, Introduction)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"torch": "2.12.0"}, "it has torch 2.12.0, and the grader 2.13.0"),
        ({"gpudojo": "0.0.9", "probes": "xyz"}, "it has gpudojo 0.0.9, and the grader 0.1.0"),
        ({"probes": "xyz"}, "it has other probes: xyz, and the grader abc"),
        ({"python": "3.12", "torch": "2.12.0"}, "it has Python 3.12, and the grader 3.11"),
        ({"distributed": "2025.1.0"}, "it has distributed 2025.1.0, and the grader 2026.8.0"),
    ],
)
def test_the_difference_is_named_with_both_values(
    changed: dict[str, str], said: str | None
) -> None:
    theirs = msgspec.structs.replace(OURS, **changed)
    assert OURS.describe_difference(theirs) == said
    assert objection_to(Introduction(theirs, {"files": ""}), OURS, False) == said


def test_isolation_is_asked_for_or_not() -> None:
    bare = Introduction(OURS, {"files": "no Landlock", "limits": ""})
    assert objection_to(bare, OURS, require_isolation=False) is None
    assert (
        objection_to(bare, OURS, require_isolation=True)
        == "--require-isolation: files: no Landlock"
    )
    assert objection_to("it said nothing", OURS, False) == "it said nothing"


def test_a_layer_holds_where_it_holds_everywhere() -> None:
    workers = {
        "tcp://a:1": {"files": "", "network": ""},
        "tcp://b:2": {"files": "no Landlock", "network": ""},
    }
    assert layers_of_all(workers) == {"files": "no Landlock (on tcp://b:2)", "network": ""}
    assert layers_of_all(dict(reversed(workers.items()))) == layers_of_all(workers)


def test_a_build_of_torch_does_not_matter_and_its_release_does() -> None:
    found = versions_here("day8")
    assert "+" not in found.torch
    assert found.describe_difference(found) is None


def test_the_layer_of_a_real_gpu_counts_only_where_one_is_used() -> None:
    with_gpu = Introduction(OURS, {"files": "", "device memory": "no NVML"})
    assert (
        objection_to(with_gpu.for_device("cuda"), OURS, require_isolation=True)
        == "--require-isolation: device memory: no NVML"
    )
    assert objection_to(with_gpu.for_device("virtual"), OURS, require_isolation=True) is None
