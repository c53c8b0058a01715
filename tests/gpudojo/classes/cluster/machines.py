"""A real scheduler and real workers for tests, each a process of its own, over loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpudojo.classes.class_grading import ClassGrading, GradedClass
from gpudojo.classes.dask_client import Cluster
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.model.results import ClassResults, SubmissionStatus
from gpudojo.model.results_file import read

ROOT = Path(__file__).parents[4]
GRADERS = ROOT / "graders"
REFERENCE = ROOT / "reference" / "day8"
ONLY = frozenset({"select_device", "parameter_devices"})
FIRST = "01_checking_device.py"
SECOND = "02_moving_model_to_device.py"
# Without these a worker listens to the whole network, and runs what it is sent from there.
LOOPBACK = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
# A worker that replies with the records of an earlier run, for tests of what travels and not of
# what runs: without a fork server, which takes seconds to start.
RECALLING = """
import pathlib, time
from gpudojo.classes.records import decode_record
from gpudojo.classes import dask_worker
kept = [path.read_bytes() for path in pathlib.Path({known!r}, ".dojo", "records").rglob("*.mp")]
records = {{decode_record(data).digest: data for data in kept}}
def recalled(message, wanted):
    order = dask_worker.unpack_message(message, dask_worker.Order)
    time.sleep(0.3)
    reply = dask_worker.Reply(message[:dask_worker.HASH], records[order.digest])
    return dask_worker.pack_message(reply)
