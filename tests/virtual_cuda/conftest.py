"""What tests of the device share: an open one, and the command that estimates scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_cuda import VirtualGpu, virtual_cuda

from tests.sharing import WarmPython
from tests.virtual_cuda.estimator import Estimator


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    with virtual_cuda() as opened:
        yield opened


@pytest.fixture
def two_gpus() -> Iterator[VirtualGpu]:
    with virtual_cuda(devices=2) as opened:
        yield opened


@pytest.fixture
def estimator(tmp_path: Path, warm_python: WarmPython) -> Estimator:
    return Estimator(tmp_path, warm_python)
