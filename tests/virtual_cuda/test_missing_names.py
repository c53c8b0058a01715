"""Without any one private name of torch, the device opens, trains a model and closes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.virtual_cuda.missing_names import NameCollector, NameHider, is_private

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each name is tried in a fork")
@pytest.mark.parametrize("sample", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_no_private_name_of_torch_stops_the_device(sample: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.virtual_cuda.missing_names"],
        cwd=ROOT,
        env={**os.environ, "SAMPLE": str(sample), "PYTHONPATH": f"{ROOT}:{ROOT / 'graders'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("0 of ")


CODE = """
import torch
from torch._a import b as c
import torch._d.e as f
from virtual_cuda.internals import find_internal
g = torch._C
h = (c.i, f.j, g._k, torch.cuda._l, find_internal("torch._m.n"), torch.public)
"""
NAMES = {
    *("torch._a.b", "torch._d.e", "torch._C", "torch._a.b.i", "torch._d.e.j", "torch._C._k"),
    *("torch.cuda._l", "torch._m.n"),
}


def test_private_names_are_found_however_they_are_written() -> None:
    collector = NameCollector()
    collector.visit(ast.parse(CODE))
    assert {path for path in collector.paths if is_private(path)} == NAMES


@pytest.mark.parametrize("path", sorted(NAMES))
def test_a_hidden_name_is_not_used_any_more(path: str) -> None:
    tree = ast.parse(CODE)
    collector = NameCollector()
    collector.visit(tree)
    NameHider(path, collector).visit(tree)
    after = NameCollector()
    after.visit(tree)
    assert path in collector.paths
    assert path not in after.paths
