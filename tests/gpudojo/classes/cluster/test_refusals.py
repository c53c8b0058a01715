"""What cannot be used is refused in a sentence, before anything is sent to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gpudojo.classes.dask_client import address_of
from gpudojo.cli import main
from gpudojo.model.errors import BadWorker, NoCluster

from tests.gpudojo.classes.cluster.machines import GRADERS, Machines, Watching, grade, rows

OLDER = """
from gpudojo.classes import dask_messages
dask_messages.__version__ = "0.0.9"
"""
# What a machine without Landlock and seccomp would be like: for the process that tries them, and
# for the fork server.
BARE = """
from gpudojo.sandbox import fork_client
if "py_landlock" not in fork_client._START:
    without = 'import sys\\nsys.modules["py_landlock"] = sys.modules["pyseccomp"] = None\\n'
    fork_client._START = without + fork_client._START
"""
# A worker that goes on only where a file is not there.
HELD = """
import os, time
from gpudojo.classes import dask_worker
def graded(message, wanted):
    while os.path.exists({path!r}):
        time.sleep(0.02)
    return dask_worker.whole(message, wanted)
dask_worker.run_order = graded
"""


def dojo(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpudojo", "grade", *words]
    variables = {**os.environ, "PYTHONPATH": str(GRADERS), **environment}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=100, check=False
    )


def test_no_scheduler(mixed: Path, tmp_path: Path) -> None:
    found = dojo(
        str(mixed), "--out", str(tmp_path), "--scheduler", "tcp://127.0.0.1:9", "--wait", "1"
    )
    assert found.returncode == 1
    assert found.stderr.startswith(
        "Error: the scheduler at tcp://127.0.0.1:9 cannot be reached, tried for 1 s ("
    )
    assert "<" not in found.stderr
    assert found.stderr.count("\n") == 1, "a sentence, and none of Dask's own"
    assert list(tmp_path.rglob("*.mp")) == []


@pytest.mark.parametrize(
    "address",
    ["nonsense", "tcp://", "quic://127.0.0.1:9", "tls://127.0.0.1:9", "tcp://nowhere.invalid:9"],
)
def test_no_address(mixed: Path, tmp_path: Path, address: str) -> None:
    with pytest.raises(NoCluster, match=r"^the scheduler at .* cannot be (reached|connected to)"):
        grade(mixed, tmp_path, address, wait=0.5)


def test_no_workers(lonely: Machines, mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(
        NoCluster, match=r"has no workers, and had none for 0.5 s: start some first$"
    ):
        grade(mixed, tmp_path, lonely.address, wait=0.5)
    assert list(tmp_path.rglob("*.mp")) == []


def test_another_version(lonely: Machines, mixed: Path, tmp_path: Path) -> None:
    worker = lonely.worker(preload=OLDER)
    try:
        with pytest.raises(
            BadWorker,
            match=r"^the worker tcp://127.* cannot be used: it has gpudojo 0.0.9, and the grader",
        ):
            grade(mixed, tmp_path, lonely.address)
    finally:
        lonely.away(worker)
    assert list(tmp_path.rglob("*.mp")) == []


def test_a_worker_without_gpudojo(lonely: Machines, mixed: Path, tmp_path: Path) -> None:
    # Where these tests run it may be installed; this one comes first.
    (tmp_path / "gpudojo.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'gpudojo'\", name='gpudojo')\n"
    )
    worker = lonely.worker(path=tmp_path)
    try:
        with pytest.raises(
            BadWorker, match="gpudojo with its extra `cluster` is not installed there"
        ):
            grade(mixed, tmp_path / "out", lonely.address)
    finally:
        lonely.away(worker)


@pytest.mark.slow
def test_a_worker_without_isolation(
    lonely: Machines, slow: Path, slow_rows: dict[str, Any], tmp_path: Path
) -> None:
    shadows = tmp_path / "shadows"
    shadows.mkdir()
    for name in ("py_landlock", "pyseccomp"):
        (shadows / f"{name}.py").write_text("raise ImportError")
    worker = lonely.worker(preload=BARE, path=f"{shadows}{os.pathsep}{GRADERS}")
    try:
        refused = (
            r"cannot be used: --require-isolation: files: py-landlock is not installed; signals: "
        )
        with pytest.raises(BadWorker, match=refused):
            grade(slow, tmp_path / "strict", lonely.address, require_isolation=True)
        assert list((tmp_path / "strict").rglob("*.mp")) == []
        _, watcher, results = grade(slow, tmp_path / "out", lonely.address)
    finally:
        lonely.away(worker)
    assert watcher.layers["files"].startswith("py-landlock is not installed (on tcp://127.0.0.1:")
    assert watcher.layers["network"] == ""
    assert results.layers == watcher.layers
    for name, row in rows(results).items():
        assert {"files", "signals", "system calls"}.isdisjoint(row["layers"])
        assert {**row, "layers": []} == {**slow_rows[name], "layers": []}


@pytest.mark.slow
def test_who_joins_late_is_looked_at_and_who_is_left_is_told(
    lonely: Machines,
    machines: Machines,
    slow: Path,
    slow_rows: dict[str, Any],
    known: Path,
    tmp_path: Path,
) -> None:
    """Another version joins on the way, then the only good worker goes: what is graded is kept, and
    others go on.
    """
    held = tmp_path / "held"
    good = lonely.worker(preload=HELD.format(path=str(held)), recalls=known)
    bad: list[subprocess.Popen[bytes]] = []

    def join() -> None:
        held.touch()
        bad.append(lonely.worker(preload=OLDER))

    class Looking(Watching):
        def report_preparation(self, what: str) -> None:
            super().report_preparation(what)
            if "is not used" in what:
                lonely.away(good)

    watcher = Looking(after_1=join)
    kept = (
        r"has had no workers for 2 s; one that is there cannot be used: it has gpudojo 0.0.9, "
        r".*same command again"
    )
    try:
        with pytest.raises(NoCluster, match=kept):
            grade(slow, tmp_path / "out", lonely.address, watcher, wait=2)
    finally:
        lonely.away(*bad)
    assert [said for said in watcher.said if "is not used: it has gpudojo 0.0.9" in said]
    outcome, _, results = grade(slow, tmp_path / "out", machines.address)
    assert outcome.ran == len(slow_rows) - len(watcher.told) > 0
    assert rows(results) == slow_rows


def test_options_that_do_not_go_together(mixed: Path, tmp_path: Path) -> None:
    words = ["grade", str(mixed), "--out", str(tmp_path), "--scheduler", "tcp://127.0.0.1:9"]
    found = CliRunner().invoke(main, [*words, "--jobs", "2"])
    assert (found.exit_code, "the workers' threads count" in found.output) == (2, True)
    # what is only judged again needs no cluster, and asks for none
    found = CliRunner().invoke(main, [*words, "--rejudge"])
    assert (found.exit_code, "--rejudge runs nothing" in found.output) == (1, True)


def test_without_the_extra(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    words = ["grade", str(mixed), "--out", str(tmp_path), "--scheduler", "tcp://127.0.0.1:9"]
    found = CliRunner().invoke(main, words)
    assert (found.exit_code, "gpudojo[cluster]" in found.output) == (1, True)


def test_the_core_does_not_need_dask() -> None:
    code = "import sys, gpudojo.cli, gpudojo.classes.class_grading, gpudojo.cli.grade\n"
    code += "assert not {'distributed', 'dask'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(GRADERS)}, check=True
    )


def test_a_scheduler_file_names_the_address(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(
        json.dumps({"type": "Scheduler", "address": "tcp://10.0.0.1:8786", "workers": {}})
    )
    assert address_of(str(file)) == "tcp://10.0.0.1:8786"
    assert address_of("tcp://10.0.0.1:8786") == "tcp://10.0.0.1:8786"
    file.write_text("[]")
    with pytest.raises(NoCluster, match="not a scheduler file"):
        address_of(str(file))
