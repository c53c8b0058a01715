"""Evidence with something missing never passes: it is made where student code runs, which may
remove parts of it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gpudojo.authoring.solution_tests import reference_evidence
from gpudojo.grading.engine import judge_checks
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.results import Outcome

FUNCTIONS = [
    (e, f)
    for e in exercises_of("day8")
    if e.number in ("01", "02", "03", "04")
    for f in e.functions
]


def passes(exercise: Any, function: Any, evidence: Evidence) -> bool:
    results = judge_checks(
        exercise, function, evidence, reference_evidence("day8", exercise.stem, function.name)
    )
    return all(result.outcome is Outcome.PASSED for result in results)


def with_facts(evidence: Evidence, probe: str, facts: dict[str, Any]) -> Evidence:
    changed = evidence.observations | {probe: Observation(CallStatus.RETURNED, facts)}
    return msgspec.structs.replace(evidence, observations=changed)


@pytest.mark.parametrize(
    ("exercise", "function"), FUNCTIONS, ids=lambda thing: getattr(thing, "name", "")
)
def test_nothing_that_is_missing_passes(exercise: Any, function: Any) -> None:
    right = reference_evidence("day8", exercise.stem, function.name)
    assert passes(exercise, function, right)
    for probe, observation in right.observations.items():
        assert not passes(exercise, function, with_facts(right, probe, {}))
        for scenario, case in observation.facts.items():
            rest = {name: facts for name, facts in observation.facts.items() if name != scenario}
            if (probe, scenario) != ("laptop", "best unbuilt"):  # which only tells mistakes apart
                assert not passes(exercise, function, with_facts(right, probe, rest)), (
                    f"without {scenario}"
                )
            emptied = {scenario: {key: [] for key in case}}
            assert not passes(
                exercise, function, with_facts(right, probe, observation.facts | emptied)
            ) or (scenario == "best unbuilt"), f"with nothing in {scenario}"


@pytest.mark.parametrize(
    ("exercise", "function"), FUNCTIONS, ids=lambda thing: getattr(thing, "name", "")
)
def test_no_field_of_a_scenario_may_be_missing_or_of_another_type(
    exercise: Any, function: Any
) -> None:
    right = reference_evidence("day8", exercise.stem, function.name)
    for probe, observation in right.observations.items():
        for scenario, case in observation.facts.items():
            for name in case:
                less = {key: fact for key, fact in case.items() if key != name}
                for spoiled in (less, case | {name: b"?"}):
                    facts = observation.facts | {scenario: spoiled}
                    assert not passes(exercise, function, with_facts(right, probe, facts)), (
                        f"{name} of {scenario}"
                    )


@pytest.mark.parametrize(
    ("exercise", "function"),
    [(e, f) for e in exercises_of("day8") for f in e.functions],
    ids=lambda it: getattr(it, "name", ""),
)
@pytest.mark.parametrize(
    "kind", ["Crashed", "TimedOut", "OutOfMemory", "MemoryError", "RuntimeError"]
)
def test_where_every_probe_ends_with_an_error_every_check_is_judged(
    exercise: Any, function: Any, kind: str
) -> None:
    right = reference_evidence("day8", exercise.stem, function.name)
    message = (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
        "and cpu!"
    )
    ended = Observation(CallStatus.RAISED, raised=Raised(kind, message, None))
    for probes in ([*right.observations], *([probe] for probe in right.observations)):
        evidence = msgspec.structs.replace(
            right, observations=right.observations | dict.fromkeys(probes, ended)
        )
        results = judge_checks(exercise, function, evidence, right)
        assert all(result.outcome is not Outcome.ERROR for result in results)
        assert len(probes) < len(right.observations) or all(
            result.outcome is not Outcome.PASSED for result in results
        )
