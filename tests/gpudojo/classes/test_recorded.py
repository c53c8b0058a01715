"""Without references, evidence of a release is the measure: for its last seed, or with a sentence
why not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.classes.grading_options import GradingOptions, read_recorded_reference
from gpudojo.grading.shipped_evidence import (
    ShippedEvidence,
    compress_evidence,
    encode_shipped_evidence,
)
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass, NotRecorded
from gpudojo.model.evidence import CallStatus, Evidence, Observation
from gpudojo.submissions.listing import list_one


def stored(folder: Path) -> Path:
    """Evidence of one function, on two seeds."""
    exercise = exercises_of("day8")[0]
    function = exercise.functions[0]
    key = f"{exercise.stem}::{function.name}"
    seen = {probe.name: Observation(CallStatus.RETURNED) for probe in function.probes}
    evidence = {
        f"{seed}/virtual/{key}": compress_evidence(
            Evidence(exercise.stem, function.name, "virtual", seed, seen)
        )
        for seed in (8, 11)
    }
    (folder / "day8.mp").write_bytes(
        encode_shipped_evidence(ShippedEvidence("day8", (8, 11), {key: "(prefer=None)"}, evidence))
    )
    return folder


def test_the_last_seed_is_everybodys(tmp_path: Path) -> None:
    found = read_recorded_reference("day8", "virtual", stored(tmp_path))
    assert found.seed == 11
    exercises = exercises_of("day8")
    options = GradingOptions(submissions=[], out=tmp_path)
    seeds = options.run_options(exercises, "", found).seeds
    assert set(seeds.values()) == {11}
    assert len(seeds) == sum(len(f.probes) for e in exercises for f in e.functions)
    record = found.make_record(exercises, "virtual")
    ((key, seen),) = record.functions.items()
    assert key == "01_checking_device::select_device"
    assert (seen.evidence.seed, seen.signature) == (11, "(prefer=None)")
    assert "limits" in record.layers


def test_of_secret_seeds_each_submission_has_one(tmp_path: Path) -> None:
    seeds = (8, 11, 12, 13)
    (tmp_path / "day8.mp").write_bytes(
        encode_shipped_evidence(ShippedEvidence("day8", seeds, {}, {}))
    )
    found = read_recorded_reference("day8", "virtual", tmp_path)
    chosen = {digest: found.seed_for(digest) for digest in map(str, range(40))}
    assert set(chosen.values()) == {11, 12, 13}
    assert found.seed_for("7") == chosen["7"]


def test_a_public_seed_is_everybodys(tmp_path: Path) -> None:
    (tmp_path / "day8.mp").write_bytes(
        encode_shipped_evidence(ShippedEvidence("day8", (8, 9, 10), {}, {}))
    )
    found = read_recorded_reference("day8", "virtual", tmp_path)
    assert {found.seed_for(digest) for digest in map(str, range(40))} == {10}


def test_other_evidence_has_another_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = read_recorded_reference("day8", "virtual", stored(tmp_path))
    (tmp_path / "other" / "day8.mp").write_bytes(
        encode_shipped_evidence(ShippedEvidence("day8", (8, 11), {}, {}))
    )
    assert read_recorded_reference("day8", "virtual", tmp_path / "other").name != first.name


def test_no_evidence_and_no_such_bench_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(BadClass, match="no recorded evidence of them in this installation"):
        read_recorded_reference("day8", "virtual")
    with pytest.raises(BadClass, match=r"day8\.mp"):
        read_recorded_reference("day8", "virtual", tmp_path)
    (tmp_path / "some").mkdir()
    with pytest.raises(NotRecorded):
        read_recorded_reference("day8", "mps", stored(tmp_path / "some"))


def test_a_folder_may_be_one_submission_whatever_lies_in_it(tmp_path: Path) -> None:
    for name in ("alice", "bob"):
        (tmp_path / "day8-carol" / name).mkdir(parents=True)
    (entry,) = list_one(tmp_path / "day8-carol").entries
    assert (entry.name, entry.identifier) == ("day8-carol", "carol")
    assert list_one(tmp_path / "nowhere").entries == ()
    assert GradingOptions(submissions=[tmp_path], out=tmp_path).alone is False
