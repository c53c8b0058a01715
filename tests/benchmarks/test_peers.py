"""Is the comparison with other graders what it says?

The class that is made, and how each tool's results are read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from benchmarks import bench_peers
from benchmarks.peers import assignment, environments, verdicts
from benchmarks.peers.assignment import FUNCTIONS, KINDS, Submission
from benchmarks.peers.notebook_tools import nbgrader_notebook
from benchmarks.peers.tool import Graded, Tool, Verdict, claims_and_functions

RECORDED = Path(__file__).parent / "recorded"
ONE_FAILED = Verdict(False, ("falls_back_to_the_cpu",))


def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (verdicts.from_junit, "pytest.xml"),
        (verdicts.from_gradescope, "gradescope.json"),
        (verdicts.from_gradescope, "otter.json"),
        (verdicts.from_check50, "check50.json"),
    ],
)
def test_a_tools_results_are_read(read, name: str) -> None:  # type: ignore[no-untyped-def]
    assert read(recorded(name), 3) == ONE_FAILED
    missing = read(recorded(name), 25)
    assert missing.full is None
    assert missing.failed == ("falls_back_to_the_cpu", "22 tests without a result")


def test_full_marks_are_full_marks() -> None:
    text = recorded("gradescope.json").replace('"score": 0.0', '"score": 1')
    assert verdicts.from_gradescope(text, 3) == Verdict(True)
    could_not = recorded("check50.json").replace('"passed": false', '"passed": null')
    assert verdicts.from_check50(could_not, 3) == ONE_FAILED


def test_nbgraders_table_is_read_by_student_for_one_assignment() -> None:
    found = verdicts.from_nbgrader(recorded("nbgrader.csv"), "day8")
    assert found == {"student1": Verdict(False, ("23 of 25",)), "student2": Verdict(True)}


def _row(name: str, status: str, *outcomes: tuple[str, str]) -> dict[str, object]:
    checks = [
        {"id": f"x::{function}::runs", "function": function, "outcome": o}
        for function, o in outcomes
    ]
    return {"submission": name, "status": status, "exercises": [{"checks": checks}]}


def test_dojos_results_are_read_for_the_functions_of_the_assignment() -> None:
    rows = [
        _row("all", "graded", ("f", "passed"), ("g", "passed"), ("other", "to do")),
        _row("failed", "graded", ("f", "passed"), ("g", "failed")),
        _row("half", "graded", ("f", "passed")),
        _row("killed", "timed out", ("f", "passed"), ("g", "passed")),
    ]
    found = verdicts.from_dojo(json.dumps({"submissions": rows}), ("f", "g"))
    assert {name: verdict.full for name, verdict in found.items()} == {
        "all": True,
        "failed": False,
        "half": False,
        "killed": None,
    }
    assert found["failed"].failed == ("x::g::runs",)


def test_the_class_is_drawn_evenly_and_always_the_same() -> None:
    known = assignment.drawn_class(4, 9, 1, 8)
    assert known == assignment.drawn_class(4, 9, 1, 8)
    assert known != assignment.drawn_class(4, 9, 1, 9)
    kinds = [submission.kind for submission in known]
    assert (kinds.count("right"), kinds.count("to do")) == (4, 1)
    assert [kinds.count(kind) for kind in KINDS] == [3, 3, 3]
    wrong = {submission.origin for submission in known if submission.kind in KINDS}
    assert len(wrong) == 9
    assert {origin[:2] for origin in wrong} == {"01", "04", "06"}
    assert all(list(submission.files) == list(FUNCTIONS) for submission in known)


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("# fails: train_epoch::learns_as_it_should as missing-step", "values"),
        ("# fails: train_epoch::runs as targets-on-cpu", "placement"),
        ("# fails: train_epoch::moves_the_model_once as model-moved-in-loop", "placement"),
        ("# fails: select_device::runs as -", "values"),
        ("# fails: recolor::no_loop_over_pixels as python-loop-over-elements", "speed"),
    ],
)
def test_a_mistake_is_of_the_kind_its_check_is_about(header: str, kind: str) -> None:
    assert assignment.kind_of(f"{header}\n\nimport torch\n") == kind


def test_every_check_named_here_is_one_of_the_curriculum() -> None:
    from gpudojo.model.catalogue import exercises_of

    checks = {
        c.name
        for e in exercises_of("day8")
        if e.stem in FUNCTIONS
        for f in e.functions
        for c in f.checks
    }
    assert checks >= assignment.PLACEMENT | assignment.SPEED
    assert {f.name for e in exercises_of("day8") if e.stem in FUNCTIONS for f in e.functions} == {
        name for several in FUNCTIONS.values() for name in several
    }


@pytest.mark.slow
def test_the_claims_hold_for_the_references_and_not_for_mistakes_in_values(tmp_path: Path) -> None:
    from benchmarks.bench_verdicts import grade_by_plain_tests

    known = [
        s
        for s in assignment.one_of_each_solution()
        if s.name.endswith(("wrong-missing_step", "wrong-never_the_gpu"))
    ]
    graded = grade_by_plain_tests([assignment.solved_submission(), *known], tmp_path)
    assert graded.verdicts["solved"] == Verdict(True)
    assert "learns_as_it_should: AssertionError" in graded.verdicts["04-wrong-missing_step"].failed
    assert "takes_the_gpu: AssertionError" in graded.verdicts["01-wrong-never_the_gpu"].failed


def test_each_claim_is_about_a_function_of_the_assignment() -> None:
    names = {name for several in FUNCTIONS.values() for name in several}
    assert set(claims_and_functions().values()) == names


def test_nbgraders_notebook_has_the_answers_and_a_locked_cell_for_each_claim() -> None:
    notebook = nbgrader_notebook(assignment.solved_submission().files)
    nbformat.validate(notebook)
    marks = [cell["metadata"]["nbgrader"] for cell in notebook["cells"]]
    assert [m["grade_id"] for m in marks if m["solution"]] == [
        assignment.cell_of(stem) for stem in FUNCTIONS
    ]
    tests = [m for m in marks if m["grade"]]
    assert len(tests) == len(claims_and_functions())
    assert all(m["locked"] and m["points"] == 1 for m in tests)


def _class() -> list[Submission]:
    return [
        Submission(kind, kind, f"{kind}/x", {})
        for kind in ("right", "values", "placement", "to do")
    ]


def test_the_table_counts_verdicts_and_says_why_a_tool_is_not_there() -> None:
    known = _class()
    best = Graded(4.0, 2.0, 100 << 20, {s.name: Verdict(s.kind == "right") for s in known})
    worse = Graded(8.0, 6.0, 200 << 20, {s.name: Verdict(s.kind != "values") for s in known})
    names = [tool.name for tool in bench_peers.TOOLS]
    measured = {names[0]: best, names[1]: best, names[2]: worse}
    absent = dict.fromkeys(names[3:], "cannot be installed")
    made = bench_peers.comparison_table(known, measured, absent, rounds=2, others=len(known))
    rows = {row[0]: row[1:] for row in made.rows}
    assert rows[names[0]][:-1] == (
        "0.50",
        "1.00 ×",
        "0.25",
        "1.00 ×",
        "100",
        "1 of 1",
        "1 of 1",
        "1 of 1",
        "–",
    )
    assert rows[names[2]][:-1] == (
        "2.00",
        "4.00 ×",
        "1.50",
        "6.00 ×",
        "200",
        "1 of 1",
        "1 of 1",
        "0 of 1",
        "–",
    )
    assert rows[names[3]][-1] == "cannot be installed"
    assert f"full marks from {names[2]}." in made.notes[-1]
    assert bench_peers.describe_disagreements(known, worse) == [
        "placement (placement: placement/x) got full marks",
        "to do (to do: to do/x) got full marks",
    ]


def test_parts_of_a_class_are_all_of_it() -> None:
    known = assignment.drawn_class(2, 3, 0, 8)
    divided = bench_peers.split_class(known, 2)
    assert sorted(s.name for part in divided for s in part) == sorted(s.name for s in known)


def test_why_a_peer_is_missing_is_said_in_its_own_words(tmp_path: Path) -> None:
    assert "--make-environments" in str(environments.reason_of_absence(None, "check50"))
    assert "check50" in str(environments.reason_of_absence(tmp_path, "check50"))
    (tmp_path / environments.REASONS).write_text(
        '{"check50": "No matching distribution"}', encoding="utf-8"
    )
    assert environments.reason_of_absence(tmp_path, "check50") == "No matching distribution"
    (tmp_path / "check50").mkdir()
    (tmp_path / "check50" / "made").touch()
    assert environments.reason_of_absence(tmp_path, "check50") is None


def test_a_harness_that_fails_the_reference_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Tool):
        name = package = "broken"

        def grade(self, given):  # type: ignore[no-untyped-def]
            return Graded(
                verdicts={s.name: Verdict(None, ("25 tests without a result",)) for s in given}
            )

    monkeypatch.setattr(environments, "reason_of_absence", lambda *_: None)
    with pytest.raises(
        RuntimeError, match="the reference no full marks here: 25 tests without a result"
    ):
        bench_peers._ready_tool(Broken, tmp_path / "place", tmp_path, [])


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_command_is_measured_with_all_that_it_starts(tmp_path: Path) -> None:
    from benchmarks.measuring import measure_command

    # A grandchild that outlives its parent: its processor time and its memory count as well.
    work = (
        "import time\n"
        "held = bytearray(64 << 20)\n"
        "while time.process_time() < 0.6: pass\n"
        "print('done', flush=True)"
    )
    code = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {work!r}])\nsys.exit(3)"
    )
    run = measure_command([sys.executable, "-c", code], tmp_path, {})
    assert run.code == 3
    assert run.cpu > 0.5
    assert run.peak > 60 << 20
    assert "done" in run.output


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    from benchmarks.measuring import measure_command

    with pytest.raises(RuntimeError, match="could not be started"):
        measure_command([str(tmp_path / "nothing")], tmp_path, {})


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_command_that_takes_too_long_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    from benchmarks.measuring import measure_command

    sleeping = (
        "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); "
        "time.sleep(100)"
    )
    code = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {sleeping!r}], start_new_session=True)"
    )
    with pytest.raises(RuntimeError, match="took longer than 2 seconds"):
        measure_command([sys.executable, "-c", code], tmp_path, {}, limit=2)
    assert not Path("/proc", (tmp_path / "pid").read_text(encoding="ascii")).exists()


def test_what_students_type_is_what_is_timed(tmp_path: Path) -> None:
    from benchmarks import bench_student

    bench_student.copy_exercises(tmp_path)
    one_file = bench_student.Way("", "solved", file="04_modifying_training_loop_gpu.py")
    target = Path(bench_student.pytest_command(tmp_path, one_file)[-1])
    assert target.is_file()
    assert "BEGIN SOLUTION" in target.read_text(encoding="utf-8")
    chosen = bench_student.Way("", "stubs", ("-k", "x"))
    assert bench_student.pytest_command(tmp_path, chosen)[-3:-1] == ["-k", "x"]
    waits = {way.title: [bench_student.Wait(2.0, 1.0)] for way in bench_student.WAYS}
    waits = {bench_student.IMPORT: [bench_student.Wait(1.0, 0.5)], **waits}
    table = bench_student.table_of_waits(waits)
    assert {row[1:] for row in table.rows[1:]} == {("2.00", "2.00 ×", "1.00", "2.00 ×")}
    command = [sys.executable, "-c", "raise SystemExit(2)"]
    environment = bench_student.student_environment(tmp_path)
    with pytest.raises(SystemExit, match="ended with 2"):
        bench_student.time_command(command, tmp_path, environment, failures_allowed=True)


def test_the_files_that_run_elsewhere_import_nothing_of_gpudojo() -> None:
    folder = Path(assignment.__file__).parent
    for path in (folder / "student.py", *folder.glob("claims*.py")):
        source = path.read_text(encoding="utf-8")
        assert "graders" not in source, path.name
        assert "benchmarks" not in source, path.name
        assert (
            subprocess.run([sys.executable, "-m", "py_compile", str(path)], check=False).returncode
            == 0
        )
