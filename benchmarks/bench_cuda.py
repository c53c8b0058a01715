"""Does a real GPU give the verdicts that the virtual one gives, and what does a submission cost on
each?

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
from dataclasses import dataclass, field
from pathlib import Path

from gpudojo.authoring import sample_class
from gpudojo.classes.store import Store
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import header, iterate
from gpudojo.sandbox.layers import Layers, describe_layers
from rich.console import Console
from rich.table import Table

from benchmarks.dojo_command import ROOT, grade_command

SEED = "a secret of the benchmark"


@dataclass
class Run:
    """The class graded once."""

    bench: str
    jobs: int
    seconds: float
    rows: dict[str, SubmissionRow]
    layers: Layers
    each: list[float] = field(default_factory=list)
    device: list[int] = field(default_factory=list)


def make_class(into: Path, day: str, every: int, students: int, matching: str) -> int:
    """The class; how many submissions it has."""
    files = sorted((ROOT / "tests" / day).glob("right/*/*.py")) + sorted(
        (ROOT / "tests" / day).glob("wrong/*/*.py")
    )
    for path in files[::every]:
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
    for made in sample_class.sample_submissions(sample_class.read_corpus(ROOT, day), students, 8):
        sample_class.hand_in(made, into)
    for path in into.iterdir():
        if not re.search(matching, path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return len(list(into.iterdir()))


def grade_class(folder: Path, out: Path, bench: str, jobs: int, seconds: float) -> Run:
    device = ("--jobs", jobs, "--bench", bench, "--time-limit", seconds)
    command = grade_command(folder, out, SEED, "-q", *device)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"dojo grade --bench {bench}:\n{done.stderr[-2000:]}")
    results = out / "results.json"
    run = Run(
        bench,
        jobs,
        took,
        {row.submission: row for row in iterate(results)},
        header(results).layers,
    )
    store = Store(out)
    for row in run.rows.values():
        record = store.load_record(row.record) if row.record else None
        if record is not None:
            run.each.append(record.seconds)
            run.device.append(record.device_bytes)
    return run


def checks_by_id(row: SubmissionRow) -> dict[str, tuple[str, str, str]]:
    """Outcome, diagnosis and sentence of every check."""
    every = [check for exercise in row.exercises for check in exercise.checks]
    return {
        check.id: (str(check.outcome), check.misconception or "", check.happened) for check in every
    }


def differences_of_rows(row: SubmissionRow, other: SubmissionRow) -> tuple[list[str], int]:
    """What differs between two verdicts, and how many equal ones are told in other words."""
    differences = []
    words = 0
    if row.status != other.status:
        reasons = f"{row.reason} | {other.reason}"
        differences.append(f"status {row.status} | {other.status}: {reasons}")
    first = checks_by_id(row)
    second = checks_by_id(other)
    for check in sorted(first.keys() | second.keys()):
        a = first.get(check, ("", "", ""))
        b = second.get(check, ("", "", ""))
        if a[:2] != b[:2]:
            differences.append(f"{check}: {a[0]} {a[1]} «{a[2]}» | {b[0]} {b[1]} «{b[2]}»")
        elif a[2] != b[2]:
            words += 1
    return differences, words


def compare_runs(one: Run, other: Run) -> tuple[dict[str, list[str]], int]:
    """What differs, by submission, and how many equal verdicts are told in other words."""
    differing: dict[str, list[str]] = {}
    words_in_all = 0
    for name, row in one.rows.items():
        differences, words = differences_of_rows(row, other.rows[name])
        words_in_all += words
        if differences:
            differing[name] = differences
    return differing, words_in_all


def main() -> None:
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
    asked = parser.parse_args()
    console = Console(width=160, highlight=False)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "class"
        folder.mkdir()
        count = make_class(folder, asked.day, asked.every, asked.students, asked.matching)
        table = Table(title=f"{count} submissions", title_justify="left")
        for name in (
            "bench",
            "jobs",
            "seconds",
            "a submission",
            "its own time",
            "median",
            "GPU memory a child",
            "equal",
        ):
            table.add_column(name, justify="left" if name == "bench" else "right")
        table.add_column("different", justify="right")
        told: list[str] = []
        for jobs in (int(word) for word in asked.jobs.split(",")):
            runs = [
                grade_class(folder, Path(place) / f"{bench}-{jobs}", bench, jobs, asked.time_limit)
                for bench in ("virtual", "cuda")
            ]
            differing, words = compare_runs(*runs)
            for run in runs:
                each = sorted(run.each)
                held = [size for size in run.device if size]
                cuda = run.bench == "cuda"
                table.add_row(
                    *(run.bench, str(jobs), f"{run.seconds:.1f}", f"{run.seconds / count:.3f} s"),
                    *(f"{sum(each) / len(each):.2f} s", f"{each[len(each) // 2]:.2f} s"),
                    f"{sum(held) / len(held) / 2**20:.0f} MiB, {max(held) / 2**20:.0f} at most"
                    if held
                    else "",
                    *((str(count - len(differing)), str(len(differing))) if cuda else ("", "")),
                )
            statuses = Counter(str(row.status) for row in runs[1].rows.values())
            told.append(f"{jobs} jobs: {dict(statuses)}; equal verdicts in other words: {words}")
            told.append(f"  cuda: {describe_layers(runs[1].layers)}")
            told += [
                f"  {name} (virtual | cuda)\n    " + "\n    ".join(found)
                for name, found in differing.items()
            ]
        console.print(table)
        for line in told:
            console.print(line, markup=False)


if __name__ == "__main__":
    main()
