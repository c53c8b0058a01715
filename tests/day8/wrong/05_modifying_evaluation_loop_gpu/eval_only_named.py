# fails: evaluate::evaluates_in_evaluation_mode as eval-not-called
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval
    total, hits, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            logits = model(x)
            total += loss_fn(logits, y).item() * len(y)
            hits += int((logits.argmax(1) == y).sum())
            n += len(y)
    return (total / n, hits / n) if n else (0.0, 0.0)
