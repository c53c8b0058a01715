"""A failure shows hints on its own mistake, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from urllib.parse import urljoin

import pytest
from gpudojo.authoring.lint_declarations import declaration_findings, hint_findings
from gpudojo.authoring.solution_tests import day_and_exercise_of, exercise_of, grade_once
from gpudojo.grading.feedback import hints_about
from gpudojo.model.catalogue import exercises_of, known_misconceptions, mistakes_for
from gpudojo.model.exercise import Exercise
from gpudojo.model.hints import FunctionHints
from gpudojo.model.results import Outcome
from gpudojo.pytest_plugin.terminal import Feedback

ROOT = Path(__file__).parents[2]

WRONG = Path(__file__).parent / "wrong"
# A wrong solution, and which hints of its function are about the check that fails where the mistake
# has no name.
CASES: dict[str, tuple[int, ...]] = {
    "01_checking_device/drops_the_index": (),
    "02_moving_model_to_device/eval_mode": (7, 8, 9),
    "04_modifying_training_loop_gpu/missing_zero_grad": (),
    "04_modifying_training_loop_gpu/last_loss": (10, 11, 12),
}


@pytest.mark.parametrize("name", CASES)
def test_hints_are_those_of_the_mistake_or_of_the_check(name: str) -> None:
    path = (WRONG / name).with_suffix(".py")
    exercise = exercise_of(*day_and_exercise_of(path))
    result = next(each for each in grade_once(path) if each.outcome is Outcome.FAILED)
    function = next(each for each in exercise.functions if each.name == result.function)
    wanted = [function.hints[number - 1] for number in CASES[name]]
    wanted = wanted or [*known_misconceptions()[result.misconception or ""].hints]
    parts = Feedback(result, exercise, path, 9).parts
    assert [text for label, text in parts if label.startswith("hint")] == wanted


@pytest.mark.parametrize(
    ("name", "page"),
    [
        (
            "04_modifying_training_loop_gpu/mean_of_batch_means",
            "generated/torch.nn.CrossEntropyLoss.html",
        ),
        (
            "02_moving_model_to_device/eval_mode",
            "generated/torch.nn.Module.html#torch.nn.Module.to",
        ),
        (
            "10_timing_and_profiling/smi_sorted",
            "https://docs.python.org/3/library/stdtypes.html#str.split",
        ),
    ],
)
def test_what_to_read_is_about_the_mistake_or_the_check(name: str, page: str) -> None:
    path = (WRONG / name).with_suffix(".py")
    exercise = exercise_of(*day_and_exercise_of(path))
    result = next(each for each in grade_once(path) if each.outcome is Outcome.FAILED)
    text = dict(Feedback(result, exercise, path, 9).parts)
    assert text["read"] == urljoin("https://pytorch.org/docs/stable/", page)


def test_every_mistake_and_every_hint_has_a_page_to_read() -> None:
    for key, mistake in known_misconceptions().items():
        assert mistake.read or not mistake.hints, key
    for exercise in exercises_of("day8"):
        for function in exercise.functions:
            hints = function.written_hints
            assert set(hints.pages) == set(hints.by_key), f"{exercise.stem}: {function.name}"


def test_every_mistake_has_three_hints_and_the_first_gives_nothing_away() -> None:
    assert list(hint_findings("day8", ROOT)) == []


def test_advice_is_on_mistakes_and_checks_that_there_are() -> None:
    for exercise in exercises_of("day8"):
        assert list(declaration_findings(exercise, mistakes_for("day8"))) == []


def test_advice_on_nothing_is_found() -> None:
    exercise = Exercise("01_made_up", "Made up", points=0)
    exercise.function("first")
    exercise.written_hints = {"first": FunctionHints(("Look.",), {"no_such_check": ("Look.",)})}
    told = [str(finding) for finding in declaration_findings(exercise, mistakes_for("day8"))]
    assert any(
        "has hints on 'no_such_check', no check of it and no misconception" in each for each in told
    )


def test_every_check_has_hints_of_its_own() -> None:
    for exercise in exercises_of("day8"):
        for function in exercise.functions:
            for check in function.checks:
                assert function.hints_for(check.name)


# Words of code: in backticks, with a call or an argument.
CODE = re.compile(r"`([^`]*[(=][^`]*)`")
SENTENCES = re.compile(r"(?<=[.?:!])\s+")


def sentences(text: str) -> set[str]:
    return {sentence.strip() for sentence in SENTENCES.split(" ".join(text.split()))}


def parts_of_code(code: str) -> set[str]:
    """The calls and arguments in some code, each as it stands there."""
    return set(re.findall(r"[\w.]+\([^()]*\)|\w+=\w+", code))


@pytest.mark.parametrize("key", sorted(known_misconceptions()))
def test_why_explains_and_does_not_give_the_answer(key: str) -> None:
    mistake = known_misconceptions()[key]
    if not mistake.hints:
        return
    why = " ".join(mistake.why.split())
    assert not sentences(why) & {each for hint in mistake.hints for each in sentences(hint)}
    # What the last hint tells to write, unless it is what the mistake is about.
    told = set()
    for code in CODE.findall(mistake.hints[-1]):
        told |= {code} | parts_of_code(code)
    about = f"{mistake.name} {mistake.hints[0]} {mistake.hints[1]}"
    given_away = [code for code in told if code in why and code not in about]
    assert given_away == [], f"{key}: {why}"
    # An explanation tells what happens; what is to be done is for the hints.

    begins = {sentence.split()[0] for sentence in sentences(why) if sentence}
    assert not begins & IMPERATIVES, f"{key}: {why}"


IMPERATIVES = {
    *("Add", "Ask", "Assign", "Build", "Call", "Check", "Collect", "Compare", "Compute", "Copy"),
    *("Count", "Delete", "Divide", "End", "Enter", "Give", "Go", "Keep", "Leave", "Look", "Make"),
    *("Move", "Multiply", "Pass", "Pin", "Put", "Read", "Reorder", "Replace", "Return", "Set"),
    *("Sort", "Treat", "Use", "Write", "Zero"),
}


@pytest.mark.slow
@pytest.mark.parametrize("exercise", exercises_of("day8"), ids=lambda exercise: exercise.stem)
def test_what_is_expected_is_not_what_to_write(exercise: Exercise) -> None:
    """What a failure expects is a fact, and no line of code of the hints."""
    given_away = []
    for path in sorted((WRONG / exercise.stem).glob("*.py")):
        for result in grade_once(path):
            if result.outcome is not Outcome.FAILED:
                continue
            function = next(each for each in exercise.functions if each.name == result.function)
            hints = hints_about(result, function)
            told = {code for hint in hints[2::3] for code in CODE.findall(hint)}
            if any(code in result.expected for code in told):
                given_away.append(f"{path.stem}: {result.expected}")
    assert given_away == []


LOOP = re.compile(
    r"\b(before|after|in|inside|of) the loop\b|\byour loop\b|\b(each|every) round\b", re.IGNORECASE
)


def functions_with_loops(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        function.name
        for function in functions
        if any(isinstance(node, ast.For | ast.While) for node in ast.walk(function))
    }


@pytest.mark.slow
@pytest.mark.parametrize("exercise", exercises_of("day8"), ids=lambda exercise: exercise.stem)
def test_hints_speak_of_a_loop_only_where_there_is_one(exercise: Exercise) -> None:
    in_reference = functions_with_loops(ROOT / "reference" / "day8" / f"{exercise.stem}.py")
    wrong = []
    for path in sorted((WRONG / exercise.stem).glob("*.py")):
        failed = [each for each in grade_once(path) if each.outcome is Outcome.FAILED]
        for result in failed:
            function = next(each for each in exercise.functions if each.name == result.function)
            hints = " ".join(hints_about(result, function))
            has_loop = result.function in in_reference or bool(functions_with_loops(path))
            if result.misconception == "python-loop-over-elements":  # its rounds were counted
                continue
            if LOOP.search(hints) and not has_loop:
                wrong.append(f"{path.stem} {result.check}: {result.misconception}: {hints}")
    assert wrong == []
