# fails: evaluate::returns_the_accuracy as -
import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    total, missed, n = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        total += loss_fn(out, y).item() * len(y)
        missed += (out.argmax(1) != y).sum().item()
        n += len(y)
    return (total / n, missed / n) if n else (0.0, 0.0)
