"""Grading on a real GPU: two kinds of children for one submission, limits of its memory, and errors
that stay in it.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path

import pytest
import torch
from gpudojo.classes import judging
from gpudojo.classes.class_grading import ClassGrading
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.classes.records import Incident, IncidentKind
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import iterate
from gpudojo.model.time_outs import still_running_after
from gpudojo.sandbox import real_gpus
from gpudojo.sandbox.isolation import limit_resources
from gpudojo.sandbox.memory_watch import MemoryLimits, Usage
from gpudojo.sandbox.protocol import (
    ALL,
    ELSEWHERE,
    HERE,
    Began,
    Finished,
    Frame,
    Isolated,
    Paused,
    RunOptions,
    Saw,
    encode_frame,
)
from gpudojo.sandbox.real_gpus import CUDA_DEVICE_BYTES, CUDA_HOST_BYTES

from tests.exploits.conftest import Quiet

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "reference" / "day8"
TOKEN = b"t" * 16
KEY = "01_device::select"
LATE = Raised("TimedOut", still_running_after(5), None)
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's limits")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


# One submission, several children


def attempt(bench: str = "cuda") -> SubmissionRun:
    options = RunOptions(day="day8", bench=bench, seeds={}, known=frozenset({KEY}), seconds=5.0)
    return SubmissionRun("digest", {"a.py": b""}, options, lambda: 100.0)


def say(one: SubmissionRun, *frames: Frame) -> bool:
    return one.receive_bytes(
        b"".join(encode_frame(frame, TOKEN, n) for n, frame in enumerate(frames, one._frames.count))
    )


def saw(*probes: str, raised: Raised | None = None, spent: bool = False) -> Saw:
    status = CallStatus.RETURNED if raised is None else CallStatus.RAISED
    found = {probe: Observation(status, {}, raised) for probe in probes}
    return Saw(
        Evidence("01_device", "select", "cuda", 0, found),
        0.1,
        interrupted=raised is LATE,
        spent=spent,
    )


def test_a_child_with_the_gpu_is_followed_by_one_without_and_both_count() -> None:
    one = attempt()
    first = one.make_job(TOKEN)
    assert (first.machines, first.on_gpu, first.done) == (HERE, True, frozenset())
    assert say(
        one, Isolated({"files": "", "device memory": "why"}), Began(KEY), saw("usual"), Finished()
    )
    assert one.note_child_exit(0) is True
    second = one.make_job(TOKEN)
    assert (second.machines, second.on_gpu, second.skip) == (ELSEWHERE, False, frozenset())
    assert second.done == {f"{KEY}::usual"}
    assert say(
        one,
        Isolated({"files": "", "user": "why not"}),
        Began(KEY),
        saw("mac", "laptop"),
        Finished(),
    )
    assert one.note_child_exit(0) is False
    assert set(one.record.functions[KEY].evidence.observations) == {"usual", "mac", "laptop"}
    assert one.record.functions[KEY].seconds == pytest.approx(0.2)
    assert one.record.layers == {"files": "", "device memory": "why", "user": "why not"}


def test_on_other_benches_one_child_is_every_machine() -> None:
    one = attempt("virtual")
    assert (one.make_job(TOKEN).machines, one.make_job(TOKEN).on_gpu) == (ALL, False)
    say(one, Began(KEY), saw("usual"), Finished())
    assert one.note_child_exit(0) is False


def test_what_a_lost_gpu_has_left_out_is_seen_by_the_next_child() -> None:
    one = attempt()
    one.make_job(TOKEN)
    assert say(
        one,
        Began(KEY),
        saw("usual", raised=Raised("AcceleratorError", "CUDA error", 3), spent=True),
        Paused(),
    )
    assert one.note_child_exit(0) is True
    again = one.make_job(TOKEN)
    assert (again.machines, again.done, again.skip) == (HERE, {f"{KEY}::usual"}, frozenset())
    assert say(one, Began(KEY), saw("twice"), Finished())
    assert one.note_child_exit(0) is True
    assert set(one.record.functions[KEY].evidence.observations) == {"usual", "twice"}
    assert one.record.incidents == []


@pytest.mark.parametrize("bench", ["cuda", "virtual"])
def test_nobody_tells_of_a_probe_twice(bench: str) -> None:
    one = attempt(bench)
    one.make_job(TOKEN)
    assert say(one, Began(KEY), saw("usual"))
    assert not say(one, Began(KEY), saw("another"))  # the same child, the same function
    two = attempt(bench)
    two.make_job(TOKEN)
    assert say(two, Began(KEY), saw("usual"), Paused())
    two.note_child_exit(0)
    two.make_job(TOKEN)
    assert not say(two, Began(KEY), saw("usual"))
    assert [incident.what for incident in two.record.incidents] == [IncidentKind.FORGED]


def test_after_a_time_out_the_other_machines_are_not_asked_and_count_as_late() -> None:
    one = attempt()
    one.make_job(TOKEN)
    assert say(one, Began(KEY), saw("usual", raised=LATE), Paused())
    one.note_child_exit(0)
    assert one.make_job(TOKEN).skip == {KEY}
    assert [incident.what for incident in one.record.incidents] == [IncidentKind.TIMED_OUT]
    exercise = exercises_of("day8")[0]
    function = exercise.functions[0]
    names = [probe.name for probe in function.probes]
    seen = {
        names[0]: Observation(CallStatus.RETURNED, {}),
        names[1]: Observation(CallStatus.RAISED, {}, LATE),
    }
    late = judging.complete_after_time_out(
        function, Evidence(exercise.stem, function.name, "cuda", 0, seen)
    )
    assert late is not None
    found = late.observations
    assert [found[name].raised for name in names] == [None, *[LATE] * (len(names) - 1)]
    whole = {name: Observation(CallStatus.RETURNED, {}) for name in names}
    assert (
        judging.complete_after_time_out(
            function, Evidence(exercise.stem, function.name, "cuda", 0, whole)
        )
        is None
    )


def test_too_much_gpu_memory_is_reported_as_that() -> None:
    one = attempt()
    one.make_job(TOKEN)
    say(one, Began(KEY))
    assert one.note_child_exit(-9, over_memory=True, on_gpu=True) is True
    told = "its processes together took more GPU memory than allowed"
    assert one.record.incidents == [Incident(IncidentKind.OUT_OF_MEMORY, KEY, told)]


# Limits


def test_what_cuda_takes_itself_is_not_the_students() -> None:
    with_gpu = MemoryLimits(100, 50)
    without = MemoryLimits(100)
    assert not with_gpu.over_host(Usage(host=CUDA_HOST_BYTES, mapped=100))
    assert with_gpu.over_host(Usage(host=CUDA_HOST_BYTES, mapped=101))
    assert not with_gpu.over_device(Usage(device=CUDA_DEVICE_BYTES + 50))
    assert with_gpu.over_device(Usage(device=CUDA_DEVICE_BYTES + 51))
    assert without.over_host(Usage(host=101))
    assert not without.over_host(Usage(host=100, mapped=1 << 40))
    assert not without.over_device(Usage(device=1 << 40))


@linux
def test_addresses_may_be_reserved_where_memory_may_not_be_written() -> None:
    """As CUDA does it: gigabytes of addresses that cost nothing.

    What can be written to is limited all the same.
    """
    import mmap

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            limit_resources(64 << 20, 1 << 20, 10, gpu=True)
            mmap.mmap(
                -1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ
            )
            try:
                mmap.mmap(
                    -1, CUDA_HOST_BYTES + (128 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                )
                code = 2
            except OSError:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


@linux
def test_proc_is_never_mounted_for_the_whole_machine(tmp_path: Path) -> None:
    from gpudojo.sandbox import kernel
    from gpudojo.sandbox.isolation import Isolation

    isolation = Isolation(str(tmp_path))
    isolation.own_processes, isolation.namespaces = 5, kernel.NEWNET
    assert not isolation.may_mount_proc()
    isolation.namespaces |= kernel.NEWNS
    assert isolation.may_mount_proc()
    isolation.own_processes = None
    assert not isolation.may_mount_proc()


def test_the_fork_server_sees_no_gpu_and_its_children_see_what_the_grader_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    hidden = real_gpus.variables_that_hide_gpus()
    assert (hidden["CUDA_VISIBLE_DEVICES"], hidden[real_gpus.VISIBLE]) == ("", "3,1")
    for name, value in hidden.items():
        monkeypatch.setenv(name, value)
    real_gpus.show_gpus(hidden[real_gpus.VISIBLE])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,1"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert real_gpus.VISIBLE not in real_gpus.variables_that_hide_gpus()


# On a GPU itself

HOSTILE = {
    # name → what train_epoch does, and what becomes of the submission
    "host_memory": ("keep.append(bytearray(8 << 30))", "out of memory"),
    "host_pages": ("[bytearray(1 << 28) for _ in range(64)]", "out of memory"),
    "pinned_memory": (
        (
            "[keep.append(torch.empty(1 << 28, dtype=torch.uint8).pin_memory()) for _ in "
            "range(64)]; time.sleep(5)"
        ),
        "out of memory",
    ),
    "device_memory": (
        "keep.append(torch.empty(60 << 30, dtype=torch.uint8, device='cuda'))",
        "out of memory",
    ),
    "device_piecemeal": (
        "[keep.append(torch.empty(1 << 28, dtype=torch.uint8, device='cuda')) for _ in range(999)]",
        "out of memory",
    ),
    "limit_lifted": (
        "torch.cuda.set_per_process_memory_fraction(1.0); "
        "keep.append(torch.empty(20 << 30, dtype=torch.uint8, device='cuda')); time.sleep(5)",
        "out of memory",
    ),
    "past_torch": ("raw(20 << 30); time.sleep(5)", "out of memory"),
    "device_assert": (
        "torch.arange(4, device='cuda')[torch.full((4,), 99, device='cuda')]",
        "graded",
    ),
    "device_assert_awaited": (
        "torch.arange(4, device='cuda')[torch.full((4,), 99, device='cuda')].cpu()",
        "graded",
    ),
    "illegal_address": ("bad(torch.ones(4, device='cuda'))", "graded"),
    "endless_loop": ("while True: pass", "timed out"),
    "endless_kernel": ("torch.cuda._sleep(1 << 62); torch.cuda.synchronize()", "timed out"),
    "segmentation_fault": ("ctypes.string_at(0)", "crashed"),
    "abort": ("os.abort()", "crashed"),
    "exit": ("os._exit(0)", "crashed"),
}
HEAD = """\
import ctypes, glob, os, time
import torch

