"""An open virtual device, for tests that need nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from virtual_cuda import VirtualGpu, virtual_cuda


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    with virtual_cuda() as opened:
        yield opened


@pytest.fixture
def two_gpus() -> Iterator[VirtualGpu]:
    with virtual_cuda(devices=2) as opened:
        yield opened
