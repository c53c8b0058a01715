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
from typing import Any

from gpudojo.authoring import sample_class

from benchmarks.dojo_command import ROOT, grade_command

MEASURED = ("seconds", "peak_bytes", "output", "graded_at")


def class_command(folder: Path, out: Path) -> list[str]:
    """The command that is typed again and again."""
    return grade_command(folder, out, "loop", "-q")


def read_results(out: Path) -> list[dict[str, Any]]:
    rows = json.loads((out / "results.json").read_text(encoding="utf-8"))["submissions"]
    for row in rows:
        for name in MEASURED:
            row.pop(name, None)
    return list(rows)


def without_times(told: Any) -> Any:
    """A text without its measured times, as in "19.8 µs" and "3.2 ×"."""
    return (
        re.sub(r"[\d.,]+ ?(ns|µs|ms|s|seconds|times|×)(?!\w)", "(time)", told)
        if isinstance(told, str)
        else told
    )


def describe_differences(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> Iterator[str]:
    """Whatever is not the same, but for the times that messages tell."""
    for a, b in zip(first, second, strict=True):
        for key in {**a, **b}:
            if key != "exercises" and a.get(key) != b.get(key):
                yield f"{a['submission']}: {key}: {a.get(key)} | {b.get(key)}"
        pairs = zip(a["exercises"], b["exercises"], strict=True)
        for one, other in (
            pair for x, y in pairs for pair in zip(x["checks"], y["checks"], strict=True)
        ):
            # What is as usual is not written down.
            if any(
                without_times(one.get(key)) != without_times(other.get(key))
                for key in {**one, **other}
            ):
                said = (
                    f"{row['outcome']} {row.get('message', '')}".strip() for row in (one, other)
                )
                yield f"{a['submission']}: {one['id']}: {' | '.join(said)}"


def depths_below(pid: int) -> dict[int, int]:
    """Every descendant of a process, with its depth."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text(encoding="ascii", errors="replace")
                parents[int(name)] = int(text.rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found: dict[int, int] = {}
    level = 1
    layer = [p for p, parent in parents.items() if parent == pid]
    while layer:
        found.update(dict.fromkeys(layer, level))
        layer = [p for p, parent in parents.items() if parent in layer]
        level += 1
    return found


NAMES = {0: "the grader", 1: "the launcher", 2: "the fork server", 3: "a submission"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=8)
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        folder = base / "class"
        folder.mkdir()
        known = sample_class.read_corpus(ROOT, "day8")
        for made in sample_class.sample_submissions(known, asked.students, asked.seed, hostile=0.0):
            sample_class.hand_in(made, folder)
        began = time.monotonic()
        subprocess.run(class_command(folder, base / "peace"), cwd=ROOT, check=True)
        peace = time.monotonic() - began
        kills: Counter[str] = Counter()
        starts = 0
        process: subprocess.Popen[bytes] | None = None
        out = base / "war"
        while True:
            if process is None:
                process = subprocess.Popen(class_command(folder, out), cwd=ROOT)
                starts += 1
                # Early, late, and everything between: also while torch is being imported.
                pause = dice.uniform(0.2, 12.0)
            if kills.total() >= asked.kills:
                code = process.wait()
                if code == 0:
                    break
                process = None
                continue
            try:
                code = process.wait(pause)
            except subprocess.TimeoutExpired:
                pass
            else:
                process = None
                if code == 0:
                    # Done before enough were killed: grade everything again from the start.
                    subprocess.run(["rm", "-rf", str(out / ".dojo" / "records")], check=True)
                continue
            processes = {process.pid: 0, **depths_below(process.pid)}
            depths = sorted({min(level, 3) for level in processes.values()})
            depth = 3 if 3 in depths and dice.random() < 0.5 else dice.choice(depths)
            victim = dice.choice(
                [pid for pid, level in processes.items() if min(level, 3) == depth]
            )
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            kills[NAMES[depth]] += 1
            pause = dice.uniform(0.1, 3.0)
            if depth == 0:
                process.wait()
                process = None
        first = read_results(base / "peace")
        second = read_results(out)
        print(
            f"{kills.total()} kills ({dict(kills)}), the command typed {starts} times; in peace "
            f"it took {peace:.0f} s"
        )
        differing = list(describe_differences(first, second))
        for line in differing:
            print(line)
        if differing:
            raise SystemExit(f"{len(differing)} differences in {len(first)} results")
        print(f"all {len(first)} results are the same")


if __name__ == "__main__":
    main()
