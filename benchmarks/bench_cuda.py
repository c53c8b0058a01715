"""Does a real GPU give the verdicts that the virtual one gives?

It also says what a submission costs on each.

    python -m benchmarks.bench_cuda [--every N] [--jobs 16,4] [--students 30]

One class is made of everything there is: each right and wrong solution of the day as a submission
of its own, the example class, and a made-up one. It is graded on the virtual device and on CUDA,
with the same secret; every check's outcome and diagnosis is compared, and differences are printed
with both sentences. Needs a GPU, and the tests' folder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.authoring import sample_class
from gpudojo.classes.store import Store
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import header, iterate
from gpudojo.sandbox.layers import Layers, describe_layers
from rich.console import Console
from rich.table import Table

from benchmarks.commands import ROOT, grade_command

SEED = "a secret of the benchmark"


COLUMNS: Final = (
    "bench", "jobs", "seconds", "a submission", "its own time", "median", "GPU memory a child",
    "equal", "different",
)  # fmt: skip


class Run(NamedTuple):
    """The class graded once on one device."""

    bench: str
    jobs: int
    seconds: float  # for the whole class
    rows: dict[str, SubmissionRow]  # by submission
    layers: Layers
    # Of each submission that was run:
    own_seconds: list[float]
    device_bytes: list[int]


class CheckVerdict(NamedTuple):
    """What was said of one check."""

    outcome: str = ""
    diagnosis: str = ""
    sentence: str = ""

    def __str__(self) -> str:
        return f"{self.outcome} {self.diagnosis} «{self.sentence}»"


class RowDifferences(NamedTuple):
    """How two verdicts on a submission compare."""

    differences: list[str]
    reworded: int  # equal verdicts on checks in other words


class Comparison(NamedTuple):
    """How two runs of the class compare."""

    differences: dict[str, list[str]]  # by submission
    reworded: int  # equal verdicts on checks in other words


# ---- the class -----------------------------------------------------------------------------------


def make_class(into: Path, day: str, every: int, students: int, matching: str) -> int:
    """Write the class into a folder, and return how many submissions it has.

    Only those stay whose name has the regular expression `matching` in it.
    """
    kept = ROOT / "tests" / day
    solutions = sorted(kept.glob("right/*/*.py")) + sorted(kept.glob("wrong/*/*.py"))
    for path in solutions[::every]:
        stem = path.parent.name
        folder = into / f"{path.parents[1].name}-{stem[:2]}-{path.stem}"
        folder.mkdir()
        shutil.copy(path, folder / f"{stem}.py")
    for path in sorted((ROOT / "examples" / "class").iterdir()):
        target = into / f"example-{path.name}"
        if path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copy(path, target)
    corpus = sample_class.read_corpus(ROOT, day)
    for submission in sample_class.sample_submissions(corpus, students, 8):
        sample_class.hand_in(submission, into)
    _remove_others(into, matching)
    return len(list(into.iterdir()))


def _remove_others(folder: Path, matching: str) -> None:
    """Delete the submissions whose name does not match."""
    for path in folder.iterdir():
        if re.search(matching, path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def grade_class(folder: Path, out: Path, bench: str, jobs: int, limit: float) -> Run:
    """Grade the class on a device, with so many seconds for each submission.

    Raises SystemExit if `dojo grade` fails.
    """
    words = ("--jobs", jobs, "--bench", bench, "--time-limit", limit)
    command = grade_command(folder, out, SEED, "-q", *words)
    began = time.perf_counter()
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"dojo grade --bench {bench}:\n{process.stderr[-2000:]}")
    results = out / "results.json"
    rows = {row.submission: row for row in iterate(results)}
    run = Run(bench, jobs, seconds, rows, header(results).layers, [], [])
    store = Store(out)
    for row in rows.values():
        record = None
        if row.record:
            record = store.load_record(row.record)
        if record is not None:
            run.own_seconds.append(record.seconds)
            run.device_bytes.append(record.device_bytes)
    return run


# ---- the comparison ------------------------------------------------------------------------------


def verdicts_by_check(row: SubmissionRow) -> dict[str, CheckVerdict]:
    """What was said of every check of a submission, by the check's id."""
    verdicts = {}
    for exercise in row.exercises:
        for check in exercise.checks:
            diagnosis = check.misconception or ""
            verdicts[check.id] = CheckVerdict(str(check.outcome), diagnosis, check.happened)
    return verdicts


