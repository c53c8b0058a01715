"""Is anything lost when a cluster falls apart?

`python -m benchmarks.kill_workers` kills it and compares results.

A class is graded once in peace on this machine. Then on a scheduler and workers of their own, over
loopback, while `kill -9` hits, at random moments, a worker, the scheduler, or the command itself,
each of which is started again. In the end both results must be the same, but for times and memory.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gpudojo.authoring import sample_class

from benchmarks.dojo_command import ROOT
from benchmarks.kill_loop import class_command, depths_below, describe_differences, read_results

# Without these a worker listens to the whole network, and runs what it is sent from there.
LOOPBACK = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
SHARES = {"a worker": 0.7, "the scheduler": 0.15, "the command": 0.15}


class Cluster:
    """A scheduler and workers, each looked after as a cluster's own supervision would: what ends is
    started again.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler = self._start_scheduler()
        self.workers = [self._start_worker() for _ in range(workers)]
        self.orphans: set[int] = set()

    def _start_module(self, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "graders")}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *words], cwd=self.folder, env=environment, **quiet
        )

    def _start_scheduler(self) -> subprocess.Popen[bytes]:
        how = ["--port", str(self.port), "--no-dashboard", "--no-jupyter"]
        return self._start_module("distributed.cli.dask_scheduler", *how, *LOOPBACK)

    def _start_worker(self) -> subprocess.Popen[bytes]:
        how = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        return self._start_module("distributed.cli.dask_worker", self.address, *how, *LOOPBACK)

    def restart_ended(self) -> None:
        if self.scheduler.poll() is not None:
            self.scheduler = self._start_scheduler()
        self.workers = [
            worker if worker.poll() is None else self._start_worker() for worker in self.workers
        ]

    def kill(self, what: str, chance: random.Random) -> None:
        victim = chance.choice(self.workers) if what == "a worker" else self.scheduler
        if what == "a worker":
            self.orphans |= set(depths_below(victim.pid))
        victim.kill()
        victim.wait()

    def count_orphans(self) -> int:
        """Processes that a killed worker has left behind."""
        return sum(_is_alive(pid) for pid in self.orphans)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def _is_alive(pid: int) -> bool:
    try:
        return b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=8)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        folder = base / "class"
        out = base / "war"
        folder.mkdir()
        for made in sample_class.sample_submissions(
            sample_class.read_corpus(ROOT, "day8"), asked.students, asked.seed, hostile=0.0
        ):
            sample_class.hand_in(made, folder)
        began = time.monotonic()
        subprocess.run(class_command(folder, base / "peace"), cwd=ROOT, check=True)
        peace = time.monotonic() - began
        cluster = Cluster(base, asked.workers)
        try:
            began = time.monotonic()
            kills, starts = _kill_and_restart(
                cluster,
                [*class_command(folder, out), "--scheduler", cluster.address],
                asked.kills,
                chance,
            )
            war = time.monotonic() - began
            time.sleep(2.0)
            left = cluster.count_orphans()
        finally:
            cluster.close()
        first = read_results(base / "peace")
        second = read_results(out)
        differing = list(describe_differences(first, second))
        print("| what | how often |\n| --- | --- |")
        for what in SHARES:
            print(f"| {what} killed | {kills[what]} |")
        print(f"| the command typed | {starts} |\n| processes left behind | {left} |")
        print(f"| submissions | {len(first)} |\n| results that differ | {len(differing)} |")
        print(
            "\n"
            f"in peace on this machine {peace:.0f} s, on {asked.workers} workers that are killed "
            f"{war:.0f} s"
        )
        for line in differing:
            print(line)
        if differing or left:
            raise SystemExit(1)


def _kill_and_restart(
    cluster: Cluster, words: list[str], most: int, chance: random.Random
) -> tuple[Counter[str], int]:
    """Until the command has ended well, with so many killed on the way as there was time for."""
    kills: Counter[str] = Counter()
    starts = 0
    process: subprocess.Popen[bytes] | None = None
    while True:
        if process is None:
            process = subprocess.Popen(words, cwd=ROOT)
            starts += 1
        pause = chance.uniform(0.5, 8.0) if kills.total() < most else 1.0
        try:
            code = process.wait(pause)
        except subprocess.TimeoutExpired:
            if kills.total() < most:
                what = chance.choices(list(SHARES), list(SHARES.values()))[0]
                kills[what] += 1
                if what == "the command":
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    process = None
                else:
                    cluster.kill(what, chance)
            cluster.restart_ended()
            continue
        if code == 0:
            return kills, starts
        process = None
        cluster.restart_ended()


if __name__ == "__main__":
    main()
