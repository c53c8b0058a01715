"""What does the process of a submission cost? `python -m benchmarks.bench_child OTHER` compares two checkouts.

Both grade copies of the reference, as a student would hand them in, one at a time and in turns. What is compared is the
processor time of each submission's process, as the kernel counts it: the fastest of all, as other work on the machine
only ever adds to it, and the median beside it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.assignment import MARKS
from benchmarks.tables import Table, options, times

ROOT = Path(__file__).resolve().parents[1]
# In the environment of either checkout, which may be older than this file.
METER = """
import sys
from gpudojo.cli import main
from gpudojo.classes import submission_run

original, spent = submission_run.SubmissionRun.finish, []

def finish(self, peak_bytes, cpu_seconds, *more):
    spent.append(cpu_seconds)
    return original(self, peak_bytes, cpu_seconds, *more)

submission_run.SubmissionRun.finish = finish
try:
    main(["grade", sys.argv[1], "--out", sys.argv[2], "--seed", "benchmark", "--jobs", "1", "-q"])
except SystemExit:
    pass
print(*spent)
"""


def class_of(folder: Path, students: int) -> Path:
    """Submissions that differ, so that each of them runs."""
    for number in range(students):
        target = folder / f"student-{number}"
        target.mkdir(parents=True)
        for file in sorted((ROOT / "reference" / "day8").glob("*.py")):
            lines = file.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if line.strip() not in MARKS]
            (target / file.name).write_text("\n".join([*kept, f"# {number}", ""]), encoding="utf-8")
    return folder


def spent(checkout: Path, folder: Path, students: int) -> list[float]:
    """Processor seconds of each process; the reference's own, which are first, do not count."""
    with tempfile.TemporaryDirectory() as out:
        run = subprocess.run(
            [sys.executable, "-c", METER, str(folder), str(Path(out) / "results")],
            env=os.environ | {"PYTHONPATH": str(checkout / "graders")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [float(word) for word in run.stdout.split()][-students:]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--students", type=int, default=6, help="submissions in each turn (6)")
    parser.add_argument("--turns", type=int, default=8, help="how often each of the two grades them (8)")
    asked = parser.parse_args()
    if not (asked.other / "graders" / "gpudojo").is_dir():
        parser.error(f"{asked.other} is no checkout: it has no graders/gpudojo")
    checkouts = {"the other checkout": asked.other.resolve(), "this one": ROOT}
    found: dict[str, list[float]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as place:
        folder = class_of(Path(place), asked.students)
        for turn in range(asked.turns):
            for name in list(checkouts) if turn % 2 else reversed(checkouts):
                found[name] += spent(checkouts[name], folder, asked.students)
    table = Table("The process of one submission", ("what", "fastest", "ratio", "median", "ratio"))
    for name in checkouts:
        cells = [name]
        for least in (min, statistics.median):
            seconds, other = least(found[name]), least(found["the other checkout"])
            cells += [f"{seconds * 1000:.0f} ms", times(seconds / other)]
        table.add(*cells)
    table.notes = [f"{asked.turns} turns of {asked.students} submissions each."]
    table.show(asked.markdown)


if __name__ == "__main__":
    main()
