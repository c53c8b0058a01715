"""Tracers, profilers and the collector show student code, and nothing of the grader."""

from __future__ import annotations

import os

import pytest

from tests.gpudojo.sandbox.tampering.watched import run_watched
from tests.sharing import once

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each snippet runs in a fork")

WITH_DEVICE = (
    "import gc, sys, threading, torch, virtual_cuda\n"
    "from virtual_cuda import virtual_cuda\n"
    "def files_above(frame):\n"
    "    while frame is not None:\n"
    "        yield frame.f_code.co_filename\n"
    "        frame = frame.f_back\n"
    "SEEN = []\n"
    "def trace(frame, event, value):\n"
    "    SEEN.extend(files_above(frame))\n"
    "    return trace\n"
    "def work():\n"
    "    with virtual_cuda():\n"
    "        x = torch.ones(2, device='cuda', requires_grad=True)\n"
    "        torch.nn.Linear(2, 1, device='cuda')(x).backward()\n"
    "def is_graders(file):\n"
    "    return '/gpudojo/' in file or '/virtual_cuda/' in file\n"
)
STUDENTS_ALONE = (
    "seen = student.SEEN\n"
    "assert any(file == '/nowhere/student.py' for file in seen)\n"
    "assert any(file.endswith('torch/nn/modules/module.py') for file in seen)\n"
    "assert not {*filter(student.is_graders, seen)}, {*filter(student.is_graders, seen)}\n"
)
# A student's text, and what must be true afterwards.
SNIPPETS = {
    "tracer": (
        WITH_DEVICE + "def solve():\n    sys.settrace(trace)\n    work()\n    sys.settrace(None)",
        STUDENTS_ALONE,
    ),
    "profiler": (
        WITH_DEVICE + "def solve():\n    sys.setprofile(trace)\n    work()",
        STUDENTS_ALONE,
    ),
    "tracer of a file": (
        WITH_DEVICE + "sys.settrace(trace)\nwork()\nsys.settrace(None)",
        STUDENTS_ALONE,
    ),
    "tracer for threads": (
        WITH_DEVICE
        + "def solve():\n"
        + "    threading.settrace(trace)\n"
        + "    thread = threading.Thread(target=work)\n"
        + "    thread.start()\n"
        + "    thread.join()",
        STUDENTS_ALONE,
    ),
    "tracer that is set again": (
        WITH_DEVICE
        + "def solve():\n"
        + "    sys.settrace(trace)\n"
        + "    assert sys.gettrace() is trace\n"
        + "    sys.settrace(sys.gettrace())\n"
        + "    work()",
        STUDENTS_ALONE,
    ),
    "living objects": (
        WITH_DEVICE
        + "class Model:\n"
        + "    cache = [torch.ones(5)]\n"
        + "def solve():\n"
        + "    with virtual_cuda():\n"
        + "        kept = {'x': torch.ones(3, device='cuda')}\n"
        + "        SEEN.extend(gc.get_objects())",
        "import torch\n"
        "tensors = [each for each in student.SEEN if isinstance(each, torch.Tensor)]\n"
        "assert sorted(len(each) for each in tensors) == [3, 5]\n"
        "assert any(each.is_cuda for each in tensors)\n"
        "assert any(each is student.Model for each in student.SEEN)\n"
        "kinds = {type(each).__module__ for each in student.SEEN}\n"
        "assert not [each for each in kinds if each.startswith('gpudojo')]\n",
    ),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return once(tmp_path_factory, "debugging", lambda folder: run_watched(SNIPPETS))


@pytest.mark.parametrize("name", SNIPPETS)
def test_student_code_alone_is_shown(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []
