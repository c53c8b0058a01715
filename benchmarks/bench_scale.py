"""Does a class of ten thousand cost ten thousand times one?

The class is made by `dojo sample`: right, wrong, half done, notebooks, archives, broken, hostile.
While it is graded the grader's own memory is noted, and how many are done; afterwards everything
that reads the results is run on them. With `--folder` the class and its results stay, and the same
command resumes where it was stopped.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import tempfile
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.commands import ROOT, start_dojo
from benchmarks.tables import Table, benchmark_parser, core_count

MIB = 1 << 20


class Usage(NamedTuple):
    """What a process has used."""

    memory: int  # the largest it has been, in bytes
    busy: float  # processor time, in seconds


class Mark(NamedTuple):
    """Where the run stood at a moment."""

    seconds: float
    done: int
    # Of the grader alone, which is one process for all children and must not grow.
    grader: Usage


class Fifth(NamedTuple):
    """What a fifth of the class took."""

    done: int  # how many were done at its end, of the whole class
    seconds_each: float
    memory: int  # the grader's largest size


def wait_for_end(process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Seconds from now until a process has ended, and the largest it was.

    Raises SystemExit if it did not end well.
    """
    began = time.perf_counter()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    _require_success(process)
    return time.perf_counter() - began, used.ru_maxrss << 10


def _require_success(process: subprocess.Popen[bytes]) -> None:
    if process.returncode:
        raise SystemExit(f"{process.args!r} ended with {process.returncode}")


def usage_of(process: int) -> Usage:
    """What a process has used so far; nothing if it has ended meanwhile."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
        _, _, peak = status.partition("VmHWM:")
        _, _, fields = stat.rpartition(")")
        ticks = sum(int(word) for word in fields.split()[11:13])
        return Usage(int(peak.split()[0]) << 10, ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return Usage(0, 0.0)


def count_done(out: Path) -> int:
    """How many submissions have a verdict: a file each, in folders by the letters of its name."""
    rows = out / ".dojo" / "rows"
    if not rows.is_dir():
        return 0
    return sum(1 for folder in rows.iterdir() for _ in os.scandir(folder))


def follow_run(process: subprocess.Popen[bytes], out: Path) -> list[Mark]:
    """What was seen of a run, twice a second, until it had ended.

    Raises SystemExit if it did not end well.
    """
    began = time.perf_counter()
    marks: list[Mark] = []
    while process.poll() is None:
        seconds = time.perf_counter() - began
        marks.append(Mark(seconds, count_done(out), usage_of(process.pid)))
        time.sleep(0.5)
    _require_success(process)
    seconds = time.perf_counter() - began
    marks.append(Mark(seconds, count_done(out), Usage(0, marks[-1].grader.busy)))
    return marks


def split_in_fifths(marks: list[Mark]) -> list[Fifth]:
    """What each fifth of the class took, from the first verdict on."""
    first = next(number for number, mark in enumerate(marks) if mark.done)
    already_done = marks[first].done
    to_do = marks[-1].done - already_done
    fifths = []
    start = first
    for part in range(1, 6):
        goal = already_done + to_do * part // 5
        end = next(number for number, mark in enumerate(marks) if mark.done >= goal)
        count = marks[end].done - marks[start].done
        seconds = marks[end].seconds - marks[start].seconds
        memory = max(mark.grader.memory for mark in marks[start : end + 1])
        fifths.append(Fifth(marks[end].done, seconds / max(count, 1), memory))
        start = end
    return fifths


def count_statuses(results: Path) -> Counter[str]:
    """How many submissions have each status; `results.json` has a submission a line."""
    statuses: Counter[str] = Counter()
    with results.open(encoding="utf-8") as file:
        file.readline()
        for line in file:
            if line.startswith("{"):
                row = json.loads(line.rstrip().rstrip(","))
                statuses[row["status"]] += 1
    return statuses


def measure_class(base: Path, asked: Namespace) -> Table:
    """Make a class in the folder `base`, grade it, and read its results."""
    folder = base / "class"
    out = base / "out"
    students = asked.students
    table = Table(
        f"A class of {students:,}, {asked.jobs} jobs", ("", "seconds", "ms each", "largest, MiB")
    )

    def add_row(what: str, seconds: float, memory: int) -> None:
        each = f"{1000 * seconds / students:.1f}"
        table.add(what, f"{seconds:.1f}", each, f"{memory / MIB:.0f}" if memory else "")

    def add_command(what: str, *words: object) -> None:
        add_row(what, *wait_for_end(start_dojo(*words)))

    if not folder.exists():
        add_command("dojo sample", "sample", folder, "--students", students, "--seed", asked.seed)
    # The class graded, with what was seen meanwhile.
    grade = ("grade", folder, "--out", out, "--seed", "scale", "--jobs", asked.jobs, "-q")
    marks = follow_run(start_dojo(*grade), out)
    add_row("dojo grade", marks[-1].seconds, max(mark.grader.memory for mark in marks))
    add_row("… of which the grader itself was busy", marks[-1].grader.busy, 0)
    for fifth in split_in_fifths(marks):
        milliseconds = f"{1000 * fifth.seconds_each:.1f}"
        table.add(f"… until {fifth.done:,}", "", milliseconds, f"{fifth.memory / MIB:.0f}")
    if marks[0].done:
        table.notes.append(f"{marks[0].done:,} were graded by an earlier run of this command.")
    # Everything that reads the results.
    results = out / "results.json"
    if not asked.grade_only:
        add_command("again, nothing to run", *grade)
        add_command("dojo grade --rejudge", *grade, "--rejudge")
        for name in ("gradescope", "junit"):
            target = base / name
            add_command(
                f"dojo export --to {name}", "export", results, "--to", name, "--out", target
            )
        add_command("dojo report, a page each", "report", out, "--out", base / "report")
    counts = [f"{count:,} {status}" for status, count in count_statuses(results).most_common()]
    size = results.stat().st_size / MIB
    table.notes += [f"{', '.join(counts)}.", f"results.json has {size:,.0f} MiB."]
    return table


def main() -> None:
    """Measure what the command line asks for, and print the table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--students", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=core_count())
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where the class and its results stay")
    parser.add_argument(
        "--grade-only", action="store_true", help="leave out what reads the results"
    )
    asked = parser.parse_args()
    compileall.compile_dir(ROOT / "graders", quiet=1)  # as an installation does
    with tempfile.TemporaryDirectory() as place:
        table = measure_class(asked.folder or Path(place), asked)
    table.show(asked.markdown)


if __name__ == "__main__":
    main()
