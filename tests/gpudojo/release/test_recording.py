"""Recorded evidence judges a student on any machine, and does not depend on the machine that
recorded it.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpudojo.days.day8.pixel_race import BAR
from gpudojo.grading.engine import judge_checks
from gpudojo.grading.shipped_evidence import (
    PUBLIC_SEEDS,
    ShippedEvidence,
    encode_shipped_evidence,
    read_shipped_evidence,
)
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadEvidence, NoSuchSeed, NotRecorded
from gpudojo.model.evidence import Array, Evidence, Observation
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import Outcome

from .conftest import REFERENCE, Released

FUNCTIONS = [
    (exercise, function) for exercise in exercises_of("day8") for function in exercise.functions
]
TIMED = [(e, f) for e, f in FUNCTIONS if any(probe.machine == "unwatched" for probe in f.probes)]


@pytest.fixture(scope="session")
def recorded(released: Released) -> ShippedEvidence:
    return msgspec.msgpack.decode(released.evidence, type=ShippedEvidence)


def named(pair: tuple[Exercise, Function]) -> str:
    return pair[1].name


@pytest.mark.parametrize("pair", FUNCTIONS, ids=named)
def test_every_function_is_there_for_every_seed_and_bench(
    recorded: ShippedEvidence, pair: tuple[Exercise, Function]
) -> None:
    exercise, function = pair
    for seed in PUBLIC_SEEDS:
        for bench in ("virtual", "cpu", "cuda"):
            found = recorded.evidence_of(exercise.stem, function.name, bench, seed)
            assert list(found.observations) == [probe.name for probe in function.probes]
            assert {
                result.outcome for result in judge_checks(exercise, function, found, found)
            } == {Outcome.PASSED}


def test_a_seed_that_is_not_there_is_told(recorded: ShippedEvidence) -> None:
    with pytest.raises(NoSuchSeed, match="for the seeds 8, 9 and 10, not for 11"):
        recorded.evidence_of("01_checking_device", "select_device", "virtual", 11)
    with pytest.raises(
        NotRecorded, match="for CUDA and for the plain CPU, not for 'mps'; choose virtual or cpu"
    ):
        recorded.evidence_of("01_checking_device", "select_device", "mps", 8)


def test_signatures_are_there_and_no_defaults_of_the_solution_are_lost(
    recorded: ShippedEvidence,
) -> None:
    assert (
        recorded.signature_of("03_moving_batches", "move_batch")
        == "(batch, device, non_blocking=False)"
    )
    assert recorded.signature_of("12_self_assessment", "ANSWERS") == "(…)"
    assert len(recorded.signatures) == len(FUNCTIONS)


def timed(found: Evidence) -> dict[str, Any]:
    return found.observations["timed"].facts


@pytest.mark.parametrize("pair", TIMED, ids=named)
@pytest.mark.parametrize("slower", [0.01, 1000.0])
def test_the_modelled_speedup_is_judged_and_no_clock_of_a_machine(
    recorded: ShippedEvidence, pair: tuple[Exercise, Function], slower: float
) -> None:
    """A student's loop is `slower` than the recorded one, and the student's machine measured the
    contrary.
    """
    exercise, function = pair
    wanted = recorded.evidence_of(exercise.stem, function.name, "virtual", 8)
    assert (timed(wanted)["student"], timed(wanted)["loop"]) == (0.0, 0.0)
    pictures = wanted.observations["pictures"]
    speed = pictures.facts["speed"]
    assert speed["loop"] / speed["student"] >= 3 * BAR
    for speedup, passes in ((BAR * 1.05, True), (40.0, True), (400.0, True), (BAR * 0.95, False)):
        modelled = speed | {"loop": slower * speed["loop"], "student": speed["loop"] / speedup}
        measured = timed(wanted) | {"loop": 1.0, "student": 9.0 if passes else 0.001}
        seen = wanted.observations | {
            "pictures": Observation(pictures.status, pictures.facts | {"speed": modelled}),
            "timed": Observation(pictures.status, measured),
        }
        results = judge_checks(
            exercise, function, msgspec.structs.replace(wanted, observations=seen), wanted
        )
        (verdict,) = (result for result in results if result.check == "faster_than_the_loop")
        assert (verdict.outcome is Outcome.PASSED) is passes, verdict.happened


@pytest.mark.parametrize("pair", TIMED, ids=named)
def test_timed_outputs_are_still_compared(
    recorded: ShippedEvidence, pair: tuple[Exercise, Function]
) -> None:
    exercise, function = pair
    wanted = recorded.evidence_of(exercise.stem, function.name, "virtual", 8)
    right = timed(wanted)["outputs"][1]
    wrong = Array(right.dtype, right.shape, bytes(len(right.data)))
    facts = timed(wanted) | {
        "outputs": [timed(wanted)["outputs"][0], wrong],
        "loop_outputs": [wrong, wrong],
    }
    seen = {**wanted.observations, "timed": Observation(wanted.observations["timed"].status, facts)}
    results = judge_checks(
        exercise, function, msgspec.structs.replace(wanted, observations=seen), wanted
    )
    assert next(r for r in results if r.check == "faster_than_the_loop").outcome is Outcome.FAILED


def test_pictures_of_every_call_on_the_public_seed_are_there_and_small(
    recorded: ShippedEvidence,
) -> None:
    drawn = {key: recorded.timelines_of(*key.split("::")) for key in recorded.timelines}
    assert {
        "04_modifying_training_loop_gpu::train_epoch",
        "08_minimizing_transfers::predict",
    } <= drawn.keys()
    assert all(found and all(each.lines == {} for each in found) for found in drawn.values())
    assert sum(map(len, recorded.timelines.values())) < 32_000
    assert recorded.timelines_of("12_self_assessment", "ANSWERS") == []
    spoiled = msgspec.structs.replace(recorded, timelines=dict.fromkeys(drawn, b"x"))
    with pytest.raises(
        BadEvidence, match="the timelines of train_epoch in this release cannot be read"
    ):
        spoiled.timelines_of("04_modifying_training_loop_gpu", "train_epoch")


def test_no_source_and_no_place_of_this_machine_is_in_it(
    recorded: ShippedEvidence, released: Released
) -> None:
    everything = released.evidence + b"".join(
        msgspec.msgpack.encode(recorded._decode_evidence_at(key)) for key in recorded.evidence
    )
    everything += b"".join(zlib.decompress(packed) for packed in recorded.timelines.values())
    for forbidden in (str(REFERENCE), str(Path.home()), "SOLUTION", "def ", "import torch"):
        assert forbidden.encode() not in everything


def test_a_damaged_file_is_told_in_a_sentence(tmp_path: Path, recorded: ShippedEvidence) -> None:
    assert read_shipped_evidence("day8", tmp_path) is None  # no release, then
    for name, data in (
        ("cut", encode_shipped_evidence(recorded)[:-9]),
        ("other", b"\xc1"),
        ("empty", b""),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "day8.mp").write_bytes(data)
        with pytest.raises(BadEvidence, match=r"day8\.mp of this release cannot be read"):
            read_shipped_evidence("day8", tmp_path / name)
    (tmp_path / "a folder" / "day8.mp").mkdir(parents=True)
    with pytest.raises(BadEvidence, match=r"day8\.mp of this release cannot be read: "):
        read_shipped_evidence("day8", tmp_path / "a folder")
    newer = msgspec.structs.replace(recorded, version=2)
    (tmp_path / "day8.mp").write_bytes(encode_shipped_evidence(newer))
    read_shipped_evidence.cache_clear()
    with pytest.raises(BadEvidence, match="has version 2, not 1"):
        read_shipped_evidence("day8", tmp_path)
    spoiled = msgspec.structs.replace(
        recorded, evidence=dict.fromkeys(recorded.evidence, b"x")
    )  # a beginning of one
    with pytest.raises(BadEvidence, match="nothing that can be read at 8/virtual/"):
        spoiled.evidence_of("01_checking_device", "select_device", "virtual", 8)
