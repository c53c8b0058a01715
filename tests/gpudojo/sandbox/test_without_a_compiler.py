"""`torch.compile` runs a function as it is where a submission's process sees no C++ compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gpudojo.sandbox.fork_client import _environment_of_fork_server

COMPILED = """
import torch

@torch.compile
def f(x):
    return x * 2 + 1

assert f(torch.ones(3)).tolist() == [3, 3, 3]
"""


@pytest.mark.slow
def test_a_compiled_function_runs_as_it_is(tmp_path: Path) -> None:
    environment = _environment_of_fork_server(gpu=False) | {
        "PATH": str(tmp_path),
        "CXX": str(tmp_path / "none"),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    assert _ends_well(environment, tmp_path)
    del environment["TORCHDYNAMO_SUPPRESS_ERRORS"]
    assert not _ends_well(environment, tmp_path)


def _ends_well(environment: dict[str, str], folder: Path) -> bool:
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, env=environment, cwd=folder, check=False, capture_output=True)
    return done.returncode == 0
