"""What is kept between runs: whole or not at all, by one run at a time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from gpudojo.classes.grading_options import name_of_secret, seeds_of_probes
from gpudojo.classes.records import (
    FunctionRecord,
    Record,
    decode_record,
    decode_whole_record,
    encode_record,
)
from gpudojo.classes.store import MOST_KEEPING, Store, record_key, write_file
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass, BadEvidence
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from hypothesis import given
from hypothesis import strategies as st


def test_a_record_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    key = record_key("digest", "a", "b")
    assert store.load_record(key) is None
    store.keep_record(key, Record("digest", output="hello"))
    found = store.load_record(key)
    assert found is not None
    assert found.output == "hello"
    store.close()


@pytest.mark.parametrize("damage", [b"", b"\x00" * 10, b"half"])
def test_a_damaged_record_counts_for_nothing(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    key = record_key("digest")
    write_file(store.path_of(key), damage)
    assert store.load_record(key) is None


def test_conditions_make_other_keys() -> None:
    assert (
        len(
            {
                record_key("d"),
                record_key("d", "a"),
                record_key("d", "b"),
                record_key("da"),
                record_key("d", "a", ""),
            }
        )
        == 5
    )


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_sources_are_kept_by_threads_and_told_if_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    files = {
        f"{number:064x}": {"01.py": f"x = {number}\n".encode()}
        for number in range(3 * MOST_KEEPING)
    }
    for digest, each in [*files.items()] * 2:
        store.keep_sources_soon(digest, each)
    store.wait_for_sources()
    assert {digest: store.load_sources(digest) for digest in files} == files

    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpudojo.classes.store.write_file", full)
    store.keep_sources_soon("f" * 64, {"01.py": b"x = 1\n"})
    with pytest.raises(OSError, match="space"):
        store.wait_for_sources()
    store.close()


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    first = Store(tmp_path)
    second = Store(tmp_path)
    first.open()
    with pytest.raises(BadClass, match="another `dojo` command"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_a_secret_is_kept_for_its_owner_alone_and_used_until_another_is_given(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    store.open()
    made = store.find_or_make_secret(None)
    assert store.find_or_make_secret(None) == made
    path = store.folder / "secret"
    path.chmod(0o644)  # as an earlier version left it
    for secret in ("mine", "yours"):
        assert store.find_or_make_secret(secret) == secret
        assert store.find_or_make_secret(None) == secret
        assert path.stat().st_mode & 0o777 == 0o600
    assert store.find_or_make_secret("of a platform", keep=False) == "of a platform"
    assert store.find_or_make_secret(None) == "yours"
    store.close()


def test_seeds_differ_by_scenario_and_by_secret() -> None:
    exercises = exercises_of("day8")
    mine = seeds_of_probes("mine", exercises)
    again = seeds_of_probes("mine", exercises)
    other = seeds_of_probes("other", exercises)
    assert mine == again
    assert (
        len(set(mine.values()))
        == len(mine)
        == sum(len(f.probes) for e in exercises for f in e.functions)
    )
    assert not set(mine.values()) & set(other.values())
    assert name_of_secret("mine") != name_of_secret("other")


@pytest.mark.parametrize(
    "damage",
    [
        b"\xa2\xff\xfe",
        encode_record(Record("digest", output="xyz")).replace(b"xyz", b"x\xff\xfe"),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\xa0",
        encode_record(Record("digest"))[:-1],
    ],
)
def test_whatever_is_wrong_with_a_record_is_bad_evidence(damage: bytes) -> None:
    with pytest.raises(BadEvidence):
        decode_record(damage)


@given(at=st.integers(0, 10_000), by=st.integers(1, 255), cut=st.integers(0, 200))
def test_a_record_with_other_bytes_is_a_record_or_bad_evidence(at: int, by: int, cut: int) -> None:
    seen = {
        "usual": Observation(
            CallStatus.RAISED, {"a": [1, 2.5, "b"]}, Raised("ValueError", "text", 3)
        )
    }
    record = Record("digest", output="o")
    record.add_function("01::f", FunctionRecord(Evidence("01", "f", "virtual", 1, seen), 0.5))
    data = bytearray(encode_record(record))
    data[at % len(data)] ^= by
    with contextlib.suppress(BadEvidence):
        assert isinstance(decode_whole_record(bytes(data[: len(data) - cut % 3])), Record)
