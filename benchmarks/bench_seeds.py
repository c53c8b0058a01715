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

import torch
from gpudojo.authoring.kept_solutions import kept_solutions
from gpudojo.grading.call import restore_shared_modules
from gpudojo.grading.engine import grade_function
from gpudojo.grading.limits import Limits
from gpudojo.grading.observe import load_file
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import Outcome

from benchmarks.tables import Table, benchmark_parser, core_count

Task = tuple[Path, list[int]]
ROOT = Path(__file__).resolve().parents[1]
DAY = "day8"
SECONDS = 60.0  # for a function under one seed; the machine may be busy


def stamp_of_solution(path: Path) -> str:
    """What a verdict depends on besides the seed: the solution, the exercises and the engine."""
    return hashlib.sha256(path.read_bytes() + engine_stamp()).hexdigest()[:16]


@functools.cache
def engine_stamp() -> bytes:
    folders = (
        "graders/gpudojo/days",
        "graders/gpudojo/grading",
        "graders/gpudojo/model",
        "reference",
    )
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()


@functools.cache
def reference_of(stem: str) -> ReferenceSolution:
    return ReferenceSolution(ROOT / "reference" / DAY / f"{stem}.py", keep=True)


def verdict_under_seed(path: Path, seed: int) -> list[str]:
    """Every check that does not pass, with its outcome and the mistake it names."""
    stem = path.parent.name
    exercise = next(each for each in exercises_of(DAY) if each.stem == stem)
    source = path.read_text(encoding="utf-8")
    functions = [
        f for f in exercise.functions if f"def {f.name}(" in source or f"{f.name} =" in source
    ]
    limits = Limits(SECONDS)
    found = []
    for (
        function
    ) in functions:  # before the student's file, which may spoil the process it is loaded into
        reference_of(stem).evidence_of(exercise, function, "virtual", seed)
    with restore_shared_modules():
        submission = load_file(path, limits)
        for function in functions:
            results = grade_function(
                exercise, function, submission, reference_of(stem), "virtual", seed, limits
            )
            missed = [result for result in results if result.outcome is not Outcome.PASSED]
            found += [
                f"{function.name}::{r.check} {r.outcome} {r.misconception or '-'}" for r in missed
            ]
    return found


def verdicts_of_task(task: Task) -> tuple[Path, dict[int, list[str]]]:
    path, seeds = task
    with contextlib.redirect_stdout(io.StringIO()):
        return path, {seed: verdict_under_seed(path, seed) for seed in seeds}


def read_kept_verdicts(kept: Path) -> dict[str, dict[int, list[str]]]:
    """The verdicts of earlier runs, by the stamp of their solution.

    A line cut off by an end is left out.
    """
    found: dict[str, dict[int, list[str]]] = {}
    for line in kept.read_text(encoding="utf-8").splitlines() if kept.exists() else ():
        try:
            row = json.loads(line)
            found.setdefault(row["stamp"], {}).update(
                {int(seed): each for seed, each in row["verdicts"].items()}
            )
        except (ValueError, KeyError):
            continue
    return found


def grade_solutions(
    paths: list[Path], seeds: list[int], kept: Path, processes: int
) -> Iterator[tuple[Path, dict[int, list[str]]]]:
    """Each solution and its verdicts, as they become known."""
    known = read_kept_verdicts(kept)
    left = []
    for path in paths:
        before = known.get(stamp_of_solution(path), {})
        if missing := [seed for seed in seeds if seed not in before]:
            left.append((path, missing))
        else:
            yield path, {seed: before[seed] for seed in seeds}
    spawn, count = (
        multiprocessing.get_context("spawn"),
        0,
    )  # in exercise 11 these processes start others
    for group in split_in_batches(
        left, 40 * processes
    ):  # then others take over: some solutions leave things behind
        # One thread each, as in a class: with more, processes on many cores wait for one another
        # most of the time.
        with ProcessPoolExecutor(processes, spawn, torch.set_num_threads, (1,)) as pool:
            for done in as_completed([pool.submit(verdicts_of_task, task) for task in group]):
                path, found = done.result()
                with kept.open("a", encoding="utf-8") as file:
                    file.write(
                        json.dumps(
                            {"stamp": stamp_of_solution(path), "path": path.name, "verdicts": found}
                        )
                        + "\n"
                    )
                every = known.get(stamp_of_solution(path), {}) | found
                count += 1
                print(f"\r{count} of {len(left)} solutions", end="", file=sys.stderr, flush=True)
                yield path, {seed: every[seed] for seed in seeds}


def split_in_batches(tasks: list[Task], size: int) -> Iterator[list[Task]]:
    for start in range(0, len(tasks), size):
        yield tasks[start : start + size]


def main() -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "exercises", nargs="*", help="only these, by number, such as 05, or solutions by name"
    )
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=core_count())
    parser.add_argument(
        "--kept", type=Path, default=Path("build") / "seeds.jsonl", help="where verdicts are kept"
    )
    chosen = parser.parse_args()
    chosen.kept.parent.mkdir(parents=True, exist_ok=True)
    every = [one.path for one in kept_solutions(ROOT / "tests" / DAY)]
    paths = [
        path
        for path in every
        if not chosen.exercises or {path.parent.name[:2], path.stem} & {*chosen.exercises}
    ]
    seeds = list(range(1, chosen.seeds + 1))
    differing = []
    for path, found in grade_solutions(paths, seeds, chosen.kept, chosen.processes):
        first = found[seeds[0]]
        others = [seed for seed in seeds if found[seed] != first]
        if others:
            differing.append((path, len(seeds) - len(others), first, others[0], found[others[0]]))
    print(file=sys.stderr)
    columns = ("solution", f"of {len(seeds)} seeds agree", "seed 1 says", "another says")
    table = Table("Verdicts that depend on the seed", columns, words=columns[2:])
    for path, agreeing, first, seed, other in sorted(differing):
        name = f"{path.parent.parent.name}/{path.parent.name[:2]}/{path.stem}"
        table.add(
            name,
            str(agreeing),
            "; ".join(first) or "passes",
            f"seed {seed}: {'; '.join(other) or 'passes'}",
        )
    table.notes.append(
        f"{len(paths) - len(differing)} of {len(paths)} solutions have one verdict for all seeds."
    )
    table.show(chosen.markdown)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
