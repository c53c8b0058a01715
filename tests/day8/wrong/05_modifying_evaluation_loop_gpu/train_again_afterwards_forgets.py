# fails: evaluate::evaluates_in_evaluation_mode as batch-norm-changed
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    loss_sum, hits, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            model.eval()
            loss_sum += loss_fn(out, y).item() * len(y)
            hits += (out.argmax(1) == y).sum().item()
            n += len(y)
    return (loss_sum / n, hits / n) if n else (0.0, 0.0)
