"""Which of torch's composite functions ask C++ for CUDA and take another path there? Those paths, taken here."""

from __future__ import annotations

from typing import Any

import torch

from graders.bench.virtual.tensor import VIRTUAL


def _one_hot(original: Any) -> Any:
    """On CUDA the range of the classes is not checked beforehand, which would wait; `scatter_` asserts."""

    def one_hot(tensor: Any, num_classes: int = -1) -> Any:
        if type(tensor) not in VIRTUAL or tensor.dtype is not torch.int64 or tensor.numel() == 0:
            return original(tensor, num_classes)
        if num_classes == -1:
            num_classes = int(tensor.max().item()) + 1
        if num_classes < 1:
            raise RuntimeError("num_classes should be positive")
        blank = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
        return blank.scatter_(-1, tensor.unsqueeze(-1), 1)

    return one_hot


def patches() -> list[tuple[Any, str, Any]]:
    one_hot = _one_hot(torch._C._nn.one_hot)
    return [(torch._C._nn, "one_hot", one_hot), (torch.nn.functional, "one_hot", one_hot)]
