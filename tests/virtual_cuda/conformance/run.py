"""Runs every snippet of a corpus on the virtual device: ``python -m
tests.virtual_cuda.conformance.run OUT.json``.

Importing torch takes seconds and a fork takes milliseconds, so one warm parent imports everything,
and each snippet runs on a device of its own in a forked child, which may die without taking the
others along.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.virtual_cuda.conformance.corpus import Corpus, Record, Snippet, load_all

VIRTUAL_CUDA = "virtual_cuda:virtual_cuda"
CHILDREN = 2
BATCH = 16
KILL_SECONDS = 60
"""The child's own alarm is earlier; this is for one that no longer runs Python."""
POLL_SECONDS = 0.002
LONGEST_TAIL = 400
REPOSITORY = Path(__file__).parents[3]

Device = Callable[[], AbstractContextManager[Any]]


def run(*corpora: Corpus, device: str = VIRTUAL_CUDA) -> dict[str, Record]:
    """Run the corpora in one process of their own, since loading torch takes long, and return their
    records.

    A fresh interpreter, because forking needs a parent with one thread and hashing with a fixed
    seed, and pytest's process promises neither.
    """
    environment = os.environ | {
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
        ),
    }
    environment |= dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
    )
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        out = Path(folder, "out.json")
        only = Path(folder, "only.json")
        only.write_text(
            json.dumps([id_ for corpus in corpora for id_ in corpus.snippets]), encoding="utf-8"
        )
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.virtual_cuda.conformance.run",
            str(out),
        ]
        subprocess.run(
            [*command, "--ids", str(only), "--device", device], env=environment, check=True
        )
        records: dict[str, Record] = json.loads(out.read_text(encoding="utf-8"))
    return records


@dataclass
class _Child:
    """A forked process and the snippets it was given."""

    pid: int
    batch: list[Snippet]
    folder: Path
    noise: Path
    started: float


def warm_up(device: Device) -> None:
    """Everything a snippet or the device needs on first use, done once."""
    import torch
    import torch._dynamo
    import torch.optim

    import tests.virtual_cuda.conformance.measure  # noqa: F401

    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with device():
        pass  # what a first opening prepares is then there for every child
    gc.collect()
    gc.freeze()  # a child's collections then leave the parent's pages shared


def run_forked(snippets: Iterable[Snippet], device: Device) -> dict[str, Record]:
    """Run the snippets in children of this process, a batch each.

    One that dies leaves a ``crash`` record.

    What a batch costs is mostly the fork's page faults, so a batch is many snippets; each still
    opens a device of its own. When a child dies, what is left of its batch goes on in another.
    """
    every = list(snippets)
    waiting = [every[i : i + BATCH] for i in range(0, len(every), BATCH)][::-1]
    running = dict[int, _Child]()
    records = dict[str, Record]()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        while waiting or running:
            while waiting and len(running) < CHILDREN:
                child = _fork(waiting.pop(), device, Path(folder))
                running[child.pid] = child
            for pid, child in list(running.items()):
                if (status := _ended(child)) is not None:
                    del running[pid]
                    rest = _collect(child, status, records)
                    if rest:
                        waiting.append(rest)
            time.sleep(POLL_SECONDS)
    return records


def _file(folder: Path, snippet: Snippet) -> Path:
    return folder / f"{snippet.id.replace('/', '_')}.json"


def _fork(batch: list[Snippet], device: Device, folder: Path) -> _Child:
    noise = _file(folder, batch[0]).with_suffix(".txt")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)  # so that a hanging snippet's own workers can be killed with it
            _silence(noise)
            for snippet in batch:
                record = json.dumps(_child(snippet, device))
                part = _file(folder, snippet).with_suffix(".part")
                part.write_text(record, encoding="utf-8")
                part.rename(_file(folder, snippet))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return _Child(pid, batch, folder, noise, time.monotonic())


def _child(snippet: Snippet, device: Device) -> Record:
    from tests.virtual_cuda.conformance.measure import measure

    started = time.perf_counter()
    with device():
        _allocate_workspaces()
        record = measure(snippet)
    record["seconds"] = round(time.perf_counter() - started, 3)
    return record


def _allocate_workspaces() -> None:
    """Let cuBLAS and cuBLASLt have the 65 MiB that they had before the first recorded snippet."""
    import torch

    if torch.cuda.is_available():
        layer = torch.nn.Linear(2, 2).cuda()
        layer(torch.ones(2, 2, device="cuda")).sum().backward()


def _silence(noise: Path) -> None:
    """What the child prints goes to a file: it is shown only if the child dies."""
    file = os.open(noise, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # The parent's own streams may be a test runner's captured ones.
    sys.stdout = sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _ended(child: _Child) -> int | None:
    """The child's exit code (negative: the signal that killed it), or None while it runs."""
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid:
        return os.waitstatus_to_exitcode(status)
    if time.monotonic() - child.started > KILL_SECONDS + len(child.batch):
        os.killpg(child.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    return None


def _collect(child: _Child, status: int, records: dict[str, Record]) -> list[Snippet]:
    """Take the records the child left.

    The first one missing died with it, the rest are returned.
    """
    for position, snippet in enumerate(child.batch):
        file = _file(child.folder, snippet)
        if file.exists():
            records[snippet.id] = json.loads(file.read_text(encoding="utf-8"))
            continue
        late = time.monotonic() - child.started > KILL_SECONDS
        said = (
            child.noise.read_text(encoding="utf-8", errors="replace")
            if child.noise.exists()
            else ""
        )
        records[snippet.id] = {
            "outcome": "crash",
            "error_type": "timeout" if late else f"exit {status}",
            "message": said[-LONGEST_TAIL:],
            "result": None,
        }
        return child.batch[position + 1 :]
    return []


def _device(path: str) -> Device:
    module, _, name = path.partition(":")
    found: Device = getattr(importlib.import_module(module), name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.virtual_cuda.conformance.run", description=__doc__
    )
    parser.add_argument("out", type=Path, help="where the records go")
    parser.add_argument(
        "--ids", type=Path, help="a JSON list of the ids to run; all of every corpus if left out"
    )
    parser.add_argument(
        "--device", default=VIRTUAL_CUDA, metavar="MODULE:CALLABLE", help="gives a context manager"
    )
    arguments = parser.parse_args()

    snippets = {id_: snippet for corpus in load_all() for id_, snippet in corpus.snippets.items()}
    ids = json.loads(arguments.ids.read_text(encoding="utf-8")) if arguments.ids else list(snippets)
    device = _device(arguments.device)
    warm_up(device)
    records = run_forked([snippets[id_] for id_ in ids], device)
    ordered = {id_: records[id_] for id_ in ids}
    arguments.out.write_text(json.dumps(ordered, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
