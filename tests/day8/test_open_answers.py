"""Questions without an answer are to do, one by one, and the student reads which."""

from __future__ import annotations

from pathlib import Path

from gpudojo.grading.engine import judge_checks
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import Outcome
from gpudojo.pytest_plugin.terminal import Feedback

EXERCISE = next(
    exercise for exercise in exercises_of("day8") if exercise.stem == "12_self_assessment"
)


def test_a_question_without_an_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "12_self_assessment.py"
    answers = {
        "portable": "b",
        "different_devices": None,
        "no_grad": "d",
        "out_of_memory": None,
        "another_process": "c",
    }
    path.write_text(f"ANSWERS = {answers}\n", encoding="utf-8")
    function = EXERCISE.functions[0]
    wanted = observe_function(
        EXERCISE,
        function,
        load_submission(Path("reference/day8/12_self_assessment.py")),
        "virtual",
        8,
    )
    results = judge_checks(
        EXERCISE,
        function,
        observe_function(EXERCISE, function, load_submission(path), "virtual", 8),
        wanted,
    )
    assert [result.outcome for result in results] == [
        Outcome.PASSED,
        Outcome.PASSED,
        Outcome.TODO,
        Outcome.PASSED,
        Outcome.TODO,
        Outcome.PASSED,
    ]
    said = str(Feedback(results[2], EXERCISE, path, hints=1))
    assert (
        said
        == 'to do: ANSWERS["different_devices"] has no answer yet; neither have: out_of_memory.'
    )
