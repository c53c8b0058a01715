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
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.commands import ROOT
from benchmarks.kill_loop import (
    class_command,
    describe_differences,
    grade_in_peace,
    make_class,
    read_results,
)
from benchmarks.processes import depths_below

# Without these a worker listens to the whole network, and runs what it is sent from there.
LOOPBACK = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
SHARES = {"a worker": 0.7, "the scheduler": 0.15, "the command": 0.15}


class Cluster:
    """A scheduler and workers on this machine.

    `restart_ended` starts what has ended again, as a cluster's own supervision would.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler = self._start_scheduler()
        self.workers = [self._start_worker() for _ in range(workers)]
        self.orphans: set[int] = set()

    def _start_module(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a module of Python's; what it prints is dropped."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "graders")}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _start_scheduler(self) -> subprocess.Popen[bytes]:
        options = ["--port", str(self.port), "--no-dashboard", "--no-jupyter"]
        return self._start_module("distributed.cli.dask_scheduler", *options, *LOOPBACK)

    def _start_worker(self) -> subprocess.Popen[bytes]:
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        return self._start_module("distributed.cli.dask_worker", self.address, *options, *LOOPBACK)

    def restart_ended(self) -> None:
        """Start what has ended again."""
        if self.scheduler.poll() is not None:
            self.scheduler = self._start_scheduler()
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[number] = self._start_worker()

    def kill_worker(self, dice: random.Random) -> None:
        """Kill one of the workers, and remember the processes that it had."""
        worker = dice.choice(self.workers)
        self.orphans |= set(depths_below(worker.pid))
        worker.kill()
        worker.wait()

    def kill_scheduler(self) -> None:
        self.scheduler.kill()
        self.scheduler.wait()

    def count_orphans(self) -> int:
        """Processes that a killed worker has left behind."""
        return sum(_is_fork_server(process) for process in self.orphans)

    def close(self) -> None:
        """Kill all of them."""
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def _is_fork_server(process: int) -> bool:
    """True if a process still runs, and is a fork server."""
    try:
        return b"fork_server" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


class KilledRun(NamedTuple):
    """What happened while a class was graded by a cluster that is killed."""

    kills: Counter[str]
    starts: int  # how often the command was typed
    seconds: float


def grade_and_kill(
    cluster: Cluster, command: list[str], wanted: int, dice: random.Random
) -> KilledRun:
    """Type the command until it has ended well, and kill what it needs meanwhile.

    So many are killed as are wanted, or fewer if there is no time for them.
    """
    kills: Counter[str] = Counter()
    starts = 0
    began = time.monotonic()
    while True:
        process = subprocess.Popen(command, cwd=ROOT)
        starts += 1
        while process.poll() is None:
            to_kill = kills.total() < wanted
            pause = 1.0
            if to_kill:
                pause = dice.uniform(0.5, 8.0)
            try:
                process.wait(pause)
            except subprocess.TimeoutExpired:
                if to_kill:
                    victim = dice.choices(list(SHARES), list(SHARES.values()))[0]
                    kills[victim] += 1
                    _kill_victim(victim, cluster, process, dice)
                cluster.restart_ended()
        if process.returncode == 0:
            return KilledRun(kills, starts, time.monotonic() - began)
        cluster.restart_ended()


def _kill_victim(
    victim: str, cluster: Cluster, command: subprocess.Popen[bytes], dice: random.Random
) -> None:
    """Kill one of the names in SHARES, and wait until it has ended."""
    if victim == "the command":
        command.kill()
        command.wait()
    elif victim == "the scheduler":
        cluster.kill_scheduler()
    else:
        cluster.kill_worker(dice)


def main() -> None:
    """Grade a class in peace, then on a cluster that is killed, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        folder = base / "class"
        make_class(folder, options.students, options.seed)
        peace = grade_in_peace(folder, base / "peace")
        cluster = Cluster(base, options.workers)
        try:
            command = [*class_command(folder, base / "war"), "--scheduler", cluster.address]
            dice = random.Random(options.seed)
            run = grade_and_kill(cluster, command, options.kills, dice)
            time.sleep(2.0)
            left = cluster.count_orphans()
        finally:
            cluster.close()
        rows = read_results(base / "peace")
        differences = list(describe_differences(rows, read_results(base / "war")))
    # The table, and what differs.
    print("| what | how often |\n| --- | --- |")
    for victim in SHARES:
        print(f"| {victim} killed | {run.kills[victim]} |")
    print(f"| the command typed | {run.starts} |")
    print(f"| processes left behind | {left} |")
    print(f"| submissions | {len(rows)} |")
    print(f"| results that differ | {len(differences)} |")
    workers = f"on {options.workers} workers that are killed {run.seconds:.0f} s"
    print(f"\nin peace on this machine {peace:.0f} s, {workers}")
    for line in differences:
        print(line)
    if differences or left:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
