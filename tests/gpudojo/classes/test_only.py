"""`--only` takes functions and exercises."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass

FOURTH = "04_modifying_training_loop_gpu"


@pytest.mark.parametrize("name", ["04", "4", FOURTH, f"{FOURTH}.py", "train_epoch"])
def test_an_exercise_stands_for_its_functions(name: str) -> None:
    assert GradingOptions.functions_meant_by([name], exercises_of("day8")) == {"train_epoch"}
    both = GradingOptions.functions_meant_by([name, "select_device"], exercises_of("day8"))
    assert both == {"train_epoch", "select_device"}


def test_another_name_is_refused_with_a_suggestion() -> None:
    options = GradingOptions(
        submissions=[Path()], out=Path(), day="day8", only=frozenset({"04_modifying_training_loop"})
    )
    with pytest.raises(
        BadClass, match=f"has no function or exercise 04_modifying_training_loop.*{FOURTH}"
    ):
        options.graded_functions(exercises_of("day8"))
