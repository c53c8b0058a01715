"""Does a loaded machine upset the speed check? `python -m benchmarks.bench_speed_check` counts its wrong verdicts.

Every core is kept busy by a process of its own while right and slow answers are timed and judged in turns. A right
answer that fails is a wrong verdict, and so is a slow one that passes. Only the timing is tried: a loop would be found
by its operations before anybody looked at a clock.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from gpudojo.days.day8.pixel_race import judge_speed
from gpudojo.days.day8.vectorizing_pixel_loops.wrong_values import have_same_values
from gpudojo.grading.load import Submission, load_submission
from gpudojo.grading.observe import observe
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import CallStatus, Race, convert_facts
from gpudojo.model.exercise import Exercise, Failed, Function

from benchmarks.tables import Table, cores, options

ROOT = Path(__file__).resolve().parents[1]
STEM = "06_vectorizing_pixel_loops"


def busy() -> None:
    """A core's worth of work, until the benchmark ends it or ends itself."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(i * i for i in range(100_000))


def answers(folder: Path) -> list[tuple[str, str, bool, Submission]]:
    """(function, name, whether it is right, the file): every right spelling, and the loops as answers."""
    found = []
    functions = next(e for e in exercises_of("day8") if e.stem == STEM).functions
    for path in sorted((ROOT / "tests" / "day8" / "right" / STEM).glob("*.py")):
        submission = load_submission(path)
        found += [
            (f.name, path.stem, True, submission) for f in functions if f.name in submission.names
        ]
    for function in functions:
        slow = folder / f"{function.name}.py"
        source = (ROOT / "reference" / "day8" / f"{STEM}.py").read_text(encoding="utf-8")
        slow.write_text(
            source.split("\nif __name__")[0] + f"\n\n{function.name} = {function.name}_loop\n"
        )
        found += [
            (function.name, "the loop itself", False, load_submission(slow))
        ] * 4  # about as often as right ones
    return found


def timed(
    exercise: Exercise, function: Function, submission: Submission, kind: str, seed: int
) -> Race:
    timing_only = Function(function.name, probes=[p for p in function.probes if p.name == "timed"])
    seen = observe(exercise, timing_only, submission, kind, seed).observations["timed"]
    assert seen.status is CallStatus.RETURNED, seen.raised
    found: Race = convert_facts(seen.facts, Race)
    return found


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("runs", nargs="?", type=int, default=1000, help="verdicts to reach (1000)")
    parser.add_argument(
        "--load", type=int, default=cores(), help="busy processes (one for each core)"
    )
    parser.add_argument("--bench", default="virtual", choices=("virtual", "cuda", "mps", "cpu"))
    asked = parser.parse_args()
    exercise = next(e for e in exercises_of("day8") if e.stem == STEM)
    reference = load_submission(ROOT / "reference" / "day8" / f"{STEM}.py")
    context = multiprocessing.get_context("spawn")
    crowd = [context.Process(target=busy, daemon=True) for _ in range(asked.load)]
    for process in crowd:
        process.start()
    columns = (
        "function",
        "right answers",
        "least speedup",
        "slow answers",
        "greatest speedup",
        "rounds",
        "wrong verdicts",
    )
    table = Table("The speed check's verdicts under load", columns)
    rows = {f.name: {True: [], False: [], "rounds": 0, "wrong": 0} for f in exercise.functions}  # type: ignore[var-annotated]
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            pool = answers(Path(folder))
            for number in range(asked.runs):
                name, spelling, right, submission = pool[number * 7 % len(pool)]
                function = next(f for f in exercise.functions if f.name == name)
                # The reference is looked at under load as well, as in a student's own run.
                wanted = timed(exercise, function, reference, asked.bench, number)
                found = timed(exercise, function, submission, asked.bench, number)
                passed = True
                try:
                    judge_speed(found, wanted, have_same_values)
                except Failed as failed:
                    passed = False
                    if right:
                        print(f"wrong: {name} by {spelling}: {failed.happened}", flush=True)
                row = rows[name]
                row[right].append(found.loop / found.student)
                row["rounds"] += found.rounds
                row["wrong"] += passed is not right
    finally:
        for process in crowd:
            process.terminate()
    for name, row in rows.items():
        least = f"{min(row[True]):.1f} ×" if row[True] else "-"
        most = f"{max(row[False]):.2f} ×" if row[False] else "-"
        table.add(
            name,
            str(len(row[True])),
            least,
            str(len(row[False])),
            most,
            str(row["rounds"]),
            str(row["wrong"]),
        )
    wrong = sum(row["wrong"] for row in rows.values())
    table.notes = [
        f"{wrong} wrong verdicts in {asked.runs} runs, with {asked.load} busy processes on {cores()} cores.",
        f"Load average {os.getloadavg()[0]:.1f}; {time.monotonic() - began:.0f} s; bench {asked.bench}.",
    ]
    table.show(asked.markdown)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
