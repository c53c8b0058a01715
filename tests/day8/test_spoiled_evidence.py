"""Spoiled evidence never passes: that of the references of 05, 06 and 07, with one deciding fact
changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gpudojo.grading.engine import judge_checks
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import Array, Evidence, decode_evidence, encode_evidence
from gpudojo.model.results import Outcome

REFERENCES = Path(__file__).parents[2] / "reference" / "day8"
FUNCTIONS = [
    (e, f) for e in exercises_of("day8") if e.number in ("05", "06", "07") for f in e.functions
]
# Facts that decide, by the last name in their path; facts that are only shown in messages may be
# anything.
DECIDING = {
    "values",
    "outputs",
    "update",
    "value",
    "student",
    "loop",
    "parts",
    "passes",
    "flags_after",
}


@cache
def right(stem: str, name: str) -> Evidence:
    exercise, function = next((e, f) for e, f in FUNCTIONS if (e.stem, f.name) == (stem, name))
    return decode_evidence(
        encode_evidence(
            observe_function(
                exercise, function, load_submission(REFERENCES / f"{stem}.py"), "virtual", 8
            )
        )
    )


def places(facts: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every deciding fact, with its path."""
    if way and next((w for w in reversed(way) if isinstance(w, str)), None) in DECIDING:
        yield way, facts
    if isinstance(facts, (dict, list)):
        for key, inner in facts.items() if isinstance(facts, dict) else enumerate(facts):
            yield from places(inner, (*way, key))


def spoiled(fact: Any) -> list[Any]:
    if isinstance(fact, Array):
        nothing_known = np.full(fact.shape, math.nan, "float32").tobytes()
        return [
            None,
            Array("float32", fact.shape, nothing_known),
            Array(fact.dtype, (0,), b""),
            Array(fact.dtype, fact.shape, b""),
            Array("object", fact.shape, fact.data),
        ]
    if isinstance(fact, float):
        return [math.nan, None, "x", []]
    return [[], {}] if isinstance(fact, (list, dict)) and fact else []


def put(facts: Any, way: tuple[Any, ...], value: Any) -> Any:
    if not way:
        return value
    changed = dict(facts) if isinstance(facts, dict) else list(facts)
    changed[way[0]] = put(facts[way[0]], way[1:], value)
    return changed


@pytest.mark.parametrize(
    ("exercise", "function"), FUNCTIONS, ids=lambda one: getattr(one, "name", "")
)
def test_no_spoiled_fact_passes(exercise: Any, function: Any) -> None:
    wanted = right(exercise.stem, function.name)
    assert {r.outcome for r in judge_checks(exercise, function, wanted, wanted)} == {Outcome.PASSED}
    tried = 0
    survived = []
    for probe, seen in wanted.observations.items():
        for way, fact in places(seen.facts):
            if "nothing_to_evaluate" in way and "passes" in way:
                continue  # there are none
            for value in spoiled(fact):
                facts = put(seen.facts, way, value)
                observations = wanted.observations | {
                    probe: msgspec.structs.replace(seen, facts=facts)
                }
                results = judge_checks(
                    exercise,
                    function,
                    msgspec.structs.replace(wanted, observations=observations),
                    wanted,
                )
                tried += 1
                if all(result.outcome is Outcome.PASSED for result in results):
                    survived.append((probe, way, value))
    assert tried > 20
    assert survived == []
