"""What the self-assessment says of the device is what the device does, and only the reference runs
it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.days.day8 import self_assessment
from gpudojo.grading.load import SOLUTION, load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import CallStatus
from gpudojo.release.stubs import BEGIN

EXERCISE = next(
    exercise for exercise in exercises_of("day8") if exercise.stem == "12_self_assessment"
)


def test_every_question_has_its_experiment() -> None:
    told = self_assessment.run_experiments()
    assert (
        "chose cuda on a machine with a GPU and cpu on one without, where is_built() said True"
        in told["portable"]
    )
    assert told["different_devices"].startswith(
        "torch raised RuntimeError: Expected all tensors to be"
    )
    assert (
        "under no_grad, which built none; the model was still in training mode" in told["no_grad"]
    )
    assert (
        "48 MiB ran out of memory, after empty_cache() it ran out of memory, and half of it fitted"
        in (told["out_of_memory"])
    )
    assert "said 4 MiB" in told["another_process"]


def test_a_graph_keeps_what_no_grad_lets_go() -> None:
    with_graph, without = (
        float(text.split()[-1]) for text in self_assessment.no_grad().split(" MiB")[:2]
    )
    assert with_graph > 3 * without


def test_only_the_reference_is_told_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SOLUTION == BEGIN
    student = tmp_path / "12_self_assessment.py"
    student.write_text('ANSWERS = {"portable": "b"}\n', encoding="utf-8")
    seen = observe_function(EXERCISE, EXERCISE.functions[0], load_submission(student), "virtual", 8)
    assert (seen.observations["tried_out"].status, seen.observations["tried_out"].facts) == (
        CallStatus.RETURNED,
        {},
    )
    reference = observe_function(
        EXERCISE,
        EXERCISE.functions[0],
        load_submission(Path("reference/day8/12_self_assessment.py")),
        "virtual",
        8,
    )
    assert set(reference.observations["tried_out"].facts) == set(self_assessment.SHOWS)
