"""What does grading a class cost?

`python -m benchmarks.bench_class` prints one table of ratios from one run.

A class of made-up students (`dojo sample`) is graded by `dojo grade` with one job for each core,
and some of its submissions by a fresh `pytest` each, one after another, as an instructor without
gpudojo's grader would. Submissions for both are interleaved in time. The bare calls are the
students' own functions, called in every scenario in one warm process, with nobody looking: no
fences, no evidence, no verdict; what counts is processor time inside the functions, so that those
which sleep count little. The processor time of a child, the process that a submission runs in, is
that of the same submissions in the graded class.

`dojo grade --rejudge` is timed twice: with nothing changed, and after a check of one exercise was
edited (in a copy of the grader).
"""

from __future__ import annotations

import ast
import compileall
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpudojo.authoring import sample_class
from gpudojo.classes.store import Store

from benchmarks.commands import ROOT, dojo_command, grade_command
from benchmarks.tables import Table, benchmark_parser, core_count, format_ratio

SEED = "benchmark"


def time_dojo(*words: object, code: Path = ROOT / "graders") -> float:
    """Seconds a `dojo` command takes, its own start included."""
    command = dojo_command(*words)
    environment = os.environ | {"PYTHONPATH": str(code)}
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def time_grading(
    folder: Path, out: Path, jobs: int, *more: str, code: Path = ROOT / "graders"
) -> float:
    words = ("grade", folder, "--out", out, "--seed", SEED, "--jobs", jobs, *more)
    return time_dojo(*words, code=code)


def copy_with_edited_check(copy: Path, module: str = "modifying_training_loop_gpu") -> Path:
    """A copy of the grader in which the code of a check is longer by a line that does nothing."""
    shutil.copytree(ROOT / "graders", copy)
    path = copy / "gpudojo" / "days" / "day8" / f"{module}.py"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    functions = [
        node for node in ast.parse("".join(lines)).body if isinstance(node, ast.FunctionDef)
    ]
    checks = (
        node
        for node in functions
        if any(".check(" in ast.unparse(each) for each in node.decorator_list)
    )
    lines.insert(next(checks).body[0].end_lineno or 0, "    pass\n")  # after its docstring
    path.write_text("".join(lines), encoding="utf-8")
    compileall.compile_dir(copy, quiet=1)
    return copy


def seconds_to_first_result(folder: Path, out: Path, jobs: int) -> float:
    """Seconds from the start of `dojo grade` in a new folder until the first verdict is on disk."""
    command = dojo_command("grade", folder, "--out", out, "--jobs", jobs, "-q")
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT)
    while process.poll() is None and not any((out / ".dojo" / "rows").glob("*/*.json")):
        time.sleep(0.005)
    took = time.perf_counter() - began
    if process.wait():
        raise SystemExit(f"{command} ended with {process.returncode}")
    return took


def compare_starts(folder: Path, base: Path, jobs: int, rounds: int) -> tuple[float, float]:
    """Seconds until the first verdict, and those of `import torch`: medians of rounds in turns."""
    found = []
    imports = []
    for number in range(rounds):
        found.append(seconds_to_first_result(folder, base / f"start-{number}", jobs))
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        imports.append(time.perf_counter() - began)
    return statistics.median(found), statistics.median(imports)


def time_fresh_pytest(submission: Path) -> float:
    """Seconds one submission takes as a student would run it."""
    installed = any(
        entry.name == "gpudojo" for entry in importlib.metadata.entry_points(group="pytest11")
    )
    plugin = [] if installed else ["-p", "gpudojo.pytest_plugin"]
    began = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", str(submission)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if " passed" not in run.stdout and " failed" not in run.stdout:
        raise SystemExit(f"pytest did not run:\n{run.stdout[-2000:]}")
    return time.perf_counter() - began


def processor_seconds_of_children(out: Path, results: dict[str, Any], names: set[str]) -> float:
    """Seconds of processor time that the child of each of these submissions took."""
    store = Store(out)
    rows = [row for row in results["submissions"] if row["submission"] in names]
    records = [store.load_record(row["record"]) for row in rows]
    spent = [record.cpu_seconds for record in records if record is not None]
    if len(spent) != len(names):
        raise SystemExit(f"{len(spent)} of {len(names)} records were found")
    return sum(spent) / len(spent)


def processor_seconds_of_calls(folders: list[Path]) -> float:
    """Seconds of processor time inside the students' functions, per submission, in one warm
    process.
    """
    code = f"""
import sys, time, json, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {str(ROOT)!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from gpudojo.model.catalogue import exercises_of
from gpudojo.grading import call as calling
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.sandbox.warm_up import warm_up
warm_up()
spent = 0.0
original = calling.Call.__call__
def timed(self, *args, **kwargs):
    global spent
    began = time.process_time()
    try:
        return original(self, *args, **kwargs)
    finally:
        spent += time.process_time() - began
calling.Call.__call__ = timed
found = []
for folder in {[str(f) for f in folders]!r}:
    for turn in range(2):
        spent = 0.0
        for exercise in exercises_of("day8"):
            submission = load_submission(Path(folder) / f"{{exercise.stem}}.py")
            for function in exercise.functions:
                observe_function(exercise, function, submission, "virtual", 8)
    found.append(spent)
print(json.dumps(found))
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    times = json.loads(run.stdout.splitlines()[-1])
    return float(sum(times) / len(times))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--students", type=int, default=100, help="how many are graded (100)")
    parser.add_argument(
        "--fresh", type=int, default=8, help="how many are also run by a fresh pytest (8)"
    )
    parser.add_argument(
        "--calls", type=int, default=24, help="of how many the students' own calls are timed (24)"
    )
    parser.add_argument(
        "--jobs", type=int, default=core_count(), help="how many at once (one for each core)"
    )
    parser.add_argument(
        "--grow",
        type=int,
        default=0,
        help="also grade so many, to see whether cost and memory grow",
    )
    parser.add_argument("--starts", type=int, default=5, help="how often the start is timed (5)")
    asked = parser.parse_args()
    compileall.compile_dir(ROOT / "graders", quiet=1)  # as an installation does
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        known = sample_class.read_corpus(ROOT, "day8")
        folder = base / "class"
        folder.mkdir()
        plain = []
        for made in sample_class.sample_submissions(known, asked.students, 8, hostile=0.0):
            target = sample_class.hand_in(made, folder)
            if target.is_dir():
                plain.append(target)
        out = base / "out"
        # The start of the grader and the reference's own run, which a class pays once, are in its
        # time.
        pytests = []
        half = asked.fresh // 2
        for submission in plain[:half]:
            pytests.append(time_fresh_pytest(submission))
        class_seconds = time_grading(folder, out, asked.jobs)
        for submission in plain[half : asked.fresh]:
            pytests.append(time_fresh_pytest(submission))
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        statuses = [row["status"] for row in results["submissions"]]
        called = plain[: asked.calls]
        child_seconds = processor_seconds_of_children(
            out, results, {folder.name for folder in called}
        )
        rejudge = time_grading(folder, out, asked.jobs, "--rejudge")
        changed = time_grading(
            folder, out, asked.jobs, "--rejudge", code=copy_with_edited_check(base / "graders")
        )
        bare_seconds = processor_seconds_of_calls(called)
        first, importing = compare_starts(plain[0], base, asked.jobs, asked.starts)
        each = class_seconds / asked.students
        one = sum(pytests) / len(pytests)
        busy = each * asked.jobs
        table = Table(
            f"A class of {asked.students}, {asked.jobs} jobs",
            ("what", "seconds a submission", "ratio", "wanted"),
        )
        table.add(f"a fresh pytest each ({len(pytests)} of them)", f"{one:.2f}", "1 ×", "")
        table.add(
            "dojo grade, its start included",
            f"{each:.3f}",
            f"{format_ratio(one / each)} the throughput",
            "20 ×",
        )
        table.add(
            f"the own calls of {len(called)} students in a warm process",
            f"{bare_seconds:.3f}",
            "1 ×",
            "",
        )
        of_calls = f"{format_ratio(child_seconds / bare_seconds)} those calls"
        table.add("their children, processor time", f"{child_seconds:.3f}", of_calls, "≤ 1.7 ×")
        of_calls = f"{format_ratio(busy / bare_seconds)} those calls"
        table.add("dojo grade, time of all cores, its start included", f"{busy:.3f}", of_calls, "")
        for what, seconds, wanted in (
            ("dojo grade --rejudge", rejudge, "60 ×"),
            ("… after a check of one exercise was edited", changed, ""),
        ):
            again = seconds / asked.students
            table.add(
                what, f"{again:.4f}", f"{format_ratio(each / again)} faster than grading", wanted
            )
        table.add("import torch", f"{importing:.2f}", "1 ×", "")
        table.add(
            "start of dojo grade until the first result",
            f"{first:.2f}",
            format_ratio(first / importing),
            "≤ 1.5 ×",
        )
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
        table.notes = [f"Of {len(statuses)} submissions: {counts}."]
        if asked.grow:
            table.notes += grade_larger_class(base, known, asked.jobs, asked.students, asked.grow)
        table.show(asked.markdown)


def grade_larger_class(
    base: Path, known: sample_class.Corpus, jobs: int, students: int, more: int
) -> list[str]:
    """The same with many more: cost of each, and the largest the grader has been, in a sentence
    each.
    """
    found = []
    folder = base / "larger"
    folder.mkdir()
    for made in sample_class.sample_submissions(known, more, 9, hostile=0.0):
        sample_class.hand_in(made, folder)
    for count, where in ((students, base / "class"), (more, folder)):
        out = base / f"out-{count}"
        command = grade_command(where, out, SEED, "--jobs", jobs, "-q")
        process = subprocess.Popen(command, cwd=ROOT)
        largest = 0
        began = time.perf_counter()
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
                largest = max(largest, int(status.partition("VmRSS:")[2].split()[0]))
            except (OSError, IndexError, ValueError):
                pass
            time.sleep(0.2)
        took = (time.perf_counter() - began) / count
        found.append(
            f"{count} submissions: {took:.3f} s each, the grader at most {largest / 1024:.0f} MiB."
        )
        shutil.rmtree(out, ignore_errors=True)
    return found


if __name__ == "__main__":
    main()