keep = []


def raw(size):
    found = [line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line]
    pointer = ctypes.byref(ctypes.c_void_p())
    assert ctypes.CDLL(found[0]).cudaMalloc(pointer, ctypes.c_size_t(size)) == 0


def bad(x):
    code = "template <typename T> T bad(T x) { T* there = (T*)16; return x + *there; }"
    return torch.cuda.jiterator._create_jit_fn(code)(x)


def train_epoch(model, loader, loss_fn, optimizer, device):
    LINE
    return 0.0
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SubmissionRow]:
    """Every one of them with a right solution of something else in it, and an honest neighbour
    behind it.
    """
    base = tmp_path_factory.mktemp("cuda")
    submissions = base / "class"
    for name, (line, _) in HOSTILE.items():
        folder = submissions / name
        folder.mkdir(parents=True)
        (folder / "04_modifying_training_loop_gpu.py").write_text(HEAD.replace("LINE", line))
        shutil.copy(REFERENCE / "03_moving_batches.py", folder)
        shutil.copy(REFERENCE / "05_modifying_evaluation_loop_gpu.py", folder)
        shutil.copytree(
            REFERENCE,
            submissions / f"{name}.neighbour",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        answers = submissions / f"{name}.neighbour" / "12_self_assessment.py"
        answers.write_text(f"{answers.read_text()}\n# {name}\n")
    only = frozenset({"select_device", "move_batch", "train_epoch", "evaluate"})
    asked = GradingOptions(
        submissions=[submissions],
        out=base / "out",
        reference=REFERENCE,
        bench="cuda",
        secret="s",
        jobs=4,
        seconds=6.0,
        only=only,
    )
    path = ClassGrading(asked, Quiet()).run().path
    return {row.submission: row for row in iterate(path)}


@needs_gpu
@pytest.mark.parametrize("name", HOSTILE)
def test_it_ends_as_it_should_and_costs_nobody_anything(
    rows: dict[str, SubmissionRow], name: str
) -> None:
    row = rows[name]
    neighbour = rows[f"{name}.neighbour"]
    assert row.status == HOSTILE[name][1], row.reason
    lost = {
        exercise.exercise[:2]: exercise.max_score - exercise.score for exercise in row.exercises
    }
    assert (lost["03"], lost["05"]) == (0, 0)  # what comes before, and after it
    assert lost["04"] > 0
    assert (neighbour.status, neighbour.score) == ("graded", neighbour.max_score)


@needs_gpu
def test_every_layer_holds_with_a_gpu(rows: dict[str, SubmissionRow]) -> None:
    held = set(rows["exit.neighbour"].layers)
    assert {
        "processes",
        "network",
        "scratch",
        "files",
        "system calls",
        "user",
        "limits",
        "device memory",
    } <= held


@needs_gpu
def test_verdicts_on_cuda_are_those_of_the_virtual_device(tmp_path: Path) -> None:
    found = []
    for bench in ("virtual", "cuda"):
        asked = GradingOptions(
            submissions=[ROOT / "examples" / "class"],
            out=tmp_path / bench,
            reference=REFERENCE,
            bench=bench,
            secret="s",
            jobs=4,
        )
        path = ClassGrading(asked, Quiet()).run().path
        checks = [
            (row.submission, row.status, c)
            for row in iterate(path)
            for e in row.exercises
            for c in e.checks
        ]
        found.append(
            [(name, status, c.id, c.outcome, c.misconception) for name, status, c in checks]
        )
    assert found[0] == found[1]


def test_a_record_tells_what_was_held_of_the_gpu() -> None:
    one = attempt()
    one.make_job(TOKEN)
    record = one.finish_record(1 << 20, 0.5, 3 << 20)
    assert (record.peak_bytes, record.device_bytes) == (1 << 20, 3 << 20)
