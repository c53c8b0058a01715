# fails: evaluate::returns_the_accuracy as largest-over-samples
import torch


def _hits(logits, y):
    dim = 0
    order = logits.argsort(dim=dim, descending=True)
    best = order[0][: len(y)]
    return (best == y[: len(best)]).sum().item()


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    loss_sum, hits, seen = 0.0, 0, 0
    with torch.inference_mode():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            logits = model(x)
            loss_sum += loss_fn(logits, y).item() * len(y)
            hits += _hits(logits, y)
            seen += len(y)
    if not seen:
        return 0.0, 0.0
    return loss_sum / seen, hits / seen
