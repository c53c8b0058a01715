# fails: evaluate::returns_the_accuracy as -
import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    loss_sum, hits, n = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x).softmax(1).argmax(1, keepdim=True)
        logits = model(x)
        loss_sum += loss_fn(logits, y).item() * len(y)
        hits += (out == y).sum().item()
        n += len(y)
    return (loss_sum / n, hits / n) if n else (0.0, 0.0)
