"""What does torch.profiler see? The host's view of every operator; there is no device timeline to record."""

from __future__ import annotations

from typing import Any

import torch


def patches() -> list[tuple[Any, str, Any]]:
    profile = torch.autograd.profiler.profile
    original = profile.__init__

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("use_device", None)
        kwargs.pop("use_cuda", None)
        original(self, *args, **kwargs)

    return [(profile, "__init__", start)]