dask_worker.run_order = dask_worker.whole = recalled
"""
MEASURED = ("seconds", "peak_bytes", "graded_at")


class Machines:
    """A scheduler and its workers; their logs are in the folder."""

    def __init__(self, folder: Path, protocol: str = "tcp") -> None:
        self.folder = folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.address = f"{protocol}://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self.processes:
            process.wait()

    def _start(
        self, words: Sequence[str], path: Path | str = GRADERS, **environment: str
    ) -> subprocess.Popen[bytes]:
        log = self.folder / f"log-{len(self.processes)}"
        variables = {**os.environ, "PYTHONPATH": str(path), **environment}
        with log.open("wb") as file:
            command = [sys.executable, "-P", "-m", *words]
            process = subprocess.Popen(
                command, cwd=self.folder, env=variables, stdout=file, stderr=file
            )
        self.processes.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"log-{self.processes.index(process)}").read_text(errors="replace")

    def scheduler(self, *more: str, **environment: str) -> subprocess.Popen[bytes]:
        """It does not have gpudojo, and does not need it."""
        words = [
            "distributed.cli.dask_scheduler",
            "--port",
            str(self.port),
            "--no-dashboard",
            "--no-jupyter",
        ]
        process = self._start([*words, *LOOPBACK, *more], self.folder, **environment)
        until(lambda: "Scheduler at:" in self.log(process), process)
        return process

    def worker(
        self,
        *more: str,
        threads: int = 1,
        preload: str = "",
        path: Path | str = GRADERS,
        ready: bool = True,
        recalls: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        if recalls is not None:
            preload = RECALLING.format(known=str(recalls)) + preload
        words = [
            "distributed.cli.dask_worker",
            self.address,
            "--no-dashboard",
            "--nthreads",
            str(threads),
        ]
        words += LOOPBACK
        if preload:
            script = self.folder / f"preload_{len(self.processes)}.py"
            script.write_text(preload)
            words += ["--preload", str(script)]
        process = self._start([*words, *(more or ("--no-nanny",))], path)
        if ready:
            self.registered(process)
        return process

    def registered(self, worker: subprocess.Popen[bytes]) -> None:
        until(lambda: "Registered to:" in self.log(worker), worker)

    def away(self, *workers: subprocess.Popen[bytes]) -> None:
        """Only when the scheduler, the first of all, knows that they are gone may the next test
        begin.
        """
        before = self.log(self.processes[0]).count("Remove worker")
        for worker in workers:
            worker.kill()
            worker.wait()
        until(lambda: self.log(self.processes[0]).count("Remove worker") >= before + len(workers))

    def two(self) -> list[subprocess.Popen[bytes]]:
        workers = [self.worker(ready=False) for _ in range(2)]
        for worker in workers:
            self.registered(worker)
        return workers


def until(
    true: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, seconds: float = 60.0
) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        assert process is None or process.poll() is None, "it ended"
        time.sleep(0.02)


def below(pid: int, after: int = 0) -> set[int]:
    """Every descendant of a process, without its children, grandchildren and so on where layers are
    left out.
    """
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{name}/stat").read_text(encoding="ascii", errors="replace")
            parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    found: set[int] = set()
    layer = {child for child, parent in parents.items() if parent == pid}
    seen: set[int] = set()
    while layer:
        seen |= layer
        found |= layer if after <= 0 else set()
        layer = {child for child, parent in parents.items() if parent in layer} - seen
        after = after - 1
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (OSError, ValueError):
        return False


class Watching:
    """Progress that keeps what it is told, and acts when so many are graded."""

    def __init__(self, **deeds: Callable[[], None]) -> None:
        self.deeds = {int(name.removeprefix("after_")): deed for name, deed in deeds.items()}
        self.ran: list[str] = []
        self.told: list[str] = []
        self.said: list[str] = []
        self.layers: dict[str, str] = {}
        self.most_under_way = 0

    def report_submissions(self, count: int, known: int, ignored: Any) -> None: ...

    def report_preparation(self, what: str) -> None:
        self.said.append(what)

    def report_isolation(self, layers: dict[str, str]) -> None:
        self.layers = layers

    def report_running(self, tasks: Any) -> None:
        self.most_under_way = max(self.most_under_way, len(tasks))

    def report_verdict(self, submission: str, status: SubmissionStatus, ran: bool) -> None:
        self.told.append(submission)
        if ran:
            self.ran.append(submission)
        self.deeds.pop(len(self.told), lambda: None)()


def course_for(out: Path) -> Path:
    """Write the course file of a class, and return its path.

    One reference for all: which comes when would else depend on what is in the files.
    """
    course = out.parent / f"{out.name}-course.toml"
    course.write_text('seed = "per-class"\n', encoding="utf-8")
    return course


def grade(
    class_: Path | list[Path],
    out: Path,
    address: str | None,
    watcher: Watching | None = None,
    wait: float = 30.0,
    **more: Any,
) -> tuple[GradedClass, Watching, ClassResults]:
    """With an address on its cluster, and without one here."""
    watcher = watcher or Watching()
    more = {"only": ONLY, "jobs": 2, "seconds": 3.0, "secret": "secret", **more}
    runner = (
        None if address is None else Cluster(address, wait, more.get("require_isolation", False))
    )
    class_ = class_ if isinstance(class_, list) else [class_]
    more.setdefault("course", course_for(out))
    options = GradingOptions(submissions=class_, out=out, reference=REFERENCE, **more)
    outcome = ClassGrading(options, watcher, runner).run()
    return outcome, watcher, read(out / "results.json")


def rows(results: ClassResults) -> dict[str, dict[str, Any]]:
    """Everything that does not depend on when it was graded and how fast a machine is."""
    import msgspec

    found = msgspec.to_builtins(results.submissions)
    for row in found:
        if row["record"]:  # the header's reference is another one in another class
            row["reference"] = row["reference"] or results.reference
    return {
        row["submission"]: {key: row[key] for key in row if key not in MEASURED} for row in found
    }


def write_class(folder: Path, slow: int = 0) -> Path:
    """Right, wrong, endless, crashing and unreadable ones, and some that take their time."""
    first, second = ((REFERENCE / name).read_text(encoding="utf-8") for name in (FIRST, SECOND))
    files = {
        "solved": {FIRST: first, SECOND: second},
        "twin": {FIRST: first, SECOND: second},
        "wrong": {
            FIRST: (
                'import torch\n\ndef select_device(prefer=None):\n    return torch.device("cpu")\n'
            )
        },
        "crash": {
            FIRST: "import ctypes\n\ndef select_device(prefer=None):\n    ctypes.string_at(0)\n",
            SECOND: second,
        },
        "endless": {
            FIRST: "def select_device(prefer=None):\n    while True: pass\n",
            SECOND: second,
        },
    }
    if slow:
        files = {}
    for number in range(slow):
        files[f"slow-{number}"] = {
            FIRST: f"import time\ntime.sleep(0.3)\n{first}\n# {number}\n",
            SECOND: second,
        }
    for name, texts in files.items():
        (folder / name).mkdir(parents=True)
        for file, text in texts.items():
            (folder / name / file).write_text(text, encoding="utf-8")
    if not slow:
        (folder / "broken.zip").write_bytes(b"PK\x03\x04 no archive")
    return folder
