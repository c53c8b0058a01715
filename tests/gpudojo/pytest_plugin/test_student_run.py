"""`pytest exercises/day8` as students run it: output, exit status, selection of checks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpudojo.model.time_outs import describe_time_out, still_running_after

from tests.gpudojo.pytest_plugin.conftest import REPOSITORY, Student

DEVICE = "01_checking_device.py"
TRAIN = "04_modifying_training_loop_gpu.py"
DAY = REPOSITORY / "tests" / "day8"
WRONG = (DAY / "wrong" / "04_modifying_training_loop_gpu" / "mean_of_batch_means.py").read_text(
    encoding="utf-8"
)


def half_done(student: Student) -> None:
    """01 right, 04 wrong in one check."""
    shutil.copy(REPOSITORY / "reference" / "day8" / DEVICE, student.write(f"day8/{DEVICE}", ""))
    student.write(f"day8/{TRAIN}", "print('hello from the file')\n" + WRONG)


def test_half_done_work_and_what_to_do_next(student: Student) -> None:
    half_done(student)
    done = student.pytest("day8", "--hints", "2", "-v")
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert "device: virtual (no GPU here, so the virtual CUDA device), seed 8" in said
    assert f"day8/{TRAIN}::train_epoch::learns_as_it_should PASSED" in said
    assert f"day8/{TRAIN}::train_epoch::returns_the_mean_loss_per_sample FAILED" in said
    for part in (
        "happened  it returned",
        "expected  ",
        "line      day8/04_",
        "mistake   mean of batch means",
        "why  ",
    ):
        assert part in said
    assert "  hint 2    " in said
    assert "(hint 2 of 3; one more with --hints 3)" in said
    assert "hello from the file" in said, "what is printed is shown where a check fails"
    assert "01_checking_device              ████████████████████      8 of 8     done" in said
    assert "   12.5 of 14    1 failed" in said
    assert f"pytest day8/{TRAIN}::train_epoch\n" in said
    again = student.pytest("--lf", "-q")
    assert again.returncode == 1
    assert "1 failed" in again.stdout
    assert "passed" not in again.stdout.splitlines()[-1]


def test_checks_keep_their_order_where_tests_are_shuffled(student: Student) -> None:
    half_done(student)
    student.write("day8/test_own.py", "def test_a(): pass\ndef test_b(): pass\n")
    *plain, _, _ = student.pytest("--collect-only", "-q").stdout.splitlines()
    hook = "\ndef pytest_collection_modifyitems(items):\n    items.reverse()\n    del items[0]\n"
    student.write(
        "conftest.py", (student.folder / "conftest.py").read_text(encoding="utf-8") + hook
    )
    *shuffled, _, _ = student.pytest("--collect-only", "-q").stdout.splitlines()
    checks = [each for each in plain if "::test_" not in each]
    assert shuffled == ["day8/test_own.py::test_a", *checks]


def test_stubs_are_to_do_and_stop_a_run_with_x(student: Student) -> None:
    for name in (DEVICE, TRAIN):
        shutil.copy(REPOSITORY / "exercises" / "day8" / name, student.write(f"day8/{name}", ""))
    done = student.pytest("-v", f"day8/{DEVICE}", f"day8/{TRAIN}::train_epoch::runs")
    assert done.returncode == 1
    assert "select_device::runs TO DO" in done.stdout
    assert "10 to do in" in done.stdout
    assert "FAILURES" not in done.stdout
    assert "next: write `select_device`" in done.stdout
    stopped = student.pytest("-x", "day8", "-k", "train_epoch")
    assert stopped.returncode == 1
    assert "9 deselected, 1 to do" in stopped.stdout
    assert "1 to do, 10 not run" in stopped.stdout


def test_a_right_solution_exits_with_0(student: Student) -> None:
    shutil.copy(REPOSITORY / "reference" / "day8" / DEVICE, student.write(f"day8/{DEVICE}", ""))
    student.write("pytest.ini", "[pytest]\ndojo_points_note = The course counts others.\n")
    done = student.pytest("day8", "--bench", "cpu", "--seed", "11")
    assert done.returncode == 0, done.stdout
    assert "device: cpu (the plain CPU was asked for), seed 11" in done.stdout
    assert "Everything passes. Well done!" in done.stdout
    assert re.search(r"^01_checking_device .* 8 of 8 +done$", done.stdout, re.M), done.stdout
    assert "8 of 8\nThe course counts others.\n" in done.stdout


def test_a_missing_device_ends_the_run_with_a_message(student: Student) -> None:
    half_done(student)
    done = student.pytest("day8", "--bench", "cuda")
    assert done.returncode == 4
    assert (
        "--bench cuda: this machine has no 'cuda' device that torch can use"
        in done.stderr + done.stdout
    )
    assert "Traceback" not in done.stderr + done.stdout


def test_collecting_does_not_import_torch() -> None:
    question = (
        "import sys, pytest; plugins = ['-p', 'pytest_timeout', '-p', 'gpudojo.pytest_plugin'];"
        "code = pytest.main(['--collect-only', '-q', 'exercises/day8', *plugins]);"
        "print('ended', int(code), sorted({'torch', 'numpy', 'nbformat', 'rich', 'jinja2'} & "
        "set(sys.modules)))"
    )
    # Only the two plugins asked for: where gpudojo is installed pytest would load ours a second
    # time.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", question]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=alone, capture_output=True, text=True, timeout=300
    )
    assert "ended 0 []" in done.stdout, done.stdout + done.stderr
    assert f"exercises/day8/{TRAIN}::train_epoch::learns_as_it_should" in done.stdout


SPY = """
import sys
def pytest_unconfigure():
    print("loaded", *sys.modules)
