"""A made-up Mac says that its torch was not built for CUDA, whatever this one was built for."""

from __future__ import annotations

import pytest
import torch
from virtual_cuda.hooks import no_accelerator, virtual_mps


def test_a_mac_has_no_cuda_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with virtual_mps():
        assert torch.version.cuda is None
    with no_accelerator(built=True):
        assert torch.version.cuda == "13.0"
    assert torch.version.cuda == "13.0"
