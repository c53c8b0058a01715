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
        kibibytes = int(peak.split()[0])
        ticks = sum(int(word) for word in fields.split()[11:13])
        seconds = ticks / os.sysconf("SC_CLK_TCK")
        return Usage(kibibytes << 10, seconds)
    except (OSError, IndexError, ValueError):
        return Usage(0, 0.0)


def count_done(out: Path) -> int:
    """How many submissions have a verdict: a file each, in folders by the letters of its name."""
    rows = out / ".dojo" / "rows"
    if not rows.is_dir():
        return 0
    count = 0
    for folder in rows.iterdir():
        count += len(os.listdir(folder))
    return count


def follow_run(process: subprocess.Popen[bytes], out: Path) -> list[Mark]:
    """What was seen of a run, twice a second, until it had ended.

    Raises SystemExit if it did not end well.
    """
    began = time.perf_counter()
    marks: list[Mark] = []
    usage = Usage(0, 0.0)
    while process.poll() is None:
        seconds = time.perf_counter() - began
        usage = usage_of(process.pid)
        marks.append(Mark(seconds, count_done(out), usage))
        time.sleep(0.5)
    _require_success(process)
    seconds = time.perf_counter() - began
    marks.append(Mark(seconds, count_done(out), usage._replace(memory=0)))
    return marks


def split_in_fifths(marks: list[Mark]) -> list[Fifth]:
    """What each fifth of the class took, from the first verdict on."""
    marks = [mark for mark in marks if mark.done]
    first = marks[0]
    to_do = marks[-1].done - first.done
    fifths = []
    begin = first
    for part in range(1, 6):
        goal = first.done + to_do * part // 5
        end = next(mark for mark in marks if mark.done >= goal)
        # What was seen between the two moments.
        sizes = []
        for mark in marks:
            if begin.seconds <= mark.seconds <= end.seconds:
                sizes.append(mark.grader.memory)
        count = max(end.done - begin.done, 1)
        seconds = end.seconds - begin.seconds
        fifth = Fifth(end.done, seconds / count, max(sizes))
        fifths.append(fifth)
        begin = end
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


class ScaleTable:
    """The table of a class: what each command took, in all and for each submission."""

    def __init__(self, students: int, jobs: int) -> None:
        columns = ("", "seconds", "ms each", "largest, MiB")
        self.students = students
        self.table = Table(f"A class of {students:,}, {jobs} jobs", columns)

    def add_seconds(self, what: str, seconds: float, memory: int) -> None:
        """Add a row; memory in bytes, 0 where it is not known."""
        each = 1000 * seconds / self.students
        self.table.add(what, f"{seconds:.1f}", f"{each:.1f}", _in_mib(memory))

    def run_dojo(self, what: str, *words: object) -> None:
        """Run a `dojo` command, and add a row. Raises SystemExit if it did not end well."""
        seconds, memory = wait_for_end(start_dojo(*words))
        self.add_seconds(what, seconds, memory)

    def add_grading(self, marks: list[Mark]) -> None:
        """Add the rows of `dojo grade`: all of it, the grader's own share, and each fifth."""
        last = marks[-1]
        memory = max(mark.grader.memory for mark in marks)
        self.add_seconds("dojo grade", last.seconds, memory)
        self.add_seconds("… of which the grader itself was busy", last.grader.busy, 0)
        for fifth in split_in_fifths(marks):
            milliseconds = 1000 * fifth.seconds_each
            memory_in_mib = _in_mib(fifth.memory)
            self.table.add(f"… until {fifth.done:,}", "", f"{milliseconds:.1f}", memory_in_mib)
        already_done = marks[0].done
        if already_done:
            note = f"{already_done:,} were graded by an earlier run of this command."
            self.table.notes.append(note)

    def add_notes(self, results: Path) -> None:
        """Say how many submissions have which status, and how large the results are."""
        counts = []
        for status, count in count_statuses(results).most_common():
            counts.append(f"{count:,} {status}")
        size = results.stat().st_size / MIB
        self.table.notes.append(f"{', '.join(counts)}.")
        self.table.notes.append(f"results.json has {size:,.0f} MiB.")


def _in_mib(memory: int) -> str:
    """Bytes in MiB; "" for none."""
    if not memory:
        return ""
    return f"{memory / MIB:.0f}"


def measure_class(base: Path, asked: Namespace) -> Table:
    """Make a class in the folder `base`, grade it, and read its results."""
    folder = base / "class"
    out = base / "out"
    table = ScaleTable(asked.students, asked.jobs)
    if not folder.exists():
        sample = ("sample", folder, "--students", asked.students, "--seed", asked.seed)
        table.run_dojo("dojo sample", *sample)
    # The class graded, with what was seen meanwhile.
    grade = ("grade", folder, "--out", out, "--seed", "scale", "--jobs", asked.jobs, "-q")
    marks = follow_run(start_dojo(*grade), out)
    table.add_grading(marks)
    # Everything that reads the results.
    results = out / "results.json"
    if not asked.grade_only:
        table.run_dojo("again, nothing to run", *grade)
        table.run_dojo("dojo grade --rejudge", *grade, "--rejudge")
        for name in ("gradescope", "junit"):
            export = ("export", results, "--to", name, "--out", base / name)
            table.run_dojo(f"dojo export --to {name}", *export)
        table.run_dojo("dojo report, a page each", "report", out, "--out", base / "report")
    table.add_notes(results)
    return table.table


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
