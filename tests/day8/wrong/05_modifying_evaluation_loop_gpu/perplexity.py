# fails: evaluate::returns_the_mean_loss_per_sample as -
import math
import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    total, hits, n = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        total += loss_fn(out, y).item() * len(y)
        hits += (out.argmax(1) == y).sum().item()
        n += len(y)
    return (math.exp(total / n), hits / n) if n else (0.0, 0.0)
