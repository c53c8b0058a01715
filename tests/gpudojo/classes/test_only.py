"""`--only` takes functions and exercises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.classes.store import Store
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass
from gpudojo.model.results_file import read

from tests.gpudojo.classes.test_gradebook import RIGHT, SECOND, WRONG, dojo, grade, hand_in
from tests.gpudojo.classes.test_grading import REFERENCE

pytestmark = pytest.mark.usefixtures("loaded_fork_servers")

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


COUNTED = "[exercises]\n'01' = 6\n'12' = 4\n"
OF_COURSE: dict[str, Any] = {"only": frozenset(), "asked": frozenset()}
BY_ONLY: dict[str, Any] = {"only": frozenset({"12"}), "asked": frozenset()}


@pytest.fixture
def graded(tmp_path: Path) -> Path:
    """Two students, graded for the two exercises of a course."""
    answers = (REFERENCE / SECOND).read_text(encoding="utf-8")
    for name, text in (("ada", RIGHT), ("bo", WRONG)):
        hand_in(tmp_path / "class" / name, text)
        hand_in(tmp_path / "class" / name, answers, SECOND)
    (tmp_path / "class" / "course.toml").write_text(COUNTED, encoding="utf-8")
    grade(tmp_path / "out", tmp_path / "class", **OF_COURSE)
    return tmp_path


def test_in_a_graded_class_only_keeps_the_rest(graded: Path) -> None:
    """All that was given, a part of it, or nothing: marks, their maximum and the table stay."""
    _, before, _ = grade(graded / "out", graded / "class", **OF_COURSE)
    for given in ((graded / "class",), (graded / "class" / "ada",), ()):
        again, rows, results = grade(graded / "out", *given, **BY_ONLY)
        assert (again.ran, again.changes, again.tally.changed_by_rules) == (0, [], [])
        assert [row.final for row in rows.values()] == [row.final for row in before.values()]
        assert (results.max_score, results.chosen, results.unusual_rules) == (10, [], [])


def test_a_new_submission_runs_for_all_that_counts(graded: Path) -> None:
    hand_in(graded / "late" / "cy", RIGHT)
    new, rows, _ = grade(graded / "out", graded / "late", **BY_ONLY)
    assert (new.ran, rows["cy"].score, rows["cy"].max_score) == (1, 6, 10)


def test_only_and_fresh_run_it_again_and_keep_the_rest(graded: Path) -> None:
    store = Store(graded / "out")
    (key,) = {
        row.record for row in read(graded / "out" / "results.json").submissions if row.score == 10
    }
    before = store.load_record(key)
    again, rows, _ = grade(graded / "out", graded / "class", fresh=True, **BY_ONLY)
    after = store.load_record(key)
    assert (again.ran, again.changes) == (2, [])
    assert [row.score for row in rows.values()] == [10, 4]
    assert before is not None
    assert after is not None
    assert (before.asked, len(before.places)) == (after.asked, len(after.places))
    unchanged = [name for name in before.seen if before.seen[name] == after.seen[name]]
    assert "01_checking_device::select_device" in unchanged


def test_what_only_chose_first_is_told_everywhere(graded: Path) -> None:
    out = graded / "new"
    _, rows, results = grade(out, graded / "class", **BY_ONLY)
    assert [row.max_score for row in rows.values()] == [4, 4]
    (told,) = results.unusual_rules
    assert told.startswith("Of the exercises, only 12_self_assessment counts, as --only chose")
    said = dojo("grade", "--out", out, "--only", "12", "--course", graded / "class/course.toml")
    for text in (
        said,
        dojo("status", out),
        dojo("export", out, "--to", "gradescope", "--out", graded / "gs"),
    ):
        assert told in " ".join(text.split())
    dojo("report", out)
    assert told.split(";")[0] in (out / "report" / "index.html").read_text(encoding="utf-8")


def test_what_only_chose_grows_and_its_marks_are_told(graded: Path) -> None:
    """Another exercise is added to the first, and a run without --only lets all of them count."""
    out = graded / "new"
    (graded / "class" / "course.toml").write_text(f"{COUNTED}'02' = 5\n", encoding="utf-8")
    grade(out, graded / "class", **BY_ONLY)
    more, _, results = grade(out, only=frozenset({"select_device"}), asked=frozenset())
    assert results.chosen == ["01_checking_device", "12_self_assessment"]
    assert more.tally.changed_by_rules == ["bo: 4 of 4 → 4 of 10"]
    assert [str(change) for change in more.changes] == ["ada: 4 → 10"]
    _, _, results = grade(out, **OF_COURSE)
    assert results.chosen == []


def test_what_counts_does_not_change_for_a_part_of_the_class(graded: Path) -> None:
    out = graded / "new"
    grade(out, graded / "class", **BY_ONLY)
    for other in (OF_COURSE, {**OF_COURSE, "only": frozenset({"01"})}):
        with pytest.raises(BadClass, match="graded with --only ANSWERS; give it again, grade all"):
            grade(out, graded / "class" / "ada", **other)


def test_an_exercise_that_does_not_count_is_refused(graded: Path) -> None:
    for out in ("out", "new"):
        with pytest.raises(BadClass, match=r"02_moving_model_to_device does not count in .*toml"):
            grade(graded / out, graded / "class", only=frozenset({"02"}), asked=frozenset())
    with pytest.raises(BadClass, match="has no function or exercise train_epohc"):
        grade(graded / "out", graded / "class", only=frozenset({"train_epohc"}))
