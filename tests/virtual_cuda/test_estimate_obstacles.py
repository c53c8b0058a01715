"""What stops an estimate is told in a sentence, with the line and what to do."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from virtual_cuda import virtual_cuda
from virtual_cuda.errors import NeedsValues
from virtual_cuda.estimate.obstacles import describe_obstacle, describe_reads
from virtual_cuda.estimate.result import AssumptionCount

from tests.virtual_cuda.estimator import Estimator

KERNELS = {
    "load_inline": """
import torch
from torch.utils.cpp_extension import load_inline
load_inline("own", "", cuda_sources="__global__ void f() {}", functions=["f"])  # here
""",
    "triton": """
def make_kernel():
    raise ModuleNotFoundError("No module named 'triton'", name="triton")  # here
make_kernel()
""",
    "wrap_triton": """
import torch
torch.library.wrap_triton(print)  # here
""",
}
NETWORK = {
    "urllib": """
import urllib.request
urllib.request.urlopen("http://data.invalid/train.bin")  # here
""",
    "hub": """
import torch
torch.hub.load_state_dict_from_url("http://data.invalid/weights.pth", model_dir="weights")  # here
""",
    "socket": """
import socket
try:
    socket.create_connection(("data.invalid", 80))  # here
except OSError as error:
    raise RuntimeError("cannot download the data") from error  # and here
""",
}


def failure_of(path: Path, source: str) -> BaseException:
    """What running a script with this source raises, on a device without values."""
    path.write_text(source, encoding="utf-8")
    with virtual_cuda(values=False), pytest.raises(BaseException) as raised:  # noqa: PT011
        runpy.run_path(str(path), run_name="__main__")
    return raised.value


def line_of(source: str) -> int:
    """The last line with the comment."""
    lines = source.splitlines()
    return max(number for number, line in enumerate(lines, 1) if "here" in line)


@pytest.mark.parametrize("name", KERNELS)
def test_own_kernels_are_to_be_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / "own.py"
    said = describe_obstacle(failure_of(path, KERNELS[name]))
    assert said is not None
    assert f"own.py:{line_of(KERNELS[name])}: this uses kernels of its own" in said
    assert "use operators of PyTorch with the same shapes" in said


@pytest.mark.parametrize("name", NETWORK)
def test_what_comes_from_the_network_is_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = describe_obstacle(failure_of(tmp_path / "fetch.py", NETWORK[name]))
    assert said is not None
    assert said.startswith(f"fetch.py:{line_of(NETWORK[name])}: this needs the network")
    assert "torch.rand" in said
    assert "from_config" in said


def test_a_command_of_a_notebook_is_to_be_left_out(tmp_path: Path) -> None:
    source = "import torch\nget_ipython().run_line_magic('matplotlib', 'inline')\n"
    said = describe_obstacle(failure_of(tmp_path / "cells.py", source))
    assert said is not None
    assert "cells.py:2: this is a command of a notebook" in said


def test_any_other_error_is_no_obstacle(tmp_path: Path) -> None:
    for source in ("1 / 0", "import no_such_module", "open('missing.bin')", "def f(:"):
        assert describe_obstacle(failure_of(tmp_path / "wrong.py", source)) is None


def test_values_that_are_needed_are_named() -> None:
    assert "torch.unique needs the values" in (describe_obstacle(NeedsValues("torch.unique")) or "")


def test_a_value_that_was_read_may_be_why() -> None:
    read = AssumptionCount("read a value that is not known, and got 0", "train.py:7", 2)
    said = describe_reads(RuntimeError("no improvement"), [read])
    assert said is not None
    assert "(train.py:7)" in said
    assert "early stopping" in said
    assert describe_reads(RuntimeError(), []) is None
    assert describe_reads(SystemExit(1), [read]) is None


def test_early_stopping_by_an_error_is_told_with_its_traceback(estimator: Estimator) -> None:
    source = """
import torch
model = torch.nn.Linear(64, 64).cuda()
best = 1e9
while True:
    loss = model(torch.rand(8, 64).cuda()).sum().item()
    if loss >= best:
        raise RuntimeError("no improvement")
    best = loss
"""
    done = estimator.estimate(source, "FILE")
    assert done.returncode == 1
    assert "RuntimeError: no improvement" in done.stderr
    assert "train.py:8: before the error above" in done.stderr
    assert "(train.py:6)" in done.stderr
    assert "Peak memory" in done.stdout  # what is known by then


def test_a_script_without_the_gpu_is_told_what_to_do(estimator: Estimator) -> None:
    done = estimator.estimate("import torch\ntorch.ones(3).sum()\n", "FILE")
    assert done.returncode == 1
    assert "nothing had run on the GPU" in done.stderr
    assert '.to("cuda")' in done.stderr


def test_a_script_without_a_step_has_a_memory(estimator: Estimator) -> None:
    source = "import torch\nx = torch.rand(1000, 1000, device='cuda')\ny = x + x\n"
    done = estimator.estimate(source, "FILE")
    assert done.returncode == 0
    assert "No step was found" in done.stdout
    assert "Peak memory 7.63 MiB" in done.stdout


def test_a_loop_that_waits_for_an_end_token_is_told_its_length(estimator: Estimator) -> None:
    source = """
import torch
model = torch.nn.Linear(64, 64).cuda()
token = torch.zeros(1, 64, device="cuda")
with torch.no_grad():
    while not (token.max() > 0.5):
        token = model(token)
"""
    found = estimator.result_of(source, "FILE")
    assert found["ended"] == "stopped after 256 forward passes"
    (remark,) = found["remarks"]
    assert "after 256 calls of a model" in remark
    assert "--steps N" in remark
    assert estimator.result_of(source, "--steps", "4", "FILE")["remarks"] == []


def test_one_step_alone_is_said_to_be_the_first(estimator: Estimator) -> None:
    source = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
model(torch.rand(8, 64).cuda()).sum().backward()
optimizer.step()
"""
    (remark,) = estimator.result_of(source, "FILE")["remarks"]
    assert "one step of the optimizer" in remark
    assert estimator.result_of(source, "--steps", "1", "FILE")["remarks"] == []


ELSEWHERE = """
import torch

model = torch.nn.Linear(8, 8).cuda()
model(torch.rand(4, 8))
"""


def test_an_error_of_the_script_is_told_with_its_line_as_on_a_gpu(estimator: Estimator) -> None:
    done = estimator.estimate(ELSEWHERE, "FILE")
    assert done.returncode == 1
    *lines, last = done.stderr.splitlines()
    assert last.endswith("train.py:5: the script ended with the error above")
    assert lines[-1].startswith("RuntimeError: Expected all tensors to be on the same device")
    files = [line for line in lines if line.lstrip().startswith("File ")]
    assert "train.py" in files[0]
    assert not [line for line in files if "virtual_cuda" in line]