def differences_of_rows(row: SubmissionRow, other: SubmissionRow) -> RowDifferences:
    """Compare status, outcomes and diagnoses of two verdicts on one submission."""
    differences = []
    reworded = 0
    if row.status != other.status:
        reasons = f"{row.reason} | {other.reason}"
        differences.append(f"status {row.status} | {other.status}: {reasons}")
    verdicts = verdicts_by_check(row)
    other_verdicts = verdicts_by_check(other)
    for check in sorted(verdicts.keys() | other_verdicts.keys()):
        verdict = verdicts.get(check, CheckVerdict())
        other_verdict = other_verdicts.get(check, CheckVerdict())
        if verdict[:2] != other_verdict[:2]:
            differences.append(f"{check}: {verdict} | {other_verdict}")
        elif verdict.sentence != other_verdict.sentence:
            reworded += 1
    return RowDifferences(differences, reworded)


def compare_runs(one: Run, other: Run) -> Comparison:
    """Compare the verdicts on all submissions."""
    differences: dict[str, list[str]] = {}
    reworded = 0
    for name, row in one.rows.items():
        found = differences_of_rows(row, other.rows[name])
        reworded += found.reworded
        if found.differences:
            differences[name] = found.differences
    return Comparison(differences, reworded)


def add_run(table: Table, run: Run, comparison: Comparison | None) -> None:
    """Add a row to the table; `comparison` is with the run before, if there is one."""
    count = len(run.rows)
    own_seconds = sorted(run.own_seconds)
    mean = sum(own_seconds) / len(own_seconds)
    median = own_seconds[len(own_seconds) // 2]
    memory = ""
    sizes = [size / 2**20 for size in run.device_bytes if size]
    if sizes:
        memory = f"{sum(sizes) / len(sizes):.0f} MiB, {max(sizes):.0f} at most"
    equal = ""
    different = ""
    if comparison is not None:
        different = str(len(comparison.differences))
        equal = str(count - len(comparison.differences))
    seconds_each = f"{run.seconds / count:.3f} s"
    table.add_row(
        run.bench,
        str(run.jobs),
        f"{run.seconds:.1f}",
        seconds_each,
        f"{mean:.2f} s",
        f"{median:.2f} s",
        memory,
        equal,
        different,
    )


def describe_comparison(run: Run, comparison: Comparison) -> list[str]:
    """Lines on what a run differs in from the one before."""
    statuses = Counter(str(row.status) for row in run.rows.values())
    reworded = f"equal verdicts in other words: {comparison.reworded}"
    lines = [f"{run.jobs} jobs: {dict(statuses)}; {reworded}"]
    lines.append(f"  {run.bench}: {describe_layers(run.layers)}")
    for name, found in comparison.differences.items():
        lines.append(f"  {name} (virtual | cuda)")
        lines += [f"    {difference}" for difference in found]
    return lines


def main() -> None:
    """Grade the class on both devices, and print the table and the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", default="day8")
    parser.add_argument("--every", type=int, default=1, help="only each so-manieth of the corpus")
    parser.add_argument("--students", type=int, default=30, help="how many made-up submissions")
    parser.add_argument(
        "--jobs",
        default=str(len(os.sched_getaffinity(0))),
        help="how many at once; several by commas",
    )
    parser.add_argument(
        "--matching",
        default="",
        help="only submissions whose name has this regular expression in it",
    )
    parser.add_argument("--time-limit", type=float, default=10.0)
    options = parser.parse_args()
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        folder = base / "class"
        folder.mkdir()
        count = make_class(folder, options.day, options.every, options.students, options.matching)
        table = Table(title=f"{count} submissions", title_justify="left")
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "bench" else "right")
        for word in options.jobs.split(","):
            jobs = int(word)
            limit = options.time_limit
            virtual = grade_class(folder, base / f"virtual-{jobs}", "virtual", jobs, limit)
            cuda = grade_class(folder, base / f"cuda-{jobs}", "cuda", jobs, limit)
            comparison = compare_runs(virtual, cuda)
            add_run(table, virtual, None)
            add_run(table, cuda, comparison)
            lines += describe_comparison(cuda, comparison)
    console = Console(width=160, highlight=False)
    console.print(table)
    for line in lines:
        console.print(line, markup=False)


if __name__ == "__main__":
    main()
