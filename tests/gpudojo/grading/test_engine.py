"""The grading engine: results, limits, and errors that are not the student's."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpudojo.grading import engine
from gpudojo.grading.checks import device_mistake, runs
from gpudojo.grading.engine import FileGrader, grade_function, result_of
from gpudojo.grading.explain import explain_result
from gpudojo.grading.feedback import headline_and_parts
from gpudojo.grading.limits import Limits
from gpudojo.grading.observe import load_file, observe_function
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.source_patterns import pattern_lines
from gpudojo.model.errors import ReferenceFails
from gpudojo.model.evidence import (
    CallStatus,
    Case,
    Cases,
    Evidence,
    MissingEvidence,
    Observation,
)
from gpudojo.model.exercise import Check, Exercise, Failed, Probe, Seen
from gpudojo.model.results import UNPAID_ERROR, CheckResult, Outcome, row_of_check
from gpudojo.model.time_outs import still_running_after
from gpudojo.platforms._rows import costs_nothing

REFERENCE = "def double(x):\n    # BEGIN SOLUTION\n    return 2 * x\n    # END SOLUTION\n"


def look_at_three(call: Any) -> dict[str, Any]:
    return {"value": call(3)}


def look_at_four(call: Any) -> dict[str, Any]:
    return {"value": call(4)}


def facts(seen: Any, look: Any) -> dict[str, Any]:
    """What the probe that calls `look` saw."""
    found: dict[str, Any] = getattr(seen, "observations", seen)[look.__name__].facts
    return found


def made(*looks: Any) -> Exercise:
    """An exercise with one function, `double`, and a check of its value in each scenario."""
    exercise = Exercise("01_doubling", "Doubling", 1)
    function = exercise.function("double")
    function.probes += [Probe(look.__name__, look, "bench") for look in looks]

    @function.check(1, needs=())
    def doubles(seen: Any, wanted: Any) -> None:
        """It returns twice its argument."""
        for look in looks:
            if facts(seen, look).get("value") != facts(wanted, look)["value"]:
                raise Failed("another value", "twice the argument")

    return exercise


class Files:
    """A student's file beside a reference solution."""

    def __init__(self, folder: Path) -> None:
        self.student = folder / "01_doubling.py"
        self.reference = folder / "reference.py"
        self.reference.write_text(REFERENCE, encoding="utf-8")

    def grade(
        self,
        exercise: Exercise,
        source: str,
        limits: Limits = Limits(),  # noqa: B008
    ) -> list[CheckResult]:
        self.student.write_text(source, encoding="utf-8")
        submission = load_file(self.student, limits)
        measure = ReferenceSolution(self.reference)
        return grade_function(
            exercise, exercise.functions[0], submission, measure, "virtual", 8, limits
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def kind(call: Any) -> dict[str, str]:
    return {}


def value(call: Any) -> dict[str, int]:
    return {}


def test_a_failure_shows_the_lines_of_the_calls_that_the_check_asked_about() -> None:
    exercise = Exercise("01_doubling", "Doubling", 2)
    function = exercise.function("double")
    kinds = function.probe(kind)
    values = function.probe(value)

    @function.check(1, needs=())
    def returns_a_number(seen: Seen, wanted: Seen) -> None:
        """It returns a number."""
        if seen[kinds] != wanted[kinds]:
            raise Failed(f"it returned {seen[kinds]}", "a number")

    @function.check(1, needs=("returns_a_number",))
    def doubles(seen: Seen, wanted: Seen) -> None:
        """It returns twice its argument."""
        if seen[values] != wanted[values]:
            raise Failed("another value", "twice the argument")

    def judge(kind: str, value: int) -> list[CheckResult]:
        returned = CallStatus.RETURNED
        seen = {
            "kind": Observation(returned, {"is": kind}, None, {"": [(3, 3)]}),
            "value": Observation(returned, {"is": value}, None, {"": [(4, 4)]}),
        }
        right = {
            "kind": Observation(returned, {"is": "int"}),
            "value": Observation(returned, {"is": 6}),
        }
        evidence = Evidence("01_doubling", "double", "virtual", 8, seen)
        reference = Evidence("01_doubling", "double", "virtual", 8, right)
        return engine.judge_checks(exercise, function, evidence, reference)

    assert [result.outcome for result in judge("int", 6)] == [Outcome.PASSED] * 2
    passed, failed = judge("int", 7)
    assert (passed.outcome, passed.ran) == (Outcome.PASSED, None)
    assert (failed.outcome, failed.ran) == (Outcome.FAILED, ((4, 4),))
    failed, blocked = judge("list", 7)
    assert (failed.outcome, failed.ran) == (Outcome.FAILED, ((3, 3),))
    assert (blocked.outcome, blocked.blocked_by) == (Outcome.BLOCKED, "returns_a_number")


@pytest.mark.parametrize(("value", "asked"), [(6, 0), (7, 1)])
def test_the_lines_of_a_source_are_asked_for_only_where_a_check_failed(
    value: int, asked: int
) -> None:
    exercise = Exercise("01_doubling", "Doubling", points=1)
    function = exercise.function("double")

    @function.probe
    def values(call: Any) -> dict[str, int]:
        raise AssertionError

    @function.check(1, needs=())
    def doubles(seen: Seen, wanted: Seen) -> None:
        """It returns twice its argument."""
        if seen[values] != wanted[values]:
            raise Failed("another value", "twice the argument", at=("",))

    found, wanted = (
        Evidence(
            "01_doubling",
            "double",
            "virtual",
            8,
            {"values": Observation(CallStatus.RETURNED, {"is": each})},
        )
        for each in (value, 6)
    )
    times = list[int]()

    def lines() -> dict[str, int]:
        times.append(1)
        return {"double": 3}

    [result] = engine.judge_function(exercise, function, found, wanted, lines)
    assert len(times) == asked
    assert result == engine.judge_function(exercise, function, found, wanted, {"double": 3})[0]
    assert result.line == (3 if asked else None)


def test_a_right_solution_passes_and_a_wrong_one_fails_at_its_line(files: Files) -> None:
    exercise = made(look_at_three, look_at_four)
    (right,) = files.grade(exercise, "def double(x):\n    return x + x\n")
    assert (right.outcome, right.points) == (Outcome.PASSED, 1)
    (wrong,) = files.grade(exercise, "\n\ndef double(x):\n    return x\n")
    assert (wrong.outcome, wrong.happened, wrong.line) == (Outcome.FAILED, "another value", 4)
    (todo,) = files.grade(exercise, "def double(x):\n    raise NotImplementedError\n")
    assert todo.outcome is Outcome.TODO


def test_a_verdict_is_the_one_of_evidence_that_was_sent(files: Files) -> None:
    """In this process, too, checks see plain data: a tuple becomes a list, and what cannot be sent
    is unusable.
    """

    def as_it_is(call: Any) -> dict[str, Any]:
        return {"value": call(3), "set": {1, 2} if call(0) is None else (1, 2)}

    (result,) = files.grade(made(as_it_is), "def double(x):\n    return 2 * x\n")
    assert result.outcome is Outcome.PASSED

    def anything(call: Any) -> dict[str, Any]:
        return {"value": call(3)}

    exercise = made(anything)
    source = "class Mine:\n    pass\n\ndef double(x):\n    return Mine()\n"
    files.student.write_text(source, encoding="utf-8")
    seen = observe_function(
        exercise, exercise.functions[0], load_file(files.student), "virtual", 8
    ).observations["anything"]
    assert seen.raised is not None
    assert seen.raised.type == "Unusable"
    assert "Encoding objects of type Mine is unsupported" in seen.raised.message


class Epoch(Case):
    """What one epoch cost."""

    reads: int
    weights: Any


def epochs(call: Any) -> Cases[Epoch]:
    return Cases({"first": Epoch(reads=1, weights=None), "second": Epoch(2, weights=call(3))})


@pytest.mark.parametrize(
    ("returned", "recorded"),
    [
        ("torch.ones(2)", "a Tensor as `weights`"),
        ("{'layers': [1, object()]}", "an object as `weights.layers[1]`"),
        ("10 ** 30", "an int as `weights`"),
    ],
)
def test_a_value_that_cannot_be_recorded_is_named_with_its_field_and_what_to_record(
    returned: str, recorded: str, files: Files
) -> None:
    exercise = Exercise("01_doubling", "Doubling", 1)
    function = exercise.function("double")
    function.probe(epochs)
    source = f"import torch\n\ndef double(x):\n    return {returned}\n"
    files.student.write_text(source, encoding="utf-8")
    found = observe_function(exercise, function, load_file(files.student), "virtual", 8)
    raised = found.observations["epochs"].raised
    assert raised is not None
    assert f"the probe `epochs` recorded {recorded} of `Epoch` in `second`, " in raised.message
    assert raised.message.endswith(
        "record None, numbers and texts, lists and dicts of them, and array_of(tensor) for a tensor"
    )
    assert raised.source.startswith(os.path.relpath(__file__))


def test_an_observation_that_is_too_large_is_named_with_what_is_large(files: Files) -> None:
    exercise = Exercise("01_doubling", "Doubling", 1)
    function = exercise.function("double")
    function.probe(epochs)
    source = "def double(x):\n    return 'much' * 1_000_000\n"
    files.student.write_text(source, encoding="utf-8")
    found = observe_function(exercise, function, load_file(files.student), "virtual", 8)
    raised = found.observations["epochs"].raised
    assert raised is not None
    assert raised.message.endswith(
        "what the probe `epochs` recorded takes 4,000,090 bytes, and 1,048,576 are allowed"
    )


def place_of(function: Any, text: str) -> str:
    """`file:line` of a line in a function's source, as it is shown here."""
    lines, first = inspect.getsourcelines(function)
    number = next(first + at for at, line in enumerate(lines) if text in line)
    return f"{os.path.relpath(__file__)}:{number}"


def stumbling(call: Any) -> dict[str, Any]:
    call(3)
    return {}["a mistake of the author's"]  # type: ignore[no-any-return]


def test_an_error_in_a_probe_is_not_the_student_s_and_names_file_and_line(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise = made(stumbling)
    files.student.write_text("def double(x):\n    return 2 * x\n", encoding="utf-8")
    monkeypatch.setattr(
        engine, "reference_for", lambda path, exercise: ReferenceSolution(files.reference)
    )
    (result,) = FileGrader(files.student, "virtual", 8).results_of(exercise, exercise.functions[0])
    assert (result.outcome, result.points) == (Outcome.ERROR, 1)
    assert 'KeyError: "a mistake of the author\'s"' in result.happened
    assert result.happened.endswith(f"(raised at {place_of(stumbling, 'return {}')})")


def test_an_error_in_a_check_is_not_the_student_s_and_names_file_and_line(files: Files) -> None:
    exercise = made(look_at_three)

    @exercise.functions[0].check(1, needs=())
    def broken(seen: Any, wanted: Any) -> None:
        """It can be judged."""
        assert facts(wanted, look_at_three)["valeu"] == 6

    result = files.grade(exercise, "def double(x):\n    return 2 * x\n")[-1]
    assert (result.outcome, result.points) == (Outcome.ERROR, 1)
    assert "KeyError: 'valeu'" in result.happened
    assert place_of(broken, "valeu") in result.happened


def test_a_check_that_raises_for_the_student_alone_is_an_error_of_the_exercise_and_not_paid(
    files: Files,
) -> None:
    """With credit for evidence that no check can judge, spoiling it would pay."""
    exercise = made(look_at_three)

    @exercise.functions[0].check(1, needs=())
    def divides(seen: Any, wanted: Any) -> None:
        """It can be judged."""
        assert facts(wanted, look_at_three)["value"] / facts(seen, look_at_three)["value"] == 1

    result = files.grade(exercise, "def double(x):\n    return 0\n")[-1]
    assert (result.outcome, result.points) == (Outcome.ERROR, 0)
    assert result.source == place_of(divides, "== 1")
    assert result.happened == (
        f"the check itself failed: ZeroDivisionError: division by zero, raised at {result.source}"
    )
    headline, _ = headline_and_parts(result)
    assert headline == UNPAID_ERROR
    row = row_of_check(result, 1.0, exercise.functions[0], {}, None)
    assert (row.points, row.message) == (0, UNPAID_ERROR)
    assert not costs_nothing(row)


def test_evidence_that_is_missing_or_of_another_type_fails(files: Files) -> None:
    exercise = made(look_at_three)

    @exercise.functions[0].check(1, needs=())
    def asks(seen: Any, wanted: Any) -> None:
        """It can be judged."""
        if seen is not wanted:
            seen[Probe("never_run", look_at_three)]

    result = files.grade(exercise, "def double(x):\n    return 0\n")[-1]
    assert (result.outcome, result.points) == (Outcome.FAILED, 0)
    assert "nothing was recorded of the probe `never_run`" in result.happened


def test_a_scenario_that_is_misspelt_is_told_with_the_similar_one() -> None:
    cases = Cases({"in training": 1, "in evaluation": 2})
    with pytest.raises(MissingEvidence) as raised:
        cases["in traning"]
    assert str(raised.value) == "there is no scenario 'in traning'; did you mean in training?"


def misjudge(raised: Any, seen: Any) -> str:
    return raised.kind  # type: ignore[no-any-return]


def test_a_diagnosis_that_raises_is_an_error_of_the_exercise(files: Files) -> None:
    exercise = made(look_at_three)
    function = exercise.functions[0]
    function.checks.clear()
    runs(function, diagnose=misjudge)

    result = files.grade(exercise, "def double(x):\n    raise ValueError('odd')\n")[0]
    assert (result.outcome, result.points) == (Outcome.ERROR, 0)
    assert result.source == place_of(misjudge, "raised.kind")
    assert "`diagnose` raised AttributeError" in result.happened
    assert result.happened.endswith("it was to explain what `double` raised: ValueError: odd")
    assert result.line == 2


def test_a_diagnosis_with_other_parameters_is_refused_where_it_is_declared() -> None:
    function = Exercise("01_x", "X", points=1).function("double")
    with pytest.raises(ValueError, match="`diagnose` of runs") as raised:
        runs(function, diagnose=device_mistake)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "`diagnose` of runs(double) gets two arguments, (raised, seen), and device_mistake takes "
        "(raised: 'Raised') -> 'str | None'; "
        "write: diagnose=lambda raised, seen: device_mistake(raised)"
    )
    assert function.checks == []


def look_without_argument(call: Any) -> dict[str, Any]:
    return {"value": call()}


def test_a_call_that_does_not_fit_names_the_line_of_the_probe(files: Files) -> None:
    exercise = made(look_without_argument)
    function = exercise.functions[0]
    function.checks.clear()
    runs(function)
    files.student.write_text("def double(x):\n    return 2 * x\n", encoding="utf-8")
    submission = load_file(files.student)
    (result,) = grade_function(exercise, function, submission, None, "virtual", 8)
    assert result.called_at == place_of(look_without_argument, "call()")


def test_after_a_time_out_the_other_scenarios_are_not_run(files: Files) -> None:
    calls: list[str] = []

    def first(call: Any) -> dict[str, Any]:
        calls.append("first")
        return {"value": call(3)}

    def second(call: Any) -> dict[str, Any]:
        calls.append("second")
        return {"value": call(4)}

    exercise = made(first, second)
    files.student.write_text("def double(x):\n    while True:\n        pass\n", encoding="utf-8")
    found = observe_function(
        exercise, exercise.functions[0], load_file(files.student), "virtual", 8, Limits(0.2)
    ).observations
    assert calls == ["first"]
    assert [seen.raised and (seen.raised.type, seen.raised.message) for seen in found.values()] == [
        ("TimedOut", still_running_after(0.2))
    ] * 2


def test_who_swallows_a_time_out_is_out_of_time_all_the_same(files: Files) -> None:
    loop = "        while True:\n            pass\n"
    source = f"def double(x):\n    try:\n{loop}    except BaseException:\n        return 2 * x\n"
    files.student.write_text(source, encoding="utf-8")
    exercise = made(look_at_three)
    found = observe_function(
        exercise, exercise.functions[0], load_file(files.student), "virtual", 8, Limits(0.2)
    ).observations
    raised = found["look_at_three"].raised
    assert raised is not None
    assert raised.type == "TimedOut"


def test_scenarios_may_share_their_time(files: Files) -> None:
    exercise = made(look_at_three, look_at_four)
    files.student.write_text(
        "import time\n\ndef double(x):\n    time.sleep(0.4)\n    return 2 * x\n", encoding="utf-8"
    )
    submission = load_file(files.student)

    def outcomes(limits: Limits) -> list[bool]:
        found = observe_function(
            exercise, exercise.functions[0], submission, "virtual", 8, limits
        ).observations
        return [seen.raised is None for seen in found.values()]

    assert outcomes(Limits(0.7)) == [True, True]
    assert outcomes(Limits(0.7, shared=True)) == [True, False]


def test_an_interrupt_of_the_student_s_is_evidence_and_one_of_the_user_s_ends_grading(
    files: Files, request: pytest.FixtureRequest
) -> None:
    # In a shell's background job Ctrl-C is ignored, and so would this one be.
    request.addfinalizer(
        functools.partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exercise = made(look_at_three)
    (result,) = files.grade(exercise, "def double(x):\n    raise KeyboardInterrupt\n")
    assert result.outcome is Outcome.FAILED

    def interrupted(call: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return {}

    with pytest.raises(KeyboardInterrupt):
        files.grade(made(interrupted), "def double(x):\n    return x\n")
    files.student.write_text("def double(x):\n    return x\n", encoding="utf-8")
    alone = made(interrupted)
    submission = load_file(files.student)
    found = observe_function(
        alone, alone.functions[0], submission, "virtual", 8, Limits(interruptible=False)
    ).observations
    assert found["interrupted"].raised is not None, "in a sandbox nobody presses Ctrl-C"


def test_the_judging_half_imports_no_torch() -> None:
    code = (
        "import sys, gpudojo.grading.engine, gpudojo.classes.judging; sys.exit('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SHOWN = """
def train(device):
    if device:
        model.to("cuda")
    for batch in loader:
        torch.cuda.synchronize()
    index = device_count()
"""


@pytest.mark.parametrize(
    ("ran", "key", "named"),
    [
        (((2, 3), (4, 6)), "hard-coded-cuda", "hard-coded-cuda"),
        (((2, 2), (4, 6)), "hard-coded-cuda", None),  # the line with "cuda" was not executed
        (((2, 2), (4, 6)), "cuda-for-every-device", "cuda-for-every-device"),
        (((2, 3), (4, 6)), "cuda-for-every-device", "hard-coded-cuda"),
        (((2, 6),), "index-not-checked", None),  # it is checked
        (((2, 5),), "index-not-checked", "index-not-checked"),
    ],
)
def test_a_mistake_is_named_only_where_the_source_does_not_say_otherwise(
    ran: tuple[tuple[int, int], ...], key: str, named: str | None
) -> None:
    exercise = Exercise("01_some", "Some", 1)
    function = exercise.function("train")
    check = Check("runs", "It runs.", 1, lambda seen, wanted: None)
    result = result_of(
        exercise,
        function,
        check,
        Outcome.FAILED,
        Failed("it ran elsewhere", "here", 2, key, ran=ran),
    )
    lines = pattern_lines(ast.parse(SHOWN.lstrip()).body)
    assert explain_result(result, function, {}, lines, "()").misconception == named


def without_return(call: Any) -> Cases[Epoch]:  # type: ignore[return]
    Cases({"first": Epoch(reads=1, weights=call(3))})


def of_another_type(call: Any) -> dict[str, Any]:
    return [call(3)]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (
            without_return,
            "the probe `without_return` returned None and must return `Cases[Epoch]`, as it "
            "declares; does it end without `return`?",
        ),
        (
            of_another_type,
            "the probe `of_another_type` returned a list and must return `dict[str, Any]`, as it "
            "declares",
        ),
    ],
)
def test_a_probe_that_returns_no_facts_is_named_with_what_it_must_return(
    look: Any, said: str, files: Files
) -> None:
    exercise = Exercise("01_doubling", "Doubling", 1)
    probe = exercise.function("double").probe(look)
    with pytest.raises(ReferenceFails) as failed:
        files.grade(exercise, REFERENCE)
    assert str(failed.value).endswith(f"{said} (raised at {probe.place})")
