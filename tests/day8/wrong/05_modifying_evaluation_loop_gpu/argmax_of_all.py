# fails: evaluate::returns_the_accuracy as -
import torch
from torch import nn

def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    total, correct, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            total += loss_fn(out, y).item() * len(y)
            correct += (out.argmax() == y).sum().item()
            n += len(y)
    if n == 0:
        return 0.0, 0.0
    return total / n, correct / n
