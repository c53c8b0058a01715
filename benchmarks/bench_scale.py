"""Does a class of ten thousand cost ten thousand times one? `python -m benchmarks.bench_scale` grades one and tells.

The class is made by `dojo sample`: right, wrong, half done, notebooks, archives, broken, hostile. While it is graded
the grader's own memory is noted, and how many are done; afterwards everything that reads the results is run on them.
With `--folder` the class and its results stay, and the same command resumes where it was stopped.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.tables import Table, benchmark_parser, core_count  # noqa: E402

MIB = 1 << 20


class Mark(NamedTuple):
    """Where the run stood at a moment."""

    seconds: float
    done: int
    memory: int  # of the grader alone, which is what must not grow
    busy: float  # processor time of the grader alone, which is one process for all children


def dojo(*words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gpudojo", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Seconds from now until a process has ended well, and the largest it was."""
    began = time.perf_counter()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    return time.perf_counter() - began, used.ru_maxrss << 10


def used_by(pid: int) -> tuple[int, float]:
    """The largest a process has been, in bytes, and its processor time in seconds."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        ticks = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
        )
        return int(status.partition("VmHWM:")[2].split()[0]) << 10, sum(
            map(int, ticks)
        ) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0, 0.0


def done_in(out: Path) -> int:
    """How many have a verdict; a file for each, spread over folders by the first letters of its name."""
    rows = out / ".dojo" / "rows"
    return sum(1 for folder in rows.iterdir() for _ in os.scandir(folder)) if rows.is_dir() else 0


def followed(process: subprocess.Popen[bytes], out: Path) -> list[Mark]:
    """What was seen of a run, every two seconds, until it had ended."""
    began = time.perf_counter()
    marks = list[Mark]()
    while process.poll() is None:
        marks.append(Mark(time.perf_counter() - began, done_in(out), *used_by(process.pid)))
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    marks.append(Mark(time.perf_counter() - began, done_in(out), 0, marks[-1].busy))
    return marks


def fifths(marks: list[Mark]) -> list[tuple[int, float, int]]:
    """Of each fifth of the class: how many were done at its end, seconds for each of it, the grader's largest size."""
    first = next(mark for mark in marks if mark.done)
    last = marks[-1].done
    found = []
    since = first
    for part in range(1, 6):
        goal = first.done + (last - first.done) * part // 5
        mark = next(mark for mark in marks if mark.done >= goal)
        within = marks[marks.index(since) : marks.index(mark) + 1]
        count = mark.done - since.done
        found.append(
            (
                mark.done,
                (mark.seconds - since.seconds) / max(count, 1),
                max(m.memory for m in within),
            )
        )
        since = mark
    return found


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--students", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=core_count())
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where the class and its results stay")
    parser.add_argument(
        "--grade-only", action="store_true", help="leave out what reads the results"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        measure(
            asked.folder or Path(place),
            asked.students,
            asked.jobs,
            asked.seed,
            asked.grade_only,
            asked.markdown,
        )


def measure(
    base: Path, students: int, jobs: int, seed: int, grade_only: bool, markdown: bool
) -> None:
    folder = base / "class"
    out = base / "out"
    compileall.compile_dir(ROOT / "graders", quiet=1)  # as an installation does
    table = Table(
        f"A class of {students:,}, {jobs} jobs", ("", "seconds", "ms each", "largest, MiB")
    )

    def add(what: str, seconds: float, memory: int, count: int = students) -> None:
        each = f"{1000 * seconds / count:.1f}" if count else ""
        table.add(what, f"{seconds:.1f}", each, f"{memory / MIB:.0f}" if memory else "")

    if not folder.exists():
        add("dojo sample", *ended(dojo("sample", folder, "--students", students, "--seed", seed)))
    grade = ("grade", folder, "--out", out, "--seed", "scale", "--jobs", jobs, "-q")
    marks = followed(dojo(*grade), out)
    add("dojo grade", marks[-1].seconds, max(mark.memory for mark in marks))
    add("… of which the grader itself was busy", marks[-1].busy, 0)
    before = marks[0].done
    for done, each, memory in fifths(marks):
        table.add(f"… until {done:,}", "", f"{1000 * each:.1f}", f"{memory / MIB:.0f}")
    if before:
        table.notes.append(f"{before:,} were graded by an earlier run of this command.")
    if not grade_only:
        add("again, nothing to run", *ended(dojo(*grade)))
        add("dojo grade --rejudge", *ended(dojo(*grade, "--rejudge")))
        for format_ in ("gradescope", "junit"):
            add(
                f"dojo export --to {format_}",
                *ended(
                    dojo("export", out / "results.json", "--to", format_, "--out", base / format_)
                ),
            )
        add("dojo report, a page each", *ended(dojo("report", out, "--out", base / "report")))
    statuses: Counter[str] = Counter()
    with (out / "results.json").open(encoding="utf-8") as file:
        file.readline()
        for line in file:
            if line.startswith("{"):
                statuses[json.loads(line.rstrip().rstrip(","))["status"]] += 1
    table.notes.append(
        ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()) + "."
    )
    size = (out / "results.json").stat().st_size / MIB
    table.notes.append(f"results.json has {size:,.0f} MiB.")
    table.show(markdown)


if __name__ == "__main__":
    main()