"""
# What takes long to import, and what a student's run does not need of ours.
UNNEEDED = (
    *(
        "torch._dynamo",
        "torch._inductor",
        "torch.distributed.tensor",
        "torch.onnx",
        "torch.fx.experimental.symbolic_shapes",
    ),
    *(
        "sympy",
        "networkx",
        "gpudojo.sandbox",
        "gpudojo.submissions",
        "gpudojo.classes",
        "gpudojo.report",
    ),
    *("gpudojo.notebook", "gpudojo.cli", "gpudojo.watch", "gpudojo.authoring", "gpudojo.release"),
)


def test_a_run_imports_little_more_than_torch_and_runs_the_reference_once(
    student: Student, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOJO_CACHE", str(tmp_path / "cache"))
    shutil.copy(REPOSITORY / "reference" / "day8" / TRAIN, student.write(f"day8/{TRAIN}", ""))
    solution = tmp_path / "reference" / "day8" / TRAIN
    solution.parent.mkdir(parents=True)
    source = (REPOSITORY / "reference" / "day8" / TRAIN).read_text(encoding="utf-8")
    solution.write_text(source + "\nprint('the reference was loaded')\n", encoding="utf-8")
    student.write("day8/conftest.py", SPY)
    for first in (True, False):
        done = student.pytest("day8", "-s")
        assert done.returncode == 0, done.stdout + done.stderr
        (modules,) = re.findall(r"^loaded (.*)$", done.stdout, re.M)
        loaded = [
            name
            for name in UNNEEDED
            for module in modules.split()
            if f"{module}.".startswith(f"{name}.")
        ]
        assert "torch" in modules.split()
        assert loaded == []
        assert ("the reference was loaded" in done.stdout) is first


def test_a_breakpoint_stops_in_the_students_code_and_quitting_ends_the_run(
    student: Student,
) -> None:
    student.write(
        f"day8/{DEVICE}", "def select_device(prefer=None):\n    mine = 41\n    breakpoint()\n"
    )
    done = student.pytest("day8", "--timeout=20", stdin="p mine + 1\nq\n")
    assert "42" in done.stdout.split()
    assert "Quitting debugger" in done.stdout
    assert done.returncode == 2


def test_time_in_the_debugger_does_not_count(student: Student) -> None:
    """The user looks around for longer than the limit; the verdict is that of the code."""
    right = (REPOSITORY / "reference" / "day8" / DEVICE).read_text(encoding="utf-8")
    head, body = right.split("    # BEGIN SOLUTION\n", 1)
    student.write(f"day8/{DEVICE}", f"{head}    breakpoint()\n{body}")
    commands = "import time; time.sleep(4)\nc\n" + 100 * "c\n"
    for method in ("signal", "thread"):
        done = student.pytest("day8", "--timeout=3", f"--timeout-method={method}", stdin=commands)
        assert "8 of 8     done" in done.stdout


def test_leaving_the_debugger_ends_the_run_wherever_it_stops(student: Student) -> None:
    """Also in a scenario of several, and where student code catches every error."""
    student.write(
        f"day8/{DEVICE}",
        "def select_device(prefer=None):\n    try:\n        breakpoint()\n"
        "    except Exception:\n        pass\n",
    )
    done = student.pytest("day8", stdin="p 40 + 2\nq\n")
    assert done.stdout.count("(Pdb)") == 2
    assert "42" in done.stdout.split()
    assert "Quitting debugger" in done.stdout
    assert done.returncode == 2


def test_a_timeout_by_thread_is_a_failed_check(student: Student) -> None:
    student.write(
        f"day8/{DEVICE}", "def select_device(prefer=None):\n    while True:\n        pass\n"
    )
    done = student.pytest("day8", "--timeout=1", "--timeout-method=thread")
    assert "1 failed, 8 blocked" in done.stdout
    assert describe_time_out("select_device", still_running_after(1), "one_gpu") in done.stdout
    assert "Which loop was running, and what ends it?" in done.stdout


def test_a_notebook_is_graded_like_a_file(student: Student) -> None:
    right = (
        (REPOSITORY / "reference" / "day8" / DEVICE)
        .read_text(encoding="utf-8")
        .partition("if __name__")[0]
    )
    student.notebook(
        "alice/day8.ipynb",
        "%matplotlib inline\n!pip install torch\nimport torch\nfiles = !ls",
        "def select_device(prefer=None):\n    raise NotImplementedError",
        right,
        "1 / 0",
        "%%bash\necho 'not python",
        (
            "def train_epoch(model, loader, loss_fn, optimizer, device):\n"
            "    model.to(device)\n"
            "    return oops"
        ),
        "this is no python",
    )
    student.notebook("other/talk.ipynb", "def evaluate(x):\n    return x")
    done = student.pytest(".", "-v")
    assert "talk.ipynb" not in done.stdout, "a notebook of something else is left alone"
    assert "day8.ipynb::select_device::replaces_what_is_absent PASSED" in done.stdout
    assert "1 failed, 9 passed, 10 blocked" in done.stdout
    assert "alice/day8.ipynb, code cell 6, line 3" in done.stdout
    assert "3 | return oops" in done.stdout
    assert (
        "code cell 7, line 1 stopped with SyntaxError" in done.stdout
        or "code cell 4, line 1" in done.stdout
    )


def test_a_broken_notebook_gets_a_message(student: Student) -> None:
    student.write(f"bob/{Path(DEVICE).stem}.ipynb", "{ not json")
    done = student.pytest("bob")
    assert done.returncode == 1
    assert "1 failed, 8 blocked" in done.stdout
    assert "it is not a notebook" in done.stdout


def test_an_error_of_the_author_s_is_told_as_such_and_never_as_a_success(student: Student) -> None:
    """A probe that raises, for the reference too: five errors ended in "Everything passes.

    Well done!".
    """
    shutil.copy(REPOSITORY / "reference" / "day8" / DEVICE, student.write(f"day8/{DEVICE}", ""))
    student.write(
        "broken_exercise.py",
        "from gpudojo.days.day8 import checking_device\n"
        "from gpudojo.model.exercise import Probe\n\n"
        "def look(call):\n"
        "    return call.no_such_attribute\n\n"
        "function = checking_device.exercise.functions[0]\n"
        "function.probes[0] = Probe(function.probes[0].name, look, function.probes[0].machine)\n",
    )
    done = student.pytest(
        "-p", "broken_exercise", "day8", "-v", "-p", "no:cacheprovider", "--rootdir", "."
    )
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert "Everything passes" not in said
    assert "::select_device::runs ERROR" in said
    assert re.search(
        r"^\d checks could not be judged: an error in the exercise, not in your code\.", said, re.M
    ), said
    assert (
        "AttributeError: 'Call' object has no attribute 'no_such_attribute' (raised at "
        "broken_exercise.py:5)"
    ) in said
    assert re.search(r"^01_checking_device .* 8 of 8 +\d error$", said, re.M), said


FORGETFUL = (
    "def train_epoch(model, loader, optimizer, loss_fn, device):\n"
    "    return model.to(device)(next(iter(loader))[0])\n"
)


@pytest.mark.parametrize("columns", [60, 80])
def test_the_width_of_the_terminal_is_kept_and_what_is_blocked_is_named(
    student: Student, columns: int
) -> None:
    student.write(f"day8/{TRAIN}", FORGETFUL)
    said = student.pytest(f"day8/{TRAIN}", columns=columns).stdout
    assert "short test summary" not in said, "it would say all of this once more"
    ours = said[said.index("train_epoch: runs") : said.index("1 failed, 10 blocked")].splitlines()
    assert [
        line
        for line in ours
        if len(line) > columns and not re.search("pytest day8/|https://", line)
    ] == []
    assert "1 failed, 10 blocked" in said
    assert "  worth " not in said, "`runs` has no points of its own"
    assert ("░" * 10 in said, "░" * 11 in said) == (columns == 80, False), (
        "whatever the names and states are"
    )
    told = " ".join(said[said.index("  blocks    ") :].split())
    assert told.startswith(
        "blocks calls_the_model, moves_the_model_once, uses_the_device_it_is_given,"
    )
    assert said.count("moves_the_model_once") == 1


def test_missing_and_renamed_files_are_named_and_count(student: Student) -> None:
    for path in (REPOSITORY / "exercises" / "day8").glob("*.py"):
        shutil.copy(path, student.write(f"day8/{path.name}", ""))
    (student.folder / "day8" / "11_multiple_gpus.py").unlink()
    (student.folder / "day8" / TRAIN).rename(student.folder / "day8" / "04_training.py")
    said = " ".join(student.pytest("day8").stdout.split())
    assert "04_modifying_training_loop_gpu ░░░░░░░░░░░░░░░░░░░░ 0 of 14 missing 05_" in said
    assert (
        "total 0 of 100 note: 04_modifying_training_loop_gpu.py is missing in day8. Is "
        "04_training.py"
    ) in said
    assert "note: 11_multiple_gpus.py is missing in day8" in said
    chosen = student.pytest("day8", "-k", "select_device").stdout
    assert "is missing" not in chosen, "who chooses does not run the whole day"


def test_a_few_files_of_a_day_are_not_taken_for_all_of_it(student: Student) -> None:
    shutil.copy(REPOSITORY / "exercises" / "day8" / DEVICE, student.write(f"day8/{DEVICE}", ""))
    said = student.pytest("day8").stdout
    assert re.search(r"^total +0 of 8$", said, re.M)
    assert "is missing" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_shows_the_line_that_was_running(student: Student) -> None:
    body = "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\n"
    student.write(
        f"day8/{DEVICE}", f"import os, signal, time\ndef select_device(prefer=None):\n{body}"
    )
    done = student.pytest("day8")
    assert done.returncode == 2
    assert (
        f"interrupted at day8/{DEVICE}:3\n   3 | os.kill(os.getpid(), signal.SIGINT)" in done.stdout
    )


def test_all_scenarios_share_the_time_as_in_a_class(student: Student) -> None:
    body = "    time.sleep(0.4)\n    return torch.device(prefer or 'cpu')\n"
    student.write(f"day8/{DEVICE}", f"import time, torch\ndef select_device(prefer=None):\n{body}")
    done = student.pytest("day8", "--timeout", "1")
    assert describe_time_out("select_device", still_running_after(1)) in done.stdout


def test_a_bare_pytest_in_this_repository_says_what_it_runs(student: Student) -> None:
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, student.folder / name)
    (student.folder / "pytest.ini").unlink()
    student.write("tests/test_one.py", "def test_one(): pass\n")
    options = ("-c", "pyproject.toml", "-p", "no:warnings", "-o", "filterwarnings=")
    done = student.pytest(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "the project's own tests, faster with -n auto; the exercises: pytest exercises/day8"
        in done.stdout
    )
    assert "own tests" not in student.pytest(*options, "tests/test_one.py").stdout
    student.write("hide.py", "import sys\nsys.modules['hypothesis'] = None\n")
    lacking = student.pytest(*options, "-p", "hide")
    assert lacking.returncode == 4
    assert (
        "which need hypothesis: pip install -e '.[dev]' (the exercises: pytest exercises/day8)"
        in lacking.stderr
    )
