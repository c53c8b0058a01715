from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Meter:
    total: float = 0.0
    count: int = 0
    def add(self, value, n):
        self.total += value * n
        self.count += n
    @property
    def mean(self):
        return self.total / self.count if self.count else 0.0
def evaluate(model: nn.Module, loader, loss_fn, device: "torch.device | str") -> "tuple[float, float]":
    loss, acc = Meter(), Meter()
    model.to(device)
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            loss.add(loss_fn(out, y).item(), len(y))
            acc.add((out.argmax(1) == y).float().mean().item(), len(y))
    return loss.mean, acc.mean
