"""Does a verdict depend on the seed?

`python -m benchmarks.bench_seeds` grades all kept solutions under many seeds.

A solution is graded under each seed as in a class, beside the reference under the same seed. Its
row in the table says how many seeds agree with the first one, and what another seed says instead.
Verdicts are kept in a file, one line for each solution, and the same command resumes: what is there
for the same source and the same exercises is not graded again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import torch
from gpudojo.authoring.kept_solutions import kept_solutions
from gpudojo.grading.call import restore_shared_modules
from gpudojo.grading.engine import grade_function
from gpudojo.grading.limits import Limits
from gpudojo.grading.observe import load_file
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import Outcome

from benchmarks.tables import Table, benchmark_parser, core_count

ROOT = Path(__file__).resolve().parents[1]
DAY = "day8"
SECONDS = 60.0  # for a function under one seed; the machine may be busy


# The checks that do not pass, by seed.
Verdicts = dict[int, list[str]]


class Task(NamedTuple):
    """A solution, and the seeds under which it is still to be graded."""

    path: Path
    seeds: list[int]


class SeedDifference(NamedTuple):
    """A solution whose verdict depends on the seed."""

    path: Path
    agreeing: int  # how many seeds agree with the first
    first: list[str]
    other_seed: int
    other: list[str]


def stamp_of_solution(path: Path) -> str:
    """What a verdict depends on besides the seed: the solution, the exercises and the engine."""
    stamped = path.read_bytes() + engine_stamp()
    return hashlib.sha256(stamped).hexdigest()[:16]


@functools.cache
def engine_stamp() -> bytes:
    """A digest of the exercises, the references and the engine."""
    package = ROOT / "graders" / "gpudojo"
    files = []
    folders = [package / name for name in ("days", "grading", "model")]
    for folder in (*folders, ROOT / "reference"):
        files += folder.rglob("*.py")
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.digest()


# ---- grading -------------------------------------------------------------------------------------


@functools.cache
def reference_of(stem: str) -> ReferenceSolution:
    path = ROOT / "reference" / DAY / f"{stem}.py"
    return ReferenceSolution(path, keep=True)


def functions_in(path: Path, exercise: Exercise) -> list[Function]:
    """The functions of an exercise that a solution defines."""
    source = path.read_text(encoding="utf-8")
    functions = []
    for function in exercise.functions:
        name = function.name
        if f"def {name}(" in source or f"{name} =" in source:
            functions.append(function)
    return functions


def verdict_under_seed(path: Path, seed: int) -> list[str]:
    """Every check that does not pass, with its outcome and the mistake it names."""
    stem = path.parent.name
    exercise = next(each for each in exercises_of(DAY) if each.stem == stem)
    functions = functions_in(path, exercise)
    reference = reference_of(stem)
    # Before the student's file, which may spoil the process it is loaded into.
    for function in functions:
        reference.evidence_of(exercise, function, "virtual", seed)
    limits = Limits(SECONDS)
    results = []
    with restore_shared_modules():
        submission = load_file(path, limits)
        for function in functions:
            results += grade_function(
                exercise, function, submission, reference, "virtual", seed, limits
            )
    missed = []
    for result in results:
        if result.outcome is not Outcome.PASSED:
            mistake = result.misconception or "-"
            missed.append(f"{result.function}::{result.check} {result.outcome} {mistake}")
    return missed


def verdicts_of_task(task: Task) -> Verdicts:
    """Grade a solution under all seeds of a task; what it prints is dropped."""
    with contextlib.redirect_stdout(io.StringIO()):
        return {seed: verdict_under_seed(task.path, seed) for seed in task.seeds}


def read_kept_verdicts(kept: Path) -> dict[str, Verdicts]:
    """The verdicts of earlier runs, by the stamp of their solution.

    A line that was cut off, because its run was ended, is left out.
    """
    verdicts: dict[str, Verdicts] = {}
    if not kept.exists():
        return verdicts
    for line in kept.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            by_seed = {}
            for seed, missed in row["verdicts"].items():
                by_seed[int(seed)] = missed
            verdicts.setdefault(row["stamp"], {}).update(by_seed)
        except (ValueError, KeyError):
            continue
    return verdicts


def keep_verdicts(kept: Path, path: Path, verdicts: Verdicts) -> None:
    """Append the verdicts of one solution to the file."""
    row = {"stamp": stamp_of_solution(path), "path": path.name, "verdicts": verdicts}
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def grade_solutions(
    paths: list[Path], seeds: list[int], kept: Path, processes: int
) -> Iterator[tuple[Path, Verdicts]]:
    """Each solution and its verdicts, as they become known.

    New ones are appended to the file `kept`.
    """
    known = read_kept_verdicts(kept)
    tasks = []
    for path in paths:
        before = known.get(stamp_of_solution(path), {})
        missing = [seed for seed in seeds if seed not in before]
        if missing:
            tasks.append(Task(path, missing))
        else:
            yield path, before
    for count, (task, verdicts) in enumerate(run_tasks(tasks, processes), 1):
        keep_verdicts(kept, task.path, verdicts)
        print(f"\r{count} of {len(tasks)} solutions", end="", file=sys.stderr, flush=True)
        before = known.get(stamp_of_solution(task.path), {})
        yield task.path, before | verdicts


def run_tasks(tasks: list[Task], processes: int) -> Iterator[tuple[Task, Verdicts]]:
    """Tasks and their verdicts, from several processes, in the order in which they end."""
    spawn = multiprocessing.get_context("spawn")  # in exercise 11 these processes start others
    # After some tasks other processes take over: some solutions leave things behind.
    size = 40 * processes
    for start in range(0, len(tasks), size):
        # One thread each, as in a class: with more, processes on many cores wait for one another
        # most of the time.
        with ProcessPoolExecutor(processes, spawn, torch.set_num_threads, (1,)) as pool:
            futures = {}
            for task in tasks[start : start + size]:
                futures[pool.submit(verdicts_of_task, task)] = task
            for future in as_completed(futures):
                yield futures[future], future.result()


# ---- the table -----------------------------------------------------------------------------------


def chosen_solutions(words: list[str]) -> list[Path]:
    """The kept solutions of these exercises, by number, or with these names; all without words."""
    paths = []
    for solution in kept_solutions(ROOT / "tests" / DAY):
        path = solution.path
        if not words or path.parent.name[:2] in words or path.stem in words:
            paths.append(path)
    return paths


def difference_of_seeds(path: Path, verdicts: Verdicts, seeds: list[int]) -> SeedDifference | None:
    """How the seeds differ for a solution; None if they agree."""
    first = verdicts[seeds[0]]
    others = [seed for seed in seeds if verdicts[seed] != first]
    if not others:
        return None
    agreeing = len(seeds) - len(others)
    other_seed = others[0]
    return SeedDifference(path, agreeing, first, other_seed, verdicts[other_seed])


def table_of_differences(differences: list[SeedDifference], seeds: int, solutions: int) -> Table:
    """A row for each solution whose verdict depends on the seed."""
    columns = ("solution", f"of {seeds} seeds agree", "seed 1 says", "another says")
    table = Table("Verdicts that depend on the seed", columns, words=columns[2:])
    for found in sorted(differences):
        folder = found.path.parent
        name = f"{folder.parent.name}/{folder.name[:2]}/{found.path.stem}"
        first = "; ".join(found.first) or "passes"
        other = "; ".join(found.other) or "passes"
        table.add(name, str(found.agreeing), first, f"seed {found.other_seed}: {other}")
    agreeing = solutions - len(differences)
    table.notes.append(f"{agreeing} of {solutions} solutions have one verdict for all seeds.")
    return table


def main() -> int:
    """Grade what the command line asks for, and print the table; 1 if a verdict depends on it."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "exercises", nargs="*", help="only these, by number, such as 05, or solutions by name"
    )
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=core_count())
    parser.add_argument(
        "--kept", type=Path, default=Path("build") / "seeds.jsonl", help="where verdicts are kept"
    )
    options = parser.parse_args()
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    paths = chosen_solutions(options.exercises)
    seeds = list(range(1, options.seeds + 1))
    differences = []
    for path, verdicts in grade_solutions(paths, seeds, options.kept, options.processes):
        difference = difference_of_seeds(path, verdicts, seeds)
        if difference is not None:
            differences.append(difference)
    print(file=sys.stderr)
    table = table_of_differences(differences, len(seeds), len(paths))
    table.show(options.markdown)
    if differences:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
