"""Is anything lost when processes die?

`python -m benchmarks.kill_loop` kills them at random and compares results.

A class is graded once in peace. Then again, while `kill -9` hits, at random moments, the grader,
the fork server that forks, its launcher, or a submission's own process; when the grader dies the
same command is typed again. In the end both results must be the same, but for times and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpudojo.authoring import sample_class

from benchmarks.commands import ROOT, grade_command
from benchmarks.processes import depths_below

MEASURED = ("seconds", "peak_bytes", "output", "graded_at")


def class_command(folder: Path, out: Path) -> list[str]:
    """The command that is typed again and again."""
    return grade_command(folder, out, "loop", "-q")


def read_results(out: Path) -> list[dict[str, Any]]:
    """The rows of a graded class, without what is measured."""
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = results["submissions"]
    for row in rows:
        for name in MEASURED:
            row.pop(name, None)
    return rows


def without_times(value: Any) -> Any:
    """A text without its measured times, as in "19.8 µs" and "3.2 ×"; any other value itself."""
    if not isinstance(value, str):
        return value
    return re.sub(r"[\d.,]+ ?(ns|µs|ms|s|seconds|times|×)(?!\w)", "(time)", value)


def describe_differences(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> Iterator[str]:
    """Whatever is not the same, but for the times that messages tell."""
    for row, other_row in zip(first, second, strict=True):
        name = row["submission"]
        for key in {**row, **other_row}:
            if key != "exercises" and row.get(key) != other_row.get(key):
                yield f"{name}: {key}: {row.get(key)} | {other_row.get(key)}"
        checks = _checks_of_row(row)
        other_checks = _checks_of_row(other_row)
        for check, other in zip(checks, other_checks, strict=True):
            if _differ_in_content(check, other):
                sentences = f"{_describe_check(check)} | {_describe_check(other)}"
                yield f"{name}: {check['id']}: {sentences}"


def _checks_of_row(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The checks of all exercises of a submission."""
    checks = []
    for exercise in row["exercises"]:
        checks += exercise["checks"]
    return checks


def _differ_in_content(check: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if two rows of a check differ in more than times.

    What is as usual is not written down, so that either may lack a key.
    """
    for key in {**check, **other}:
        if without_times(check.get(key)) != without_times(other.get(key)):
            return True
    return False


def _describe_check(check: dict[str, Any]) -> str:
    return f"{check['outcome']} {check.get('message', '')}".strip()


NAMES: Final = {0: "the grader", 1: "the launcher", 2: "the fork server", 3: "a submission"}
DEEPEST: Final = max(NAMES)


class KillLoop:
    """Types the command until it has ended well, and kills its processes meanwhile."""

    def __init__(self, folder: Path, out: Path, wanted: int, dice: random.Random) -> None:
        self.folder = folder
        self.out = out
        self.wanted = wanted  # how many are to be killed
        self.dice = dice
        self.kills: Counter[str] = Counter()
        self.starts = 0

    def run(self) -> None:
        """Return when enough processes were killed and the class is graded."""
        while not self._run_command():
            pass

    def _run_command(self) -> bool:
        """Type the command once; True if it has graded the class after the last kill."""
        process = subprocess.Popen(class_command(self.folder, self.out), cwd=ROOT)
        self.starts += 1
        # Early, late, and everything between: also while torch is being imported.
        pause = self.dice.uniform(0.2, 12.0)
        while self.kills.total() < self.wanted:
            try:
                code = process.wait(pause)
            except subprocess.TimeoutExpired:
                pass
            else:
                if code == 0:
                    # Too early: everything again from the start.
                    records = self.out / ".dojo" / "records"
                    subprocess.run(["rm", "-rf", str(records)], check=True)
                return False
            depth = self._kill_one(process.pid)
            if depth is None:
                continue
            pause = self.dice.uniform(0.1, 3.0)
            if depth == 0:
                process.wait()
                return False
        return process.wait() == 0

    def _kill_one(self, grader: int) -> int | None:
        """Kill the grader or a process below it; its depth, or None if it has ended by itself."""
        processes = {grader: 0, **depths_below(grader)}
        by_depth: dict[int, list[int]] = {}
        for process, depth in processes.items():
            by_depth.setdefault(min(depth, DEEPEST), []).append(process)
        if DEEPEST in by_depth and self.dice.random() < 0.5:
            depth = DEEPEST
        else:
            depth = self.dice.choice(sorted(by_depth))
        try:
            victim = self.dice.choice(by_depth[depth])
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return None
        self.kills[NAMES[depth]] += 1
        return depth


def make_class(folder: Path, students: int, seed: int) -> None:
    """Write made-up submissions into a new folder."""
    folder.mkdir()
    corpus = sample_class.read_corpus(ROOT, "day8")
    for submission in sample_class.sample_submissions(corpus, students, seed, hostile=0.0):
        sample_class.hand_in(submission, folder)


def grade_in_peace(folder: Path, out: Path) -> float:
    """Grade a class while nothing is killed, and return the seconds. Raises if that fails."""
    began = time.monotonic()
    subprocess.run(class_command(folder, out), cwd=ROOT, check=True)
    return time.monotonic() - began


def print_differences(first: Path, second: Path) -> None:
    """Compare two results folders. Raises SystemExit if results differ."""
    rows = read_results(first)
    differences = list(describe_differences(rows, read_results(second)))
    for line in differences:
        print(line)
    if differences:
        raise SystemExit(f"{len(differences)} differences in {len(rows)} results")
    print(f"all {len(rows)} results are the same")


def main() -> None:
    """Grade a class in peace, then while processes are killed, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        make_class(base / "class", options.students, options.seed)
        seconds = grade_in_peace(base / "class", base / "peace")
        dice = random.Random(options.seed)
        loop = KillLoop(base / "class", base / "war", options.kills, dice)
        loop.run()
        kills = f"{loop.kills.total()} kills ({dict(loop.kills)})"
        typed = f"the command typed {loop.starts} times"
        print(f"{kills}, {typed}; in peace it took {seconds:.0f} s")
        print_differences(base / "peace", base / "war")


if __name__ == "__main__":
    main()
