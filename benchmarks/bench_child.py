"""What does the process of a submission cost?

`python -m benchmarks.bench_child OTHER` compares two checkouts.

Both grade copies of the reference, as a student would hand them in. Both are under way at the same
time, and run a submission in turns: the speed of a machine changes, but not much from one second to
the next. What is compared is the processor time of each submission's process, as the kernel counts
it, with that of the other's next one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.assignment import MARKS
from benchmarks.tables import Table, benchmark_parser, format_ratio

ROOT = Path(__file__).resolve().parents[1]
# In the environment of either checkout, which may be older than this file.
METER = """
import sys
from gpudojo.cli import main
from gpudojo.classes import submission_run
from gpudojo.sandbox import fork_client

run_class = submission_run.SubmissionRun
method = "finish_record" if hasattr(run_class, "finish_record") else "finish"
original = getattr(run_class, method)
spawn = fork_client.ForkClient.spawn

def finish(self, peak_bytes, cpu_seconds, *more):
    print("spent", cpu_seconds, flush=True)
    return original(self, peak_bytes, cpu_seconds, *more)

def in_turn(self, job):
    print("ready", flush=True)
    sys.stdin.readline()
    return spawn(self, job)

setattr(run_class, method, finish)
fork_client.ForkClient.spawn = in_turn
try:
    main(["grade", sys.argv[1], "--out", sys.argv[2], "--seed", "benchmark", "--jobs", "1", "-q"])
except SystemExit:
    pass
"""


def make_class(folder: Path, students: int) -> Path:
    """Submissions that differ, so that each of them runs, with one reference for all."""
    folder.mkdir()
    (folder / "course.toml").write_text('seed = "per-class"\n', encoding="utf-8")
    for number in range(students):
        target = folder / f"student-{number}"
        target.mkdir(parents=True)
        for file in sorted((ROOT / "reference" / "day8").glob("*.py")):
            lines = file.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if line.strip() not in MARKS]
            (target / file.name).write_text("\n".join([*kept, f"# {number}", ""]), encoding="utf-8")
    return folder


class Grader:
    """`dojo grade` of one checkout, which waits before each submission until it is its turn."""

    def __init__(self, checkout: Path, folder: Path, out: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", METER, str(folder), str(out)],
            cwd=checkout,  # beside another copy of the day it would be refused
            env=os.environ | {"PYTHONPATH": str(checkout / "graders")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.spent: list[float] = []

    def until(self, word: str) -> list[str]:
        """The words of the next line that begins with this one; none where there are no more."""
        assert self.process.stdout is not None
        return next((line.split() for line in self.process.stdout if line.startswith(word)), [])

    def turn(self) -> bool:
        """Run one submission; False where all are done."""
        assert self.process.stdin is not None
        if not self.until("ready"):
            return False
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        if not (found := self.until("spent")):
            raise SystemExit("dojo grade ended before its submission")
        self.spent.append(float(found[1]))
        return True


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--students", type=int, default=20, help="submissions (20)")
    asked = parser.parse_args()
    if not (asked.other / "graders" / "gpudojo").is_dir():
        parser.error(f"{asked.other} is no checkout: it has no graders/gpudojo")
    with tempfile.TemporaryDirectory() as place:
        folder = make_class(Path(place) / "class", asked.students)
        graders = [
            Grader(one, folder, Path(place) / str(n))
            for n, one in enumerate((asked.other.resolve(), ROOT))
        ]
        left = list(graders)
        while left:
            left = [grader for grader in left if grader.turn()]
        # The reference's own, which are first, do not count.
        other, this = (grader.spent[-asked.students :] for grader in graders)
    table = Table("The process of one submission", ("what", "fastest", "median", "ratio"))
    ratio = statistics.median(mine / theirs for mine, theirs in zip(this, other, strict=True))
    for name, seconds, told in (("the other checkout", other, 1.0), ("this one", this, ratio)):
        table.add(
            name,
            f"{min(seconds) * 1000:.0f} ms",
            f"{statistics.median(seconds) * 1000:.0f} ms",
            format_ratio(told),
        )
    table.notes = [f"The ratio is the median of {asked.students} pairs."]
    table.show(asked.markdown)


if __name__ == "__main__":
    main()
